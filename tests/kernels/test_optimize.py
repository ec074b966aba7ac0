"""optimize(model) on the modules of flow transformers: formulas, proofs, fallbacks, and what models are used with."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import fmkernels as fk
from fmkernels.swap import fused, trial

D, C = 16, 24


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled(module, seed=3):
    """The module with random weights."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(rand(*p.shape, seed=seed + i) * 0.3 + 0.1)
    return module


# Modules of many kinds, written from their formulas. Each ends with its inputs and the number of modules to be swapped.


class RootOutside(nn.Module):
    """x / (rms + eps) * (1 + g)"""

    def __init__(self, dim):
        super().__init__()
        self.g, self.epsilon = nn.Parameter(torch.zeros(dim)), 1e-6

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.epsilon) * (1 + self.g)


class Llama(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale, self.variance_epsilon = nn.Parameter(torch.ones(dim)), 1e-5

    def forward(self, hidden):
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.scale * wide.to(hidden.dtype)


class ShiftFirst(nn.Module):
    """Two norms, shift before scale, the constant last, and other names."""

    def __init__(self):
        super().__init__()
        self.to_rows, self.first, self.second = nn.Linear(C, 4 * D), nn.LayerNorm(D, elementwise_affine=False), Llama(D)

    def forward(self, tokens, cond, others=None):
        a, b, c, d = self.to_rows(F.silu(cond)).unsqueeze(1).chunk(4, dim=-1)
        h = self.first(tokens)
        rows = b.tanh()
        h = a + (rows + 1.0) * h
        return h, self.second(tokens) * (1 + c), d


class KeepsTheNorm(nn.Module):
    """The norm's result is used twice, so the modulation may not absorb it."""

    def __init__(self):
        super().__init__()
        self.rows, self.norm = nn.Linear(C, 2 * D), nn.LayerNorm(D)

    def forward(self, x, cond):
        scale, shift = self.rows(cond)[:, None].chunk(2, -1)
        n = self.norm(x)
        return n * (1 + scale) + shift, n


class Gated(nn.Module):
    def __init__(self, act, gate_last=False):
        super().__init__()
        self.act, self.up, self.down, self.gate_last = act, nn.Linear(D, 4 * D), nn.Linear(2 * D, D), gate_last

    def forward(self, x):
        a, b = self.up(x).chunk(2, dim=-1)
        return self.down(a * self.act(b) if self.gate_last else self.act(a) * b)


class Wan(nn.Module):
    """A block with its modulation and gates inline, in float32, and a branch."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, 6, D))
        self.norm1, self.norm2 = (
            nn.LayerNorm(D, eps=1e-6, elementwise_affine=False),
            nn.LayerNorm(D, elementwise_affine=False),
        )
        self.mix, self.ff = nn.Linear(D, D), Gated(nn.SiLU())

    def forward(self, x, temb, skip=False):
        a, b, c, d, e, f = (self.table + temb.float()).chunk(6, dim=1)
        n = (self.norm1(x.float()) * (1 + b) + a).type_as(x)
        out = self.mix(n)
        x = (x.float() + out * c).type_as(x)
        if not skip:
            n = self.norm2(x)
            n = n * (1 + e) + d
            product = f * self.ff(n.type_as(x))
            x = x + product.type_as(x)
        return x


X, COND, TEMB = rand(2, 5, D, seed=1), rand(2, C, seed=2), rand(2, 6, D, seed=4)
CASES = {
    "layer norm": (lambda: nn.LayerNorm(D), (X,), {"norm"}),
    "layer norm without weights": (lambda: nn.LayerNorm(D, elementwise_affine=False), (X,), {"norm"}),
    "layer norm without bias": (lambda: nn.LayerNorm(D, bias=False), (X,), {"norm"}),
    "torch's RMS norm, eps of the dtype": (lambda: nn.RMSNorm(D), (X,), {"norm"}),
    "RMS norm of heads": (lambda: nn.RMSNorm(D, eps=1e-6), (rand(2, 3, 5, D).transpose(1, 2),), {"norm"}),
    "eps outside, one plus weight": (lambda: RootOutside(D), (X,), {"norm"}),
    "Llama's": (lambda: Llama(D), (X,), {"norm"}),
    "modulated, two norms": (ShiftFirst, (X, COND), {"norm", "modulated norm"}),
    "norm used twice": (KeepsTheNorm, (X, COND), {"norm"}),
    "SwiGLU": (lambda: Gated(nn.SiLU()), (X,), {"gate"}),
    "GEGLU": (lambda: Gated(nn.GELU(), gate_last=True), (X,), {"gate"}),
    "tanh gate": (lambda: Gated(nn.GELU(approximate="tanh")), (X,), {"gate"}),
    "block": (Wan, (X, TEMB), {"norm", "modulated norm", "gate", "gated sum"}),
}


def results(module, args):
    leaves = [x.detach().clone().requires_grad_() for x in args]
    outs = list(trial._tensors(module(*[x.view_as(x) for x in leaves])))
    sum((y * rand(*y.shape, seed=9 + i).to(y)).sum() for i, y in enumerate(outs)).backward()
    grads = [x.grad for x in leaves] + [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return [y.detach() for y in outs], grads


def gap(tensors, expected):
    return max(float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
               for a, b in zip(tensors, expected, strict=True))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_a_swap_keeps_the_results_and_restores_every_bit(name, dtype):
    make, args, kinds = CASES[name]
    module, args = filled(make()).to(dtype), [x.to(dtype) for x in args]
    original = results(module, args)
    exact = results(copy.deepcopy(module).double(), [x.double() for x in args])
    state, types = copy.deepcopy(module.state_dict()), [type(m) for m in module.modules()]
    report = fk.optimize(module, example=args)
    # Some originals compute in float32 in float64, underflow in float16, or have another eps in bfloat16.
    if dtype == torch.float32 or (dtype == torch.bfloat16 and "eps of the dtype" not in name):
        assert set(report.kinds) == kinds, report.details()
    ours = results(module, args)
    unit = torch.finfo(torch.float32 if name == "block" and dtype == torch.float64 else dtype).eps  # it calls float()
    for was, now, true in zip(original, ours, exact, strict=True):
        assert [y.dtype for y in now] == [y.dtype for y in was]
        assert gap(now, true) <= 2 * gap(was, true) + 8 * unit
    assert all(torch.equal(a, b) for a, b in zip(state.values(), module.state_dict().values(), strict=True))
    assert list(state) == list(module.state_dict())
    fk.restore(module)
    assert types == [type(m) for m in module.modules()]
    assert all(torch.equal(a, b) for x, y in zip(original, results(module, args), strict=True) for a, b in zip(x, y))


def test_the_trial_refuses_what_computes_something_else():
    class NotANorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(D)), 1e-6

        def forward(self, x):
            return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight

    class Noisy(nn.Module):
        """Its own numbers decide what it returns, so two runs with one seed agree, and a fused one must as well."""

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            return F.silu(self.a(x)) * F.dropout(self.b(x), 0.5)

    model = nn.ModuleList([NotANorm(), Noisy(), nn.BatchNorm1d(D), nn.GroupNorm(2, D)])
    report = fk.optimize(model)
    rows = {swap.cls: swap for swap in report.modules}
    assert "neither a layer norm nor an RMS norm" in rows["NotANorm"].reason
    assert rows["Noisy"].swapped  # the order of random numbers is that of the original
    assert set(rows) == {"NotANorm", "Noisy"}
    assert "left unchanged: 0 (NotANorm)" in str(report)


def test_a_wrong_rewrite_is_refused(monkeypatch):
    module = filled(Gated(nn.SiLU()))
    monkeypatch.setattr(fused, "_gate_mul", lambda a, b, act, gate_first: F.gelu(a) * b)
    report = fk.optimize(module)
    assert [swap.swapped for swap in report.modules] == [False]
    assert "differs by" in report.modules[0].reason
    assert type(module) is Gated


def swapped_block(dtype=torch.float32):
    module = filled(Wan()).to(dtype)
    before = copy.deepcopy(module)
    report = fk.optimize(module, example=(X.to(dtype), TEMB.to(dtype)))
    assert len(report.swapped) == 4, report.details()
    return before, module


def fused_calls(function):
    with trial.counted() as counts:
        function()
    return sum(counts.values())


def test_what_was_not_proven_runs_the_original():
    before, after = swapped_block()
    with torch.no_grad():
        assert fused_calls(lambda: after(X, TEMB)) >= 4
        with torch.autocast("cpu", torch.bfloat16):
            assert fused_calls(lambda: after(X, TEMB)) == 0
            assert torch.equal(after(X, TEMB), before(X, TEMB))
        mapped = torch.func.vmap(lambda x, t: after(x[None], t[None])[0])(X, TEMB)
        torch.testing.assert_close(mapped, before(X, TEMB))
        assert fused_calls(lambda: torch.func.vmap(lambda x, t: after(x[None], t[None])[0])(X, TEMB)) == 0
        _, tangent = torch.func.jvp(lambda x: after(x, TEMB), (X,), (X,))
        torch.testing.assert_close(tangent, torch.func.jvp(lambda x: before(x, TEMB), (X,), (X,))[1])
        meta = copy.deepcopy(after).to("meta")
        assert meta(X.to("meta"), TEMB.to("meta")).shape == X.shape
        torch.testing.assert_close(after(X, TEMB, skip=True), before(X, TEMB, skip=True))
        integers = nn.LayerNorm(D)
        fk.optimize(integers)
        with pytest.raises(RuntimeError):
            integers(torch.ones(2, D, dtype=torch.long))


def test_rows_are_broadcast_as_in_torch():
    """A row for each of three samples beside three tokens: (3, D) varies over the tokens, not over the samples."""

    class Ambiguous(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(D, elementwise_affine=False)

        def forward(self, x, rows):
            return x + rows * self.norm(x), self.norm(x) * (1 + rows)

    module, x = Ambiguous(), rand(3, 3, D)
    fk.optimize(module, example=(x, rand(3, 1, D)))
    assert type(module) is not Ambiguous
    for rows in (rand(3, D), rand(3, 1, D), rand(1, 3, D), rand(3, 3, D), rand(D), rand(3, 3, 1), rand(1)):
        expected = x + rows * F.layer_norm(x, (D,)), F.layer_norm(x, (D,)) * (1 + rows)
        torch.testing.assert_close(module(x, rows), expected)


def test_the_dtype_is_followed_after_the_swap():
    before, after = swapped_block()
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float64, 1e-6)):  # the block computes in float32
        b, a = copy.deepcopy(before).to(dtype), copy.deepcopy(after).to(dtype)
        x, temb = X.to(dtype), TEMB.to(dtype)
        assert a(x, temb).dtype == b(x, temb).dtype == dtype
        torch.testing.assert_close(a(x, temb), b(x, temb), rtol=0, atol=tolerance * float(b(x, temb).abs().max()))


def test_hooks_are_called():
    _, after = swapped_block()
    called = []
    after.norm1.register_forward_hook(lambda m, args, y: called.append("norm1"))
    after.ff.act.register_forward_pre_hook(lambda m, args: called.append("act"))
    after.register_forward_hook(lambda m, args, y: called.append("block"))
    after(X, TEMB)
    assert called == ["norm1", "act", "block"]


def test_copies_pickles_and_a_second_call():
    _, after = swapped_block()
    expected = after(X, TEMB)
    assert torch.equal(copy.deepcopy(after)(X, TEMB), expected)
    buffer = io.BytesIO()
    torch.save(after, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded(X, TEMB), expected)
    assert fused_calls(lambda: loaded(X, TEMB)) >= 4
    fk.restore(loaded)
    assert type(loaded) is Wan
    assert not fk.optimize(after, example=(X, TEMB)).modules


def test_gradient_checkpointing():
    before, after = swapped_block()
    for module in (before, after):
        x = X.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(module, x, TEMB, use_reentrant=False).square().sum().backward()
        module.seen = [x.grad, *(p.grad for p in module.parameters())]
    assert gap(after.seen, before.seen) < 1e-5


@pytest.mark.parametrize("when", ["before", "after"])
def test_compile(when):
    before, after = filled(Wan()), filled(Wan())
    if when == "after":
        fk.optimize(after, example=(X, TEMB))
    compiled = torch.compile(after, backend="aot_eager", fullgraph=True)
    if when == "before":
        compiled(X, TEMB)
        fk.optimize(compiled._orig_mod, example=(X, TEMB))
    torch.testing.assert_close(compiled(X, TEMB), before(X, TEMB))


def _data_parallel(rank, path):
    """In another process: a group that outlives its model waits for a thread that waits for it."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    before, after = swapped_block()
    wrapped = nn.parallel.DistributedDataParallel(after)
    assert gap(*[results(m, (X, TEMB))[1] for m in (wrapped, before)]) < 1e-5
    del wrapped
    dist.destroy_process_group()


@pytest.mark.slow
def test_data_parallel(tmp_path):
    torch.multiprocessing.spawn(_data_parallel, args=(tmp_path / "store",), nprocs=2)


def test_errors():
    with pytest.raises(TypeError, match=r"optimize: model must be a torch\.nn\.Module, got int"):
        fk.optimize(3)
    with pytest.raises(TypeError, match="optimize: example must be a dict or a sequence of arguments, got Tensor"):
        fk.optimize(nn.LayerNorm(4), X)
    assert fk.accelerate is fk.optimize


def test_the_report_names_what_needs_an_example_and_measures():
    module = filled(nn.ModuleDict({"block": Wan()}))
    report = fk.optimize(module, measure=True)
    assert all(swap.before > 0 and swap.after > 0 for swap in report.swapped)
    assert "us" in str(report)
    assert report.kinds["norm"] == 2
    names = {swap.name: swap.reason for swap in report.modules}
    assert names["block.norm1"] == ""
    assert names["block.ff"] == ""


# Models of diffusers. Their configurations are those of benchmarks/families.py.


@pytest.fixture
def flux():
    families = pytest.importorskip("family_configs")
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    config, inputs = families.flux1()
    return diffusers.FluxTransformer2DModel(**config).eval(), inputs


def test_save_pretrained(flux, tmp_path):
    model, inputs = flux
    expected = model(**inputs).sample
    report = fk.optimize(model, example=inputs)
    assert {"norm", "modulated norm", "gated sum", "rotary embedding"} <= set(report.kinds)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(**inputs).sample, expected)
    torch.testing.assert_close(model(**inputs).sample, expected)
    fk.restore(model)
    assert torch.equal(model(**inputs).sample, expected)
    assert type(model.transformer_blocks[0].attn.processor).__mro__[1].__name__ == "object"


def test_lora(flux):
    peft = pytest.importorskip("peft")
    model, inputs = flux
    other = copy.deepcopy(model)
    fk.optimize(model, example=inputs)
    for net in (model, other):
        net.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "linear"], init_lora_weights=False))
        with torch.no_grad():
            for i, (name, p) in enumerate(net.named_parameters()):
                if "lora" in name:
                    p.copy_(rand(*p.shape, seed=i) * 0.1)
    torch.testing.assert_close(model(**inputs).sample, other(**inputs).sample)
    assert sum("lora" in name for name, _ in model.named_parameters()) > 4


def test_offload_hooks(flux):
    hooks = pytest.importorskip("accelerate.hooks")
    model, inputs = flux
    expected = model(**inputs).sample
    fk.optimize(model, example=inputs)
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook("cpu", io_same_device=True))
    hooks.attach_align_device_hook(model, execution_device="cpu", offload=True)  # as enable_sequential_cpu_offload
    torch.testing.assert_close(model(**inputs).sample, expected)
    hooks.remove_hook_from_module(model, recurse=True)
    torch.testing.assert_close(model(**inputs).sample, expected)
