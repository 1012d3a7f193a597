"""Settings that public checkpoints do not contain: choices of the user, and the values of the published runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcpcse.encoders.pooling import POOLERS, describe_poolers
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.templates import Template
from dcpcse.inference.public_checkpoints.layouts import LAYOUTS, Layout
from dcpcse.utils import presets
from dcpcse.utils.errors import no_effect, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Options, flag, option


@dataclass(frozen=True)
class CheckpointSource:
    """The format of a checkpoint, and where to find the encoder and the tokenizer if it lacks them."""

    base: str | None = option(None, "The frozen encoder: Hugging Face folder or Hub id.", metavar="ENCODER")
    tokenizer: str | None = option(
        None, "Folder or Hub id. Default: the tokenizer of the checkpoint, or otherwise of --base.", metavar="LOCATION"
    )
    layout: str | None = option(None, "Default: recognised from the names of the tensors.", choices=[*LAYOUTS])
    cache_dir: str | None = option(None, "Folder for downloads.")
    model_revision: str = option("main", "Branch, tag or commit on the Hub.")
    use_auth_token: bool = option(False, "Use the stored token of the Hub.")

    @property
    def load_options(self) -> LoadOptions:
        """Revision, cache and access token for the Hub."""
        return LoadOptions.from_args(self.cache_dir, self.use_auth_token, self.model_revision)


@dataclass
class Choices(Options):
    """Settings for importing and pooling a checkpoint. None means the setting of the published evaluation."""

    pooler_type: str | None = option(
        None,
        f"Sentence representation; mask requires a template. {describe_poolers()}.",
        choices=list(POOLERS),
        aliases=["--pooler"],
    )
    mlp_only_train: bool | None = flag("The head was used in training only; False: it is part of the representation.")
    template: str | None = option(
        None,
        "Template of a PromptBERT checkpoint: 'This sentence of \"{sentence}\" means [MASK].', or in the grammar of "
        "the public code.",
    )
    final_period: bool | None = flag("Add a full stop to sentences that do not end in . ? \" '.")
    denoise_at_inference: bool | None = flag("Subtract the [MASK] vector of the empty template.")
    denoise_from_zero: bool | None = flag(
        "Count the positions of the template alone from 0, as the public code does with RoBERTa."
    )
    position_offset: int | None = option(
        None, "Position of the first text token (default: the prompt length, as in the public code).", at_least=0
    )

    def check(self) -> None:
        """Raise UserError if the template is not valid."""
        if self.template is not None:
            Template.parse(self.template)


@dataclass(frozen=True)
class PublishedSettings:
    """Settings with which the authors of a paper trained a model.

    Args:
        options: Options of train.py by name.
        source: A phrase that names the source of the settings, for messages.
    """

    options: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class ResolvedChoices:
    """Choices in which every setting has a value.

    Args:
        choices: The choices.
        assumed: The settings that were filled in.
        source: The source of each setting.
    """

    choices: Choices
    assumed: Mapping[str, Any]
    source: Mapping[str, str]


def resolve_choices(
    choices: Choices,
    layout: Layout,
    path: str,
    model_type: str,
    *,
    head: bool,
    prompt_length: int | None,
    published: PublishedSettings | None = None,
) -> ResolvedChoices:
    """Fill in missing settings. Raises UserError if a given setting has no effect on this checkpoint.

    Args:
        choices: The given settings.
        layout: The format of the checkpoint.
        path: Location of the checkpoint as given by the user. If it contains `unsup`, unsupervised training is
            assumed, as in the published tools.
        model_type: The model type of the encoder.
        head: Whether the checkpoint has a head.
        prompt_length: Number of deep prompts. None: no deep prompts.
        published: The run whose settings are used. None: the run is derived from layout, path and model_type.
    """
    run = published or _published(layout, path, model_type)
    settings = _usual(layout) | {key: value for key, value in run.options.items() if key in _SETTINGS}
    pooling = choices.pooler_type or settings["pooler_type"]
    denoised = choices.denoise_at_inference
    denoised = settings["denoise_at_inference"] if denoised is None else denoised
    if "denoise_from_zero" not in run.options:
        settings["denoise_from_zero"] = denoised
    open_to = {
        "pooler_type": None,
        "mlp_only_train": _no_head(head, pooling),
        "template": None if layout.templated else _not_templated(layout),
        "final_period": None if layout.templated else _not_templated(layout),
        "denoise_at_inference": _not_denoised(layout, pooling),
        "denoise_from_zero": _not_denoised(layout, pooling) or _not_from_zero(denoised, model_type),
        "position_offset": None if prompt_length is not None else "it has no deep prompts",
    }
    values, assumed = {}, {}
    for name, obstacle in open_to.items():
        choice = getattr(choices, name)
        if obstacle and choice is not None:
            raise no_effect(name, f"on this {layout.title} checkpoint: {obstacle}")
        if obstacle:
            continue
        values[name] = (settings | {"position_offset": prompt_length})[name] if choice is None else choice
        if choice is None:
            assumed[name] = values[name]
    sources = dict.fromkeys(assumed, run.source) | {"position_offset": "the prompt length, as in the public code"}
    if "denoise_from_zero" not in run.options:
        sources["denoise_from_zero"] = "the public evaluation"
    return ResolvedChoices(Choices(**values), assumed, sources)


_SETTINGS = ("pooler_type", "mlp_only_train", "final_period", "denoise_at_inference", "denoise_from_zero", "template")
"""Options of train.py that decide how a checkpoint is read."""


def _usual(layout: Layout) -> dict[str, Any]:
    """Return the settings that a run has by default."""
    flags = ("mlp_only_train", "final_period", "denoise_at_inference", "denoise_from_zero")
    return {"pooler_type": "mask" if layout.templated else "cls", **dict.fromkeys(flags, False)}


def _published(layout: Layout, path: str, model_type: str) -> PublishedSettings:
    """Return the published run that is assumed for a checkpoint with this layout at this path."""
    if layout.preset is None:
        return PublishedSettings({}, f"the usual use of {layout.title}")
    supervision = "unsup" if "unsup" in path else "sup"
    encoder = "roberta" if "roberta" in model_type else "bert"
    name = layout.preset.format(supervision=supervision, encoder=encoder)
    by_name = "{supervision}" in layout.preset
    why = f"; {path} {'contains' if supervision == 'unsup' else 'does not contain'} 'unsup'" if by_name else ""
    return PublishedSettings(presets.load_preset(name).options, f"preset {name}{why}")


def _no_head(head: bool, pooling: str) -> str | None:
    if not head:
        return "it has no head"
    return (
        None
        if pooling in POOLERS_WITH_HEAD
        else f"a head requires {spell('pooler_type', 'cls')} or mask, not {pooling}"
    )


def _not_templated(layout: Layout) -> str:
    return f"{layout.title} has no template; for a PromptBERT checkpoint, give {spell('layout', 'promptbert')}"


def _not_denoised(layout: Layout, pooling: str) -> str | None:
    if not layout.templated:
        return _not_templated(layout)
    return None if POOLERS[pooling].needs_template else f"{spell('pooler_type', pooling)} has no [MASK] vector"


def _not_from_zero(denoised: bool, model_type: str) -> str | None:
    if not denoised:
        return f"it needs {spell('denoise_at_inference', True)}"
    return None if "roberta" in model_type else f"the positions of {model_type} begin at 0 anyway"
