"""Recordings: what a cell's agent asked its models and what they answered, in a file that is meant to be committed.

What lives here: names for what differs from run to run, the key by which equal requests are found, the file's format,
its reader and its writer, and where a request differs from the recorded ones.
What comes in: requests and assembled answers of one cell, or the file that an earlier run left.
What goes out: that file, without keys, secrets and account ids; and its entries, checked against their own keys.
"""
