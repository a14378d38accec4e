"""What all cells of a run share.

What lives here: the service pool, containers, gateways and certificates of a run, first copies of files, what cells
leave to be removed, and how much may go on and be spent at once.
What comes in: the options and the specs of a run.
What goes out: places that a cell takes and gives back; no cell sees what another one left there.
"""
