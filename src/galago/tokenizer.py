"""Text to token ids and back, with the checkpoint's own tokenizer.json and chat template. No torch, no transformers.

Invariant: only the chat template writes control tokens. Before rendering, the first character of every control token
("<" in this family) is replaced in all texts by a private-use character that occurs nowhere in the conversation; the
rendered string is cut at the control tokens, so all of them are the template's; the pieces between are restored and
encoded by a tokenizer that does not know control tokens. What a user types can therefore never become one, not even
when the template joins two texts. Ids equal those of transformers wherever the texts hold no control token.

Byte-level tokenizers only: a token is a run of bytes, so decoding is concatenation and streaming is exact.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

from galago.chat_template import ChatTemplate
from galago.errors import BadRequest, ModelError
from galago.folder import JsonObject, read_json, read_text, token_ids
from galago.types import Grid, ImagePart, ImageSpan, Message, Prompt, TextPart

IMAGE = "<|image_pad|>"
VIDEO = "<|video_pad|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
VISION_PAD = "<|vision_pad|>"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
PRIVATE_USE = range(0xF0000, 0x10FFFE)  # planes 15 and 16: no meaning in Unicode, untouched by any string method
SURROGATES = re.compile("[\ud800-\udfff]")  # halves of pairs, from JSON escapes and undecodable arguments


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """What a picture becomes in a prompt. tokens: how many ids; grid and key as in `ImageSpan`."""

    tokens: int
    grid: Grid
    key: bytes


@dataclass(frozen=True, slots=True)
class ControlIds:
    """Token ids with a meaning beyond their text."""

    eos: tuple[int, ...]  # each of them ends an answer
    image: int
    video: int
    vision_start: int
    vision_end: int
    never_sampled: frozenset[int]  # placeholders that must not come out of an answer
    special: frozenset[int]  # left out of decoded text


@dataclass(frozen=True, slots=True)
class _AddedToken:
    """An entry of tokenizer.json's `added_tokens`."""

    id: int
    content: str
    special: bool

    @property
    def control(self) -> bool:
        """Control tokens look like <…> (<think> too, although it is not flagged); other added tokens are words."""
        return self.special or (self.content.startswith("<") and self.content.endswith(">"))

    @property
    def markup(self) -> bool:
        """What a model writes itself and a template looks for in its turns: <think>, </tool_call> …, not <|…|>."""
        return self.control and not self.special and not self.content.startswith("<|")


class Tokenizer:
    """The tokenizer of one model folder."""

    def __init__(self, folder: Path) -> None:
        """Read tokenizer.json, the chat template, tokenizer_config.json and generation_config.json of `folder`.

        Raises ModelError naming the file when one is missing, damaged or of another kind.
        """
        self._plain, added = _load(folder / "tokenizer.json")
        self._added = {token.id: token for token in added}
        self._ids = {token.content: token.id for token in added if token.control}
        # The tokenizer without control tokens numbers the added words anew.
        words = {token.content: token.id for token in added if not token.control}
        self._renumbered = {self._plain.token_to_id(content): true_id for content, true_id in words.items()}
        self._shield = _Shield(added)
        self._template = ChatTemplate.from_folder(folder)
        config = read_json(folder / "tokenizer_config.json", optional=True)
        self._names = {name: text for name in NAMED_TOKENS if (text := _content(config.get(name))) is not None}
        self._pieces: dict[int, bytes] = {}
        self.control = self._control_ids(folder)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: control tokens spelled out in it are ordinary characters. Time is linear."""
        ids = self._plain.encode(SURROGATES.sub("\ufffd", text), add_special_tokens=False).ids
        return [self._renumbered.get(token, token) for token in ids] if self._renumbered else ids

    def count(self, text: str) -> int:
        """How many tokens plain text takes."""
        return len(self.encode(text))

    def encode_chat(
        self, messages: Sequence[Message], images: Sequence[ImageTokens] = (), *, add_generation_prompt: bool = True
    ) -> Prompt:
        """The conversation as the model reads it, through the checkpoint's template.

        images: one entry per picture of the messages, in order. Raises BadRequest when the template refuses the
        conversation or leaves pictures out, ModelError when the template fails.
        """
        pictures = [part for message in messages for part in message.parts if isinstance(part, ImagePart)]
        assert len(images) == len(pictures), f"{len(images)} image sizes for {len(pictures)} pictures"
        if not messages:
            raise BadRequest("the conversation is empty: send at least one message")
        cover = self._shield.cover(messages)
        covered = [_for_template(message, cover) for message in messages]
        text = self._template.render(covered, self._names, add_generation_prompt=add_generation_prompt)
        return self._assemble(self._shield.split(text), cover, images)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD; ids without a token are left out."""
        return b"".join(self.piece(token, skip_special=skip_special) for token in ids).decode("utf-8", "replace")

    def piece(self, token: int, *, skip_special: bool = True) -> bytes:
        """The bytes a token id stands for; none for special tokens (unless asked for) and for ids without a token."""
        if skip_special and token in self.control.special:
            return b""
        if token not in self._pieces:
            self._pieces[token] = self._bytes(token)
        return self._pieces[token]

    def never_sampled(self, vocabulary: int) -> frozenset[int]:
        """Ids below `vocabulary` (the rows of the model's head) that must not be drawn: placeholders, unused rows."""
        beyond = range(self._plain.get_vocab_size(with_added_tokens=False), vocabulary)
        unused = frozenset(token for token in beyond if not self.piece(token, skip_special=False))
        return self.control.never_sampled | unused

    def _assemble(self, pieces: Sequence[str], cover: _Cover, images: Sequence[ImageTokens]) -> Prompt:
        """Ids of alternating text runs and control tokens, pictures expanded."""
        if pieces.count(IMAGE) != len(images):
            raise BadRequest(
                f"the model's chat template places {pieces.count(IMAGE)} of {len(images)} pictures: put pictures into "
                "messages of the user"
            )
        waiting = iter(images)
        ids: list[int] = []
        spans: list[ImageSpan] = []
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                ids += self.encode(cover.lift(piece)) if piece else []
            elif piece == IMAGE:
                image = next(waiting)
                spans.append(ImageSpan(len(ids), image.tokens, image.grid, image.key))
                ids += [self.control.image] * image.tokens
            else:
                ids.append(self._ids[piece])
        return Prompt(tuple(ids), tuple(spans))

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].content.encode()
        letters = None if token in self._renumbered else self._plain.id_to_token(token)
        if letters is None:
            return b""
        try:
            return bytes(BYTE_OF[letter] for letter in letters)
        except KeyError:  # not written in the byte alphabet: the decoder of the tokenizers library takes it as it is
            return letters.encode()

    def _control_ids(self, folder: Path) -> ControlIds:
        missing = [name for name in (IMAGE, VIDEO, VISION_START, VISION_END) if name not in self._ids]
        if missing:
            raise ModelError(f"{folder / 'tokenizer.json'} lacks {', '.join(missing)}: not the tokenizer of a Qwen3-VL")
        never = (IMAGE, VIDEO, VISION_START, VISION_END, VISION_PAD)
        return ControlIds(
            eos=self._eos(folder),
            image=self._ids[IMAGE],
            video=self._ids[VIDEO],
            vision_start=self._ids[VISION_START],
            vision_end=self._ids[VISION_END],
            never_sampled=frozenset(self._ids[name] for name in never if name in self._ids),
            special=frozenset(token.id for token in self._added.values() if token.special),
        )

    def _eos(self, folder: Path) -> tuple[int, ...]:
        path = folder / "generation_config.json"
        listed = token_ids(read_json(path, optional=True).get("eos_token_id"), f"{path}: eos_token_id")
        if listed:
            return listed
        named = self._names.get("eos_token")
        if named not in self._ids:
            raise ModelError(f"{folder} names no end token in generation_config.json or tokenizer_config.json")
        return (self._ids[named],)


class StreamDecoder:
    """Decodes token by token. Text comes out once it is certain; together it equals `Tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that became certain with this token; empty inside a character and for special tokens."""
        return self._utf8.decode(self._tokenizer.piece(token))

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for a character that was cut off, else nothing."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Cuts a stream of text before the first stop string, wherever its pieces were cut.

    The first is the one whose last character comes first (of those, the longest): it can be told as soon as that
    character is there, so the result does not depend on how the text was split. Knuth-Morris-Pratt: linear time.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises BadRequest when a stop string is empty."""
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be shown, whether a stop string was met). Text that may begin a stop string is held back."""
        if not self._matchers:
            return text, False
        seen = len(self._held)
        text = self._held + text
        for end in range(seen, len(text)):
            if length := max([matcher.step(text[end]) for matcher in self._matchers]):
                self._held = ""
                return text[: end + 1 - length], True
        certain = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        """The text still held back when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Follows one stop string through a text. matched: length of its longest prefix that ends the text so far."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise BadRequest("a stop string is empty: leave it out")
        self._stop = stop
        self._fallback = [0] * len(stop)  # by matched length - 1: the next shorter prefix that also ends there
        self.matched = 0
        for end in range(1, len(stop)):
            self.step(stop[end])
            self._fallback[end] = self.matched
        self.matched = 0

    def step(self, letter: str) -> int:
        """Read one character; the stop string's length when it is complete, else 0."""
        while self.matched and self._stop[self.matched] != letter:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self._stop[self.matched] == letter
        return self.matched if self.matched == len(self._stop) else 0


class _Shield:
    """Keeps control tokens of the template and characters of the texts apart."""

    def __init__(self, added: Sequence[_AddedToken]) -> None:
        control = sorted((token.content for token in added if token.control), key=len, reverse=True)
        self._first = "".join(sorted({content[0] for content in control}))
        self._control = re.compile("(" + "|".join(map(re.escape, control)) + ")")
        markup = "|".join(re.escape(token.content) for token in added if token.markup)
        first = f"[{re.escape(self._first)}]"
        self._anywhere = re.compile(first)
        self._outside_markup = re.compile(f"(?!{markup}){first}" if markup else first)

    def cover(self, messages: Sequence[Message]) -> _Cover:
        """A cover for the texts of these messages."""
        texts = [part.text for message in messages for part in message.parts if isinstance(part, TextPart)]
        used = set("".join(message.role for message in messages)).union(*texts)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
        stands_for = dict(zip(self._first, free, strict=False))
        if len(stands_for) < len(self._first):
            raise BadRequest("the conversation uses every private-use character of Unicode: leave some out")
        return _Cover(stands_for, self._anywhere, self._outside_markup)

    def split(self, rendered: str) -> list[str]:
        """Alternating: text run, control token, text run, … text run."""
        return self._control.split(rendered)


@dataclass(frozen=True, slots=True)
class _Cover:
    """Stand-ins for the characters with which control tokens begin, unused in one conversation."""

    stands_for: dict[str, str]
    anywhere: re.Pattern[str]
    outside_markup: re.Pattern[str]

    def put_on(self, text: str, role: str) -> str:
        """`text` without control tokens. The assistant's markup (<think>) stays: templates look for it and cut it."""
        pattern = self.outside_markup if role == "assistant" else self.anywhere
        return pattern.sub(lambda match: self.stands_for[match[0]], text)

    def lift(self, text: str) -> str:
        """The true text again."""
        for letter, stand_in in self.stands_for.items():
            text = text.replace(stand_in, letter)
        return text


def _for_template(message: Message, cover: _Cover) -> JsonObject:
    """A message in the form templates expect: a string when it is one text, else a list of parts."""
    content: list[JsonObject] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": cover.put_on(part.text, message.role)})
        else:
            content.append({"type": "image"})
    role = cover.put_on(message.role, "")
    one_text = len(content) == 1 and "text" in content[0]
    return {"role": role, "content": content[0]["text"] if one_text else content}


def _load(path: Path) -> tuple[tokenizers.Tokenizer, list[_AddedToken]]:
    """The tokenizer without its control tokens, and all added tokens."""
    text = read_text(path)
    try:
        before, listed, after = _cut_added_tokens(text)
        added = [_AddedToken(int(one["id"]), str(one["content"]), bool(one["special"])) for one in listed]
        words = [one for one, token in zip(listed, added, strict=True) if not token.control]
        plain = tokenizers.Tokenizer.from_str(before + json.dumps(words) + after)
    except Exception as error:  # the library raises bare Exception for anything that is not its format
        raise ModelError(f"{path} is not a tokenizer of the tokenizers library: download the model again") from error
    if not isinstance(plain.decoder, ByteLevel):
        raise ModelError(f"{path} is not a byte-level tokenizer, which is all that Qwen3-VL uses")
    _refuse_greedy(path, listed, added)
    return plain, added


def _refuse_greedy(path: Path, listed: Sequence[JsonObject], added: Sequence[_AddedToken]) -> None:
    """Control tokens that take the blanks around them, or need them, would be cut out differently here."""
    for one, token in zip(listed, added, strict=True):
        for option in ("lstrip", "rstrip", "single_word"):
            if token.control and one.get(option):
                raise ModelError(f"{path}: {token.content} has {option} = true, which is not supported")


def _cut_added_tokens(text: str) -> tuple[str, list[JsonObject], str]:
    """The value of `added_tokens` and the text around it.

    Parsing and writing all of a real vocabulary (11 MB) would take a second of every start; a vocabulary entry of that
    name is a number, so a list after it is the field itself.
    """
    found = re.search(r'"added_tokens"\s*:\s*(?=\[)', text)
    if found is None:
        raise ValueError("no added_tokens")
    listed, end = json.JSONDecoder().raw_decode(text, found.end())
    return text[: found.end()], listed, text[end:]


def _content(token: object) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with its text as `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _byte_alphabet() -> Iterator[tuple[str, int]]:
    """(letter, byte): GPT-2's printable stand-in for every byte: itself where printable, else U+0100 and up."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    yield from ((chr(byte), byte) for byte in shown)
    yield from ((chr(256 + index), byte) for index, byte in enumerate(hidden))


BYTE_OF = dict(_byte_alphabet())
