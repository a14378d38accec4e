"""Spec files of other tools, read as they are and translated into the tree of a Keystone spec (spec.md 1.9, 5.5)."""
