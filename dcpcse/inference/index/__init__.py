"""Sentences found by their vectors: an index in memory or in a folder, and the methods that encoders get from it."""
