"""One file a check type, named as `check.type` has it: putting one here is all that a new type takes.

What lives here: the model of each check type and its evaluation.
What comes in: fields of a spec, and the evidence of a cell.
What goes out: an `Outcome`.
"""
