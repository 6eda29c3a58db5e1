"""Fixtures that several test folders share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

RandomCheckpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> RandomCheckpoint:
    """`random_checkpoint(tied=..., shards=..., seed=..., ...)`: a folder written once per session; do not change it."""
    from tests.checkpoints import write_random_checkpoint  # imports transformers: only for tests that ask for it

    @cache
    def build(**options: object) -> Path:
        return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **options)  # type: ignore[arg-type]

    return build
