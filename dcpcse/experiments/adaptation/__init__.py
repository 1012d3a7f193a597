"""Adapt an encoder to the user's data by a small search, and test on a held-out part whether it is better."""
