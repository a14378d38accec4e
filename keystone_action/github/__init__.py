"""GitHub, as an action sees it.

What lives here: the event, inputs, outputs and baselines; `api/` is the client, `pull_request/` what is told there,
`log/` what the runner reads.
What comes in: variables and files of the runner, answers of the API.
What goes out: settings, and requests that are tried within one deadline.
"""
