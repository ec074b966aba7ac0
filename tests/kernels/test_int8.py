"""fmkernels.linear_int8 and what makes its arguments: exact integers, one epilogue, the same bits everywhere."""

from pathlib import Path

import pytest
import torch
from support.cases import compiled, cpu_only

import fmkernels as fk
from fmkernels import backend, eager

pytestmark = pytest.mark.kernels("cpu", "triton")  # no CUDA kernels: Triton's run on NVIDIA GPUs
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# rows, in, out: zero, one, odd, prime, around the tiles of the kernels, and a row longer than a block of it.
SHAPES = [
    *[(0, 8, 8), (3, 0, 5), (2, 7, 0), (1, 1, 1), (1, 3, 33), (5, 4, 32), (7, 31, 65), (13, 64, 31), (29, 70, 130)],
    *(pytest.param(s, marks=compiled) for s in [(14, 70, 64), (15, 127, 97), (2, 4101, 34), (61, 513, 257)]),
]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d).removeprefix("torch."))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int8(*shape, seed=0):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def by_hand(x, x_scale, weight, scale, bias, dtype):
    """The formula with int64 sums."""
    sums = (x.long() @ weight.long().t()).float()
    y = sums * (x_scale[:, None] * scale)
    return (y if bias is None else y + bias.float()).to(dtype)


def arguments(rows, width, out, dtype=torch.float32):
    x, weight = randn(rows, width, dtype=dtype), int8(out, width, seed=1)
    return x, weight, randn(out, seed=2).abs() / 100, randn(out, seed=3, dtype=dtype)


@every_float
@every_shape
def test_product_equals_the_formula_bit_for_bit(shape, dtype):
    x, weight, scale, bias = arguments(*shape, dtype)
    rows, x_scale = fk.quantize_rows(x)
    packed = fk.pack_int8(weight)
    for out_dtype in FLOATS:
        for b in (bias, bias.float(), None):
            expected = by_hand(rows, x_scale, weight, scale, b, out_dtype)
            same([fk.linear_int8(x, weight, scale, b, out_dtype=out_dtype)], [expected])
            same([fk.linear_int8(x, None, scale, b, packed=packed, out_dtype=out_dtype)], [expected])
            quantized = {"x_scale": x_scale, "packed": packed, "out_dtype": out_dtype}
            same([fk.linear_int8(rows, None, scale, b, **quantized)], [expected])


@every_shape
def test_extreme_integers(shape):
    """-128 in both, which quantize_rows never makes, and sums of one sign."""
    rows, width, out = shape
    for x, weight in ((-128, -128), (127, -128), (-128, 127), (127, 127)):
        x, weight = (torch.full(s, v, dtype=torch.int8) for s, v in (((rows, width), x), ((out, width), weight)))
        args = torch.ones(rows), weight, torch.ones(out), None, torch.float32
        same([fk.linear_int8(x, args[1], args[2], x_scale=args[0])], [by_hand(x, *args)])


@cpu_only
@pytest.mark.parametrize("kernel", ["plain", "avx2", "avx_vnni", "avx512_vnni"])
def test_every_instruction_set_gives_the_same_bits(kernel, monkeypatch):
    monkeypatch.setenv("FMKERNELS_INT8_KERNEL", kernel)
    if fk.int8_kernel() != kernel:
        pytest.skip(f"this CPU has no {kernel}")
    for shape in ((0, 8, 8), (3, 0, 5), (5, 4, 32), (13, 64, 31), (15, 127, 97), (3, 4101, 34), (61, 513, 257)):
        x, weight, scale, bias = arguments(*shape)
        rows, x_scale = fk.quantize_rows(x)
        same([fk.linear_int8(x, weight, scale, bias)], [by_hand(rows, x_scale, weight, scale, bias, torch.float32)])


@cpu_only
def test_the_best_supported_kernel_is_chosen(monkeypatch):
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    has = {"avx512_vnni": "avx512_vnni", "avx_vnni": "avx_vnni", "avx2": "avx2"}
    assert fk.int8_kernel() == next((name for name, flag in has.items() if flag in flags), "plain")
    monkeypatch.setenv("FMKERNELS_INT8_KERNEL", "plain")
    assert fk.int8_kernel() == "plain"
    with fk.use_backend("eager"):
        assert fk.int8_kernel() == "eager"


@cpu_only
def test_sums_that_fill_int32():
    x, weight = torch.full((2, 131071), -128, dtype=torch.int8), torch.full((3, 131071), -128, dtype=torch.int8)
    y = fk.linear_int8(x, weight, torch.ones(3), x_scale=torch.ones(2))
    assert torch.equal(y, torch.full((2, 3), 131071.0 * 16384))


@every_float
@pytest.mark.parametrize("width", [0, 1, 2, 15, 16, 17, 63, 64, 65, 1023, 4101])
def test_rows_equal_the_eager_ones(width, dtype):
    for x in (randn(5, 3, width, dtype=dtype), 1e4 * randn(1, width, dtype=dtype), randn(width, dtype=dtype)):
        same(fk.quantize_rows(x), eager.quantize_rows(x))


def test_rows_are_rounded_half_to_even_and_reach_127():
    x = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5, 126.5], [-254.0, 1.0, 3.0, -1.0, -5.0, 253.0]])
    rows, scale = fk.quantize_rows(x)
    assert rows.tolist() == [[127, 0, 2, 0, -2, 126], [-127, 0, 2, 0, -2, 126]]
    assert scale.tolist() == [1.0, 2.0]


@every_float
def test_largest_and_smallest_magnitudes(dtype):
    info = torch.finfo(dtype)
    x = torch.tensor([[info.max, -info.max, 0, 1], [info.tiny, -info.tiny, 0, 0], [0, -0.0, 0, 0]], dtype=dtype)
    rows, scale = fk.quantize_rows(x)
    assert rows[0].tolist() == [127, -127, 0, 0]
    assert rows[2].tolist() == [0] * 4
    assert torch.isfinite(scale).all()
    same((rows, scale), eager.quantize_rows(x))


@every_float
def test_a_row_of_zeros_gives_the_bias_exactly(dtype):
    x, weight, scale, bias = arguments(5, 67, 33, dtype)
    x[2] = 0
    assert torch.equal(fk.linear_int8(x, weight, scale)[2], torch.zeros(33, dtype=dtype))
    assert torch.equal(fk.linear_int8(x, weight, scale, bias)[2], bias)


@every_float
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_nan_and_the_others_stay(bad, dtype):
    x, weight, scale, bias = arguments(17, 67, 33, dtype)
    expected = fk.linear_int8(x, weight, scale, bias)
    for column in (0, 31, 66):
        broken = x.clone()
        broken[4, column] = bad
        rows, x_scale = fk.quantize_rows(broken)
        assert x_scale.isnan().nonzero().tolist() == [[4]]
        assert not rows[4].any()
        y = fk.linear_int8(broken, weight, scale, bias)
        assert y[4].isnan().all()
        others = [i for i in range(17) if i != 4]
        assert torch.equal(y[others], expected[others])


def test_rows_without_elements_keep_their_scale():
    y = fk.linear_int8(int8(2, 0), int8(3, 0), torch.ones(3), torch.ones(3), x_scale=torch.tensor([1.0, torch.nan]))
    same([y], [torch.tensor([[1.0] * 3, [torch.nan] * 3])])


@every_shape
def test_packing_equals_the_eager_layout_and_is_undone(shape):
    weight = int8(shape[2], shape[1])
    packed = fk.pack_int8(weight)
    same([packed], [eager.pack_int8(weight)])
    assert torch.equal(fk.unpack_int8(packed, *weight.shape), weight)


def test_layouts_do_not_matter():
    x, weight, scale, bias = arguments(12, 66, 34)
    expected = fk.linear_int8(x, weight, scale, bias)
    apart = torch.full((12, 133), torch.nan)
    apart[:, 1::2] = x
    for view in (apart[:, 1::2], x.t().contiguous().t()):
        same([fk.linear_int8(view, weight, scale, bias)], [expected])
    same([fk.linear_int8(x, weight.t().contiguous().t(), scale.repeat(2, 1).t()[:, 0], bias)], [expected])
    same([fk.linear_int8(x.view(3, 2, 2, 66), weight, scale, bias)], [expected.view(3, 2, 2, 34)])
    rows, x_scale = fk.quantize_rows(x)
    spread = x_scale[:, None].expand(12, 2).contiguous()[:, 0]
    same([fk.linear_int8(rows.t().contiguous().t(), weight, scale, bias, x_scale=spread)], [expected])


@cpu_only
def test_same_bits_for_any_number_of_threads():
    x, weight, scale, bias = arguments(301, 1031, 519)
    norm_scale, threads, runs = randn(1031, seed=5), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            runs.append([fk.linear_int8(x, weight, scale, bias), *fk.td_rms_norm_int8(x, norm_scale, residual=x)])
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        same(run, runs[0])


def test_accuracy_is_that_of_eight_bits():
    x, weight = randn(64, 1024), randn(256, 1024, seed=1)
    expected = x.double() @ weight.double().t()
    quantized, scale = fk.quantize_weight(weight)
    error = fk.linear_int8(x, quantized, scale).double() - expected
    assert error.square().mean().sqrt() < 0.012 * expected.square().mean().sqrt()


NORMS = {
    "rms": (lambda f, x, p, r: f(x, p[0], residual=r), fk.td_rms_norm, fk.td_rms_norm_int8),
    "rms_offset": (lambda f, x, p, r: f(x, p[0], p[1], residual=r), fk.td_rms_norm, fk.td_rms_norm_int8),
    "layer": (lambda f, x, p, r: f(x, p[0], p[1], residual=r), fk.td_layer_norm, fk.td_layer_norm_int8),
}


@every_float
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [1, 7, 31, 1024, 1025, 2053])
def test_norm_quantizes_its_unrounded_result(norm, width, dtype):
    call, plain, fused = NORMS[norm]
    x, residual = randn(3, 5, width, dtype=dtype), randn(3, 5, width, dtype=dtype, seed=1)
    for parameters in (randn(2, width, seed=2), randn(2, 3, width, seed=3)):
        for r in (None, residual, residual.float()):
            y = call(plain, x.float(), parameters, None if r is None else r.float())
            got = call(fused, x, parameters, r)
            if r is not None:
                same(got[2:], [call(plain, x, parameters, r)[1]])
                y = y[0]
            same(got[:2], fk.quantize_rows(y))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_norm_of_rows_that_are_zero_or_not_finite(bad):
    x, weight, scale, _ = arguments(6, 65, 33)
    x[1], x[3, 64] = 0, bad
    rows, x_scale = fk.td_rms_norm_int8(x, torch.ones(65))
    y = fk.linear_int8(rows, weight, scale, x_scale=x_scale)
    assert torch.equal(y[1], torch.zeros(33))
    assert y[3].isnan().all()
    assert torch.isfinite(y[[0, 2, 4, 5]]).all()


def test_norm_of_a_list():
    parts = [randn(2, 3, n, seed=n) for n in (7, 1030, 64)]
    weight, bias = randn(2, 1101, seed=1), randn(2, 1101, seed=2)
    same(fk.td_layer_norm_int8(parts, weight, bias), fk.quantize_rows(fk.td_layer_norm(parts, weight, bias)))


def test_gradients_are_refused():
    x, weight, scale, bias = arguments(3, 8, 5)
    with torch.enable_grad():
        for name in ("x", "scale", "bias"):
            tensors = {"x": x, "scale": scale, "bias": bias}
            tensors[name] = tensors[name].clone().requires_grad_()
            with pytest.raises(ValueError, match=rf"^linear_int8: {name} must not require gradients[^\n]*$"):
                fk.linear_int8(tensors["x"], weight, tensors["scale"], tensors["bias"])
        x.requires_grad_()
        for call in (lambda: fk.quantize_rows(x), lambda: fk.td_rms_norm_int8(x, torch.ones(8))):
            with pytest.raises(ValueError, match="x must not require gradients"):
                call()
        weighted = torch.ones(8, requires_grad=True)
        with pytest.raises(ValueError, match="td_rms_norm_int8: scale must not require gradients"):
            fk.td_rms_norm_int8(x.detach(), weighted)
        with pytest.raises(ValueError, match="td_layer_norm_int8: bias must not require gradients"):
            fk.td_layer_norm_int8(x.detach(), torch.ones(8), weighted)
        with torch.no_grad():
            assert not fk.linear_int8(x, weight, scale, bias).requires_grad


def calls():
    x, weight, scale, bias = arguments(5, 70, 41)
    packed = weight if backend.current() == "triton" else fk.pack_int8(weight)  # the layout of the CPU kernels
    rows, x_scale = fk.quantize_rows(x)
    return [
        ("quantize_rows", (x,)),
        ("pack_int8", (weight,)),
        ("linear_int8", (x, None, weight, scale, bias, torch.bfloat16)),
        ("linear_int8", (rows, x_scale, packed, scale, None, torch.float32)),
        ("td_norm_int8", ([x], torch.ones(70), None, x, 1e-8, False)),
        ("td_norm_int8", ([x, x], torch.ones(140), torch.ones(140), None, 1e-8, True)),
    ]


@pytest.mark.parametrize("i", range(6))
def test_ops_equal_the_eager_ones_and_pass_opcheck(i):
    name, args = calls()[i]
    op = backend.OPS[name]
    got, expected = op(*args), op.eager(*args)
    if name != "td_norm_int8":  # whose sums have another order
        same([got] if isinstance(got, torch.Tensor) else got, [expected] if isinstance(got, torch.Tensor) else expected)
    torch.library.opcheck(op.overload, args, test_utils=("test_schema", "test_faketensor"))


@cpu_only
def test_compiles_into_one_graph():
    x, weight, scale, bias = arguments(5, 70, 41)
    packed = fk.pack_int8(weight)

    def block(x):
        rows, x_scale = fk.td_rms_norm_int8(x, torch.ones(70))
        return fk.linear_int8(rows, None, scale, bias, x_scale=x_scale, packed=packed)

    torch._dynamo.reset()
    same([torch.compile(block, fullgraph=True, backend="aot_eager")(x)], [block(x)])


X, W, S, B = randn(2, 8), int8(5, 8), torch.ones(5), torch.ones(5)


@pytest.mark.parametrize("chosen", ["auto", "eager"])
@pytest.mark.parametrize(
    ("error", "argument", "changed"),
    [
        (TypeError, "x", {"x": [1.0]}),
        (TypeError, "x", {"x": X.double()}),
        (TypeError, "x", {"x": X.long()}),
        (ValueError, "x", {"x": X[0, 0]}),
        (ValueError, "x", {"x": torch.zeros(1, 131072), "weight": torch.zeros(5, 131072, dtype=torch.int8)}),
        (ValueError, "x_scale", {"x": int8(2, 8)}),
        (ValueError, "x_scale", {"x_scale": torch.ones(2)}),
        (ValueError, "x_scale", {"x": int8(2, 8), "x_scale": torch.ones(3)}),
        (TypeError, "x_scale", {"x": int8(2, 8), "x_scale": torch.ones(2).double()}),
        (TypeError, "weight", {"weight": W.float()}),
        (TypeError, "weight", {"weight": None}),
        (ValueError, "weight", {"weight": W[:, :7]}),
        (ValueError, "weight", {"weight": W[0]}),
        (ValueError, "weight", {"weight": W.to("meta")}),
        (ValueError, "packed", {"packed": fk.pack_int8(int8(33, 8))}),
        (ValueError, "packed", {"packed": fk.pack_int8(int8(5, 12))}),
        (TypeError, "scale", {"scale": S.double()}),
        (TypeError, "scale", {"scale": 1.0}),
        (ValueError, "scale", {"scale": S[:4]}),
        (ValueError, "scale", {"scale": S[:, None]}),
        (TypeError, "bias", {"bias": B.double()}),
        (ValueError, "bias", {"bias": B[:4]}),
        (ValueError, "bias", {"bias": B.to("meta")}),
        (TypeError, "out_dtype", {"out_dtype": torch.float64}),
        (TypeError, "out_dtype", {"out_dtype": torch.int8}),
    ],
)
def test_wrong_arguments_are_named(error, argument, changed, chosen):
    arguments = {"x": X, "weight": W, "scale": S, "bias": B} | changed
    with fk.use_backend(chosen), pytest.raises(error, match=rf"^linear_int8: {argument} must [^\n]*$"):
        fk.linear_int8(**arguments)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "quantize_rows: x", lambda: fk.quantize_rows(X.double())),
        (ValueError, "quantize_rows: x", lambda: fk.quantize_rows(X[0, 0])),
        (ValueError, "quantize_weight: weight", lambda: fk.quantize_weight(X[0])),
        (TypeError, "pack_int8: weight", lambda: fk.pack_int8(X)),
        (ValueError, "pack_int8: weight", lambda: fk.pack_int8(W[0])),
        (ValueError, "unpack_int8: packed", lambda: fk.unpack_int8(fk.pack_int8(W), 33, 8)),
        (TypeError, "td_rms_norm_int8: x", lambda: fk.td_rms_norm_int8(X.double(), torch.ones(8))),
        (ValueError, "td_rms_norm_int8: scale", lambda: fk.td_rms_norm_int8(X, torch.ones(7))),
        (ValueError, "td_layer_norm_int8: x", lambda: fk.td_layer_norm_int8([], B, B)),
    ],
)
def test_wrong_arguments_of_the_others_are_named(error, message, call):
    with pytest.raises(error, match=rf"^{message} must [^\n]*$"):
        call()


@cpu_only
@every_float
def test_fp8_product(dtype):
    """torch's product, executed on the CPU here, with our scales."""
    x, weight, bias = randn(3, 5, 64, dtype=dtype), randn(48, 64, seed=1), randn(48, seed=2, dtype=dtype)
    x[1, 2], x[2, 0, 3] = 0, torch.inf
    quantized, scale = fk.quantize_rows_fp8(weight)
    y = fk.linear_fp8(x, quantized, scale, bias)
    assert y.dtype == dtype
    assert torch.equal(y[1, 2], bias)
    assert y[2, 0].isnan().all()
    expected = (x.double() @ weight.double().t() + bias.double())[:2]
    assert (y[:2] - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()
    rows, x_scale = fk.quantize_rows_fp8(x)
    assert rows.float().abs().amax(-1)[0].tolist() == [448.0] * 5
    again = fk.linear_fp8(rows, quantized, scale, bias, x_scale=x_scale, out_dtype=dtype)
    same([again], [y])


@cpu_only
def test_wrong_arguments_of_fp8_are_named():
    weight, scale = fk.quantize_rows_fp8(randn(48, 64))
    for error, name, call in (
        (ValueError, "linear_fp8: weight", lambda: fk.linear_fp8(randn(2, 64), weight[:40], scale[:40])),
        (ValueError, "linear_fp8: x", lambda: fk.linear_fp8(randn(2, 63), weight, scale)),
        (ValueError, "linear_fp8: scale", lambda: fk.linear_fp8(randn(2, 64), weight, scale[:47])),
        (ValueError, "linear_fp8: bias", lambda: fk.linear_fp8(randn(2, 64), weight, scale, scale[:47])),
        (TypeError, "linear_fp8: x", lambda: fk.linear_fp8(randn(2, 64), weight, scale, x_scale=torch.ones(2))),
        (TypeError, "quantize_rows_fp8: x", lambda: fk.quantize_rows_fp8(torch.ones(2, 64).long())),
    ):
        with pytest.raises(error, match=rf"^{name} must [^\n]*$"):
            call()
