"""linear_int8 at the sizes of the 256 px preset and of the default model, against fp32, bf16 and torch's int8."""

import warnings

import torch
import torch.nn.functional as F
from harness import Bench, compiled, main

import fmkernels as fk


def eager_linear(x, weight, scale, bias):
    x_scale = x.abs().amax(-1, keepdim=True) / 127
    rows = (x / x_scale).round().to(torch.int8)
    return torch._int_mm(rows, weight.t()).float() * (x_scale * scale) + bias


def dynamic_linear(weight, bias):
    """torch's linear layer in int8: x is quantized in every call, with one scale for all rows."""
    out_features, in_features = weight.shape
    layer = torch.nn.Linear(in_features, out_features)
    layer.load_state_dict({"weight": weight, "bias": bias})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torchao replaces it
        return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {torch.nn.Linear}, torch.qint8)


def linear(rows, width, columns, floors):
    x, weight, bias = torch.randn(rows, width), torch.randn(columns, width) / width**0.5, torch.randn(columns)
    quantized, scale = fk.quantize_weight(weight)
    packed, half = fk.pack_int8(quantized), weight.bfloat16()
    x_int8, x_scale = fk.quantize_rows(x)
    low, half_bias = x.bfloat16(), bias.bfloat16()
    fast, dynamic = compiled(eager_linear), dynamic_linear(weight, bias)
    args = x, quantized, scale, bias
    return Bench(
        f"linear_int8 {rows}×{width}×{columns}",
        {
            "eager": lambda: eager_linear(*args),
            "compile": lambda: fast(*args),
            "fmkernels": lambda: fk.linear_int8(x, None, scale, bias, packed=packed),
            "int8 rows": lambda: fk.linear_int8(x_int8, None, scale, bias, x_scale=x_scale, packed=packed),
            "fp32": lambda: F.linear(x, weight, bias),
            "bf16": lambda: F.linear(low, half, half_bias),
            "_int_mm": lambda: torch._int_mm(x_int8, quantized.t()),
            "torch dynamic": lambda: dynamic(x),
        },
        moved=4 * x.numel() + packed.numel() + 4 * rows * columns,
        flops=2 * rows * width * columns,
        tolerance=0.05,  # that of eight bits
        compared_as={"_int_mm": lambda sums: sums.float() * (x_scale[:, None] * scale) + bias},
        floors=floors,
    )


def eager_norm(x, scale, residual):
    summed = x + residual
    y = summed / (torch.linalg.vector_norm(summed, dim=-1, keepdim=True) * summed.shape[-1] ** -0.5 + 1e-8) * scale
    x_scale = y.abs().amax(-1, keepdim=True) / 127
    return (y / x_scale).round().to(torch.int8), x_scale.squeeze(-1), summed


def norm(rows, width):
    x, residual, scale = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    fast, args = compiled(eager_norm), (x, scale, residual)
    return Bench(
        f"td_rms_norm_int8 + residual ({rows},{width})",
        {
            "eager": lambda: eager_norm(*args),
            "compile": lambda: fast(*args),
            "fmkernels": lambda: fk.td_rms_norm_int8(x, scale, residual=residual),
            "in two passes": lambda: fk.quantize_rows(fk.td_rms_norm(x, scale, residual=residual)[0]),
        },
        moved=13 * x.numel(),
        tolerance=0.01,
        compared_as={"in two passes": lambda rows: (*rows, x + residual)},
    )


def cases():
    floors = {"fp32": 1, "_int_mm": 1, "torch dynamic": 1, "compile": 1}
    for sizes in ((514, 1024, 3072), (514, 1024, 1024), (514, 4096, 1024), (512, 67584, 2048)):
        yield linear(*sizes, floors)
    # The default model with 16 prompts and guidance.
    torch._dynamo.reset()  # its limit of eight sizes per function
    for sizes in ((1040, 192, 576), (1040, 192, 512), (1040, 512, 192), (4096, 80, 192), (4096, 192, 80)):
        yield linear(*sizes, {"fp32": 1})
    yield norm(514, 1024)


if __name__ == "__main__":
    main([cases])
