"""Pictures for tests, made in a few lines: QUAD, TXT and NOISE, and files that Pillow cannot write itself."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}
QUAD_CORNERS = ("red", "green", "blue", "yellow")  # top left, top right, bottom left, bottom right

ORIENTATION_TAG = 0x0112
UNDO_ORIENTATION = {  # what a camera that writes orientation n has done to the upright picture
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}

# QUAD(64, 48) by pillow-heif 1.x (x265), which Galago does not install: it only decodes. The second is stored rotated.
HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAX1tZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAAACJpbG9jAAAAAERA"
    "AAEAAQAAAAABoQABAAAAAAAAAJsAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRtAAAAAAABAAAA/WlwcnAAAADdaXBjbwAA"
    "AHZodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq"
    "5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaAAAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAAEAAAAABAAAA"
    "MAAAAAEAAAAAAAAAAv////AAAAACAAAAEHBpeGkAAAAAAwgICAAAABhpcG1hAAAAAAAAAAEAAQWBAgMFhAAAAKNtZGF0AAAAlygBrxOA5TH3/8ONP+mf"
    "T/XcmZOoMQv/M+PvDqr/CXLEG46eJ+UhP99tP9ediCjQL2sa1OvZaqW1ea6kzb0oHR+kgkT8pViO3db9LV3/dk/9ynEP8qcoQARjUi/lwJBwB/iMTj8j"
    "FyQo9/WeeR/0NKyOiDLSLyBRn/x3HXM6UZslLpYJWhN2gqru/Wu11dQ6VDdz0/ns6oY="
)
HEIC_ROTATED = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAchtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAAADRpbG9jAAAAAERA"
    "AAIAAQAAAAAB7AABAAAAAAAAAGwAAgAAAAACWAABAAAAAAAAACQAAAA4aWluZgAAAAAAAgAAABVpbmZlAgAAAAABAABodmMxAAAAABVpbmZlAgAAAQAC"
    "AABFeGlmAAAAAA5waXRtAAAAAAABAAABB2lwcnAAAADmaXBjbwAAAHZodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAA"
    "AAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaA"
    "AAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAADAAAAABAAAAQAAAAAH////wAAAAAgAAAAAAAAACAAAAEHBpeGkAAAAAAwgICAAAAAlpcm90AwAA"
    "ABlpcG1hAAAAAAAAAAEAAQaBAgMFhIYAAAAaaXJlZgAAAAAAAAAOY2RzYwACAAEAAQAAAJhtZGF0AAAAaCgBrwng5eRNS1f2Wf//fiH/+iqpjd8Vufyb"
    "9+Qb+Y9IbByr+OSEUBDgaJDLzMY44B6CHbEgr07yZY5D4CbQYf29XmaoP/0VNY3V9b31xtwXzNVGrs2mP/Sjx/SKh9Usx/tnPHldpF+AAAAABkV4aWYA"
    "AE1NACoAAAAIAAEBEgADAAAAAQAGAAAAAAAA"
)
# QUAD(64, 48) by `cjpeg -arithmetic -quality 60`.
ARITHMETIC_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpR"
    "Uk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAAwAEADASIAAhEB"
    "AxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/ABMwRcuidRpLAcwqDR/6aNj0NeRBMKEtJAdzlk2ePQaFZ1K+CQUPVk0ySm7b3EdrpwHPfTC1ALnp"
    "0iXw3UxN9E7QA7orKStG+P/Z"
)


def quad(width: int = 64, height: int = 48) -> Image.Image:
    """Four solid quadrants: red, green, blue, yellow, in reading order."""
    image = Image.new("RGB", (width, height), COLOURS["red"])
    middle, centre = width // 2, height // 2
    image.paste(COLOURS["green"], (middle, 0, width, centre))
    image.paste(COLOURS["blue"], (0, centre, middle, height))
    image.paste(COLOURS["yellow"], (middle, centre, width, height))
    return image


def text(words: str, width: int = 320, height: int = 64, type_size: int = 40) -> Image.Image:
    """Black on white."""
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text((8, 4), words, fill="black", font=ImageFont.load_default(size=type_size))
    return image


def noise(seed: int, width: int, height: int) -> Image.Image:
    """Random RGB, the same for the same seed."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def scene(seed: int, width: int, height: int) -> Image.Image:
    """Soft random shapes: what a photograph looks like to a resampling filter."""
    return noise(seed, max(2, width // 16), max(2, height // 16)).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    """The file that Pillow writes for `image`."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def corners(pixels: NDArray[np.uint8], tolerance: int = 40) -> tuple[str, ...]:
    """The names of the colours in the middle of the four quadrants; the value itself where it has no name."""
    height, width = pixels.shape[:2]
    places = [(y, x) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    return tuple(_name(tuple(int(v) for v in pixels[place]), tolerance) for place in places)


def _name(colour: tuple[int, ...], tolerance: int) -> str:
    near = [n for n, c in COLOURS.items() if max(abs(a - b) for a, b in zip(c, colour, strict=True)) <= tolerance]
    return near[0] if near else str(colour)


def png_chunk(kind: bytes, body: bytes = b"") -> bytes:
    """One chunk with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, depth: int, colour: int, rows: bytes, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG from its raw rows, each begun by a filter byte. before, after: chunks around the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = before + png_chunk(b"IDAT", zlib.compress(rows, 1)) + after
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND")


def exif(orientation: int) -> bytes:
    """An EXIF block that states only an orientation."""
    block = Image.Exif()
    block[ORIENTATION_TAG] = orientation
    return block.tobytes()


def stored(image: Image.Image, orientation: int) -> Image.Image:
    """`image` as a camera stores it that writes this orientation beside it."""
    undo = UNDO_ORIENTATION[orientation]
    return image if undo is None else image.transpose(undo)
