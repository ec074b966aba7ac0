"""A velocity network and its text head with the keys of a released checkpoint, and a comparison of state dicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from fmpipe.models.dimr import DiMR
from fmpipe.models.dit import DiT
from fmpipe.models.text_head import VariationalHead

HEAD_PREFIX = "context_encoder."  # of the text head's keys
IGNORED = "open_clip"  # keys with this prefix belong to an encoder that CrossFlow's training saved too


@dataclass
class Fit:
    """The keys in which a checkpoint differs from a preset; ``misshapen``: key -> (its shape, the preset's)."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not (self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        shapes = [
            f"{k}: {list(got) if isinstance(got, tuple) else got}, expected {list(want)}"
            for k, (got, want) in self.misshapen.items()
        ]
        parts = (("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", shapes))
        lines = [line for title, keys in parts if keys for line in (f"{len(keys)} {title}:", *(f"  {k}" for k in keys))]
        return "\n".join([*lines, f"{len(self.ignored)} {IGNORED}* keys ignored"])


class CheckpointError(RuntimeError):
    """A checkpoint does not fit the networks; ``fit`` lists every key."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(f"{message}\n{fit}")
        self.fit = fit


def compare(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Fit:
    """Return the keys that are not in both with the same shape; tensors must be floating point."""
    fit = Fit(missing=[key for key in expected if key not in state])
    for key, value in state.items():
        if str(key).startswith(IGNORED):
            fit.ignored.append(key)
        elif key not in expected:
            fit.unexpected.append(str(key))
        elif not value.is_floating_point() or value.shape != expected[key].shape:
            got = tuple(value.shape) if value.is_floating_point() else value.dtype
            fit.misshapen[key] = got, tuple(expected[key].shape)
    return fit


class Networks(nn.Module):
    """A velocity network and its text head; together they have the keys of a released checkpoint."""

    def __init__(self, velocity_net: DiMR | DiT, text_head: VariationalHead):
        super().__init__()
        self.velocity_net, self.text_head = velocity_net, text_head

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors under the keys of CrossFlow's checkpoints."""
        head = {HEAD_PREFIX + key: value for key, value in self.text_head.state_dict().items()}
        return {**self.velocity_net.state_dict(), **head}

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> Fit:
        """Load a state with these keys, and return the keys that do not fit. ``open_clip*`` keys are ignored.

        With ``strict``, other keys that do not fit raise :class:`CheckpointError` before anything is loaded.
        """
        expected = self.state_dict()
        fit = compare(state, expected)
        if strict and not fit:
            raise CheckpointError("the state does not fit:", fit)
        state = {k: v for k, v in state.items() if k in expected and k not in fit.misshapen}
        head = {k.removeprefix(HEAD_PREFIX): v for k, v in state.items() if k.startswith(HEAD_PREFIX)}
        rest = {k: v for k, v in state.items() if not k.startswith(HEAD_PREFIX)}
        self.velocity_net.load_state_dict(rest, strict=strict, assign=assign)
        self.text_head.load_state_dict(head, strict=strict, assign=assign)
        return fit
