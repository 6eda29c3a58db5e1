"""How well a model reads and sees: the frozen set of test pictures, answered freely and counted by cell.

The set (manifest.json.gz) is a list of picture descriptions with questions and right answers; it never changes, so that
figures of different days can be compared. Text is right when it is equal to the last character; the share of right
characters is 1 - edit distance / length. A box is right when its label is and it overlaps the true one by more than 0.7
(intersection over union).
"""

from __future__ import annotations

import gzip
import io
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from galago.bench.pictures import Fonts, PictureSpec, render
from galago.engine.core import Engine
from galago.types import Answer, ImageOptions, ImagePart, Message, Request, SamplingParams, TextPart

MANIFEST = Path(__file__).parent / "manifest.json.gz"
OVERLAP = 0.7  # of a box that counts as found
LONGEST = 128  # answer tokens; the longest right answer has fewer


@dataclass(frozen=True, slots=True)
class Item:
    """One question of the set. messages: as a chat client writes them, pictures as {"type": "image"} parts."""

    id: str
    task: str
    cell: str
    pictures: tuple[PictureSpec, ...]
    messages: tuple[dict[str, Any], ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged answer. right of wanted: boxes for the task "boxes", else 0 or 1 of 1. errors of characters: edits."""

    item: str
    task: str
    cell: str
    answer: str
    wanted_answer: str
    right: int
    wanted: int
    errors: int
    characters: int


def load(path: Path = MANIFEST) -> list[Item]:
    """All questions of a manifest."""
    raw = json.loads(gzip.decompress(path.read_bytes()))
    return [
        Item(
            id=entry["id"],
            task=entry["task"],
            cell=entry["cell"],
            pictures=tuple(PictureSpec.from_dict(spec) for spec in entry["pictures"]),
            messages=tuple(entry["messages"]),
            answer=entry["answer"],
        )
        for entry in raw["items"]
    ]


def first_of_each_cell(items: Iterable[Item], limit: int | None) -> list[Item]:
    """The first `limit` questions of every cell; all of them without a limit."""
    seen: Counter[str] = Counter()
    kept = []
    for item in items:
        seen[item.cell] += 1
        if limit is None or seen[item.cell] <= limit:
            kept.append(item)
    return kept


def conversation(item: Item, fonts: Fonts) -> tuple[Message, ...]:
    """The question with its pictures drawn, as PNG files."""
    drawn = (_png(spec, fonts) for spec in item.pictures)
    return tuple(Message(message["role"], tuple(_parts(message["content"], drawn))) for message in item.messages)


def _parts(content: str | list[dict[str, str]], drawn: Iterator[bytes]) -> Iterator[TextPart | ImagePart]:
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        yield ImagePart(next(drawn), ImageOptions()) if part["type"] == "image" else TextPart(part["text"])


def _png(spec: PictureSpec, fonts: Fonts) -> bytes:
    file = io.BytesIO()
    render(spec, fonts).save(file, "PNG", compress_level=1)
    return file.getvalue()


def run(engine: Engine, items: Sequence[Item], done: Callable[[int], None] = lambda _: None) -> list[Outcome]:
    """Answer every question greedily; done(count) is called after each."""
    fonts, outcomes = Fonts(), []
    for count, item in enumerate(items, 1):
        request = Request(conversation(item, fonts), SamplingParams(max_tokens=LONGEST))
        answer = next(event for event in engine.generate(request) if isinstance(event, Answer))
        outcomes.append(judge(item, answer.text))
        done(count)
    return outcomes


def judge(item: Item, answer: str) -> Outcome:
    """Compare an answer with the right one."""
    right, wanted = boxes_found(answer, item.answer) if item.task == "boxes" else (int(answer == item.answer), 1)
    errors = edit_distance(answer, item.answer)
    return Outcome(item.id, item.task, item.cell, answer, item.answer, right, wanted, errors, max(len(item.answer), 1))


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: insertions, deletions and replacements that turn a into b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def boxes_found(answer: str, wanted: str) -> tuple[int, int]:
    """(found, wanted) boxes of two JSON lists; an answer that is no such list finds none."""
    true = json.loads(wanted)
    try:
        left = [(str(box["label"]), _corners(box["bbox_2d"])) for box in json.loads(answer)]
    except (ValueError, TypeError, KeyError):
        return 0, len(true)
    found = 0
    for box in true:
        same = [b for b in left if b[0] == box["label"] and overlap(b[1], _corners(box["bbox_2d"])) > OVERLAP]
        if same:
            left.remove(same[0])
            found += 1
    return found, len(true)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _corners(values: Sequence[float]) -> Box:
    left, top, right, bottom = (float(value) for value in values)
    return left, top, right, bottom


def overlap(a: Box, b: Box) -> float:
    """Intersection over union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    union = sum((right - left) * (bottom - top) for left, top, right, bottom in (a, b)) - width * height
    return width * height / union


@dataclass(frozen=True, slots=True)
class Score:
    """Shares in percent over some questions. characters is meaningful where the answer is a text."""

    name: str
    questions: int
    exact: float
    characters: float


def scores(outcomes: Sequence[Outcome]) -> list[Score]:
    """Per cell, in the manifest's order, then over all cells of reading."""
    cells: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.cell].append(outcome)
    reading = [o for o in outcomes if is_reading(o)]
    return [_score(name, group) for name, group in cells.items()] + (
        [_score("all reading cells", reading)] if reading else []
    )


def is_reading(outcome: Outcome) -> bool:
    """Whether an outcome belongs to the cells length x size x font x ground."""
    return outcome.task == "text" and outcome.cell.count(",") == 3


def _score(name: str, group: Sequence[Outcome]) -> Score:
    exact = 100 * sum(o.right for o in group) / sum(o.wanted for o in group)
    characters = 100 * (1 - sum(o.errors for o in group) / sum(o.characters for o in group))
    return Score(name, len(group), round(exact, 1), round(max(characters, 0.0), 1))


def report(outcomes: Sequence[Outcome], began: float) -> dict[str, object]:
    """What is stored of a run: scores, seconds, and every answer that was not right."""
    wrong = [asdict(o) for o in outcomes if o.right < o.wanted]
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "scores": [asdict(score) for score in scores(outcomes)],
        "wrong": wrong,
    }
