"""Docstrings, comments, messages and pages avoid phrases that readers stumbled over."""

import io
import re
import tokenize
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
    r"(?<!raises )(?<!raise )(?<!or )(?<!and )(?<!a )(?<!, )(?<!\.)"
    r"(User|Data|Value)Error (for|where|unless|if)",
)
"""What a native writer would put otherwise; each was found in an earlier version."""

BANNED = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)


def prose_of(path: Path) -> list[tuple[int, str]]:
    """The comments and strings of a module with their lines; runs of whitespace are one blank."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return [(token.start[0], " ".join(token.string.split())) for token in tokens if token.type in kinds]


def faults_in(path: Path) -> list[str]:
    lines = (
        prose_of(path) if path.suffix == ".py" else enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    )
    matches = [(number, text, match[0]) for number, text in lines if (match := BANNED.search(text))]
    return [f"{path.name}, line {number}: {match!r} in {text[:100]!r}" for number, text, match in matches]


def test_no_stumbling_phrase_is_used(tmp_path):
    """The check sees docstrings, comments and messages."""
    module = tmp_path / "module.py"
    text = '"""It hangs\n on it."""\n\nx = 1  # gone on with\nraise ValueError(f"{x}: see to it")'
    module.write_text(text, encoding="utf-8")
    assert [fault[:17] for fault in faults_in(module)] == [f"module.py, line {number}" for number in (1, 4, 5)]
    faults = [fault for path in SOURCES + TEXTS for fault in faults_in(path)]
    assert not faults, "\n".join(faults)
