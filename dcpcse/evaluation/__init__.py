"""Scores of an encoder."""
