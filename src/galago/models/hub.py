"""From what a person calls a model to the folder that holds it, and the commands `galago models list|pull|path|rm`.

A name is `tiny` (bundled), an alias, a folder, or a hub id. The local cache answers first and without the network, so a
model once fetched works offline. A folder counts as present only when every file it needs is there: an interrupted
download is resumed, never used. When neither cache nor hub can serve, one line says why and lists the ways out.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from galago.errors import BadRequest, ModelError, ModelNotFound, StorageFull
from galago.folder import WEIGHTS, WEIGHTS_INDEX, read_json
from galago.models.hub_clients import HubClient, HuggingFace, ModelScope, bytes_in

BUNDLED: Final = "tiny"
DEFAULT_MODEL: Final = "2b"
ALIASES: Final = MappingProxyType(
    {
        "2b": "Qwen/Qwen3-VL-2B-Instruct",
        "4b": "Qwen/Qwen3-VL-4B-Instruct",
        "8b": "Qwen/Qwen3-VL-8B-Instruct",
        "32b": "Qwen/Qwen3-VL-32B-Instruct",
        "2b-thinking": "Qwen/Qwen3-VL-2B-Thinking",
        "4b-thinking": "Qwen/Qwen3-VL-4B-Thinking",
        "8b-thinking": "Qwen/Qwen3-VL-8B-Thinking",
        "32b-thinking": "Qwen/Qwen3-VL-32B-Thinking",
    }
)
HUBS: Final = MappingProxyType({client.name: client for client in (HuggingFace, ModelScope)})
REQUIRED: Final = ("config.json", "tokenizer.json", "preprocessor_config.json")
HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
FULL_DISK_WORDS: Final = re.compile(r"No space left on device|os error (28|30|122)\b|Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model one can name. folder and hub are None and bytes 0 when it is not on this machine."""

    name: str  # what --model takes: tiny, an alias, or a hub id
    repo: str | None  # hub id; None for tiny
    hub: str | None = None  # whose cache holds it
    folder: Path | None = None
    bytes: int = 0  # on disk; more than 0 without a folder for a broken download


def resolve(
    model: str,
    *,
    hub: str = HuggingFace.name,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> Path:
    """The folder of a model, downloaded when the cache lacks it.

    model: see the head of this file. cache_dir: None for the hub library's default. progress: a bar on stderr if that
    is a terminal. Raises ModelNotFound, StorageFull, BadRequest (unknown hub) and ModelError (not a whole checkpoint).
    """
    if folder := _local(model):
        return folder
    repo, client = hub_id(model), _client(hub, cache_dir)
    return _complete(client.cached(repo, revision)) or _download(client, repo, revision, progress)


def pull(
    model: str,
    *,
    hub: str = HuggingFace.name,
    revision: str | None = None,
    cache_dir: Path | None = None,
    progress: bool = True,
) -> Path:
    """As `resolve`, but asks the hub even when the cache has the model, so that a newer revision is fetched."""
    if folder := _local(model):
        return folder
    return _download(_client(hub, cache_dir), hub_id(model), revision, progress)


def locate(
    model: str, *, hub: str = HuggingFace.name, revision: str | None = None, cache_dir: Path | None = None
) -> Path:
    """The folder of a model that is on this machine. Never uses the network; raises ModelNotFound otherwise."""
    if folder := _local(model):
        return folder
    repo = hub_id(model)
    if found := _complete(_client(hub, cache_dir).cached(repo, revision)):
        return found
    raise ModelNotFound(f"{repo} is not on this machine: fetch it with galago models pull {model}")


def remove(model: str, *, hub: str = HuggingFace.name, cache_dir: Path | None = None) -> int:
    """Delete a downloaded model, broken downloads included; the bytes freed.

    Raises BadRequest for the bundled model and for folders, ModelNotFound when there is nothing to delete.
    """
    if folder := _local(model):
        kind = "bundled with galago" if folder == bundled_folder() else "a folder of yours"
        raise BadRequest(f"{folder} is {kind} and is not removed: only downloaded models are")
    repo, client = hub_id(model), _client(hub, cache_dir)
    if repo not in dict(client.repos()):
        raise ModelNotFound(f"{repo} is not in the cache of {client.name}: nothing to remove")
    try:
        return client.remove(repo)
    except OSError as error:
        raise StorageFull(f"{repo} cannot be removed: {error}") from error


def list_models(*, cache_dir: Path | None = None) -> list[ModelEntry]:
    """The bundled model, every alias whether downloaded or not, and other Qwen3-VL models in the caches."""
    tiny = bundled_folder()
    found = [entry for client in _installed_clients(cache_dir) for entry in _cached_entries(client)]
    present = {entry.name for entry in found}
    absent = [ModelEntry(alias, repo) for alias, repo in ALIASES.items() if alias not in present]
    order = {alias: place for place, alias in enumerate(ALIASES)}
    known = sorted([*found, *absent], key=lambda entry: order.get(entry.name, len(order)))
    return [ModelEntry(BUNDLED, None, None, tiny, bytes_in(tiny)), *known]


def hub_id(model: str) -> str:
    """The hub id of an alias or hub id. Raises ModelNotFound for a name that is neither."""
    if repo := ALIASES.get(model.lower()):
        return repo
    if HUB_ID.fullmatch(model):
        return model
    names = ", ".join([BUNDLED, *ALIASES])
    raise ModelNotFound(f"no model is called {model!r}: use one of {names}, a folder, or a hub id such as owner/name")


def bundled_folder() -> Path:
    """The checkpoint in the wheel."""
    return Path(__file__).parent / BUNDLED


def missing_files(folder: Path) -> list[str]:
    """Names of files without which a folder is not a whole checkpoint: settings, tokenizer, every shard."""
    return [name for name in [*REQUIRED, *_weight_files(folder)] if not (folder / name).is_file()]


def _local(model: str) -> Path | None:
    """The folder that `model` names; None for aliases and hub ids. Raises ModelNotFound for a path to nothing."""
    if model.lower() == BUNDLED:
        return bundled_folder()
    if not model or model.lower() in ALIASES:
        return None
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelNotFound(f"{folder} is a file: give the folder that holds the checkpoint")
    if model.startswith((".", "~")) or folder.is_absolute() or len(folder.parts) > 2:
        raise ModelNotFound(f"there is no folder {folder}")
    return None


def _client(hub: str, cache_dir: Path | None) -> HubClient:
    if hub not in HUBS:
        raise BadRequest(f"no hub is called {hub!r}: use {' or '.join(HUBS)}")
    client: HubClient = HUBS[hub](cache_dir)
    return client


def _installed_clients(cache_dir: Path | None) -> Iterator[HubClient]:
    for hub in HUBS:
        try:
            yield _client(hub, cache_dir)
        except BadRequest:  # an extra that is not installed has no cache to show
            continue


def _cached_entries(client: HubClient) -> Iterator[ModelEntry]:
    names = {repo: alias for alias, repo in ALIASES.items()}
    for repo, size in client.repos():
        folder = _complete(client.cached(repo, None))
        if repo in names or (folder and _is_qwen3_vl(folder)):
            yield ModelEntry(names.get(repo, repo), repo, client.name, folder, size)


def _is_qwen3_vl(folder: Path) -> bool:
    try:
        return read_json(folder / "config.json").get("model_type") == "qwen3_vl"
    except ModelError:
        return False


def _complete(folder: Path | None) -> Path | None:
    try:
        return folder if folder and not missing_files(folder) else None
    except ModelError:  # a damaged index: fetch again
        return None


def _weight_files(folder: Path) -> list[str]:
    """The one weight file, or the shards that the index names; the index itself when it cannot be read."""
    index = folder / WEIGHTS_INDEX
    if not index.exists():
        return [WEIGHTS]
    try:
        return sorted({str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ModelError(f"{index} is damaged: delete it and download the model again") from error


def _download(client: HubClient, repo: str, revision: str | None, progress: bool) -> Path:
    try:
        folder = client.download(repo, revision, progress=progress and sys.stderr.isatty())
    except Exception as error:  # which classes a download raises changes with the library's version and its transport
        raise _failure(error, client, repo) from error
    if missing := missing_files(folder):
        raise ModelError(f"{repo} has no {', '.join(missing)}: not a checkpoint that galago reads")
    return folder


def _failure(error: Exception, client: HubClient, repo: str) -> ModelNotFound | StorageFull:
    """The one line for a failed download, with the ways out."""
    if any(_says_full(cause) for cause in _causes(error)):
        return StorageFull(
            f"the disk is full or cannot be written, {repo} is not complete: make room and repeat (finished files are "
            f"kept), or set {client.cache_variable} to another disk"
        )
    other = next(name for name in HUBS if name != client.name)
    ways = [f"--model {BUNDLED} (bundled)", "--model FOLDER", *client.ways_out(), f"or --hub {other}"]
    return ModelNotFound(f"{repo} is not in the local cache and {client.explain(error)}: try {', '.join(ways)}")


def _says_full(error: BaseException) -> bool:
    forbidden = isinstance(error, PermissionError) and error.filename is not None  # a file, not a socket
    return forbidden or getattr(error, "errno", None) in FULL_DISK or bool(FULL_DISK_WORDS.search(str(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what led to it, and the failures of single files that it gathers."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        cause = waiting.pop()
        if id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            gathered = getattr(cause, "failed_files", None) or {}
            waiting += [e for e in (cause.__cause__, cause.__context__, *gathered.values()) if e is not None]
