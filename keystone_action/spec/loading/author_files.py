"""Reading the author's files: text files, and whole directories (`expect_dir`, hidden tests).

A text is bounded, in UTF-8, and has no characters that could deceive a reader. A directory is read before the agent
runs.
"""

from __future__ import annotations

import codecs
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.yaml_loader import SourceText
from keystone_action.spec.walking import walk

MAX_BYTES = 10 * 2**20
"""Largest spec file. Nothing of a larger one is read."""

# Beyond what YAML 1.2 calls printable (5.1); a byte order mark inside the text is refused too.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""Bytes that Linux takes."""


def unusable(text: str) -> str | None:
    """Why no file can be named like this, as a message has it; None when one can."""
    if "\0" in text:
        return "a path with a NUL, which no file can have"
    name = max(text.split("/"), key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(name)) > _LONGEST_NAME or len(os.fsencode(text)) > _LONGEST_PATH:
        return "a path that is longer than any file's"
    return None


def is_file(path: Path) -> bool:
    """Whether there is a regular file; False for a path that no file can have (too long, with a NUL)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, name: str, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. Raises SpecError."""
    try:
        # Non-blocking, so that a FIFO in the place of a file can't hold us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _whole_file(name, "there is no such file", "check the path") from None
    except OSError as error:
        raise _whole_file(name, f"can't be read: {error.strerror}", "check the path and its permissions") from None
    try:
        _check_kind(os.fstat(descriptor), name, limit)
        with open(descriptor, "rb", closefd=False) as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise _whole_file(name, f"can't be read: {error.strerror}", "check the disk") from None
    finally:
        os.close(descriptor)
    if len(content) > limit:  # it grew
        raise _too_large(name, len(content), limit)
    return content


def _check_kind(status: os.stat_result, name: str, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _whole_file(name, "is a directory", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise _whole_file(name, "is not a regular file", "name a file")
    if status.st_size > limit:
        raise _too_large(name, status.st_size, limit)


def is_pointer(content: bytes) -> bool:
    """Whether a file is what Git LFS leaves in the place of one that was not fetched."""
    return len(content) <= POINTER_BYTES and content.startswith(b"version https://git-lfs")


POINTER_BYTES = 1024
"""Git LFS takes no larger file for a pointer."""
POINTER = "a pointer of Git LFS, not the file itself"
POINTER_ADVICE = "fetch it with `git lfs pull`; in a workflow, give actions/checkout `lfs: true`"


def pointer_error(name: str) -> SpecError:
    """Of a file that was not fetched."""
    return _whole_file(name, f"this is {POINTER}", POINTER_ADVICE)


def decode_file(content: bytes, name: str) -> str:
    """UTF-8 with or without a byte order mark. Raises SpecError at the place of the first bad byte or character, and
    for a pointer of Git LFS."""
    if is_pointer(content):
        raise pointer_error(name)
    for mark, encoding in _OTHER_ENCODINGS:
        if content.startswith(mark):
            raise _whole_file(name, f"is encoded in {encoding}", "save it as UTF-8")
    if content[:4].count(0) >= 2 or (len(content) > 1 and content[:2].count(0) == 1):
        raise _whole_file(name, "looks like UTF-16 or UTF-32", "save it as UTF-8")
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8", "replace")
        source = SourceText(name, error.object.decode("utf-8", "replace"))
        byte = error.object[error.start]
        at = source.position_at(len(before))
        raise SpecError([Diagnostic.at(at, f"the byte 0x{byte:02x} is not UTF-8", help="save it as UTF-8")]) from None
    found = _UNPRINTABLE.search(text)
    if found is not None:
        code = ord(found[0])
        at = SourceText(name, text).position_at(found.start())
        message = f"the control character U+{code:04X}"
        raise SpecError([Diagnostic.at(at, message, help='remove it, or write it as "\\x1b" in double quotes')])
    return text


def read_author_text(path: Path, name: str, limit: int = MAX_BYTES) -> str:
    """The text of a file. Raises SpecError."""
    return decode_file(read_bytes(path, name, limit), name)


def _too_large(name: str, size: int, limit: int) -> SpecError:
    message = f"is too large: {size / 2**20:,.1f} MiB"
    return _whole_file(name, message, f"at most {limit / 2**20:,.0f} MiB are read")


def _whole_file(name: str, message: str, advice: str) -> SpecError:
    return SpecError([Diagnostic(name, 1, 1, message, help=advice)])


MAX_DIRECTORY_FILES = 10_000
MAX_DIRECTORY_BYTES = 256 << 20
"""Of one directory, all its files together: they are kept in memory while the run lasts."""


def files_below(directory: Path) -> tuple[str, ...]:
    """The paths of its files, sorted, relative and with `/`; a link to a file inside counts as that file.

    Raises ValueError with a sentence without its subject for what must not be read (a link that leads out or nowhere,
    a FIFO, a file that is closed to us), for more than is kept, and for a directory without any file.
    """
    root = directory.resolve()
    found: list[str] = []
    size = 0
    for folder, folders, names in walk(root, _raise_unlisted):
        for name in (*folders, *names):
            path = Path(folder) / name
            if name in folders and not path.is_symlink():
                continue
            relative = path.relative_to(root).as_posix()
            size += _size(root, path, relative)
            found.append(relative)
            if len(found) > MAX_DIRECTORY_FILES or size > MAX_DIRECTORY_BYTES:
                raise ValueError(f"holds more than {MAX_DIRECTORY_FILES:,} files or {MAX_DIRECTORY_BYTES:,} bytes")
    if not found:
        raise ValueError("has no files in it")
    return tuple(sorted(found))


def read_below(directory: Path) -> dict[str, bytes]:
    """The bytes of each file of `files_below`. Raises as it does."""
    try:
        return {name: (directory / name).read_bytes() for name in files_below(directory)}
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from error


_ONE = rb"""[ \t]+(?:'((?:[^'\n]|''){1,4096})'|"([^"\n]{1,4096})"|([^\s'";]{1,4096}))"""
_INCLUDED = (
    re.compile(rb"\\(i|ir|include|include_relative|\.)" + _ONE),
    re.compile(rb"(?i:\\copy)()[ \t][^\n]{1,4096}?[ \t)](?i:from)" + _ONE),
    re.compile(rb"\n[ \t]*(?i:source)()" + _ONE),
)


def sql_files(scripts: Iterable[Path], texts: Iterable[str], directory: Path) -> tuple[Path, ...]:
    """These scripts of sql fixtures and all files below the spec's directory that they seem to include, resolved. A
    file that is only named in a text looks the same; what is really read is a part of these."""
    found: dict[Path, None] = {}
    waiting = [path.resolve() for path in scripts]
    for text in texts:
        waiting += _included(b"\n" + text.encode("utf-8", "replace"), directory, directory)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size:
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                        waiting += _included(content, path.parent, directory)
                        first = _INCLUDED[2].match(b"\n" + content[: 2 * _LONGEST_PATH].removeprefix(codecs.BOM_UTF8))
                        waiting += _below(first, path.parent, directory) if first is not None else ()
        except OSError:
            continue  # told where it is read
    return tuple(found)


def _included(content: bytes | mmap.mmap, folder: Path, directory: Path) -> Iterator[Path]:
    for pattern in _INCLUDED:
        for named in pattern.finditer(content):
            yield from _below(named, folder, directory)


def _below(named: re.Match[bytes], folder: Path, directory: Path) -> Iterator[Path]:
    base = folder if named[1] in (b"ir", b"include_relative") else directory
    text = os.fsdecode(named[2].replace(b"''", b"'") if named[2] is not None else named[3] or named[4])
    try:
        path = (base / text).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return
    if path.is_relative_to(directory) and path.is_file():
        yield path


def _size(root: Path, path: Path, relative: str) -> int:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        raise ValueError(f"holds {relative!r}, a link that leads nowhere") from None
    if not real.is_relative_to(root):
        raise ValueError(f"holds {relative!r}, a link that leads out of it")
    if not stat.S_ISREG(status.st_mode):
        kind = "a link to a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise ValueError(f"holds {relative!r}, {kind}")
    if not os.access(real, os.R_OK):
        raise ValueError(f"holds {relative!r}, which can't be read")
    return status.st_size


def _raise_unlisted(error: OSError) -> None:
    raise ValueError(f"can't be listed: {error.strerror}") from error
