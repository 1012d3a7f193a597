"""Compare the time of a training step of DCPCSE with the public technique and with full fine-tuning.

    python benchmarks/step_speed.py --tokenizer ENCODER --text FILE [--lines 64] [--max_seq_length 32]
        [--rounds 10] [--bf16] [--device cuda] [--spread | --growth | --large 4096] [--output_file step_speed.json]

All variants use the same lines and an encoder with random weights in train mode, with dropout 0.1. By default, the
encoder has the shape of BERT-base (--hidden, --layers, --heads). Except for the products, all variants do complete
training steps: forward pass, backward pass and AdamW.

packed            this project: no padding, prompts inserted by the attention function, frozen weights laid out for
                  oneDNN; on a GPU, kernels compute the attention and the frozen layers
without kernels   packed, with --attention torch
not prepacked     packed, with --prepack False
padded            packed, with --prepack False and --packing False
past_key_values   the public technique: the encoder of transformers, padded, with prompts in its cache; with eager
                  attention (the only attention that transformers had then) and with SDPA
SimCSE            full fine-tuning: the encoder of transformers, padded, with SDPA; and the encoder of this project,
                  packed
products          only the matrix products of the packed step, with the same shapes, in a loop
products, oneDNN  the same products, with the weights of the linear layers laid out as in packed

--spread compares packed with past_key_values (SDPA) on texts whose lengths vary increasingly. --growth measures the
packed step for several batch sizes, prompt lengths and numbers of layers. --large N compares a batch of N lines,
processed by gradient caching in chunks of --lines, with a batch of --lines.

Peak memory is measured in a separate process that does two steps of one variant. On a GPU, it is the peak of PyTorch's
allocator. --bf16 computes all variants in autocast. A text with fewer lines than needed is repeated.
"""

import argparse
import contextlib
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from interleaved import in_turn, table
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, DynamicCache, PreTrainedTokenizerBase

from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.identity import EncoderSource
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.tokenization import pad
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.gradient_cache import CACHED, Replay, run_in_chunks
from dcpcse.training.step import TrainingStep
from dcpcse.utils.devices import uses_kernels

LASTING = contextlib.ExitStack()
"""Keeps the layouts of weights until the benchmark ends."""

LEARNING_RATE = 1e-5

SPREADS = ((80, 80), (60, 100), (40, 120), (10, 150), (10, 300))
"""Minimum and maximum lengths of texts, in tokens."""


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    if args.only:
        side = sides(args, texts(args, tokenizer), tokenizer, [args.only])[args.only]
        side()
        start = time.perf_counter()
        side()
        seconds = time.perf_counter() - start
        print(json.dumps({"peak_mb": peak_mb(args.device), "seconds": seconds}))
        return
    work = {"spread": spread, "growth": growth, "large": large}
    result = next((work[name](args, tokenizer) for name in work if getattr(args, name)), None)
    result = result or compare(args, tokenizer)
    if args.output_file:
        settings = {**vars(args), "torch": torch.__version__, "threads": torch.get_num_threads()}
        Path(args.output_file).write_text(
            json.dumps({"settings": settings, **result}, indent=2) + "\n", encoding="utf-8"
        )


def peak_mb(device: str) -> float:
    """Return the peak memory of this process: on a GPU that of tensors, otherwise its resident set."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder with a BERT tokenizer")
    parser.add_argument("--text", required=True, help="a text file, a sentence a line")
    for name, default in (("lines", 64), ("max_seq_length", 32), ("prompt", 16), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("hidden", 768), ("layers", 12), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--large", type=int)
    others = [name for name in SIDES if name not in ("packed", "cached")]
    parser.add_argument("--sides", nargs="+", choices=others, default=others, help="besides packed; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--times_only", action="store_true", help="do not measure memory")
    parser.add_argument("--output_file")
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser.parse_args()


def texts(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of the first lines that are not blank."""
    with open(args.text, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    lines *= -(-args.lines // len(lines))
    return tokenizer(lines[: args.lines], truncation=True, max_length=args.max_seq_length)["input_ids"]


def compare(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict:
    """Measure time and peak memory of all sides."""
    rows = texts(args, tokenizer)
    tokens, width = sum(map(len, rows)), max(map(len, rows))
    print(f"{len(rows)} texts twice, {tokens / len(rows):.1f} tokens on average, {width} at most")
    names = [name for name in SIDES if name in ("packed", *args.sides)]
    memory = None if args.times_only else {name: _memory(name, args, rows, tokenizer) for name in names}
    seconds = in_turn(sides(args, rows, tokenizer, names), args.rounds)
    each = {"tokens": tokens, "width": width, "flop": _flop(args, 2 * tokens)}
    return {**each, "sides": table(seconds, "packed", memory), "seconds": seconds}


def _memory(name: str, args: argparse.Namespace, rows: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the peak memory of two steps of a side, without that of other sides."""
    if args.device == "cpu":
        return _alone(name)["peak_mb"]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = sides(args, rows, tokenizer, [name])[name]
    step(), step()
    return peak_mb(args.device) - before / 2**20


def _flop(args: argparse.Namespace, tokens: int) -> dict[str, int]:
    """Return the operations of the linear layers that a step needs, without those of padding and of attention.

    The backward pass of frozen layers computes gradients of inputs alone, that of trained layers also of weights.
    """
    forward = 2 * tokens * args.layers * sum(inputs * outputs for inputs, outputs in _linears(args.hidden))
    return {"frozen": 2 * forward, "full": 3 * forward}


def spread(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict:
    """Measure the gain for several ranges of lengths; texts of real words get random lengths in a range."""
    words = [token for row in texts(args, tokenizer) for token in row[1:-1]]
    first, last = tokenizer("")["input_ids"]
    found = {}
    for low, high in SPREADS:
        draw = random.Random(0)
        starts = [(draw.randrange(len(words) - high), draw.randint(low, high) - 2) for _ in range(args.lines)]
        rows = [[first, *words[start : start + length], last] for start, length in starts]
        names = ["packed", "past_key_values, SDPA"]
        print(f"\n{low} to {high} tokens, {sum(map(len, rows)) / len(rows):.0f} on average")
        found[f"{low}-{high}"] = table(in_turn(sides(args, rows, tokenizer, names), args.rounds), "packed")
    return {"spreads": found}


def growth(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict:
    """Measure the packed step for several batch sizes, prompt lengths and numbers of layers, varying one at a time."""
    values = {"lines": (16, 32, 64, 128), "prompt": (0, 4, 16, 64), "layers": (3, 6, 12)}
    found = {}
    for name, sizes in values.items():
        steps = {}
        for size in sizes:
            case = argparse.Namespace(**{**vars(args), name: size})
            steps[f"{name} {size}"] = sides(case, texts(case, tokenizer), tokenizer, ["packed"])["packed"]
        print()
        found[name] = table(in_turn(steps, args.rounds), f"{name} {sizes[0]}")
    return {"growth": found}


def large(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict:
    """Measure peak memory and seconds of a small batch, and of a large batch in chunks of the small one's size."""
    small = {f"batch {args.lines}": _alone("packed")}
    name = f"batch {args.large} in chunks of {args.lines}"
    found = small | {name: _alone("cached", "--lines", str(args.large), "--chunk", str(args.lines))}
    for case, row in found.items():
        print(f"{case:34}{row['peak_mb']:>8,.0f} MB{row['seconds']:>10.2f} s")
    return {"large": found}


def _alone(side: str, *options: str) -> dict[str, float]:
    """Return peak memory and seconds of one side, measured in a separate process."""
    command = [sys.executable, *sys.argv, *options, "--only", side]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def sides(
    args: argparse.Namespace, rows: list[list[int]], tokenizer: PreTrainedTokenizerBase, names: list[str]
) -> dict[str, Callable[[], None]]:
    """Return name → function that does one step of this side; all sides use the same texts."""
    ids, mask = pad([row for row in rows for _ in range(2)], tokenizer.pad_token_id)
    batch = {"input_ids": ids.view(len(rows), 2, -1), "attention_mask": mask.view(len(rows), 2, -1)}
    batch = {name: tensor.to(args.device) for name, tensor in batch.items()}
    return {name: SIDES[name](args, batch, tokenizer) for name in names}


def _config(args: argparse.Namespace) -> BertConfig:
    sizes = {"hidden_size": args.hidden, "num_hidden_layers": args.layers, "num_attention_heads": args.heads}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), args.dropout)
    return BertConfig(**sizes, **dropout, intermediate_size=4 * args.hidden, vocab_size=30522)


def _encoder(args: argparse.Namespace, attention: str) -> BertModel:
    torch.manual_seed(0)
    with torch.device(args.device):
        model = AutoModel.from_config(_config(args), attn_implementation=attention)
    model.pooler = None
    return model


def _autocast(args: argparse.Namespace) -> torch.autocast:
    return torch.autocast(args.device, torch.bfloat16, enabled=args.bf16)


def _step(module: nn.Module, backward: Callable[[], object]) -> Callable[[], object]:
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=LEARNING_RATE)

    def step() -> object:
        optimizer.zero_grad()
        result = backward()
        optimizer.step()
        if next(module.parameters()).is_cuda:
            torch.cuda.synchronize()
        return result

    return step


def _own(
    method: str,
    packed: bool = True,
    cached: bool = False,
    prepack: bool = True,
    kernels: bool = True,
) -> Callable:
    """Return a builder of a step of this project, packed as by its collator; cached: in chunks of --chunk."""

    def build(args: argparse.Namespace, batch: dict, tokenizer: PreTrainedTokenizerBase) -> Callable[[], None]:
        encoder = _encoder(args, "sdpa")
        source = EncoderSource("random", None, "bert", args.hidden, "")
        prompts = {"pre_seq_len": args.prompt} if method == "dcpcse" and args.prompt else {}
        tuning = "deep" if prompts else "full"
        settled = fill_defaults(model_arguments(method=method, tuning=tuning, **prompts), ["anchor"])
        method_ = build_method(Backbone(encoder, tokenizer, source), settled, ["anchor"])
        steps = TrainingStep(method_).to(args.device).train()
        if method == "dcpcse" and not prompts:
            steps.model.encoder.requires_grad_(False)  # without prompts, only the head is trained
        by_kernels = uses_kernels(None if kernels else "torch", torch.device(args.device), packed)
        set_packed(steps, packed, by_kernels=by_kernels)
        LASTING.enter_context(prepacked(steps, prepack and not args.bf16))
        half = torch.bfloat16 if args.bf16 else None
        LASTING.enter_context(in_half_precision(steps, half, whole=True))

        def replayed(chunk: dict, replay: Replay, last: bool) -> dict[str, Tensor]:
            with _autocast(args):
                terms = steps(replay=replay, **chunk)
            terms[CACHED].backward()
            return terms

        def at_once() -> Tensor:
            with _autocast(args):
                loss = steps(**batch, packing=packing)["contrastive"]
            loss.backward()
            return loss.detach()

        # As in the collator, the numbers of tokens are read on the CPU.
        packing = Packing.of(batch["attention_mask"].flatten(0, 1).cpu()).to(args.device) if packed else None
        if cached:
            whole, weights, precision = {**batch, "packing": packing}, {"contrastive": 1.0}, lambda: _autocast(args)
            return _step(steps, lambda: run_in_chunks(steps, whole, args.chunk, weights, replayed, precision))
        return _step(steps, at_once)

    return build


class Public(nn.Module):
    """The technique of the public code, with transformers alone: a padded batch, and the prompts in the cache."""

    def __init__(self, args: argparse.Namespace, attention: str, prompt: int) -> None:
        super().__init__()
        self.encoder, self.prompt = _encoder(args, attention), prompt
        self.head = nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.Tanh())
        if prompt:
            self.encoder.requires_grad_(False)
            self.table = nn.Parameter(0.02 * torch.randn(prompt, 2 * args.layers * args.hidden))
        self.shape = (2 * args.layers, args.heads, args.hidden // args.heads)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        ids, mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
        cache = None
        if self.prompt:
            drawn = F.dropout(self.table.expand(len(ids), -1, -1), 0.1)
            drawn = drawn.view(len(ids), self.prompt, *self.shape).permute(2, 0, 3, 1, 4).unbind()
            cache = DynamicCache()
            for layer in range(self.shape[0] // 2):
                cache.update(drawn[2 * layer], drawn[2 * layer + 1], layer)
            mask = torch.cat([mask.new_ones(len(mask), self.prompt), mask], dim=1)
        hidden = self.encoder(input_ids=ids, attention_mask=mask, past_key_values=cache).last_hidden_state
        first, second = self.head(hidden[:, 0]).unflatten(0, input_ids.shape[:2]).unbind(1)
        cosines = F.cosine_similarity(first.unsqueeze(1), second.unsqueeze(0), dim=-1)
        return F.cross_entropy(cosines / 0.05, torch.arange(len(first), device=first.device))


def _public(attention: str, prompted: bool) -> Callable:
    def build(args: argparse.Namespace, batch: dict, tokenizer: PreTrainedTokenizerBase) -> Callable[[], None]:
        module = Public(args, attention, args.prompt if prompted else 0).to(args.device).train()

        def at_once() -> None:
            with _autocast(args):
                loss = module(**batch)
            loss.backward()

        return _step(module, at_once)

    return build


def _products(prepack: bool) -> Callable:
    """Return a function that builds the matrix products of the packed step: forward, and backward to the inputs only.

    The weights are frozen, so the step computes no gradients for them.
    """

    def build(args: argparse.Namespace, batch: dict, tokenizer: PreTrainedTokenizerBase) -> Callable[[], None]:
        mask, hidden = batch["attention_mask"].flatten(0, 1), args.hidden
        tokens, width = int(mask.sum()), int(mask.sum(1).max())
        per_head = (len(mask), args.heads, width, hidden // args.heads)
        given = {size: torch.randn(tokens, size, device=args.device) for size in (hidden, 4 * hidden)}
        layers = [nn.Linear(*shape, bias=False, device=args.device) for shape in _linears(hidden)]
        # As in the step, forward multiplies by the weight and backward by its transpose.
        layers += [nn.Linear(*shape[::-1], bias=False, device=args.device) for shape in _linears(hidden)]
        query = torch.randn(per_head, device=args.device)
        keys = torch.randn(*per_head[:2], width + args.prompt, per_head[3], device=args.device)
        LASTING.enter_context(prepacked(nn.ModuleList(layers).requires_grad_(False), prepack and not args.bf16))
        if args.bf16:
            given = {size: tensor.bfloat16() for size, tensor in given.items()}
            layers, query, keys = [one.bfloat16() for one in layers], query.bfloat16(), keys.bfloat16()

        @torch.no_grad()
        def step() -> None:
            for _ in range(args.layers):
                for layer in layers:
                    layer(given[layer.in_features])
                scores = query @ keys.transpose(2, 3)
                scores @ keys  # the output; backward: for scores, values, queries and keys
                query @ keys.transpose(2, 3), scores.transpose(2, 3) @ query, scores @ keys
                scores.transpose(2, 3) @ query
            if query.is_cuda:
                torch.cuda.synchronize()

        return step

    return build


def _linears(hidden: int) -> list[tuple[int, int]]:
    """Return input and output sizes of a layer's linear maps: query, key, value, output, and two of feed-forward."""
    return [(hidden, hidden)] * 4 + [(hidden, 4 * hidden), (4 * hidden, hidden)]


SIDES = {
    "packed": _own("dcpcse"),
    "without kernels": _own("dcpcse", kernels=False),
    "cached": _own("dcpcse", cached=True),
    "not prepacked": _own("dcpcse", prepack=False),
    "padded": _own("dcpcse", prepack=False, packed=False),
    "past_key_values, eager": _public("eager", prompted=True),
    "past_key_values, SDPA": _public("sdpa", prompted=True),
    "SimCSE": _public("sdpa", prompted=False),
    "SimCSE, packed": _own("simcse"),
    "SimCSE, packed, without kernels": _own("simcse", kernels=False),
    "products": _products(prepack=False),
    "products, oneDNN": _products(prepack=True),
}


if __name__ == "__main__":
    main()
