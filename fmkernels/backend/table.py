"""Which backend computes which op, and why."""

from fmkernels.backend import selection
from fmkernels.backend.loading import has_kernel, status
from fmkernels.backend.op import TorchOp
from fmkernels.backend.selection import OPS, devices
from fmkernels.schema import KERNELS


def served_by(name: str, device: str) -> tuple[str, str]:
    """(backend, reason) for op ``name`` on a device type, as calls are dispatched now."""
    forced, op = selection.forced, OPS[name]
    if forced == "eager":
        return "eager", "asked for"
    if isinstance(op, TorchOp):
        if device != "cpu" or forced == "triton":
            return "eager", "torch's own function"
        return ("cpp", "compiled object loaded") if op.native else ("eager", status["autograd"].reason)
    if forced and device not in devices(forced):
        return "none", f"{forced} was asked for; it supports {' and '.join(devices(forced))} tensors"
    if forced == "triton":
        return "triton", "asked for"
    key, backend = {"cpu": ("CPU", "cpp"), "cuda": ("CUDA", "cuda")}[device]
    asked = " (asked for)" if forced == backend else ""
    if status[backend].available and has_kernel(name, key) and name in KERNELS[backend]:
        return backend, f"compiled object loaded{asked}"
    if device == "cuda" and has_kernel(name, key):
        return "triton", "no compiled kernel" if status[backend].available else status[backend].reason
    return "eager", "; ".join(status[x].reason for x in ([backend, "triton"] if device == "cuda" else [backend]))


def explain() -> str:
    """Print (and return) a table: op x device -> backend; below it the reasons, each once."""
    lines, reasons = [f"{'op':<26}{'cpu':<8}cuda"], {}
    for name in OPS:
        served = {device: served_by(name, device) for device in ("cpu", "cuda")}
        reasons |= {f"{device}, {backend}: {why}": None for device, (backend, why) in served.items()}
        lines.append(f"{name:<26}{served['cpu'][0]:<8}{served['cuda'][0]}")
    lines += ["", *reasons]
    text = "\n".join(lines)
    print(text)
    return text
