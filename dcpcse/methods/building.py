"""Parts that methods are built from: what is trained, the model around it, and the terms of the loss."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.data.views import View, sentence_pair_views
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import Encoder, set_dropout
from dcpcse.encoders.heads import BatchNormMLP, MLMTransform, TanhMLP
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.prompts import DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.template_denoising import NO_DENOISING, Denoising
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.losses import Contrastive, MaskedLM, Term
from dcpcse.losses.masked_lm import exponential_decay
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """What a part adds to a method: templates, views and terms. The views number the templates within the part."""

    templates: tuple[Template, ...] = ()
    views: tuple[View, ...] = ()
    terms: Mapping[str, Term] = field(default_factory=dict)

    def views_after(self, count: int) -> tuple[View, ...]:
        """Its views in a method whose first `count` templates are others."""
        return tuple(replace(view, templates=tuple(count + i for i in view.templates)) for view in self.views)


NOTHING = Part()


def instance_wise(backbone: Backbone, args: ModelArguments, columns: Sequence[str], more: Part = NOTHING) -> Method:
    """Two renderings of a sentence, or of a pair, against all others: SimCSE, and what differs on the other axes."""
    return of_pairs(backbone, args, columns, {"contrastive": Term(contrastive(args))}, more)


def of_pairs(
    backbone: Backbone,
    args: ModelArguments,
    columns: Sequence[str],
    terms: Mapping[str, Term],
    more: Part = NOTHING,
) -> Method:
    """Terms on the views of `sentence_pair_views`, which every option of templates, tuning and MLM goes with."""
    templates = own_templates(args)
    model = sentence_encoder(backbone, args, [*templates, *more.templates])
    views = (*sentence_pair_views(columns, len(templates)), *more.views_after(len(templates)))
    return Method(model, views, {**terms, **more.terms, **mlm_terms(backbone, args)})


def own_templates(args: ModelArguments) -> list[Template]:
    """The templates that the options name: the anchor's, and the positive's if it is another one."""
    return [parse_template(text, args) for text in (args.template, args.second_template) if text is not None]


def contrastive(args: ModelArguments, **views: Any) -> Contrastive:
    """The contrastive loss of the options; views: which ones it compares, if not anchor and positive."""
    return Contrastive(args.temp, args.hard_negative_weight, gather_gradient=args.gather_gradient, **views)


def parse_template(text: str, args: ModelArguments) -> Template:
    """A template of the options; with --tuning shallow its words are continuous, unless slots are written in it."""
    plain = Template.parse(text)
    return Template.parse(text, continuous=args.tuning == "shallow" and not plain.prompts)


def sentence_encoder(backbone: Backbone, args: ModelArguments, templates: Sequence[Template]) -> SentenceEncoder:
    """The model that the options ask for; the first template is that of the anchor and of inference."""
    if any(template.prompts or template.continuous for template in templates[1:]):
        raise UserError("continuous prompts stand in one template; leave --second_template out")
    encoder = _encoder(backbone, args, templates)
    return SentenceEncoder(
        encoder,
        backbone.tokenizer,
        backbone.source,
        pooling=args.pooler_type,
        head=_head(backbone, args),
        head_at_inference=args.pooler_type in POOLERS_WITH_HEAD and not args.mlp_only_train,
        templates=templates,
        denoising=denoising_of(args),
        final_period=args.final_period,
        method=args.method,
        arguments=args.record(),
    )


def denoising_of(args: ModelArguments) -> Denoising:
    """Whether and how the template's own vector is taken away."""
    if args.template is None:
        return NO_DENOISING
    return Denoising(
        training=args.denoise,
        inference=args.denoise_at_inference,
        by=args.denoise_by or "template",
        shifted=not args.denoise_unshifted,
        freeze=bool(args.denoise_freeze),
    )


def mlm_terms(backbone: Backbone, args: ModelArguments) -> Mapping[str, Term]:
    """The masked-LM term with its decaying weight (DCPCSE, section 2.2), where it is asked for."""
    if not args.do_mlm:
        return {}
    masking = TokenMasking(backbone.tokenizer, args.mlm_probability)
    mlm = MaskedLM(backbone.lm_head, masking, train_head=args.trains_lm_head, apart=args.tuning == "full")
    decay = exponential_decay(args.mlm_decay_rate, args.mlm_decay_steps)
    return {"mlm": Term(mlm, args.mlm_weight, decay)}


def _encoder(backbone: Backbone, args: ModelArguments, templates: Sequence[Template]) -> Encoder:
    """The encoder with what is trained in it: itself, deep prompts, and input vectors where a template has slots."""
    tuned = args.tuning == "full"
    backbone.model.requires_grad_(tuned)
    if args.encoder_dropout is not None:
        set_dropout(backbone.model, args.encoder_dropout)
    shallow = _shallow_prompt(backbone, args, templates[0]) if templates else None
    if args.tuning == "shallow" and shallow is None:
        raise UserError(f"--tuning shallow: the template {templates[0]} has no token to train in its place")
    if args.tuning != "deep":
        return Encoder(backbone.model, shallow=shallow, tuned=tuned)
    prompt = DeepPrompt(
        PromptShape.fit(backbone.model.config, args.pre_seq_len),
        dropout=_prompt_dropout(backbone, args),
        projection=args.prefix_hidden_size if args.prefix_projection else None,
        std=initial_std(backbone),
    )
    cls_prompt = _cls_prompt(backbone) if args.cls_prompt else None
    return Encoder(backbone.model, prompt, _position_offset(backbone, args), shallow=shallow, cls_prompt=cls_prompt)


def _cls_prompt(backbone: Backbone) -> ShallowPrompt:
    """The [CLS] prompt of D2CSE (section 3), begun as the embedding of what stands first in every text."""
    first = backbone.tokenizer("")["input_ids"][0]
    return ShallowPrompt(backbone.model.get_input_embeddings().weight[[first]])


def _shallow_prompt(backbone: Backbone, args: ModelArguments, template: Template) -> ShallowPrompt | None:
    """Input vectors for the slots of a template; None where it has none."""
    ids = TokenTemplate(template, backbone.tokenizer).prompt_ids
    if not ids:
        return None
    init = args.prompt_init or ("template" if template.continuous else "normal")
    if init == "template" and not template.continuous:
        raise UserError("--prompt_init template: at a [PROMPT] slot stands no token; choose normal or uniform")
    words = backbone.model.get_input_embeddings().weight.detach()
    prompt = ShallowPrompt(_beginnings(words, ids, initial_std(backbone))[init])
    return prompt.requires_grad_(not args.freeze_prompts)


def _beginnings(words: Tensor, ids: Sequence[int], std: float) -> dict[str, Tensor]:
    shape = (len(ids), words.shape[1])
    # All are drawn, so that what follows sees the same random numbers.
    return {
        "template": words[list(ids)],
        "normal": torch.randn(shape).to(words) * std,
        "uniform": torch.rand(shape).to(words),
    }


def _head(backbone: Backbone, args: ModelArguments) -> nn.Module | None:
    if args.pooler_type not in POOLERS_WITH_HEAD:
        return None
    if args.org_mlp:
        return MLMTransform.of(backbone.lm_head)
    return (BatchNormMLP if args.batchnorm else TanhMLP)(backbone.source.hidden_size, initial_std(backbone))


def _position_offset(backbone: Backbone, args: ModelArguments) -> int:
    if not positions_of(backbone.model).rotary:
        return args.pre_seq_len if args.position_offset is None else args.position_offset
    if args.position_offset:
        logger.warning(
            "--position_offset %d has no effect on %s: its positions are rotary, only distances count",
            args.position_offset,
            backbone.source.model_type,
        )
    return 0


def initial_std(backbone: Backbone) -> float:
    """The published code draws prompts and MLP like any new weight of the backbone: N(0, initializer_range)."""
    return getattr(backbone.model.config, "initializer_range", 0.02)


def _prompt_dropout(backbone: Backbone, args: ModelArguments) -> float:
    """That of the backbone's hidden states (ModernBERT: of its MLPs), as published, unless it is given."""
    given = [rate for rate in (args.prompt_dropout, args.encoder_dropout) if rate is not None]
    config = backbone.model.config
    return [*given, getattr(config, "hidden_dropout_prob", getattr(config, "mlp_dropout", 0.0))][0]
