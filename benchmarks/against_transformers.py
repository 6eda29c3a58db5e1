"""Galago beside transformers (bf16, sdpa) on one checkpoint: time to first token, time per token, peak memory.

Each program is a worker process that loads the model once; the parent asks them in turn, A B A B, so that a machine
whose speed drifts slows both alike, and every question shows a new picture of noise, so that nothing is cached.
TTFT runs from the picture file to the first token, TPOT is the mean of the tokens after it.

    galago bench checkpoint checkpoints/2b
    python benchmarks/against_transformers.py checkpoints/2b --out benchmarks/results/bf16.json
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from galago.bench import report

SIZES = ((448, 448), (1280, 704))
QUESTION = "What is in the picture?"
PROGRAMS = ("galago", "transformers")
Answer = Callable[[Path, int], list[float]]  # (picture, tokens) -> time stamp of the question and of every token


def galago(checkpoint: Path) -> Answer:
    from galago.engine.core import Engine
    from galago.hardware import plan_threads
    from galago.models.formats import format_by_name
    from galago.types import Detail, ImageOptions, ImagePart, Message, Request, SamplingParams, TextPart, TokenEvent

    engine = Engine(checkpoint, format_by_name("bf16"), plan_threads().threads)

    def answer(picture: Path, tokens: int) -> list[float]:
        stamps = [time.perf_counter()]
        part = ImagePart(picture.read_bytes(), ImageOptions(Detail.HIGH))
        message = Message("user", (part, TextPart(QUESTION)))
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for event in engine.generate(Request((message,), params)):
            if isinstance(event, TokenEvent) and event.token is not None:
                stamps.append(time.perf_counter())
        return stamps

    return answer


def transformers(checkpoint: Path) -> Answer:
    import torch
    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
    from transformers.generation.streamers import BaseStreamer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from galago.hardware import plan_threads

    torch.set_num_threads(plan_threads().threads)
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoint)
    image_token = model.config.image_token_id

    class Stamps(BaseStreamer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def answer(picture: Path, tokens: int) -> list[float]:
        stamps, asked = Stamps(), time.perf_counter()
        pixels = processor(images=Image.open(picture).convert("RGB"), return_tensors="pt")
        count = int(pixels["image_grid_thw"].prod()) // 4
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        ).replace("<|image_pad|>", "<|image_pad|>" * count)
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            model.generate(
                input_ids=ids, mm_token_type_ids=(ids == image_token).int(), **pixels, max_new_tokens=tokens,
                do_sample=False, eos_token_id=None, pad_token_id=0, streamer=stamps,
            )  # fmt: skip
        return [asked, *stamps.times[1:]]  # the first call hands over the prompt

    return answer


def work(program: str, checkpoint: Path) -> None:
    """A worker: one JSON question per line in, one JSON line of time stamps out."""
    answer = {"galago": galago, "transformers": transformers}[program](checkpoint)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        picture, tokens = json.loads(line)
        print(json.dumps(answer(Path(picture), tokens)), flush=True)


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, program: str, checkpoint: Path) -> None:
        command = [sys.executable, __file__, str(checkpoint), "--worker", program]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "ready"

    def ask(self, picture: Path, tokens: int) -> dict[str, float]:
        assert self.process.stdin is not None
        print(json.dumps([str(picture), tokens]), file=self.process.stdin, flush=True)
        asked, first, *rest = self._read()
        return {"ttft_ms": (first - asked) * 1e3, "tpot_ms": (rest[-1] - first) / len(rest) * 1e3}

    def _read(self) -> object:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(('"', "[")):
                return json.loads(line)
        raise RuntimeError(f"the worker ended with {self.process.wait()}")


def noise(folder: Path, size: tuple[int, int], seed: int) -> Path:
    path = folder / f"{size[0]}x{size[1]}-{seed}.png"
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(size).save(path)
    return path


def compare(checkpoint: Path, rounds: int, tokens: int) -> dict[str, object]:
    workers = {name: Worker(name, checkpoint) for name in PROGRAMS}
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, rounds):  # round -1 warms up and is not kept
            for size in SIZES:
                picture = noise(Path(folder), size, number + 1)
                for name, worker in workers.items():
                    figures = worker.ask(picture, tokens if number >= 0 else 2)
                    if number >= 0:
                        runs.append({"program": name, "size": f"{size[0]}x{size[1]}", "round": number, **figures})
                        print(runs[-1], file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.process.kill()
    return {"runs": runs, "medians": medians(runs)}


def medians(runs: list[dict[str, object]]) -> list[dict[str, object]]:
    """Per size and figure: the median of each program and of the ratio galago / transformers within a round."""
    rows = []
    for size in sorted({str(run["size"]) for run in runs}):
        for figure in ("ttft_ms", "tpot_ms"):
            series = {p: [float(r[figure]) for r in runs if r["program"] == p and r["size"] == size] for p in PROGRAMS}  # type: ignore[arg-type]
            ratios = [a / b for a, b in zip(*(series[p] for p in PROGRAMS), strict=True)]
            row: dict[str, object] = {p: round(statistics.median(values), 1) for p, values in series.items()}
            spread = [round(min(ratios), 3), round(max(ratios), 3)]
            rows.append(
                {"size": size, "figure": figure, **row, "ratio": round(statistics.median(ratios), 3), "min_max": spread}
            )
    return rows


def peak_memory(checkpoint: Path) -> dict[str, float]:
    """Peak resident memory of `galago ask --format bf16` on a 1280x704 picture, and the bytes of the weights, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        picture = noise(Path(folder), (1280, 704), 0)
        command = [
            sys.executable,
            "-m",
            "galago",
            "ask",
            "--model",
            str(checkpoint),
            "--format",
            "bf16",
            "--detail",
            "high",
        ]
        subprocess.run([*command, "--max-tokens", "32", str(picture), QUESTION], check=True, stdout=subprocess.DEVNULL)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3 * 1.024
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")) / 1e6
    return {"peak_mb": round(peak, 1), "weights_mb": round(weights, 1), "bound_mb": round(1.2 * weights + 300, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=PROGRAMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.checkpoint)
        return
    results = {"memory": peak_memory(args.checkpoint)} | compare(args.checkpoint, args.rounds, args.tokens)
    if args.out:
        report.write(args.out, results)
    print(json.dumps({key: results[key] for key in ("memory", "medians")}, indent=1))


if __name__ == "__main__":
    main()
