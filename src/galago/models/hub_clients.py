"""The two hubs behind one interface: Hugging Face, and ModelScope as an optional extra.

Both libraries keep a cache with one folder per model and go on with a broken download: what is finished is not fetched
again (whether the file that broke goes on or starts anew is up to the library). Whatever they raise is passed on and
explained by models/hub.py. They are imported when first needed: a folder or the bundled model needs neither.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from galago.errors import BadRequest

# Weights, settings and templates. Never code, never pickles, nothing in subfolders (other runtimes' exports).
WANTED = ["*.json", "*.safetensors", "*.jinja"]
UNWANTED = ["*/*"]


class HubClient(Protocol):
    """A hub and its local cache. repo: "owner/name"."""

    name: str  # as in --hub
    cache_variable: str  # the environment variable of the library that moves its cache

    @property
    def address(self) -> str:
        """Where downloads come from."""

    def cached(self, repo: str, revision: str | None) -> Path | None:
        """The cached folder, perhaps incomplete, without using the network."""

    def download(self, repo: str, revision: str | None, *, progress: bool) -> Path:
        """Fetch what is missing and return the folder. Raises whatever the library raises."""

    def explain(self, error: BaseException) -> str:
        """Why a download failed, in a few words."""

    def ways_out(self) -> list[str]:
        """What else a person may try with this hub."""

    def repos(self) -> Iterator[tuple[str, int]]:
        """(repo, bytes on disk) of everything in the cache, broken downloads included."""

    def remove(self, repo: str) -> int:
        """Delete a model from the cache; the bytes freed."""


class HuggingFace:
    """The huggingface-hub library. cache: None for its own default (HF_HUB_CACHE, HF_HOME)."""

    name = "huggingface"
    cache_variable = "HF_HUB_CACHE"

    def __init__(self, cache: Path | None) -> None:
        from huggingface_hub import constants

        self._cache = cache or Path(constants.HF_HUB_CACHE)

    @property
    def address(self) -> str:
        from huggingface_hub import constants

        return constants.ENDPOINT.removeprefix("https://")

    def cached(self, repo: str, revision: str | None) -> Path | None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return self._snapshot(repo, revision, local_files_only=True)
        except LocalEntryNotFoundError as error:
            # It also misses files that others need and galago does not.
            partial = getattr(error, "snapshot_path", None)
            return Path(partial) if partial else None

    def download(self, repo: str, revision: str | None, *, progress: bool) -> Path:
        from huggingface_hub.utils.tqdm import tqdm

        class Silent(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        with warnings.catch_warnings():
            # It warns when a whole file would not fit, resumed or not; when it truly does not, an error follows.
            warnings.filterwarnings("ignore", message="Not enough free disk space")
            return self._snapshot(repo, revision, tqdm_class=None if progress else Silent)

    def explain(self, error: BaseException) -> str:
        from huggingface_hub import errors, is_offline_mode

        if is_offline_mode():
            return "HF_HUB_OFFLINE is set"
        if isinstance(error, errors.GatedRepoError):
            return f"{self.address} gives it only to those who asked for access"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"{self.address} has no such model, or it is private"
        if isinstance(error, errors.RevisionNotFoundError):
            return f"{self.address} has no such revision of it"
        if isinstance(cause := error.__cause__ or error, errors.HfHubHTTPError):
            return f"{self.address} answers {cause.response.status_code}"
        return f"{self.address} cannot be reached ({type(cause).__name__})"

    def ways_out(self) -> list[str]:
        from huggingface_hub import is_offline_mode

        return ["HF_HUB_OFFLINE=0"] if is_offline_mode() else ["a mirror in HF_ENDPOINT"]

    def repos(self) -> Iterator[tuple[str, int]]:
        for folder in sorted(self._cache.glob("models--*--*")):
            yield folder.name.removeprefix("models--").replace("--", "/", 1), bytes_in(folder)

    def remove(self, repo: str) -> int:
        name = "models--" + repo.replace("/", "--")
        freed = bytes_in(self._cache / name)
        for folder in (self._cache / name, self._cache / ".locks" / name):
            if folder.exists():
                shutil.rmtree(folder)
        return freed

    def _snapshot(self, repo: str, revision: str | None, **options: Any) -> Path:
        from huggingface_hub import snapshot_download

        found = snapshot_download(
            repo, revision=revision, cache_dir=self._cache, allow_patterns=WANTED, ignore_patterns=UNWANTED, **options
        )
        return Path(found)


class ModelScope:
    """The modelscope-hub library (extra `modelscope`). cache: None for its own default (MODELSCOPE_CACHE)."""

    name = "modelscope"
    cache_variable = "MODELSCOPE_CACHE"

    def __init__(self, cache: Path | None) -> None:
        """Raises BadRequest when the extra is not installed."""
        try:
            import modelscope_hub
        except ImportError as error:
            raise BadRequest("ModelScope needs an extra: pip install 'galago[modelscope]'") from error
        logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)  # our one line replaces its log of a failure
        self._library = modelscope_hub
        self._api = modelscope_hub.HubApi()
        self._cache = cache

    @property
    def address(self) -> str:
        endpoint: str = self._library.get_default_config().endpoint
        return endpoint.removeprefix("https://")

    def cached(self, repo: str, revision: str | None) -> Path | None:
        try:
            return self._snapshot(repo, revision, local_files_only=True)
        except self._library.CacheNotFound:
            return None

    def download(self, repo: str, revision: str | None, *, progress: bool) -> Path:
        return self._snapshot(repo, revision, progress_callbacks=[self._library.TqdmCallback] if progress else None)

    def explain(self, error: BaseException) -> str:
        if isinstance(error, self._library.NotExistError):
            return f"{self.address} has no such model or revision"
        return f"{self.address} cannot be reached ({type(error).__name__})"

    def ways_out(self) -> list[str]:
        return []

    def repos(self) -> Iterator[tuple[str, int]]:
        for found in self._api.scan_cache(self._cache).repos:
            yield found.repo_id, found.size_on_disk

    def remove(self, repo: str) -> int:
        freed: int = self._api.clear_cache(cache_dir=self._cache, repo_type="model", repo_id=repo)
        return freed

    def _snapshot(self, repo: str, revision: str | None, **options: Any) -> Path:
        found = self._api.download_repo(
            repo,
            "model",
            revision=revision,
            cache_dir=self._cache,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
            **options,
        )
        return Path(found)


def bytes_in(folder: Path) -> int:
    """Bytes of all files under a folder; links are not followed, so a cached file counts once."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
