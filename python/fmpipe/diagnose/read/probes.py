"""Probes of debugging code in a text: sampling traces, one-step alignment by t, errors by number of steps, cosines."""

import math
import re
from functools import lru_cache

from fmpipe.diagnose.figures import SamplingTrace
from fmpipe.diagnose.read.names import OWN, SHUFFLED, canonical
from fmpipe.diagnose.read.prose import NAMES, NUMBER, N
from fmpipe.diagnose.read.series import Row, whole

_TEXT = re.compile(
    rf"\b(\w*cos\w*)\s*[(\[]\s*(['\"“]?)([^,()\[\]]+?)\2?[”]?\s*(?:,|\||vs\.?)\s*['\"“]?([^()\[\]]+?)['\"”]?\s*[)\]]\s*(?:=|:|≈|->|→)?\s*{N}",
    re.I,
)
_COSINES = re.compile(
    r"(?=.*(?:cos|similar|余弦|相似)).*(?:prompt|caption|text|\bmu|μ|mean|均值|提示|文本|pairwise|control)",
    re.IGNORECASE | re.DOTALL,
)  # what the numbers below are: cosines, and of prompts
_PAIRED = re.compile(r"\W*(\S.*?)(?:[\s\"')]+[:=：→|]*|[:=：→|])\s*([-+]?\d?\.\d+)\s*[|✓✗]*\s*((?:<-|←|#|\(|//).*)?$")
_BETWEEN = (  # two prompts, the clearest separator first
    r"\s*(?:↔|<-+>|\bvs\.?(?=\W)|\|)\s*", r"\s*/\s*", r"\s*,\s*", r"\s+[-–—&×~x]\s+|\s*[与和×~]\s*", " and ", "-",
)  # fmt: skip
_MATRIX = re.compile(rf"\s*(?:\w+\()?\[+((?:\s*(?:{NUMBER})\s*,?){{3,}})\][^\d]*(?:\d\W*)?")
_BARE = re.compile(r"\s*((?:-?[01]?\.\d+[\s,]*){3,})")  # a row of a matrix without brackets
_BYCOUNT = re.compile(
    rf"\b(?:N|K|nfe|steps)\s*[=:]?\s*(\d+)\s*(?:steps)?\s*(?:(?:→|->|=>|:|\|)\s*(?:\w*m?se\w*\s*[=:]?\s*)?{N}|\s{N}\s*$)",
    re.I,
)
COUNT = ("n", "k", "nfe", "num_steps", "n_steps", "nsteps", "steps", "num_inference_steps", "步数", "solver_steps")
_COUNTED = re.compile(
    r"#?(?:(?:num|number|of|n|euler|ode|solver|sampling|inference|sampler|积分|采样|步数|总)[\W_]*)*"
    r"(?:n|k|nfe|steps|步数)(?:[\W_]*(?:steps|步数|步))?"
)
_TIME = re.compile(
    r"(?:time|at|时间|时刻)?[\W_]*(?:t|τ|tau|time|时间|时刻)(?:[\W_]*(?:mid|center|centre|bin|value|point))?"
)
_SIDE = re.compile(r"t_?(?:lo|hi|low|high|start|end|from|to|left|right)", re.IGNORECASE)  # of a bin of t
_TEACHER = re.compile(r"teacher|exact[ _-]field|ground.?truth.field|Dt_psi|教师|oracle|analytic", re.I)
_SHOOT = re.compile(
    r"shoot|\bshots?\b|endpoint|endpt|端点|射击|打靶|rollout|free.?integration|learn(?:ed|t).field", re.IGNORECASE
)
_HALF = re.compile(r"bf16|bfloat16|fp16|half", re.I)
_FULL = re.compile(r"fp32|float32|fp64|float64", re.I)


@lru_cache(4096)
def role(key: str) -> str:
    """Return the role of a key in a probe: t, n (number of steps), x, v, dt, cos, ratio; or the key itself."""
    low = re.sub(r"\s*步$", "", key.lower().strip(" =:()"))
    if _TIME.fullmatch(low):
        return "t"
    if _COUNTED.fullmatch(low):
        return "n"
    if low in ("dt", "h", "δt", "delta_t", "step_size", "dtau", "dτ"):
        return "dt"
    if re.fullmatch(r"(?:mean_?)?(?:abs_?x|x_?abs|\|x\||absx|x_mean_abs|xabs|mean_abs_x|x_absmean|x|state)", low):
        return "x"
    if re.fullmatch(r"(?:mean_?)?(?:abs_?v|v_?abs|\|v\||absv|v_mean_abs|vabs|mean_abs_v|v_absmean|v|velocity)", low):
        return "v"
    found = canonical(key)
    return {"flow/cos": "cos", "flow/speed_ratio": "ratio"}.get(found, key)


def tenth(t: float) -> int:
    """Return the tenth of [0, 1] that a t belongs to; 0.1 belongs to the first, as 0.9 does to the last."""
    return min(9, int(10 * t + 1e-6)) if t > 0.5 else max(0, math.ceil(10 * t - 1e-6) - 1)


@lru_cache(4096)
def condition(key: str) -> tuple[str, str] | None:
    """Return (cos or loss, own or shuffled) of a metric that is measured with the right condition or another one."""
    words = set(re.split(r"[^a-z0-9]+", key.lower()))
    kind = "cos" if words & {"cos", "cosine", "cossim"} else "loss" if re.search(r"mse|loss|err", key, re.I) else ""
    other, own = words & SHUFFLED or re.search("打乱|错配|空", key), words & OWN or re.search("配对|正确", key)
    side = "shuffled" if other else "own" if own else ""
    return (kind, side) if kind and side else None


class Probes:
    """Rows that are not those of a training: sampling traces, one-step alignment by t, errors by number of steps."""

    def __init__(self):
        self.runs: list[tuple[str, list[tuple[float, ...]]]] = []
        self.fm: dict[float, tuple[float, float | None]] = {}
        self.texts: dict[str, list[float]] = {}
        self.means: set[str] = set()
        self.torn = 0
        self.errors: dict[str, dict[int, float]] = {}
        self.full = False  # whether the errors of the exact field are those of full precision
        self.kind = ""  # of the errors before, for lines that do not say
        self.shots: dict[str, float] = {}
        self.sides: dict[tuple[str, str], dict[float | None, float]] = {}  # see condition, by t
        self.matrix: list[list[float]] = []
        self.left: list[Row] = []  # what else such rows have

    def take(self, row: Row | None, line: str, context: str) -> bool:
        """Take the numbers of a row or a line; False if they belong to a training."""
        where = f"{context} {line}"
        line = re.sub(r"\b(mu|mean|z0?)[(\[]([^()\[\]]*)[)\]]", r"\1_\2", line)
        if pairs := [p for p in _TEXT.findall(line) if not re.fullmatch(NAMES, p[2].strip(), re.I)]:
            for call, _, a, b, cos in pairs:
                if "{" not in a + b:
                    self._cosine(a, b, float(cos), f"{a} {b} {call} " + where * (not re.match(r"z0?_", a)))
            return True
        if line and _COSINES.search(context) and self._pair(line, where):
            return True
        if "{" in line and re.search(r"\{[^}]*:\.\d+[fge]\}", line):
            return True  # the code that prints such lines
        by = {role(key): (key, x) for key, x in row.values.items()} if row else {}
        if {"x", "v", "dt"} <= by.keys():
            self._step(row, [by[k][1] for k in ("x", "v", "dt")], context)
            return True
        ends = [x for key, x in by.values() if _SIDE.fullmatch(key)]
        t = by["t"][1] if "t" in by else sum(ends) / 2 if len(ends) == 2 and None not in ends else None
        at = t is not None and 0 <= t <= 1
        kept = row and row.step is None and (self._sides(row, t) or at) and self._by_time(row, t if at else None)
        if at and "cos" in by and by["cos"][1] is not None:
            self.fm[t] = (by["cos"][1], by["ratio"][1] if "ratio" in by else None)
            return True
        return kept or self._shot(by) or self._count(row, by, line, where)

    def _pair(self, line: str, where: str) -> bool:
        """Take the cosine of two prompts, as in ``dog / car 0.17``, or a row of a matrix of cosines."""
        if found := _MATRIX.fullmatch(line) or _BARE.fullmatch(line):
            self.matrix.append([float(x) for x in re.findall(NUMBER, found[1])])
            if len({len(row) for row in self.matrix}) > 1:
                self.matrix = self.matrix[-1:]
            size = len(self.matrix[0])
            if len(self.matrix) == size and all(abs(row[k] - 1) < 0.01 for k, row in enumerate(self.matrix)):
                for a, row in enumerate(self.matrix):
                    for b, x in enumerate(row):
                        self._cosine(str(a), str(b), x, where)
                self.matrix = []
            return True
        found = _PAIRED.fullmatch(line)
        if not found or abs(float(found[2])) > 1.001 or re.search(r"\d\.\d", found[1]):
            return False
        sides = next((p for sep in _BETWEEN if len(p := [x for x in re.split(sep, found[1]) if x.strip()]) == 2), None)
        if sides and re.search(r"control|same|self|对照|相同", found[3] or "", re.I):
            sides = [sides[0], sides[0]]
        return bool(sides) and self._cosine(*sides, float(found[2]), where)

    def _cosine(self, a: str, b: str, cos: float, where: str) -> bool:
        pair = " | ".join((a.strip(" '\"“”`([)]"), b.strip(" '\"“”`([)]")))
        means = re.search(r"mean|mus?\b|mu_|μ|均值", where, re.I) is not None
        if means and pair not in self.means:
            self.texts[pair] = []
            self.means.add(pair)
        if means or pair not in self.means:  # samples are meaningless if means are known
            self.texts.setdefault(pair, []).append(cos)
        return True

    def _sides(self, row: Row, t: float | None) -> bool:
        """Take what is measured with the right condition and with another one."""
        sides = {key: side for key in row.values if (side := condition(key))}
        shuffled = {kind for kind, side in sides.values() if side == "shuffled"}
        for key in row.values:  # next to mse(shuffled), mse belongs to the right condition
            kind = {"flow/cos": "cos", "flow/nmse": "loss"}.get(known := canonical(key) or "", "")
            kind = kind or ("loss" if known in ("loss/mse", "loss/flow", "loss/total") else "")
            if kind in shuffled and (kind, "own") not in sides.values() and key not in sides:
                sides[key] = (kind, "own")
        taken = {side: row.values[key] for key, side in reversed(sides.items()) if row.values[key] is not None}
        for side, x in taken.items():
            self.sides.setdefault(side, {})[t] = x
        return bool(taken)

    def _by_time(self, row: Row, t: float | None) -> bool:
        """Keep the correlations and errors of a row at t."""
        kept = {}
        for key, x in row.values.items():
            known = canonical(key) or ""
            if known.startswith("corr/") or known == "flow/cond_gain_cos":
                kept[key] = x
            elif known == "flow/nmse" and t is not None:
                kept[f"flow/nmse_t{tenth(t)}"] = x
        self.left += [Row(None, None, kept)] * bool(kept)
        return bool(kept) and t is not None

    def _step(self, row: Row, values: list[float | None], context: str) -> None:
        if None in values:
            self.torn += 1
            return
        count = len(self.runs[-1][1]) if self.runs else 0
        at = (
            row.step
            if row.step is not None
            else next((x for k, x in row.values.items() if k in ("i", "k", "n")), count)
        )
        before = self.runs[-1][1][-1][-1] if count else -1
        if not self.runs or (at is not None and at <= before):
            self.runs.append((context.split("|")[0].strip()[:60], []))
        self.runs[-1][1].append((*values, count if at is None else at))

    def _shot(self, by: dict) -> bool:
        """Take MSE(z_end, x1) and MSE(x0, x1)."""
        taken = False
        for name, x in by.values():
            end = re.match(r"r?mse_(z_?end|[xz]_?N|x_?end|z_?hat|[xz]1_?hat)", name, re.I)
            if x is not None and end and "n" not in by:
                self.shots["end"], taken = x if name.lower().startswith("mse") else x * x, True
            elif x is not None and re.match(r"r?mse_[xz]_?0_[xz]_?1", name, re.I):
                self.shots["start"], taken = x if name.lower().startswith("mse") else x * x, "n" not in by
        return taken

    def _count(self, row: Row | None, by: dict, line: str, where: str) -> bool:
        """Take errors by the number of steps, of the exact field or of the learned one."""
        kind = "teacher" if _TEACHER.search(where) else "shoot" if _SHOOT.search(where) else ""
        found, compared = [], False
        if row and row.step is not None and kind and re.search(r"\bsteps\s*[=:]", line):  # those of the solver
            by = by | {"n": ("steps", row.step)}
        kind = kind or self.kind
        if "n" in by and whole(by["n"][1]):
            errors = {
                k: x
                for k, x in row.values.items()
                if re.search(r"m?se|err|rms|误差|^euler$|^heun$", k, re.I) and x is not None
            }
            errors = {k: x for k, x in errors.items() if not re.match(r"r?mse_[xz]_?0_[xz]_?1", k, re.I)}
            if not errors and kind and not line:  # the columns of a table whose title names them
                known = {by["n"][0], *(k for k in row.values if canonical(k) is not None or role(k) != k)}
                errors = {k: x for k, x in row.values.items() if k not in known and x is not None}
            gain = next((x for k, x in row.values.items() if k.lower() in ("gain", "fm_gain")), None)
            if gain not in (None, 1.0):
                return True  # with a gain, which is another measurement
            half = {k: x for k, x in errors.items() if _HALF.search(k)}
            full = {k: x for k, x in errors.items() if not _FULL.search(k)}
            compared = len(errors) > 1  # columns of several formats, of which the lowest was taken
            if errors:
                key, error = next(iter((half or full or errors).items()))
                rmse = "rms" in key.lower() or (
                    "rmse" in where.lower() and "mse" not in key.lower().replace("rmse", "")
                )
                kind = "teacher" if _TEACHER.search(key) else kind
                found.append((whole(by["n"][1]), error * error if rmse and kind == "shoot" else error))
                if start := next(
                    (x for k, x in row.values.items() if re.search(r"baseline|start|z0|x0", k, re.I) and x), None
                ):
                    self.shots.setdefault("start", start * start if rmse else start)
        if not found:
            counted = re.sub(r"(?<![\w.])(\d+)\s*(?:euler |heun )?(?:steps|步)(?![^\W\d_])", r"N=\1", line)
            found = [(int(n), float(x or y)) for n, x, y in _BYCOUNT.findall(counted)]
            if found and "rmse" in where.lower():
                found = [(n, x * x if kind == "shoot" else x) for n, x in found]
        full = kind == "teacher" and not compared and bool(_FULL.search(where)) and not _HALF.search(where)
        if not found or not kind or (full and not self.full and self.errors.get(kind)):
            return bool(found) and kind != ""
        if self.full and not full and kind == "teacher":  # half precision decides
            self.errors.pop(kind, None)
        self.full = full if kind == "teacher" else self.full
        self.kind = kind
        for n, error in found:
            self.errors.setdefault(kind, {})[n] = error
        return True

    @property
    def traces(self) -> list[SamplingTrace]:
        runs = [(label, *zip(*rows)) for label, rows in self.runs if len(rows) > 1]
        return [SamplingTrace(x, v, dt, label, whole=at[1] - at[0] <= 1) for label, x, v, dt, at in runs]

    def measured(self) -> dict[str, dict]:
        """Return the numbers for the rules that judge what checks measure."""
        out = {}
        if self.fm:
            t = sorted(self.fm)
            out["one_step"] = {"t": t, "cos": [self.fm[k][0] for k in t], "ratio": [self.fm[k][1] for k in t]}
            if None in out["one_step"]["ratio"]:
                out["one_step"]["ratio"] = [1.0 if r is None else r for r in out["one_step"]["ratio"]]
        for kind in ("cos", "loss"):
            own, other = (self.sides.get((kind, side), {}) for side in ("own", "shuffled"))
            if common := own.keys() & other.keys():
                a, b = (sum(x[t] for t in common) / len(common) for x in (own, other))
                found = {"flow/cond_gain_cos": a - b, "printed": True} if kind == "cos" else {"own": a, "shuffled": b}
                out["condition_use"] = out.get("condition_use", {}) | found
        sides = {pair: {p.strip() for p in pair.split(" | ")} for pair in self.texts}
        sure = self.means or set(self.texts)  # samples are meaningless if means are known
        same = [x for pair, xs in self.texts.items() for x in xs if pair in sure and len(sides[pair]) == 1]
        others = {pair: xs[-1] for pair, xs in self.texts.items() if pair in sure and len(sides[pair]) == 2}
        if others:
            control = sum(same) / len(same) if same else None
            out["text_path"] = {"cosines": others, "same": control, "sampled": not self.means}
        if len(errors := self.errors.get("teacher", {})) > 1:
            out["teacher_euler"] = {"steps": sorted(errors), "error": [errors[n] for n in sorted(errors)]}
        shots = self.errors.get("shoot", {})
        if shots or "end" in self.shots:
            steps = sorted(shots)
            error = [shots[n] for n in steps] or [self.shots["end"]]
            out["shooting"] = {"error": error, "start": self.shots.get("start")}
            out["shooting"] |= {"steps": steps} if steps else {}
            if len(steps) > 1:
                out["endpoint"] = {"rmse": {"euler": {n: shots[n] ** 0.5 for n in steps}}}
                out["endpoint"]["start"] = (self.shots.get("start") or 2.0) ** 0.5
        return out
