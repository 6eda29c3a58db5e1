"""Greedy answers of the training model, many conversations at a time, and the scores of the frozen manifest."""

from __future__ import annotations

import argparse
import copy
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from galago.bench.pictures import Fonts
from train import batches, tasks, tokenizer
from train.manifest import read
from train.model import TinyVL


@dataclass(slots=True)
class Answerer:
    """A model that answers freely: every token is its own greedy choice."""

    model: TinyVL
    together: int = 64

    @classmethod
    def of(cls, model: TinyVL, weights: dict[str, Tensor] | None = None) -> Answerer:
        """The model itself, or a copy of it with other weights (slot head entries are passed over)."""
        if weights is None:
            return cls(model)
        other = copy.deepcopy(model)
        other.load_state_dict({n: w for n, w in weights.items() if not n.startswith("slot_head.")})
        return cls(other)

    @torch.inference_mode()
    def answers(self, samples: Sequence[tasks.Sample], fonts: Fonts) -> list[str]:
        """One answer per sample, in order. Conversations of similar answer length run together; an answer that grows
        much
        longer than the right one is cut, since it is wrong already."""
        order = sorted(range(len(samples)), key=lambda n: len(tokenizer.encode(samples[n].answer)))
        out = [""] * len(samples)
        for start in range(0, len(order), self.together):
            chosen = order[start : start + self.together]
            got = batches.conversation_batch([samples[n] for n in chosen], fonts, answers=False)
            visual, taps = self.model.model.visual([torch.from_numpy(s) for s in got.pictures.stacks])
            limit = 12 + len(tokenizer.encode(samples[chosen[-1]].answer))
            for part in got.parts:
                for member, answer in zip(part.members, self._write(part, visual, taps, limit), strict=True):
                    out[chosen[member]] = answer
        return out

    def _write(self, part: batches.Part, visual: Tensor, taps: list[Tensor], limit: int) -> list[str]:
        """Greedy answers of one part: the whole rows are run again for every token, which is fast enough here."""
        take = torch.from_numpy(part.take)
        visual, taps = visual[take], [t[take] for t in taps]
        b, width = part.ids.shape
        whole = width + limit
        ids = np.concatenate([part.ids, np.full((b, limit), tokenizer.control("<|endoftext|>"))], 1)
        positions = np.concatenate([part.positions, part.positions[:, :, -1:] + 1 + np.arange(limit)], 2)
        where = torch.from_numpy(part.where // width * whole + part.where % width)
        length, alive = part.lengths.copy(), np.ones(b, bool)
        for _ in range(limit):
            used = int(length.max())
            seen, places = torch.from_numpy(ids[:, :used]), torch.from_numpy(positions[:, :, :used])
            hidden = self.model.hidden(seen, places, visual, taps, where // whole * used + where % whole)
            best = self.model.logits(hidden[torch.arange(b), torch.from_numpy(length - 1)]).argmax(-1).numpy()
            alive &= (best != tokenizer.control("<|im_end|>")) & (best != tokenizer.control("<|endoftext|>"))
            if not alive.any():
                break
            ids[alive, length[alive]] = best[alive]
            length[alive] += 1
        return [tokenizer.decode(ids[n, part.lengths[n] : length[n]].tolist()) for n in range(b)]


# ---------------------------------------------------------------- scores of the frozen manifest


def distance(a: str, b: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    areas = [(r - x) * (d - y) for x, y, r, d in (a, b)]
    return w * h / (sum(areas) - w * h)


def boxes_right(answer: str, wanted: str) -> bool:
    """Every wanted box is met by one answered box of its label with an overlap of at least 0.5, and there are no
    more."""
    try:
        found = json.loads(answer)
        left = [(tuple(map(float, b["bbox_2d"])), b["label"]) for b in found]
    except (ValueError, TypeError, KeyError):
        return False
    for want in json.loads(wanted):
        met = [f for f in left if f[1] == want["label"] and len(f[0]) == 4 and overlap(f[0], want["bbox_2d"]) >= 0.5]
        if not met:
            return False
        left.remove(met[0])
    return not left


def right(sample: tasks.Sample, answer: str) -> bool:
    return boxes_right(answer, sample.answer) if sample.task == "boxes" else answer == sample.answer


def from_folder(folder: Path) -> TinyVL:
    """The exported model as the training module."""
    model = TinyVL()
    model.load_state_dict({n: w.float() for n, w in load_file(folder / "model.safetensors").items()})
    return model


def score(folder: Path, manifest: Path | None = None, every: int = 1) -> list[str]:
    """A table of the manifest's cells: exact answers, characters, and the summary of reading."""
    items = (read(manifest) if manifest else read())[::every]
    answers = Answerer(from_folder(folder)).answers([s for _, s in items], Fonts())
    cells: dict[str, list[tuple[bool, int, int]]] = defaultdict(list)
    for (cell, sample), answer in zip(items, answers, strict=True):
        one = (right(sample, answer), distance(answer, sample.answer), len(sample.answer))
        cells[cell].append(one)
        if sample.task == "text" and cell != "lines":
            for group in (*cell.split(", "), "all reading cells"):
                cells[f"reading: {group}"].append(one)
    rows = ["| cell | items | exact | characters |", "| --- | ---: | ---: | ---: |"]
    for cell, results in cells.items():
        n, characters = len(results), 1 - sum(r[1] for r in results) / max(1, sum(r[2] for r in results))
        rows.append(
            f"| {cell} | {n} | {100 * sum(r[0] for r in results) / n:.1f} % | {100 * max(0, characters):.1f} % |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m train.evaluate", description="Greedy answers of an exported folder, by cell."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every n-th item only")
    given = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    print("\n".join(score(given.folder, given.manifest, given.every)))


if __name__ == "__main__":
    main()
