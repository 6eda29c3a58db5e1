"""The engine as a whole on a random checkpoint: pictures and words in, the reference's tokens out, ends told truly.

Guards against a wrong step anywhere between bytes and tokens (the same 64 ids as transformers), text that differs
between the stream and the answer, work after a stop, pictures encoded twice, and refusals that come after the work.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from galago.engine import core, intake
from galago.engine.core import AnswerText, Engine
from galago.errors import BadImage, BadRequest, ContextTooLong, OutOfMemory
from galago.models.formats import format_by_name
from galago.types import (
    Answer,
    FinishReason,
    ImageOptions,
    ImagePart,
    ImageReport,
    Message,
    Progress,
    Request,
    SamplingParams,
    TextPart,
    TokenEvent,
)

from ..conftest import RandomCheckpoint
from ..pictures import encode, quad, scene

PHOTO, DRAWING = scene(1, 100, 75), quad(61, 130)
PHOTO_FILE, DRAWING_FILE = encode(PHOTO, "PNG"), encode(DRAWING, "JPEG", quality=90)
QUESTION = TextPart("What is this? 这是什么?")
IMAGE_PAD = "<|image_pad|>"


@pytest.fixture(scope="module")
def engine(random_checkpoint: RandomCheckpoint) -> Iterator[Engine]:
    before = torch.get_num_threads()
    yield Engine(random_checkpoint(tied=False), format_by_name("fp32"), threads=1)
    torch.set_num_threads(before)


def picture(data: bytes = PHOTO_FILE, name: str = "picture", **options: int) -> ImagePart:
    return ImagePart(data, ImageOptions(**options), name)  # type: ignore[arg-type]


def request(*parts: TextPart | ImagePart, **sampling: object) -> Request:
    """One user turn; 12 tokens unless told otherwise."""
    return Request((Message("user", parts),), SamplingParams(**{"max_tokens": 12} | sampling))  # type: ignore[arg-type]


def run(engine: Engine, asked: Request) -> tuple[list[TokenEvent], Answer]:
    *events, answer = engine.generate(asked)
    assert isinstance(answer, Answer)
    assert all(isinstance(event, TokenEvent) for event in events)
    return events, answer  # type: ignore[return-value]


def tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [event.token for event in events if event.token is not None]


class Calls:
    """Counts the calls of a method that goes on working."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.count = 0
        original = getattr(owner, name)

        def counted(*args: object) -> object:
            self.count += 1
            return original(*args)

        monkeypatch.setattr(owner, name, counted)


CASES = {
    "text": (QUESTION,),
    "one picture": (picture(), QUESTION),
    "text around pictures": (TextPart("First "), picture(), TextPart(" and then "), picture(DRAWING_FILE), QUESTION),
    "the same picture twice": (picture(), picture(DRAWING_FILE), picture(), QUESTION),
}


@pytest.mark.parametrize("name", CASES)
def test_64_greedy_ids_equal_transformers(name: str, engine: Engine, random_checkpoint: RandomCheckpoint) -> None:
    """From the files to the ids: decoding, resizing, template, tokens, positions, model, sampling."""
    parts = CASES[name]
    events, answer = run(engine, request(*parts, max_tokens=64, ignore_eos=True))
    wanted, prompt = reference_ids(random_checkpoint(tied=False), parts, engine.forbidden)
    assert len(wanted) == 64
    assert len(set(wanted)) > 8  # a model that repeats itself would prove little
    assert tokens(events) == wanted
    assert answer.usage.prompt_tokens == prompt
    assert answer.text == engine.tokenizer.decode(wanted)


def reference_ids(
    folder: object, parts: Sequence[TextPart | ImagePart], forbidden: Sequence[int]
) -> tuple[list[int], int]:
    """What transformers generates, and the length of its prompt."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    content = [{"type": "text", "text": p.text} if isinstance(p, TextPart) else {"type": "image"} for p in parts]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    inputs = {}
    images = [Image.open(io.BytesIO(part.data)).convert("RGB") for part in parts if isinstance(part, ImagePart)]
    if images:
        inputs = dict(Qwen2VLImageProcessorPil.from_pretrained(folder)(images, return_tensors="pt"))
        runs = [int(grid.prod()) // 4 for grid in inputs["image_grid_thw"]]
        pieces = text.split(IMAGE_PAD)
        text = pieces[0] + "".join(IMAGE_PAD * n + piece for n, piece in zip(runs, pieces[1:], strict=True))
    ids = torch.tensor([tokenizer(text).input_ids])
    inputs |= {"input_ids": ids, "mm_token_type_ids": (ids == tokenizer.convert_tokens_to_ids(IMAGE_PAD)).int()}
    with torch.inference_mode():
        out = model.generate(
            **inputs, max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None,
            suppress_tokens=sorted(forbidden),
        )  # fmt: skip
    return out[0, ids.shape[1] :].tolist(), ids.shape[1]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "seed": 3}], ids=["greedy", "sampled"])
def test_the_stream_is_the_answer(sampling: dict[str, object], engine: Engine) -> None:
    events, answer = run(engine, request(picture(), QUESTION, max_tokens=200, ignore_eos=True, **sampling))
    assert "".join(event.text for event in events) == answer.text
    assert answer.text == engine.tokenizer.decode(tokens(events))
    assert any(event.text == "" for event in events)  # bytes of one character came one by one


def test_max_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as many as asked for, and no step for a token that nobody will see."""
    steps = Calls(monkeypatch, engine.runner, "execute")
    for count in (1, 5):
        steps.count = 0
        events, answer = run(engine, request(QUESTION, max_tokens=count, ignore_eos=True))
        assert len(tokens(events)) == answer.usage.completion_tokens == count
        assert answer.finish_reason is FinishReason.LENGTH
        assert steps.count == count  # one prefill, and a step for each token but the last


@pytest.fixture
def greedy(engine: Engine) -> list[int]:
    """The first 40 ids of the answer to QUESTION."""
    return tokens(run(engine, request(QUESTION, max_tokens=40, ignore_eos=True))[0])


def ended_by(engine: Engine, monkeypatch: pytest.MonkeyPatch, token: int) -> None:
    """Make a token that the random model does generate the one that ends answers."""
    monkeypatch.setattr(engine.tokenizer, "control", replace(engine.tokenizer.control, eos=(token,)))


def test_end_token(engine: Engine, greedy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    at = next(index for index in range(3, 40) if greedy[index] not in greedy[:index])
    ended_by(engine, monkeypatch, greedy[at])
    events, answer = run(engine, request(QUESTION, max_tokens=40))
    assert tokens(events) == greedy[:at]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.text == engine.tokenizer.decode(greedy[:at])
    events, answer = run(engine, request(QUESTION, max_tokens=40, ignore_eos=True))
    assert tokens(events) == greedy
    assert answer.finish_reason is FinishReason.LENGTH


def test_an_answer_may_end_at_once(engine: Engine, greedy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ended_by(engine, monkeypatch, greedy[0])
    events, answer = run(engine, request(QUESTION))
    assert events == []
    assert (answer.text, answer.finish_reason) == ("", FinishReason.STOP)
    assert answer.timings.ttft > 0
    assert answer.timings.tpot == 0


def test_stop_strings_are_cut(engine: Engine, greedy: list[int]) -> None:
    text = engine.tokenizer.decode(greedy)
    stop = next(text[at : at + 3] for at in range(4, len(text) - 3) if text.index(text[at : at + 3]) == at)
    events, answer = run(engine, request(QUESTION, max_tokens=40, ignore_eos=True, stop=("never", stop)))
    assert answer.text == text[: text.index(stop)] != ""
    assert "".join(event.text for event in events) == answer.text
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage.completion_tokens < 40


def test_text_held_back_for_a_stop_string_is_released(engine: Engine, greedy: list[int]) -> None:
    text = engine.tokenizer.decode(greedy)
    events, answer = run(engine, request(QUESTION, max_tokens=40, ignore_eos=True, stop=(text[-3:] + "x",)))
    assert answer.text == text
    assert events[-1].token is None
    assert events[-1].text.endswith(text[-3:])


def test_a_character_cut_off_by_the_end_is_marked(engine: Engine) -> None:
    first, second = engine.tokenizer.encode("é")
    text = AnswerText(engine.tokenizer, ())
    assert [text.push(first), text.push(second), text.push(first), text.finish()] == ["", "é", "", "\ufffd"]
    assert text.whole == "é\ufffd"


def test_nothing_happens_before_the_first_token_is_asked_for(engine: Engine) -> None:
    engine.generate(request(picture(b"no picture"), QUESTION))


def test_closing_the_iterator_stops_the_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Calls(monkeypatch, engine.runner, "execute")
    stream = engine.generate(request(QUESTION, max_tokens=3000, ignore_eos=True))
    for _ in range(3):
        next(stream)
    done = steps.count
    assert done <= 3
    stream.close()  # type: ignore[attr-defined]
    assert steps.count == done
    assert list(stream) == []


@pytest.mark.parametrize("stage", ["decode", "vision", "prefill"])
def test_a_listener_can_stop_the_work(stage: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives in the listener as likely as anywhere; the engine answers the next request as if nothing was."""
    asked = request(picture(), QUESTION)
    wanted = run(engine, asked)[0]

    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(engine.generate(asked, interrupt))
    assert not torch.is_inference_mode_enabled()
    assert run(engine, asked)[0] == wanted


@pytest.mark.parametrize("name", CASES)
def test_progress(name: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages in order, each growing to its total, also when a picture needs no encoding of its own."""
    monkeypatch.setattr(core, "SLICE", 50)
    seen: list[Progress] = []
    list(engine.generate(request(*CASES[name], max_tokens=1), seen.append))
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == (["prefill"] if name == "text" else ["decode", "vision", "prefill"])
    for stage in stages:
        own = [progress for progress in seen if progress.stage == stage]
        assert seen.index(own[-1]) - seen.index(own[0]) == len(own) - 1  # nothing of another stage in between
        done = [progress.done for progress in own]
        assert done == sorted(done)
        assert len({progress.total for progress in own}) == 1
        assert done[-1] == own[0].total > 0
    if name == "one picture":
        assert [progress.done for progress in seen if progress.stage == "vision"] == [1, 2, 3]


def test_slices_of_the_prompt_do_not_matter(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(*CASES["text around pictures"], max_tokens=20, ignore_eos=True)
    wanted = tokens(run(engine, asked)[0])
    monkeypatch.setattr(core, "SLICE", 7)
    assert tokens(run(engine, asked)[0]) == wanted


def test_equal_pictures_are_encoded_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal is what they show at the size used: another file of the same pixels is, another budget is not."""
    encodings = Calls(monkeypatch, engine.runner, "encode")
    run(engine, request(picture(), picture(DRAWING_FILE), picture(), picture(encode(PHOTO, "BMP")), QUESTION))
    assert encodings.count == 2
    encodings.count = 0
    run(engine, request(picture(), picture(max_pixels=2048), QUESTION))
    assert encodings.count == 2


def test_context_too_long_is_told_before_any_picture_is_decoded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "decode", lambda *_args, **_named: pytest.fail("decoded"))
    wide, small = encode(Image.new("L", (1024, 768)), "PNG"), encode(Image.new("L", (64, 32)), "PNG")
    parts = [picture(wide, f"wide{number}.png") for number in range(5)] + [picture(small, "small.png"), QUESTION]
    with pytest.raises(ContextTooLong) as caught:
        run(engine, request(*parts, max_tokens=300))
    message = str(caught.value)
    assert "\n" not in message
    for words in ("the model holds 4,096", "wide0.png 768", "wide4.png 768", "small.png 2", "300 for the answer"):
        assert words in message
    assert "3,842 of pictures" in message


def test_context_may_be_filled_to_the_last_token(engine: Engine) -> None:
    asked = request(QUESTION, max_tokens=100)
    needed = run(engine, asked)[1].usage.prompt_tokens + 100
    for context, fits in ((needed, True), (needed - 1, False)):
        args = (asked, engine.tokenizer, engine.processor, context, lambda _done, _total: None)
        if fits:
            intake.prepare(*args)
        else:
            with pytest.raises(ContextTooLong, match=f"{needed:,} tokens"):
                intake.prepare(*args)


def test_memory_is_checked_before_any_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of 3 layers, 2 groups of 24, 4 bytes each: 1,152 bytes a token."""
    asked = request(picture(), QUESTION, max_tokens=2000)
    tokens_needed = run(engine, request(picture(), QUESTION, max_tokens=1))[1].usage.prompt_tokens + 2000
    encodings = Calls(monkeypatch, engine.runner, "encode")
    monkeypatch.setattr(core, "available_memory", lambda: tokens_needed * 1152 - 1)
    with pytest.raises(OutOfMemory, match=f"{tokens_needed:,} tokens need"):
        run(engine, asked)
    assert encodings.count == 0
    for enough in (tokens_needed * 1152, None):
        monkeypatch.setattr(core, "available_memory", lambda enough=enough: enough)
        next(engine.generate(asked))


@pytest.mark.parametrize(
    "asked",
    [
        Request(()),
        request(),
        request(TextPart("")),
        request(TextPart(" \n\t　")),
        request(picture()),
        request(picture(), TextPart(" ")),
        Request((Message("user", (QUESTION,)), Message("assistant", (QUESTION,)), Message("user", (TextPart(""),)))),
    ],
    ids=["no message", "no part", "empty", "blanks", "only a picture", "a picture and a blank", "last of three"],
)
def test_empty_question(asked: Request, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "probe", lambda *_args, **_named: pytest.fail("looked at a picture"))
    with pytest.raises(BadRequest, match="the question is empty"):
        run(engine, asked)


def test_a_bad_picture_is_named_before_any_is_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    encodings = Calls(monkeypatch, engine.runner, "encode")
    broken = picture(DRAWING_FILE[:-400], "broken.jpg")
    with pytest.raises(BadImage, match=r"broken\.jpg"):
        run(engine, request(picture(), broken, QUESTION))
    assert encodings.count == 0


def test_the_account(engine: Engine) -> None:
    frames = io.BytesIO()
    quad(64, 48).save(frames, "GIF", save_all=True, append_images=[quad(64, 48).rotate(180)])
    parts = (picture(), picture(frames.getvalue(), "moving.gif"), QUESTION)
    events, answer = run(engine, request(*parts, max_tokens=5, ignore_eos=True))
    assert answer.images == (ImageReport(100, 75, 96, 64, 6), ImageReport(64, 48, 64, 64, 4))
    assert answer.notices == ("moving.gif: first of 2 frames used",)
    assert answer.usage.completion_tokens == len(tokens(events)) == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    text_tokens = run(engine, request(QUESTION))[1].usage.prompt_tokens
    assert answer.usage.prompt_tokens == text_tokens + 6 + 4 + 2 * 2  # and a start and an end token for each
    times = answer.timings
    assert times.image_tokens == 10
    assert min(times.decode, times.vision, times.prefill, times.tpot) > 0
    assert times.ttft >= times.decode + times.vision + times.prefill
    assert times.e2e >= times.ttft + 4 * times.tpot
