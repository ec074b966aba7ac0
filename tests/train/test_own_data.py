"""Training on your own images: any number of them, a config that is checked first, and Ctrl-C that loses nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from support.commands import run as command
from support.tiny_models import tiny_clip
from support.training import same

from fmpipe.data import Folder
from fmpipe.pipeline import FlowPipeline
from fmpipe.train import checkpoint
from fmpipe.train.presets import PRESETS, commented, load
from fmpipe.train.settings import SettingsError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
QUICK = {"log": 1, "validate": 2, "save": 2, "sample": 2}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("encoder") / "clip"
    tiny_clip().save_pretrained(place)
    return str(place)


@pytest.fixture
def images(tmp_path):
    """images(n) -> a folder with n coloured images and their captions."""

    def make(n):
        folder = tmp_path / "images"
        folder.mkdir()
        for k in range(n):
            Image.new("RGB", (20, 16), (k * 37 % 256, k * 91 % 256, 80)).save(folder / f"{k:03d}.png")
            (folder / f"{k:03d}.txt").write_text(f"colour number {k}\na square of colour {k}\n")
        return folder

    return make


def settings_file(tmp_path, clip, folder, **changes):
    """A YAML file that names a base and lists only what differs; two steps a stage."""
    optim = {"steps": 2, "batch": 4}
    data = {
        "base": "shapes-tiny",
        "out": str(tmp_path / "run"),
        "data": {"source": "folder", "path": str(folder), "cache": str(tmp_path / "cache"), "val": 0.1},
        "vae": {"optim": dict(optim)},
        "flow": {"encoder": clip, "optim": dict(optim)},
        "every": QUICK,
    }
    for dotted, value in changes.items():
        *groups, name = dotted.split("__")
        place = data
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_any_number_of_images_trains_to_a_pipeline(tmp_path, clip, images, count):
    result = command("train", "--config", settings_file(tmp_path, clip, images(count)), "--device", "cpu")
    assert result.exit_code == 0, result.output
    sheets = sorted(path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("samples/*.png"))
    assert [str(path) for path in sheets] == ["flow/samples/00000002.png", "vae/samples/00000002.png"]
    pipe = FlowPipeline.from_pretrained(tmp_path / "run")
    own = pipe.config
    assert (own.schedule, own.solver, own.num_inference_steps, own.max_guidance) == ("uniform", "ab2", 20, 1.0)
    assert len(pipe("a square", output_type="latent").trace) == 20


@pytest.mark.parametrize("hold_out", ["items", "captions"])
def test_held_out_captions_of_few_images(tmp_path, clip, images, hold_out):
    file = settings_file(tmp_path, clip, images(3), flow__hold_out=hold_out, data__val=0.5)
    result = command("train", "--config", file)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__size": 32}, r"config\.flow\.net\.stage_configs\[0\]\.grid: data\.size 32 .* data\.size=16"),
        ({"data__size": 15}, r"config\.data\.size: must be a multiple of 2"),
        ({"data__size": 18}, r"config\.data\.size: 18 pixels give latents of 9 x 9, not a multiple of 2"),
        ({"vae__widths": [16, 30]}, r"config\.vae: .*"),
        ({"vae__channels": 8}, r"config\.flow\.net\.channels: must be 8"),
        ({"flow__encoder": "no-such-folder"}, r"config\.flow\.encoder: .*'no-such-folder'"),
        ({"flow__tokens": 10_000}, r"config\.flow\.encoder: .*tokens must be at most"),
        ({"flow__head": {"hiden": 3}}, r"config\.flow\.head: .*'hiden'"),
        ({"flow__net": {"stage_configs": []}}, r"config\.flow\.net: .*at least one stage"),
        ({"flow__optim__steps": 0}, r"config\.flow\.optim: steps must be at least 1"),
        ({"stages": ["flow"]}, r"config\.vae\.path: no autoencoder at"),
        ({"start": "nowhere", "stages": ["flow"]}, r"start: no pipeline in 'nowhere'"),
        ({"start": "default"}, r"config\.start: text_head of default has other shapes"),
        ({"vae__widths": []}, r"config\.vae: widths must be numbers from 1 to 65536"),
        ({"base": ["a"]}, r"config\.base: unknown preset \['a'\]"),
        ({"base": "shapes-huge"}, r"mine\.yaml:\d+: config\.base: unknown preset 'shapes-huge'"),
        ({"flow__losses__klw": 1}, r"mine\.yaml:\d+: config\.flow\.losses\.klw: unknown key"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_stage(tmp_path, clip, images, changes, said):
    result = command("train", "--config", settings_file(tmp_path, clip, images(4), **changes))
    assert result.exit_code == 2, result.output
    assert re.search(said, result.stderr), result.stderr
    assert not list((tmp_path).glob("run/vae/*"))


def test_a_base_is_changed_key_by_key(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: shapes-tiny\nflow: {optim: {lr: 1e-5}, losses: {null: 0.2}}\n")
    config, base = load(tmp_path / "mine.yaml"), PRESETS["shapes-tiny"]()
    assert (config.flow.optim.lr, config.flow.losses.null) == (1e-5, 0.2)
    base.flow.optim.lr, base.flow.losses.null = 1e-5, 0.2
    assert config == base
    (tmp_path / "mine.yaml").write_bytes(b"out: \xff\xfe")
    with pytest.raises(SettingsError, match=r"mine\.yaml: is not UTF-8 text"):
        load(tmp_path / "mine.yaml")


@pytest.mark.parametrize("preset", PRESETS)
def test_init_prints_the_preset_with_a_comment_on_every_key(tmp_path, preset):
    result = command("init", preset)
    assert result.exit_code == 0
    (tmp_path / "mine.yaml").write_text(result.stdout)
    assert load(tmp_path / "mine.yaml") == PRESETS[preset]()
    keys = [line for line in result.stdout.splitlines() if line.strip() and not line.startswith("#")]
    assert all(re.search(r"\S  # \w{2,}", line) for line in keys)
    assert result.stdout == commented(preset)


def started(tmp_path, *arguments):
    """A training in a separate process, once it has logged its first step of the flow."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fmpipe", "train", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for line in process.stderr:
        if line.startswith("fmpipe: flow "):
            return process
    raise AssertionError(process.wait())


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(tmp_path, clip, images, sent, code):
    """The resumed run ends with the bits of one that was never interrupted."""
    folder, changes = images(6), {"flow__optim": {"steps": 60, "batch": 4}, "every": {**QUICK, "save": 0}}
    file = settings_file(tmp_path, clip, folder, **changes)
    process = started(tmp_path, "--config", file, f"out={tmp_path}/cut")
    process.send_signal(sent)
    said = process.stderr.read()
    assert process.wait() == code, said
    step = int(re.search(r"interrupted after step (\d+) of stage flow", said).group(1))
    assert 0 < step < 60
    assert f"resume with: fmpipe train --config {file} out={tmp_path}/cut --resume latest" in said
    assert checkpoint.latest(tmp_path / "cut/flow/checkpoints").name == f"step-{step:08d}"
    assert command("train", "--config", file, f"out={tmp_path}/cut", "--resume", "latest").exit_code == 0
    assert command("train", "--config", file, f"out={tmp_path}/whole").exit_code == 0
    ends = [checkpoint.load(checkpoint.latest(tmp_path / name / "flow/checkpoints")) for name in ("cut", "whole")]
    assert same(ends[0]["model"], ends[1]["model"])
    assert same(ends[0]["optimizer"], ends[1]["optimizer"])


def test_the_documentation_lists_every_setting():
    tool = Path(__file__).parents[2] / "tools" / "config_table.py"
    result = subprocess.run([sys.executable, str(tool), "--check"])
    assert result.returncode == 0, "run: python tools/config_table.py"


def test_the_examples_of_the_documentation_are_configs(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    for example in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        (tmp_path / "mine.yaml").write_text(example)
        assert load(tmp_path / "mine.yaml").vae == PRESETS["shapes-tiny"]().vae


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.jsonl", '{"file_name": "0.png", "text": ["a", "b"]}\n\n{"file_name": "1.png", "text": "c"}\n'),
        ("captions.jsonl", '{"image": "0.png", "caption": "a"}\n{"file": "1.png", "prompt": "c"}\n'),
        ("metadata.csv", 'file_name,text\n0.png,"a, with a comma"\n1.png,c\n'),
        ("captions.txt", "0.png\ta\n1.png\tc\n"),
        ("captions.txt", "a\nc\n"),
    ],
)
def test_a_caption_file_in_the_folder_is_found(tmp_path, name, content):
    for k in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{k}.png")
    (tmp_path / name).write_text(content)
    source = Folder(tmp_path, size=8)
    assert source.captions[0][0][0] == "a"
    assert source.captions[1] == ("c",)
    assert Folder.has_captions(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metadata.csv", "file_name,text\n0.png,\n", r"metadata\.csv, line 2: expected a caption"),
        ("metadata.csv", "name,words\n0.png,a\n", r"line 2: expected \"file_name\" and \"text\""),
        ("captions.jsonl", '{"file_name": "0.png", "text": "a"}\n{"file_name"\n', r"captions\.jsonl, line 2"),
        ("captions.txt", "0.png\ta\n9.png\tb\n", r"captions\.txt, line 2: no image '9\.png'"),
        ("captions.txt", "a\nb\nc\n", "3 lines for 2 images"),
    ],
)
def test_a_wrong_caption_file_names_the_line(tmp_path, name, content, said):
    for k in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{k}.png")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=said):
        Folder(tmp_path, size=8)


def test_mappings_without_fixed_keys_are_replaced_and_a_given_autoencoder_is_not_trained(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "base: shapes-tiny\nflow: {head_kind: transformer, head: {blocks: 1}}\nvae: {path: somewhere}\n"
    )
    config = load(tmp_path / "mine.yaml")
    assert config.flow.head == {"blocks": 1}
    assert config.stages == ["flow"]


def test_a_refused_run_leaves_the_finished_one_alone(tmp_path, clip, images):
    file = settings_file(tmp_path, clip, images(4))
    assert command("train", "--config", file).exit_code == 0
    before = (tmp_path / "run" / "config.yaml").read_text()
    result = command("train", "--config", file, "flow.optim.lr=0.5")
    assert result.exit_code == 1
    assert "resume it with --resume latest" in result.stderr
    assert (tmp_path / "run" / "config.yaml").read_text() == before


def test_short_runs_can_be_repeated(tmp_path, clip, images):
    file = settings_file(tmp_path, clip, images(4))
    assert command("train", "--config", file, "stages=[vae]").exit_code == 0
    for _ in range(2):
        result = command("overfit", "--config", file, "--samples", 2)
        assert result.exit_code in (0, 1), result.output  # whether it memorizes them in two steps is not the point
        assert "overfit" in result.output
