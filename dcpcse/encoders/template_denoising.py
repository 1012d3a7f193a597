"""Template denoising: what the template alone puts into [MASK] is taken away again.

PromptBERT (section 4.2) encodes the template without a sentence, at the positions of the full input. ConPVP's code
encodes the full input again, with attention to the template's tokens alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcpcse.encoders.templates import Slots, TokenTemplate
from dcpcse.encoders.tokenization import pad

WAYS = ("template", "attention")
"""How the template's part is measured: by encoding the template alone, or by hiding the sentence from attention."""


@dataclass(frozen=True)
class Denoising:
    """Whether and how the template's own vector is subtracted.

    training, inference: when. by: one of `WAYS`. shifted: the template's tokens after the sentence keep the positions
    that they have in the full input. freeze: no gradient flows through what is subtracted.
    """

    training: bool = False
    inference: bool = False
    by: str = "template"
    shifted: bool = True
    freeze: bool = False

    @property
    def ever(self) -> bool:
        """Whether anything is ever subtracted."""
        return self.training or self.inference


NO_DENOISING = Denoising()


@dataclass(frozen=True)
class TemplateOnly:
    """Templates without a sentence: ids and mask (K, T), index (K, T) in the full input of each token, and slots."""

    input_ids: Tensor
    attention_mask: Tensor
    index: Tensor
    slots: Slots


def render_template_only(
    templates: Sequence[TokenTemplate], which: Tensor, lengths: Tensor, pad_id: int, *, shifted: bool = True
) -> TemplateOnly:
    """Template which[k] without a sentence, as it stands in an input with a sentence of lengths[k] tokens; both (K,).

    With `shifted` everything after the sentence keeps its place, so that the positions are those of the full input
    at every length.
    """
    device, rows = lengths.device, [template.wrap([]) for template in templates]
    ids, mask = (tensor.to(device)[which] for tensor in pad([row.ids for row in rows], pad_id))
    index = torch.arange(ids.shape[1], device=device).expand_as(ids)
    if shifted:
        starts = torch.tensor([[row.start] for row in rows], device=device)[which]
        index = index + torch.where(index >= starts, lengths.unsqueeze(1), 0) * mask
    slots = Slots.of(rows, range(len(rows))).to(device).map(lambda tensor: tensor[which])
    return TemplateOnly(ids, mask, index, slots)


def sentence_tokens(templates: Sequence[TokenTemplate], slots: Slots, attention_mask: Tensor) -> Tensor:
    """Which tokens (N, L) of rows in templates are the sentence's."""
    starts = torch.tensor([len(template.before) for template in templates], device=attention_mask.device)
    start = starts[slots.template].unsqueeze(1)
    place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (place >= start) & (place < start + slots.content.unsqueeze(1))


def template_tokens(templates: Sequence[TokenTemplate], slots: Slots, attention_mask: Tensor) -> Tensor:
    """Mask (N, L) of the templates' own tokens: without the sentence, without [CLS] and [SEP] (ConPVP's code)."""
    first, last = templates[0].frame  # of the tokeniser, the same in all
    place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    framed = (place < first) | (place >= attention_mask.sum(1, keepdim=True) - last)
    return (~framed & ~sentence_tokens(templates, slots, attention_mask)).long()
