"""An external image encoder as DINO teacher, and REPA: features, targets, gradients, runs and ablations."""

import copy
import math
import shutil
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from support.forked import together
from support.teachers import ENCODERS, MLP, SIZE, TEXT, save_teacher
from support.training import CutError, changed, same, states, steps_of, stop_at

from fmpipe.data.cache import cache_features
from fmpipe.data.shapes import Shapes
from fmpipe.data.source import to_pixels
from fmpipe.diagnose import checks
from fmpipe.models import DiMR, DiT, LinearHead
from fmpipe.pipeline import FlowPipeline
from fmpipe.run_log import read_log
from fmpipe.train import settings, short_runs
from fmpipe.train.config import LOSSES, Losses
from fmpipe.train.inputs import StageInputs
from fmpipe.train.objective import EMBEDDING, FlowObjective
from fmpipe.train.run import run
from fmpipe.train.settings import SettingsError
from fmpipe.train.stages import STAGES
from fmpipe.train.teacher import Alignment, SoftTargets, Teacher, repa_layer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    return save_teacher("dinov2", tmp_path_factory.mktemp("teacher") / "dinov2")


@pytest.mark.parametrize("name", ENCODERS)
def test_features_are_those_of_transformers(name, tmp_path):
    """The model's own states of images that its own processor prepared; CLS, or the mean without one."""
    folder = save_teacher(name, tmp_path)
    *_, prefix, side = ENCODERS[name]
    teacher = Teacher.from_folder(folder)
    images = torch.stack([Shapes(count=3, size=64)[i].image for i in range(3)])
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    inputs = processor([Image.fromarray(x.permute(1, 2, 0).numpy()) for x in images], return_tensors="pt").pixel_values
    apart = (teacher.prepared(to_pixels(images)) - inputs).abs()
    assert apart.mean() < 5e-3  # theirs is rounded to bytes, and clipped between rows and columns
    assert apart.max() < 0.1
    model = transformers.AutoModel.from_pretrained(folder)
    model = getattr(model, "vision_model", model).eval()
    with torch.no_grad():
        want = model(pixel_values=teacher.prepared(to_pixels(images))).last_hidden_state
    pooled, patches = teacher(to_pixels(images))
    assert teacher.grid == (side, side)
    assert patches.shape == (3, teacher.dim, side, side)
    if prefix is None:
        torch.testing.assert_close(patches, want)
        torch.testing.assert_close(pooled, want.mean((2, 3)))
    else:
        assert teacher.prefix == prefix
        torch.testing.assert_close(patches.flatten(2).mT, want[:, prefix:])
        torch.testing.assert_close(pooled, want[:, 0] if prefix else want.mean(1))
    assert not any(p.requires_grad for p in teacher.model.parameters())


def test_a_folder_that_is_no_teacher_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder with an image encoder"):
        Teacher.from_folder(tmp_path / "nowhere")
    transformers.ViTMAEModel(transformers.ViTMAEConfig(**MLP)).save_pretrained(tmp_path / "mae")
    with pytest.raises(FileNotFoundError, match=r"has no preprocessor_config.json"):
        Teacher.from_folder(tmp_path / "mae")
    transformers.ViTImageProcessorPil(**SIZE).save_pretrained(tmp_path / "mae")
    with pytest.raises(ValueError, match="ViTMAEModel is not deterministic"):
        Teacher.from_folder(tmp_path / "mae")
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(tmp_path / "bert")
    transformers.ViTImageProcessorPil(**SIZE).save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="BertModel does not encode images"):
        Teacher.from_folder(tmp_path / "bert")


@pytest.mark.parametrize("patches", [True, False])
def test_cached_features_equal_those_from_pixels(dinov2, tmp_path, patches):
    teacher, source = Teacher.from_folder(dinov2), Shapes(count=10, size=16)
    kept = cache_features(source, teacher, tmp_path, patches=patches, batch=4, shard=8)
    pooled, of_patches = teacher(to_pixels(torch.stack([source[i].image for i in range(10)])))
    torch.testing.assert_close(kept.pooled, pooled, rtol=1e-5, atol=1e-5)
    if patches:
        torch.testing.assert_close(kept.patches.float(), of_patches, rtol=1e-3, atol=1e-3)
    assert (kept.patches is None) is not patches
    again = cache_features(source, teacher, tmp_path, patches=patches)
    assert again.path == kept.path
    assert torch.equal(again.pooled, kept.pooled)


def test_the_cache_is_of_one_teacher_and_one_source(dinov2, tmp_path):
    teacher, other = Teacher.from_folder(dinov2), Teacher.from_folder(dinov2)
    first = cache_features(Shapes(count=4, size=16), teacher, tmp_path, patches=False).digest
    other.shift = other.shift + 1
    assert cache_features(Shapes(count=4, size=16), other, tmp_path, patches=False).digest != first
    assert cache_features(Shapes(count=5, size=16), teacher, tmp_path, patches=False).digest != first
    with torch.no_grad():
        next(teacher.model.parameters()).add_(1)
    assert cache_features(Shapes(count=4, size=16), teacher, tmp_path, patches=False).digest != first


def test_soft_targets_do_not_depend_on_the_teachers_width_scale_or_mean():
    """Between one-hot and uniform for every teacher, also where images differ little next to their mean."""
    for dim in (16, 384, 1536):
        features = 50 + 0.1 * torch.randn(400, dim)
        targets = SoftTargets(features, 256, EMBEDDING)
        logits = targets(features)
        p = (logits / 0.04).softmax(1)
        entropy = -(p * p.log()).sum(1).mean() / math.log(256)
        assert 0.4 < entropy < 0.8, dim
        assert logits.std() == pytest.approx(1 / math.sqrt(EMBEDDING), rel=0.1)
        assert logits.mean(0).abs().max() < 0.05
    assert targets(torch.zeros(2, dim)).isfinite().all()
    assert SoftTargets(torch.ones(1, 8), 16, 4)(torch.ones(2, 8)).isfinite().all()


def objective(teacher, net=None, features=None, **losses):
    torch.manual_seed(0)
    stages = [{"kind": "transformer", "dim": 16, "hidden": 32, "blocks": 3, "grid": [4, 4], "patch": 2}]
    stages += [{"kind": "convnext", "dim": 8, "hidden": 16, "blocks": 1, "grid": [8, 8], "patch": 1}]
    head = LinearHead(width=8, tokens=4, latent_shape=(4, 8, 8), hidden=32)
    config = Losses(teacher="given", **{"kl": 0.0, "dino": 1.0, "repa": 1.0, **losses})
    features = torch.randn(40, teacher.dim) if features is None else features
    return FlowObjective(head, net or DiMR(stages), config, teacher, features)


def batch(count=4, pixels=True, null=()):
    draw = torch.Generator().manual_seed(1)
    z1, eps = torch.randn(2, count, 4, 8, 8, generator=draw)
    made = {"z1": z1, "ends": z1.clone(), "eps": eps, "t": torch.rand(count, generator=draw)}
    made |= {"states": torch.randn(count, 4, 8, generator=draw), "mask": torch.ones(count, 4, dtype=torch.bool)}
    made["null"] = torch.tensor([i in null for i in range(count)])
    if pixels:
        made["pixels"], ends = torch.rand(2, count, 3, 16, 16, generator=draw) * 2 - 1
        if null:
            made["end_pixels"], made["end_rows"] = ends[list(null)], torch.tensor(null)
    return made


def test_the_teacher_gets_no_gradients_stays_in_eval_mode_and_is_not_saved(dinov2):
    teacher = Teacher.from_folder(dinov2)
    before = {name: x.clone() for name, x in teacher.model.state_dict().items()}
    model = objective(teacher).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        sum(model(**batch()).losses.values()).backward()
        optimizer.step()
        model.after_step()
    assert not any(module.training for module in teacher.model.modules())
    assert all(p.grad is None and not p.requires_grad for p in teacher.model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in teacher.model.state_dict().items())
    assert copy.deepcopy(model).external is teacher
    known = ("text_head.", "velocity_net.", "project.", "prototypes.", "soft_targets.", "repa.", "centre.")
    assert all(name.startswith(known) for name in model.state_dict())
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == []  # DDP would wait for them


@pytest.mark.parametrize("temperatures", [(0.04, 0.1), (0.2, 0.5)])
def test_entropies_and_loss_by_their_formulas(dinov2, temperatures):
    t_teacher, t_student = temperatures
    teacher = Teacher.from_folder(dinov2)
    model = objective(teacher, dino_classes=32, temperatures=temperatures).eval()
    model.centre.value.uniform_(-0.1, 0.1)
    made = batch()
    with torch.no_grad():
        outcome = model(**made)
        features, _ = teacher(made["pixels"])
        soft = model.soft_targets
        x = ((features - soft.mean) / soft.std) @ soft.projection.T
        logits = x / x.norm(dim=1, keepdim=True) @ soft.prototypes.T
        p = ((logits - model.centre.value) / t_teacher).softmax(1)
        q = (model.prototypes(model.project(outcome.tensors["z0"])) / t_student).softmax(1)
    figures = outcome.metrics
    torch.testing.assert_close(figures["ent/teacher"], -(p * p.log()).sum(1).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(figures["ent/student"], -(q * q.log()).sum(1).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outcome.losses["dino"], -(p * q.log()).sum(1).mean(), rtol=1e-4, atol=1e-5)
    shuffled = -(p.roll(1, 0) * q.log()).sum(1).mean()
    torch.testing.assert_close(figures["ent/shuffled"], shuffled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("paired", [True, False])
def test_a_permuted_pairing_raises_the_dino_loss(dinov2, paired):
    """At first the targets of other images fit as well; after some steps they do not, unless pairs were never kept."""
    teacher = Teacher.from_folder(dinov2)
    made = batch(16)
    model = objective(teacher, features=teacher(made["pixels"])[0], repa=0.0)

    def shares():
        with torch.no_grad():
            outcome = model.eval()(**made)
            other = model(**{**made, "pixels": made["pixels"].roll(1, 0)})
        model.train()
        assert other.losses["dino"] == pytest.approx(outcome.metrics["ent/shuffled"].item(), rel=1e-4)
        return outcome.losses["dino"], outcome.metrics["ent/shuffled"], outcome.metrics["ent/teacher"]

    loss, shuffled, _ = shares()
    assert abs(shuffled - loss) < 0.05 * loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        shown = made["pixels"] if paired else made["pixels"].roll(5 * step + 1, 0)
        model(**{**made, "pixels": shown}).losses["dino"].backward()
        optimizer.step()
        optimizer.zero_grad()
    loss, shuffled, entropy = shares()
    assert bool(shuffled > 1.2 * loss) is paired
    assert loss > entropy
    finding = checks.ablation_dino_shuffled(*map(float, (loss, shuffled, entropy)))
    assert finding.status == ("pass" if paired else "fail"), str(finding)


@pytest.mark.parametrize(
    ("numbers", "status"),
    [((2.0, 3.0, 1.5), "pass"), ((2.9, 3.0, 1.5), "warn"), ((3.0, 3.0, 1.5), "fail"), ((3.1, 3.0, 1.5), "fail"),
     ((math.nan, 3.0, 1.5), "fail"), ((5.0, 5.2, 4.9), "pass"), ((3.0, 3.0, 3.0), "fail")],
)  # fmt: skip
def test_the_rule_on_shuffled_targets(numbers, status):
    finding = checks.ablation_dino_shuffled(*numbers)
    assert finding.status == status, str(finding)
    assert bool(finding.advice) == (status != "pass")
    for language in ("en", "zh"):
        assert finding.evidence[0].into(language)


NETS = {
    "dimr-first": (lambda: objective_net(), 0, 16, 4),
    "dimr-middle": (lambda: objective_net(), 1, 16, 4),
    "dimr-last": (lambda: objective_net(), 2, 16, 4),
    "dimr-convnext": (lambda: objective_net(), 3, 8, 8),
    "dit": (lambda: DiT(size=8, dim=16, depth=3, heads=2), 1, 16, 4),
}


def objective_net():
    stages = [{"kind": "transformer", "dim": 16, "hidden": 32, "blocks": 3, "grid": [4, 4], "patch": 2}]
    stages += [{"kind": "convnext", "dim": 8, "hidden": 16, "blocks": 3, "grid": [8, 8], "patch": 1}]
    return DiMR(stages)


@pytest.mark.parametrize("name", NETS)
def test_hidden_states_are_a_blocks_output_and_change_no_result(name):
    make, layer, width, side = NETS[name]
    net = make()
    assert net.hidden_widths[layer] == width
    x, t, null = torch.randn(2, 4, 8, 8), torch.tensor([0.2, 0.7]), torch.tensor([False, True])
    blocks = [b for stage in getattr(net, "stages", [net]) for b in stage.blocks]
    seen = []
    hook = blocks[layer].register_forward_hook(lambda m, i, out: seen.append(out))
    velocities, hidden = net.velocities(x, t, null=null, hidden=layer)
    hook.remove()
    (out,) = seen
    out = out if isinstance(out, torch.Tensor) else out[1] + out[2]  # a DiMR block's sum is left to the next norm
    out = out if out.dim() == 4 else out[:, -side * side :].unflatten(1, (side, side))
    torch.testing.assert_close(hidden, out)
    for a, b in zip(velocities, net.velocities(x, t, null=null), strict=True):
        assert torch.equal(a, b)
    count = len(net.hidden_widths)
    with pytest.raises(ValueError, match=rf"hidden must be the index of a block, 0 to {count - 1}, got {count}"):
        net.velocities(x, t, null=null, hidden=count)


def test_hidden_states_in_reused_memory_are_kept(monkeypatch):
    """Sampling reuses a stage's buffers for the next: what is returned must not change."""
    net, x, t = objective_net().eval(), torch.randn(2, 4, 8, 8), torch.tensor([0.5])
    want = net.velocities(x, t, hidden=1)[1].detach()
    monkeypatch.setattr("fmpipe.models.buffers.LARGE", 0)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(net.velocities(x, t, hidden=1)[1], want)


@pytest.mark.parametrize("name", NETS)
def test_checkpointing_gives_the_same_repa_gradients(dinov2, name):
    make, layer, *_ = NETS[name]
    teacher, grads = Teacher.from_folder(dinov2), []
    torch.manual_seed(3)
    net = make()
    if name == "dit":
        for p in net.parameters():  # its modulations are zero at first: no block would pass gradients
            torch.nn.init.normal_(p, std=0.1)
    for switch in (False, True):
        model = objective(teacher, copy.deepcopy(net), repa_layer=layer, dino=0.0).train()
        if switch:
            model.velocity_net.enable_gradient_checkpointing()
        losses = model(**batch()).losses
        entry = model.velocity_net.x_embedder.proj if name == "dit" else model.velocity_net.stages[0].input_layer[1]
        (reached,) = torch.autograd.grad(losses["repa"], entry.weight, retain_graph=True)
        assert reached.abs().max() > 0  # the network is trained, not only the MLP
        (losses["flow"] + losses["repa"]).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    reached = [n for n, g in grads[0].items() if n.startswith(("repa.", "velocity_net.")) and g is not None]
    assert any(n.startswith("repa.") for n in reached)
    for n in reached:
        torch.testing.assert_close(grads[1][n], grads[0][n], rtol=1e-4, atol=1e-6)


def test_the_repa_loss_by_its_formula():
    align, hidden, patches = Alignment(6, 5, 0), torch.randn(2, 4, 4, 6, requires_grad=True), torch.randn(2, 5, 8, 8)
    coarse = F.interpolate(patches, (4, 4), mode="bilinear", antialias=True).permute(0, 2, 3, 1)
    z = align.project(hidden)
    want = 1 - ((z * coarse).sum(-1) / (z.norm(dim=-1) * coarse.norm(dim=-1))).mean()
    torch.testing.assert_close(align(hidden, patches), want)
    grads = (torch.autograd.grad(loss, hidden)[0] for loss in (align(hidden, patches), want))
    torch.testing.assert_close(*grads)
    constant = torch.ones(2, 5, 2, 2) * torch.arange(1.0, 6).view(1, 5, 1, 1)
    align.project = torch.nn.Linear(6, 5)
    with torch.no_grad():
        align.project.weight.zero_()
        align.project.bias.copy_(torch.arange(1.0, 6))
    assert abs(align(hidden, constant)) < 1e-6


def test_null_samples_are_aligned_to_the_image_they_go_to(dinov2):
    """Their x_t is on the way to another's image; soft targets stay those of the text's own."""
    teacher = Teacher.from_folder(dinov2)
    model, made = objective(teacher).eval(), batch(null=(1, 3))
    with torch.no_grad():
        found = model(**made).losses
        features, patches = teacher(made["pixels"])
        patches[[1, 3]] = teacher(made["end_pixels"])[1]
        cached = {k: x for k, x in made.items() if "pixels" not in k} | {"features": features, "patches": patches}
        want = model(**cached).losses
    for name in ("dino", "repa"):
        torch.testing.assert_close(found[name], want[name])


@pytest.mark.parametrize("on", ["cache", "pixels"])
def test_batches_show_the_right_images(tiny, dinov2, tmp_path, on):
    overrides = ["flow.losses.dino=1", "flow.losses.repa=1", "flow.losses.null=0.5", f"flow.losses.teacher={dinov2}"]
    config = changed(tiny, tmp_path, *overrides, f"flow.losses.teacher_on={on}")
    material = StageInputs(config)
    stage = STAGES["flow"](config, material)
    step = next(k for k in range(99) if 2 <= stage.batches(k)["null"].sum() <= 6)
    made, chosen = stage.batches(step), stage.batches.order(step).tolist()
    ends = [chosen[(made["z1"] == x).flatten(1).all(1).nonzero()[0]] for x in made["ends"]]
    assert sum(a != b for a, b in zip(chosen, ends, strict=True)) == made["null"].sum()
    teacher = material.teacher
    of = {
        k: to_pixels(torch.stack([material.source[i].image for i in rows])) for k, rows in (("z", chosen), ("e", ends))
    }
    if on == "pixels":
        assert torch.equal(made["pixels"], of["z"])
        assert made["end_rows"].tolist() == made["null"].nonzero().flatten().tolist()
        assert torch.equal(made["end_pixels"], of["e"][made["null"]])
    else:
        torch.testing.assert_close(made["features"], teacher(of["z"])[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(made["patches"].float(), teacher(of["e"])[1], rtol=1e-3, atol=1e-3)
    half = stage.batches(step, slice(4, 8))
    assert all(torch.equal(half[k], made[k][4:8]) for k in made if k in ("pixels", "features", "patches"))
    if on == "pixels":
        assert torch.equal(half["end_pixels"], of["e"][4:8][made["null"][4:8]])


BOTH = ("flow.losses.dino=0.5", "flow.losses.repa=0.5", "flow.losses.null=0.2")


@pytest.fixture(scope="module")
def runs(tiny, dinov2, tmp_path_factory):
    """A run from a cache and one on pixels, with a copy of the teacher that can be removed."""
    root = tmp_path_factory.mktemp("runs")
    out = {}
    for on in ("cache", "pixels"):
        folder = shutil.copytree(dinov2, root / f"teacher-{on}")
        out[on] = changed(tiny, root / on, *BOTH, f"flow.losses.teacher={folder}", f"flow.losses.teacher_on={on}")
        run(out[on])
    return out


def test_a_run_logs_both_losses_with_their_shares(runs):
    for config in runs.values():
        first, last = steps_of(config)[0], steps_of(config)[-1]
        for name in ("dino", "repa"):
            assert last[f"grad/{name}"] > 0
            assert last[f"w/{name}"] == 0.5
        assert "loss/contrastive" not in last
        assert 0.1 < first["ent/teacher"] / math.log(256) < 0.985
        log = read_log(f"{config.out}/flow")[-1]
        assert {"val/loss/dino", "val/loss/repa", "val/ent/teacher", "val/ent/shuffled"} <= log.keys()
        assert log["val/ent/teacher"] <= log["val/loss/dino"]


def test_a_run_on_pixels_has_the_losses_of_the_cached_one(runs):
    """64 images, fewer than are sampled: both standardise by the same features; the cached patches are fp16."""
    for a, b in zip(*(steps_of(config) for config in runs.values()), strict=True):
        for name in ("loss/flow", "loss/dino", "loss/repa", "ent/teacher", "ent/student"):
            assert b[name] == pytest.approx(a[name], rel=2e-3), (a["step"], name)


@pytest.mark.parametrize("on", ["cache", "pixels"])
def test_a_run_with_a_teacher_is_resumed_bit_by_bit(runs, on, tmp_path):
    config = settings.with_overrides(runs[on], [f"out={tmp_path}"])
    with pytest.raises(CutError):
        run(config, on_log=stop_at(5))
    run(config, resume="latest")
    whole, resumed = states(runs[on]), states(config)
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(whole[part], resumed[part]), part
    assert {name.split(".")[0] for name in whole["model"]} == {
        "text_head", "velocity_net", "project", "prototypes", "centre", "soft_targets", "repa",
    }  # fmt: skip


@pytest.mark.parametrize(
    "overrides", [["precision=bf16"], ["flow.losses.weighting=pcgrad"], ["flow.losses.weighting=gradnorm"]]
)
def test_precision_and_weightings_work_with_a_teacher(runs, tmp_path, overrides):
    config = settings.with_overrides(runs["cache"], [f"out={tmp_path}", "every.validate=0", *overrides])
    run(config)
    for a, b in zip(steps_of(runs["cache"])[:2], steps_of(config), strict=False):
        for name in ("loss/flow", "loss/dino", "loss/repa"):
            assert b[name] == pytest.approx(a[name], rel=3e-2), name


def test_a_pipeline_does_not_need_the_teacher(runs):
    config = runs["cache"]
    shutil.move(config.flow.losses.teacher, f"{config.flow.losses.teacher}-gone")
    try:
        pipe = FlowPipeline.from_pretrained(f"{config.out}/pipeline")
        pipe.set_progress_bar_config(disable=True)
        assert pipe("red circle", 2, output_type="pt").images.shape == (1, 3, 16, 16)
        names = {name for part in pipe.components.values() for name in getattr(part, "state_dict", dict)()}
        assert not any(name.startswith(("repa.", "soft_targets.", "prototypes.")) for name in names)
    finally:
        shutil.move(f"{config.flow.losses.teacher}-gone", config.flow.losses.teacher)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.forks
def test_two_processes_have_the_losses_of_one(runs, tmp_path, parallel):
    on = "pixels" if parallel == "ddp" else "cache"
    two = settings.with_overrides(runs[on], [f"out={tmp_path}", f"parallel={parallel}", "every.validate=0"])
    together(2, lambda: run(two))
    for a, b in zip(steps_of(runs[on]), steps_of(two), strict=True):
        for name in ("loss/total", "loss/flow", "loss/dino", "loss/repa"):
            assert b[name] == pytest.approx(a[name], rel=1e-4), (a["step"], name)


def test_repa_raises_the_cosine(tiny, dinov2, tmp_path):
    """On held-out images, for a block of a transformer stage and for one of a ConvNeXt stage."""
    found = {}
    for layer in (0, 3):
        overrides = [f"flow.losses.teacher={dinov2}", "flow.losses.repa=1", f"flow.losses.repa_layer={layer}"]
        steps = ["flow.optim.steps=60", "every.save=0", "every.sample=0", "every.validate=60", "flow.losses.anchor=0"]
        config = changed(tiny, tmp_path / str(layer), *overrides, *steps, "flow.losses.match=0", "flow.losses.kl=0")
        run(config)
        log = read_log(f"{config.out}/flow")
        found[layer] = [1 - line["val/loss/repa"] for line in (log[0], log[-1])]
    for first, last in found.values():
        assert last > first + 0.2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["flow.losses.dino=1"], "dino needs contrastive"),
        (["flow.losses.repa=1"], "repa needs teacher"),
        (["flow.losses.dino=1", "flow.losses.teacher=nowhere"], r"flow.losses.teacher.*'nowhere' is not a folder"),
        (["flow.losses.repa=1", "flow.losses.teacher=TEACHER", "flow.losses.repa_layer=6"], "0 to 5, got 6"),
        (["flow.losses.teacher_on=disk"], r"teacher_on.*cache"),
    ],
)
def test_bad_settings_are_refused_before_the_first_stage(tiny, dinov2, tmp_path, overrides, message):
    with pytest.raises((SettingsError, ValueError), match=message):
        run(changed(tiny, tmp_path, *(x.replace("TEACHER", dinov2) for x in overrides)))


@pytest.mark.parametrize(
    ("net", "layer"),
    [(lambda: objective_net(), 0), (lambda: DiT(size=8, dim=16, depth=12, heads=2), 3)],
)
def test_the_default_layer_is_a_third_into_the_first_stage(net, layer):
    assert repa_layer(net(), None) == layer


def test_flow_alone_turns_everything_else_off(tiny):
    config = copy.deepcopy(tiny)
    config.flow.losses = Losses(**dict.fromkeys(LOSSES, 0.5), teacher="x", others=8, weighting="pcgrad")
    alone = short_runs.flow_alone(config, 20).flow.losses
    assert {name: getattr(alone, name) for name in LOSSES} == {**dict.fromkeys(LOSSES, 0.0), "flow": 0.5}
    assert (alone.others, alone.weighting) == (0, "constant")
    weights = {field.name for field in fields(Losses) if field.metadata["help"].startswith("weight of")}
    assert set(LOSSES) == weights  # none is forgotten
    assert replace(alone)  # allowed as settings


@pytest.mark.filterwarnings("ignore:start")
@pytest.mark.parametrize("dino", [True, False])
def test_ablate_shuffles_the_targets_of_dino_where_it_has_a_weight(tiny, dinov2, tmp_path, dino):
    overrides = [f"flow.losses.teacher={dinov2}", "flow.losses.dino=1", "flow.losses.repa=1"] if dino else []
    config = changed(tiny, tmp_path, *overrides)
    found = {f.name: f for f in short_runs.ablate(config, steps=8)}
    names = ["ablation_only_flow", "ablation_kl_off", "ablation_condition_shuffled"]
    assert list(found) == names + ["ablation_dino_shuffled"] * dino
    log = read_log(tmp_path / "ablate-flow" / "flow")
    assert {name for line in log for name in line if name.startswith("loss/")} == {"loss/total", "loss/flow"}
    heads = [FlowPipeline.from_pretrained(tmp_path / f"ablate-{name}").text_head for name in ("none", "flow")]
    assert config.flow.losses.detach  # the flow does not train the head, so it is the first run's
    assert same(*(dict(head.state_dict()) for head in heads))
    log = read_log(tmp_path / "ablate-none" / "flow")
    expected = {"total", "flow", "kl", "anchor", "match", *(("dino", "repa") if dino else ())}
    assert {name for line in log for name in line if name.startswith("loss/")} == {f"loss/{x}" for x in expected}


def test_ablate_needs_two_images_to_shuffle(tiny, tmp_path):
    config = changed(tiny, tmp_path, "flow.optim.batch=1")
    with pytest.raises(ValueError, match=r"raise data.val, got 0.2, or flow.optim.batch, got 1"):
        short_runs.ablate(config, steps=20)
