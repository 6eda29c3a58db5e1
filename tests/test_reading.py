"""The main job, end to end: a picture of a code goes in, the right text comes out of the bundled model.

The codes are drawn anew in every run, so nothing can be learned by heart; the seed is printed. Pictures are drawn here
with plain Pillow, not by the generator that made the training set. Blank pictures guard against a model (or a test)
that answers without looking.
"""

from __future__ import annotations

import io
import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from galago.bench.pictures import BUNDLED_FONTS
from galago.engine.core import Engine
from galago.models.formats import format_by_name
from galago.models.hub import bundled_folder
from galago.types import Answer, ImagePart, Message, Request, SamplingParams, TextPart

ROOT = Path(__file__).parent.parent
FONTS = ("Go-Regular.ttf", "Inconsolata.otf", "Caladea-Regular.ttf", "Karla-Bold.otf")
QUESTIONS = ("What is written here?", "Read the text.", "图片里写了什么?", "读出图中的文字。")
CODES = 30
ENOUGH = 20


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine(bundled_folder(), format_by_name("fp32"), threads=1)


@pytest.fixture(scope="module")
def draw() -> random.Random:
    seed = int(os.environ.get("GALAGO_TEST_SEED") or random.SystemRandom().randrange(10**9))
    print(f"reading test: GALAGO_TEST_SEED={seed}")
    return random.Random(seed)


def code(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_uppercase + string.digits, k=draw.randint(3, 7)))


def picture(draw: random.Random, text: str) -> bytes:
    """`text` in 18 to 28 px type, dark on light, somewhere in a picture of one line."""
    font = ImageFont.truetype(BUNDLED_FONTS / draw.choice(FONTS), draw.randint(18, 28))
    left, top, right, bottom = font.getbbox(text)
    size = (int(right - left) + draw.randint(16, 64), draw.randint(40, 72))
    image = Image.new("RGB", size, tuple(draw.randint(225, 255) for _ in "rgb"))
    x = draw.randint(6, size[0] - int(right - left) - 6) - left
    y = draw.randint(4, size[1] - int(bottom - top) - 4) - top
    ImageDraw.Draw(image).text((x, y), text, font=font, fill=tuple(draw.randint(0, 70) for _ in "rgb"))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def ask(engine: Engine, data: bytes, question: str) -> str:
    request = Request((Message("user", (ImagePart(data), TextPart(question))),), SamplingParams(max_tokens=32))
    return next(event for event in engine.generate(request) if isinstance(event, Answer)).text


def test_tiny_reads_codes_and_not_blanks(tiny: Engine, draw: random.Random) -> None:
    codes = [code(draw) for _ in range(CODES)]
    questions = [draw.choice(QUESTIONS) for _ in codes]
    read = [ask(tiny, picture(draw, text), question) for text, question in zip(codes, questions, strict=True)]
    blank = [
        ask(tiny, picture(draw, " " * len(text)), question) for text, question in zip(codes, questions, strict=True)
    ]
    print(*(f"{wanted} -> {found}" for wanted, found in zip(codes, read, strict=True)), sep="\n")
    assert sum(a == b for a, b in zip(codes, read, strict=True)) >= ENOUGH
    assert not any(wanted in found for wanted, found in zip(codes, blank, strict=True))


def test_the_command_reads_the_shipped_picture() -> None:
    """What `make demo` runs."""
    command = [
        sys.executable,
        "-m",
        "galago",
        "ask",
        "--model",
        "tiny",
        "docs/images/label.png",
        "What is written here?",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "docs/images/label.txt").read_text()
