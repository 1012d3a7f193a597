"""Options that change how the model of an output folder represents sentences: --denoise against plain transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import trained_model
from model_folders import refused
from safetensors.torch import load_file
from senteval_tiny import write_tiny_data
from transformers import AutoModel, AutoTokenizer

from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.runner import run
from dcpcse.encoders.storage.manifest import backbone_path
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model

BEFORE, AFTER = 'This sentence of "', '" means [MASK].'
"""PromptBERT's template; the tokenizer of the tiny encoders splits at quotation marks."""


def promptbert_folder(tiny, folder: Path, **options) -> str:
    trained_model(tiny("bert"), 3, **{"method": "promptbert", **options}).save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def supervised(tiny, tmp_path_factory) -> str:
    """PromptBERT of pairs, which denoises after training and uses its head."""
    folder = tmp_path_factory.mktemp("supervised")
    return promptbert_folder(tiny, folder, mlp_only_train=False, denoise_at_inference=True)


@pytest.fixture(scope="module")
def unsupervised(tiny, tmp_path_factory) -> str:
    """PromptBERT of single sentences, which does neither."""
    return promptbert_folder(tiny, tmp_path_factory.mktemp("unsupervised"), mlp_only_train=True)


@torch.no_grad()
def naive(folder: str, sentences: list[str], *, denoise: bool, head: bool) -> np.ndarray:
    """One sentence at a time through transformers alone, with the positions of the template written out."""
    record = json.loads((Path(folder) / "dcpcse.json").read_text(encoding="utf-8"))
    model = AutoModel.from_pretrained(backbone_path(Path(folder), record["backbone"])).eval()
    tokenizer, dense = AutoTokenizer.from_pretrained(folder), load_file(Path(folder) / "trained.safetensors")

    def at_mask(ids: list[int], positions: list[int]) -> torch.Tensor:
        hidden = model(torch.tensor([ids]), position_ids=torch.tensor([positions])).last_hidden_state[0]
        return hidden[ids.index(tokenizer.mask_token_id)]

    before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (BEFORE, AFTER))
    before, after = [tokenizer.cls_token_id, *before], [*after, tokenizer.sep_token_id]
    vectors = []
    for sentence in sentences:
        full = [*before, *tokenizer(sentence, add_special_tokens=False)["input_ids"], *after]
        places = list(range(len(full)))
        vector = at_mask(full, places)
        if denoise:
            vector = vector - at_mask([*before, *after], places[: len(before)] + places[-len(after) :])
        vectors.append(torch.tanh(dense["head.dense.weight"] @ vector + dense["head.dense.bias"]) if head else vector)
    return torch.stack(vectors).numpy()


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
    plain = promptbert_folder(tiny, tmp_path / "mean", pooler_type="avg")
    for folder, options, named in (
        (plain, {}, "denoise=True: .* is used with the pooler avg"),
        (supervised, {"pooler_type": "avg"}, 'add pooler="mask"'),
    ):
        refused(named, load_model, folder, EncoderArguments(denoise=True, **options))
        assert not load_model(folder, EncoderArguments(denoise=False, **options)).denoising.inference


def test_the_scores_name_the_setting_and_the_cache_keeps_both_apart(supervised, tmp_path, capsys):
    data, cache = str(write_tiny_data(tmp_path / "data")), tmp_path / "cache"
    words = ["--model_name_or_path", supervised, "--data_dir", data, "--custom_data", "--cache_dir", str(cache)]
    words += ["--task_set", "na", "--tasks", "STSBenchmark", "--output_file", str(tmp_path / "s.json"), "--overwrite"]
    found = []
    for given in ([], ["--denoise", "true"], ["--denoise", "false"]):
        assert run(evaluate_command, [*words, *given]) == 0, capsys.readouterr().err
        found.append(json.loads((tmp_path / "s.json").read_text(encoding="utf-8")))
    assert [scores["model"]["denoised"] for scores in found] == [True, True, False]
    recorded, on, off = (scores["scores_x100"] for scores in found)
    assert recorded == on != off
    assert len(list((cache / "embeddings").glob("*.sqlite"))) == 2
