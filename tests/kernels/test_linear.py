"""fmkernels.linear against torch's own: values, gradients of both orders, and where it steps aside."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import fmkernels as fk

SHAPES = [(3,), (5, 3), (2, 4, 3), (2, 2, 3, 3), (0, 3), (2, 0, 3)]
X, W = torch.ones(5, 3), torch.ones(4, 3)
LARGE = (512, 256, 256)  # rows, in, out: 2^25 multiplications


def inputs(shape, out, *, bias=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x, weight, b = (
        torch.randn(s, generator=generator, dtype=dtype) for s in (shape, (out, shape[-1]), (out,) if bias else (0,))
    )
    return [v.requires_grad_() for v in (x, weight)] + [b.requires_grad_() if bias else None]


def gradients(function, leaves):
    y = function(*leaves)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype)
    return y, torch.autograd.grad(y, [v for v in leaves if v is not None], weights)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch(shape, bias):
    leaves = inputs(shape, 4, bias=bias)
    torch.testing.assert_close(gradients(fk.linear, leaves), gradients(F.linear, leaves), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 4, 32), LARGE[:2], (2, 256, 256)])
def test_every_dtype_and_large_products(shape, dtype):
    leaves = inputs(shape, LARGE[2], dtype=dtype)
    tolerance = {torch.float32: 1e-4}.get(dtype, 5e-2)
    got, expected = gradients(fk.linear, leaves), gradients(F.linear, leaves)
    for a, b in zip((got[0], *got[1]), (expected[0], *expected[1]), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.detach().abs().max()))


def test_operands_that_are_not_dense():
    x, weight, bias = inputs((64, 256, 512), 1024, dtype=torch.float32)
    views = x[..., ::2], weight[:, :256], bias
    with torch.no_grad():
        torch.testing.assert_close(fk.linear(*views)[1], F.linear(views[0][1], *views[1:]), rtol=1e-4, atol=1e-3)


def side_by_side(function, cut):
    """x as a list of parts."""
    return lambda x, weight, bias: function(list(x.split(cut, dim=-1)), weight, bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (2, 2, 3, 3), (0, 3)])
def test_a_list_is_taken_as_its_concatenation(shape, bias):
    leaves = inputs(shape, 4, bias=bias)
    expected = gradients(F.linear, leaves)
    for cut in ([1, 2], [1, 1, 1], [3]):
        torch.testing.assert_close(gradients(side_by_side(fk.linear, cut), leaves), expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(side_by_side(fk.linear, [2, 1])(*leaves), expected[0].detach())
    with fk.use_backend("eager"):
        torch.testing.assert_close(gradients(side_by_side(fk.linear, [2, 1]), leaves), expected)


@pytest.mark.parametrize("grad", [True, False])
def test_lists_that_do_not_fit(grad):
    weight = torch.randn(4, 3)
    for parts, message in (
        ([torch.randn(5, 1), torch.randn(5, 1)], "weight must have shape"),
        ([torch.randn(2, 3, 1), torch.randn(3, 2, 2)], "one shape except for their widths"),
        ([], "at least one part"),
    ):
        with pytest.raises(ValueError, match=message), torch.set_grad_enabled(grad):
            fk.linear(parts, weight)


@pytest.mark.parametrize("grad", [True, False])
def test_lists_of_vectors_and_of_two_dtypes(grad):
    weight = torch.randn(4, 3)
    with torch.set_grad_enabled(grad):
        y = fk.linear([torch.ones(1), torch.ones(2)], weight)
        torch.testing.assert_close(y, weight.sum(1))
        y = fk.linear([torch.ones(5, 1).bfloat16(), torch.ones(5, 2)], weight.bfloat16())
    assert y.dtype == torch.bfloat16


def test_what_is_not_needed_is_not_kept():
    """A frozen weight's input may be changed in place, and the weight of an input that needs no gradient."""
    x, weight, bias = inputs((2, 4, 3), 4)
    hidden = x * 1
    y = fk.linear(hidden, weight.detach(), bias)
    hidden.mul_(2)
    (to_x,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(to_x, weight.detach().sum(0).expand(2, 4, 3))
    y = fk.linear(x.detach(), weight, bias)
    with torch.no_grad():
        weight.add_(1)
    torch.autograd.grad(y.sum(), weight)


def test_complex_numbers_and_no_columns():
    x, weight, _ = inputs((2, 4, 3), 4, dtype=torch.complex128)
    for a, b in zip(gradients(fk.linear, (x, weight, None))[1], gradients(F.linear, (x, weight, None))[1], strict=True):
        torch.testing.assert_close(a, b)
    leaves = inputs((2, 4, 0), 4)
    torch.testing.assert_close(gradients(fk.linear, leaves), gradients(F.linear, leaves))


def test_subclasses_see_their_own_linear():
    class Seen(torch.Tensor):
        calls = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    fk.linear(torch.randn(2, 3), torch.randn(4, 3).as_subclass(Seen))
    assert F.linear in Seen.calls


def test_one_node_where_torch_has_four():
    x, weight, bias = inputs((2, 4, 3), 4)
    y = fk.linear(x, weight, bias)
    assert [type(f).__name__ for f, _ in y.grad_fn.next_functions] == ["AccumulateGrad"] * 3


def test_second_derivatives():
    assert torch.autograd.gradgradcheck(fk.linear, inputs((2, 4, 3), 4))
    assert torch.autograd.gradgradcheck(side_by_side(fk.linear, [1, 2]), inputs((2, 4, 3), 4))


def test_only_what_is_asked_for():
    x, weight, bias = inputs((2, 4, 3), 4)
    y = fk.linear(x.detach(), weight, bias.detach())
    (grad,) = torch.autograd.grad(y.sum(), weight)
    torch.testing.assert_close(grad, x.detach().sum((0, 1)).expand(4, 3))


def test_in_autocast_it_is_torchs():
    x, weight, bias = inputs((2, 32, 32), 32, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = gradients(fk.linear, (x, weight, bias)), gradients(F.linear, (x, weight, bias))
    assert got[0].dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        y = side_by_side(fk.linear, [8, 24])(x, weight, bias)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected[0], rtol=2e-2, atol=2e-1)


def test_transforms_and_counters_see_plain_pytorch():
    x, weight, bias = inputs(LARGE[:2], LARGE[2], dtype=torch.float32)
    _, along = torch.func.jvp(lambda w: fk.linear(x, w, bias), (weight,), (torch.ones_like(weight),))
    torch.testing.assert_close(along[:, 0], x.sum(1), rtol=1e-4, atol=1e-3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        fk.linear(x, weight, bias)
    assert counter.get_total_flops() == 2 * 512 * 256 * 256


def test_the_module_is_a_linear():
    ours, theirs = fk.Linear(3, 4), torch.nn.Linear(3, 4)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match="weight must have shape"):
        ours(torch.randn(2, 5))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize(
    ("error", "argument", "x", "weight", "bias"),
    [
        (TypeError, "x", 5, W, None),
        (TypeError, "x[1]", [X, None], torch.ones(4, 6), None),
        (TypeError, "weight", X, [W], None),
        (TypeError, "weight", X, W.double(), None),
        (ValueError, "weight", X, W.t(), None),
        (ValueError, "weight", [X, X], W, None),
        (TypeError, "bias", X, W, 1.0),
        (ValueError, "bias", X, W, torch.ones(3)),
    ],
)
def test_wrong_arguments_are_named(error, argument, x, weight, bias, backend, grad):
    message = rf"^linear: {re.escape(argument)} must [^\n]*$"
    with fk.use_backend(backend), torch.set_grad_enabled(grad), pytest.raises(error, match=message):
        fk.linear(x, weight, bias)
