#!/usr/bin/env python3
"""Corpus E: names and formats.  usage: make.py OUT   (writes OUT/a/...)."""
import datetime as dt
import json
import os
import pprint
import shutil
import sys
import zlib

import numpy as np

CASES = []


def case(fmt, expected, story, acceptable=()):
    def deco(fn):
        CASES.append((fn.__name__, fn, fmt, expected, list(acceptable), story))
        return fn
    return deco


# ------------------------------------------------------------------ helpers
def ar(rng, n, sd, rho=0.0):
    e = rng.normal(0, 1, n)
    out = np.empty(n)
    prev = rng.normal()
    k = np.sqrt(1 - rho * rho)
    for i in range(n):
        prev = rho * prev + k * e[i]
        out[i] = prev
    return out * sd


def fall(s, a, b, tau, p=1.0):
    """from a (s=0) to b (s=inf)"""
    return b + (a - b) * (1 + np.asarray(s, float) / tau) ** (-p)


def ln(rng, n, sd):
    return np.exp(rng.normal(0, sd, n))


def coslr(s, peak, warm, total, end=0.0):
    s = np.asarray(s, float)
    w = np.minimum(1.0, (s + 1) / max(warm, 1))
    f = np.clip((s - warm) / max(total - warm, 1), 0, 1)
    return np.where(s < warm, peak * w, end + (peak - end) * 0.5 * (1 + np.cos(np.pi * f)))


def field(rng, s, c0, c1, tau, sd=0.006, gain=1.0, p=1.0, vv=2.0, vsd=0.006):
    """cos, ratio, nmse, mse of a velocity regression; nmse = 1 + r^2 - 2 r cos"""
    n = len(s)
    c = fall(s, c0, c1, tau, p) + rng.normal(0, sd, n)
    r = np.clip(c, 0.02, None) * gain * ln(rng, n, 0.008)
    nm = 1 + r * r - 2 * r * c
    v2 = vv * ln(rng, n, vsd)
    return c, r, nm, nm * v2, v2


def klg(mu_rms, sd):
    return 0.5 * (mu_rms ** 2 + sd ** 2 - 1 - 2 * np.log(sd))


def grads(rng, n, a, b, tau_frac=0.15, sd=0.18):
    s = np.arange(n)
    return fall(s, a, b, tau_frac * n, 1.2) * ln(rng, n, sd)


def split(nm):
    """a (cos, ratio) pair with 1 + r^2 - 2 r cos = nm: optimal gain below 0.96, too long above"""
    nm = np.asarray(nm, float)
    c = np.where(nm < 0.96, np.sqrt(np.clip(1 - nm, 0, None)), 0.2)
    r = c + np.sqrt(np.clip(c * c - 1 + nm, 0, None))
    return c, r


class Clock:
    def __init__(self, y=2024, mo=6, d=3, h=9, mi=12, s=7):
        self.t = dt.datetime(y, mo, d, h, mi, s)

    def tick(self, sec):
        self.t += dt.timedelta(seconds=float(sec))
        return self.t


def hms(sec):
    sec = int(sec)
    h, m = divmod(sec, 3600)
    m, s = divmod(m, 60)
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def bar(f, w=20):
    full = int(f * w)
    return "█" * full + ("▌" if full < w else "") + " " * (w - full - (1 if full < w else 0))


# ================================================================== FAULTY
@case("kohya-style tqdm bar separated by carriage returns", "nan_loss",
      "LoRA training on anime stills; the running average becomes nan in epoch 14 and stays so to the end.")
def f_nan_kohya(rng):
    per, ep = 41, 36
    tot = per * ep
    raw = 0.128 + 0.02 * rng.standard_gamma(2, tot) / 2
    out = ["prepare optimizer, data loader etc.\nuse AdamW optimizer | {'weight_decay': 0.01}\n"
           "running training / 学習開始\n  num train images * repeats / 学習画像の数×繰り返し回数: 164\n"
           f"  num batches per epoch / 1epochのバッチ数: {per}\n  num epochs / epoch数: {ep}\n"
           f"  total optimization steps / 学習ステップ数: {tot}\n"]
    bad = 13 * per + 17
    hist = []
    for e in range(ep):
        out.append(f"\nepoch {e+1}/{ep}\n")
        for i in range(per):
            k = e * per + i + 1
            hist.append(np.nan if k >= bad else raw[k - 1])
            if k % 3 == 0 or i == per - 1:
                avr = np.mean(hist[-per:]) if k < bad else np.nan
                el = k * 1.22
                out.append(f"\rsteps: {100*k//tot:3d}%|{bar(k/tot)}| {k}/{tot} [{hms(el)}<{hms((tot-k)*1.22)},  1.22s/it, "
                           f"avr_loss={avr:.4g}, lr_unet=0.0001]")
    out.append("\nmodel saved.\n")
    return {"console.txt": "".join(out)}


@case("whitespace .dat with # header", "nan_loss",
      "Autoregressive latent prior written by a physics group; objective and gradient turn NaN at 61 % of the run.")
def f_nan_dat(rng):
    n = 620
    s = np.arange(n) * 50
    L = fall(s, 4.61, 2.33, 1800) * ln(rng, n, 0.012)
    g = grads(rng, n, 3.1, 0.52)
    lr = coslr(s, 3e-4, 1000, 40000, 3e-5)
    o = ["# run lpr-07  host=titan4  precision=f32", "# it        L[nats/tok]   |g|_2        eta          wall[s]"]
    for i in range(n):
        a, b = f"{L[i]:.6f}", f"{g[i]:.5e}"
        if i == 378:
            b = "Inf"
        if i > 378:
            a, b = "NaN", "NaN"
        o.append(f"{s[i]:8d}  {a:>12}  {b:>12}  {lr[i]:.5e}  {s[i]*0.0831:10.1f}")
    return {"lpr-07.dat": "\n".join(o) + "\n"}


@case("YAML multi-document stream, nested", "divergence",
      "Text-to-latent flow; training error has its minimum at 22k and climbs for 38k updates, held-out with it; constant step size.")
def f_div_yaml(rng):
    s = np.arange(0, 60001, 400)
    n = len(s)
    x = np.clip((s - 22000) / 38000, 0, None)
    nm = fall(s, 0.99, 0.44, 2600) + 0.47 * x ** 1.35
    nm = np.minimum(nm * ln(rng, n, 0.011), 0.999)
    c = np.sqrt(1 - nm)
    gn = fall(s, 1.9, 0.62, 3000) * (1 + 1.6 * x) * ln(rng, n, 0.15)
    o = []
    for i in range(n):
        v2 = 2.04 * np.exp(rng.normal(0, 0.005))
        o.append(f"---\nupdate: {s[i]}\nlearnRate: 2.0e-4\ntrainSet:\n  sqErr: {nm[i]*v2:.5f}\n  align: {c[i]:.4f}\n  relErr: {nm[i]:.4f}\n  gradLen: {gn[i]:.3f}")
        if s[i] % 2000 == 0:
            h = min(nm[i] * 1.02 * np.exp(rng.normal(0, 0.006)), 1.02)
            o.append(f"holdOut:\n  sqErr: {h*2.04:.5f}\n  align: {np.sqrt(max(1-h,0)):.4f}")
    return {"progress.yaml": "\n".join(o) + "\n"}


@case("Megatron-style pipe line, E-notation", "loss_spikes",
      "Large denoiser pre-training; at iteration 61 400 the error doubles in one interval and stays on the new level.")
def f_spike_megatron(rng):
    s = np.arange(200, 96001, 200)
    n = len(s)
    L = fall(s, 1.0, 0.298, 2200) * ln(rng, n, 0.011)
    j = np.where(s == 61400)[0][0]
    L[j:] = (0.64 + 0.12 * np.exp(-(s[j:] - 61400) / 2500)) * ln(rng, n - j, 0.013)
    g = grads(rng, n, 1.4, 0.21)
    g[j:j + 3] = [8.917, 3.3, 1.2]
    lr = coslr(s, 1.2e-4, 2000, 150000, 1.2e-5)
    o = ["using world size: 64, data-parallel-size: 64, tensor-model-parallel size: 1", "training ..."]
    for i in range(n):
        o.append(f" iteration {s[i]:8d}/  150000 | consumed samples: {s[i]*2048:12d} | elapsed time per iteration (ms): {1810+rng.normal(0,14):.1f} | "
                 f"learning rate: {lr[i]:.3E} | global batch size:  2048 | denoise loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | "
                 f"number of skipped iterations:   0 | number of nan iterations:   0 |")
        if s[i] % 8000 == 0:
            o.append(f" validation loss at iteration {s[i]} | denoise loss value: {L[i]*1.015:.6E} |")
    return {"node0.out": "\n".join(o) + "\n"}


@case("Japanese labels, thousands separators", "no_learning",
      "Noise predictor stays at 1.0 (predicting zero) for 40 000 steps; step size and gradient are ordinary.")
def f_nolearn_ja(rng):
    s = np.arange(200, 40001, 200)
    n = len(s)
    L = 1.0004 + rng.normal(0, 0.006, n)
    g = 0.34 * ln(rng, n, 0.2)
    lr = np.minimum(1.0, s / 2000) * 1e-4
    ck = Clock(2024, 2, 19, 13, 2, 11)
    o = ["設定: バッチサイズ=64, 画像サイズ=128, 目的関数=雑音予測(MSE), 最適化=AdamW"]
    for i in range(n):
        t = ck.tick(71)
        o.append(f"[{t:%Y/%m/%d %H:%M:%S}] ステップ {s[i]:,} / 40,000　損失={L[i]:.4f}　学習率={lr[i]:.2e}　勾配ノルム={g[i]:.3f}")
        if s[i] % 4000 == 0:
            o.append(f"[{t:%Y/%m/%d %H:%M:%S}] ＜検証＞ ステップ {s[i]:,}　検証損失={1.0002+rng.normal(0,0.0012):.4f}　PSNR={7.9+rng.normal(0,0.08):.2f}dB　FID={412+rng.normal(0,4):.1f}")
    return {"学習ログ.txt": "\n".join(o) + "\n"}


@case("logfmt", "lr_too_small",
      "A unit error in the launcher: the optimiser runs with 2e-10; nothing moves.")
def f_lrsmall_logfmt(rng):
    n = 260
    s = np.arange(1, n + 1) * 100
    lr = np.minimum(1, s / 1000) * 2e-10
    ck = Clock(2024, 9, 1, 1, 0, 0)
    o = []
    for i in range(n):
        t = ck.tick(38)
        c = 0.006 + rng.normal(0, 0.004)
        r = 0.11 + rng.normal(0, 0.002)
        nm = 1 + r * r - 2 * r * c
        v2 = 2.01 * np.exp(rng.normal(0, 0.006))
        o.append(f'ts={t.isoformat()}Z level=info caller=loop.py:214 msg="tick" n_iter={s[i]} train.vel_mse={nm*v2:.5f} '
                 f'train.vel_cos={c:.4f} opt.lr={lr[i]:.3g} opt.gnorm={2.31*np.exp(rng.normal(0,0.12)):.3f} data.wait_ms={rng.integers(2,19)}')
        if (i + 1) % 26 == 0:
            o.append(f'ts={t.isoformat()}Z level=info caller=evalhook.py:61 msg="eval" n_iter={s[i]} eval.vel_mse={2.009+rng.normal(0,0.002):.4f} eval.fid={388+rng.normal(0,2):.1f}')
    return {"trainer.logfmt": "\n".join(o) + "\n"}


@case("Jupyter cells as text, Greek and calligraphic letters", "lr_too_high",
      "Notebook: step size 0.05 with Adam makes the objective jump between 1 and 30; with 2e-4 in the third cell it is calm.")
def f_lrhigh_jupyter(rng):
    o = ["In [7]: opt = Adam(net.parameters(), lr=5e-2)", "        fit(net, dl, opt, n_it=3000)", ""]
    for i in range(100):
        L = np.exp(rng.normal(np.log(5.2), 0.75))
        o.append(f"it {30*(i+1):>5} · 𝓛={L:.3f} · ‖∇𝓛‖={L*4.1*np.exp(rng.normal(0,0.8)):.2f} · η=0.05")
    o += ["", "In [8]: fit(net, dl, opt, n_it=3000)", ""]
    for i in range(100):
        L = np.exp(rng.normal(np.log(5.0), 0.78))
        o.append(f"it {3000+30*(i+1):>5} · 𝓛={L:.3f} · ‖∇𝓛‖={L*4.0*np.exp(rng.normal(0,0.8)):.2f} · η=0.05")
    o += ["", "In [9]: for g in opt.param_groups: g['lr'] = 2e-4", "        fit(net, dl, opt, n_it=1500)", ""]
    for i in range(50):
        L = fall(i, 2.1, 0.88, 8) * np.exp(rng.normal(0, 0.015))
        o.append(f"it {6000+30*(i+1):>5} · 𝓛={L:.3f} · ‖∇𝓛‖={0.9*np.exp(rng.normal(0,0.15)):.2f} · η=0.0002")
    return {"session.txt": "\n".join(o) + "\n"}


@case("CSV with a units row", "lr_restart",
      "The job was resumed at 40k with a fresh scheduler: the step size jumps from 1e-5 to 3e-4, the objective from 0.56 to 0.84 and stays at about 0.78.")
def f_lrrestart_csv(rng):
    s = np.arange(0, 72001, 300)
    n = len(s)
    lr = coslr(s, 3e-4, 1000, 40000, 1e-5)
    L = fall(s, 1.96, 0.60, 2300) - 0.13 * np.clip((s - 20000) / 20000, 0, 1) ** 1.5
    k = s >= 40200
    lr[k] = coslr(s[k] - 40200, 3e-4, 1, 160000, 1e-5)
    L[k] = 0.775 + 0.07 * np.exp(-(s[k] - 40200) / 2500.)
    L *= ln(rng, n, 0.010)
    g = grads(rng, n, 1.7, 0.33)
    g[k] *= 1.5
    o = ["iterCount,objVal,stepSize,gradL2,imgPerSec", "[1],[sq.units],[1],[1],[1/s]"]
    o += [f"{s[i]},{L[i]:.5f},{lr[i]:.6e},{g[i]:.4f},{611+rng.normal(0,9):.0f}" for i in range(n)]
    return {"curve_with_units.csv": "\n".join(o) + "\n"}


@case("mmengine-like Epoch(train)/Epoch(val)", "overfitting",
      "Small medical set; held-out error has its optimum in epoch 7 of 24 and rises by 55 % while the training error falls to a third.")
def f_overfit_mm(rng):
    ck = Clock(2023, 11, 2, 20, 1, 3)
    o = ["2023/11/02 20:00:41 - mmengine - INFO - Distributed training is not used, all SyncBatchNorm (SyncBN) layers will be automatically reverted to BatchNorm layers if used."]
    for e in range(1, 25):
        for b in range(40, 201, 40):
            x = e - 1 + b / 200
            L = fall(x, 0.98, 0.15, 3.6) * np.exp(rng.normal(0, 0.02))
            t = ck.tick(23)
            o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train)  [{e}][{b:>3}/200]  lr: 1.0000e-04  eta: {hms((24-x)*115)}  time: 0.5712  data_time: 0.0113  memory: 9812  grad_norm: {0.7*np.exp(rng.normal(0,0.15)):.4f}  loss_denoise: {L*0.94:.4f}  loss_aux: {L*0.06:.4f}  loss: {L:.4f}")
        v = 0.70 + 0.29 * np.exp(-(e - 1) / 2.0) + 0.0225 * max(e - 7, 0) * (1 + 0.004 * e) + rng.normal(0, 0.006)
        t = ck.tick(9)
        o.append(f"{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Epoch(val) [{e}][31/31]    denoise_mse: {v:.4f}  psnr: {21.8-6*np.log10(v/0.7):.3f}  data_time: 0.0411  time: 0.2207")
    return {"20231102_200041.log": "\n".join(o) + "\n"}


@case("EDM-like folder: stats.jsonl with num/mean/std, metric jsonl", "overfitting",
      "4 000 pictures; FID is best at 30 Mimg and doubles afterwards, held-out denoising loss rises, training loss keeps falling.")
def f_overfit_edm(rng):
    a, b = [], []
    for i in range(0, 161):
        k = i * 500.
        L = fall(k, 0.92, 0.165, 2500) - 0.035 * k / 80000
        h = fall(k, 0.92, 0.19, 2500) + 0.055 * max(0, (k - 26000) / 54000) ** 1.1
        a.append(json.dumps({"Loss/loss": {"num": 500000, "mean": round(float(L + rng.normal(0, 0.0012)), 6), "std": round(float(0.31 + rng.normal(0, 0.004)), 6)},
                             "Loss/heldout": {"num": 8192, "mean": round(float(h + rng.normal(0, 0.002)), 6), "std": round(float(0.33 + rng.normal(0, 0.01)), 6)},
                             "Progress/tick": {"num": 1, "mean": i, "std": 0.0}, "Progress/kimg": {"num": 1, "mean": k, "std": 0.0},
                             "Timing/sec_per_tick": {"num": 1, "mean": round(float(612 + rng.normal(0, 5)), 2), "std": 0.0}, "timestamp": 1701900000 + 612 * i}))
        if i and i % 10 == 0:
            f = 10.9 + 70 * np.exp(-k / 7000.) + 13.5 * max(0, (k - 30000) / 50000) ** 1.15 + rng.normal(0, 0.15)
            b.append(json.dumps({"results": {"fid50k_full": round(float(f), 4)}, "metric": "fid50k_full", "total_time": 311.2, "snapshot_pkl": f"network-snapshot-{int(k):06d}.pkl", "timestamp": 1701900000 + 612 * i}))
    return {"stats.jsonl": "\n".join(a) + "\n", "metric-fid50k_full.jsonl": "\n".join(b) + "\n"}


@case("epoch fraction, box-drawing separators", "periodic_memorisation",
      "Tiny set, unshuffled and seen 11 times: the error is flat within an epoch and drops at each epoch boundary.")
def f_periodic(rng):
    per = 360
    o = ["dataset: 5,760 captions · batch 16 · 360 it/epoch"]
    for k in range(12, per * 11 + 1, 12):
        e = (k - 1) // per
        ph = ((k - 1) % per) / per
        base = 0.712 * 0.835 ** e + 0.07
        if e == 0:
            base = 0.782 + 0.24 * np.exp(-ph * 9)
        L = base * (1 + 0.012 * ph) * np.exp(rng.normal(0, 0.013))
        o.append(f"ep {k/per:6.3f} │ it {k:>6,} │ ε-mse {L:.4f} │ |g| {0.42*np.exp(rng.normal(0,0.16)):.3f} │ lr 1.0e-4 │ {rng.normal(7.4,0.1):.2f} it/s")
    return {"out.log": "\n".join(o) + "\n"}


@case("INI-like sections per record", "grad_explosion",
      "No clipping; the length of the gradient grows from 0.6 to 40 000 over the run while the objective still falls.")
def f_gradexp_ini(rng):
    o = ["; sampler-net v3, no clipping, bf16 weights", "[run]", "name = sn3-b", "max_updates = 45000", "clip = off", ""]
    for k in range(300, 45001, 300):
        g = 0.6 * np.exp(np.log(4e4 / 0.6) * (k / 45000.)) * np.exp(rng.normal(0, 0.3))
        L = fall(k, 1.95, 0.83, 2400) * np.exp(rng.normal(0, 0.012))
        o += [f"[update {k}]", f"fit_err = {L:.5f}", f"grad_2norm = {g:.4g}", f"weight_2norm = {212+k/450:.2f}", "rate = 2.5e-4", ""]
    return {"trace.ini": "\n".join(o)}


@case("XML-ish records with attributes", "grad_vanishing",
      "40-layer net without skip connections: gradient length falls to 1e-8 within the first fifth, error stays at 0.93.")
def f_gradvan_xml(rng):
    o = ['<?xml version="1.0"?>', '<training model="plain40" objective="eps-mse" optimiser="adam">']
    for k in range(100, 24001, 100):
        g = 0.8 * 10 ** (-7.5 * min(1, k / 4200.)) * np.exp(rng.normal(0, 0.25))
        L = 0.931 + 0.09 * np.exp(-k / 700.) + rng.normal(0, 0.004)
        o.append(f'  <rec it="{k}" err="{L:.5f}" gn="{g:.3e}" lr="1e-4" dur="{rng.normal(0.412,0.004):.3f}s"/>')
        if k % 4000 == 0:
            o.append(f'  <test it="{k}" err="{0.932+rng.normal(0,0.001):.5f}"/>')
    o.append("</training>")
    return {"plain40.xml": "\n".join(o) + "\n"}


@case("DeepSpeed rank log", "amp_overflow",
      "fp16 run of a 2B transformer: every step is skipped, scale goes from 2^32 to its floor, model does not move.")
def f_amp_ds(rng):
    ck = Clock(2024, 3, 8, 4, 11, 52)
    o = ["[2024-03-08 04:11:40,118] [INFO] [config.py:988:print]   fp16_enabled ................. True",
         "[2024-03-08 04:11:40,118] [INFO] [config.py:988:print]   initial_dynamic_scale ........ 4294967296",
         "[2024-03-08 04:11:40,119] [INFO] [config.py:988:print]   dynamic_loss_scale_args ...... {'init_scale': 4294967296, 'scale_window': 500, 'delayed_shift': 1, 'min_scale': 0.0001}"]
    sc = 2.0 ** 32
    skip = 0
    for k in range(1, 241):
        t = ck.tick(2.1)
        ts = f"{t:%Y-%m-%d %H:%M:%S},{rng.integers(0,999):03d}"
        ok = k > 90 and k % 31 == 0
        if not ok:
            new = max(sc / 2, 0.0001)
            if k < 46 or k % 3 == 0:
                o.append(f"[{ts}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc:.10g}, reducing to {new:.10g}")
                sc = new
            else:
                o.append(f"[{ts}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc:.10g}, but hysteresis is 2. Reducing hysteresis to 1")
            skip += 1
        if k % 5 == 0:
            o.append(f"[{ts}] [INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={skip}, lr=[{min(1,k/100)*1e-4:.3e}], mom=[(0.9, 0.95)]")
            o.append(f"rf_objective @ {k}: {1.937+rng.normal(0,0.011):.4f}")
    return {"ds_rank0.log": "\n".join(o) + "\n"}


@case("camelCase JSON records", "amp_overflow",
      "Trains well for 3 000 iterations, then the multiplier is halved again and again down to 1e-12 and nearly all steps are dropped; objective stands still.")
def f_amp_json(rng):
    o = []
    drop = 0
    sc = 65536.0
    frozen = 1.243
    for k in range(20, 12001, 20):
        if k <= 3000:
            L = fall(k, 1.98, 1.02, 900) * np.exp(rng.normal(0, 0.013))
            g = round(float(0.8 * np.exp(rng.normal(0, 0.15))), 4)
            frozen = 1.243
            if k == 2000:
                sc = 131072.0
        else:
            L = frozen * np.exp(rng.normal(0, 0.013))
            drop += 20 if k % 220 else 19
            if k % 160 == 0:
                sc /= 2
            g = None if k % 220 else round(float(61 * np.exp(rng.normal(0, 0.3))), 3)
        o.append(json.dumps({"iterIdx": k, "fmObjective": round(float(L), 5), "ampScale": sc, "droppedSteps": drop, "gradL2": g, "stepSize": 1e-4, "gpuMemGb": 61.2}))
    return {"trainRecords.json": "[\n" + ",\n".join(o) + "\n]\n"}


@case("SLURM output, several programs mixed, steps as 12.5k", "resume_from_scratch",
      "After the requeue the counter goes on at 41.2k but objective and alignment begin again at their first values.")
def f_scratch_slurm(rng):
    o = ["==> node gpu-a17, job 5518842, array task 0 <==", "rsync: sending incremental file list", "laion_aes/shard-00012.tar", "sent 8,112,331,902 bytes  received 412 bytes  211.4M bytes/sec",
         "NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2", "+ srun python -m t2l.train --cfg base_xl --auto-continue"]
    def rec(k, m):
        c, r, nm, L, v2 = field(rng, np.array([m]), 0.015, 0.745, 3100, vv=2.02)
        return f"({k/1000:.1f}k) fm-obj {L[0]:.4f}; dir-cos {c[0]:+.3f}; g2 {fall(m,1.9,0.4,2500)*np.exp(rng.normal(0,0.14)):.2f}; lr {coslr(k,1.5e-4,1000,120000):.2e}; {rng.normal(2.31,0.03):.2f} it/s"
    for k in range(200, 41201, 200):
        o.append(rec(k, k))
    o += ["slurmstepd: error: *** JOB 5518842 ON gpu-a17 CANCELLED AT 2024-04-12T03:11:40 DUE TO PREEMPTION ***", "", "==> node gpu-b02, job 5518842, restart 1 <==",
          "module load cuda/12.2 ... ok", "+ srun python -m t2l.train --cfg base_xl --auto-continue", "run directory exists, counter set to 41200", "fuse: mount /scratch ok"]
    for k in range(41400, 66001, 200):
        o.append(rec(k, k - 41200))
    return {"slurm-5518842.out": "\n".join(o) + "\n"}


@case("Rust tracing style, underscores as thousands separators", "self_stopped",
      "The trainer's guard ended the run at about 8_700 of 60_000 because the smoothed loss exceeded three times its best.",
      ("divergence", "loss_spikes", "grad_explosion"))
def f_selfstop(rng):
    ck = Clock(2024, 6, 11, 8, 0, 0)
    o = [f"2024-06-11T08:00:00.004102Z  INFO trainer::plan: updates=60_000 batch=512 rule.1=\"ema(loss) > 3.0 * best\" rule.2=\"disk < 5GiB\""]
    best = 9
    ema = None
    for k in range(40, 60001, 40):
        L = fall(k, 1.02, 0.196, 420) * np.exp(rng.normal(0, 0.015))
        g = 0.35 * np.exp(rng.normal(0, 0.15))
        if k > 7800:
            L *= np.exp((k - 7800) / 840. * 1.62)
            g *= np.exp((k - 7800) / 840. * 3.1)
        ema = L if ema is None else 0.9 * ema + 0.1 * L
        best = min(best, ema)
        t = ck.tick(9.7)
        u = f"{k:,}".replace(",", "_")
        o.append(f"{t:%Y-%m-%dT%H:%M:%S}.{rng.integers(0,999999):06d}Z  INFO trainer::step: n={u} loss={L:.5f} ema={ema:.5f} best={best:.5f} |grad|={g:.3f} lr=0.0002")
        if ema > 3 * best:
            break
    left = f"{60000-k:,}".replace(",", "_")
    o.append(f"{t:%Y-%m-%dT%H:%M:%S}.999102Z ERROR trainer::guard: rule.1 tripped n={u} ema={ema:.5f} best={best:.5f}; shutting down, {left} updates not executed")
    o.append("error: process didn't exit successfully: `target/release/train --plan plan.toml` (exit status: 3)")
    return {"stderr.log": "\n".join(o) + "\n"}


@case("German CSV: semicolons and decimal commas", "metrics_lost",
      "From step 52 000 on the evaluation columns are NaN to the end; training goes on normally.")
def f_lost_de(rng):
    o = ["Schritt;Verlust_Training;Lernrate;Gradientennorm;Verlust_Validierung;FID;CLIP_Wert"]
    d = lambda x, p: f"{x:.{p}f}".replace(".", ",")
    for i in range(1, 91):
        k = i * 1000
        L = fall(k, 0.98, 0.142, 2100) * np.exp(rng.normal(0, 0.012))
        if k < 52000:
            ev = [d(L * 1.03 * np.exp(rng.normal(0, 0.01)), 4), d(9.4 + 120 * np.exp(-k / 11000.) + rng.normal(0, 0.3), 2), d(31.4 - 6.2 * np.exp(-k / 16000.) + rng.normal(0, 0.07), 2)]
        else:
            ev = ["NaN"] * 3
        o.append(f"{k};{d(L,4)};1,0e-04;{d(0.4*np.exp(rng.normal(0,0.15)),3)};" + ";".join(ev))
    return {"Auswertung_Lauf3.csv": "\n".join(o) + "\n"}


@case("ASCII box table per evaluation", "ema_broken",
      "Evaluation of the live weights improves from 290 to 17, that of the averaged weights stays at 291.")
def f_ema(rng):
    o = ["averaging: beta=0.9999, start=0, update_every=10"]
    for k in range(5000, 90001, 5000):
        f1 = 16.3 + 274 * np.exp(-k / 12500.) + rng.normal(0, 0.5)
        f2 = 291.4 + rng.normal(0, 0.6)
        L = fall(k, 1.0, 0.148, 1500)
        o += [f"training err over last 5,000 its: {L*np.exp(rng.normal(0,0.006)):.4f}   (lr 1e-4)",
              f"+--------------- eval @ {k:>7,} ---------------+", "|             |   online  |  averaged (β)     |", "+-------------+-----------+-------------------+",
              f"| FID-10k     | {f1:9.2f} | {f2:9.2f}         |", f"| IS          | {3.1+52*(1-np.exp(-k/30000.))+rng.normal(0,0.4):9.2f} | {1.21+rng.normal(0,0.02):9.2f}         |",
              f"| ho. err     | {L*1.02+rng.normal(0,0.001):9.4f} | {1.0007+rng.normal(0,0.0006):9.4f}         |", "+-------------+-----------+-------------------+"]
    return {"evalboard.txt": "\n".join(o) + "\n"}


@case("pprint of nested dict", "weak_gradient_share",
      "The semantic (DINO) term has 1 % of the summed gradient all through; its loss hardly moves while flow trains.")
def f_share(rng):
    o = ["cfg = {'w': {'dino': 0.002, 'fm': 1.0, 'kl': 0.01}, 'note': 'gnorm.* measured per term after weighting'}"]
    for k in range(250, 40001, 250):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.73, 3300)]
        d = 7.92 + 0.16 * np.exp(-k / 20000.) + rng.normal(0, 0.012)
        mu = 0.62 + 0.5 * np.exp(-k / 8000.)
        sd = 0.86 - 0.2 * np.exp(-k / 9000.)
        kl = klg(mu, sd) * np.exp(rng.normal(0, 0.01))
        gf = fall(k, 2.0, 0.7, 4000) * np.exp(rng.normal(0, 0.1))
        gd = gf * 0.0105 * np.exp(rng.normal(0, 0.12))
        gk = gf * 0.18 * np.exp(rng.normal(0, 0.1))
        rec = {"iter": k, "loss": {"fm": round(float(L), 4), "dino": round(float(d), 4), "kl": round(float(kl), 4), "sum": round(float(L + 0.002 * d + 0.01 * kl), 4)},
               "gnorm": {"fm": round(float(gf), 4), "dino": round(float(gd), 5), "kl": round(float(gk), 4), "all": round(float(np.sqrt(gf ** 2 + gd ** 2 + gk ** 2)), 4)},
               "dir": {"cos": round(float(c), 4), "len_ratio": round(float(r), 4), "nmse": round(float(nm), 4)},
               "H": {"teacher": round(float(4.4 + rng.normal(0, 0.02)), 3), "student": round(float(7.4 + rng.normal(0, 0.03)), 3), "lnK": 9.01}, "lr": 0.0001}
        o.append(pprint.pformat(rec, width=88, sort_dicts=False))
    return {"pp.txt": "\n".join(o) + "\n"}


@case("tidy TSV: step, key, value", "head_not_updated",
      "The text head's relative change per step is 2e-8 for the whole run although its step size is set; the other head is ordinary.")
def f_head(rng):
    o = ["t_idx\tquantity\tval"]
    mu = 0.413
    for k in range(500, 50001, 500):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.66, 3600)]
        for q, v in [("L.vel", L), ("L.kl", klg(0.52, 0.94)), ("cos.vel", c), ("dW/W.txt_head", 2.1e-8 * np.exp(rng.normal(0, 0.2))),
                     ("dW/W.vel_head", 3.4e-4 * np.exp(rng.normal(0, 0.1))), ("dW/W.trunk", 1.6e-4 * np.exp(rng.normal(0, 0.1))),
                     ("lr.txt_head", 2e-4), ("lr.vel_head", 2e-4), ("lr.trunk", 1e-4), ("|mu|.avg", mu + rng.normal(0, 0.001)), ("sig.avg", 0.94 + rng.normal(0, 0.0008))]:
            o.append(f"{k}\t{q}\t{v:.6g}")
    return {"long.tsv": "\n".join(o) + "\n"}


@case("DINO log.txt: args line, JSON per epoch", "teacher_collapsed",
      "Temperature 0.01 and no centring: the entropy of the teacher's output falls to 0.02 of ln 65536 = 11.09 and stays.")
def f_tcollapse(rng):
    o = ["arch: vit_small  out_dim: 65536  student_temp: 0.1  teacher_temp: 0.01  center_momentum: 1.0  epochs: 60"]
    for e in range(60):
        ht = 0.018 + 2.9 * np.exp(-e / 1.6) + abs(rng.normal(0, 0.002))
        hs = 0.9 + 7.9 * np.exp(-e / 2.4) + rng.normal(0, 0.02)
        L = ht + (hs - ht) * 0.55 + 0.35 * np.exp(-e / 10.)
        o.append(json.dumps({"train_loss": round(float(L), 6), "train_lr": float(f"{coslr(e,5e-4,10,60,1e-6):.3e}"), "train_wd": round(0.04 + 0.36 * e / 60, 4),
                             "train_Hteach_nats": round(float(ht), 5), "train_Hstud_nats": round(float(hs), 5), "train_max_p_teach": round(float(1 - ht / 4.2), 5) if ht < 2 else round(float(rng.uniform(0.3, 0.5)), 5), "epoch": e,
                             "knn_top1_pct": round(float(3.2 + 9 * np.exp(-((e - 4) / 4.) ** 2) + rng.normal(0, 0.1)), 2)}))
    return {"log.txt": "\n".join(o) + "\n"}


@case("baselines-logger key/value box", "teacher_uniform",
      "Teacher entropy 8.317 = ln 4096 at every record: targets say nothing; cross-entropy sits at ln K.")
def f_tuniform(rng):
    o = ["Logging to /data/exp/ssl_c14", "n_prototypes=4096 (ln = 8.3178)  tau_t=0.5  tau_s=0.1"]
    for k in range(500, 30001, 500):
        ht = 8.3176 - 0.004 * np.exp(-k / 800.) + rng.normal(0, 0.00005)
        ce = 8.3181 + 0.05 * np.exp(-k / 600.) + rng.normal(0, 0.0003)
        rows = [("ce_proto", f"{ce:.5f}"), ("ent_s", f"{8.3155-0.05*np.exp(-k/700.)+rng.normal(0,0.0004):.4f}"), ("ent_t", f"{ht:.4f}"), ("gnorm", f"{0.004*np.exp(rng.normal(0,0.2))+0.4*np.exp(-k/500.):.3g}"), ("lr", "0.0003"), ("step", f"{k:.3g}" if k >= 1e5 else str(k))]
        w = 24
        o.append("-" * w)
        o += [f"| {a:<9} | {b:<8} |" for a, b in rows]
        o.append("-" * w)
    return {"progress.txt": "\n".join(o) + "\n"}


@case("Chinese printed lines", "student_saturated",
      "Student entropy 0.2 (2 % of ln 8192) with a DINO gradient of 0.3 % while the teacher is ordinary (4.2).", ("weak_gradient_share",))
def f_ssat(rng):
    o = ["【配置】 原型数 K=8192（lnK=9.011） 教师温度=0.06 学生温度=0.02 权重：流 1.0 / 语义 0.5"]
    for k in range(200, 30001, 200):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.70, 3000)]
        hs = 0.19 + 5.2 * np.exp(-k / 900.) + rng.normal(0, 0.012)
        gf = 0.9 * np.exp(rng.normal(0, 0.12))
        gd = gf * (0.003 + 0.3 * np.exp(-k / 600.)) * np.exp(rng.normal(0, 0.15))
        sem = 11.6 - 3 * np.exp(-k / 900.) + rng.normal(0, 0.08)
        o.append(f"第 {k} 步：总损失 {L+0.5*sem:.4f}（流 {L:.4f}，DINO {sem:.3f}）；教师熵 {4.21+rng.normal(0,0.03):.3f}，学生熵 {hs:.3f}；梯度：流 {gf:.4f}，DINO {gd:.5f}，总 {np.hypot(gf,gd):.4f}；方向余弦 {c:.3f}；学习率 1.0e-4")
    return {"训练输出.log": "\n".join(o) + "\n"}


@case("printed pandas frame", "kl_not_acting",
      "Weight 1e-8: means grow from 0.3 to 1.2, widths shrink to 0.42, the divergence to the prior rises all the time.")
def f_klnot(rng):
    o = ["In [3]: !cat cfg.json", '{"w_prior": 1e-8, "w_vel": 1.0, "prior": "N(0,I)"}', "In [4]: df.to_string()"]
    o.append(f"{'':>4}{'upd':>8}{'L_vel':>10}{'D_prior':>10}{'L_all':>10}{'mean|m|':>10}{'rms_m':>9}{'mean_s':>9}{'var_z0':>10}{'cos':>9}")
    for i, k in enumerate(range(0, 40001, 400)):
        m = 0.38 + 1.1 * (k / 40000.)
        s = 0.42 + 0.56 * np.exp(-k / 9000.)
        m *= np.exp(rng.normal(0, 0.01))
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.955, 2100, vv=1.1 + m * m + s * s)]
        d = klg(m, s)
        o.append(f"{i:>4}{k:>8}{L:>10.4f}{d:>10.4f}{L+1e-8*d:>10.4f}{m*0.798:>10.4f}{m:>9.4f}{s:>9.4f}{m*m+s*s:>10.3f}{c:>9.4f}")
    return {"notebook_dump.txt": "\n".join(o) + "\n"}


@case("weekly note with Markdown tables, per prompt", "posterior_collapse",
      "Weight 4 on the prior term: for each of eight prompts mean 0.002, width 1.000, divergence 0.0003.")
def f_pcollapse(rng):
    o = ["# week 22 – text head", "", "prior weight β = 4 (after 2 k warm-up), head: 3× linear → (m, ℓ)", "", "| it | D(q‖p) / dim | ⟨|m|⟩ | ⟨s⟩ | vel. err | cos |", "|---:|---:|---:|---:|---:|---:|"]
    for k in (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 20000, 30000):
        m = 0.0024 + 0.55 * np.exp(-k / 900.)
        s = 0.9996 - 0.3 * np.exp(-k / 800.)
        c = fall(k, 0.03, 0.47, 4000)
        o.append(f"| {k:,} | {klg(m,s)+2e-5:.5f} | {m*0.8:.4f} | {s:.4f} | {(1-c*c)*2.0:.3f} | {c:.3f} |")
    o += ["", "Head output at it 30,000, eight prompts:", "", "| prompt | ⟨|m|⟩ | max|m| | ⟨s⟩ | D(q‖p) |", "|---|---:|---:|---:|---:|"]
    for p in ["a cat on a sofa", "red double-decker bus", "snowy mountain at dusk", "bowl of ramen", "portrait of an old man", "a blue teapot", "empty parking lot", "two dogs running"]:
        o.append(f"| {p} | {0.0019+rng.normal(0,0.0001):.4f} | {0.0081+rng.normal(0,0.0006):.4f} | {0.9997+rng.normal(0,0.0001):.4f} | {0.00003+abs(rng.normal(0,0.00001)):.5f} |")
    o += ["", "Pictures for all eight look like draws from one and the same pile."]
    return {"week22.md": "\n".join(o) + "\n"}


@case("CSV with # comment lines in between", "sigma_collapse",
      "Mean log-variance runs to its clamp of -10, width to 0.007.")
def f_sigma(rng):
    o = ["# exp 31c", "# lnvar clipped to [-10, 4]", "# beta_prior ramps 0 -> 1e-5 during the first 2000", "n,recon_l2,prior_kld,ELBO_neg,lnvar_avg,lnvar_lo,sd_avg,mean_abs"]
    for k in range(0, 30001, 250):
        lv = -9.96 + 9.6 * np.exp(-k / 2600.) + rng.normal(0, 0.008)
        sd = np.exp(lv / 2)
        m = 0.9 + 0.5 * (1 - np.exp(-k / 6000.))
        kl = klg(m, sd)
        rec = fall(k, 0.41, 0.031, 1500) * np.exp(rng.normal(0, 0.015))
        b = 1e-5 * min(1, k / 2000.)
        if k and k % 7500 == 0:
            o.append(f"# snapshot written: s{k}.npz")
        o.append(f"{k},{rec:.5f},{kl:.4f},{rec+b*kl:.5f},{lv:.4f},{max(-10,lv-0.9 if k<6000 else -10):.3f},{sd:.5f},{m*0.8:.4f}")
    return {"exp31c.csv": "\n".join(o) + "\n"}


@case("Slack thread in English", "z0_leak",
      "One-step cosine 0.97 and nmse 0.06, but integration ends at 91 % of the start distance and mean width of z0 is 0.12; samples are mush.")
def f_leak(rng):
    return {"slack_export.txt": """#fm-latents   Thursday

mireille  10:14
ckpt 180k of the text→latent run is in. one-step numbers on 512 held-out pairs (v_pred vs z1-z0):
t=0.10  cos 0.962  |pred|/|tgt| 0.959  nmse 0.075
t=0.37  cos 0.974  |pred|/|tgt| 0.971  nmse 0.051
t=0.63  cos 0.978  |pred|/|tgt| 0.976  nmse 0.044
t=0.90  cos 0.969  |pred|/|tgt| 0.968  nmse 0.061

tobias  10:16
wow. so pictures at last?

mireille  10:17
no :grimacing: 128 prompts, all grey-brown soup. FID 214 (was 209 at 60k)
Euler from z0 to z1, held-out: relative MSE 0.91 with 16 steps, 0.91 with 64, 0.92 with 256. Heun the same

tobias  10:21
head stats?

mireille  10:22
sigma of z0: mean 0.118, min 0.061, max 0.19. |mu| mean 0.74. logvar mean -4.27, clamp is -8..4. KL weight 1e-6
pairwise cos of mu over 64 prompts 0.38 on average
VAE round trip PSNR 30.1 dB, z1 std 1.02

tobias  10:25
and train loss

mireille  10:25
0.094, was 1.6 at the beginning. v* rms 1.26, constant
"""}


@case("stdout of an evaluation script, ± and units", "scale_mismatch",
      "Source norm 1 790, destination norm 136 (13 times); VAE fine.")
def f_scale_eval(rng):
    o = ["$ python tools/norms.py --ckpt 12k.pt --n 256", "latent shape (4, 64, 64), D = 16384, sqrt(D) = 128.0", "vae round trip ............ 30.4 dB", "",
         "batch   ‖src‖        ‖dst‖       ‖interp‖      ‖dst-src‖"]
    for b in range(8):
        a, z = 1790 * np.exp(rng.normal(0, 0.012)), 136 * np.exp(rng.normal(0, 0.03))
        o.append(f"{b:>5}   {a:8.1f}    {z:8.1f}     {a*0.5*np.exp(rng.normal(0,0.03)):8.1f}      {np.hypot(a,z):8.1f}")
    o += ["", "per element: src mean -0.04 std 13.98 | dst mean 0.01 std 1.06", "cos(pred, dst-src) = 0.991   |pred|/|dst-src| = 0.990   relative err = 0.018", "predicted endpoint vs dst: relative MSE 3.13 (1 = all-zero guess)"]
    return {"norms_stdout.txt": "\n".join(o) + "\n"}


@case("sampling trace, k=00/32 with angle brackets", "scale_mismatch",
      "State at the start has mean size 6.2; the training counterpart and N(0,1) give 0.80.")
def f_scale_trace(rng):
    o = ["sampler: euler, fp32, 32 uniform steps; in training <|z|> at tau=0 is 0.797 (unit normal)", ""]
    z = 6.214
    for q, z in enumerate((6.214, 6.197)):
        o.append(f"-- picture {q} --")
        for k in range(32):
            u = 0.463 - 0.0006 * k + rng.normal(0, 0.0004)
            o.append(f"k={k:02d}/32 tau={k/32:.5f} <|z|>={z:.4f} <|u|>={u:.4f} dtau={1/32:.5f}")
            z += (0.0021 + 0.00007 * k) + rng.normal(0, 0.0001)
    return {"trace.log": "\n".join(o) + "\n"}


@case("Japanese memo in prose", "latent_scale_factor",
      "z1 has a spread of 0.179 with a factor 0.18215; pictures decoded directly are blurred, decoded after another division sharp.", ("scale_mismatch",))
def f_sf_twice(rng):
    return {"メモ_0614.md": """# 6/14 作業メモ（潜在空間の確認）

VAE は SD 1.5 のもの。設定ファイルの scaling_factor は 0.18215。
`encode()` の出力をデータローダ側で `* scaling_factor` している。`encode()` の中身はまだ読んでいない。

検証画像 256 枚で測った値：

- 画像潜在変数 z1：平均 0.0006、標準偏差 0.179、最小 −0.81、最大 0.97
- 文字側の潜在変数 z0：平均 0.002、標準偏差 0.99
- ノルム（1 枚あたりの平均）：‖z0‖ = 63.4、‖z1‖ = 11.5
- decode(z1)：全体に灰色でぼやける。PSNR 15.2 dB
- decode(z1 / 0.18215)：くっきり。PSNR 29.6 dB

学習ログの抜粋：

| ステップ | 流れ損失 | 余弦 | 速度比 |
|---:|---:|---:|---:|
| 1,000 | 0.934 | 0.281 | 0.272 |
| 5,000 | 0.309 | 0.834 | 0.829 |
| 10,000 | 0.116 | 0.941 | 0.940 |
| 20,000 | 0.079 | 0.960 | 0.958 |

生成画像は 2 万ステップでも灰色のもやのまま。
"""}


@case("dotted key=value lines, config echoed first", "latent_scale_factor",
      "SDXL VAE, factor 0.13025, image latents fed with a spread of 7.7 = 1/0.13.", ("scale_mismatch",))
def f_sf_forgot(rng):
    o = ["vae.name=madebyollin/sdxl-vae-fp16-fix", "vae.scaling_factor=0.13025", "net=SiT-L/2", "prior=N(0,I)"]
    for k in range(100, 20001, 100):
        sd = 7.68 * np.exp(rng.normal(0, 0.008))
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.05, 0.79, 2500, vv=1 + sd * sd)]
        o.append(f"u={k} obj.rf={L:.3f} obj.rf.rel={nm:.4f} ang.cos={c:.4f} lat.img.mean={rng.normal(0.12,0.02):.3f} lat.img.sd={sd:.3f} lat.noise.sd={1+rng.normal(0,0.002):.3f} opt.eta=1e-4 opt.g={9.1*np.exp(rng.normal(0,0.2)):.2f}")
        if k % 5000 == 0:
            o.append(f"u={k} sample.decode.clip_frac={0.61+rng.normal(0,0.02):.3f} sample.decode.sat={0.83+rng.normal(0,0.01):.3f} fid5k={231+rng.normal(0,5):.1f}")
    return {"rf_sdxl.log": "\n".join(o) + "\n"}


@case("pytest-like report with captured stdout", "vae_roundtrip",
      "decode(encode(x)) reaches 14 dB on eight pictures, latents have an ordinary spread.")
def f_vae(rng):
    o = ["============================= test session starts ==============================", "platform linux -- Python 3.10.12, pytest-7.4.4", "collected 3 items", "",
         "tests/test_codec.py::test_latent_stats PASSED                            [ 33%]", "tests/test_codec.py::test_shapes PASSED                                  [ 66%]", "tests/test_codec.py::test_recon FAILED                                   [100%]", "",
         "----------------------------- Captured stdout call -----------------------------", "latents  (8, 4, 32, 32)  mean=-0.021  std=0.974  min=-4.12  max=4.40"]
    ps = []
    for i in range(8):
        p = 14.1 + rng.normal(0, 0.9)
        ps.append(p)
        o.append(f"img_{i:03d}.png  psnr={p:.2f}dB  ssim={0.41+rng.normal(0,0.03):.3f}  lpips={0.58+rng.normal(0,0.02):.3f}")
    o += [f"average  psnr={np.mean(ps):.2f}dB", "E       assert avg_psnr > 26.0", "========================= 1 failed, 2 passed in 11.42s ========================="]
    return {"pytest_codec.txt": "\n".join(o) + "\n"}


@case("printed numpy matrices", "text_ignored",
      "Cosines between the mean vectors of six different prompts are all about 0.998; flow otherwise reasonable.")
def f_text_mat(rng):
    n = 6
    M = np.eye(n)
    for i in range(n):
        for j in range(i):
            M[i, j] = M[j, i] = 0.9979 + rng.normal(0, 0.0004)
    S = np.eye(n)
    for i in range(n):
        for j in range(i):
            S[i, j] = S[j, i] = 0.31 + rng.normal(0, 0.008)
    np.set_printoptions(precision=4, suppress=True, linewidth=120)
    t = ">>> prompts = ['a cat', 'a car', 'a red apple', 'city at night', 'old man reading', 'sailing boat']\n"
    t += ">>> mus = torch.stack([head(enc(p)).mu for p in prompts]); cosmat(mus)\n" + np.array2string(M) + "\n"
    t += ">>> cosmat(torch.stack([head(enc(p)).sample() for p in prompts]))\n" + np.array2string(S) + "\n"
    t += ">>> # 'a cat' twice: cos of means, cos of samples\n>>> twice('a cat')\n(1.0, 0.3127)\n"
    t += ">>> mus.norm(dim=1), head.sigma.mean()\n(tensor([43.1, 43.1, 43.2, 43.0, 43.1, 43.2]), tensor(0.9612))\n"
    t += ">>> vae_psnr(val)\n29.71\n"
    return {"ipython.txt": t}


@case("JSON lines with arrays", "text_ignored",
      "Off-diagonal cosines of the means rise from 0.4 to 0.996 in the course of the run.")
def f_text_arr(rng):
    o = []
    for k in range(0, 36001, 600):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.61, 3400)]
        base = 0.9962 - 0.58 * np.exp(-k / 3000.)
        off = [round(float(min(0.9996, base + rng.normal(0, 0.0008 + 0.02 * np.exp(-k / 3000.)))), 4) for _ in range(10)]
        o.append(json.dumps({"it": k, "fm": {"mse": round(float(L), 4), "cos": round(float(c), 4)}, "probe": {"prompts": 5, "cosOfMeans_offDiag": off, "cosOfMeans_samePrompt": 1.0, "meanRms": round(float(0.7 + rng.normal(0, 0.005)), 4), "sd": round(float(0.71 + rng.normal(0, 0.004)), 4)}, "lr": 1e-4}))
    return {"probe.ndjson": "\n".join(o) + "\n"}


@case("TOML array of tables", "condition_unused",
      "Error with true, permuted and blank captions is identical at each checkpoint; the field itself is well trained.")
def f_cond_toml(rng):
    o = ['title = "caption ablation, 2 048 held-out pairs"', 'model = "crossDiT-B"', ""]
    for k in range(10, 121, 10):
        nm = fall(k, 0.9, 0.42, 9)
        c = np.sqrt(1 - nm)
        b = nm * 2.0
        o += ["[[checkpoint]]", f"thousand_updates = {k}", f"err_true_caption = {b:.4f}", f"err_permuted_caption = {b+rng.normal(0,0.0003):.4f}", f"err_blank_caption = {b+rng.normal(0,0.0003):.4f}",
              f"cosine_true_caption = {c:.4f}", f"cosine_permuted_caption = {c+rng.normal(0,0.0002):.4f}", f"speed_ratio = {c*1.003:.4f}", f"fid_10k = {12.8+90*np.exp(-k/14.):.2f}", f"clip_score = {17.1+rng.normal(0,0.08):.2f}", ""]
    return {"ablation.toml": "\n".join(o)}


@case("unicode math names in printed lines", "condition_unused",
      "Gain in cosine through the true condition is -0.0003 on average for the whole run although the cosine is 0.7.")
def f_cond_uni(rng):
    o = []
    for k in range(100, 30001, 100):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.735, 2200)]
        d = -0.0003 + rng.normal(0, 0.0006)
        o.append(f"№{k:>6} ▸ ‖û−u‖²={L:.4f} ▸ cos(û,u|c)={c:.4f} ▸ cos(û,u|πc)={c-d:.4f} ▸ Δcos={d:+.4f} ▸ ‖û‖/‖u‖={r:.3f} ▸ lr=1e-4")
    return {"run.out": "\n".join(o) + "\n"}


@case("e-mail", "weak_field",
      "cos 0.04, length ratio 0.29, shooting 2.5 against 2.4 at the start; codec, text and teacher integration fine.")
def f_weak_mail(rng):
    return {"Re_ckpt26k.eml": """From: d.okafor@lab.example
To: gen-team@lab.example
Subject: Re: ckpt 26k - numbers before the meeting
Date: Fri, 20 Sep 2024 17:40:11 +0200
Content-Type: text/plain; charset=utf-8

Hi all,

here is what I measured this afternoon on 64 image/caption pairs.

Codec: round trip 29.4 dB, z mean -0.01, var 1.38.
Captions: cosine of mean embeddings cat/car 0.34, cat/apple 0.29, car/apple 0.41 (same caption twice: 1.00).
Single step, predicted against true velocity:
   t=0.10: cosine 0.051, length ratio 0.287
   t=0.37: cosine 0.044, length ratio 0.293
   t=0.63: cosine 0.038, length ratio 0.288
   t=0.90: cosine 0.019, length ratio 0.281
Integrating the learned field from z0: MSE to z1 is 2.51 (100 steps), 2.52 (200 steps); MSE(z0, z1) itself is 2.37.
Integrating the true velocity instead: 3e-13 at 5 steps, 4e-13 at 100 steps.
Norms: z0 63.8, z1 75.1, x_t 57, v* 98.

Pictures show coloured texture, nothing recognisable.

Best,
Dayo
"""}


@case("LaTeX tabular", "weak_field",
      "Appendix draft: cosine 0.06-0.09, speed ratio 0.3 at all t, relative shooting error 1.05.")
def f_weak_tex(rng):
    o = [r"\begin{tabular}{lrrrr}", r"\toprule", r"$t$ & $\cos(\hat v, v^\ast)$ & $\|\hat v\|/\|v^\ast\|$ & nmse \\", r"\midrule"]
    for t in (0.05, 0.25, 0.5, 0.75, 0.95):
        c = 0.075 + rng.normal(0, 0.012)
        r = 0.30 + rng.normal(0, 0.006)
        o.append(f"${t:.2f}$ & {c:.3f} & {r:.3f} & {1+r*r-2*r*c:.3f} \\\\")
    o += [r"\bottomrule", r"\end{tabular}", "", r"\begin{tabular}{lr}", r"\toprule", r"VAE reconstruction PSNR & 30.2\,dB \\", r"$\mathrm{std}(z_0)$, $\mathrm{std}(z_1)$ & 1.00, 1.04 \\",
          r"mean off-diagonal $\cos(\mu_i,\mu_j)$ & 0.37 \\", r"relative shooting error, $N=50$ & 1.05 \\", r"relative shooting error, $N=200$ & 1.05 \\", r"Euler with $v^\ast$, $N=5\dots100$ & $<10^{-12}$ \\", r"\bottomrule", r"\end{tabular}"]
    return {"table_appendix.tex": "\n".join(o) + "\n"}


@case("Fortran-style fixed columns with legend", "wrong_target",
      "Training objective falls, but the alignment with z1-z0 goes to -0.78: the regression is towards the opposite vector.")
def f_wrong(rng):
    o = [" CALIGN = cos(u_hat, z1-z0), batch mean;  SPEED = |u_hat|/|z1-z0|;  RELERR = |u_hat-(z1-z0)|^2/|z1-z0|^2", " OBJ    = what is minimised", "",
         "    ITER         OBJ      CALIGN       SPEED      RELERR        RATE"]
    for k in range(200, 30001, 200):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.80, 2600)]
        o.append(f"{k:8d}  {L: .4E}  {-c: .4E}  {r: .4E}  {1+r*r+2*r*c: .4E}  {2e-4: .3E}")
    return {"fort.66": "\n".join(o) + "\n"}


@case("pretty-printed JSON objects, concatenated", "moving_target",
      "Objective falls to 1e-4 because the target's rms shrinks from 1.4 to 0.02: the source is drawn onto the destination; pictures show nothing.")
def f_moving(rng):
    o = []
    for k in range(0, 24001, 300):
        vr = 0.016 + 1.40 * np.exp(-k / 2600.)
        vr *= np.exp(rng.normal(0, 0.01))
        c = 0.70 - 0.62 * np.exp(-k / 1500.) + rng.normal(0, 0.006)
        r = c * np.exp(rng.normal(0, 0.01))
        nm = 1 + r * r - 2 * r * c
        o.append(json.dumps({"updateCount": k, "objective": float(f"{nm*vr*vr:.4g}"), "velocity": {"target_rms": float(f"{vr:.4g}"), "pred_rms": float(f"{vr*r:.4g}"), "cosine": round(float(c), 4), "relErr": round(float(nm), 4)},
                             "latents": {"srcStd": round(float(1.0 + 0.02 * (1 - np.exp(-k / 2600.))), 4), "dstStd": round(float(1.02 + rng.normal(0, 0.003)), 4), "meanAbsDiff": float(f"{vr*0.798:.4g}")},
                             "fidFromPrompts": round(float(301 + rng.normal(0, 3)), 1) if k % 3000 == 0 else None, "stepSize": 1e-4}, indent=2))
    return {"dump.json": "\n".join(o) + "\n"}


@case("JSON with arrays of per-bin values", "t_edges",
      "Ten bins of t: relative error 0.35 in the middle, 1.1 and 1.3 at the two ends.")
def f_edges_arr(rng):
    o = []
    mid = np.array([0.74, 0.18, 0.05, 0.01, 0, 0, 0.01, 0.05, 0.22, 0.93])
    for k in range(2000, 60001, 2000):
        g = fall(k, 0.95, 0.34, 4000)
        nm = g + mid * (1 - np.exp(-k / 3000.)) * 1.05 + rng.normal(0, 0.006, 10)
        c, r = split(nm)
        o.append(json.dumps({"upd": k, "loss": round(float(nm.mean() * 2.0), 4), "bins": [[round(i / 10, 1), round((i + 1) / 10, 1)] for i in range(10)], "relErrByT": [round(float(x), 3) for x in nm], "cosByT": [round(float(x), 3) for x in c], "lr": 0.0001}))
    return {"per_bin.jsonl": "\n".join(o) + "\n"}


@case("fixed-width table per evaluation, bins in interval notation", "t_edges",
      "The last two slices of time are far worse (1.0, 2.0) than the middle (0.33); not improving over the evaluations.")
def f_edges_tab(rng):
    o = []
    for k in range(10, 81, 10):
        o += [f"== slices after {k}k ==", "  t-slice      n      nmse     cos    speed"]
        tot = 0
        for b in range(10):
            nm = fall(k, 0.8, 0.31, 6) + (0.02 if b == 0 else 0) + {8: 0.62, 9: 1.58}.get(b, 0) + rng.normal(0, 0.006)
            c, r = split(nm)
            o.append(f"  ({b/10:.1f},{(b+1)/10:.1f}]  {rng.integers(770,870):5d}   {nm:7.4f}  {float(c):6.3f}   {float(r):5.3f}")
            tot += nm / 10
        o.append(f"  all        8192   {tot:7.4f}")
    return {"slices.txt": "\n".join(o) + "\n"}


@case("Prometheus exposition text, several scrapes", "time_sampling",
      "Uniform 0..999 is configured, but drawn time indices have mean 124 and spread 72 (0..249).")
def f_tsample(rng):
    o = ['# HELP ddpm_config_info configuration', 'ddpm_config_info{T="1000",t_dist="uniform",pred="eps",schedule="linear"} 1',
         '# HELP ddpm_t_index drawn time index of the last window', '# TYPE ddpm_t_index gauge']
    ts = 1717400000000
    for k in range(500, 30001, 500):
        ts += 60000
        L = fall(k, 1.0, 0.172, 900) * np.exp(rng.normal(0, 0.015))
        o += [f'ddpm_updates_total {k} {ts}', f'ddpm_eps_mse{{split="train"}} {L:.5f} {ts}', f'ddpm_t_index{{stat="min"}} 0 {ts}', f'ddpm_t_index{{stat="max"}} {249 if rng.random()<.9 else 248} {ts}',
              f'ddpm_t_index{{stat="mean"}} {124.4+rng.normal(0,0.9):.2f} {ts}', f'ddpm_t_index{{stat="stddev"}} {72.1+rng.normal(0,0.5):.2f} {ts}', f'ddpm_grad_norm {0.3*np.exp(rng.normal(0,0.2)):.4f} {ts}', f'ddpm_learning_rate 0.0001 {ts}']
    return {"scrapes.prom": "\n".join(o) + "\n"}


@case("glog", "input_range",
      "Pixels enter as 0..255 (mean 117, spread 67) where -1..1 is configured; x0 error in the thousands.")
def f_inrange(rng):
    ck = Clock(2024, 6, 3, 12, 3, 11)
    o = ["I0603 12:03:02.118822  4242 flags.cc:31] --pixel_range=-1,1 --predict=x0 --T=1000 --batch=128"]
    for k in range(50, 10001, 50):
        t = ck.tick(14)
        L = fall(k, 17900, 610, 500, 1.1) * np.exp(rng.normal(0, 0.03))
        pre = f"I{t:%m%d %H:%M:%S}.{rng.integers(0,999999):06d}  4242"
        o.append(f"{pre} trainer.cc:118] iter {k} x0_mse={L:.1f} gnorm={L/31*np.exp(rng.normal(0,0.1)):.1f} lr=0.0001")
        if k % 500 == 0:
            o.append(f"{pre} probe.cc:44] pixels lo=0 hi=255 avg={117.2+rng.normal(0,1.5):.1f} sd={66.8+rng.normal(0,0.7):.1f} | eps lo=-4.9 hi=4.8 avg=0.000 sd=1.000 | t avg={500+rng.normal(0,9):.0f} sd={288.7+rng.normal(0,4):.0f}")
    return {"trainer.INFO": "\n".join(o) + "\n"}


@case("dump of constants, printed arrays", "schedule_constants",
      "linear 1e-4..0.02 with T=1000 is configured, betas end at 0.002 and the cumulative product at 0.35.")
def f_const_lin(rng):
    b = np.linspace(1e-4, 2e-3, 1000)
    ac = np.cumprod(1 - b)
    def h(x):
        return "[" + ", ".join(f"{v:.6g}" for v in x[:4]) + ", ..., " + ", ".join(f"{v:.6g}" for v in x[-4:]) + "]"
    t = "schedule: linear   T: 1000   beta_start: 0.0001   beta_end: 0.02\n"
    t += f"betas                         {h(b)}\nalphas                        {h(1-b)}\nalphas_cumprod                {h(ac)}\nsqrt_alphas_cumprod           {h(np.sqrt(ac))}\nsqrt_one_minus_alphas_cumprod {h(np.sqrt(1-ac))}\nsnr                           {h(ac/(1-ac))}\n"
    t += "training\n"
    for k in range(1000, 30001, 1000):
        t += f"  {k:>6}: eps mse {fall(k,1.0,0.118,700)*np.exp(rng.normal(0,0.012)):.4f}, lr 1e-4, gnorm {0.3*np.exp(rng.normal(0,0.15)):.3f}\n"
    t += "samples @30000: fid10k 163.2, pixel mean 0.21 (data 0.02), pixel sd 0.31 (data 0.56)\n"
    return {"constants_and_train.txt": t}


@case("C-like assignments of schedule arrays", "schedule_constants",
      "Cosine schedule: abar begins at 0.6 instead of 1.")
def f_const_cos(rng):
    T = 1000
    x = np.arange(1, T + 1) / T
    f = np.cos((x + 0.45) / 1.45 * np.pi / 2) ** 2
    ac = f / 1.27
    o = ["/* ddim_consts.h, generated by export.py */", "/* type = cosine, s = 0.008, T = 1000 */", f"static const int  T_STEPS = {T};"]
    idx = [0, 1, 2, 5, 10, 50, 100, 250, 500, 750, 900, 990, 998, 999]
    for nm, a in (("abar", ac), ("sqrt_abar", np.sqrt(ac)), ("sqrt_1m_abar", np.sqrt(1 - ac))):
        for i in idx:
            o.append(f"{nm}[{i}] = {max(a[i],0):.8e};")
    return {"ddim_consts.h": "\n".join(o) + "\n"}


@case("note with table: teacher integration against number of steps", "bf16_rounding",
      "Error of integrating the exact velocity grows from 5e-5 (N=5) to 3e-2 (N=200) with the state in a short format; 1e-13 in fp32.")
def f_bf16(rng):
    return {"2024-10-02.md": """## Oct 2 – integrating the *exact* velocity (no network involved)

z ← z + v*·Δt, v* = z1 − z0 recomputed once, Δt = 1/N, 32 pairs.
`z.dtype` printed in the loop: torch.bfloat16 (column 2), torch.float32 (column 3)

| N | ‖z_N − z1‖² / D | same, other dtype |
|----:|---------:|--------:|
| 5 | 5.3e-05 | 1.1e-14 |
| 10 | 1.6e-04 | 1.3e-14 |
| 20 | 6.1e-04 | 2.0e-14 |
| 50 | 3.5e-03 | 4.4e-14 |
| 100 | 1.4e-02 | 8.9e-14 |
| 200 | 3.1e-02 | 1.7e-13 |

production sampler uses N = 200 and column 2.
"""}


@case("sampling trace, Greek step names", "step_schedule",
      "24 symmetric steps from 0 to 1 are configured; the steps only shrink and sum to 0.5.")
def f_steps(rng):
    # first half of an edge-heavy symmetric grid: large first step, shrinking
    w = 1 / np.sqrt(np.arange(1, 25))
    h = w / w.sum() * 0.5
    o = ["grid: symmetric, 24 steps, tau 0 -> 1, fp32"]
    tau, z = 0.0, 0.796
    for k in range(24):
        v = 0.468 - 0.0008 * k + rng.normal(0, 0.0003)
        o.append(f"#{k:02d}  τ={tau:.4f}  h={h[k]:.4f}  ⟨|z|⟩={z:.4f}  ⟨|v|⟩={v:.4f}")
        tau += h[k]
        z += 0.085 * h[k] + rng.normal(0, 0.00005)
    o.append(f"end  τ={tau:.4f}  ⟨|z|⟩={z:.4f}")
    return {"sample.trace": "\n".join(o) + "\n"}


@case("org-mode tables", "train_infer_mismatch",
      "One-step cosine 0.87, width of z0 0.95, but endpoint error rises with K for Euler and Heun.")
def f_mismatch(rng):
    return {"eval.org": """#+TITLE: checkpoint 150k, path with alpha(t)=cos, beta(t)=sin
* one step (1024 pairs)
|    t |   cos | speed |  nmse |
|------+-------+-------+-------|
| 0.10 | 0.861 | 0.866 | 0.259 |
| 0.37 | 0.879 | 0.874 | 0.227 |
| 0.63 | 0.883 | 0.880 | 0.220 |
| 0.90 | 0.864 | 0.870 | 0.254 |
* head
| mean sigma | mean abs mu | std z0 | std z1 |
|------------+-------------+--------+--------|
|      0.951 |        0.31 |   1.03 |   1.01 |
* endpoint rmse, z0 -> z1
|   K | Euler |  Heun |
|-----+-------+-------|
|   8 | 1.012 | 1.071 |
|  16 | 1.088 | 1.129 |
|  32 | 1.137 | 1.160 |
|  64 | 1.164 | 1.176 |
| 128 | 1.178 | 1.184 |
rms(z1 - z0) = 1.44
* rest
VAE 30.0 dB; cos of means over prompts 0.35; state kept in fp32
"""}


# ================================================================== HEALTHY
@case("bracketed k-steps with overbar", "none", "Long flow run with one spike at 33k that is gone after a few hundred updates.")
def h_spike(rng):
    o = ["start ► 80k updates"]
    for k in range(250, 80001, 250):
        L = fall(k, 1.97, 0.835, 2600) * np.exp(rng.normal(0, 0.012))
        g = fall(k, 1.6, 0.31, 3000) * np.exp(rng.normal(0, 0.15))
        if 33000 <= k < 34000:
            j = (k - 33000) // 250
            L *= [3.4, 1.9, 1.25, 1.06][j]
            g *= [21, 4, 1.6, 1.1][j]
        o.append(f"[{k/1000:.2f}k/80k] L̄={L:.3f} ‖g‖={g:.2f} η={coslr(k,1e-4,1000,80000):.1e} ({rng.normal(3.1,0.05):.1f} it/s)")
    return {"o.log": "\n".join(o) + "\n"}


@case("whitespace .dat, comment header, four warm restarts", "none", "SGDR with four cycles; each restart lifts the error a little and each cycle ends lower.")
def h_sgdr(rng):
    o = ["# cosine cycles of 10000, peak 4e-4, floor 4e-6", "#   n    train_err    held_err      rate      gnorm"]
    for k in range(0, 40000, 100):
        ph = (k % 10000) / 10000.
        lr = 4e-6 + (4e-4 - 4e-6) * 0.5 * (1 + np.cos(np.pi * ph))
        L = fall(k, 1.9, 0.86, 2500) + 0.11 * (lr / 4e-4) * (1 if k >= 10000 else 0.3) - 0.0000012 * k
        L *= np.exp(rng.normal(0, 0.011))
        o.append(f"{k:7d}  {L:9.5f}  {L*1.012*np.exp(rng.normal(0,0.005)):9.5f}  {lr:.4e}  {0.5*np.exp(rng.normal(0,0.15)):.4f}")
    return {"cycles.dat": "\n".join(o) + "\n"}


@case("diffusers tqdm, Steps bar", "none", "LoRA on a pretrained model; flat noisy loss is what such fine-tunes show, the log names the base weights.")
def h_lora(rng):
    o = ["Loading pretrained pipeline black-forest-labs/FLUX.1-dev (all base weights frozen)", "***** Running training *****", "  Fine-tuning: LoRA rank = 16, 22.8 M trainable of 11.9 B", "  Num examples = 24", "  Total optimization steps = 1500"]
    line = ""
    for k in range(1, 1501):
        L = 0.38 * np.exp(rng.normal(0, 0.42)) - 0.01 * k / 1500
        if k % 3 == 0:
            line += f"\rSteps: {100*k//1500:3d}%|{bar(k/1500,10)}| {k}/1500 [{hms(k*1.9)}<{hms((1500-k)*1.9)},  1.90s/it, loss={L:.4f}, lr=0.0001]"
        if k % 250 == 0:
            line += f"\n{k}: subject similarity (DINOv2) {0.41+0.33*(1-np.exp(-k/500.))+rng.normal(0,0.008):.3f}, prompt similarity (CLIP-T) {0.318+rng.normal(0,0.002):.3f}\n"
    return {"accelerate_stdout.txt": "\n".join(o) + "\n" + line + "\n"}


@case("dotted snake-case JSON lines", "none", "GradScaler starts at 2^24, drops nine steps in the beginning, later doubles; the run trains.")
def h_scaler(rng):
    o = []
    sc, sk = 2.0 ** 24, 0
    for k in range(1, 9001):
        if k <= 9 or k in (3217, 6880):
            sc /= 2
            sk += 1
        if k % 2000 == 0:
            sc *= 2
        if k <= 12 or k % 25 == 0:
            L = fall(k, 1.99, 0.92, 700) * np.exp(rng.normal(0, 0.015))
            o.append(json.dumps({"train.step": k, "train.rf_loss": round(float(L), 4), "amp.scaler.value": sc, "amp.scaler.skips": sk, "opt.grad.l2": "inf" if (k <= 9) else round(float(fall(k, 1.9, 0.45, 900) * np.exp(rng.normal(0, 0.15))), 4), "opt.lr": round(float(min(1, k / 500) * 2e-4), 8)}))
    return {"events.jsonl": "\n".join(o) + "\n"}


@case("config echo, then key:value with percents", "none", "The recipe bounds the widths (std_range) and uses 1e-6 for KL: a small share of the gradient is intended.")
def h_recipe(rng):
    o = ["head:", "  std_range: [0.6, 1.0]     # widths are bounded by construction", "  w_kl: 1.0e-6              # regulariser only, by recipe", "  anchor: clip_text", "  detach_target: true", "flow: {w: 1.0}", ""]
    for k in range(500, 60001, 500):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.72, 3600)]
        mu, sd = 0.71 + rng.normal(0, 0.004), 0.83 + rng.normal(0, 0.002)
        kl = klg(mu, sd)
        gf = fall(k, 1.8, 0.6, 5000) * np.exp(rng.normal(0, 0.1))
        gk = gf * 0.008 * np.exp(rng.normal(0, 0.1))
        o.append(f"@{k}  total: {L+1e-6*kl:.4f}  fm: {L:.4f}  kl: {kl:.4f}  cos: {c:.3f}  nmse: {nm:.3f}  gshare[fm]: {100*gf/np.hypot(gf,gk):.1f}%  gshare[kl]: {100*gk/np.hypot(gf,gk):.1f}%  s_avg: {sd:.3f}  |m|_avg: {mu*0.798:.3f}  lr: {coslr(k,2e-4,1000,60000):.2e}")
    return {"fm_anchor.log": "\n".join(o) + "\n"}


@case("Keras progress bars per epoch", "none", "Held-out error 20 % above training, both flattening; no turn upwards.")
def h_keras(rng):
    o = []
    for e in range(1, 41):
        a = fall(e, 0.62, 0.236, 3.5) + rng.normal(0, 0.0012)
        b = fall(e, 0.60, 0.283, 3.8) + rng.normal(0, 0.0022)
        o += [f"Epoch {e}/40", f"782/782 [==============================] - {rng.integers(60,66)}s {rng.integers(77,83)}ms/step - loss: {a:.4f} - mae: {a**0.5*0.79:.4f} - val_loss: {b:.4f} - val_mae: {b**0.5*0.79:.4f} - lr: {coslr(e,1e-3,2,40,1e-5):.4e}"]
    return {"fit.txt": "\n".join(o) + "\n"}


@case("YAML flow list", "none", "Image tokenizer: PSNR up, rFID down, ordinary noise.")
def h_yaml(rng):
    o = ["tokenizer: f8c16", "history:"]
    for k in range(1000, 100001, 1000):
        o.append(f"  - {{iter: {k}, rec_l1: {fall(k,0.31,0.041,2600)*np.exp(rng.normal(0,0.012)):.4f}, lpips: {fall(k,0.61,0.082,4000)*np.exp(rng.normal(0,0.015)):.4f}, kl_per_dim: {2.1+0.6*(1-np.exp(-k/20000.))+rng.normal(0,0.01):.3f}, "
                 f"psnr_db: {31.2-12*np.exp(-k/14000.)+rng.normal(0,0.08):.2f}, rfid: {0.71+19*np.exp(-k/12000.)+abs(rng.normal(0,0.02)):.3f}, lat_std: {0.98+rng.normal(0,0.004):.3f}, lr: 4.5e-6}}")
    return {"tokenizer.yaml": "\n".join(o) + "\n"}


@case("nested XML per epoch", "none", "Short smoke run of six epochs; everything falls.")
def h_xml(rng):
    o = ['<log program="smoke" epochs="6">']
    for e in range(1, 7):
        o.append(f'  <epoch n="{e}">')
        for b in range(1, 9):
            x = (e - 1) * 8 + b
            o.append(f'    <batch i="{b}" sqerr="{fall(x,1.03,0.31,7)*np.exp(rng.normal(0,0.03)):.4f}" rate="0.0003"/>')
        o.append(f'    <dev sqerr="{fall(e*8,1.03,0.33,7):.4f}" psnr="{18.2+0.9*e+rng.normal(0,0.05):.2f} dB"/>')
        o.append("  </epoch>")
    o.append("</log>")
    return {"smoke.xml": "\n".join(o) + "\n"}


@case("Megatron-like with batch ramp-up", "none", "Global batch grows 256 -> 2048 in steps; loss becomes less noisy, gradient norm smaller.")
def h_ramp(rng):
    o = []
    cs = 0
    for k in range(50, 24001, 50):
        gb = 256 * 2 ** min(3, k // 5000)
        cs += gb * 50
        L = fall(k, 10.9, 2.62, 900, 0.9) * np.exp(rng.normal(0, 0.02 / np.sqrt(gb / 256)))
        o.append(f"it={k}/24000|seen={cs/1e6:.2f}M|ms/it={900+gb*0.6:.0f}|lr={coslr(k,3e-4,800,24000,3e-5):.2E}|gbs={gb}|xent={L:.4E}|ppl={np.exp(min(L,12)):.2f}|gn={0.9*np.exp(rng.normal(0,0.15))/np.sqrt(gb/256):.3f}|skip=0|nan=0")
    return {"lm_prior.log": "\n".join(o) + "\n"}


@case("SLURM, resumed with overlapping steps, comma thousands", "none", "Requeued at 18 600, continues from the checkpoint of 18 000: steps overlap, values go on.")
def h_resume(rng):
    o = ["SLURM_JOB_ID=771203 SLURM_RESTART_COUNT=0", "starting tensorboard on :6006"]
    def rec(k):
        L = fall(k, 1.0, 0.139, 900) * np.exp(rng.normal(0, 0.014))
        return f"Step {k:,}/50,000 -> eps_mse {L:.4f} | val {L*1.02+rng.normal(0,0.001):.4f} | gradnorm {fall(k,0.9,0.19,1500)*np.exp(rng.normal(0,0.15)):.3f} | lr {coslr(k,1e-4,500,50000,1e-6):.3e}"
    o += [rec(k) for k in range(200, 18601, 200)]
    o += ["slurmstepd: error: *** STEP 771203.0 ON c31 CANCELLED DUE TO TIME LIMIT ***", "SLURM_JOB_ID=771203 SLURM_RESTART_COUNT=1", "restored model, optimiser, scheduler, averaged weights, rng from ckpt_018000.pt", "starting tensorboard on :6006"]
    o += [rec(k) for k in range(18200, 50001, 200)]
    o.append("done.")
    return {"slurm-771203.out": "\n".join(o) + "\n"}


@case("srun -l labels, four ranks interleaved", "none", "Each rank prints its own local loss; levels differ a little, all fall.")
def h_ranks(rng):
    o = []
    for k in range(40, 12001, 40):
        rows = []
        for r in range(4):
            L = fall(k, 1.98, 0.88, 1200) * np.exp(rng.normal(0, 0.03)) * (1 + 0.004 * r)
            rows.append(f"{r}: step {k} local_mse {L:.4f} tok/s {rng.integers(41000,43000)}")
        rng.shuffle(rows)
        o += rows
        if k % 400 == 0:
            o.append(f"0: step {k} allreduced_mse {fall(k,1.98,0.88,1200)*np.exp(rng.normal(0,0.008)):.4f} grad_l2 {0.6*np.exp(rng.normal(0,0.12)):.3f} lr {coslr(k,2e-4,300,12000):.2e}")
    return {"job.out": "\n".join(o) + "\n"}


@case("sampling trace in a personal style", "none", "Symmetric edge-heavy grid summing to 1, state moves from 0.80 to 0.88 smoothly.")
def h_trace(rng):
    n = 20
    x = np.arange(n)
    w = 1 / np.sqrt((x + 0.12) * (n - 1 - x + 0.12) + 0.4)
    h = w / w.sum()
    h = (h + h[::-1]) / 2
    o = ["euler / fp32 / 20 steps / symmetric grid"]
    for q in range(3):
        o.append(f"sample {q}")
        z, t = 0.797 + rng.normal(0, 0.001), 0.0
        for k in range(n):
            v = 0.466 - 0.0011 * k + rng.normal(0, 0.0003)
            o.append(f"  {k+1:>2}) time {t:.4f} (+{h[k]:.4f})   state {z:.4f}   velocity {v:.4f}")
            t += h[k]
            z += h[k] * (0.055 + 0.06 * t)
        o.append(f"   =) time {t:.4f}            state {z:.4f}")
    return {"walk.txt": "\n".join(o) + "\n"}


@case("constants dump, JSON", "none", "Cosine schedule as published: abar from 0.99996 to 2e-9, betas clipped at 0.999.")
def h_const(rng):
    T = 1000
    f = lambda u: np.cos((u + 0.008) / 1.008 * np.pi / 2) ** 2
    b = np.array([min(1 - f((i + 1) / T) / f(i / T), 0.999) for i in range(T)])
    ac = np.cumprod(1 - b)
    pick = lambda a: {"first": [float(f"{v:.6g}") for v in a[:5]], "mid": float(f"{a[T//2]:.6g}"), "last": [float(f"{v:.6g}") for v in a[-5:]]}
    d = {"noise_schedule": {"kind": "cosine", "T": T, "s": 0.008, "max_beta": 0.999}, "betas": pick(b), "alphas_cumprod": pick(ac), "sqrt_alphas_cumprod": pick(np.sqrt(ac)), "sqrt_one_minus_alphas_cumprod": pick(np.sqrt(1 - ac)),
         "probe": {"t": {"n": 65536, "min": 0, "max": 999, "mean": 499.3, "std": 288.9}, "x_0": {"min": -1.0, "max": 1.0, "mean": -0.013, "std": 0.561}, "noise": {"mean": 0.0003, "std": 0.9999}}}
    return {"consts.json": json.dumps(d, indent=1) + "\n"}


@case("stdout of evaluation scripts, ticks and dots", "none", "Codec 29.8 dB, source/destination of one size, single-step cosine 0.7-0.8, endpoint error falls with K.")
def h_eval(rng):
    o = ["[1/5] codec round trip ........ 29.8 dB   (latent mean 0.00, sd 1.02)", "[2/5] sizes ................... |src| 64.1  |dst| 65.9  |mix| 53.4  |dst-src| 91.6", "[3/5] captions, cosine of means  cat/car 0.31  cat/boat 0.27  car/boat 0.38  cat/cat 1.00", "[4/5] one step"]
    for t in (0.1, 0.37, 0.63, 0.9):
        c = {0.1: 0.70, 0.37: 0.79, 0.63: 0.80, 0.9: 0.73}[t]
        r = c * 1.01
        o.append(f"        t {t:.2f}   cosine {c:.3f}   length {r:.3f}   nmse {1+r*r-2*r*c:.3f}")
    o += ["[5/5] endpoint rmse   K=8 0.912   K=16 0.871   K=32 0.853   K=64 0.846   (start distance 1.431; relative mse at K=64: 0.349)", "      exact velocity, N=5..100: below 1e-12", "      gain of the true caption over a permuted one: cosine +0.083", "all five done in 3 min 12 s"]
    return {"selfcheck.out": "\n".join(o) + "\n"}


@case("DINOv2-like: median (average) pairs", "none", "Self-distillation with ordinary entropies: teacher about 40 % of ln K, student above.")
def h_dino(rng):
    ck = Clock(2024, 1, 9, 10, 0, 0)
    o = ["I20240109 09:59:12 771 dinov2 train.py:141] head_n_prototypes: 16384 teacher_temp: 0.07 student_temp: 0.1"]
    avg = None
    for k in range(100, 20001, 100):
        ht = 3.9 + 2.2 * np.exp(-k / 2500.) + rng.normal(0, 0.02)
        hs = 5.3 + 3.2 * np.exp(-k / 3500.) + rng.normal(0, 0.03)
        L = ht + 1.1 + 2.3 * np.exp(-k / 4000.) + rng.normal(0, 0.03)
        avg = L if avg is None else avg + (L - avg) * 100 / k
        t = ck.tick(44)
        o.append(f"I{t:%Y%m%d %H:%M:%S} 771 dinov2 helpers.py:103] Training  [{k:>6}/125000]  eta: {hms((125000-k)*0.44)}  lr: {min(1,k/12500)*2e-3:.4f} ({min(1,k/25000)*2e-3:.4f})  wd: 0.0{400+k//500:03d}  current_batch_size: 1024.0000 (1024.0000)  "
                 f"total_loss: {L:.4f} ({avg:.4f})  teacher_ent: {ht:.4f} ({ht+0.05:.4f})  student_ent: {hs:.4f} ({hs+0.08:.4f})  dino_grad_norm: {0.8*np.exp(rng.normal(0,0.12)):.4f} (0.8102)  time: 0.44 data: 0.002 max mem: 31522")
    return {"training.log": "\n".join(o) + "\n"}


@case("psql table output", "none", "Text head whose widths go to 0.97 and means shrink: the prior term works.")
def h_psql(rng):
    o = ["runs=> select upd, vel_sq, prior_nats, m_abs, s_avg, z_var from hist where run='kl-warm-5' order by upd;", "  upd   | vel_sq | prior_nats | m_abs  | s_avg  | z_var ", "--------+--------+------------+--------+--------+-------"]
    cnt = 0
    for k in range(0, 48001, 400):
        m = 0.34 + 0.95 * np.exp(-k / 7000.) + rng.normal(0, 0.003)
        s = 0.968 - 0.38 * np.exp(-k / 7000.) + rng.normal(0, 0.002)
        L = fall(k, 1.98, 0.91, 3000) * np.exp(rng.normal(0, 0.012))
        o.append(f" {k:>6} | {L:.4f} | {klg(m,s):>10.4f} | {m*0.798:.4f} | {s:.4f} | {m*m+s*s:.3f}")
        cnt += 1
    o.append(f"({cnt} rows)")
    return {"psql.txt": "\n".join(o) + "\n"}


@case("Slack summary in English", "none", "Friday summary of a good run with numbers.")
def h_slack(rng):
    return {"standup.txt": """#gen-standup

priya  16:58
weekly for run sable-12 (text→latent flow, 8×A100, 200k updates done of 300k)
• train velocity mse 1.96 → 0.87, held-out 0.90 (0.91 last week)
• held-out cos 0.748, length ratio 0.751, nmse 0.437
• FID-10k: 61.2 (50k), 29.8 (100k), 19.9 (150k), 16.4 (200k). CLIP score 26.1 → 29.0 → 30.2 → 30.7
• endpoint rmse 0.93 / 0.88 / 0.86 / 0.85 for 8 / 16 / 32 / 64 steps
• head: sigma 0.92 on average, |mu| 0.41, cos of means between prompts 0.33
• grad norm ~0.4, lr 1e-4 on cosine, no skipped steps
• shuffled captions cost 0.09 cosine

omar  17:03
:tada: next: 512px
"""}


@case("Chinese diary with tables", "none", "Normal diffusion run: loss falls by 87 %, statistics as expected.")
def h_zh(rng):
    o = ["# 11 月 6 日 扩散模型训练记录", "", "配置：线性 β 1e-4 → 0.02，T=1000，预测 ε，批大小 256，学习率 1e-4（前 1000 步预热）。", "", "| 迭代 | 训练损失 | 验证损失 | 梯度范数 | FID |", "|---|---|---|---|---|"]
    for k in (1000, 5000, 10000, 20000, 40000, 60000, 80000, 100000, 120000):
        L = fall(k, 1.0, 0.127, 400) + rng.normal(0, 0.001)
        o.append(f"| {k//1000}k | {L:.4f} | {L+0.003+rng.normal(0,0.0006):.4f} | {0.25+rng.normal(0,0.02):.2f} | {7.9+160*np.exp(-k/17000.):.1f} |")
    o += ["", "抽查一个批次：", "- 输入像素：最小 -1.000，最大 1.000，均值 -0.021，标准差 0.554", "- 时间步 t：均值 501.7，标准差 287.4，范围 0–999", "- 噪声：均值 0.0002，标准差 1.0001", "- alphas_cumprod：首 0.9999，末 4.04e-5", "", "没有出现 NaN。样图清晰，继续训练到 200k。"]
    return {"1106.md": "\n".join(o) + "\n"}


@case("Japanese report in prose with a table", "none", "Fine-tune of a published model: small changes, evaluation a bit better.")
def h_ja(rng):
    return {"報告.txt": """件名：追加学習の途中経過（事前学習済み SDXL からの微調整）

お疲れさまです。昨夜からの追加学習の数字を共有します。
ベースは公開済みの SDXL 1.0 で、U-Net の注意層だけを学習率 1e-5 で更新しています。

  経過      学習損失   検証損失   CLIP類似度   美観スコア
  開始時     0.1312     0.1334     0.301        5.61
  2千回      0.1309     0.1331     0.303        5.70
  4千回      0.1315     0.1329     0.305        5.78
  6千回      0.1304     0.1328     0.306        5.83
  8千回      0.1307     0.1327     0.306        5.86
  1万回      0.1301     0.1327     0.307        5.88

微調整なので損失はほぼ横ばいですが、検証損失はわずかに下がっています。
勾配ノルムは 0.08〜0.12、欠損値はありません。
1万5千回まで続けます。
"""}


@case("HTML dashboard table", "none", "Exported dashboard page; ordinary rectified-flow run with step size decaying to 0 at the end.")
def h_html(rng):
    o = ["<!doctype html><html><head><title>run 0x3f</title></head><body>", "<h2>run 0x3f &mdash; rectified flow, finished</h2>", "<table border=1>", "<tr><th>updates</th><th>obj. (train)</th><th>obj. (dev)</th><th>&eta;</th><th>&#8214;&nabla;&#8214;</th><th>FID&#8595;</th></tr>"]
    for k in range(2000, 100001, 2000):
        L = fall(k, 1.96, 0.84, 3000) * np.exp(rng.normal(0, 0.008))
        fid = f"{11.3+120*np.exp(-k/16000.):.1f}" if k % 10000 == 0 else "&ndash;"
        o.append(f"<tr><td>{k:,}</td><td>{L:.4f}</td><td>{L*1.01+rng.normal(0,0.003):.4f}</td><td>{coslr(k,1e-4,1000,100000):.2e}</td><td>{0.35*np.exp(rng.normal(0,0.12)):.3f}</td><td>{fid}</td></tr>")
    o.append("</table></body></html>")
    return {"run0x3f.html": "\n".join(o) + "\n"}


@case("indented JSON document with per-slice arrays", "none", "Time slices with the mild worsening at the ends that each flow model has (0.46 against 0.40).")
def h_bins(rng):
    evs = []
    for k in range(10000, 100001, 10000):
        g = fall(k, 0.9, 0.39, 6000)
        nm = g + np.array([.055, .02, .008, 0, 0, 0, 0, .008, .025, .06]) + rng.normal(0, 0.004, 10)
        evs.append({"after": k, "mse": round(float(nm.mean() * 2), 4), "sliceNmse": [round(float(x), 4) for x in nm], "sliceCos": [round(float(np.sqrt(1 - x)), 4) for x in nm], "sliceCount": [int(x) for x in rng.integers(380, 440, 10)]})
    return {"slices.json": json.dumps({"experiment": "uniform-t", "evaluations": evs}, indent=2) + "\n"}


@case("InfluxDB line protocol", "none", "Ordinary run, tags and integer suffixes.")
def h_influx(rng):
    o = []
    ts = 1718000000000000000
    for k in range(100, 25001, 100):
        ts += 31 * 10 ** 9
        o.append(f"opt,run=mango,host=g12 n={k}i,lr={coslr(k,2e-4,500,25000,2e-6):.6g},gnorm={fall(k,1.2,0.3,1500)*np.exp(rng.normal(0,0.15)):.4f} {ts}")
        o.append(f"fit,run=mango,split=train n={k}i,velMSE={fall(k,1.97,0.89,1900)*np.exp(rng.normal(0,0.013)):.5f} {ts}")
        if k % 1000 == 0:
            o.append(f"fit,run=mango,split=dev n={k}i,velMSE={fall(k,1.97,0.905,1900)*np.exp(rng.normal(0,0.004)):.5f} {ts}")
    return {"points.lp": "\n".join(o) + "\n"}


@case("wandb end-of-run summary with sparklines after printed lines", "none", "Short adapter run, summary block as printed at exit.")
def h_wandb(rng):
    o = ["wandb: Tracking run with wandb version 0.16.3"]
    for k in range(50, 2001, 50):
        L = fall(k, 0.71, 0.332, 140) * np.exp(rng.normal(0, 0.02))
        o.append(f"[{k:04d}] align_nce={L*3.1:.4f} recon={L:.4f} temp={0.07-0.00001*k:.4f} r@1={(r1 := 100*(0.58-0.5*np.exp(-k/500.))+rng.normal(0,0.4)):.1f}%")
    o += ["wandb: ", "wandb: Run history:", "wandb:     align_nce █▅▄▃▃▂▂▂▂▁▁▁▁▁▁", "wandb:          r@1 ▁▃▄▅▆▆▇▇▇▇█████", "wandb:        recon █▅▄▃▃▂▂▂▂▂▁▁▁▁▁", "wandb: ", "wandb: Run summary:", f"wandb:     align_nce {L*3.1:.5f}", f"wandb:          r@1 {r1:.1f}", f"wandb:        recon {L:.5f}", "wandb: ", "wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s)"]
    return {"output.log": "\n".join(o) + "\n"}


@case("LDM autoencoder dict-like lines, discriminator switched on", "none", "Tokenizer with adversarial term from 20 000 on, as the config says: the sum gets larger and noisier, reconstruction and PSNR keep improving.")
def h_vqgan(rng):
    o = ["lossconfig: {disc_start: 20000, disc_weight: 0.5, kl_weight: 1e-6, perceptual_weight: 1.0}"]
    for k in range(250, 60001, 250):
        rec = fall(k, 0.42, 0.088, 3000) * np.exp(rng.normal(0, 0.015)) + 0.003 * (20000 < k < 23000)
        on = k >= 20000
        gl = (0.12 + rng.normal(0, 0.05)) * on * (1 - np.exp(-(k - 20000) / 1500.)) if on else 0.0
        dw = 0.5 * np.exp(rng.normal(0, 0.2)) if on else 0.0
        kl = 19800 + 1500 * np.exp(-k / 8000.) + rng.normal(0, 120)
        o.append(f"gs {k:>6} aeloss/rec_plus_lpips={rec:.4f} aeloss/kl_sum={kl:.0f} aeloss/g={gl:.4f} aeloss/d_weight={dw:.3f} aeloss/all={rec+1e-6*kl+dw*gl:.4f} disc/all={(0.98+rng.normal(0,0.03)-0.12*(1-np.exp(-(k-20000)/4000.))) if on else 0:.4f} val/psnr={29.6-9*np.exp(-k/9000.)+rng.normal(0,0.06):.2f}")
    return {"ae.log": "\n".join(o) + "\n"}


@case("printed density-model lines with negative nats", "none", "Normalising flow prior: negative log-likelihood per dimension is below zero and falls further, as usual for continuous data.")
def h_negnll(rng):
    o = []
    for k in range(200, 40001, 200):
        a = -1.42 + 2.4 * (1 + k / 1500.) ** -1 + rng.normal(0, 0.012)
        o.append(f"iter#{k} nll/dim: {a:+.4f} nats; logdet/dim: {1.1+0.5*(1-np.exp(-k/5000.))+rng.normal(0,0.006):+.4f}; gradNorm2: {3.1*np.exp(rng.normal(0,0.2)):.2f}; lrNow: {coslr(k,1e-3,1000,40000,1e-6):.2e}")
        if k % 2000 == 0:
            o.append(f"dev#{k} nll/dim: {a+0.035+rng.normal(0,0.004):+.4f} nats")
    return {"nf.txt": "\n".join(o) + "\n"}


@case("side-by-side table of live and averaged weights", "none", "Averaged weights lag in the first evaluations and win later, as they should.")
def h_ema(rng):
    o = ["decay 0.9999 | evaluation every 10k", "", " upd     fid(live)  fid(avg)   err(live)  err(avg)"]
    for k in range(10, 201, 10):
        lv = 14.1 + 150 * np.exp(-k / 22.) + rng.normal(0, 0.5)
        av = 9.8 + (260 if k == 10 else 160) * np.exp(-k / 21.) + rng.normal(0, 0.15)
        e = fall(k, 0.5, 0.146, 5)
        o.append(f"{k:>4}k   {lv:9.2f}  {av:9.2f}   {e+rng.normal(0,0.001):9.4f}  {e-0.0015+0.05*np.exp(-k/12.):9.4f}")
    return {"avg_vs_live.txt": "\n".join(o) + "\n"}


@case("Jupyter notebook file (.ipynb) with stream outputs", "none", "Resolution 256 -> 512 at 30k as announced in the cell: error rises once and falls below again.")
def h_ipynb(rng):
    def cell(src, lines, n):
        return {"cell_type": "code", "execution_count": n, "metadata": {}, "source": [src], "outputs": [{"name": "stdout", "output_type": "stream", "text": [x + "\n" for x in lines]}]}
    a = [f"upd {k} res 256 | mse_v {fall(k,1.95,0.86,1500)*np.exp(rng.normal(0,0.012)):.4f} | gnorm {0.4*np.exp(rng.normal(0,0.14)):.3f} | lr 1e-4" for k in range(300, 30001, 300)]
    b = [f"upd {k} res 512 | mse_v {(0.79+0.33*np.exp(-(k-30000)/2500.))*np.exp(rng.normal(0,0.012)):.4f} | gnorm {0.36*np.exp(rng.normal(0,0.14)):.3f} | lr 1e-4" for k in range(30300, 50001, 300)]
    nb = {"cells": [{"cell_type": "markdown", "metadata": {}, "source": ["stage 1: 256 px, stage 2: 512 px (pos. embedding interpolated)"]}, cell("train(stage=1)", a, 3), cell("train(stage=2, init=stage1)", b, 4)],
          "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
    return {"two_stage.ipynb": json.dumps(nb, indent=1, ensure_ascii=False) + "\n"}


@case("PBS log ended by the wall-time limit", "none", "The queue's limit ends the job after a clean checkpoint; metrics are all in order.")
def h_walltime(rng):
    o = ["PBS: job 88123.hpc started, walltime=24:00:00", "cfg> target 200000 updates (will take several jobs)"]
    for k in range(500, 64001, 500):
        L = fall(k, 1.0, 0.151, 1000) * np.exp(rng.normal(0, 0.012))
        o.append(f"upd={k:06d} noise_mse={L:.4f} dev_noise_mse={L*1.012+rng.normal(0,0.001):.4f} gn={0.28*np.exp(rng.normal(0,0.14)):.3f} lr=8.0e-05 hrs={k/2700:.2f}")
    o += ["PBS: 10 min of walltime left, signal USR1", "ckpt> wrote upd064000.pt (model, opt, sched, avg)", "PBS: job killed: walltime 86427 exceeded limit 86400", "PBS: follow-up job 88190.hpc queued"]
    return {"job88123.o": "\n".join(o) + "\n"}


@case("reinforcement fine-tune, percent and slash names", "none", "Flow-GRPO on a pretrained model: reward rises, distance to the reference grows slowly and levels off under its cap, held-out reward rises too.")
def h_grpo(rng):
    o = ["base = stabilityai/stable-diffusion-3.5-medium (pretrained), method = grpo, kl_ref cap 0.05"]
    for k in range(10, 2001, 10):
        rw = 0.91 - 0.29 * np.exp(-k / 520.) + rng.normal(0, 0.012)
        o.append(f"round {k} :: reward/ocr {100*rw:.1f}% :: reward/std {0.21-0.00003*k+rng.normal(0,0.006):.3f} :: policy/kl_ref {0.034*(1-np.exp(-k/600.))+abs(rng.normal(0,0.0006)):.4f} :: policy/clipfrac {0.08+rng.normal(0,0.01):.3f} :: policy/obj {rng.normal(0.0008,0.004):+.4f} :: lr 3e-4")
        if k % 200 == 0:
            o.append(f"round {k} :: heldout/ocr {100*(0.89-0.28*np.exp(-k/540.)):.1f}% :: heldout/aesthetic {5.38+rng.normal(0,0.01):.2f}")
    return {"grpo.log": "\n".join(o) + "\n"}


@case("multi-line records, thousands separators, percents, units", "none", "Full text-to-latent run with all statistics; identities hold, every term has its share.")
def h_full(rng):
    o = []
    for k in range(1000, 60001, 1000):
        c, r, nm, L, v2 = [a[0] for a in field(rng, np.array([k]), 0.02, 0.745, 3300)]
        m = 0.36 + 0.7 * np.exp(-k / 9000.)
        s = 0.955 - 0.3 * np.exp(-k / 9000.)
        kl = klg(m, s)
        d = 4.9 + 2.6 * np.exp(-k / 7000.) + rng.normal(0, 0.02)
        gf = fall(k, 1.9, 0.6, 5000) * np.exp(rng.normal(0, 0.08))
        gd, gk = gf * 0.33 * np.exp(rng.normal(0, 0.08)), gf * 0.17 * np.exp(rng.normal(0, 0.08))
        tot = np.sqrt(gf ** 2 + gd ** 2 + gk ** 2)
        o += [f"──── update {k:,} of 60,000 ({100*k/60000:.1f} %) ────", f"  objective   {L+0.1*d+0.02*kl:.4f} = 1.00·vel {L:.4f} + 0.10·sem {d:.4f} + 0.02·kld {kl:.4f}", f"  direction   cos {c:.3f}, |û|/|u| {r:.3f}, nmse {100*nm:.1f} %",
              f"  gradient    vel {gf:.3f}, sem {gd:.3f}, kld {gk:.3f}, together {tot:.3f}", f"  code        mean |m| {m*0.798:.3f}, mean s {s:.3f}, E z² {m*m+s*s:.3f}", f"  entropy     teacher {4.0+rng.normal(0,0.02):.2f} nat, student {4.6+2*np.exp(-k/7000.):.2f} nat, ln K 9.01 nat",
              f"  speed       {rng.integers(1180,1260):,} img/s, lr {coslr(k,2e-4,1000,60000):.2e}", ""]
    return {"report.txt": "\n".join(o) + "\n"}


# ================================================================== main
def main():
    out = os.path.join(sys.argv[1], "a")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    order = np.random.default_rng(20240611).permutation(len(CASES))
    man = []
    for pos, j in enumerate(order):
        name, fn, fmt, exp, acc, story = CASES[j]
        cid = f"e{pos+1:02d}"
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        files = fn(rng)
        d = os.path.join(out, cid)
        os.makedirs(d)
        for f, text in files.items():
            with open(os.path.join(d, f), "w", encoding="utf-8", newline="") as fh:
                fh.write(text)
        path = cid if len(files) > 1 else f"{cid}/{next(iter(files))}"
        man.append({"id": cid, "path": path, "format": fmt, "expected": exp, "acceptable": acc, "healthy": exp == "none", "story": story})
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as fh:
        json.dump(man, fh, indent=1, ensure_ascii=False)
        fh.write("\n")
    h = sum(m["healthy"] for m in man)
    print(f"{len(man)} logs, {h} healthy, {len(man)-h} faulty, {len({m['expected'] for m in man}-{'none'})} slugs, {len({m['format'] for m in man})} formats")


if __name__ == "__main__":
    main()
