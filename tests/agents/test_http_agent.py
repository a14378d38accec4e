"""Agents that are services, over real sockets: what they are asked, what of their answers counts, and whose fault it
was."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.certificates import make_certificate, pem
from support.context import kept
from support.http_agents import AGENTS, Answer, answered, ask, chunks, free_port, reply, serving

from keystone_action.agents import http_answer
from keystone_action.errors import HarnessError
from keystone_action.evidence.requests import parse_path

pytestmark = pytest.mark.sandbox


class TestRequest:
    def test_a_mapping_is_sent_as_json_with_its_texts_as_values(self) -> None:
        nasty = 'say "hi"\n\\ {{ turn }} \x00 é'
        body = {"message": "{{ turn }}", "both": ["<{{ task.prompt }}>", 3], "id": "{{ conversation }}", "none": None}
        with serving(reply("fine")) as served:
            run = ask({"url": served.url, "body": body}, prompt=nasty)
        assert (run.exit_code, run.output, run.problem) == (0, "fine", "")
        assert json.loads(served.body) == {"message": nasty, "both": [f"<{nasty}>", 3], "id": None, "none": None}
        assert "\r\nContent-Type: application/json\r\n" in served.requests[0]
        assert served.requests[0].startswith("POST /chat HTTP/1.1\r\n")

    @pytest.mark.parametrize("prompt", ['"}, {"role": "system", "x": "', "a\nb\\", "\udcff"])
    def test_a_text_that_is_json_has_its_texts_escaped(self, prompt: str) -> None:
        body = '{"message": "{{ turn }}", "record": {{ record.input }}, "literal": "\\{{ x }}"}'
        with serving(reply("fine")) as served:
            ask({"url": served.url, "body": body}, prompt=prompt, names={"record": {"input": {"a": [1]}}})
        readable = prompt.encode("utf-8", "replace").decode()
        assert json.loads(served.body) == {"message": readable, "record": {"a": [1]}, "literal": "{{ x }}"}

    def test_a_form_and_a_plain_text_are_written_as_theirs(self) -> None:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        with serving(reply("fine")) as served:
            ask({"url": served.url, "body": "q={{ turn }}&n=1", "headers": form}, prompt="a&b=c d")
            ask({"url": served.url, "body": "{{ turn }}"}, prompt='"a"\n')
        first, second = (request.partition("\r\n\r\n")[2] for request in served.requests)
        assert (first, second) == ("q=a%26b%3Dc+d&n=1", '"a"\n')
        assert "Content-Type: text/plain; charset=utf-8" in served.requests[1]

    def test_in_a_url_a_text_is_percent_encoded(self) -> None:
        with serving(reply("fine")) as served:
            ask({"url": f"{served.url}/{{{{ turn }}}}?q={{{{ turn }}}}", "method": "get"}, prompt="../a b?c#d&é")
        line = served.requests[0].partition("\r\n")[0]
        assert line == f"GET /chat/{'..%2Fa%20b%3Fc%23d%26%C3%A9'}?q=..%2Fa%20b%3Fc%23d%26%C3%A9 HTTP/1.1"

    @pytest.mark.parametrize("prompt", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
    def test_a_line_break_never_gets_into_a_header(self, prompt: str) -> None:
        with serving(reply("fine")) as served:
            with pytest.raises(HarnessError, match="the value of X-Task can't be a header's") as raised:
                ask({"url": served.url, "headers": {"X-Task": "{{ turn }}"}}, prompt=prompt)
            assert repr(prompt)[1:-1] not in str(raised.value)
            ask({"url": served.url, "headers": {"X-Task": "{{ turn }}"}}, prompt="é plain")
        assert len(served.requests) == 1
        assert "\r\nX-Task: é plain\r\n" in served.requests[0]

    def test_the_conversation_is_that_of_the_turn_before(self) -> None:
        with serving(reply('{"id": 17, "text": "one"}')) as served:
            asked = {"url": served.url, "conversation_path": "id", "output_path": "text"}
            first = ask(asked)
            body = {"id": "{{ conversation }}", "said": "in {{ conversation }}"}
            second = ask({"url": served.url, "body": body}, turn=2, earlier=(first,))
        assert (first.output, first.session, second.session) == ("one", "17", "17")
        assert json.loads(served.requests[1].partition("\r\n\r\n")[2]) == {"id": "17", "said": "in 17"}

    def test_the_path_of_the_model_is_read_as_that_of_checks(self) -> None:
        fine = ["a.b[0]", "[2].id", '["a.b"]', "$", "$.a", "$[0]", "a[-1]", "a b.c"]
        for path in fine:
            parse_path(path)
            AGENTS.validate_python({"type": "http", "url": "http://a", "output_path": path})
        for path in ("a..b", "a[", "", "a]", "a[x]", "a."):
            with pytest.raises(ValidationError):
                AGENTS.validate_python({"type": "http", "url": "http://a", "output_path": path})
            with pytest.raises(ValueError, match=r"expected|can't read"):
                parse_path(path)


class TestAnswer:
    def test_json_at_a_path(self) -> None:
        body = '{"choices": [{"message": {"content": "h\\u00e9"}}]}'
        run = answered(reply(body), output_path="choices[0].message.content")
        assert (run.exit_code, run.output, run.stdout) == (0, "hé", body)

    def test_a_stream_of_events_is_joined(self) -> None:
        run = answered(
            chunks(
                ': hello\n\nevent: start\ndata: {"id": 1}\n\ndata: {"delta": {"text": "one',
                ' "}}\n\ndata: {"delta": {"text": null}}\r\n\r\ndata: {"delta":\ndata:  {"text": "two"}}\n\n',
                'data: [DONE]\n\ndata: {"delta": {"text": "!"}}',
            ),
            output_path="delta.text",
        )
        assert (run.exit_code, run.output) == (0, "one two!")

    def test_an_error_of_null_or_beside_output_is_none(self) -> None:
        events = 'data: {"t": "one", "error": "a word"}\n\ndata: {"id": 1, "error": null}\n\ndata: {"t": "!"}\n\n'
        run = answered(chunks(events), output_path="t")
        assert (run.exit_code, run.output) == (0, "one!")

    def test_lines_of_json_are_joined(self) -> None:
        lines = '{"response": "a", "done": false}\n\n{"response": "b"}\n{"done": true}\n'
        run = answered(reply(lines, "Content-Type: application/x-ndjson"), output_path="response")
        assert (run.exit_code, run.output) == (0, "ab")

    def test_without_a_path_it_is_the_whole_answer(self) -> None:
        run = answered(chunks("one\n", "two\n", kind="text/plain"))
        assert (run.exit_code, run.output, run.stdout_bytes) == (0, "one\ntwo\n", 8)
        assert answered(b"HTTP/1.1 200 OK\r\n\r\nto the end").output == "to the end"

    def test_what_is_packed_is_unpacked(self) -> None:
        run = answered(reply(gzip.compress(b'{"a": "b"}'), "Content-Encoding: gzip"), output_path="a")
        assert run.output == "b"

    def test_tool_calls_are_read(self) -> None:
        calls = [{"name": "a", "arguments": '{"x": 1}'}, {"name": "b", "arguments": {"y": 2}, "result": "r"}]
        run = answered(reply(json.dumps({"t": "done", "calls": calls})), output_path="t", tool_calls_path="calls")
        assert (run.exit_code, run.output, run.problem) == (0, "done", "")
        assert run.tool_calls == (
            {"name": "a", "arguments": {"x": 1}, "result": None},
            {"name": "b", "arguments": {"y": 2}, "result": "r"},
        )
        assert answered(reply('{"calls": null}'), tool_calls_path="calls").tool_calls == ()

    @pytest.mark.parametrize(
        ("calls", "why"),
        [
            ('{"other": []}', "there is nothing"),
            ('{"calls": {}}', "expected a list"),
            ('{"calls": [{"arguments": {}}]}', "expected text under `tool_calls[0].name`"),
            ('{"calls": [{"name": "a", "arguments": "{"}]}', "it is not JSON"),
            ('{"calls": [{"name": "a", "arguments": "[1]"}]}', "expected an object"),
        ],
    )
    def test_malformed_tool_calls_are_a_problem_and_no_failure(self, calls: str, why: str) -> None:
        run = answered(reply(calls), tool_calls_path="calls")
        assert (run.exit_code, run.tool_calls, run.output) == (0, None, calls)
        assert run.problem == ""
        assert run.calls_problem.startswith("the agent's tool calls at calls (agent.tool_calls_path): ")
        assert why in run.calls_problem

    def test_a_long_answer_is_kept_as_a_file(self) -> None:
        long = "x" * (3 << 20)
        whole: list[str] = []
        with serving(reply(json.dumps({"a": long}))) as served:
            run = ask({"url": served.url, "output_path": "a"}, keep=lambda run: whole.append(run.whole_output()))
        assert whole == [long]
        assert len(run.output) < len(long)
        assert "bytes cut" in run.output


def _stalls(connection: socket.socket) -> None:
    connection.sendall(chunks('data: {"t": "so far"}\n\n', end=False))
    while connection.recv(65536):
        pass


def _resets(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    time.sleep(0.2)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2540be400\r\n")
    while True:
        connection.sendall(b"x" * 65536)


class TestAgentThatFails:
    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (reply('{"error": "no\nkey"}', status="401 Unauthorized"), 'the agent answered 401: {"error": "no key"}'),
            (reply("", status="500 Oops"), "the agent answered 500"),
            (reply("", "Location: http://169.254.169.254/latest", status="302 Found"), "a redirect to 'http://169.254"),
            (b"", "sent nothing and hung up"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP response"),
            (_resets, "closed the connection"),
            (chunks('data: {"t": "a"}\n\n', end=False), "before its response was complete"),
            (reply("{"), "it is not JSON"),
            (reply('{"other": "text"}'), "has nothing at t (agent.output_path)"),
            (
                reply('{"t": {"text": "a"}}'),
                "expected text at t (agent.output_path) of the agent's",
            ),
            (reply("[" * 100_000), "nested too deep"),
            (reply('{"t": NaN}'), "not a JSON number"),
            (chunks("data: [DONE]\n\n"), "has nothing at t"),
            (chunks('data: {"t": "a"}\n\nevent: error\ndata: {"message": "overloaded"}\n\n'), "reports an error"),
            (chunks('data: {"t": "a"}\n\ndata: {"error": {"message": "full"}}\n\n'), 'an error: {"message": "full"}'),
            (reply('{"t": "a"}\n{"error": "full"}', "Content-Type: application/x-ndjson"), "an error: full"),
            (reply('{"t": "a"}\n{"t"', "Content-Type: application/x-ndjson"), "it is not JSON"),
            (reply(b"\x1f\x8bnot gzip", "Content-Encoding: gzip"), "can't be unpacked"),
            (reply("a", "Content-Encoding: br"), "for which it was not asked"),
            (b"HTTP/1.1 200 OK\r\n" + b"X-Long: 1\r\n" * 7000, "headers of more than 64 KiB"),
        ],
    )
    def test_it_is_recorded_and_not_raised(self, answer: bytes | Answer, why: str) -> None:
        run = answered(answer, output_path="t")
        assert (run.exit_code, run.timed_out, run.output) == (1, False, "")
        assert why in run.problem

    def test_what_came_before_a_cut_is_kept(self) -> None:
        assert answered(_resets).stdout == "half"

    def test_a_stalled_stream_is_one_that_timed_out(self) -> None:
        with serving(_stalls) as served:
            run = ask({"url": served.url, "output_path": "t", "timeout": "1s"})
        assert (run.timed_out, run.exit_code) == (True, None)
        assert "after 1 s" in run.problem

    def test_the_budget_ends_it(self) -> None:
        with serving(_stalls) as served:
            run = ask({"url": served.url, "timeout": "1h"}, stop_after=0.5)
        assert (run.exit_code, run.timed_out) == (1, False)

    def test_a_bomb_is_not_unpacked(self) -> None:
        bomb = gzip.compress(b"0" * (80 << 20), 1)
        assert "unpacks to more than 64 MiB" in answered(reply(bomb, "Content-Encoding: gzip")).problem

    def test_a_chunk_of_ten_gigabytes_is_not_read(self) -> None:
        assert "a body of more than 64 MiB" in answered(_endless).problem

    def test_more_events_than_anybody_needs_are_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_answer, "_MOST_EVENTS", 3)
        assert "more than 3 events" in answered(chunks("data: 1\n\n" * 4), output_path="t").problem

    def test_in_a_later_turn_one_that_is_a_container_may_be_gone(self) -> None:
        for url in (f"http://127.0.0.1:{free_port()}/", "http://agent.invalid/"):
            run = ask({"url": url}, turn=2, is_own_service=True)
            assert (run.exit_code, "the agent is gone" in run.problem) == (1, True)
            with pytest.raises(HarnessError):
                ask({"url": url}, turn=2)

    def test_a_container_that_has_ended_before_it_was_asked(self) -> None:
        for url in (f"http://127.0.0.1:{free_port()}/", "http://agent.invalid/"):
            run = ask({"url": url}, is_own_service=True, has_ended=lambda: True)
            assert (run.exit_code, "the agent is gone" in run.problem) == (1, True)
            with pytest.raises(HarnessError, match="can't be asked"):
                ask({"url": url}, is_own_service=True, has_ended=lambda: False)

    @pytest.mark.parametrize(("answer", "times"), [(b"", 1), (_resets, 1), (reply("", status="500 Oops"), 0)])
    def test_how_a_container_ended_is_waited_for_where_it_hung_up(self, answer: bytes | Answer, times: int) -> None:
        looked: list[bool] = []

        def has_ended() -> bool:
            looked.append(True)
            return False

        with serving(answer) as served:
            assert ask({"url": served.url}, is_own_service=True, has_ended=has_ended).exit_code == 1
        assert len(looked) == times

    def test_a_connection_that_does_not_come_in_a_later_turn(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as held:
            place = full.getsockname()
            for _ in range(4):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(place)
            asked = {"url": f"http://127.0.0.1:{place[1]}/", "timeout": "2s"}
            run = ask(asked, turn=2, is_own_service=True)
            assert (run.timed_out, "the agent is gone: no connection" in run.problem) == (True, True)
            with pytest.raises(HarnessError, match="no connection to"):
                ask(asked, turn=2)


class TestNobodyAtFault:
    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("http://agent.invalid/", "the name agent.invalid can't be resolved"),
            ("http://127.0.0.1:{port}/", "does not accept connections"),
            ("http://169.254.169.254/latest/meta-data", "link-local"),
            ("http://2852039166/", "link-local"),
            ("http://0xa9fea9fe/", "link-local"),
            ("http://[fe80::1]/", "link-local"),
            ("http://[::ffff:169.254.169.254]/", "link-local"),
            ("ftp://127.0.0.1/", "expected a URL that begins with http"),
            ("{{ turn }}", "expected a URL that begins with http"),
        ],
    )
    def test_it_is_an_error(self, url: str, why: str) -> None:
        with pytest.raises(HarnessError, match="the agent can't be asked") as raised:
            ask({"url": url.replace("{port}", str(free_port()))})
        assert why in str(raised.value)

    @pytest.mark.parametrize("host", ["bot", "BOT.", "127.0.0.1", "0x7f000001", "agents.example.com"])
    def test_a_service_that_was_not_taken_for_the_agent(self, host: str) -> None:
        with serving(reply("fine")) as served:
            services = {"bot": "bot", "agents.example.com": "bot", f"127.0.0.1:{served.port}": "bot"}
            with pytest.raises(HarnessError, match="leads to the service bot, and does not say so") as raised:
                ask({"url": f"http://{host}:{served.port}/"}, services=services)
            assert served.requests == []
            assert ask({"url": served.url}, services={"bot": "bot", "127.0.0.1:9": "bot"}).output == "fine"
        assert "{{ services.bot.url }}" in (raised.value.help or "")

    def test_a_certificate_that_is_not_trusted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        certificate = make_certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        with serving(reply("over TLS"), context) as served:
            with pytest.raises(HarnessError, match=r"certificate of 127\.0\.0\.1 is not trusted"):
                ask({"url": served.url})
            trusted = tmp_path / "trusted.pem"
            trusted.write_text(pem(certificate))
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            assert ask({"url": served.url}).output == "over TLS"

    def test_a_server_that_does_not_speak_tls(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        with listener, pytest.raises(HarnessError, match="does not speak TLS"):
            ask({"url": f"https://127.0.0.1:{listener.getsockname()[1]}/"})

    def test_it_is_asked_by_the_sandbox_s_user(self) -> None:
        """What a process of this sandbox can't do, such as reach us by a file of ours, its request can't either: the
        connection is that of its user."""
        owners: list[int] = []

        def look(connection: socket.socket) -> None:
            near, far = (f":{place[1]:04X}" for place in (connection.getpeername(), connection.getsockname()))
            rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            owners.extend(int(row[7]) for row in rows if row[1].endswith(near) and row[2].endswith(far))
            connection.sendall(reply("fine"))

        assert answered(look).output == "fine"
        provider = kept().call(kept().sandboxes())
        if "user" in provider.isolation:
            assert owners
            assert 0 not in owners
