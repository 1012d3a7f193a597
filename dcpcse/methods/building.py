"""Functions that build the parts of a method from its options: the sentence encoder, templates and loss terms."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.data.columns import ROLES
from dcpcse.data.views import View, sentence_pair_views
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import Encoder, set_dropout
from dcpcse.encoders.heads import BatchNormMLP, MLMTransform, TanhMLP
from dcpcse.encoders.lora import Lora, find_targets
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.prompts import PROMPT_FORMS, PromptShape, ShallowPrompt, layer_projections
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.template_denoising import NO_DENOISING, Denoising
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.losses import Contrastive, MaskedLM, Term
from dcpcse.losses.masked_lm import exponential_decay
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method
from dcpcse.methods.tunings import TUNINGS
from dcpcse.utils.arguments import texts_by_name
from dcpcse.utils.console import warn
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD


@dataclass(frozen=True)
class Part:
    """Templates, views and loss terms that an option adds to a method.

    Args:
        templates: The templates.
        views: The views. They refer to templates by the index in `templates`.
        terms: The loss terms by name.
    """

    templates: tuple[Template, ...] = ()
    views: tuple[View, ...] = ()
    terms: Mapping[str, Term] = field(default_factory=dict)

    def views_after(self, count: int) -> tuple[View, ...]:
        """Return the views with all template indices increased by `count`, the number of preceding templates."""
        return tuple(replace(view, templates=tuple(count + i for i in view.templates)) for view in self.views)

    def followed_by(self, other: "Part") -> "Part":
        """Return both parts as one part. The templates of the other part follow the templates of this part."""
        views = (*self.views, *other.views_after(len(self.templates)))
        return Part((*self.templates, *other.templates), views, {**self.terms, **other.terms})


EMPTY_PART = Part()


def instance_wise(
    backbone: Backbone, args: ModelArguments, columns: Sequence[str], extra: Part = EMPTY_PART
) -> Method:
    """Build a method with SimCSE's contrastive loss on two views of a sentence or on the sentences of a pair.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        columns: The columns of the training data.
        extra: Additional templates, views and terms.
    """
    return pair_method(backbone, args, columns, {"contrastive": Term(contrastive(args))}, extra)


def pair_method(
    backbone: Backbone,
    args: ModelArguments,
    columns: Sequence[str],
    terms: Mapping[str, Term],
    extra: Part = EMPTY_PART,
) -> Method:
    """Build a method on the views of `sentence_pair_views`. The MLM loss is added if --do_mlm is set.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        columns: The columns of the training data.
        terms: The loss terms by name.
        extra: Additional templates, views and terms.
    """
    templates = own_templates(args)
    model = sentence_encoder(backbone, args, [*templates, *extra.templates])
    views = (*sentence_pair_views(columns, len(templates)), *extra.views_after(len(templates)))
    return Method(model, views, {**terms, **extra.terms, **mlm_terms(backbone, args)})


def own_templates(args: ModelArguments) -> list[Template]:
    """Return the templates of --template (for the anchor) and, if given, --second_template (for the positive)."""
    return [parse_template(text, args) for text in (args.template, args.second_template) if text is not None]


def contrastive(args: ModelArguments, **views: Any) -> Contrastive:
    """Return the contrastive loss with the settings in `args`.

    Args:
        args: Options of the method.
        views: The arguments `positive` and `others` of `Contrastive`.
    """
    return Contrastive(args.temp, args.hard_negative_weight, gather_gradient=args.gather_gradient, **views)


def parse_template(text: str, args: ModelArguments) -> Template:
    """Parse a template. If the tuning trains templates and the text has no [PROMPT] slots, all tokens are trained.

    Args:
        text: The template.
        args: Options of the method.
    """
    plain = Template.parse(text)
    return Template.parse(text, continuous=TUNINGS[args.tuning].needs_template and not plain.prompts)


def sentence_encoder(backbone: Backbone, args: ModelArguments, templates: Sequence[Template]) -> SentenceEncoder:
    """Build the sentence encoder that the options describe: the backbone with prompts, pooling, head and templates.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        templates: The templates, or (). The first template is used for the anchor and at inference.

    Raises:
        UserError: If a template other than the first template has trained tokens, or if --tuning shallow has no tokens
            to train.
    """
    if any(template.prompts or template.continuous for template in templates[1:]):
        raise UserError(
            f"{spell('second_template')}: only one template can have continuous prompts; leave out this option"
        )
    encoder, texts = _encoder(backbone, args, templates), prompts_of_columns(args)
    return SentenceEncoder(
        encoder,
        backbone.tokenizer,
        backbone.source,
        pooling=args.pooler_type,
        head=_head(backbone, args),
        head_at_inference=args.pooler_type in POOLERS_WITH_HEAD and not args.mlp_only_train,
        templates=templates,
        denoising=denoising_of(backbone, args),
        final_period=args.final_period,
        normalize=bool(args.normalize),
        text_prefix=args.prompt or "",
        prompts={role: texts[column] for role, column in {"query": "anchor", "document": "positive"}.items() if texts},
        method=args.method,
        arguments=args.record(),
    )


def prompts_of_columns(args: ModelArguments) -> dict[str, str]:
    """Return role of a column, such as "anchor" → the text before its sentences; {} without --prompts.

    Args:
        args: Options of the method.
    """
    given = texts_by_name(args.prompts)
    texts = dict.fromkeys(ROLES, args.prompt or "") | given
    return texts | {"negative": given.get("negative", texts["positive"])} if given else {}


def denoising_of(backbone: Backbone, args: ModelArguments) -> Denoising:
    """Return the settings for subtracting the [MASK] vector of the empty template (template denoising).

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
    """
    if args.template is None:
        return NO_DENOISING
    first = positions_of(backbone.model).first
    if args.denoise_from_zero and not first:
        warn(
            f"{spell('denoise_from_zero', True)} has no effect on {backbone.source.model_type}, whose positions begin "
            "at 0 anyway"
        )
    return Denoising(
        training=args.denoise,
        inference=args.denoise_at_inference,
        by=args.denoise_by or "template",
        shifted=not args.denoise_unshifted,
        freeze=bool(args.denoise_freeze),
        from_zero=bool(args.denoise_from_zero and first),
    )


def mlm_terms(backbone: Backbone, args: ModelArguments) -> Mapping[str, Term]:
    """Return the MLM loss term with a decaying weight (DCPCSE, section 2.2) if --do_mlm is set; otherwise {}.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
    """
    if not args.do_mlm:
        return {}
    masking, tuning = TokenMasking(backbone.tokenizer, args.mlm_probability), TUNINGS[args.tuning]
    mlm = MaskedLM(backbone.lm_head, masking, train_head=args.trains_lm_head, apart=not tuning.frozen)
    decay = exponential_decay(args.mlm_decay_rate, args.mlm_decay_steps)
    return {"mlm": Term(mlm, args.mlm_weight, decay)}


def _encoder(backbone: Backbone, args: ModelArguments, templates: Sequence[Template]) -> Encoder:
    """Build the encoder with the parts that the tuning adds and with the trained input vectors of template slots."""
    tuning = TUNINGS[args.tuning]
    backbone.model.requires_grad_(not tuning.frozen)
    if args.encoder_dropout is not None:
        set_dropout(backbone.model, args.encoder_dropout)
    shallow = _shallow_prompt(backbone, args, templates[0]) if templates else None
    if tuning.needs_template and shallow is None:
        raise OptionError(
            "tuning", args.tuning, f"the template {templates[0]} has no tokens to train", "add words or [PROMPT] slots"
        )
    added = _ADDED[args.tuning](backbone, args) if args.tuning in _ADDED else {}
    return Encoder(backbone.model, shallow=shallow, tuned=not tuning.frozen, **added)


def _deep_prompts(backbone: Backbone, args: ModelArguments) -> dict[str, Any]:
    if args.prompt_form == "vectors":
        layer_projections(backbone.model)  # raises UserError if there are none
    prompt = PROMPT_FORMS[args.prompt_form or "keys_values"](
        PromptShape.fit(backbone.model.config, args.pre_seq_len),
        dropout=_prompt_dropout(backbone, args),
        projection=args.prefix_hidden_size if args.prefix_projection else None,
        std=initial_std(backbone),
    )
    cls_prompt = _cls_prompt(backbone) if args.cls_prompt else None
    return {"prompt": prompt, "position_offset": _position_offset(backbone, args), "cls_prompt": cls_prompt}


def _lora(backbone: Backbone, args: ModelArguments) -> dict[str, Any]:
    targets = find_targets(backbone.model, args.lora_target_modules)
    return {"lora": Lora(args.lora_r, args.lora_alpha, args.lora_dropout, targets)}


_ADDED: Mapping[str, Callable[[Backbone, ModelArguments], dict[str, Any]]] = {"deep": _deep_prompts, "lora": _lora}
"""For each value of `--tuning`, a function that returns the parts that the tuning adds, as arguments of `Encoder`."""


def _cls_prompt(backbone: Backbone) -> ShallowPrompt:
    """Return the [CLS] prompt of D2CSE (section 3), initialised with the word embedding of the first token."""
    first = backbone.tokenizer("")["input_ids"][0]
    return ShallowPrompt(backbone.model.get_input_embeddings().weight[[first]])


def _shallow_prompt(backbone: Backbone, args: ModelArguments, template: Template) -> ShallowPrompt | None:
    """Return the trained input vectors for the prompt slots of a template.

    None if the template has no prompt slots.
    """
    ids = TokenTemplate(template, backbone.tokenizer).prompt_ids
    if not ids:
        return None
    init = args.prompt_init or ("template" if template.continuous else "normal")
    if init == "template" and not template.continuous:
        reason = "[PROMPT] slots have no tokens to start from"
        raise OptionError("prompt_init", "template", reason, "choose normal or uniform")
    embeddings = backbone.model.get_input_embeddings().weight.detach()
    prompt = ShallowPrompt(_initial_values(embeddings, ids, initial_std(backbone))[init])
    return prompt.requires_grad_(not args.freeze_prompts)


def _initial_values(embeddings: Tensor, ids: Sequence[int], std: float) -> dict[str, Tensor]:
    shape = (len(ids), embeddings.shape[1])
    # All three initial values are drawn, so that later random numbers do not depend on --prompt_init.
    return {
        "template": embeddings[list(ids)],
        "normal": torch.randn(shape).to(embeddings) * std,
        "uniform": torch.rand(shape).to(embeddings),
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
        warn(
            f"{spell('position_offset', args.position_offset)} has no effect on {backbone.source.model_type}, whose "
            "position embeddings are rotary and encode distances only"
        )
    return 0


def initial_std(backbone: Backbone) -> float:
    """Return the standard deviation of the initial prompts and heads: `initializer_range` of the backbone.

    The published code uses the same value.
    """
    return getattr(backbone.model.config, "initializer_range", 0.02)


def _prompt_dropout(backbone: Backbone, args: ModelArguments) -> float:
    """Return the dropout rate of deep prompts. As published, the default is the backbone's hidden dropout.

    For ModernBERT the default is its MLP dropout.
    """
    rates = [rate for rate in (args.prompt_dropout, args.encoder_dropout) if rate is not None]
    config = backbone.model.config
    return [*rates, getattr(config, "hidden_dropout_prob", getattr(config, "mlp_dropout", 0.0))][0]
