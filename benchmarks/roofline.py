"""ESTIMATE of GPU times from data sheets: bytes, launches and what bounds them, for each op and a guided step.

python benchmarks/roofline.py [--launch-us 4 1.5] [--json PATH]

Nothing is measured: there is no GPU here. Operations are counted by dispatch on meta tensors, as count_launches.py
counts them: those of the plain structure (third_party_model.py; for single ops, the benchmarks' formulas), and ours.
An operation reads every input and writes every output once, an expanded one without its copies; ours do what the byte
account in docs/kernels says, partial sums and tables of addresses left out. It takes

    max(bytes / bandwidth, FLOPs / peak, instructions / issue rate, launches * cost of a launch),

one after another, at the data sheet's rates, which nothing reaches. Every byte is paid for at the memory's rate, also
where L2 holds it (a tensor between two products has 1 to 4 MB), every FLOP at the tensor cores', also a depthwise
convolution's, every launch alike. A wait for the device costs nothing here: the plain structure has one a forward,
which keeps it out of a CUDA graph as it is written. It takes seven operations a time-dependent parameter, CrossFlow
five: of its launches 684 (256 px) and 840 (512 px) are too many.

The instructions of our kernels are executed PTX instructions per element (results/instructions.json, from
count_instructions.py), issued at one a cycle by each of an SM's four schedulers. What ptxas makes of the PTX, latencies
and occupancy are left out. The plain structure's kernels are not counted, so nothing bounds them by instructions.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
from bench_gate import eager_gated_add
from bench_head import eager_head, ours_head
from bench_norm import (
    eager_end_of_block,
    eager_gelu_mul,
    eager_rms,
    eager_rms_residual,
    ours_end_of_block,
    ours_rms_residual,
)
from bench_path import eager_loss, eager_pair
from bench_rope import eager as eager_rope
from bench_step import DT, GUIDANCE, eager_step
from bench_tdp import MODEL_256, eager_tdp
from count_launches import Launches, counted, guided_steps
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

import fmkernels as fk
from fmkernels.schema import KERNELS

LABEL = "ESTIMATE (data-sheet rates, assumed launch cost, nothing measured)"
MODELS = {"256 px": "t2i_256px_clip_dimr", "512 px": "t2i_512px_clip_dimr"}
# Assumptions, microseconds: a launch by the host (PyTorch's own way there takes longer), a launch inside a CUDA graph.
LAUNCH_US = (4.0, 1.5)
# Floats of a row that a norm (csrc/cuda/norm.cuh) keeps on an H100 or B200, a fourth of it in its backward.
ROW = 57_600
# Launches of each op by the CUDA kernels. A second one adds up partial sums; q and k have their own.
CUDA_LAUNCHES = dict.fromkeys(KERNELS["cuda"], 1) | {"td_norm_backward": 2}
CUDA_LAUNCHES |= {"qk_norm_rope": 2, "qk_norm_rope_": 2, "qk_norm_rope_backward": 4}
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "attention"}  # convolutions are the rest, as in bench_model.py
OVERWRITES = {"copy_", "fill_", "zero_", "normal_"}  # in place, without reading what was there


@dataclass(frozen=True)
class GPU:
    name: str
    bandwidth: float  # bytes a second
    peak: float  # FLOPs a second, bf16 with fp32 sums, dense
    issue: float  # instructions of warps a second: SMs, four schedulers each, boost clock


# NVIDIA's data sheets: A100 (80 GB SXM); H100 (SXM, half of the sparse 1,979 TFLOP/s); DGX B200 (an eighth of 64 TB/s;
# HGX B200's 4.5 PFLOP/s are sparse). The clocks are those of the data sheets' fp32 rates.
GPUS = (
    GPU("A100", 2.039e12, 312e12, 108 * 4 * 1.41e9),
    GPU("H100", 3.35e12, 989e12, 132 * 4 * 1.98e9),
    GPU("B200", 8.0e12, 2250e12, 148 * 4 * 1.98e9),
)
INSTRUCTIONS = json.loads((Path(__file__).parent / "results" / "instructions.json").read_text())["CUDA"]


@dataclass(frozen=True)
class Work:
    """An operation: its launches, the bytes it reads and writes, its FLOPs, the instructions that its warps issue."""

    name: str
    launches: int
    bytes: int
    flops: int = 0
    instructions: float = 0


def times(work: Sequence[Work], gpu: GPU, launch_us: float) -> dict[str, float]:
    """Microseconds: four bounds, and the estimate, where each operation has the largest of its own four."""
    bounds = [
        (w.bytes / gpu.bandwidth, w.launches * launch_us / 1e6, w.flops / gpu.peak, w.instructions / gpu.issue)
        for w in work
    ]
    names = ("bandwidth", "launches", "flops", "issue")
    totals = (sum(column) * 1e6 for column in zip(*bounds, strict=True)) if work else (0, 0, 0, 0)
    return dict(zip(names, totals, strict=True)) | {"estimate": sum(map(max, bounds)) * 1e6}


def size(value: object) -> int:
    """Bytes of the tensors in value; of an expanded one, those that are there."""
    tensors = (x for x in tree_leaves(value) if isinstance(x, torch.Tensor))
    return sum(x.itemsize * prod(n for n, s in zip(x.shape, x.stride(), strict=True) if s) for x in tensors)


def passes(name: str, arguments: dict) -> dict[str, int]:
    """Argument -> how often ours reads it, where that is not once."""
    if name == "psi_backward":
        return {"x0": 0, "x1": 0}  # only their dtypes matter
    if not name.startswith("td_norm"):
        return {}
    backward = name == "td_norm_backward"
    x = arguments["s" if backward else "x"]
    halves = x[0].itemsize == 2 and not backward and arguments["residual"] is None  # are kept as they are
    if sum(part.shape[-1] for part in x) <= (ROW // 4 if backward else ROW * 2 if halves else ROW):
        return {}
    return {"grad_y": 3, "s": 4 if x[0].itemsize == 2 else 3} if backward else {"x": 2, "residual": 2}


def moved(func: torch._ops.OpOverload, name: str, args: tuple, kwargs: dict, out: object) -> int:
    """Bytes read and written."""
    schema = func._schema
    arguments = {a.name: value for a, value in zip(schema.arguments, args)} | kwargs
    often, total = passes(name, arguments), 0
    for a in schema.arguments:
        written = a.alias_info is not None and a.alias_info.is_write
        is_read = not written or (a.name in ("self", "x") and name not in OVERWRITES)
        total += size(arguments.get(a.name)) * (is_read * often.get(a.name, 1) + written)
    outs = out if isinstance(out, tuple) else (out,)
    return total + sum(size(o) for r, o in zip(schema.returns, outs) if r.alias_info is None)


def issued(name: str, arguments: dict, outs: tuple) -> float:
    """Instructions that the warps of one of our ops issue: by the count per element of the kernel and case it is."""
    case = name.removesuffix("_out")
    if case.startswith("tdp"):
        times, first = arguments["times"].numel(), arguments["param0"]
        elements = times * sum(x.numel() for x in ([first] if isinstance(first, torch.Tensor) else first))
        case = "tdp group backward, T=1" if "backward" in case else f"tdp group, T={50 if times >= 8 else 1}"
    elif case.startswith("td_norm"):
        x = arguments["s" if "backward" in case else "x"]
        elements = sum(part.numel() for part in x)
        case = "layer norm" if arguments["center"] else "RMS norm"
        if "backward" in name:
            case += " backward"
        elif len(x) > 4:
            case = "layer norm of 66 tensors"
        elif arguments.get("residual") is not None:
            case = "RMS norm + residual"
    else:
        case = OTHERS.get(case, case)
        leaves = tree_leaves(outs if case == "gelu_mul" else (arguments, outs))  # a gate may get both halves in one
        elements = max(x.numel() for x in leaves if isinstance(x, torch.Tensor))
    return INSTRUCTIONS[case]["per_element"] * elements / 32


# Op -> the case that counts it; those of a few numbers, or like another one, take its count.
OTHERS = {
    "step_": "step, guided, low, stats",
    "dt_psi": "Dt_psi",
    "psi_backward": "psi",
    "gate_mul": "gelu_mul",
    "gate_mul_backward": "gelu_mul backward",
    "gated_add_": "gated_add",
    "gated_add_backward": "gated_add backward",
    "qk_norm_rope_": "qk_norm_rope",
    "qk_norm_rope_backward": "qk_norm_rope backward",
    "flow_loss_backward": "flow_loss backward",
    "reparameterize_backward": "reparameterize backward",
    "velocity_summary": "velocity_stats",
}


class Traffic(Launches):
    """Launches with their bytes, FLOPs and instructions."""

    each = CUDA_LAUNCHES

    def __init__(self):
        super().__init__()
        self.work: list[Work] = []

    def launched(self, name, number, func, args, kwargs, out):
        super().launched(name, number, func, args, kwargs, out)
        if name == "attention":
            work = Work(name, number, size((args, out)), sdpa_flop_count(*(x.shape for x in args[:3])))
        else:
            formula = flop_registry.get(getattr(torch.ops.aten, name.removesuffix("_"), None))
            flops = formula(*args, **kwargs, out_val=out) if formula else 0
            ours = 0.0
            if func.namespace == "fmkernels":
                arguments = {a.name: value for a, value in zip(func._schema.arguments, args)} | kwargs
                ours = issued(name, arguments, out if isinstance(out, tuple) else (out,))
            work = Work(name, number, moved(func, name, args, kwargs, out), flops, ours)
        self.work.append(work)


def work_of(call: Callable) -> list[Work]:
    return counted(call, Traffic()).work


def with_gradients(fn: Callable, *args: object) -> None:
    """A forward, and a backward from every result that has one to every leaf among the arguments."""
    with torch.enable_grad():
        out = fn(*args)
        out = [x for x in ([out] if isinstance(out, torch.Tensor) else out) if x.requires_grad]
        leaves = [x for x in tree_leaves(args) if x.requires_grad]
        torch.autograd.grad(out, leaves, [torch.empty_like(x) for x in out])


def eagerly(fn: Callable, *args: object) -> object:
    with fk.use_backend("eager"):
        return fn(*args)


def eager_group(group, t):
    return [eager_tdp(*four, t) for four in group]


def eager_list(parts, weight, bias):
    return torch.addcmul(bias, F.layer_norm(torch.cat(parts, -1), weight.shape[-1:]), weight)


def plain_head(*args):
    z, kl, stats = eager_head(*args)
    return z, kl, stats.detach()


def slices(t, *args):
    return fk.velocity_stats(*args, t=t).by_t(10)


def ours_step(x, v, v_uncond, low):
    stats = torch.empty(len(x), 5, device=x.device)
    fk.euler_step_(x, v, DT, v_uncond=v_uncond, guidance=GUIDANCE, low=low, stats=stats)


def in_place(op):
    return partial(op, inplace=True)


# Cases that are also counted with their backward.
TRAINED = (
    "tdp_group",
    "td_rms_norm +",
    "gelu_mul",
    "norm_modulate",
    "gated_add (",
    "qk_norm_rope (",
    "flow_loss",
    "reparameterize",
)


def op_cases() -> Iterator[tuple[str, Callable, Callable]]:
    """(op and shapes, plain, ours). What a network computes is bf16, latents and their path are fp32."""

    def bf16(*shape):
        return torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)

    def fp32(*shape, leaf=False):
        return torch.empty(shape, device="meta", requires_grad=leaf)

    tdp, pair = partial(fk.tdp, weight_offset=1.0), partial(fk.flow_pair, dtype=torch.bfloat16)
    group, t1 = [[bf16(n) for _ in range(4)] for n in MODEL_256], bf16(1).detach()
    norm = bf16(2, 257, 1024), bf16(1, 1024), bf16(2, 257, 1024)
    parts, wide = [bf16(2, 256, 1024) for _ in range(66)], bf16(1, 66 * 1024)
    stream, row = (2, 1024, 3072), (2, 3072)
    block = bf16(*stream), bf16(*row), bf16(*row), bf16(*stream), bf16(*row)
    gated, q = (bf16(*stream), bf16(*row), bf16(*stream)), (1, 1024, 24, 128)
    heads = bf16(*q), bf16(*q), bf16(128), bf16(128), fp32(1024, 128), fp32(1024, 128)
    t, x0, x1 = fp32(64), fp32(64, 4, 32, 32), fp32(64, 4, 32, 32)
    v, mu, logvar = (fp32(64, 4, 32, 32, leaf=True) for _ in range(3))
    plain_psi, plain_dt_psi, plain_stats, plain_slices = (
        partial(eagerly, fn) for fn in (fk.psi, fk.Dt_psi, fk.velocity_stats, slices)
    )
    cases = {
        "tdp (1024,), T=1": (eager_tdp, tdp, *group[0], t1),
        "tdp_group 171 parameters, T=1": (eager_group, fk.tdp_group, group, t1),
        "td_rms_norm (2,257,1024)": (eager_rms, fk.td_rms_norm, *norm[:2]),
        "td_rms_norm + residual (2,257,1024)": (eager_rms_residual, ours_rms_residual, *norm),
        "td_layer_norm 66 × (2,256,1024)": (eager_list, fk.td_layer_norm, parts, wide, wide),
        "gelu_mul (2,257,2048)": (eager_gelu_mul, fk.gelu_mul, bf16(2, 257, 2048), bf16(2, 257, 2048)),
        "norm_modulate + gated residual (2,1024,3072)": (eager_end_of_block, ours_end_of_block, *block),
        "gated_add (2,1024,3072)": (eager_gated_add, fk.gated_add, *gated),
        "gated_add in place (2,1024,3072)": (eager_gated_add, in_place(fk.gated_add), *map(torch.Tensor.detach, gated)),
        "qk_norm_rope (1,1024,24,128)": (eager_rope, fk.qk_norm_rope, *heads),
        "qk_norm_rope in place (1,1024,24,128)": (
            eager_rope,
            in_place(fk.qk_norm_rope),
            *map(torch.Tensor.detach, heads),
        ),
        "psi (64,4,32,32)": (plain_psi, fk.psi, t, x0, x1),
        "Dt_psi (64,4,32,32)": (plain_dt_psi, fk.Dt_psi, t, x0, x1),
        "flow_pair, bf16 out (64,4,32,32)": (eager_pair, pair, t, x0, x1),
        "velocity_stats (64,4,32,32)": (plain_stats, fk.velocity_stats, v, x0, x1),
        "velocity_stats, ten slices of t": (plain_slices, slices, t, v, x0, x1),
        "flow_loss (64,4,32,32)": (eager_loss, fk.flow_loss, v, x0, x1),
        "euler_step_ guided, low, stats (1,4,32,32)": (eager_step, ours_step, x0[:1], *(bf16(1, 4, 32, 32),) * 3),
        "reparameterize (64,4,32,32)": (plain_head, ours_head, mu, logvar, x0),
    }
    for name, (plain, ours, *args) in cases.items():
        yield name, partial(plain, *args), partial(ours, *args)
        if name.startswith(TRAINED):
            yield f"{name}, trained", partial(with_gradients, plain, *args), partial(with_gradients, ours, *args)


def table(title: str, columns: Sequence[str], rows: list[list]) -> dict:
    return {"title": f"{LABEL}: {title}", "columns": list(columns), "rows": rows}


def op_table(launch_us: float) -> dict:
    print("counting the ops", file=sys.stderr, flush=True)
    rows = []
    for name, *calls in op_cases():
        for who, call in zip(("plain", "fmkernels"), calls, strict=True):
            work = work_of(call)
            found = [times(work, gpu, launch_us) for gpu in GPUS]
            counts = [sum(w.launches for w in work), sum(w.bytes for w in work) / 1e6, found[0]["launches"]]
            rows.append([name, who, *counts, *(f[key] for key in ("bandwidth", "issue", "estimate") for f in found)])
    names = [f"{gpu.name} {key}" for key in ("bytes", "issue", "est.") for gpu in GPUS]
    title = (
        f"µs of each op at {launch_us:g} µs a launch: by launches, by bytes, by instructions (only ours), and by "
        "the largest, launch by launch"
    )
    return table(title, ["op (trained: and its backward)", "", "launches", "MB", "by launches", *names], rows)


def step_tables(launch_us: Sequence[float]) -> Iterator[dict]:
    """What a guided step of batch 1 (two samples) consists of, and its times."""
    counts, rows = [], []
    for model, preset in MODELS.items():
        print(f"counting a guided step of {preset}", file=sys.stderr, flush=True)
        work = {who: work_of(call) for who, call in guided_steps(preset, torch.bfloat16).items()}
        rest = {who: [w for w in done if w.name not in PRODUCTS] for who, done in work.items()}
        for who, done in work.items():
            products = [w for w in done if w.name in PRODUCTS]
            for part, some in (("products, attention", products), ("the rest", rest[who]), ("all", done)):
                sums = [sum(getattr(w, key) for w in some) for key in ("launches", "bytes", "flops")]
                counts.append([model, who, part, sums[0], sums[1] / 1e6, sums[2] / 1e9])
        for gpu, cost in product(GPUS, launch_us):
            whole, outside = ({who: times(done, gpu, cost) for who, done in w.items()} for w in (work, rest))
            for who in work:
                found = [*whole[who].values(), outside[who]["estimate"]]
                ratios = [w["plain"]["estimate"] / w[who]["estimate"] for w in (whole, outside)]
                rows.append([model, gpu.name, cost, who, *(us / 1e3 for us in found), *ratios])
    title = "a guided step of batch 1, bf16: launches, bytes, FLOPs"
    yield table(title, ["model", "", "part", "launches", "MB", "GFLOP"], counts)
    columns = ["model", "GPU", "µs a launch", "", "by bytes", "by launches", "by FLOPs", "by issue", "step", "rest"]
    title = (
        "ms of a guided step of batch 1, bf16; rest: outside products and attention; ×: the plain structure's over it"
    )
    yield table(title, [*columns, "× step", "× rest"], rows)


def shown(table: dict) -> str:
    cells = [table["columns"]]
    for row in table["rows"]:
        cells.append([f"{x:,.2f}" if isinstance(x, float) else f"{x:,}" if isinstance(x, int) else x for x in row])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_text = [isinstance(x, str) for x in table["rows"][0]]
    lines = [
        "  ".join(x.ljust(w) if left else x.rjust(w) for x, w, left in zip(row, widths, is_text, strict=True))
        for row in cells
    ]
    return "\n".join([table["title"], *lines])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--launch-us", type=float, nargs="+", default=LAUNCH_US, help="cost of a launch, the ops' first (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="where to write the tables")
    args = parser.parse_args(argv)
    tables = [op_table(args.launch_us[0]), *step_tables(args.launch_us)]
    print("\n\n".join(map(shown, tables)))
    if args.json:
        facts = {"label": LABEL, "gpus": [asdict(gpu) for gpu in GPUS], "launch_us": list(args.launch_us)}
        args.json.write_text(json.dumps(facts | {"tables": tables}, indent=1) + "\n")
        print(f"written: {args.json}")


if __name__ == "__main__":
    main()
