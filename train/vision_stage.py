"""Stage 1: the vision tower alone learns to read, by naming in slots the characters that lie in each 32x32 token."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from galago.bench.pictures import Fonts
from train import batches, data
from train.alphabet import ALPHABET


@dataclass(frozen=True, slots=True)
class Level:
    """One step of the widening: a look, at most `rows` tokens high, texts up to `longest`, left when slots are
    `enough` right."""

    look: data.Look
    rows: int
    longest: int
    enough: float
    latest: float = 1.0  # share of the stage at which this level begins at the latest


LEVELS = (
    Level(data.Look((17, 24)), 1, 10, 0.60),
    Level(data.Look((16, 26), fonts="all", grounds=0.1, odd=0.1), 1, 12, 0.72),
    Level(data.Look((15, 28), fonts="all", grounds=0.2, odd=0.2, dark=0.2, jpeg=0.1), 2, 14, 0.82),
    Level(data.Look((14, 32), fonts="all", grounds=0.35, odd=0.3, dark=0.25, jpeg=0.15), 3, 14, 2.0),
)


class SlotHead(nn.Module):
    """A linear reading of every merged token: one of the characters or nothing, in each slot."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, batches.SLOTS * (len(ALPHABET) + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        """[V, C] -> [V, S, characters + 1]"""
        return self.out(tokens).view(-1, batches.SLOTS, len(ALPHABET) + 1)


def slot_loss(logits: Tensor, target: Tensor) -> tuple[Tensor, int, int]:
    """Cross entropy over slots, empty ones at a fifth of the weight. Returns (loss, right characters, characters)."""
    flat, wanted = logits.flatten(0, 1), target.flatten()
    weight = torch.ones(flat.shape[1])
    weight[0] = 0.2
    shown = wanted > 0
    right = int((flat.detach().argmax(-1)[shown] == wanted[shown]).sum())
    return F.cross_entropy(flat, wanted, weight), right, int(shown.sum())


def batch(rng: random.Random, fonts: Fonts, level: int, patches: int) -> batches.Stacked:
    """Mostly the level itself, a fifth from the levels before it."""
    here = LEVELS[level] if level == 0 or rng.random() < 0.8 else LEVELS[rng.randrange(level)]
    return batches.strip_batch(rng, fonts, data.with_case(rng, here.look, 40), patches, here.rows, here.longest)
