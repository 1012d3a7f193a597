"""Template denoising: subtract the contribution of the template from the vector at [MASK].

PromptBERT (section 4.3) encodes the template without a sentence. The template's tokens have the same positions as in
the full input. ConPVP's code encodes the full input again and restricts attention to the template's tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dcpcse.encoders.packing import Packing, TensorGroup
from dcpcse.encoders.templates import Slots, TokenTemplate
from dcpcse.encoders.tokenization import pad

WAYS = ("template", "attention")
"""Ways to compute the template's vector: encode the template alone, or mask the sentence in attention."""


@dataclass(frozen=True)
class Denoising:
    """Settings for subtracting the vector of the empty template from the pooled vector.

    Args:
        training: Whether to subtract the vector in train mode.
        inference: Whether to subtract the vector in eval mode.
        by: "template" (the template alone is encoded), or "attention" (attention is restricted to the template).
        shifted: Whether template tokens after the sentence keep their positions in the full input.
        freeze: Whether the subtracted vector is a constant, without gradients.
        from_zero: Whether the positions of the empty template are counted from 0 in encoders with a different first
            position. The public PromptBERT code does so for RoBERTa.
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

        `from_zero` is included only if it is set. Without this entry, identities and checkpoints are the same as in
        versions without this setting.
        """
        settings = asdict(self)
        return settings if self.from_zero else {name: settings[name] for name in settings if name != "from_zero"}


NO_DENOISING = Denoising()


@dataclass(frozen=True)
class TemplateOnly(TensorGroup):
    """Templates without a sentence. A full input consists of a template and a sentence.

    Args:
        input_ids: Token ids (K, T) of K templates.
        attention_mask: (K, T), 1 for tokens and 0 for padding.
        index: (K, T), index of each token in the full input.
        slots: The slots of the templates.
        case_of: (N,), for each full input, the row of its template in `input_ids`.
        packing: The packing of the mask. None if the encoder is not packed.
    """

    input_ids: Tensor
    attention_mask: Tensor
    index: Tensor
    slots: Slots
    case_of: Tensor
    packing: Packing | None = None


def render_template_only(
    templates: Sequence[TokenTemplate],
    template: Tensor,
    content: Tensor,
    pad_id: int,
    *,
    shifted: bool = True,
    packed: bool = False,
) -> TemplateOnly:
    """Return the templates of N full inputs (template and sentence) without the sentences, on the CPU.

    Inputs with the same template and the same number of sentence tokens share a row.

    Args:
        templates: The templates.
        template: (N,), the index of the template of each input, on the CPU.
        content: (N,), the number of sentence tokens of each input, on the CPU.
        pad_id: Token id of padding.
        shifted: Whether the tokens after the sentence have the same indices as in the full input, and therefore the
            same positions.
        packed: Whether to compute the packing of the mask.
    """
    cases, case_of = torch.stack([template, content], 1).unique(dim=0, return_inverse=True)
    which, lengths = cases.unbind(1)
    rows = [template.wrap([]) for template in templates]
    ids, mask = (tensor[which] for tensor in pad([row.ids for row in rows], pad_id))
    index = torch.arange(ids.shape[1]).expand_as(ids)
    if shifted:
        starts = torch.tensor([[row.start] for row in rows])[which]
        index = index + torch.where(index >= starts, lengths.unsqueeze(1), 0) * mask
    slots = Slots.of(rows, range(len(rows))).map(lambda tensor: tensor[which])
    return TemplateOnly(ids, mask, index, slots, case_of, Packing.of(mask) if packed else None)


def sentence_tokens(templates: Sequence[TokenTemplate], slots: Slots, length: int) -> Tensor:
    """Return a boolean mask (N, length) that is true at the tokens of the sentences in N rendered templates.

    Args:
        templates: The templates.
        slots: The slots of the N texts, on the CPU. The mask is also on the CPU.
        length: Number of columns L.
    """
    starts = torch.tensor([len(template.before) for template in templates])
    start = starts[slots.template].unsqueeze(1)
    positions = torch.arange(length)
    return (positions >= start) & (positions < start + slots.content.unsqueeze(1))


def template_tokens(templates: Sequence[TokenTemplate], slots: Slots, length: int) -> Tensor:
    """Return an int64 mask (N, length), 1 at the templates' tokens except [CLS] and [SEP], else 0 (ConPVP's code).

    Args:
        templates: The templates.
        slots: The slots of the N texts, on the CPU. The mask is also on the CPU.
        length: Number of columns L.
    """
    first, last = templates[0].frame  # determined by the tokenizer, so the same in all templates
    lengths = torch.tensor([template.length for template in templates])[slots.template] + slots.content
    positions = torch.arange(length)
    framed = (positions < first) | (positions >= lengths.unsqueeze(1) - last)
    return (~framed & ~sentence_tokens(templates, slots, length)).long()
