"""Training data: reading files, views, augmentations and batches."""
