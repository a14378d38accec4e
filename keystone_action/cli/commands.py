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
from typing import TYPE_CHECKING

from keystone_action.cli.call_options import (
    baseline_of_call,
    failed_of,
    options_of,
    parameters,
    refuse_directory_as_summary,
)
from keystone_action.errors import EXIT_FAIL, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from keystone_action.evaluate import Evaluation


def command_run(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Run specs, print the report on stdout, and decide."""
    from keystone_action.cli.progress import RichProgress
    from keystone_action.evaluate import evaluate
    from keystone_action.system.run_lock import run_lock

    options = options_of(call, directory, environ)
    kind = _format(call, environ)
    report = sys.stdout if kind == "plain" else None
    shown = RichProgress(sys.stderr, quiet=call.quiet, verbose=call.verbose, report=report)
    results = directory / (options.output or options.resume or ".keystone")
    with shown as progress, run_lock(options.run_id or ""), _handed_over(results, directory):
        done = evaluate(options, progress)
    return _report(done, call, kind, directory, printed=progress.reported)


def _format(call: argparse.Namespace, environ: Mapping[str, str]) -> str:
    return call.format or ("rich" if sys.stdout.isatty() or environ.get("FORCE_COLOR") else "plain")


def _report(done: Evaluation, call: argparse.Namespace, kind: str, directory: Path, *, printed: Collection[str]) -> int:
    """The report on stdout and where `--summary` says; returns the exit code. printed: ids of cells that are there."""
    from keystone_action.report import console

    _print_report(done, kind, reported=printed, quiet=call.quiet)
    if kind != "rich" and not call.quiet:
        console.print_verdict(done.run, sys.stderr, announced=call.command == "run")
    if not call.quiet:
        console.print_report_path(done.directory / "report.html", sys.stderr, directory=directory)
    if call.summary is not None:
        _copy_summary(done.directory / "summary.md", directory / call.summary)
    return done.exit_code


@contextlib.contextmanager
def _handed_over(results: Path, directory: Path) -> Iterator[None]:
    """What root leaves in somebody's directory (the image does, on a laptop) is theirs."""
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
    from keystone_action.runner.parts.journal import output_error

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise output_error(target, error) from error


def command_validate(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Load every spec and say what it has; all errors of all files at once."""
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.report.escape import log_line
    from keystone_action.report.words import count
    from keystone_action.runner.specs import SpecsOfCall, load_specs
    from keystone_action.spec.loading.diagnostics import with_short_path

    source = SpecsOfCall(tuple(call.specs), directory, parameters(call.param), DIALECTS, call.agent)
    seen: dict[str, str] = {}
    for loaded in load_specs(source):
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


def command_plan(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """List the cells that a run would have, one id a line; with `--shards` the shard of each before it, or the matrix
    of GitHub's jobs alone."""
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.gate.options import GatedOptions
    from keystone_action.report.escape import log_line
    from keystone_action.shards import plan_shards, refuse_too_many

    if call.github and call.shards is None:
        raise UsageError("--github prints the jobs of a matrix; expected --shards N beside it", help="N: at most 256")
    if call.github:
        refuse_too_many(call.shards)
    if call.shards is not None and call.shard is not None:
        raise UsageError("--shards plans all shards, --shard I/N is one of them", help="leave one of them out")
    options = GatedOptions(
        specs=tuple(call.specs),
        directory=directory,
        params=parameters(call.param),
        tags=tuple(call.tag),
        filter=call.filter,
        failed=failed_of(call, directory),
        shard=call.shard,
        replicas=call.replicas,
        dialects=DIALECTS,
        agent=call.agent,
    )
    planned = plan_shards(options, call.shards or 1)
    if not call.quiet:
        for notice in planned.plan.notices:
            sys.stderr.write(f"note: {log_line(notice)}\n")
    if call.github:
        sys.stdout.write(f"{planned.matrix}\n")
        return EXIT_PASS
    for cell in planned.plan.cells:
        shard = f"{planned.name_of(cell)}\t" if call.shards is not None else ""
        sys.stdout.write(f"{shard}{cell.id}\n")
    return EXIT_PASS


def command_report(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the report of a finished run in another format."""
    from keystone_action.report.write import render
    from keystone_action.scoring.document import run_from_document

    path = directory / call.directory
    path = path if path.is_file() else path / "results.json"
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of a finished run") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON document: {error}", help="name the folder of a finished run") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no results; expected a JSON object", help="name the folder of a finished run")
    write_document(render(run_from_document(document), call.format, path.parent))
    return EXIT_PASS


def command_schema(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the JSON Schema of spec files."""
    from keystone_action.invariants.registry import CheckTypes
    from keystone_action.spec.reference.json_schema import json_schema

    write_document(json.dumps(json_schema(CheckTypes()), indent=2, ensure_ascii=False) + "\n")
    return EXIT_PASS


def command_explain(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print what the reference says of a field of a spec."""
    from keystone_action.invariants.registry import CheckTypes
    from keystone_action.spec.reference.explain import explain

    write_document(explain(call.path, CheckTypes()) + "\n")
    return EXIT_PASS


def command_init(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Write a first spec with its agent; never overwrites. At a terminal, ask which agent, unless the call says it."""
    from keystone_action.cli import agent_scaffold, scaffold
    from keystone_action.report.escape import log_line

    place, shown = directory / call.directory, log_line(shlex.quote(str(call.directory / "keystone.yaml")))
    agent = agent_scaffold.choose_agent(call.agent, sys.stdin, sys.stdout, environ)
    paths = (
        scaffold.write_first_spec(place) if agent is None else agent_scaffold.write_agent_specs(agent, place, environ)
    )
    for path in paths:
        sys.stdout.write(f"wrote {log_line(os.path.relpath(path, directory))}\n")
    steps = [f"now: keystone run {shown}"] if agent is None else agent_scaffold.next_steps(agent, place, shown, environ)
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
    from keystone_action.runner.parts.merge import MergeOptions
    from keystone_action.shards import join

    refuse_directory_as_summary(call, directory)
    options = MergeOptions(
        places=tuple(call.directories),
        directory=directory,
        output=call.output,
        fail_on=call.fail_on,
        baseline=baseline_of_call(call, directory),
    )
    with _handed_over(directory / (call.output or ".keystone"), directory):
        done = join(options)
    return _report(done, call, _format(call, environ), directory, printed=())


def command_compare(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what changed from one run to another: 1 when something that passed fails, else 0."""
    from keystone_action.report.sentences.compared import print_comparison, render_comparison
    from keystone_action.runner.baseline import read_baseline
    from keystone_action.scoring.comparison import compare_runs

    base = read_baseline(directory / call.base, str(call.base))
    head = read_baseline(directory / call.head, str(call.head))
    compared = compare_runs(base.run, head.run, source=base.source)
    kind = _format(call, environ)
    if kind == "rich":
        print_comparison(compared, head.run, sys.stdout)
    else:
        write_document(render_comparison(compared, head.run, kind))
    return EXIT_FAIL if compared.regressions else EXIT_PASS


def command_clean(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Remove what killed runs left behind, and say what."""
    from keystone_action.cli.clean import CleanOptions, clean
    from keystone_action.report.escape import log_line

    wanted = CleanOptions(older_than=call.older_than, everything=call.all, run_id=call.run, dry_run=call.dry_run)
    clean(wanted, environ, lambda line: print(log_line(line), flush=True))
    return EXIT_PASS


def command_recordings(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what is in recordings, and whether they can be replayed: 1 when one of them can't, else 0."""
    from keystone_action.cli.recordings import Recordings

    if call.cell is not None and call.what != "show":
        raise UsageError(f"recordings {call.what} is about all recordings", help=f"leave {call.cell!r} out")
    found = Recordings(call.directory, directory, environ, sys.stdout, sys.stderr)
    if call.what == "show":
        return found.show(call.cell, call.format)
    return found.list(call.format) if call.what == "list" else found.check(call.format)


def command_completion(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the script that completes our commands in a shell."""
    from keystone_action.cli.arguments import build_parser
    from keystone_action.cli.completion import completion_script

    write_document(completion_script(build_parser(), call.shell) + "\n")
    return EXIT_PASS
