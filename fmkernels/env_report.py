"""``python -m fmkernels.env_report``: the facts to paste into an issue."""

import os
import platform
import sys
from importlib import metadata

import torch

import fmkernels
from fmkernels import amx, backend


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def report() -> dict[str, str]:
    """Ordered facts: name -> value."""
    facts = {
        "fmkernels": fmkernels.__version__,
        "python": sys.version.split()[0],
        "torch": f"{torch.__version__} (cuda {torch.version.cuda}, hip {torch.version.hip})",
        "triton": _version("triton"),
        "platform": platform.platform(),
        "cpu": f"{_cpu_name()}, {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
        "torch cpu capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    for name in ("cpp", "cuda", "triton"):
        facts[f"backend {name}"] = backend.status[name].reason
    facts["gradients in C++"] = backend.status["autograd"].reason
    facts["selected backend"] = backend.current()
    try:
        from fmkernels import _host

        facts["kernels run with"] = _host.kernel_isa()
        facts["int8 products with"] = _host.int8_kernel()
        facts |= {f"build: {key}": value for key, value in _host.build_facts().items()}
        facts["amx advertised"] = str(_host.amx_advertised())
    except ImportError as error:
        facts["_host"] = f"not available: {error}"
    facts["amx hidden by the hypervisor"] = str(amx.hidden())
    facts[amx.VARIABLE] = os.environ.get(amx.VARIABLE, "not set")
    facts["bf16 products safe"] = str(amx.bf16_safe())
    return facts


def main() -> None:
    facts = report()
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
