"""Load trained encoders, encode sentences and files with them, and search for similar sentences."""
