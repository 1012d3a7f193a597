"""Train an encoder: options, Trainer, guards, checkpoints, records and model card of a run."""
