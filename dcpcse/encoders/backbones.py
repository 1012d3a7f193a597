"""Load encoders from Hugging Face folders, model folders or the Hub."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

from dcpcse.encoders.identity import EncoderSource, OtherEncoderError, require_recorded
from dcpcse.encoders.safe_loading import (
    NO_CODE,
    NO_WEIGHTS,
    WEIGHT_FILES,
    WITH_ADAPTER,
    WeightFiles,
    find_weights,
    require_no_pipes,
    require_plain_config,
    shard_names,
)
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import CONFIG, MODEL_FOLDER_FILE, WEIGHTS, backbone_path
from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError, doing, first_line, spell
from dcpcse.utils.locks import thread_lock
from dcpcse.utils.private.models import holds_peft_adapter
from dcpcse.utils.tensor_files import require_same_tensors


@dataclass(frozen=True)
class Backbone:
    """A pretrained encoder without heads, its tokenizer, and the heads of its checkpoint.

    Args:
        model: The encoder.
        tokenizer: The tokenizer of the encoder.
        source: The origin of the encoder.
        pooler: The pooler of the checkpoint. None if the checkpoint has none.
        lm_head: The masked-LM head. None if no head was loaded.
    """

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
    """Load an encoder in float32, with all weights from the checkpoint.

    Args:
        name_or_path: Folder or hub id of the encoder.
        tokenizer: Location of the tokenizer. None: the location of the encoder.
        config: Location of the configuration. None: the location of the encoder.
        lm_head: The masked-LM head to load. "checkpoint" loads the head of this checkpoint, and "new" initialises a
            new head. Any other value names a different checkpoint that contains the head. None: no head.
        options: Revision, cache and token for the Hub.
        require: A function that raises UserError if its argument is not the expected encoder. It is called before the
            tokenizer is loaded.

    Raises:
        UserError: If the checkpoint does not exist, or if it lacks weights or the requested masked-LM head.
    """
    options = options or LoadOptions()
    _refuse_own_folder(name_or_path)
    settings = _config(config or name_or_path, options)
    weights = _find_weights(name_or_path, options)
    if lm_head == "checkpoint":
        model, pooler, head = _load_with_lm_head(name_or_path, settings, options, weights)
    else:
        model, pooler = _load_encoder(name_or_path, settings, options, weights)
        head = None if lm_head is None else _other_lm_head(lm_head, model, options)
    local = Path(name_or_path).is_dir()
    revision = None if local else _commit(name_or_path, options)
    location = str(Path(name_or_path).resolve()) if local else name_or_path
    source = EncoderSource.of(model, location, revision, weights and weights.name)
    require(source)
    fitting = fitting_tokenizer(tokenizer or name_or_path, name_or_path, model, options)
    return Backbone(model, fitting, source, pooler, head)


def build_backbone(
    folder: str,
    weights: Mapping[str, Tensor],
    weights_file: str,
    *,
    tokenizer: str | None = None,
    options: LoadOptions | None = None,
) -> Backbone:
    """Build an encoder in float32 from the configuration in a folder and the given weights.

    Args:
        folder: The folder with the configuration.
        weights: All weights of the encoder and no others, by name.
        weights_file: Name of the file that contains the weights, for the record of the encoder's origin.
        tokenizer: Location of the tokenizer. None: the folder.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: As in `load_backbone`.
    """
    options = options or LoadOptions()
    settings = _config(folder, options)
    with quiet():
        model = transformers.AutoModel.from_config(settings, dtype=torch.float32, **NO_CODE)
    _take_pooler(model)
    require_same_tensors(f"{folder}: the encoder", model.state_dict(), weights)
    model.load_state_dict(weights)
    source = EncoderSource.of(model, str(Path(folder).resolve()), None, weights_file)
    return Backbone(model.eval(), fitting_tokenizer(tokenizer or folder, folder, model, options), source)


def load_recorded(
    folder: str | Path, record: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    """Load the encoder of a model folder, and check that it is the encoder that the folder's manifest records.

    Args:
        folder: The model folder.
        record: The manifest (`dcpcse.json`) of the folder.
        base: Current location of the frozen encoder. None: the recorded location.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the loaded encoder differs from the recorded encoder, or if `base` is given for a folder that
            contains its own encoder.
    """
    if record["backbone"] is None:
        return _load_base(folder, record["base"], base, options)
    if base is not None:
        raise UserError(f"{folder} contains its own trained encoder; leave out {spell('base')}")
    encoder_folder = backbone_path(Path(folder), record["backbone"])
    if not (encoder_folder / WEIGHTS).is_file():  # a model folder contains no pickles, so none is read instead
        raise UserError(f"{encoder_folder / WEIGHTS} is missing; the model folder is not complete: copy it again")

    def require_same(source: EncoderSource) -> None:
        if source.fingerprint != record["backbone"]["fingerprint"]:
            raise UserError(
                f"the weights in {encoder_folder} have changed since the trained encoder was saved; copy the folder "
                "again"
            )

    return load_backbone(str(encoder_folder), tokenizer=str(folder), options=options, require=require_same)


def _load_base(
    folder: str | Path, recorded: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    where = base or recorded["name_or_path"]
    options = options or LoadOptions()
    if base is None and options.revision is None:
        options = replace(options, revision=recorded["revision"])

    def require_same(source: EncoderSource) -> None:
        require_recorded(folder, recorded, source, where, f"give the recorded one with {spell('base')}")

    try:
        return load_backbone(where, tokenizer=str(folder), options=options, require=require_same)
    except UserError as error:
        if base is not None or isinstance(error, OtherEncoderError):
            raise
        raise UserError(
            f"cannot load the frozen encoder of {folder} from {where!r} ({error}); give its location now with "
            f"{spell('base')}"
        ) from error


def require_trained_head(lm_head: str) -> None:
    """Raise UserError if --lm_head is "new", since only a trained masked-LM head can predict tokens."""
    if lm_head == "new":
        raise OptionError(
            "lm_head", "new", "an untrained head cannot predict tokens", "give a checkpoint that has a head"
        )


class LMHead(nn.Module):
    """The masked-LM head of any architecture, applied to hidden states.

    The module contains the checkpoint's masked LM, with the encoder replaced by a module that returns its input. The
    head therefore runs its original code (transform, bias, tied weights).
    """

    def __init__(self, masked_lm: PreTrainedModel) -> None:
        super().__init__()
        self.vocab_size = masked_lm.get_output_embeddings().out_features
        setattr(masked_lm, masked_lm.base_model_prefix, _PassThrough())
        self.masked_lm = masked_lm

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits (n, vocabulary) of hidden states (n, H), in the dtype of `hidden`."""
        inputs_embeds = hidden.to(self.masked_lm.dtype).unsqueeze(0)
        return self.masked_lm(inputs_embeds=inputs_embeds).logits[0].to(hidden)

    def untie(self) -> None:
        """Give the decoder its own copy of the weights. Training the head then leaves the embeddings unchanged."""
        decoder = self.masked_lm.get_output_embeddings()
        decoder.weight = nn.Parameter(decoder.weight.detach().clone())


class _PassThrough(nn.Module):
    """Replaces the encoder of a masked LM and returns its input embeddings as the last hidden state."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


def _refuse_own_folder(name_or_path: str) -> None:
    folder = Path(name_or_path)
    try:
        is_model = (folder / MODEL_FOLDER_FILE).is_file() and not (folder / "config.json").is_file()
    except (OSError, ValueError) as error:  # the name is too long or contains a NUL; the folder is not readable
        raise UserError(f"cannot load the encoder {name_or_path[:200]!r}: {first_line(error)}") from error
    if is_model:
        raise UserError(
            f"{name_or_path} is a trained model folder, not an encoder; load it with dcpcse.load or dcpcse evaluate, "
            f"or resume its training with {spell('resume', True)}"
        )


def _config(name_or_path: str, options: LoadOptions) -> PretrainedConfig:
    if (folder := Path(name_or_path)).is_dir() and not (folder / "config.json").exists():
        problem = "the folder contains no config.json, so it is not a complete encoder; copy or save it again"
        raise UserError(f"cannot load the encoder {name_or_path!r}: {problem}")
    with _user_errors(name_or_path, "encoder"):
        config = transformers.AutoConfig.from_pretrained(name_or_path, **options.kwargs(), **NO_CODE)
    if not hasattr(config, "hidden_size") or config.is_encoder_decoder:
        raise UserError(
            f"{name_or_path} is a {config.model_type} model, not an encoder; give an encoder such as BERT or RoBERTa"
        )
    require_plain_config(name_or_path, config)
    # Neither setting changes a vector, but with other values a tuple is returned, or texts of most lengths fail.
    config.return_dict, config.chunk_size_feed_forward = True, 0
    return config


def _commit(repo_id: str, options: LoadOptions) -> str | None:
    """Return the commit of a repository, from the path of its configuration in the cache."""
    cached_file = try_to_load_from_cache(repo_id, CONFIG, options.cache_dir, options.revision)
    return Path(cached_file).parent.name if isinstance(cached_file, str) else options.revision


def load_tokenizer(name_or_path: str, options: LoadOptions) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a checkpoint.

    Args:
        name_or_path: Folder or hub id.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the checkpoint has no tokenizer.
    """
    with _user_errors(name_or_path, "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(name_or_path, **options.kwargs(), **NO_CODE)


def fitting_tokenizer(
    name: str, encoder: str, model: PreTrainedModel, options: LoadOptions
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that matches an encoder.

    Args:
        name: Folder or hub id of the tokenizer.
        encoder: Name of the encoder, for messages.
        model: The encoder.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the tokenizer does not match the encoder or has no padding token.
    """
    tokenizer, rows = load_tokenizer(name, options), model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"the tokenizer {name} has {len(tokenizer)} tokens, but the encoder {encoder} has only {rows}; give the "
            "tokenizer that belongs to the encoder"
        )
    if 2 * len(tokenizer) < rows:
        raise UserError(
            f"the tokenizer {name} has {len(tokenizer)} tokens, but the encoder {encoder} has {rows}: the "
            "tokenizer's vocabulary is missing or belongs to another encoder; copy the tokenizer files of this encoder"
        )
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer {name} has no padding token, which batches need; give a tokenizer with one")
    return tokenizer


def _find_weights(name_or_path: str, options: LoadOptions) -> WeightFiles | None:
    """Return the weight files of a folder or of a repository on the Hub, downloading them if they are pickles.

    Return None if there are no weight files, or if the name is neither a folder nor a repository.
    """
    if not hub.is_hub_id(name_or_path):
        return find_weights(Path(name_or_path))
    file = hub.download_first(name_or_path, WEIGHT_FILES, options)
    if file is not None and WEIGHT_FILES[file.name] and file.suffix == ".json":
        for shard in shard_names(file):
            hub.download_first(name_or_path, [shard], options)
    return file and find_weights(file.parent)


def _load(
    auto: type, name_or_path: str, config: PretrainedConfig, options: LoadOptions, weights: WeightFiles | None
) -> tuple[Any, set[str]]:
    """Load a model in float32. Return the model and the names of the weights that the checkpoint lacks.

    transformers initialises the missing weights randomly.
    """
    if weights is None and Path(name_or_path).is_dir():
        raise UserError(f"cannot load the encoder {name_or_path!r}: {NO_WEIGHTS}")
    # Always float32: by default, transformers uses the dtype of the file, which would change the scores.
    how = {"config": config, "dtype": torch.float32, "output_loading_info": True, **NO_CODE}
    how["ignore_mismatched_sizes"] = True  # raised below: transformers' error does not name the weights
    with _user_errors(name_or_path, "encoder"), quiet():
        if weights is not None and weights.pickled:
            model, info = _from_pickles(auto, weights, how)
            model.config.name_or_path = name_or_path
        else:
            model, info = auto.from_pretrained(name_or_path, use_safetensors=True, **options.kwargs(), **how)
    if holds_peft_adapter(model):
        raise UserError(WITH_ADAPTER.format(name_or_path))
    for key, shape, expected in sorted(info["mismatched_keys"]):
        raise UserError(
            f"{name_or_path}: {key} has the shape {tuple(shape)}, but config.json requires {tuple(expected)}: the "
            "weights and the configuration belong to different encoders; copy the encoder again"
        )
    return model, set(info["missing_keys"])


def _from_pickles(auto: type, weights: WeightFiles, how: Mapping[str, Any]) -> tuple[PreTrainedModel, Mapping]:
    """Load a model from pickles, which torch reads without running code. transformers assigns the tensors by name."""
    with torch.device("meta"):
        kind = type(auto.from_config(how["config"], **NO_CODE))
    model, info = kind.from_pretrained(None, state_dict=weights.read_pickles(), **how)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # until then, many tensors are mapped from a file that may change
    notify(f"{weights.files[0].parent / weights.name} is a pickle; its tensors were read without running its code")
    return model, info


def _load_encoder(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions, weights: WeightFiles | None
) -> tuple[PreTrainedModel, nn.Module | None]:
    model, missing = _load(transformers.AutoModel, name_or_path, config, options, weights)
    of_pooler = {key for key in missing if "pooler." in key}
    _require_none_missing(name_or_path, missing - of_pooler)
    pooler = _take_pooler(model)
    return model, None if of_pooler else pooler


def load_masked_lm(name_or_path: str, options: LoadOptions) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a masked language model in float32 and its tokenizer.

    Args:
        name_or_path: Folder or hub id.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the checkpoint lacks weights.
    """
    config, weights = _config(name_or_path, options), _find_weights(name_or_path, options)
    masked_lm, missing = _load_masked_lm(name_or_path, config, options, weights)
    _require_none_missing(name_or_path, missing, "masked language model")
    return masked_lm, fitting_tokenizer(name_or_path, name_or_path, masked_lm, options)


def _load_with_lm_head(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions, weights: WeightFiles | None
) -> tuple[PreTrainedModel, None, LMHead]:
    masked_lm, missing = _load_masked_lm(name_or_path, config, options, weights)
    body = {key for key in missing if key.startswith(masked_lm.base_model_prefix + ".")}
    if missing - body:
        raise UserError(
            f"{name_or_path} has no masked-LM head (the weight {min(missing - body)} is missing), but "
            f"{spell('do_mlm', True)}, {spell('org_mlp', True)}, top_k and predicted words need one; give another "
            f"checkpoint of the same vocabulary and size with {spell('lm_head', 'PATH')}, or, in training, "
            f"{spell('lm_head', 'new')}"
        )
    _require_none_missing(name_or_path, body)
    model = masked_lm.base_model
    _take_pooler(model)
    return model, None, LMHead(masked_lm)


def _other_lm_head(lm_head: str, model: PreTrainedModel, options: LoadOptions) -> LMHead:
    if lm_head == "new":
        return LMHead(_new_masked_lm(model))
    config = _config(lm_head, options)
    _, _, head = _load_with_lm_head(lm_head, config, options, _find_weights(lm_head, options))
    wanted = (model.config.hidden_size, model.config.vocab_size)
    if (config.hidden_size, config.vocab_size) != wanted:
        raise UserError(
            f"{spell('lm_head', lm_head)} has hidden size {config.hidden_size} and {config.vocab_size} tokens, but "
            f"the encoder has hidden size {wanted[0]} and {wanted[1]} tokens; give a head of the same sizes"
        )
    return head


def _new_masked_lm(model: PreTrainedModel) -> PreTrainedModel:
    """Build a masked LM with a new head. The decoder is initialised with the encoder's word embeddings."""
    with quiet():
        masked_lm = transformers.AutoModelForMaskedLM.from_config(model.config, **NO_CODE)
    decoder, embeddings = masked_lm.get_output_embeddings().weight, model.get_input_embeddings().weight
    if decoder.shape == embeddings.shape:
        decoder.data.copy_(embeddings.data)
    return masked_lm


def _load_masked_lm(
    name_or_path: str, config: PretrainedConfig, options: LoadOptions, weights: WeightFiles | None
) -> tuple[PreTrainedModel, set[str]]:
    try:
        return _load(transformers.AutoModelForMaskedLM, name_or_path, config, options, weights)
    except ValueError as error:
        if "AutoModelForMaskedLM" not in str(error):
            raise
        raise UserError(
            f"{name_or_path}: transformers has no masked LM for model type {config.model_type}; give another encoder"
        ) from error


def _take_pooler(model: PreTrainedModel) -> nn.Module | None:
    """Remove and return the model's pooler. No loss uses it: it would need time and seem to be trained."""
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = None
    return _LinearPooler(pooler) if isinstance(pooler, nn.Linear) else pooler


class _LinearPooler(nn.Module):
    """ALBERT's pooler, including the selection of the first token and tanh, which transformers applies elsewhere."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, hidden: Tensor) -> Tensor:
        return self.dense(hidden[:, 0]).tanh()


def _require_none_missing(name_or_path: str, missing: set[str], what: str = "encoder") -> None:
    if missing:
        raise UserError(
            f"{name_or_path} lacks {len(missing)} weights of its {what}, such as {min(missing)}, and transformers "
            f"would initialise them randomly; give a checkpoint that contains the complete {what}"
        )


@contextlib.contextmanager
def _user_errors(name_or_path: str, what: str) -> Iterator[None]:
    """Convert the errors that transformers raises for a wrong path, id or file to a UserError of one line."""
    require_no_pipes(Path(name_or_path))
    try:
        with doing(f"while the {what} {name_or_path} was loaded"):
            yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # tokenizers raises Exception itself, and invalid values cause errors of any type
        folder = Path(name_or_path)
        if "use_safetensors" in str(error):
            reason = NO_WEIGHTS
        elif folder.is_file():
            reason = "it is a file; give the folder that contains it"
        elif folder.is_dir():
            reason = f"the folder contains no readable {what}: {first_line(error)}"
        elif folder.is_absolute() or name_or_path.startswith("."):
            reason = "the folder does not exist; check the path"
        else:
            reason = (
                "the folder does not exist, and loading from the hub failed: "
                f"{first_line(error).rstrip('.')}; check the path, or the name on the hub"
            )
        raise UserError(f"cannot load the {what} {name_or_path!r}: {reason}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' load report and progress bars. This module checks the loaded weights itself."""
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


_EVALUATING: WeakKeyDictionary[nn.Module, list[bool]] = WeakKeyDictionary()
"""Maps a module to a list: for each running context of `evaluating`, whether the module was in train mode before."""
_LOCK = thread_lock()


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode within the context.

    If contexts of several threads overlap, the last context that ends restores the original mode.
    """
    with _LOCK:
        before = _EVALUATING.setdefault(module, [])
        before.append(module.training)
        module.eval()
    try:
        yield
    finally:
        with _LOCK:
            was_training = before.pop()
            if not before:
                module.train(was_training)
