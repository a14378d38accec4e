"""What was observed of a cell, written only by us.

What lives here: the audit log, recorded requests, masking, traces, and the frozen `Evidence`.
What comes in: what an agent did, and transcripts that it may have written.
What goes out: evidence that is frozen before the first check runs.
"""
