"""How an index can be searched; the names alone, which a command's help needs."""

EXACT_BACKENDS = ("auto", "numpy", "faiss")
BACKENDS = (*EXACT_BACKENDS, "ivf")
"""auto: the faster of numpy and faiss, or the cells that a saved index has; ivf: cells of faiss, approximate."""
