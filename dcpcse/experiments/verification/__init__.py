"""Verification of a published checkpoint: are its scores those that a row of a paper prints?

`subject` reads what is verified, `fitting_rows` finds its row and the settings of the row, and `report` compares the
figures and writes the report.
"""
