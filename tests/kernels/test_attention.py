"""Every attention path against its plain definition: tiles of any number and remainder, grouped heads, cached tokens.

Guards against a tile that is skipped or scaled twice, a causal edge that is off by one, and a head that reads the keys
of another group.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from galago.kernels import attention
from galago.kernels.attention import causal_attention, picture_attention, plain, plain_causal, tiled

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2}  # of values around 1; bfloat16 resolves 1/256
TYPES = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query after the other, straight from the paper. q: [H, D]; k, v: [H, S, D] -> [H, D]."""
    rows = []
    for query, keys, values in zip(q.double(), k.double(), v.double(), strict=True):
        chances = torch.exp(keys @ query / query.numel() ** 0.5)
        rows.append((chances / chances.sum()) @ values)
    return torch.stack(rows)


def test_the_definitions_define_attention() -> None:
    """The oracles themselves, against loops."""
    q, k, v = (noise(3, 9, 8, seed=seed) for seed in range(3))
    wanted = torch.stack([by_hand(q[:, row], k, v) for row in range(9)], 1)
    assert (plain(q, k, v) - wanted).abs().max() < 1e-5
    query, keys, values = noise(4, 6, 8), noise(2, 9, 8, seed=1), noise(2, 9, 8, seed=2)
    found = plain_causal(query, keys, values).view(4, 6, 8)
    for row in range(4):  # the last 4 of 9 tokens; heads 0-2 read group 0, heads 3-5 group 1
        seen = [part.repeat_interleave(3, 0)[:, : 6 + row] for part in (keys, values)]
        assert (found[row] - by_hand(query[row], *seen)).abs().max() < 1e-5


@TYPES
@pytest.mark.parametrize("patches", [1, 4, 63, 64, 65, 130])
def test_tiled(patches: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than a tile, exactly one, one more, two and a rest."""
    monkeypatch.setattr(attention, "TILE", 64)
    q, k, v = (noise(3, patches, 20, dtype=dtype, seed=seed) for seed in range(3))
    found = tiled(q, k, v)
    assert found.dtype == dtype
    assert (found.float() - plain(q, k, v).float()).abs().max() < BOUNDS[dtype]


@TYPES
@pytest.mark.parametrize("amx", [False, True])
def test_picture_attention(amx: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever kernel this CPU, or another, would choose; on the strided views that the tower hands over."""
    monkeypatch.setattr(attention, "has_amx", lambda: amx)
    qkv = noise(600, 3, 5, 16, dtype=dtype)  # [N, 3, H, D]
    q, k, v = (qkv[:, part].transpose(0, 1) for part in range(3))
    found = picture_attention(q, k, v)
    assert found.shape == (5, 600, 16)
    assert (found.float() - plain(q, k, v).float()).abs().max() < BOUNDS[dtype]


def test_tiled_is_stable_for_large_scores() -> None:
    q, k, v = 100 * noise(1, 10, 16), 100 * noise(1, 10, 16, seed=1), noise(1, 10, 16, seed=2)
    assert (tiled(q, k, v) - plain(q, k, v)).abs().max() < 1e-3


@TYPES
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize(("rows", "cached"), [(1, 1), (1, 37), (2, 37), (16, 37), (36, 37), (37, 37)])
def test_causal_attention(rows: int, cached: int, heads: int, groups: int, dtype: torch.dtype) -> None:
    """One row, a slice, everything but one, everything; equal and grouped heads; views into a larger cache."""
    q = noise(rows, heads, 24, dtype=dtype)
    store = noise(2, groups, 64, 24, dtype=dtype, seed=1)
    k, v = store[0, :, :cached], store[1, :, :cached]
    found = causal_attention(q, k, v)
    assert found.shape == (rows, heads * 24)
    assert found.dtype == dtype
    assert (found.float() - plain_causal(q, k, v).float()).abs().max() < BOUNDS[dtype]


def test_later_tokens_are_not_seen() -> None:
    q, k, v = noise(5, 4, 8), noise(2, 9, 8, seed=1), noise(2, 9, 8, seed=2)
    before = causal_attention(q, k, v)
    k[:, 7:], v[:, 7:] = 1e3, -1e3  # tokens 7 and 8 of 9; the rows stand for tokens 4 to 8
    after = causal_attention(q, k, v)
    assert torch.equal(before[:3], after[:3])
    assert not torch.isclose(before[3:], after[3:]).all(-1).any()
