"""A local web page that shows the nearest sentences of a typed sentence under several models, side by side."""
