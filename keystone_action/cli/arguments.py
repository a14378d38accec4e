"""The words of the command line (contract, section 2): parsed and checked, nothing done yet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keystone_action import __version__
from keystone_action.cli.parser import Parser
from keystone_action.cli.values import (
    parse_count,
    parse_money,
    parse_parameter,
    parse_retries,
    parse_run_id,
    parse_shard,
    parse_threshold,
    parse_time,
)

_EXITS = "Exit codes: 0 pass, 1 fail, 2 bad spec or call, or nothing to run, 3 error (the harness, not the agent), \
130 cancelled."
FIRST_STEPS = """\
usage: keystone COMMAND [options]

  keystone init first   write a first spec and a small agent into the folder `first`
  keystone validate     check the specs of this folder; every error at once
  keystone run          run the specs of this folder and decide
  keystone report DIR   print the report of a finished run again
  keystone doctor       say what this machine can do, and what it lacks

`keystone help` lists all commands, `keystone help run` explains one.
"""
"""What those see who call `keystone` without a word."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="keystone",
        usage="keystone COMMAND [options]",
        description="Decides whether an AI agent's change may be merged: services, sandbox, invariants, verdict.",
        epilog=_EXITS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keystone {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parser.commands = commands.choices
    _run(commands)
    _validate(commands)
    _plan(commands)
    _merge(commands)
    _report(commands)
    _small(commands)
    _compare(commands)
    _recordings(commands)
    _completion(commands)
    _help(commands)
    return parser


def _add(commands: Any, name: str, text: str, arguments: str = "") -> Parser:
    """A new command. arguments: those without an option, as the usage line names them."""
    parser: Parser = commands.add_parser(
        name,
        help=text,
        prog=f"keystone {name}",
        usage=" ".join(filter(None, ["keystone", name, arguments, "[options]"])),
        description=text[0].upper() + text[1:] + ".",
        allow_abbrev=False,
        epilog=_EXITS,
    )
    parser.commands = commands.choices
    told = parser.add_mutually_exclusive_group()
    told.add_argument("-q", "--quiet", action="store_true", help="only what the command is asked for, and errors")
    told.add_argument(
        "-v", "--verbose", action="store_true", help="each step and its time, where files are, tracebacks of errors"
    )
    return parser


def _specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "specs", nargs="*", default=["."], metavar="SPEC", help="spec files, directories or globs [the directory .]"
    )


def _selection(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    parser.add_argument("--replicas", type=parse_count, metavar="N", help="repetitions of each scenario")
    parser.add_argument(
        "--param", type=parse_parameter, action="append", default=[], metavar="K=V", help="set or pick a parameter"
    )
    parser.add_argument("--tag", action="append", default=[], metavar="T", help="only specs or scenarios with this tag")
    parser.add_argument("--filter", metavar="GLOB", help="only these spec, scenario or cell ids")
    parser.add_argument(
        "--failed", type=Path, metavar="DIR", help="only cells that did not pass there: a run's folder, or results.json"
    )
    parser.add_argument("--shard", type=parse_shard, metavar="I/N", help="the I-th of N parts of the cells")
    _agent(parser)


def _agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="MODULE:CLASS", help="the adapter of AgenticAssure suites")


def _run(commands: Any) -> None:
    run = _add(commands, "run", "run specs and decide", "[SPEC …]")
    _selection(run)
    run.add_argument("--output", type=Path, metavar="DIR", help="where results go [.keystone/runs/<time>-<id>]")
    run.add_argument("--threshold", type=parse_threshold, metavar="X", help="replaces every spec's pass_threshold")
    run.add_argument("--max-concurrency", type=parse_count, metavar="N", help="cells at a time [cores]")
    run.add_argument("--sandbox", choices=("auto", "process", "docker"), default="auto", help="where agents run [auto]")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    run.add_argument("--retry-errors", type=parse_retries, metavar="N", help="tries more for a cell that broke")
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
    run.add_argument(
        "--max-cost-usd", type=parse_money, metavar="X", help="stop once agents and judges have cost so much"
    )
    run.add_argument("--timeout", type=parse_time, metavar="D", help="start no further cell after this long")
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
        metavar="RULE",
        help="what exits with 1 [threshold]; regression: what got worse than in the baseline; "
        "error: a failure beside which a check broke; never: nothing",
    )


def _reporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--summary", type=Path, metavar="PATH", help="write summary.md there too")
    parser.add_argument(
        "--format", choices=("rich", "plain", "json"), help="of stdout [rich on a terminal, else plain]"
    )


def _validate(commands: Any) -> None:
    validate = _add(commands, "validate", "check spec files, all errors at once", "[SPEC …]")
    _specs(validate)
    validate.add_argument(
        "--param", type=parse_parameter, action="append", default=[], metavar="K=V", help="a value of params"
    )
    _agent(validate)


def _plan(commands: Any) -> None:
    plan = _add(commands, "plan", "list the cells that a run would have", "[SPEC …]")
    _selection(plan)
    plan.add_argument("--shards", type=parse_count, metavar="N", help="in at most N shards: say of each cell in which")
    plan.add_argument("--github", action="store_true", help="print the matrix of these shards as GitHub takes it")


def _merge(commands: Any) -> None:
    merge = _add(commands, "merge", "join the results of shards into one verdict", "DIR …")
    merge.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="results of shards, or a folder with all of them"
    )
    merge.add_argument("--output", type=Path, metavar="DIR", help="where results go [.keystone/runs/<time>-<id>]")
    _deciding(merge)
    _reporting(merge)


def _report(commands: Any) -> None:
    report = _add(commands, "report", "print a run's report again", "DIR")
    report.add_argument("directory", type=Path, metavar="DIR", help="the folder of a finished run")
    report.add_argument("--format", choices=("md", "html", "junit", "json"), default="md", help="of stdout [md]")


def _small(commands: Any) -> None:
    init = _add(commands, "init", "write a first spec and agent", "[DIR]")
    init.add_argument("directory", nargs="?", type=Path, default=Path(), metavar="DIR", help="where to, may be new [.]")
    init.add_argument("--agent", metavar="NAME", help="a known agent, such as claude-code: spec, workflow and example")
    _add(commands, "schema", "print the JSON Schema of spec files, for editors")
    explain = _add(commands, "explain", "say what a field of a spec means", "[FIELD]")
    example = "such as agent.timeout or check.sql [the top level]"
    explain.add_argument("path", nargs="?", default="", metavar="FIELD", help=example)
    _add(commands, "doctor", "say what this machine can do, and why not")
    _clean(commands)


def _clean(commands: Any) -> None:
    text = "remove what killed runs left: containers, networks, volumes, old setup images, temporary folders"
    which = _add(commands, "clean", text)
    which.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    only = which.add_mutually_exclusive_group()
    only.add_argument(
        "--older-than",
        type=parse_time,
        default=3600.0,
        metavar="D",
        help="of runs elsewhere, of which only the age is known: when nothing of them is younger [1h]",
    )
    only.add_argument("--all", action="store_true", help="of runs that are still going too, and every setup image")
    only.add_argument("--run", type=parse_run_id, metavar="ID", help="of this run alone, going or not")


def _compare(commands: Any) -> None:
    compare = _add(commands, "compare", "say what changed from one run to another", "BASE HEAD")
    compare.add_argument("base", type=Path, metavar="BASE", help="results of the earlier run, or their folder")
    compare.add_argument("head", type=Path, metavar="HEAD", help="results of the later run, or their folder")
    compare.add_argument(
        "--format", choices=("rich", "plain", "json"), help="of stdout [rich on a terminal, else plain]"
    )


def _recordings(commands: Any) -> None:
    recordings = _add(
        commands,
        "recordings",
        "show what models answered in recorded runs, and check the files",
        "list|show|check DIR [CELL]",
    )
    recordings.add_argument(
        "what", choices=("list", "show", "check"), help="all of them, one request by request, or whether they are whole"
    )
    recordings.add_argument("directory", type=Path, metavar="DIR", help="a folder with recordings, or a file")
    recordings.add_argument("cell", nargs="?", metavar="CELL", help="of show: whose recording, where there are several")
    recordings.add_argument("--format", choices=("plain", "json"), default="plain", help="of stdout [plain]")


def _completion(commands: Any) -> None:
    completion = _add(commands, "completion", "print a script that completes commands in your shell", "bash|zsh|fish")
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="which the script is for: bash, zsh or fish"
    )


def _help(commands: Any) -> None:
    about = _add(commands, "help", "explain a command, or list all of them", "[COMMAND]")
    about.add_argument("about", nargs="?", choices=tuple(commands.choices), metavar="COMMAND", help="which [all]")
