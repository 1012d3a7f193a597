"""The names of the search backends. This module imports nothing, so that the help of a command appears quickly."""

BACKENDS = ("auto", "numpy", "faiss", "ivf")
"""numpy and faiss search exactly. ivf searches approximately, with the cells of faiss.

auto uses ivf if the saved index has cells. Otherwise, auto uses numpy or faiss, whichever is faster.
"""
