"""The vision tower of Qwen3-VL: patches of one picture -> features for the text model.

A plain pre-norm transformer over all patches with full attention, a learned position grid stretched over the picture,
2-D rotary positions, and mergers that turn 2x2 patches into one token: one at the end, and one after each tapped block
(DeepStack, arXiv 2406.04334), whose output is added to the first text layers. Patches come in merge-block order.

Shapes: N patches, P patch values, C width, H heads, D head width, K tokens = N / merge^2, O text width.
"""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor
from torch.nn import functional as F

from galago.kernels.attention import picture_attention
from galago.models.base import VisionFeatures
from galago.models.formats import Format, Linear
from galago.models.layers import inverse_frequencies, rotary_tables, rotate
from galago.models.loader import Weights
from galago.models.qwen3_vl.config import VisionConfig
from galago.models.qwen3_vl.positions import interpolate_grid, patch_coordinates
from galago.types import Grid

PREFIX = "model.visual."
EPS = 1e-6  # of every layer norm; fixed in the reference
THETA = 10_000.0  # rotary base; fixed in the reference


def shapes(config: VisionConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tower's tensors in a checkpoint."""
    c, mlp, merged = config.hidden, config.mlp, config.hidden * config.merge**2
    kernel = (config.channels, config.temporal_patch_size, config.patch_size, config.patch_size)
    found = _linear("patch_embed.proj", c, kernel) | {"pos_embed.weight": (config.position_side**2, c)}
    for i in range(config.depth):
        block = f"blocks.{i}."
        found |= _norm(block + "norm1", c) | _norm(block + "norm2", c)
        found |= _linear(block + "attn.qkv", 3 * c, (c,)) | _linear(block + "attn.proj", c, (c,))
        found |= _linear(block + "mlp.linear_fc1", mlp, (c,)) | _linear(block + "mlp.linear_fc2", c, (mlp,))
    mergers = {"merger.": c} | {f"deepstack_merger_list.{i}.": merged for i in range(len(config.deepstack))}
    for name, normed in mergers.items():
        found |= _norm(name + "norm", normed) | _linear(name + "linear_fc1", merged, (merged,))
        found |= _linear(name + "linear_fc2", config.out_hidden, (merged,))
    return {PREFIX + name: shape for name, shape in found.items()}


def _linear(name: str, out: int, inputs: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {name + ".weight": (out, *inputs), name + ".bias": (out,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {name + ".weight": (width,), name + ".bias": (width,)}


class _Parts:
    """Takes a block's tensors by local name and puts them into a number format."""

    def __init__(self, weights: Weights, fmt: Format, prefix: str = PREFIX) -> None:
        self.weights, self.format, self.prefix = weights, fmt, prefix

    def under(self, prefix: str) -> _Parts:
        return _Parts(self.weights, self.format, self.prefix + prefix)

    def linear(self, name: str) -> Linear:
        weight = self.weights[f"{self.prefix}{name}.weight"].flatten(1)
        return self.format.linear(weight, self.weights[f"{self.prefix}{name}.bias"])

    def norm(self, name: str) -> LayerNorm:
        weight, bias = (self.weights[f"{self.prefix}{name}.{part}"] for part in ("weight", "bias"))
        return LayerNorm(weight.to(self.format.dtype), bias.to(self.format.dtype))


class LayerNorm:
    """(x - mean) / std * weight + bias over the last axis; torch computes it in float32 whatever x's type."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPS)


class Block:
    """norm, attention, norm, MLP, each added to the stream."""

    def __init__(self, parts: _Parts, config: VisionConfig) -> None:
        self.heads = config.heads
        self.norm1, self.norm2 = parts.norm("norm1"), parts.norm("norm2")
        self.qkv, self.proj = parts.linear("attn.qkv"), parts.linear("attn.proj")
        self.fc1, self.fc2 = parts.linear("mlp.linear_fc1"), parts.linear("mlp.linear_fc2")

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [N, C]; cos, sin: [N, 1, D] -> [N, C]."""
        x = x + self._attend(self.norm1(x), cos, sin)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.qkv(x).view(x.shape[0], 3, self.heads, -1)  # [N, 3, H, D]
        q, k = rotate(qkv[:, 0], cos, sin), rotate(qkv[:, 1], cos, sin)
        heads_first = [part.transpose(0, 1) for part in (q, k, qkv[:, 2])]  # [H, N, D]
        return self.proj(picture_attention(*heads_first).transpose(0, 1).flatten(1))


class Merger:
    """merge x merge neighbouring patches -> one token. The final one norms patches, the tapped ones norm tokens."""

    def __init__(self, parts: _Parts, merged: int, *, norm_tokens: bool) -> None:
        self.merged, self.norm_tokens = merged, norm_tokens
        self.norm = parts.norm("norm")
        self.fc1, self.fc2 = parts.linear("linear_fc1"), parts.linear("linear_fc2")

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [K, O]."""
        x = self.norm(x.reshape(-1, self.merged)) if self.norm_tokens else self.norm(x).reshape(-1, self.merged)
        return self.fc2(F.gelu(self.fc1(x)))


class VisionTower:
    """The tower in one number format."""

    def __init__(self, config: VisionConfig, weights: Weights, fmt: Format) -> None:
        parts = _Parts(weights, fmt)
        merged = config.hidden * config.merge**2
        self.config = config
        self.dtype = fmt.dtype
        self.patch_embed = parts.linear("patch_embed.proj")
        self.position_grid = weights[PREFIX + "pos_embed.weight"]  # [side^2, C]
        self.blocks = [Block(parts.under(f"blocks.{i}."), config) for i in range(config.depth)]
        self.merger = Merger(parts.under("merger."), merged, norm_tokens=False)
        self.taps = {
            block: Merger(parts.under(f"deepstack_merger_list.{i}."), merged, norm_tokens=True)
            for i, block in enumerate(config.deepstack)
        }

    def encode(self, patches: Tensor, grid: Grid) -> Generator[None, None, VisionFeatures]:
        """patches: [N, P] float32 of one picture -> features; yields after every block."""
        x = self.patch_embed(patches.to(self.dtype)) + self._positions(grid)
        cos, sin = self._rotary(grid)
        levels = []
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin)
            if i in self.taps:
                levels.append(self.taps[i](x))
            yield
        return VisionFeatures(self.merger(x), tuple(levels))

    def _positions(self, grid: Grid) -> Tensor:
        """[N, C] learned positions, bilinear between the four nearest entries of the grid."""
        spread = interpolate_grid(grid, self.config.position_side, self.config.merge)
        corners = self.position_grid[torch.from_numpy(spread.indices)]  # [4, N, C]
        return (corners * torch.from_numpy(spread.weights)[:, :, None]).sum(0).to(self.dtype)

    def _rotary(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """cos, sin [N, 1, D]: the first half of the angles follows the row, the second the column."""
        frequencies = inverse_frequencies(self.config.head_dim // 2, THETA)  # [D/4]
        at = torch.from_numpy(patch_coordinates(grid, self.config.merge)).float()  # [N, 2]
        return rotary_tables((at[:, :, None] * frequencies).flatten(1))
