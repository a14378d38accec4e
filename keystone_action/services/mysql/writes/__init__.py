"""What an agent wrote into a database of MySQL or MariaDB.

What lives here: the reader of a server's binary log, and the look by which databases without one are compared.
What comes in: a connection of ours, the database of a cell, when its agent starts and when it has ended.
What goes out: a `WriteLog`; where the log can't tell all, it is one that compares.
"""
