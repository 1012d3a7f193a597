"""Sentence encoders: their parts, and the folder that one is saved in."""
