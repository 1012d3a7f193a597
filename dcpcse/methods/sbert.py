"""SBERT (Reimers and Gurevych 2019), which trains the encoder on labelled or scored sentence pairs."""

from collections.abc import Sequence
from typing import Any

from dcpcse.data.columns import Columns
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments, refuse_contrastive_options
from dcpcse.methods.building import pair_method
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.labelled_pairs import LABELS, LabelledPairsOptions, labelled_pairs_loss
from dcpcse.methods.shared.prototypes import PROTOTYPES, PrototypeOptions, prototypes_of
from dcpcse.methods.tunings import Recipe


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    return {} if PROTOTYPES.holds(args) else refuse_contrastive_options(args)


CITATION = "Reimers and Gurevych, *Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks*, EMNLP 2019."


@register(
    "sbert",
    citation=CITATION,
    options=(LabelledPairsOptions, PrototypeOptions),
    defaults=_defaults,
    labels=LABELS,
    recipes={"full": Recipe(2e-5, batch_size=16)},  # section 3.1 of the paper
    tuning="full",
    pooler_type="avg",
)
def sbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build SBERT (section 3 of its paper).

    Labelled pairs and triplets are classified. For scored pairs, the cosine is trained to match the score.
    """
    name, loss_fn = labelled_pairs_loss(backbone.source.hidden_size, args, Columns.of(columns))
    # The second sentence of a labelled pair may contradict the anchor, so the prototypes are built from the anchor.
    prototypes = prototypes_of(args, "positive" if Columns.of(columns).negatives else "anchor")
    return pair_method(backbone, args, columns, {name: Term(loss_fn)}, prototypes)
