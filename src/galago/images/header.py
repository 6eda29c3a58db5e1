"""What a picture's header says, read without a decoder: size, EXIF orientation, frames, checksums.

The size decides whether a decoder sees the file at all, so it must not come from the decoder. Every reader here takes
a bounded number of steps and answers hostile input with None or a default, never with an exception. Files built of
endless tiny segments, over which decoders spend seconds or hours, count as damaged.
Sources: ITU-T T.81 (JPEG), W3C PNG 3, GIF89a, RFC 9649 (WebP), ISO/IEC 23008-12 (HEIF), TIFF 6 for EXIF.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from galago.images.sniff import Format

Size = tuple[int, int]  # width, height as stored

MAX_FRAMES_COUNTED = 10_000  # counting stops here: a GIF of 20 MB can hold over a million frames
MAX_SEGMENTS = 1 << 14  # JPEG markers before the pixels, PNG chunks; encoders write 2,500 in 20 MB
MAX_SUB_BLOCKS = 1 << 18  # of a GIF, up to 255 bytes each
MAX_SCANS = 50  # of a JPEG, each a pass over all pixels; encoders write 10 or so

_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0-15 less DHT, JPG, DAC
_JPEG_START_OF_SCAN = 0xDA
_JPEG_BARE_MARKERS = frozenset(range(0xD0, 0xDA)) | {0x00, 0x01, 0xFF}  # no length follows; 0xFF is a fill byte
_JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_JPEG_END = b"\xff\xd9"
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # not an escaped 0xFF, a restart, or fill
_ORIENTATION_TAG, _SHORT = 0x0112, 3


def declared_size(data: bytes, form: Format) -> Size | None:
    """Width and height in pixels that the header of `data` promises, None where it is too damaged to say."""
    try:
        size = _READERS[form](data)
    except (struct.error, IndexError, ValueError):  # the data end inside the header
        return None
    return size if size is not None and min(size) > 0 else None


def _png_size(data: bytes) -> Size | None:
    return struct.unpack_from(">II", data, 16) if data[12:16] == b"IHDR" else None


def _bmp_size(data: bytes) -> Size:
    if struct.unpack_from("<I", data, 14)[0] == 12:  # OS/2 1.x
        return struct.unpack_from("<HH", data, 18)
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)  # a negative height means "top row first"


def _webp_size(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _heif_size(data: bytes) -> Size | None:
    """The largest `ispe` property: a grid's own, not its tiles'. A lie here is caught again after opening."""
    sizes = [struct.unpack(">II", found[1]) for found in re.finditer(rb"ispe\0{4}(.{8})", data[: 1 << 18], re.DOTALL)]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def _jpeg_size(data: bytes) -> Size | None:
    at, frame = 2, 0
    for _ in range(MAX_SEGMENTS):
        at = data.index(b"\xff", at)
        marker = data[at + 1]
        if marker == _JPEG_START_OF_SCAN:
            break
        if marker in _JPEG_FRAME_MARKERS:
            frame = at
        at += 1 if marker in _JPEG_BARE_MARKERS else 2 + struct.unpack_from(">H", data, at + 2)[0]
    else:
        return None
    if frame == 0 or _jpeg_scan_count(data, at, frame) > MAX_SCANS:
        return None
    height, width = struct.unpack_from(">HH", data, frame + 5)
    return width, height


def _jpeg_scan_count(data: bytes, at: int, frame: int) -> int:
    """Passes over the pixels. at, frame: the first scan's and the frame header's place. Counts up to MAX_SCANS + 1."""
    if data[frame + 1] not in _JPEG_PROGRESSIVE and data[at + 4] == data[frame + 9]:
        return 1  # all components in one sequential scan: decoders stop after it
    scans = 0
    for _ in range(MAX_SEGMENTS):
        found = _JPEG_MARKER.search(data, at)
        if found is None or found[0] == _JPEG_END or scans > MAX_SCANS:
            return scans
        scans += found[0][1] == _JPEG_START_OF_SCAN
        at = found.end() + struct.unpack_from(">H", data, found.end())[0]
    return MAX_SCANS + 1


class _GifFrame(NamedTuple):
    right: int
    bottom: int


def _gif_size(data: bytes) -> Size | None:
    """The logical screen, widened by a first frame that does not fit it: decoders do the same."""
    width, height = struct.unpack_from("<HH", data, 6)
    frame = next(_gif_frames(data), None)
    return (max(width, frame.right), max(height, frame.bottom)) if frame else None


def _gif_frames(data: bytes) -> Iterator[_GifFrame]:
    at, sub_blocks = 13 + _gif_table(data[10]), 0
    while data[at] != 0x3B:  # trailer
        if data[at] == 0x2C:
            left, top, width, height, flags = struct.unpack_from("<HHHHB", data, at + 1)
            yield _GifFrame(left + width, top + height)
            at += 11 + _gif_table(flags)
        elif data[at] == 0x21:
            at += 2
        else:
            return
        while data[at]:  # sub-blocks, ended by an empty one
            at += 1 + data[at]
            sub_blocks += 1
            if sub_blocks > MAX_SUB_BLOCKS:
                return
        at += 1


def _gif_table(flags: int) -> int:
    """Bytes of the colour table that `flags` announces."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def gif_frame_count(data: bytes) -> int:
    """Frames of a GIF, counted up to MAX_FRAMES_COUNTED + 1; a damaged tail counts as the end."""
    count = 0
    try:
        for _ in _gif_frames(data):
            count += 1
            if count > MAX_FRAMES_COUNTED:
                break
    except (IndexError, struct.error):
        pass
    return count


class PngChunk(NamedTuple):
    """One chunk of a PNG; `sound` tells whether its checksum holds."""

    kind: bytes
    body: memoryview
    crc: int

    @property
    def sound(self) -> bool:
        return zlib.crc32(self.body, zlib.crc32(self.kind)) == self.crc


def png_chunks(data: bytes) -> Iterator[PngChunk]:
    """The whole chunks of a PNG up to and with IEND, at most MAX_SEGMENTS; ends early where the data do."""
    view, at = memoryview(data), 8
    for _ in range(MAX_SEGMENTS):
        if at + 12 > len(data):
            return
        length = int.from_bytes(view[at : at + 4], "big")
        kind, end = bytes(view[at + 4 : at + 8]), at + 8 + length
        if end + 4 > len(data):
            return
        yield PngChunk(kind, view[at + 8 : end], int.from_bytes(view[end : end + 4], "big"))
        if kind == b"IEND":
            return
        at = end + 4


def png_is_sound(data: bytes) -> bool:
    """Whether every checksum holds and the end is there. Pillow does not check the pixel chunks' checksums."""
    kind = b""
    for chunk in png_chunks(data):
        if not chunk.sound:
            return False
        kind = chunk.kind
    return kind == b"IEND"


def png_exif(data: bytes) -> bytes:
    """The EXIF block of a PNG wherever it stands, or b"". Pillow sees one after the pixels only by decoding them."""
    return next((bytes(chunk.body) for chunk in png_chunks(data) if chunk.kind == b"eXIf"), b"")


def exif_orientation(exif: bytes) -> int:
    """The orientation 1 to 8 that an EXIF block states, 1 where it states none or nonsense."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        value = _short_tag(tiff, order, _ORIENTATION_TAG)
    except struct.error:
        return 1
    return value if value is not None and 1 <= value <= 8 else 1


def _short_tag(tiff: bytes, order: str, wanted: int) -> int | None:
    """The 16-bit value of a tag in the first directory."""
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for at in range(start + 2, start + 2 + 12 * entries, 12):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, at)
        if (tag, kind) == (wanted, _SHORT):
            return int(value)
    return None


_READERS: dict[Format, Callable[[bytes], Size | None]] = {
    Format.JPEG: _jpeg_size,
    Format.PNG: _png_size,
    Format.WEBP: _webp_size,
    Format.GIF: _gif_size,
    Format.BMP: _bmp_size,
    Format.HEIC: _heif_size,
    Format.AVIF: _heif_size,
}
