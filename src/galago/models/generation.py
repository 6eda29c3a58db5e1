"""How a checkpoint wants its answers drawn (generation_config.json), and what a caller makes of that.

The numbers of the file hold unless the caller gives others. No file, or `do_sample` false, means greedy. Greedy drops
the checkpoint's penalties, which exist to keep sampling from repeating itself and would only distort the best answer;
penalties that the caller gives stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from galago.errors import BadRequest, ModelError
from galago.folder import JsonObject, read_json, token_ids
from galago.types import SamplingParams

# Qwen3-VL's model card asks for it when sampling; generation_config.json has no such field.
SAMPLING_PRESENCE_PENALTY: Final = 1.5

T = TypeVar("T")
Range = tuple[float, float]
NON_NEGATIVE: Final[Range] = (0.0, math.inf)
SHARE: Final[Range] = (0.0, 1.0)
PENALTY: Final[Range] = (-2.0, 2.0)  # OpenAI's bounds
FACTOR: Final[Range] = (math.ulp(0.0), math.inf)


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The numbers of generation_config.json. Filters that the file does not mention are off."""

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path) -> GenerationDefaults:
        """Read folder/generation_config.json; absent means greedy. Raises ModelError naming a malformed field."""
        path = folder / "generation_config.json"
        body = read_json(path, optional=True)
        return cls(
            do_sample=_flag(body, "do_sample", path),
            temperature=_number(body, "temperature", path, NON_NEGATIVE, default=1.0),
            top_p=_number(body, "top_p", path, SHARE, default=1.0),
            top_k=_whole(body, "top_k", path),
            repetition_penalty=_number(body, "repetition_penalty", path, FACTOR, default=1.0),
            eos_ids=token_ids(body.get("eos_token_id"), f"{path}: eos_token_id"),
        )


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What the caller gave; None means the checkpoint's default. Meanings as in `SamplingParams`."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


def sampling_params(
    defaults: GenerationDefaults, given: SamplingOverrides | None = None, *, max_tokens: int = 256
) -> SamplingParams:
    """The parameters of one answer: what is given, else the checkpoint's defaults.

    max_tokens: the mode's default length. Raises BadRequest naming a value that is out of range.
    """
    given = given or SamplingOverrides()
    _check(given)
    temperature = _or(given.temperature, defaults.temperature if defaults.do_sample else 0.0)
    samples = temperature > 0
    presence = SAMPLING_PRESENCE_PENALTY if samples and defaults.do_sample else 0.0
    return SamplingParams(
        temperature=temperature,
        top_k=_or(given.top_k, defaults.top_k),
        top_p=_or(given.top_p, defaults.top_p),
        min_p=_or(given.min_p, 0.0),
        presence_penalty=_or(given.presence_penalty, presence),
        frequency_penalty=_or(given.frequency_penalty, 0.0),
        repetition_penalty=_or(given.repetition_penalty, defaults.repetition_penalty if samples else 1.0),
        seed=given.seed,
        max_tokens=_or(given.max_tokens, max_tokens),
        stop=given.stop,
        ignore_eos=given.ignore_eos,
    )


def _check(given: SamplingOverrides) -> None:
    """One range per value; the comparison is false for NaN, so that is refused too."""
    ranges: dict[str, tuple[float | None, Range]] = {
        "temperature": (given.temperature, (0.0, 100.0)),
        "top_k": (given.top_k, NON_NEGATIVE),
        "top_p": (given.top_p, SHARE),
        "min_p": (given.min_p, SHARE),
        "presence_penalty": (given.presence_penalty, PENALTY),
        "frequency_penalty": (given.frequency_penalty, PENALTY),
        "repetition_penalty": (given.repetition_penalty, FACTOR),
        "seed": (given.seed, (0, 2**63 - 1)),
        "max_tokens": (given.max_tokens, (1, math.inf)),
    }
    for name, (value, (low, high)) in ranges.items():
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            raise BadRequest(f"{name} = {value} is out of range: {_range(low, high)}")
    if not all(given.stop):
        raise BadRequest("a stop string is empty: leave it out")


def _range(low: float, high: float) -> str:
    """A range in words; the smallest float stands for "above 0"."""
    least = "above 0" if low == math.ulp(0.0) else f"at least {low:g}"
    return f"use a number {least}" + ("" if high == math.inf else f" and at most {high:g}")


def _or(given: T | None, default: T) -> T:
    return default if given is None else given


def _flag(body: JsonObject, name: str, path: Path) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"{path}: {name} = {value!r} must be true or false")
    return bool(value)


def _number(body: JsonObject, name: str, path: Path, allowed: Range, *, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and allowed[0] <= value <= allowed[1] and math.isfinite(value)):
        raise ModelError(f"{path}: {name} = {value!r} is out of range: {_range(*allowed)}")
    return float(value)


def _whole(body: JsonObject, name: str, path: Path) -> int:
    value = body.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise ModelError(f"{path}: {name} = {value!r} must be a whole number, 0 or more")
    return value or 0
