"""The container sandbox: each command in a fresh container of one image.

What lives here: the sandboxes of a run on one engine, their setup, and how a workspace gets in and out.
What comes in: a command with its files and limits, and an image.
What goes out: how it ended, what it printed and the workspace as it left it.
"""
