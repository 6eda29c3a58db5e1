"""Encoded bytes to upright, opaque sRGB: every container, mode and orientation, and everything that must be refused.

Case names A1 to B14 refer to research/users.md, section 2.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, features

from galago.errors import BadImage, BadRequest
from galago.images import decode as decoder
from galago.images import header
from galago.images.colour import PROFILE_IGNORED
from galago.images.decode import Header, TargetSize, decode, probe, reduction
from galago.images.limits import ImageLimits
from galago.images.sniff import Format
from galago.images.source import load_file

from ..pictures import (
    ARITHMETIC_JPEG,
    HEIC,
    HEIC_ROTATED,
    QUAD_CORNERS,
    corners,
    encode,
    exif,
    noise,
    png,
    png_chunk,
    quad,
    scene,
    stored,
    text,
)

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
needs_heic = pytest.mark.skipif(importlib.util.find_spec("pi_heif") is None, reason="pi-heif is not installed")

ORIENTATIONS = range(1, 9)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def refused(data: bytes, name: str = "shot.png", limits: ImageLimits | None = None) -> str:
    """The message with which `data` is refused, which must be one line of our own words."""
    with pytest.raises(BadImage) as caught:
        decode(data, name=name, limits=limits or ImageLimits())
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    assert not re.search(r"0x[0-9a-f]{4}|PIL|BytesIO|Traceback|/site-packages|Error", message)
    return message


# Containers


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),  # A20
        ("JPEG", {"subsampling": "4:1:1"}),
        ("JPEG", {"restart_marker_blocks": 2}),
        ("PNG", {}),
        ("PNG", {"compress_level": 0}),
        ("WEBP", {}),  # A10
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("BMP", {}),  # A14
        pytest.param("AVIF", {}, marks=needs_avif),  # A13
    ],
)
def test_every_container_gives_the_same_picture(form: str, options: dict[str, object]) -> None:
    data = encode(quad(), form, **options)
    picture = decode(data)
    assert corners(picture.pixels) == QUAD_CORNERS
    assert picture.pixels.shape == (48, 64, 3)
    assert picture.pixels.dtype == np.uint8
    assert (picture.width, picture.height, picture.notices) == (64, 48, ())
    assert probe(data) == Header(64, 48, next(f for f in Format if f.value.upper() == form))


def test_arithmetic_jpeg_is_decoded() -> None:
    assert corners(decode(ARITHMETIC_JPEG).pixels) == QUAD_CORNERS


@needs_heic
@pytest.mark.parametrize("data", [HEIC, HEIC_ROTATED])
def test_heic_is_decoded_upright(data: bytes) -> None:
    picture = decode(data)
    assert picture.pixels.shape == (48, 64, 3)
    assert corners(picture.pixels) == QUAD_CORNERS


def test_heic_without_a_decoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "HEIC needs a decoder: pip install 'galago[heic]'" in refused(HEIC)


def test_avif_without_a_decoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    ispe = struct.pack(">I4sIII", 20, b"ispe", 0, 64, 48)
    monkeypatch.setattr(features, "check", lambda name: False)
    assert "AVIF needs a Pillow with AVIF" in refused(b"\0\0\0\x14ftypavif\0\0\0\0avif" + ispe)


def test_the_content_decides_and_not_the_name() -> None:  # A19
    assert corners(decode(encode(quad(), "PNG"), name="photo.jpg").pixels) == QUAD_CORNERS
    assert corners(decode(encode(quad(), "JPEG"), name="photo.png").pixels) == QUAD_CORNERS


# Which way up


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", pytest.param("AVIF", marks=needs_avif)])  # A1, A2
def test_pictures_are_turned_upright(form: str, orientation: int) -> None:
    data = encode(stored(quad(), orientation), form, exif=exif(orientation))
    picture = decode(data)
    assert corners(picture.pixels) == QUAD_CORNERS
    assert (picture.width, picture.height) == (64, 48)
    assert (probe(data).width, probe(data).height) == (64, 48)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turning_equals_pillows(orientation: int) -> None:
    data = encode(noise(orientation, 21, 13), "PNG", exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decode(data).pixels, np.asarray(expected))


def test_png_orientation_after_the_pixels_counts() -> None:
    rotated = np.asarray(stored(quad(), 6))
    rows = b"".join(b"\0" + row.tobytes() for row in rows_of(rotated))
    data = png(48, 64, 8, 2, rows, after=png_chunk(b"eXIf", exif(6).removeprefix(b"Exif\0\0")))
    assert (probe(data).width, probe(data).height) == (64, 48)
    assert corners(decode(data).pixels) == QUAD_CORNERS


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0" + b"\x01" * 40,
        exif(6)[:-9],
        exif(9),
        exif(0),
    ],
)
def test_damaged_orientation_is_ignored(block: bytes) -> None:
    assert corners(decode(encode(quad(), "JPEG", exif=block)).pixels) == QUAD_CORNERS


# Transparency and modes


def rows_of(pixels: np.ndarray) -> list[np.ndarray]:
    return list(np.ascontiguousarray(pixels))


def test_transparent_ground_turns_white() -> None:  # A4
    ink = np.asarray(text("K7Q-4821").convert("L"))
    alpha = np.dstack([np.zeros((*ink.shape, 3), np.uint8), 255 - ink])
    for form in ("PNG", "WEBP"):
        pixels = decode(encode(Image.fromarray(alpha), form, lossless=True)).pixels
        np.testing.assert_allclose(pixels[..., 0], ink, atol=1)


def test_gray_with_alpha() -> None:
    image = Image.fromarray(np.dstack([np.zeros((2, 3), np.uint8), np.full((2, 3), 51, np.uint8)]))
    assert image.mode == "LA"
    assert np.unique(decode(encode(image, "PNG")).pixels).tolist() == [204]


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_palette(form: str) -> None:  # A5
    image = quad().quantize(16)
    assert corners(decode(encode(image, form)).pixels) == QUAD_CORNERS
    opaque = decode(encode(image, form, transparency=image.getpixel((0, 0)))).pixels
    assert opaque[0, 0].tolist() == [255, 255, 255]
    assert corners(opaque)[1:] == QUAD_CORNERS[1:]


def test_palette_with_an_alpha_for_every_entry() -> None:
    image = quad().quantize(16)
    pixels = decode(encode(image, "PNG", transparency=bytes([128] * 16))).pixels
    assert pixels[0, 0].tolist() == [255, 127, 127]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_gray_value_of_any_depth(depth: int) -> None:
    """Row 0 holds the transparent value, which is black or dark, row 1 the brightest."""
    top = (1 << depth) - 1
    value = min(top - 1, 3)
    samples = [value] * 8, [top] * 8
    packed = [b"\0" + int("".join(f"{v:0{depth}b}" for v in row), 2).to_bytes(depth, "big") for row in samples]
    plain = decode(png(8, 2, depth, 0, b"".join(packed))).pixels
    assert plain[1].min() == 255
    assert plain[0].max() < 200
    laid = decode(png(8, 2, depth, 0, b"".join(packed), before=png_chunk(b"tRNS", struct.pack(">H", value)))).pixels
    assert laid.min() == 255


@pytest.mark.parametrize("depth", [8, 16])
def test_transparent_colour_of_either_depth(depth: int) -> None:
    code, clear, solid = {
        8: (">3B", (200, 10, 0), (255, 0, 0)),
        16: (">3H", (200 << 8 | 7, 10 << 8 | 9, 3), (65535, 0, 0)),
    }[depth]
    rows = b"\0" + struct.pack(code, *clear) + struct.pack(code, *solid)
    chunk = png_chunk(b"tRNS", struct.pack(">3H", *clear))
    assert decode(png(2, 1, depth, 2, rows)).pixels.tolist() == [[[200, 10, 0], [255, 0, 0]]]
    assert decode(png(2, 1, depth, 2, rows, before=chunk)).pixels.tolist() == [[[255] * 3, [255, 0, 0]]]


def test_16_bit_gray_is_scaled_and_not_clipped() -> None:  # A7
    values = np.array([[0, 257, 32768, 65535]], ">u2")
    gray = decode(png(4, 1, 16, 0, b"\0" + values.tobytes())).pixels[0, :, 0]
    assert gray.tolist() == [0, 1, 128, 255]


def test_16_bit_text_stays_readable() -> None:
    ink = np.asarray(text("K7Q-4821").convert("L"))
    picture = decode(encode(Image.fromarray(ink.astype(np.uint16) * 257), "PNG"))
    np.testing.assert_array_equal(picture.pixels, np.dstack([ink] * 3))


def test_16_bit_colour() -> None:
    wide = np.asarray(quad()).astype(">u2") * 257
    data = png(64, 48, 16, 2, b"".join(b"\0" + row.tobytes() for row in rows_of(wide)))
    np.testing.assert_array_equal(decode(data).pixels, np.asarray(quad()))


@pytest.mark.parametrize("mode", ["1", "L"])
def test_one_bit_and_gray(mode: str) -> None:
    image = text("K7Q-4821").convert(mode)
    expected = np.asarray(image.convert("RGB"))
    for form in ("PNG", "BMP", "WEBP") if mode == "L" else ("PNG", "BMP"):
        np.testing.assert_array_equal(decode(encode(image, form, lossless=True)).pixels, expected)


# CMYK (A8): solid ink values and what they look like


def cmyk_quad() -> Image.Image:
    return quad().convert("CMYK")


def test_cmyk_jpeg_with_adobe_marker() -> None:
    data = encode(cmyk_quad(), "JPEG", quality=95)
    assert b"Adobe" in data
    assert corners(decode(data).pixels) == QUAD_CORNERS


def test_cmyk_jpeg_without_adobe_marker_is_read_as_browsers_do() -> None:
    data = encode(cmyk_quad(), "JPEG", quality=95)
    at = data.index(b"\xff\xee")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    assert corners(decode(data[:at] + data[at + 2 + length :]).pixels) == QUAD_CORNERS


def test_ycck_jpeg() -> None:
    """Photoshop's usual kind: inverted inks, of which three are stored as luma and chroma (Adobe transform 2)."""
    cyan, magenta, yellow, black = cmyk_quad().split()
    luma = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    inverted = [ImageOps.invert(band) for band in (*luma, ImageOps.invert(black))]  # Pillow inverts once more
    data = bytearray(encode(Image.merge("CMYK", inverted), "JPEG", quality=95))
    marker = data.index(b"Adobe")
    assert data[marker + 11] == 0
    data[marker + 11] = 2
    assert corners(decode(bytes(data)).pixels) == QUAD_CORNERS


# Colour profiles


def swapped_profile() -> bytes:
    """sRGB with the red and green primaries exchanged: a profile whose effect cannot be overlooked."""
    return SRGB.replace(b"rXYZ", b"????").replace(b"gXYZ", b"rXYZ").replace(b"????", b"gXYZ")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_profiles_are_applied(form: str) -> None:
    assert corners(decode(encode(quad(), form, icc_profile=SRGB)).pixels) == QUAD_CORNERS
    turned = decode(encode(quad(), form, icc_profile=swapped_profile()))
    assert corners(turned.pixels) == ("green", "red", "blue", "yellow")
    assert turned.notices == ()


def test_an_srgb_profile_changes_no_pixel() -> None:
    image = noise(5, 40, 30)
    np.testing.assert_array_equal(decode(encode(image, "PNG", icc_profile=SRGB)).pixels, np.asarray(image))


@pytest.mark.parametrize("profile", [b"not a profile", SRGB[:200], SRGB.replace(b"RGB ", b"GRAY")])
def test_a_profile_that_cannot_be_used_is_ignored_with_a_notice(profile: bytes) -> None:
    picture = decode(encode(quad(), "JPEG", icc_profile=profile))
    assert corners(picture.pixels) == QUAD_CORNERS
    assert picture.notices == (PROFILE_IGNORED,)


# Frames (A11)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", pytest.param("AVIF", marks=needs_avif)])
def test_first_frame_with_a_notice(form: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "lime", "blue")]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:], duration=100)
    picture = decode(data)
    assert set(corners(picture.pixels)) == {"red"}
    assert picture.notices == ("first of 3 frames used",)
    assert probe(data).frames == 3


def gif(frames: int) -> bytes:
    one = encode(Image.new("P", (1, 1)), "GIF")
    frame = one[one.index(b"\x2c") : -1]
    return one[:-1] + frame * (frames - 1) + b"\x3b"


def test_a_gif_of_countless_frames_is_not_counted_to_the_end() -> None:
    data = gif(100_000)
    assert header.gif_frame_count(data) == header.MAX_FRAMES_COUNTED + 1
    assert decode(data).notices == ("first of more than 10000 frames used",)


def test_a_gif_frame_larger_than_the_screen_is_counted_in_the_limit() -> None:
    data = bytearray(gif(1))
    at = data.index(b"\x2c")
    data[at + 5 : at + 9] = struct.pack("<HH", 60_000, 60_000)
    assert "megapixels" in refused(bytes(data))


def test_further_pictures_in_a_jpeg_are_not_frames() -> None:
    data = encode(quad(), "MPO", save_all=True, append_images=[quad()])
    assert decode(data).notices == ()
    assert probe(data).format is Format.JPEG


# Reduced scale (B14)


def test_reduction_keeps_the_oversampling_on_both_axes() -> None:
    target = TargetSize(448, 448)
    for width in range(400, 9000, 97):
        for height in (400, 1343, 1344, 5000):
            scale = reduction(width, height, target)
            if scale > 1:
                assert min(width, height) / scale >= 1.5 * 448
            if scale < 8:
                assert min(width, height) / (2 * scale) < 1.5 * 448
    assert [reduction(side, side, target) for side in (1343, 1344, 2687, 2688, 5376)] == [1, 2, 2, 4, 8]


@pytest.mark.parametrize(
    ("original", "target", "decoded"),
    [
        ((4000, 3000), (1312, 960), (2000, 1500)),
        ((3000, 2000), (448, 448), (1500, 1000)),
        ((3000, 2000), (320, 224), (750, 500)),
        ((2400, 300), (448, 448), (2400, 300)),  # B5: the short side forbids it
        ((2003, 1501), (256, 192), (501, 376)),
    ],
)
def test_large_jpegs_are_decoded_at_a_reduced_scale(
    original: tuple[int, int], target: tuple[int, int], decoded: tuple[int, int]
) -> None:
    picture = decode(encode(quad(*original), "JPEG"), target=TargetSize(*target))
    assert picture.pixels.shape == (*decoded[::-1], 3)
    assert (picture.width, picture.height) == original
    assert corners(picture.pixels) == QUAD_CORNERS


def test_reduced_scale_follows_the_upright_shape() -> None:
    data = encode(stored(quad(3000, 1000), 6), "JPEG", exif=exif(6))
    picture = decode(data, target=TargetSize(900, 300))
    assert picture.pixels.shape == (500, 1500, 3)
    assert corners(picture.pixels) == QUAD_CORNERS
    assert decode(data, target=TargetSize(300, 900)).pixels.shape == (1000, 3000, 3)


def lines_of_text() -> Image.Image:
    image = Image.new("RGB", (2000, 1500), "white")
    for line in range(12):
        image.paste(text(f"Line {line}: 0123456789 The quick brown fox", 1900, 110, 70), (40, 20 + 120 * line))
    return image


@pytest.mark.parametrize("image", [scene(1, 2000, 1500), lines_of_text()], ids=["photo", "text"])
def test_reduced_scale_stays_close_to_full_decoding(image: Image.Image) -> None:
    """The stated tolerance: less than 1 level of 255 on average, 99 of 100 values within 16, none beyond 48."""
    size = (576, 448)
    data = encode(image, "JPEG", quality=90)
    full, reduced = (decode(data, target=target) for target in (None, TargetSize(*size)))
    assert reduced.pixels.shape == (750, 1000, 3)
    small = [
        np.asarray(Image.fromarray(p.pixels).resize(size, Image.Resampling.BICUBIC), np.int16) for p in (full, reduced)
    ]
    apart = np.abs(small[0] - small[1])
    assert apart.mean() < 1
    assert np.percentile(apart, 99) <= 16
    assert apart.max() <= 48


# Content key (A9 of reliability.md)


def test_equal_pixels_have_equal_keys_in_any_container() -> None:
    image = noise(3, 30, 20)
    files = [encode(image, form, lossless=True) for form in ("PNG", "BMP", "WEBP")]
    turned = encode(stored(image, 6), "PNG", exif=exif(6))
    assert len({decode(data).key for data in [*files, turned]}) == 1


def test_the_key_is_a_digest_of_sizes_and_pixels() -> None:
    image = noise(4, 130, 200)  # several strips
    sizes = struct.pack("<4I", 130, 200, 130, 200)
    assert decode(encode(image, "PNG")).key == hashlib.sha256(sizes + image.tobytes()).digest()


def test_different_pictures_have_different_keys() -> None:
    gray = Image.new("P", (8, 8), 0)
    gray.putpalette([0, 0, 0])
    red = Image.new("P", (8, 8), 0)
    red.putpalette([255, 0, 0])
    files = [
        encode(Image.new("RGB", (30, 100)), "PNG"),
        encode(Image.new("RGB", (100, 30)), "PNG"),
        encode(gray, "PNG"),
        encode(red, "PNG"),
        encode(quad(), "PNG"),
        encode(quad(), "PNG", exif=exif(2)),
        encode(noise(1, 16, 16), "PNG"),
        encode(noise(2, 16, 16), "PNG"),
    ]
    assert len({decode(data).key for data in files}) == len(files)


def test_pixels_cannot_be_changed_under_their_key() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decode(encode(quad(), "PNG")).pixels[0, 0] = 0


def test_threads_do_not_disturb_each_other() -> None:
    files = [encode(noise(seed, 40 + seed, 30), form) for seed in range(8) for form in ("PNG", "JPEG", "WEBP", "GIF")]
    alone = [decode(data).key for data in files]
    with ThreadPoolExecutor(8) as pool:
        assert [picture.key for picture in pool.map(decode, files * 4)] == alone * 4


# Refused


def test_empty_data() -> None:
    assert refused(b"") == "shot.png: the file is empty"


def test_byte_limit() -> None:
    limits = ImageLimits(max_bytes=1_000_000)
    assert "1.5 MB, the limit is 1 MB" in refused(b"\xff\xd8\xff" + bytes(1_500_000), limits=limits)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello, this is text\n", "this is text, not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "this is an SVG drawing, not a picture"),
        (b"%PDF-1.7\n1 0 obj", "this is a PDF, not a picture"),
        (encode(quad(), "TIFF"), "this is a TIFF, not a picture"),
        (encode(quad(), "ICO"), "this is an icon (ICO), not a picture"),
        (bytes(100), "this is of an unknown kind, not a picture"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, words: str) -> None:  # A14
    assert words in refused(data)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.97])
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("BMP", {}),
        pytest.param("AVIF", {}, marks=needs_avif),
    ],
)
def test_cut_off_files_are_refused(form: str, options: dict[str, object], share: float) -> None:
    data = encode(noise(7, 80, 60), form, **options)
    message = refused(data[: max(12, int(len(data) * share))])
    assert "damaged" in message or "unknown kind" in message


def test_a_png_without_its_end_is_refused() -> None:
    assert "its end" in refused(encode(quad(), "PNG")[:-12])


def test_a_flipped_byte_in_a_png_is_refused() -> None:  # A16
    data = bytearray(encode(noise(1, 64, 48), "PNG"))
    data[len(data) // 2] ^= 0x01
    assert "checksum" in refused(bytes(data))


def test_a_png_that_lies_about_its_size_is_refused() -> None:  # A17
    assert "3,600.0 megapixels, the limit is 64" in refused(png(60_000, 60_000, 8, 2, bytes(1000)))
    assert "damaged" in refused(png(2000, 2000, 8, 2, bytes(1000)))
    assert "damaged" in refused(png(0, 10, 8, 2, bytes(1000)))


def test_pixels_are_counted_before_any_decoder_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_open_quietly", lambda data, name: pytest.fail("a decoder was called"))
    limits = ImageLimits(max_pixels=64 * 48 - 1)
    files = [encode(quad(), form) for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP")]
    files += [encode(quad(), "WEBP", lossless=True), encode(quad().convert("RGBA"), "WEBP", exif=exif(1))]
    for data in files:
        assert "64 x 48 is" in refused(data, limits=limits)
    assert "64 x 64 is" in refused(HEIC, limits=limits)  # coded size, of which 48 rows are shown


def of_endless_segments() -> list[bytes]:
    """Valid but for their number: decoders walk each of these segments, or each scan over all pixels, in turn."""
    jpeg, whole_png, whole_gif = (encode(quad(), form) for form in ("JPEG", "PNG", "GIF"))
    progressive = encode(quad(), "JPEG", progressive=True)
    scan, last = jpeg.index(b"\xff\xda"), progressive.rindex(b"\xff\xda")
    block = whole_gif.index(b"\x2c")
    return [
        jpeg[:2] + b"\xff\xe9\0\2" * 100_000 + jpeg[2:],
        jpeg[:scan] + b"\xff" * 100_000 + jpeg[scan:],
        progressive[:last] + progressive[last:-2] * 101 + progressive[-2:],
        whole_png[:33] + png_chunk(b"teSt") * 100_000 + whole_png[33:],
        whole_gif[:block] + b"\x21\xfe" + b"\1x" * 300_000 + b"\0" + whole_gif[block:],
    ]


@pytest.mark.parametrize("data", of_endless_segments(), ids=["markers", "fill", "scans", "chunks", "blocks"])
def test_endless_segments_are_not_walked_to_the_end(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_open_quietly", lambda data, name: pytest.fail("a decoder was called"))
    assert "damaged" in refused(data)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_film_behind_a_jpeg_is_not_taken_for_its_scans(progressive: bool) -> None:
    """Phones append a short film to a photo; it holds any two bytes often enough."""
    photo = encode(quad(), "JPEG", progressive=progressive)
    assert corners(decode(photo + b"\xff\xda\0\x08film" * 200).pixels) == QUAD_CORNERS


def test_the_largest_allowed_picture_is_allowed() -> None:
    assert decode(encode(quad(), "PNG"), limits=ImageLimits(max_pixels=64 * 48)).width == 64


BOMB = """
import resource, sys, time
from galago.images.decode import decode
from galago.errors import BadImage
data = sys.stdin.buffer.read()
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
try:
    decode(data)
except BadImage as fault:
    print(fault)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.perf_counter() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_a_bomb_costs_neither_memory_nor_time() -> None:  # B8, A5
    squeeze = zlib.compressobj(1)
    rows = b"".join(squeeze.compress(bytes(2501 * 500)) for _ in range(40)) + squeeze.flush()
    head = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND")
    run = subprocess.run([sys.executable, "-c", BOMB], input=data, capture_output=True, check=True, timeout=60)
    message, cost = run.stdout.decode().splitlines()
    assert message == "picture: 20000 x 20000 is 400.0 megapixels, the limit is 64; scale it down"
    kilobytes, seconds = map(float, cost.split())
    assert kilobytes < 30_000
    assert seconds < 0.2


def test_aspect_limit_is_known_from_the_header() -> None:  # B3
    assert probe(encode(Image.new("L", (1000, 5)), "PNG")).width == 1000
    with pytest.raises(BadImage, match=r"1093 x 5 has an aspect ratio of 218\.6, the limit is 200; crop it"):
        probe(encode(Image.new("L", (1093, 5)), "PNG"))
    with pytest.raises(BadImage, match="5 x 1001"):
        probe(encode(Image.new("L", (5, 1001)), "PNG"))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 200), (30, 305), (2400, 300), (1920, 1080)])  # B2, B5, B6
def test_odd_sizes(size: tuple[int, int]) -> None:
    for form in ("PNG", "JPEG"):
        picture = decode(encode(Image.new("RGB", size, "red"), form))
        assert picture.pixels.shape == (size[1], size[0], 3)


def test_names_in_messages_are_one_short_printable_line() -> None:
    with pytest.raises(BadImage) as caught:
        decode(b"", name="a\nb\x1b[31m" + "c" * 500)
    assert len(str(caught.value)) < 160
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "whole",
    [
        encode(scene(2, 48, 36), "JPEG", exif=exif(6), icc_profile=SRGB),
        encode(scene(2, 48, 36), "JPEG", progressive=True),
        encode(scene(2, 48, 36), "PNG", exif=exif(8), icc_profile=SRGB),
        encode(scene(2, 48, 36).convert("RGBA"), "WEBP", exif=exif(3)),
        encode(scene(2, 48, 36), "GIF", save_all=True, append_images=[quad(48, 36)]),
        encode(scene(2, 48, 36), "BMP"),
        pytest.param(HEIC, marks=needs_heic),
    ],
    ids=["jpeg", "progressive", "png", "webp", "gif", "bmp", "heic"],
)
def test_damage_anywhere_is_a_picture_or_one_clear_line(whole: bytes) -> None:
    """Random damage never raises anything else, warns of anything or lets a decoder's words out."""
    random = np.random.default_rng(11)
    limits = ImageLimits(max_pixels=1_000_000)
    for _ in range(60):
        data = bytearray(whole)
        for at in random.integers(0, min(len(whole), int(random.choice([64, 400, len(whole)]))), size=3):
            data[at] = int(random.integers(256))
        try:
            decode(bytes(data), limits=limits)
        except BadImage:
            refused(bytes(data), limits=limits)


# Files


def test_load_file_reads_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "quad.png"
    path.write_bytes(encode(quad(), "PNG"))
    assert corners(decode(load_file(path)).pixels) == QUAD_CORNERS
    assert load_file(str(path)) == path.read_bytes()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nothing\.png: no such file$"):
        load_file(tmp_path / "nothing.png")
    with pytest.raises(BadRequest, match="this is a directory"):
        load_file(tmp_path)
    with pytest.raises(BadRequest, match="not a usable file name"):
        load_file("a\0b")
    with pytest.raises(BadRequest, match="cannot be read"):
        load_file(tmp_path / ("x" * 300))
    with pytest.raises(BadRequest, match="cannot be read"):
        load_file(f"{__file__}/inside")


def test_empty_and_oversized_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    with pytest.raises(BadImage, match="the file is empty"):
        load_file(tmp_path / "empty.png")
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(50_000_000_000)  # sparse: reading it whole would not end well
    with pytest.raises(BadImage, match=r"50,000\.0 MB, the limit is 20 MB"):
        load_file(tmp_path / "huge.png")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
def test_an_endless_device_is_refused() -> None:
    with pytest.raises(BadImage, match=r"the limit is 0\.001 MB"):
        load_file("/dev/zero", limits=ImageLimits(max_bytes=1000))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(quad(), "PNG")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert load_file("-") == data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(BadImage, match="standard input: the file is empty"):
        load_file("-")
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(BadRequest, match="standard input is a terminal"):
        load_file("-")
