"""What each command of the command line does; each returns the exit code."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.cli.arguments import (
    CleanArguments,
    CompareArguments,
    CompletionArguments,
    ExplainArguments,
    InitArguments,
    RecordingsArguments,
    ReportArguments,
    arguments_of,
    build_parser,
    options_of,
)
from keystone_action.errors import EXIT_FAIL, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from keystone_action.gate.change_base import ChangeBase
    from keystone_action.options.model import Options
    from keystone_action.runs import Evaluation


def command_run(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Run specs, print the report on stdout, and decide."""
    from keystone_action.cli.progress import RichProgress
    from keystone_action.runs import evaluate
    from keystone_action.system.run_lock import new_run_id, run_lock

    run_id = new_run_id()
    options = options_of(call, directory, environ).having(run_id=run_id)
    base = _base(options)
    kind = _format(options.reports.format, environ)
    report = sys.stdout if kind == "plain" else None
    shown = RichProgress(sys.stderr, quiet=call.quiet, verbose=call.verbose, report=report)
    results = directory / (options.reports.output or options.running.resume or ".keystone")
    with shown as progress, run_lock(run_id), _handed_over(results, directory):
        done = evaluate(options, base, progress)
    return _report(done, options, kind, quiet=call.quiet, printed=progress.reported, announced=True)


def _base(options: Options) -> ChangeBase:
    """Which commit's specs run, where they are not those of the checkout. Raises UsageError."""
    from keystone_action.gate.change_base import NO_BASE, ChangeBase

    if options.cells.spec_from == "head":
        return NO_BASE
    from keystone_action.gate.base_commit import merge_base

    return ChangeBase(merge_base(options.caller.directory))


def _format(asked: str | None, environ: Mapping[str, str]) -> str:
    return asked or ("rich" if sys.stdout.isatty() or environ.get("FORCE_COLOR") else "plain")


def _report(
    done: Evaluation, options: Options, kind: str, *, quiet: bool, printed: Collection[str], announced: bool
) -> int:
    """The report on stdout and where `--summary` says; returns the exit code. printed: ids of cells that are there.
    announced: the run was told of while it went on."""
    from keystone_action.report import console

    _print_report(done, kind, reported=printed, quiet=quiet)
    if kind != "rich" and not quiet:
        console.print_verdict(done.run, sys.stderr, announced=announced)
    if not quiet:
        console.print_report_path(done.directory / "report.html", sys.stderr, directory=options.caller.directory)
    if options.reports.summary_copy is not None:
        _copy_summary(done.directory / "summary.md", options.reports.summary_copy)
    return done.exit_code


@contextlib.contextmanager
def _handed_over(results: Path, directory: Path) -> Iterator[None]:
    """Give what root leaves in a user's directory, as the image does on a laptop, to that user."""
    from keystone_action.files.copies import hand_over, missing_folders

    made = missing_folders(results, directory)
    try:
        yield
    finally:
        if os.geteuid() == 0 and directory.stat().st_uid != 0 and results.is_relative_to(directory):
            hand_over([results, *made], directory)


def _print_report(done: Evaluation, kind: str, *, reported: Collection[str], quiet: bool) -> None:
    from keystone_action.report import console

    if kind == "rich":
        console.print_table(done.run, sys.stdout, summary=done.directory / "summary.md", brief=quiet)
    elif kind == "json":
        from keystone_action.report.write import render

        write_document(render(done.run, "json"))
    else:
        sys.stdout.write(console.plain(done.run, reported=reported))
    sys.stdout.flush()


def write_document(text: str) -> None:
    """Print a document that is UTF-8 by its format, even if the terminal has another encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")
    sys.stdout.write(text)


def _copy_summary(source: Path, target: Path) -> None:
    from keystone_action.runner.journal.journal import output_error

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise output_error(target, error) from error


def command_validate(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Load every spec and say what it has; all errors of all files at once."""
    from keystone_action.report.escape import log_line
    from keystone_action.report.words import count
    from keystone_action.runner.specs import load_specs
    from keystone_action.spec.loading.diagnostics import with_short_path

    seen: dict[str, str] = {}
    for loaded in load_specs(options_of(call, directory, environ)):
        for warning in () if call.quiet else loaded.warnings:
            sys.stderr.write(f"warning: {with_short_path(warning, directory).render()}\n")
        spec, path = loaded.spec, Path(loaded.path)
        shown = path.relative_to(directory) if path.is_relative_to(directory) else path
        other = seen.setdefault(spec.id, str(shown))
        if other != str(shown) and not call.quiet:
            both = log_line(f"{other} and {shown} have the same id, {spec.id}")
            sys.stderr.write(f"warning: {both}: one run can't have both, since results are joined on the id\n")
        names = {*spec.invariants, *(name for scenario in loaded.scenarios for name in scenario.invariants)}
        counts = f"{count(len(loaded.scenarios), 'scenario')}, {count(len(names), 'invariant')}"
        sys.stdout.write(f"{log_line(str(shown))}: {spec.id}: valid, {counts}\n")
        if call.verbose:
            for name, invariant in spec.invariants.items():
                sys.stderr.write(f"  {log_line(name)}: {getattr(invariant.check, 'type', '')}\n")
            for file in sorted(loaded.author_files):
                sys.stderr.write(f"  file: {log_line(os.path.relpath(file, directory))}\n")
    return EXIT_PASS


def command_plan(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """List the cells that a run would have, one id a line; with `--shards` the shard of each before it, or the matrix
    of GitHub's jobs alone."""
    from keystone_action.gate.change_base import NO_BASE
    from keystone_action.report.escape import log_line
    from keystone_action.runs import plan_shards

    options = options_of(call, directory, environ)
    jobs = options.jobs
    if jobs.matrix and jobs.shards is None:
        raise UsageError("--github prints the jobs of a matrix; expected --shards N beside it", help="N: at most 256")
    if jobs.shards is not None and options.cells.shard is not None:
        raise UsageError("--shards plans all shards, --shard I/N is one of them", help="leave one of them out")
    planned = plan_shards(options, NO_BASE)
    if not call.quiet:
        for notice in planned.plan.notices:
            sys.stderr.write(f"note: {log_line(notice)}\n")
    if jobs.matrix:
        sys.stdout.write(f"{planned.matrix}\n")
        return EXIT_PASS
    for cell in planned.plan.cells:
        shard = f"{planned.name_of(cell)}\t" if jobs.shards is not None else ""
        sys.stdout.write(f"{shard}{cell.id}\n")
    return EXIT_PASS


def command_report(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the report of a finished run in another format."""
    from keystone_action.report.write import render
    from keystone_action.scoring.document import RESULTS_FILE, run_from_document

    asked = arguments_of(call, ReportArguments)
    path = directory / asked.directory
    path = path if path.is_file() else path / RESULTS_FILE
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of a finished run") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a JSON document: {error}", help="name the folder of a finished run") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no results; expected a JSON object", help="name the folder of a finished run")
    write_document(render(run_from_document(document), asked.format, path.parent))
    return EXIT_PASS


def command_schema(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the JSON Schema of spec files."""
    from keystone_action.invariants.registry import CheckTypes
    from keystone_action.spec.format_reference import json_schema

    write_document(json.dumps(json_schema(CheckTypes()), indent=2, ensure_ascii=False) + "\n")
    return EXIT_PASS


def command_explain(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print what the reference says of a field of a spec."""
    from keystone_action.invariants.registry import CheckTypes
    from keystone_action.spec.format_reference import explain_field

    write_document(explain_field(arguments_of(call, ExplainArguments).path, CheckTypes()) + "\n")
    return EXIT_PASS


def command_init(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Write a first spec with its agent; never overwrites. At a terminal, ask which agent, unless the call says it."""
    from keystone_action.cli import scaffold
    from keystone_action.report.escape import log_line

    asked = arguments_of(call, InitArguments)
    place, shown = directory / asked.directory, log_line(shlex.quote(str(asked.directory / "keystone.yaml")))
    agent = scaffold.choose_agent(asked.agent, sys.stdin, sys.stdout, environ)
    paths = scaffold.write_first_spec(place) if agent is None else scaffold.write_agent_specs(agent, place, environ)
    for path in paths:
        sys.stdout.write(f"wrote {log_line(os.path.relpath(path, directory))}\n")
    steps = [f"now: keystone run {shown}"] if agent is None else scaffold.next_steps(agent, place, shown, environ)
    for line in () if call.quiet else steps:
        sys.stdout.write(f"{line}\n")
    return EXIT_PASS


def command_doctor(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Say what this machine can do, and why not."""
    from keystone_action.cli.doctor import examine

    for finding in examine(environ):
        if call.quiet and finding.mark == "ok":
            continue
        sys.stdout.write(f"{finding.mark} {finding.what}: {finding.found}\n")
    return EXIT_PASS


def command_merge(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Join the results of shards, print the report on stdout, and decide."""
    from keystone_action.runs import join

    options = options_of(call, directory, environ)
    with _handed_over(directory / (options.reports.output or ".keystone"), directory):
        done = join(options)
    kind = _format(options.reports.format, environ)
    return _report(done, options, kind, quiet=call.quiet, printed=(), announced=False)


def command_compare(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what changed from one run to another: 1 when something that passed fails, else 0."""
    from keystone_action.report.sentences.compared import print_comparison, render_comparison
    from keystone_action.runner.journal.earlier_runs import read_baseline
    from keystone_action.scoring.comparison import compare_runs

    asked = arguments_of(call, CompareArguments)
    base, head = (read_baseline(directory / path, str(path)) for path in (asked.base, asked.head))
    compared = compare_runs(base.run, head.run, source=base.source)
    kind = _format(asked.format, environ)
    if kind == "rich":
        print_comparison(compared, head.run, sys.stdout)
    else:
        write_document(render_comparison(compared, head.run, kind))
    return EXIT_FAIL if compared.regressions else EXIT_PASS


def command_clean(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Remove what killed runs left behind, and say what."""
    from keystone_action.cli.clean import clean
    from keystone_action.report.escape import log_line

    clean(arguments_of(call, CleanArguments), environ, lambda line: print(log_line(line), flush=True))
    return EXIT_PASS


def command_recordings(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what is in recordings, and whether they can be replayed: 1 when one of them can't, else 0."""
    from keystone_action.cli.recordings import Recordings

    asked = arguments_of(call, RecordingsArguments)
    if asked.cell is not None and asked.what != "show":
        raise UsageError(f"recordings {asked.what} is about all recordings", help=f"leave {asked.cell!r} out")
    found = Recordings(asked.directory, directory, environ, sys.stdout, sys.stderr)
    if asked.what == "show":
        return found.show(asked.cell, asked.format)
    return found.list(asked.format) if asked.what == "list" else found.check(asked.format)


def command_completion(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the script that completes our commands in a shell."""
    # was an import of itself

    asked = arguments_of(call, CompletionArguments)
    write_document(completion_script(build_parser(), asked.shell) + "\n")
    return EXIT_PASS


_CELLS = "keystone plan --quiet 2>/dev/null | head -n 1000"
"""Asked by the script behind `--filter`, and only there: nothing of ours starts at each key press. Ids of cells hold
letters, digits, dots and dashes alone, so no shell finds anything in them to run."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that teaches bash, zsh or fish our commands, options and what they take."""
    import shtab

    files: Any = {
        "SPEC": shtab.glob("*.yaml", "*.yml"),
        "DIR": shtab.DIRECTORY,
        "BASE": shtab.DIRECTORY,
        "HEAD": shtab.DIRECTORY,
        "PATH": shtab.FILE,
        "GLOB": shtab.cmd(_CELLS),
    }
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in files:
            action.complete = files[action.metavar]  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
