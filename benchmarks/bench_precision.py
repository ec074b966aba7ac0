"""A guided 256 px step in lower precisions, the memory of its weights, and what the default model's pictures lose.

python benchmarks/bench_precision.py              # 8 minutes; writes results/precision.json
python benchmarks/bench_precision.py --only emoji

torchao is compared if it can be imported: pip install --no-deps --target FOLDER torchao, PYTHONPATH=FOLDER.
"""

import argparse
import csv
import importlib.metadata
import json
import statistics
import time
from importlib.resources import files

import harness
import torch
from models import pair, plain_of, plain_step, step
from torch import nn

from fmkernels.precision import weight_bytes
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.precision import set_precision

PRESET = "t2i_256px_clip_dimr"
CAPTIONS = 200
FLOORS = {
    ("int8", "plain fp32"): 3.3,
    ("bf16", "plain fp32"): 2.1,
    ("int8", "compile bf16"): 1.4,
    ("int8", "torchao"): 1.0,
}
TOLERANCE = {
    "ours fp32": 1e-4,
    "bf16": 0.05,
    "int8": 0.15,
    "compile bf16": 0.1,
    "torchao": 0.3,
}  # guidance amplifies them


def copied(net: nn.Module) -> nn.Module:
    """Ours again, on the same tensors."""
    with torch.device("meta"):
        other = build(PRESET).velocity_net.eval()
    other.load_state_dict(net.state_dict(), assign=True)
    return other


def compiled_blocks(plain: nn.Module) -> nn.Module:
    for stage in plain.stages:
        for block in stage.blocks:
            block.compile(dynamic=False)
    return plain


def with_torchao(net: nn.Module) -> nn.Module:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    plain = plain_of(net)
    quantize_(plain, Int8DynamicActivationInt8WeightConfig())  # replaces weights, on this module only
    return compiled_blocks(plain)


def guided(rounds: int) -> dict:
    """Times of all contestants, which take turns; each is compared with the plain structure in fp32 first."""
    ours, plain = pair(PRESET)
    fp32 = weight_bytes(ours)
    torch.manual_seed(0)
    x, t, null = torch.randn(1, 4, 32, 32), torch.full((2,), 0.3), torch.tensor([False, True])
    compiled, bytes_of, reports = compiled_blocks(plain_of(ours)), {"fp32": fp32}, {}

    def autocast():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain_step(compiled, x, t, null)

    calls = {
        "plain fp32": lambda: plain_step(plain, x, t, null),
        "ours fp32": lambda: step(ours, x, t, null),
    }
    for name in ("bf16", "int8"):
        net = copied(ours)
        reports[name] = set_precision(net, name)
        print(reports[name], flush=True)
        bytes_of[name] = weight_bytes(net)
        calls[name] = lambda net=net: step(net, x, t, null)
    calls["compile bf16"] = autocast
    try:
        theirs = with_torchao(ours)
        calls["torchao"] = lambda: plain_step(theirs, x, t, null)
        version = importlib.metadata.version("torchao")
    except ImportError as error:
        version = f"not measured: {error}"
    with torch.inference_mode():
        wanted, errors = calls["plain fp32"]() - x, {}
        for name, call in calls.items():
            errors[name] = (((call() - x) - wanted).norm() / wanted.norm()).item()
            print(f"{name}: error of the step {errors[name]:.2%}", flush=True)
        samples = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
    return {
        "seconds": {name: statistics.median(values) for name, values in samples.items()},
        "samples": samples,
        "error": errors,
        "matched": all(errors[name] < TOLERANCE[name] for name in errors if name in TOLERANCE),
        "weight bytes": bytes_of,
        "layers": {name: [len(r.swapped), len(r.layers)] for name, r in reports.items()},
        "torchao": version,
    }


@torch.inference_mode()
def emoji() -> dict:
    """PSNR of the default model's pictures to those in fp32, over captions of its data."""
    with (files("fmpipe") / "data" / "emoji.tsv").open(encoding="utf-8") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    texts = [row[2] for row in rows][:: max(1, len(rows) // CAPTIONS)][:CAPTIONS]
    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    mu, logvar = pipe.encode(texts)
    z0 = pipe.prepare_latents(mu, logvar, generator=torch.Generator().manual_seed(0))

    def pictures():
        return torch.cat([pipe(latents=part, output_type="pt").images for part in z0.split(20)])

    wanted, out = pictures(), {"captions": len(texts)}
    for name in ("bf16", "int8"):
        pipe.velocity_net = FlowPipeline.from_pretrained("default").velocity_net
        report = set_precision(pipe.velocity_net, name, min_gain=0)  # every layer, also those that do not gain
        psnr = -10 * (pictures() - wanted).square().flatten(1).mean(1).log10()
        out[name] = {"worst": psnr.min().item(), "mean": psnr.mean().item(), "layers": len(report.swapped)}
        print(f"emoji-64 in {name}: worst {psnr.min():.1f} dB, mean {psnr.mean():.1f} dB", flush=True)
    return out


def show(result: dict) -> None:
    seconds, fp32 = result["seconds"], result["weight bytes"]["fp32"]
    for name, value in seconds.items():
        ratio = f"{seconds['plain fp32'] / value:.2f} times as fast as the plain structure in fp32"
        print(f"{name:<14} {value:.2f} s  {ratio}, error of the step {result['error'][name]:.2%}")
    for (ours, other), floor in FLOORS.items():
        if other in seconds:
            ratio = seconds[other] / seconds[ours]
            print(f"{ours} against {other}: {ratio:.2f}, floor {floor}{'' if ratio >= floor else ' (missed)'}")
    for name, size in result["weight bytes"].items():
        print(f"weights in {name}: {size / 1e6:.0f} MB, {size / fp32:.3f} of fp32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["guided", "emoji"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path, result = harness.RESULTS / "precision.json", {"header": harness.header()}
    if args.only != "emoji":
        result["guided"] = guided(args.rounds)
        show(result["guided"])
    if args.only != "guided":
        result["emoji"] = emoji()
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | result, indent=1) + "\n")
    print(f"written: {path}")
    if not result.get("guided", {}).get("matched", True):
        raise SystemExit("a result did not match: see the errors of the step")


if __name__ == "__main__":
    main()
