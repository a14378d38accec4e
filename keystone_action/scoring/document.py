"""Results as JSON documents and back: what `results.json` and the lines of `journal.jsonl` hold.

Pure: a document is made of dict, list, str, int, float, bool and None only. Keys come in the order of the contract
(section 3), keys of our own after them. Neither NaN nor an infinity ever gets out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from keystone_action.errors import UsageError
from keystone_action.scoring.results import (
    SCHEMA_VERSION,
    AgentResult,
    BaselineComparison,
    CellResult,
    Difference,
    ForbiddenResult,
    GroupResult,
    InvariantResult,
    PlanInfo,
    RunResult,
    SandboxInfo,
    SpecChange,
    SpecChanges,
    SpecResult,
)

Result = TypeVar("Result")
Document = dict[str, Any]

COUNTS = ("scenarios", "cells", "passed", "failed", "errors", "skipped_checks")
USAGE = ("input_tokens", "output_tokens", "cost_usd", "tool_calls")
_MAX_DEPTH = 64
_MAX_INTEGER_BITS = 4096  # above some 14,000 bits Python itself refuses to read an integer back


def run_to_document(run: RunResult) -> Document:
    """The document of `results.json`. Raises ValueError when a score, weight, composite or time is no finite number:
    that is a defect of ours, and a report must not paper over it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "keystone_version": run.keystone_version,
        "git_sha": run.git_sha,
        "run_id": run.run_id,
        "verdict": run.verdict,
        "composite": _finite(run.composite, "composite"),
        "started_at": run.started_at,
        "duration_s": _finite(run.duration_s, "duration_s"),
        "counts": _amounts(run.counts, COUNTS),
        "usage": _amounts(run.usage, USAGE),
        "sandbox": sandbox_to_document(run.sandbox),
        "judge_usage": _amounts(run.judge_usage, ("cost_usd",)),
        "specs": [_spec(spec) for spec in run.specs],
        "notices": _texts(run.notices),
        "substituted": _texts(run.substituted),
        "cancelled": run.cancelled,
        "error": _text(run.error),
        "plan": None if run.plan is None else _plan(run.plan),
        "spec_changes": None if run.spec_changes is None else _spec_changes(run.spec_changes),
        "baseline": None if run.baseline is None else _baseline(run.baseline),
    }


def cell_to_document(cell: CellResult) -> Document:
    """One finished cell, as in `specs[].cells[]` and in a line of the journal. Raises ValueError as run_to_document."""
    return {
        "id": _text(cell.id),
        "scenario": _text(cell.scenario),
        "params": json_value(cell.params),
        "replica": cell.replica,
        "verdict": cell.verdict,
        "composite": _finite(cell.composite, "composite"),
        "duration_s": _finite(cell.duration_s, "duration_s"),
        "error": _text(cell.error),
        "agent": None if cell.agent is None else _agent(cell.agent),
        "invariants": [_invariant(invariant) for invariant in cell.invariants],
        "forbidden": [_forbidden(rule) for rule in cell.forbidden],
        "reason": _text(cell.reason),
        "usage": _amounts(cell.usage),
        "judge_usage": _amounts(cell.judge_usage),
        "attempts": cell.attempts,
        "notices": _texts(cell.notices),
    }


def run_from_document(document: Mapping[str, Any]) -> RunResult:
    """The inverse of run_to_document. Raises UsageError for another schema_version and for anything malformed."""
    require_schema_version(document)
    return _read(_runs(), {**document, "specs": _specs_to_read(document.get("specs"))}, "the results")


def cell_from_document(document: Mapping[str, Any]) -> CellResult:
    """The inverse of cell_to_document. Raises UsageError for anything malformed. A cell has no schema_version of its
    own: whoever wrote it says it once, in the run's document or the journal's first line."""
    return _read(_cells(), document, "the results of a cell")


def sandbox_to_document(sandbox: SandboxInfo) -> Document:
    """What isolated an agent, as in `sandbox` and in a line of the journal."""
    return {
        "kind": sandbox.kind,
        "isolation": _texts(sandbox.isolation),
        "limits": sandbox.limits,
        "not_enforced": _texts(sandbox.not_enforced),
    }


def sandbox_from_document(document: Mapping[str, Any]) -> SandboxInfo:
    """The inverse of sandbox_to_document. Raises UsageError for anything malformed."""
    return _read(_sandboxes(), document, "what isolated a cell")


def require_schema_version(document: Mapping[str, Any]) -> None:
    """Refuse, with UsageError, what another version of the format wrote."""
    found = document.get("schema_version")
    if isinstance(found, bool) or found != SCHEMA_VERSION:
        raise UsageError(
            f"schema_version: expected {SCHEMA_VERSION}, found {json.dumps(found, default=str)}",
            help="These results were written by another version of Keystone; read them with that one, or run again.",
        )


def json_value(value: Any, *, depth: int = _MAX_DEPTH) -> Any:
    """value as JSON has it, whatever it is: what JSON can't hold (NaN, bytes, dates, lone surrogates, endless
    nesting) becomes text. Check authors and agents decide what arrives here."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INTEGER_BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_text(str(key)): json_value(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item, depth=depth - 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return _text(str(value))


def _spec(spec: SpecResult) -> Document:
    return {
        "id": _text(spec.id),
        "path": _text(spec.path),
        "sha256": spec.sha256,
        "threshold_source": spec.threshold_source,
        "verdict": spec.verdict,
        "composite": _finite(spec.composite, "composite"),
        "pass_threshold": _finite(spec.pass_threshold, "pass_threshold"),
        "pass_rate": None if spec.pass_rate is None else _pass_rate(spec.pass_rate),
        "cells": [cell_to_document(cell) for cell in spec.cells],
        "groups": [_group(group) for group in spec.groups],
        "description": _text(spec.description),
        "replica_aggregation": spec.replica_aggregation,
        "positions": {_text(name): line for name, line in spec.positions.items()},
    }


def _specs_to_read(specs: Any) -> Any:
    """The same specs with pass_rate as the triple that SpecResult has; anything unexpected is left for the reader."""
    if not isinstance(specs, list):
        return specs
    return [_spec_to_read(spec) for spec in specs]


def _spec_to_read(spec: Any) -> Any:
    rate = spec.get("pass_rate") if isinstance(spec, Mapping) else None
    if not isinstance(rate, Mapping):
        return spec
    return {**spec, "pass_rate": [rate.get("value"), rate.get("low"), rate.get("high")]}


def _pass_rate(rate: tuple[float, float, float]) -> Document:
    return {name: _finite(part, f"pass_rate.{name}") for name, part in zip(("value", "low", "high"), rate, strict=True)}


def _group(group: GroupResult) -> Document:
    return {
        "scenario": _text(group.scenario),
        "params": json_value(group.params),
        "verdict": group.verdict,
        "composite": _finite(group.composite, "composite"),
        "passed": group.passed,
        "total": group.total,
        "reason": _text(group.reason),
    }


def _agent(agent: AgentResult) -> Document:
    return {
        "exit_code": agent.exit_code,
        "timed_out": agent.timed_out,
        "duration_s": _finite(agent.duration_s, "agent.duration_s"),
        "output": _text(agent.output),
        "stderr": _text(agent.stderr),
        "signal": agent.signal,
        "note": _text(agent.note),
    }


def _invariant(invariant: InvariantResult) -> Document:
    return {
        "name": _text(invariant.name),
        "type": _text(invariant.type),
        "status": invariant.status,
        "score": _finite(invariant.score, f"the score of {invariant.name}"),
        "weight": _finite(invariant.weight, f"the weight of {invariant.name}"),
        "gate": invariant.gate,
        "message": _text(invariant.message),
        "details": json_value(invariant.details),
        "duration_s": _finite(invariant.duration_s, f"the duration of {invariant.name}"),
        "description": _text(invariant.description),
        "on_skip": invariant.on_skip,
        "disqualified": invariant.disqualified,
    }


def _forbidden(rule: ForbiddenResult) -> Document:
    return {"rule": _text(rule.rule), "violated": rule.violated, "details": _text(rule.details)}


def _plan(plan: PlanInfo) -> Document:
    specs = {_text(spec_id): sha256 for spec_id, sha256 in plan.specs.items()}
    chosen = _texts(plan.chosen)
    return {"shard": plan.shard, "cells": plan.cells, "digest": plan.digest, "specs": specs, "chosen": chosen}


def _spec_changes(changes: SpecChanges) -> Document:
    return {
        "base": _text(changes.base),
        "base_name": _text(changes.base_name),
        "spec_from": changes.spec_from,
        "specs": [_spec_change(one) for one in changes.specs],
        "problem": _text(changes.problem),
        "workflows": [_spec_change(one) for one in changes.workflows],
        "incomplete": _text(changes.incomplete),
    }


def _spec_change(change: SpecChange) -> Document:
    return {"path": _text(change.path), "change": change.change, "differences": _texts(change.differences)}


def _baseline(baseline: BaselineComparison) -> Document:
    return {
        "source": _text(baseline.source),
        "verdict": baseline.verdict,
        "composite": _finite(baseline.composite, "the baseline's composite"),
        "git_sha": _text(baseline.git_sha),
        "started_at": _text(baseline.started_at),
        "specs": [_difference(one) for one in baseline.specs],
        "groups": [_difference(one) for one in baseline.groups],
        "invariants": [_difference(one) for one in baseline.invariants],
        "changed_specs": _texts(baseline.changed_specs),
        "partial": baseline.partial,
        "partial_baseline": baseline.partial_baseline,
        "regressions": baseline.regressions,
    }


def _difference(one: Difference) -> Document:
    document: Document = {field.name: getattr(one, field.name) for field in fields(one)}
    for name, value in document.items():
        if isinstance(value, str):
            document[name] = _text(value)
        elif isinstance(value, float):
            document[name] = _finite(value, f"{name} of {one.spec}")
    return {**document, "params": json_value(one.params)}


def _amounts(amounts: Mapping[str, float], always: tuple[str, ...] = ()) -> Document:
    """Counters by name, the contract's first and never missing. Tokens and calls are whole numbers, money is not."""
    document: Document = {name: 0.0 if name.endswith("_usd") else 0 for name in always}
    for name, amount in amounts.items():
        number = _finite(amount, name)
        whole = isinstance(number, float) and number.is_integer() and not name.endswith("_usd")
        document[_text(name)] = int(number) if whole and number is not None else number
    return document


def _finite(number: float | None, what: str) -> float | None:
    if number is not None and not math.isfinite(number):
        raise ValueError(f"{what} is {number}: a result must be a finite number")
    return number


def _texts(texts: tuple[str, ...]) -> list[Any]:
    return [_text(text) for text in texts]


def _text(text: str | None) -> Any:
    """text as UTF-8 can carry it: a lone surrogate (undecodable bytes of a file name) becomes a question mark."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _runs() -> TypeAdapter[RunResult]:
    return TypeAdapter(RunResult)


@cache
def _cells() -> TypeAdapter[CellResult]:
    return TypeAdapter(CellResult)


@cache
def _sandboxes() -> TypeAdapter[SandboxInfo]:
    return TypeAdapter(SandboxInfo)


def _read(adapter: TypeAdapter[Result], document: Mapping[str, Any], what: str) -> Result:
    try:
        # Strict JSON mode takes lists for tuples and nothing else that is not what it should be.
        return adapter.validate_json(json.dumps(document, allow_nan=False), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        found = json.dumps(first["input"], default=str)[:80]
        raise _malformed(what, f"{where}: {first['msg'].lower()}, found {found}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise _malformed(what, f"not JSON: {error}") from None


def _malformed(what: str, why: str) -> UsageError:
    return UsageError(
        f"can't read {what}: {why}", help="The file was changed or cut short; run again to get a new one."
    )
