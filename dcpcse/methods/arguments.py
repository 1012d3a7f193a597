"""Options that every method takes, a dataclass for each part; options of one method stand in its own file.

An option declares what it needs to have an effect (`needs=`); `require_effect` checks all of them.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from dcpcse.encoders.pooling import POOLERS, describe_poolers
from dcpcse.encoders.template_denoising import WAYS
from dcpcse.encoders.templates import PROMPT, Template
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Need, flag, option, require, require_choices, require_count
from dcpcse.utils.presets import names as preset_names

TUNINGS = ("full", "deep", "shallow")
PROMPT_INITS = ("template", "normal", "uniform")
GRADIENTS = ("exact", "published")
ENCODER_DTYPES = ("float32", "bfloat16")

HAS_HEAD = Need("a head (--pooler_type cls or mask)", lambda args: args.pooler_type in POOLERS_WITH_HEAD)
POOLS_MASK = Need("--pooler_type mask", lambda args: args.pooler_type == "mask")
NO_ORG_MLP = Need("--org_mlp False", lambda args: not args.org_mlp)
HAS_TEMPLATE = Need("a template (--template)", lambda args: args.template is not None)
DENOISING = Need("--denoise", lambda args: args.denoise or args.denoise_at_inference)
BY_TEMPLATE = Need("--denoise_by template", lambda args: args.denoise_by in (None, "template"))
DEEP = Need("--tuning deep", lambda args: args.tuning == "deep", voids="tuning")
PROJECTION = Need("--prefix_projection", lambda args: args.prefix_projection)
INPUT_VECTORS = Need(
    "input vectors (--tuning shallow, or [PROMPT] in --template)",
    lambda args: args.tuning == "shallow" or PROMPT in (args.template or ""),
    voids="template",
)
INIT_FROM = Need("--init_from", lambda args: args.init_from is not None)
MLM = Need("--do_mlm", lambda args: args.do_mlm)
LM_HEAD = Need("--do_mlm or --org_mlp", lambda args: args.do_mlm or args.org_mlp)


@dataclass
class EncoderOptions:
    """The encoder, the method and what is trained."""

    model_name_or_path: str | None = option(None, "Encoder: a Hugging Face folder or hub id (required).")
    preset: str | None = option(
        None,
        "A published setting, such as dcpcse/unsup-bert-base; the other options override it. "
        f"One of {', '.join(preset_names())}.",
    )
    method: str = option("dcpcse", "What is trained and by which loss; a file in dcpcse/methods/, or of --plugin.")
    plugin: list[str] = option(
        [], "Methods from outside: modules, or .py files, that register some. They are run as programs are."
    )
    config_name: str | None = option(None, "Another place for the encoder's configuration.")
    tokenizer_name: str | None = option(None, "Another place for the tokenizer.")
    cache_dir: str | None = option(None, "Folder for downloads and for the training data as read.")
    use_fast_tokenizer: bool = option(True, "Kept for old scripts; transformers 5 has fast tokenizers only.")
    model_revision: str = option("main", "Branch, tag or commit of the encoder on the hub.")
    use_auth_token: bool = option(False, "Use the stored hub token, for private encoders.")
    tuning: str | None = option(
        None,
        "What is trained: full (the encoder), deep (prompts: keys and values in every layer of the frozen encoder) or "
        "shallow (input vectors in the places of a template's tokens). Default: the method's.",
        choices=list(TUNINGS),
    )
    encoder_dtype: str = option(
        "float32",
        "Type of the frozen encoder's weights: float32, or bfloat16 in half the memory. Prompts, heads, gradients and "
        "losses stay in float32; the folder remembers it.",
        choices=list(ENCODER_DTYPES),
    )
    encoder_dropout: float | None = option(
        None, "Dropout inside the encoder in training, of hidden states and attention. Default: its configuration's."
    )
    init_from: str | None = option(
        None, "Begin with the trained weights of this output folder, of a model built alike, instead of new ones."
    )

    def __post_init__(self) -> None:
        require(_is_share(self.encoder_dropout), "--encoder_dropout", self.encoder_dropout, "in [0, 1)")
        if not self.use_fast_tokenizer:
            raise UserError("--use_fast_tokenizer False: transformers 5 has fast tokenizers only; leave it out")


@dataclass
class RepresentationOptions:
    """The representation of a sentence, the head on it, and the contrastive loss."""

    temp: float = option(0.05, "Temperature of the contrastive loss.")
    pooler_type: str | None = option(
        None, f"Sentence representation. {describe_poolers()}. Default: the method's.", choices=list(POOLERS)
    )
    hard_negative_weight: float = option(
        0.0, "LOGARITHM of the weight of an anchor's own hard negative (third column); 0 weighs it as 1."
    )
    gather_gradient: str = option(
        "exact",
        "With several processes, the gradient of the contrastive loss: exact, that of one process with the joined "
        "batch; or published, that of the public SimCSE and DCPCSE code, which is exact divided by the number of "
        "processes.",
        choices=list(GRADIENTS),
    )
    mlp_only_train: bool | None = flag(
        "Use the MLP of poolers cls and mask in training only, the vector before it afterwards (unsupervised recipe).",
        needs=HAS_HEAD,
    )
    org_mlp: bool | None = flag(
        "Instead of the MLP: the transform of the masked-LM head, on the [MASK] vector and on the template's, before "
        "one is subtracted from the other (PromptBERT's supervised BERT).",
        needs=(HAS_HEAD, POOLS_MASK),
    )
    batchnorm: bool | None = flag(
        "Instead of the MLP: two layers with batch normalisation (D2CSE, DiffCSE).", needs=(HAS_HEAD, NO_ORG_MLP)
    )

    def __post_init__(self) -> None:
        require(self.temp > 0 and math.isfinite(self.temp), "--temp", self.temp, "a positive number")
        weight = self.hard_negative_weight
        require(math.isfinite(weight), "--hard_negative_weight", weight, "finite")


@dataclass
class TemplateOptions:
    """Templates around sentences, and what is taken away of them (PromptBERT)."""

    template: str | None = option(
        None,
        "Put every sentence into a template, 'This sentence of \"{sentence}\" means [MASK] .' or in the grammar of "
        "the public PromptBERT code; [PROMPT] is a slot for a continuous prompt. Default: the method's.",
    )
    second_template: str | None = option(
        None,
        "Template of the positive (and the hard negative), if it is another one than the anchor's.",
        needs=HAS_TEMPLATE,
    )
    final_period: bool | None = flag(
        "After training put a full stop to sentences that end in none of . ? \" ' (PromptBERT's evaluation).",
        needs=HAS_TEMPLATE,
    )
    denoise: bool | None = flag(
        "In training take the template's own [MASK] vector away.",
        needs=POOLS_MASK,
        replaces=("denoise_at_inference", "denoise_by", "denoise_in_dev"),
    )
    denoise_at_inference: bool | None = flag(
        "Take it away after training, too; the folder remembers.", needs=POOLS_MASK
    )
    denoise_in_dev: bool | None = flag(
        "Take it away when dev sets are measured in training. Default: as after training; PromptBERT's code: always.",
        needs=DENOISING,
    )
    denoise_by: str | None = option(
        None,
        "template (default): by the template alone, at the positions of the full input; attention: by the full input "
        "with attention to the template only (ConPVP's code).",
        choices=list(WAYS),
        needs=DENOISING,
    )
    denoise_unshifted: bool | None = flag(
        "Encode the template alone at positions without a gap for the sentence.", needs=(DENOISING, BY_TEMPLATE)
    )
    denoise_freeze: bool | None = flag("No gradient through what is taken away.", needs=DENOISING)

    def __post_init__(self) -> None:
        for text in (self.template, self.second_template):
            if text is not None:
                Template.parse(text)


@dataclass
class PromptOptions:
    """Continuous prompts: in every layer (DCPCSE), and at the input."""

    cls_prompt: bool | None = flag(
        "Train the vector in the place of [CLS]'s word embedding as well (D2CSE; with --tuning deep).", needs=DEEP
    )
    prompt_init: str | None = option(
        None,
        "Where input vectors begin: template (the embeddings of the tokens whose places they take; default there), "
        "normal (N(0, initializer_range); default of [PROMPT] slots) or uniform (0 to 1, ConPVP's code).",
        choices=list(PROMPT_INITS),
        needs=INPUT_VECTORS,
    )
    freeze_prompts: bool | None = flag(
        "Do not train the input vectors (with --init_from).", needs=(INPUT_VECTORS, INIT_FROM)
    )
    pre_seq_len: int | None = option(
        None, "Prompt length: trainable keys and values in every layer. Default of --tuning deep: 10.", needs=DEEP
    )
    prefix_projection: bool | None = flag(
        "Compute the prompts by a two-layer MLP instead of training them.", needs=DEEP
    )
    prefix_hidden_size: int | None = option(None, "Inner size of that MLP. Default: 512.", needs=(DEEP, PROJECTION))
    prompt_dropout: float | None = option(
        None,
        "Dropout on the prompts in training, per sentence copy; default: the encoder's hidden dropout.",
        needs=DEEP,
    )
    position_offset: int | None = option(
        None,
        "Position of the first text token; default: the prompt length, as published; 0 leaves the text where the "
        "encoder was pretrained to see it. No effect on rotary encoders.",
        needs=DEEP,
    )

    def __post_init__(self) -> None:
        for name in ("pre_seq_len", "prefix_hidden_size"):
            require_count(name, getattr(self, name))
        require(_is_share(self.prompt_dropout), "--prompt_dropout", self.prompt_dropout, "in [0, 1)")
        require((self.position_offset or 0) >= 0, "--position_offset", self.position_offset, "0 or more")


@dataclass
class MaskedLMOptions:
    """The masked language modelling loss, and the LM head (DCPCSE, section 2.2)."""

    do_mlm: bool = option(False, "Add the masked language modelling loss.")
    mlm_weight: float = option(0.1, "Weight of the MLM loss at the first step.", needs=MLM)
    mlm_probability: float = option(0.15, "Share of the tokens that the MLM loss masks.", needs=MLM)
    mlm_decay_rate: float = option(
        0.95, "The MLM weight falls by this factor every --mlm_decay_steps steps.", needs=MLM
    )
    mlm_decay_steps: float = option(100.0, "Steps in which the MLM weight falls by --mlm_decay_rate.", needs=MLM)
    lm_head: str = option(
        "checkpoint",
        "Where the LM head comes from: 'checkpoint' (the encoder's own), 'new' (drawn, trained), a path.",
        needs=LM_HEAD,
    )
    train_lm_head: bool = option(
        False,
        "Train an untied copy of the LM head, as the public code does; by default it is frozen, as in the paper.",
        needs=MLM,
    )

    def __post_init__(self) -> None:
        require(0 < self.mlm_probability < 1, "--mlm_probability", self.mlm_probability, "between 0 and 1")
        require(self.mlm_weight >= 0, "--mlm_weight", self.mlm_weight, "0 or more")
        require(0 < self.mlm_decay_rate <= 1, "--mlm_decay_rate", self.mlm_decay_rate, "in (0, 1]")
        require(self.mlm_decay_steps > 0, "--mlm_decay_steps", self.mlm_decay_steps, "above 0")

    @property
    def trains_lm_head(self) -> bool:
        """A new head is of no use untrained."""
        return self.train_lm_head or self.lm_head == "new"


@dataclass
class ModelArguments(MaskedLMOptions, PromptOptions, TemplateOptions, RepresentationOptions, EncoderOptions):
    """What every method takes: the encoder, the representation, templates, prompts and the masked-LM loss.

    None is filled in by the method (`dcpcse.methods.fill_defaults`). `dcpcse.methods.model_arguments` gives an object
    with the own options of all methods as well.
    """

    _argument_group_name = "encoder, method and objectives"

    def __post_init__(self) -> None:
        require_choices(self)
        for part in ModelArguments.__bases__:
            part.__post_init__(self)

    def record(self) -> dict[str, Any]:
        """The options that differ from their defaults and say what was trained, for the model folder."""
        # Where things lay on the training machine says nothing about the model.
        places = {
            "preset",
            "plugin",
            "cache_dir",
            "model_name_or_path",
            "config_name",
            "tokenizer_name",
            "use_auth_token",
        }
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in asdict(self).items() if k not in places and v is not False and v != defaults[k]}


def _is_share(value: float | None) -> bool:
    return value is None or 0 <= value < 1
