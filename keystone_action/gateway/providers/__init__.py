"""The APIs that the gateway reads.

What lives here: a file for each, `anthropic`, `openai_responses`, `openai_chat`, `gemini`, and what they share.
What comes in: parsed bodies and events, of agents and of providers.
What goes out: what was asked and answered, in the words of `exchange.py`.
"""
