"""A run, from its specs to its results.

What lives here: the scheduler, secrets, and how a run ends; `cell/` is the life of one cell, `sharing/` is what all
cells of a run share, `parts/` is what resume, shards and merge work on.
What comes in: loaded specs and options.
What goes out: a `RunResult`, and a journal that holds every finished cell.
"""
