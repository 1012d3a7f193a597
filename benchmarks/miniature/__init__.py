"""The papers in miniature: the claims of the papers, tested with trainings of minutes on a small encoder.

    python -m benchmarks.miniature --unsup_file wiki.txt --sup_file nli.csv [--only all]

The command writes the page docs/miniature.md, which also describes the method. `variants.yaml` lists the variants that
are trained and measured. `claims.yaml` lists the claims of the papers, each about two variants.
"""
