"""Keys and values of running sequences.

A store belongs to one sequence, is allocated for its whole length at once (pages that are never written take no
memory) and attends over what it holds. A step writes its rows layer by layer at the same place and then `commit`s
them, so that a step that was stopped halfway leaves the store as it was.

Shapes: L layers, G key/value heads, S capacity, D head width, T rows of a step, H query heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from galago.kernels.attention import causal_attention
from galago.models.base import ModelShape


class SequenceKV:
    """The cache of one sequence; calling it is the `Attention` of a step that holds only this sequence's rows."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, capacity: int) -> None:
        """capacity: tokens, prompt and answer together."""
        size = (shape.layers, shape.kv_heads, capacity, shape.head_dim)  # [L, G, S, D]
        self.keys = torch.empty(size, dtype=dtype)
        self.values = torch.empty(size, dtype=dtype)
        self.length = 0

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, H, D], k and v: [T, G, D] -> [T, H * D]."""
        stop = self.length + q.shape[0]
        self.keys[layer, :, self.length : stop] = k.transpose(0, 1)
        self.values[layer, :, self.length : stop] = v.transpose(0, 1)
        return causal_attention(q, self.keys[layer, :, :stop], self.values[layer, :, :stop])

    def commit(self, rows: int) -> None:
        """The last step's rows now belong to the sequence."""
        self.length += rows
