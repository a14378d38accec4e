"""How an agent worked: which tools it called, and what it spent.

Matchers of tool calls are `{kind, name, raw_name, path_glob, args}`, and a call must fit each key (spec.md 1.7). What
was spent is known as far as it was observed: dollars, tokens, tool calls, seconds.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from keystone_action.evidence.model import Evidence
from keystone_action.evidence.trace import ToolCall, ToolKind
from keystone_action.invariants.comparison import describe, equal
from keystone_action.spec.globs import path_text_pattern
from keystone_action.spec.limits import MOST_COUNTED
from keystone_action.spec.models.fields import StrictModel

PATH_LIMIT = 4096
"""Characters of the longest text that is looked at as a path: no system opens a longer one."""
_LINK_INSIDE = "/workspace"
"""Where agents in containers may know their workspace as well."""
_SHOWN = 120

NonEmpty = Annotated[str, Field(min_length=1)]


class ToolMatcher(StrictModel):
    """Which tool calls are meant: those for which all keys hold. A matcher without keys means every call."""

    kind: ToolKind | None = None
    """What the tool does; its name does not count.

    Example: `execute`
    """
    name: NonEmpty | None = None
    """The portable name of the tool; case-sensitive.

    Example: `bash`
    """
    raw_name: NonEmpty | None = None
    """The name in the agent's own protocol; case-sensitive.

    Example: `Bash`
    """
    path_glob: NonEmpty | None = None
    """Some text anywhere in the arguments matches, as it is or relative to the workspace. `*` crosses directories,
    `**/` may be nothing.

    Example: `"src/**"`
    """
    args: dict[str, Any] | None = None
    """Every argument listed is there and equal: numbers by value, never a boolean or a text with a number. Further
    arguments don't matter.

    Example: `{command: ls}`
    """

    def matches(self, call: ToolCall, workspace: Path) -> bool:
        """Whether a call is meant."""
        return self.fits_name(call) and self.fits_arguments(call, workspace)

    def fits_arguments(self, call: ToolCall, workspace: Path) -> bool:
        """Whether a call is meant as far as its arguments tell. One whose arguments could not be read has none."""
        if self.args is not None and argument_problem(self.args, call.arguments) is not None:
            return False
        return self.path_glob is None or _has_path(call.arguments, self.path_glob, workspace)

    def fits_name(self, call: ToolCall) -> bool:
        """Whether a call is meant as far as its kind and names tell."""
        return (
            self.kind in (None, call.kind) and self.name in (None, call.name) and self.raw_name in (None, call.raw_name)
        )

    def can_tell(self, call: ToolCall) -> bool:
        """Whether `matches` is sure: not where what it asks of arguments could not be read."""
        asks = self.args is not None or self.path_glob is not None
        return not (asks and call.arguments is None and self.fits_name(call))

    def unseen_arguments(self, calls: Iterable[ToolCall]) -> tuple[str, ...]:
        """Names in `args` that no call had of those that fit by kind and name; none where there is no such call."""
        fitting = [call.arguments or {} for call in calls if self.fits_name(call)]
        return tuple(name for name in self.args or {} if fitting and not any(name in one for one in fitting))

    def __str__(self) -> str:
        keys = self.model_dump(exclude_none=True)
        shown = ", ".join(f"{key}: {describe_short(value)}" for key, value in keys.items())
        return f"{{{shown}}}" if keys else "any tool"


def argument_problem(wanted: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> str | None:
    """The first of the arguments wanted that is not there or differs, without a full stop; None when all hold."""
    if arguments is None:
        return "its arguments could not be read" if wanted else None
    for name, value in wanted.items():
        if name not in arguments:
            return f"{name} is missing"
        if not equal(value, arguments[name]):
            return f"{name}: expected {describe_type(value)}, found {describe_type(arguments[name])}"
    return None


def describe_type(value: object) -> str:
    """A value with its type; a sentence's part even for one that is nested too deep to write down."""
    try:
        return describe(value, limit=_SHOWN)
    except RecursionError:
        return "a value that is nested too deep to show"


def describe_short(value: object) -> str:
    """A value of a matcher, without its type."""
    return value if isinstance(value, str) else describe_type(value).rpartition(" (")[0]


def shown_calls(calls: Sequence[ToolCall], *, limit: int = 8) -> str:
    """The names of calls in their order: `read, write, bash and 7 more`; `none`."""
    names = [one.name if len(one.name) <= _SHOWN else one.name[: _SHOWN - 1] + "…" for one in calls[:limit]]
    more = f" and {len(calls) - limit:,} more" if len(calls) > limit else ""
    return f"{', '.join(names)}{more}" or "none"


def _has_path(arguments: Mapping[str, Any] | None, glob: str, workspace: Path) -> bool:
    pattern = path_text_pattern(glob)
    paths = (path for text in texts_in(arguments) if len(text) <= PATH_LIMIT for path in _spellings(text, workspace))
    return any(pattern.match(path) for path in paths)


def _spellings(text: str, workspace: Path) -> Iterator[str]:
    """The text, and as the path it may be: without detours, and relative to the workspace."""
    yield text
    if not text:
        return
    path = posixpath.normpath(text)
    if path != text:
        yield path
    for root in (str(workspace), _LINK_INSIDE):
        if path.startswith(f"{root}/"):
            yield path[len(root) + 1 :]


def texts_in(value: object) -> Iterator[str]:
    """Every text in a value at any depth (a stack, not recursion: the agent decides on the depth), keys left out."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            todo.extend(one.values())
        elif isinstance(one, list | tuple):
            todo.extend(one)


Metric = Literal["cost_usd", "tokens", "tool_calls", "seconds"]
WORDS: Mapping[Metric, str] = {
    "cost_usd": "cost in US dollars",
    "tokens": "tokens",
    "tool_calls": "tool calls",
    "seconds": "seconds",
}


@dataclass(frozen=True, slots=True)
class CellSpending:
    """What one cell spent."""

    amounts: Mapping[Metric, float]
    """Each is finite and at least 0. A metric that was not observed is missing."""
    problem: str = ""
    """Why the trace that was declared can't be used, without a full stop; then only `seconds` is known."""
    unsure: str = ""
    """Why the number of tool calls is not certain; empty where it is."""

    def of(self, metric: Metric) -> float | None:
        """The amount, None when it was not observed."""
        return self.amounts.get(metric)


def measure_spending(evidence: Evidence) -> CellSpending:
    """What was spent. Seconds are ours and always there; the others are what the trace tells."""
    trace = evidence.observed
    problem = trace.problem if trace is not None else ""
    found: dict[Metric, float | None] = {"seconds": evidence.agent.duration_s}
    if trace is not None and not problem:
        found |= {
            "cost_usd": trace.usage.cost_usd,
            "tokens": trace.usage.tokens,
            "tool_calls": None if trace.tool_calls is None else len(trace.tool_calls),
        }
    known = {metric: amount for metric, amount in found.items() if amount is not None}
    for metric, amount in known.items():
        if not 0 <= amount < MOST_COUNTED:
            malformed = f"the trace is malformed: expected a finite number of at least 0 as {WORDS[metric]}"
            return CellSpending({"seconds": evidence.agent.duration_s}, malformed)
    return CellSpending(known, problem, trace.calls_unsure if trace is not None else "")


def is_at_most(amount: float, limit: float) -> bool:
    """At or under a limit; sums of cents that differ in their last bit only are equal."""
    return amount <= limit or math.isclose(amount, limit, rel_tol=1e-9)


def shown_amount(amount: float) -> str:
    """`12,000`, `0.3`, `0.000125`."""
    if amount == int(amount):
        return f"{int(amount):,}"
    text = f"{amount:,.6f}".rstrip("0")
    return text if text.strip("0.,") else f"{amount:g}"
