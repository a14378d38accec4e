"""What a run is, and what it leaves on the disk while it goes on.

What lives here: the run's identity, its journal, results of earlier runs, and the joining of what shards left.
What comes in: finished cells, and results and journals that others may have changed.
What goes out: lines on the disk, and those cells of journals that belong to the run at hand.
"""
