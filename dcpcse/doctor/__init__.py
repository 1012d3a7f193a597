"""`dcpcse doctor`: checks of files and folders before training.

The function `check(path, settings)` of a module yields the findings for one kind of path; `checks` lists them all.
"""
