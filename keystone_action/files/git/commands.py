"""Our own calls of git, on trees whose owners we don't trust: no hooks, no configuration but ours, no questions.

`meaning_of_index` reads an index (`.git/index`) itself: all of it but times, inodes and sizes of files, which
`git status` writes anew in a copied workspace.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from keystone_action.system.environment import own_search_path

CONFIG = Path(__file__).with_name("gitconfig")
_PASSED_ON = re.compile(r"(?i)(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|GIT_SSL_(CAINFO|CAPATH)")
_TIMEOUT = 120.0


class GitFailed(Exception):  # noqa: N818 - an outcome
    """git ended with a failure or could not be started; the message is what it said last."""


def has_git() -> bool:
    """Whether there is a git on our PATH."""
    return shutil.which("git", path=own_search_path()) is not None


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a git call: of ours only PATH, proxies and certificates."""
    passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    return {
        **passed_on,
        "PATH": own_search_path(),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(CONFIG),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_PAGER": "cat",
        **(extra or {}),
    }


def command(*arguments: str) -> list[str]:
    """The command line: settings given here win over those of the repository itself."""
    settings = ("safe.directory=*", "core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0")
    return ["git", *(part for setting in settings for part in ("-c", setting)), *arguments]


def run_git(
    *arguments: str,
    directory: Path,
    stdin: bytes = b"",
    extra: Mapping[str, str] | None = None,
    timeout: float = _TIMEOUT,
    accept: int = 0,
) -> bytes:
    """What git printed; exit codes up to `accept` are not a failure. Raises GitFailed."""
    import subprocess

    try:
        done = subprocess.run(
            command(*arguments),
            cwd=directory,
            env=git_environment(extra),
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise GitFailed("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {arguments[0]} took longer than {timeout:g} s") from None
    except OSError as error:
        raise GitFailed(f"git could not be started: {error.strerror}") from None
    if not 0 <= done.returncode <= accept:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise GitFailed(said or f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout


async def run_cancellable(*arguments: str, directory: Path, timeout: float) -> None:
    """As `run_git`, for calls that may take long (the network): git and its helpers end when the caller is cancelled.

    Raises GitFailed.
    """
    import asyncio  # 20 ms that `validate` does without

    try:
        process = await asyncio.create_subprocess_exec(
            *command(*arguments),
            cwd=directory,
            env=git_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not has_git()
        raise GitFailed("git is not installed" if missing else f"git could not be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(timeout) as limit:
            _, said = await process.communicate()
    except TimeoutError:
        if not limit.expired():
            raise
        raise GitFailed(f"git {arguments[0]} took longer than {timeout:g} s") from None
    finally:
        # Its helpers (git-remote-https, ssh) are in its session, also when git itself is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        text = said.decode("utf-8", "replace").strip()[-2000:]
        raise GitFailed(text or f"git {arguments[0]} ended with {process.returncode}")


def compare(directory: Path) -> bytes:
    """The unified diff of its directories `a` and `b`, every file taken for text. Raises GitFailed."""
    options = ("--no-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--text", "--no-prefix")
    return run_git("diff", *options, "a", "b", directory=directory, timeout=30.0, accept=1)


def without_credentials(url: str) -> str:
    """A URL without the user and password that it may hold."""
    return re.sub(r"^([a-zA-Z][\w+.-]*://)[^/?#]*@", r"\1", url)


_EXTENDED = 0x4000
_FREE = {b"UNTR", b"FSMN"}
"""Extensions with names and times of files. `git status` writes them where the repository has asked for them, so only
whether they are there counts."""


class _NoIndex(Exception):  # noqa: N818 - an outcome
    pass


def meaning_of_index(data: bytes) -> str:
    """A digest that stays as it is when nothing but stamps of files changes. Empty for what is not an index of git."""
    for name in ("sha1", "sha256"):
        size = hashlib.new(name, usedforsecurity=False).digest_size
        body, checksum = data[:-size], data[-size:]
        if checksum in (bytes(size), hashlib.new(name, body, usedforsecurity=False).digest()):  # none by index.skipHash
            meaning = hashlib.sha256()
            try:
                for part in _parts(body, size):
                    meaning.update(struct.pack(">Q", len(part)) + part)
            except (_NoIndex, struct.error, IndexError, ValueError):
                continue
            return meaning.hexdigest()
    return ""


_LONGEST_NAME = 4096


def _parts(body: bytes, size: int) -> Iterator[bytes]:
    """size: bytes of the name of an object. Raises what `meaning_of_index` takes for no index."""
    signature, version, count = struct.unpack_from(">4sII", body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise _NoIndex
    yield body[4:12]
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", body, start + 40 + size)
        at = start + 42 + size + (2 if flags & _EXTENDED else 0)
        yield body[start + 24 : start + 28] + body[start + 40 : at]  # mode, object, flags
        cut, at = _offset(body, at) if version == 4 else (len(name), at)
        end = body.index(b"\0", at)
        name = name[: max(0, len(name) - cut)] + body[at:end]
        if len(name) > _LONGEST_NAME:  # longer than any path; each entry could repeat it
            raise _NoIndex
        yield name
        at = end + 1 if version == 4 else start + (end - start + 8) // 8 * 8
        if body[end:at].strip(b"\0"):
            raise _NoIndex
    while at < len(body):
        kind, length = struct.unpack_from(">4sI", body, at)
        at += 8 + length
        if at > len(body):
            raise _NoIndex
        yield kind if kind in _FREE else body[at - 8 - length : at]


def _offset(body: bytes, at: int) -> tuple[int, int]:
    """A number as packs of git have offsets, and where it ends."""
    value = body[at] & 0x7F
    while body[at] & 0x80:
        at += 1
        value = (value + 1) << 7 | (body[at] & 0x7F)
    return value, at + 1
