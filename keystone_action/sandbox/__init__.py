"""Where untrusted code runs.

What lives here: the protocol that the rest of the house sees (`base.py`), and what both kinds of sandbox need.
What comes in: a command, its files, its limits.
What goes out: how it ended and what it printed; none of its processes outlives it.
"""
