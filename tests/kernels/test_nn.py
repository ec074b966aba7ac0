"""Time-dependent modules: the golden vectors, seeding, the table."""

import copy
import io

import pytest
import torch
from support.cases import assert_close
from torch import nn

import fmkernels as fk
from fmkernels.nn import TDLayerNorm, TDRMSNorm, TimeDependentParameter, seed_time

NORMS = {"tdrms": lambda d: TDRMSNorm(d), "tdrms_bias": lambda d: TDRMSNorm(d, offset=True), "tdln": TDLayerNorm}


@pytest.fixture
def norm():
    torch.manual_seed(0)
    module = TDRMSNorm(7, offset=True)
    for p in module.parameters():
        nn.init.normal_(p)
    return module


def seeded(module, log_snr):
    seed_time(module, log_snr)
    return [m.curr_weight for m in module.modules() if isinstance(m, TimeDependentParameter)]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", NORMS)
def test_golden(golden, name, rows):
    vectors = {k.split(".", 1)[1]: v for k, v in golden("td_norms").items() if k.startswith(f"{name}_t{rows}.")}
    module = NORMS[name](48)
    module.load_state_dict({k[6:]: v for k, v in vectors.items() if k.startswith("param.")}, strict=True)
    x = vectors["x"].clone().requires_grad_()
    seed_time(module, vectors["log_snr"])
    y = module(x)
    assert_close(y, vectors["y"], atol=1e-6, rtol=1e-5)
    y.backward(vectors["grad_y"])
    assert_close(x.grad, vectors["grad_x"], atol=1e-5, rtol=1e-4)
    for key, p in module.named_parameters():
        assert_close(p.grad, vectors[f"grad_param.{key}"], atol=1e-5, rtol=1e-4)


def test_initial_values_and_keys():
    keys = ["param0", "param1", "nodecay_weight", "nodecay_bias"]
    assert list(TDRMSNorm(3, offset=True).state_dict()) == [f"{n}.{k}" for n in ("scale", "offset") for k in keys]
    assert list(TDLayerNorm(3).state_dict()) == [f"{n}.{k}" for n in ("weight", "bias") for k in keys]
    x = torch.randn(2, 5, 3)
    module = TDLayerNorm(3)
    seed_time(module, torch.randn(2))
    assert_close(module(x), nn.functional.layer_norm(x, (3,)), atol=1e-6, rtol=1e-5)


def test_any_shape():
    module = TimeDependentParameter((2, 3), 0.5)
    seed_time(module, torch.randn(4))
    assert module().shape == (4, 2, 3)
    assert (module() == 0.5).all()


@pytest.mark.parametrize(
    ("log_snr", "rows"),
    [
        (torch.tensor(0.5), 1),
        (torch.tensor([0.5]), 1),
        (torch.tensor([0.5, 0.5, 0.5]), 1),
        (torch.tensor([0.5]).expand(3), 1),
        (torch.tensor([0.5, 0.6, 0.5]), 3),
        (torch.tensor([0.5, 0.5, 0.5], requires_grad=True), 3),
    ],
)
def test_rows(norm, log_snr, rows):
    for weight in seeded(norm, log_snr):
        assert weight.shape == (rows, 7)


@pytest.mark.parametrize("bad", [torch.randn(2, 2), torch.randn(0), 0.5])
def test_bad_log_snr(norm, bad):
    with pytest.raises(ValueError, match="log_snr"):
        seed_time(norm, bad)


def test_an_unseeded_parameter_says_so(norm):
    with pytest.raises(RuntimeError, match="seed_time"):
        norm(torch.randn(1, 7))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
        lambda m: m.double(),
        lambda m: m.bfloat16(),
        lambda m: setattr(m.scale, "param1", nn.Parameter(torch.ones(7))),
        lambda m: setattr(m, "scale", TimeDependentParameter(7)),
        lambda m: [p.data.add_(1) for p in m.parameters()],
    ],
    ids=["load", "assign", "double", "bfloat16", "parameter", "module", "in place"],
)
@pytest.mark.parametrize("grad", [True, False])
def test_seeding_follows_a_change(norm, change, grad):
    log_snr = torch.tensor([1.0, -2.0])
    with torch.set_grad_enabled(grad):
        seeded(norm, log_snr)
        change(norm)
        for module, weight in zip((norm.scale, norm.offset), seeded(norm, log_snr), strict=True):
            four = (module.param0, module.param1, module.nodecay_weight, module.nodecay_bias)
            assert torch.equal(weight, fk.tdp(*four, log_snr / 4, weight_offset=1.0))
            assert module() is weight


def test_a_copy_is_seeded_by_itself(norm):
    log_snr = torch.tensor([1.0, -2.0])
    before = seeded(norm, log_snr)[0]
    stored = io.BytesIO()
    torch.save(norm, stored)
    stored.seek(0)
    for other in (copy.deepcopy(norm), torch.load(stored, weights_only=False)):
        assert other.scale.curr_weight is None
        with torch.no_grad():
            other.scale.param0.add_(1)
        seeded(other, log_snr)
        assert norm.scale.curr_weight is before
        assert not torch.equal(other.scale(), before)


def test_a_value_keeps_its_own_memory(norm):
    with torch.no_grad():
        first = seeded(norm, torch.tensor([1.0, -2.0]))[0]
        before = first.clone()
        seeded(norm, torch.tensor([2.0, 3.0]))
    assert torch.equal(first, before)


def test_a_view_of_a_value_keeps_its_memory(norm):
    with torch.no_grad():
        views = [seeded(norm, torch.tensor([t]))[0].detach() for t in (-4.0, 0.0, 4.0)]
        rows = [seeded(norm, torch.tensor([t]))[0][0] for t in (-4.0, 0.0, 4.0)]
    for several in (views, rows):
        assert len({x.sum().item() for x in several}) == 3


@pytest.mark.parametrize("use", [lambda x, w: x * w, lambda x, w: x * w[:, None], lambda x, w: fk.td_rms_norm(x, w)])
def test_a_graph_keeps_values_seeded_without_gradients(norm, use):
    x, losses = torch.randn(2, 1, 7, requires_grad=True), []
    for t in (1.0, 2.0):
        with torch.no_grad():
            seed_time(norm, torch.tensor([t, -t]))
        losses.append(use(x, norm.scale.curr_weight).sum())
    sum(losses).backward()
    assert torch.isfinite(x.grad).all()


def test_memory_is_used_again_when_nobody_has_it(norm):
    with torch.no_grad():
        places = {seeded(norm, torch.tensor([t]))[0].data_ptr() for t in (1.0, 2.0, 3.0)}
    assert len(places) == 1


def test_a_module_put_in_an_empty_list():
    model = nn.Module()
    model.norms = nn.ModuleList()
    seed_time(model, torch.zeros(1))
    model.norms.append(TDRMSNorm(3))
    seed_time(model, torch.zeros(1))
    assert model.norms[0](torch.randn(1, 3)).shape == (1, 3)


def test_mixed_dtypes_and_shapes():
    parts = nn.ModuleList([TimeDependentParameter((2, 3)), TimeDependentParameter(4).bfloat16(), TDRMSNorm(5)])
    seed_time(parts, torch.randn(2))
    assert [m.curr_weight.dtype for m in parts[:2]] == [torch.float32, torch.bfloat16]
    assert all(m.curr_weight.is_contiguous() for m in parts[:1])
    parts[0].param1.data = parts[0].param1.data.double()  # a conversion nobody is told of
    with torch.no_grad():
        seed_time(parts, torch.randn(2))
    assert parts[0]().dtype == torch.float64


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, log_snr):
        seed_time(self, log_snr)
        return self.norm(x)


def test_functional_call_leaves_nothing_behind(norm):
    inputs = torch.randn(2, 7), torch.tensor([1.0, -2.0])
    net = Net(norm)
    expected = net(*inputs)
    other = {k: v.detach() + 0.5 for k, v in net.state_dict().items()}
    changed = torch.func.functional_call(net, other, inputs)
    again = net(*inputs)
    assert torch.equal(again, expected)
    again.sum().backward()
    assert norm.scale.param0.grad is not None
    fresh = copy.deepcopy(net)
    fresh.load_state_dict(other)
    assert_close(fresh(*inputs), changed)

    def loss(parameters, x, log_snr):
        return torch.func.functional_call(net, parameters, (x[None], log_snr)).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(other, *inputs)
    fresh(*inputs).sum().backward()
    assert_close(per_sample["norm.scale.param0"].sum(0), fresh.norm.scale.param0.grad)


def test_parameters_used_by_nobody_get_no_gradient():
    used, unused = TDRMSNorm(5), TDRMSNorm(5)
    seed_time(nn.ModuleList([used, unused]), torch.randn(2))
    used(torch.randn(2, 5)).sum().backward()
    assert used.scale.param0.grad is not None
    assert unused.scale.param0.grad is None


def test_two_backwards_of_one_seeding():
    one, two = TDRMSNorm(5), TDRMSNorm(5)
    seed_time(nn.ModuleList([one, two]), torch.randn(2))
    losses = [norm(torch.randn(2, 5)).sum() for norm in (one, two)]
    for loss in losses:
        loss.backward()
    assert two.scale.param0.grad is not None


def test_a_step_between_forward_and_backward_is_found(norm):
    seed_time(norm, torch.randn(2))
    loss = norm(torch.randn(2, 7)).sum()
    with torch.no_grad():
        norm.scale.param0.add_(1)
    with pytest.raises(RuntimeError, match="changed in place between this forward and its backward"):
        loss.backward()


def test_a_wrapper_s_table_serves_the_model_inside(norm):
    wrapper, x = nn.Sequential(Net(norm)), torch.randn(2, 7)
    expected = wrapper[0](x, torch.tensor([2.0]))
    with fk.TimeTable(wrapper, torch.tensor([2.0])).at(0):
        assert torch.equal(wrapper[0](x, torch.zeros(2)), expected)


def test_table(norm):
    schedule, x = torch.linspace(-4, 4, 5), torch.randn(2, 3, 7)
    table = fk.TimeTable(norm, schedule)
    assert len(table) == 5
    for k, log_snr in enumerate(schedule):
        seed_time(norm, log_snr)
        expected = norm(x)
        with table.at(k):
            seed_time(norm, torch.zeros(2))  # the model's own: answered by the table
            assert torch.equal(norm(x), expected)
        with table.at(k):
            assert copy.deepcopy(norm).scale._frozen is False
    seed_time(norm, torch.zeros(1))
    assert not torch.equal(norm(x), expected)
    with pytest.raises(IndexError, match="step must be in 0 … 4"), table.at(5):
        pass


def test_a_table_needs_parameters():
    with pytest.raises(ValueError, match="accelerate"):
        fk.TimeTable(nn.Linear(2, 2), torch.zeros(3))


def test_norms_take_residual_and_list():
    rms, layer, x, r = TDRMSNorm(6), TDLayerNorm(6), torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    seed_time(nn.ModuleList([rms, layer]), torch.randn(2))
    y, summed = rms(x, residual=r)
    assert torch.equal(summed, x + r)
    assert_close(y, rms(x + r), atol=1e-6, rtol=1e-5)
    assert_close(layer([x[..., :2], x[..., 2:]]), layer(x), atol=1e-6, rtol=1e-5)
