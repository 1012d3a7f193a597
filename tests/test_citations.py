"""Sections, tables, figures and equations that the repository cites exist in the papers and say what is cited."""

import re
from pathlib import Path

import pytest
from tables import check_rows

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

TOPICS = (
    # module, citation, heading of the section, heading after it, words of the paper
    ("dcpcse/losses/masked_lm.py", "DCPCSE, section 2.2", "2.2 Multi-task Learning", "Experiments", "MLM objective"),
    ("dcpcse/encoders/prompts.py", "DCPCSE, section 2.1", "2.1 Sentence Embedding", "2.2 Multi", "in all transf"),
    ("dcpcse/encoders/prompts.py", "DCPCSE, section 3.3", "3.3 Ablation Study", "4 Concl", '"shallow" continuous pro'),
    ("dcpcse/methods/scpcse.py", "section 3.3 and appendix A", "A Experiment Details", "", "For SCPCSE, we init"),
    ("dcpcse/presets/scpcse/unsup-bert-base.yaml", "section 3.3 and appendix A", "A Experiment", "", "256, 1e-3, 5"),
    ("dcpcse/encoders/template_denoising.py", "PromptBERT (section 4.3)", "4.3 Prompt Based", "5 Exp", "position ids"),
    ("dcpcse/encoders/prompts.py", "PromptBERT, section 4.2", "4.2 Prompt Search", "4.3 Prompt", "OptiPrompt (Zhong"),
    (
        "dcpcse/experiments/template_generation.py",
        "PromptBERT, section 4.2",
        "4.2 Prompt",
        "4.3 Prompt",
        "by using T5",
    ),
    ("dcpcse/methods/d2cse.py", "appendix", "Pooler Design", "Supervised Method Results", "before pooling"),
    ("dcpcse/encoders/encoder.py", "D2CSE, section 3", "3 D2CSE Framework", "4 Experiments", "[CLS] prompt"),
    ("SentEval/senteval/fewshot.py", "ConPVP, section 5", "Application to Transfer", "Application to Clu", "few-shot"),
    ("SentEval/senteval/clustering.py", "section 6 of ConPVP", "6 Application to Clustering", "7 Concl", "K-Means"),
)
PAPER_OF = re.compile("|".join(FILES))


def sources() -> list[Path]:
    paths = (
        path for name in ("dcpcse", "docs", "SentEval/senteval", "benchmarks") for path in (ROOT / name).rglob("*")
    )
    return [ROOT / "README.md", *(path for path in paths if path.suffix in (".py", ".md", ".yaml", ".j2"))]


def paper(name: str) -> str:
    """The text of a paper in one line."""
    path = SHARED / "papers" / FILES[name]
    if not path.is_file():
        pytest.skip("needs the papers as text")
    text = re.sub(r"[“”]", '"', path.read_text(encoding="utf-8"))
    return " ".join(re.sub(r"-\n(?:\d+ )?(?=[a-z])|^\d+ (?=[a-z])|\*+", "", text, flags=re.MULTILINE).split())


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


def test_the_papers_have_what_is_cited_and_say_what_they_are_cited_for():
    for name, contents in CONTENTS.items():
        text = paper(name)
        assert max(int(number) for number in re.findall(r"\bTable (\d+)[:.]", text)) == contents["table"]
        assert max(int(number) for number in re.findall(r"\bFig(?:ure|\.) (\d+)", text)) == contents["figure"]

    def check(topic):
        file, citation, heading, following, words = topic
        source = " ".join((ROOT / file).read_text(encoding="utf-8").split())
        assert citation in source
        text = paper((PAPER_OF.search(citation) or PAPER_OF.search(source))[0])
        start = text.index(heading)
        end = text.index(following, start + len(heading)) if following else len(text)
        assert words in text[start:end]

    check_rows(TOPICS, check)
