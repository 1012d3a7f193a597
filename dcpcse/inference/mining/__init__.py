"""Mine hard negatives: for each pair, texts of a corpus that are similar to its anchor and are not its positives."""
