"""Formats are told by content, and what is not a picture is called by its name."""

from __future__ import annotations

import pytest
from PIL import features

from galago.images.sniff import Format, describe, sniff

from ..pictures import ARITHMETIC_JPEG, HEIC, encode, quad

AVIF_HEAD = b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf"


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (encode(quad(), "JPEG"), Format.JPEG),
        (ARITHMETIC_JPEG, Format.JPEG),
        (encode(quad(), "PNG"), Format.PNG),
        (encode(quad(), "WEBP"), Format.WEBP),
        (encode(quad(), "GIF"), Format.GIF),
        (encode(quad(), "BMP"), Format.BMP),
        (HEIC, Format.HEIC),
        (AVIF_HEAD, Format.AVIF),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf", Format.HEIC),
    ],
)
def test_pictures_are_recognised_by_their_content(data: bytes, form: Format) -> None:
    assert sniff(data) is form


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_told_from_heic() -> None:
    assert sniff(encode(quad(), "AVIF")) is Format.AVIF


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF"),
        (b"\n\n%PDF-1.4", "a PDF"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- a -->\n<svg width="1"/>', "an SVG drawing"),
        ('<?xml version="1.0" encoding="utf-16"?><svg/>'.encode("utf-16"), "an SVG drawing"),
        (b"  <!DOCTYPE html><html></html>", "a web page"),
        (encode(quad(), "TIFF"), "a TIFF"),
        (b"MM\0*\0\0\0\x08", "a TIFF"),
        (encode(quad(), "ICO"), "an icon (ICO)"),
        (b"8BPS\0\x01", "a Photoshop file"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000"),
        (b"\xff\x0a\x00", "a JPEG XL"),
        (b"PK\x03\x04\x14\0", "a ZIP archive or Office document"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "a video"),
        (b"\0\0\0\x18ftypcrx \0\0\0\0", "a camera raw file"),
        (b"\x1a\x45\xdf\xa3", "a video"),
        (b"BMW makes cars", "text"),
        ("价格：12 元".encode(), "text"),
        (("价" * 2000).encode(), "text"),
        (b"\x93\x11\x00\x07" * 8, "of an unknown kind"),
        (b"\xff", "of an unknown kind"),
    ],
)
def test_everything_else_is_refused_by_name(data: bytes, words: str) -> None:
    assert sniff(data) is None
    assert describe(data) == words


def test_any_beginning_of_a_file_is_sniffed_without_error() -> None:
    for whole in (encode(quad(), "JPEG"), encode(quad(), "BMP"), HEIC, AVIF_HEAD, b"BM"):
        for length in range(min(len(whole), 40)):
            sniff(whole[:length])
            assert describe(whole[:length])
