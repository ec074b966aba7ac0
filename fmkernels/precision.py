"""``quantize(model, precision)``: linear layers with weights in int8, bf16 or fp8, for inference.

The ``__class__`` of a layer becomes a subclass, as ``accelerate`` does it (patch.py), and its weight a packed one. All
other modules stay as they are, so the model keeps its dtype: only the products, the activations inside a block and the
weights have low precision.
"""

import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import count
from typing import Literal
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fmkernels import amx
from fmkernels.nn import Int8Rows, Linear
from fmkernels.ops import (
    int8_kernel,
    linear_fp8,
    linear_int8,
    pack_int8,
    quantize_rows_fp8,
    quantize_weight,
    unpack_int8,
)
from fmkernels.ops.int8 import inference_only
from fmkernels.patch import _subclass
from fmkernels.schema import library

Precision = Literal["int8", "bf16", "fp8"]
MAX_ERROR = {"int8": 0.05, "bf16": 0.01, "fp8": 0.1}  # several times that of a layer without outliers
MIN_GAIN = 1.1  # a smaller one may be noise of the timing
ROWS = 512  # of a layer's input, if there is no sample
MEASURED_ROWS = 64  # of them whose error is measured
TOO_SMALL = "too small to be faster"
TOO_SENSITIVE = "too sensitive"


# Weights. Each has product(x, bias, dtype), plain() (its tensors in a state dict), dense() in fp32 and the shape.


class Int8Weight:
    """int8 with a scale per output; x is quantized per row. See :func:`fmkernels.linear_int8`."""

    name, dtype = "int8", torch.int8

    def __init__(self, weight: Tensor, scale: Tensor):
        self.packed, self.scale, self.shape = pack_int8(weight), scale, weight.shape

    @classmethod
    def of(cls, weight: Tensor) -> "Int8Weight":
        return cls(*quantize_weight(weight))

    def product(self, x: Tensor | Int8Rows, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        if isinstance(x, Int8Rows):
            return linear_int8(x.rows, None, self.scale, bias, x_scale=x.scale, packed=self.packed, out_dtype=dtype)
        return linear_int8(x, None, self.scale, bias, packed=self.packed, out_dtype=dtype)

    def plain(self) -> tuple[Tensor, Tensor]:
        return unpack_int8(self.packed, *self.shape), self.scale

    def dense(self) -> Tensor:
        weight, scale = self.plain()
        return weight.float() * scale[:, None]

    @cached_property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes

    def __reduce__(self):
        return type(self), self.plain()


class BFloat16Weight:
    """bf16; packed once by oneDNN on a CPU with bf16 instructions."""

    name, dtype = "bf16", torch.bfloat16

    def __init__(self, weight: Tensor, scale: None = None):
        self.packs = weight.device.type == "cpu" and bool(amx.bf16_kernel())
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if self.packs else weight
        self.shape, self.nbytes, self.id = weight.shape, weight.nbytes, next(_ids)
        _packed[self.id] = self

    @classmethod
    def of(cls, weight: Tensor) -> "BFloat16Weight":
        return cls(weight.detach().bfloat16())

    def product(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        inference_only("a layer in bf16", x=x, bias=bias)
        x, bias = x.bfloat16(), None if bias is None else bias.bfloat16()
        if not self.packs:
            return F.linear(x, self.packed, bias).to(dtype)
        rows = x.reshape(-1, x.shape[-1])
        if torch.compiler.is_compiling():
            y = torch.ops.fmkernels.linear_bf16(self.id, rows, bias, self.shape[0])
        else:
            y = self.packed_product(rows, bias)
        return y.view(*x.shape[:-1], self.shape[0]).to(dtype)

    def packed_product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, bias, "none", [], "")

    def plain(self) -> tuple[Tensor, None]:
        return self.packed.to_dense() if self.packs else self.packed, None

    def dense(self) -> Tensor:
        return self.plain()[0].float()

    def __reduce__(self):
        return type(self), self.plain()


_packed: WeakValueDictionary[int, BFloat16Weight] = WeakValueDictionary()
_ids = count()
# The product for compiled graphs, which cannot hold a packed weight: id is its handle.
library.define("linear_bf16(int id, Tensor x, Tensor? bias, int out_features) -> Tensor")
library.impl("linear_bf16", lambda id, x, bias, _: _packed[id].packed_product(x, bias), "CPU")
library.impl("linear_bf16", lambda _, x, bias, out_features: x.new_empty(len(x), out_features), "Meta")


class Float8Weight:
    """float8_e4m3fn with a scale per output; x is quantized per row. See :func:`fmkernels.linear_fp8`."""

    name, dtype = "fp8", torch.float8_e4m3fn

    def __init__(self, weight: Tensor, scale: Tensor):
        self.weight, self.scale, self.shape = weight, scale, weight.shape
        self.nbytes = weight.nbytes + scale.nbytes

    @classmethod
    def of(cls, weight: Tensor) -> "Float8Weight":
        return cls(*quantize_rows_fp8(weight.detach()))

    def product(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        return linear_fp8(x, self.weight, self.scale, bias, out_dtype=dtype)

    def plain(self) -> tuple[Tensor, Tensor]:
        return self.weight, self.scale

    def dense(self) -> Tensor:
        return self.weight.float() * self.scale[:, None]

    def __reduce__(self):
        return type(self), self.plain()


_KINDS = {kind.name: kind for kind in (Int8Weight, BFloat16Weight, Float8Weight)}


def unsupported(precision: Precision, device: torch.device | str = "cpu") -> str:
    """Return why products in this precision are not faster than fp32 on the device, or "" if they can be.

    By the instructions of the CPU, or the compute capability of the GPU.
    """
    _check_precision("unsupported", precision)
    device = torch.device(device)
    if device.type == "cuda":
        needed = {"int8": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}[precision]
        if torch.cuda.get_device_capability(device) >= needed:
            return ""
        return f"{precision} products need a GPU with sm_{needed[0]}{needed[1]} or later"
    if device.type != "cpu" or precision == "fp8":
        return f"there are no fast {precision} products for the device {device.type}"
    if precision == "int8":
        found = int8_kernel() in ("avx512_vnni", "avx_vnni")
        return "" if found else "this CPU (or this build) has no int8 products: AVX-512 VNNI or AVX-VNNI is needed"
    return "" if amx.bf16_kernel() else "this CPU has no usable bf16 products: AVX-512 BF16 or AMX is needed"


# The report


@dataclass
class LayerReport:
    """One linear layer. ``kept``: the reason why it was left unchanged, or ""."""

    name: str
    shape: tuple[int, int]
    rows: int | None = None  # of its input in the sample
    error: float | None = None  # |y - y_fp32| / |y_fp32| on the sample, without the bias
    gain: float | None = None  # seconds in its own dtype / in this precision
    kept: str = ""

    def __str__(self) -> str:
        facts = [f"{self.shape[0]} x {self.shape[1]}"]
        facts += [] if self.error is None else [f"error {self.error:.2%}"]
        facts += [] if self.gain is None else [f"{self.gain:.1f} times as fast"]
        return f"{self.name}: {', '.join(facts)}" + (f"; left unchanged: {self.kept}" if self.kept else "")


@dataclass
class Quantization:
    """The printable report of ``quantize``. ``str`` is a summary, :meth:`table` has one line for each layer."""

    precision: str
    max_error: float
    sampled: bool
    layers: list[LayerReport] = field(default_factory=list)
    bytes_before: int = 0  # of all parameters and buffers
    bytes_after: int = 0

    @property
    def swapped(self) -> list[LayerReport]:
        return [layer for layer in self.layers if not layer.kept]

    @property
    def left(self) -> list[tuple[str, str]]:
        """(name, reason) of every layer that was left unchanged."""
        return [(layer.name, layer.kept) for layer in self.layers if layer.kept]

    def table(self) -> str:
        return "\n".join(map(str, self.layers))

    def __str__(self) -> str:
        done = self.swapped
        size = " MB -> ".join(f"{size / 1e6:,.1f}" for size in (self.bytes_before, self.bytes_after))
        lines = [f"{self.precision}: {len(done)} of {len(self.layers)} linear layers; weights {size} MB"]
        if measured := [layer for layer in done if layer.error is not None]:
            worst = max(measured, key=lambda layer: layer.error)
            middle = torch.tensor([x.error for x in measured]).quantile(0.5).item()
            lines.append(
                f"error on {'the sample' if self.sampled else 'random'} input: median {middle:.2%}, largest "
                f"{worst.error:.2%} ({worst.name}), threshold {self.max_error:.2%}"
            )
        reasons = defaultdict(list)
        for layer in self.layers:
            if layer.kept == TOO_SENSITIVE:
                lines.append(f"left unchanged: {layer.name}: too sensitive, error {layer.error:.2%}")
            elif layer.kept:
                reasons[layer.kept].append(layer.name)
        for reason, names in reasons.items():
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            lines.append(f"left unchanged: {names[0]}{others}: {reason}")
        return "\n".join(lines) if self.layers else f"{self.precision}: the model has no linear layers"


# quantize


def quantize(
    model: nn.Module,
    precision: Precision,
    *,
    skip: str | Sequence[str] = (),
    sample: Callable[[], object] | None = None,
    max_error: float | None = None,
    min_gain: float = MIN_GAIN,
    keep_weights: bool = True,
) -> Quantization:
    """Compute the model's linear layers in ``"int8"``, ``"bf16"`` or ``"fp8"``, in place and for inference.

    Weights are converted and packed once; int8 and fp8 have a scale per output, and quantize their input per row. A
    layer returns its original dtype (inside the blocks of fmkernels' own models bf16, see ``Linear.inner``). Layers are
    left unchanged, and named in the returned report, if their error exceeds ``max_error``, if they are too small to
    become faster, or if the device has no instructions for this precision. ``restore(model)`` undoes it.

    A state dict has the low-precision ``weight``, for int8 and fp8 also ``weight_scale``. It can be loaded into the
    quantized model, as can one of the original model; ``load_quantized`` loads it into a new model.

    Args:
        skip: names of modules that are left unchanged with all that they contain; ``*`` matches any characters.
        sample: runs the model on typical input, for example ``lambda: model(x, t)``. The error and the speed of each
            layer are measured on what it receives. Without it, on random input of 512 rows.
        max_error: the largest ``|y - y_fp32| / |y_fp32|`` of a layer; by default 5 % (int8), 1 % (bf16) or 10 % (fp8).
        min_gain: how many times as fast a layer must become; timed once for each shape and process. 0 converts every
            layer without timing, also on a device without the instructions.
        keep_weights: keep the original weights too, so that ``restore`` gives the same bits. False frees them;
            ``restore`` then gives the rounded weights.

    Raises TypeError or ValueError for invalid arguments, and for a model that is quantized already.
    """
    _check_arguments(model, precision, skip, sample, max_error, min_gain)
    limit = MAX_ERROR[precision] if max_error is None else float(max_error)
    report = Quantization(precision, limit, sample is not None, bytes_before=weight_bytes(model))
    report.bytes_after = report.bytes_before
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    reasons = _why_not(model, layers)
    reasons |= dict.fromkeys(_skipped(model, layers, skip), "named in skip")
    trials = {}
    for name, layer in layers.items():
        found = LayerReport(name, (layer.out_features, layer.in_features), kept=reasons.get(name, ""))
        report.layers.append(found)
        if not found.kept and (why := _blocked(precision, layer, min_gain)):
            found.kept = why
        if not found.kept:
            trials[layer] = _Trial(layer, found, _KINDS[precision], limit, min_gain)
    with torch.no_grad():
        if sample is not None and trials:
            with ExitStack() as hooks:
                for layer, trial in trials.items():
                    hooks.enter_context(_Hook(layer, trial.run))
                sample()
        for trial in trials.values():
            if trial.report.rows is None:
                trial.run(_random_rows(trial.layer))
            if not trial.report.kept:
                _swap(trial.layer, trial.weight, keep_weights)
    report.bytes_after = weight_bytes(model)
    return report


def load_quantized(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load the state dict of a quantized model into a new, unquantized one; its parameters may be on the meta device.

    A layer is quantized if its entry is: int8 or fp8 with a ``weight_scale``, or bf16 where the model's own weight is
    wider. On a device without the instructions, the weights are converted to the model's dtype instead, so that it is
    not slower than the original. Tensors are assigned, not copied. Raises RuntimeError if keys do not fit.
    """
    state = dict(state_dict)
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or (weight := state.get(f"{name}.weight")) is None:
            continue
        own, kind = layer.weight.dtype, next((k for k in _KINDS.values() if k.dtype == weight.dtype), None)
        if kind is None or weight.dtype == own:
            continue
        scale = state.pop(f"{name}.weight_scale", None)
        if weight.shape != layer.weight.shape or (scale is None) != (kind is BFloat16Weight):
            got = f"{weight.dtype} {tuple(weight.shape)}, {'without' if scale is None else 'with'} weight_scale"
            raise RuntimeError(
                f"load_quantized: {name}.weight must be {tuple(layer.weight.shape)} with weight_scale exactly for int8 "
                f"and fp8, got {got}"
            )
        if scale is not None and scale.shape != weight.shape[:1]:
            raise RuntimeError(
                f"load_quantized: {name}.weight_scale must be {tuple(weight.shape[:1])}, got {tuple(scale.shape)}"
            )
        made = kind(weight, scale)
        if unsupported(kind.name, weight.device) or _why_not(model, {name: layer}):
            state[f"{name}.weight"] = made.dense().to(own)
        else:
            del state[f"{name}.weight"]
            _swap(layer, made, keep=False)
    quantized = {f"{name}.weight" for name, m in model.named_modules() if quantized_as(m)}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    missing = sorted(set(missing) - quantized)
    if missing or unexpected:
        raise RuntimeError(f"load_quantized: missing keys {missing[:5]}, unexpected keys {list(unexpected)[:5]}")


def quantized_as(module: nn.Module) -> str:
    """Return the precision of a layer that ``quantize`` has converted, or ""."""
    weight = vars(module).get("_quantized")
    return "" if weight is None else weight.name


def precision_of(model: nn.Module) -> str:
    """Return the precision of most of the model's quantized layers, or ``"fp32"`` if none is."""
    names = Counter(filter(None, map(quantized_as, model.modules())))
    return names.most_common(1)[0][0] if names else "fp32"


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of the model's parameters, buffers and packed weights, without the kept original weights."""
    tensors = {id(x): x.nbytes for x in (*model.parameters(), *model.buffers()) if not is_lazy(x)}
    return sum(tensors.values()) + sum(vars(m)["_quantized"].nbytes for m in model.modules() if quantized_as(m))


def _check_precision(op: str, precision: object) -> None:
    if precision not in _KINDS:
        raise ValueError(f"{op}: precision must be one of {', '.join(_KINDS)}, got {precision!r}")


def _check_arguments(model, precision, skip, sample, max_error, min_gain) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize: model must be a torch.nn.Module, got {type(model).__name__}")
    _check_precision("quantize", precision)
    if not isinstance(skip, str) and not (isinstance(skip, Sequence) and all(isinstance(s, str) for s in skip)):
        raise TypeError(f"quantize: skip must be a name or a list of names, got {skip!r}")
    if sample is not None and not callable(sample):
        raise TypeError(f"quantize: sample must be a function that runs the model, got {type(sample).__name__}")
    for name, value in (("max_error", max_error), ("min_gain", min_gain)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
            raise ValueError(f"quantize: {name} must be a number of at least 0, got {value!r}")
    if any(map(quantized_as, model.modules())):
        raise ValueError(f"quantize: model is already quantized to {precision_of(model)}; call restore(model) first")


def _skipped(model: nn.Module, layers: Mapping[str, nn.Linear], skip: str | Sequence[str]) -> Iterator[str]:
    names = [name for name, _ in model.named_modules()]
    for pattern in [skip] if isinstance(skip, str) else skip:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"quantize: skip: the model has no module {pattern!r}; see model.named_modules()")
        yield from (name for name in layers if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*"))


def _why_not(model: nn.Module, layers: Mapping[str, nn.Linear]) -> dict[str, str]:
    """Return the reason for each layer whose weight cannot be replaced."""
    read_by_parent = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
    parents = [name for name, m in model.named_modules() if isinstance(m, read_by_parent)]
    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    out = {}
    for name, layer in layers.items():
        cls, weight = type(layer), layer._parameters.get("weight")
        ours = isinstance(layer, Linear) and cls.product is Linear.product
        if not ours and cls.forward is not nn.Linear.forward:
            out[name] = f"{cls.__name__} defines its own forward"
        elif "forward" in vars(layer):
            out[name] = "forward is set on the instance"
        elif is_lazy(weight):
            out[name] = "its weight has no values yet"
        elif weight is None:
            out[name] = "its weight is computed (a parametrization, or weight norm)"
        elif any(name.startswith(f"{parent}.") or not parent for parent in parents):
            out[name] = "the module that contains it reads the weight itself"
        elif owners[id(weight)] > 1:
            out[name] = "its weight is shared with another module"
        elif weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            out[name] = f"its weight is {weight.dtype}"
    return out


def _blocked(precision: Precision, layer: nn.Linear, min_gain: float) -> str:
    """Return why a layer cannot be tried in this precision, or ""."""
    if layer.weight.is_meta:
        return "its weight has no values yet (meta device)"
    if precision == "bf16" and not amx.bf16_safe():
        return "bf16 products would kill the process, see fmkernels.bf16_safe()"
    if precision == "fp8" and any(n % 16 for n in layer.weight.shape):
        return "its sizes are not multiples of 16"
    return unsupported(precision, layer.weight.device) if min_gain > 0 else ""


class _Hook:
    """Calls run(*inputs) before the forward of a layer, inside a with statement."""

    def __init__(self, layer: nn.Module, run: Callable):
        self.layer, self.run = layer, run

    def __enter__(self):
        self.handle = self.layer.register_forward_pre_hook(
            lambda _, args, named: self.run(*args, *named.values()), with_kwargs=True
        )

    def __exit__(self, *_):
        self.handle.remove()


class _Trial:
    """A layer's weight in low precision, and what its inputs say about it."""

    def __init__(self, layer: nn.Linear, report: LayerReport, kind: type, max_error: float, min_gain: float):
        self.layer, self.report, self.kind, self.weight = layer, report, kind, None
        self.max_error, self.min_gain = max_error, min_gain

    def run(self, *parts: Tensor) -> None:
        """Measure the error, and at the first time the gain, on one input; parts are concatenated."""
        found = self.report
        x = torch.cat([part.flatten(0, -2) if part.dim() > 1 else part[None] for part in parts], -1)
        if found.kept == TOO_SMALL or not len(x):
            return
        if found.rows is None:
            found.rows = len(x)
            self.weight = self.kind.of(self.layer.weight)
            if self.min_gain > 0:
                found.gain = _gain(self.weight, self.layer, len(x))
                if found.gain < self.min_gain:
                    found.kept, self.weight = TOO_SMALL, None
                    return
        rows = x[:: -(-len(x) // MEASURED_ROWS)].float()
        expected = F.linear(rows, self.layer.weight.float())
        error = self.weight.product(rows, None, torch.float32) - expected
        relative = (error.norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny)).item()
        found.error = relative if found.error is None or not relative <= found.error else found.error
        if not found.error <= self.max_error:
            found.kept = TOO_SENSITIVE


def _random_rows(layer: nn.Linear) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, layer.in_features, generator=generator).to(layer.weight)


_gains: dict[tuple, float] = {}


def _gain(weight: object, layer: nn.Linear, rows: int) -> float:
    """Return how many times as fast as the layer this weight's product is; timed once for each shape."""
    own, bias = layer.weight, layer.bias
    key = weight.name, rows, own.shape, own.dtype, own.device, layer.__class__, torch.get_num_threads()
    if key not in _gains:
        x, dtype = own.new_ones(rows, layer.in_features), _returned_dtype(layer, own.dtype)
        slow, fast = _seconds(own.device, lambda: Linear.product(layer, x), lambda: weight.product(x, bias, dtype))
        _gains[key] = slow / fast
    return _gains[key]


def _seconds(device: torch.device, *calls: Callable, least: int = 3, budget: float = 0.02) -> list[float]:
    """Return the shortest time of each call; they take turns."""
    best, begin = [float("inf")] * len(calls), time.perf_counter()
    for turn in range(200):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                best[i] = min(best[i], time.perf_counter() - start)
        if turn >= least and time.perf_counter() - begin > budget:
            break
    return best


# The subclasses


def _returned_dtype(layer: nn.Linear, own: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if own == torch.float32 and getattr(layer, "inner", False) else own


def _swap(layer: nn.Linear, weight: object, keep: bool) -> None:
    state, dtype = vars(layer), _returned_dtype(layer, layer.weight.dtype)
    original = layer._parameters.pop("weight")
    state["_quantized"], state["_own_dtype"], state["_returned"] = weight, original.dtype, dtype
    state["_keep_weights"], state["_kept_weight"] = keep, original if keep else None
    layer.__class__ = _quantized_class(type(layer))


def _quantized_class(cls: type) -> type:
    """cls with the product of a quantized weight."""
    method = "product" if issubclass(cls, Linear) else "forward"
    return _subclass((_quantized_class, cls), before=(_QuantizedLinear,), **{method: _product})


def _product(self, input):
    if isinstance(input, (list, tuple)) and not isinstance(input, Int8Rows):
        input = torch.cat(list(input), -1)
    parts = vars(self)
    return parts["_quantized"].product(input, self._parameters["bias"], parts["_returned"])


class _QuantizedLinear:
    """What the subclasses share. ``weight`` is computed at every access, in the original dtype."""

    @property
    def weight(self) -> Tensor:
        return self._quantized.dense().to(self._own_dtype)

    @property
    def reads(self) -> torch.dtype | None:
        return self._quantized.dtype if self._quantized.name != "fp8" else None

    def _undo(self) -> None:
        state = vars(self)
        weight, dtype, kept = (state.pop(name) for name in ("_quantized", "_own_dtype", "_kept_weight"))
        del state["_returned"], state["_keep_weights"]
        if kept is None:
            warnings.warn(
                f"restore: the original weights were not kept; they are those in {weight.name} now", stacklevel=3
            )
            kept = nn.Parameter(weight.dense().to(dtype))
        # nn.Linear's order of parameters
        self._parameters = {"weight": kept, **self._parameters}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, weight in {self._quantized.name}"

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        weight, scale = self._quantized.plain()
        destination[f"{prefix}weight"] = weight
        if scale is not None:
            destination[f"{prefix}weight_scale"] = scale
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):
        names = f"{prefix}weight", f"{prefix}weight_scale"
        weight, scale = map(state_dict.get, names)
        rest = {key: value for key, value in state_dict.items() if key not in names}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing, unexpected, errors)
        kind, shape = type(self._quantized), self._quantized.shape
        if weight is None:
            missing.append(names[0])
        elif weight.shape != shape:
            errors.append(f"size mismatch for {names[0]}: {tuple(weight.shape)}, expected {tuple(shape)}")
        elif scale is not None and scale.shape != shape[:1]:
            errors.append(f"size mismatch for {names[1]}: {tuple(scale.shape)}, expected {tuple(shape[:1])}")
        elif weight.dtype == kind.dtype and (scale is not None or kind is BFloat16Weight):
            copies = (None if x is None else x.detach().clone() for x in (weight, scale))
            self._quantized, self._kept_weight = kind(*copies), None
        elif scale is None and weight.is_floating_point():
            self._quantized = kind.of(weight)
            if self._keep_weights:
                vars(self)["_kept_weight"] = nn.Parameter(weight.detach().to(self._own_dtype, copy=True))
        else:
            errors.append(f"{names[0]} is {weight.dtype}, which does not fit a layer in {kind.name}")

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        weight, scale = self._quantized.plain()
        moved = fn(weight.view(torch.uint8))  # a conversion to another dtype does not change it
        if moved.device != weight.device:
            self._quantized = type(self._quantized)(moved.view(weight.dtype), None if scale is None else fn(scale))
        if self._kept_weight is not None:
            vars(self)["_kept_weight"] = nn.Parameter(fn(self._kept_weight.data), self._kept_weight.requires_grad)
        self._own_dtype = fn(torch.empty(0, dtype=self._own_dtype)).dtype
        self._returned = _returned_dtype(self, self._own_dtype)
        return self
