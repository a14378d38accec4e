"""A run as people and programs read it.

What lives here: Markdown, HTML, JUnit, JSON and the console; `sentences/` is what all of them say, `page/` the HTML
page, `comment/` the comment on a pull request, `author_summary.py` a summary by a template of the workflow's own.
What comes in: a `RunResult`.
What goes out: texts in which everything that an agent printed is data.
"""
