"""Evaluation of sentence encoders on the tasks of senteval and MTEB."""
