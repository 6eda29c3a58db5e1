"""What a person sees on a terminal: progress while waiting, the account afterwards, in Chinese or English.

The answer goes to stdout and nothing else does; the rest goes to stderr. Progress is drawn only when stderr is a
terminal, and is wiped before the first word of the answer when that goes to a terminal too. Names of files and models
are printed as they are: nothing in them is markup or moves the cursor.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status
from rich.table import Table

from galago import config
from galago.models.hub import ModelEntry
from galago.types import Answer, Progress

if TYPE_CHECKING:  # measuring imports torch, which `galago --help` must not
    from galago.bench.quality import Score

ENGLISH = {
    "load": "loading the model",
    "decode": "reading the picture",
    "vision": "looking at the picture",
    "prefill": "reading the question",
    "answer": "answering: token {count}, {speed:.1f} tokens/s",
    "answered": "{count} tokens, {speed:.1f} tokens/s",
    "ttft": "first token",
    "tpot": "per token",
    "e2e": "in all",
    "speed": "tokens/s",
    "tokens": "tokens: {prompt} in ({image} of pictures), {answer} out",
    "picture": "picture {number}: {width}x{height}, seen as {used_width}x{used_height}, {tokens} tokens",
}
CHINESE = {
    "load": "正在加载模型",
    "decode": "正在读取图片",
    "vision": "正在看图",
    "prefill": "正在读问题",
    "answer": "正在回答:第 {count} 个词元,{speed:.1f} 词元/秒",
    "answered": "{count} 个词元,{speed:.1f} 词元/秒",
    "ttft": "首个词元",
    "tpot": "每个词元",
    "e2e": "总计",
    "speed": "词元/秒",
    "tokens": "词元:输入 {prompt}(其中图片 {image}),输出 {answer}",
    "picture": "图片 {number}:{width}x{height},模型看到 {used_width}x{used_height},{tokens} 个词元",
}


def words() -> dict[str, str]:
    """The phrases of the user's language."""
    return CHINESE if config.language().startswith("zh") else ENGLISH


class Waiting:
    """A line that says what is going on until the first word arrives. Use as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._words = words()
        self._status: Status | None = None
        self._shown = ""
        self._tokens = 0
        self._first = 0.0  # when the first token came

    def __enter__(self) -> Waiting:
        if self._console.is_terminal:
            self._status = self._console.status(self._words["load"] + " …")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def show(self, progress: Progress) -> None:
        """Say how far a stage is."""
        percent = f"{100 * progress.done // max(progress.total, 1)} %"
        count = percent if progress.stage == "prefill" else f"{progress.done}/{progress.total}"
        self._say(f"{self._words[progress.stage]} {count}")

    def token(self) -> None:
        """Count a token of the answer: shown while its text goes elsewhere, to a file or into JSON."""
        now = time.perf_counter()
        self._tokens += 1
        if self._tokens == 1:
            self._first = now
        speed = (self._tokens - 1) / max(now - self._first, 1e-9)
        self._say(self._words["answer"].format(count=self._tokens, speed=speed))

    def stop(self) -> None:
        """Wipe the line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, line: str) -> None:
        if self._status is not None and line != self._shown:
            self._shown = line
            self._status.update(line)


def show_bytes(done: int, total: int) -> None:
    """A counter of bytes written, redrawn in place; nothing when stderr is not a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        print(f"\r{done / 1e9:5.2f} of {total / 1e9:.2f} GB", end=end, file=sys.stderr, flush=True)


def print_stats(answer: Answer, choices: str) -> None:
    """The account of an answer: choices made, pictures, tokens, stage times."""
    text, console = words(), Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(choices, style="dim")
    for number, image in enumerate(answer.images, 1):
        sizes = {name: getattr(image, name) for name in ("width", "height", "used_width", "used_height", "tokens")}
        console.print(text["picture"].format(number=number, **sizes))
    usage, timings = answer.usage, answer.timings
    console.print(
        text["tokens"].format(prompt=usage.prompt_tokens, image=timings.image_tokens, answer=usage.completion_tokens)
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    for stage in ("decode", "vision", "prefill", "ttft", "tpot", "e2e"):
        table.add_row(text[stage], f"{getattr(timings, stage):,.1f} ms")
    if timings.tpot:
        table.add_row(text["speed"], f"{1000 / timings.tpot:,.1f}")
    console.print(table)


def print_speed(answer: Answer) -> None:
    """One faint line under an answer, where stderr is a terminal."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and answer.timings.tpot:
        count, speed = answer.usage.completion_tokens, 1000 / answer.timings.tpot
        console.print(words()["answered"].format(count=count, speed=speed), style="dim")


def print_notices(notices: tuple[str, ...]) -> None:
    """What the user should know about the pictures."""
    for notice in notices:
        print(f"galago: {_printable(notice)}", file=sys.stderr)


def print_error(message: str) -> None:
    """One line, always."""
    print(f"galago: {_printable(message)}", file=sys.stderr)


def visible(text: str) -> str:
    """An answer as a terminal may show it: without escape and other control characters, which could rewrite the screen.

    Joiners and marks inside emoji and scripts are left alone.
    """
    return "".join(letter for letter in text if letter in "\n\t" or unicodedata.category(letter) != "Cc")


def _printable(message: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))


def print_models(entries: Sequence[ModelEntry]) -> None:
    """Names, sizes on disk and folders, one model a line."""
    table = Table(box=None, padding=(0, 1))
    for title in ("name", "model", "on disk", "folder"):
        table.add_column(title, overflow="fold")
    for entry in entries:
        size = f"{entry.bytes / 1e9:.2f} GB" if entry.folder else "-"
        table.add_row(entry.name, entry.repo or "bundled", size, str(entry.folder or ""))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # a folded path is of no use to the next program
    console.print(table)


def counter(total: int) -> Callable[[int], None]:
    """Redraws "done of total" in place; does nothing when stderr is not a terminal."""

    def show(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done} / {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


def print_scores(scores: Sequence[Score], choices: str) -> None:
    """Exact answers and right characters in percent, one cell a line."""
    console, table = Console(highlight=False), Table(box=None, padding=(0, 1))
    for title in ("cell", "questions", "exact %", "characters %"):
        table.add_column(title, justify="left" if title == "cell" else "right")
    for score in scores:
        table.add_row(score.name, str(score.questions), f"{score.exact:.1f}", f"{score.characters:.1f}")
    console.print(choices, style="dim")
    console.print(table)
