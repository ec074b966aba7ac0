"""``fmkernels.optimize`` on every transformer of the installed diffusers: ``python benchmarks/families.py``

One row per class, each from its own process, so that one failure does not end the run. Results are kept in
results/families.json; a second run computes what is missing (``--again`` computes everything), and writes
results/families.md. Exits with 1 if a family is outside the tolerance, changed or failed.

Errors are relative to a run in float64 of the same (rounded) weights and inputs: ``|y - y64| / |y64|`` over all
elements, for outputs and for gradients of all parameters and inputs but times. An optimized model may have FACTOR times
the error of the original, plus SLACK units of rounding. Both are medians of DRAWS draws of weights and inputs: in a
single one, the rounding errors of either may be several times as large, where the random network is ill-conditioned.
"""

import argparse
import copy
import importlib
import json
import multiprocessing
import pkgutil
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from family_configs import FAMILIES, FIXED, KEEP
from torch.overrides import TorchFunctionMode

import fmkernels
from fmkernels.swap import trial

RESULTS = Path(__file__).parent / "results"
FACTOR, SLACK, DRAWS = 1.25, 0.25, 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def classes() -> dict[str, type]:
    """All model classes in diffusers.models.transformers."""
    import diffusers.models.transformers as package
    from diffusers import ModelMixin
    from diffusers.utils import logging

    logging.set_verbosity_error()
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, cls in vars(module).items():
            if isinstance(cls, type) and issubclass(cls, ModelMixin) and cls.__module__ == module.__name__:
                found[name] = cls
    return dict(sorted(found.items()))


class AllDouble(TorchFunctionMode):
    """Casts to float32 in a model's forward become casts to float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.randn:  # other numbers
            return function(*args, **(kwargs or {}))
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return function(*args, **kwargs)


def cast(inputs: dict, dtype: torch.dtype, keep=KEEP) -> dict:
    return {
        name: value if name in keep else trial._map(value, lambda x: x.to(dtype) if x.is_floating_point() else x)
        for name, value in inputs.items()
    }


def run(model, inputs: dict) -> tuple[list, list]:
    """(outputs, gradients) of the model."""
    fixed = {name: value for name, value in inputs.items() if name in FIXED}

    def forward(model, **inputs):
        return trial._tensors(model(**inputs, **fixed))

    tensors, outputs = trial.run(model, forward, (), {k: v for k, v in inputs.items() if k not in FIXED})
    return tensors[:outputs], tensors[outputs:]


def error(tensors: list, expected: list) -> float:
    """The relative error of all elements together."""
    off = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(tensors, expected, strict=True))
    norm = sum(float(b.double().square().sum()) for b in expected)
    return (off / norm) ** 0.5 if norm else off**0.5


def largest(tensors: list, expected: list) -> float:
    """The largest error of an element, relative to the largest element of its tensor."""
    errors = [0.0]
    for a, b in zip(tensors, expected, strict=True):
        scale = float(b.double().abs().max()) if b.numel() else 0.0
        if scale:
            errors.append(float((a.double() - b.double()).abs().max()) / scale)
    return max(errors)


def reference(model, inputs: dict) -> tuple[list, list]:
    """The run in float64 of the model's weights and inputs."""
    torch.set_default_dtype(torch.float64)
    try:
        with AllDouble():
            return run(copy.deepcopy(model).double(), cast(inputs, torch.float64, ()))
    finally:
        torch.set_default_dtype(torch.float32)


def randomized(cls: type, config: dict):
    """The model with random weights: some are initialized with zeros, which hide what is before them, or not at all."""
    model = cls(**config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, max(parameter[:1].numel(), 1) ** -0.5)
            else:
                parameter.nan_to_num_(0, 0, 0).clamp_(-8, 8)  # uninitialized memory
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def draw(name: str, seed: int):
    """(model, inputs) with random numbers of this seed."""
    torch.manual_seed(seed)
    config, inputs = FAMILIES[name]()
    return randomized(classes()[name], config), inputs


def in_dtype(model, dtype: torch.dtype):
    """A copy with the parameters in dtype, except for those that diffusers keeps in float32."""
    model = copy.deepcopy(model).to(dtype)
    kept = getattr(model, "_keep_in_fp32_modules", None) or []
    for name, parameter in model.named_parameters():
        if any(part in name.split(".") for part in kept):
            parameter.data = parameter.data.float()
    return model


def measure(name: str) -> dict:
    row = {"family": name, "torch": torch.__version__}
    try:
        model, inputs = draw(name, 1)
        with torch.no_grad():
            model(**inputs)
    except Exception as e:
        return row | {"reason": f"not built: {type(e).__name__}: {e}".splitlines()[0][:160]}
    row |= {"parameters": sum(p.numel() for p in model.parameters()), "inside": True}
    for label, dtype in DTYPES.items():
        draws = []
        for seed in range(1, 1 + DRAWS):
            model, inputs = draw(name, seed)
            ours, given = in_dtype(model, dtype), cast(inputs, dtype)
            try:
                original, exact = run(ours, given), reference(ours, given)
            except Exception as e:
                reason = f"the original does not run: {type(e).__name__}: {e}".splitlines()[0]
                row[label] = {"reason": reason[:160]}
                break
            if all(bool(x.isfinite().all()) for x in original[0] + exact[0]):
                draws.append(compare(ours, given, original, exact))
        if label in row or not draws:
            row.setdefault(label, {"reason": "its outputs are not finite"})
            continue
        result = {key: draws[0][key] for key in ("recognized", "swapped", "kinds", "left")}
        for key in ("state_dict", "restored"):
            result[key] = all(d[key] for d in draws)
            row["inside"] &= result[key]
        result["trial_error_of_limit"] = max(d["trial_error_of_limit"] for d in draws)
        unit = torch.finfo(dtype).eps / 2
        for what in ("output", "gradient"):
            was, now, most = (statistics.median(d[what][i] for d in draws) for i in range(3))
            result[what] = {"before": was, "after": now, "largest": most, "draws": [d[what] for d in draws]}
            result[what]["inside"] = bool(now <= FACTOR * was + SLACK * unit)
            row["inside"] &= result[what]["inside"]
        row[label] = result
    return row


def compare(model, inputs: dict, original: tuple, exact: tuple) -> dict:
    """One draw: errors (before, after, largest after), and whether state dict and restored model are the same."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    kinds = [type(m) for m in model.modules()]
    report = fmkernels.optimize(model, example=inputs)
    optimized = run(model, inputs)
    after = model.state_dict()
    same = list(after) == list(before) and all(torch.equal(after[k], before[k]) for k in before)
    fmkernels.restore(model)
    restored = run(model, inputs)
    bits = all(torch.equal(a, b) for old, new in zip(original, restored) for a, b in zip(old, new))
    pairs = zip(original, optimized, exact, strict=True)
    output, gradient = ([error(o, e), error(n, e), largest(n, e)] for o, n, e in pairs)
    return {
        "recognized": len(report.modules),
        "swapped": len(report.swapped),
        "kinds": dict(sorted(report.kinds.items())),
        "left": [f"{s.name} ({s.cls}): {s.reason}" for s in report.modules if not s.swapped],
        "trial_error_of_limit": max((s.error / s.limit for s in report.swapped), default=0.0),
        "state_dict": same,
        "restored": bits and kinds == [type(m) for m in model.modules()],
        "output": output,
        "gradient": gradient,
    }


def timing(name: str, compiled: bool, seconds: float) -> dict:
    """Median milliseconds of a training step (forward and backward), taking turns."""
    model, inputs = draw(name, 1)
    models = {"before": model, "after": copy.deepcopy(model)}
    fmkernels.optimize(models["after"], example=inputs)
    if compiled:
        models["compiled"] = torch.compile(copy.deepcopy(model))
        models["compiled after"] = torch.compile(copy.deepcopy(models["after"]))
    times: dict[str, list] = {kind: [] for kind in models}
    for net in models.values():
        run(net, inputs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["before"]) < 5:
        for kind, net in models.items():
            start = time.perf_counter()
            sum(y.float().square().mean() for y in trial._tensors(net(**inputs)) if y.is_floating_point()).backward()
            times[kind].append((time.perf_counter() - start) * 1e3)
    return {kind: statistics.median(taken) for kind, taken in times.items()}


def table(rows: dict[str, dict]) -> str:
    swapped = [r for r in rows.values() if r.get("fp32", {}).get("swapped")]
    outside = [n for n, r in rows.items() if r.get("inside") is False]
    failed = [n for n, r in rows.items() if "crash" in r]
    built = [r for r in rows.values() if "fp32" in r]
    lines = [
        "# Families",
        "",
        f"`python benchmarks/families.py`, torch {torch.__version__}, diffusers {version('diffusers')}, CPU. "
        f"{len(rows)} classes, {len(built)} built, {len(swapped)} with swapped modules, {len(outside)} outside the "
        f"tolerance, {len(failed)} failed.",
        "",
        "Errors are relative to a run in float64, before → after, over all elements of the outputs (y) and of the "
        f"gradients (g); medians of {DRAWS} draws of weights and inputs. An optimized model may have {FACTOR} times "
        f"the original's error plus {SLACK} units of rounding. Last columns: state dict unchanged, model restored bit "
        "for bit; milliseconds of a training step of the tiny model.",
        "",
        "| family | swapped | kinds (modules) | y fp32 | g fp32 | y bf16 | g bf16 | exact | "
        "before / after / compiled / compiled after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "fp32" not in row:
            reason = row.get("reason") or row.get("crash")
            lines.append(f"| {name} | – | {reason.replace('|', '/')} | | | | | | |")
            continue
        cells = []
        for label in DTYPES:
            part = row.get(label, {})
            for what in ("output", "gradient"):
                e = part.get(what)
                mark = "" if e is None or e["inside"] else " ✗"
                cells.append("no" if e is None else f"{e['before']:.1e} → {e['after']:.1e}{mark}")
        part = row["fp32"]
        if "reason" in part:
            lines.append(f"| {name} | – | {part['reason'].replace('|', '/')} | | | | | | |")
            continue
        kinds = ", ".join(f"{kind} {count}" for kind, count in part["kinds"].items())
        exact = all(row[d].get("state_dict", True) and row[d].get("restored", True) for d in DTYPES)
        times = row.get("milliseconds", {})
        step = " / ".join(f"{v:.1f}" for v in times.values())
        lines.append(
            f"| {name} | {part['swapped']} of {part['recognized']} | {kinds} | {' | '.join(cells)} | "
            f"{'✓' if exact else '✗'} | {step} |"
        )
    left: dict[str, int] = {}
    for row in rows.values():
        for entry in row.get("fp32", {}).get("left", []):
            cls, reason = entry.split(" (", 1)[1].split("): ", 1)
            left[f"{cls}: {reason}"] = left.get(f"{cls}: {reason}", 0) + 1
    lines += ["", "Recognized and left unchanged (number of modules):", ""]
    lines += [f"- {text} ({count})" for text, count in sorted(left.items())] or ["- none"]
    return "\n".join(lines) + "\n"


def version(package: str) -> str:
    return importlib.import_module(package).__version__


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="families (default: all)")
    parser.add_argument("--again", action="store_true", help="compute rows that exist")
    parser.add_argument("--time", action="store_true", help="measure a step before and after")
    parser.add_argument("--compile", action="store_true", help="with --time, also compiled (slow)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for timing one family")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per family")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    path = RESULTS / "families.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    found = classes()
    for name in options.names or found:
        row = rows.get(name)
        if row is None or options.again or "crash" in row:
            if name in FAMILIES:
                row = child(name, options, False)
            else:
                row = {"family": name, "reason": "not built: no configuration in family_configs.py"}
        if options.time and "fp32" in row and (options.again or "milliseconds" not in row):
            taken = child(name, options, True)
            row["milliseconds"] = taken if "crash" not in taken else {}
        rows[name] = row
        problem = row.get("crash") or row.get("reason") or ("" if row["inside"] else "OUTSIDE")
        print(f"{name}: {row.get('fp32', {}).get('swapped', '-')} swapped {problem}", flush=True)
        rows = dict(sorted(rows.items()))
        path.write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "families.md").write_text(table(rows))
    return int(any("crash" in row or row.get("inside") is False for row in rows.values()))


def child(name: str, options, timed: bool) -> dict:
    """The result of a forked process: it has everything imported, and cannot end this one."""
    receive, send = multiprocessing.Pipe(duplex=False)

    def work():
        warnings.simplefilter("ignore")
        try:
            send.send(timing(name, options.compile, options.seconds) if timed else measure(name))
        except Exception as e:
            text = str(e).splitlines()[0] if str(e) else ""
            send.send({"family": name, "crash": f"failed: {type(e).__name__}: {text[:200]}"})

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    send.close()
    try:
        if not receive.poll(options.timeout):
            return {"family": name, "crash": f"no result after {options.timeout:.0f} s"}
        return receive.recv()
    except EOFError:
        process.join()
        return {"family": name, "crash": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    sys.exit(main())
