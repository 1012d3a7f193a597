"""An index of sentences and their vectors, in memory or in a folder, that is searched by cosine similarity."""
