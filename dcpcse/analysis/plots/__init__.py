"""Plots for papers.

In the module of each subject, `gather` functions read the data, `draw` functions draw them, and `dcpcse plot` uses
`KIND` or `KINDS`.
"""
