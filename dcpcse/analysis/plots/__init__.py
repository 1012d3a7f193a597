"""Pictures for papers: one module a picture, each with a pure `draw` from plain data, and what gathers that data."""
