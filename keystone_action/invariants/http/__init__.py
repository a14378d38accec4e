"""Asking an HTTP server that an agent built.

What lives here: one bounded exchange, what is expected of it, and tries until it holds.
What comes in: an address and what is expected.
What goes out: the response, or why there is none.
"""
