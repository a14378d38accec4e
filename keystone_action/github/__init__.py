"""GitHub, as an action sees it.

What lives here: the event, inputs, outputs, baselines, the log and summary that the runner reads, and what a pull
request is told: comment, status, links. `api/` is the client.
What comes in: variables and files of the runner, answers of the API.
What goes out: settings, and requests that are tried within one deadline.
"""
