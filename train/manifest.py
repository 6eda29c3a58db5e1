"""Writes the frozen evaluation manifest: `python -m train.manifest` -> src/galago/bench/manifest.json.gz.

Its random streams have a namespace of their own ("manifest/..."), so no spec is shared with training; its pictures use
only the fonts in bench/fonts, four of which belong to families that training never sees. It is written once and not
again: a changed sampler must not silently change what is measured, so an existing file is only replaced with
--replace.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from galago.bench import pictures
from galago.bench.pictures import BUNDLED_FONTS, Fonts
from train import data, tasks
from train.tasks import TASKS, Need, Sample

OUT = Path(pictures.__file__).parent / "manifest.json.gz"
SEEN = ("Go-Regular.ttf", "Inconsolata.otf", "Caladea-Regular.ttf", "Karla-Bold.otf",
        "YanoneKaffeesatz-Bold.otf", "Quicksand-Medium.ttf")  # fmt: skip
UNSEEN = data.HELD_FILES
LENGTHS = {"3-6": (3, 6), "7-9": (7, 9), "10-14": (10, 14)}
SIZES = {"14-20": (14, 20), "21-32": (21, 32)}
GROUNDS = {"plain": ("plain",), "coloured": ("coloured", "gradient"), "noisy": ("noisy",)}
LOOK = data.Look((14, 32), fonts="bundled", grounds=0.35, odd=0.3, dark=0.25, jpeg=0.15)
OTHERS = {"lines": 60, "blank": 60, "colour": 80, "shape": 80, "count": 80, "boxes": 100, "pick": 150, "followup": 80,
          "extract": 70, "caption": 70}  # fmt: skip
PER_CELL = 50


def text_items() -> list[tuple[str, Sample]]:
    """The 36 cells of reading: length x type size x font x ground."""
    fonts, items = Fonts((BUNDLED_FONTS,)), []
    for (length, (low, high)), (size, sizes), font, (ground, kinds) in product(
        LENGTHS.items(), SIZES.items(), ("trained", "unseen"), GROUNDS.items()
    ):
        cell = f"{length} chars, {size} px, {font} font, {ground}"
        rng = data.stream("manifest", cell)
        for n in range(PER_CELL):
            names = SEEN if font == "trained" else UNSEEN
            fixed = {"kind": rng.choice(kinds), "font": names[n % len(names)], "type_px": rng.randint(*sizes)}
            need = Need(replace(LOOK, sizes=sizes), high, low, two_lines=0.0, fixed=fixed)
            items.append((cell, until(rng, fonts, need, tasks.read, lambda s, a=low, b=high: a <= len(s.answer) <= b)))
    return items


def until(
    rng: random.Random, fonts: Fonts, need: Need, task: Callable[..., Sample], good: Callable[[Sample], bool]
) -> Sample:
    """The first sample that is `good`."""
    while True:
        sample = task(rng, fonts, need)
        if good(sample):
            return sample


def other_items() -> list[tuple[str, Sample]]:
    """The other tasks, with bundled fonts only."""
    fonts, items = Fonts((BUNDLED_FONTS,)), []
    for name, number in OTHERS.items():
        rng = data.stream("manifest", name)
        for _ in range(number):
            fixed = {
                "font": rng.choice(SEEN + UNSEEN),
                "type_px": rng.randint(*((16, 22) if name == "extract" else LOOK.sizes)),
            }
            need = Need(LOOK, 9, 2, two_lines=1.0 if name == "lines" else 0.0, fixed=fixed)
            items.append((name, tasks.garnish(rng, TASKS["text" if name == "lines" else name](rng, fonts, need), 1.0)))
    return items


def record(number: int, cell: str, sample: Sample) -> dict[str, Any]:
    return {"id": f"{sample.task}-{number:04d}", "task": sample.task, "cell": cell,
            "pictures": [p.to_dict() for p in sample.pictures], "messages": list(sample.messages),
            "answer": sample.answer, "extra": {"language": sample.language}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train.manifest", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--replace", action="store_true", help="write over an existing manifest")
    given = parser.parse_args()
    if given.out.exists() and not given.replace:
        raise SystemExit(f"{given.out} exists; it is frozen (--replace writes it anew)")
    items = [record(n, cell, sample) for n, (cell, sample) in enumerate([*text_items(), *other_items()])]
    body = json.dumps({"version": 1, "items": items}, ensure_ascii=False, separators=(",", ":")).encode()
    given.out.write_bytes(gzip.compress(body, 9, mtime=0))
    print(f"{len(items)} items, {given.out.stat().st_size} bytes -> {given.out}")


if __name__ == "__main__":
    main()
