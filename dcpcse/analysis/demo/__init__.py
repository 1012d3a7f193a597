"""A local web page that shows, side by side, the sentences that several models place nearest to a typed sentence."""
