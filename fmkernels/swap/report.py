"""The report of ``optimize``."""

from collections import Counter
from dataclasses import dataclass, field

from fmkernels.patch import Acceleration


@dataclass
class Swap:
    """One recognized module. kinds: what is fused, with the number of calls in its trial. reason: why it was not
    swapped. error: the largest difference of outputs and gradients in its trial, relative to the largest element of
    each; limit: the bound. before, after: microseconds of the forward, with ``measure=True``."""

    name: str
    cls: str
    kinds: Counter = field(default_factory=Counter)
    reason: str = ""
    error: float | None = None
    limit: float | None = None
    before: float | None = None
    after: float | None = None

    @property
    def swapped(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name} ({self.cls}): left unchanged: {self.reason}"
        text = f"{self.name} ({self.cls}): {', '.join(self.kinds)}; error {self.error:.1e}, limit {self.limit:.1e}"
        return text if self.before is None else f"{text}; {self.before:.0f} to {self.after:.0f} us"


@dataclass
class Optimization(Acceleration):
    """The printable report of ``optimize``; ``modules`` has a row for every recognized module."""

    modules: list[Swap] = field(default_factory=list)

    @property
    def swapped(self) -> list[Swap]:
        return [swap for swap in self.modules if swap.swapped]

    @property
    def kinds(self) -> Counter:
        """Kind of fused operation -> number of modules."""
        return Counter(kind for swap in self.swapped for kind in swap.kinds)

    def details(self) -> str:
        """One line for every module."""
        return "\n".join(map(str, self.modules))

    def __str__(self) -> str:
        if not self.modules:
            return super().__str__()
        lines = [] if not (self.parameters or self.norms or self.left) else [super().__str__()]
        if self.swapped:
            kinds = ", ".join(f"{kind} in {count}" for kind, count in sorted(self.kinds.items()))
            error = max(swap.error / swap.limit for swap in self.swapped if swap.limit)
            lines.append(f"swapped {len(self.swapped)} modules: {kinds}; largest error {error:.2g} of its limit")
        timed = [swap for swap in self.swapped if swap.before is not None]
        if timed:
            before, after = sum(s.before for s in timed), sum(s.after for s in timed)
            lines.append(f"forwards of the swapped modules alone: {before:,.0f} to {after:,.0f} us")
        reasons: dict[tuple[str, str], list[Swap]] = {}
        for swap in self.modules:
            if not swap.swapped:
                reasons.setdefault((swap.cls, swap.reason), []).append(swap)
        for (cls, reason), swaps in reasons.items():
            others = f" and {len(swaps) - 1} others" if len(swaps) > 1 else ""
            lines.append(f"left unchanged: {swaps[0].name}{others} ({cls}): {reason}")
        return "\n".join(lines)
