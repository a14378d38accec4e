"""Source code that an agent wrote, read and never run.

What lives here: which files are source code, and a program that tells stubs from implementations.
What comes in: files of the workspace.
What goes out: lines and functions that do something, and those that do not.
"""
