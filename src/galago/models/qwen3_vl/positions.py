"""Where a token stands: 3-D positions of the text model, grid positions of the vision tower. Plain NumPy.

Text model (M-RoPE, Qwen2-VL paper section 2.1, as Qwen3-VL applies it): a text token at position p has (p, p, p); the
tokens of a picture that starts at p have (p, p + row, p + column); the token after the picture goes on at
p + max(rows, columns). Vision tower: patches come in merge-block order, so that merge x merge neighbours are adjacent.

Shapes: T prompt tokens, N patches, M merge size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from galago.types import Grid, ImageSpan

Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Positions:
    """3-D positions of a prompt. ids: [3, T] int64 (time, height, width); delta: position minus index after its end."""

    ids: NDArray[np.int64]
    delta: int

    def slice(self, start: int, count: int) -> NDArray[np.int64]:
        """[3, count] positions of tokens start..start+count, of the prompt or generated after it."""
        known = self.ids[:, start : start + count]
        after = np.arange(max(start, self.ids.shape[1]), start + count, dtype=np.int64) + self.delta
        return np.concatenate([known, np.broadcast_to(after, (3, after.size))], axis=1)


def prompt_positions(length: int, spans: Sequence[ImageSpan], merge: int) -> Positions:
    """Positions of a prompt of `length` tokens with pictures at `spans` (in order, not overlapping)."""
    pieces: list[NDArray[np.int64]] = []
    index = position = 0
    for span in spans:
        pieces.append(_text(position, span.start - index))
        position += span.start - index
        pieces.append(_picture(position, span.grid, merge))
        position += max(span.grid.rows, span.grid.columns) // merge
        index = span.start + span.tokens
    pieces.append(_text(position, length - index))
    ids = np.concatenate(pieces, axis=1)
    return Positions(ids, position - index)


def _text(start: int, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(start, start + count, dtype=np.int64), (3, count))


def _picture(start: int, grid: Grid, merge: int) -> NDArray[np.int64]:
    rows, columns = grid.rows // merge, grid.columns // merge
    time = np.zeros((rows, columns), dtype=np.int64)
    row, column = np.indices((rows, columns), dtype=np.int64)
    return np.stack([time, row, column]).reshape(3, -1) + start


def merge_order(values: NDArray[Element], merge: int) -> NDArray[Element]:
    """[rows, columns, ...] in raster order -> [N, ...] with each merge x merge block contiguous."""
    rows, columns, *rest = values.shape
    blocks = values.reshape(rows // merge, merge, columns // merge, merge, *rest)
    return blocks.swapaxes(1, 2).reshape(rows * columns, *rest)


def patch_coordinates(grid: Grid, merge: int) -> NDArray[np.int64]:
    """[N, 2] row and column of every patch, in merge-block order."""
    row, column = np.indices((grid.rows, grid.columns), dtype=np.int64)
    return merge_order(np.stack([row, column], axis=-1), merge)


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Bilinear resampling of the learned position grid: value = sum over 4 corners of weight * table[index].

    indices: [4, N] rows of the table; weights: [4, N] float32; both in merge-block order.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]


def interpolate_grid(grid: Grid, side: int, merge: int) -> Interpolation:
    """How the side x side learned grid is stretched over `grid`, corners aligned (reference: transformers Qwen3-VL)."""
    row, row_weight = _axis(grid.rows, side)  # [2, rows]
    column, column_weight = _axis(grid.columns, side)  # [2, columns]
    indices = row[:, None, :, None] * side + column[None, :, None, :]  # [2, 2, rows, columns]
    weights = row_weight[:, None, :, None] * column_weight[None, :, None, :]
    flat = (4, grid.rows, grid.columns)
    return Interpolation(
        np.stack([merge_order(corner, merge) for corner in indices.reshape(flat)]),
        np.stack([merge_order(corner, merge) for corner in weights.reshape(flat)]),
    )


def _axis(count: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Lower and upper table index and their weights for `count` evenly spaced points over 0..side-1."""
    points = np.linspace(0, side - 1, count, dtype=np.float32)
    low = points.astype(np.int64)
    high = np.minimum(low + 1, side - 1)
    fraction = points - low.astype(np.float32)
    return np.stack([low, high]), np.stack([1 - fraction, fraction])
