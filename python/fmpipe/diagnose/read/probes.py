"""Probes of debugging code in a text: sampling traces, one-step alignment by t, errors by number of steps, cosines."""

import re

from fmpipe.diagnose.figures import SamplingTrace
from fmpipe.diagnose.read.names import canonical
from fmpipe.diagnose.read.prose import NAMES, N
from fmpipe.diagnose.read.rows import Row, whole

_TEXT = re.compile(
    rf"\b(\w*cos\w*)\s*[(\[]\s*(['\"“]?)([^,()\[\]]+?)\2?[”]?\s*(?:,|\||vs\.?)\s*['\"“]?([^()\[\]]+?)['\"”]?\s*[)\]]\s*(?:=|:|≈|->|→)?\s*{N}",
    re.I,
)
_BYCOUNT = re.compile(
    rf"\b(?:N|K|nfe|steps)\s*[=:]?\s*(\d+)\s*(?:steps)?\s*(?:(?:→|->|=>|:|\|)\s*(?:\w*m?se\w*\s*[=:]?\s*)?{N}|\s{N}\s*$)",
    re.I,
)
COUNT = ("n", "k", "nfe", "num_steps", "n_steps", "nsteps", "steps", "num_inference_steps", "步数", "solver_steps")
_TEACHER = re.compile(r"teacher|exact[ _-]field|ground.?truth.field|Dt_psi|教师|oracle|analytic", re.I)
_SHOOT = re.compile(r"shoot|shot|endpoint|endpt|端点|射击|打靶|rollout|free.?integration|learn(?:ed|t).field", re.I)
_HALF = re.compile(r"bf16|bfloat16|fp16|half", re.I)
_FULL = re.compile(r"fp32|float32|fp64|float64", re.I)


def role(key: str) -> str:
    """Return what a key stands for in a probe: t, n (number of steps), x, v, dt, cos, ratio; or the key itself."""
    low = re.sub(r"\s*步$", "", key.lower().strip())
    if low in ("t", "time_t", "τ", "tau", "time"):
        return "t"
    if low in COUNT:
        return "n"
    if low in ("dt", "h", "δt", "delta_t", "step_size", "dtau", "dτ"):
        return "dt"
    if re.fullmatch(r"(?:mean_?)?(?:abs_?x|x_?abs|\|x\||absx|x_mean_abs|xabs|mean_abs_x|x_absmean|x|state)", low):
        return "x"
    if re.fullmatch(r"(?:mean_?)?(?:abs_?v|v_?abs|\|v\||absv|v_mean_abs|vabs|mean_abs_v|v_absmean|v|velocity)", low):
        return "v"
    found = canonical(key)
    return {"flow/cos": "cos", "flow/speed_ratio": "ratio"}.get(found, key)


class Probes:
    """Rows that are not those of a training: sampling traces, one-step alignment by t, errors by number of steps."""

    def __init__(self):
        self.runs: list[tuple[str, list[tuple[float, ...]]]] = []
        self.fm: dict[float, tuple[float, float | None]] = {}
        self.texts: dict[str, list[float]] = {}
        self.means: set[str] = set()
        self.torn = 0
        self.errors: dict[str, dict[int, float]] = {}
        self.kind = ""  # of the errors before, for lines that do not say
        self.shots: dict[str, float] = {}

    def take(self, row: Row | None, line: str, context: str) -> bool:
        """Take a row, or what a line says without being one; False if it belongs to a training."""
        where = f"{context} {line}"
        line = re.sub(r"\b(mu|mean|z0?)[(\[]([^()\[\]]*)[)\]]", r"\1_\2", line)
        if pairs := [p for p in _TEXT.findall(line) if not re.fullmatch(NAMES, p[2].strip(), re.I)]:
            for call, _, a, b, cos in pairs:
                if "{" not in a + b:
                    self.texts.setdefault(" | ".join((a.strip(" '\""), b.strip(" '\""))), []).append(float(cos))
                    if re.search(r"mean|mu\b|mu_|均值", f"{a} {b} {call}", re.I) or (
                        not re.match(r"z0?_", a) and re.search(r"mean|mu\b|mu_|均值", where, re.I)
                    ):
                        self.means.add(" | ".join((a.strip(" '\""), b.strip(" '\""))))
            return True
        if "{" in line and re.search(r"\{[^}]*:\.\d+[fge]\}", line):
            return True  # the code that prints such lines
        by = {role(key): (key, x) for key, x in row.values.items()} if row else {}
        if {"x", "v", "dt"} <= by.keys():
            self._step(row, [by[k][1] for k in ("x", "v", "dt")], context)
            return True
        if "t" in by and "cos" in by and None not in (by["t"][1], by["cos"][1]) and 0 <= by["t"][1] <= 1:
            self.fm[by["t"][1]] = (by["cos"][1], by["ratio"][1] if "ratio" in by else None)
            return True
        return self._shot(by) or self._count(row, by, line, where)

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
            end = re.match(r"r?mse_(z_?end|z_?N|x_?end|z_?hat|[xz]1_?hat)", name, re.I)
            if x is not None and end and "n" not in by:
                self.shots["end"], taken = x if name.lower().startswith("mse") else x * x, True
            elif x is not None and re.match(r"mse_[xz]_?0_[xz]_?1", name, re.I):
                self.shots["start"], taken = x, "n" not in by
        return taken

    def _count(self, row: Row | None, by: dict, line: str, where: str) -> bool:
        """Take errors by the number of steps, of the exact field or of the learned one."""
        kind = "teacher" if _TEACHER.search(where) else "shoot" if _SHOOT.search(where) else self.kind
        found, compared = [], False
        if "n" in by and whole(by["n"][1]):
            errors = {
                k: x
                for k, x in row.values.items()
                if re.search(r"m?se|err|error|误差|^euler$|^heun$", k, re.I) and x is not None
            }
            errors = {k: x for k, x in errors.items() if not re.match(r"mse_[xz]_?0_[xz]_?1", k, re.I)}
            gain = next((x for k, x in row.values.items() if k.lower() in ("gain", "fm_gain")), None)
            if gain not in (None, 1.0):
                return True  # with a gain, which is another measurement
            half = {k: x for k, x in errors.items() if _HALF.search(k)}
            full = {k: x for k, x in errors.items() if not _FULL.search(k)}
            compared = len(errors) > 1  # columns of several formats, of which the lowest was taken
            if errors:
                key, error = next(iter((half or full or errors).items()))
                rmse = "rmse" in key.lower() or (
                    "rmse" in where.lower() and "mse" not in key.lower().replace("rmse", "")
                )
                kind = "teacher" if _TEACHER.search(key) else kind
                found.append((whole(by["n"][1]), error * error if rmse and kind == "shoot" else error))
                if start := next(
                    (x for k, x in row.values.items() if re.search(r"baseline|start|z0|x0", k, re.I) and x), None
                ):
                    self.shots.setdefault("start", start * start if rmse else start)
        if not found:
            found = [(int(n), float(x or y)) for n, x, y in _BYCOUNT.findall(line)]
            if found and "rmse" in where.lower():
                found = [(n, x * x if kind == "shoot" else x) for n, x in found]
        full_only = not compared and _FULL.search(where) and not _HALF.search(where)
        if not found or not kind or (kind == "teacher" and full_only and self.errors.get(kind)):
            return bool(found) and kind != ""
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
        sides = {pair: {p.strip() for p in pair.split(" | ")} for pair in self.texts}
        sure = self.means or set(self.texts)  # beside means, samples say nothing
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
