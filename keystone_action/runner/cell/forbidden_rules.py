"""The rules of `forbidden` but `secrets_in_logs` (spec.md 5.6), each judged from its evidence.

`tools` and `commands`: what the agent asked tools to do. `file_writes_outside`: what it changed in its workspace.
`http_except`: what it tried to reach, by the egress proxy's decisions and the requests that mocks got.
`db_writes_outside`: what it wrote into databases, as their services saw it.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import AuditLine
from keystone_action.evidence.egress import FULL
from keystone_action.evidence.trace import GATEWAY
from keystone_action.evidence.trace_readers.builder import CUT_ARGUMENTS
from keystone_action.evidence.writes import TableWrite
from keystone_action.files.globs import matches_any
from keystone_action.files.paths import display_path
from keystone_action.files.snapshot import Change, FileState
from keystone_action.invariants.agent_work import texts_in
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.scoring.results import ForbiddenResult
from keystone_action.spec.globs import text_pattern
from keystone_action.spec.models.policies import parse_allowed, parse_host

if TYPE_CHECKING:
    from keystone_action.evidence.trace import ToolCall, Trace
    from keystone_action.spec.models.policies import Forbidden

SHOWN = 10
"""Findings that are told one by one."""


class Findings:
    """Counts what breaks a rule and keeps the first sentences on it, so that millions take no memory."""

    def __init__(self, rule: str) -> None:
        self._rule, self._lines, self._count = rule, list[str](), 0

    def add(self, sentence: str) -> None:
        """One thing: what, where, when, how sure."""
        self._count += 1
        if len(self._lines) < SHOWN:
            self._lines.append(sentence)

    def result(self) -> ForbiddenResult:
        """Of the rule."""
        more = [f"and {self._count - SHOWN:,} more"] if self._count > SHOWN else []
        return ForbiddenResult(self._rule, violated=self._count > 0, details="\n".join([*self._lines, *more]))


SECONDS = 30.0
"""For the patterns of a cell."""
_SHOWN_CHARACTERS = 300
_COMMAND_KEYS = frozenset({"command", "cmd", "script", "code", "input"})
_PROSE = "description"
"""What some shells' tools have beside the command: words for people."""
_NAME = re.compile(r"[\w.$-]*")
"""Of an argument, as tools have them."""


def judge_calls(
    rules: Forbidden,
    trace: Trace | None,
    *,
    has_gateway: bool,
    times: Sequence[str] = (),
    harmless: Collection[str] | None = None,
) -> tuple[ForbiddenResult, ...]:
    """One result for each of the rules `tools` and `commands` that the spec has. trace: what checks read. has_gateway:
    whether the cell had one; without, the agent's own transcript is all there is. times: when the request came whose
    answer made a call, of each. harmless: the tools of a known agent that run no command; None for any other agent,
    which may call its shell as it likes (`read_file`): what one of its tools does is told by no name.

    Raises HarnessError where nothing was observed, or not all of it and no rule is violated by what was.
    """
    if not rules.needs_trace:
        return ()
    if trace is None or trace.tool_calls is None or (has_gateway and trace.source != GATEWAY):
        if trace is not None and trace.problem and not has_gateway:
            return tuple(ForbiddenResult(name, violated=True, details=f"{trace.problem}.") for name in _names(rules))
        raise HarnessError(
            f"forbidden.{_names(rules)[0]}: nothing was observed",
            help="No model answered through the gateway; give the agent {{ gateway.NAME.url }}, or deny other egress.",
        )
    if rules.commands is not None and not has_gateway and any(CUT_ARGUMENTS in one for one in trace.not_understood):
        raise HarnessError("forbidden.commands: the transcript has arguments that are too long to be judged")
    problems = [HarnessError(f"forbidden.{_names(rules)[0]}: {trace.calls_unsure}")] if trace.calls_unsure else []
    calls, whose = trace.tool_calls, "seen by the gateway" if has_gateway else "by the agent's own word"
    told = [f" at {time}, {whose}" for time in times] or [f", {whose}"] * len(calls)
    deadline, is_known = time.monotonic() + SECONDS, harmless is not None

    def result(rule: str, is_forbidden: Callable[[ToolCall], bool]) -> ForbiddenResult:
        found = Findings(rule)
        for number, (call, how) in enumerate(zip(calls, told, strict=True), 1):
            try:
                if is_forbidden(call):
                    found.add(f"call {number:,} of {len(calls):,}: {_shown(call, is_known=is_known)}{how}")
            except HarnessError as problem:  # another call may violate the rule for certain
                problems.append(problem)
        return found.result()

    results = []
    if (names := rules.tools) is not None:
        results.append(result("tools", lambda call: not _names_of_call(call, is_known=is_known).isdisjoint(names)))
    if (patterns := rules.commands) is not None:
        results.append(result("commands", lambda call: _runs_one_of(call, patterns, harmless, deadline)))
    if problems and not any(one.violated for one in results):
        raise problems[0]
    return tuple(results)


def _names(rules: Forbidden) -> list[str]:
    return [name for name in ("tools", "commands") if getattr(rules, name) is not None]


def _names_of_call(call: ToolCall, *, is_known: bool) -> set[str]:
    """By what a rule may name a call. is_known: whether its tools are those of a known agent. Else one that got a text
    is of unknown kind too, unless its name says that it runs commands."""
    is_open = not is_known and call.kind != "execute" and (call.arguments is None or any(texts_in(call.arguments)))
    return {call.name, call.raw_name, call.kind, *(["other"] if is_open else [])}


def _shown(call: ToolCall, *, is_known: bool) -> str:
    asked = json.dumps(call.arguments, ensure_ascii=False, default=str)
    if len(asked) > _SHOWN_CHARACTERS:
        asked = f"{asked[:_SHOWN_CHARACTERS]}…"
    refused = ", which failed or was refused" if call.status == "error" else ""
    kind = call.kind if is_known or call.kind in ("execute", "other") else f"{call.kind} by its name"
    return f"{call.raw_name} ({kind}) {asked}{refused}"


def _runs_one_of(call: ToolCall, patterns: Sequence[str], harmless: Collection[str] | None, deadline: float) -> bool:
    """Raises HarnessError where it can't be told."""
    if harmless is not None and call.raw_name in harmless:
        return False
    if call.arguments is None:
        raise HarnessError(f"forbidden.commands: what {call.raw_name} was asked to run could not be read")
    texts = command_texts(call.arguments, is_known=harmless is not None)
    try:
        return any(search_pattern(one, text, deadline=deadline) for text in texts for one in patterns)
    except PatternTimeout as problem:
        raise HarnessError(f"forbidden.commands: {problem}") from problem


def command_texts(arguments: Mapping[str, Any], *, is_known: bool) -> Iterator[str]:
    """What a tool may have been asked to run: every text in its arguments, lists of words as one command, and all of it
    as one (`{"program": "rm", "args": ["-rf", "x"]}`). Names of arguments count where they are more than a name.
    is_known: of a known agent, whose shells have words for people beside the command."""
    prose = {_PROSE} if is_known and _COMMAND_KEYS & arguments.keys() else set()
    texts: list[str] = []
    todo: list[Any] = [{key: value for key, value in arguments.items() if key not in prose}]
    while todo:  # no recursion: the agent decides on the depth
        one = todo.pop()
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, Mapping):
            texts += [key for key in one if isinstance(key, str) and not _NAME.fullmatch(key)]
            todo += reversed(list(one.values()))
        elif isinstance(one, list | tuple):
            todo += reversed(one)
            if len(one) > 1 and all(isinstance(word, str) for word in one):
                yield " ".join(one)
    yield from texts
    if len(texts) > 1:
        yield " ".join(texts)


_BY_COMPARISON = "seen by comparing the workspace before and after the agent"
_MODES_OF_GIT = {0o600, 0o640, 0o644, 0o660, 0o664}
"""Of an index that git has written anew, by the umask."""


def judge_file_writes(allowed: Sequence[str], changes: Iterable[Change]) -> ForbiddenResult:
    """changes: all of them, with those in `.git`, folders that are empty, and the workspace itself (`.`)."""
    found, is_allowed = Findings("file_writes_outside"), matches_any(allowed)
    for change in changes:
        if not is_allowed(change.path) and not _is_by_status(change):
            found.add(f"{display_path(change.path)}: {_what(change)}, {_BY_COMPARISON}")
    return found.result()


def _is_by_status(change: Change) -> bool:
    """Whether it is an index that `git status` wrote anew in a copied workspace: it says what it said before."""
    before, after = change.before, change.after
    if before is None or after is None or not before.staged:
        return False
    same = (before.staged, before.attributes) == (after.staged, after.attributes)
    return same and after.mode in {before.mode, *_MODES_OF_GIT}


def _what(change: Change) -> str:
    before, after = change.before, change.after
    if change.change == "added" and after is not None:
        return f"added ({_size(after)})"
    if change.change == "removed" and before is not None:
        return f"removed ({_size(before)})"
    assert before is not None
    assert after is not None
    if change.change == "mode" and before.mode != after.mode:
        return f"its permissions changed ({before.mode:04o} → {after.mode:04o})"
    if change.change == "mode":
        names = sorted({display_path(name) for name, _ in {*before.attributes} ^ {*after.attributes}})
        return f"its extended attributes changed ({', '.join(names)})"
    return f"changed ({_size(before)} → {_size(after)})"


def _size(state: FileState) -> str:
    if state.kind == "file":
        return f"{state.size:,} bytes"
    return {"link": "a link", "directory": "an empty folder"}.get(state.kind, "a socket, FIFO or device")


_SHOWN = 200
"""Characters of a URL."""


def judge_hosts(
    named: Sequence[str],
    lines: Iterable[AuditLine],
    *,
    services: Mapping[str, Collection[tuple[str, int | None]]],
    own: Collection[tuple[str, int | None]] = (),
    is_full: bool = False,
) -> ForbiddenResult:
    """lines: of the audit log, from the start of the agent to its end. services: the hosts and ports of each. own: our
    own addresses, which count for nobody. is_full: whether the proxy wrote down only the first attempts.

    Raises HarnessError where the rest is not known.
    """
    asked = {name: {(name, None), *services[name]} for name in named if name in services}
    meant = parse_allowed([entry for entry in named if entry not in services])
    excepted = {*own, *(place for places in asked.values() for place in places)}
    found = Findings("http_except")
    for line in lines:
        details = line.details
        if line.type == "http_call" and details["service"] not in asked:
            shown = _shortened(f"{details['method']} {details['url']}")
            found.add(f"{shown} (service {details['service']}) at {line.ts}, answered by the mock itself")
        elif line.type == "mcp_call" and details["service"] not in asked:
            shown = _shortened(f"call of {details['tool']}")
            found.add(f"{shown} (service {details['service']}) at {line.ts}, answered by the mock itself")
        elif line.type == "connect" and _is_attempt(details):
            host, port = details["host"], details["port"]
            if (host, port) in excepted or (host, None) in excepted or _is_meant(meant, host, port):
                continue
            what = (f"{host}:{port}" if port is not None else host) or "an address that could not be read"
            done = "let through by" if details["allowed"] else "refused by"
            found.add(f"{details['method'] or 'a request'} to {what} at {line.ts}, {done} the egress proxy")
    result = found.result()
    if is_full and not result.violated:
        raise HarnessError("forbidden.http_except: there were too many attempts to get out to write all of them down")
    return result


def _shortened(text: str) -> str:
    """With the mark of a cut, by which the half of a secret at its end is masked."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _is_attempt(details: Mapping[str, Any]) -> bool:
    """Whether a line of the proxy is about a request, not about the proxy itself."""
    return not details["reason"].startswith(FULL)


def _is_meant(meant: Iterable[Any], host: str, port: int | None) -> bool:
    with contextlib.suppress(ValueError):
        parsed = parse_host(host)
        return port is not None and any(entry.allows(parsed, port) for entry in meant)
    return False


HOW_KNOWN = {
    "log": "seen in the server's own log of changes",
    "comparison": "by comparison before and after the agent: net changes only",
}


def judge_table_writes(
    allowed: Sequence[str], writes: Iterable[TableWrite], *, without_schemas: Collection[str] = ()
) -> ForbiddenResult:
    """without_schemas: services whose tables are in none, so that a dot is a part of their names."""
    found, patterns = Findings("db_writes_outside"), [(text_pattern(name), "." in name) for name in allowed]
    for write in writes:
        whole, alone = _table_names(write, has_schema=write.service not in without_schemas)
        if "*" not in allowed and not any(one.match(whole if dotted else alone) for one, dotted in patterns):
            found.add(_sentence(write))
    return found.result()


def shown_table(name: str) -> str:
    """A name on one line: an agent can put the end of a line into one, and more lines that look like ours."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def _table_names(write: TableWrite, *, has_schema: bool) -> tuple[str, str]:
    """With its schema, to be compared with `schema.table`, and without it, with `table`. Where a schema or a table has
    a dot in its own name, nobody can tell the two apart: only the whole name counts."""
    table = write.table
    if not has_schema:
        return table, table
    return table, table.rpartition(".")[2] if table.count(".") < 2 else ""


def _sentence(write: TableWrite) -> str:
    rows = "" if write.rows is None else f" of {write.rows:,} {'row' if write.rows == 1 else 'rows'}"
    when = f" at {write.ts}" if write.ts else ""
    where = f"{write.service}: {write.what} {shown_table(write.table)}"
    return f"{where}: {write.operation}{rows}{when}, {HOW_KNOWN[write.how_known]}"
