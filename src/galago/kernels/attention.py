"""Attention: over the patches of a picture, and causal over the cached tokens of a sequence.

`plain` and `plain_causal` are the definitions and the test oracles. For pictures torch's fused kernel wins in float32
and where bfloat16 runs on AMX tiles; on other CPUs its bfloat16 path is slow, and tiling over queries, so that a tile's
scores stay in the L2 cache, is faster (docs/performance.md).

Shapes: N patches, T new rows, S cached tokens, H query heads, G key/value heads, D head width.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 512  # queries per tile: 512 x 3,520 bfloat16 scores are 3.6 MB


def picture_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over all patches of one picture. q, k, v: [H, N, D] -> [H, N, D]."""
    if q.dtype == torch.bfloat16 and not has_amx():
        return tiled(q, k, v)
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, in float32. [H, N, D] -> [H, N, D]."""
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])  # [H, N, N]
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Per head and tile of queries, keys transposed once per head. [H, N, D] -> [H, N, D]."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    scale = q.shape[-1] ** -0.5
    for head in range(q.shape[0]):
        keys = (k[head] * scale).mT.contiguous()  # [D, N]
        values = v[head].contiguous()
        queries = q[head].contiguous()
        for at in range(0, queries.shape[0], TILE):
            weights = torch.softmax(queries[at : at + TILE] @ keys, -1)  # [TILE, N]
            torch.mm(weights, values, out=out[head, at : at + TILE])
    return out


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last T of S tokens attend over all that precede them, themselves included.

    q: [T, H, D]; k, v: [G, S, D], each shared by H / G query heads -> [T, H * D].
    """
    rows, cached = q.shape[0], k.shape[1]
    whole = rows == cached
    mask = None if whole or rows == 1 else _reach(rows, cached)  # one row sees everything
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, is_causal=whole and rows > 1, enable_gqa=True
    )  # [1, H, T, D]
    return out[0].transpose(0, 1).flatten(1)


def plain_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition of `causal_attention`, in float32."""
    shared = q.shape[1] // k.shape[0]
    keys, values = (part.float().repeat_interleave(shared, 0) for part in (k, v))  # [H, S, D]
    scores = q.float().transpose(0, 1) @ keys.mT / math.sqrt(q.shape[-1])  # [H, T, S]
    scores = scores.masked_fill(~_reach(q.shape[0], k.shape[1]), -torch.inf)
    return (scores.softmax(-1) @ values).transpose(0, 1).flatten(1).to(q.dtype)


def _reach(rows: int, cached: int) -> Tensor:
    """[T, S] True where a row may look: all tokens up to its own place, cached - rows + its number."""
    return torch.ones(rows, cached, dtype=torch.bool).tril(cached - rows)


@cache
def has_amx() -> bool:
    """Whether this CPU multiplies bfloat16 in AMX tiles."""
    return bool(torch.cpu._is_amx_tile_supported())
