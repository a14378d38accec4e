"""Answers of the APIs, put together from their events and made into events again.

What lives here: a file for each API, `anthropic`, `openai_responses`, `openai_chat`, `gemini`, and what they share.
What comes in: the events of a streamed answer; or a document, the answer as its API gives it in one piece.
What goes out: that document; or the events or the JSON that a request asks for. Nothing in here raises for what a
document or an event holds, and what it doesn't know goes through as it is: APIs grow, and people edit recordings.
"""
