"""Modules that authors' code may import in a sandbox which has no package of that name. Written for Python 3.8, of the
standard library alone; nothing of ours imports them, they are copied into sandboxes by `sandbox/library.py`."""
