"""The architecture of a Qwen3-VL checkpoint, read strictly from its config.json.

Every value is either used, known to be without effect on inference, or refused by name: a checkpoint that asks for
something this code does not do must fail here and not answer wrongly later. Both spellings of the rotary settings are
read: `rope_theta` + `rope_scaling` (as published on the hub) and `rope_parameters` (as newer tools write).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from galago.errors import ModelError
from galago.folder import read_json

ARCHITECTURE = "Qwen3VLForConditionalGeneration"

# Present in published configs, without effect on the arithmetic of inference.
INERT = frozenset(
    (
        "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "initializer_range",
        "use_cache", "_name_or_path", "name_or_path", "attention_dropout", "bos_token_id", "eos_token_id",
        "pad_token_id", "_attn_implementation", "tie_word_embeddings", "auto_map",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Shape of the vision tower. One token of the text model covers (patch_size * merge)^2 pixels."""

    depth: int
    hidden: int
    mlp: int
    heads: int
    patch_size: int
    temporal_patch_size: int
    channels: int
    merge: int  # patches per side that become one token
    out_hidden: int
    position_side: int  # the learned position grid is position_side x position_side
    deepstack: tuple[int, ...]  # blocks whose output is also fed to the first text layers

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def patch_values(self) -> int:
        return self.channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Shape of the language model."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int  # tokens, prompt and answer together
    norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]  # rotary frequencies driven by time, height, width
    tied: bool  # the head is the embedding table


@dataclass(frozen=True, slots=True)
class Qwen3VLConfig:
    """A whole checkpoint's architecture."""

    vision: VisionConfig
    text: TextConfig
    image_token: int
    video_token: int

    @classmethod
    def from_folder(cls, folder: Path) -> Qwen3VLConfig:
        """Read folder/config.json. Raises ModelError in one line for anything missing, damaged or unsupported."""
        return cls.from_dict(read_json(folder / "config.json"))

    @classmethod
    def from_dict(cls, body: Mapping[str, object]) -> Qwen3VLConfig:
        """Build from the parsed config.json; see from_folder."""
        names = body.get("architectures") or []
        if body.get("model_type") != "qwen3_vl" or (names and names != [ARCHITECTURE]):
            found = names or body.get("model_type")
            raise ModelError(f"config.json describes {found}, not {ARCHITECTURE}: only dense Qwen3-VL models run here")
        fields = _Fields(body, "")
        config = cls(
            vision=_vision(fields.section("vision_config")),
            text=_text(fields.section("text_config"), tied=_tied(body)),
            image_token=fields.integer("image_token_id", least=0),
            video_token=fields.integer("video_token_id", least=0),
        )
        fields.skip("vision_start_token_id", "vision_end_token_id")
        fields.refuse_the_rest()
        if config.vision.out_hidden != config.text.hidden:
            raise ModelError(
                f"config.json: vision_config.out_hidden_size = {config.vision.out_hidden} differs from "
                f"text_config.hidden_size = {config.text.hidden}"
            )
        return config


def _tied(body: Mapping[str, object]) -> bool:
    text = body.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, Mapping) else None
    return bool(body.get("tie_word_embeddings", inner or False))


def _vision(fields: _Fields) -> VisionConfig:
    fields.only("hidden_act", "gelu_pytorch_tanh")
    fields.rope_default("rope_parameters", theta=10000.0, kind="axial")
    positions = fields.integer("num_position_embeddings")
    config = VisionConfig(
        depth=fields.integer("depth"),
        hidden=fields.integer("hidden_size"),
        mlp=fields.integer("intermediate_size"),
        heads=fields.integer("num_heads"),
        patch_size=fields.integer("patch_size"),
        temporal_patch_size=fields.integer("temporal_patch_size"),
        channels=fields.integer("in_channels", 3),
        merge=fields.integer("spatial_merge_size"),
        out_hidden=fields.integer("out_hidden_size"),
        position_side=round(positions**0.5),
        deepstack=fields.integers("deepstack_visual_indexes"),
    )
    fields.refuse_the_rest()
    fields.demand(config.position_side**2 == positions, "num_position_embeddings", "is not a square")
    fields.demand(config.hidden % (4 * config.heads) == 0, "num_heads", "does not divide hidden_size by fours")
    fields.demand(all(0 <= i < config.depth for i in config.deepstack), "deepstack_visual_indexes", "exceeds depth")
    return config


def _text(fields: _Fields, *, tied: bool) -> TextConfig:
    fields.only("hidden_act", "silu")
    fields.only("attention_bias", False, default=False)
    head_dim = fields.integer("head_dim")
    theta, section = _rope(fields, head_dim)
    config = TextConfig(
        layers=fields.integer("num_hidden_layers"),
        hidden=fields.integer("hidden_size"),
        mlp=fields.integer("intermediate_size"),
        heads=fields.integer("num_attention_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        vocabulary=fields.integer("vocab_size"),
        context=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        mrope_section=section,
        tied=tied,
    )
    fields.refuse_the_rest()
    fields.demand(config.heads % config.kv_heads == 0, "num_key_value_heads", "does not divide num_attention_heads")
    return config


def _rope(fields: _Fields, head_dim: int) -> tuple[float, tuple[int, int, int]]:
    """Rotary base and M-RoPE sections from either spelling of the settings, or from both where they agree."""
    newer = _Fields(fields.take("rope_parameters", None) or {}, fields.where + "rope_parameters.")
    older = _Fields(fields.take("rope_scaling", None) or {}, fields.where + "rope_scaling.")
    if (theta := fields.take("rope_theta", None)) is not None:
        older.body.setdefault("rope_theta", theta)
    for name, value in newer.body.items():
        agrees = older.body.get(name, value) == value
        older.demand(agrees, name, f"differs from {newer.where}{name} = {value!r}")
    rope = _Fields(older.body | newer.body, newer.where if newer.body else older.where)
    for name in ("rope_type", "type"):
        rope.only(name, "default", default="default")
    rope.only("mrope_interleaved", True)
    section = rope.integers("mrope_section")
    base = rope.number("rope_theta")
    rope.refuse_the_rest()
    rope.demand(len(section) == 3, "mrope_section", "does not have three entries")
    rope.demand(2 * sum(section) == head_dim, "mrope_section", f"does not sum to half of head_dim, {head_dim}")
    return base, (section[0], section[1], section[2])


class _Fields:
    """A JSON object whose entries are taken by name and type, and whose leftovers are refused by name."""

    def __init__(self, body: object, where: str) -> None:
        if not isinstance(body, Mapping):
            raise ModelError(f"config.json: {where.rstrip('.') or 'the file'} is not an object")
        self.body = dict(body)
        self.where = where
        self.left = {name for name in self.body if name not in INERT}

    def take(self, name: str, default: object = ...) -> object:
        self.left.discard(name)
        value = self.body.get(name, default)
        if value is ...:
            raise ModelError(f"config.json: {self.where}{name} is missing")
        return value

    def skip(self, *names: str) -> None:
        self.left -= set(names)

    def section(self, name: str) -> _Fields:
        return _Fields(self.take(name), f"{self.where}{name}.")

    def integer(self, name: str, default: object = ..., *, least: int = 1) -> int:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._refusal(name, value, f"a whole number of at least {least} is needed")
        return value

    def number(self, name: str, default: object = ...) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal(name, value, "a number is needed")
        return float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not all(isinstance(v, int) and v >= 0 for v in value):
            raise self._refusal(name, value, "a list of whole numbers is needed")
        return tuple(value)

    def only(self, name: str, supported: object, default: object = ...) -> None:
        value = self.take(name, default)
        if value != supported:
            raise self._refusal(name, value, f"only {supported!r} is supported")

    def rope_default(self, name: str, *, theta: float, kind: str) -> None:
        value = self.take(name, None)
        if value is not None and value != {"rope_theta": theta, "rope_type": kind}:
            raise self._refusal(name, value, f"only {kind} with rope_theta {theta:g} is supported")

    def demand(self, holds: bool, name: str, fault: str) -> None:
        if not holds:
            raise ModelError(f"config.json: {self.where}{name} = {self.body.get(name)!r} {fault}")

    def refuse_the_rest(self) -> None:
        """Entries nobody took; null, false and empty ones ask for nothing."""
        for name in sorted(self.left):
            if self.body[name]:
                raise self._refusal(name, self.body[name], "this setting is not known")

    def _refusal(self, name: str, value: object, why: str) -> ModelError:
        return ModelError(f"config.json: {self.where}{name} = {value!r} is not supported: {why}")
