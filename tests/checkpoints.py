"""Small random Qwen3-VL folders for tests, written by the reference implementation itself.

Why: parity tests need the true architecture, weight names and files of a Hugging Face folder, at a size that loads in
milliseconds. Sizes are odd on purpose (hidden != heads * head_dim, nothing a power of two), and every norm and bias is
random, so that a swapped axis or a forgotten bias shows. The tokenizer is byte level with Qwen's special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from galago.bench.qwen_vocabulary import ADDED, SPECIAL, byte_level, write_tokenizer

FIRST_ADDED = 256
IDS = {token: FIRST_ADDED + index for index, token in enumerate(SPECIAL + ADDED)}
VOCABULARY = 320  # 256 bytes, 26 added tokens, and rows that no token uses, as in the real checkpoints
CONTEXT = 4096


def write_random_checkpoint(
    out: Path,
    *,
    tied: bool = True,
    shards: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    hub_config: bool = False,
) -> Path:
    """Write a random Qwen3-VL (3 text layers, 3 vision blocks, about 0.5 M parameters) into `out` and return `out`.

    tied: the head is the embedding. shards: several safetensors files and an index instead of one file.
    dtype: type of the stored weights. hub_config: spell config.json as the checkpoints on the hub do (`rope_theta`,
    `rope_scaling`) instead of as transformers 5 saves it (`rope_parameters`).
    """
    out.mkdir(parents=True, exist_ok=True)
    model = Qwen3VLForConditionalGeneration(_config(tied)).eval()
    _randomise(model, seed)
    model.to(dtype).save_pretrained(out, max_shard_size="300KB" if shards else "5GB")
    if hub_config:
        _spell_config_as_the_hub(out / "config.json")
    write_tokenizer(out, byte_tokenizer(), context=CONTEXT)
    _write_json(out / "preprocessor_config.json", _PREPROCESSOR)
    _write_json(out / "generation_config.json", _GENERATION)
    return out


def byte_tokenizer() -> Tokenizer:
    """A tokenizer without merges: one token per UTF-8 byte, then Qwen's special and added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return byte_level(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))


_PREPROCESSOR = {
    "size": {"longest_edge": 16777216, "shortest_edge": 1024},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
_GENERATION = {
    "bos_token_id": IDS["<|endoftext|>"],
    "eos_token_id": [IDS["<|im_end|>"], IDS["<|endoftext|>"]],
    "pad_token_id": IDS["<|endoftext|>"],
    "do_sample": False,
}


def _config(tied: bool) -> Qwen3VLConfig:
    text = {
        "hidden_size": 72, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 24, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": tied, "bos_token_id": IDS["<|endoftext|>"],
        "eos_token_id": IDS["<|im_end|>"],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5000000.0, "mrope_interleaved": True, "mrope_section": [4, 4, 4],
        },
    }  # fmt: skip
    vision = {
        "depth": 3, "hidden_size": 80, "intermediate_size": 136, "num_heads": 5, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 72, "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2],
    }  # fmt: skip
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=tied,
        image_token_id=IDS["<|image_pad|>"],
        video_token_id=IDS["<|video_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"],
        vision_end_token_id=IDS["<|vision_end|>"],
    )


@torch.no_grad()
def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Variance-preserving matrices; norms around 1 and biases around 0, but never exactly."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.copy_(0.1 * noise + (1.0 if name.endswith("norm.weight") or ".norm" in name else 0.0))
            if name.endswith("bias"):
                parameter.copy_(0.1 * noise)
        elif "embed" in name and "patch_embed" not in name:
            parameter.copy_(0.1 * noise)  # small, or a tied head just repeats the last token
        else:
            parameter.copy_(noise / parameter[0].numel() ** 0.5)


def _spell_config_as_the_hub(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config["text_config"].pop("rope_parameters")
    config["text_config"]["rope_theta"] = rope.pop("rope_theta")
    config["text_config"]["rope_scaling"] = rope
    config["vision_config"]["model_type"] = "qwen3_vl"  # as published, although the class calls it qwen3_vl_vision
    config["vision_config"].pop("rope_parameters", None)
    _write_json(path, config)


def _write_json(path: Path, body: Any) -> None:
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False), encoding="utf-8")
