"""Scorer classes of an author's.

What lives here: the program that asks a scorer inside the sandbox, and our side of it.
What comes in: a module of the author's and a finished cell.
What goes out: what the scorer said.
"""
