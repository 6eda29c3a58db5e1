"""Executes slices of a sequence on the model: the only place where prompts become tensors.

A slice is (sequence, start, count): any run of its tokens that have not been computed yet. Pictures inside a slice are
replaced by the rows of their features; a slice may begin or end in the middle of a picture.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from galago.engine.kv_store import SequenceKV
from galago.models.base import Insert, Tick, VisionFeatures, VisionLanguageModel
from galago.models.qwen3_vl.positions import Positions, prompt_positions
from galago.types import Grid, ImageSpan, Prompt


def use_threads(count: int) -> None:
    """How many threads torch computes with, in the whole process."""
    torch.set_num_threads(count)


@dataclass(slots=True)
class RunningSequence:
    """A prompt on its way through the model: its tokens so far, its pictures' features, its cache."""

    ids: list[int]
    positions: Positions
    spans: tuple[ImageSpan, ...]
    kv: SequenceKV
    features: list[VisionFeatures] = field(default_factory=list)  # one per span, in order

    @property
    def pending(self) -> int:
        """Tokens that are known and not yet computed."""
        return len(self.ids) - self.kv.length


class Runner:
    """Runs one model."""

    def __init__(self, model: VisionLanguageModel, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of a sequence of `tokens` tokens."""
        return tokens * self.model.shape.kv_bytes_per_token(self.dtype.itemsize)

    def start(self, prompt: Prompt, max_tokens: int) -> RunningSequence:
        """A sequence with room for max_tokens more."""
        positions = prompt_positions(len(prompt.ids), prompt.spans, self.model.shape.merge)
        capacity = len(prompt.ids) + max_tokens
        kv = SequenceKV(self.model.shape, self.dtype, capacity)
        return RunningSequence(list(prompt.ids), positions, prompt.spans, kv)

    def encode(self, patches: NDArray[np.float32], grid: Grid) -> Generator[None, None, VisionFeatures]:
        """Encode one picture; yields after every block and returns the features."""
        work = self.model.encode(torch.from_numpy(patches), grid)
        while True:
            with torch.inference_mode():  # not across the yield: the mode is the thread's, not the generator's
                try:
                    next(work)
                except StopIteration as finished:
                    features: VisionFeatures = finished.value
                    return features
            yield

    @torch.inference_mode()
    def execute(self, sequence: RunningSequence, count: int, tick: Tick | None = None) -> Tensor:
        """Compute the next `count` tokens; returns float32 logits [V] after the last of them."""
        start = sequence.kv.length
        hidden = self.model.hidden(
            torch.tensor(sequence.ids[start : start + count]),
            torch.from_numpy(sequence.positions.slice(start, count)),
            sequence.kv,
            inserts(sequence.spans, sequence.features, start, count),
            tick,
        )
        sequence.kv.commit(count)
        return self.model.logits(hidden[-1:])[0]


def inserts(spans: Sequence[ImageSpan], features: Sequence[VisionFeatures], start: int, count: int) -> list[Insert]:
    """The parts of the pictures that fall into tokens start..start+count, at their places within that slice."""
    found = []
    for span, whole in zip(spans, features, strict=True):
        first, last = max(span.start, start), min(span.start + span.tokens, start + count)
        if first < last:
            found.append(Insert(first - start, whole.rows(first - span.start, last - span.start)))
    return found
