"""Every error of a Touchstone case and of its harnesses.yaml, at its line; nothing is silently ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.touchstone_specs import GRADERS, HEAD, Write, case, errors

from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.spec_source import CloneFailed

__all__ = ["case", "errors"]


def assert_like(found: str, expected: str) -> None:
    """That a message begins as expected; `…` stands for anything."""
    begin, *rest = expected.split("…")
    assert found.startswith(begin), found
    for piece in rest:
        assert piece.strip() in found, found


ERRORS = [
    ("idd: x\n", "6:1: unknown key 'idd', expected one of artifacts, … task, did you mean 'id'?"),
    ("description: [a]\n", "6:14: description: expected a text, found a list"),
    ("availability: maybe\n", "6:15: availability: unknown, found 'maybe', expected one of required, optional"),
    ("expect: {treshold: 1}\n", "6:10: unknown key 'treshold', … did you mean 'pass_threshold'?"),
    ("expect: {pass_threshold: 2}\n", "6:26: "),
    ("artifacts: {skills: [a]}\n", "6:13: artifacts.skills of a Touchstone case can't be honoured here; put the files"),
    ("artifacts: {skill: a}\n", "6:13: unknown key 'skill', expected one of commands, mcp, … did you mean 'skills'?"),
    ("artifacts: {mcp: a.json}\n", "6:13: artifacts.mcp of a Touchstone case can't be honoured here"),
    ("observe: {interaction: {policy: scripted}}\n", "6:33: the interaction policy 'scripted' … expected auto-approve"),
    ("observe: {interaction: {policy: auto-approve, rules: [a]}}\n", "6:47: observe.interaction.rules of a Touch"),
    ("observe: {trace: true}\n", "6:11: unknown key 'trace', … did you mean 'tracing'?"),
    ("environment: {install: editable}\n", "6:15: environment.install of a Touchstone case can't be honoured here"),
    ("environment: {pip_args: [--pre]}\n", "6:15: environment.pip_args of a Touchstone case can't be honoured here"),
    ("environment: {system_site_packages: true}\n", "6:15: environment.system_site_packages of a Touchstone case"),
    ("environment: {kind: conda}\n", "6:21: environment.kind: unknown, found 'conda', expected one of pip-venv, uv"),
    ("environment: {kind: command}\n", "6:1: environment.kind: command needs commands"),
    ("environment: {kind: command, commands: [a], requirements: [b]}\n", "6:45: environment.requirements is not for"),
    ("environment: {requirements: [--pre]}\n", "6:30: environment.requirements[0]: no package, found '--pre'"),
    ("environment: {requirement_files: [none.txt]}\n", "6:35: environment.requirement_files[0]: 'none.txt' there …"),
    ("environment: {requirement_files: [../../x.txt]}\n", "6:35: environment.requirement_files[0]: … leaves"),
    ("environment: {timeout_s: 0}\n", "6:26: environment.timeout_s: expected a number above 0, found the number 0"),
    ("environment: {env: {A: [b]}}\n", "6:24: environment.env.A: expected a text, found a list"),
    ("container: {setup: [a]}\n", "6:1: the key 'image' is missing in container"),
    ("container: {image: a, python: python3.9}\n", "6:23: container.python can't be honoured here, expected python3"),
    ("container: {image: a, harness: b}\n", "6:23: container.harness of a Touchstone case can't be honoured here"),
    ("setup: {stub: [{file: ../a.py, function: b}]}\n", "6:23: setup.stub[0].file leaves the workspace"),
    ("setup: {stub: [{file: a.py, function: b.c}]}\n", "6:39: setup.stub[0].function: no name of a function"),
    ("setup: {stub: [{file: a.py}]}\n", "6:16: the key 'function' is missing in setup.stub[0]"),
    ("setup: {run: make}\n", "6:14: setup.run: expected a list, found 'make'"),
    ("setup: {packages: [pytest]}\n", "6:9: setup.packages of a Touchstone case … in environment.requirements"),
    ("base: node:22\n", "6:1: base of a Touchstone case can't be honoured here; write `container: {image: …"),
    ("source: {path: none}\n", "6:16: there is no directory 'none'"),
    ("source: {}\n", "6:1: source: expected exactly one of path and repo"),
    ("source: {path: a, repo: b}\n", "6:1: source: expected exactly one of path and repo"),
    ("source: {repo: a/b}\n", "6:10: source.repo needs source.commit"),
    ("source: {repo: ab, commit: c}\n", "6:16: source.repo: no repository, found 'ab', expected a URL"),
    ("source: {repo: a/b, commit: --upload-pack=x}\n", "6:29: source.commit: no commit"),
    ("source: {repo: a/b, commit: c, isolation: copy}\n", "6:43: isolation: copy is for a path"),
    ("source: {path: ., isolation: clone}\n", "6:16: a clone of '.' would hold what the agent must not see: case.yaml"),
    ("source: {path: ., isolation: fork}\n", "6:30: source.isolation: unknown, found 'fork'"),
    ("source: {path: ., subdir: a}\n", "6:19: source.subdir is for a repo"),
    ("source: {path: /etc}\n", "6:16: the path '/etc' is absolute"),
    ("fixtures: {repo: a/b}\n", "6:1: the key 'commit' is missing in fixtures"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "expected"), ERRORS, ids=[more.strip() for more, _ in ERRORS])
def test_errors_of_a_case(errors: Callable[..., list[str]], more: str, expected: str) -> None:
    found = errors(HEAD + GRADERS + more)
    assert len(found) == 1, found
    assert_like(found[0], expected)


HEADS = [
    ("id: add\n", "", "1:1: the key 'id' is missing"),
    ("id: add", "id: 7", "1:5: id: expected a text, found the number 7"),
    ("{prompt: implement it}", "{}", "2:1: the key 'prompt' is missing in task"),
    ("{prompt: implement it}", "implement", "2:7: task: expected a mapping, found 'implement'"),
    ("implement it", "''", "2:16: task.prompt: expected a text, found ''"),
    ("implement it", "a, turns: ['']", "2:27: task.turns[0]: expected a text, found ''"),
    ("implement it", "a, turns: [' ']", "2:27: task.turns[0]: expected a text, found ' '"),
    ("implement it", "a, turns: b", "2:26: task.turns: expected a list"),
    ("implement it", "a, instruction_files: [b.md]", "2:39: task.instruction_files[0]: 'b.md' there is no such file"),
    ("implement it", "a, instruction_files: [/etc/passwd]", "2:39: task.instruction_files[0]: '/etc/passwd' leaves"),
    ("[m]", "[1]", "3:38: matrix.models[0]: expected a text, found the number 1"),
    ("[m]", "[]", "3:1: matrix: there are no models"),
    ("[m]", "[m], entries: []", "3:1: matrix: expected either harnesses and models, or entries"),
    ("[m]", "[m], trials: 0", "3:50: matrix.trials: … found the number 0, …"),
    ("[m]", "[m], trial: 2", "3:42: unknown key 'trial', expected one of entries, harnesses, models, trials, did you"),
    ("harnesses: [echo], models: [m]", "entries: [{harness: echo, models: []}]", "3:44: matrix.entries[0].models:"),
    ("[echo]", "[ecko]", "3:22: unknown harness 'ecko', expected one of claude-acp, … did you mean 'echo'?; declare…"),
    ("[echo]", "[droid]", "3:22: the harness 'droid' speaks a protocol over stdio, which is not supported; declare"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), HEADS, ids=[f"{new.strip()}" for _, new, _ in HEADS])
def test_errors_of_what_every_case_has(errors: Callable[..., list[str]], old: str, new: str, expected: str) -> None:
    found = errors(HEAD.replace(old, new) + GRADERS)
    line = expected.partition(":")[0]
    if old == "id: add\n":
        line = "1"
    assert [one for one in found if one.startswith(f"{line}:")] == found
    assert len(found) == 1, found
    assert_like(found[0], expected)


GRADER_ERRORS = [
    ("{type: comand, cmd: a}", "5:12: unknown grader type 'comand', … tool_correctness, did you mean 'command'?"),
    ("{type: sql, query: a}", "5:12: unknown grader type 'sql', expected one of command, files"),
    ("{cmd: a}", "5:5: the key 'type' is missing, expected one of command"),
    ("command", "5:5: graders[0]: expected a mapping, found 'command'"),
    ("{type: command}", "5:5: the key 'cmd' is missing in graders[0]"),
    ("{type: command, cmd: a, wieght: 2}", "5:29: unknown key 'wieght', … type, weight, did you mean 'weight'?"),
    ("{type: command, cmd: a, expect_exti: 2}", "5:29: unknown key 'expect_exti', expected one of cmd, expect_exit"),
    ("{type: command, cmd: a, weight: -1}", "5:37: "),
    ("{type: command, cmd: a, weight: heavy}", "5:37: "),
    ("{type: command, cmd: a, gate: passed}", "5:35: graders[0].gate: expected true or false, found 'passed'"),
    ("{type: command, cmd: a, gate: true, weight: x}", "5:49: graders[0].weight: expected a number"),
    ("{type: command, cmd: a, timeout_s: -5}", "5:40: "),
    ("{type: command, cmd: a, expect_exit: 999}", "5:42: "),
    ("{type: command, cmd: a, runs_in: host}", "5:29: unknown key 'runs_in'"),
    ("{type: command, cmd: a, weight: 0}", "4:1: every invariant has the weight 0"),
    ("{type: files}", "5:5: "),
    ("{type: files, expect_dir: none}", "5:31: there is no directory 'none'"),
    ("{type: files, patterns: ['(']}", "5:30: '(' is not a regular expression"),
    ("{type: tests}", "5:5: the key 'cmd' is missing in graders[0]"),
    ("{type: tests, cmd: a, inject: [none.py]}", "5:36: there is no file 'none.py'"),
    ("{type: tests, cmd: a, inject: [{src: case.yaml}]}", "5:36: the key 'dest' is missing in graders[0].inject[0]"),
    ("{type: tests, cmd: a, junit: b}", "5:27: unknown key 'junit', expected one of cmd, gate, inject, junit_xml"),
    ("{type: pytest, cmd: make test}", "5:"),
    ("{type: swebench}", "5:5: the key 'fail_to_pass' is missing in graders[0]"),
    ("{type: swebench, fail_to_pass: [a]}", "5:"),
    ("{type: model_judge}", "5:5: the key 'rubric' is missing in graders[0]"),
    ("{type: model_judge, rubric: none.md}", "5:33: there is no file 'none.md'"),
    ("{type: model_judge, rubric: case.yaml, include_trace: true}", "5:44: graders[0].include_trace of a Touchstone"),
    ("{type: trace}", "5:5: "),
    ("{type: trace, require_tools: [{knd: write}]}", "5:36: unknown key 'knd'"),
    ("{type: efficiency}", "5:5: "),
    ("{type: tool_correctness, expected: [rite]}", "5:"),
]  # fmt: skip


@pytest.mark.parametrize(("grader", "expected"), GRADER_ERRORS, ids=[grader for grader, _ in GRADER_ERRORS])
def test_errors_of_graders(errors: Callable[..., list[str]], grader: str, expected: str) -> None:
    found = errors(f"{HEAD}graders:\n  - {grader}\n")
    assert len(found) == 1, found
    assert_like(found[0], expected)


def test_all_errors_are_told_at_once(errors: Callable[..., list[str]]) -> None:
    text = (
        HEAD.replace("echo", "ecko") + "graders:\n  - {type: commnd}\n  - {type: files}\nexpect: {pass_threshold: 3}\n"
    )
    found = errors(text)
    assert [one.partition(" ")[0] for one in found] == ["3:22:", "5:12:", "6:5:", "7:26:"]


HARNESS_ERRORS = [
    ("{}", "1:1: the key 'argv' is missing in echo"),
    ("{argv: []}", "1:14: echo.argv: expected a program and its arguments"),
    ("{argv: run}", "1:14: echo.argv: expected a list, found 'run'"),
    ("{argv: [a, '{promt}']}", "1:18: echo.argv[1]: unknown placeholder '{promt}', … {mcp}, did you mean 'prompt'?"),
    ("{argv: [a, '{}']}", "1:18: echo.argv[1]: unknown placeholder '{}'"),
    ("{argv: [a, '{prompt.x}']}", "1:18: echo.argv[1]: unknown placeholder '{prompt.x}'"),
    ("{argv: [a, '{prompt!r}']}", "1:18: echo.argv[1]: {prompt} takes no format or conversion"),
    ("{argv: [a, 'b}']}", "1:18: echo.argv[1]: single '}' encountered in format string"),
    ("{argv: [a], timeout: 3}", "1:19: unknown key 'timeout', expected one of argv, dir, env, timeout_s, trace"),
    ("{argv: [a], timeout_s: soon}", "1:30: echo.timeout_s: expected a number above 0, found 'soon'"),
    ("{argv: [a], timeout_s: 1e+9}", "1:30: echo.timeout_s: expected a number below 1,000,000,000, found the number"),
    ("{argv: [a], env: [b]}", "1:24: echo.env: expected a mapping, found a list"),
    ("{argv: [a], dir: none}", "1:24: echo.dir: there is no directory 'none'"),
    ("{argv: [a], trace: {format: touchstone}}", "1:19: echo.trace: neither 'path' nor 'stdout: true' is there"),
    ("{argv: [a], trace: {format: x, stdout: true}}", "1:35: echo.trace.format: unknown, found 'x'"),
    ("{argv: [a], trace: {format: otel, path: /a}}", "1:47: echo.trace.path leaves the workspace, found '/a'"),
]  # fmt: skip


@pytest.mark.parametrize(("harness", "expected"), HARNESS_ERRORS, ids=[one for one, _ in HARNESS_ERRORS])
def test_errors_of_harnesses(errors: Callable[..., list[str]], write: Write, harness: str, expected: str) -> None:
    write(f"echo: {harness}\n", "harnesses.yaml")
    found = errors(HEAD + GRADERS)
    assert len(found) == 1, found
    assert_like(found[0], f"harnesses.yaml:{expected}")


def test_files_of_harnesses_that_are_not_read_are_named(errors: Callable[..., list[str]], write: Write) -> None:
    write("mine: {command: [a]}\n", "acp_agents.yaml")
    (found,) = errors(HEAD.replace("echo", "mine") + GRADERS)
    assert found.startswith("3:22: unknown harness 'mine'")
    assert found.endswith("(acp_agents.yaml is not read)")


def test_a_prompt_that_no_argument_can_hold(errors: Callable[..., list[str]], write: Write) -> None:
    write("mine: {argv: [a, '{prompt}']}\n", "harnesses.yaml")
    long = "x" * (100 * 1024 + 1)
    found = errors(HEAD.replace("echo", "mine").replace("implement it", long) + GRADERS)
    (message,) = found
    assert message.startswith("2:16: the prompt has 100 KiB, and the harness 'mine' takes it as an argument")
    assert "KEYSTONE_PROMPT_FILE" in message


def test_repositories_need_somebody_who_clones(errors: Callable[..., list[str]]) -> None:
    grader = "graders:\n  - {type: pytest, inject: [hidden/a.py]}\n"
    found = errors(HEAD + grader + "fixtures: {repo: a/b, commit: c}\n")
    assert found == ["6:1: fixtures: nothing can be cloned here; use `keystone run`"]


def test_a_clone_that_fails_says_what_git_said(errors: Callable[..., list[str]]) -> None:
    def clone(url: str, commit: str) -> Path:
        assert (url, commit) == ("https://github.com/a/b.git", "c")
        raise CloneFailed("could not resolve host: github.com")

    grader = "graders:\n  - {type: pytest, inject: [hidden/a.py]}\n  - {type: pytest, inject: [hidden/b.py]}\n"
    (found,) = errors(HEAD + grader + "fixtures: {repo: a/b, commit: c}\n", clone=clone)
    assert found.startswith("7:1: fixtures: the repository can't be had at 'c': could not resolve host: github.com;")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{repo: a/b, commit: c}", True),
        ("{repo: a/b, commit: d, subdir: add}", True),
        ("{repo: a/b, commit: d, subdir: .}", True),
        ("{repo: a/b, commit: d, subdir: add/source}", False),
        ("{repo: a/b, commit: c, subdir: add}", False),
        ("{repo: a/other, commit: c}", False),
    ],
)
def test_a_source_that_holds_the_hidden_tests(
    case: Callable[..., LoadedSpec],
    errors: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    found: bool,
) -> None:
    root = tmp_path_factory.mktemp("clone").resolve()
    for name in ("hidden", "source"):
        (root / "add" / name).mkdir(parents=True)
    (root / "add" / "hidden" / "a.py").write_text("pass")
    text = HEAD + "graders:\n  - {type: tests, cmd: a, inject: [hidden/a.py]}\n"
    text += f"fixtures: {{repo: a/b, commit: c}}\nsource: {source}\n"
    if not found:
        assert not case(text, clone=lambda *_: root).has_expressions
        return
    (message,) = errors(text, clone=lambda *_: root)
    assert message.startswith("7:16: the workspace would hold what the agent must not see: add/hidden/a.py, of")
