"""The papers in miniature: their claims, tested on a small encoder with trainings that take minutes.

    python -m benchmarks.miniature --unsup_file wiki.txt --sup_file nli.csv [--only all]

docs/miniature.md describes it, and is the page that it writes. `variants.yaml` lists what is
trained and measured, `claims.yaml` what the papers say of two variants.
"""
