"""Tensors of a second device: the half of the cases that was not looked at while the code was written.

See test_second_device.py.
"""

import copy
import io
import json
import os
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
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline

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
        results.append([*outs, *grads])
    for a, b in zip(results[1], results[0]):
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
    assert code is None or done.returncode == code, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return done.stdout + done.stderr if code is not None else done.returncode


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


# --- the device ---

MIXED = {
    "embedding": lambda: F.embedding(torch.tensor([0, 1]), torch.randn(3, 4, device=DEV)),
    "linear": lambda: nn.Linear(4, 2).to(DEV)(torch.randn(1, 4)),
    "conv_bias": lambda: F.conv2d(
        torch.randn(1, 2, 4, 4, device=DEV), torch.randn(3, 2, 1, 1, device=DEV), torch.zeros(3)
    ),
    "stack": lambda: torch.stack([torch.zeros(2, device=DEV), torch.zeros(2)]),
    "one_element": lambda: torch.zeros(2, device=DEV) + torch.zeros(1),
    "loss": lambda: F.mse_loss(torch.zeros(2, device=DEV), torch.zeros(2)),
    "gather": lambda: torch.zeros(2, 2, device=DEV).gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "grad": lambda: setattr(torch.zeros(2, device=DEV, requires_grad=True), "grad", torch.zeros(2)),
    "psi": lambda: fk.psi(torch.rand(2), torch.zeros(2, 3, device=DEV), torch.zeros(2, 3, device=DEV)),
    "euler_step": lambda: fk.euler_step_(torch.zeros(2, 3, device=DEV), torch.zeros(2, 3), 0.1),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_devices_raises(name):
    with pytest.raises((RuntimeError, ValueError)):
        MIXED[name]()


def test_indexing_reads_and_writes():
    results = []
    for device in ("cpu", DEV):
        x = rand(4, 5).to(device)
        rows, columns = torch.tensor([0, 2, 2], device=device), torch.tensor([1, 1, 4], device=device)
        y = x.clone()
        y[rows, columns] = 7.0
        y[x > 1] = -1.0
        y[1:3, ::2] = torch.arange(3.0, device=device)
        y[-1] = 2.5
        y.index_put_((rows,), torch.ones(3, 5, device=device), accumulate=True)
        y.scatter_add_(1, columns[None], torch.ones(1, 3, device=device))
        y.masked_fill_(x < -1, 9.0)
        results.append(
            [y, x[rows], x[:, [3, 0]], x[rows, columns], x[..., None, 2], x[x > 0], x.take_along_dim(columns[None], 1)]
        )
    for a, b in zip(results[1], results[0]):
        same(a, b, 0)


def test_autograd_through_views_and_in_place():
    def function(x, y):
        z = x.clone()
        z[:, 1:3] *= y
        z.view(-1)[::4].exp_()
        return z.t().reshape(2, -1), z.flip(0).cumsum(1)

    both(function, rand(4, 4), rand(4, 2, seed=1))


def test_checkpoint_and_hooks_in_backward():
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to(DEV)
    x = rand(16, 4).to(DEV).requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.device.type))
    torch.manual_seed(1)
    checkpoint(net, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert seen == [DEV]
    assert all(torch.isfinite(p.grad).all().item() for p in net.parameters())


def test_autocast_casts_products_and_restores_gradients():
    torch.manual_seed(0)
    net = nn.Linear(16, 8)
    x = rand(4, 16)
    expected = net(x)
    net = net.to(DEV)
    with torch.autocast(DEV, dtype=torch.bfloat16):
        y = net(x.to(DEV))
        assert y.dtype == (y @ y.t()).dtype == torch.bfloat16
        with torch.autocast(DEV, enabled=False):
            assert net(x.to(DEV)).dtype == torch.float32
    assert net(x.to(DEV)).dtype == torch.float32
    same(y.float(), expected, 0.05)
    y.float().sum().backward()
    assert net.weight.grad.dtype == torch.float32
    assert net.weight.grad.device.type == DEV
    same(net.weight.grad, x.sum(0).expand(8, 16), 0.05)


@pytest.mark.parametrize(("source", "target"), [("cpu", DEV), (DEV, "cpu"), (DEV, DEV)])
def test_training_state_moves_between_devices(source, target):
    def make(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device)
        return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def steps(net, optimizer, seeds, device):
        for seed in seeds:
            optimizer.zero_grad(set_to_none=True)
            net(rand(8, 3, seed=seed).to(device)).square().mean().backward()
            optimizer.step()

    whole, optimizer = make("cpu")
    steps(whole, optimizer, range(4), "cpu")
    first, optimizer = make(source)
    steps(first, optimizer, range(2), source)
    file = io.BytesIO()
    torch.save([first.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, map_location="cpu")
    second, optimizer = make(target)
    second.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert {s["momentum_buffer"].device.type for s in optimizer.state.values()} == {target}
    steps(second, optimizer, (2, 3), target)
    for key, value in whole.state_dict().items():
        found = second.state_dict()[key]
        assert found.device.type == target
        torch.testing.assert_close(found.cpu(), value, atol=1e-5, rtol=1e-5)


def test_module_to_moves_parameters_buffers_and_grads():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net[1].register_buffer("extra", torch.arange(3), persistent=False)
    net(rand(4, 3)).sum().backward()
    values = {k: v.clone() for k, v in net.state_dict().items()}
    net.to(DEV, torch.float64)
    tensors = [*net.parameters(), *net.buffers(), *(p.grad for p in net.parameters())]
    assert {x.device.type for x in tensors} == {DEV}
    assert net[1].extra.dtype == torch.int64
    assert net[0].weight.dtype == net[0].weight.grad.dtype == torch.float64
    assert all(p.is_leaf for p in net.parameters())
    net.cpu().float()
    assert all(torch.equal(v, values[k]) for k, v in net.state_dict().items())


def test_generator_states_and_seeds():
    g = torch.Generator(device=DEV).manual_seed(11)
    torch.rand(7, device=DEV, generator=g)
    state = g.get_state()
    a = torch.randint(0, 1000, (20,), device=DEV, generator=g)
    g.set_state(state)
    assert torch.equal(torch.randint(0, 1000, (20,), device=DEV, generator=g).cpu(), a.cpu())
    assert g.initial_seed() == 11
    torch.manual_seed(5)
    b = torch.randn(20, device=DEV)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(20, device=DEV).cpu(), b.cpu())
    assert abs(torch.randn(20000, device=DEV, generator=g).std().item() - 1) < 0.05
    assert sorted(torch.randperm(9, device=DEV, generator=g).tolist()) == list(range(9))


SYNCS = {
    "mask": lambda x: x[x > 0],
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=DEV),
    "to_cpu": lambda x: x.to("cpu"),
    "copy_to_host": lambda x: torch.empty(3).copy_(x),
    "numpy": lambda x: x.numpy(force=True),
    "all": lambda x: bool((x > 0).all()),
    "int": lambda x: int(x.argmax()),
    "half_to_host": lambda x: x.half().cpu(),
}


@pytest.mark.parametrize("name", SYNCS)
def test_synchronisation_names_the_calling_line(name):
    x, call = torch.ones(3, device=DEV), SYNCS[name]
    with second_device.synchronizations() as found:
        y = x * 2 + 1
        call(y)
        y.mul_(3)
    assert len(found) == 1, [(f.kind, f.where) for f in found]
    assert found[0].where.endswith(f"{os.path.basename(__file__)}:{call.__code__.co_firstlineno}"), found[0].where


def test_each_synchronisation_of_a_loop_is_one_record():
    x = torch.arange(4.0, device=DEV)
    with second_device.synchronizations() as found:
        total, line = 0.0, sys._getframe().f_lineno + 2
        for value in x:
            total += value.item()
        with second_device.synchronizations() as inner:
            x.cpu()
    assert total == 6.0
    assert len(inner) == 1
    assert [f.where.rsplit(":", 1)[1] for f in found][:4] == [str(line)] * 4


# --- the ops ---

OPS = {
    "layer_norm_of_a_list": (
        lambda a, b, w, c: fk.td_layer_norm([a, b], w, c),
        lambda: (rand(2, 5, 6), rand(2, 5, 9, seed=1), rand(15, seed=2), rand(15, seed=3)),
    ),
    "layer_norm_residual": (
        lambda x, r, w, b: fk.td_layer_norm(x, w, b, residual=r),
        lambda: (rand(3, 4, 12), rand(3, 4, 12, seed=1), rand(3, 12, seed=2), rand(3, 12, seed=3)),
    ),
    "gelu_mul": (lambda a, b: fk.gelu_mul(a, b), lambda: (rand(3, 17), rand(3, 17, seed=1))),
    "gelu_mul_halves": (lambda a: fk.gelu_mul(a), lambda: (rand(2, 3, 14),)),
    "norm_modulate_residual": (
        lambda x, s, t, r, g: fk.norm_modulate(x, s, t, residual=r, gate=g),
        lambda: (rand(3, 4, 12), rand(3, 12, seed=1), rand(12, seed=2), rand(3, 4, 12, seed=3), rand(3, 1, 12, seed=4)),
    ),
    "gated_add": (fk.gated_add, lambda: (rand(3, 4, 12), rand(3, 12, seed=1), rand(3, 4, 12, seed=2))),
    "qk_norm_rope": (
        lambda q, k, w: fk.qk_norm_rope(q, k, w, None, *rand(2, 5, 6).to(q.device)),
        lambda: (rand(2, 5, 3, 8), rand(2, 5, 1, 8, seed=1), rand(8, seed=2)),
    ),
    "psi": (
        lambda x0, x1: fk.psi(torch.tensor([0.0, 0.3, 1.0], device=x0.device), x0, x1),
        lambda: (rand(3, 4, 5), rand(3, 4, 5, seed=1)),
    ),
    "reparameterize": (
        lambda mu, logvar: fk.reparameterize(mu, logvar, eps=rand(4, 30, seed=9).to(mu.device))[:2],
        lambda: (rand(4, 30), 4 * rand(4, 30, seed=1)),
    ),
    "tdp_group": (
        lambda *p: fk.tdp_group([tuple(p[:4]), tuple(p[4:8])], p[8].detach()),
        lambda: (*rand(4, 10), *rand(4, 7, seed=1), rand(3, seed=2)),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_ops_and_gradients_equal_the_cpus(name):
    function, inputs = OPS[name]
    both(function, *inputs())


def test_reparameterize_draws_on_the_device_and_reports_in_one_copy():
    mu, logvar = rand(4, 50).to(DEV), rand(4, 50, seed=1).to(DEV)
    g = torch.Generator(device=DEV)
    with second_device.synchronizations() as found:
        z, kl, stats = fk.reparameterize(mu, logvar, generator=g.manual_seed(1))
        again = fk.reparameterize(mu, logvar, generator=g.manual_seed(1))[0]
        other = fk.reparameterize(mu, logvar, generator=g.manual_seed(2))[0]
        values = stats.as_dict()
    assert len(found) == 1
    assert torch.equal(z.cpu(), again.cpu())
    assert not torch.equal(z.cpu(), other.cpu())
    assert values["mu/rms"] == pytest.approx(mu.square().mean().sqrt().item(), rel=1e-4)
    same(kl, fk.reparameterize(mu.cpu(), logvar.cpu())[1])


def test_velocity_stats_by_slice():
    v, x0, x1, t = rand(9, 6), rand(9, 6, seed=1), rand(9, 6, seed=2), torch.linspace(0, 1, 9)
    a, b = (fk.velocity_stats(v.to(d), x0.to(d), x1.to(d), t=t.to(d)) for d in ("cpu", DEV))
    for name in ("cos", "nmse", "gain", "speed_ratio", "nonfinite"):
        same(getattr(b, name), getattr(a, name))
    for key, value in a.by_t(5).items():
        same(b.by_t(5)[key].nan_to_num(-1), value.nan_to_num(-1))


class TimeDependentParameter(nn.Module):
    def __init__(self, dim):
        super().__init__()
        for name in ("param0", "param1", "nodecay_weight", "nodecay_bias"):
            setattr(self, name, nn.Parameter(torch.zeros(dim)))
        self.curr_weight = None

    def forward(self):
        return self.curr_weight

    @staticmethod
    def seed_time(model, log_snr):
        for m in (m for m in model.modules() if isinstance(m, TimeDependentParameter)):
            gate = torch.sigmoid(log_snr[:, None] / 4 * (m.nodecay_weight + 1) + m.nodecay_bias)
            m.curr_weight = m.param1 + gate * (m.param0 - m.param1)


class Model(nn.ModuleList):
    def forward(self, x, log_snr):
        TimeDependentParameter.seed_time(self, log_snr)
        return sum((scale() for scale in self), x)


@pytest.mark.parametrize("order", ["move_then_accelerate", "accelerate_then_move", "there_and_back"])
def test_accelerate_the_readmes_model(order):
    model = Model(TimeDependentParameter(64) for _ in range(9))
    for i, p in enumerate(model.parameters()):
        p.data.copy_(rand(64, seed=i))
    plain, keys = copy.deepcopy(model), list(model.state_dict())
    if order == "move_then_accelerate":
        fk.accelerate(model.to(DEV))
    else:
        fk.accelerate(model)
        model(rand(2, 64), torch.zeros(2))  # whatever it keeps is now of the CPU
        model.to(DEV)
    device = DEV
    if order == "there_and_back":
        model(rand(2, 64).to(DEV), torch.zeros(2, device=DEV))
        model, device = model.cpu(), "cpu"
    x, log_snr = rand(2, 64), torch.tensor([3.0, -1.0])
    expected = plain(x, log_snr)
    out = model(x.to(device), log_snr.to(device))
    assert out.device.type == device
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(out.cpu(), expected, atol=1e-4, rtol=1e-4)
    out.square().sum().backward(), expected.square().sum().backward()
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad.cpu(), q.grad, atol=1e-3, rtol=1e-4)
    fk.restore(model)
    torch.testing.assert_close(model(x.to(device), log_snr.to(device)).cpu(), expected, atol=1e-4, rtol=1e-4)


# --- the pipeline ---


@pytest.mark.parametrize("schedule", ["uniform", "crossflow", "logit_normal", "midpoint", "shifted"])
def test_schedules(cpu, dev, schedule):
    options = {"num_inference_steps": 4, "schedule": schedule, "solver": "euler", "output_type": "latent"}
    a, b = (p("a house", generator=gen(3), **options) for p in (cpu, dev))
    same(b.z1, a.z1)
    torch.testing.assert_close(b.trace.values, a.trace.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("given", ["cpu", DEV])
def test_prompt_embeds_on_either_device(cpu, dev, given):
    states = rand(2, 24, 384, seed=6)
    options = {"num_inference_steps": 3, "output_type": "np", "guidance_scale": 1.5}
    a = cpu(prompt_embeds=states, generator=gen(0), **options)
    b = dev(prompt_embeds=states.to(given), generator=gen(0), **options)
    same(b.mu, a.mu)
    assert isinstance(b.images, np.ndarray)
    np.testing.assert_allclose(b.images, a.images, atol=1e-4)


@pytest.mark.parametrize("z0_mode", ["sample", "mean"])
def test_lists_of_generators_and_several_images(cpu, dev, z0_mode):
    def call(pipe):
        options = {"num_images_per_prompt": 2, "num_inference_steps": 3, "output_type": "latent", "z0_mode": z0_mode}
        return pipe(["a cat", "a dog"], generator=[gen(i) for i in (5, 6, 5, 7)], **options)

    a, b = call(cpu), call(dev)
    assert len(b.z1) == 4
    same(b.z0, a.z0), same(b.z1, a.z1)
    assert torch.equal(b.z0[0].cpu(), b.z0[1].cpu()) == (z0_mode == "mean")


@pytest.mark.parametrize("kind", ["one", "list"])
def test_generators_of_the_device(dev, kind):
    def call(*seeds):
        made = [torch.Generator(device=DEV).manual_seed(s) for s in seeds]
        out = dev(["a cat", "a dog"], 2, generator=made if kind == "list" else made[0], output_type="latent")
        return out.z0.cpu()

    a, b, c = call(1, 2), call(1, 2), call(3, 2)
    assert torch.equal(a, b)
    assert not torch.equal(a[0], c[0])
    assert torch.equal(a[1], c[1]) == (kind == "list")


def test_debugging_settings(cpu, dev):
    options = {
        "num_inference_steps": 4,
        "fm_gain": 1.3,
        "dt_scale": 0.7,
        "time_dir": "1->0",
        "align_variance": 0.8,
        "output_type": "pt",
    }
    a, b = (p("the sun", generator=gen(1), **options) for p in (cpu, dev))
    same(b.z1, a.z1)
    assert b.z0.std().item() == pytest.approx(0.8, abs=0.01)
    torch.testing.assert_close(b.images.cpu(), a.images, atol=1e-4, rtol=1e-4)


def test_arithmetic(cpu, dev):
    for seed in (None, 2):
        a, b = (
            p.arithmetic(
                ["a dog", "a blue heart"],
                "a red heart",
                generator=None if seed is None else gen(seed),
                num_inference_steps=3,
                output_type="latent",
            )
            for p in (cpu, dev)
        )
        same(b.z0, a.z0), same(b.z1, a.z1)


@pytest.mark.parametrize("given", ["cpu", DEV])
def test_calibrate_gain(cpu, dev, given):
    images, prompts = rand(3, 3, 64, 64).clamp(-1, 1), ["a cat", "a dog", "a car"]
    assert dev.calibrate_gain(images.to(given), prompts) == pytest.approx(cpu.calibrate_gain(images, prompts), rel=1e-4)


def test_moving_there_and_back(cpu):
    pipe, options = pipeline(), {"num_inference_steps": 3, "guidance_scale": 1.5, "output_type": "pt"}
    expected = cpu("a car", generator=gen(4), **options).images
    for device in ("cpu", DEV, "cpu", DEV):
        pipe.to(device)
        out = pipe("a car", generator=gen(4), **options)
        assert out.z1.device.type == device
        torch.testing.assert_close(out.images.cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("what", ["latents", "prompt_embeds", "interpolate", "calibrate"])
def test_offloaded(cpu, offloaded, what):
    places, images = set(), rand(2, 3, 64, 64).clamp(-1, 1)

    def callback(pipe, step, t, tensors):
        places.add(tensors["latents"].device.type)
        return {"latents": tensors["latents"] * 0.9}

    def call(pipe):
        options = {"num_inference_steps": 3, "output_type": "pt", "callback_on_step_end": callback}
        if what == "latents":
            return pipe(latents=rand(2, 4, 16, 16), **options).images
        if what == "prompt_embeds":
            return pipe(prompt_embeds=rand(1, 24, 384), generator=gen(1), **options).images
        if what == "interpolate":
            return pipe.interpolate("a cat", "a dog", 2, generator=gen(1), **options).images
        return torch.tensor([pipe.calibrate_gain(images, ["a cat", "a dog"])])

    expected = call(cpu)
    assert places <= {"cpu"}
    places.clear()
    torch.testing.assert_close(call(offloaded).cpu(), expected, atol=1e-4, rtol=1e-4)
    assert what == "calibrate" or places == {DEV}


def test_synchronisations_of_the_pipeline_do_not_grow_with_the_steps(dev):
    counts = []
    for steps in (3, 12):
        with second_device.synchronizations() as found:
            dev("a cat", steps, 1.5, generator=gen(0), output_type="latent")
        counts.append(len(found))
    assert counts[0] == counts[1], [(f.kind, f.where) for f in found]


# --- graphs ---


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = build("tiny_dimr").velocity_net
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.add_(0.05 * rand(*p.shape, seed=i))  # so that time matters
    return net.to(DEV)


def compare(velocity, z, schedule, limit=None, **options):
    """Samples without and with a graph: the same bits. limit: of the calls of velocity with one."""
    calls, owner, hook = [], getattr(velocity, "__self__", None), None
    if isinstance(owner, nn.Module):  # given as it is: sample may look for the network behind it
        hook = owner.register_forward_pre_hook(lambda *_: calls.append(1))
        counted = velocity
    else:

        def counted(x, t, **more):
            calls.append(1)
            return velocity(x, t, **more)

    plain, trace = fk.sample(counted, z, schedule, graph=False, **options)
    visible = bool(calls)
    calls.clear()
    x, captured = fk.sample(counted, z, schedule, graph=True, **options)
    if hook is not None:
        hook.remove()
    assert torch.equal(x.cpu(), plain.cpu())
    assert (trace is None and captured is None) or torch.equal(captured.values, trace.values)
    assert limit is None or not visible or len(calls) < limit, "not captured"
    return x


def simple(x, t, null=None):
    v = torch.tanh(x) * t.view(-1, *[1] * (x.ndim - 1)) - 0.3 * x
    return v if null is None else torch.where(null.view(-1, *[1] * (x.ndim - 1)), 0.5 * v, v)


@pytest.mark.parametrize("solver", ["euler", "ab2", "heun"])
@pytest.mark.parametrize("guidance", [None, 2.0])
def test_graph_of_dimr_is_bit_identical(net, solver, guidance):
    z = rand(1, 4, 32, 32).to(DEV)
    compare(net.velocity, z, flow.shifted(16), limit=16, solver=solver, guidance=guidance)


@pytest.mark.parametrize(
    ("solver", "schedule", "updates"),
    [("euler", flow.shifted, 3), ("heun", flow.shifted, 6), ("ab2", flow.uniform, 4), ("ab2", flow.shifted, 20)],
)
def test_a_graph_contains_the_solver_step(solver, schedule, updates, monkeypatch):
    """Python calls the step ops only in the first two steps and in the capture, unless the coefficients change."""
    calls = []
    for name in ("euler_step_", "multistep_step_"):
        op = getattr(flow.solver, name)
        monkeypatch.setattr(flow.solver, name, lambda *a, op=op, **k: (calls.append(1), op(*a, **k))[1])
    fk.sample(simple, rand(2, 4, 8).to(DEV), schedule(20), solver=solver, guidance=2.0, graph=True)
    assert len(calls) == updates


def test_graph_after_loading_other_weights(net):
    other, z, schedule = copy.deepcopy(net), rand(1, 4, 32, 32).to(DEV), flow.logit_normal(16)
    before = compare(other.velocity, z, schedule, limit=16).cpu()
    state = {k: v * 1.1 if v.is_floating_point() else v for k, v in other.state_dict().items()}
    other.load_state_dict(state)
    after = compare(other.velocity, z, schedule, limit=16).cpu()
    other.load_state_dict({k: v * 0.9 if v.is_floating_point() else v.clone() for k, v in state.items()}, assign=True)
    third = compare(other.velocity, z, schedule, limit=16).cpu()
    assert (before - after).abs().max() > 1e-4
    assert (after - third).abs().max() > 1e-4


def test_graph_for_other_shapes_and_dtypes_one_after_the_other():
    for shape, dtype in (
        ((1, 4, 8), torch.float32),
        ((3, 4, 8), torch.float32),
        ((1, 4, 8), torch.bfloat16),
        ((1, 2), torch.float64),
    ):
        x = compare(simple, rand(*shape).to(DEV, dtype), flow.uniform(20), limit=20, solver="ab2", guidance=1.5)
        assert x.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_graph_without_a_trace():
    compare(simple, rand(2, 8).to(DEV), flow.crossflow(20), limit=20, trace=False)


@pytest.mark.parametrize("solver", ["euler", "ab2", "heun"])
def test_state_replaced_between_replays(solver):
    def step_end(step, x, stats):
        rows.append((x, stats))  # kept as they are: copies, as documented
        return x.flip(0) + 0.1 if step % 4 == 2 else None

    runs = []
    for graph in (False, True):
        rows = []
        x, trace = fk.sample(
            simple, rand(2, 4, 8).to(DEV), flow.uniform(12), solver=solver, guidance=2.0, step_end=step_end, graph=graph
        )
        runs.append([x.cpu(), trace.values, *(r[0].cpu() for r in rows)])
    assert len(runs[0]) == len(runs[1]) == 14
    for a, b in zip(*runs):
        assert torch.equal(a, b)


def test_callback_gets_copies_from_a_graph():
    runs = []
    for graph in (False, True):
        seen = []
        fk.sample(simple, rand(2, 8).to(DEV), flow.midpoint(12), callback=seen.append, graph=graph)
        runs.append(seen)
    assert len(runs[1]) == 12
    for a, b in zip(*runs):
        assert (a["step"], a["t"], a["dt"]) == (b["step"], b["t"], b["dt"])
        for key in ("x", "v", "predicted_endpoint"):
            assert torch.equal(a[key].cpu(), b[key].cpu())
    assert not torch.equal(runs[1][0]["x"].cpu(), runs[1][5]["x"].cpu())


def test_what_cannot_be_captured_is_reported_and_runs_without(recwarn, caplog, capfd):
    def reads_the_host(x, t):
        return -x * (1.0 + x.abs().mean().item())

    z = rand(2, 8).to(DEV)
    expected = fk.sample(reads_the_host, z, flow.uniform(6), graph=False).x
    recwarn.clear(), caplog.clear(), capfd.readouterr()
    x = fk.sample(reads_the_host, z, flow.uniform(6), graph=True).x
    said = [str(w.message) for w in recwarn.list] + [r.getMessage() for r in caplog.records] + list(capfd.readouterr())
    assert torch.equal(x.cpu(), expected.cpu())
    assert any("graph" in text.lower() or "captur" in text.lower() for text in said), said
    x = fk.sample(simple, z, flow.uniform(6), graph=True).x  # and the next one is captured again
    assert torch.equal(x.cpu(), fk.sample(simple, z, flow.uniform(6), graph=False).x.cpu())


@pytest.mark.parametrize(
    ("device", "solver", "graph"),
    [(DEV, "dopri5", True), ("cpu", "ab2", True), (DEV, "ab2", "auto"), ("cpu", "euler", "auto")],
)
def test_graph_argument_never_changes_the_result(device, solver, graph):
    z = rand(2, 8).to(device)
    a, b = (fk.sample(simple, z, flow.uniform(6), solver=solver, graph=g).x.cpu() for g in (False, graph))
    assert torch.equal(a, b)


def test_non_finite_values_in_a_graph_name_the_same_step():
    errors = []
    for graph in (False, True):
        with pytest.raises(flow.NonFiniteError) as caught:
            fk.sample(
                lambda x, t: x / (t.view(-1, 1) - 0.5), torch.ones(2, 3, device=DEV), flow.uniform(8), graph=graph
            )
        errors.append(caught.value.anomaly)
    assert str(errors[0]) == str(errors[1])
    assert errors[1].step == 4


def test_a_graph_adds_no_synchronisation_to_the_loop():
    z, counts = rand(2, 8).to(DEV), []
    for steps in (6, 24):
        with second_device.synchronizations() as found:
            fk.sample(simple, z, flow.uniform(steps), guidance=2.0, graph=True)
        counts.append(len(found))
    assert counts[0] == counts[1] <= 2, [(f.kind, f.where) for f in found]


def test_graph_object_replays_an_euler_step():
    results = []
    for captured in (False, True):
        x, v = rand(2, 6).to(DEV), rand(2, 6, seed=1).to(DEV)
        dt, stats = torch.zeros(1, device=DEV), torch.zeros(2, 5, device=DEV)

        def step(x=x, v=v, dt=dt, stats=stats):
            fk.euler_step_(x, torch.sin(x) + v, dt, v_uncond=v, guidance=2.0, stats=stats)

        if captured:
            graph = second_device.Graph()
            with graph.capture():
                step()
            x.copy_(rand(2, 6).to(DEV))
        for k in range(4):
            dt.fill_(0.1 * (k + 1))
            v.mul_(0.9)
            graph.replay() if captured else step()
        results.append((x.cpu(), stats.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(("solver", "schedule"), [("ab2", "uniform"), ("euler", "logit_normal"), ("heun", "shifted")])
def test_pipeline_graph_after_its_weights_changed(solver, schedule):
    pipe = pipeline().to(DEV)
    options = {"num_inference_steps": 6, "solver": solver, "schedule": schedule, "output_type": "latent"}
    found = []
    for factor in (1.0, 1.05):
        with torch.no_grad():
            for p in pipe.components["velocity_net"].parameters():
                p.mul_(factor)
        a, b = (pipe(["a cat", "a dog"], generator=gen(2), graph=g, **options) for g in (False, True))
        assert torch.equal(a.z1.cpu(), b.z1.cpu())
        assert torch.equal(a.trace.values, b.trace.values)
        found.append(b.z1.cpu())
    assert (found[0] - found[1]).abs().max() > 1e-3


# --- the command line ---


def test_cli_sweep_with_an_image(tmp_path):
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(tmp_path / "image.png")
    best = []
    for device in ("cpu", DEV):
        text = run(
            "sweep",
            "a cat",
            "--dt-scale",
            "1",
            "--gain",
            "1,2",
            "--steps",
            3,
            "--image",
            "image.png",
            "--device",
            device,
            "-o",
            f"{device}.png",
            cwd=tmp_path,
        )
        best += [line.split("(")[0] for line in text.splitlines() if line.startswith("best:")]
    assert len(best) == 2
    assert best[0] == best[1]
    assert np.abs(pixels(tmp_path / "cpu.png") - pixels(tmp_path / f"{DEV}.png")).mean() < 0.5


@pytest.mark.parametrize("seed", [(), ("--seed", 4)], ids=["means", "noise"])
def test_cli_arith(tmp_path, seed):
    for device in ("cpu", DEV):
        run(
            "arith",
            "a dog",
            "--add",
            "a blue heart",
            "--subtract",
            "a red heart",
            "--steps",
            3,
            *seed,
            "--device",
            device,
            "-o",
            f"{device}.png",
            cwd=tmp_path,
        )
    assert np.abs(pixels(tmp_path / "cpu.png") - pixels(tmp_path / f"{DEV}.png")).max() <= 1


def test_cli_check_gives_the_cpus_verdicts(tmp_path, cpu):
    prompts = ["a cat", "a dog", "a red apple", "a car"]
    (tmp_path / "images").mkdir()
    for i, image in enumerate(cpu(prompts, 4, generator=gen(0)).images):
        image.save(tmp_path / "images" / f"{i}.png")
    (tmp_path / "captions.txt").write_text("\n".join(prompts) + "\n")
    codes, verdicts, measured = [], [], []
    for device in ("cpu", DEV):
        codes.append(
            run(
                "check",
                "default",
                "--images",
                "images",
                "--captions",
                "captions.txt",
                "--steps",
                4,
                "--gain",
                1.5,
                "--device",
                device,
                "-o",
                device,
                cwd=tmp_path,
                code=None,
            )
        )
        data = json.loads((tmp_path / device / "check.json").read_text())
        verdicts.append({f["name"]: f["status"] for f in data["findings"]})
        measured.append(data["measured"])
    assert codes[0] == codes[1]
    assert codes[0] in (0, 1)
    assert verdicts[0] == verdicts[1]
    assert measured[0].keys() == measured[1].keys()
    assert sum(v != "skipped" for v in verdicts[1].values()) >= 15
    cosines = [m["text_path"]["cosines"] for m in measured]
    assert cosines[1] == pytest.approx(cosines[0], abs=1e-4)


@pytest.mark.parametrize(("first", "second"), [(DEV, "cpu"), ("cpu", DEV)])
def test_cli_train_resumes_on_another_device(first, second, tmp_path):
    settings = "out=run data.cache=cache data.count=48 vae.optim.steps=2 every.log=1"
    settings += " every.validate=0 every.sample=0 every.save=2"
    command = ["train", "--config", "shapes-tiny", *settings.split()]
    run(*command, "flow.optim.steps=2", "--device", first, cwd=tmp_path)
    text = run(*command, "flow.optim.steps=4", "--device", second, "--resume", "latest", cwd=tmp_path)
    assert "resuming stage flow" in text
    rows = [json.loads(line) for line in (tmp_path / "run/flow/log.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss/total"] for row in rows if "loss/total" in row}
    assert sorted(losses) == [1, 2, 3, 4]
    assert max(losses.values()) < 100
    assert (tmp_path / "run/flow/checkpoints/step-00000004/model.safetensors").exists()
    pipe = FlowPipeline.from_pretrained(tmp_path / "run").to(DEV)
    assert torch.isfinite(pipe("a red circle", 2, output_type="latent").z1).all().item()
