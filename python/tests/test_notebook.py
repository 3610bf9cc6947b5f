"""The notebook runs, and draws."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "capture.ipynb"


def test_the_notebook_answers_its_questions() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    plots = [
        base64.b64decode(output["data"]["image/png"])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(plots) == 3
    for plot in plots:
        width, height = struct.unpack(">II", plot[16:24])
        assert width > 400 and height > 200
    text = " ".join(output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "972 packets" in text and "3.28 times fewer" in text and "264 pure acknowledgements" in text
    assert "the busiest of 4 CPUs has 1.81 times its share" in text
