"""Settings: flags > environment > file > defaults, and wrong entries are refused with the name of their source.

Guards against a setting that silently does nothing: mistyped in the file, of the wrong type, or outvoted by a weaker
source.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from galago import config
from galago.config import Settings
from galago.errors import BadRequest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(environment: dict[str, str]) -> str:
    with pytest.raises(BadRequest) as caught:
        config.load({}, environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults(home: Path) -> None:
    assert config.load({}, {}) == Settings()
    assert Settings() == Settings(model="2b", hub="huggingface", format="auto", threads=None, detail="auto")


def test_precedence(tmp_path: Path) -> None:
    """Each source wins over those below it, setting by setting."""
    path = write(tmp_path / "x.toml", 'model = "file"\nhub = "file"\nformat = "file"\nthreads = 3\n')
    environment = {"GALAGO_CONFIG": str(path), "GALAGO_MODEL": "env", "GALAGO_HUB": "env", "GALAGO_THREADS": "5"}
    flags = {"model": "flag", "hub": None, "format": None, "threads": None, "detail": None}
    assert config.load(flags, environment) == Settings(model="flag", hub="env", format="file", threads=5, detail="auto")


def test_an_empty_flag_is_given_and_an_empty_variable_is_not() -> None:
    assert config.load({"model": ""}, {}).model == ""
    assert config.load({}, {"GALAGO_MODEL": ""}).model == "2b"


def test_the_process_environment_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALAGO_DETAIL", "high")
    assert config.load({}).detail == "high"


def test_where_the_file_is(home: Path) -> None:
    write(home / ".config/galago/config.toml", 'model = "home"')
    write(home / "xdg/galago/config.toml", 'model = "xdg"')
    named = write(home / "named.toml", 'model = "named"')
    xdg = {"XDG_CONFIG_HOME": str(home / "xdg")}
    assert config.load({}, {}).model == "home"
    assert config.load({}, xdg).model == "xdg"
    assert config.load({}, xdg | {"GALAGO_CONFIG": str(named)}).model == "named"


@pytest.mark.parametrize("home", ["/dev/null", "/nonexistent", ""], ids=["a device", "nowhere", "empty"])
def test_a_user_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers and system services have it."""
    monkeypatch.setenv("HOME", home)
    assert config.load({}, {}) == Settings()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no user without a name")
def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    assert config.load({}, {}) == Settings()


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    message = refusal({"GALAGO_CONFIG": str(tmp_path / "missing.toml")})
    assert message.startswith(f"{tmp_path / 'missing.toml'} is not a readable TOML file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = ", "not a readable TOML file"),
        ("modle = 'tiny'", "setting 'modle' is not known: use one of model, hub, format, threads, detail"),
        ("[ask]\nmodel = 'tiny'", "setting 'ask' is not known"),
        ("model = 2", "model = 2 must be a text"),
        ("threads = '4'", "threads = '4' must be a whole number"),
        ("threads = true", "threads = True must be a whole number"),
        ("threads = 1.5", "threads = 1.5 must be a whole number"),
        ("format = ['bf16']", "format = ['bf16'] must be a text"),
    ],
)
def test_wrong_entries_of_the_file(text: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.toml", text)
    message = refusal({"GALAGO_CONFIG": str(path)})
    assert message.startswith(str(path))
    assert words in message


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    assert "not a readable TOML file" in refusal({"GALAGO_CONFIG": str(tmp_path / "x.toml")})
    assert "not a readable TOML file" in refusal({"GALAGO_CONFIG": str(tmp_path)})


@pytest.mark.parametrize("value", ["four", "-1", "1.5", "9" * 5000])
def test_wrong_variables(value: str, home: Path) -> None:
    assert refusal({"GALAGO_THREADS": value}).startswith("GALAGO_THREADS: threads = ")


def test_variables_of_others_are_let_be(home: Path) -> None:
    """Kubernetes makes these for a service called galago."""
    environment = {"GALAGO_PORT": "tcp://10.0.0.1:8000", "GALAGO_SERVICE_HOST": "10.0.0.1", "GALAGO_DEBUG": "1"}
    assert config.load({}, environment) == Settings()


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, ""),
        ({"LANG": "zh_CN.UTF-8"}, "zh_cn.utf-8"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "c"),
        ({"LANG": "en_GB.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh_tw"),
        ({"LANG": "de_DE", "LC_ALL": ""}, "de_de"),
    ],
)
def test_language(environment: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert config.language() == language


def test_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GALAGO_DEBUG", raising=False)
    assert not config.debugging()
    monkeypatch.setenv("GALAGO_DEBUG", "1")
    assert config.debugging()
