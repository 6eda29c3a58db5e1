"""The checkpoint's own chat template: somebody else's code, so it runs in jinja2's immutable sandbox.

Templates are written for transformers, whose settings and helpers are offered here (trim_blocks, lstrip_blocks, loop
controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, an inert `generation` tag). What a template
raises on purpose is the caller's mistake (`BadRequest`); anything else that goes wrong in it is the model's
(`ModelError`). Either is one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from galago.errors import BadRequest, ModelError
from galago.folder import read_json, read_text

TemplateMessage = Mapping[str, object]

LONGEST_MESSAGE = 300  # characters of a template's own error text that are shown


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        """Compile `source`. Raises ModelError when it is not a jinja2 template."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the model's chat template is damaged at line {error.lineno}: {_line(error)}") from error

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """The template of a model folder: chat_template.jinja, else chat_template.json, else tokenizer_config.json."""
        if (folder / "chat_template.jinja").exists():
            return cls(read_text(folder / "chat_template.jinja"))
        for name in ("chat_template.json", "tokenizer_config.json"):
            if source := _default(read_json(folder / name, optional=True).get("chat_template")):
                return cls(source)
        raise ModelError(f"{folder} has no chat template: give a folder with chat_template.jinja")

    def render(
        self, messages: Sequence[TemplateMessage], names: Mapping[str, str], *, add_generation_prompt: bool
    ) -> str:
        """The conversation as one string.

        names: the special tokens a template may mention, such as `eos_token`. Raises BadRequest with the template's own
        words when it refuses the conversation, ModelError when it fails.
        """
        variables = {**names, "messages": messages, "tools": None, "documents": None}
        try:
            return self._template.render(variables, add_generation_prompt=add_generation_prompt)
        except _Refusal as error:
            raise BadRequest(f"the model's chat template refuses this conversation: {_line(error)}") from error
        except Exception as error:  # foreign code may raise anything, and no traceback of it may reach a user
            raise ModelError(f"the model's chat template fails: {_line(error)}") from error


class _Refusal(jinja2.TemplateError):
    """Raised by templates through `raise_exception`."""


class _GuardedNamespace(Namespace):
    """`namespace()` of templates, without names that Python gives a meaning of its own."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"namespace attribute {name!r} is not allowed")
        super().__setitem__(name, value)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text for training, means nothing here."""

    tags = {"generation"}  # noqa: RUF012  # the base class types it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.pop("lipsum")  # the one default helper that makes text of any length from nothing
    environment.globals["namespace"] = _GuardedNamespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _default(found: object) -> str | None:
    """One template of tokenizer_config.json: the string itself, or the one called "default" in a list of named ones."""
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " …"
