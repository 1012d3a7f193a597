"""Verification of a published checkpoint: compare its scores with a row of a paper.

`subject` reads the checkpoint, `fitting_rows` finds its row and the settings of the row, and `report` compares the
figures and writes the report.
"""
