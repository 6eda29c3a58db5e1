"""Which fonts the model learns from: every readable Latin font file of the installed Debian packages, minus held
families.

A file is kept when each character of the alphabet has a glyph of its own (no box for a missing one, no capitals in the
place of small letters) and the strokes are neither hairlines nor blots. `python -m train.fonts` rewrites
train/fonts.txt.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from train.alphabet import ALPHABET

LIST = Path(__file__).parent / "fonts.txt"
FONT_ROOTS = (Path("/usr/share/fonts"), Path("/usr/share/texmf/fonts"))
# Whole families that are never trained on: the evaluation set asks them as unseen fonts.
HELD_FAMILIES = ("cabin", "quattrocento", "oxygen")
UNWANTED = re.compile(
    r"symbol|dingbat|math|thin|hairline|extralight|ultralight|caps|stencil|extended-i|unicase|dunhill|fraktur|"
    r"-sc-|-sc\b|swash|shadow|outline|retro|keys|braille|barcode|ornament|initials|upright.*italic|cmunci|italic.*display|"
    r"funny|fibonacci|inlined|bizcat|standardsymbols|d050000l|z003|chorus|chancery|brush|pen\b|light.*italic|"
    r"wingding|webding|marlett|script|titling|romandeadfstyle|solothurn|leaguemono-(wide|extended)|circuit",
    re.IGNORECASE,
)


def installed() -> Iterator[tuple[str, Path]]:
    """(package, file) of every font file that a Debian package `fonts-*` put on this machine."""
    query = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\n", "fonts-*"], capture_output=True, text=True, check=True
    )
    for package in sorted(set(query.stdout.split())):
        files = subprocess.run(["dpkg-query", "-L", package], capture_output=True, text=True, check=False).stdout
        for line in files.splitlines():
            path = Path(line)
            inside = any(root in path.parents for root in FONT_ROOTS)
            if inside and path.suffix.lower() in (".ttf", ".otf") and path.is_file() and not path.is_symlink():
                yield package, path


def glyph(font: ImageFont.FreeTypeFont, char: str) -> bytes:
    """The bitmap of one character on a 64x64 canvas: equal bytes mean an equal glyph."""
    canvas = Image.new("L", (64, 64))
    ImageDraw.Draw(canvas).text((12, 44), char, fill=255, font=font, anchor="ls")
    return canvas.tobytes()


def readable(path: Path) -> bool:
    """True when all letters exist, differ from each other and are drawn with strokes of a usual weight."""
    try:
        font = ImageFont.truetype(str(path), 32, layout_engine=ImageFont.Layout.BASIC)
        glyphs = {char: glyph(font, char) for char in ALPHABET if char != " "}
    except (OSError, ValueError):
        return False
    missing = {glyph(font, char) for char in "\uf8f1\u0378\ue0f3"}
    blank = bytes(64 * 64)
    if (
        blank in glyphs.values()
        or any(g in missing for g in glyphs.values())
        or len(set(glyphs.values())) < len(glyphs)
    ):
        return False
    ink = np.frombuffer(b"".join(glyphs.values()), np.uint8).mean() / 255
    lower = np.frombuffer(glyphs["x"], np.uint8).reshape(64, 64).any(1).sum()
    upper = np.frombuffer(glyphs["X"], np.uint8).reshape(64, 64).any(1).sum()
    advances = [font.getlength(c) for c in "AEHNX"]
    return 0.012 < ink < 0.09 and lower < 0.92 * upper and upper >= 14 and min(advances) > 8


def choose() -> list[tuple[str, Path]]:
    kept: dict[str, tuple[str, Path]] = {}
    for package, path in installed():
        held = any(family in path.name.lower().replace("-", "") for family in HELD_FAMILIES)
        if not held and path.name not in kept and not UNWANTED.search(path.stem) and readable(path):
            kept[path.name] = (package, path)
    return sorted(kept.values())


def trained() -> dict[str, list[str]]:
    """package -> font file names, from train/fonts.txt."""
    families: dict[str, list[str]] = {}
    for line in LIST.read_text().splitlines():
        package, name = line.split("\t")
        families.setdefault(package, []).append(name)
    return families


def sheet(names: list[Path], out: Path) -> None:
    """A contact sheet, to look through by eye."""
    rows = (len(names) + 4) // 5
    image = Image.new("RGB", (5 * 330, rows * 22), "white")
    draw = ImageDraw.Draw(image)
    for n, path in enumerate(names):
        font = ImageFont.truetype(str(path), 16, layout_engine=ImageFont.Layout.BASIC)
        x, y = (n % 5) * 330, (n // 5) * 22
        draw.text((x + 2, y + 16), f"aRgQ08&%IlS {path.stem[:16]}", font=font, fill="black", anchor="ls")
    image.save(out)


def main() -> None:
    chosen = choose()
    LIST.write_text("".join(f"{package}\t{path.name}\n" for package, path in chosen))
    print(f"{len(chosen)} files of {len({p for p, _ in chosen})} packages -> {LIST}")


if __name__ == "__main__":
    main()
