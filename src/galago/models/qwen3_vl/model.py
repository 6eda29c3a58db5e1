"""Qwen3-VL, dense, any size: the vision tower and the language model behind the interface of models/base.py."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from torch import Tensor

from galago.models.base import Attention, Insert, ModelShape, Tick, VisionFeatures
from galago.models.formats import Format
from galago.models.loader import load_weights
from galago.models.qwen3_vl import text, vision
from galago.models.qwen3_vl.config import Qwen3VLConfig
from galago.types import Grid


class Qwen3VL:
    """A loaded checkpoint in one number format."""

    def __init__(self, folder: Path, fmt: Format) -> None:
        """Load from a Hugging Face folder. Raises ModelError when config or weights cannot be used."""
        config = Qwen3VLConfig.from_folder(folder)
        # A tied checkpoint may carry a copy of the embedding as its head; it is not read.
        unread = [text.HEAD] if config.text.tied else []
        weights = load_weights(folder, vision.shapes(config.vision) | text.shapes(config.text), unread)
        self.config = config
        self.format = fmt
        self.weight_bytes = weights.bytes
        self.vision = vision.VisionTower(config.vision, weights, fmt)
        self.text = text.TextModel(config.text, weights, fmt)
        self.shape = _shape(config)

    @property
    def encode_steps(self) -> int:
        return self.config.vision.depth

    def encode(self, patches: Tensor, grid: Grid) -> Generator[None, None, VisionFeatures]:
        return self.vision.encode(patches, grid)

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: Attention,
        inserts: Sequence[Insert] = (),
        tick: Tick | None = None,
    ) -> Tensor:
        return self.text.hidden(ids, positions, attention, inserts, tick)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.text.logits(hidden)


def _shape(config: Qwen3VLConfig) -> ModelShape:
    return ModelShape(
        layers=config.text.layers,
        heads=config.text.heads,
        kv_heads=config.text.kv_heads,
        head_dim=config.text.head_dim,
        hidden=config.text.hidden,
        vocabulary=config.text.vocabulary,
        context=config.text.context,
        merge=config.vision.merge,
        deepstack=len(config.vision.deepstack),
    )
