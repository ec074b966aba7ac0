"""Metrics in one printed line: ``step 100 | loss: 0.5``, dictionaries, progress bars, statistics of tensors."""

import ast
import re

from fmpipe.diagnose.read.names import NEGATED, STEPS, canonical
from fmpipe.diagnose.read.probes import COUNT, role
from fmpipe.diagnose.read.prose import NAMES, NUMBER, RANGE, TENSOR, N, verbose
from fmpipe.diagnose.read.series import Row, flat_numbers, whole

LONGEST = 4000  # characters of a printed line; a longer one is data
_TAGGED = ("loss/", "flow/", "quality/", "vae/")  # metrics that a tag in front of a line is about
_TRAINED, _HELD_OUT = "(?:trn?|train(?:ing)?|训练)", "(?:va|val|valid(?:ation)?|dev|ho|test|验证)"
SIDES = re.compile(rf"(?:({_TRAINED})|{_HELD_OUT})(?:_ema)?", re.IGNORECASE)  # names of columns that are losses


_RANK = verbose(
    r"""
      ^ \W* \[? (?:rank|gpu|worker) [\s:=]* (\d+) \]? \W      # [rank2]: step 225
    | [\[|] \s* (?:rank|gpu) [ :=]* (\d+) \s* [\]|]           # | rank 2 |
    | ^ \s* (\d{1,3}) : \s (?= .* \b (?:step|iter|epoch) )    # 2: step 225
    """
)
_BAR = verbose(
    r"""
    (?:\d+%)? \|? [^|\[]* (?: \| | ^ | : ) \s*                # 36%|███     |
    (?P<step>\d+) / \d+ \s*                                   # 36/100
    \[ (?P<postfix> [^\]]*? (?: it/s | s/it | < | \?it ) [^\]]* ) \]  # [00:49<33:25, 1.37s/it, loss=0.33]
    """,
    flags=0,
)
_COUNTERS = "|".join(sorted((re.escape(name) for name in STEPS if len(name) > 1), key=len, reverse=True))
_STEP = verbose(
    rf"""
    (?: ^ | [\s(\[\]{{|,:'"] | global[ _] )
    (?: (?:{_COUNTERS})\b | step(?=\d) | iter(?=\d) ) (?: \(\w+\) )? ['"]?  # global_step, "iter", step(opt)
    [\s=:\#\[{{'"]* (?P<step> \d[\d,]* ) (?: \s*/\s*\d+ )?                  # 1,000/26000
    (?! [\d.e%] )
    """
)
_FIRST = verbose(r"^ (?: \W* \[? rank [\s:]* \d+ \]? \W+ )? \s* (\d+) \s+ \|? \s* (?= [A-Za-z_] )")  # a bare step
_OTHER_STEP = verbose(
    r"""
      ^ \s* (?: (?:train|eval|val|valid|test) \s+ )? (\d+) : \s  # 100: loss 0.5
    | \[ \s* (\d+) / \d+ \]                        # [ 100/26000]
    | (?<= \] ) \s* \[ (\d+) \] \s               # train.py:64] [100] loss=0.5
    | 第 \s* (\d+) \s* 步
    | ^ [\[(\#]+ \s* (\d+) (?: /\d+ )? [\])\s]     # #100, (100/26000)
    """,
    flags=0,
)
_PHASE = verbose(r"Epoch (?: \( (train|val|test) \) )? :? \s* \[ (\d+) \] \[ \s* (\d+) / (\d+) \]")  # MMEngine
_TAG = verbose(r"(?: ^ | [\s\[|(] ) (val|valid|validation|eval|evaluation|test|ema) (?= [\]\s|):@] )")
_THOUSANDS = verbose(r"(?<! [\w.] ) (\d+ (?: \.\d+ )? ) k (?= [/)\]\s,:] | $ )", flags=0)  # a step of 12.5k
_SECOND = (  # words that may follow a name after a space
    "(?:loss|cos|norm|rate|mse|kl|scale|ratio|error|psnr|entropy|steps/sec|lr|skipped|iterations|similarity|weight"
    "|mean|std|min|max|grad|prompts?|h|value)"
)
_PAIR = verbose(
    rf"""
    ['"]?
    (?P<key>
        [A-Za-z_|‖∥\u4e00-\u9fff] [\w/.@|*‖∥\-\[\]\u4e00-\u9fff]*
        (?: \( \w+ \*? \) \w* )?                   # H(teacher), rms(v*)
        (?: \s {_SECOND} \b ){{0,2}}               # Train Loss
    )
    (?: \s* \( [a-zA-Z%]{{1,4}} \) )?              # a unit
    ['"]? \s* (?: (?: [:=：＝] | \bis\b | \.{{3,}} ) \s* | \s )
    ['"]? (?P<value>{NUMBER}) ['"]?
    (?! (?!dB\b) [\w/] | :\d | -\d | \.\d | \s?% )
    """
)
_KINDS = r"(?:mean|std|min|max) (?: \s*/\s* (?:mean|std|min|max) )+"
_NOT_A_TIME = r"\s? (?: [%/] | (?:s|ms|secs?|min|h|k|m|gb|db)\b )"
_DECIMAL = rf"(?= \s* [:=：]? \s* (?: \d+\.\d+(?:e[-+]?\d+)? | nan ) (?! [\d.] | {_NOT_A_TIME} ) )"
_MEASURE = verbose(r"(?<!loss)(?<!losses)(?<!info)(?<!epoch)(?<!损失) (?<= [^\W\d_] ) [\s:=(]* $")
_BARS = r"[|‖∥]+"


def _sides(match: re.Match) -> str:
    """Rewrite ``train 0.8 val 0.9`` as losses, unless the word in front names another measure."""
    if _MEASURE.search(match.string[: match.start()]):
        return match[0]
    return f"{match[1]}_loss{match[2]}{match[3]}_loss"


def _named_statistics(match: re.Match) -> str:
    """Rewrite ``t(mean/std) 0.5/0.29`` as ``t_mean=0.5 t_std=0.29``."""
    return "".join(f" {match[1]}_{kind.strip()}={x} " for kind, x in zip(match[2].split("/"), match[3].split("/")))


SPEED_RATIO = (  # |v| / |v*|
    verbose(rf"{_BARS} \s* ({NAMES}) \s* {_BARS} \s*/\s* {_BARS} \s* ({NAMES}) \s* {_BARS}"),
    " speed_ratio ",
)
COMPARED = (  # cos(v, v*)
    verbose(rf"\b (cos|corr|mse|rmse|cosine|cos_sim) \( \s* ({NAMES}) \s*,\s* ({NAMES}) \s* \)"),
    lambda m: f" {re.sub(r'[ -]+', '_', NEGATED.sub('negated', '_'.join(m.groups())))} ",
)
# How a line is rewritten before its pairs are read: calls, norms and statistics of tensors become plain names.
_REWRITES = [
    # np.float32(0.5), tensor(0.5, device='cuda:0')
    (verbose(r"\b (?: np\.\w+ | tensor | torch\.tensor | jnp\.\w+ | Array ) \( \s* ([^(),]*) [^()]* \)", 0), r"\1"),
    (verbose(r"(?<=\w) \( \s* \)", 0), ""),
    (verbose(r"\b (loss|n?mse|cos) \( (\w+) \s (?:captions?|prompts?|texts?|conditions?|labels?) \)"), r"\1_\2"),
    (verbose(r"\b (\w*skip\w*|\w*overflow\w*) ([\s:=]+\d+) \s*/\s* \d+"), r"\1\2"),  # skipped 3/100
    (verbose(r"\b torch\.\w+ | [(\[] \s* \d+ (?: \s* [,x×] \s* \d+ )+ ,? \s* [)\]]", 0), " "),  # dtypes and shapes
    (verbose(r"\b (?:shape|dtype|device) \s*=\s* \S* | \b (?: u?int | b?float ) \d+ \b", 0), " "),
    (verbose(rf"\( \s* {N} \s* ,? \s* \)", 0), r" \1 "),
    (verbose(r"reducing\ to\ (\d+)"), r" loss_scale=\1 "),
    (verbose(r"\s* ( [_^]?[₂²] | \^2 ) (?= [\s=:≈|/,)] )", 0), ""),  # of a norm
    (  # <v, v*> / (|v| |v*|)
        verbose(
            rf"[<⟨] \s* ({NAMES}) \s*,\s* ({NAMES}) \s* [>⟩] \s*/\s* \(? [|‖∥][|‖∥.·*\s\w-]*[|‖∥] \)? (?= \s* [=:] )"
        ),
        r"cos(\1,\2)",
    ),
    (verbose(rf"(?<! [\w/.-] ) ({_TRAINED}) ( {_DECIMAL} .*? (?<! [\w/.-] ) ) ({_HELD_OUT}) {_DECIMAL}"), _sides),
    SPEED_RATIO,
    (verbose(r"[<⟨] \| \s* ([xvzu]) \s* \| [>⟩]"), lambda m: f" abs_{'x' if m[1] in 'xzXZ' else 'v'} "),
    (  # mean |x|, abs(x).mean()
        verbose(
            r"""
            (?:mean\s*)?
            (?: abs\( \s* (x|v) \s* \) | (?<! [|‖∥] ) \| \s* (x|v) \s* \| (?! \| ) )
            (?: _mean | \.mean\(\) )?
            """
        ),
        lambda m: f" abs_{next(filter(None, m.groups())).lower()} ",
    ),
    (verbose(r"[|‖∥]{1,2} \s* (?:g|grad) \s* [|‖∥]{1,2} (?:_2)?"), " grad_norm "),
    COMPARED,
    (
        verbose(
            rf"\b ({TENSOR}) \s* [:=(]* \s* ({_KINDS}) \)? \s* [:=]? \s* ( (?:{NUMBER}) (?: \s*/\s* (?:{NUMBER}) )+ )"
        ),
        _named_statistics,
    ),
    (  # dw/w: flow_head 4e-05, z_head 2e-08
        verbose(
            rf"\b (?: dw/w | upd(?:ate)? (?:[ _]ratio|/param) s? ) [:\s]+ ( (?: \w+ [\s=:]+ (?:{NUMBER}) [,\s]* )+ )"
        ),
        lambda m: re.sub(r"([A-Za-z_]\w*)(?=[\s=:])", r" dw_w_\1", m[1]),
    ),
    (  # z1: 0.01 ± 0.98
        verbose(
            rf"""
            \b ({TENSOR}) \s* [:=]? \s* (?: mean \s* [±+]\S* \s* std )? \s* [:=]? \s*
            {N} \s* (?: ± | \+/?- ) \s* {N}
            """
        ),
        r" \1_mean=\2 \1_std=\3 ",
    ),
]
_STATISTIC = verbose(  # x_0: min=-3.2, max=4.1, mean=0.01
    rf"""
    (?<! [\w/.] ) ({TENSOR}) (?: \.\w+ )? \b ['"]?
    (?: \s* \( [^)]* \) | \s* ~ \s* [\w-]+ \s* (?: [(\[] [^)\]]* [)\]] )? )?       # t ~ U[0,1]
    \s* [:=|({{\[,]* \s*
    ( (?: ['"]? (?:min|max|mean|std|var|nan) ['"]? \s* [:=]? \s* (?:{NUMBER}) [\s,;|/]* ){{1,6}} )
    """
)
_ONE_STATISTIC = verbose(rf"(min|max|mean|std|var|nan) ['\"]? \s* [:=]? \s* {N}")
_T = r"([01]?\.\d+|0|1)"
_SLICE = verbose(  # t in (0.1, 0.2]
    rf"(?<! [\w.] ) (?: t \s* (?:in|∈|=|:)? | bin | slice ) \s* [(\[] \s* {_T} \s* [-–,~] \s* {_T} \s* [)\]]", flags=0
)


def parse(line: str) -> Row | None:
    """Return the metrics of one printed line, None if it has none."""
    if (row := _dictionary(line)) is not None:
        return row
    if found := _PHASE.search(line):  # MMEngine counts the iterations of an epoch
        phase, epoch, at, of = found[1], *(int(x) for x in found.groups()[1:])
        row = parse(line[found.end() :])
        if row is None:
            return None
        held_out = (phase or "train").lower() != "train"
        values = {f"val/{k}" if held_out else k: x for k, x in row.values.items()} | {"epoch": epoch}
        return row._replace(step=None if held_out else epoch * of + at, values=values)
    if len(line) > LONGEST or (not any(c.isdigit() for c in line) and "nan" not in line.lower()):
        return None
    line = _THOUSANDS.sub(lambda m: f"{float(m[1]) * 1000:.0f}", line)
    rank, bar = _RANK.search(line), _BAR.search(line)
    step, line = _split_step(line, bar)
    for pattern, new in _REWRITES:
        line = pattern.sub(new, line)
    values = _statistics_of(line)
    line = _STATISTIC.sub(" ", line)
    slices = _SLICE.search(line)
    values |= _ranges_of(line)
    line = RANGE.sub(" ", line)
    for key, x in _pairs(line, step is not None):
        values.setdefault(key, x)
    if slices:
        _slice(values, float(slices[1]), float(slices[2]))
    named = next((values.pop(key) for key in list(values) if key.lower() in STEPS and key.lower() not in COUNT), None)
    if named is not None and (bar or step is None):  # the bar counts an epoch, its postfix the run
        step = whole(named)
    counter = next((key for key in values if key.lower() in ("n", "u", "k")), None)
    if step is None and counter and {canonical(k) for k in values} & {"loss/total", "loss/flow", "grad/total"}:
        step = whole(values.pop(counter))
    if not values:
        return None
    return Row(step, int(next(filter(None, rank.groups()))) if rank else None, values)


def _dictionary(line: str) -> Row | None:
    """Return the metrics of a printed dictionary, nested ones under ``outer/inner``; None if it is not one."""
    if not re.match(r"\s*\{\s*['\"]", line) or not line.rstrip().endswith("}"):
        return None
    try:
        found = ast.literal_eval(re.sub(r"\b(?:np\.\w+|tensor)\(\s*([^(),]*)[^()]*\)", r"\1", line).strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    values = flat_numbers(found) if isinstance(found, dict) else {}
    step = next((values.pop(key) for key in list(values) if key.lower() in STEPS), None)
    return Row(whole(step), None, values) if values else None


def _split_step(line: str, bar: re.Match | None) -> tuple[int | None, str]:
    """Return the step of a line, None if it has none, and the line without it."""
    if bar:
        postfix = re.split(r"it/s|s/it|\?it", bar["postfix"])[-1]
        return int(bar["step"]), f"{line[: bar.start()]} {postfix} {line[bar.end() :]}"
    if found := _STEP.search(line):
        return whole(float(found["step"].replace(",", ""))), f"{line[: found.start()]} {line[found.end() :]}"
    if found := _FIRST.search(line):
        return int(found[1]), line[found.end() :]
    found = _OTHER_STEP.search(line)
    return (int(next(filter(None, found.groups()))) if found else None), line


def _statistics_of(line: str) -> dict[str, float | None]:
    found = {}
    for name, part in _STATISTIC.findall(line):
        found |= {f"{name}_{kind.lower()}": value_of(x) for kind, x in _ONE_STATISTIC.findall(part)}
    return found


def _ranges_of(line: str) -> dict[str, float | None]:
    found = {}
    for name, low, high in RANGE.findall(line):
        found |= {f"{name}_min": value_of(low), f"{name}_max": value_of(high)}
    return found


def _pairs(line: str, has_step: bool) -> list[tuple[str, float | None]]:
    """Return the names and numbers of a line; an unknown name counts in a line with a step only.

    A tag, as in ``[ema] fid=13`` or ``raw: fid 13 | ema: fid 30``, becomes a part of the names behind it.
    """
    out = []
    tags, begin, end = None, 0, 0  # those in front of the first metric of the line or of a part
    for match in _PAIR.finditer(line):
        key, number = match["key"].strip(), match["value"]
        key = key if re.fullmatch(r"\|[\w*]+\|", key) else key.strip("| ")
        if re.search(r"\.(?:py|cc|cpp|cu|rs|go|js)$", key):
            continue  # the place in the code that printed the line
        known = canonical(key)
        while known is None and " " in key:
            key = key.partition(" ")[2]
            known = canonical(key)
        between, before, end = line[end : match.start()], end, match.end()
        if tags is not None and re.search(r"[|;,\[]|:\s*$", between) and _TAG.search(between):
            tags, begin = None, before
        head = _TAG.findall(line[begin : match.start()]) if tags is None else [tags]
        if (
            known is None
            and any(head)
            and key != "value"
            and canonical(f"loss_{key}") in ("loss/total", "loss/shuffled")
        ):
            key, known = f"loss_{key}", "loss/total"  # val@500: true 0.87 shuffled 0.88
        tagged = known is not None and known.removeprefix("val/").startswith(_TAGGED)
        if tagged and tags is None:
            tags = "".join(f"{tag}/" for tag in head)
        probe = role(key) in ("t", "n", "x", "v", "dt") or key.lower() in STEPS or re.search(r"mse|err", key, re.I)
        if key and (probe or known or (known is None and has_step)):
            out.append((f"{tags}{key}" if tagged else key, value_of(number)))
    return out


def _slice(values: dict[str, float | None], low: float, high: float) -> None:
    """Give the metrics of a line about the slice (low, high] of t the names of the slices of t."""
    slices = tenths(low, high)
    for key in [key for key in values if slices and canonical(key) in ("flow/cos", "flow/nmse")]:
        x = values.pop(key)
        values |= {f"{canonical(key)}_t{k}": x for k in slices}


def value_of(text: str) -> float | None:
    """Return the number in a text that :data:`~fmpipe.diagnose.read.prose.NUMBER` matches; None for null."""
    if text.lower() in ("none", "null", "-", ""):
        return None
    return float(text.replace(",", ""))


def tenths(low: float, high: float) -> list[int]:
    """Return the tenths of [0, 1] whose middles are in a bin of t; the one that the bin is in if it is narrow."""
    if not 0 <= low < high <= 1:
        return []
    return [k for k in range(10) if low <= k / 10 + 0.05 < high] or [min(9, int(5 * (low + high) + 1e-6))]
