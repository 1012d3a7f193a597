"""Many adapters on one frozen encoder: loaded side by side, switched by name, mixed in one batch.

A folder of train.py that holds prompts and no encoder is an adapter of its base. The base is loaded and known by its
fingerprint once; an adapter adds its own tensors alone. Adapters in one batch share the pass through the base, in
which each row has its own prompts (`dcpcse.inference.mixed_batch`); pooling, head and template denoising are each
adapter's own.
"""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders.backbones import Backbone, fitting_tokenizer, vocabulary_fingerprint
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.recorded_backbone import load_recorded, require_recorded
from dcpcse.encoders.sentence_encoder import SentenceEncoder, as_numbers, dtype_of, encode_in_batches, plain_encoder
from dcpcse.encoders.storage import hub, model_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import TOKENIZER_FILES, sha256_of
from dcpcse.encoders.storage.model_folder import FolderContents
from dcpcse.encoders.tokenization import TokenizedTexts, require_batch_size, require_sentences
from dcpcse.inference.mixed_batch import EncoderBatch, hidden_states, joint_mask
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.safetensors_io import TORCH_DTYPES, set_dtype

LOAD_ALONE_HINT = "adapters share one frozen encoder; load this folder by itself with dcpcse.load"


class Adapters:
    """Adapters by name on one frozen encoder; `adapters["name"]` is a SentenceEncoder that shares it.

    For inference: a head that only training uses is left out, and prompts are a table whatever computed them.
    """

    def __init__(self, backbone: Backbone, dtype: str, folder: str | Path, options: LoadOptions | None = None) -> None:
        """backbone: on its device, with weights of the type `dtype` and the tokenizer in `folder`.

        options: how to reach folders on the hub.
        """
        self._backbone = backbone
        self._options = options
        self._dtype = dtype
        self._base = plain_encoder(backbone, "avg")
        self._models: dict[str, SentenceEncoder] = {}
        # A tokenizer of 30,000 words takes more memory than many an adapter, and most folders have the same.
        own = (backbone.tokenizer, vocabulary_fingerprint(backbone.tokenizer))
        self._tokenizers = {_tokenizer_files(folder): own}

    @classmethod
    def load(
        cls,
        folders: Mapping[str, str | Path],
        base: str | None = None,
        *,
        device: str | torch.device | None = None,
        options: LoadOptions | None = None,
    ) -> "Adapters":
        """Load the base of the first folder and, by the names given, the adapters of all; folders here or on the hub.

        base: where the frozen encoder is now, if not where the first folder says; known by its fingerprint. device:
        default cuda if there is one. Raises UserError for a folder of another encoder, vocabulary or type of weights,
        for one with an encoder of its own, and for what `SentenceEncoder.load` refuses.
        """
        if not isinstance(folders, Mapping) or not folders:
            raise UserError("Adapters.load takes names and their folders, one at least: {'name': 'folder'}")
        first, reach = hub.require_model_folder(next(iter(folders.values())), options)
        record = _read_folder(first).record
        backbone = load_recorded(first, record, base, reach)
        set_dtype(backbone.model, TORCH_DTYPES[dtype_of(record)])
        backbone.model.to(pick_device(device))
        adapters = cls(backbone, dtype_of(record), first, options)
        for name, folder in folders.items():
            adapters.add(name, folder)
        return adapters

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters, in the order in which they came."""
        return tuple(self._models)

    def add(self, name: str, folder: str | Path) -> None:
        """Load one more adapter of the same base; UserError for a name that is taken, and as `load`."""
        if not isinstance(name, str) or not name:
            raise UserError(f"{name!r} cannot name an adapter; a string is needed")
        if name in self._models:
            raise UserError(f"there is an adapter {name!r} already; remove it before, or choose another name")
        with _errors_of(name):
            self._models[name] = self._model(folder)

    def remove(self, name: str) -> None:
        """Forget an adapter."""
        self._models.pop(self._known(name))

    def __getitem__(self, name: str) -> SentenceEncoder:
        """The model of an adapter; training it, or moving it to a device, would do so to the base of all others."""
        return self._models[self._known(name)]

    def encode(
        self,
        sentences: Sequence[str],
        adapter: str | Sequence[str],
        batch_size: int = 128,
        normalize: bool = False,
        *,
        max_length: int | None = None,
        without: Collection[int] = (),
        show_progress: bool = False,
    ) -> np.ndarray:
        """Embeddings of sentences, float32 (N, H), in the order given, as each adapter's own model gives them.

        adapter: a name, or one for each sentence; sentences of different adapters then share their batches. All else
        is that of `SentenceEncoder.encode`. Raises UserError for an unknown name, and for too few or too many.
        """
        if isinstance(adapter, str):
            how = {"max_length": max_length, "without": without, "show_progress": show_progress}
            return self[adapter].encode(sentences, batch_size, normalize, **how)
        require_batch_size(batch_size)
        require_sentences(sentences)
        _require_a_name_each(sentences, adapter)
        texts = _Texts.tokenize(self, sentences, adapter, max_length, without)

        def encode_batch(rows: Sequence[int]) -> np.ndarray:
            return as_numbers(texts.embeddings(rows), normalize)

        return encode_in_batches(self._base, texts.lengths, encode_batch, batch_size, show_progress)

    def _known(self, name: str) -> str:
        if name in self._models:
            return name
        hint = did_you_mean(name, self.names)
        some = ", ".join(self.names[:8]) + (", …" if len(self.names) > 8 else "")
        raise UserError(f"there is no adapter {name!r}; loaded: {len(self.names)} ({some}){hint and '; ' + hint}")

    def _model(self, folder: str | Path) -> SentenceEncoder:
        folder, _ = hub.require_model_folder(folder, self._options)
        contents = _read_folder(folder)
        self._require_of_base(folder, contents.record)
        tokenizer, vocabulary = self._tokenizer(folder)
        model = SentenceEncoder.restore(folder, contents, replace(self._backbone, tokenizer=tokenizer), vocabulary)
        return _for_inference(model).to(self._base.device)

    def _require_of_base(self, folder: str | Path, record: Mapping[str, Any]) -> None:
        source = self._backbone.source
        require_recorded(folder, record["base"], source, source.name_or_path, LOAD_ALONE_HINT)
        if dtype_of(record) != self._dtype:
            raise UserError(
                f"{folder} was trained on weights in {dtype_of(record)}, and the encoder here has them in "
                f"{self._dtype}; {LOAD_ALONE_HINT}"
            )

    def _tokenizer(self, folder: str | Path) -> tuple[PreTrainedTokenizerBase, str]:
        """The tokenizer of a folder and the fingerprint of its vocabulary; loaded once for all with the same files."""
        digest = _tokenizer_files(folder)
        if digest not in self._tokenizers:
            source, model = self._backbone.source, self._backbone.model
            tokenizer = fitting_tokenizer(str(folder), source.name_or_path, model, LoadOptions())
            self._tokenizers[digest] = (tokenizer, vocabulary_fingerprint(tokenizer))
        return self._tokenizers[digest]


@dataclass(frozen=True)
class _Texts:
    """Sentences as read each by its adapter.

    models, rows: of each adapter. places: of each sentence its adapter's number, and its own among that one's rows.
    """

    models: Sequence[SentenceEncoder]
    rows: Sequence[TokenizedTexts]
    places: Sequence[tuple[int, int]]

    @classmethod
    def tokenize(
        cls,
        adapters: Adapters,
        sentences: Sequence[str],
        names: Sequence[str],
        max_length: int | None,
        without: Collection[int],
    ) -> "_Texts":
        """Raises UserError for unknown names, and where an adapter has no room for so many tokens."""
        numbers: dict[str, int] = {}
        own: list[list[str]] = []
        places = []
        for sentence, name in zip(sentences, names, strict=True):
            if name not in numbers:
                numbers[name] = len(own)
                own.append([])
            places.append((numbers[name], len(own[numbers[name]])))
            own[numbers[name]].append(sentence)
        models = [adapters[name] for name in numbers]
        for model in models:
            if model.training:
                model.eval()
        rows = []
        for name, model, texts in zip(numbers, models, own, strict=True):
            with _errors_of(name):
                rows.append(model.tokenize(texts, max_length, without))
        return cls(models, rows, places)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence."""
        return [len(self.rows[adapter].ids[row]) for adapter, row in self.places]

    def embeddings(self, chosen: Sequence[int]) -> torch.Tensor:
        """Those of some sentences (n, H), in their order, by one pass through the base."""
        of_adapter = defaultdict(list)
        for place, text in enumerate(chosen):
            of_adapter[self.places[text][0]].append(place)
        parts = [self._part(number, [chosen[place] for place in places]) for number, places in of_adapter.items()]
        models = [self.models[number] for number in of_adapter]
        order = torch.tensor([place for places in of_adapter.values() for place in places])
        return _embeddings(models, parts)[order.argsort()]

    def _part(self, number: int, chosen: Sequence[int]) -> EncoderBatch:
        model = self.models[number]
        rows = [self.places[text][1] for text in chosen]
        return EncoderBatch(model.encoder, *self.rows[number].batch(rows, model.tokenizer.pad_token_id))


def _embeddings(models: Sequence[SentenceEncoder], parts: Sequence[EncoderBatch]) -> torch.Tensor:
    """Of the rows of each model's part, one part after another, (N, H)."""
    device = models[0].device
    packing = Packing.of(joint_mask(parts)).to(device)  # before the mask goes to a GPU, which would be waited for
    parts = [part.to(device) for part in parts]
    all_layers = any(model.pooler.needs_all_layers for model in models)
    states = hidden_states(parts, packing=packing, all_layers=all_layers)
    return torch.cat(
        [
            model.pool_and_embed_hidden(hidden, part.input_ids, part.attention_mask, part.slots)[1]
            for model, part, hidden in zip(models, parts, states, strict=True)
        ]
    )


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Puts the adapter's name before what a UserError says."""
    try:
        yield
    except UserError as error:
        raise UserError(f"adapter {name!r}: {error}") from error


def _require_a_name_each(sentences: Sequence[str], names: Sequence[str]) -> None:
    if not hasattr(names, "__getitem__") or isinstance(names, Mapping):
        raise UserError(f"encode takes the name of an adapter, or a list of names; it got a {type(names).__name__}")
    if len(names) != len(sentences):
        raise UserError(
            f"{len(sentences)} sentences and {len(names)} names of adapters; give one name for all, or one for each"
        )
    for i, name in enumerate(names):
        if not isinstance(name, str):
            raise UserError(f"name {i} is a {type(name).__name__} ({name!r:.60}); the name of an adapter is needed")


def _read_folder(folder: str | Path) -> FolderContents:
    contents = model_folder.read_contents(folder)
    if contents.record["backbone"] is not None:
        raise UserError(f"{folder} holds an encoder of its own ({contents.record['method']}); {LOAD_ALONE_HINT}")
    return contents


def _tokenizer_files(folder: str | Path) -> str:
    """sha256 over all files in a folder that a tokenizer is read from."""
    paths = [path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()]
    digests = [f"{path.name} {sha256_of(path)}" for path in paths]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _for_inference(model: SentenceEncoder) -> SentenceEncoder:
    """Without what only training needs, which in some methods is many times as large as the prompts."""
    if not model.head_at_inference:
        model.head = None
    if model.encoder.prompt is not None:
        model.encoder.prompt = model.encoder.prompt.without_projection()
    return model
