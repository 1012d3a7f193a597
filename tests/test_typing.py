"""The types of the public interface are complete: mypy --strict accepts a user's script and finds its mistakes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
from pathlib import Path
from typing import Any, assert_type
import numpy as np
import torch
import dcpcse
from dcpcse.losses import EncodedBatch, PerRowLoss, Term
from dcpcse.methods import Method, sentence_encoder, sentence_pair_views
sentences = ["A man plays the flute.", "Rain fell."]
pairs = [("Rain fell.", "It rained.", 4.8), ("Rain fell.", "A cat sleeps.", 0.2)]
model = dcpcse.load(Path("result/my-model"), device="cpu", pooler="avg")
assert_type(model, dcpcse.SentenceEncoder)
vectors = model.encode(sentences, batch_size=32, normalize=True)
print(vectors.shape, model.dimension, model.device)
result = dcpcse.train("bert-base-uncased", sentences, learning_rate=3e-2, pre_seq_len=16, eval_pairs=pairs)
assert_type(result.model, dcpcse.SentenceEncoder)
assert_type(result.metrics, dict[str, float])
assert_type(result.folder, Path)
result.plot().savefig("curves.png")
result.trainer.train()
evaluation = dcpcse.evaluate(model, "sts", mode="dev", data_dir=Path("SentEval/data"))
assert_type(evaluation.scores, dict[str, float])
dcpcse.evaluate("bert-base-uncased", ["STSBenchmark"])
dcpcse.evaluate(lambda texts: np.zeros((len(texts), 3)), pairs)
mined = dcpcse.mine(model, [("Rain fell.", "It rained.")], output="mined.csv", guide=lambda texts: vectors)
print(mined, mined.rows, mined.statistics["negative"]["mean"])
assert_type(dcpcse.compare([model, result.model], pairs=pairs), dcpcse.Comparison)
assert_type(dcpcse.similarity(model, "A man plays.", "Rain fell."), float)
print(evaluation.to_pandas().columns, dcpcse.similarity(model, sentences, sentences).argmax(axis=1))
index = dcpcse.SentenceIndex.build(model, sentences)
for sentence, score, row in index.search("Who plays?", top_k=2):
    print(sentence.upper(), round(score, 2), row + 1)
print([hit.score for hits in index.search(sentences) for hit in hits])
index.save("index", overwrite=True)
adapters = dcpcse.Adapters.load({"reviews": "result/reviews"})
print(adapters.encode(sentences, ["reviews", "reviews"]).shape, adapters.names, adapters["reviews"].dimension)
tool = dcpcse.SimCSE("result/my-model")
print(tool.encode("Rain fell.").norm(), tool.encode(sentences, return_numpy=True).mean())
try:
    dcpcse.export("result/my-model", "onnx", "exported")
except dcpcse.UserError as error:
    print(str(error))
class Margin(PerRowLoss):
    def num_items(self, batch: EncodedBatch, sampled: Any) -> int:
        return len(batch.input_ids)
    def mean(self, batch: EncodedBatch, sampled: Any) -> torch.Tensor:
        return batch.embeddings["anchor"].square().mean()
def margin(backbone: Any, args: Any, columns: Any) -> Method:
    model = sentence_encoder(backbone, args, [])
    return Method(model, sentence_pair_views(columns), {"margin": Term(Margin(), 0.5)})
class OwnTrainer(dcpcse.Trainer):
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log({**logs, "twice": 2 * logs["loss"]}, start_time)
args = dcpcse.TrainingArguments(output_dir="result/own", max_steps=4)
OwnTrainer(model="bert-base-uncased", method=margin, args=args, train_dataset=sentences, tuning="deep").train()
encoder = dcpcse.pretrain("text.txt", output_dir=Path("encoder"), size="mini", max_steps=10)
assert_type(encoder.figures, dict[str, float])
dcpcse.train(encoder.folder, sentences, method=margin, trainer_class=OwnTrainer)
dcpcse.load(5)  # wrong
dcpcse.pretrain("text.txt")  # wrong
dcpcse.train("bert-base-uncased", sentences, method=5)  # wrong
print(result.modle)  # wrong
dcpcse.evaluate(model, "sts", batch_size="128")  # wrong
print(evaluation.scores["STSBenchmark"].upper())  # wrong
dcpcse.compare(5)  # wrong
dcpcse.lod("result/my-model")  # wrong
model.encode(["a"], batch_size="all")  # wrong
print(index.search("Who plays?")[0].cosine)  # wrong
dcpcse.Adapters.load(["result/reviews"])  # wrong
dcpcse.similarity(model, "a", "b").mean()  # wrong
"""

OTHERS = ("accelerate", "gradio", "huggingface_hub", "IPython", "matplotlib", "onnx", "onnxscript", "peft")
OTHERS += ("polars", "ray", "sqlalchemy", "torch", "transformers")
CONFIGURATION = f"""
[mypy]
strict = true
[mypy-{",".join(f"{name}.*" for name in OTHERS)}]
follow_imports = skip
"""
"""Other libraries count as Any, since reading transformers and torch takes mypy most of its time."""


def test_mypy_strict_accepts_a_script_that_uses_the_interface_and_finds_its_mistakes(tmp_path):
    pytest.importorskip("mypy", reason="needs mypy (requirements-dev.txt)")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIGURATION, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", os.devnull, "script.py"]
    # As for a user who has installed the package: mypy takes the types of a library only if it has the file py.typed.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "SentEval")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = {int(line): text for line, text in re.findall(r"^script\.py:(\d+): error: (.*)$", done.stdout, re.M)}
    wrong = {number for number, line in enumerate(SCRIPT.splitlines(), start=1) if "# wrong" in line}
    assert found.keys() == wrong, done.stdout + done.stderr
    assert all((ROOT / package / "py.typed").is_file() for package in ("dcpcse", "SentEval/senteval"))
