"""The life of one cell: prepare, run the agent, seal, judge.

What lives here: a file for each stage, and for what several stages need.
What comes in: a cell of the plan, and what all cells of the run share.
What goes out: a `CellResult`; nothing that the cell started outlives it.
"""
