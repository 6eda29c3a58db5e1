"""Reading a picture's bytes from a file or standard input, with the faults a person can cause named in one line.

At most one byte more than the limit is ever read, so that `/dev/zero` or a 50 GB film costs nothing.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from galago.errors import BadRequest
from galago.images.limits import DEFAULT_LIMITS, ImageLimits, check_bytes, label

STDIN = "-"


def load_file(path: str | Path, *, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """The bytes of the file at `path`, or of standard input where `path` is "-".

    Raises BadRequest for a file that is missing, a directory, or not readable, BadImage for one that is empty or over
    `limits.max_bytes`.
    """
    name = str(path)
    if name == STDIN:
        return _read_stdin(limits)
    try:
        with open(path, "rb") as file:
            check_bytes(_size(file), limits, name)
            return _read(file, limits, name)
    except FileNotFoundError:
        raise BadRequest(f"{label(name)}: no such file") from None
    except IsADirectoryError:
        raise BadRequest(f"{label(name)}: this is a directory; name a picture in it") from None
    except PermissionError:
        raise BadRequest(f"{label(name)}: no permission to read it") from None
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        reason = (isinstance(fault, OSError) and fault.strerror) or "not a usable file name"
        raise BadRequest(f"{label(name)}: cannot be read: {reason}") from None


def _read_stdin(limits: ImageLimits) -> bytes:
    if sys.stdin.isatty():
        raise BadRequest("standard input is a terminal; pipe a picture into it, or name a file")
    return _read(sys.stdin.buffer, limits, "standard input")


def _size(file: BinaryIO) -> int:
    """Bytes in a regular file; for pipes and devices, which do not tell, one that lets them be read."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 1


def _read(file: BinaryIO, limits: ImageLimits, name: str) -> bytes:
    data = file.read(limits.max_bytes + 1)
    check_bytes(len(data), limits, name)
    return data
