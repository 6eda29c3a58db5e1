"""Sizes, budgets and patches against transformers' Qwen2-VL image processors with Qwen3-VL's settings.

A wrong size moves boxes and token counts; a wrong patch order or normalisation gives fluent wrong answers.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_smart_resize

from galago.errors import BadImage, BadRequest, ModelError
from galago.images.decode import TargetSize, decode, probe
from galago.models.qwen3_vl.processor import (
    TOKEN_CEILING,
    ProcessorConfig,
    budget,
    patchify,
    plan,
    report,
    smart_resize,
)
from galago.types import Detail, Grid, ImageOptions, ImageReport, Picture

from ..pictures import encode, noise, quad, scene

CONFIG = ProcessorConfig()
TINY = ProcessorConfig(min_pixels=1024)
UNLIMITED = ImageOptions(max_pixels=CONFIG.max_pixels)  # the reference's own budget
REFERENCE = Qwen2VLImageProcessorPil(
    size={"shortest_edge": CONFIG.min_pixels, "longest_edge": CONFIG.max_pixels},
    patch_size=16,
    image_mean=[0.5] * 3,
    image_std=[0.5] * 3,
)
ODD_SIZES = [(27, 257), (257, 27), (305, 30), (30, 305), (1, 1), (1000, 5), (5, 1000), (200, 1), (1, 31), (639, 31)]


def picture(image: Image.Image) -> Picture:
    return decode(encode(image, "PNG"))


def patches(image: Image.Image, options: ImageOptions = UNLIMITED, config: ProcessorConfig = CONFIG) -> np.ndarray:
    return patchify(picture(image), plan(*image.size, options, config), config)


# Sizes


def random_sizes(count: int) -> list[tuple[int, int]]:
    """Sides of 1 to 20,000 with an aspect of at most 200, from a fixed seed, small ones as often as large ones."""
    draw = random.Random(2025)
    sizes: list[tuple[int, int]] = []
    while len(sizes) < count:
        width, height = (round(math.exp(draw.uniform(0, math.log(20_000)))) for _ in range(2))
        if max(width, height) <= 200 * min(width, height):
            sizes.append((width, height))
    return sizes


@pytest.mark.parametrize("pixels", [(65_536, 16_777_216), (1024, 200_704), (3136, 262_144)])
def test_token_grids_equal_the_references(pixels: tuple[int, int]) -> None:  # B15
    config = ProcessorConfig(min_pixels=pixels[0], max_pixels=pixels[1])
    for width, height in ODD_SIZES + random_sizes(500):
        high, wide = reference_smart_resize(height, width, 32, *pixels)
        assert smart_resize(width, height, 32, *pixels) == (wide, high)
        cut = plan(width, height, ImageOptions(max_pixels=config.max_pixels), config)
        assert (cut.used_width, cut.used_height, cut.grid) == (wide, high, Grid(high // 16, wide // 16))
        assert cut.tokens == wide * high // 1024


def test_aspect_over_200_is_refused_and_200_is_not() -> None:  # B3
    assert plan(1000, 5, UNLIMITED, CONFIG).tokens > 0
    for detail in Detail:
        with pytest.raises(BadImage, match=r"^wide\.png: 1093 x 5 has an aspect ratio of 218\.6, the limit is 200"):
            plan(1093, 5, ImageOptions(detail), CONFIG, name="wide.png")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    width=st.integers(1, 20_000),
    height=st.integers(1, 20_000),
    detail=st.sampled_from(Detail),
    config=st.sampled_from([CONFIG, TINY]),
)
def test_every_size_gets_a_plan_within_its_budget(
    width: int, height: int, detail: Detail, config: ProcessorConfig
) -> None:
    if max(width, height) > 200 * min(width, height):
        height = width = max(width, height)
    cut = plan(width, height, ImageOptions(detail), config)
    assert cut.used_width % 32 == cut.used_height % 32 == 0
    assert cut.grid == Grid(cut.used_height // 16, cut.used_width // 16)
    assert 1 <= cut.tokens == cut.grid.patches // 4
    assert cut.tokens <= TOKEN_CEILING.get(detail, 196)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    width=st.integers(1, 20_000),
    height=st.integers(1, 20_000),
    low=st.integers(1, CONFIG.max_pixels),
    more=st.integers(0, CONFIG.max_pixels),
)
def test_explicit_limits_hold(width: int, height: int, low: int, more: int) -> None:
    if max(width, height) > 200 * min(width, height):
        height = width = max(width, height)
    high = max(low + more, 1024)
    cut = plan(width, height, ImageOptions(min_pixels=low, max_pixels=high), CONFIG)
    assert cut.used_width * cut.used_height <= max(min(high, CONFIG.max_pixels), 200 * 1024)


# Budgets


def test_detail_sets_the_budget() -> None:  # B12
    tokens = {detail: plan(1362, 1724, ImageOptions(detail), CONFIG).tokens for detail in Detail}
    assert tokens == {Detail.FAST: 196, Detail.LOW: 252, Detail.AUTO: 744, Detail.HIGH: 1240}


def test_high_detail_keeps_1280x704() -> None:
    cut = plan(1280, 720, ImageOptions(Detail.HIGH), CONFIG)
    assert (cut.used_width, cut.used_height, cut.tokens) == (1280, 704, 880)


def test_fast_is_always_the_same_square() -> None:
    for size in ((32, 32), (4000, 100), (1, 200)):
        cut = plan(*size, ImageOptions(Detail.FAST), CONFIG)
        assert (cut.used_width, cut.used_height, cut.tokens, cut.grid) == (448, 448, 196, Grid(28, 28))


def test_small_pictures_are_enlarged_only_to_the_models_minimum() -> None:
    for detail in (Detail.LOW, Detail.AUTO, Detail.HIGH):
        assert plan(64, 64, ImageOptions(detail), CONFIG).tokens == 64
        assert plan(64, 64, ImageOptions(detail), TINY).tokens == 4
        assert plan(320, 64, ImageOptions(detail), TINY).tokens == 20
        assert plan(1, 1, ImageOptions(detail), TINY).tokens == 1


def test_explicit_pixels_win_over_detail() -> None:  # B11
    assert plan(1362, 1724, ImageOptions(max_pixels=4096), CONFIG).tokens <= 4
    assert plan(1362, 1724, ImageOptions(Detail.LOW, max_pixels=3_000_000), CONFIG).tokens > 1280
    assert plan(64, 64, ImageOptions(min_pixels=400_000), CONFIG).tokens >= 390
    assert plan(64, 64, ImageOptions(min_pixels=1024), CONFIG).tokens == 4
    assert budget(ImageOptions(Detail.LOW, min_pixels=1_000_000), CONFIG) == (1_000_000, 1_000_000)


def test_the_checkpoints_largest_area_always_holds() -> None:
    assert budget(ImageOptions(max_pixels=10**9), CONFIG) == (65_536, CONFIG.max_pixels)
    small = ProcessorConfig(min_pixels=1024, max_pixels=200_704)
    assert budget(ImageOptions(Detail.HIGH), small) == (1024, 200_704)
    assert plan(4000, 3000, ImageOptions(Detail.HIGH), small).tokens <= 196
    assert plan(7, 7, ImageOptions(min_pixels=200_000), small).tokens <= 196


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (ImageOptions(min_pixels=0), "min_pixels is 0"),
        (ImageOptions(min_pixels=-5), "min_pixels is -5"),
        (ImageOptions(min_pixels=16_777_217), "min_pixels is 16777217; this model takes 1 to 16777216"),
        (ImageOptions(max_pixels=0), "max_pixels is 0"),
        (ImageOptions(max_pixels=1023), "max_pixels is 1023; the least is 1024"),
        (ImageOptions(min_pixels=5000, max_pixels=4000), "max_pixels is 4000, less than min_pixels, 5000"),
        (ImageOptions(Detail.FAST, max_pixels=4096), "max_pixels has no effect with detail=fast"),
        (ImageOptions(Detail.FAST, min_pixels=4096), "min_pixels has no effect with detail=fast"),
    ],
)
def test_nonsense_budgets_are_refused_by_field(options: ImageOptions, field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        budget(options, CONFIG)


def test_fast_is_refused_where_the_model_takes_less() -> None:
    with pytest.raises(BadRequest, match="detail=fast is 448x448; this model takes at most 100000 pixels"):
        budget(ImageOptions(Detail.FAST), ProcessorConfig(min_pixels=1024, max_pixels=100_000))


def test_the_caller_is_told_what_was_used() -> None:
    cut = plan(1280, 720, ImageOptions(Detail.HIGH), CONFIG)
    assert report(1280, 720, cut) == ImageReport(1280, 720, 1280, 704, 880)


# Pixel values


@pytest.mark.parametrize("size", [*ODD_SIZES, (300, 200), (64, 64), (448, 448), (500, 333), (33, 900)])
def test_patches_equal_the_pillow_processors(size: tuple[int, int]) -> None:
    image = noise(sum(size), *size)
    expected = REFERENCE(image, return_tensors="np", input_data_format="channels_last")
    cut = plan(*size, UNLIMITED, CONFIG)
    assert [1, cut.grid.rows, cut.grid.columns] == expected["image_grid_thw"][0].tolist()
    values = patches(image)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected["pixel_values"], rtol=0, atol=1e-6)


def test_patches_equal_the_pillow_processors_with_other_settings() -> None:
    other = {"image_mean": (0.48, 0.45, 0.4), "image_std": (0.26, 0.27, 0.28), "patch_size": 14}
    config = ProcessorConfig(min_pixels=3136, max_pixels=50_000, **other)
    reference = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 50_000}, **other)
    image = noise(9, 310, 220)
    expected = reference(image, return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(patches(image, ImageOptions(), config), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(640, 480), (97, 61), (1000, 5), (1, 1)])
def test_patches_are_close_to_the_torchvision_processors(size: tuple[int, int]) -> None:
    """torchvision cannot be installed beside this torch, so its processor is imitated here.

    Its resize of 8-bit pictures is torch's own antialiased bicubic on uint8, which rounds to 8 bits; rescaling and
    normalising are then one subtraction and one division.
    """
    image = noise(sum(size), *size)
    cut = plan(*size, UNLIMITED, CONFIG)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    small = torch.nn.functional.interpolate(
        pixels, (cut.used_height, cut.used_width), mode="bicubic", align_corners=False, antialias=True
    )
    expected = Image.fromarray(small[0].permute(1, 2, 0).numpy())
    apart = np.abs(patches(image) - patches(expected))
    assert apart.max() <= 2 / 127.5 + 1e-6  # 2 levels of 255: the values span -1 to 1


def test_patch_order_is_token_channel_time_row_column() -> None:
    config = ProcessorConfig(min_pixels=1024)
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[35, 70] = (255, 0, 0)  # token row 1, column 2; patch row 0, column 0; in it row 3, column 6
    values = patchify(Picture(pixels, 96, 64, b""), plan(96, 64, ImageOptions(), config), config)
    lit = np.argwhere(values.reshape(24, 3, 2, 16, 16) == 1).tolist()
    patch = (1 * 3 + 2) * 4
    assert lit == [[patch, 0, 0, 3, 6], [patch, 0, 1, 3, 6]]


def test_time_slots_hold_the_same_picture() -> None:
    config = ProcessorConfig(min_pixels=1024, temporal_patch_size=3)
    values = patches(noise(1, 64, 32), ImageOptions(), config).reshape(-1, 3, 3, 256)
    np.testing.assert_array_equal(values[:, :, 0], values[:, :, 1])
    np.testing.assert_array_equal(values[:, :, 0], values[:, :, 2])


def test_fast_squeezes_the_picture_into_the_square() -> None:
    image = quad(800, 200)
    square = image.resize((448, 448), Image.Resampling.BICUBIC)
    fast = patches(image, ImageOptions(Detail.FAST))
    np.testing.assert_array_equal(fast, patches(square, ImageOptions(Detail.HIGH)))


def test_a_large_jpeg_goes_from_header_to_patches_at_a_reduced_scale() -> None:
    """The path of every request: probe, plan, decode no more than the plan needs, patchify."""
    data = encode(scene(3, 2000, 1500), "JPEG", quality=90)
    head = probe(data)
    cut = plan(head.width, head.height, ImageOptions(Detail.LOW), CONFIG)
    small = decode(data, target=TargetSize(cut.used_width, cut.used_height))
    assert small.pixels.shape == (750, 1000, 3)
    full = patchify(decode(data), cut, CONFIG)
    reduced = patchify(small, cut, CONFIG)
    assert full.shape == reduced.shape == (cut.grid.patches, 1536)
    assert np.abs(full - reduced).mean() < 1 / 127.5


# Configuration


PUBLISHED = {  # the keys of Qwen3-VL-2B-Instruct's preprocessor_config.json
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}


def test_published_file_missing_keys_and_saved_forms_mean_the_same(tmp_path: Path) -> None:
    assert ProcessorConfig.from_dict(PUBLISHED) == ProcessorConfig.from_dict({}) == CONFIG
    REFERENCE.save_pretrained(tmp_path)
    assert ProcessorConfig.from_folder(tmp_path) == CONFIG
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PUBLISHED}))
    assert ProcessorConfig.from_folder(tmp_path) == CONFIG


def test_own_values_are_read() -> None:
    config = ProcessorConfig.from_dict({"size": {"shortest_edge": 1024, "longest_edge": 200_704}, "patch_size": 14})
    assert (config.min_pixels, config.max_pixels, config.factor) == (1024, 200_704, 28)
    older = ProcessorConfig.from_dict({**PUBLISHED, "min_pixels": 3136, "max_pixels": 1_000_000})
    assert (older.min_pixels, older.max_pixels) == (3136, 1_000_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"do_resize": False},
        {"do_normalize": False},
        {"do_center_crop": True},
        {"resample": 2},
        {"rescale_factor": 1.0},
        {"image_processor_type": "CLIPImageProcessor"},
        {"sharpen": 3},
        {"size": {"height": 448, "width": 448}},
        {"size": 448},
        {"size": {"shortest_edge": 70_000, "longest_edge": 60_000}},
        {"patch_size": 0},
        {"patch_size": "16"},
        {"merge_size": True},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": 0.5},
        {"image_std": [0.5, 0.0, 0.5]},
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(ModelError, match=rf"^preprocessor_config\.json: {name}.* is not supported: "):
        ProcessorConfig.from_dict({**PUBLISHED, **fields})


@pytest.mark.parametrize(("content", "fault"), [("{", "is not valid JSON"), ("[]", "does not hold a JSON object")])
def test_damaged_files_are_refused(tmp_path: Path, content: str, fault: str) -> None:
    with pytest.raises(ModelError, match=r"has no preprocessor_config\.json: download the model again"):
        ProcessorConfig.from_folder(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ModelError, match=fault):
        ProcessorConfig.from_folder(tmp_path)
