"""The notebooks run from the first cell to the last, and show bars, tables and maps."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
nbformat = pytest.importorskip("nbformat")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's client
def test_notebooks_run(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    pages = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    bars = [page for page in pages if "<progress" in page]
    assert bars
    for bar in bars:  # the last state that a reader is left with
        done, total = (bar.split(f'{name}="')[1].split('"')[0] for name in ("value", "max"))
        assert done == total
    assert any("<svg" in page and "data:image/png" in page for page in pages)
    assert not list(tmp_path.iterdir())
