"""Fixtures that several test folders share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

RandomCheckpoint = Callable[..., Path]

# The models of the tests are small: a second thread costs more in waiting than it computes, most of all on a busy
# machine. Read by torch and by the command when they start, after this file.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GALAGO_THREADS", "1")


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> RandomCheckpoint:
    """`random_checkpoint(tied=..., shards=..., seed=..., ...)`: a folder written once per session; do not change it."""
    from tests.checkpoints import write_random_checkpoint  # imports transformers: only for tests that ask for it

    @cache
    def build(**options: object) -> Path:
        return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint"), **options)  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real Qwen vocabulary and a plain template, without weights; made once (5 s)."""
    from galago.bench.qwen_vocabulary import qwen_tokenizer, write_tokenizer

    folder = tmp_path_factory.mktemp("qwen")
    write_tokenizer(folder, qwen_tokenizer(), context=262_144)
    return folder
