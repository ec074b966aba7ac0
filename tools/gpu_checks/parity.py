"""Correctness on the device: the op cases of the tests against eager float64 on the CPU, and the golden vectors."""

import contextlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import torch
from support import cases

import fmkernels as fk
from gpu_checks import ROOT, Result, found, told

SIZES = (0, 1, 31, 1025, 3008, 4099, 12032, 70001)  # zero, odd, a tile plus one, the limits of a norm's buffer, wider
QUICK_SIZES = (0, 31, 1025)
GOLDEN = {
    "kernels/test_tdp": ["test_golden"],
    "kernels/test_norm": ["test_golden", "test_golden_edges"],
    "models/test_models": [
        "test_golden_forward_and_every_gradient",
        "test_golden_shared_time",
        "test_golden_sampler",
        "test_golden_path_and_targets_of_every_stage",
        "test_golden_variants",
        "test_golden_dit",
        "test_qk_norm_and_adaptive_norm_at_the_edges",
    ],
    "models/test_text_head": ["test_golden", "test_golden_edges"],
}


@contextlib.contextmanager
def placed(device: str) -> Iterator[None]:
    """Create the tensors that tests/support/cases.py and the golden tests create themselves on the device."""
    fixed = cases._T
    cases._T = fixed.to(device)
    try:
        with torch.device(device):
            yield
    finally:
        cases._T = fixed


def worst(got: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype, loose: float) -> float:
    """Return the largest error in units of the dtype's tolerance; up to 1, the lists agree."""
    absolute, relative = (loose * tolerance for tolerance in cases.TOLERANCE[dtype])
    largest = 0.0
    for a, b in zip(got, expected, strict=True):
        a, b = a.detach().cpu().double(), b.detach().double()
        if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        scale = max(1.0, b.nan_to_num().abs().max().item()) if b.numel() and loose > 1 else 1.0
        error = (a - b).nan_to_num().abs() / (absolute * scale + relative * b.nan_to_num().abs())
        largest = max(largest, error.max().item() if error.numel() else 0.0)
    return largest


def errors(
    device: str, name: str, sizes: Sequence[int] = SIZES, dtypes: Sequence[torch.dtype] = cases.DTYPES
) -> Iterator[tuple[str, float]]:
    """Yield (op, largest error of outputs and gradients); the tolerance of gradients is ten times as large."""
    for case in cases.CASES:
        largest = 0.0
        for dtype, n in itertools.product(dtypes, sizes):
            inputs = case.inputs(n, dtype)
            oracle = [x.double() for x in inputs]
            with fk.use_backend("eager"):
                outputs = case.outputs(oracle)
                gradients = case.gradients(oracle) if case.grads else []
            there = [x.to(device) for x in inputs]
            with placed(device), fk.use_backend(name):
                largest = max(largest, worst(case.outputs(there), outputs, dtype, 1))
                if case.grads:
                    largest = max(largest, worst(case.gradients(there), gradients, dtype, 10))
        yield case.name, largest


def tables(device: str, name: str, sizes: Sequence[int] = SIZES) -> Result:
    """Check every case of tests/support/cases.py in every dtype and print its error."""
    measured = {}
    for op, error in errors(device, name, sizes):
        measured[op] = error
        print(f"{name:8}{op:28}{error:8.2f} of the tolerance {'✓' if error <= 1 else '✗ MISMATCH'}", flush=True)
    return found((f"{op} is {e:.3g} tolerances off" for op, e in measured.items() if not e <= 1), measured)


def variants(test: Callable) -> Iterator[dict[str, object]]:
    """Yield the arguments that a test is parametrized with, except the backend."""
    columns = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize" and mark.args[0] != "backend":
            names, values = mark.args[:2]
            names = [names] if isinstance(names, str) else names
            columns.append([dict(zip(names, [v] if len(names) == 1 else v, strict=True)) for v in values])
    for row in itertools.product(*columns):
        yield {name: value for part in row for name, value in part.items()}


def imported(name: str) -> ModuleType:
    """Import tests/NAME.py."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "."), ROOT / "tests" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise ImportError(str(error)) from None
    return module


def golden(device: str, name: str, tests: dict[str, list[str]] = GOLDEN) -> Result:
    """Call the tests of the golden vectors with the vectors on the device: ops, then the tiny networks.

    A test file that cannot be imported (the networks need diffusers) is reported and skipped. TF32 is off.
    """
    from safetensors.torch import load_file

    def vectors(stem):
        return {k: v.to(device) for k, v in load_file(ROOT / "tests" / "golden" / f"{stem}.safetensors").items()}

    def tiny():
        from fmpipe.models import build

        networks = build("tiny_dimr")
        networks.load_state_dict({k[6:]: v for k, v in vectors("dimr_tiny").items() if k.startswith("state.")})
        return networks.to(device)

    details, wrong = {}, []
    for module, names in tests.items():
        try:
            functions = [getattr(imported(module), test) for test in names]
        except ImportError as error:
            details[module] = f"not run: {told(error)}"
            continue
        for test, arguments in ((f, a) for f in functions for a in variants(f)):
            label = f"{module}.{test.__name__}[{'-'.join(map(str, arguments.values()))}]".removesuffix("[]")
            given = {"golden": lambda: vectors, "backend": lambda: name, "tiny": tiny}
            try:
                with placed(device), fk.use_backend(name), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                    asked = {k: given[k]() for k in inspect.signature(test).parameters if k in given}
                    test(**asked, **arguments)
                details[label] = "passed"
            except Exception as error:
                details[label] = told(error)
                wrong.append(f"{label}: {told(error)}")
    if "passed" not in details.values() and not wrong:
        return Result("skipped", "; ".join(f"{k} {v}" for k, v in details.items()), details)
    return found(wrong, details)
