"""What a pair of sentences is said to be: the classes of natural language inference, or a score."""

CLASSES = ("contradiction", "entailment", "neutral")
"""Their numbers are the places in here, which are those of SBERT's reader."""
