"""Numbers that a text states in words, English or Chinese: ranges, means, norms, first and last losses, constants."""

import re

from fmpipe.diagnose.figures import Series
from fmpipe.diagnose.read.names import canonical


def verbose(text: str, flags: int = re.IGNORECASE) -> re.Pattern:
    """Compile a pattern in which spaces and comments do not count."""
    return re.compile(text, flags | re.VERBOSE)


NUMBER = r"[-+]?(?:\d[\d,]*\d\.\d+|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)\b|None|null"
N = rf"({NUMBER})"
TENSOR = (
    r"x_?0|x_?1|z_?0|z_?1|x_?t|t|timesteps?|noise|eps|pixels?|images?|imgs?|inputs?|latents?|pred(?:icted)?_x_?0|x_?0_pred|pred"
    r"|model_pred|v_pred|x_?0_target|target|z_text|z_img|model_output|output|pixel_values?|x_?start|pix"
)
NAMES = (  # of tensors, as arguments of cos(...) and mse(...)
    r"v_?pred|v_?tgt|-\s*(?:score|noise|eps|[xz]_?0)|[xz]_?0\s*-\s*[xz]_?1|o|f|nn|v_?hat|v?_?ref|output|model_out"
    r"|v_?target|pred|out|net|tgt|target|[uvp]\*?|u_\w+|v_\w+|[xz]_?1\s*-\s*[xz]_?0|[xz]_?end|[xz]_?N|[xz]_?[01t]"
    r"|noise|eps|score|[xz]1_?hat|z_?hat"
)
_INTERVAL = rf"\[ \s* {N} \s*,\s* {N} \s* \]"
RANGE = verbose(rf"(?<! [\w/.] ) ({TENSOR}) \b [`'\"]? \s* (?: ∈ | in | range | 范围 )? \s* [:=：]? \s* {_INTERVAL}")
_NORM = verbose(  # E‖z0‖ ≈ 151 ~ 160
    rf"""
    (?: E\s* \[?\s* )? (?: \|\| | [‖∥] ) \s* ( x_?[01t] | z_?[01t] | v\*? | v_tgt ) \s* (?: \|\| | [‖∥] ) \]? [₂2]? \s*
    (?: ≈ | = | : | 约 | 为 | is | about )+ \s* {N} (?: \s* (?: ~ | – | — | - | to | 至 ) \s* {N} )?
    """
)
_NORMS = re.compile(r"^\W*norms?\b[^\n]*", re.IGNORECASE | re.MULTILINE)
_ONE_NORM = verbose(rf"\b ( x_?[01t] | z_?[01t] | v\* | v ) \s* [=:]? \s* {N}", flags=0)
_RELATIVE = verbose(rf"relative \s+ (?: shooting\s+ )? (?: MSE | error ) \D{{0,12}}? {N}")
_CONSTANT = "betas|alphas_cumprod|sqrt_alphas_cumprod|sqrt_one_minus_alphas_cumprod"
_ELEMENT = re.compile(rf"\b({_CONSTANT})\s*\[\s*(-?\d+)\s*\]\s*(?:(?:[=:：]|->|→)\s*)?{N}")
_ENDS = verbose(  # betas: [1e-4, ..., 0.02], betas: first 1e-4, last 0.02, betas 1e-4 -> 0.02
    rf"""
    `? \b ({_CONSTANT}) \b `? \s* [:：=]? \s* (?: 范围 | range | in | ∈ )? \s* [:：]? \s*
    (?:
        (?: [\w.]+ \( )? \[ \s* {N} \s* (?: , | \.\.\. | … | to ) [^\]]*? (?<= [\s,.…o] ) {N} \s* \]
      | (?: min | first | start | from | 首 | 前 ) \s* [:：=]? \s* {N} \s* [,，]? \s*
        (?: max | last | end | to | 末 | 后 ) \s* [:：=]? \s* {N}
      | {N} \s* (?: \.\.\.? | … | → | -> | to | / | ~ ) \s* {N}
    )
    """
)
_LIST = rf"(?: [\w.]+ \( )? \[? \s* ( (?:{NUMBER}) (?: [\s,]+ (?: (?: \.\.\. | … ) [\s,]* )? (?:{NUMBER}) )* )"
_PART = verbose(  # betas (first 10): [1e-4, 1.2e-4, ...], betas[-3:] = tensor([0.0199, 0.02]), betas: first 2 1e-4 2e-4
    rf"""
    `? \b ({_CONSTANT}) \b `? \s*
    (?: [(:：]? \s* (前|后|首|末|first|last) \s* (?: \d+ (?= [\s:：)个=] ) )? \s* 个? \)? | \[ (-?\d*) : -?\d* \] )
    \s* [:：=]? \s* {_LIST}
    (?: [\s,;，；)\].…]* (?: 后 | 末 | last ) \s* (?: \d+ (?= [\s:：)个=] ) )? [\s个:：=]* {_LIST} )?  # ..., last [...]
    """
)
_STATED = {  # the mean of x_t is in [-0.01, 0.02]
    kind: verbose(
        rf"`? \b ({TENSOR}) \b `? \s* (?:的)? (?: {words} ) \s* (?: in | within | : | ：| = )? \s* {_INTERVAL}"
    )
    for kind, words in {
        "mean": "(?: 均值 | mean | average ) s?",
        "std": r"标准差 | stds? | standard\ deviation",
    }.items()
}
_CHANGE = verbose(  # the std of the prediction rises from 0.57 to 0.98
    rf"""
    `? \b ({TENSOR}) \b `? \s* (?:的)? (?: 标准差 | std(?:dev)? | standard\ deviation ) \s* [:：]? \s*
    (?: rises | grows | goes | falls )? \s* (?: 从 | from ) \s* {N} \s*
    (?: 增加到 | 增长到 | 升至 | 降至 | 下降到 | 到 | to ) \s* {N}
    """
)
_LOSS_AT = r"[^:：=\d\n]* (?: [（(] [^）)]* [）)] )? \s* (?: [:：=] | was | is | of | at ) \s*" + N
_LOSS = {
    "range": verbose(rf"(?: 损失 | loss(?:es)? ) \s* (?:的)? \s* (?: 范围 | range ) \s* [:：=]? \s* {_INTERVAL}"),
    "first10": verbose(
        r"(?: 初始损失 | initial\ loss | first\ (?:10|ten) (?:\ loss\w*)? | loss\ at\ the\ (?:start|beginning) )"
        + _LOSS_AT
    ),
    "last10": verbose(
        rf"(?: 最终损失 | final\ loss | last\ (?:10|ten) (?:\ loss\w*)? | loss\ at\ the\ end ) {_LOSS_AT}"
    ),
    "above": verbose(
        rf"(?: 损失 | loss\w* ) \s* [（(]? \s* (?: > | above | 超过 | 大于 ) \s* {N} \s* [）)]? \D{{0,12}}? (\d+)"
    ),
}


def statements(text: str) -> tuple[dict[str, Series], dict[str, list[float]]]:
    """Return the series and the constants that a text states in words."""
    found: dict[str, Series] = {}
    for name, low, high in RANGE.findall(text):
        if (stat := canonical(f"{name}_mean")) and stat.startswith("stat/"):
            stem = stat.rpartition("/")[0]
            found[f"{stem}/min"], found[f"{stem}/max"] = Series.of([float(low)]), Series.of([float(high)])
    for kind, pattern in _STATED.items():
        for name, low, high in pattern.findall(text):
            if (stat := canonical(f"{name}_{kind}")) and stat.startswith("stat/"):
                middle = (float(low) + float(high)) / 2
                found[stat] = Series.of([float(low), float(high)], median=middle, mean=middle)
    for name, first, last in _CHANGE.findall(text):
        if (stat := canonical(f"{name}_std")) and stat.startswith("stat/"):
            found[stat] = Series.of([float(first), float(last)])
    for name, low, high in _NORM.findall(text):
        key = canonical(f"|{re.sub('(?<=[xz])_(?=[01])', '', name)}|")
        if key:
            found[key] = Series.of([float(low)] if not high else [(float(low) + float(high)) / 2])
    for line in _NORMS.findall(text):
        for name, x in _ONE_NORM.findall(line):
            if (key := canonical(f"|{re.sub('(?<=[xz])_(?=[01])', '', name)}|")) and x[0].isdigit():
                found.setdefault(key, Series.of([float(x)]))
    if found_relative := _RELATIVE.findall(text):
        found["shoot/relative"] = Series.of([float(found_relative[-1])])
    loss = {name: pattern.findall(text) for name, pattern in _LOSS.items()}
    if loss["first10"] and loss["last10"]:
        first, last = float(loss["first10"][0]), float(loss["last10"][0])
        low, high = map(float, loss["range"][0]) if loss["range"] else (min(first, last), max(first, last))
        stated = {"first10": first, "last10": last, "min": low, "max": high}
        if loss["above"]:
            stated |= {"level": float(loss["above"][0][0]), "above": float(loss["above"][0][1])}
        found["loss/total"] = Series.of([first, last], **stated)
    elements: dict[str, dict[int, float]] = {}
    for name, index, x in _ELEMENT.findall(text):
        index = int(index)
        elements.setdefault(f"const/{name}", {})[index if index >= 0 else 10**6 + index] = float(x)
    for name, word, start, *lists in _PART.findall(text):
        at = elements.setdefault(f"const/{name}", {})
        first, last = ([float(x) for x in re.findall(NUMBER, part)] for part in lists)
        if word.lower() in ("后", "末", "last") or start.startswith("-"):
            at[10**6 - 1] = first[-1]
        elif word or start in ("", "0"):
            at[0] = first[0]
            at |= {10**6 - 1: last[-1]} if last else {}
    constants = {k: [by[i] for i in sorted(by)] for k, by in elements.items() if len(by) > 1 and max(by) >= 900}
    ends: dict[str, list[float]] = {}
    for name, *numbers in _ENDS.findall(text):
        ends.setdefault(f"const/{name}", [float(x) for x in numbers if x])
    if ends.get("const/betas", [0])[0] > 0.5:  # those of Adam
        del ends["const/betas"]
    return found, {k: x for k, x in ends.items() if len(x) > 1} | constants
