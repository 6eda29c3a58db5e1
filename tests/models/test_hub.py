"""Names of models, caches, and what a person reads when neither cache nor hub can serve."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from galago.errors import BadRequest, GalagoError, ModelError, ModelNotFound, StorageFull
from galago.models import hub
from galago.models.hub_clients import UNWANTED, WANTED, HuggingFace

REPO = "Qwen/Qwen3-VL-2B-Instruct"
FILES = ("config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors")


class FakeHub:
    """Stands in for huggingface_hub.snapshot_download: a server with some files, and the library's cache layout."""

    def __init__(self, files: tuple[str, ...] = FILES) -> None:
        self.files = files
        self.failure: BaseException | None = None
        self.calls: list[dict[str, Any]] = []

    @property
    def downloads(self) -> int:
        return sum(not call.get("local_files_only") for call in self.calls)

    def __call__(self, repo: str, *, cache_dir: Path, **options: Any) -> str:
        self.calls.append(options)
        folder = Path(cache_dir) / ("models--" + repo.replace("/", "--")) / "snapshots" / "abc"
        if options.get("local_files_only"):
            if not folder.exists():
                raise LocalEntryNotFoundError("not there")
            return str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            if self.failure and name == "model.safetensors":
                raise self.failure
            (folder / name).write_text('{"model_type": "qwen3_vl"}')
        return str(folder)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    response: Any = types.SimpleNamespace(status_code=status, headers={}, request=None)
    error = kind.__new__(kind)
    Exception.__init__(error, "long\nserver\nwords")
    error.response = response
    return error


def one_line(error: pytest.ExceptionInfo[GalagoError]) -> str:
    said = str(error.value)
    assert "\n" not in said
    assert error.value.exit_code == 2
    return said


# --- names ---


def test_tiny_is_the_bundled_folder() -> None:
    assert hub.resolve("tiny") == hub.locate("TINY") == hub.pull("tiny") == Path(hub.__file__).parent / "tiny"


@pytest.mark.parametrize(("name", "repo"), [*hub.ALIASES.items(), ("2B", REPO), ("a.b/c-d_e", "a.b/c-d_e")])
def test_aliases_and_hub_ids(name: str, repo: str) -> None:
    assert hub.hub_id(name) == repo


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("plain", "2b", "owner/name"):
        Path(name).mkdir(parents=True)
    assert hub.resolve("plain") == Path("plain")
    assert hub.resolve("./2b") == Path("2b")
    assert hub.resolve("owner/name") == Path("owner/name")
    assert hub.resolve("~/plain") == tmp_path / "plain"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nothing", "no folder nothing"), ("/no/such/folder", "no folder /no/such"), ("a/b/c", "no folder a/b/c"),
        ("3b", "no model is called '3b': use one of tiny, 2b"), ("", "no model is called ''"), ("file", "is a file"),
        ("a b/c", "no model is called"), ("名/字", "no model is called"),
    ],
)  # fmt: skip
def test_names_of_nothing(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ModelNotFound, match=said) as caught:
        hub.resolve(name)
    one_line(caught)


def test_an_unknown_hub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no hub is called 'github': use huggingface or modelscope"):
        hub.resolve("2b", hub="github", cache_dir=tmp_path)


# --- cache and download ---


def test_download_once_then_the_cache_without_the_network(server: FakeHub, tmp_path: Path) -> None:
    folder = hub.resolve("2b", cache_dir=tmp_path, revision="v1")
    assert server.downloads == 1
    assert server.calls[-1]["revision"] == "v1"
    assert (server.calls[-1]["allow_patterns"], server.calls[-1]["ignore_patterns"]) == (WANTED, UNWANTED)
    server.failure = AssertionError("the network was used")
    assert hub.resolve(REPO, cache_dir=tmp_path) == hub.locate("2b", cache_dir=tmp_path) == folder
    assert server.downloads == 1


def test_pull_asks_the_hub_again(server: FakeHub, tmp_path: Path) -> None:
    hub.pull("2b", cache_dir=tmp_path)
    hub.pull("2b", cache_dir=tmp_path)
    assert server.downloads == 2


def test_no_progress_bar_off_the_terminal(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    hub.resolve("2b", cache_dir=tmp_path)
    assert list(server.calls[-1]["tqdm_class"]([1, 2])) == [1, 2]
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    hub.pull("2b", cache_dir=tmp_path)
    assert server.calls[-1]["tqdm_class"] is None
    hub.pull("2b", cache_dir=tmp_path, progress=False)
    assert server.calls[-1]["tqdm_class"] is not None


def test_an_interrupted_download_is_resumed_and_never_used(server: FakeHub, tmp_path: Path) -> None:
    server.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        hub.resolve("2b", cache_dir=tmp_path)
    with pytest.raises(ModelNotFound, match="galago models pull 2b"):
        hub.locate("2b", cache_dir=tmp_path)
    server.failure = None
    assert (hub.resolve("2b", cache_dir=tmp_path) / "model.safetensors").exists()


def test_missing_shards_make_a_folder_incomplete(tmp_path: Path) -> None:
    for name in FILES[:3]:
        (tmp_path / name).touch()
    assert hub.missing_files(tmp_path) == ["model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}}))
    (tmp_path / "m-1.safetensors").touch()
    assert hub.missing_files(tmp_path) == ["m-2.safetensors"]
    index.write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json is damaged"):
        hub.missing_files(tmp_path)


def test_a_repository_that_is_no_checkpoint(server: FakeHub, tmp_path: Path) -> None:
    server.files = ("config.json", "tokenizer.json")
    with pytest.raises(ModelError, match=r"has no preprocessor_config.json, model.safetensors: not a checkpoint"):
        hub.resolve("a/b", cache_dir=tmp_path)


def test_files_that_only_others_need_do_not_make_a_cache_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        (tmp_path / name).touch()

    def library(*args: object, **options: object) -> str:
        error = LocalEntryNotFoundError("incomplete")
        error.snapshot_path = str(tmp_path)  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", library)
    assert hub.resolve("2b", cache_dir=tmp_path / "cache") == tmp_path


# --- failures ---


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (LocalEntryNotFoundError("x\ny"), "huggingface.co cannot be reached"),
        (TimeoutError(), "cannot be reached (TimeoutError)"),
        (http_error(RepositoryNotFoundError, 404), "has no such model, or it is private"),
        (http_error(GatedRepoError, 403), "only to those who asked for access"),
        (http_error(HfHubHTTPError, 503), "huggingface.co answers 503"),
    ],
)
def test_no_network_gives_one_line_with_the_ways_out(
    server: FakeHub, tmp_path: Path, failure: Exception, said: str
) -> None:
    server.failure = failure
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("2b", cache_dir=tmp_path)
    line = one_line(caught)
    assert line.startswith(f"{REPO} is not in the local cache and ")
    assert said in line
    assert all(way in line for way in ("--model tiny", "--model FOLDER", "HF_ENDPOINT", "--hub modelscope"))


def test_offline_mode_is_named(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    server.failure = LocalEntryNotFoundError("x")
    with pytest.raises(ModelNotFound, match=r"HF_HUB_OFFLINE is set: try .*HF_HUB_OFFLINE=0"):
        hub.resolve("2b", cache_dir=tmp_path)


def real_library(cache: Path, endpoint: str, model: str = "2b") -> subprocess.CompletedProcess[str]:
    """What the real huggingface-hub makes of an endpoint; a process of its own, as it reads HF_ENDPOINT once."""
    code = (
        "import sys; from pathlib import Path; from galago.models import hub\n"
        "try: print(hub.resolve(sys.argv[2], cache_dir=Path(sys.argv[1])))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    source = str(Path(hub.__file__).parents[2])
    environment = {"HF_ENDPOINT": endpoint, "PYTHONPATH": source, "HOME": str(cache.parent), "NO_PROXY": "*"}
    command = [sys.executable, "-c", code, str(cache), model]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_the_real_library_against_a_closed_port(tmp_path: Path) -> None:
    done = real_library(tmp_path / "cache", "http://127.0.0.1:9")
    assert done.stdout.startswith(f"ModelNotFound {REPO} is not in the local cache and http://127.0.0.1:9 cannot be")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert not list(tmp_path.rglob("config.json"))


class LoopbackHub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download needs, for one repository."""

    commit = "a" * 40
    files = (*FILES, "chat_template.jinja", "evil.py", "pytorch_model.bin", "onnx/config.json")

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/tree/" in path:
            size = len(self.content("any"))
            tree = [{"type": "file", "path": name, "size": size, "oid": self.digest(name)} for name in self.files]
            self.answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/"):
            self.answer(json.dumps({"id": "o/m", "sha": self.commit}).encode())
        else:
            name = path.partition(f"/resolve/{self.commit}/")[2]
            self.answer(self.content(name), {"ETag": f'"{self.digest(name)}"', "X-Repo-Commit": self.commit})

    do_HEAD = do_GET  # noqa: N815  # named by http.server

    def content(self, name: str) -> bytes:
        return b'{"model_type": "qwen3_vl"}'

    def digest(self, name: str) -> str:
        return hashlib.sha1(name.encode()).hexdigest()

    def answer(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


def test_the_real_library_downloads_what_is_wanted_and_works_offline_afterwards(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), LoopbackHub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        first = real_library(tmp_path / "cache", endpoint, "o/m")
        server.shutdown()
        thread.join()
    folder = Path(first.stdout.strip())
    assert first.stderr == ""
    assert sorted(path.name for path in folder.rglob("*")) == sorted([*FILES, "chat_template.jinja"])
    assert real_library(tmp_path / "cache", endpoint, "o/m").stdout == first.stdout


def wrapped(error: OSError) -> Exception:
    gathering = RuntimeError("2 of 9 files failed")
    gathering.failed_files = {"model.safetensors": error}  # type: ignore[attr-defined]
    return gathering


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EROFS, "Read-only file system"),
        PermissionError(errno.EACCES, "Permission denied", "/models"),
        RuntimeError("Data processing error: I/O error: No space left on device (os error 28)"),
        wrapped(OSError(errno.ENOSPC, "full")),
    ],
    ids=repr,
)
def test_a_full_disk_gives_one_line_and_no_model(server: FakeHub, tmp_path: Path, failure: Exception) -> None:
    server.failure = failure
    with pytest.raises(StorageFull, match=f"disk is full or cannot be written, {REPO} is not complete") as caught:
        hub.resolve("2b", cache_dir=tmp_path)
    assert "set HF_HUB_CACHE to another disk" in one_line(caught)
    with pytest.raises(ModelNotFound):
        hub.locate("2b", cache_dir=tmp_path)


def test_the_library_s_warning_about_space_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def library(*args: object, **options: object) -> str:
        if not options.get("local_files_only"):
            warnings.warn("Not enough free disk space to download the file. …", stacklevel=1)
            raise OSError(errno.ENOSPC, "No space left on device")
        raise LocalEntryNotFoundError("x")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", library)
    with pytest.raises(StorageFull):
        hub.resolve("2b", cache_dir=tmp_path)


# --- list and remove ---


def test_list_shows_aliases_places_and_sizes(server: FakeHub, tmp_path: Path) -> None:
    hub.resolve("4b", cache_dir=tmp_path)
    hub.resolve("me/mine", cache_dir=tmp_path)
    server.failure = RuntimeError()
    with pytest.raises(ModelNotFound):
        hub.resolve("8b", cache_dir=tmp_path)
    (tmp_path / "models--other--thing" / "snapshots").mkdir(parents=True)
    entries = {entry.name: entry for entry in hub.list_models(cache_dir=tmp_path)}
    assert list(entries) == ["tiny", *hub.ALIASES, "me/mine"]
    assert entries["tiny"].folder == hub.bundled_folder()
    assert entries["4b"].folder == hub.locate("4b", cache_dir=tmp_path)
    assert (entries["4b"].hub, entries["4b"].bytes) == ("huggingface", 4 * len('{"model_type": "qwen3_vl"}'))
    assert (entries["8b"].folder, entries["8b"].bytes > 0) == (None, True)
    assert (entries["2b"].folder, entries["2b"].hub, entries["2b"].bytes) == (None, None, 0)


def test_remove_frees_the_cache(server: FakeHub, tmp_path: Path) -> None:
    folder = hub.resolve("2b", cache_dir=tmp_path)
    assert hub.remove("2b", cache_dir=tmp_path) > 0
    assert not folder.exists()
    with pytest.raises(ModelNotFound, match="nothing to remove"):
        hub.remove("2b", cache_dir=tmp_path)


def test_remove_refuses_what_was_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="bundled with galago"):
        hub.remove("tiny")
    with pytest.raises(BadRequest, match="a folder of yours"):
        hub.remove(str(tmp_path))
    assert tmp_path.exists()


def test_links_are_counted_once(tmp_path: Path) -> None:
    blob = tmp_path / "models--a--b" / "blobs" / "1"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"12345")
    (blob.parent / "link").symlink_to(blob)
    assert list(HuggingFace(tmp_path).repos()) == [("a/b", 5)]


# --- ModelScope ---


@pytest.fixture
def modelscope(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The part of the modelscope_hub package that is used (its 0.5.1)."""
    library: Any = types.ModuleType("modelscope_hub")
    library.CacheNotFound = type("CacheNotFound", (Exception,), {})
    library.NotExistError = type("NotExistError", (Exception,), {})
    library.TqdmCallback = object()
    library.get_default_config = lambda: types.SimpleNamespace(endpoint="https://modelscope.cn")

    class HubApi:
        def download_repo(self, repo: str, kind: str, *, cache_dir: Path | None, **options: Any) -> Path:
            assert kind == "model"
            try:
                return Path(server(repo, cache_dir=cache_dir or Path(), **options))
            except LocalEntryNotFoundError as error:
                raise library.CacheNotFound from error

        def scan_cache(self, cache: Path) -> Any:
            folders = list(cache.glob("models--*"))
            repos = [types.SimpleNamespace(repo_id=REPO, size_on_disk=5) for _ in folders]
            return types.SimpleNamespace(repos=repos)

        def clear_cache(self, *, cache_dir: Path, repo_type: str, repo_id: str) -> int:
            assert (repo_type, repo_id) == ("model", REPO)
            return 5

    library.HubApi = HubApi
    monkeypatch.setitem(sys.modules, "modelscope_hub", library)
    return library


def test_modelscope_serves_the_same_ids(modelscope: Any, server: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        hub.locate("2b", hub="modelscope", cache_dir=tmp_path)
    folder = hub.resolve("2b", hub="modelscope", cache_dir=tmp_path)
    assert hub.locate("2b", hub="modelscope", cache_dir=tmp_path) == folder
    assert server.calls[2]["progress_callbacks"] is None
    assert ("2b", "modelscope") in [(entry.name, entry.hub) for entry in hub.list_models(cache_dir=tmp_path)]
    assert hub.remove("2b", hub="modelscope", cache_dir=tmp_path) == 5


@pytest.mark.parametrize(
    ("failure", "said"),
    [(lambda ms: ms.NotExistError(), "has no such model"), (lambda _: OSError("net"), "cannot be reached (OSError)")],
)
def test_modelscope_failures(
    modelscope: Any, server: FakeHub, tmp_path: Path, failure: Callable[[Any], Exception], said: str
) -> None:
    server.failure = failure(modelscope)
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("2b", hub="modelscope", cache_dir=tmp_path)
    line = one_line(caught)
    assert f"modelscope.cn {said}" in line
    assert line.endswith("or --hub huggingface")


def test_modelscope_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    with pytest.raises(BadRequest, match=r"pip install 'galago\[modelscope\]'"):
        hub.resolve("2b", hub="modelscope", cache_dir=tmp_path)
    assert len(hub.list_models(cache_dir=tmp_path)) == 1 + len(hub.ALIASES)
