"""Answers are kept by what decides them, without a key, and damage is not an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.judging import ask
from support.model_server import KEY, ModelServer, answer

from keystone_action.judge.judgement import JudgeFailed


def test_an_answer_is_cached_by_what_decides_it(tmp_path: Path) -> None:
    with ModelServer([answer(0.5, "first"), answer(0.9, "second")]) as server:
        first = ask(server, cache_dir=tmp_path)
        again = ask(server, cache_dir=tmp_path)
        assert len(server.requests) == 1
        changes: list[dict[str, Any]] = [
            {"judged": "other work"},
            {"task": "other task"},
            {"models": ("claude-opus-5",)},
            {"rubric": {"pass": "p"}},
            {"template": "{input}"},
        ]
        for count, change in enumerate(changes, start=2):
            assert ask(server, cache_dir=tmp_path, **change).score == 0.9
            assert len(server.requests) == count
    assert (again.score, again.reason) == (first.score, first.reason)
    assert (again.usage.cached, again.usage.requests, again.usage.cost_usd) == (1, 0, 0.0)
    assert again.usage.input_tokens == 0
    assert [opinion.cached for opinion in first.opinions + again.opinions] == [False, True]
    stored = b"".join(path.read_bytes() + path.name.encode() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in stored
    assert b"a haiku of mine" not in stored


def test_samples_are_cached_each(tmp_path: Path) -> None:
    with ModelServer([answer(0.0), answer(0.5), answer(1.0)]) as server:
        first = ask(server, cache_dir=tmp_path, samples=3)
        again = ask(server, cache_dir=tmp_path, samples=3)
        assert len(server.requests) == 3
    assert [o.score for o in again.opinions] == [o.score for o in first.opinions]
    assert again.score == pytest.approx(0.5)


def test_with_a_temperature_nothing_is_cached(tmp_path: Path) -> None:
    with ModelServer([answer(0.5), answer(0.9)]) as server:
        assert ask(server, cache_dir=tmp_path, temperature=1.0).score == 0.5
        assert ask(server, cache_dir=tmp_path, temperature=1.0).score == 0.9


def test_failures_are_not_cached(tmp_path: Path) -> None:
    with ModelServer([answer(7), answer(7), answer(7), answer(0.3)]) as server:
        with pytest.raises(JudgeFailed):
            ask(server, cache_dir=tmp_path)
        assert ask(server, cache_dir=tmp_path).score == 0.3


@pytest.mark.parametrize("damage", [b"", b"{", b'{"score": 5}', b"\xff\xfe", b'{"score": 1}' + b" " * 100_000])
def test_a_damaged_entry_is_no_entry(tmp_path: Path, damage: bytes) -> None:
    with ModelServer([answer(0.5), answer(0.9)]) as server:
        ask(server, cache_dir=tmp_path)
        (entry,) = [path for path in tmp_path.rglob("*") if path.is_file()]
        entry.write_bytes(damage)
        assert ask(server, cache_dir=tmp_path).score == 0.9
        assert ask(server, cache_dir=tmp_path).score == 0.9
    assert len(server.requests) == 2


def test_a_cache_that_can_not_be_written_is_said_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    notes: list[str] = []
    with ModelServer([answer(0.5)]) as server:
        assert ask(server, cache_dir=blocked, samples=3, models=("claude-sonnet-4-6",), notes=notes).score == 0.5
    assert notes == ["judges' answers can't be kept: Not a directory"]
