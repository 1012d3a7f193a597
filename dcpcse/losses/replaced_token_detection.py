"""Conditional replaced-token detection: which tokens of a sentence are not its own (D2CSE, eq. 2; DiffCSE)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.data.corrupted_corpus import CORRUPTED
from dcpcse.encoders.encoder import Encoder
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import replaced_token_ce, replaced_token_count
from dcpcse.losses.generator import Corruption
from dcpcse.utils.distributed import all_reduce_max


class ReplacedTokenDetection(PerRowLoss):
    """A discriminator sees the corrupted sentence with the sentence's vector in the place of [CLS].

    Gradients flow through that vector into the encoder: it is to tell as much of the sentence as it can.
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
        std: float = 0.02,
    ) -> None:
        """corruption: None where the batches bring their corrupted ids. discriminator: None for the encoder itself.

        conditional: False leaves the [CLS] as it is (D2CSE, Table 6, c). before_mlp: the condition is the vector
        before the head. reduction: see `replaced_token_ce`. copies: views of one and the same text.
        """
        super().__init__()
        self.corruption = corruption
        self.max_tokens = None if corruption is None else corruption.generator.max_tokens
        self.discriminator = discriminator
        self.conditional = conditional
        self.before_mlp = before_mlp
        self.reduction = reduction
        self.counts_pads = reduction == "mean_all"
        self.copies = copies
        self.head = nn.Linear(hidden_size, 2)
        nn.init.normal_(self.head.weight, std=std)
        nn.init.zeros_(self.head.bias)

    def sample(self, batch: EncodedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, corrupted ones and mask, (B·V, L); where pads count, L is that of the joined batch."""
        ids, mask = batch.input_ids.flatten(0, 1), batch.attention_mask.flatten(0, 1)
        given = batch.extras.get(CORRUPTED)
        corrupted = self.corruption(ids, mask, batch.packing) if given is None else given.flatten(0, 1)
        if self.counts_pads:
            return _as_joined(ids, corrupted, mask, batch.model.tokenizer.pad_token_id)
        return ids, corrupted, mask

    def num_items(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor, Tensor]) -> int | Tensor:
        return replaced_token_count(sampled[2], self.reduction, self._sentences(batch))

    def mean(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, corrupted, mask = sampled
        replaced = (corrupted != ids) & mask.bool()
        logits = self.head(self._hidden(batch, corrupted, mask))
        self._set_metrics(logits, replaced, mask)
        return replaced_token_ce(logits, replaced, mask, self.reduction, self._sentences(batch))

    def _sentences(self, batch: EncodedBatch) -> int:
        return len(batch.input_ids) * self.copies

    def _hidden(self, batch: EncodedBatch, corrupted: Tensor, mask: Tensor) -> Tensor:
        """What the discriminator makes of the corrupted sentences (B·V, L, H)."""
        vectors = batch.pooled if self.before_mlp else batch.embeddings
        condition = torch.stack(list(vectors.values()), dim=1).flatten(0, 1) if self.conditional else None
        # Of the encoder itself the same prompts, dropout included, as in the pass that gave the condition.
        own = self.discriminator is None
        encoder, prefix = (batch.model.encoder, batch.prefix) if own else (self.discriminator, None)
        how = {"condition": condition, "as_encoder": False, "packing": batch.packing, "pads": self.counts_pads}
        return encoder(corrupted, mask, prefix=prefix, **how)[-1]

    @torch.no_grad()
    def _set_metrics(self, logits: Tensor, replaced: Tensor, mask: Tensor) -> None:
        real = mask.bool().clone()
        real[:, 0] = False
        right = logits.argmax(-1) == replaced.long()
        kept = real & ~replaced
        self.metrics = {
            "rtd_accuracy_replaced": ((right & replaced & real).sum(), (replaced & real).sum()),
            "rtd_accuracy_kept": ((right & kept).sum(), kept.sum()),
            "replaced_share": ((replaced & real).sum(), real.sum()),
        }


def _as_joined(ids: Tensor, corrupted: Tensor, mask: Tensor, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (N, L), corrupted ones and mask, as long as in the joined batch: where pads count, so many count."""
    pads = (0, all_reduce_max(ids.shape[1]) - ids.shape[1])
    return F.pad(ids, pads, value=pad_id), F.pad(corrupted, pads, value=pad_id), F.pad(mask, pads)
