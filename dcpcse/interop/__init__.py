"""Conversion from and to the formats of other libraries."""
