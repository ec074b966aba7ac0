"""What holds for every op: accuracy against float64, one rounding, determinism, layouts, the eager twin."""

import threading

import pytest
import torch
from support import cases
from support.cases import CASES, DTYPE_ROWS, LARGE, SIZES, TOLERANCE, WITH_GRADIENTS, compiled, cpu_only

import fmkernels as fk
from fmkernels import backend

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
every_gradient = pytest.mark.parametrize("case", WITH_GRADIENTS, ids=lambda c: c.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPE_ROWS, ids=lambda d: str(d).removeprefix("torch."))


def in_double(case, inputs, run):
    with fk.use_backend("eager"):
        return getattr(case, run)([x.double() for x in inputs])


def assert_near(got, expected, dtype, context):
    absolute, relative = TOLERANCE[dtype]
    assert len(got) == len(expected)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        torch.testing.assert_close(
            a.double(),
            b.double(),
            atol=absolute,
            rtol=relative,
            equal_nan=True,
            msg=lambda m, i=i: f"{context}[{i}]: {m}",
        )


def assert_same(got, expected, context):
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0)), f"{context}[{i}] differs"


@every_case
@every_dtype
@pytest.mark.parametrize("n", SIZES)
def test_forward_matches_float64(case, dtype, n):
    inputs = case.inputs(n, dtype)
    assert_near(case.outputs(inputs), in_double(case, inputs, "outputs"), dtype, case.name)


@every_gradient
@every_dtype
@pytest.mark.parametrize("n", SIZES)
def test_gradients_match_float64(case, dtype, n):
    inputs = case.inputs(n, dtype)
    absolute, relative = TOLERANCE[dtype]
    got, expected = case.gradients(inputs), in_double(case, inputs, "gradients")
    for i, a, b in zip(case.grads, got, expected, strict=True):
        # A gradient that sums many terms is as accurate as the largest of them.
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        torch.testing.assert_close(
            a.double(),
            b,
            atol=10 * absolute * scale,
            rtol=10 * relative,
            msg=lambda m, i=i: f"gradient to input {i}: {m}",
        )


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_is_the_float32_result_rounded_once(case, dtype):
    inputs = case.inputs(1031, dtype)
    halves, floats = case.outputs(inputs), case.outputs([x.float() for x in inputs])
    assert_same(halves, [f.to(h.dtype) for h, f in zip(halves, floats, strict=True)], case.name)


@cpu_only  # test_triton.py and test_cuda.py test this more thoroughly for the other kernels
@every_case
def test_same_bits_for_any_number_of_threads_and_every_run(case):
    inputs = case.inputs(70001, torch.float32)
    threads = torch.get_num_threads()
    runs = []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            runs.append(case.outputs(inputs) + (case.gradients(inputs) if case.grads else []))
    finally:
        torch.set_num_threads(threads)
    assert_same(runs[1], runs[0], "two threads against one")
    assert_same(runs[2], runs[1], "second run against first")


@every_case
def test_layouts_do_not_matter(case):
    """Transposed, strided and expanded inputs give what their contiguous copies give, gradients too."""
    dense = case.inputs(33, torch.float32)
    strided = []
    for x in dense:
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), torch.nan)
        wide[..., 1::2] = x
        strided.append(wide[..., 1::2])
    transposed = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in dense]
    for layout in (strided, transposed):
        assert_same(case.outputs(layout), case.outputs(dense), case.name)
        if case.grads:
            assert_same(case.gradients(layout), case.gradients(dense), case.name)
    expanded = [x[..., :1].expand_as(x) for x in dense]
    assert_same(case.outputs(expanded), case.outputs([x.contiguous() for x in expanded]), case.name)


@every_case
@pytest.mark.parametrize("n", [0, 1025])
def test_empty_batches(case, n, monkeypatch):
    monkeypatch.setattr(cases, "B", 0)
    monkeypatch.setattr(cases, "_T", torch.empty(0))
    inputs = case.inputs(n, torch.float32)
    assert_near(case.outputs(inputs), in_double(case, inputs, "outputs"), torch.float32, case.name)
    if case.grads:
        assert_near(case.gradients(inputs), in_double(case, inputs, "gradients"), torch.float32, case.name)


@every_case
@pytest.mark.parametrize("n", LARGE)
def test_huge_rows(case, n):
    inputs = case.inputs(n, torch.float32)
    got, expected = case.outputs(inputs), in_double(case, inputs, "outputs")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=2e-6, rtol=2e-5, equal_nan=True)


@every_case
def test_nan_and_infinity_show_where_the_eager_ones_do(case):
    for bad in (torch.nan, torch.inf, -torch.inf):
        for poisoned in range(len(case.shapes(37))):
            inputs = case.inputs(37, torch.float32)
            inputs[poisoned].view(-1)[-1] = bad
            got = case.outputs(inputs)
            with fk.use_backend("eager"):
                expected = case.outputs(inputs)
            for a, b in zip(got, expected, strict=True):
                assert torch.equal(torch.isfinite(a), torch.isfinite(b)), f"{case.name}: input {poisoned} with {bad}"


@every_case
def test_mixed_dtypes(case):
    """bf16 activations with fp32 parameters, and every other mixture, are accurate to the coarser of the two."""
    inputs = [
        x.to(d) for x, d in zip(case.inputs(65, torch.float32), [torch.bfloat16, torch.float32] * 5, strict=False)
    ]
    if case.name == "td_layer_norm_list":
        inputs[1] = inputs[1].to(inputs[0].dtype)
    assert_near(case.outputs(inputs), in_double(case, inputs, "outputs"), torch.bfloat16, case.name)
    if case.grads:
        for i, a, b in zip(case.grads, case.gradients(inputs), in_double(case, inputs, "gradients"), strict=True):
            assert a.dtype == inputs[i].dtype
            scale = max(1.0, b.abs().max().item())
            # A gradient is as accurate as its own dtype allows, given outputs' gradients in theirs.
            coarse = torch.bfloat16 if a.dtype == torch.bfloat16 or "residual" in case.name else torch.float32
            absolute, relative = TOLERANCE[coarse]
            torch.testing.assert_close(a.double(), b, atol=10 * absolute * scale, rtol=10 * relative)


@every_gradient
def test_written_out_gradients_equal_autograds(case, monkeypatch):
    """The eager ``*_backward`` formulas, put in place of the native ones, in float64."""
    inputs = case.inputs(19, torch.float64)
    expected = in_double(case, inputs, "gradients")
    for name, op in backend.OPS.items():
        if name.endswith("_backward"):
            monkeypatch.setattr(op, "run", op.eager)
    for a, b in zip(case.gradients(inputs), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


@compiled
@every_case
def test_calls_from_several_python_threads(case):
    inputs = case.inputs(5003, torch.float32)
    expected = case.outputs(inputs)
    results: list = [None] * 6

    def work(i):
        results[i] = case.outputs(inputs)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(results))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i, result in enumerate(results):
        assert_same(result, expected, f"thread {i}")
