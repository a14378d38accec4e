"""PostgreSQL, embedded or in a container.

What lives here: the servers, a database and its roles for each cell, the reader of what an agent left, and the logs
and comparisons that tell what it wrote.
What comes in: a service of a spec.
What goes out: an address for the agent, rows for the checks, asked by a role of our own, and a `WriteLog`.
"""
