"""The `galago` command: one short function per command, heavy imports inside them.

Answers go to stdout, everything else to stderr. Exit codes: 0 done, 1 failure, 2 bad usage or input, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from galago import __version__, config
from galago.errors import BadRequest, GalagoError
from galago.terminal import Waiting, print_error, print_notices, print_speed, print_stats, show_bytes

app = typer.Typer(
    name="galago",
    help="Qwen3-VL on the CPU you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(help="List, download and remove models.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure this machine and these models.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")

FULL = "the output cannot be written: no space is left where it goes"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="tiny, a short name (2b, 4b, 8b, 2b-thinking …), a folder or a hub id.", show_default="2b"
    ),
]
HubOption = Annotated[
    str | None,
    typer.Option(
        "--hub", help="Where models are downloaded from: huggingface or modelscope.", show_default="huggingface"
    ),
]


def main() -> NoReturn:
    """Run the command line; every error becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an old code page must not end an answer at its first emoji
    sys.exit(_settled(_run()))


def _run() -> int:
    """The exit code: a command's own, 130 after Ctrl-C, an error's."""
    try:
        return app(prog_name="galago", standalone_mode=False) or 0
    except typer.TyperException as error:  # bad usage
        _print_usage_error(error)
        return error.exit_code
    except GalagoError as error:
        print_error(str(error))
        return error.exit_code
    except Exception as error:  # the last line of defence: our own bugs
        if config.debugging():
            raise
        print_error(_unforeseen(error))
        return 1


def _unforeseen(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return FULL
    return f"internal error ({type(error).__name__}: {error}); set GALAGO_DEBUG=1 to see where, and report it"


def _print_usage_error(error: typer.TyperException) -> None:
    """One line and where to read on; nothing when no command was given, for then the help was printed instead."""
    if message := error.format_message().rstrip("."):
        context = getattr(error, "ctx", None)
        print_error(f"{message}: see {context.command_path} --help" if context else message)


def _settled(code: int) -> int:
    """The exit code once stdout is flushed. What it does not take goes nowhere, or Python complains at its own exit."""
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not code and not isinstance(error, BrokenPipeError):
            print_error(_unforeseen(error))
        return code or 1
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"galago {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Qwen3-VL on the CPU you already have."""


@app.command()
def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="[IMAGE]... QUESTION", help="Picture files, then the question in quotes.")
    ],
    image: Annotated[
        list[str] | None, typer.Option("--image", "-i", help="A picture file; - reads one from stdin.")
    ] = None,
    model: ModelOption = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    detail: Annotated[
        str | None, typer.Option(help="Pixels the model sees: fast, low, auto or high.", show_default="auto")
    ] = None,
    max_pixels: Annotated[int | None, typer.Option(help="At most this many pixels per picture.")] = None,
    min_pixels: Annotated[int | None, typer.Option(help="At least this many pixels per picture.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.", show_default="256")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token each time.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens; 0 switches it off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens that sum to p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Leave out tokens below p times the likeliest.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Against tokens already answered.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="The same, per occurrence.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="A factor against all tokens seen.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the answer before this text; may be repeated.")
    ] = None,
    number_format: Annotated[
        str | None, typer.Option("--format", help="fp32, bf16 or auto.", show_default="auto")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Computing threads.", show_default="one per physical core")
    ] = None,
    hub: HubOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print sizes, tokens and times after the answer.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of streaming text.")
    ] = False,
) -> None:
    """Ask a question about one or more pictures (or about none).

    galago ask photo.jpg "What is written on the sign?"
    """
    from galago import asking
    from galago.models.generation import GenerationDefaults, SamplingOverrides, sampling_params

    settings = config.load({"model": model, "hub": hub, "format": number_format, "threads": threads, "detail": detail})
    files, question = asking.split(words, image or [])
    overrides = SamplingOverrides(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty, repetition_penalty=repetition_penalty, seed=seed, max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )  # fmt: skip
    sampling_params(GenerationDefaults(), overrides)  # wrong numbers are told before a model is loaded
    options = asking.image_options(settings.detail, min_pixels, max_pixels)
    messages = asking.conversation(files, question, system, options)
    with Waiting() as waiting:
        opened = asking.open_model(settings)
        answer = asking.run(opened, messages, overrides, waiting, stream=not json_output)
    if json_output:
        print(asking.as_json(answer, opened))
    print_notices(answer.notices)
    if stats:
        print_stats(answer, opened.choices)
    else:
        print_speed(answer)


@models_app.command("list")
def models_list() -> None:
    """Show the short names, and which models are on this disk."""
    from galago.models import hub
    from galago.terminal import print_models

    print_models(hub.list_models())


@models_app.command("pull")
def models_pull(model: Annotated[str, typer.Argument()], hub: HubOption = None) -> None:
    """Download a model, or finish a download that was interrupted."""
    from galago.models import hub as hubs

    folder = hubs.pull(model, hub=config.load({"hub": hub}).hub)
    print(folder)


@models_app.command("path")
def models_path(model: Annotated[str, typer.Argument()], hub: HubOption = None) -> None:
    """Print the folder of a model that is on this disk."""
    from galago.models import hub as hubs

    folder = hubs.locate(model, hub=config.load({"hub": hub}).hub)
    print(folder)


@models_app.command("rm")
def models_rm(model: Annotated[str, typer.Argument()], hub: HubOption = None) -> None:
    """Delete a downloaded model."""
    from galago.models import hub as hubs

    removed = hubs.remove(model, hub=config.load({"hub": hub}).hub)
    print(f"{removed / 1e9:.2f} GB freed")


@bench_app.command("checkpoint")
def bench_checkpoint(
    out: Annotated[Path, typer.Argument(help="The folder to write (4.3 GB).")],
    layers: Annotated[int | None, typer.Option(help="Cut the depth of both parts, for small tests.")] = None,
) -> None:
    """Write the 2B-shaped random checkpoint that every speed figure uses."""
    from galago.bench import checkpoint

    _check_count("layers", layers)
    text_layers, vision_layers = layers or checkpoint.TEXT_LAYERS, layers or checkpoint.VISION_LAYERS
    checkpoint.write_checkpoint(out, text_layers=text_layers, vision_layers=vision_layers, progress=show_bytes)
    print(out)


@bench_app.command("quality")
def bench_quality(
    model: ModelOption = None,
    number_format: Annotated[str | None, typer.Option("--format", help="fp32, bf16 or auto.")] = None,
    threads: Annotated[int | None, typer.Option(help="Computing threads.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only this many pictures of every cell.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write all answers to this JSON file.")] = None,
) -> None:
    """Answer the frozen set of test pictures and print how many are right, by cell."""
    from galago import asking
    from galago.bench import quality, report
    from galago.terminal import counter, print_scores

    _check_count("limit", limit)
    opened = asking.open_model(config.load({"model": model or "tiny", "format": number_format, "threads": threads}))
    items, began = quality.first_of_each_cell(quality.load(), limit), time.perf_counter()
    outcomes = quality.run(opened.engine, items, counter(len(items)))
    print_scores(quality.scores(outcomes), opened.choices)
    if out:
        report.write(out, quality.report(outcomes, began))


def _check_count(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise BadRequest(f"{name} = {value} is out of range: use a number of at least 1")
