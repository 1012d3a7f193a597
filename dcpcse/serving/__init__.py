"""An HTTP server for one encoder and many adapters; its interface for embeddings is that of OpenAI's API."""
