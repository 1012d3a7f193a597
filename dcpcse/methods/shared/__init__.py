"""Options and loss terms that several methods share."""
