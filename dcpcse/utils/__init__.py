"""Infrastructure without a word of the domain."""
