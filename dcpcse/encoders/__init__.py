"""Sentence encoders: their parts, and how they are saved and loaded."""
