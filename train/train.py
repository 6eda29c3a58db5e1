"""Train `tiny`: stage 1 (vision) teaches the tower to read, stage 2 (joint) the whole model to answer.

`python -m train.train vision --out RUN --minutes 45` and then `python -m train.train joint --out RUN --minutes 65`.
A run goes on from RUN/state.pt; the state is saved every few minutes and on SIGTERM, replaced atomically. Time, not
steps, drives the learning-rate schedule: constant after a warm-up, then falling linearly in the last part of the
stage.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from galago.bench.pictures import BUNDLED_FONTS, Fonts
from train import data, vision_stage
from train.fonts import FONT_ROOTS
from train.model import TinyVL
from train.muon import Muon


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a stage is steered by; printed at its start."""

    stage: str
    minutes: float
    out: Path
    patches: int = 3000  # vision stage: patches of a step
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    decay: float = 0.3  # last share of the stage in which the rate falls
    floor: float = 0.05  # to this share of itself
    warmup: int = 100
    clip: float = 1.0
    ema: float = 0.998
    save_minutes: float = 5.0
    report_steps: int = 200
    evaluate_minutes: float = 8.0
    threads: int = 2
    level: int = 0  # begin at this level of the widening, or further
    pause: Path | None = None  # training waits while this file exists, ten minutes at most
    seed: str = "train"


@dataclass(slots=True)
class State:
    """What is learned and how far: model, slot head, their moving averages, optimisers, counters."""

    model: TinyVL
    head: vision_stage.SlotHead
    average: dict[str, Tensor]
    optimisers: list[torch.optim.Optimizer]
    stage: str
    step: int = 0
    seconds: float = 0.0  # in this stage
    level: int = 0

    def parameters(self) -> dict[str, nn.Parameter]:
        named = {f"{n}": p for n, p in self.model.named_parameters()}
        return named | {f"slot_head.{n}": p for n, p in self.head.named_parameters()}


def is_matrix(name: str, p: Tensor) -> bool:
    """Muon's share: the matrices inside the blocks, not embeddings, positions, the patch kernel or the slot head."""
    return p.ndim == 2 and not any(w in name for w in ("pos_embed", "embed_tokens", "slot_head"))


def build(settings: Settings) -> State:
    """A fresh state, or the saved one; optimisers start anew when the stage changes."""
    torch.manual_seed(0)
    model = TinyVL()
    state = State(model, vision_stage.SlotHead(model.shape.hidden), {}, [], settings.stage)
    named = state.parameters()
    state.optimisers = [
        Muon([p for n, p in named.items() if is_matrix(n, p)], settings.muon_lr),
        torch.optim.AdamW(
            [p for n, p in named.items() if not is_matrix(n, p)], settings.adam_lr, betas=(0.9, 0.98), weight_decay=0.02
        ),
    ]
    path = settings.out / "state.pt"
    if path.exists():
        load(state, torch.load(path, weights_only=True))
    elif settings.stage == "joint":
        sys.exit(f"{path} is missing: run the vision stage first, or restore a kept state with train.export --restore")
    state.level = max(state.level, settings.level)
    state.average = state.average or {n: p.detach().clone() for n, p in named.items()}
    return state


def load(state: State, saved: dict[str, Any]) -> None:
    named = state.parameters()
    with torch.no_grad():
        for name, value in saved["weights"].items():
            named[name].copy_(value)
    state.average = saved.get("average") or {}
    if saved["stage"] == state.stage:
        state.step, state.seconds, state.level = saved["step"], saved["seconds"], saved["level"]
        for optimiser, one in zip(state.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(one)


def save(state: State, settings: Settings, name: str = "state.pt") -> None:
    body = {
        "weights": {n: p.detach() for n, p in state.parameters().items()},
        "average": state.average,
        "stage": state.stage,
        "step": state.step,
        "seconds": state.seconds,
        "level": state.level,
        "optimisers": [o.state_dict() for o in state.optimisers],
    }
    path = settings.out / name
    torch.save(body, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def rate(settings: Settings, state: State) -> float:
    """Share of the full learning rate at this moment."""
    left = 1 - state.seconds / (60 * settings.minutes)
    return min(1.0, (state.step + 1) / settings.warmup) * max(settings.floor, min(1.0, left / settings.decay))


def update(state: State, settings: Settings) -> None:
    """One step of both optimisers, then of the moving average."""
    named = state.parameters()
    nn.utils.clip_grad_norm_(list(named.values()), settings.clip)
    share = rate(settings, state)
    for optimiser, full in zip(state.optimisers, (settings.muon_lr, settings.adam_lr), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = full * share
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    keep = min(settings.ema, state.step / (state.step + 10))
    with torch.no_grad():
        torch._foreach_lerp_([state.average[n] for n in named], [p.detach() for p in named.values()], 1 - keep)


def fonts() -> Fonts:
    return Fonts((BUNDLED_FONTS, *FONT_ROOTS))


def produce(settings: Settings, start: int, level: Any, queue: Any) -> None:
    """The background process: batches in the order of their step numbers."""
    torch.set_num_threads(1)
    have, step = fonts(), start
    while True:
        rng = data.stream(settings.seed, settings.stage, step)
        queue.put(
            vision_stage.batch(rng, have, level.value, settings.patches)
            if settings.stage == "vision"
            else joint().batch(rng, have, level.value)
        )
        step += 1


def joint() -> Any:
    from train import joint_stage

    return joint_stage


def wait_while_paused(settings: Settings) -> float:
    """Seconds spent waiting."""
    start = time.monotonic()
    while settings.pause and settings.pause.exists() and time.monotonic() - start < 600:
        time.sleep(1)
    return time.monotonic() - start


def vision_step(state: State, got: Any, tally: dict[str, float]) -> Tensor:
    visual, _ = state.model.model.visual([torch.from_numpy(s) for s in got.stacks], deep=False)
    loss, right, shown = vision_stage.slot_loss(state.head(visual), torch.from_numpy(got.slots))
    tally["right"] += right
    tally["shown"] += shown
    tally["pictures"] += len(got.order)
    return loss


def report(state: State, tally: dict[str, float], started: float, share: float) -> float:
    """Print what the last steps brought; returns the share of slots that were right."""
    n = tally["steps"]
    accuracy = tally["right"] / max(1, tally["shown"])
    print(
        f"{state.seconds / 60:6.1f} min  step {state.step:6d}  level {state.level}  loss {tally['loss'] / n:.3f}  "
        f"slots {accuracy:.3f}  rate {share:.2f}  {1000 * (time.monotonic() - started) / n:.0f} ms/step  "
        f"{1000 * tally['waited'] / n:.0f} ms waiting  {tally['pictures'] / n:.0f} pictures"
        + "".join(f"  {k[2:]} {v / n:.3f}" for k, v in tally.items() if k.startswith("l_")),
        flush=True,
    )
    return accuracy


def empty_tally() -> dict[str, float]:
    return dict.fromkeys(("right", "shown", "pictures", "steps", "loss", "waited"), 0.0)


def next_level(levels: Any, state: State, settings: Settings, accuracy: float) -> int:
    """One further when enough was right or the time has come."""
    if state.level + 1 == len(levels):
        return state.level
    late = state.seconds / (60 * settings.minutes) >= levels[state.level + 1].latest
    return state.level + (late or accuracy > levels[state.level].enough)


def run(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    state = build(settings)
    print(json.dumps(asdict(settings), default=str), flush=True)
    print(
        f"{sum(p.numel() for p in state.model.parameters()) / 1e6:.2f} M parameters, from step {state.step}", flush=True
    )
    context = mp.get_context("spawn")
    queue, level = context.Queue(6), context.Value("i", state.level)
    worker = context.Process(target=produce, args=(settings, state.step, level, queue), daemon=True)
    worker.start()
    levels = vision_stage.LEVELS if settings.stage == "vision" else joint().LEVELS
    tally, since, saved, evaluated = empty_tally(), time.monotonic(), time.monotonic(), time.monotonic()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    while state.seconds < 60 * settings.minutes and not stop:
        since += wait_while_paused(settings)
        begin = time.monotonic()
        got = queue.get()
        tally["waited"] += time.monotonic() - begin
        loss = vision_step(state, got, tally) if settings.stage == "vision" else joint().step(state, got, tally)
        if math.isfinite(loss.item()):
            loss.backward()
            update(state, settings)
        state.step += 1
        state.seconds += time.monotonic() - begin
        tally["steps"] += 1
        tally["loss"] += loss.item()
        if state.step % settings.report_steps == 0:
            accuracy = report(state, tally, since, rate(settings, state))
            level.value = state.level = next_level(levels, state, settings, accuracy)
            tally, since = empty_tally(), time.monotonic()
        if time.monotonic() - saved > 60 * settings.save_minutes:
            save(state, settings)
            saved = time.monotonic()
        if settings.stage == "joint" and time.monotonic() - evaluated > 60 * settings.evaluate_minutes:
            joint().evaluate(state, fonts())
            evaluated = since = time.monotonic()
    save(state, settings)
    if not stop:
        save(state, settings, f"{settings.stage}.pt")
    print(f"{'stopped' if stop else 'finished'} at step {state.step}", flush=True)
    worker.terminate()


def parse(arguments: list[str] | None = None) -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m train.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("vision", "joint"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the run: state.pt")
    parser.add_argument(
        "--minutes", type=float, required=True, help="training time of this stage in all, resumed parts included"
    )
    for name, kind, text in (
        ("muon-lr", float, "rate of the matrices"),
        ("adam-lr", float, "rate of everything else"),
        ("decay", float, "last share of the stage in which the rate falls"),
        ("patches", int, "patches of a vision step"),
        ("threads", int, "compute threads"),
        ("report-steps", int, "steps between two lines of the log"),
        ("evaluate-minutes", float, "time between two free-running evaluations"),
        ("pause", Path, "wait while this file exists"),
        ("level", int, "begin at this level of the widening, or further"),
        ("seed", str, "namespace of the random streams"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=text)
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    return Settings(**given)


def main() -> None:
    settings = parse()
    settings.out.mkdir(parents=True, exist_ok=True)
    run(settings)


if __name__ == "__main__":
    main()
