"""Guides: frozen encoders from which losses find false negatives (GISTEmbed) or learn a ranking (RankCSE)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dcpcse.data.collator import guide_inputs
from dcpcse.data.views import View, columns_of
from dcpcse.encoders.sentence_encoder import SentenceEncoder

FALSE_NEGATIVES = "guide"
"""Name of the guide that --guide sets. Losses use this guide to leave out false negatives (Solatorio 2024)."""


@dataclass(frozen=True)
class GuideSource:
    """What training needs to load a guide (see `Guide`).

    Args:
        encoder: A model folder, an encoder or a file of word vectors, as in `dcpcse.load`.
        pooler: How a plain encoder represents a sentence (--pooler_type). None: by the mean over its tokens.
        option: The option that names the encoder, for messages.
    """

    encoder: str
    pooler: str | None = None
    option: str = "guide"


class Guide(nn.Module):
    """A frozen encoder that losses use during training. It stays in eval mode and is neither trained nor saved.

    Losses call `vectors` in `precompute`. The guide encodes the original sentences of the examples, without the
    template and the augmentation of a view.

    Args:
        model: The encoder, which is frozen.
        views: The views of the method. `ViewCollator` tokenises the columns of these views for the guide.
        name: The name of the guide in `Method.guides`.
    """

    def __init__(self, model: SentenceEncoder, views: Sequence[View], name: str = FALSE_NEGATIVES) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.name = name
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

        A batch is encoded only once, even if several losses use the guide. Half precision is avoided, since losses
        compare similarities.

        Args:
            extras: The `extras` of the batch, which contain the token ids for the guide.

        Raises:
            UserError: If the batch was collated without the guide's tokens.
        """
        ids, mask, slots, packing = guide_inputs(extras, self.name)
        if self._last[0] is not ids:
            with torch.autocast(ids.device.type, enabled=False):
                flat = self.model(ids.flatten(0, 1), mask.flatten(0, 1), slots, packing=packing)
            of_columns = dict(enumerate(flat.unflatten(0, ids.shape[:2]).unbind(1)))
            # A batch whose data have fewer hard negatives lacks the last columns.
            self._last = ids, {view: of_columns[i] for view, i in self.places.items() if i in of_columns}
        return self._last[1]
