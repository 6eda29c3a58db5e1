"""A training state -> the folder that Hugging Face tools and Galago load, and the small state another day resumes from.

`python -m train.export RUN/state.pt DEST` writes the folder (bfloat16, every file by rename); `--weights averaged|raw`
chooses which weights. `--check` compares the logits of the training model with those of transformers in float32.
`--keep FILE` writes weights and slot head in half precision; `--restore FILE RUN` makes a run's state.pt from it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from train import tokenizer
from train.model import Shape, TinyVL

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for c in message.content %}"
    "{%- if c.type == 'image' or 'image' in c or 'image_url' in c %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in c %}{{- c.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def configuration(shape: Shape) -> dict[str, Any]:
    """config.json"""
    c = tokenizer.control
    text = {
        "model_type": "qwen3_vl_text",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": True,
        "bos_token_id": c("<|endoftext|>"),
        "eos_token_id": c("<|im_end|>"),
        "rope_theta": shape.theta,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.theta,
            "mrope_interleaved": True,
            "mrope_section": list(shape.sections),
        },
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": list(shape.sections)},
        "dtype": "bfloat16",
    }
    vision = {
        "model_type": "qwen3_vl",
        "depth": shape.vision_depth,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": shape.vision_mlp,
        "num_heads": shape.vision_heads,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": shape.hidden,
        "num_position_embeddings": shape.side**2,
        "deepstack_visual_indexes": list(shape.deepstack),
        "initializer_range": 0.02,
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "image_token_id": c("<|image_pad|>"),
        "video_token_id": c("<|video_pad|>"),
        "vision_start_token_id": c("<|vision_start|>"),
        "vision_end_token_id": c("<|vision_end|>"),
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": vision,
    }


def other_files() -> dict[str, dict[str, Any]]:
    c = tokenizer.control
    return {
        "preprocessor_config.json": {
            "size": {"shortest_edge": 1024, "longest_edge": 200704},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "resample": 3,
            "do_resize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "do_convert_rgb": True,
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "processor_class": "Qwen3VLProcessor",
        },
        "generation_config.json": {
            "bos_token_id": c("<|endoftext|>"),
            "eos_token_id": [c("<|im_end|>"), c("<|endoftext|>")],
            "pad_token_id": c("<|endoftext|>"),
            "do_sample": False,
            "max_new_tokens": 256,
        },
    }


def write(model: TinyVL, folder: Path) -> None:
    """Every file of the folder, each under a temporary name first."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch)
        tokenizer.write(new)
        for name, body in (("config.json", configuration(model.shape)), *other_files().items()):
            (new / name).write_text(json.dumps(body, indent=1) + "\n")
        (new / "chat_template.jinja").write_text(TEMPLATE + "\n")
        weights = {n: p.detach().bfloat16().contiguous() for n, p in model.named_parameters()}
        save_file(weights, new / "model.safetensors", {"format": "pt"})
        for file in sorted(new.iterdir()):
            file.chmod(0o644)
            os.replace(file, folder / file.name)


def load(path: Path, which: str) -> TinyVL:
    """The model of a state.pt with its averaged or raw weights."""
    saved = torch.load(path, weights_only=True)
    return from_weights(saved["average"] if which == "averaged" else saved["weights"])


def from_weights(weights: dict[str, Tensor]) -> TinyVL:
    model = TinyVL()
    model.load_state_dict({n: w.float() for n, w in weights.items() if not n.startswith("slot_head.")})
    return model


def keep(state: Path, out: Path, which: str) -> None:
    """Weights and slot head in half precision."""
    saved = torch.load(state, weights_only=True)
    weights = saved["average"] if which == "averaged" else saved["weights"]
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: w.half().contiguous() for n, w in weights.items()}, out, {"level": str(saved["level"])})


def restore(kept: Path, run: Path) -> None:
    """A state.pt whose next stage starts with fresh optimisers."""
    run.mkdir(parents=True, exist_ok=True)
    weights = {n: w.float() for n, w in load_file(kept).items()}
    torch.save(
        {"weights": weights, "average": {}, "stage": "restored", "step": 0, "seconds": 0.0, "level": 0},
        run / "state.pt",
    )


def check(folder: Path, model: TinyVL) -> float:
    """The largest difference of logits from transformers, in float32, on a few conversations with pictures."""
    from transformers import Qwen3VLForConditionalGeneration

    from galago.bench.pictures import Fonts
    from train import batches, data, tasks
    from train.model import compute_in, patchify

    compute_in(torch.float32)
    reference = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict({n: p.bfloat16().float() for n, p in model.state_dict().items()})
    fonts, worst = Fonts(), 0.0
    for n, task in enumerate(("text", "pick", "boxes", "followup")):
        look = data.Look((14, 32), fonts="held", odd=0.5)
        sample = tasks.TASKS[task](data.stream("check", n), fonts, tasks.Need(look))
        got = batches.conversation_batch([sample], fonts)
        stacks = [torch.from_numpy(s) for s in got.pictures.stacks]
        with torch.inference_mode():
            visual, taps = model.model.visual(stacks)
            part = got.parts[0]
            take, ids = torch.from_numpy(part.take), torch.from_numpy(part.ids)
            ours = model.logits(
                model.hidden(
                    ids,
                    torch.from_numpy(part.positions),
                    visual[take],
                    [t[take] for t in taps],
                    torch.from_numpy(part.where),
                )
            )
            flat = dict(zip(got.pictures.order, (p for s in stacks for p in s), strict=True))
            pictures = [flat[n] for n in range(len(flat))]
            patches = torch.cat(
                [patchify(p[None])[0].view(-1, 3, 1, 256).repeat(1, 1, 2, 1).flatten(1) for p in pictures]
            )
            theirs = reference(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=patches,
                image_grid_thw=torch.tensor([[1, p.shape[0] // 16, p.shape[1] // 16] for p in pictures]),
                mm_token_type_ids=(ids == tokenizer.control("<|image_pad|>")).int(),
            ).logits
        difference = float((ours - theirs).abs().max())
        worst = max(worst, difference)
        print(f"{task}: largest difference {difference:.2e} of logits up to {float(theirs.abs().max()):.1f}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m train.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "state", type=Path, help="state.pt of a run ('-' for untrained weights), or the kept file of --restore"
    )
    parser.add_argument("dest", type=Path, help="folder to write")
    parser.add_argument("--weights", choices=("averaged", "raw"), default="averaged")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write the small resumable state to DEST instead")
    parser.add_argument("--restore", action="store_true", help="make the run folder DEST from a kept state")
    given = parser.parse_args()
    if given.restore:
        restore(given.state, given.dest)
    elif given.keep:
        keep(given.state, given.dest, given.weights)
    else:
        torch.manual_seed(0)
        model = TinyVL() if str(given.state) == "-" else load(given.state, given.weights)
        write(model, given.dest)
        if given.check:
            check(given.dest, model)


if __name__ == "__main__":
    main()
