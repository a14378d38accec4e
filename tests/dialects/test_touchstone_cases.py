"""A Touchstone case as a spec: what it becomes."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.touchstone_specs import GRADERS, HEAD, Write, case, errors

from keystone_action.dialects.known import DIALECTS
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.expressions import interpolate
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load

__all__ = ["case", "errors"]


ARTIFACTS = """id: a
task: {prompt: p}
matrix: {harnesses: [claude-code, claude-code-stream], models: [m]}
artifacts:
  skills: [tools/review, "tools/style.md"]
  commands: [tools/fix.md]
  plugins: [tools/plug]
  mcp: tools/servers.json
graders: [{type: command, cmd: "true"}]
"""


def write_artifacts(write: Write) -> None:
    for name in ("review/SKILL.md", "style.md", "fix.md", "plug/.claude-plugin/plugin.json", "servers.json"):
        write("{}", f"tools/{name}")


def test_artifacts_are_put_where_claude_code_looks_for_them(case: Callable[..., LoadedSpec], write: Write) -> None:
    write_artifacts(write)
    loaded = case(ARTIFACTS)
    assert [(file.path, file.from_) for file in loaded.spec.setup.files] == [
        (".claude/skills/review", "tools/review"),
        (".claude/skills/style/SKILL.md", "tools/style.md"),
        (".claude/commands/fix.md", "tools/fix.md"),
        (".claude/plugins/plug", "tools/plug"),
        (".mcp.json", "tools/servers.json"),
    ]
    assert {tuple(agent.args) for agent in loaded.agents.values()} == {("--plugin-dir=.claude/plugins/plug",)}
    assert case(ARTIFACTS.replace("plugins: [tools/plug]", "plugins: []")).agents["claude-code", "m"].args == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("tools/fix.md]", "tools/none.md]", "artifacts.commands[0]: there is no file or directory 'tools/none.md'"),
        ("[tools/plug]", "[tools/fix.md]", "artifacts.plugins[0]: there is no directory 'tools/fix.md'"),
        ("tools/servers.json", "tools", "artifacts.mcp: 'tools' is a directory"),
        ("tools/servers.json", "7", "artifacts.mcp: expected a text"),
        ("[tools/fix.md]", "[tools/fix.md, other/../tools/fix.md]", "two that would be .claude/commands/fix.md"),
        ("[tools/fix.md]", "[../../../etc/passwd]", "leaves "),
        ("claude-code-stream", "codex", "artifacts.skills of a Touchstone case can't be honoured here"),
    ],
)
def test_artifacts_that_can_not_be_put_there(
    errors: Callable[[str], list[str]], write: Write, old: str, new: str, sentence: str
) -> None:
    write_artifacts(write)
    write("x", "other/x")
    assert any(sentence in one for one in errors(ARTIFACTS.replace(old, new)))


def test_what_a_case_becomes(case: Callable[..., LoadedSpec], write: Write) -> None:
    write("x", "source/a.py")
    loaded = case(
        """id: add
description: adds
task: {prompt: "{{ implement }} it"}
source: {path: source}
matrix: {harnesses: [echo, codex], models: [m, n, m], trials: 3}
environment: {requirements: [six], commands: [make], env: {A: 1}}
setup: {run: [rm -f b], stub: [{file: a.py, function: add}]}
container: {image: "python:3.12-slim", setup: [apt-get update]}
observe: {tracing: true, interaction: {policy: auto-approve}}
graders:
  - {type: command, cmd: "true", weight: 2, timeout_s: 5}
  - {type: command, cmd: "false", expect_exit: 1}
  - {type: implemented, gate: true}
expect: {pass_threshold: 0.5}
"""
    )
    spec = loaded.spec
    assert not loaded.has_expressions
    assert (spec.id, spec.description, loaded.prompt) == ("add", "adds", "{{ implement }} it")
    assert (spec.base, spec.workspace, spec.scoring.pass_threshold) == ("python:3.12-slim", "source", 0.5)
    assert spec.setup.packages == ["six"]
    assert spec.setup.commands == ["apt-get update", "make", "rm -f b"]
    assert spec.setup.env == {"A": "1"}
    assert spec.parallelism.replicas == 3
    assert [tuple(one.values()) for one in spec.parallelism.include] == [
        ("echo", "m"), ("echo", "n"), ("codex", "m"), ("codex", "n")
    ]  # fmt: skip
    assert set(loaded.agents) == {("echo", "m"), ("echo", "n"), ("codex", "m"), ("codex", "n")}
    assert loaded.workspace_left_out == (".git", "__pycache__", "*.pyc", ".venv", "node_modules")
    (stub,) = loaded.stubs
    assert (stub.file, stub.function) == ("a.py", "add")
    assert stub.where.endswith("case.yaml:7:32")
    weights = {name: (one.weight, one.gate, one.on_skip) for name, one in spec.invariants.items()}
    assert weights == {
        "command": (2.0, False, None),
        "command-2": (1.0, False, None),
        "implemented": (0.0, True, "ignore"),
    }
    assert loaded.lines == {"command": 11, "command-2": 12, "implemented": 13}
    assert not loaded.only_gates
    limit = 1800 + (5 + 300 + 60) + 900 + 1800
    assert spec.resources.timeout == limit


def test_the_prompt_is_put_together_as_touchstone_does(case: Callable[..., LoadedSpec], write: Write) -> None:
    write("be kind\n", "docs/style.md")
    task = "task: {prompt: do it, system_prompt: you are x, instruction_files: [docs/style.md]}\n"
    loaded = case(HEAD.replace("task: {prompt: implement it}\n", task) + GRADERS)
    assert loaded.prompt == "you are x\n\ndo it\n\n## style.md\nbe kind\n"
    before = loaded.sha256
    write("be short\n", "docs/style.md")
    assert case(HEAD.replace("task: {prompt: implement it}\n", task) + GRADERS).sha256 != before
    assert not {path.name for path in loaded.withheld} & {"style.md"}


def test_entries_pair_harnesses_with_their_models(case: Callable[..., LoadedSpec]) -> None:
    entries = (
        "{entries: [{harness: echo, models: [a, b]}, {harness: codex, models: [c]}, {harness: echo, models: [a]}]}"
    )
    loaded = case(HEAD.replace("{harnesses: [echo], models: [m]}", entries) + GRADERS)
    assert not loaded.has_expressions
    assert set(loaded.agents) == {("echo", "a"), ("echo", "b"), ("codex", "c")}
    assert len(loaded.spec.parallelism.include) == 3


def test_defaults_of_graders_are_touchstones(case: Callable[..., LoadedSpec], write: Write) -> None:
    write("# good?", "rubric.md")
    graders = """graders:
  - {type: model_judge, rubric: rubric.md, include_trace: false}
  - {type: model_judge, rubric: rubric.md, models: openai:a}
  - {type: tool_correctness, expected: [write]}
  - {type: tool_correctness, expected: [Write], match: raw_name}
  - {type: implemented, files: []}
"""
    checks: dict[str, Any] = {name: one.check for name, one in case(HEAD + graders).spec.invariants.items()}
    judge = checks["model_judge"]
    assert (judge.model, judge.pass_threshold, judge.criteria.file) == ("claude-opus-4-8", 0.8, "rubric.md")
    assert checks["model_judge-2"].models == ["openai:a"]
    assert (checks["tool_correctness"].match, checks["tool_correctness-2"].match) == ("kind", "raw_name")
    assert checks["implemented"].files is None


def test_what_is_read_differently_is_said(case: Callable[..., LoadedSpec]) -> None:
    graders = """graders:
  - {type: swebench, fail_to_pass: ["a.py::b"], gate_weight: 2}
  - {type: efficiency, target_tokens: 1}
"""
    more = """availability: optional
observe: {tracing: true}
container: {image: a, caches: [.m2], home: /home/x}
environment: {kind: uv}
"""
    loaded = case(HEAD.replace("id: add", "id: Add_Two") + graders + more)
    assert loaded.spec.id == "add-two"
    said = [sentence.rpartition("case.yaml:")[2] for sentence in loaded.warning_sentences]
    assert set(said) == {
        "9:23: container.caches is not honoured: no directory is shared between cells",
        "9:38: container.home is not honoured: no directory is shared between cells",
        "10:21: environment.kind: uv: the packages are installed with pip",
        "1:5: the id 'Add_Two' is 'add-two' in results: a-z, 0-9 and single dashes",
        "5:49: graders[0].gate_weight: PASS_TO_PASS is a gate, which never adds credit, so its weight says nothing",
        "6:5: the harness echo leaves no trace: this grader is skipped there",
        "7:15: availability: optional is not honoured: a repository that can't be reached is an error",
        "8:11: observe.tracing: the harness echo leaves no trace",
    }


@pytest.mark.parametrize(
    ("grader", "column"),
    [
        ("{type: tests, gate: true, cmd: a, pass_threshold: 0.5}", 39),
        ("{type: tests, gate: true, cmd: a, pass_threshold: 1.0}", None),
        ("{type: tests, gate: true, cmd: a}", None),
        ("{type: efficiency, gate: true, target_tokens: 1}", 24),
        ("{type: tests, cmd: a, pass_threshold: 0.5}", None),
    ],
)
def test_a_gate_that_cannot_be_lowered_says_so(
    case: Callable[..., LoadedSpec], grader: str, column: int | None
) -> None:
    loaded = case(HEAD + GRADERS + f"  - {grader}\n")
    said = [one for one in loaded.warnings if "a gate needs a score of 1.0" in one.message]
    assert [(one.line, one.column) for one in said] == ([(6, column)] if column else [])


def test_an_environment_without_venv_is_inert(case: Callable[..., LoadedSpec]) -> None:
    loaded = case(HEAD + GRADERS + "environment: {venv: false, requirements: [six], commands: ['false']}\n")
    assert (loaded.spec.setup.packages, loaded.spec.setup.commands) == ([], [])
    assert "leaves out the whole environment" in loaded.warning_sentences[0]


def test_files_of_requirements_are_read(case: Callable[..., LoadedSpec], write: Write) -> None:
    write("# all\nsix==1.16  # old\n\nattrs; python_version > '3'\n", "requirements.txt")
    loaded = case(HEAD + GRADERS + "environment: {requirement_files: [requirements.txt]}\n")
    assert loaded.spec.setup.packages == ["six==1.16", "attrs; python_version > '3'"]


def test_arguments_follow_the_rules_of_str_format(case: Callable[..., LoadedSpec], write: Write) -> None:
    argv = "['{model}', 'a{{b}} {prompt}', '{sandbox}/x', '{mcp}{artifacts_dir}', '{{{{ env.HOME }}}}']"
    write(f"mine: {{argv: {argv}, timeout_s: 7, env: {{A: '{{{{ x }}}}'}}}}\n", "harnesses.yaml")
    loaded = case(HEAD.replace("echo", "mine").replace("implement it", "'{{ it }}'") + GRADERS)
    assert not loaded.has_expressions
    agent: Any = interpolate(loaded.agents["mine", "m"], {"workspace": "/w", "env": {"HOME": "secret"}})
    assert agent.command == ["m", "a{b} {{ it }}", "/w/x", "", "{{ env.HOME }}"]
    assert (agent.timeout, agent.env) == (7.0, {"A": "{{ x }}"})
    assert {path.name for path in loaded.withheld} >= {"case.yaml", "harnesses.yaml"}


def test_the_nearest_file_of_harnesses_upwards_is_read(case: Callable[..., LoadedSpec], write: Write) -> None:
    write("mine: {argv: [far]}\n", "harnesses.yaml")
    write("mine: {argv: [near]}\n", "evals/harnesses.yaml")
    path = write(HEAD.replace("echo", "mine") + GRADERS, "evals/add/case.yaml")
    loaded = load(path, CheckTypes(), dialects=DIALECTS)
    assert not loaded.has_expressions
    assert loaded.agents["mine", "m"].command == ["near"]  # type: ignore[union-attr]
    assert case(HEAD.replace("echo", "mine") + GRADERS).agents["mine", "m"].command == ["far"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("harness", "kind", "model"),
    [
        ("claude-code", "claude-code", "m"),
        ("claude-code-stream", "claude-code", "m"),
        ("claude-acp", "claude-code", "m"),
        ("codex", "codex", "m"),
        ("gemini", "gemini", "m"),
        ("openai", "mini-swe-agent", "openai/m"),
        ("openai-compatible", "mini-swe-agent", "openai/m"),
    ],
)
def test_harnesses_that_touchstone_brings_are_known_agents_without_a_key(
    case: Callable[..., LoadedSpec], harness: str, kind: str, model: str
) -> None:
    loaded = case(HEAD.replace("echo", harness) + GRADERS)
    assert not loaded.has_expressions
    agent: Any = loaded.agents[harness, "m"]
    assert (agent.type, agent.model, agent.env) == (kind, model, {})
    assert loaded.spec.secrets == []
    assert loaded.spec.gateway_for(agent) is not None


def test_an_adapter_is_left_out_and_a_warning_says_so(case: Callable[..., LoadedSpec]) -> None:
    (warning,) = case(HEAD.replace("echo", "claude-acp") + GRADERS).warning_sentences
    assert "the harness 'claude-acp' starts Claude Code through an adapter; here Claude Code is run by its" in warning
    assert case(HEAD.replace("echo", "gemini") + GRADERS).warnings == ()


def test_hidden_files_come_from_the_directory_of_the_case_in_fixtures(
    case: Callable[..., LoadedSpec], errors: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("clone").resolve()
    text = HEAD + "graders:\n  - {type: pytest, inject: [NAME]}\nfixtures: {repo: a/b, commit: c}\n"
    (root / "add" / "hidden").mkdir(parents=True)
    (root / "add" / "hidden" / "test_x.py").write_text("pass")
    (root / "shared.py").write_text("x")
    case(text.replace("NAME", "../shared.py"), clone=lambda *_: root)
    loaded = case(text.replace("NAME", "./hidden/test_x.py"), clone=lambda *_: root)
    assert root / "add" / "hidden" / "test_x.py" in loaded.withheld
    for name in ("hidden/none.py", "../../x"):
        (found,) = errors(text.replace("NAME", name), clone=lambda *_: root)
        assert found.startswith(
            f"5:29: there is no '{name}' in the directory 'add' of fixtures; that is https://github"
        )


def test_the_default_repository_of_fixtures_can_be_replaced(
    case: Callable[..., LoadedSpec], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, asked = tmp_path_factory.mktemp("clone").resolve(), []
    (root / "add").mkdir()
    (root / "add" / "a.py").write_text("pass")
    (root / "add" / "rubric.md").write_text("good?")

    def clone(url: str, commit: str) -> Path:
        asked.append(url)
        return root

    graders = "graders:\n  - {type: tests, cmd: a, inject: [a.py]}\n  - {type: model_judge, rubric: rubric.md}\n"
    monkeypatch.setenv("TOUCHSTONE_FIXTURES_REPO", "https://host/own.git")
    for repository in ("krimvp/touchstone-eval-fixtures", "a/b"):
        loaded = case(HEAD + graders + f"fixtures: {{repo: {repository}, commit: c}}\n", clone=clone)
        assert {root / "add" / "a.py", root / "add" / "rubric.md"} <= loaded.withheld
    assert asked == ["https://host/own.git", "https://github.com/a/b.git"]


PIECES = [
    "{prompt}",
    "{model}",
    "{sandbox}",
    "{mcp}",
    "{{",
    "}}",
    "{",
    "}",
    "\\",
    "a",
    " ",
    "{{x}}",
    "$",
    "{x}",
    "{model!r}",
]


@given(st.lists(st.sampled_from(PIECES), max_size=6))
@example(["{{", "{{"])
@example(["\\", "{{", "{{"])
@example(["a", "{sandbox}", "{{", "{sandbox}"])
def test_every_argument_is_what_str_format_makes_of_it(pieces: list[str]) -> None:
    token = "".join(pieces)
    values = {"prompt": "p {{ q }}", "model": "\\", "mcp": "", "artifacts_dir": ""}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "harnesses.yaml").write_text(json.dumps({"mine": {"argv": ["a", token]}}))
        model, prompt = json.dumps(values["model"]), json.dumps(values["prompt"])
        head = f"id: a\ntask: {{prompt: {prompt}}}\nmatrix: {{harnesses: [mine], models: [{model}]}}\n"
        (directory / "case.yaml").write_text(head + GRADERS)
        try:
            loaded = load(directory / "case.yaml", CheckTypes(), dialects=DIALECTS)
        except SpecError:
            loaded = None
    try:
        expected = token.format(**{**values, "sandbox": "\0"})
    except (ValueError, KeyError, IndexError):
        assert loaded is None
        return
    # What an expression can't follow, and what we don't have.
    converted = any(conversion for *_, conversion in Formatter().parse(token))
    assert (loaded is None) == (converted or re.search(r"[{\\]\0", expected) is not None)
    if loaded is None:
        return
    assert not loaded.has_expressions
    agent: Any = interpolate(loaded.agents["mine", values["model"]], {"workspace": "/w"})
    assert agent.command == ["a", expected.replace("\0", "/w")]


def test_a_case_that_describes_itself_with_nothing(case: Callable[..., LoadedSpec]) -> None:
    loaded = case(
        'id: a\ndescription: ""\ntask: {prompt: x}\nmatrix: {harnesses: [echo], models: [m]}\n'
        "graders: [{type: command, cmd: 'true'}]\n"
    )
    assert loaded.spec.description == ""
