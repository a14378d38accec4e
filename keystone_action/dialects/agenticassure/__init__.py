"""Suites of AgenticAssure.

What lives here: the reader of a suite, its scorers as checks, and a stand-in for the package that authors' code
imports.
What comes in: the tree of a suite, and the adapter that it is run with.
What goes out: the tree of a Keystone spec, or every mistake of the suite.
"""
