"""What torch can do itself, done faster: the depthwise convolution and linear, with gradients and without.

python benchmarks/bench_parts.py          # a minute; prints
python benchmarks/bench_parts.py --json benchmarks/results/parts.json
"""

from functools import partial

import torch
import torch.nn.functional as F
from harness import Bench, compiled, main

import fmkernels as fk


def convolution(x, weight, bias):
    padding = weight.shape[-1] // 2
    return F.conv2d(x.movedim(-1, 1), weight, bias, padding=padding, groups=len(weight)).movedim(1, -1)


def there_and_back(function, leaves, grad):
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, grad)


def rows(name, plain, ours, leaves):
    """Without gradients and with them, eager, compiled and ours."""
    functions = {"eager": plain, "compile": compiled(plain), "fmkernels": ours}
    moved = 4 * sum(x.numel() for x in leaves)
    still = [x.detach() for x in leaves]
    yield Bench(name, {k: partial(f, *still) for k, f in functions.items()}, moved)
    grad = torch.randn_like(plain(*still))
    back = {k: partial(there_and_back, f, leaves, grad) for k, f in functions.items()}
    yield Bench(f"{name}, and back", back, 3 * moved, tolerance=1e-3, mode=torch.enable_grad)


def cases():
    for who, (batch, side, channels, kernel) in {
        "small preset": (2, 8, 16, 3),
        "shapes-tiny": (32, 8, 32, 7),
        "emoji-64": (32, 16, 80, 7),
        "256 px": (2, 32, 512, 7),
    }.items():
        shapes = (batch, side, side, channels), (channels, 1, kernel, kernel), (channels,)
        leaves = [torch.randn(shape).requires_grad_() for shape in shapes]
        yield from rows(f"depthwise {kernel}×{kernel}, {who}", convolution, fk.depthwise, leaves)
    for who, (batch, tokens, inner, outer) in {
        "small preset": (2, 17, 32, 64),
        "emoji-64": (32, 65, 192, 512),
        "256 px": (2, 257, 1024, 3072),
    }.items():
        shapes = (batch, tokens, inner), (outer, inner), (outer,)
        leaves = [torch.randn(shape).requires_grad_() for shape in shapes]
        yield from rows(f"linear, {who}", F.linear, fk.linear, leaves)


if __name__ == "__main__":
    main([cases])
