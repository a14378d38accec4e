"""What GitHub makes of `${{ … }}`, written from its page on expressions: literals, contexts, operators and functions,
those that our workflows use. All else is an error here, so that a misspelt name can't pass for an empty string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?))|(?P<string>'(?:[^']|'')*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>().,\[\]]))"
)
_SPAN = re.compile(r"\$\{\{((?:[^'}]|'(?:[^']|'')*'|\}(?!\}))*)\}\}")
_BINDS = ({"||"}, {"&&"}, {"==", "!="}, {"<", "<=", ">", ">="})
"""Operators from the loosest to the tightest."""
STATUS_FUNCTIONS = ("success", "failure", "always", "cancelled")

Function = Callable[..., Any]
Later = Callable[[], Any]


class Unknown(LookupError):
    """A context, property or function that is not there."""


def interpolate(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function] | None = None) -> str:
    """The text with its expressions filled in, as a step gets it."""
    return _SPAN.sub(lambda found: as_text(evaluate(found[1], contexts, functions)), text)


def value_of(given: Any, contexts: Mapping[str, Any], functions: Mapping[str, Function] | None = None) -> Any:
    """The same for any part of a workflow; a text that is one expression has that one's value, of whatever type."""
    if isinstance(given, Mapping):
        return {name: value_of(one, contexts, functions) for name, one in given.items()}
    if isinstance(given, list):
        return [value_of(one, contexts, functions) for one in given]
    if not isinstance(given, str):
        return given
    whole = _SPAN.fullmatch(given.strip())
    return evaluate(whole[1], contexts, functions) if whole else interpolate(given, contexts, functions)


def condition(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function]) -> bool:
    """An `if`: with or without the braces; without a function of the status, success() is asked too."""
    whole = _SPAN.fullmatch(text.strip())
    inner = whole[1] if whole else text
    asked = any(re.search(rf"\b{name}\s*\(", inner) for name in STATUS_FUNCTIONS)
    return (asked or truth(functions["success"]())) and truth(evaluate(inner, contexts, functions))


def truth(value: Any) -> bool:
    """False, 0, the empty text and null are false; every object is true."""
    return isinstance(value, (Mapping, list)) or bool(value)


def as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (Mapping, list)):
        return "Object" if isinstance(value, Mapping) else "Array"
    return str(value)


def evaluate(text: str, contexts: Mapping[str, Any], functions: Mapping[str, Function] | None = None) -> Any:
    """The value of what stands between the braces. Raises Unknown, and SyntaxError for what is not an expression."""
    parser = _Parser(_tokens(text), contexts, {**_FUNCTIONS, **(functions or {})})
    value = parser.operators(0)
    if parser.rest:
        raise SyntaxError(f"{text!r} goes on with {parser.rest[0][1]!r}")
    return value()


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise SyntaxError(f"{text[at:]!r} of {text!r} is not an expression")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
        at = found.end()
    return tokens


class _Parser:
    """Reads an expression into a function that computes it: the right side of `&&` is not computed for nothing."""

    def __init__(
        self, tokens: list[tuple[str, str]], contexts: Mapping[str, Any], functions: Mapping[str, Function]
    ) -> None:
        self.rest = tokens
        self._contexts = contexts
        self._functions = functions

    def operators(self, level: int) -> Later:
        if level == len(_BINDS):
            return self._unary()
        left = self.operators(level + 1)
        while self.rest and self.rest[0][1] in _BINDS[level] and self.rest[0][0] == "sign":
            left = _joined(self.rest.pop(0)[1], left, self.operators(level + 1))
        return left

    def _unary(self) -> Later:
        if self._taken("!"):
            operand = self._unary()
            return lambda: not truth(operand())
        value = self._primary()
        while self.rest and self.rest[0][1] in {".", "["}:
            if self._taken("."):
                value = _member(value, _constant(self.rest.pop(0)[1]))
            else:
                self._expect("[")
                value = _member(value, self.operators(0))
                self._expect("]")
        return value

    def _primary(self) -> Later:
        if not self.rest:
            raise SyntaxError("the expression ends too early")
        kind, text = self.rest.pop(0)
        if kind == "number":
            return _constant(float(int(text, 16)) if "0x" in text else float(text))
        if kind == "string":
            return _constant(text[1:-1].replace("''", "'"))
        if text == "(":
            value = self.operators(0)
            self._expect(")")
            return value
        if kind != "name":
            raise SyntaxError(f"{text!r} starts no expression")
        if self._taken("("):
            return self._call(text)
        if text in _CONSTANTS:
            return _constant(_CONSTANTS[text])
        return lambda: _known(self._contexts, text, "context")

    def _call(self, name: str) -> Later:
        arguments: list[Later] = []
        while not self._taken(")"):
            if arguments:
                self._expect(",")
            arguments.append(self.operators(0))
        return lambda: _known(self._functions, name, "function")(*(argument() for argument in arguments))

    def _taken(self, sign: str) -> bool:
        found = bool(self.rest) and self.rest[0] == ("sign", sign)
        if found:
            self.rest.pop(0)
        return found

    def _expect(self, sign: str) -> None:
        if not self._taken(sign):
            raise SyntaxError(f"expected {sign!r}, found {self.rest[:1]}")


def _constant(value: Any) -> Later:
    return lambda: value


def _joined(sign: str, left: Later, right: Later) -> Later:
    if sign == "||":
        return lambda: value if truth(value := left()) else right()
    if sign == "&&":
        return lambda: right() if truth(value := left()) else value
    return lambda: _COMPARISONS[sign](left(), right())


class Open(dict[str, Any]):
    """A context whose properties may be missing, such as `secrets` and the outputs of a step: null then."""


def _member(value: Later, name: Later) -> Later:
    return lambda: _property(value(), name())


def _property(value: Any, name: Any) -> Any:
    if isinstance(value, list):
        index = int(name)
        return value[index] if 0 <= index < len(value) else None
    if isinstance(value, Open) or value is None:
        return (value or {}).get(name)
    if isinstance(value, Mapping):
        return _known(value, name, "property")
    raise Unknown(f"{value!r} has no properties; {name} was asked for")


def _known(named: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in named:
        raise Unknown(f"there is no {kind} {name}; there are {', '.join(sorted(named))}")
    return named[name]


def _number(value: Any) -> float:
    if value is None or value == "":
        return 0.0
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if type(left) is type(right):
        return bool(left == right)
    return _number(left) == _number(right)


def _contains(where: Any, what: Any) -> bool:
    if isinstance(where, Sequence) and not isinstance(where, str):
        return any(_equal(one, what) for one in where)
    return as_text(what).lower() in as_text(where).lower()


_CONSTANTS = {"true": True, "false": False, "null": None}
_COMPARISONS: dict[str, Function] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: _number(left) < _number(right),
    "<=": lambda left, right: _number(left) <= _number(right),
    ">": lambda left, right: _number(left) > _number(right),
    ">=": lambda left, right: _number(left) >= _number(right),
}
_FUNCTIONS: dict[str, Function] = {
    "fromJSON": json.loads,
    "contains": _contains,
    "startsWith": lambda text, start: as_text(text).lower().startswith(as_text(start).lower()),
    "endsWith": lambda text, end: as_text(text).lower().endswith(as_text(end).lower()),
    "format": lambda text, *values: re.sub(r"\{(\d+)\}", lambda found: as_text(values[int(found[1])]), text),
}
