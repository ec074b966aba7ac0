"""The precision of a velocity network: choose it, convert the network, and save and load what was converted."""

import time
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fmkernels import Quantization, load_quantized, quantize, restore
from fmkernels.precision import MIN_GAIN, precision_of, unsupported

__all__ = ["SavesQuantized", "gains", "precision_of", "sample_input", "set_precision", "wanted_dtype"]


def set_precision(
    net: nn.Module, precision: str, *, min_gain: float = MIN_GAIN, keep_weights: bool = False
) -> Quantization | None:
    """Convert the network's linear layers, in place, and return the report of :func:`fmkernels.quantize`.

    ``"fp32"`` means the weights as they were loaded. ``"auto"`` takes int8 where it has instructions, else bf16; if
    that makes no layer faster, the network stays as it is. None is returned if nothing had to be converted.
    """
    if precision == "auto":
        device = net.device
        precision = next((p for p in ("int8", "bf16") if not unsupported(p, device)), "fp32")
    if precision == precision_of(net):
        return None
    if precision_of(net) != "fp32":
        restore(net)
    if precision == "fp32":
        return None
    inputs = sample_input(net)
    return quantize(
        net, precision, sample=lambda: net.velocity(*inputs[:2], null=inputs[2]), min_gain=min_gain,
        keep_weights=keep_weights,
    )  # fmt: skip


def sample_input(net: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, t and null of two samples of unit normal noise, early and late on the path, one of them null."""
    config = net.config
    side = (config.size,) * 2 if "size" in config else _largest_grid(net)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, config.channels, *side, generator=draw).to(net.device, net.dtype)
    return x, torch.tensor([0.25, 0.75]).to(net.device), torch.tensor([False, True]).to(net.device)


def _largest_grid(net: nn.Module) -> tuple[int, int]:
    """Return the size of the largest latent for which every stage of a DiMR has positions."""
    stages = zip(net.config.stage_configs, net.ratios, strict=True)
    return tuple(min(side) for side in zip(*((r * c["grid"][0], r * c["grid"][1]) for c, r in stages), strict=True))


@torch.no_grad()
def gains(net: nn.Module) -> dict[str, str]:
    """Return for each precision what a guided step gains on this machine, in a sentence. The network is restored."""
    x, t, null = sample_input(net)
    out, own = {}, precision_of(net)
    if own != "fp32":
        return {own: "the network is converted already"}
    for precision in ("bf16", "int8", "fp8"):
        if reason := unsupported(precision, net.device):
            out[precision] = f"no gain: {reason}"
            continue
        before = _seconds(net, x, t, null)
        report = set_precision(net, precision, keep_weights=True)
        after = _seconds(net, x, t, null) if report.swapped else before
        restore(net)
        out[precision] = (
            f"{before / after:.1f} times as fast ({1e3 * before:.1f} -> {1e3 * after:.1f} ms for a batch of {len(x)}), "
            f"weights {report.bytes_before / 1e6:.1f} -> {report.bytes_after / 1e6:.1f} MB, "
            f"{len(report.swapped)} of {len(report.layers)} layers"
        )
    return out


def _seconds(net: nn.Module, x: Tensor, t: Tensor, null: Tensor) -> float:
    """Return the shortest time of a few forwards, after one that is not counted."""
    found = []
    while len(found) < 3 or (sum(found) < 0.1 and len(found) < 20):
        start = time.perf_counter()
        net.velocity(x, t, null=null)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        found.append(time.perf_counter() - start)
    return min(found[1:])


_faster: WeakKeyDictionary = WeakKeyDictionary()  # network -> {shape of x: whether bf16 autocast is faster}


@torch.no_grad()
def wanted_dtype(net: nn.Module, like: Tensor) -> torch.dtype:
    """Return bf16 if a forward in it is faster than in the network's own dtype, which is returned otherwise.

    On a CPU, both are timed once for each network and shape; a network that is quantized already keeps its dtype.
    """
    own = net.dtype
    if own != torch.float32 or precision_of(net) != "fp32" or unsupported("bf16", net.device):
        return own
    if net.device.type != "cpu":
        return torch.bfloat16
    known = _faster.setdefault(net, {})
    key = tuple(like.shape), torch.get_num_threads()
    if key not in known:
        t, null = torch.full((len(like),), 0.5), torch.zeros(len(like), dtype=torch.bool)

        slow = _seconds(net, like, t, null)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            known[key] = slow > MIN_GAIN * _seconds(net, like, t, null)
    return torch.bfloat16 if known[key] else own


class SavesQuantized:
    """A mixin for diffusers' models: ``from_pretrained`` also loads the folder of a quantized network."""

    @classmethod
    def from_pretrained(cls, path: str | Path, **options):
        folder = Path(path) / (options.get("subfolder") or "")
        files = sorted(folder.glob("*.safetensors"))
        if not files or not _is_quantized(files):
            return super().from_pretrained(path, **options)
        from safetensors.torch import load_file

        state = {name: x for file in files for name, x in load_file(file).items()}
        with torch.device("meta"):
            net = cls.from_config(cls.load_config(folder))
        own = next((x.dtype for name, x in state.items() if name.endswith("bias")), torch.float32)
        load_quantized(nn.Module.to(net, own), state)
        return nn.Module.to(net.eval(), options.get("torch_dtype") or options.get("dtype") or torch.float32)


def _is_quantized(files: list[Path]) -> bool:
    """Tell by the headers: there are scales, or weights in bf16 beside other tensors in fp32."""
    from safetensors import SafetensorError, safe_open

    dtypes = set()
    for file in files:
        try:
            with safe_open(file, "pt") as tensors:
                names = tensors.keys()
                if any(name.endswith(".weight_scale") for name in names):
                    return True
                dtypes |= {tensors.get_slice(name).get_dtype() for name in names}
        except SafetensorError:
            return False  # the caller's error says which file is damaged
    return {"BF16", "F32"} <= dtypes
