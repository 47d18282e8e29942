"""Notebooks run from top to bottom on a result, and are committed without outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="jupyter is not installed")
nbclient = pytest.importorskip("nbclient", reason="jupyter is not installed")
pytest.importorskip("ipykernel", reason="jupyter is not installed")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.notebook
def test_first_result_runs_and_concludes(make_result: Callable[..., Path]) -> None:
    arms = {"control": 0.0, "worse": -0.3, "floor:unigram": -0.4}
    directory = make_result(arms=arms, benches={"gsm8k": 12})
    path = next(path for path in NOTEBOOKS if path.stem == "01_first_result")
    notebook = nbformat.read(path, as_version=4)
    (parameters,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    parameters.source = f'EXPERIMENT = "toy"\nRESULTS_DIR = {str(directory.parent)!r}'
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    assert "worse: worse." in outputs[-1]["text"]
