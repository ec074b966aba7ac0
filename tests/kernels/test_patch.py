"""accelerate(model) on third-party classes: same numbers, same keys, fewer operations, and restore()."""

import copy
import io

import pytest
import third_party_model
import torch
import torch.nn.functional as F
from support.cases import assert_close
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fmkernels as fk

TDP = third_party_model.TimeDependentParameter


def small(seed=0):
    stages = [
        {"kind": "transformer", "dim": 16, "hidden": 24, "blocks": 3, "grid": 4, "patch": 2},
        {"kind": "convnext", "dim": 8, "hidden": 12, "blocks": 1, "grid": 8, "patch": 1},
    ]
    return third_party_model.randomized(third_party_model.DiMR(4, stages), seed)


def inputs(batch=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 4, 8, 8, generator=generator)
    return x, torch.linspace(-3, 3, batch), torch.arange(batch) % 2 == 0


def run(model, batch=3):
    """Outputs and all gradients."""
    model.zero_grad()
    x, log_snr, null = inputs(batch)
    x.requires_grad_()
    outs = model(x, log_snr, null)
    sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in outs).backward()
    return [o.detach() for o in outs] + [x.grad] + [p.grad.clone() for p in model.parameters()]


def assert_same(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_golden(golden):
    vectors = golden("dimr_tiny")
    model = third_party_model.tiny()
    model.load_state_dict({k[6:]: v for k, v in vectors.items() if k.startswith("state.stages.")})
    report = fk.accelerate(model)
    assert (report.parameters, report.norms) == (21, {"TDRMSNorm": 13, "TDLayerNorm": 4})
    x, null = vectors["x"].clone().requires_grad_(), vectors["null_indicator"].bool()
    outs = model(x, vectors["log_snr"], null)
    torch.autograd.backward(outs, [vectors["grad_out0"], vectors["grad_out1"]])
    assert_close(x.grad, vectors["grad_x"], atol=1e-5, rtol=1e-4)
    compared = 0
    for name, p in model.named_parameters():
        if (expected := vectors.get(f"grad.{name}")) is not None:
            assert_close(p.grad, expected, atol=1e-5, rtol=1e-4)
            compared += 1
    assert compared == 65
    with torch.no_grad():
        same = model(x, torch.full((3,), 1.25), null)
    for i in range(2):
        assert_close(outs[i], vectors[f"out{i}"], atol=2e-5, rtol=1e-4)
        assert_close(same[i], vectors[f"same_t.out{i}"], atol=2e-5, rtol=1e-4)


def test_report_and_way_back():
    model, keys = small(), list(small().state_dict())
    classes = [type(m) for m in model.modules()]
    own = {cls: dict(vars(cls)) for cls in classes}
    expected = run(model)
    report = fk.accelerate(model)
    assert report.seeding == ["DiMR.forward"]
    assert report.left == []
    assert f"{report.parameters} ({report.elements:,} elements)" in str(report)
    assert_same(run(model), expected)
    assert list(model.state_dict()) == keys
    assert all(isinstance(m, cls) for m, cls in zip(model.modules(), classes, strict=True))

    again = fk.accelerate(model)
    assert (again.parameters, again.norms, again.seeding) == (0, {}, [])
    assert again.already > 0
    assert_same(run(model), expected)

    fk.restore(model)
    assert [type(m) for m in model.modules()] == classes
    assert all(torch.equal(a, b) for a, b in zip(run(model), expected, strict=True))
    assert {cls: dict(vars(cls)) for cls in classes} == own, "a class was touched"


def test_another_model_of_the_class_is_not_touched():
    one, other = small(), small()
    fk.accelerate(one)
    assert [type(m) for m in other.modules()] == [type(m) for m in small().modules()]
    with torch.no_grad():
        assert torch.equal(other(*inputs())[1], small()(*inputs())[1])


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_no_walk_no_wait_one_call(monkeypatch):
    model = small()
    fk.accelerate(model)
    with torch.no_grad():
        model(*inputs())
    monkeypatch.setattr(TDP, "seed_time", lambda *_: pytest.fail("the original seeding ran"))
    monkeypatch.setattr(nn.Module, "modules", lambda *_: pytest.fail("the modules were walked"))
    with torch.no_grad(), Counted() as counted:
        model(*inputs())
    assert "aten::_local_scalar_dense" not in counted.names
    assert "aten::sigmoid" not in counted.names
    assert sum(name.startswith("fmkernels::tdp") for name in counted.names) == 1
    norms = sum(
        isinstance(m, (third_party_model.TDRMSNorm, third_party_model.LayerNorm)) for _, m in model.named_modules()
    )
    assert counted.names.count("fmkernels::td_norm") == norms


@pytest.mark.parametrize("kind", ["reentrant", "plain"])
def test_gradient_checkpointing(kind):
    expected = run(small())
    model = small().checkpointing(kind)
    assert_same(run(model), expected)
    fk.accelerate(model)
    for _ in range(2):
        assert_same(run(model), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_the_whole_model(reentrant):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small()

        def forward(self, *args):
            return torch.utils.checkpoint.checkpoint(lambda *a: tuple(self.net(*a)), *args, use_reentrant=reentrant)

    model = Whole()
    expected = run(model)
    assert fk.accelerate(model).seeding == ["DiMR.forward"]
    assert_same(run(model), expected)


def test_to_load_and_assign():
    model, other = small(0), small(1)
    fk.accelerate(model)
    run(model)
    model.load_state_dict(other.state_dict())
    assert_same(run(model), run(other))
    model.load_state_dict(small(2).state_dict(), assign=True)
    assert_same(run(model), run(small(2)))
    x, log_snr, null = inputs()
    got = model.double()(x.double(), log_snr.double(), null)
    expected = small(2).double()(x.double(), log_snr.double(), null)
    assert_close(got[1], expected[1], atol=1e-10, rtol=1e-9)


def test_copies_and_pickles():
    model = small()
    fk.accelerate(model)
    expected = run(model)  # leaves values in the modules, which cannot be copied
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1.0)
        assert_same(run(other), expected)
        assert fk.accelerate(other).parameters == 0, "the copy was not accelerated"
        with torch.no_grad():
            other.stages[0].blocks[0].block1.norm.scale.param0.add_(1)
        assert not torch.equal(run(other)[0], expected[0])
        assert_same(run(model), expected)
        fk.restore(other)
        assert type(other) is third_party_model.DiMR


@pytest.mark.slow
def test_compile_in_one_graph():
    model, expected = small(), run(small())
    fk.accelerate(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert_same(run(compiled), expected)
    with torch.no_grad():
        assert_close(compiled(*inputs(2))[1], small()(*inputs(2))[1], atol=2e-5, rtol=1e-4)
        x, log_snr, null = inputs(2)
        with fk.TimeTable(model, torch.tensor([1.5])).at(0):
            got = compiled(x, log_snr, null)[1]
    assert_close(got, small()(x, torch.full((2,), 1.5), null)[1], atol=2e-5, rtol=1e-4)


def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        run(model)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_training_takes_the_same_steps():
    expected, model = train(small()), small()
    fk.accelerate(model)
    assert_same(train(model), expected)


def _ddp(rank, world, model, path, results):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    trained = train(DistributedDataParallel(copy.deepcopy(model)))  # spawn shares the parameters' memory
    if rank == 0:
        torch.save(trained, results)
    dist.destroy_process_group()


@pytest.mark.slow
def test_ddp(tmp_path):
    """Two processes; the accelerated model goes to them by pickle."""
    expected, model = train(small()), small()
    fk.accelerate(model)
    args = (2, model, tmp_path / "store", tmp_path / "trained.pt")
    torch.multiprocessing.spawn(_ddp, args=args, nprocs=2)
    assert_same(torch.load(tmp_path / "trained.pt"), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_dtype_the_model_had(dtype):
    """This norm multiplies half-precision x by fp32 parameters, so it returns fp32, and so must the fused one."""
    for norm in (third_party_model.TDRMSNorm(8), third_party_model.LayerNorm(8)):
        x = torch.randn(2, 3, 8, dtype=dtype)
        TDP.seed_time(norm, torch.randn(2))
        expected = [norm(x)]
        TDP.seed_time(norm, torch.randn(1))
        expected.append(norm(x))
        fk.accelerate(norm)
        for rows, slow in zip((2, 1), expected, strict=True):
            fk.nn.seed_time(norm, torch.randn(rows))
            assert norm(x).dtype == slow.dtype == torch.float32
        norm.to(dtype)
        fk.nn.seed_time(norm, torch.randn(2))
        assert norm(x).dtype == dtype


def test_autocast():
    model, expected = small(), small()
    fk.accelerate(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        got, expected = model(*inputs())[1], expected(*inputs())[1]
    assert got.dtype == expected.dtype
    assert_close(got.float(), expected.float(), atol=0.3, rtol=0.05)


# Modules that look alike but compute something else.


class OtherEps(third_party_model.TDRMSNorm):
    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * third_party_model.rows(self.scale(), x)


class Grouped(third_party_model.LayerNorm):
    def forward(self, x):
        y = F.layer_norm(x.unflatten(-1, (2, -1)), (x.shape[-1] // 2,)).flatten(-2)
        return y * third_party_model.rows(self.weight(), x) + third_party_model.rows(self.bias(), x)


class ChannelsFirst(third_party_model.LayerNorm):
    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class WithDropout(third_party_model.TDRMSNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class NarrowTime(TDP):
    @staticmethod
    def seed_time(model, log_snr):
        TDP.seed_time(model, log_snr / 2)


class ClampedTime(TDP):
    @staticmethod
    def seed_time(model, log_snr):
        TDP.seed_time(model, log_snr.clamp(-10, 10))


class Negated(TDP):
    def forward(self):
        return -self.curr_weight


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (OtherEps(8), "not what TDRMSNorm computes"),
        (Grouped(8), "not what TDLayerNorm computes"),
        (ChannelsFirst(8), "not what TDLayerNorm computes"),
        (WithDropout(8).eval(), "not what TDRMSNorm computes"),
        (ClampedTime((8,), nn.init.ones_), "not what fmkernels.tdp computes"),
        (NarrowTime((8,), nn.init.ones_), "not what fmkernels.tdp computes"),
        (Negated((8,), nn.init.ones_), "does not return its curr_weight"),
        (TDP((8,), nn.init.ones_).to("meta"), "meta device"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_what_computes_something_else_is_left_alone(module, reason):
    model = nn.ModuleDict({"it": module})
    cls = type(module)
    report = fk.accelerate(model)
    assert type(module) is cls
    assert [name for name, why in report.left if reason in why] == ["it"]


def test_other_eps_is_read_from_the_module():
    norm = third_party_model.LayerNorm(8, eps=1e-2)
    assert fk.accelerate(norm).norms == {"TDLayerNorm": 1}
    x = 0.1 * torch.randn(2, 8)
    fk.nn.seed_time(norm, torch.zeros(1))
    assert_close(norm(x), F.layer_norm(x, (8,), eps=1e-2))


# Ways of calling seed_time.


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = third_party_model.TDRMSNorm(6)


class ByModule(Base):
    def forward(self, x, log_snr):
        third_party_model.TimeDependentParameter.seed_time(self, log_snr)
        return self.norm(x)


class ByDecorated(Base):
    @torch.no_grad()
    def forward(self, x, log_snr):
        TDP.seed_time(self, log_snr)
        return self.norm(x)


def helper(model, log_snr):
    TDP.seed_time(model, log_snr)


class ByHelper(Base):
    def forward(self, x, log_snr):
        helper(self, log_snr)
        return self.norm(x)


class ByInstance(Base):
    def forward(self, x, log_snr):
        self.norm.scale.seed_time(self, log_snr)
        return self.norm(x)


class ByMethod(Base):
    def seed(self, log_snr, *, divisor=1.0):
        TDP.seed_time(self, log_snr / divisor)

    def forward(self, x, log_snr):
        self.seed(log_snr, divisor=2.0)
        return self.norm(x)


def by_closure():
    local = third_party_model.TimeDependentParameter

    class ByClosure(Base):
        def forward(self, x, log_snr):
            local.seed_time(self, log_snr)
            return self.norm(x)

    return ByClosure()


class ByStatic(Base):
    @staticmethod
    def seed(model, log_snr):
        TDP.seed_time(model, log_snr)

    def forward(self, x, log_snr):
        self.seed(self, log_snr)
        return self.norm(x)


class Mixin:
    def seed(self, log_snr):
        TDP.seed_time(self, log_snr=log_snr)


class ByMixin(Base, Mixin):
    def forward(self, x, log_snr):
        self.seed(log_snr)
        return self.norm(x)


class Derived(ByModule):
    def forward(self, x, log_snr):
        return 2 * super().forward(x, log_snr)


class BySuper(Derived):
    def forward(self, x, log_snr):
        return super().forward(x, log_snr) + 1


class FromOutside(Base):
    def forward(self, x, log_snr):
        return self.norm(x)


@pytest.mark.parametrize(
    "make",
    [ByModule, ByDecorated, ByHelper, ByInstance, ByMethod, ByStatic, ByMixin, BySuper, by_closure, FromOutside],
)
def test_ways_of_seeding(make, monkeypatch):
    model = third_party_model.randomized(make())
    x, log_snr = torch.randn(2, 6), torch.tensor([1.0, -2.0])
    if make is FromOutside:
        TDP.seed_time(model, log_snr)
    expected = model(x, log_snr)
    report = fk.accelerate(model)
    if make is FromOutside:
        assert "call fmkernels.nn.seed_time" in report.left[0][1]
        TDP.seed_time(model, log_snr)  # cannot be replaced, but still works
        assert_close(model(x, log_snr), expected)
        fk.nn.seed_time(model, log_snr)
    elif make is not ByInstance:
        assert report.seeding != []
    with monkeypatch.context() as patch:
        if make is not FromOutside:
            patch.setattr(TDP, "seed_time", lambda *_: pytest.fail("the original seeding ran"))
        assert_close(model(x, log_snr), expected)
    fk.restore(model)
    if make is FromOutside:
        TDP.seed_time(model, log_snr)
    assert torch.equal(model(x, log_snr), expected)


FACTOR = 1.0


class WithGlobal(Base):
    def forward(self, x, log_snr):
        TDP.seed_time(self, log_snr)
        return self.norm(x) * FACTOR


def test_other_globals_stay_alive(monkeypatch):
    model, x = WithGlobal(), torch.randn(2, 6)
    fk.accelerate(model)
    before = model(x, torch.zeros(2))
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert torch.equal(model(x, torch.zeros(2)), 2 * before)


def test_globals_of_a_module_stay_alive(monkeypatch):
    class ByView(Base):
        def forward(self, x, log_snr):
            third_party_model.TimeDependentParameter.seed_time(self, log_snr)
            return self.norm(x) * third_party_model.KNOB

    monkeypatch.setattr(third_party_model, "KNOB", 1.0, raising=False)
    model, x = ByView(), torch.randn(2, 6)
    fk.accelerate(model)
    before = model(x, torch.zeros(2))
    monkeypatch.setattr(third_party_model, "KNOB", 3.0)
    assert torch.equal(model(x, torch.zeros(2)), 3 * before)


def test_a_changed_class_is_read_anew():
    class Mine(Base):
        def forward(self, x, log_snr):
            TDP.seed_time(self, log_snr)
            return self.norm(x)

    model, x = Mine(), torch.randn(2, 6)
    fk.accelerate(model)
    before = model(x, torch.zeros(2))

    def fixed(self, x, log_snr):
        TDP.seed_time(self, log_snr)
        return 2 * self.norm(x)

    Mine.forward = fixed  # as in a notebook
    fk.accelerate(model)
    assert torch.equal(model(x, torch.zeros(2)), 2 * before)


def test_a_registry_of_subclasses_hears_nothing():
    registry = []

    class Listed(third_party_model.TDRMSNorm):
        def __init_subclass__(cls):
            registry.append(cls)

    fk.accelerate(Listed(4))
    assert registry == []


# Models that change.


@pytest.mark.parametrize("again", [True, False])
def test_a_model_that_grows(again):
    """A copied block is already fast. A new one is replaced by the second call and prevents fused seeding before."""
    model, plain = small(), small()
    fk.accelerate(model)
    run(model)
    block = (
        third_party_model.randomized(third_party_model.Block("transformer", 16, 24, 4, 7), 5)
        if again
        else plain.stages[0].blocks[0]
    )
    for net in (model, plain):
        net.stages[0].blocks[0] = copy.deepcopy(block if again or net is plain else net.stages[0].blocks[0])
    for _ in range(2):
        assert_same(run(model), run(plain))  # with a new block inside, by the original walk
    assert fk.accelerate(model).parameters == (2 if again else 0)
    assert_same(run(model), run(plain))


def test_blocks_move_between_models():
    one, two, plain = small(0), small(1), small(0)
    for model in (one, two):
        fk.accelerate(model)
        run(model)
    one.stages[0].blocks[0] = two.stages[0].blocks[0]
    plain.stages[0].blocks[0] = small(1).stages[0].blocks[0]
    assert_same(run(one), run(plain))
    fk.restore(two)  # a part of which one holds
    assert type(one.stages[0].blocks[0].block1.norm) is third_party_model.TDRMSNorm
    for _ in range(2):
        for p, q in zip(one.parameters(), plain.parameters(), strict=True):
            p.data.mul_(1.01)
            q.data.mul_(1.01)
        assert_same(run(one), run(plain))
        fk.accelerate(one)


def test_functional_call_and_replaced_parameters():
    model, plain = small(), small()
    fk.accelerate(model)
    expected = run(model)
    other = {k: v.detach() for k, v in small(1).named_parameters()}
    got = torch.func.functional_call(model, other, inputs())
    assert_close(got[1], small(1)(*inputs())[1], atol=2e-5, rtol=1e-4)
    assert_same(run(model), expected)
    for net in (model, plain):
        net.stages[0].blocks[0].block1.norm.scale._parameters["param0"] = nn.Parameter(torch.full((16,), 3.0))
    assert_same(run(model), run(plain))


def test_what_is_left_keeps_its_seeding():
    class Two(Base):
        def __init__(self):
            super().__init__()
            self.gate = Negated((6,), nn.init.ones_)

        def forward(self, x, log_snr):
            TDP.seed_time(self, log_snr)
            return self.norm(x) * self.gate()

    model = third_party_model.randomized(Two())
    x = torch.randn(2, 6)
    model(x, torch.zeros(2))
    report = fk.accelerate(model)
    assert "it seeds gate as well" in str(report)
    for log_snr in (torch.tensor([1.0, -2.0]), torch.zeros(2)):
        assert_close(model(x, log_snr), third_party_model.randomized(Two())(x, log_snr))


def test_more_arguments_than_were_tried():
    class Masked(third_party_model.TDRMSNorm):
        def forward(self, hidden, mask=None):
            y = super().forward(hidden)
            return y if mask is None else y * mask

    model, x = Masked(6), torch.randn(2, 6)
    assert fk.accelerate(model).norms == {"TDRMSNorm": 1}
    fk.nn.seed_time(model, torch.zeros(1))
    assert_close(model(x, mask=torch.zeros(6)), torch.zeros(2, 6))
    assert_close(model(hidden=x), model(x))


class Scaled(TDP):
    @staticmethod
    def seed_time(model, log_snr, scale=1.0):
        TDP.seed_time(model, torch.as_tensor(log_snr).reshape(-1) * scale)


class WithScale(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.gate, self.args, self.kwargs = Scaled((6,), nn.init.ones_), args, kwargs

    def forward(self, x, log_snr):
        Scaled.seed_time(self, log_snr, *self.args, **self.kwargs)
        return x * self.gate()


@pytest.mark.parametrize(
    "more", [{"args": (0.3,)}, {"kwargs": {"scale": 0.3}}, {}], ids=["by place", "by name", "none"]
)
def test_a_seed_time_with_more_arguments(more):
    def make():
        return third_party_model.randomized(WithScale(*more.get("args", ()), **more.get("kwargs", {})))

    model, x = make(), torch.randn(2, 6)
    assert fk.accelerate(model).parameters == 1
    for log_snr in (torch.tensor([2.0, -1.0]), torch.tensor([[2.0], [-1.0]]), 1.5):
        assert_close(model(x, log_snr), make()(x, log_snr))


def test_one_tensor_beside_the_parameters_of_many_samples():
    norm, queries = third_party_model.randomized(third_party_model.TDRMSNorm(6)), torch.randn(1, 4, 6)
    TDP.seed_time(norm, torch.tensor([1.0, -2.0]))
    expected = norm(queries)
    fk.accelerate(norm)
    fk.nn.seed_time(norm, torch.tensor([1.0, -2.0]))
    assert_close(norm(queries), expected)


def test_a_norm_for_tokens_only_and_a_class_attribute():
    class Parameter(TDP):
        curr_weight = None

        def __init__(self, dim):
            super().__init__((dim,), nn.init.ones_)
            del self.curr_weight

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = Parameter(6)

        def forward(self, x):
            return x / (x.norm(dim=-1, keepdim=True) * 6**-0.5 + 1e-8) * self.scale()[:, None]

    report = fk.accelerate(Tokens())
    assert (report.parameters, report.norms) == (1, {"TDRMSNorm": 1})


def test_a_forward_set_on_the_instance_is_said():
    model = ByModule()
    forward = model.forward
    model.forward = lambda *args: forward(*args)
    assert "set on the instance" in str(fk.accelerate(model))
    assert model(torch.randn(2, 6), torch.zeros(2)).shape == (2, 6)


def test_trials_do_not_depend_on_defaults():
    try:
        torch.set_default_dtype(torch.bfloat16)
        report = fk.accelerate(third_party_model.TDRMSNorm(4).float())
    finally:
        torch.set_default_dtype(torch.float32)
    assert report.norms == {"TDRMSNorm": 1}


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_sees_the_time():
    model = small()
    fk.accelerate(model)
    x, log_snr, null = inputs()
    with torch.no_grad():
        model(x, log_snr, null)
        traced = torch.jit.trace(model, (x, log_snr, null), check_trace=False, strict=False)
        got, expected = traced(x, log_snr + 1, null)[1], small()(x, log_snr + 1, null)[1]
    assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_nothing_to_do():
    assert str(fk.accelerate(nn.Linear(2, 2))) == "nothing to accelerate: no time-dependent parameters were found"


def test_table_on_an_accelerated_model():
    model = small()
    fk.accelerate(model)
    x, _, null = inputs()
    schedule = torch.linspace(4, -4, 3)
    table = fk.TimeTable(model, schedule)
    for k, log_snr in enumerate(schedule):
        with torch.no_grad():
            expected = model(x, log_snr.expand(3), null)[1]
            with table.at(k):
                assert torch.equal(model(x, log_snr.expand(3), null)[1], expected)


@pytest.mark.parametrize("function", [fk.accelerate, fk.restore])
def test_not_a_module(function):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        function(3)
