"""Build and search an index of sentences by cosine similarity; the index is in memory or in a folder."""
