"""tdp and tdp_group: the golden vectors, saturation, the group's references, buffers and handles."""

import gc
import pickle

import pytest
import torch
from support.cases import BACKENDS, assert_close, cpu_only

import fmkernels as fk

MODEL_256 = [1024] * 132 + [512] * 37 + [67584] * 2  # the 171 time-dependent parameters of the 256 px model


def make_params(sizes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(n, generator=generator).to(dtype) for _ in range(4)) for n in sizes]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tag", ["b1_d1024", "b5_d513", "b3_d66x32"])
def test_golden(golden, tag, backend):
    g = {k.removeprefix(f"{tag}."): v for k, v in golden("tdp").items() if k.startswith(f"{tag}.")}
    names = ("param0", "param1", "weight", "bias")
    leaves = [g[n].clone().requires_grad_() for n in names]
    with fk.use_backend(backend):
        out = fk.exported_tdp(*leaves, g["times"])
        grads = torch.autograd.grad(out, leaves, g["grad_out"])
    assert_close(out, g["out"])
    for name, grad in zip(names, grads, strict=True):
        assert_close(grad, g[f"grad_{name}"], atol=1e-5, rtol=1e-4)


def test_exported_tdp_without_the_kernel():
    four, times = make_params([33])[0], torch.randn(4)
    assert_close(fk.exported_tdp(*four, times, custom=False), fk.exported_tdp(*four, times))
    assert_close(fk.exported_tdp(*four, times), fk.tdp(*four, times))


def test_weight_offset():
    p0, p1, w, b = make_params([65])[0]
    times = torch.randn(3)
    assert_close(fk.tdp(p0, p1, w, b, times, weight_offset=1.0), fk.tdp(p0, p1, w + 1, b, times))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_saturation(dtype):
    p0, p1 = torch.randn(11).to(dtype), torch.randn(11).to(dtype)
    one, zero = torch.ones(11, dtype=dtype), torch.zeros(11, dtype=dtype)
    times = torch.tensor([-torch.inf, -1e4, -100.0, 100.0, 1e4, torch.inf])
    out = fk.tdp(p0, p1, one, zero, times)
    torch.testing.assert_close(out[3:], p0.expand(3, -1))  # p1 + (p0 - p1) is p0 but for a rounding
    assert torch.equal(out[:2], p1.expand(2, -1))
    leaves = [x.clone().requires_grad_() for x in (p0, p1, one, zero)]
    grads = torch.autograd.grad(fk.tdp(*leaves, torch.tensor([-1e4, 1e4])).sum(), leaves)
    assert all(torch.isfinite(g).all() for g in grads)


def test_sigmoid_is_good_to_about_an_ulp():
    x = torch.linspace(-80, 80, 200001)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    out = fk.tdp(one, zero, x, zero, torch.ones(1))[0]
    exact = torch.sigmoid(x.double())
    assert ((out.double() - exact).abs() / exact).max() < 2.5e-7


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 4), (2, 3, 4, 5)])
def test_any_shape(shape):
    four, times = [torch.randn(shape) for _ in range(4)], torch.randn(3)
    out = fk.tdp(*four, times)
    assert out.shape == (3, *shape)
    with fk.use_backend("eager"):
        assert_close(out, fk.tdp(*four, times))
    assert fk.tdp(*four, torch.empty(0)).shape == (0, *shape)


def test_out():
    four, times = make_params([1300])[0], torch.randn(5)
    expected = fk.tdp(*four, times)
    for out in (torch.full((5, 1300), torch.nan), torch.full((1300, 5), torch.nan).T):
        assert fk.tdp(*four, times, out=out) is out
        assert torch.equal(out, expected)


# ---- the group ----
def test_group_equals_single_calls_bit_for_bit():
    params, times = make_params(MODEL_256), torch.randn(3)
    outs = fk.tdp_group(params, times)
    assert len(outs) == 171
    for four, out in zip(params, outs, strict=True):
        assert torch.equal(out, fk.tdp(*four, times, weight_offset=1.0))


def test_group_of_many_shapes_and_dtypes():
    shapes = [(5,), (2, 3), (), (1, 1, 7), (0,)]
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float32, torch.float32]
    params = [tuple(torch.randn(s).to(d) for _ in range(4)) for s, d in zip(shapes, dtypes, strict=True)]
    times = torch.randn(4)
    for out, four, shape in zip(fk.tdp_group(params, times), params, shapes, strict=True):
        assert out.shape == (4, *shape)
        assert_close(out, fk.tdp(*(x.float() for x in four), times, weight_offset=1.0))


@cpu_only
def test_group_is_one_native_call():
    group = fk.TdpGroup(make_params(MODEL_256))
    group.pin()  # made once, before the loop
    buffer, times = group.buffer(1), torch.randn(1)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fk.tdp_group(group, times, out=buffer)
    assert [event.name for event in profile.events()] == ["fmkernels::tdp_pinned"]


def test_buffer_is_reused_and_fresh_is_fresh():
    group, times = fk.TdpGroup(make_params([17, 33])), torch.randn(2)
    buffer = group.buffer(2)
    assert group.buffer(2) is buffer
    first = fk.tdp_group(group, times, out=buffer)
    assert first is buffer
    address = first[0].data_ptr()
    kept = [x.clone() for x in first]
    second = fk.tdp_group(group, times + 1, out=group.buffer(2))
    assert second[0].data_ptr() == address
    assert not torch.equal(second[0], kept[0])
    fresh, again = fk.tdp_group(group, times), fk.tdp_group(group, times + 1)
    assert fresh[0].data_ptr() != again[0].data_ptr() != address
    assert torch.equal(fresh[1], kept[1])


def test_buffer_made_in_inference_mode_serves_outside():
    group, times = fk.TdpGroup(make_params([17])), torch.randn(2)
    with torch.inference_mode():
        expected = fk.tdp_group(group, times, out=group.buffer(2))[0].clone()
    assert torch.equal(fk.tdp_group(group, times, out=group.buffer(2))[0], expected)


def test_group_follows_its_parameters():
    module = torch.nn.ParameterList(torch.randn(9) for _ in range(4))
    group, times = fk.TdpGroup([tuple(module)]), torch.randn(2)

    def check():
        with torch.no_grad():
            got = fk.tdp_group(group, times)[0]
            assert_close(got, fk.tdp(*module, times, weight_offset=1.0))
            assert got.dtype == module[0].dtype

    check()
    with torch.no_grad():
        module[0].add_(1.0)  # trained in place
    check()
    module[1].data = torch.randn(9)  # storage replaced
    check()
    module.load_state_dict({str(i): torch.randn(9) for i in range(4)})
    check()
    module.to(torch.float64)  # every storage moved
    check()
    module.to(torch.bfloat16)
    check()
    module[1].data = module[1].data.float()  # one parameter alone changes its dtype
    stale = group.buffer(2)
    with torch.no_grad():
        with pytest.raises(ValueError, match="new buffer"):
            fk.tdp_group(group, times, out=stale)
        assert fk.tdp_group(group, times)[0].dtype == torch.float32
        assert fk.tdp_group(group, times, out=group.buffer(2))[0].dtype == torch.float32
    module[1].data = module[1].data.bfloat16()
    check()
    module[2].data = torch.randn(18).bfloat16()[::2]  # not dense any more
    check()
    module[3].data = torch.randn(8).bfloat16()  # broken: another size
    with pytest.raises(ValueError, match="bias"):
        check()


def test_group_says_when_a_parameter_changed_its_size():
    four = [torch.randn(6) for _ in range(4)]
    group = fk.TdpGroup([four])
    for x in four:
        x.data = torch.randn(5)
    with pytest.raises(ValueError, match=r"params\[0\].*new one"):
        fk.tdp_group(group, torch.zeros(1))
    with pytest.raises(ValueError, match="steps"):
        group.buffer(-1)


@cpu_only  # its memory is pickle's own, which test_cuda.py's checks do not know
def test_a_pickled_buffer_is_still_one():
    group = fk.TdpGroup(make_params([5, 7]))
    buffer = pickle.loads(pickle.dumps(group.buffer(2)))
    out = fk.tdp_group(group, torch.zeros(2), out=buffer)
    assert torch.equal(out[1], fk.tdp_group(group, torch.zeros(2))[1])


def test_group_gradients_keep_each_parameters_precision():
    p0, p1, w, b = (torch.randn(100, requires_grad=True) for _ in range(4))
    half = [x.detach().bfloat16().requires_grad_() for x in (p0, p1)]
    seed, times = torch.randn(3, 100).bfloat16(), torch.randn(3)
    (together,) = torch.autograd.grad(fk.tdp_group([(*half, w, b)], times)[0], w, seed)
    (apart,) = torch.autograd.grad(fk.tdp(*half, w, b, times, weight_offset=1.0), w, seed)
    assert_close(together, apart)


def test_group_handles_are_freed():
    params = make_params([5])
    group = fk.TdpGroup(params)
    with torch.no_grad():
        fk.tdp_group(group, torch.zeros(1))
    handle = group.pin()
    del group
    gc.collect()
    with pytest.raises(RuntimeError, match="unpinned"):
        torch.ops.fmkernels.tdp_pinned(handle, torch.zeros(1), 1.0, torch.empty(1, 5))


def test_group_gradients_equal_single_ones():
    params = [tuple(x.requires_grad_() for x in four) for four in make_params([31, 1025])]
    times = torch.randn(3).requires_grad_()
    flat = [*(x for four in params for x in four), times]
    together = torch.autograd.grad(sum(o.square().sum() for o in fk.tdp_group(params, times)), flat)
    apart = sum(fk.tdp(*four, times, weight_offset=1.0).square().sum() for four in params)
    for a, b in zip(together, torch.autograd.grad(apart, flat), strict=True):
        assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_group_gradients_under_a_dispatch_mode():
    """Under a dispatch mode, the registered op is used, with the same gradients."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    params = [tuple(torch.randn(n, requires_grad=True) for _ in range(4)) for n in (5, 7)]
    flat, times = [x for four in params for x in four], torch.randn(3)

    def gradients():
        return torch.autograd.grad(sum(o.square().sum() for o in fk.tdp_group(params, times)), flat)

    expected = gradients()
    with Mode():
        got = gradients()
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b)
