"""Coverage-guided calls of ``torch.ops.fmkernels`` by atheris: any arguments may raise, none may crash or hang.

Started by tools/fuzz_checks.sh, which builds the object with counters and preloads them.
"""

import ctypes
import sys

import atheris
import torch

import fmkernels
from fmkernels.backend.loading import status
from fmkernels.schema import CPU_ONLY, SHARED

NAMES = [line.partition("(")[0] for line in (SHARED + CPU_ONLY).split("\n") if line]
OPS = [getattr(torch.ops.fmkernels, name).default for name in NAMES if name not in ("tdp_unpin", "tdp_pinned")]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
SIDES = (0, 1, 2, 3, 5, 7, 8, 16, 17, 33)
NUMBERS = (0.0, 1.0, -1.0, 1e-5, 1e30, float("inf"), float("nan"))
BUFFER = torch.linspace(-3, 3, 40_000, dtype=torch.float64)


def counted() -> None:
    """Register the counters of tools/coverage.c with the libFuzzer inside atheris."""
    from atheris import core_with_libfuzzer as core

    made, fuzzer = ctypes.CDLL(None), ctypes.CDLL(core.__file__)
    size = ctypes.c_uint.in_dll(made, "fmk_size").value
    first = ctypes.addressof((ctypes.c_uint8 * size).in_dll(made, "fmk_counters"))
    fuzzer.__sanitizer_cov_8bit_counters_init(ctypes.c_void_p(first), ctypes.c_void_p(first + size))


def tensor(data: atheris.FuzzedDataProvider, shapes: list[list[int]]) -> torch.Tensor:
    """A tensor of a shape that was there before, or of another, of any dtype, layout and device."""
    again = shapes and data.ConsumeIntInRange(0, 3)
    shape = data.PickValueInList(shapes) if again else [
        data.PickValueInList(list(SIDES)) for _ in range(data.ConsumeIntInRange(0, 4))
    ]  # fmt: skip
    shapes.append(shape)
    dtype = DTYPES[data.ConsumeIntInRange(0, 3) if data.ConsumeIntInRange(0, 9) else data.ConsumeIntInRange(0, 6)]
    kind, count = data.ConsumeIntInRange(0, 11), 1
    for side in shape:
        count *= side
    if kind == 0:
        return torch.empty(shape, dtype=dtype, device="meta")
    if count > 20_000:
        return torch.zeros(1, dtype=dtype).expand(shape)
    x = BUFFER[:count].to(dtype).reshape(shape)
    if kind == 1 and shape:
        return x[:1].expand(shape) if shape[0] else x
    if kind == 2 and len(shape) > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 3:
        return BUFFER.to(dtype)[1 : count + 1].view(shape)
    if kind == 4:
        return BUFFER.to(dtype).as_strided(shape, [data.ConsumeIntInRange(0, 9) for _ in shape])
    return x


def argument(name: str, kind: str, data: atheris.FuzzedDataProvider, shapes: list[list[int]]) -> object:
    if name == "dtype":  # torch crashes on the number of no dtype, in every op that has a kernel in Python
        return DTYPES[data.ConsumeIntInRange(0, len(DTYPES) - 1)]
    if "Optional" in kind and data.ConsumeBool():
        return None
    if "List[Tensor]" in kind:
        return [tensor(data, shapes) for _ in range(data.ConsumeIntInRange(0, 4))]
    if "Tensor" in kind:
        return tensor(data, shapes)
    if kind == "float":
        return NUMBERS[data.ConsumeIntInRange(0, len(NUMBERS) - 1)]
    if kind == "bool":
        return data.ConsumeBool()
    return data.ConsumeIntInRange(-2, 40) if data.ConsumeIntInRange(0, 5) else data.ConsumeInt(8)


def once(given: bytes) -> None:
    data, shapes = atheris.FuzzedDataProvider(given), []
    op = OPS[data.ConsumeIntInRange(0, len(OPS) - 1)]
    arguments = [argument(a.name, str(a.type), data, shapes) for a in op._schema.arguments]
    try:
        with torch.no_grad():
            op(*arguments)
    except Exception:  # of any kind: only a crash is a finding
        return


if __name__ == "__main__":
    assert status["cpp"].available, fmkernels.explain()
    counted()
    torch.set_num_threads(1)
    atheris.Setup(sys.argv, once)
    atheris.Fuzz()
