"""One block of real width, forward and training step: ``python benchmarks/bench_blocks.py --json blocks.json``

Flux (3072), SD3 (1536) and Sana (2240), with random weights. The implementations take turns in one process: eager,
optimized, compiled, and compiled after optimize. Every result is compared with eager's first; a mismatch exits with 1.
``--tiny`` runs small blocks, to try the script.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from family_configs import grid, r

import fmkernels
from fmkernels.swap.trial import _tensors


def sd3(heads: int, tokens: int) -> tuple:
    from diffusers.models.attention import JointTransformerBlock

    width = heads * 64
    block = JointTransformerBlock(width, heads, 64, qk_norm="rms_norm")
    return block, {"hidden_states": r(1, tokens, width), "encoder_hidden_states": r(1, 77, width), "temb": r(1, width)}


def flux(heads: int, tokens: int) -> tuple:
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed, FluxTransformerBlock

    width, side = heads * 128, int(tokens**0.5)
    ids = torch.cat([torch.zeros(77, 3), grid(1, side, side)])
    rope = FluxPosEmbed(10000, (16, 56, 56))(ids)
    inputs = {"hidden_states": r(1, side * side, width), "encoder_hidden_states": r(1, 77, width)}
    return FluxTransformerBlock(width, heads, 128), inputs | {"temb": r(1, width), "image_rotary_emb": rope}


def sana(heads: int, tokens: int) -> tuple:
    from diffusers.models.transformers.sana_transformer import SanaTransformerBlock

    width, side = heads * 32, int(tokens**0.5)
    cross = {"num_cross_attention_heads": heads // 2, "cross_attention_head_dim": 64, "cross_attention_dim": width}
    block = SanaTransformerBlock(width, heads, 32, **cross)
    inputs = {"hidden_states": r(1, side * side, width), "encoder_hidden_states": r(1, 77, width)}
    return block, inputs | {"timestep": r(1, 6 * width), "height": side, "width": side}


BLOCKS = {"Flux 3072": (flux, 24, 2), "SD3 1536": (sd3, 24, 2), "Sana 2240": (sana, 70, 4)}


def forward(block, inputs: dict) -> list:
    with torch.no_grad():
        return _tensors(block(**inputs))


def step(block, inputs: dict) -> list:
    block.zero_grad(set_to_none=True)
    outputs = _tensors(block(**inputs))
    sum(y.float().square().mean() for y in outputs).backward()
    return [y.detach() for y in outputs] + [p.grad for p in block.parameters() if p.grad is not None]


def verify(got: list, expected: list, dtype: torch.dtype) -> float:
    """The largest relative error of a tensor; nearly zero ones count relative to a thousandth of the largest."""
    norms = [float(b.float().norm()) for b in expected]
    floor = 1e-3 * max(norms)
    errors = (
        float((a.float() - b.float()).norm()) / max(n, floor) for a, b, n in zip(got, expected, norms, strict=True)
    )
    largest = max(errors)
    if not largest <= 64 * torch.finfo(dtype).eps:
        sys.exit(f"bench_blocks: the result differs by {largest:.1e}")
    return largest


def times(run: Callable, blocks: dict, inputs: dict, seconds: float) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {kind: [] for kind in blocks}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["eager"]) < 5:
        for kind, block in blocks.items():
            start = time.perf_counter()
            run(block, inputs)
            taken[kind].append((time.perf_counter() - start) * 1e3)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a block's name")
    parser.add_argument("--tokens", type=int, default=256, help="image tokens")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of weights and inputs"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled ones")
    parser.add_argument("--tiny", action="store_true", help="small blocks and a short time")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    dtype, rows = getattr(torch, options.dtype), []
    for name, (make, heads, small) in BLOCKS.items():
        if options.only.lower() not in name.lower():
            continue
        torch.manual_seed(0)
        block, inputs = make(small if options.tiny else heads, 16 if options.tiny else options.tokens)
        block = block.to(dtype).eval()
        inputs = {k: v.to(dtype) if torch.is_tensor(v) else v for k, v in inputs.items()}
        blocks = {"eager": block, "optimized": copy.deepcopy(block)}
        print(fmkernels.optimize(blocks["optimized"], example=inputs))
        if not options.no_compile:
            blocks["compiled"] = torch.compile(copy.deepcopy(block))
            blocks["compiled after optimize"] = torch.compile(copy.deepcopy(blocks["optimized"]))
        for run in (forward, step):
            expected = run(block, inputs)
            errors = {kind: verify(run(other, inputs), expected, dtype) for kind, other in blocks.items()}
            taken = times(run, blocks, inputs, 0.1 if options.tiny else options.seconds)
            medians = {kind: statistics.median(values) for kind, values in taken.items()}
            rows.append({"block": name, "run": run.__name__, "milliseconds": medians, "errors": errors})
            ratios = ", ".join(f"{kind} {ms:.1f} ms ({medians['eager'] / ms:.2f}x)" for kind, ms in medians.items())
            print(f"{name} {run.__name__}: {ratios}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "dtype": options.dtype, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
