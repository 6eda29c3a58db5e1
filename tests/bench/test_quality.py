"""The frozen test set and how answers to it are judged.

Guards: a set that is too small or overlaps with training, a font that leaked into training, a judge that is generous.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, product

import pytest

from galago.bench import quality
from galago.bench.pictures import BUNDLED_FONTS, Fonts, render
from train import data, fonts

ITEMS = quality.load()
TEXT_CELLS = {
    f"{length} chars, {size} px, {font} font, {ground}"
    for length, size, font, ground in product(
        ("3-6", "7-9", "10-14"), ("14-20", "21-32"), ("trained", "unseen"), ("plain", "coloured", "noisy")
    )
}


def test_the_set_is_large_enough() -> None:
    cells = Counter(item.cell for item in ITEMS)
    assert len(ITEMS) >= 2000
    assert len({item.id for item in ITEMS}) == len(ITEMS)
    assert set(cells) >= TEXT_CELLS
    assert min(cells.values()) >= 50


def test_cells_say_what_the_pictures_show() -> None:
    for item in ITEMS:
        if item.cell not in TEXT_CELLS:
            continue
        length, size, font, ground = item.cell.split(", ")
        low, high = map(int, length.removesuffix(" chars").split("-"))
        smallest, largest = map(int, size.removesuffix(" px").split("-"))
        line = item.pictures[0].lines[0]
        assert low <= len(item.answer) <= high
        assert smallest <= line.size_px <= largest
        assert (line.font in data.HELD_FILES) == (font == "unseen font")
        assert item.pictures[0].ground.kind in {"coloured": ("coloured", "gradient")}.get(ground, (ground,))


def test_fonts_called_unseen_are_in_no_list_of_training() -> None:
    listed = fonts.LIST.read_text(encoding="utf-8").lower()
    assert not any(name.lower() in listed for name in data.HELD_FILES)
    for name in data.HELD_FILES:
        assert any(family in name.lower().replace("-", "") for family in fonts.HELD_FAMILIES)


def test_no_training_stream_draws_a_picture_of_the_set() -> None:
    """Streams are named, so training cannot repeat a spec by construction; a few thousand draws confirm it."""
    held = {item.pictures[0].seed for item in ITEMS}
    streams = [data.stream("train", stage, number) for stage in ("vision", "joint") for number in range(20)]
    drawn = {rng.randrange(2**30) for rng in streams for _ in range(200)}
    assert data.stream("train", 0).random() != data.stream("manifest", 0).random()
    assert len(held & drawn) <= len(held) * len(drawn) / 2**30 + 3


@pytest.mark.parametrize("item", [*islice(ITEMS, 0, None, 211)], ids=lambda item: item.id)
def test_pictures_are_drawn_alike_every_time(item: quality.Item) -> None:
    for spec in item.pictures:
        first, second = (render(spec, Fonts((BUNDLED_FONTS,))) for _ in range(2))
        assert first.size == (spec.width, spec.height)
        assert first.tobytes() == second.tobytes()


def test_edit_distance() -> None:
    distances = {("", ""): 0, ("abc", ""): 3, ("abc", "abd"): 1, ("ab", "ba"): 2, ("kitten", "sitting"): 3}
    for (a, b), distance in distances.items():
        assert quality.edit_distance(a, b) == quality.edit_distance(b, a) == distance


def test_boxes() -> None:
    def boxes(*found: tuple[list[int], str]) -> str:
        return json.dumps([{"bbox_2d": corners, "label": label} for corners, label in found])

    wanted = boxes(([100, 100, 300, 300], "red circle"), ([500, 500, 700, 700], "blue square"))
    assert quality.boxes_found(wanted, wanted) == (2, 2)
    assert quality.boxes_found(boxes(([110, 100, 300, 300], "red circle")), wanted) == (1, 2)
    assert quality.boxes_found(boxes(([180, 100, 380, 300], "red circle")), wanted) == (0, 2)  # overlap 0.43
    assert quality.boxes_found(boxes(([100, 100, 300, 300], "red square")), wanted) == (0, 2)
    assert quality.boxes_found(boxes(*[([100, 100, 300, 300], "red circle")] * 2), wanted) == (1, 2)  # not twice
    for broken in ("", "[", "{}", '[{"label": "red circle"}]', '[{"bbox_2d": [1, 2], "label": "x"}]', "null"):
        assert quality.boxes_found(broken, wanted) == (0, 2)


def test_scores_are_shares_by_cell() -> None:
    items = [item for item in ITEMS if item.cell in TEXT_CELLS][:4]
    outcomes = [quality.judge(item, item.answer if n else item.answer[:-1]) for n, item in enumerate(items)]
    cell, total = quality.scores(outcomes)
    assert (cell.questions, cell.exact) == (4, 75.0)
    assert total.name == "all reading cells"
    assert total.characters == round(100 * (1 - 1 / sum(len(item.answer) for item in items)), 1)
