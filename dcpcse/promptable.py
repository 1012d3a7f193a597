"""Which encoders can take prompts, and the check that the prompts really arrive."""

import torch
from transformers import PreTrainedModel

from .attention import PREFIX_ATTENTION
from .errors import UserError
from .prompts import PromptShape

PROMPTABLE = ("bert", "roberta", "xlm-roberta", "electra", "modernbert")
"""Model types whose prompts are tested here; others are tried, and refused if the prompt does not arrive."""

PEFT_SAME = ("bert", "roberta", "xlm-roberta", "electra")
"""Model types for which peft's prefix tuning gives the same vectors."""


def require_room(backbone: PreTrainedModel, room: int, offset: int) -> None:
    """UserError if a position offset leaves no room for text."""
    if room < 3:
        raise UserError(
            f"a position offset of {offset} leaves {room} positions of {backbone.config.model_type} for the text; "
            "lower --pre_seq_len or --position_offset"
        )


def use_prefix_attention(backbone: PreTrainedModel) -> None:
    """Let the backbone's attention take a prefix; UserError if it cannot be replaced."""
    if not getattr(backbone, "_supports_attention_backend", False):
        raise _cannot_take_prompts(backbone, "its attention cannot be replaced in transformers")
    backbone.set_attn_implementation(PREFIX_ATTENTION)


def require_prompt_arrives(backbone: PreTrainedModel, shape: PromptShape) -> None:
    """One forward and backward over a random prefix: every layer's must reach the output.

    A backbone that never hands `prefix=` to its attention would otherwise train and run without prompts.
    """
    if any(getattr(module, "is_causal", False) for module in backbone.modules()):
        raise _cannot_take_prompts(backbone, "it is a decoder")
    # A generator of its own: a check must not move the run's random numbers.
    random = torch.Generator().manual_seed(0)
    size = (2, 1, shape.heads, 2, shape.head_dim)
    drawn = [torch.randn(size, generator=random).requires_grad_() for _ in range(shape.layers)]
    prefix = {layer: tuple(pair.to(backbone.device)) for layer, pair in enumerate(drawn)}
    ids = torch.full((1, 4), 5, device=backbone.device)
    was_training = backbone.training
    backbone.eval()
    try:
        with torch.enable_grad():
            hidden = backbone(input_ids=ids, attention_mask=torch.ones_like(ids), prefix=prefix).last_hidden_state
            weights = torch.randn(hidden.shape, generator=random).to(hidden)
            gradients = torch.autograd.grad((hidden * weights).sum(), drawn, allow_unused=True)
    except (TypeError, RuntimeError) as error:
        raise _cannot_take_prompts(backbone, str(error).splitlines()[0]) from error
    finally:
        backbone.train(was_training)
    blind = [layer for layer, g in enumerate(gradients) if g is None or not all(half.any() for half in g)]
    if blind:
        raise _cannot_take_prompts(backbone, f"the prompts of layers {blind} do not reach the output")


def _cannot_take_prompts(backbone: PreTrainedModel, reason: str) -> UserError:
    return UserError(
        f"{backbone.config.model_type} encoders cannot take deep prompts here: {reason}; what works: "
        f"{', '.join(PROMPTABLE)}"
    )
