"""What every stored measurement says of itself: commit, CPU, versions, command. JSON, one file per run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path


def environment() -> dict[str, object]:
    """The machine and the code that a figure belongs to."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "galago": version("galago"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def write(path: Path, results: Mapping[str, object]) -> None:
    """Write the results with their environment, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"environment": environment(), **results}, indent=1, ensure_ascii=False) + "\n")
    part.replace(path)


def _commit() -> str:
    """The checkout's commit, with a mark when it has changes; "unknown" outside a checkout."""
    here = Path(__file__).parent
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    keys = ("model name", "cpu family", "model")
    return ", ".join(f"{key} {named[key]}" if key != "model name" else named[key] for key in keys if key in named)
