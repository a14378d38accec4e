"""What a spec names for an agent to work against.

What lives here: what a kind of service is (`base.py`), starting those of a spec (`start.py`), and a room for each
kind.
What comes in: the `services` of a spec, and the cell that wants them.
What goes out: addresses for the agent, and what the checks ask of what it left there.
"""
