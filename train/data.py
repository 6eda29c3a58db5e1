"""Random picture specs and the tasks asked of them, all drawn from a named stream of random numbers.

A stream is `random.Random(namespace/...)`: training uses the namespace "train", the frozen evaluation set "manifest",
so that no spec is shared by construction. Nothing here depends on torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from galago.bench.pictures import COLOURS, DEFAULT_FONT, RGB, Fonts, Ground, PictureSpec, ShapeSpec, TextLine
from train.alphabet import DIGITS, LOWER, MARKS, UPPER
from train.fonts import trained
from train.words import WORDS

HELD_FILES = ("Cabin-Regular.otf", "Quattrocento-Regular.otf", "Oxygen-Sans-Bold.ttf", "OxygenMono-Regular.ttf")
UNIT = 32  # pixels of one merged token
MAX_AREA = 448 * 448


def stream(*names: object) -> random.Random:
    """A random stream of its own for each name."""
    return random.Random("/".join(map(str, names)))


# ---------------------------------------------------------------- texts


def random_code(rng: random.Random, n: int) -> str:
    """`n` characters as they are printed on labels: mostly capitals and digits."""
    style = rng.random()
    if style < 0.55:
        return _draw(rng, UPPER + DIGITS * 2, n)
    if style < 0.65:
        return _draw(rng, DIGITS, n)
    if style < 0.8:
        return _draw(rng, UPPER + LOWER + DIGITS, n)
    if style < 0.9:
        return _draw(rng, UPPER, n)
    return _draw(rng, LOWER, n)


def _draw(rng: random.Random, letters: str, n: int) -> str:
    return "".join(rng.choice(letters) for _ in range(n))


def wordy(rng: random.Random, n: int) -> str:
    """Words of about `n` characters in one of the usual cases; a letter is changed now and then so that spelling is
    read."""
    text = rng.choice(WORDS)
    while len(text) + 3 < n:
        text += " " + rng.choice(WORDS)
    text = rng.choice([str.upper, str.lower, str.title, str.capitalize])(text)
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(UPPER if text[at].isupper() else LOWER) + text[at + 1 :]
    return text[:n].strip()


def price(rng: random.Random) -> str:
    return f"${rng.randint(0, rng.choice((9, 99, 999)))}.{rng.randint(0, 99):02d}"


def date(rng: random.Random) -> str:
    return f"{rng.randint(1990, 2039)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def marked(rng: random.Random, n: int) -> str:
    """A code with marks inside: AB-12, 10:45, 50%, #A7, X&Y, 1/2."""
    text = list(random_code(rng, n))
    form = rng.random()
    if form < 0.25:
        text[0] = rng.choice("$#+-")
    elif form < 0.4:
        text[-1] = rng.choice("%+.:")
    if form > 0.3 and n > 2:
        text[rng.randrange(1, n - 1)] = rng.choice(MARKS)
    if n > 6 and rng.random() < 0.3:
        text[rng.randrange(1, n - 1)] = rng.choice("-.:/ ")
    return "".join(text).strip()


def text_of(rng: random.Random, n: int) -> str:
    """A printed text of exactly `n` characters (fewer only where a word ends in a space)."""
    kind = rng.random()
    if kind < 0.55 or n < 3:
        return random_code(rng, n)
    if kind < 0.75:
        return marked(rng, n)
    if kind < 0.9:
        return wordy(rng, n)
    if kind < 0.95:
        return _spaced(rng, n)
    return (price(rng) if rng.random() < 0.5 or n < 9 else date(rng))[:n]


def _spaced(rng: random.Random, n: int) -> str:
    at = rng.randrange(1, n - 1)
    code = random_code(rng, n)
    return code[:at] + " " + code[at + 1 :]


# ---------------------------------------------------------------- looks


@dataclass(frozen=True, slots=True)
class Look:
    """How widely pictures vary: the curriculum widens these numbers step by step."""

    sizes: tuple[int, int] = (17, 24)  # type size in px, inclusive
    fonts: str = "common"  # common | all | held (never trained on)
    grounds: float = 0.0  # share of pictures on coloured, gradient or noisy ground
    dark: float = 0.15  # share of light text on dark plain ground
    odd: float = 0.0  # share of pictures whose sides are not multiples of 32
    jpeg: float = 0.0
    case: tuple[tuple[str, int], ...] = ()  # (font, size) pairs to draw from: opening a font costs more than drawing


_COMMON = (
    "LiberationSans-Regular LiberationSans-Bold LiberationSerif-Regular LiberationMono-Regular DejaVuSans "
    "DejaVuSans-Bold DejaVuSansMono DejaVuSerif OpenSans-Regular OpenSans-Semibold Roboto-Regular "
    "Roboto-Medium Lato-Regular Lato-Bold FreeSans FreeSerif FreeMonoBold Carlito-Regular Carlito-Bold "
    "Caladea-Regular NimbusSans-Regular NimbusRoman-Regular Inter-Regular Inter-SemiBold Hack-Regular "
    "FiraCode-Regular JetBrainsMono-Regular Karla-Bold YanoneKaffeesatz-Bold Quicksand-Medium Arimo-Regular "
    "Tinos-Regular Cousine-Regular LinLibertine_R Cantarell-Regular Vollkorn-Regular Sora-Regular "
    "Manrope-Regular ClearSans-Regular RobotoSlab-Regular Go-Regular Inconsolata"
)
COMMON = frozenset(_COMMON.split())  # file names without their ending


@cache
def common_fonts() -> tuple[str, ...]:
    """Ordinary typefaces that two of five pictures are set in."""
    names = [name for files in trained().values() for name in files]
    return (DEFAULT_FONT, *(n for n in names if n.rsplit(".", 1)[0] in COMMON))


@cache
def families() -> tuple[tuple[tuple[str, ...], ...], tuple[float, ...]]:
    """Files by package and a weight that grows with the square root of their number."""
    groups = tuple(tuple(files) for files in trained().values())
    return groups, tuple(math.sqrt(len(g)) for g in groups)


def font_of(rng: random.Random, look: Look) -> str:
    if look.fonts == "held":
        return rng.choice(HELD_FILES)
    if look.fonts == "common" or rng.random() < 0.4:
        return rng.choice(common_fonts())
    groups, weights = families()
    group = rng.choices(groups, weights)[0]
    name = rng.choice(group)
    if ("Italic" in name or "Oblique" in name) and rng.random() < 0.8:
        name = rng.choice(group)
    return name


def with_case(rng: random.Random, look: Look, number: int) -> Look:
    """`look` with a type case of `number` (font, size) pairs, for the pictures of one batch."""
    return replace(look, case=tuple((font_of(rng, look), rng.randint(*look.sizes)) for _ in range(number)))


def type_of(rng: random.Random, look: Look, font: str | None, type_px: int | None) -> tuple[str, int]:
    """A font and a type size, where they are not given."""
    if font and type_px:
        return font, type_px
    fitting = [pair for pair in look.case if look.sizes[0] <= pair[1] <= look.sizes[1]]
    drawn = rng.choice(fitting) if fitting else (font_of(rng, look), rng.randint(*look.sizes))
    return font or drawn[0], type_px or drawn[1]


def luminance(colour: RGB) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def ink_for(rng: random.Random, grounds: Sequence[RGB], least: float) -> RGB:
    """A colour that differs from all of `grounds` by at least `least` levels of luminance."""
    for _ in range(20):
        ink = random_rgb(rng, 0, 255)
        if min(abs(luminance(ink) - luminance(g)) for g in grounds) >= least:
            return ink
    middle = sum(map(luminance, grounds)) / len(grounds)
    return random_rgb(rng, 0, 40) if middle > 127 else random_rgb(rng, 215, 255)


def random_rgb(rng: random.Random, low: int, high: int) -> RGB:
    return (rng.randint(low, high), rng.randint(low, high), rng.randint(low, high))


def ground_of(rng: random.Random, kind: str, dark: float) -> tuple[Ground, list[RGB], float]:
    """A ground, its extreme colours, and the contrast that text on it needs."""
    if kind == "plain":
        colour = random_rgb(rng, 0, 60) if rng.random() < dark else random_rgb(rng, 195, 255)
        return Ground("plain", colour), [colour], 120
    colour = random_rgb(rng, 0, 255)
    if kind == "gradient":
        second = tuple(min(255, max(0, c + rng.randint(-70, 70))) for c in colour)
        return Ground("gradient", colour, (second[0], second[1], second[2])), [colour, second], 100  # type: ignore[list-item]
    if kind == "noisy":
        colour = random_rgb(rng, 0, 70) if rng.random() < 0.3 else random_rgb(rng, 150, 255)
        return Ground("noisy", colour, None, rng.randint(10, 45)), [colour], 130
    return Ground("coloured", colour), [colour], 100


def ground_kind(rng: random.Random, look: Look) -> str:
    return rng.choice(("coloured", "gradient", "noisy")) if rng.random() < look.grounds else "plain"


# ---------------------------------------------------------------- placing


def side(rng: random.Random, units: int, odd: float) -> int:
    """A side in px that the processor rounds to `units` * 32."""
    return units * UNIT if rng.random() >= odd else units * UNIT + rng.randint(-15 if units > 1 else 0, 15)


@dataclass(slots=True)
class Metrics:
    """Advance, top and bottom of single characters per (font, size), measured once."""

    known: dict[tuple[str, int], dict[str, tuple[float, float, float]]] = field(default_factory=dict)

    def of(self, fonts: Fonts, name: str, size: int, char: str) -> tuple[float, float, float]:
        table = self.known.setdefault((name, size), {})
        if char not in table:
            font = fonts.get(name, size)
            _, top, _, bottom = font.getbbox(char, anchor="ls")
            table[char] = (font.getlength(char), -top, bottom)
        return table[char]


METRICS = Metrics()  # a cache of what the font files say, not a setting


def edges(fonts: Fonts, font: str, size: int, text: str) -> list[float]:
    """Where each character starts, in px from the start of the line, and where the last one ends (kerning left out)."""
    out = [0.0]
    for char in text:
        out.append(out[-1] + METRICS.of(fonts, font, size, char)[0])
    return out


def extent(fonts: Fonts, font: str, size: int, text: str) -> tuple[int, int, int]:
    """(width, ascent, descent) in px that the ink of `text` takes around its start on the baseline."""
    each = [METRICS.of(fonts, font, size, char) for char in text]
    lean = size // 8  # slanted letters lean over their advance
    return (
        math.ceil(sum(e[0] for e in each)) + lean,
        math.ceil(max(e[1] for e in each)),
        math.ceil(max(0, *(e[2] for e in each))),
    )


def needed(fonts: Fonts, look_size: int, font: str, texts: Sequence[str]) -> tuple[int, int]:
    """Least (width, height) in px of a picture with these lines."""
    sizes = [extent(fonts, font, look_size, t) for t in texts]
    return max(w for w, _, _ in sizes) + 4, sum(a + d + 4 for _, a, d in sizes)


def lines_at(
    rng: random.Random,
    fonts: Fonts,
    spec: PictureSpec,
    font: str,
    size: int,
    texts: Sequence[str],
    ink: RGB,
    band: tuple[int, int] | None = None,
) -> tuple[TextLine, ...]:
    """`texts` one under the other at a random place of the picture (or of its band of rows)."""
    low, high = band or (0, spec.height)
    sizes = [extent(fonts, font, size, t) for t in texts]
    spare = max(0, high - low - sum(a + d + 4 for _, a, d in sizes))
    y = low + rng.randint(0, spare)
    indent = rng.randint(2, max(2, spec.width - 2 - max(w for w, _, _ in sizes)))
    lines = []
    for text, (width, ascent, descent) in zip(texts, sizes, strict=True):
        x = indent if rng.random() < 0.7 else rng.randint(2, max(2, spec.width - 2 - width))
        lines.append(TextLine(text, font, size, x, y + 2 + ascent, ink))
        y += ascent + descent + 4
    return tuple(lines)


def text_picture(
    rng: random.Random,
    fonts: Fonts,
    look: Look,
    texts: Sequence[str],
    size: tuple[int, int] | None = None,
    grids: Sequence[tuple[int, int]] = (),
    kind: str | None = None,
    font: str | None = None,
    type_px: int | None = None,
) -> PictureSpec | None:
    """A picture of `texts` whose grid is one of `grids` (rows, columns in tokens) or whose sides are `size` px.

    Returns None when no grid is large enough.
    """
    font, type_px = type_of(rng, look, font, type_px)
    width, height = needed(fonts, type_px, font, texts)
    if size is None:
        odd = look.odd if rng.random() < 0.5 else 0.0
        fitting = [g for g in grids if g[0] * UNIT >= height and g[1] * UNIT >= width]
        if not fitting:
            return None
        rows, columns = rng.choices(fitting, [1 / (r * c) for r, c in fitting])[0]
        size = (side(rng, columns, odd), side(rng, rows, odd))
        size = (max(size[0], min(width, columns * UNIT + 15)), max(size[1], min(height, rows * UNIT + 15)))
    kind = kind or ground_kind(rng, look)
    ground, extremes, least = ground_of(rng, kind, look.dark)
    jpeg = rng.randint(50, 90) if rng.random() < look.jpeg else 0
    spec = PictureSpec(size[0], size[1], ground, rng.randrange(1 << 30), jpeg=jpeg)
    return replace(spec, lines=lines_at(rng, fonts, spec, font, type_px, texts, ink_for(rng, extremes, least)))


def resized(width: int, height: int) -> tuple[int, int]:
    """(width, height) after the processor's rule: multiples of 32 of about the same aspect, 1,024..200,704 px in
    all."""
    w, h = round(width / UNIT) * UNIT, round(height / UNIT) * UNIT
    if w * h > MAX_AREA:
        beta = math.sqrt(width * height / MAX_AREA)
        w, h = (max(UNIT, math.floor(v / beta / UNIT) * UNIT) for v in (width, height))
    elif w * h < UNIT * UNIT:
        beta = math.sqrt(UNIT * UNIT / (width * height))
        w, h = (math.ceil(v * beta / UNIT) * UNIT for v in (width, height))
    return w, h


def named_ink(rng: random.Random, ground: RGB, least: float = 60) -> str | None:
    """The name of a colour that stands out from `ground`, or None."""
    apart = [
        n for n, c in COLOURS.items() if math.dist(c, ground) > 110 and abs(luminance(c) - luminance(ground)) >= least
    ]
    return rng.choice(apart) if apart else None


def shape_at(rng: random.Random, kind: str, colour: str, cell: tuple[int, int, int, int]) -> ShapeSpec:
    """One shape of random size inside a cell (left, top, right, bottom)."""
    left, top, right, bottom = cell
    room = min(right - left, bottom - top)
    d = rng.randint(max(12, int(room * 0.5)), max(13, room - 4))
    x, y = left + rng.randint(0, max(0, right - left - d)), top + rng.randint(0, max(0, bottom - top - d))
    return ShapeSpec(kind, colour, (x, y, x + d, y + d))
