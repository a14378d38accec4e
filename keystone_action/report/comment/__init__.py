"""The comment on a pull request.

What lives here: its text, its hidden marker, what changed since the last one, and how it is kept below GitHub's
limit.
What comes in: a `RunResult`, and the comment that is there.
What goes out: the text of the new comment.
"""
