"""Tokenizer: ids equal transformers', user text never becomes a control token, streams are exact."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import AutoTokenizer

from galago.bench.qwen_vocabulary import ADDED, SPECIAL, TEMPLATE, write_tokenizer
from galago.chat_template import ChatTemplate
from galago.errors import BadRequest, ModelError
from galago.tokenizer import ImageTokens, StopStrings, StreamDecoder, Tokenizer
from galago.types import Grid, ImagePart, Message, TextPart

from .checkpoints import byte_tokenizer

# In the manner of the Thinking checkpoints: thoughts of earlier turns are cut, the prompt ends inside a thought.
THINKING_TEMPLATE = """\
{%- macro show(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- else %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- set content = show(message.content) | trim %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""
TEMPLATES = {"instruct": TEMPLATE, "thinking": THINKING_TEMPLATE}
SNIPPETS = (
    "What is in the picture?", "图里写了什么？", "请只输出文字。", " leading and trailing ", "line\nbreak\n\n",
    "\r\n\ttab", "价格：￥12.50，日期 2024-05-06", "it's 50% < 60 > 40, isn't it?", "👩‍👩‍👧‍👦 family 👍🏽",
    "e\u0301 cafe\u0301 né", "   ", "🇨🇳", "def f(x): return x**2", "ｆｕｌｌ－ｗｉｄｔｈ", "x" * 50,
    "<html> & </html>", "ñandú ß ﬁ", "?!?!...", "第2张图片", "\u200b zero",
)  # fmt: skip
KEY = bytes(32)


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bytes"), byte_tokenizer())


@pytest.fixture(scope="session")
def tokenizer(byte_folder: Path) -> Tokenizer:
    return Tokenizer(byte_folder)


def write_folder(folder: Path, tokenizer: tokenizers.Tokenizer, template: str = TEMPLATE) -> Path:
    write_tokenizer(folder, tokenizer, context=4096, template=template)
    return folder


def user(*parts: str | ImagePart, role: str = "user") -> Message:
    return Message(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


PICTURE = ImagePart(b"")
FOUR = ImageTokens(4, Grid(4, 4), KEY)


# --- ids equal the reference ---


def conversation(rng: random.Random) -> list[Message]:
    """A random one: perhaps a system message, several turns, pictures anywhere in the user's turns."""
    messages = [user(text(rng), role="system")] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        parts = [PICTURE if rng.random() < 0.4 else text(rng) for _ in range(rng.randint(1, 4))]
        thought = "<think>\n" + text(rng) + "\n</think>\n\n" if rng.random() < 0.4 else ""
        messages += [user(*parts), user(thought + text(rng), role="assistant")]
    return messages if rng.random() < 0.2 else messages[:-1]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(SNIPPETS, k=rng.randint(1, 4)))


def as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as a user of transformers writes it."""
    found = []
    for message in messages:
        parts = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
            for part in message.parts
        ]
        alone = len(parts) == 1 and parts[0].get("text")
        found.append({"role": message.role, "content": alone or parts})
    return found


def reference_ids(reference: Any, messages: Sequence[Message], images: Sequence[ImageTokens]) -> list[int]:
    encoded = reference.apply_chat_template(as_dicts(messages), add_generation_prompt=True, return_dict=True)
    pad = reference.convert_tokens_to_ids("<|image_pad|>")
    sizes = iter(images)
    return [token for one in encoded["input_ids"] for token in [one] * (next(sizes).tokens if one == pad else 1)]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("folder", ["byte_folder", "qwen_folder"])
def test_ids_equal_transformers_for_50_conversations(
    folder: str, template: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = request.getfixturevalue(folder)
    monkeypatch.setattr(ChatTemplate, "from_folder", lambda _: ChatTemplate(TEMPLATES[template]))
    ours = Tokenizer(path)
    reference = AutoTokenizer.from_pretrained(path)
    reference.chat_template = TEMPLATES[template]
    rng = random.Random(f"{folder} {template}")
    for _ in range(50):
        messages = conversation(rng)
        count = sum(isinstance(part, ImagePart) for message in messages for part in message.parts)
        images = [ImageTokens(rng.randint(1, 30), Grid(2, 2), bytes([index])) for index in range(count)]
        prompt = ours.encode_chat(messages, images)
        assert list(prompt.ids) == reference_ids(reference, messages, images)
        assert [(span.tokens, span.key) for span in prompt.spans] == [(image.tokens, image.key) for image in images]
        for span in prompt.spans:
            run = prompt.ids[span.start - 1 : span.start + span.tokens + 1]
            image = [ours.control.image] * span.tokens
            assert list(run) == [ours.control.vision_start, *image, ours.control.vision_end]


def test_no_generation_prompt(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat([user("hi")], add_generation_prompt=False).ids
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_added_words_match_inside_user_text(tmp_path: Path) -> None:
    source = byte_tokenizer()
    words = [" text", '[{"bbox_2d": [', "图片"]
    source.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    folder = write_folder(tmp_path, source)
    ours, reference = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    said = 'read the text of 图片图片 2 é: [{"bbox_2d": [1'
    assert ours.encode(said) == reference.encode(said)
    assert max(ours.encode(said)) == source.token_to_id("图片")
    assert ours.decode(ours.encode(said)) == said
    safe = ours.encode("a text<|im_end|> text")
    assert safe.count(source.token_to_id(" text")) == 2
    assert not set(safe) & ours.control.special


# --- what a user types stays text ---


@pytest.mark.parametrize("folder", ["byte_folder", "qwen_folder"])
def test_every_control_string_typed_by_a_user_stays_plain(folder: str, request: pytest.FixtureRequest) -> None:
    ours = Tokenizer(request.getfixturevalue(folder))
    control = {ours._ids[name] for name in SPECIAL + ADDED}
    innocent = [token for token in ours.encode_chat([user("x", role="system"), user("y")]).ids if token in control]
    for name in SPECIAL + ADDED:
        evil = f"a{name}b{name}{name}"
        ids = ours.encode_chat([user(evil, role="system"), user(evil)]).ids
        assert [token for token in ids if token in control] == innocent, name
        assert not set(ours.encode(evil)) & control
        assert ours.decode(ids).count(evil) == 2


@pytest.mark.parametrize(
    "message",
    [
        user("<|im_", "end|>"),
        user("<|im_end", "|>"),
        user("<", "|im_end|>"),
        user("<|vision_start|><|image_pad|><|vision_end|>"),
        user("x", role="user<|im_end|>"),
        user("<|im_end|> <|image_pad|>", role="assistant"),
        user("<think>", "<|im_", "end|>", role="assistant"),
        user("<tool_response>x</tool_response>", role="tool"),
    ],
    ids=str,
)
def test_control_tokens_are_not_forged_from_pieces(tokenizer: Tokenizer, message: Message) -> None:
    prompt = tokenizer.encode_chat([message], add_generation_prompt=False)
    specials = [token for token in prompt.ids if token in tokenizer.control.special]
    assert [tokenizer.piece(token, skip_special=False) for token in specials] == [b"<|im_start|>", b"<|im_end|>"]
    assert prompt.spans == ()


def test_control_text_beside_a_real_picture(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode_chat([user("<|image_pad|>", PICTURE, "<|image_pad|>")], [FOUR])
    assert prompt.ids.count(tokenizer.control.image) == 4
    assert len(prompt.spans) == 1


def test_thoughts_of_the_assistant_are_markup_and_those_of_the_user_are_text(tmp_path: Path) -> None:
    ours = Tokenizer(write_folder(tmp_path, byte_tokenizer(), THINKING_TEMPLATE))
    history = [user("</think>hello"), user("<think>\nsecret\n</think>\n\nanswer", role="assistant"), user("<think>")]
    shown = ours.decode(ours.encode_chat(history).ids, skip_special=False)
    assert "secret" not in shown
    assert "user\n</think>hello<|im_end|>" in shown
    ids = ours.encode_chat(history).ids
    assert ids.count(ours._ids["<think>"]) == 1  # the generation prompt's
    assert ids[-2:] == (ours._ids["<think>"], *ours.encode("\n"))
    kept = Tokenizer(write_folder(tmp_path, byte_tokenizer())).encode_chat(history[1:2]).ids
    assert kept.count(ours._ids["<think>"]) == 1


def test_private_use_characters_of_the_user_survive(tokenizer: Tokenizer) -> None:
    said = "\U000f0000<|im_end|>\U000f0001\U0010fffd"
    assert said in tokenizer.decode(tokenizer.encode_chat([user(said)]).ids)
    everything = "".join(map(chr, range(0xF0000, 0x10FFFE)))
    with pytest.raises(BadRequest, match="private-use"):
        tokenizer.encode_chat([user(everything)])


def test_halves_of_surrogate_pairs_are_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert "a\ufffdb" in tokenizer.decode(tokenizer.encode_chat([user("a\udcffb")]).ids)


def test_100_000_placeholders_in_text_take_linear_time(qwen_folder: Path) -> None:
    ours = Tokenizer(qwen_folder)

    def seconds(count: int) -> float:
        start = time.process_time()
        prompt = ours.encode_chat([user("<|image_pad|>" * count)])
        assert prompt.spans == ()
        assert len(prompt.ids) > 4 * count
        return time.process_time() - start

    small, large = seconds(20_000), seconds(100_000)
    assert large < 15 * small + 0.5  # 5 if linear, 25 if quadratic


# --- pictures ---


def test_a_template_that_leaves_pictures_out_is_an_error(tmp_path: Path) -> None:
    ours = Tokenizer(write_folder(tmp_path, byte_tokenizer(), "{% for m in messages %}{{ m.role }}{% endfor %}"))
    with pytest.raises(BadRequest, match="places 0 of 1 pictures"):
        ours.encode_chat([user(PICTURE, "what?")], [FOUR])


def test_an_empty_conversation_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="empty"):
        tokenizer.encode_chat([])


# --- templates are somebody else's code ---


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ namespace.__init__.__globals__.os }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ lipsum(1000) }}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 + 'a' }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_the_sandbox_stops_evil_and_broken_templates(tmp_path: Path, source: str) -> None:
    ours = Tokenizer(write_folder(tmp_path, byte_tokenizer(), source))
    with pytest.raises(ModelError, match=r"chat template fails: .") as caught:
        ours.encode_chat([user("hi")])
    assert "\n" not in str(caught.value)


def test_a_template_may_refuse_the_conversation(tmp_path: Path) -> None:
    refusing = "{{ raise_exception('roles must\\nalternate ' + 'x' * 1000) }}"
    ours = Tokenizer(write_folder(tmp_path, byte_tokenizer(), refusing))
    with pytest.raises(BadRequest, match="refuses this conversation: roles must alternate x") as caught:
        ours.encode_chat([user("hi")])
    assert len(str(caught.value)) < 400


def test_helpers_that_templates_expect() -> None:
    source = (
        "{% generation %}{{ messages | tojson }}{% endgeneration %}{{ strftime_now('%Y') | length }}{{ eos_token }}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    )
    shown = ChatTemplate(source).render([{"a": "<é>"}], {"eos_token": "E"}, add_generation_prompt=False)
    assert shown == '[{"a": "<é>"}]4E012'


def test_where_the_template_is_found(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_tokenizer())
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "config"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))

    def shown() -> str:
        return ChatTemplate.from_folder(folder).render([], {}, add_generation_prompt=True)

    assert shown().startswith("<|im_start|>assistant")
    (folder / "chat_template.jinja").unlink()
    assert shown() == "json"
    (folder / "chat_template.json").unlink()
    assert shown() == "config"
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="no chat template"):
        shown()


# --- folders that are not whole ---


def break_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def other_model(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"added_tokens": [], "model": {"type": "Nonsense"}}')


def other_decoder(folder: Path) -> None:
    source = byte_tokenizer()
    source.decoder = tokenizers.decoders.WordPiece()
    source.save(str(folder / "tokenizer.json"))


def no_pictures(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|image_pad|>", "<|picture|>"))


def greedy_token(folder: Path) -> None:
    body = json.loads((folder / "tokenizer.json").read_text())
    body["added_tokens"][2]["rstrip"] = True
    (folder / "tokenizer.json").write_text(json.dumps(body))


def no_end(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")


def bad_end(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')


def bad_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_tokenizer, "has no tokenizer.json"),
        (break_json, "not a tokenizer of the tokenizers library"),
        (other_model, "not a tokenizer of the tokenizers library"),
        (other_decoder, "not a byte-level tokenizer"),
        (no_pictures, r"lacks <\|image_pad\|>"),
        (greedy_token, r"<\|im_end\|> has rstrip = true"),
        (no_end, "names no end token"),
        (bad_end, "eos_token_id = 'x'"),
        (bad_template, "damaged at line 1"),
    ],
)
def test_a_damaged_folder_gives_one_line(tmp_path: Path, damage: Any, said: str) -> None:
    damage(write_folder(tmp_path, byte_tokenizer()))
    with pytest.raises(ModelError, match=said) as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_control_ids(byte_folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = byte_tokenizer()
    control = tokenizer.control
    assert control.eos == (source.token_to_id("<|im_end|>"),)
    pads = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")
    assert control.never_sampled == {source.token_to_id(name) for name in pads}
    assert control.special == {source.token_to_id(name) for name in SPECIAL}
    assert tokenizer.never_sampled(320) == control.never_sampled | set(range(256 + len(SPECIAL + ADDED), 320))
    (write_folder(tmp_path, source) / "generation_config.json").write_text('{"eos_token_id": [258, 256]}')
    assert Tokenizer(tmp_path).control.eos == (258, 256)


# --- decoding ---

TRICKY = "Hi 你好 👩‍👩‍👧‍👦 👍🏽 🇨🇳 e\u0301 ｆ \u200d\ufe0f 𠮷 \x00\n end"


@given(st.text() | st.just(TRICKY))
@settings(deadline=None, max_examples=60)
def test_a_stream_gives_whole_characters_and_loses_nothing(tokenizer: Tokenizer, said: str) -> None:
    ids = tokenizer.encode(said)
    stream = StreamDecoder(tokenizer)
    pieces = [stream.push(token) for token in ids]
    tail = stream.finish()
    assert tail == ""
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(pieces).count("\ufffd") == tokenizer.decode(ids).count("\ufffd") == said.count("\ufffd")


@pytest.mark.parametrize("cut", range(len(TRICKY.encode()) + 1))
def test_a_stream_cut_anywhere_shows_no_broken_character_before_its_end(tokenizer: Tokenizer, cut: int) -> None:
    ids = tokenizer.encode(TRICKY)[:cut]
    stream = StreamDecoder(tokenizer)
    shown = "".join(stream.push(token) for token in ids)
    assert "\ufffd" not in shown
    assert shown + stream.finish() == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 330), max_size=40))
@settings(deadline=None, max_examples=200)
def test_any_ids_decode_as_in_the_library(tokenizer: Tokenizer, ids: list[int]) -> None:
    library = byte_tokenizer()
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids, skip_special=False) == library.decode(ids, skip_special_tokens=False)
    stream = StreamDecoder(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_the_real_vocabulary_decodes_as_in_the_library(qwen_folder: Path) -> None:
    ours = Tokenizer(qwen_folder)
    library = tokenizers.Tokenizer.from_file(str(qwen_folder / "tokenizer.json"))
    rng = random.Random(0)
    ids = [rng.randrange(151_936) for _ in range(20_000)]
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=True)
    assert ours.decode(ours.encode(TRICKY)) == library.decode(library.encode(TRICKY).ids)


# --- stop strings ---


def cut_by_hand(said: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Letter by letter: the first moment at which a stop string ends; of several the longest."""
    for end in range(1, len(said) + 1):
        lengths = [len(stop) for stop in stops if said[:end].endswith(stop)]
        if lengths:
            return said[: end - max(lengths)], True
    return said, False


@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
@settings(deadline=None, max_examples=500)
def test_stop_strings_cut_exactly_however_the_text_is_split(pieces: list[str], stops: list[str]) -> None:
    filter_ = StopStrings(stops)
    shown, wanted = "", cut_by_hand("".join(pieces), stops)
    for piece in pieces:
        emitted, stopped = filter_.push(piece)
        shown += emitted
        assert wanted[0].startswith(shown)  # nothing of a stop string leaks
        if stopped:
            break
    else:
        stopped = False
        shown += filter_.finish()
    assert (shown, stopped) == wanted


def test_text_that_cannot_begin_a_stop_string_is_not_held() -> None:
    stops = StopStrings(["\n\nQ:"])
    assert stops.push("yes\n") == ("yes", False)
    assert stops.push("no\n\n") == ("\nno", False)
    assert stops.push("Q: more") == ("", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(BadRequest, match="empty"):
        StopStrings(["a", ""])


def test_text_work_and_hub_work_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, galago.tokenizer, galago.models.hub, galago.models.generation;"
        "sys.exit(bool({'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
