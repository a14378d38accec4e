"""A run, from its specs to its results.

What lives here: preflight, the scheduler, secrets, and what all cells of a run share; `cell/` is the life of one cell,
`journal/` is what a run is and what it leaves on the disk.
What comes in: loaded specs and options.
What goes out: a `RunResult`, and a journal that holds every finished cell.
"""
