"""The words of the command line (contract, section 2): parsed and checked, nothing done yet."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from keystone_action import __version__
from keystone_action.errors import UsageError

_EXITS = "Exit codes: 0 pass, 1 fail, 2 bad spec or call, 3 error (the harness, not the agent), 130 cancelled."


class _Parser(argparse.ArgumentParser):
    """argparse, with our sentence and exit code for bad calls."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(known)}{hint}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message + _suggestion(self, message), help=f"{self.prog} --help")


def _suggestion(parser: argparse.ArgumentParser, message: str) -> str:
    if "unrecognized arguments:" not in message:
        return ""
    word = message.rpartition("arguments: ")[2].split()[0].split("=")[0]
    near = difflib.get_close_matches(word, _options_of(parser), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    """All options, those of the commands too: it is the outermost parser that meets what nobody knows."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _options_of(command)
    return found


def _number(low: float, high: float, what: str, *, whole: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


_threshold = _number(0, 1, "a number from 0 to 1", whole=False)
_positive = _number(1, 10**6, "a whole number from 1", whole=True)
_retries = _number(0, 100, "a whole number from 0 to 100", whole=True)
_money = _number(0, 10**9, "an amount from 0", whole=False)


def parse_shard(text: str) -> tuple[int, int]:
    """`2/3` → (2, 3). Raises ArgumentTypeError unless 1 ≤ i ≤ N."""
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    raise argparse.ArgumentTypeError(f"{text!r} is not a shard: write i/N with 1 <= i <= N, such as 1/3")


def parse_parameter(text: str) -> tuple[str, str]:
    """`model=a` → ("model", "a"). Raises ArgumentTypeError without a name or `=`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name, value


def _duration(text: str) -> float:
    from pydantic_core import PydanticCustomError

    from keystone_action.spec.models.base import parse_duration

    try:
        return parse_duration(text)
    except PydanticCustomError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration like 90, 90s, 10m or 1h30m") from None


def _run_id(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no id of a run, such as 20260102-030405-a1b2c3")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="keystone",
        description="Decides whether an AI agent's change may be merged: services, sandbox, invariants, verdict.",
        epilog=_EXITS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keystone {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _run(commands)
    _validate(commands)
    _plan(commands)
    _merge(commands)
    _report(commands)
    _small(commands)
    _compare(commands)
    _recordings(commands)
    return parser


def _add(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False, epilog=_EXITS
    )
    parser.add_argument("--verbose", action="store_true", help="show tracebacks and details of errors")
    return parser


def _selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="spec files, directories or globs")
    parser.add_argument("--replicas", type=_positive, metavar="N", help="repetitions of each scenario")
    parser.add_argument(
        "--param", type=parse_parameter, action="append", default=[], metavar="K=V", help="set or pick a parameter"
    )
    parser.add_argument("--tag", action="append", default=[], metavar="T", help="only specs or scenarios with this tag")
    parser.add_argument("--filter", metavar="GLOB", help="only these spec, scenario or cell ids")
    parser.add_argument("--shard", type=parse_shard, metavar="I/N", help="only every N-th cell, from the I-th")
    _agent(parser)


def _agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="MODULE:CLASS", help="the adapter of AgenticAssure suites")


def _run(commands: Any) -> None:
    run = _add(commands, "run", "run specs and decide")
    _selection(run)
    run.add_argument("--output", type=Path, metavar="DIR", help="where results go [.keystone/runs/<time>-<id>]")
    run.add_argument("--threshold", type=_threshold, metavar="X", help="replaces every spec's pass_threshold")
    run.add_argument("--max-concurrency", type=_positive, metavar="N", help="cells at a time [cores]")
    run.add_argument("--sandbox", choices=("auto", "process", "docker"), default="auto", help="where agents run [auto]")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    run.add_argument("--retry-errors", type=_retries, metavar="N", help="tries more for a cell in error")
    _deciding(run)
    run.add_argument("--fail-on-skipped", action="store_true", help="a skipped check fails its cell")
    run.add_argument(
        "--fail-on-stale", action="store_true", help="a replay that is stale, or of a changed recording, fails its cell"
    )
    run.add_argument(
        "--gateway",
        choices=("live", "record", "replay"),
        help="what agents say to models goes through us; replaces gateway.mode",
    )
    run.add_argument("--max-cost-usd", type=_money, metavar="X", help="stop once agents and judges have cost so much")
    run.add_argument("--timeout", type=_duration, metavar="D", help="start no further cell after this long")
    run.add_argument(
        "--spec-from",
        choices=("head", "base"),
        default="head",
        help="which commit's specs run [head]; base: those of the merge base with the remote's default branch",
    )
    run.add_argument("--keep", action="store_true", help="keep the workspaces, and say where")
    _reporting(run)


def _deciding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", type=Path, metavar="PATH", help="results to compare with, or their folder")
    parser.add_argument(
        "--fail-on",
        choices=("threshold", "regression", "error", "never"),
        default="threshold",
        help="what exits with 1 [threshold]; regression: what passed in the baseline and fails; error, never: nothing",
    )


def _reporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--summary", type=Path, metavar="PATH", help="write summary.md there too")
    parser.add_argument(
        "--format", choices=("rich", "plain", "json"), help="of stdout [rich on a terminal, else plain]"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def _validate(commands: Any) -> None:
    validate = _add(commands, "validate", "check spec files, all errors at once")
    validate.add_argument("specs", nargs="+", metavar="SPEC", help="spec files, directories or globs")
    validate.add_argument(
        "--param", type=parse_parameter, action="append", default=[], metavar="K=V", help="a value of params"
    )
    _agent(validate)


def _plan(commands: Any) -> None:
    plan = _add(commands, "plan", "list the cells that a run would have")
    _selection(plan)
    plan.add_argument("--shards", type=_positive, metavar="N", help="in at most N shards: say of each cell in which")
    plan.add_argument("--github", action="store_true", help="print the matrix of these shards as GitHub takes it")


def _merge(commands: Any) -> None:
    merge = _add(commands, "merge", "join the results of shards into one verdict")
    merge.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="results of shards, or a folder with all of them"
    )
    merge.add_argument("--output", type=Path, metavar="DIR", help="where results go [.keystone/runs/<time>-<id>]")
    _deciding(merge)
    _reporting(merge)


def _report(commands: Any) -> None:
    report = _add(commands, "report", "print a run's report again")
    report.add_argument("directory", type=Path, metavar="DIR")
    report.add_argument("--format", choices=("md", "html", "junit", "json"), default="md")


def _small(commands: Any) -> None:
    init = _add(commands, "init", "write a first spec and agent")
    init.add_argument("directory", nargs="?", type=Path, default=Path(), metavar="DIR")
    init.add_argument("--agent", metavar="NAME", help="a known agent, such as claude-code: spec, workflow and example")
    _add(commands, "schema", "print the JSON Schema of spec files, for editors")
    _add(commands, "doctor", "say what this machine can do, and why not")
    _clean(commands)


def _clean(commands: Any) -> None:
    text = "remove what killed runs left: containers, networks, volumes, old setup images, temporary folders"
    which = _add(commands, "clean", text)
    which.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    only = which.add_mutually_exclusive_group()
    only.add_argument(
        "--older-than",
        type=_duration,
        default=3600.0,
        metavar="D",
        help="of runs elsewhere, of which only the age is known: when nothing of them is younger [1h]",
    )
    only.add_argument("--all", action="store_true", help="of runs that are still going too, and every setup image")
    only.add_argument("--run", type=_run_id, metavar="ID", help="of this run alone, going or not")


def _compare(commands: Any) -> None:
    compare = _add(commands, "compare", "say what changed from one run to another")
    compare.add_argument("base", type=Path, metavar="BASE", help="results of the earlier run, or their folder")
    compare.add_argument("head", type=Path, metavar="HEAD", help="results of the later run, or their folder")
    compare.add_argument(
        "--format", choices=("rich", "plain", "json"), help="of stdout [rich on a terminal, else plain]"
    )


def _recordings(commands: Any) -> None:
    recordings = _add(commands, "recordings", "show what models answered in recorded runs, and check the files")
    recordings.add_argument(
        "what", choices=("list", "show", "check"), help="all of them, one request by request, or whether they are whole"
    )
    recordings.add_argument("directory", type=Path, metavar="DIR", help="a folder with recordings, or a file")
    recordings.add_argument("cell", nargs="?", metavar="CELL", help="of show: whose recording, where there are several")
    recordings.add_argument("--format", choices=("plain", "json"), default="plain", help="of stdout [plain]")
