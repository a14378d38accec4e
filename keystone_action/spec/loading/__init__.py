"""The way from the text of a spec file to a checked `Spec`.

What lives here: YAML whose values know their line, `extends`, datasets, expressions, rules, diagnostics.
What comes in: a path, and the models of the check types.
What goes out: a `LoadedSpec`, or a `SpecError` that holds all mistakes of the file.
"""
