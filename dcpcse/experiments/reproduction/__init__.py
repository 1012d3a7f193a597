"""Reproduce rows of the papers' tables: the published figures, the commands for each row, and the results."""
