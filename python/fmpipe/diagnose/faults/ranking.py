"""One list of what is wrong, from the verdicts of checks and hypotheses: root causes, then what follows of them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fmpipe.diagnose.faults.planting import Evidence, verdicts
from fmpipe.diagnose.report import Hypothesis, judge, read
from fmpipe.diagnose.verdict import THRESHOLDS, Verdict

_FIELD = "E G B scale_contract latent_scale latent_is_sample target_definition gradient_path/leak pairing text_path"
# What would explain a check that fails, or a finding of a hypothesis: checks by name, hypotheses by letter. Among
# themselves hypotheses say it (Hypothesis.causes). The order is that in which several root causes are named.
CAUSES = {
    "vae_eval": "",
    "image_range": "",
    "scale_contract": "",
    "latent_scale": "scale_contract latent_is_sample E G I",
    "latent_is_sample": "scale_contract",
    "vae_round_trip": "scale_contract latent_is_sample image_range",
    "text_path": "E G",
    "pairing": "text_path E G I scale_contract latent_is_sample target_definition B gradient_shares",
    "target_definition": "text_path E G scale_contract latent_scale latent_is_sample I",
    "gradient_path/leak": "E",
    "gradient_path/clamp": "I E gradient_path/leak",
    "dino": "E",
    "gradient_shares": "dino E G",
    "loss_magnitudes": "gradient_shares E G I gradient_path/leak scale_contract latent_is_sample leak M",
    "update_ratios": "E G",
    "overflow": "E",
    "teacher_euler": "E",
    "leak": "scale_contract latent_is_sample I gradient_path/leak E G one_step",
    "kl": "gradient_path/leak text_path I leak M E G gradient_shares",
    "scale": f"{_FIELD} I kl leak M",
    "endpoint": f"{_FIELD} I scale",
    "one_step": f"{_FIELD} I scale endpoint condition_use H gradient_shares",
    "condition_use": f"{_FIELD} I leak M scale gradient_shares",
    "shooting": f"{_FIELD} I scale endpoint one_step condition_use H leak M gradient_shares",
    "probes": f"{_FIELD} I scale endpoint one_step shooting vae_round_trip",
    # findings of hypotheses
    "gradient/share": "gradient_shares",
    "gradient/teacher": "dino",
    "condition/gain": "text_path pairing target_definition gradient_shares",
    "kl/formula": "gradient_path/leak",
    "kl/std": "gradient_path/leak",
    "kl/clamp": "gradient_path/leak",
    "kl/outside": "gradient_path/leak",
    "kl/mu": "gradient_path/leak",
    "scale/latents": "scale_contract latent_is_sample",
    "scale/norms": "scale_contract latent_is_sample gradient_path/leak",
    "input/std": "scale_contract latent_is_sample",
    "input/mean": "scale_contract latent_is_sample",
    "trace/sum": "teacher_euler",
    "trace/rounded": "teacher_euler",
    "trace/far": "endpoint target_definition one_step",
    "inference/steps": "target_definition endpoint text_path pairing gradient_path/leak",
    "inference/endpoint": "target_definition endpoint text_path pairing gradient_path/leak gradient_shares",
    "inference/speed": "target_definition one_step gradient_path/leak",
    "leak/cos": "scale_contract latent_is_sample gradient_path/leak text_path target_definition",
    "output/std": "target_definition scale_contract latent_is_sample gradient_path/leak",
    "loss/drop": "gradient_path/leak scale_contract latent_is_sample",
    "forward/std": "scale_contract latent_is_sample gradient_path/leak",
    "forward/reach": "scale_contract latent_is_sample gradient_path/leak",
}


class Suspect(NamedTuple):
    """name: a check's, or a hypothesis' letter. sure: it fails or is CONFIRMED; else it warns. said: its evidence."""

    name: str
    sure: bool
    said: str
    causes: tuple[str, ...] = ()


def rank(looked: Iterable[Verdict], hypotheses: Sequence[Hypothesis] = ()) -> list[Suspect]:
    """What fired: root causes first, then their consequences; in both failures before warnings, in the order of CAUSES.

    A check is a consequence of what its row of CAUSES names, a hypothesis of its own ``causes``, or of checks that
    explain all of its findings; only what fired for sure explains anything. If all explain each other the first is the
    root.
    """
    raised = [v for v in looked if v.status in ("fail", "warn")]
    confirmed = [h for h in hypotheses if h]
    sure = {_part(v) for v in raised if v.status == "fail"} | {h.letter for h in confirmed}
    order, letters = list(CAUSES), {h.name: h.letter for h in hypotheses}
    raised.sort(key=lambda v: order.index(_part(v)) if _part(v) in order else len(order))
    out = [Suspect(v.name, v.status == "fail", v.meaning, _explained(sure, _part(v))) for v in raised]
    for h in confirmed:
        bad = [said for said, ok in zip(h.evidence, h.marks, strict=True) if not ok]
        by_checks = [_explained(sure, said.key) for said in bad]
        causes = [letters[name] for name in h.causes]
        if all(by_checks):
            causes += dict.fromkeys(name for names in by_checks for name in names)
        out.append(Suspect(h.letter, True, " ".join(bad), tuple(causes)))
    if out and all(s.causes for s in out):
        out[0] = out[0]._replace(causes=())
    return sorted(out, key=lambda s: (bool(s.causes), not s.sure))


def _part(verdict: Verdict) -> str:
    """The check's name; of gradient_path whether a gradient leaks or logvar is only at its clamp."""
    if verdict.name != "gradient_path":
        return verdict.name
    gradients = [x for name, x in verdict.values.items() if name.startswith("d_")]
    leaks = any(not x <= THRESHOLDS["gradient_path/leak"] for x in gradients)
    return "gradient_path/leak" if leaks else "gradient_path/clamp"


def _explained(sure: set[str], name: str) -> tuple[str, ...]:
    return tuple(cause for cause in CAUSES.get(name, "").split() if cause in sure and cause != name)


def suspects(evidence: Evidence) -> list[Suspect]:
    """:func:`rank` of everything that looks at the evidence: its checks, and the report on its folder."""
    looked = verdicts(evidence)  # first: it leaves the sampling trace that the report reads
    return rank(looked, judge(read(evidence.folder)))
