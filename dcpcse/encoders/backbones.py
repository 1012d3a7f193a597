"""Loading frozen encoders from Hugging Face folders or the hub, and knowing them again by a fingerprint."""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from dcpcse.encoders.safe_loading import NO_CODE, NO_PICKLES, WITH_ADAPTER, require_plain_config, require_plain_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import MODEL_FOLDER_FILE
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.safetensors_io import require_same_tensors


@dataclass(frozen=True)
class EncoderSource:
    """Where a frozen encoder came from, and how to know it again."""

    name_or_path: str
    revision: str | None
    model_type: str
    hidden_size: int
    fingerprint: str


@dataclass(frozen=True)
class Backbone:
    """A pretrained encoder without heads, its tokenizer, and the heads that its checkpoint had."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: EncoderSource
    pooler: nn.Module | None = None
    lm_head: nn.Module | None = None


def load_backbone(
    name_or_path: str,
    *,
    tokenizer: str | None = None,
    config: str | None = None,
    lm_head: str | None = None,
    options: LoadOptions | None = None,
    require: Callable[[EncoderSource], None] = lambda source: None,
) -> Backbone:
    """Load an encoder in float32, all weights from the checkpoint.

    tokenizer, config: other places to take these from. lm_head: None loads none; "checkpoint" takes the masked
    LM head of this checkpoint, "new" draws one, anything else is the checkpoint that it comes from. require:
    raises UserError where this is not the encoder that is wanted; asked before the tokenizer is tried on it.
    Raises UserError where the checkpoint is not there, lacks weights, or lacks the head.
    """
    options = options or LoadOptions()
    _refuse_own_folder(name_or_path)
    settings = _config(config or name_or_path, options)
    if lm_head == "checkpoint":
        model, pooler, head = _load_with_lm_head(name_or_path, settings, options)
    else:
        model, pooler = _load_encoder(name_or_path, settings, options)
        head = None if lm_head is None else _other_lm_head(lm_head, model, options)
    local = Path(name_or_path).is_dir()
    source = EncoderSource(
        name_or_path=str(Path(name_or_path).resolve()) if local else name_or_path,
        revision=None if local else getattr(settings, "_commit_hash", None) or options.revision,
        model_type=settings.model_type,
        hidden_size=settings.hidden_size,
        fingerprint=fingerprint(model),
    )
    require(source)
    words = fitting_tokenizer(tokenizer or name_or_path, name_or_path, model, options)
    return Backbone(model, words, source, pooler, head)


def build_backbone(
    place: str, weights: Mapping[str, Tensor], *, tokenizer: str | None = None, options: LoadOptions | None = None
) -> Backbone:
    """An encoder of the configuration that lies in a folder, with weights that were read from elsewhere, in float32.

    weights: all of the encoder's, and no others, by name. tokenizer: another place to take it from. Raises UserError
    as `load_backbone` does.
    """
    options = options or LoadOptions()
    settings = _config(place, options)
    with quiet():
        model = transformers.AutoModel.from_config(settings, dtype=torch.float32, **NO_CODE)
    _take_pooler(model)
    require_same_tensors(f"{place}: the encoder", model.state_dict(), weights)
    model.load_state_dict(weights)
    name = str(Path(place).resolve())
    source = EncoderSource(name, None, settings.model_type, settings.hidden_size, fingerprint(model))
    return Backbone(model.eval(), fitting_tokenizer(tokenizer or place, place, model, options), source)


def fingerprint(model: nn.Module) -> str:
    """sha256 over the shapes and float32 bytes of all weights, in an order that parameter names do not change.

    Poolers do not count: whether a checkpoint is loaded with its pooler makes no other encoder of it.
    """
    digests = [weight_digest(weight) for name, weight in model.named_parameters() if not name.startswith("pooler.")]
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def weight_digest(weight: Tensor) -> bytes:
    """sha256 over the shape and float32 bytes of a weight."""
    data = weight.detach().to("cpu", torch.float32).contiguous()
    digest = hashlib.sha256(repr(tuple(data.shape)).encode())
    digest.update(data.flatten().numpy())
    return digest.digest()


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over all tokens and their ids."""
    return hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def require_trained_head(lm_head: str) -> None:
    """UserError where a masked-LM head is asked for its predictions and is to be drawn at random."""
    if lm_head == "new":
        raise UserError("--lm_head new: a new head predicts nothing yet; give a checkpoint with one")


class LMHead(nn.Module):
    """The masked-LM head of any architecture, on hidden states.

    Holds the checkpoint's whole masked LM with its encoder replaced by a pass-through, so the head's own code
    (transforms, biases, tying) runs and none of it is copied here.
    """

    def __init__(self, masked_lm: PreTrainedModel) -> None:
        super().__init__()
        self.vocab_size = masked_lm.get_output_embeddings().out_features
        setattr(masked_lm, masked_lm.base_model_prefix, _PassThrough())
        self.masked_lm = masked_lm

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (n, H) → logits (n, vocabulary), in their type, whatever that of the head's weights."""
        given = hidden.to(self.masked_lm.dtype).unsqueeze(0)
        return self.masked_lm(inputs_embeds=given).logits[0].to(hidden)

    def untie(self) -> None:
        """Give the decoder weights of its own, so that training the head leaves the encoder's embeddings alone."""
        decoder = self.masked_lm.get_output_embeddings()
        decoder.weight = nn.Parameter(decoder.weight.detach().clone())


class _PassThrough(nn.Module):
    """Stands where the encoder of a masked LM was and hands on what it is given."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


def _refuse_own_folder(name_or_path: str) -> None:
    folder = Path(name_or_path)
    try:
        own = (folder / MODEL_FOLDER_FILE).is_file() and not (folder / "config.json").is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL; a closed folder
        raise UserError(f"cannot load the encoder {name_or_path[:200]!r}: {first_line(error)}") from error
    if own:
        raise UserError(
            f"{name_or_path} is a trained model folder without an encoder of its own; load it with dcpcse.load or "
            "evaluation.py, or go on training with --resume"
        )


def _config(name_or_path: str, options: LoadOptions) -> PretrainedConfig:
    with _user_errors(name_or_path, "encoder"):
        config = transformers.AutoConfig.from_pretrained(name_or_path, **options.kwargs(), **NO_CODE)
    if not hasattr(config, "hidden_size") or config.is_encoder_decoder:
        raise UserError(
            f"{name_or_path} is a {config.model_type} model; a single encoder is needed (BERT, RoBERTa, …)"
        )
    require_plain_config(name_or_path, config)
    return config


def load_tokenizer(name_or_path: str, options: LoadOptions) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; UserError where there is none."""
    with _user_errors(name_or_path, "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(name_or_path, **options.kwargs(), **NO_CODE)


def fitting_tokenizer(
    place: str, encoder: str, model: PreTrainedModel, options: LoadOptions
) -> PreTrainedTokenizerBase:
    """The tokenizer at a place; UserError where it does not belong to the encoder, or cannot fill up batches."""
    words, rows = load_tokenizer(place, options), model.get_input_embeddings().num_embeddings
    if len(words) > rows:
        raise UserError(
            f"the tokenizer {place} has {len(words)} tokens, the encoder {encoder} only {rows}; give the tokenizer "
            "that belongs to it"
        )
    if 2 * len(words) < rows:
        raise UserError(
            f"the tokenizer {place} has {len(words)} tokens, the encoder {encoder} {rows}: its vocabulary is missing "
            "or another's; copy the tokenizer files that belong to it"
        )
    if words.pad_token_id is None:
        raise UserError(f"the tokenizer {place} has no padding token; batches need one")
    return words


def _load(auto: type, name_or_path: str, config: PretrainedConfig, options: LoadOptions) -> tuple[Any, set[str]]:
    """A model in float32 and the weights that its checkpoint lacks (drawn at random by transformers)."""
    require_plain_folder(Path(name_or_path))
    with _user_errors(name_or_path, "encoder"), quiet():
        # float32 whatever the checkpoint's type: transformers follows the file, and scores would move with it.
        model, info = auto.from_pretrained(
            name_or_path,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,
            **options.kwargs(),
            **NO_CODE,
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise UserError(WITH_ADAPTER.format(name_or_path))
    return model, set(info["missing_keys"])


def _load_encoder(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions
) -> tuple[PreTrainedModel, nn.Module | None]:
    model, missing = _load(transformers.AutoModel, name_or_path, config, options)
    of_pooler = {key for key in missing if "pooler." in key}
    _require_none_missing(name_or_path, missing - of_pooler)
    pooler = _take_pooler(model)
    return model, None if of_pooler else pooler


def load_masked_lm(name_or_path: str, options: LoadOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A whole masked language model in float32, all weights from its checkpoint, and its tokenizer."""
    masked_lm, missing = _load_masked_lm(name_or_path, _config(name_or_path, options), options)
    _require_none_missing(name_or_path, missing, "masked language model")
    return masked_lm, fitting_tokenizer(name_or_path, name_or_path, masked_lm, options)


def _load_with_lm_head(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions
) -> tuple[PreTrainedModel, None, LMHead]:
    masked_lm, missing = _load_masked_lm(name_or_path, config, options)
    body = {key for key in missing if key.startswith(masked_lm.base_model_prefix + ".")}
    if missing - body:
        raise UserError(
            f"{name_or_path} has no masked-LM head (it lacks {min(missing - body)}), which --do_mlm, --org_mlp, top_k "
            "and predicted words need; take one from another checkpoint of the same vocabulary and size with "
            "--lm_head PATH, or train a new one with --lm_head new"
        )
    _require_none_missing(name_or_path, body)
    model = masked_lm.base_model
    _take_pooler(model)
    return model, None, LMHead(masked_lm)


def _other_lm_head(lm_head: str, model: PreTrainedModel, options: LoadOptions) -> LMHead:
    if lm_head == "new":
        return LMHead(_new_masked_lm(model))
    config = _config(lm_head, options)
    _, _, head = _load_with_lm_head(lm_head, config, options)
    wanted = (model.config.hidden_size, model.config.vocab_size)
    if (config.hidden_size, config.vocab_size) != wanted:
        raise UserError(
            f"--lm_head {lm_head} has hidden size {config.hidden_size} and {config.vocab_size} tokens, the encoder "
            f"{wanted[0]} and {wanted[1]}; both must agree"
        )
    return head


def _new_masked_lm(model: PreTrainedModel) -> PreTrainedModel:
    """A masked LM with a fresh head whose decoder starts from the encoder's word embeddings."""
    with quiet():
        masked_lm = transformers.AutoModelForMaskedLM.from_config(model.config, **NO_CODE)
    decoder, words = masked_lm.get_output_embeddings().weight, model.get_input_embeddings().weight
    if decoder.shape == words.shape:
        decoder.data.copy_(words.data)
    return masked_lm


def _load_masked_lm(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions
) -> tuple[PreTrainedModel, set[str]]:
    try:
        return _load(transformers.AutoModelForMaskedLM, name_or_path, config, options)
    except ValueError as error:
        if "AutoModelForMaskedLM" not in str(error):
            raise
        raise UserError(
            f"transformers has no masked LM for the model type {config.model_type} of {name_or_path}"
        ) from error


def _take_pooler(model: PreTrainedModel) -> nn.Module | None:
    """Remove the model's pooler, which costs time and, untouched by the loss, would look trained."""
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = None
    return pooler


def _require_none_missing(name_or_path: str, missing: set[str], what: str = "encoder") -> None:
    if missing:
        raise UserError(
            f"{name_or_path} lacks {len(missing)} weights of its {what}, {min(missing)} among them; transformers "
            "would draw them at random. Is it a checkpoint of another kind?"
        )


@contextlib.contextmanager
def _user_errors(name_or_path: str, what: str) -> Iterator[None]:
    """Turn what transformers raises for a wrong path, id or file into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # tokenizers raises Exception itself, and absurd values end in any kind of it
        folder = Path(name_or_path)
        if "use_safetensors" in str(error):
            reason = NO_PICKLES
        elif folder.is_file():
            reason = "it is a file; give the folder that holds it"
        elif folder.is_dir():
            reason = f"the folder holds no readable {what}: {first_line(error)}"
        elif folder.is_absolute() or name_or_path.startswith("."):
            reason = "there is no such folder"
        else:
            reason = f"there is no such folder, and the hub did not give it: {first_line(error)}"
        raise UserError(f"cannot load the {what} {name_or_path!r}: {reason}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' load report and bars: what it would say is checked here, and raised."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module is in eval mode while this lasts."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
