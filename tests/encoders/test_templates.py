"""Templates: two grammars, slots by index, and tokenisation as of the text written out."""

import pytest
from model_folders import refused
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dcpcse.encoders.templates import Template, TokenTemplate, frame

PLAIN = 'This sentence of "{sentence}" means [MASK] .'
PUBLIC = '*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*'
ROBERTA_PUBLIC = "*cls*_This_sentence_:_'_*sent_0*_'_means*mask*.*sep+*"
TEMPLATES = [PLAIN, PUBLIC, ROBERTA_PUBLIC, "[MASK] : {sentence}", '"{sentence}" , is [MASK] , that is [MASK]']
TRAPS = ["a [MASK] in the text", 'This sentence of "This sentence of" means means', "{sentence}", "", "   "]
TRAPS += ['"quoted" means [MASK] .', "Rain fell.", "un café naïve 🙂"]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request, tiny):
    return AutoTokenizer.from_pretrained(tiny(request.param))


def rendered(template, tokenizer, sentence, room=90):
    parts = TokenTemplate(Template.parse(template), tokenizer)
    ((content,), _) = parts.contents([sentence], room)
    return parts.wrap(content)


def test_the_public_grammar_is_read_as_plain_text_and_a_template_reads_back_from_what_it_prints():
    for text, plain in (
        (PUBLIC, 'This sentence of "{sentence}" means[MASK].'),
        (ROBERTA_PUBLIC, "This sentence : ' {sentence} ' means[MASK]."),
        ("*cls*_*sent_0*_*mask*_.*sep+*", "{sentence} [MASK] ."),
    ):
        assert str(Template.parse(text)) == plain
    for text in TEMPLATES:
        assert Template.parse(str(Template.parse(text))) == Template.parse(text)


def test_a_template_without_its_slots_and_a_tokenizer_without_a_mask_are_refused(tiny):
    for text, named in (
        ("", "0 slots"),
        ("{sentence} {sentence} [MASK]", "2 slots"),
        ("{sentence} without", r"no \[MASK\]"),
        ("*cls*_*sent_0*_*label*_*mask*", r"unknown mark \*label\*"),
    ):
        refused(named, Template.parse, text)
    tokenizer = AutoTokenizer.from_pretrained(tiny("bert"))
    tokenizer.mask_token = None
    refused("mask token", TokenTemplate, Template.parse(PLAIN), tokenizer)


@pytest.mark.parametrize("text", TEMPLATES)
def test_slots_are_where_the_layout_says(text, tokenizer):
    """Independent of the code: the row is cut into its parts by counting, and each part is compared by itself."""
    parts = TokenTemplate(Template.parse(text), tokenizer)
    lead = " " if Template.parse(text).before.endswith(" ") else ""
    for sentence in TRAPS:
        row = rendered(text, tokenizer, sentence)
        content = tokenizer(lead + sentence.strip(), add_special_tokens=False)["input_ids"]
        assert row.ids[: row.start] == parts.before
        assert row.ids[row.start : row.start + row.content] == content
        assert row.ids[row.start + row.content :] == parts.after
        assert len(row.masks) == Template.parse(text).masks
        assert all(row.ids[slot] == tokenizer.mask_token_id for slot in row.masks)
        assert not {*range(row.start, row.start + row.content)} & {*row.masks}
        assert (row.ids[0], row.ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


@pytest.mark.parametrize("text", TEMPLATES)
def test_an_ordinary_sentence_gets_the_ids_of_the_text_written_out_and_is_cut_alone(text, tokenizer, sentences):
    template = Template.parse(text)
    for sentence in sentences:
        words = sentence.rstrip(".")  # byte-level tokenisers may join a full stop with the template's quote
        whole = str(template).replace("{sentence}", words).replace("[MASK]", tokenizer.mask_token)
        assert rendered(text, tokenizer, words).ids == tokenizer(whole)["input_ids"]
        assert rendered(text, tokenizer, f"  {words} \n").ids == tokenizer(whole)["input_ids"]
    parts = TokenTemplate(template, tokenizer)
    contents, cut = parts.contents([sentences[1], "a"], 5)
    row = parts.wrap(contents[0])
    assert (cut, row.content, len(row.ids)) == (1, 5, parts.length + 5)
    assert row.ids[row.start + 5 :] == parts.after


def test_the_special_tokens_around_a_text_are_found_without_a_latin_letter():
    letters = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "ฝ": 2, "น": 3}, []))
    letters.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    letters.add_special_tokens(["<s>", "</s>"])
    assert frame(PreTrainedTokenizerFast(tokenizer_object=letters, cls_token="<s>", sep_token="</s>")) == ([0], [1])
