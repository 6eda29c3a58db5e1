"""The wheel: small enough, and nothing that the installed program needs is left out of it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LARGEST = 14_000_000  # bytes
NEEDED = {
    "galago/models/tiny/config.json",
    "galago/models/tiny/model.safetensors",
    "galago/models/tiny/tokenizer.json",
    "galago/models/tiny/chat_template.jinja",
    "galago/models/tiny/preprocessor_config.json",
    "galago/models/tiny/generation_config.json",
    "galago/bench/manifest.json.gz",
    "galago/bench/fonts/Go-Regular.ttf",
    "galago/py.typed",
}


def test_the_wheel_holds_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= NEEDED
    assert not [name for name in names if name.startswith(("train/", "tests/", "benchmarks/"))]
    assert any(name.endswith("LICENSE") for name in names)
    assert wheel.stat().st_size <= LARGEST
