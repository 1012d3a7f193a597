"""CoSENT (Su 2022), which trains the order of the cosines of scored or labelled sentence pairs."""

from collections.abc import Sequence

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Term
from dcpcse.losses.pair_ranking import PairRanking, pairs_with_targets
from dcpcse.methods.arguments import ModelArguments, refuse_contrastive_options
from dcpcse.methods.building import pair_method
from dcpcse.methods.registry import Method, register
from dcpcse.methods.tunings import Recipe

CITATION = "Su, *CoSENT: A more effective sentence vector scheme than Sentence-BERT*, 2022 (kexue.fm/archives/8847)."


@register(
    "cosent",
    citation=CITATION,
    defaults=lambda args, columns: refuse_contrastive_options(args, "temp"),
    labels=(LABEL, SCORE),
    recipes={"full": Recipe(2e-5, batch_size=32)},
    tuning="full",
    pooler_type="avg",
)
def cosent(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build CoSENT. A pair with a higher score should have a higher cosine than every pair with a lower score."""
    loss_fn = PairRanking(pairs_with_targets("cosent", Columns.of(columns)), args.temp)
    return pair_method(backbone, args, columns, {"order": Term(loss_fn)})
