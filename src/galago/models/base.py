"""What the engine asks of a model. Models know tensors and grids, never requests.

The text model works on flat rows: a batch is the concatenation of slices of any number of sequences, each with its own
positions, and the `Attention` object that comes with the batch knows which rows belong to which sequence and where
their keys and values are kept. There is no prefill or decode mode.

Shapes: T rows of a step, H query heads, G key/value heads, D head width, C hidden width, V vocabulary, N image tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from galago.types import Grid

Tick = Callable[[int, int], None]  # (done, total): called between layers; may raise to stop the work


class Attention(Protocol):
    """Keeps the keys and values of a step's rows and attends over all that precede each row in its sequence."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, H, D], k and v: [T, G, D], rotated -> [T, H * D]."""


@dataclass(frozen=True, slots=True)
class VisionFeatures:
    """What the text model gets of a picture. embeds: [N, C]; deepstack: one [N, C] per tapped vision block."""

    embeds: Tensor
    deepstack: tuple[Tensor, ...]

    def rows(self, start: int, stop: int) -> VisionFeatures:
        """The features of image tokens start..stop, as views."""
        return VisionFeatures(self.embeds[start:stop], tuple(level[start:stop] for level in self.deepstack))


@dataclass(frozen=True, slots=True)
class Insert:
    """Features that stand in for rows at..at+len(features) of a step."""

    at: int
    features: VisionFeatures


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that caches, budgets and context arithmetic need."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    merge: int
    deepstack: int

    def kv_bytes_per_token(self, element: int) -> int:
        """Bytes of keys and values per token, at `element` bytes a value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element

    def feature_bytes_per_token(self, element: int) -> int:
        """Bytes of vision features per image token, DeepStack included."""
        return (1 + self.deepstack) * self.hidden * element


class VisionLanguageModel(Protocol):
    """A loaded model."""

    shape: ModelShape

    def encode(self, patches: Tensor, grid: Grid) -> Generator[None, None, VisionFeatures]:
        """Encode one picture block by block: yields after every block, returns the features.

        patches: [grid.patches, values] float32 as the processor lays them out.
        """

    @property
    def encode_steps(self) -> int:
        """How often `encode` yields."""

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: Attention,
        inserts: Sequence[Insert] = (),
        tick: Tick | None = None,
    ) -> Tensor:
        """Final hidden states [T, C] of rows with token ids [T] at 3-D positions [3, T]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [R, V] of the chosen rows [R, C]."""
