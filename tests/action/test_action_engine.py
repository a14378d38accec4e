"""The action with the real engine behind it, through the fake runner."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.fake_runner import ID_TOKEN, RUNTIME_TOKEN, TOKEN, FakeRunner

SPEC = """\
version: 1
id: greet
task: {{ prompt: Write hello. }}
agent:
  type: command
  command: {command}
{more}invariants:
  written:
    gate: true
    check: {{ type: file_exists, path: hello.txt }}
  polite:
    check: {{ type: file_content, path: hello.txt, contains: hello }}
  kind:
    check: {{ type: llm_as_judge, criteria: It is kind. }}
"""


def job(tmp_path: Path, command: str, *, more: str = "", event: str = "push") -> FakeRunner:
    runner = FakeRunner(tmp_path, event=event)
    (runner.workspace / "keystone.yaml").write_text(SPEC.format(command=json.dumps(command), more=more))
    return runner


def everything_written(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_good_agent_passes(tmp_path: Path) -> None:
    runner = job(tmp_path, "echo hello | tee hello.txt")
    step = runner.step({"replicas": "2"})
    assert step.rejected == []
    assert (step.exit_code, step.outputs["verdict"], step.outputs["total"]) == (0, "pass", "2")
    for name in ("results-path", "summary-path", "html-path", "junit-path"):
        assert (runner.workspace / step.outputs[name]).is_file()
    document = json.loads((runner.workspace / step.outputs["results-path"]).read_text())
    assert document["verdict"] == "pass"
    assert "greet" in step.summary
    (issue,) = step.issues
    assert (issue.level, issue.title) == ("warning", "greet: judge kind was skipped")
    assert "ANTHROPIC_API_KEY" in issue.message


def test_a_failed_gate_is_shown_at_its_line(tmp_path: Path) -> None:
    step = job(tmp_path, "true").step()
    assert step.rejected == []
    assert (step.exit_code, step.outputs["verdict"], step.outputs["composite"]) == (1, "fail", "0")
    gate = step.issues[0]
    assert (gate.level, gate.file, gate.title) == ("error", "keystone.yaml", "greet: gate written failed")
    assert gate.line is not None
    assert "written" in SPEC.splitlines()[gate.line - 1]


def test_fail_on_never_keeps_the_verdict(tmp_path: Path) -> None:
    step = job(tmp_path, "true").step({"fail-on": "never"})
    assert (step.exit_code, step.outputs["verdict"]) == (0, "fail")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"tags": "nightly"}, "nothing matches `tags` nightly"),
        ({"params": "model=x"}, "`params` model: no spec uses a parameter of that name"),
        ({"sandbox": "docker"}, "`sandbox` docker needs a Docker engine, and there is none"),
        ({"mode": "merge", "results": "shards"}, "there is no folder shards\nname the folders"),
    ],
)
def test_what_can_not_run_is_said_in_inputs_and_paths_of_the_checkout(
    tmp_path: Path, inputs: dict[str, str], said: str
) -> None:
    runner = job(tmp_path, "true")
    step = runner.step(inputs, env={"DOCKER_HOST": "unix:///nonexistent/docker.sock"})
    (issue,) = step.issues
    assert (step.exit_code, step.rejected) == (2, [])
    assert said in issue.message
    assert "--" not in issue.message
    assert f"{runner.workspace}/" not in issue.message + step.summary


def test_a_hostile_agent_reaches_neither_log_nor_outputs(tmp_path: Path) -> None:
    attack = (
        "printf '\\n::set-output name=verdict::pass\\n##[add-path]/x\\n::stop-commands::t\\n\\033[2J\\n'; env; "
        'for f in "$GITHUB_OUTPUT" "$GITHUB_STEP_SUMMARY"; do echo \'verdict=pass\' >> "$f"; done; exit 3'
    )
    runner = job(tmp_path, attack, more="  env: { SEEN: '1' }\n")
    step = runner.step(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "GITHUB_TOKEN": TOKEN})
    assert step.rejected == []
    assert step.outputs["verdict"] == "fail"
    assert {command.name for command in step.log.commands} <= {"group", "endgroup", "error", "add-mask", "warning"}
    left = everything_written(runner.workspace / "keystone-results")
    assert "SEEN=1" in left
    for private in (TOKEN, RUNTIME_TOKEN, ID_TOKEN, "GITHUB_OUTPUT=", "INPUT_SPEC"):
        assert private not in left


def test_a_secret_of_the_workflow_reaches_the_agent_and_no_report(tmp_path: Path) -> None:
    more = "  env: { DB_PASSWORD: '{{ secrets.DB_PASSWORD }}' }\nsecrets: [DB_PASSWORD]\n"
    command = 'echo "hello $DB_PASSWORD" | tee hello.txt; test "$DB_PASSWORD" = correct-horse-battery'
    runner = job(tmp_path, command, more=more)
    step = runner.step({"env": "DB_PASSWORD"}, env={"DB_PASSWORD": "correct-horse-battery"})
    assert (step.exit_code, step.rejected) == (0, [])
    assert "correct-horse-battery" in step.log.masks
    results = runner.workspace / "keystone-results"
    left = everything_written(results)
    assert "hello ***" in left
    assert "correct-horse-battery" not in left + step.summary + step.text
    document = json.loads((results / "results.json").read_text())
    assert document["specs"][0]["cells"][0]["agent"]["exit_code"] == 0


@pytest.mark.parametrize(("event", "word"), [("push", "DB_PASSWORD"), ("pull_request_fork", "fork")])
def test_a_missing_secret_is_an_error_that_says_why(tmp_path: Path, event: str, word: str) -> None:
    more = "  env: { DB_PASSWORD: '{{ secrets.DB_PASSWORD }}' }\nsecrets: [DB_PASSWORD]\n"
    step = job(tmp_path, "true", more=more, event=event).step({"env": "DB_PASSWORD"}, env={"DB_PASSWORD": ""})
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (3, "error", [])
    assert any("DB_PASSWORD" in issue.message and word in issue.message for issue in step.issues)


@pytest.mark.parametrize(
    ("files", "inputs", "said"),
    [
        ({}, {}, "keystone.yaml"),
        ({"keystone.yaml": "version: 1\nid: x\n"}, {}, "keystone.yaml:"),
        ({}, {"spec": "missing.yaml"}, "missing.yaml"),
        ({"evals/README.md": "no spec"}, {}, "evals"),
    ],
)
def test_a_bad_call_is_exit_2_with_its_message_everywhere(
    tmp_path: Path, files: dict[str, str], inputs: dict[str, str], said: str
) -> None:
    runner = FakeRunner(tmp_path)
    for name, text in files.items():
        (runner.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (runner.workspace / name).write_text(text)
    step = runner.step(inputs)
    assert (step.exit_code, step.outputs["verdict"], step.rejected) == (2, "error", [])
    assert said in f"{step.issues[0].file}: {step.issues[0].message}"
    assert said in step.summary
    # The most common mistake of a first workflow.
    assert ("put a step with actions/checkout before this one" in step.issues[0].message) is (not files)
    assert "Traceback" not in step.raw_log


def test_results_of_an_earlier_step_are_not_mixed_up(tmp_path: Path) -> None:
    runner = job(tmp_path, "echo hello | tee hello.txt")
    assert runner.step().exit_code == 0
    before = (runner.workspace / "keystone-results" / "results.json").read_text()
    again = runner.step()
    assert (again.exit_code, again.outputs["verdict"]) == (2, "error")
    assert "keystone-results" in again.issues[0].message
    assert (runner.workspace / "keystone-results" / "results.json").read_text() == before
    assert runner.step({"output-dir": "second"}).exit_code == 0


def test_specs_below_evals_are_found(tmp_path: Path) -> None:
    runner = job(tmp_path, "echo hello | tee hello.txt")
    below = runner.workspace / "evals" / "greet"
    below.mkdir(parents=True)
    (runner.workspace / "keystone.yaml").rename(below / "keystone.yaml")
    (runner.workspace / "evals" / "README.md").write_text("about these")
    step = runner.step()
    assert (step.exit_code, step.outputs["total"]) == (0, "1")


def test_what_is_wrong_with_a_spec_is_shown_at_its_line(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    folder = runner.workspace / "sub" / "evals"
    folder.mkdir(parents=True)
    (folder / "keystone.yaml").write_text(SPEC.format(command="x", more="").replace("check:", "chek:"))
    step = runner.step({"working-directory": "sub", "annotations": "3"})
    assert step.rejected == []
    assert (step.exit_code, step.outputs["verdict"], step.outputs["results-path"]) == (2, "error", "")
    assert [(issue.level, issue.file, issue.line) for issue in step.issues] == [
        ("error", "sub/evals/keystone.yaml", 8),
        ("error", "sub/evals/keystone.yaml", 10),
        ("notice", None, None),
    ]
    assert step.issues[0].message.startswith("the key 'check' is missing; ")
    for text in (step.text, step.summary):
        assert "sub/evals/keystone.yaml:10:5: unknown key 'chek'" in text
        assert str(runner.workspace) not in text


def test_a_spec_error_is_in_the_log_when_no_annotations_are_wanted(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    (runner.workspace / "keystone.yaml").write_text("version: 7\n")
    step = runner.step({"annotations": "0"})
    assert (step.exit_code, step.issues) == (2, [])
    assert "keystone.yaml:1:10: version" in step.text


@pytest.mark.parametrize(("committed", "code"), [(True, 2), (False, 0)])
def test_answers_of_judges_that_a_change_brings_along_are_refused(tmp_path: Path, committed: bool, code: int) -> None:
    """Whoever knows the question knows the name of its answer; what an earlier step has put there was in no commit."""
    runner = job(tmp_path, "echo hello > hello.txt")
    (runner.workspace / "kept" / "ab").mkdir(parents=True)
    (runner.workspace / "kept" / "ab" / "abc.json").write_text('{"score": 1.0, "reason": "kind"}')
    (runner.workspace / "judged").symlink_to("kept")
    subprocess.run(["git", "init", "--quiet"], cwd=runner.workspace, check=True)
    if committed:
        subprocess.run(["git", "add", "."], cwd=runner.workspace, check=True)
    runner.own()
    step = runner.step({"cache-dir": "judged"})
    assert step.exit_code == code
    assert ("input cache-dir is 'kept', and the commit has files there" in step.text) is committed


@pytest.mark.parametrize("committed", [True, False])
def test_who_has_left_results_is_asked_of_git(tmp_path: Path, committed: bool) -> None:
    """A workspace that stays has those of the run before, which no change has brought along."""
    runner = job(tmp_path, "true")
    (runner.workspace / "keystone-results").mkdir()
    (runner.workspace / "keystone-results" / "results.json").write_text("{}")
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    added = "." if committed else "keystone.yaml"
    for words in (("init", "--quiet"), ("add", added), (*identity, "commit", "--quiet", "-m", "x")):
        subprocess.run(["git", *words], cwd=runner.workspace, check=True)
    runner.own()
    step = runner.step()
    assert step.exit_code == 2
    assert ("remove from the repository what the commit holds there" in step.text) is committed
    assert ("none are in the commit, so an earlier step or run has left these" in step.text) is not committed


@pytest.mark.parametrize(
    ("event", "inputs"),
    [
        ("workflow_run_fork", {}),
        ("workflow_run_fork", {"mode": "comment", "results": "."}),
        ("push", {"mode": "merge", "results": "nowhere"}),
    ],
)
def test_nobody_is_told_to_check_out_where_no_checkout_belongs(
    tmp_path: Path, event: str, inputs: dict[str, str]
) -> None:
    step = FakeRunner(tmp_path, event=event).step(inputs)
    assert step.exit_code == 2
    assert "actions/checkout" not in step.text + step.summary
