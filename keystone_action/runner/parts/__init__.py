"""Parts of a run that have one identity.

What lives here: the identity, the journal, and the joining of what shards left.
What comes in: finished cells, and journals that others may have meddled with.
What goes out: lines on disk, and the cells of journals that belong to the run at hand.
"""
