"""Training files to batches."""
