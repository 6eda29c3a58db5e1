"""Nouns that every layer shares. Data only: frozen, slotted, typed, no torch, no behaviour beyond arithmetic.

A `Request` is what a caller wants, a `Prompt` what the model reads, a `TokenEvent` what comes back, `Timings` what it
cost. Times are milliseconds. Sizes are pixels, width before height.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command imports this module, and NumPy takes longer to load than all else of `--help`
    import numpy as np
    from numpy.typing import NDArray

Role = str  # "system" | "user" | "assistant" | "tool": the names the chat template knows


class Detail(StrEnum):
    """How many pixels of a picture the model gets to see."""

    FAST = "fast"  # always 448x448: 196 tokens, aspect not kept
    LOW = "low"  # <= 256 image tokens
    AUTO = "auto"  # <= 768
    HIGH = "high"  # <= 1,280; what text and boxes ask for


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # the model's end token or a stop string
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The pixel budget of one picture. `min_pixels` and `max_pixels` override `detail`; None means its default."""

    detail: Detail = Detail.AUTO
    min_pixels: int | None = None
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture: upright, sRGB, opaque.

    pixels: [height, width, 3] uint8. May be smaller than the original when a JPEG was decoded at a reduced scale.
    width, height: the upright original's size, to which boxes refer.
    key: SHA-256 over the upright pixels and their size, 32 bytes; equal keys mean equal pixels.
    notices: what the user should know, such as "first of 3 frames used".
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int
    key: bytes
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of text in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture in a message, as encoded bytes and the budget it may use. `name` appears in error messages."""

    data: bytes
    options: ImageOptions = ImageOptions()
    name: str = "picture"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    parts: tuple[TextPart | ImagePart, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A picture as the vision tower sees it: rows x columns of patches, both multiples of the merge size."""

    rows: int
    columns: int

    @property
    def patches(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Where a picture's tokens stand in a prompt: ids[start : start + tokens] are image tokens."""

    start: int
    tokens: int
    grid: Grid
    key: bytes  # content key of the picture, see Picture.key


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. ids: [T] token ids with every picture expanded; spans in order of appearance."""

    ids: tuple[int, ...]
    spans: tuple[ImageSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How an answer is drawn. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch those filters off.

    presence and frequency penalties are OpenAI's (over generated tokens), repetition is the CTRL paper's factor over
    prompt and answer. seed None draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation that wants an answer."""

    messages: tuple[Message, ...]
    sampling: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True)
class ImageReport:
    """What was done with a picture: upright original size, size the model saw, tokens it took."""

    width: int
    height: int
    used_width: int
    used_height: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: image tokens are part of the prompt, the model's end token is part of the completion."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds each stage took. ttft: request to first token; tpot: mean per token after the first; e2e: all."""

    queue: float = 0.0
    decode: float = 0.0
    vision: float = 0.0
    prefill: float = 0.0
    ttft: float = 0.0
    tpot: float = 0.0
    e2e: float = 0.0
    image_tokens: int = 0
    cached_tokens: int = 0
    vision_cache_hits: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life: `done` of `total` units of a stage ("decode", "vision", "prefill") are finished."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token and the text that became certain with it.

    text may be empty (half a character, the start of a stop string); token is None for text that was held back and is
    released by the end of the answer.
    """

    token: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    images: tuple[ImageReport, ...] = ()
    notices: tuple[str, ...] = field(default=())
