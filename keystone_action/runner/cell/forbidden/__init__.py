"""The rules of `forbidden`, a file for each kind (spec.md 5.6).

What lives here: rules on files, hosts, secrets, tables, and on calls of tools.
What comes in: a cell whose agent has ended, with evidence that its agent can't write.
What goes out: a `ForbiddenResult` for each rule: what, where, when, and how sure. Raises HarnessError where evidence is
missing.
"""
