"""Sentence vectors without training."""
