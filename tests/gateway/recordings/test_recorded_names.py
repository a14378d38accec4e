from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.gateway.recordings.names import Names, forms_of, ids_in
from keystone_action.gateway.recordings.recording import RecordingError

HERE = {
    "workspace": "/tmp/keystone-1a2b/cell/workspace",
    "home": "/tmp/keystone-1a2b/cell/home",
    "tmp": "/tmp/keystone-1a2b",
    "cell": "repair.r0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "service.api.url": "http://127.0.0.1:4711",
    "service.api.port": "4711",
    "service.db.url": "postgresql://app:s3cret-of-db@127.0.0.1:5433/app",
    "service.db.port": "5433",
    "service.db.user": "app",
    "service.db.database": "app",
    "gateway.anthropic.url": "http://127.0.0.1:40123/anthropic",
    "gateway.key": "keystone-0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "secret.TOKEN": 'hunter2/é"x',
}
ELSEWHERE = {
    "workspace": "/workspace",
    "home": "/root",
    "tmp": "/tmp",
    "cell": "repair.r3",
    "commit": "89abcdef0123456789abcdef0123456789abcdef",
    "service.api.url": "http://api:80",
    "service.api.port": "80",
    "service.db.url": "postgresql://ks_9f:other-of-db@db:5432/ks_9f",
    "service.db.port": "5432",
    "service.db.user": "ks_9f",
    "service.db.database": "ks_9f",
    "gateway.anthropic.url": "http://gateway:8080/anthropic",
    "gateway.key": "keystone-ffffffffffffffffffffffffffffffff",
    "secret.TOKEN": "correct horse",
}
IDS = ["toolu_01ABCDEFGHJKLMNPQRSTUVWX", "call_7abcdef0", "q8Fh2kLm9ZxW4v0T", "functions.bash:0", "1", "no-digits-here"]


def names_here() -> Names:
    names = Names(HERE)
    names.number(IDS)
    return names


def names_elsewhere() -> Names:
    names = Names(ELSEWHERE)
    names.named(ELSEWHERE["secret.TOKEN"])  # the agent has said it
    return names


def test_a_secret_is_given_out_only_where_the_agent_has_said_it() -> None:
    names = Names(ELSEWHERE)
    planted = {"text": "{secret.TOKEN} {secret.TOKEN:url} {workspace}"}
    assert names.filled(planted) == {"text": "{secret.TOKEN} {secret.TOKEN:url} /workspace"}
    names.named({"content": "{secret.TOKEN}, {=secret.TOKEN}"})  # its name is not its value
    assert names.filled("{secret.TOKEN}") == "{secret.TOKEN}"
    names.named({"content": ["say correct horse"]})
    assert names.filled(planted) == {"text": "correct horse correct%20horse /workspace"}


def pieces() -> st.SearchStrategy[str]:
    """Texts that are made of what names are about, and of what stands between."""
    values = [*HERE.values(), *IDS, *(quote(value, safe="") for value in HERE.values())]
    values += [json.dumps(value)[1:-1] for value in HERE.values()]
    tokens = ["{workspace}", "{=home}", "{id:3}", "{id:own-1}", "{id:1:toolu_}", "{secret.TOKEN}", "{secret.NONE}"]
    tokens += ["{service.api.port:number}", "{workspace:url}", "{", "}", "=", "{=", "id:3}", "workspace}"]
    between = ["/", "-", ":", " ", "\\n", "port ", '"port": ', "localhost:", "a", "7", ".py", "\ud800", "\0", "é"]
    return st.lists(st.sampled_from([*values, *tokens, *between]) | st.text(max_size=4), max_size=6).map("".join)


def json_values() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.sampled_from([4711, 5433, 1, True, False]) | st.floats(allow_nan=False)
    names = pieces() | st.sampled_from(["port", "api_port", "id"])
    return st.recursive(
        st.none() | numbers | pieces(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )


@given(json_values())
@settings(max_examples=5 * settings().max_examples, deadline=None)
@pytest.mark.slow
def test_every_value_is_found_again_in_the_run_that_it_was_recorded_in(value: Any) -> None:
    names = names_here()
    found = names.filled(names.named(value))
    assert found == value
    assert json.dumps(found) == json.dumps(value)  # True is not 1


@given(json_values())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_every_value_is_found_again_without_values(value: Any) -> None:
    names = Names({})
    assert names.filled(names.named(value)) == value


TEMPLATES = [
    "cat {0[workspace]}/a.py",
    "cd {0[workspace]}/ && ls",
    "{0[workspace]}",
    '"{0[home]}/.config"',
    "cat <<EOF\\n{0[workspace]}/b\\nEOF",
    "\x1b[1m{0[workspace]}/c.py\x1b[0m:7",
    "gcc -I{0[workspace]}/include",
    "PATH={0[home]}/bin:/usr/bin",
    "file://{0[workspace]}/index.html",
    "curl {0[service.api.url]}/v1/users?x=1",
    "curl '{0[service.api.url]}'",
    "psql {0[service.db.url]} -c 'select 1'",
    "the key is {0[gateway.key]}, said {0[secret.TOKEN]}!",
    "HEAD is {0[commit]}",
    "nc -z localhost {0[service.api.port]}; port {0[service.api.port]}",
    '{{"port": {0[service.api.port]}}}',
    "cell {0[cell]} in {0[tmp]}/x",
    'f"{{workspace}} {{id:3}} {{=home}}"',
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_was_recorded_here_is_what_would_be_recorded_elsewhere(template: str) -> None:
    here, elsewhere = template.format(HERE), template.format(ELSEWHERE)
    recorded = Names(HERE).named(here)
    assert recorded == Names(ELSEWHERE).named(elsewhere)
    assert names_elsewhere().filled(recorded) == elsewhere
    assert not any(value in recorded for value in HERE.values() if len(value) > 4)


@given(st.lists(st.sampled_from(TEMPLATES), min_size=1, max_size=5).map(" ; ".join))
@settings(deadline=None)
def test_recordings_go_from_run_to_run(template: str) -> None:
    recorded = Names(HERE).named({"text": [template.format(HERE)]})
    there = names_elsewhere()
    assert there.filled(recorded) == {"text": [template.format(ELSEWHERE)]}
    assert there.named(there.filled(recorded)) == recorded


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("/tmp/keystone-1a2b/cell/workspace-old/a", "{tmp}/cell/workspace-old/a"),
        ("/tmp/keystone-1a2b/cell/workspace2", "{tmp}/cell/workspace2"),
        ("/tmp/keystone-1a2b/cell/workspace.", "{workspace}."),
        ("/srv/tmp/keystone-1a2b/x", "/srv/tmp/keystone-1a2b/x"),
        ("4711 lines in foo.py:4711", "4711 lines in foo.py:4711"),
        ("listening on localhost:4711.", "listening on {service.api.url:localhost-authority}."),
        ("http://127.0.0.1:47110/", "http://127.0.0.1:47110/"),
        ("the app of the happy user app", "the app of the happy user app"),
        ("-tmp-keystone-1a2b-cell-workspace", "{workspace:dashed}"),
        ("-tmp-keystone-1a2b-cell-workspace-lib/x", "{workspace:dashed}-lib/x"),
        ("--tmp-keystone-1a2b-cell-workspace1", "--tmp-keystone-1a2b-cell-workspace1"),
        ("%2Ftmp%2Fkeystone-1a2b%2Fcell%2Fworkspace%2Fa", "{workspace:url}%2Fa"),
        ('{"path":"\\/tmp\\/keystone-1a2b\\/cell\\/workspace\\/a"}', '{"path":"{workspace:slashed}\\/a"}'),
        (json.dumps({"in": json.dumps('hunter2/é"x')}), '{"in": "\\"hunter2/\\\\u00e9\\\\\\"x\\""}'),
        ("0123456 first", "{commit:short} first"),
        ("use {workspace} and {id:9}", "use {=workspace} and {=id:9}"),
        ("use {secret.OTHER} and {name}", "use {secret.OTHER} and {name}"),
    ],
)
def test_what_is_named(text: str, recorded: str) -> None:
    assert Names(HERE).named(text) == recorded
    assert Names(HERE).filled(recorded) == text


def test_a_port_may_be_a_number() -> None:
    recorded = Names(HERE).named({"api_port": 4711, "count": 4711, "port": 80, "ports": [4711]})
    assert recorded == {"api_port": "{service.api.port:number}", "count": 4711, "port": 80, "ports": [4711]}
    assert Names(ELSEWHERE).filled(recorded)["api_port"] == 80


def test_a_home_that_is_the_root_is_no_name() -> None:
    assert Names({"home": "/", "workspace": ""}).named("cd / && ls /home") == "cd / && ls /home"


def test_a_link_to_the_workspace_is_known_by_both_paths(tmp_path: Any) -> None:
    (tmp_path / "really").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "really")
    names = Names({"workspace": str(tmp_path / "link")})
    assert names.named(f"{tmp_path}/really/a {tmp_path}/link/a") == "{workspace:real}/a {workspace}/a"


def test_a_value_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'session' is not a name"):
        Names({"session": "x"})


def test_values_nested_without_end_are_refused() -> None:
    value: Any = "x"
    for _ in range(300):
        value = [value]
    with pytest.raises(RecordingError, match="more than 200"):
        Names(HERE).named(value)
    with pytest.raises(RecordingError, match="more than 200"):
        Names(HERE).filled(value)


def test_ids_have_numbers_in_the_order_in_which_they_came() -> None:
    names = names_here()
    texts = ["see toolu_01ABCDEFGHJKLMNPQRSTUVWX.txt, bash__call_7abcdef0", "call_7abcdef09 and 1"]
    assert names.named([*IDS[:3], *texts, *IDS[3:]]) == [
        "{id:1:toolu_}",
        "{id:2:call_}",
        "{id:3}",
        "see {id:1:toolu_}.txt, bash__{id:2:call_}",
        "call_7abcdef09 and 1",
        *IDS[3:],
    ]


def test_an_id_that_nobody_made_is_made_up_and_known_from_then_on() -> None:
    names = Names({})
    made = names.filled({"id": "{id:3:toolu_}", "text": "{id:12}, {id:3:toolu_}"})
    assert made["text"] == f"replayed0000000000000012, {made['id']}"
    assert made["id"].startswith("toolu_")
    assert made["id"].replace("_", "").isalnum()
    assert names.named(made) == {"id": "{id:3:toolu_}", "text": "{id:12}, {id:3:toolu_}"}
    assert Names({}).filled("{id:3:toolu_}") == made["id"]
    names.number(["call_new_one_1"])
    assert names.named("call_new_one_1") == "{id:13:call_}"


ANSWERS = {
    "anthropic": (
        {
            "id": "msg_1",
            "type": "message",
            "content": [
                {"type": "text", "text": "x", "id": 7},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"id": "theirs", "call_id": "theirs"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
            ],
        },
        ["msg_1", "toolu_1", "srvtoolu_1"],
    ),
    "chat": (
        {
            "id": "chatcmpl-1",
            "choices": [{"message": {"tool_calls": [{"id": "call_1", "function": {"arguments": '{"id":"theirs"}'}}]}}],
        },
        ["chatcmpl-1", "call_1"],
    ),
    "responses": (
        {
            "id": "resp_1",
            "previous_response_id": "resp_0",
            "tools": [{"id": "theirs"}],
            "metadata": {"id": "theirs"},
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "function_call", "id": "fc_1", "call_id": "call_1", "arguments": "{}"},
                {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_2", "action": {"id": "theirs"}},
            ],
        },
        ["resp_1", "resp_0", "rs_1", "fc_1", "call_1", "lsh_1", "call_2"],
    ),
    "gemini": (
        {
            "responseId": "r1",
            "candidates": [{"content": {"parts": [{"functionCall": {"id": "g1", "args": {"id": "theirs"}}}]}}],
        },
        ["r1", "g1"],
    ),
}


@pytest.mark.parametrize("api", ANSWERS)
def test_the_ids_of_an_answer_are_found_and_no_others(api: str) -> None:
    document, ids = ANSWERS[api]
    assert ids_in(document) == ids
    assert ids_in([document, document]) == ids


@pytest.mark.parametrize("document", [None, 7, "x", [], {}, {"id": 7}, {"output": "text"}, {"output": [None, "x"]}])
def test_odd_answers_have_no_ids(document: Any) -> None:
    assert ids_in(document) == []


def test_an_answer_nested_without_end_is_refused() -> None:
    value: Any = []
    for _ in range(900):
        value = [value]
    assert ids_in(value) == []
    with pytest.raises(RecordingError, match="more than 200"):
        ids_in({"content": value})


@pytest.mark.slow
def test_megabytes_of_what_looks_like_names_are_read() -> None:
    names = names_here()
    for text in ("toolu_" * 300_000, "/tmp/keystone-1a2b" * 100_000, "{" * 1_000_000, "4711 " * 300_000):
        assert names.filled(names.named(text)) == text


def test_the_forms_of_a_path_and_of_an_address() -> None:
    path = {form.token: form.text for form in forms_of("workspace", "/srv/my.project")}
    assert path["{workspace:dashed}"] == "-srv-my-project"
    address = {form.token: form.text for form in forms_of("gateway", "http://127.0.0.1:4711/v1/")}
    assert address["{gateway}"] == "http://127.0.0.1:4711/v1"
    assert address["{gateway:localhost}"] == "http://localhost:4711/v1"
    assert address["{gateway:authority}"] == "127.0.0.1:4711"
