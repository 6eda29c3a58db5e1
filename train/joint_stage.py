"""Stage 2: the whole model answers questions; the slot head goes on as a helper so that the tower goes on learning to
read.

Levels widen one thing after another; each keeps replaying the ones before it.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from galago.bench.pictures import Fonts
from galago.bench.quality import boxes_found
from train import batches, data, tasks, vision_stage
from train.evaluate import Answerer

SLOT_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Level:
    """One step of the widening. mix: weight of each task; units: largest (rows, columns) in tokens; left when the
    share of right answer characters exceeds `enough`; `latest`: the share of the stage at which it begins at the
    latest; core: share of the texts that are everyday ones (3-7 characters, common fonts of 18-28 px, mostly plain).
    """

    name: str
    look: data.Look
    longest: int
    mix: dict[str, float]
    units: tuple[int, int]
    patches: int
    enough: float
    latest: float
    plain_wording: float
    garnish: float = 0.0
    flat: float = 1.6  # the larger, the rarer are pictures of many rows
    core: float = 0.0
    two_lines: float = 0.0
    chinese: float = 0.35


WIDE = data.Look((14, 32), fonts="all", grounds=0.35, odd=0.3, dark=0.25, jpeg=0.15)
MIDDLE = data.Look((15, 28), fonts="all", grounds=0.2, odd=0.2, dark=0.2, jpeg=0.1)
EVERYDAY = data.Look((18, 28), fonts="common", grounds=0.1, odd=0.15)
READING = {"text": 8.0, "colour": 0.7, "shape": 0.7, "count": 0.7}
ALL = {
    "text": 6.0,
    "blank": 0.3,
    "colour": 0.7,
    "shape": 0.6,
    "count": 0.8,
    "boxes": 0.7,
    "pick": 1.0,
    "followup": 0.6,
    "extract": 0.5,
    "caption": 0.7,
}
LEVELS = (
    Level(
        "short", data.Look((17, 26), fonts="all", grounds=0.1), 4, READING, (1, 5), 1700, 0.55, 0.0, 0.9, chinese=0.05
    ),
    Level("medium", MIDDLE, 7, READING, (2, 6), 1800, 0.72, 0.15, 0.6, chinese=0.2),
    Level("long", MIDDLE, 12, READING, (2, 8), 2000, 0.80, 0.28, 0.3, chinese=0.3),
    Level("tasks", WIDE, 12, ALL, (5, 9), 2400, 0.9, 0.4, 0.15, garnish=0.6, flat=0.8, core=0.2, two_lines=0.12),
    Level("all", WIDE, 14, ALL, (10, 13), 2800, 2.0, 0.6, 0.1, garnish=1.0, flat=0.6, core=0.35, two_lines=0.15),
    Level("polish", WIDE, 12, ALL | {"text": 16.0}, (3, 8), 2800, 2.0, 0.88, 0.1, garnish=0.7, core=0.4, two_lines=0.1),
)


def batch(rng: random.Random, fonts: Fonts, level: int) -> batches.Batch:
    """A step's conversations: mostly of the level itself, a quarter of the steps from the levels before."""
    here = LEVELS[level] if level == 0 or rng.random() < 0.75 else LEVELS[rng.randrange(level)]
    return batches.conversation_batch(samples(rng, fonts, here), fonts)


def samples(rng: random.Random, fonts: Fonts, level: Level) -> list[tasks.Sample]:
    """Samples of about `level.patches` patches whose pictures share a handful of sizes."""
    rows, columns = level.units
    grids = [(min(rows, 1 + int(rng.expovariate(level.flat))), rng.randint(2, columns)) for _ in range(6)]
    grids.append((1, rng.randint(2, min(6, columns))))
    look = data.with_case(rng, level.look, 40)
    need = tasks.Need(look, level.longest, 1, tuple(grids), level.two_lines, level.plain_wording, level.chinese)
    everyday = replace(need, look=EVERYDAY, longest=7, shortest=3, grids=((1, 3), (1, 5), (2, 5)), two_lines=0.0)
    names, weights = list(level.mix), list(level.mix.values())
    found: list[tasks.Sample] = []
    left = level.patches
    while left > 0:
        name = rng.choices(names, weights)[0]
        wanted = everyday if name == "text" and rng.random() < level.core else need
        sample = tasks.garnish(rng, tasks.TASKS[name](rng, fonts, wanted), level.garnish)
        found.append(sample)
        left -= sum(4 * r * c for r, c in map(batches.grid_of, sample.pictures))
    return found


def answer_logits(state: Any, got: batches.Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logits [A, vocabulary] where an answer token is learned, that token [A], its task [A], merged tokens [V, C])."""
    visual, taps = state.model.model.visual([torch.from_numpy(s) for s in got.pictures.stacks])
    logits, wanted, task = [], [], []
    for part in got.parts:
        take = torch.from_numpy(part.take)
        hidden = state.model.hidden(
            torch.from_numpy(part.ids),
            torch.from_numpy(part.positions),
            visual[take],
            [t[take] for t in taps],
            torch.from_numpy(part.where),
        )
        logits.append(state.model.logits(hidden.flatten(0, 1)[torch.from_numpy(part.asked)]))
        wanted.append(torch.from_numpy(part.wanted))
        task.append(torch.from_numpy(part.task))
    return torch.cat(logits), torch.cat(wanted), torch.cat(task), visual


def step(state: Any, got: batches.Batch, tally: dict[str, float]) -> Tensor:
    """The loss of one batch; `tally` learns how many answer characters were right (teacher-forced) and the parts of
    the loss."""
    logits, wanted, task, visual = answer_logits(state, got)
    loss = F.cross_entropy(logits, wanted)
    slots, slot_right, shown = vision_stage.slot_loss(state.head(visual), torch.from_numpy(got.pictures.slots))
    text = task == batches.TASK_NAMES.index("text")
    right = logits.detach().argmax(-1) == wanted
    tally["right"] += int(right[text].sum())
    tally["shown"] += int(text.sum())
    tally["pictures"] += len(got.pictures.order)
    for name, value in (
        ("l_answer", loss.item()),
        ("l_slots right", slot_right / max(1, shown)),
        ("l_others right", float(right[~text].float().mean()) if (~text).any() else 0.0),
    ):
        tally[name] = tally.get(name, 0.0) + value
    return loss + SLOT_WEIGHT * slots


# ---------------------------------------------------------------- free-running evaluation

COARSE = {
    "3-7 plain 18-28 common": ("text", data.Look((18, 28)), {"shortest": 3, "longest": 7}),
    "3-6 all": ("text", WIDE, {"shortest": 3, "longest": 6}),
    "7-9 all": ("text", WIDE, {"shortest": 7, "longest": 9}),
    "10-14 all": ("text", WIDE, {"shortest": 10, "longest": 14}),
    "3-9 held fonts": ("text", replace(WIDE, fonts="held"), {"shortest": 3, "longest": 9}),
    **{name: (name, WIDE, {"longest": 9}) for name in batches.TASK_NAMES[1:]},
}


def right(sample: tasks.Sample, answer: str) -> bool:
    """Whether an answer counts: equal to the last character, or all boxes found."""
    if sample.task != "boxes":
        return answer == sample.answer
    found, wanted = boxes_found(answer, sample.answer)
    return found == wanted


def evaluate(state: Any, fonts: Fonts, each: int = 48) -> dict[str, float]:
    """Greedy answers of the averaged weights on fresh samples of a stream of its own, printed by coarse cell."""
    began = time.monotonic()
    tests = defaultdict(list)
    for name, (task, look, limits) in COARSE.items():
        rng = data.stream("watch", name)
        need = tasks.Need(look, **limits, two_lines=0.0)
        tests[name] = [tasks.TASKS[task](rng, fonts, need) for _ in range(each if task == "text" else each // 2)]
    scores: dict[str, float] = {}
    answerer = Answerer.of(state.model, state.average)
    for name, items in tests.items():
        answers = answerer.answers(items, fonts)
        scores[name] = sum(right(s, a) for a, s in zip(answers, items, strict=True)) / len(items)
    print("  free-running: " + " | ".join(f"{name} {share:.2f}" for name, share in scores.items()), flush=True)
    print(f"  evaluated in {time.monotonic() - began:.0f} s", flush=True)
    return scores


__all__ = ["LEVELS", "batch", "evaluate", "step"]
