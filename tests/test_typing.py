"""The types of the public interface are complete: mypy --strict accepts a user's script and finds its mistakes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
from typing import Any, assert_type

import torch

import dcpcse
from dcpcse.losses import EncodedBatch, PerRowLoss

sentences = ["A man plays the flute.", "Rain fell."]

model = dcpcse.load("result/my-model", device="cpu")
assert_type(model, dcpcse.SentenceEncoder)
vectors = model.encode(sentences, batch_size=32, normalize=True)
print(vectors.shape, model.dimension, model.device)

assert_type(dcpcse.similarity(model, "A man plays.", "Rain fell."), float)
print(dcpcse.similarity(model, sentences, sentences).argmax(axis=1))

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


dcpcse.load(5)  # wrong
dcpcse.lod("result/my-model")  # wrong
dcpcse.load("result/my-model", pooling="avg")  # wrong
model.encode(sentences, normalise=True)  # wrong
model.encode(["a"], batch_size="all")  # wrong
index.search("Who plays?", top_k="5")  # wrong
print(index.search("Who plays?")[0].cosine)  # wrong
dcpcse.Adapters.load(["result/reviews"])  # wrong
dcpcse.similarity(model, "a", "b").mean()  # wrong
"""

OTHERS = ("accelerate", "gradio", "huggingface_hub", "IPython", "matplotlib", "onnx", "onnxscript", "optuna", "peft")
OTHERS += ("polars", "ray", "sqlalchemy", "transformers")
CONFIGURATION = f"""
[mypy]
strict = true
[mypy-{",".join(f"{name}.*" for name in OTHERS)}]
follow_imports = skip
"""
"""Other libraries count as Any, since reading transformers alone takes mypy half a minute. The result is the same."""


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


def test_the_packages_say_that_they_have_types():
    assert (ROOT / "dcpcse/py.typed").is_file()
    assert (ROOT / "SentEval/senteval/py.typed").is_file()
