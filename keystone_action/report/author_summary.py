"""The summary by a template of the workflow's own, which extends ours by its blocks.

It may take any time and memory: call it in a process that can be stopped.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from keystone_action.report.ladder import SUMMARY_LIMIT, Level, fit
from keystone_action.report.summary import TEMPLATE, levels, summary_variables
from keystone_action.report.templating import author_markdown_environment
from keystone_action.scoring.document import run_to_document
from keystone_action.scoring.results import RunResult

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

MAX_PRINTED = 64 * SUMMARY_LIMIT
"""Characters; what prints more is taken for a loop that does not end, rather than cut."""
HIDDEN = "<!-- keystone-action "
"""How the hidden lines of our comments begin (report/comment/history.py)."""
VARIABLES = frozenset(
    {
        *(
            "again",
            "baseline",
            "everything",
            "facts",
            "gate",
            "headline",
            "icon",
            "max_open",
            "max_passed",
            "misleading",
            "prompts",
        ),
        *("notes", "notes_left_out", "reasons", "reasons_left_out", "report", "result", "run", "spec_rows"),
        *("spec_rows_left_out", "specs", "terms"),
    }
)
"""What every block is given. run: the document of results.json."""
OURS = "verdict"
"""The block that says what a change does to its own gate, and the verdict: a change that brings its own template could
hide both in it."""
_OF_SPECS = frozenset({"item", "loop", "several", "spec"})
"""What the blocks inside of `spec` have besides."""


class TemplateProblem(Exception):  # noqa: N818 - it is not ours
    """A sentence about a template, with its file and, where it is known, its line."""


def check_template(text: str, name: str) -> None:
    """Raises TemplateProblem for what is wrong before there are results: syntax, names, blocks, filters."""
    from jinja2 import TemplateSyntaxError

    if HIDDEN in text:
        raise _problem(name, _line_of(text, HIDDEN), f"`{HIDDEN}…` is how Keystone marks its comments; leave it out")
    environment = author_markdown_environment(text, name)
    try:
        tree = environment.parse(text, name, name)
        _check_names(environment, tree, name)
        environment.get_template(name)
    except TemplateSyntaxError as error:
        raise _problem(name, error.lineno, error.message or "the syntax is wrong") from error
    except RecursionError:
        raise _problem(name, None, "it is nested too deeply") from None


def render_author_summary(text: str, name: str, run: RunResult, limit: int = SUMMARY_LIMIT) -> str:
    """The summary in at most `limit` bytes, as `render_summary` cuts its own. Raises TemplateProblem."""
    from keystone_action.report.author_environment import kept_apart

    check_template(text, name)
    environment = author_markdown_environment(text, name)
    template = environment.get_template(name)
    document = run_to_document(run)
    tried: list[Level] = []

    def render(level: Level) -> Iterator[str]:
        tried.append(level)
        return kept_apart(template.generate(summary_variables(run, level), run=document))

    first = _verdict(run)
    try:
        rendered = fit(lambda level: _keeping(first, render(level)), limit, levels(run))
        ends = tried[-1] != "failures" or _ends(render("failures"))
    except MemoryError:
        raise
    except _VerdictLost:
        raise _problem(
            name, None, "what it printed does not begin with the verdict, which stays Keystone's own"
        ) from None
    except Exception as error:
        raise _problem(name, _line_in(error, name), _sentence(error)) from error
    if not ends:
        raise _problem(name, None, f"it prints more than {MAX_PRINTED >> 20} MiB; a summary has room for one")
    if HIDDEN in rendered:
        raise _problem(name, None, f"what it printed holds `{HIDDEN}…`, which is how Keystone marks its comments")
    return rendered


class _VerdictLost(Exception):  # noqa: N818 - it is not ours
    pass


def _verdict(run: RunResult) -> str:
    """What every summary begins with: ours, with every other block empty."""
    names = [name for name in _blocks() if name != OURS]
    bare = f'{{% extends "{TEMPLATE}" %}}' + "".join(f"{{% block {name} %}}{{% endblock %}}" for name in names)
    environment = author_markdown_environment(bare, "")
    return environment.get_template("").render(summary_variables(run, "failures"))


def _blocks() -> list[str]:
    """The names of the blocks of our template."""
    from jinja2 import nodes

    environment = author_markdown_environment("", "")
    source, _, _ = environment.loader.get_source(environment, TEMPLATE)  # type: ignore[union-attr]
    return [block.name for block in environment.parse(source).find_all(nodes.Block)]


def _keeping(first: str, pieces: Iterator[str]) -> Iterator[str]:
    """The pieces, without blank ones at first, as long as they begin with what they must. `check_template` knows of no
    template that loses it; this is for those that nobody thought of. Raises _VerdictLost."""
    left = first
    for piece in pieces:
        if left == first and not piece.strip():
            continue
        seen, left = left[: len(piece)], left[len(piece) :]
        if not piece.startswith(seen):
            raise _VerdictLost
        yield piece
    if left:
        raise _VerdictLost


def _ends(pieces: Iterator[str]) -> bool:
    return not any(printed > MAX_PRINTED for printed in accumulate(map(len, pieces)))


def _check_names(environment: Environment, tree: nodes.Template, name: str) -> None:
    from jinja2 import meta, nodes

    extended = list(tree.find_all(nodes.Extends))
    if not (len(extended) == 1 and extended[0] in tree.body and _constant(extended[0].template) == TEMPLATE):
        line = extended[0].lineno if extended else 1
        raise _problem(name, line, f'a summary template extends ours: begin with {{% extends "{TEMPLATE}" %}}')
    for node in tree.body[: tree.body.index(extended[0])]:
        if _prints(node):
            raise _problem(name, node.lineno, f'nothing is printed before {{% extends "{TEMPLATE}" %}}: use the blocks')
    source, _, _ = environment.loader.get_source(environment, TEMPLATE)  # type: ignore[union-attr]
    base = environment.parse(source)
    blocks = [block.name for block in base.find_all(nodes.Block)]
    for block in tree.find_all(nodes.Block):
        if block.name == OURS:
            raise _problem(
                name, block.lineno, f"the block {OURS} stays Keystone's own; say what you have to say in head"
            )
        if block.name not in blocks:
            raise _problem(name, block.lineno, _unknown("block", block.name, [one for one in blocks if one != OURS]))
    # What a template sets outside of its blocks holds in ours too.
    for one in sorted(_given_names(tree) & (VARIABLES | _imported_names(base))):
        raise _problem(name, None, f"{one} is a name of Keystone's own; give yours another one")
    known = VARIABLES | _OF_SPECS | set(environment.globals) | _given_names(base) | _given_names(tree)
    for one in sorted(meta.find_undeclared_variables(tree) - known):
        places = (node.lineno for node in tree.find_all(nodes.Name) if node.name == one)
        raise _problem(name, next(places, None), _unknown("name", one, sorted(VARIABLES | _OF_SPECS)))


def _prints(node: nodes.Node) -> bool:
    """Whether a statement can print. Jinja prints what stands before `extends`, above all of ours."""
    from jinja2 import nodes

    if isinstance(node, nodes.Output):
        return any(not isinstance(one, nodes.TemplateData) or bool(one.data.strip()) for one in node.nodes)
    return not isinstance(node, nodes.Assign | nodes.AssignBlock | nodes.Macro | nodes.Import | nodes.FromImport)


def _given_names(tree: nodes.Template) -> set[str]:
    """Names that a template itself sets or imports, wherever it does."""
    from jinja2 import nodes

    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx in ("store", "param")}
    names |= {node.name for node in tree.find_all(nodes.Macro)} | {node.target for node in tree.find_all(nodes.Import)}
    return names | _imported_names(tree)


def _imported_names(tree: nodes.Template) -> set[str]:
    from jinja2 import nodes

    imported = (one for node in tree.find_all(nodes.FromImport) for one in node.names)
    return {one if isinstance(one, str) else one[1] for one in imported}


def _constant(node: nodes.Expr) -> Any:
    return getattr(node, "value", None)


def _unknown(kind: str, found: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(found, known, n=1)
    return f"there is no {kind} {found}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")


def _line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def _line_in(error: BaseException, name: str) -> int | None:
    """Where the template was, as Jinja rewrites tracebacks."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return lines[-1] if lines else getattr(error, "lineno", None)


def _sentence(error: Exception) -> str:
    message = " ".join(str(error).split())[:300] or type(error).__name__
    return message if type(error).__module__.startswith("jinja2") else f"{type(error).__name__}: {message}"


def _problem(name: str, line: int | None, message: str) -> TemplateProblem:
    return TemplateProblem(f"{name}:{line}: {message}" if line else f"{name}: {message}")
