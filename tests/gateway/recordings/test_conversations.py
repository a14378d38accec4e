"""Which conversation a request belongs to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gateway.recordings.recorder import Conversations

Messages = st.lists(st.dictionaries(st.sampled_from(["role", "content"]), st.text(max_size=5)), min_size=1, max_size=6)


def of(
    known: Conversations, *messages: Any, with_tools: bool = True, previous: str = "", api: str = "anthropic"
) -> Any:
    return known.of(api, list(messages), with_tools=with_tools, previous=previous)


def test_messages_that_extend_earlier_ones_continue_their_conversation() -> None:
    known = Conversations()
    first = of(known, "a")
    assert of(known, "a", "b", "c") is first
    assert of(known, "a", "b", "c", "d", "e") is first
    assert (first.with_tools, first.number) == (True, 0)


def test_others_begin_the_next_one_of_their_kind() -> None:
    known = Conversations()
    numbers = [of(known, "a").number, of(known, "b").number, of(known, "t", with_tools=False).number]
    assert numbers == [0, 1, 0]


def test_a_title_asked_for_with_the_task_s_words_is_a_conversation_of_its_own() -> None:
    known = Conversations()
    title = of(known, "a", with_tools=False)
    assert of(known, "a") is not title
    assert of(known, "a", "b", with_tools=False) is title


def test_the_longest_earlier_conversation_is_continued() -> None:
    known = Conversations()
    short, other = of(known, "a"), of(known, "b")
    branched = of(known, "a", "x")
    assert branched is short
    assert of(known, "a", "x", "y") is short
    assert of(known, "b", "x") is other


def test_an_answer_s_id_continues_where_only_what_is_new_is_sent() -> None:
    known = Conversations()
    first = of(known, "a")
    known.answered(first, "resp_1")
    assert first.answered == 1
    assert of(known, "result", previous="resp_1") is first
    assert of(known, "result", previous="resp_2") is not first or first.number == 0


def test_a_request_without_messages_is_continued_by_none() -> None:
    known = Conversations()
    assert of(known) is not of(known, "a")


def test_apis_are_told_apart() -> None:
    known = Conversations()
    assert of(known, "a") is not of(known, "a", "b", api="gemini")


@given(Messages, Messages)
def test_what_was_said_is_continued_and_nothing_else_is(first: list[Any], second: list[Any]) -> None:
    known = Conversations()
    begun = of(known, *first)
    continued = of(known, *second)
    assert (continued is begun) == (second[: len(first)] == first)
