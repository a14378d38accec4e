"""Models that judge.

What lives here: their clients, the prompt, strict parsing, juries, and the cache.
What comes in: criteria of the author's, and material of the agent's.
What goes out: a score with its reasons, or an error that says why there is none.
"""
