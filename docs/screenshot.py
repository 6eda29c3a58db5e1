"""Draws docs/images: the label that `make demo` asks about, and a terminal that asks about it.

    python docs/screenshot.py

The label is drawn from a spec, the terminal shows what the command really printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from galago.bench.pictures import Fonts, Ground, PictureSpec, TextLine, render

IMAGES = Path(__file__).parent / "images"
LABEL = PictureSpec(
    width=256,
    height=96,
    ground=Ground("plain", (252, 246, 226)),
    lines=(
        TextLine("GREEN TEA", "Go-Regular.ttf", 26, 28, 40, (30, 60, 35)),
        TextLine("$4.50", "Karla-Bold.otf", 28, 28, 78, (160, 40, 30)),
    ),
)
QUESTIONS = ("What is written here?", "图片里写了什么?")


def ask(question: str) -> str:
    command = [sys.executable, "-m", "galago", "ask", "--model", "tiny", str(IMAGES / "label.png"), question]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    render(LABEL, Fonts()).save(IMAGES / "label.png")
    answers = [ask(question) for question in QUESTIONS]
    (IMAGES / "label.txt").write_text(answers[0], encoding="utf-8")
    console = Console(record=True, width=76, file=sys.stderr)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        console.print(Text("$ ", "green"), Text(f'galago ask --model tiny label.png "{question}"', "bold"), sep="")
        console.print(answer)
    console.save_svg(str(IMAGES / "ask.svg"), title="galago")


if __name__ == "__main__":
    main()
