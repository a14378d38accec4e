"""What an agent changed in its workspace.

What lives here: snapshots, their difference, the patch of it, and how many lines it has.
What comes in: the workspace before and after the agent, and the originals of files that a patch needs.
What goes out: `FileState` and `Change` by path, `diff.patch`, and counts of lines.
"""
