"""Options that follow the papers' public code, against what that code computed (public_code/)."""

import numpy as np
import pytest
from recorded import Case

from dcpcse.data.collator import ViewCollator
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.methods import build_method, model_arguments
from dcpcse.methods.shared.prototypes import CODE

ANCHOR = "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."


# Templates of prototypes


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request, bench):
    tokenizer = bench.tokenizer(request.param)
    tokenizer.kind = request.param
    return tokenizer


def test_prototype_templates_code_gives_the_token_ids_of_the_public_words(tokenizer):
    """Every recorded row is one of our templates around a sentence, and the sentence has the recorded tokens."""
    case = Case("conpvp", f"{tokenizer.kind}-1-column-s-their-words")
    ids, mask, content = (case[f"given/{name}"] for name in ("input_ids", "attention_mask", "slots_content"))
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


# The blank before the sentence


def test_the_blank_is_left_out_in_all_views_and_its_absence_is_said_to_change_nothing_for_bert(bench, caplog):
    for kind, number in {"roberta": 0, "bert": 1}.items():
        caplog.clear()
        args = model_arguments(method="conpvp", no_blank_in_training=True, prototype_templates="code")
        method = build_method(load_backbone(bench.folders[kind]), args, ["anchor", "positive", "negative"])
        assert caplog.text.count("no_blank_in_training=True has no effect: the tokenizer of bert ignores") == number
        assert "--no_blank_in_training" not in caplog.text or number
        rows = [{"anchor": "It rained.", "positive": "A cat slept.", "negative": "Nobody sang."}]
        collate = ViewCollator(method.model.tokenizer, method.views, 32, templates=method.model.templates)
        batch = collate(rows)
        for v, view in enumerate(method.views):
            template = method.model.templates[batch["slots_template"][0, v]]
            start, count = len(template.before), batch["slots_content"][0, v]
            bare = method.model.tokenizer(rows[0][view.column], add_special_tokens=False)["input_ids"]
            assert batch["input_ids"][0, v, start : start + count].tolist() == bare
