"""An adapter that gives a model the interface of mteb's EncoderProtocol, with prompts and a description for mteb."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.encoders.encode_options import PROMPT_ROLES, EncodeKeywords, EncodeOptions
from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.evaluator import shortening
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean, spell
from dcpcse.utils.packages import not_installed
from dcpcse.utils.parsing import parse_yaml, read_text
from dcpcse.utils.run_files import RUN_FILE, read_options

OPTIONS = {"batch_size": "batch_size", "show_progress_bar": "show_progress"}
"""Name of an option of `encode` in mteb → name of the option in `SentenceEncoder.encode`."""

INSTRUCTION = "{instruction}"
"""Part of a prompt that is replaced by the instruction that mteb has for the task."""

STS_TASKS = frozenset({"STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R"})

TRAINING_DATA: Mapping[str, frozenset[str]] = {
    "wiki1m_for_simcse.txt": frozenset({"Wikipedia"}),
    "nli_for_simcse.csv": frozenset({"SNLI", "MNLI"}),
    "allnli.csv": frozenset({"SNLI", "MNLI"}),
    "stsb_train.csv": frozenset({"STSBenchmark"}),
    "sts_texts.txt": STS_TASKS,
}
"""Training file of the presets → the data sets that it contains, by their names in mteb. All are English and
public."""


class MTEBEncoder:
    """A sentence encoder that `mteb.evaluate` accepts (mteb's EncoderProtocol).

    Args:
        model: A model returned by `dcpcse.load`, or a `ForeignEncoder`.
        encode: A function that returns the model's embeddings, for example from a cache. None: `model.encode`.
        prompts: Name as in mteb → prompt, the text that precedes each text of a task (see `read_prompts`). A prompt
            replaces the model's default prompt. None: the named prompts of the model.
        folder: The local folder of the model. The run record in this folder names the training data.
        options: Options of `SentenceEncoder.encode`, such as truncate_dim. A batch_size that mteb passes takes
            precedence.

    Raises:
        UserError: If the model's embeddings cannot be shortened to truncate_dim.
    """

    def __init__(
        self,
        model: Any,
        encode: Callable[..., np.ndarray] | None = None,
        *,
        prompts: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> None:
        self.model, self.options = model, EncodeOptions(**options).with_prompt(model)
        if isinstance(model, SentenceEncoder):
            model.require_size(self.options)
        self.folder = None if folder is None else Path(folder)
        self.prompts = model_prompts(model) if prompts is None else dict(prompts)
        self.whole = replace(self.options, truncate_dim=None)
        """The options of the embeddings, which may be cached and are shortened later."""
        if self.prompts and isinstance(model, SentenceEncoder):
            self.whole = replace(self.whole, prompt_text="")  # the texts are complete
        self.encode_texts = encode or partial(model.encode, **self.whole.given())
        self.errors: list[Exception] = []
        """The errors that the model raised. Errors that mteb raised are not included."""
        self._prefix = self.options.prompt(model) if isinstance(model, SentenceEncoder) else ""
        self._shorten = shortening(model, self.options)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model (mteb's ModelMeta); unknown fields are None."""
        mteb, model = import_mteb(), self.model
        if isinstance(model, ForeignEncoder):
            return mteb.models.ModelMeta.create_empty(overwrites={"name": f"unknown/{model.name}"})
        return model_meta(mteb, model, self.folder, self.prompts, self._prefix, self.options)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the embeddings (N, H) of texts. The prompt for the task and prompt type precedes each text.

        Args:
            inputs: Batches that have a text column.
            task_metadata: mteb's metadata of the task.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: Whether the texts are queries or documents (mteb's PromptType).
            options: batch_size and show_progress_bar, as in `SentenceEncoder.encode`.

        Raises:
            UserError: If a batch has no text column, if an option is unknown, or if an embedding is not finite. mteb
                itself would rank such an embedding like any other.
        """
        texts = _texts(inputs)
        if unknown := sorted(set(options) - set(OPTIONS)):
            known = ", ".join(sorted(OPTIONS))
            raise UserError(f"encode_kwargs: unknown options {', '.join(unknown)}; choose from {known}")
        kwargs = {OPTIONS[name]: value for name, value in options.items()}
        try:
            return self._encode(texts, task_metadata, prompt_type, kwargs)
        except Exception as error:
            self.errors.append(error)
            raise

    def _encode(self, texts: list[str], task_metadata: Any, prompt_type: Any, kwargs: Mapping[str, Any]) -> np.ndarray:
        if self.prompts:
            prompt = prompt_of(self.prompts, task_metadata, prompt_type)
            prefix = self._prefix if prompt is None else prompt
            texts = [prefix + text for text in texts]
        vectors = self.encode_texts(texts, **kwargs)
        _require_finite(texts, vectors)
        return vectors if self._shorten is None else self._shorten(vectors)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n, m) of all pairs of embeddings.

        Args:
            first: Embeddings (n, H).
            second: Embeddings (m, H).
        """
        return _unit(first) @ _unit(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n,) of corresponding rows of embeddings.

        Args:
            first: Embeddings (n, H).
            second: Embeddings (n, H).
        """
        return (_unit(first) * _unit(second)).sum(-1)


def import_mteb() -> Any:
    """Import and return the module mteb. Raises UserError if it is not installed."""
    try:
        import mteb
        import mteb.models.model_meta
    except ImportError as error:
        raise not_installed("an evaluation of MTEB tasks", "mteb", "mteb") from error
    return mteb


def _texts(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            raise UserError(
                f"an MTEB task has no column text, only {', '.join(sorted(batch))}; choose tasks with text only"
            )
        texts += batch["text"]
    return texts


def _require_finite(texts: list[str], vectors: np.ndarray) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise UserError(
            f"the embedding of {texts[int(bad.argmax())]!r:.80} is not finite; check the encoder (did training "
            "diverge, or half precision overflow?)"
        )


def _unit(embeddings: Any) -> Tensor:
    return F.normalize(torch.as_tensor(embeddings, dtype=torch.float32), dim=-1)


def read_prompts(path: str | Path) -> dict[str, str]:
    """Read a YAML or JSON file that contains a mapping from names to prompts.

    A name has one of these forms:

    - the name of a task or of a type of tasks
    - such a name followed by -query or -document
    - query or document

    The known tasks are the tasks of mteb, and the user's tasks if their file has been loaded. Raises UserError if the
    file does not contain such a mapping, or if a name is unknown.
    """
    option = spell("mteb_prompts", path)
    if not Path(path).is_file():
        raise UserError(f"{option}: no such file; give a YAML or JSON file")
    try:
        prompts = parse_yaml(read_text(path))
    except ValueError as error:
        raise UserError(f"{option} is not YAML or JSON ({error}); correct the file") from error
    if not isinstance(prompts, dict) or not prompts or not all(isinstance(text, str) for text in prompts.values()):
        example = 'document: "passage: "'
        raise UserError(f"{option}: must be a mapping of names to texts, such as '{example}'; correct the file")
    known = _known_names()
    for name in prompts:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise UserError(
                f"{option}: {str(name)[:80]!r} is not a known name; {hint + ' ' if hint else ''}name a task of mteb "
                f"or of {spell('mteb')}, a type of tasks such as STS, or 'query' or 'document' for all tasks"
            )
    return prompts


def model_prompts(model: Any) -> dict[str, str]:
    """Return the prompts of a model by name, such as query or the name of a task; {} without named prompts.

    Prompts whose names mteb does not know are left out, with a log line.
    """
    if not isinstance(model, SentenceEncoder) or not model.prompts:
        return {}
    known = _known_names()
    roles = {role: model.prompt_text(role) for role in PROMPT_ROLES}
    if unused := sorted(model.prompts.keys() - known - {*chain(*PROMPT_ROLES.values())}):
        notify(f"the model's prompts {', '.join(unused)} are not used, since no MTEB task has one of these names")
    return {name: text for name, text in model.prompts.items() if name in known} | roles


def prompt_of(prompts: Mapping[str, str], metadata: Any, prompt_type: Any) -> str | None:
    """Return the prompt for the texts of a task, or None.

    The first of these names that has a prompt is used, as in mteb: TASK-query, TASK, TYPE-query, TYPE, query. For
    documents, -document and document take the place of -query and query.

    Args:
        prompts: Name → prompt.
        metadata: mteb's metadata of the task.
        prompt_type: mteb's PromptType of the texts, query or document, or None.

    Raises:
        UserError: If the prompt contains a placeholder for an instruction, and mteb has no instruction for the task.
    """
    from mteb.models.abs_encoder import get_prompt  # imported here because it is slow

    prompt = get_prompt(dict(prompts), metadata, prompt_type)
    if prompt is None or INSTRUCTION not in prompt:
        return prompt
    if not (instruction := _instruction(metadata, prompt_type)):
        raise UserError(
            f"the prompt for {metadata.name} contains {INSTRUCTION}, but mteb has no instruction for this task; "
            "give a prompt without it"
        )
    return prompt.replace(INSTRUCTION, instruction)


def _instruction(metadata: Any, prompt_type: Any) -> str:
    from mteb.abstasks.abstask import get_abstask_prompt

    prompt = metadata.prompt
    if isinstance(prompt, dict):
        return prompt.get(prompt_type.value, "") if prompt_type else ""
    return prompt or get_abstask_prompt(metadata.name)


def _known_names() -> set[str]:
    """Return the known names of prompts: tasks and their types, also with -query or -document; query and document."""
    from mteb.abstasks import AbsTask
    from mteb.abstasks.task_metadata import TaskType
    from mteb.types import PromptType

    tasks = {task.metadata.name for task in _subclasses(AbsTask) if getattr(task, "metadata", None)}
    kinds, names = [kind.value for kind in PromptType], [*tasks, *get_args(TaskType)]
    return {*names, *kinds, *(f"{name}-{kind}" for name in names for kind in kinds)}


def _subclasses(kind: type) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def model_meta(
    mteb: Any,
    model: SentenceEncoder,
    folder: Path | None,
    prompts: Mapping[str, str],
    prefix: str,
    options: EncodeOptions,
) -> Any:
    """Return mteb's ModelMeta of a model; unknown fields are None.

    The revision is a digest of everything that the vectors depend on, because mteb caches results by revision.

    Args:
        mteb: The module mteb.
        model: The model.
        folder: The folder of the model. The run record in the folder names the training data, and README.md names the
            license.
        prompts: Name → prompt, as in `MTEBEncoder`.
        prefix: The model's default prompt.
        options: Options of encoding.
    """
    facts = identity(model) | ({"text_prefix": prefix} if prefix else {}) | options.recorded()
    facts |= {"prompts": dict(prompts)} if prompts else {}
    base = model.source.name_or_path
    base = Path(base).name if Path(base).is_absolute() else base
    weights = list(model.parameters())
    data = training_datasets(folder)
    # XLM-R is trained on English data for use in its other languages too.
    is_multilingual = model.encoder.backbone.config.model_type == "xlm-roberta"
    known = {
        "name": f"dcpcse/{model.method or model.pooling}-{base.replace('/', '-')}",
        "revision": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40],
        "languages": None if data is None or is_multilingual else ["eng-Latn"],
        "n_parameters": sum(weight.numel() for weight in weights),
        "n_embedding_parameters": model.encoder.backbone.get_input_embeddings().weight.numel(),
        "memory_usage_mb": round(sum(weight.numel() * weight.element_size() for weight in weights) / 2**20),
        "max_tokens": model.max_tokens,
        "embed_dim": options.truncate_dim or model.dimension,
        "framework": ["PyTorch"],
        "similarity_fn_name": mteb.models.model_meta.ScoringFunction.COSINE,
        "use_instructions": any([*prompts.values(), prefix]),
        "training_datasets": data,
        "public_training_data": None if data is None else True,
        "adapted_from": base,
        "license": _license(folder, get_args(mteb.types.Licenses)),
    }
    return mteb.models.ModelMeta.create_empty(overwrites=known)


def training_datasets(folder: Path | None) -> set[str] | None:
    """Return the data sets on which the model in a folder was trained, by their names in mteb; None if unknown.

    The names are derived from the name of the training file in the run record. Only the names of the presets' training
    files, which the scripts in data/ create, are recognised. Raises UserError if the run record is damaged.
    """
    if folder is None or not (folder / RUN_FILE).is_file():
        return None
    file = read_options(folder).get("train_file")
    names = TRAINING_DATA.get(Path(file).name) if isinstance(file, str) else None
    return None if names is None else set(names)


def _license(folder: Path | None, known: tuple[str, ...]) -> str | None:
    """Return the license in the metadata of the folder's README.md; None if it is missing or unknown to mteb.

    A README.md that cannot be read counts as having no license, since it does not affect the vectors.
    """
    try:
        text = read_text(folder / "README.md") if folder else ""
        metadata = parse_yaml(text.partition("\n---")[0]) if text.startswith("---") else None
    except (OSError, ValueError):
        return None
    value = metadata.get("license") if isinstance(metadata, dict) else None
    return value.lower() if isinstance(value, str) and value.lower() in known else None
