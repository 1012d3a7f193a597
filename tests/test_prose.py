"""Docstrings, comments, messages and pages avoid phrases that readers stumbled over."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("dcpcse", "SentEval/senteval", "benchmarks")
PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "docs/notebooks/*.ipynb")
PAGES += ("run_*.sh", "data/*.sh", "dcpcse/presets/*/*.yaml")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
TEXTS = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]

PHRASES = (
    *("(go|goes|gone|going) on (with|from)", "hangs? on", "(is|are|was|were) told", "such as cannot"),
    *("tells of (a|an|the|it|how|what)",),
    *("stands? (before|beside|behind|there|in)", "lies? (in|at|beside|there|as)", "refuses to be", "all in all"),
    *("know what", "at hand", "none of ours", "holds nothing", "see to it", "(is|are) asked for", "mend(ed|s)?"),
    *("gives? way", "takes? (its|their) place", "of its own accord", "what (is|was) said", "made anew", "anew"),
    *("written whole", "whole or not at all", "as it is there", "is there already", "which is not there"),
    *("looked at by", "where there is one", "of another kind than", "says so", "sees? that it"),
    r"(?<!raises )(?<!raise )(?<!import )(?<!or )(?<!and )(?<!a )(?<!, )(?<!\.)"
    r"(User|Data|Value)Error (for|where|unless|if)",
)
"""What a native writer would put otherwise; each was found in an earlier version."""

BANNED = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)


def test_no_stumbling_phrase_is_used():
    faults = []
    for path in SOURCES + TEXTS:
        text = " ".join(path.read_text(encoding="utf-8").split())
        faults += [f"{path}: {text[max(0, at.start() - 50) : at.end() + 50]}" for at in BANNED.finditer(text)]
    assert not faults, "\n".join(faults)
