"""What a spec names for an agent to work against.

What lives here: what a kind of service is and how those of a spec are started (`service.py`), a file or a folder for
each kind, and what the databases share.
What comes in: the `services` of a spec, and the cell that wants them.
What goes out: addresses for the agent, what the checks ask of what it left there, and what it wrote into databases.
"""
