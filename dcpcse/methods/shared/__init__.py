"""Options and terms that several methods share."""
