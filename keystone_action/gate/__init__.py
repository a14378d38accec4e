"""What a change does to its own gate.

What lives here: the base commit, and the comparison of specs, named files, workflows, answers and baselines with
it.
What comes in: a checkout that we do not trust, and the specs of a call.
What goes out: sentences that say what a change weakens, the worst first.
"""
