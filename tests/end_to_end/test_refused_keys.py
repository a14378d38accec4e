"""A provider that refuses our key, or a page in its place: the agent ends, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Called
from support.model_agents import REAL_KEY, behind, calls, run, says, spec_of
from support.scripted_provider import Says, document

PERSISTS = """
import time
for _ in range(600):
    if ask([user("do it")])[0] == 200:
        break
    time.sleep(0.2)
print("done")
"""
"""A client that tries again for two minutes."""
GIVES_UP = 'ask([user("do it")])\nsys.exit(1)'
REFUSED = document({"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}, 401)
PAGE = Says(200, [b"<!doctype html><title>Log in</title>"], headers=(("content-type", "text/html"),))
ALIKE = "Another run would end alike."


def ended(folder: Path, script: str, *answers: Says) -> tuple[Called, int]:
    """With two more tries allowed; how often the provider was asked."""
    with behind(*answers) as (scripted, environ):
        called = run(folder, spec_of(script, scoring={"retry_errors": 2}), environ)
    return called, len(scripted.asked)


@pytest.mark.parametrize(
    ("answer", "script", "sentence", "asked"),
    [
        (REFUSED, PERSISTS, "anthropic refused the key in ANTHROPIC_API_KEY (401): invalid x-api-key", 2),
        (REFUSED, GIVES_UP, "anthropic refused the key in ANTHROPIC_API_KEY (401): invalid x-api-key", 1),
        (PAGE, PERSISTS, "anthropic answered with a page of HTML (status 200)", 2),
    ],
    ids=["a key, again and again", "a key, once", "a page"],
)
def test_it_is_the_provider_s_and_no_further_try_is_made(
    tmp_path: Path, answer: Says, script: str, sentence: str, asked: int
) -> None:
    called, times = ended(tmp_path, script, answer)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 1), called.out
    assert cell["error"].startswith(sentence)
    assert cell["error"].endswith(ALIKE)
    assert times == asked
    summary = (called.output / "summary.md").read_text("utf-8")
    assert "Run it again" not in summary
    assert "keystone run" not in summary
    assert REAL_KEY not in summary


def test_a_provider_that_was_busy_twice_and_then_answers_is_asked_on(tmp_path: Path) -> None:
    busy = document({"type": "error", "error": {"type": "overloaded_error", "message": "too busy"}}, 529)
    called, times = ended(tmp_path, PERSISTS, busy, busy, REFUSED, says("done"))
    assert (called.code, times) == (0, 4), called.out + called.err


def test_a_refusal_after_the_key_was_taken_is_the_agent_s_doing(tmp_path: Path) -> None:
    script = 'ask([user("do it")])\nask([user("more")])\nask([user("more")])\nsys.exit(1)'
    called, _ = ended(tmp_path, script, calls(("toolu_1", "Bash", {"command": "ls"})), REFUSED, REFUSED)
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail")
