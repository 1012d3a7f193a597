"""Plots for papers.

Each module has `gather` functions, which read the data, `draw` functions, which draw them, and the `KIND` or `KINDS`
that `dcpcse plot` offers.
"""
