"""A model folder: what its files are called, and how the small JSON files are read.

A folder comes from a hub or from a person: any file may be absent, cut short or hold something else. Whatever is wrong
becomes a `ModelError` in one line that names the file and, where there is one, the field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from galago.errors import ModelError

WEIGHTS: Final = "model.safetensors"
WEIGHTS_INDEX: Final = "model.safetensors.index.json"  # instead of the former when there are several shards

JsonObject = dict[str, Any]


def read_text(path: Path) -> str:
    """The UTF-8 text of a file. Raises ModelError when it is absent, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}: give a folder with a whole checkpoint") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read as text: download the model again") from error


def read_json(path: Path, *, optional: bool = False) -> JsonObject:
    """The JSON object in a file; {} when the file is absent and optional. Raises ModelError otherwise."""
    if optional and not path.exists():
        return {}
    try:
        body = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: download the model again") from error
    if not isinstance(body, dict):
        raise ModelError(f"{path} does not hold a JSON object: download the model again")
    return body


def token_ids(value: object, field: str) -> tuple[int, ...]:
    """Token ids from a field that holds one id, a list of ids or null. Raises ModelError naming `field`."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in listed):
        raise ModelError(f"{field} = {value!r} must be a token id or a list of token ids")
    return tuple(listed)
