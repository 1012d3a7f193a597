"""Which tokens are masked, the MLM loss, its head and its weight."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, DynamicCache

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.losses import EncodedBatch, MaskedLM
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.methods import build_method, model_arguments
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


def test_tokens_are_chosen_with_the_probability_and_become_mask_random_or_stay_80_10_10(tiny):
    tokenizer = load_backbone(tiny("bert")).tokenizer
    torch.manual_seed(0)
    ids = torch.randint(5, len(tokenizer), (400, 250))
    n = ids.numel()  # 100,000: the tolerances are four standard deviations or more
    for probability in (0.15, 0.4):
        masked, chosen = TokenMasking(tokenizer, probability)(ids)
        share = chosen.float().mean().item()
        assert share == pytest.approx(probability, abs=4 * (probability * (1 - probability) / n) ** 0.5)
        to_mask = (masked == tokenizer.mask_token_id)[chosen].float().mean().item()
        stay = (masked == ids)[chosen].float().mean().item()
        tolerance = 4 * (0.16 / (n * probability)) ** 0.5
        one_of_all = 0.1 / len(tokenizer)  # a random token may be the mask, or the token that was there
        assert to_mask == pytest.approx(0.8 + one_of_all, abs=tolerance)
        assert stay == pytest.approx(0.1 + one_of_all, abs=tolerance)
        assert 1 - to_mask - stay == pytest.approx(0.1 - 2 * one_of_all, abs=tolerance)
        assert torch.equal(masked[~chosen], ids[~chosen])
    ids = torch.full((1000, 300), 7)
    masked, chosen = TokenMasking(tokenizer, 0.9)(ids)
    replaced = masked[chosen & (masked != 7) & (masked != tokenizer.mask_token_id)]
    counts = torch.bincount(replaced, minlength=len(tokenizer)).float()  # from the whole vocabulary, evenly
    assert len(counts) == len(tokenizer)
    counts = counts[[i for i in range(len(tokenizer)) if i not in (7, tokenizer.mask_token_id)]]
    assert counts.min() > 0.6 * counts.mean() and counts.max() < 1.5 * counts.mean()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_special_tokens_and_pads_are_never_chosen(tiny, kind):
    tokenizer = load_backbone(tiny(kind)).tokenizer
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    assert tokenizer.pad_token_id in special
    masked, chosen = TokenMasking(tokenizer, 0.99)(ids := torch.cat([special, torch.tensor([50, 60])]).expand(200, -1))
    assert not chosen[:, :-2].any()
    assert chosen[:, -2:].float().mean() > 0.9
    assert torch.equal(masked[:, :-2], ids[:, :-2])
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="the tokenizer has no mask token"):
        TokenMasking(tokenizer, 0.15)


def test_masking_leaves_its_input_alone_follows_the_seed_and_differs_from_call_to_call(tiny):
    """SimCSE's first collator masked the contrastive input too (its pull request 121)."""
    masking = TokenMasking(load_backbone(tiny("bert")).tokenizer, 0.5)
    ids = torch.randint(5, 100, (20, 2, 10))
    before = ids.clone()
    torch.manual_seed(5)
    (first, chosen), (second, _) = masking(ids), masking(ids)
    torch.manual_seed(5)
    assert all(torch.equal(*pair) for pair in zip(masking(ids), (first, chosen), strict=True))
    assert torch.equal(ids, before)
    assert first.shape == chosen.shape == ids.shape
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])


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


# The LM head


@pytest.mark.parametrize("kind", WITH_LM)
def test_a_batch_in_which_nothing_is_masked_costs_nothing_and_has_finite_gradients(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    step = step_of(model := sentence_encoder(backbone))
    nothing = torch.zeros(step.input_ids.flatten(0, 1).shape, dtype=torch.bool)
    loss = MaskedLM(backbone.lm_head, FixedMasking(nothing, 4), train_head=True)(step)
    loss.backward()
    gradients = [p.grad for p in (*model.parameters(), *backbone.lm_head.parameters()) if p.grad is not None]
    assert loss.item() == 0 and gradients and all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("kind", WITH_LM)
def test_the_head_of_every_architecture_gives_the_logits_of_the_checkpoint_whose_embeddings_it_shares(tiny, kind):
    """Frozen by default, without a second copy of the largest matrix, and without an encoder."""
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    words = backbone.model.get_input_embeddings().weight
    assert any(p.data_ptr() == words.data_ptr() for p in backbone.lm_head.parameters())
    theirs = AutoModelForMaskedLM.from_pretrained(tiny(kind), dtype=torch.float32).eval()
    ids = torch.arange(6, 26).view(2, 10)
    with torch.no_grad():
        hidden = backbone.model.eval()(ids, torch.ones_like(ids)).last_hidden_state
        ours = backbone.lm_head(hidden)
        torch.testing.assert_close(ours, theirs(ids, torch.ones_like(ids)).logits, atol=1e-5, rtol=1e-5)
    loss_fn = MaskedLM(backbone.lm_head, FixedMasking(torch.zeros(1), 4))
    assert not any(p.requires_grad for p in loss_fn.parameters())
    layers = {id(p) for name, p in backbone.model.named_parameters() if "layer" in name}
    assert len(layers) > 10 and layers.isdisjoint(map(id, loss_fn.parameters()))
    backbone.lm_head.untie()
    assert torch.equal(backbone.lm_head(hidden), ours)


@pytest.mark.parametrize("kind", WITH_LM)
def test_training_the_head_changes_all_of_it_and_leaves_the_embeddings_alone(tiny, kind):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    step = step_of(model := sentence_encoder(backbone))
    loss_fn = MaskedLM(backbone.lm_head, FixedMasking(positions_to_predict(step), 4), train_head=True)
    parameters, frozen = dict(loss_fn.named_parameters()), dict(model.encoder.backbone.named_parameters())
    assert all(p.requires_grad for p in parameters.values())
    before = {name: p.detach().clone() for name, p in (*parameters.items(), *frozen.items())}
    optimizer = torch.optim.SGD([p for p in (*parameters.values(), *model.parameters()) if p.requires_grad], lr=1.0)
    loss_fn(step).backward()
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in frozen.items())
    assert all(not torch.equal(p, before[name]) for name, p in parameters.items())


def test_the_head_of_bert_base_has_the_published_number_of_parameters():
    """SPEC 1.2: 24,063,546, of which 23,440,896 are its decoder's."""
    with torch.device("meta"):
        head = LMHead(BertForMaskedLM(BertConfig()))
    assert sum(p.numel() for p in head.parameters()) == 24_063_546


@pytest.mark.parametrize("kind", WITH_LM)
def test_a_new_head_starts_from_the_word_embeddings_and_is_trained(tiny, kind):
    with pytest.raises(UserError, match=r"has no masked-LM head.*--lm_head PATH.*--lm_head new"):
        load_backbone(tiny(kind, masked_lm=False), lm_head="checkpoint")
    backbone = load_backbone(tiny(kind, masked_lm=False), lm_head="new")
    words = backbone.model.get_input_embeddings().weight
    decoder = backbone.lm_head.masked_lm.get_output_embeddings().weight
    assert torch.equal(decoder, words)
    assert decoder.data_ptr() != words.data_ptr()
    args = model_arguments(do_mlm=True, lm_head="new", pre_seq_len=LENGTH)
    loss_fn = build_method(backbone, args, ["anchor"]).terms["mlm"].loss
    assert all(p.requires_grad for p in loss_fn.lm_head.parameters())
    assert not any(p.requires_grad for p in backbone.model.parameters())


def test_a_head_from_another_checkpoint_is_its_own_or_refused(tiny):
    small = {"vocab_size": 300}
    backbone = load_backbone(tiny("bert", masked_lm=False, **small), lm_head=tiny("bert", seed=5, **small))
    theirs = load_backbone(tiny("bert", seed=5, **small), lm_head="checkpoint").lm_head
    hidden = torch.randn(5, 32)
    with torch.no_grad():
        assert torch.equal(backbone.lm_head(hidden), theirs(hidden))
    for other, sizes in (({"vocab_size": 301}, "32 and 301"), ({**small, "hidden_size": 64}, "64 and 300")):
        with pytest.raises(
            UserError, match=f"hidden size {sizes} tokens.* but the encoder has hidden size 32 and 300"
        ):
            load_backbone(tiny("bert", **small), lm_head=tiny("bert", **other))
    with pytest.raises(UserError, match="has no masked-LM head"):
        load_backbone(tiny("bert"), lm_head=tiny("bert", masked_lm=False))


def test_the_mlm_weight_decays_as_published(tiny):
    """0.1 · 0.95^(step / 100), the exponent real-valued (SPEC 1.5); options give other numbers."""

    def terms_of(**options):
        args = model_arguments(do_mlm=True, pre_seq_len=LENGTH, **options)
        return build_method(load_backbone(tiny("bert"), lm_head="checkpoint"), args, ["anchor"]).terms

    terms = terms_of()
    weights = {0: 0.1, 1: 0.09994872, 50: 0.09746794, 100: 0.095, 200: 0.09025, 3907: 0.0134793, 15625: 3.3e-5}
    for step, weight in weights.items():
        assert terms["mlm"].weight_at(step) == pytest.approx(weight, rel=1e-4 if step < 5000 else 0.05)
        assert terms["contrastive"].weight_at(step) == 1
    term = terms_of(mlm_weight=0.4, mlm_decay_rate=0.5, mlm_decay_steps=10)["mlm"]
    assert [term.weight_at(step) for step in (0, 10, 20)] == pytest.approx([0.4, 0.2, 0.1])
