"""Writes what docs/checks says of check types, from their models and docstrings: `python -m tools.check_pages`.

A page is `docs/checks/<type>.md`. Between two comments it is made here; the rest, the example above all, is written by
hand and stays. `docs/checks/README.md` lists all pages. A new type gets a page with the generated part alone.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from keystone_action.invariants.check import Check, Phase
from keystone_action.invariants.registry import BUILT_IN, CheckTypes
from keystone_action.spec.field_texts import description, models_in
from tools.field_tables import field_table

PAGES = Path(__file__).parent.parent / "docs" / "checks"
BEGIN = "<!-- Made by `python -m tools.{tool}` from {source}: edit that, not this part. -->"
END = "<!-- The end of what is made. -->"

_WHEN: Mapping[Phase, str] = {
    "observe": "first, with the other checks that execute nothing of what the agent left",
    "shared_copy": "after the checks that only look, in a sandbox with a copy of what the agent left; checks of this "
    "kind share that copy, in the order of the spec, and no HOME, TMPDIR or user",
    "fresh_copy": "after the checks that only look, in a sandbox of its own with a fresh copy of what the agent left",
}
_ORIGINS: Mapping[str, str] = {
    "Keystone": "The eight of Keystone",
    "Touchstone": "Graders of Touchstone",
    "AgenticAssure": "Scorers of AgenticAssure",
    "": "Further ones",
}


def check_types() -> dict[str, type[Check]]:
    """Every type that is built in, by its name, aliases left out."""
    types = CheckTypes()
    return {name: types[name] for name in sorted(BUILT_IN) if types[name].type_name == name}


def described(check: type[Check]) -> str:
    """The generated part of a page, without its two comments."""
    name = check.type_name
    parts = [f"# `{name}`", description(check), *_aliases(check), f"## Fields\n\n{_table(check)}"]
    places: dict[type[BaseModel], list[str]] = {}
    for place, model in _inner_models(check):
        places.setdefault(model, []).append(place)
    for model, where in places.items():
        title = f"### Keys of {_list_of([f'`{place}`' for place in where])}"
        parts += [title, description(model), _table(model, f"{where[0]}.".replace("[]", "").replace(".*", ""))]
    return "\n\n".join([*parts, "## When it runs", _when(check)])


def index(types: Mapping[str, type[Check]]) -> str:
    """The generated part of the list of all pages: a table for each system that check types come from."""
    parts = []
    for origin, title in _ORIGINS.items():
        rows = [_row(check) for check in types.values() if check.origin == origin]
        if rows:
            parts.append(f"### {title}\n\n" + "\n".join(["| type | in short |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def rewritten(text: str, generated: str, source: str, tool: str = "check_pages") -> str:
    """A page with its generated part replaced, or put before what is there already when there is none."""
    part = f"{BEGIN.format(source=source, tool=tool)}\n\n{generated}\n\n{END}\n"
    head, begin, rest = text.partition(BEGIN.partition("{")[0])
    _, end, tail = rest.partition(f"{END}\n")
    if not begin:
        return f"{part}\n{text}" if text else part
    if not end:
        raise ValueError(f"the generated part of {source} has no end: {END}")
    return f"{head}{part}{tail}"


def pages(folder: Path = PAGES) -> dict[Path, str]:
    """What every page should say, by its place."""
    types = check_types()
    found = {}
    for name, check in types.items():
        source = f"{check.__module__.replace('.', '/')}.py"
        found[folder / f"{name}.md"] = rewritten(_text(folder / f"{name}.md"), described(check), source)
    found[folder / "README.md"] = rewritten(_text(folder / "README.md"), index(types), "the check types")
    return found


def main() -> int:
    """Rewrite the pages that differ, and name them."""
    PAGES.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        if _text(path) != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(PAGES.parent.parent)}")
    return 0


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _aliases(check: type[Check]) -> Iterator[str]:
    own = check.__dict__.get("upgrade")
    told = " ".join((own.__func__.__doc__ or "").split()) if own is not None else ""
    if check.aliases:
        called = f"Also called {_list_of([f'`{alias}`' for alias in check.aliases])}."
        yield f"{called} {told}".strip()
    elif told:
        yield told


def _table(model: type[BaseModel], place: str = "") -> str:
    # Its own first: what it shares with others (the operators) is what a reader knows already.
    names = sorted(model.model_fields, key=lambda name: name not in model.__annotations__)
    return field_table(model, [name for name in names if name != "type"], place)


def _inner_models(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for place, inner in models_in(field.annotation, f"{above}{field.alias or name}"):
            yield place, inner
            yield from _inner_models(inner, f"{place}.")


def _when(check: type[Check]) -> str:
    field = check.model_fields.get("runs_in")
    if field is None:
        sentences = [f"It runs {_WHEN[check.phase]}."]
    else:
        chosen: list[dict[str, Any]] = [{"runs_in": one} for one in typing.get_args(field.annotation)]
        options = [(one["runs_in"], check.model_construct(**one).run_phase) for one in chosen]
        sentences = [f"With `runs_in: {one}` it runs {_WHEN[phase]}." for one, phase in options]
    limits = ["the invariant's `timeout`", *(["`timeout_s`"] if "timeout_s" in check.model_fields else [])]
    late = "fails" if check.late_fails else "is in error"
    sentences.append(f"Its time limit is {check.default_timeout:g} s, or {' or '.join(limits)}; past it, it {late}.")
    if check.skips_without_secrets:
        sentences.append("When a secret that it names can't be resolved, it is skipped.")
    return " ".join(sentences)


def _row(check: type[Check]) -> str:
    first = description(check).partition("\n")[0].partition(". ")[0].rstrip(".")
    names = " ".join(f"(`{alias}`)" for alias in check.aliases)
    return f"| [`{check.type_name}`]({check.type_name}.md){' ' if names else ''}{names} | {first}. |"


def _list_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


if __name__ == "__main__":
    sys.exit(main())
