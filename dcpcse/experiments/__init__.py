"""Experiments that consist of many runs: reproductions of the papers' tables, and searches."""
