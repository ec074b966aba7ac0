"""One call of every op on dense tensors, for the tests that count what a GPU backend launches, reads and writes."""

import torch

from fmkernels import backend


def r(*sizes, dtype=torch.float32):
    return torch.randn(sizes).to(dtype)


def dense_calls(n: int, row: int) -> dict[str, tuple]:
    """op -> a call of it on dense tensors of n columns, as a model makes them, and on rows wider than ``row``.

    No tensor is given twice.
    """

    def x(dtype=torch.float32):
        return r(2, n, dtype=dtype)

    def one():
        return r(n)

    def four():
        return [one() for _ in range(4)]

    def lists():
        return [[one(), one()] for _ in range(4)]

    def wide():
        return r(2, row + 8)

    def heads():
        return r(2, 1, 1, n)

    def int8(*sizes):
        return torch.randint(-127, 128, sizes, dtype=torch.int8)

    t, rope = r(2), (1e-6, True, True, 1)
    step = (0.1, None, 1.0, 0.5, 3.0, 1.0)
    return {
        "tdp": (*four(), t, 1.0),
        "tdp_out": (*four(), t, 1.0, x()),
        "tdp_backward": (x(), *four(), t, 1.0),
        "tdp_group": (*lists(), t, 1.0),
        "tdp_group_out": (*lists(), t, 1.0, r(2, 2 * n)),
        "tdp_group_backward": (r(2, 2 * n), *lists(), t, 1.0),
        "td_norm": ([x()], one(), one(), x(), one(), 1e-5, True, True),
        "td_norm, a list": ([x(), x()], r(2 * n), None, None, None, 1e-5, False, False),
        "td_norm, wide": ([wide()], r(row + 8), r(row + 8), wide(), r(row + 8), 1e-5, True, True),
        "td_norm_out": ([x()], one(), None, None, None, 1e-5, False, False, x(), None),
        "td_norm_backward": (x(), x(), [x()], one(), r(2, 2), 1e-5, True, True),
        "td_norm_backward, wide": (wide(), wide(), [wide()], r(row + 8), r(2, 2), 1e-5, True, True),
        "td_norm_backward, wide half": (wide(), None, [wide().half()], r(row + 8), r(2, 2), 1e-5, True, True),
        "gate_mul": (x(), x(), 0, True),
        "gate_mul, halves": (x(), None, 2, False),
        "gate_mul_backward": (x(), x(), x(), 1, True),
        "gated_add": (x(), one(), x()),
        "gated_add_": (x(), one(), x()),
        "gated_add_backward": (x(), one(), x()),
        "qk_norm_rope": (heads(), heads(), one(), one(), r(1, n), r(1, n), *rope),
        "qk_norm_rope_": (heads(), heads(), one(), one(), r(1, n), r(1, n), *rope),
        "qk_norm_rope_backward": (*[heads() for _ in range(4)], one(), one(), r(1, n), r(1, n), *rope),
        "psi": (t, x(), x(), 0.1, 1.0),
        "dt_psi": (x(), x(), 0.1, 1.0),
        "flow_pair": (t, x(), x(), 0.1, 1.0, torch.bfloat16),
        "psi_backward": (x(), t, x(), x(), 0.1, 1.0),
        "velocity_stats": (x(), x(), x(), None, 0.1, 1.0),
        "velocity_stats, a target": (x(), None, None, x(), 0.1, 1.0),
        "velocity_summary": (r(2, 9), t, 64, 10),
        "flow_loss": (x(), x(), x(), None, t, 0.1, 1.0),
        "flow_loss_backward": (t, x(), x(), x(), None, t, 0.1, 1.0),
        "step_": (x(), x(), x(), x(), *step, x(torch.half), r(2, 5)),
        "step_, without statistics": (x(), x(), None, None, *step, None, None),
        "quantize_rows": (x(),),
        "quantize_rows, long": (wide(),),
        "linear_int8": (x(), None, int8(64, n), r(64), r(64), torch.bfloat16),
        "linear_int8, int8 rows": (int8(2, n), r(2), int8(64, n), r(64), None, torch.float32),
        "td_norm_int8": ([x()], one(), one(), x(), 1e-5, True),
        "td_norm_int8, wide": ([wide()], r(row + 8), None, wide(), 1e-5, False),
        "reparameterize": (x(), x(), x(), -6.0, 6.0),
        "reparameterize_backward": (x(), t, x(), x(), x(), -6.0, 6.0),
    }


def large_tensors(name: str, arguments: tuple, results):
    """(where, the tensor, whether it is a result) of every large tensor of a call: "x[0]", "residual", "result 0"."""
    schema = backend.OPS[name.split(",")[0]].overload._schema
    for parameter, value in zip(schema.arguments, arguments, strict=True):
        listed = isinstance(value, list)
        for i, tensor in enumerate(value if listed else [value]):
            where = f"{parameter.name}[{i}]" if listed and parameter.name in ("x", "s") else parameter.name
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 1000:
                yield where, tensor, False
    for i, tensor in enumerate(results if isinstance(results, tuple) else [results]):
        if tensor is not None and tensor.numel() > 1000:
            yield f"result {i}", tensor, True
