"""Sections, tables, figures and equations that the repository cites exist in the papers and say what is cited."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
FILES = {"DCPCSE": "dcpcse_paper.txt", "D2CSE": "d2cse_paper.txt"}
FILES |= {"PromptBERT": "promptbert_paper.txt", "ConPVP": "conpvp_paper_ocr.txt"}
CONTENTS = {
    "DCPCSE": {"section": "1 2 2.1 2.2 3 3.1 3.2 3.3 4", "table": 4, "figure": 2, "eq": 2},
    "D2CSE": {"section": "1 2 3 4 4.1 4.2 4.3 5", "table": 8, "figure": 3, "eq": 3},
    "PromptBERT": {"section": "1 2 3 4 4.1 4.2 4.3 5 5.1 5.2 5.3 5.4 5.5 5.6 6 6.1 6.2", "table": 15}
    | {"figure": 2, "eq": 4},
    "ConPVP": {"section": "1 2 3 3.1 3.2 4 4.1 4.2 4.3 4.4 4.5 4.6 5 6 7 8", "table": 6, "figure": 7, "eq": 1},
}
"""Paper → its sections, and how many tables, figures and numbered equations it has."""

KINDS = {"section": "section", "table": "table", "figure": "figure", "eq.": "eq"}
CITATION = re.compile(
    rf"\b({'|'.join(CONTENTS)})(?:'s| paper)?,? \(?(?:\w+ )?"
    r"((?:sections?|tables?|figures?|eq\.) [\d.]*\d(?:(?:, | and | to )[\d.]*\d)*)",
    re.IGNORECASE,
)


def sources() -> list[Path]:
    folders = [ROOT / name for name in ("dcpcse", "docs", "SentEval/senteval", "benchmarks")]
    kinds = (".py", ".md", ".yaml", ".j2")
    return [ROOT / "README.md", *(path for f in folders for path in f.rglob("*") if path.suffix in kinds)]


def test_every_cited_place_exists():
    count, faults, contents = 0, [], {name.lower(): content for name, content in CONTENTS.items()}
    for path in sources():
        for name, place in CITATION.findall(" ".join(path.read_text(encoding="utf-8").split())):
            words = re.sub(" and | to ", " ", place.lower())
            kind, *numbers = re.findall(r"[a-z]+\.?|\d+(?:\.\d+)*", words)
            known = contents[name.lower()][KINDS[kind.rstrip("s")]]
            for number in numbers:
                count += 1
                if not (number in known.split() if isinstance(known, str) else 1 <= int(number) <= known):
                    faults.append(f"{path.relative_to(ROOT)}: {name}, {place}")
    assert not faults, "\n".join(faults)
    assert count > 60


def test_the_papers_have_as_many_tables_and_figures_as_may_be_cited():
    for name, contents in CONTENTS.items():
        path = SHARED / "papers" / FILES[name]
        if not path.is_file():
            pytest.skip("needs the papers as text")
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert max(int(number) for number in re.findall(r"\bTable (\d+)[:.]", text)) == contents["table"]
        assert max(int(number) for number in re.findall(r"\bFig(?:ure|\.) (\d+)", text)) == contents["figure"]
