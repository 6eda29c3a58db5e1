"""The few operations that every block shares. Shapes: T tokens, H heads, D head width.

Norms and rotary angles are computed in float32 whatever the number format: a bfloat16 inverse frequency is wrong by
whole positions far into a prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis, in float32, returned in x's type (Zhang & Sennrich 2019)."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).mul_(weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, H, D] by float32 cos, sin [T, 1, D]: pairs are (i, i + D/2) (RoFormer, "half" layout).

    sin carries the minus sign of the first half, see `rotary_tables`.
    """
    wide = x.float()
    turned = wide.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(wide * cos, turned, sin).to(x.dtype)


def rotary_tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin [T, 1, D] of angles [T, D/2], both halves alike, laid out for `rotate`."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]


def inverse_frequencies(width: int, theta: float) -> Tensor:
    """theta^(-2i/width) for i < width/2, float32. [width/2]"""
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
