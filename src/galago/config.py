"""Settings, one tree: flags > environment (GALAGO_*) > TOML file > defaults. The only reader of the environment.

The file is $GALAGO_CONFIG, or galago/config.toml in $XDG_CONFIG_HOME (~/.config) if it exists. Its keys are the field
names below; the environment's are the same in capitals behind GALAGO_. Wrong types, and unknown keys of the file, are
refused by name. Other GALAGO_* variables are let be: Kubernetes makes some for a service of that name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from galago.errors import BadRequest

PREFIX = "GALAGO_"


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for every command."""

    model: str = "2b"  # alias, folder or hub id
    hub: str = "huggingface"  # or "modelscope"
    format: str = "auto"
    threads: int | None = None  # None: one per physical core that may be used
    detail: str = "auto"


def bound_spinning() -> None:
    """Let computing threads that wait for each other sleep soon. Must run before torch is imported.

    libgomp's threads spin for milliseconds by default: on a machine where another program runs, the one that is waited
    for then waits for a core on which the other one spins, and a token takes a hundred times as long
    (docs/performance.md). A user's own setting stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def debugging() -> bool:
    """Whether internal errors are shown with their traceback: GALAGO_DEBUG."""
    return bool(os.environ.get(PREFIX + "DEBUG"))


def language() -> str:
    """The user's language by the locale's variables, lower case, such as "zh_cn.utf-8"; empty when none is set."""
    return next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "").lower()


def load(flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Settings:
    """Merge the sources. Flags that are None were not given. Raises BadRequest naming the source and the key."""
    env = os.environ if environment is None else environment
    merged = _file(env) | _environment(env) | {k: v for k, v in flags.items() if v is not None}
    return Settings(**merged)  # type: ignore[arg-type]  # every value was checked against its field


def _file(env: Mapping[str, str]) -> dict[str, object]:
    """The settings of the file. Only the one that nobody named may be absent."""
    named = env.get(PREFIX + "CONFIG")
    path = Path(named) if named else _default_path(env)
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not named:
            return {}
        raise BadRequest(f"{path} is not a readable TOML file: {error}") from error
    return {key: _checked(key, value, str(path)) for key, value in body.items()}


def _default_path(env: Mapping[str, str]) -> Path:
    # expanduser and not Path.home, which raises where a container runs as a user without a home.
    return Path(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "galago", "config.toml")


def _environment(env: Mapping[str, str]) -> dict[str, object]:
    """GALAGO_* variables that name a field; empty ones count as not set."""
    names = {PREFIX + field.name.upper(): field.name for field in fields(Settings)}
    found = {names[key]: value for key, value in env.items() if key in names and value}
    return {name: _checked(name, _number(name, value), PREFIX + name.upper()) for name, value in found.items()}


def _number(name: str, value: str) -> object:
    return int(value) if name == "threads" and value.isdecimal() and len(value) < 10 else value


def _checked(key: str, value: object, source: str) -> object:
    wanted = {field.name: int if field.name == "threads" else str for field in fields(Settings)}
    if key not in wanted:
        raise BadRequest(f"{source}: setting {key!r} is not known: use one of {', '.join(wanted)}")
    if type(value) is not wanted[key]:
        raise BadRequest(f"{source}: {key} = {value!r} must be a {'whole number' if wanted[key] is int else 'text'}")
    return value
