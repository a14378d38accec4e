"""Transcripts of agents, one file a format.

What lives here: the readers, and the builder that all of them write into.
What comes in: lines that an agent wrote, of any size and any content.
What goes out: a `Trace`, in bounded memory, or what is wrong with the transcript.
"""
