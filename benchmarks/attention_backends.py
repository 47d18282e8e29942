"""Time a training step of attention in each implementation, on this machine.

    python benchmarks/attention_backends.py [--threads 1] [--repeats 5] [--device cpu]

One draft layer's attention, forward and backward, fp32, with the default target's heads: 9 query
heads share 3 key/value heads of 64. Rows have unequal lengths and random anchors, as in training.
On a CPU the process's own time counts, so that other jobs do not disturb the ratio; on a GPU wall
time after synchronisation. Prints milliseconds and the ratio sdpa : blocks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig

from dflash.model import (
    DrafterSwitches,
    Qwen3DFlashAttention,
    TrainingLayout,
    drafter_config,
)

IMPLEMENTATIONS = ("sdpa", "eager", "blocks")
# rows, context, blocks, slots
SHAPES = [(8, 300, 32, 4), (8, 300, 32, 8), (8, 300, 64, 8), (8, 300, 64, 16)]


def random_layout(
    rows: int, context: int, blocks: int, slots: int, device: torch.device
) -> TrainingLayout:
    """Rows of half to full length; anchors in the last four fifths of each."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(context // 2, context + 1, (rows,), generator=generator)
    start = lengths[:, None] // 5
    share = torch.rand(rows, blocks, generator=generator)
    anchors = (start + share * (lengths[:, None] - start)).long()
    valid = torch.ones(rows, blocks, dtype=torch.bool)
    return TrainingLayout(context, anchors.to(device), valid.to(device), lengths.to(device), slots)


def training_step(
    implementation: str, shape: tuple[int, int, int, int], device: torch.device
) -> Callable[[], None]:
    """A forward and backward of one attention."""
    rows, context, blocks, slots = shape
    target = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        num_hidden_layers=30,
    )
    switches = DrafterSwitches(num_layers=1, block_size=slots)
    config = drafter_config(target, switches, None)
    config._attn_implementation = implementation
    attention = Qwen3DFlashAttention(config, 0).to(device)
    mask = random_layout(*shape, device).mask(switches, implementation)
    queries = blocks * slots
    hidden = torch.randn(rows, queries, 576, device=device, requires_grad=True)
    features = torch.randn(rows, context, 576, device=device, requires_grad=True)
    rotary = (
        torch.ones(1, context + queries, 64, device=device),
        torch.zeros(1, context + queries, 64, device=device),
    )

    def step() -> None:
        out, _ = attention(hidden, features, rotary, mask)
        out.sum().backward()

    return step


def milliseconds(step: Callable[[], None], repeats: int, device: torch.device) -> float:
    """The fastest of ``repeats`` after one warm-up."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            return time.perf_counter()
        return time.process_time()

    step()
    times = []
    for _ in range(repeats):
        start = clock()
        step()
        times.append(clock() - start)
    return 1000 * min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    header = "".join(f"{name:>9}" for name in IMPLEMENTATIONS)
    print(f"{'rows x context, blocks x slots':<32}{header}{'sdpa:blocks':>14}")
    for shape in SHAPES:
        rows, context, blocks, slots = shape
        cells = {
            name: milliseconds(training_step(name, shape, device), args.repeats, device)
            for name in IMPLEMENTATIONS
        }
        label = f"{rows} x {context}, {blocks} x {slots}"
        times = "".join(f"{cells[name]:9.0f}" for name in IMPLEMENTATIONS)
        print(f"{label:<32}{times}{cells['sdpa'] / cells['blocks']:14.2f}")


if __name__ == "__main__":
    main()
