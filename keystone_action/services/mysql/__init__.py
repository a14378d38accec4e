"""MySQL and MariaDB in containers.

What lives here: the servers, a database and its user for each cell, and the reader of what an agent left.
What comes in: a service of a spec.
What goes out: an address for the agent, and rows for the checks, asked by a user of our own.
"""
