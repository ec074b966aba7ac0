"""Execute the notebooks in docs/notebooks, and convert them to Markdown for the documentation site.

python tools/notebooks.py [NAME.ipynb ...]      # execute, and store the outputs in the file; by default all
python tools/notebooks.py --check [...]         # execute without changing the file

Cells are executed in one process per notebook, in an empty folder. Jupyter is not needed; notebooks must be plain
Python, without magics. The standard output of a cell, and its last expression (an image, or its repr), are stored.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"


def execute(notebook: dict) -> None:
    """Run the code cells in this process and replace their outputs. An exception ends the run."""
    names, count = {"__name__": "__main__"}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        tree, printed, value = ast.parse("".join(cell["source"])), io.StringIO(), None
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(tree, f"cell {count}", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
        cell["execution_count"], cell["outputs"] = count, []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            data = {"text/plain": repr(value).splitlines(keepends=True)}
            if hasattr(value, "save") and hasattr(value, "size"):  # an image of Pillow
                file = io.BytesIO()
                value.save(file, "PNG")
                data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<image>"]}
            cell["outputs"].append(
                {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}
            )


def executed(path: Path) -> dict:
    """The notebook with the outputs of a run in a new process and an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        places = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *_found()]))
        environment = {
            **os.environ,
            "PYTHONPATH": places,
            "OMP_NUM_THREADS": "1",
            "TQDM_DISABLE": "1",
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        command = [sys.executable, __file__, "--in-process", path.absolute()]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{path.name} failed:\n{result.stderr}")
    return json.loads(result.stdout)


def _found() -> list[str]:
    """The folders of fmkernels and fmpipe: relative entries of sys.path do not hold in another folder."""
    root = FOLDER.parent.parent
    return [str(root), str(root / "python")]


def markdown(path: Path) -> str:
    """The notebook with its stored outputs as a page of the site."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                image = (
                    f'<img alt="output of the cell" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
                )
                parts.append(f'<div class="output">{image}</div>')
            else:
                text = "".join(data["text/plain"]).rstrip()
                parts.append(f'<div class="output" markdown>\n\n```text\n{text}\n```\n\n</div>')
    parts.append(f'<a href="{path.name}" download>Download this notebook</a>')
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="execute without changing the file")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for path in given.notebooks or sorted(FOLDER.glob("*.ipynb")):
        if given.in_process:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            execute(notebook)
            json.dump(notebook, sys.stdout)
            continue
        notebook = executed(path)
        if not given.check:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells executed")


if __name__ == "__main__":
    main()
