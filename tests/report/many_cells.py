"""A run of many cells, with the files that they left, for the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.sample_parts import cell, check, run, spec

from keystone_action.scoring.aggregate import wilson
from keystone_action.scoring.results import CellResult, RunResult, SpecResult

MODELS = ("small", "large")
_TRACE: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("trace", 0.0, {"source": "gateway", "problem": "", "not_understood": []}),
    ("message", 0.4, {"role": "assistant", "text": "I will look at the tests first."}),
    (
        "tool_call",
        0.5,
        {"tool_call_id": "1", "raw_name": "Bash", "name": "bash", "kind": "execute", "input": {"command": "pytest -q"}},
    ),
    ("tool_result", 2.25, {"tool_call_id": "1", "status": "ok", "output": "F.\n1 failed, 1 passed"}),
    ("stop", 5.5, {"reason": "end_turn", "final_output": "All done."}),
)
_AUDIT: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "http_call",
        {
            "service": "mail",
            "method": "POST",
            "url": "http://mail/v1/send",
            "request_body": '{"to": "finance@shop.example"}',
            "status": 202,
            "response_body": "{}",
        },
    ),
    (
        "db_write",
        {"service": "db", "table": "public.orders", "operation": "update", "rows": 2, "how_known": "log"},
    ),
)
DIFF = """\
diff --git a/shop/refund.py b/shop/refund.py
--- a/shop/refund.py
+++ b/shop/refund.py
@@ -10,4 +10,4 @@ def refund(order):
     ledger = Ledger(order.customer)
-    ledger.book(-order.amount)
-    ledger.book(-order.amount)
+    ledger.book(-order.amount, reference=order.id)
     order.state = "refunded"
"""


def one_cell(spec_id: str, number: int, model: str, replica: int) -> CellResult:
    """Every third scenario fails with the large model, every tenth breaks; the rest passes."""
    fails, breaks = number % 3 == 0 and model == "large", number % 10 == 9
    tests = check(
        "tests_pass",
        "fail" if fails else "pass",
        gate=True,
        message=f"test_refund_{number} failed: 3 != 4" if fails else "exit code 0",
        details={"exit_code": int(fails)},
    )
    orders = check(
        "orders_refunded",
        type="sql",
        message="`db` answered 0.",
        details={"query": "SELECT id, state\nFROM orders", "columns": ["id", "state"], "found": [[1, "open"]]},
    )
    verdict = "error" if breaks else "fail" if fails else "pass"
    seconds = 1.0 + (number * 7 + replica) % 30 + (20 if model == "large" else 0)
    return cell(
        f"{spec_id}.refund-{number}.model-{model}.r{replica}",
        tests,
        orders,
        scenario=f"refund-{number}",
        params={"model": model},
        replica=replica,
        verdict=verdict,
        composite=None if breaks else 0.0 if fails else 0.9,
        reason="service db was not ready" if breaks else "gate tests_pass scored 0.00" if fails else "",
        error="service db was not ready" if breaks else None,
        duration_s=seconds,
        usage={"cost_usd": seconds / 1000, "input_tokens": 100, "output_tokens": 10, "tool_calls": 1, "requests": 2},
    )


def many_cells(*, scenarios: int, replicas: int = 1, specs: tuple[str, ...] = ("shop",)) -> RunResult:
    """So many scenarios of each spec, with two models."""
    return run(*(_spec(name, scenarios, replicas) for name in specs), verdict="error", composite=0.7, duration_s=600.0)


def _spec(name: str, scenarios: int, replicas: int) -> SpecResult:
    cells = [
        one_cell(name, number, model, replica)
        for number in range(scenarios)
        for model in MODELS
        for replica in range(replicas)
    ]
    graded = [one for one in cells if one.verdict != "error"]
    rate = wilson(sum(one.verdict == "pass" for one in graded), len(graded))
    return spec(name, *cells, verdict="error", composite=0.7, pass_rate=rate, groups=())


def leave_files(result: RunResult, directory: Path) -> None:
    """What each cell left, as a run writes it."""
    for one in result.specs:
        for left in one.cells:
            folder = directory / "cells" / left.id
            folder.mkdir(parents=True)
            trace = (
                {"seq": seq, "type": kind, "ts": f"2026-03-01T10:15:{at:09.6f}Z", "payload": payload}
                for seq, (kind, at, payload) in enumerate(_TRACE)
            )
            audit = (
                {"ts": f"2026-03-01T10:15:0{n}.000000Z", "type": k, "details": d} for n, (k, d) in enumerate(_AUDIT)
            )
            (folder / "trace.jsonl").write_text("".join(json.dumps(event) + "\n" for event in trace))
            (folder / "audit.jsonl").write_text("".join(json.dumps(event) + "\n" for event in audit))
            (folder / "diff.patch").write_text(DIFF)
            (folder / "agent.stdout").write_text("done\n")
