"""Sentence embeddings of pretrained models without further training."""
