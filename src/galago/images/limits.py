"""How large a picture may be, and the one way in which pictures are refused.

Both limits are checked on the encoded bytes and the header, before a pixel is decoded. A refusal is one line that
names the picture, the fault, the limit and the way out; it never carries a decoder's own words.
"""

from __future__ import annotations

from dataclasses import dataclass

from galago.errors import BadImage

MAX_ASPECT = 200  # long side over short side; Qwen-VL's processors refuse more, 200 itself is allowed

_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What one picture may cost: pixels once decoded, bytes as sent."""

    max_pixels: int = 64_000_000
    max_bytes: int = 20_000_000


DEFAULT_LIMITS = ImageLimits()


def label(name: str) -> str:
    """`name` as it may stand in a message: one line, printable, short enough to leave room for the fault."""
    line = "".join(c if c.isprintable() else "?" for c in name) or "picture"
    return line if len(line) <= _LONGEST_NAME else f"...{line[3 - _LONGEST_NAME :]}"


def refusal(name: str, reason: str) -> BadImage:
    """The error for the picture called `name`."""
    return BadImage(f"{label(name)}: {reason}")


def check_bytes(size: int, limits: ImageLimits, name: str) -> None:
    """Refuse a file of no bytes, or of more than `limits.max_bytes`."""
    if size == 0:
        raise refusal(name, "the file is empty")
    if size > limits.max_bytes:
        raise refusal(
            name, f"{size / 1e6:,.1f} MB, the limit is {limits.max_bytes / 1e6:g} MB; save it smaller or as JPEG"
        )


def check_pixels(width: int, height: int, limits: ImageLimits, name: str) -> None:
    """Refuse a picture that would decode to more than `limits.max_pixels`."""
    if width * height > limits.max_pixels:
        size = f"{width} x {height} is {width * height / 1e6:,.1f} megapixels"
        raise refusal(name, f"{size}, the limit is {limits.max_pixels / 1e6:g}; scale it down")


def check_aspect(width: int, height: int, name: str) -> None:
    """Refuse a picture more than MAX_ASPECT times as long as it is wide, or the other way round."""
    if max(width, height) > MAX_ASPECT * min(width, height):
        ratio = max(width, height) / min(width, height)
        raise refusal(
            name, f"{width} x {height} has an aspect ratio of {ratio:,.1f}, the limit is {MAX_ASPECT}; crop it"
        )
