"""What the runner reads: the log of a step, and its summary.

What lives here: workflow commands, annotations, progress, and the job summary.
What comes in: a run, and text of others that must not become a command.
What goes out: lines of the log, and the summary below its limit.
"""
