"""The `Encoder`: a backbone with continuous prompts, which maps token ids to hidden states."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders import prompt_support
from dcpcse.encoders.attention import ForwardPass, Prefix
from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.lora import Lora, lora_weights, merged, with_lora
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.positions import DECODERS, adds_to_scores, positions_of
from dcpcse.encoders.prompts import PROMPT_KINDS, DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.encoders.storage.manifest import PROMPT_KEY
from dcpcse.encoders.templates import Slots
from dcpcse.utils.errors import OptionError, UserError, spell


@dataclass(frozen=True)
class EmbeddingEdits:
    """Changes to the output (N, L, H) of the embedding layer, for N texts of L tokens.

    Args:
        zeroed: Boolean (N, L, 1) or (N, L, H), true at the elements to set to zero.
        shift: (N, L, H), values to add after elements are set to zero.
    """

    zeroed: Tensor | None = None
    shift: Tensor | None = None


class Encoder(nn.Module):
    """A backbone with optional prompts and an optional LoRA adapter, which maps token ids to hidden states.

    If dcpcse supports it for this type of backbone, padding is skipped everywhere except in attention. `set_packed`
    switches this off and on. The hidden states of real tokens are the same in both cases.

    Args:
        backbone: The pretrained encoder.
        prompt: Deep prompts. None: no deep prompts.
        position_offset: Number of positions by which the text is shifted. In DCPCSE's published code, this is the
            prompt length.
        shallow: Trained vectors at the slots of a template. None: no such vectors.
        cls_prompt: A trained vector that replaces the word embedding of the first token (D2CSE, section 3). None: the
            word embedding.
        lora: Settings of a LoRA adapter. The adapter is added to a copy of the backbone with the same, shared weights
            (`dcpcse.encoders.lora`). None: no adapter.
        tuned: Whether the backbone is trained. A trained backbone is saved with the model.
        check_prompts: Whether to check that the prompts affect the output. The check would fail for an encoder that
            was destroyed in training, where no input affects the output. Without the check, this encoder can be
            loaded.

    Raises:
        UserError: If the prompts do not affect the output of this backbone.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        prompt: DeepPrompt | None = None,
        position_offset: int = 0,
        *,
        shallow: ShallowPrompt | None = None,
        cls_prompt: ShallowPrompt | None = None,
        lora: Lora | None = None,
        tuned: bool = False,
        check_prompts: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone = backbone if lora is None else with_lora(backbone, lora)
        self.prompt = prompt
        self.shallow = shallow
        self.cls_prompt = cls_prompt
        self.lora = lora
        self.tuned = tuned
        self.positions = positions_of(backbone)
        self.position_offset = 0 if self.positions.rotary else position_offset
        self.decoder = backbone.config.model_type in DECODERS
        self.packable = backbone.config.model_type in prompt_support.PACKABLE
        self.packed = self.packable
        self.by_kernels = False
        if self.packable or prompt is not None:
            prompt_support.use_prefix_attention(backbone)
        if prompt is not None:
            prompt_support.number_layers(backbone)
        if prompt is not None or self.position_offset:
            prompt_support.require_room(backbone, self.max_tokens, self.position_offset)
        if check_prompts and prompt is not None:
            prompt_support.require_prompt_arrives(backbone, prompt.shape)
        if check_prompts and (shallow is not None or cls_prompt is not None):
            prompt_support.require_shallow_prompt_arrives(backbone)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a text, including special tokens, for which the encoder has positions."""
        return self.positions.room(self.position_offset)

    @property
    def dtype_name(self) -> str:
        """Name of the type of the backbone's weights, such as "float32"."""
        return str(self.backbone.dtype).removeprefix("torch.")

    @property
    def uses_kernels(self) -> bool:
        """Whether Triton kernels compute attention over packed texts, given the current device and autocast."""
        if not self.by_kernels:
            return False
        from dcpcse.encoders import prefix_kernel  # imports Triton, which may be missing

        kind = self.backbone.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.backbone.dtype
        shape = PromptShape.fit(self.backbone.config, 0) if self.prompt is None else self.prompt.shape
        return prefix_kernel.supports(kind, dtype, shape.head_dim, shape.length)

    def draw_prefix(self, rows: int) -> Prefix | None:
        """Return the prefix (keys and values of the prompts) for `rows` sequences, with separate dropout for each."""
        if self.prompt is None:
            return None
        return (self.prompt.for_kernels if self.uses_kernels else self.prompt)(rows, self.backbone)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        slots: Slots | None = None,
        prefix: Prefix | None = None,
        index: Tensor | None = None,
        condition: Tensor | None = None,
        edits: EmbeddingEdits | None = None,
        as_encoder: bool = True,
        all_layers: bool = False,
        packing: Packing | None = None,
        pads: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return the hidden states (N, L, H) of the last layer for N texts of L tokens, as a tuple of one tensor.

        All tensors are float32 or wider. If the encoder skips padding (`set_packed`), hidden states of padding are
        zero. Otherwise, they are undefined.

        Args:
            input_ids: Token ids (N, L).
            attention_mask: (N, L), 1 for tokens and 0 for padding.
            slots: Indices of the shallow prompts.
            prefix: The prefix from `draw_prefix`, for several calls with the same prompt dropout. None: a new prefix.
            index: (N, L), the index of each token in the complete text, if parts of texts are left out. None: texts
                are complete.
            condition: (N, H), vectors that replace the output of the embedding layer at index 0. No position or type
                embedding is added to them (DiffCSE).
            edits: Changes to the output of the embedding layer, made after `condition` is inserted.
            as_encoder: Whether to use the trained [CLS] prompt. If the encoder is used as discriminator (DiffCSE), it
                is False, and the original embedding of [CLS] is used.
            all_layers: Whether to return a longer tuple: the output of the embedding layer and the hidden states of
                all layers.
            packing: The packing of the mask, if it is already computed. None: it is computed here.
            pads: Whether to compute hidden states of padding too, as in an encoder that is not packed.

        Raises:
            UserError: If L exceeds the number of positions.
        """
        if index is None and self.decoder:  # padding may precede the text
            index = (attention_mask.cumsum(1) - 1).clamp(min=0)
        inputs = self.inputs(input_ids, slots, index=index, as_encoder=as_encoder)
        prompts = {}
        if self.prompt is not None:
            prompts["prefix"] = self.draw_prefix(input_ids.shape[0]) if prefix is None else prefix
        behind = {"condition": condition, "edits": edits}
        how = {**behind, "all_layers": all_layers, "packing": packing, "pads": pads}
        return self.states(inputs, attention_mask, prompts, **how)

    def inputs(
        self, input_ids: Tensor, slots: Slots | None = None, *, index: Tensor | None = None, as_encoder: bool = True
    ) -> dict[str, Tensor]:
        """Return the backbone's inputs except the mask and the prefix. Each tensor is (N, L, ...).

        Args:
            input_ids, slots, index, as_encoder: As in `forward`.

        Raises:
            UserError: If L exceeds the number of positions.
        """
        if (tokens := input_ids.shape[1]) > self.max_tokens:
            raise UserError(
                f"a text of {tokens} tokens is too long: the encoder has room for {self.max_tokens} (position offset "
                f"{self.position_offset}); lower {spell('max_seq_length')}"
            )
        return self._token_inputs(input_ids, slots, as_encoder) | self._position_ids(input_ids, index)

    def states(
        self,
        inputs: Mapping[str, Tensor],
        attention_mask: Tensor,
        prompts: Mapping[str, Any],
        *,
        condition: Tensor | None = None,
        edits: EmbeddingEdits | None = None,
        all_layers: bool = False,
        packing: Packing | None = None,
        pads: bool = False,
    ) -> tuple[Tensor, ...]:
        """Run the backbone on the tensors that the method `inputs` returned. Return hidden states like `forward`.

        Args:
            inputs: The tensors that the method `inputs` returned.
            attention_mask: As in `forward`.
            prompts: Keyword arguments of `prefix_attention`, such as `prefix`.
            condition, edits, all_layers, packing, pads: As in `forward`.
        """
        packing = self._packing(attention_mask, packing) if self.packed and not pads else None
        backbone_inputs, first = self._backbone_inputs(inputs, attention_mask, packing)
        if all_layers:
            backbone_inputs["output_hidden_states"] = True
        if self.decoder:
            backbone_inputs["use_cache"] = False
        if packing is not None or "prefix" in prompts:
            backbone_inputs["forward_pass"] = ForwardPass()
        changes = _changes(condition, first, edits, packing)
        with self._embeddings_changed(changes) if changes else contextlib.nullcontext():
            output = self.backbone(**backbone_inputs, **prompts)
        states = tuple(output.hidden_states) if all_layers else (output.last_hidden_state,)
        return tuple(_unpacked(state, packing, attention_mask.shape[1]) for state in states)

    def _backbone_inputs(
        self, tensors: Mapping[str, Tensor], attention_mask: Tensor, packing: Packing | None
    ) -> tuple[dict[str, Any], Tensor]:
        """Return the backbone's inputs, padded or packed, and the flattened index (N,) of each text's first token."""
        if packing is None:
            rows, length = attention_mask.shape
            first = torch.arange(rows, device=attention_mask.device) * length
            return {**tensors, "attention_mask": attention_mask}, first
        packed = {name: packing.pack(tensor) for name, tensor in tensors.items()}
        inputs = {**packed, "packing": packing}
        if self.decoder:  # transformers would make a mask of the whole row, but returns four dimensions as they are
            inputs["attention_mask"] = packing.real[:, None, None]
        if self.uses_kernels:
            from dcpcse.encoders.prefix_kernel import KernelAttention

            inputs["kernels"] = KernelAttention(packing)
        return inputs, packing.first

    def _packing(self, attention_mask: Tensor, packing: Packing | None) -> Packing | None:
        """Return the given packing, or compute it.

        Inside a compiled graph, return None instead of computing the packing, which would break the graph.
        """
        if packing is None and not torch.compiler.is_compiling():
            return Packing.of(attention_mask)
        return packing

    def _position_ids(self, input_ids: Tensor, index: Tensor | None) -> dict[str, Tensor]:
        """Return position ids as a keyword argument if the backbone's default ids would be wrong; otherwise {}."""
        if index is not None:
            return {"position_ids": self.positions.at(index, self.position_offset)}
        if self.packed or any(part is not None for part in (self.prompt, self.shallow, self.cls_prompt)):
            return {"position_ids": self.positions.ids(input_ids, self.position_offset)}
        return {}

    def _token_inputs(self, input_ids: Tensor, slots: Slots | None, as_encoder: bool) -> dict[str, Tensor]:
        shallow = self.shallow if slots is not None else None
        cls_prompt = self.cls_prompt if as_encoder else None
        if shallow is None and cls_prompt is None:
            return {"input_ids": input_ids}
        embedded = self.backbone.get_input_embeddings()(input_ids)
        if shallow is not None:
            embedded = shallow(embedded, slots.on_host.prompts)
        if cls_prompt is not None:
            embedded = cls_prompt(embedded, torch.zeros(input_ids.shape[0], 1, dtype=torch.long))
        return {"inputs_embeds": embedded}

    @contextlib.contextmanager
    def _embeddings_changed(self, changes: Sequence["Change"]) -> Iterator[None]:
        """Apply the changes, in order, to the output of the embedding layer within the context."""

        def change(module: nn.Module, args: tuple, embedded: Tensor) -> Tensor:
            for transform in changes:
                embedded = transform(embedded)
            return embedded

        handle = prompt_support.last_embedding_module(self.backbone).register_forward_hook(change)
        try:
            yield
        finally:
            handle.remove()

    def peft_obstacles(self) -> list[str]:
        """Return the reasons why peft would compute different hidden states; an empty list if there are none."""
        kind, dtype = self.backbone.config.model_type, self.dtype_name
        length = 0 if self.prompt is None else self.prompt.shape.length
        # With peft, tokens do not attend to prompts outside of the window of a layer.
        window = getattr(self.backbone.config, "sliding_window", None)
        reasons = {
            "it has no deep prompts and no LoRA adapter": self.prompt is None and self.lora is None,
            "its encoder was trained too": self.tuned,
            f"peft does not compute {kind} encoders with prompts as dcpcse does": (
                length and (window or kind not in prompt_support.PEFT_SAME)
            ),
            f"its encoder has the dtype {dtype}": dtype != "float32",
            "it has a [CLS] prompt": self.cls_prompt is not None,
            f"its texts start at position {self.position_offset}, and with peft at {length}, the prompt length": (
                length and self.position_offset != length
            ),
        }
        return [reason for reason, applies in reasons.items() if applies]

    def peft_adapter(self, base: str, revision: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the contents of peft's files for LoRA or deep prompts.

        The files are adapter_config.json (a dict) and adapter_model.safetensors (tensors by name).

        Args:
            base: Folder or hub id of the frozen encoder.
            revision: Revision of the encoder on the hub.
        """
        if self.lora is not None:
            return self.lora.peft_config(base, revision), lora_weights(self.backbone)
        prompt = self.prompt.as_keys_values(self.backbone)
        return prompt_support.peft_config(prompt.shape, base, revision), {PROMPT_KEY: prompt.table()}

    def merged(self) -> "Encoder":
        """Return an encoder with the LoRA adapter added to a copy of its weights, which are then saved with the model.

        Trained input vectors are shared with this encoder, not copied.
        """
        return Encoder(merged(self.backbone), shallow=self.shallow, tuned=True)

    def record(self) -> dict[str, Any]:
        """Return the encoder's entries in `dcpcse.json`, from which `build` rebuilds the encoder around a backbone."""
        return {
            **({} if self.lora is None else {"lora": self.lora.record()}),
            "prompt": None if self.prompt is None else self.prompt.record(),
            "shallow": None if self.shallow is None else self.shallow.record(),
            "cls_prompt": None if self.cls_prompt is None else self.cls_prompt.record(),
            "position_offset": self.position_offset,
            "dtype": self.dtype_name,
        }

    @classmethod
    def build(cls, backbone: PreTrainedModel, record: Mapping[str, Any]) -> "Encoder":
        """Build the encoder that a record describes. The values of its prompts are loaded later.

        Args:
            backbone: The pretrained encoder.
            record: The contents of `dcpcse.json`.

        Raises:
            UserError: If the sizes of the prompts do not match the backbone.
        """
        _require_size(backbone, record)
        return cls(
            backbone,
            None if record["prompt"] is None else _build_prompt(record["prompt"]),
            record["position_offset"],
            shallow=_build_shallow(record["shallow"]),
            cls_prompt=_build_shallow(record.get("cls_prompt")),
            lora=None if record.get("lora") is None else Lora.of(record["lora"]),
            tuned=record["backbone"] is not None,
            check_prompts=record["backbone"] is None,
        )

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of each trained part by the name of the part.

        The names are prompt, shallow, cls_prompt, lora and backbone.

        Parts that the encoder does not have are left out.
        """
        modules = {"prompt": self.prompt, "shallow": self.shallow, "cls_prompt": self.cls_prompt}
        modules["backbone"] = self.backbone if self.tuned else None
        parts = {part: module.state_dict(keep_vars=True) for part, module in modules.items() if module is not None}
        return parts if self.lora is None else {**parts, "lora": lora_weights(self.backbone)}

    def trained(self) -> dict[str, Tensor]:
        """Return the trained tensors by their names in `trained.safetensors`.

        Tensors that have files of their own are left out: the backbone, a LoRA adapter and a table of deep prompts
        that no projection computes.
        """
        tensors = {}
        if self.prompt is not None and self.prompt.projection is not None:
            table = self.prompt.table.state_dict(keep_vars=True)
            tensors |= {f"prompt.{name}": tensor for name, tensor in table.items()}
        if self.shallow is not None:
            tensors["shallow.weight"] = self.shallow.weight
        if self.cls_prompt is not None:
            tensors["cls_prompt.weight"] = self.cls_prompt.weight
        return tensors


def _require_size(backbone: PreTrainedModel, record: Mapping[str, Any]) -> None:
    """Raise UserError if the sizes of a record's prompts do not match the backbone."""
    embedding_dim = backbone.get_input_embeddings().embedding_dim
    sizes = {part: (record[part]["width"], embedding_dim) for part in ("shallow", "cls_prompt") if record.get(part)}
    if prompt := record["prompt"]:
        fitting = asdict(PromptShape.fit(backbone.config, prompt["length"]))
        sizes |= {f"prompt.{name}": (prompt[name], size) for name, size in fitting.items()}
    for part, (recorded, size) in sizes.items():
        if recorded != size:
            raise UserError(f"expected {part} {size} for this encoder but found {recorded}")


Change = Callable[[Tensor], Tensor]


def _changes(
    condition: Tensor | None, first: Tensor, edits: EmbeddingEdits | None, packing: Packing | None
) -> Sequence[Change]:
    """Return the functions that apply the condition and the edits to the output of the embedding layer.

    Args:
        first: (N,), flattened indices of the first tokens of the texts, where the condition is inserted.
    """
    changes: list[Change] = []
    if condition is not None:
        changes.append(lambda embeds: embeds.flatten(0, 1).index_copy(0, first, condition.to(embeds)).view_as(embeds))
    if edits is not None:
        zeroed, shift = (
            tensor if tensor is None or packing is None else packing.pack(tensor)
            for tensor in (edits.zeroed, edits.shift)
        )
        if zeroed is not None:
            changes.append(lambda embeds: embeds.masked_fill(zeroed, 0))
        if shift is not None:
            changes.append(lambda embeds: embeds + shift.to(embeds))
    return changes


def _unpacked(state: Tensor, packing: Packing | None, length: int) -> Tensor:
    """Return a hidden state as (N, length, H) in float32 or wider, as poolers, heads and losses need it."""
    state = state if packing is None else packing.unpack(state, length)
    return state.to(torch.promote_types(state.dtype, torch.float32))


def set_frozen_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the frozen weights of encoders and LM heads in a module to a dtype. Trained weights are unchanged.

    Args:
        module: The module.
        dtype: The dtype.
    """
    for part in module.modules():
        frozen = part.backbone if isinstance(part, Encoder) else part if isinstance(part, LMHead) else None
        for weight in () if frozen is None else frozen.parameters():
            if not weight.requires_grad:
                weight.data = weight.data.to(dtype)


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the dropout rate in all dropout layers and in all modules with an attribute for the rate.

    Args:
        model: The model.
        rate: The rate.

    Raises:
        UserError: If a module was built without a dropout layer because the configuration has none.
    """
    for name, module in model.named_modules():
        if rate and isinstance(module, nn.Identity) and "drop" in name.rsplit(".", 1)[-1]:
            raise OptionError(
                "encoder_dropout",
                rate,
                f"{name} has no dropout layer because of the encoder's configuration",
                f"set the rate in the configuration given with {spell('config_name')} instead",
            )
        if isinstance(module, nn.Dropout):
            module.p = rate
        for attribute, value in list(vars(module).items()):
            if "dropout" in attribute and isinstance(value, float):
                setattr(module, attribute, rate)


def set_packed(module: nn.Module, packed: bool, by_kernels: bool = False) -> None:
    """Set whether the encoders in a module skip padding (packed) or compute hidden states of padding.

    Args:
        module: The module.
        packed: Whether to skip padding.
        by_kernels: Whether Triton kernels compute attention over packed texts, where they support the inputs
            (`dcpcse.encoders.prefix_kernel`).
    """
    for part in module.modules():
        if isinstance(part, Encoder):
            part.packed = packed and part.packable
            other_scores = part.decoder or adds_to_scores(part.backbone)
            part.by_kernels = by_kernels and part.packed and not other_scores


def _build_shallow(record: Mapping[str, Any] | None) -> ShallowPrompt | None:
    return None if record is None else ShallowPrompt(torch.zeros(record["length"], record["width"]))


def _build_prompt(record: Mapping[str, Any]) -> DeepPrompt:
    shape = PromptShape(record["length"], record["layers"], record["heads"], record["head_dim"])
    return PROMPT_KINDS[record["kind"]](shape, dropout=record["dropout"], projection=record["projection"])
