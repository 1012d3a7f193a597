"""Conditional replaced-token detection: predict which tokens of a sentence were replaced (D2CSE and DiffCSE)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.data.collator import ON_HOST, OnHost
from dcpcse.data.corrupted_corpus import CORRUPTED
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.packing import Packing
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import replaced_token_ce, replaced_token_count
from dcpcse.losses.generator import Corruption
from dcpcse.utils.devices import send
from dcpcse.utils.distributed import all_reduce_max


class ReplacedTokenDetection(PerRowLoss):
    """Loss of a discriminator that detects the replaced tokens of a corrupted sentence.

    The sentence embedding replaces the [CLS] embedding in the discriminator's input. The gradient flows through the
    sentence embedding into the encoder, so the embedding learns to encode the content of the sentence.

    Args:
        hidden_size: The discriminator's hidden size.
        corruption: The module that replaces tokens. None if the batches contain corrupted token ids.
        discriminator: The encoder that detects replaced tokens. None: the trained encoder itself.
        conditional: Whether the sentence embedding replaces [CLS]. False: [CLS] is unchanged (D2CSE, Table 6, c).
        before_mlp: Whether the vector before the head replaces [CLS], instead of the embedding after the head.
        reduction: As in `dcpcse.losses.functional.replaced_token_ce`.
        copies: How many of the views in which tokens are replaced are copies of one text.
        view: Name of the view in which tokens are replaced. None: all views.
        std: Standard deviation of the initial weights of the detection head.
    """

    def __init__(
        self,
        hidden_size: int,
        corruption: Corruption | None,
        *,
        discriminator: Encoder | None = None,
        conditional: bool = True,
        before_mlp: bool = False,
        reduction: str = "sum",
        copies: int = 1,
        view: str | None = None,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.corruption = corruption
        self.max_tokens = None if corruption is None else corruption.generator.max_tokens
        self.discriminator = discriminator
        self.conditional = conditional
        self.before_mlp = before_mlp
        self.reduction = reduction
        self.counts_pads = reduction == "mean_all"
        self.copies = copies
        self.view = view
        self.leaves_out_absent = view is not None
        self.head = nn.Linear(hidden_size, 2)
        nn.init.normal_(self.head.weight, std=std)
        nn.init.zeros_(self.head.bias)

    def sample(self, batch: EncodedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the original token ids, the corrupted token ids and the attention mask, each (N, L).

        N is B times the number of views in which tokens are replaced. If `reduction` includes padding, L is the length
        of the longest text of all processes.
        """
        batch = self._detected(batch)
        ids, mask = batch.input_ids.flatten(0, 1), batch.attention_mask.flatten(0, 1)
        corrupted = batch.extras.get(CORRUPTED)
        corrupted = self._corrupt(batch, ids, mask) if corrupted is None else corrupted.flatten(0, 1)
        if self.counts_pads:
            return _padded_alike(ids, corrupted, mask, batch.model.tokenizer.pad_token_id)
        return ids, corrupted, mask

    def _corrupt(self, batch: EncodedBatch, ids: Tensor, mask: Tensor) -> Tensor:
        on_host = tuple(batch.on_host(name).flatten(0, 1) for name in ("input_ids", "attention_mask"))
        return self.corruption(ids, mask, batch.packing, on_host)

    def num_items(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor, Tensor]) -> int | Tensor:
        return replaced_token_count(sampled[2], self.reduction, self._sentences(batch))

    def mean(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        batch = self._detected(batch)
        ids, corrupted, mask = sampled
        replaced = (corrupted != ids) & mask.bool()
        logits = self.head(self._hidden(batch, corrupted, mask))
        self._set_metrics(logits, replaced, mask)
        return replaced_token_ce(logits, replaced, mask, self.reduction, self._sentences(batch))

    def _detected(self, batch: EncodedBatch) -> EncodedBatch:
        """Return the batch with only the views in which tokens are replaced."""
        return batch if self.view is None else _only(batch, self.view)

    def _sentences(self, batch: EncodedBatch) -> int:
        return len(batch.input_ids) * self.copies

    def _hidden(self, batch: EncodedBatch, corrupted: Tensor, mask: Tensor) -> Tensor:
        """Return the discriminator's hidden states (N, L, H) of the corrupted sentences."""
        vectors = batch.pooled if self.before_mlp else batch.embeddings
        condition = torch.stack(list(vectors.values()), dim=1).flatten(0, 1) if self.conditional else None
        # If the encoder is the discriminator, it uses the prompts (with dropout) of the pass that gave the condition.
        shared = self.discriminator is None
        encoder, prefix = (batch.model.encoder, batch.prefix) if shared else (self.discriminator, None)
        options = {"condition": condition, "as_encoder": False, "packing": batch.packing, "pads": self.counts_pads}
        return encoder(corrupted, mask, prefix=prefix, **options)[-1]

    @torch.no_grad()
    def _set_metrics(self, logits: Tensor, replaced: Tensor, mask: Tensor) -> None:
        tokens = mask.bool().clone()
        tokens[:, 0] = False
        correct = logits.argmax(-1) == replaced.long()
        original = tokens & ~replaced
        self.metrics = {
            "rtd_accuracy_replaced": ((correct & replaced & tokens).sum(), (replaced & tokens).sum()),
            "rtd_accuracy_kept": ((correct & original).sum(), original.sum()),
            "replaced_share": ((replaced & tokens).sum(), tokens.sum()),
        }


def _only(batch: EncodedBatch, view: str) -> EncodedBatch:
    """Return the batch with a single view, (B, 1, L). A second pass then encodes only the rows of this view.

    The batch must not have template slots, since this function does not select them.
    """
    names = list(batch.embeddings)
    chosen = slice(names.index(view), names.index(view) + 1)
    host = OnHost({name: batch.on_host(name)[:, chosen] for name in ("input_ids", "attention_mask")})
    corrupted = {name: ids[:, chosen] for name, ids in batch.extras.items() if name == CORRUPTED}
    packing, prefix, device = batch.packing, batch.prefix, batch.input_ids.device
    if packing is not None:
        packing = send(Packing.of(host.tensors["attention_mask"].flatten(0, 1)), device)
    if prefix is not None:
        prefix = {
            layer: tuple(rows.unflatten(0, (-1, len(names)))[:, chosen].flatten(0, 1) for rows in keys_and_values)
            for layer, keys_and_values in prefix.items()
        }
    return replace(
        batch,
        input_ids=batch.input_ids[:, chosen],
        attention_mask=batch.attention_mask[:, chosen],
        embeddings={view: batch.embeddings[view]},
        pooled={view: batch.pooled[view]},
        prefix=prefix,
        packing=packing,
        extras={ON_HOST: host, **corrupted},
    )


def _padded_alike(ids: Tensor, corrupted: Tensor, mask: Tensor, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pad token ids, corrupted token ids and mask, each (N, L), to the longest text of all processes."""
    pads = (0, all_reduce_max(ids.shape[1]) - ids.shape[1])
    return F.pad(ids, pads, value=pad_id), F.pad(corrupted, pads, value=pad_id), F.pad(mask, pads)
