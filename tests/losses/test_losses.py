"""What the objectives promise: masking, the MLM loss with its head and weight, and the contrastive term."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, DynamicCache

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.losses import Contrastive, EncodedBatch, MaskedLM, Term
from dcpcse.losses.functional import nt_xent
from dcpcse.losses.masked_lm import exponential_decay
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods import METHODS, build_method, model_arguments, register
from dcpcse.models import DeepPrompt, Encoder, LMHead, PromptShape, SentenceEncoder
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

LENGTH = 4
WITH_LM = ["bert", "roberta", "xlm-roberta", "electra", "modernbert"]


class FixedMasking(torch.nn.Module):
    """Masks the positions it is given, so that a loss can be computed elsewhere from the same input."""

    def __init__(self, chosen: torch.Tensor, mask_id: int) -> None:
        super().__init__()
        self.chosen, self.mask_id = chosen, mask_id

    def forward(self, input_ids, candidates=None):
        return torch.where(self.chosen, self.mask_id, input_ids), self.chosen


def sentence_encoder(backbone: Backbone) -> SentenceEncoder:
    backbone.model.requires_grad_(False)
    torch.manual_seed(1)
    prompt = DeepPrompt(PromptShape.fit(backbone.model.config, LENGTH), std=1.0)
    encoder = Encoder(backbone.model, prompt, LENGTH)
    return SentenceEncoder(encoder, backbone.tokenizer, backbone.source, pooling="cls").eval()


def step_of(model: SentenceEncoder, *, rows: int = 3, length: int = 10) -> EncodedBatch:
    """A batch of two views, (rows, 2, length), the first row shorter; random tokens, none of them special."""
    random = torch.Generator().manual_seed(2)
    ids = torch.randint(6, 100, (rows, 2, length), generator=random)
    mask = torch.ones_like(ids)
    ids[0, :, -4:], mask[0, :, -4:] = model.tokenizer.pad_token_id, 0
    ids[:, :, 0] = model.tokenizer.cls_token_id
    prefix = model.encoder.draw_prefix(rows * 2)
    return EncodedBatch(model, ids, mask, {}, prefix)


def positions_to_predict(step: EncodedBatch) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    real = step.attention_mask.flatten(0, 1).bool()
    chosen = real & (torch.rand(real.shape, generator=random) < 0.3)
    chosen[:, 0] = False
    return chosen


# Which tokens are masked


@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_tokens_are_chosen_with_the_probability_and_become_mask_random_or_stay_80_10_10(tiny, probability):
    tokenizer = load_backbone(tiny("bert")).tokenizer
    masking = TokenMasking(tokenizer, probability)
    torch.manual_seed(0)
    ids = torch.randint(5, len(tokenizer), (400, 250))
    masked, chosen = masking(ids)
    n = ids.numel()  # 100,000: the tolerances are four standard deviations or more
    share = chosen.float().mean().item()
    assert share == pytest.approx(probability, abs=4 * (probability * (1 - probability) / n) ** 0.5)
    to_mask = (masked == tokenizer.mask_token_id)[chosen].float().mean().item()
    stay = (masked == ids)[chosen].float().mean().item()
    other = 1 - to_mask - stay
    tolerance = 4 * (0.16 / (n * probability)) ** 0.5
    one_of_all = 0.1 / len(tokenizer)  # a random token may be the mask, or the token that was there
    assert to_mask == pytest.approx(0.8 + one_of_all, abs=tolerance)
    assert stay == pytest.approx(0.1 + one_of_all, abs=tolerance)
    assert other == pytest.approx(0.1 - 2 * one_of_all, abs=tolerance)
    assert torch.equal(masked[~chosen], ids[~chosen])


def test_random_replacements_come_from_the_whole_vocabulary_evenly(tiny):
    tokenizer = load_backbone(tiny("bert")).tokenizer
    torch.manual_seed(0)
    ids = torch.full((1000, 300), 7)
    masked, chosen = TokenMasking(tokenizer, 0.9)(ids)
    replaced = masked[chosen & (masked != 7) & (masked != tokenizer.mask_token_id)]
    counts = torch.bincount(replaced, minlength=len(tokenizer)).float()
    assert len(counts) == len(tokenizer)
    counts = counts[[i for i in range(len(tokenizer)) if i not in (7, tokenizer.mask_token_id)]]
    assert counts.min() > 0.6 * counts.mean()
    assert counts.max() < 1.5 * counts.mean()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_special_tokens_and_pads_are_never_chosen(tiny, kind):
    tokenizer = load_backbone(tiny(kind)).tokenizer
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    assert tokenizer.pad_token_id in special
    masking = TokenMasking(tokenizer, 0.99)
    ids = torch.cat([special, torch.tensor([50, 60])]).expand(200, -1)
    masked, chosen = masking(ids)
    assert not chosen[:, :-2].any()
    assert chosen[:, -2:].float().mean() > 0.9
    assert torch.equal(masked[:, :-2], ids[:, :-2])


def test_masking_leaves_its_input_alone_and_differs_from_call_to_call(tiny):
    """SimCSE's first collator masked the contrastive input too (its pull request 121)."""
    masking = TokenMasking(load_backbone(tiny("bert")).tokenizer, 0.5)
    ids = torch.randint(5, 100, (20, 2, 10))
    before = ids.clone()
    (first, chosen), (second, _) = masking(ids), masking(ids)
    assert torch.equal(ids, before)
    assert first.shape == chosen.shape == ids.shape
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])


def test_masking_follows_the_seed(tiny):
    masking = TokenMasking(load_backbone(tiny("bert")).tokenizer, 0.5)
    ids = torch.randint(5, 100, (20, 10))
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(masking(ids))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_tokenizer_without_a_mask_token_is_refused(tiny):
    tokenizer = load_backbone(tiny("bert")).tokenizer
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="the tokenizer has no mask token"):
        TokenMasking(tokenizer, 0.15)


# The MLM loss


def mlm_loss_of_transformers(folder: str, table, masked_ids, mask, labels) -> torch.Tensor:
    """ForMaskedLM's own loss, the prompts in a cache as in the published code."""
    theirs = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    theirs = theirs.eval().requires_grad_(False)
    rows, config = len(masked_ids), theirs.config
    cut = table.view(LENGTH, 2 * config.num_hidden_layers, config.num_attention_heads, -1)
    cache = DynamicCache()
    for layer in range(config.num_hidden_layers):
        keys, values = (cut[:, 2 * layer + half].transpose(0, 1).expand(rows, -1, -1, -1) for half in (0, 1))
        cache.update(keys, values, layer)
    longer = torch.cat([torch.ones(rows, LENGTH, dtype=mask.dtype), mask], dim=1)
    # The masked LM does not take a cache, its encoder does.
    hidden = theirs.base_model(masked_ids, longer, past_key_values=cache)
    theirs.base_model.forward = lambda *_, **__: hidden
    return theirs(masked_ids, labels=labels).loss


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_mlm_loss_and_its_gradient_are_those_of_transformers_with_the_prompts_in_a_cache(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    model = sentence_encoder(backbone)
    step = step_of(model)
    chosen = positions_to_predict(step)
    masking = FixedMasking(chosen, model.tokenizer.mask_token_id)
    ours = MaskedLM(backbone.lm_head, masking)(step)
    ids = step.input_ids.flatten(0, 1)
    labels = torch.where(chosen, ids, -100)
    table = model.encoder.prompt.table.weight
    theirs = mlm_loss_of_transformers(tiny(kind), table, masking(ids)[0], step.attention_mask.flatten(0, 1), labels)
    assert ours.item() > 1
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(loss, table)[0] for loss in (ours, theirs)]
    assert gradients[1].abs().max() > 1e-4
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-3)


def test_the_mlm_pass_sees_the_prefix_of_the_step_and_draws_none_of_its_own(tiny):
    """The dropout of the prompts is the same in both passes (SPEC 1.5)."""
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    model = sentence_encoder(backbone)
    step = step_of(model)
    chosen = positions_to_predict(step)
    loss_fn = MaskedLM(backbone.lm_head, FixedMasking(chosen, 4))
    dropped = {layer: tuple(torch.dropout(t, 0.5, True) for t in pair) for layer, pair in step.prefix.items()}
    ids, mask = step.input_ids.flatten(0, 1), step.attention_mask.flatten(0, 1)
    with torch.no_grad():
        hidden = model.encoder(torch.where(chosen, 4, ids), mask, prefix=dropped)[-1]
        expected = torch.nn.functional.cross_entropy(backbone.lm_head(hidden[chosen]), ids[chosen])
        found = loss_fn(replace(step, prefix=dropped))
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
        assert abs(found.item() - loss_fn(step).item()) > 1e-3


def test_the_mlm_loss_is_the_mean_over_the_masked_tokens_of_all_views(tiny):
    """One mean over all tokens of the batch, not a mean of means over sentences."""
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    model = sentence_encoder(backbone)
    step = step_of(model)
    chosen = positions_to_predict(step)
    assert len(set(chosen.sum(1).tolist())) > 1
    losses = []
    with torch.no_grad():
        whole = MaskedLM(backbone.lm_head, FixedMasking(chosen, 4))(step)
        for row, token in chosen.nonzero().tolist():
            one = torch.zeros_like(chosen)
            one[row, token] = True
            masked, _ = FixedMasking(chosen, 4)(step.input_ids.flatten(0, 1))
            masking = FixedMasking(one, 4)
            masking.forward = lambda *_, masked=masked, one=one: (masked, one)
            losses.append(MaskedLM(backbone.lm_head, masking)(step).item())
    assert whole.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("kind", WITH_LM)
def test_a_batch_in_which_nothing_is_masked_costs_nothing_and_has_finite_gradients(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    model = sentence_encoder(backbone)
    step = step_of(model)
    nothing = torch.zeros(step.input_ids.flatten(0, 1).shape, dtype=torch.bool)
    loss = MaskedLM(backbone.lm_head, FixedMasking(nothing, 4), train_head=True)(step)
    loss.backward()
    assert loss.item() == 0
    gradients = [p.grad for p in (*model.parameters(), *backbone.lm_head.parameters()) if p.grad is not None]
    assert gradients
    assert all((gradient == 0).all() for gradient in gradients)


# The LM head


@pytest.mark.parametrize("kind", WITH_LM)
def test_the_head_of_every_architecture_gives_the_logits_of_the_checkpoint(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    theirs = AutoModelForMaskedLM.from_pretrained(tiny(kind), dtype=torch.float32).eval()
    ids = torch.arange(6, 26).view(2, 10)
    mask = torch.ones_like(ids)
    with torch.no_grad():
        hidden = backbone.model.eval()(ids, mask).last_hidden_state
        ours = backbone.lm_head(hidden.flatten(0, 1)).view(2, 10, -1)
        expected = theirs(input_ids=ids, attention_mask=mask).logits
    assert ours.shape[-1] == backbone.lm_head.vocab_size
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", WITH_LM)
def test_the_head_is_frozen_by_default_and_holds_no_encoder_of_its_own(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    loss_fn = MaskedLM(backbone.lm_head, FixedMasking(torch.zeros(1), 4))
    assert not any(p.requires_grad for p in loss_fn.parameters())
    held = {id(p) for p in loss_fn.parameters()}
    layers = [p for name, p in backbone.model.named_parameters() if "layer" in name]
    assert len(layers) > 10
    assert held.isdisjoint(map(id, layers))


@pytest.mark.parametrize("kind", WITH_LM)
def test_a_frozen_head_shares_the_embeddings_of_its_encoder(tiny, kind):
    """As in the checkpoint: no second copy of the largest matrix."""
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    words = backbone.model.get_input_embeddings().weight
    assert any(p.data_ptr() == words.data_ptr() for p in backbone.lm_head.parameters())


@pytest.mark.parametrize("kind", WITH_LM)
def test_training_the_head_changes_all_of_it_and_leaves_the_embeddings_alone(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    model = sentence_encoder(backbone)
    step = step_of(model)
    loss_fn = MaskedLM(backbone.lm_head, FixedMasking(positions_to_predict(step), 4), train_head=True)
    parameters = dict(loss_fn.named_parameters())
    assert all(p.requires_grad for p in parameters.values())
    assert sum(p.shape == model.encoder.backbone.get_input_embeddings().weight.shape for p in parameters.values()) == 1
    frozen = {name: p.detach().clone() for name, p in model.encoder.backbone.named_parameters()}
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD([p for p in (*parameters.values(), *model.parameters()) if p.requires_grad], lr=1.0)
    first = loss_fn(step)
    first.backward()
    optimizer.step()
    assert all(torch.equal(p, frozen[name]) for name, p in model.encoder.backbone.named_parameters())
    assert all(not torch.equal(p, before[name]) for name, p in parameters.items())
    with torch.no_grad():
        assert loss_fn(step).item() != first.item()


def test_untying_does_not_change_the_logits(tiny):
    head = load_backbone(tiny("bert"), lm_head="checkpoint").lm_head
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        before = head(hidden)
        head.untie()
        assert torch.equal(head(hidden), before)


def test_the_head_of_bert_base_has_the_published_number_of_parameters():
    """SPEC 1.2: 24,063,546, of which 23,440,896 are its decoder's."""
    with torch.device("meta"):
        head = LMHead(BertForMaskedLM(BertConfig()))
    assert sum(p.numel() for p in head.parameters()) == 24_063_546


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_a_checkpoint_without_a_head_is_refused_with_the_two_ways_out(tiny, kind):
    with pytest.raises(UserError) as refusal:
        load_backbone(tiny(kind, masked_lm=False), lm_head="checkpoint")
    message = str(refusal.value)
    assert "has no masked-LM head" in message
    assert "--lm_head PATH" in message
    assert "--lm_head new" in message


@pytest.mark.parametrize("kind", WITH_LM)
def test_a_new_head_starts_from_the_word_embeddings_and_is_trained(tiny, kind):
    backbone = load_backbone(tiny(kind, masked_lm=False), lm_head="new")
    words = backbone.model.get_input_embeddings().weight
    decoder = backbone.lm_head.masked_lm.get_output_embeddings().weight
    assert torch.equal(decoder, words)
    assert decoder.data_ptr() != words.data_ptr()
    args = model_arguments(do_mlm=True, lm_head="new", pre_seq_len=LENGTH)
    loss_fn = build_method(backbone, args, ["anchor"]).terms["mlm"].loss
    assert all(p.requires_grad for p in loss_fn.lm_head.parameters())
    assert not any(p.requires_grad for p in backbone.model.parameters())


def test_a_head_from_another_checkpoint_is_that_checkpoints(tiny):
    backbone = load_backbone(
        tiny("bert", masked_lm=False, vocab_size=300), lm_head=tiny("bert", vocab_size=300, seed=5)
    )
    theirs = load_backbone(tiny("bert", vocab_size=300, seed=5), lm_head="checkpoint").lm_head
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        assert torch.equal(backbone.lm_head(hidden), theirs(hidden))


@pytest.mark.parametrize("change", [{"vocab_size": 301}, {"hidden_size": 64}], ids=["vocabulary", "hidden size"])
def test_a_head_of_another_size_is_refused_with_both_sizes(tiny, change):
    other = {"vocab_size": 300} | change
    with pytest.raises(UserError) as refusal:
        load_backbone(tiny("bert", vocab_size=300), lm_head=tiny("bert", **other))
    found = f"hidden size {other.get('hidden_size', 32)} and {other['vocab_size']} tokens"
    assert found in str(refusal.value)
    assert "but the encoder has hidden size 32 and 300 tokens; give a head of the same sizes" in str(refusal.value)


def test_a_head_from_a_checkpoint_without_one_is_refused(tiny):
    with pytest.raises(UserError, match="has no masked-LM head"):
        load_backbone(tiny("bert"), lm_head=tiny("bert", masked_lm=False))


# The contrastive term


@pytest.mark.parametrize("hard", [False, True])
def test_the_contrastive_term_takes_the_views_by_their_roles(hard):
    torch.manual_seed(0)
    embeddings = {name: torch.randn(4, 6) for name in ("anchor", "positive", *(["negative"] if hard else []))}
    empty = torch.empty(0)
    found = Contrastive(0.1, hard_negative_weight=0.5)(EncodedBatch(None, empty, empty, embeddings))
    expected = nt_xent(
        *(embeddings["anchor"], embeddings["positive"], 0.1),
        negatives=[embeddings["negative"]] if hard else [],
        hard_negative_weight=0.5,
    )
    assert found.item() == pytest.approx(expected.item())
    swapped = embeddings | {"anchor": embeddings["positive"], "positive": embeddings["anchor"]}
    assert Contrastive(0.1)(EncodedBatch(None, empty, empty, swapped)).item() != pytest.approx(found.item(), rel=1e-4)


# Weights


@pytest.mark.parametrize(
    ("step", "weight"),
    [(0, 0.1), (1, 0.09994872), (50, 0.09746794), (100, 0.095), (200, 0.09025), (3907, 0.0134793), (15625, 3.3e-5)],
)
def test_the_mlm_weight_decays_as_published(tiny, step, weight):
    """0.1 · 0.95^(step / 100), the exponent real-valued (SPEC 1.5)."""
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    terms = build_method(backbone, model_arguments(do_mlm=True, pre_seq_len=LENGTH), ["anchor"]).terms
    assert terms["mlm"].weight_at(step) == pytest.approx(weight, rel=1e-4 if step < 5000 else 0.05)
    assert terms["contrastive"].weight_at(step) == 1


def test_the_options_of_the_decay_reach_it(tiny):
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    args = model_arguments(do_mlm=True, mlm_weight=0.4, mlm_decay_rate=0.5, mlm_decay_steps=10, pre_seq_len=LENGTH)
    term = build_method(backbone, args, ["anchor"]).terms["mlm"]
    assert [term.weight_at(step) for step in (0, 10, 20)] == pytest.approx([0.4, 0.2, 0.1])


def test_a_schedule_is_a_factor_of_the_weight():
    assert exponential_decay(0.5, 4)(2) == pytest.approx(0.5**0.5)
    assert Term(Contrastive(), 3.0).weight_at(7) == 3
    assert Term(Contrastive(), 3.0, lambda step: 1 / step).weight_at(6) == pytest.approx(0.5)


# The method


def test_dcpcse_trains_the_prompts_and_the_head_and_nothing_else(tiny):
    backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
    method = build_method(backbone, model_arguments(do_mlm=True, pre_seq_len=LENGTH), ["anchor"])
    named = [*method.model.named_parameters(), *method.terms["mlm"].loss.named_parameters()]
    assert {name for name, p in named if p.requires_grad} == {
        "encoder.prompt.table.weight",
        "head.dense.weight",
        "head.dense.bias",
    }
    assert method.model.encoder.position_offset == LENGTH
    assert method.model.encoder.prompt.dropout.p == 0.1  # BERT's hidden dropout
    assert method.model.head_at_inference
    assert "mlm" not in build_method(load_backbone(tiny("bert")), model_arguments(pre_seq_len=4), ["anchor"]).terms


@pytest.mark.parametrize(
    ("options", "head", "at_inference"),
    [
        ({"pooler_type": "cls"}, True, True),
        ({"pooler_type": "cls", "mlp_only_train": True}, True, False),
        ({"pooler_type": "cls_before_pooler"}, False, False),
        ({"pooler_type": "avg"}, False, False),
    ],
)
def test_the_head_follows_the_pooler_and_mlp_only_train(tiny, options, head, at_inference):
    args = model_arguments(pre_seq_len=LENGTH, **options)
    model = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model
    assert (model.head is not None, model.head_at_inference, model.pooling) == (
        *(head, at_inference),
        options["pooler_type"],
    )


@pytest.mark.parametrize(
    ("kind", "given", "offset"),
    [("bert", None, LENGTH), ("bert", 0, 0), ("roberta", 7, 7), ("modernbert", None, 0), ("modernbert", 7, 0)],
)
def test_the_text_starts_after_the_prompt_unless_told_otherwise(tiny, kind, given, offset, caplog):
    args = model_arguments(pre_seq_len=LENGTH, position_offset=given)
    method = build_method(load_backbone(tiny(kind)), args, ["anchor"])
    assert method.model.encoder.position_offset == offset
    warned = [record for record in caplog.records if "--position_offset 7" in record.getMessage()]
    assert len(warned) == (kind == "modernbert" and given == 7)


def test_the_prompt_options_reach_the_prompt(tiny):
    args = model_arguments(pre_seq_len=6, prefix_projection=True, prefix_hidden_size=9, prompt_dropout=0.25)
    prompt = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model.encoder.prompt
    assert (prompt.shape.length, prompt.projection, prompt.dropout.p) == (6, 9, 0.25)
    assert prompt.table.trans[0].out_features == 9


@pytest.mark.parametrize(
    ("given", "inside", "of_prompts"),
    [
        ({}, 0.1, 0.1),
        ({"encoder_dropout": 0.25}, 0.25, 0.25),
        ({"encoder_dropout": 0.0}, 0.0, 0.0),
        ({"encoder_dropout": 0.25, "prompt_dropout": 0.0}, 0.25, 0.0),
    ],
)
def test_dropout_of_the_encoder_is_that_of_the_prompts_unless_these_have_their_own(given, inside, of_prompts, tiny):
    encoder = build_method(
        load_backbone(tiny("bert")), model_arguments(pre_seq_len=2, **given), ["anchor"]
    ).model.encoder
    assert encoder.prompt.dropout.p == of_prompts
    assert {layer.p for layer in encoder.backbone.modules() if isinstance(layer, torch.nn.Dropout)} == {inside}


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_dropout_that_cannot_be_is_refused(rate):
    with pytest.raises(UserError, match="--encoder_dropout"):
        model_arguments(encoder_dropout=rate)


def test_an_unknown_method_is_refused_with_the_known_ones(tiny):
    with pytest.raises(UserError, match=r"--method simcse2: unknown; did you mean 'simcse'\? Choose from: .*dcpcse"):
        build_method(load_backbone(tiny("bert")), model_arguments(method="simcse2"), ["anchor"])


def test_a_method_name_is_given_once():
    with pytest.raises(ValueError, match=r"'dcpcse' is already registered, by dcpcse\.methods\.dcpcse"):
        register("dcpcse")(lambda *_: None)
    assert METHODS["dcpcse"].build.__module__ == "dcpcse.methods.dcpcse"


# The figures of the contrastive term


@pytest.mark.parametrize("positive", ["positive", "prototype"])
def test_the_logged_cosines_are_those_of_a_loop_over_pairs(positive):
    torch.manual_seed(0)
    views = {name: (3 * torch.randn(5, 7)).bfloat16().requires_grad_() for name in ("anchor", positive)}
    loss_fn = Contrastive(positive=positive)
    loss_fn(SimpleNamespace(embeddings=views, precomputed={}, counts=None))
    anchors, others = (view.detach().double() for view in views.values())
    cosines = [[float(a @ b / (a.norm() * b.norm())) for b in others] for a in anchors]
    own = [cosines[i][i] for i in range(5)]
    rest = [cosines[i][j] for i in range(5) for j in range(5) if i != j]
    for name, expected in {"cosine_positive": own, "cosine_negative": rest}.items():
        total, number = loss_fn.metrics[name]
        assert int(number) == len(expected)
        assert float(total) == pytest.approx(sum(expected), abs=1e-5)  # in float32, whatever the views are in
        assert not total.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as a run in half precision computes it
        loss_fn(SimpleNamespace(embeddings=views, precomputed={}, counts=None))
    assert float(loss_fn.metrics["cosine_positive"][0]) == pytest.approx(sum(own), abs=1e-5)
    assert torch.equal(loss_fn.anchors, views["anchor"]) and not loss_fn.anchors.requires_grad


@pytest.mark.parametrize(
    ("others", "views", "expected"),
    [
        ((), ["anchor", "positive"], 3),
        ((), ["anchor", "positive", "negative"], 7),
        (("b", "c"), ["anchor"], 11),
    ],
)
def test_an_anchor_has_all_candidates_but_its_own_for_negatives(others, views, expected):
    assert Contrastive(others=others).negatives(4, views) == expected


def test_further_negatives_stand_below_the_line_of_every_anchor():
    class Further(Contrastive):
        def extra_negatives(self):
            return [kept]

    torch.manual_seed(0)
    kept, anchors, positives = (torch.randn(n, 6, dtype=torch.float64) for n in (3, 4, 4))
    found = Further(0.3)(
        SimpleNamespace(embeddings={"anchor": anchors, "positive": positives}, precomputed={}, counts=None)
    )
    losses = []
    for anchor, positive in zip(anchors, positives, strict=True):
        scores = [torch.cosine_similarity(anchor, other, dim=0) / 0.3 for other in (*positives, *kept)]
        losses.append(torch.stack(scores).logsumexp(0) - torch.cosine_similarity(anchor, positive, dim=0) / 0.3)
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-12, atol=0)


def test_one_process_has_nothing_to_gather_and_its_gradient_is_the_same_either_way():
    torch.manual_seed(0)
    texts = torch.randn(2, 4, 6)
    gradients = []
    for gather_gradient in ("exact", "published"):
        anchors, positives = (view.clone().requires_grad_() for view in texts)
        loss = Contrastive(gather_gradient=gather_gradient)(
            SimpleNamespace(embeddings={"anchor": anchors, "positive": positives}, precomputed={}, counts=None)
        )
        loss.backward()
        gradients.append(anchors.grad)
    assert torch.equal(*gradients)
