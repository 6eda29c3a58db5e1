"""Generation defaults and what callers make of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from galago.errors import BadRequest, ModelError
from galago.models.generation import GenerationDefaults, SamplingOverrides, sampling_params
from galago.types import SamplingParams

PUBLISHED = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643], "top_p": 0.8,
    "top_k": 20, "temperature": 0.7, "repetition_penalty": 1.05, "transformers_version": "4.56.0",
}  # fmt: skip
QWEN = GenerationDefaults(True, 0.7, 0.8, 20, 1.05, (151645, 151643))


def read(folder: Path, body: object) -> GenerationDefaults:
    (folder / "generation_config.json").write_text(json.dumps(body))
    return GenerationDefaults.from_folder(folder)


def test_a_published_file_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, PUBLISHED) == QWEN
    assert read(tmp_path, {"eos_token_id": 7}).eos_ids == (7,)


def test_without_a_file_answers_are_greedy(tmp_path: Path) -> None:
    defaults = GenerationDefaults.from_folder(tmp_path)
    assert defaults == GenerationDefaults()
    assert sampling_params(defaults) == SamplingParams()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("do_sample", "yes"), ("temperature", -1), ("temperature", "warm"), ("temperature", True), ("top_p", 1.5),
        ("top_k", 2.5), ("top_k", -1), ("repetition_penalty", 0), ("eos_token_id", "x"), ("eos_token_id", [1, None]),
    ],
)  # fmt: skip
def test_a_malformed_field_is_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"{field} = "):
        read(tmp_path, {field: value})


@pytest.mark.parametrize("body", ["[]", "{", "\udcff"])
def test_a_file_that_is_no_object_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "generation_config.json").write_bytes(body.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        GenerationDefaults.from_folder(tmp_path)


def test_sampling_takes_the_defaults_and_the_presence_penalty_of_the_model_card() -> None:
    params = sampling_params(QWEN)
    assert params == SamplingParams(
        temperature=0.7, top_k=20, top_p=0.8, presence_penalty=1.5, repetition_penalty=1.05, max_tokens=256
    )
    assert sampling_params(replace(QWEN, do_sample=False)) == SamplingParams(top_k=20, top_p=0.8)


def test_temperature_0_drops_default_penalties_and_keeps_given_ones() -> None:
    greedy = sampling_params(QWEN, SamplingOverrides(temperature=0))
    assert (greedy.temperature, greedy.presence_penalty, greedy.repetition_penalty) == (0, 0, 1)
    asked = SamplingOverrides(temperature=0, presence_penalty=0.5, frequency_penalty=0.1, repetition_penalty=1.2)
    given = sampling_params(QWEN, asked)
    assert (given.presence_penalty, given.frequency_penalty, given.repetition_penalty) == (0.5, 0.1, 1.2)


def test_given_values_win() -> None:
    asked = SamplingOverrides(1.5, 5, 0.5, 0.1, 0.0, 0.2, 1.0, 7, 9, ("a",), True)
    assert sampling_params(QWEN, asked, max_tokens=1024) == SamplingParams(
        1.5, 5, 0.5, 0.1, 0.0, 0.2, 1.0, 7, 9, ("a",), True
    )
    assert sampling_params(QWEN, max_tokens=1024).max_tokens == 1024


def test_sampling_on_a_greedy_checkpoint_adds_no_penalty() -> None:
    params = sampling_params(GenerationDefaults(), SamplingOverrides(temperature=1.0))
    assert params == SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    "given",
    [
        SamplingOverrides(temperature=-0.1), SamplingOverrides(temperature=float("nan")),
        SamplingOverrides(temperature=float("inf")), SamplingOverrides(top_k=-1), SamplingOverrides(top_p=1.01),
        SamplingOverrides(min_p=-0.1), SamplingOverrides(presence_penalty=3), SamplingOverrides(frequency_penalty=-3),
        SamplingOverrides(repetition_penalty=0), SamplingOverrides(seed=-1), SamplingOverrides(max_tokens=0),
        SamplingOverrides(max_tokens=-5), SamplingOverrides(stop=("",)),
    ],
    ids=lambda given: repr(given).replace("None", ""),
)  # fmt: skip
def test_values_out_of_range_are_refused_in_one_line(given: SamplingOverrides) -> None:
    with pytest.raises(
        BadRequest, match=r"out of range: use a number (at least|above) |stop string is empty"
    ) as caught:
        sampling_params(QWEN, given)
    assert "\n" not in str(caught.value)
