"""AgenticAssure suites as they are, by `keystone run scenarios/` (spec.md 5.5): configuration, adapters, tags, time
limits, retries and fail_fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import Called, keystone
from support.suites import adapter, answering, run_suite, write_files

from keystone_action.spec.plan import shard_of

TWO = "scenarios:\n  - {name: one, input: a, tags: [smoke]}\n  - {name: two, input: b}\n"


def verdicts(called: Called) -> dict[str, str]:
    return {cell["scenario"]: cell["verdict"] for cell in called.cells}


def test_a_directory_of_suites_with_the_configuration_above_it(tmp_path: Path) -> None:
    files = answering({"a": {"output": "x"}, "b": {"output": ""}})
    files["scenarios/more/other.yaml"] = "suite: {name: More}\nscenarios: [{name: three, input: a}]\n"
    called = run_suite(tmp_path, TWO, files)
    assert called.code == 1, called.err
    assert [spec["id"] for spec in called.document["specs"]] == ["more", "suite"]
    assert verdicts(called) == {"three": "pass", "one": "pass", "two": "fail"}
    assert called.document["composite"] == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("agent", ["my_agent:MyAgent", "my_agent.MyAgent"])
def test_the_calls_agent(tmp_path: Path, agent: str) -> None:
    files = answering({"a": {"output": "x"}, "b": {"output": "x"}})
    del files["agenticassure.yaml"]
    assert run_suite(tmp_path, TWO, files, "--agent", agent).code == 0


def test_without_an_adapter_nothing_is_green(tmp_path: Path) -> None:
    """The original ends with 0; so it does where the adapter can't be found."""
    called = run_suite(tmp_path, TWO, {})
    assert (called.code, called.out) == (2, "")
    assert "scenarios/suite.yaml:1:1: nothing says which agent this suite is for" in called.err
    called = run_suite(tmp_path, TWO, {"agenticassure.yaml": "adapter: my_agent.MyAgent"})
    assert called.code == 2
    assert "there is no module my_agent" in called.err


def test_a_directory_without_suites_is_no_pass(tmp_path: Path) -> None:
    write_files(tmp_path, {"scenarios/compose.yaml": "services: {}", **answering({})})
    called = keystone("run", "scenarios/", directory=tmp_path)
    assert (called.code, "no spec found" in called.err) == (2, True)


def test_a_tag_chooses_and_one_that_nothing_has_is_no_pass(tmp_path: Path) -> None:
    files = answering({"a": {"output": "x"}})
    assert verdicts(run_suite(tmp_path / "1", TWO, files, "--tag", "smoke")) == {"one": "pass"}
    assert run_suite(tmp_path / "2", TWO, files, "--tag", "smoek").code == 2


def test_validate_and_plan_know_suites(tmp_path: Path) -> None:
    write_files(tmp_path, {"scenarios/suite.yaml": TWO, **answering({})})
    assert "suite: valid, 2 scenarios" in keystone("validate", "scenarios", directory=tmp_path).out
    assert keystone("plan", "scenarios", directory=tmp_path).out == "suite.one.r0\nsuite.two.r0\n"


def test_an_adapter_that_raises_fails_its_scenario_with_what_it_said(tmp_path: Path) -> None:
    body = 'if input == "b":\n    raise RuntimeError("the model is down")\nreturn AgentResult(output="fine")'
    called = run_suite(tmp_path, TWO, adapter(body))
    assert (called.code, verdicts(called)) == (1, {"one": "pass", "two": "fail"})
    failed = called.cells[1]
    assert (failed["composite"], failed["attempts"]) == (0.0, 1)
    assert "RuntimeError: the model is down" in failed["reason"]
    assert "RuntimeError: the model is down" in failed["invariants"][0]["message"]


NO_ANSWERS = [
    "return AgentResult(output=None)",
    "return None",
    "return AgentResult(output='x', tool_calls=[{'arguments': {}}])",
    "import os; os._exit(0)",
    "raise SystemExit(0)",
    "return {'output': 3}",
    "open('.keystone-result-1', 'w').write('{\"output\": \"hello\"}')",
    'print(\'{"output": "hello"}\')',
]


def test_what_is_no_answer_earns_nothing(tmp_path: Path) -> None:
    """002: 'An agent that returns "", None, or a whitespace-only string will fail this check.'"""
    body = "\n".join(f'if input == "{number}":\n    {what}' for number, what in enumerate(NO_ANSWERS))
    asked = {"scorers": ["passfail", "regex", "exact"], "expected_output": "hello"}
    scenarios = [
        {"name": f"a{number}", "input": str(number), "metadata": {"regex_pattern": "|hello"}, **asked}
        for number in range(len(NO_ANSWERS))
    ]
    called = run_suite(tmp_path, json.dumps({"scenarios": scenarios}), adapter(body))
    assert (called.code, called.document["verdict"]) == (1, "fail"), called.err
    assert not called.has_traceback
    found = {
        NO_ANSWERS[int(cell["scenario"][1:])]: {cell["verdict"], *(check["status"] for check in cell["invariants"])}
        for cell in called.cells
    }
    assert found == {what: {"fail"} for what in NO_ANSWERS}


def test_nobody_but_the_scenarios_input_reaches_the_adapter(tmp_path: Path) -> None:
    """Braces are braces, the context is None, and neither the suite nor its expectations can be read."""
    body = """import os
from pathlib import Path
here = Path(__file__).parent
assert context is None
assert input == r"{{ secrets.X }} {% raw %} \\{{", input
names = sorted(p.name for p in here.rglob("*") if "pycache" not in str(p))
return AgentResult(output=" ".join(names))"""
    suite = "scenarios:\n  - name: braces\n    input: '{{ secrets.X }} {% raw %} \\{{'\n    expected_output: my_agent\n"
    files = {**adapter(body), ".git/HEAD": "ref", "notes.txt": "", "scenarios/more.yml": TWO}
    called = run_suite(tmp_path, suite, files, "--filter", "*braces*")
    assert called.code == 0, called.cells[0]["reason"]
    assert called.cells[0]["agent"]["output"] == "my_agent.py notes.txt scenarios"


def test_variables_of_ours_reach_an_adapter_by_name_alone(tmp_path: Path) -> None:
    body = 'import os\nreturn AgentResult(output=f\'{os.environ.get("KEY")} {os.environ.get("OTHER")}\')'
    suite = "scenarios: [{name: a, input: b, scorers: [exact], expected_output: '*** none'}]"
    files = {**adapter(body), "agenticassure.yaml": "adapter: my_agent.MyAgent\nenv: [KEY]\n"}
    write_files(tmp_path, {"scenarios/suite.yaml": suite, **files})
    environ = {"KEY": "sk-secret", "OTHER": "hidden"}
    called = keystone("run", "scenarios", "--output", "out", directory=tmp_path, environ=environ)
    assert called.cells[0]["agent"]["output"] == "*** None"
    missing = keystone("run", "scenarios", "--output", "out2", directory=tmp_path)
    assert (missing.code, "KEY" in missing.out) == (3, True)


def test_time_limits_are_kept(tmp_path: Path) -> None:
    suite = """suite: {name: slow, config: {default_timeout: 1}}
scenarios:
  - {name: by-default, input: "30"}
  - {name: own, input: "30", timeout_seconds: 0.5}
  - {name: patient, input: "2", timeout_seconds: 60}
"""
    body = "import time\ntime.sleep(float(input))\nreturn AgentResult(output='done')"
    called = run_suite(tmp_path, suite, adapter(body))
    assert verdicts(called) == {"by-default": "fail", "own": "fail", "patient": "pass"}
    assert [cell["agent"]["timed_out"] for cell in called.cells] == [True, True, False]
    assert called.cells[0]["composite"] == 0.0
    assert "timed out" in called.cells[0]["reason"]


def failing_until() -> tuple[object, dict[str, str]]:
    """A server that counts the tries of each input; its adapter raises until it was tried as often as it is told."""
    import socketserver
    import threading

    tries: dict[str, int] = {}

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name = self.rfile.readline().decode().strip()
            tries[name] = tries.get(name, 0) + 1
            self.wfile.write(f"{tries[name]}\n".encode())

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    body = f"""import socket
with socket.create_connection(("127.0.0.1", {server.server_address[1]})) as connection:
    connection.sendall(f"{{input}}\\n".encode())
    tried = int(connection.makefile().readline())
what, _, wanted = input.partition(" ")
if what == "raise" and tried < int(wanted):
    raise ConnectionError(f"try {{tried}}")
if what == "sleep" and tried < int(wanted):
    import time
    time.sleep(60)
return AgentResult(output="" if what == "blank" else f"tried {{tried}}")"""
    return server, adapter(body)


def test_retries_are_for_adapters_that_raise_or_take_too_long(tmp_path: Path) -> None:
    suite = """suite: {name: again, config: {retries: 2, default_timeout: 6}}
scenarios:
  - {name: second, input: raise 2}
  - {name: late, input: sleep 3}
  - {name: never, input: raise 9}
  - {name: blank, input: blank 1}
"""
    server, files = failing_until()
    try:
        called = run_suite(tmp_path, suite, files)
    finally:
        server.shutdown()  # type: ignore[attr-defined]
        server.server_close()  # type: ignore[attr-defined]
    assert verdicts(called) == {"second": "pass", "late": "pass", "never": "fail", "blank": "fail"}
    by_name = {cell["scenario"]: cell for cell in called.cells}
    assert {name: cell["attempts"] for name, cell in by_name.items()} == {
        "second": 2,
        "late": 3,
        "never": 3,
        "blank": 1,  # "a plain failing score is final"
    }
    assert any(
        "attempt 1: " in notice and "ConnectionError: try 1" in notice for notice in by_name["second"]["notices"]
    )
    assert sum("timed out" in notice for notice in by_name["late"]["notices"]) == 2
    assert "ConnectionError: try 3" in by_name["never"]["reason"]


FAIL_FAST = """suite: {name: fast, config: {fail_fast: true}}
scenarios:
  - {name: one, input: a}
  - {name: two, input: b}
  - {name: three, input: a}
  - {name: four, input: a}
"""


def test_fail_fast_leaves_out_what_follows_and_names_it(tmp_path: Path) -> None:
    files = answering({"a": {"output": "x"}, "b": {"output": ""}})
    files["scenarios/other.yaml"] = "suite: {name: other}\nscenarios: [{name: five, input: a}]"
    called = run_suite(tmp_path, FAIL_FAST, files, "--max-concurrency", "8")
    assert called.code == 1
    assert verdicts(called) == {"five": "pass", "one": "pass", "two": "fail"}
    counts = called.document["counts"]
    assert (counts["cells"], counts["passed"], counts["failed"], counts["errors"]) == (3, 2, 1, 0)
    (notice,) = [one for one in called.document["notices"] if one.startswith("fail_fast")]
    assert notice == "fail_fast: fast.two.r0 did not pass, so these were not run: fast.three.r0, fast.four.r0"
    assert notice in (called.output / "summary.md").read_text().replace("\\", "")
    assert called.err.count(notice) == 1
    _identity, *lines = (called.output / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 3


def test_a_resumed_run_stays_stopped(tmp_path: Path) -> None:
    files = answering({"a": {"output": "x"}, "b": {"output": ""}})
    first = run_suite(tmp_path, FAIL_FAST, files)
    again = keystone("run", "scenarios/", "--resume", "out", directory=tmp_path)
    assert (first.code, again.code) == (1, 1)
    assert verdicts(again) == verdicts(first) == {"one": "pass", "two": "fail"}
    assert again.document["notices"] == first.document["notices"]
    # With the failed cell's line lost, as after a crash, it is run again, and decides again.
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))
    once_more = keystone("run", "scenarios/", "--resume", "out", directory=tmp_path)
    assert (once_more.code, verdicts(once_more)) == (1, verdicts(first))
    assert "1 of them finished before" in once_more.err
    # Another agent is another run.
    write_files(tmp_path, {"answers.json": json.dumps({"a": {"output": "x"}, "b": {"output": "y"}})})
    refused = keystone("run", "scenarios/", "--resume", "out", directory=tmp_path)
    assert (refused.code, "has changed since" in refused.err) == (2, True), refused.err


def test_shards_run_all_their_cells_so_that_they_can_be_joined(tmp_path: Path) -> None:
    files = answering({"a": {"output": "x"}, "b": {"output": ""}})
    index = shard_of("fast.two.r0", 2)
    called = run_suite(tmp_path, FAIL_FAST, files, "--shard", f"{index}/2")
    assert verdicts(called)["two"] == "fail"
    planned = {name for name in ("one", "two", "three", "four") if shard_of(f"fast.{name}.r0", 2) == index}
    assert verdicts(called).keys() == planned > {"two"}, "else it would show nothing"
    assert "fail_fast of fast is for runs without shards: all its cells are run" in called.document["notices"]


def test_fail_fast_stops_at_an_error_too(tmp_path: Path) -> None:
    suite = FAIL_FAST.replace("{name: one, input: a}", "{name: one, input: a, scorers: [broken]}")
    files = adapter("return AgentResult(output='x')")
    files["my_agent.py"] += (
        "\n\nclass Broken:\n    name = 'broken'\n\n    def score(self, scenario, result):\n        raise ValueError\n\n"
        "from agenticassure.scorers.base import register_scorer\nregister_scorer(Broken())\n"
    )
    called = run_suite(tmp_path, suite, files)
    assert (called.code, verdicts(called)) == (3, {"one": "error"})


def test_a_package_of_the_users_own_with_modules_beside_it(tmp_path: Path) -> None:
    files = {
        "agenticassure.toml": 'adapter = "bots.support.agent.Support"\n',
        "src/bots/__init__.py": "",
        "src/bots/support/__init__.py": "",
        "src/bots/support/agent.py": "from bots.words import GREETING\nfrom agenticassure import AgentResult\n\n\n"
        "class Support:\n    async def run(self, input, context):\n        return AgentResult(output=GREETING)\n",
        "src/bots/words.py": "GREETING = 'hello'\n",
    }
    suite = "scenarios: [{name: a, input: b, expected_output: Hello}]"
    assert run_suite(tmp_path, suite, files).code == 0


def test_similarity_without_its_package_is_skipped_and_said(tmp_path: Path) -> None:
    suite = "scenarios: [{name: a, input: a, scorers: [passfail, similarity], expected_output: x}]"
    called = run_suite(tmp_path, suite, answering({"a": {"output": "x"}}))
    assert called.code == 0
    assert called.checks["similarity"]["status"] == "skip"
    assert "sentence-transformers" in called.out + called.err


def test_a_valid_suite_is_counted_with_the_invariants_of_its_scenarios(tmp_path: Path) -> None:
    write_files(tmp_path, answering({}))
    write_files(tmp_path, {"scenarios/suite.yaml": FAIL_FAST})
    called = keystone("validate", "scenarios/", directory=tmp_path)
    assert (called.code, called.out) == (0, "scenarios/suite.yaml: fast: valid, 4 scenarios, 1 invariant\n")
