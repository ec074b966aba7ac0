"""Backends: their loading, their selection, calls (``op``) and the table of ``explain``.

The compiled objects register kernels for their device in torch's dispatcher, Triton for GPUs without a compiled object,
and ``fmkernels.eager`` below them for every device. So "auto" is the dispatcher's own choice.

For tests, benchmarks and tools: ``current()`` is the selected backend, ``status`` maps "cpp", "cuda", "triton" and
"autograd" to a ``Status``, ``OPS`` maps names to ops, ``devices(name)`` are the devices that a backend supports.
"""

from fmkernels.backend.loading import Status, build_facts, gradient_in_cpp, has_kernel, int8_kernel, status
from fmkernels.backend.op import Op, TorchOp
from fmkernels.backend.selection import BACKENDS, OPS, current, devices, load, native_cpu, triton_as_auto, use_backend
from fmkernels.backend.table import explain, served_by

__all__ = [
    "BACKENDS",
    "OPS",
    "Op",
    "Status",
    "TorchOp",
    "build_facts",
    "current",
    "devices",
    "explain",
    "gradient_in_cpp",
    "has_kernel",
    "int8_kernel",
    "load",
    "native_cpu",
    "served_by",
    "status",
    "triton_as_auto",
    "use_backend",
]
