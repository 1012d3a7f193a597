"""Mine hard negatives: texts of a corpus that are similar to the anchor of a pair, but are not its positives."""
