"""A drafter whose parameters, gradients and optimizer state are spread over processes (FSDP)."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.strategy import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from dflash.training.config import TrainConfig


def strategy_of(config: TrainConfig) -> str | Strategy:
    """Lightning's strategy. ``fsdp`` is PyTorch's per-parameter one, which CPUs can do as well."""
    if config.ranks == 1:
        return "auto"
    if config.strategy != "fsdp":
        return config.strategy
    return ModelParallelStrategy(
        data_parallel_size=config.ranks, tensor_parallel_size=1, save_distributed_checkpoint=False
    )


def shard(drafter: Any, mesh: DeviceMesh) -> None:
    """Spread a drafter over the processes of ``mesh``, layer by layer, in place."""
    for layer in drafter.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(drafter, mesh=mesh)
    register_fsdp_forward_method(drafter, "embed_block")  # may use a parameter of the drafter


def is_sharded(drafter: nn.Module) -> bool:
    """Was it spread by :func:`shard`?"""
    return isinstance(drafter, FSDPModule)


def whole_state(drafter: nn.Module) -> dict[str, Tensor]:
    """All tensors of a drafter in every process; every process must call it."""
    if not is_sharded(drafter):
        return dict(drafter.state_dict())
    sharded = drafter.state_dict().items()
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu()
        for name, value in sharded
    }
