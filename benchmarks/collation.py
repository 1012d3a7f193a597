"""Compare the times to fetch and collate a batch from texts and from sentences that were tokenised before.

    python benchmarks/collation.py --train_file FILE [--tokenizer data/encoder] [--rows 256] [--rounds 100]
        [--max_seq_length 32] [--output_file collation.json]

The times are measured for SimCSE and DCPCSE, whose inputs have no template, and for PromptBERT, whose inputs have two
templates. Each round collates different rows. The time to tokenise the whole file is measured once.
"""

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
from interleaved import in_turn, ratio

from dcpcse.data.collator import ViewCollator
from dcpcse.data.examples import make_examples
from dcpcse.data.token_table import open_token_tables
from dcpcse.data.training_data import load_training_file
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.backbones import load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.templates import Template, TokenTemplate

TEMPLATES = ('This sentence : "{sentence}" means [MASK] .', 'This sentence of "{sentence}" means [MASK] .')


def main() -> None:
    args = parse()
    tokenizer = load_tokenizer(args.tokenizer, LoadOptions())
    templates = [TokenTemplate(Template.parse(text), tokenizer) for text in TEMPLATES]
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        data = load_training_file(args.train_file, cache)
        columns, texts = make_examples(data, 0)
        _, tokens = make_examples(data, 0)
        drawn = np.random.default_rng(0).integers(len(texts), size=(args.rounds, args.rows)).tolist()
        for name, used in {"no template": [], "two templates": templates}.items():
            views = sentence_pair_views(columns, len(used))
            collate = ViewCollator(tokenizer, views, args.max_seq_length, templates=used)
            start = time.perf_counter()
            tokens.tables = open_token_tables(data.dataset, tokenizer, collate.tokenizations, show_progress=False)
            whole = time.perf_counter() - start
            sides = {
                "from texts": partial(next, (collate(texts.__getitems__(rows)) for rows in cycle(drawn))),
                "from tokens": partial(next, (collate(tokens.__getitems__(rows)) for rows in cycle(drawn))),
            }
            print(f"{name}: {args.rows} rows of {len(views)} views; {len(texts):,} rows tokenised in {whole:.1f} s")
            seconds = in_turn(sides, args.rounds)
            median = {side: statistics.median(taken) * 1e3 for side, taken in seconds.items()}
            less = ratio(seconds["from tokens"], seconds["from texts"])
            print(
                f"    {median['from texts']:.2f} ms from texts, {median['from tokens']:.2f} ms from tokens: "
                f"{less['ratio']:.3f} ({less['low']:.3f} to {less['high']:.3f})"
            )
            found[name] = {"seconds_of_all_rows": whole, "milliseconds": median, "ratio": less}
    if args.output_file:
        Path(args.output_file).write_text(
            json.dumps({**vars(args), "found": found}, indent=2) + "\n", encoding="utf-8"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--tokenizer", default="data/encoder")
    for name, default in (("rows", 256), ("rounds", 100), ("max_seq_length", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output_file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
