"""The norm and the rotary embedding against transformers' functions, in float32 and bfloat16.

Guards the two places where a type or a layout goes wrong silently: norms and angles must be computed in float32, and
rotary pairs are (i, i + D/2), not neighbours.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextRMSNorm,
    apply_rotary_pos_emb,
    apply_rotary_pos_emb_vision,
)

from galago.models.layers import inverse_frequencies, rms_norm, rotary_tables, rotate

TYPES = pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=str)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@TYPES
def test_rms_norm(dtype: torch.dtype, bound: float) -> None:
    x, weight = (3 * noise(7, 5, 24)).to(dtype), 1 + 0.2 * noise(24, seed=1)
    reference = Qwen3VLTextRMSNorm(24, eps=1e-3)
    reference.weight.data.copy_(weight)
    found = rms_norm(x, weight, 1e-3)
    assert found.dtype == dtype
    assert (found.float() - reference(x).float()).abs().max() <= bound * found.float().abs().max()


def test_rms_norm_leaves_its_input_alone() -> None:
    x = noise(3, 8)
    kept = x.clone()
    rms_norm(x, torch.full((8,), 2.0), 1e-6)
    assert torch.equal(x, kept)


def test_rms_norm_does_not_overflow_in_half_precision() -> None:
    x = torch.full((1, 8), 60_000.0, dtype=torch.float16)
    assert torch.equal(rms_norm(x, torch.ones(8), 1e-6), torch.ones(1, 8, dtype=torch.float16))


@TYPES
def test_rotate(dtype: torch.dtype, bound: float) -> None:
    """q and k at once in the reference; positions as far apart as a long prompt has them."""
    q, k = noise(11, 4, 24).to(dtype), noise(11, 2, 24, seed=1).to(dtype)
    places = torch.tensor([0, 1, 2, 3, 10, 100, 1000, 5000, 20_000, 100_000, 262_143]).float()
    angles = places[:, None] * inverse_frequencies(24, 5e6)
    cos, sin = rotary_tables(angles)
    whole = torch.cat([angles, angles], -1)
    for theirs in (apply_rotary_pos_emb_vision(q, k, whole.cos(), whole.sin()), text_rotary(q, k, whole)):
        for part, wanted in zip((q, k), theirs, strict=True):
            found = rotate(part, cos, sin)
            assert found.dtype == dtype
            assert (found.float() - wanted.float()).abs().max() < bound * 4


def text_rotary(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """The language model's variant: heads before tokens, tables in the type of the states."""
    turned = apply_rotary_pos_emb(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], angles.cos()[None].to(q.dtype), angles.sin()[None].to(q.dtype)
    )
    return turned[0][0].transpose(0, 1), turned[1][0].transpose(0, 1)


def test_inverse_frequencies() -> None:
    wanted = torch.tensor([5e6 ** (-2 * i / 128) for i in range(64)], dtype=torch.float64)
    found = inverse_frequencies(128, 5e6)
    assert found.dtype == torch.float32
    assert ((found.double() - wanted) / wanted).abs().max() < 1e-6
