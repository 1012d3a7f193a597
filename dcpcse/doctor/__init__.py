"""`dcpcse doctor`: what is wrong, or odd, in files and folders, before it costs a training.

A module's `check(path, settings)` yields the findings of one kind of path; `checks` has the table of them.
"""
