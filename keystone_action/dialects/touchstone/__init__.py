"""Cases of Touchstone.

What lives here: the readers of `case.yaml` and `harnesses.yaml`, and the translation of graders, sources and setup.
What comes in: the tree of a case.
What goes out: the tree of a Keystone spec, or every mistake of the case.
"""
