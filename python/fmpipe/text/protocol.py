"""What the pipeline asks of a text encoder; no library is needed to meet it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 1 << 20  # characters of a prompt


@runtime_checkable
class TextEncoder(Protocol):
    """B prompts in; states (B, tokens, dim) and mask (B, tokens) out, bool, False where a state means nothing."""

    tokens: int
    dim: int

    def __call__(self, prompts: str | Sequence[str]) -> "tuple[Tensor, Tensor]": ...


def check_prompts(where: str, prompts: str | Sequence[str]) -> list[str]:
    """A list of at least one str; one str is a list of it. TypeError or ValueError naming ``prompts`` for others."""
    prompts = [prompts] if isinstance(prompts, str) else prompts
    if not isinstance(prompts, (list, tuple)):
        raise TypeError(f"{where}: prompts must be a str or a list of str, got {type(prompts).__name__}")
    if not prompts:
        raise ValueError(f"{where}: prompts must have at least one str, got an empty {type(prompts).__name__}")
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise TypeError(f"{where}: prompts[{i}] must be a str, got {type(prompt).__name__}")
        if len(prompt) > LONGEST:  # tokenizers need minutes and gigabytes for tens of millions
            raise ValueError(f"{where}: prompts[{i}] has {len(prompt):,} characters, more than {LONGEST:,}")
    return list(prompts)
