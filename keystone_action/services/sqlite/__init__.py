"""SQLite files in a workspace.

What lives here: the service kind, and the program that asks a file which an agent left.
What comes in: a file of the agent's.
What goes out: rows for the checks; the file is read by a process of its own.
"""
