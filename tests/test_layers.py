"""The rule of the layers: imports go one way, and every family has its stem in every column."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAMILIES = ("tdp", "norm", "gate", "rope", "path", "step", "head", "int8")
# What each layer may import of the package, besides itself; the first matching prefix counts.
ALLOWED = {
    "fmkernels.schema": (),
    "fmkernels.amx": ("fmkernels._host",),
    "fmkernels.eager": (),
    "fmkernels.triton": (),
    "fmkernels.backend": ("fmkernels.schema", "fmkernels._host", "fmkernels.triton"),
    "fmkernels.autograd": ("fmkernels.backend", "fmkernels.eager", "fmkernels.schema"),
    "fmkernels.checks": (),
    "fmkernels.ops": ("fmkernels.autograd", "fmkernels.backend", "fmkernels.checks", "fmkernels.eager"),
    "fmkernels.nn": ("fmkernels.checks", "fmkernels.ops"),
    "fmkernels.function_copies": (),
    "fmkernels.patch": ("fmkernels.function_copies", "fmkernels.nn", "fmkernels.ops"),
    "fmkernels.precision": ("fmkernels.amx", "fmkernels.nn", "fmkernels.ops", "fmkernels.patch", "fmkernels.schema"),
    "fmkernels.swap": ("fmkernels.ops", "fmkernels.patch"),
    "fmkernels.flow": ("fmkernels.checks", "fmkernels.ops"),
    "fmkernels.env_report": ("fmkernels",),
    "fmkernels": ("fmkernels",),
    "fmpipe.precision": ("fmkernels",),
    "fmpipe.models": ("fmkernels", "fmpipe.precision"),
    "fmpipe.untrusted": (),
    "fmpipe.bounded_yaml": ("fmpipe.untrusted",),
    "fmpipe.text": ("fmpipe.requirements", "fmpipe.untrusted"),
    "fmpipe.vae": ("fmpipe.models", "fmpipe.untrusted"),
    "fmpipe.scheduler": ("fmkernels",),
    "fmpipe.sampling": (),
    "fmpipe.requirements": (),
    "fmpipe.known": ("fmpipe.data",),
    "fmpipe.bundled": (
        "fmpipe.known",
        "fmpipe.models",
        "fmpipe.sampling",
        "fmpipe.text",
        "fmpipe.untrusted",
        "fmpipe.vae",
    ),
    "fmpipe.pipeline_output": ("fmkernels",),
    "fmpipe.pipeline": (
        "fmkernels",
        "fmpipe.bundled",
        "fmpipe.known",
        "fmpipe.models",
        "fmpipe.pipeline_output",
        "fmpipe.precision",
        "fmpipe.sampling",
        "fmpipe.text",
        "fmpipe.vae",
    ),
    "fmpipe.page": ("fmkernels",),
    "fmpipe.field": ("fmkernels",),
    "fmpipe.metrics": ("fmpipe.field", "fmpipe.models"),
    "fmpipe.run_log": ("fmpipe.untrusted",),
    "fmpipe.own_model": ("fmkernels",),
    "fmpipe.distributed": (),
    "fmpipe.labels": (),
    "fmpipe.image_grid": ("fmpipe.labels",),
    # From the figures up to what is printed: texts, rules, their engine; readers and checks; pages; all of it.
    "fmpipe.diagnose.figures": (),
    "fmpipe.diagnose.thresholds": (),
    "fmpipe.diagnose.texts": (),
    "fmpipe.diagnose.rule": ("fmpipe.diagnose.figures", "fmpipe.diagnose.texts", "fmpipe.diagnose.thresholds"),
    "fmpipe.diagnose.rules": ("fmpipe.diagnose.figures", "fmpipe.diagnose.rule", "fmpipe.diagnose.thresholds"),
    "fmpipe.diagnose.engine": (
        "fmpipe.diagnose.figures",
        "fmpipe.diagnose.rule",
        "fmpipe.diagnose.rules",
        "fmpipe.diagnose.thresholds",
    ),
    "fmpipe.diagnose.read": (
        "fmpipe.bounded_yaml",
        "fmpipe.diagnose.figures",
        "fmpipe.diagnose.texts",
        "fmpipe.run_log",
        "fmpipe.untrusted",
    ),
    "fmpipe.diagnose.reference": (
        "fmpipe.diagnose.figures",
        "fmpipe.diagnose.read",
        "fmpipe.diagnose.rules",
        "fmpipe.diagnose.texts",
        "fmpipe.diagnose.thresholds",
        "fmpipe.run_log",
    ),
    "fmpipe.diagnose.compare": (
        "fmpipe.diagnose.engine",
        "fmpipe.diagnose.figures",
        "fmpipe.diagnose.read",
        "fmpipe.diagnose.rule",
        "fmpipe.diagnose.texts",
        "fmpipe.diagnose.thresholds",
    ),
    "fmpipe.diagnose.render": (
        "fmpipe.diagnose.compare",
        "fmpipe.diagnose.engine",
        "fmpipe.diagnose.figures",
        "fmpipe.diagnose.reference",
        "fmpipe.diagnose.rule",
        "fmpipe.diagnose.rules",
        "fmpipe.diagnose.texts",
        "fmpipe.page",
    ),
    "fmpipe.diagnose": ("fmkernels", "fmpipe.field", "fmpipe.metrics", "fmpipe.own_model"),
    "fmpipe.data": ("fmpipe.requirements", "fmpipe.text", "fmpipe.untrusted", "fmpipe.vae"),
    "fmpipe.train": (
        "fmkernels",
        "fmpipe.bounded_yaml",
        "fmpipe.data",
        "fmpipe.diagnose",
        "fmpipe.image_grid",
        "fmpipe.metrics",
        "fmpipe.models",
        "fmpipe.pipeline",
        "fmpipe.requirements",
        "fmpipe.run_log",
        "fmpipe.text",
        "fmpipe.untrusted",
        "fmpipe.vae",
    ),
    "fmpipe.evaluate": ("fmkernels", "fmpipe.data", "fmpipe.image_grid", "fmpipe.train"),
    "fmpipe.app": ("fmkernels", "fmpipe"),
    "fmpipe.compositional": ("fmpipe.data", "fmpipe.evaluate", "fmpipe.image_grid", "fmpipe.train"),
    "fmpipe.feature_metrics": (
        "fmpipe.data",
        "fmpipe.evaluate",
        "fmpipe.requirements",
        "fmpipe.train",
        "fmpipe.untrusted",
    ),
    "fmpipe.cli": ("fmkernels", "fmpipe"),
    "fmpipe.__main__": ("fmpipe.cli", "fmpipe.requirements"),
    "fmpipe": ("fmpipe",),
}


def modules():
    for root, package in ((ROOT, "fmkernels"), (ROOT / "python", "fmpipe")):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path):
    """Dotted names imported anywhere in the file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def violations(module, names):
    layer = next(prefix for prefix in ALLOWED if within(module, prefix))
    if layer in ("fmkernels", "fmpipe") and module != layer:
        return [f"{module} belongs to no layer"]
    allowed = (layer, *ALLOWED[layer])
    ours = [n for n in names if within(n, "fmkernels") or within(n, "fmpipe")]
    return [f"{module} imports {n}" for n in ours if not any(within(n, prefix) for prefix in allowed)]


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda x: x if isinstance(x, str) else "")
def test_imports_go_one_way(module, path):
    assert violations(module, list(imports(path))) == []


def test_the_rule_can_fail():
    assert violations("fmkernels.eager.tdp", ["fmkernels.ops.tdp.tdp"])
    assert violations("fmkernels.ops.tdp", ["fmpipe.models"])
    assert violations("fmkernels.backend.op", ["fmkernels.eager.tdp"])
    assert violations("fmkernels.backend.op", ["fmkernels.autograd.attach"])
    assert violations("fmkernels.autograd.tdp", ["fmkernels.ops.tdp.TdpGroup"])
    assert violations("fmkernels.triton.tdp", ["fmkernels.eager.tdp"])
    assert violations("fmkernels.ops.tdp", ["fmkernels.nn.TimeTable"])
    assert violations("fmpipe.models.dit", ["fmpipe.pipeline.FlowPipeline"])
    assert violations("fmpipe.diagnose.rules.kl", ["fmpipe.diagnose.engine.judge"])
    assert violations("fmpipe.diagnose.read.text", ["fmpipe.diagnose.rules.data.LOSSES"])
    assert violations("fmpipe.diagnose.run_checks", ["fmpipe.train.loop"])
    assert violations("fmpipe.new", [])


def private(module, names):
    """Imports of fmpipe that contain a private name of fmkernels."""
    ours = [n for n in names if within(n, "fmkernels") and any(part.startswith("_") for part in n.split("."))]
    return [f"{module} imports {n}" for n in ours]


def test_fmpipe_imports_only_public_names_of_fmkernels():
    assert [x for module, path in modules() if within(module, "fmpipe") for x in private(module, imports(path))] == []
    assert private("fmpipe.field", ["fmkernels.ops._check.like", "fmkernels.checks.like"]) == [
        "fmpipe.field imports fmkernels.ops._check.like"
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_stem_in_every_column(family):
    places = (
        "csrc/shared/{}.h",
        "csrc/cpu/{}.cpp",
        *["csrc/cuda/{}.cuh", "csrc/cuda/{}.cu"] * (family != "int8"),  # on GPUs by Triton
        "fmkernels/ops/{}.py",
        "fmkernels/eager/{}.py",
        *["fmkernels/autograd/{}.py"] * (family not in ("step", "int8")),  # without gradients
        "fmkernels/triton/{}.py",
        "tests/kernels/test_{}.py",
        "benchmarks/bench_{}.py",
    )
    assert [place for place in places if not (ROOT / place.format(family)).exists()] == []
