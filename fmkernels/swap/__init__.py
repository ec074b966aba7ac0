"""``optimize(model)``: fused kernels for the modules of any flow transformer, recognized by structure and trial."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from fmkernels.patch import _first_line, _Swapped
from fmkernels.patch import accelerate as _accelerate
from fmkernels.swap import fused, norms, rewrite
from fmkernels.swap import trial as trials
from fmkernels.swap.report import Optimization, Swap

_UNKNOWN, _UNUSED = "its inputs cannot be guessed: pass example=", "the example does not use it"
__all__ = ["Optimization", "Swap", "optimize"]


def optimize(model: nn.Module, example: Mapping | Sequence | None = None, *, measure: bool = False) -> Optimization:
    """Replace norms, modulations, gates and gated sums in the model by fused ops, in place, and return a report.

    Works on the modules of any class: they are recognized by what they hold, and each swap is tried first, with the
    outputs and gradients of the original forward on the same input, in the module's dtype. Parameters, state dict,
    ``isinstance``, hooks and pickling are unchanged; ``fmkernels.restore(model)`` gives every module its class back.
    For everything that was not proven (other dtypes, autocast, torch.func, ``torch.compile``), a swapped module runs
    its original forward. Second derivatives need ``use_backend("eager")``. A second call changes only what is new.

    Args:
        model: the module, for example ``pipeline.transformer``.
        example: arguments of the model, as a dict or a sequence. With them, the model runs once without gradients, and
            blocks are tried on the inputs that they receive; without them, modules whose inputs can be guessed.
        measure: time the forward of every swapped module before and after, on the input of its trial.

    Raises TypeError if ``model`` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize: model must be a torch.nn.Module, got {type(model).__name__}")
    if example is not None and not isinstance(example, (Mapping, tuple, list)):
        raise TypeError(f"optimize: example must be a dict or a sequence of arguments, got {type(example).__name__}")
    report = Optimization(**vars(_accelerate(model)))
    _swap_norms(model, report, measure)
    _swap_forwards(model, report, example, measure)
    return report


def _swap_norms(model: nn.Module, report: Optimization, measure: bool) -> None:
    recipes: dict = {}
    for name, module in model.named_modules():
        if isinstance(module, _Swapped) or not norms.is_norm_like(module):
            continue
        swap = Swap(name, type(module).__name__)
        report.modules.append(swap)
        cls = type(module)
        if not fused.untouched(module) and "forward" in vars(module):
            swap.reason = "its forward is set on the instance: optimize before wrapping"
            continue
        constants = [(k, v) for k, v in vars(module).items() if isinstance(v, (int, float, str, tuple, type(None)))]
        shapes = [(k, None if p is None else (p.shape, p.device)) for k, p in module._parameters.items()]
        key = (cls, *map(repr, constants), *map(repr, shapes))
        try:
            if key not in recipes:
                recipes[key] = norms.find_recipe(module)
            trial, x = norms.swap_norm(module, recipes[key])
            _record(swap, trial)
        except Exception as error:
            swap.reason = _reason(error)
            continue
        if measure:
            swap.before, swap.after = trials.measure(module, cls, (x,), {})


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if type(error) is ValueError and str(error) else _first_line(error)[:160]


def _record(swap: Swap, trial: trials.Trial) -> None:
    swap.kinds, swap.error, swap.limit = trial.fused, trial.error, trial.limit


def _swap_forwards(model: nn.Module, report: Optimization, example, measure: bool) -> None:
    found = []
    for name, module in model.named_modules():
        if isinstance(module, _Swapped) or type(module).__module__.startswith("torch.nn."):
            continue
        cls = type(module)
        names = rewrite.called_attributes(cls.forward)
        children = {n: getattr(module, n, None) for n in names}
        own_norms = frozenset(n for n, child in children.items() if isinstance(child, fused.Norm))
        acts = {n: rewrite.activation_of(f) for n, f in children.items() if n not in own_norms and _may_be_act(f)}
        acts = frozenset((n, act) for n, act in acts.items() if act)
        new = rewrite.rewritten_class(cls, own_norms, acts)
        if new is not None:
            found.append((name, module, new))
    processors = _processors(model)
    callers = [module for _, module, _ in found + processors]
    captured = _capture(model, callers, example) if example is not None and callers else {}
    _swap_processors(processors, report, captured, example, measure)
    # From the leaves up, so that the trial of a block runs the swapped modules inside.
    for name, module, new in sorted(found, key=lambda entry: -entry[0].count(".") - bool(entry[0])):
        cls = type(module)
        swap = Swap(name or cls.__name__, cls.__name__)
        report.modules.append(swap)
        if "forward" in vars(module):
            swap.reason = "its forward is set on the instance: optimize before wrapping"
            continue
        if id(module) in captured:
            args, kwargs = captured[id(module)]
        elif guessed := trials.guess(module, cls.forward, new):
            args, kwargs = (), guessed[0]
        elif example is not None:
            swap.reason = _UNUSED
            continue
        else:
            swap.reason = _UNKNOWN
            continue
        try:
            _record(swap, trials.compare(module, cls, new, args, kwargs))
        except Exception as error:
            if rewrite.only_rotates(cls):  # it makes the tables, for example
                report.modules.remove(swap)
            swap.reason = _reason(error)
            continue
        if measure:
            swap.before, swap.after = trials.measure(module, cls, args, kwargs)


def _processors(model: nn.Module) -> list[tuple[str, nn.Module, type]]:
    """(name, attention module, new class of its processor) of the processors that rotate queries and keys."""
    found = []
    for name, module in model.named_modules():
        processor = vars(module).get("processor")  # processors that are modules have parameters, and stay
        if processor is None or isinstance(processor, _Swapped):
            continue
        new = rewrite.rewritten_class(type(processor), frozenset(), frozenset(), "__call__")
        if new is not None:
            found.append((name, module, new))
    return found


def _swap_processors(processors: list, report: Optimization, captured: dict, example, measure: bool) -> None:
    for name, module, new in processors:
        processor = module.processor
        if isinstance(processor, _Swapped):  # shared with an earlier module
            continue
        cls = type(processor)
        swap = Swap(f"{name}.processor", cls.__name__)
        report.modules.append(swap)
        if id(module) not in captured:
            swap.reason = _UNKNOWN if example is None else _UNUSED
            continue
        args, kwargs = captured[id(module)]
        try:
            _record(swap, trials.compare(module, type(module), new, args, kwargs, part=processor))
        except Exception as error:
            swap.reason = _reason(error)
            continue
        if measure:
            swap.before, swap.after = trials.measure(module, type(module), args, kwargs, part=(processor, cls))


def _may_be_act(function: object) -> bool:
    """Activations hold nothing; other modules are not called to find out."""
    if isinstance(function, nn.Module):
        return not function._modules and not function._parameters and not function._buffers
    return callable(function)


def _capture(model: nn.Module, modules: list[nn.Module], example) -> dict:
    """The arguments that each module receives first when the model runs on the example."""
    captured: dict = {}

    def hook(module, args, kwargs):
        if id(module) not in captured:
            captured[id(module)] = trials._map((args, kwargs), lambda x: x.detach().clone())

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad(), torch.random.fork_rng([]):
            model(**example) if isinstance(example, Mapping) else model(*example)
    finally:
        for handle in handles:
            handle.remove()
    return captured
