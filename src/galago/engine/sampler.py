"""Draws the next token of one sequence. Nothing here depends on any other sequence.

The order is the one of the reference (transformers' logits processors): repetition, frequency and presence penalties,
temperature, top-k, top-p, min-p. Tokens that must never come out of an answer (picture and video placeholders, ids
beyond the vocabulary of the tokenizer) are removed first. Shapes: V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from galago.types import SamplingParams

SMALLEST = torch.finfo(torch.float32).tiny  # a temperature below is 0 in float32


class Sampler:
    """The sampling state of one sequence: parameters, tokens seen, random numbers."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], forbidden: Iterable[int] = ()) -> None:
        self.params = params
        self.seen = torch.tensor(sorted(set(prompt)), dtype=torch.long)  # tokens of prompt and answer
        self.counts: Counter[int] = Counter()  # of the answer
        self.forbidden = torch.tensor(sorted(forbidden), dtype=torch.long)
        self.random = torch.Generator()
        if params.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(params.seed)

    def draw(self, logits: Tensor) -> int:
        """The next token, from float32 logits [V], which are left as they are."""
        logits = logits.clone()
        logits[self.forbidden] = -torch.inf
        self._penalise(logits)
        token = int(logits.argmax()) if self.params.temperature == 0 else self._sample(logits)
        self._note(token)
        return token

    def _note(self, token: int) -> None:
        if token not in self.counts and not bool((self.seen == token).any()):
            self.seen = torch.cat([self.seen, torch.tensor([token])])
        self.counts[token] += 1

    def _penalise(self, logits: Tensor) -> None:
        """Penalties in place: repetition over prompt and answer, presence and frequency over the answer."""
        params = self.params
        if params.repetition_penalty != 1.0:
            found, factor = logits[self.seen], params.repetition_penalty
            logits[self.seen] = torch.where(found > 0, found / factor, found * factor)
        if self.counts and (params.presence_penalty or params.frequency_penalty):
            ids = torch.tensor(list(self.counts), dtype=torch.long)
            times = torch.tensor(list(self.counts.values()), dtype=logits.dtype)
            logits[ids] -= params.presence_penalty + params.frequency_penalty * times

    def _sample(self, logits: Tensor) -> int:
        """One token from the filtered distribution."""
        params = self.params
        kept = min(params.top_k or logits.numel(), logits.numel())
        values, ids = logits.topk(kept)  # descending
        # Counted from the best, so that a temperature near 0 makes the others vanish instead of the best infinite.
        chances = ((values - values[0]) / max(params.temperature, SMALLEST)).softmax(-1)
        keep = chances >= params.min_p * chances[0]
        if params.top_p < 1:  # at 1 rounding of the sum would cut the tail off
            keep &= chances.cumsum(-1) - chances < params.top_p  # the token that crosses top_p stays
        keep[0] = True
        weights = torch.where(keep, chances, 0.0)
        return int(ids[torch.multinomial(weights, 1, generator=self.random)])
