"""Canonical names of metrics, and the names that other trackers and training scripts give them.

A name is split into words. Words that say nothing (``train``, ``avg``) are dropped, and what is left is looked up in
:data:`ALIASES`, or put together from its words: ``optim/grad_norm_sem`` has the words grad, norm and sem, a gradient of
the semantic loss.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

# Names that are canonical already.
CANONICAL = re.compile(
    r"(?:val/)?(?:loss/(?:total|flow|kl|dino|contrastive|norm|diffusion|mse|rec|repa|disc|shuffled)|(?:grad|w|scale|ent|scaler|ema|run|const|stop|corr|shoot)/[\w*]+|step/\w+_update_ratio|lr|epoch"
    r"|(?:mu|logvar|std|z_init)/\w+|flow/(?:cos|nmse|speed_ratio|cond_gain_cos)(?:_t\d)?|flow/endpt_rmse@\d+"
    r"|vae/\w+|stat/\w+/\w+|text/\w+|fm_gain|nearest|quality/\w+)"
)
STEPS = (
    "step", "global_step", "_step", "iter", "iteration", "it", "steps", "train_step", "trainer/global_step", "n_iter",
    "current_step", "optimizer_step", "train/global_step", "num_updates", "progress/kimg", "kimg", "ckpt", "checkpoint",
    "update", "updates", "progress/tick", "global step", "iters", "iterations", "i", "samples_seen", "global_iter",
    "cur_iter", "training step", "opt_step", "n_iters", "global_iteration", "schritt", "étape", "paso", "步", "步数",
    "迭代", "ステップ", "шаг", "upd", "updatecount", "update_count", "itercount", "iter_count", "n_updates", "t_idx",
    "updates_total", "num_steps_trained", "nstep", "istep", "global_iters",
)  # fmt: skip
EPOCHS = ("epoch", "epochs", "ep", "epoche", "轮", "轮次")
HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "heldout", "dev", "vl", "holdout", "vali"}
IGNORED = {
    "train", "training", "trn", "tr", "trainer", "avg", "avr", "average", "mean", "running", "smooth", "smoothed",
    "batch", "ret", "metrics", "current", "step", "epoch", "iter", "global", "weighted", "raw", "model", "unet", "log",
    "scalars", "gathered", "reduced", "median", "optim", "optimizer", "per", "last", "net", "dit", "moving", "window",
    "local", "the", "of", "value", "metric", "monitor", "stats", "diag", "debug", "dbg", "probe", "online", "100",
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
    "梯度": "grad_", "验证": "val_", "训练": "train_", "均值": "mean_", "标准差": "std_", "方差": "var_",
    "总": "total_",
    "流": "flow_", "熵": "entropy_", "教师": "teacher_", "学生": "student_", "相似度": "_sim", "重建": "recon_",
    "η": "lr", "μ": "mu", "σ": "sigma", "Δ": "d_", "目标": "target_", "语义": "sem_", "方向": "", "損失": "loss",
    "学習率": "lr", "検証": "val_", "verlust": "loss", "lernrate": "lr", "gradientennorm": "grad_norm",
    "stddev": "std", "learnrate": "lr", "stepsize": "lr",
    "validierung": "val", "perte": "loss", "pérdida": "loss", "потери": "loss",
}  # fmt: skip
_LATIN = [(theirs, ours) for theirs, ours in _WORDS.items() if theirs.isascii()]
_BIN = re.compile(
    r"(.+?)(?:[_/]?(?:by|per)_t|_t|/t)?/[\[(]?(0?\.\d+|0\.0|0|1)\s*(?:-|–|,|to|_)\s*(?:[01]?\.\d+|1)[\])]?"
)
_CORRELATION = re.compile(r"corr_(?:out|pred|net|u|v|v_pred|model_pred)_(.+)")
_CORRELATED = {"x1_x0": "velocity", "z1_z0": "velocity", "v*": "velocity", "x0": "x0", "z0": "x0", "noise": "noise",
               "eps": "noise", "score": "score"}  # fmt: skip
_SLICE = re.compile(r"(?:flow_)?(nmse|cos|mse|loss)_?(?:at_)?(?:t|slice|bin|bucket|tbin|t_bin|t_slice|t_bucket)_?(\d)")
_ENDPOINT = re.compile(
    r"(?:flow_)?(?:endpt|endpoint|end|shoot|shooting|sample|sampling|rollout|euler|final|ode|integration)_?"
    r"(?:rmse|error|err|mse)?_?(?:at|k|n|@|steps|nfe)?_?@?_?(\d+)(?:_?steps?)?(?:_rmse)?"
    r"|(?:rmse|err|error)_?(?:at_)?(?:k|n|nfe|@)_?@?_?(\d+)"
)
_STAT = re.compile(
    r"(x_?0|x_?1|z_?0|z_?1|t|timesteps?|noise|eps|x_?t|pixels?|images?|imgs?|input|inputs|x|latents?|predicted_x_?0"
    r"|x_?0_pred|pred|model_pred|v_pred|x_?0_target|target|z_text|z_img|z_image|model_output|output|x_?start|pred_x_?start"
    r"|pixel_values?|latents?_raw|z)_(min|max|mean|std|var|absmax|nonfinite|nan)"
)
_STATS = {
    "x0": "x_0", "x1": "x_0", "z1": "x_0", "latent": "x_0", "latents": "x_0", "z0": "noise", "eps": "noise",
    "noise": "noise", "t": "t", "timestep": "t", "timesteps": "t", "xt": "x_t", "pixel": "pixels", "pixels": "pixels",
    "image": "pixels", "images": "pixels", "img": "pixels", "imgs": "pixels", "input": "pixels", "inputs": "pixels",
    "x": "pixels", "predictedx0": "predicted_x0", "x0pred": "predicted_x0", "pred": "v_pred", "modelpred": "v_pred",
    "modeloutput": "v_pred", "output": "v_pred", "vpred": "v_pred", "x0target": "x_0_target", "target": "target",
    "ztext": "noise", "zimg": "x_0", "zimage": "x_0", "xstart": "x_0", "predxstart": "predicted_x0", "z": "z",
    "pixelvalue": "pixels", "pixelvalues": "pixels", "latentsraw": "raw", "latentraw": "raw",
}  # fmt: skip
_KINDS = {  # words of a loss, in the order in which they decide
    "shuffled": {"shuffled", "shuffle", "shuf", "dropped", "uncond", "wrong", "permuted", "mismatched", "randcap"},
    "kl": {"kl", "kld", "prior"},
    "dino": {"dino", "distill", "distillation", "sem", "semantic"},
    "contrastive": {"contrastive", "clip", "itc", "nce", "infonce"},
    "disc": {"disc", "discriminator", "adv", "gan", "d", "g", "generator", "logits"},
    "repa": {"proj", "repa", "projection", "align"},
    "rec": {"rec", "recon", "reconstruction", "l1", "nll", "pixel", "pix", "percep", "lpips", "perceptual", "p"},
    "flow": {"flow", "fm", "cfm", "rf", "velocity", "vel", "v", "sit", "transport", "rectified", "matching", "pred"},
    "diffusion": {"diffusion", "diff", "eps", "epsilon", "noise", "ddpm", "simple", "denoise", "denoising", "vb", "x0",
                  "dsm", "denoiser", "sm"},
    "mse": {"mse", "l2"},
}  # fmt: skip
_BARE = {"kl", "kld", "mse", "dino", "fm", "cfm", "flow", "rf", "contrastive", "rec", "recon", "infonce", "vb"}
_EMPTY = {"obj", "sqerr", "loss", "losses", "total", "objective", "sum", "all", "l", "aeloss", "norm", "caption",
          "captions", "text",
          "cond", "true", "main", "full", "gen", "flow_loss", "paired", "value"}  # fmt: skip
_GRAD = {"grad", "grads", "gradient", "gradients", "gnorm", "gradnorm", "gn", "gradl2", "gradlen"}
_GRAD_EMPTY = {"norm", "norms", "l2", "2", "0", "clip", "pre", "post", "unclipped", "before", "after", "clipping",
               "params",
               "preclip", "postclip", "parameters", "inf"} | _GRAD | _EMPTY  # fmt: skip
_OTHERS = {
    "grad/total": ("global_norm", "total_norm", "g_norm"),
    "flow/cos": ("cos", "cos_sim", "v_cos", "flow_cos", "cosine", "cos_v", "cosine_sim", "cosine_similarity", "vel_cos",
                 "cos_similarity", "velocity_cos", "v_cos_sim", "fm_cos", "cos_pred_tgt", "align_cos", "cos_vel",
                 "cos_vpred_vtgt", "cos_v_pred_v_tgt", "cos_v_pred_v_target", "cos_vp_vt", "v_cosine", "one_step_cos",
                 "cos_pred_target", "velocity_cosine", "cos_u_v", "cos_u_u*", "cos_v_x1_x0", "cos_v_pred_x1_x0",
                 "cos_v_v*", "cos_v_pred_v*", "cos_pred_v", "cos_vel_tgt", "cos_v_tgt", "cos_1step", "cos_v_target",
                 "dir_cos", "ang_cos", "cos_dir", "align", "alignment", "velocity_cosine", "cosv", "cossim",
                 "cos_u_x1_x0", "cos_pred_x1_x0", "onestep_cos", "cosine_v", "v_alignment"),
    "flow/nmse": ("relerr", "rel_err", "velocity_rel_err", "nmse", "flow_nmse", "v_nmse", "fm_nmse", "rel_mse",
                  "normalized_mse", "velocity_nmse", "vel_nmse"),
    "flow/speed_ratio": ("norm_ratio", "speed_ratio", "v_ratio", "pred_tgt_ratio", "ratio", "v_norm_ratio", "p_v",
                         "flow_speed_ratio", "vnorm_ratio", "pred_norm_ratio", "speed", "vel_ratio", "mag_ratio",
                         "velocity_ratio", "len_ratio", "magnitude_ratio", "pred_over_tgt", "v_mag_ratio", "vratio",
                         "length_ratio", "v_v*", "vpred_vtgt_ratio"),
    "flow/cond_gain_cos": ("cond_gain_cos", "cond_gain", "flow_cond_gain_cos", "condition_gain", "cos_gain", "cond_gap",
                           "cond_cos_gain", "text_gain", "caption_gain", "shuffle_gap", "cos_cond_gain", "gain_cond"),
    "mu/abs_mean": ("mu_abs_mean", "mu_abs", "abs_mu", "mu_absmean", "mean_abs_mu", "z0_mu_abs", "mean_mu",
                    "mu_mean_abs",
                    "text_mu_abs", "q_mu_abs", "absmu"),
    "mu/rms": ("mu_rms", "mu_norm_rms", "rms_mu", "z0_mu_rms", "rms"),
    "logvar/mean": ("lnvar", "lnvar_avg", "logvar_mean", "logvar", "log_var", "log_var_mean", "lv_mean",
                    "mean_logvar", "posterior_logvar",
                    "z0_logvar", "q_logvar"),
    "std/mean": ("sd", "mean_sd", "sig", "sig_avg", "sd_avg", "mean_sigma", "mean_s", "std_mean", "sigma_mean",
                 "sigma", "posterior_std", "z_std_mean", "std", "q_std", "post_std", "std_z0",
                 "mean_std", "posterior_sigma", "q_sigma", "sigma_z0", "z0_sigma", "z0_std_mean", "z0_sigma_mean",
                 "sigma_text", "text_sigma", "post_sigma"),
    "std/min": ("std_min", "sigma_min", "z0_sigma_min"),
    "std/max": ("std_max", "sigma_max", "z0_sigma_max"),
    "z_init/mean": ("z_init_mean", "zinit_mean"),
    "z_init/var": ("z_init_var", "zinit_var"),
    "z_init/std_per_dim_mean": ("z_init_std_per_dim_mean",),
    "scale/z0": ("z0_norm", "norm_z0", "z_0_norm", "e_z0", "z0_l2", "text_latent_norm", "norm_x0", "x0_norm", "l2_z0",
                 "z_text_norm", "norm_z_text", "norm_z0_mean", "z0_norms"),
    "scale/z1": ("z1_norm", "norm_z1", "z_1_norm", "e_z1", "z1_l2", "image_latent_norm", "latent_norm", "norm_x1",
                 "l2_z1",
                 "x1_norm", "z_img_norm", "norm_z_img", "z1_norms", "img_latent_norm"),
    "scale/x_t": ("xt_norm", "x_t_norm", "e_xt", "norm_xt", "norm_x_t"),
    "scale/v*": ("target_rms", "v_target_rms", "v_norm", "e_v", "v_tgt_norm", "v_target_norm", "target_norm",
                 "vtgt_norm", "norm_v_tgt", "v*_norm",
                 "v_star_norm", "v_norm_tgt", "norm_v_target", "norm_tgt", "tgt_norm", "norm_v", "norm_v*",
                 "v_gt_norm"),
    "scale/v": ("v_pred_norm", "vpred_norm", "pred_norm", "norm_pred", "norm_v_pred"),
    "ent/log_classes": ("lnk", "h_lnk", "ln_k", "h_ln_k", "log_k", "log_classes", "max_entropy", "entropy_log_k",
                        "ent_log_k", "ent_max", "logk"),
    "ent/classes": ("dino_k", "num_prototypes", "dino_num_prototypes", "prototypes", "dino_classes", "num_classes",
                    "dino_out_dim", "out_dim", "n_prototypes", "dino_prototypes", "head_n_prototypes", "dino_dim"),
    "scaler/scale": ("loss_scale", "scaler_scale", "amp_scale", "grad_scale", "scale", "grad_scaler", "lossscale",
                     "dynamic_loss_scale", "fp16_scale", "lg_loss_scale", "scaler", "loss_scaling",
                     "attempted_loss_scale",
                     "fp16_loss_scale", "grad_scaler_scale", "loss_scaler"),
    "scaler/skipped": ("skipped", "skipped_steps", "skipped_iters", "overflow", "overflows", "num_skipped",
                       "skip_steps",
                       "skipped_iterations", "number_of_skipped_iterations", "skipped_updates", "n_skipped"),
    "vae/psnr": ("psnr", "vae_psnr", "recon_psnr", "psnr_db", "rec_psnr", "roundtrip_psnr", "round_trip_psnr",
                 "vae_round_trip_psnr", "vae_roundtrip_psnr", "psnr_vs_input"),
    "text/same": ("cos_of_means_same_prompt", "mu_same_cos", "mu_same_prompt_cos", "same_prompt_cos", "text_same",
                  "cos_same", "same",
                  "same_prompt"),
    "text/cos": ("cos_of_means_off_diag", "cos_means", "cos_of_means", "mu_pair_cos", "mu_pairwise_cos", "text_cos",
                 "prompt_cos", "pairwise_cos", "cos_mu", "mu_cos",
                 "cos_prompts", "text_mu_cos", "pairwise_mu_cos", "mu_cos_pairwise", "cos_diff", "mu_cos_diff",
                 "different", "text_pair_cos", "z0_mean_cos", "mean_pair_cos", "different_prompts", "cos_text_pairs",
                 "prompt_mu_cos", "cos_mu_pairs", "mu_cos_between_prompts", "text_mean_cos"),
    "corr/velocity": ("corr_velocity", "corr_v", "corr_vel", "cos_velocity", "corr_v_star", "corr_v_tgt", "corr_x1_x0",
                      "corr_v*", "corr_v_pred_v_tgt", "corr_v_pred_v*", "corr_pred_v"),
    "corr/noise": ("corr_noise", "corr_eps", "cos_noise", "cos_eps", "corr_epsilon", "corr_v_pred_noise",
                   "corr_v_pred_eps", "cos_v_pred_noise", "cos_pred_noise", "corr_pred_noise", "cos_v_noise",
                   "cos_v_eps"),
    "corr/score": ("corr_score", "cos_score", "corr_v_pred_score"),
    "corr/x0": ("corr_x0", "corr_z0", "cos_x0", "cos_z0", "corr_v_pred_x0", "cos_v_pred_x0", "cos_v_x0"),
    "corr/z0_z1": ("cos_z0_z1",),
    "shoot/relative": ("relative_shooting_error", "shoot_rel", "rel_shoot", "shooting_relative", "rel_shooting_error",
                       "relative_shooting", "shoot_relative", "shooting_rel", "rel_shoot_err", "shoot_rel_err",
                       "shooting_error_rel", "shoot_rel_mse", "rel_endpoint_mse", "shooting_rel_mse", "shoot_relerr"),
    "quality/clip_score": ("clip_score", "clipscore", "clip_sim", "clip_similarity", "clip_t", "clip_text_sim"),
    "epoch": ("epoch", "epochs"),
}  # fmt: skip
ALIASES = {theirs: ours for ours, names in _OTHERS.items() for theirs in names}


def canonical(name: str, extra: Mapping[str, str] | None = None) -> str | None:
    """Return the canonical name of a metric, "" for a cost that is of no use, None for an unknown name.

    extra: further aliases, theirs -> ours, as ``--alias`` gives them; they come first.
    """
    return extra[name] if extra and name in extra else _canonical(name)


@lru_cache(8192)
def _canonical(name: str) -> str | None:
    if CANONICAL.fullmatch(name):
        return name
    if match := _BIN.fullmatch(name):  # val_nmse_by_t/0.3-0.4
        found = _canonical(match[1])
        plain = (found or "").removeprefix("val/")
        return f"{found}_t{int(float(match[2]) * 10 + 0.5)}" if plain in ("flow/nmse", "flow/cos") else None
    name = re.sub(r"\[[^\]]*\]", "", name) or name  # units
    if match := re.fullmatch(r"(?:E\s*)?[|‖∥]+\s*([\w*]+)\s*[|‖∥]+(?:_2)?", name):  # a norm
        return {"x0": "scale/z0", "z0": "scale/z0", "x1": "scale/z1", "z1": "scale/z1", "xt": "scale/x_t",
                "x_t": "scale/x_t", "v": "scale/v*", "v*": "scale/v*", "v_tgt": "scale/v*", "u*": "scale/v*",
                "v_pred": "scale/v", "g": "grad/total", "grad": "grad/total"}.get(match[1].lower())  # fmt: skip
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip().strip("_/")).lower()
    words = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", words)) if not words.isascii() else words
    for theirs, ours in _WORDS.items() if not words.isascii() else _LATIN:
        words = words.replace(theirs, ours)
    words = [word for word in re.split(r"[^0-9a-z@*]+", re.sub(r"\([^)]*\)", " ", words)) if word]
    if words and words[-1] in EPOCHS and set(words[:-1]) <= IGNORED:
        return "epoch"
    held = bool(HELD_OUT & set(words)) or "held" in words
    ema = bool({"ema", "averaged"} & set(words)) or (words[-1:] == ["avg"] and "raw" not in words and held)
    words = [word for word in words if word not in HELD_OUT and word not in ("ema", "held", "out")]
    if len(words) > 1 and words[-1] in ("step", "epoch"):  # Lightning's suffixes
        words = words[:-1]
    # As it is, then without words that say nothing: "x_0/mean" needs its last word, "mean_loss" does not.
    plain = [word for word in words if word not in IGNORED]
    tries = [words, plain]
    if re.search(r"[/.: ]", name.strip()):  # groups in front, as in "optim/grad_norm"
        tries += [plain[1:], plain[2:]]
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
    if stem in ALIASES:
        return ALIASES[stem]
    if match := _SLICE.fullmatch(stem):
        return f"flow/{'nmse' if match[1] in ('mse', 'loss') else match[1]}_t{match[2]}"
    if (match := _ENDPOINT.fullmatch(stem)) and re.search(r"rmse|err|mse|endpt|endpoint|shoot", stem):
        return f"flow/endpt_rmse@{match[1] or match[2]}"
    if match := _STAT.fullmatch(stem):
        return f"stat/{_STATS[match[1].replace('_', '')]}/{'nonfinite' if match[2] == 'nan' else match[2]}"
    if (match := _CORRELATION.fullmatch(stem)) and match[1] in _CORRELATED:
        return f"corr/{_CORRELATED[match[1]]}"
    has = set(words)
    if has & {"lr", "lrs"} or {"step", "size"} <= has or {"learning", "rate"} <= has or re.fullmatch(r"lr\d?_.*", stem):
        return "lr"
    if re.fullmatch(r"(?:\w+_)?[fk]id\d*k?(?:_.*)?", stem):
        return "quality/fid"
    if has & {"upd", "update", "updates", "dw"} and has & {"ratio", "rel", "w", "weight"}:
        rest = [
            w for w in words if w not in {"upd", "update", "updates", "ratio", "dw", "w", "rel", "to", "weight", "head"}
        ]
        return f"step/{'_'.join(rest) or 'all'}_head_update_ratio"
    if has & {"amp", "scaler", "fp16", "gradscaler"} and has & {"scale", "skipped", "skips"}:
        return "scaler/scale" if "scale" in has else "scaler/skipped"
    if has & {"ent", "entropy", "h"}:
        who = next((w for w in ("teacher", "student") if w in has or w[0] in has), None)
        return f"ent/{who}" if who else None
    if has & _GRAD:
        rest = [w for w in words if w not in _GRAD_EMPTY and w not in IGNORED]
        return "grad/total" if not rest else f"grad/{_kind(rest) or '_'.join(rest)}"
    if has & {"w", "weight", "lambda", "coef", "coeff"} and (kind := _kind(words)) and len(words) <= 3:
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
        and all(any(w in s for s in _KINDS.values()) or w in ("z0", "text", "z", "div", "divergence") for w in words)
    ):
        return f"loss/{kind}"
    return "loss/total" if stem in ("total", "objective", "aeloss") else None


def _kind(words: list[str]) -> str | None:
    return next((kind for kind, own in _KINDS.items() if own & set(words)), None)
