"""The module that loads model folders in sentence-transformers: `SentenceTransformer(folder, trust_remote_code=True)`.

`dcpcse export --to sentence-transformers` writes this folder: a model folder with a modules.json that names the module
by its public path `dcpcse.st`. If this package is not installed, or without `trust_remote_code=True`,
sentence-transformers raises an error instead of loading only the encoder.
"""

from collections.abc import Sequence
from typing import Any

from sentence_transformers.base.modules import InputModule
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.templates import Slots
from dcpcse.encoders.tokenization import tokenize_texts
from dcpcse.utils.arguments import strings
from dcpcse.utils.errors import UserError

SLOT_KEY = "slots_"
"""Prefix that marks template slots among the feature names of a batch."""


class DeepPromptTransformer(InputModule):
    """A complete `SentenceEncoder` as the only module of a SentenceTransformer."""

    __module__ = "dcpcse.st"  # sentence-transformers writes it to modules.json, so it must not change

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.max_seq_length = encoder.max_tokens

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.encoder.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Maximum number of tokens of a sentence, including special tokens and the template."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.encoder.require_length(value)
        self._max_seq_length = value

    def get_embedding_dimension(self) -> int:
        """Return the dimension of the embeddings."""
        return self.encoder.dimension

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Insert sentences into the template of the model, and tokenize them.

        Args:
            inputs: The sentences.
            prompt: Text to put before each sentence.
            kwargs: Not used.
        """
        model, texts = self.encoder, [f"{prompt or ''}{text}" for text in strings(inputs)]
        rows = tokenize_texts(
            model.tokenizer, model.template, texts, self.max_seq_length, final_period=model.final_period
        )
        input_ids, mask, slots = rows.batch(range(len(rows)), model.tokenizer.pad_token_id)
        features = {} if slots is None else {SLOT_KEY + name: tensor for name, tensor in vars(slots).items()}
        return {"input_ids": input_ids, "attention_mask": mask, **features}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add sentence embeddings (N, H) and token embeddings (N, L, H) to the features of a batch from `preprocess`.

        Token embeddings are the hidden states of the last layer, before pooling and head.
        """
        slots = {name.removeprefix(SLOT_KEY): part for name, part in features.items() if name.startswith(SLOT_KEY)}
        batch = features["input_ids"], features["attention_mask"], Slots(**slots) if slots else None
        hidden = self.encoder.hidden_states(*batch)
        embeddings = self.encoder.pool_and_embed_hidden(hidden, *batch)[1]
        return {**features, "token_embeddings": hidden[-1], "sentence_embedding": embeddings}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the model as a model folder, which does not contain the frozen encoder."""
        if not safe_serialization:
            raise UserError("safe_serialization=False: only safetensors are supported; leave it out")
        self.encoder.save(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        *,
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> "DeepPromptTransformer":
        """Load a folder written by `save`, local or on the Hub.

        Args:
            model_name_or_path: The folder, or its Hub id.
            subfolder: Relative path of the model in the folder.
            token: As in transformers.
            cache_folder: Folder for downloads.
            revision: Branch, tag or commit on the Hub.
            local_files_only: As in transformers.
            model_kwargs: May contain only "base", the current location of the frozen encoder.
            processor_kwargs: Must be empty.
            config_kwargs: Must be empty.
            backend: Must be "torch".
            kwargs: Not used.

        Raises:
            UserError: If `model_kwargs`, `processor_kwargs`, `config_kwargs` or `backend` has a value that is not
                allowed, if the base is not the encoder of the training, or if the folder is damaged.
        """
        rejected = {"model_kwargs": set(model_kwargs or {}) - {"base"}}
        rejected |= {"processor_kwargs": set(processor_kwargs or {}), "config_kwargs": set(config_kwargs or {})}
        for name, keys in rejected.items():
            if keys:
                raise UserError(f"{name}: {sorted(keys)} cannot be set; model_kwargs accepts only 'base'")
        if backend != "torch":
            raise UserError(
                f"backend={backend!r}: this module supports only torch; use dcpcse export --to onnx for a graph"
            )
        folder = cls.load_dir_path(model_name_or_path, subfolder, token, cache_folder, revision, local_files_only)
        options = LoadOptions(cache_dir=cache_folder, token=token)
        # Load on the CPU; sentence-transformers then moves the model to the requested device.
        return cls(SentenceEncoder.load(folder, (model_kwargs or {}).get("base"), device="cpu", options=options))
