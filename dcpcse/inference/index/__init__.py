"""Build and search an index of sentences by cosine similarity. The index is in memory or in a folder."""
