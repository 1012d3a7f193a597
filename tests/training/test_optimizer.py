"""AdamW without bias correction, and groups of parameters with a learning rate and a warm-up of their own."""

import math

import pytest
import torch

from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.arguments import TrainingArguments
from dcpcse.training.optimizer import UncorrectedAdamW
from dcpcse.training.trainer import Trainer
from dcpcse.training.validate_setup import require_warmups
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

LR, BETAS, EPS, STEPS = 0.02, (0.8, 0.95), 1e-3, 7


def gradients(size: int) -> torch.Tensor:
    return torch.randn(STEPS, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_the_optimiser_of_a_cpu_is_not_fused_unless_it_is_named(tiny, tmp_path):
    for given, optim in (({}, "adamw_torch"), ({"optim": "adamw_torch_fused"}, "adamw_torch_fused")):
        args = TrainingArguments(str(tmp_path), use_cpu=True, **given)
        assert args.optim == optim and args.given == given.keys() | {"output_dir", "use_cpu"}
    assert type(trainer(tiny, tmp_path).create_optimizer()) is torch.optim.AdamW
    with pytest.raises(UserError, match="--adam_bias_correction False is not available with --optim sgd"):
        TrainingArguments(output_dir=str(tmp_path), optim="sgd", adam_bias_correction=False)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_steps_are_those_of_a_loop_over_numbers(weight_decay):
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))
    unused = torch.nn.Parameter(torch.ones(2))
    wanted, m, v = weight.tolist(), [0.0] * 5, [0.0] * 5
    optimizer = UncorrectedAdamW([weight, unused], LR, BETAS, EPS, weight_decay)
    for step, row in enumerate(gradients(5)):
        rate = optimizer.param_groups[0]["lr"] = LR * (1 - step / STEPS)
        weight.grad = row.clone()
        optimizer.step()
        for i, g in enumerate(row.tolist()):
            m[i] = BETAS[0] * m[i] + (1 - BETAS[0]) * g
            v[i] = BETAS[1] * v[i] + (1 - BETAS[1]) * g * g
            wanted[i] -= rate * m[i] / (math.sqrt(v[i]) + EPS)
            wanted[i] -= rate * weight_decay * wanted[i]
    torch.testing.assert_close(weight.detach(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-14)
    assert torch.equal(unused, torch.ones(2)), "no gradient, no decay"


def test_its_state_is_saved_and_loaded():
    runs = []
    for reload in (False, True):
        weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimizer = UncorrectedAdamW([weight], LR, BETAS, EPS)
        for step, row in enumerate(gradients(4)):
            if reload and step == 3:
                state, optimizer = optimizer.state_dict(), UncorrectedAdamW([weight], 1.0)
                optimizer.load_state_dict(state)
            weight.grad = row.clone()
            assert optimizer.step(lambda: torch.tensor(2.5)) == 2.5
        runs.append(weight)
    assert torch.equal(*runs)


def trainer(tiny, tmp_path, model=(("method", "simcse"),), **options) -> Trainer:
    method = build_method(load_backbone(tiny("bert")), model_arguments(**dict(model)), ["anchor"])
    return Trainer(None, method, TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **options))


def test_the_trainer_uses_it_and_decays_what_the_public_code_decays(tiny, tmp_path):
    """sentence-transformers 0.3 leaves out every name with bias, LayerNorm.bias or LayerNorm.weight in it."""
    settings = {"learning_rate": 0.1, "adam_beta1": 0.7, "adam_beta2": 0.9, "adam_epsilon": 1e-6, "weight_decay": 0.01}
    made = trainer(tiny, tmp_path, adam_bias_correction=False, **settings)
    optimizer = made.create_optimizer()
    assert isinstance(optimizer, UncorrectedAdamW)
    decayed, others = optimizer.param_groups
    assert [group["weight_decay"] for group in (decayed, others)] == [0.01, 0.0]
    for group in (decayed, others):
        assert (group["lr"], group["betas"], group["eps"]) == (0.1, (0.7, 0.9), 1e-6)
    names = {id(weight): name for name, weight in made.step_module.named_parameters()}
    left_out = {name for name in names.values() if any(part in name for part in ("bias", "LayerNorm"))}
    assert {names[id(weight)] for weight in others["params"]} == left_out
    assert {names[id(weight)] for weight in decayed["params"]} == set(names.values()) - left_out


# Groups of their own


def with_discriminator(tiny, tmp_path, run=(), **options) -> Trainer:
    options |= {"method": "d2cse", "discriminator": "trained", "pre_seq_len": 2, "generator_name": tiny("bert")}
    return trainer(tiny, tmp_path, model=options, **{"learning_rate": 0.5, "weight_decay": 0.1, **dict(run)})


def test_the_discriminator_and_its_head_have_their_rate_and_the_run_s_decay(tiny, tmp_path):
    made = with_discriminator(tiny, tmp_path, discriminator_learning_rate=0.01)
    groups, names = made.create_optimizer().param_groups, {id(p): n for n, p in made.step_module.named_parameters()}
    of = [{names[id(weight)] for weight in group["params"]} for group in groups]
    trained = {name for name, weight in made.step_module.named_parameters() if weight.requires_grad}
    detection = {name for name in trained if name.startswith("losses.crtd.")}
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.5, 0.1), (0.5, 0), (0.01, 0.1), (0.01, 0)]
    assert of[2] | of[3] == detection and of[0] | of[1] == trained - detection
    assert sum(map(len, of)) == len(trained)
    assert "losses.crtd.head.weight" in of[2] and "losses.crtd.head.bias" in of[3]


@pytest.mark.parametrize(
    ("kind", "given", "steps"),
    [("linear", 4, 4), ("constant", 0.25, 5), ("cosine", 0, 0), ("inverse_sqrt", 0.25, 5), ("linear", 0, 0)],
)
def test_the_warm_up_is_linear_and_the_schedule_of_the_run_follows(kind, given, steps, tiny, tmp_path):
    run = {"lr_scheduler_type": kind, "warmup_steps": 2}
    made = with_discriminator(tiny, tmp_path, run, discriminator_learning_rate=0.02, discriminator_warmup_steps=given)
    made.create_optimizer_and_scheduler(20)
    after = {
        "linear": lambda step, warmup: (20 - step) / (20 - warmup),
        "cosine": lambda step, warmup: (1 + math.cos(math.pi * (step - warmup) / (20 - warmup))) / 2,
        "inverse_sqrt": lambda step, warmup: 1 / math.sqrt((step + (warmup or 10_000) - warmup) / (warmup or 10_000)),
    }.get(kind, lambda step, warmup: 1)
    usual = 0 if kind == "constant" else 2

    def factor(step: int, warmup: int) -> float:
        return step / warmup if step < warmup else after(step, warmup)

    for step in range(20):
        rates = [group["lr"] for group in made.optimizer.param_groups]
        wanted = [0.5 * factor(step, usual), 0.02 * factor(step, steps)]
        assert rates == pytest.approx([wanted[0], wanted[0], wanted[1], wanted[1]])
        made.optimizer.step()
        made.lr_scheduler.step()


def test_a_warm_up_alone_leaves_the_rate_and_none_leaves_the_groups(tiny, tmp_path):
    made = with_discriminator(tiny, tmp_path, discriminator_warmup_steps=5)
    made.create_optimizer_and_scheduler(10)
    assert [group["initial_lr"] for group in made.optimizer.param_groups] == [0.5] * 4
    usual = with_discriminator(tiny, tmp_path)
    usual.create_optimizer_and_scheduler(10)
    assert len(usual.optimizer.param_groups) == 2 and not usual.method.groups
    run = TrainingArguments(output_dir=str(tmp_path), lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch")
    with pytest.raises(UserError, match="--lr_scheduler_type reduce_lr_on_plateau has no warm-up, but a warm-up of 5"):
        require_warmups(made.method, run)
    args = model_arguments(method="d2cse", generator_name=tiny("bert"), discriminator_warmup_steps=1)
    with pytest.raises(UserError, match="--discriminator_warmup_steps has no effect without --discriminator trained"):
        fill_defaults(args, ["anchor"])
