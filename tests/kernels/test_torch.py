"""The ops as citizens of torch: opcheck, gradcheck, compile, export, torch.func, autocast, inference mode."""

import copy
import pickle

import pytest
import torch
from support.cases import CASES, WITH_GRADIENTS
from torch.utils._python_dispatch import TorchDispatchMode

import fmkernels as fk

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
every_gradient = pytest.mark.parametrize("case", WITH_GRADIENTS, ids=lambda c: c.name)


class Recording(TorchDispatchMode):
    """The calls of fmkernels ops, from Python or from C++."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fmkernels":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def recorded_calls(case, gradients):
    """(overload, args) of every op the case calls, as the public functions call them."""
    inputs = case.inputs(17, torch.float32)
    with Recording() as recording:
        case.gradients(inputs) if gradients else case.outputs(inputs)
    return recording.calls


def detached(args):
    """Fresh leaves: opcheck sets requires_grad and mutates."""

    def fresh(x):
        if isinstance(x, (list, tuple)):
            return [fresh(y) for y in x]
        return x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x

    return tuple(fresh(x) for x in args)


@every_case
def test_opcheck(case):
    for overload, args in recorded_calls(case, gradients=False):
        result = torch.library.opcheck(overload, detached(args))
        assert set(result.values()) == {"SUCCESS"}


@every_gradient
def test_opcheck_of_backward(case):
    calls = [c for c in recorded_calls(case, gradients=True) if c[0].__name__.split(".")[0].endswith("_backward")]
    assert calls or case.name == "Dt_psi"  # whose gradient is two products with constants
    for overload, args in calls:
        checks = ("test_schema", "test_faketensor")
        result = torch.library.opcheck(overload, detached(args), test_utils=checks)
        assert set(result.values()) == {"SUCCESS"}


@every_gradient
def test_gradcheck(case):
    inputs = [x.requires_grad_(i in case.grads) for i, x in enumerate(case.inputs(5, torch.float64))]
    if case.name == "reparameterize":
        with torch.no_grad():  # inside the clamp: outside, the gradient is not the derivative by design
            inputs[1].mul_(0.2)
    fn = lambda *x: tuple(case.outputs(list(x))[: case.smooth])  # noqa: E731
    assert torch.autograd.gradcheck(fn, inputs)


@pytest.mark.parametrize(
    ("case", "training"),
    [(case, False) for case in CASES] + [(case, True) for case in WITH_GRADIENTS],
    ids=lambda x: getattr(x, "name", "training" if x else "inference"),
)
def test_compile_fullgraph(case, training):
    torch._dynamo.reset()
    inputs = case.inputs(33, torch.float32)
    compiled = torch.compile(case.fn, fullgraph=True, backend="aot_eager")

    def run(fn):
        leaves = [x.clone().requires_grad_(training and i in case.grads) for i, x in enumerate(inputs)]
        out = fn(*leaves)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        if training:
            sum(o.sum() for o in out[: case.smooth]).backward()
        return [o.detach() for o in out] + [x.grad for x in leaves if x.grad is not None]

    for a, b in zip(run(compiled), run(case.fn), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_compile_with_inductor():
    def block(x, r, scale, a, b):
        y, r = fk.td_rms_norm(x, scale, residual=r)
        return (y + fk.gelu_mul(a, b)).sin(), r

    inputs = [
        torch.randn(2, 5, 16),
        torch.randn(2, 5, 16),
        torch.randn(2, 16),
        torch.randn(2, 5, 16),
        torch.randn(2, 5, 16),
    ]
    for got, expected in zip(torch.compile(block, fullgraph=True)(*inputs), block(*inputs), strict=True):
        torch.testing.assert_close(got, expected)


@every_case
def test_compile_with_dynamic_shapes(case):
    torch._dynamo.reset()
    compiled = torch.compile(case.fn, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (24, 40, 41):
        inputs = case.inputs(n, torch.float32)
        for a, b in zip(tensors(compiled(*inputs)), case.outputs(inputs), strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def tensors(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def test_compile_with_drawn_noise_and_another_batch():
    compiled = torch.compile(lambda mu, logvar: fk.reparameterize(mu, logvar)[:2], fullgraph=True, backend="aot_eager")
    for batch in (3, 5, 8):
        z, kl = compiled(torch.zeros(batch, 8), torch.zeros(batch, 8))
        assert z.shape == (batch, 8)
        assert torch.equal(kl, torch.zeros(batch))


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode():
        params = [tuple(torch.empty(4, 6)) for _ in range(3)]
        with torch.no_grad():
            assert [o.shape for o in fk.tdp_group(params, torch.empty(5))] == [(5, 6)] * 3


def test_ops_on_fake_cuda_tensors_stay_there_and_mix_no_devices():
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        x, t = torch.empty(2, 3, device="cuda"), torch.empty(2, device="cuda")
        results = [fk.psi(t, x, x), *fk.flow_pair(t, x, x), fk.td_rms_norm(x, torch.empty(3, device="cuda"))]
        results += [fk.gelu_mul(x, x), fk.tdp(t, t, t, t, t)]
        assert {result.device.type for result in results} == {"cuda"}
        with pytest.raises(ValueError, match="psi: t must be on x0's device cuda:0, got cpu"):
            fk.psi(torch.empty(2), x, x)


def test_in_place_ops_are_seen_by_autograd():
    x, w = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    loss = (x * w).sum()
    fk.euler_step_(x, torch.ones(2, 3), 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    group = fk.TdpGroup([tuple(torch.randn(4, 6))])
    written = [torch.empty(2, 3), torch.empty(2, 5), torch.empty(1, 6), group.buffer(1).flat]
    fk.euler_step_(x, torch.ones(2, 3), 1.0, low=written[0], stats=written[1])
    fk.tdp(*torch.randn(4, 6), torch.randn(1), out=written[2])
    fk.tdp_group(group, torch.randn(1), out=group.buffer(1))
    assert [t._version for t in written] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["cpp", "eager"])
def test_what_carries_no_gradient(name):
    t, mu, logvar = torch.rand(2, requires_grad=True), torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    eps = torch.randn(2, 4, requires_grad=True)
    with fk.use_backend(name):
        stats = fk.velocity_stats(mu, mu, mu, t=t)
        assert not stats.sums.requires_grad
        assert not stats.nmse.requires_grad
        fk.psi(t, mu, mu).sum().backward()
        fk.reparameterize(mu, logvar, eps=eps)[0].sum().backward()
    assert t.grad is None
    assert eps.grad is None
    assert mu.grad is not None


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("name", ["cpp", "eager"])
def test_an_unused_output_does_not_matter(name, used):
    x = torch.randn(2, 4, requires_grad=True)
    with fk.use_backend(name):
        (norm,) = torch.autograd.grad(fk.td_rms_norm(x, torch.ones(4), residual=torch.full((2, 4), 1e30))[1].sum(), x)
        head = torch.autograd.grad(fk.reparameterize(x, x, eps=torch.ones(2, 4))[used].sum(), x)[0]
    assert torch.equal(norm, torch.ones(2, 4))
    std = (0.5 * x).exp()
    torch.testing.assert_close(head, 1 + 0.5 * std if used == 0 else x + 0.5 * (std * std - 1))


@every_case
def test_export(case):
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return tuple(case.outputs(list(inputs)))

    inputs = tuple(case.inputs(9, torch.float32))
    with torch.no_grad():
        program = torch.export.export(Module(), inputs)
        assert any("fmkernels" in str(node.target) for node in program.graph.nodes)
        for a, b in zip(program.module()(*inputs), Module()(*inputs), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


@every_gradient
def test_func_grad(case):
    inputs = case.inputs(11, torch.float64)

    def loss(*leaves):
        return sum(o.square().sum() for o in case.outputs(list(leaves))[: case.smooth])

    got = torch.func.grad(loss, argnums=case.grads)(*inputs)
    leaves = [x.clone().requires_grad_(i in case.grads) for i, x in enumerate(inputs)]
    expected = torch.autograd.grad(loss(*leaves), [leaves[i] for i in case.grads])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.endswith("step_")], ids=lambda c: c.name)
def test_func_vmap(case):
    """But for the steps, which work in place on tensors made outside of vmap."""
    one, two = case.inputs(6, torch.float64, seed=3), case.inputs(6, torch.float64, seed=4)
    stacked = [torch.stack(pair) for pair in zip(one, two, strict=True)]
    got = torch.func.vmap(lambda *x: tuple(case.outputs(list(x))))(*stacked)
    for a, first, second in zip(got, case.outputs(one), case.outputs(two), strict=True):
        torch.testing.assert_close(a, torch.stack([first, second]))


@every_case
def test_autocast_leaves_the_arithmetic_alone(case):
    inputs = case.inputs(33, torch.bfloat16)
    expected = case.outputs(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = case.outputs(inputs)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@every_case
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients(case, mode):
    inputs = [x.requires_grad_(i in case.grads) for i, x in enumerate(case.inputs(33, torch.float32))]
    expected = [x.detach() for x in case.outputs(inputs)]
    with mode():
        got = case.outputs(inputs)
    for a, b in zip(got, expected, strict=True):
        assert not a.requires_grad
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("case", [c for c in WITH_GRADIENTS if c.name != "Dt_psi"], ids=lambda c: c.name)
def test_the_second_derivative_is_refused_with_the_remedy(case):
    """But for Dt_psi, which is linear: its gradient is plain torch."""
    leaves = [x.requires_grad_(i in case.grads) for i, x in enumerate(case.inputs(6, torch.float64))]
    loss = sum(o.square().sum() for o in case.outputs(leaves)[: case.smooth])
    grads = torch.autograd.grad(loss, [leaves[i] for i in case.grads], create_graph=True)
    with pytest.raises(RuntimeError, match="use_backend"):
        sum(g.square().sum() for g in grads).backward()


def test_modules_holding_ops_copy_and_pickle():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.four = torch.nn.ParameterList(torch.randn(7) for _ in range(4))
            self.group = fk.TdpGroup([tuple(self.four)])
            self.norm = fk.td_rms_norm

        def forward(self, times):
            return self.norm(fk.tdp_group(self.group, times)[0], torch.ones(7))

    model, times = Holder(), torch.randn(3)
    with torch.no_grad():
        model(times)  # makes the native handle
        twin = copy.deepcopy(model)
        torch.testing.assert_close(twin(times), model(times))
        assert twin.group.lists[0][0] is twin.four[0]
        twin.four[0].fill_(9.0)
        assert not torch.equal(twin(times), model(times))
        group = pickle.loads(pickle.dumps(model.group))
        torch.testing.assert_close(fk.tdp_group(group, times), list(fk.tdp_group(model.group, times)))
        stats = fk.velocity_stats(torch.randn(2, 4), v_target=torch.randn(2, 4), t=torch.rand(2))
        assert copy.deepcopy(stats).as_dict() == pickle.loads(pickle.dumps(stats)).as_dict() == stats.as_dict()
