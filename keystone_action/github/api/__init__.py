"""GitHub's REST API.

What lives here: one client, its requests with their waits and tries, and the few fields that we read.
What comes in: what is to be asked, and a patience in seconds.
What goes out: checked documents, or an error that names the cause.
"""
