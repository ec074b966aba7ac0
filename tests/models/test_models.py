"""The velocity networks against CrossFlow's numbers, and what a user does with them besides."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from support.tiny_models import under
from third_party_model import randomized
from torch._subclasses.fake_tensor import FakeTensorMode

import fmkernels as fk
from fmkernels.flow import PsiPath, crossflow
from fmpipe.models import PRESETS, DiMR, DiT, StageConfig, build
from fmpipe.models.layers import AdaRMSNorm, AxialRoPE, QKNorm

NETWORK = {"atol": 2e-5, "rtol": 1e-4}
GRADIENT = {"atol": 1e-5, "rtol": 1e-4}
VARIANTS = ["LN.APE", "RMSN.APE", "ADARMSN.APE", "TDRMSN.Axial_RoPE"]


def pair(dim, hidden, blocks, grid=16):
    """A transformer and a ConvNeXt stage."""
    return [
        StageConfig("transformer", dim[0], hidden[0], blocks[0], (grid, grid), patch=2, heads=4),
        StageConfig("convnext", dim[1], hidden[1], blocks[1], (2 * grid, 2 * grid), patch=1),
    ]


def small(norm_type="TDRMSN", positions="APE", **config):
    """A network of odd numbers with parameters drawn at random: at their initial values time makes no difference."""
    stages = pair((16, 20), (20, 12), (3, 3), grid=3)
    return randomized(DiMR(stages, channels=3, norm_type=norm_type, positions=positions, **config))


def inputs(batch=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 3, 6, 6, generator=generator)
    return x, torch.linspace(-3, 3, batch), torch.arange(batch) % 2 == 0


@pytest.fixture(scope="module")
def tiny(golden):
    networks = build("tiny_dimr")
    networks.load_state_dict(under(golden("dimr_tiny"), "state."))
    return networks


def test_golden_forward_and_every_gradient(golden, tiny):
    g, model = golden("dimr_tiny"), copy.deepcopy(tiny.velocity_net)
    x = g["x"].clone().requires_grad_()
    outs = model(x, g["log_snr"], g["null_indicator"])
    torch.autograd.backward(outs, [g["grad_out0"], g["grad_out1"]])
    for i, out in enumerate(outs):
        torch.testing.assert_close(out, g[f"out{i}"], **NETWORK)
    torch.testing.assert_close(x.grad, g["grad_x"], **GRADIENT)
    grads, seen = under(g, "grad."), dict(model.named_parameters())
    assert len(grads) > 50
    for name, grad in grads.items():
        torch.testing.assert_close(seen[name].grad, grad, **GRADIENT, msg=lambda m, name=name: f"{name}: {m}")


def test_golden_shared_time(golden, tiny):
    g = golden("dimr_tiny")
    for log_snr in (torch.full((3,), 1.25), torch.tensor([1.25])):
        for i, out in enumerate(tiny.velocity_net(g["x"], log_snr, g["null_indicator"])):
            torch.testing.assert_close(out, g[f"same_t.out{i}"], **NETWORK)


def test_golden_sampler(golden, tiny):
    g = golden("dimr_tiny")
    x, _ = fk.sample(tiny.velocity_net.velocity, g["euler8_cfg3.x_T"], crossflow(8), guidance=3.0)
    torch.testing.assert_close(x, g["euler8_cfg3.z"], **NETWORK)


def test_golden_path_and_targets_of_every_stage(golden, tiny):
    g = golden("dimr_tiny")
    x_t, v = PsiPath().pair(g["path.t"], g["x"], g["path.x1"])
    torch.testing.assert_close(x_t, g["path.psi"], atol=1e-6, rtol=1e-5)
    for target, size in zip(tiny.velocity_net.targets(v), (16, 32), strict=True):
        torch.testing.assert_close(target, g[f"multi_scale.{size}"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_variants(golden, variant):
    g = under(golden("dimr_variants"), f"{variant}.")
    norm_type, positions = variant.split(".")
    model = DiMR(pair((48, 24), (64, 32), (3, 3)), norm_type=norm_type, positions=positions)
    model.load_state_dict(under(g, "state."))
    for i, out in enumerate(model(g["x"], g["log_snr"], g.get("null_indicator"))):
        torch.testing.assert_close(out, g[f"out{i}"], **NETWORK)


def test_golden_dit(golden):
    g, model = golden("dit_tiny"), build("tiny_dit").velocity_net
    made, given = model.pos_embed.clone(), g["state.pos_embed"]
    model.load_state_dict(under(g, "state."))
    torch.testing.assert_close(made, given, atol=1e-6, rtol=0)
    torch.testing.assert_close(model(g["x"], g["t"], g["null_indicator"]), g["out"], **NETWORK)


def test_qk_norm_and_adaptive_norm_at_the_edges(golden):
    g = golden("edges")
    qk, ada = QKNorm(4), AdaRMSNorm(48)
    qk.load_state_dict({"scale": g["qk.scale"]})
    torch.testing.assert_close(qk(g["qk.x"]), g["qk.y"], atol=0, rtol=1e-4)
    ada.load_state_dict({"linear.weight": g["adarms.linear.weight"]})
    # The layer takes its condition from its first token: give it one, and let it be left out again.
    x = torch.cat([g["adarms.1e-3.cond"][:, None], g["adarms.1e-3.x"]], dim=1)
    torch.testing.assert_close(ada(x)[:, 1:], g["adarms.1e-3.y"], atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_ops_change_nothing(variant):
    """Fused and plain PyTorch agree, values and gradients, also where the golden vectors are silent."""
    model, (x, log_snr, null) = small(*variant.split(".")).double(), inputs(3)
    x, log_snr, results = x.double(), log_snr.double(), []
    for backend in ("auto", "eager"):
        with fk.use_backend(backend):
            model.zero_grad()
            outs = model(x, log_snr, null)
            sum(out.square().sum() for out in outs).backward()
        results.append([*outs, *(p.grad for p in model.parameters())])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-9 * plain.abs().max().item(), rtol=1e-9)


def test_every_parameter_has_a_gradient():
    for model in (small(), small("LN", "Axial_RoPE"), small("ADARMSN"), build("tiny_dit").velocity_net):
        x = torch.randn(2, model.config.channels, *(2 * [model.config.get("size", 6)]))
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.2)
        outs = model.velocities(x, torch.tensor([0.2, 0.7]), null=torch.tensor([False, True]))
        sum(out.square().mean() for out in outs).backward()
        assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_three_stages_and_a_downsampled_input():
    stages = [
        StageConfig("transformer", 16, 24, 3, (4, 4), patch=2, image_ratio=2, heads=2),
        StageConfig("convnext", 12, 8, 1, (8, 8), patch=2, kernel=3, final_kernel=1),
        StageConfig("transformer", 8, 8, 4, (16, 16), patch=1, heads=2),
    ]
    model = randomized(DiMR(stages))
    x = torch.randn(2, 4, 16, 12)
    outs = model(x, torch.zeros(1), torch.tensor([True, False]))
    assert [tuple(o.shape) for o in outs] == [(2, 4, 4, 3), (2, 4, 8, 6), (2, 4, 16, 12)]
    assert [tuple(t.shape) for t in model.targets(x)] == [tuple(o.shape) for o in outs]
    assert len(model.stages[2].blocks) == 5, "blocks are rounded to an odd number"
    with pytest.raises(ValueError, match="positions of stage 0"):
        model(torch.randn(1, 4, 32, 32), torch.zeros(1))


def test_the_indicator_matters_and_may_be_left_out():
    model, (x, log_snr, null) = small(), inputs()
    with torch.no_grad():
        yes, no, none = (model(x, log_snr, n)[-1] for n in (null, ~null, None))
    assert (yes - no).abs().max() > 1e-3
    assert (yes - none).abs().max() > 1e-3


def test_guided_batch_is_two_forwards():
    model, (x, _, _) = small(), inputs()
    with torch.no_grad():
        t, one = torch.full((2,), 0.3), torch.ones(2, dtype=torch.bool)
        both = model.velocity(torch.cat([x, x]), t.repeat(2), null=torch.cat([~one, one]))
        apart = torch.cat([model.velocity(x, t, null=~one), model.velocity(x, t, null=one)])
    torch.testing.assert_close(both, apart, **NETWORK)


def test_time_table_serves_the_forward():
    model, (x, log_snr, null) = small(), inputs()
    table = fk.TimeTable(model, torch.tensor([2.0, -1.0]))
    with torch.no_grad():
        for k, s in enumerate((2.0, -1.0)):
            with table.at(k):
                tabled = model(x, log_snr, null)[-1]
            torch.testing.assert_close(tabled, model(x, torch.tensor([s]), null)[-1], **NETWORK)


def test_room_for_large_buffers_changes_nothing(monkeypatch):
    """Sampling reuses memory from forward to forward; results, copies and gradients know nothing of it."""
    model, (x, log_snr, null) = small(), inputs(3)
    expected = [out.detach() for out in model(x, log_snr, null)]
    assert model.buffer_pool.buffers == {}, "autograd owns its memory"
    monkeypatch.setattr("fmpipe.models.buffers.LARGE", 0)
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with mode():
            for rows in (3, 1, 2):
                for out, want in zip(model(x[:rows], log_snr[:rows], null[:rows]), expected, strict=True):
                    torch.testing.assert_close(out, want[:rows], **NETWORK)
    assert set(model.buffer_pool.buffers) == {"skips", "normed"}
    addresses = {k: v.data_ptr() for k, v in model.buffer_pool.buffers.items()}
    with torch.no_grad():
        kept = model(x, log_snr, null)
        model(x + 1, log_snr, null)
    assert {k: v.data_ptr() for k, v in model.buffer_pool.buffers.items()} == addresses
    for out, want in zip(kept, expected, strict=True):  # outputs are not in the pool
        torch.testing.assert_close(out, want, **NETWORK)
    assert copy.deepcopy(model).buffer_pool.buffers == {}
    model(x, log_snr, null)[-1].sum().backward()
    with torch.no_grad():
        assert model.double()(x.double(), log_snr.double(), null)[-1].dtype == torch.float64


def test_room_is_one_thread_s_and_not_for_those_who_trace(monkeypatch):
    monkeypatch.setattr("fmpipe.models.buffers.LARGE", 0)
    model, (x, _, null) = small(), inputs(3)
    log_snr = torch.zeros(1)
    with torch.no_grad():
        expected = [model(x + i, log_snr, null)[-1] for i in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                many = pool.map(lambda i: torch.no_grad()(model)(x + i, log_snr, null)[-1], range(4))
                for got, want in zip(many, expected, strict=True):
                    torch.testing.assert_close(got, want, **NETWORK)
        fresh = small()
        with FakeTensorMode(allow_non_fake_inputs=True):
            fresh(torch.zeros(1, 3, 6, 6), torch.zeros(1))
        assert fresh.buffer_pool.buffers == {}
        one_by_one = torch.vmap(lambda x: model(x[None], log_snr)[-1][0])(x)
    torch.testing.assert_close(one_by_one, model(x, log_snr)[-1], **NETWORK)


def test_image_ratio_is_a_mean_over_windows():
    half, whole = (
        DiMR([StageConfig("convnext", 8, 8, 1, (6, 6), patch=1, image_ratio=ratio, kernel=3)]) for ratio in (2, 1)
    )
    whole.load_state_dict(randomized(half).state_dict())
    x, log_snr = torch.randn(2, 4, 12, 12), torch.zeros(1)
    torch.testing.assert_close(half(x, log_snr)[0], whole(F.avg_pool2d(x, 2), log_snr)[0], **NETWORK)


def test_rope_leaves_the_indicator_token_alone():
    rope = AxialRoPE(2, 8)
    q, rotation = torch.randn(1, 2, 7, 8), rope.rotation(2, 3)
    turned = rope.rotate(q, rotation)
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert torch.equal(turned[:, :, 1:], rope.rotate(q[:, :, 1:], rotation))
    assert not torch.allclose(turned[:, :, 1:], q[:, :, 1:])
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    # Pairs (even, odd): the row's frequencies first, at the centre of the first row of two, -1/2.
    angle = -0.5 * math.pi
    a, b = q[0, 0, 1, :2]
    expected = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    torch.testing.assert_close(turned[0, 0, 1, :2], torch.stack(expected))


@pytest.mark.parametrize("name", ["tiny_dimr", "tiny_dit"])
def test_gradient_checkpointing_gives_the_same_gradients(name):
    model = build(name).velocity_net
    randomized(model)
    x, null = torch.randn(2, 4, 32, 32), torch.tensor([True, False])
    grads, calls = [], []
    blocks = [m for m in model.modules() if type(m).__name__.endswith("Block")]
    for block in blocks:
        block.register_forward_pre_hook(lambda module, args: calls.append(torch.is_grad_enabled()))
    for switched in (False, True):
        calls.clear()
        if switched:
            model.enable_gradient_checkpointing()
        model.zero_grad()
        outs = model.velocities(x, torch.tensor([0.2, 0.7]), null=null)
        with torch.no_grad():  # another forward before the backward, at another time
            model.velocities(x, torch.tensor([0.9, 0.1]), null=null)
        sum(out.square().mean() for out in outs).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        assert sum(calls) == (2 if switched else 1) * len(blocks) > 0, "each block runs again in the backward"
    assert model.is_gradient_checkpointing
    for plain, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    model, (x, log_snr, null) = small(), inputs()
    with torch.no_grad():
        expected = model(x, log_snr, null)[-1]
        got = model.to(dtype)(x.to(dtype), log_snr.to(dtype), null)[-1]
    assert got.dtype == dtype
    assert (got.float() - expected).norm() < (0.05 if dtype == torch.bfloat16 else 1e-5) * expected.norm()


@pytest.mark.parametrize("model", [small, lambda: build("tiny_dit").velocity_net], ids=["dimr", "dit"])
def test_autocast_trains(model):
    model = randomized(model())
    x = torch.randn(2, model.config.channels, *(2 * [model.config.get("size", 6)]))
    norms = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            outs = model.velocities(x, torch.tensor([0.2, 0.7]), null=torch.tensor([False, True]))
        sum(out.float().square().mean() for out in outs).backward()
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]))
    assert (norms[1] - norms[0]).norm() < 0.1 * norms[0].norm()


@pytest.mark.slow
def test_compiles_in_one_graph():
    model, (x, log_snr, null) = small(), inputs()
    with torch.no_grad():
        expected = model(x, log_snr, null)
        for out, want in zip(torch.compile(model, fullgraph=True)(x, log_snr, null), expected, strict=True):
            torch.testing.assert_close(out, want, **NETWORK)


@pytest.mark.parametrize("model", [small, lambda: build("tiny_dit").velocity_net], ids=["dimr", "dit"])
def test_save_and_load(model, tmp_path):
    model = randomized(model())
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert again.config.items() >= {k: v for k, v in model.config.items() if not k.startswith("_")}.items()
    for (name, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    assert (tmp_path / "diffusion_pytorch_model.safetensors").exists()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_without_memory(name):
    networks = build(name, "meta")
    assert {p.device.type for p in networks.velocity_net.parameters()} == {"meta"}
    assert networks.text_head.config.latent_shape[0] == networks.velocity_net.config.channels


def test_what_keys_do_not_show_of_the_released_presets():
    """Heads and null probabilities, as CrossFlow publishes them."""
    found = {}
    for name in list(PRESETS)[:4]:
        config = build(name, "meta").velocity_net.config
        heads = config.heads if "dit" in name else config.stage_configs[0]["heads"]
        head = build(name, "meta").text_head.config
        found[name] = heads, head.heads, head.reductions, PRESETS[name].null_probability
    assert list(found.values()) == [(16, 8, 3, 0.1), (16, 8, 3, 0.15), (16, 8, 3, 0.15), (20, 8, 3, 0.1)]


@pytest.mark.parametrize("norm_type", ["TDRMSN", "ADARMSN", "RMSN"])
@pytest.mark.parametrize("positions", ["APE", "Axial_RoPE"])
def test_reset_makes_every_initial_value_anew(norm_type, positions):
    stages = pair((16, 12), (8, 8), (3, 1), grid=2)
    model = DiMR(stages, norm_type=norm_type, positions=positions)
    again = DiMR(stages, norm_type=norm_type, positions=positions)
    with torch.no_grad():
        for p in again.parameters():
            p.fill_(9.0)
    again.reset_parameters()
    for name, p in again.named_parameters():
        drawn = p.dim() > 1 and "freqs" not in name and "norm.linear" not in name
        if drawn:
            assert 0 < p.std() < 0.03, name
        else:
            assert torch.equal(p, model.get_parameter(name)), name
    names = dict(again.named_parameters())
    assert names["stages.0.tensor_true"] == -1
    assert names["stages.1.upsample.0.weight.param0"].eq(1).all()
    if norm_type == "ADARMSN":
        assert names["stages.0.blocks.0.block1.norm.linear.weight"].eq(0).all()


def test_reset_of_what_was_built_without_memory():
    for name in ("tiny_dimr", "tiny_dit"):
        networks, again = build(name), build(name, "meta").to_empty(device="cpu")
        for network in again.children():
            network.reset_parameters()
        for key, value in networks.state_dict().items():
            made = again.state_dict()[key]
            drawn = value.dim() > 1 and value.std() > 0
            assert torch.equal(made, value) or (drawn and 0.5 < made.std() / value.std() < 2), key


def test_an_empty_batch_is_an_empty_batch():
    for model in (small(), build("tiny_dit").velocity_net):
        x = torch.zeros(0, model.config.channels, *(2 * [model.config.get("size", 6)]))
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                assert model.velocity(x, torch.zeros(1), null=torch.zeros(0, dtype=torch.bool)).shape == x.shape


def test_parameters_that_are_nowhere_are_named():
    with pytest.raises(RuntimeError, match="enable_model_cpu_offload"):
        build("tiny_dimr", "meta").velocity_net(torch.zeros(1, 4, 32, 32), torch.zeros(1))


BAD = {
    "kind": (lambda: StageConfig("conv", 8, 8, 1, 4, 1), "kind must be"),
    "dim": (lambda: StageConfig("convnext", 0, 8, 1, 4, 1), "dim must be a positive integer"),
    "heads": (lambda: StageConfig("transformer", 10, 8, 1, 4, 1, heads=4), "multiple of heads"),
    "kernel": (lambda: StageConfig("convnext", 8, 8, 1, 4, 1, kernel=4), "kernel must be odd"),
    "grid": (lambda: StageConfig("convnext", 8, 8, 1, (4, 4, 4), 1), "grid must be"),
    "stage_configs": (lambda: DiMR([]), "stage_configs"),
    "norm_type": (lambda: DiMR(pair((8, 8), (8, 8), (1, 1)), norm_type="BN"), "norm_type must be one of LN"),
    "positions": (lambda: DiMR(pair((8, 8), (8, 8), (1, 1)), positions="rope"), "positions must be"),
    "rope width": (lambda: DiMR(pair((8, 8), (8, 8), (1, 1)), positions="Axial_RoPE"), "multiple of 4"),
    "order": (lambda: DiMR(pair((8, 8), (8, 8), (1, 1))[::-1]), "coarse to fine"),
    "x": (lambda: small()(torch.randn(1, 4, 6, 6), torch.zeros(1)), r"x must be \(B, 3, H, W\)"),
    "size": (lambda: small()(torch.randn(1, 3, 5, 6), torch.zeros(1)), "multiples of 2"),
    "log_snr": (lambda: small()(torch.randn(2, 3, 6, 6), torch.zeros(3)), "log_snr must be"),
    "null": (lambda: small()(torch.randn(2, 3, 6, 6), torch.zeros(2), torch.zeros(2)), "null_indicator must be a bool"),
    "t": (lambda: small().velocity(torch.randn(2, 3, 6, 6), 0.5), "t must be a tensor"),
    "null of velocity": (
        lambda: small().velocity(torch.randn(2, 3, 6, 6), torch.zeros(2), null=torch.zeros(2)),
        "null must",
    ),
    "cond": (lambda: small().velocity(torch.randn(2, 3, 6, 6), torch.zeros(2), cond=1), "cond must be None"),
    "dit x": (lambda: build("tiny_dit").velocity_net(torch.randn(1, 4, 8, 8), torch.zeros(1)), "x must be"),
    "dit t": (lambda: build("tiny_dit").velocity_net(torch.randn(2, 4, 32, 32), torch.zeros(3)), "t must be"),
    "dit depth": (lambda: DiT(depth=0), "depth must be a positive"),
    "channels": (lambda: DiMR(pair((8, 8), (8, 8), (1, 1)), channels=0), "channels must be"),
    "null a list": (lambda: small()(torch.randn(2, 3, 6, 6), torch.zeros(2), [True, False]), "null_indicator must be"),
    "dit size": (lambda: DiT(size=33), "size must be a multiple"),
    "dit heads": (lambda: DiT(dim=40, heads=6), "multiple of heads"),
    "preset": (lambda: build("huge"), "choose one of t2i_256px_clip_dimr"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_x_of_another_dtype_is_named():
    for model in (small(), build("tiny_dit").velocity_net):
        x = torch.zeros(1, model.config.channels, *(2 * [model.config.get("size", 6)]))
        with pytest.raises(TypeError, match=r"x must be torch.float32"):
            model.velocity(x.bfloat16(), torch.zeros(1))
