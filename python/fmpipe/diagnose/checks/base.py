"""The decorator that turns a measuring function into a check, the table of all checks, and checks of arguments."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps

from torch import Tensor

from fmpipe.diagnose.engine import judged
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.texts import Message
from fmpipe.diagnose.thresholds import Overrides, limits

History = Mapping[str, Sequence[float]]
LEAST_MSE = 1e-12  # equal images have 126 dB, not infinitely many
CHECKS: dict[str, Callable[..., Finding]] = {}


def check(measure: Callable[..., dict]) -> Callable[..., Finding]:
    """Turn ``measure(...) -> numbers`` into a check: it measures, and judges the numbers by the rule of its name.

    The check takes ``overrides`` of thresholds in addition, and passes them on as ``limit`` if measure has it.
    ``check.measure`` is the function itself. Of the numbers, ``history`` is a mapping of series to judge.
    """
    takes_limit = "limit" in inspect.signature(measure).parameters

    @wraps(measure)
    def run(*args, overrides: Overrides = None, **options) -> Finding:
        options |= {"limit": limits(overrides)} if takes_limit else {}
        numbers = measure(*args, **options)
        figures = Figures.of(numbers.pop("history", {}))
        return judged(measure.__name__, overrides, figures, **numbers)

    run.measure = measure
    CHECKS[measure.__name__] = run
    return run


def skip(key: str, **values: object) -> dict[str, object]:
    """Return the numbers of a check that has nothing to measure."""
    return {"not_measured": Message(key, **values)}


def described(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def check_floating(op: str, name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{op}: {name} must be a floating point tensor, got {described(x)}")
    if not x.numel():
        raise ValueError(f"{op}: {name} must not be empty, got {tuple(x.shape)}")


def check_images(op: str, name: str, x: Tensor) -> None:
    check_floating(op, name, x)
    if x.dim() != 4:
        raise ValueError(f"{op}: {name} must be (B, C, H, W), got {tuple(x.shape)}")


def rms_of(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
