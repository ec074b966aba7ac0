"""The reference of the ops on the documentation site: a page per family, from docstrings, examples and benchmarks.

python tools/docs_ops.py OUT      # write the pages to a folder, to look at them
"""

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TITLES = {
    "tdp": "Time-dependent parameters",
    "norm": "Norms",
    "gate": "Gates and gated sums",
    "rope": "Norm and rotary embedding of q and k",
    "path": "Path, loss and statistics",
    "step": "Solver steps",
    "head": "The variational head",
    "int8": "Linear layers in int8",
    "fp8": "Linear layers in float8",
    "linear": "Linear layers",
    "depthwise": "Depthwise convolution",
}
RESULTS = ("cpu", "parts")
MEMBERS = {"TdpGroup": ["buffer"]}  # of classes whose other methods are internal


def families() -> dict[str, list[str]]:
    """The public names of each module of fmkernels.ops, read from the source, so that nothing has to be built."""
    tree = ast.parse((ROOT / "fmkernels" / "ops" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = {node.module.rsplit(".", 1)[1]: sorted((a.name for a in node.names), key=str.lower) for node in imports}
    if set(found) != set(TITLES):
        raise ValueError(f"TITLES of tools/docs_ops.py must name the modules of fmkernels.ops, got {sorted(found)}")
    return {family: found[family] for family in TITLES}


def titles() -> dict[str, str]:
    """Path on the site and title of every page."""
    return {f"ops/{family}.md": title for family, title in TITLES.items()}


def examples(names: list[str]) -> list[str]:
    """The code blocks of docs/ops.md that call one of the names."""
    blocks = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "ops.md").read_text(encoding="utf-8"))
    return [b for b in blocks if re.search(rf"\bfk\.(?:{'|'.join(names)})\(", b)]


def speed(names: list[str]) -> list[str]:
    """Lines of a table per result file: every benchmark row of the names, with times and ratios."""
    lines = []
    for stem in RESULTS:
        result = json.loads((ROOT / "benchmarks" / "results" / f"{stem}.json").read_text(encoding="utf-8"))
        rows = [row for row in result["rows"] if re.split(r"[ ,]", row["name"])[0] in names]
        if not rows:
            continue
        header = result["header"]
        lines += [
            f"{header['cpu']} ({header['kernels run with']}), torch {header['torch'].split()[0]}, {header['date']}, "
            f"commit {header['commit']}: medians ([{stem}.json](../../benchmarks/results/{stem}.json)).",
            "",
            "| case | time | speed-up over eager | over `torch.compile` | same result |",
            "|---|---|---|---|---|",
        ]
        for row in rows:
            seconds = row["times"]["fmkernels"]["median"]
            time = f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms"
            ratio = [f"{row['speedup'][k]:.1f}×" if k in row["speedup"] else "" for k in ("eager", "compile")]
            name = row["name"].replace("and back", "with gradients").replace("fwd+bwd", "with gradients")
            lines.append(f"| {name} | {time} | {ratio[0]} | {ratio[1]} | {'yes' if row['matched'] else '**no**'} |")
        lines.append("")
    return lines


def page(family: str, names: list[str]) -> str:
    """The Markdown of a family's page."""
    lines = [f"# {TITLES[family]}", ""]
    lines += [
        f"Defined in `fmkernels/ops/{family}.py`, public as `fmkernels.<name>`. [The ops](../ops.md) states what "
        "all ops have in common: dtypes, layouts, autograd, `torch.compile`.",
        "",
    ]
    for name in names:
        lines += [f"::: fmkernels.ops.{family}.{name}"]
        if name in MEMBERS:
            lines += [f"    options: {{members: {MEMBERS[name]}}}"]
        lines += [""]
    if found := examples(names):
        lines += ["## Example", "", "From [The ops](../ops.md), whose blocks run one after the other.", ""]
        lines += ["```python", "import torch", "import fmkernels as fk", "", *"\n".join(found).splitlines(), "```", ""]
    lines += ["## Speed", ""]
    lines += speed(names) or ["Not in the recorded results."]
    lines += ["", "[Measured speed](../../benchmarks/README.md) has the method. Nothing was run on a GPU.", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Path on the site and Markdown of every page."""
    return {f"ops/{family}.md": page(family, names) for family, names in families().items()}


if __name__ == "__main__":
    for path, text in pages().items():
        file = Path(sys.argv[1]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
