"""Load many adapters on one frozen encoder, select them by name, and encode mixed batches with them.

An adapter is an output folder of train.py that contains no encoder, only prompts or a LoRA adapter for a frozen base
encoder. The base encoder is loaded once, and each adapter adds only the tensors of its folder.

The sentences of a mixed batch share one forward pass through the base encoder, in which each sentence has the prompts
of its adapter (`dcpcse.inference.mixed_batch`). Sentences of a LoRA adapter need a separate forward pass, because LoRA
changes the layers. Pooling, head and template denoising are applied separately for each adapter.
"""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders.backbones import Backbone, fitting_tokenizer, load_recorded
from dcpcse.encoders.encode_options import EncodeOptions, FurtherKeywords
from dcpcse.encoders.identity import require_recorded, tokenizer_record
from dcpcse.encoders.packing import Packing, TensorGroup
from dcpcse.encoders.sentence_encoder import SentenceEncoder, dtype_of, encode_in_batches, plain_encoder
from dcpcse.encoders.storage import hub, model_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import TOKENIZER_FILES, sha256_of
from dcpcse.encoders.storage.model_folder import FolderContents
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.inference.mixed_batch import EncoderBatch, hidden_states, joint_mask
from dcpcse.utils.arguments import known_arguments, location, strings
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.run_files import read_beside_training
from dcpcse.utils.tensor_files import TORCH_DTYPES, set_dtype

Key = TypeVar("Key", bound=Hashable)

LOAD_ALONE_HINT = "adapters share one frozen encoder; use this folder by itself, with dcpcse.load or dcpcse serve"


class Adapters:
    """Named adapters on one frozen encoder. `adapters["name"]` is a SentenceEncoder that uses this encoder.

    The adapters are for inference only. Heads that only training needs are dropped, and prompts that a projection
    computes are replaced by the computed vectors. The constructor creates an empty collection.

    Args:
        backbone: The frozen encoder, already on its device.
        dtype: Data type of the weights of the encoder, such as "float32".
        folder: Folder that contains the tokenizer of the encoder.
        options: Revision, cache and access token for folders on the Hub.
    """

    def __init__(self, backbone: Backbone, dtype: str, folder: str | Path, options: LoadOptions | None = None) -> None:
        self._backbone = backbone
        self._options = options
        self._dtype = dtype
        self._base = plain_encoder(backbone, "avg")
        self._models: dict[str, SentenceEncoder] = {}
        # A tokenizer of 30,000 tokens takes more memory than many adapters, and most folders have the same one.
        entry = (backbone.tokenizer, tokenizer_record(backbone.tokenizer))
        self._tokenizers = {_tokenizer_files(folder): entry}

    @classmethod
    def load(
        cls,
        folders: Mapping[str, str | Path],
        base: str | None = None,
        *,
        device: str | torch.device | None = None,
        options: LoadOptions | None = None,
    ) -> "Adapters":
        """Load the base encoder of the first folder and the adapters of all folders (local, or on the Hub).

        Args:
            folders: A dict from the name of each adapter to the folder of the adapter.
            base: Path of the frozen encoder, if this path differs from the path recorded in the first folder. Weights
                and configuration must match the record.
            device: Device of the encoder. None: CUDA if it is available.
            options: Revision, cache and access token for folders on the Hub.

        Raises:
            UserError: If a folder has a different base encoder, vocabulary or data type than the first folder, if a
                folder contains a trained encoder, or if `SentenceEncoder.load` would reject a folder.
        """
        if not isinstance(folders, Mapping) or not folders:
            raise UserError("Adapters.load takes at least one name with its folder: {'name': 'folder'}")
        first, reach = hub.require_model_folder(next(iter(folders.values())), options)
        record = _read_folder(first).record
        backbone = load_recorded(first, record, None if base is None else location("base", base), reach)
        set_dtype(backbone.model, TORCH_DTYPES[dtype_of(record)])
        backbone.model.to(pick_device(device))
        adapters = cls(backbone, dtype_of(record), first, options)
        for name, folder in folders.items():
            adapters.add(name, folder)
        return adapters

    @classmethod
    def on_encoder_of(cls, model: SentenceEncoder, options: LoadOptions | None = None) -> "Adapters":
        """Create an empty collection that shares the frozen encoder of a loaded model.

        Args:
            model: The loaded model.
            options: Revision, cache and access token for folders on the Hub.

        Raises:
            UserError: If the encoder of the model was trained or has a LoRA adapter. Other adapters do not fit such
                an encoder.
        """
        if model.encoder.tuned or model.encoder.lora is not None:
            kind = "was trained" if model.encoder.tuned else "has a LoRA adapter"
            raise UserError(
                f"the encoder of this model {kind}, so no adapter fits it; give a model with the frozen encoder"
            )
        backbone = Backbone(model.encoder.backbone, model.tokenizer, model.source)
        adapters = cls(backbone, model.encoder.dtype_name, "", options)
        adapters._tokenizers = {}  # the model may have changed its tokenizer, as sentence-transformers folders require
        return adapters

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters, in the order in which they were added."""
        return tuple(self._models)

    def add(self, name: str, folder: str | Path) -> None:
        """Load an adapter for the base encoder and add it to this collection.

        Args:
            name: Name of the adapter.
            folder: Folder of the adapter, local or on the Hub.

        Raises:
            UserError: If the name is in use, or if `load` would reject the folder.
        """
        if not isinstance(name, str) or not name:
            raise UserError(f"{name!r} cannot name an adapter; give a string that is not empty")
        if name in self._models:
            raise UserError(f"there is already an adapter {name!r}; remove it first, or choose a different name")
        self._models[name] = self.build(name, self.read(name, folder))

    def read(self, name: str, folder: str | Path) -> "AdapterFiles":
        """Read the files of an adapter, from which `build` makes a model.

        This method does not use the encoder, so another thread may encode at the same time.

        Args:
            name: Name of the adapter, for messages.
            folder: Folder of the adapter, local or on the Hub.

        Raises:
            UserError: If `load` would reject the folder. The message names the adapter.
        """
        with _errors_of(name):
            path, _ = hub.require_model_folder(folder, self._options)
            contents = _read_folder(path)
            self._require_of_base(path, contents.record)
            return AdapterFiles(path, contents, *self._tokenizer(path))

    def build(self, name: str, files: "AdapterFiles") -> SentenceEncoder:
        """Build the model of an adapter on the shared encoder, without adding the model to this collection.

        Args:
            name: Name of the adapter, for messages.
            files: The result of `read`.

        Raises:
            UserError: If the files are damaged. The message names the adapter.
        """
        with _errors_of(name):
            backbone = replace(self._backbone, tokenizer=files.tokenizer)
            model = SentenceEncoder.restore(files.folder, files.contents, backbone, files.tokenizer_record)
            return _for_inference(model).to(self._base.device)

    def remove(self, name: str) -> None:
        """Remove an adapter."""
        self._models.pop(self._known(name))

    def __getitem__(self, name: str) -> SentenceEncoder:
        """Return the model of an adapter. Do not train or move this model: all adapters share its encoder."""
        return self._models[self._known(name)]

    @known_arguments
    def encode(
        self,
        sentences: Sequence[str],
        adapter: str | Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[FurtherKeywords],
    ) -> np.ndarray:
        """Return the float32 embeddings (N, H) of sentences, each computed with the adapter of the sentence.

        Args:
            sentences: N sentences.
            adapter: One name for all sentences, or a list with one name per sentence. With a list, sentences of
                different adapters share batches.
            batch_size: As in `SentenceEncoder.encode`.
            normalize: As in `SentenceEncoder.encode`.
            options: The other options of `SentenceEncoder.encode`.

        Raises:
            UserError: If a name is unknown, or if the number of names differs from the number of sentences.
        """
        if isinstance(adapter, str):
            return self[adapter].encode(sentences, batch_size, normalize, **options)
        chosen = EncodeOptions(batch_size=batch_size, normalize=normalize, **options)
        sentences = strings(sentences)
        takes = "encode takes the name of an adapter or a list of names"
        names = strings(adapter, takes, "name", "the name of an adapter")
        if len(names) != len(sentences):
            raise UserError(
                f"got {len(sentences)} sentences and {len(names)} adapter names; give one name, or one per sentence"
            )
        texts = MixedTexts.tokenize(self, sentences, names, chosen)

        def embed(batch: MixedBatch) -> torch.Tensor:
            return batch.embeddings(chosen)

        return encode_in_batches(self._base, texts.lengths, texts.batch, embed, chosen)

    def _known(self, name: str) -> str:
        if name in self._models:
            return name
        hint = did_you_mean(name, self.names)
        some = ", ".join(self.names[:8]) + (", …" if len(self.names) > 8 else "")
        raise UserError(f"no adapter {name!r}; {hint + ' ' if hint else ''}loaded: {len(self.names)} ({some})")

    def _require_of_base(self, folder: str | Path, record: Mapping[str, Any]) -> None:
        source = self._backbone.source
        require_recorded(folder, record["base"], source, source.name_or_path, LOAD_ALONE_HINT)
        if dtype_of(record) != self._dtype:
            raise UserError(
                f"{folder} was trained on weights in {dtype_of(record)}, but the weights of the loaded encoder are in "
                f"{self._dtype}; {LOAD_ALONE_HINT}"
            )

    def _tokenizer(self, folder: str | Path) -> tuple[PreTrainedTokenizerBase, Mapping[str, Any]]:
        """Return the tokenizer of a folder and the `tokenizer_record`. Equal tokenizer files are loaded once."""
        digest = _tokenizer_files(folder)
        if digest not in self._tokenizers:
            source, model = self._backbone.source, self._backbone.model
            tokenizer = fitting_tokenizer(str(folder), source.name_or_path, model, LoadOptions())
            self._tokenizers[digest] = (tokenizer, tokenizer_record(tokenizer))
        return self._tokenizers[digest]


@dataclass(frozen=True)
class AdapterFiles:
    """The files of an adapter, read into memory.

    Args:
        folder: The folder of the adapter.
        contents: The record and the tensors of the adapter.
        tokenizer: The tokenizer of the adapter.
        tokenizer_record: The result of `tokenizer_record(tokenizer)`.
    """

    folder: str | Path
    contents: FolderContents
    tokenizer: PreTrainedTokenizerBase
    tokenizer_record: Mapping[str, Any]


@dataclass(frozen=True)
class MixedTexts:
    """Tokenized sentences, each to be encoded with one of several adapters.

    Args:
        models: The model of each adapter.
        rows: For each adapter, the tokenized sentences that it encodes.
        places: For each sentence, the index of its adapter, and the index of the sentence in `rows` of this adapter.
    """

    models: Sequence[SentenceEncoder]
    rows: Sequence[TokenizedTexts]
    places: Sequence[tuple[int, int]]

    @classmethod
    def tokenize(
        cls, adapters: Adapters, sentences: Sequence[str], names: Sequence[str], options: EncodeOptions
    ) -> "MixedTexts":
        """Tokenize each sentence with the tokenizer of its adapter.

        Args:
            adapters: The adapters.
            sentences: N sentences.
            names: The name of the adapter of each sentence.
            options: The options of `SentenceEncoder.encode`.

        Raises:
            UserError: If a name is unknown or an adapter rejects an option.
        """
        groups, places = grouped(names)
        models = [adapters[name] for name in groups]
        for model in models:
            if model.training:
                model.eval()
        rows = []
        for model, (name, numbers) in zip(models, groups.items(), strict=True):
            with _errors_of(name):
                rows.append(model.tokenize([sentences[number] for number in numbers], options))
                model.require_size(options)
        return cls(models, rows, places)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sentence."""
        return [len(self.rows[adapter].ids[row]) for adapter, row in self.places]

    def batch(self, chosen: Sequence[int]) -> "MixedBatch":
        """Return the model inputs of the sentences with the indices `chosen`, on the CPU."""
        of_adapter = defaultdict(list)
        for index, text in enumerate(chosen):
            of_adapter[self.places[text][0]].append(index)
        of_layers = defaultdict(list)
        for number in of_adapter:
            of_layers[self.models[number].encoder.backbone].append(number)
        passes = [
            _Pass.of(
                [self.models[number] for number in numbers],
                [self._part(number, [chosen[index] for index in of_adapter[number]]) for number in numbers],
            )
            for numbers in of_layers.values()
        ]
        places = [index for numbers in of_layers.values() for number in numbers for index in of_adapter[number]]
        return MixedBatch(passes, torch.tensor(places).argsort())

    def _part(self, number: int, chosen: Sequence[int]) -> EncoderBatch:
        model = self.models[number]
        rows = [self.places[text][1] for text in chosen]
        return EncoderBatch(model.encoder, *self.rows[number].batch(rows, model.tokenizer.pad_token_id))


def grouped(keys: Sequence[Key]) -> tuple[dict[Key, list[int]], list[tuple[int, int]]]:
    """Group items by their keys, and number the keys in the order in which they first occur.

    Return a dict from each key to the indices of the items with this key. Also return a pair for each item: the number
    of its key, and the position of the item among the items with this key.
    """
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    groups: dict[Key, list[int]] = {key: [] for key in numbers}
    places = []
    for index, key in enumerate(keys):
        places.append((numbers[key], len(groups[key])))
        groups[key].append(index)
    return groups, places


@dataclass(frozen=True)
class _Pass:
    """The rows of adapters whose encoders have the same layers, so one forward pass processes all rows.

    Args:
        models, parts: The model and the rows of each adapter.
        packing: The packing of the attention mask of all rows. It is computed on the CPU, so that no forward pass
            waits for a GPU.
    """

    models: Sequence[SentenceEncoder]
    parts: Sequence[EncoderBatch]
    packing: Packing

    @classmethod
    def of(cls, models: Sequence[SentenceEncoder], parts: Sequence[EncoderBatch]) -> "_Pass":
        return cls(models, parts, Packing.of(joint_mask(parts)))

    def map(self, change: Callable[[Any], Any]) -> "_Pass":
        return _Pass(self.models, list(map(change, self.parts)), change(self.packing))

    def embeddings(self, options: EncodeOptions) -> list[torch.Tensor]:
        """Return the embeddings (n, H) of the n rows of each adapter."""
        all_layers = any(model.pooler.needs_all_layers for model in self.models)
        states = hidden_states(self.parts, packing=self.packing, all_layers=all_layers)
        embeddings = []
        for model, part, hidden in zip(self.models, self.parts, states, strict=True):
            args = part.input_ids, part.attention_mask, part.slots
            _, vectors = model.pool_and_embed_hidden(hidden, *args, normalize=False)
            embeddings.append(model.finish(vectors, options))
        return embeddings


@dataclass(frozen=True)
class MixedBatch(TensorGroup):
    """A batch of tokenized sentences, which `Adapters.encode` encodes together.

    Args:
        passes: The sentences, as rows of token ids. One forward pass computes all rows whose encoders have the same
            layers.
        order: Tensor (N,) that contains, for each sentence, its index among the rows of all passes.
    """

    passes: Sequence[_Pass]
    order: torch.Tensor

    def map(self, change: Callable[[Any], Any]) -> "MixedBatch":
        """Return a copy in which every tensor is replaced by the result of `change` for this tensor."""
        return MixedBatch([pass_.map(change) for pass_ in self.passes], change(self.order))

    def embeddings(self, options: EncodeOptions) -> torch.Tensor:
        """Return the float32 embeddings (N, H) of all sentences of the batch, in their order."""
        return torch.cat([rows for pass_ in self.passes for rows in pass_.embeddings(options)])[self.order]


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Prefix the message of a UserError with the name of the adapter."""
    try:
        yield
    except UserError as error:
        raise UserError(f"adapter {name!r}: {error}") from error


def _read_folder(folder: str | Path) -> FolderContents:
    contents = read_beside_training(folder, lambda: model_folder.read_contents(folder))
    if contents.record["backbone"] is not None:
        raise UserError(f"{folder} contains its own encoder ({contents.record['method']}); {LOAD_ALONE_HINT}")
    return contents


def _tokenizer_files(folder: str | Path) -> str:
    """Return a single sha256 digest over all tokenizer files in a folder."""
    paths = [path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()]
    digests = [f"{path.name} {sha256_of(path)}" for path in paths]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _for_inference(model: SentenceEncoder) -> SentenceEncoder:
    """Return the model without the parts that only training needs. They can be many times larger than the prompts."""
    if not model.head_at_inference:
        model.head = None
    if model.encoder.prompt is not None:
        model.encoder.prompt = model.encoder.prompt.as_keys_values(model.encoder.backbone)
    return model
