"""What `dcpcse.encoders.positions` promises, against transformers' own numbering and against counting by hand."""

import pytest
import torch
from torch import nn
from transformers import AutoModel
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from dcpcse.encoders.positions import Positions, positions_of

ABSOLUTE = ["bert", "electra"]
COUNTED = ["roberta", "xlm-roberta"]
PAD = 1


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


def padded_ids(pad: int) -> torch.Tensor:
    return torch.tensor([[7, 8, 9, 10, 11, 12], [7, 8, 9, pad, pad, pad], [7, pad, pad, pad, pad, pad]])


@pytest.mark.parametrize("offset", [0, 1, 16])
@pytest.mark.parametrize("kind", ABSOLUTE + COUNTED)
def test_ids_are_those_that_transformers_gives_a_text_after_a_prefix(backbones, kind, offset):
    backbone = backbones[kind]
    ids = padded_ids(backbone.config.pad_token_id)
    expected = ids_that_transformers_uses(backbone, ids, offset)
    found = positions_of(backbone).ids(ids, offset)
    # A BERT-like backbone numbers pads too, where nothing is ever read; RoBERTa's pads keep their own id.
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("offset", [0, 3])
def test_bert_counts_from_the_offset(backbones, offset):
    found = positions_of(backbones["bert"]).ids(padded_ids(0), offset)
    assert found.tolist() == [[offset + i for i in range(6)]] * 3


@pytest.mark.parametrize("offset", [0, 3])
def test_roberta_counts_real_tokens_from_behind_the_padding_index_and_pads_keep_it(backbones, offset):
    found = positions_of(backbones["roberta"]).ids(padded_ids(PAD), offset)
    first = PAD + 1 + offset
    assert found.tolist() == [
        [first + i for i in range(6)],
        [first, first + 1, first + 2, PAD, PAD, PAD],
        [first, PAD, PAD, PAD, PAD, PAD],
    ]


@pytest.mark.parametrize("offset", [0, 5])
def test_roberta_ids_equal_the_function_that_transformers_has_for_them(offset):
    ids = padded_ids(PAD)
    expected = RobertaEmbeddings.create_position_ids_from_input_ids(ids, PAD, offset)
    assert Positions(98, first=PAD + 1, padding_idx=PAD).ids(ids, offset).tolist() == expected.tolist()


@pytest.mark.parametrize("offset", [0, 16])
@pytest.mark.parametrize("kind", ABSOLUTE + COUNTED)
def test_room_is_exactly_what_the_position_table_holds(backbones, kind, offset):
    """A text of `room` tokens is embedded, reaching the last row of the table; one token more is not."""
    backbone = backbones[kind]
    positions = positions_of(backbone)
    room = positions.room(offset)
    table = backbone.embeddings.position_embeddings
    longest = positions.ids(torch.full((1, room), 7), offset)
    assert longest.max().item() == table.num_embeddings - 1
    table(longest)
    with pytest.raises(IndexError):
        table(positions.ids(torch.full((1, room + 1), 7), offset))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("bert", (0, None, False)), ("roberta", (2, 1, False)), ("modernbert", (0, None, True))],
)
def test_the_numbering_is_read_off_the_backbone(backbones, kind, expected):
    found = positions_of(backbones[kind])
    assert (found.first, found.padding_idx, found.rotary) == expected


def test_the_published_sizes_leave_512_tokens_less_the_prompt():
    """BERT has 512 rows, RoBERTa 514 of which two stand before the first token (SPEC 1.1)."""
    assert Positions(512).room(16) == 512 - 16
    assert Positions(514, first=2, padding_idx=1).room(14) == 512 - 14


def test_position_ids_lie_on_the_device_of_the_tokens():
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    assert Positions(10).ids(ids, 1).device.type == "meta"
    assert Positions(10, 2, 1).ids(ids, 1).device.type == "meta"
