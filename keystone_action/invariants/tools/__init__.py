"""Calls of tools in a trace.

What lives here: matchers of calls, how well calls fit what was expected, and what they cost.
What comes in: a trace.
What goes out: numbers and sentences for the checks that judge how an agent worked.
"""
