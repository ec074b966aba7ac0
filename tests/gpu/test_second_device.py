"""Tensors of a second device, which cannot be mixed with the CPU's: ops, pipeline, graphs, commands, training.

Written from the requirements, without looking at the code. Run by ``make test`` in a separate process:
--second-device.
"""

import copy
import io
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from support import second_device
from torch import nn
from torch.nn import functional as F

import fmkernels as fk
from fmkernels import flow
from fmkernels.nn import TDRMSNorm, seed_time
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.scheduler import FlowEulerScheduler

DEV = "second"


def gen(seed):
    return torch.Generator().manual_seed(seed)


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed))


def same(on_device, expected, tol=1e-4):
    assert on_device.device.type == DEV
    torch.testing.assert_close(on_device.detach().cpu(), expected.detach(), atol=tol, rtol=tol)


def both(function, *tensors, tol=1e-4):
    """Outputs and gradients of function on the device, against the CPU's."""
    results = []
    for device in ("cpu", DEV):
        inputs = [x.detach().clone().to(device).requires_grad_() for x in tensors]
        outs = function(*inputs)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        total = sum((o.float() * rand(*o.shape, seed=90 + i).to(device)).sum() for i, o in enumerate(outs))
        grads = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        results.append((outs, grads))
    for a, b in zip(results[1][0], results[0][0]):
        assert a.dtype == b.dtype
        same(a, b, tol)
    for a, b in zip(results[1][1], results[0][1]):
        same(a, b, tol)


def pipeline():
    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def cpu():
    return pipeline()


@pytest.fixture(scope="module")
def dev():
    return pipeline().to(DEV)


@pytest.fixture(scope="module")
def offloaded():
    pipe = pipeline()
    pipe.enable_model_cpu_offload(device=DEV)
    return pipe


def run(*args, cwd, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "support.second_device", *map(str, args)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


# --- the device ---

MIXED = {
    "add": lambda a, b: a + b,
    "matmul": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "in_place": lambda a, b: b.mul_(a),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "device_scalar": lambda a, b: b + a.sum(),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_devices_raises(name):
    with pytest.raises(RuntimeError):
        MIXED[name](torch.randn(3, 3, device=DEV), torch.randn(3, 3))


def test_zero_dim_cpu_tensors_may_be_mixed():
    x, half = rand(4), torch.tensor(0.5)
    with second_device.synchronizations() as found:
        z = (torch.ones(4, device=DEV) * half + half - 2.0).add_(half)
    assert not found
    same(z, torch.full((4,), -0.5))
    same(torch.maximum(x.to(DEV), half), torch.maximum(x, half))


def test_views_share_memory_and_in_place_writes_show():
    base = torch.arange(24.0, device=DEV).view(2, 3, 4)
    reference = torch.arange(24.0).view(2, 3, 4)
    for x in (base, reference):
        view = x.transpose(1, 2)[:, ::2, 1:]
        view.mul_(-1).add_(0.5)
        x.unfold(2, 2, 2)[0].zero_()
        x.diagonal(0, 1, 2).copy_(torch.ones(2, 3, device=x.device))
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(base.cpu(), reference)
    assert torch.equal(base.transpose(0, 2).contiguous().cpu(), reference.transpose(0, 2))


@pytest.mark.parametrize("kind", ["empty", "strided", "alias"])
def test_out_argument(kind):
    a, b = rand(3, 4, seed=1), rand(3, 4, seed=2)
    x, y = a.to(DEV), b.to(DEV)
    if kind == "empty":
        out = torch.empty(0, device=DEV)
    elif kind == "strided":
        out = torch.zeros(4, 6, device=DEV).t()[::2]
    else:
        out = x
    pointer = out.data_ptr() if kind != "empty" else None
    assert torch.sub(x, y, out=out) is out
    assert pointer is None or out.data_ptr() == pointer
    same(out, a - b)


def test_autograd_of_a_network_equals_the_cpus():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(128, 5))
    twin = copy.deepcopy(net).to(DEV)
    x, y = rand(2, 3, 4, 4), torch.tensor([1, 4])
    F.cross_entropy(net(x), y).backward()
    F.cross_entropy(twin(x.to(DEV)), y.to(DEV)).backward()
    for p, q in zip(net.parameters(), twin.parameters()):
        same(q.grad, p.grad, 1e-5)


def test_double_backward_and_inplace_version_check():
    x = torch.randn(5, device=DEV, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    g.sum().backward()
    same(x.grad, 6 * x.detach().cpu(), 1e-5)
    y = x * 1.0
    z = y.sigmoid().square()
    y2 = x.exp()
    loss = (y2 * z).sum()
    y2.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"amsgrad": True, "weight_decay": 0.1}], ids=str)
def test_adamw_equals_the_cpus(options):
    nets = [nn.Linear(6, 3), None]
    nets[1] = copy.deepcopy(nets[0]).to(DEV)
    for net, device in zip(nets, ("cpu", DEV)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, **options)
        for step in range(4):
            optimizer.zero_grad()
            net(rand(8, 6, seed=step).to(device)).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        assert all(s["exp_avg"].device.type == device for s in optimizer.state.values())
    for p, q in zip(nets[0].parameters(), nets[1].parameters()):
        same(q, p, 1e-5)


def test_deepcopy_is_independent_and_stays_on_the_device():
    net = nn.BatchNorm1d(4).to(DEV)
    twin = copy.deepcopy(net)
    before = net.weight.detach().cpu().clone()
    with torch.no_grad():
        twin.weight.add_(3)
        twin.running_mean.fill_(7)
    assert {v.device.type for v in [*twin.state_dict().values()]} == {DEV}
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.requires_grad
    assert torch.equal(net.weight.detach().cpu(), before)
    assert net.running_mean.cpu().abs().sum() == 0


@pytest.mark.parametrize(
    ("where", "expected"), [(None, DEV), ("cpu", "cpu"), (DEV, DEV), ({DEV: "cpu", DEV + ":0": "cpu"}, "cpu")], ids=str
)
def test_torch_save_and_load(where, expected):
    x = torch.arange(6.0).to(DEV)
    file = io.BytesIO()
    torch.save({"x": x, "tail": x[3:], "half": x.bfloat16(), "p": nn.Parameter(x * 2)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where)
    assert {v.device.type for v in loaded.values()} == {expected}
    loaded["x"][4] = -1.0
    assert loaded["tail"].tolist() == [3.0, -1.0, 5.0]  # still one storage
    assert loaded["half"].dtype == torch.bfloat16
    assert loaded["p"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_generators_are_deterministic_and_bound_to_their_device():
    g = torch.Generator(device=DEV)
    assert g.device.type == DEV
    g.manual_seed(3)
    first = torch.randn(50, device=DEV, generator=g)
    second = torch.randn(50, device=DEV, generator=g)
    g.manual_seed(3)
    assert torch.equal(torch.randn(50, device=DEV, generator=g).cpu(), first.cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    for call in (
        lambda: torch.randn(3, device=DEV, generator=gen(0)),
        lambda: torch.randn(3, generator=g),
        lambda: torch.empty(3, device=DEV).uniform_(generator=gen(0)),
        lambda: torch.randint(5, (3,), device=DEV, generator=gen(0)),
    ):
        with pytest.raises(RuntimeError):
            call()


SYNCS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x[1] > 0 else 2,
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "upload": lambda x: torch.ones(3).to(DEV),
    "copy_": lambda x: x.copy_(torch.ones(3)),
}


@pytest.mark.parametrize("name", SYNCS)
def test_synchronisation_is_counted_once_with_its_line(name):
    x, call = torch.ones(3, device=DEV), SYNCS[name]
    with second_device.synchronizations() as found:
        call(x)
    assert len(found) == 1, found
    assert found[0].where.endswith(f"{os.path.basename(__file__)}:{call.__code__.co_firstlineno}"), found[0].where
    assert isinstance(found[0].kind, str)
    assert found[0].kind
    call(x)  # outside: not collected
    assert len(found) == 1


def test_work_on_the_device_is_no_synchronisation():
    x, ids = torch.randn(2, 4, 8, 8, device=DEV), torch.zeros(2, 3, dtype=torch.long, device=DEV)
    conv, table = nn.Conv2d(4, 4, 3).to(DEV), nn.Embedding(5, 8).to(DEV)
    with second_device.synchronizations() as found:
        y = F.gelu(F.group_norm(conv(x), 2)).flatten(1)
        h = F.layer_norm(table(ids), (8,))
        h = F.scaled_dot_product_attention(h, h, h)
        z = torch.cat([y.softmax(1).sum(1, keepdim=True), h.flatten(1)], 1)
        z = torch.where(z > 0, z, torch.zeros_like(z)).clamp(0, 1).index_select(1, ids[0])
        z.sum().backward()
        torch.empty(2, device=DEV).fill_(3).copy_(torch.randn(2, device=DEV))
        x[0].chunk(2)[1].mul_(2.0).abs().max(), x.std(), torch.linspace(0, 1, 5, device=DEV)
    assert not found, [(f.kind, f.where) for f in found]


def test_tensors_report_their_device():
    x = torch.empty(2, 3, dtype=torch.float16).to(DEV)
    made = [
        torch.zeros_like(x),
        x.new_ones(2),
        torch.arange(4, device=DEV),
        torch.eye(2, device=DEV),
        x.double(),
        x > 0,
        x.sum(),
    ]
    made += [
        torch.tensor([1, 2], device=torch.device(DEV)),
        torch.as_tensor(np.ones(2), device=DEV),
        x.t().contiguous(),
    ]
    assert all(t.device.type == DEV and not t.is_cpu and t.device == made[0].device for t in made)
    assert x.get_device() == made[0].device.index
    assert x.to(DEV) is x
    assert DEV in repr(made[2])
    assert torch.zeros(2).to(x).dtype == torch.float16
    assert torch.zeros(2).to(x).device == x.device


def test_pinned_uploads_do_not_synchronise():
    host = torch.arange(5.0).pin_memory()
    assert host.is_pinned()
    assert host.device.type == "cpu"
    with second_device.synchronizations() as found:
        x = host.to(DEV, non_blocking=True)
        x.add_(1)
    assert not found
    same(x, torch.arange(5.0) + 1)


# --- the ops ---

OPS = {
    "tdp": (
        lambda p0, p1, w, b, t: fk.tdp(p0, p1, w, b, t, weight_offset=1.0),
        lambda: (*rand(4, 33), rand(5, seed=1)),
    ),
    "rms_norm_residual": (
        lambda x, r, s, o: fk.td_rms_norm(x, s, o, residual=r),
        lambda: (rand(3, 7, 20), rand(3, 7, 20, seed=1), rand(3, 20, seed=2), rand(3, 20, seed=3)),
    ),
    "rms_norm_strided": (
        lambda x, s: fk.td_rms_norm(x.transpose(1, 2), s),
        lambda: (rand(2, 20, 5), rand(20, seed=2)),
    ),
    "flow_pair": (
        lambda x0, x1: fk.flow_pair(torch.tensor([0.1, 0.7], device=x0.device), x0, x1)[0],
        lambda: (rand(2, 3, 5), rand(2, 3, 5, seed=1)),
    ),
    "flow_loss": (
        lambda v, x0, x1: fk.flow_loss(v, x0, x1, weight=torch.tensor([1.0, 3.0], device=v.device), reduction="none"),
        lambda: (rand(2, 4, 9), rand(2, 4, 9, seed=1), rand(2, 4, 9, seed=2)),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_and_gradients_equal_the_cpus(name):
    function, inputs = OPS[name]
    both(function, *inputs())


@pytest.mark.parametrize("tensor_dt", [False, True])
def test_guided_euler_step(tensor_dt):
    rows = []
    for device in ("cpu", DEV):
        x, v, u = (rand(3, 4, 5, seed=s).to(device) for s in range(3))
        low, stats = torch.empty_like(x, dtype=torch.bfloat16), torch.empty(3, 5, device=device)
        dt = torch.tensor([-0.05], device=device) if tensor_dt else -0.05
        out = fk.euler_step_(x, v.bfloat16(), dt, v_uncond=u.bfloat16(), guidance=3.0, gain=1.5, low=low, stats=stats)
        assert out.data_ptr() == x.data_ptr()
        rows.append((x, low.float(), stats))
    for name, a, b in zip(("x", "low", "stats"), rows[1], rows[0]):
        same(a, b, 2e-2 if name == "low" else 1e-5)


def test_statistics_are_read_in_one_copy():
    v, x0, x1 = (rand(6, 4, 8, seed=s) for s in range(3))
    t = torch.linspace(0, 1, 6)
    expected = fk.flow_loss(v, x0, x1, t=t, return_stats=True)[1].as_dict()
    args = [x.to(DEV) for x in (v, x0, x1, t)]
    with second_device.synchronizations() as found:
        _loss, stats = fk.flow_loss(*args[:3], t=args[3], return_stats=True)
        assert not found
        values = stats.as_dict()
    assert len(found) == 1
    assert values == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_norm_module_and_time_table_on_the_device():
    norm = TDRMSNorm(16)
    for i, p in enumerate(norm.parameters()):
        p.data.copy_(rand(16, seed=i))
    twin, log_snr, x = copy.deepcopy(norm).to(DEV), torch.tensor([1.0, -2.0]), rand(2, 5, 16)
    seed_time(norm, log_snr), seed_time(twin, log_snr.to(DEV))
    same(twin(x.to(DEV)), norm(x))
    torch.manual_seed(0)
    net = build("tiny_dimr").velocity_net.to(DEV)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.add_(0.05 * rand(*p.shape, seed=i).to(DEV))
        table = fk.TimeTable(net, 4 - 8 * flow.uniform(3).t.to(DEV))
        z, t = rand(1, 4, 32, 32).to(DEV), torch.full((1,), 2 / 3, device=DEV)
        with table.at(2):
            rowed = net(z, 4 - 8 * t)[-1]
        same(rowed, net.velocity(z, t).cpu(), 1e-5)
        assert not torch.allclose(rowed.cpu(), net.velocity(z, t * 0).cpu(), atol=1e-4)


# --- the pipeline ---


@pytest.mark.parametrize(
    ("solver", "guidance", "tol"),
    [("euler", 1.5, 1e-4), ("ab2", None, 1e-4), ("heun", 1.5, 1e-4), ("dopri5", None, 1e-3)],
)
def test_solvers_with_a_cpu_generator(cpu, dev, solver, guidance, tol):
    outs = [
        p(["a cat", "a red apple"], 5, guidance, solver=solver, generator=gen(4), output_type="pt") for p in (cpu, dev)
    ]
    for name in ("z0", "mu", "logvar", "z1"):
        same(getattr(outs[1], name), getattr(outs[0], name), tol)
    torch.testing.assert_close(outs[1].images.cpu(), outs[0].images, atol=tol, rtol=tol)
    if solver != "dopri5":
        torch.testing.assert_close(outs[1].trace.values, outs[0].trace.values, atol=1e-4, rtol=1e-4)
        assert outs[1].trace.values.device.type == "cpu"


@pytest.mark.parametrize("given", ["cpu", DEV])
def test_latents_given_on_either_device(cpu, dev, given):
    z = rand(3, 4, 16, 16, seed=8)
    latents = z.to(given)
    out = dev(latents=latents, num_inference_steps=4, output_type="latent")
    same(out.images, cpu(latents=z, num_inference_steps=4, output_type="latent").images)
    assert torch.equal(latents.cpu(), z)  # the caller's tensor is not the state


def test_callback_replaces_latents_and_sees_device_tensors(cpu, dev):
    def callback(pipe, step, t, tensors):
        places.update(v.device.type for v in tensors.values())
        rows.append(tensors["stats"].cpu())
        return {"latents": tensors["latents"] * 0.5 + step} if step in (0, 2) else {}

    results = []
    for pipe, place in ((cpu, "cpu"), (dev, DEV)):
        places, rows = set(), []
        out = pipe(
            latents=rand(1, 4, 16, 16),
            num_inference_steps=4,
            callback_on_step_end=callback,
            callback_on_step_end_tensor_inputs=("latents", "stats"),
            output_type="latent",
        )
        assert places == {place}
        assert len(rows) == 4
        results.append((out.z1, torch.stack(rows)))
    same(results[1][0], results[0][0])
    torch.testing.assert_close(results[1][1], results[0][1], atol=1e-4, rtol=1e-4)
    plain = dev(latents=rand(1, 4, 16, 16), num_inference_steps=4, output_type="latent").z1.cpu()
    assert (plain - results[0][0]).abs().max() > 0.1


def test_bf16_velocity_keeps_an_fp32_state(cpu, dev):
    options = {"latents": rand(2, 4, 16, 16), "num_inference_steps": 4, "output_type": "latent"}
    low = dev(velocity_dtype=torch.bfloat16, **options).z1
    assert low.dtype == torch.float32
    same(low, cpu(velocity_dtype=torch.bfloat16, **options).z1, 0.05)
    full = dev(**options).z1
    assert (low - full).abs().max().item() > 1e-5
    same(full, cpu(**options).z1)  # and the next call is in fp32 again


@pytest.mark.parametrize("seed", [None, 5])
def test_interpolation(cpu, dev, seed):
    outs = [
        p.interpolate(
            "a red heart",
            "a blue heart",
            3,
            generator=None if seed is None else gen(seed),
            num_inference_steps=3,
            output_type="pt",
        )
        for p in (cpu, dev)
    ]
    assert len(outs[1].images) == 3
    torch.testing.assert_close(outs[1].images.cpu(), outs[0].images, atol=1e-4, rtol=1e-4)


def test_pil_images_and_probes(cpu, dev):
    a, b = (p("a pizza", 3, generator=gen(0), num_images_per_prompt=2, probes=True) for p in (cpu, dev))
    assert len(b.images) == 2
    for x, y in zip(a.images, b.images):
        assert np.abs(np.asarray(x).astype(int) - np.asarray(y).astype(int)).max() <= 1
    assert float(b.probes["B"]) == pytest.approx(float(a.probes["B"]), abs=1e-4)
    for name in "AC":
        assert float(b.probes[name].contrast) == pytest.approx(float(a.probes[name].contrast), abs=1e-4)


def test_pipeline_saved_from_the_device_loads_on_the_cpu(cpu, dev, tmp_path):
    dev.save_pretrained(tmp_path)
    assert next(dev.components["velocity_net"].parameters()).device.type == DEV
    loaded = FlowPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert loaded.device.type == "cpu"
    options = {"num_inference_steps": 3, "generator": gen(2), "output_type": "latent"}
    z = loaded("a dog", **options).z1
    options["generator"] = gen(2)
    torch.testing.assert_close(z, cpu("a dog", **options).z1, atol=1e-4, rtol=1e-4)


def test_offloaded_prompt_with_guidance(cpu, offloaded):
    for _ in range(2):  # the hooks are there for the second call, too
        a, b = (p("a cat", 3, 1.5, generator=gen(1), output_type="pt") for p in (cpu, offloaded))
        torch.testing.assert_close(b.images.cpu(), a.images, atol=1e-4, rtol=1e-4)
        for name, part in offloaded.components.items():
            if isinstance(part, nn.Module):
                assert {p.device.type for p in part.parameters()} == {"cpu"}, name


# --- synchronisation ---


@pytest.mark.parametrize("solver", ["euler", "ab2", "heun"])
def test_no_synchronisation_inside_the_loop(solver):
    z = torch.randn(2, 4, 8, 8, device=DEV)
    counts = []
    for steps in (4, 16):
        with second_device.synchronizations() as found:
            flow.sample(
                lambda x, t, null: -x * t.view(-1, 1, 1, 1), z, flow.shifted(steps), solver=solver, guidance=2.0
            )
        counts.append(len(found))
    assert counts[0] == counts[1] <= 2, [(f.kind, f.where) for f in found]  # one upload, one readback


def test_a_training_step_of_ones_own_does_not_synchronise():
    net = nn.Conv2d(4, 4, 3, padding=1).to(DEV)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x0, x1, t = rand(4, 4, 8, 8).to(DEV), rand(4, 4, 8, 8, seed=1).to(DEV), torch.rand(4, device=DEV)
    with second_device.synchronizations() as found:
        for _ in range(3):
            x_t, target = fk.flow_pair(t, x0, x1)
            with torch.autocast(DEV, dtype=torch.bfloat16):
                v = net(x_t)
            loss, _stats = fk.flow_loss(v, v_target=target, t=t, return_stats=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not found, [(f.kind, f.where) for f in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scheduler_on_the_device(dtype):
    def call(device, steps):
        scheduler = FlowEulerScheduler(shift=3.0)
        scheduler.set_timesteps(steps, device=device)
        x = rand(2, 4, 6).to(device, dtype)
        with second_device.synchronizations() as found:
            for t in scheduler.timesteps:
                x = scheduler.step(-x * 0.5, t, x, return_dict=False)[0]
        assert x.device.type == device
        assert x.dtype == dtype
        return x, scheduler.trace.values, len(found)

    (a, rows, _), (b, device_rows, few), (_, _, many) = call("cpu", 4), call(DEV, 4), call(DEV, 12)
    same(b.float(), a.float(), 1e-5 if dtype == torch.float32 else 0.02)
    torch.testing.assert_close(device_rows, rows, atol=1e-2, rtol=1e-2)
    assert few == many


# --- graphs ---


class Field(nn.Module):
    """A velocity on the device that counts how often Python ran it."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.calls = 0
        self.to(DEV)

    def forward(self, x, t, null=None):
        self.calls += 1
        t = t.view(-1, 1, 1, 1)
        v = self.b(F.silu(self.a(x) + t)) - t * x
        return v if null is None else torch.where(null.view(-1, 1, 1, 1), 0.3 * v, v)


def identical(field, z, schedule, **options):
    """sample with and without a graph gives the same bits; returns x."""
    plain, trace = fk.sample(field, z, schedule, graph=False, **options)
    field.calls = 0
    x, captured = fk.sample(field, z, schedule, graph=True, **options)
    assert field.calls < len(schedule), "not captured"
    assert torch.equal(x.cpu(), plain.cpu())
    assert torch.equal(captured.values, trace.values)
    assert captured.lines() == trace.lines()
    return x


@pytest.mark.parametrize("name", ["uniform", "logit_normal", "crossflow", "midpoint", "shifted"])
def test_graph_is_bit_identical_for_every_schedule(name):
    identical(Field(), rand(2, 4, 8, 8).to(DEV), flow.make_schedule(name, 20))


def test_graph_with_gain_and_reversed_time():
    x = identical(Field(), rand(1, 4, 8, 8).to(DEV), flow.uniform(20), gain=1.7, dt_scale=0.5, time_dir="1->0")
    assert torch.isfinite(x).all().item()


@pytest.mark.parametrize("how", ["in_place", "data"])
def test_graph_after_the_weights_changed(how):
    field, z = Field(), rand(2, 4, 8, 8).to(DEV)
    before = identical(field, z, flow.uniform(20), solver="ab2").clone()
    with torch.no_grad():
        if how == "in_place":
            field.a.weight.mul_(2.0)
        else:
            field.a.weight.data = field.a.weight.data * 2.0
    after = identical(field, z, flow.uniform(20), solver="ab2")
    assert (after - before).abs().max().item() > 1e-3


def test_results_of_a_graph_are_not_its_static_memory():
    field, z = Field(), rand(2, 4, 8, 8).to(DEV)
    x, trace = fk.sample(field, z, flow.uniform(20), graph=True)
    kept, rows = x.cpu(), trace.values.clone()
    fk.sample(field, z * 3 + 1, flow.uniform(20), graph=True)
    assert torch.equal(x.cpu(), kept)
    assert torch.equal(trace.values, rows)
    assert torch.equal(z.cpu(), rand(2, 4, 8, 8))


@pytest.mark.parametrize("replace", [False, True])
def test_pipeline_graph_with_guidance_and_callback(dev, replace):
    def callback(pipe, step, t, tensors):
        seen.append(tensors["latents"])  # kept, not cloned: the loop must not write to it
        return {"latents": tensors["latents"] + 0.1} if replace and step % 3 == 1 else {}

    runs = []
    for graph in (False, True):
        seen = []
        out = dev(
            latents=rand(2, 4, 16, 16),
            num_inference_steps=7,
            guidance_scale=1.5,
            callback_on_step_end=callback,
            output_type="latent",
            graph=graph,
        )
        runs.append([out.z1.cpu(), out.trace.values, *(x.cpu() for x in seen)])
    assert len(runs[1]) == 9
    for a, b in zip(*runs):
        assert torch.equal(a, b)


def test_graph_object_replays_on_the_same_memory():
    x, w, out = torch.ones(3, 4, device=DEV), torch.ones(4, 2, device=DEV), torch.zeros(3, 2, device=DEV)
    graph = second_device.Graph()
    with graph.capture():
        h = torch.relu(x @ w)
        out.add_(h - 1)
    out.zero_()
    for factor in (1.0, 2.0, -1.0):
        w.fill_(factor)
        graph.replay()
    same(out, torch.full((3, 2), 3.0 + 7.0 - 1.0))


@pytest.mark.parametrize("name", ["item", "tolist", "bool", "cpu", "nonzero"])
def test_synchronising_in_a_capture_raises(name):
    x, graph = torch.ones(3, device=DEV), second_device.Graph()
    with pytest.raises(RuntimeError), graph.capture():
        SYNCS[name](x * 2)
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]  # the device is usable afterwards


# --- the command line ---


def test_cli_generate(tmp_path):
    traces, names = {}, {}
    for device in ("cpu", DEV):
        text = run(
            "generate", "a cat", "a blue heart", "--steps", 4, "--guidance", 1.5, "--seed", 3, "-n", 2, "--trace",
            "--out", device, "--grid", f"{device}.png", "--gif", f"{device}.gif", "--html", f"{device}.html",
            "--device", device, cwd=tmp_path,
        )  # fmt: skip
        lines = [line for line in text.splitlines() if line.startswith("step")]
        traces[device] = [[float(x) for x in re.findall(r"=(-?[\d.]+)", line)] for line in lines]
        names[device] = sorted(p.name for p in (tmp_path / device).iterdir())
    assert len(traces["cpu"]) >= 4
    assert len(names["cpu"]) == 4
    assert names[DEV] == names["cpu"]
    np.testing.assert_allclose(traces[DEV], traces["cpu"], atol=2e-4)
    for name in names[DEV]:
        assert np.abs(pixels(tmp_path / "cpu" / name) - pixels(tmp_path / DEV / name)).max() <= 1
    assert all((tmp_path / f"{DEV}.{kind}").stat().st_size > 1000 for kind in ("png", "gif", "html"))


def test_cli_interpolate(tmp_path):
    for device in ("cpu", DEV):
        run("interpolate", "a dog", "a cat", "-n", 3, "--steps", 3, "--seed", 1, "-o", f"{device}.png", "--gif",
            f"{device}.gif", "--device", device, cwd=tmp_path)  # fmt: skip
    assert np.abs(pixels(tmp_path / "cpu.png") - pixels(tmp_path / f"{DEV}.png")).max() <= 1
    assert Image.open(tmp_path / f"{DEV}.gif").n_frames >= 2


TRAIN = "data.count=48 vae.optim.steps=2 flow.optim.steps=3 every.log=1 every.validate=2 every.sample=2 every.save=2"
VARIANTS = {
    "head": ["stages=[vae, head, flow]", "flow.head_optim.steps=2"],
    "losses": [
        "flow.losses.norm=0.1", "flow.losses.contrastive=0.1", "flow.losses.dino=0.1", "flow.losses.weighting=pcgrad",
        "flow.losses.null=0.2", "flow.losses.detach=false",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_cli_train(name, tmp_path):
    run("train", "--config", "shapes-tiny", "--device", DEV, "out=run", "data.cache=cache",
        *TRAIN.split(), *VARIANTS[name],
        cwd=tmp_path)  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run/flow/log.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "loss/total" in row]
    assert [row["step"] for row in losses] == [1, 2, 3]
    assert all(math.isfinite(v) for row in losses for k, v in row.items() if k.startswith(("loss/", "flow/", "grad/")))
    assert name == "head" or {"loss/norm", "loss/contrastive", "loss/dino"} <= losses[-1].keys()
    pipe = FlowPipeline.from_pretrained(tmp_path / "run")  # trained there, used here
    assert torch.isfinite(pipe("a red circle", 2, output_type="latent").z1).all()
