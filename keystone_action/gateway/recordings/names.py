"""Names that stand in a recording for what differs from run to run, both ways.

`{workspace}` stands for this run's path, `{workspace:url}` for the path as a URL has it, `{id:3:call_}` for the third
id that a provider made, with its beginning. Text that only looks like a name, as in an f-string of Python, gets an `=`:
`{=workspace}`. Text that has one already gets one more.

A value is replaced only where it can't be anything else: a path ends where its last name ends, a port stands after a
host or after the word port, a word stands alone. What is too short or too common to be told from ordinary text ("app",
"80") is left as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from keystone_action.gateway.recordings.recording import check_depth, ids_in

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
    """One way in which programs write a value that differs from run to run."""

    token: str
    """What stands in a recording: `{workspace}`, or `{workspace:url}`."""
    text: str
    """What stands in its place in this run."""
    pattern: str
    """Where the text is replaced; empty where it never is."""


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
    """The value as it is, URL-encoded, and as a text in JSON."""
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
    """The path, and the real path without links: programs print either."""
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
    """The URL, and its host and port, also under the names that this machine has for itself."""
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
    """A path that is not within a longer one. Before it may stand an escaped line end, a colour, or an option of one
    letter."""
    escaped = re.escape(text)
    allowed = rf"(?<![\w.~%-]{escaped})|(?<=\\[nrt]{escaped})|(?<=[\d\[][mK]{escaped})|(?<=[\s\"']-[A-Za-z]{escaped})"
    return rf"{escaped}(?:{allowed})(?![\w-])(?!\.\w)"


def _after(text: str, before: tuple[str, ...]) -> str:
    places = "|".join(f"(?<={one}{text})" for one in before)
    return rf"{text}(?:{places})(?!\w)"


__all__ = ["Names", "comparable_text", "ids_in"]

_FORM = r"(?::[a-z0-9-]+)?"
_ID = r"id:(?:own-)?\d{1,9}(?::[A-Za-z]{1,20}[_-])?"
_TOKEN = rf"\{{=*(?:{KNOWN}{_FORM}|{_ID})\}}"
_PARTS = re.compile(rf"\{{(=*)(?:({KNOWN})({_FORM})|({_ID}))\}}")
_SHARED_TEMPORARY = re.compile(path_pattern("/tmp"))  # noqa: S108 - as it stands in texts
_NUMBER = "number"
_KIND = re.compile(r"[A-Za-z]{1,20}[_-]")
_DISTINCT = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z0-9_-]{12,200}")
"""Ids of providers that get numbers. Others, such as `1` or `call_1`, could be meant as something else where they stand
in a text, so they stay: a replay gives them out again as they are."""
_OF_PROGRAM = re.compile(r"[A-Za-z0-9_-]{6,200}|[0-9]{3,5}")
_SHORT_NUMBER = re.compile(r"[0-9]{3,5}")
"""Ids of programs that could be any number. They have their names only after the word `id`, as in `session ID 73187`
and `"session_id": 73187`."""


class Names:
    """The names of one run. The longest value is replaced first, so that a port in a URL and a workspace below the
    temporary folder come out right. Values that can't be told from ordinary text are left as they are."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """values: by their names, as {"workspace": "/x/y", "service.api.url": "http://…", "secret.TOKEN": "…"}; empty
        ones are left out."""
        if wrong := sorted(name for name in values if not is_known(name)):
            raise ValueError(f"{wrong[0]!r} is not a name that a recording can have")
        kept = {name: value for name, value in sorted(values.items()) if value}
        forms = [form for name, value in kept.items() for form in forms_of(name, value)]
        self._plain = kept
        self._texts = {form.token: form.text for form in forms}
        self._tokens: dict[str, str] = {}
        self._patterns = _by_length(form for form in forms if form.pattern and form.text and self._is_new(form))
        self._ports = {value: name for name, value in reversed(kept.items()) if is_port(name, value)}
        self._ids: dict[str, str] = {}
        self._by_number: dict[int, str] = {}
        self._lengths: dict[str, set[int]] = {}
        """Of ids within texts, by how they begin."""
        self._said: set[str] = set()
        """Names of secrets whose values were replaced."""
        self._short_numbers: list[str] = []
        self._search = self._compiled()

    def _is_new(self, form: Form) -> bool:
        return self._tokens.setdefault(form.text, form.token) == form.token

    def number(self, ids: Iterable[str]) -> None:
        """Ids that a provider made, in the order in which they were seen. Known ones keep their numbers."""
        for one in ids:
            if one not in self._ids and _DISTINCT.fullmatch(one):
                self._know(one, max(self._by_number, default=0) + 1)

    def number_of_program(self, ids: Iterable[str]) -> None:
        """Ids that an agent's program made, however short. They are replaced where they stand alone."""
        for one in ids:
            if one not in self._ids and _OF_PROGRAM.fullmatch(one):
                self._know(one, max(self._by_number, default=0) + 1)

    def named(self, value: Any) -> Any:
        """A JSON value with names in place of this run's values. Raises RecordingError."""
        return self._named(value, 0)

    def filled(self, value: Any) -> Any:
        """A recorded JSON value with this run's values in place of their names. A name without a value in this run
        stays. An id that no provider made in this run is made up, and known from then on. The name of a secret stays
        until `named` has found its value: a model can only repeat what an agent has told it, and a recording is not to
        hand out what the agent was never given. Raises RecordingError."""
        return self._filled(value, 0)

    def _named(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._named_text(value)
        if isinstance(value, list):
            check_depth(depth)
            return [self._named(item, depth + 1) for item in value]
        if isinstance(value, dict):
            check_depth(depth)
            return {
                self._named_text(name): self._named_number(name, item)
                if isinstance(item, int) and self._ports
                else self._named(item, depth + 1)
                for name, item in value.items()
            }
        return value

    def _named_number(self, under: str, value: int) -> Any:
        port = self._ports.get(str(value)) if 0 < value < 1 << 16 and "port" in under.lower() else None
        return value if port is None or isinstance(value, bool) else f"{{{port}:{_NUMBER}}}"

    def _named_text(self, text: str) -> str:
        pieces, end, start = [], 0, 0
        while found := self._search.search(text, start):
            token = self._token(found)
            if token is None:
                start = found.start() + 1
                continue
            pieces += [text[end : found.start()], token]
            end = start = found.end()
        return "".join([*pieces, text[end:]]) if pieces else text

    def _token(self, found: re.Match[str]) -> str | None:
        text = found[0]
        token = self._tokens.get(text) or self._ids.get(text)
        if token is None and text[0] == "{":
            return f"{{={text[1:]}" if self._is_escaped(text) else text
        if token is not None and (parts := _PARTS.fullmatch(token)) and _is_secret(parts[2]):
            self._said.add(parts[2])
        return token

    def _is_escaped(self, text: str) -> bool:
        """A name that this run has no value for (a fork has no secrets) stands for itself, both ways."""
        found = _PARTS.fullmatch(text)
        return found is None or bool(found[1]) or found[2] is None or found[2] in self._plain

    def _filled(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._filled_number(value) or _PARTS.sub(self._value, value)
        if isinstance(value, list):
            check_depth(depth)
            return [self._filled(item, depth + 1) for item in value]
        if isinstance(value, dict):
            check_depth(depth)
            return {_PARTS.sub(self._value, name): self._filled(item, depth + 1) for name, item in value.items()}
        return value

    def _filled_number(self, text: str) -> int | None:
        found = _PARTS.fullmatch(text)
        if found is None or found[1] or found[3] != f":{_NUMBER}":
            return None
        port = self._plain.get(found[2], "")
        return int(port) if is_port(found[2], port) else None

    def _value(self, found: re.Match[str]) -> str:
        escaped, name, _, id_ = found.groups()
        if escaped:
            return f"{{{found[0][2:]}"
        if id_:
            return self._id(id_) or found[0]
        if _is_secret(name) and name not in self._said:
            return found[0]
        return self._texts.get(found[0], self._plain.get(name, found[0]))

    def _id(self, token: str) -> str:
        _, number, *kind = token.split(":")
        if not number.isdigit():
            return ""
        known = self._by_number.get(int(number))
        if known is None:
            known = f"{''.join(kind)}replayed{int(number):016}"
            self._know(known, int(number))
        return known

    def _know(self, id_: str, number: int) -> None:
        kind = found[0] if (found := _KIND.match(id_)) else ""
        self._ids[id_] = f"{{id:{number}{':' if kind else ''}{kind}}}"
        self._by_number[number] = id_
        if _SHORT_NUMBER.fullmatch(id_):
            self._short_numbers.append(id_)
            self._search = self._compiled()
            return
        lengths = self._lengths.setdefault(kind, set())
        if len(id_) not in lengths:
            lengths.add(len(id_))
            self._search = self._compiled()

    def _compiled(self) -> re.Pattern[str]:
        ids = [_id_pattern(kind, lengths) for kind, lengths in sorted(self._lengths.items())]
        # Without groups around them: so a search goes by the letters with which these begin.
        numbers = map(_after_id, self._short_numbers)
        return re.compile("|".join([_TOKEN, *self._patterns, *ids, *numbers]))


def _is_secret(name: str | None) -> bool:
    return name is not None and name.startswith("secret.")


def comparable_text(text: str) -> str:
    """A named text of a request, in the form in which it is compared. Whether a path has a form of its own depends on
    the path, and whether `/tmp` is this run's temporary folder depends on the sandbox. Such a text can't be filled any
    more."""
    return _SHARED_TEMPORARY.sub("{tmp}", _PARTS.sub(_without_form, text))


def _without_form(found: re.Match[str]) -> str:
    escaped, name, _, id_ = found.groups()
    if escaped:
        return found[0]
    return f"{{{name}}}" if name else f"{{{':'.join(id_.split(':')[:2])}}}"


def _by_length(forms: Iterable[Form]) -> list[str]:
    return [form.pattern for form in sorted(forms, key=lambda form: (-len(form.text), form.token))]


def _after_id(number: str) -> str:
    places = "|".join(rf"(?<=[iI][dD]{between}{number})" for between in (r"\W" * count for count in range(1, 5)))
    return rf"{number}(?:{places})(?!\w)"


def _id_pattern(kind: str, lengths: set[int]) -> str:
    """A pattern for places that may be ids. Only known ones are replaced."""
    begins = re.escape(kind) or "[A-Za-z0-9]"
    rests = "|".join(f"[A-Za-z0-9_-]{{{length - max(1, len(kind))}}}" for length in sorted(lengths, reverse=True))
    return rf"{begins}(?<![A-Za-z0-9]{begins})(?:{rests})(?![A-Za-z0-9_-])"
