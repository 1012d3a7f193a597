"""Build a model from the tensors of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.encoders.backbones import Backbone, build_backbone, load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.heads import HEADS, build_head
from dcpcse.encoders.identity import EncoderSource
from dcpcse.encoders.prompts import DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.template_denoising import Denoising
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.inference.public_checkpoints.choices import Choices, PublishedSettings, ResolvedChoices, resolve_choices
from dcpcse.inference.public_checkpoints.layouts import LAYOUTS, Imported, Layout, find_layout
from dcpcse.inference.public_checkpoints.read import ForeignCheckpoint, is_sentence_transformer
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Options
from dcpcse.utils.tensor_files import listed, require_same_tensors

Parts = Mapping[str, Mapping[str, Tensor]]
"""A dict from parts of a model to their tensors by name."""

_ROOTS = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta"}
"""A dict from model types to the prefix of the tensor names of the encoder."""

_SAME = ("num_attention_heads", "hidden_act", "layer_norm_eps")
"""Settings that affect embeddings, but neither names nor shapes of tensors."""


@dataclass
class EncoderPlace(Options):
    """The location from which the encoder of a checkpoint is loaded.

    Args:
        base: As in `import_checkpoint`.
        tokenizer: As in `import_checkpoint`.
        options: As in `import_checkpoint`.
    """

    base: str | None
    tokenizer: str | None
    options: LoadOptions | None


def load_checkpoint(
    checkpoint: ForeignCheckpoint,
    origin: EncoderPlace,
    layout: str | None,
    choices: Choices,
    published: PublishedSettings | None = None,
) -> tuple[SentenceEncoder, Imported]:
    """Return the model of a checkpoint in eval mode, and a report on its tensors.

    Args:
        checkpoint: The checkpoint.
        origin: The location from which the encoder of the checkpoint is loaded.
        layout: As in `import_checkpoint`.
        choices: As in `import_checkpoint`.
        published: As in `resolve_choices`.
    """
    name = find_layout(
        sorted(checkpoint.tensors), layout, adapter=checkpoint.adapter is not None, where=checkpoint.file
    )
    kind = LAYOUTS[name]
    if kind.ambiguous and layout is None and is_sentence_transformer(checkpoint.folder):
        raise UserError(
            f"{checkpoint.folder} is a sentence-transformers folder, which dcpcse evaluate loads directly; if it is a "
            f"{kind.title} checkpoint nevertheless, give {spell('layout', name)}"
        )
    try:
        used, left_out = kind.sort(checkpoint.tensors)
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from error
    parts = _parts(checkpoint.tensors, used)
    backbone = (_frozen if kind.frozen else _trained)(checkpoint, kind, parts["encoder"], origin)
    model, resolved = _build(checkpoint, name, parts, backbone, choices, published)
    # These lines are logged at the end, so that they do not hide an error.
    notify(
        f"{checkpoint.file}: a {kind.title} checkpoint, {plural(len(used), 'tensor')} used, {len(left_out)} left out"
    )
    for why in dict.fromkeys(left_out.values()):
        notify(f"tensors left out ({why}): {listed([name for name, reason in left_out.items() if reason == why])}")
    for option, value in resolved.assumed.items():
        notify(f"{spell(option, value)}: not in the checkpoint; taken from {resolved.source[option]}")
    return model, Imported(name, checkpoint.file, used, left_out, resolved.assumed)


def _parts(tensors: Mapping[str, Tensor], used: Mapping[str, str]) -> Parts:
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "prompt": {}, "shallow": {}, "head": {}}
    for name, target in used.items():
        part, key = target.split(".", 1)
        parts[part][key] = tensors[name]
    return parts


def _trained(
    checkpoint: ForeignCheckpoint, layout: Layout, weights: Mapping[str, Tensor], origin: EncoderPlace
) -> Backbone:
    """Build the trained encoder that a checkpoint contains."""
    folder = str(checkpoint.folder)
    if origin.base is not None:
        raise UserError(
            f"{spell('base')}: {folder} is a {layout.title} checkpoint with its own encoder; leave {spell('base')} out"
        )
    if not checkpoint.config:
        raise UserError(f"{folder} has no config.json, which describes the encoder; copy it there")
    if origin.tokenizer is None and not checkpoint.has_tokenizer:
        raise UserError(
            f"{folder} has no tokenizer; copy the tokenizer of its encoder there, or give it to dcpcse import with "
            "--tokenizer"
        )
    _require_root(checkpoint)
    return build_backbone(folder, weights, checkpoint.file.name, tokenizer=origin.tokenizer, options=origin.options)


def _require_root(checkpoint: ForeignCheckpoint) -> None:
    """Raise UserError if tensors and config.json belong to different types of encoders, even if all shapes agree."""
    kind = checkpoint.config.get("model_type")
    if kind not in _ROOTS:
        raise UserError(
            f"{checkpoint.folder}: config.json has model_type {kind!r}; supported are {', '.join(sorted(_ROOTS))}"
        )
    roots = {name.split(".")[0] for name in checkpoint.tensors} & set(_ROOTS.values())
    if roots - {_ROOTS[kind]}:
        raise UserError(
            f"{checkpoint.folder}: config.json has model_type {kind}, but the tensors are of a {min(roots)} encoder; "
            "copy the folder again"
        )


def _frozen(
    checkpoint: ForeignCheckpoint, layout: Layout, weights: Mapping[str, Tensor], origin: EncoderPlace
) -> Backbone:
    """Load the encoder on which the prompts of a checkpoint were trained, from --base."""
    adapter = checkpoint.adapter
    where = origin.base or (None if adapter is None else adapter.get("base_model_name_or_path"))
    if adapter is not None:
        _require_prefix_tuning(checkpoint)
    if where is None:
        hint = checkpoint.config.get("_name_or_path")
        named = f"; config.json names {hint!r}" if hint else ""
        raise UserError(
            f"{checkpoint.folder} contains prompts for a frozen encoder ({layout.title}); give that encoder with "
            f"{spell('base')}{named}"
        )
    tokenizer = origin.tokenizer or (str(checkpoint.folder) if checkpoint.has_tokenizer else None)

    def require_same_kind(source: EncoderSource) -> None:
        _require_same(checkpoint, where, "model_type", checkpoint.config.get("model_type"), source.model_type)

    backbone = load_backbone(where, tokenizer=tokenizer, options=origin.options, require=require_same_kind)
    notify(f"tokenizer: loaded from {tokenizer or where}")
    _require_same_settings(checkpoint, where, backbone)
    if weights:
        _require_same_encoder(checkpoint, weights, where, backbone)
    else:
        notify(f"encoder: {where}; only its size was checked, since {checkpoint.file.name} contains no encoder")
    return backbone


def _require_prefix_tuning(checkpoint: ForeignCheckpoint) -> None:
    adapter = checkpoint.adapter
    for name, known in (("peft_type", ("PREFIX_TUNING",)), ("num_transformer_submodules", (1, None))):
        if adapter.get(name) not in known:
            raise UserError(
                f"{checkpoint.folder}: adapter_config.json has {name} {adapter.get(name)!r}; only {known[0]!r} can be "
                "imported"
            )


def _require_same_settings(checkpoint: ForeignCheckpoint, where: str, backbone: Backbone) -> None:
    """Raise UserError if config.json of the checkpoint describes an encoder with other sizes or settings."""
    config = backbone.model.config
    recorded = {name: (checkpoint.config.get(name), getattr(config, name, None)) for name in _SAME}
    if checkpoint.adapter is not None:
        names = {"token_dim": "hidden_size", "num_layers": "num_hidden_layers"}
        names["num_attention_heads"] = "num_attention_heads"
        recorded |= {name: (checkpoint.adapter.get(name), getattr(config, ours, None)) for name, ours in names.items()}
    for name, (theirs, ours) in recorded.items():
        _require_same(checkpoint, where, name, theirs, ours)


def _require_same(checkpoint: ForeignCheckpoint, where: str, name: str, theirs: Any, ours: Any) -> None:
    if theirs is not None and theirs != ours:
        raise UserError(
            f"{checkpoint.folder} was trained on an encoder with {name} {theirs}, but {where} has {ours}; give the "
            f"encoder that it was trained on with {spell('base')}"
        )


def _require_same_encoder(
    checkpoint: ForeignCheckpoint, weights: Mapping[str, Tensor], where: str, backbone: Backbone
) -> None:
    """Raise UserError unless the encoder weights in the checkpoint equal the weights of the given encoder."""
    expected = backbone.model.state_dict()
    require_same_tensors(f"{checkpoint.file}, compared with {where}: the encoder inside", expected, weights)
    for name, tensor in expected.items():
        # The checkpoint may have been saved in half precision.
        difference = (tensor.to(weights[name].dtype).float() - weights[name].float()).abs().max().item()
        if difference:
            raise UserError(
                f"the encoder inside {checkpoint.file} is not {where}: '{name}' differs by up to {difference:.2g}; "
                f"give the encoder that the prompts were trained on with {spell('base')}"
            )


def _build(
    checkpoint: ForeignCheckpoint,
    name: str,
    parts: Parts,
    backbone: Backbone,
    choices: Choices,
    published: PublishedSettings | None,
) -> tuple[SentenceEncoder, ResolvedChoices]:
    layout, config = LAYOUTS[name], backbone.model.config
    head = _head(checkpoint, parts["head"], config)
    prompt = _deep_prompt(checkpoint, parts["prompt"], backbone, dropout=0.0 if layout.adapter else None)
    resolved = resolve_choices(
        choices,
        layout,
        str(checkpoint.folder),
        config.model_type,
        head=head is not None,
        prompt_length=None if prompt is None else prompt.shape.length,
        published=published,
    )
    read = resolved.choices
    template = Template.parse(read.template, continuous=bool(parts["shallow"])) if layout.templated else None
    model = SentenceEncoder(
        Encoder(
            backbone.model.requires_grad_(False),
            prompt,
            read.position_offset or 0,
            shallow=_shallow_prompt(checkpoint, parts["shallow"], template, backbone),
            tuned=not layout.frozen,
        ),
        backbone.tokenizer,
        backbone.source,
        pooling=read.pooler_type,
        head=head,
        head_at_inference=head is not None and read.pooler_type in POOLERS_WITH_HEAD and not read.mlp_only_train,
        templates=[] if template is None else [template],
        denoising=Denoising(inference=bool(read.denoise_at_inference), from_zero=bool(read.denoise_from_zero)),
        final_period=bool(read.final_period),
        method=layout.method,
        arguments={"imported_from": layout.title},
    )
    return model.requires_grad_(False).eval(), resolved


def _deep_prompt(
    checkpoint: ForeignCheckpoint, weights: Mapping[str, Tensor], backbone: Backbone, dropout: float | None
) -> DeepPrompt | None:
    """Return deep prompts from the tensors of the checkpoint.

    Args:
        dropout: The dropout rate. None: the hidden dropout of the encoder.
    """
    if not weights:
        return None
    config, file = backbone.model.config, checkpoint.file
    if "embedding" not in weights or weights["embedding"].ndim != 2:
        raise UserError(f"{file} has no prompt table with two dimensions; copy it again")
    projected = len(weights) > 1
    shape = PromptShape.fit(config, len(weights["embedding"]))
    inner = weights["trans.0.weight"].shape[0] if "trans.0.weight" in weights else None
    last = weights.get("trans.2.weight", weights["embedding"].T) if projected else weights["embedding"].T
    if len(last) != shape.width:
        raise UserError(
            f"{file}: each prompt has {len(last)} values, but {backbone.source.name_or_path} requires {shape.width} "
            f"({shape.layers} layers, keys and values of {shape.heads} heads of {shape.head_dim}); give the encoder "
            f"that the prompts were trained on with {spell('base')}"
        )
    rate = getattr(config, "hidden_dropout_prob", 0.0) if dropout is None else dropout
    prompt = DeepPrompt(shape, dropout=rate, projection=inner)
    _fill(f"{file}: the prompt encoder", prompt.table, weights if projected else {"weight": weights["embedding"]})
    return prompt


def _shallow_prompt(
    checkpoint: ForeignCheckpoint, weights: Mapping[str, Tensor], template: Template | None, backbone: Backbone
) -> ShallowPrompt | None:
    """Return input vectors for the tokens of the template, as in the public code of OptiPrompt.

    OptiPrompt locates each template token by its last occurrence. If a token occurs twice in the template, the first
    occurrence therefore keeps the encoder's embedding, and its trained vector is never used.
    """
    if not weights:
        return None
    vectors, ids = weights["weight"].float(), TokenTemplate(template, backbone.tokenizer).prompt_ids
    embeddings = backbone.model.get_input_embeddings().weight.detach()
    if vectors.shape != (len(ids), embeddings.shape[1]):
        raise UserError(
            f"{checkpoint.file}: p_mbv, the trained prompt, has shape {tuple(vectors.shape)}, but the template "
            f"{str(template)!r} has {len(ids)} tokens and the encoder {embeddings.shape[1]} dimensions; give the "
            f"trained template with {spell('template')}"
        )
    unused = [index for index, token in enumerate(ids) if token in ids[index + 1 :]]
    if unused:
        tokens = backbone.tokenizer.convert_ids_to_tokens([ids[index] for index in unused])
        notify(f"p_mbv (trained vector) of {', '.join(tokens)} is not used, as in the public code: it occurs again")
    return ShallowPrompt(
        vectors.index_copy(0, torch.tensor(unused, dtype=torch.long), embeddings[[ids[i] for i in unused]])
    )


def _head(checkpoint: ForeignCheckpoint, weights: Mapping[str, Tensor], config: Any) -> nn.Module | None:
    """Return the head of a checkpoint, or None if the checkpoint has no head."""
    if not weights:
        return None
    settings = {"activation": getattr(config, "hidden_act", "gelu"), "eps": getattr(config, "layer_norm_eps", 1e-12)}
    of_kind = {"mlm_transform": settings}
    candidates = [build_head({"kind": kind, **of_kind.get(kind, {})}, config.hidden_size) for kind in HEADS]
    head = next((candidate for candidate in candidates if set(candidate.state_dict()) == set(weights)), None)
    if head is None:
        raise UserError(
            f"{checkpoint.file}: its head has the tensors {listed(weights)}, which match no supported head; this "
            "checkpoint cannot be loaded"
        )
    _fill(f"{checkpoint.file}: the head", head, weights)
    return head


def _fill(what: str, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    require_same_tensors(what, module.state_dict(), weights)
    module.load_state_dict(weights)
