"""Options that change how the model of an output folder represents sentences: --denoise against plain transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from senteval_tiny import write_tiny_data
from transformers import AutoModel, AutoTokenizer

from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.commands.search import search_command
from dcpcse.cli.commands.similarity import similarity_command
from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.storage.manifest import backbone_path
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.methods import build_method, model_arguments
from dcpcse.utils.errors import UserError

BEFORE, AFTER = 'This sentence of "', '" means [MASK].'
"""PromptBERT's template; the tokenizer of the tiny encoders splits at quotation marks."""


def promptbert_folder(tiny, folder: Path, columns: tuple[str, ...], **options) -> str:
    """An output folder of PromptBERT whose trained weights are not the encoder's."""
    torch.manual_seed(3)
    arguments = model_arguments(method="promptbert", **options)
    model = build_method(load_backbone(tiny("bert")), arguments, columns).model
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.eval().save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def supervised(tiny, tmp_path_factory) -> str:
    """PromptBERT of pairs, which denoises after training and uses its head."""
    return promptbert_folder(tiny, tmp_path_factory.mktemp("supervised"), ("anchor", "positive"))


@pytest.fixture(scope="module")
def unsupervised(tiny, tmp_path_factory) -> str:
    """PromptBERT of single sentences, which does neither."""
    return promptbert_folder(tiny, tmp_path_factory.mktemp("unsupervised"), ("anchor",))


@torch.no_grad()
def naive(folder: str, sentences: list[str], *, denoise: bool, head: bool) -> np.ndarray:
    """One sentence at a time through transformers alone, with the positions of the template written out."""
    record = json.loads((Path(folder) / "dcpcse.json").read_text(encoding="utf-8"))
    place = backbone_path(Path(folder), record["backbone"])
    model, tokenizer = AutoModel.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(folder)
    dense = load_file(Path(folder) / "trained.safetensors")

    def at_mask(ids: list[int], positions: list[int]) -> torch.Tensor:
        hidden = model(torch.tensor([ids]), position_ids=torch.tensor([positions])).last_hidden_state[0]
        return hidden[ids.index(tokenizer.mask_token_id)]

    before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (BEFORE, AFTER))
    before, after = [tokenizer.cls_token_id, *before], [*after, tokenizer.sep_token_id]
    vectors = []
    for sentence in sentences:
        content = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        full = [*before, *content, *after]
        positions = list(range(len(full)))
        vector = at_mask(full, positions)
        if denoise:
            vector = vector - at_mask([*before, *after], positions[: len(before)] + positions[-len(after) :])
        if head:
            vector = torch.tanh(dense["head.dense.weight"] @ vector + dense["head.dense.bias"])
        vectors.append(vector.numpy())
    return np.stack(vectors)


@pytest.mark.parametrize("denoise", [None, True, False])
def test_denoising_is_recorded_and_an_option_switches_it(denoise, supervised, unsupervised, sentences):
    for folder, recorded in ((supervised, True), (unsupervised, False)):
        model = load_model(folder, EncoderArguments(denoise=denoise, device="cpu"))
        wanted = recorded if denoise is None else denoise
        expected = naive(folder, sentences, denoise=wanted, head=recorded)
        np.testing.assert_allclose(model.encode(sentences), expected, atol=3e-5)
        assert model.denoising.inference is wanted


def test_the_vector_of_the_mask_is_denoised_before_the_head(supervised, sentences):
    for denoise in (True, False):
        model = load_model(supervised, EncoderArguments(pooler_type="mask", denoise=denoise, device="cpu"))
        expected = naive(supervised, sentences, denoise=denoise, head=False)
        np.testing.assert_allclose(model.encode(sentences), expected, atol=3e-5)


def test_denoising_needs_a_template_and_its_mask(tiny, tmp_path, supervised):
    plain = promptbert_folder(tiny, tmp_path / "mean", ("anchor",), pooler_type="avg")
    for folder, options, named in (
        (plain, {}, "denoise=True: .* is used with the pooler avg"),
        (supervised, {"pooler_type": "avg"}, 'add pooler="mask"'),
    ):
        with pytest.raises(UserError, match=named):
            load_model(folder, EncoderArguments(denoise=True, **options))
        assert not load_model(folder, EncoderArguments(denoise=False, **options)).denoising.inference


def test_the_scores_name_the_setting_and_the_cache_keeps_both_apart(supervised, tmp_path, capsys):
    data, cache = str(write_tiny_data(tmp_path / "data")), tmp_path / "cache"
    words = ["--model_name_or_path", supervised, "--data_dir", data, "--custom_data", "--cache_dir", str(cache)]
    words += ["--task_set", "na", "--tasks", "STSBenchmark"]
    found = {}
    for name, given in {"recorded": [], "on": ["--denoise", "true"], "off": ["--denoise", "false"]}.items():
        path = tmp_path / f"{name}.json"
        assert run(evaluate_command, [*words, *given, "--output_file", str(path)]) == 0, capsys.readouterr().err
        found[name] = json.loads(path.read_text(encoding="utf-8"))
    assert {name: scores["model"]["denoised"] for name, scores in found.items()} == {
        "recorded": True, "on": True, "off": False,
    }  # fmt: skip
    assert found["recorded"]["scores_x100"] == found["on"]["scores_x100"] != found["off"]["scores_x100"]
    assert len(list((cache / "embeddings").glob("*.sqlite"))) == 2


def test_vectors_and_an_index_belong_to_one_setting(supervised, tmp_path, sentences, capsys):
    text, index, vectors = tmp_path / "t.txt", str(tmp_path / "index"), str(tmp_path / "v.npy")
    text.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    off = ["--denoise", "false"]
    search = [supervised, sentences[0], "--sentences", str(text)]
    assert run(search_command, [*search, "--index", index]) == 0
    assert run(search_command, [*search, "--index", index, *off]) == 2
    assert "reading" in capsys.readouterr().err
    assert run(encode_command, [supervised, str(text), "--output", vectors, *off]) == 0
    np.testing.assert_allclose(np.load(vectors), naive(supervised, sentences, denoise=False, head=True), atol=3e-5)
    assert run(encode_command, [supervised, str(text), "--output", vectors]) == 2
    assert run(search_command, [*search, "--vectors", vectors]) == 2
    assert run(search_command, [*search, "--vectors", vectors, *off]) == 0
    capsys.readouterr()
    assert run(similarity_command, [supervised, *sentences[:2], "--json", *off]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    first, second = naive(supervised, sentences[:2], denoise=False, head=True)
    assert score == pytest.approx(first @ second / np.linalg.norm(first) / np.linalg.norm(second), abs=1e-4)
