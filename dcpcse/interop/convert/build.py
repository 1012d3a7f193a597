"""From the tensors of a checkpoint to a model, and to the folder of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.encoders.backbones import Backbone, EncoderSource, build_backbone, load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.heads import HEADS, build_head
from dcpcse.encoders.prompts import DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.encoders.template_denoising import NO_DENOISING, Denoising
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.interop.convert.choices import Choices, ResolvedChoices, resolve_choices
from dcpcse.interop.convert.layouts import LAYOUTS, Imported, Layout, find_layout
from dcpcse.interop.convert.read import ForeignCheckpoint, is_sentence_transformer, read_checkpoint
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import atomic_folder, require_writable
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD
from dcpcse.utils.safetensors_io import listed, require_same_tensors

Parts = Mapping[str, Mapping[str, Tensor]]
"""Part of a model → its tensors by name."""

_ROOTS = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta"}
"""Model type → what stands before the names of its encoder's tensors."""

_SAME = ("num_attention_heads", "hidden_act", "layer_norm_eps")
"""Settings that vectors hang on and no tensor shows."""


@dataclass(frozen=True)
class EncoderPlace:
    """Where the encoder of a checkpoint is taken from, in the words of `import_checkpoint`."""

    base: str | None
    tokenizer: str | None
    options: LoadOptions | None


def load_checkpoint(
    path: Path, place: EncoderPlace, layout: str | None, choices: Choices
) -> tuple[SentenceEncoder, Imported]:
    """The model of a checkpoint, in eval mode, and what became of its tensors; arguments as of `import_checkpoint`."""
    checkpoint = read_checkpoint(path)
    name = find_layout(
        sorted(checkpoint.tensors), layout, adapter=checkpoint.adapter is not None, where=checkpoint.file
    )
    kind = LAYOUTS[name]
    if kind.ambiguous and layout is None and is_sentence_transformer(path):
        raise UserError(
            f"{path} is a sentence-transformers folder: evaluation.py takes its encoder as it is; if it is a "
            f"{kind.title} checkpoint all the same, say so with --layout {name}"
        )
    try:
        used, left_out = kind.sort(checkpoint.tensors)
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from error
    parts = _parts(checkpoint.tensors, used)
    backbone = (_frozen if kind.frozen else _trained)(checkpoint, kind, parts["encoder"], place)
    model, resolved = _build(checkpoint, name, parts, backbone, choices)
    # Once nothing can be wrong any more: before an error these lines would only hide it.
    notify(
        f"{checkpoint.file}: a {kind.title} checkpoint, {plural(len(used), 'tensor')} used, {len(left_out)} left out"
    )
    for why in dict.fromkeys(left_out.values()):
        notify(f"left out ({why}): {listed([name for name, reason in left_out.items() if reason == why])}")
    for option, value in resolved.assumed.items():
        notify(f"--{option} {value}: the checkpoint does not say; taken from {resolved.source[option]}")
    return model, Imported(name, checkpoint.file, used, left_out, resolved.assumed)


def _parts(tensors: Mapping[str, Tensor], used: Mapping[str, str]) -> Parts:
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "prompt": {}, "shallow": {}, "head": {}}
    for name, target in used.items():
        part, own = target.split(".", 1)
        parts[part][own] = tensors[name]
    return parts


def _trained(
    checkpoint: ForeignCheckpoint, layout: Layout, found: Mapping[str, Tensor], place: EncoderPlace
) -> Backbone:
    """The encoder of a checkpoint that trained it."""
    folder = str(checkpoint.folder)
    if place.base is not None:
        raise UserError(f"--base: {folder} is a {layout.title} checkpoint, which holds its own encoder; leave it out")
    if not checkpoint.config:
        raise UserError(f"{folder} has no config.json, which says what encoder it is; copy it there")
    if place.tokenizer is None and not checkpoint.has_tokenizer:
        raise UserError(f"{folder} has no tokenizer; give the one of its encoder with --tokenizer")
    _require_root(checkpoint)
    return build_backbone(folder, found, tokenizer=place.tokenizer, options=place.options)


def _require_root(checkpoint: ForeignCheckpoint) -> None:
    """UserError where tensors and config.json speak of different encoders; their shapes alone may agree."""
    kind = checkpoint.config.get("model_type")
    if kind not in _ROOTS:
        raise UserError(f"{checkpoint.folder}: config.json speaks of a {kind!r} encoder; known are {sorted(_ROOTS)}")
    found = {name.split(".")[0] for name in checkpoint.tensors} & set(_ROOTS.values())
    if found - {_ROOTS[kind]}:
        raise UserError(f"{checkpoint.folder}: config.json speaks of a {kind} encoder, its tensors of {min(found)}")


def _frozen(
    checkpoint: ForeignCheckpoint, layout: Layout, found: Mapping[str, Tensor], place: EncoderPlace
) -> Backbone:
    """The encoder that a checkpoint's prompts were trained on, from its own place."""
    adapter = checkpoint.adapter
    where = place.base or (None if adapter is None else adapter.get("base_model_name_or_path"))
    if adapter is not None:
        _require_prefix_tuning(checkpoint)
    if where is None:
        hint = checkpoint.config.get("_name_or_path")
        said = f"; config.json names {hint!r}" if hint else ""
        raise UserError(
            f"{checkpoint.folder} holds prompts on a frozen encoder ({layout.title}), which is not written again; "
            f"give that encoder with --base{said}"
        )
    tokenizer = place.tokenizer or (str(checkpoint.folder) if checkpoint.has_tokenizer else None)

    def require_same_kind(source: EncoderSource) -> None:
        _require_same(checkpoint, where, "model_type", checkpoint.config.get("model_type"), source.model_type)

    backbone = load_backbone(where, tokenizer=tokenizer, options=place.options, require=require_same_kind)
    notify(f"tokenizer: that of {tokenizer or where}")
    _require_same_settings(checkpoint, where, backbone)
    if found:
        _require_same_encoder(checkpoint, found, where, backbone)
    else:
        notify(f"the encoder is taken to be {where}: {checkpoint.file.name} has nothing to know it by but its size")
    return backbone


def _require_prefix_tuning(checkpoint: ForeignCheckpoint) -> None:
    adapter = checkpoint.adapter
    for name, known in (("peft_type", ("PREFIX_TUNING",)), ("num_transformer_submodules", (1, None))):
        if adapter.get(name) not in known:
            raise UserError(
                f"{checkpoint.folder}: adapter_config.json has {name} {adapter.get(name)!r}; only {known[0]!r} can be "
                "imported, prompts on one encoder"
            )


def _require_same_settings(checkpoint: ForeignCheckpoint, where: str, backbone: Backbone) -> None:
    """UserError where the checkpoint's files say that its encoder computes in another way, or has another size."""
    config = backbone.model.config
    said = {name: (checkpoint.config.get(name), getattr(config, name, None)) for name in _SAME}
    if checkpoint.adapter is not None:
        own = {"token_dim": "hidden_size", "num_layers": "num_hidden_layers"}
        own["num_attention_heads"] = "num_attention_heads"
        said |= {name: (checkpoint.adapter.get(name), getattr(config, ours, None)) for name, ours in own.items()}
    for name, (theirs, ours) in said.items():
        _require_same(checkpoint, where, name, theirs, ours)


def _require_same(checkpoint: ForeignCheckpoint, where: str, name: str, theirs: Any, ours: Any) -> None:
    if theirs is not None and theirs != ours:
        raise UserError(
            f"{checkpoint.folder} was trained on an encoder with {name} {theirs}, {where} has {ours}; give with "
            "--base the one that it was trained on"
        )


def _require_same_encoder(
    checkpoint: ForeignCheckpoint, found: Mapping[str, Tensor], where: str, backbone: Backbone
) -> None:
    """UserError unless the encoder inside the checkpoint is the given one, number by number."""
    expected = backbone.model.state_dict()
    require_same_tensors(f"{checkpoint.file}, beside {where}: the encoder inside", expected, found)
    for name, tensor in expected.items():
        # The checkpoint may have been saved in half precision.
        difference = (tensor.to(found[name].dtype).float() - found[name].float()).abs().max().item()
        if difference:
            raise UserError(
                f"the encoder inside {checkpoint.file} is not {where}: '{name}' differs by up to {difference:.2g}; "
                "give with --base the one that the prompts were trained on"
            )


def _build(
    checkpoint: ForeignCheckpoint, name: str, parts: Parts, backbone: Backbone, choices: Choices
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
        denoising=Denoising(inference=read.denoise_at_inference) if read.denoise_at_inference else NO_DENOISING,
        final_period=bool(read.final_period),
        method=layout.method,
        arguments={"imported_from": layout.title},
    )
    return model.requires_grad_(False).eval(), resolved


def _deep_prompt(
    checkpoint: ForeignCheckpoint, found: Mapping[str, Tensor], backbone: Backbone, dropout: float | None
) -> DeepPrompt | None:
    """Prompts of the size that their tensors have; dropout: None for that of the encoder's hidden states."""
    if not found:
        return None
    config, file = backbone.model.config, checkpoint.file
    if "embedding" not in found or found["embedding"].ndim != 2:
        raise UserError(f"{file} has no table of prompts, of two dimensions")
    projected = len(found) > 1
    shape = PromptShape.fit(config, len(found["embedding"]))
    inner = found["trans.0.weight"].shape[0] if "trans.0.weight" in found else None
    last = found.get("trans.2.weight", found["embedding"].T) if projected else found["embedding"].T
    if len(last) != shape.width:
        raise UserError(
            f"{file}: each prompt has {len(last)} numbers; {backbone.source.name_or_path} takes {shape.width} "
            f"({shape.layers} layers, keys and values of {shape.heads} heads of {shape.head_dim}); is it the encoder "
            "that they were trained on?"
        )
    rate = getattr(config, "hidden_dropout_prob", 0.0) if dropout is None else dropout
    prompt = DeepPrompt(shape, dropout=rate, projection=inner)
    _fill(f"{file}: the prompt encoder", prompt.table, found if projected else {"weight": found["embedding"]})
    return prompt


def _shallow_prompt(
    checkpoint: ForeignCheckpoint, found: Mapping[str, Tensor], template: Template | None, backbone: Backbone
) -> ShallowPrompt | None:
    """Vectors in the places of the template's words, as the public code of OptiPrompt has them.

    It finds a word's place by the last time its token occurs, so that of two alike the first one keeps its own
    embedding, and its vector never counts.
    """
    if not found:
        return None
    vectors, ids = found["weight"].float(), TokenTemplate(template, backbone.tokenizer).prompt_ids
    words = backbone.model.get_input_embeddings().weight.detach()
    if vectors.shape != (len(ids), words.shape[1]):
        raise UserError(
            f"{checkpoint.file}: p_mbv has shape {tuple(vectors.shape)}; the template {str(template)!r} has "
            f"{len(ids)} tokens of {words.shape[1]} numbers; --template names the one that was trained"
        )
    unused = [place for place, token in enumerate(ids) if token in ids[place + 1 :]]
    if unused:
        tokens = backbone.tokenizer.convert_ids_to_tokens([ids[place] for place in unused])
        notify(f"p_mbv of {', '.join(tokens)} never counted in the public code: the token comes again in the template")
    return ShallowPrompt(
        vectors.index_copy(0, torch.tensor(unused, dtype=torch.long), words[[ids[i] for i in unused]])
    )


def _head(checkpoint: ForeignCheckpoint, found: Mapping[str, Tensor], config: Any) -> nn.Module | None:
    """The head of which a checkpoint has all tensors; None where it has none of any."""
    if not found:
        return None
    settings = {"activation": getattr(config, "hidden_act", "gelu"), "eps": getattr(config, "layer_norm_eps", 1e-12)}
    of_kind = {"mlm_transform": settings}
    candidates = [build_head({"kind": kind, **of_kind.get(kind, {})}, config.hidden_size) for kind in HEADS]
    head = next((one for one in candidates if set(one.state_dict()) == set(found)), None)
    if head is None:
        raise UserError(f"{checkpoint.file}: its head holds {listed(found)}, which is no head of a known kind")
    _fill(f"{checkpoint.file}: the head", head, found)
    return head


def _fill(what: str, module: nn.Module, found: Mapping[str, Tensor]) -> None:
    require_same_tensors(what, module.state_dict(), found)
    module.load_state_dict(found)


def require_room_for(path: Path, output: Path, overwrite: bool) -> None:
    """UserError where the result cannot be written, or would overwrite what it was not asked to."""
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file; give a folder")
    require_writable(output, f"--output {output}")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if path.is_dir() and output.samefile(path):
        raise UserError(f"--output {output} is the folder of the checkpoint; give another one")
    if not overwrite:
        raise UserError(f"--output {output} is not empty; give another folder, or --overwrite to replace its model")
    if not is_model_folder(output):
        raise UserError(f"--output {output} holds no model that --overwrite could replace; give another folder")


def write_model_folder(model: SentenceEncoder, output: Path) -> None:
    """Write the model folder: whole, or not at all where there was none."""
    if output.is_dir() and any(output.iterdir()):
        from dcpcse.training.output_folder import clear_run

        clear_run(output)  # what spoke of the earlier model must not speak of this one
        model.save(output)
        return
    with atomic_folder(output) as aside:
        model.save(aside)
