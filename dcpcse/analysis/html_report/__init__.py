"""One HTML page about training runs: settings, curves, scores, pictures and nearest neighbours, in a single file."""
