"""What `dcpcse info` tells of a folder, beside what is found when the model in it is loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from method_models import with_encoder
from model_folders import edit_record, refused
from safetensors.torch import save_file
from sentence_folders import write_sentence_folder

import dcpcse
from dcpcse.cli.commands.info import format_facts, info_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import build_method, model_arguments

METHODS = {
    "simcse, head in training only": {"method": "simcse", "mlp_only_train": True},
    "dcpcse": {"method": "dcpcse", "pre_seq_len": 3},
    "dcpcse, projected": {"method": "dcpcse", "prefix_projection": True, "prefix_hidden_size": 6},
    "dcpcse, vectors": {"method": "dcpcse", "prompt_form": "vectors", "pre_seq_len": 3},
    "diffcse": {"method": "diffcse", "batchnorm": True},
    "d2cse": {"method": "d2cse", "cls_prompt": True, "batchnorm": True, "pre_seq_len": 2},
    "promptbert": {"method": "promptbert", "final_period": True, "denoise_at_inference": True},
    "conpvp": {"method": "conpvp"},
}
RECORDED = ("method", "arguments", "pooling", "head", "template", "prompt", "cls_prompt", "position_offset", "dtype")


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(kind, **options) → folder of an untrained model of a method."""

    def get(kind: str = "bert", **options) -> Path:
        options = with_encoder(options, tiny(kind))
        model = build_method(load_backbone(tiny(kind)), model_arguments(**options), ["anchor"]).model
        model.save(tmp_path / "model")
        return tmp_path / "model"

    return get


def tell(folder: Path) -> dict:
    problems = []
    facts = describe_folder(folder, problems.append)
    assert not problems
    return json.loads(json.dumps(facts))


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", METHODS)
def test_it_tells_what_loading_finds(name, kind, saved, tiny):
    folder = saved(kind, **METHODS[name])
    facts, model = tell(folder), dcpcse.load(folder, device="cpu")
    encoder, record = model.encoder, model.record()
    parts = {"head": model.head, **{name: getattr(encoder, name) for name in ("prompt", "shallow", "cls_prompt")}}
    parts["backbone"] = encoder.backbone if encoder.tuned else None
    counts = {part: sum(p.numel() for p in one.parameters()) for part, one in parts.items() if one is not None}
    assert facts["parameters"] == {"trained": sum(counts.values()), "of_these": counts}
    assert {key: facts[key] for key in RECORDED} == {key: record[key] for key in RECORDED}
    assert facts["shallow_prompt"] == record["shallow"] and facts["matryoshka_dims"] == []
    assert {key: facts["base"][key] for key in record["base"]} == record["base"]
    assert facts["base"]["found"] is True
    assert facts["base"]["where"].startswith("trained, saved in") == encoder.tuned
    assert facts["files"]["dcpcse.json"] == (folder / "dcpcse.json").stat().st_size and facts["scores"] == {}
    assert model.template is None or str(model.template.template) in format_facts(facts)


def test_whether_the_base_is_at_its_recorded_location(saved, tiny, tmp_path, monkeypatch):
    folder = saved(method="dcpcse")
    edit_record(folder, arguments={"matryoshka_dims": [32, 16, 8]})
    record = json.loads((folder / "dcpcse.json").read_text())
    assert tell(folder)["matryoshka_dims"] == [32, 16, 8]

    def base(place: str) -> dict:
        edit_record(folder, base=record["base"] | {"name_or_path": place})
        return tell(folder)["base"]

    assert base(tiny("bert"))["found"] is True
    for place, message in (
        (str(tmp_path / "gone"), "does not exist"),
        (str(tmp_path), "contains no config.json"),
        (tiny("roberta"), "contains a different encoder, with model_type roberta"),
        (tiny("bert", hidden_size=16), "contains a different encoder, with hidden_size 16"),
    ):
        where = base(place)
        assert where["found"] is False and message in where["where"]
    assert base("someone/some-encoder")["found"] is None
    cache = tmp_path / "cache/models--someone--some-encoder"
    for name, text in {"refs/main": "abc", "snapshots/abc/config.json": "{}"}.items():
        (cache / name).parent.mkdir(parents=True)
        (cache / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert base("someone/some-encoder")["found"] is True


def test_scores_of_the_run_and_of_evaluations_are_shown(saved, tmp_path, capsys, caplog):
    folder = saved(method="dcpcse")
    record = json.loads((folder / "dcpcse.json").read_text())
    model = {"method": "dcpcse", "pooling": "cls", "head_at_inference": True, "base": record["base"]}
    report = {"mode": "test", "scores_x100": {"STS12": 71.5}, "averages_x100": {"sts": 71.5}, "model": model}
    lines = [{"step": step, "eval_stsb_spearman": value} for step, value in ((2, 0.7), (4, 0.6))]
    for path, text in {
        folder / "run.yaml": "method: dcpcse\nmax_steps: 4\n",
        folder / "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        folder / "trainer_state.json": '{"global_step": 4, "max_steps": 4}',
        folder / "own.json": json.dumps(report),
        tmp_path / "scores.json": json.dumps(report),
        tmp_path / "others.json": json.dumps(report | {"model": model | {"method": "simcse"}}),
        tmp_path / "broken.json": "{",
    }.items():
        path.write_text(text, encoding="utf-8")
    scores = tell(folder)["scores"]
    dev = {"stsb_spearman": {"best": 0.7, "best_step": 2, "last": 0.6}}
    assert scores["run"] == {"steps_done": 4, "steps_planned": 4, "finished": True, "dev": dev}
    assert set(scores["evaluations"]) == {"own.json", "../scores.json"}
    assert run(info_command, [str(folder)]) == 0
    assert "own.json (test): sts average 71.50, STS12 71.50" in capsys.readouterr().out
    shutil.copytree(folder, tmp_path / "another")
    assert set(tell(folder)["scores"]["evaluations"]) == {"own.json"}, "the scores above may be of either model"
    (folder / "trainer_state.json").write_text("{", encoding="utf-8")
    assert run(info_command, [str(folder), "--json"]) == 0
    assert "trainer_state.json is damaged" in caplog.text
    assert json.loads(capsys.readouterr().out)["method"] == "dcpcse"


def test_hugging_face_folders_are_described(tiny, tmp_path):
    facts = tell(Path(tiny("roberta")))
    wanted = ("Hugging Face folder", "roberta", 32, 3, "float32")
    assert tuple(facts[k] for k in ("kind", "model_type", "hidden_size", "num_hidden_layers", "dtype")) == wanted
    model = load_backbone(tiny("roberta"), lm_head="checkpoint")
    assert facts["parameters"]["in_all"] > sum(p.numel() for p in model.model.parameters())
    folder = Path(write_sentence_folder(tmp_path / "st", tiny("bert", masked_lm=False)))
    facts = tell(folder)
    assert facts["sentence_transformers_pooling"] == "mean"
    assert facts["files"]["1_Pooling/"] == (folder / "1_Pooling/config.json").stat().st_size
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model-00001.bin").write_bytes(b"anything")
    assert tell(folder)["weights"] == "pytorch_model-00001.bin: a pickle, not opened"
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    refused(r"pytorch_model\.bin is damaged", describe_folder, folder, pytest.fail)


def test_checkpoints_of_other_code_peft_adapters_and_unfinished_runs_are_described(tiny, tmp_path):
    shutil.copytree(tiny("bert"), tmp_path / "promcse")
    tensors = {"prefix_encoder.embedding.weight": torch.ones(3, 192), "bert.encoder.x": torch.ones(2).half()}
    save_file(tensors, tmp_path / "promcse/model.safetensors")
    facts = tell(tmp_path / "promcse")
    assert facts["checkpoint_of"] == "DCPCSE or PromCSE"
    assert (facts["parameters"], facts["dtype"]) == ({"in_all": 578}, "float16, float32")
    folder, begun = tmp_path / "adapter", tmp_path / "run"
    folder.mkdir()
    config = {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 3, "base_model_name_or_path": tiny("bert")}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"prompt_embeddings": torch.ones(3, 192)}, folder / "adapter_model.safetensors")
    facts = tell(folder)
    assert (facts["kind"], facts["peft_type"], facts["num_virtual_tokens"]) == ("PEFT adapter", "PREFIX_TUNING", 3)
    assert facts["base"]["found"] is True and facts["parameters"] == {"in_all": 576}
    (begun / "checkpoint-20").mkdir(parents=True)
    (begun / "run.yaml").write_text("max_steps: 40\n", encoding="utf-8")
    facts = tell(begun)
    assert facts["newest_checkpoint"] == "checkpoint-20" and facts["scores"]["run"]["finished"] is False


def test_an_unknown_or_damaged_folder_is_one_line(saved, tmp_path):
    def refused_for(folder: Path, message: str) -> None:
        refused(message, describe_folder, folder, print)

    folder, empty = saved(method="dcpcse", mlp_only_train=False), tmp_path / "empty"
    empty.mkdir()
    refused_for(tmp_path / "nowhere", "does not exist; give the folder")
    refused_for(folder / "dcpcse.json", "is a file; give the folder")
    refused_for(empty, "contains none of dcpcse.json, adapter_config.json, config.json, run.yaml")
    record, trained = json.loads((folder / "dcpcse.json").read_text()), (folder / "trained.safetensors").read_bytes()
    (folder / "trained.safetensors").write_bytes(trained[:50])
    refused_for(folder, "is damaged")
    (folder / "trained.safetensors").write_bytes(trained)
    for change in ({"base": "x"}, {"base": {}}, {"prompt": 3}, {"template": {"text": "x"}}):
        (folder / "dcpcse.json").write_text(json.dumps(record | change), encoding="utf-8")
        refused_for(folder, r"dcpcse\.json is damaged")
    (folder / "dcpcse.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "prompts.safetensors").unlink()
    refused_for(folder, r"prompts\.safetensors is missing")
