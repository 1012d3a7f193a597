"""Plots for papers.

Each module has `gather` functions, which read data, and `draw` functions, which draw them. The constant `KIND` or
`KINDS` describes the kinds of plots that `dcpcse plot` offers.
"""
