"""Figures that a report states in words, English or Chinese: ranges, means, first and last losses, constants."""

import re
from collections.abc import Callable

from fmpipe.diagnose.read.lines import NUMBER
from fmpipe.diagnose.read.names import canonical

_N = rf"({NUMBER})"
_PAIR = rf"\[\s*{_N}\s*,\s*{_N}\s*\]"
_NAME = r"`?([A-Za-z_][\w]*)`?"
_KINDS = {
    "range": r"(?:范围|range)", "mean": r"(?:均值|mean|average)", "std": r"(?:标准差|std(?:dev)?|standard deviation)",
}  # fmt: skip
_STATED = {kind: re.compile(rf"{_NAME}\s*{word}\s*[:：=]?\s*{_PAIR}", re.IGNORECASE) for kind, word in _KINDS.items()}
_CHANGE = re.compile(
    rf"{_NAME}\s*(?:{_KINDS['std']})\s*[:：]?\s*(?:从|from)\s*{_N}\s*(?:增加到|增长到|升至|降至|下降到|到|to)\s*{_N}",
    re.IGNORECASE,
)
_LOSS = {
    "range": re.compile(rf"(?:损失|loss)\s*(?:的)?(?:范围|range)\s*[:：=]?\s*{_PAIR}", re.IGNORECASE),
    "first10": re.compile(rf"(?:初始损失|initial loss|first 10)[^:：\n]*[:：=]\s*{_N}", re.IGNORECASE),
    "last10": re.compile(rf"(?:最终损失|final loss|last 10)[^:：\n]*[:：=]\s*{_N}", re.IGNORECASE),
}
_CONSTANTS = ("betas", "alphas_cumprod", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod")
_ENDS = re.compile(
    rf"`?({'|'.join(_CONSTANTS)})`?\s*[:：]?\s*(?:范围|range)?\s*[:：]?\s*"
    rf"(?:{_PAIR}|(?:min|first)\s*[:=]\s*{_N}\s*,?\s*(?:max|last)\s*[:=]\s*{_N})",
    re.IGNORECASE,
)


def statements(text: str, series: Callable) -> tuple[dict[str, object], dict[str, list[float]]]:
    """Return the series and the constants that a text states; series(values, **stated) makes one of values."""
    found: dict[str, object] = {}
    for kind, pattern in _STATED.items():
        for name, low, high in pattern.findall(text):
            low, high, stat = float(low), float(high), canonical(f"{name}_mean")
            if not stat or not stat.startswith("stat/"):
                continue
            stem = stat.rpartition("/")[0]
            if kind == "range":
                found[f"{stem}/min"], found[f"{stem}/max"] = series([low]), series([high])
            else:
                found[f"{stem}/{kind}"] = series([low, high], median=(low + high) / 2, mean=(low + high) / 2)
    for name, first, last in _CHANGE.findall(text):
        if (stat := canonical(f"{name}_std")) and stat.startswith("stat/"):
            found[stat] = series([float(first), float(last)])
    loss = {name: pattern.findall(text) for name, pattern in _LOSS.items()}
    if loss["first10"] and loss["last10"]:
        first, last = float(loss["first10"][0]), float(loss["last10"][0])
        low, high = map(float, loss["range"][0]) if loss["range"] else (min(first, last), max(first, last))
        found["loss/total"] = series([first, last], first10=first, last10=last, min=low, max=high)
    constants = {}
    for name, *numbers in _ENDS.findall(text):
        ends = [float(x) for x in numbers if x]
        constants.setdefault(f"const/{name}", ends)
    return found, constants
