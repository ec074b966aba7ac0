"""The lines that the diary's debugging code prints, found in any text, and the verdicts on their figures."""

import re
from collections.abc import Iterator

from fmpipe.diagnose.checks.autoencoder import judge_vae_round_trip
from fmpipe.diagnose.checks.data import judge_text_path
from fmpipe.diagnose.checks.flow import judge_one_step
from fmpipe.diagnose.checks.sampling import judge_shooting, judge_teacher_euler
from fmpipe.diagnose.verdict import Overrides, Verdict

_N = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)"
_LINES = {
    "latent": rf"range\s*\[{_N},\s*{_N}\],\s*mean\s*{_N},\s*var\s*{_N}",
    "psnr": rf"PSNR\s*=\s*{_N}",
    "text": rf"\[text\]\s*cos\((.+?),\s*(.+?)\)\s*=\s*{_N}",
    "fm": rf"\[fm\]\s*t={_N}\s+cos\([^)]*\)\s*=\s*{_N}\s+\|\|pred\|\|/\|\|tgt\|\|\s*=\s*{_N}",
    "start": rf"\[shoot\]\s*MSE\(x0, ?x1\)\s*=\s*{_N}",
    "shoot": rf"\[shoot\]\s*(?:(?:N|steps)\s*=\s*(\d+)\s*)?MSE\((?!x0)[^)]*\)\s*=\s*{_N}",
    "teacher": rf"(?<!\[shoot\] )\bN\s*=\s*(\d+)\b\s*(?:(?:→|->|:)\s*|(?=MSE))(?:MSE(?:\([^)]*\))?\s*[=:]\s*)?{_N}",
}


_TEACHER = rf"(?:bf16|bfloat16)\W+N\W+(\d+)\W+\w*mse\W+{_N}"  # dtype: bf16 N: 5 teacher_mse: 4.7e-05


def figures(text: str) -> dict[str, list[tuple]]:
    """The numbers of every such line, by kind: ``latent psnr text fm shoot teacher``; Markdown's marks do not count.

    ``[text] cos(a cat, a car) = 0.098``, ``[fm] t=0.10  cos(v_pred, v_tgt)=0.050  ||pred||/||tgt||=0.287``,
    ``[shoot] MSE(z_end, x1) = 4.531``, ``[teacher-euler] N=100 MSE=1.51e-02`` or ``N=100 → 1.51e-02``, ``PSNR=29.08``,
    ``range [-4.500, 5.562], mean -0.014, var 1.414``.
    """
    text = re.sub(r"[*`]", "", text)
    found = {kind: [m.groups() for m in re.finditer(pattern, text)] for kind, pattern in _LINES.items()}
    for kind, row in _tabled(text):
        found[kind].append(row)
    found["teacher"] += re.findall(_TEACHER, text)
    return {kind: [tuple(map(_number, groups)) for groups in rows] for kind, rows in found.items() if rows}


def _tabled(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The rows of Markdown tables of t, cos and ratio, or of N and an MSE (of several, that of a bf16 state)."""
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = [cell.lower() for cell in cells]
        elif len(cells) == len(header) and all(re.fullmatch(_N, cell) for cell in cells):
            if header[0] == "t" and {"cos", "ratio"} <= set(header):
                yield "fm", (cells[0], cells[header.index("cos")], cells[header.index("ratio")])
            elif header[0] in ("n", "steps") and any("mse" in name for name in header):
                named = [k for k, name in enumerate(header) if "mse" in name]
                at = next((k for k in named if "bf16" in header[k] or "bfloat16" in header[k]), named[0])
                yield "teacher", (cells[0], cells[at])


def _number(text: str | None) -> float | str | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text  # a prompt


def verdicts(text: str, *, overrides: Overrides = None) -> list[Verdict]:
    """The verdicts on the figures in a text; of one printed twice the last counts. ValueError if there are none."""
    found, out = figures(text), []
    if "psnr" in found:
        names = ("low", "high", "mean", "var")
        latent = dict(zip(names, found["latent"][-1], strict=True)) if "latent" in found else {}
        out.append(judge_vae_round_trip(found["psnr"][-1][0], **latent, overrides=overrides))
    if "text" in found:
        out.append(judge_text_path({(str(a), str(b)): cos for a, b, cos in found["text"]}, overrides=overrides))
    if "fm" in found:
        rows = sorted({t: (t, cos, ratio) for t, cos, ratio in found["fm"]}.values())
        out.append(judge_one_step(*zip(*rows, strict=True), overrides=overrides))
    if "shoot" in found:
        steps = {int(n): error for n, error in found["shoot"] if n is not None}
        start = found["start"][-1][0] if "start" in found else None
        out.append(judge_shooting(steps or found["shoot"][-1][1], start, overrides=overrides))
    errors = {int(n): error for n, error in found.get("teacher", ())}
    if len(errors) > 1:
        out.append(judge_teacher_euler(list(errors), list(errors.values()), overrides=overrides))
    if not out:
        raise ValueError(
            "no figure found; such lines are read: '[fm] t=0.10  cos(v_pred, v_tgt)=0.050  ||pred||/||tgt||=0.287', "
            "'[text] cos(a, b) = 0.1', '[shoot] MSE(z_end, x1) = 4.5', '[teacher-euler] N=100 MSE=1.5e-2', 'PSNR=29.1'"
        )
    return out
