"""Norm modules: recognized by the parameters that they hold, and by what they compute on random rows."""

import copy
import inspect
import itertools
import math

import torch
from torch import Tensor, nn

from fmkernels.ops import norm_modulate
from fmkernels.patch import _random, _subclass, _Swapped
from fmkernels.swap.fused import Norm, Recipe
from fmkernels.swap.fused import norm as fused_norm
from fmkernels.swap.trial import Trial, compare

_WIDTHS = "normalized_shape", "dim", "hidden_size", "embedding_dim", "d_model", "dims", "size"
_DTYPES = torch.float32, torch.bfloat16, torch.float16


def is_norm_like(module: nn.Module) -> bool:
    """A module without children whose parameters are rows of one width, and whose class is named like a norm or that
    has an eps."""
    if module._modules or any(b is not None for b in module._buffers.values()) or isinstance(module, _Swapped):
        return False
    parameters = [p for p in module._parameters.values() if p is not None]
    if len(parameters) > 2 or any(p.dim() != 1 for p in parameters) or len({p.shape for p in parameters}) > 1:
        return False
    if isinstance(module, (nn.modules.batchnorm._NormBase, nn.GroupNorm)):
        return False
    return bool(_epsilons(module)) and (bool(parameters) or _width(module) is not None)


def _epsilons(module: nn.Module) -> list[str]:
    """Names of attributes that may be the norm's eps."""
    names = [n for n, v in vars(module).items() if not n.startswith("_") and isinstance(v, float) and 0 < v < 0.1]
    if vars(module).get("eps", 0) is None:  # torch's RMSNorm: the dtype's own
        names.append("eps")
    return names


def _width(module: nn.Module) -> int | None:
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter.shape[0]
    for name in _WIDTHS:
        value = getattr(module, name, None)
        value = value[0] if isinstance(value, (tuple, list, torch.Size)) and len(value) == 1 else value
        if type(value) is int and value > 0:
            return value
    return None


def _rows(width: int, device: torch.device, seed: int = 9) -> Tensor:
    """Rows of magnitudes at which the place of eps matters."""
    magnitudes = torch.tensor([1.0, 1e-2, 1e-4], dtype=torch.float32)[:, None]
    return (_random(2, 3, width, seed=seed) * magnitudes + 0.1 * magnitudes).to(device)


def find_recipe(module: nn.Module) -> Recipe:
    """The Recipe of a norm-like module. Raises ValueError if it computes something else."""
    width, cls = _width(module), type(module)
    names = [name for name, p in module._parameters.items() if p is not None]
    parameter = next((p for p in module._parameters.values() if p is not None), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    if device.type == "meta":
        raise ValueError("its parameters have no values yet (meta device): load them first")
    trial = copy.deepcopy(module).float()
    with torch.no_grad():
        for seed, name in enumerate(names):
            getattr(trial, name).copy_(_random(width, seed=seed) + 0.5)
    x = _rows(width, device)
    with torch.no_grad():
        expected = cls.forward(trial, x)
    if not isinstance(expected, Tensor) or expected.shape != x.shape:
        raise ValueError("its result is not a tensor of the shape of its input")
    contiguous = cls.forward(trial, x[:, None].expand(2, 4, 3, width).contiguous().transpose(1, 2)).is_contiguous()
    weights = [(None, None)] if not names else [(a, b) for a in names for b in [*names, None] if a != b]
    settings = list(itertools.product(("layer", "rms"), (False, True), (False, True), _epsilons(module)))
    for weight, bias in weights:
        for kind, outside, plus_one, eps in settings:
            if (weight is None and plus_one) or (len(names) == 2 and bias is None):
                continue
            value = getattr(module, eps)
            value = torch.finfo(torch.float32).eps if value is None else value
            w = None if weight is None else getattr(trial, weight).detach() + int(plus_one)
            b = None if bias is None else getattr(trial, bias).detach()
            ours = norm_modulate(x, None, None, w, b, kind=kind, eps=value, eps_outside=outside)
            if torch.allclose(ours, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max())):
                if getattr(module, eps) is None:  # eps of the dtype of x
                    dtypes = _dtypes(trial, width, weight, (torch.float32,))
                    return Recipe(kind, value, outside, weight, bias, plus_one, contiguous, dtypes)
                # Many norms compute in float32 in float64: it counts only if the trial runs in it.
                more = (torch.float64,) if parameter is not None and parameter.dtype == torch.float64 else ()
                dtypes = _dtypes(trial, width, weight, _DTYPES + more)
                return Recipe(kind, eps, outside, weight, bias, plus_one, contiguous, dtypes)
    raise ValueError("it computes neither a layer norm nor an RMS norm of its input")


def _dtypes(trial: nn.Module, width: int, weight: str | None, dtypes: tuple) -> tuple:
    """((dtype of x, of the weight), dtype of the result) of the pairs that the original accepts."""
    x, found = _rows(width, next((p.device for p in trial.parameters()), torch.device("cpu"))), []
    for of_weight in (None,) if weight is None else dtypes:
        if of_weight is not None:
            trial.to(of_weight)
        for of_x in dtypes:
            try:
                with torch.no_grad():
                    result = type(trial).forward(trial, x.to(of_x))
            except Exception:
                continue
            if result.dtype.is_floating_point:
                found.append(((of_x, of_weight), result.dtype))
    return tuple(found)


def norm_class(cls: type, recipe: Recipe) -> type:
    """cls with a fused forward."""

    def forward(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and not torch.compiler.is_compiling():
            y = fused_norm(self, args[0])
            if y is not None:
                return y
        return cls.forward(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(cls.forward)
    made = (norm_class, cls, recipe)
    return _subclass(made, before=(Norm,), forward=forward, _recipe=recipe, _dtypes=dict(recipe.dtypes))


def swap_norm(module: nn.Module, recipe: Recipe) -> tuple[Trial, Tensor]:
    """Swap the class of the module, prove it in the module's own dtype, and swap it back if the trial fails.

    Returns the trial and its input.
    """
    cls, width = type(module), _width(module)
    parameter = next((p for p in module._parameters.values() if p is not None), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    device = torch.device("cpu") if parameter is None else parameter.device
    if parameter is not None and not math.isfinite(float(parameter.detach().float().abs().sum())):
        raise ValueError("its parameters are not finite")
    x = _rows(width, device, seed=11).to(dtype)
    swapped = norm_class(cls, recipe)
    return compare(module, cls, swapped, (x,), {}, needs="norm"), x
