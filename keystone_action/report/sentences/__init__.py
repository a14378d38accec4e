"""What every report says of a run, whatever its format.

What lives here: the headline, why something did not pass, what is worse than before, how sure figures are, what a run
cost; and in which order checks, cells and specs stand.
What comes in: a `RunResult`.
What goes out: sentences and rows without markup; a format escapes them.
"""
