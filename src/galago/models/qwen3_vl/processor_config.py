"""What a checkpoint says about its pictures, read strictly from its preprocessor_config.json.

A setting is used, known to change nothing here, or refused by name: pixels prepared otherwise than in training give
wrong answers without an error. A setting that the file leaves out has Qwen3-VL's value. Folders saved by transformers
5 hold the same settings in processor_config.json under "image_processor".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from galago.errors import ModelError
from galago.folder import read_json

Triple = tuple[float, float, float]
Fields = Mapping[str, object]

_FILE = "preprocessor_config.json"
_COMBINED_FILE = "processor_config.json"

# Settings of which one value is implemented. Pillow numbers its filters: 3 is bicubic.
_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "do_resize": (True,),
    "do_rescale": (True,),
    "do_normalize": (True,),
    "do_convert_rgb": (True,),
    "do_center_crop": (False,),
    "do_pad": (False,),
    "resample": (3,),
    "rescale_factor": (1 / 255,),
    "image_processor_type": ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil"),
}
_READ = frozenset(
    {
        "size",
        "min_pixels",
        "max_pixels",
        "patch_size",
        "temporal_patch_size",
        "merge_size",
        "image_mean",
        "image_std",
    }
)
_INERT = frozenset(
    {
        "processor_class",
        "feature_extractor_type",
        "auto_map",
        "data_format",
        "input_data_format",
        "default_to_square",
        "disable_grouping",
        "device",
        "return_tensors",
        "transformers_version",
    }
)


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """How pictures are cut for a checkpoint. min_pixels and max_pixels are areas; the defaults are Qwen3-VL's."""

    min_pixels: int = 65_536  # size.shortest_edge: smaller pictures are enlarged to it
    max_pixels: int = 16_777_216  # size.longest_edge
    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    image_mean: Triple = (0.5, 0.5, 0.5)
    image_std: Triple = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Pixels along one side of an image token."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_folder(cls, folder: Path) -> ProcessorConfig:
        """From the file in a model folder. Raises ModelError naming what is missing, damaged or unsupported."""
        path, combined = folder / _FILE, folder / _COMBINED_FILE
        if path.is_file():
            return cls.from_dict(read_json(path), _FILE)
        fields = read_json(combined, optional=True).get("image_processor")
        if not isinstance(fields, Mapping):
            raise ModelError(f"{folder} has no {_FILE}: download the model again")
        return cls.from_dict(fields, _COMBINED_FILE)

    @classmethod
    def from_dict(cls, fields: Fields, where: str = _FILE) -> ProcessorConfig:
        """From the parsed JSON; see from_folder. where: the file's name, for messages."""
        _refuse_unsupported(fields, where)
        default = cls()
        low, high = _pixels(fields, where)
        config = cls(
            min_pixels=_positive(low, default.min_pixels, "size.shortest_edge", where),
            max_pixels=_positive(high, default.max_pixels, "size.longest_edge", where),
            patch_size=_positive(fields.get("patch_size"), default.patch_size, "patch_size", where),
            temporal_patch_size=_positive(
                fields.get("temporal_patch_size"), default.temporal_patch_size, "temporal_patch_size", where
            ),
            merge_size=_positive(fields.get("merge_size"), default.merge_size, "merge_size", where),
            image_mean=_triple(fields.get("image_mean"), default.image_mean, "image_mean", where),
            image_std=_triple(fields.get("image_std"), default.image_std, "image_std", where),
        )
        _demand(min(config.image_std) > 0, where, "image_std", fields.get("image_std"), "every entry must be positive")
        _demand(config.min_pixels <= config.max_pixels, where, "size", fields.get("size"), "shortest exceeds longest")
        return config


def _refuse_unsupported(fields: Fields, where: str) -> None:
    for name, value in fields.items():
        if name in _SUPPORTED:
            only = _SUPPORTED[name]
            _demand(value is None or value in only, where, name, value, f"only {only[0]!r} is supported")
        elif name not in _READ | _INERT:
            _demand(value is None or value is False, where, name, value, "this setting is not known")


def _pixels(fields: Fields, where: str) -> tuple[object, object]:
    """Smallest and largest area. Qwen2-VL's min_pixels and max_pixels win over `size`, as in transformers."""
    size = fields.get("size") or {}
    names = {"shortest_edge", "longest_edge"}
    known = isinstance(size, Mapping) and set(size) <= names
    _demand(known, where, "size", size, "only shortest_edge and longest_edge are supported")
    assert isinstance(size, Mapping)  # just demanded; tells the type checker
    low, high = fields.get("min_pixels"), fields.get("max_pixels")
    return (
        size.get("shortest_edge") if low is None else low,
        size.get("longest_edge") if high is None else high,
    )


def _positive(value: object, default: int, name: str, where: str) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise _refusal(where, name, value, "a positive whole number is needed")
    return value


def _triple(value: object, default: Triple, name: str, where: str) -> Triple:
    if value is None:
        return default
    numbers = [float(v) for v in value if isinstance(v, int | float)] if isinstance(value, list | tuple) else []
    if len(numbers) != 3:
        raise _refusal(where, name, value, "three numbers are needed")
    return numbers[0], numbers[1], numbers[2]


def _demand(holds: bool, where: str, name: str, value: object, why: str) -> None:
    if not holds:
        raise _refusal(where, name, value, why)


def _refusal(where: str, name: str, value: object, why: str) -> ModelError:
    return ModelError(f"{where}: {name} = {value!r} is not supported: {why}")
