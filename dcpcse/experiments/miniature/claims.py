"""The claims of the papers that the miniature tests: what each paper says, and which two variants it is about.

Every claim is a range in which a difference should lie: that of the second variant less the first one. Published
figures are those of `reproduction/tables/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, all_rows

HIGHER, LOWER = (0.0, inf), (-inf, 0.0)
"""Ranges of a difference: the second variant scores more, or less, than the first."""

FLAT = 1.0
"""Scores that differ by less than this number of points are level. DCPCSE says that they fluctuate around 78 %."""

LENGTHS: Mapping[int, str] = MappingProxyType(
    {1: "dcpcse-length-1", 4: "dcpcse-length-4", 10: "dcpcse-length-10", 16: "dcpcse"}
)
"""Prompt length → variant: the miniature of DCPCSE's figure 2."""


@dataclass(frozen=True)
class Claim:
    """What a paper says about two variants.

    key: unique name. paper, place: the paper, and the table or section. title: the claim in a few words. says: the
    claim in a sentence. first, second: names of the variants. published: names of the rows with their published
    figures; None if there is none. claimed: the range in which the difference, second less first, lies if the claim
    holds. metric: what is measured, a key of `verdicts.METRICS`. starred: whether it is a headline claim, with five
    seeds. note: how the miniature differs from what the paper measured.
    """

    key: str
    paper: str
    place: str
    title: str
    says: str
    first: str
    second: str
    published: tuple[str | None, str | None] = (None, None)
    claimed: tuple[float, float] = HIGHER
    metric: str = "avg"
    starred: bool = False
    note: str = ""

    @property
    def figures(self) -> tuple[float | None, float | None]:
        """The published figures of both variants, as printed; None where the papers print none."""
        column = AVERAGE_COLUMN if self.metric == "avg" else self.metric
        figures = [None if row is None else all_rows()[row].published.get(column) for row in self.published]
        return figures[0], figures[1]

    @property
    def expected(self) -> str:
        """The claimed range in words."""
        low, high = self.claimed
        if self.claimed in (HIGHER, LOWER):
            return "above 0" if self.claimed == HIGHER else "below 0"
        return f"between {low:+g} and {high:+g}"


_DCPCSE = "dcpcse/table1/unsupervised/"
_D2CSE = "d2cse/table6/unsupervised/"
_PROMPTBERT = "promptbert/table5/"
_REMOVED = "promptbert/table3/"
_OBJECTIVES = "promptbert/table8/BERT-base/"
_GEOMETRY = "d2cse/table5/unsupervised/"
_LARGE = "published for RoBERTa-large; here BERT"
_ONE_PRETRAINING = "one pretraining of each encoder, so the interval covers pairs only, not the seeds of pretraining"

_OF_DCPCSE = (
    Claim(
        "prompts-over-untouched",
        "DCPCSE",
        "Table 1",
        "trained prompts beat the untouched encoder",
        "Deep prompts on a frozen BERT-base score 78.49; the untouched encoder, averaged over its first and last "
        "layer, scores 56.70.",
        "untouched-first-last",
        "dcpcse",
        (f"{_DCPCSE}BERT-base-first-last-avg", f"{_DCPCSE}DCPCSE-BERT-base"),
        starred=True,
    ),
    Claim(
        "prompts-over-untouched-cls",
        "DCPCSE",
        "section 3.2",
        "trained prompts improve [CLS]",
        "Trained prompts make the [CLS] vector of a frozen encoder a sentence embedding (78.49). The untouched [CLS] "
        "has no published score.",
        "untouched-cls",
        "dcpcse",
        (None, f"{_DCPCSE}DCPCSE-BERT-base"),
        starred=True,
    ),
    Claim(
        "prompts-over-full",
        "DCPCSE",
        "Table 1",
        "prompts beat training the whole encoder",
        "Training prompts alone (78.49) beats training all weights with the same loss (SimCSE, 76.25).",
        "simcse",
        "dcpcse",
        (f"{_DCPCSE}SimCSE-BERT-base", f"{_DCPCSE}DCPCSE-BERT-base"),
        starred=True,
    ),
    Claim(
        "deep-over-shallow",
        "DCPCSE",
        "section 3.3",
        "deep prompts beat shallow ones",
        "Prompts in all layers (78.49) beat prompts at the input alone (SCPCSE, 73.28).",
        "scpcse",
        "dcpcse",
        (f"{_DCPCSE}SCPCSE-BERT-base", f"{_DCPCSE}DCPCSE-BERT-base"),
        starred=True,
    ),
    Claim(
        "length-rises",
        "DCPCSE",
        "Figure 2",
        "longer prompts help up to length 10",
        "The score rises with the length of the prompt until length 10, from 76.50 at length 1 to around 78.",
        "dcpcse-length-1",
        "dcpcse-length-10",
        ("dcpcse/figure2/length-1", "dcpcse/figure2/length-10"),
    ),
    Claim(
        "length-levels-off",
        "DCPCSE",
        "Figure 2",
        "beyond length 10 the score is level",
        "Beyond length 10 the score fluctuates around 78; length 16 scores 78.49.",
        "dcpcse-length-10",
        "dcpcse",
        ("dcpcse/figure2/length-10", "dcpcse/figure2/length-16"),
        claimed=(-FLAT, FLAT),
        note=f"the paper names no bound; here less than {FLAT:g} point in either direction is level",
    ),
    Claim(
        "one-vector-over-full",
        "DCPCSE",
        "section 3.3",
        "a prompt of length 1 beats training the whole encoder",
        "One deep prompt vector (76.50) is already 0.25 points above SimCSE (76.25).",
        "simcse",
        "dcpcse-length-1",
        (f"{_DCPCSE}SimCSE-BERT-base", "dcpcse/figure2/length-1"),
    ),
    Claim(
        "mlm",
        "DCPCSE",
        "Table 2",
        "the MLM loss lowers the score of a BERT",
        "On BERT-base the MLM loss lowers the score from 78.49 to 78.10.",
        "dcpcse",
        "dcpcse-mlm",
        ("dcpcse/table2/BERT-base-without-mlm", "dcpcse/table2/BERT-base-with-mlm"),
        claimed=LOWER,
        note="the larger effect of the paper, +8.69 on RoBERTa-base, cannot be tested on a BERT",
    ),
    Claim(
        "hard-negatives",
        "DCPCSE",
        "public code",
        "hard negatives help",
        "The supervised training uses NLI triplets with a hard negative. No figure without it is published.",
        "dcpcse-supervised-without-negatives",
        "dcpcse-supervised",
    ),
)

_OF_D2CSE = (
    Claim(
        "d2cse-over-dcpcse",
        "D2CSE",
        "Table 1",
        "D2CSE beats DCPCSE",
        "Detecting replaced tokens with the same prompts raises the score from 78.49 (DCPCSE) to 79.02.",
        "dcpcse",
        "d2cse",
        ("d2cse/table1/DCPCSE-BERT-base", "d2cse/table1/D2CSE-BERT-base"),
        starred=True,
    ),
    Claim(
        "condition",
        "D2CSE",
        "Table 6, c and d",
        "the sentence vector as a condition helps",
        "A discriminator that sees the sentence vector gives 79.02; without this condition 78.56.",
        "d2cse-unconditional",
        "d2cse",
        (f"{_D2CSE}c-prompts-without-condition/static-cls", f"{_D2CSE}d-prompts-with-condition/static-cls"),
    ),
    Claim(
        "one-model",
        "D2CSE",
        "Table 6, b and d",
        "one model beats a second, trained discriminator",
        "One frozen model for both tasks gives 79.02; a second model, trained as the discriminator, 78.38.",
        "d2cse-trained-discriminator",
        "d2cse",
        (f"{_D2CSE}b-train-discriminator/static-cls", f"{_D2CSE}d-prompts-with-condition/static-cls"),
        note="the discriminator is trained with a rate of 1e-4, which was not searched",
    ),
    Claim(
        "prompted-discriminator",
        "D2CSE",
        "Table 6, a and d",
        "the discriminator needs the prompts too",
        "Prompts in both encoder and discriminator give 79.02; a frozen discriminator without them 78.22.",
        "d2cse-frozen-discriminator",
        "d2cse",
        (f"{_D2CSE}a-conditional-only/static-cls", f"{_D2CSE}d-prompts-with-condition/static-cls"),
    ),
    Claim(
        "cls-prompt",
        "D2CSE",
        "Table 6, d",
        "without labels, a [CLS] prompt lowers the score",
        "Without labels, a trained [CLS] prompt lowers the score from 79.02 to 78.83.",
        "d2cse",
        "d2cse-cls-prompt",
        (f"{_D2CSE}d-prompts-with-condition/static-cls", f"{_D2CSE}d-prompts-with-condition/cls-prompt"),
        claimed=LOWER,
    ),
    Claim(
        "detection-supervised",
        "D2CSE",
        "Table 8",
        "with labels, detection costs points",
        "With NLI triplets, DCPCSE scores 81.65 and D2CSE, which also detects replaced tokens, 81.52.",
        "dcpcse-supervised",
        "d2cse-supervised-cls-prompt",
        ("d2cse/table8/DCPCSE-BERT-base", "d2cse/table8/D2CSE-BERT-base"),
        claimed=LOWER,
        note="the paper's own training of DCPCSE scores 81.28; D2CSE also has a [CLS] prompt and another head",
    ),
    Claim(
        "cls-prompt-supervised",
        "D2CSE",
        "Table 6, d",
        "with labels, a [CLS] prompt helps",
        "With NLI triplets, a trained [CLS] prompt raises the score from 81.25 to 81.52.",
        "d2cse-supervised",
        "d2cse-supervised-cls-prompt",
        (
            "d2cse/table6/supervised/d-prompts-with-condition/static-cls",
            "d2cse/table6/supervised/d-prompts-with-condition/cls-prompt",
        ),
    ),
    Claim(
        "cls-prompt-uniformity",
        "D2CSE",
        "Table 5",
        "with labels, a [CLS] prompt makes embeddings more uniform",
        "With NLI triplets, a [CLS] prompt improves (lowers) the uniformity from -1.3813 to -2.1093.",
        "d2cse-supervised",
        "d2cse-supervised-cls-prompt",
        ("d2cse/table5/supervised/D2CSE-BERT-base", "d2cse/table5/supervised/D2CSE-BERT-base-with-CLS-prompt"),
        claimed=LOWER,
        metric="uniformity",
    ),
    Claim(
        "recall",
        "D2CSE",
        "Table 4",
        "D2CSE retrieves better than DCPCSE",
        "Recall@1 among the sentences of STS-B is 91.24 %, that of DCPCSE 90.21 %.",
        "dcpcse",
        "d2cse",
        ("d2cse/table4/unsupervised/DCPCSE-BERT-base", "d2cse/table4/unsupervised/D2CSE-BERT-base"),
        metric="recall@1",
    ),
    Claim(
        "alignment",
        "D2CSE",
        "Table 5",
        "D2CSE has better alignment than DCPCSE",
        "The alignment is 0.0620, that of DCPCSE 0.0842; lower is better.",
        "dcpcse",
        "d2cse",
        (f"{_GEOMETRY}DCPCSE-BERT-base", f"{_GEOMETRY}D2CSE-BERT-base"),
        claimed=LOWER,
        metric="alignment",
    ),
    Claim(
        "uniformity",
        "D2CSE",
        "Table 5",
        "D2CSE has worse uniformity than DCPCSE",
        "The uniformity is -1.2627, that of DCPCSE -1.5074; lower is better.",
        "dcpcse",
        "d2cse",
        (f"{_GEOMETRY}DCPCSE-BERT-base", f"{_GEOMETRY}D2CSE-BERT-base"),
        metric="uniformity",
    ),
)

_OF_PROMPTBERT = (
    Claim(
        "static-over-last",
        "PromptBERT",
        "Table 1",
        "the layers of an untrained encoder do harm",
        "The mean of BERT-base's static token embeddings scores 56.02, that of its last layer 52.57.",
        "untouched-mean",
        "untouched-static",
        (f"{_PROMPTBERT}BERT-last-avg", f"{_PROMPTBERT}static-avg"),
        note="the paper finds it for two of three encoders: bert-base-cased gains 0.28 from its layers",
    ),
    Claim(
        "frequency",
        "PromptBERT",
        "Table 3",
        "removing frequent tokens helps the static mean",
        "Without the 36 most frequent tokens the static mean rises from 56.02 to 59.65.",
        "untouched-static",
        "untouched-static-without-frequency",
        (f"{_REMOVED}static/bert-base-uncased", f"{_REMOVED}minus-freq/bert-base-uncased"),
        note="the 36 tokens are those of the paper's code",
    ),
    Claim(
        "subword",
        "PromptBERT",
        "Table 3",
        "removing subwords helps further",
        "Without subwords it rises further, from 59.65 to 62.20.",
        "untouched-static-without-frequency",
        "untouched-static-without-frequency-subword",
        (f"{_REMOVED}minus-freq/bert-base-uncased", f"{_REMOVED}minus-freq-sub/bert-base-uncased"),
    ),
    Claim(
        "case",
        "PromptBERT",
        "Table 3",
        "removing case helps a cased encoder",
        "Lower-casing raises the static mean of bert-base-cased from 64.83 to 65.07.",
        "tied-static-without-frequency-subword",
        "tied-static-without-frequency-subword-case",
        (f"{_REMOVED}minus-freq-sub/bert-base-cased", f"{_REMOVED}minus-freq-sub-case/bert-base-cased"),
        note="the vocabulary of the embedded encoder is lower-cased, so this is tested on the small cased encoder "
        f"with tied embeddings; {_ONE_PRETRAINING}",
    ),
    Claim(
        "punctuation",
        "PromptBERT",
        "Table 3",
        "removing punctuation helps further",
        "Without punctuation it rises from 62.20 to 63.10.",
        "untouched-static-without-frequency-subword",
        "untouched-static-without-all",
        (f"{_REMOVED}minus-freq-sub/bert-base-uncased", f"{_REMOVED}minus-freq-sub-case-pun/bert-base-uncased"),
    ),
    Claim(
        "template-over-last",
        "PromptBERT",
        "Table 5",
        "a template beats the mean of the last layer",
        "[MASK] in a template scores 67.85 without any training, the mean of the last layer 52.57.",
        "untouched-mean",
        "untouched-template",
        (f"{_PROMPTBERT}BERT-last-avg", f"{_PROMPTBERT}Prompt-based-BERT-manual"),
        starred=True,
    ),
    Claim(
        "template-over-first-last",
        "PromptBERT",
        "Table 5",
        "a template beats the mean of first and last layer",
        "[MASK] in a template scores 67.85 without any training, the mean of the first and last layer 56.70.",
        "untouched-first-last",
        "untouched-template",
        (f"{_PROMPTBERT}first-last-avg", f"{_PROMPTBERT}Prompt-based-BERT-manual"),
        starred=True,
    ),
    Claim(
        "template-over-static",
        "PromptBERT",
        "Table 5",
        "a template beats the static mean without biases",
        "[MASK] in a template scores 67.85, the static mean without biased tokens 63.10.",
        "untouched-static-without-all",
        "untouched-template",
        (f"{_PROMPTBERT}static-remove-biases-avg", f"{_PROMPTBERT}Prompt-based-BERT-manual"),
        starred=True,
    ),
    Claim(
        "two-templates",
        "PromptBERT",
        "Table 8",
        "two templates beat one",
        "Two templates as the two views of a sentence give 78.19, one template 78.16 (both without denoising).",
        "promptbert-one-template-without-denoising",
        "promptbert-without-denoising",
        (f"{_OBJECTIVES}same-template-dropout", f"{_OBJECTIVES}different-templates"),
    ),
    Claim(
        "denoising",
        "PromptBERT",
        "Table 8",
        "denoising helps in training",
        "Subtracting the vector of the template alone in training raises the score from 78.19 to 78.54.",
        "promptbert-without-denoising",
        "promptbert",
        (f"{_OBJECTIVES}different-templates", f"{_OBJECTIVES}different-templates-denoising"),
    ),
    Claim(
        "denoising-untouched",
        "PromptBERT",
        "Table 9",
        "denoising lowers the score of the untrained [MASK]",
        "Without training, denoising lowers the score of [MASK] from 67.85 to 67.43.",
        "untouched-template",
        "untouched-template-denoised",
        ("promptbert/table9/MASK-token/no-denoising", "promptbert/table9/MASK-token/denoising"),
        claimed=LOWER,
    ),
    Claim(
        "denoising-top-k",
        "PromptBERT",
        "Table 9",
        "denoising helps the mean of predicted tokens",
        "Without training, denoising raises the score of the mean of the 200 most probable tokens from 56.19 to "
        "60.39.",
        "untouched-top-k",
        "untouched-top-k-denoised",
        ("promptbert/table9/top-200-tokens/no-denoising", "promptbert/table9/top-200-tokens/denoising"),
    ),
    Claim(
        "untied-static-over-head",
        "PromptBERT",
        "Table 12",
        "untied: static embeddings beat those of the LM head",
        "Of an encoder with untied embeddings, the static mean scores 49.41, that of the LM head's matrix 43.33.",
        "untied-lm-head",
        "untied-static",
        ("promptbert/table12/MLM-head-untied", "promptbert/table12/static-untied"),
        note=_ONE_PRETRAINING,
    ),
    Claim(
        "untied-over-tied",
        "PromptBERT",
        "Table 12",
        "untied static embeddings beat tied ones",
        "The static mean of an encoder with untied embeddings scores 49.41, with tied embeddings 45.68.",
        "tied-static",
        "untied-static",
        ("promptbert/table12/static-tied", "promptbert/table12/static-untied"),
        note=_ONE_PRETRAINING,
    ),
)

_OF_CONPVP = (
    Claim(
        "prototypes",
        "ConPVP",
        "Table 4",
        "prototypes help",
        "With prototypes ConPVP scores 79.90, without any (c⁺ and c⁻) 77.28.",
        "conpvp-without-prototypes",
        "conpvp",
        ("conpvp/table4/ConPVP-without-c+-c-", "conpvp/table4/ConPVP"),
        starred=True,
        note=_LARGE,
    ),
    Claim(
        "negated-prototypes",
        "ConPVP",
        "Table 4",
        "negated prototypes help",
        "With negated prototypes ConPVP scores 79.90, without them (c⁻) 78.49.",
        "conpvp-without-negated",
        "conpvp",
        ("conpvp/table4/ConPVP-without-c-", "conpvp/table4/ConPVP"),
        note=_LARGE,
    ),
    Claim(
        "debias",
        "ConPVP",
        "section 3.2",
        "subtracting the template's vector helps",
        "In training, the vector of the template is subtracted to reduce its influence. No figure without it is "
        "published.",
        "conpvp-without-debias",
        "conpvp",
    ),
)

_OF_OTHERS = (
    Claim(
        "consert",
        "ConSERT",
        "paper and README",
        "ConSERT improves its encoder",
        "Training on augmented copies raises BERT-base from 53.86 to 72.74.",
        "untouched-mean",
        "consert",
        ("consert/unsupervised/BERT-base", "consert/unsupervised/ConSERT-base"),
        note="published for the mean of the last two layers, trained on the sentences of the STS sets; here the mean "
        "of the last layer, trained on the same sentences as the other methods",
    ),
    Claim(
        "esimcse",
        "ESimCSE",
        "public code",
        "repeated words and a queue improve SimCSE",
        "ESimCSE scores 78.27, SimCSE 76.25.",
        "simcse",
        "esimcse",
        (f"{_DCPCSE}SimCSE-BERT-base", "esimcse/readme/BERT-base"),
    ),
    Claim(
        "diffcse",
        "DiffCSE",
        "Table 1 of D2CSE",
        "detecting replaced tokens improves SimCSE",
        "DiffCSE, which adds the detection of replaced tokens to SimCSE, scores 78.49, SimCSE 76.25.",
        "simcse",
        "diffcse",
        ("d2cse/table1/SimCSE-BERT-base", "d2cse/table1/DiffCSE-BERT-base"),
    ),
    Claim(
        "sbert",
        "SBERT",
        "Table 1",
        "SBERT improves its encoder",
        "Classifying NLI pairs raises the mean of BERT-base to 74.89; untrained it scores 52.57 (PromptBERT).",
        "untouched-mean",
        "sbert",
        (f"{_PROMPTBERT}BERT-last-avg", "sbert/table1/SBERT-NLI-base"),
        note="the triplets contain entailments and contradictions, but no neutral pairs",
    ),
    Claim(
        "hinge",
        "PromCSE",
        "Table 1",
        "the energy-based hinge helps supervised prompts",
        "The hinge loss raises supervised prompts from 81.81 to 82.13.",
        "dcpcse-supervised",
        "dcpcse-supervised-hinge",
        ("promcse/table1/supervised/PromCSE-BERT-base", "promcse/table1/supervised/PromCSE-BERT-base-EH"),
    ),
)

_OF_LATER = (
    Claim(
        "rankcse",
        "RankCSE",
        "Table 1",
        "the rankings of a teacher improve SimCSE",
        "RankCSE with ListMLE scores 80.36, SimCSE 76.25.",
        "simcse",
        "rankcse",
        (f"{_DCPCSE}SimCSE-BERT-base", "rankcse/sts/ListMLE/BERT-base"),
        note="the paper has two trained sentence encoders as teachers; here it is the untouched mean",
    ),
    Claim(
        "rankcse-deep",
        "RankCSE",
        "not in the paper",
        "the rankings of a teacher improve prompts",
        "The paper trains all weights. Here prompts learn the same rankings.",
        "dcpcse",
        "rankcse-deep",
    ),
    Claim(
        "angle",
        "AnglE",
        "public code",
        "AnglE beats SBERT on NLI",
        "Trained on NLI, AnglE scores 82.37, SBERT 74.89.",
        "sbert",
        "angle",
        ("sbert/table1/SBERT-NLI-base", "angle/nli/BERT-base"),
        note="the triplets contain entailments and contradictions, but no neutral pairs",
    ),
)

CLAIMS: tuple[Claim, ...] = (*_OF_DCPCSE, *_OF_D2CSE, *_OF_PROMPTBERT, *_OF_CONPVP, *_OF_OTHERS, *_OF_LATER)
"""All claims, in the order of the page."""
