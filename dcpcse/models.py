"""The documented door to every model, head and variant.

`Encoder` is a backbone with injected prompts, `SentenceEncoder` adds pooling and head and is what gets trained,
saved, loaded and used. Prompts, heads and poolers are re-exported here.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import folder as model_folder
from .attention import Prefix
from .backbones import Backbone, LMHead, LoadOptions, Source, load_backbone, vocabulary_fingerprint
from .denoising import template_only
from .errors import UserError
from .heads import HEADS, PretrainedPooler, TanhMLP, head_name
from .pooling import POOLERS, Pooler
from .positions import positions_of
from .promptable import PEFT_SAME, require_prompt_arrives, require_room, use_prefix_attention
from .prompts import DeepPrompt, ProjectedTable, PromptShape, PromptTable
from .templates import Slots, Template, TokenTemplate
from .tokens import Rows, read_rows

__all__ = [
    "HEADS",
    "POOLERS",
    "DeepPrompt",
    "Encoder",
    "LMHead",
    "Pooler",
    "PretrainedPooler",
    "ProjectedTable",
    "PromptShape",
    "PromptTable",
    "SentenceEncoder",
    "TanhMLP",
    "plain_encoder",
]

logger = logging.getLogger(__name__)


class Encoder(nn.Module):
    """Backbone with an optional deep prompt: token ids → hidden states.

    position_offset: positions by which the text starts late (the published code: the prompt length).
    Raises UserError if the prompt does not reach every layer of this backbone.
    """

    def __init__(self, backbone: PreTrainedModel, prompt: DeepPrompt | None = None, position_offset: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.prompt = prompt
        self.positions = positions_of(backbone)
        # Prompts take no part in rotation: among rotary positions a shift of the text would change nothing.
        self.position_offset = 0 if self.positions.rotary else position_offset
        if prompt is not None:
            require_room(backbone, self.max_tokens, self.position_offset)
            use_prefix_attention(backbone)
            require_prompt_arrives(backbone, prompt.shape)

    @property
    def max_tokens(self) -> int:
        """Longest text in tokens, special ones included, that the positions hold."""
        return self.positions.room(self.position_offset)

    def draw_prefix(self, rows: int) -> Prefix | None:
        """The prefix of `rows` sequences; in train mode each row has its own dropout."""
        return None if self.prompt is None else self.prompt(rows)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        prefix: Prefix | None = None,
        index: Tensor | None = None,
        all_layers: bool = False,
    ) -> tuple[Tensor, ...]:
        """Hidden states (N, L, H): all of them, embedding output first, with `all_layers`, else only the last.

        input_ids, attention_mask (N, L). prefix: one drawn before, for a second pass that must see the same
        prompts; drawn here by default. index (N, L): where in its text each token stands, for texts without pads of
        which a part is left out. Raises UserError if L exceeds the positions.
        """
        if input_ids.shape[1] > self.max_tokens:
            raise UserError(
                f"a text of {input_ids.shape[1]} tokens does not fit: the encoder has room for {self.max_tokens} "
                f"(position offset {self.position_offset}); lower --max_seq_length"
            )
        kwargs: dict[str, Any] = {"output_hidden_states": True} if all_layers else {}
        if self.prompt is not None:
            kwargs["prefix"] = self.draw_prefix(len(input_ids)) if prefix is None else prefix
            kwargs["position_ids"] = self.positions.ids(input_ids, self.position_offset)
        if index is not None:
            kwargs["position_ids"] = self.positions.at(index, self.position_offset)
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        return tuple(output.hidden_states) if all_layers else (output.last_hidden_state,)


class SentenceEncoder(nn.Module):
    """Encoder, pooling and head: sentences → vectors. What methods train and folders hold."""

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: PreTrainedTokenizerBase,
        source: Source,
        *,
        pooling: str,
        head: nn.Module | None = None,
        head_at_inference: bool = False,
        template: Template | None = None,
        denoise: bool = False,
        final_period: bool = False,
        method: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """head: applied in training, and in evaluation too if `head_at_inference`.

        template: every sentence is put into it. denoise: take the template's own part away from the pooled vector.
        final_period: see `TokenTemplate`.
        method, arguments: what trained it, for the record in the folder. Raises UserError for a pooling that needs
        a template without one, and for denoising without such a pooling.
        """
        super().__init__()
        if POOLERS[pooling].needs_template and template is None:
            raise UserError(f"pooling {pooling!r} needs a template (--template)")
        if final_period and template is None:
            raise UserError("a final period is put to sentences in a template; give one (--template)")
        if denoise and not POOLERS[pooling].needs_template:
            raise UserError(f"denoising subtracts the template's own [MASK] vector; pooling {pooling!r} has none")
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.source = source
        self.pooling = pooling
        self.head = head
        self.head_at_inference = head_at_inference
        self.template: TokenTemplate | None = None
        if template is not None:
            self.set_template(template, final_period)
        self.denoise = denoise
        self.method = method
        self.arguments = dict(arguments or {})

    def set_template(self, template: Template, final_period: bool = False) -> None:
        """Put sentences into this template from now on."""
        self.template = TokenTemplate(template, self.tokenizer, final_period)

    @property
    def device(self) -> torch.device:
        return next(self.encoder.backbone.parameters()).device

    @property
    def dimension(self) -> int:
        """Length H of an embedding."""
        return self.encoder.backbone.config.hidden_size

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None = None, *, prefix: Prefix | None = None
    ) -> Tensor:
        """Embeddings (N, H) of token ids and mask (N, L), with the template's slots where there is a template."""
        pooled = self._pool(input_ids, attention_mask, slots, prefix=prefix)
        if self.denoise:
            pooled = pooled - self.template_bias(slots.content)
        use_head = self.head is not None and (self.training or self.head_at_inference)
        return self.head(pooled) if use_head else pooled

    def template_bias(self, content: Tensor) -> Tensor:
        """What the template alone gives at its [MASK] (N, H), for sentences of `content` tokens (N,).

        In train mode sentences of one length share one draw of dropout (PromptBERT, section 4.2 and its code).
        """
        lengths, place = content.unique(return_inverse=True)
        ids, index, masks = template_only(self.template, lengths)
        return self._pool(ids, torch.ones_like(ids), Slots(masks, lengths), index=index)[place]

    def _pool(self, input_ids: Tensor, attention_mask: Tensor, slots: Slots | None, **options: Any) -> Tensor:
        pooler = POOLERS[self.pooling]
        hidden = self.encoder(input_ids, attention_mask, all_layers=pooler.needs_all_layers, **options)
        return pooler(hidden, attention_mask, slots)

    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int = 128,
        normalize: bool = False,
        *,
        max_length: int | None = None,
        without: Collection[int] = (),
        show_progress: bool = False,
    ) -> np.ndarray:
        """Embeddings of sentences, float32 (N, H), in the order given; eval mode, no gradient.

        normalize: unit length. max_length: cut texts at so many tokens, special ones included; without it only
        at the end of the position table. Cut texts are counted in one warning. without: token ids that are taken out
        of every text; special tokens stay.
        """
        if batch_size < 1:
            raise UserError(f"batch_size {batch_size} is not at least 1")
        _require_sentences(sentences)
        texts = self._read(sentences, max_length, without)
        embeddings = np.empty((len(texts), self.dimension), dtype=np.float32)
        # By length: a batch is as long as its longest text, and padding costs as much as text.
        order = sorted(range(len(texts)), key=lambda i: -len(texts.ids[i]))
        was_training = self.training
        self.eval()
        try:
            with (
                torch.inference_mode(),
                tqdm(total=len(texts), desc="encode", mininterval=1, disable=not show_progress) as bar,
            ):
                for start in range(0, len(order), batch_size):
                    rows = order[start : start + batch_size]
                    embeddings[rows] = self._encode_batch(texts, rows, normalize)
                    bar.update(len(rows))
        finally:
            self.train(was_training)
        return embeddings

    def _read(self, sentences: Sequence[str], max_length: int | None, without: Collection[int]) -> Rows:
        limit = self.encoder.max_tokens
        wanted = limit if max_length is None else max_length
        least = 3 if self.template is None else self.template.length + 1
        if not least <= wanted <= limit:
            raise UserError(f"max_length {wanted} is not between {least} and the {limit} tokens of this encoder")
        if not len(sentences):
            return Rows([], 0)
        texts = read_rows(self.tokenizer, self.template, sentences, wanted, without)
        if texts.cut and max_length is None:
            logger.warning(
                "%d of %d texts are longer than the %d tokens that the encoder has room for, and were cut",
                texts.cut,
                len(texts),
                wanted,
            )
        return texts

    def _encode_batch(self, texts: Rows, rows: Sequence[int], normalize: bool) -> np.ndarray:
        input_ids, mask, slots = texts.batch(rows, self.tokenizer.pad_token_id)
        slots = None if slots is None else slots.to(self.device)
        embeddings = self(input_ids.to(self.device), mask.to(self.device), slots).float()
        return (F.normalize(embeddings, dim=-1) if normalize else embeddings).cpu().numpy()

    def reading(self) -> dict[str, Any]:
        """How texts are read before the encoder sees them, JSON-ready; None where nothing is done to them."""
        template = self.template
        return {
            "template": None if template is None else str(template.template),
            "final_period": template is not None and template.final_period,
            "denoise": self.denoise,
        }

    def save(self, folder: str | Path) -> None:
        """Write what was trained, a record and the tokenizer; never the frozen backbone (see `dcpcse.folder`)."""
        prompt = self.encoder.prompt
        if prompt is None:
            raise UserError("nothing was trained in this encoder; only encoders with prompts are saved")
        model_folder.write(folder, self.record(), prompt.table(), self._other_trained(), self._peft_config())
        self.tokenizer.save_pretrained(folder)

    def record(self) -> dict[str, Any]:
        """What `dcpcse.json` says of this model: all but the weights that it takes to build it again."""
        head = None
        if self.head is not None:
            head = {"kind": head_name(self.head), "at_inference": self.head_at_inference}
        return {
            "method": self.method,
            "arguments": self.arguments,
            "pooling": self.pooling,
            "head": head,
            "prompt": self.encoder.prompt.record(),
            "position_offset": self.encoder.position_offset,
            "base": self.source.as_dict(),
            "vocabulary": vocabulary_fingerprint(self.tokenizer),
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
        """Load a folder that `save` wrote, in eval mode; nothing has to be repeated.

        base: where the frozen encoder is now, if not where it was; it must be the same one, by fingerprint.
        device: default cuda if there is one. Raises UserError for another base, damaged files, NaN weights,
        missing or extra tensors.
        """
        contents = model_folder.read(folder)
        record = contents.record
        _require_known(folder, record)
        backbone = _load_base(folder, record["base"], base, options)
        if vocabulary_fingerprint(backbone.tokenizer) != record["vocabulary"]:
            raise UserError(f"the tokenizer in {folder} is not the one that was trained with; copy the folder again")
        try:
            model = cls._build(backbone, record)
        except (TypeError, KeyError, RuntimeError) as error:
            raise UserError(f"{folder}: dcpcse.json is damaged ({error}); copy the folder again") from error
        model.load_trained(folder, contents)
        model.requires_grad_(False)
        return model.eval().to(pick_device(device))

    @classmethod
    def _build(cls, backbone: Backbone, record: Mapping[str, Any]) -> "SentenceEncoder":
        head = None if record["head"] is None else HEADS[record["head"]["kind"]](backbone.source.hidden_size)
        return cls(
            Encoder(backbone.model, _build_prompt(record["prompt"]), record["position_offset"]),
            backbone.tokenizer,
            backbone.source,
            pooling=record["pooling"],
            head=head,
            head_at_inference=head is not None and record["head"]["at_inference"],
            method=record["method"],
            arguments=record.get("arguments"),
        )

    def load_trained(self, folder: str | Path, contents: model_folder.Contents | None = None) -> None:
        """Copy the trained weights of a folder into this model, which must have been built alike."""
        contents = contents or model_folder.read(folder)
        prompt = self.encoder.prompt
        shape = tuple(contents.prompts.shape)
        if shape != (prompt.shape.length, prompt.shape.width):
            raise UserError(
                f"{folder}: prompts of shape {shape}; {(prompt.shape.length, prompt.shape.width)} is expected"
            )
        expected = self._other_trained()
        _require_same_tensors(folder, expected, contents.trained)
        with torch.no_grad():
            for name, parameter in expected.items():
                parameter.copy_(contents.trained[name])
            if prompt.projection is None:
                prompt.table.weight.copy_(contents.prompts)
            elif not torch.allclose(prompt.table().cpu(), contents.prompts, atol=1e-4):
                raise UserError(
                    f"{folder}: the prompts are not what the saved projection gives; copy the folder again"
                )

    def _other_trained(self) -> dict[str, Tensor]:
        """Trained tensors besides the plain prompt table, by the names they have in `trained.safetensors`."""
        tensors = {}
        if self.head is not None:
            tensors |= {f"head.{name}": tensor for name, tensor in self.head.state_dict(keep_vars=True).items()}
        if self.encoder.prompt is not None and self.encoder.prompt.projection is not None:
            table = self.encoder.prompt.table.state_dict(keep_vars=True)
            tensors |= {f"prompt.{name}": tensor for name, tensor in table.items()}
        return tensors

    def _peft_config(self) -> dict[str, Any] | None:
        """peft's adapter_config.json where peft alone gives the very same [CLS] vectors, else None."""
        prompt, shape = self.encoder.prompt, self.encoder.prompt.shape
        same = (
            self.source.model_type in PEFT_SAME
            and POOLERS[self.pooling].reduce is POOLERS["cls"].reduce
            and not self.head_at_inference
            and self.encoder.position_offset == shape.length
        )
        if not same:
            return None
        return {
            "peft_type": "PREFIX_TUNING",
            "task_type": "FEATURE_EXTRACTION",
            "inference_mode": True,
            "base_model_name_or_path": self.source.name_or_path,
            "revision": self.source.revision,
            "num_virtual_tokens": prompt.shape.length,
            "token_dim": shape.heads * shape.head_dim,
            "num_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_transformer_submodules": 1,
            "encoder_hidden_size": shape.heads * shape.head_dim,
            "prefix_projection": False,  # the saved table is the projected one
        }


def _require_sentences(sentences: Sequence[str]) -> None:
    """UserError unless it is a sequence of strings, and not one string."""
    if isinstance(sentences, str):
        raise UserError("encode takes a list of sentences and got one string; write encode([text])")
    if not hasattr(sentences, "__getitem__") or isinstance(sentences, Mapping):
        raise UserError(f"encode takes a list of sentences and got a {type(sentences).__name__}; write list(...)")
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise UserError(f"sentence {i} is a {type(sentence).__name__} ({sentence!r:.60}); a string is needed")


def pick_device(device: str | torch.device | None) -> torch.device:
    """The device asked for; by default cuda if there is one. UserError for one that is not there."""
    try:
        picked = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=picked)
        if picked.type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device {str(device)!r} is not to be had here; cpu always is, cuda where torch sees one"
        ) from error
    return picked


def plain_encoder(
    backbone: Backbone,
    pooling: str,
    template: Template | None = None,
    denoise: bool = False,
    final_period: bool = False,
) -> SentenceEncoder:
    """A pretrained encoder as it is, for evaluation; `cls` is the checkpoint's own pooler.

    template, denoise, final_period: see `SentenceEncoder`. Raises UserError for `cls` on a checkpoint without a
    pooler: random weights would give a random score.
    """
    if pooling not in POOLERS:
        raise UserError(f"unknown pooling {pooling!r}; choose one of {sorted(POOLERS)}")
    head = None
    if pooling == "cls":
        if backbone.pooler is None:
            raise UserError(
                f"{backbone.source.name_or_path} has no pretrained pooler, which --pooler cls means on a plain "
                "encoder; choose --pooler cls_before_pooler, avg or another one"
            )
        head = PretrainedPooler(backbone.pooler)
    model = SentenceEncoder(
        Encoder(backbone.model),
        backbone.tokenizer,
        backbone.source,
        pooling=pooling,
        head=head,
        head_at_inference=head is not None,
        template=template,
        denoise=denoise,
        final_period=final_period,
    )
    return model.requires_grad_(False).eval()


class _OtherEncoderError(UserError):
    """There is an encoder, but not the one that the prompts were trained on."""


def _load_base(
    folder: str | Path, recorded: Mapping[str, Any], base: str | None, options: LoadOptions | None
) -> Backbone:
    where = base or recorded["name_or_path"]
    options = options or LoadOptions()
    if base is None and options.revision is None:
        options = replace(options, revision=recorded["revision"])

    def require_same(source: Source) -> None:
        if source.fingerprint != recorded["fingerprint"]:
            raise _OtherEncoderError(
                f"{where} ({source.model_type}, hidden size {source.hidden_size}) is not the encoder that {folder} "
                f"was trained on ({recorded['model_type']}, hidden size {recorded['hidden_size']}, "
                f"{recorded['name_or_path']}): the fingerprints of the weights differ; give that one with base= "
                "(evaluation.py: --base)"
            )

    try:
        return load_backbone(where, tokenizer=str(folder), options=options, require=require_same)
    except UserError as error:
        if base is not None or isinstance(error, _OtherEncoderError):
            raise
        raise UserError(
            f"the frozen encoder of {folder} cannot be loaded from {where!r}; give its place now with base= "
            f"(evaluation.py: --base). {error}"
        ) from error


def _require_known(folder: str | Path, record: Mapping[str, Any]) -> None:
    """UserError for parts that a later version may write in the same format."""
    parts = {"pooling": (record["pooling"], POOLERS), "kind of prompt": (record["prompt"].get("kind"), ["deep"])}
    if record["head"] is not None:
        parts["head"] = (record["head"].get("kind"), HEADS)
    for what, (found, known) in parts.items():
        if found not in known:
            raise UserError(f"{folder} has an unknown {what} {found!r}; this version knows {sorted(known)}")


def _build_prompt(record: Mapping[str, Any]) -> DeepPrompt:
    shape = PromptShape(record["length"], record["layers"], record["heads"], record["head_dim"])
    return DeepPrompt(shape, dropout=record["dropout"], projection=record["projection"])


def _require_same_tensors(folder: str | Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    if missing := set(expected) - set(found):
        raise UserError(f"{folder}: {model_folder.TRAINED} lacks {sorted(missing)}; copy the folder again")
    if extra := set(found) - set(expected):
        raise UserError(f"{folder}: {model_folder.TRAINED} holds {sorted(extra)}, which this model does not have")
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape:
            raise UserError(
                f"{folder}: '{name}' has shape {tuple(found[name].shape)}; {tuple(tensor.shape)} is expected"
            )
