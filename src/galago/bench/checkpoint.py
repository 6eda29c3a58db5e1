"""`galago bench checkpoint`: a random checkpoint with the shape of Qwen3-VL-2B, by which all speed is measured.

Why: speed and memory depend on shapes, types and vocabulary, not on what the weights know, and a random checkpoint can
be made on any machine without a hub. Names, shapes and files are those of the published one (4.3 GB in bfloat16).
Invariants: one shard is in memory at a time; the same seed gives the same weights; the folder appears complete or not
at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from galago.bench.qwen_vocabulary import qwen_tokenizer, write_tokenizer
from galago.errors import BadRequest, StorageFull
from galago.folder import WEIGHTS, WEIGHTS_INDEX
from galago.models.qwen3_vl import text, vision
from galago.models.qwen3_vl.config import Qwen3VLConfig

Shapes = Mapping[str, tuple[int, ...]]
Progress = Callable[[int, int], None]  # (bytes written, bytes in all)

TEXT_LAYERS = 28
VISION_LAYERS = 24
DEEPSTACK = (5, 11, 17)
CONTEXT = 262_144
WIDTH = 2  # bytes of a bfloat16
SHARD_BYTES = 1_000_000_000
OTHER_FILES = 20_000_000  # bytes of the tokenizer and the small files, rounded up
SPREAD = 0.02  # standard deviation of random matrices: the published initializer_range

PREPROCESSOR = {
    "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip
GENERATION = {
    "bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643], "do_sample": True, "top_k": 20,
    "top_p": 0.8, "temperature": 0.7,
}  # fmt: skip


def write_checkpoint(
    out: Path,
    *,
    text_layers: int = TEXT_LAYERS,
    vision_layers: int = VISION_LAYERS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write the checkpoint into the new folder `out` and return it.

    Fewer layers give a smaller checkpoint of the same widths. Raises BadRequest when `out` is taken, a number of layers
    is below 1 or the vocabulary is not installed, StorageFull when the disk is full or cannot be written.
    """
    body = architecture(text_layers, vision_layers)
    config = Qwen3VLConfig.from_dict(body)
    shapes = vision.shapes(config.vision) | text.shapes(config.text)
    _refuse_taken(out)
    with _appearing_whole(out, _bytes(shapes) + OTHER_FILES) as folder:
        write_tokenizer(folder, qwen_tokenizer(), context=CONTEXT)
        _write_json(folder / "config.json", body)
        _write_json(folder / "preprocessor_config.json", PREPROCESSOR)
        _write_json(folder / "generation_config.json", GENERATION)
        _write_weights(folder, shapes, seed, progress)
    return out


def architecture(text_layers: int, vision_layers: int) -> dict[str, object]:
    """config.json of Qwen3-VL-2B-Instruct as published, with the given depths."""
    if min(text_layers, vision_layers) < 1:
        raise BadRequest(f"{min(text_layers, vision_layers)} layers: a checkpoint needs at least 1")
    taps = DEEPSTACK if vision_layers > max(DEEPSTACK) else range(min(3, vision_layers))
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "dtype": "bfloat16",
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653, "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text", "dtype": "bfloat16", "hidden_size": 2048, "intermediate_size": 6144,
            "num_hidden_layers": text_layers, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "hidden_act": "silu", "vocab_size": 151936, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
            "rope_theta": 5000000, "attention_bias": False, "attention_dropout": 0.0, "initializer_range": SPREAD,
            "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
            "bos_token_id": 151643, "eos_token_id": 151645, "tie_word_embeddings": True, "use_cache": True,
        },
        "vision_config": {
            "model_type": "qwen3_vl", "depth": vision_layers, "hidden_size": 1024, "intermediate_size": 4096,
            "num_heads": 16, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": 2048, "num_position_embeddings": 2304, "hidden_act": "gelu_pytorch_tanh",
            "deepstack_visual_indexes": list(taps)[:text_layers], "initializer_range": SPREAD,
        },
    }  # fmt: skip


def _write_weights(folder: Path, shapes: Shapes, seed: int, progress: Progress | None) -> None:
    """Shards of at most SHARD_BYTES, and their index when there are several."""
    shards = _shards(shapes)
    generator = torch.Generator().manual_seed(seed)
    total, written = _bytes(shapes), 0
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / name, shard, generator)
        weight_map |= dict.fromkeys(shard, name)
        written += _bytes(shard)
        if progress:
            progress(written, total)
    if len(shards) > 1:
        _write_json(folder / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_shard(path: Path, shapes: Shapes, generator: torch.Generator) -> None:
    """A function of its own, so that a shard is freed before the next one is made."""
    tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod((path.parent / "config.json").stat().st_mode)  # safetensors keeps files to their owner


def _shards(shapes: Shapes) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes.items():
        if shards[-1] and _bytes(shards[-1]) + _bytes({name: shape}) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = shape
    return shards


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norm gains 1, biases 0, everything else normal: the initialisation of the reference."""
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith(".bias") else 1.0, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(std=SPREAD, generator=generator)


def _bytes(shapes: Shapes) -> int:
    return WIDTH * sum(prod(shape) for shape in shapes.values())


def _refuse_taken(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise BadRequest(f"{out} exists already: give a folder that does not")


@contextmanager
def _appearing_whole(out: Path, needed: int) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name at the end, or leaves nothing behind."""
    folder = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise StorageFull(f"{out} needs {needed / 1e9:.1f} GB and its disk has {free / 1e9:.1f} GB free")
        yield folder
        if out.is_dir():
            out.rmdir()  # empty, as checked; not every system renames onto a folder
        folder.rename(out)
    except (OSError, SafetensorError) as error:
        raise StorageFull(f"{out} cannot be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, body: object) -> None:
    path.write_text(json.dumps(body, indent=2), encoding="utf-8")
