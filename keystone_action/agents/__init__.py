"""How an agent is started, and how its answer is read.

What lives here: how each type of agent is started, its environment, the reading of its answer, our own tool loop
(`tool_loop.py`, its models and its tools), and known agents (`presets/`).
What comes in: the `agent` of a spec, and a sandbox.
What goes out: an `AgentRun`, however the agent ended.
"""
