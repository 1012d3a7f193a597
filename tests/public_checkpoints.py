"""Checkpoints of other code, made with the names that it gives its tensors, and forwards written by hand."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer, DynamicCache

LENGTH, INNER = 3, 6


class Checkpoint:
    """Tensors of a published checkpoint on a tiny encoder, as the public code names them, and what they mean.

    trained: the encoder was trained, and is another one than the pretrained.
    """

    def __init__(self, base: str, *, trained: bool, seed: int = 5) -> None:
        self.base, self.config = base, AutoConfig.from_pretrained(base)
        self.root, self.hidden = self.config.model_type, self.config.hidden_size
        self.random = torch.Generator().manual_seed(seed)
        self.encoder = AutoModel.from_pretrained(base, dtype=torch.float32).eval().requires_grad_(False)
        if trained:
            for parameter in self.encoder.parameters():
                parameter += self.normal(*parameter.shape) * 0.05
        state = self.encoder.state_dict()
        self.pooler = {name: tensor for name, tensor in state.items() if name.startswith("pooler.")}
        self.tensors = {f"{self.root}.{n}": t.clone() for n, t in state.items() if n not in self.pooler}
        count = self.config.max_position_embeddings
        self.tensors[f"{self.root}.embeddings.position_ids"] = torch.arange(count).unsqueeze(0)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random)

    def put(self, name: str, *shape: int, scale: float = 0.5) -> torch.Tensor:
        self.tensors[name] = self.normal(*shape) * scale
        return self.tensors[name]

    def with_pooler(self) -> None:
        """BertModel(config) instead of BertModel(config, add_pooling_layer=False)."""
        self.tensors |= {f"{self.root}.{name}": tensor.clone() for name, tensor in self.pooler.items()}

    def with_lm_head(self) -> None:
        for name, shape in {"bias": (9,), "dense.weight": (4, 4), "decoder.weight": (9, 4)}.items():
            self.put(f"lm_head.{name}", *shape)

    def with_mlp(self) -> None:
        self.put("mlp.dense.weight", self.hidden, self.hidden)
        self.put("mlp.dense.bias", self.hidden)

    def with_batch_normalised_mlp(self) -> None:
        """DiffCSE's head, and its discriminator, which only training uses."""
        size = 2 * self.hidden
        self.put("mlp.net.0.weight", size, self.hidden)
        self.put("mlp.net.1.weight", size)
        self.put("mlp.net.1.bias", size)
        self.put("mlp.net.3.weight", self.hidden, size)
        for place, width in ((1, size), (4, self.hidden)):
            self.put(f"mlp.net.{place}.running_mean", width)
            self.tensors[f"mlp.net.{place}.running_var"] = self.normal(width).abs() + 0.5
            self.tensors[f"mlp.net.{place}.num_batches_tracked"] = torch.tensor(7)
        self.put("electra_head.weight", 2, self.hidden)
        self.put("discriminator.embeddings.word_embeddings.weight", 4, 4)

    def with_prefix(self, projection: bool) -> None:
        width = 2 * self.config.num_hidden_layers * self.hidden
        if not projection:
            self.put("prefix_encoder.embedding.weight", LENGTH, width, scale=1)
            return
        self.put("prefix_encoder.embedding.weight", LENGTH, self.hidden, scale=1)
        for place, (rows, columns) in {0: (INNER, self.hidden), 2: (width, INNER)}.items():
            self.put(f"prefix_encoder.trans.{place}.weight", rows, columns, scale=1)
            self.put(f"prefix_encoder.trans.{place}.bias", rows, scale=1)

    def table(self) -> torch.Tensor:
        """The prompts (P, 2·layers·hidden), as the public PrefixEncoder computes them."""
        table = self.tensors["prefix_encoder.embedding.weight"]
        if "prefix_encoder.trans.0.weight" not in self.tensors:
            return table
        weights = [self.tensors[f"prefix_encoder.trans.{i}.{part}"] for i in (0, 2) for part in ("weight", "bias")]
        return torch.tanh(table @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

    def mlp(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.tanh(vectors @ self.tensors["mlp.dense.weight"].T + self.tensors["mlp.dense.bias"])

    def converted(self) -> None:
        """simcse_to_huggingface: `mlp` becomes `pooler`, and `bert.` or `roberta.` goes."""
        self.tensors = {
            name.replace("mlp", "pooler").replace("bert.", "").replace("roberta.", ""): tensor
            for name, tensor in self.tensors.items()
        }

    def write(self, folder: Path, pickled: bool = True) -> Path:
        folder.mkdir(parents=True)
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        if pickled:
            torch.save(tensors, folder / "pytorch_model.bin")
        else:
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((Path(self.base) / "config.json").read_text()) | {"architectures": ["BertForCL"]}
        config |= {"_name_or_path": "bert-base-uncased"}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        AutoTokenizer.from_pretrained(self.base).save_pretrained(folder)
        return folder

    def hidden_states(self, ids: list[int], table: torch.Tensor | None = None, **given) -> torch.Tensor:
        """Last hidden states (L, H) of one text by transformers alone, behind prompts through its own cache."""
        mask = torch.ones(1, len(ids) + (0 if table is None else len(table)), dtype=torch.long)
        cache = None if table is None else self.cache(table)
        given = {"input_ids": torch.tensor([ids])} | given
        return self.encoder(attention_mask=mask, past_key_values=cache, **given).last_hidden_state[0]

    def cache(self, table: torch.Tensor) -> DynamicCache:
        heads, layers = self.config.num_attention_heads, self.config.num_hidden_layers
        cut = table.view(1, len(table), 2 * layers, heads, self.hidden // heads).permute(2, 0, 3, 1, 4).split(2)
        cache = DynamicCache()
        for layer, (key, value) in enumerate(cut):
            cache.update(key, value, layer)
        return cache

    def firsts(self, sentences: list[str], table: torch.Tensor | None = None) -> torch.Tensor:
        """[CLS] of the last layer (N, H), sentence by sentence."""
        ids = AutoTokenizer.from_pretrained(self.base)(sentences)["input_ids"]
        return torch.stack([self.hidden_states(row, table)[0] for row in ids])


def published(code: str, base: str) -> Checkpoint:
    """A checkpoint as the public code of a method writes it: simcse, diffcse, promcse or promptbert."""
    made = Checkpoint(base, trained=code != "promcse")
    parts = {
        "simcse": [made.with_mlp],
        "diffcse": [made.with_batch_normalised_mlp],
        "promcse": [lambda: made.with_prefix(True), made.with_mlp],
        "promptbert": [made.with_pooler, made.with_mlp],
    }
    for add in parts[code]:
        add()
    return made
