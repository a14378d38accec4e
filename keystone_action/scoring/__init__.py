"""Scores and verdicts: pure functions.

What lives here: composites, aggregation, comparison with a baseline, statistics, and the results document.
What comes in: the results of checks.
What goes out: verdicts, and `results.json` as data.
"""
