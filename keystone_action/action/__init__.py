"""The front door of the GitHub Action.

What lives here: the step (`main.py`) and its post step (`post.py`).
What comes in: the variables of the runner.
What goes out: annotations, outputs, a summary and an exit code.
"""
