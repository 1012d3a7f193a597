"""Installs the packages dcpcse and senteval; pyproject.toml holds tool settings only."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "dcpcse/__init__.py").read_text(encoding="utf-8"))[1]

SUPPORTED = (ROOT / "dcpcse/doctor/supported.txt").read_text(encoding="utf-8").split()
"""What `dcpcse doctor` compares the environment with."""

TOOLS = [
    "coverage>=7.10",
    "hypothesis>=6.140",
    "import-linter>=2.13",
    "ipykernel>=7",
    "mypy>=2",
    "nbclient>=0.10",
    "nbformat>=5.10",
    "pandas>=2.2",
    "polars>=1.30",
    "pytest>=8",
    "pytest-xdist>=3.6",
    "ruff>=0.17",
]
EXTRAS = {
    "demo": ["gradio>=6,<7"],
    "docs": ["sphinx>=8", "myst-nb>=1.4", "furo>=2025.7", "matplotlib>=3.9,<4"],
    "faiss": ["faiss-cpu>=1.10"],
    "mteb": ["mteb>=2.26,<3"],
    "onnx": ["onnx>=1.18", "onnxscript>=0.5", "onnxruntime>=1.20"],
    "peft": ["peft>=0.21,<1"],
    "plots": ["matplotlib>=3.9,<4"],
    "ray": ["ray>=2.60,<3"],
    "serve": ["starlette>=1,<2", "uvicorn>=0.50", "pydantic>=2.10,<3", "orjson>=3.10", "prometheus-client>=0.22"],
    "st": ["sentence-transformers>=6,<7"],
    "tensorboard": ["tensorboard>=2.16"],
}
EXTRAS["dev"] = [*(line for lines in EXTRAS.values() for line in lines), *TOOLS]

setup(
    name="dcpcse",
    version=VERSION,
    description="Sentence embeddings by deep continuous prompts on frozen encoders",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=next(line for line in SUPPORTED if line.startswith("python")).removeprefix("python"),
    packages=[*find_packages(include=["dcpcse*"]), "senteval"],
    package_dir={"senteval": "SentEval/senteval"},
    package_data={
        "dcpcse": ["py.typed", "presets/*/*.yaml"],
        "dcpcse.analysis": ["*.j2", "*.css"],
        "dcpcse.doctor": ["supported.txt"],
        "dcpcse.experiments.reproduction": ["tables/*.yaml"],
        "dcpcse.serving": ["*.j2"],
        "dcpcse.pretraining": ["encoder_card.md.j2"],
        "dcpcse.training": ["model_card.md.j2"],
        "senteval": ["py.typed", "known_files.txt"],
    },
    entry_points={"console_scripts": ["dcpcse = dcpcse.__main__:main"]},
    install_requires=[line for line in SUPPORTED if not line.startswith("python")],
    extras_require=EXTRAS,
)
