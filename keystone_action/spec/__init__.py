"""From the text of a spec file to a `Spec`, and everything that can be said of it before anything runs.

What lives here: the models of the format (`models/`), the way from a file to them (`loading/`), and the small
languages that a spec is written in, such as globs and patterns of paths.
What comes in: paths of files, and the models of the check types, which the front doors hand over.
What goes out: a `LoadedSpec`, or a `SpecError` with every mistake at its line.
"""
