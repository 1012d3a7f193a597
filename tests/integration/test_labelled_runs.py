"""Training on labelled pairs, from train.py on: what is learned, logged, resumed and refused."""

import pytest
import torch
from runs import assert_same_weights, refused

from dcpcse.cli.commands.train import train_command

LEARNING = {"method": "sbert", "max_steps": 30, "per_device_train_batch_size": 12, "learning_rate": 2e-3}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_cache_chunk": 5},
        {"tuning": "deep", "pre_seq_len": 8, "learning_rate": 0.05},
        {
            "tuning": "shallow",
            "template": "a b c d {sentence} [MASK] .",
            "pooler_type": "mask",
            "mlp_only_train": True,
            "learning_rate": 0.01,
        },
    ],
    ids=["full", "in chunks", "deep", "shallow"],
)
def test_labels_are_learned(options, tiny, train, labelled_csv):
    run = train(tiny("bert"), labelled_csv, **{**LEARNING, **options})
    losses, accuracies = run.logged("loss"), run.logged("accuracy")
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert sum(accuracies[-5:]) > sum(accuracies[:5])
    assert run.final["losses.classification.head.weight"].shape[0] == 3
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def test_scores_are_learned(tiny, train, scored_csv):
    run = train(tiny("bert"), scored_csv, **LEARNING)
    losses, errors = run.logged("loss"), run.logged("absolute_error")
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert sum(errors[-5:]) < sum(errors[:5])


@pytest.mark.parametrize(
    ("data", "method"),
    [("labelled_csv", "sbert"), ("scored_csv", "sbert"), ("labelled_csv", "cosent"), ("scored_csv", "angle")],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(data, method, request, tiny, train):
    file = request.getfixturevalue(data)
    options = {"method": method, "max_steps": 5, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    whole = train(tiny("bert"), file, **options)
    folder = train.interrupted(3, tiny("bert"), file, **options)
    again = train(tiny("bert"), file, folder=folder, resume=True, **options)
    assert len(again.gradients) == 3
    assert_same_weights(whole.folder, folder)
    for name, parameter in whole.final.items():
        assert torch.equal(parameter, again.final[name]), name


def test_scores_of_0_and_1_are_learned_and_doubtful_columns_are_said(tiny, train, tool, sentences, tmp_path):
    rows = [f"{i},{sentences[i % 12]},{i % 2}" for i in range(8)]
    (file := tmp_path / "same.csv").write_text("\n".join(["Is this a header?,b,same", *rows]) + "\n", encoding="utf-8")
    said = tool(train_command, train.argv(tiny("bert"), str(file), tmp_path / "out", method="sbert", max_steps=1)).said
    assert f"{file}: the first row looks like a sentence ('Is this a header?'), but it names the columns" in said
    assert f"{file}: the column 'Is this a header?' is in the place of sentences but has numbers: '" in said
    assert f"{file}: the column 'same' has 0 and 1, which are read as scores: 1 for a similar pair" in said
    assert "(scores from 0 to 1)" in said and "steps per second" in said


def test_a_column_of_positives_that_may_be_classes_is_said(tiny, train, tool, tmp_path):
    rows = [f"The text {i},{('Sports', 'World news')[i % 2]}" for i in range(20)]
    (file := tmp_path / "news.csv").write_text("\n".join(["text,category", *rows]) + "\n", encoding="utf-8")
    said = tool(train_command, train.argv(tiny("bert"), str(file), tmp_path / "out", max_steps=1)).said
    told = "has 2 different values in 20 rows: 'Sports', 'World news'; name it class if it has classes"
    assert (
        f"{file}: the column 'category' is in the place of sentences but {told}" in said and "steps per second" in said
    )
    file.write_text(file.read_text(encoding="utf-8").replace("category", "class"), encoding="utf-8")
    said = tool(train_command, train.argv(tiny("bert"), str(file), tmp_path / "named", max_steps=1)).said
    assert "different values" not in said and "2 classes of 10 sentences each" in said


def test_the_labels_of_a_file_are_said(tiny, train, tool, labelled_csv, scored_csv, tmp_path):
    for data, counts in ((labelled_csv, "12 contradiction, 12 entailment, 12 neutral"), (scored_csv, "from 0 to 5")):
        words = train.argv(tiny("bert"), data, tmp_path / "out", method="sbert", max_steps=1)
        said = tool(train_command, [*words, "--overwrite_output_dir"]).said
        assert f"({counts})" in said or f"(scores {counts})" in said
        assert "the loss does not compare its examples" in said


def test_other_methods_say_which_method_reads_labels(tiny, train, tool, labelled_csv, tmp_path):
    words = train.argv(tiny("bert"), labelled_csv, tmp_path / "out", method="simcse")
    refused(
        tool, train_command, words, "--method simcse does not use the column label", "a method that uses it (", "sbert"
    )


def test_sentences_alone_teach_no_relation(tiny, train, tool, train_txt, tmp_path):
    words = train.argv(tiny("bert"), train_txt, tmp_path / "out", method="sbert")
    refused(tool, train_command, words, "--method sbert needs labelled pairs", "label, score, or hard negatives")
