"""Pages whose tables are copied from the figures of a benchmark show what is stored beside them."""

import json
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_page_on_prompts_shows_the_stored_scores_and_intervals():
    page = (DOCS / "when-prompts-help.md").read_text(encoding="utf-8")
    rows = json.loads((DOCS / "when-prompts-help/results.json").read_text(encoding="utf-8"))
    assert len(rows) >= 10
    for row in rows:
        assert np.mean(row["scores"]) == row["score"]
        spread = f" ± {np.std(row['scores'], ddof=1):.2f}" if row["seeds"] > 1 else ""
        shown = f"{row['side']} | {row['score']:.2f}{spread}"
        if "less untouched" in row:
            value, low, high = row["less untouched"]
            assert low <= value <= high
            shown += f"{'' if spread else ' (one seed)'} | {value:+.2f} [{low:+.2f}, {high:+.2f}] |"
        assert shown in page, shown
