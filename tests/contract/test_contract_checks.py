"""What spec.md says of checks, sentence by sentence, by the real command."""

from __future__ import annotations

from pathlib import Path

from support.command_line import run_spec, spec

ENDLESS = "{type: file_content, path: a, pattern: '^(a|a)*$'}"


def test_a_regex_that_hits_its_time_limit_fails(tmp_path: Path) -> None:
    """5.1: "`fail`: … a regex that hits its time limit"."""
    text = spec("{type: command, command: ['sh', '-c', 'printf %040d! 0 | tr 0 a > a']}", ENDLESS)
    called = run_spec(tmp_path, text.replace("it_holds: {", "it_holds: {timeout: 1s, "))
    assert (called.code, called.checks["it_holds"]["status"]) == (1, "fail")
    assert "limit" in called.checks["it_holds"]["message"] or "took longer" in called.checks["it_holds"]["message"]


def test_a_workspace_that_the_agent_made_unreadable_fails(tmp_path: Path) -> None:
    """5.1: "`fail`: … a workspace the agent made unreadable or deleted"; whether we are root or not."""
    agent = "{type: command, command: 'chmod 000 .'}"
    called = run_spec(tmp_path, spec(agent))
    assert (called.code, called.cells[0]["verdict"], called.cells[0]["composite"]) == (1, "fail", 0.0)
    assert "can't be read" in called.cells[0]["reason"]


def test_an_emptied_workspace_fails_the_checks_that_need_it(tmp_path: Path) -> None:
    """5.1: "`fail`: … a workspace the agent made unreadable or deleted"."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "x").touch()
    agent = "{type: command, command: 'rm -rf \"$KEYSTONE_WORKSPACE\"'}"
    called = run_spec(tmp_path, spec(agent, "{type: file_exists, path: x}", workspace="start"))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail")


SENDS = "import urllib.request as r; r.urlopen(r.Request('{{ services.api.url }}/x', headers={'X-Test': '1'}))"


def test_a_filter_that_is_neither_header_nor_field_is_told_and_does_not_make_it_green(tmp_path: Path) -> None:
    """5.3: "one that none of at least one recorded request had as header or field is told as a notice, and an assertion
    that holds only because of it fails"."""
    services = "[{name: api, type: http_mock, record: true}]"
    agent = f'{{type: command, command: [python3, -c, "{SENDS}"]}}'
    asked = "{{type: http_mock_assertions, service: api, assertions: [{{field: request_count, {}}}]}}"
    for folder, operator in (("as_it_is", "filters: {X-Tset: '1'}, equals: 0"), ("elsewhere", "equals: 1")):
        (tmp_path / folder).mkdir()
        called = run_spec(tmp_path / folder, spec(agent, asked.format(operator), services=services))
        found = [one for one in called.cells[0].get("notices", []) if "X-Tset" in one]
        if folder == "as_it_is":
            assert called.code == 1, called
            assert found == [
                "it_holds: none of the 1 recorded requests had a header or a field 'X-Tset', did you mean 'X-Test'?"
            ]
        else:
            assert (called.code, found) == (0, []), called


def test_a_misspelt_filter_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """5.3: "one that looks like a misspelt filter … is exit 2 and names `headers:` and `json:`"."""
    asked = (
        "{type: http_mock_assertions, service: api,"
        " assertions: [{field: request_count, filters: {mehtod: DELETE}, equals: 0}]}"
    )
    called = run_spec(tmp_path, spec("{type: none}", asked, services="[{name: api, type: http_mock, record: true}]"))
    assert called.code == 2
    assert "did you mean 'method'?" in called.err
    assert "headers: {mehtod: …} or json: {mehtod: …}" in called.err
