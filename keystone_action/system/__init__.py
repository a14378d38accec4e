"""This process and the machine that it runs on.

What lives here: signals, the clean environment, the shutdown of a run, locks of runs, and what the machine is short of.
What comes in: what the kernel tells us.
What goes out: nothing that knows of specs, cells or results.
"""
