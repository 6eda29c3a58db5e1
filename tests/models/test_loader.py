"""Model folders: every way in which one can be wrong is one clear line that names the file, the setting or the tensor.

Guards against answers from a model that is not what its config says, code of a model folder being run, tracebacks from
damaged files, and valid checkpoints (both spellings of the rotary settings, tied, shards, float16) being refused.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from galago.engine.core import Engine
from galago.errors import ModelError
from galago.models.formats import format_by_name
from galago.models.qwen3_vl.config import Qwen3VLConfig
from galago.models.qwen3_vl.model import Qwen3VL

from ..conftest import RandomCheckpoint

FP32 = format_by_name("fp32")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.language_model.norm.weight"
GATE = "model.language_model.layers.1.mlp.gate_proj.weight"
FC1 = "model.visual.blocks.2.mlp.linear_fc1.weight"
DELETED = object()

Copy = Callable[..., Path]


@pytest.fixture
def checkpoint(random_checkpoint: RandomCheckpoint, tmp_path: Path) -> Copy:
    """A copy of a random checkpoint that a test may damage."""
    return lambda **options: shutil.copytree(random_checkpoint(**options), tmp_path / "model")


def refusal(folder: Path) -> str:
    """The one line with which loading fails."""
    with pytest.raises(ModelError) as caught:
        Qwen3VL(folder, FP32)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def change(folder: Path, dotted: str, value: object) -> None:
    """Set, or delete, one entry of config.json."""
    path = folder / "config.json"
    body = json.loads(path.read_text())
    *sections, name = dotted.split(".")
    inner = body
    for section in sections:
        inner = inner[section]
    if value is DELETED:
        del inner[name]
    else:
        inner[name] = value
    path.write_text(json.dumps(body))


def test_no_config(checkpoint: Copy) -> None:
    folder = checkpoint()
    (folder / "config.json").unlink()
    assert refusal(folder).startswith(f"{folder} has no config.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model_type": "qwen3_vl"', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1, 2]", "does not hold a JSON object"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"[" * 200_000, "not valid JSON"),
    ],
    ids=["cut", "empty", "a list", "not text", "nested without end"],
)
def test_config_is_no_json_object(content: bytes, words: str, checkpoint: Copy) -> None:
    folder = checkpoint()
    (folder / "config.json").write_bytes(content)
    message = refusal(folder)
    assert str(folder / "config.json") in message
    assert words in message


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": "llama", "architectures": []}, "llama"),
        ({"architectures": ["Qwen3VLMoeForConditionalGeneration"]}, "Qwen3VLMoeForConditionalGeneration"),
        ({"model_type": "qwen3_vl_moe"}, "Qwen3VLForConditionalGeneration"),
        ({"model_type": DELETED, "architectures": DELETED}, "None"),
    ],
    ids=["llama", "llama by type", "mixture of experts", "mixture of experts by type", "nothing said"],
)
def test_other_architecture(changes: dict[str, object], found: str, checkpoint: Copy) -> None:
    folder = checkpoint()
    for name, value in changes.items():
        change(folder, name, value)
    message = refusal(folder)
    assert found in message
    assert "only dense Qwen3-VL" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_config.hidden_act", "relu"),
        ("vision_config.hidden_act", "silu"),
        ("text_config.attention_bias", True),
        ("text_config.rope_parameters.rope_type", "yarn"),
        ("text_config.rope_parameters.factor", 4.0),
        ("text_config.rope_parameters.mrope_interleaved", False),
        ("text_config.rope_parameters.mrope_section", [4, 4]),
        ("text_config.rope_parameters.mrope_section", [4, 4, 5]),
        ("text_config.sliding_window", 4096),
        ("text_config.num_experts", 8),
        ("text_config.num_attention_heads", 0),
        ("text_config.num_key_value_heads", 3),
        ("text_config.head_dim", "24"),
        ("text_config.num_hidden_layers", True),
        ("text_config.rms_norm_eps", "1e-6"),
        ("vision_config.num_heads", 0),
        ("vision_config.num_heads", 7),
        ("vision_config.depth", 2.5),
        ("vision_config.num_position_embeddings", 63),
        ("vision_config.deepstack_visual_indexes", [0, 9]),
        ("vision_config.deepstack_visual_indexes", 3),
        ("vision_config.out_hidden_size", 64),
        ("vision_config.window_size", 112),
        ("vision_config.rope_parameters", {"rope_theta": 1.0, "rope_type": "axial"}),
        ("quantization_config", {"bits": 4}),
        ("text_config", [1]),
    ],
    ids=str,
)
def test_unknown_values_are_refused_by_name(name: str, value: object, checkpoint: Copy) -> None:
    folder = checkpoint()
    change(folder, name, value)
    message = refusal(folder)
    assert message.startswith("config.json: ")
    assert name in message
    if not isinstance(value, list) or name != "text_config":
        assert str(value) in message or repr(value) in message


@pytest.mark.parametrize("name", ["text_config.hidden_size", "vision_config.depth", "image_token_id", "vision_config"])
def test_missing_values_are_named(name: str, checkpoint: Copy) -> None:
    folder = checkpoint()
    change(folder, name, DELETED)
    assert f"{name} is missing" in refusal(folder)


def test_yarn_in_the_older_spelling(checkpoint: Copy) -> None:
    folder = checkpoint(hub_config=True)
    change(folder, "text_config.rope_scaling.rope_type", "yarn")
    assert "text_config.rope_scaling.rope_type = 'yarn'" in refusal(folder)


def test_both_spellings_of_rope_must_agree(checkpoint: Copy) -> None:
    folder = checkpoint()
    agreeing = {"rope_type": "default", "mrope_section": [4, 4, 4], "mrope_interleaved": True}
    change(folder, "text_config.rope_scaling", agreeing)
    change(folder, "text_config.rope_theta", 5e6)
    Qwen3VL(folder, FP32)
    change(folder, "text_config.rope_theta", 1e4)
    assert "rope_theta = 10000.0 differs from text_config.rope_parameters.rope_theta = 5000000.0" in refusal(folder)
    change(folder, "text_config.rope_theta", DELETED)
    change(folder, "text_config.rope_scaling", agreeing | {"rope_type": "yarn"})
    assert "text_config.rope_scaling.rope_type = 'yarn' differs from" in refusal(folder)
    change(folder, "text_config.rope_scaling", agreeing | {"factor": 4.0})
    assert "factor = 4.0 is not supported" in refusal(folder)


def test_settings_that_ask_for_nothing_are_no_hindrance(checkpoint: Copy) -> None:
    folder = checkpoint()
    for name, value in {"sliding_window": None, "use_sliding_window": False, "layer_types": []}.items():
        change(folder, f"text_config.{name}", value)
    Qwen3VL(folder, FP32)


def test_both_spellings_of_rope_mean_the_same(random_checkpoint: RandomCheckpoint) -> None:
    newer, older = random_checkpoint(), random_checkpoint(hub_config=True)
    assert "rope_parameters" in (newer / "config.json").read_text()
    assert "rope_scaling" in (older / "config.json").read_text()
    config = Qwen3VLConfig.from_folder(newer)
    assert config == Qwen3VLConfig.from_folder(older)
    assert (config.text.rope_theta, config.text.mrope_section) == (5e6, (4, 4, 4))
    Qwen3VL(older, FP32)


@pytest.mark.parametrize("options", [{}, {"tied": False, "shards": True}], ids=["single file", "shards"])
def test_missing_surplus_and_misshapen_tensors_are_listed(options: dict[str, bool], checkpoint: Copy) -> None:
    folder = checkpoint(**options)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(NORM, None)
        if GATE in tensors:
            tensors[GATE] = tensors[GATE].T.contiguous()
            tensors["model.language_model.layers.3.mlp.gate_proj.weight"] = torch.zeros(1)
        if FC1 in tensors:
            tensors[FC1] = torch.zeros(tensors[FC1].shape, dtype=torch.int64)

    rewrite(folder, damage)
    message = refusal(folder)
    assert f"missing {NORM};" in message
    assert "surplus model.language_model.layers.3.mlp.gate_proj.weight" in message
    assert f"{GATE} is [72, 112] instead of [112, 72]" in message
    assert f"{FC1} is I64" in message


def test_long_lists_are_cut(checkpoint: Copy) -> None:
    folder = checkpoint()

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "layers.2." in name]:
            del tensors[name]

    rewrite(folder, damage)
    message = refusal(folder)
    assert message.count("model.language_model.layers.2.") == 5
    assert message.endswith(" and 6 more")


def test_an_eight_bit_tensor_is_named(checkpoint: Copy) -> None:
    folder = checkpoint()
    rewrite(folder, lambda tensors: tensors.update({GATE: tensors[GATE].to(torch.float8_e4m3fn)}))
    assert f"{GATE} is F8_E4M3" in refusal(folder)


def test_a_tensor_in_two_shards(checkpoint: Copy) -> None:
    folder = checkpoint(shards=True)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: tensor}, second)
    assert f"{name} twice" in refusal(folder)


def rewrite(folder: Path, damage: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of every weight file."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        damage(tensors)
        save_file(tensors, path)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("size", [0, 4, 100, -1], ids=["empty", "half a length", "in the header", "last byte missing"])
def test_truncated_file(size: int, checkpoint: Copy) -> None:
    folder = checkpoint()
    cut(folder / SINGLE, size)
    message = refusal(folder)
    assert str(folder / SINGLE) in message
    assert "truncated or damaged" in message


def test_truncated_shard_is_named(checkpoint: Copy) -> None:
    folder = checkpoint(shards=True)
    shard = sorted(folder.glob("*.safetensors"))[2]
    cut(shard, shard.stat().st_size // 2)
    message = refusal(folder)
    assert f"{shard} ({shard.stat().st_size:,} bytes) is truncated or damaged" in message


@pytest.mark.parametrize("at", [0, 8, 60], ids=["length", "first byte of the header", "inside the header"])
def test_corrupt_header(at: int, checkpoint: Copy) -> None:
    folder = checkpoint()
    content = bytearray((folder / SINGLE).read_bytes())
    content[at : at + 8] = b"\xff" * 8
    (folder / SINGLE).write_bytes(content)
    assert f"{folder / SINGLE} (" in refusal(folder)


def test_shard_of_the_index_is_missing(checkpoint: Copy) -> None:
    folder = checkpoint(shards=True)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    assert refusal(folder) == f"{folder} lacks {shard.name}, named in {INDEX}: download the model again"


@pytest.mark.parametrize("name", ["../x.safetensors", "sub/x.safetensors", "..", ""])
def test_index_must_stay_in_its_folder(name: str, checkpoint: Copy) -> None:
    """Even when the file that it points at exists and is sound."""
    folder = checkpoint(shards=True)
    (folder / "sub").mkdir()
    index = json.loads((folder / INDEX).read_text())
    shard = folder / index["weight_map"][NORM]
    shutil.copy(shard, folder.parent / "x.safetensors")
    shutil.copy(shard, folder / "sub" / "x.safetensors")
    index["weight_map"] = {key: name if file == shard.name else file for key, file in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))
    message = refusal(folder)
    assert name in message
    assert INDEX in message


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_damaged_index(content: str, checkpoint: Copy) -> None:
    folder = checkpoint(shards=True)
    (folder / INDEX).write_text(content)
    assert str(folder / INDEX) in refusal(folder)


def test_pickles_are_not_read(checkpoint: Copy) -> None:
    folder = checkpoint()
    torch.save(load_file(folder / SINGLE), folder / "pytorch_model.bin")
    (folder / SINGLE).unlink()
    assert refusal(folder) == f"{folder} has no {SINGLE}: only safetensors checkpoints are read"


def test_code_in_the_folder_is_never_run(checkpoint: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint()
    marker = folder / "was_run"
    for name in ("modeling_trap", "tokenization_trap", "configuration_trap", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Trap: ...\n")
    change(folder, "auto_map", {"AutoConfig": "configuration_trap.Trap", "AutoModel": "modeling_trap.Trap"})
    for name in ("tokenizer_config.json", "preprocessor_config.json"):
        path = folder / name
        body = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["tokenization_trap.Trap", None]}}
        path.write_text(json.dumps(body))
    monkeypatch.chdir(folder)
    Engine(folder, FP32, threads=1)
    assert not marker.exists()
    assert not any("_trap" in name for name in sys.modules)
    runpy.run_path(str(folder / "modeling_trap.py"))
    assert marker.exists()  # the trap works


def test_tied_checkpoint_with_a_stored_head(checkpoint: Copy) -> None:
    folder = checkpoint()
    embedding = load_file(folder / SINGLE)["model.language_model.embed_tokens.weight"]
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros_like(embedding)}))
    model = Qwen3VL(folder, FP32)
    assert torch.equal(model.text.head.weight, embedding)  # type: ignore[attr-defined]


def test_untied_checkpoint_needs_its_head(checkpoint: Copy) -> None:
    folder = checkpoint(tied=False)
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert refusal(folder).endswith("missing lm_head.weight")


@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_stored_types_load_in_every_format(stored: torch.dtype, name: str, random_checkpoint: RandomCheckpoint) -> None:
    folder = random_checkpoint(dtype=stored)
    fmt = format_by_name(name)
    weight = load_file(folder / SINGLE)[GATE]
    assert weight.dtype == stored
    model = Qwen3VL(folder, fmt)
    assert torch.equal(model.text.layers[1].gate.weight, weight.to(fmt.dtype))  # type: ignore[attr-defined]
    logits = model.logits(torch.ones(2, model.shape.hidden, dtype=fmt.dtype))
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
