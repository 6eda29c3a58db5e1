"""The command line: answers on stdout, everything else on stderr, one clear line and the right code for every fault.

Guards against tracebacks and boxes where a line is due, refusals that come after a download or a loaded model, half an
answer on stdout, and a command that cannot be stopped, piped or redirected. Real processes where signals, pipes, memory
or imports matter; the same `main` in this process otherwise.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from PIL import Image

from galago import asking, cli, errors
from galago.models import hub
from galago.models.generation import GenerationDefaults, SamplingOverrides
from galago.terminal import Waiting, print_error, print_speed, visible
from galago.types import Answer, FinishReason, Progress, Timings, TokenEvent, Usage

from .checkpoints import IDS
from .conftest import RandomCheckpoint
from .pictures import encode, png, quad, scene

QUESTION = "What is this?"
# Ctrl-C must work even where the tests run in the background and the shell has switched it off.
CHILD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from galago.cli import main; main()"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc or writes to /dev/full")


class Result(NamedTuple):
    """What a run left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, no caches and no language of the machine that runs the tests, and no network."""
    for name in [
        name for name in os.environ if name.startswith(("GALAGO_", "LC_", "LANG", "XDG_", "PYTHONUNBUFFERED"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GALAGO_THREADS", "1")  # two threads that wait for each other crawl on a busy machine


@pytest.fixture
def galago(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, as the console script does."""

    def run(*words: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["galago", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        threads = torch.get_num_threads()
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        torch.set_num_threads(threads)
        return Result(int(left.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="module")
def model(random_checkpoint: RandomCheckpoint) -> Path:
    return random_checkpoint(tied=False)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(encode(scene(1, 100, 75), "PNG"))
    return path


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """One line on stderr that says these words, and nothing else anywhere."""
    assert result.out == ""
    assert result.err.startswith("galago: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
    assert result.code == code


# ---------------------------------------------------------------- bad input: pictures


def broken_crc() -> bytes:
    data = bytearray(encode(quad(), "PNG"))
    at = data.index(b"IDAT")
    length = int.from_bytes(data[at - 4 : at], "big")
    data[at + 4 + length] ^= 1  # the first byte of the checksum
    return bytes(data)


def truncated_jpeg() -> bytes:
    data = encode(scene(2, 200, 160), "JPEG")
    return data[: len(data) * 2 // 3]


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="4"/></svg>'
HEADERS = {  # told from the first bytes, before a model is looked for
    "empty file": (b"", "the file is empty"),
    "text": (b"not a picture at all\n" * 10, "this is text"),
    "SVG": (SVG, "this is an SVG drawing"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n", "this is a PDF"),
    "TIFF": (encode(quad(), "TIFF"), "this is a TIFF"),
    "aspect over 200": (encode(Image.new("L", (402, 2)), "PNG"), "aspect ratio of 201.0, the limit is 200"),
    "too many pixels": (png(9000, 9000, 1, 0, b""), "81.0 megapixels, the limit is 64"),
    "header cut off": (encode(quad(), "PNG")[:20], "damaged"),
}
BODIES = {"truncated JPEG": (truncated_jpeg(), "the JPEG is damaged"), "broken CRC": (broken_crc(), "checksum")}


@pytest.mark.parametrize("name", HEADERS)
def test_pictures_refused_before_a_model_is_looked_for(
    name: str, galago: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "resolve", lambda *_args, **_named: pytest.fail("looked for a model"))
    data, words = HEADERS[name]
    path = tmp_path / "renamed.png"
    path.write_bytes(data)
    assert_refused(galago("ask", path, QUESTION), "renamed.png", words)
    assert_refused(galago("ask", "--image", "-", QUESTION, stdin=data), "standard input", words)


@pytest.mark.parametrize("name", BODIES)
def test_damaged_pictures(name: str, galago: Run, tmp_path: Path, model: Path) -> None:
    data, words = BODIES[name]
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    assert_refused(galago("ask", "--model", model, path, QUESTION), "photo.jpg", words)


def test_missing_file_and_directory(galago: Run, tmp_path: Path, photo: Path) -> None:
    assert_refused(galago("ask", tmp_path / "nope.png", QUESTION), "nope.png: no such file")
    assert_refused(galago("ask", photo, tmp_path / "nope.png", QUESTION), "nope.png: no such file")
    assert_refused(galago("ask", tmp_path, QUESTION), f"{tmp_path}: this is a directory")


@linux
def test_a_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    """20,000 x 20,000 pixels would be 1.2 GB; a run that fails at the file's name is the measure."""
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png(20_000, 20_000, 1, 0, bytes(20_000 * 2501)))
    assert bomb.stat().st_size < 1e6
    base, result = peak_megabytes(f"galago.cli.main(['ask', {str(tmp_path / 'nope.png')!r}, 'x'])")
    assert_refused(result, "no such file")
    peak, result = peak_megabytes(f"galago.cli.main(['ask', {str(bomb)!r}, 'x'])")
    assert_refused(result, "bomb.png", "400.0 megapixels, the limit is 64")
    assert peak - base < 50
    full, _ = peak_megabytes("bytearray(b'x') * (200 << 20)")  # the measure measures
    assert full > 200


def peak_megabytes(action: str) -> tuple[float, Result]:
    """The largest resident size of a process that does this. Not ru_maxrss: a child inherits its parent's."""
    script = f"""
import sys, galago.cli
galago.cli.main = lambda words, run=galago.cli.main: (setattr(sys, "argv", ["galago", *words]), run())
try:
    {action}
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    *lines, peak = done.stderr.splitlines(keepends=True)
    return int(peak) / 1024, Result(done.returncode, done.stdout, "".join(lines))


# ---------------------------------------------------------------- bad input: questions, values, models


@pytest.mark.parametrize("question", ["", "  \n ", "　"])
def test_empty_question(question: str, galago: Run, photo: Path) -> None:
    assert_refused(galago("ask", photo, question), "the question is empty")
    assert_refused(galago("ask", question), "the question is empty")


def test_forgotten_question(galago: Run, photo: Path) -> None:
    for words in ([photo], [photo, photo], ["--image", photo, photo]):
        assert_refused(galago("ask", *words), f"{photo} is a file and no question follows it")
    assert_refused(galago("ask"), "Missing argument", "see galago ask --help")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--max-tokens 0", "max_tokens = 0 is out of range"),
        ("--max-tokens -5", "max_tokens = -5 is out of range"),
        ("--max-tokens many", "Invalid value for '--max-tokens'"),
        ("--detail huge", "detail huge is not known: use one of fast, low, auto, high"),
        ("--format int3", "format int3 is not known: use auto or one of fp32, bf16"),
        ("--hub nowhere", "hub nowhere is not known: use one of huggingface, modelscope"),
        ("--hub nowhere --model tiny", "hub nowhere is not known"),
        ("--threads 0", "threads = 0 is out of range"),
        ("--threads -1", "threads = -1 is out of range"),
        ("--threads 9999999", "threads = 9999999 is out of range"),
        ("--threads two", "Invalid value for '--threads'"),
        ("--temperature nan", "temperature = nan is out of range"),
        ("--top-p 1.5", "top_p = 1.5 is out of range"),
        ("--seed -1", "seed = -1 is out of range"),
        ("--stop=", "a stop string is empty"),
        ("--bogus", "No such option: --bogus"),
        ("--json=1", "--json"),
        ("--detail", "--detail"),
    ],
)
def test_unknown_values_are_refused_before_a_model_is_looked_for(
    flags: str, words: str, galago: Run, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "resolve", lambda *_args, **_named: pytest.fail("looked for a model"))
    assert_refused(galago("ask", photo, QUESTION, *flags.split()), words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--max-pixels 3", "max_pixels is 3"),
        ("--min-pixels 0", "min_pixels is 0"),
        ("--min-pixels 4096 --max-pixels 2048", "less than min_pixels"),
        ("--max-tokens 4096", "the model holds 4,096"),
    ],
)
def test_values_that_the_model_cannot_meet(flags: str, words: str, galago: Run, photo: Path, model: Path) -> None:
    assert_refused(galago("ask", "--model", model, photo, QUESTION, *flags.split()), words)


def test_context_too_long_counts_every_picture(galago: Run, photo: Path, tmp_path: Path, model: Path) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(encode(Image.new("L", (1024, 1024)), "PNG"))
    result = galago("ask", "--model", model, *[large] * 5, photo, QUESTION, "--max-tokens", 500, "--detail", "high")
    assert_refused(result, f"{large} 1,024", f"{photo} 6", "500 for the answer", "the model holds 4,096")


@pytest.mark.parametrize("command", ["", "models", "bench"])
def test_no_command_prints_the_help(command: str, galago: Run) -> None:
    result = galago(*command.split())
    assert "Usage: galago" in result.out
    assert (result.code, result.err) == (2, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("bogus", "No such command 'bogus': see galago --help"),
        ("models bogus", "No such command 'bogus': see galago models --help"),
        ("models pull", "Missing argument 'model': see galago models pull --help"),
        ("models path nothing", "no model is called 'nothing'"),
        ("models path tiny extra", "extra"),
        ("bench quality --limit 0", "limit = 0 is out of range"),
        ("bench checkpoint x --layers 0", "layers = 0 is out of range"),
    ],
)
def test_other_commands(words: str, line: str, galago: Run) -> None:
    assert_refused(galago(*words.split()), line)


def without_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "has no config.json"


def corrupt(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
    return "model.safetensors (1,000 bytes) is truncated or damaged"


def truncated(folder: Path) -> str:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    return "is truncated or damaged"


def another(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return "LlamaForCausalLM"


def no_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return "has no tokenizer.json"


@pytest.mark.parametrize("damage", [without_config, corrupt, truncated, another, no_tokenizer])
def test_model_folders(damage: Callable[[Path], str], galago: Run, tmp_path: Path, model: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    words = damage(folder)
    assert_refused(galago("ask", "--model", folder, QUESTION), words)


def test_models_that_are_not_there(galago: Run, tmp_path: Path) -> None:
    assert_refused(galago("ask", "--model", tmp_path / "none", QUESTION), "there is no folder")
    assert_refused(galago("ask", "--model", "a/b/c", QUESTION), "there is no folder a/b/c")
    assert_refused(galago("ask", QUESTION), "Qwen/Qwen3-VL-2B-Instruct is not in the local cache", "--model tiny")


# ---------------------------------------------------------------- answers


def test_json_is_the_streamed_answer(galago: Run, photo: Path, model: Path) -> None:
    words = ("ask", "--model", model, photo, QUESTION, "--max-tokens", 20)
    streamed, reported = galago(*words), galago(*words, "--json")
    assert (streamed.code, reported.code) == (0, 0)
    assert streamed.err == reported.err == ""  # no progress where stderr is not a terminal
    assert reported.out.endswith("}\n")
    assert reported.out.count("\n") == 1
    body = json.loads(reported.out)
    assert streamed.out == body["text"] + "\n"
    assert body["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + 20
    assert body["images"] == [{"width": 100, "height": 75, "used_width": 96, "used_height": 64, "tokens": 6}]
    times = body["timings"]
    assert times["image_tokens"] == 6
    assert times["e2e"] >= times["ttft"] > times["vision"] > 0
    assert body["model"] == str(model)


def test_ways_to_name_pictures(galago: Run, photo: Path, model: Path) -> None:
    """Before the question, as an option, on standard input: the same answer."""
    words = ("--model", model, QUESTION, "--max-tokens", 10)
    wanted = galago("ask", photo, *words)
    assert wanted.code == 0
    assert galago("ask", "--image", photo, *words) == wanted
    assert galago("ask", "--image", "-", *words, stdin=photo.read_bytes()) == wanted
    assert galago("ask", "-", *words, stdin=photo.read_bytes()) == wanted
    assert galago("ask", photo, "--detail", "low", "--max-pixels", "2048", *words) != wanted
    assert galago("ask", *words) != wanted  # without one


def test_flags_reach_the_model(galago: Run, model: Path) -> None:
    words = ("ask", "--model", model, QUESTION, "--max-tokens", 30)
    greedy = galago(*words).out
    seeded = ("--temperature", 2, "--seed", 1)
    sampled = galago(*words, *seeded).out
    assert sampled != greedy
    assert galago(*words, *seeded).out == sampled
    assert galago(*words, *seeded, "--top-k", 1).out == greedy
    assert galago(*words, "--repetition-penalty", 5).out != greedy
    assert galago(*words, "--system", "Be brief.").out != greedy
    assert galago(*words, "--stop", greedy[4]).out == greedy[: greedy.index(greedy[4])] + "\n"
    assert galago(*words, "--format", "bf16", "--threads", 1).code == 0


def test_settings_come_from_the_environment_too(galago: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALAGO_MODEL", str(model))
    assert galago("ask", QUESTION, "--max-tokens", 1).code == 0
    monkeypatch.setenv("GALAGO_THREADS", "some")
    assert_refused(galago("ask", QUESTION), "GALAGO_THREADS: threads = 'some' must be a whole number")


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("zh_CN.UTF-8", ("首个词元", "正在看图", "图片 1:100x75", "词元/秒")),
        ("en_GB.UTF-8", ("first token", "looking at the picture", "picture 1: 100x75, seen as 96x64, 6 tokens")),
    ],
)
def test_stats_go_to_stderr_in_the_users_language(
    language: str, words: tuple[str, ...], galago: Run, photo: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", language)
    asked = ("ask", "--model", model, photo, QUESTION, "--max-tokens", 5)
    plain, told = galago(*asked), galago(*asked, "--stats")
    assert told.out == plain.out
    for word in words:
        assert word in told.err
    assert f"{model} · fp32 (the weights are small (" in told.err.splitlines()[0]  # one line, however long the path


def test_names_are_not_markup(galago: Run, tmp_path: Path, model: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "x[" / "bold]")
    result = galago("ask", "--model", folder, QUESTION, "--max-tokens", 1, "--stats")
    assert result.code == 0
    assert f"{tmp_path}/x[/bold] · " in result.err


def test_notices_go_to_stderr(galago: Run, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "moving.gif"
    quad().save(path, save_all=True, append_images=[quad().rotate(180)])
    result = galago("ask", "--model", model, path, QUESTION, "--max-tokens", 1)
    assert result.err == f"galago: {path}: first of 2 frames used\n"
    assert result.code == 0


def test_long_questions_are_not_file_names(galago: Run, model: Path) -> None:
    assert galago("ask", "--model", model, "why " * 200, "--max-tokens", 1).code == 0


# ---------------------------------------------------------------- errors and codes


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.GalagoError, 1),
        (errors.BadRequest, 2),
        (errors.BadImage, 2),
        (errors.ContextTooLong, 2),
        (errors.ModelError, 2),
        (errors.ModelNotFound, 2),
        (errors.StorageFull, 2),
        (KeyboardInterrupt, 130),
        (RuntimeError, 1),
    ],
)
def test_exit_codes(kind: type[BaseException], code: int, galago: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise kind("the\nfault \x1b[31mitself")

    monkeypatch.setattr(asking, "split", fail)
    result = galago("ask", QUESTION)
    if kind is KeyboardInterrupt:
        assert result == Result(130, "", "")
    else:
        assert_refused(result, "the fault ?[31mitself", code=code)
    assert ("internal error (RuntimeError" in result.err) == (kind is RuntimeError)


def test_debugging_shows_where(galago: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALAGO_DEBUG", "1")
    monkeypatch.setattr(asking, "split", lambda *_args: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["galago", "ask", QUESTION])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_print_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("a\r\n\tb\x07\u2028c \udc80 文字")
    assert capsys.readouterr().err == "galago: a b? c ? 文字\n"


@pytest.mark.parametrize(
    ("terminal", "stream", "calls"),
    [
        (True, True, ["token", "stop", "He", "token", "stop", "llo", "stop", "!", "\n"]),
        (False, True, ["token", "He", "token", "llo", "!", "\n"]),
        (True, False, ["token", "token"]),
    ],
    ids=["text on the terminal", "text into a file", "JSON"],
)
def test_progress_makes_way_for_the_answer(
    terminal: bool, stream: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both are on one terminal; otherwise it goes on while the answer is written."""
    answer = Answer("Hello!", FinishReason.STOP, Usage(1, 2), Timings())
    events = [TokenEvent(1, "He"), TokenEvent(2, "llo"), TokenEvent(None, "!"), answer]
    engine = SimpleNamespace(generate=lambda _request, _report: iter(events))
    opened = SimpleNamespace(engine=engine, defaults=GenerationDefaults())
    seen: list[str] = []
    waiting = SimpleNamespace(show=None, token=lambda: seen.append("token"), stop=lambda: seen.append("stop"))
    out = SimpleNamespace(write=lambda text: text and seen.append(text), flush=lambda: None, isatty=lambda: terminal)
    monkeypatch.setattr(sys, "stdout", out)
    found = asking.run(opened, (), SamplingOverrides(), waiting, stream=stream)  # type: ignore[arg-type]
    assert seen == calls
    assert found is answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("rich.status.Status.update", lambda _status, line: said.append(line))
    with Waiting() as waiting:
        for stage, done in (("decode", 0), ("decode", 1), ("vision", 1), ("vision", 24), ("vision", 24)):
            waiting.show(Progress(stage, done, {"decode": 1, "vision": 24}[stage]))
        waiting.show(Progress("prefill", 512, 1024))
        waiting.token()
        waiting.token()
    assert said[:5] == [
        "reading the picture 0/1",
        "reading the picture 1/1",
        "looking at the picture 1/24",
        "looking at the picture 24/24",
        "reading the question 50 %",
    ]
    assert said[5] == "answering: token 1, 0.0 tokens/s"
    assert said[6].startswith("answering: token 2, ")
    waiting.show(Progress("vision", 1, 24))  # after the end: nothing
    assert len(said) == 7


def test_speed_is_told_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer("Hello", FinishReason.STOP, Usage(1, 40), Timings(tpot=50))
    for stream, words in ((Terminal(), "40 tokens, 20.0 tokens/s"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        print_speed(answer)
        assert words in stream.getvalue()
        assert bool(stream.getvalue()) == bool(words)


# ---------------------------------------------------------------- real processes


@pytest.fixture(scope="module")
def endless(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that never ends an answer by itself: its end token is one that is never sampled."""
    folder = shutil.copytree(model, tmp_path_factory.mktemp("endless") / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": IDS["<|vision_pad|>"]}))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 200_000
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start(*words: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_ctrl_c_stops_at_once(endless: Path) -> None:
    """In the middle of an answer of 100,000 tokens, which would take minutes; its first words come at once."""
    with start("ask", "--model", endless, QUESTION, "--max-tokens", 100_000) as process:
        assert 0 < len(os.read(process.stdout.fileno(), 65_536)) < 4096  # and not when a buffer of 8 KB is full
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - begun < 10
    assert process.returncode == 130
    assert err == b""
    assert len(out) < 100_000


def test_a_reader_that_has_enough(endless: Path) -> None:
    """As `| head -c 1`: the program ends by itself and says nothing."""
    with start("ask", "--model", endless, QUESTION, "--max-tokens", 100_000) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        process.wait(timeout=30)
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_reader_that_is_gone_before(model: Path) -> None:
    """The JSON is one write at the very end; standard output in an old code page at the same time."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    with start("ask", "--model", model, QUESTION, "--json", "--max-tokens", 9, env=environment) as process:
        process.stdout.close()
        process.wait(timeout=30)
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_whole_run(photo: Path, model: Path) -> None:
    """The installed command; random bytes as an answer, on a standard output that knows only ASCII."""
    command = [
        sys.executable,
        "-m",
        "galago",
        "ask",
        "--stats",
        "--model",
        model,
        photo,
        QUESTION,
        "--max-tokens",
        "60",
    ]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, timeout=60, env=environment)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert len(done.stdout) > 10
    assert b"first token" in done.stderr
    assert b"first token" not in done.stdout
    assert b"Traceback" not in done.stderr


@linux
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
@pytest.mark.parametrize("words", ["models list", "--version", "--help"])
def test_a_full_disk_behind_stdout(words: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "galago", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert_refused(Result(done.returncode, "", done.stderr), "the output cannot be written: no space is left", code=1)


@linux
def test_a_full_disk_behind_an_answer(galago: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        result = galago("ask", "--model", model, QUESTION)
    assert_refused(result, "the output cannot be written: no space is left", code=1)


def test_help_loads_nothing_heavy() -> None:
    script = """
import sys
from galago.cli import main
for words in (["--help"], ["ask", "--help"], ["--version"], ["ask", "/nope.png", "x"]):
    sys.argv = ["galago", *words]
    try:
        main()
    except SystemExit as left:
        assert left.code == (2 if "x" in words else 0), left.code
    light = {"torch", "transformers", "safetensors", "tokenizers", "huggingface_hub"}
    light |= set() if "x" in words else {"PIL", "numpy"}
    assert not light & set(sys.modules), (words, light & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage: galago" in done.stdout


def test_an_answer_cannot_rewrite_the_terminal() -> None:
    assert visible("a\x1b[2Jb\x07\n\tc\x9b1m 👩‍🚀 한") == "a[2Jb\n\tc1m 👩‍🚀 한"
