"""Keep frozen weights in half precision while autocast computes with them.

Autocast casts the weight of a linear layer to half precision in every pass. Autocast reuses the result in further
passes only if the weight is trained. Frozen weights do not change, so this module casts them once. Neither autocast
nor this module casts the weights of layer normalisation and of embeddings.

The second half of this module computes all layers of a frozen BERT-like encoder in bfloat16 while its prompts are
trained. One autograd function computes all layers. Autocast computes sums of hidden states and layer normalisation in
float32 and casts the results for every product. Here, hidden states and their gradients are bfloat16 between
operations and float32 within an operation. The backward pass computes only the gradients of hidden states and prompts.
The CPU needs as long to start a kernel as the GPU needs to run it, so each pass starts only about ten kernels per
layer.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import Product, frozen_linear_layers, is_frozen, using_products
from dcpcse.encoders.prompts import SharedPrefix
from dcpcse.utils.private.models import version_of

_KEPT: WeakKeyDictionary[nn.Linear, "_HalfPrecision"] = WeakKeyDictionary()
"""Maps a layer to its product from the last context with `keep`."""


@contextlib.contextmanager
def in_half_precision(
    module: nn.Module, dtype: torch.dtype | None, *, keep: bool = False, whole: bool = False
) -> Iterator[int]:
    """Make the frozen linear layers of a module multiply by copies of their weights in a dtype under autocast.

    Under autocast, the results are bit for bit the same as without the copies. Without autocast, layers use their
    float32 weights. These weights must not change within the context. The copies need half the memory of the float32
    weights. `frozen_linear_layers` describes which layers are frozen.

    Args:
        module: The module.
        dtype: The type to which autocast casts. None: the context does nothing.
        keep: Whether the next context with `keep` may reuse the copies. If the weights have changed by then, that
            context makes new copies.
        whole: Whether one function (`HalfStack`) also computes all frozen layers of each encoder that uses kernels, if
            `dtype` is bfloat16. The results differ from autocast by rounding.

    Yields:
        The number of layers for which this context made copies. For the other layers, it uses the copies of another
        context.
    """
    if dtype is None:
        yield 0
        return

    stacks = [*frozen_stacks(module)] if whole and dtype == HALF else []

    def make(layer: nn.Module) -> Product:
        if not isinstance(layer, nn.Linear):
            return HalfStack(layer)
        product = _KEPT.get(layer) if keep else None
        if product is None or product.made_of != _state(layer, dtype):
            product = _HalfPrecision(layer, dtype)
        if keep:
            _KEPT[layer] = product
        return product

    with using_products([*stacks, *frozen_linear_layers(module)], ("half precision", dtype), make) as layers:
        yield layers


class _HalfPrecision:
    """The product of a linear layer with its weights in half precision. The first use casts the weights.

    `made_of` is the state of the weights when the copy was made.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self.made_of = _state(layer, dtype)
        self._dtype, self._original = dtype, (layer.weight.detach(), layer.bias)

    @functools.cached_property
    def _weights(self) -> list[Tensor | None]:
        with torch.inference_mode(False), torch.no_grad():  # a training pass may use them after `encode`
            return [None if weight is None else weight.to(self._dtype) for weight in self._original]

    def takes(self, input: Tensor) -> bool:
        kind = input.device.type
        return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == self._dtype

    def __call__(self, input: Tensor) -> Tensor:
        return F.linear(input, *self._weights)


def _state(layer: nn.Linear, dtype: torch.dtype) -> object:
    """Return a value that changes with the weights of a layer, except if they are changed through `.data`."""
    if any(weight.is_inference() for weight in layer.parameters()):
        return object()  # inference tensors have no version counter; a new object differs from every earlier state
    return dtype, [(weight.data_ptr(), weight.device, version_of(weight)) for weight in layer.parameters()]


HALF = torch.bfloat16
MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "electra")
"""Model types whose layers are the same as BERT's, with the same names."""


def frozen_stacks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layer stacks (`BertEncoder` in transformers) of those encoders in a module that use Triton kernels.

    The stacks have BERT's structure, are in float32, and are frozen.
    """
    for part in module.modules():
        if isinstance(part, Encoder) and part.by_kernels and part.backbone.config.model_type in MODEL_TYPES:
            config, stack = part.backbone.config, part.backbone.encoder
            plain = config.hidden_act == "gelu" and not config.is_decoder and all(map(_is_plain, stack.layer))
            if plain and is_frozen(stack, (nn.Linear, nn.LayerNorm)):
                yield stack


def _is_plain(layer: nn.Module) -> bool:
    return all(type(part) is nn.Linear for part in _linear_layers(layer))


def _linear_layers(layer: nn.Module) -> list[nn.Module]:
    """Return the linear layers of queries, keys, values and attention output, and the two feed-forward layers."""
    attention = layer.attention.self
    inner = [attention.query, attention.key, attention.value]
    return [*inner, layer.attention.output.dense, layer.intermediate.dense, layer.output.dense]


Prompts = tuple[Tensor, Tensor]
"""Keys and values of the prompts of a layer, each (P, heads, head_dim)."""


class StackPass(NamedTuple):
    """Data that the layers of a `HalfStack` share in a forward pass and its backward pass.

    Args:
        settings: The settings of attention.
        seed: (1,) int64, the seed of the dropout masks of hidden states.
        rates: The two dropout rates of hidden states of each layer.
        save: Whether there will be a backward pass.
    """

    settings: Any
    seed: Tensor
    rates: Sequence[tuple[float, float]]
    save: bool

    def masks(self, layer: int) -> Iterator[dict[str, Any]]:
        """Yield the seed, number and rate of each of the two dropout masks of a layer."""
        for number, rate in enumerate(self.rates[layer]):
            yield {"seed": self.seed, "number": 2 * layer + number, "dropout": rate}


class Linear(NamedTuple):
    """A frozen linear layer that computes x @ transposed + bias. `transposed` is a view of `weight`."""

    bias: Tensor
    weight: Tensor
    transposed: Tensor


class HalfLayer:
    """The operations of one frozen layer on packed tokens (T, H), in bfloat16.

    Args:
        number: Number of the layer, counted from 0.
        kernels: The functions of `prefix_kernel` and `layer_kernels`.
    """

    def __init__(self, layer: nn.Module, number: int, kernels: Any) -> None:
        self.kernels = kernels
        *inputs, outer, up, down = ((part.weight.detach(), part.bias.detach()) for part in _linear_layers(layer))
        inputs = [torch.cat(parts) for parts in zip(*inputs, strict=True)]
        parts = [(weight.to(HALF), bias.to(HALF)) for weight, bias in (inputs, outer, up, down)]
        self.inputs, self.outer, self.up, self.down = (Linear(bias, weight, weight.t()) for weight, bias in parts)
        norms = layer.attention.output.LayerNorm, layer.output.LayerNorm
        self.norms = [(norm.weight.detach(), norm.bias.detach(), norm.eps) for norm in norms]
        self.dropouts = layer.attention.output.dropout, layer.output.dropout
        self.heads = layer.attention.self.num_attention_heads
        self.number = number

    def forward(self, states: Tensor, prompts: Prompts | None, run: StackPass) -> tuple[Tensor, list[Tensor]]:
        """Return the hidden states after the layer, and the tensors that the backward pass needs.

        Args:
            states: Hidden states (T, H) before the layer.
            prompts: Keys and values of the layer's prompts, or None.
            run: The data of the forward pass.
        """
        kernels = self.kernels
        mask, last_mask = run.masks(self.number)
        inputs = torch.addmm(self.inputs.bias, states, self.inputs.transposed)
        context, sums = kernels.run_forward(self._parts(inputs), prompts, run.settings, self.number)
        narrow = torch.addmm(self.outer.bias, context.flatten(1), self.outer.transposed)
        middle, *saved = kernels.add_norm(narrow, states, *self.norms[0], **mask, save=run.save)
        wide = torch.addmm(self.up.bias, middle, self.up.transposed)
        narrow = torch.addmm(self.down.bias, F.gelu(wide), self.down.transposed)
        output, *last_kept = kernels.add_norm(narrow, middle, *self.norms[1], **last_mask, save=run.save)
        return output, [inputs, context, sums, *saved, wide, *last_kept]

    def backward(
        self,
        gradient: Tensor,
        prompts: Prompts | None,
        run: StackPass,
        saved: Sequence[Tensor],
        parts: Tensor | None,
        wanted: bool,
    ) -> Tensor | None:
        """Return the gradient (T, H) of the hidden states before the layer if `wanted`, else None.

        Args:
            gradient: The gradient (T, H) of the hidden states after the layer.
            saved: The tensors that `forward` returned for the backward pass.
            parts: Tensor to which the gradient of the prompts is written, as in `run_backward`. None: it is not
                computed.
        """
        kernels = self.kernels
        mask, last_mask = run.masks(self.number)
        inputs, context, sums, *saved, wide, normalized, deviations = saved
        narrow, middle = kernels.add_norm_backward(gradient, normalized, deviations, self.norms[1][0], **last_mask)
        middle.addmm_(torch.ops.aten.gelu_backward(narrow @ self.down.weight, wide), self.up.weight)
        narrow, states = kernels.add_norm_backward(middle, *saved, self.norms[0][0], **mask)
        of_context = (narrow @ self.outer.weight).view_as(context)
        gradients = torch.empty_like(inputs)
        args = self._parts(inputs), prompts, context, sums, of_context
        kernels.run_backward(*args, run.settings, self.number, self._parts(gradients), parts)
        return states.addmm_(gradients, self.inputs.weight) if wanted else None

    def _parts(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor (T, 3 · H) into queries, keys and values, each (T, heads, head_dim)."""
        return inputs.view(len(inputs), 3, self.heads, -1).unbind(1)


class HalfStack:
    """Computes a stack of frozen layers under autocast to bfloat16, from copies of its weights.

    The copies are not used in inference mode (as in `encode`), because autocast with the layers' own weights is more
    precise. They are also not used for batches with padding, for the hidden states of all layers and for activation
    checkpointing.
    """

    def __init__(self, stack: nn.Module) -> None:
        kernels = import_kernels()
        self.layers = [HalfLayer(layer, number, kernels) for number, layer in enumerate(stack.layer)]
        self.first = stack.layer[0]

    def takes(
        self,
        hidden: Tensor,
        *args: Any,
        kernels: Any = None,
        prefix: Any = None,
        output_hidden_states: bool = False,
        **kwargs: Any,
    ) -> bool:
        kind, first = hidden.device.type, self.first
        half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == HALF
        checkpointing = first.gradient_checkpointing and first.training
        others = output_hidden_states or checkpointing or torch.is_inference_mode_enabled()
        return half and kernels is not None and isinstance(prefix, SharedPrefix | None) and not others

    def __call__(
        self, hidden: Tensor, *args: Any, kernels: Any, prefix: SharedPrefix | None = None, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        hidden, attention = hidden.squeeze(0).to(HALF), self.first.attention.self
        table = None if prefix is None else prefix.table
        run = StackPass(
            kernels.settings(hidden, prefix, None, attention.scaling, _rate(attention.dropout)),
            torch.randint(2**62, (1,), device=hidden.device),
            [tuple(map(_rate, layer.dropouts)) for layer in self.layers],
            torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (hidden, table)),
        )
        with torch.autocast(hidden.device.type, enabled=False):
            output = _Stack.apply(hidden, table, self, run)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=output.unsqueeze(0))

    def prompts(self, table: Tensor | None) -> list[Prompts | None]:
        """Return the keys and values of each layer, which are views of the table (P, 2 · layers · H)."""
        if table is None:
            return [None] * len(self.layers)
        parts = table.unflatten(1, (2 * len(self.layers), self.layers[0].heads, -1)).unbind(1)
        return [*zip(parts[::2], parts[1::2], strict=True)]


class _Stack(torch.autograd.Function):
    """Maps embeddings (T, H) and the table of prompts (P, width) to the hidden states of the last layer."""

    @staticmethod
    def forward(ctx: FunctionCtx, states: Tensor, table: Tensor | None, stack: HalfStack, run: StackPass) -> Tensor:
        saved = []
        for layer, prompts in zip(stack.layers, stack.prompts(table), strict=True):
            states, of_layer = layer.forward(states, prompts, run)
            if run.save:
                saved += of_layer
        ctx.save_for_backward(table, *saved)
        ctx.stack, ctx.run = stack, run
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (table, *saved), layers, run = ctx.saved_tensors, ctx.stack.layers, ctx.run
        prompts, parts = ctx.stack.prompts(table), None
        size = len(saved) // len(layers)
        if ctx.needs_input_grad[1]:
            context, keys = saved[1], prompts[0][0]
            count = run.settings.prompt_parts(context, keys)
            shape = (count, len(table), 2 * len(layers), *keys.shape[1:])
            parts = torch.empty(shape, dtype=torch.float32, device=table.device)
        gradient = gradient.contiguous()
        for number in reversed(range(len(layers))):
            gradient = layers[number].backward(
                gradient,
                prompts[number],
                run,
                saved[number * size : (number + 1) * size],
                None if parts is None else parts[:, :, 2 * number : 2 * number + 2],
                wanted=number > 0 or ctx.needs_input_grad[0],
            )
        return gradient, None if parts is None else parts.sum(0).view_as(table).to(table.dtype), None, None


def import_kernels() -> Any:
    """Return the functions of `prefix_kernel` and `layer_kernels` as attributes. Their import requires Triton."""
    from dcpcse.encoders.layer_kernels import add_norm, add_norm_backward
    from dcpcse.encoders.prefix_kernel import run_backward, run_forward

    return SimpleNamespace(
        run_forward=run_forward, run_backward=run_backward, add_norm=add_norm, add_norm_backward=add_norm_backward
    )


def _rate(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0
