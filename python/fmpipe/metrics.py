"""The metrics of a run's log, in training and evaluation; they stay on the device until they are written."""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fmpipe.field import condition_gain, endpoint_rmse

EPS = 1e-12


def gradient_norms(
    losses: Mapping[str, Tensor], parameters: Iterable[Tensor], weights: Mapping[str, float | Tensor] | None = None
) -> dict[str, Tensor]:
    """Return ``grad/<name> = ‖d(weight · loss) / d parameters‖`` of each loss, and ``grad/total`` of their sum.

    This takes one backward pass per loss through the graph of one forward, which is kept. ``.grad`` and its hooks are
    not used, so it works under DistributedDataParallel. losses: 0-d. weights: 1 by default. Returns 0-d tensors on the
    device, 0 for a loss without a gradient. Raises ValueError for a loss that is not 0-d or an unknown weight.
    """
    parameters, terms = _checked("gradient_norms", losses, parameters, weights, 1.0)
    out, total = {}, [None] * len(parameters)
    for name, term in terms.items():
        if term.requires_grad:
            grads = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        else:
            grads = [None] * len(parameters)
        out[f"grad/{name}"] = norm(grads, parameters)
        total = added(total, grads)
    return out | {"grad/total": norm(total, parameters)}


def backward(
    losses: Mapping[str, Tensor],
    parameters: Iterable[Tensor],
    weights: Mapping[str, float | Tensor] | None = None,
    *,
    scale: float | Tensor = 1.0,
) -> dict[str, Tensor]:
    """Run ``(scale · Σ weight · loss).backward()`` loss by loss; return :func:`gradient_norms` without the scale.

    A logged step then needs one backward pass per loss, not one more. ``.grad`` of every leaf gets the sum, up to
    rounding. The norms are those of this call's gradients of ``parameters``, whatever ``.grad`` contained. scale: that
    of a GradScaler. The graph is freed. Not for DistributedDataParallel, which expects one backward per forward.
    """
    parameters, terms = _checked("backward", losses, parameters, weights, scale)
    terms = {name: term for name, term in terms.items() if term.requires_grad}
    if not terms:
        raise ValueError(f"backward: no loss of {', '.join(losses)} has a gradient")
    norms = {name: norm([], parameters) for name in losses}
    held, total = [p.grad for p in parameters], [None] * len(parameters)
    try:
        for k, (name, term) in enumerate(terms.items()):
            for p in parameters:
                p.grad = None  # autograd then gives a separate tensor, which may be added to in place
            term.backward(retain_graph=k < len(terms) - 1)
            grads = [p.grad for p in parameters]
            norms[name] = norm(grads, parameters)
            total = added(total, grads, in_place=True)
        norms["total"] = norm(total, parameters)
        held = added(held, total, in_place=True)
    finally:
        for p, grad in zip(parameters, held, strict=True):
            p.grad = grad
    return {f"grad/{name}": norm / scale for name, norm in norms.items()}


def _checked(op, losses, parameters, weights, scale) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the trainable parameters, once each, and the weighted losses."""
    for name, loss in losses.items():
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"{op}: loss {name!r} must be a tensor of one element, got {got}")
    if not losses or "total" in losses:
        raise ValueError(f"{op}: losses must be the parts of the total, at least one, got {list(losses)}")
    if unknown := set(weights or {}) - set(losses):
        raise ValueError(f"{op}: weights has {sorted(unknown)}, but losses only {list(losses)}")
    parameters = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    if not parameters:
        raise ValueError(f"{op}: no parameter requires a gradient")
    return parameters, {name: loss * ((weights or {}).get(name, 1.0) * scale) for name, loss in losses.items()}


def norm(tensors: Iterable[Tensor | None], like: list[Tensor]) -> Tensor:
    """Return the norm of all tensors together, in fp32 or fp64; 0 for none."""
    tensors = [x for x in tensors if x is not None]
    if not tensors:
        return torch.zeros((), device=like[0].device)
    wide = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
    norms = torch._foreach_norm(tensors, 2, wide)
    return torch.linalg.vector_norm(torch.stack([x.to(norms[0].device) for x in norms]))


@torch.no_grad()
def added(a: list[Tensor | None], b: Iterable[Tensor | None], in_place: bool = False) -> list[Tensor | None]:
    """Return a + b, element by element; None counts as zero."""
    out = [y if x is None else x for x, y in zip(a, b, strict=True)]
    both = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x is not None and y is not None]
    if both and in_place:
        torch._foreach_add_([a[i] for i in both], [b[i] for i in both])
    elif both:
        for i, x in zip(both, torch._foreach_add([a[i] for i in both], [b[i] for i in both]), strict=True):
            out[i] = x
    return out


def default_heads(networks: nn.Module) -> dict[str, str]:
    """Return the dotted names of the last layers of the text head and, if there is one, the velocity network.

    networks: a :class:`fmpipe.models.Networks`, or an objective.
    """
    from fmpipe.models.dimr import DiMR
    from fmpipe.models.dit import DiT
    from fmpipe.models.mixture_head import MixtureHead
    from fmpipe.models.text_head import LinearHead, TextHead

    head, net = networks.text_head, getattr(networks, "velocity_net", None)
    if isinstance(head, TextHead):
        last = "linear" if head.adaptor is None else "adaptor.conv3"
    elif isinstance(head, LinearHead):
        last = f"layers.{len(head.layers) - 1}"
    elif isinstance(head, MixtureHead):
        last = "gate"
    else:
        raise TypeError(f"default_heads: the last layer of a {type(head).__name__} is unknown; give heads by name")
    heads = {"z_head": f"text_head.{last}"}
    if isinstance(net, DiMR):
        heads["flow_head"] = f"velocity_net.stages.{len(net.stages) - 1}.output_layer.2"
    elif isinstance(net, DiT):
        heads["flow_head"] = "velocity_net.final_layer.linear"
    elif net is not None:
        raise TypeError(f"default_heads: the last layer of a {type(net).__name__} is unknown; give heads by name")
    return heads


class UpdateRatios:
    """``step/<head>_update_ratio``: the mean of ``‖Δp‖ / (‖p‖ + 1e-12)`` over a head's parameters, Δp of one step.

    ``with ratios.step() as out: optimizer.step()``; out contains 0-d tensors after the block. heads: name -> dotted
    name of a module or parameter in model (default: :func:`default_heads`). Raises KeyError for an unknown name.
    For torch's Adam, AdamW and SGD with momentum, Δp follows from their state; for other and fused optimizers, and for
    parameters in half precision, where Δp may be lost to rounding, the head's parameters are cloned before the step.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, heads: Mapping[str, str] | None = None):
        self.optimizer = optimizer
        heads = default_heads(model) if heads is None else heads
        self.heads = {head: _parameters(model, head, name) for head, name in heads.items()}

    @contextmanager
    def step(self) -> Iterator[dict[str, Tensor]]:
        groups = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        parameters = list(dict.fromkeys(p for head in self.heads.values() for p in head))
        known = {p for p in parameters if p in groups and _leaves_its_change(self.optimizer, groups[p], p)}
        before = {p: p.detach().clone() for p in parameters if p not in known}
        versions = {p: p._version for p in known}
        out = {}
        yield out
        with torch.no_grad():
            ratios = {}
            for p in parameters:
                if p in before:
                    old = before[p].to(torch.promote_types(p.dtype, torch.float32))
                    change = p - old
                elif p._version == versions[p]:  # no gradient, or a step that a GradScaler skipped
                    ratios[p] = torch.zeros((), device=p.device)
                    continue
                else:
                    old, change = _change(self.optimizer, groups[p], p)
                moved, size = change.norm(), old.norm()
                # A parameter that was 0 is reconstructed as a rounding error, about 1e-7 of the change.
                ratios[p] = moved / (torch.where(size < 1e-5 * moved, 0, size) + EPS)
            for head, own in self.heads.items():
                out[f"step/{head}_update_ratio"] = torch.stack([ratios[p].to(own[0].device) for p in own]).mean()


def _parameters(model: nn.Module, head: str, name: str) -> list[Tensor]:
    known = dict(model.named_modules(remove_duplicate=False)) | dict(model.named_parameters(remove_duplicate=False))
    if name not in known:
        (near,) = difflib.get_close_matches(name, known, 1, 0.0)
        raise KeyError(f"UpdateRatios: {head}: the model has no {name!r}; the nearest is {near!r}")
    found = [known[name]] if isinstance(known[name], Tensor) else list(known[name].parameters())
    if not found:
        raise ValueError(f"UpdateRatios: {head}: {name!r} has no parameters")
    return found


def _leaves_its_change(optimizer: torch.optim.Optimizer, group: dict, p: Tensor) -> bool:
    """Tell whether Δp follows from the state after the step, without waiting for the device."""
    return (
        type(optimizer) in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
        and not any(group.get(key) for key in ("fused", "capturable", "differentiable"))
        and not isinstance(group["lr"], Tensor)
        and p.dtype in (torch.float32, torch.float64)
        and (isinstance(optimizer, torch.optim.Adam) or (group["momentum"] and not group["nesterov"]))
    )


def _change(optimizer: torch.optim.Optimizer, group: dict, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return (p before the step, Δp), computed from p after the step and the optimizer's state.

    Both optimizers do ``p ← keep · p - d``, so p before is ``(p + d) / keep`` and Δp is ``(keep - 1) · before - d``.
    """
    lr, decay, state = group["lr"], group["weight_decay"], optimizer.state.get(p, {})
    if isinstance(optimizer, torch.optim.Adam):  # AdamW is one
        beta1, beta2 = (float(beta) for beta in group["betas"])
        step = state["step"].item()
        second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
        root = second.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        d = state["exp_avg"].div(root).mul_(lr / (1 - beta1**step))
        keep = 1 - lr * decay if group["decoupled_weight_decay"] else 1.0
    else:
        d, keep = lr * state["momentum_buffer"], 1.0
    before = (p + d).div_(keep)
    return before, before.mul(keep - 1).sub_(d)


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the mean over rows of ``-Σ p log p``, ``p = softmax(logits / temperature)`` over the last dimension."""
    if not temperature > 0:
        raise ValueError(f"entropy: temperature must be above 0, got {temperature!r}")
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    return torch.special.entr((logits / temperature).softmax(-1)).sum(-1).mean()


STATISTICS = ("min", "max", "mean", "std", "nonfinite")


def tensor_stats(name: str, x: Tensor) -> dict[str, float | str]:
    """Return ``stat/<name>/{min,max,mean,std,nonfinite,dtype}`` with one copy to the host.

    Of the finite elements; NaN if there is none. std is ``sqrt(mean((x - mean)²))``, so batches can be pooled.
    """
    return {**dict(zip(_names(name), _statistics(x).tolist(), strict=True)), f"stat/{name}/dtype": _dtype(x)}


def _names(name: str) -> list[str]:
    return [f"stat/{name}/{which}" for which in STATISTICS]


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _statistics(x: Tensor) -> Tensor:
    """(5,) on the device, fp32 (fp64 for fp64 and integers)."""
    if not isinstance(x, Tensor) or x.is_complex():
        raise TypeError(f"tensor_stats: x must be a real tensor, got {_dtype(x) if isinstance(x, Tensor) else type(x)}")
    x = x.detach().flatten()
    x = x.to(torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.float64)
    if not len(x):
        return x.new_tensor([math.nan] * 4 + [0.0])
    finite = x.isfinite()
    n = finite.sum()
    mean = torch.where(finite, x, 0).sum() / n
    std = (torch.where(finite, x - mean, 0).square_().sum() / n).sqrt()
    low, high = torch.where(finite, x, math.inf).amin(), torch.where(finite, x, -math.inf).amax()
    low, high = (torch.where(n > 0, bound, math.nan) for bound in (low, high))
    return torch.stack([low, high, mean, std, (len(x) - n).to(x.dtype)])


def constants(betas: Tensor) -> dict[str, list[float]]:
    """Return ``const/...`` of a diffusion schedule: [first, last] of betas (T,) and the derived constants, in fp64."""
    betas = torch.as_tensor(betas).detach().to("cpu", torch.float64)
    if betas.dim() != 1 or not len(betas):
        raise ValueError(f"constants: betas must be (T,), got {tuple(betas.shape)}")
    kept = (1 - betas).cumprod(0)
    rows = {
        "betas": betas,
        "alphas_cumprod": kept,
        "sqrt_alphas_cumprod": kept.sqrt(),
        "sqrt_one_minus_alphas_cumprod": (1 - kept).sqrt(),
    }
    return {f"const/{name}": [row[0].item(), row[-1].item()] for name, row in rows.items()}


def endpoint(velocity: Callable[..., Tensor], x0: Tensor, x1: Tensor, **options) -> dict[str, float]:
    """Return ``flow/endpt_rmse@K``; options as in :func:`fmpipe.field.endpoint_rmse`."""
    return {f"flow/endpt_rmse@{k}": rmse for k, rmse in endpoint_rmse(velocity, x0, x1, **options).items()}


def condition(velocity: Callable[..., Tensor], x0: Tensor, x1: Tensor, t: Tensor, **options) -> dict[str, float]:
    """Return ``flow/cond_gain_cos``; options as in :func:`fmpipe.field.condition_gain`."""
    return {"flow/cond_gain_cos": condition_gain(velocity, x0, x1, t, **options)}


class Metrics:
    """Collects the metrics of a logged training step, which are read from the device once, at its end.

    every: steps from one logged step to the next. gradients: the share of these with :func:`backward`, the only metric
    that takes more than a few sums; evenly spread, including the first. ::

        if metrics.should(step):
            metrics.add({"loss/flow": loss, "lr": lr}, velocity_stats, head_stats).tensor("x_t", x_t)
            log.write(step, metrics.collect())
    """

    def __init__(self, every: int = 50, gradients: float = 1.0):
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"Metrics: every must be a whole number of at least 1, got {every!r}")
        if not 0 <= gradients <= 1:
            raise ValueError(f"Metrics: gradients must be in [0, 1], got {gradients!r}")
        self.every, self.gradients, self._parts = every, gradients, []

    def should(self, step: int) -> bool:
        return step % self.every == 0

    def should_gradients(self, step: int) -> bool:
        """Tell whether this logged step is one of those with gradient norms."""
        due = [math.ceil((step // self.every + more) * self.gradients - 1e-9) for more in (0, 1)]
        return self.should(step) and due[1] > due[0]

    def add(self, *parts: object) -> "Metrics":
        """Add mappings of numbers, strings and one-element tensors, or statistics of the fused ops (``as_dict()``)."""
        for part in parts:
            if not hasattr(part, "as_dict") and not isinstance(part, Mapping):
                raise TypeError(f"Metrics.add: expected a mapping or statistics, got {type(part).__name__}")
            for name, value in part.items() if isinstance(part, Mapping) else ():
                if isinstance(value, Tensor) and value.numel() != 1:
                    raise ValueError(f"Metrics.add: {name} must have one element, got {tuple(value.shape)}; use tensor")
            self._parts.append(part)
        return self

    def tensor(self, name: str, x: Tensor) -> "Metrics":
        """Add :func:`tensor_stats` of x."""
        self._parts += [(_names(name), _statistics(x)), {f"stat/{name}/dtype": _dtype(x)}]
        return self

    def collect(self) -> dict[str, object]:
        """Return everything that was added since the last call, as plain numbers under the log's names."""
        parts, self._parts, out, waiting = self._parts, [], {}, {}
        for part in parts:
            rows = [part] if isinstance(part, tuple) else []
            if isinstance(part, Mapping):
                out.update(part)
                rows = [([name], value) for name, value in part.items() if isinstance(value, Tensor)]
            for names, value in rows:
                waiting.setdefault(value.device, []).append((names, value.detach().reshape(-1).double()))
        for rows in waiting.values():
            names = [name for row, _ in rows for name in row]
            out.update(zip(names, torch.cat([value for _, value in rows]).tolist(), strict=True))
        for part in parts:
            if hasattr(part, "as_dict"):
                out.update(part.as_dict())
        return out
