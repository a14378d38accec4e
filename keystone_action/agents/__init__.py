"""How an agent is started, and how its answer is read.

What lives here: one file for each type of agent, and the environment that agents get.
What comes in: the `agent` of a spec, and a sandbox.
What goes out: an `AgentRun`, however the agent ended.
"""
