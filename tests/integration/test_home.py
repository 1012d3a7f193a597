"""`~` is the home folder wherever a path is taken, on the command line, in files of options and in Python."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dcpcse
from dcpcse.analysis.plots.inputs import labelled
from dcpcse.cli.commands.compare import _models, compare_parser
from dcpcse.cli.commands.predict import predict_parser
from dcpcse.cli.commands.search import search_parser
from dcpcse.cli.main import main
from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments

QUICK = {"max_steps": 1, "per_device_train_batch_size": 4, "eval_strategy": "no", "save_strategy": "no"}
QUICK |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def home(tiny, sentences, tmp_path, monkeypatch) -> Path:
    """A home folder with an encoder and data; the working folder is another one."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    shutil.copytree(tiny("bert"), home / "encoder")
    (home / "texts.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    pairs = [f"{a}\t{b}\t{i}\n" for i, (a, b) in enumerate(itertools.pairwise(sentences))]
    (home / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs), encoding="utf-8")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    yield home
    assert not list(work.iterdir())  # no folder of the name ~


def test_options_of_a_command_line_and_of_a_file_are_in_the_home_folder(home):
    given = {"model_name_or_path": "~/encoder", "train_file": "~/texts.txt", "output_dir": "~/out"}
    given |= {"cache_dir": "~/cache", "eval_pairs": "~/pairs.tsv", "init_from": "~/before"}
    expected = {name: str(home / value.removeprefix("~/")) for name, value in given.items()}
    (home / "options.json").write_text(json.dumps(given))
    for words in ([f"--{name}={value}" for name, value in given.items()], ["~/options.json"]):
        parts, _ = parse_training(words)
        found = {name: value for part in parts for name, value in vars(part).items() if name in expected}
        assert found == expected
    options, _ = parse_evaluation(["--model_name_or_path=~/e", "--retrieval", "~/a", "~/b:dev", "--mteb=~/x.py:Y"])
    assert (options.retrieval, options.mteb) == ([f"{home}/a", f"{home}/b:dev"], [f"{home}/x.py:Y"])
    args = compare_parser().parse_args(["~/a", "--model", "b=~/b,~/c"])
    assert _models(args)[1] == [[f"{home}/a"], [f"{home}/b", f"{home}/c"]]
    assert labelled(["a=~/a"]) == {"a": f"{home}/a"}


def test_texts_that_begin_with_the_sign_stay_as_they_are(home):
    template = "~/{sentence} [MASK]"
    assert search_parser().parse_args(["~/model", "~/text", "~"]).query == ["~/text", "~"]
    predict = predict_parser().parse_args(["~/text", "--model_name_or_path=~/m", f"--template={template}"])
    assert (predict.sentences, predict.template) == (["~/text"], template)
    words = ["--method=promptbert", f"--template={template}", "--further_templates", template, "--output_dir=x"]
    (model, *_), _ = parse_training(words)
    assert (model.template, *model.further_templates) == (template, template)
    assert EncoderArguments(template=template).template == template


def test_functions_in_python_take_paths_in_the_home_folder(home):
    places = {"output_dir": "~/out", "cache_dir": "~/cache", "eval_pairs": Path("~/pairs.tsv")}
    result = dcpcse.train("~/encoder", "~/texts.txt", method="dcpcse", pooler_type="avg", **QUICK, **places)
    assert result.folder == home / "out" and (home / "cache").is_dir()
    assert result.save("~/copy") == home / "copy"
    model = dcpcse.load(Path("~/out"), base="~/encoder", device="cpu")
    vectors = model.encode(["Rain fell."])
    model.save("~/saved")
    adapter = dcpcse.Adapters.load({"a": "~/saved"}, "~/encoder", device="cpu")["a"]
    np.testing.assert_allclose(adapter.encode(["Rain fell."]), vectors, atol=1e-6)
    assert dcpcse.evaluate("~/saved", pairs="~/pairs.tsv", cache_dir="~/embeddings", show_progress=False).results
    done = dcpcse.encode_file("~/out", "~/texts.txt", EncodingArguments(output="~/v.npy"), EncoderArguments())
    assert done.output == home / "v.npy" and done.output.is_file()
    dcpcse.SentenceIndex.build(model, ["Rain fell."], "~/index")
    assert (home / "embeddings").is_dir() and (home / "index").is_dir()
    dcpcse.export("~/saved", "sentence-transformers", "~/exported", base="~/encoder")
    assert main(["info", "~/exported"]) == main(["doctor", "~/out", "--base=~/encoder"]) == 0
