"""The names of the search backends, and a default value.

This module imports nothing, so that the help of a command appears quickly.
"""

RESCORE_MULTIPLIER = 4
"""Default number of sentences per result that are ranked by their cosines, if the vectors are quantized."""

BACKENDS = ("auto", "numpy", "faiss", "ivf")
"""numpy and faiss search exactly. ivf searches approximately, with the cells of faiss.

auto uses ivf if the saved index has cells. Otherwise, auto uses numpy or faiss, whichever is faster.
"""
