"""What each field of a spec means, in words, made from the models.

What lives here: the readers of the models' docstrings, and the words for types and defaults.
What comes in: a pydantic model, ours or that of a check type of another package.
What goes out: descriptions, examples and defaults, for the JSON Schema, `keystone explain` and the pages.
"""
