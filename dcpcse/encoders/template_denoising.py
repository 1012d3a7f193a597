"""Template denoising: subtract the template's own contribution from the vector at [MASK].

PromptBERT (section 4.3) encodes the template without a sentence, but with the template's positions in the full input.
ConPVP's code encodes the full input again, with attention restricted to the template's tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dcpcse.encoders.templates import Slots, TokenTemplate
from dcpcse.encoders.tokenization import pad

WAYS = ("template", "attention")
"""Ways to compute the template's vector: encode the template alone, or mask the sentence in attention."""


@dataclass(frozen=True)
class Denoising:
    """Whether and how the template's own vector is subtracted.

    training, inference: whether it is subtracted in train mode and in eval mode. by: one of `WAYS`. shifted: whether
    template tokens after the sentence keep their positions in the full input. freeze: whether the subtracted
    vector is a constant, without gradients. from_zero: whether the positions of the template alone are counted from 0
    in encoders whose first position is a different one (RoBERTa in the public PromptBERT code).
    """

    training: bool = False
    inference: bool = False
    by: str = "template"
    shifted: bool = True
    freeze: bool = False
    from_zero: bool = False

    @property
    def ever(self) -> bool:
        """Whether the template's vector is subtracted in any mode."""
        return self.training or self.inference

    def record(self) -> dict[str, Any]:
        """Return the settings as `dcpcse.json` contains them.

        `from_zero` is included only if it is set, so that the identity of all other models, and their checkpoints, are
        the same as before this setting existed.
        """
        settings = asdict(self)
        return settings if self.from_zero else {name: settings[name] for name in settings if name != "from_zero"}


NO_DENOISING = Denoising()


@dataclass(frozen=True)
class TemplateOnly:
    """Templates without a sentence: token ids, mask and indices of the tokens in the full input, (K, T), and slots."""

    input_ids: Tensor
    attention_mask: Tensor
    index: Tensor
    slots: Slots


def render_template_only(
    templates: Sequence[TokenTemplate], which: Tensor, lengths: Tensor, pad_id: int, *, shifted: bool = True
) -> TemplateOnly:
    """Render K templates without a sentence, each as a part of an input that contains a sentence.

    which: (K,), indices of the templates. lengths: (K,), numbers of sentence tokens in the full inputs. shifted:
    whether the tokens after the sentence keep their indices in the full input, so that their positions are the same.
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
    """Return a boolean mask (N, L) of the tokens that belong to the sentences in rows of templates."""
    starts = torch.tensor([len(template.before) for template in templates], device=attention_mask.device)
    start = starts[slots.template].unsqueeze(1)
    place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (place >= start) & (place < start + slots.content.unsqueeze(1))


def template_tokens(templates: Sequence[TokenTemplate], slots: Slots, attention_mask: Tensor) -> Tensor:
    """Return the mask (N, L) of the templates' tokens, without the sentence, [CLS] and [SEP] (ConPVP's code)."""
    first, last = templates[0].frame  # determined by the tokenizer, hence the same in all templates
    place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    framed = (place < first) | (place >= attention_mask.sum(1, keepdim=True) - last)
    return (~framed & ~sentence_tokens(templates, slots, attention_mask)).long()
