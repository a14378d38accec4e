"""Transcripts of Gemini CLI and of mini-swe-agent, read into the one model of a trace."""

from __future__ import annotations

from support.traces import GEMINI, MINI, calls, read, sample

from keystone_action.evidence.trace import Message, Usage

# Gemini


def test_gemini():
    trace = sample(GEMINI)
    assert trace.usage == Usage(6400, 170, None)
    assert (trace.stop_reason, trace.final_output[:15]) == ("success", "Fixed the typo.")
    assert calls(trace) == [
        ("write_file", "write", "ok"),
        ("read_file", "read", "ok"),
        ("replace", "write", "ok"),
        ("run_shell_command", "execute", "ok"),
        ("run_shell_command", "execute", "ok"),  # one that ended with 2: its transcript does not tell
    ]
    assert trace.tool_calls[3].arguments == {"command": "cat hello.txt"}
    assert trace.tool_calls[4].result.startswith("ls: cannot access")
    assert [message.role for message in trace.messages] == ["user", *["assistant"] * 3]
    assert (trace.not_understood, trace.problem, trace.permissions) == ((), "", None)


def test_gemini_that_was_refused():
    trace = sample(f"{GEMINI}-refused-400")
    assert (trace.stop_reason, trace.usage, trace.tool_calls) == ("error", Usage(0, 0), ())
    assert "scripted bad request" in trace.messages[-1].text
    assert (trace.final_output, trace.problem) == ("", "")


def test_gemini_says_a_message_in_pieces():
    def said(text, **more):
        return {"type": "message", "role": "assistant", "content": text, **more}

    trace = read(
        "gemini",
        said("One ", delta=True),
        said("and two.", delta=True),
        said("Three."),
        {"type": "error", "severity": "warning", "message": "Loop detected"},
        {"type": "tool_use", "tool_id": "a", "tool_name": "write_file", "parameters": {}},
        {"type": "tool_result", "tool_id": "a", "status": "error", "error": {"type": "x", "message": "denied"}},
        said("Four.", delta=True),
    )
    assert trace.messages == (
        Message("assistant", "One and two."),
        Message("assistant", "Three."),
        Message("system", "Loop detected"),
        Message("assistant", "Four."),
    )
    assert (calls(trace), trace.tool_calls[0].result) == ([("write_file", "write", "error")], "denied")
    assert (trace.final_output, trace.usage) == ("Four.", Usage())
    assert trace.not_understood == ("there is no result event, so the totals of tokens are unknown",)


# mini-swe-agent


def test_mini():
    trace = sample(MINI)
    assert trace.usage == Usage(6400, 170, 0.005200000000000001)
    assert trace.stop_reason == "Submitted"
    assert calls(trace) == [
        ("bash", "execute", "ok"),
        ("bash", "execute", "ok"),
        ("bash", "execute", "ok"),
        ("bash", "execute", "ok"),
        ("bash", "execute", "error"),
        ("bash", "execute", None),
    ]
    assert trace.tool_calls[1].arguments == {"command": "cat hello.txt"}
    assert trace.tool_calls[1].result == "hello from teh script\n"
    assert trace.tool_calls[4].result.startswith("ls: cannot access")
    assert [message.text for message in trace.messages[2:]] == ["I will write the file.", "Two at once."]
    assert (trace.final_output, trace.not_understood, trace.problem) == ("Two at once.", (), "")


def trajectory(*messages, cost=0, **info):
    found = {"model_stats": {"instance_cost": cost, "api_calls": 1}, **info}
    return {"info": found, "messages": list(messages), "trajectory_format": "mini-swe-agent-1.1"}


def test_mini_over_responses():
    answer = {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
            {"type": "hologram"},
        ],
        "usage": {"input_tokens": 10, "output_tokens": 2},
        "extra": {"actions": [{"command": "ls", "tool_call_id": "c1"}], "cost": 0.0},
    }
    result = {"returncode": 1, "raw_output": "no", "exception_info": ""}
    trace = read(
        "mini",
        trajectory(
            answer,
            {"type": "function_call_output", "call_id": "c1", "output": "<returncode>1", "extra": result},
            exit_status="LimitsExceeded",
        ),
    )
    assert calls(trace) == [("bash", "execute", "error")]
    assert (trace.tool_calls[0].arguments, trace.tool_calls[0].result) == ({"command": "ls"}, "no")
    assert trace.messages == (Message("thought", "hm"), Message("assistant", "I look."))
    assert (trace.usage, trace.stop_reason) == (Usage(10, 2, None), "LimitsExceeded")  # 0 is of a model without price
    assert trace.not_understood == ("1 × item of an unknown type in an answer: 'hologram'",)


def test_mini_that_takes_commands_from_text():
    def observed(code):
        return {"role": "user", "content": "…", "extra": {"returncode": code, "raw_output": f"ended {code}"}}

    response = {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    trace = read(
        "mini",
        trajectory(
            {
                "role": "assistant",
                "content": "```bash\nls\n```",
                "extra": {"actions": [{"command": "ls"}, {"command": "id"}], "response": response, "cost": 0.5},
            },
            observed(0),
            observed(3),
            {"role": "user", "content": "two actions?", "extra": {"response": response, "cost": 0.25}},
            {"role": "exit", "content": "it broke", "extra": {"exit_status": "RuntimeError"}},
            cost=0.75,
            exit_status="RuntimeError",
        ),
    )
    assert calls(trace) == [("bash", "execute", "ok"), ("bash", "execute", "error")]
    assert [call.arguments for call in trace.tool_calls] == [{"command": "ls"}, {"command": "id"}]
    assert [call.result for call in trace.tool_calls] == ["ended 0", "ended 3"]
    assert trace.messages[1:] == (Message("user", "two actions?"), Message("system", "it broke"))
    assert (trace.usage, trace.stop_reason) == (Usage(10, 2, 0.75), "RuntimeError")
