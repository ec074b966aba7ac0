"""fmkernels.depthwise against torch's convolution: values, gradients, and where it steps aside."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fmkernels as fk

SHAPES = [(2, 8, 8, 16), (3, 5, 7, 20), (1, 1, 1, 1), (5, 3, 2, 33), (9, 16, 16, 48), (0, 4, 4, 3)]


def plain(x, weight, bias=None):
    kernel = weight.shape[-1]
    return F.conv2d(x.movedim(-1, 1), weight, bias, padding=kernel // 2, groups=len(weight)).movedim(1, -1)


def inputs(shape, kernel, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = shape, (shape[-1], 1, kernel, kernel), (shape[-1],)
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def gradients(function, leaves):
    y = function(*leaves)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, leaves, weights)


def check(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        tolerance = 1e-5 * float(b.detach().abs().max()) if b.numel() else 0
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 9])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch(shape, kernel):
    leaves = inputs(shape, kernel)
    check(gradients(fk.depthwise, leaves), gradients(plain, leaves))
    check(gradients(fk.depthwise, leaves[:2]), gradients(plain, leaves[:2]))


def test_as_exact_as_torch():
    leaves = inputs((16, 32, 32, 16), 7)
    expected = gradients(plain, [v.double() for v in leaves])
    ours, theirs = (
        [float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients(f, leaves), expected, strict=True)]
        for f in (fk.depthwise, plain)
    )
    assert all(a < max(2 * b, 1e-6) for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


def test_our_kernel_serves():
    leaves = inputs((2, 8, 8, 16), 7)
    y = fk.depthwise(*leaves)
    assert [type(f).__name__ for f, _ in y.grad_fn.next_functions] == ["AccumulateGrad"] * 3
    assert "Conv" not in type(y.grad_fn).__name__


def test_grids_that_are_not_dense():
    x, weight, bias = (v.detach() for v in inputs((4, 6, 10, 40), 5))
    for view in (x.transpose(1, 2), x[::2, 1:, :, 3:], x.expand(4, 6, 10, 40)):
        parts = view, weight[: view.shape[-1]], bias[: view.shape[-1]]
        check([fk.depthwise(*parts)], [plain(*parts)])
    leaves = inputs((2, 5, 5, 16), 3)
    for function in (fk.depthwise, plain):
        leaves[0].grad = None
        function(*leaves).transpose(1, 2).flatten(2).sum(1)[:, ::3].sum().backward()  # a gradient that is expanded
        if function is fk.depthwise:
            got = leaves[0].grad
    check([got], [leaves[0].grad])


def test_results_do_not_depend_on_threads():
    leaves, threads = inputs((32, 16, 16, 80), 7), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(gradients(fk.depthwise, leaves))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_torchs(dtype):
    leaves = inputs((2, 4, 4, 8), 3, dtype)
    for a, b in zip(gradients(fk.depthwise, leaves), gradients(plain, leaves), strict=True):
        assert torch.equal(a, b)


def test_autocast_and_transforms():
    x, weight, bias = inputs((2, 4, 4, 8), 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert fk.depthwise(x, weight, bias).dtype == torch.bfloat16
    _, along = torch.func.jvp(lambda w: fk.depthwise(x, w, bias), (weight,), (torch.ones_like(weight),))
    check([along], [plain(x, torch.ones_like(weight))])


def test_a_checkpoint_runs_it_again():
    leaves = inputs((2, 4, 4, 8), 3)
    check(gradients(lambda *a: checkpoint(fk.depthwise, *a, use_reentrant=False), leaves), gradients(plain, leaves))


def test_second_derivatives_are_refused():
    x, weight, bias = inputs((2, 4, 4, 8), 3)
    (grad,) = torch.autograd.grad(fk.depthwise(x, weight, bias).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="use_backend"):
        grad.square().sum().backward()


def test_the_module_has_a_convolutions_keys():
    ours, theirs = fk.DepthwiseConv(8, 3), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 6, 8)
    check([ours(x)], [theirs(x.movedim(-1, 1)).movedim(1, -1)])


@pytest.mark.parametrize("to_x", [True, False])
@pytest.mark.parametrize("to_weight", [True, False])
def test_the_backward_op_equals_the_eager_one(to_x, to_weight):
    x, weight, _ = (v.detach() for v in inputs((2, 5, 7, 20), 5))
    call = torch.randn(2, 5, 7, 20), x, weight, to_x, to_weight
    op = fk.backend.OPS["depthwise_backward"]
    check(op(*call), op.eager(*call))
    result = torch.library.opcheck(op.overload, call, test_utils=("test_schema", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


X, W, B = torch.ones(2, 4, 4, 8), torch.ones(8, 1, 3, 3), torch.ones(8)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize(
    ("error", "argument", "x", "weight", "bias"),
    [
        (TypeError, "x", [1.0], W, B),
        (ValueError, "x", torch.ones(4, 4, 8), W, B),
        (TypeError, "weight", X, None, B),
        (TypeError, "weight", X, W.double(), B),
        (ValueError, "weight", X[..., :7], W, B),
        (ValueError, "weight", X, W.expand(8, 2, 3, 3), B),
        (TypeError, "bias", X, W, 1.0),
        (ValueError, "bias", X, W, B[:7]),
    ],
)
def test_wrong_arguments_are_named(error, argument, x, weight, bias, backend):
    with fk.use_backend(backend), pytest.raises(error, match=rf"^depthwise: {argument} must [^\n]*$"):
        fk.depthwise(x, weight, bias)
