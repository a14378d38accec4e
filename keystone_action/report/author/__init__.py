"""Summaries by a template of the workflow's own.

What lives here: the Jinja environment of such templates, and the blocks that they extend.
What comes in: a template and a `RunResult`.
What goes out: a summary in which the verdict can't be hidden.
"""
