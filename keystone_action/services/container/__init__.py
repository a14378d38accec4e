"""Any image as a service.

What lives here: the service kind, the life of one container, and what the database kinds need of it.
What comes in: a service of a spec that names an image.
What goes out: an address for the agent, and the log of the container after the run.
"""
