"""The training step: a module that computes the loss terms of a batch with all views."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.data.collator import edits_of, slots_of
from dcpcse.data.examples import COUNTS_KEY
from dcpcse.data.views import present_views
from dcpcse.encoders.encoder import EmbeddingEdits
from dcpcse.encoders.packing import Packing
from dcpcse.losses import EncodedBatch
from dcpcse.losses.base import with_precomputed
from dcpcse.methods import Method
from dcpcse.training.gradient_cache import Replay
from dcpcse.utils.errors import UserError


def require_scalar(term: str, value: Any) -> Tensor:
    """Return the value of a term if it is a scalar tensor; raise UserError otherwise.

    Args:
        term: Name of the term, for the message.
        value: The value.
    """
    if isinstance(value, Tensor) and not value.dim():
        return value
    description = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.40}"
    raise UserError(
        f"the term {term} of the loss is {description}; let the loss return a scalar tensor, such as a mean"
    )


class TrainingStep(nn.Module):
    """Encodes a batch and computes its unweighted losses (terms) by name. DDP and torch.compile wrap this module."""

    # The terms are means over the batch, so the Trainer divides them by the number of accumulation steps.
    accepts_loss_kwargs = False

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.model = method.model
        self.losses = nn.ModuleDict({name: term.loss for name, term in method.terms.items()})
        self.terms = dict(method.terms)
        self.view_names = [view.name for view in method.views]
        self.adversary = method.adversary
        self.guides = nn.ModuleDict(method.guides)
        persistent = {id(tensor) for loss_fn in method.losses for tensor in loss_fn.persistent_state().values()}
        # Every process computes the same values, so DDP need not broadcast them before each pass.
        self._ddp_params_and_buffers_to_ignore = [name for name, b in self.named_buffers() if id(b) in persistent]
        of_guides = (*self.guides.named_parameters(prefix="guides"), *self.guides.named_buffers(prefix="guides"))
        self._ddp_params_and_buffers_to_ignore += [name for name, _ in of_guides]

    def forward(self, replay: Replay | None = None, **tensors: Any) -> dict[str, Tensor]:
        """Return the scalar loss terms of a batch from `ViewCollator`, by name.

        Args:
            replay: Results of the first pass of the gradient cache if the batch is a chunk in the second pass, or
                None.
            tensors: The batch.
        """
        batch = self.encode(**tensors)
        if replay is not None:
            return {name: require_scalar(name, t) for name, t in replay.terms(batch, self.losses).items()}
        return {name: require_scalar(name, o(with_precomputed(batch, o))) for name, o in self.losses.items()}

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        packing: Packing | None = None,
        **others: Any,
    ) -> EncodedBatch:
        """Encode a batch for the losses.

        Args:
            input_ids: Token ids (B, V, L).
            attention_mask: Mask (B, V, L): 1 for tokens and 0 for padding.
            packing: The indices of all tokens except padding. None: they are computed.
            others: Other contents of the batch, such as labels and the slots of templates.

        Raises:
            UserError: If sentences are given instead of token ids.
        """
        if not isinstance(attention_mask, Tensor):
            raise UserError(
                "trainer.model takes tokenised batches and returns losses; encode sentences with "
                "trainer.sentence_encoder.encode(sentences)"
            )
        ids, mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)  # (B·V, L): one pass for all views
        prefix, slots = self.model.encoder.draw_prefix(len(ids)), slots_of(others)
        names = present_views(self.view_names, input_ids.shape[1])

        def encode_edited(edits: EmbeddingEdits | None) -> EncodedBatch:
            drawn = {"prefix": prefix, "packing": packing, "edits": edits}
            pooled, embeddings = (
                dict(zip(names, vectors.unflatten(0, input_ids.shape[:2]).unbind(1), strict=True))
                for vectors in self.model.pool_and_embed(ids, mask, slots, **drawn)
            )  # view → (B, H)
            return EncodedBatch(
                self.model,
                input_ids,
                attention_mask,
                embeddings,
                prefix,
                slots,
                packing,
                others,
                pooled,
                guides=dict(self.guides.items()),
                counts=others.get(COUNTS_KEY),
            )

        edits = edits_of(others)
        return encode_edited(edits if self.adversary is None else self._step_uphill(encode_edited, edits, ids))

    @torch.enable_grad()  # the first pass of the gradient cache runs without gradients
    def _step_uphill(
        self, encode: Callable[[EmbeddingEdits], EncodedBatch], edits: EmbeddingEdits | None, ids: Tensor
    ) -> EmbeddingEdits:
        """Compute the adversary's steps by a forward and a backward pass; return the edits with these as `shift`."""
        edits, loss_fn = edits or EmbeddingEdits(), self.losses[self.adversary.term]
        weight = self.model.encoder.backbone.get_input_embeddings().weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        still = torch.zeros(*ids.shape, self.model.dimension, device=ids.device, dtype=dtype, requires_grad=True)
        batch = encode(replace(edits, shift=still))
        names = list(batch.embeddings)
        # No mean over processes or chunks is needed: the gradient is normalised to unit length.
        (gradient,) = torch.autograd.grad(loss_fn.mean(batch, loss_fn.sample(batch)), still)
        uphill = self.adversary.epsilon * F.normalize(gradient, dim=-1).unflatten(0, (-1, len(names)))
        shift = torch.zeros_like(uphill)
        for view, other in self.adversary.views.items():
            shift[:, names.index(view)] = uphill[:, names.index(other)]
        return replace(edits, shift=shift.flatten(0, 1))

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        """Recompute activations in the backward pass, including the activations of the prompts.

        Args:
            activation_checkpointing_kwargs: As in transformers.
            others: As in transformers.

        Raises:
            UserError: If `use_reentrant` is set, since reentrant checkpointing computes no gradients if the embeddings
                are frozen.
        """
        kwargs = dict(activation_checkpointing_kwargs or {})
        if kwargs.setdefault("use_reentrant", False):
            raise UserError(
                "gradient checkpointing with use_reentrant=True drops the prompts' gradient; leave use_reentrant out"
            )
        backbone = self.model.encoder.backbone
        if hasattr(backbone, "activation_checkpointing_enable"):
            backbone.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs, **others)
        else:
            backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **others: Any
    ) -> None:
        """Call `activation_checkpointing_enable`; transformers before version 5.20 uses this name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **others)
