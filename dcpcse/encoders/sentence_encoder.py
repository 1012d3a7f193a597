"""`SentenceEncoder`, the model that is trained, saved, loaded and used: an encoder, a pooler and a head."""

import contextlib
import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders import tokenization
from dcpcse.encoders.backbones import Backbone, evaluating, load_recorded
from dcpcse.encoders.encode_options import (
    EncodeOptions,
    PrecisionOptions,
    SentenceTransformersKeywords,
    prompt_of,
)
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.heads import (
    DenseLayers,
    MLMTransform,
    PretrainedPooler,
    TanhMLP,
    apply_head,
    build_head,
    head_record,
)
from dcpcse.encoders.identity import (
    EncoderSource,
    fingerprint,
    tell_unrecorded,
    tokenizer_differences,
    tokenizer_record,
)
from dcpcse.encoders.lora import lora_weights, require_peft
from dcpcse.encoders.packing import Packing, TensorGroup
from dcpcse.encoders.pooling import POOLERS, Pooler
from dcpcse.encoders.prompt_support import is_causal, peft_config
from dcpcse.encoders.prompts import DeepPrompt
from dcpcse.encoders.storage import hub, manifest, model_folder
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.model_folder import PROMPT_NAMES, SentenceModules, TunedBackbone, read_backbone
from dcpcse.encoders.template_denoising import NO_DENOISING, Denoising, render_template_only, template_tokens
from dcpcse.encoders.templates import Slots, Template, TokenTemplate, missing_cls
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.utils.arguments import known_arguments, location, path, strings, whole_number
from dcpcse.utils.console import warn
from dcpcse.utils.devices import Movable, pick_device, release_memory, run_jobs, run_pipeline, send
from dcpcse.utils.errors import UserError, doing, first_line, spell
from dcpcse.utils.run_files import read_beside_training
from dcpcse.utils.tensor_files import TORCH_DTYPES, require_same_tensors, set_dtype

logger = logging.getLogger(__name__)

CPU_TOKENS, GPU_TOKENS = 2_048, 32_768
"""Maximum number of tokens per batch of `encode`, for the caches of a CPU and for a high load of a GPU."""

WORTH_PREPACKING = 4_096
"""Minimum number of tokens in a call of `encode` for which prepacking the weights saves time (see `prepacked`)."""

_TOLD_TOKENIZERS: WeakSet[PreTrainedTokenizerBase] = WeakSet()
"""The tokenizers that were examined for a [CLS] token. All adapters of an encoder may share one."""

SAME_CONFIGURATION = "give the folder of a model with the same method, tuning and sizes"


class SentenceEncoder(nn.Module):
    """An encoder, a pooler and a head, which map sentences to vectors.

    Training methods train this model, and model folders contain it.

    Args:
        encoder: The encoder, with prompts or a LoRA adapter if it has any.
        tokenizer: The tokenizer of the encoder.
        source: The origin of the encoder.
        pooling: Name of the pooler, such as "cls" or "avg".
        head: Module that is applied to pooled vectors in training, and at inference if `head_at_inference` is set.
            None: no head.
        head_at_inference: Whether the head is applied at inference.
        templates: The templates of sentences. `encode` uses the first template. Views in training may use all
            templates. Without templates, sentences are encoded unchanged.
        denoising: Settings for subtracting the vector of the empty template from the pooled vector.
        final_period: Whether `encode` adds a period to sentences that do not end with punctuation.
        normalize: Whether embeddings are scaled to unit length at inference.
        max_length: Number of tokens to which `encode` truncates texts by default. None: the encoder's maximum.
        text_prefix: The default prompt: text that is put before each sentence, in training and at inference.
        prompts: Texts by name, of which `encode(..., prompt_name=...)` uses one in place of the default prompt.
        method: Name of the training method, recorded in the folder.
        arguments: Options of the training method, recorded in the folder.

    Attributes:
        bf16: Whether `encode` computes under PyTorch's autocast to bfloat16. The attribute can be set and is not
            saved.

    Raises:
        UserError: If the pooler needs a template and there is none, if denoising is set for a pooler that needs no
            template, or if the maximum length is out of range.
    """

    bf16 = False

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: PreTrainedTokenizerBase,
        source: EncoderSource,
        *,
        pooling: str,
        head: nn.Module | None = None,
        head_at_inference: bool = False,
        templates: Sequence[Template] = (),
        denoising: Denoising = NO_DENOISING,
        final_period: bool = False,
        normalize: bool = False,
        max_length: int | None = None,
        text_prefix: str = "",
        prompts: Mapping[str, str] | None = None,
        method: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _require_fitting(pooling, templates, denoising, final_period)
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.source = source
        self.pooling = pooling
        self.head = head
        self.head_at_inference = head_at_inference
        self.templates = tuple(TokenTemplate(template, tokenizer) for template in templates)
        self.denoising = denoising
        self.final_period = final_period
        self.normalize = normalize
        if max_length is not None:
            self.require_length(max_length)
        self.max_length = max_length
        self.text_prefix = text_prefix
        self.prompts = dict(prompts or {})
        self.method = method
        self.arguments = dict(arguments or {})
        self._told_sizes: set[int] = set()

    @property
    def template(self) -> TokenTemplate | None:
        """The template that `encode` uses, or None."""
        return self.templates[0] if self.templates else None

    def set_template(self, template: Template) -> None:
        """Replace all templates of the model by the given one."""
        self.templates = (TokenTemplate(template, self.tokenizer),)

    @property
    def device(self) -> torch.device:
        return next(self.encoder.backbone.parameters()).device

    @property
    def dimension(self) -> int:
        """Size H of an embedding."""
        if self.head_at_inference and isinstance(self.head, DenseLayers):
            return self.head.dimension
        return self.encoder.backbone.config.hidden_size

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """The sizes of embeddings for which the model was trained, largest first. () if there is only one size."""
        return tuple(self.arguments.get("matryoshka_dims") or ())

    @property
    def max_tokens(self) -> int:
        """Number of tokens to which `encode` truncates texts by default, including special tokens and the template."""
        return self.encoder.max_tokens if self.max_length is None else self.max_length

    @property
    def pooling(self) -> str:
        """Name of the pooler. Setting an unknown name raises UserError."""
        return self._pooling

    @pooling.setter
    def pooling(self, name: str) -> None:
        _require_pooler(name, self.encoder.backbone)
        self._pooling = name
        if POOLERS[name].reads_cls and self.tokenizer not in _TOLD_TOKENIZERS:
            _TOLD_TOKENIZERS.add(self.tokenizer)
            if (missing := missing_cls(self.tokenizer)) is not None:
                warn(f"the pooler {name} reads the vector of the first token as the vector of [CLS], but {missing}")

    @property
    def pooler(self) -> Pooler:
        return POOLERS[self.pooling]

    @property
    def longest_template(self) -> int:
        """Number of tokens of the longest template, including special tokens. 0 without templates."""
        return max((template.length for template in self.templates), default=0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None = None, **options: Any) -> Tensor:
        """Return the embeddings (N, H) of texts.

        Args:
            input_ids: Token ids (N, L).
            attention_mask: (N, L), 1 for tokens and 0 for padding.
            slots: Slots of the templates, if there are any.
            options: `prefix`, `packing` and `edits` of `Encoder.forward`, if they are already computed, and
                `normalize` of `pool_and_embed`.
        """
        return self.pool_and_embed(input_ids, attention_mask, slots, **options)[1]

    def pool_and_embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        slots: Slots | None = None,
        *,
        normalize: bool | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the pooled vectors before the head, after any denoising, and the embeddings. Both are (N, H).

        A head that precedes denoising (`MLMTransform`) is already applied to the pooled vectors.

        Args:
            input_ids: As in `forward`.
            attention_mask: As in `forward`.
            slots: As in `forward`.
            normalize: Whether to scale the embeddings to unit length. None: the model's setting at inference, False in
                training.
            options: `prefix`, `packing` and `edits` of `Encoder.forward`, if they are already computed.
        """
        hidden = self.hidden_states(input_ids, attention_mask, slots, **options)
        return self.pool_and_embed_hidden(hidden, input_ids, attention_mask, slots, normalize)

    def pool_and_embed_hidden(
        self,
        hidden: Sequence[Tensor],
        input_ids: Tensor,
        attention_mask: Tensor,
        slots: Slots | None = None,
        normalize: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the pooled vectors and embeddings of `pool_and_embed` for given hidden states.

        Args:
            hidden: Hidden states (N, L, H) of the layers that the pooler needs, the last layer at the end.
            input_ids: As in `forward`.
            attention_mask: As in `forward`.
            slots: As in `forward`.
            normalize: As in `pool_and_embed`.
        """
        head = self.head if self.head is not None and (self.training or self.head_at_inference) else nn.Identity()
        before_denoising = isinstance(head, MLMTransform)  # PromptBERT's org_mlp; other heads follow denoising
        vector = self.pooler(hidden, attention_mask, slots)
        vector = apply_head(head, vector) if before_denoising else vector
        if self.denoising.training if self.training else self.denoising.inference:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.denoising.freeze):
                bias = self._bias(input_ids, attention_mask, slots)
                bias = apply_head(head, bias) if before_denoising else bias
            vector = vector - bias
        embedding = vector if before_denoising else apply_head(head, vector)
        unit = self.normalize and not self.training if normalize is None else normalize
        return vector, F.normalize(embedding, dim=-1) if unit else embedding

    def _bias(self, input_ids: Tensor, attention_mask: Tensor, slots: Slots) -> Tensor:
        """Return the vectors (N, H) of the empty templates, which denoising subtracts."""
        # The inputs of the pass are computed from the slots on the CPU, so that no pass waits for a GPU.
        slots, device = slots.on_host, input_ids.device
        if self.denoising.by == "template":
            return self.template_bias(slots.content, slots.template, device)
        mask = template_tokens(self.templates, slots, input_ids.shape[1])
        packing = send(Packing.of(mask), device) if self._packs else None
        return self._pool(input_ids, send(mask, device), send(slots, device), packing=packing)

    @property
    def _packs(self) -> bool:
        return self.encoder.packed and not torch.compiler.is_compiling()  # as in `Encoder.forward`

    def template_bias(
        self, content: Tensor, template: Tensor | None = None, device: torch.device | None = None
    ) -> Tensor:
        """Return the pooled vectors (N, H) of templates without a sentence (PromptBERT, section 4.3).

        In train mode, sentences with the same length and template share the dropout masks, as in PromptBERT's code.

        Args:
            content: (N,), the number of tokens of each sentence, on the CPU.
            template: (N,), the index of each sentence's template, on the CPU. None: 0.
            device: Device of the model. None: the device of `content`.
        """
        which, device = torch.zeros_like(content) if template is None else template, device or content.device
        pad_id, shifted = self.tokenizer.pad_token_id, self.denoising.shifted
        alone = render_template_only(self.templates, which, content, pad_id, shifted=shifted, packed=self._packs)
        alone = send(alone, device)
        # The encoder adds its first position to an index; without it, the positions begin at 0.
        index = alone.index - self.encoder.positions.first if self.denoising.from_zero else alone.index
        how = {"index": index, "packing": alone.packing}
        return self._pool(alone.input_ids, alone.attention_mask, alone.slots, **how)[alone.case_of]

    def _pool(self, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None, **options: Any) -> Tensor:
        return self.pooler(self.hidden_states(input_ids, attention_mask, slots, **options), attention_mask, slots)

    def hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None, **options: Any
    ) -> tuple[Tensor, ...]:
        """Return the hidden states (N, L, H) of the layers that the pooler needs, the last layer at the end.

        Args:
            input_ids: As in `forward`.
            attention_mask: As in `forward`.
            slots: As in `forward`.
            options: Keyword arguments of `Encoder.forward`, such as `packing`.
        """
        all_layers = self.pooler.needs_all_layers
        return self.encoder(input_ids, attention_mask, slots=slots, all_layers=all_layers, **options)

    @overload
    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        *,
        convert_to_tensor: Literal[True],
        **options: Unpack[SentenceTransformersKeywords],
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        *,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[SentenceTransformersKeywords],
    ) -> np.ndarray: ...

    @known_arguments
    @doing("while sentences were encoded")
    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        *,
        convert_to_tensor: bool = False,
        **options: Unpack[SentenceTransformersKeywords],
    ) -> np.ndarray | Tensor:
        """Return the float32 embeddings (N, H) of sentences, in the given order.

        Embeddings are computed in eval mode without gradients. Several threads may call this method at the same time.
        Do not call it while the model is trained.

        Args:
            sentences: N sentences.
            batch_size: Maximum number of sentences per batch. None: 128 on a CPU, no maximum on a GPU. Batches are
                also limited to 2,048 tokens on a CPU and 32,768 tokens on a GPU.
            normalize: Whether to scale the embeddings to unit length. None: the model's setting.
            convert_to_tensor: Whether to return a tensor on the device of the model in place of a numpy array.
            options: Fields of `EncodeOptions`. `max_length`: number of tokens, including special tokens, to
                which texts are truncated. By default, this is the model's maximum (`max_tokens`), and a warning
                reports the number of truncated texts. `without`: ids of tokens to remove from all texts. Special
                tokens are not removed. `show_progress`: whether to show a progress bar. `truncate_dim`: number of
                first values to which embeddings are shortened before scaling. A warning reports a size for which the
                model was not trained (`matryoshka_dims`). `precision`: int8 or uint8 for codes (N, H) of one byte,
                binary or ubinary for codes (N, ceil(H / 8)) of eight signs per byte, as in sentence-transformers.
                `calibration`: for int8 and uint8, texts or ranges (2, H) that determine the codes. By default, the
                given sentences determine the codes, so codes of different calls are not comparable.
                `prompt_name`: name of the prompt before each sentence, such as query or document (`prompt_of`).
                `prompt_text`: text before each sentence, instead of a prompt.
                As in sentence-transformers, `normalize_embeddings` and `show_progress_bar` can be given instead of
                `normalize` and `show_progress`.

        Raises:
            UserError: If an option has an invalid value.
        """
        # False is the default there: the model then still scales embeddings if this is its setting.
        normalize = options.pop("normalize_embeddings", False) or normalize
        options["show_progress"] = options.pop("show_progress_bar", None) or options.get("show_progress", False)
        chosen = PrecisionOptions(batch_size=batch_size, normalize=normalize, **options)
        sentences = strings(sentences)
        self.require_size(chosen)
        texts = self.tokenize(sentences, chosen)

        def collate(rows: Sequence[int]) -> EncoderInputs:
            return EncoderInputs.of(*texts.batch(rows, self.tokenizer.pad_token_id))

        def embed(inputs: EncoderInputs) -> Tensor:
            return self._embed(inputs, chosen)

        embeddings = encode_in_batches(self, list(map(len, texts.ids)), collate, embed, chosen)
        embeddings = chosen.quantize(embeddings, self)
        return torch.from_numpy(embeddings).to(self.device) if convert_to_tensor else embeddings

    @property
    def default_batch_size(self) -> int | None:
        """Default maximum number of sentences per batch of `encode`. None if only the number of tokens is limited."""
        return tokenization.default_batch_size(self.device.type)

    def tokenize(self, sentences: Sequence[str], options: EncodeOptions) -> TokenizedTexts:
        """Return the token ids of sentences as `encode` uses them.

        Args:
            sentences: N sentences.
            options: The options of `encode`.

        Raises:
            UserError: If the maximum length is out of range.
        """
        wanted = self.max_tokens if options.max_length is None else options.max_length
        self.require_length(wanted)
        prompt = options.prompt(self)
        if not len(sentences):
            return TokenizedTexts([], 0)
        if prompt:
            sentences = [prompt + sentence for sentence in sentences]
        texts = tokenization.tokenize_texts(
            self.tokenizer, self.template, sentences, wanted, options.without, final_period=self.final_period
        )
        if texts.truncated and options.max_length is None:
            logger.warning(tokenization.CUT_WARNING, texts.truncated, len(texts), wanted)
        return texts

    def prompt_text(self, name: str | None) -> str:
        """Return the text of a prompt of this model (see `prompt_of`)."""
        return prompt_of(self.prompts, self.text_prefix, name)

    def require_length(self, max_length: int) -> None:
        """Raise UserError if `max_length` leaves no room for text or exceeds the encoder's positions."""
        least, limit = 3 if self.template is None else self.template.length + 1, self.encoder.max_tokens
        if not least <= whole_number("max_length", max_length) <= limit:
            raise UserError(f"a maximum of {max_length} tokens is invalid; this encoder takes {least} to {limit}")

    def require_size(self, options: EncodeOptions) -> None:
        """Raise UserError if embeddings cannot be shortened to `truncate_dim`.

        Log a warning as described in `encode`.
        """
        options.require_size(self.dimension, self.matryoshka_dims, self._told_sizes)

    def _embed(self, inputs: "EncoderInputs", options: EncodeOptions) -> Tensor:
        """Return the finished embeddings of a batch (see `finish`), on the device of the model."""
        args = inputs.input_ids, inputs.attention_mask, inputs.slots
        return self.finish(self(*args, packing=inputs.packing, normalize=False), options)

    def finish(self, embeddings: Tensor, options: EncodeOptions) -> Tensor:
        """Return embeddings in float32, shortened and scaled according to the options and the model.

        Args:
            embeddings: Embeddings (N, H), as the model computes them.
            options: Options of encoding.
        """
        embeddings = embeddings[:, : options.truncate_dim].float()
        unit = self.normalize if options.normalize is None else options.normalize
        return F.normalize(embeddings, dim=-1) if unit else embeddings

    @contextlib.contextmanager
    def denoised(self, inference: bool) -> Iterator[None]:
        """Switch denoising at inference on or off within the context, for example to score the dev set."""
        before, self.denoising = self.denoising, replace(self.denoising, inference=inference)
        try:
            yield
        finally:
            self.denoising = before

    def preprocessing_record(self) -> dict[str, Any]:
        """Return the settings of templates and denoising as entries of `dcpcse.json`."""
        if self.template is None:
            return {"template": None, "denoising": None}
        text = self.template.template
        template = {"text": str(text), "continuous": text.continuous, "final_period": self.final_period}
        return {"template": template, "denoising": self.denoising.record()}

    def save(self, folder: str | Path) -> None:
        """Write the trained weights, the record and the tokenizer to a model folder (see `storage.model_folder`).

        A frozen backbone is not written. Raises UserError if the encoder has no trained weights.
        """
        folder, prompt, encoder = path("folder", folder), self.encoder.prompt, self.encoder
        if not encoder.parts():
            raise UserError(
                "the encoder has no trained weights to save; save an encoder with prompts or a LoRA adapter, or a "
                "trained encoder"
            )
        model_folder.write_contents(
            folder,
            self.record(),
            lora_weights(encoder.backbone) if prompt is None else {manifest.PROMPT_KEY: prompt.table()},
            self._other_trained(),
            peft_config=self._peft_config(),
            modules=self.sentence_modules() if encoder.lora else None,
            backbone=self.tuned_backbone() if encoder.tuned else None,
            tokenizer=self.tokenizer,
        )

    def record(self) -> dict[str, Any]:
        """Return the contents of `dcpcse.json`, from which this model can be rebuilt, given the weights."""
        head = None
        if self.head is not None:
            head = {**head_record(self.head), "at_inference": self.head_at_inference}
        return {
            "method": self.method,
            "arguments": self.arguments,
            "pooling": self.pooling,
            "head": head,
            **({"normalize": True} if self.normalize else {}),
            **({} if self.max_length is None else {"max_length": self.max_length}),
            **({"text_prefix": self.text_prefix} if self.text_prefix else {}),
            **({"prompts": self.prompts} if self.prompts else {}),
            **self.encoder.record(),
            **self.preprocessing_record(),
            "base": asdict(self.source),
            **tokenizer_record(self.tokenizer),
        }

    @classmethod
    def load(
        cls,
        folder: str | Path,
        base: str | None = None,
        *,
        device: str | torch.device | None = None,
        options: LoadOptions | None = None,
    ) -> "SentenceEncoder":
        """Load a model from a folder that `save` wrote, on disk or on the Hub.

        The model is in eval mode. All settings come from the folder.

        Args:
            folder: Path or hub id of the folder.
            base: Current location of the frozen encoder. The weights and the configuration are checked. None: the
                recorded location.
            device: Device of the model. None: CUDA if it is available.
            options: Revision, cache and token for the Hub.

        Raises:
            UserError: If the base differs from the recorded encoder, if files are damaged, if weights are not finite,
                or if tensors are missing or unexpected.
        """
        folder, base = path("folder", folder), None if base is None else location("base", base)
        return read_beside_training(folder, lambda: cls._load(folder, base, device, options))

    @classmethod
    def _load(
        cls, folder: str | Path, base: str | None, device: str | torch.device | None, options: LoadOptions | None
    ) -> "SentenceEncoder":
        folder, options = hub.require_model_folder(folder, options)
        contents = model_folder.read_contents(folder)
        backbone = load_recorded(folder, contents.record, base, options)
        model = cls.restore(folder, contents, backbone, tokenizer_record(backbone.tokenizer))
        if not model.encoder.tuned:
            set_dtype(backbone.model, TORCH_DTYPES[dtype_of(contents.record)])
        return model.to(pick_device(device))

    @classmethod
    def restore(
        cls,
        folder: str | Path,
        contents: model_folder.FolderContents,
        backbone: Backbone,
        tokenizer: Mapping[str, Any],
    ) -> "SentenceEncoder":
        """Build the model of a folder from the folder's contents and a loaded encoder.

        The model is in eval mode, and no weight needs a gradient.

        Args:
            folder: The folder.
            contents: The contents of the folder.
            backbone: The encoder of the folder.
            tokenizer: The `tokenizer_record` of the backbone's tokenizer.

        Raises:
            UserError: If files are damaged.
        """
        record = contents.record
        if (difference := next(tokenizer_differences(record, tokenizer), None)) is not None:
            raise UserError(
                f"the tokenizer in {folder} differs from the tokenizer in training: {difference}; "
                "copy the folder again"
            )
        tell_unrecorded(folder, record)
        if record.get("lora"):
            require_peft(f"the LoRA adapter in {folder}")
        try:
            model = cls._build(backbone, record)
        except (UserError, TypeError, KeyError, RuntimeError) as error:
            raise UserError(
                f"{folder}: dcpcse.json is damaged ({first_line(error)}); copy the folder again"
            ) from error
        model.load_trained(folder, contents)
        return model.requires_grad_(False).eval()

    @classmethod
    def _build(cls, backbone: Backbone, record: Mapping[str, Any]) -> "SentenceEncoder":
        template = record["template"]
        return cls(
            Encoder.build(backbone.model, record),
            backbone.tokenizer,
            backbone.source if record["backbone"] is None else _base_of(record, backbone),
            pooling=record["pooling"],
            head=None if record["head"] is None else build_head(record["head"], backbone.source.hidden_size),
            head_at_inference=record["head"] is not None and record["head"]["at_inference"],
            templates=[] if template is None else [Template.parse(template["text"], template["continuous"])],
            denoising=NO_DENOISING if template is None else Denoising(**record["denoising"]),
            final_period=template is not None and template["final_period"],
            normalize=record.get("normalize", False),
            max_length=record.get("max_length"),
            text_prefix=record.get("text_prefix") or "",
            prompts=record.get("prompts"),
            method=record["method"],
            arguments=record.get("arguments"),
        )

    def load_trained(self, folder: str | Path, contents: model_folder.FolderContents | None = None) -> None:
        """Copy the trained weights of a folder into this model.

        Args:
            folder: The folder.
            contents: The contents of the folder, if they are already read. None: they are read here.

        Raises:
            UserError: If the trained parts of this model and of the model in the folder, or the sizes of parts,
                differ.
        """
        contents = contents or model_folder.read_contents(folder)
        encoder, prompt, record = self.encoder, self.encoder.prompt, contents.record
        prompts, encoders = ("no deep prompts", "deep prompts"), ("a frozen encoder", "a trained encoder")
        for theirs, ours in (
            (prompts[record["prompt"] is not None], prompts[prompt is not None]),
            (_adapter_in_words(record.get("lora")), _adapter_in_words(encoder.lora and encoder.lora.record())),
            (encoders[record["backbone"] is not None], encoders[encoder.tuned]),
        ):
            if theirs != ours:
                raise UserError(f"{folder} has {theirs}, but this model has {ours}; {SAME_CONFIGURATION}")
        parts = [
            (manifest.TRAINED, self._other_trained(), contents.trained),
            (manifest.PEFT_WEIGHTS, lora_weights(encoder.backbone), contents.lora),
        ]
        if encoder.tuned:
            weights = read_backbone(Path(folder), record["backbone"])
            parts.append(("the encoder", encoder.backbone.state_dict(keep_vars=True), weights))
        for what, expected, saved in parts:
            require_same_tensors(f"{folder}: {what}", expected, saved)
        if prompt is not None:
            wanted, shape = (prompt.shape.length, prompt.width), tuple(contents.prompts.shape)
            if shape != wanted:
                raise UserError(
                    f"{folder}: expected prompts of shape {wanted} but found {shape}; {SAME_CONFIGURATION}"
                )
        with torch.no_grad():
            for _, expected, saved in parts:
                for name, parameter in expected.items():
                    parameter.copy_(saved[name])
            if prompt is not None and prompt.projection is None:
                prompt.table.weight.copy_(contents.prompts)
            elif prompt is not None and not _same_prompts(prompt.table().cpu(), contents.prompts):
                raise UserError(
                    f"{folder}: the prompts differ from the output of the saved projection; copy the folder again"
                )

    def _other_trained(self) -> dict[str, Tensor]:
        """Return the tensors of `trained.safetensors` by name: trained tensors except prompt table and backbone."""
        tensors = {}
        if self.head is not None:
            tensors |= {f"head.{name}": tensor for name, tensor in self.head.state_dict(keep_vars=True).items()}
        return tensors | self.encoder.trained()

    def merged(self) -> "SentenceEncoder":
        """Return this model with its LoRA adapter added to a copy of the encoder's weights.

        Without an adapter, this method returns the model itself. The returned model is for inference, and its
        embeddings are the same up to rounding. `save` writes all its weights, so loading needs neither peft nor the
        base. Raises UserError if the weights are in half precision, which would round the sum.
        """
        if self.encoder.lora is None:
            return self
        if self.encoder.backbone.dtype.itemsize < torch.float32.itemsize:
            raise UserError(
                f"the LoRA adapter cannot be added to weights in {self.encoder.dtype_name}, which would round it; "
                "convert them first: model.float().merged()"
            )
        model = copy.copy(self)
        model._modules = dict(self._modules)  # otherwise the copy would share it
        model.encoder = self.encoder.merged()
        return model.eval()

    def plain_obstacles(self) -> list[str]:
        """Return the reasons why AutoModel or sentence-transformers would compute different vectors; [] if none."""
        encoder, offset, dtype = self.encoder, self.encoder.position_offset, self.encoder.dtype_name
        reasons = {
            "its encoder is frozen, so the folder does not contain it": not encoder.tuned and encoder.lora is None,
            f"its encoder is in {dtype}": dtype != "float32",
            "it uses a template": bool(self.templates),
            "it has deep prompts": encoder.prompt is not None,
            f"its sentences start at position {offset}": offset != 0,
            f"its pooling, {self.pooling}, is none of {', '.join(SentenceModules.POOLINGS)}": (
                self.pooling not in SentenceModules.POOLINGS
            ),
            "its head at inference is not a tanh MLP": self.head_at_inference and not isinstance(self.head, TanhMLP),
        }
        return [reason for reason, applies in reasons.items() if applies]

    def tuned_backbone(self) -> TunedBackbone:
        """Return the trained backbone and, if other libraries can use it, the settings that they need."""
        backbone = self.encoder.backbone
        return TunedBackbone(backbone, fingerprint(backbone), self.sentence_modules())

    def sentence_modules(self) -> SentenceModules | None:
        """Return the settings with which sentence-transformers computes the same vectors. None if it cannot."""
        if self.plain_obstacles():
            return None
        return SentenceModules(
            self.pooling,
            self.encoder.backbone.config.hidden_size,
            dense=self.head.dense if isinstance(self.head, TanhMLP) else None,
            dense_at_inference=self.head_at_inference,
            max_tokens=self.max_tokens,
            normalize=self.normalize,
            prompts=self.prompt_settings(),
        )

    def prompt_settings(self) -> dict[str, Any]:
        """Return the prompts as sentence-transformers records them: `prompts` and `default_prompt_name`.

        The result is {} if there are no prompts. If the default prompt has no name, the names default, query and
        document are used.
        """
        default, named = self.text_prefix, dict(self.prompts)
        if not default:
            return {"prompts": named, "default_prompt_name": None} if named else {}
        name = next((name for name, text in named.items() if text == default), PROMPT_NAMES[0])
        return {
            "prompts": {**dict.fromkeys((name, *PROMPT_NAMES[1:]), default), **named, name: default},
            "default_prompt_name": name,
        }

    def _peft_config(self) -> dict[str, Any] | None:
        """Return peft's adapter_config.json for LoRA, or for prompts if peft alone computes the same [CLS] vectors."""
        if self.encoder.lora is not None:
            return self.encoder.lora.peft_config(self.source.name_or_path, self.source.revision)
        is_cls = self.pooler.reads_cls
        changed = self.templates or self.text_prefix or self.normalize
        if changed or self.head_at_inference or not is_cls or self.encoder.peft_obstacles():
            return None
        if self.encoder.prompt.kind != DeepPrompt.kind:  # `dcpcse export` converts them; this folder keeps them
            return None
        return peft_config(self.encoder.prompt.shape, self.source.name_or_path, self.source.revision)


@dataclass(frozen=True)
class EncoderInputs(TensorGroup):
    """The inputs of the encoder for one batch of n texts in `SentenceEncoder.encode`.

    Args:
        input_ids: Token ids (n, L).
        attention_mask: (n, L), 1 for tokens and 0 for padding.
        slots: Slots of the templates, if there are any.
        packing: The packing of the mask.
    """

    input_ids: Tensor
    attention_mask: Tensor
    slots: Slots | None
    packing: Packing

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None) -> "EncoderInputs":
        """Return the inputs with their packing. It is computed on the CPU, so a forward pass need not wait for a GPU.

        Args:
            input_ids, attention_mask, slots: As in `EncoderInputs`, on the CPU.
        """
        return cls(input_ids, attention_mask, slots, Packing.of(attention_mask))


InputsT = TypeVar("InputsT", bound=Movable)


def encode_in_batches(
    model: SentenceEncoder,
    lengths: Sequence[int],
    collate: Callable[[Sequence[int]], InputsT],
    embed: Callable[[InputsT], Tensor],
    options: EncodeOptions,
) -> np.ndarray:
    """Encode N texts in batches, and return their embeddings (N, H), or their first values.

    During encoding, the model is in eval mode, and no gradients are computed. In half precision, the weights of the
    model are cast once. In float32, they are prepacked if there are many tokens. On a CPU, several threads encode the
    batches. On other devices, a thread collates the next batch while the device computes.

    Args:
        model: The model.
        lengths: The number of tokens of each text.
        collate: A function of n indices of texts that returns the inputs of these texts, on the CPU.
        embed: A function of the inputs of n texts that returns their finished embeddings (n, H). Inputs and embeddings
            are on the device of the model.
        options: The options of `SentenceEncoder.encode`.
    """
    embeddings = np.empty((len(lengths), options.truncate_dim or model.dimension), dtype=np.float32)
    kind = model.device.type
    rows_per_batch = tokenization.default_batch_size(kind) if options.batch_size is None else options.batch_size
    jobs = list(tokenization.batches(lengths, rows_per_batch, CPU_TOKENS if kind == "cpu" else GPU_TOKENS))
    cast = model.bf16 or torch.is_autocast_enabled(kind)
    dtype = torch.bfloat16 if model.bf16 else torch.get_autocast_dtype(kind)

    def compute(inputs: InputsT) -> Tensor:
        # Both settings apply to the current thread only.
        with torch.inference_mode(), torch.autocast(kind, dtype, enabled=cast):
            return embed(inputs)

    passes = itertools.count(1)
    bar = tqdm(total=len(lengths), desc="encode", mininterval=1, disable=not options.show_progress)

    def work(rows: Sequence[int]) -> None:
        embeddings[rows] = compute(collate(rows)).numpy()

    def finished(rows: Sequence[int]) -> None:
        release_memory(model.device, next(passes))
        bar.update(len(rows))

    def keep(rows: Sequence[int], vectors: Tensor) -> None:
        embeddings[rows] = vectors.numpy()
        bar.update(len(rows))

    is_worth_it = not cast and sum(lengths) > WORTH_PREPACKING
    halved = in_half_precision(model, dtype if cast else None, keep=model.bf16)
    with bar, evaluating(model), torch.no_grad(), prepacked(model, is_worth_it), halved:
        if kind == "cpu":
            run_jobs(jobs, work, finished)
        else:
            run_pipeline(jobs, collate, compute, keep, model.device)
    return embeddings


def _same_prompts(computed: Tensor, saved: Tensor) -> bool:
    """Return whether computed prompts equal the saved prompts, up to the rounding of the saved dtype."""
    rounding = 4 * torch.finfo(saved.dtype).eps
    return torch.allclose(computed, saved.to(computed.dtype), rtol=max(1e-5, rounding), atol=max(1e-4, rounding))


def _adapter_in_words(record: Mapping[str, Any] | None) -> str:
    """Describe the settings of an adapter that determine vectors, for messages."""
    if record is None:
        return "no LoRA adapter"
    return f"a LoRA adapter of rank {record['r']}, alpha {record['alpha']} on {', '.join(record['target_modules'])}"


def _require_pooler(name: str, backbone: nn.Module) -> None:
    """Raise UserError if a pooler does not exist, or if it would return the same vector for many texts."""
    if name not in POOLERS:
        raise UserError(f"unknown pooling {name!r}; choose from: {', '.join(sorted(POOLERS))}")
    if POOLERS[name].reads_cls and is_causal(backbone):
        raise UserError(
            f"pooling {name!r} reads the first token, which in {backbone.config.model_type} encoders attends to no "
            "other token; choose last_token or avg"
        )


def _require_fitting(pooling: str, templates: Sequence[Template], denoising: Denoising, final_period: bool) -> None:
    """Raise UserError if pooler, templates, denoising and final period contradict each other."""
    if POOLERS[pooling].needs_template and not templates:
        raise UserError(f"pooling {pooling!r} needs a template; give one with {spell('template')}")
    if final_period and not templates:
        raise UserError(f"a final period is added only to sentences in a template; give one with {spell('template')}")
    if denoising.ever and not POOLERS[pooling].needs_template:
        raise UserError(
            f"denoising subtracts the template's [MASK] vector, which pooling {pooling!r} does not use; choose the "
            "pooling 'mask', or switch denoising off"
        )
    if len({template.masks for template in templates}) > 1:
        raise UserError("the templates have different numbers of [MASK]; use the same number of [MASK] in all")


def plain_encoder(
    backbone: Backbone,
    pooling: str,
    template: Template | None = None,
    denoise: bool = False,
    final_period: bool = False,
) -> SentenceEncoder:
    """Return a model that uses a pretrained encoder as it is, for evaluation.

    With the pooler "cls", the model includes the pooling layer of the checkpoint.

    Args:
        backbone: The pretrained encoder.
        pooling: Name of the pooler, such as "cls" or "avg".
        template: The template of all sentences. None: no template.
        denoise: Whether to subtract the vector of the empty template from the pooled vector.
        final_period: As in `SentenceEncoder`.

    Raises:
        UserError: If the pooler is unknown, or if it is "cls" and the checkpoint has no pooler. Random weights would
            give a random score.
    """
    _require_pooler(pooling, backbone.model)
    head = None
    if pooling == "cls":
        if backbone.pooler is None:
            raise UserError(
                f"{backbone.source.name_or_path} has no pretrained pooler, which {spell('pooler', 'cls')} uses for a "
                f"plain encoder; choose {spell('pooler', 'cls_before_pooler')}, avg or another pooler"
            )
        head = PretrainedPooler(backbone.pooler)
    model = SentenceEncoder(
        Encoder(backbone.model),
        backbone.tokenizer,
        backbone.source,
        pooling=pooling,
        head=head,
        head_at_inference=head is not None,
        templates=[] if template is None else [template],
        denoising=Denoising(inference=denoise),
        final_period=final_period,
    )
    return model.requires_grad_(False).eval()


def _base_of(record: Mapping[str, Any], backbone: Backbone) -> EncoderSource:
    """Return the recorded base of a trained encoder, with the configuration of the loaded encoder."""
    return replace(EncoderSource(**record["base"]), configuration=backbone.source.configuration)


def dtype_of(record: Mapping[str, Any]) -> str:
    """Return the name of the dtype of the frozen encoder's weights in a model's record."""
    return record.get("dtype", "float32")
