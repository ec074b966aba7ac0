"""Pipelines whose velocity network is quantized: converted, sampled, saved, loaded, checked."""

import pytest
import torch
from support.tiny_models import tiny_vae

from fmkernels import precision as layers
from fmkernels import quantize, restore
from fmpipe import precision as networks
from fmpipe.diagnose import checks
from fmpipe.models import DiMR, DiT
from fmpipe.models.presets import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.precision import gains, precision_of, sample_input, set_precision, wanted_dtype

PRECISIONS = ("bf16", "int8", "fp8")


@pytest.fixture
def pipe():
    torch.manual_seed(0)
    networks = build("small_dimr").eval()
    made = FlowPipeline(None, networks.text_head, networks.velocity_net, tiny_vae())
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture
def any_machine(monkeypatch):
    """As on a machine with all instructions, on which every layer gains."""
    monkeypatch.setattr(layers, "unsupported", lambda *_: "")
    monkeypatch.setattr(networks, "unsupported", lambda *_: "")
    monkeypatch.setattr(layers, "_gain", lambda *_: 9.0)


def network(preset):
    torch.manual_seed(0)
    net = build(preset).velocity_net.eval()
    for p in net.parameters():  # a fresh DiT's velocity is 0
        torch.nn.init.normal_(p, std=0.05) if p.dim() > 1 else None
    return net


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("preset", ["small_dimr", "tiny_dimr", "tiny_dit"])
def test_a_networks_velocity_stays_close(preset, name):
    net = network(preset)
    x, t, null = sample_input(net)
    with torch.no_grad():
        wanted = net.velocity(x, t, null=null)
        report = set_precision(net, name, min_gain=0, keep_weights=True)
        got = net.velocity(x, t, null=null)
        restore(net)
        assert torch.equal(net.velocity(x, t, null=null), wanted)
    assert len(report.swapped) > len(report.layers) / 2
    assert got.dtype == torch.float32
    assert 0 < (got - wanted).norm() < {"bf16": 0.02, "int8": 0.05, "fp8": 0.1}[name] * wanted.norm()


@pytest.mark.parametrize("kind", ["Axial_RoPE", "ADARMSN"])
def test_every_kind_of_block_can_be_quantized(kind):
    rope = kind == "Axial_RoPE"
    config = network("tiny_dimr").config
    options = {"positions": kind} if rope else {"norm_type": kind}
    net = DiMR(config.stage_configs, **options).eval()
    x, t, null = sample_input(net)
    with torch.no_grad():
        wanted = net.velocity(x, t, null=null)
        for name in PRECISIONS:
            quantize(net, name, min_gain=0, max_error=1)
            assert (net.velocity(x, t, null=null) - wanted).norm() < 0.2 * wanted.norm()
            restore(net)


def test_blocks_in_int8_read_norms_that_are_never_in_fp32(monkeypatch):
    net = network("tiny_dimr")
    with torch.no_grad():
        quantize(net, "int8", min_gain=0, max_error=1)
        calls = []
        original = layers.Int8Weight.product
        monkeypatch.setattr(
            layers.Int8Weight, "product", lambda self, x, *rest: calls.append(type(x)) or original(self, x, *rest)
        )
        x, t, null = sample_input(net)
        net.velocity(x, t, null=null)
    blocks = [block for stage in net.stages for block in stage.blocks]
    fused = sum(3 if stage.is_transformer else 2 for stage in net.stages for _ in stage.blocks)
    assert calls.count(layers.Int8Rows) == fused + 1
    assert len(blocks) < fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PRECISIONS)
def test_a_quantized_pipeline_is_saved_and_loaded(pipe, name, dtype, tmp_path, any_machine):
    pipe = pipe.to(dtype)
    pipe.set_velocity_precision(name)
    pipe.save_pretrained(tmp_path / name)
    again = FlowPipeline.from_pretrained(tmp_path / name, torch_dtype=dtype)
    assert precision_of(again.velocity_net) == again.config.velocity_precision == name
    embeds = torch.randn(2, pipe.text_head.config.tokens, pipe.text_head.config.width, dtype=dtype)
    options = {"prompt_embeds": embeds, "num_inference_steps": 2, "z0_mode": "mean", "output_type": "latent"}
    first, second = pipe(**options), again(**options)
    assert torch.equal(first.images, second.images)
    assert again.velocity_net.dtype == dtype
    assert first.trace.precision == name
    assert f"velocity computed in {name}" in str(first.trace)


def test_the_files_of_a_network_in_int8_take_a_quarter(tmp_path, any_machine):
    sizes, net = {}, DiT(size=16, dim=256, depth=2, heads=4).eval()
    for name in ("fp32", "int8"):
        set_precision(net, name)
        net.save_pretrained(tmp_path / name)
        sizes[name] = sum(f.stat().st_size for f in (tmp_path / name).glob("*.safetensors"))
    assert sizes["int8"] < 0.3 * sizes["fp32"]
    again = DiT.from_pretrained(tmp_path / "int8")
    x, t, null = sample_input(net)
    with torch.no_grad():
        assert torch.equal(again.velocity(x, t, null=null), net.velocity(x, t, null=null))


def test_a_pipeline_in_int8_loads_as_fp32_without_the_instructions(pipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(layers, "_gain", lambda *_: 9.0)
        patch.setattr(layers, "unsupported", lambda *_: "")
        pipe.set_velocity_precision("int8")
        pipe.save_pretrained(tmp_path)
    monkeypatch.setattr(layers, "unsupported", lambda *_: "masked")
    monkeypatch.setattr(networks, "unsupported", lambda *_: "masked")
    again = FlowPipeline.from_pretrained(tmp_path)
    assert precision_of(again.velocity_net) == "fp32"
    x, t, null = sample_input(pipe.velocity_net)
    with torch.no_grad():
        got, wanted = again.velocity(x, t, null), pipe.velocity(x, t, null)
    assert (got - wanted).norm() < 0.05 * wanted.norm()


def test_auto_takes_what_the_machine_has(pipe, monkeypatch):
    for available, name in ((("int8", "bf16"), "int8"), (("bf16",), "bf16"), ((), "fp32")):
        monkeypatch.setattr(networks, "unsupported", lambda p, *_, has=available: "" if p in has else "no")
        monkeypatch.setattr(layers, "unsupported", lambda p, *_, has=available: "" if p in has else "no")
        monkeypatch.setattr(layers, "_gain", lambda *_: 9.0)
        pipe.set_velocity_precision("auto")
        assert precision_of(pipe.velocity_net) == name
        assert pipe.config.velocity_precision == "auto"
        if name != "fp32":
            with pytest.warns(UserWarning, match="not kept"):
                restore(pipe.velocity_net)


def test_a_wrong_precision_is_named(pipe):
    with pytest.raises(
        ValueError, match="unknown velocity_precision 'int4'; choose one of fp32, bf16, int8, fp8, auto"
    ):
        pipe.set_velocity_precision("int4")


def test_the_velocity_dtype_auto_is_bf16_if_that_is_faster(pipe, monkeypatch):
    net = pipe.velocity_net
    z0 = torch.randn(1, *pipe.text_head.config.latent_shape)
    monkeypatch.setattr(networks, "unsupported", lambda *_: "")
    for slow, fast, dtype in ((1.0, 0.5, torch.bfloat16), (1.0, 1.2, torch.float32)):
        networks._faster.clear()
        monkeypatch.setattr(
            networks, "_seconds", lambda *_, s=slow, f=fast: f if torch.is_autocast_enabled("cpu") else s
        )
        assert wanted_dtype(net, z0) == dtype
        out = pipe(latents=z0, num_inference_steps=1, velocity_dtype="auto", output_type="latent")
        assert out.trace.precision == {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    monkeypatch.setattr(networks, "unsupported", lambda *_: "masked")
    networks._faster.clear()
    assert wanted_dtype(net, z0) == torch.float32


def test_gains_are_reported_and_the_network_is_restored(pipe, any_machine):
    before = {name: x.clone() for name, x in pipe.velocity_net.state_dict().items()}
    found = gains(pipe.velocity_net)
    assert found.keys() == set(PRECISIONS)
    assert all("times as fast" in text for text in found.values())
    after = pipe.velocity_net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Rounded(torch.nn.Module):
    """A linear velocity whose layer has one output of another magnitude, if that is wanted."""

    def __init__(self, outlier=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 16, bias=False)
        self.outlier = outlier

    def forward(self, x, t, **_):
        rows = torch.cat([x.flatten(1)[:, :15], torch.full((len(x), 1), 1.0)], 1)
        rows[:, 15] += self.outlier
        out = self.layer(rows)
        return (out - self.outlier * self.layer.weight[:, 15]).view_as(x)


def measured(outlier):
    net = Rounded(outlier)
    z0 = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    finding = checks.precision(net, net, z0, lambda z: z + net(z, None), lambda z: z.tanh())
    return finding, net


def test_the_check_measures_every_precision():
    finding, net = measured(0.0)
    assert finding.status == "pass"
    assert precision_of(net) == "fp32"
    values = finding.values
    assert values["psnr"]["bf16"] > values["psnr"]["int8"] > 42
    assert 0 < values["latent"]["bf16"] < values["latent"]["int8"] < 0.02
    assert "int8: pictures" in finding.meaning
    assert "int8：与网络" in finding.says("zh")


def test_the_check_warns_where_pictures_change():
    finding, _ = measured(60.0)
    assert finding.status == "warn"
    assert "velocity_precision='int8'" in finding.advice
    assert "int8" in finding.meaning
    assert finding.values["psnr"]["int8"] < 42


def test_the_check_is_skipped_for_a_quantized_network():
    net = Rounded()
    quantize(net, "int8", min_gain=0)
    finding = checks.precision(net, net, torch.randn(1, 1, 4, 4), lambda z: z, lambda z: z)
    assert finding.status == "skipped"
    assert "int8 already" in finding.meaning
    finding = checks.precision(torch.nn.Identity(), lambda x, t: x, torch.randn(1, 1, 4, 4), lambda z: z, lambda z: z)
    assert finding.status == "skipped"
    assert "no linear layers" in finding.meaning
