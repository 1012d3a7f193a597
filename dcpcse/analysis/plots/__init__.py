"""Plots for papers.

In the module of each plot, `gather` reads the data, `draw` draws it, and `dcpcse plot` uses `KIND`.
"""
