"""An HTTP server for one encoder and many adapters, with the interface of OpenAI's API for embeddings."""
