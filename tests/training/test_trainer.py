"""`dcpcse.Trainer` without a command line: what it takes, what it trains, and what it refuses."""

import linecache
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from method_models import with_encoder
from scipy.stats import pearsonr, spearmanr
from senteval.settings import settings_of_mode
from senteval.suite import load_suite

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.evaluation.own_data import own_pairs
from dcpcse.losses import Term
from dcpcse.methods import (
    METHODS,
    Method,
    build_method,
    contrastive,
    model_arguments,
    sentence_encoder,
    sentence_pair_views,
)
from dcpcse.methods.plugins import code_digest
from dcpcse.training import setup

QUICK = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.03, "logging_steps": 1}
QUICK |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "report_to": "none"}


@pytest.fixture
def arguments(tmp_path):
    def make(folder: str = "out", **options) -> dcpcse.TrainingArguments:
        return dcpcse.TrainingArguments(str(tmp_path / folder), **{**QUICK, **options})

    return make


@pytest.fixture
def pairs(sentences):
    return [(sentences[i], sentences[i + 1], float(i % 4)) for i in range(len(sentences) - 1)]


def trained(trainer: dcpcse.Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.step_module.named_parameters() if p.requires_grad}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Uniform(dcpcse.Trainer):
    """The contrastive loss, and Wang and Isola's uniformity of the anchors."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        batch = model.encode(**inputs)
        anchors = F.normalize(batch.embeddings["anchor"], dim=-1)
        loss = model.losses["contrastive"](batch) + 0.1 * torch.pdist(anchors).square().mul(-2).exp().mean().log()
        return (loss, batch) if return_outputs else loss


class Seen(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.logs, self.steps = [], []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_a_subclass_with_its_own_loss_and_callback_resumes_bit_for_bit(tiny, sentences, arguments, tmp_path):
    def make(folder: str, kind=Uniform, **options) -> dcpcse.Trainer:
        args = arguments(folder, save_strategy="steps", save_steps=2, **options)
        return kind(tiny("bert"), "dcpcse", args, sentences, callbacks=[Seen()], pre_seq_len=3)

    whole, again = make("whole"), make("again")
    whole.train()
    shutil.copytree(tmp_path / "whole/checkpoint-2", tmp_path / "again/checkpoint-2")  # what an interruption leaves
    again.train(resume_from_checkpoint=True)
    (seen,) = (one for one in again.callback_handler.callbacks if isinstance(one, Seen))
    assert seen.steps == [3, 4]
    assert_equal(trained(whole), trained(again))
    again.save_model(str(tmp_path / "model"))
    vectors = dcpcse.load(str(tmp_path / "model")).encode(sentences)
    np.testing.assert_array_equal(vectors, whole.sentence_encoder.encode(sentences))
    plain = make("plain", dcpcse.Trainer)
    plain.train()
    assert not torch.equal(*(one.method.model.encoder.prompt.table.weight for one in (plain, whole)))
    with pytest.raises(dcpcse.UserError, match="gradient_cache_chunk would not call your own compute_loss"):
        make("cached", gradient_cache_chunk=2)


def test_early_stopping_takes_the_first_score_and_counts_anew_in_every_training(tiny, sentences, pairs, arguments):
    options = {"eval_strategy": "steps", "eval_steps": 1, "early_stopping_patience": 2, "learning_rate": 1e-12}
    trainer = dcpcse.Trainer(tiny("bert"), "dcpcse", arguments(**options), sentences, pairs, pre_seq_len=3)
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 3 and trainer.state.best_metric is not None
    assert trainer.args.metric_for_best_model == "pairs_spearman"


def test_a_checkpoint_is_resumed_by_the_same_run_only(tiny, sentences, arguments, tmp_path):
    def make(data=sentences, learning_rate=0.03, **options) -> dcpcse.Trainer:
        args = arguments(save_strategy="steps", save_steps=2, learning_rate=learning_rate)
        return dcpcse.Trainer(tiny("bert"), "dcpcse", args, data, pre_seq_len=3, **options)

    make().train()
    for trainer, problem in (
        (make(sentences[1:]), "with another training file"),
        (make(learning_rate=0.01), "was written with learning_rate 0.03, but this run has learning_rate 0.01"),
        (make(temp=0.1), "was written with temp"),
    ):
        with pytest.raises(dcpcse.UserError, match=problem):
            trainer.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    with pytest.raises(dcpcse.UserError, match=r"contains an earlier run.*overwrite_output_dir=True.*to continue"):
        make().train()
    done = make()
    assert done.train(resume_from_checkpoint=True).metrics == {}  # all steps are done
    assert done.state.global_step == 4


def test_each_batch_is_of_one_set_with_its_views_and_its_loss_is_logged(tiny, sentences, arguments):
    """Against plain loops over the embeddings of the batch, with an encoder without dropout that hardly changes."""
    sets = {
        "pairs": [(sentences[i], sentences[i + 1]) for i in range(6)],
        "triplets": {name: [sentences[(i + k) % 12] for i in range(6, 12)] for k, name in enumerate("abc")},
    }
    seen = Seen()
    args = arguments(max_steps=8, learning_rate=1e-12)
    encoder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trainer = dcpcse.Trainer(
        encoder, "dcpcse", args, sets, callbacks=[seen], pre_seq_len=3, guide=tiny("bert", seed=5)
    )
    step, expected, compute = trainer.step_module, [], trainer.training_step
    anchors = trainer.data_collator.tokenizer(sentences, padding=True)["input_ids"]

    def training_step(model, inputs, *others):
        with torch.no_grad():
            losses = step(**{name: value for name, value in inputs.items() if name != "rows"})
        views = inputs["input_ids"].shape[1]
        for ids in inputs["input_ids"][:, 0].tolist():
            assert (anchors.index(ids + [0] * (len(anchors[0]) - len(ids))) >= 6) == (views == 3)
        expected.append(({2: "pairs", 3: "triplets"}[views], sum(losses.values()).item()))
        return compute(model, inputs, *others)

    trainer.training_step = training_step
    trainer.train()
    logged = [{name: value for name, value in line.items() if name.startswith("loss_on")} for line in seen.logs[:8]]
    assert logged == [{f"loss_on_{name}": pytest.approx(value, rel=1e-5)} for name, value in expected]
    assert Counter(name for name, _ in expected[:4]) == {"pairs": 2, "triplets": 2}  # an epoch


def test_methods_train_pairs_beside_triplets_or_say_that_they_need_the_same_columns(tiny, sentences, arguments):
    pairs = [(sentences[i], sentences[i + 1]) for i in range(6)]
    sets, refused = {"pairs": pairs, "triplets": [(*pair, sentences[-1]) for pair in pairs]}, set()
    for method in METHODS:
        options, seen = with_encoder({"method": method}, tiny("bert")), Seen()
        try:
            trainer = dcpcse.Trainer(tiny("bert"), args=arguments(), train_dataset=sets, callbacks=[seen], **options)
        except dcpcse.UserError as error:
            assert "rows with 0 to 1 hard negatives, but the loss" in str(error)
            refused.add(method)
        else:
            trainer.train()
            assert {name for line in seen.logs for name in line} >= {"loss_on_pairs", "loss_on_triplets"}
    assert refused == {"sbert", "consert", "cosent", "angle", "d2cse", "diffcse"}


BUILDER = """
def mine(backbone, args, columns):
    terms = {"contrastive": Term(contrastive(args), WEIGHT)}
    return Method(sentence_encoder(backbone, args, []), sentence_pair_views(columns), terms)
"""


def in_cell(text: str, number: int) -> dict:
    """Run a cell as a notebook does: in __main__, with its source known to linecache."""
    names = {"__name__": "__main__", "Method": Method, "Term": Term, "contrastive": contrastive}
    names |= {"sentence_encoder": sentence_encoder, "sentence_pair_views": sentence_pair_views}
    file = f"<ipython-input-{number}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    return names


def test_a_function_of_a_cell_is_a_method_and_is_identified_by_its_source(tiny, sentences, arguments, tmp_path):
    def make(text: str, cell: int) -> dcpcse.Trainer:
        args = arguments(save_strategy="steps", save_steps=4)
        return dcpcse.Trainer(tiny("bert"), in_cell(text, cell)["mine"], args, sentences, pre_seq_len=2)

    trainer = make(BUILDER.replace("WEIGHT", "1.0"), 1)
    trainer.train()
    assert trainer.sentence_encoder.method == "mine" and "mine" not in METHODS
    reference = dcpcse.Trainer(tiny("bert"), "dcpcse", arguments("plain"), sentences, pre_seq_len=2)
    reference.train()
    assert_equal(trained(trainer), trained(reference))
    assert make(BUILDER.replace("WEIGHT", "1.0"), 2).train(resume_from_checkpoint=True).metrics == {}
    with pytest.raises(dcpcse.UserError, match="with another source of the method"):
        make(BUILDER.replace("WEIGHT", "2.0"), 3).train(resume_from_checkpoint=True)


def test_code_without_a_source_is_identified_by_its_instructions():
    def digest(text: str) -> dict[str, str]:
        exec(compile(text, "<unknown>", "exec"), names := {"__name__": "__main__"})
        return code_digest(names["build"])

    text = "def build(backbone, args, columns):\n    return [1 for x in columns if x in {'a', 'b', 'c'}]"
    assert len(digest(text)["source of the method"]) == 64
    assert digest(text) == digest(f"\n\n{text}") != digest(text.replace("'c'", "'d'"))
    assert code_digest(METHODS["simcse"].build) == {}


def test_all_kinds_of_model_and_method_train_the_same_weights(tiny, sentences, arguments, monkeypatch):
    """Loading an encoder draws random numbers, so the seed is set after it."""

    def then_seed(*args, **kwargs):
        backbone = load_backbone(*args, **kwargs)
        torch.manual_seed(42)
        return backbone

    monkeypatch.setattr(setup, "load_backbone", then_seed)
    backbone = load_backbone(tiny("bert"))
    named = dcpcse.Trainer(Path(tiny("bert")), "dcpcse", arguments(), sentences, pre_seq_len=2)
    loaded = dcpcse.Trainer(backbone, "dcpcse", arguments(), sentences, pre_seq_len=2)
    built = build_method(then_seed(tiny("bert")), model_arguments(pre_seq_len=2), ["anchor"])
    built = dcpcse.Trainer(method=built, args=arguments(), train_dataset=sentences)
    for trainer in (named, loaded, built):
        trainer.train()
        assert_equal(trained(named), trained(trainer))
        assert trainer.run_options["pre_seq_len"] == 2
    with torch.no_grad():
        backbone.model.embeddings.word_embeddings.weight[7] += 1
    with pytest.raises(dcpcse.UserError, match=r"model was changed after loading.*load it again"):
        dcpcse.Trainer(backbone, "dcpcse", arguments(), sentences)


def test_own_metrics_get_cosines_and_gold_scores_and_select_the_best_step(tiny, sentences, pairs, arguments):
    taken = []

    def metrics(prediction: transformers.EvalPrediction) -> dict[str, float]:
        taken.append(prediction)
        return {"pearson": pearsonr(prediction.predictions, prediction.label_ids).statistic}

    def make(folder: str, **how) -> dcpcse.Trainer:
        options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, **how}
        of_metrics = {"compute_metrics": metrics} if "metric_for_best_model" in how else {}
        return dcpcse.Trainer(tiny("bert"), "dcpcse", arguments(folder, **options), sentences, pairs, **of_metrics)

    def scores_of(trainer: dcpcse.Trainer, name: str) -> list[float]:
        return [entry[name] for entry in trainer.state.log_history if name in entry]

    trainer = make("own", load_best_model_at_end=True, metric_for_best_model="pearson")
    trainer.train()
    found = trainer.evaluate()
    first, second, gold = zip(*pairs, strict=True)
    vectors = (torch.from_numpy(trainer.sentence_encoder.encode(list(texts))) for texts in (first, second))
    np.testing.assert_allclose(taken[-1].predictions, F.cosine_similarity(*vectors), atol=1e-6)
    np.testing.assert_array_equal(taken[-1].label_ids, gold)
    assert found["eval_pearson"] == pearsonr(*taken[-1]).statistic
    assert found["eval_pairs_spearman"] == pytest.approx(spearmanr(*taken[-1]).statistic)
    seen = scores_of(trainer, "eval_pearson")
    assert len(seen) == 5 and found["eval_pearson"] == max(seen) == trainer.state.best_metric
    with pytest.raises(dcpcse.UserError, match=r"metric_for_best_model=.*pearsn\W: unknown; did you mean 'pearson'"):
        make("unknown", metric_for_best_model="pearsn").train()
    trainer = make("first", load_best_model_at_end=True)  # the first score selects the best step by default
    trainer.train()
    assert trainer.state.best_metric == max(scores_of(trainer, "eval_pairs_spearman"))


def test_all_kinds_of_evaluation_data(tiny, pairs, sentences, sts_data, arguments):
    options = {"eval_data_dir": sts_data, "custom_eval_data": True}
    classes = [(text, "even" if i % 2 else "odd") for i, text in enumerate(sentences * 2)]
    kinds = {
        "names": ["STSBenchmark"],
        "suite": load_suite(["STSBenchmark"], sts_data, settings_of_mode("dev", official=False)),
        **{"rows": pairs, "taken once": iter(pairs), "task": own_pairs(pairs), "labels": classes},
        "binary": [(a, b, i % 2) for i, (a, b, _) in enumerate(pairs)],
    }
    trainer = dcpcse.Trainer(tiny("bert"), args=arguments(), eval_dataset=kinds, **options)
    found = trainer.evaluate()
    same = {found[f"eval_{kind}_pairs_spearman"] for kind in ("rows", "taken once", "task")}
    assert len(same) == 1
    assert found["eval_names_stsb_spearman"] == found["eval_suite_stsb_spearman"]
    assert set(found) >= {"eval_labels_labels_accuracy", "eval_binary_pairs_ap"}
    assert trainer.evaluate(pairs) == {"eval_pairs_spearman": same.pop()}
    with pytest.raises(dcpcse.UserError, match="train_dataset is missing"):
        trainer.train()


def test_callbacks_reporters_and_optimizers_are_those_of_transformers(tiny, sentences, arguments, monkeypatch):
    reporter, seen = type("Reporter", (Seen,), {}), Seen()
    table = transformers.integrations.integration_utils.INTEGRATION_TO_CALLBACK
    monkeypatch.setitem(table, "reporter", reporter)
    method = build_method(load_backbone(tiny("bert")), model_arguments(), ["anchor"])
    optimizer = torch.optim.SGD([p for p in method.model.parameters() if p.requires_grad], lr=0.5)
    optimizers = (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0))
    args = arguments(report_to="reporter")
    trainer = dcpcse.Trainer(None, method, args, sentences, callbacks=[seen], optimizers=optimizers)
    before = trained(trainer)
    trainer.train()
    reports = next(one for one in trainer.callback_handler.callbacks if isinstance(one, reporter))
    assert [log["loss"] for log in reports.logs[:4]] == [log["loss"] for log in seen.logs[:4]]
    assert seen.steps == [1, 2, 3, 4] and {log["learning_rate"] for log in seen.logs[:4]} == {0.5}
    assert trainer.optimizer.optimizer is optimizer
    assert any(not torch.equal(before[name], weight) for name, weight in trained(trainer).items())


WRONG = (
    ({"model": 3}, "model is the number 3; give the name or the folder of an encoder"),
    ({"model": None}, "model is missing; give an encoder"),
    ({"method": partial(in_cell, "")}, "method is a partial; give a name, a function"),
    ({"method": lambda backbone, args, columns: None}, "the function <lambda> gives the method its name.*define it"),
    ({"args": {"max_steps": 3}}, "args is a dict; give dcpcse.TrainingArguments"),
    (
        {"args": transformers.TrainingArguments("x", use_cpu=True, label_smoothing_factor=0.1)},
        "factor is not supported",
    ),
    ({"train_dataset": ["one"]}, r"train_dataset \(list of 1 row\) has 1 training example; give at least 2"),
    ({"eval_dataset": "pairs.tsv"}, r"eval_dataset pairs.tsv is not a task \(STSBench.*; for a file, give own_pairs"),
    (
        {"eval_dataset": [("a", "b", "c", 1.0)] * 3},
        "eval_dataset has 4 columns, not two or three; give pairs with scores",
    ),
    ({"compute_metrics": "f1"}, "compute_metrics is the string 'f1'; give a function"),
    ({"pre_seq_length": 3}, "unknown option pre_seq_length; did you mean 'pre_seq_len'"),
    ({"pre_seq_len": "3"}, 'pre_seq_len="3": must be a whole number'),
    ({"tuning": "full", "pre_seq_len": 3}, "pre_seq_len has no effect without tuning"),
)
WRONG_RUNS = (
    ({"bf16": "yes"}, 'bf16="yes": must be True or False'),
    ({"eval_strategy": "steps"}, "eval_dataset is missing; give evaluation data"),
    ({"lr": 0.1}, r"unknown option lr; did you mean learning_rate\?"),
)
WRONG_RUNS = (
    ({"bf16": "yes"}, 'bf16="yes": must be True or False'),
    ({"eval_strategy": "steps"}, "eval_dataset is missing; give evaluation data"),
    ({"push_to_hub": True}, "push_to_hub"),
    ({"lr": 0.1}, r"unknown option lr; did you mean learning_rate\?"),
    ({"zzz": 1}, "unknown option zzz; see the options"),
)


def test_a_wrong_argument_or_option_is_refused_in_one_line(tiny, sentences, arguments):
    usual = {"model": tiny("bert"), "train_dataset": sentences}
    calls = [(given, arguments(), message) for given, message in WRONG]
    for given, how, message in [*calls, *(({}, how, message) for how, message in WRONG_RUNS)]:
        with pytest.raises(dcpcse.UserError, match=message) as caught:
            dcpcse.Trainer(**{**usual, "args": arguments(**how) if isinstance(how, dict) else how, **given})
        assert "\n" not in str(caught.value) and "--" not in str(caught.value)
