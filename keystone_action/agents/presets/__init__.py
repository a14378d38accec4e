"""Known coding agents: a file of data for each, and what makes a command of it.

What lives here: `NAME.yaml` for each agent type of that name, which says how its program is started, what it needs and
which transcript it writes; the reader of these files. A new agent is a new file.
What comes in: the `agent` of a spec, and the addresses of a cell's gateway.
What goes out: a `PresetCommand`: arguments, variables, files below HOME, standard input.
"""
