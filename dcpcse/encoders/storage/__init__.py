"""The model folder, here and on the hub."""
