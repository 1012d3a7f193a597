"""What `dcpcse.encoders.positions` promises, against transformers' own numbering and against counting by hand."""

import pytest
import torch
from torch import nn
from transformers import AutoModel

from dcpcse.encoders.positions import Positions, positions_of

ABSOLUTE = ["bert", "electra"]
COUNTED = ["roberta", "xlm-roberta"]


@pytest.fixture(scope="module")
def backbones(tiny):
    return {kind: AutoModel.from_pretrained(tiny(kind)).eval() for kind in (*ABSOLUTE, *COUNTED, "modernbert")}


class Spy(nn.Module):
    """Notes the ids that an embedding table is asked for."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.asked = table, None

    def forward(self, ids):
        self.asked = ids.clone()
        return self.table(ids)


def ids_that_transformers_uses(backbone, input_ids, past: int = 0) -> torch.Tensor:
    """What the backbone's embedding layer looks up in its position table when it numbers the tokens itself."""
    table = backbone.embeddings.position_embeddings
    backbone.embeddings.position_embeddings = spy = Spy(table)
    try:
        backbone.embeddings(input_ids, past_key_values_length=past)
    finally:
        backbone.embeddings.position_embeddings = table
    return spy.asked.expand_as(input_ids)


@pytest.mark.parametrize("kind", ABSOLUTE + COUNTED)
def test_ids_are_those_that_transformers_gives_a_text_after_a_prefix(backbones, kind):
    """A BERT-like backbone numbers pads too, where nothing is ever read; RoBERTa's pads keep their own id."""
    backbone, pad = backbones[kind], backbones[kind].config.pad_token_id
    ids = torch.tensor([[7, 8, 9, 10, 11, 12], [7, 8, 9, pad, pad, pad], [7, pad, pad, pad, pad, pad]])
    for offset in (0, 1, 16):
        expected = ids_that_transformers_uses(backbone, ids, offset)
        found = positions_of(backbone).ids(ids, offset)
        assert found.tolist() == expected.tolist()
        first = offset + (2 if kind in COUNTED else 0)
        assert found[0].tolist() == [first + i for i in range(6)]
        assert positions_of(backbone).ids(ids.to("meta"), offset).device.type == "meta"


@pytest.mark.parametrize("kind", ABSOLUTE + COUNTED)
def test_room_is_exactly_what_the_position_table_holds(backbones, kind):
    """A text of `room` tokens is embedded, reaching the last row of the table; one token more is not."""
    positions, table = positions_of(backbones[kind]), backbones[kind].embeddings.position_embeddings
    for offset in (0, 16):
        room = positions.room(offset)
        longest = positions.ids(torch.full((1, room), 7), offset)
        assert longest.max().item() == table.num_embeddings - 1
        table(longest)
        with pytest.raises(IndexError):
            table(positions.ids(torch.full((1, room + 1), 7), offset))


def test_the_numbering_is_read_off_the_backbone_and_published_sizes_leave_512_tokens_less_the_prompt(backbones):
    """BERT has 512 rows, RoBERTa 514 of which two stand before the first token (SPEC 1.1)."""
    for kind, expected in (("bert", (0, None, False)), ("roberta", (2, 1, False)), ("modernbert", (0, None, True))):
        found = positions_of(backbones[kind])
        assert (found.first, found.padding_idx, found.rotary) == expected
    assert Positions(512).room(16) == 512 - 16
    assert Positions(514, first=2, padding_idx=1).room(14) == 512 - 14
