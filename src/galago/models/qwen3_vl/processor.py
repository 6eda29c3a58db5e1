"""A `Picture` -> the patches that the vision tower reads, and the pixels and tokens it may take.

plan() needs only the size, so a prompt can be counted and refused before a pixel is decoded. Sizes follow Qwen's rule
and equal those of transformers' Qwen2VLImageProcessor; pixel values equal its Pillow backend's. One image token covers
factor^2 = (patch * merge)^2 pixels.

Shapes: R, C rows and columns of tokens; m merge; p patch; t temporal patch; P = R * C * m * m patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from galago.errors import BadRequest
from galago.images.limits import check_aspect
from galago.models.qwen3_vl.processor_config import ProcessorConfig
from galago.types import Detail, Grid, ImageOptions, ImageReport, Picture

__all__ = ["ImagePlan", "ProcessorConfig", "budget", "patchify", "plan", "report", "smart_resize"]

FAST_SIDE = 448  # detail=fast: a square of 14 x 14 tokens, whatever the picture's shape
TOKEN_CEILING = {Detail.LOW: 256, Detail.AUTO: 768, Detail.HIGH: 1280}


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What a picture will become: the size it is resized to, its patches and its image tokens."""

    grid: Grid
    used_width: int
    used_height: int
    tokens: int


def smart_resize(
    width: int, height: int, factor: int, min_pixels: int, max_pixels: int, name: str = "picture"
) -> tuple[int, int]:
    """The nearest size whose sides are multiples of `factor` and whose area lies in min_pixels..max_pixels.

    Rounds to the nearest multiple (half to even); outside the range scales, keeping the aspect, down to the multiple
    below or up to the multiple above. A side never falls under one factor, so a strip may exceed a max_pixels of less
    than 200 tokens; rounding up may exceed one close to min_pixels. Raises BadImage for an aspect over 200.
    Source: smart_resize in transformers' image_processing_qwen2_vl.py.
    """
    check_aspect(width, height, name)
    area = round(width / factor) * round(height / factor) * factor**2
    if area > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        counts = [math.floor(side / shrink / factor) for side in (width, height)]
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        counts = [math.ceil(side * grow / factor) for side in (width, height)]
    else:
        counts = [round(side / factor) for side in (width, height)]
    columns, rows = (max(count, 1) for count in counts)
    return columns * factor, rows * factor


def budget(options: ImageOptions, config: ProcessorConfig) -> tuple[int, int]:
    """Smallest and largest area in pixels that a picture may be resized to.

    `detail` sets the largest and the checkpoint the smallest, so that small pictures are not enlarged beyond what the
    model needs. An explicit min_pixels or max_pixels wins over either; the checkpoint's own largest always holds.
    Raises BadRequest, naming the field, for values that cannot be met.
    """
    _check_overrides(options, config)
    if options.detail is Detail.FAST:
        return FAST_SIDE**2, FAST_SIDE**2
    ceiling = options.max_pixels or TOKEN_CEILING[options.detail] * config.factor**2
    floor = options.min_pixels or min(config.min_pixels, ceiling)
    return floor, min(max(floor, ceiling), config.max_pixels)


def _check_overrides(options: ImageOptions, config: ProcessorConfig) -> None:
    low, high, token = options.min_pixels, options.max_pixels, config.factor**2
    if low is not None and not 0 < low <= config.max_pixels:
        raise BadRequest(f"min_pixels is {low}; this model takes 1 to {config.max_pixels} pixels a picture")
    if high is not None and high < token:
        raise BadRequest(f"max_pixels is {high}; the least is {token}, the area of one image token")
    if low is not None and high is not None and high < low:
        raise BadRequest(f"max_pixels is {high}, less than min_pixels, {low}")
    if options.detail is Detail.FAST and (low is not None or high is not None):
        field = "min_pixels" if low is not None else "max_pixels"
        raise BadRequest(f"{field} has no effect with detail=fast, which is always {FAST_SIDE}x{FAST_SIDE}")
    if options.detail is Detail.FAST and config.max_pixels < FAST_SIDE**2:
        raise BadRequest(f"detail=fast is {FAST_SIDE}x{FAST_SIDE}; this model takes at most {config.max_pixels} pixels")


def plan(width: int, height: int, options: ImageOptions, config: ProcessorConfig, name: str = "picture") -> ImagePlan:
    """How a picture of width x height (upright) will be cut. Raises BadImage for its shape, BadRequest for options."""
    min_pixels, max_pixels = budget(options, config)
    if options.detail is Detail.FAST:
        check_aspect(width, height, name)
        return _cut(FAST_SIDE // config.factor, FAST_SIDE // config.factor, config)
    size = smart_resize(width, height, config.factor, min_pixels, max_pixels, name)
    if size[0] * size[1] > max_pixels:  # enlarged to min_pixels, and rounding up passed the ceiling
        size = smart_resize(*size, config.factor, 1, max_pixels, name)
    return _cut(size[0] // config.factor, size[1] // config.factor, config)


def _cut(columns: int, rows: int, config: ProcessorConfig) -> ImagePlan:
    """The plan for so many columns and rows of tokens."""
    return ImagePlan(
        grid=Grid(rows=rows * config.merge_size, columns=columns * config.merge_size),
        used_width=columns * config.factor,
        used_height=rows * config.factor,
        tokens=rows * columns,
    )


def report(width: int, height: int, cut: ImagePlan) -> ImageReport:
    """What the caller is told: the upright original's size, the size used and the tokens."""
    return ImageReport(width, height, cut.used_width, cut.used_height, cut.tokens)


def patchify(picture: Picture, cut: ImagePlan, config: ProcessorConfig) -> NDArray[np.float32]:
    """The patches of a picture: [P, 3 * t * p * p] float32, normalised.

    Patches of one token are neighbours; within a patch the order is channel, time, row, column. A still picture fills
    every time slot with the same pixels. Works through one row of tokens at a time, so that the intermediate floats
    stay in the caches and only the result is written to memory.
    """
    m, p, t = config.merge_size, config.patch_size, config.temporal_patch_size
    rows, columns = cut.grid.rows // m, cut.grid.columns // m
    pixels = _resized(picture, cut)  # [R*m*p, C*m*p, 3]
    bands = pixels.reshape(rows, m, p, columns, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)  # [R, C, m, m, 3, p, p]
    shift = np.asarray(config.image_mean, np.float32)[:, None, None] * np.float32(255)
    scale = np.asarray(config.image_std, np.float32)[:, None, None] * np.float32(255)
    patches = np.empty((rows, columns, m, m, 3, t, p, p), np.float32)
    for band, out in zip(bands, patches, strict=True):
        values = band.astype(np.float32, order="C")
        values -= shift
        values /= scale
        out[:] = values[:, :, :, :, None]
    return patches.reshape(cut.grid.patches, 3 * t * p * p)


def _resized(picture: Picture, cut: ImagePlan) -> NDArray[np.uint8]:
    """Bicubic with antialiasing on 8-bit values: what the reference's Pillow backend computes."""
    size = (cut.used_width, cut.used_height)
    image = Image.fromarray(picture.pixels)
    return np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BICUBIC))
