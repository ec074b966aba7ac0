"""Counts the instructions per element that the Triton kernels would execute on a GPU, from their compiled code.

python tools/triton_count.py [--target sm_90] [--only norm] [--show sass]

The ops are called at typical sizes with their launches recorded instead of executed, and each kernel is compiled ahead
of time (as in triton_check.py). Instructions inside a loop count once per iteration; the iterations follow from the
arguments of the launch. PTX counts leave out ``mov``. SASS counts leave out ``NOP`` and the subroutines and
branches of divisions and roots that only subnormal and infinite operands take. Nothing is executed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton_check

TOOLS = ("cuobjdump", "-sass")


def cases():
    """name -> (elements, call): bf16 activations with rows of 1024, the 256 px model's parameters, its latents."""
    import torch

    from fmkernels import triton as ours

    def r(*sizes, dtype=torch.bfloat16):
        return torch.empty(sizes, dtype=dtype)

    wide = torch.float32
    x, scale, stat, n = r(64, 257, 1024), r(1024, dtype=wide), r(64 * 257, 2, dtype=wide), 64 * 257 * 1024
    sizes = [1024] * 132 + [512] * 37 + [67584] * 2
    four, total = [[r(size, dtype=wide) for size in sizes] for _ in range(4)], sum(sizes)
    one = [r(67584, dtype=wide) for _ in range(4)]
    parts, parameter = [r(2, 257, 1024) for _ in range(66)], r(67584, dtype=wide)
    row = 2 * 257 * 67584
    row_stat, row_grad = r(2 * 257, 2, dtype=wide), r(2, 257, 67584)
    state, stats, z = r(16, 4, 32, 32, dtype=wide), r(16, 5, dtype=wide), r(16, 4, 32, 32)
    latent, big, big_t = z.numel(), r(64, 16, 128, 128), r(64, dtype=wide)
    return {
        "gelu_mul": (n, lambda: ours.gate_mul(x, x, 0, True)),
        "gelu_mul_backward": (n, lambda: ours.gate_mul_backward(x, x, x, 0, True)),
        "rms norm": (n, lambda: ours.td_norm([x], scale, None, None, None, 1e-8, False, False)),
        "rms norm + residual": (n, lambda: ours.td_norm([x], scale, None, x, None, 1e-8, False, False)),
        "layer norm": (n, lambda: ours.td_norm([x], scale, scale, None, None, 1e-5, True, True)),
        "rms norm backward": (n, lambda: ours.td_norm_backward(x, None, [x], scale, stat, 1e-8, False, False)),
        "layer norm backward": (n, lambda: ours.td_norm_backward(x, None, [x], scale, stat, 1e-5, True, True)),
        "layer norm of 66 tensors": (
            row,
            lambda: ours.td_norm(parts, parameter, parameter, None, None, 1e-5, True, True),
        ),
        "layer norm of 66 tensors, backward": (
            row,
            lambda: ours.td_norm_backward(row_grad, None, parts, parameter, row_stat, 1e-5, True, True),
        ),
        "tdp, T=1": (67584, lambda: ours.tdp(*one, r(1, dtype=wide), 1.0)),
        "tdp group, T=1": (total, lambda: ours.tdp_group(*four, r(1, dtype=wide), 1.0)),
        "tdp group, T=50": (50 * total, lambda: ours.tdp_group(*four, r(50, dtype=wide), 1.0)),
        "tdp group backward, T=1": (total, lambda: ours.tdp_group_backward(r(1, total), *four, r(1, dtype=wide), 1.0)),
        "step, guided": (latent, lambda: ours.step_(state, z, None, z, 0.1, None, 1.0, 0.0, 3.0, 1.0, z, stats)),
        "flow_pair": (big.numel(), lambda: ours.flow_pair(big_t, big, big, 1e-5, 1.0, None)),
        "velocity_stats": (big.numel(), lambda: ours.velocity_stats(big, big, big, None, 1e-5, 1.0)),
        "flow_loss": (big.numel(), lambda: ours.flow_loss(big, None, None, big, None, 1e-5, 1.0)),
        "flow_loss backward": (
            big.numel(),
            lambda: ours.flow_loss_backward(big_t, big, None, None, big, None, 1e-5, 1.0),
        ),
        "reparameterize": (latent, lambda: ours.reparameterize(z, z, z, -6.0, 6.0)),
    }


def iterations(launch):
    """How often the kernel's loop runs."""
    named = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.meta
    if "RUNS" in named:
        return -(-named["runs"] // named["RUNS"])
    if "CHUNK" in named:
        return named["CHUNK"] // named["BLOCK"]
    if "run" in named:
        return named["run"] // named["ROWS"]
    for name, at_once in (("group", "ROWS"), ("tile_count", "TILES"), ("steps", None), ("samples", None)):
        if name in named:
            return -(-named[name] // named.get(at_once, 1))
    return 1


def weighted(instructions, trips):
    """Instructions executed by a thread: (address, counted, target of a branch) of each, loops run ``trips`` times."""
    order = {address: i for i, (address, _, _) in enumerate(instructions)}
    loops = [
        (order[target], i) for i, (_, _, target) in enumerate(instructions) if target in order and order[target] < i
    ]
    return sum(
        counted * (trips if any(first <= i <= last for first, last in loops) else 1)
        for i, (_, counted, _) in enumerate(instructions)
    )


def ptx(text, trips):
    """Executed PTX instructions of a thread."""
    body = text[text.index("{", text.index(".entry")) :]
    found, label = [], 0
    for line in body.splitlines():
        line = line.split("//")[0].strip()
        if match := re.match(r"(\$\w+):", line):
            found.append((match[1], 0, None))
        for statement in line.strip("{} \t").split(";"):
            statement = re.sub(r"^@!?\S+\s+", "", statement.strip(" \t{}"))
            if not re.match(r"[a-z]", statement):
                continue
            target = re.search(r"(\$\w+)", statement)[1] if statement.startswith("bra") else None
            label += 1
            found.append((label, not statement.startswith("mov"), target))
    return weighted(found, trips)


def sass(cubin, trips):
    """Executed SASS instructions of a thread, and the disassembly."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / TOOLS[0]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, TOOLS[1], file.name], capture_output=True, text=True, check=True).stdout
    code = re.findall(r"/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+ )?)([A-Z][\w.]*)(.*?);", text)
    leaders, previous = set(), ""
    for address, _, name, operands in code:
        if previous:
            leaders.add(address)
        previous = re.match(r"BRA|CALL|RET|EXIT|BSYNC", name)
        if previous and (target := re.search(r"0x([0-9a-f]+)", operands)):
            leaders.add(target[1].rjust(len(address), "0"))
    blocks = []
    for item in code:
        if item[0] in leaders or not blocks:
            blocks.append([])
        blocks[-1].append(item)
    subroutines = {re.search(r"0x([0-9a-f]+)", i[3])[1].rjust(4, "0") for i in code if i[2].startswith("CALL")}
    cut = min(subroutines, default="f" * 8, key=lambda a: int(a, 16))
    found = []
    for block in blocks:
        rare = any(name.startswith("CALL") for _, _, name, _ in block) or int(block[0][0], 16) >= int(cut, 16)
        for address, _, name, operands in block:
            target = re.search(r"0x([0-9a-f]+)", operands) if name.startswith("BRA") else None
            found.append((address, not rare and name != "NOP", target and target[1].rjust(len(address), "0")))
    return weighted(found, trips), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90", choices=[t for t in triton_check.TARGETS if t.startswith("sm")])
    parser.add_argument("--only", default="", help="only ops whose name contains this")
    parser.add_argument("--show", choices=["ptx", "sass", "ttgir"], help="also print the code")
    options = parser.parse_args()
    from fmkernels.triton import _launch

    print(f"{'op':36}{'kernel':18}{'PTX':>7}{'SASS':>7}{'regs':>6}{'stack':>6}{'programs':>10}")
    for name, (elements, call) in cases().items():
        if options.only not in name:
            continue
        launches = []

        def record(kernel, grid, args, meta, launches=launches):
            launches.append(triton_check.Launch(kernel, grid, args, meta.pop("threads"), meta, True))
            return True

        _launch.hooks.append(record)
        call()
        _launch.hooks.remove(record)
        for launch in launches:
            compiled = triton_check.compiled_for(launch, options.target, 120)
            registers, stack, _ = triton_check.resources(compiled)
            trips, threads = iterations(launch), launch.grid * launch.threads / elements
            native, text = sass(compiled.asm["cubin"], trips)
            kernel = launch.kernel.fn.__name__
            counts = f"{ptx(compiled.asm['ptx'], trips) * threads:7.1f}{native * threads:7.1f}"
            print(f"{name:36}{kernel:18}{counts}{registers:6}{stack:6}{launch.grid:10}", flush=True)
            if options.show:
                print(text if options.show == "sass" else compiled.asm[options.show])


if __name__ == "__main__":
    sys.exit(main())
