"""The AMX guard: on some virtual machines a bf16 matrix product kills the process.

The CPU advertises AMX, the hypervisor hides the description of its tiles, and oneDNN's first bf16
product dies with SIGILL, unless ``ONEDNN_MAX_CPU_ISA`` keeps it from AMX before the process's first
product or convolution of any dtype. ``import fmkernels`` sees to that where it is so.
"""

import os
import warnings
from pathlib import Path

import torch

VARIABLE, SAFE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
_WITHOUT_AMX = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
_WITHOUT_BF16 = _WITHOUT_AMX
_WITHOUT_AMX += ("AVX512_CORE_BF16", "AVX10_1_512", SAFE)


def hidden() -> bool:
    """AMX is advertised and its tile description is missing; without ``_host``, on suspicion in a VM."""
    try:
        from fmkernels import _host
    except ImportError:
        return _suspected(Path("/proc/cpuinfo"))
    return _host.amx_hidden()


def _suspected(cpuinfo: Path) -> bool:
    """CPUID is out of reach without the compiled module: a virtual machine with AMX is taken for affected."""
    if not cpuinfo.exists():
        return False
    flags = cpuinfo.read_text().partition("flags")[2].partition("\n")[0].split()
    return "amx_tile" in flags and "hypervisor" in flags


def guard() -> None:
    """Keeps oneDNN from AMX where that would kill the process; warns once. The user's own setting is kept."""
    if VARIABLE in os.environ or not hidden():
        return
    os.environ[VARIABLE] = SAFE
    warnings.warn(
        f"fmkernels: this CPU advertises AMX but hides its tile description, so a bf16 matrix product would "
        f"die with SIGILL. Set {VARIABLE}={SAFE} for this process. That works only before its first matrix "
        f"product or convolution: if one ran before `import fmkernels`, set torch.backends.mkldnn.enabled = "
        f"False, or start with {VARIABLE}={SAFE} in the environment. fmkernels.bf16_safe() tells.",
        RuntimeWarning,
        stacklevel=4,
    )


def bf16_safe() -> bool:
    """True if a bf16 matrix product may run here: AMX is whole, or oneDNN is off or kept from it.

    What cannot be seen is a product that ran before ``import fmkernels``: see the warning.
    """
    if not hidden() or not torch.backends.mkldnn.enabled:
        return True
    return os.environ.get(VARIABLE, "").upper() in _WITHOUT_AMX


def bf16_kernel() -> str:
    """Return the instructions of bf16 products on this CPU, "amx_bf16" or "avx512_bf16", or "" without them."""
    try:
        from fmkernels import _host
    except ImportError:
        return ""
    limit = os.environ.get(VARIABLE, "").upper()
    if not torch.backends.mkldnn.enabled or not bf16_safe() or limit in _WITHOUT_BF16:
        return ""
    return "avx512_bf16" if limit in _WITHOUT_AMX and _host.bf16_kernel() else _host.bf16_kernel()
