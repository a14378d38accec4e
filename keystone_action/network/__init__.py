"""Listening and connecting on behalf of a cell.

What lives here: an event loop in a thread, listeners that check who calls, and the ways out of a cell's network: the
proxy for allowed hosts, and relays to what only we can reach.
What comes in: connections of one cell's programs.
What goes out: connections to what the spec allows, and a line in the audit log for each attempt.
"""
