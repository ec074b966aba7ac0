"""Executed PTX instructions per element of our kernels, Liger-Kernel's and those of torch.compile, without a GPU.

python benchmarks/count_instructions.py [--liger FOLDER] [--out benchmarks/results]

The kernels are compiled for sm_90 and run in the interpreter of tests/support/ptx. An instruction that a warp issues
counts as 32, so idle lanes count; moves between registers do not, because ptxas removes most of them. Inputs are bf16.
Where each row or tile is one block's, a count per element does not depend on the number of rows, so small grids stand
for (64, 257, 1024); a kernel whose blocks take several rows gets as many rows as a block has there.

--liger: a folder with the package, made by: pip install --no-deps --target FOLDER liger-kernel
"""

import argparse
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[1]
WIDTH = 1024
MODEL_256 = [1024] * 132 + [512] * 37 + [67584] * 2  # parameters of the 256 px network


@dataclass(frozen=True)
class Counted:
    per_element: float  # without moves
    with_moves: float
    bytes_per_element: float  # of tensors, read and written
    launches: int


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def _rows(count: int) -> torch.Tensor:
    return bf16(count, WIDTH)


def _group(times: int):
    params = [[bf16(n) for n in MODEL_256] for _ in range(4)]
    return "tdp_group", (*params, torch.rand(times), 1.0), times * sum(MODEL_256)


def _step():
    x, v = torch.randn(4, 4, 32, 32), [bf16(4, 4, 32, 32) for _ in range(3)]
    return "step_", (x, v[0], None, v[1], 0.1, None, 1.0, 0.0, 3.0, 1.0, v[2], torch.empty(4, 5)), x.numel()


def _norm(residual: bool, center: bool, rows: int = 512):
    x, one = _rows(rows), bf16(WIDTH)
    eps = 1e-5 if center else 1e-8
    args = ([x], one, one if center else None, _rows(rows) if residual else None, None, eps, center, center)
    return "td_norm", args, x.numel()


def _norm_backward(center: bool, rows: int = 64 * 257):
    x = _rows(rows)
    stat = torch.rand(rows, 2) + 0.5
    return "td_norm_backward", (_rows(rows), None, [x], bf16(WIDTH), stat, 1e-5, center, center), x.numel()


def _wide():
    parts, one = [bf16(8, WIDTH) for _ in range(66)], bf16(66 * WIDTH)
    return "td_norm", (parts, one, one, None, None, 1e-5, True, True), 8 * 66 * WIDTH


def _gated(backward: bool):
    x, gate, y = _rows(512), bf16(WIDTH), _rows(512)
    return ("gated_add_backward", (x, gate, y), x.numel()) if backward else ("gated_add", (x, gate, y), x.numel())


def _rope(backward: bool):
    """Eight heads of 128, whose weights are bf16 and whose tables are fp32."""
    q, k, grad_q, grad_k = (bf16(1, 64, 8, 128) for _ in range(4))
    settings = bf16(128), bf16(128), torch.randn(64, 128), torch.randn(64, 128), 1e-6, True, True, 1
    arguments = (grad_q, grad_k, q, k, *settings) if backward else (q, k, *settings)
    return "qk_norm_rope_backward" if backward else "qk_norm_rope", arguments, 2 * q.numel()


def _path(op: str):
    t, x0, x1, v = torch.rand(2), bf16(2, 257, WIDTH), bf16(2, 257, WIDTH), bf16(2, 257, WIDTH)
    arguments = {
        "psi": (t, x0, x1, 1e-5, 1.0),
        "dt_psi": (x0, x1, 1e-5, 1.0),
        "flow_pair": (t, x0, x1, 1e-5, 1.0, torch.bfloat16),
        "velocity_stats": (v, x0, x1, None, 1e-5, 1.0),
        "flow_loss": (v, x0, x1, None, None, 1e-5, 1.0),
        "flow_loss_backward": (t, v, x0, x1, None, None, 1e-5, 1.0),
        "reparameterize": (v, x0, x1, -6.0, 6.0),
        "reparameterize_backward": (v, t, v, x0, x1, -6.0, 6.0),
    }
    return op, arguments[op], x0.numel()


def _group_backward():
    op, (*params, times, shift), elements = _group(1)
    return f"{op}_backward", (bf16(1, elements), *params, times, shift), elements


# Name -> () -> (op, its arguments, elements).
CUDA: dict[str, Callable] = {
    "gelu_mul": lambda: ("gate_mul", (_rows(512), _rows(512), 0, True), 512 * WIDTH),
    "gelu_mul backward": lambda: ("gate_mul_backward", (_rows(512), _rows(512), _rows(512), 0, True), 512 * WIDTH),
    "gated_add": lambda: _gated(False),
    "gated_add backward": lambda: _gated(True),
    "qk_norm_rope": lambda: _rope(False),
    "qk_norm_rope backward": lambda: _rope(True),
    "RMS norm": lambda: _norm(False, False),
    "RMS norm + residual": lambda: _norm(True, False),
    "RMS norm backward": lambda: _norm_backward(False),
    "layer norm": lambda: _norm(False, True),
    "layer norm backward": lambda: _norm_backward(True),
    "layer norm of 66 tensors": _wide,
    "tdp group, T=1": lambda: _group(1),
    "tdp group, T=50": lambda: _group(50),
    "tdp group backward, T=1": _group_backward,
    "step, guided, low, stats": _step,
    "psi": lambda: _path("psi"),
    "Dt_psi": lambda: _path("dt_psi"),
    "flow_pair": lambda: _path("flow_pair"),
    "velocity_stats": lambda: _path("velocity_stats"),
    "flow_loss": lambda: _path("flow_loss"),
    "flow_loss backward": lambda: _path("flow_loss_backward"),
    "reparameterize": lambda: _path("reparameterize"),
    "reparameterize backward": lambda: _path("reparameterize_backward"),
}
# With 132 programs, as Liger starts on an H100, each has 125 of the 64 × 257 rows. On the CPU it starts one: with 125.
LIGER_ROWS = 125


def liger(folder: Path) -> dict[str, Callable]:
    """Name -> (call, elements): the functions of Liger-Kernel that launch, with their kernels in the interpreter."""
    sys.path.insert(0, str(folder))
    from liger_kernel.ops import fused_add_rms_norm, geglu, layer_norm, rms_norm
    from support.ptx.triton import Grid

    for module in (fused_add_rms_norm, geglu, layer_norm, rms_norm):
        for name in [x for x in vars(module) if x.endswith("_kernel")]:
            setattr(module, name, Grid(getattr(module, name)))
    calls: dict[str, Callable] = {}
    few, w = LIGER_ROWS * WIDTH, bf16(WIDTH)

    def rms(mode: str, backward: bool):
        x = _rows(LIGER_ROWS)
        _, _, rstd, block, warps, casting = rms_norm.rms_norm_forward(x, w, 1e-6, 0.0, mode, None)
        if not backward:
            return lambda: rms_norm.rms_norm_forward(x, w, 1e-6, 0.0, mode, None)
        dy = _rows(LIGER_ROWS)
        return lambda: rms_norm.rms_norm_backward(dy, x, w, rstd, 0.0, casting, block, warps, False, None)

    def add_rms():
        x, residual = _rows(LIGER_ROWS), _rows(LIGER_ROWS)
        return lambda: fused_add_rms_norm.fused_add_rms_norm_forward(x, residual, w, 1e-6, 0.0, "gemma")

    def centered(backward: bool):
        x, b = _rows(LIGER_ROWS), bf16(WIDTH)
        _, _, mean, rstd, *_ = layer_norm.layer_norm_forward(x, w, b, 1e-5)
        if not backward:
            return lambda: layer_norm.layer_norm_forward(x, w, b, 1e-5)
        return lambda: layer_norm.layer_norm_backward(_rows(LIGER_ROWS), x, w, b, mean, rstd)

    def gate(backward: bool):
        a, b = _rows(LIGER_ROWS), _rows(LIGER_ROWS)
        if backward:
            return lambda: geglu.geglu_backward(a, b, _rows(LIGER_ROWS))
        return lambda: geglu.geglu_forward(a, b)

    # What is counted is also right.
    x, y = _rows(LIGER_ROWS), _rows(LIGER_ROWS)
    normed, gated = F.rms_norm(x.float(), (WIDTH,), w.float(), 1e-6), F.gelu(x.float(), approximate="tanh") * y.float()
    close = {"atol": 0.02, "rtol": 0.02}
    torch.testing.assert_close(rms_norm.rms_norm_forward(x, w, 1e-6, 0.0, "gemma", None)[0].float(), normed, **close)
    torch.testing.assert_close(
        layer_norm.layer_norm_forward(x, w, w, 1e-5)[0].float(),
        F.layer_norm(x.float(), (WIDTH,), w.float(), w.float()),
        **close,
    )
    torch.testing.assert_close(geglu.geglu_forward(x, y)[2].float(), gated, **close)
    calls["gelu_mul"] = gate(False)
    calls["gelu_mul backward"] = gate(True)
    calls["RMS norm"] = rms("gemma", False)
    calls["RMS norm + residual"] = add_rms()
    calls["RMS norm backward"] = rms("gemma", True)
    calls["RMS norm, llama"] = rms("llama", False)
    calls["RMS norm backward, llama"] = rms("llama", True)
    calls["layer norm"] = centered(False)
    calls["layer norm backward"] = centered(True)
    return {name: (call, few) for name, call in calls.items()}


class Generated:
    """A kernel that inductor wrote, in the interpreter, with the first block size that inductor tries on a GPU.

    That is 1,024 elements by 4 warps, and of a sum over the last dimension one row by 8 warps.
    """

    def __init__(self, name: str, source: str, folder: Path):
        kind = re.search(r"@triton_heuristics\.(\w+)\(", source)[1]
        head, body = re.split(r"@triton_heuristics\..*?(?=@triton\.jit)", source, maxsplit=1, flags=re.S)
        path = folder / f"{name}.py"
        path.write_text(head.replace("triton_helpers.set_driver_to_cpu()", "") + body)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.kernel = getattr(module, name)
        self.block, self.warps = {"pointwise": (1024, 4), "persistent_reduction": (1, 8)}[kind]

    def run(self, *args, stream=None) -> None:
        from support.ptx import triton

        rows = args[self.kernel.arg_names.index("xnumel")]
        triton.run(self.kernel, (-(-rows // self.block),), args, {"XBLOCK": self.block, "num_warps": self.warps})


def inductor() -> dict[str, Callable]:
    """Name -> (call, elements): eager formulas by torch.compile, whose Triton code for CPU tensors needs no device."""
    import torch._inductor.config
    from torch._inductor.async_compile import AsyncCompile
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton_check import TARGETS, Absent

    driver.set_active(Absent(list(TARGETS).index("sm_90"), GPUTarget(*TARGETS["sm_90"])))
    torch._inductor.config.cpu_backend = "triton"
    torch._inductor.config.force_disable_caches = True
    folder = Path(tempfile.mkdtemp(prefix="inductor-"))
    AsyncCompile.triton = lambda self, name, source, *_, **__: Generated(name, source, folder)

    def rms(x, w):
        norm = x.float().square().sum(-1, keepdim=True).sqrt() * WIDTH**-0.5
        return (x.float() / (norm + 1e-8) * w).to(x.dtype)

    def rms_residual(x, r, w):
        total = x + r
        return rms(total, w), total

    x, y, w, elements = _rows(512), _rows(512), bf16(WIDTH), 512 * WIDTH
    calls = {
        "gelu_mul": (lambda a, b: F.gelu(a) * b, x, y),
        "RMS norm": (rms, x, w),
        "RMS norm + residual": (rms_residual, x, y, w),
        "layer norm": (lambda a, scale, offset: F.layer_norm(a, (WIDTH,), scale, offset), x, w, w),
    }
    found = {}
    for name, (function, *args) in calls.items():
        compiled = torch.compile(function)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), function(*args), atol=0.02, rtol=0.02)
        found[name] = partial(compiled, *args), elements
    return found


def measured(call: Callable, elements: int) -> Counted:
    from support import ptx

    with ptx.counting() as counts, torch.no_grad():
        call()
    moved = sum(counts.all_bytes()) / elements
    each = counts.per_element(elements), counts.per_element(elements, mov=True)
    return Counted(*(round(x, 2) for x in (*each, moved)), counts.launches.total())


def counted(case: Callable, implementation=None) -> Counted:
    """A case of CUDA by the CUDA kernels, or by the functions of a module such as ``fmkernels.triton``."""
    op, arguments, elements = case()
    function = getattr(implementation or torch.ops.fmkernels, op)
    return measured(lambda: function(*arguments), elements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--liger", type=Path, help="a folder that has liger_kernel; without it, Liger's are left out")
    parser.add_argument("--out", type=Path, help="folder for instructions.json and instructions.txt")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / name) for name in ("tests", "tools", "csrc")]
    from support.ptx import cuda, triton

    cuda.load()
    import fmkernels.triton

    found: dict[str, dict[str, Counted]] = {"CUDA": {}, "Triton": {}, "Liger": {}}
    for name, case in CUDA.items():
        print(f"counting {name}", file=sys.stderr, flush=True)
        found["CUDA"][name] = counted(case)
        with triton.ours():
            found["Triton"][name] = counted(case, fmkernels.triton)
    if options.liger:
        for name, (call, elements) in liger(options.liger).items():
            found["Liger"][name] = measured(call, elements)
    found["inductor"] = {name: measured(call, elements) for name, (call, elements) in inductor().items()}
    text = table(found, options.liger)
    print(text)
    if options.out:
        (options.out / "instructions.txt").write_text(text + "\n")
        kept = {who: {name: asdict(x) for name, x in rows.items()} for who, rows in found.items()}
        (options.out / "instructions.json").write_text(json.dumps(kept, indent=1) + "\n")


def version(folder: Path | None) -> str:
    listed = [path.name for path in folder.glob("liger_kernel-*.dist-info")] if folder else []
    return (
        listed[0].removesuffix(".dist-info").replace("_kernel-", "-kernel ") if listed else "liger-kernel not counted"
    )


def table(found: dict[str, dict[str, Counted]], folder: Path | None) -> str:
    import triton

    lines = [
        f"executed PTX instructions per element, without mov (with mov); sm_90, bf16; triton {triton.__version__}, "
        f"{version(folder)}",
        f"{'kernel':28}" + "".join(f"{who:>18}" for who in found) + f"{'CUDA bytes':>12}",
    ]
    for name in dict.fromkeys(name for rows in found.values() for name in rows):
        cells = [rows.get(name) for rows in found.values()]
        shown = [f"{c.per_element:.1f} ({c.with_moves:.1f})" if c else "" for c in cells]
        moved = f"{cells[0].bytes_per_element:.1f}" if cells[0] else ""
        lines.append(f"{name:28}" + "".join(f"{x:>18}" for x in shown) + f"{moved:>12}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
