"""A guide: a frozen encoder that finds false negatives in the batches of another one (GISTEmbed, Solatorio 2024)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dcpcse.data.collator import guide_inputs
from dcpcse.data.views import View, columns_of
from dcpcse.encoders.sentence_encoder import SentenceEncoder


class Guide(nn.Module):
    """The guide of a training: it stays in eval mode, is never trained and never saved.

    Losses call `vectors` in `precompute`. It judges the sentences of the examples, whatever a view does to them.
    """

    def __init__(self, model: SentenceEncoder, views: Sequence[View]) -> None:
        """Create the guide. views: the views of the method, whose columns `ViewCollator` tokenises for the guide."""
        super().__init__()
        self.model = model.requires_grad_(False)
        columns = columns_of(views)
        self.places = {view.name: columns.index(view.column) for view in views}
        self._last: tuple[Tensor | None, dict[str, Tensor]] = None, {}
        self.train(False)

    def train(self, mode: bool = True) -> "Guide":
        """Stay in eval mode."""
        return super().train(False)

    @torch.compiler.disable
    @torch.no_grad()
    def vectors(self, extras: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the guide's embeddings (B, G) of the sentences of each view, by the name of the view.

        extras: the tensors of the batch, among them the guide's tokens. A batch is encoded only once, whatever the
        number of losses. Half precision is avoided, since the similarities are compared. Raises UserError if the batch
        was collated without the guide's tokens.
        """
        ids, mask, slots, packing = guide_inputs(extras)
        if self._last[0] is not ids:
            with torch.autocast(ids.device.type, enabled=False):
                flat = self.model(ids.flatten(0, 1), mask.flatten(0, 1), slots, packing=packing)
            of_columns = flat.unflatten(0, ids.shape[:2]).unbind(1)
            self._last = ids, {view: of_columns[place] for view, place in self.places.items()}
        return self._last[1]
