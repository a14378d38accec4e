"""Calls of tools in a trace.

What lives here: matchers of calls (`matchers.py`), and what an agent spent (`spending.py`).
What comes in: a trace, and the evidence of a cell.
What goes out: whether a call is meant, numbers and sentences for the checks that judge how an agent worked.
"""
