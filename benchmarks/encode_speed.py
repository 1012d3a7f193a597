"""Compare `encode` with sentence-transformers at its best batch size: times and vectors for the same sentences.

    python benchmarks/encode_speed.py --model_name_or_path ENCODER --text FILE [--sentences 20000] [--rounds 5]
        [--output_file encode_speed.json]

ENCODER is a sentence-transformers folder with mean pooling. First, the best of --batch_sizes for
sentence-transformers is determined on a tenth of the sentences. Both libraries use the same cores, truncate texts to
--max_seq_length tokens, and encode all sentences once per round.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from interleaved import in_turn, table

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder


def main() -> None:
    args = parse()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import __version__ as version

    with open(args.text, encoding="utf-8") as file:
        sentences = [line.strip() for line in file if line.strip()][: args.sentences]
    theirs = SentenceTransformer(args.model_name_or_path, device=args.device)
    theirs.max_seq_length = args.max_seq_length
    ours = plain_encoder(load_backbone(args.model_name_or_path), "avg").to(args.device)
    few = sentences[::10]
    tried = in_turn({str(size): lambda size=size: theirs.encode(few, batch_size=size) for size in args.batch_sizes}, 2)
    best = int(min(tried, key=lambda size: min(tried[size])))
    print(f"sentence-transformers {version}: batch size {best} is the fastest of {args.batch_sizes}")
    vectors = {}

    def encode(name: str) -> None:
        if name == "dcpcse":
            vectors[name] = ours.encode(sentences, max_length=args.max_seq_length, normalize=True)
        else:
            vectors[name] = theirs.encode(sentences, batch_size=best, normalize_embeddings=True)

    names = ("dcpcse", "sentence-transformers")
    seconds = in_turn({name: lambda name=name: encode(name) for name in names}, args.rounds)
    rows = table(seconds, "dcpcse")
    difference = float(np.abs(vectors["dcpcse"] - vectors["sentence-transformers"]).max())
    print(f"{len(sentences) / rows['dcpcse']['median']:,.0f} sentences a second; largest difference {difference:.1e}")
    if args.output_file:
        settings = {**vars(args), "best_batch_size": best, "torch": torch.__version__, "other": version}
        content = {"settings": settings, "sides": rows, "seconds": seconds, "largest_difference": difference}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--text", required=True, help="a text file with one sentence per line")
    for name, default in (("sentences", 20_000), ("rounds", 5), ("max_seq_length", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output_file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
