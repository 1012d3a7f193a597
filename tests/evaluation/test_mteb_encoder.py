"""Models of this package in `mteb.evaluate`."""

import json
import math
from pathlib import Path

import mteb
import numpy as np
import pytest
import torch
from method_models import RECIPES, model_of
from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol
from mteb_tiny import PAIRS, TinyRetrieval, TinySTS
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from senteval import load_suite, settings_of_mode

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.evaluation.evaluator import evaluate_suite
from dcpcse.evaluation.mteb_encoder import TRAINING_DATA, MTEBEncoder, prompt_of
from dcpcse.evaluation.mteb_tasks import MtebTasks, evaluate_mteb_tasks, load_data
from dcpcse.evaluation.own_data import own_pairs
from dcpcse.utils.errors import UserError
from dcpcse.utils.presets import load_preset, names


def main_score(model, task, metric="main_score", cache=None) -> float:
    return mteb.evaluate(MTEBEncoder(model), task, cache=cache).task_results[0].scores["test"][0][metric]


@pytest.mark.parametrize("recipe", [*RECIPES][::8])
def test_mteb_gives_the_spearman_of_senteval_on_the_same_pairs(recipe, tiny, tmp_path):
    model = model_of(recipe, tiny)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\t{gold}\n" for a, b, gold in PAIRS), encoding="utf-8")
    suite = load_suite([], tmp_path, settings_of_mode("test"), extra=[own_pairs(path)])
    expected = evaluate_suite(model, suite).results["pairs.tsv"].score
    assert main_score(model, TinySTS()) == pytest.approx(expected, abs=1e-6)


def test_mteb_gets_shortened_vectors_and_keeps_their_results_apart(tiny):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    short = MTEBEncoder(model, truncate_dim=4)
    assert short.mteb_model_meta.embed_dim == 4
    assert short.mteb_model_meta.revision != MTEBEncoder(model).mteb_model_meta.revision
    first, second = (model.encode([pair[side] for pair in PAIRS])[:, :4] for side in (0, 1))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    expected = spearmanr(cosines, [p[2] for p in PAIRS]).statistic
    score = mteb.evaluate(short, TinySTS(), cache=None).task_results[0].scores["test"][0]["main_score"]
    assert score == pytest.approx(expected)
    load_data(tasks := MtebTasks({"mteb/TinySTS": TinySTS()}))
    (found,) = evaluate_mteb_tasks(model, tasks, truncate_dim=4)[0].values()
    assert found.points == pytest.approx(100 * expected)
    with pytest.raises(UserError, match="truncate_dim=33: must be between 1 and 32"):
        MTEBEncoder(model, truncate_dim=33)


def ndcg(queries, corpus) -> float:
    """Normalised discounted cumulative gain where document i is the only one that answers query i."""
    queries, corpus = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (queries, corpus))
    ranks = [int((row > row[i]).sum()) for i, row in enumerate(queries @ corpus.T)]
    return float(np.mean([1 / math.log2(rank + 2) for rank in ranks]))


PROMPTS = {
    "STS": "Wrong: ",
    "TinySTS": "Same? ",
    "query": "Wrong: ",
    "TinyRetrieval-query": "Ask: ",
    "document": "A: ",
}


def test_the_most_specific_prompt_precedes_each_text(tiny, tmp_path):
    model = model_of("dcpcse", tiny)
    queries, corpus = (
        model.encode([prompt + pair[side] for pair in PAIRS]) for side, prompt in enumerate(["Ask: ", "A: "])
    )
    same = [model.encode(["Same? " + pair[side] for pair in PAIRS], normalize=True) for side in (0, 1)]
    expected = {
        "mteb/TinySTS": 100 * spearmanr((same[0] * same[1]).sum(1), [gold for *_, gold in PAIRS]).statistic,
        "mteb/TinyRetrieval": 100 * ndcg(queries, corpus),
    }
    load_data(tasks := MtebTasks({"mteb/TinySTS": TinySTS(), "mteb/TinyRetrieval": TinyRetrieval()}))
    for _ in range(2):  # the second time from the cache
        found, _ = evaluate_mteb_tasks(model, tasks, prompts=PROMPTS, cache_dir=tmp_path)
        assert {name: one.points for name, one in found.items()} == pytest.approx(expected, abs=1e-3)
    plain, prompted = MTEBEncoder(model).mteb_model_meta, MTEBEncoder(model, prompts=PROMPTS).mteb_model_meta
    assert plain.revision != prompted.revision
    assert (plain.use_instructions, prompted.use_instructions) == (False, True)


def test_prompts_of_a_folder_give_the_scores_of_sentence_transformers(tiny, tmp_path, caplog):
    """mteb's own wrapper of SentenceTransformer is the oracle, also where the folder has a default prompt."""
    first = Transformer(tiny("bert"))
    prompts = {"STS": "Same? ", "query": "Ask: ", "web": "unknown to mteb", "usual": "Text: "}
    theirs = SentenceTransformer(
        modules=[first, Pooling(32, "mean")], device="cpu", prompts=prompts, default_prompt_name="usual"
    )
    theirs.save(str(tmp_path), create_model_card=False)
    model = dcpcse.load(tmp_path, device="cpu")
    caplog.set_level("INFO")
    ours = MTEBEncoder(model, folder=tmp_path)
    assert "the model's prompts usual, web are not used" in caplog.text
    for task in (TinySTS(), TinyRetrieval()):
        expected, found = (mteb.evaluate(one, task, cache=None).task_results[0].get_score() for one in (theirs, ours))
        assert found == pytest.approx(expected, abs=1e-5)
    assert model.text_prefix == "Text: "
    assert ours.mteb_model_meta.revision != MTEBEncoder(model, prompts={}).mteb_model_meta.revision


def test_an_instruction_of_mteb_is_put_into_a_prompt():
    metadata = TinyRetrieval.metadata.model_copy(update={"prompt": {"query": "Find the shorter sentence."}})
    prompts = {"query": "Instruct: {instruction}\nQuery: ", "document": "{instruction}"}
    prompt = prompt_of(prompts, metadata, mteb.types.PromptType.query)
    assert prompt == "Instruct: Find the shorter sentence.\nQuery: "
    assert prompt_of(prompts, metadata, None) is None
    with pytest.raises(UserError, match="the prompt for TinyRetrieval contains"):
        prompt_of(prompts, metadata, mteb.types.PromptType.document)


def test_the_description_of_a_trained_model(tiny, tmp_path):
    model = model_of("dcpcse", tiny)
    (tmp_path / "run.yaml").write_text("train_file: data/stsb_train.csv\n", encoding="utf-8")
    meta = MTEBEncoder(model, folder=tmp_path).mteb_model_meta
    assert (meta.training_datasets, meta.languages) == ({"STSBenchmark"}, ["eng-Latn"])
    assert [meta.is_zero_shot_on([task]) for task in ("STSBenchmark", "STS12")] == [False, True]
    multilingual = plain_encoder(load_backbone(tiny("xlm-roberta")), "avg")
    assert MTEBEncoder(multilingual, folder=tmp_path).mteb_model_meta.languages is None
    assert meta.n_embedding_parameters == model.encoder.backbone.config.vocab_size * 32
    assert meta.n_active_parameters == meta.n_parameters - meta.n_embedding_parameters > 0
    assert mteb.models.ModelMeta.model_validate_json(json.dumps(meta.to_dict(), default=str)) is not None
    (tmp_path / "run.yaml").write_text("train_file: data/my_own.csv\n", encoding="utf-8")
    assert MTEBEncoder(model, folder=tmp_path).mteb_model_meta.training_datasets is None
    assert MTEBEncoder(model).mteb_model_meta.training_datasets is None
    files = {Path(load_preset(name).options["train_file"]).name for name in names()}
    assert files == set(TRAINING_DATA)


LICENSES = {
    b"---\nlibrary_name: dcpcse\nlicense: apache-2.0\n---\n\n# A model\n\n---\n": "apache-2.0",
    b"---\r\nlicense: MIT\r\n---": "mit",
    **dict.fromkeys((b"---\nlicense: other\nlicense_name: mine\n---\n", b"# A model\n\nlicense: mit\n")),
    **dict.fromkeys(
        b"---\n%s\n---\n" % one for one in (b"license: [mit]", b"license: [", b"- license", b"license: \xff")
    ),
}


def test_the_license_is_that_of_the_card_if_mteb_knows_it(tiny, tmp_path):
    model = model_of("dcpcse", tiny)
    assert MTEBEncoder(model, folder=tmp_path).mteb_model_meta.license is None
    for card, license in LICENSES.items():
        (tmp_path / "README.md").write_bytes(card)
        meta = MTEBEncoder(model, folder=tmp_path).mteb_model_meta
        assert meta.license == license, card
        read = mteb.models.ModelMeta.model_validate_json(json.dumps(meta.to_dict(), default=str))
        assert read.license == license


def test_similarities_are_cosines(tiny):
    model = MTEBEncoder(model_of("dcpcse", tiny))
    assert isinstance(model, EncoderProtocol) and not isinstance(model, (SearchProtocol, CrossEncoderProtocol))
    first, second = torch.randn(3, 5), np.random.default_rng(0).normal(size=(4, 5))
    expected = [[torch.cosine_similarity(a, torch.tensor(b).float(), dim=0) for b in second] for a in first]
    torch.testing.assert_close(model.similarity(first, second), torch.tensor(expected))
    torch.testing.assert_close(
        model.similarity_pairwise(first, second[:3]), torch.tensor([row[i] for i, row in enumerate(expected)])
    )


def test_results_that_mteb_keeps_are_never_those_of_another_model(tiny, tmp_path):
    """mteb's cache knows a model by name and revision."""
    one, other = model_of("dcpcse", tiny), model_of("dcpcse", tiny, seed=2)
    cache = mteb.ResultCache(tmp_path / "cache")
    kept = [main_score(model, TinySTS(), "cosine_pearson", cache) for model in (one, other)]
    assert kept == [main_score(model, TinySTS(), "cosine_pearson") for model in (one, other)]
    assert kept[0] != kept[1]
    one.save(tmp_path / "one")
    again = dcpcse.load(tmp_path / "one", device="cpu")
    assert MTEBEncoder(again).mteb_model_meta == MTEBEncoder(one).mteb_model_meta


def test_what_cannot_be_encoded_or_scored_is_refused(tiny):
    model = MTEBEncoder(model_of("dcpcse", tiny))
    with pytest.raises(UserError, match="precision"):
        mteb.evaluate(model, TinySTS(), cache=None, encode_kwargs={"precision": "int8"})
    with pytest.raises(UserError, match="no column text"):
        model.encode([{"image": []}], task_metadata=None, hf_split="test", hf_subset="default")
    broken = model_of("dcpcse", tiny)
    with torch.no_grad():
        broken.encoder.prompt.table.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        main_score(broken, TinyRetrieval())
