"""Running a workspace's tests, and believing what became of them.

What lives here: the graded copy, the drivers that run inside the sandbox, and the readers of their reports.
What comes in: the agent's work, the author's hidden tests, and reports that the agent may have written.
What goes out: counts of tests that can be believed.
"""
