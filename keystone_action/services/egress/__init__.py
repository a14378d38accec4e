"""The ways out of a cell's network.

What lives here: the proxy for allowed hosts, relays to what only we can reach, and the listener that both stand on.
What comes in: connections of one cell's containers.
What goes out: connections to what the spec allows, and a line in the audit log for each attempt.
"""
