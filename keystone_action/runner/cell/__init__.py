"""The life of one cell, in the boot order of the contract.

What lives here: workspace, services, fixtures, setup, agent, evidence, checks and grading, one file each.
What comes in: a cell of the plan, and what all cells of the run share.
What goes out: a `CellResult`; nothing that the cell started outlives it.
"""
