"""Positions against transformers: 3-D positions of prompts, order of patches, stretched position grid.

Guards against pictures that are seen at the wrong place or in the wrong order, which no exception would tell: the model
still answers, only worse, and worst for the shapes that nobody tried.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import AutoConfig, Qwen3VLModel
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from galago.models.qwen3_vl.positions import interpolate_grid, merge_order, patch_coordinates, prompt_positions
from galago.types import Grid, ImageSpan

from ..conftest import RandomCheckpoint

GRIDS = [
    *(Grid(2 * rows, 2 * columns) for rows in (1, 2, 3, 7) for columns in (1, 2, 3, 5, 8)),
    Grid(2, 400),
    Grid(400, 2),
    Grid(44, 80),
    Grid(96, 96),
    Grid(50, 48),
]


@pytest.fixture(scope="module")
def reference(random_checkpoint: RandomCheckpoint) -> Qwen3VLModel:
    """The reference model without memory behind it: only its position arithmetic is used."""
    config = AutoConfig.from_pretrained(random_checkpoint())
    with torch.device("meta"):
        return Qwen3VLModel(config)


def prompt(seed: int) -> tuple[int, list[ImageSpan]]:
    """A length and pictures at random places, at least one token of text between two of them."""
    draw = random.Random(seed)
    spans: list[ImageSpan] = []
    at = draw.choice([0, 1, 17])  # a prompt may begin with a picture
    for _ in range(draw.randrange(5)):
        grid = Grid(2 * draw.randint(1, 12), 2 * draw.randint(1, 12))
        spans.append(ImageSpan(at, grid.patches // 4, grid, b""))
        at += grid.patches // 4 + draw.choice([1, 2, 30])
    if spans and draw.random() < 0.3:  # and end with one
        at = spans[-1].start + spans[-1].tokens
    return max(at, 1), spans


@pytest.mark.parametrize("seed", range(60))
def test_prompt_positions(seed: int, reference: Qwen3VLModel) -> None:
    length, spans = prompt(seed)
    kinds = torch.zeros(1, length, dtype=torch.int32)
    for span in spans:
        kinds[0, span.start : span.start + span.tokens] = 1
    grids = torch.tensor([[1, span.grid.rows, span.grid.columns] for span in spans]) if spans else None
    wanted, delta = reference.get_rope_index(torch.zeros(1, length, dtype=torch.long), kinds, grids)
    found = prompt_positions(length, spans, 2)
    assert np.array_equal(found.ids, wanted[:, 0].numpy())
    assert found.delta == int(delta)


def test_generated_prompts_are_of_every_kind() -> None:
    """Or the test above would prove less than it says."""
    prompts = [prompt(seed) for seed in range(60)]
    assert {len(spans) for _, spans in prompts} == {0, 1, 2, 3, 4}
    ends = [spans[-1].start + spans[-1].tokens == length for length, spans in prompts if spans]
    assert any(ends)
    assert not all(ends)
    assert {spans[0].start == 0 for _, spans in prompts if spans} == {True, False}


@pytest.mark.parametrize("seed", range(10))
def test_slices_run_on_beyond_the_prompt(seed: int) -> None:
    length, spans = prompt(seed)
    positions = prompt_positions(length, spans, 2)
    generated = np.arange(length, length + 40) + positions.delta
    whole = np.concatenate([positions.ids, np.broadcast_to(generated, (3, 40))], axis=1)
    assert generated[0] == positions.ids.max() + 1  # the answer goes on where the prompt ends
    for start in (0, 1, length // 2, length - 1, length, length + 1, length + 7):
        for count in (0, 1, 2, 9, length, length + 5):
            if start + count <= length + 40:
                assert np.array_equal(positions.slice(start, count), whole[:, start : start + count])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_patch_coordinates(grid: Grid) -> None:
    wanted = get_vision_position_ids(torch.tensor([[1, grid.rows, grid.columns]]), 2)
    assert np.array_equal(patch_coordinates(grid, 2), wanted.numpy())


@pytest.mark.parametrize("merge", [1, 2, 3])
def test_merge_order(merge: int) -> None:
    """Every block of merge x merge neighbours is contiguous; blocks, and patches in them, are in reading order."""
    rows, columns = 2 * merge, 3 * merge
    raster = np.arange(rows * columns).reshape(rows, columns)
    blocks = [
        raster[top : top + merge, left : left + merge].ravel()
        for top in range(0, rows, merge)
        for left in range(0, columns, merge)
    ]
    assert np.array_equal(merge_order(raster, merge), np.concatenate(blocks))
    assert merge_order(np.zeros((rows, columns, 5)), merge).shape == (rows * columns, 5)


@pytest.mark.parametrize("side", [8, 48])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_stretched_position_grid(grid: Grid, side: int, reference: Qwen3VLModel) -> None:
    table = torch.randn(side**2, 6, generator=torch.Generator().manual_seed(side))
    indices, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, grid.rows, grid.columns]]),
        num_grid_per_side=side,
        mode=reference.visual.interpolation_mode,
        align_corners=reference.visual.interpolation_align_corners,
        spatial_merge_size=2,
    )
    wanted = (table[indices] * weights[:, :, None]).sum(1)
    spread = interpolate_grid(grid, side, 2)
    found = (table.numpy()[spread.indices] * spread.weights[:, :, None]).sum(0)
    assert np.abs(found - wanted.numpy()).max() < 2e-5
    assert np.allclose(spread.weights.sum(0), 1, atol=1e-6)
