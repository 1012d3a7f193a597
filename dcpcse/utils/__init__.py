"""General helpers that do not depend on sentence embeddings."""
