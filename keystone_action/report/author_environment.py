"""The Jinja environment of a workflow's own template: what `templating` does for ours, and nothing gets around it.

What our filters make is trusted as it is printed; what a template does to it (adds, cuts, formats) makes it text
of somebody else again, which is escaped. Only `~` and `join` put such pieces together.

Imports Jinja at once: only the process that renders imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, FunctionLoader, PackageLoader, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from keystone_action.report import escape

BASE = "summary.md.j2"
OURS = frozenset({BASE, "agent.j2", "changes.j2", "parts.j2"})
"""What a template may extend and import from."""
FILTERS = (
    *("abs", "batch", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items"),
    *("last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round"),
    *("select", "selectattr", "slice", "sort", "string", "sum", "title", "trim", "truncate", "unique", "upper"),
    "wordcount",
)
"""Those of Jinja's filters that give text or data; the others write markup or look for attributes."""
GLOBALS = ("cycler", "dict", "joiner", "namespace", "range")


_APART = "\u200b"
"""Between two code spans that touch, which would be read as one with the text between them outside."""


def concatenated(pieces: Iterable[str]) -> str:
    """Escaped pieces as one text."""
    return "".join(kept_apart(pieces))


def kept_apart(pieces: Iterable[str]) -> Iterator[str]:
    """Escaped pieces, and what keeps their code spans from running into each other."""
    before = ""
    for piece in pieces:
        if piece.startswith("`") and before.endswith("`"):
            yield _APART
        yield piece
        before = piece or before


class _CodeGenerator(CodeGenerator):
    """Jinja's own `~` would escape for HTML what it joins to our Markdown, and its slices ask no sandbox."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.cut(")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            self.visit(bound or nodes.Const(None), frame)
        self.write(")")


class AuthorEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which text that was escaped can't be changed."""

    code_generator_class = _CodeGenerator
    concat = staticmethod(concatenated)
    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators on escaped text give plain text. Powers are not there: one can take for ever."""
        if operator == "**":
            raise TypeError("the operator ** is not there")
        return super().call_binop(context, operator, _plain(left), _plain(right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """A part of escaped text is plain text."""
        return super().getitem(_plain(obj), argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What a method of escaped text returns is plain text."""
        return super().getattr(_plain(obj), attribute)

    def cut(self, obj: Any, start: Any, stop: Any, step: Any) -> Any:
        """A slice; of escaped text, it is plain text."""
        return _plain(obj)[start:stop:step]

    def concatenated(self, parts: Iterable[Any]) -> str:
        """Text put together: escaped as soon as one part is."""
        found = list(parts)
        if not any(isinstance(part, Markup) for part in found):
            return "".join(map(str, found))
        return Markup(concatenated(part if isinstance(part, Markup) else _escape(part) for part in found))  # noqa: S704


def author_environment(text: str, name: str, options: Mapping[str, Any]) -> AuthorEnvironment:
    """The environment in which the template of that name has that text. options: as our own environment has them."""
    environment = AuthorEnvironment(loader=_loader(text, name), **options)
    kept: Mapping[str, Any] = {name: environment.filters[name] for name in FILTERS}
    environment.filters = {name: _of_plain_text(function) for name, function in kept.items()}
    environment.filters["join"] = _join_in(environment)
    environment.globals = {name: environment.globals[name] for name in GLOBALS}
    return environment


def _loader(text: str, name: str) -> BaseLoader:
    ours = PackageLoader("keystone_action.report")

    def load(wanted: str) -> tuple[str, str | None, Callable[[], bool] | None] | None:
        return (text, name, None) if wanted == name else None

    def load_ours(wanted: str) -> tuple[str, str | None, Callable[[], bool] | None] | None:
        return ours.get_source(Environment(), wanted) if wanted in OURS else None  # noqa: S701 - reads the file only

    return ChoiceLoader([FunctionLoader(load_ours), FunctionLoader(load)])


def _of_plain_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's that takes escaped text for plain text. What marks how Jinja calls it stays."""

    def of_plain_text(*arguments: Any, **options: Any) -> Any:
        plain = {name: _plain(value) for name, value in options.items()}
        return function(*map(_plain, arguments), **plain)

    of_plain_text.__dict__.update(getattr(function, "__dict__", {}))
    return of_plain_text


def _join_in(environment: AuthorEnvironment) -> Callable[..., str]:
    def join(values: Iterable[Any], separator: Any = "") -> str:
        """The values with the separator between them."""
        parts: list[Any] = []
        for value in values:
            parts += [separator, value] if parts else [value]
        return environment.concatenated(parts)

    return join


def _plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, Markup) else value


def _escape(value: Any) -> str:
    return escape.inline("" if value is None else str(value))
