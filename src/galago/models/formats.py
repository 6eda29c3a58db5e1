"""Number formats: in which type weights are kept and products are computed.

A format turns a stored weight into a callable linear layer and names the type in which activations travel. `fp32` is
the reference; `bf16` uses the mapped file itself as the weight, so that nothing is held twice. New formats are classes
added to FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from galago.errors import BadRequest

Linear = Callable[[Tensor], Tensor]  # [..., K] -> [..., N]


class Format(Protocol):
    """How weights are held and multiplied."""

    @property
    def name(self) -> str:
        """What --format takes."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations between layers, and of cached keys, values and features."""

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer computing x @ weight.T + bias. weight: [N, K] in any floating type, bias: [N]."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Weights and activations in one floating type; a checkpoint stored in it is used as it lies in the file."""

    name: str
    dtype: torch.dtype
    weight_bytes: float

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


FORMATS: dict[str, Format] = {
    name: Dense(name, dtype, dtype.itemsize) for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
}
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
