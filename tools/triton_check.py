"""Compiles every Triton kernel ahead of time, as its op would launch it, for GPUs that need not be present.

python tools/triton_check.py [--targets sm_90,gfx942] [--kernels norm] [--limit 120] [--jobs 2] [--out FILE]

The ops are called with their launches recorded instead of executed: every dtype, every row of the block tables, aligned
and not. Triton compiles each launch for each target, with a time limit. The table shows registers, stack bytes, shared
memory, the widths of global loads and stores, and atomics. The check fails on a spill, an atomic, an approximate
division, root or exponential (a reciprocal followed by a Newton step is allowed), an access narrower than 16 bytes
where alignment allows wider ones, or a compilation that fails or takes too long. Nothing is executed.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# These add up a few partial sums or numbers per sample, or write a table: wide accesses are not worth it. A product's
# tile has the layout of the matrix instructions.
NARROW = {"_to_times", "_statistics", "_combine", "_summary", "_fill", "_product"}


@dataclasses.dataclass
class Launch:
    """One kernel with the arguments that its op passed."""

    kernel: object
    grid: int
    args: tuple
    threads: int
    meta: dict
    aligned: bool

    @property
    def module(self):
        return self.kernel.fn.__module__.split(".")[-1]

    @property
    def name(self):
        dtypes = [str(x.dtype).removeprefix("torch.") for x in self.args if hasattr(x, "dtype")]
        short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int64": "table"}
        runs = [f"{short[d]}x{len(list(g))}" for d, g in itertools.groupby(dtypes)]
        meta = " ".join(f"{k}={v}" for k, v in self.meta.items() if v not in (None, False))
        meta += f" threads={self.threads}"
        return f"{self.module}.{self.kernel.fn.__name__} {','.join(runs)} {meta}{'' if self.aligned else ' unaligned'}"

    @property
    def key(self):
        return (self.name, tuple(x is None for x in self.args))


def ops(dtype, parameter, shift):
    """Call every op so that every kernel and every row of the block tables is used.

    shift: number of elements by which the tensors are misaligned.
    """
    import torch

    from fmkernels import triton as ours
    from fmkernels.triton import _launch, norm

    def fresh(*sizes, like=dtype):
        count = torch.Size(sizes).numel()
        return torch.empty(count + 8, dtype=like)[shift : shift + count].view(sizes)

    def odd(n):
        return n if shift == 0 else n - 1

    wide = torch.float32
    uneven = {1008} if dtype == parameter == torch.bfloat16 else set()  # aligned, but not a multiple of a chunk
    for n in {min(limit, 1 << 19) for limit in _launch.CHUNKS} | uneven:
        x, t, weight = fresh(2, odd(n)), fresh(2, like=wide), fresh(2, like=wide)
        grad = fresh(2, odd(n))
        ours.psi(t, x, x, 0.1, 1.0)
        ours.dt_psi(x, x, 0.1, 1.0)
        ours.flow_pair(t, x, x, 0.1, 1.0, None)
        ours.psi_backward(grad, t, x, x, 0.1, 1.0)
        ours.velocity_stats(x, x, x, None, 0.1, 1.0)
        ours.flow_loss(x, None, None, x, weight, 0.1, 1.0)
        ours.flow_loss_backward(t, x, x, x, None, weight, 0.1, 1.0)
        ours.flow_loss_backward(t, x, None, None, x, None, 0.1, 1.0)
        ours.gate_mul(x, x, 0, True)
        ours.gate_mul(fresh(2, 2 * odd(n)), None, 2, False)
        ours.gate_mul_backward(grad, x, x, 1, True)
        ours.reparameterize_backward(grad, t, x, x, x, -6.0, 6.0)
        state, stats = fresh(2, odd(n), like=wide), fresh(2, 5, like=wide)
        ours.step_(state, x, None, x, 0.1, None, 1.0, 0.0, 3.0, 1.0, x, stats)
        ours.step_(state, x, x, None, 0.0, t[:1], 1.5, -0.5, 1.0, 1.0, None, None)
    ours.reparameterize(x, x, x, -6.0, 6.0)
    ours.velocity_summary(fresh(2, 9, like=wide), t, 64, 10)
    for width in [*norm.ROWS, 2 * norm.ROW]:
        x, scale, one = fresh(4, 2, odd(width)), fresh(4, odd(width), like=parameter), fresh(odd(width), like=parameter)
        stat = fresh(8, 2, like=wide)
        ours.td_norm([x], scale, None, x, None, 1e-8, False, False)
        ours.td_norm([x], scale, scale, x, scale, 1e-6, True, True)
        ours.td_norm([x], one, one, None, None, 1e-5, True, True)
        ours.td_norm_backward(x, x, [x], scale, stat, 1e-8, False, False)
        ours.td_norm_backward(x, None, [x], one, stat, 1e-5, True, True)
        ours.td_norm_int8([x], scale, None, x, 1e-8, False)
        ours.td_norm_int8([x], one, one, None, 1e-5, True)
        ours.quantize_rows(x)
        ours.gated_add(x, scale, x)
        ours.gated_add_backward(x, scale, x)
    weight, scale = fresh(512, odd(1024), like=torch.int8), fresh(512, like=wide)
    for rows in (8, 64, 514):
        ours.linear_int8(fresh(rows, odd(1024)), None, weight, scale, fresh(512, like=parameter), dtype)
        ours.linear_int8(fresh(rows, odd(1024), like=torch.int8), fresh(rows, like=wide), weight, scale, None, dtype)
    for columns in (odd(128), 96):
        q, weight, table = fresh(2, 5, 3, columns), fresh(columns, like=parameter), fresh(5, 64, like=wide)
        for interleaved in (True, False):
            settings = table, table, 1e-6, True, interleaved, 1
            ours.qk_norm_rope(q, q, weight, None, *settings)
            ours.qk_norm_rope_backward(q, q, q, q, weight, None, *settings)
            ours.qk_norm_rope(q, None, fresh(3 * columns, like=parameter), None, *settings)
            ours.qk_norm_rope_backward(q, None, q, None, fresh(3 * columns, like=parameter), None, *settings)
    parts, scale = [fresh(4, 2, odd(1024)) for _ in range(6)], fresh(4, 6 * odd(1024), like=parameter)
    ours.td_norm(parts, scale, scale, None, None, 1e-5, True, True)
    ours.td_norm_backward(fresh(4, 2, 6 * odd(1024)), None, parts, scale, stat, 1e-5, True, True)
    four, times = [fresh(odd(2048), like=parameter) for _ in range(4)], fresh(3, like=wide)
    ours.tdp(*four, times, 1.0)
    ours.tdp_backward(fresh(3, odd(2048), like=parameter), *four, times, 1.0)
    ours.tdp_group(*[[x, x] for x in four], times, 1.0)
    ours.tdp_group_backward(fresh(3, 2 * odd(2048), like=parameter), *[[x, x] for x in four], times, 1.0)


def recorded():
    """Return every distinct launch of every op."""
    import torch

    from fmkernels import triton as ours
    from fmkernels.triton import _launch

    found, aligned = {}, True

    def record(kernel, grid, args, meta):
        threads = meta.pop("threads")
        launch = Launch(kernel, grid, args, threads, meta, aligned)
        found.setdefault(launch.key, launch)
        return True  # replaces the launch

    _launch.hooks.append(record)
    halves = (torch.float16, torch.bfloat16)
    for dtype, parameter in [(torch.float32,) * 2, *((half, half) for half in halves), (halves[1], torch.float32)]:
        ops(dtype, parameter, 0)
    aligned = False
    ops(torch.bfloat16, torch.bfloat16, 1)
    mixed = [torch.empty(64, dtype=dtype) for dtype in (torch.float32, *halves)]
    ours.tdp_group(mixed, mixed, mixed, mixed, torch.empty(2), 1.0)  # read according to their codes
    ours.tdp_group(*[[torch.empty(64)] * 64] * 4, torch.empty(2), 1.0)  # as many items as one launch fills in
    ours.td_norm([torch.empty(2, 64)] * 128, torch.empty(128 * 64), None, None, None, 1e-5, True, True)
    _launch.hooks.remove(record)
    return list(found.values())


class Absent:
    """A driver without a device: Triton compiles for its target as if the device were present."""

    def __init__(self, index, target):
        self.index, self.target = index, target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.index  # kernels are cached by device

    def get_current_stream(self, device=None):
        return 0


AMD_SIZES = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "short": 2, "ubyte": 1, "byte": 1}
ELEMENT = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1}


def accesses(asm):
    """Width of global loads and stores in the program text -> number of different addresses."""
    found = {
        (int(count or 1) * int(bits) // 8, address)
        for count, bits, address in re.findall(
            r"\b(?:ld|st)(?:\.volatile)?\.global\S*?(?:\.v(\d))?\.[bfsu](\d+) .*?(\[ .*? \])", asm
        )
    }
    names = "|".join(AMD_SIZES)
    for kind, operands in re.findall(rf"\b(?:global|buffer)_(?:load|store)_({names})\w* (.*)", asm):
        found.add((AMD_SIZES[kind], operands))
    return collections.Counter(size for size, _ in found)


def narrow_by_nature(ttgir, threads):
    """Count loads and stores with less than 16 bytes per thread: single numbers, one number per row, short rows."""
    kinds = []
    for line in ttgir.split("\n"):
        if re.search(r"\b(tt\.|amdg\.buffer_)(load|store) ", line):
            kind = line.split(" loc(")[0].rsplit(" : ", 1)[1]
            element = ELEMENT[re.search(r"(bf16|f16|f32|f64|i8|i16|i32|i64)[,>]", kind)[1]]
            kinds.append((element, [int(n) for n in re.findall(r"(\d+)x", kind.split("!tt")[0].split(",")[0])]))
    # A thread with several vectors of a tile has at most as many of its rows.
    vectors = max(1, max(math.prod(sizes) for _, sizes in kinds) // (4 * threads))
    count = 0
    for element, sizes in kinds:
        if sizes and sizes[-1] == 1:
            count += min(math.prod(sizes), vectors)
        else:
            count += not sizes or math.prod(sizes) * element < 16 * threads
    return count


def resources(compiled):
    """Registers, stack and spill bytes, and shared memory, as reported by the assembler."""
    if "amdgcn" in compiled.asm:
        facts = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)", compiled.asm["amdgcn"])}
        spilled = facts["vgpr_spill_count"] + facts["sgpr_spill_count"]
        return facts["vgpr_count"], facts["private_segment_fixed_size"] + spilled, compiled.metadata.shared
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    facts = {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return facts["REG"], facts["STACK"] + facts["LOCAL"], compiled.metadata.shared


def compiled_for(launch, target_name, limit):
    """The kernel of a launch, compiled for a target that need not be present."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from fmkernels.triton._launch import options as launch_options

    names = list(TARGETS)
    driver.set_active(Absent(names.index(target_name), GPUTarget(*TARGETS[target_name])))
    signal.alarm(limit)  # ends the process: the compiler, in C++, does not handle signals
    options = launch_options(launch.threads, TARGETS[target_name][2])
    compiled = launch.kernel.warmup(*launch.args, grid=(launch.grid,), **options, **launch.meta)
    signal.alarm(0)
    return compiled


def unrefined(asm):
    """The code without the reciprocals that are followed by a Newton step (``_math.RECIPROCAL``)."""
    from fmkernels.triton._math import RECIPROCAL

    statement = re.escape(RECIPROCAL.value.strip("{} ").split("; ", 1)[1].strip())
    return re.sub(re.sub(r"\\\$\d", r"%\\w+", statement), "", asm)


def check(launch, target_name, limit):
    """Compile one launch for one target; return its row of the table and a list of problems."""
    compiled = compiled_for(launch, target_name, limit)
    asm = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    registers, stack, shared = resources(compiled)
    found, atomics = accesses(asm), len(re.findall(r"^\s*(?:@\S+ )?(?:atom|red)\.|_atomic_", asm, re.M))
    problems = []
    if stack:
        problems.append(f"{stack} bytes of stack: registers spill")
    if inexact := set(
        re.findall(r"\b(?:div\.full|div\.approx|rcp\.approx|sqrt\.approx|ex2\.approx)\S*", unrefined(asm))
    ):
        problems.append(f"not correctly rounded: {', '.join(sorted(inexact))}")
    if atomics:
        problems.append(f"{atomics} atomics")
    narrow = sum(found[size] for size in found if size < 16)
    by_nature = narrow_by_nature(compiled.asm["ttgir"], compiled.metadata.num_warps * TARGETS[target_name][2])
    if launch.aligned and launch.kernel.fn.__name__ not in NARROW and narrow > by_nature:
        problems.append(f"{narrow} accesses under 16 bytes, {by_nature} by nature")
    text = " ".join(f"{size}Bx{n}" for size, n in sorted(found.items(), reverse=True))
    return (target_name, launch.name, registers, stack, shared, text, atomics), problems


def start(kernels):
    global launches
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-check-")  # compile everything again
    launches = [x for x in recorded() if kernels in x.name]


def work(target, index, limit):
    return check(launches[index], target, limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated (default: all five)")
    parser.add_argument("--kernels", default="", help="only kernels whose name contains this")
    parser.add_argument("--limit", type=int, default=120, help="seconds that a compilation may take")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="number of parallel compilations (default: one per core)"
    )
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := set(targets) - TARGETS.keys():
        parser.error(f"--targets: unknown {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 replaces the compiler: unset it")
    import triton

    start(options.kernels)
    if not launches:
        parser.error(f"--kernels: no kernel's name contains {options.kernels!r}")
    lines = [f"triton {triton.__version__}: {len(launches)} launches for {', '.join(targets)}"]
    print(lines[0], file=sys.stderr, flush=True)
    tasks, failures, rows = [(t, i) for t in targets for i in range(len(launches))], [], []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, context, start, (options.kernels,)) as pool:
        futures = {pool.submit(work, target, i, options.limit): (target, i) for target, i in tasks}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            target, i = futures[future]
            try:
                row, problems = future.result()
            except concurrent.futures.process.BrokenProcessPool:
                sys.exit(
                    f"{target} {launches[i].name}: this or the parallel compilation took longer than {options.limit} s"
                )
            except Exception as error:
                problems = [f"does not compile: {error!r}"[:300]]
            else:
                rows.append(row)
            failures += [f"{target} {launches[i].name}: {problem}" for problem in problems]
            if done % 100 == 0 or done == len(tasks):
                print(f"{done} of {len(tasks)} compiled", file=sys.stderr, flush=True)
    lines.append(f"{'target':8}{'regs':>5}{'stack':>6}{'shared':>7}{'atomics':>8}  accesses; kernel")
    for target, name, registers, stack, shared, text, atomics in sorted(rows, key=lambda r: (r[1], r[0])):
        lines.append(f"{target:8}{registers:5}{stack:6}{shared:7}{atomics:8}  {text}; {name}")
    for target in targets:
        of = [row for row in rows if row[0] == target]
        registers, shared = (max((row[k] for row in of), default=0) for k in (2, 4))
        lines.append(f"{target}: {len(of)} compiled, at most {registers} registers, {shared} bytes shared")
    lines += sorted(failures) or ["no spill, no atomic, nothing inexact, no needlessly narrow access"]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
