"""Any mode a decoder returns -> opaque 8-bit sRGB.

Transparency is laid on white, because text is dark more often than light (and black on black vanishes). 16-bit gray
is scaled, not clipped. CMYK JPEGs are read with Adobe's inverted polarity whether or not they carry Adobe's marker:
Pillow and the browsers do the same. A colour profile that cannot be used is ignored with a notice, never an error.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageCms

PROFILE_IGNORED = "colour profile ignored: damaged or of another colour space"

_PROFILE_SPACE = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, bits: int) -> tuple[Image.Image, tuple[str, ...]]:
    """`image` in mode RGB, and notices. bits: per sample as stored; only a PNG's transparent colour depends on it."""
    icc = image.info.get("icc_profile")
    opaque = flatten(image, bits)
    if not icc:
        return _as_rgb(opaque), ()
    try:
        return _apply_profile(opaque, icc), ()
    except (ImageCms.PyCMSError, OSError, ValueError):
        return _as_rgb(opaque), (PROFILE_IGNORED,)


def _as_rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")  # convert copies even where nothing changes


def flatten(image: Image.Image, bits: int) -> Image.Image:
    """`image` on white, in mode L, RGB or CMYK."""
    if image.mode.startswith("I"):
        return _from_16_bit(image)
    if image.has_transparency_data:
        return _on_white(_scale_transparent_colour(image, bits))
    if image.mode in _PROFILE_SPACE:
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    """16-bit gray by its high byte, as Pillow does for 16-bit colour; the transparent value, if any, turns white."""
    values = np.asarray(image)
    gray = np.clip(values >> 8, 0, 255).astype(np.uint8)
    if (transparent := image.info.get("transparency")) is not None:
        gray[values == transparent] = 255
    return Image.fromarray(gray)


def _scale_transparent_colour(image: Image.Image, bits: int) -> Image.Image:
    """Bring a PNG's transparent colour to the 8 bits to which Pillow has brought the pixels (it leaves the colour)."""
    colour = image.info.get("transparency")
    if image.mode == "L" and bits < 8 and isinstance(colour, int):
        image.info["transparency"] = colour * 255 // ((1 << bits) - 1)
    elif image.mode == "RGB" and bits == 16 and isinstance(colour, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in colour)
    return image


def _on_white(image: Image.Image) -> Image.Image:
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    layer = image if image.mode == mode + "A" else image.convert(mode + "A")
    alpha = layer.getchannel("A")
    colours = layer.convert(mode)
    if alpha.getextrema() == (255, 255):  # most pictures with an alpha channel are opaque: screenshots
        return colours
    ground = Image.new(mode, image.size, "white")
    ground.paste(colours, mask=alpha)
    return ground


def _apply_profile(image: Image.Image, icc: bytes) -> Image.Image:
    profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    if profile.profile.xcolor_space.strip() != _PROFILE_SPACE[image.mode]:
        raise ValueError("the profile describes another colour space")
    transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), image.mode, "RGB")
    if image.mode != "CMYK" and _changes_nothing(transform, image.mode):
        return _as_rgb(image)  # most profiles in the wild are sRGB: a pass over the pixels saved
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None  # only in-place transforms return None
    return converted


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Whether no sample colour moves by more than one level: a 9x9x9 cube of RGB, or the gray ramp."""
    if mode == "L":
        samples = np.arange(256, dtype=np.uint8)[None]
    else:
        steps = np.linspace(0, 255, 9).astype(np.uint8)
        samples = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
    before = Image.fromarray(samples)
    after = ImageCms.applyTransform(before, transform)
    assert after is not None
    moved = np.asarray(after, np.int16) - np.asarray(before.convert("RGB"), np.int16)
    return int(np.abs(moved).max()) <= 1
