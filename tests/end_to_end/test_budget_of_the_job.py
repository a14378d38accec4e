"""`--max-cost-usd`: what a job may spend on agents and judges (contract, 5.6 "Budgets")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, keystone
from support.model_agents import behind, run, says, spec_of
from support.model_server import ModelServer, Reply, answer

ONE_REQUEST = "ask([user('go on')]); print('done')"
DEAR = says("done", tokens=(99_995, 1))
"""Half a dollar: five dollars for a million tokens that are asked, and twenty-five for those of the answer."""
REPLICAS = {"replicas": 3, "max_concurrency": 1}
SAID = {"output": "done", "tool_calls": [], "token_usage": {"input_tokens": 5, "cost_usd": 0.3}}
TELLS = f"print({json.dumps(json.dumps(SAID))})"


def spending(called: Called) -> list[Any]:
    return [cell["usage"]["spent_usd"] for cell in called.cells]


def test_no_further_cell_starts_once_it_is_spent(tmp_path: Path) -> None:
    with behind(*[DEAR] * 3) as (provider, environ):
        called = run(tmp_path, spec_of(ONE_REQUEST, parallelism=REPLICAS), environ, "--max-cost-usd", "0.60")
    assert called.code == 3, called.err + called.out
    assert [cell["verdict"] for cell in called.cells][2] == "error"
    assert called.cells[2]["error"] == "not run: stopped at $1.00 of $0.60"
    assert (len(provider.asked), spending(called)) == (2, [0.5, 0.5, 0])
    assert called.document["usage"]["spent_usd"] == pytest.approx(1.0)
    assert "max-cost-usd: stopped at $1.00 of $0.60; not run: 1 of 3 cells" in called.document["notices"]


ENDLESS = """
print("done", flush=True)
while True:
    status, answer = ask([user("go on")])
    if status != 200:
        sys.exit(answer["error"]["message"])
"""


def test_a_cell_that_it_cuts_is_an_error_and_no_failure(tmp_path: Path) -> None:
    with behind(DEAR) as (provider, environ):
        called = run(tmp_path, spec_of(ENDLESS), environ, "--max-cost-usd", "1.20")
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "max-cost-usd: stopped at $1.50 of $1.20" in cell["error"]
    assert (len(provider.asked), spending(called)) == (3, [1.5])


def test_a_model_without_a_price_is_refused_under_it(tmp_path: Path) -> None:
    script = 'status, answer = ask([user("hi")], model="our-own")\nprint("done", status, answer["error"]["message"])'
    with behind(DEAR) as (provider, environ):
        called = run(tmp_path, spec_of(script), environ, "--max-cost-usd", "1")
    said = called.cells[0]["agent"]["output"]
    assert said == "done 400 the model our-own has no price; add one to gateway.prices\n"
    assert provider.asked == []


def test_a_resumed_run_has_spent_what_it_spent_before(tmp_path: Path) -> None:
    with behind(says("done", tokens=(59_995, 1))) as (_, environ):
        called = run(tmp_path, spec_of(ONE_REQUEST, parallelism=REPLICAS), environ, "--max-cost-usd", "0.50")
        assert [cell["verdict"] for cell in called.cells] == ["pass", "pass", "error"]
        again = resume(tmp_path, "0.60", environ)
        assert (again.code, again.cells[2]["error"]) == (3, "not run: stopped at $0.60 of $0.60")
        done = resume(tmp_path, "0.61", environ)
    assert (done.code, spending(done)) == (0, pytest.approx([0.3, 0.3, 0.3]))
    assert done.document["usage"]["spent_usd"] == pytest.approx(0.9)


def resume(folder: Path, limit: str, environ: dict[str, str]) -> Called:
    (folder / "out" / "results.json").unlink()
    words = ("run", "keystone.yaml", "--resume", "out", "--max-cost-usd", limit)
    return keystone(*words, directory=folder, environ=environ)


def test_what_an_error_cost_stays_spent_when_it_is_run_again(tmp_path: Path) -> None:
    """A judge that breaks makes the cell an error; agent and judge were paid all the same."""
    checks = {"good": {"check": {"type": "llm_as_judge", "criteria": "Is it good?", "model": "claude-opus-4-8"}}}
    spec = spec_of(TELLS, agent={"output": {"json": "stdout"}}, invariants=checks, gateway="off")
    bad, good = Reply("no score", usage=(10_000, 0)), Reply(answer(1.0).text, usage=(10_000, 0))
    with ModelServer([bad] * 3 + [good]) as server:
        environ = server.environ()
        called = run(tmp_path, spec, environ)
        assert (called.code, called.document["judge_usage"]["cost_usd"]) == (3, pytest.approx(0.15))
        (called.output / "results.json").unlink()
        done = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path, environ=environ)
    assert done.code == 0, done.err
    assert done.document["usage"]["spent_usd"] == pytest.approx(0.6)
    assert done.document["judge_usage"]["cost_usd"] == pytest.approx(0.2)
    (cell,) = done.cells
    assert cell["attempts"] == 2
    assert cell["notices"][0].startswith("run once before it was resumed: check good broke: ")
    assert " passed (2 tries): 1 of 1 check" in done.err


def test_judges_count_and_one_that_is_not_paid_for_makes_an_error(tmp_path: Path) -> None:
    checks = {
        name: {"check": {"type": "llm_as_judge", "criteria": f"Is it {name}?", "model": "claude-opus-4-8"}}
        for name in ("good", "short")
    }
    checks["unpriced"] = {"check": {"type": "llm_as_judge", "criteria": "Is it?", "model": "openai:our-own"}}
    with ModelServer([Reply(answer(1.0).text, usage=(100_000, 0))] * 2) as server:
        called = run(tmp_path, spec_of(TELLS, invariants=checks), server.environ(), "--max-cost-usd", "0.50")
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert called.checks["good"]["status"] == "pass"
    assert (called.checks["short"]["status"], called.checks["short"]["message"]) == (
        "error",
        "The judge failed: stopped at $0.50 of $0.50.",
    )
    assert called.checks["unpriced"]["status"] == "skip"
    assert "our-own has no price" in called.checks["unpriced"]["message"]
    assert len(server.requests) == 1


def test_it_needs_the_gateway(tmp_path: Path) -> None:
    refused = run(tmp_path, spec_of("", gateway="off"), {}, "--max-cost-usd", "1")
    assert refused.code == 2
    assert "--max-cost-usd needs what `gateway: off` switches off" in refused.err
