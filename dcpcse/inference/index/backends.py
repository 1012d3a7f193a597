"""The names of the search backends, without any import: the help of a command needs only these."""

BACKENDS = ("auto", "numpy", "faiss", "ivf")
"""auto: the faster one of numpy and faiss, or ivf if the saved index has cells; ivf: approximate, cells of faiss."""
