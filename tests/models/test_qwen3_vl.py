"""The model against transformers, on random checkpoints of the real architecture with odd sizes, in float32.

Guards every axis order, norm, position and DeepStack insertion: a wrong one moves logits by far more than the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from galago.engine.runner import Runner
from galago.models.formats import format_by_name
from galago.models.qwen3_vl.model import Qwen3VL
from galago.types import Grid, ImageSpan, Prompt

from ..checkpoints import IDS

IMAGE = IDS["<|image_pad|>"]
START, END = IDS["<|vision_start|>"], IDS["<|vision_end|>"]
LOGITS = 2e-4  # max-abs
STATES = 1e-4  # relative, per layer


@dataclass(frozen=True)
class Case:
    """A prompt and its pictures' patches."""

    prompt: Prompt
    patches: list[np.ndarray]


def build(*pieces: int | Grid, seed: int = 0) -> Case:
    """A prompt of text runs (their lengths) and pictures (their grids) with random ids and pixels."""
    random = np.random.default_rng(seed)
    ids: list[int] = []
    spans, patches = [], []
    for piece in pieces:
        if isinstance(piece, Grid):
            ids.append(START)
            spans.append(ImageSpan(len(ids), piece.patches // 4, piece, b""))
            ids += [IMAGE] * (piece.patches // 4) + [END]
            patches.append(random.uniform(-1, 1, (piece.patches, 1536)).astype(np.float32))
        else:
            ids += random.integers(0, 256, piece).tolist()
    return Case(Prompt(tuple(ids), tuple(spans)), patches)


CASES = {
    "text only": build(23),
    "one picture": build(3, Grid(6, 10), 9),
    "three shapes": build(2, Grid(4, 4), Grid(2, 26), Grid(14, 6), 7),
    "two turns": build(3, Grid(8, 6), 12, Grid(4, 10), 5),
    "picture first": build(Grid(6, 6), 4),
    "picture last": build(11, Grid(4, 8)),
    "smallest": build(1, Grid(2, 2), 1),
    "27x257": build(2, Grid(2, 16), 3),
    "305x30": build(2, Grid(20, 2), 3),
    "aspect 200": build(2, Grid(2, 400), 3),
}


@pytest.fixture(scope="module", params=["tied", "untied shards"])
def pair(request: pytest.FixtureRequest, random_checkpoint: object) -> tuple[Qwen3VLForConditionalGeneration, Runner]:
    folder: Path = random_checkpoint(tied=request.param == "tied", shards=request.param != "tied")  # type: ignore[operator]
    reference = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    fmt = format_by_name("fp32")
    return reference, Runner(Qwen3VL(folder, fmt), fmt.dtype)


def reference_inputs(case: Case) -> dict[str, torch.Tensor]:
    ids = torch.tensor([case.prompt.ids])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int()}
    if case.patches:
        grids = [[1, s.grid.rows, s.grid.columns] for s in case.prompt.spans]
        inputs |= {
            "pixel_values": torch.from_numpy(np.concatenate(case.patches)),
            "image_grid_thw": torch.tensor(grids),
        }
    return inputs


def begin(runner: Runner, case: Case, max_tokens: int = 64):
    sequence = runner.start(case.prompt, max_tokens)
    for patches, span in zip(case.patches, case.prompt.spans, strict=True):
        steps = runner.encode(patches, span.grid)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                sequence.features.append(finished.value)
                break
    return sequence


@pytest.mark.parametrize("name", CASES)
def test_logits_and_layers(name: str, pair: tuple[Qwen3VLForConditionalGeneration, Runner]) -> None:
    reference, runner = pair
    case = CASES[name]
    theirs: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out: theirs.append(out[0] if out.dim() == 3 else out))
        for layer in (*reference.model.visual.blocks, *reference.model.language_model.layers)
    ]
    with torch.inference_mode():
        wanted = reference(**reference_inputs(case)).logits[0, -1]
    for hook in hooks:
        hook.remove()
    ours, restore = record(runner.model)
    sequence = begin(runner, case)
    found = runner.execute(sequence, sequence.pending)
    restore()
    assert (found - wanted).abs().max() < LOGITS
    compare_layers(ours, theirs, runner.model, case)


def record(model: Qwen3VL) -> tuple[list[torch.Tensor], object]:
    """Collect what every vision block and text layer returns."""
    seen: list[torch.Tensor] = []
    kept = (model.vision.blocks, model.text.layers)

    def watched(block: object) -> object:
        def call(*args: object) -> torch.Tensor:
            out = block(*args)  # type: ignore[operator]
            seen.append(out.clone())
            return out

        return call

    model.vision.blocks = [watched(b) for b in kept[0]]
    model.text.layers = [watched(b) for b in kept[1]]

    def restore() -> None:
        model.vision.blocks, model.text.layers = kept

    return seen, restore


def compare_layers(ours: list[torch.Tensor], theirs: list[torch.Tensor], model: Qwen3VL, case: Case) -> None:
    depth, count = model.config.vision.depth, len(case.patches)
    blocks = [torch.cat([ours[p * depth + b] for p in range(count)]) for b in range(depth)] if count else []
    ours = blocks + ours[count * depth :]
    assert len(ours) == len(theirs)
    for mine, reference in zip(ours, theirs, strict=True):
        assert (mine - reference).norm() / reference.norm() < STATES


@pytest.mark.parametrize("name", CASES)
def test_greedy_ids(name: str, pair: tuple[Qwen3VLForConditionalGeneration, Runner]) -> None:
    reference, runner = pair
    case = CASES[name]
    with torch.inference_mode():
        wanted = reference.generate(
            **reference_inputs(case), max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None
        )[0, len(case.prompt.ids) :].tolist()
    sequence = begin(runner, case)
    found = []
    logits = runner.execute(sequence, sequence.pending)
    for _ in range(64):
        sequence.ids.append(int(logits.argmax()))
        found.append(sequence.ids[-1])
        logits = runner.execute(sequence, 1) if len(found) < 64 else logits
    assert found == wanted


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_give_the_same_logits(chunk: int, pair: tuple[Qwen3VLForConditionalGeneration, Runner]) -> None:
    _, runner = pair
    case = CASES["two turns"]
    whole = begin(runner, case)
    wanted = runner.execute(whole, whole.pending)
    sliced = begin(runner, case)
    while sliced.pending:
        found = runner.execute(sliced, min(chunk, sliced.pending))
    assert (found - wanted).abs().max() < 1e-5


def test_bf16_stays_near_fp32(random_checkpoint: object) -> None:
    folder: Path = random_checkpoint()  # type: ignore[operator]
    case = CASES["three shapes"]
    found = {}
    for name in ("fp32", "bf16"):
        runner = Runner(Qwen3VL(folder, format_by_name(name)), format_by_name(name).dtype)
        sequence = begin(runner, case)
        found[name] = runner.execute(sequence, sequence.pending)
    assert torch.cosine_similarity(found["fp32"], found["bf16"], 0) > 0.999


def test_bf16_weights_are_the_mapped_file(random_checkpoint: object) -> None:
    """A bfloat16 checkpoint in bf16 is used as it lies: the linear layers hold views of the file, not copies."""
    folder: Path = random_checkpoint(dtype=torch.bfloat16)  # type: ignore[operator]
    model = Qwen3VL(folder, format_by_name("bf16"))
    assert model.text.head.weight.data_ptr() == model.text.embedding.data_ptr()
    maps = Path("/proc/self/maps")
    if maps.exists():
        at = model.text.layers[0].down.weight.data_ptr()
        ranges = (line.split() for line in maps.read_text().splitlines() if "model.safetensors" in line)
        assert any(int(a, 16) <= at < int(b, 16) for a, b in (fields[0].split("-") for fields in ranges))
