"""Which format a file has, judged by its content: names and MIME types lie, and the wrong parser is an open door.

Only the formats in `Format` are ever given to a decoder. Everything else is recognised just well enough to be
refused by name ("this is a PDF"). Signatures: the formats' own specifications.
"""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """The picture formats that are decoded, as a person would write them."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WebP"
    GIF = "GIF"
    BMP = "BMP"
    HEIC = "HEIC"
    AVIF = "AVIF"


_BMP_HEADER_SIZES = frozenset({12, 16, 40, 52, 56, 64, 108, 124})  # "BM" alone also begins ordinary text
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_HEIF_CONTAINER = frozenset({b"mif1", b"msf1"})  # says "a HEIF container" but not which codec is inside

# Longer signatures first where one begins with another.
_FOREIGN: tuple[tuple[int, bytes, str], ...] = (
    (0, b"II*\0", "a TIFF"),
    (0, b"MM\0*", "a TIFF"),
    (0, b"II+\0", "a TIFF"),
    (0, b"MM\0+", "a TIFF"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\0\0\1\0", "an icon (ICO)"),
    (0, b"\0\0\2\0", "a cursor (CUR)"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "a JPEG 2000"),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL"),
    (0, b"\xff\x0a", "a JPEG XL"),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR"),
    (0, b"qoif", "a QOI"),
    (0, b"icns", "an icon (ICNS)"),
    (0, b"\xd7\xcd\xc6\x9a", "a WMF drawing"),
    (40, b" EMF", "an EMF drawing"),
    (0, b"%!PS", "a PostScript file"),
    (0, b"\xc5\xd0\xd3\xc6", "a PostScript file"),
    (0, b"PK\x03\x04", "a ZIP archive or Office document"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"Rar!", "a RAR archive"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive"),
    (0, b"\xd0\xcf\x11\xe0", "an old Office document"),
    (0, b"\x7fELF", "a program"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (4, b"ftypqt  ", "a video"),
    (4, b"ftypcrx ", "a camera raw file"),
    (4, b"ftyp", "a video"),
    (8, b"AVI ", "a video"),
    (8, b"WAVE", "a sound"),
    (0, b"ID3", "a sound"),
    (0, b"OggS", "a sound or video"),
)


def sniff(data: bytes) -> Format | None:
    """The format of the picture that `data` begins, or None where it is none that is decoded."""
    if data.startswith(b"\xff\xd8\xff"):
        return Format.JPEG
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Format.PNG
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Format.WEBP
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Format.GIF
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADER_SIZES:
        return Format.BMP
    return _sniff_heif(data)


def _sniff_heif(data: bytes) -> Format | None:
    """HEIC and AVIF share a container; the brands in its first box tell them apart (ISO/IEC 14496-12, `ftyp`)."""
    if data[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(data[:4], "big"), 256)
    major, brands = data[8:12], {data[at : at + 4] for at in range(8, end, 4)}
    if major in _HEIC_BRANDS:
        return Format.HEIC
    if brands & _AVIF_BRANDS:
        return Format.AVIF
    return Format.HEIC if brands & (_HEIC_BRANDS | _HEIF_CONTAINER) else None


def describe(data: bytes) -> str:
    """What a file that `sniff` does not know seems to be, with its article: "a PDF", "text"."""
    for offset, magic, words in _FOREIGN:
        if data.startswith(magic, offset):
            return words
    if b"%PDF-" in data[:1024]:
        return "a PDF"
    return _describe_text(data[:4096])


def _describe_text(head: bytes) -> str:
    text = _as_text(head).lstrip().lower()
    if not text:
        return "of an unknown kind"
    if "<svg" in text:
        return "an SVG drawing"
    if text.startswith(("<!doctype html", "<html", "<head", "<body")):
        return "a web page"
    return "text"


def _as_text(head: bytes) -> str:
    """`head` as text, or "" where it is binary. A character that the cut at the end splits does not count."""
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as fault:
        if fault.start < len(head) - 4:
            return ""
        text = head[: fault.start].decode(encoding, "ignore")
    return text if all(c.isprintable() or c.isspace() for c in text) else ""
