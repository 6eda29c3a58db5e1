"""What a user can see go wrong.

Every error that a person can cause or must act on is a `GalagoError` with one clear line: what is wrong, which limit or
name it concerns, what to do. `code` is the machine-readable name, `exit_code` what the command line returns; the HTTP
layer maps the same `code` once. Anything else that is raised is our own bug and must never reach a user as a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class GalagoError(Exception):
    """Base of every error that carries a message meant for the user."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1


class BadRequest(GalagoError):
    """The request itself is wrong: a missing file, an unknown value, an empty question."""

    code = "invalid_request"
    exit_code = 2


class BadImage(BadRequest):
    """A picture that cannot or must not be decoded; the message names the picture, the fault and the limit."""

    code = "invalid_image"


class ContextTooLong(BadRequest):
    """Prompt plus answer does not fit the model's context; the message counts the tokens of every picture."""

    code = "context_length_exceeded"


class OutOfMemory(BadRequest):
    """The request can never fit the memory that is left; refused before any work, with both figures."""

    code = "insufficient_memory"


class ModelError(GalagoError):
    """A model folder that cannot be used: no config, another architecture, missing or damaged tensors."""

    code = "model_error"
    exit_code = 2


class ModelNotFound(ModelError):
    """Neither the local caches nor a hub can serve the model; the message lists the ways out."""

    code = "model_not_found"


class StorageFull(GalagoError):
    """The disk is full or read-only; nothing half-written is left behind."""

    code = "storage_full"
    exit_code = 2
