"""Plots for papers, one module each: `gather` reads the data, `draw` draws it, and `KIND` is used by the command."""
