"""Pictures described by data: small frozen specs and the one function that draws them.

A spec is plain JSON, so an evaluation set is a list of descriptions and not of image files. `render` depends on the
spec alone: text is laid out by Pillow's basic engine (no ligatures, no system shaping), noise comes from the spec's
own seed. Coordinates are pixels of the unscaled picture; a line of text is placed by the left end of its baseline.
Only numpy and Pillow are needed here, so that a tool without torch can draw the same pictures.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

RGB = tuple[int, int, int]

BUNDLED_FONTS = Path(__file__).parent / "fonts"
DEFAULT_FONT = "default"  # the typeface inside Pillow itself, at any size
SHAPES = ("circle", "square", "triangle", "star")
COLOURS: dict[str, RGB] = {
    "red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 70, 220), "yellow": (245, 215, 40),
    "orange": (245, 140, 20), "purple": (140, 50, 170), "pink": (250, 150, 190), "black": (12, 12, 12),
    "white": (250, 250, 250),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ground:
    """What lies behind everything: `plain`, `coloured` (one colour), `gradient` (two, from left to right or top to
    bottom)
    or `noisy` (one colour and grain of +-`strength` levels)."""

    kind: str
    colour: RGB
    second: RGB | None = None
    strength: int = 0


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of text. `font` is a file name that `Fonts` resolves, (`x`, `y`) the left end of the baseline in px."""

    text: str
    font: str
    size_px: int
    x: int
    y: int
    colour: RGB


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """One filled shape of a named colour inside `box` = (left, top, right, bottom) in px."""

    kind: str
    colour: str
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class PictureSpec:
    """A whole picture: its size in px, ground, lines, shapes, the seed of its noise and a JPEG quality (0: no JPEG)."""

    width: int
    height: int
    ground: Ground
    seed: int = 0
    lines: tuple[TextLine, ...] = ()
    shapes: tuple[ShapeSpec, ...] = ()
    jpeg: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> PictureSpec:
        ground, lines, shapes = raw["ground"], raw.get("lines", ()), raw.get("shapes", ())
        second = _rgb(ground["second"]) if ground.get("second") else None
        return cls(
            width=raw["width"], height=raw["height"], seed=raw.get("seed", 0), jpeg=raw.get("jpeg", 0),
            ground=Ground(ground["kind"], _rgb(ground["colour"]), second, ground.get("strength", 0)),
            lines=tuple(TextLine(i["text"], i["font"], i["size_px"], i["x"], i["y"], _rgb(i["colour"])) for i in lines),
            shapes=tuple(ShapeSpec(s["kind"], s["colour"], _box(s["box"])) for s in shapes),
        )  # fmt: skip


def _rgb(values: Iterable[int]) -> RGB:
    r, g, b = values
    return (r, g, b)


def _box(values: Iterable[int]) -> tuple[int, int, int, int]:
    left, top, right, bottom = values
    return (left, top, right, bottom)


class MissingFont(LookupError):
    """A spec names a font file that none of the given folders holds."""


@dataclass(slots=True)
class Fonts:
    """Font files by name, looked up in `folders` (first hit wins, sub-folders included), opened once per size."""

    folders: tuple[Path, ...] = (BUNDLED_FONTS,)
    keep: int = 1500  # opened (file, size) pairs held at a time
    _paths: dict[str, Path] = field(default_factory=dict, init=False)
    _opened: OrderedDict[tuple[str, int], ImageFont.FreeTypeFont] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        for folder in reversed(self.folders):
            self._paths.update({p.name: p for p in sorted(folder.rglob("*")) if p.suffix.lower() in (".ttf", ".otf")})

    def names(self) -> list[str]:
        return sorted(self._paths)

    def path(self, name: str) -> Path:
        """Where the file lies. Raises MissingFont with what to install."""
        if name not in self._paths:
            looked = ", ".join(str(f) for f in self.folders)
            raise MissingFont(
                f"font file {name!r} is not in {looked}; install the Debian packages listed in train/fonts.txt"
            )
        return self._paths[name]

    def get(self, name: str, size_px: int) -> ImageFont.FreeTypeFont:
        key = (name, size_px)
        if key in self._opened:
            self._opened.move_to_end(key)
            return self._opened[key]
        font = (
            _default_font(size_px)
            if name == DEFAULT_FONT
            else ImageFont.truetype(str(self.path(name)), size_px, layout_engine=ImageFont.Layout.BASIC)
        )
        self._opened[key] = font
        if len(self._opened) > self.keep:
            self._opened.popitem(last=False)
        return font


def _default_font(size_px: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size_px)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def render(spec: PictureSpec, fonts: Fonts) -> Image.Image:
    """Draw `spec`: ground, shapes, lines, then grain and JPEG. Returns an RGB picture of `width` x `height`."""
    image = _ground(spec)
    draw = ImageDraw.Draw(image)
    for shape in spec.shapes:
        draw_shape(draw, shape)
    for line in spec.lines:
        draw.text((line.x, line.y), line.text, font=fonts.get(line.font, line.size_px), fill=line.colour, anchor="ls")
    if spec.ground.kind == "noisy":
        image = _grain(image, spec.ground.strength, spec.seed)
    return _jpeg(image, spec.jpeg) if spec.jpeg else image


def _ground(spec: PictureSpec) -> Image.Image:
    ground, size = spec.ground, (spec.width, spec.height)
    if ground.kind != "gradient" or ground.second is None:
        return Image.new("RGB", size, ground.colour)
    across = spec.seed % 2 == 0
    steps = np.linspace(0.0, 1.0, spec.width if across else spec.height, dtype=np.float32)[:, None]
    ramp = np.asarray(ground.colour, np.float32) * (1 - steps) + np.asarray(ground.second, np.float32) * steps  # [n, 3]
    pixels = ramp[None] if across else ramp[:, None]
    return Image.fromarray(np.broadcast_to(pixels, (spec.height, spec.width, 3)).astype(np.uint8))


def _grain(image: Image.Image, strength: int, seed: int) -> Image.Image:
    pixels = np.asarray(image, dtype=np.int16)
    grain = np.random.default_rng(seed).integers(-strength, strength + 1, pixels.shape, dtype=np.int16)
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def draw_shape(draw: ImageDraw.ImageDraw, shape: ShapeSpec) -> None:
    """Fill one shape. Raises ValueError for an unknown kind, KeyError for an unknown colour."""
    fill, (left, top, right, bottom) = COLOURS[shape.colour], shape.box
    if shape.kind == "circle":
        draw.ellipse(shape.box, fill=fill)
    elif shape.kind == "square":
        draw.rectangle(shape.box, fill=fill)
    elif shape.kind == "triangle":
        draw.polygon([((left + right) / 2, top), (left, bottom), (right, bottom)], fill=fill)
    elif shape.kind == "star":
        draw.polygon(_star(left, top, right, bottom), fill=fill)
    else:
        raise ValueError(f"unknown shape {shape.kind!r}; known are {', '.join(SHAPES)}")


def _star(left: int, top: int, right: int, bottom: int) -> list[tuple[float, float]]:
    """Five points; inner radius 0.42 of the outer one, scaled so that the outline fills its box."""
    corners = [(r * sin(pi * k / 5), -r * cos(pi * k / 5)) for k in range(10) for r in ((1.0, 0.42)[k % 2],)]
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    sx, sy = (right - left) / (max(xs) - min(xs)), (bottom - top) / (max(ys) - min(ys))
    return [(left + (x - min(xs)) * sx, top + (y - min(ys)) * sy) for x, y in corners]
