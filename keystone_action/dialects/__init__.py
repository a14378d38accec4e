"""Cases and suites of other tools, read as they are and translated.

What lives here: what the dialects share; each of them is a room of its own.
What comes in: a YAML tree whose nodes know their place.
What goes out: the tree of a Keystone spec, and what it asks for that a Keystone spec has no field for.
"""
