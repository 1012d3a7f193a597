"""A backbone with continuous prompts: token ids → hidden states."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders import prompt_support
from dcpcse.encoders.attention import Prefix
from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.flex_attention import TextsInOneRow
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.prompts import DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.encoders.templates import Slots
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_io import set_dtype


@dataclass(frozen=True)
class EmbeddingEdits:
    """What rows find changed behind the embedding layer.

    zeroed (N, L, 1 or H), boolean: elements that become zero. shift (N, L, H): is added then.
    """

    zeroed: Tensor | None = None
    shift: Tensor | None = None


class Encoder(nn.Module):
    """Backbone with an optional deep prompt and optional shallow ones: token ids → hidden states.

    position_offset: positions by which the text starts late (the published code: the prompt length).
    cls_prompt: one trained vector in the place of the first token's word embedding (D2CSE, section 3).
    tuned: the backbone is trained, and belongs to what is saved.
    Pads are left out of all but attention where the backbone is one of `PACKABLE` (`set_packed` changes that); hidden
    states of real tokens are the same. Raises UserError if the prompts do not reach the output of this backbone.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        prompt: DeepPrompt | None = None,
        position_offset: int = 0,
        *,
        shallow: ShallowPrompt | None = None,
        cls_prompt: ShallowPrompt | None = None,
        tuned: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.prompt = prompt
        self.shallow = shallow
        self.cls_prompt = cls_prompt
        self.tuned = tuned
        self.positions = positions_of(backbone)
        # Prompts take no part in rotation: among rotary positions a shift of the text would change nothing.
        self.position_offset = 0 if self.positions.rotary else position_offset
        self.packable = backbone.config.model_type in prompt_support.PACKABLE
        self.packed = self.packable
        self.in_one_row = False
        if self.packable or prompt is not None:
            prompt_support.use_prefix_attention(backbone)
        if prompt is not None or self.position_offset:
            prompt_support.require_room(backbone, self.max_tokens, self.position_offset)
        if prompt is not None:
            prompt_support.require_prompt_arrives(backbone, prompt.shape)
        if shallow is not None or cls_prompt is not None:
            prompt_support.require_shallow_prompt_arrives(backbone)

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
        """Hidden states (N, L, H): all of them, embedding output first, with `all_layers`, else only the last.

        In float32 or better. Those of pads are zero in a packed encoder, and anything in another one.
        input_ids, attention_mask (N, L). slots: where shallow prompts stand. prefix: one drawn before, for a second
        pass that must see the same prompts; drawn here by default. index (N, L): where in its text each token stands,
        for texts of which a part is left out. condition (N, H): stands at index 0 in the place of what the embedding
        layer gives, no position or type added (DiffCSE). edits: what is changed there besides. as_encoder: False
        for a discriminator's pass, whose [CLS] is the static one. packing: that of the mask, made before; made here by
        default. pads: compute pads as well, as an encoder that is not packed does. Raises UserError if L exceeds the
        positions.
        """
        given = self.inputs(input_ids, slots, index=index, as_encoder=as_encoder)
        prompts = {}
        if self.prompt is not None:
            prompts["prefix"] = self.draw_prefix(input_ids.shape[0]) if prefix is None else prefix
        behind = {"condition": condition, "edits": edits}
        how = {**behind, "all_layers": all_layers, "packing": packing, "pads": pads}
        return self.states(given, attention_mask, prompts, **how)

    def inputs(
        self, input_ids: Tensor, slots: Slots | None = None, *, index: Tensor | None = None, as_encoder: bool = True
    ) -> dict[str, Tensor]:
        """What the backbone is given of rows (N, L) besides mask and prefix, each tensor (N, L, ...).

        See `forward`. UserError if L exceeds the positions.
        """
        if (tokens := input_ids.shape[1]) > self.max_tokens:
            raise UserError(
                f"a text of {tokens} tokens does not fit: the encoder has room for {self.max_tokens} "
                f"(position offset {self.position_offset}); lower --max_seq_length"
            )
        return self._input(input_ids, slots, as_encoder) | self._place(input_ids, index)

    def states(
        self,
        given: Mapping[str, Tensor],
        attention_mask: Tensor,
        prompts: Mapping[str, Any],
        *,
        condition: Tensor | None = None,
        edits: EmbeddingEdits | None = None,
        all_layers: bool = False,
        packing: Packing | None = None,
        pads: bool = False,
    ) -> tuple[Tensor, ...]:
        """The backbone's pass over what `inputs` gave, as `forward` ends; prompts: for `prefix_attention`."""
        packing = self._packing(attention_mask, packing) if self.packed and not pads else None
        laid_out, first = self._laid_out(given, attention_mask, packing)
        if all_layers:
            laid_out["output_hidden_states"] = True
        changes = _changes(condition, first, edits, packing)
        with self._changed(changes) if changes else contextlib.nullcontext():
            output = self.backbone(**laid_out, **prompts)
        states = tuple(output.hidden_states) if all_layers else (output.last_hidden_state,)
        return tuple(_finished(state, packing, attention_mask.shape[1]) for state in states)

    def _laid_out(
        self, given: Mapping[str, Tensor], attention_mask: Tensor, packing: Packing | None
    ) -> tuple[dict[str, Any], Tensor]:
        """What the backbone is given, in rows or packed, and the indices (N,) of first tokens in it, flattened."""
        if packing is None:
            rows, length = attention_mask.shape
            first = torch.arange(rows, device=attention_mask.device) * length
            return {**given, "attention_mask": attention_mask}, first
        packed = {name: packing.pack(tensor) for name, tensor in given.items()}
        one_row = {"one_row": TextsInOneRow(packing)} if self.in_one_row else {}
        return {**packed, "packing": packing, **one_row}, packing.first

    def _packing(self, attention_mask: Tensor, packing: Packing | None) -> Packing | None:
        """None where it would have to be computed inside a compiled graph, which it would break."""
        if packing is None and not torch.compiler.is_compiling():
            return Packing.of(attention_mask)
        return packing

    def _place(self, input_ids: Tensor, index: Tensor | None) -> dict[str, Tensor]:
        """Positions, where the backbone's own count would not give them."""
        if index is not None:
            return {"position_ids": self.positions.at(index, self.position_offset)}
        if self.packed or any(part is not None for part in (self.prompt, self.shallow, self.cls_prompt)):
            return {"position_ids": self.positions.ids(input_ids, self.position_offset)}
        return {}

    def _input(self, input_ids: Tensor, slots: Slots | None, as_encoder: bool) -> dict[str, Tensor]:
        shallow = self.shallow if slots is not None else None
        cls_prompt = self.cls_prompt if as_encoder else None
        if shallow is None and cls_prompt is None:
            return {"input_ids": input_ids}
        embedded = self.backbone.get_input_embeddings()(input_ids)
        if shallow is not None:
            embedded = shallow(embedded, slots.prompts)
        if cls_prompt is not None:
            embedded = cls_prompt(embedded, torch.zeros_like(input_ids[:, :1]))
        return {"inputs_embeds": embedded}

    @contextlib.contextmanager
    def _changed(self, changes: Sequence["Change"]) -> Iterator[None]:
        """For one pass: what the embedding layer gives goes through these changes, one after another."""

        def change(module: nn.Module, args: tuple, embedded: Tensor) -> Tensor:
            for one in changes:
                embedded = one(embedded)
            return embedded

        handle = prompt_support.last_embedding_module(self.backbone).register_forward_hook(change)
        try:
            yield
        finally:
            handle.remove()

    def peft_obstacles(self) -> list[str]:
        """Why peft's prefix tuning would give other hidden states than this encoder; empty where it does not."""
        kind, dtype = self.backbone.config.model_type, self.backbone.dtype
        length = 0 if self.prompt is None else self.prompt.shape.length
        reasons = {
            "it has no deep prompts": self.prompt is None,
            "its encoder was trained too": self.tuned,
            f"peft does not compute {kind} encoders as they are computed here": kind not in prompt_support.PEFT_SAME,
            f"its encoder is kept in {str(dtype).removeprefix('torch.')}": dtype != torch.float32,
            "it has a [CLS] prompt": self.cls_prompt is not None,
            f"its texts start at position {self.position_offset}, and with peft at {length}, the prompt length": (
                length and self.position_offset != length
            ),
        }
        return [reason for reason, there in reasons.items() if there]

    def record(self) -> dict[str, Any]:
        """What `dcpcse.json` holds of the encoder: what it takes to build it again around a backbone."""
        return {
            "prompt": None if self.prompt is None else self.prompt.record(),
            "shallow": None if self.shallow is None else self.shallow.record(),
            "cls_prompt": None if self.cls_prompt is None else self.cls_prompt.record(),
            "position_offset": self.position_offset,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
        }

    @classmethod
    def build(cls, backbone: PreTrainedModel, record: Mapping[str, Any]) -> "Encoder":
        """The encoder of a record, its prompts still without their values.

        UserError for prompts that are not of the backbone's size.
        """
        _require_size(backbone, record)
        return cls(
            backbone,
            None if record["prompt"] is None else _build_prompt(record["prompt"]),
            record["position_offset"],
            shallow=_build_shallow(record["shallow"]),
            cls_prompt=_build_shallow(record.get("cls_prompt")),
            tuned=record["backbone"] is not None,
        )

    def trained(self) -> dict[str, Tensor]:
        """Trained tensors besides the backbone and the plain table of a deep prompt, by name."""
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
    """UserError where the prompts of a record are not of the size that this backbone takes."""
    words = backbone.get_input_embeddings().embedding_dim
    sizes = {part: (record[part]["width"], words) for part in ("shallow", "cls_prompt") if record.get(part)}
    if prompt := record["prompt"]:
        fitting = asdict(PromptShape.fit(backbone.config, prompt["length"]))
        sizes |= {f"prompt.{name}": (prompt[name], size) for name, size in fitting.items()}
    for part, (found, size) in sizes.items():
        if found != size:
            raise UserError(f"{part} is {found}, and the encoder takes {size}")


Change = Callable[[Tensor], Tensor]


def _changes(
    condition: Tensor | None, first: Tensor, edits: EmbeddingEdits | None, packing: Packing | None
) -> Sequence[Change]:
    """What is done to the output of the embedding layer.

    first (N,): indices of the texts' first tokens, where the condition stands, among all tokens, rows flattened.
    """
    changes: list[Change] = []
    if condition is not None:
        changes.append(lambda given: given.flatten(0, 1).index_copy(0, first, condition.to(given)).view_as(given))
    if edits is not None:
        zeroed, shift = (
            tensor if tensor is None or packing is None else packing.pack(tensor)
            for tensor in (edits.zeroed, edits.shift)
        )
        if zeroed is not None:
            changes.append(lambda given: given.masked_fill(zeroed, 0))
        if shift is not None:
            changes.append(lambda given: given + shift.to(given))
    return changes


def _finished(state: Tensor, packing: Packing | None, length: int) -> Tensor:
    """(N, length, H), as poolers, heads and losses take it."""
    state = state if packing is None else packing.unpack(state, length)
    return state.to(torch.promote_types(state.dtype, torch.float32))


def set_frozen_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Keep the weights of frozen encoders and LM heads in a module in this type; what is trained stays as it is."""
    for part in module.modules():
        frozen = part.backbone if isinstance(part, Encoder) else part if isinstance(part, LMHead) else None
        if frozen is not None and not any(weight.requires_grad for weight in frozen.parameters()):
            set_dtype(frozen, dtype)


def set_dropout(model: nn.Module, rate: float) -> None:
    """Let every module that drops anything out in training do so at this rate, be it by a layer or by a number.

    UserError where the encoder was built without a layer of dropout, as its configuration has none.
    """
    for name, module in model.named_modules():
        if rate and isinstance(module, nn.Identity) and "drop" in name.rsplit(".", 1)[-1]:
            raise UserError(
                f"--encoder_dropout {rate}: {name} was built without dropout, as the encoder's configuration says; "
                "give --config_name a configuration with this rate instead"
            )
        if isinstance(module, nn.Dropout):
            module.p = rate
        for attribute, value in list(vars(module).items()):
            if "dropout" in attribute and isinstance(value, float):
                setattr(module, attribute, rate)


def set_packed(module: nn.Module, packed: bool, in_one_row: bool = False) -> None:
    """Let every encoder in a module leave pads out, or compute them.

    in_one_row: leave packed texts in one row for attention too (`dcpcse.encoders.flex_attention`).
    """
    for part in module.modules():
        if isinstance(part, Encoder):
            part.packed = packed and part.packable
            part.in_one_row = in_one_row and part.packed


def _build_shallow(record: Mapping[str, Any] | None) -> ShallowPrompt | None:
    return None if record is None else ShallowPrompt(torch.zeros(record["length"], record["width"]))


def _build_prompt(record: Mapping[str, Any]) -> DeepPrompt:
    shape = PromptShape(record["length"], record["layers"], record["heads"], record["head_dim"])
    return DeepPrompt(shape, dropout=record["dropout"], projection=record["projection"])
