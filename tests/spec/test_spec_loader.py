"""Loading a whole spec: every error at its place, and what the rest of the house is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.check_types import CHECKS, HEAD, TYPES

from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.models.fields import CheckModel

Errors = Callable[..., list[str]]
Load = Callable[..., LoadedSpec]
Write = Callable[..., Path]


def test_the_minimal_spec(load_text: Load, directory: Path) -> None:
    loaded = load_text(HEAD + CHECKS)
    assert loaded.spec.id == "sample"
    assert loaded.directory == directory
    assert loaded.lines == {"there": 5}
    assert [one.id for one in loaded.scenarios] == ["sample"]
    assert loaded.withheld == {directory / "keystone.yaml"}
    assert loaded.author_files == ()
    assert loaded.warnings == ()
    content = (HEAD + CHECKS).encode()
    assert loaded.sha256 == hashlib.sha256(len(content).to_bytes(8, "big") + content).hexdigest()


BAD = """version: 2
id: Bad_id
taks: {}
task: {prompt: do it, fils: []}
agent: {type: comand}
services:
  - {name: db, image: "postgres:16", ready_timeout: soon}
  - {name: api, typ: http_mock}
parallelism: {replicas: 0}
secrets: [A B]
invariants:
  one:
    gate: 3
    weight: .nan
    check: {type: command, cmd: 3, expect_exit: "0", foo: 1}
  t wo:
    check: {type: tests}
  three:
    check: {type: file_exist, path: x}
  four:
    check: {type: custom, script: checks/verfy.py}
  five: {check: {type: file_content, path: ../x, pattern: "("}}
"""

GOLDEN = """\
1:10: version, found the number 2, expected 1
2:5: id, found 'Bad_id', expected kebab-case: a-z, 0-9 and single dashes
3:1: unknown key 'taks', expected one of agent, audit, base, dataset, description, determinism, extends, fixtures, \
forbidden, gateway, id, invariants, network, parallelism, resources, scenarios, scoring, secrets, services, setup, \
tags, task, version, workspace, did you mean 'task'?
4:23: unknown key 'fils', expected one of files, prompt, system, turns, did you mean 'files'?
5:15: unknown type of agent, found 'comand', expected one of command, cli, python, none, http, anthropic, paragon, \
openai, claude-code, codex, gemini, mini-swe-agent, opencode, aider, qwen-code, did you mean 'command'?
7:53: ready_timeout, found 'soon', expected a duration like 90, 90s, 10m or 1h30m
8:5: the key 'image' is missing
8:17: unknown key 'typ', expected one of command, env, image, isolation, name, ports, ready_timeout, type, wait_for, \
did you mean 'type'?
9:25: replicas, found the number 0, expected a number of at least 1
10:11: secrets[0], found 'A B', expected letters, digits and '_', like a variable
13:11: gate, found the number 3, expected true or false or passed
14:13: weight, found the number nan, expected a finite number
15:33: cmd, found the number 3, expected a text; put it into quotes
15:49: expect_exit, found '0', expected a whole number
15:54: unknown key 'foo', expected one of command, exit_code, type
16:3: the name, found 't wo', expected letters, digits, '_' and '-'
17:19: unknown check type 'tests', expected one of file_exists, command_exit, command, file_content, sql, \
http_mock_assertions, custom, llm_as_judge
19:19: unknown check type 'file_exist', expected one of file_exists, command_exit, command, file_content, sql, \
http_mock_assertions, custom, llm_as_judge, did you mean 'file_exists'?
21:35: there is no file 'checks/verfy.py'; did you mean 'verify.py'?
22:44: '..' in '../x', expected a path that stays in the workspace
22:59: '(' is not a regular expression: missing ) at position 1"""


def test_all_errors_of_a_file_at_once(errors_of: Errors, write: Write) -> None:
    write("", "checks/verify.py")
    assert "\n".join(errors_of(BAD)) == GOLDEN


def test_the_message_shows_line_and_caret(write: Write) -> None:
    path = write(HEAD.replace("id: sample", "id: sample\ncolour: red") + CHECKS)
    with pytest.raises(SpecError) as caught:
        load(path, TYPES)
    lines = caught.value.message.splitlines()
    assert lines[0].startswith(f"{path}:3:1: unknown key 'colour', expected one of agent, audit")
    assert lines[1:] == ["    colour: red", "    ^"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty; `keystone init` writes a first spec"),
        ("- a\n", "1:1: a spec, found a list, expected a mapping with version, id, task, …"),
        ("hello", "1:1: a spec, found 'hello', expected a mapping with version, id, task, …"),
        ("id: a\ntask: {prompt: b}\nmatrix: {harnesses: [echo], models: [c]}\ngraders: []\n", "4:1: no graders; "),
        ("scenarios: [{name: a, input: b}]\n", "1:1: nothing says which agent this suite is for; write `adapter:"),
    ],
)
def test_files_that_are_no_spec(errors_of: Errors, text: str, expected: str) -> None:
    (found,) = errors_of(text)
    assert found.startswith(expected)


def test_missing_keys_are_named(errors_of: Errors) -> None:
    missing = [f"1:1: the key '{key}' is missing" for key in ("agent", "id", "invariants", "task")]
    found = sorted(errors_of("version: 1\n"))
    assert [one.partition(";")[0] for one in found] == missing
    assert "write each under its name" in found[2]
    (found,) = errors_of(HEAD + "invariants: {a: {check: {path: x}}}\n")
    assert found.startswith("5:25: the key 'type' is missing, expected one of file_exists, command_exit")
    assert errors_of(HEAD + "invariants: {}\n") == ["5:13: invariants is empty, expected at least 1 entry"]


def test_a_spec_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    for path, expected in ((tmp_path / "gone.yaml", "there is no such file"), (tmp_path, "is a directory")):
        with pytest.raises(SpecError, match=expected):
            load(path, TYPES)


def test_a_doubled_key_does_not_hide_other_errors(errors_of: Errors) -> None:
    found = errors_of(HEAD + "id: again\ncolour: red\n" + CHECKS)
    assert [one.split(": ", 1)[1].split(",")[0].split(";")[0] for one in found] == [
        "the key 'id' is there twice",
        "unknown key 'colour'",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("workspace: nowhere", "there is no directory 'nowhere'"),
        ("workspace: note.txt", "'note.txt' is not a directory"),
        ("workspace: /etc", "the path '/etc' is absolute"),
        ("workspace: ../..", "the path '../..' leaves <here>"),
        ("workspace: outside", "the path 'outside' leaves <here>"),
        ("workspace: ''", "an empty name of a directory"),
        ("dataset: {path: folder}", "'folder' is a directory"),
        ("dataset: {path: fifo}", "'fifo' is not a regular file"),
        ("fixtures: [{type: directory, from: folder, to: /etc}]", "the path '/etc' is absolute"),
        ("fixtures: [{type: directory, from: folder, to: a/../../b}]", "'..' in 'a/../../b'"),
        ("fixtures: [{type: git_repo, url: x, path: ..}]", "'..' in '..'"),
        ("fixtures: [{type: sql, service: db, sql: x}]", "there is no service 'db'; this spec has no services"),
        ("services: [{name: s, type: sqlite, path: /var/x.db}]", "the path '/var/x.db' is absolute"),
        ("setup: {files: [{path: ../x, content: a}]}", "'..' in '../x'"),
        (
            "setup: {files: [{path: x, content: a, mode: 0755}]}",
            "found the number 755, expected octal digits in quotes",
        ),
    ],
)
def test_paths(errors_of: Errors, write: Write, directory: Path, line: str, expected: str) -> None:
    import os

    write("x", "note.txt")
    write("x", "folder/file")
    (directory / "outside").symlink_to("/")
    os.mkfifo(directory / "fifo")
    assert any(expected in one for one in errors_of(HEAD + line + "\n" + CHECKS))


def test_upwards_is_allowed_within_the_repository(write: Write, directory: Path) -> None:
    write("x", "src/main.py")
    path = write(HEAD + "workspace: ../src\n" + CHECKS, "evals/keystone.yaml")
    assert load(path, TYPES).author_files == (directory / "src",)


def test_without_a_repository_the_working_directory_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "evals").mkdir()
    path = tmp_path / "evals" / "keystone.yaml"
    path.write_text(HEAD + "workspace: ../src\n" + CHECKS)
    monkeypatch.chdir(tmp_path)
    assert load(path, TYPES).author_files == (tmp_path / "src",)
    monkeypatch.chdir("/usr")
    with pytest.raises(SpecError, match="leaves"):
        load(path, TYPES)


def test_author_files_and_what_is_withheld(load_text: Load, write: Write, directory: Path) -> None:
    for name in ("checks/a.py", "checks/b.py", "docs/x.md", "prompt.md", "seed.sql", "cases.jsonl", "page.html"):
        write('{"input": "x"}\n', name)
    loaded = load_text(
        """version: 1
id: sample
task: {prompt: {file: prompt.md}, files: [docs]}
agent: {type: none}
setup: {files: [{path: x, from: docs/x.md}]}
services: [{name: db, type: postgres}, {name: api, type: http_mock, routes: [{path: /, file: page.html}]}]
fixtures: [{type: sql, service: db, file: seed.sql}]
dataset: {path: cases.jsonl}
parallelism: {matrix: {which: [a, b]}}
invariants: {a: {check: {type: custom, script: 'checks/{{ params.which }}.py'}}}
"""
    )
    names = {str(path.relative_to(directory)) for path in loaded.author_files}
    everything = {
        "prompt.md",
        "docs",
        "docs/x.md",
        "seed.sql",
        "cases.jsonl",
        "checks/a.py",
        "checks/b.py",
        "page.html",
    }
    assert names == everything
    withheld = {str(path.relative_to(directory)) for path in loaded.withheld}
    assert withheld == {"keystone.yaml", "cases.jsonl", "checks/a.py", "checks/b.py"}
    assert loaded.prompt == '{"input": "x"}\n'
    assert loaded.prompt_is_literal


def test_files_that_sql_scripts_include_are_the_authors_and_withheld(
    load_text: Load, directory: Path, write: Write, tmp_path: Path
) -> None:
    """So they are in the run's identity, and compared with those of the base commit."""
    (directory.parent / "outside.sql").write_text("SELECT 1")
    write(
        "-- a\n\\i parts/one.sql\nSELECT 1; \\copy t (a, b) from 'rows one.csv' csv\n\\i ../outside.sql\n", "dump.sql"
    )
    write("\\ir two.sql;\n\\ir missing.sql\n\\i dump.sql", "parts/one.sql")
    write("INSERT INTO t VALUES ('\\i never.sql');", "parts/two.sql")
    write("1,2", "rows one.csv")
    write("source tables.sql\n  SOURCE more.sql ;\n\\. last.sql\nselect 'source', \"source never.sql\"", "mysql.sql")
    for name in ("tables.sql", "more.sql", "last.sql", "inline.sql", "unnamed.sql"):
        write("", name)
    loaded = load_text(
        HEAD
        + CHECKS
        + """
services: [{name: db, type: postgres}]
fixtures:
  - {type: sql, service: db, file: dump.sql}
  - {type: sql, service: db, file: mysql.sql}
  - {type: sql, service: db, sql: "\\\\i inline.sql"}
"""
    )
    included = {"parts/one.sql", "parts/two.sql", "rows one.csv", "tables.sql", "more.sql", "last.sql", "inline.sql"}
    names = {str(path.relative_to(directory)) for path in loaded.author_files}
    assert names == {"dump.sql", "mysql.sql", *included}
    assert {str(path.relative_to(directory)) for path in loaded.withheld} == {"keystone.yaml", *included}
    assert {str(path.relative_to(directory)) for path in loaded.sql_files} == names


def test_every_file_that_a_path_can_become_must_be_there(errors_of: Errors, write: Write) -> None:
    write("", "checks/a.py")
    text = "parallelism: {matrix: {w: [a, b, c]}, exclude: [{w: c}]}\n"
    check = "invariants: {a: {check: {type: custom, script: 'checks/{{ params.w }}.py'}}}\n"
    (found,) = errors_of(HEAD + text + check)
    assert "there is no file 'checks/b.py'" in found


def test_services_must_exist_and_fit(errors_of: Errors) -> None:
    services = """services:
  - {name: db, image: "docker.io/library/postgres:16@sha256:0123456789abcdef0123456789abcdef"}
  - {name: api, type: http_mock}
  - {name: rec, type: http_mock, record: true}
"""
    checks = """invariants:
  a: {check: {type: sql, service: bd, query: x}}
  b: {check: {type: sql, service: api, query: x}}
  c: {check: {type: http_mock_assertions, service: api}}
  d: {check: {type: http_mock_assertions, service: db}}
  e: {check: {type: llm_as_judge, criteria: x, input_from: api.last_request.body}}
  f: {check: {type: llm_as_judge, criteria: x, input_from: agent_outputs}}
  g: {check: {type: llm_as_judge, criteria: x, input_from: file:../x}}
  ok: {check: {type: llm_as_judge, criteria: x, input_from: rec.last_request.body}}
"""
    assert "\n".join(errors_of(HEAD + services + checks)) == SERVICE_ERRORS


SERVICE_ERRORS = """\
10:35: there is no service 'bd', expected one of api, db, rec
11:35: the service 'api' is not a database, found http_mock, expected a service of type postgres, mysql or sqlite
12:52: the service 'api' does not record its requests; add `record: true` to it
13:52: the service 'db' records no requests, found postgres, expected a service of type http_mock
14:60: the service 'api' does not record its requests; add `record: true` to it
15:60: nothing to look at, found 'agent_outputs', expected one of agent_output, stdout, workspace, diff, trace, \
conversation, file:<path>, <service>.<field>, did you mean 'agent_output'?
16:60: '..' in '../x', expected a path that stays in the workspace"""


def test_a_service_as_host_name_is_a_warning(load_text: Load) -> None:
    head = HEAD.replace(
        "{type: none}", "{type: command, command: 'curl http://api:80/x', env: {U: 'http://api', V: //x}}"
    )
    loaded = load_text(head + "services: [{name: api, type: http_mock}]\n" + CHECKS)
    assert [(one.line, one.help) for one in loaded.warnings] == [(4, "use {{ services.api.url }}")] * 2
    assert "'//api' is the service's name, which is not a host name here" in loaded.warning_sentences[0]


def test_a_service_as_host_name_is_right_in_another_services_container(load_text: Load) -> None:
    services = "services: [{name: store, image: x}, {name: front, image: x, env: {STORE: 'http://store:80'}}]\n"
    assert load_text(HEAD + services + CHECKS).warnings == ()


@pytest.mark.parametrize(
    ("services", "wrong"),
    [
        ("{name: store, image: x}, {name: front, image: x, env: {A: '{{ services.store.url }}'}}", 0),
        ("{name: front, image: x, env: {A: '{{ services.api.url }}'}}, {name: api, type: http_mock}", 0),
        ("{name: front, image: x, env: {A: '{{ services.store.url }}'}}, {name: store, image: x}", 1),
        ("{name: store, image: x, env: {A: '{{ services.store.url }}'}}", 1),
        ("{name: store, image: x}, {name: db, image: 'postgres:16', env: {A: '{{ services.store.url }}'}}", 1),
    ],
)
def test_containers_know_the_addresses_of_what_is_ready_before_them(
    errors_of: Errors, load_text: Load, services: str, wrong: int
) -> None:
    text = f"{HEAD}services: [{services}]\n{CHECKS}"
    if not wrong:
        assert len(load_text(text).spec.services) == 2
        return
    (error,) = errors_of(text)
    assert "the address of service store is not known when this one is started" in error


class Lazy(Mapping[str, type[CheckModel]]):
    """A registry that knows more than it lists, as the real one does."""

    def __getitem__(self, name: str) -> type[CheckModel]:
        if name == "broken":
            raise UsageError("the check type 'broken' can't be imported", help="Repair it.")
        return TYPES[name]

    def __contains__(self, name: object) -> bool:
        return name in TYPES or name == "broken"

    def __iter__(self) -> Iterator[str]:
        return iter(TYPES)

    def __len__(self) -> int:
        return len(TYPES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broken", "the check type 'broken' can't be imported; Repair it."),
        ("[a]", "expected the name of a check type"),
    ],
)
def test_a_lazy_registry_reports_at_the_type(write: Write, name: str, expected: str) -> None:
    path = write(HEAD + f"invariants:\n  a:\n    check: {{type: {name}}}\n")
    with pytest.raises(SpecError) as caught:
        load(path, Lazy())
    (found,) = caught.value.diagnostics
    assert (found.line, found.column) == (7, 19)
    assert expected in found.sentence


class Fragile(CheckModel):
    """A third party's, which breaks on what it did not expect."""

    type_name = "fragile"
    value: str

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "value": document["value"].strip()}


def test_a_check_type_that_breaks_is_reported_at_its_place(write: Write) -> None:
    path = write(HEAD + "invariants:\n  a:\n    check: {type: fragile, value: 3}\n")
    with pytest.raises(SpecError) as caught:
        load(path, {"fragile": Fragile})
    assert ":7:12: check type 'fragile' can't read this check: AttributeError" in caught.value.message


def test_hostile_text_is_made_visible(errors_of: Errors) -> None:
    (found,) = errors_of(HEAD + '"\\e[31mevil\\u202e": 1\n' + CHECKS)
    assert "unknown key '\\x1b[31mevil\\u202e'" in found


@settings(
    max_examples=3 * settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(data=st.data())
def test_a_damaged_spec_is_an_error_and_never_a_crash(write: Write, data: st.DataObject) -> None:
    lines = BAD.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["drop", "double", "cut", "value"]))
        if what == "drop":
            lines[index] = ""
        elif what == "double":
            lines.insert(index, lines[index])
        elif what == "cut":
            lines[index] = lines[index][: data.draw(st.integers(0, len(lines[index])))]
        else:
            key = lines[index].split(":")[0]
            value = data.draw(st.sampled_from(["[]", "{}", "3", "null", "x", "[{}]", "{a: {b: c}}", "[[1]]", "true"]))
            lines[index] = f"{key}: {value}"
    text = "\n".join(lines)
    path = write(text)
    found: tuple[object, ...] = ()
    try:
        load(path, TYPES)
    except SpecError as error:
        found = error.diagnostics
        for one in error.diagnostics:
            assert 1 <= one.line <= len(lines)
    assert found
