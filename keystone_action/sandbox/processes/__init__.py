"""The process sandbox: commands on this machine, confined.

What lives here: the launcher and its supervisors, Landlock, seccomp, users, and the killing of every descendant.
What comes in: a command with its files and limits.
What goes out: how it ended, what it printed and what it used; the launcher's side imports only the standard
library.
"""
