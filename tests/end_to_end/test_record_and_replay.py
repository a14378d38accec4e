"""Recorded once, replayed for nothing: the same verdict without the provider, without a key, in another place."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called
from support.model_agents import MODEL, REAL_KEY, behind, calls, fails, run, says, spec_of, trace_events
from support.scripted_provider import Says, stream

# What it asks holds its workspace, the time and its own process; what it is answered is carried out.
WORKER = """
import subprocess, time
messages = [user("work in " + os.getcwd() + " and answer done")]
while True:
    status, answer = ask(messages, system=os.environ.get("SYSTEM", "You help."))
    if status != 200:
        print("refused:", answer["error"]["message"])
        sys.exit(3)
    wanted = [block for block in answer["content"] if block["type"] == "tool_use"]
    messages.append({"role": "assistant", "content": answer["content"]})
    if not wanted:
        print(answer["content"][0]["text"])
        break
    for call in wanted:
        output = subprocess.run(call["input"]["command"], shell=True, capture_output=True, text=True).stdout
        took = f"\\nended at {time.strftime('%H:%M:%S')} after {time.monotonic() % 7:.2f} s"
        messages.append(result(call["id"], output + took))
"""
CHECKS = {
    "made": {"check": {"type": "file_content", "path": "made.txt", "contains": "made"}},
    "said": {"check": {"type": "regex", "pattern": "done"}},
    "called": {"check": {"type": "trace", "require_tools": [{"name": "Bash"}]}},
}


def write_in(request: Any) -> Says:
    """A call with the agent's own folder in its arguments, as models make them."""
    folder = request.document["messages"][0]["content"].split(" ")[2]
    return calls(("toolu_01R5x8kQ2mWv", "Bash", {"command": f"echo made > {folder}/made.txt; pwd"}))


def spec(**fields: Any) -> dict[str, Any]:
    return spec_of(WORKER, **{"invariants": CHECKS, **fields})


def record(folder: Path, *, environ: Mapping[str, str] = {}, **fields: Any) -> Called:
    with behind(write_in, says("done")) as (_, ours):
        return run(folder, spec(**fields), {**ours, **environ}, "--gateway", "record")


def replay(folder: Path, **fields: Any) -> Called:
    """Nothing listens, and there is no key."""
    output = folder / "out"
    if output.exists():
        output.rename(folder / f"out-{len(list(folder.iterdir()))}")
    return run(folder, spec(**fields), {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, "--gateway", "replay")


def recording(folder: Path) -> Path:
    (path,) = (folder / "recordings" / "models").iterdir()
    return path


def observed(called: Called) -> Any:
    """What must not differ between runs."""
    (cell,) = called.cells
    checks = [(one["name"], one["status"], one["score"]) for one in cell["invariants"]]
    return cell["verdict"], cell["composite"], checks, (called.output / "cells" / cell["id"] / "diff.patch").read_text()


def test_a_replay_is_the_recorded_run_without_provider_and_key(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "another" / "place"
    one.mkdir()
    other.mkdir(parents=True)
    first = record(one)
    assert first.code == 0, first.err + first.out
    assert first.cells[0]["trace"]["replayed"] is None
    (one / "recordings").rename(other / "recordings")
    again = replay(other)
    assert again.code == 0, again.err + again.out
    assert observed(again) == observed(first)
    (cell,) = again.cells
    assert (cell["trace"]["source"], cell["trace"]["replayed"], cell["trace"]["differs"]) == ("gateway", "exact", "")
    assert cell["trace"]["recorded_at"] in recording(other).read_text().splitlines()[0]
    assert cell["usage"]["spent_usd"] == 0
    assert cell["usage"] | {"spent_usd": 0} == first.cells[0]["usage"] | {"spent_usd": 0}
    inputs = [event["payload"]["input"]["command"] for event in trace_events(again) if event["type"] == "tool_call"]
    assert "{workspace}" not in inputs[0]
    assert inputs[0].endswith("/made.txt; pwd")


def test_no_key_no_address_and_no_folder_of_a_run_is_in_a_recording(tmp_path: Path) -> None:
    called = record(tmp_path)
    assert called.code == 0, called.err
    text = recording(tmp_path).read_text()
    assert REAL_KEY not in text
    assert "127.0.0.1" not in text
    assert "/tmp/" not in text
    assert "{workspace}/made.txt" in text
    assert "{id:1}" in text
    assert stat.S_IMODE(recording(tmp_path).stat().st_mode) == 0o644


def test_a_changed_prompt_misses_by_content_and_the_sentence_says_where(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    called = replay(tmp_path, agent={"env": {"SYSTEM": "You help a lot."}})
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "no recording for request 1 of recordings/models/models.r0.jsonl: nearest differs at system" in cell["error"]
    assert "a lot" in cell["error"]
    assert "record anew with --gateway record" in cell["error"]


def test_a_changed_prompt_runs_by_turn_and_is_stale(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    called = replay(tmp_path, gateway={"match": "turn"}, agent={"env": {"SYSTEM": "You help a lot."}})
    assert called.code == 0, called.err + called.out
    (cell,) = called.cells
    assert cell["trace"]["replayed"] == "stale"
    assert any("request 1 differs (turn): system" in notice for notice in cell["notices"])


def test_what_is_ignored_counts_as_equal_and_is_told(tmp_path: Path) -> None:
    ignoring = {"gateway": {"ignore": ["You help[a-z ]*"]}}
    assert record(tmp_path, **ignoring).code == 0
    same = replay(tmp_path, **ignoring)
    assert same.cells[0]["trace"]["replayed"] == "exact"
    other = replay(tmp_path, **ignoring, agent={"env": {"SYSTEM": "You help a lot."}})
    assert other.code == 0, other.err + other.out
    assert other.cells[0]["trace"]["replayed"] == "stale"
    assert any("differs (ignore)" in notice for notice in other.cells[0]["notices"])


def test_without_a_recording_there_is_nothing_to_replay(tmp_path: Path) -> None:
    called = replay(tmp_path)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "there is no recording to replay: recordings/models/models.r0.jsonl does not exist" in cell["error"]
    assert "--gateway record" in cell["error"]


def test_a_cell_that_ended_in_error_keeps_the_recording_there_was(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    before = recording(tmp_path).read_bytes()
    (tmp_path / "out").rename(tmp_path / "out-before")
    broken = {**CHECKS, "broken": {"check": {"type": "custom", "script": "check.py"}}}
    (tmp_path / "check.py").write_text("raise SystemExit(3)")
    assert record(tmp_path, invariants=broken).code == 3
    assert recording(tmp_path).read_bytes() == before


def test_a_failed_cell_is_recorded(tmp_path: Path) -> None:
    failing = {"made": {"check": {"type": "file_exists", "path": "elsewhere.txt"}}}
    assert record(tmp_path, invariants=failing).code == 1
    called = replay(tmp_path, invariants=failing)
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail")


def test_further_replicas_use_the_recording_of_the_first(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    called = replay(tmp_path, parallelism={"replicas": 3})
    assert called.code == 0, called.err + called.out
    assert [cell["trace"]["replayed"] for cell in called.cells] == ["exact"] * 3


def test_answers_nobody_asked_for_are_told(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    (tmp_path / "keystone.yaml").unlink()
    shorter = spec_of(WORKER.replace("if not wanted:", "if True:"), invariants={"made": CHECKS["said"]})
    shorter["agent"]["command"][2] = shorter["agent"]["command"][2].replace(
        'print(answer["content"][0]["text"])', 'print("done")'
    )
    (tmp_path / "out").rename(tmp_path / "out-before")
    called = run(tmp_path, shorter, {}, "--gateway", "replay")
    assert called.code == 0, called.err + called.out
    said = "recorded answers left over, since the agent did not ask for them: 1"
    assert said in called.cells[0]["notices"]
    trace = called.cells[0]["trace"]
    assert (trace["replayed"], trace["differs"]) == ("stale", "recorded answers that were not asked for: 1")
    assert "Keystone (replayed; stale): models passed" in called.err


def test_a_request_that_the_provider_failed_is_told_where_it_is_recorded(tmp_path: Path) -> None:
    script = "ask([user('a title')], tools=())\nprint(ask([user('x')])[1]['content'][0]['text'])"
    with behind(fails(529), says("done")) as (_, environ):
        called = run(tmp_path, spec_of(script), environ, "--gateway", "record")
    assert called.code == 0, called.err + called.out
    said = "requests that the provider failed, so that a replay has no answer to them: 1"
    assert said in called.cells[0]["notices"]


def test_a_streamed_answer_is_recorded_and_replayed_as_json(tmp_path: Path) -> None:
    usage = {"input_tokens": 7, "output_tokens": 3}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": usage}
    streamed = stream(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "do"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ne"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    )
    asks = 'body = {"model": "m", "max_tokens": 9, "messages": [user("x")], "stream": True}\n'
    reads = asks + (
        'headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}\n'
        'url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"\n'
        "request = urllib.request.Request(url, json.dumps(body).encode(), headers)\n"
        'print("done", sum(b"text_delta" in line for line in urllib.request.urlopen(request)))'
    )
    whole = 'status, answer = ask([user("x")], tools=(), model="m", max_tokens=9)\nprint(answer["content"][0]["text"])'
    with behind(streamed) as (_, environ):
        first = run(tmp_path, spec_of(reads), environ, "--gateway", "record")
    assert first.code == 0, first.err + first.out
    assert first.cells[0]["agent"]["output"] == "done 2\n"
    for script, printed in ((reads, "done 1\n"), (whole, "done\n")):
        (tmp_path / "out").rename(tmp_path / f"out-{len(list(tmp_path.iterdir()))}")
        again = run(tmp_path, spec_of(script), {}, "--gateway", "replay")
        assert again.code == 0, again.err + again.out
        assert again.cells[0]["agent"]["output"] == printed
        assert again.cells[0]["usage"]["input_tokens"] == 7


def test_agents_see_one_commit_where_it_is_recorded_or_replayed(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "a.txt").write_text("a")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["commit", "-qm", "2", "--allow-empty"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=checkout, check=True, capture_output=True
        )
    script = WORKER.replace('"work in "', 'subprocess.getoutput("git log --oneline | wc -l; git status -sb") + " in "')
    fields = {"workspace": "checkout", "invariants": {"said": CHECKS["said"]}}
    with behind(says("done")) as (provider, environ):
        first = run(tmp_path, spec_of(script, **fields), environ, "--gateway", "record")
        assert first.code == 0, first.err + first.out
        assert provider.asked[0].document["messages"][0]["content"].startswith("1\n## main")
    assert any("the gateway's mode is record" in notice for notice in first.cells[0]["notices"])
    subprocess.run(["git", "checkout", "-qb", "feature"], cwd=checkout, check=True)
    (tmp_path / "out").rename(tmp_path / "out-before")
    again = run(tmp_path, spec_of(script, **fields), {}, "--gateway", "replay")
    assert again.code == 0, again.err + again.out + str(again.cells)


def test_commits_that_the_agent_makes_have_other_hashes_in_a_replay(tmp_path: Path) -> None:
    commit = "git init -q . ; git -c user.name=a -c user.email=a@b commit --allow-empty -m first"

    def show(request: Any) -> Says:
        text = request.document["messages"][-1]["content"][0]["content"]
        told = text.split("(root-commit) ")[1].split("]")[0]
        return calls(
            ("toolu_0123456789ac", "Bash", {"command": f"git show --format=%s {told} && echo {told} > made.txt"})
        )

    with behind(calls(("toolu_0123456789ab", "Bash", {"command": commit})), show, says("done")) as (_, environ):
        first = run(tmp_path, spec(invariants={"said": CHECKS["said"]}), environ, "--gateway", "record")
    assert first.code == 0, first.err + first.out
    again = replay(tmp_path, invariants={"said": CHECKS["said"]})
    assert again.code == 0, again.err + again.out + str(again.cells)
    assert again.cells[0]["trace"]["replayed"] == "exact"


def test_the_agent_does_not_see_recordings(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    (tmp_path / "seen.txt").touch()
    looks = "print('done', os.path.exists('seen.txt'), os.path.exists('recordings'))"
    with behind(says("done")) as (_, environ):
        for seen in ("done True False", "done True True"):
            (tmp_path / "out").rename(tmp_path / f"out-before-{len(seen)}")
            sees = {"said": {"check": {"type": "regex", "pattern": f"^{seen}$"}}}
            called = run(tmp_path, spec_of(looks, workspace=".", invariants=sees), environ)
            assert called.code == 0, called.err + called.out
            # What else is beside them is the agent's to see; they themselves never are.
            (tmp_path / "recordings" / "notes.txt").touch()
            looks = "print('done', os.path.exists('seen.txt'), os.listdir('recordings') == ['notes.txt'])"


@pytest.mark.parametrize("folder", ["../elsewhere", "/recordings", ".", "{{ params.x }}"])
def test_recordings_are_a_folder_below_the_spec(tmp_path: Path, folder: str) -> None:
    called = run(tmp_path, spec(gateway={"recordings": folder}), {})
    assert called.code == 2
    assert "recordings" in called.err


def test_a_secret_that_stands_in_another_shape_is_no_recording(tmp_path: Path) -> None:
    import base64

    secret = "s3cret-0123456789"
    shaped = base64.b64encode(secret.encode()).decode()
    fields = {"secrets": [{"name": "TOKEN", "source": "env"}], "agent": {"env": {"SYSTEM": shaped}}}
    called = record(tmp_path, environ={"TOKEN": secret}, **fields)
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert not (tmp_path / "recordings").exists() or not list((tmp_path / "recordings" / "models").iterdir())
    assert secret not in json.dumps(cell)


def test_a_secret_is_a_name_in_a_recording_and_this_run_s_value_in_a_replay(tmp_path: Path) -> None:
    fields = {
        "secrets": [{"name": "TOKEN", "source": "env"}],
        "agent": {"env": {"SYSTEM": "the token is {{ secrets.TOKEN }}"}},
    }
    called = record(tmp_path, environ={"TOKEN": "s3cret-0123456789"}, **fields)
    assert called.code == 0, called.err + called.out
    assert "{secret.TOKEN}" in recording(tmp_path).read_text()
    with_another = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "TOKEN": "an0ther-secret"}
    (tmp_path / "out").rename(tmp_path / "out-before")
    again = run(tmp_path, spec(**fields), with_another, "--gateway", "replay")
    assert again.code == 0, again.err + again.out
    assert again.cells[0]["trace"]["replayed"] == "exact"


def test_a_replay_gives_out_no_secret_that_the_agent_was_never_given(tmp_path: Path) -> None:
    """The name of a secret that the recording run did not have is a text like any other, and stays one."""
    script = 'status, answer = ask([user("say it")])\nprint("done", answer["content"][0]["text"])'
    with behind(says("it is {secret.LATER}")) as (_, ours):
        called = run(tmp_path, spec_of(script), ours, "--gateway", "record")
    assert called.code == 0, called.err + called.out
    (tmp_path / "out").rename(tmp_path / "out-before")
    secret = "s3cret-0123456789"
    checks = {"no": {"check": {"type": "regex", "pattern": r"done it is \{secret\.LATER\}"}}}
    fields = {"secrets": [{"name": "LATER", "source": "env"}], "invariants": checks}
    again = run(tmp_path, spec_of(script, **fields), {"LATER": secret}, "--gateway", "replay")
    assert again.code == 0, again.err + again.out
    assert secret not in json.dumps(again.cells)


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "anthropic refused the key in ANTHROPIC_API_KEY (401)"), (529, "the provider failed: 529 after 1 try")],
)
def test_a_run_whose_provider_failed_replaces_no_recording(tmp_path: Path, status: int, why: str) -> None:
    assert record(tmp_path).code == 0
    before = recording(tmp_path).read_bytes()
    (tmp_path / "out").rename(tmp_path / "out-before")
    script = 'print("done" if ask([user("x")])[0] != 200 else "")'
    with behind(fails(status)) as (_, environ):
        called = run(tmp_path, spec_of(script), environ, "--gateway", "record")
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert f"nothing was recorded: {why}" in cell["error"]
    assert recording(tmp_path).read_bytes() == before


def test_a_recording_without_requests_is_told(tmp_path: Path) -> None:
    script = 'print("done")'
    with behind(says("x")) as (_, environ):
        first = run(tmp_path, spec_of(script), environ, "--gateway", "record")
    assert any("the recording holds no request" in notice for notice in first.cells[0]["notices"])
    (tmp_path / "out").rename(tmp_path / "out-before")
    again = run(tmp_path, spec_of(script), {}, "--gateway", "replay")
    assert any("the recording holds no request" in notice for notice in again.cells[0]["notices"])
    assert again.cells[0]["trace"]["replayed"] == "unused"


def test_a_recording_that_nothing_was_asked_of_is_not_one_that_fits(tmp_path: Path) -> None:
    assert record(tmp_path).code == 0
    (tmp_path / "keystone.yaml").unlink()
    (tmp_path / "out").rename(tmp_path / "out-before")
    silent = spec_of('print("done")', invariants={"made": CHECKS["said"]})
    called = run(tmp_path, silent, {}, "--gateway", "replay")
    assert called.code == 0, called.err + called.out
    assert called.cells[0]["trace"]["replayed"] == "unused"
    assert "Keystone (replayed; with nothing asked): models passed" in called.err
    (tmp_path / "out").rename(tmp_path / "out-first")
    strict = run(tmp_path, silent, {}, "--gateway", "replay", "--fail-on-stale")
    assert strict.code == 1, strict.err + strict.out
    assert "the replay was of a recording that nothing was asked of" in strict.cells[0]["reason"]


@pytest.mark.parametrize("place", ["recordings", "recordings/models", "recordings/models/models.r0.jsonl"])
def test_nothing_is_asked_and_paid_that_could_not_be_kept(tmp_path: Path, place: str) -> None:
    there = tmp_path / place
    there.parent.mkdir(parents=True, exist_ok=True)
    there.symlink_to(tmp_path)
    with behind(says("done")) as (provider, environ):
        called = run(tmp_path, spec_of('ask([user("x")])'), environ, "--gateway", "record")
        assert provider.asked == []
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error")
    assert "found a link" in cell["error"]
    assert there.is_symlink()


def test_the_recording_of_another_cell_is_not_replayed(tmp_path: Path) -> None:
    """As `keystone recordings check` says of it."""
    assert record(tmp_path).code == 0
    (tmp_path / "out").rename(tmp_path / "out-before")
    first = recording(tmp_path)
    first.with_name("models.r1.jsonl").write_bytes(first.read_bytes())
    called = replay(tmp_path, parallelism={"replicas": 2})
    assert [cell["verdict"] for cell in called.cells] == ["pass", "error"]
    assert "models.r1.jsonl: expected a recording of the cell models.r1" in called.cells[1]["error"]
