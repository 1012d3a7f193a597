"""Every method against the recorded losses, gradients and embeddings of its paper's public code (public_code/).

docs/reproduction.md holds the largest differences; this file writes that table if DCPCSE_WRITE_TABLE=1 is set.
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from method_models import Collator
from recorded import (
    FILES,
    Bench,
    Case,
    attended,
    batch_of,
    cases,
    differences,
    give_draws,
    in_dev,
    load_weights,
    number,
    parameter_of,
    public_ids,
    run,
    templates_of,
    tokens_of,
    total_of,
)
from torch import Tensor
from transformers import AutoModel

from dcpcse.data.training_data import load_training_file
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.methods import build_method, model_arguments
from dcpcse.methods.shared.prototypes import CODE, PAPER

TOLERANCE = 1e-6
PAGE = Path(__file__).parents[2] / "docs/reproduction.md"
WRITES = bool(os.environ.get("DCPCSE_WRITE_TABLE"))
CASES = cases()
BY_DESIGN = {
    "promptbert-roberta-unsup-two-templates-denoised": {"loss", "embeddings_dev"},
    "diffcse-roberta-unsup-72-pads": {"loss", "loss.detection"},
}
"""Case of the release as it is → what differs there by design; tests below say why."""
LIKE_OURS = [case for case in CASES if str(case) not in BY_DESIGN]
CONPVP = cases("conpvp")


@dataclass(frozen=True)
class Outcome:
    """Of a case: the difference of every number, the token ids of its texts, and what `encode` returns for them."""

    found: dict[str, float]
    ids: list[list[int]]
    encoded: np.ndarray


@pytest.fixture(scope="module")
def ours(bench) -> Callable[[Case], Outcome]:
    """ours(case) → what our side computes; once a case."""
    known: dict[str, Outcome] = {}

    def get(case: Case) -> Outcome:
        if str(case) not in known:
            step = bench.build(case)
            found = differences(run(step, case), case.public)
            texts = case["texts/sentences"].tolist()
            known[str(case)] = Outcome(found, tokens_of(step, case).ids, step.model.encode(texts))
        return known[str(case)]

    return get


def require_equal(found: dict[str, float]) -> None:
    """The comparison that every case must pass."""
    assert max(found.values()) <= TOLERANCE, {name: value for name, value in found.items() if not value <= TOLERANCE}


def test_every_recorded_case_is_compared():
    assert len(CASES) == 47 and {case.file for case in CASES} == set(FILES)
    assert set(BY_DESIGN) < {str(case) for case in CASES}
    for case in CASES:
        assert "loss" in case.public and "embeddings" in case.public, str(case)
        assert any(n.startswith("gradients") for n in case.public) == case.meta["gradients_recorded"], str(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_number_and_token_is_that_of_the_public_code_unless_it_differs_by_design(case, ours):
    """Loss, gradients, embeddings and token ids of the test sentences; those of `encode` in float32."""
    outcome, differs = ours(case), BY_DESIGN.get(str(case), set())
    assert all(outcome.found[name] > 1e-3 for name in differs), outcome.found
    require_equal({name: value for name, value in outcome.found.items() if name not in differs})
    assert outcome.encoded.dtype == np.float32
    require_equal(differences({"embeddings": outcome.encoded}, {"embeddings": case["public/embeddings"]}))
    assert outcome.ids == public_ids(case)


@pytest.mark.parametrize("case", cases("promptbert"), ids=str)
def test_the_template_alone_has_the_tokens_of_the_public_code(case, bench):
    step, parts = bench.build(case), case.meta["denoising_template_ids"]
    template = step.model.template
    assert template.before[1:] == parts["bs"] and template.after[:-1] == parts["es"]
    assert template.wrap([]).ids == parts["template"]
    step.model.final_period = False
    pairs = zip(tokens_of(step, case).ids, in_dev(step, case).ids, strict=True)
    # The release tokenises sentences by themselves in training; RoBERTa's first word has no blank before it then.
    assert all((ours == public) == (case.encoder == "bert") for ours, public in pairs)


@pytest.mark.parametrize("case", CONPVP, ids=str)
def test_templates_of_prototypes_have_the_tokens_of_the_public_code(case, bench):
    """Rendered, and where the debiasing pass attends."""
    step = bench.build(case)
    batch, found = batch_of(case), []
    for ids, mask, template in zip(
        *(batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask", "slots_template")), strict=True
    ):
        one, ids = step.model.templates[template], ids[: mask.sum()].tolist()
        assert one.wrap(ids[len(one.before) : len(ids) - len(one.after)]).ids == ids
        found.append(int(template))
    assert set(found) == set(templates_of(case, step.model.tokenizer)) and len(set(found)) > 10
    assert np.array_equal(attended(step, batch), case["given/prompt_mask"])


@pytest.mark.parametrize("case", cases("dcpcse"), ids=str)
def test_positions_after_prompts_are_those_of_the_public_code(case, bench):
    step, batch = bench.build(case), batch_of(case)
    ids = step.model.encoder.inputs(batch["input_ids"].flatten(0, 1))["position_ids"]
    mask = batch["attention_mask"].flatten(0, 1).bool()
    public = torch.from_numpy(case["public/position_ids"]).long().expand_as(ids)
    assert torch.equal(ids[mask], public[mask])


# The comparison sees an error of one percent


def terms_of(case: Case) -> list[str]:
    """The names of our loss terms."""
    return list(case.meta.get("our_terms_at_recording") or case.meta["loss_terms"])


def changed(bench: Bench, case: Case, term: str, change: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The differences if the value of a loss term is changed before the backward pass."""
    step = bench.build(case)
    step.losses[term].register_forward_hook(lambda module, given, value: change(value))
    return differences(run(step, case), case.public)


def worst(found: dict[str, float], start: str) -> float:
    return max((value for name, value in found.items() if name.startswith(start)), default=math.nan)


@pytest.mark.parametrize("file", FILES)
def test_the_comparison_sees_one_percent_of_a_term_its_value_its_gradient_and_any_number(file, bench):
    case = next(case for case in cases(file) if case in LIKE_OURS and case.meta["gradients_recorded"])
    for term in terms_of(case):
        found = changed(bench, case, term, lambda value: 1.01 * value)
        with pytest.raises(AssertionError):
            require_equal(found)
        assert found["loss"] > 1e-4 and worst(found, "gradients") > (0.009 if len(terms_of(case)) == 1 else 1e-4)
        value = changed(bench, case, term, lambda value: value + 0.01 * value.detach())
        gradient = changed(bench, case, term, lambda value: value + 0.01 * (value - value.detach()))
        assert value["loss"] > 1e-4 and worst(value, "gradients") <= TOLERANCE
        assert worst(gradient, "gradients") > 1e-4 and (file == "esimcse" or gradient["loss"] <= TOLERANCE)
    public = case.public
    for name in ("loss", "embeddings", max(public, key=lambda name: np.linalg.norm(public[name]))):
        with pytest.raises(AssertionError):
            require_equal(differences({**public, name: 1.01 * public[name]}, public))


# What differs by design


def test_promptbert_with_denoising_positions_from_0_is_the_release(bench):
    """RoBERTa's real tokens have positions from 2 in transformers; the release counts its template's from 0."""
    case = Case("promptbert", "roberta-unsup-two-templates-denoised")
    require_equal(differences(run(bench.build(case, denoise_from_zero=True), case), case.public))


@pytest.mark.parametrize("left_out", [True, False])
def test_promptbert_without_the_blank_trains_on_the_tokens_of_the_release(left_out, bench):
    """The release joins the tokens of the template's parts with those of the bare sentence."""
    case = Case("promptbert", "roberta-unsup-two-templates-denoised")
    step = bench.build(case, no_blank_in_training=left_out)
    batch = Collator.of(step, 32)([{"anchor": text} for text in case["texts/sentences"].tolist()])
    first = zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], in_dev(step, case, 32).ids, strict=True)
    assert all((ids[mask.bool()].tolist() == public) == left_out for ids, mask, public in first)


def test_diffcse_with_pads_turned_into_the_first_token_is_the_release(bench):
    """The release multiplies generated ids by the mask, which makes <s> (id 0) of RoBERTa's pads."""
    case = Case("diffcse", "roberta-unsup-72-pads")
    step = bench.build(case)
    corruption = step.losses["crtd"].corruption
    corrupt = corruption.forward
    corruption.forward = lambda ids, mask, *others: corrupt(ids, mask, *others) * mask
    require_equal(differences(run(step, case), case.public))


def test_conpvps_hard_negatives_have_prompts_here_and_none_in_the_release(bench):
    case = Case("conpvp", "bert-3-column-s-code-weight-0.5")
    step, batch = bench.build(case), batch_of(case)
    prompts = batch["slots_prompts"]
    assert (prompts[:, 0] >= 0).all() and (prompts[:, 3] == -1).all()
    texts = case["texts/sentences"].tolist()
    ours = Collator.of(step, 32)([{column: texts[i + k] for k, column in enumerate(case.columns)} for i in range(4)])
    assert (ours["slots_prompts"][:, 3] >= 0).all() and (ours["slots_prompts"][:, 1:3] == -1).all()
    batch["slots_prompts"] = prompts.clone()
    batch["slots_prompts"][:, 3] = batch["slots_masks"][:, 3] - torch.arange(4, 0, -1)
    total = total_of(step, step(**batch), 0)
    assert abs(total.item() / case["public/loss"] - 1) > 1e-3


def test_optiprompt_trains_the_opening_quote_which_the_last_occurrence_of_its_token_leaves_out(bench):
    case = Case("promptbert", "bert-unsup-plain-org-mlp-optiprompt")
    step = bench.build(case, template='*cls*_This_sentence_:_"*sent_0*"_means*mask*.*sep+*', weights=False)
    template = step.model.template
    row = template.wrap(step.model.tokenizer("A plain sentence", add_special_tokens=False)["input_ids"])
    opening, closing = (place for place in row.prompts if step.model.tokenizer.decode([row.ids[place]]) == '"')
    last = [max(i for i, token in enumerate(row.ids) if token == wanted) for wanted in template.prompt_ids]
    assert opening not in last and last.count(closing) == 2
    assert len(set(row.prompts)) == len(template.prompt_ids) == 7
    texts = case["texts/sentences"].tolist()
    batch = Collator.of(step, 32)([{"anchor": text} for text in texts])
    total_of(step, step(**batch), 0).backward()
    assert (step.model.encoder.shallow.weight.grad.norm(dim=1) > 0).all()


def test_consert_moves_special_tokens_in_the_release_only(bench):
    """The release shuffles [CLS] and [SEP] with the second copy, and cuts features off theirs in the first."""
    case = Case("consert", "unsup-feature-cutoff-shuffle")
    step, released = bench.build(case), batch_of(case)
    found = Collator.of(step, 64)([{"anchor": text} for text in case["texts/sentences"].tolist()])
    first, last = step.model.tokenizer.cls_token_id, step.model.tokenizer.sep_token_id
    for batch, moves in ((released, True), (found, False)):
        ends = batch["attention_mask"][:, 1].sum(1) - 1
        rows, shuffled = torch.arange(len(ends)), batch["input_ids"][:, 1]
        stays = (shuffled[:, 0] == first) & (shuffled[rows, ends] == last)
        cut = batch["altered_zeroed"][:, 0]
        assert not stays.all() if moves else stays.all()
        assert cut[:, 0].any() == cut[rows, ends].any() == moves and cut[:, 1].any()


def test_blanks_around_a_sentence_in_a_file_are_removed_which_matters_to_roberta(bench, tmp_path):
    """The releases tokenise a line as it is."""
    lines = [" It rained. ", "The cat slept. "]
    (tmp_path / "train.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = load_training_file(tmp_path / "train.txt", tmp_path / "cache").dataset["anchor"]
    for kind in ("bert", "roberta"):
        tokenizer = bench.tokenizer(kind)
        pairs = zip(tokenizer(list(texts))["input_ids"], tokenizer(lines)["input_ids"], strict=True)
        assert all((ours == public) == (kind == "bert") for ours, public in pairs)


OUR_WAYS: dict[str, tuple[Case, dict[str, Any], set[str]]] = {
    "avg_first_last": (
        Case("simcse", "bert-unsup-avg-layer1-last"),
        {"pooler_type": "avg_first_last"},
        {"loss", "embeddings"},
    ),
    "weight 0.15": (Case("consert", "joint-token-cutoff-max-square"), {"contrastive_weight": 0.15}, {"loss"}),
    "plain at test": (Case("promptbert", "bert-sup-denoised"), {"denoise_at_inference": False}, {"embeddings"}),
    "no full stop": (Case("promptbert", "bert-sup-denoised"), {"final_period": False}, {"embeddings"}),
    "by template": (Case("conpvp", "bert-1-column-s-their-words"), {"denoise_by": "template"}, {"loss"}),
    "sum over tokens": (Case("diffcse", "bert-unsup-72-pads"), {"crtd_reduction": "sum"}, {"loss", "loss.detection"}),
}
"""Our defaults where an option gives the way of the public code: case, option, what differs besides gradients."""


@pytest.mark.parametrize("way", OUR_WAYS)
def test_without_the_option_that_gives_the_public_way_the_numbers_differ(way, bench):
    case, changes, differs = OUR_WAYS[way]
    assert changes.items() - case.meta["our_options"].items(), "the option of the record is the public one"
    found = differences(run(bench.build(case, **changes), case), case.public)
    numbers = {name: value for name, value in found.items() if not name.startswith("gradients")}
    assert {name for name, value in numbers.items() if value > 1e-3} == differs, numbers
    require_equal({name: value for name, value in numbers.items() if name not in differs} | {"none": 0.0})


def test_dcpcse_leaves_the_lm_head_as_it_is_unless_it_is_to_be_trained(bench):
    """The loss is the same, and so are all other gradients."""
    case = Case("dcpcse", "bert-unsup-mlm-at-step-250")
    step = bench.build(case, train_lm_head=False, weights=False)
    assert not any(weight.requires_grad for weight in step.losses["mlm"].parameters())
    step.losses["mlm"].lm_head.untie()  # the recorded head is not that of the encoder
    step.losses["mlm"].requires_grad_(False)
    load_weights(step, case)
    give_draws(step, case)
    total = total_of(step, step(**batch_of(case)), case.meta["global_step"])
    total.backward()
    found = {f"gradients/{name}": parameter_of(step, name).grad for name in case.group("public/gradients")}
    kept = {name: number(gradient) for name, gradient in found.items() if gradient is not None}
    assert len(found) - len(kept) == 6
    public = {name: case.public[name] for name in ("loss", *kept)}
    require_equal(differences({"loss": number(total), **kept}, public))


# ConPVP: the place of [MASK]


def naive_conpvp(bench: Bench, case: Case, batch: dict[str, Tensor], kept: Tensor, *, third_from_end: bool) -> float:
    """ConPVP's loss in loops over a plain transformers model, one row at a time.

    kept: where the debiasing pass attends. third_from_end: take that token for [MASK], as the release does; otherwise
    the last mask token of the row.
    """
    plain = (
        AutoModel.from_pretrained(bench.folders[case.encoder], attn_implementation="eager", add_pooling_layer=False)
        .double()
        .eval()
    )
    mask_id = bench.tokenizer(case.encoder).mask_token_id
    weights = {name: torch.from_numpy(value).double() for name, value in case.group("weights").items()}
    views: list[list[Tensor]] = [[] for _ in range(batch["input_ids"].shape[1])]
    for example in range(len(batch["input_ids"])):
        for view, vectors in enumerate(views):
            length = int(batch["attention_mask"][example, view].sum())
            ids = batch["input_ids"][example, view, :length]
            place = length - 3 if third_from_end else int((ids == mask_id).nonzero().max())
            embedded = plain.get_input_embeddings()(ids).clone()
            if view == 0:
                embedded[place - len(weights["endp"]) : place] = weights["endp"]
            positions = {"position_ids": torch.arange(length)[None] + (2 if case.encoder == "roberta" else 0)}
            hidden = [
                plain(inputs_embeds=embedded[None], attention_mask=mask[None], **positions).last_hidden_state[0, place]
                for mask in (torch.ones(length), kept[example, view, :length])
            ]
            vectors.append(
                torch.tanh(weights["mlp.dense.weight"] @ (hidden[0] - hidden[1]) + weights["mlp.dense.bias"])
            )
    anchors, *others = views
    losses = []
    for i, anchor in enumerate(anchors):
        scores = [F.cosine_similarity(anchor, other, dim=0) / 0.05 for vectors in others for other in vectors]
        losses.append(torch.stack(scores).logsumexp(0) - scores[i])
    return torch.stack(losses).mean().item()


@pytest.mark.parametrize("case", [case for case in CONPVP if not case.supervised], ids=str)
def test_the_naive_loop_with_the_third_token_from_the_end_is_the_release(case, bench):
    batch, kept = batch_of(case), torch.from_numpy(case["given/prompt_mask"])
    loss = naive_conpvp(bench, case, batch, kept, third_from_end=True)
    assert loss == pytest.approx(float(case["public/loss"]), rel=1e-9)
    assert naive_conpvp(bench, case, batch, kept, third_from_end=False) == pytest.approx(loss, rel=1e-12)


ENDS_IN_MASK = '"{sentence}" which does not denote [MASK]'


def test_a_template_that_ends_in_mask_is_read_at_its_mask(bench):
    """The release takes the third token from the end, here the word before [MASK]: its loss differs, ours is right."""
    case = Case("conpvp", "roberta-1-column-s-their-words")
    rows = [{"anchor": text} for text in case["texts/sentences"].tolist()]
    assert ENDS_IN_MASK in PAPER["negative"]
    for end, differs in (("", True), (" .", False)):
        sets = {name: [text + end * (text == ENDS_IN_MASK) for text in texts] for name, texts in PAPER.items()}
        step = bench.build(case, prototype_templates=bench.write(f"ends{differs}", sets))
        texts = [str(template.template) for template in step.model.templates]
        batch = Collator.of(step, 32, seed=1)(rows)
        odd = batch["slots_template"] == texts.index(ENDS_IN_MASK + end)
        assert odd.sum() == 1 and odd[:, 2].sum() == 1, "the test needs one such negated prototype among others"
        loss, kept = total_of(step, step(**batch), 0).item(), attended(step, batch)
        assert naive_conpvp(bench, case, batch, kept, third_from_end=False) == pytest.approx(loss, rel=1e-12)
        off = abs(naive_conpvp(bench, case, batch, kept, third_from_end=True) / loss - 1)
        assert (1e-3 < off < 2e-2) if differs else off < 1e-12


# Options that follow the public code


ANCHOR = "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(request, bench):
    tokenizer = bench.tokenizer(request.param)
    tokenizer.kind = request.param
    return tokenizer


def test_prototype_templates_code_gives_the_token_ids_of_the_public_words(tokenizer):
    """Every recorded row is one of our templates around a sentence, and the sentence has the recorded tokens."""
    case = Case("conpvp", f"{tokenizer.kind}-1-column-s-their-words")
    ids, mask, content = (case[f"given/{name}"] for name in ("input_ids", "attention_mask", "slots_content"))
    views = [[ANCHOR], CODE["positive"], CODE["negative"]]
    views = [[TokenTemplate(Template.parse(text), tokenizer) for text in texts] for texts in views]
    seen = set()
    for n, v in np.ndindex(*ids.shape[:2]):
        row = ids[n, v][mask[n, v] == 1].tolist()
        first = len(tokenizer("")["input_ids"]) // 2  # the anchor's template begins with the sentence
        sentence = tokenizer.decode(ids[n, 0][first : first + content[n, 0]])
        found = []
        for template in views[v]:
            ((words,), _) = template.contents([sentence], int(content[n, v]))
            if template.wrap(words).ids == row:
                found.append(str(template.template))
        assert len(found) == 1, (n, v, tokenizer.convert_ids_to_tokens(row))
        seen.add(found[0])
    assert len(seen) == 13
    for text in (*CODE["positive"], *CODE["negative"], ANCHOR):
        row = TokenTemplate(Template.parse(text), tokenizer).wrap([7, 8])
        assert row.masks == (len(row.ids) - 3,)  # the public code finds [MASK] there


def test_the_blank_is_left_out_in_all_views_and_its_absence_is_said_to_change_nothing_for_bert(bench, caplog):
    for kind, told in {"roberta": 0, "bert": 1}.items():
        caplog.clear()
        args = model_arguments(method="conpvp", no_blank_in_training=True, prototype_templates="code")
        method = build_method(load_backbone(bench.folders[kind]), args, ["anchor", "positive", "negative"])
        assert caplog.text.count("no_blank_in_training=True has no effect: the tokenizer of bert ignores") == told
        assert "--no_blank_in_training" not in caplog.text or told
        rows = [{"anchor": "It rained.", "positive": "A cat slept.", "negative": "Nobody sang."}]
        batch = Collator.of(method, 32)(rows)
        for v, view in enumerate(method.views):
            template = method.model.templates[batch["slots_template"][0, v]]
            start, count = len(template.before), batch["slots_content"][0, v]
            bare = method.model.tokenizer(rows[0][view.column], add_special_tokens=False)["input_ids"]
            assert batch["input_ids"][0, v, start : start + count].tolist() == bare


# docs/reproduction.md


COLUMNS = {"loss": ("loss",), "gradients": ("gradients",), "embeddings": ("embeddings", "queue")}
NAMES = {"simcse": "SimCSE", "dcpcse": "DCPCSE", "promptbert": "PromptBERT", "conpvp": "ConPVP", "diffcse": "DiffCSE"}
NAMES |= {"consert": "ConSERT", "esimcse": "ESimCSE", "sbert": "SBERT"}
HEADER = "| method | training data | cases | loss and its terms | gradients | embeddings | token ids |\n"
HEADER += "|---|---|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEADER) + r"(?:\|.*\n)+")
SLACK = 30
"""Factor by which rounding may move a difference from machine to machine."""


def largest(ours: Callable[[Case], Outcome]) -> dict[tuple[str, str], list[str | float]]:
    """(method, data) → number of cases, largest difference of each column (NaN if none), number of texts."""
    rows: dict[tuple[str, str], list[str | float]] = {}
    for file in FILES:
        for data, supervised in (("single sentences", False), ("pairs", True)):
            group = [case for case in LIKE_OURS if case.file == file and case.supervised == supervised]
            if not group:
                continue
            found = [item for case in group for item in ours(case).found.items()]
            figures = [
                max([v for n, v in found if n.startswith(start)], default=math.nan) for start in COLUMNS.values()
            ]
            rows[NAMES[file], data] = [len(group), *figures, sum(len(public_ids(case)) for case in group)]
    return rows


def table_of(rows: dict[tuple[str, str], list[str | float]]) -> str:
    lines = []
    for (method, data), (count, *found, texts) in rows.items():
        figures = ["–" if math.isnan(value) else f"{max(value, 1e-16):.0e}".replace("e-0", "e-") for value in found]
        lines.append(f"| {' | '.join([method, data, str(count), *figures, f'equal ({texts} texts)'])} |\n")
    return HEADER + "".join(lines)


def test_the_page_gives_the_largest_differences(ours):
    """Every figure of the page, within what rounding changes from machine to machine."""
    rows, page = largest(ours), PAGE.read_text(encoding="utf-8")
    (written,) = TABLE.findall(page)
    if WRITES:
        written, page = table_of(rows), page.replace(written, table_of(rows))
        PAGE.write_text(page, encoding="utf-8")
    assert len(rows) == 14 and all(not value > TOLERANCE for row in rows.values() for value in row[1:4])
    told = [line.strip("| ").split(" | ") for line in written.removeprefix(HEADER).splitlines()]
    now = [line.strip("| \n").split(" | ") for line in table_of(rows).removeprefix(HEADER).splitlines()]
    assert [[*row[:3], row[6]] for row in told] == [[*row[:3], row[6]] for row in now]
    for there, here in zip(told, now, strict=True):
        for told_value, value in zip(there[3:6], here[3:6], strict=True):
            assert (told_value == "–") == (value == "–"), (there, here)
            if value != "–":
                assert 1 / SLACK < float(value) / float(told_value) < SLACK or float(value) < 1e-14, (there, here)
