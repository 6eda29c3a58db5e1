"""The engine: a request goes in, tokens come out, every stage is timed.

One request at a time, in the caller's thread: prepare, encode the pictures block by block, compute the prompt in
slices, then one token per step. Between any two of these the caller gets control back, so stopping takes at most one
step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from galago.engine.intake import Prepared, prepare
from galago.engine.runner import Runner, RunningSequence, use_threads
from galago.engine.sampler import Sampler
from galago.errors import ModelError, OutOfMemory
from galago.hardware import available_memory
from galago.models.base import Tick, VisionFeatures
from galago.models.formats import Format
from galago.models.qwen3_vl.model import Qwen3VL
from galago.models.qwen3_vl.processor import ProcessorConfig
from galago.tokenizer import StopStrings, StreamDecoder, Tokenizer
from galago.types import Answer, FinishReason, Progress, Request, Timings, TokenEvent, Usage

Report = Callable[[Progress], None]

SLICE = 1024  # prompt tokens per step: larger slices reuse each weight more, smaller ones return control sooner


def ignore(_: Progress) -> None:
    """A listener for those who do not want to know."""


class Engine:
    """A loaded model that answers requests."""

    def __init__(self, folder: Path, fmt: Format, threads: int) -> None:
        """Load a model folder; `threads` compute. Raises ModelError when the folder cannot be used."""
        use_threads(threads)
        model = Qwen3VL(folder, fmt)
        self.tokenizer = Tokenizer(folder)
        _check_image_token(model.config.image_token, self.tokenizer.control.image, folder)
        self.processor = ProcessorConfig.from_folder(folder)
        self.shape = model.shape
        self.weight_bytes = model.weight_bytes
        self.runner = Runner(model, fmt.dtype)
        self.forbidden = self.tokenizer.never_sampled(model.shape.vocabulary)

    def generate(self, request: Request, report: Report = ignore) -> Generator[TokenEvent | Answer, None, None]:
        """Yield a TokenEvent per generated token and, last, the Answer.

        report: called with the progress of the stages before the first token. Closing the iterator stops the work.
        Raises BadRequest (BadImage, ContextTooLong) before any model work.
        """
        clock = Clock()
        prepared = prepare(
            request,
            self.tokenizer,
            self.processor,
            self.shape.context,
            lambda done, total: report(Progress("decode", done, total)),
        )
        clock.mark("decode")
        self._check_memory(len(prepared.prompt.ids) + request.sampling.max_tokens)
        sequence = self.runner.start(prepared.prompt, request.sampling.max_tokens)
        self._encode(sequence, prepared, report)
        clock.mark("vision")
        logits = self._prefill(sequence, report)
        clock.mark("prefill")
        return (yield from self._decode(request, prepared, sequence, logits, clock))

    def _check_memory(self, tokens: int) -> None:
        """Refuse what cannot fit before any work: the keys and values of the whole sequence."""
        needed, available = self.runner.kv_bytes(tokens), available_memory()
        if available is not None and needed > available:
            raise OutOfMemory(
                f"{tokens:,} tokens need {needed / 2**30:.1f} GiB of keys and values, {available / 2**30:.1f} GiB of "
                "memory are free; use fewer or smaller pictures or fewer max tokens"
            )

    def _encode(self, sequence: RunningSequence, prepared: Prepared, report: Report) -> None:
        """Vision features of every picture, once per distinct picture and grid."""
        names = [(span.key, span.grid) for span in prepared.prompt.spans]
        distinct = dict(zip(names, prepared.pictures, strict=True))
        steps = self.runner.model.encode_steps
        known: dict[object, VisionFeatures] = {}
        for name, picture in distinct.items():
            work = self.runner.encode(picture.patches, picture.plan.grid)
            known[name] = _drive(work, len(known) * steps, len(distinct) * steps, report)
        sequence.features = [known[name] for name in names]

    def _prefill(self, sequence: RunningSequence, report: Report) -> Tensor:
        """The prompt in slices; logits after its last token."""
        total = sequence.pending
        while True:
            count = min(SLICE, sequence.pending)
            logits = self.runner.execute(sequence, count, _part_of(total, sequence.kv.length, count, report))
            if not sequence.pending:
                return logits

    def _decode(
        self, request: Request, prepared: Prepared, sequence: RunningSequence, logits: Tensor, clock: Clock
    ) -> Generator[TokenEvent | Answer, None, None]:
        params = request.sampling
        sampler = Sampler(params, prepared.prompt.ids, self.forbidden)
        text = AnswerText(self.tokenizer, params.stop)
        reason = FinishReason.LENGTH
        for index in range(params.max_tokens):
            token = sampler.draw(logits)
            clock.token()
            if token in self.tokenizer.control.eos and not params.ignore_eos:
                reason = FinishReason.STOP
                break
            yield TokenEvent(token, text.push(token))
            if text.stopped:
                reason = FinishReason.STOP
                break
            if index + 1 < params.max_tokens:
                sequence.ids.append(token)
                logits = self.runner.execute(sequence, 1)
        if rest := text.finish():
            yield TokenEvent(None, rest)
        yield self._answer(prepared, text, reason, clock)

    def _answer(self, prepared: Prepared, text: AnswerText, reason: FinishReason, clock: Clock) -> Answer:
        return Answer(
            text=text.whole,
            finish_reason=reason,
            usage=Usage(len(prepared.prompt.ids), clock.tokens),
            timings=clock.timings(sum(span.tokens for span in prepared.prompt.spans)),
            images=tuple(picture.report for picture in prepared.pictures),
            notices=prepared.notices,
        )


def _check_image_token(configured: int, named: int, folder: Path) -> None:
    if configured != named:
        raise ModelError(f"{folder}: image_token_id is {configured} in config.json and {named} in tokenizer.json")


def _part_of(total: int, before: int, count: int, report: Report) -> Tick:
    """Turns "layer n of m of this slice" into "tokens of the whole prompt"."""
    return lambda layer, layers: report(Progress("prefill", before + count * layer // layers, total))


def _drive(work: Generator[None, None, VisionFeatures], before: int, total: int, report: Report) -> VisionFeatures:
    """Run an encoding to its end, counting its steps on top of those before it."""
    for done in itertools.count(before + 1):
        try:
            next(work)
        except StopIteration as finished:
            features: VisionFeatures = finished.value
            return features
        report(Progress("vision", done, total))
    raise AssertionError("count() does not end")


class AnswerText:
    """The text of an answer as it grows: whole characters only, stop strings cut."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stops = StopStrings(stops)
        self._pieces: list[str] = []
        self.stopped = False

    @property
    def whole(self) -> str:
        return "".join(self._pieces)

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        piece, self.stopped = self._stops.push(self._decoder.push(token))
        self._pieces.append(piece)
        return piece

    def finish(self) -> str:
        """What was held back: the start of a stop string that never came, a character that was never completed."""
        if self.stopped:
            return ""
        piece, stopped = self._stops.push(self._decoder.finish())
        rest = piece if stopped else piece + self._stops.finish()
        self._pieces.append(rest)
        return rest


@dataclass(slots=True)
class Clock:
    """Stage times of one request, in milliseconds."""

    begun: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    _lap: float = field(default_factory=time.perf_counter)

    def mark(self, stage: str) -> None:
        """The stage that ran since the last mark has ended."""
        now = time.perf_counter()
        self.stages[stage] = (now - self._lap) * 1e3
        self._lap = now

    def token(self) -> None:
        """A token was drawn."""
        self.last = time.perf_counter()
        if not self.tokens:
            self.first = self.last
        self.tokens += 1

    def timings(self, image_tokens: int) -> Timings:
        """The finished account."""
        return Timings(
            decode=self.stages["decode"],
            vision=self.stages["vision"],
            prefill=self.stages["prefill"],
            ttft=(self.first - self.begun) * 1e3,
            tpot=(self.last - self.first) * 1e3 / (self.tokens - 1) if self.tokens > 1 else 0.0,
            e2e=(time.perf_counter() - self.begun) * 1e3,
            image_tokens=image_tokens,
        )
