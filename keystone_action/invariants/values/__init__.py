"""Values that a spec expects beside values that were found.

What lives here: comparison, operators, paths into JSON documents, strict JSON, regular expressions with a time
limit.
What comes in: what the author wrote, and data of the agent's.
What goes out: whether they agree, and a sentence with both.
"""
