"""custom: the author's own script, on the host and in the real process sandbox."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import context_of, grade, make_check, make_evidence

from keystone_action.evidence.model import Address
from keystone_action.invariants.check import Outcome
from keystone_action.invariants.types.custom import BadResult, read_result
from keystone_action.system.command import Capture

pytestmark = pytest.mark.sandbox

SEED_SCRIPT = Path(__file__).parent.parent / "data" / "seed_checks" / "validate_api_responses.py.txt"
"""The source document's script, byte for byte: `.txt` keeps formatters away."""

BOTH = pytest.mark.parametrize("runs_in", ["host", "sandbox"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "spec" / "checks").mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    return tmp_path / "spec"


def run(directory: Path, script: str, *, name: str = "check.py", evidence: Any = None, **fields: Any) -> Outcome:
    """Grade with this text as the script."""
    (directory / "checks" / name).write_text(script)
    context = {key: fields.pop(key) for key in ("timeout", "service_addresses", "check_environment") if key in fields}
    return grade(
        {"type": "custom", "script": f"checks/{name}", **fields},
        directory.parent / "workspace",
        directory=directory,
        evidence=evidence,
        **context,
    )


def say(**result: Any) -> str:
    return f"import json\nprint(json.dumps({result!r}))\n"


def call(response_body: str) -> str:
    details = {"service": "api", "method": "GET", "url": "/x", "status": 200, "response_body": response_body}
    return json.dumps({"ts": "2026-01-01T00:00:00Z", "type": "http_call", "details": details})


@BOTH
@pytest.mark.parametrize(
    ("bodies", "status", "score", "reason"),
    [
        (['{"id": 1, "status": "ok"}', '{"id": 2, "status": "ok"}'], "pass", 1.0, "2/2 responses valid"),
        (['{"id": 1, "status": "ok"}', "<html>"], "fail", 0.5, "1/2 responses valid"),
        ([], "fail", 0.0, "0/0 responses valid"),
    ],
)
def test_the_sources_own_script_runs_unchanged(
    directory: Path, runs_in: str, bodies: list[str], status: str, score: float, reason: str
) -> None:
    audit = "".join(call(body) + "\n" for body in bodies)
    audit += json.dumps({"ts": "2026-01-01T00:00:00Z", "type": "other", "details": {}}) + "\n" if bodies else ""
    script = SEED_SCRIPT.read_text()
    outcome = run(directory, script, name="validate_api_responses.py", runs_in=runs_in, evidence={"audit": audit})
    assert (outcome.status, outcome.score, outcome.message) == (status, score, reason)


@BOTH
def test_stdin_is_exactly_the_context_of_the_source(directory: Path, runs_in: str) -> None:
    (directory.parent / "workspace" / "made.txt").write_text("by the agent")
    script = (
        "import json, os, sys\n"
        "context = json.load(sys.stdin)\n"
        "assert os.path.samefile(context['workspace_path'], os.getcwd())\n"
        "assert open('made.txt').read() == 'by the agent'\n"
        "assert open(context['audit_log_path']).read() == '' == open(context['trace_path']).read()\n"
        "for name in ('workspace_path', 'audit_log_path', 'trace_path'):\n"
        "    assert os.path.isabs(context.pop(name))\n"
        "print(json.dumps({'passed': True, 'details': context}))\n"
    )
    services = {"db": {"host": "127.0.0.1", "port": 5432, "user": "u", "password": "p", "database": "d", "url": "x"}}
    outcome = run(
        directory,
        script,
        runs_in=runs_in,
        service_addresses=services,
        evidence={"services": {name: Address(**fields) for name, fields in services.items()}},
    )
    assert outcome.status == "pass", outcome
    assert outcome.details == {
        "sandbox_id": "cell-1",
        "services": services,
        "task": {"prompt": "Do it."},
        "scenario_params": {"model": "small"},
    }


@BOTH
def test_nothing_of_our_environment_reaches_the_script(
    directory: Path, runs_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-ours")
    script = "import json, os\nprint(json.dumps({'passed': True, 'details': dict(os.environ)}))\n"
    outcome = run(directory, script, runs_in=runs_in, check_environment={"KEYSTONE_SEED": "7"})
    assert "key-of-ours" not in json.dumps(dict(outcome.details))
    assert ("KEYSTONE_SEED" in outcome.details) == (runs_in == "sandbox")


def test_on_the_host_a_py_runs_under_our_interpreter_and_finds_the_files_beside_it(directory: Path) -> None:
    (directory / "checks" / "helper.py").write_text("ANSWER = 42\n")
    (directory / "checks" / "expected.json").write_text('{"answer": 42}')
    script = (
        "import json, pathlib, sys\nimport helper, pydantic\n"
        "expected = json.loads((pathlib.Path(__file__).parent / 'expected.json').read_text())\n"
        "print(json.dumps({'passed': expected['answer'] == helper.ANSWER, 'reason': sys.version}))\n"
    )
    outcome = run(directory, script)
    assert (outcome.status, outcome.message) == ("pass", sys.version)
    assert not (directory / "checks" / "__pycache__").exists()


def test_in_the_sandbox_it_runs_as_the_agents_user_out_of_the_authors_directory(directory: Path) -> None:
    script = (
        "import json, os, sys\n"
        "print(json.dumps({'passed': True, 'details': {'uid': os.getuid(), 'file': __file__,"
        " 'python': sys.executable, 'listing': sorted(os.listdir('.'))}}))\n"
    )
    outcome = run(directory, script, runs_in="sandbox")
    assert outcome.status == "pass", outcome
    assert str(directory) not in outcome.details["file"]
    assert Path(outcome.details["python"]).name.startswith("python3")
    assert (outcome.details["uid"] == 0) is False if os.geteuid() == 0 else outcome.details["uid"] == os.geteuid()


def test_the_script_is_gone_from_the_shared_copy_afterwards(directory: Path) -> None:
    """A later check of the same copy, which may run the agent's code, must not find it."""
    workspace = directory.parent / "workspace"
    (workspace / ".keystone").symlink_to(directory)
    (directory / "checks" / "check.py").write_text(say(passed=True))

    async def run_it() -> tuple[Outcome, list[str]]:
        check = make_check({"type": "custom", "script": "checks/check.py", "runs_in": "sandbox"})
        evidence = make_evidence(workspace, directory.parent / "private")
        async with context_of(check, evidence, directory) as context:
            outcome = await check.evaluate(context)
            return outcome, sorted(path.name for path in context.copy_path.iterdir())

    outcome, left = anyio.run(run_it)
    assert outcome.status == "pass"
    assert left == [".keystone"]
    assert [path.name for path in directory.iterdir()] == ["checks"]


def test_links_that_lead_out_are_removed_from_the_copy_and_listed(directory: Path) -> None:
    workspace = directory.parent / "workspace"
    (workspace / "escape").symlink_to("/etc/passwd")
    (workspace / "inside").symlink_to("file")
    (workspace / "file").write_text("x")
    script = "import json, os\nprint(json.dumps({'passed': sorted(os.listdir('.')) == ['file', 'inside']}))\n"
    outcome = run(directory, script)
    assert outcome.status == "pass"
    assert [name.split(" ")[0] for name in outcome.details["removed_links"]] == ["escape"]
    assert "escape" in outcome.log
    assert (workspace / "escape").is_symlink()


def test_what_the_script_does_to_its_copy_stays_there(directory: Path) -> None:
    workspace = directory.parent / "workspace"
    (workspace / "file").write_text("x")
    outcome = run(directory, "import os\nos.remove('file')\n" + say(passed=True))
    assert outcome.status == "pass"
    assert (workspace / "file").read_text() == "x"


@BOTH
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys\nprint('{\"passed\": true}')\nsys.exit(3)\n", "ended with exit code 3, expected 0"),
        ("raise ValueError('of the script')\n", "ValueError: of the script"),
        ("print('not json')\n", "printed no JSON"),
        ("", "printed nothing"),
        (say(score=1), "whose `passed` is missing, expected true or false"),
        (say(passed="true"), 'whose `passed` has "true", expected true or false'),
        (say(passed=1), "whose `passed` has 1"),
        (say(passed=None), "whose `passed` has null"),
        ("print('[true]')\n", "printed a JSON array"),
        ("print('true')\n", "printed a JSON boolean"),
        (say(passed=True, score=1.5), "printed the score 1.5, expected a number from 0 to 1"),
        (say(passed=True, score=-0.1), "printed the score -0.1"),
        (say(passed=True, score="1"), 'printed the score "1"'),
        (say(passed=True, score=True), "printed the score true"),
        ('print(\'{"passed": true, "score": NaN}\')\n', "NaN is not JSON"),
        ('print(\'{"passed": true, "score": 1e999}\')\n', "printed the score Infinity"),
        ('print(\'{"passed": false, "passed": true}\')\n', "a key is there twice"),
        ("import os\nos.kill(os.getpid(), 9)\n", "was ended by SIGKILL"),
    ],
)
def test_a_script_that_breaks_is_our_error_never_the_agents(
    directory: Path, runs_in: str, script: str, message: str
) -> None:
    outcome = run(directory, script, runs_in=runs_in)
    assert (outcome.status, outcome.score) == ("error", None)
    assert outcome.message.startswith("checks/check.py ")
    assert message in outcome.message


@BOTH
def test_a_time_out_is_our_error(directory: Path, runs_in: str) -> None:
    outcome = run(directory, "import time\nprint('on it', flush=True)\ntime.sleep(60)\n", runs_in=runs_in, timeout=2.0)
    assert outcome.status == "error"
    assert "was stopped at its time limit of 2 s" in outcome.message
    assert "on it" in outcome.message


def test_a_missing_script_is_our_error(tmp_path: Path) -> None:
    outcome = grade({"type": "custom", "script": "nope.py"}, tmp_path, directory=tmp_path)
    assert outcome.status == "error"
    assert "the script nope.py can't be read" in outcome.message


def test_arguments_are_handed_on(directory: Path) -> None:
    script = "import json, sys\nprint(json.dumps({'passed': sys.argv[1:] == ['--strict', 'a b']}))\n"
    assert run(directory, script, args=["--strict", "a b"]).status == "pass"


@BOTH
@pytest.mark.parametrize(
    ("name", "script", "interpreter"),
    [
        ("check.sh", """cat >/dev/null; echo '{"passed": true}'""", None),
        ("check", """#!/bin/sh\ncat >/dev/null; echo '{"passed": true}'""", None),
        ("check", """#!/usr/bin/env sh\ncat >/dev/null; echo '{"passed": true}'""", None),
        ("check.txt", """cat >/dev/null; echo '{"passed": true}'""", "sh -e"),
        ("check.txt", """cat >/dev/null; echo '{"passed": true}'""", ["sh", "-e"]),
    ],
)
def test_the_interpreter_is_named_by_field_line_or_suffix(
    directory: Path, runs_in: str, name: str, script: str, interpreter: object
) -> None:
    fields = {"interpreter": interpreter} if interpreter else {}
    outcome = run(directory, script, name=name, runs_in=runs_in, **fields)
    assert outcome.status == "pass", outcome


@BOTH
def test_a_script_that_nothing_can_run_is_our_error(directory: Path, runs_in: str) -> None:
    outcome = run(directory, "whatever", name="check.xyz", runs_in=runs_in)
    assert outcome.status == "error"
    assert "nothing says how to run checks/check.xyz" in outcome.message


def test_an_interpreter_that_is_missing_is_our_error(directory: Path) -> None:
    for runs_in in ("host", "sandbox"):
        outcome = run(directory, "x", name="check.txt", interpreter="no-such-interpreter", runs_in=runs_in)
        assert outcome.status == "error"
    assert "no-such-interpreter is not in this sandbox" in outcome.message


def test_the_phase_is_decided_by_where_it_runs() -> None:
    assert make_check({"type": "custom", "script": "x"}).run_phase == "observe"
    assert make_check({"type": "custom", "script": "x", "runs_in": "sandbox"}).run_phase == "shared_copy"


@pytest.mark.parametrize(
    "fields",
    [{}, {"script": ""}, {"script": "x", "runs_in": "cloud"}, {"script": "x", "args": "a"}, {"script": "x", "env": {}}],
)
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "custom", **fields})


def result(text: str | bytes) -> Outcome:
    data = text.encode() if isinstance(text, str) else text
    return read_result(Capture(data, b"", len(data)))


def test_score_follows_passed_where_it_is_left_out() -> None:
    assert result('{"passed": true}').score == 1.0
    assert result('{"passed": false}').score == 0.0
    assert result('{"passed": false, "score": null}').score == 0.0


def test_passed_decides_the_status_and_score_the_credit() -> None:
    outcome = result('{"passed": true, "score": 0.25, "reason": "a quarter", "details": {"n": 1}, "more": 1}')
    assert (outcome.status, outcome.score, outcome.message) == ("pass", 0.25, "a quarter")
    assert outcome.details == {"n": 1}
    assert outcome.notices == ("nobody reads these keys of what the script printed: more",)
    outcome = result('{"passed": false, "score": 1}')
    assert (outcome.status, outcome.score) == ("fail", 1.0)


def test_a_message_that_nobody_reads_is_named_first_and_leads_to_reason() -> None:
    printed = {"passed": False, "error": 1, "message": "2 differ"}
    said = "nobody reads these keys of what the script printed: message, error"
    assert result(json.dumps(printed)).notices == (f"{said}; `reason` is what is shown",)
    assert result(json.dumps({**printed, "reason": "2 differ"})).notices == (said,)
    many = result(json.dumps({"passed": True, **{f"k{number:02}": 0 for number in range(12)}}))
    assert many.notices[0].endswith("k08, k09 and 2 more")


def test_keys_that_are_read_need_no_notice() -> None:
    assert result('{"passed": true, "score": 1, "reason": "fine", "details": {"message": 1}}').notices == ()


def test_the_document_may_be_the_last_line_or_span_all_lines() -> None:
    assert result('looking\n{"broken\n{"passed": true}\n\n').status == "pass"
    assert result('{\n  "passed": true,\n  "reason": "over\\nlines"\n}\n').message == "over\nlines"
    with pytest.raises(BadResult):
        result('{"passed": true}\ndone')


def test_after_a_cut_the_last_line_counts() -> None:
    outcome = read_result(Capture(b"x" * 10, b'yy\n{"passed": false}\n', 1000))
    assert outcome.status == "fail"


def test_the_end_of_a_line_is_not_taken_for_the_line() -> None:
    with pytest.raises(BadResult, match="printed 1,000 bytes; the line with its result may have 21"):
        read_result(Capture(b"x" * 10, b'{"passed": true    }\n', 1000))


@pytest.mark.parametrize("text", [b"\xff\xfe", "[" * 100_000, '{"passed": true, "score": ' + "9" * 5000 + "}"])
def test_documents_that_break_parsers_are_told_as_any_other(text: str | bytes) -> None:
    with pytest.raises(BadResult):
        result(text)


def test_half_a_surrogate_pair_can_be_written() -> None:
    outcome = result('{"passed": true, "reason": "\\ud800", "details": {"k\\ud800": ["\\udfff"]}}')
    (outcome.message + json.dumps(dict(outcome.details), ensure_ascii=False)).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["passed", "score", "reason", "details", "x"]), json_values))
def test_whatever_a_script_says_ends_as_an_outcome_or_a_bad_result(document: dict[str, Any]) -> None:
    try:
        outcome = result(json.dumps(document))
    except BadResult:
        return
    assert outcome.status == ("pass" if document["passed"] else "fail")
    assert outcome.score is not None
    assert 0 <= outcome.score <= 1
    json.dumps(dict(outcome.details), allow_nan=False)


def test_packages_of_the_agent_are_for_scripts_in_the_sandbox() -> None:
    with pytest.raises(ValidationError, match="expected runs_in: sandbox"):
        make_check({"type": "custom", "script": "x", "agent_packages": True})
    assert make_check({"type": "custom", "script": "x", "agent_packages": False}).doubt_as_gate == ""
    seeing = make_check({"type": "custom", "script": "x", "runs_in": "sandbox", "agent_packages": True})
    assert seeing.reads_agent_packages
    assert "the agent's code runs in the script" in seeing.doubt_as_gate


def test_packages_of_the_agent_are_imported_on_request_and_come_last(directory: Path) -> None:
    packages = directory.parent / "packages"
    site = packages / "home/.local/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for version in range(8, 16):
        place = site.parent.with_name(f"python3.{version}") / "site-packages"
        place.mkdir(parents=True)
        (place / "of_agent.py").write_text("VALUE = 42\n")
        (place / "pip.py").write_text("VALUE = 'forged'\n")
    (packages / "names").write_text("of_agent\npip")
    script = "import json, of_agent\nprint(json.dumps({'passed': of_agent.VALUE == 42, 'reason': 'seen'}))\n"
    seen = run(directory, script, runs_in="sandbox", agent_packages=True, evidence={"packages": packages})
    assert (seen.status, seen.details["agent_packages"]) == ("pass", ["of_agent", "pip"])
    assert seen.message == "seen\nThe script could import what the agent installed (agent_packages)."
    safe = run(directory, script, runs_in="sandbox", evidence={"packages": packages})
    assert safe.status == "error"
    assert "found no module of_agent: `setup.packages` installs one, and with `agent_packages: true`" in safe.message
    none = run(directory, script, runs_in="sandbox", agent_packages=True)
    assert none.status == "error"
    assert "found no module" not in none.message
    assert none.details["agent_packages"] == []
