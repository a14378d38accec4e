"""Checks.

What lives here: what a check type is (`base.py`), the registry, the types (`types/`), and rooms for what several of
them share.
What comes in: the frozen evidence of a cell, and sandboxes to execute in.
What goes out: an `Outcome` for each check: a score, a sentence and details.
"""
