"""The format of a spec file, `version: 1`, as frozen pydantic models.

What lives here: one file for each section, and the markers that give a field its meaning.
What comes in: data that was read from YAML.
What goes out: models whose attributes are the field names of the contract.
"""
