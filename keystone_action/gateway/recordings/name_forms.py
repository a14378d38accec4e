"""The forms in which programs write a value that differs from run to run, and where each of them may be replaced.

A form is replaced only where it can't be anything else: a path ends where its last name ends, a port stands after a
host or after the word port, a word stands alone. What is too short or too common to be told from ordinary text
("app", "80") is left as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

KNOWN = r"(?:workspace|home|tmp|folder|cell|commit|(?:service|gateway|secret)\.[A-Za-z0-9_.-]+)"
"""How the names of values look."""
_NAME = re.compile(KNOWN)
_WORD_LEAST = 6
"""Characters of a word with letters and digits that is taken for this run's own; twice as many without digits."""
_SECRET_LEAST = 4
"""As for masks (spec 5.1)."""
_KEY_LEAST = 8
_DASHED_LEAST = 8
_PORT_WORDS = (
    *(rf"(?i:port){end}" for end in ("[ =:]", "[:=] ", " = ", "[\"']:", "[\"']: ", "\\\\[\"']:", "\\\\[\"']: ")),
    r"\s-[pP]",
    r"\s-[pP] ",
)
_HOSTS = (r"localhost", r"127\.0\.0\.1", r"0\.0\.0\.0", r"\[::\]", r"\[::1\]")
_OWN_HOSTS = (r"\*:", *(f"{host}{end}" for host in _HOSTS for end in (":", " ", "[\"'], ")))
"""What stands before a port: `nc localhost 4711`, `("127.0.0.1", 4711)`."""


@dataclass(frozen=True, slots=True)
class Form:
    """token: what stands in a recording, as `{workspace}` or `{workspace:url}`. text: what stands in its place in this
    run. pattern: where the text is replaced; empty where it never is."""

    token: str
    text: str
    pattern: str


def is_known(name: str) -> bool:
    """Whether a value can have this name."""
    return _NAME.fullmatch(name) is not None


def is_port(name: str, value: str) -> bool:
    """Whether a value is the number of a port."""
    return name.endswith(".port") and value.isascii() and value.isdigit() and len(value) <= 5


def forms_of(name: str, value: str) -> Iterator[Form]:
    """All forms of a value, the plain one first."""
    last = name.rpartition(".")[2]
    if name.startswith("secret.") or last in {"key", "password"}:
        least = _SECRET_LEAST if name.startswith("secret.") else _KEY_LEAST
        # A secret has to go wherever it stands.
        yield from _written(name, value, anywhere=len(value) >= least)
    elif "://" in value:
        yield from _of_url(name, value.rstrip("/"))
    elif value.startswith("/"):
        yield from _of_path(name, value.rstrip("/"))
    elif is_port(name, value):
        yield Form(f"{{{name}}}", value, _after(value, (*_PORT_WORDS, *_OWN_HOSTS)))
    else:
        yield Form(f"{{{name}}}", value, _alone(value) if _is_distinct(value) else "")
        if name == "commit" and len(value) >= 40:
            yield Form("{commit:short}", value[:7], _alone(value[:7]))


def _written(name: str, value: str, *, anywhere: bool, infix: str = "") -> Iterator[Form]:
    """As it is, URL-encoded, and as a text in JSON."""
    texts = {
        "": value,
        "url": quote(value, safe="", errors="replace"),
        "json": json.dumps(value)[1:-1],
        "slashed": json.dumps(value)[1:-1].replace("/", "\\/"),
        "slashed-twice": json.dumps(value)[1:-1].replace("/", "\\\\/"),
    }
    for form, text in texts.items():
        token = ":".join(filter(None, (name, "-".join(filter(None, (infix, form))))))
        yield Form(f"{{{token}}}", text, re.escape(text) if anywhere else "")


def _of_path(name: str, path: str) -> Iterator[Form]:
    """Its real path too, without links: programs print either."""
    if not path:
        return  # a HOME of `/` stands in every path
    for infix, one in (("", path), ("real", os.path.realpath(path))):
        for form in _written(name, one, anywhere=False, infix=infix):
            yield Form(form.token, form.text, path_pattern(form.text))
        prefix = f"{name}:{infix}-" if infix else f"{name}:"
        # Claude Code names folders so, and Gemini CLI by the digest.
        dashed = re.sub("[^A-Za-z0-9]", "-", one)
        yield Form(f"{{{prefix}dashed}}", dashed, _as_dashed(dashed) if len(dashed) >= _DASHED_LEAST else "")
        digest = hashlib.sha256(one.encode("utf-8", "surrogateescape")).hexdigest()
        yield Form(f"{{{prefix}sha256}}", digest, _alone(digest))


def _of_url(name: str, url: str) -> Iterator[Form]:
    """Its host and port too, under the names that this machine has for itself."""
    for form in _written(name, url, anywhere=False):
        yield Form(form.token, form.text, _ended(re.escape(form.text)))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return
    if not host or port is None:
        return
    yield Form(f"{{{name}:authority}}", f"{host}:{port}", _alone(f"{host}:{port}"))
    local = url.replace("127.0.0.1", "localhost", 1)
    yield Form(f"{{{name}:localhost}}", local, _ended(re.escape(local)))
    yield Form(f"{{{name}:localhost-authority}}", f"localhost:{port}", _alone(f"localhost:{port}"))


def _is_distinct(value: str) -> bool:
    letters, digits = any(one.isalpha() for one in value), any(one.isdigit() for one in value)
    return letters and len(value) >= (_WORD_LEAST if digits else 2 * _WORD_LEAST)


# The text comes first in each pattern and what must stand before it after that, looking back: so a search finds its
# places by their first letters, in texts of megabytes too.


def _ended(pattern: str) -> str:
    return rf"{pattern}(?![\w-])(?!\.\w)"


def _alone(text: str) -> str:
    escaped = re.escape(text)
    return rf"{escaped}(?<![\w.~-]{escaped})(?![\w-])(?!\.\w)"


def _as_dashed(text: str) -> str:
    """The names of what is below follow after another dash."""
    return rf"{text}(?<![\w.~-]{text})(?![A-Za-z0-9])"


def path_pattern(text: str) -> str:
    """Not within a longer path. Before it may stand an escaped line end, a colour, or an option of one letter."""
    escaped = re.escape(text)
    allowed = rf"(?<![\w.~%-]{escaped})|(?<=\\[nrt]{escaped})|(?<=[\d\[][mK]{escaped})|(?<=[\s\"']-[A-Za-z]{escaped})"
    return rf"{escaped}(?:{allowed})(?![\w-])(?!\.\w)"


def _after(text: str, before: tuple[str, ...]) -> str:
    places = "|".join(f"(?<={one}{text})" for one in before)
    return rf"{text}(?:{places})(?!\w)"
