"""The papers in miniature: their claims, tested on a small encoder with trainings that take minutes."""
