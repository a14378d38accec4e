"""The comment on a pull request.

What lives here: its text, and the hidden lines by which it knows what changed since the last one.
What comes in: a `RunResult`, and the comment that is there.
What goes out: the text of the new comment.
"""
