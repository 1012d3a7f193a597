"""How an index can be searched; the names alone, which a command's help needs."""

EXACT = ("auto", "numpy", "faiss")
BACKENDS = (*EXACT, "ivf")
"""auto: the faster of numpy and faiss, or the cells that a saved index has; ivf: cells of faiss, approximate."""
