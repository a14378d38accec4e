"""The zip of an artifact → files in a folder of their own.

An artifact can come from a fork's run: its zip is hostile. All names are judged before the first file is written, and
one that is wrong refuses the whole.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keystone_action.files.removal import remove_tree
from keystone_action.github.api.answer import one_line
from keystone_action.github.api.errors import BadArchive

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_MAX_DIRECTORY = 8 * 1024 * 1024
"""Bytes of a zip's list of entries, each of which becomes an object of ten times its size."""
_CHUNK = 256 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """files, and bytes when unpacked, of what is wanted of an archive."""

    files: int = 10_000
    size: int = 256 * 1024 * 1024


def unpack(
    content: bytes,
    folder: Path,
    *,
    wanted: Callable[[str], bool] | None = None,
    limits: ArchiveLimits | None = None,
) -> list[Path]:
    """Writes the files of a zip below `folder`, which must not exist, and returns their paths.

    wanted: says by its name whether a file is unpacked; all are by default. What is not wanted counts only for the
    rules about names. Raises BadArchive, and then leaves no folder.
    """
    limits = limits or ArchiveLimits()
    try:
        with zipfile.ZipFile(_Guarded(content)) as archive:
            entries = archive.infolist()
            _judge_names(entries)
            chosen = [entry for entry in entries if not entry.is_dir() and (wanted is None or wanted(entry.filename))]
            _judge_size(chosen, limits)
            return _write(archive, chosen, folder, limits)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError) as error:
        # zipfile speaks of a hostile archive in any of these.
        raise BadArchive(f"the archive is broken ({one_line(str(error)) or type(error).__name__})") from None


class _Guarded(io.BytesIO):
    """Refuses to hand out so much at once as only a huge list of entries is asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise BadArchive(f"the archive's list of files is larger than {_MAX_DIRECTORY} bytes")
        return super().read(size)


def _judge_names(entries: list[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        name = entry.filename
        _judge_name(name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG):
            raise BadArchive(f"{_shorten(name)} is a link or another special file")
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
            raise BadArchive(f"{_shorten(name)} is encrypted, or compressed in an unusual way")
        path = PurePosixPath(name)
        if not entry.is_dir():
            if str(path) in files:
                raise BadArchive(f"{_shorten(name)} is in it twice")
            files.add(str(path))
        parents = [str(parent) for parent in path.parents if str(parent) != "."]
        folders.update([str(path), *parents] if entry.is_dir() else parents)
    for name in sorted(files & folders):
        raise BadArchive(f"{_shorten(name)} is a file and a folder in it")


def _judge_name(name: str) -> None:
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or any(part in ("", ".", "..") for part in parts):
        raise BadArchive(f"{_shorten(name)} leads out of the folder that it is unpacked to")
    if not name.isprintable() or len(name.encode("utf-8", "replace")) > 1024 or len(parts) > 32:
        raise BadArchive(f"{_shorten(name)} is no name for a file")
    if any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise BadArchive(f"{_shorten(name)} is no name for a file")


def _judge_size(chosen: list[zipfile.ZipInfo], limits: ArchiveLimits) -> None:
    """By what the archive says; what it holds is counted again when it is written."""
    if len(chosen) > limits.files:
        raise BadArchive(f"it holds {len(chosen)} files, more than {limits.files}")
    if sum(entry.file_size for entry in chosen) > limits.size:
        raise BadArchive(f"it holds more than {limits.size} bytes")


def _write(archive: zipfile.ZipFile, chosen: list[zipfile.ZipInfo], folder: Path, limits: ArchiveLimits) -> list[Path]:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadArchive(f"it can't be unpacked to {folder}: {error.strerror}") from None
    written: list[Path] = []
    left = limits.size
    try:
        for entry in chosen:
            path = folder / entry.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            left -= _write_one(archive, entry, path, left)
            written.append(path)
    except BaseException as error:
        remove_tree(folder)
        if isinstance(error, OSError):
            raise BadArchive(f"it can't be unpacked to {folder}: {error.strerror}") from None
        raise
    return written


def _write_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, left: int) -> int:
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with archive.open(entry) as source, os.fdopen(os.open(path, flags, 0o644), "wb") as target:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > left:
                raise BadArchive(f"{_shorten(entry.filename)} is larger than it says")
            target.write(chunk)
    return size


def _shorten(name: str) -> str:
    return f"{one_line(name)!r}"
