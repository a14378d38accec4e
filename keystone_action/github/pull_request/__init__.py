"""What a pull request is told.

What lives here: the sticky comment, the commit status, and who may write them.
What comes in: a run from its start to its end.
What goes out: one comment and one status, of the commit that they are about.
"""
