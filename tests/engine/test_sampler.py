"""The sampler against transformers' logits processors and OpenAI's definition of the penalties.

Guards against tokens that must never come out (placeholders), filters that keep one token too many or too few, filters
in another order than the checkpoint's authors used, and draws that are not those of the distribution or of the seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from galago.engine.sampler import Sampler
from galago.types import SamplingParams

VOCABULARY = 300
SAMPLED = SamplingParams(temperature=1.0, seed=0)


def random_logits(seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))


def force(sampler: Sampler, *tokens: int) -> None:
    """Have the sampler draw these tokens, whatever its penalties."""
    for token in tokens:
        logits = torch.full((VOCABULARY,), -1e4)
        logits[token] = 1e4
        assert sampler.draw(logits) == token


def distribution(
    monkeypatch: pytest.MonkeyPatch,
    params: SamplingParams,
    logits: Tensor,
    prompt: tuple[int, ...] = (),
    answered: tuple[int, ...] = (),
) -> dict[int, float]:
    """Every token that can be drawn, with its chance: each outcome of the random choice is tried in turn."""
    found: dict[int, float] = {}
    offered: list[Tensor] = []
    choice = 0

    def choose(weights: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
        offered.append(weights / weights.sum())
        return torch.tensor([choice])

    while not offered or choice < offered[0].numel():
        sampler = Sampler(params, prompt)
        force(sampler, *answered)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "multinomial", choose)
            token = sampler.draw(logits)
        if chance := float(offered[-1][choice]):
            found[token] = chance
        choice += 1
    return found


def reference(params: SamplingParams, logits: Tensor, seen: tuple[int, ...] = ()) -> dict[int, float]:
    """The same from transformers, in the order in which `generate` applies its processors."""
    steps = LogitsProcessorList()
    if params.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1:
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    chances = steps(torch.tensor([seen], dtype=torch.long), logits[None].clone()).softmax(-1)[0]
    return {int(token): float(chances[token]) for token in chances.nonzero()}


def assert_same(found: dict[int, float], wanted: dict[int, float]) -> None:
    assert found.keys() == wanted.keys()
    assert all(found[token] == pytest.approx(wanted[token], rel=1e-4, abs=1e-9) for token in wanted)


FILTERS = [
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 10 * VOCABULARY},
    {"top_p": 0.0},
    {"top_p": 0.1},
    {"top_p": 0.8},
    {"top_p": 0.99},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters_keep_what_transformers_keeps(
    options: dict[str, float], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, logits = replace(SAMPLED, **options), random_logits(seed)
    seen = tuple(int(token) for token in logits.topk(3).indices)
    assert_same(distribution(monkeypatch, params, logits, prompt=seen), reference(params, logits, seen))


def test_filters_off_keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(0, scale=1.0)
    found = distribution(monkeypatch, SAMPLED, logits)
    assert len(found) == VOCABULARY
    assert_same(found, reference(SAMPLED, logits))


@pytest.mark.parametrize("factor", [0.5, 1.2, 3.0])
def test_repetition_penalty(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over prompt and answer, on positive and negative logits; a token that came twice is not punished twice."""
    params, logits = replace(SAMPLED, repetition_penalty=factor), random_logits(1, scale=1.0)
    prompt, answered = (0, 1, 2, 3, 3, 9, 5), (5, 6, 7, 7, 8)
    assert {bool(logits[token] > 0) for token in (*prompt, *answered)} == {True, False}
    found = distribution(monkeypatch, params, logits, prompt, answered)
    assert_same(found, reference(params, logits, (*prompt, *answered)))


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (0.5, 0.3), (-1.0, -0.5)])
def test_presence_and_frequency_are_openais(presence: float, frequency: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counting the answer and not the prompt."""
    params = replace(SAMPLED, presence_penalty=presence, frequency_penalty=frequency)
    logits, answered = random_logits(2, scale=1.0), (5, 6, 7, 7, 7, 8)
    counts = Counter(answered)
    wanted = torch.stack(
        [value - counts[token] * frequency - (counts[token] > 0) * presence for token, value in enumerate(logits)]
    )
    found = distribution(monkeypatch, params, logits, prompt=(1, 2, 3, 7, 9), answered=answered)
    assert_same(found, reference(SAMPLED, wanted))


def test_penalties_hold_for_greedy_too() -> None:
    logits = torch.zeros(VOCABULARY)
    logits[3], logits[4] = 2.0, 1.0
    sampler = Sampler(SamplingParams(presence_penalty=1.5), ())
    assert [sampler.draw(logits) for _ in range(3)] == [3, 4, 3]


def test_greedy_takes_the_likeliest() -> None:
    for seed in range(20):
        logits = random_logits(seed)
        assert Sampler(SamplingParams(), ()).draw(logits) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_almost_no_temperature_is_greedy(temperature: float) -> None:
    """Division by it must not make the logits infinite."""
    logits = random_logits(3)
    sampler = Sampler(replace(SAMPLED, temperature=temperature), ())
    assert {sampler.draw(logits) for _ in range(20)} == {int(logits.argmax())}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 5.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.01},
        {"temperature": 1.0, "presence_penalty": -2.0, "frequency_penalty": -2.0, "repetition_penalty": 0.1},
    ],
    ids=str,
)
def test_forbidden_tokens_are_never_drawn(options: dict[str, float]) -> None:
    """Not even when they are by far the likeliest, nor through the places that they would take in top-k or top-p."""
    logits = random_logits(4)
    forbidden = (7, 8, 9, VOCABULARY - 1)
    logits[list(forbidden)] = 50.0
    sampler = Sampler(SamplingParams(seed=0, **options), prompt=(7, 8), forbidden=forbidden)
    drawn = [sampler.draw(logits) for _ in range(200)]
    assert not set(drawn) & set(forbidden)
    if options.get("top_k") == 3:
        allowed = random_logits(4)
        allowed[list(forbidden)] = -torch.inf
        assert set(drawn) == set(allowed.topk(3).indices.tolist())


def test_seeds() -> None:
    logits = random_logits(5)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(replace(SAMPLED, seed=seed), ())
        return [sampler.draw(logits) for _ in range(50)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draws(None) != draws(None)
    torch.manual_seed(0)  # nobody else's random numbers matter
    first = draws(1)
    torch.manual_seed(1)
    assert draws(1) == first


def test_one_sampler_does_not_disturb_another() -> None:
    logits = random_logits(6)
    alone = Sampler(SAMPLED, ())
    wanted = [alone.draw(logits) for _ in range(20)]
    first, second = Sampler(SAMPLED, ()), Sampler(replace(SAMPLED, seed=9), ())
    found = []
    for _ in range(20):
        found.append(first.draw(logits))
        second.draw(logits)
    assert found == wanted


def test_draws_follow_the_distribution() -> None:
    """Pearson's chi-squared over 20,000 draws from 12 tokens; 99.99 % of true samples lie below 37.4 (11 degrees)."""
    logits = random_logits(7, scale=1.0)[:12]
    params = replace(SAMPLED, temperature=1.3, seed=11)
    sampler = Sampler(params, ())
    drawn = Counter(sampler.draw(logits) for _ in range(20_000))
    wanted = (logits / 1.3).softmax(-1) * 20_000
    assert float(wanted.min()) > 100
    assert sum((drawn[token] - count) ** 2 / count for token, count in enumerate(wanted.tolist())) < 37.4


def test_the_callers_logits_stay_as_they_are() -> None:
    logits = random_logits(8)
    kept = logits.clone()
    params = SamplingParams(0.7, 20, 0.8, 0.1, 1.5, 0.5, 1.2, seed=0)
    sampler = Sampler(params, prompt=(1, 2, 3), forbidden=(4, 5))
    for _ in range(5):
        sampler.draw(logits)
    assert torch.equal(logits, kept)
