"""The HTML report of training runs: settings, curves, scores, figures and nearest neighbours in a single file."""
