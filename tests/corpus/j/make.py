"""Author J: writes 80 simulated logs and manifest.json.  usage: python3 make.py OUT"""
import csv, io, json, math, os, sys, zlib
from datetime import datetime, timedelta
import numpy as np

CASES = []          # (id, path, format, expected, acceptable, story, function)


def case(cid, path, fmt, expected, story, acceptable=()):
    def deco(fn):
        CASES.append((cid, path, fmt, expected, list(acceptable), story, fn))
        return fn
    return deco


def rng_of(cid):
    return np.random.default_rng(zlib.crc32(("corpus-j/" + cid).encode()))


def ar(rng, n, rho=0.0):
    e = rng.standard_normal(n)
    if rho == 0:
        return e
    o = np.empty(n); s = e[0]
    c = math.sqrt(1 - rho * rho)
    for i in range(n):
        s = rho * s + c * e[i]
        o[i] = s
    return o


def fall(rng, n, a, b, tau=0.05, p=0.8, noise=0.03, rho=0.0):
    """Power-law-like descent a -> about b over n points with multiplicative noise."""
    x = np.arange(n) / max(n - 1, 1)
    f = (1 + x / tau) ** (-p)
    f = (f - f[-1]) / (1 - f[-1])
    return (b + (a - b) * f) * np.exp(noise * ar(rng, n, rho))


def logn(rng, n, m, s, rho=0.0):
    return m * np.exp(s * ar(rng, n, rho))


def warm_cos(n, peak, warm, end=0.0):
    """LR: linear warm-up over `warm` points then cosine to `end`*peak."""
    i = np.arange(n)
    w = np.minimum(1.0, (i + 1) / max(warm, 1))
    q = np.clip((i - warm) / max(n - warm, 1), 0, 1)
    return peak * w * (end + (1 - end) * 0.5 * (1 + np.cos(np.pi * q)))


def hms(s):
    s = int(s)
    h, m, s = s // 3600, s // 60 % 60, s % 60
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def bar(fr, w=10):
    full = int(fr * w)
    part = " ▏▎▍▌▋▊▉"[int((fr * w - full) * 8)] if full < w else ""
    return ("█" * full + part).ljust(w)


def tq(desc, i, n, sec, post):
    rate = f"{1 / sec:5.2f}it/s" if sec < 1 else f"{sec:5.2f}s/it"
    return (f"{desc}: {100 * i // n:3d}%|{bar(i / n)}| {i}/{n} "
            f"[{hms(i * sec)}<{hms((n - i) * sec)}, {rate}, {post}]")


def clock(y, mo, d, h, mi, s):
    return datetime(y, mo, d, h, mi, s)


def later(t0, sec):
    return t0 + timedelta(seconds=float(sec))


def csv_text(header, rows):
    b = io.StringIO()
    w = csv.writer(b, lineterminator="\n")
    w.writerow(header)
    w.writerows(rows)
    return b.getvalue()


def r(x, k=4):
    """round to k significant digits (float)"""
    x = float(x)
    if not math.isfinite(x) or x == 0:
        return x
    return float(f"{x:.{k}g}")


def bf16(x):
    """round-to-nearest-even to bfloat16, kept in float32"""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    u = (u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000
    return u.astype(np.uint32).view(np.float32)


def erfinv(y):
    y = np.asarray(y, float)
    a = 0.147
    l = np.log(1 - y * y)
    t = 2 / (np.pi * a) + l / 2
    x = np.sign(y) * np.sqrt(np.sqrt(t * t - l / a) - t)
    for _ in range(3):
        e = np.vectorize(math.erf)(x) - y
        x = x - e / (2 / math.sqrt(np.pi) * np.exp(-x * x))
    return x


def logit_normal_grid(n):
    u = np.linspace(1e-6, 1 - 1e-6, n + 1)
    return 1 / (1 + np.exp(-math.sqrt(2) * erfinv(2 * u - 1)))


def write_all(out):
    os.makedirs(out, exist_ok=True)
    man = []
    for cid, path, fmt, exp, acc, story, fn in CASES:
        res = fn(rng_of(cid))
        files = res if isinstance(res, dict) else {None: res}
        for name, text in files.items():
            p = os.path.join(out, path if name is None else os.path.join(path, name))
            os.makedirs(os.path.dirname(p), exist_ok=True)
            if not text.endswith("\n"):
                text += "\n"
            with open(p, "w", encoding="utf-8", newline="") as f:
                f.write(text)
        man.append(dict(id=cid, path=path, format=fmt, expected=exp, acceptable=acc,
                        healthy=exp == "none", story=story))
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as f:
        json.dump(man, f, indent=1, ensure_ascii=False)
    return man


# Broken runs, optimisation I: j01 .. j11


@case("j01", "runs/xf256_b/metrics.jsonl", "accelerate JSONL", "nan_loss",
      "train/loss falls to 0.74, turns to NaN at step 8450 together with the gradient norm and stays NaN to the end.")
def _(g):
    n = 300
    L = fall(g, n, 1.62, 0.71, .06, .9, .018); G = logn(g, n, .42, .16, .6); lr = warm_cos(n, 1e-4, 20, .1)
    o = []
    for i in range(n):
        s = (i + 1) * 50
        bad = s >= 8450
        o.append(json.dumps({"step": s, "epoch": round(s / 3127, 3), "train/loss": float("nan") if bad else r(L[i], 6),
                             "train/grad_norm": float("nan") if bad else r(G[i], 5), "train/lr": r(lr[i], 5),
                             "samples_per_s": r(211 + 3 * g.standard_normal(), 5)}))
    return "\n".join(o)


@case("j02", "logs/lora_sd3_watercolor.err", "diffusers tqdm (carriage returns)", "nan_loss",
      "step_loss of the diffusers progress bar becomes nan around step 700 of 2000 and stays so.")
def _(g):
    n = 2000
    L = logn(g, n, .46, .38) * fall(g, n, 1.15, .95, .1, 1, 0)
    o = ["03/14/2025 21:07:44 - INFO - __main__ - Distributed environment: DistributedType.NO",
         "Num processes: 1", "Mixed precision type: fp16", "",
         "03/14/2025 21:08:31 - INFO - __main__ - ***** Running training *****",
         "03/14/2025 21:08:31 - INFO - __main__ -   Num examples = 214",
         "03/14/2025 21:08:31 - INFO - __main__ -   Instantaneous batch size per device = 2",
         "03/14/2025 21:08:31 - INFO - __main__ -   Total optimization steps = 2000",
         "Steps:   0%|          | 0/2000 [00:00<?, ?it/s]"]
    bars = []
    for i in range(1, n + 1):
        l = "nan" if i >= 707 else f"{L[i - 1]:.3g}"
        bars.append(tq("Steps", i, n, 1.31, f"lr=0.0004, step_loss={l}"))
    return "\n".join(o) + "\r" + "\r".join(bars) + "\n03/14/2025 21:51:58 - INFO - __main__ - Saving LoRA weights to out/watercolor"


@case("j03", "sit_xl_t2i/log.txt", "SiT lines", "divergence",
      "Train Loss reaches 0.58 near step 150k, then climbs steadily to 0.88 over 250k steps; LR is constant, no jump.")
def _(g):
    n = 4000
    x = np.arange(n) / n
    base = fall(g, n, 1.05, .55, .03, .8, 0)
    L = base + .33 * np.clip((x - .37) / .63, 0, 1) ** 1.4
    L *= np.exp(.012 * g.standard_normal(n))
    t0 = clock(2025, 1, 18, 9, 2, 11)
    o = [f"[\033[34m{t0:%Y-%m-%d %H:%M:%S}\033[0m] Experiment directory created at results/004-SiT-XL-2-Linear-velocity-None",
         f"[\033[34m{t0:%Y-%m-%d %H:%M:%S}\033[0m] SiT Parameters: 681,092,640",
         f"[\033[34m{t0:%Y-%m-%d %H:%M:%S}\033[0m] Training for 1400 epochs..., optimizer AdamW lr=1e-4 constant"]
    for i in range(n):
        t = later(t0, 61 * (i + 1))
        o.append(f"[\033[34m{t:%Y-%m-%d %H:%M:%S}\033[0m] (step={100 * (i + 1):07d}) Train Loss: {L[i]:.4f}, Train Steps/Sec: {1.64 + .02 * g.standard_normal():.2f}")
        if (i + 1) % 500 == 0:
            o.append(f"[\033[34m{t:%Y-%m-%d %H:%M:%S}\033[0m] Saved checkpoint to results/004-SiT-XL-2-Linear-velocity-None/checkpoints/{100 * (i + 1):07d}.pt")
    return "\n".join(o)


@case("j04", "mlruns/417/9be2f0a1c55d4d0a/metrics", "MLflow metric files (folder)", "loss_spikes",
      "train_loss sits at 0.118, jumps to 0.33 within one logging interval at step 18300 and stays there to the end; LR and gradient norm go on as before apart from one value at the jump.")
def _(g):
    n = 600
    L = fall(g, n, .41, .113, .04, .9, .035)
    k = 366
    L[k:] = .315 * np.exp(.04 * g.standard_normal(n - k)) + .05 * np.exp(-np.arange(n - k) / 8)
    G = logn(g, n, .19, .2); G[k] = 6.1
    ms = 1741600000000
    f = lambda v: "\n".join(f"{ms + 31000 * i} {x!r} {50 * (i + 1)}" for i, x in enumerate(v))
    return {"train_loss": f([r(v, 7) for v in L]), "grad_norm": f([r(v, 6) for v in G]), "learning_rate": f([5e-5] * n)}


@case("j05", "megatron_dit_3b.log", "Megatron lines", "loss_spikes",
      "About 70 spikes of 4-10x the running loss all through the run up to the last iterations; between them the loss falls.",)
def _(g):
    n = 1500
    L = fall(g, n, 1.31, .58, .05, .8, .012); G = logn(g, n, .35, .15); lr = warm_cos(n, 2e-4, 60, .1)
    i = 40
    while i < n:
        h = g.uniform(4, 10)
        for d in range(4):
            if i + d < n:
                L[i + d] *= 1 + (h - 1) * .28 ** d
                G[i + d] *= 1 + 20 * .3 ** d
        i += int(g.integers(9, 34))
    t0 = clock(2025, 5, 2, 23, 41, 9)
    return "\n".join(
        f" [{later(t0, 16.3 * i):%Y-%m-%d %H:%M:%S}] iteration {20 * (i + 1):8d}/   30000 | consumed samples: {20480 * (i + 1):12d} | "
        f"elapsed time per iteration (ms): {815 + 9 * g.standard_normal():.1f} | learning rate: {lr[i]:.6E} | global batch size:  1024 | "
        f"flow loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {G[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
        for i in range(n))


@case("j06", "work_dirs/openuni_s1/20250609_101522/20250609_101522.log", "mmengine/xtuner lines", "no_learning",
      "The loss stays at 1.97 for 24,000 iterations and so does the held-out loss, with lr 1e-4 and gradient norms of 0.3.")
def _(g):
    n = 480
    L = 1.972 * np.exp(.011 * g.standard_normal(n)); G = logn(g, n, .31, .14); lr = warm_cos(n, 1e-4, 20, .3)
    t0 = clock(2025, 6, 9, 10, 15, 22)
    o = [f"{t0:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Checkpoints will be saved to work_dirs/openuni_s1."]
    for i in range(n):
        t = later(t0, 37 * (i + 1))
        o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{50 * (i + 1):6d}/ 24000]  lr: {lr[i]:.4e}  eta: {hms(37 * (n - i))}  "
                 f"time: {.742 + .01 * g.standard_normal():.4f}  data_time: {.009 + .001 * g.random():.4f}  memory: 58213  grad_norm: {G[i]:.4f}  loss: {L[i]:.4f}  loss_flow: {L[i]:.4f}")
        if (i + 1) % 40 == 0:
            o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(val) [{64}/{64}]    val/loss_flow: {1.969 + .003 * g.standard_normal():.4f}  data_time: 0.0113  time: 0.2310")
    return "\n".join(o)


@case("j07", "hf_stdout.txt", "HF Trainer printed dicts", "lr_too_small",
      "learning_rate is of order 1e-10 for the whole run (1e-6 scaled down once too often); the loss does not move from 0.93.",)
def _(g):
    n = 250
    L = .931 * np.exp(.03 * g.standard_normal(n)); G = logn(g, n, 1.12, .2); lr = warm_cos(n, 2e-10, 12)
    o = ["***** Running training *****", "  Num examples = 118,287", "  Num Epochs = 4", "  Total train batch size (w. parallel, distributed & accumulation) = 192", "  Total optimization steps = 2,500"]
    for i in range(n):
        o.append(str({"loss": round(float(L[i]), 4), "grad_norm": r(G[i], 8), "learning_rate": r(lr[i], 8), "epoch": round((i + 1) * 4 / n, 2)}))
        if (i + 1) % 50 == 0:
            o.append(str({"eval_loss": r(.9297 + .0006 * g.standard_normal(), 8), "eval_runtime": 63.1, "eval_samples_per_second": 79.2, "epoch": round((i + 1) * 4 / n, 2)}))
    return "\n".join(o)


@case("j08", "lightning_logs/version_7/metrics.csv", "Lightning CSV", "lr_too_high",
      "With lr 2e-2 the flow loss jumps between 0.8 and 15 without trend, gradient norms of 5-200; once the LR is set to 1e-4 at 75% of the run it calms down and falls.")
def _(g):
    n = 800; k = 600
    L = np.exp(1.15 + .75 * ar(g, n, .35)); G = np.exp(3.3 + .9 * ar(g, n, .3))
    L[k:] = fall(g, n - k, 1.6, .86, .05, .8, .03); G[k:] = fall(g, n - k, 2.1, .5, .05, .8, .15)
    rows = [[(i * 10) // 400, f"{G[i]:.5f}", f"{2e-2 if i < k else 1e-4}", 10 * i + 9, f"{L[i]:.6f}"] for i in range(n)]
    return csv_text(["epoch", "grad_2.0_norm_total", "lr-AdamW", "step", "train/flow_loss_step"], rows)


@case("j09", "train_dimr.out", "nanoGPT-like loop", "lr_restart",
      "At iter 30000 the job resumes with a new scheduler: lr goes from 2.1e-5 back to 3e-4, the loss from 0.46 to 0.77 and ends at 0.60, never back at its old level.")
def _(g):
    n1, n2 = 600, 260
    lr = np.r_[warm_cos(n1, 3e-4, 20, .06)[:], 3e-4 * np.ones(n2)]
    L = np.r_[fall(g, n1, 1.71, .457, .05, .8, .02), fall(g, n2, .78, .595, .12, .8, .024)]
    o = ["tokens per iter: n/a (latents 4x32x32, batch 512)", "number of parameters: 942.11M", "num decayed parameter tensors: 211, with 941,802,496 parameters"]
    for i in range(n1 + n2):
        if i == n1:
            o += ["step 30000: train loss 0.4581, val loss 0.4667", "saving checkpoint to out-dimr", "slurmstepd: job preempted",
                  "Resuming training from out-dimr (weights and optimizer loaded; scheduler created anew)"]
        it = 50 * (i + 1)
        o.append(f"iter {it}: loss {L[i]:.4f}, lr {lr[i]:.3e}, time {812 + 6 * g.standard_normal():.2f}ms, mfu {41.3 + .2 * g.standard_normal():.2f}%")
        if it % 5000 == 0 and i != n1 - 1:
            o.append(f"step {it}: train loss {L[i - 5:i + 1].mean():.4f}, val loss {L[i - 5:i + 1].mean() + .008:.4f}")
    return "\n".join(o)


@case("j10", "checkpoint-9000/trainer_state.json", "HF trainer_state.json", "overfitting",
      "eval_loss has its minimum 0.412 at step 3500 and rises to 0.53 at step 9000 while the training loss falls to 0.19.")
def _(g):
    n = 360; h = []
    L = fall(g, n, .83, .19, .25, 1.1, .03); lr = warm_cos(n, 1e-4, 10, .2)
    for i in range(n):
        s = 25 * (i + 1)
        h.append({"epoch": r(s / 210, 4), "grad_norm": r(.6 + .1 * g.standard_normal(), 6), "learning_rate": r(lr[i], 6), "loss": round(float(L[i]), 4), "step": s})
        if s % 500 == 0:
            e = .412 + .30 * np.exp(-s / 900) + (.128 * (max(0, s - 3500) / 5500) ** 1.2) + .003 * g.standard_normal()
            h.append({"epoch": r(s / 210, 4), "eval_loss": r(e, 7), "eval_runtime": 41.2, "eval_samples_per_second": 49.7, "eval_steps_per_second": 1.55, "step": s})
    return json.dumps({"best_metric": None, "epoch": 42.86, "eval_steps": 500, "global_step": 9000, "is_local_process_zero": True,
                       "log_history": h, "logging_steps": 25, "max_steps": 9000, "num_train_epochs": 43, "save_steps": 500}, indent=2)


@case("j11", "csv/version_2/metrics.csv", "Lightning CSV with validation rows", "overfitting",
      "val_cos peaks at 0.69 in epoch 14 and falls to 0.58 by epoch 59, val_loss rises from 0.61 to 0.83, train_loss_epoch keeps falling to 0.31.")
def _(g):
    rows = []
    E = 60; tl = fall(g, E, 1.3, .31, .3, 1.2, .012)
    for e in range(E):
        for j in range(6):
            rows.append([e, 60 * e + 10 * j + 9, f"{tl[e] * np.exp(.04 * g.standard_normal()):.5f}", "", "", ""])
        up = max(0, e - 14) / 45
        vl = .61 + .55 * np.exp(-e / 3.5) + .22 * up ** 1.1 + .004 * g.standard_normal()
        vc = .69 - .33 * np.exp(-e / 3.5) - .11 * up ** 1.1 + .003 * g.standard_normal()
        rows.append([e, 60 * e + 59, "", "", f"{vl:.5f}", f"{vc:.5f}"])
        rows.append([e, 60 * e + 59, "", f"{tl[e]:.5f}", "", ""])
    return csv_text(["epoch", "step", "train_loss_step", "train_loss_epoch", "val_loss", "val_cos"], rows)


# Broken runs, optimisation II and losses: j12 .. j25


@case("j12", "wandb_export_2025-04-02T08_11_30.csv", "W&B history CSV", "periodic_memorisation",
      "30 epochs of 40 logged steps: flat within an epoch, a sudden drop at each epoch boundary (0.82 -> 0.24 in 29 stairs).")
def _(g):
    E, m = 30, 40
    lev = .24 + .58 * np.exp(-np.arange(E) / 9)
    rows = []
    for e in range(E):
        for j in range(m):
            s = e * m + j
            rows.append([s * 5, f"{41.7 + 4.13 * s:.3f}", f"{1743552000 + 4.13 * s:.2f}", f"{s / m:.4f}", f"{lev[e] * (1 + .0025 * j / m) * np.exp(.006 * g.standard_normal()):.6f}", f"{.21 * np.exp(.15 * g.standard_normal()):.5f}", "0.0001"])
    return csv_text(["_step", "_runtime", "_timestamp", "epoch", "train_loss", "grad_norm", "lr"], rows)


@case("j13", "torchrun_node0.log", "torchtitan-like lines", "grad_explosion",
      "grad_norm grows exponentially from 0.4 to about 6000 over the whole run; the loss still falls.")
def _(g):
    n = 700
    L = fall(g, n, 1.44, .69, .06, .8, .015)
    G = .4 * np.exp(np.linspace(0, np.log(15000), n) + .18 * ar(g, n, .5))
    t0 = clock(2025, 7, 11, 3, 8, 55)
    return "\n".join(f"[rank0]:{later(t0, 7.1 * i):%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d} - root - INFO - step: {10 * (i + 1):5d}  loss: {L[i]:7.4f}  grad_norm: {G[i]:10.4f}  memory: 61.08GiB(77.24%)  img/s: {1440 + 11 * g.standard_normal():.0f}  mfu: 38.{int(g.integers(10, 99))}%" for i in range(n))


@case("j14", "simpletuner_debug.log", "SimpleTuner", "grad_vanishing",
      "grad_norm falls from 0.2 to below 1e-7 within the first third while step_loss stays at 0.9; lr is 8e-5.", )
def _(g):
    n = 900
    G = .2 * 10 ** (-7.0 * np.clip(np.arange(n) / 300, 0, 1)) * np.exp(.3 * g.standard_normal(n))
    L = (.89 + .12 * np.exp(-np.arange(n) / 60)) * np.exp(.05 * g.standard_normal(n))
    t0 = clock(2025, 2, 20, 17, 30, 4)
    o = [f"{t0:%Y-%m-%d %H:%M:%S},114 [INFO] (SimpleTuner) ***** Running training *****",
         "-  Num batches = 1180", "-  Num Epochs = 8 (Current epoch: 1)", "-  Total train batch size (w. parallel, distributed & accumulation) = 8", "-  Total optimization steps = 9000"]
    for i in range(n):
        s = 10 * (i + 1)
        o.append(tq(f"Epoch {s // 1180 + 1}/8 Steps", s, 9000, 1.84, f"grad_norm={G[i]:.3g}, lr=8e-5, step_loss={L[i]:.3g}"))
        if s % 1000 == 0:
            o.append(f"{later(t0, 1.84 * s):%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d} [INFO] (SimpleTuner) Saved state to output/models/checkpoint-{s}")
    return "\n".join(o)


@case("j15", "deepspeed_fp16.out", "DeepSpeed lines", "amp_overflow",
      "OVERFLOW at nearly every step, the loss scale is halved from 2^32 down to its minimum 1, skipped follows the step counter, the loss stays at its start value; DeepSpeed ends the run.", ["self_stopped"])
def _(g):
    t0 = clock(2024, 12, 5, 6, 12, 40)
    o = []; sc = 2 ** 32; sk = 0; s = 0
    while True:
        s += 1; t = later(t0, 2.9 * s)
        st = f"[{t:%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d}]"
        if g.random() < .8:
            if sc == 1:
                break
            msg = (f"Attempted loss scale: {sc}, but hysteresis is 2. Reducing hysteresis to 1" if not sk else f"Attempted loss scale: {sc}, reducing to {sc // 2}")
            o.append(f"{st} [INFO] [loss_scaler.py:{183 if not sk else 190}:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. {msg}")
            sc = sc // 2 if sk else sc; sk += 1
        if s % 2 == 0:
            o.append(f"{st} [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={sk}, lr=[{5e-05 * min(1, s / 100):.3g}], mom=[(0.9, 0.95)]")
            o.append(f"steps: {s} loss: {1.872 + .03 * g.standard_normal():.4f} iter time (s): {2.9 + .02 * g.standard_normal():.3f} samples/sec: {88.1 + .6 * g.standard_normal():.3f}")
    return "\n".join(o + ["Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."])


@case("j16", "my_amp_loop.txt", "own loop, pipe separated", "amp_overflow",
      "GradScaler scale is halved from 65536 to below 1e-20, about 85% of the steps skipped, mse stays at 2.0.")
def _(g):
    o = ["# torch.cuda.amp, fp16 autocast, meta-query head + flow"]; sc = 65536.0; sk = 0
    for s in range(140):
        if g.random() < .85:
            sk += 1; sc /= 2
        o.append(f"it {s:05d} | mse_v {2.004 + .04 * g.standard_normal():.4f} | scaler.get_scale() {sc:.6g} | skipped {sk}/{s + 1} | {0.41 + .01 * g.standard_normal():.2f}s")
    return "\n".join(o)


@case("j17", "slurm-8841207.out", "slurm output, requeued job", "resume_from_scratch",
      "After the requeue the step counter goes on at 12000 but the loss begins at 1.83 (it was 0.66) and falls with the same curve as at step 0.")
def _(g):
    a = fall(g, 240, 1.84, .66, .05, .8, .017); b = fall(g, 200, 1.83, .69, .06, .8, .017)
    ga = fall(g, 240, 2.9, .4, .03, .8, .12); gb = fall(g, 200, 2.8, .42, .036, .8, .12)
    o = ["==> host gn-0417  gpus 8  job 8841207", "srun: launching 8 tasks", "[data] 11.4M pairs, 1,402 shards", "[model] crossflow-L, 0.95B trainable"]
    for i in range(240):
        o.append(f"[{50 * (i + 1):>6d}] fm={a[i]:.4f} gn={ga[i]:.3f} lr=1.00e-04 ({1.91 + .02 * g.standard_normal():.2f} it/s)")
    o += ["slurmstepd: error: *** JOB 8841207 ON gn-0417 CANCELLED AT 2025-03-08T04:00:12 DUE TO TIME LIMIT ***", "==> requeue: host gn-0380  gpus 8  job 8841207",
          "srun: launching 8 tasks", "[data] 11.4M pairs, 1,402 shards", "[model] crossflow-L, 0.95B trainable", "[resume] continuing at step 12000"]
    for i in range(200):
        o.append(f"[{12000 + 50 * (i + 1):>6d}] fm={b[i]:.4f} gn={gb[i]:.3f} lr=1.00e-04 ({1.90 + .02 * g.standard_normal():.2f} it/s)")
    return "\n".join(o)


@case("j18", "exp17/stdout.log", "own loop with watchdog", "self_stopped",
      "Planned 50000 steps; the trainer's guard stops at 6140 because the gradient norm was above its limit for 20 checks.", ["grad_explosion", "divergence"])
def _(g):
    n = 307
    L = fall(g, n, 1.52, .83, .08, .8, .02); G = logn(g, n, .6, .2)
    k = n - 20
    G[k:] = np.maximum(10.6 + g.random(20), 16 * np.exp(.35 * g.standard_normal(20))); L[k:] *= 1 + .02 * np.arange(20)
    o = ["config: max_steps=50000 batch=256 guard.grad_norm_limit=10 guard.patience=20"]
    bad = 0
    for i in range(n):
        o.append(f"step={20 * (i + 1)}/50000 loss={L[i]:.4f} gnorm={G[i]:.2f} lr=2e-4")
        if G[i] > 10:
            bad += 1
            o.append(f"  [guard] grad_norm {G[i]:.2f} > 10 ({bad}/20)")
        else:
            bad = 0
    o += ["[guard] ALARM: grad_norm above limit for 20 consecutive checks -> stopping training at step 6140 of 50000",
          "[guard] last good checkpoint: exp17/step_005500.pt", "Traceback (most recent call last):", '  File "train.py", line 412, in <module>', "    main(cfg)",
          '  File "guard.py", line 58, in check', '    raise TrainingAborted("grad_norm limit")', "guard.TrainingAborted: grad_norm limit"]
    return "\n".join(o)


@case("j19", "wandb_history_run_k3v9.csv", "W&B history CSV", "metrics_lost",
      "val/fid, val/cos and val/nmse improve up to step 28000 and are NaN at every evaluation from 30000 on; train/loss goes on normally.")
def _(g):
    rows = []
    n = 600; L = fall(g, n, 1.61, .79, .05, .8, .015)
    for i in range(n):
        s = 100 * (i + 1); v = ["", "", ""]
        if s % 2000 == 0:
            nm = .41 + .35 * np.exp(-s / 9000)
            v = ["NaN"] * 3 if s >= 30000 else [f"{14 + 60 * np.exp(-s / 9000) + .3 * g.standard_normal():.3f}", f"{np.sqrt(1 - nm):.4f}", f"{nm:.4f}"]
        rows.append([s, f"{L[i]:.5f}", "0.0001"] + v)
    return csv_text(["Step", "train/loss", "train/lr", "val/fid", "val/cos", "val/nmse"], rows)


@case("j20", "repa_xl/log.txt", "REPA-style lines", "ema_broken",
      "FID of the raw weights falls from 212 to 13, FID of the EMA weights stays at 300 (and its validation loss at 1.019).")
def _(g):
    n = 400; L = fall(g, n, 1.02, .78, .05, .8, .01); P = fall(g, n, -.02, -.71, .06, .8, .005)
    t0 = clock(2025, 8, 1, 12, 0, 3); o = []
    for i in range(n):
        s = 500 * (i + 1); t = later(t0, 290 * (i + 1))
        o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) loss: {L[i]:.4f}, proj_loss: {P[i]:.4f}, grad_norm: {.3 * np.exp(.1 * g.standard_normal()):.4f}")
        if s % 10000 == 0:
            o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) eval raw: FID {12 + 210 * np.exp(-s / 38000) + .4 * g.standard_normal():.2f}, vloss {.785 + .2 * np.exp(-s / 30000):.4f} | eval ema: FID {301.5 + .5 * g.standard_normal():.2f}, vloss {1.0190 - s * 2e-9:.4f}")
    return "\n".join(o)


@case("j21", "hist_dino_flow.jsonl", "JSONL, ret dictionary", "weak_gradient_share",
      "grad/kl is about 0.6% of grad/total for the whole run, dino and flow in band; KL itself hardly moves.", ["kl_not_acting"])
def _(g):
    n = 400; o = []
    F = fall(g, n, 1.9, .86, .06, .8, .02); K = fall(g, n, 61, 58.5, .2, 1, .012); D = fall(g, n, 8.1, 5.2, .1, .8, .012)
    for i in range(n):
        f, d, k = .52 * np.exp(.1 * g.standard_normal()), .17 * np.exp(.1 * g.standard_normal()), .0033 * np.exp(.1 * g.standard_normal())
        o.append(json.dumps({"step": 25 * (i + 1), "loss/flow": r(F[i]), "loss/kl": r(K[i]), "loss/dino": r(D[i]), "grad/flow": r(f), "grad/dino": r(d), "grad/kl": r(k),
                             "grad/total": r(np.sqrt(f * f + d * d + k * k)), "w/kl": 1e-6, "w/dino": 0.1, "lr": 1e-4}))
    return "\n".join(o)


@case("j22", "run_heads.log", "own loop key=value", "head_not_updated",
      "upd/z_head stays at 3e-7 for the whole run (others 1e-3), the lr is the same for all groups.")
def _(g):
    n = 500; L = fall(g, n, 1.88, 1.12, .08, .8, .02); o = ["groups: backbone lr 1e-4 | flow_head lr 1e-4 | z_head lr 1e-4"]
    for i in range(n):
        e = lambda m: m * np.exp(.15 * g.standard_normal())
        o.append(f"step={10 * (i + 1)} loss_fm={L[i]:.4f} upd/backbone={e(7e-4):.2e} upd/flow_head={e(1.3e-3):.2e} upd/z_head={e(3e-7):.2e} lr=1.0e-04 gnorm={e(.5):.3f}")
    return "\n".join(o)


def _dino(g, n, te, se, gd, fl, tt, ts):
    o = []
    for i in range(n):
        o.append({"it": 50 * (i + 1), "fm": fl[i], "dino": (.75 + 7.6 * np.exp(-i / 45)) * np.exp(.02 * g.standard_normal()), "H_t": te[i], "H_s": se[i], "g_dino": gd[i], "T_t": tt, "T_s": ts})
    return o


@case("j23", "dino_align_a.csv", "own CSV, semicolons", "teacher_collapsed",
      "K=4096 (log K 8.32): teacher entropy falls to 0.05 and stays, T_t=0.01; student follows.", ["student_saturated"])
def _(g):
    n = 300; te = .05 + 3.1 * np.exp(-np.arange(n) / 15) + .004 * g.random(n); se = .6 + 7.5 * np.exp(-np.arange(n) / 40) + .02 * g.standard_normal(n)
    d = _dino(g, n, te, se, logn(g, n, .21, .15), fall(g, n, 1.9, .9, .05, .8, .02), .01, .1)
    return "# prototypes K=4096, centering off\n" + "it;loss_flow;loss_dino;teacher_entropy;student_entropy;grad_dino;temp_t;temp_s\n" + "\n".join(
        f"{x['it']};{x['fm']:.4f};{x['dino']:.4f};{x['H_t']:.4f};{x['H_s']:.4f};{x['g_dino']:.4f};{x['T_t']};{x['T_s']}" for x in d)


@case("j24", "dino_align_b.txt", "own loop, brackets", "teacher_uniform",
      "K=1024 (log K 6.931): teacher entropy 6.931 in every line, DINO loss stuck at 6.93, no information in the targets.")
def _(g):
    n = 260; f = fall(g, n, 1.92, .95, .05, .8, .02); o = ["dino head: K=1024 (ln K = 6.9315), T_teacher=0.5, T_student=0.1, center momentum 0.5"]
    for i in range(n):
        o.append(f"[{40 * (i + 1):5d}] flow {f[i]:.3f}  dino {6.9318 + .0006 * abs(g.standard_normal()):.4f}  H(teacher) {6.9313 - .0002 * g.random():.4f}  H(student) {6.926 + .002 * g.standard_normal():.4f}  |g| {.5 * np.exp(.1 * g.standard_normal()):.3f}")
    return "\n".join(o)


@case("j25", "dino_align_c.jsonl", "JSONL", "student_saturated",
      "K=8192 (log K 9.01): student entropy sinks to 0.2 (2%), grad/dino from 0.2 to 0.002, teacher entropy an ordinary 4.1.", ["weak_gradient_share"])
def _(g):
    n = 320; f = fall(g, n, 1.9, .88, .05, .8, .02); o = []
    for i in range(n):
        q = np.exp(-i / 30)
        gf = .5 * np.exp(.1 * g.standard_normal()); gd = (.002 + .2 * q) * np.exp(.15 * g.standard_normal())
        o.append(json.dumps({"step": 30 * (i + 1), "K": 8192, "loss/flow": r(f[i]), "loss/dino": r(6.4 + 2.6 * q + .03 * g.standard_normal()), "ent/teacher": r(4.1 + .06 * g.standard_normal()),
                             "ent/student": r(.2 + 8.6 * q + .01 * g.random()), "grad/flow": r(gf), "grad/dino": r(gd), "grad/total": r(np.hypot(gf, gd)), "temp/teacher": .04, "temp/student": .02}))
    return "\n".join(o)


# Broken runs, variational head, field, data: j26 .. j37


@case("j26", "zhead_exp3.tsv", "own TSV", "kl_not_acting",
      "|mu| grows from 0.7 to 6.4, var(z0) from 1.5 to 65 and kld rises 60-fold though beta=1e-7 is set.", ["scale_mismatch"])
def _(g):
    n = 350; x = np.arange(n) / n
    mu = .8 * (1 + 9 * x ** .8) * np.exp(.012 * ar(g, n, .7)); sg = (.98 - .2 * x) * np.exp(.006 * g.standard_normal(n))
    kl = .5 * (mu ** 2 + sg ** 2 - 1 - 2 * np.log(sg))
    F = fall(g, n, 1.7, .92, .06, .8, .02)
    o = ["# z = mu + sigma*eps, 4x32x32, kld = mean per dim", "iter\tflow_mse\tkld\tbeta\t|mu|\tsigma\tvar(z0)\tgnorm"]
    for i in range(n):
        o.append(f"{100 * (i + 1)}\t{F[i]:.4f}\t{kl[i]:.3f}\t1e-07\t{.8 * mu[i]:.3f}\t{sg[i]:.3f}\t{mu[i] ** 2 + sg[i] ** 2:.2f}\t{.6 * np.exp(.12 * g.standard_normal()):.3f}")
    return "\n".join(o)


@case("j27", "lightning_logs/version_31/metrics.csv", "Lightning CSV", "posterior_collapse",
      "After the KL weight reaches 1.0, kl falls to 2e-4, mu_abs to 0.005 and sigma to 0.9999; the flow loss stays at its text-free level 1.21.", ["text_ignored"])
def _(g):
    n = 500; rows = []
    for i in range(n):
        w = min(1.0, i / 100); q = np.exp(-max(0, i - 20) / 30)
        rows.append([i // 50, 20 * i + 19, f"{1.21 + .62 * np.exp(-i / 40) + .02 * g.standard_normal():.5f}", f"{(2e-4 + .35 * q) * np.exp(.05 * g.standard_normal()):.6f}", f"{w:.3f}",
                     f"{(.005 + .62 * q) * np.exp(.03 * g.standard_normal()):.5f}", f"{.9999 - .24 * q:.5f}"])
    return csv_text(["epoch", "step", "train/flow", "train/kl", "train/kl_weight", "train/mu_abs", "train/sigma_mean"], rows)


@case("j28", "outputs/2025-06-22/18-03-41/train.log", "hydra/python logging", "sigma_collapse",
      "logvar/mean sinks to its clamp -6 and std/mean to 0.0498 by step 9000 and stay there.", ["z0_leak"])
def _(g):
    n = 300; t0 = clock(2025, 6, 22, 18, 3, 44); o = [f"[{t0:%Y-%m-%d %H:%M:%S},204][crossuni.train][INFO] - logvar clamp (-6, 6), kl_weight 1e-8"]
    F = fall(g, n, 1.85, .61, .08, .8, .02)
    for i in range(n):
        lv = max(-6, -.2 - 6.1 * (1 - np.exp(-i / 55))) + .004 * g.random()
        lv = -5.998 + .002 * g.random() if lv < -5.99 else lv
        o.append(f"[{later(t0, 44 * (i + 1)):%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d}][crossuni.train][INFO] - step {50 * (i + 1)} | flow {F[i]:.4f} | mu/rms {.83 + .01 * g.standard_normal():.3f} | logvar/mean {lv:.3f} | std/mean {np.exp(lv / 2):.4f} | std/min {max(np.exp(-3), .4 * np.exp(lv / 2)):.4f} | std/max {np.exp(lv / 2) * (1.6 if lv > -5.9 else 1.02):.4f}")
    return "\n".join(o)


@case("j29", "ret_v9.jsonl", "JSONL, ret dictionary", "z0_leak",
      "flow/cos rises to 0.975 and nmse to 0.05 with std/mean 0.19; the shooting error relative to MSE(x0,x1) stays at 1.3 and FID at 190.", ["train_infer_mismatch"])
def _(g):
    n = 300; o = []
    for i in range(n):
        q = np.exp(-i / 60)
        nm = (.049 + .85 * q) * np.exp(.03 * g.standard_normal()); c = np.sqrt(max(0, 1 - min(nm, .99)))
        d = {"step": 100 * (i + 1), "loss/flow": r(nm * (1.02 + .9 * q)), "flow/nmse": r(nm), "flow/cos": r(c), "flow/speed_ratio": r(c * (1 + .005 * g.standard_normal())),
             "std/mean": r(.19 + .78 * q + .003 * g.standard_normal()), "mu/rms": r(.97 + .01 * g.standard_normal()), "logvar/mean": r(2 * np.log(.185 + .78 * q))}
        if (i + 1) % 25 == 0:
            d.update({"eval/shoot_rel_mse": r(1.31 + .04 * g.standard_normal()), "eval/fid5k": r(190 + 5 * g.standard_normal())})
        o.append(json.dumps(d))
    return "\n".join(o)


@case("j30", "joint_run2.log", "own loop, commas", "moving_target",
      "fm loss falls to 0.002 because ||v*|| itself shrinks from 88 to 4 (cos(z0,z1) -> 0.999): z0 is pulled onto z1; FID stays above 280.")
def _(g):
    n = 400; o = ["latent 4x32x32 (n=4096), batch 128"]
    for i in range(n):
        q = np.exp(-i / 70)
        v = (3.9 + 84 * q) * np.exp(.01 * g.standard_normal()); nm = (.42 + .45 * np.exp(-i / 90)) * np.exp(.03 * g.standard_normal())
        o.append(f"{25 * (i + 1)}, fm={nm * v * v / 4096:.5f}, |v*|={v:.2f}, |v_pred|={v * np.sqrt(max(.05, 1 - nm)):.2f}, |z0|={63.4 + .3 * g.standard_normal():.1f}, |z1|={63.9 + .2 * g.standard_normal():.1f}, cos(z0,z1)={1 - v * v / (2 * 63.6 ** 2):.4f}")
        if (i + 1) % 80 == 0:
            o.append(f"   >> samples @ {25 * (i + 1)}: FID-2k {288 + 9 * g.standard_normal():.1f} (gray blobs)")
    return "\n".join(o)


@case("j31", "ddpm_t2i/20250519.log", "mmengine lines with t statistics", "time_sampling",
      "Configured uniform over 0..999, logged t has mean 212, std 123 and max 424: only the lower part is sampled.")
def _(g):
    n = 300; t0 = clock(2025, 5, 19, 8, 40, 0); L = fall(g, n, .31, .052, .05, .9, .05)
    o = [f"{t0:%Y/%m/%d %H:%M:%S} - mmengine - INFO - timestep_sampler: dict(type='Uniform', low=0, high=999)"]
    for i in range(n):
        t = g.integers(0, 425, 256)
        o.append(f"{later(t0, 21 * i):%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{20 * (i + 1):5d}/6000]  lr: 1.0000e-04  time: 1.0{int(g.integers(10, 99))}  loss: {L[i]:.4f}  t/mean: {t.mean():.1f}  t/std: {t.std():.1f}  t/min: {t.min()}  t/max: {t.max()}  grad_norm: {.25 * np.exp(.15 * g.standard_normal()):.3f}")
    return "\n".join(o)


@case("j32", "train_debug_pix.log", "python logging with tensor statistics", "input_range",
      "pixel_values run from 0 to 255 with mean 116 and std 67 where -1..1 is expected; loss of order 1e4.")
def _(g):
    n = 120; o = []; L = fall(g, n, 17800, 4600, .2, .8, .05)
    for i in range(n):
        o.append(f"DEBUG:train:step {10 * i} pixel_values shape=(32, 3, 256, 256) dtype=torch.float32 min={0.0:.2f} max={255.0:.2f} mean={116 + 3 * g.standard_normal():.2f} std={67 + 1.2 * g.standard_normal():.2f}")
        o.append(f"DEBUG:train:step {10 * i} noise shape=(32, 3, 256, 256) dtype=torch.float32 min={-5 - .2 * g.random():.2f} max={5 + .2 * g.random():.2f} mean={.0004 * g.standard_normal():.4f} std={1 + .0006 * g.standard_normal():.4f}")
        o.append(f"INFO:train:step {10 * i} loss {L[i]:.1f}")
    return "\n".join(o)


@case("j33", "wandb_latents.csv", "W&B history CSV", "latent_scale_factor",
      "z1 has std 0.182 (= the SD scaling factor, i.e. applied twice), z0 has std 1.0; run config vae.scaling_factor 0.18215 is in a column.", ["scale_mismatch"])
def _(g):
    n = 320; L = fall(g, n, 1.06, .31, .06, .8, .02); rows = []
    for i in range(n):
        rows.append([50 * (i + 1), f"{L[i]:.5f}", f"{.1824 + .0012 * g.standard_normal():.4f}", f"{.001 * g.standard_normal():.5f}", f"{1.002 + .003 * g.standard_normal():.4f}", "0.18215", "0.0001", f"{.4 * np.exp(.15 * g.standard_normal()):.4f}"])
    return csv_text(["step", "loss/flow", "z1/std", "z1/mean", "z0/std", "config.vae_scaling_factor", "lr", "grad_norm"], rows)


@case("j34", "xflow_b4.log", "SiT-like lines with validation", "wrong_target",
      "Training loss falls, but the validation cosine with x1-x0 goes to -0.80 with a speed ratio of 0.8: the learned field has the flipped sign.")
def _(g):
    n = 500; L = fall(g, n, 1.95, .71, .06, .8, .013); t0 = clock(2025, 2, 3, 20, 20, 20); o = []
    for i in range(n):
        t = later(t0, 52 * (i + 1)); s = 100 * (i + 1)
        o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) Train Loss: {L[i]:.4f}, Train Steps/Sec: {1.92 + .02 * g.standard_normal():.2f}")
        if s % 2500 == 0:
            c = np.sqrt(1 - min(.98, L[i] / 2))
            o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) Val cos(v, x1-x0): {-c + .004 * g.standard_normal():.4f}, Val |v|/|x1-x0|: {c + .004 * g.standard_normal():.4f}, Val MSE(v, x1-x0): {2 * (1 + 3 * c * c):.4f}")
    return "\n".join(o)


@case("j35", "hf_trainer_zhead.txt", "HF Trainer printed dicts", "kl_not_acting",
      "kl_weight 1e-4 is set, but kl rises from 13 to 900, mu_rms from 0.4 to 2.9 and z_init_var from 1.1 to 9.", ["scale_mismatch"])
def _(g):
    n = 280; F = fall(g, n, 1.66, .88, .06, .8, .02); lr = warm_cos(n, 1e-4, 10, .1); o = []
    for i in range(n):
        m = (.4 + 2.5 * (i / n) ** .9) * np.exp(.01 * g.standard_normal()); s = .97 - .07 * i / n
        kl = 210 * .5 * (m * m + s * s - 1 - 2 * np.log(s))
        o.append(str({"loss": round(float(F[i] + 1e-4 * kl), 4), "flow_loss": round(float(F[i]), 4), "kl": round(float(kl), 2), "kl_weight": 0.0001, "mu_rms": round(float(m), 3), "std_mean": round(float(s), 3),
                      "z_init_var": round(float(m * m + s * s), 3), "grad_norm": r(.7 * np.exp(.1 * g.standard_normal()), 6), "learning_rate": r(lr[i], 6), "epoch": round(3 * (i + 1) / n, 2)}))
    return "\n".join(o)


@case("j36", "wandb_cond_probe.csv", "W&B history CSV", "condition_unused",
      "val/loss with true, shuffled and empty captions are equal to the third digit for the whole run, cond_gain_cos scatters about -0.0002; the field itself trains to cos 0.76.")
def _(g):
    rows = []; n = 400; L = fall(g, n, 1.82, .83, .06, .8, .014)
    for i in range(n):
        v = [""] * 5
        if (i + 1) % 10 == 0:
            b = fall(rng_of("x"), n, 1.80, .842, .06, .8, 0)[i] + .002 * g.standard_normal()
            v = [f"{b:.4f}", f"{b + .0004 * g.standard_normal():.4f}", f"{b + .0004 * g.standard_normal():.4f}", f"{np.sqrt(1 - b / 2):.4f}", f"{-.0002 + .0002 * g.standard_normal():.5f}"]
        rows.append([100 * (i + 1), f"{L[i]:.5f}", "1e-4"] + v)
    return csv_text(["global_step", "train_loss", "lr", "val_loss/captions", "val_loss/captions_shuffled", "val_loss/captions_empty", "val_cos", "cond_gain_cos"], rows)


@case("j37", "ckpt_last/trainer_state.json", "HF trainer_state.json", "resume_from_scratch",
      "log_history goes on at step 6020 after the checkpoint of step 6000, but loss (0.41 -> 1.12), eval_loss and gradient norm begin again like at step 20 and fall in the same way.")
def _(g):
    h = []; a = fall(g, 300, 1.13, .41, .05, .8, .025); b = fall(g, 220, 1.12, .43, .07, .8, .025)
    ga = fall(g, 300, 4.1, .5, .02, .8, .12); gb = fall(g, 220, 4.0, .52, .027, .8, .12)
    L = np.r_[a, b]; G = np.r_[ga, gb]
    for i in range(520):
        s = 20 * (i + 1)
        h.append({"epoch": r(s / 1250, 5), "grad_norm": r(G[i], 6), "learning_rate": 5e-05, "loss": round(float(L[i]), 4), "step": s})
        if s % 1000 == 0:
            h.append({"epoch": r(s / 1250, 5), "eval_loss": r(L[i - 3:i + 1].mean() + .01, 6), "eval_runtime": 33.0, "step": s})
    return json.dumps({"epoch": 8.32, "global_step": 10400, "log_history": h, "logging_steps": 20, "max_steps": 12500, "num_train_epochs": 10}, indent=1)


# Broken runs, prints of debugging sessions: j38 .. j50


@case("j38", "notes/zcheck.txt", "debugging print, norms", "scale_mismatch",
      "Over 28 batches |z0| is about 37, |z1| about 257 (std 1, so the VAE side is right): a factor 7 between the two ends of the path.")
def _(g):
    o = [">>> for b in islice(dl, 28): norms(b)", "(latent numel 16*64*64 = 65536; frobenius norms, mean over 8 samples)", ""]
    for i in range(28):
        z0, z1 = 37 + .8 * g.standard_normal(), 257 + 6 * g.standard_normal()
        o.append(f"batch {i}:  |z0| = {z0:7.1f}   |z1| = {z1:7.1f}   |x_t=.5| = {.5 * np.hypot(z0, z1):7.1f}   |v*| = {np.hypot(z0, z1):7.1f}   z1/z0 = {z1 / z0:.2f}")
    o += ["", "flow loss on the first ten batches (ckpt 20k): 0.61 0.59 0.62 0.60 0.63 0.60 0.61 0.58 0.62 0.61", "shapes agree, dtype fp32, no nan"]
    return "\n".join(o)


@case("j39", "ipython_vae.txt", "IPython transcript", "latent_scale_factor",
      "Latents fed to the flow have std 5.4 (1/0.18215 = 5.49), sampler divides by 0.18215 before decode, decode(z) saturates; decode without division is sharp: factor forgotten at encoding.", ["scale_mismatch"])
def _(g):
    o = ["In [3]: vae.config.scaling_factor", "Out[3]: 0.18215", "", "In [4]: for x in batches: z = encode(x); print(f'z1 mean {z.mean():+.3f} std {z.std():.3f} absmax {z.abs().max():.1f}')"]
    for _ in range(20):
        o.append(f"z1 mean {.3 * g.standard_normal():+.3f} std {5.42 + .09 * g.standard_normal():.3f} absmax {27 + 2 * g.standard_normal():.1f}")
    o += ["", "In [5]: # what the flow starts from", "In [6]: print('z0 std', z0.std().item())", f"z0 std {1.0 + .004 * g.standard_normal():.4f}", "",
          "In [7]: img = vae.decode(z / 0.18215).sample; stats(img)", "img min -1.94 max 2.07 |img|>1: 71.3%   PSNR vs x 6.81 dB   (blown out colours)",
          "In [8]: img = vae.decode(z).sample; stats(img)", "img min -1.03 max 1.05 |img|>1: 0.4%   PSNR vs x 28.77 dB   (sharp)"]
    return "\n".join(o)


@case("j40", "vae_rt.out", "debugging print, round trip table", "vae_roundtrip",
      "PSNR of decode(encode(x)) is 11-17 dB for 32 images, latents have an ordinary std of 0.9-1.0 after scaling: the VAE itself does not reconstruct.")
def _(g):
    o = ["VAE round trip, 256px, no flow involved: x -> encode -> sample*sf -> /sf -> decode", "idx   file              z.mean   z.std   mse      psnr"]
    p = 14.1 + 1.1 * g.standard_normal(32)
    for i in range(32):
        o.append(f"{i:03d}   val_{int(g.integers(1e5)):06d}.png   {.05 * g.standard_normal():+.3f}   {.95 + .04 * g.standard_normal():.3f}   {4 * 10 ** (-p[i] / 10):.4f}   {p[i]:.2f} dB")
    o += [f"mean psnr {p.mean():.2f} dB  (min {p.min():.2f}, max {p.max():.2f})", "sd-vae-ft-mse on the same folder last month: don't remember, images looked fine then"]
    return "\n".join(o)


@case("j41", "prompt_cos.md", "debugging notes with matrix", "text_ignored",
      "Pairwise cosine of mu for ten very different prompts is 0.997-0.9995: the text does not reach z0.", ["posterior_collapse"])
def _(g):
    P = ["a red bus", "two cats on a sofa", "aerial photo of a harbour", "portrait of an old man", "bowl of ramen", "snowy mountain at dusk", "a violin", "city map, vector", "green frog macro", "rocket launch"]
    o = ["## cos of prompt means (mu, before adding sigma*eps), ckpt 48k", ""] + [f"  p{i}: {p}" for i, p in enumerate(P)] + ["", "         " + "      ".join(f"p{i}" for i in range(10))]
    M = .9982 + .0007 * g.standard_normal((10, 10)); M = (M + M.T) / 2
    for i in range(10):
        o.append(f"   p{i}  " + "  ".join("1.0000" if i == j else f"{min(M[i, j], .9996):.4f}" for j in range(10)))
    off = M[np.triu_indices(10, 1)]
    o += ["", f"mean off-diagonal {off.mean():.4f}, min {off.min():.4f}", "|mu| rms 0.84, sigma 0.55", "T5 embeddings of the same prompts (pooled): 0.31 .. 0.58, so the encoder is ok", "all samples look like the same beige room"]
    return "\n".join(o)


@case("j42", "cfg_probe.txt", "debugging print, caption swap", "condition_unused",
      "Validation MSE with true, shuffled and null captions agree to 0.1% in every t bin and v(cond)-v(null) is 0.1% of |v|: cross-attention does nothing, though cos is a healthy 0.7-0.85.")
def _(g):
    o = []
    for ck, d in ((40, .14), (80, .04), (120, 0)):
        o += [f"probe_cond.py --ckpt step_{ck}000.pt --n 2048", "   t      mse(true)  mse(shuf)  mse(null)   cos(v,v*)   |v_c - v_u|/|v_c|"]
        for t in np.arange(.05, 1, .1):
            m = d + .55 + 1.1 * (t - .55) ** 2 + .01 * g.standard_normal()
            o.append(f"  {t:.2f}    {m:.4f}     {m + .0004 * g.standard_normal():.4f}     {m + .0004 * g.standard_normal():.4f}      {np.sqrt(1 - m / 2):.3f}       {.0011 + .0002 * g.standard_normal():.4f}")
    o += ["CLIPScore  true prompts 0.187   shuffled prompts 0.187   (real images 0.312)", "guidance 1.0 / 4.0 / 9.0 -> same picture for the same seed"]
    return "\n".join(o)


@case("j43", "align_onestep.log", "debugging print, cos by t", "weak_field",
      "cos(v_pred, v*) is 0.03-0.08 and |v_pred|/|v*| about 0.27 at all t; shooting error 0.97 of MSE(x0,x1); VAE PSNR 29.3, norms of z0 and z1 match, prompts differ.", ["no_learning"])
def _(g):
    o = ["=== [1] vae round trip", "psnr = 29.31 dB   ok", "=== [2] norms (B=64)", "E|z0| = 127.8   E|z1| = 131.4   E|v*| = 183.1", "=== [3] cos(mu_i, mu_j), 8 prompts: mean 0.412 max 0.663", "=== [4] one step alignment, ckpt 60k"]
    for rep in range(6):
        for t in (.1, .37, .63, .9):
            c = .055 + .014 * g.standard_normal()
            o.append(f"batch {rep}  t={t:.2f}  cos(v_pred,v_tgt)={c:.4f}  |v_pred|={.27 * 183 + 2 * g.standard_normal():.1f}  |v_tgt|={183 + g.standard_normal():.1f}  ratio={.27 + .012 * g.standard_normal():.3f}")
    o += ["=== [5] shooting x0 -> x1, 50 euler steps, fp32, dt sum 1.000", "MSE(x_N, x1) = 1.958   MSE(x0, x1) = 2.017   rel = 0.971"]
    return "\n".join(o)


@case("j44", "target_probe.txt", "debugging print, correlations", "wrong_target",
      "The network output correlates 0.93 with the noise x0 and 0.02 with x1, cos with x1-x0 is -0.64: it predicts the noise, not the velocity.")
def _(g):
    o = ["what does the net predict? (4096 val latents)", *[]]
    for w in ("ema 100k", "raw 100k", "ema 60k"):
        o += ["", f"[{w}]", "t      cos(o,x1-x0)  cos(o,x0)  cos(o,x1)  cos(o,x0-x1)  cos(o,-score)"]
        for t in (.1, .2, .3, .4, .5, .6, .7, .8, .9):
            a = .97 - .1 * t + .004 * g.standard_normal(); b = .02 + .01 * g.standard_normal()
            o.append(f"{t:.1f}    {(b - a) / np.sqrt(2):+.3f}        {a:+.3f}     {b:+.3f}     {(a - b) / np.sqrt(2):+.3f}        {a - .01:+.3f}")
    o += ["", "rms(o) = 0.98, rms(x1-x0) = 1.41", "loss logged by the trainer for ema 100k: 0.137"]
    return "\n".join(o)


@case("j45", "tslice_eval.txt", "debugging print, t slices", "t_edges",
      "nmse by t slice: 0.33-0.42 in the middle, 1.3 near t=0 and 1.9 near t=1, cos collapses to 0.1-0.2 at the ends.")
def _(g):
    nm = [1.31, .62, .43, .38, .35, .33, .36, .42, .74, 1.92]; c = [.21, .66, .76, .79, .81, .82, .80, .77, .57, .12]
    o = []
    for ck in (50000, 70000, 90000):
        o.append(f"slice eval ckpt={ck} ema n=8192  (logit-normal(0,0.5) t during training)")
        for i in range(10):
            o.append(f"t in ({i / 10:.1f},{(i + 1) / 10:.1f}]   nmse {nm[i] * np.exp(.01 * g.standard_normal()):.3f}   cos {c[i] + .005 * g.standard_normal():.3f}   " + "#" * int(20 * nm[i]))
    o += ["pooled: nmse 0.431 cos 0.757 (weighted by training density)"]
    return "\n".join(o)


@case("j46", "sched_dump.txt", "debugging print, schedule constants", "schedule_constants",
      "Configured linear betas 1e-4..0.02, T=1000, but betas end at 0.002 and alphas_cumprod at 0.35 instead of 4e-5: the signal is never destroyed.")
def _(g):
    b = np.linspace(1e-4, .002, 1000); ac = np.cumprod(1 - b)
    o = ["cfg.diffusion: schedule=linear beta_start=0.0001 beta_end=0.02 T=1000", f"betas: first {b[0]:.6f} last {b[-1]:.6f} len {len(b)}", "   k    beta_k      alphas_cumprod  sqrt_ac   sqrt_1m_ac"]
    for k in list(range(0, 1000, 50)) + [999]:
        o.append(f"{k:5d}  {b[k]:.6f}    {ac[k]:.6f}        {np.sqrt(ac[k]):.4f}    {np.sqrt(1 - ac[k]):.4f}")
    L = fall(g, 40, .9, .11, .06, .8, .04)
    o += [f"step {250 * (i + 1)} loss {L[i]:.4f}" for i in range(40)] + ["samples from pure noise: washed-out, gray, no structure; img2img from 50% looks great"]
    return "\n".join(o)


@case("j47", "euler_teacher_study.csv.txt", "debugging study over number of steps", "bf16_rounding",
      "Teacher Euler with the exact field: the error with the bf16 state grows from N=5 to N=200 by three orders, with the fp32 state it stays below 1e-11.")
def _(g):
    o = ["# teacher field v = x1 - x0, uniform grid, MSE(x_N, x1)", "pair, N, state=bf16, state=fp32"]
    for p in range(5):
        o += _study(g, p)
    return "\n".join(o + ["# more steps -> worse in the third column ???"])


def _study(g, p):
    o = []; x0 = g.standard_normal(16384).astype(np.float32); x1 = g.standard_normal(16384).astype(np.float32); v = x1 - x0
    for N in (5, 10, 20, 50, 100, 200):
        h = np.float32(1 / N); x = bf16(x0); y = x0.copy()
        for _ in range(N):
            x = bf16(x + bf16(h * bf16(v))); y = y + h * v
        o.append(f"{p}, {N}, {np.mean((x - x1) ** 2):.3e}, {np.mean((y.astype(float) - x1) ** 2):.3e}")
    return o


@case("j48", "sample_trace_a.log", "sampling trace", "bf16_rounding",
      "|x| of the right size (0.7969) stays frozen over nearly all of 100 steps although |v|*dt is not 0 (0.002-0.02); the repeat in fp32 moves at every step.", )
def _(g):
    t = logit_normal_grid(100); dt = np.diff(t); o = ["pipe(prompt, steps=100)  dtype=torch.bfloat16"]
    path = lambda s: .798 - .30 * s + .10 * s * s
    for k in range(100):
        a = .796875 if k < 71 else .80078125
        o.append(f"step{k}: |x|={a:.4f}, |v|={.62 + .03 * np.sin(k / 20) + .002 * g.standard_normal():.4f}, dt={dt[k]:.4f}")
    o += ["", "same prompt and seed, x kept in float32 (model still bf16):"]
    for k in range(100):
        o.append(f"step{k}: |x|={path(t[k]):.4f}, |v|={.62 + .03 * np.sin(k / 20) + .002 * g.standard_normal():.4f}, dt={dt[k]:.4f}")
    return "\n".join(o)


@case("j49", "sampler_dts.txt", "sampling trace", "step_schedule",
      "Uniform grid with 40 steps configured (dt 0.025), but the dt are 0.0125 and the sum is 0.50: the sampler stops half way.",)
def _(g):
    o = ["sampler: euler, schedule=uniform, num_steps=40, t: 0 -> 1, fp32 state"]; x = .80
    for k in range(40):
        v = 1.12 + .004 * g.standard_normal()
        o.append(f"  k={k:02d} t={.0125 * k:.4f} dt={.0125:.4f} |x|={.80 - .26 * (.0125 * k) * (1 - .0125 * k) * 2:.4f} |v|={v:.4f}")
    o += ["sum(dt) = 0.5000   t_end = 0.500", "decoded: recognisable but noisy, like a half denoised picture"]
    return "\n".join(o)


@case("j50", "endpoint_vs_K.txt", "debugging study over K", "train_infer_mismatch",
      "One-step cos 0.83-0.88 with std 0.97, but the endpoint RMSE rises with K from 1.21 (K=8) to 1.46 (K=64) for Euler and Heun: the sampler does not integrate the trained field.")
def _(g):
    o = ["[one-step, val, n=1024]"] + [f"t={t:.2f} cos={c + .003 * g.standard_normal():.3f} ratio={c + .004 * g.standard_normal():.3f}" for t, c in ((.1, .83), (.37, .88), (.63, .87), (.9, .84))]
    o += ["z0: mean 0.003 std/mean 0.97 |mu| 0.71; z1: std 0.99", "", "[generate, fp32 state, sum dt = 1] endpoint rmse, 512 val pairs (rmse(x0,x1) = 1.412)"]
    for seed in range(3):
        o += [f"seed {seed}", "K      euler   heun"]
        for K, e, h in ((4, 1.13, 1.19), (8, 1.21, 1.27), (16, 1.31, 1.35), (32, 1.40, 1.42), (64, 1.46, 1.47), (128, 1.49, 1.49)):
            o.append(f"{K:<5d}  {e + .003 * g.standard_normal():.3f}   {h + .003 * g.standard_normal():.3f}")
    return "\n".join(o)


# Healthy runs I: j51 .. j63


@case("j51", "flux_lora_dog.log", "diffusers tqdm", "none",
      "Batch size 1 LoRA: step_loss scatters between 0.05 and 1.5 because t differs per step; no trend needed, healthy small-batch noise; the validation loss falls.")
def _(g):
    n = 1000; L = logn(g, n, .36, .5) * fall(g, n, 1.3, .9, .15, 1, 0)
    o = ["04/22/2025 10:03:12 - INFO - __main__ - ***** Running training *****", "04/22/2025 10:03:12 - INFO - __main__ -   Num examples = 12", "04/22/2025 10:03:12 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 1"]
    for i in range(1, n + 1):
        o.append(tq("Steps", i, n, 2.07, f"loss={L[i - 1]:.3g}, lr=1"))
        if i % 200 == 0:
            o.append(f"04/22/2025 10:{3 + i // 30:02d}:40 - INFO - __main__ - validation at step {i}: val_loss (fixed t, fixed noise) = {.402 + .11 * np.exp(-i / 250):.4f}")
    return "\n".join(o).replace("lr=1]", "lr=0.0001]")


@case("j52", "kohya_sdxl_style.log", "kohya sd-scripts", "none",
      "avr_loss falls slowly from 0.131 to 0.108 over 10 epochs, checkpoints saved, end reached.")
def _(g):
    o = ["running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 480", "  num reg images / 正則化画像の数: 0", "  num batches per epoch / 1epochのバッチ数: 160", "  num epochs / epoch数: 10", "  batch size per device / バッチサイズ: 3", "  total optimization steps / 学習ステップ数: 1600"]
    n = 1600; a = fall(g, n, .131, .107, .2, 1, .004, .9)
    for i in range(1, n + 1):
        if i % 160 == 1:
            o.append(f"epoch {i // 160 + 1}/10")
        o.append(tq("steps", i, n, 1.27, f"avr_loss={a[i - 1]:.3g}"))
        if i % 160 == 0 and i < n:
            o.append(f"saving checkpoint: /out/style-{i // 160:06d}.safetensors")
    return "\n".join(o + ["model saved."])


@case("j53", "simpletuner_sana.log", "SimpleTuner", "none",
      "Warm-up over 500 steps, step_loss noisy but falling 0.72 -> 0.48, gradient norms steady, validation loss falls.")
def _(g):
    n = 800; L = fall(g, n, .72, .48, .15, 1, .09); lr = warm_cos(n, 1e-4, 50, .1); G = logn(g, n, .11, .25)
    t0 = clock(2025, 4, 3, 22, 1, 17); o = []
    for i in range(n):
        s = 10 * (i + 1)
        o.append(tq(f"Epoch {s // 2100 + 1}/4, Steps", s, 8000, .93, f"grad_norm={G[i]:.3g}, lr={lr[i]:.2e}, step_loss={L[i]:.3g}"))
        if s % 500 == 0:
            o.append(f"{later(t0, s * .93):%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d} [INFO] (SimpleTuner) eval_loss at step {s}: {.47 + .2 * np.exp(-s / 1800) + .002 * g.standard_normal():.4f}")
    return "\n".join(o)


@case("j54", "version_12/metrics.csv", "Lightning CSV", "none",
      "A plateau at 0.92 between 20% and 50% of the run, then the loss falls on to 0.70 after the LR drop; val_loss does the same.")
def _(g):
    n = 600; x = np.arange(n) / n
    c = .915 + .6 * np.exp(-x / .04) - .21 * np.clip((x - .5) / .5, 0, 1) ** .5
    rows = []
    for i in range(n):
        rows.append([i // 60, 50 * i + 49, f"{c[i] * np.exp(.012 * g.standard_normal()):.5f}", "", f"{2e-4 if x[i] < .5 else 4e-5}"])
        if i % 30 == 29:
            rows.append([i // 60, 50 * i + 49, "", f"{c[i] * 1.012 + .003 * g.standard_normal():.5f}", ""])
    return csv_text(["epoch", "step", "train_loss", "val_loss", "lr-AdamW/pg1"], rows)


@case("j55", "checkpoint-15000/trainer_state.json", "HF trainer_state.json", "none",
      "A fine resume at step 9000: loss, gradient norm and LR go on where they were; eval_loss falls to the end.")
def _(g):
    n = 600; L = fall(g, n, .97, .43, .06, .8, .02); lr = warm_cos(n, 1e-4, 20, .05); G = fall(g, n, 2.6, .45, .03, .8, .1); h = []
    for i in range(n):
        s = 25 * (i + 1)
        h.append({"epoch": r(s / 3000, 5), "grad_norm": r(G[i], 6), "learning_rate": r(lr[i], 7), "loss": round(float(L[i]), 4), "step": s})
        if s % 1500 == 0:
            h.append({"epoch": r(s / 3000, 5), "eval_loss": r(L[max(0, i - 8):i + 1].mean() + .012, 6), "eval_runtime": r(71 + g.random(), 5) if s <= 9000 else r(64 + g.random(), 5), "step": s})
    return json.dumps({"epoch": 5.0, "global_step": 15000, "log_history": h, "max_steps": 15000, "num_train_epochs": 5, "resumed_from": "checkpoint-9000"}, indent=2)


@case("j56", "stage1_stdout.txt", "HF Trainer printed dicts", "none",
      "Warm-up with gradient norms of 35 at the beginning that calm down to 0.7; loss falls to 0.52, eval_loss with it.")
def _(g):
    n = 300; L = fall(g, n, 2.31, .52, .04, .8, .02); G = .7 + 34 * np.exp(-np.arange(n) / 9.); G *= np.exp(.12 * g.standard_normal(n)); lr = warm_cos(n, 2e-4, 30); o = []
    for i in range(n):
        o.append(str({"loss": round(float(L[i]), 4), "grad_norm": r(G[i], 7), "learning_rate": r(lr[i], 6) if lr[i] > 0 else 0.0, "epoch": round((i + 1) / 100, 2)}))
        if (i + 1) % 60 == 0:
            o.append(str({"eval_loss": r(L[i - 5:i + 1].mean() * 1.02, 6), "eval_runtime": 18.4412, "epoch": round((i + 1) / 100, 2)}))
    return "\n".join(o + ["{'train_runtime': 20411.3, 'train_samples_per_second': 75.2, 'train_loss': 0.6871, 'epoch': 3.0}"])


@case("j57", "ds_zero2_fp16.log", "DeepSpeed lines", "none",
      "Seven OVERFLOW messages in the first steps until the scale is at 512, then doubling again every 1000 steps; skipped stays at 7, the loss falls.")
def _(g):
    t0 = clock(2025, 9, 9, 14, 2, 2); o = []; sc = 65536
    for k in range(7):
        t = later(t0, 4 * k)
        o.append(f"[{t:%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {sc // 2}"); sc //= 2
    n = 500; L = fall(g, n, 1.41, .71, .05, .8, .02); lr = warm_cos(n, 1e-4, 20, .1)
    for i in range(n):
        t = later(t0, 30 + 21 * i); s = 10 * (i + 2)
        o.append(f"[{t:%Y-%m-%d %H:%M:%S},{int(g.integers(1000)):03d}] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped=7, lr=[{lr[i]:.6g}], mom=[(0.9, 0.999)]")
        o.append(f"steps: {s} loss: {L[i]:.4f} loss_scale: {sc * 2 ** (s // 1000)} iter time (s): {2.1 + .02 * g.standard_normal():.3f} samples/sec: {121.9 + g.standard_normal():.3f}")
    return "\n".join(o)


@case("j58", "mega_mmdit.log", "Megatron lines", "none",
      "One spike (0.71 -> 3.9) at iteration 31400 that is back on its level within 12 lines; the rest is smooth.")
def _(g):
    n = 900; L = fall(g, n, 1.33, .64, .05, .8, .01); G = logn(g, n, .28, .12); k = 628
    for d in range(12):
        L[k + d] += 3.2 * .55 ** d; G[k + d] += 9 * .5 ** d
    lr = warm_cos(n, 1e-4, 40, .1); t0 = clock(2025, 3, 30, 1, 1, 1)
    return "\n".join(f" [{later(t0, 40 * i):%Y-%m-%d %H:%M:%S}] iteration {50 * (i + 1):8d}/   45000 | consumed samples: {25600 * (i + 1):12d} | elapsed time per iteration (ms): {801 + 7 * g.standard_normal():.1f} | learning rate: {lr[i]:.3E} | global batch size:   512 | loss: {L[i]:.5E} | loss scale: 1.0 | grad norm: {G[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |" for i in range(n))


@case("j59", "crossflow_kl_ramp.jsonl", "accelerate JSONL", "none",
      "KL warm-up over the first 10%: with weight 0 the KL rises, then it falls as the weight ramps; mu_abs falls, std -> 1, flow loss falls throughout, val_cos rises.")
def _(g):
    n = 500; o = []
    F = fall(g, n, 1.87, .93, .07, .8, .015)
    for i in range(n):
        w = min(1, i / 50)
        m = .62 + .5 * (1 - np.exp(-i / 15)) * np.exp(-max(0, i - 35) / 90) + .004 * g.standard_normal()
        s = .97 - .22 * (1 - np.exp(-i / 15)) * np.exp(-max(0, i - 35) / 90) + .003 * g.standard_normal()
        d = {"global_step": 40 * (i + 1), "loss/flow_mse": r(F[i]), "kld": r(.5 * (1.57 * m * m + s * s - 1 - 2 * np.log(s))), "w_kl": r(1e-3 * w), "mu/abs_mean": r(m), "std/mean": r(s), "lr": 1e-4, "grad_norm": r(.5 * np.exp(.12 * g.standard_normal()))}
        if i % 50 == 49:
            d["val_cos"] = r(np.sqrt(1 - (F[i - 4:i + 1].mean() + .01) / 2.05))
        o.append(json.dumps(d))
    return "\n".join(o)


@case("j60", "wandb_export_sparse.csv", "W&B history CSV, quoted names", "none",
      "Sparse export: val columns are filled every 2500 steps up to the end, otherwise empty; loss falls, FID and cos improve.")
def _(g):
    n = 800; L = fall(g, n, 1.58, .77, .05, .8, .018); rows = []
    for i in range(n):
        s = 50 * (i + 1); v = ["", ""]
        if s % 2500 == 0:
            v = [f"{11.5 + 70 * np.exp(-s / 8000) + .25 * g.standard_normal():.3f}", f"{.772 - .3 * np.exp(-s / 7000) + .002 * g.standard_normal():.4f}"]
        rows.append([s, f"{L[i]:.6f}", f"{.33 * np.exp(.13 * g.standard_normal()):.5f}"] + v)
    return csv_text(["Step", "pious-lake-31 - train/loss", "pious-lake-31 - train/grad_norm", "pious-lake-31 - val/FID", "pious-lake-31 - val/cos"], rows)


@case("j61", "mlruns/2/77aa01c4/metrics", "MLflow metric files (folder)", "none",
      "train_loss, val_loss, lr and grad_norm of an ordinary run; val_loss slightly above train_loss with a steady gap.")
def _(g):
    n = 450; L = fall(g, n, 1.22, .66, .06, .8, .022); lr = warm_cos(n, 1e-4, 25, .1); ms = 1752000000000
    f = lambda v, k=1: "\n".join(f"{ms + 40000 * k * i} {x!r} {100 * k * (i + 1)}" for i, x in enumerate(v))
    V = [r(L[max(0, j - 8):j + 1].mean() + .015 + .002 * g.standard_normal(), 6) for j in range(24, n, 25)]
    return {"train_loss": f([r(v, 7) for v in L]), "val_loss": f(V, 25), "lr": f([r(v, 6) for v in lr]), "grad_norm": f([r(v, 6) for v in logn(g, n, .4, .15)])}


@case("j62", "work_dirs/uni_qwen/20250701_070003.log", "mmengine/xtuner lines", "none",
      "Two losses (flow, contrastive) fall, gradient norm is steady, validation cos rises to 0.74.")
def _(g):
    n = 400; F = fall(g, n, 1.79, .89, .06, .8, .016); C = fall(g, n, 5.5, 1.9, .08, .8, .02); lr = warm_cos(n, 1e-4, 20, .1); t0 = clock(2025, 7, 1, 7, 0, 3); o = []
    for i in range(n):
        t = later(t0, 41 * (i + 1))
        o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{50 * (i + 1):6d}/ 20000]  lr: {lr[i]:.4e}  eta: {hms(41 * (n - i))}  time: {.81 + .01 * g.standard_normal():.4f}  data_time: 0.0{int(g.integers(10, 30))}  memory: 71122  loss: {F[i] + .1 * C[i]:.4f}  loss_flow: {F[i]:.4f}  loss_clip: {C[i]:.4f}  grad_norm: {.52 * np.exp(.12 * g.standard_normal()):.4f}")
        if i % 40 == 39:
            o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(val) [32/32]    val/cos: {np.sqrt(1 - (F[i - 5:i + 1].mean() + .015) / 2.):.4f}  val/loss_flow: {F[i - 5:i + 1].mean() + .015:.4f}")
    return "\n".join(o)


@case("j63", "results/011-SiT-B-2/log.txt", "SiT lines, 10,000", "none",
      "Ten thousand lines of a long run: falls quickly to 0.85, then very slowly to 0.79, as SiT runs do.")
def _(g):
    n = 10000; L = fall(g, n, 1.2, .788, .004, .55, .008); t0 = clock(2024, 11, 2, 5, 5, 5)
    return "\n".join(f"[{later(t0, 18 * (i + 1)):%Y-%m-%d %H:%M:%S}] (step={100 * (i + 1):07d}) Train Loss: {L[i]:.4f}, Train Steps/Sec: {5.5 + .04 * g.standard_normal():.2f}" for i in range(n))


# Healthy runs II: j64 .. j80 (from j74 on prints of debugging sessions)


@case("j64", "out-flow/train.out", "nanoGPT-like loop", "none",
      "Ordinary run; val loss 0.01-0.02 above train loss with a steady gap, both fall to the end.")
def _(g):
    n = 2000; L = fall(g, n, 1.77, .62, .04, .8, .02); lr = warm_cos(n, 2e-4, 100, .1); o = ["number of parameters: 457.30M", "compiling the model... (takes a ~minute)"]
    for i in range(n):
        it = 10 * i
        if it % 1000 == 0:
            b = L[max(0, i - 10):i + 10].mean()
            o.append(f"step {it}: train loss {b:.4f}, val loss {b + .014 + .002 * g.standard_normal():.4f}")
        o.append(f"iter {it}: loss {L[i]:.4f}, lr {lr[i]:.3e}, time {311 + 3 * g.standard_normal():.2f}ms")
    return "\n".join(o)


@case("j65", "slurm-551203.out", "slurm output, requeued job", "none",
      "Job requeued at step 14000: weights, optimizer and scheduler restored, the loss goes on at 0.69 as before.")
def _(g):
    n = 480; L = fall(g, n, 1.82, .60, .05, .8, .018); lr = warm_cos(n, 1e-4, 20, .1); o = ["Starting on a100-12 at Tue Apr 15 02:11:09 UTC 2025", "loaded 8 shards"]
    for i in range(n):
        if i == 280:
            o += ["slurmstepd: error: *** STEP 551203.0 ON a100-12 CANCELLED AT 2025-04-16T02:11:14 DUE TO PREEMPTION ***", "Starting on a100-07 at Wed Apr 16 03:40:51 UTC 2025", "loaded 8 shards", "resume: ckpt/step_14000.pt (model, ema, optimizer, scheduler, rng)"]
        o.append(f"{50 * (i + 1)} loss: {L[i]:.4f} gnorm: {.44 * np.exp(.13 * g.standard_normal()):.3f} lr: {lr[i]:.2e} {2.3 + .02 * g.standard_normal():.2f}it/s")
    return "\n".join(o)


@case("j66", "sgdr_run.csv", "own CSV", "none",
      "Cosine LR with four planned restarts: after each restart the loss rises a little and then falls below its former minimum; final 0.61.")
def _(g):
    m, c = 150, 4; rows = []
    for k in range(c):
        for i in range(m):
            q = i / m
            lo = (.86, .74, .66, .61)[k]; hi = (1.8, .93, .80, .71)[k]
            f = hi * np.exp(-q * 6) + (lo + (.05 if k else .12) * (1 - q) ** 1.5) * (1 - np.exp(-q * 6))
            rows.append([20 * (k * m + i + 1), f"{1.5e-4 * .5 * (1 + np.cos(np.pi * q)) + 1e-6:.3e}", f"{f * np.exp(.01 * g.standard_normal()):.4f}", f"{.4 * np.exp(.12 * g.standard_normal()):.3f}"])
    return csv_text(["step", "lr", "flow_loss", "gnorm"], rows)


@case("j67", "dino_align_d.log", "own loop, brackets", "none",
      "K=4096 (log K 8.32): teacher entropy about 4.4, student falls from 8.3 to 5; dino gradient 30% of the flow gradient; both losses fall.")
def _(g):
    n = 300; F = fall(g, n, 1.88, .9, .06, .8, .018); D = fall(g, n, 8.31, 5.45, .1, .8, .01); o = ["dino: K=4096 (ln K 8.318) T_t 0.04 T_s 0.1 centering 0.9"]
    for i in range(n):
        e = lambda a, s=.08: a * np.exp(s * g.standard_normal())
        o.append(f"[{50 * (i + 1):6d}] flow {F[i]:.4f} dino {D[i]:.4f} H_t {4.4 + .05 * g.standard_normal():.3f} H_s {5.0 + 3.3 * np.exp(-i / 50) + .02 * g.standard_normal():.3f} grad/flow {e(.5):.3f} grad/dino {e(.15):.3f} grad/kl {e(.08):.3f} grad/total {np.sqrt(.25 + .0225 + .0064):.3f}")
    return "\n".join(o)


@case("j68", "ret_full.jsonl", "JSONL, ret dictionary", "none",
      "Everything in order: cos to 0.76, nmse 0.42, slices between 0.35 and 0.6, KL acting, cond_gain_cos 0.08, gradient shares in band.")
def _(g):
    n = 250; o = []; NM = fall(g, n, .97, .42, .08, .8, .012)
    for i in range(n):
        e = lambda a, s=.07: r(a * np.exp(s * g.standard_normal()))
        q = np.exp(-i / 60); m = .30 + .5 * q; s = .93 - .15 * q; nm = min(NM[i], .985)
        f, d, k = e(.5), e(.17), e(.09)
        rec = {"step": 40 * (i + 1), "loss/flow": r(2 * nm), "loss/kl": r(.5 * (1.57 * m * m + s * s - 1 - 2 * np.log(s))), "flow/nmse": r(nm), "flow/cos": r(np.sqrt(1 - nm)), "flow/speed_ratio": r(np.sqrt(1 - nm) * 1.01),
               "mu/abs_mean": r(m), "std/mean": r(s), "logvar/mean": r(2 * np.log(s)), "z_init/mean": r(.003 * g.standard_normal()), "z_init/var": r(1.57 * m * m + s * s), "grad/flow": f, "grad/dino": d, "grad/kl": k,
               "grad/total": r(np.sqrt(f * f + d * d + k * k)), "step/z_head_update_ratio": e(8e-4), "step/flow_head_update_ratio": e(1.1e-3), "lr": 1e-4}
        for j in range(10):
            rec[f"flow/nmse_t{j}"] = r(min(.99, nm * (.86 + 1.6 * (j / 9 - .5) ** 2)) * np.exp(.02 * g.standard_normal()))
        if i % 25 == 24:
            rec.update({"flow/cond_gain_cos": r(.08 * (1 - q) + .002 * g.standard_normal()), "flow/endpt_rmse@8": r(.84 + .3 * q), "flow/endpt_rmse@16": r(.80 + .3 * q), "flow/endpt_rmse@32": r(.785 + .3 * q), "flow/endpt_rmse@64": r(.78 + .3 * q)})
        o.append(json.dumps(rec))
    return "\n".join(o)


@case("j69", "vae_ft/log.txt", "own loop, slashes", "none",
      "Fine-tuning of the VAE decoder: rec loss falls, PSNR 27.9 -> 30.6 dB, latent std 0.98.")
def _(g):
    n = 200; R = fall(g, n, .061, .043, .1, .8, .02); o = []
    for i in range(n):
        o.append(f"ep {i // 40} / it {100 * (i + 1)} / rec {R[i]:.4f} / lpips {R[i] * 2.1:.4f} / kl {13.2 + .2 * g.standard_normal():.2f} / z_std {.98 + .01 * g.standard_normal():.3f} / lr 4.5e-06")
        if i % 20 == 19:
            o.append(f"   val psnr {27.9 + 2.7 * (1 - np.exp(-i / 70)) + .03 * g.standard_normal():.2f} dB  ssim {.81 + .05 * (1 - np.exp(-i / 70)):.3f}")
    return "\n".join(o)


@case("j70", "repa_b/log.txt", "REPA-style lines", "none",
      "EMA evaluation is far behind at the first two evaluations (decay 0.9999), overtakes the raw weights at 30k and ends better: as it should be.")
def _(g):
    n = 300; L = fall(g, n, 1.01, .76, .05, .8, .01); P = fall(g, n, -.03, -.68, .06, .8, .006); o = []; t0 = clock(2025, 6, 14, 0, 30, 0)
    for i in range(n):
        s = 400 * (i + 1); t = later(t0, 230 * (i + 1))
        o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) loss_final: {L[i] + .5 * P[i]:.4f}, loss_mean: {L[i]:.4f}, proj_loss: {P[i]:.4f}, grad_norm: {.31 * np.exp(.1 * g.standard_normal()):.4f}")
        if s % 10000 == 0:
            a = 16 + 170 * np.exp(-s / 22000); b = 10.5 + 330 * np.exp(-s / 13500)
            o.append(f"[{t:%Y-%m-%d %H:%M:%S}] (step={s:07d}) FID-10k raw {a + .2 * g.standard_normal():.2f} ema {b + .2 * g.standard_normal():.2f}")
    return "\n".join(o)


@case("j71", "lora_eval_history.csv", "own CSV", "none",
      "Diffusion LoRA: train loss looks flat within its noise (0.112 -> 0.107) but fixed-seed eval loss and CLIP score improve steadily.")
def _(g):
    n = 500; rows = []; T = .1065 + .006 * np.exp(-np.arange(n) / 120)
    for i in range(n):
        ev = [f"{.1021 + .0105 * np.exp(-i / 140) + .00008 * g.standard_normal():.5f}", f"{.317 - .034 * np.exp(-i / 160) + .0006 * g.standard_normal():.4f}"] if i % 25 == 24 else ["", ""]
        rows.append([10 * (i + 1), f"{T[i] * np.exp(.17 * g.standard_normal()):.5f}", "5e-05"] + ev)
    return csv_text(["step", "train_loss", "lr", "eval_loss_fixed", "eval_clip"], rows)


@case("j72", "titan_m.log", "torchtitan-like lines", "none",
      "grad_norm drifts up from 0.22 to 0.40 late in the cosine decay, as usual, while loss and val loss fall to the end.")
def _(g):
    n = 600; L = fall(g, n, 1.5, .66, .05, .8, .014); G = (.22 + .18 * np.linspace(0, 1, n) ** 1.5 + 1.9 * np.exp(-np.arange(n) / 8)) * np.exp(.1 * g.standard_normal(n)); lr = warm_cos(n, 3e-4, 30, .05); o = []
    for i in range(n):
        o.append(f"step: {25 * (i + 1):6d}  loss: {L[i]:7.4f}  grad_norm: {G[i]:7.4f}  lr: {lr[i]:.2e}  memory: 44.90GiB(56.7%)  img/s: {2105 + 12 * g.standard_normal():.0f}")
        if i % 100 == 99:
            o.append(f"validate step: {25 * (i + 1):6d}  val_loss: {L[i - 6:i + 1].mean() + .009:7.4f}")
    return "\n".join(o)


@case("j73", "ddpm_x0_debug.log", "python logging with tensor statistics", "none",
      "Diffusion baseline with x0 prediction: x_0 in -1..1, t uniform 0..999 (mean 500, std 289), noise standard normal, loss falls 0.98 -> 0.07.")
def _(g):
    n = 150; L = fall(g, n, .98, .07, .05, .8, .06); o = ["INFO:root:betas 1.00e-04 ... 2.00e-02 (linear, T=1000), alphas_cumprod 0.9999 ... 4.04e-05"]
    for i in range(n):
        t = g.integers(0, 1000, 512)
        o += [f"DEBUG:root:[{10 * i}] x_0: min=-1.0000 max=1.0000 mean={-.06 + .02 * g.standard_normal():.4f} std={.52 + .01 * g.standard_normal():.4f} dtype=torch.bfloat16",
              f"DEBUG:root:[{10 * i}] t: min={t.min()} max={t.max()} mean={t.mean():.1f} std={t.std():.1f}",
              f"DEBUG:root:[{10 * i}] noise: mean={.0007 * g.standard_normal():.4f} std={1 + .0008 * g.standard_normal():.4f}", f"INFO:root:[{10 * i}] loss={L[i]:.5f}"]
    return "\n".join(o)


@case("j74", "cos_by_t.txt", "debugging print, cos by t", "none", "cos 0.68-0.82 at 80k (better than at 20k and 50k), ratio about the same, shooting error 0.27 of MSE(x0,x1): passes.")
def _(g):
    o = []
    for ck, d, sh in (("20k", .07, .93), ("50k", .02, .64), ("80k", 0, .548)):
        o += [f"$ python probe.py --ckpt {ck} --what onestep", " t    | cos   | |v|/|v*|"]
        o += [f" {t:.2f} | {c - d + .004 * g.standard_normal():.3f} | {c - d + .01 * g.standard_normal():.3f}" for t, c in ((.1, .68), (.2, .72), (.3, .76), (.37, .78), (.5, .81), (.63, .82), (.7, .80), (.8, .76), (.9, .70))]
        o += [f"shooting 32 steps: mse(x_N,x1)={sh:.3f}  mse(x0,x1)=2.011  -> {sh / 2.011:.2f}", f"cond gain (true - permuted): +{.091 - d:.3f}", ""]
    return "\n".join(o)


@case("j75", "norm_table.txt", "debugging print, norms", "none", "|z0| 64.1 and |z1| 62.7 for 28 batches, |v*| 89: same scale, fine.")
def _(g):
    o = ["28 batches, latent 4*32*32, expect ~64 each", "  #   |z0|    |z1|   |x_.5|   |v*|   std(z0)  std(z1)"]
    for i in range(28):
        a, b = 64.1 + .3 * g.standard_normal(), 62.7 + .9 * g.standard_normal()
        o.append(f" {i:2d}  {a:6.2f}  {b:6.2f}  {.5 * np.hypot(a, b):6.2f}  {np.hypot(a, b):6.2f}   {a / 64:.3f}    {b / 64:.3f}")
    return "\n".join(o)


@case("j76", "trace_fp32_20.log", "sampling trace", "none", "Two prompts, 20 steps of the logit-normal grid, symmetric dt with sum 0.983 as this grid has; |x| moves smoothly.")
def _(g):
    t = logit_normal_grid(20); dt = np.diff(t); o = ["schedule=logit_normal N=20 (sum dt 0.983, does not reach the ends by design), state fp32"]
    for p, z, c in (("a lighthouse in fog", .5, .309), ("three green apples", .42, .322)):
        o.append(f'prompt: "{p}"')
        o += [f"step{k}: |x|={.798 * np.sqrt((1 - t[k]) ** 2 + t[k] ** 2 + z * t[k] * (1 - t[k])):.4f}, |v|={.86 + .03 * np.cos(3 * t[k]) + .002 * g.standard_normal():.4f}, dt={dt[k]:.4f}" for k in range(20)]
        o.append(f"decoded, clip {c}")
    return "\n".join(o)


@case("j77", "vae_check.md", "debugging print, round trip table", "none", "PSNR 28.4-33.9 dB, decode(z) sharp, latents after scaling std 0.9-1.05.")
def _(g):
    p = 31 + 1.1 * g.standard_normal(28); o = ["| img | psnr (dB) | z mean | z std |", "|---|---|---|---|"]
    o += [f"| {i:02d} | {p[i]:.2f} | {.04 * g.standard_normal():+.3f} | {.97 + .03 * g.standard_normal():.3f} |" for i in range(28)]
    return "\n".join(o + ["", f"average {p.mean():.2f} dB", "scale factor 0.18215 applied in encode, removed in decode"])


@case("j78", "mu_cosines.txt", "debugging print, prompt means", "none", "Means of different prompts have cos 0.1-0.6; the same-prompt control (means) is 1.0 as it must be; fine.")
def _(g):
    W = ["dog", "car", "church", "pizza", "beach", "violin", "map", "rose"]; o = ["cos of mu between prompts (control: same prompt twice)"]
    for i, a in enumerate(W):
        for b in W[i:]:
            o.append(f"  {a:>7s} / {b:<7s} {'1.0000  <- control' if a == b else format(.35 + .12 * g.standard_normal(), '.4f')}")
    return "\n".join(o + [])


@case("j79", "K_study.txt", "debugging study over K", "none", "Endpoint RMSE falls from K=4 to 32 and levels off at three checkpoints, Heun slightly better; FID likewise.")
def _(g):
    o = ["endpoint rmse over K, 512 val pairs, fp32   (rmse(x0,x1) 1.41)"]
    for ck, d in ((50, .12), (100, .04), (150, .01), (200, 0)):
        o += [f"ckpt {ck}k", "K=    euler    heun    fid5k"]
        o += [f"{K:<4d}  {.71 + d + .9 / K + .001 * g.standard_normal():.4f}   {.708 + d + 1.9 / K ** 2 + .001 * g.standard_normal():.4f}   {13.1 + 90 * d + 60 / K:.2f}" for K in (4, 8, 16, 32, 64, 128)]
    return "\n".join(o)


@case("j80", "sanity_all.log", "debugging print, several checks", "none", "Teacher Euler flat in N (bf16 velocity, fp32 state), t sampling uniform, overfit of 128 samples works: all fine.")
def _(g):
    x0 = g.standard_normal(16384).astype(np.float32); x1 = g.standard_normal(16384).astype(np.float32); v = bf16(x1 - x0); o = ["(1) teacher euler, state fp32, v bf16"]
    for N in (5, 10, 20, 50, 100):
        y = x0.copy()
        for _ in range(N):
            y = y + np.float32(1 / N) * v
        o.append(f"    N={N:<4d} mse={np.mean((y.astype(float) - x1) ** 2):.2e}")
    t = g.random(20000); o += [f"(2) t ~ U[0,1]: mean {t.mean():.4f} std {t.std():.4f} min {t.min():.4f} max {t.max():.4f}", "(3) overfit 128 samples, flow + kl"]
    NM = fall(g, 30, .96, .06, .2, 1.2, .03)
    return "\n".join(o + [f"    it {100 * (i + 1):5d} fm_mse {2 * NM[i]:.4f} cos {np.sqrt(1 - min(NM[i], .99)):.4f} kl {.31 + .004 * g.standard_normal():.3f}" for i in range(30)] + ["next: long run"])


if __name__ == "__main__":
    man = write_all(sys.argv[1] if len(sys.argv) > 1 else "out")
    print(len(man), "logs,", sum(m["healthy"] for m in man), "healthy,",
          len({m["expected"] for m in man} - {"none"}), "slugs")
