"""Number formats: in which type weights are kept and products are computed.

A format turns a stored weight into a callable linear layer and names the type in which activations travel. `fp32` is
the reference; `bf16` uses the mapped file itself as the weight, so that nothing is held twice. New formats are classes
added to FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from galago.errors import BadRequest

Linear = Callable[[Tensor], Tensor]  # [..., K] -> [..., N]


class Format(Protocol):
    """How weights are held and multiplied."""

    name: str
    dtype: torch.dtype  # of activations between layers, and of cached keys, values and features
    weight_bytes: float  # per weight

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer computing x @ weight.T + bias. weight: [N, K] in any floating type, bias: [N]."""


class Float32:
    """Everything in float32: the reference that the other formats are measured against."""

    name = "fp32"
    dtype = torch.float32
    weight_bytes = 4.0

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return DenseLinear(weight.to(self.dtype), None if bias is None else bias.to(self.dtype))


class BFloat16:
    """Weights and activations in bfloat16, sums in float32. A bfloat16 checkpoint is used as it lies in the file."""

    name = "bf16"
    dtype = torch.bfloat16
    weight_bytes = 2.0

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return DenseLinear(weight.to(self.dtype), None if bias is None else bias.to(self.dtype))


class DenseLinear:
    """A linear layer on an unpacked weight. weight: [N, K], bias: [N] or None."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1 and x.dtype == torch.bfloat16:
            # One row is bound by reading the weight: the matrix-vector path reads 1.6x faster than the GEMM path.
            row = torch.mv(self.weight, x[0])
            return (row if self.bias is None else row + self.bias)[None]
        return F.linear(x, self.weight, self.bias)


FORMATS: dict[str, Format] = {f.name: f for f in (Float32(), BFloat16())}
AUTO = "auto"
SMALL = 256 * 2**20  # bytes of weights below which float32 costs nothing worth saving


def choose_format(name: str, folder: Path) -> tuple[Format, str]:
    """The format called `name` and why; "auto" is fp32 for small checkpoints, else bf16, as the weights are stored."""
    if name != AUTO:
        return format_by_name(name), "as requested"
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if stored < SMALL:
        return FORMATS["fp32"], f"the weights are small ({stored / 2**20:.0f} MB)"
    return FORMATS["bf16"], "the type the weights are stored in"


def format_by_name(name: str) -> Format:
    """The format called `name`. Raises BadRequest listing the known ones."""
    if name not in FORMATS:
        raise BadRequest(f"format {name} is not known: use {AUTO} or one of {', '.join(FORMATS)}")
    return FORMATS[name]
