"""Adapt an encoder to data of your own by a small search, and measure on a held-out part whether it helped."""
