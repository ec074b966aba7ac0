"""Compiles every CUDA kernel for four architectures, without a GPU and without torch's headers; runs nothing.

python tools/cuda_check.py [--arch sm_90] [--out benchmarks/results/cuda_check.txt]

Fails on a warning, a spilled register or a byte of stack, and where a kernel that moves tensors has no 128-bit load or
store. Prints registers, shared memory and the occupancy these imply. Which kernels there are is read off the object
that g++ makes of the same sources for the tests (support/host_cuda.py), so that none can be forgotten. Results are kept
in build/cuda_check under a hash of the sources and the compiler. Without nvcc it says so and exits 0.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "csrc"), str(ROOT / "tests")]
from find_cuda import cuda_home  # noqa: E402

KEPT = ROOT / "build" / "cuda_check"
FLAGS = ["-O3", "-std=c++17", "-cubin", "-Xptxas", "-v,-warn-spills", "-Werror", "all-warnings"]
# Of one SM: threads, blocks, bytes of shared memory (CUDA C++ Programming Guide, technical specifications).
LIMITS = {
    "sm_80": (2048, 32, 164 << 10),
    "sm_90": (2048, 32, 228 << 10),
    "sm_100": (2048, 32, 228 << 10),
    "sm_120": (1536, 24, 100 << 10),
}
REGISTERS, BLOCK_SHARED = 65536, 1 << 10  # registers of an SM; shared memory the system takes of every block
REDUCTION_BYTES = (
    2 << 10
)  # of a kernel that keeps rows, shared memory of a fixed size: csrc/cuda/launch.h leaves so much
COMMON_REGISTERS = 64  # of a thread in the kernels of common cases, at most
UNIT_REGISTERS = 128  # of those that keep 16 elements of up to three tensors in each thread
# Kernel -> threads of a block; tensors read and written eight elements at a time, as often as the code names them.
KERNELS = {
    "tdp_kernel": (128, 4, 1),
    "tdp_backward_kernel": (128, 5, 4),
    "norm_kernel": (128, 8, 2),
    "norm_backward_kernel": (128, 4, 3),
    "runs_kernel": (256, 0, 0),
    "norm_wide_backward_kernel": (512, 8, 1),
    "norm_wide_columns_kernel": (256, 2, 2),
    "gate_mul_kernel": (256, 2, 1),
    "gate_mul_backward_kernel": (256, 3, 2),
    "gated_add_kernel": (256, 3, 1),
    "gated_add_backward_kernel": (256, 3, 2),
    "rope_kernel": (128, 4, 1),
    "rope_backward_kernel": (128, 5, 2),
    "rope_whole_kernel": (128, 6, 2),
    "rope_whole_backward_kernel": (128, 8, 4),
    "path_kernel": (256, 2, 2),
    "psi_backward_kernel": (256, 1, 2),
    "velocity_kernel": (512, 3, 0),
    "velocity_summary_kernel": (32, 0, 0),
    "flow_loss_backward_kernel": (256, 3, 1),
    "step_kernel": (512, 4, 2),
    "head_kernel": (256, 3, 1),
    "head_backward_kernel": (256, 4, 2),
}


def words(kernel: str) -> tuple[int, int]:
    """128-bit loads of a tensor's eight elements, and stores: in the kernels of any dtype, one for each."""
    if "Common<" in kernel:
        return (1, 1) if re.search(r"Common<fmk::b?f16", kernel) else (2, 2)
    return (4 if "double" in kernel else 2), 4 + 2 + 1 + 1


def of_block(kernel: str) -> tuple[int, int]:
    """Threads of a block, and bytes it keeps of its rows: of the widest that a warp has, or four times as wide."""
    threads, by_block = KERNELS[short(kernel)][0], "RowParts" in kernel and "columns" not in kernel
    most = 256 if "Any<double>" in kernel else 512  # kWideThreads of csrc/cuda/device.cuh
    threads = most if by_block else min(threads, most)
    number = 8 if "Any<double>" in kernel else 4
    columns = 4096 // number * (4 if by_block else threads // 32)
    element = 2 if re.search(r"Common<fmk::b?f16", kernel) else number
    kept = {"norm_kernel": element, "norm_backward_kernel": 2 * element + 2 * number}
    return threads, columns * kept.get(short(kernel), 0)


def cuobjdump() -> Path:
    """The toolkit's disassembler, or triton's, where the toolkit came without."""
    ours = cuda_home() / "bin" / "cuobjdump"
    if ours.exists():
        return ours
    import triton

    return Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def kernels(symbols: str) -> list[str]:
    """Every kernel among the demangled symbols of an object, as C++ writes it: fmk::step_kernel<float>."""
    found = re.findall(r"^[0-9a-f]+ [TWw] (?:void )?(fmk::\w+_kernel)((?:<.*>)?)\(", symbols, re.M)
    return sorted({name + arguments for name, arguments in found})


def without_arguments(demangled: str) -> str:
    """The kernel of a demangled symbol. Template arguments may contain parentheses: (fmk::Activation)0."""
    return re.match(r"(?:void )?(fmk::\w+(?:<.*>)?)\(", demangled).group(1).replace(" >", ">")


def short(kernel: str) -> str:
    return re.match(r"(?:fmk::)?(\w+)", kernel).group(1)


def families() -> dict[str, str]:
    """Kernel -> the header it is written in."""
    headers = sorted((ROOT / "csrc/cuda").glob("*.cuh"))
    written = r"__global__ void\s+(?:__launch_bounds__\(.*\)\s+)?(\w+)\("
    return {name: header.stem for header in headers for name in re.findall(written, header.read_text())}


def resources(log: str) -> dict[str, dict[str, int]]:
    """Mangled name -> registers, static shared memory, stack and spills, as ptxas -v says; callees' stack with it."""
    found = {}
    for part in log.split("Compiling entry function ")[1:]:
        words = {"registers": r"Used (\d+) registers", "stack": r"(\d+) bytes stack frame"}
        words |= {"spilled": r"(\d+) bytes spill (?:stores|loads)"}
        used = {name: [int(n) for n in re.findall(pattern, part)] for name, pattern in words.items()}
        if not all(used.values()):
            raise RuntimeError(f"ptxas speaks otherwise than expected: {part}")
        shared = re.search(r"(\d+) bytes smem", part)
        name = part.split("'")[1]
        found[name] = {key: sum(numbers) for key, numbers in used.items()}
        found[name]["shared"] = int(shared.group(1)) if shared else 0
    return found


def wide_accesses(sass: str) -> dict[str, tuple[int, int]]:
    """Mangled name -> 128-bit loads and stores of global memory in its code."""
    found = {}
    for body in sass.split("Function : ")[1:]:
        name = body.split("\n", 1)[0].strip()
        found[name] = len(re.findall(r"\bLDG\.E\.128", body)), len(re.findall(r"\bSTG\.E\.128", body))
    return found


def occupancy(arch: str, threads: int, registers: int, shared: int) -> float:
    """The share of an SM's threads that blocks of this kind fill."""
    most_threads, blocks, memory = LIMITS[arch]
    of_warp = -(-registers * 32 // 256) * 256
    warps = -(-threads // 32)
    fit = min(blocks, most_threads // (32 * warps), REGISTERS // of_warp // warps, memory // (shared + BLOCK_SHARED))
    return fit * warps * 32 / most_threads


def faults(row: dict) -> list[str]:
    """What a kernel is failed for."""
    found = []
    if row["stack"] or row["spilled"]:
        found.append(f"{row['stack']} bytes of stack, {row['spilled']} spilled")
    _, read, written = KERNELS[short(row["kernel"])]
    of_load, of_store = words(row["kernel"])
    loads, stores = read * of_load, written * of_store
    if row["loads"] < loads or row["stores"] < stores:
        found.append(f"128-bit loads {row['loads']} of {loads}, stores {row['stores']} of {stores}")
    registers = UNIT_REGISTERS if "rope_whole" in row["kernel"] else COMMON_REGISTERS
    if "Common<" in row["kernel"] and row["registers"] > registers:
        found.append(f"{row['registers']} registers, more than {registers}")
    if not row["occupancy"]:
        found.append("no block fits on an SM")
    if "Row" in row["kernel"] and row["shared"] > REDUCTION_BYTES and "columns" not in row["kernel"]:
        found.append(f"{row['shared']} bytes of shared memory beside that of a row, more than {REDUCTION_BYTES}")
    return found


def compiled(compiler: Path, family: str, names: list[str], arch: str) -> list[dict]:
    """One header for one architecture: a row a kernel. Raises with the compiler's words if it fails."""
    source = KEPT / f"{family}.cu"
    cubin = KEPT / f"{family}.{arch}.cubin"
    run = subprocess.run([compiler, *FLAGS, f"-arch={arch}", source, "-o", cubin], capture_output=True, text=True)
    if run.returncode:
        said = [line for line in (run.stdout + run.stderr).splitlines() if "ptxas info" not in line]
        raise RuntimeError("\n".join([f"{family} for {arch}:", *said]))
    sass = subprocess.run([cuobjdump(), "-sass", cubin], capture_output=True, text=True, check=True).stdout
    used, wide = resources(run.stdout + run.stderr), wide_accesses(sass)
    plain = subprocess.run(["c++filt", *used], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = []
    for mangled, text in zip(used, plain, strict=True):
        kernel = without_arguments(text)
        threads, kept = of_block(kernel)
        loads, stores = wide[mangled]
        shared = used[mangled]["shared"] + kept
        filled = occupancy(arch, threads, used[mangled]["registers"], shared)
        rows.append(
            {"kernel": kernel, "arch": arch, "threads": threads, **used[mangled], "block_shared": shared}
            | {"loads": loads, "stores": stores, "occupancy": filled}
        )
    missing = {name.replace(" >", ">") for name in names} - {row["kernel"] for row in rows}
    if missing:
        raise RuntimeError(f"{family} for {arch}: not compiled: {', '.join(sorted(missing))}")
    return rows


def check(compiler: Path, names: list[str], archs: list[str]) -> list[dict]:
    """Every kernel for every architecture; from what was kept, if nothing changed since."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = [*sorted((ROOT / "csrc/cuda").glob("*.cuh")), *sorted((ROOT / "csrc/shared").glob("*.h"))]
    digest = hashlib.sha256(json.dumps([version, FLAGS, names, Path(__file__).read_text()]).encode())
    for path in sources:
        digest.update(path.read_bytes())
    kept = KEPT / f"{digest.hexdigest()[:16]}.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    wanted = [arch for arch in archs if arch not in {row["arch"] for row in rows}]
    if wanted:
        KEPT.mkdir(parents=True, exist_ok=True)
        of, members_of = families(), {}
        for name in names:
            members_of.setdefault(of[short(name)], []).append(name)
        for family, members in members_of.items():
            taken = "".join(f"    reinterpret_cast<const void*>({name}),\n" for name in members)
            header = ROOT / "csrc" / "cuda" / f"{family}.cuh"
            (KEPT / f"{family}.cu").write_text(f'#include "{header}"\nconst void* kernels[] = {{\n{taken}}};\n')
        # The largest first: two of them fill two cores.
        jobs = [(family, arch) for family in sorted(members_of, key=lambda f: -len(members_of[f])) for arch in wanted]
        with ThreadPoolExecutor(2) as pool:
            made = [pool.submit(compiled, compiler, family, members_of[family], arch) for family, arch in jobs]
        errors = [str(future.exception()) for future in made if future.exception()]
        if errors:
            raise RuntimeError("\n".join(errors))
        rows += [row for future in made for row in future.result()]
        kept.write_text(json.dumps(rows, indent=1))
    return [row for arch in archs for row in rows if row["arch"] == arch]


def table(rows: list[dict]) -> str:
    """A line a kernel: its figures on every architecture, in the same order."""
    archs = list(dict.fromkeys(row["arch"] for row in rows))
    form = "{:<68}{:>8}{:>18}{:>8}{:>18}{:>7}{:>7}{:>7}"
    lines = [
        f"for {', '.join(archs)}: registers of a thread and share of an SM's threads; of a block, shared memory",
        form.format("kernel", "threads", "registers", "shared", "occupancy %", "loads", "stores", "spills"),
    ]
    for kernel in sorted({row["kernel"] for row in rows}):
        of = [row for row in rows if row["kernel"] == kernel]
        registers = "/".join(str(row["registers"]) for row in of)
        filled = "/".join(f"{100 * row['occupancy']:.0f}" for row in of)
        first, spilled = of[0], sum(row["spilled"] for row in of)
        each = (first["threads"], registers, first["block_shared"], filled, first["loads"], first["stores"], spilled)
        lines.append(form.format(kernel.replace("fmk::", ""), *each))
    return "\n".join(lines)


def kernels_of_the_sources() -> list[str]:
    """As the object has them; none that is written may be missing."""
    from support import host_cuda

    listed = subprocess.run(["nm", "-C", host_cuda.build()], capture_output=True, text=True, check=True).stdout
    names = kernels(listed)
    if {short(name) for name in names} != set(families()) or set(families()) != set(KERNELS):
        raise RuntimeError(f"the kernels of csrc/cuda {sorted(families())}, of the object and of KERNELS differ")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=LIMITS, help="one of them only; may be given again")
    parser.add_argument("--out", type=Path, help="file that the printed table is also written to")
    options = parser.parse_args()
    archs = options.arch or list(LIMITS)
    home = cuda_home()
    if home is None:
        print("cuda-check: no nvcc here (looked in CUDA_HOME, PATH and /usr/local/cuda): nothing was compiled")
        return 0
    compiler = home / "bin" / "nvcc"
    try:
        rows = check(compiler, kernels_of_the_sources(), archs)
    except RuntimeError as error:
        print(f"cuda-check: {error}")
        return 1
    found = [f"{row['kernel']} for {row['arch']}: {fault}" for row in rows for fault in faults(row)]
    passed = f"{len(rows)} compilations of {len({row['kernel'] for row in rows})} kernels: no fault"
    text = "\n".join([table(rows), *(found or [passed])])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
