"""Every method from train.py to evaluation.py on tiny encoders, and the public PromptBERT code's command lines."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from method_models import COLUMNS, with_encoder
from runs import files, words

import dcpcse
from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import fingerprints
from dcpcse.encoders.template_denoising import Denoising
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.methods import METHODS

RECIPES = {
    **{name: ("bert", "train_csv" if name in COLUMNS else "train_txt", {"method": name}) for name in METHODS},
    "sbert, labels": ("roberta", "labelled_csv", {"method": "sbert", "tuning": "deep"}),
    "sbert, scores": ("roberta", "scored_csv", {"method": "sbert", "tuning": "lora"}),
    "angle, scores": ("roberta", "scored_csv", {"method": "angle", "tuning": "deep", "matryoshka_dims": [32, 8]}),
    "simcse, supervised": ("roberta", "train_csv", {"method": "simcse", "do_mlm": True}),
    "promptbert, supervised": ("roberta", "train_csv", {"method": "promptbert", "org_mlp": True}),
    "promptbert, deep, three templates": (
        *("roberta", "train_txt"),
        {"method": "promptbert", "tuning": "deep", "final_period": True, "further_templates": ["[MASK] {sentence}"]},
    ),
    "optiprompt": ("roberta", "train_txt", {"method": "promptbert", "tuning": "shallow"}),
    "conpvp, hard negatives": (
        *("roberta", "train_csv"),
        {"method": "conpvp", "tuning": "lora", "denoise_by": "attention", "do_mlm": True},
    ),
    "conpvp, deep": ("bert", "train_txt", {"method": "conpvp", "tuning": "deep", "instance_weight": 0.5}),
    "d2cse, labels": ("bert", "labelled_csv", {"method": "d2cse"}),
    "d2cse, vectors": ("roberta", "train_csv", {"method": "d2cse", "prompt_form": "vectors"}),
    "dcpcse, prototypes": (
        *("roberta", "train_csv"),
        {"method": "dcpcse", "template": "{sentence} [MASK]", "pooler_type": "mask", "prototypes": "both"},
    ),
    "dcpcse, [CLS] prompt": ("bert", "train_csv", {"method": "dcpcse", "cls_prompt": True, "do_eh_loss": True}),
    "consert, deep": (
        "roberta",
        "train_csv",
        {"method": "consert", "tuning": "deep", "augmentation_1": "adversarial"},
    ),
    "esimcse, lora": ("bert", "train_csv", {"method": "esimcse", "tuning": "lora", "do_mlm": True}),
    "esimcse, vectors": ("bert", "train_txt", {"method": "esimcse", "tuning": "deep", "prompt_form": "vectors"}),
}
EVERYTHING = 'This sentence of "[MASK]" means {sentence} [PROMPT] .'


def evaluating(folder, sts_data) -> list[str]:
    return ["--model_name_or_path", str(folder), "--mode", "dev", "--data_dir", sts_data, "--custom_data"]


def score_of(path) -> float:
    return json.loads(path.read_text(encoding="utf-8"))["scores_x100"]["STSBenchmark"]


@pytest.fixture(scope="module", params=RECIPES)
def trained(request, train, tiny, sts_data):
    """A run of each recipe, measured at its end."""
    kind, data, options = RECIPES[request.param]
    options = with_encoder(options, tiny(kind))
    measuring = {"eval_strategy": "steps", "eval_steps": 2, "eval_data_dir": sts_data, "custom_eval_data": True}
    return train(tiny(kind), request.getfixturevalue(data), max_steps=2, **measuring, **options)


def test_what_is_frozen_stays_bit_for_bit_and_what_is_trained_moves(trained):
    args, final = yaml.safe_load((trained.folder / "run.yaml").read_text(encoding="utf-8")), trained.final
    moved = {name for name, tensor in final.items() if not torch.equal(tensor, trained.initial[name])}
    backbone = {name for name in final if name.startswith("model.encoder.backbone.")}
    if args["tuning"] == "full":
        still = {name for name in backbone - moved if "key.bias" not in name and "LayerNorm.bias" not in name}
        assert not still  # gradients are zero of key biases, and of what denoising takes away again
    adapter = {name for name in backbone if ".lora_" in name}
    if args["tuning"] == "lora":
        assert len(adapter) == 2 * 2 * 3  # A and B of queries and values in 3 layers
        assert adapter <= moved
        contents = json.loads((trained.folder / "dcpcse.json").read_text(encoding="utf-8"))
        assert contents["lora"]["target_modules"] == ["attention.self.query", "attention.self.value"]
        assert contents["base"]["weights"] == fingerprints(load_backbone(args["model_name_or_path"]).model)[1]
    if args["tuning"] != "full":
        assert not moved & (backbone - adapter)
    parts = ("model.encoder.prompt", "model.encoder.shallow", "model.encoder.cls_prompt")
    prompts = {name for name in final if name.startswith(parts)}
    heads = {name for name in final if name.startswith("model.head")}
    assert {name for name in prompts | heads if name != "model.head.norm.bias"} <= moved
    own = ("losses.crtd.", "losses.classification.")
    assert {name for name in moved if not name.startswith(own)} <= prompts | heads | backbone
    assert not {name for name in moved if "generator" in name}


def test_the_folder_gives_the_embeddings_of_the_trained_model(trained, sentences, sts_data, tool, tmp_path):
    """To Python and to the evaluation, and of a sentence with a template's marks in any batch."""
    texts = [*sentences, EVERYTHING, 'He said "x"', ""]
    model = dcpcse.load(trained.folder, device="cpu")
    vectors = model.encode(texts)
    np.testing.assert_array_equal(vectors, trained.trainer.step_module.model.encode(texts))
    assert np.isfinite(vectors).all()
    for batch_size in (1, 3):
        np.testing.assert_allclose(model.encode(texts[6:], batch_size=batch_size), vectors[6:], atol=3e-5)
    path = tmp_path / "scores.json"
    outcome = tool(evaluate_command, [*evaluating(trained.folder, sts_data), "--output_file", str(path)])
    assert outcome.code == 0, outcome.err
    assert score_of(path) == pytest.approx(100 * trained.logged("eval_stsb_spearman")[-1], abs=1e-6)


REPEATED = ("diffcse", "promptbert, deep, three templates", "conpvp, hard negatives", "consert, deep", "esimcse, lora")


@pytest.mark.parametrize("trained", REPEATED, indirect=True)
def test_the_run_yaml_starts_the_same_run_again(trained, tool, tmp_path):
    outcome = tool(train_command, [str(trained.folder / "run.yaml"), "--output_dir", str(tmp_path / "again")])
    assert outcome.code == 0, outcome.err
    first, second = (dcpcse.load(folder, device="cpu") for folder in (trained.folder, tmp_path / "again"))
    np.testing.assert_array_equal(first.encode([EVERYTHING]), second.encode([EVERYTHING]))
    assert first.record() == second.record()


def test_overwriting_takes_a_result_and_no_foreign_encoder(tiny, train, train_txt, sentences, tool, tmp_path):
    folder = shutil.copytree(tiny("roberta"), tmp_path / "mine")
    before = files(folder)
    outcome = tool(train_command, train.argv(tiny("bert"), train_txt, folder, overwrite_output_dir=True))
    assert outcome.code == 2 and "that dcpcse train did not write" in outcome.err
    assert files(folder) == before
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    folder = train(tiny("bert"), train_txt, mlp_only_train=True, **options).folder
    assert (folder / "adapter_model.safetensors").is_file() and (folder / "checkpoint-1").is_dir()
    for method in ("promptbert", "dcpcse", "simcse"):
        run = train(tiny("bert"), train_txt, folder=folder, method=method, overwrite_output_dir=True, max_steps=1)
        expected = run.trainer.step_module.model.encode(sentences)
        np.testing.assert_array_equal(dcpcse.load(folder, device="cpu").encode(sentences), expected)
        names = {"promptbert": "backbone", "dcpcse": "prompts.safetensors", "simcse": "modules.json"}
        assert {name for name in names if (folder / names[name]).exists()} == {method}
        assert not [*folder.glob("checkpoint-*"), *folder.glob("adapter_*")]


def test_the_best_checkpoint_of_a_trained_encoder_becomes_the_result(tiny, train, train_txt, sts_data):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": None, "load_best_model_at_end": True}
    options |= {"eval_data_dir": sts_data, "custom_eval_data": True, "learning_rate": 0.01}
    run = train(tiny("bert"), train_txt, method="promptbert", **options)
    result, best = (dcpcse.load(f, device="cpu") for f in (run.folder, run.trainer.state.best_model_checkpoint))
    np.testing.assert_array_equal(result.encode([EVERYTHING]), best.encode([EVERYTHING]))


def test_dev_sets_may_be_measured_with_denoising_and_the_result_without(train, tiny, train_txt, sts_data):
    options = {"eval_strategy": "steps", "eval_steps": 2, "eval_data_dir": sts_data, "custom_eval_data": True}
    options |= {"method": "promptbert", "max_steps": 2}
    plain, denoised = (train(tiny("bert"), train_txt, **options, denoise_in_dev=value) for value in (False, True))
    assert plain.logged("loss") == denoised.logged("loss")
    assert plain.logged("eval_stsb_spearman") != denoised.logged("eval_stsb_spearman")
    assert not dcpcse.load(denoised.folder).denoising.inference


def test_another_pooler_on_a_denoising_folder_takes_no_template_away(tiny, train, train_csv, sentences):
    folder = train(tiny("bert"), train_csv, method="promptbert", max_steps=1).folder
    expected = dcpcse.load(folder, device="cpu")
    assert expected.denoising.inference
    expected.denoising, expected.pooling, expected.head_at_inference = Denoising(), "avg", False
    model = load_model(str(folder), EncoderArguments(pooler_type="avg", device="cpu"))
    np.testing.assert_array_equal(model.encode(sentences), expected.encode(sentences))


# The public PromptBERT code (SPEC 4.1, 4.6, 4.7)


BERT_TEMPLATE = '*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*'
SECOND = '*cls*_This_sentence_:_"*sent_0*"_means*mask*.*sep+*'
BERT = {"template": BERT_TEMPLATE}
PUBLIC = {
    "unsupervised BERT": ("train_txt", {**BERT, "different_template": SECOND, "delta": True}, BERT),
    "supervised BERT": (
        *("train_csv", {**BERT, "delta": True, "org_mlp": True, "delta_no_delta_eval": True}),
        {**BERT, "delta": True, "org_mlp": True, "use_pooler": True},
    ),
    "OptiPrompt": (
        *("train_txt", {"template": SECOND, "autoprompt": True, "autoprompt_random_init": True, "avg": True}),
        {"template": SECOND, "autoprompt": True},
    ),
}
"""Name → data, options of training and of evaluation after `mask_embedding_sentence_`."""


def public_options(options: dict) -> dict:
    return {"mask_embedding_sentence": True} | {f"mask_embedding_sentence_{name}": o for name, o in options.items()}


@pytest.mark.parametrize("script", PUBLIC)
def test_a_public_promptbert_script_runs_and_is_evaluated(script, train, tiny, sts_data, tool, tmp_path, request):
    data, options, asked = PUBLIC[script]
    data, unsupervised = request.getfixturevalue(data), data == "train_txt"
    given = {**public_options(options), "mlp_only_train": unsupervised, "max_steps": 1}
    outcome = tool(train_command, train.argv(tiny("bert"), data, tmp_path / "out", **given))
    assert outcome.code == 0, outcome.err
    for name in options:
        assert f"--mask_embedding_sentence_{name} " in outcome.said
    model = dcpcse.load(tmp_path / "out")
    assert model.final_period
    delta = "delta" in options
    assert model.denoising.training == delta
    assert model.denoising.inference == (delta and not unsupervised)
    run = yaml.safe_load((tmp_path / "out/run.yaml").read_text(encoding="utf-8"))
    in_dev = delta and "delta_no_delta_eval" not in options
    assert run.get("denoise_in_dev") == (in_dev if delta else None)
    words_given = [*evaluating(tmp_path / "out", sts_data), "--pooler", "avg", *words(public_options(asked))]
    measured = tool(evaluate_command, words_given)
    assert measured.code == 0, measured.err
    assert "as trained" in measured.said


def test_public_switches_on_an_encoder_as_it_is(tiny, sts_data, tool):
    words = ["--embedding_only", "--remove_continue_word"]
    outcome = tool(evaluate_command, [*evaluating(tiny("bert"), sts_data), *words])
    assert outcome.code == 0, outcome.err
    assert "means --pooler_type static" in outcome.said and "means --remove frequency" in outcome.said
