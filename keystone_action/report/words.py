"""Numbers, verdicts and times in words, for every report."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from keystone_action.errors import PROGRAM_EXIT_CODES
from keystone_action.scoring.composite import show_score

if TYPE_CHECKING:
    from keystone_action.scoring.results import AgentResult, InvariantResult, SandboxInfo

CANCELLED_ICON = "⏹️"
ICONS = {"pass": "✅", "fail": "❌", "flaky": "⚠️", "error": "💥", "skip": "➖"}
TITLES = {"pass": "Passed", "fail": "Failed", "flaky": "Passed, but flaky", "error": "Error"}
ISOLATION = {
    "user": "a user of its own",
    "landlock": "Landlock",
    "container": "a container",
    "none": "nothing",
}
EGRESS = {
    "container": "the network of its container",
    "namespace": "a network namespace",
    "ports": "ports, as far as this machine can",
}

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)", re.ASCII)
_AT_A_LIMIT = re.compile(r"was stopped at a limit \((?:\w+: )?(.*)\)", re.DOTALL)


def score(value: float | None, *, beside: float | None = None) -> str:
    """A score or composite as the reasons in results have it; a dash when there is none. beside: what it is compared
    with, so that both are told apart."""
    return "–" if value is None else show_score(value, beside=beside)


def weight(value: float) -> str:
    """A weight without needless zeros."""
    return f"{value:g}"


def percent(value: float) -> str:
    """A share of one as a whole percentage."""
    return f"{value:.0%}"


def duration(seconds: float) -> str:
    """A time as people say it: `0.42 s`, `12 s`, `3 min 20 s`, `1 h 2 min`."""
    if 0 < seconds < 0.001:
        return "less than 0.001 s"
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def moment(text: str) -> str:
    """A time as results have it, to the minute: `2026-03-01 10:15 UTC`; any other text as it is."""
    found = _MOMENT.fullmatch(text)
    return f"{found[1]} {found[2]} UTC" if found else text


def count(number: int, noun: str) -> str:
    """`1 cell`, `1,200 cells`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def agent(result: AgentResult) -> str:
    """How the agent ended, as a sentence."""
    after = f"after {duration(result.duration_s)}"
    if result.stopped is not None:
        limit = "budget" if result.stopped == "budget" else f"limit on {result.stopped}"
        sentence = f"The agent was stopped by its {limit} {after}"
    elif result.timed_out:
        sentence = f"The agent was stopped by its time limit {after}"
    elif result.signal is not None:
        sentence = f"The agent was ended by signal {_signal(result.signal)} {after}"
    elif result.exit_code is None:
        sentence = f"The agent ended {after}"
    else:
        meaning = PROGRAM_EXIT_CODES.get(result.exit_code)
        said_so = f" ({meaning})" if meaning else ""
        sentence = f"The agent ended with exit code {result.exit_code}{said_so} {after}"
    # What the runner's note says of the end ("exited with 1") says nothing that is not said yet.
    said = {f"exited with {result.exit_code}", "timed out", f"was killed by signal {result.signal}"}
    parts = [part for part in result.note.rstrip(".").split("; ") if part not in said]
    parts += [result.failure] if result.failure else []
    note = "; ".join(_AT_A_LIMIT.sub(r"\1", part) if result.stopped else part for part in parts)
    return f"{sentence}: {note}." if note else f"{sentence}."


def stopped(result: AgentResult | None) -> str:
    """That a limit ended the agent, or why its run failed whatever the exit code, as the beginning of a sentence;
    empty where neither is so."""
    if result is not None and result.stopped is None and result.failure:
        return result.failure
    if result is None or result.stopped is None:
        return ""
    return f"the agent {result.note.partition('; ')[0] or f'was stopped by its limit on {result.stopped}'}"


def _signal(number: int) -> str:
    """`9 (SIGKILL)`; the number alone where the platform has no name for it."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def gate(result: InvariantResult) -> str:
    """What kind of gate an invariant is; empty for none."""
    if result.gate is False:
        return ""
    return "gate, passed is enough" if result.gate == "passed" else "gate"


def sandbox(info: SandboxInfo) -> str:
    """What isolated the agents, as a part of a sentence."""
    by = " and ".join(ISOLATION.get(name, name) for name in info.isolation) or "nothing"
    kind = "Docker sandbox" if info.kind == "docker" else "process sandbox"
    egress = f", egress denied by {EGRESS[info.egress]}" if info.egress is not None else ""
    return f"{kind}: isolated by {by}, limits {info.limits}{egress}"
