"""Verification of a published checkpoint: compare its scores with a row of a paper.

The module `subject` reads the checkpoint. `fitting_rows` finds the row of a paper that fits the checkpoint, and the
settings of this row. `report` compares the figures and writes the report.
"""
