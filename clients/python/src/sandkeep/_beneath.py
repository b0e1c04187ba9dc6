"""Files beneath one directory, by their relative paths as bytes. No symbolic link is followed on the way."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 256 * 1024


def clean(path: bytes) -> bytes:
    """A path without a leading slash, `.` and `..`, which do not lead out. Raises ValueError if it cannot be a path."""
    if not path or b"\0" in path:
        raise ValueError(f"{path!r} is not a path")
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def within(path: bytes, top: bytes) -> bytes | None:
    """The path as it is called from `top`; None if it is not in there."""
    if not top or path == top:
        return b"" if path == top else path
    return path[len(top) + 1 :] if path.startswith(top + b"/") else None


def split(path: bytes) -> tuple[bytes, bytes]:
    """The directory of a path, and its name there."""
    parent, _, name = path.rpartition(b"/")
    return parent, name


@contextmanager
def directory(root: int, path: bytes) -> Generator[int, None, None]:
    """Opens a directory beneath another one. Raises OSError if it, or a part of the way, is none."""
    here = os.dup(root)
    try:
        for part in path.split(b"/") if path else []:
            inner = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def look(root: int, path: bytes) -> os.stat_result | None:
    """Metadata of a path; None if nothing is there."""
    parent, name = split(path)
    with suppress(FileNotFoundError, NotADirectoryError), directory(root, parent) as here:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    return None


def link_target(root: int, path: bytes) -> bytes:
    parent, name = split(path)
    with directory(root, parent) as here:
        return os.readlink(name, dir_fd=here)


def names(root: int, path: bytes) -> list[bytes]:
    with directory(root, path) as here:
        return [os.fsencode(name) for name in os.listdir(here)]


def digest(root: int, path: bytes) -> str:
    """The digest of a regular file, as the API writes it."""
    parent, name = split(path)
    with directory(root, parent) as here:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    hasher = hashlib.sha256()
    with open(file, "rb", buffering=0) as opened:
        while data := opened.read(_CHUNK_BYTES):
            hasher.update(data)
    return f"sha256:{hasher.hexdigest()}"


def kind_of(mode: int) -> str:
    """The type of a file, as the API names it."""
    return {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
    }.get(stat.S_IFMT(mode), "device")


def remove_tree(root: int, name: bytes) -> None:
    """Removes a file, or a directory with all that is in it, without following links."""
    try:
        os.unlink(name, dir_fd=root)
    except IsADirectoryError:
        with directory(root, name) as here:
            os.fchmod(here, 0o700)
            for inner in os.listdir(here):
                remove_tree(here, os.fsencode(inner))
        os.rmdir(name, dir_fd=root)
