"""From the words of a call to what a run, a plan or a merge is asked to do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError

if TYPE_CHECKING:
    from keystone_action.gate.base_commit import BaseCommit
    from keystone_action.gate.options import GatedOptions
    from keystone_action.plan import FailedCells
    from keystone_action.scoring.soundness import Baseline


def options_of(call: argparse.Namespace, directory: Path, environ: Mapping[str, str]) -> GatedOptions:
    """What `keystone run` is asked. Raises UsageError for options that contradict each other, or name what is not
    there."""
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.gate.options import GatedOptions
    from keystone_action.system.run_lock import new_run_id

    if call.resume is not None and call.output is not None:
        _require_same(directory / call.resume, directory / call.output)
    if call.resume is not None and call.failed is not None:
        _require_another(directory / call.resume, directory / call.failed)
    refuse_directory_as_summary(call, directory)
    return GatedOptions(
        specs=tuple(call.specs),
        directory=directory,
        environ=environ,
        output=call.output,
        threshold=call.threshold,
        replicas=call.replicas,
        params=parameters(call.param),
        tags=tuple(call.tag),
        filter=call.filter,
        failed=failed_of(call, directory),
        max_concurrency=call.max_concurrency,
        sandbox=call.sandbox,
        shard=call.shard,
        resume=call.resume,
        retry_errors=call.retry_errors,
        fail_on=call.fail_on,
        fail_on_skipped=call.fail_on_skipped,
        fail_on_stale=call.fail_on_stale,
        gateway=call.gateway,
        timeout=call.timeout,
        max_cost_usd=call.max_cost_usd,
        keep=call.keep,
        verbose=call.verbose,
        run_id=new_run_id(),
        registry_mirror=_mirror(environ),
        user_logins=True,
        dialects=DIALECTS,
        agent=call.agent,
        baseline=baseline_of_call(call, directory),
        spec_from=call.spec_from,
        base=_base(call, directory),
        summary=None if call.summary is None else directory / call.summary,
    )


def _base(call: argparse.Namespace, directory: Path) -> BaseCommit | None:
    if call.spec_from == "head":
        return None
    from keystone_action.gate.base_commit import merge_base

    return merge_base(directory)


def failed_of(call: argparse.Namespace, directory: Path) -> FailedCells | None:
    """What `--failed` chooses. Raises UsageError."""
    if call.failed is None:
        return None
    from keystone_action.runner.parts.failed import read_failed

    return read_failed((directory / call.failed).resolve(), str(call.failed))


def baseline_of_call(call: argparse.Namespace, directory: Path) -> Baseline | None:
    """What `--baseline` names. Raises UsageError."""
    if call.baseline is None:
        return None
    from keystone_action.runner.baseline import read_baseline

    return read_baseline(directory / call.baseline, str(call.baseline))


def refuse_directory_as_summary(call: argparse.Namespace, directory: Path) -> None:
    """Before anything runs: afterwards there would be a verdict, and no place for its summary."""
    if call.summary is not None and (directory / call.summary).is_dir():
        raise UsageError(f"--summary {call.summary} is a directory", help=f"name a file: {call.summary / 'summary.md'}")


def _mirror(environ: Mapping[str, str]) -> str | None:
    from keystone_action.spec.registry_names import parse_mirror

    value = environ.get("KEYSTONE_REGISTRY_MIRROR", "").strip()
    mirror = parse_mirror(value)
    if value and mirror is None:
        raise UsageError(
            f"KEYSTONE_REGISTRY_MIRROR is {value!r}; expected a registry such as mirror.example:5000/hub",
            help="write no scheme but https://, and no user",
        )
    return mirror


def _require_same(resumed: Path, output: Path) -> None:
    if resumed.resolve() != output.resolve():
        raise UsageError(
            "--resume and --output name two directories", help="a resumed run goes on in its own: leave --output out"
        )


def _require_another(resumed: Path, failed: Path) -> None:
    folder = failed.parent if failed.name == "results.json" else failed
    if resumed.resolve() == folder.resolve():
        raise UsageError(
            "--resume and --failed name the same run: what failed there is finished, and would not run again",
            help="leave --resume out: the failed cells get a run, and results, of their own",
        )


def parameters(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """`--param` words as a mapping. Raises UsageError when a name comes twice with different values."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--param {name} is given twice, as {found[name]!r} and {value!r}")
    return found
