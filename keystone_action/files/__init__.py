"""Trees of files that an agent may have written.

What lives here: safe paths, walking, copying, removal, globs, snapshots, differences, patches, and the workspace of
a cell.
What comes in: directories whose contents are hostile.
What goes out: bytes, snapshots and changes; nothing here follows a link out of its root or starts a program of the
tree's.
"""
