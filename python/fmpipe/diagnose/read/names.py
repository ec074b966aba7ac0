"""Canonical names of metrics, and the names that other trackers and training scripts give them.

A name is split into words. Words without meaning (``train``, ``avg``) are dropped, and the others are looked up in
:data:`_COMPOSED`, a table of words that a name must and may have. Losses, gradients and weights are put together from
their words: ``optim/grad_norm_sem`` has the words grad, norm and sem, a gradient of the semantic loss.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

# Names that are canonical already.
CANONICAL = re.compile(
    r"(?:val/)?(?:loss/(?:total|flow|kl|dino|contrastive|norm|diffusion|mse|rec|repa|disc|shuffled)|(?:grad|share|w|scale|ent|scaler|run|const|stop|corr|shoot)/[\w*]+|step/\w+_update_ratio|lr|epoch"
    r"|(?:mu|logvar|std|z_init)/\w+|flow/(?:cos|nmse|speed_ratio|cond_gain_cos)(?:_t\d)?|flow/endpt_rmse@\d+"
    r"|ema/(?:decay|(?:loss|flow)_\w+)|vae/\w+|stat/\w+/\w+|text/\w+|fm_gain|nearest|quality/\w+)"
)
STEPS = (
    "step", "global_step", "_step", "iter", "iteration", "it", "steps", "train_step", "trainer/global_step", "n_iter",
    "current_step", "optimizer_step", "train/global_step", "num_updates", "progress/kimg", "kimg", "ckpt", "checkpoint",
    "update", "updates", "progress/tick", "global step", "iters", "iterations", "i", "samples_seen", "global_iter",
    "cur_iter", "training step", "opt_step", "n_iters", "global_iteration", "schritt", "étape", "paso", "步", "步数",
    "迭代", "ステップ", "шаг", "upd", "updatecount", "update_count", "itercount", "iter_count", "n_updates", "t_idx",
    "updates_total", "num_steps_trained", "nstep", "istep", "global_iters", "current_steps", "cur_step", "train_steps",
    "training_step", "current_iter", "current_iteration",
)  # fmt: skip
EPOCHS = ("epoch", "epochs", "ep", "epoche", "轮", "轮次")
HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "heldout", "dev", "vl", "va", "holdout", "vali",
            "ho"}  # fmt: skip
IGNORED = {
    "train", "training", "trn", "tr", "trainer", "avg", "avr", "average", "mean", "running", "smooth", "smoothed",
    "batch", "ret", "metrics", "current", "step", "epoch", "iter", "global", "weighted", "raw", "model", "unet", "log",
    "scalars", "gathered", "reduced", "median", "optim", "optimizer", "per", "last", "net", "dit", "moving", "window",
    "local", "ma", "the", "of", "value", "metric", "monitor", "stats", "diag", "debug", "dbg", "probe", "online", "100",
}  # fmt: skip
# Costs and settings that logs repeat: known, and of no use to a diagnosis.
COSTS = re.compile(
    r"(?:^|_)(?:eta|time|runtime|timestamp|wall|elapsed|sec|secs|seconds|memory|mem|gpu|cuda|gb|mfu|throughput|img|imgs"
    r"|images|samples|tokens|tok|fps|it_s|s_it|speed|steps_sec|sec_iter|res|resolution|bs|batch_size|num_examples|cpu"
    r"|system|flops|data|seen|perf|ms|rank|seed|world_size|clip|max_steps|total_steps|best|version|params|port|workers"
    r"|num_processes|accumulation|warmup|beta1|beta2|weight_decay|wd|momentum|node|job|pid|hours|minutes|days|size"
    r"|param_norm|weight_norm|count|gb_s|total_eta|epoch_eta|hysteresis|clipped|clip_frac|bucket|guidance|cfg)(?:_|$)"
)
_WORDS = {  # the same in other languages
    "损失": "loss", "余弦": "cos", "速度比": "ratio", "幅值比": "ratio", "学习率": "lr", "梯度范数": "grad_norm",
    "梯度": "grad_", "验证": "val_", "训练": "train_", "均值": "_mean_", "标准差": "std_", "方差": "var_",
    "绝对值": "_abs_", "绝对": "_abs_", "平均": "mean_", "均方根": "_rms_",
    "总": "total_", "打乱": "shuffled_", "错配": "shuffled_", "配对": "true_", "正确": "true_",
    "流": "flow_", "熵": "entropy_", "教师": "teacher_", "学生": "student_", "相似度": "_sim", "重建": "recon_",
    "η": "lr", "μ": "mu", "σ": "sigma", "Δ": "d_", "目标": "target_", "语义": "sem_", "方向": "", "損失": "loss",
    "学習率": "lr", "検証": "val_", "verlust": "loss", "lernrate": "lr", "gradientennorm": "grad_norm",
    "stddev": "std", "vloss": "val_loss", "learnrate": "lr", "stepsize": "lr",
    "validierung": "val", "perte": "loss", "pérdida": "loss", "потери": "loss",
}  # fmt: skip
_LATIN = [(theirs, ours) for theirs, ours in _WORDS.items() if theirs.isascii()]
_AT = re.compile(r"(.*(?:nmse|cos|mse|loss))[_/@ ]*(?:at_?)?t[=_]?(0?\.\d+|1\.0)", re.IGNORECASE)
_PREFIX = re.compile(r"\b(val|eval|train|test)(?=(?:loss|mse|cos|nmse|psnr|kl|flow)\b)")
_BIN = re.compile(
    r"(.+?)(?:[_/]?(?:by|per)_t|_t|/t)?(?:/[\[(]?|[\[(])(0?\.\d+|0\.0|0|1)\s*(?:-|–|,|to|_)\s*(?:[01]?\.\d+|1)[\])]?"
)
_SLICE = re.compile(r"(?:flow_)?(nmse|cos|mse|loss)_?(?:at_)?(?:t|slice|bin|bucket|tbin|t_bin|t_slice|t_bucket)_?(\d)")
_ENDPOINT = re.compile(
    r"(?:flow_)?(?:endpt|endpoint|end|shoot|shooting|sample|sampling|rollout|euler|final|ode|integration)_?"
    r"(?:rmse|error|err|mse)?_?(?:at|k|n|@|steps|nfe)?_?@?_?(\d+)(?:_?steps?)?(?:_rmse)?"
    r"|(?:rmse|err|error)_?(?:at_)?(?:k|n|nfe|@)_?@?_?(\d+)"
)
_STATISTICS = {name: name for name in ("min", "max", "mean", "std", "var", "absmax", "nonfinite")} | {
    "nan": "nonfinite"
}
_STATS = {
    "x0": "x_0", "x1": "x_0", "z1": "x_0", "latent": "x_0", "latents": "x_0", "z0": "noise", "eps": "noise",
    "noise": "noise", "t": "t", "timestep": "t", "timesteps": "t", "xt": "x_t", "pixel": "pixels", "pixels": "pixels",
    "image": "pixels", "images": "pixels", "img": "pixels", "imgs": "pixels", "input": "pixels", "inputs": "pixels",
    "x": "pixels", "predictedx0": "predicted_x0", "x0pred": "predicted_x0", "pred": "v_pred", "modelpred": "v_pred",
    "modeloutput": "v_pred", "output": "v_pred", "vpred": "v_pred", "x0target": "x_0_target", "target": "target",
    "ztext": "noise", "textlatent": "noise", "imglatent": "x_0", "imagelatent": "x_0",
    "zimg": "x_0", "zimage": "x_0", "xstart": "x_0", "predxstart": "predicted_x0", "z": "z",
    "pixelvalue": "pixels", "pix": "sample", "pixelvalues": "pixels", "latentsraw": "raw", "latentraw": "raw",
}  # fmt: skip
_KINDS = {  # words of a loss, in the order in which they decide
    "shuffled": {"shuffled", "shuffle", "shuf", "dropped", "uncond", "wrong", "permuted", "mismatched", "randcap",
                 "rand", "random", "rolled", "perm", "swapped", "mismatch", "null", "empty", "unconditional", "blank"},
    "kl": {"kl", "kld", "prior"},
    "dino": {"dino", "distill", "distillation", "sem", "semantic"},
    "contrastive": {"contrastive", "clip", "itc", "nce", "infonce"},
    "disc": {"disc", "discriminator", "adv", "gan", "d", "g", "generator", "logits"},
    "repa": {"proj", "repa", "projection", "align"},
    "rec": {"rec", "recon", "reconstruction", "l1", "nll", "pixel", "pix", "percep", "lpips", "perceptual", "p"},
    "flow": {"flow", "fm", "cfm", "rf", "velocity", "vel", "v", "sit", "transport", "rectified", "matching", "pred"},
    "diffusion": {"diffusion", "diff", "eps", "epsilon", "noise", "ddpm", "simple", "denoise", "denoising", "vb", "x0",
                  "dsm", "denoiser", "sm"},
    "mse": {"mse", "l2", "rmse"},
}  # fmt: skip
_BARE = {"kl", "kld", "mse", "rmse", "dino", "fm", "cfm", "flow", "rf", "contrastive", "rec", "recon", "infonce", "vb"}
SHUFFLED = _KINDS["shuffled"]
OWN = {"true", "own", "paired", "correct", "matched", "right", "real", "cond", "conditional"}  # conditions
_BESIDE = {"z0", "text", "z", "div", "divergence"}
_EMPTY = {"obj", "sqerr", "loss", "losses", "total", "objective", "sum", "all", "l", "aeloss", "norm", "caption",
          "captions", "text",
          "cond", "true", "main", "lm", "full", "gen", "flow_loss", "value", *OWN}  # fmt: skip
_SHARE = {"share", "gshare", "gradshare", "frac", "fraction", "portion", "pct", "over"}
_GRADED = ("flow", "kl", "dino", "contrastive", "diffusion")  # losses of which g_flow is the gradient
_GRAD = {"grad", "grads", "gradient", "gradients", "gnorm", "gradnorm", "gn", "gradl2", "gradlen"}
_GRAD_EMPTY = {"norm", "norms", "l2", "2", "0", "clip", "pre", "post", "unclipped", "before", "after", "clipping",
               "params",
               "preclip", "postclip", "parameters", "inf"} | _GRAD | _EMPTY  # fmt: skip
# Spellings of one word; before it is looked up, x_0 has become x0 and v_pred vpred.
_SPELLINGS = {
    "cos": "cosine cossim cosv cosines", "v": "vel velocity u", "pred": "vpred upred vp out net output o f nn vhat",
    "target": "tgt vtgt utgt vt gt v* u* star vstar vtarget utarget vgt ref vref x1mx0 x1minusx0",
    "noise": "eps epsilon", "gain": "gap",
    "norm": "norms length len magnitude mag vnorm", "ratio": "vratio", "cond": "condition", "logvar": "lnvar lv",
    "abs": "absmean", "sigma": "sd sig std", "posterior": "post q", "prompt": "prompts", "nmse": "relerr",
    "pair": "pairs pairwise between diff off", "classes": "prototypes", "relative": "rel",
    "shoot": "shooting endpoint endpt", "scale": "scaler lossscale", "error": "err mse",
    "skipped": "overflow overflows", "sim": "similarity", "z0": "ztext", "z1": "zimg zimage", "epoch": "epochs",
}  # fmt: skip
_SPELT = {theirs: ours for ours, names in _SPELLINGS.items() for theirs in names.split()}
_PARTS = re.compile(r"(?:(?<=_)|^)([xzvu])_(0|1|t|pred|tgt|target|star|gt|text|img|image|init|hat)(?=_|$)")
_FIELD = "v pred target flow fm field sim one onestep 1step step"
# Names put together from words: of each group one must be there, and no others than these and the last column's.
_COMPOSED = [
    (ours, [set(group.split("|")) for group in groups.split()], set(f"{groups} {others}".replace("|", " ").split()))
    for ours, groups, others in (
        ("grad/total", "norm global|total|g", ""),
        ("flow/cond_gain_cos", "gain cond|text|caption|shuffle|shuf|shuffled|cos", "v flow true"),
        ("text/same", "same", "cos mu mean means prompt text of"),
        ("text/cos", "cos mu|means|pair|prompt|text|different", "mean of diag z0"),
        ("text/cos", "cos z0 mean", ""),
        ("text/cos", "different", "prompt"),
        ("corr/noise", "cos|corr noise", "v pred"),
        ("corr/score", "cos|corr score", "v pred"),
        ("corr/x0", "cos|corr x0|z0", "v pred"),
        ("corr/velocity", "corr", "v pred target"),
        ("corr/velocity", "corr x1|z1 x0|z0", "v pred"),
        ("corr/z0_z1", "cos z0 z1", ""),
        ("flow/cos", "cos v|pred x1|z1 x0|z0", ""),
        ("flow/cos", "cos", f"{_FIELD} dir ang align to with theta"),
        ("flow/cos", "align|alignment", "v"),
        ("shoot/relative", "shoot relative|nmse", "error"),
        ("flow/nmse", "nmse", _FIELD),
        ("flow/nmse", "relative|normalized error", _FIELD),
        ("flow/speed_ratio", "ratio", f"{_FIELD} norm speed over amp amplitude rms scale"),
        ("flow/speed_ratio", "speed", ""),
        ("flow/speed_ratio", "pred over target", "norm"),
        ("flow/speed_ratio", "v|p target", ""),
        ("mu/rms", "mu rms", "norm z0 posterior text"),
        ("mu/abs_mean", "mu abs", "mean z0 posterior text"),
        ("logvar/mean", "logvar", "mean avg z0 posterior"),
        ("logvar/mean", "log var", "mean avg z0 posterior"),
        ("z_init/std_per_dim_mean", "zinit sigma per dim", "mean"),
        *((f"z_init/{kind}", f"zinit {kind}", "") for kind in ("mean", "var")),
        *((f"std/{kind}", f"sigma {kind}", "z0 posterior text") for kind in ("min", "max")),
        ("std/mean", "sigma", "mean avg z z0 posterior text"),
        ("scale/z0", "norm|e|l2 z0|x0", "mean"),
        ("scale/z0", "norm text latent", ""),
        ("scale/z1", "norm|e|l2 z1|x1", "mean"),
        ("scale/z1", "norm latent", "image img"),
        ("scale/x_t", "norm|e xt", ""),
        ("scale/v*", "norm|rms|e target", "v"),
        ("scale/v*", "norm|e v", ""),
        ("scale/v", "norm pred", "v"),
        ("ent/log_classes", "lnk|logk", "h ent entropy"),
        ("ent/log_classes", "ln|log k|classes", "h ent entropy"),
        ("ent/log_classes", "max ent|entropy", ""),
        ("ent/classes", "classes", "dino num n head"),
        ("ent/classes", "dino k|dim", "out"),
        ("ent/classes", "out dim", ""),
        ("scaler/scale", "scale", "loss amp grad dynamic fp16 lg attempted"),
        ("scaler/scale", "scaling loss|grad|fp16|dynamic", ""),
        ("scaler/skipped", "skipped", "steps iters iterations updates num number of n count"),
        ("scaler/skipped", "skip steps|iters|updates", ""),
        ("vae/psnr", "psnr", "vae rec recon roundtrip db round trip vs input decode"),
        ("quality/clip_score", "clip score|sim|t", "text"),
        ("quality/clip_score", "clipscore", ""),
        ("epoch", "epoch", ""),
    )
]
_UPDATE = {"param", "upd", "update", "updates", "ratio", "dw", "w", "rel", "to", "weight", "head"}
_NO_RATIO = {"norm", "size", "num", "time", "freq", "every", "interval", "per", "count", "total", "step", "steps"}
_NORMS = {  # of |x|
    "x0": "scale/z0", "z0": "scale/z0", "x1": "scale/z1", "z1": "scale/z1", "xt": "scale/x_t", "x_t": "scale/x_t",
    "v": "scale/v*", "v*": "scale/v*", "v_tgt": "scale/v*", "u*": "scale/v*", "v_pred": "scale/v",
    "mu": "mu/abs_mean", "g": "grad/total", "grad": "grad/total",
}  # fmt: skip
_TENSOR = re.compile(r"[a-z]\*?|[uvxz]_?\w+|pred|out|target")
NEGATED = re.compile(r"[xz]_?0\s*-\s*[xz]_?1|(?<=[,(_])\s*-\s*\w+")  # x0 - x1, -score
_EXACT = {
    "p_v": "flow/speed_ratio",
    "mean_mu": "mu/abs_mean",
    "absmu": "mu/abs_mean",
    "rms": "mu/rms",
    "mean_s": "std/mean",
}


def canonical(name: str, extra: Mapping[str, str] | None = None) -> str | None:
    """Return the canonical name of a metric, "" for a cost that is of no use, None for an unknown name.

    extra: further aliases, theirs -> ours, as ``--alias`` gives them; they come first.
    """
    return extra[name] if extra and name in extra else _canonical(name)


@lru_cache(8192)
def _canonical(name: str) -> str | None:
    if CANONICAL.fullmatch(name):
        return name
    if "-" in name and NEGATED.search(name):
        return None
    if match := _BIN.fullmatch(name):  # val_nmse_by_t/0.3-0.4
        found = _canonical(match[1])
        plain = (found or "").removeprefix("val/")
        return f"{found}_t{int(float(match[2]) * 10 + 1e-6)}" if plain in ("flow/nmse", "flow/cos") else None
    if match := _AT.fullmatch(name):  # val_loss_t0.05
        found = _canonical(f"{match[1]}_t{min(9, int(float(match[2]) * 10))}")
        return found if found and "flow/" in found else None
    if re.search(r"\w[(\[]\w[\w-]*[)\]]", name):  # H(teacher), loss[ema]; or a unit, which is dropped
        found = _canonical(re.sub(r"[()\[\]]+", "_", name))
        inner = re.search(r"\w\(([\w*]+)\)", name)
        if found is not None or (inner and (_TENSOR.fullmatch(inner[1]) or inner[1].lower() in SHUFFLED)):
            return found  # rms(v) is not rms
    name = re.sub(r"\[[^\]]*\]", "", name) or name
    name = re.sub(r"^(?:data|payload|fields|body|values|scalars)/(?=.)", "", name)  # of a structured log
    if match := re.fullmatch(r"(?:E\s*|mean)?[|‖∥]+\s*([\w*]+)\s*[|‖∥]+(?:_2)?", name):  # a norm
        return _NORMS.get(match[1].lower())
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip().strip("_/")).lower()
    words = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", words)) if not words.isascii() else words
    words = re.sub(r"(?<![a-z])log_(?=sigma|std|var)", "log", _PREFIX.sub(r"\1_", words))
    for theirs, ours in _WORDS.items() if not words.isascii() else _LATIN:
        words = words.replace(theirs, ours)
    words = [word for word in re.split(r"[^0-9a-z@*]+", re.sub(r"\([^)]*\)", " ", words)) if word]
    if words and words[-1] in EPOCHS and set(words[:-1]) <= IGNORED:
        return "epoch"
    held = bool(HELD_OUT & set(words)) or "held" in words
    ema = (bool({"ema", "averaged"} & set(words)) and (held or words[-1:] != ["loss"] or len(words) != 2)) or (
        words[-1:] == ["avg"] and "raw" not in words and held
    )
    words = [word for word in words if word not in HELD_OUT and word not in ("ema", "held", "out")]
    if len(words) > 1 and words[-1] in ("step", "epoch"):  # Lightning's suffixes
        words = words[:-1]
    # As it is, then without words without meaning: "x_0/mean" needs its last word, "mean_loss" does not.
    plain = [word for word in words if word not in IGNORED]
    tries = [words, plain]
    if re.search(r"[/.: ]", name.strip()):  # groups in front, as in "optim/grad_norm"
        tries += [words[1:], words[2:], words[3:], plain[1:], plain[2:]]
    found = next((x for stem in tries if stem and (x := _found(stem, plain)) is not None), None)
    if found is None:
        found = "" if COSTS.search("_".join(words)) else None
    if not found:
        return found
    if found.startswith("quality/"):
        return found.replace("/", "/ema_") if ema else found
    return ("val/" if held or ema else "") + ("ema/" + found.replace("/", "_") if ema else found)


def _found(words: list[str], plain: list[str]) -> str | None:
    stem = "_".join(words)
    if stem in _EXACT:
        return _EXACT[stem]
    if words[-1] in _STATISTICS and (tensor := _STATS.get("".join(words[:-1]))):
        return f"stat/{tensor}/{_STATISTICS[words[-1]]}"
    spelt = [_SPELT.get(word, word) for word in _PARTS.sub(r"\1\2", stem).split("_")]
    has = set(spelt)
    for ours, groups, known in _COMPOSED:
        if has <= known and all(has & group for group in groups):
            return ours
    if match := _SLICE.fullmatch(stem):
        return f"flow/{'nmse' if match[1] in ('mse', 'loss') else match[1]}_t{match[2]}"
    if (match := _ENDPOINT.fullmatch(stem)) and re.search(r"rmse|err|mse|endpt|endpoint|shoot", stem):
        return f"flow/endpt_rmse@{match[1] or match[2]}"
    has = set(words)
    if has & {"lr", "lrs"} or {"step", "size"} <= has or {"learning", "rate"} <= has or re.fullmatch(r"lr\d?_.*", stem):
        return "lr"
    if re.fullmatch(r"(?:\w+_)?[fk]id\d*k?(?:_.*)?", stem):
        return "quality/fid"
    if has & {"upd", "update", "updates", "dw"} and has & {"ratio", "rel", "w", "weight"}:
        rest = [w for w in words if w not in _UPDATE and w not in IGNORED]
        return f"step/{'_'.join(rest) or 'all'}_head_update_ratio"
    if words[0] in ("upd", "update", "updates", "dw") and len(words) > 1 and not has & _NO_RATIO:
        return f"step/{'_'.join(words[1:])}_update_ratio".replace("_head_head", "_head")
    if has & {"amp", "scaler", "fp16", "gradscaler"} and has & {"scale", "skipped", "skips"}:
        return "scaler/scale" if "scale" in has else "scaler/skipped"
    if has & {"ent", "entropy", "h"}:
        who = next((w for w in ("teacher", "student") if w in has or w[0] in has), None)
        return f"ent/{who}" if who else None
    if words[0] == "g" and len(words) == 2 and (words[1] in ("total", "all") or _kind(words[1:]) in _GRADED):
        words = ["grad", words[1]]
    if has & _SHARE and (kind := _kind(words)) and has & (_GRAD | {"share", "gshare", "gradshare"}):
        return f"share/{kind}"
    if has & _GRAD or words[0] == "grad":
        rest = [w for w in words if w not in _GRAD_EMPTY and w not in IGNORED]
        return "grad/total" if not rest else f"grad/{_kind(rest) or '_'.join(rest)}"
    if has & {"w", "weight", "lambda", "coef", "coeff", "beta"} and (kind := _kind(words)) and len(words) <= 3:
        return f"w/{kind}"
    if has & {"loss", "losses", "objective", "obj", "sqerr"} or (words[0] == "l" and len(words) <= 2):
        rest = [w for w in words if w not in _EMPTY and w not in IGNORED]
        if any(w.isdigit() for w in rest) or len(rest) > 3:
            return None
        if {"norm", "align"} <= has or {"norm", "alignment"} <= has:
            return "loss/norm"
        return "loss/total" if not rest else f"loss/{_kind(rest) or '_'.join(rest)}"
    if (
        has & _BARE
        and (kind := _kind(words))
        and all(any(w in s for s in _KINDS.values()) or w in _BESIDE or w in _EMPTY for w in words)
    ):
        return f"loss/{kind}"
    if words[0] in _STATISTICS and len(words) > 1 and (tensor := _STATS.get("".join(words[1:]))):
        return f"stat/{tensor}/{_STATISTICS[words[0]]}"  # std(z1)
    return "loss/total" if stem in ("total", "objective", "aeloss") else None


def _kind(words: list[str]) -> str | None:
    return next((kind for kind, own in _KINDS.items() if own & set(words)), None)
