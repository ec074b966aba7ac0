"""Wheels, metadata, workflows: what can be checked without installing anything."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from setuptools import find_packages

import fmkernels

ROOT = Path(__file__).parent.parent


def setup_py(*arguments, **environment):
    command = [sys.executable, "setup.py", "--quiet", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def schema(name, *files):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *map(str, files)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_folder_of_python_files_is_a_package_that_is_found():
    for where, package in ((ROOT, "fmkernels"), (ROOT / "python", "fmpipe")):
        folders = {path.parent.relative_to(where) for path in (where / package).rglob("*.py")}
        assert {".".join(folder.parts) for folder in folders} == set(find_packages(str(where), include=[f"{package}*"]))


def test_the_version_is_written_once():
    assert re.search(r'(?m)^dynamic = \["version"\]$', (ROOT / "pyproject.toml").read_text())
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fmkernels.__version__
    assert setup_py("--version", FMKERNELS_BUILD="0").stdout.strip() == fmkernels.__version__


@pytest.mark.slow
def test_a_wheel_for_another_python_compiles_host_only(tmp_path):
    """Here, for this Python: the other objects are copied, and torch is neither imported nor its version guessed."""
    objects = tmp_path / "objects"
    objects.mkdir()
    for path in (ROOT / "fmkernels").glob("_*.so"):
        shutil.copy(path, objects)
    folders = ("--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp")
    path = "/usr/local/bin:/usr/bin:/bin"
    result = setup_py("build_ext", *folders, FMKERNELS_OBJECTS=str(objects), FMKERNELS_TORCH="2.99.0", PATH=path)
    assert result.returncode == 0, result.stderr
    built = {file.name.split(".")[0]: file for file in (tmp_path / "lib" / "fmkernels").iterdir()}
    copied = {file.name.split(".")[0]: file for file in objects.iterdir()}
    assert built.keys() == copied.keys() >= {"_autograd", "_cpu", "_host"}
    assert all(built[name].read_bytes() == copied[name].read_bytes() for name in built.keys() - {"_host"})
    code, folder = "import _host; print(_host.build_facts())", built["_host"].parent
    facts = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True).stdout
    assert "'built_with_torch': '2.99.0'" in facts


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FMKERNELS_OBJECTS": "."}, "FMKERNELS_OBJECTS needs FMKERNELS_TORCH, the torch version of the objects"),
        ({"FMKERNELS_OBJECTS": "docs", "FMKERNELS_TORCH": "2.13.0"}, "there are no compiled objects in FMKERNELS_OBJE"),
    ],
)
def test_a_wheel_without_its_objects_is_an_error(environment, message):
    result = setup_py("--version", **environment)
    assert result.returncode != 0
    assert message in result.stderr


def test_only_the_package_that_is_type_checked_is_marked_as_typed():
    settings = (ROOT / "pyproject.toml").read_text()
    checked = re.search(r"(?ms)^\[tool.mypy\].*?^files = \[(.*?)\]", settings).group(1)
    assert '"fmkernels"' in checked
    assert (ROOT / "fmkernels/py.typed").exists()
    assert ("fmpipe" in checked) == (ROOT / "python/fmpipe/py.typed").exists()


def test_workflows_forms_and_citation_follow_their_schemas():
    github = ROOT / ".github"
    schema("github-workflows", *github.glob("workflows/*.yml"))
    schema("github-issue-forms", *(path for path in github.glob("ISSUE_TEMPLATE/*.yml") if path.stem != "config"))
    schema("github-issue-config", github / "ISSUE_TEMPLATE/config.yml")
    schema("citation-file-format", ROOT / "CITATION.cff")
    command = [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_the_workflow_runs_targets_that_exist_and_ci_run():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    called = {word for lines in commands.values() for line in lines for word in line.split() if line.startswith("make")}
    assert {word for word in called - {"make"} if re.fullmatch(r"[a-z-]+", word)} <= targets
    assert commands["test"] == ["bash .ci/run"]
    assert commands["gpu"] == ["make gpu-check QUICK=1"]
    assert len(jobs["test"]["strategy"]["matrix"]["python-version"]) == 2


def test_the_torch_of_the_objects_decides_about_the_gradients_in_cpp():
    facts, status = fmkernels.backend.build_facts(), fmkernels.backend.status["autograd"]
    assert status.available == (facts["built_with_torch"] == torch.__version__)
