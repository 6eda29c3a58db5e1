"""Specs -> arrays: pictures stacked by grid, slot targets for the vision stage, token rows for the joint stage.

Legend: V merged tokens of all pictures, S slots of a token.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from galago.bench.pictures import Fonts, PictureSpec, render
from train import data, tasks, tokenizer
from train.alphabet import ALPHABET

SLOTS = 8
CLASS = {char: n + 1 for n, char in enumerate(ALPHABET)}  # 0: nothing


def pixels(spec: PictureSpec, fonts: Fonts) -> np.ndarray:
    """uint8 [height, width, 3], resized as the processor does."""
    image, size = render(spec, fonts), data.resized(spec.width, spec.height)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(image)


def slots(spec: PictureSpec, fonts: Fonts) -> np.ndarray:
    """int64 [rows * columns, S]: the characters whose centres lie in each token, from left to right, line by line."""
    width, height = data.resized(spec.width, spec.height)
    rows, columns = height // data.UNIT, width // data.UNIT
    target = np.zeros((rows * columns, SLOTS), dtype=np.int64)
    used = [0] * (rows * columns)
    for line in spec.lines:
        row = min(rows - 1, max(0, int((line.y - 0.34 * line.size_px) * height / spec.height) // data.UNIT))
        edges = data.edges(fonts, line.font, line.size_px, line.text)
        for n, char in enumerate(line.text):
            centre = (line.x + (edges[n] + edges[n + 1]) / 2) * width / spec.width
            token = row * columns + min(columns - 1, max(0, int(centre) // data.UNIT))
            if used[token] < SLOTS:
                target[token, used[token]] = CLASS[char]
                used[token] += 1
    return target


@dataclass(slots=True)
class Stacked:
    """Pictures grouped by grid. `stacks`: uint8 [K, height, width, 3] each; `order`: which picture stands where."""

    stacks: list[np.ndarray]
    order: list[int]
    slots: np.ndarray  # [V, S]


def stack(specs: list[PictureSpec], fonts: Fonts) -> Stacked:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for n, spec in enumerate(specs):
        groups[data.resized(spec.width, spec.height)].append(n)
    order = [n for members in groups.values() for n in members]
    stacks = [np.stack([pixels(specs[n], fonts) for n in members]) for members in groups.values()]
    return Stacked(stacks, order, np.concatenate([slots(specs[n], fonts) for n in order]))


def strip_batch(rng: random.Random, fonts: Fonts, look: data.Look, patches: int, rows: int, longest: int) -> Stacked:
    """The vision stage: pictures full of text, about `patches` patches in all, at most `rows` tokens high."""
    grids = [
        (rng.choices(range(1, rows + 1), [1 / n for n in range(1, rows + 1)])[0], rng.randint(2, 8)) for _ in range(5)
    ]
    grids.append((1, rng.randint(3, 6)))
    specs: list[PictureSpec] = []
    while patches > 0:
        n = 1 if rows == 1 else rng.choices((1, 2, 3), (0.5, 0.35, 0.15))[0]
        texts = [data.text_of(rng, rng.randint(1 if longest < 5 else 2, longest)) for _ in range(n)]
        spec = data.text_picture(rng, fonts, look, texts, grids=grids)
        while spec is None:
            texts = [texts[0][: max(1, len(texts[0]) * 2 // 3)].strip() or "A"]
            spec = data.text_picture(rng, fonts, look, texts, grids=grids)
        specs.append(spec)
        w, h = data.resized(spec.width, spec.height)
        patches -= w * h // 256
    return stack(specs, fonts)


# ---------------------------------------------------------------- the joint stage


@dataclass(slots=True)
class Row:
    """One conversation as ids. positions: int64 [3, n]; spans: (first id, rows, columns in tokens) of each picture."""

    ids: list[int]
    positions: np.ndarray
    spans: list[tuple[int, int, int]]


def prompt_row(messages: Sequence[tasks.Message], grids: Sequence[tuple[int, int]]) -> Row:
    """The chat template by hand: control tokens by id, each run of text between them encoded on its own.

    grids: (rows, columns) in tokens of the pictures, in order. Ends with the generation prompt.
    """
    row, left, run = Row([], np.zeros((3, 0), np.int64), []), list(grids), ""
    places: list[np.ndarray] = []
    position = 0

    def text(ids: Sequence[int]) -> None:
        nonlocal position
        row.ids.extend(ids)
        places.append(np.broadcast_to(np.arange(position, position + len(ids)), (3, len(ids))))
        position += len(ids)

    for message in messages:
        text([tokenizer.control("<|im_start|>")])
        run = message["role"] + "\n"
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                run += part["text"]
                continue
            text(
                [*tokenizer.encode(run), tokenizer.control("<|vision_start|>")]
                if run
                else [tokenizer.control("<|vision_start|>")]
            )
            rows, columns = left.pop(0)
            row.spans.append((len(row.ids), rows, columns))
            row.ids.extend([tokenizer.control("<|image_pad|>")] * (rows * columns))
            r, c = np.divmod(np.arange(rows * columns), columns)
            places.append(position + np.stack([np.zeros_like(r), r, c]))
            position += max(rows, columns)
            text([tokenizer.control("<|vision_end|>")])
            run = ""
        text([*tokenizer.encode(run), tokenizer.control("<|im_end|>"), *tokenizer.encode("\n")])
    text([tokenizer.control("<|im_start|>"), *tokenizer.encode("assistant\n")])
    row.positions = np.concatenate(places, axis=1)
    return row


@dataclass(slots=True)
class Part:
    """Conversations of similar length side by side, padded on the right (causal attention never looks there)."""

    members: list[int]  # which samples
    ids: np.ndarray  # [B, L]
    positions: np.ndarray  # [3, B, L]
    lengths: np.ndarray  # [B]
    take: np.ndarray  # which of the merged tokens of all pictures (in stacked order) belong here
    where: np.ndarray  # their flat places in [B * L]
    asked: np.ndarray  # [A] flat places whose next token is learned
    wanted: np.ndarray  # [A] that token
    task: np.ndarray  # [A] index of the task each of them belongs to


@dataclass(slots=True)
class Batch:
    pictures: Stacked
    parts: list[Part]


def grid_of(spec: PictureSpec) -> tuple[int, int]:
    """(rows, columns) in tokens."""
    width, height = data.resized(spec.width, spec.height)
    return height // data.UNIT, width // data.UNIT


TASK_NAMES = tuple(tasks.TASKS)


def conversation_batch(samples: Sequence[tasks.Sample], fonts: Fonts, *, answers: bool = True) -> Batch:
    """Samples -> arrays. With `answers` false the rows end with the generation prompt."""
    end = tokenizer.control("<|im_end|>")
    rows = [prompt_row(s.messages, [grid_of(p) for p in s.pictures]) for s in samples]
    replies = [[*tokenizer.encode(s.answer), end] if answers else [] for s in samples]
    first, n = [], 0  # number of each sample's first picture
    for sample in samples:
        first.append(n)
        n += len(sample.pictures)
    pictures = stack([p for s in samples for p in s.pictures], fonts)
    starts = np.zeros(n + 1, np.int64)  # where each picture's tokens start in stacked order
    sizes = [rows[b].spans[k][1] * rows[b].spans[k][2] for b in range(len(rows)) for k in range(len(rows[b].spans))]
    offset = 0
    for number in pictures.order:
        starts[number] = offset
        offset += sizes[number]
    tokens = [
        [starts[first[b] + k] + np.arange(sizes[first[b] + k]) for k in range(len(row.spans))]
        for b, row in enumerate(rows)
    ]
    lengths = [len(r.ids) + len(a) for r, a in zip(rows, replies, strict=True)]
    return Batch(pictures, [_part(m, samples, rows, replies, tokens) for m in split_by_length(lengths)])


def split_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Members of one part, or of two when cutting the longer rows off saves a fifth of the padded tokens."""
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    whole = len(order) * lengths[order[-1]]
    cost, cut = min(
        (c * lengths[order[c - 1]] + (len(order) - c) * lengths[order[-1]], c) for c in range(1, len(order) + 1)
    )
    return [order[:cut], order[cut:]] if cut < len(order) and cost < 0.8 * whole else [order]


def _part(members: list[int], samples: Sequence[tasks.Sample], rows: list[Row], replies: list[list[int]],
          tokens: list[list[np.ndarray]]) -> Part:  # fmt: skip
    longest = max(len(rows[b].ids) + len(replies[b]) for b in members)
    ids = np.full((len(members), longest), tokenizer.control("<|endoftext|>"), np.int64)
    positions = np.zeros((3, len(members), longest), np.int64)
    asked: list[int] = []
    wanted: list[int] = []
    task: list[int] = []
    where: list[np.ndarray] = []
    for at, b in enumerate(members):
        row, reply = rows[b], replies[b]
        n, m = len(row.ids), len(row.ids) + len(reply)
        ids[at, :n], ids[at, n:m] = row.ids, reply
        positions[:, at, :n] = row.positions
        positions[:, at, n:] = row.positions[:, -1].max() + 1 + np.arange(longest - n)
        asked.extend(range(at * longest + n - 1, at * longest + m - 1))
        wanted.extend(reply)
        task.extend([TASK_NAMES.index(samples[b].task)] * len(reply))
        where.extend(at * longest + start + np.arange(r * c) for start, r, c in row.spans)
    lengths = np.array([len(rows[b].ids) + len(replies[b]) for b in members])
    take = np.concatenate([t for b in members for t in tokens[b]])
    return Part(members, ids, positions, lengths, take, np.concatenate(where), np.array(asked, np.int64),
                np.array(wanted, np.int64), np.array(task, np.int64))  # fmt: skip
