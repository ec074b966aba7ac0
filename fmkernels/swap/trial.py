"""Trials: the original forward and the swapped one on the same input, outputs and gradients."""

import contextlib
import copy
import inspect
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fmkernels.patch import _random
from fmkernels.swap import fused


@dataclass
class Trial:
    """error: the largest difference of outputs and gradients from the original or, in half precision, from a run in
    float32, relative to the largest element of each. limit: the bound, in half precision twice the original's error and
    4 units. fused: number of fused calls by kind."""

    error: float = 0.0
    limit: float = 0.0
    fused: Counter = field(default_factory=Counter)


def _tensors(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in _tensors(part)]
    return []


def _map(value, function):
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map(part, function) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(part, function) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_map(part, function) for part in value)
    return value


def run(module: nn.Module, forward, args: tuple, kwargs: dict, most: int = 99) -> tuple[list[Tensor], int]:
    """(outputs and gradients of inputs and parameters, of a fixed combination of the outputs; number of outputs)

    most: the number of inputs that get gradients, from the first one on.
    """
    leaves: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        x = x.detach().clone()
        if x.is_floating_point() and len(leaves) < most:
            leaves.append(x.requires_grad_())
            x = x.view_as(x)  # a module may work in place on it, not on a leaf
        return x

    devices = [x.device for x in _tensors((args, kwargs)) if x.device.type == "cuda"]
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(0)
        args, kwargs = _map(args, leaf), _map(kwargs, leaf)
        outputs = [y for y in _tensors(forward(module, *args, **kwargs)) if y.is_floating_point()]
        wanted = leaves + [p for p in module.parameters() if p.requires_grad and p.is_floating_point()]
        ends = [y for y in outputs if y.requires_grad]
        seeds = [_random(*y.shape, seed=20 + i).to(y) for i, y in enumerate(ends)]
        grads = torch.autograd.grad(ends, wanted, seeds, allow_unused=True) if ends and wanted else ()
    grads = [torch.zeros(()) if g is None else g.detach() for g in grads]
    return [y.detach() for y in outputs] + grads, len(outputs)


def difference(ours: list[Tensor], expected: list[Tensor], outputs: int, dtypes: bool = True) -> float:
    """The largest difference, relative to the largest element of each expected tensor.

    The first ``outputs`` tensors are outputs, the others gradients, of which some are zero but for rounding (that of a
    key's bias, for example): they count relative to a hundredth of the largest gradient at least. Raises ValueError if
    structures, dtypes or the places of non-finite elements differ.
    """
    if len(ours) != len(expected):
        raise ValueError(f"it returns {len(ours)} tensors and gradients instead of {len(expected)}")
    scales = [_largest(b) for b in expected]
    floor, largest = 0.01 * max([0.0, *scales[outputs:]]), 0.0
    for i, (a, b, scale) in enumerate(zip(ours, expected, scales, strict=True)):
        if a.shape != b.shape or (dtypes and a.dtype != b.dtype):
            raise ValueError(f"{a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}")
        if a.numel() == 0:
            continue
        a, b = a.double(), b.double()
        if not torch.equal(a.isfinite(), b.isfinite()):
            raise ValueError("other elements are not finite")
        scale = scale if i < outputs else max(scale, floor)
        off = _largest(a - b)
        largest = max(largest, off / scale if scale > 0 else off)
    return largest


def _largest(x: Tensor) -> float:
    return float(x.double().nan_to_num(0, 0, 0).abs().max()) if x.numel() else 0.0


def limit(dtype: torch.dtype) -> float:
    """Rounding errors of the operations in a block and of its sums, relative to the largest element."""
    return 128 * torch.finfo(dtype).eps


def compare(
    module: nn.Module, cls: type, swapped: type, args: tuple, kwargs: dict, needs: str = "", part=None
) -> Trial:
    """Give the module the class ``swapped`` if it computes what ``cls`` does; raise ValueError and keep ``cls`` if not.

    ``needs``: a kind of fused call that the trial must contain. ``part``: an object that the module calls, which gets
    the class instead.
    """
    target = module if part is None else part
    old = type(target)
    function = cls.forward if part is not None else swapped.forward
    most = 99 if part is None else 1  # rotary tables get no gradients
    with counted() as inside:
        try:
            expected, outputs = run(module, cls.forward, args, kwargs, most)
        except RuntimeError:  # tables that the original does not differentiate
            most = 1
            inside.clear()
            expected, outputs = run(module, cls.forward, args, kwargs, most)
    half = any(y.dtype in (torch.bfloat16, torch.float16) for y in expected)
    exact = _in_float(module, cls, args, kwargs, most) if half else None
    trial = Trial(limit=max([limit(y.dtype) for y in expected] or [0.0]))
    try:
        target.__class__ = swapped
        with counted() as found:
            ours, _ = run(module, function, args, kwargs, most)
        trial.fused = found - inside  # of this forward, without those of swapped modules inside
        trial.error = difference(ours, expected, outputs)
        if exact is not None:
            trial.error = difference(ours, exact, outputs, dtypes=False)
            original = difference(expected, exact, outputs, dtypes=False)
            trial.limit = 2 * original + 4 * torch.finfo(torch.bfloat16).eps
        if not trial.error <= trial.limit:
            raise ValueError(f"its trial differs by {trial.error:.1e}, more than {trial.limit:.1e}")
        if not trial.fused[needs] if needs else not trial.fused:
            raise ValueError("nothing in it was fused on the trial's input")
    except Exception:
        target.__class__ = old
        raise
    return trial


def _in_float(module: nn.Module, cls: type, args: tuple, kwargs: dict, most: int) -> list[Tensor] | None:
    """The run in float32 of the same weights and inputs, or None if there is no memory for it."""
    try:
        args, kwargs = _map((args, kwargs), lambda x: x.float() if x.is_floating_point() else x)
        return run(copy.deepcopy(module).float(), cls.forward, args, kwargs, most)[0]
    except Exception:
        return None


@contextlib.contextmanager
def counted():
    """The number of fused calls inside, by kind."""
    before, fused.counts = fused.counts, Counter()
    try:
        yield fused.counts
    finally:
        fused.counts = before


def measure(module: nn.Module, cls: type, args: tuple, kwargs: dict, part=None) -> tuple[float, float]:
    """Median microseconds of the original and the swapped forward without gradients, taking turns for 50 ms.

    part: (object, its original class), if an object that the module calls was swapped instead.
    """
    target, original = (module, cls) if part is None else part
    swapped, times = type(target), ([], [])
    synchronize = torch.cuda.synchronize if any(x.is_cuda for x in _tensors((args, kwargs))) else lambda: None
    end = time.perf_counter() + 0.05
    try:
        with torch.no_grad():
            while time.perf_counter() < end or len(times[0]) < 6:
                for taken, kind in zip(times, (original, swapped), strict=True):
                    target.__class__ = kind
                    synchronize()
                    start = time.perf_counter()
                    type(module).forward(module, *args, **kwargs)
                    synchronize()
                    taken.append((time.perf_counter() - start) * 1e6)
    finally:
        target.__class__ = swapped
    before, after = torch.tensor(times).T[1:].quantile(0.5, 0).tolist()
    return before, after


def guesses(module: nn.Module, function) -> "itertools.chain":
    """Inputs that a module may take: (B, S, D) for its norms and projections, (B, C) for conditions."""
    widths: list[int] = []
    parameter = next(iter(module.parameters()), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    device = torch.device("cpu") if parameter is None else parameter.device
    dtype = dtype if dtype.is_floating_point else torch.float32
    for child in module.modules():
        for name in ("in_features", "in_channels", "normalized_shape", "dim"):
            value = getattr(child, name, None)
            value = value[0] if isinstance(value, (tuple, torch.Size)) and len(value) == 1 else value
            if type(value) is int and value > 1 and value not in widths:
                widths.append(value)
    widths = sorted(widths or [8], reverse=True)[:4]
    shapes = [(2, 5, w) for w in widths] + [(2, w) for w in widths] + [(2, 1, w) for w in widths]
    shapes += [(2, w, 3, 4) for w in widths]
    names = list(inspect.signature(function).parameters.values())[1:]
    names = [p for p in names if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in names if p.default is p.empty]
    optional = [p.name for p in names if p.default is not p.empty][:4]
    parameters = [tuple(q.shape) for q in module._parameters.values() if q is not None and q.dim() > 1]

    def inputs(chosen):
        options = [shapes + parameters for _ in chosen]
        for combination in itertools.islice(itertools.product(*options), 600):
            yield {
                name: _random(*shape, seed=40 + i).to(device, dtype)
                for i, (name, shape) in enumerate(zip(chosen, combination, strict=True))
            }

    sets = (
        [required] + [[*required, o] for o in optional] + [[*required, *o] for o in itertools.combinations(optional, 2)]
    )
    return itertools.chain.from_iterable(inputs(chosen) for chosen in sets if 0 < len(chosen) <= 3)


def guess(module: nn.Module, function, swapped) -> list[dict]:
    """Inputs on which the original forward runs and the swapped one fuses something, at most 2."""
    found, tries = [], 0
    cls = type(module)
    for kwargs in guesses(module, function):
        tries += 1
        if tries > 1500:
            break
        try:
            with torch.no_grad(), torch.random.fork_rng([]):
                with counted() as inside:
                    function(module, **kwargs)
                try:
                    module.__class__ = swapped
                    with counted() as found_inside:
                        swapped.forward(module, **kwargs)
                finally:
                    module.__class__ = cls
        except Exception:
            continue
        if found_inside - inside:
            found.append(kwargs)
            break
    return found
