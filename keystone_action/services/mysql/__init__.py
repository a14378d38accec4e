"""MySQL and MariaDB in containers.

What lives here: the servers, a database and its user for each cell, the reader of what an agent left, and the binary
log and the comparison that tell what it wrote.
What comes in: a service of a spec.
What goes out: an address for the agent, rows for the checks, asked by a user of our own, and a `WriteLog`.
"""
