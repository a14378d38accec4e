"""Git, on trees whose owners we do not trust.

What lives here: our calls of git, a commit's files, what becomes of a copied `.git`, and the copy of a checkout.
What comes in: checkouts and workspaces, with any configuration and any hook.
What goes out: files of commits and repositories without hooks, credentials and withheld history.
"""
