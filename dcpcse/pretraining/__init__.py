"""Pretraining of small masked language models, from which the sentence encoders of this package can start."""
