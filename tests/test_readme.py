"""The README's examples run, each pasted into an empty interpreter; the Chinese README has the same code."""

import code
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
CHINESE = README.with_name("README.zh-CN.md")
OPS = README.with_name("docs") / "ops.md"


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0, "time-dependent parameters, evaluated together: 171"),
        (1, r"step0: \|x\|=\d\.\d{4}, \|v\|=\d\.\d{4}, dt=0\.0500\nNone"),
        (2, r"(?s)one_step: FAIL.*fm_gain = 3\.45.*teacher_euler: FAIL"),
    ],
)
def test_every_example_runs_on_its_own(number, printed, tmp_path):
    result = subprocess.run(
        [sys.executable, "-"], input=blocks(README, "python")[number], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert re.search(printed, result.stdout), result.stdout


def test_the_examples_can_be_pasted_in_order_into_one_interpreter(capsys):
    """Line by line, as the interactive prompt takes them: a blank line ends a class there."""
    console = code.InteractiveConsole()
    for block in blocks(README, "python"):
        for line in [*block.splitlines(), ""]:
            console.push(line)
    assert capsys.readouterr().err == ""
    assert console.locals["trace"].values.shape == (20, 4, 5)


def test_the_catalogue_of_ops_runs():
    names = {}
    for block in blocks(OPS, "python"):
        exec(compile(block, "docs/ops.md", "exec"), names)
    assert names["stats"].as_dict().keys() >= {"mu/rms", "z_init/var"}
    assert names["wide"].shape == (2, 256, 67584)
    assert names["h"].shape == (2, 257, 2048)


def test_it_is_short_and_its_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    for path in (README, CHINESE, OPS):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), (path.name, link)


def pages(folder="."):
    """Every Markdown file that people read."""
    root = README.parent
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), root / "benchmarks" / "README.md"]
    return sorted(path for path in found if path.is_relative_to(root / folder))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(README.parent).as_posix())
def test_links_to_files_lead_somewhere(path):
    for link in re.findall(
        r"\]\(([^)#:]+)\)", re.sub(r"(?s)```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"))
    ):
        assert (path.parent / link).exists(), link


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_the_index_lists_every_page(folder):
    index = README.parent / folder / "README.md"
    links = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", index.read_text())}
    decisions = index.parent / "decisions"
    assert {p for p in pages(folder) if p != index and (p.parent != decisions or p.name == "README.md")} <= links


def test_the_map_is_short():
    assert len((README.parent / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= 1000


def without_comments(path):
    """Every fenced block: its language, and its lines without comments and trailing spaces."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(kind, [re.sub(r"(^| )#.*", "", line).rstrip() for line in text.split("\n")]) for kind, text in found]


def test_chinese_has_the_same_code():
    assert len(without_comments(README)) >= 5
    assert without_comments(CHINESE) == without_comments(README)


@pytest.mark.slow
def test_ab2_is_nearer_to_the_solution_than_euler_with_more_steps():
    """The README's claim, for the case that it describes: the default model, the schedule uniform."""
    from fmpipe import FlowPipeline

    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    mu, logvar = pipe.encode(["a cat", "a car", "a red apple", "a pizza", "the sun", "a blue heart"])
    z0 = pipe.prepare_latents(mu, logvar, generator=torch.Generator().manual_seed(0))

    def z1(steps, solver):
        return pipe(latents=z0, num_inference_steps=steps, solver=solver, schedule="uniform", output_type="latent").z1

    exact = z1(1, "dopri5")
    ab2, euler = ((z1(n, s) - exact).square().mean().sqrt() for n, s in ((20, "ab2"), (50, "euler")))
    assert ab2 < 0.8 * euler
    own = pipe.config
    assert (own.solver, own.schedule, own.num_inference_steps) == ("ab2", "uniform", 20)
