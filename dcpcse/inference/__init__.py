"""Using a trained encoder."""
