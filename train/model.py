"""Qwen3-VL written for training speed on a CPU: the parameter names are those of transformers, the shapes are batched.

Pictures of one grid are stacked, so vision attention is dense and no loop runs per picture. Matrix products run in
bfloat16 (AMX makes them several times faster than float32), everything between them and the attention itself in
float32.
`python -m train.model` checks the logits against transformers in float32.

Legend: K pictures of one grid, N patches of one picture, P patches of all, V merged tokens of all (P / 4), B sequences,
L tokens, C channels, H heads, D channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH, MERGE = 16, 2


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model; the defaults are those of `tiny`."""

    vocab: int = 768
    hidden: int = 192
    mlp: int = 512
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    sections: tuple[int, int, int] = (6, 5, 5)
    theta: float = 10000.0
    vision_hidden: int = 160
    vision_mlp: int = 480
    vision_depth: int = 4
    vision_heads: int = 5
    side: int = 16
    deepstack: tuple[int, ...] = (0, 1, 2)


class Linear(nn.Linear):
    """A matrix product in the number format `compute` (set for the whole process by `compute_in`)."""

    compute: torch.dtype = torch.bfloat16

    def forward(self, x: Tensor) -> Tensor:
        d = Linear.compute
        return F.linear(x.to(d), self.weight.to(d), None if self.bias is None else self.bias.to(d))


def compute_in(dtype: torch.dtype) -> None:
    """Choose the number format of all matrix products."""
    Linear.compute = dtype


class _RootMeanSquare(torch.autograd.Function):
    """y = w x / rms(x), with a backward of a few passes instead of one per elementary operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        to_weight = (grad * unit).flatten(0, -2).sum(0)
        g = grad * weight
        return torch.addcmul(g, unit, (g * unit).mean(-1, keepdim=True), value=-1) * scale, to_weight


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return _RootMeanSquare.apply(x.float(), self.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: x [..., D] in two halves, cos and sin [..., D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)), dim=-1)


@dataclass(frozen=True, slots=True)
class Grid:
    """What depends on the patch grid only: bilinear taps into the position table and rotary angles, in merged order."""

    rows: int
    columns: int
    taps: Tensor  # [N, 4] indices
    weights: Tensor  # [N, 4]
    cos: Tensor  # [N, 1, 1, D / 2]
    sin: Tensor  # [N, 1, 1, D / 2]


def make_grid(rows: int, columns: int, shape: Shape) -> Grid:
    """rows, columns: patches (even numbers)."""
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    order = torch.arange(rows * columns).view(rows // 2, 2, columns // 2, 2).permute(0, 2, 1, 3).reshape(-1)
    r, c = r.reshape(-1)[order], c.reshape(-1)[order]  # [N], 2x2 blocks after one another
    y, x = (v * ((shape.side - 1) / max(1, n - 1)) if n > 1 else v * 0.0 for v, n in ((r, rows), (c, columns)))
    y0, x0 = y.floor().long(), x.floor().long()
    y1, x1 = (y0 + 1).clamp(max=shape.side - 1), (x0 + 1).clamp(max=shape.side - 1)
    fy, fx = y - y0, x - x0
    taps = torch.stack([y0 * shape.side + x0, y0 * shape.side + x1, y1 * shape.side + x0, y1 * shape.side + x1], 1)
    weights = torch.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx], 1)
    half = shape.vision_hidden // shape.vision_heads // 2
    inverse = 1.0 / (10000.0 ** (torch.arange(0, half, 2).float() / half))
    angle = torch.cat([r[:, None] * inverse, c[:, None] * inverse], 1)[:, None, None]  # [N, 1, 1, D / 2]
    return Grid(rows, columns, taps, weights, angle.cos(), angle.sin())


def patchify(pictures: Tensor) -> Tensor:
    """uint8 [K, rows * 16, columns * 16, 3] -> float [K, N, 3 * 16 * 16] in -1..1, 2x2 blocks after one another."""
    k, h, w, _ = pictures.shape
    x = pictures.view(k, h // 32, 2, 16, w // 32, 2, 16, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return x.reshape(k, (h // 16) * (w // 16), 768).float() / 127.5 - 1


class PatchEmbed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, dim, (2, PATCH, PATCH), (2, PATCH, PATCH))

    def forward(self, x: Tensor) -> Tensor:
        """[P, 768] -> [P, C]. A still picture is two equal frames: the two halves of the kernel are added instead."""
        d = Linear.compute
        return F.linear(x.to(d), self.proj.weight.sum(2).flatten(1).to(d), self.proj.bias.to(d)).float()


class VisionAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor, grids: list[tuple[int, Grid]], angles: tuple[Tensor, Tensor]) -> Tensor:
        """[P, C] -> [P, C]; grids: (K, grid) of each stack of pictures in x; angles: their cos and sin [P, 1, 1, D /
        2]."""
        qk, value = self.qkv(x).float().view(x.shape[0], 3, self.heads, -1).split((2, 1), dim=1)  # [P, 2 and 1, H, D]
        qk = rotate(qk, *angles)
        out = []
        sizes = [k * g.rows * g.columns for k, g in grids]
        for (k, g), part, v in zip(grids, qk.split(sizes), value.split(sizes), strict=True):
            q, key = part.view(k, g.rows * g.columns, 2, self.heads, -1).permute(2, 0, 3, 1, 4)  # [K, H, N, D]
            y = F.scaled_dot_product_attention(q, key, v.view(k, g.rows * g.columns, self.heads, -1).transpose(1, 2))
            out.append(y.transpose(1, 2).reshape(v.shape[0], -1).to(Linear.compute))
        return self.proj(torch.cat(out))


class VisionMLP(nn.Module):
    def __init__(self, dim: int, mlp: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(dim, mlp)
        self.linear_fc2 = Linear(mlp, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.vision_hidden, eps=1e-6)
        self.norm2 = nn.LayerNorm(shape.vision_hidden, eps=1e-6)
        self.attn = VisionAttention(shape.vision_hidden, shape.vision_heads)
        self.mlp = VisionMLP(shape.vision_hidden, shape.vision_mlp)

    def forward(self, x: Tensor, grids: list[tuple[int, Grid]], angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attn(self.norm1(x), grids, angles)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Four patches -> one token of the text model."""

    def __init__(self, shape: Shape, after: bool) -> None:
        super().__init__()
        wide = shape.vision_hidden * MERGE * MERGE
        self.norm = nn.LayerNorm(wide if after else shape.vision_hidden, eps=1e-6)
        self.linear_fc1 = Linear(wide, wide)
        self.linear_fc2 = Linear(wide, shape.hidden)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        """[P, C] -> [V, C of the text model]"""
        v = x.shape[0] // (MERGE * MERGE)
        x = self.norm(x.view(v, -1)) if self.after else self.norm(x).view(v, -1)
        return self.linear_fc2(F.gelu(self.linear_fc1(x))).float()


class Visual(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(shape.vision_hidden)
        self.pos_embed = nn.Embedding(shape.side * shape.side, shape.vision_hidden)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.vision_depth))
        self.merger = Merger(shape, after=False)
        self.deepstack_merger_list = nn.ModuleList(Merger(shape, after=True) for _ in shape.deepstack)
        self._grids: dict[tuple[int, int], Grid] = {}

    def grid(self, rows: int, columns: int) -> Grid:
        if (rows, columns) not in self._grids:
            self._grids[rows, columns] = make_grid(rows, columns, self.shape)
        return self._grids[rows, columns]

    def forward(self, stacks: list[Tensor], deep: bool = True) -> tuple[Tensor, list[Tensor]]:
        """stacks: uint8 [K, height, width, 3] per grid. Returns the merged tokens [V, C] and those of the DeepStack
        taps."""
        grids = [(s.shape[0], self.grid(s.shape[1] // PATCH, s.shape[2] // PATCH)) for s in stacks]
        x = self.patch_embed(torch.cat([patchify(s).flatten(0, 1) for s in stacks]))
        places = [(self.pos_embed(g.taps) * g.weights[..., None]).sum(1).repeat(k, 1) for k, g in grids]
        x = x + torch.cat(places)
        angles = (
            torch.cat([g.cos.repeat(k, 1, 1, 1) for k, g in grids]),
            torch.cat([g.sin.repeat(k, 1, 1, 1) for k, g in grids]),
        )
        taps = []
        for n, block in enumerate(self.blocks):
            x = block(x, grids, angles)
            if deep and n in self.shape.deepstack:
                taps.append(self.deepstack_merger_list[self.shape.deepstack.index(n)](x))
        return self.merger(x), taps


class TextAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim)
        self.k_norm = RMSNorm(shape.head_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, C] -> [B, L, C], causal."""
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, self.shape.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)  # [B, L, H, D]
        group = self.shape.heads // self.shape.kv_heads
        k, v = (t.float().repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class TextMLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = TextAttention(shape)
        self.mlp = TextMLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden)
        self.post_attention_layernorm = RMSNorm(shape.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Language(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(TextLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Interleaved M-RoPE. positions [3, B, L] (time, row, column) -> cos, sin [B, L, 1, D / 2]"""
        half = self.shape.head_dim // 2
        inverse = 1.0 / (self.shape.theta ** (torch.arange(half).float() / half))
        each = positions[..., None].float() * inverse  # [3, B, L, D / 2]
        angle = each[0].clone()
        for axis in (1, 2):
            picked = slice(axis, self.shape.sections[axis] * 3, 3)
            angle[..., picked] = each[axis][..., picked]
        return angle.cos()[:, :, None], angle.sin()[:, :, None]

    def forward(self, ids: Tensor, positions: Tensor, visual: Tensor, taps: list[Tensor], where: Tensor) -> Tensor:
        """ids [B, L]; visual and each of taps [V, C] belong at the flat places where [V] of [B * L]. -> [B, L, C]"""
        x = self.embed_tokens(ids)
        b, n, c = x.shape
        x = x.view(b * n, c).index_copy(0, where, visual).view(b, n, c)
        cos, sin = self.angles(positions)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin)
            if i < len(taps):
                x = x.view(b * n, c).index_add(0, where, taps[i]).view(b, n, c)
        return self.norm(x)


class Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.visual = Visual(shape)
        self.language_model = Language(shape)


class TinyVL(nn.Module):
    """The whole model; `lm_head` is the embedding (tied)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.model = Body(self.shape)
        self.apply(_initialise)

    def hidden(self, ids: Tensor, positions: Tensor, visual: Tensor, taps: list[Tensor], where: Tensor) -> Tensor:
        return self.model.language_model(ids, positions, visual, taps, where)

    def logits(self, hidden: Tensor) -> Tensor:
        d = Linear.compute
        return F.linear(hidden.to(d), self.model.language_model.embed_tokens.weight.to(d)).float()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding | nn.Conv3d):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear | nn.Conv3d) and module.bias is not None:
        nn.init.zeros_(module.bias)
