"""`dcpcse doctor`: checks of files and folders before training.

Each module checks one kind of path: its function `check(path, settings)` yields the findings. The module `checks`
lists these functions.
"""
