"""Canonical names of metrics, and the names that other trackers and training scripts give them."""

import re
from collections.abc import Mapping

# Names that are canonical already.
CANONICAL = re.compile(
    r"(?:val/)?(?:(?:loss|grad|w|scale|ent|scaler|ema|run|const|stop|corr)/[\w*]+|step/\w+_update_ratio|lr|epoch"
    r"|(?:mu|logvar|std|z_init)/\w+|flow/(?:cos|nmse|speed_ratio|cond_gain_cos)(?:_t\d)?|flow/endpt_rmse@\d+"
    r"|vae/\w+|stat/\w+/\w+|text/\w+|fm_gain|nearest)"
)
STEPS = (
    "step", "global_step", "_step", "iter", "iteration", "it", "steps", "train_step", "trainer/global_step", "n_iter",
    "current_step", "optimizer_step", "train/global_step", "num_updates", "progress/kimg", "kimg", "ckpt", "checkpoint",
    "update", "progress/tick",
)  # fmt: skip
HELD_OUT = {"val", "valid", "validation", "eval", "test", "heldout", "dev", "vl"}
IGNORED_PARTS = {
    "train",
    "training",
    "trn",
    "tr",
    "trainer",
    "avg",
    "mean",
    "running",
    "smooth",
    "batch",
    "ret",
    "metrics",
}
# Costs and settings that logs repeat: known, and of no use to a diagnosis.
COSTS = re.compile(
    r"(?:^|_)(?:eta|time|runtime|timestamp|wall|elapsed|sec|secs|seconds|memory|mem|gpu|cuda|gb|mfu|throughput|img|imgs"
    r"|images|samples|tokens|tok|fps|it_s|s_it|speed|steps_sec|sec_iter|res|resolution|bs|batch_size|num_examples|cpu"
    r"|system|flops|data|seen|perf|ms|rank|seed|world_size|clip|max_steps|total_steps|best|version|params)(?:_|$)"
)

_SLICE = re.compile(r"(?:flow_)?(nmse|cos|mse|loss)_?(?:t|slice|bin|bucket)_?(\d)")
_ENDPOINT = re.compile(r"(?:flow_)?(?:endpt|endpoint|end|shoot|sample)_?(?:rmse|error|err|mse)_?(?:at|k|n|@)?_?(\d+)")
_STAT = re.compile(
    r"(x_?0|x_?1|z_?0|z_?1|t|timesteps?|noise|eps|x_?t|pixels?|images?|imgs?|input|latents?|predicted_x_?0|x_?0_pred|pred"
    r"|v_pred|x_?0_target)_(min|max|mean|std|var|absmax|nonfinite)"
)
_STATS = {
    "x0": "x_0", "x1": "x_0", "z1": "x_0", "latent": "x_0", "latents": "x_0", "z0": "noise", "eps": "noise",
    "noise": "noise", "t": "t", "timestep": "t", "timesteps": "t", "xt": "x_t", "pixel": "pixels", "pixels": "pixels",
    "image": "pixels", "images": "pixels", "img": "pixels", "imgs": "pixels", "input": "pixels",
    "predictedx0": "predicted_x0", "x0pred": "predicted_x0",
    "pred": "predicted_x0", "vpred": "v_pred", "x0target": "x_0_target",
}  # fmt: skip
_LOSSES = {
    "total": ("loss", "total", "total_loss", "loss_total", "objective", "step_loss", "l_total", "loss_sum", "aeloss"),
    "flow": ("flow", "fm", "cfm", "rf", "velocity", "v", "flow_matching", "fm_mse", "flow_mse", "v_mse", "transport"),
    "mse": ("mse", "mse_error"),
    "diffusion": ("diffusion", "diff", "simple", "denoise", "denoising", "eps", "noise", "ddpm", "vb", "x0"),
    "kl": ("kl", "kld", "kl_div", "kl_divergence"),
    "dino": ("dino", "distill", "distillation"),
    "contrastive": ("contrastive", "clip", "itc", "nce", "infonce", "align_text"),
    "norm": ("norm_align", "norm_alignment"),
    "rec": ("rec", "recon", "reconstruction", "l1", "nll"),
    "repa": ("proj", "repa", "projection"),
    "disc": ("disc", "discriminator", "adv", "gan"),
}  # fmt: skip
_OTHERS = {
    "grad/total": ("grad_norm", "gnorm", "gradient_norm", "global_norm", "global_grad_norm", "grad_total", "total_norm",
                   "total_grad_norm", "grad_norm_total", "grad", "grads_norm", "gradnorm", "grad_l2",
                   "grad_2_0_norm_total", "gnorm_total", "grads_total"),
    "flow/cos": ("cos", "cos_sim", "v_cos", "flow_cos", "cosine", "cos_v", "cosine_sim", "cosine_similarity",
                 "cos_similarity", "velocity_cos", "v_cos_sim", "fm_cos", "cos_pred_tgt", "align_cos",
                 "cos_vpred_vtgt"),
    "flow/nmse": ("nmse", "flow_nmse", "v_nmse", "fm_nmse", "rel_mse", "normalized_mse"),
    "flow/speed_ratio": ("norm_ratio", "speed_ratio", "v_ratio", "pred_tgt_ratio", "ratio", "v_norm_ratio",
                         "flow_speed_ratio", "vnorm_ratio", "pred_norm_ratio", "speed"),
    "flow/cond_gain_cos": ("cond_gain_cos", "cond_gain", "flow_cond_gain_cos", "condition_gain", "cos_gain"),
    "mu/abs_mean": ("mu_abs_mean", "mu_abs", "abs_mu", "mu_absmean"),
    "mu/rms": ("mu_rms", "mu_norm_rms"),
    "logvar/mean": ("logvar_mean", "logvar", "log_var", "log_var_mean", "lv_mean"),
    "std/mean": ("std_mean", "sigma_mean", "sigma", "posterior_std", "z_std_mean", "std", "q_std", "post_std"),
    "std/min": ("std_min", "sigma_min"),
    "std/max": ("std_max", "sigma_max"),
    "z_init/mean": ("z_init_mean", "zinit_mean"),
    "z_init/var": ("z_init_var", "zinit_var"),
    "z_init/std_per_dim_mean": ("z_init_std_per_dim_mean",),
    "scale/z0": ("z0_norm", "norm_z0", "z_0_norm", "e_z0", "z0_l2", "text_latent_norm"),
    "scale/z1": ("z1_norm", "norm_z1", "z_1_norm", "e_z1", "z1_l2", "image_latent_norm", "latent_norm"),
    "scale/x_t": ("xt_norm", "x_t_norm", "e_xt"),
    "scale/v*": ("v_norm", "e_v", "v_tgt_norm", "v_target_norm", "target_norm", "vtgt_norm", "norm_v_tgt",
                 "v_star_norm", "v_norm_tgt"),
    "scale/v": ("v_pred_norm", "vpred_norm", "pred_norm"),
    "ent/teacher": ("ent_teacher", "teacher_entropy", "teacher_ent", "entropy_teacher", "t_ent", "h_teacher"),
    "ent/student": ("ent_student", "student_entropy", "student_ent", "entropy_student", "s_ent", "h_student"),
    "scaler/scale": ("loss_scale", "scaler_scale", "amp_scale", "grad_scale", "scale", "grad_scaler"),
    "scaler/skipped": ("skipped", "skipped_steps", "skipped_iters", "overflow", "overflows", "num_skipped"),
    "vae/psnr": ("psnr", "vae_psnr", "recon_psnr", "psnr_db", "rec_psnr"),
    "text/same": ("mu_same_cos", "mu_same_prompt_cos", "same_prompt_cos", "text_same"),
    "text/cos": ("mu_pair_cos", "mu_pairwise_cos", "text_cos", "prompt_cos", "pairwise_cos", "cos_mu", "mu_cos",
                 "mean_cos_prompts", "cos_prompts"),
    "ent/log_classes": ("log_k", "log_classes"),
    "ent/classes": ("dino_k", "num_prototypes", "dino_num_prototypes", "prototypes", "dino_classes", "num_classes"),
    "corr/velocity": ("corr_velocity", "corr_v"),
    "corr/noise": ("corr_noise", "corr_eps"),
    "corr/score": ("corr_score",),
    "corr/x0": ("corr_x0",),
    "corr/z0_z1": ("cos_z0_z1",),
    "epoch": ("epoch", "epochs"),
}  # fmt: skip


# Losses that logs also name without the word loss.
_BARE = {"loss", "total", "objective", "flow", "fm", "cfm", "rf", "flow_matching", "mse", "diffusion", "kl", "kld",
         "kl_div", "kl_divergence", "dino", "contrastive", "fm_mse", "flow_mse", "v_mse", "vb", "rec",
         "recon"}  # fmt: skip


def _table() -> dict[str, str]:
    found = {theirs: ours for ours, names in _OTHERS.items() for theirs in names}
    for kind, names in _LOSSES.items():
        for name in names:
            bare = (name,) if name in _BARE or "loss" in name else ()
            for form in (*bare, f"loss_{name}", f"{name}_loss", f"l_{name}"):
                found.setdefault(form, f"loss/{kind}")
        for form in (f"grad_{kind}", f"grad_norm_{kind}", f"{kind}_grad", f"{kind}_grad_norm", f"gnorm_{kind}"):
            found.setdefault(form, f"grad/{kind}")
        for form in (f"w_{kind}", f"weight_{kind}", f"{kind}_weight", f"lambda_{kind}"):
            found.setdefault(form, f"w/{kind}")
    return found


ALIASES = _table()


def canonical(name: str, extra: Mapping[str, str] | None = None) -> str | None:
    """Return the canonical name of a metric, "" for a cost that is of no use, None for an unknown name.

    extra: further aliases, theirs -> ours, as ``--alias`` gives them; they come first.
    """
    if extra and name in extra:
        return extra[name]
    if CANONICAL.fullmatch(name):
        return name
    if match := re.fullmatch(r"[|‖∥]+\s*([\w*]+)\s*[|‖∥]+", name):  # a norm
        return {"x0": "scale/z0", "z0": "scale/z0", "x1": "scale/z1", "z1": "scale/z1", "xt": "scale/x_t",
                "x_t": "scale/x_t", "v": "scale/v*", "v*": "scale/v*", "v_tgt": "scale/v*"}.get(match[1])  # fmt: skip
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).lower()
    parts = [part for part in re.split(r"[^0-9a-z@*]+", words) if part]
    held = bool(HELD_OUT & set(parts)) or "held" in parts
    ema = "ema" in parts
    parts = [part for part in parts if part not in HELD_OUT and part not in ("ema", "held", "out")]
    if len(parts) > 1 and parts[-1] in ("step", "epoch"):  # Lightning's suffixes
        parts = parts[:-1]
    # As it is, then without words that say nothing: "x_0/mean" needs its last word, "mean_loss" not.
    plain = [part for part in parts if part not in IGNORED_PARTS]
    found = _found("_".join(parts)) or _found("_".join(plain))
    if found is None and re.search(r"[/.]", name):  # a group in front, as in "optim/grad_norm"
        found = _found("_".join(plain[1:]))
    if not found:
        return found
    return ("val/" if held or ema else "") + ("ema/" + found.replace("/", "_") if ema else found)


def _found(stem: str) -> str | None:
    if stem in ALIASES:
        return ALIASES[stem]
    if re.match(r"(?:lr|learning_rate)(?:_|\d|$)", stem) or stem.endswith(("_lr", "_learning_rate")):
        return "lr"
    if match := _SLICE.fullmatch(stem):
        return f"flow/{'nmse' if match[1] in ('mse', 'loss') else match[1]}_t{match[2]}"
    if match := _ENDPOINT.fullmatch(stem):
        return f"flow/endpt_rmse@{match[1]}"
    if match := _STAT.fullmatch(stem):
        return f"stat/{_STATS[match[1].replace('_', '')]}/{match[2]}"
    if match := re.fullmatch(r"(?:step_)?(\w+?)_?(?:head)?_(?:update_ratio|upd_ratio|update_to_weight)", stem):
        return f"step/{match[1]}_head_update_ratio"
    return "" if COSTS.search(stem) else None
