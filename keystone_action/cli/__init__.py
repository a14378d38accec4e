"""The front door on a laptop.

What lives here: the words of the command line, and what each command does.
What comes in: arguments and three streams.
What goes out: an exit code.
"""
