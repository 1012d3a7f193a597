"""The notebooks run from the first cell to the last, on a tiny encoder, and are stored without noise."""

import ast
import json
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def parameters_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    return cell


def assigned(cell: nbformat.NotebookNode) -> set[str]:
    return {target.id for one in ast.parse(cell.source).body if isinstance(one, ast.Assign) for target in one.targets}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel for all notebooks, since it takes seconds to start and to import torch."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel (requirements-dev.txt)")
    from jupyter_client import KernelManager

    manager, cwd = KernelManager(kernel_name="python3"), tmp_path_factory.mktemp("notebooks")
    manager.start_kernel(cwd=str(cwd), extra_arguments=["--log-level=ERROR"])

    def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
        notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
        executed = nbclient.NotebookClient(notebook, km=manager, timeout=120).execute()
        executed.cells.pop(0)
        return executed

    yield run
    manager.shutdown_kernel(now=True)


@pytest.mark.whole
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_no_warnings(path, kernel, tiny, sample):
    notebook = read(path)
    cell = parameters_of(notebook)
    small = {"ENCODER": tiny("bert"), "SAMPLE": sample, "STEPS": 3, "SEEDS": [0, 1, 2]}
    assert assigned(cell) <= small.keys()
    cell.source = "\n".join(f"{name} = {small[name]!r}" for name in assigned(cell))
    executed = kernel(notebook)
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not re.findall(r".*(?:Warning|Error|Traceback).*", printed)
    figures = [output.data for output in outputs if "<Figure" in output.get("data", {}).get("text/plain", "")]
    assert all("image/png" in data for data in figures), "a figure is shown as text"


def test_the_five_notebooks_use_the_clone_and_are_stored_without_noise(embedded):
    assert len(NOTEBOOKS) == 5
    noise = r"/(?:tmp|home|root|usr|work)/|Warning|\\u001b|it/s\]"
    for path in NOTEBOOKS:
        notebook, given = read(path), {}
        exec(parameters_of(notebook).source, given)
        assert (path.parent / given["ENCODER"]).resolve() == Path(embedded).resolve()
        assert (path.parent / given["SAMPLE"]).resolve() == ROOT / "data/sample"
        for output in [output for cell in notebook.cells for output in cell.get("outputs", ())]:
            assert output.output_type in ("display_data", "execute_result") or output.name == "stdout"
            shown = {kind: data for kind, data in output.get("data", {}).items() if kind != "image/png"}
            assert not re.search(noise, json.dumps(shown) + output.get("text", "")), path.stem
