"""Run the notebooks of docs/notebooks from the first cell to the last, and print the time of each notebook.

    python benchmarks/notebooks.py [NAME ...] [--encoder FOLDER_OR_ID] [--output FOLDER] [--save]

--encoder replaces the value of `ENCODER` in each notebook. The executed copies are written to --output (default:
result/notebooks). --save also stores the outputs, except stderr, in docs/notebooks, for the pages of the site.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "docs/notebooks"


def run_notebook(path: Path, encoder: str | None = None) -> Any:
    """Run the cells in a new kernel, in the folder of the notebook, and return the executed notebook.

    Raises nbclient.exceptions.CellExecutionError if a cell raises.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if encoder and "parameters" in cell.metadata.get("tags", ()):
            cell.source += f"\nENCODER = {encoder!r}"
    client = NotebookClient(notebook, kernel_name="python3", record_timing=False)
    return client.execute(cwd=str(path.parent))


def is_noise(output: Any) -> bool:
    """Return whether an output is text of stderr, or a progress bar."""
    if output.output_type == "stream":
        return output.name != "stdout"
    return "<progress" in output.get("data", {}).get("text/html", "")


def without_noise(notebook: Any) -> Any:
    """Remove what differs from run to run or is not meant for readers: stderr, progress bars and counters."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [one for one in cell.outputs if not is_noise(one)]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = None
            if "image/png" in output.get("data", {}):
                output.data = {"image/png": output.data["image/png"]}
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    output = Path("result/notebooks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", default=known, help=f"notebooks to run (default: all): {', '.join(known)}"
    )
    parser.add_argument("--encoder", metavar="FOLDER_OR_ID", help="encoder of each notebook, instead of its ENCODER")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", default=output, help=f"folder for the executed copies ({output})"
    )
    parser.add_argument("--save", action="store_true", help="also store the outputs in docs/notebooks, for the site")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no notebook {unknown[0]}; choose from: {', '.join(known)}")
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        path, started = NOTEBOOKS / f"{name}.ipynb", time.perf_counter()
        executed = run_notebook(path, args.encoder)
        nbformat.write(executed, args.output / path.name)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        if args.save:
            sources = nbformat.read(path, as_version=4)
            for cell, run in zip(sources.cells, without_noise(executed).cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs = run.outputs
            nbformat.write(sources, path)


if __name__ == "__main__":
    main()
