"""What `dcpcse.encoders.positions` promises, against transformers' own numbering."""

import pytest
import torch
from transformers import AutoModel

from dcpcse.encoders.positions import positions_of


def ids_that_transformers_uses(backbone, input_ids, past: int = 0) -> torch.Tensor:
    """What the backbone's embedding layer looks up in its position table when it numbers the tokens itself."""
    asked = []
    hook = backbone.embeddings.position_embeddings.register_forward_pre_hook(lambda _, args: asked.append(args[0]))
    backbone.embeddings(input_ids, past_key_values_length=past)
    hook.remove()
    return asked[0].expand_as(input_ids)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_ids_are_those_that_transformers_gives_a_text_after_a_prefix(tiny, kind):
    """A BERT-like backbone numbers pads too, where nothing is ever read; RoBERTa's pads keep their own id."""
    backbone = AutoModel.from_pretrained(tiny(kind)).eval()
    pad = backbone.config.pad_token_id
    ids = torch.tensor([[7, 8, 9, 10, 11, 12], [7, 8, 9, pad, pad, pad], [7, pad, pad, pad, pad, pad]])
    for offset in (0, 1, 16):
        expected = ids_that_transformers_uses(backbone, ids, offset)
        found = positions_of(backbone).ids(ids, offset)
        assert found.tolist() == expected.tolist()
        first = offset + (2 if kind == "roberta" else 0)
        assert found[0].tolist() == [first + i for i in range(6)]
        assert positions_of(backbone).ids(ids.to("meta"), offset).device.type == "meta"
