"""Files that are written whole or not at all, as the programs' own (core/output_file.h)."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from typing import IO, Any, Iterator


def _names_descriptor(path: str) -> bool:
    """Whether it is written to where it leads, also if that is a regular file: somebody holds it open."""
    return path.startswith(("/dev/fd/", "/dev/std", "/proc/"))


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write to, "w" or "wb": it takes the place of `path` at the end, and an error or a kill leaves what stood there.

    Links are followed and permissions kept. What is no regular file (a pipe) or somebody holds open (/dev/stdout) is
    written to directly.
    """
    given = os.fspath(path)
    target = os.path.realpath(given)
    encoding = None if "b" in mode else "utf-8"
    try:
        there = os.stat(given)  # of a pipe's descriptor the real path names nothing
    except FileNotFoundError:
        there = None
    if _names_descriptor(given) or there is not None and not stat.S_ISREG(there.st_mode):
        with open(path, mode, encoding=encoding) as file:
            yield file
        return
    if there is not None and not os.access(target, os.W_OK):  # a rename would replace it
        raise PermissionError(13, "the file may not be written", given)
    folder, name = os.path.split(target)
    partial = os.path.join(folder, f".{name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            if there is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        if isinstance(error, OSError) and error.filename in (None, partial):
            error.filename = given  # the name that the caller knows
        raise
