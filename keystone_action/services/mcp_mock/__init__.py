"""The service kind `mcp_mock`.

What lives here: a server of the Model Context Protocol for each cell, on the official `mcp` package, and a program for
clients that start one. The connections are those of http_mock.
What comes in: the tools, resources and prompts of a spec, and the requests of a hostile client.
What goes out: answers, and a record of each call of a tool that is on disk before its answer is sent.
"""
