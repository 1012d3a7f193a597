"""Analysis of results: plots, the HTML report, the demo page, and comparisons of runs."""
