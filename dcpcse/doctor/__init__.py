"""`dcpcse doctor`: checks of files and folders before training.

Each module checks one kind of path. The function `check(path, settings)` of a module yields the findings. The module
`checks` lists these functions.
"""
