"""What an agent says to a model, on its way through us: worthless keys come in, real ones go out, a copy is read.

What lives here: the APIs of models (a file each, found by `registry.py`), the ledger of a cell and the trace that it
yields, and the server: one for a run, with a port for each cell.
What comes in: requests of a cell's agent, and the answers of a provider.
What goes out: those answers, byte for byte; and for checks what was asked, called and spent, which no agent can write.
"""
