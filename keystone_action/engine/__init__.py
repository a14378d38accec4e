"""The container engine.

What lives here: its client with a deadline for every call, its errors as sentences, labels, images, networks,
transfers, and the removal of what a run made.
What comes in: what a container, an image or a network is to be.
What goes out: running containers and their output, or an error that says whether the engine, the image or we are at
fault.
"""
