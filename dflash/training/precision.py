"""The arithmetic of training."""

from __future__ import annotations

import torch


def precision_of(name: str, device: torch.device) -> str:
    """Lightning's precision. ``auto`` is bf16 autocast only where the device has fast bf16."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true"
    return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"
