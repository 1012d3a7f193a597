"""Templates from a T5: the beam search over many examples against enumeration, on a tiny random T5."""

import itertools
import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from dcpcse.cli.commands.search_templates import search_templates_command
from dcpcse.cli.runner import run
from dcpcse.experiments.template_generation import Example, fill_gaps, generate_templates, load_t5, read_definitions
from dcpcse.utils.errors import UserError

WORDS = ["also", "called", "."]
TOKENS = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>", *WORDS]
EXAMPLES = [Example("also", "called ."), Example("called", ". . also"), Example(".", "also")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A random T5 of nine tokens, sure enough of some to tell them apart."""
    place = tmp_path_factory.mktemp("t5")
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="<unk>"))
    words.add_special_tokens(TOKENS[:6])
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(place)
    torch.manual_seed(1)
    size = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    config = T5Config(vocab_size=len(TOKENS), decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **size)
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(place)
    return str(place)


def enumerated(model, tokenizer, texts, longest):
    """Every way to fill both gaps with so many words at most, scored text by text, teacher-forced."""
    ways = [list(words) for length in range(longest + 1) for words in itertools.product(WORDS, repeat=length)]
    scores = []
    for first, second in itertools.product(ways, ways):
        if len(first) + len(second) > longest:
            continue
        target = ["<extra_id_0>", *first, "<extra_id_1>", *second, "<extra_id_2>"]
        labels = torch.tensor([tokenizer.convert_tokens_to_ids(target)])
        total = 0.0
        for text in texts:
            with torch.no_grad():
                logits = model(**tokenizer(text, return_tensors="pt"), labels=labels).logits[0].double()
            steps = logits.log_softmax(-1)[torch.arange(labels.shape[1]), labels[0]]
            total += steps[1:].sum().item()  # the first mark is given
        scores.append((total, " ".join(first), " ".join(second)))
    return sorted(scores, key=lambda item: -item[0])


def test_a_wide_beam_finds_the_fillings_that_enumeration_finds(folder):
    model, tokenizer = load_t5(folder)
    texts = [f"<extra_id_0> {one.word} <extra_id_1> {one.definition}" for one in EXAMPLES]
    found = fill_gaps(model, tokenizer, texts, beams=100)
    assert len({len(tokenizer(text)["input_ids"]) for text in texts}) > 1  # so that shorter ones are padded
    by_filling = {(first, second): score for score, first, second in found}
    for score, first, second in enumerated(model, tokenizer, texts, longest=2)[:10]:
        assert by_filling[first, second] == pytest.approx(score, rel=1e-5)
    assert [score for score, *_ in found] == sorted((score for score, *_ in found), reverse=True)


def test_generated_templates_have_their_slots_and_are_all_different(folder):
    templates = generate_templates(*load_t5(folder), EXAMPLES, 8)
    assert len(set(templates)) == len(templates) == 8
    assert all(template.masks == 1 for template in templates)


def test_the_search_scores_generated_templates(folder, tiny, sts_data, tmp_path, capsys):
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{one.word}\t{one.definition}\n" for one in EXAMPLES), encoding="utf-8")
    words = ["--model_name_or_path", tiny("bert"), "--custom_data", "--data_dir", sts_data]
    words += ["--output_dir", str(tmp_path / "out"), "--t5", folder, "--definitions", str(path), "--generate", "4"]
    assert run(search_templates_command, words) == 0
    record = json.loads((tmp_path / "out/scores.json").read_text(encoding="utf-8"))
    assert list(record["scores"]) == [str(template) for template in generate_templates(*load_t5(folder), EXAMPLES, 4)]


def test_definitions_end_at_line_feeds_and_what_is_none_is_named_with_its_line(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("橘子\t一种\u2028水果\r\nلیمو\tمیوه\u0085\u200cای\n", encoding="utf-8", newline="")
    assert read_definitions(path) == [Example("橘子", "一种\u2028水果"), Example("لیمو", "میوه\u0085\u200cای")]
    for content, named in {"": "is empty", "a\tfruit\nred\n": "line 2: expected", "\tfruit\n": "line 1"}.items():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=f"{path}.*{named}"):
            read_definitions(path)


def test_what_is_no_t5_is_refused(tiny, tmp_path):
    with pytest.raises(UserError, match="cannot be loaded"):
        load_t5(tiny("bert"))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_t5(str(tmp_path / "nowhere"))
