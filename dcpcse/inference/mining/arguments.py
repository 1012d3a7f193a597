"""Options of `dcpcse mine`."""

from dataclasses import dataclass

from dcpcse.data.column_choice import chosen_columns
from dcpcse.data.columns import ROLES, numbered
from dcpcse.encoders.encode_options import CosineOptions
from dcpcse.encoders.pooling import POOLERS, UNTRAINED
from dcpcse.inference.index.backends import BACKENDS
from dcpcse.utils.errors import OptionError, spell
from dcpcse.utils.option_fields import SEEDS, needs_given, needs_value, option, require, require_effect

_GUIDE = needs_given("guide")

LISTS = "lists"
"""Value of --output_format for a row for each anchor, with lists of its positives and negatives."""


@dataclass
class MiningArguments(CosineOptions):
    """Options of `dcpcse mine`: the choice of hard negatives from a corpus, and the output file."""

    _argument_group_name = "mining"

    output: str | None = option(None, "Output file: OUT.csv, OUT.tsv or OUT.jsonl (required).")
    columns: list[str] | None = option(
        None,
        "Columns of the pairs to read, as ROLE=NAME, such as anchor=question positive=answer. Default: all columns.",
        named=True,
    )
    corpus: str | None = option(
        None,
        "Texts from which negatives are chosen: a text file, a training file (all its columns of sentences), or an "
        "index folder of dcpcse search. Default: the positives of the pairs.",
    )
    num_negatives: int = option(1, "Number of negatives of each pair.", at_least=1)
    output_format: str | None = option(
        None,
        "n-tuple: a row for each pair with all its negatives; pairs with fewer negatives are left out. triplet: a row "
        "for each negative; pairs with fewer negatives have fewer rows. lists: a row for each anchor with the lists "
        "pos and neg. Default: lists for OUT.jsonl, otherwise n-tuple.",
        choices=["n-tuple", "triplet", LISTS],
    )
    range_min: int = option(0, "Number of the most similar candidates that are skipped.", at_least=0)
    range_max: int = option(100, "Rank at which the search stops, including candidates that --range_min skips.")
    absolute_margin: float | None = option(
        None,
        "Minimum difference between the cosines of the anchor to its positive and to a negative.",
        at_least=-2,
        at_most=2,
    )
    relative_margin: float | None = option(
        None,
        "Minimum difference between the two cosines, as a share of the cosine to the positive.",
        at_least=-1,
        at_most=1,
    )
    max_similarity: float | None = option(
        None, "Largest cosine of an anchor and its negatives.", at_least=-1, at_most=1
    )
    guide: str | None = option(
        None,
        "Second encoder: leave out candidates that it finds more similar to the anchor than the positives. Output "
        "folder of train.py, Hugging Face folder or hub id.",
    )
    guide_pooler: str | None = option(
        None,
        "Sentence representation of --guide (default: as recorded in its folder; avg for a plain encoder).",
        choices=[*POOLERS, *UNTRAINED],
        needs=_GUIDE,
    )
    guide_margin: float = option(
        0.0,
        "Minimum difference between the guide's cosines of the anchor to its positive and to a negative.",
        needs=_GUIDE,
        at_least=-2,
        at_most=2,
    )
    sampling: str = option(
        "top",
        "top: the most similar candidates; random: a random choice of the candidates in range.",
        choices=["top", "random"],
    )
    seed: int | None = option(
        None, "With random sampling: seed (default: 42).", needs=needs_value("sampling", "random"), **SEEDS
    )
    backend: str = option(
        "auto",
        "How the corpus is searched, as in dcpcse search: auto, numpy and faiss are exact, ivf may miss candidates.",
        choices=list(BACKENDS),
    )
    overwrite: bool = option(False, "Replace an existing output.")

    def check(self) -> None:
        """Raise OptionError if options exclude each other or have no effect."""
        chosen_columns(self.columns)
        low, high = spell("range_min", self.range_min), spell("range_max", self.range_max)
        require(self.range_max > self.range_min, "range_max", self.range_max, f"above {low}")
        ranks = self.range_max - self.range_min
        bound = f"at most {ranks}, the number of ranks from {low} to {high}; give a larger {spell('range_max')}"
        require(self.num_negatives <= ranks, "num_negatives", self.num_negatives, bound)
        require_effect(self, None)
        if not self.output:
            raise OptionError("output", reason="is missing", remedy="give OUT.csv, OUT.tsv or OUT.jsonl")
        is_json = self.output.lower().endswith(".jsonl")
        if not is_json and not self.output.lower().endswith((".csv", ".tsv")):
            raise OptionError("output", self.output, "must end in .csv, .tsv or .jsonl")
        self.output_format = self.output_format or (LISTS if is_json else "n-tuple")
        if self.output_format == LISTS and not is_json:
            raise OptionError("output_format", LISTS, f"needs {spell('output')} OUT.jsonl")

    @property
    def output_columns(self) -> list[str]:
        """The names of the columns of the output."""
        if self.output_format == LISTS:
            return ["query", "pos", "neg"]
        return [*ROLES[:2], *numbered(ROLES[2], 1 if self.output_format == "triplet" else self.num_negatives)]
