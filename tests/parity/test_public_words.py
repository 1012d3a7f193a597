"""Token ids of the papers' public code, as recorded in public_code/, against ours."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.methods.shared.prototypes import CODE

RECORDED = Path(__file__).parent / "public_code"
ANCHOR = "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."


def recorded(name):
    with np.load(RECORDED / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    for name, text in recorded("encoders").items():
        kind, _, file = name.partition("/")
        if kind == request.param and "weights/" not in file:
            (folder / ("config.json" if file == "config" else file)).write_text(str(text), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.kind = request.param
    return tokenizer


def test_prototype_templates_code_gives_the_token_ids_of_the_public_words(tokenizer):
    """Every recorded row is one of our templates around a sentence, and the sentence has the recorded tokens."""
    file = recorded("conpvp")
    case = f"{tokenizer.kind}-1-column-s-their-words"
    ids, mask, content = (file[f"{case}/given/{name}"] for name in ("input_ids", "attention_mask", "slots_content"))
    views = [[ANCHOR], CODE["positive"], CODE["negative"]]
    views = [[TokenTemplate(Template.parse(text), tokenizer) for text in texts] for texts in views]
    seen = set()
    for n, v in np.ndindex(*ids.shape[:2]):
        row = ids[n, v][mask[n, v] == 1].tolist()
        first = len(tokenizer("")["input_ids"]) // 2  # the anchor's template begins with the sentence
        sentence = tokenizer.decode(ids[n, 0][first : first + content[n, 0]])
        found = []
        for template in views[v]:
            ((words,), _) = template.contents([sentence], int(content[n, v]))
            if template.wrap(words).ids == row:
                found.append(str(template.template))
        assert len(found) == 1, (n, v, tokenizer.convert_ids_to_tokens(row))
        seen.add(found[0])
    assert len(seen) == 13


def test_one_token_follows_the_mask_in_every_template_of_the_public_code(tokenizer):
    """The public code finds [MASK] as the third token from the end."""
    for text in (*CODE["positive"], *CODE["negative"], ANCHOR):
        row = TokenTemplate(Template.parse(text), tokenizer).wrap([7, 8])
        assert row.masks == (len(row.ids) - 3,)
