"""A training run: arguments, Trainer, guards, checkpoints, records and model card."""
