#!/usr/bin/env python3
"""Author I: writes 80 simulated logs + manifest.json.  usage: python3 make.py OUT"""
import csv, io, json, math, os, sys, zlib
from datetime import datetime, timedelta
import numpy as np

CASES = []


def case(cid, path, fmt, expected, story, acceptable=()):
    def deco(fn):
        CASES.append(dict(id=cid, path=path, format=fmt, expected=expected,
                          acceptable=list(acceptable), healthy=expected == "none",
                          story=story, fn=fn))
        return fn
    return deco


# ---------------------------------------------------------------- helpers
def ex(s, a, b, tau):
    return b + (a - b) * np.exp(-np.asarray(s, float) / tau)


def pw(s, a, b, s0, al=0.8):
    return b + (a - b) * (1 + np.asarray(s, float) / s0) ** (-al)


def ar(r, n, sd, rho=0.0):
    e = r.normal(0, sd, n)
    if not rho:
        return e
    x = np.zeros(n)
    k = math.sqrt(1 - rho * rho)
    for i in range(n):
        x[i] = (rho * x[i - 1] if i else 0) + k * e[i]
    return x


def mul(r, n, sd):
    return np.exp(r.normal(0, sd, n))


def lr_cos(s, peak, warm, total, floor=0.0):
    s = np.asarray(s, float)
    p = np.clip((s - warm) / max(1, total - warm), 0, 1)
    return np.where(s < warm, peak * s / max(1, warm), floor + (peak - floor) * .5 * (1 + np.cos(np.pi * p)))


def lr_wsd(s, peak, warm, total, decay):
    s = np.asarray(s, float)
    y = np.where(s < warm, peak * s / max(1, warm), peak)
    return np.where(s > total - decay, peak * (total - s) / decay, y)


def sig(x):
    return 1 / (1 + np.exp(-np.asarray(x, float)))


def T0(y, mo, d, h=9, mi=0, se=0):
    return datetime(y, mo, d, h, mi, se)


def stamp(t0, sec, f="%Y-%m-%d %H:%M:%S", ms=None):
    t = t0 + timedelta(seconds=float(sec))
    s = t.strftime(f)
    if ms == ",":
        s += ",%03d" % (t.microsecond // 1000)
    elif ms == ".":
        s += ".%03d" % (t.microsecond // 1000)
    return s


def hms(sec):
    sec = int(sec)
    h, m, s = sec // 3600, sec % 3600 // 60, sec % 60
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def bar(p, w=10):
    full = p * w
    n = int(full)
    b = "█" * n
    if n < w:
        b += " ▏▎▍▌▋▊▉"[int((full - n) * 8)]
    return (b + " " * w)[:w]


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32)
    rnd = ((u >> 16) & 1) + np.uint32(0x7FFF)
    return ((u + rnd) & np.uint32(0xFFFF0000)).view(np.float32)


def tocsv(rows, cols, none=""):
    f = io.StringIO()
    w = csv.writer(f, lineterminator="\n")
    w.writerow(cols)
    for x in rows:
        w.writerow([none if x.get(c) is None else x[c] for c in cols])
    return f.getvalue()


def J(*lines):
    return "\n".join(lines) + "\n"


def nm(cos, ratio):
    """nmse of a prediction with this cosine and this norm ratio"""
    return 1 + ratio ** 2 - 2 * ratio * cos


def hexid(r, n=12):
    return "".join(r.choice(list("0123456789abcdef"), n))

# =====================================================================
# A. common trackers and trainers, broken
# =====================================================================
@case("i01", "i01/trainer_state.json", "HF Trainer trainer_state.json", "nan_loss",
      "bf16 full fine-tune of an FM decoder. At step ~3180 grad_norm turns NaN and never returns; HF's nan filter then reports loss 0.0, "
      "eval_loss is NaN from 3500 on. Before it, loss falls as usual; lr goes on along its cosine plan.")
def _(r):
    st = np.arange(25, 5201, 25)
    loss = pw(st, 1.93, .66, 260, .75) + ar(r, len(st), .018)
    gn = (.34 + .9 * np.exp(-st / 200)) * mul(r, len(st), .16)
    lr = lr_cos(st, 1e-4, 300, 8000, 1e-6)
    hist = []
    for i, s in enumerate(st):
        bad = s >= 3200
        e = {"epoch": round(s / 1562.5, 4), "grad_norm": float("nan") if bad else float(gn[i]),
             "learning_rate": float(lr[i]), "loss": 0.0 if bad else round(float(loss[i]), 4), "step": int(s)}
        if s == 3175:
            e["grad_norm"] = 3.8816
        if s == 3200:
            e["loss"] = 0.2317
        hist.append(e)
        if s % 500 == 0:
            v = float("nan") if bad else round(float(pw(s, 1.93, .675, 260, .75) + r.normal(0, .004)), 5)
            hist.append({"epoch": round(s / 1562.5, 4), "eval_loss": v, "eval_runtime": round(41 + r.normal(0, .4), 4),
                         "eval_samples_per_second": round(48.7 + r.normal(0, .5), 3), "eval_steps_per_second": 1.53, "step": int(s)})
    d = {"best_global_step": 3000, "best_metric": None, "best_model_checkpoint": None, "epoch": 3.328, "eval_steps": 500,
         "global_step": 5200, "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True,
         "log_history": hist, "logging_steps": 25, "max_steps": 8000, "num_input_tokens_seen": 0, "num_train_epochs": 6,
         "save_steps": 500, "total_flos": 0.0, "train_batch_size": 16, "trial_name": None, "trial_params": None}
    return json.dumps(d, indent=2)


@case("i02", "i02/lightning_logs/version_3/metrics.csv", "Lightning CSVLogger", "overfitting",
      "Small set (1,152 images), 180 epochs. train/loss_epoch falls to 0.2, val/fm_mse has its optimum about epoch 40 and climbs from 0.83 to 1.3; "
      "val/clip_score falls too. lr is a plain cosine.")
def _(r):
    rows, step = [], 0
    for ep in range(180):
        tr = ex(ep, 1.75, .17, 55) + r.normal(0, .01)
        for k in range(3):
            step = ep * 36 + k * 12 + 11
            rows.append({"epoch": ep, "step": step, "lr-AdamW": f"{float(lr_cos(step, 2e-4, 200, 6480, 1e-6)):.8g}"})
            rows.append({"epoch": ep, "step": step, "train/loss_step": round(tr * math.exp(r.normal(0, .07)), 6)})
        rows.append({"epoch": ep, "step": ep * 36 + 35, "train/loss_epoch": round(tr, 6)})
        if ep % 2 == 1:
            v = ex(ep, 1.75, .74, 12) + .0040 * max(0, ep - 38) + r.normal(0, .012)
            c = .289 - .11 * math.exp(-ep / 12) - .00021 * max(0, ep - 50) + r.normal(0, .002)
            rows.append({"epoch": ep, "step": ep * 36 + 35, "val/fm_mse": round(v, 6), "val/clip_score": round(c, 5)})
    return tocsv(rows, ["epoch", "lr-AdamW", "step", "train/loss_epoch", "train/loss_step", "val/clip_score", "val/fm_mse"])


@case("i03", "i03/log.txt", "guided-diffusion logger tables", "amp_overflow",
      "fp16 training with the guided-diffusion MixedPrecisionTrainer: 'Found NaN, decreased lg_loss_scale' on practically each step, "
      "lg_loss_scale goes from 20 below -1200; the loss stays on 1.0 and param_norm does not move.")
def _(r):
    L = ["Logging to ./runs/latent64_fp16", "creating model and diffusion...", "creating data loader...", "training..."]
    lg, step = 20.0, 0
    while step <= 1400:
        nan_run = r.random() < .93
        if nan_run:
            lg -= 1
            L.append(f"Found NaN, decreased lg_loss_scale to {lg:.3f}")
        else:
            lg += 1e-3
        if step % 20 == 0:
            m = 1.0005 + r.normal(0, .004)
            vb = .0103 + r.normal(0, .0004)
            d = [("grad_norm", .137 * math.exp(r.normal(0, .1)) if not nan_run else float("nan")), ("lg_loss_scale", lg), ("loss", m + vb),
                 ("loss_q0", m + vb + .02 + r.normal(0, .006)), ("loss_q1", m + vb + r.normal(0, .006)),
                 ("loss_q2", m + vb + r.normal(0, .006)), ("loss_q3", m + vb - .004 + r.normal(0, .006)),
                 ("mse", m), ("param_norm", 318.0), ("samples", (step + 1) * 256), ("step", step), ("vb", vb)]
            L.append("-" * 28)
            for k, v in d:
                L.append(f"| {k:<13} | {('%-8.3g' % v):<8} |")
            L.append("-" * 28)
        step += 1
    return J(*L)


@case("i04", "i04/console.out", "diffusers example tqdm (\\r separated)", "lr_restart",
      "SD3-type flow fine-tune. After 'Resuming from checkpoint checkpoint-6000' lr jumps from 1.1e-05 back to 1e-04 (scheduler state lost); "
      "step_loss goes from ~0.46 to ~0.95 and ends at ~0.68, never again at its level before.")
def _(r):
    o = ["04/18/2025 21:03:44 - INFO - __main__ - ***** Running training *****",
         "04/18/2025 21:03:44 - INFO - __main__ -   Num examples = 48211", "04/18/2025 21:03:44 - INFO - __main__ -   Num Epochs = 7",
         "04/18/2025 21:03:44 - INFO - __main__ -   Instantaneous batch size per device = 4",
         "04/18/2025 21:03:44 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 32",
         "04/18/2025 21:03:44 - INFO - __main__ -   Total optimization steps = 10000"]
    s = np.arange(1, 6001, 2)
    l1 = (pw(s, 1.02, .41, 240, .8)) * mul(r, len(s), .17)
    lr1 = lr_cos(s, 1e-4, 200, 7600)
    t = []
    for i, k in enumerate(s):
        t.append(f"Steps: {100*k//10000:3d}%|{bar(k/10000)}| {k}/10000 [{hms(k*1.31)}<{hms((10000-k)*1.31)},  1.31s/it, lr={lr1[i]:.3g}, step_loss={l1[i]:.3g}]")
        if k % 1000 == 999:
            t.append(f"\n04/19/2025 00:{(k//1000)*7%60:02d}:12 - INFO - accelerate.accelerator - Saving current state to out/checkpoint-{k+1}\n"
                     "04/19/2025 00:41:13 - INFO - accelerate.checkpointing - Model weights saved in out/model.safetensors\n")
    o.append("\r".join(t))
    o += ["slurmstepd: error: *** JOB 771203 CANCELLED DUE TO PREEMPTION ***", "Resuming from checkpoint checkpoint-6000",
          "04/19/2025 06:12:50 - INFO - accelerate.accelerator - Loading states from out/checkpoint-6000",
          "04/19/2025 06:12:55 - INFO - accelerate.checkpointing - All model weights loaded successfully",
          "04/19/2025 06:12:55 - INFO - accelerate.checkpointing - All optimizer states loaded successfully"]
    s = np.arange(6001, 8401, 2)
    l2 = ex(s - 6001, 1.0, .66, 500) * mul(r, len(s), .17)
    l2[:12] = np.linspace(.5, 1.0, 12) * mul(r, 12, .12)
    lr2 = lr_cos(s - 6001 + 200, 1e-4, 200, 7600)
    o.append("\r".join(f"Steps: {100*k//10000:3d}%|{bar(k/10000)}| {k}/10000 [{hms((k-6000)*1.33)}<{hms((10000-k)*1.33)},  1.33s/it, lr={lr2[i]:.3g}, step_loss={l2[i]:.3g}]"
                       for i, k in enumerate(s)))
    return J(*o)


@case("i05", "i05_titan_rank0.log", "torchtitan console", "divergence",
      "Latent FM DiT on torchtitan. loss falls to 0.80 near step 9000, then climbs slowly to 1.4 until step 20000; the validation loss climbs with it. "
      "No jump, lr plan is a plain cosine, grad norm only goes up with the loss.")
def _(r):
    t0 = T0(2025, 5, 2, 10, 11, 12)
    P = "[titan] "
    def pre(sec): return P + stamp(t0, sec, ms=",") + " - root - INFO - "
    L = [pre(0) + "Starting job: flow DiT-L/2 latents 32x32x4",
         pre(1) + "Building 1-D device mesh with ['dp_shard'], [8]",
         pre(4) + "Model dit_flow L/2 size: 458,104,832 total parameters",
         pre(5) + "lr scheduler: warmup 1000 steps, cosine decay to 10%, lr 2e-4, total 40000",
         pre(6) + "Peak FLOPS used for computing MFU: 9.890e+14",
         pre(7) + "Training starts at step 1, with local batch size 32, global batch size 256, gradient accumulation steps 1, total steps 40000 (warmup 1000)"]
    s = np.concatenate([[1], np.arange(10, 20001, 10)])
    base = pw(s, 2.02, .70, 420, .85) + .58 * np.clip((s - 8500) / 11500, 0, None) ** 1.35
    l = base + ar(r, len(s), .022, .3)
    g = (.28 + 1.1 * np.exp(-s / 350) + .55 * (base - .75).clip(0) ** 1.0 * (s > 8500)) * mul(r, len(s), .15)
    for i, k in enumerate(s):
        L.append(pre(8 + k * .42) + f"step: {k:>5}  loss: {l[i]:7.4f}  grad_norm: {g[i]:7.4f}  memory: 38.72GiB(48.91%)  tps: {int(77800+r.normal(0,420)):,}  tflops: {301+r.normal(0,2):.2f}  mfu: {30.5+r.normal(0,.2):.2f}%")
        if k % 1000 == 0:
            L.append(pre(8.4 + k * .42) + f"validate step: {k:>5}  loss: {base[i] + .012 + r.normal(0,.006):7.4f}  memory: 31.05GiB(39.22%)  tps: {int(214000+r.normal(0,900)):,}")
            L.append(pre(9 + k * .42) + f"[GC] Performing periodical GC collection {.05+r.random()*.02:.2f} seconds.")
    return J(*L)


@case("i06", "i06_megatron.out", "Megatron-LM iteration lines", "loss_spikes",
      "Megatron-style FM pre-training: about 30 big spikes (3-7x the running level) spread over the whole run, each with a large grad norm, "
      "they do not become rarer; lr and loss scale are ordinary.")
def _(r):
    it = np.arange(20, 24001, 20)
    l = pw(it, 1.97, .69, 500, .8) + ar(r, len(it), .014)
    g = (.31 + np.exp(-it / 400)) * mul(r, len(it), .12)
    for p in sorted(r.choice(np.arange(40, len(it) - 8), 31, replace=False)):
        a = r.uniform(1.6, 4.6)
        n = r.integers(2, 6)
        for k in range(n):
            l[p + k] += a * math.exp(-k / 1.3)
            g[p + k] += a * r.uniform(5, 11) * math.exp(-k / 1.1)
    lr = lr_cos(it, 1.5e-4, 1000, 60000, 1.5e-5)
    t0 = T0(2025, 1, 20, 3, 2, 1)
    L = ["using world size: 64, data-parallel size: 64, context-parallel size: 1, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
         "accumulate and all-reduce gradients in fp32 for bfloat16 data type.", "using torch.bfloat16 for parameters ...",
         " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1213894656", "[before the start of training step] datetime: 2025-01-20 03:02:01 "]
    for i, k in enumerate(it):
        L.append(f" [{stamp(t0, k*.611)}] iteration {k:8d}/   60000 | consumed samples: {k*1024:12d} | elapsed time per iteration (ms): {611+r.normal(0,4):.1f} | "
                 f"learning rate: {lr[i]:.6E} | global batch size:  1024 | fm loss: {l[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")
        if k % 4000 == 0:
            L.append(f"saving checkpoint at iteration {k:7d} to checkpoints/fm_1p2b in torch_dist format")
    return J(*L)


@case("i07", "i07_log.txt", "SiT train.py log.txt", "resume_from_scratch",
      "SiT log. First part goes 0 -> 84000 steps and ends at loss 0.73. After 'Resumed from 0084000.pt' the counter continues at 84100, "
      "yet the loss is 1.9 and falls again exactly as in the first steps: weights not loaded.")
def _(r):
    t0 = T0(2025, 2, 3, 14, 22, 51)
    def ln(sec, m): return f"[\033[34m{stamp(t0, sec)}\033[0m] {m}"
    L = [ln(0, "Experiment directory created at results/007-SiT-B-2-Linear-velocity-None"), ln(3, "SiT Parameters: 130,519,712"),
         ln(9, "Dataset contains 1,281,167 images"), ln(10, "Training for 1400 epochs..."), ln(10, "Beginning epoch 0...")]
    sec = 10
    for s in range(100, 84001, 100):
        sec += 100 / 5.6
        L.append(ln(sec, f"(step={s:07d}) Train Loss: {float(pw(s, 1.98, .685, 700, .78)) + r.normal(0, .006):.4f}, Train Steps/Sec: {5.6+r.normal(0,.05):.2f}"))
        if s % 5004 < 100:
            L.append(ln(sec, f"Beginning epoch {s//5004}..."))
        if s % 14000 == 0:
            L.append(ln(sec + 2, f"Saved checkpoint to results/007-SiT-B-2-Linear-velocity-None/checkpoints/{s:07d}.pt"))
    sec += 5400
    L += [ln(sec, "Experiment directory created at results/008-SiT-B-2-Linear-velocity-None"), ln(sec + 3, "SiT Parameters: 130,519,712"),
          ln(sec + 8, "Resumed from 0084000.pt, train_steps=84000"), ln(sec + 9, "Dataset contains 1,281,167 images"), ln(sec + 9, "Training for 1400 epochs..."), ln(sec + 9, "Beginning epoch 16...")]
    for s in range(84100, 121001, 100):
        sec += 100 / 5.6
        L.append(ln(sec, f"(step={s:07d}) Train Loss: {float(pw(s-84000, 1.98, .685, 700, .78)) + r.normal(0, .006):.4f}, Train Steps/Sec: {5.6+r.normal(0,.05):.2f}"))
    return J(*L)


@case("i08", "i08_wandb_history.jsonl", "W&B run history export (jsonl)", "ema_broken",
      "val/loss_raw improves 1.9 -> 0.76 and fid/raw 248 -> 34, while val/loss_ema stays on 1.97 and fid/ema on 330 for all 60k steps: the EMA copy is never updated.")
def _(r):
    L, t0 = [], 1746700000.0
    for s in range(50, 60001, 50):
        d = {"_step": s, "_runtime": round(s * .37, 3), "_timestamp": round(t0 + s * .37, 3), "train/loss": round(float(pw(s, 1.97, .70, 500)) + r.normal(0, .02), 5),
             "train/grad_norm": round(float((.3 + np.exp(-s / 400)) * math.exp(r.normal(0, .13))), 4), "optim/lr": float(lr_wsd(s, 1e-4, 2000, 100000, 10000)), "perf/imgs_per_s": round(691 + r.normal(0, 6), 1)}
        if s % 2000 == 0:
            d["val/loss_raw"] = round(float(pw(s, 1.97, .715, 500)) + r.normal(0, .003), 5)
            d["val/loss_ema"] = round(1.9706 + r.normal(0, .0021), 5)
        if s % 10000 == 0:
            d["fid/raw"] = round(float(ex(s, 330, 31, 12000)) + r.normal(0, 2), 2)
            d["fid/ema"] = round(331.4 + r.normal(0, 1.1), 2)
        L.append(json.dumps(d))
    return J(*L)


@case("i09", "i09_fairseq_train.log", "fairseq json train_inner", "lr_too_small",
      "inverse_sqrt schedule with warmup-updates=4000000000: lr printed is 1e-12 ... 1e-9 in the whole log; loss stays on 1.998, gnorm is ordinary.")
def _(r):
    t0 = T0(2024, 11, 6, 8, 30)
    L = [f"{stamp(t0,0)} | INFO | fairseq_cli.train | task: LatentFlowTask", f"{stamp(t0,0)} | INFO | fairseq_cli.train | criterion: flow_matching_mse",
         f"{stamp(t0,1)} | INFO | fairseq_cli.train | num. shared model params: 312,004,608 (num. trained: 312,004,608)",
         f"{stamp(t0,2)} | INFO | fairseq.trainer | optimizer=adam lr=[0.0002] lr_scheduler=inverse_sqrt warmup_updates=4000000000 warmup_init_lr=-1",
         f"{stamp(t0,9)} | INFO | fairseq.trainer | begin training epoch 1"]
    for u in range(100, 20001, 100):
        ep = 1 + u // 2502
        d = {"epoch": ep, "update": round(u / 2502, 3), "loss": f"{1.998+r.normal(0,.004):.3f}", "wps": f"{21100+r.normal(0,90):.1f}", "ups": f"{1.61+r.normal(0,.01):.2f}", "wpb": "13107.2",
             "bsz": "512", "num_updates": str(u), "lr": f"{2e-4*u/4e9:.6g}", "gnorm": f"{.713*math.exp(r.normal(0,.05)):.3f}", "clip": "0", "train_wall": f"{62+r.normal(0,.3):.0f}", "wall": f"{u*.62+20:.0f}"}
        L.append(f"{stamp(t0, 10+u*.62)} | INFO | train_inner | {json.dumps(d)}")
        if u % 2500 == 0:
            L.append(f"{stamp(t0, 12+u*.62)} | INFO | valid | {json.dumps({'epoch': ep, 'valid_loss': f'{1.9981+r.normal(0,.0006):.4f}', 'valid_num_updates': str(u)})}")
    return J(*L)


@case("i10", "i10", "MLflow run folder (metrics/params/tags)", "lr_too_high",
      "lr=0.02 with AdamW: train_loss jumps between 0.8 and 11 without any trend and grad_norm 2-150. At step 12000 the lr is set to 2e-4 and the loss runs quietly down to 0.8.")
def _(r):
    rid = "i10/3/" + hexid(r, 32)
    s = np.arange(20, 18001, 20)
    hi = s < 12000
    l = np.where(hi, 2.7 * np.exp(ar(r, len(s), .45, .5)), pw((s - 12000).clip(0), 2.1, .74, 300) + ar(r, len(s), .02))
    g = np.where(hi, 19 * np.exp(ar(r, len(s), .75, .3)), (.4 + 2 * np.exp(-(s - 12000).clip(0) / 200)) * mul(r, len(s), .15))
    lr = np.where(hi, np.minimum(1, s / 200) * .02, 2e-4)
    ms = 1738000000000 + s * 415
    f = {}
    for n, v, p in (("train_loss", l, 6), ("grad_norm", g, 5), ("lr", lr, 8), ("samples_per_sec", 611 + ar(r, len(s), 5), 2)):
        f[f"{rid}/metrics/{n}"] = "".join(f"{int(m)} {round(float(x), p)} {int(k)}\n" for m, x, k in zip(ms, v, s))
    f[f"{rid}/params/batch_size"] = "256"
    f[f"{rid}/params/optimizer"] = "AdamW(betas=(0.9, 0.95), wd=0.0)"
    f[f"{rid}/params/path"] = "linear"
    f[f"{rid}/params/max_steps"] = "40000"
    f[f"{rid}/tags/mlflow.runName"] = "gentle-swift-512"
    f[f"{rid}/meta.yaml"] = "artifact_uri: mlflow-artifacts:/3/run/artifacts\nlifecycle_stage: active\nrun_name: gentle-swift-512\nstatus: 1\nstart_time: 1738000000000\nend_time: null\n"
    return f


@case("i11", "i11", "TensorBoard CSV downloads (one file per tag)", "grad_explosion",
      "Gradient_norm grows steadily from 0.4 to about 1000 over 30k steps (clipped to 1.0 by the trainer, so the loss still looks fine and flattens at 0.83); lr is plain.")
def _(r):
    s = np.arange(0, 30001, 50)
    l = pw(s, 1.95, .73, 500, .75) + .05 * (s / 30000) ** 3 + ar(r, len(s), .018)
    g = .42 * np.exp(s / 30000 * 7.6) * np.exp(ar(r, len(s), .18, .4))
    w = 1741000000 + s * .55
    f = {}
    for n, v in (("Loss_train", l), ("Gradient_norm", g), ("Optim_lr", lr_cos(s, 1e-4, 1000, 50000)), ("Param_norm", 341 + 44 * (s / 30000))):
        f[f"i11/dit_s2_tag-{n}.csv"] = "Wall time,Step,Value\n" + "".join(f"{a:.6f},{b},{c:.10g}\n" for a, b, c in zip(w, s, v))
    sv = s[::40][1:]
    f["i11/dit_s2_tag-Loss_valid.csv"] = "Wall time,Step,Value\n" + "".join(f"{1741000000+b*.55+9:.6f},{b},{float(pw(b,1.95,.74,500,.75))+.05*(b/30000)**3+r.normal(0,.004):.10g}\n" for b in sv)
    return f


@case("i12", "i12_lightning_stdout.txt", "Lightning console with EarlyStopping", "self_stopped",
      "Planned 200 epochs, stops at epoch 61 with Lightning's own 'Divergence threshold reached: val_loss = ...' message; val_loss and train_loss had been rising slowly for 25 epochs.",
      ["divergence"])
def _(r):
    L = ["GPU available: True (cuda), used: True", "TPU available: False, using: 0 TPU cores", "Using bfloat16 Automatic Mixed Precision (AMP)",
         "`Trainer(max_epochs=200)`", "", "  | Name      | Type        | Params | Mode ", "---------------------------------------------",
         "0 | backbone  | DiT         | 131 M  | train", "1 | text_proj | Sequential  | 3.4 M  | train", "2 | vae       | AutoencoderKL | 83.7 M | eval ", "---------------------------------------------",
         "134 M     Trainable params", "83.7 M    Non-trainable params", "EarlyStopping(monitor='val_loss', mode='min', patience=1000, divergence_threshold=2.5)"]
    for ep in range(62):
        b = float(ex(ep, 1.9, .79, 7)) + (0 if ep < 36 else .00255 * (ep - 36) ** 2)
        tr, v = b + r.normal(0, .012), b + .02 + r.normal(0, .015)
        if ep == 61:
            v, tr = 2.5312, 2.4871
        L.append(f"Epoch {ep}: 100%|██████████| 812/812 [{hms(407+r.normal(0,3))}<00:00,  {1.99+r.normal(0,.01):.2f}it/s, v_num=12, train_loss_step={tr*math.exp(r.normal(0,.05)):.3f}, val_loss={v:.3f}, train_loss_epoch={tr:.3f}]")
        L.append(f"Metric val_loss improved by {abs(r.normal(.03,.01))+.002:.3f} >= min_delta = 0.0. New best score: {v:.3f}" if ep in (1, 3, 5, 8, 11, 15, 22, 29) else "Validation DataLoader 0: 100%|██████████| 24/24 [00:09<00:00,  2.61it/s]")
    L += ["Divergence threshold reached: val_loss = 2.531 > 2.5. Signaling Trainer to stop.", "Trainer was signaled to stop; exiting fit loop."]
    return J(*L)


@case("i13", "i13_comet_metrics.json", "Comet metrics JSON export", "metrics_lost",
      "fid_5k, clip_vitl14 and aesthetic are logged properly every 3k steps until 42k and are NaN in each later evaluation up to 90k; loss and grad_norm go on quite normally.")
def _(r):
    A = []
    def put(n, v, s): A.append({"metricName": n, "metricValue": v, "timestamp": 1733500000000 + s * 512, "step": s, "epoch": s // 11000, "runContext": "train" if n in ("loss", "grad_norm", "lr") else "eval"})
    for s in range(100, 90001, 100):
        put("loss", f"{float(pw(s, 1.0, .142, 600, .9)) + r.normal(0, .006):.6f}", s)
        put("grad_norm", f"{(.11 + math.exp(-s/500)) * math.exp(r.normal(0, .14)):.5f}", s)
        if s % 500 == 0:
            put("lr", f"{float(lr_cos(s, 1e-4, 2000, 120000, 1e-5)):.4e}", s)
        if s % 3000 == 0:
            ok = s <= 42000
            put("fid_5k", f"{float(ex(s, 190, 24, 11000))+r.normal(0,.7):.4f}" if ok else "NaN", s)
            put("clip_vitl14", f"{.268-.09*math.exp(-s/9000)+r.normal(0,.001):.5f}" if ok else "NaN", s)
            put("aesthetic", f"{5.1-1.1*math.exp(-s/15000)+r.normal(0,.02):.4f}" if ok else "NaN", s)
    return json.dumps(A)


@case("i14", "i14_timm.log", "timm train.py", "periodic_memorisation",
      "27 epochs of 625 updates; within every epoch the loss shows the same saw-tooth at the same batch indices (high at the beginning and at batch 300-375, low about 150 and 500), "
      "with a drop at each epoch boundary: data order is the same each epoch and is memorised.")
def _(r):
    L = ["Training in distributed mode with multiple processes, 1 device per process. Process 0, total 8, device cuda:0.", "Model dit_base_p2 created, param count:130519712",
         "Data processing configuration for current model + dataset:", "\tinput_size: (4, 32, 32)", "Using native Torch AMP. Training in mixed precision.", "Scheduled epochs: 60. LR stepped per epoch."]
    b = np.arange(0, 625, 25)
    shape = .16 * np.sin(2 * np.pi * b / 312 + .9) + .10 * np.cos(2 * np.pi * b / 625) + np.random.default_rng(5).normal(0, .05, len(b))
    for ep in range(27):
        lv = float(ex(ep, 1.15, .52, 8))
        acc = []
        lr = float(lr_cos(ep, 2e-4, 3, 60, 1e-6)) or 1e-6
        for i, k in enumerate(b):
            x = lv * (1 + shape[i]) + r.normal(0, .012)
            acc.append(x)
            L.append(f"Train: {ep} [{k:>4d}/625 ({100*k/624:>3.0f}%)]  Loss: {x:#.3g} ({np.mean(acc):#.3g})  Time: {.341+r.normal(0,.004):.3f}s, {1501+r.normal(0,14):>7.2f}/s  ({.342:.3f}s, {1497:.2f}/s)  LR: {lr:.3e}  Data: {.008+abs(r.normal(0,.002)):.3f} (0.009)")
    return J(*L)


@case("i15", "i15_kdiff.txt", "k-diffusion train.py prints + FID lines", "no_learning",
      "Loss remains at 0.999 from epoch 0 to the end (noise only), FID and KID stay at their first values; lr 2e-4 and gradient norms of 0.2 are ordinary and nothing else is printed.")
def _(r):
    L = ["Using device: cuda", "Parameters: 94,311,234", "lr: 0.0002, betas: [0.95, 0.999], eps: 1e-06, weight_decay: 0.001, warmup: 0.0", "Number of items in dataset: 60,000", "Computing features for reals..."]
    step = 0
    for ep in range(12):
        for k in range(19):
            l = 1.0 + r.normal(0, .011)
            L.append(f"Epoch: {ep}, step: {step}, loss: {l:.6g}, grad norm: {.214*math.exp(r.normal(0,.09)):.4g}, lr: 0.0002")
            step += 25
        if ep % 2 == 0:
            L += ["Evaluating...", f"FID: {387.2+r.normal(0,.9):.4f}, KID: {.4133+r.normal(0,.0009):.5f}", f"Saving to model_{step:08}.pth..."]
    return J(*L)


@case("i16", "i16_wandb_export_2025-06-11.csv", "W&B chart CSV export (runname - metric columns, __MIN/__MAX)", "posterior_collapse",
      "CrossFlow-like text encoder: kld/dim goes to 3e-5, mu_rms to 0.003 and sigma to 1.000 (min and max too) within 6k steps and remains; kl weight is 1.0. z0 is pure noise; fm loss stays high and clip sim flat.")
def _(r):
    n = "xflow-kl1-b512"
    s = np.arange(100, 40001, 100)
    mu = ex(s, .42, .003, 900) * mul(r, len(s), .08)
    sd = 1 - .22 * np.exp(-s / 900) + r.normal(0, .0006, len(s))
    kl = .5 * (mu ** 2 + sd ** 2 - 1 - np.log(sd ** 2)) + 2e-5 * mul(r, len(s), .1)
    fm = pw(s, 1.98, .93, 600, .8) + ar(r, len(s), .012)
    rows = []
    cols = ["Step"]
    M = [("train/fm", fm, 5), ("train/kld_per_dim", kl, 8), ("text_enc/mu_rms", mu, 6), ("text_enc/sigma_mean", sd, 5), ("text_enc/sigma_min", sd - .004 - .2 * np.exp(-s / 900), 5),
         ("text_enc/sigma_max", sd + .004 + .2 * np.exp(-s / 900), 5), ("train/kl_weight", np.ones(len(s)), 1), ("eval/clip_sim", np.where(s % 2000 == 0, .163 + r.normal(0, .001, len(s)), np.nan), 5), ("lr", np.minimum(1, s / 1000) * 1e-4, 9)]
    for m, _, _ in M:
        cols += [f"{n} - {m}", f"{n} - {m}__MIN", f"{n} - {m}__MAX"]
    for i, k in enumerate(s):
        d = {"Step": int(k)}
        for m, v, p in M:
            x = None if np.isnan(v[i]) else round(float(v[i]), p)
            d[f"{n} - {m}"] = d[f"{n} - {m}__MIN"] = d[f"{n} - {m}__MAX"] = x
        rows.append(d)
    return tocsv(rows, cols)


@case("i17", "i17_nohup.out", "HF Trainer stdout dicts", "grad_vanishing",
      "grad_norm falls from 0.7 over 1e-3 to 4e-9 within 1,500 steps and stays there, learning_rate is ordinary (1e-4 cosine); loss stays high at 1.86 and eval_loss too.")
def _(r):
    L = ["***** Running training *****", "  Num examples = 120,000", "  Num Epochs = 3", "  Instantaneous batch size per device = 16", "  Total optimization steps = 11,250", "  Number of trainable parameters = 203,411,984"]
    for s in range(10, 7001, 10):
        g = max(.72 * math.exp(-s / 82), 4.1e-9) * math.exp(r.normal(0, .25))
        l = 1.861 + .13 * math.exp(-s / 180) + r.normal(0, .013)
        L.append(str({"loss": round(l, 4), "grad_norm": g, "learning_rate": float("%.12g" % float(lr_cos(s, 1e-4, 500, 11250))), "epoch": round(s / 3750, 2)}))
        if s % 1000 == 0:
            L.append(str({"eval_loss": round(1.8622 + r.normal(0, .0015), 5), "eval_runtime": round(61.2 + r.normal(0, .3), 4), "eval_samples_per_second": 32.7, "epoch": round(s / 3750, 2)}))
        if s % 500 == 0:
            L.append(f" {100*s//11250:2d}%|{bar(s/11250)}| {s}/11250 [{hms(s*.92)}<{hms((11250-s)*.92)},  1.09it/s]")
    return J(*L)

# =====================================================================
# B. common trackers and trainers, healthy
# =====================================================================
@case("i18", "i18_kohya.log", "kohya sd-scripts LoRA progress lines", "none",
      "LoRA fine-tune on 34 images x 20 repeats: avr_loss hardly moves (0.113 -> 0.096) as usual for LoRA, val loss falls slightly and levels off. Healthy.")
def _(r):
    L = ["running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 680", "  num reg images / 正則化画像の数: 0", "  num batches per epoch / 1epochのバッチ数: 170",
         "  num epochs / epoch数: 10", "  batch size per device / バッチサイズ: 4", "  total optimization steps / 学習ステップ数: 1700", "network for U-Net: 264 modules, rank 32, alpha 16.0"]
    for s in range(1, 1701):
        if (s - 1) % 170 == 0:
            e = (s - 1) // 170 + 1
            L += ["", f"epoch {e}/10", f"INFO     epoch is incremented. current_epoch: {e-1}, epoch: {e}"]
        if s % 2 == 0:
            v = float(ex(s, .1135, .0958, 700)) + .004 * math.exp(-((s % 170) / 40)) * r.normal(0, 1) + r.normal(0, .0009)
            L.append(f"steps: {100*s/1700:3.0f}%|{bar(s/1700)}| {s}/1700 [{hms(s*.71)}<{hms((1700-s)*.71)},  1.41it/s, avr_loss={v:.4f}]")
        if s % 170 == 0:
            L.append(f"validation: val_avg_loss={float(ex(s,.1212,.1089,380))+r.normal(0,.0008):.4f} lr/unet={float(lr_cos(s,1e-4,85,1700)):.3e}")
            L.append(f"saving checkpoint: my_style-{s//170:06d}.safetensors")
    return J(*L)


@case("i19", "i19_ds_stdout.log", "DeepSpeed engine log, fp16", "none",
      "fp16: 9 overflow steps in the first 60 updates bring the scale from 2^24 to 2^15, later 3 lone overflows and normal growth. Loss and val loss fall. Healthy.")
def _(r):
    t0 = T0(2025, 3, 11, 2, 14, 7)
    L, sc, sk, s = [], 2 ** 24, 0, 0
    over = {1, 2, 3, 4, 6, 7, 9, 31, 55, 2710, 5233, 8048}
    good = 0
    for s in range(1, 9001):
        sec = s * .88
        if s in over:
            L.append(f"[{stamp(t0,sec,ms=',')}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {sc//2}")
            sc //= 2; sk += 1; good = 0
        else:
            good += 1
            if good % 2000 == 0: sc *= 2
        if s % 10 == 0:
            L.append(f"[{stamp(t0,sec,ms=',')}] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={sk}, lr=[{float(lr_cos(s-sk,8e-5,400,12000)):.10g}], mom=[(0.9, 0.95)]")
            L.append(f"[{stamp(t0,sec,ms=',')}] [INFO] [timer.py:260:stop] epoch=0/micro_step={s*2}/global_step={s}, RunningAvgSamplesPerSec={581+r.normal(0,.7):.4f}, CurrSamplesPerSec={581+r.normal(0,6):.4f}, MemAllocated=21.4GB, MaxMemAllocated=38.9GB")
            L.append(f"steps: {s} loss: {float(pw(s,1.02,.168,150,.85))+r.normal(0,.009):.4f} iter time (s): {.88+r.normal(0,.01):.3f} samples/sec: {581.8+r.normal(0,6):.3f}")
        if s % 1500 == 0:
            L.append(f"[eval] global_step {s} holdout_mse {float(pw(s,1.02,.171,150,.85))+r.normal(0,.002):.4f}")
    return J(*L)


@case("i20", "i20_repa_acc.log", "REPA train.py logger lines", "none",
      "REPA-style run with proj_loss negative by construction (cosine), a harmless restart at 150k (loss goes on on its level) and grad_norm about 0.1-0.2. Healthy.")
def _(r):
    L, t0 = [], T0(2025, 4, 1, 0, 5)
    f = lambda s: (float(pw(s, 1.95, .60, 900, .62)), -float(.62 - .60 * (1 + s / 4000) ** -.45))
    for s in range(500, 300001, 500):
        if s == 150500:
            L += [f"[{stamp(t0,s*.16+900)}] Experiment directory created at exps/sit-xl-dinov2b-enc8", f"[{stamp(t0,s*.16+910)}] SiT Parameters: 675,129,632",
                  f"[{stamp(t0,s*.16+930)}] Resuming from exps/sit-xl-dinov2b-enc8/checkpoints/0150000.pt  (model, ema, opt, steps restored)"]
        a, b = f(s)
        L.append(f"[{stamp(t0, s*.16 + (1000 if s>150000 else 0))}] step {s}: loss={a+r.normal(0,.013):.4f} proj_loss={b+r.normal(0,.004):.4f} grad_norm={(.14+.5*math.exp(-s/1500))*math.exp(r.normal(0,.15)):.4f}")
        if s % 50000 == 0:
            L.append(f"[{stamp(t0,s*.16+1100)}] FID-10K (w/o cfg, ema): {8.1+46*math.exp(-(s-50000)/60000)+r.normal(0,.2):.2f}")
    return J(*L)


@case("i21", "i21_composer.txt", "MosaicML Composer console logger", "none",
      "WSD schedule, one big spike at batch 13,120 (loss 2.9) that recovers within ~60 batches, loss bends down in the decay phase. Healthy.")
def _(r):
    L = []
    N = 24000
    for s in range(40, N + 1, 40):
        lr = float(lr_wsd(s, 1.6e-4, 1000, N, 4800))
        l = float(pw(s, 1.96, .71, 450)) - (.035 * min(1, (s - 19200) / 4800) if s > 19200 else 0) + r.normal(0, .015)
        if s in (13120, 13160): l += {13120: 2.1, 13160: .5}[s]
        g = (.33 + 1.2 * math.exp(-s / 300)) * math.exp(r.normal(0, .13)) + (9.1 if s == 13120 else 1.6 if s == 13160 else 0)
        L += [f"[batch={s}/{N}]:", "\t Train time/epoch: 0", f"\t Train time/batch: {s-1}", f"\t Train time/sample: {(s-1)*512}", f"\t Train l2_norm/grad/global: {g:.4f}", f"\t Train loss/train/total: {l:.4f}",
              f"\t Train metrics/train/MeanSquaredError: {l:.4f}", f"\t Train lr-DecoupledAdamW/group0: {lr:.4e}", f"\t Train throughput/samples_per_sec: {1412+r.normal(0,10):.4f}"]
        if s % 4000 == 0:
            L += [f"[Eval batch=32/32] Eval on coco30k data:", f"\t Eval metrics/coco30k/MeanSquaredError: {float(pw(s,1.96,.715,450))-(.035*min(1,(s-19200)/4800) if s>19200 else 0)+r.normal(0,.003):.4f}"]
    return J(*L)


@case("i22", "i22_keras_history.csv", "Keras CSVLogger", "none",
      "Noisy validation curve that plateaus (no rise), ReduceLROnPlateau lowers lr twice. Healthy.")
def _(r):
    rows, lr = [], 3e-4
    for e in range(140):
        if e in (71, 108): lr /= 3
        l = float(ex(e, .93, .187, 13)) - (.006 if e >= 71 else 0) - (.003 if e >= 108 else 0) + r.normal(0, .0018)
        v = float(ex(e, .93, .203, 12.5)) - (.006 if e >= 71 else 0) - (.002 if e >= 108 else 0) + r.normal(0, .0085)
        rows.append({"epoch": e, "learning_rate": lr, "loss": round(l, 6), "noise_mae": round(.8 * math.sqrt(l), 6), "val_loss": round(v, 6), "val_noise_mae": round(.8 * math.sqrt(v), 6)})
    return tocsv(rows, ["epoch", "learning_rate", "loss", "noise_mae", "val_loss", "val_noise_mae"])


@case("i23", "i23_nemo.log", "NeMo / Lightning progress lines", "none",
      "NeMo run with two spikes that recover at once, val_loss falls at every check; one NCCL warning. Healthy.")
def _(r):
    L = ["[NeMo I 2025-02-20 11:04:10 nemo_logging:393] Experiments will be logged at results/flow_dit_2b", "[NeMo W 2025-02-20 11:04:12 nemo_logging:405] No version folders would be created under the log folder as 'resume_if_exists' is enabled.",
         "[NeMo I 2025-02-20 11:05:01 nemo_logging:393] Setting up optimizer with config OptimizerConfig(optimizer='adam', lr=0.0001, weight_decay=0.01, bf16=True)"]
    v = None
    for s in range(0, 20000, 10):
        l = float(pw(s, 1.6, .48, 300, .8)) * math.exp(r.normal(0, .035))
        if s in (6420, 14980): l *= 3.1
        if s in (6430, 14990): l *= 1.25
        if s and s % 2000 == 0: v = float(pw(s, 1.6, .485, 300, .8)) + r.normal(0, .002)
        L.append(f"Training epoch 0, iteration {s}/39999 | lr: {float(lr_cos(s+1,1e-4,1000,40000,1e-5)):.3e} | consumed_samples: {(s+1)*512} | global_batch_size: 512 | global_step: {s} | reduced_train_loss: {l:.4f} | train_step_timing in s: {.913+r.normal(0,.006):.4f}" + (f" | val_loss: {v:.4f}" if v else ""))
        if s == 8880:
            L.append("[rank3]:[W220 13:20:11.881 ProcessGroupNCCL.cpp:1250] Warning: using GPU 3 to perform barrier as devices used by this process are currently unknown.")
    return J(*L)


@case("i24", "i24_trackio.json", "trackio JSON export (list of step dicts)", "none",
      "EMA evaluation lags behind the raw weights for the first 15k steps (decay 0.9999) and is better afterwards. Healthy.")
def _(r):
    A = []
    for s in range(0, 80001, 100):
        d = {"step": s, "timestamp": f"2025-08-{2+s//40000:02d}T{(s//1700)%24:02d}:{(s//28)%60:02d}:07", "loss": round(float(pw(s, 1.01, .151, 500, .9)) + r.normal(0, .007), 5), "gn": round((.09 + .8 * math.exp(-s / 400)) * math.exp(r.normal(0, .16)), 5), "lr": 1e-4 * min(1, s / 1000)}
        if s and s % 2500 == 0:
            raw = float(pw(s, 1.01, .156, 500, .9)) + r.normal(0, .0015)
            lag = max(0, s - 10000)
            ema = float(pw(lag, 1.01, .150, 500, .9)) * (1 - math.exp(-s / 9000)) + 1.01 * math.exp(-s / 9000) if s < 20000 else float(pw(s, 1.01, .152, 500, .9)) - .004 + r.normal(0, .0004)
            if s < 20000: ema = raw + (1.01 - raw) * math.exp(-s / 4200) - .003
            d["eval_loss"] = round(raw, 5); d["eval_loss_ema"] = round(ema, 5)
        A.append(d)
    return json.dumps({"project": "latent-eps", "run": "dry-river-7", "config": {"ema_decay": .9999, "batch": 256, "pred": "epsilon"}, "metrics": A})


@case("i25", "i25/vis_data/scalars.json", "mmengine scalars.json (json lines)", "none",
      "KL-autoencoder with GAN: discriminator starts at iter 10000, so loss_adv appears, g-loss oscillates around 0 and loss_disc stays near 0.8-1.0; rec and lpips fall, psnr rises to 29. Healthy.")
def _(r):
    L = []
    for s in range(50, 60001, 50):
        on = s > 10000
        rec = float(pw(s, .31, .038, 700, .8)) + (.003 * math.exp(-(s - 10000) / 2500) if on else 0)
        d = {"lr": float(lr_cos(s, 4.5e-5, 500, 80000, 4.5e-6)), "data_time": round(.009 + abs(r.normal(0, .002)), 5), "loss_rec": round(rec * math.exp(r.normal(0, .05)), 5), "loss_lpips": round((.09 + .5 * math.exp(-s / 3000)) * math.exp(r.normal(0, .05)), 5),
             "loss_kl": round(1.9e4 * (1 + .25 * (1 - math.exp(-s / 9000))) * math.exp(r.normal(0, .02)), 2), "kl_weight": 1e-6, "loss_adv": round(r.normal(.03, .22), 5) if on else 0.0, "d_weight": round(abs(r.normal(.8, .15)), 4) if on else 0.0,
             "loss_disc": round(.87 + .13 * math.exp(-(s - 10000) / 1500) + r.normal(0, .05), 5) if on else 1.0, "time": round(.41 + r.normal(0, .004), 5), "iter": s, "memory": 30121, "step": s}
        L.append(json.dumps(d))
        if s % 5000 == 0:
            L.append(json.dumps({"val/psnr": round(29.3 - 7 * math.exp(-s / 9000) - (.3 if on and s < 16000 else 0) + r.normal(0, .08), 4), "val/ssim": round(.86 - .2 * math.exp(-s / 9000), 4), "val/rfid": round(1.4 + 18 * math.exp(-s / 12000), 3), "step": s}))
    return J(*L)


@case("i26", "i26_step_logs.jsonl", "accelerate tracker jsonl (SDXL LoRA)", "none",
      "Batch size 1, step_loss scatters from 0.004 to 0.6 because of t; constant_with_warmup. The fixed-t validation loss falls from 0.131 to 0.118. Healthy.")
def _(r):
    L = []
    for s in range(1, 8001):
        t = r.random()
        base = .012 + .34 * (1 - t) ** 2.2 * (1 - .1 * (1 - math.exp(-s / 1500)))
        L.append(json.dumps({"step": s, "step_loss": round(base * math.exp(r.normal(0, .55)), 6), "lr": min(1, s / 200) * 5e-5}))
        if s % 400 == 0:
            L.append(json.dumps({"step": s, "val_loss_fixed_t": round(float(ex(s, .1313, .1178, 1800)) + r.normal(0, .0006), 6), "n_val": 256}))
    return J(*L)


@case("i27", "i27_tb_long.csv", "TensorBoard dataframe (step,tag,value)", "none",
      "Planned cosine warm restarts (SGDR, T_0=10k, T_mult=1): each restart bumps the loss by 5-8 %, it returns below the former level each time; lr goes up by plan. Healthy.")
def _(r):
    o = ["step,tag,value"]
    for s in range(0, 50001, 50):
        ph = s % 10000 / 10000
        lr = 1e-6 + (2e-4 - 1e-6) * .5 * (1 + math.cos(math.pi * ph))
        l = float(pw(s, 1.9, .60, 700, .55)) * (1 + .06 * (1 - ph) ** 1.0 * (s > 10000)) + r.normal(0, .012)
        o += [f"{s},train/flow_mse,{l:.6f}", f"{s},optim/lr,{lr:.8f}", f"{s},optim/gnorm_preclip,{(.31+.9*math.exp(-s/400))*math.exp(r.normal(0,.13)):.5f}"]
        if s % 2500 == 0 and s:
            ph2 = ph if ph else 1
            o.append(f"{s},val/flow_mse,{float(pw(s,1.9,.612,700,.55))*(1+.06*(1-ph2)*(s>10000))+r.normal(0,.004):.6f}")
        if s == 0: o.append("0,config/sgdr_T0,10000")
    return J(*o)

# =====================================================================
# C. own loops, broken
# =====================================================================
@case("i28", "i28_stage1.log", "own loop, pipe separated", "kl_not_acting",
      "w_kl=1e-7: kl_term (per dim) grows from 0.1 to 20 while fm_rel (mse/E|v*|^2) falls, mu_rms grows from 0.4 to 6.3, sig drifts to 0.62, z_txt_std to 6.3: the KL weight is set but does not pull.")
def _(r):
    L = ["cfg: w_fm=1.0 w_kl=1e-07 prior=N(0,I) kl=analytic(mu,lv) per-dim mean  fm_rel=mse/E|v*|^2  bs=384 lr=1e-4 dim=4096", "start"]
    for s in range(0, 30001, 50):
        mu = .38 + 6.1 * (1 - math.exp(-s / 13000)) * 1.1 * math.exp(r.normal(0, .015))
        sg = .62 + .37 * math.exp(-s / 8000) + r.normal(0, .003)
        kl = .5 * (mu ** 2 + sg ** 2 - 1 - 2 * math.log(sg))
        n = float(pw(s, .98, .30, 500, .7))
        n += r.normal(0, .008)
        L.append(f"it {s:06d} | fm_rel {n:.4f} | kl_term {kl:.4f} | mu_rms {mu:.4f} | sig {sg:.4f} | z_txt_std {math.sqrt(mu*mu+sg*sg):.4f} | v_cos {math.sqrt(max(0,1-n)):.4f} | gnorm {(.5+1.4*math.exp(-s/300))*(1+.1*mu)*math.exp(r.normal(0,.1)):.3f} | lr {float(lr_cos(s,1e-4,500,60000,1e-6)):.2e}")
    return J(*L)


@case("i29", "i29_vehead.csv", "own csv, semicolon", "sigma_collapse",
      "Text head's log-variance runs to its clamp [-10, 2]: lv_mean -0.2 -> -9.99, lv_min -10, sig_mean 0.9 -> 0.0068; mu stays of ordinary size (0.98).", ["z0_leak"])
def _(r):
    o = ["iter;L_fm;L_kl;mu_rms;lv_mean;lv_min;lv_max;sig_mean;gn;lr"]
    for s in range(100, 50001, 100):
        lv = -9.985 + 9.8 * math.exp(-s / 6500) + r.normal(0, .01) * math.exp(-s / 20000)
        lv = max(-10, lv)
        lmin = max(-10.0, lv - 2.4 * math.exp(-s / 25000) - .1)
        lmax = min(2, lv + 2.2 * math.exp(-s / 5000) + .02)
        mu = .98 - .4 * math.exp(-s / 2500) + r.normal(0, .006)
        sg = math.exp(lv / 2)
        kl = .5 * (mu ** 2 + math.exp(lv) - 1 - lv)
        o.append(f"{s};{float(pw(s,1.8,.62,700,.8))+r.normal(0,.014):.5f};{kl:.5f};{mu:.4f};{lv:.4f};{lmin:.4f};{lmax:.4f};{sg:.5f};{(.4+math.exp(-s/600))*math.exp(r.normal(0,.14)):.4f};{float(lr_wsd(s,1e-4,1000,80000,8000)):.3e}")
    return J(*o)


@case("i30", "i30_run.jsonl", "own jsonl", "z0_leak",
      "one_step.cos 0.97 and one_step.relerr 0.06 look splendid, but sig_z0 sank to 0.11, the shooting error from z0 stays at 1.2 (latent rms 1.0), sample FID stays ~210: z0 is so narrow that x_t reveals z1.")
def _(r):
    L = []
    for s in range(0, 40001, 100):
        sg = .11 + .85 * math.exp(-s / 5000) + r.normal(0, .002)
        n = .048 + .9 * (1 + s / 900) ** -1.3 + abs(r.normal(0, .003))
        n = min(n, .985)
        c = math.sqrt(1 - n)
        d = {"k": s, "fm": round(n * 1.93, 5), "one_step": {"cos": round(c, 4), "relerr": round(n, 4), "len": round(c + r.normal(0, .003), 4)}, "z0": {"sig_mean": round(sg, 4), "mu_rms": round(.93 + r.normal(0, .004), 4)}, "z1_rms": round(1.003 + r.normal(0, .006), 4), "gnorm": round((.3 + math.exp(-s / 500)) * math.exp(r.normal(0, .12)), 4), "lr": 1e-4}
        if s % 4000 == 0 and s:
            d["shoot"] = {"rmse_16": round(1.19 + r.normal(0, .02), 4), "rmse_64": round(1.21 + r.normal(0, .02), 4)}
            d["fid_2k"] = round(211 + r.normal(0, 5), 1)
        L.append(json.dumps(d))
    return J(*L)


@case("i31", "i31_train_out.txt", "own loop, key=value", "moving_target",
      "fm falls to 0.004 - because vstar_rms itself shrinks from 1.42 to 0.09 (d(z0,z1) likewise), while rel (fm/|v*|^2) stays at ~0.5 and the FID of the samples remains 300+. The target is pulled through the undetached z0.")
def _(r):
    L = ["[setup] fm loss = mse(v_hat, z1 - z0); z0 from text head (reparam), z1 from frozen vae", "[setup] 8 gpu, bs 512, adamw 1e-4"]
    for s in range(0, 36001, 60):
        v = (.085 + 1.335 * math.exp(-s / 5200)) * math.exp(r.normal(0, .012))
        rel = .46 + .5 * math.exp(-s / 700) + r.normal(0, .012)
        L.append(f"[{s:>6}] fm={rel*v*v:.5f} vstar_rms={v:.4f} rel={rel:.3f} d(z0,z1)={v*64:.2f} |z1|={64.1+r.normal(0,.3):.2f} cos={math.sqrt(max(.002,1-rel)):.3f} gn={(.02+.5*math.exp(-s/4000))*math.exp(r.normal(0,.15)):.4f} lr={float(lr_cos(s,1e-4,500,60000)):.2e}")
        if s % 6000 == 0 and s:
            L.append(f"[eval {s}] 1k samples: fid={312+r.normal(0,6):.1f} clip={.171+r.normal(0,.002):.3f}")
    return J(*L)


@case("i32", "i32_capcheck.log", "own loop with caption ablation", "condition_unused",
      "The FM loss falls 1.95 -> 0.82 but the loss with shuffled captions and with empty captions equals the one with true captions within 0.001 all along; the CLIP score stays at 0.16.")
def _(r):
    L = ["# every 500 it: val fm_loss on 4096 pairs, same noise and t, captions = true / rolled by 1 in batch / empty string"]
    for s in range(4, 40001, 4):
        L.append(f"{s:>6d}  fm_loss {float(pw(s,1.95,.80,600))+r.normal(0,.02):.4f}  gnorm {(.28+math.exp(-s/400))*math.exp(r.normal(0,.12)):.3f}  lr {1e-4*min(1,s/1000):.1e}  {1.83+r.normal(0,.02):.2f} it/s")
        if s % 500 == 0:
            v = float(pw(s, 1.95, .805, 600)) + r.normal(0, .002)
            L.append(f"   val@{s}: true {v:.4f}  rolled {v+r.normal(0,.0005):.4f}  empty {v+r.normal(.0002,.0006):.4f}" + (f"  clip {.1610+r.normal(0,.0012):.4f}" if s % 2000 == 0 else ""))
    return J(*L)


@case("i33", "i33_sem_distill.log", "own loop, DINO branch", "teacher_collapsed",
      "K=65536 (log K = 11.09), T_t=0.01 and no centring: H_teacher falls to 0.03 at once, agreement is one prototype; the student's entropy follows to 0.9.")
def _(r):
    L = ["proto K=65536 logK=11.090  T_s=0.1  T_t=0.01  center=False  w_sem=0.5"]
    for s in range(0, 20001, 40):
        ht = .031 + 5.5 * math.exp(-s / 260) + abs(r.normal(0, .006))
        hs = .92 + 9.9 * math.exp(-s / 2500) + r.normal(0, .05)
        ce = max(ht + .25 + 8.5 * math.exp(-s / 2600), .2) + r.normal(0, .03)
        L.append(f"step={s} fm={float(pw(s,1.9,.74,500))+r.normal(0,.02):.4f} sem_ce={ce:.4f} H_teacher={ht:.4f} H_student={hs:.3f} top1_proto_share={1-.99*math.exp(-s/500)-abs(r.normal(0,.003)):.3f} gn_fm={.41*math.exp(r.normal(0,.1)):.3f} gn_sem={.09*math.exp(-s/5000)*math.exp(r.normal(0,.15))+.04*math.exp(r.normal(0,.1)):.3f} lr={float(lr_cos(s,2e-4,500,40000,1e-6)):.2e}")
    return J(*L)


@case("i34", "i34_align_metrics.tsv", "own tsv", "teacher_uniform",
      "K=4096, log K = 8.318: ent_t sits at 8.3177 in each row, the DINO loss equals log K and does not move. The fm loss is fine.")
def _(r):
    o = ["# n_proto=4096 (ln=8.3178) tau_s=0.1 tau_t=1.0 center_m=0.9", "iter\tfm_loss\tdino_ce\tent_t\tent_s\tkl_t_s\tgnorm\tlr"]
    for s in range(50, 25001, 50):
        et = 8.31776 - abs(r.normal(0, 4e-5))
        es = 8.31 - .5 * math.exp(-s / 600) - abs(r.normal(0, .002))
        k = .0004 + .12 * math.exp(-s / 500) + abs(r.normal(0, .0001))
        o.append(f"{s}\t{float(pw(s,1.96,.73,500))+r.normal(0,.018):.4f}\t{et+k:.5f}\t{et:.5f}\t{es:.4f}\t{k:.5f}\t{(.3+math.exp(-s/400))*math.exp(r.normal(0,.12)):.4f}\t{float(lr_cos(s,1e-4,800,50000)):.3e}")
    return J(*o)


@case("i35", "i35_sem_head.jsonl", "own jsonl, DINO branch", "student_saturated",
      "K=8192 (ln K 9.01): the teacher has an ordinary entropy of 3.9, the student's falls to 0.06 (T_s=0.01), the DINO gradient is 0.3 % of the total and the DINO loss stays high.", ["weak_gradient_share"])
def _(r):
    L = [json.dumps({"event": "config", "K": 8192, "lnK": 9.0109, "T_s": .01, "T_t": .07, "w_dino": .3})]
    for s in range(0, 24001, 60):
        hs = .055 + 6.5 * math.exp(-s / 700) + abs(r.normal(0, .008))
        gt = (.52 + 1.0 * math.exp(-s / 400)) * math.exp(r.normal(0, .1))
        L.append(json.dumps({"event": "train", "it": s, "L": {"fm": round(float(pw(s, 1.93, .75, 500)) + r.normal(0, .018), 4), "dino": round(10.4 + 1.1 * math.exp(-s / 900) + r.normal(0, .12), 4)}, "H": {"teacher": round(3.92 + .3 * math.exp(-s / 2000) + r.normal(0, .04), 3), "student": round(hs, 4)},
                             "g": {"fm": round(gt * .998, 4), "dino": round(gt * (.003 + .2 * math.exp(-s / 600)) * math.exp(r.normal(0, .2)), 5), "total": round(gt, 4)}, "lr": 1e-4 * min(1, (s + 1) / 1000)}))
    return J(*L)


@case("i36", "i36_update_ratios.log", "own loop with ||dw||/||w|| table", "head_not_updated",
      "dw/w of z_head is 2e-8 for all 30k steps, while backbone (1e-4) and flow_head (4e-4) are ordinary with the same lr; z_head outputs do not change (mu_rms constant).")
def _(r):
    L = ["param groups: backbone 412 tensors lr 1e-4 | flow_head 6 tensors lr 1e-4 | z_head 6 tensors lr 1e-4"]
    for s in range(100, 30001, 100):
        sc = float(lr_cos(s, 1, 1000, 60000, .05))
        L.append(f"{s:6d} loss {float(pw(s,1.97,.78,600))+r.normal(0,.017):.4f} gn {(.33+math.exp(-s/400))*math.exp(r.normal(0,.12)):.3f} lr {1e-4*sc:.2e} || dw/w  backbone {1.3e-4*sc*math.exp(r.normal(0,.08)):.2e}  flow_head {4.4e-4*sc*math.exp(r.normal(0,.1)):.2e}  z_head {2.1e-8*math.exp(r.normal(0,.2)):.2e} || mu_rms {.5132+r.normal(0,.0006):.4f} v_cos {math.sqrt(max(0,1-float(pw(s,1.97,.78,600))/2.0)):.3f}")
    return J(*L)


@case("i37", "i37_gradshare.csv", "own csv with per-term gradient norms", "weak_gradient_share",
      "gn_dino / gn_all is 0.4-0.9 % in the whole run and dino loss does not fall (7.9 -> 7.85), while gn_flow carries all and gn_kl about 20 %; w_dino=0.005. The entropies are ordinary.")
def _(r):
    o = ["step,loss,l_flow,l_kl,l_dino,gn_flow,gn_kl,gn_dino,gn_all,ent_t,ent_s,w_flow,w_kl,w_dino,lr"]
    for s in range(0, 32001, 80):
        lf = float(pw(s, 1.95, .74, 550)) + r.normal(0, .016)
        lk = .34 + .5 * math.exp(-s / 1500) + r.normal(0, .006)
        ld = 7.85 + .06 * math.exp(-s / 8000) + r.normal(0, .02)
        gf = (.44 + 1.2 * math.exp(-s / 350)) * math.exp(r.normal(0, .1))
        gk = gf * .21 * math.exp(r.normal(0, .1))
        gd = gf * .0062 * math.exp(r.normal(0, .15))
        o.append(f"{s},{lf+.01*lk+.005*ld:.5f},{lf:.5f},{lk:.5f},{ld:.5f},{gf:.5f},{gk:.5f},{gd:.6f},{math.sqrt(gf*gf+gk*gk+gd*gd):.5f},{4.61+r.normal(0,.03):.4f},{6.9+r.normal(0,.03):.4f},1.0,0.01,0.005,{float(lr_cos(s,1e-4,1000,64000,1e-6)):.4e}")
    return J(*o)


@case("i38", "i38_flow_t.log", "own loop printing t statistics", "time_sampling",
      "Config says t~U[0,1] (mean 0.5, std 0.289), the batches have t mean 0.25, std 0.144, max 0.4999: only the noisy half is trained. The t>0.5 validation buckets stay bad.")
def _(r):
    L = ["config: t_dist=uniform(0,1)  path=linear  x0=noise x1=latent  bs=512"]
    for s in range(0, 20001, 25):
        t = r.random(512) * .5
        l = float(pw(s, 2.0, .95, 500)) + r.normal(0, .02)
        L.append(f"step {s:5d} fm_loss {l:.4f} t(mean/std/min/max) {t.mean():.4f}/{t.std():.4f}/{t.min():.4f}/{t.max():.4f} gnorm {(.3+math.exp(-s/300))*math.exp(r.normal(0,.12)):.3f} lr {1e-4*min(1,s/500):.1e}")
        if s % 2500 == 0 and s:
            b = float(pw(s, 2.0, .95, 500))
            L.append("      val by t-bucket [0-.25 .25-.5 .5-.75 .75-1]: " + " ".join(f"{x+r.normal(0,.005):.3f}" for x in (b + .1, b - .1, 1.71, 2.34)))
    return J(*L)


@case("i39", "i39_slices.jsonl", "own jsonl with per-slice nmse/cos", "t_edges",
      "Slices s1..s8 have nmse 0.3-0.4 (cos 0.8), but s0 and s9 stay at nmse 2.4-3.0 and cos 0.1-0.2 to the end.")
def _(r):
    L = []
    mid = np.array([0, .42, .37, .33, .31, .31, .33, .36, .41, 0])
    for s in range(0, 30001, 200):
        n = np.zeros(10); c = np.zeros(10)
        for b in range(10):
            if b in (0, 9):
                e = (2.45, 3.02)[b == 9]
                n[b] = e * math.exp(r.normal(0, .06)) if s > 600 else 1 + (e - 1) * s / 600
                c[b] = (.19, .11)[b == 9] + r.normal(0, .015)
                if s < 400: c[b] *= s / 400
            else:
                n[b] = float(pw(s, 1.0, mid[b] - .03, 350, .9)) + r.normal(0, .008)
                c[b] = math.sqrt(max(0.0004, 1 - min(.9996, n[b]))) + r.normal(0, .004)
        L.append(json.dumps({"it": s, "fm_loss": round(float(n.mean()) * 1.98, 4), "gnorm": round(float((.6 + 1.2 * np.exp(-s / 300)) * np.exp(r.normal(0, .14))), 3), "lr": round(float(lr_cos(s, 1e-4, 500, 60000)), 9), "nmse_s": [round(float(x), 3) for x in n], "cos_s": [round(float(x), 3) for x in c], "slices": "10 x [0,1]"}))
    return J(*L)


@case("i40", "i40_pokemon_ft.txt", "own loop, epoch lines", "overfitting",
      "833 images, full fine-tune, 400 epochs: tr goes 0.74 -> 0.17 while held-out ho (fixed noise/t) is best at epoch 60 (0.66) and rises to 0.97; ho_cos falls 0.81 -> 0.71. EMA shows the same.")
def _(r):
    L = ["833 train / 96 held-out, 512px, bs 16, lr 2e-5 const after 100 it, ema .999; ho = fixed (noise,t) x 8 per image", "epoch |   tr   |   ho   | ho_ema | ho_cos | gnorm | lr"]
    for e in range(1, 401):
        tr = float(ex(e, .745, .155, 135)) + r.normal(0, .009)
        line = f"{e:5d} | {tr:.4f} |"
        if e % 4 == 0:
            ho = .66 + .08 * math.exp(-e / 16) + .00094 * max(0, e - 62) + r.normal(0, .005)
            em = ho - .006 * (e < 120) - .012 + r.normal(0, .002)
            line += f" {ho:.4f} | {em:.4f} | {math.sqrt(max(0,1-ho/1.98)):.4f} |"
        else:
            line += "   -    |   -    |   -    |"
        L.append(line + f" {(.42+.0004*e)*math.exp(r.normal(0,.1)):.3f} | 2.0e-05")
    return J(*L)


@case("i41", "i41_spot.jsonl", "own jsonl, spot instance with resume", "resume_from_scratch",
      "Restart at it=22400: 'loaded ckpt' event, the counter goes on, but fm is 1.97 again, v_cos 0.02, gnorm 1.4 and all fall as at the start of the run.")
def _(r):
    L = [json.dumps({"ev": "start", "host": "w0", "it": 0, "total": 60000})]
    def row(it, age):
        n = float(pw(age, .985, .365, 420, .8)) + r.normal(0, .008)
        return json.dumps({"ev": "tr", "it": it, "fm": round(n * 1.995, 4), "v_cos": round(math.sqrt(max(.0004, 1 - min(n, .9996))), 4), "rel": round(n, 4), "gnorm": round(float((.3 + 1.15 * np.exp(-age / 350)) * np.exp(r.normal(0, .12))), 3), "lr": round(float(lr_wsd(it, 1.2e-4, 800, 60000, 6000)), 9), "x/s": round(488 + r.normal(0, 5), 1)})
    for it in range(0, 22401, 50):
        L.append(row(it, it))
        if it % 3200 == 0 and it: L.append(json.dumps({"ev": "ckpt", "it": it, "file": f"ck_{it}.pt"}))
    L += [json.dumps({"ev": "SIGTERM", "it": 22410}), json.dumps({"ev": "start", "host": "w0", "it": 22400, "total": 60000}), json.dumps({"ev": "loaded ckpt", "file": "ck_22400.pt", "missing": 612, "unexpected": 612, "strict": False})]
    for it in range(22450, 38001, 50):
        L.append(row(it, it - 22400))
    return J(*L)


@case("i42", "i42_sit_own_eval.csv", "own csv, alignment probe", "wrong_target",
      "Training loss falls as expected (2.0 -> 0.75), but the alignment probe against x1-x0 gives cos -0.02 -> -0.78 with |v|/|v*| 0.78 and nmse 2.8: the network learned x0 - x1 (sign flipped).")
def _(r):
    o = ["it,fm_loss,gnorm,lr,probe_cos_v_x1mx0,probe_len_ratio,probe_nmse,probe_cos_v_x1"]
    for s in range(0, 30001, 50):
        l = float(pw(s, 2.0, .74, 500))
        a = f"{s},{l+r.normal(0,.02):.4f},{(.3+math.exp(-s/400))*math.exp(r.normal(0,.12)):.4f},{float(lr_cos(s,1e-4,500,60000,1e-6)):.3e},"
        if s % 500 == 0:
            c = math.sqrt(max(0.0003, 1 - l / 2.0)) + r.normal(0, .003)
            q = c + r.normal(0, .003) + .01
            a += f"{-c:.4f},{q:.4f},{nm(-c,q):.4f},{-c*.72+r.normal(0,.006):.4f}"
        else:
            a += ",,,"
        o.append(a)
    return J(*o)


@case("i43", "i43_txt2lat.out", "own loop with norms", "scale_mismatch",
      "|z0| is 943 and |z1| 126 (16384 dims) in every line: 7.5x apart; |v*| = 951 is entirely z0; the fm loss is dominated by z0 (56) and samples stay grey.")
def _(r):
    L = ["txt2lat  latent 16x32x32 (16384)  path linear z0->z1  z0 = text tokens reshaped (layernorm, gain 7.4)"]
    for s in range(0, 15001, 20):
        z0, z1 = 943 + r.normal(0, 6), 126.3 + r.normal(0, 1.5)
        vs = math.sqrt(z0 ** 2 + z1 ** 2)
        n = float(pw(s, .99, .019, 300, 1.0)) * math.exp(r.normal(0, .06))
        L.append(f"{s:5d}: fm {n*vs*vs/16384:.4f}  |z0| {z0:.1f}  |z1| {z1:.1f}  |x_t| {math.sqrt(z0**2+z1**2)/math.sqrt(3)*math.exp(r.normal(0,.02)):.1f}  |v*| {vs:.1f}  |v| {vs*math.sqrt(max(0.0003,1-n)):.1f}  gn {(2.1+9*math.exp(-s/250))*math.exp(r.normal(0,.15)):.2f}  lr {1e-4*min(1,s/500):.1e}")
        if s % 5000 == 0 and s: L.append(f"   samples@{s}: pix mean {.497+r.normal(0,.003):.3f} std {.046+r.normal(0,.002):.3f}  fid(1k) {341+r.normal(0,5):.0f}")
    return J(*L)


@case("i44", "i44_latent_stats.log", "own loop, latent stats in header and lines", "latent_scale_factor",
      "vae.config.scaling_factor 0.18215, z1_std is 0.181 instead of 1 (factor applied twice: cache already scaled), x0 std 1; the decoded target is blurred (dec_psnr 14 dB; 30.1 dB if divided once more).", ["scale_mismatch"])
def _(r):
    L = ["vae: sd-vae-ft-mse  scaling_factor=0.18215  latents from cache", "sanity: decode(z1/sf) psnr=14.2 dB | decode(z1/sf/sf) psnr=30.1 dB"]
    for s in range(0, 12001, 20):
        z = .1812 + r.normal(0, .0015)
        e = 1 + z * z
        n = float(pw(s, .99, .03, 250, .95)) * math.exp(r.normal(0, .04))
        L.append(f"s{s:05d} fm_loss={n*e:.4f} z1_std={z:.4f} z1_absmax={.93+abs(r.normal(0,.08)):.2f} x0_std={1+r.normal(0,.001):.4f} v_cos={math.sqrt(max(0.0004,1-min(n,.9996))):.4f} gnorm={(.2+1.1*math.exp(-s/250))*math.exp(r.normal(0,.14)):.3f} lr={float(lr_cos(s,1e-4,300,30000)):.2e}")
    return J(*L)

# =====================================================================
# D. own loops, healthy
# =====================================================================
@case("i45", "i45_ve.log", "own loop with KL warm-up", "none",
      "KL warm-up over 10k steps: kl_term rises while the weight is ~0, then falls and settles at 0.18/dim; mu_rms 0.56, sigma 0.87; text still distinguishable (txt_cos 0.3). Healthy.")
def _(r):
    L = ["kl warmup 0 -> 1e-2 over 10000 it, lv clamp [-8,4], stop_grad on v*"]
    for s in range(0, 50001, 100):
        w = 1e-2 * min(1, s / 10000)
        up = math.exp(-((s - 3500) / 3200) ** 2)
        mu = .56 + .75 * up + r.normal(0, .006) - .25 * math.exp(-s / 500)
        sg = .87 - .12 * up + r.normal(0, .003)
        kl = .5 * (mu ** 2 + sg ** 2 - 1 - 2 * math.log(sg))
        e = 1 + mu * mu + sg * sg
        n = float(pw(s, .98, .34, 600))
        L.append(f"i={s} fm={n*e+r.normal(0,.015):.4f} kl_term={kl:.4f} beta={w:.2e} mu_rms={mu:.3f} sig={sg:.3f} z_txt_std={math.sqrt(mu*mu+sg*sg):.3f} nmse={n+r.normal(0,.004):.3f} cosv={math.sqrt(1-n):.3f} txt_cos={.31+r.normal(0,.01):.3f} gnorm={(.35+math.exp(-s/500))*math.exp(r.normal(0,.12)):.3f}")
    return J(*L)


@case("i46", "i46_ret.jsonl", "own jsonl in 'ret' style, reordered names", "none",
      "Three-loss run with ordinary gradient shares (dino ~30 %, kl ~12 %), teacher/student entropies in the middle, update ratios 1e-4, cond gain positive. Healthy.")
def _(r):
    L = []
    for s in range(0, 40001, 100):
        g = (.4 + 1.1 * math.exp(-s / 400)) * math.exp(r.normal(0, .1))
        n = float(pw(s, .985, .33, 500)) + r.normal(0, .006)
        n = min(n, .99)
        d = {"n": s, "loss_fm": round(n * 1.97, 4), "loss_sem": round(6.1 + 2.6 * math.exp(-s / 5000) + r.normal(0, .03), 4), "loss_kl": round(.19 + .3 * math.exp(-s / 2000) + r.normal(0, .004), 4),
             "gshare": {"fm": round(.93 + r.normal(0, .01), 3), "sem": round(.31 + r.normal(0, .02), 3), "kl": round(.12 + r.normal(0, .01), 3)}, "g_all": round(g, 4), "H": {"t": round(4.4 + .8 * math.exp(-s / 3000) + r.normal(0, .03), 3), "s": round(5.6 + 2.3 * math.exp(-s / 4000) + r.normal(0, .03), 3), "lnK": 9.704},
             "upd": {"z_head": float(f"{1.9e-4*math.exp(r.normal(0,.1)):.3g}"), "v_head": float(f"{3.2e-4*math.exp(r.normal(0,.1)):.3g}")}, "v": {"cos": round(math.sqrt(1 - n), 4), "nmse": round(n, 4), "len": round(math.sqrt(1 - n) + .01, 4)}}
        if s % 4000 == 0 and s: d["cond_gain"] = round(.031 + .04 * (1 - math.exp(-s / 9000)) + r.normal(0, .003), 4)
        L.append(json.dumps(d))
    return J(*L)


@case("i47", "i47_anchor.log", "own loop, KL only monitored", "none",
      "Recipe with std_range anchor: kl is only monitored (detached, w=0), so g_kl is 0 by design; mu_rms and sig stay bounded (0.8 / 0.55) through the anchor; loss and held-out fall. Healthy.")
def _(r):
    L = ["recipe: z-reg = std_range[0.4,0.8] + anchor(|mu|<=1);  kl is logged only (detach, weight 0)"]
    for s in range(0, 30001, 75):
        mu = .81 - .3 * math.exp(-s / 1500) + r.normal(0, .005); sg = .55 + .25 * math.exp(-s / 2500) + r.normal(0, .003)
        kl = .5 * (mu ** 2 + sg ** 2 - 1 - 2 * math.log(sg))
        n = float(pw(s, .985, .32, 500))
        g = (.36 + math.exp(-s / 400)) * math.exp(r.normal(0, .11))
        L.append(f"#{s} L_fm {n*1.96+r.normal(0,.014):.4f} L_reg {.004+.05*math.exp(-s/900)+abs(r.normal(0,.0005)):.4f} kl(mon) {kl:.3f} mu {mu:.3f} sig {sg:.3f} | g_fm {g:.3f} g_reg {g*.09*math.exp(r.normal(0,.1)):.3f} g_kl 0.000 | vcos {math.sqrt(1-n):.3f} lr {float(lr_cos(s,1e-4,500,50000,1e-6)):.1e}")
        if s % 3000 == 0 and s: L.append(f"  heldout L_fm {n*1.96+.012+r.normal(0,.003):.4f} endpt_rmse@8/32 {.69-.1*(1-n)+r.normal(0,.004):.3f}/{.61-.1*(1-n)+r.normal(0,.004):.3f}")
    return J(*L)


@case("i48", "i48_preempt.out", "slurm output, own loop, three requeues", "none",
      "Three requeues; each time the last 100-300 steps are repeated, loss, lr and scaler continue on their level. Healthy.")
def _(r):
    L, t0, sec = [], T0(2025, 7, 8, 22, 0, 0), 0
    segs = [(0, 7340), (7200, 15890), (15600, 21010), (20800, 32000)]
    for j, (a, b) in enumerate(segs):
        L.append(f"=== job 55{81+j*37} start {stamp(t0,sec)} node n{r.integers(1,40):02d} ===")
        if a: L.append(f"found last.pt -> it {a}, best_val {float(pw(a,1.0,.16,400,.9))+.004:.4f}; rng/opt/sched restored")
        for s in range(a + 5, b + 1, 5):
            sec += 3.25
            L.append(f"{stamp(t0,sec,'%H:%M:%S')} it {s}/32000 eps_mse {float(pw(s,1.0,.158,400,.9))+r.normal(0,.007):.4f} ema_mse {float(pw(max(0,s-200),1.0,.158,400,.9))+r.normal(0,.002):.4f} gn {(.1+.7*math.exp(-s/400))*math.exp(r.normal(0,.15)):.3f} lr {float(lr_cos(s,2e-4,1000,32000,2e-6)):.3e}")
            if s % 2000 == 0: L.append(f"{stamp(t0,sec+2,'%H:%M:%S')} VAL it {s} eps_mse {float(pw(s,1.0,.163,400,.9))+r.normal(0,.0015):.4f}")
        if j < 3: L.append(f"slurmstepd: error: *** JOB 55{81+j*37} ON n07 CANCELLED AT {stamp(t0,sec,'%Y-%m-%dT%H:%M:%S')} DUE TO PREEMPTION ***"); sec += int(r.integers(600, 9000))
    L.append("done. 32000 it")
    return J(*L)


@case("i49", "i49_ranks.log", "own loop, interleaved rank lines", "none",
      "8 ranks print interleaved; local losses scatter by 10 %, rank 5 sees one bad batch (5.2) at step 3150; the mean falls. Healthy.")
def _(r):
    L = []
    for s in range(0, 6001, 10):
        b = float(pw(s, 1.95, .81, 220))
        ranks = list(r.permutation(8))
        for k in ranks:
            x = b * math.exp(r.normal(0, .09))
            if s == 3150 and k == 5: x = 5.21
            L.append(f"[rank{k}] step {s} local_fm {x:.4f} data {abs(r.normal(.012,.006)):.3f}s")
        L.append(f"[rank0] step {s} mean_fm {b*math.exp(r.normal(0,.03))+(.54 if s==3150 else 0):.4f} gnorm {(.4+1.2*math.exp(-s/200))*math.exp(r.normal(0,.1))+(2.3 if s==3150 else 0):.3f} (clip 1.0) lr {float(lr_cos(s+1,3e-4,300,12000)):.2e}")
        if s % 500 == 0 and s: L.append(f"[rank0] val step {s} mean_fm {b+.013+r.normal(0,.004):.4f} v_cos {math.sqrt(1-b/2):.4f}")
    return J(*L)


@case("i50", "i50_small.csv", "own csv, small data set", "none",
      "2k-image set, noisy validation (few samples) that falls and then plateaus within its noise for 100 epochs, the train loss is a little lower (gap 6 %). Healthy.")
def _(r):
    o = ["ep,imgs_seen,tr_vloss,va_vloss,va_psnr_1step,lr"]
    for e in range(1, 201):
        o.append(f"{e},{e*2048},{float(ex(e,.97,.405,22))+r.normal(0,.006):.4f},{float(ex(e,.98,.432,20))+r.normal(0,.017):.4f},{21.4-5*math.exp(-e/25)+r.normal(0,.22):.2f},{float(lr_cos(e,1e-4,5,200,1e-6)):.3e}")
    return J(*o)


@case("i51", "i51_amp.txt", "own loop with GradScaler", "none",
      "Scale starts at 65536, is halved a few times, grows again every 2000 good steps; skipped stays at 0.1 %. Loss falls. Healthy.")
def _(r):
    L, sc, good, sk = [], 65536.0, 0, 0
    for s in range(1, 30001):
        if s in (1, 2, 5) or (sc > 120000 and r.random() < .0016):
            sc /= 2; good = 0; sk += 1
        else:
            good += 1
            if good == 2000: sc *= 2; good = 0
        if s % 60 == 0:
            L.append(f"u{s} | v-mse {float(pw(s,1.0,.241,300,.85))+r.normal(0,.008):.4f} | gnorm(unscaled) {(.16+.9*math.exp(-s/300))*math.exp(r.normal(0,.15)):.3f} | amp {sc:.0f} | skipped {sk} | lr {float(lr_wsd(s,1e-4,600,40000,8000)):.2e}")
        if s % 3000 == 0: L.append(f"u{s} ~ val v-mse {float(pw(s,1.0,.247,300,.85))+r.normal(0,.002):.4f}")
    return J(*L)


@case("i52", "i52_edm_stats.jsonl", "EDM stats.jsonl", "none",
      "EDM-style loss with weighting (0.6 -> 0.19), noisy per tick, FID with EMA falls and wobbles at the end by 0.05. Healthy.")
def _(r):
    L = []
    for t in range(0, 401):
        k = t * 50
        l = float(pw(k, .62, .183, 300, .7)) + r.normal(0, .0022)
        d = {"Loss/loss": {"num": 50176, "mean": l, "std": .21 + r.normal(0, .004)}, "Progress/tick": {"num": 1, "mean": float(t), "std": 0.0}, "Progress/kimg": {"num": 1, "mean": k + .128, "std": 0.0}, "Timing/total_sec": {"num": 1, "mean": t * 211.3, "std": 0.0}, "Resources/peak_gpu_mem_gb": {"num": 1, "mean": 22.71, "std": 0.0}, "timestamp": 1730000000 + t * 211.3}
        L.append(json.dumps(d))
        if t % 50 == 0 and t: L.append(json.dumps({"results": {"fid5k_full": round(3.31 + 17 * math.exp(-k / 3000) + r.normal(0, .04), 4)}, "metric": "fid5k_full", "snapshot_pkl": f"network-snapshot-{k:06d}.pkl", "timestamp": 1730000000 + t * 211.3 + 300}))
    return J(*L)


@case("i53", "i53_progressive.log", "own loop, resolution curriculum", "none",
      "Announced stage change 256 -> 512 at 40k with a new warm-up: the loss steps from 0.62 to 0.71 (new data) and falls below 0.60 in stage 2; val per stage falls. Healthy.")
def _(r):
    L = ["stage A: 256px, 40000 it, bs 1024, lr 1e-4"]
    for s in range(50, 80001, 50):
        if s == 40050: L += ["stage A finished", "stage B: 512px, 40000 it, bs 512, lr 5e-5, warmup 500, shift 3.0, pos-emb interpolated"]
        q = s - 40000
        if q <= 0: l, lr, g = float(pw(s, 1.95, .555, 700, .75)), min(1, s / 1000) * 1e-4, .25
        else: l, lr, g = float(ex(q, .715, .590, 6500)), min(1, q / 500) * 5e-5, .31
        L.append(f"{'A' if q<=0 else 'B'} {s:6d} vloss {l+r.normal(0,.012):.4f} gnorm {(g+math.exp(-s/500))*math.exp(r.normal(0,.12)):.3f} lr {lr:.2e} img/s {1980+r.normal(0,20) if q<=0 else 512+r.normal(0,5):.0f}")
        if s % 4000 == 0: L.append(f"  val[{'256' if q<=0 else '512'}] vloss {l+.008+r.normal(0,.002):.4f} geneval {.21+.3*(1-math.exp(-s/30000))+r.normal(0,.006):.3f}")
    return J(*L)


@case("i54", "i54_cfgdrop.log", "own loop with caption ablation, healthy", "none",
      "Losses with true / shuffled / null captions: the gap grows to 0.03-0.04 (normal size for FM), CLIP rises to 0.27. cfg dropout 10 %. Healthy.")
def _(r):
    L = ["p_drop=0.10  probe: 2048 val pairs, fixed t grid of 16, fixed noise"]
    for s in range(0, 60001, 100):
        L.append(f"<{s}> flow {float(pw(s,1.97,.69,600))+r.normal(0,.017):.4f} | |g| {(.27+math.exp(-s/400))*math.exp(r.normal(0,.12)):.3f} | lr {float(lr_wsd(s,1e-4,1000,80000,10000)):.1e}")
        if s % 2000 == 0 and s:
            v = float(pw(s, 1.97, .695, 600)) + r.normal(0, .0015)
            gap = .037 * (1 - math.exp(-s / 12000))
            L.append(f"   probe: with_caption={v:.4f} permuted={v+gap+r.normal(0,.0009):.4f} no_caption={v+gap*.62+r.normal(0,.0009):.4f} clip_l14={.155+.117*(1-math.exp(-s/11000))+r.normal(0,.0015):.4f}")
    return J(*L)

# =====================================================================
# E. debugging outputs, broken
# =====================================================================
def _gauss(r, n, s=1.0):
    return (r.normal(0, 1, n) * s).astype(np.float32)


@case("i55", "i55_sampler_trace.txt", "sampler prints, bf16 run then fp32 run", "bf16_rounding",
      "N=4000 Euler (reference run). With the bf16 state mean|x| stays at 0.80 (right size) although |v|*h = 2.6e-4 per step; the same checkpoint with an fp32 state moves along 0.80 -> 0.56 -> 0.73. Increments are rounded away.")
def _(r):
    n = 8192
    x0, x1 = _gauss(r, n), _gauss(r, n, .98)
    v = (x1 - x0) * .93
    L = ["$ python sample.py --steps 4000 --dtype bf16 --prompt 'a red tram in the rain' --trace 80", "latent (1,8,32,32) bfloat16, init N(0,1) seed 11"]
    x = bf16(x0)
    vb = bf16(v)
    N, H = 4000, np.float32(1 / 4000)
    for k in range(N):
        if k % 80 == 0: L.append(f"k={k:04d} t={k/N:.3f} mean|x|={float(bf16(np.abs(x).mean())):.4f} mean|v|={float(bf16(np.abs(vb).mean())):.4f} h=0.00025")
        x = bf16(x + bf16(vb * H))
    L += [f"end mean|x|={float(bf16(np.abs(x).mean())):.4f}  |x_end-x_start|_rms={float(np.sqrt(((x-bf16(x0))**2).mean())):.4f}", "",
          "$ python sample.py --steps 4000 --dtype bf16 --state-dtype fp32 --prompt 'a red tram in the rain' --trace 80", "latent (1,8,32,32) float32, init N(0,1) seed 11"]
    x = x0.copy()
    for k in range(N):
        if k % 80 == 0: L.append(f"k={k:04d} t={k/N:.3f} mean|x|={float(np.abs(x).mean()):.4f} mean|v|={float(np.abs(v).mean())*(1+r.normal(0,.002)):.4f} h=0.00025")
        x = x + v * H
    L.append(f"end mean|x|={float(np.abs(x).mean()):.4f}  |x_end-x_start|_rms={float(np.sqrt(((x-x0)**2).mean())):.4f}")
    return J(*L)


@case("i56", "i56_teacher_euler_note.md", "中文 note with N-step study", "bf16_rounding",
      "Teacher field (v*=x1-x0, exact) integrated by Euler: MSE grows from 3e-5 at N=5 to 1.5 at N=1000, where it must be 0; in fp32 it is below 1e-9 for each N.")
def _(r):
    n = 16384
    x0, x1 = _gauss(r, n), _gauss(r, n)
    def run(N, q):
        x, v, dt = q(x0), q(x1 - x0), np.float32(1 / N)
        for _ in range(N): x = q(x + q(v * dt))
        return float(((x - x1) ** 2).mean())
    Ns = [5, 10, 20, 50, 100, 250, 500, 1000]
    L = ["## 教师场欧拉验证（不经过网络）", "", "- 线性路径，`v* = x1 - x0`，解析速度，理论上任意步数都应精确到达 x1", "- latent 形状 (4, 64, 64)，batch=1，x0/x1 的 std 都约为 1.0", "- 网络这边先不看：单步 cos=0.81，文本 cos(猫, 车)=0.12，VAE PSNR=29.6 dB", "",
         "| N 步 | MSE(x_end, x1) 默认 autocast | MSE(x_end, x1) 状态量转 float32 |", "|---:|---:|---:|"]
    for N in Ns:
        L.append(f"| {N} | {run(N, bf16):.2e} | {run(N, lambda a: np.asarray(a, np.float32)):.1e} |")
    x0, x1 = _gauss(r, n), _gauss(r, n)
    L += ["", "换一个 seed：", "", "| N 步 | 默认 | float32 |", "|---:|---:|---:|"]
    for N in Ns:
        L.append(f"| {N} | {run(N, bf16):.2e} | {run(N, lambda a: np.asarray(a, np.float32)):.1e} |")
    L += ["", "50 步出图还能看，1000 步反而更糊，所以先做了这张表。", "同一个 seed 重复两次数字一致。"]
    return J(*L)


@case("i57", "i57_sched_dump.txt", "sampler schedule dump", "step_schedule",
      "Symmetric logit grid with 24 steps is configured; the dumped dt contains the middle block twice and sums up to 1.40, t runs past 1. Norms otherwise fine; the last steps overshoot.")
def _(r):
    N = 24
    u = np.linspace(-3, 3, N + 1); t = sig(u); t = (t - t[0]) / (t[-1] - t[0])
    d = np.diff(t)
    d2 = np.concatenate([d[:15], d[9:18], d[18:]])[:30]
    L = ["scheduler: logit grid, symmetric, num_steps=24, t: 0 -> 1", f"len(dt)={len(d2)}"]
    tt = 0.0
    for k, h in enumerate(d2):
        L.append(f"  [{k:02d}] t={tt:.4f} dt={h:.4f} |x|={math.sqrt((1-min(tt,2))**2+tt**2*.97)*.798:.4f} |v|={1.09+r.normal(0,.006):.4f}")
        tt += h
    L += [f"sum(dt)={d2.sum():.4f}", f"final t={tt:.4f}", f"decode: min -1.000 max 1.000 clipped {31.4:.1f}%"]
    return J(*L)


@case("i58", "i58_ksteps.txt", "N-step study print", "train_infer_mismatch",
      "One-step cos 0.87 / nmse 0.24 and z0 of std 0.96 are fine, yet the endpoint rmse rises with K: 0.88 at K=4 up to 1.31 at K=256. More steps are worse, so sampler formula and training target disagree.")
def _(r):
    L = ["ckpt 60000, 512 val pairs, fp32 sampling, no cfg", "", "one-step (training formula):"]
    for t in (.05, .25, .5, .75, .95):
        c = .872 - .05 * abs(t - .5) * 2 + r.normal(0, .004)
        q = c + .006
        L.append(f"   t={t:.2f}  cos={c:.3f}  len={q:.3f}  nmse={nm(c,q):.3f}")
    L += ["z0: mean 0.003 std 0.961 (min .71 max 1.22)    z1: mean -0.011 std 1.004", "", "free rollout z0 -> z1_hat, euler:", "   K      rmse(z1_hat, z1)   rms(z1_hat)"]
    for K, e, m in ((4, .884, 1.02), (8, .973, 1.11), (16, 1.081, 1.22), (32, 1.167, 1.31), (64, 1.236, 1.38), (128, 1.279, 1.42), (256, 1.308, 1.45), (512, 1.321, 1.46), (1024, 1.329, 1.47)):
        L.append(f"   {K:<4d}   {e+r.normal(0,.004):.4f}             {m+r.normal(0,.004):.3f}")
    L += ["", "heun, same K:"] + [f"   {K:<4d}   {e+r.normal(0,.004):.4f}" for K, e in ((4, 1.11), (8, 1.21), (16, 1.27), (64, 1.31), (256, 1.32))]
    L += ["", "mean baseline (predict mean z1): 1.004"]
    return J(*L)


@case("i59", "i59_rollout.md", "中文 short note", "train_infer_mismatch",
      "cos 0.84, nmse 0.30, z0 std 0.98; the endpoint error does not fall with K (1.12..1.15 for 8..256). Even the analytic training target, put into the same generate() loop, ends at 0.54 for every N: sampler formula differs from the target.")
def _(r):
    L = ["# 9/23 自由积分检查", "", "模型：cosine 路径，x_t = cos(pi t/2) z0 + sin(pi t/2) z1，训练目标 v* = 路径对 t 的导数（已 detach），22w 步", "",
         "单步（训练同形）", "- cos = 0.842 / 0.851 / 0.839 / 0.828（t=0.1/0.35/0.65/0.9）", "- nmse = 0.295 / 0.279 / 0.301 / 0.318", "- |v|/|v*| = 0.83 ~ 0.86", "- z0: std/mean=0.981, mu_rms=0.44；z1 std=1.01；cos(cat,car)=0.14", "", "积分 endpt_rmse"]
    for K in (8, 12, 16, 32, 64, 128, 192, 256): L.append(f"- K={K:<3d} : {1.135+r.normal(0,.008):.3f}")
    L += ["", "把 v 换成解析目标 v*（没有网络误差），用 generate() 里同一个循环积分，fp32"]
    for K in (8, 12, 16, 32, 64, 128, 192, 256): L.append(f"- N={K:<3d} : rmse = {.536+.05/K+r.normal(0,.0006):.4f}")
    L += ["", "VAE 回环 30.2 dB，没问题。dt 之和 = 1.0000。"]
    return J(*L)


@case("i60", "i60_vae_smoke.txt", "VAE smoke test table", "vae_roundtrip",
      "Inputs in [-1,1], latents of ordinary scale (std 0.93, mean 0.02), still decode(encode(x)) has only 11-14 dB PSNR and SSIM 0.3 on 24 images: the VAE does not reconstruct.")
def _(r):
    L = ["vae smoke test  (24 imgs, 256px, fp32)", "x: min -1.000 max 1.000 mean -0.071 std 0.534", "z=encode(x)*sf: shape (24,4,32,32) mean 0.018 std 0.934 min -4.11 max 4.38   sf=0.18215", "xr=decode(z/sf): min -1.213 max 1.187 mean -0.102 std 0.391", "", " img        PSNR[dB]  SSIM   L1     LPIPS"]
    ps = []
    for i in range(24):
        p = 12.6 + r.normal(0, .9); ps.append(p)
        L.append(f" {i:02d}.png     {p:6.2f}   {.31+r.normal(0,.05):.3f}  {.36+r.normal(0,.03):.3f}  {.61+r.normal(0,.04):.3f}")
    L += [" ------", f" mean       {np.mean(ps):6.2f}", "", "sample() instead of mode(): mean PSNR %.2f" % (np.mean(ps) - .21), "decode(encode()) twice:      mean PSNR %.2f" % (np.mean(ps) - 1.4)]
    return J(*L)


PR = ["a photo of a dog", "a red sports car", "an apple on a table", "two people dancing", "mountain lake at dawn", "a bowl of ramen", "city street, night", "portrait of an old man"]


def matrix(P, M):
    L = ["      " + " ".join(f"  p{i}   " for i in range(len(P)))]
    for i in range(len(P)): L.append(f"p{i}  " + " ".join(f"{M[i,j]:7.4f}" for j in range(len(P))))
    return L


@case("i61", "i61_prompt_cos.txt", "prompt cosine matrix", "text_ignored",
      "Cosine matrix of the means mu(prompt) for 8 quite different prompts: all entries 0.994-0.999, also against the empty prompt, while the LLM's hidden states differ (0.3-0.6).")
def _(r):
    n = len(PR)
    def sym(lo, hi):
        A = r.uniform(lo, hi, (n, n)); A = (A + A.T) / 2; np.fill_diagonal(A, 1); return A
    L = [f"p{i} = {p!r}" for i, p in enumerate(PR)] + ["", "cos of pooled LLM hidden states:"] + matrix(PR, sym(.28, .62)) + ["", "cos of mu (text encoder output, 4096-d, no sampling):"] + matrix(PR, sym(.9935, .9992))
    L += ["", "cos(mu(p_i), mu('')): " + " ".join(f"{r.uniform(.9931,.9986):.4f}" for _ in PR), "|mu|: " + " ".join(f"{41.2+r.normal(0,.12):.2f}" for _ in PR), "sigma mean: 0.71"]
    return J(*L)


@case("i62", "i62_text_path_zh.md", "中文排查 note", "text_ignored",
      "Different prompts have mean cosines of 0.997-0.9995 and the same |mu|; sampled z cos is lower only because of the noise; the fm part works (cos 0.78). The text does not arrive in z0.")
def _(r):
    ps = [("一只猫", "一辆车"), ("一只猫", "红苹果"), ("一辆车", "红苹果"), ("一只猫", "雪山"), ("一辆车", "雪山"), ("红苹果", "雪山"), ("一只猫", "空串"), ("一辆车", "空串"), ("红苹果", "空串"), ("雪山", "空串")]
    L = ["### 出图全是同一张脸，记录一下", "", "step=48k，取 4 个 prompt（外加空串），走 text head，取 mu（不采样）"]
    L += [f"cos(mu[{a}], mu[{b}]) = {r.uniform(.9968,.9996):.4f}" for a, b in ps]
    L += ["", "采样后的 z0："] + [f"cos(z0[{a}], z0[{b}]) = {r.uniform(.66,.70):.3f}" for a, b in ps]
    L += ["", "|mu| = 52.31 / 52.28 / 52.33 / 52.30，sigma 均值 0.56", "tokenizer 输出的 ids 四个 prompt 各不相同，长度 5/4/6/3", "FM 单步：t=0.2 cos=0.781 ratio=0.79；t=0.5 cos=0.802 ratio=0.80；t=0.8 cos=0.776 ratio=0.78", "VAE PSNR 30.4 dB，sum(dt)=1.000"]
    return J(*L)


@case("i63", "i63_fm_probe.txt", "per-t probe table", "weak_field",
      "VAE, text cosine and dt sum are fine; v alignment is cos 0.02-0.06 with |v|/|v*| 0.24-0.27 (nmse about 1.04) at all t and the shooting MSE is 2.0 (start distance 1.92).")
def _(r):
    L = ["== probe @ 31k ==", "vae: psnr 30.8 dB  z std 0.99", "text: cos(dog,car)=0.132 cos(dog,ramen)=0.087 cos(car,ramen)=0.141", "grid: N=50 sum(dt)=1.0000", "z0 std 0.97  z1 std 0.99  |z0| 62.0 |z1| 63.4", "", "    t    cos(v,v*)   |v|/|v*|    nmse"]
    for t in np.linspace(.025, .975, 20):
        c = .042 + r.normal(0, .012); q = .257 + r.normal(0, .007)
        L.append(f"  {t:.2f}     {c:.3f}       {q:.3f}     {nm(c,q):.3f}")
    L += ["", "shoot z0->z1 (N=50): mse 2.006   (before: |z0-z1|^2/d = 1.921)", "shoot z0->z1 (N=200): mse 2.004", "shoot, v*4.0: mse 3.77"]
    return J(*L)


@case("i64", "i64_vdir_issue.md", "numbers pasted in an issue", "wrong_target",
      "Table: cos(v_pred, x1 - x0) is -0.6, cos(v_pred, noise x0) is +0.88, cos with x1 about 0: the network predicts the noise and not the velocity.")
def _(r):
    L = ["Samples are pure static although the loss looks great (see below, still falling). `x0` = noise, `x1` = latent, linear path, 100k steps, val batch of 256:", "", "```", "t      cos(pred, x1-x0)  cos(pred, x0)  cos(pred, x1)  |pred|/|x1-x0|  mse(pred, x1-x0)"]
    for t in np.linspace(.1, .9, 9):
        q = .96 - .32 * t ** 1.6 + r.normal(0, .004)
        c = -.7071 * q + r.normal(0, .004); rt = q * .7071
        L.append(f"{t:.1f}    {c:8.3f}         {q:7.3f}       {r.normal(.004,.006):7.3f}        {rt:.3f}           {2*nm(c,rt):.3f}")
    L += ["", "train log (mse against `target`):"] + [f"  {s:>6d}  {float(pw(s,1.0,.262,900,.8))+r.normal(0,.006):.4f}" for s in (0, 250, 500, 1000, 2000, 4000, 8000, 12000, 16000, 24000, 32000, 48000, 64000, 80000, 100000)]
    L += ["```", "", "`x0.std()=1.000  x1.std()=0.997`", "", "Sampler is plain Euler, 50 steps, dt = 0.02, t from 0 to 1. VAE round trip is 31 dB. Any idea what I am missing?"]
    return J(*L)


@case("i65", "i65_batch_dump.txt", "dataloader dump", "input_range",
      "The VAE expects [-1,1] (printed config), the batches arrive as min 0.000 max 1.000 mean 0.47 std 0.27 in every dump: not normalised.")
def _(r):
    L = ["[data] transform: Resize(256) CenterCrop(256) ToTensor()", "[data] vae expects pixel range [-1, 1]", ""]
    for b in range(40):
        m, s = .468 + r.normal(0, .015), .269 + r.normal(0, .006)
        zs = .71 + r.normal(0, .02)
        L.append(f"[dump {b:03d}] pixel_values (32,3,256,256) float32 min={max(0,abs(r.normal(0,.00002))):.3f} max=1.000 mean={m:.3f} std={s:.3f} | ids (32,77) | z mean={.19+r.normal(0,.02):.3f} std={zs:.3f} | t mean={.5+r.normal(0,.05):.3f} std={.288+r.normal(0,.02):.3f}")
    return J(*L)


@case("i66", "i66_diffusion_consts.txt", "schedule constants print", "schedule_constants",
      "Config: linear betas 1e-4..0.02, T=1000. The table shows betas ending at 0.002 and alphas_cumprod[-1] = 0.35: x_T still contains 59 % signal amplitude.")
def _(r):
    be = np.linspace(1e-4, 2e-3, 1000); ac = np.cumprod(1 - be)
    L = ["GaussianDiffusion(T=1000, schedule='linear', beta_start=0.0001, beta_end=0.02, pred='eps', loss='mse')", f"betas            min {be.min():.6f}  max {be.max():.6f}  dtype float64",
         "alphas_cumprod[:5]  " + " ".join(f"{x:.6f}" for x in ac[:5]), "alphas_cumprod[-5:] " + " ".join(f"{x:.6f}" for x in ac[-5:]), "", "   t     beta_t     abar_t   sqrt(abar)  sqrt(1-abar)   SNR(dB)"]
    for t in list(range(0, 1000, 50)) + [999]:
        L.append(f"{t:5d}  {be[t]:.6f}  {ac[t]:.6f}   {math.sqrt(ac[t]):.5f}     {math.sqrt(1-ac[t]):.5f}    {10*math.log10(ac[t]/(1-ac[t])):7.2f}")
    L += ["", "x_T from q_sample on 64 latents: std 0.999, corr(x_T, x_0) = 0.592", "first 200 train losses: mean 0.31 (start 1.00)"]
    return J(*L)


@case("i67", "i67_start_norm.log", "sampler prints with expected values", "scale_mismatch",
      "Sampler (fp32) begins at mean|x| = 6.4 where training had E|x0| = 0.80 (printed), the trace moves by |v|*dt properly but ends at 5.9 instead of 0.78: start scale wrong by 8x.")
def _(r):
    L = ["train stats (from ckpt): E|x_0|=0.798 E|x_1|=0.781 E|v|=1.11", "sampling fp32, heun, 40 steps, uniform"]
    for img in range(3):
        x = 6.41 + r.normal(0, .03)
        L.append(f"--- image {img}")
        for k in range(40):
            v = .56 + .03 * math.sin(k / 7) + r.normal(0, .003)
            L.append(f"i={k:02d} t={k/40:.3f} |x|={x:.4f} |v|={v:.4f} dt=0.0250")
            x -= v * .025 * .92
        L.append(f"end |x|={x:.4f}  decoded: 74.{r.integers(0,9)}% of pixels clipped")
    return J(*L)


@case("i68", "i68_latent_note.txt", "short prose note, English", "latent_scale_factor",
      "SDXL VAE with sf=0.13025: z1 std 7.6 (= 1/sf), decode(z) fine only without division, decode(z/sf) saturated: the factor was forgotten in the encoding path.", ["scale_mismatch"])
def _(r):
    L = ["Notes, Thursday.", "", "Checked the latent cache (sdxl vae, config.scaling_factor = 0.13025) because the generated images are blown out.", "", "cache shard | n     | mean    | std   | min     | max"]
    for k in range(18): L.append(f"shard_{k:03d}   | 10000 | {-.31+r.normal(0,.05):+.3f}  | {7.63+r.normal(0,.06):.2f}  | {-38+r.normal(0,2):.1f}   | {36+r.normal(0,2):.1f}")
    L += ["", "Noise x0 std = 1.00. fm loss sits at 31.8 after 10k steps (58.9 at step 0); E|v*|^2 = 59.2.", "", "decode(z)        -> psnr 31.9 dB against the source images", "decode(z / sf)   -> psnr 6.3 dB, 88% of the pixels at 0 or 255   <- this is what our pipeline does", "z * sf           -> std 0.99", "", "Encoder in eval mode, fp32, inputs in [-1, 1]."]
    return J(*L)


@case("i69", "i69_cond_table.txt", "per-t caption ablation table", "condition_unused",
      "Per t-bin: cos with the true caption, with shuffled captions and with the empty one agree to 0.001, the gain is -0.0005..0.0004; text embeddings themselves differ (cos 0.2) and the field is trained (cos 0.79).")
def _(r):
    L = ["ckpt 120k (ema), 1024 val pairs, same noise for the three columns", "text emb pairwise cos: mean 0.214 max 0.61", "", "bin        cos(true)  cos(shuf)  cos(empty)   gain(true-shuf)   mse(true)  mse(shuf)"]
    gs = []
    for b in range(20):
        c = .80 - .09 * abs(b - 9.5) / 9.5 + r.normal(0, .003)
        g = r.normal(-.0001, .0004); gs.append(g)
        L.append(f"{b/20:.2f}-{b/20+.05:.2f}  {c:.4f}     {c-g:.4f}     {c+r.normal(0,.0004):.4f}      {g:+.4f}          {2*(1-c*c):.4f}     {2*(1-(c-g)**2):.4f}")
    L += [f"all                                            {np.mean(gs):+.4f}", "", "cfg sweep", "  w=1.0  clip 0.158", "  w=3.0  clip 0.158", "  w=5.0  clip 0.159", "  w=7.5  clip 0.158", "images for w=1 and w=7.5 differ by 0.2/255 on average"]
    return J(*L)


@case("i70", "i70_per_t_20.md", "markdown per-t table", "t_edges",
      "20 t-bins: nmse 0.35-0.45 and cos about 0.78 in the middle, but nmse 3.9/1.9 at t<0.1 and 1.7/4.6 at t>0.9 with cos 0.07-0.25.")
def _(r):
    L = ["### per-t eval, step 90k, 4k val latents, raw weights", "", "| t bin | n | nmse | cos | len ratio |", "|---|---|---|---|---|"]
    al = []
    for b in range(20):
        if b in (0, 1, 18, 19):
            c, q = {0: (.07, 1.78), 1: (.24, 1.22), 18: (.25, 1.12), 19: (.05, 1.95)}[b]
            c += r.normal(0, .01); q += r.normal(0, .02)
        else:
            c = .81 - .055 * abs(b - 9.5) / 7.5 + r.normal(0, .004); q = c + r.normal(.004, .004)
        al.append(nm(c, q))
        L.append(f"| {b/20:.2f}-{b/20+.05:.2f} | {int(205+r.normal(0,12))} | {nm(c,q):.3f} | {c:.3f} | {q:.3f} |")
    L += ["", f"overall val loss {np.mean(al)*2.01:.2f} (E|v*|^2 = 2.01). Train uses t ~ U(0,1), no weighting.", "", "cond gain (true - shuffled caption), bins 5-15: +0.036", "z0 std 1.00, z1 std 1.01", "", "Samples: right layout, speckle everywhere."]
    return J(*L)

# =====================================================================
# F. debugging outputs, healthy
# =====================================================================
@case("i71", "i71_euler_fp32.txt", "sampler prints", "none",
      "fp32 sampler on a symmetric non-uniform grid, sum dt = 1, |x| goes 0.80 -> 0.55 -> 0.75 smoothly (mixing of two independent Gaussians); first and last dt are larger by design. Healthy.")
def _(r):
    N = 50
    w = 1 / np.sqrt((np.arange(N) + .6) * (N - np.arange(N) - .4)); w = (w + w[::-1]) / 2; dt = w / w.sum()
    L = ["grid=arcsine symmetric N=50 fp32 cfg=4.0"]
    n = 8192
    for img in range(2):
        x0, x1 = _gauss(r, n), _gauss(r, n, .97) ; x = x0.copy(); t = 0
        for k in range(N):
            v = (x1 - x0) * np.float32(.97) + _gauss(r, n, .25)
            L.append(f"#{k:02d} t={t:.4f} x_abs={np.abs(x).mean():.4f} v_abs={np.abs(v).mean():.4f} dt={dt[k]:.4f}")
            x = x + v * np.float32(dt[k]); t += dt[k]
        L.append(f"img{img} done t_end={t:.4f} x_abs={np.abs(x).mean():.4f} decode min -0.98 max 0.99 sat 0.{r.integers(2,9)}%")
    return J(*L)


@case("i72", "i72_teacher_N.txt", "teacher Euler study (curved path)", "none",
      "Cosine path, analytic velocity: Euler error falls ~1/N^2 in MSE with N, Heun much faster; fp32. Healthy.")
def _(r):
    n = 8192
    x0, x1 = _gauss(r, n).astype(float), _gauss(r, n).astype(float)
    vel = lambda t: (np.pi / 2) * (-np.sin(np.pi * t / 2) * x0 + np.cos(np.pi * t / 2) * x1)
    L = ["path: cos/sin (variance preserving), teacher velocity d/dt x_t, fp32", "  N   mse_euler    mse_heun"]
    for N in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256):
        a, b = x0.copy(), x0.copy()
        for k in range(N):
            a = a + vel(k / N) / N; b = b + (vel(k / N) + vel((k + 1) / N)) / 2 / N
        L.append(f"{N:4d}  {((a-x1)**2).mean():.3e}   {((b-x1)**2).mean():.3e}")
    L += ["", "net velocity, same grid, rmse to x1 (pairs from val):", *[f"{N:4d}  {.744+.27/N+r.normal(0,.0008):.4f}" for N in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)]]
    return J(*L)


@case("i73", "i73_mu_cos.txt", "prompt cosine matrix, near duplicates inside", "none",
      "Means of 8 prompts: cosines 0.05-0.45, only the near-duplicate pair (two wordings of the same dog) has 0.94. Healthy.")
def _(r):
    P = ["a dog", "a photo of a dog"] + PR[1:7]
    A = r.uniform(.05, .45, (8, 8)); A = (A + A.T) / 2; np.fill_diagonal(A, 1); A[0, 1] = A[1, 0] = .9413
    return J(*([f"p{i}: {p}" for i, p in enumerate(P)] + ["", "pairwise cosine of mu"] + matrix(P, A) + ["", f"off-diagonal mean {A[~np.eye(8,dtype=bool)].mean():.4f}", "|mu| " + " ".join(f"{38+r.normal(0,2.2):.1f}" for _ in P), "sig mean 0.81 min 0.58 max 1.07", "", "cos(mu(p_i), mu('')):", *[f"  p{i}  {r.uniform(.18,.41):.4f}" for i in range(len(P))]]))


@case("i74", "i74_t_table.txt", "per-t table", "none",
      "Ends of t are mildly harder (nmse 0.50 against 0.33), as theory demands for the linear path; cos 0.71-0.82, ratio close to cos. Healthy.")
def _(r):
    L = ["bin  t_mid   nmse    cos    ratio   n"]
    for b in range(24):
        t = (b + .5) / 24
        n = .325 + .175 * abs(2 * t - 1) ** 2 + r.normal(0, .004)
        c = math.sqrt(1 - n)
        L.append(f"{b:>3d}  {t:.3f}  {n:.3f}  {c:.3f}  {c+r.normal(0,.003):.3f}  {int(171+r.normal(0,12))}")
    return J("eval @ 200k (ema 0.9999), linear path, 4096 val pairs", "", *L, "", "cond gain (true - shuffled): +0.041", "endpt rmse K=8/16/32/64: 0.83 0.80 0.79 0.79")


@case("i75", "i75_vae_report.md", "VAE round-trip report", "none",
      "28-33 dB on 26 images, one very fine texture with 22.4 dB; z std 0.96, decode(z) fine. Healthy.")
def _(r):
    L = ["# vae check (sd3 vae, 16ch, scaling 1.5305, shift 0.0609)", "", "| file | psnr | ssim | z std |", "|---|---|---|---|"]
    for i in range(26):
        p = 22.4 if i == 13 else 30.6 + r.normal(0, 1.2)
        L.append(f"| {'gravel' if i==13 else 'img'}_{i:02d} | {p:.1f} | {(.74 if i==13 else .91+r.normal(0,.012)):.3f} | {.96+r.normal(0,.05):.2f} |")
    return J(*L, "", "pixels in: [-1.00, 1.00], mean -0.04. out: [-1.03, 1.02].", "z after (z-shift)*scale: mean 0.01, std 0.96, range [-5.2, 5.9].")


@case("i76", "i76_norms.txt", "norm table", "none",
      "|z0| 58-66, |z1| 61-84 depending on the image, |v*| 88-100 = sqrt of the squares' sum: within 1.4x. Healthy.")
def _(r):
    L = ["idx   ||z0||    ||z1||    ||x_t||(t=.5)   ||v*||   ||v||"]
    for i in range(32):
        a, b = 62 + r.normal(0, 1.6), 70 + r.normal(0, 6)
        v = math.sqrt(a * a + b * b - 2 * a * b * .03)
        L.append(f"{i:3d}   {a:6.2f}    {b:6.2f}    {math.sqrt(a*a+b*b+2*a*b*.03)/2:6.2f}          {v:6.2f}   {v*(.81+r.normal(0,.012)):6.2f}")
    return J("latent 4x32x32, d=4096, sqrt(d)=64", *L, "mean ratio ||z1||/||z0|| = 1.13", "mean cos(v, v*) = 0.806, nmse 0.351")


@case("i77", "i77_report_zh.md", "中文 report of checks", "none",
      "All ranges as they should be: x in [-1,1], t uniform on 0..999 (mean 499, std 288), alphas_cumprod 0.9999 -> 4e-5, loss 1.02 -> 0.14, early spike only. Healthy.")
def _(r):
    return J("# 训练检查小结（12 万步，eps 预测）", "", "一、数据", "- 像素范围 [-1.00, 1.00]，均值 -0.05，std 0.51", "- latent：均值 0.012，std 0.988，范围 [-5.1, 5.4]，NaN/Inf 0 个", "", "二、时间步", "- t 范围 [0, 999]，单批均值 431.7 ~ 569.2，全体均值 499.3，全体 std 288.4", "", "三、常数",
             "- betas [0.0001, 0.02]，alphas_cumprod 首 0.9999，末 4.04e-05", "", "四、损失", "| 步数 | 训练 mse | 验证 mse | gnorm | lr |", "|---:|---:|---:|---:|---:|",
             *[f"| {s} | {float(pw(s,1.02,.138,400,.9))+r.normal(0,.003):.4f} | {float(pw(s,1.02,.141,400,.9))+r.normal(0,.002):.4f} | {.11+.8*math.exp(-s/700)+abs(r.normal(0,.01)):.3f} | {1e-4*min(1,s/1000):.1e} |" for s in [1, 500, 1000, 2000, 5000, 10000, 20000, 40000, 60000, 80000, 100000, 120000]],
             "", "- 第 312 步出现一次 2.31 的尖峰，20 步内回到 0.35，之后没有再出现", "- bfloat16 前向，损失用 float32", "", "五、采样", "- DDIM 50 步，|x| 从 0.798 到 0.774，解码后像素范围 [-0.99, 1.00]，FID-5k 21.7", "- 打乱 caption 后验证 mse 从 0.1418 升到 0.1496")


@case("i78", "i78_sched.txt", "scheduler constants print", "none",
      "SD scaled_linear schedule: betas 0.00085..0.012, alphas_cumprod ends at 0.0047 - that is the known value of this schedule, not a fault. Healthy.")
def _(r):
    be = np.linspace(.00085 ** .5, .012 ** .5, 1000) ** 2; ac = np.cumprod(1 - be)
    L = ["DDPMScheduler {'beta_schedule': 'scaled_linear', 'beta_start': 0.00085, 'beta_end': 0.012, 'num_train_timesteps': 1000, 'prediction_type': 'epsilon'}", f"betas: {be[0]:.5f} ... {be[-1]:.5f}", f"alphas_cumprod: {ac[0]:.5f} ... {ac[-1]:.5f}"]
    for t in (0, 1, 10, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 999): L.append(f"  t={t:<4d} abar={ac[t]:.5f} sigma={math.sqrt((1-ac[t])/ac[t]):.4f}")
    L += ["t drawn (100k): mean 499.61 std 288.70 min 0 max 999", "latents: mean 0.006 std 0.981", "noise: mean 0.000 std 1.000"]
    for k in range(30): L.append(f"batch {k:02d}: loss {.142+r.normal(0,.02):.4f} pred_std {.93+r.normal(0,.01):.3f} noise_std {1+r.normal(0,.001):.3f}")
    return J(*L)


@case("i79", "i79_nstep_fid.txt", "N-step study", "none",
      "FID and endpoint error fall with the number of steps and level off; between 64 and 250 they wobble within noise. Healthy.")
def _(r):
    L = ["steps  solver  fid5k   endpt_rmse  sec/img"]
    for so, a, k in (("euler", 40, 9), ("midpt", 26, 7), ("heun", 22, 6), ("ab2", 24, 6)):
        for N in (4, 8, 16, 32, 64, 128, 250): L.append(f"{N:5d}  {so:6s}  {11.9+a*math.exp(-N/k)+r.normal(0,.08):.2f}   {.741+.35*(1/N)*(4 if so=='euler' else 2)/4+r.normal(0,.0015):.4f}      {N*(.021 if so=='euler' else .042):.2f}")
    return J("ckpt ema@300k, cfg 1.0, fp32 state, bf16 net; one-step cos 0.803 nmse 0.356; z0 std 1.00", "", *L)


@case("i80", "i80_tdist.txt", "t histogram and probes", "none",
      "Configured logit-normal(0,1): t mean 0.5, std 0.207 and few values near the ends fit the configuration. Healthy.")
def _(r):
    L = ["t_dist: logit_normal(loc=0, scale=1), 200 batches x 512", "expected mean 0.5000 std 0.2083"]
    al = []
    for k in range(200):
        t = sig(r.normal(0, 1, 512)); al.append(t)
        if k % 5 == 0: L.append(f"b{k:03d} t_mean={t.mean():.4f} t_std={t.std():.4f} t_min={t.min():.4f} t_max={t.max():.4f} fm_loss={.71+r.normal(0,.02):.4f}")
    al = np.concatenate(al); h, _e = np.histogram(al, 10, (0, 1))
    L += [f"all: mean {al.mean():.4f} std {al.std():.4f}", "hist: " + " ".join(str(x) for x in h)]
    return J(*L)


# ---------------------------------------------------------------- main
def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    man = []
    for c in CASES:
        r = np.random.default_rng(zlib.crc32(("author-i/" + c["id"]).encode()))
        res = c.pop("fn")(r)
        files = res if isinstance(res, dict) else {c["path"]: res}
        for p, txt in files.items():
            f = os.path.join(out, p)
            os.makedirs(os.path.dirname(f) or ".", exist_ok=True)
            with open(f, "w", encoding="utf-8", newline="") as h:
                h.write(txt)
        man.append(c)
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as h:
        json.dump(man, h, indent=1, ensure_ascii=False)
    print(len(man), "cases,", sum(m["healthy"] for m in man), "healthy")


if __name__ == "__main__":
    main()
