"""What is made in a cell before its agent starts: `fixtures` and `setup` of a spec.

What lives here: fixtures, stubs of functions, packages and commands of `setup`, and what is kept for
later cells.
What comes in: a cell under way, with its workspace and its services.
What goes out: a workspace and an environment that are ready. Raises HarnessError.
"""
