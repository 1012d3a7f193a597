"""Options that all methods share, in one dataclass per topic. The module of a method declares further options.

`needs=` in the declaration of an option names the options without which the option has no effect. `require_effect`
raises an error if an option is given and has no effect.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from dcpcse.data.columns import ROLES
from dcpcse.encoders.pooling import POOLERS, describe_poolers
from dcpcse.encoders.template_denoising import WAYS
from dcpcse.encoders.templates import PROMPT, Template
from dcpcse.methods.tunings import TUNINGS
from dcpcse.utils.arguments import texts_by_name
from dcpcse.utils.errors import OptionError, invalid_choice, spell
from dcpcse.utils.option_fields import (
    ALL_LINEAR,
    COUNT,
    POOLERS_WITH_HEAD,
    RATE,
    SHARE,
    Need,
    Options,
    flag,
    needs_above_zero,
    needs_given,
    needs_value,
    option,
)

PROMPT_FORMS = ("keys_values", "vectors")
"""Keys of `dcpcse.encoders.prompts.PROMPT_FORMS`, repeated here because importing that module needs seconds."""
PROMPT_INITS = ("template", "normal", "uniform")
GRADIENTS = ("exact", "published")
POSITIVES = ("dropout", "crop", "next", "all")
ENCODER_DTYPES = ("float32", "bfloat16")

HAS_HEAD = Need(
    lambda: f"a head ({spell('pooler_type', 'cls')} or mask)", lambda args: args.pooler_type in POOLERS_WITH_HEAD
)
POOLS_MASK = needs_value("pooler_type", "mask")
NO_ORG_MLP = Need(lambda: spell("org_mlp", False), lambda args: not args.org_mlp)
NO_TEMPLATE = Need("sentences outside a template", lambda args: args.template is None)
HAS_TEMPLATE = Need(lambda: f"a template ({spell('template')})", lambda args: args.template is not None)
DENOISING = Need(lambda: spell("denoise"), lambda args: args.denoise or args.denoise_at_inference)
BY_TEMPLATE = Need(lambda: spell("denoise_by", "template"), lambda args: args.denoise_by in (None, "template"))
DEEP = needs_value("tuning", "deep", voids=True)
PROJECTION = needs_value("prefix_projection", True)
LORA = needs_value("tuning", "lora", voids=True)
INPUT_VECTORS = Need(
    lambda: f"input vectors ({spell('tuning', 'shallow')}, or [PROMPT] in {spell('template')})",
    lambda args: args.tuning == "shallow" or PROMPT in (args.template or ""),
    voids="template",
)
INIT_FROM = needs_given("init_from")
MATRYOSHKA = needs_given("matryoshka_dims")
CROPS = needs_value("positive", "crop", voids=True)
MLM = needs_value("do_mlm", True)
MLM_WEIGHT = needs_above_zero("mlm_weight")
LM_HEAD = Need(lambda: f"{spell('do_mlm')} or {spell('org_mlp')}", lambda args: args.do_mlm or args.org_mlp)


@dataclass
class EncoderOptions(Options):
    """Options that choose the encoder, the method and the trained parameters."""

    model_name_or_path: str | None = option(None, "Encoder: a Hugging Face folder or hub id (required).")
    preset: str | None = option(
        None,
        "Published setting (METHOD/SETTING) to start from, such as dcpcse/unsup-bert-base or simcse/sup-bert-base; "
        "other options override it. docs/methods.md lists the presets.",
    )
    method: str = option("dcpcse", "Training method: one of the methods of this package, or of --plugin.")
    plugin: list[str] = option([], "Python modules or .py files that register additional methods. Their code is run.")
    config_name: str | None = option(None, "Folder or hub id of the configuration. Default: the encoder's.")
    tokenizer_name: str | None = option(None, "Folder or hub id of the tokenizer. Default: the encoder's.")
    cache_dir: str | None = option(None, "Folder for downloaded models and for the parsed training data.")
    use_fast_tokenizer: bool = option(
        True, "Accepted for old scripts. False is an error, because transformers 5 has fast tokenizers only."
    )
    model_revision: str = option("main", "Branch, tag or commit of the encoder on the hub.")
    use_auth_token: bool = option(False, "Use the stored hub token, for private encoders.")
    tuning: str | None = option(
        None,
        f"Trained parameters. {'; '.join(f'{name}: {one.trains}' for name, one in TUNINGS.items())}. Default: depends "
        "on --method.",
        choices=list(TUNINGS),
    )
    encoder_dtype: str = option(
        "float32",
        "Type of the weights of the frozen encoder; bfloat16 takes half the memory. Prompts, heads, gradients and "
        "losses stay in float32. The model folder records the type.",
        choices=list(ENCODER_DTYPES),
    )
    encoder_dropout: float | None = option(
        None,
        "Dropout rate of hidden states and attention in training. Default: the rates in the encoder's configuration.",
        **SHARE,
    )
    init_from: str | None = option(
        None, "Model folder to load the initial trained weights from. Its model must have the same structure."
    )

    def check(self) -> None:
        """Raise OptionError if a slow tokenizer is requested. transformers 5 has no slow tokenizers."""
        if not self.use_fast_tokenizer:
            raise OptionError("use_fast_tokenizer", False, "transformers 5 has fast tokenizers only", "leave it out")


@dataclass
class RepresentationOptions(Options):
    """Options of the sentence representation, of its head, and of the contrastive loss."""

    temp: float = option(0.05, "Temperature of the contrastive loss.", above=0)
    pooler_type: str | None = option(
        None, f"Sentence representation. {describe_poolers()}. Default: depends on --method.", choices=list(POOLERS)
    )
    normalize: bool | None = flag(
        "Scale the embeddings to unit length after training. Default: as the encoder's modules.json says; off for an "
        "encoder without one.",
    )
    prompt: str | None = option(
        None,
        "Text before each sentence, such as 'query: '; '' for none. Default: the default prompt of the encoder's "
        "config_sentence_transformers.json.",
        needs=NO_TEMPLATE,
        text=True,
    )
    prompts: list[str] | None = option(
        None,
        "Text before the sentences of each column, such as anchor='query: ' positive='passage: '. negative is as "
        "positive by default, and other columns have --prompt. The model folder records them as the prompts query and "
        "document.",
        needs=NO_TEMPLATE,
        column="positive",
        named=True,
        text=True,
    )
    hard_negative_weight: float = option(
        0.0,
        "LOGARITHM of the weight of an anchor's own hard negatives; 0 is the weight 1.",
        column="negative",
    )
    guide: str | None = option(
        None,
        "Frozen encoder that finds false negatives (GISTEmbed): candidates that it finds nearer to an anchor than the "
        "anchor's own positive are left out of the loss. A model folder, an encoder or a file of word vectors, as for "
        "evaluation.py.",
        column="positive",
    )
    gather_gradient: str = option(
        "exact",
        "Gradient of the contrastive loss with several processes. exact equals one process with the joined batch; "
        "published is exact divided by the number of processes, as in the public SimCSE and DCPCSE code.",
        choices=list(GRADIENTS),
    )
    mlp_only_train: bool | None = flag(
        "Use the MLP of the poolers cls and mask in training only, and the vector before it afterwards (the "
        "unsupervised setting). Default: depends on --method.",
        needs=HAS_HEAD,
    )
    matryoshka_dims: list[int] | None = option(
        None,
        "Train also the first values of the embeddings (Matryoshka): the sizes, such as 384,256,128,64, the largest "
        "of which must be the size of the embeddings. The loss is the sum of the losses of all sizes. Default: off.",
        at_least=1,
    )
    matryoshka_weights: list[float] | None = option(
        None,
        "Weights of the losses of --matryoshka_dims, in the same order. Default: 1 each.",
        needs=MATRYOSHKA,
        above=0,
    )
    org_mlp: bool | None = flag(
        "Use the transform of the masked-LM head instead of the MLP, on the [MASK] vectors of sentence and template "
        "before they are subtracted (PromptBERT's supervised BERT). Default: off.",
        needs=(HAS_HEAD, POOLS_MASK),
    )
    batchnorm: bool | None = flag(
        "Use two layers with batch normalisation instead of the MLP (D2CSE, DiffCSE). Default: depends on --method.",
        needs=(HAS_HEAD, NO_ORG_MLP),
    )

    def check(self) -> None:
        """Raise OptionError for the prompt of an unknown column, or for invalid Matryoshka sizes or weights."""
        for role in texts_by_name(self.prompts):
            if role not in ROLES:
                raise invalid_choice("prompts", role, ROLES)
        dims, weights = self.matryoshka_dims, self.matryoshka_weights
        if dims and sorted(set(dims), reverse=True) != dims:
            raise OptionError("matryoshka_dims", dims, "must be different sizes, largest first, such as 384 256 128")
        if dims and weights and len(weights) != len(dims):
            raise OptionError("matryoshka_weights", weights, f"must be one number for each of {len(dims)} sizes")


@dataclass
class PositiveOptions(Options):
    """Options that choose the positive of an anchor if the training data have one column or several positives."""

    positive: str = option(
        "dropout",
        "Positive of a sentence in data of one column: dropout (the sentence itself, as the method encodes it), crop "
        "(two random spans of a text are anchor and positive) or next (the following line of the file; blank lines "
        "separate documents). In data with several positives: all (each makes an example; without this option, one is "
        "drawn in each epoch).",
        choices=list(POSITIVES),
    )
    crop_share: float | None = option(
        None, "Share of the tokens of a text in each of its two spans. Default: 0.5.", needs=CROPS, **RATE
    )


@dataclass
class TemplateOptions(Options):
    """Options of templates for sentences, and of template denoising (PromptBERT)."""

    template: str | None = option(
        None,
        "Template for every sentence, such as 'This sentence of \"{sentence}\" means [MASK] .', or in the grammar of "
        "the public PromptBERT code. [PROMPT] marks a continuous prompt. Default: depends on --method.",
        text=True,
    )
    second_template: str | None = option(
        None,
        "Template of the positive and the hard negative. Default: depends on --method, otherwise --template.",
        needs=HAS_TEMPLATE,
        text=True,
    )
    no_blank_in_training: bool | None = flag(
        "In training, leave out the space that a template has before the sentence, as the public PromptBERT code does "
        "with RoBERTa. Dev sets and encode keep it. Default: off.",
        needs=HAS_TEMPLATE,
    )
    final_period: bool | None = flag(
        "After training, add a full stop to sentences that do not end with . ? \" or ' (PromptBERT's evaluation). "
        "Default: off.",
        needs=HAS_TEMPLATE,
    )
    denoise: bool | None = flag(
        "In training, subtract the [MASK] vector of the template alone. Default: depends on --method.",
        needs=POOLS_MASK,
        replaces=("denoise_at_inference", "denoise_by", "denoise_in_dev"),
    )
    denoise_at_inference: bool | None = flag(
        "Subtract it after training as well; the model folder records this. Default: depends on --method.",
        needs=POOLS_MASK,
    )
    denoise_in_dev: bool | None = flag(
        "Subtract it when dev sets are evaluated during training. Default: as --denoise_at_inference; the public "
        "PromptBERT code always does it.",
        needs=DENOISING,
    )
    denoise_by: str | None = option(
        None,
        "How the vector to subtract is computed. template (default): from the template without a sentence, at the "
        "positions of the full input. attention: from the full input with attention to the template only (ConPVP's "
        "code).",
        choices=list(WAYS),
        needs=DENOISING,
    )
    denoise_unshifted: bool | None = flag(
        "Encode the template alone at consecutive positions, without a gap for the sentence. Default: off.",
        needs=(DENOISING, BY_TEMPLATE),
    )
    denoise_from_zero: bool | None = flag(
        "Count the positions of the template alone from 0, even in encoders whose positions begin at 2, as the public "
        "PromptBERT code does with RoBERTa. Default: off.",
        needs=(DENOISING, BY_TEMPLATE),
    )
    denoise_freeze: bool | None = flag(
        "Compute no gradient through the vector that is subtracted. Default: off.", needs=DENOISING
    )

    def check(self) -> None:
        """Raise UserError if an option for a template contains text that is not a template."""
        for text in (self.template, self.second_template):
            if text is not None:
                Template.parse(text)


@dataclass
class PromptOptions(Options):
    """Options of continuous prompts in every layer (DCPCSE) and at the input of the encoder."""

    cls_prompt: bool | None = flag(
        "Train also the vector that replaces the word embedding of [CLS] (D2CSE). Default: depends on --method.",
        needs=DEEP,
    )
    prompt_init: str | None = option(
        None,
        "Initial values of input vectors: template (embeddings of the tokens they replace; the default for these), "
        "normal (N(0, initializer_range); the default of [PROMPT] slots) or uniform (0 to 1, ConPVP's code).",
        choices=list(PROMPT_INITS),
        needs=INPUT_VECTORS,
    )
    freeze_prompts: bool | None = flag(
        "Do not train the input vectors that --init_from loads. Default: off.", needs=(INPUT_VECTORS, INIT_FROM)
    )
    pre_seq_len: int | None = option(
        None, "Prompt length: number of prompts in every layer. Default: 10.", needs=DEEP, **COUNT
    )
    prompt_form: str | None = option(
        None,
        "The trained form of prompts in every layer: keys_values (its key and its value, as in the public code; the "
        "default) or vectors (one vector, of which the frozen layer computes key and value, as the paper describes; "
        "half as many parameters).",
        choices=list(PROMPT_FORMS),
        needs=DEEP,
    )
    prefix_projection: bool | None = flag(
        "Compute the prompts with a two-layer MLP instead of training them directly. Default: off.", needs=DEEP
    )
    prefix_hidden_size: int | None = option(
        None, "Hidden size of the MLP of --prefix_projection. Default: 512.", needs=(DEEP, PROJECTION), **COUNT
    )
    prompt_dropout: float | None = option(
        None,
        "Dropout rate of the prompts in training, drawn for each copy of a sentence. Default: the encoder's hidden "
        "dropout.",
        needs=DEEP,
        **SHARE,
    )
    position_offset: int | None = option(
        None,
        "Position of the first token of the text. Default: the prompt length, as published; 0 keeps the positions of "
        "pretraining. It has no effect on encoders with rotary positions.",
        needs=DEEP,
        at_least=0,
    )


@dataclass
class LoraOptions(Options):
    """Options of the LoRA adapter. They mean the same as the options of peft."""

    lora_r: int | None = option(None, "Rank of the updates of a LoRA adapter. Default: 8.", needs=LORA, **COUNT)
    lora_alpha: int | None = option(
        None,
        "The updates of a LoRA adapter are multiplied by lora_alpha / lora_r. Default: twice --lora_r.",
        needs=LORA,
        **COUNT,
    )
    lora_dropout: float | None = option(
        None, "Dropout rate of the inputs of a LoRA adapter in training. Default: 0.", needs=LORA, **SHARE
    )
    lora_target_modules: list[str] | None = option(
        None,
        f"Linear layers that a LoRA adapter changes: suffixes of their names, or {ALL_LINEAR}. Default: the layers of "
        "the queries and values of attention.",
        needs=LORA,
    )

    def check(self) -> None:
        """Raise OptionError if --lora_target_modules contains the name for all layers and further names."""
        targets = self.lora_target_modules or ()
        if ALL_LINEAR in targets and len(targets) > 1:
            raise OptionError(
                "lora_target_modules", targets, f"{ALL_LINEAR} includes all other names", "give it alone"
            )


@dataclass
class MaskedLMOptions(Options):
    """Options of the masked language modelling loss and of the LM head (DCPCSE, section 2.2)."""

    do_mlm: bool = option(False, "Add the masked language modelling (MLM) loss.")
    mlm_weight: float = option(0.1, "Weight of the MLM loss at the first step.", needs=MLM, at_least=0)
    mlm_probability: float = option(0.15, "Share of the tokens that the MLM loss masks.", needs=MLM, **RATE)
    mlm_decay_rate: float = option(
        0.95,
        "Factor by which the weight of the MLM loss falls every --mlm_decay_steps steps.",
        needs=(MLM, MLM_WEIGHT),
        above=0,
        at_most=1,
    )
    mlm_decay_steps: float = option(
        100.0, "Steps in which the weight of the MLM loss falls by --mlm_decay_rate.", needs=(MLM, MLM_WEIGHT), above=0
    )
    lm_head: str = option(
        "checkpoint",
        "Source of the LM head: checkpoint (the encoder's own), new (random and trained), or a folder or hub id.",
        needs=LM_HEAD,
    )
    train_lm_head: bool = option(
        False,
        "Train an untied copy of the LM head, as the public code does. Without it the head is frozen, as in the "
        "paper.",
        needs=MLM,
    )

    @property
    def trains_lm_head(self) -> bool:
        """Whether the LM head is trained. A new head is always trained, because an untrained head is useless."""
        return self.train_lm_head or self.lm_head == "new"


@dataclass
class ModelArguments(
    MaskedLMOptions,
    LoraOptions,
    PromptOptions,
    TemplateOptions,
    PositiveOptions,
    RepresentationOptions,
    EncoderOptions,
):
    """Options of all methods: the encoder, the representation, templates, prompts and the masked-LM loss.

    None means that an option was left out. `dcpcse.methods.fill_defaults` replaces None by the method's default.
    `dcpcse.methods.model_arguments` returns an object that also has the options of one method.
    """

    _argument_group_name = "encoder, method and objectives"

    def given(self) -> list[str]:
        """Return the names of the options of the model and the method that differ from their defaults."""
        return [
            field.name
            for field in fields(self)
            if field.name not in _OF_RUN and getattr(self, field.name) not in (field.default, [])
        ]

    def record(self) -> dict[str, Any]:
        """Return the options to record in the model folder: they describe the model and differ from their defaults."""
        # Paths of the training machine do not describe the model.
        paths = {"model_name_or_path", "config_name", "tokenizer_name", "cache_dir"}
        left_out = {"preset", "plugin", "use_auth_token", *paths}
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in asdict(self).items() if k not in left_out and v is not False and v != defaults[k]}


_OF_RUN = ("model_name_or_path", "method", "preset", "plugin")
"""Options that name what is trained. The other options set how it is trained."""

DEFAULTS = {field.name: field.default for field in fields(ModelArguments)}

CONTRASTIVE_OPTIONS = ("temp", "hard_negative_weight", "gather_gradient", "guide")


def refuse_contrastive_options(args: ModelArguments, *used: str, data: str = "") -> dict[str, Any]:
    """Raise UserError if an option of the contrastive loss is given and has no effect. Otherwise, return {}.

    It can therefore be the argument `defaults` of `register`.

    Args:
        args: Options of the method.
        used: Options of the contrastive loss that the method uses.
        data: The end of the message, which names the data for which the method has no contrastive loss.
    """
    for name in CONTRASTIVE_OPTIONS:
        if name not in used and getattr(args, name) != DEFAULTS[name]:
            raise OptionError(
                name,
                reason=f"has no effect: {spell('method', args.method)} has no contrastive loss{data}",
                remedy="leave it out",
            )
    return {}
