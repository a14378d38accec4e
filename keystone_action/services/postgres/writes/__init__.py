"""What is written into a cell's PostgreSQL database between the start of its agent and its end.

What lives here: slots of logical decoding, readers of what the two output plugins print, a log of statements that
change definitions, and comparisons where the server keeps no log.
What comes in: a server of ours, and a cell's database on it.
What goes out: a `WriteLog`; `comparison.py` also serves databases on servers that are not ours.
"""
