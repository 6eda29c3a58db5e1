"""The language model of Qwen3-VL: Qwen3 with interleaved 3-D rotary positions and DeepStack inputs.

Rows are flat: a step may hold slices of many sequences, and only `attention` knows which row belongs where. After
layer i the features of the i-th tapped vision block are added to the rows of picture tokens.

Shapes: T rows, C width, H query heads, G key/value heads, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from galago.models.base import Attention, Insert, Tick
from galago.models.formats import Format, Linear
from galago.models.layers import inverse_frequencies, rms_norm, rotary_tables, rotate
from galago.models.loader import Weights, in_float32
from galago.models.qwen3_vl.config import TextConfig

PREFIX = "model.language_model."
EMBEDDING = PREFIX + "embed_tokens.weight"
HEAD = "lm_head.weight"


def shapes(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the language model's tensors in a checkpoint."""
    c, d = config.hidden, config.head_dim
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocabulary, c), PREFIX + "norm.weight": (c,)}
    for i in range(config.layers):
        layer = f"{PREFIX}layers.{i}."
        found |= {
            layer + "input_layernorm.weight": (c,),
            layer + "post_attention_layernorm.weight": (c,),
            layer + "self_attn.q_norm.weight": (d,),
            layer + "self_attn.k_norm.weight": (d,),
            layer + "self_attn.q_proj.weight": (config.heads * d, c),
            layer + "self_attn.k_proj.weight": (config.kv_heads * d, c),
            layer + "self_attn.v_proj.weight": (config.kv_heads * d, c),
            layer + "self_attn.o_proj.weight": (c, config.heads * d),
            layer + "mlp.gate_proj.weight": (config.mlp, c),
            layer + "mlp.up_proj.weight": (config.mlp, c),
            layer + "mlp.down_proj.weight": (c, config.mlp),
        }
    return found if config.tied else found | {HEAD: (config.vocabulary, c)}


class Layer:
    """norm, grouped-query attention, norm, gated MLP, each added to the stream."""

    def __init__(self, index: int, weights: Weights, fmt: Format, config: TextConfig) -> None:
        prefix = f"{PREFIX}layers.{index}."

        def linear(name: str) -> Linear:
            return fmt.linear(weights[f"{prefix}{name}.weight"])

        def gain(name: str) -> Tensor:
            return in_float32(weights[f"{prefix}{name}.weight"])

        self.index, self.eps, self.width = index, config.norm_eps, config.head_dim
        self.input_norm, self.mlp_norm = gain("input_layernorm"), gain("post_attention_layernorm")
        self.q_norm, self.k_norm = gain("self_attn.q_norm"), gain("self_attn.k_norm")
        self.q, self.k, self.v = (linear(f"self_attn.{part}_proj") for part in "qkv")
        self.o = linear("self_attn.o_proj")
        self.gate, self.up, self.down = (linear(f"mlp.{part}_proj") for part in ("gate", "up", "down"))

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x: [T, C]; cos, sin: [T, 1, D] -> [T, C]."""
        x = x + self._attend(rms_norm(x, self.input_norm, self.eps), cos, sin, attention)
        h = rms_norm(x, self.mlp_norm, self.eps)
        return x + self.down(F.silu(self.gate(h)).mul_(self.up(h)))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        q = self._heads(self.q(x), self.q_norm, cos, sin)  # [T, H, D]
        k = self._heads(self.k(x), self.k_norm, cos, sin)  # [T, G, D]
        v = self.v(x).view(x.shape[0], -1, self.width)  # [T, G, D]
        return self.o(attention(self.index, q, k, v))

    def _heads(self, x: Tensor, gain: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(rms_norm(x.view(x.shape[0], -1, self.width), gain, self.eps), cos, sin)


class TextModel:
    """The language model in one number format."""

    def __init__(self, config: TextConfig, weights: Weights, fmt: Format) -> None:
        self.config = config
        self.dtype = fmt.dtype
        self.embedding = weights[EMBEDDING]  # [V, C], in the stored type: rows are converted as they are read
        self.layers = [Layer(i, weights, fmt, config) for i in range(config.layers)]
        self.norm = in_float32(weights[PREFIX + "norm.weight"])
        self.head = fmt.linear(self.embedding if config.tied else weights[HEAD])
        self.frequencies = inverse_frequencies(config.head_dim, config.rope_theta)  # [D/2]
        self.axes = _frequency_axes(config.mrope_section)  # [D/2]

    def hidden(
        self, ids: Tensor, positions: Tensor, attention: Attention, inserts: Sequence[Insert], tick: Tick | None
    ) -> Tensor:
        """ids: [T], positions: [3, T] -> normed final states [T, C]."""
        x = self.embedding[ids].to(self.dtype)
        for insert in inserts:
            x[_rows(insert)] = insert.features.embeds
        cos, sin = self._rotary(positions)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, attention)
            for insert in inserts:
                if i < len(insert.features.deepstack):
                    x[_rows(insert)] += insert.features.deepstack[i]
            if tick is not None:
                tick(i + 1, len(self.layers))
        return rms_norm(x, self.norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, C] -> float32 [R, V]."""
        return self.head(hidden).float()

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [T, 1, D]; each frequency follows time, height or width as `axes` says."""
        return rotary_tables(positions[self.axes].mT.float() * self.frequencies)


def _rows(insert: Insert) -> slice:
    return slice(insert.at, insert.at + insert.features.embeds.shape[0])


def _frequency_axes(section: tuple[int, int, int]) -> Tensor:
    """Which position (0 time, 1 height, 2 width) drives each rotary frequency: interleaved t h w t h w ..., then t."""
    axes = torch.zeros(sum(section), dtype=torch.long)
    for axis in (1, 2):
        axes[axis : 3 * section[axis] : 3] = axis
    return axes
