"""The tasks: each draws pictures, a conversation and the one right answer.

A conversation is a list of {"role", "content"} with content a list of {"type": "image"} and {"type": "text", "text":
...}; the pictures of a sample stand in the order of its image parts. `Need.grids` lets a batch agree on a few picture
sizes, so that pictures of one size can be stacked; without it any size is drawn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from galago.bench.pictures import COLOURS, RGB, SHAPES, Fonts, Ground, PictureSpec, ShapeSpec
from train import data, questions
from train.questions import EN, ZH

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation whose last answer is learned."""

    task: str
    pictures: tuple[PictureSpec, ...]
    messages: tuple[Message, ...]
    answer: str
    language: str = EN


@dataclass(frozen=True, slots=True)
class Need:
    """What a sample may look like. grids: (rows, columns) in tokens that pictures must have; empty: any size."""

    look: data.Look
    longest: int = 12
    shortest: int = 1
    grids: tuple[tuple[int, int], ...] = ()
    two_lines: float = 0.15
    plain_wording: float = 0.0  # share of questions in the plainest English wording
    chinese: float = 0.35
    fixed: dict[str, Any] = field(default_factory=dict)  # arguments of data.text_picture: size, kind, font, type_px


def ask(question: str, pictures: int = 1, *, text_first: bool = False) -> Message:
    """A user's turn: pictures, then the question (or the other way round)."""
    parts: list[dict[str, str]] = [{"type": "image"}] * pictures
    text = {"type": "text", "text": question}
    return {"role": "user", "content": [text, *parts] if text_first else [*parts, text]}


def language_of(rng: random.Random, need: Need) -> str:
    return ZH if rng.random() < need.chinese else EN


def wording(
    rng: random.Random, group: dict[str, tuple[str, ...]], language: str, need: Need, without: str = "\0"
) -> str:
    """One of the wordings; plainer ones come more often, those that mention `without` never."""
    usable = [w for w in group[language] if without not in w]
    if rng.random() < need.plain_wording:
        return usable[0]
    return usable[0] if rng.random() < 0.15 else rng.choice(usable)


# ---------------------------------------------------------------- reading


def drawn_text(rng: random.Random, fonts: Fonts, need: Need, lines: int = 1) -> tuple[PictureSpec, list[str]]:
    """A picture with text and the text, shortened until it fits."""
    texts = [data.text_of(rng, rng.randint(need.shortest, need.longest)) or "A" for _ in range(lines)]
    for _ in range(12):
        spec = data.text_picture(rng, fonts, need.look, texts, grids=need.grids, **_fixed(rng, fonts, need, texts))
        if spec is not None:
            return spec, texts
        texts = [t[: max(1, len(t) * 2 // 3)].strip() or "A" for t in texts[: max(1, len(texts) - 1)]]
    raise AssertionError("no grid holds a single letter")


def _fixed(rng: random.Random, fonts: Fonts, need: Need, texts: Sequence[str]) -> dict[str, Any]:
    """The fixed arguments; without grids also a size: any picture of 32..448 px a side that holds the text."""
    fixed = dict(need.fixed)
    if need.grids or "size" in fixed:
        return fixed
    fixed["font"], fixed["type_px"] = data.type_of(rng, need.look, fixed.get("font"), fixed.get("type_px"))
    width, height = data.needed(fonts, fixed["type_px"], fixed["font"], texts)
    fixed["size"] = any_size(rng, width, height)
    return fixed


def any_size(rng: random.Random, width: int, height: int) -> tuple[int, int]:
    """(width, height) in px with room for `width` x `height`: mostly little spare room, now and then a lot."""
    spare = rng.choice((8, 32, 96, 224))
    size = (min(448, width + rng.randint(0, spare)), min(448, height + rng.randint(0, spare)))
    return max(32, width, size[0]), max(32, height, size[1])


def read(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """What does it say? One line, or two with a line break between."""
    language = language_of(rng, need)
    spec, texts = drawn_text(rng, fonts, need, 2 if rng.random() < need.two_lines else 1)
    return Sample("text", (spec,), (ask(wording(rng, questions.TEXT, language, need)),), "\n".join(texts), language)


def blank(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """Text is asked for and there is none: an empty picture, or shapes only."""
    language = language_of(rng, need)
    spec = empty(rng, need)
    if rng.random() < 0.3:
        spec = with_shapes(rng, spec, 1, None, None) or spec
    return Sample(
        "blank", (spec,), (ask(wording(rng, questions.TEXT, language, need)),), questions.NO_TEXT[language], language
    )


def empty(rng: random.Random, need: Need) -> PictureSpec:
    """A ground with nothing on it."""
    rows, columns = rng.choice(need.grids) if need.grids else (rng.randint(1, 6), rng.randint(1, 6))
    ground, _, _ = data.ground_of(rng, data.ground_kind(rng, need.look), need.look.dark)
    odd = need.look.odd
    return PictureSpec(data.side(rng, columns, odd), data.side(rng, rows, odd), ground, rng.randrange(1 << 30))


# ---------------------------------------------------------------- shapes


def shape_ground(rng: random.Random, look: data.Look) -> Ground:
    """Mostly white or pale, so that named colours stay what they are called."""
    colour: RGB = (255, 255, 255) if rng.random() < 0.5 else data.random_rgb(rng, 200, 255)
    if rng.random() < look.dark * 0.6:
        colour = data.random_rgb(rng, 0, 45)
    if rng.random() < look.grounds * 0.4:
        return Ground("noisy", colour, None, rng.randint(8, 25))
    return Ground("plain", colour)


def stands_out(name: str, ground: RGB) -> bool:
    return sum((a - b) ** 2 for a, b in zip(COLOURS[name], ground, strict=True)) > 110**2


def cells(rng: random.Random, spec: PictureSpec) -> list[tuple[int, int, int, int]]:
    """Places of shapes that cannot overlap: a lattice of squares of 32 to 96 px over the picture."""
    most = max(32, min(96, spec.width, spec.height))
    step = rng.randint(28 if min(spec.width, spec.height) < 32 else 32, most)
    step = min(step, spec.width, spec.height)
    columns, rows = spec.width // step, spec.height // step
    dx, dy = spec.width // columns, spec.height // rows
    return [(x * dx, y * dy, x * dx + dx, y * dy + dy) for y in range(rows) for x in range(columns)]


def with_shapes(
    rng: random.Random, spec: PictureSpec, number: int, kind: str | None, colour: str | None
) -> PictureSpec | None:
    """`spec` with `number` shapes of one kind and colour (drawn when None); None when there is no room for them."""
    places = cells(rng, spec)
    colours = [c for c in COLOURS if stands_out(c, spec.ground.colour)]
    kind, colour = kind or rng.choice(SHAPES), colour or rng.choice(colours)
    if len(places) < number or not stands_out(colour, spec.ground.colour):
        return None
    shapes = tuple(data.shape_at(rng, kind, colour, cell) for cell in rng.sample(places, number))
    return replace(spec, shapes=spec.shapes + shapes)


def mixed_shapes(rng: random.Random, spec: PictureSpec, number: int) -> PictureSpec:
    """`spec` with up to `number` shapes of any kinds and colours."""
    places = cells(rng, spec)
    colours = [c for c in COLOURS if stands_out(c, spec.ground.colour)]
    chosen = rng.sample(places, min(number, len(places)))
    return replace(spec, shapes=tuple(data.shape_at(rng, rng.choice(SHAPES), rng.choice(colours), c) for c in chosen))


def canvas(rng: random.Random, need: Need, least: int = 1) -> PictureSpec:
    """A ground for shapes with at least `least` tokens."""
    if need.grids:
        large = [g for g in need.grids if g[0] * g[1] >= least] or [max(need.grids, key=lambda g: g[0] * g[1])]
        rows, columns = rng.choice(large)
    else:
        rows, columns = rng.randint(1, 7), rng.randint(1, 7)
        while rows * columns < least:
            rows, columns = rows + 1, columns + 1
    odd = need.look.odd
    return PictureSpec(
        data.side(rng, columns, odd), data.side(rng, rows, odd), shape_ground(rng, need.look), rng.randrange(1 << 30)
    )


def one_kind(rng: random.Random, need: Need, number: int) -> PictureSpec:
    """A picture with up to `number` equal shapes."""
    while True:
        spec = canvas(rng, need, number)
        for n in range(number, 0, -1):
            shaped = with_shapes(rng, spec, n, None, None)
            if shaped is not None:
                return shaped


def fill(text: str, shape: ShapeSpec, language: str) -> str:
    return text.format(
        shape=questions.shape_word(shape.kind, language), colour=questions.colour_word(shape.colour, language)
    )


def colour(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """What colour is it? Of shapes, a quarter of the time of text."""
    language = language_of(rng, need)
    if rng.random() < 0.25:
        spec, name = inked(rng, fonts, need)
        return Sample(
            "colour",
            (spec,),
            (ask(wording(rng, questions.INK, language, need)),),
            questions.colour_word(name, language),
            language,
        )
    spec = one_kind(rng, need, rng.choice((1, 1, 1, 2, 3)))
    shape = spec.shapes[0]
    question = fill(wording(rng, questions.COLOUR, language, need), shape, language)
    return Sample("colour", (spec,), (ask(question),), questions.colour_word(shape.colour, language), language)


def inked(rng: random.Random, fonts: Fonts, need: Need) -> tuple[PictureSpec, str]:
    """A picture of text in a named colour, and the name."""
    while True:
        spec, _ = drawn_text(rng, fonts, need)
        name = data.named_ink(rng, spec.ground.colour)
        if name is not None and spec.ground.kind in ("plain", "noisy"):
            return replace(spec, lines=tuple(replace(line, colour=COLOURS[name]) for line in spec.lines)), name


def shape(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """What shape is it?"""
    language = language_of(rng, need)
    spec = one_kind(rng, need, rng.choice((1, 1, 1, 2)))
    first = spec.shapes[0]
    question = fill(wording(rng, questions.SHAPE, language, need), first, language)
    return Sample("shape", (spec,), (ask(question),), questions.shape_word(first.kind, language), language)


def count(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """How many? Of equal shapes; later also of one kind or colour among others."""
    language = language_of(rng, need)
    if rng.random() < 0.65:
        spec = one_kind(rng, need, rng.randint(1, 6))
        question = fill(wording(rng, questions.COUNT, language, need), spec.shapes[0], language)
        return Sample("count", (spec,), (ask(question),), str(len(spec.shapes)), language)
    spec = mixed_shapes(rng, canvas(rng, need, 4), rng.randint(2, 6))
    asked = rng.choice(spec.shapes)
    text = wording(rng, questions.COUNT, language, need)
    alike = [
        s
        for s in spec.shapes
        if ("{shape}" not in text or s.kind == asked.kind) and ("{colour}" not in text or s.colour == asked.colour)
    ]
    return Sample("count", (spec,), (ask(fill(text, asked, language)),), str(len(alike)), language)


def relative(box: tuple[int, int, int, int], spec: PictureSpec) -> list[int]:
    """Pixels -> 0..1000 of the picture's sides."""
    return [round(1000 * v / (spec.width, spec.height)[n % 2]) for n, v in enumerate(box)]


def boxes_answer(shapes: Sequence[ShapeSpec], spec: PictureSpec, language: str) -> str:
    found = [{"bbox_2d": relative(s.box, spec), "label": questions.label(s.colour, s.kind, language)} for s in shapes]
    return json.dumps(found, ensure_ascii=False)


def boxes(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """Where are the shapes? From top to bottom, then from left to right."""
    language = language_of(rng, need)
    spec = mixed_shapes(rng, canvas(rng, need, 2), rng.choice((1, 1, 2, 2, 3)))
    asked = rng.choice(spec.shapes)
    text = wording(rng, questions.BOXES, language, need)
    wanted = [
        s
        for s in spec.shapes
        if ("{shape}" not in text or s.kind == asked.kind) and ("{colour}" not in text or s.colour == asked.colour)
    ]
    wanted.sort(key=lambda s: (s.box[1] + s.box[3], s.box[0]))
    return Sample("boxes", (spec,), (ask(fill(text, asked, language)),), boxes_answer(wanted, spec, language), language)


# ---------------------------------------------------------------- several pictures, several turns


def pick(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """Two or three pictures, one of them asked for."""
    language, number = language_of(rng, need), rng.choice((2, 2, 3))
    n = rng.randrange(number)
    if rng.random() < 0.7:
        drawn = [drawn_text(rng, fonts, replace(need, longest=min(need.longest, 8))) for _ in range(number)]
        specs, group, answer = [s for s, _ in drawn], questions.PICK_TEXT, drawn[n][1][0]
    else:
        specs = [one_kind(rng, need, 1) for _ in range(number)]
        first = specs[n].shapes[0]
        group, answer = (
            (questions.PICK_COLOUR, questions.colour_word(first.colour, language))
            if rng.random() < 0.6
            else (questions.PICK_SHAPE, questions.shape_word(first.kind, language))
        )
    question = wording(rng, group, language, need).format(n=n + 1, nth=questions.ORDINAL[n], zh=questions.ORDINAL_ZH[n])
    return Sample("pick", tuple(specs), (ask(question, number),), answer, language)


def followup(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """A first question with its answer, then another about the same picture."""
    language = language_of(rng, need)
    if rng.random() < 0.6:
        spec, name = inked(rng, fonts, need)
        pairs = [
            (wording(rng, questions.TEXT, language, need), "\n".join(line.text for line in spec.lines)),
            (wording(rng, questions.INK, language, need), questions.colour_word(name, language)),
        ]
    else:
        spec = one_kind(rng, need, rng.randint(1, 4))
        first = spec.shapes[0]
        pairs = [
            (
                fill(wording(rng, questions.COLOUR, language, need), first, language),
                questions.colour_word(first.colour, language),
            ),
            (
                fill(wording(rng, questions.SHAPE, language, need), first, language),
                questions.shape_word(first.kind, language),
            ),
            (fill(wording(rng, questions.COUNT, language, need), first, language), str(len(spec.shapes))),
        ]
    before, after = rng.sample(pairs, 2)
    messages = (ask(before[0]), {"role": "assistant", "content": before[1]}, {"role": "user", "content": after[0]})
    return Sample("followup", (spec,), messages, after[1], language)


def extract(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """A label with a price and a date: both as JSON, now and then one of them in plain words."""
    language, amount, day = language_of(rng, need), data.price(rng), data.date(rng)
    texts = [amount, day] if rng.random() < 0.5 else [day, amount]
    fitted = replace(need, grids=tuple(g for g in need.grids if g[0] >= 2 and g[1] >= 4))
    look = replace(need.look, sizes=(max(14, min(need.look.sizes[0], 18)), min(need.look.sizes[1], 22)))
    spec = None
    while spec is None:
        fixed = _fixed(rng, fonts, replace(fitted, look=look), texts) if not fitted.grids else dict(need.fixed)
        spec = data.text_picture(rng, fonts, look, texts, grids=fitted.grids, **fixed)
        if spec is None and rng.random() < 0.05:
            fitted = replace(fitted, grids=())
    which = rng.random()
    if which < 0.7:
        question, answer = wording(rng, questions.EXTRACT, language, need), json.dumps({"price": amount, "date": day})
    elif which < 0.85:
        question, answer = wording(rng, questions.PRICE, language, need), amount
    else:
        question, answer = wording(rng, questions.DATE, language, need), day
    return Sample("extract", (spec,), (ask(question),), answer, language)


def ground_word(ground: Ground, language: str) -> str:
    """How a caption calls the ground: white, light, dark, black or coloured."""
    low, high = min(ground.colour), max(ground.colour)
    name = (
        "white"
        if low >= 245
        else "light"
        if low >= 190
        else "black"
        if high <= 20
        else "dark"
        if high <= 75
        else "coloured"
    )
    chinese = {"white": "白色", "light": "浅色", "black": "黑色", "dark": "深色", "coloured": "彩色"}
    return name if language == EN else chinese[name]


def caption(rng: random.Random, fonts: Fonts, need: Need) -> Sample:
    """One sentence: equal shapes, a text, or nothing, on the ground's colour."""
    language, kind = language_of(rng, need), rng.random()
    if kind < 0.45:
        spec = one_kind(rng, need, rng.randint(1, 5))
    elif kind < 0.9:
        spec, _ = drawn_text(rng, fonts, replace(need, longest=min(need.longest, 9)))
    else:
        spec = empty(rng, need)
    question = wording(rng, questions.CAPTION, language, need)
    return Sample("caption", (spec,), (ask(question),), sentence(spec, language), language)


def sentence(spec: PictureSpec, language: str) -> str:
    ground = ground_word(spec.ground, language)
    if spec.shapes:
        n, first = len(spec.shapes), spec.shapes[0]
        if language == ZH:
            return f"{ground}背景上有{questions.NUMBER_ZH[n]}{questions.label(first.colour, first.kind, ZH)}。"
        plural = "" if n == 1 else "s"
        return f"{questions.NUMBER[n]} {first.colour} {first.kind}{plural} on a {ground} background."
    if spec.lines:
        text = " ".join(line.text for line in spec.lines)
        return f"{ground}背景上有文字“{text}”。" if language == ZH else f'The text "{text}" on a {ground} background.'
    return f"空白图片，{ground}背景。" if language == ZH else f"An empty picture with a {ground} background."


TASKS: dict[str, Callable[[random.Random, Fonts, Need], Sample]] = {
    "text": read,
    "blank": blank,
    "colour": colour,
    "shape": shape,
    "count": count,
    "boxes": boxes,
    "pick": pick,
    "followup": followup,
    "extract": extract,
    "caption": caption,
}


def garnish(rng: random.Random, sample: Sample, share: float) -> Sample:
    """Now and then a system message or the question before the picture (`share` of 1: 5 % and 10 %)."""
    messages = list(sample.messages)
    if rng.random() < 0.10 * share and isinstance(messages[0]["content"], list):
        parts = messages[0]["content"]
        messages[0] = {"role": "user", "content": [parts[-1], *parts[:-1]]}
    if rng.random() < 0.05 * share:
        messages.insert(0, {"role": "system", "content": rng.choice(questions.SYSTEM)})
    return replace(sample, messages=tuple(messages))
