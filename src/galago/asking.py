"""What `galago ask` does between reading its flags and printing: open a model, build a conversation, run it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from galago import config
from galago.config import Settings
from galago.errors import BadRequest
from galago.hardware import plan_threads
from galago.images.decode import probe
from galago.images.source import STDIN, load_file
from galago.models import hub
from galago.models.generation import GenerationDefaults, SamplingOverrides, sampling_params
from galago.terminal import Waiting, visible
from galago.types import Answer, Detail, ImageOptions, ImagePart, Message, Request, TextPart

if TYPE_CHECKING:  # torch takes a second to import: bad arguments are refused before
    from galago.engine.core import Engine

MAX_THREADS = 1024  # far more than any machine gains from; an absurd number would end the process inside OpenMP


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A loaded model, how it wants its answers drawn, and what was chosen for it and why."""

    name: str
    engine: Engine
    defaults: GenerationDefaults
    choices: str


def open_model(settings: Settings) -> OpenedModel:
    """Find, check and load the model of the settings. Raises ModelError, ModelNotFound or BadRequest."""
    _check(settings)
    config.bound_spinning()
    from galago.engine.core import Engine
    from galago.models.formats import AUTO, choose_format, format_by_name

    if settings.format != AUTO:
        format_by_name(settings.format)  # an unknown name is told before anything is downloaded
    folder = hub.resolve(settings.model, hub=settings.hub)
    fmt, why_format = choose_format(settings.format, folder)
    plan = plan_threads(settings.threads)
    defaults = GenerationDefaults.from_folder(folder)
    engine = Engine(folder, fmt, plan.threads)
    threads = f"{plan.threads} thread" + "s" * (plan.threads != 1)
    choices = f"{settings.model} · {fmt.name} ({why_format}) · {threads} ({plan.reason})"
    return OpenedModel(settings.model, engine, defaults, choices)


def _check(settings: Settings) -> None:
    """Refuse wrong values before anything is loaded, let alone downloaded."""
    if settings.threads is not None and not 1 <= settings.threads <= MAX_THREADS:
        raise BadRequest(f"threads = {settings.threads} is out of range: use a number from 1 to {MAX_THREADS}")
    if settings.hub not in hub.HUBS:
        raise BadRequest(f"hub {settings.hub} is not known: use one of {', '.join(hub.HUBS)}")


def split(words: Sequence[str], images: Sequence[str]) -> tuple[list[str], str]:
    """Picture files and the question: the last word is the question, what stands before it are pictures."""
    *files, question = words
    if os.path.isfile(question):  # Path.is_file raises for a question too long to be a name
        raise BadRequest(f'{question} is a file and no question follows it: galago ask {question} "What is this?"')
    if not question.strip():
        raise BadRequest("the question is empty: ask something about the picture")
    return [*files, *images], question


def image_options(detail: str, min_pixels: int | None, max_pixels: int | None) -> ImageOptions:
    """The pixel budget of the flags. Raises BadRequest for an unknown detail."""
    if detail not in list(Detail):
        raise BadRequest(f"detail {detail} is not known: use one of {', '.join(Detail)}")
    return ImageOptions(Detail(detail), min_pixels, max_pixels)


def conversation(files: Sequence[str], question: str, system: str | None, options: ImageOptions) -> tuple[Message, ...]:
    """One turn: the pictures, then the question (so that equal pictures share their prefix). Reads the files."""
    pictures = [_picture(name, options) for name in files]
    user = Message("user", (*pictures, TextPart(question)))
    return (user,) if system is None else (Message("system", (TextPart(system),)), user)


def _picture(file: str, options: ImageOptions) -> ImagePart:
    """Read a file and look at its header: most of what is wrong with pictures is told before a model is loaded."""
    name = "standard input" if file == STDIN else file
    data = load_file(file)
    probe(data, name=name)
    return ImagePart(data, options, name)


def run(
    opened: OpenedModel, messages: tuple[Message, ...], overrides: SamplingOverrides, waiting: Waiting, *, stream: bool
) -> Answer:
    """Generate the answer, writing its text to stdout as it comes when `stream`."""
    request = Request(messages, sampling_params(opened.defaults, overrides))
    shared = stream and sys.stdout is not None and sys.stdout.isatty()  # text and progress on one terminal
    for event in opened.engine.generate(request, waiting.show):
        if isinstance(event, Answer):
            answer = event
            continue
        if event.token is not None:
            waiting.token()
        if stream and event.text:
            if shared:
                waiting.stop()
            print(visible(event.text) if shared else event.text, end="", flush=True)
    if stream:
        print()
    return answer


def as_json(answer: Answer, opened: OpenedModel) -> str:
    """The answer as one JSON object: model, choices, text, finish_reason, usage, timings, images, notices."""
    usage = {**asdict(answer.usage), "total_tokens": answer.usage.total_tokens}
    body = {
        "model": opened.name,
        "choices": opened.choices,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": usage,
        "timings": {name: round(value, 3) for name, value in asdict(answer.timings).items()},
        "images": [asdict(image) for image in answer.images],
        "notices": list(answer.notices),
    }
    return json.dumps(body, ensure_ascii=False)
