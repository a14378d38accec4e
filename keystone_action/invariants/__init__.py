"""Checks.

What lives here: what a check type is (`check.py`), the registry, the types (`types/`), what runs tests (`test_runs/`),
and what several types share.
What comes in: the frozen evidence of a cell, and sandboxes to execute in.
What goes out: an `Outcome` for each check: a score, a sentence and details.
"""
