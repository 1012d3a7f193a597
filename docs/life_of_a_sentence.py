"""The diagram of docs/architecture.md, drawn when the site is built."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

ROWS = {
    "from the training file to the loss": [
        ("row of\nthe file", "data/readers"),
        ("views", "data/views"),
        ("batch of\ntoken ids", "data/collator"),
        ("hidden states,\nwith prompts", "encoders/encoder"),
        ("embeddings", "encoders/\nsentence_encoder"),
        ("loss", "losses, methods"),
        ("update", "training/trainer"),
    ],
    "from the evaluation file to the score": [
        ("sentences\nof a task", "senteval"),
        ("sorted\nbatches", "evaluation/\ndistributed_encoding"),
        ("token ids", "encoders/\ntokenization"),
        ("hidden states,\nwith prompts", "encoders/encoder"),
        ("embeddings", "encoders/\nsentence_encoder"),
        ("score", "senteval/scores"),
        ("table", "evaluation/tables"),
    ],
}
WIDTH, HEIGHT, GAP, DROP = 1.5, 0.8, 0.45, 2.3

figure, axes = plt.subplots(figsize=(11, 3.8))
for row, (title, boxes) in enumerate(ROWS.items()):
    y = -row * DROP
    axes.text(0, y + HEIGHT + 0.18, title, fontweight="bold", va="bottom")
    for i, (name, module) in enumerate(boxes):
        x = i * (WIDTH + GAP)
        shared = 3 <= i <= 4
        box = FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0.04", ec="#30507a")
        box.set_facecolor("#dbe7f5" if shared else "#f6f6f6")
        axes.add_patch(box)
        axes.text(x + WIDTH / 2, y + HEIGHT / 2, name, ha="center", va="center", fontsize=9)
        axes.text(x + WIDTH / 2, y - 0.12, module, ha="center", va="top", fontsize=7.5, family="monospace")
        if i:
            style = {"arrowstyle": "->", "color": "#30507a"}
            axes.annotate("", (x - 0.05, y + HEIGHT / 2), (x - GAP + 0.05, y + HEIGHT / 2), arrowprops=style)
axes.set_xlim(-0.1, len(boxes) * (WIDTH + GAP) - GAP + 0.1)
axes.set_ylim(-DROP - 0.75, HEIGHT + 0.55)
axes.axis("off")
figure.tight_layout()
