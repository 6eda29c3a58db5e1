"""Weights from safetensors files, memory-mapped and checked before use.

Nothing but safetensors is ever read and nothing in a model folder is ever executed. Every tensor that the architecture
needs must be there with its shape, and no other: a mismatch lists the names. A taken tensor is a view of the mapped
file, so a process holds no second copy of what it uses as it lies there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from galago.errors import ModelError
from galago.folder import WEIGHTS, WEIGHTS_INDEX, read_json

Shapes = Mapping[str, tuple[int, ...]]

DTYPES = {"BF16", "F16", "F32"}
SHOWN = 5  # names listed in an error before "and N more"


@dataclass(frozen=True, slots=True)
class Weights:
    """The mapped tensors of a checkpoint, by name."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def load_weights(folder: Path, expected: Shapes, optional: Iterable[str] = ()) -> Weights:
    """Map all tensors of `expected` (name -> shape); names in `optional` may be present and are left out.

    Raises ModelError naming the file for a missing, truncated or damaged shard, and naming the tensors that are
    missing, surplus, misshapen or of a type other than bfloat16, float16 and float32.
    """
    tensors: dict[str, Tensor] = {}
    faults: dict[str, str] = {}  # by tensor
    ignored = frozenset(optional)
    for shard in _shards(folder):
        _read_shard(shard, expected, ignored, tensors, faults)
    missing = [name for name in expected if name not in tensors and name not in faults]
    _raise_for(folder, missing, list(faults.values()))
    return Weights(tensors)


def _shards(folder: Path) -> list[Path]:
    index, single = folder / WEIGHTS_INDEX, folder / WEIGHTS
    if not index.exists():
        if not single.is_file():
            raise ModelError(f"{folder} has no {WEIGHTS}: only safetensors checkpoints are read")
        return [single]
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(f"{index} is not a weight index: download the model again")
    names = sorted(set(listed.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise ModelError(f"{index} names {_some(outside)}: only files of the model's own folder are read")
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise ModelError(f"{folder} lacks {_some(absent)}, named in {WEIGHTS_INDEX}: download the model again")
    return [folder / name for name in names]


def _read_shard(
    path: Path, expected: Shapes, ignored: frozenset[str], tensors: dict[str, Tensor], faults: dict[str, str]
) -> None:
    try:
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  # the handle is not a mapping
                if name in ignored or name.endswith("rotary_emb.inv_freq"):
                    continue
                found = shard.get_slice(name)
                shape, dtype = tuple(found.get_shape()), found.get_dtype()
                if fault := _fault(name, shape, dtype, expected, tensors):
                    faults[name] = fault
                else:
                    tensors[name] = shard.get_tensor(name)
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ModelError(f"{path} ({size:,} bytes) is truncated or damaged: download the model again") from error


def _fault(name: str, shape: tuple[int, ...], dtype: str, expected: Shapes, seen: Mapping[str, Tensor]) -> str | None:
    if name not in expected:
        return f"surplus {name}"
    if name in seen:
        return f"{name} twice"
    if shape != expected[name]:
        return f"{name} is {list(shape)} instead of {list(expected[name])}"
    if dtype not in DTYPES:
        return f"{name} is {dtype}"
    return None


def _raise_for(folder: Path, missing: list[str], faults: list[str]) -> None:
    wrong = ([f"missing {_some(missing)}"] if missing else []) + ([_some(faults)] if faults else [])
    if wrong:
        raise ModelError(f"{folder} does not hold the weights its config.json describes: {'; '.join(wrong)}")


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def in_float32(tensor: Tensor) -> Tensor:
    """A float32 copy, for the small tensors (norms) that are always applied in float32."""
    return tensor.to(torch.float32)
