"""``quantize``: which layers it converts, what they compute, and that it can be saved, loaded and undone."""

import copy
import pickle

import pytest
import torch
from torch import nn

import fmkernels
from fmkernels import Linear, load_quantized, precision, quantize, restore
from fmkernels.nn import Int8Rows
from fmkernels.precision import precision_of, quantized_as, unsupported, weight_bytes

ERROR = {"int8": 0.02, "bf16": 0.005, "fp8": 0.06}
ALL = tuple(ERROR)


class Twice(nn.Module):
    """Two products, ours and torch's, and a layer that is too narrow to matter."""

    def __init__(self, seed=0, width=64):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.act = Linear(width, 96), nn.GELU()
        self.second = nn.Linear(96, width, bias=False)
        self.last = nn.Sequential(nn.Linear(width, 16))

    def forward(self, x):
        return self.last(self.second(self.act(self.first(x))))


@pytest.fixture
def x():
    return torch.randn(5, 7, 64, generator=torch.Generator().manual_seed(1))


def relative(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("name", ALL)
def test_outputs_stay_close_and_restore_gives_the_same_bits(name, x):
    model = Twice().eval()
    with torch.no_grad():
        wanted = model(x)
        report = quantize(model, name, sample=lambda: model(x), min_gain=0)
        got = model(x)
        restore(model)
        assert torch.equal(model(x), wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert 0 < relative(got, wanted) < 2 * ERROR[name]
    assert [layer.name for layer in report.swapped] == ["first", "second", "last.0"]
    assert all(0 < layer.error < ERROR[name] and layer.rows == 35 for layer in report.layers)
    assert type(model.first) is Linear
    assert type(model.second) is nn.Linear
    assert [*model.state_dict()] == [*Twice().state_dict()]


@pytest.mark.parametrize("name", ALL)
def test_a_layer_computes_its_op(name, x):
    layer = nn.Linear(64, 48)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach()
    quantize(layer, name, min_gain=0)
    with torch.no_grad():
        got = layer(x)
    if name == "int8":
        codes, scale = fmkernels.quantize_weight(weight)
        assert torch.equal(got, fmkernels.linear_int8(x, codes, scale, bias))
    elif name == "fp8":
        codes, scale = fmkernels.quantize_rows_fp8(weight)
        assert torch.equal(got, fmkernels.linear_fp8(x, codes, scale, bias))
    else:
        wanted = nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()
        torch.testing.assert_close(got, wanted, rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(layer.weight, weight, rtol=0.07, atol=weight.abs().max().item() / 100)


def test_inner_layers_return_bf16_and_parts_are_concatenated(x):
    layer = Linear(64, 32)
    layer.inner = True
    quantize(layer, "int8", min_gain=0)
    with torch.no_grad():
        whole, parts = layer(x), layer((x[..., :24], x[..., 24:]))
        rows = Int8Rows(*fmkernels.quantize_rows(x))
        assert layer.reads == torch.int8
        assert torch.equal(layer(rows), whole)
    assert whole.dtype == torch.bfloat16
    assert torch.equal(parts, whole)


def test_weights_take_a_quarter_and_a_half_of_the_bytes():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 256))
    before = weight_bytes(model)
    for name, share in (("int8", 0.27), ("bf16", 0.51), ("fp8", 0.27)):
        report = quantize(model, name, min_gain=0, keep_weights=False)
        assert report.bytes_before == before
        assert report.bytes_after == weight_bytes(model) < share * before
        with pytest.warns(UserWarning, match="original weights were not kept"):
            restore(model)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("keep", [True, False])
def test_state_dicts_save_load_and_copy(name, keep, x, tmp_path):
    model = Twice().eval()
    quantize(model, name, min_gain=0, keep_weights=keep)
    with torch.no_grad():
        wanted = model(x)
        state = model.state_dict()
        assert (
            state["first.weight"].dtype
            == {"int8": torch.int8, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[name]
        )
        assert ("first.weight_scale" in state) == (name != "bf16")
        torch.save(state, tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt")
        other = Twice(seed=9).eval()
        quantize(other, name, min_gain=0)
        other.load_state_dict(state)
        assert torch.equal(other(x), wanted)
        assert torch.equal(copy.deepcopy(model)(x), wanted)
        if name != "fp8":  # plain pickle of torch's float8 storages is not supported
            assert torch.equal(pickle.loads(pickle.dumps(model))(x), wanted)
        original = Twice().eval()
        other.load_state_dict(original.state_dict())  # is converted
        assert torch.equal(other(x), wanted)
        restore(other)  # its own weights were kept
        assert torch.equal(other(x), original(x))


@pytest.mark.parametrize(
    "call",
    [lambda layer, x: layer(x[0, 0]), lambda layer, x: layer(input=x), lambda layer, x: layer(x[:, :0])],
    ids=["one dimension", "by keyword", "no rows"],
)
@pytest.mark.parametrize("name", ["int8", "bf16"])
def test_every_call_of_a_layer_can_be_the_sample(name, call, x):
    layer = nn.Linear(64, 48)
    with torch.no_grad():
        wanted = call(layer, x)
        (report,) = quantize(layer, name, sample=lambda: call(layer, x), min_gain=0).layers
        got = call(layer, x)
    assert not report.kept
    assert got.shape == wanted.shape
    assert not got.numel() or relative(got, wanted) < 2 * ERROR[name]


def test_vmap_computes_the_same():
    layer, x = nn.Linear(64, 48), torch.randn(3, 4, 64)
    quantize(layer, "int8", min_gain=0)
    with torch.no_grad():
        assert torch.equal(torch.func.vmap(layer)(x), layer(x))


def test_states_that_do_not_fit_are_refused():
    model = nn.Sequential(nn.Linear(32, 16))
    quantize(model, "int8", min_gain=0)
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch for 0.weight"):
        model.load_state_dict(state | {"0.weight": torch.zeros(8, 32, dtype=torch.int8)})
    with pytest.raises(RuntimeError, match=r"Missing key.*0.weight"):
        model.load_state_dict({"0.bias": state["0.bias"]})
    with pytest.raises(RuntimeError, match=r"does not fit a layer in int8"):
        model.load_state_dict({k: v for k, v in state.items() if k != "0.weight_scale"})
    with pytest.raises(RuntimeError, match=r"0\.weight must be .* with weight_scale"):
        load_quantized(nn.Sequential(nn.Linear(32, 16)), {k: v for k, v in state.items() if k != "0.weight_scale"})
    short = state | {"0.weight_scale": state["0.weight_scale"][:3]}
    with pytest.raises(RuntimeError, match=r"size mismatch for 0.weight_scale: \(3,\), expected \(16,\)"):
        model.load_state_dict(short)
    with pytest.raises(RuntimeError, match=r"0.weight_scale must be \(16,\), got \(3,\)"):
        load_quantized(nn.Sequential(nn.Linear(32, 16)), short)
    with pytest.raises(RuntimeError, match="missing keys"):
        load_quantized(nn.Sequential(nn.Linear(32, 16)), {k: v for k, v in state.items() if k != "0.bias"})


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("supported", [True, False])
def test_a_new_model_loads_a_quantized_state(name, supported, x, monkeypatch):
    monkeypatch.setattr(precision, "unsupported", lambda *_: "" if supported else "masked")
    model = Twice().eval()
    quantize(model, name, min_gain=0, skip="last")
    with torch.device("meta"):
        other = Twice().eval()
    load_quantized(other, model.state_dict())
    assert precision_of(other) == (name if supported else "fp32")
    assert not quantized_as(other.last[0])
    with torch.no_grad():
        got, wanted = other(x), model(x)
    assert torch.equal(got, wanted) if supported else relative(got, wanted) < 2 * ERROR[name]


def test_without_the_instructions_nothing_is_converted(x, monkeypatch):
    monkeypatch.setattr(precision, "int8_kernel", lambda: "avx2")
    monkeypatch.setattr(precision.amx, "bf16_kernel", lambda: "")
    model = Twice().eval()
    for name in ALL:
        report = quantize(model, name)
        assert not report.swapped
        assert len(report.left) == 3
        assert type(model.first) is Linear
        assert report.left[0][1] == unsupported(name) != ""
        assert report.bytes_after == report.bytes_before


@pytest.mark.parametrize(("limit", "kernel"), [("AVX2", ""), ("AVX512_CORE", ""), ("AVX512_CORE_BF16", "avx512_bf16")])
def test_the_limit_of_onednn_is_respected(limit, kernel, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert fmkernels.amx.bf16_kernel() in ("", kernel)


def test_layers_that_are_too_small_are_left_and_named(x, monkeypatch):
    monkeypatch.setattr(precision, "unsupported", lambda *_: "")
    monkeypatch.setattr(precision, "_gain", lambda weight, layer, rows: 3.0 if layer.out_features == 96 else 1.05)
    model = Twice().eval()
    report = quantize(model, "int8", sample=lambda: model(x))
    assert report.left == [("second", "too small to be faster"), ("last.0", "too small to be faster")]
    assert "left unchanged: second and 1 others: too small" in str(report)
    assert "last.0: 16 x 64, 1.1 times as fast; left unchanged" in report.table().replace("1.05", "1.1")


def test_layers_that_are_too_sensitive_are_left_and_named(x):
    model = Twice().eval()
    with torch.no_grad():
        model.first.bias.zero_()
        model.first.bias[0] = 1e4  # one channel hides all others from the quantization of second
        model.second.weight[:, 0] = 0
    report = quantize(model, "int8", sample=lambda: model(x), min_gain=0)
    assert ("second", "too sensitive") in report.left
    assert type(model.second) is nn.Linear
    error = next(layer.error for layer in report.layers if layer.name == "second")
    assert error > report.max_error == 0.05
    assert f"second: too sensitive, error {error:.2%}" in str(report)
    assert "threshold 5.00%" in str(report)
    restore(model)
    assert not quantize(model, "int8", sample=lambda: model(x), min_gain=0, max_error=2).left


def test_what_cannot_be_converted_is_left_and_named():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    model = nn.ModuleDict(
        {
            "own": Own(32, 32),
            "shared": nn.Linear(32, 32),
            "computed": nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
            "attention": nn.MultiheadAttention(32, 2),
            "wide": nn.Linear(32, 32).double(),
            "lazy": nn.LazyLinear(32),
            "skipped": nn.Sequential(nn.Linear(32, 32)),
            "taken": nn.Linear(32, 32),
        }
    )
    model["twin"] = nn.Linear(32, 32)
    model["twin"].weight = model["shared"].weight
    report = quantize(model, "int8", skip=["skip*"], min_gain=0)
    assert [layer.name for layer in report.swapped] == ["taken"]
    reasons = dict(report.left)
    assert reasons["own"] == "Own defines its own forward"
    assert reasons["shared"] == reasons["twin"] == "its weight is shared with another module"
    assert "is computed" in reasons["computed"]
    assert "reads the weight itself" in reasons["attention.out_proj"]
    assert reasons["lazy"] == "its weight has no values yet"
    assert reasons["wide"] == "its weight is torch.float64"
    assert reasons["skipped.0"] == "named in skip"


def test_rows_that_are_not_finite_stay_not_finite(x):
    x[0, 0, 3], x[1, 2, 5] = torch.nan, torch.inf
    for name in ALL:
        layer = nn.Linear(64, 32)
        quantize(layer, name, min_gain=0)
        with torch.no_grad():
            finite = layer(x).isfinite()
        assert not finite[0, 0].any()
        assert not finite[1, 2].any()
        assert finite.sum() == 33 * 32


def test_no_rows_and_conversions(x):
    for name in ALL:
        model = nn.Sequential(nn.Linear(64, 32))
        quantize(model, name, min_gain=0)
        codes = model.state_dict()["0.weight"]
        with torch.no_grad():
            assert model(x[:0]).shape == (0, 7, 32)
            model.to(torch.float16)
            assert model(x.half()).dtype == torch.float16
        assert torch.equal(model.state_dict()["0.weight"].view(torch.uint8), codes.view(torch.uint8))
        restore(model)
        assert model[0].weight.dtype == torch.float16


def test_gradients_are_refused(x):
    for name in ("int8", "fp8", "bf16"):
        layer = nn.Linear(64, 32)
        quantize(layer, name, min_gain=0)
        with pytest.raises(ValueError, match="inference only"):
            layer(x.clone().requires_grad_())


def test_accelerated_models_can_be_quantized_too(x):
    model = Twice().eval()
    fmkernels.accelerate(model)
    quantize(model, "int8", min_gain=0)
    assert precision_of(model) == "int8"
    restore(model)
    assert precision_of(model) == "fp32"
    assert type(model) is Twice


WRONG = {
    "model": (lambda m: quantize(torch.ones(2), "int8"), TypeError, "model must be a torch.nn.Module, got Tensor"),
    "precision": (lambda m: quantize(m, "int4"), ValueError, "precision must be one of int8, bf16, fp8, got 'int4'"),
    "skip": (lambda m: quantize(m, "int8", skip="head"), ValueError, "skip: the model has no module 'head'"),
    "skips": (lambda m: quantize(m, "int8", skip=[3]), TypeError, "skip must be a name or a list of names"),
    "sample": (lambda m: quantize(m, "int8", sample=3), TypeError, "sample must be a function"),
    "max_error": (lambda m: quantize(m, "int8", max_error=-1), ValueError, "max_error must be a number of at least 0"),
    "min_gain": (lambda m: quantize(m, "int8", min_gain="x"), ValueError, "min_gain must be a number"),
    "twice": (
        lambda m: (quantize(m, "int8", min_gain=0), quantize(m, "bf16")),
        ValueError,
        "already quantized to int8; call restore",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call(Twice())


def test_a_model_that_fails_on_the_sample_is_unchanged():
    model = Twice()
    with pytest.raises(RuntimeError):
        quantize(model, "int8", sample=lambda: model(torch.ones(2, 3)), min_gain=0)
    assert precision_of(model) == "fp32"
    assert not model.first._forward_pre_hooks
