"""The two Jinja environments: what a template prints is escaped, unless it was made by one of its filters."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.report import addresses, escape, words
from keystone_action.report.sentences import compared, facts, view

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment

SHARED_FILTERS: Mapping[str, Callable[..., Any]] = {
    "asked": view.asked,
    "came_to_cells": view.came_to_cells,
    "cost": facts.cell_cost,
    "coverage": facts.coverage,
    "count": words.count,
    "duration": words.duration,
    "excerpt": escape.excerpt,
    "first_line": escape.first_line,
    "gate": words.gate,
    "is_long": escape.is_long,
    "is_one_cell": view.is_one_cell,
    "last_words": view.last_words,
    "is_sentences": escape.is_sentences,
    "icon": words.ICONS.__getitem__,
    "agent_sentence": words.agent,
    "change_icon": compared.ICONS.__getitem__,
    "moment": words.moment,
    "parameters": view.parameters,
    "percent": words.percent,
    "reason": view.cell_reason,
    "sandbox_sentence": words.sandbox,
    "score": words.score,
    "short_path": escape.short_path,
    "tells_more": view.tells_more,
    "weight": words.weight,
}
_MARKDOWN: Mapping[str, Callable[..., str]] = {
    "anchor": addresses.cell_anchor,
    "check_page": addresses.check_page,
    "code": escape.code,
    "fence": escape.fence,
    "inline_html": escape.inline_html,
    "prose": escape.prose,
}


def markdown_environment() -> Environment:
    """For Markdown: what is printed becomes text on one line, unless one of the filters here says otherwise."""
    return _environment(escape.inline, _MARKDOWN)


def author_markdown_environment(text: str, name: str) -> Environment:
    """The same for a template of a workflow's own, which can't get around the escaping: see `author_environment`."""
    from keystone_action.report.author_environment import author_environment

    environment = author_environment(text, name, _options(escape.inline))
    _equip(environment, _MARKDOWN)
    return environment


def html_environment() -> Environment:
    """For HTML: what is printed becomes text, its invisible characters shown; in `prose` what is quoted becomes code.
    `ours` is for what this room made itself: style sheet, script, charts, and JSON without markup (`page/rows.py`)."""
    from markupsafe import escape as escape_html

    def text_as_html(text: str) -> str:
        return escape.html_without_commands(str(escape_html(escape.visible(text))))

    return _environment(text_as_html, {"prose": escape.prose_html, "ours": str})


def _compiled_templates() -> BytecodeCache:
    """Compiled templates beside our own byte code: compiling them takes longer than a small run's whole report.

    Constants of a template are finished while it is compiled, by our escaping: so a change of this room's code is
    another cache. Where nothing can be written there, templates are compiled each time.
    """
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Cache(FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)

    here = Path(__file__).parent
    stamps = sorted((path.name, path.stat().st_mtime_ns) for path in here.glob("*.py"))
    key = hashlib.sha256(repr((sys.version, stamps)).encode()).hexdigest()[:16]
    folder = here / "templates" / "__pycache__"
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
    return Cache(str(folder), f"{key}.%s.cache")


def _environment(default: Callable[[str], str], markup: Mapping[str, Callable[..., str]]) -> Environment:
    from jinja2 import Environment, PackageLoader

    # Our own templates need no sandbox, which asks about every attribute: what hostile data may do, escaping settles.
    environment = Environment(  # noqa: S701 - `_options` has autoescape
        loader=PackageLoader("keystone_action.report"), bytecode_cache=_compiled_templates(), **_options(default)
    )
    _equip(environment, markup)
    return environment


def _options(default: Callable[[str], str]) -> dict[str, Any]:
    from jinja2 import StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        # Markup is what our own filters, blocks and macros give; all else is text of somebody else.
        return value if isinstance(value, Markup) else Markup(default("" if value is None else str(value)))  # noqa: S704 - escaped just here

    return {
        "autoescape": True,
        "undefined": StrictUndefined,
        "finalize": finalize,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
        "auto_reload": False,
    }


def _equip(environment: Environment, markup: Mapping[str, Callable[..., str]]) -> None:
    from markupsafe import Markup

    def marked(function: Callable[..., str]) -> Callable[..., Markup]:
        return lambda *arguments, **options: Markup(function(*arguments, **options))  # noqa: S704

    environment.filters.update(SHARED_FILTERS)
    environment.filters.update({name: marked(function) for name, function in markup.items()})
