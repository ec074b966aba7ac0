#!/usr/bin/env python3
"""Deterministic corpus of training logs (author D). usage: make.py [OUT]"""
import csv, io, json, math, os, shutil, struct, sys, zlib
from datetime import datetime, timedelta
import numpy as np

CASES = []          # (half, fn, fmt, expected, acceptable, story)


def case(half, fmt, expected="none", acceptable=(), story=""):
    def deco(fn):
        CASES.append((half, fn, fmt, expected, list(acceptable), story))
        return fn
    return deco


# ---------------------------------------------------------------- dynamics
def pl(s, a, b, tau, p=0.5):
    return b + (a - b) * (1 + np.asarray(s, float) / tau) ** (-p)


def ar(rng, n, rho, sd):
    e = rng.standard_normal(n) * sd * math.sqrt(1 - rho * rho)
    x = np.empty(n)
    x[0] = rng.standard_normal() * sd
    for i in range(1, n):
        x[i] = rho * x[i - 1] + e[i]
    return x


def mul(rng, n, rho, sd):
    return np.exp(ar(rng, n, rho, sd) - sd * sd / 2)


def noisy(rng, base, sd, rho=0.0, slow=0.0):
    """multiplicative noise: white (rho) + slow drift"""
    base = np.asarray(base, float)
    n = len(base)
    y = base * mul(rng, n, rho, sd)
    if slow:
        y = y * mul(rng, n, 0.97, slow)
    return y


def coslr(s, base, total, warm=0, lo=0.0):
    s = np.asarray(s, float)
    w = np.where(s < warm, s / max(warm, 1), 1.0)
    f = np.clip((s - warm) / max(total - warm, 1), 0, 1)
    return np.where(s < warm, base * w, lo + 0.5 * (base - lo) * (1 + np.cos(np.pi * f)))


def nmse_of(c, r):
    return 1 + r * r - 2 * r * c


def sat(s, lo, hi, tau, p=0.7):
    return hi - (hi - lo) * (1 + np.asarray(s, float) / tau) ** (-p)


def bf16(x):
    x = np.asarray(x, np.float32)
    u = x.view(np.uint32)
    r = ((u >> 16) & 1) + np.uint32(0x7FFF)
    return ((u + r) & np.uint32(0xFFFF0000)).view(np.float32)


# ---------------------------------------------------------------- formats
def hms(sec):
    sec = int(sec)
    h, m, s = sec // 3600, sec % 3600 // 60, sec % 60
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def tbar(frac, width=10):
    b = " ▏▎▍▌▋▊▉█"
    full = frac * width
    k = int(full)
    out = "█" * k
    if k < width:
        out += b[int((full - k) * 8)]
        out += " " * (width - k - 1)
    return out


def tqdm(desc, i, n, rate, post, width=10, unit="it"):
    el = i / rate
    eta = (n - i) / rate
    sp = f"{rate:5.2f}{unit}/s" if rate >= 1 else f"{1 / rate:5.2f}s/{unit}"
    return f"{desc}{100 * i // n:3d}%|{tbar(i / n, width)}| {i}/{n} [{hms(el)}<{hms(eta)}, {sp}{', ' + post if post else ''}]"


def gdtable(kv):
    ks = sorted(kv)
    k2 = {k: ("%-8.3g" % kv[k]) if not isinstance(kv[k], str) else kv[k] for k in ks}
    kw = max(map(len, ks)); vw = max(len(v) for v in k2.values())
    d = "-" * (kw + vw + 7)
    out = [d]
    for k in ks:
        out.append("| %s%s | %s%s |" % (k, " " * (kw - len(k)), k2[k], " " * (vw - len(k2[k]))))
    out.append(d)
    return "\n".join(out)


def ts(t0, sec, f="%Y-%m-%d %H:%M:%S"):
    return (t0 + timedelta(seconds=float(sec))).strftime(f)


def tsms(t0, sec):
    t = t0 + timedelta(seconds=float(sec))
    return t.strftime("%Y-%m-%d %H:%M:%S") + ",%03d" % (t.microsecond // 1000)


def w(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)


def jnum(x, nd=6):
    """python number for json; nan stays nan"""
    x = float(x)
    if math.isnan(x) or math.isinf(x):
        return x
    return float(f"{x:.{nd}g}")


def csvtext(cols, rows):
    b = io.StringIO()
    wr = csv.writer(b, lineterminator="\n")
    wr.writerow(cols)
    for r in rows:
        wr.writerow(["" if v is None else v for v in r])
    return b.getvalue()


# TensorBoard event file by hand (deterministic)
_T = []
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = (_c >> 1) ^ 0x82F63B78 if _c & 1 else _c >> 1
    _T.append(_c)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = _T[(c ^ b) & 0xFF] ^ (c >> 8)
    return c ^ 0xFFFFFFFF


def _mask(c):
    return (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _vi(n):
    o = b""
    while True:
        b = n & 0x7F
        n >>= 7
        if n:
            o += bytes([b | 0x80])
        else:
            return o + bytes([b])


def _ld(field, data):
    return _vi(field << 3 | 2) + _vi(len(data)) + data


def _rec(data):
    h = struct.pack("<Q", len(data))
    return h + struct.pack("<I", _mask(crc32c(h))) + data + struct.pack("<I", _mask(crc32c(data)))


def tbwrite(path, t0, rows):
    """rows: (walltime offset, step, {tag: value})"""
    base = t0.timestamp() if isinstance(t0, datetime) else t0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(_rec(b"\x09" + struct.pack("<d", base) + _ld(3, b"brain.Event:2")))
        for off, step, kv in rows:
            for tag, v in kv.items():
                val = _ld(1, tag.encode()) + b"\x15" + struct.pack("<f", float(v))
                f.write(_rec(b"\x09" + struct.pack("<d", base + off) + b"\x10" + _vi(int(step)) + _ld(5, _ld(1, val))))


def mlflow(d, name, t0, series, params):
    """series: {metric: (steps, values)}"""
    run = "%032x" % (zlib.crc32(name.encode()) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128))
    root = os.path.join(d, "mlruns", "481920377165", run)
    base = int(t0.timestamp() * 1000)
    w(os.path.join(root, "meta.yaml"), f"artifact_uri: file:///scratch/mlruns/481920377165/{run}/artifacts\nend_time: null\nentry_point_name: ''\nexperiment_id: '481920377165'\nlifecycle_stage: active\nrun_id: {run}\nrun_name: {name}\nrun_uuid: {run}\nsource_name: ''\nsource_type: 4\nstart_time: {base}\nstatus: 1\ntags: []\nuser_id: lab\n")
    w(os.path.join(d, "mlruns", "481920377165", "meta.yaml"), f"artifact_location: file:///scratch/mlruns/481920377165\ncreation_time: {base}\nexperiment_id: '481920377165'\nlast_update_time: {base}\nlifecycle_stage: active\nname: t2i\n")
    for k, v in params.items():
        w(os.path.join(root, "params", k), str(v))
    for m, (st, va) in series.items():
        w(os.path.join(root, "metrics", *m.split("/")), "".join(f"{base + int(s) * 820} {float(x)!r} {int(s)}\n" for s, x in zip(st, va)))
    w(os.path.join(root, "tags", "mlflow.runName"), name)


def g(x, n=4):
    return f"{x:.{n}g}"
# =========================================================== half a, faulty
@case("a", "DiT/LightningDiT coloured log", "nan_loss", [], "LightningDiT #10: bf16 run fine for 194k steps, then Train Loss: nan to the end; ANSI colours, truncated last line")
def a_nan(rng, d):
    t0 = datetime(2025, 1, 12, 21, 3, 11)
    L = []
    def line(sec, m):
        L.append(f"[\x1b[34m{ts(t0, sec)}\x1b[0m] {m}")
    line(0, "Experiment directory created at output/lightningdit_b_vavae_f16d32")
    line(4, "LightningDiT Parameters: 130.51M")
    line(4, "Optimizer: AdamW, lr=0.0002, beta2=0.95")
    line(5, "Dataset contains 1,281,167 images (/data/in1k_latents_f16d32)")
    line(5, "Batch size 64 per gpu, with 256 global batch size")
    line(6, "Using lognorm sampling: True, cosine loss: True")
    s = np.arange(500, 203001, 500)
    y = noisy(rng, pl(s, 1.05, 0.31, 2200, .45), .006, .2, .003)
    for i, k in enumerate(s):
        v = y[i]
        if k == 194500: v *= 1.09
        tx = "nan" if k > 194500 else f"{v:.4f}"
        line(6 + k / 3.1, f"(step={k:07d}) Train Loss: {tx}, Train Steps/Sec: {3.1 + .04 * rng.standard_normal():.2f}")
        if k % 20000 == 0:
            line(8 + k / 3.1, f"Saved checkpoint to output/lightningdit_b_vavae_f16d32/checkpoints/{k:07d}.pt")
    txt = "\n".join(L)
    w(d + "/log.txt", txt[:-23])
    return "log.txt"


@case("a", "MLflow run folder", "divergence", [], "train and held-out loss reach a minimum at 45 % and climb together for the rest of the run, LR constant, no jump")
def a_div(rng, d):
    s = np.arange(50, 30001, 50)
    n = len(s)
    base = pl(s, 1.9, .62, 900, .6)
    up = np.clip((s - 13500) / 16500, 0, None)
    f = base * (1 + .55 * up ** 1.4)
    tr = noisy(rng, f, .022, .1, .008)
    e = np.arange(1000, 30001, 1000)
    ev = noisy(rng, np.interp(e, s, f) * 1.015, .006)
    gn = noisy(rng, pl(s, 2.1, .38, 700, .7) * (1 + .6 * up), .13, .3)
    mlflow(d, "flow-l2-const", datetime(2025, 6, 2, 8, 0), {
        "flow_mse": (s, tr), "holdout_flow_mse": (e, ev), "gradient_l2": (s, gn), "lr": (s, np.full(n, 2e-4))},
        {"model": "UNet-L", "optimizer": "adamw", "learning_rate": 2e-4, "schedule": "constant", "precision": "bf16", "batch_size": 128, "max_steps": 30000})
    return "mlruns"


@case("a", "Lightning progress bar (latent-diffusion)", "no_learning", [], "CompVis #20/#369: eps-loss stays at 1.00 for eight epochs, val and val_ema too; LR and gradient norm ordinary")
def a_nolearn(rng, d):
    L = ["Restored from models/first_stage_models/kl-f8/model.ckpt", "LatentDiffusion: Running in eps-prediction mode", "DiffusionWrapper has 395.03 M params.",
         "Setting learning rate to 6.40e-05 = 1 (accumulate_grad_batches) * 2 (num_gpus) * 16 (batchsize) * 2.00e-06 (base_lr)",
         "  | Name              | Type             | Params", "-" * 60, "0 | model             | DiffusionWrapper | 395 M", "1 | first_stage_model | AutoencoderKL    | 55.3 M", ""]
    nb = 1422
    ep = va = None
    for e in range(8):
        acc = []
        for b in range(59, nb, 60):
            x = 1.0 + .004 * rng.standard_normal() + .003
            acc.append(x)
            gs = e * nb + b
            post = f"loss={np.mean(acc[-20:]):.3f}, v_num=0, train/loss_simple_step={x:.3f}, train/loss_vlb_step={.0046 * math.exp(.4 * rng.standard_normal()):.5f}, train/loss_step={x:.3f}, global_step={gs}.0, lr_abs=6.4e-5, grad_2.0_norm_total={.31 * math.exp(.25 * rng.standard_normal()):.3f}"
            if va:
                post += f", val/loss_simple={va[0]:.3f}, val/loss_simple_ema={va[1]:.3f}"
            if ep:
                post += f", train/loss_simple_epoch={ep:.3f}"
            L.append(tqdm(f"Epoch {e}: ", b + 1, nb, 1.89, post))
        ep = np.mean(acc)
        va = (1.0006 + .0012 * rng.standard_normal(), 1.0004 + .0008 * rng.standard_normal())
        L.append(f"Average Epoch time: {752 + rng.standard_normal() * 3:.2f} seconds")
        L.append("Average Peak memory 17311.12MiB")
    w(d + "/train.out", "\n".join(L) + "\n")
    return "train.out"


@case("a", "HF Trainer dict prints", "overfitting", [], "LoRA on 420 pairs: eval_loss best at epoch 6, then up 25 % while the train loss goes on falling")
def a_overfit_hf(rng, d):
    L = ["***** Running training *****", "  Num examples = 420", "  Num Epochs = 40", "  Instantaneous batch size per device = 4", "  Total optimization steps = 4,200", "  Number of trainable parameters = 23,068,672"]
    for k in range(25, 4201, 25):
        ep = k / 105
        tr = pl(k, .182, .030, 1500, .95) * math.exp(.07 * rng.standard_normal())
        lr = 1e-4 * (1 - k / 4200)
        L.append(str({"loss": round(tr, 4), "grad_norm": round(.34 * math.exp(.22 * rng.standard_normal()) * (1 + k / 6000), 6), "learning_rate": float(f"{lr:.6g}"), "epoch": round(ep, 2)}))
        if k % 210 == 0:
            v = .1655 - .022 * (1 - math.exp(-ep / 2.2)) + .00155 * max(0, ep - 6) * (1 - .004 * ep) + .0009 * rng.standard_normal()
            L.append(str({"eval_loss": round(v, 5), "eval_runtime": round(31 + rng.random(), 4), "eval_samples_per_second": 1.94, "eval_steps_per_second": .486, "epoch": round(ep, 2)}))
    L.append(str({"train_runtime": 15123.2, "train_samples_per_second": 1.111, "train_steps_per_second": .278, "train_loss": .0671, "epoch": 40.0}))
    w(d + "/nohup.out", "\n".join(L) + "\n")
    return "nohup.out"


@case("a", "Markdown table of checkpoints", "overfitting", [], "checkpoint table of a fine-tune: val loss and FID have an optimum at 12k and worsen, train loss still falls")
def a_overfit_md(rng, d):
    L = ["# run 14: domain fine-tune, 3.1k paintings", "", "Base: SD1.5 UNet, full fine-tune, lr 1e-5 constant, batch 32, EMA 0.999. Val = 200 held-out paintings, fixed noise and timesteps. FID against 2k held-out crops.", "",
         "| step | epoch | train loss | val loss | FID-2k | CLIP-T |", "|---:|---:|---:|---:|---:|---:|"]
    for k in range(2000, 40001, 2000):
        tr = pl(k, .151, .052, 16000, 1.2) + .0008 * rng.standard_normal()
        va = .1489 - .0075 * (1 - math.exp(-k / 5000)) + .0155 * (max(0, k - 12000) / 28000) ** 1.15 + .0004 * rng.standard_normal()
        fid = 61 - 19 * (1 - math.exp(-k / 5000)) + 17 * max(0, (k - 13000) / 27000) + .5 * rng.standard_normal()
        cl = 29.6 + .5 * (1 - math.exp(-k / 6000)) - .9 * max(0, (k - 14000) / 26000) + .06 * rng.standard_normal()
        L.append(f"| {k:,} | {k * 32 / 3100:.1f} | {tr:.4f} | {va:.4f} | {fid:.1f} | {cl:.2f} |")
    L += ["", "Grad norm 0.2-0.4 all the time, nothing special in the console. Training continues to 60k overnight."]
    w(d + "/run14.md", "\n".join(L) + "\n")
    return "run14.md"


@case("a", "personal debug prints (alignment probe)", "weak_field", [], "alignment probe at three checkpoints: cosine 0.04-0.08, norm ratio 0.3, shot at the target misses; VAE, text, schedule probes fine")
def a_weak(rng, d):
    L = []
    for ck, cb, rb in ((6000, .031, .24), (14000, .052, .29), (22000, .066, .31)):
        L.append(f">>> probe ckpt_{ck}.pt  (ema weights, fp32 forward, 64 pairs from the train set)")
        L.append(f"vae roundtrip      : psnr {28.7 + .2 * rng.standard_normal():.2f} dB   z mean {-.01 + .01 * rng.standard_normal():.3f}  z std {1.02 + .02 * rng.standard_normal():.3f}")
        L.append(f"prompt means       : pairwise cosine cat/car {.21 + .03 * rng.standard_normal():.3f}  cat/apple {.18 + .03 * rng.standard_normal():.3f}  car/apple {.23 + .03 * rng.standard_normal():.3f}  cat/cat {1 - .001 * rng.random():.3f}")
        L.append(f"norms              : x0 {127.8 + rng.standard_normal():.1f}  x1 {130.4 + rng.standard_normal():.1f}  x_t {96.5 + rng.standard_normal():.1f}  v* {181.9 + rng.standard_normal():.1f}")
        nms = []
        for t in (.05, .25, .5, .75, .95):
            c = cb * (1.15 - .6 * t) + .004 * rng.standard_normal(); r = rb * (1 + .03 * rng.standard_normal())
            nms.append(nmse_of(c, r)); L.append(f"one step  t={t:.2f}   : cosine(v, v*) {c:+.4f}   |v|/|v*| {r:.3f}   nmse {nmse_of(c, r):.4f}")
        for N in (10, 25, 50, 100):
            L.append(f"shoot x0->x1 N={N:<4d}: mse {2.015 * (np.mean(nms) - .012) + .004 * rng.standard_normal():.4f}   (mse between x0 and x1: 2.015)")
        L.append("teacher field      : N=10 2.1e-13  N=50 3.8e-13  N=100 6.0e-13")
        L.append("")
    w(d + "/probe.txt", "\n".join(L))
    return "probe.txt"


@case("a", "debug prints of tensor statistics", "latent_scale_factor", ["scale_mismatch"], "SD-VAE latents arrive with std 0.17 although scaling_factor 0.18215 is configured: multiplied twice; decode is grey mush")
def a_lsf(rng, d):
    t0 = datetime(2024, 11, 5, 14, 22, 9)
    L = ["config:", "  vae: stabilityai/sd-vae-ft-mse", "  scaling_factor: 0.18215", "  latents: cached (/data/coco_latents_v2, encoded with sample())", "  prediction: epsilon", "  timesteps: 1000 uniform", "  lr: 1.0e-04", ""]
    for k in range(0, 4001, 50):
        loss = pl(k, 1.0, .021, 120, 1.1) * math.exp(.05 * rng.standard_normal())
        L.append(f"[{ts(t0, k * .71)}] step {k:>5d}/200000  loss {loss:.5f}  lr 1.0e-04")
        if k % 250 == 0:
            sd = .1716 + .0015 * rng.standard_normal(); m = .0012 + .0008 * rng.standard_normal()
            L.append(f"    latents   torch.float32 [32, 4, 32, 32]  min {-.83 - .07 * rng.random():+.4f}  max {.81 + .07 * rng.random():+.4f}  mean {m:+.4f}  std {sd:.4f}")
            L.append(f"    noise     torch.float32 [32, 4, 32, 32]  min {-4.6 - .2 * rng.random():+.4f}  max {4.5 + .2 * rng.random():+.4f}  mean {.002 * rng.standard_normal():+.4f}  std {1 + .001 * rng.standard_normal():.4f}")
            L.append(f"    timesteps torch.int64   [32]             min {rng.integers(0, 60)}  max {rng.integers(940, 1000)}  mean {500 + 50 * rng.standard_normal():.1f}  std {288 + 20 * rng.standard_normal():.1f}")
        if k % 1000 == 0:
            L.append(f"    decode(latents / 0.18215): range [{.42 - .02 * rng.random():.3f}, {.61 + .02 * rng.random():.3f}]  psnr vs input {12.9 + .2 * rng.standard_normal():.2f} dB")
    w(d + "/out.log", "\n".join(L) + "\n")
    return "out.log"


@case("a", "JSON lines", "scale_mismatch", [], "z0 from an un-normalised text head: norm 7.4x that of the VAE latent for the whole run, the flow loss is dominated by it")
def a_scale(rng, d):
    L = []
    for k in range(0, 12001, 40):
        z0 = 946 * (1 + .02 * rng.standard_normal()) * (1 - .04 * k / 12000)
        z1 = 127.1 * (1 + .012 * rng.standard_normal())
        v = math.hypot(z0, z1) * (1 + .002 * rng.standard_normal())
        fl = (v * v / 16384) * pl(k, 1.0, .041, 300, .8) * math.exp(.04 * rng.standard_normal())
        kl = 27.5 * (1 - .05 * k / 12000) * math.exp(.01 * rng.standard_normal())
        L.append(json.dumps({"iter": k, "loss": jnum(fl + 1e-3 * kl), "l_fm": jnum(fl), "l_kl": jnum(kl), "lr": 1e-4, "gnorm": jnum(14 * pl(k, 1, .2, 500, .8) * math.exp(.2 * rng.standard_normal()), 4),
                             "z0_norm": jnum(z0, 5), "z1_norm": jnum(z1, 5), "vstar_norm": jnum(v, 5), "bs": 64}))
    w(d + "/metrics.jsonl", "\n".join(L) + "\n")
    return "metrics.jsonl"


@case("a", "HF Trainer dict prints", "lr_too_small", ["no_learning"], "transformers #33086: DeepSpeed scheduler never starts, 'learning_rate': 0 on every line, loss flat")
def a_lr0(rng, d):
    L = ["[2025-03-03 10:11:02,331] [INFO] [config.py:1000:print]   zero_enabled ................. True", "***** Running training *****", "  Num examples = 1,180,000", "  Num Epochs = 2", "  Total optimization steps = 9,218"]
    warn = "tried to get lr value before scheduler/optimizer started stepping, returning lr=0"
    for k in range(10, 1801, 10):
        if k < 60: L.append(warn)
        x = 1.987 + .021 * rng.standard_normal()
        L.append(str({"loss": round(x, 4), "grad_norm": round(2.31 * math.exp(.06 * rng.standard_normal()), 6), "learning_rate": 0, "epoch": round(k / 4609, 2)}))
        if k % 600 == 0:
            L.append(str({"eval_loss": round(1.9862 + .0004 * rng.standard_normal(), 6), "eval_runtime": 88.1, "epoch": round(k / 4609, 2)}))
    w(d + "/train_log.txt", "\n".join(L) + "\n")
    return "train_log.txt"


@case("a", "SANA/PixArt logger lines", "lr_too_high", ["divergence", "loss_spikes"], "lr 1e-2 on AdamW: loss swings between 0.6 and 4 with restless grad norms; after it was lowered by hand at 4k the swings end")
def a_lrhigh(rng, d):
    t0 = datetime(2025, 3, 18, 12, 0, 4)
    L = []
    n = 300
    x = ar(rng, n, .55, .62)
    for i in range(n):
        k = 20 * (i + 1)
        if k <= 4400:
            lr = min(1e-2, 1e-2 * k / 200)
            loss = (1.25 if k > 200 else 1.25 + .7 * (1 - k / 200)) * math.exp(x[i] * min(1, k / 260)); gn = 9 * math.exp(.9 * rng.standard_normal() + .5 * x[i])
        else:
            lr = 1e-4
            loss = pl(k - 4400, 1.15, .71, 130, .8) * math.exp(.02 * rng.standard_normal()); gn = pl(k - 4400, 2.5, .28, 80, 1) * math.exp(.15 * rng.standard_normal())
        if k == 4400 + 20:
            L.append(f"{ts(t0, k * 1.39)} - [Sana] - INFO - config override from console: optimizer.lr=1e-4")
        L.append(f"{ts(t0, k * 1.39)} - [Sana] - INFO - Epoch: {1 + k // 1877} | Global Step: {k} | Local Step: {k % 1877} // 1877, total_eta: {hms((37540 - k) * 1.39)}, epoch_eta:{hms((1877 - k % 1877) * 1.39)}, time: all:{1.39 + .004 * rng.standard_normal():.3f}, model:0.851, data:0.003, lm:0.077, vae:0.455, lr:{lr:.3e}, Cap: prompt, s:(32, 32), loss:{loss:.4f}, grad_norm:{gn:.4f}")
    w(d + "/train_log.log", "\n".join(L) + "\n")
    return "train_log.log"


@case("a", "W&B chart CSV export", "loss_spikes", ["divergence"], "SiT #47: one jump at 61 % after which the loss stays 30 % above its level to the end")
def a_jump(rng, d):
    s = np.arange(100, 80001, 100)
    base = pl(s, 1.6, .545, 1800, .6)
    j = np.where(s > 48900, 1.31 + 1.1 * np.exp(-(s - 48900) / 450.), 1.0)
    y = noisy(rng, base * j, .012, .1, .004)
    rows = []
    for k, v in zip(s, y):
        sp = abs(v) * .02
        rows.append((k, f"{v:.9f}", f"{v - sp * (1 + rng.random()):.9f}", f"{v + sp * (1 + rng.random()):.9f}"))
    w(d + "/wandb_export_2026-04-20T11_02_55.142+02_00.csv", csvtext(["Step", "sit-xl-2-bs1024-bf16 - train_loss", "sit-xl-2-bs1024-bf16 - train_loss__MIN", "sit-xl-2-bs1024-bf16 - train_loss__MAX"], rows))
    return "wandb_export_2026-04-20T11_02_55.142+02_00.csv"


@case("a", "DeepSpeed console with tqdm", "amp_overflow", ["self_stopped"], "fp16 fine-tune: OVERFLOW every few steps, loss scale falls from 65536 to 1 and the engine gives up")
def a_amp(rng, d):
    t0 = datetime(2025, 5, 7, 22, 15, 55)
    L = []
    sc = 65536.0; sec = 0; k = 0; hyst = 2
    tot = 12000
    while True:
        k += 1; sec += 3.2
        bar = tqdm("  ", k, tot, .31, "")
        p = .1 if k < 12 else .3
        if rng.random() < p:
            if hyst == 2:
                L.append(f"{bar}[{tsms(t0, sec)}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(sc)}, but hysteresis is 2. Reducing hysteresis to 1")
                hyst = 1
            else:
                L.append(f"{bar}[{tsms(t0, sec)}] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(sc)}, reducing to {int(max(1, sc / 2))}")
                if sc <= 1: break
                sc = max(1.0, sc / 2)
        elif k % 2 == 0 or rng.random() < .3:
            L.append(bar)
        if k % 10 == 0:
            L.append(f"[{tsms(t0, sec + .1)}] [INFO] [logging.py:128:log_dist] [Rank 0] step={k}, skipped={sum('OVERFLOW' in z for z in L)}, lr=[{min(5e-5, 5e-5 * k / 500):.6g}], mom=[[0.9, 0.999]]")
            L.append(str({"loss": round(.2231 + .012 * rng.standard_normal(), 4), "learning_rate": float(f"{min(5e-5, 5e-5 * k / 500):.4g}"), "epoch": round(k / 4000, 3)}))
    L += ["Traceback (most recent call last):", '  File "/workspace/train_t2i.py", line 611, in <module>', "    main(args)", '  File "/usr/lib/python3.10/site-packages/deepspeed/runtime/fp16/loss_scaler.py", line 175, in update_scale',
          "    raise Exception(", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."]
    w(d + "/stderr.log", "\n".join(L) + "\n")
    return "stderr.log"


@case("a", "DiT text log, two sessions in one file", "resume_from_scratch", [], "DiT #23/#35: second session announces the checkpoint at 600k but Train Loss begins again at 1.0 and falls as in a fresh run")
def a_resume(rng, d):
    t0 = datetime(2023, 3, 16, 9, 0, 1)
    L = []
    def sess(off, k0, k1, fresh):
        L.append(f"[{ts(t0, off)}] Experiment directory created at results/004-DiT-B-4")
        L.append(f"[{ts(t0, off + 9)}] DiT Parameters: 130,321,184")
        if k0: L.append(f"[{ts(t0, off + 10)}] Resuming training from results/004-DiT-B-4/checkpoints/{k0:07d}.pt (train_steps={k0})")
        L.append(f"[{ts(t0, off + 11)}] Dataset contains 1,281,167 images (/data/imagenet/train)")
        L.append(f"[{ts(t0, off + 11)}] Training for 1400 epochs...")
        for k in range(k0 + 1000, k1 + 1, 1000):
            m = k - k0 if fresh else k
            v = pl(m, 1.0, .148, 260, .72) * math.exp(.006 * rng.standard_normal())
            L.append(f"[{ts(t0, off + (k - k0) / 6.2)}] (step={k:07d}) Train Loss: {v:.4f}, Train Steps/Sec: {6.2 + .05 * rng.standard_normal():.2f}")
            if k % 100000 == 0: L.append(f"[{ts(t0, off + (k - k0) / 6.2 + 2)}] Saved checkpoint to results/004-DiT-B-4/checkpoints/{k:07d}.pt")
    sess(0, 0, 612000, True)
    sess(130000, 600000, 871000, True)
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("a", "logfmt key=value", "self_stopped", ["divergence"], "the trainer's guard shut the run down at 7.2k of 40k because the held-out loss stood above its limit")
def a_stop(rng, d):
    t0 = datetime(2025, 9, 1, 6, 30)
    L = []
    for k in range(20, 7201, 20):
        b = pl(k, 1.8, .58, 350, .7) * (1 + .75 * max(0, (k - 4200) / 3000) ** 1.5)
        L.append(f"ts={ts(t0, k * .9, '%Y-%m-%dT%H:%M:%SZ')} level=info comp=trainer step={k} planned=40000 fm_loss={b * math.exp(.025 * rng.standard_normal()):.5f} lr=1.5e-4 gnorm={.42 * math.exp(.15 * rng.standard_normal()):.4f} imgs_per_s={212 + 2 * rng.standard_normal():.1f}")
        if k % 400 == 0:
            L.append(f"ts={ts(t0, k * .9 + 30, '%Y-%m-%dT%H:%M:%SZ')} level=info comp=eval step={k} holdout_loss={b * 1.02 * math.exp(.005 * rng.standard_normal()):.5f} n=2048")
            if k >= 6400: L.append(f"ts={ts(t0, k * .9 + 31, '%Y-%m-%dT%H:%M:%SZ')} level=warn comp=guard step={k} msg=\"holdout_loss above limit 0.80\" strikes={(k - 6000) // 400}")
    L.append(f"ts={ts(t0, 6512, '%Y-%m-%dT%H:%M:%SZ')} level=error comp=guard step=7200 msg=\"3 strikes, shutting down\" exit_code=17")
    w(d + "/trainer.log", "\n".join(L) + "\n")
    return "trainer.log"


@case("a", "Lightning metrics.csv", "ema_broken", [], "val/loss_simple improves to 0.13, val/loss_simple_ema stays at its initial 1.00: shadow weights never updated")
def a_ema(rng, d):
    cols = ["epoch", "step", "lr-AdamW", "train/loss_simple_step", "train/loss_vlb_step", "train/loss_simple_epoch", "val/loss_simple", "val/loss_vlb", "val/loss_simple_ema", "val/loss_vlb_ema"]
    rows = []
    for k in range(49, 36000, 50):
        e = k // 1200
        x = pl(k, 1.0, .118, 280, .8) * math.exp(.16 * rng.standard_normal())
        rows.append([e, k, 4.5e-05, f"{x:.6f}", f"{x * .0045 * math.exp(.3 * rng.standard_normal()):.6f}", None, None, None, None, None])
        if (k + 1) % 1200 == 0:
            v = pl(k, 1.0, .121, 280, .8) * math.exp(.01 * rng.standard_normal())
            em = .9987 + .0011 * rng.standard_normal()
            rows.append([e, k, None, None, None, None, f"{v:.6f}", f"{v * .0046:.6f}", f"{em:.6f}", f"{em * .0049:.6f}"])
            rows.append([e, k, None, None, None, f"{v * .995:.6f}", None, None, None, None])
    w(d + "/lightning_logs/version_0/metrics.csv", csvtext(cols, rows))
    return "lightning_logs/version_0/metrics.csv"


@case("a", "W&B history CSV", "wrong_target", ["train_infer_mismatch"], "training loss falls normally, but the probe's cosine to x1-x0 goes to -0.8 with ratio 0.8: the sign is flipped")
def a_sign(rng, d):
    cols = ["_step", "_runtime", "_timestamp", "train/loss", "train/lr", "train/grad_norm", "probe/cos_vel", "probe/norm_ratio", "probe/nmse", "probe/fid5k"]
    rows = []
    for k in range(0, 20001, 50):
        c = float(sat(k, 0, .83, 700)); loss = 2.02 * (1 - c * c) * math.exp(.015 * rng.standard_normal())
        r = [k, f"{k * .44:.3f}", f"{1741000000 + k * .44:.3f}", f"{loss:.6f}", f"{min(1e-4, 1e-4 * k / 500):.4g}", f"{(.3 + 2 / (1 + k / 200)) * math.exp(.12 * rng.standard_normal()):.5f}"]
        if k % 1000 == 0:
            pc = -c + .006 * rng.standard_normal(); rr = c * 1.01 + .004 * rng.standard_normal()
            r += [f"{pc:.5f}", f"{rr:.5f}", f"{nmse_of(pc, rr):.5f}", f"{(318 + 12 * (1 - math.exp(-k / 2000)) + 3 * rng.standard_normal()) if k else 305.3:.2f}"]
        else:
            r += ["", "", "", ""]
        rows.append(r)
    w(d + "/history.csv", csvtext(cols, rows))
    return "history.csv"


@case("a", "nested JSON per evaluation", "condition_unused", ["text_ignored"], "held-out loss with true, shuffled and dropped captions is the same to three digits all along; CLIP score stays at chance")
def a_cond(rng, d):
    out = []
    for k in range(0, 60001, 2500):
        b = float(pl(k, 1.98, .70, 1500, .7)) * math.exp(.004 * rng.standard_normal())
        sh = b * (1 + .0004 * rng.standard_normal()); nu = b * (1 + .0005 * rng.standard_normal())
        out.append({"step": k, "time": 1733000000 + k * 0.52, "train": {"loss": jnum(b * math.exp(.012 * rng.standard_normal()), 5), "lr": 1e-4 if k else 0.0, "grad_norm": jnum(.35 * math.exp(.1 * rng.standard_normal()), 4)},
                    "val": {"loss": {"caption": jnum(b, 6), "caption_shuffled": jnum(sh, 6), "caption_dropped": jnum(nu, 6)}, "fid": jnum(float(pl(k, 290, 24, 4000, .9)) * math.exp(.02 * rng.standard_normal()), 4),
                            "clip_score": {"model": jnum(.163 + .0015 * rng.standard_normal(), 4), "real_pairs": .314, "random_pairs": .162}}})
    w(d + "/evals.json", json.dumps(out, indent=1))
    return "evals.json"


@case("a", "TensorBoard event folder", "kl_not_acting", [], "text head: mean |mu| rises from 0.1 to 3, sigma to 1.9, KL up 60x although beta=0.02 is set and warmed up")
def a_kl(rng, d):
    s = np.arange(0, 15001, 50)
    mu = sat(s, .11, 3.05, 5200, 1.0) * mul(rng, len(s), .8, .015)
    sg = sat(s, 1.0, 1.93, 6000, 1.0) * mul(rng, len(s), .8, .008)
    rms2 = (mu * 1.25) ** 2
    kl = .5 * (rms2 + sg ** 2 - 1 - 2 * np.log(sg))
    fl = noisy(rng, pl(s, 2.05, .92, 500, .8) * (1 + .02 * rms2), .02)
    beta = .02 * np.clip(s / 1500., 0, 1)
    rows = [(k * .8, k, {"train/fm": fl[i], "train/kl_per_dim": kl[i], "train/total": fl[i] + beta[i] * kl[i] * .001, "enc/mu_abs": mu[i], "enc/sigma": sg[i], "enc/z_var": (rms2[i] + sg[i] ** 2) * (1 + .01 * rng.standard_normal()), "sched/beta_kl": beta[i], "sched/lr": 1e-4}) for i, k in enumerate(s)]
    tbwrite(d + "/runs/texthead/events.out.tfevents.1748851200.node07.23311.0", 1748851200, rows)
    return "runs"


@case("a", "Keras progress lines", "posterior_collapse", [], "World-models-like Keras run: kl_loss 1e-7, mu 1e-4, sigma 1.000 from epoch 3 on, reconstruction of every prompt alike")
def a_post(rng, d):
    L = []
    for e in range(1, 26):
        L.append(f"Epoch {e}/25")
        mu = .21 * math.exp(-1.7 * (e - 1)) + 4.2e-4 * math.exp(.2 * rng.standard_normal())
        sg = 1 - .05 * math.exp(-1.6 * (e - 1)) - 2e-5 * rng.random()
        kl = .5 * (1.57 * mu * mu + sg * sg - 1 - 2 * math.log(sg))
        fl = 1.32 + .7 * math.exp(-e / 1.2) + .004 * rng.standard_normal()
        pc = 1 - .4 * math.exp(-1.2 * e) - .0004 * rng.random()
        L.append(f"2500/2500 [==============================] - {611 + rng.integers(0, 9)}s {244 + rng.integers(0, 4)}ms/step - loss: {fl + .5 * kl:.4f} - flow_loss: {fl:.4f} - z0_kl_loss: {kl:.4e} - z0_mu_abs: {mu:.4e} - z0_sigma: {sg:.5f} - val_loss: {fl * 1.004:.4f} - val_flow_loss: {fl * 1.004:.4f} - val_z0_kl_loss: {kl * 1.1:.4e} - lr: 1.0000e-04")
    w(d + "/fit.log", "\n".join(L) + "\n")
    return "fit.log"


@case("a", "absl logging with dicts (U-ViT/DiM)", "lr_restart", [], "DiM #5: after the resume the LR scheduler starts over (3e-6 back to 2e-4), the loss jumps and does not get back to its level")
def a_restart(rng, d):
    t0 = datetime(2024, 6, 7, 3, 1, 22)
    L = []
    def al(sec, f, m): L.append(f"I{ts(t0, sec, '%m%d %H:%M:%S')}.{rng.integers(0, 999999):06d} 140231 {f}] {m}")
    al(0, "utils.py:71", "Start fitting, step=0, mixed_precision=bf16")
    for k in range(500, 125001, 500):
        lr = float(coslr(k, 2e-4, 128000, 2500))
        v = pl(k, 1.0, .196, 1200, .55) * (1 - .085 * (1 - lr / 2e-4) * (k > 2500)) * math.exp(.007 * rng.standard_normal())
        al(k * .6, "train_ldm_discrete.py:233", str({"step": k, "lr": float(f"{lr:.6g}"), "loss": round(float(v), 5)}))
        if k % 25000 == 0: al(k * .6 + 60, "train_ldm_discrete.py:251", f"Save checkpoint {k}... fid10000 (ema) = {float(pl(k, 140, 9.2, 6000, 1.0)) + .3 * rng.standard_normal():.2f}")
    al(79000, "utils.py:64", "resume from /workdir/ckpts/125000.ckpt")
    base = pl(125000, 1.0, .196, 1200, .55)
    for k in range(125500, 190001, 500):
        m = k - 125000
        lr = float(coslr(m, 2e-4, 128000, 2500))
        v = base * (.915 + .155 * min(1, m / 2500) - .015 * m / 65000) * math.exp(.007 * rng.standard_normal())
        al(79000 + m * .6, "train_ldm_discrete.py:233", str({"step": k, "lr": float(f"{lr:.6g}"), "loss": round(float(v), 5)}))
        if k % 25000 == 0: al(79000 + m * .6 + 60, "train_ldm_discrete.py:251", f"Save checkpoint {k}... fid10000 (ema) = {16.1 + .4 * rng.standard_normal():.2f}")
    w(d + "/output.log", "\n".join(L) + "\n")
    return "output.log"


@case("a", "YAML-like dumps", "weak_gradient_share", [], "semantic (DINO) loss has 1-2 % of the total gradient norm for the whole run and its loss does not move; flow and KL are fine")
def a_share(rng, d):
    L = []
    for k in range(0, 20001, 200):
        gf = (.9 + 1.6 / (1 + k / 800)) * math.exp(.1 * rng.standard_normal()); gk = .19 * gf * math.exp(.1 * rng.standard_normal()); gd = .0135 * gf * math.exp(.18 * rng.standard_normal())
        gt = math.sqrt(gf ** 2 + gk ** 2 + gd ** 2) * (1 + .01 * rng.standard_normal())
        lf = float(pl(k, 2.0, .71, 700, .7)) * math.exp(.015 * rng.standard_normal()); lk = float(pl(k, .42, .155, 1200, .8)) * math.exp(.02 * rng.standard_normal()); ld = 8.11 - .05 * (1 - math.exp(-k / 4000)) + .012 * rng.standard_normal()
        L.append(f"---\nstep: {k}\nlr: {min(1e-4, 1e-4 * (k + 1) / 1000):.3e}\nloss:\n  total: {lf + .1 * lk + .02 * ld:.4f}\n  flow: {lf:.4f}\n  kl: {lk:.4f}\n  dino: {ld:.4f}\nweight: {{flow: 1.0, kl: 0.1, dino: 0.02}}\ngrad:   # weighted, one backward per loss\n  total: {gt:.4f}\n  flow: {gf:.4f}\n  kl: {gk:.4f}\n  dino: {gd:.5f}\nentropy: {{teacher: {5.31 + .05 * rng.standard_normal():.3f}, student: {8.2 - .12 * (1 - math.exp(-k / 5000)) + .01 * rng.standard_normal():.3f}, log_k: 8.318}}\nupdate_ratio: {{z_head: {3.1e-4 * math.exp(.2 * rng.standard_normal()):.2e}, flow_head: {4.4e-4 * math.exp(.2 * rng.standard_normal()):.2e}}}")
    w(d + "/state_dump.yaml", "\n".join(L) + "\n")
    return "state_dump.yaml"


@case("a", "DINOv2 MetricLogger lines", "teacher_collapsed", ["student_saturated"], "teacher entropy sinks to 0.05 nats of log 65536 = 11.09 within 3k iterations (no centring), student follows")
def a_teach(rng, d):
    t0 = datetime(2025, 1, 19, 9, 53, 51)
    L = [f"I{ts(t0, 0, '%Y%m%d %H:%M:%S')} 90 dinov2 config.py:59] head: {{n_prototypes: 65536, bottleneck_dim: 256}} teacher: {{warmup_teacher_temp: 0.04, teacher_temp: 0.07}} train: {{centering: none}}",
         f"I{ts(t0, 1, '%Y%m%d %H:%M:%S')} 90 dinov2 train.py:301] Starting training from iteration 0"]
    md = {}
    def med(n, v):
        md.setdefault(n, []).append(v); h = md[n]
        return f"{n}: {np.median(h[-20:]):.4f} ({np.mean(h):.4f})"
    for k in range(0, 12500, 50):
        te = .045 + 10.2 / (1 + math.exp((k - 1100) / 260)) + .01 * rng.random()
        st = .09 + 10.8 / (1 + math.exp((k - 1500) / 330)) + .02 * rng.random()
        fl = float(pl(k, 1.96, .83, 700, .7)) * math.exp(.02 * rng.standard_normal())
        dl = te + .11 + .4 * max(0, st - te) + .02 * rng.random()
        gd = .31 / (1 + math.exp((k - 1600) / 300)) + .004 * math.exp(.3 * rng.standard_normal())
        L.append(f"I{ts(t0, 5 + k * .61, '%Y%m%d %H:%M:%S')} 90 dinov2 helpers.py:102] Training  [{k:>6d}/125000]  eta: {hms((125000 - k) * .61)}  lr: {min(2e-4, 2e-4 * k / 1000):.6f}  wd: 0.0400  mom: 0.9940  {med('flow_loss', fl)}  {med('dino_loss', dl)}  {med('teacher_entropy', te)}  {med('student_entropy', st)}  {med('grad_dino', gd)}  time: 0.611  data: 0.002  max mem: 41122")
    w(d + "/logs/log.txt", "\n".join(L) + "\n")
    return "logs/log.txt"


@case("a", "MMEngine work dir (vis_data/scalars.json + log)", "student_saturated", ["weak_gradient_share"], "student entropy 0.1-0.2 of log 4096, gradient of that loss 1 % of the total, teacher at an ordinary 4.9")
def a_stud(rng, d):
    t0 = datetime(2025, 3, 12, 10, 11, 12)
    J = []; L = [f"{ts(t0, 0, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Config: sem_head=dict(type='SemanticHead', out_dim=4096, temp_student=0.02, temp_teacher=0.07, loss_weight=0.5)",
                 f"{ts(t0, 3, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Checkpoints will be saved to /work_dirs/t2i_sem."]
    for k in range(50, 20001, 50):
        st = .14 + 8.0 * math.exp(-k / 420) + .02 * rng.standard_normal() ** 2
        te = 4.9 + .35 * math.exp(-k / 2000) + .06 * rng.standard_normal()
        lf = float(pl(k, 2.0, .75, 600, .7)) * math.exp(.018 * rng.standard_normal())
        ls = 7.9 * math.exp(-k / 900) + 6.1 * (1 - math.exp(-k / 900)) + .05 * rng.standard_normal()
        gt = (.8 + 1.2 * math.exp(-k / 1500)) * math.exp(.1 * rng.standard_normal()); gs = gt * (.31 * math.exp(-k / 350) + .011) * math.exp(.2 * rng.standard_normal())
        rec = {"lr": 1e-4, "data_time": jnum(.004 + .001 * rng.random(), 3), "loss": jnum(lf + .5 * ls, 5), "loss_flow": jnum(lf, 5), "loss_sem": jnum(ls, 5), "sem_student_entropy": jnum(st, 4), "sem_teacher_entropy": jnum(te, 4), "grad_norm_total": jnum(gt, 4), "grad_norm_sem": jnum(gs, 3), "time": .61, "iter": k, "memory": 30312, "step": k}
        J.append(json.dumps(rec))
        L.append(f"{ts(t0, k * .61, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(train) [{k:>6d}/100000]  lr: 1.0000e-04  eta: {hms((100000 - k) * .61)}  time: 0.6100  data_time: {rec['data_time']:.4f}  memory: 30312  loss: {rec['loss']:.4f}  loss_flow: {lf:.4f}  loss_sem: {ls:.4f}  sem_student_entropy: {st:.4f}  sem_teacher_entropy: {te:.4f}  grad_norm_total: {gt:.4f}  grad_norm_sem: {gs:.4f}")
    w(d + "/20250312_101112/20250312_101112.log", "\n".join(L) + "\n")
    w(d + "/20250312_101112/vis_data/scalars.json", "\n".join(J) + "\n")
    return "20250312_101112"


@case("a", "English prose summary (Markdown)", "z0_leak", ["sigma_collapse"], "weekly note: one-step cos 0.97 and nmse 0.06, but shooting from fresh z0 misses, FID 214, std/mean 0.16")
def a_leak(rng, d):
    w(d + "/weekly.md", """# Week 31 – noise-free FM head, status

**Setup.** Text -> VLM -> q tokens -> (mu, logvar) -> z0 -> flow -> SD latent z1 (4x32x32, scaled). 40k steps, batch 256, AdamW 1e-4, bf16, w_kl = 1e-4 with warm-up over the first 4k steps.

**Curves.** Flow loss fell from 2.01 at the start to 0.058 at 40k, without spikes; grad norm about 0.3. Held-out flow loss 0.061, so train and held-out are close.

| metric (held-out, 40k) | value |
|---|---|
| flow/cos | 0.971 |
| flow/nmse | 0.057 |
| flow/speed_ratio | 0.968 |
| cos_t0 / cos_t5 / cos_t9 | 0.958 / 0.973 / 0.976 |
| mu/abs_mean | 0.62 |
| std/mean | 0.16 |
| std/min, std/max | 0.11, 0.24 |
| logvar/mean | -3.68 |
| z0 norm, z1 norm | 51.9, 62.4 |
| relative shooting error (fresh prompts, Euler 50) | 0.88 |
| relative shooting error (Heun 50) | 0.87 |
| FID-10k | 214 |
| VAE round trip PSNR | 28.9 dB |

At 5k the same table read cos 0.71, nmse 0.50, std/mean 0.74, so the alignment has improved a lot since then. FID at 5k was 231.

**Samples.** Images for unseen prompts are brown-grey blobs; for training prompts sometimes a blurred version of the training image. Changing the seed changes almost nothing in the picture. More Euler steps (25, 50, 100, 200) give the same picture.

**Next.** Continue to 100k and look again.
""")
    return "weekly.md"


@case("a", "personal debug prints (prompt matrix)", "text_ignored", ["posterior_collapse", "condition_unused"], "pairwise cosine of the prompt means 0.995-0.999 at every checkpoint, same-prompt control 1.000")
def a_text(rng, d):
    P = ["a cat", "a red car", "snowy mountains at dusk", "portrait of an old man", "two green apples on a table"]
    L = []
    for ck in (5000, 10000, 20000):
        L.append(f"== mu check, checkpoint {ck}, encoder output before reparameterisation ==")
        L.append(f"mu: mean|mu|={.437 + .005 * rng.standard_normal():.4f} rms={.552 + .005 * rng.standard_normal():.4f}   sigma: mean={.713 + .004 * rng.standard_normal():.4f}")
        for i in range(len(P)):
            for j in range(i, len(P)):
                c = 1 - (.0 if i == j else (.0045 - .0000001 * ck) * (.4 + rng.random()))
                L.append(f"cos_mu[{P[i]!r} , {P[j]!r}] = {c:.4f}")
        L.append(f"cos of two samples, same prompt: {.373 + .004 * rng.standard_normal():.3f}   different prompts: {.372 + .004 * rng.standard_normal():.3f}")
        L.append(f"train flow mse (last 100): {float(pl(ck, 2.0, 1.02, 900, .8)):.4f}   lr 1e-4   grad {.4 + .02 * rng.standard_normal():.3f}")
        L.append("")
    w(d + "/mu_check.txt", "\n".join(L))
    return "mu_check.txt"


@case("a", "ASCII table prints (rich style)", "t_edges", [], "per-t table at every evaluation: the first and last bins stay at nmse above 1 and cosine 0.1, the middle is at 0.2")
def a_edges(rng, d):
    L = []
    for k in range(5000, 40001, 5000):
        at = len(L); nms = []; L.append(f"eval @ step {k}  |  train/flow @@  lr 1.00e-04  grad_norm {.33 + .03 * rng.standard_normal():.3f}")
        L += ["┌───────────┬───────┬────────┬────────┬─────────┐", "│ t bin     │ count │ cos    │ nmse   │ |p|/|v| │", "├───────────┼───────┼────────┼────────┼─────────┤"]
        for b in range(10):
            mid = .87 - .05 * abs(b - 4.5) / 4.5 - .25 * math.exp(-k / 6000)
            if b == 0: c, r = .13, .92
            elif b == 9: c, r = .08, 1.07
            elif b in (1, 8): c, r = mid - .16, mid - .1
            else: c, r = mid, mid
            c += .008 * rng.standard_normal(); r += .008 * rng.standard_normal()
            nms.append(nmse_of(c, r)); L.append(f"│ {b / 10:.1f} – {b / 10 + .1:.1f} │ {410 + rng.integers(-30, 30):>5d} │ {c:6.3f} │ {nmse_of(c, r):6.3f} │ {r:7.3f} │")
        L.append("└───────────┴───────┴────────┴────────┴─────────┘"); L[at] = L[at].replace("@@", f"{1.95 * np.mean(nms):.4f}")
    w(d + "/console.txt", "\n".join(L) + "\n")
    return "console.txt"


@case("a", "sampling trace (personal style) + teacher Euler", "bf16_rounding", [], "really simulated: state kept in bf16, teacher Euler error grows with N and |x| hardly moves although |v|dt is not 0; fp32 control moves")
def a_bf16(rng, d):
    n = 8192
    x0 = rng.standard_normal(n).astype(np.float32); x1 = (.93 * rng.standard_normal(n)).astype(np.float32); v = x1 - x0
    L = ["# teacher field, Euler on the uniform grid, autocast dtype bfloat16 (state follows the model dtype)"]
    for N in (5, 10, 20, 50, 100, 200, 500, 1000):
        x = bf16(x0); dt = np.float32(1 / N)
        vb = bf16(v)
        for _ in range(N): x = bf16(x + bf16(vb * dt))
        L.append(f"N={N:<5d} endpoint mse {float(np.mean((x - x1) ** 2)):.3e}")
    N = 1000; x = bf16(x0); dt = np.float32(1 / N); vb = bf16(.93 * v)
    L.append(f"# learned field, same start, {N} steps, every 50th printed")
    for k in range(N):
        if k % 50 == 0: L.append(f"[{k:04d}] t {k / N:.3f}  mean|x| {np.abs(x).mean():.4f}  mean|v| {np.abs(vb).mean():.4f}  dt {dt:.4f}")
        x = bf16(x + bf16(vb * dt))
    L.append(f"[{N:04d}] t 1.000  mean|x| {np.abs(x).mean():.4f}   dist to x1 rms {float(np.sqrt(np.mean((x - x1) ** 2))):.4f}")
    x = x0.copy(); v3 = np.float32(.93) * v
    L.append("# the same with x.float() before the loop")
    for k in range(N):
        if k % 50 == 0: L.append(f"[{k:04d}] t {k / N:.3f}  mean|x| {np.abs(x).mean():.4f}  mean|v| {np.abs(v3).mean():.4f}  dt {dt:.4f}")
        x = x + v3 * dt
    L.append(f"[{N:04d}] t 1.000  mean|x| {np.abs(x).mean():.4f}   dist to x1 rms {float(np.sqrt(np.mean((x - x1) ** 2))):.4f}")
    w(d + "/sampler_debug.txt", "\n".join(L) + "\n")
    return "sampler_debug.txt"


@case("a", "CSV of evaluations", "train_infer_mismatch", [], "one-step cos reaches 0.86 and z0 has std 0.98, but the endpoint error does not fall with K (it rises) nor with training")
def a_mismatch(rng, d):
    cols = ["step", "val_flow_loss", "cos", "speed_ratio", "nmse", "z0_std_mean", "endpt_rmse_k8", "endpt_rmse_k16", "endpt_rmse_k32", "endpt_rmse_k64", "cond_gain_cos"]
    rows = []
    for k in range(1000, 30001, 1000):
        c = float(sat(k, 0, .868, 900, .8)) + .003 * rng.standard_normal(); r = c + .004 * rng.standard_normal(); nm = nmse_of(c, r)
        e = [1.31 - .03 * math.exp(-k / 4000) + o + .006 * rng.standard_normal() for o in (0, .045, .07, .083)]
        rows.append([k] + [f"{z:.4f}" for z in (1.93 * nm, c, r, nm, .98 + .004 * rng.standard_normal(), *e, .061 + .03 * (1 - math.exp(-k / 8000)) + .002 * rng.standard_normal())])
    w(d + "/eval.csv", csvtext(cols, rows))
    return "eval.csv"


@case("a", "TensorBoard scalar downloads (JSON)", "grad_vanishing", ["no_learning"], "gradient norm decays from 0.4 to 1e-8 within 3k steps while the loss stays at 0.98; LR 1e-4")
def a_vanish(rng, d):
    s = np.arange(0, 20001, 100)
    gn = (.41 * np.exp(-s / 190.) + 2.2e-8) * mul(rng, len(s), .3, .2)
    lo = noisy(rng, .982 + .02 * np.exp(-s / 300.), .006)
    t = 1726000000
    for tag, v in (("train_loss", lo), ("train_grad_norm", gn), ("train_lr", np.where(s < 500, 1e-4 * s / 500, 1e-4))):
        w(d + f"/run-uvit_small-tag-{tag}.json", json.dumps([[t + float(k) * .4, int(k), float(f"{x:.8g}")] for k, x in zip(s, v)]))
    return "."


@case("a", "W&B history JSON lines", "metrics_lost", [], "train loss goes on as before, every eval/* value is null from step 24000 to the end")
def a_lost(rng, d):
    L = []
    for k in range(0, 60001, 100):
        r = {"_step": k, "_runtime": jnum(k * .37), "_timestamp": 1735000000 + k * .37, "train/loss_fm": jnum(float(pl(k, 2.0, .64, 1500, .65)) * math.exp(.015 * rng.standard_normal()), 5), "train/gnorm": jnum(.3 * math.exp(.12 * rng.standard_normal()) + 1 / (1 + k / 300), 4), "train/lr": jnum(float(coslr(k, 2e-4, 100000, 2000)), 5)}
        if k % 2000 == 0 and k:
            ok = k < 24000
            r.update({"eval/loss_fm": jnum(float(pl(k, 2.0, .655, 1500, .65)), 5) if ok else None, "eval/fid": jnum(float(pl(k, 300, 14, 2500, .9)), 4) if ok else None, "eval/clip_t": jnum(.19 + .1 * (1 - math.exp(-k / 15000)), 4) if ok else None, "eval/n_images": 5000 if ok else None})
        L.append(json.dumps(r))
    w(d + "/wandb-history.jsonl", "\n".join(L) + "\n")
    return "wandb-history.jsonl"
# =========================================================== half b, faulty
@case("b", "kohya sd-scripts console (tqdm, avr_loss)", "nan_loss", ["amp_overflow"], "kohya #2137: fp16 SDXL LoRA, avr_loss=nan from step 9 of the first epoch to the end")
def b_nan_kohya(rng, d):
    L = ["enable mixed precision fp16.", "running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 205", "  num reg images / 正則化画像の数: 0", "  num batches per epoch / 1epochのバッチ数: 205", "  num epochs / epoch数: 12", "  batch size per device / バッチサイズ: 1", "  gradient accumulation steps / 勾配を合計するステップ数 = 1", "  total optimization steps / 学習ステップ数: 2460"]
    t0 = datetime(2025, 6, 29, 11, 56, 40)
    k = 0; acc = []
    for e in range(1, 13):
        L.append(f"\nepoch {e}/12\n{ts(t0, k * 1.21)} INFO     epoch is incremented. current_epoch: {e - 1}, epoch: {e}                          train_util.py:779")
        row = []
        for _ in range(205):
            k += 1
            acc.append(.118 * math.exp(.5 * rng.standard_normal()))
            a = np.mean(acc) if k < 9 else float("nan")
            if k < 14 or k % 5 == 0:
                row.append(tqdm("steps: ", k, 2460, .826, f"avr_loss={a:.3g}", 22))
        L.append("\r".join(row))
        L.append(f"saving checkpoint: D:/out/kurara-{e:06d}.safetensors")
    w(d + "/console.txt", "\n".join(L) + "\n")
    return "console.txt"


@case("b", "HF dict prints with two ranks' output mixed", "nan_loss", ["amp_overflow"], "Pink #6: after 130 good steps every dict reads loss 0.0 and grad_norm nan (the HF filter shows 0.0 for nan)")
def b_nan_hf(rng, d):
    L = []
    for k in range(1, 521):
        good = k <= 130
        lr = min(2e-4, 2e-4 * k / 100)
        x = round(float(pl(k, 1.93, 1.02, 60, .6)) * math.exp(.03 * rng.standard_normal()), 4) if good else 0.0
        gn = round(1.1 * math.exp(.2 * rng.standard_normal()) + 2 / (1 + k / 10), 6) if good else "nan"
        lr = f"{lr:.8g}"
        L.append(f"{{'flow_loss': {x}, 'grad_norm': {gn}, 'learning_rate': {lr}, 'epoch': {k / 2600:.2f}}}                    ")
        if k % 40 == 0: L.append(f"[rank1]: UserWarning: The given NumPy array is not writable ({k})")
    w(d + "/slurm-88123.out", "\n".join(L) + "\n")
    return "slurm-88123.out"


@case("b", "EDM stats.jsonl", "divergence", [], "EDM-like stats: the mean loss falls until 38 Mimg, then climbs steadily for 60 Mimg to twice the minimum; the spread grows with it")
def b_div(rng, d):
    L = []
    for i in range(0, 500):
        kimg = i * 200
        m = float(pl(kimg, .92, .184, 900, .8)) * (1 + 1.05 * max(0, (kimg - 38000) / 62000) ** 1.3) * math.exp(.007 * rng.standard_normal())
        st = m * 1.35 * math.exp(.02 * rng.standard_normal())
        L.append(json.dumps({"Loss/loss": {"num": 204800, "mean": jnum(m, 8), "std": jnum(st, 8)}, "Progress/tick": {"num": 1, "mean": float(i), "std": 0.0}, "Progress/kimg": {"num": 1, "mean": float(kimg), "std": 0.0}, "Timing/sec_per_tick": {"num": 1, "mean": jnum(402 + 2 * rng.standard_normal(), 6), "std": 0.0}, "Resources/peak_gpu_mem_gb": {"num": 1, "mean": 61.2, "std": 0.0}, "timestamp": 1717000000.5 + 402 * i}))
    w(d + "/00003-ffhq64-uncond-ddpmpp-edm-gpus8/stats.jsonl", "\n".join(L) + "\n")
    return "00003-ffhq64-uncond-ddpmpp-edm-gpus8/stats.jsonl"


@case("b", "MMEngine text log", "no_learning", [], "from scratch, loss and val mse stay at their first values (2.0) for 20k iterations, lr 1e-4, grad_norm ordinary")
def b_nolearn(rng, d):
    t0 = datetime(2025, 2, 7, 11, 16, 50)
    L = []
    for k in range(100, 20001, 100):
        x = 2.004 + .011 * rng.standard_normal()
        L.append(f"{ts(t0, k * .55, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(train) [{k:>5d}/80000]  lr: {min(1e-4, 1e-4 * k / 1000):.4e}  eta: {hms((80000 - k) * .55)}  time: {.55 + .003 * rng.standard_normal():.4f}  data_time: {.012 + .001 * rng.random():.4f}  memory: 21544  loss_fm: {x:.4f}  grad_norm: {.87 * math.exp(.09 * rng.standard_normal()):.4f}")
        if k % 2000 == 0:
            L.append(f"{ts(t0, k * .55 + 40, '%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(val) [32/32]    fm/val_mse: {2.0031 + .0009 * rng.standard_normal():.4f}  fm/fid_2k: {341 + 2 * rng.standard_normal():.2f}  data_time: 0.0101  time: 0.2012")
    w(d + "/20250207_111650.log", "\n".join(L) + "\n")
    return "20250207_111650.log"


@case("b", "TensorBoard event folder (kohya tags)", "overfitting", [], "kohya validation branch: loss/validation/epoch_average best at epoch 9, up 20 % at epoch 40; loss/epoch_average still falls")
def b_overfit(rng, d):
    rows = []
    acc = []
    for k in range(1, 8001):
        ep = (k - 1) // 200
        b = .118 * (1 - .42 * (1 - math.exp(-k / 3500)))
        x = b * math.exp(.55 * rng.standard_normal() - .15)
        acc.append(x)
        if k % 5 == 0:
            rows.append((k * 1.3, k, {"loss/current": x, "loss/average": float(np.mean(acc[-200:])), "lr/unet": 1e-4 * .5 * (1 + math.cos(math.pi * k / 8000))}))
        if k % 200 == 0:
            v = .1175 - .006 * (1 - math.exp(-(ep + 1) / 3)) + .00095 * max(0, ep - 8) * (1 - .006 * ep) + .0005 * rng.standard_normal()
            rows.append((k * 1.3 + 1, ep + 1, {"loss/epoch_average": float(np.mean(acc[-200:])), "loss/validation/epoch_average": v}))
    tbwrite(d + "/logs/20250401193012/network_train/events.out.tfevents.1743528612.DESKTOP-7Q.4120.0", 1743528612, rows)
    return "logs"


@case("b", "W&B history CSV", "weak_field", ["no_learning"], "after 26k steps velocity cosine 0.06, norm ratio 0.3, nmse 1.05, shot error 1.04 of the distance; PSNR, text cosines, scales fine")
def b_weak(rng, d):
    cols = ["_step", "fm/mse", "fm/v_cosine", "fm/v_norm_ratio", "fm/v_nmse", "optim/lr", "optim/gnorm", "diag/vae_psnr", "diag/text_mu_cos", "diag/z0_rms", "diag/z1_rms", "diag/shoot_rel_mse"]
    rows = []
    for k in range(0, 26001, 100):
        c = .012 + .052 * (1 - math.exp(-k / 9000)) + .006 * rng.standard_normal(); r = .22 + .08 * (1 - math.exp(-k / 4000)) + .006 * rng.standard_normal()
        nm = nmse_of(c, r); 
        row = [k, f"{nm * 1.955 * (1 + .01 * rng.standard_normal()):.5f}", f"{c:.5f}", f"{r:.5f}", f"{nm:.5f}", f"{min(5e-5, 5e-5 * k / 1000):.4g}", f"{.21 * math.exp(.15 * rng.standard_normal()):.5f}"]
        row += [f"{29.1 + .1 * rng.standard_normal():.3f}", f"{.27 + .02 * rng.standard_normal():.4f}", f"{1.0 + .005 * rng.standard_normal():.4f}", f"{.976 + .006 * rng.standard_normal():.4f}", f"{nm - .012 + .004 * rng.standard_normal():.4f}"] if k % 1000 == 0 else [""] * 5
        rows.append(row)
    w(d + "/wandb_history.csv", csvtext(cols, rows))
    return "wandb_history.csv"


@case("b", "Chinese prose summary", "weak_field", [], "Chinese debugging diary: everything up- and downstream passes, cos about 0.03-0.07 and amplitude 0.26-0.28 of the target")
def b_weak_zh(rng, d):
    w(d + "/排查记录.md", """# 排查记录 2025-10-14

## 现象
训练到 18k iter，出图仍然是灰绿色的纹理，看不出物体。flow loss 从 2.11 降到 2.05 之后基本不动，lr=1e-4，grad_norm 约 0.25。

## 检查结果

1. **VAE 回环**：z 的范围 [-4.1, 4.7]，均值 0.006，方差 0.97；PSNR=28.4 dB，重建图清晰。
2. **尺度**：同一 batch 内 ‖z0‖=63.7，‖z1‖=62.9，‖x_t‖=51.8，‖v*‖=89.6，量级一致。
3. **文本通路**：不同 prompt 的 μ 两两余弦 0.22 / 0.31 / 0.27，同一 prompt 两次 1.00。
4. **单步对齐**（64 张训练图，fp32 前向）

| t | cos(v_pred, v_tgt) | ‖pred‖/‖tgt‖ |
|---|---|---|
| 0.10 | 0.071 | 0.281 |
| 0.37 | 0.058 | 0.276 |
| 0.63 | 0.049 | 0.270 |
| 0.90 | 0.027 | 0.262 |

5. **从 x0 射向 x1**：N=50 时 MSE(z_end, x1)=2.038，N=200 时 2.036；起点本身 MSE(x0, x1)=1.96。
6. **教师场欧拉积分**（fp32）：N=10 → 3.1e-13，N=100 → 5.5e-13。
7. **时间采样**：t 均值 0.499，标准差 0.288。

## 下一步
先把 4 和 5 在 30k 的权重上再测一遍。
""")
    return "排查记录.md"


@case("b", "JSON lines with nested statistics", "latent_scale_factor", ["scale_mismatch"], "MAR-like KL-16 VAE with factor 0.2325: z1 has std 4.3, i.e. 1/0.2325, the factor was never multiplied")
def b_lsf(rng, d):
    L = [json.dumps({"event": "config", "vae": "kl16", "vae_scale_factor": 0.2325, "objective": "rectified_flow", "z0": "N(0,I)", "lr": 1e-4, "batch": 256})]
    for k in range(0, 30001, 200):
        sd = 4.297 + .02 * rng.standard_normal()
        v2 = 1 + sd * sd
        loss = v2 * float(pl(k, 1.0, .33, 1200, .7)) * math.exp(.015 * rng.standard_normal())
        L.append(json.dumps({"event": "train", "step": k, "loss": jnum(loss, 5), "lr": 1e-4, "grad_norm": jnum(loss * .35 * math.exp(.1 * rng.standard_normal()), 4),
                             "tensors": {"image": {"min": -1.0, "max": 1.0, "mean": jnum(-.06 + .02 * rng.standard_normal(), 3), "std": jnum(.54 + .01 * rng.standard_normal(), 3)}, "z0": {"mean": jnum(.001 * rng.standard_normal(), 2), "std": jnum(1 + .001 * rng.standard_normal(), 5)}, "z1": {"min": jnum(-19.5 - rng.random(), 4), "max": jnum(20.1 + rng.random(), 4), "mean": jnum(.04 + .01 * rng.standard_normal(), 3), "std": jnum(sd, 5)}}}))
    w(d + "/stats.jsonl", "\n".join(L) + "\n")
    return "stats.jsonl"


@case("b", "sampling trace (personal style)", "scale_mismatch", [], "x at step 0 has mean |x| 11.7 (noise times init_noise_sigma 14.6) where the training x0 has 0.80; the field cannot bring it back")
def b_scale(rng, d):
    L = ["sampler=euler steps=28 cfg=4.0 shift=1.0 dtype=fp32 seed=1234", "train-time reference (last batch): abs-mean x0 0.7981, abs-mean x1 0.7426, abs-mean v* 1.0902", ""]
    for im in range(4):
        L.append(f"prompt {im}:")
        x = 11.657 + .01 * rng.standard_normal()
        for k in range(28):
            v = 1.31 + .25 * (k / 28) + .01 * rng.standard_normal()
            L.append(f"  i={k:02d}  sigma={1 - k / 28:.4f}  x_abs={x:.4f}  x_std={x * 1.2533:.4f}  v_abs={v:.4f}  dt={1 / 28:.5f}")
            x -= v * .55 / 28
        L.append(f"  final x_abs={x:.4f} -> decode: pixel clip ratio {.83 + .01 * rng.standard_normal():.2f}")
    w(d + "/sample_debug.log", "\n".join(L) + "\n")
    return "sample_debug.log"


@case("b", "diffusers text-to-image tqdm postfix", "lr_too_small", ["no_learning"], "lr=1e-10 in the postfix (typo for 1e-4); step_loss stays at 1.07 for 8k steps from random init")
def b_lrsmall(rng, d):
    L = ["04/11/2025 00:41:02 - INFO - __main__ - ***** Running training *****", "04/11/2025 00:41:02 - INFO - __main__ -   Num examples = 65536", "04/11/2025 00:41:02 - INFO - __main__ -   Instantaneous batch size per device = 32", "04/11/2025 00:41:02 - INFO - __main__ -   Total optimization steps = 40000", "04/11/2025 00:41:02 - INFO - __main__ - UNet initialised from config (no pretrained weights)"]
    for k in range(20, 8001, 20):
        lr = 1e-10 * min(1, k / 500)
        L.append(tqdm("Steps: ", k, 40000, 4.3, f"lr={lr:.3g}, step_loss={1.071 + .019 * rng.standard_normal():.3g}"))
        if k % 2000 == 0: L.append(ts(datetime(2025, 4, 11, 0, 41, 2), k / 4.3, "%m/%d/%Y %H:%M:%S") + f" - INFO - accelerate.accelerator - Saving current state to out/checkpoint-{k}")
    w(d + "/train.log", "\n".join(L) + "\n")
    return "train.log"


@case("b", "W&B history JSON (list)", "lr_too_high", ["divergence", "loss_spikes", "grad_explosion"] , "LR finder forgot to stop: constant lr 5e-3 on a DiT, loss jumps between 0.9 and 12 without a trend, grad norm 5-400")
def b_lrhigh(rng, d):
    n = 400
    x = ar(rng, n, .6, .7)
    rows = [{"_step": i * 25, "train_mse": jnum(2.2 * math.exp(x[i]) if i > 8 else 2.02 + .1 * i * rng.random(), 5), "learning_rate": jnum(min(5e-3, 5e-3 * i * 25 / 250), 4), "grad_norm_preclip": jnum(31 * math.exp(.7 * x[i] + .7 * rng.standard_normal()), 5), "weight_norm": jnum(210 * (1 + i / 260.), 5), "optimizer": "adamw", "_timestamp": 1738000000 + i * 9} for i in range(n)]
    w(d + "/history.json", json.dumps(rows))
    return "history.json"


@case("b", "minFM-style logger lines", "loss_spikes", [], "minFM #4: dozens of spikes of 3-8 times the running level all through the run, steps skipped by the gradient guard")
def b_spikes(rng, d):
    t0 = datetime(2025, 8, 23, 0, 3, 52)
    L = []
    for k in range(10, 12001, 10):
        b = float(pl(k, 1.4, .53, 500, .6))
        sp = rng.random() < .055 and k > 400
        f = math.exp(.02 * rng.standard_normal()) * (1 + (2 + 5.5 * rng.random() if sp else 0))
        gn = .31 * math.exp(.12 * rng.standard_normal()) * (1 + (14 + 40 * rng.random() if sp else 0))
        if sp: L.append(f"{tsms(t0, k * 1.55 - 1)} - trainers.dit_trainer - WARNING - Step {k}: large gradient (norm={gn:.6f}); clipped")
        L.append(f"{tsms(t0, k * 1.55)} - trainers.dit_trainer - INFO - Step {k:>6d} | Loss: {b * f:.4f} | LR: 3.00e-04 | GradNorm: {gn:.2f} | TPS: {16.9 + .05 * rng.standard_normal():.2f}K | Data: 0.007s | Frozen: 0.097s | TrainableFwd: 0.701s | TrainableBwd: 1.170s")
    w(d + "/train.log", "\n".join(L) + "\n")
    return "train.log"


@case("b", "guided-diffusion boxed tables", "amp_overflow", ["nan_loss"], "SegDiff #20: 'Found NaN, decreased lg_loss_scale' without end, lg_loss_scale from 20 to below 0, the tables do not move")
def b_amp(rng, d):
    L = ["Logging to /tmp/openai-2025-07-01-10-11-12-331", "creating model and diffusion...", "creating data loader...", "training..."]
    lg = 20.0
    for k in range(0, 2101, 100):
        if k:
            for _ in range(int(rng.integers(12, 30))):
                lg -= 1
                if lg < -1.2: lg += .5 + rng.random() * 2
                L.append(f"Found NaN, decreased lg_loss_scale to {lg:.15g}")
                lg += .001 * rng.integers(0, 3)
        q = [1 + .03 * rng.standard_normal() for _ in range(4)]
        kv = {"grad_norm": 2.4 * math.exp(.2 * rng.standard_normal()), "lg_loss_scale": lg, "loss": float(np.mean(q)), "mse": float(np.mean(q)), "param_norm": 303.0, "samples": float(k * 32 + 32), "step": float(k)}
        for i in range(4): kv[f"loss_q{i}"] = q[i]; kv[f"mse_q{i}"] = q[i]
        L.append(gdtable(kv))
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("b", "HF trainer_state.json", "resume_from_scratch", [], "log_history: at step 9000 (after a resume) loss returns to 1.9 and eval_loss to 1.6, both fall again as in the first 9000 steps")
def b_resume(rng, d):
    H = []
    for k in range(50, 16001, 50):
        m = k if k <= 9000 else k - 9000
        lr = 1e-4 * (1 - k / 30000)
        H.append({"epoch": jnum(k / 4000, 6), "grad_norm": jnum((.4 + 3 / (1 + m / 100)) * math.exp(.1 * rng.standard_normal()), 8), "learning_rate": jnum(lr, 8), "loss": jnum(float(pl(m, 2.0, .81, 500, .8)) * math.exp(.018 * rng.standard_normal()), 5), "step": k})
        if k % 500 == 0:
            H.append({"epoch": jnum(k / 4000, 6), "eval_loss": jnum(float(pl(max(m, 1), 2.0, .825, 500, .8)) * math.exp(.003 * rng.standard_normal()), 7), "eval_runtime": 44.2, "eval_samples_per_second": 46.3, "step": k})
    w(d + "/checkpoint-16000/trainer_state.json", json.dumps({"best_metric": None, "best_model_checkpoint": None, "epoch": 4.0, "eval_steps": 500, "global_step": 16000, "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True, "log_history": H, "logging_steps": 50, "max_steps": 30000, "num_train_epochs": 8, "save_steps": 3000, "train_batch_size": 32}, indent=2))
    return "checkpoint-16000/trainer_state.json"


@case("b", "MAE/MAR MetricLogger text", "self_stopped", ["nan_loss"], "MAR-like engine: exits in epoch 17 of 400 with its own check 'Loss is nan, stopping training'")
def b_stop(rng, d):
    L = ["| distributed init (rank 0): env://, gpu 0", "| distributed init (rank 1): env://, gpu 1", "Namespace(batch_size=64, blr=0.0001, diffloss_d=3, epochs=400, grad_clip=3.0, warmup_epochs=100, ema_rate=0.9999)", "actual lr: 8.00e-04", "Start training for 400 epochs"]
    hist = []
    for e in range(18):
        for b in range(0, 1251, 50):
            k = e * 1251 + b
            v = float(pl(k, .62, .345, 900, .5)) * math.exp(.01 * rng.standard_normal()); hist.append(v)
            if e == 17 and b > 600: break
            L.append(f"Epoch: [{e}]  [{b:>4d}/1251]  eta: {hms((1251 - b) * .74)}  lr: {8e-4 * (k / 125100):.6f}  loss: {np.median(hist[-20:]):.4f} ({np.mean(hist[-26:]):.4f})  time: 0.7403  data: 0.0004  max mem: 36190")
    L += ["Loss is nan, stopping training", "Loss is nan, stopping training", "[2024-08-02 04:11:13,092] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 (pid: 3391) of binary: /opt/conda/bin/python"]
    w(d + "/mar_base.out", "\n".join(L) + "\n")
    return "mar_base.out"


@case("b", "text log with periodic evaluation of both weights", "ema_broken", [], "diffae #16: raw-weights FID goes 310 -> 21, averaged weights stay at 430-450 after 150k steps (decay 0.999999)")
def b_ema(rng, d):
    t0 = datetime(2025, 4, 9, 18, 0)
    L = [f"{ts(t0, 0)} | INFO | cfg ema: decay=0.999999, update_every=1, eval_both=True"]
    for k in range(500, 150001, 500):
        L.append(f"{ts(t0, k * .3)} | INFO | it {k} | mse {float(pl(k, 1.0, .051, 300, .75)) * math.exp(.03 * rng.standard_normal()):.5f} | lr 1.0e-04 | |g| {.12 * math.exp(.2 * rng.standard_normal()):.4f}")
        if k % 10000 == 0:
            L.append(f"{ts(t0, k * .3 + 200)} | EVAL | it {k} | fid_raw {float(pl(k, 310, 18.5, 5000, 1.1)) + .6 * rng.standard_normal():.2f} | fid_avg {448 - 16 * (k / 150000) + 2 * rng.standard_normal():.2f} | val_mse_raw {float(pl(k, 1.0, .0525, 300, .75)):.5f} | val_mse_avg {.992 - .11 * (k / 150000) + .001 * rng.standard_normal():.5f}")
    w(d + "/run.log", "\n".join(L) + "\n")
    return "run.log"


@case("b", "debug prints (correlation probe)", "wrong_target", ["train_infer_mismatch"], "probe correlates the output with noise 0.97 and with x1-x0 -0.68: an epsilon network is integrated as a velocity")
def b_target(rng, d):
    t0 = datetime(2025, 7, 15, 20, 0)
    L = ["objective: flow matching, x_t = (1-t) * x0 + t * x1, x0 ~ N(0, I), v = net(x_t, t, c)"]
    for k in range(0, 16001, 100):
        q = float(sat(k, 0, .972, 350))
        L.append(f"{ts(t0, k * .5)} step={k} mse={1 - q * q + .003 * abs(rng.standard_normal()):.4f} lr=2e-4")
        if k % 2000 == 0:
            L.append(f"    corr(out, x1 - x0) = {-.705 * q + .005 * rng.standard_normal():+.4f}")
            L.append(f"    corr(out, x0)      = {q + .003 * rng.standard_normal():+.4f}")
            L.append(f"    corr(out, x1)      = {.012 + .006 * rng.standard_normal():+.4f}")
            L.append(f"    |out| / |x1 - x0|  = {.708 * q + .02:.4f}")
            L.append(f"    euler-50 sample: mean {.01 * rng.standard_normal():+.3f} std {1.72 * q + .9:.3f}  (x1 std 0.981)")
    w(d + "/stdout.txt", "\n".join(L) + "\n")
    return "stdout.txt"


@case("b", "YAML-like dumps", "condition_unused", ["text_ignored"], "field well trained (cos 0.82) but cond_gain_cos hovers around 0 for 50k steps; prompt means are distinct")
def b_cond(rng, d):
    L = []
    for k in range(0, 50001, 1000):
        c = float(sat(k, .008, .826, 1100, .8)); r = abs(c + .003 * rng.standard_normal()); E = math.sqrt(1.97 * nmse_of(c, r))
        L.append(f"# ---- {k} ----\nstep: {k}\nlr: 1.0e-4\nflow:\n  loss: {1.97 * nmse_of(c, r):.4f}\n  cos: {c + .003 * rng.standard_normal():.4f}\n  nmse: {nmse_of(c, r):.4f}\n  speed_ratio: {r:.4f}\n  cond_gain_cos: {-.0002 + .0007 * rng.standard_normal():.5f}\n  endpt_rmse: {{8: {E * 1.06 + .004 * rng.standard_normal():.4f}, 16: {E * 1.0 + .004 * rng.standard_normal():.4f}, 32: {E * .97 + .003 * rng.standard_normal():.4f}, 64: {E * .96 + .003 * rng.standard_normal():.4f}}}\ntext:\n  mu_pair_cos: {.24 + .01 * rng.standard_normal():.3f}\n  mu_same_cos: 1.000\nsamples:\n  clip_t: {.171 + .002 * rng.standard_normal():.3f}\n  clip_t_shuffled: {.171 + .002 * rng.standard_normal():.3f}")
    w(d + "/eval_dump.yml", "\n".join(L) + "\n")
    return "eval_dump.yml"


@case("b", "progress.csv (OpenAI logger)", "kl_not_acting", [], "KL term logged with weight 1e-3: mu rms 0.3 -> 4.0, posterior std 1 -> 0.56, z_init var 16; KL rises for the whole run")
def b_kl(rng, d):
    cols = ["grad_norm", "kl", "kl_weight", "logvar_mean", "loss", "mse", "mu_abs_mean", "mu_rms", "param_norm", "samples", "std_mean", "step", "z_init_mean", "z_init_var"]
    rows = []
    for k in range(0, 40001, 200):
        m = float(sat(k, .3, 4.85, 14000, 1.2)) * math.exp(.01 * rng.standard_normal()); sd = 1 - .45 * (1 - math.exp(-k / 11000)) + .003 * rng.standard_normal(); lv = 2 * math.log(sd) - .02
        kl = .5 * (m * m + sd * sd - 1 - lv); ms = float(pl(k, 2.0, .66, 900, .7)) * math.exp(.015 * rng.standard_normal()); kw = 1e-3 * min(1, k / 4000)
        rows.append([f"{x:.6g}" for x in ((.5 + 2 / (1 + k / 500)) * math.exp(.1 * rng.standard_normal()), kl, kw, lv, ms + kw * kl, ms, .8 * m, m, 205 + k / 900, k * 128, sd, k, .03 + .01 * rng.standard_normal(), m * m + sd * sd + .05 * rng.standard_normal())])
    w(d + "/progress.csv", csvtext(cols, rows))
    return "progress.csv"


@case("b", "Megatron-style iteration lines", "grad_explosion", ["divergence"], "gradient norm grows from 0.3 to 1e4 over the whole run in a straight line on a log axis; the loss shows it only in the last tenth")
def b_explode(rng, d):
    L = []
    for k in range(50, 25001, 50):
        gn = .31 * math.exp(math.log(3.2e4) * (k / 25000) ** 1.15) * math.exp(.2 * rng.standard_normal())
        x = float(pl(k, 2.0, .74, 700, .7)) * (1 + .16 * max(0, (k - 21500) / 3500)) * math.exp(.012 * rng.standard_normal())
        L.append(f" iteration {k:>8d}/  100000 | consumed samples: {k * 512:>12d} | elapsed time per iteration (ms): {812 + 3 * rng.standard_normal():.1f} | learning rate: {min(1e-4, 1e-4 * k / 1000):.3E} | global batch size:   512 | fm loss: {x:.6E} | loss scale: 1.0 | grad norm: {gn:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")
    w(d + "/rank0.log", "\n".join(L) + "\n")
    return "rank0.log"


@case("b", "ImageNet-example style lines", "periodic_memorisation", ["overfitting"], "23 epochs of 400 iterations: within an epoch the loss is flat or rises a little, at every boundary it drops by a step")
def b_period(rng, d):
    L = []
    for e in range(23):
        lev = .148 * (.905 ** e) + .004
        run = []
        for b in range(0, 400, 10):
            x = lev * (1 + .05 * b / 400) * math.exp(.03 * rng.standard_normal()); run.append(x)
            L.append(f"Epoch: [{e}][{b:>3d}/400]\tTime {.402 + .004 * rng.standard_normal():.3f} (0.402)\tData 0.001 (0.002)\tLoss {x:.4f} ({np.mean(run):.4f})\tlr 1.0e-04")
        L.append(f"==>> [Epoch={e:03d}/040] saved last.pth")
    w(d + "/log_seed_9931.txt", "\n".join(L) + "\n")
    return "log_seed_9931.txt"


@case("b", "JSON lines", "head_not_updated", [], "update ratio of the z head 1e-8 for 10k steps (head missing from the optimiser), flow head 4e-4, same LR; mu statistics frozen to the digit")
def b_head(rng, d):
    L = []
    for k in range(0, 10001, 50):
        fl = float(pl(k, 2.02, .93, 400, .7)) * math.exp(.015 * rng.standard_normal())
        L.append(json.dumps({"k": k, "L": {"fm": jnum(fl, 5), "kl": jnum(.3127 + .0008 * rng.standard_normal(), 5)}, "lr": {"backbone": 1e-4, "z_head": 1e-4, "flow_head": 1e-4}, "rel_update": {"z_head": jnum(1.2e-8 * math.exp(.3 * rng.standard_normal()), 3), "flow_head": jnum(4.1e-4 * math.exp(.15 * rng.standard_normal()), 3), "backbone": jnum(1.3e-4 * math.exp(.1 * rng.standard_normal()), 3)}, "gnorm": {"z_head": jnum(.11 * math.exp(.2 * rng.standard_normal()), 3), "flow_head": jnum(.52 * math.exp(.2 * rng.standard_normal()), 3)}, "mu_abs": jnum(.3911 + .0006 * rng.standard_normal(), 5), "sigma": jnum(.8702 + .0003 * rng.standard_normal(), 5)}))
    w(d + "/train.jsonl", "\n".join(L) + "\n")
    return "train.jsonl"


@case("b", "DINO log.txt JSON lines per epoch", "teacher_uniform", ["no_learning"], "dino #246: train_loss 11.0903 = ln 65536 and teacher entropy the same in every epoch; flow loss is fine")
def b_uniform(rng, d):
    L = []
    for e in range(120):
        lr = float(coslr(e, 5e-4, 400, 10))
        te = 11.09034 - .0002 * rng.random()
        L.append(json.dumps({"train_loss_dino": jnum(te + .0001 + .0002 * rng.random(), 9), "train_loss_flow": jnum(float(pl(e, 1.9, .77, 3, .8)) * math.exp(.004 * rng.standard_normal()), 6), "train_ent_teacher": jnum(te, 9), "train_ent_student": jnum(11.0895 - .0006 * rng.random(), 9), "train_lr": lr, "train_wd": jnum(.04 + .0003 * e, 6), "train_teacher_temp": 0.4, "out_dim": 65536, "epoch": e}))
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("b", "Lightning metrics.csv", "sigma_collapse", ["kl_not_acting", "z0_leak"], "logvar goes to its lower clamp -10 within 6k steps, std 0.007, and stays there")
def b_sigma(rng, d):
    cols = ["step", "epoch", "train_fm_loss", "train_kl", "posterior_logvar_mean", "posterior_logvar_min", "posterior_std_mean", "posterior_mu_rms", "lr"]
    rows = []
    for k in range(24, 20000, 25):
        lv = -9.97 + 9.9 / (1 + math.exp((k - 2600) / 620)) + .015 * rng.standard_normal(); lv = max(lv, -10); lmin = max(-10, lv - 1.5 - .2 * rng.random())
        sd = math.exp(.5 * lv) * 1.01; mu = .62 + .2 * (1 - math.exp(-k / 4000)) + .01 * rng.standard_normal()
        rows.append([k, k // 2000, f"{float(pl(k, 2.0, .61, 500, .8)) * math.exp(.02 * rng.standard_normal()):.5f}", f"{.5 * (mu * mu + sd * sd - 1 - lv):.5f}", f"{lv:.4f}", f"{lmin:.4f}", f"{sd:.5f}", f"{mu:.4f}", "0.0001"])
    w(d + "/csv_logs/version_3/metrics.csv", csvtext(cols, rows))
    return "csv_logs/version_3/metrics.csv"


@case("b", "check-list prints", "vae_roundtrip", [], "decode(encode(x)) has 13 dB on every batch although the latents are of ordinary scale (0.97) and the images in range")
def b_vae(rng, d):
    L = ["preflight 2025-08-30", "image batch   : [16, 3, 256, 256] range [-1.000, 1.000] mean -0.071 std 0.553"]
    for b in range(12):
        L.append(f"batch {b:02d}  enc: z range [{-3.9 - .3 * rng.random():.3f}, {4.0 + .3 * rng.random():.3f}] mean {.01 * rng.standard_normal():+.4f} std {.968 + .01 * rng.standard_normal():.4f} | dec(z): range [{-1.0 - .1 * rng.random():.3f}, {1.0 + .1 * rng.random():.3f}] PSNR {13.1 + .35 * rng.standard_normal():.2f} dB  LPIPS {.61 + .01 * rng.standard_normal():.3f}")
    L += ["mean vs sample: dec(mode(z)) PSNR 13.2 dB", "dec(z*0.18215) PSNR 11.0 dB, dec(z/0.18215) PSNR 8.4 dB", "t ~ U(0,1): mean 0.499 std 0.289", "prompt means: cos 0.21 0.19 0.26 (same prompt 1.000)"]
    w(d + "/preflight.txt", "\n".join(L) + "\n")
    return "preflight.txt"


@case("b", "TensorBoard scalar downloads (CSV)", "moving_target", [], "flow loss 2.0 -> 0.002 while the norm of the target itself falls from 181 to 6; cos and nmse stand still, FID 280")
def b_moving(rng, d):
    s = np.arange(0, 24001, 80)
    vn = (6 + 175 * np.exp(-s / 2600.)) * mul(rng, len(s), .5, .01)
    nm = .52 + .46 * np.exp(-s / 500.) + .01 * rng.standard_normal(len(s))
    c = np.sqrt(np.clip(1 - nm, 0, 1))
    lo = nm * vn ** 2 / 16384
    e = np.arange(0, 24001, 2000)
    t = 1751000000
    for tag, ss, v in (("loss_flow", s, lo), ("target_norm", s, vn), ("pred_norm", s, vn * c), ("v_cos", s, c), ("v_nmse", s, nm), ("z0_z1_dist", s, vn * (1 + .001 * rng.standard_normal(len(s)))), ("fid_2k", e, 284 + 6 * rng.standard_normal(len(e))), ("lr", s, np.full(len(s), 1e-4))):
        w(d + f"/run-joint_enc-tag-{tag}.csv", csvtext(["Wall time", "Step", "Value"], [(f"{t + k * .5:.6f}", int(k), f"{x:.9g}") for k, x in zip(ss, v)]))
    return "."


@case("b", "debug prints of tensor statistics", "time_sampling", [], "num_train_timesteps 1000, sampling uniform, but every batch has t between 0 and 499 (mean 250, std 144)")
def b_time(rng, d):
    L = ["cfg | scheduler=DDPM num_train_timesteps=1000 beta=scaled_linear prediction=epsilon timestep_sampling=uniform", "cfg | lr=1e-4 bs=256 ema=0.9999"]
    for k in range(0, 9001, 100):
        t = rng.integers(0, 500, 256)
        L.append(f"{k:06d} | loss {float(pl(k, 1.0, .21, 250, .8)) * math.exp(.03 * rng.standard_normal()):.4f} | gn {.25 * math.exp(.15 * rng.standard_normal()):.3f}")
        L.append(f"{k:06d} | t      int64   min={t.min():<6d} max={t.max():<6d} mean={t.mean():<9.2f} std={t.std():.2f}")
        L.append(f"{k:06d} | x_t    float32 min={-4.8 - .3 * rng.random():<7.3f}max={4.7 + .3 * rng.random():<7.3f}mean={.002 * rng.standard_normal():<9.4f} std={.98 + .003 * rng.standard_normal():.4f}")
        L.append(f"{k:06d} | x_0    float32 min={-4.1 - .3 * rng.random():<7.3f}max={4.2 + .3 * rng.random():<7.3f}mean={.01 * rng.standard_normal():<9.4f} std={.951 + .006 * rng.standard_normal():.4f}")
    w(d + "/dbg.log", "\n".join(L) + "\n")
    return "dbg.log"


@case("b", "nested JSON per step (one document)", "input_range", [], "pixels arrive in 0..1 (mean 0.45, std 0.27) although the config says Normalize to [-1, 1]; noise and t fine")
def b_range(rng, d):
    steps = []
    for k in range(0, 3001, 50):
        steps.append({"step": k, "loss": jnum(float(pl(k, 1.0, .034, 130, .9)) * math.exp(.05 * rng.standard_normal()), 5), "lr": 2e-4,
                      "batch": {"x_0": {"min": 0.0, "max": 1.0, "mean": jnum(.452 + .012 * rng.standard_normal(), 4), "std": jnum(.271 + .005 * rng.standard_normal(), 4), "dtype": "float32"}, "noise": {"min": jnum(-4.7 - .2 * rng.random(), 4), "max": jnum(4.7 + .2 * rng.random(), 4), "mean": jnum(.001 * rng.standard_normal(), 2), "std": jnum(1 + .001 * rng.standard_normal(), 5), "dtype": "float32"}, "t": {"min": int(rng.integers(0, 20)), "max": int(rng.integers(980, 1000)), "mean": jnum(499 + 18 * rng.standard_normal(), 5), "std": jnum(288 + 7 * rng.standard_normal(), 5)}}})
    w(d + "/debug_steps.json", json.dumps({"config": {"model": "pixel-unet-64", "T": 1000, "transform": ["Resize(64)", "CenterCrop(64)", "ToTensor", "Normalize(0.5, 0.5)"], "data_range": [-1, 1], "objective": "eps"}, "steps": steps}, indent=1))
    return "debug_steps.json"


@case("b", "startup prints + loss lines", "schedule_constants", [], "configured linear betas 1e-4..0.02, T=1000, but the tables end at beta 0.002 and alphas_cumprod 0.35")
def b_const(rng, d):
    be = np.linspace(1e-4, 2e-3, 1000); ac = np.cumprod(1 - be)
    f = lambda a: "[" + ", ".join(f"{x:.6f}" for x in a) + "]"
    L = ["diffusion config: schedule=linear T=1000 beta_start=0.0001 beta_end=0.02 objective=pred_x0",
         f"betas                          first {f(be[:5])} last {f(be[-5:])}", f"alphas_cumprod                 first {f(ac[:5])} last {f(ac[-5:])}", f"sqrt_alphas_cumprod            first {f(np.sqrt(ac[:5]))} last {f(np.sqrt(ac[-5:]))}", f"sqrt_one_minus_alphas_cumprod  first {f(np.sqrt(1 - ac[:5]))} last {f(np.sqrt(1 - ac[-5:]))}", ""]
    for k in range(0, 20001, 100):
        L.append(f"it {k:>6d}  loss {float(pl(k, .55, .0105, 200, .8)) * math.exp(.05 * rng.standard_normal()):.5f}  x_0 std {1 + .002 * rng.standard_normal():.3f}  x_t std {1 + .002 * rng.standard_normal():.3f}  t mean {499.5 + 15 * rng.standard_normal():.1f} std {288.6 + 8 * rng.standard_normal():.1f}  pred_x0 std {float(sat(k, .55, .985, 500)):.3f}")
    w(d + "/run.txt", "\n".join(L) + "\n")
    return "run.txt"


@case("b", "sampling trace (personal style)", "step_schedule", [], "symmetric logit grid configured, but dt only shrinks and the steps sum to 0.47: the second half of the grid is never run")
def b_dt(rng, d):
    n = 8192; N = 24
    u = np.linspace(.004, .996, 2 * N + 1)
    q = np.log(u / (1 - u)); gq = 1 / (1 + np.exp(-q * .75)); gq = (gq - gq[0]) / (gq[-1] - gq[0])
    tg = gq[:N + 1] * .94
    L = [f"flow sampler | grid: logit (symmetric about 0.5) | steps: {N} | solver: euler | dtype: float32"]
    for p in range(3):
        x0 = rng.standard_normal(n); x1 = .95 * rng.standard_normal(n); x = x0.copy()
        L.append(f"-- image {p}")
        for k in range(N):
            dt = tg[k + 1] - tg[k]; v = (x1 - x0) * (.9 + .02 * rng.standard_normal())
            L.append(f"k={k:>2d} t={tg[k]:.4f} |x|={np.abs(x).mean():.4f} |v|={np.abs(v).mean():.4f} dt={dt:.4f}")
            x = x + v * dt
        L.append(f"-- end |x|={np.abs(x).mean():.4f}")
    w(d + "/sample_trace.txt", "\n".join(L) + "\n")
    return "sample_trace.txt"
# =========================================================== half a, healthy
@case("a", "kohya sd-scripts console (tqdm, avr_loss)", story="SDXL LoRA, flat noisy avr_loss around 0.11 as fine-tunes are; ten epochs, carriage returns")
def ha_kohya(rng, d):
    L = ["loading SDXL checkpoint: E:/models/sd_xl_base_1.0.safetensors", "create LoRA network. base dim (rank): 16, alpha: 8", "running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 300", "  num epochs / epoch数: 10", "  batch size per device / バッチサイズ: 1", "  total optimization steps / 学習ステップ数: 3000"]
    k = 0; acc = []
    for e in range(1, 11):
        L.append(f"\nepoch {e}/10"); row = []
        for _ in range(300):
            k += 1; acc.append(.112 * (1 - .06 * (1 - math.exp(-k / 400))) * math.exp(.6 * rng.standard_normal() - .18))
            if k % 4 == 0: row.append(tqdm("steps: ", k, 3000, .73, f"avr_loss={np.mean(acc[-300:]):.3g}", 24))
        L.append("\r".join(row)); L.append(f"saving checkpoint: E:/out/style-{e:06d}.safetensors")
    L.append("model saved.")
    w(d + "/console.log", "\n".join(L) + "\n")
    return "console.log"


@case("a", "guided-diffusion boxed tables", story="fp16 run with the usual loss-scale search: NaN messages at the start and one per thousand steps later; losses fall")
def ha_gd(rng, d):
    L = ["Logging to /tmp/openai-2024-02-11-08-31-07-114", "creating model and diffusion...", "training..."]
    lg = 20.0
    for k in range(0, 40001, 200):
        if k == 0:
            for _ in range(5):
                lg -= 1; L.append(f"Found NaN, decreased lg_loss_scale to {lg:.15g}")
        elif rng.random() < .2:
            lg -= 1; L.append(f"Found NaN, decreased lg_loss_scale to {lg:.15g}")
        lg = min(lg + .2, 23.4 + rng.random())
        fin = (.128, .0241, .0092, .0031); tau = (900, 300, 160, 90)
        q = [float(pl(k, 1.0, fin[i], tau[i], .9)) * math.exp(.06 * rng.standard_normal()) for i in range(4)]
        vb = [float(pl(k, x, y, 400, .9)) * math.exp(.15 * rng.standard_normal()) for x, y in ((.03, .0118), (.02, .00031), (.02, .00007), (.02, .00003))]
        kv = {"grad_norm": float(pl(k, 1.4, .081, 300, .8)) * math.exp(.2 * rng.standard_normal()), "lg_loss_scale": lg, "mse": float(np.mean(q)), "vb": float(np.mean(vb)), "loss": float(np.mean(q) + np.mean(vb)), "param_norm": 301.7 + .0021 * k ** .9, "samples": float(k * 64 + 64), "step": float(k)}
        for i in range(4): kv[f"mse_q{i}"] = q[i]; kv[f"vb_q{i}"] = vb[i]; kv[f"loss_q{i}"] = q[i] + vb[i]
        L.append(gdtable(kv))
        if k and k % 10000 == 0: L += ["saving model 0...", "saving model 0.9999..."]
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("a", "HF Trainer dict prints", story="warm-up from lr 0, cosine to 0, plateau at the end, constant 9 % val gap")
def ha_hf(rng, d):
    L = ["***** Running training *****", "  Num examples = 596,000", "  Num Epochs = 5", "  Total optimization steps = 11,640"]
    for k in range(1, 11641):
        if k != 1 and k % 40: continue
        lr = float(coslr(k - 1, 2e-4, 11640, 500))
        x = float(pl(k, 1.95, .795, 380, .75)) * (1 - .02 * (k / 11640)) * math.exp(.016 * rng.standard_normal())
        L.append(str({"loss": round(x, 4), "grad_norm": round(float(pl(k, 4.2, .33, 150, .9)) * math.exp(.12 * rng.standard_normal()), 6), "learning_rate": float(f"{lr:.8g}"), "epoch": round(k / 2328, 2)}))
        if k % 1160 == 0: L.append(str({"eval_loss": round(float(pl(k, 1.95, .795, 380, .75)) * (1 - .012 * (k / 11640)) * 1.09 + .001 * rng.standard_normal(), 6), "eval_runtime": 201.4, "eval_samples_per_second": 9.93, "epoch": round(k / 2328, 2)}))
    L.append(str({"train_runtime": 40211.7, "train_steps_per_second": .289, "train_loss": .8733, "epoch": 5.0}))
    w(d + "/train.txt", "\n".join(L) + "\n")
    return "train.txt"


@case("a", "Lightning progress bar (autoencoder)", story="KL-f8 autoencoder with kl_weight 1e-6: KL rises while reconstruction falls (by recipe), discriminator starts at 50001 and aeloss jumps once; PSNR rises")
def ha_vae(rng, d):
    L = ["Using AutoencoderKL: embed_dim=4, lossconfig: kl_weight=0.000001, disc_start=50001, disc_weight=0.5", "making attention of type 'vanilla' with 512 in_channels"]
    for k in range(400, 80001, 400):
        e, b = divmod(k, 5005)
        rec = float(pl(k, .41, .071, 2500, .7)) * math.exp(.03 * rng.standard_normal())
        kl = float(sat(k, 9e3, 2.45e4, 20000, 1.0)) * math.exp(.01 * rng.standard_normal())
        on = k > 50001
        gl = (-.05 - .25 * (1 - math.exp(-(k - 50001) / 6000)) + .05 * rng.standard_normal()) if on else 0.0
        ae = rec * 1e5 / .36 * .36 + kl * 1e-6 * 1e4 * .01 + (1500 * math.exp(-(k - 50001) / 9000) if on else 0)
        ds = (.93 + .07 * rng.standard_normal() * .6) if on else 0.0
        L.append(tqdm(f"Epoch {e}: ", b, 5005, 2.31, f"v_num=1, train/aeloss_step={ae:.3g}, train/rec_loss_step={rec:.4f}, train/kl_loss_step={kl:.4g}, train/g_loss_step={gl:.3f}, train/discloss_step={ds:.3f}, val/psnr={19.5 + 8.1 * (1 - math.exp(-k / 16000)) - (.35 if on else 0) + .05 * rng.standard_normal():.2f}, val/rec_loss={rec * 1.03:.4f}, lr=4.5e-6"))
    w(d + "/ae.out", "\n".join(L) + "\n")
    return "ae.out"


@case("a", "DiT/LightningDiT coloured log", story="400k steps, ordinary noise, one spike at 231k that recovers within 3k steps")
def ha_dit(rng, d):
    t0 = datetime(2025, 2, 1, 0, 0, 5); L = []
    def line(sec, m): L.append(f"[\x1b[34m{ts(t0, sec)}\x1b[0m] {m}")
    line(0, "SiT Parameters: 675,129,632"); line(2, "Training for 80 epochs...")
    s = np.arange(1000, 400001, 1000)
    y = noisy(rng, pl(s, 1.4, .545, 9000, .42), .004, .3, .003)
    y = y * (1 + .85 * np.where(s >= 231000, np.exp(-(s - 231000) / 900.), 0))
    for k, v in zip(s, y):
        line(k / 5.3, f"(step={k:07d}) Train Loss: {v:.4f}, Train Steps/Sec: {5.3 + .03 * rng.standard_normal():.2f}")
        if k % 50000 == 0: line(k / 5.3 + 40, f"Saved checkpoint to results/011-SiT-XL-2-Linear-velocity-None/checkpoints/{k:07d}.pt"); line(k / 5.3 + 41, "Generating EMA samples...")
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("a", "MMEngine work dir (vis_data/scalars.json + log)", story="progressive resolution 256 -> 512 -> 1024 announced in the log; the loss jumps once at each stage, then falls")
def ha_mm(rng, d):
    t0 = datetime(2025, 5, 5, 9, 8, 7); J = []; L = []
    f = "%Y/%m/%d %H:%M:%S"
    for k in range(50, 30001, 50):
        st = 0 if k <= 15000 else 1 if k <= 24000 else 2; m = k - (0, 15000, 24000)[st]
        if k in (15050, 24050): L.append(f"{ts(t0, k * .5, f)} - mmengine - INFO - ProgressiveResolutionHook: stage {st + 1}/3, resolution {(256, 512, 1024)[st]}, batch size {(64, 16, 4)[st]}, timestep shift {(1.0, 2.0, 3.0)[st]}")
        b = (pl(m, 1.9, .69, 700, .7), pl(m, .94, .78, 900, .8), pl(m, 1.03, .86, 900, .8))[st]
        x = float(b) * math.exp((.012, .025, .05)[st] * rng.standard_normal()); gn = float(pl(m, (3, .9, .9)[st], (.31, .4, .5)[st], 200, .9)) * math.exp(.15 * rng.standard_normal())
        J.append(json.dumps({"lr": 1e-4, "data_time": .004, "loss": jnum(x, 5), "loss_flow": jnum(x, 5), "grad_norm": jnum(gn, 4), "time": .5, "iter": k, "memory": 41312, "step": k}))
        L.append(f"{ts(t0, k * .5, f)} - mmengine - INFO - Iter(train) [{k:>5d}/30000]  lr: 1.0000e-04  eta: {hms((30000 - k) * .5)}  time: 0.5003  data_time: 0.0041  memory: 41312  loss: {x:.4f}  loss_flow: {x:.4f}  grad_norm: {gn:.4f}")
    w(d + "/20250505_090807/20250505_090807.log", "\n".join(L) + "\n"); w(d + "/20250505_090807/vis_data/scalars.json", "\n".join(J) + "\n")
    return "20250505_090807"


@case("a", "W&B chart CSV export", story="cosine warm restarts (SGDR, 4 cycles): loss up 6 % at each restart, lower at the end of each cycle; lr exported as a second column")
def ha_sgdr(rng, d):
    rows = []
    for k in range(100, 40001, 100):
        ph = (k % 10000) / 10000; lr = 1e-5 + .5 * (2e-4 - 1e-5) * (1 + math.cos(math.pi * ph))
        x = float(pl(k, 1.7, .60, 900, .6)) * (1 + .055 * (lr / 2e-4) - .02) * math.exp(.01 * rng.standard_normal())
        rows.append((k, f"{x:.6f}", f"{x * .98:.6f}", f"{x * 1.02:.6f}", f"{lr:.6g}", f"{lr:.6g}", f"{lr:.6g}"))
    n = "sgdr-4x10k"
    w(d + "/wandb_export_2025-11-03T09_15_10.001+01_00.csv", csvtext(["Step"] + [f"{n} - {m}{s}" for m in ("train/loss", "train/lr") for s in ("", "__MIN", "__MAX")], rows))
    return "wandb_export_2025-11-03T09_15_10.001+01_00.csv"


@case("a", "TensorBoard event folder", story="complete flow run: cos 0.85, speed ratio = cos, nmse = 1-cos^2, endpoint error falls with K and with training, KL statistics converge")
def ha_tb(rng, d):
    rows = []
    for k in range(0, 30001, 100):
        c = float(sat(k, .02, .872, 800, .8)) + .004 * rng.standard_normal(); r = max(.02, c + .005 * rng.standard_normal()); nm = nmse_of(c, r)
        mu = float(pl(k, .74, .21, 2500, 1)) * math.exp(.01 * rng.standard_normal()); sd = 1 - .28 * math.exp(-k / 5000) - .03 + .003 * rng.standard_normal()
        kv = {"loss/flow": 1.95 * nm * math.exp(.01 * rng.standard_normal()), "loss/kl": .5 * (1.57 * mu * mu + sd * sd - 1 - 2 * math.log(sd)), "flow/cos": c, "flow/speed_ratio": r, "flow/nmse": nm, "mu/abs_mean": mu, "std/mean": sd, "logvar/mean": 2 * math.log(sd) - .01, "z_init/mean": .004 * rng.standard_normal(), "z_init/var": 1.57 * mu * mu + sd * sd, "grad/total": float(pl(k, 3, .5, 300, .9)) * math.exp(.1 * rng.standard_normal()), "lr": float(coslr(k, 1e-4, 30000, 1000, 1e-5))}
        if k % 1000 == 0:
            for K, o in ((8, .16), (16, .09), (32, .05), (64, .04)): kv[f"flow/endpt_rmse@{K}"] = math.sqrt(1.95 * nm) * (.95 + o) + .004 * rng.standard_normal()
            kv["flow/cond_gain_cos"] = .17 * (1 - math.exp(-k / 6000)) + .002 * rng.standard_normal()
        rows.append((k * .7, k, kv))
    tbwrite(d + "/tb/full_flow/events.out.tfevents.1750000000.gpu12.991.0", 1750000000, rows)
    return "tb"


def ode_trace(rng, N, grid, gain=.92, s1=.94, n=8192):
    x0 = rng.standard_normal(n); x1 = s1 * rng.standard_normal(n); x = x0.copy(); out = []
    for k in range(N):
        dt = grid[k + 1] - grid[k]; v = (x1 - x0) * gain * (1 + .05 * math.sin(3 * grid[k])) + .02 * rng.standard_normal(n)
        out.append((k, grid[k], np.abs(x).mean(), np.abs(v).mean(), dt, x.std(), v.std())); x = x + v * dt
    return out, np.abs(x).mean(), x.std()


@case("a", "sampling trace (notes style)", story="three fp32 traces in the notes' own format on a symmetric grid; |x| starts at 0.80, dips and comes back, dt sums to 1")
def ha_trace(rng, d):
    u = np.linspace(0, 1, 41); grid = .5 * (1 - np.sign(.5 - u) * np.abs(1 - 2 * u) ** .8)
    L = []
    for p in range(3):
        o, e, _ = ode_trace(rng, 40, grid)
        L += [f"{p}it [00:{12 * p + 4:02d}, 11.9s/it]step{k}: |x|={a:.4f}, |v|={b:.4f}, dt={dt:.4f}" if k == 0 else f"step{k}: |x|={a:.4f}, |v|={b:.4f}, dt={dt:.4f}" for k, t, a, b, dt, _, _ in o]
    w(d + "/generate.out", "\n".join(L) + "\n")
    return "generate.out"


@case("a", "sampling trace (personal style, shifted grid)", story="SD3-like shift=3 sampler: dt grows monotonically as configured, sums to 1; std ends at the data's")
def ha_trace2(rng, d):
    N = 28; s = np.linspace(1, 0, N + 1); sg = 3 * s / (1 + 2 * s); grid = 1 - sg
    L = ["FlowMatchEuler: num_inference_steps=28, shift=3.0 (sigmas = shift*s/(1+(shift-1)*s)), fp32"]
    for p in range(2):
        o, e, es = ode_trace(rng, N, grid, 1.0, .97)
        for k, t, a, b, dt, sx, sv in o: L.append(f"sigma {1 - t:.4f} -> {1 - t - dt:.4f} (d={dt:.4f}): latent std {sx:.3f} abs {a:.3f} | pred std {sv:.3f} abs {b:.3f}")
        L.append(f"done: latent std {es:.3f} (training latents 0.97)")
    w(d + "/pipe_debug.txt", "\n".join(L) + "\n")
    return "pipe_debug.txt"


@case("a", "EDM log.txt tick lines + stats.jsonl", story="EDM run: ticks and nested stats, slow decay, large per-sample std as usual")
def ha_edm(rng, d):
    J = []; T = ["Training for 20000 kimg...", ""]
    for i in range(400):
        kimg = i * 50; m = float(pl(kimg, .86, .171, 400, .8)) * math.exp(.008 * rng.standard_normal())
        T.append(f"tick {i:<5d} kimg {kimg:<9.1f} loss {m:<7.4f} time {hms(i * 98):<12s} sec/tick {98 + .3 * rng.standard_normal():<7.1f} sec/kimg 1.96    maintenance 0.1    cpumem 5.71   gpumem 38.02  reserved 39.11 ")
        J.append(json.dumps({"Loss/loss": {"num": 51200, "mean": jnum(m, 8), "std": jnum(m * 1.4, 8)}, "Progress/kimg": {"num": 1, "mean": float(kimg), "std": 0.0}, "Timing/sec_per_tick": {"num": 1, "mean": 98.0, "std": 0.0}, "timestamp": 1700000000 + 98 * i}))
    w(d + "/00007-run/log.txt", "\n".join(T) + "\n"); w(d + "/00007-run/stats.jsonl", "\n".join(J) + "\n")
    return "00007-run"


@case("a", "Chinese prose summary", story="Chinese acceptance note of a run: all probes pass, loss and FID down, nothing to fix")
def ha_zh(rng, d):
    w(d + "/验收.md", """# 训练验收 2025-11-02（flow-base，60k step）

## 训练曲线
- flow loss：首 100 步均值 1.98，最后 100 步均值 0.61，期间没有 NaN/Inf；
- 验证集 flow loss：0.63，与训练集差距约 3%，从 10k 起差距没有变化；
- grad_norm：0.25 ~ 0.45；lr：前 1k 步 warmup 到 1e-4，之后余弦降到 1e-6，最后 8k 步 loss 基本持平。

## 统计量
| 量 | 值 |
|---|---|
| x_0 均值 / 标准差 | 0.002 / 0.996 |
| t 均值 / 标准差 | 0.501 / 0.288 |
| mu/abs_mean | 0.24 |
| std/mean | 0.95 |
| logvar/mean | -0.10 |
| z_init 均值 / 方差 | 0.003 / 1.01 |
| ‖z0‖ / ‖z1‖ | 64.2 / 61.7 |

## 探针
- VAE 回环 PSNR=29.6 dB；
- 不同 prompt 的 μ 余弦：0.19 / 0.24 / 0.22（同一 prompt：1.00）；
- 单步对齐：t=0.10/0.37/0.63/0.90 时 cos=0.74/0.86/0.88/0.77，‖pred‖/‖tgt‖=0.75/0.86/0.88/0.78；
- 射击相对误差：0.21（N=50），0.20（N=100）；
- 端点 RMSE：K=8 0.58，K=16 0.50，K=32 0.47，K=64 0.46；
- cond_gain_cos=0.14；
- FID-10k：10k 步 61.2 → 30k 步 24.8 → 60k 步 17.3；CLIP score 0.221 → 0.274 → 0.291。

## 结论
按计划进入 512 分辨率阶段。
""")
    return "验收.md"


@case("a", "key: value lines, short run", story="200-step smoke test on 128 fixed images: mse down, cos up, KL steady")
def ha_short(rng, d):
    L = ["smoke test: 128 fixed samples, batch 128, lr 3e-4, 200 steps"]
    for k in range(0, 201, 5):
        c = float(sat(k, .0, .80, 45, 1.1)); r = c; L.append(f"step: {k}  fm_mse: {1.97 * nmse_of(c, r) * math.exp(.01 * rng.standard_normal()):.4f}  cos: {c + .005 * rng.standard_normal():.4f}  ratio: {r + .006 * rng.standard_normal():.4f}  kl: {.212 + .002 * rng.standard_normal():.4f}  lr: 3.0e-04  sec: {.31 + .01 * rng.random():.2f}")
    w(d + "/smoke.txt", "\n".join(L) + "\n")
    return "smoke.txt"


@case("a", "interleaved ranks", story="four ranks write the same file out of order; every rank's loss falls")
def ha_ranks(rng, d):
    t0 = datetime(2025, 10, 10, 10, 0); L = []
    for k in range(100, 15001, 100):
        for r in rng.permutation(4):
            L.append(f"[rank{r}] {ts(t0, k * .4 + .01 * r)} step {k}/50000 loss={float(pl(k, 1.98, .70, 500, .65)) * math.exp(.05 * rng.standard_normal()):.4f} gnorm={.37 * math.exp(.12 * rng.standard_normal()) + 2 / (1 + k / 100):.3f} lr={min(1e-4, 1e-4 * k / 1000):.2e}")
    w(d + "/srun.out", "\n".join(L) + "\n")
    return "srun.out"


@case("a", "DiT text log, two sessions in one file", story="preempted and resumed properly: steps 200k-212k appear twice with the same level, loss goes on")
def ha_resume(rng, d):
    t0 = datetime(2024, 1, 8, 9, 0, 1); L = []
    for off, k0, k1 in ((0, 0, 212000), (40000, 200000, 340000)):
        L.append(f"[{ts(t0, off)}] DiT Parameters: 32,563,232")
        if k0: L.append(f"[{ts(t0, off + 10)}] Resuming training from results/002-DiT-S-2/checkpoints/{k0:07d}.pt (train_steps={k0})")
        for k in range(k0 + 1000, k1 + 1, 1000):
            L.append(f"[{ts(t0, off + (k - k0) / 7)}] (step={k:07d}) Train Loss: {float(pl(k, 1.0, .158, 280, .7)) * math.exp(.006 * rng.standard_normal()):.4f}, Train Steps/Sec: {7 + .05 * rng.standard_normal():.2f}")
    w(d + "/log.txt", "\n".join(L) + "\n")
    return "log.txt"


@case("a", "MLflow run folder", story="step schedule: LR x0.1 at 20k and 30k, the loss drops at each and levels off")
def ha_mlflow(rng, d):
    s = np.arange(50, 40001, 50); lr = np.where(s < 20000, 1e-3, np.where(s < 30000, 1e-4, 1e-5))
    f = np.where(s < 20000, pl(s, 1.0, .142, 500, .7), np.where(s < 30000, .1275 + .012 * np.exp(-(s - 20000) / 500.), .1245 + .003 * np.exp(-(s - 30000) / 400.)))
    e = np.arange(1000, 40001, 1000)
    mlflow(d, "ddpm-cifar-step", datetime(2025, 4, 4, 4, 4), {"eps_mse": (s, noisy(rng, f, .05)), "val/eps_mse": (e, noisy(rng, np.interp(e, s, f) * 1.03, .006)), "lr": (s, lr), "fid": (e, noisy(rng, pl(e, 90, 5.2, 2500, 1.2), .02))}, {"lr": 1e-3, "milestones": "[20000,30000]", "gamma": .1, "optimizer": "adam"})
    return "mlruns"


@case("a", "key=value lines", story="batch 32 raised to 512 at step 10k (announced): the noise shrinks, the level goes on falling")
def ha_batch(rng, d):
    L = []
    for k in range(10, 20001, 10):
        if k == 10010: L.append("batch_size_schedule: 32 -> 512 at step 10000 (grad accumulation 16)")
        sd = .19 if k <= 10000 else .048
        L.append(f"step={k} loss={float(pl(k, 1.0, .128, 220, .7)) * math.exp(sd * rng.standard_normal() - sd * sd / 2):.5f} gn={.22 * math.exp((.4 if k <= 10000 else .12) * rng.standard_normal()) * (1 if k <= 10000 else .45):.4f} lr=1e-4 bs={32 if k <= 10000 else 512}")
    w(d + "/train.log", "\n".join(L) + "\n")
    return "train.log"


@case("a", "JSON lines (ret dictionary)", story="flow + KL + DINO, head under std_range [0.4, 0.6] so that the KL gradient share is 2 % by recipe and std stays at 0.5; everything else in its band")
def ha_recipe(rng, d):
    L = [json.dumps({"config": {"z_head": {"std_range": [0.4, 0.6], "anchor": 0.1, "detach": True}, "w": {"flow": 1.0, "kl": 1e-3, "dino": 0.4}, "dino_out_dim": 4096}})]
    for k in range(0, 25001, 100):
        c = float(sat(k, .02, .84, 900, .8)) + .004 * rng.standard_normal(); r = c + .004 * rng.standard_normal(); nm = nmse_of(c, r)
        gf = (.8 + 1.5 / (1 + k / 700)) * math.exp(.1 * rng.standard_normal()); gd = .33 * gf * math.exp(.1 * rng.standard_normal()); gk = .021 * gf * math.exp(.15 * rng.standard_normal())
        L.append(json.dumps({"step": k, "loss/flow": jnum(1.6 * nm, 5), "loss/kl": jnum(.46 + .02 * math.exp(-k / 3000) + .003 * rng.standard_normal(), 4), "loss/dino": jnum(float(pl(k, 8.2, 5.6, 1500, .6)) + .02 * rng.standard_normal(), 5), "grad/flow": jnum(gf, 4), "grad/dino": jnum(gd, 4), "grad/kl": jnum(gk, 3), "grad/total": jnum(math.sqrt(gf * gf + gd * gd + gk * gk), 4), "step/z_head_update_ratio": jnum(2.2e-4 * math.exp(.2 * rng.standard_normal()), 3), "step/flow_head_update_ratio": jnum(3.9e-4 * math.exp(.2 * rng.standard_normal()), 3), "ent/teacher": jnum(4.6 + .05 * rng.standard_normal(), 4), "ent/student": jnum(float(pl(k, 8.2, 5.1, 1500, .6)) + .03 * rng.standard_normal(), 4), "std/mean": jnum(.505 + .002 * rng.standard_normal(), 4), "std/min": jnum(.412 + .003 * rng.random(), 4), "std/max": jnum(.59 + .003 * rng.random(), 4), "mu/abs_mean": jnum(.62 + .005 * rng.standard_normal(), 4), "flow/cos": jnum(c, 4), "flow/nmse": jnum(nm, 4), "flow/speed_ratio": jnum(r, 4), "lr": 1e-4}))
    w(d + "/metrics.jsonl", "\n".join(L) + "\n")
    return "metrics.jsonl"


@case("a", "DeepSpeed console with tqdm", story="CogVideo #233: a handful of OVERFLOW messages at the start until the dynamic loss scale has settled, one more at step 2004; then normal")
def ha_ds(rng, d):
    t0 = datetime(2024, 9, 11, 17, 52, 11); L = []; sc = 2 ** 32; n = 0
    for k in range(1, 4001):
        if k in (1, 2, 3, 5, 8, 27, 2004):
            n += 1; L.append(f"[{tsms(t0, k * 2.1)}] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {sc // 2}"); sc //= 2
        if k == 1500: sc *= 2
        if k % 20 == 0:
            L.append(f"[{tsms(t0, k * 2.1)}] [INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={n}, lr=[{min(1e-5, 1e-5 * k / 200):.3g}], mom=[[0.9, 0.95]]")
            L.append(f"steps: {k} loss: {.231 * (1 - .12 * (1 - math.exp(-k / 900))) * math.exp(.06 * rng.standard_normal()):.4f} iter time (s): {2.1 + .01 * rng.standard_normal():.3f} samples/sec: {15.2 + .1 * rng.standard_normal():.3f}")
    w(d + "/sft.log", "\n".join(L) + "\n")
    return "sft.log"


@case("a", "Markdown table + prose (English)", story="evaluation table of a pre-training: FID noisy but falling, CLIP score and PSNR of the probe rising; truncated in the middle of the last row")
def ha_md(rng, d):
    L = ["## t2i-0.6B pre-training, evaluation log", "", "Val loss on 4k held-out pairs, EMA weights (0.9999), 30 Euler steps, cfg 4.5.", "", "| Mimg | train | val | FID-5k | CLIP-T | inpaint PSNR |", "|---|---|---|---|---|---|"]
    for i in range(1, 25):
        m = i * 4; L.append(f"| {m} | {float(pl(m, 1.9, .63, 1.5, .6)) + .004 * rng.standard_normal():.3f} | {float(pl(m, 1.9, .645, 1.5, .6)) + .002 * rng.standard_normal():.3f} | {float(pl(m, 180, 11, 4, 1.1)) * math.exp(.03 * rng.standard_normal()):.1f} | {.205 + .085 * (1 - math.exp(-m / 25)) + .001 * rng.standard_normal():.3f} | {16.2 + 5.5 * (1 - math.exp(-m / 30)) + .1 * rng.standard_normal():.1f} |")
    w(d + "/EVAL.md", "\n".join(L)[:-14])
    return "EVAL.md"
# =========================================================== half b, healthy
@case("b", "diffusers train_unconditional tqdm", story="ema_decay in the postfix warms up from 0, cosine lr ends near 0, noisy single-step loss")
def hb_uncond(rng, d):
    L = []
    for e in range(60):
        for b in (50, 100, 150, 200, 250):
            st = e * 250 + b; L.append(tqdm(f"Epoch {e}: ", b, 250, 3.4, f"ema_decay={min(.9999, max(0, 1 - (1 + st) ** -.75)):.3g}, loss={float(pl(st, 1.05, .0125, 60, .85)) * math.exp(.28 * rng.standard_normal() - .04):.3g}, lr={float(coslr(st, 1e-4, 15000, 500)):.3g}, step={st}"))
    w(d + "/out.txt", "\n".join(L) + "\n")
    return "out.txt"


@case("b", "SANA/PixArt logger lines", story="multi-scale buckets: the loss depends on the bucket, no trend problem; grad_norm steady")
def hb_sana(rng, d):
    t0 = datetime(2025, 4, 2, 8, 0); L = []
    bk = [(32, 32), (26, 36), (28, 34), (20, 50), (40, 24)]
    for k in range(20, 12001, 20):
        i = int(rng.integers(0, 5)); x = float(pl(k, .98, .655, 600, .6)) * (1, 1.02, 1.01, 1.07, 1.05)[i] * math.exp(.018 * rng.standard_normal())
        L.append(f"{ts(t0, k * 1.4)} - [Sana] - INFO - Epoch: {1 + k // 1877} | Global Step: {k} | Local Step: {k % 1877} // 1877, total_eta: {hms((37540 - k) * 1.4)}, epoch_eta:{hms((1877 - k % 1877) * 1.4)}, time: all:1.392, model:0.852, data:0.003, lm:0.077, vae:0.456, lr:{min(1e-4, 1e-4 * k / 2000):.3e}, Cap: prompt, s:{bk[i]}, loss:{x:.4f}, grad_norm:{float(pl(k, .9, .145, 200, .9)) * math.exp(.08 * rng.standard_normal()):.4f}")
    w(d + "/train_log.log", "\n".join(L) + "\n")
    return "train_log.log"


@case("b", "Lightning metrics.csv", story="sparse CSV: train rows and val rows alternate with empty cells; val and val_ema both improve, ema better after a slow start")
def hb_pl(rng, d):
    cols = ["epoch", "lr-AdamW", "step", "train_loss_epoch", "train_loss_step", "val_loss", "val_loss_ema"]; rows = []
    for k in range(49, 30000, 50):
        b = float(pl(k, 1.9, .74, 600, .7)); rows.append([k // 1000, None, k, None, f"{b * math.exp(.03 * rng.standard_normal()):.6f}", None, None])
        if k % 100 == 99: rows.append([None, f"{float(coslr(k, 1e-4, 60000, 500)):.6g}", k, None, None, None, None])
        if k % 1000 == 999:
            v = b * 1.02 * math.exp(.003 * rng.standard_normal()); em = float(pl(max(1, k - 900), 1.9, .725, 600, .7)) * 1.02
            rows.append([k // 1000, None, k, None, None, f"{v:.6f}", f"{em + .5 * math.exp(-k / 1500):.6f}"]); rows.append([k // 1000, None, k, f"{b:.6f}", None, None, None])
    w(d + "/lightning_logs/version_7/metrics.csv", csvtext(cols, rows))
    return "lightning_logs/version_7/metrics.csv"


@case("b", "W&B history CSV", story="evaluation columns filled every 2000 steps only, empty otherwise, the last evaluation still running")
def hb_wb(rng, d):
    cols = ["_step", "_runtime", "train/loss", "train/grad_norm", "train/lr", "eval/loss", "eval/fid", "eval/clip_score", "samples"]; rows = []
    for k in range(0, 50301, 100):
        r = [k, f"{k * .41:.2f}", f"{float(pl(k, 2.0, .69, 1300, .65)) * math.exp(.014 * rng.standard_normal()):.6f}", f"{(.28 + 2 / (1 + k / 150)) * math.exp(.12 * rng.standard_normal()):.5f}", f"{min(1e-4, 1e-4 * k / 1000):.4g}"]
        r += [f"{float(pl(k, 2.0, .70, 1300, .65)) * 1.01:.6f}", f"{float(pl(k, 260, 15, 2500, 1)) * math.exp(.03 * rng.standard_normal()):.3f}", f"{.2 + .09 * (1 - math.exp(-k / 20000)) + .001 * rng.standard_normal():.4f}", f"media/images/samples_{k}.png"] if k and k % 2000 == 0 else ["", "", "", ""]
        rows.append(r)
    w(d + "/run_history.csv", csvtext(cols, rows))
    return "run_history.csv"


@case("b", "HF trainer_state.json", story="fine-tune with a stable 6 % val gap; eval_loss noisy, best at the end")
def hb_state(rng, d):
    H = []
    for k in range(25, 6001, 25):
        H.append({"epoch": jnum(k / 1500, 5), "grad_norm": jnum(.42 * math.exp(.18 * rng.standard_normal()), 7), "learning_rate": jnum(float(coslr(k, 3e-5, 6000, 300)), 7), "loss": jnum(.342 * (1 - .13 * (1 - math.exp(-k / 1500))) * math.exp(.035 * rng.standard_normal()), 5), "step": k})
        if k % 300 == 0: H.append({"epoch": jnum(k / 1500, 5), "eval_loss": jnum(.363 * (1 - .115 * (1 - math.exp(-k / 1500))) + .0012 * rng.standard_normal(), 6), "eval_runtime": 61.0, "step": k})
    w(d + "/trainer_state.json", json.dumps({"best_metric": None, "epoch": 4.0, "global_step": 6000, "log_history": H, "max_steps": 6000, "num_train_epochs": 4}, indent=2))
    return "trainer_state.json"


@case("b", "progress.csv (OpenAI logger)", story="improved-diffusion run: quartile losses of very different size (as always), slow decay")
def hb_prog(rng, d):
    cols = ["grad_norm", "loss", "loss_q0", "loss_q1", "loss_q2", "loss_q3", "mse", "mse_q0", "mse_q1", "mse_q2", "mse_q3", "samples", "step"]; rows = []
    for k in range(0, 60001, 200):
        q = [float(pl(k, 1.0, f, t, .9)) * math.exp(.07 * rng.standard_normal()) for f, t in ((.118, 800), (.021, 260), (.0077, 150), (.0024, 80))]; m = float(np.mean(q))
        rows.append([f"{x:.6g}" for x in (float(pl(k, 1.2, .07, 300, .8)) * math.exp(.2 * rng.standard_normal()), m, *q, m, *q, k * 128 + 128, k)])
    w(d + "/progress.csv", csvtext(cols, rows))
    return "progress.csv"


@case("b", "Lightning progress bar (ControlNet)", story="ControlNet fine-tune: loss noisy and flat around 0.12 from the first step, as expected with a locked pretrained model")
def hb_cn(rng, d):
    L = ["ControlLDM: Running in eps-prediction mode", "Loaded state_dict from [./models/control_sd15_ini.ckpt]", "sd_locked: True, only_mid_control: False, learning_rate: 1e-5"]; acc = []
    for e in range(4):
        for b in range(24, 1250, 25):
            x = .121 * math.exp(.45 * rng.standard_normal() - .1) * (1 - .05 * e / 4); acc.append(x)
            L.append(tqdm(f"Epoch {e}: ", b + 1, 1250, 1.42, f"loss={np.mean(acc[-20:]):.3f}, v_num=2, train/loss_simple_step={x:.4f}, train/loss_vlb_step={x * .004 * math.exp(.6 * rng.standard_normal()):.5f}, train/loss_step={x:.4f}, global_step={e * 1250 + b}.0"))
    w(d + "/cn.log", "\n".join(L) + "\n")
    return "cn.log"


@case("b", "debug prints of tensor statistics", story="per-500-step dumps: latents std 0.95, noise 1, t uniform 0-999, prediction std growing towards the target, bf16 output against fp32 target")
def hb_dbg(rng, d):
    L = ["betas [0.00085 ... 0.012] scaled_linear T=1000 | alphas_cumprod first 0.9991 last 0.0047 | scaling_factor 0.18215 | v-prediction off"]
    for k in range(0, 20001, 500):
        t = rng.integers(0, 1000, 128); ps = float(sat(k, .21, .965, 900))
        L.append(f"--- step {k} loss {float(pl(k, 1.0, .152, 300, .8)) * math.exp(.03 * rng.standard_normal()):.4f} lr 1.0e-04")
        for n, dt, lo, hi, m, s in (("pixel_values", "float32", -1, 1, -.07, .52), ("latents", "float32", -4.3, 4.4, .01, .951), ("noise", "float32", -4.8, 4.8, 0, 1.0), ("noisy_latents", "float32", -4.9, 4.8, 0, .992), ("model_pred", "bfloat16", -4.5 * ps, 4.5 * ps, 0, ps)):
            j = 0 if n == "pixel_values" else 1; L.append(f"    {n:<14s} {dt:<8s} min {lo - .2 * j * rng.random():8.3f} max {hi + .2 * j * rng.random():8.3f} mean {m + .004 * rng.standard_normal():8.4f} std {s * (1 + .003 * rng.standard_normal()):7.4f} nan 0 inf 0")
        L.append(f"    {'timesteps':<14s} {'int64':<8s} min {t.min():8d} max {t.max():8d} mean {t.mean():8.2f} std {t.std():7.2f}")
    w(d + "/tensors.log", "\n".join(L) + "\n")
    return "tensors.log"


@case("b", "k-diffusion lines", story="EMA-averaged loss printed beside the step loss; heavy noise, slow fall, resumed once without a jump")
def hb_kd(rng, d):
    L = ["Parameters: 78,412,387", "Using device: cuda:0"]; av = None
    for k in range(0, 40001, 25):
        x = float(pl(k, .98, .31, 300, .7)) * math.exp(.12 * rng.standard_normal()); av = x if av is None else .9 * av + .1 * x
        if k == 21000: L.append("Resuming from model_00020000.pth...")
        if k % 50 == 0: L.append(f"Epoch: {k // 2500}, step: {k}, loss: {x:g}, avg loss: {av:g}")
    w(d + "/nohup.out", "\n".join(L) + "\n")
    return "nohup.out"


@case("b", "MAE/MAR MetricLogger text", story="warm-up over 100 epochs as configured, medians with running means in brackets")
def hb_mar(rng, d):
    L = ["Namespace(batch_size=64, blr=0.0001, epochs=400, warmup_epochs=100, lr_schedule='constant')", "Start training for 400 epochs"]; h = []
    for e in range(30):
        for b in range(0, 1251, 100):
            k = e * 1251 + b; h.append(float(pl(k, .61, .322, 1500, .45)) * math.exp(.012 * rng.standard_normal()))
            L.append(f"Epoch: [{e}]  [{b:>4d}/1251]  eta: {hms((1251 - b) * .74)}  lr: {8e-4 * (k / 125100):.6f}  loss: {np.median(h[-20:]):.4f} ({np.mean(h[-13:]):.4f})  time: 0.7392  data: 0.0003  max mem: 36190")
        L.append(f"Epoch: [{e}] Total time: 0:15:25 (0.7396 s / it)")
    w(d + "/mar.out", "\n".join(L) + "\n")
    return "mar.out"


@case("b", "DINOv2 training_metrics.json lines", story="DINOv2-like joint run: last_layer_lr 0 while the last layer is frozen (first 1250 iterations), entropies in their band, losses fall")
def hb_dino(rng, d):
    L = []
    for k in range(0, 25001, 50):
        lr = min(4e-4, 4e-4 * k / 3000); L.append(json.dumps({"iteration": k, "iter_time": jnum(.61 + .004 * rng.standard_normal(), 5), "data_time": jnum(.004 + .001 * rng.random(), 3), "lr": jnum(lr, 6), "wd": .04, "mom": .994, "last_layer_lr": 0.0 if k < 1250 else jnum(lr, 6), "current_batch_size": 128.0, "total_loss": jnum(float(pl(k, 13.9, 8.6, 2500, .6)) + .04 * rng.standard_normal(), 6), "dino_loss": jnum(float(pl(k, 11.0, 7.2, 2500, .6)) + .03 * rng.standard_normal(), 6), "flow_loss": jnum(float(pl(k, 1.97, .78, 800, .7)) * math.exp(.015 * rng.standard_normal()), 5), "koleo_loss": jnum(.55 - .5 * (1 - math.exp(-k / 3000)) + .01 * rng.standard_normal(), 4), "teacher_entropy": jnum(6.1 + 2.1 * math.exp(-k / 2500) + .06 * rng.standard_normal(), 5), "student_entropy": jnum(7.1 + 3.6 * math.exp(-k / 2500) + .06 * rng.standard_normal(), 5), "n_prototypes": 65536}))
    w(d + "/training_metrics.json", "\n".join(L) + "\n")
    return "training_metrics.json"


@case("b", "YAML-like dumps", story="every probe in its band at every evaluation, t-slices mildly worse at both ends (as theory says for a linear path)")
def hb_yaml(rng, d):
    L = []
    for k in range(2000, 40001, 2000):
        c = float(sat(k, 0, .86, 1200, .9)); L.append(f"eval_{k}:\n  train_loss: {1.96 * (1 - c * c) + .004 * rng.standard_normal():.4f}\n  heldout_loss: {1.96 * (1 - c * c) * 1.02 + .002 * rng.standard_normal():.4f}\n  v_cos: {c:.3f}\n  v_ratio: {c + .004 * rng.standard_normal():.3f}\n  cond_gain: {.12 * (1 - math.exp(-k / 9000)):.3f}\n  endpoint_rmse: [{1.4 * math.sqrt(1 - c * c) * 1.07:.3f}, {1.4 * math.sqrt(1 - c * c):.3f}, {1.4 * math.sqrt(1 - c * c) * .97:.3f}, {1.4 * math.sqrt(1 - c * c) * .96:.3f}]   # K = 8 16 32 64\n  prompt_mu_cos: [0.21, 0.18, 0.25]\n  same_prompt_mu_cos: 1.0\n  vae_psnr: {29.3 + .1 * rng.standard_normal():.1f}\n  lr: 1.0e-4")
    w(d + "/probes.yaml", "\n".join(L) + "\n")
    return "probes.yaml"


@case("b", "nested JSON per step (JSON lines)", story="t-slices logged: ends 2x the nmse of the middle, all improving together; total equals the weighted sum")
def hb_slices(rng, d):
    L = []
    for k in range(0, 30001, 150):
        f = float(pl(k, 1.0, .0, 1200, .9)); by = {}
        for b in range(10):
            end = .46 - .30 * math.sin(math.pi * (b + .5) / 10); by[f"t{b}"] = {"nmse": jnum((end + (1 - end) * f) * math.exp(.03 * rng.standard_normal()), 4), "cos": jnum(math.sqrt(max(0, 1 - (end + (1 - end) * f))) + .004 * rng.standard_normal(), 4)}
        nm = float(np.mean([z["nmse"] for z in by.values()])); fl = 1.94 * nm; kl = .16 + .2 * math.exp(-k / 3000) + .002 * rng.standard_normal()
        L.append(json.dumps({"step": k, "optim": {"lr": 1e-4, "grad_norm": jnum(.4 * math.exp(.1 * rng.standard_normal()) + 2 * f, 4)}, "loss": {"total": jnum(fl + .1 * kl, 6), "flow": jnum(fl, 6), "kl": jnum(kl, 5)}, "weights": {"flow": 1.0, "kl": .1}, "slices": by}))
    w(d + "/log.jsonl", "\n".join(L) + "\n")
    return "log.jsonl"


@case("b", "TensorBoard scalar downloads (CSV)", story="pixel DDPM with two LR drops; the loss falls at each drop, FID follows")
def hb_tbdl(rng, d):
    s = np.arange(0, 60001, 200); lr = np.where(s < 30000, 2e-4, np.where(s < 45000, 5e-5, 1e-5))
    f = np.where(s < 30000, pl(s, 1.0, .0315, 300, .9), np.where(s < 45000, .0296 + .002 * np.exp(-(s - 30000) / 600.), .0290 + .0006 * np.exp(-(s - 45000) / 600.))); e = np.arange(5000, 60001, 5000)
    for tag, ss, v in (("loss_train", s, noisy(rng, f, .04)), ("loss_val", e, np.interp(e, s, f) * 1.02), ("lr", s, lr), ("fid_10k", e, noisy(rng, pl(e, 70, 4.1, 4000, 1.3), .02))):
        w(d + f"/run-ddpm64-tag-{tag}.csv", csvtext(["Wall time", "Step", "Value"], [(f"{1744000000 + int(k) * .3:.5f}", int(k), f"{x:.9g}") for k, x in zip(ss, v)]))
    return "."


@case("b", "ai-toolkit tqdm", story="FLUX LoRA, batch 1: per-step loss between 0.1 and 0.9 by timestep, no visible trend, constant lr")
def hb_aitk(rng, d):
    L = ["Running 1 process", "Loading Flux model", "create LoRA network. base dim (rank): 16, alpha: 16", "Generating baseline samples before training"]
    for k in range(1, 2001):
        u = 1 / (1 + math.exp(-rng.standard_normal())); x = (.18 + .55 * (u - .5) ** 2 * 3 + .12 * rng.random()) * math.exp(.25 * rng.standard_normal())
        if k % 2 == 0: L.append(tqdm("nova_lora: ", k, 2000, .45, f"lr: 1.0e-04 loss: {x:.3e}"))
        if k % 250 == 0: L.append(f"Saving at step {k}\nGenerating Images: 100%|##########| 4/4 [00:41<00:00, 10.31s/it]")
    w(d + "/run.log", "\n".join(L) + "\n")
    return "run.log"


@case("b", "Markdown table + prose (English)", story="learning-rate sweep winner: FID fluctuates by 5 % between evaluations but improves; val loss flat for the last third while FID still improves")
def hb_md(rng, d):
    L = ["# DiT-B/2 flow, ImageNet-256 latents", "", "AdamW 1e-4 constant after 5k warm-up, batch 256, bf16, EMA 0.9999.", "", "step | loss (avg 1k) | val loss | FID-10k (no cfg) | IS", "--- | --- | --- | --- | ---"]
    for k in range(25, 401, 25): L.append(f"{k}k | {float(pl(k, 1.1, .545, 12, .6)) + .001 * rng.standard_normal():.4f} | {float(pl(k, 1.1, .552, 12, .6)) + .0008 * rng.standard_normal():.4f} | {float(pl(k, 140, 24, 40, 1.3)) * math.exp(.025 * rng.standard_normal()):.1f} | {float(sat(k, 8, 78, 130)) + 1.2 * rng.standard_normal():.1f}")
    L += ["", "One grad-norm peak (3.1, usual 0.3) at 212k, loss unaffected. The run goes on to 800k."]
    w(d + "/README_run.md", "\n".join(L) + "\n")
    return "README_run.md"


@case("b", "check-list prints", story="preflight and probe of a finished model in the notes' [text]/[fm]/[shoot] style: all in the good range")
def hb_probe(rng, d):
    L = ["[vae] z range [-4.31, 4.62] mean -0.008 var 0.941  PSNR=30.12 dB", "[norm] E|z0|=63.91 E|z1|=62.05 E|x_t|=51.30 E|v*|=89.02", "[text] cos_mu(a cat, a car) = 0.231", "[text] cos_mu(a cat, a red apple) = 0.187", "[text] cos_mu(a car, a red apple) = 0.204", "[text] cos_mu(a cat, a cat) = 1.000"]
    for t, c in ((.1, .77), (.37, .87), (.63, .88), (.9, .79)): L.append(f"[fm] t={t:.2f}  cos(v_pred, v_tgt)={c + .004 * rng.standard_normal():.3f}  ||pred||/||tgt||={c + .01:.3f}")
    L += ["[shoot] N=25 MSE(z_end, x1) = 0.412310  (MSE(x0, x1) = 1.934021)", "[shoot] N=50 MSE(z_end, x1) = 0.386155", "[shoot] N=100 MSE(z_end, x1) = 0.379942", "[teacher] N=5 1.9e-13 N=20 2.2e-13 N=100 4.1e-13 (fp32)", "[endpt] rmse@8=0.702 @16=0.641 @32=0.622 @64=0.617", "[cond] cos(cond)=0.834 cos(shuffled)=0.711 gain=0.123"]
    w(d + "/probe.log", "\n".join(L) + "\n")
    return "probe.log"


@case("b", "text log with periodic evaluation of both weights", story="EMA 0.9999 lags for the first 20k steps, catches up and is better from 40k on")
def hb_ema(rng, d):
    t0 = datetime(2025, 5, 19, 7, 0); L = []
    for k in range(500, 120001, 500):
        L.append(f"{ts(t0, k * .3)} | INFO | it {k} | mse {float(pl(k, 1.0, .049, 300, .75)) * math.exp(.03 * rng.standard_normal()):.5f} | lr 1.0e-04 | |g| {.11 * math.exp(.2 * rng.standard_normal()):.4f}")
        if k % 5000 == 0:
            rw = float(pl(k, 310, 16.5, 4500, 1.1)); L.append(f"{ts(t0, k * .3 + 200)} | EVAL | it {k} | fid_raw {rw * math.exp(.02 * rng.standard_normal()):.2f} | fid_ema {rw * .86 + 390 * math.exp(-k / 7000) + .3 * rng.standard_normal():.2f} | val_mse_raw {float(pl(k, 1.0, .0505, 300, .75)):.5f} | val_mse_ema {float(pl(k, 1.0, .0495, 300, .75)) + .9 * math.exp(-k / 6000):.5f}")
    w(d + "/run.log", "\n".join(L) + "\n")
    return "run.log"


@case("b", "accelerate logging lines, restart in one file", story="two sessions, warm-up again after the resume (announced), the loss ticks up 2 % and is below its old level 3k steps later; truncated last line")
def hb_acc(rng, d):
    t0 = datetime(2025, 8, 8, 8, 8, 8); L = []; f = "%m/%d/%Y %H:%M:%S"
    for off, k0, k1 in ((0, 0, 14000), (20000, 14000, 30000)):
        L.append(f"{ts(t0, off, f)} - INFO - __main__ - ***** Running training *****")
        if k0: L.append(f"{ts(t0, off, f)} - INFO - accelerate.accelerator - Loading states from out/checkpoint-{k0}"); L.append(f"{ts(t0, off, f)} - INFO - __main__ - re-warming the learning rate over 1000 steps")
        for k in range(k0 + 50, k1 + 1, 50):
            m = k - k0; bump = 1 + (.02 * math.exp(-m / 900) if k0 else 0); L.append(f"{ts(t0, off + m * .8, f)} - INFO - __main__ - step: {k}, train_loss: {float(pl(k, 1.95, .71, 700, .7)) * bump * math.exp(.014 * rng.standard_normal()):.4f}, lr: {1e-4 * min(1, m / 1000):.3e}, grad_norm: {.34 * math.exp(.1 * rng.standard_normal()) + (1.5 / (1 + m / 100) if not k0 else 0):.3f}")
    w(d + "/train.log", "\n".join(L)[:-31])
    return "train.log"


@case("b", "MMEngine text log", story="20 % of a long run, loss-scale column growing and halving as GradScaler does, val mse falling")
def hb_mm(rng, d):
    t0 = datetime(2025, 3, 3, 3, 3, 3); L = []; sc = 65536.; f = "%Y/%m/%d %H:%M:%S"
    for k in range(100, 20001, 100):
        if k % 2000 == 0: sc *= 2
        if rng.random() < .06 and sc > 30000: sc /= 2
        L.append(f"{ts(t0, k * .5, f)} - mmengine - INFO - Iter(train) [{k:>6d}/100000]  lr: {min(2e-4, 2e-4 * k / 2000):.4e}  eta: {hms((100000 - k) * .5)}  time: 0.5011  data_time: 0.0102  memory: 18221  loss_scale: {sc:.1f}  loss_eps: {float(pl(k, 1.0, .141, 350, .75)) * math.exp(.02 * rng.standard_normal()):.4f}  grad_norm: {float(pl(k, 1.5, .16, 300, .9)) * math.exp(.15 * rng.standard_normal()):.4f}")
        if k % 4000 == 0: L.append(f"{ts(t0, k * .5 + 30, f)} - mmengine - INFO - Iter(val) [40/40]    eps/val_mse: {float(pl(k, 1.0, .143, 350, .75)):.4f}  eps/fid: {float(pl(k, 190, 19, 3000, 1)):.2f}  data_time: 0.0098  time: 0.1834")
    w(d + "/20250303_030303.log", "\n".join(L) + "\n")
    return "20250303_030303.log"
# =========================================================== writer
def main(out):
    for half in "ab":
        sel = [c for c in CASES if c[0] == half]
        order = np.random.default_rng(20251118 + ord(half)).permutation(len(sel))
        root = os.path.join(out, half)
        shutil.rmtree(root, ignore_errors=True); os.makedirs(root)
        man = []
        for num, i in enumerate(order, 1):
            _, fn, fmt, exp, acc, story = sel[i]
            cid = f"{half}{num:02d}"
            rng = np.random.default_rng(zlib.crc32(fn.__name__.encode()) + 77)
            rel = fn(rng, os.path.join(root, cid))
            p = cid if rel == "." else f"{cid}/{rel}"
            assert os.path.exists(os.path.join(root, p)), p
            man.append({"id": cid, "path": p, "format": fmt, "expected": exp, "acceptable": [a for a in acc if a != exp], "healthy": exp == "none", "story": story})
        w(os.path.join(root, "manifest.json"), json.dumps(man, indent=1, ensure_ascii=False) + "\n")
        print(half, len(man), sum(m["healthy"] for m in man))


if __name__ == "__main__":
    main(sys.argv[1])
