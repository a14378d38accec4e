"""`report.html`: one file that needs nothing else, for people who want to look closer.

What lives here: the page's data (`rows.py`, `cell.py`), its charts, and the order of its parts.
What comes in: a `RunResult`, and the folder of the run, whose `cells/<id>/` hold what each cell left.
What goes out: the page in pieces. What an agent wrote is in it as JSON that no browser runs, and its script shows it as
text; template, style sheet and scripts are in `report/templates/`.
"""
