"""DCPCSE (Jiang and Wang 2022): deep continuous prompts on a frozen encoder, contrastive loss, decaying MLM loss."""

from collections.abc import Sequence

from ..arguments import ModelArguments
from ..backbones import Backbone
from ..heads import TanhMLP
from ..models import SentenceEncoder
from ..objectives import Contrastive, MaskedLM, Term, TokenMasking
from ..objectives.mlm import exponential_decay
from ..views import sentence_pair_views
from .parts import initial_std, prompted_encoder
from .registry import Method, register


@register("dcpcse")
def dcpcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Only the prompts and the MLP head are trained; [CLS] is the representation (sections 2.1 and 2.2)."""
    model = SentenceEncoder(
        prompted_encoder(backbone, args),
        backbone.tokenizer,
        backbone.source,
        pooling=args.pooler_type,
        # The published models put the MLP on [CLS] only; the other representations are pooled as they are.
        head=TanhMLP(backbone.source.hidden_size, initial_std(backbone)) if args.pooler_type == "cls" else None,
        head_at_inference=args.pooler_type == "cls" and not args.mlp_only_train,
        method=args.method,
        arguments=args.record(),
    )
    terms = {"contrastive": Term(Contrastive(args.temp, args.hard_negative_weight))}
    if args.do_mlm:
        masking = TokenMasking(backbone.tokenizer, args.mlm_probability)
        mlm = MaskedLM(backbone.lm_head, masking, train_head=args.trains_lm_head)
        decay = exponential_decay(args.mlm_decay_rate, args.mlm_decay_steps)
        terms["mlm"] = Term(mlm, args.mlm_weight, decay)
    return Method(model, sentence_pair_views(columns), terms)
