"""What was written into a database, told by what stood there before the agent and what stands there after it.

What lives here: which rows of a table are new or gone, and the list of writes that two looks at a database make.
What comes in: looks at a database of any kind, each with what stands in it and its rows as bytes.
What goes out: a `WriteLog`; an agent can't choose rows that it does not see.
"""
