"""Our own calls of git, on trees whose owners we don't trust: no hooks, no configuration but ours, no questions."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from keystone_action.files.search_path import own_search_path

CONFIG = Path(__file__).with_name("gitconfig")
_PASSED_ON = re.compile(r"(?i)(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|GIT_SSL_(CAINFO|CAPATH)")
_TIMEOUT = 120.0


class GitFailed(Exception):  # noqa: N818 - an outcome
    """git ended with a failure or could not be started; the message is what it said last."""


def available() -> bool:
    """Whether there is a git on our PATH."""
    return shutil.which("git", path=own_search_path()) is not None


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
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


def run(
    *arguments: str,
    directory: Path,
    stdin: bytes = b"",
    extra: Mapping[str, str] | None = None,
    timeout: float = _TIMEOUT,
    accept: int = 0,
) -> bytes:
    """What git printed; exit codes up to `accept` are no failure. Raises GitFailed."""
    import subprocess

    try:
        done = subprocess.run(
            command(*arguments),
            cwd=directory,
            env=environment(extra),
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
    """As `run`, for calls that may take long (the network): git and its helpers end when the caller is cancelled.

    Raises GitFailed.
    """
    import asyncio  # 20 ms that `validate` does without

    try:
        process = await asyncio.create_subprocess_exec(
            *command(*arguments),
            cwd=directory,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not available()
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
    return run("diff", *options, "a", "b", directory=directory, timeout=30.0, accept=1)


def without_credentials(url: str) -> str:
    """A URL without the user and password that it may hold."""
    return re.sub(r"^([a-zA-Z][\w+.-]*://)[^/?#]*@", r"\1", url)
