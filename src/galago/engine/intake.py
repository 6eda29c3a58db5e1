"""From a request to what the model can run: checked, planned, tokenised, decoded - in this order.

Sizes are read from headers first, so that the length of the prompt is known and refused before a pixel is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from galago.errors import BadRequest, ContextTooLong
from galago.images.decode import TargetSize, decode, probe
from galago.models.qwen3_vl.processor import ImagePlan, ProcessorConfig, patchify, plan, report
from galago.tokenizer import ImageTokens, Tokenizer
from galago.types import ImagePart, ImageReport, Message, Prompt, Request, SamplingParams, TextPart


@dataclass(frozen=True, slots=True)
class PreparedPicture:
    """A picture ready for the vision tower. patches: [N, patch values] float32."""

    plan: ImagePlan
    patches: NDArray[np.float32]
    report: ImageReport


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the model."""

    prompt: Prompt
    pictures: tuple[PreparedPicture, ...]
    notices: tuple[str, ...]


def prepare(
    request: Request,
    tokenizer: Tokenizer,
    processor: ProcessorConfig,
    context: int,
    progress: Callable[[int, int], None],
) -> Prepared:
    """Check and decode a request. context: the model's limit in tokens; progress(done, total) counts pictures.

    Raises BadRequest, BadImage or ContextTooLong.
    """
    check(request)
    parts = [part for message in request.messages for part in message.parts if isinstance(part, ImagePart)]
    plans = [_plan(part, processor) for part in parts]
    prompt = tokenizer.encode_chat(request.messages, [ImageTokens(p.tokens, p.grid, b"") for p in plans])
    _check_context(prompt, request.sampling, parts, plans, context)
    pictures, keys, notices = [], [], []
    for index, (part, picture_plan) in enumerate(zip(parts, plans, strict=True)):
        progress(index, len(parts))
        target = TargetSize(picture_plan.used_width, picture_plan.used_height)
        picture = decode(part.data, target=target, name=part.name)
        pictures.append(
            PreparedPicture(
                picture_plan,
                patchify(picture, picture_plan, processor),
                report(picture.width, picture.height, picture_plan),
            )
        )
        keys.append(picture.key)
        notices += [f"{part.name}: {notice}" for notice in picture.notices]
    if parts:
        progress(len(parts), len(parts))
    spans = tuple(replace(span, key=key) for span, key in zip(prompt.spans, keys, strict=True))
    return Prepared(replace(prompt, spans=spans), tuple(pictures), tuple(notices))


def check(request: Request) -> None:
    """What can be refused without looking at a picture: an empty question."""
    if not request.messages or _is_empty(request.messages[-1]):
        raise BadRequest("the question is empty: ask something about the picture")


def _is_empty(message: Message) -> bool:
    """Whether a message asks nothing; a picture alone is not a question either."""
    return not any(part.text.strip() for part in message.parts if isinstance(part, TextPart))


def _plan(part: ImagePart, processor: ProcessorConfig) -> ImagePlan:
    head = probe(part.data, name=part.name)
    return plan(head.width, head.height, part.options, processor, part.name)


def _check_context(
    prompt: Prompt, sampling: SamplingParams, parts: Sequence[ImagePart], plans: Sequence[ImagePlan], context: int
) -> None:
    needed = len(prompt.ids) + sampling.max_tokens
    if needed <= context:
        return
    pictures = sum(p.tokens for p in plans)
    each = ", ".join(f"{part.name} {p.tokens:,}" for part, p in zip(parts, plans, strict=True))
    raise ContextTooLong(
        f"the request needs {needed:,} tokens, the model holds {context:,}: {len(prompt.ids) - pictures:,} of text, "
        f"{pictures:,} of pictures{f' ({each})' if each else ''}, {sampling.max_tokens:,} for the answer; "
        "use fewer or smaller pictures, a lower detail or fewer max tokens"
    )
