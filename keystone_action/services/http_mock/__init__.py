"""The service kind `http_mock`.

What lives here: one server for every mock of every cell, the HTTP protocol, routes, and the templates of responses.
What comes in: the routes of a spec, and the requests of a hostile client.
What goes out: responses, and a record of each request that is on disk before its response is sent.
"""
