"""Every method against the recorded losses, gradients and embeddings of its paper's public code (public_code/).

docs/reproduction.md holds the largest differences; this file writes that table if DCPCSE_WRITE_TABLE=1 is set.
"""

import functools
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
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

from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.methods.shared.prototypes import CODE

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

    @functools.cache
    def get(case: Case) -> Outcome:
        step = bench.build(case)
        found = differences(run(step, case), case.public)
        return Outcome(found, tokens_of(step, case).ids, step.model.encode(case["texts/sentences"].tolist()))

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


# The comparison sees an error of one percent


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
    for term in case.meta.get("our_terms_at_recording") or case.meta["loss_terms"]:
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


def test_optiprompt_trains_the_opening_quote_which_the_last_occurrence_of_its_token_leaves_out(bench):
    case = Case("promptbert", "bert-unsup-plain-org-mlp-optiprompt")
    step = bench.build(case, template='*cls*_This_sentence_:_"*sent_0*"_means*mask*.*sep+*', weights=False)
    template = step.model.template
    row = template.wrap([7, 8])
    opening, _ = (place for place in row.prompts if step.model.tokenizer.decode([row.ids[place]]) == '"')
    assert opening not in [max(i for i, token in enumerate(row.ids) if token == own) for own in template.prompt_ids]
    assert len(set(row.prompts)) == len(template.prompt_ids) == 7
    batch = Collator.of(step, 32)([{"anchor": text} for text in case["texts/sentences"].tolist()])
    total_of(step, step(**batch), 0).backward()
    assert (step.model.encoder.shallow.weight.grad.norm(dim=1) > 0).all()


OUR_WAYS = {
    "avg_first_last": (
        "simcse",
        "bert-unsup-avg-layer1-last",
        {"pooler_type": "avg_first_last"},
        {"loss", "embeddings"},
    ),
    "weight 0.15": ("consert", "joint-token-cutoff-max-square", {"contrastive_weight": 0.15}, {"loss"}),
    "plain at test": ("promptbert", "bert-sup-denoised", {"denoise_at_inference": False}, {"embeddings"}),
    "no full stop": ("promptbert", "bert-sup-denoised", {"final_period": False}, {"embeddings"}),
    "by template": ("conpvp", "bert-1-column-s-their-words", {"denoise_by": "template"}, {"loss"}),
    "sum": ("diffcse", "bert-unsup-72-pads", {"crtd_reduction": "sum"}, {"loss", "loss.detection"}),
}
"""Our defaults where an option gives the way of the public code: case, option, what differs besides gradients."""


@pytest.mark.parametrize("way", OUR_WAYS)
def test_without_the_option_that_gives_the_public_way_the_numbers_differ(way, bench):
    file, name, changes, differs = OUR_WAYS[way]
    case = Case(file, name)
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


# Options that follow the public code


ANCHOR = "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_prototype_templates_code_gives_the_token_ids_of_the_public_words(kind, bench):
    """Every recorded row is one of our templates around a sentence, and the sentence has the recorded tokens."""
    case, tokenizer, seen = Case("conpvp", f"{kind}-1-column-s-their-words"), bench.tokenizer(kind), set()
    ids, mask, content = (case[f"given/{name}"] for name in ("input_ids", "attention_mask", "slots_content"))
    views = [[ANCHOR], CODE["positive"], CODE["negative"]]
    views = [[TokenTemplate(Template.parse(text), tokenizer) for text in texts] for texts in views]
    for n, v in np.ndindex(*ids.shape[:2]):
        row, length = ids[n, v][mask[n, v] == 1].tolist(), int(content[n, v])
        sentence = tokenizer.decode(ids[n, 0][1 : 1 + content[n, 0]])  # with which the anchor's template begins
        (found,) = [one for one in views[v] if one.wrap(one.contents([sentence], length)[0][0]).ids == row]
        seen.add(str(found.template))
    assert len(seen) == 13
    for template in (one for view in views for one in view):
        row = template.wrap([7, 8])
        assert row.masks == (len(row.ids) - 3,)  # the public code finds [MASK] there


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
