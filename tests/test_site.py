"""The documentation site: it builds without a warning, links are followed on both sides, and the notebooks run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import docs_ops
import mermaid_svg
import notebooks
import pytest
from build_site import Page, wrong_links

import fmkernels

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings_handlers.python", reason="mkdocstrings-python is not installed")
    out = tmp_path_factory.mktemp("site")
    result = subprocess.run([sys.executable, ROOT / "tools" / "build_site.py", out], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_the_site_has_every_page_and_every_op(site):
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        name = "pages.html" if name == "README.html" else name.replace("README", "index")
        assert (site / name).is_file(), name
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "ops").glob("*.html"))
    anchors = Page(text).anchors
    for family, ops in docs_ops.families().items():
        assert {f"fmkernels.ops.{family}.{op}" for op in ops} <= anchors
    assert "20.3×" in text  # the first row of benchmarks/results/cpu.json


def test_links_to_files_of_the_repository_are_on_the_site(site):
    assert 'href="files/benchmarks/results/precision.json"' in (site / "precision.html").read_text(encoding="utf-8")
    page = (site / "decisions" / "seeding-per-step.html").read_text(encoding="utf-8")
    assert 'href="../benchmarks.html"' in page.partition("<article")[2]  # not in the navigation
    assert (site / "files" / "benchmarks" / "results" / "precision.json").is_file()


def test_the_pages_answer_what_newcomers_ask(site):
    """The search index has the words of each answer on the page where it belongs."""
    docs = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    pages = {}
    for doc in docs:
        page = doc["location"].partition("#")[0]
        pages[page] = pages.get(page, "") + doc["title"] + " " + doc["text"]
    for page, words in {
        "index.html": ("pip install torch", "fmpipe generate"),
        "speed-up.html": ("fmkernels.optimize", "fmkernels.restore", "explain()"),
        "diagnosis.html": ("Begin with the first one",),
        "training.html": ("metadata.jsonl", "--resume latest"),
        "precision.html": ("PSNR",),
        "sampling.html": ("trace.step",),
        "model-card.html": ("Open Font License",),
        "ops/norm.html": ("td_rms_norm", "(B, ..., D)"),
    }.items():
        assert all(word in pages[page] for word in words), page


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ('<a href="b.html">', "does not exist"),
        ('<a href="#there">', "no such anchor"),
        ('<script src="https://example.org/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="https://example.org/x.css">', "from another host"),
        ('<p id="there"></p><a href="#there"><a href="a.html#there"><a href="https://example.org">', None),
    ],
)
def test_wrong_links_are_found(html, message, tmp_path):
    (tmp_path / "a.html").write_text(html)
    found = wrong_links(tmp_path)
    assert found == [] if message is None else len(found) == 1 and message in found[0]


def test_families_of_the_reference_are_the_public_ops():
    found = {name for names in docs_ops.families().values() for name in names}
    assert found == set(fmkernels.ops.__all__)


@pytest.mark.parametrize("name", ["speed-up.md", "sampling.md"])
def test_the_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_and_is_converted(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell["outputs"]) for cell in cells) >= 4
    text = notebooks.markdown(path)
    assert text.count("```python") == len(cells)
    assert text.count("data:image/png") == json.dumps(cells).count('"image/png"')


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    """All three together take about 70 s of CPU time, most of it in training."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    for before, after in zip(stored["cells"], notebooks.executed(path)["cells"], strict=True):
        kinds = [[out["output_type"] for out in cell.get("outputs", [])] for cell in (before, after)]
        assert kinds[0] == kinds[1]


def test_an_exception_in_a_cell_is_an_error(tmp_path):
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": ["1 / 0"]}
    (tmp_path / "wrong.ipynb").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(RuntimeError, match=r"(?s)wrong\.ipynb failed.*ZeroDivisionError"):
        notebooks.executed(tmp_path / "wrong.ipynb")


def test_a_graph_is_drawn_with_every_node_below_its_predecessors():
    labels, edges = mermaid_svg.parse('graph TD\n  a["one, two"] --> b & c["3"]\n  c --> b --> d\n')
    assert labels == {"a": "one, two", "b": "b", "c": "3", "d": "d"}
    assert edges == [("a", "b"), ("a", "c"), ("c", "b"), ("b", "d")]
    assert mermaid_svg.rows(labels, edges) == [["a"], ["c"], ["b"], ["d"]]


@pytest.mark.parametrize(("line", "message"), [("a -.-> b", "nodes must be"), ("a --> b --> a", "a cycle")])
def test_a_graph_that_cannot_be_drawn_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        mermaid_svg.svg(f"graph TD\n{line}\n")
