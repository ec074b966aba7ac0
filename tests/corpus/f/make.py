"""Writes a corpus of 100 training logs (dynamics) to OUT/a. Usage: make.py [OUT]"""
import csv, io, json, math, os, shutil, sys, zlib
import numpy as np

LOGS = []


def log(expected, story, acceptable=()):
    def deco(fn):
        LOGS.append((fn, expected, list(acceptable), story))
        return fn
    return deco


# ------------------------------------------------------------------ curves
def pl(n, a, b, tau, p=0.6):
    return b + (a - b) * (1 + np.arange(n) / tau) ** (-p)


def ex(n, a, b, tau):
    return b + (a - b) * np.exp(-np.arange(n) / tau)


def ln(r, n, s):
    return np.exp(s * r.standard_normal(n) - s * s / 2)


def ar(r, n, s, rho):
    e = r.standard_normal(n) * s * math.sqrt(1 - rho * rho)
    y = np.empty(n)
    v = r.standard_normal() * s
    for i in range(n):
        v = rho * v + e[i]
        y[i] = v
    return y


def sig(n, at, width):
    return 1 / (1 + np.exp(-(np.arange(n) - at) / width))


def ramp(n, at, p=1.0):
    x = np.clip((np.arange(n) - at) / (n - 1 - at), 0, 1)
    return x ** p


def warmcos(n, base, warm, end=0.0, total=None):
    i = np.arange(n)
    total = total or n
    w = np.minimum(1, (i + 1) / max(1, warm))
    c = 0.5 * (1 + np.cos(np.pi * np.clip((i - warm) / (total - warm), 0, 1)))
    return np.where(i < warm, base * w, end + (base - end) * c)


def const(n, base, warm=0):
    return base * np.minimum(1, (np.arange(n) + 1) / max(1, warm))


def grads(r, loss, g, a=0.5, s=0.25, tail=0.01):
    loss = np.abs(np.asarray(loss, float))
    y = g * (loss / loss[0]) ** a * ln(r, len(loss), s)
    y = np.where(r.random(len(loss)) < tail, y * r.uniform(2, 4, len(loss)), y)
    return y


def every(y, k, first=False):
    return [float(v) if ((i + 1) % k == 0 or (first and i == 0)) else None for i, v in enumerate(y)]


def rise(n, lo, top, tau):
    """fast, then slow approach to top"""
    i = np.arange(n)
    return top - (top - lo) * (.75 * np.exp(-i / tau) + .25 * np.exp(-i / (4 * tau)))


def nmse(c, q):
    return 1 - 2 * c * q + q * q


# ------------------------------------------------------------------ writers
def g(x, d=5):
    """a number with d significant digits, or what the trainer would have written"""
    if isinstance(x, (int, np.integer)):
        return int(x)
    x = float(x)
    if not math.isfinite(x):
        return x
    return float(f"%.{d}g" % x)


class Null:  # an explicit null
    pass


NULL = Null()


def rows(cols):
    keys = list(cols)
    n = max(len(cols[k]) for k in keys)
    for i in range(n):
        yield {k: cols[k][i] for k in keys if cols[k][i] is not None}


def jsonl(cols, name="metrics.jsonl", head=None, d=5, nan="NaN", inject=None):
    out = [json.dumps(h) for h in (head or [])]
    for i, row in enumerate(rows(cols)):
        for line in (inject or {}).get(i, []):
            out.append(json.dumps(line))
        o = {}
        for k, v in row.items():
            if v is NULL:
                o[k] = None
            elif isinstance(v, str):
                o[k] = v
            else:
                v = g(v, d)
                o[k] = None if (nan == "null" and isinstance(v, float) and not math.isfinite(v)) else v
        out.append(json.dumps(o))
    return {name: "\n".join(out) + "\n"}, "jsonl"


def tocsv(cols, name="metrics.csv", d=6, nan="nan", fmt="csv"):
    b = io.StringIO()
    w = csv.writer(b, lineterminator="\n")
    keys = list(cols)
    w.writerow(keys)
    for i in range(len(cols[keys[0]])):
        o = []
        for k in keys:
            v = cols[k][i]
            if v is None or v is NULL:
                o.append("")
            elif isinstance(v, str):
                o.append(v)
            else:
                v = g(v, d)
                o.append(nan if isinstance(v, float) and math.isnan(v) else v)
        w.writerow(o)
    return {name: b.getvalue()}, fmt


def f(v, spec):
    if isinstance(v, str):
        return v
    if isinstance(v, (int, np.integer)):
        return str(int(v))
    v = float(v)
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "inf"
    return format(v, spec)


def lines(cols, tmpl="kv", specs=None, spec=".4f", name="train.log", total=None, head=None, inject=None,
          prefix=None, tail=None, fmt=None, sep=" ", eq="="):
    """step=… loss=… lines; prefix: function of the row number; inject: {row: [lines]}"""
    specs = specs or {}
    out = list(head or [])
    for i, row in enumerate(rows(cols)):
        out += (inject or {}).get(i, [])
        step = int(row.pop("step"))
        kv = {k: f(v, specs.get(k, spec)) for k, v in row.items()}
        p = prefix(i) if prefix else ""
        if tmpl == "kv":
            s = sep.join([f"step{eq}{step}"] + [f"{k}{eq}{v}" for k, v in kv.items()])
        elif tmpl == "iter":
            s = " | ".join([f"iter {step}/{total}"] + [f"{k}: {v}" for k, v in kv.items()])
        elif tmpl == "bracket":
            s = f"[{step:>7d}/{total}] " + ", ".join(f"{k}: {v}" for k, v in kv.items())
        out.append(p + s)
    out += list(tail or [])
    return {name: "\n".join(out) + "\n"}, fmt or {"kv": "kv lines", "iter": "iter lines", "bracket": "printed lines"}[tmpl]


def stamp(day="2025-03-11", h0=9, sec=37, tag=" INFO trainer: "):
    def p(i):
        s = h0 * 3600 + i * sec
        dd = int(day[-2:]) + s // 86400
        s %= 86400
        return f"{day[:-2]}{dd:02d} {s // 3600:02d}:{s % 3600 // 60:02d}:{s % 60:02d}{tag}"
    return p


def hf(cols, name="train.log", head=None, tail=None, total=None):
    """printed dicts of the HF trainer"""
    out = list(head or [])
    for row in rows(cols):
        row.pop("step", None)
        ev = {k: v for k, v in row.items() if k.startswith("eval_")}
        tr = {k: v for k, v in row.items() if not k.startswith("eval_")}
        if "loss" in tr:
            d = {k: (round(float(v), 4) if k == "loss" else v if k == "epoch" else float(v)) for k, v in tr.items()}
            d["epoch"] = round(float(tr["epoch"]), 2)
            out.append(str({k: (float(f"{v:.17g}") if isinstance(v, float) else v) for k, v in d.items()}))
        if ev:
            d = {k: round(float(v), 6) for k, v in ev.items()}
            d["eval_runtime"] = 41.3271
            d["eval_samples_per_second"] = 48.394
            d["epoch"] = round(float(row["epoch"]), 2)
            out.append(str(d))
    out += list(tail or [])
    return {name: "\n".join(out) + "\n"}, "HF dicts"


def hfstate(cols, name="trainer_state.json", max_steps=0, epochs=3):
    h = []
    for row in rows(cols):
        ev = {k: v for k, v in row.items() if k.startswith("eval_")}
        tr = {k: v for k, v in row.items() if not k.startswith("eval_") and k not in ("epoch", "step")}
        e, s = round(float(row["epoch"]), 4), int(row["step"])
        if tr:
            h.append({"epoch": e, **{k: g(v, 8) for k, v in tr.items()}, "step": s})
        if ev:
            h.append({"epoch": e, **{k: g(v, 8) for k, v in ev.items()}, "eval_runtime": 38.61, "step": s})
    st = {"best_metric": None, "best_model_checkpoint": None, "epoch": h[-1]["epoch"], "eval_steps": 500,
          "global_step": h[-1]["step"], "is_hyper_param_search": False, "is_local_process_zero": True,
          "is_world_process_zero": True, "log_history": h, "max_steps": max_steps, "num_train_epochs": epochs,
          "total_flos": 0.0, "train_batch_size": 4, "trial_name": None, "trial_params": None}
    return {name: json.dumps(st, indent=1) + "\n"}, "HF trainer_state"


def lightning(step, train, val=None, epoch=None, name="metrics.csv"):
    """train: dict of per-row columns, val: dict of columns with None where not evaluated"""
    keys = ["epoch", "step"] + list(train) + list(val or {})
    b = io.StringIO()
    w = csv.writer(b, lineterminator="\n")
    w.writerow(keys)
    for i, s in enumerate(step):
        e = int(epoch[i]) if epoch is not None else 0
        w.writerow([e, int(s)] + [g(train[k][i], 7) if train[k][i] is not None else "" for k in train] + [""] * len(val or {}))
        if val and any(val[k][i] is not None for k in val):
            w.writerow([e, int(s)] + [""] * len(train) + ["" if val[k][i] is None else g(val[k][i], 7) for k in val])
    return {name: b.getvalue()}, "lightning csv"


def tbcsv(step, cols, run="version_3"):
    out = {}
    for k, ys in cols.items():
        b = io.StringIO()
        w = csv.writer(b, lineterminator="\n")
        w.writerow(["Wall time", "Step", "Value"])
        for i, (s, y) in enumerate(zip(step, ys)):
            if y is not None:
                w.writerow([f"{1741680000 + i * 23.7:.3f}", int(s), "NaN" if math.isnan(float(y)) else g(y, 8)])
        out[f"run-{run}-tag-{k.replace('/', '_')}.csv"] = b.getvalue()
    return out, "tensorboard csv"


def wbchart(step, cols, run):
    out = {}
    for j, (k, ys) in enumerate(cols.items()):
        b = io.StringIO()
        w = csv.writer(b, quoting=csv.QUOTE_ALL, lineterminator="\n")
        w.writerow(["Step", f"{run} - {k}", f"{run} - {k}__MIN", f"{run} - {k}__MAX"])
        for s, y in zip(step, ys):
            if y is not None:
                y = g(y, 9)
                w.writerow([int(s), y, y, y])
        out[f"wandb_export_2025-04-{11 + j:02d}T10_12_4{j % 10}.csv"] = b.getvalue()
    return out, "wandb chart csv"


def wbhist(step, cols, name="history.csv", sec=3.1):
    n = len(step)
    c = {"_step": list(map(int, step)), "_runtime": [round(12 + i * sec, 2) for i in range(n)],
         "_timestamp": [f"{1744000000 + i * sec:.2f}" for i in range(n)], **cols}
    fl, _ = tocsv(c, name, d=8, nan="NaN")
    return fl, "wandb history csv"


def tqdm(step, total, cols, sec=0.83, specs=None, name="train.log", head=None, inject=None):
    out = list(head or [])
    specs = specs or {}
    for i, s in enumerate(step):
        out += (inject or {}).get(i, [])
        fr = s / total
        bar = "█" * int(fr * 10) + " " * (10 - int(fr * 10))
        el, rest = int(s * sec), int((total - s) * sec)
        t = lambda x: f"{x // 3600}:{x % 3600 // 60:02d}:{x % 60:02d}" if x >= 3600 else f"{x // 60:02d}:{x % 60:02d}"
        post = ", ".join(f"{k}={f(cols[k][i], specs.get(k, '.3g'))}" for k in cols if cols[k][i] is not None)
        out.append(f"Steps: {int(fr * 100):3d}%|{bar}| {int(s)}/{total} [{t(el)}<{t(rest)},  {1 / sec:.2f}it/s, {post}]")
    return {name: "\n".join(out) + "\n"}, "accelerate tqdm"


def lst(a):
    return [float(v) for v in a]


# =================================================================== FAULTY
@log("divergence", "Falls to 0.04, from 82 % of the run on climbs to almost three times its minimum, held-out loss with it; constant LR.")
def d_late(r):
    n = 1800
    base = pl(n, 0.9, 0.036, 18, 0.75)
    k = 1 + 1.9 * ramp(n, int(.82 * n), 1.4)
    loss = base * k * ln(r, n, .35)
    st = np.arange(1, n + 1) * 50
    return jsonl({"step": st, "loss": loss, "grad_norm": grads(r, base, .9, .3, .3) * k ** .6, "lr": const(n, 1e-4, 10),
                  "val_loss": every(base * 1.04 * k * ln(r, n, .015), 90)})


@log("divergence", "Slow: minimum at a third of the run, then a steady climb of 28 % over the other two thirds, also held out; noise 3 %.")
def d_slow(r):
    n = 900
    base = pl(n, 2.5, 1.27, 25, .9)
    k = 1 + .4 * ramp(n, 290, 1.0)
    st = np.arange(1, n + 1) * 20
    loss = base * k * ln(r, n, .03)
    return lines({"step": st, "loss": loss, "val_loss": every(base * k * 1.02 * ln(r, n, .006), 30),
                  "grad_norm": grads(r, base, 2.1, .4, .2) * k ** 1.2, "lr": const(n, 3e-4, 20)},
                 specs={"lr": ".2e", "grad_norm": ".3f"})


@log("divergence", "Negative log-likelihood of a normalising flow: down to about -1250, back up to about -700, held out as well; constant LR.")
def d_nll(r):
    n = 500
    base = ex(n, 900, -1290, 45)
    up = 560 * ramp(n, 230, 1.3)
    st = np.arange(n) * 100
    loss = base + up + 45 * r.standard_normal(n)
    gn = 160 * ln(r, n, .3) * (1 + 2.2 * ramp(n, 230))
    return tocsv({"step": st, "loss": loss, "val_loss": every(base + up + 22 + 12 * r.standard_normal(n), 20),
                  "grad_norm": gn, "lr": const(n, 5e-4, 10)})


@log("loss_spikes", "One jump at 63 % after which the loss stays 20 % higher to the end (held out too); LR smooth.")
def s_jump20(r):
    n = 2200
    base = pl(n, 10.4, 1.95, 6, .75)
    at = int(.63 * n)
    i = np.arange(n)
    k = np.where(i < at, 1, 1.2 + .22 * np.exp(-np.maximum(i - at, 0) / 12))
    st = (i + 1) * 25
    loss = base * k * ln(r, n, .022)
    gn = grads(r, base, 1.6, .5, .2) * np.where((i >= at) & (i < at + 10), 6, 1)
    return lines({"step": st, "train/loss": loss, "train/grad_norm": gn, "lr": warmcos(n, 3e-4, 40, 3e-5),
                  "val/loss": every(base * k * 1.01 * ln(r, n, .004), 100)}, "iter", total=55000,
                 specs={"lr": ".3e", "train/grad_norm": ".2f"})


@log("loss_spikes", "Some 45 narrow spikes of 5 to 30 times the level all through the run; the level between them is fine.")
def s_narrow(r):
    n = 3000
    base = pl(n, 1.05, .1, 30, .9)
    k = np.ones(n)
    for a in np.sort(r.choice(np.arange(150, n - 10), 46, replace=False)):
        h, w = r.uniform(5, 30), r.integers(1, 5)
        for j in range(w):
            k[a + j] = max(k[a + j], 1 + (h - 1) * .55 ** j)
    loss = base * k * ln(r, n, .1)
    return jsonl({"step": np.arange(n) * 10, "loss": loss, "grad_norm": grads(r, base, 1.2, .4, .3, 0) * k ** 1.3,
                  "lr": const(n, 2e-4, 50)})


@log("loss_spikes", "At 70 % a jump by a factor 60 that dies away in a few logs but settles at 1.8 times the old level.")
def s_60x(r):
    n = 300
    base = pl(n, 1.95, .58, 15, .9)
    i = np.arange(n)
    at = 211
    k = np.where(i < at, 1, 1.8 + 58 * np.exp(-np.maximum(i - at, 0) / 1.6))
    loss = base * k * ln(r, n, .05)
    gn = grads(r, base, 2.2, .4, .25) * np.where(i < at, 1, 1.6 + 40 * np.exp(-np.maximum(i - at, 0) / 2))
    ep = (i + 1) / 100
    return hf({"step": (i + 1) * 50, "loss": loss, "grad_norm": gn, "learning_rate": warmcos(n, 1e-4, 15, 0), "epoch": ep,
               "eval_loss": every(base * np.where(i < at, 1, 1.8) * 1.03 * ln(r, n, .006), 30)})


@log("loss_spikes", "28 wide spikes (8 to 25 rows) of 2.5 to 5 times the level, from the beginning to the end, with the gradient norm.")
def s_wide(r):
    n = 1500
    base = pl(n, 3.2, .82, 30, .7)
    k = np.ones(n)
    for a in np.linspace(60, n - 40, 28) + r.integers(-15, 15, 28):
        a = int(a)
        h, w = r.uniform(2.5, 5), r.integers(8, 26)
        for j in range(-2, w):
            if 0 <= a + j < n:
                v = 1 + (h - 1) * (np.exp(-j / (w / 3)) if j >= 0 else .4)
                k[a + j] = max(k[a + j], v)
    loss = base * k * ln(r, n, .05)
    return lines({"step": (np.arange(n) + 1) * 20, "loss_flow": loss, "grad_norm": grads(r, base, .8, .4, .25) * k ** 1.5,
                  "lr": const(n, 1e-4, 25)}, "iter", total=30000, specs={"lr": ".2e", "grad_norm": ".3f"})


@log("nan_loss", "Ordinary run; in the last 7 % first the gradient norm, then the loss are nan to the end.")
def n_end(r):
    n = 1200
    base = pl(n, .98, .17, 40, .8)
    at = int(.93 * n)
    loss = base * ln(r, n, .15)
    gn = grads(r, base, .7, .5, .3)
    gn[at - 3:at] *= [3, 14, 80]
    gn[at:] = np.nan
    loss[at + 1:] = np.nan
    return lines({"step": (np.arange(n) + 1) * 50, "loss": loss, "grad_norm": gn, "lr": const(n, 1e-4, 20)},
                 prefix=stamp(), specs={"lr": ".1e"}, sep=", ")


@log("nan_loss", "CSV whose loss cells stay empty from 70 % on (held-out loss too) while step, lr and time go on.")
def n_empty(r):
    n = 640
    at = 449
    fl = pl(n, 1.4, .31, 25, .8) * ln(r, n, .09)
    kl = pl(n, 22, 6.5, 60, .8) * ln(r, n, .05)
    cut = lambda y: [float(v) if i < at else None for i, v in enumerate(y)]
    v = every(pl(n, 1.4, .33, 25, .8) * ln(r, n, .01), 20)
    return tocsv({"step": np.arange(n) * 25, "loss": cut(fl + 1e-3 * kl), "loss_flow": cut(fl), "loss_kl": cut(kl),
                  "val_loss": [x if i < at else None for i, x in enumerate(v)], "lr": warmcos(n, 2e-4, 20, 1e-6),
                  "sec_per_step": .41 * ln(r, n, .03)})


@log("nan_loss", "HF run: from a third on loss 0.0 with grad_norm nan, then eval_loss nan.")
def n_hf0(r):
    n = 150
    at = 52
    loss = pl(n, 2.2, 1.1, 12, .7) * ln(r, n, .06)
    gn = grads(r, loss, 3.1, .4, .25)
    ev = every(pl(n, 2.2, 1.12, 12, .7) * ln(r, n, .005), 25)
    loss[at:], gn[at:] = 0.0, np.nan
    ev = [np.nan if (v is not None and i >= at) else v for i, v in enumerate(ev)]
    return hf({"step": (np.arange(n) + 1) * 10, "loss": loss, "grad_norm": gn, "learning_rate": warmcos(n, 2e-4, 5),
               "epoch": (np.arange(n) + 1) / 50, "eval_loss": ev})


@log("no_learning", "Loss stays at log(1024) from the first to the last step, accuracy at chance, LR and gradient ordinary.")
def no_learn(r):
    n = 600
    loss = 6.936 + ar(r, n, .018, .2)
    ac = np.abs(.00098 + 2e-4 * r.standard_normal(n))
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss": loss, "grad_norm": .42 * ln(r, n, .2), "lr": warmcos(n, 3e-4, 20, 1e-5),
                  "val_loss": every(6.9335 + .003 * r.standard_normal(n), 30), "val_acc": every(ac, 30)})


@log("lr_too_small", "Linear decay stepped per micro-batch: LR 0 at 12 % of the run, the loss stands still at 0.7 from there on (held out too).")
def lr_zero(r):
    n = 1000
    at = 120
    lr = np.clip(1e-4 * np.minimum((np.arange(n) + 1) / 10, 1) * (1 - np.arange(n) / at), 0, None)
    base = pl(n, 1.02, .3, 40, .55)
    c = np.cumsum(lr) / lr.sum()
    base = .70 + .32 * (1 - c) ** 1.3
    loss = base * ln(r, n, .13)
    return lines({"step": (np.arange(n) + 1) * 20, "train_loss": loss, "val_loss": every(base * 1.01 * ln(r, n, .004), 50),
                  "grad_norm": .55 * ln(r, n, .2), "lr": lr}, "bracket", total=20000, specs={"lr": ".3e", "grad_norm": ".3f"},
                 head=["max_train_steps=20000 gradient_accumulation_steps=8 lr_scheduler=linear learning_rate=1e-4 warmup=200"])


@log("lr_too_small", "Warm-up far longer than the run: LR never passes 1.2e-8, the loss does not move.")
def lr_warm(r):
    n = 60
    st = (np.arange(n) + 1) * 5
    loss = 2.871 + .07 * r.standard_normal(n)
    return hf({"step": st, "loss": loss, "grad_norm": 5.2 * ln(r, n, .15), "learning_rate": 2e-5 * st / 500000, "epoch": st / 150,
               "eval_loss": every(2.866 + .0015 * r.standard_normal(n), 15)},
              tail=["{'train_runtime': 1893.4421, 'train_samples_per_second': 5.07, 'train_loss': 2.8694, 'epoch': 2.0}"])


@log("lr_too_high", "Adam at 0.03: the loss swings between about 2 and 60 for the whole run, no trend, restless large gradients.")
def lr_high(r):
    n = 400
    y = 9 * np.exp(ar(r, n, .75, .55))
    y[0] = 1.02
    gn = 310 * (y / 9) ** 1.2 * ln(r, n, .7)
    v = every(9.5 * np.exp(ar(r, n, .6, 0)), 40)
    return jsonl({"step": np.arange(n) * 25, "loss": y, "grad_norm": gn, "lr": const(n, 3e-2), "val_loss": v}, d=6)


@log("lr_too_high", "LR 0.02 for 60 % of the run: wild oscillation; after the step to 2e-4 the loss is calm and falls.")
def lr_high_rec(r):
    n = 700
    at = 420
    i = np.arange(n)
    hi = 2.4 * np.exp(ar(r, n, .6, .5))
    lo = .14 + 1.5 * np.exp(-np.maximum(i - at, 0) / 30)
    loss = np.where(i < at, hi, lo * ln(r, n, .07))
    loss[0] = 2.3
    gn = np.where(i < at, 60 * (hi / 2.4) ** 1.1 * ln(r, n, .6), 1.8 * (lo / .2) ** .5 * ln(r, n, .25))
    return tocsv({"step": i * 50, "loss": loss, "grad_norm": gn, "lr": np.where(i < at, 2e-2, 2e-4)}, "log.csv")


@log("lr_restart", "LR decays to 1e-6 and jumps back to its peak at 55 %; the loss more than doubles and does not come back.")
def restart_a(r):
    n = 1200
    at = 660
    i = np.arange(n)
    lr = np.where(i < at, warmcos(n, 3e-4, 20, 1e-6, at), 1e-6 + (3e-4 - 1e-6) * .5 * (1 + np.cos(np.pi * np.clip((i - at) / 2600, 0, 1))))
    base = pl(n, .95, .074, 25, .85)
    lvl = base[at]
    b = np.where(i < at, base, lvl * (1.75 + .6 * np.exp(-np.maximum(i - at, 0) / 60)))
    loss = b * ln(r, n, .08)
    return wbhist(i * 40, {"train/loss": loss, "train/lr": lr, "train/grad_norm": grads(r, b, .8, .5, .25),
                           "val/loss": every(b * 1.06 * ln(r, n, .01), 60)})


@log("lr_restart", "After a resume the scheduler starts at its peak again (3e-5 to 1e-3); the loss jumps from 1.0 to 1.7 and ends at 1.35.")
def restart_b(r):
    n = 520
    at = 338
    i = np.arange(n)
    lr = np.where(i < at, 1e-3 * (1 - .97 * i / at), 1e-3 * (1 - .3 * np.maximum(i - at, 0) / n))
    base = pl(n, 4.6, .84, 12, .8)
    b = np.where(i < at, base, 1.33 + .42 * np.exp(-np.maximum(i - at, 0) / 25))
    loss = b * ln(r, n, .03)
    st = (i + 1) * 100
    return lines({"step": st, "loss": loss, "lr": lr, "gnorm": grads(r, b, 1.9, .4, .2)}, prefix=stamp("2025-05-02", 7, 61),
                 specs={"lr": ".3e", "gnorm": ".2f"}, inject={at: ["2025-05-02 12:43:31 INFO trainer: Loaded model and optimizer from ckpt/033800.pt"]})


@log("overfitting", "Small: 30 evaluations, minimum at 40 %, then up by 10 % while the training loss keeps falling.")
def over_small(r):
    n = 600
    tr = pl(n, 1.1, .34, 40, .55)
    tr = tr * (1 - .18 * ramp(n, 150))
    v = (.52 + .58 * np.exp(-np.arange(n) / 55)) * (1 + .115 * ramp(n, 235))
    ep = np.arange(n) // 20
    return lightning((np.arange(n) + 1) * 50, {"train_loss": lst(tr * ln(r, n, .05)), "lr-AdamW": lst(const(n, 1e-4))},
                     {"val_loss": every(v * ln(r, n, .005), 20)}, ep)


@log("overfitting", "45 epochs: training loss to 0.03, validation best at epoch 9 and more than doubled at the end, accuracy sinks.")
def over_large(r):
    n = 45
    tr = ex(n, .69, .028, 9) * ln(r, n, .03)
    v = ex(n, .685, .36, 4) + .62 * ramp(n, 8, .9)
    ac = 1 - (.48 * np.exp(-np.arange(n) / 3.5) + .155) - .035 * ramp(n, 9)
    return tocsv({"epoch": np.arange(n) + 1, "train_loss": tr, "val_loss": v * ln(r, n, .015), "val_acc": ac + .003 * r.standard_normal(n),
                  "lr": const(n, 3e-4)}, "history.csv")


@log("periodic_memorisation", "Six epochs, the loss is flat within an epoch and steps down at each boundary.")
def per_stairs(r):
    n = 480
    i = np.arange(n)
    e = i // 80
    lv = np.array([1.46, 1.16, .83, .52, .31, .2])[e]
    lv = lv * (1 + .015 * ((i % 80) / 80)) + np.where(e == 0, .9 * np.exp(-i / 5), 0)
    return hf({"step": (i + 1) * 10, "loss": lv * ln(r, n, .035), "grad_norm": 1.3 * (1 + .35 * e) * ln(r, n, .2),
               "learning_rate": warmcos(n, 2e-5, 14), "epoch": (i + 1) / 80})


@log("periodic_memorisation", "Short period: the same saw-tooth of 15 % every 30 rows (one epoch, fixed data order) on a falling trend.")
def per_short(r):
    n = 1500
    i = np.arange(n)
    base = pl(n, .52, .17, 60, .6)
    t = .17 * ((i % 30) / 29 - .5) * 2
    tm = .06 * r.standard_normal(30)
    loss = base * (1 + t + tm[i % 30]) * ln(r, n, .04)
    return jsonl({"step": (i + 1) * 20, "epoch": i // 30, "loss": loss, "lr": const(n, 2e-4, 30), "grad_norm": grads(r, base, .6, .4, .25)})


@log("periodic_memorisation", "Long period: five epochs of 52 rows, in each the loss drops at the boundary and climbs by a third until the next.")
def per_long(r):
    n = 260
    i = np.arange(n)
    ph = (i % 52) / 52
    e = i // 52
    base = np.where(e == 0, .62 + .5 * np.exp(-i / 6), .5 * .94 ** (e - 1) * (1 + .36 * ph))
    loss = base * ln(r, n, .05)
    return lines({"step": (i + 1) * 10, "epoch": e + 1, "loss": loss, "lr": const(n, 5e-5)}, "bracket", total=2600,
                 specs={"lr": ".1e"})


@log("grad_explosion", "Gradient norm grows from 0.2 to some hundreds over the whole run, the loss still falls normally.")
def g_explode(r):
    n = 800
    base = pl(n, 1.0, .2, 40, .8)
    gn = .2 * np.exp(np.linspace(0, np.log(3000), n)) * ln(r, n, .35)
    return jsonl({"step": (np.arange(n) + 1) * 100, "loss": base * ln(r, n, .1), "val_loss": every(base * 1.03 * ln(r, n, .01), 40),
                  "grad_norm": gn, "lr": warmcos(n, 2e-4, 20, 2e-5)})


@log("grad_vanishing", "Gradient norm falls below 1e-8 in the first fifth, the loss stays at 2.303, LR ordinary.")
def g_vanish(r):
    n = 350
    lg = np.log(1.1) - 18.5 * np.minimum(np.arange(n) / 70, 1)
    return tocsv({"step": (np.arange(n) + 1) * 100, "loss": 2.3035 + .006 * r.standard_normal(n) + .05 * np.exp(-np.arange(n) / 4),
                  "grad_norm": np.exp(lg) * ln(r, n, .3), "lr": const(n, 1e-3), "val_acc": every(.1 + .002 * r.standard_normal(n), 25)})


@log("grad_vanishing", "Gradual: the norm sinks log-linearly from 0.8 to about 2e-8 over the run, the loss stands at 3.4 from 30 % on.")
def g_vanish_slow(r):
    n = 1400
    base = ex(n, 4.3, 3.4, 120)
    gn = .8 * np.exp(-np.linspace(0, 17.5, n)) * ln(r, n, .3)
    return lines({"step": (np.arange(n) + 1) * 10, "loss": base * ln(r, n, .012), "val_loss": every(base * 1.006 * ln(r, n, .002), 100),
                  "grad_norm": gn, "lr": const(n, 2e-4, 30)}, specs={"grad_norm": ".3e", "lr": ".1e"}, eq=": ", sep=", ")


@log("amp_overflow", "Megatron-like: the loss scale is halved iteration after iteration to below 1e-6, every iteration skipped, lm loss flat.")
def amp_a(r):
    n = 240
    out = []
    sc = 65536.0
    skip = 0
    for i in range(n):
        sk = 1 if (i % 5 != 2 or i > 30) else 0
        if sk and i % 2 == 0 and i < 90:
            sc /= 2
        skip += sk
        gnv = "inf" if sk else f"{4.1 + r.normal() * .3:.3f}"
        out.append(f" iteration {i * 10 + 10:8d}/  300000 | consumed samples: {(i * 10 + 10) * 512:12d} | elapsed time per iteration (ms): "
                   f"{5200 + r.normal() * 40:.1f} | learning rate: {1.5e-4 * min(1, (i + 1) / 200):.3E} | global batch size:   512 | "
                   f"lm loss: {10.41 + r.normal() * .012:.6E} | loss scale: {sc:.6g} | grad norm: {gnv} | "
                   f"number of skipped iterations: {10 * sk:3d} | number of nan iterations:   0 |")
    return {"out.log": "\n".join(out) + "\n"}, "megatron lines"


@log("amp_overflow", "Healthy until 45 %, then scaler/scale goes from 65536 to 2^-24 and stays, each step skipped, grad inf, loss frozen.")
def amp_b(r):
    n = 900
    at = 405
    i = np.arange(n)
    base = pl(n, 1.0, .22, 40, .7)
    base[at:] = base[at]
    sc = np.where(i < at, 65536.0, 65536.0 * .5 ** np.minimum(np.maximum(i - at, 0) // 2, 40))
    gn = grads(r, base, .9, .5, .25)
    gn[at:] = np.inf
    sk = np.where(i < at, 2, 2 + (i - at + 1) * 20)
    gl = lst(gn)
    return jsonl({"step": (i + 1) * 20, "loss": base * ln(r, n, .1), "scaler/scale": sc, "skipped_steps": sk, "grad_norm": gl,
                  "lr": warmcos(n, 1e-4, 15, 1e-6)}, d=8)


@log("resume_from_scratch", "At 30 % a resume: the step goes on, loss and held-out loss begin again at their first values.")
def res_30(r):
    n = 1000
    at = 300
    one = pl(n, 1.05, .21, 30, .75)
    base = np.concatenate([one[:at], one[:n - at]])
    v = every(base * 1.02 * ln(r, n, .01), 25)
    gn = grads(r, base, 1.4, .6, .25)
    return lines({"step": (np.arange(n) + 1) * 100, "loss": base * ln(r, n, .28), "val_loss": v, "grad_norm": gn, "lr": warmcos(n, 2e-4, 10, 1e-6)},
                 prefix=stamp("2025-06-20", 1, 44), specs={"lr": ".3e"},
                 inject={at: ["2025-06-20 04:39:48 INFO trainer: resuming from runs/b16/last.pt (step 30000)"]})


@log("resume_from_scratch", "At 60 % a resume with the step counter back at 0 and the loss back at its first value, falling as in a fresh run.")
def res_60(r):
    n = 1300
    at = 780
    one = pl(n, 11.1, 2.9, 8, .6)
    base = np.concatenate([one[:at], one[:n - at]])
    st = np.concatenate([np.arange(at) * 20, np.arange(n - at) * 20])
    lr = np.concatenate([warmcos(at, 6e-4, 50, 6e-5, 1400), warmcos(n - at, 6e-4, 50, 6e-5, 1400)])
    return lines({"step": st, "loss": base * ln(r, n, .018), "lr": lr, "grad_norm": grads(r, base, 3.2, .9, .2)},
                 "iter", total=28000, specs={"lr": ".2e", "grad_norm": ".3f"},
                 inject={at: ["[ckpt] found out/ckpt_015500.pt, resuming training from iteration 15500"]})


@log("resume_from_scratch", "At 90 % loss, val loss and val cos go back to their first values and run through the early curve again; steps go on.")
def res_90(r):
    n = 1500
    at = 1350
    one = pl(n, 1.31, .3, 14, .8)
    base = np.concatenate([one[:at], one[:n - at]])
    c = np.sqrt(np.clip(1 - base / 1.34, 0, 1))
    st = np.arange(n) * 50
    return wbchart(st, {"train/loss": lst(base * ln(r, n, .06)), "val/loss": every(base * 1.03 * ln(r, n, .01), 30, True),
                        "val/cos": every(c + .004 * r.standard_normal(n), 30, True), "train/lr": lst(const(n, 1e-4, 20))}, "fm-b2-256")


@log("self_stopped", "Planned 60000 iterations, ends at 21 k with the watchdog's line: gradient norm above its limit 20 times in a row.",
     ["grad_explosion", "divergence", "loss_spikes"])
def stopped(r):
    n = 430
    base = pl(n, 1.2, .33, 25, .7)
    k = 1 + 1.3 * ramp(n, 405, 1.5)
    gn = grads(r, base, 1.1, .4, .3) * np.exp(np.log(4e5) * ramp(n, 340, 1))
    return lines({"step": (np.arange(n) + 1) * 50, "loss_flow": base * k * ln(r, n, .08), "grad_norm": gn, "lr": const(n, 2e-4, 20)},
                 "iter", total=60000, specs={"lr": ".1e", "grad_norm": ".4g"},
                 head=["max_iters=60000 batch=64 watchdog: grad_norm limit 1e5, patience 20"],
                 tail=[f"[watchdog] iter 21500: grad_norm {gn[-1]:.4g} > 1e+05 for 20 consecutive checks, stopping the run", "exit code 3"])


@log("metrics_lost", "val/loss, val/fid and val/clip become null at 55 % and stay so; the training loss goes on.")
def lost(r):
    n = 1100
    base = pl(n, 1.0, .19, 40, .7)
    at = 605
    mk = lambda y: [None if v is None else (v if i < at else NULL) for i, v in enumerate(every(y, 50))]
    return jsonl({"step": (np.arange(n) + 1) * 40, "train/loss": base * ln(r, n, .12), "train/grad_norm": grads(r, base, .7), "lr": const(n, 1e-4, 20),
                  "val/loss": mk(base * 1.02 * ln(r, n, .008)), "val/fid": mk(pl(n, 280, 14, 60, .8) * ln(r, n, .02)),
                  "val/clip": mk(.31 - pl(n, .12, .01, 80, .7))})


@log("ema_broken", "val_loss of the raw weights falls from 1.0 to 0.3, the one of the EMA weights stays at its first value.")
def ema_dead(r):
    n = 500
    base = pl(n, 1.01, .27, 30, .8)
    ve = 1.012 + .002 * r.standard_normal(n)
    return lines({"step": (np.arange(n) + 1) * 100, "loss": base * ln(r, n, .1), "val_loss": every(base * 1.02 * ln(r, n, .01), 25, True),
                  "val_loss_ema": every(ve, 25, True), "lr": const(n, 1e-4, 10)}, specs={"lr": ".1e"})


@log("ema_broken", "Decay 0.99999 in a run of 24000 steps: the EMA evaluation crawls from 1.01 to 0.84 while the raw one reaches 0.3.")
def ema_lag(r):
    n = 480
    st = (np.arange(n) + 1) * 50
    raw = pl(n, 1.01, .25, 22, .8)
    fr = .99999 ** st
    em = .82 * fr ** .9 * (1.01 - raw) * .95 + raw
    return jsonl({"step": st, "train/loss": raw * ln(r, n, .08), "val/loss": every(raw * 1.03 * ln(r, n, .008), 16),
                  "val/loss_ema": every(em * ln(r, n, .004), 16), "val/fid": every(pl(n, 300, 21, 20, .9) * ln(r, n, .03), 48),
                  "val/fid_ema": every((300 - 60 * (1 - fr) / .21) * ln(r, n, .02), 48), "ema_decay": [.99999] * n, "lr": const(n, 1e-4, 10)})


def shares(r, n, fl, di, kl, s=.15):
    """weighted gradient norms, almost orthogonal"""
    fl, di, kl = (np.asarray(x) * np.ones(n) * ln(r, n, s) for x in (fl, di, kl))
    return {"grad/flow": fl, "grad/dino": di, "grad/kl": kl, "grad/total": np.sqrt(fl ** 2 + di ** 2 + kl ** 2) * ln(r, n, .02)}


@log("weak_gradient_share", "grad/dino is 1.5 to 4 % of grad/total for the whole run, flow and kl are in their band.")
def share_dino(r):
    n = 400
    fl = pl(n, 1.8, .62, 30, .6)
    sh = .026 + ar(r, n, .004, .97)
    gr = shares(r, n, fl, np.clip(sh, .016, .037) * fl, .2 * fl, .07)
    c = rise(n, .02, .74, 40)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/total": pl(n, 2.5, 1.35, 30, .6) * ln(r, n, .05), "loss/flow": pl(n, 1.4, .5, 30, .7) * ln(r, n, .08),
                  "loss/dino": pl(n, 8.3, 7.6, 90, .7) * ln(r, n, .004), "loss/kl": pl(n, .3, .11, 50, .7) * ln(r, n, .03), **gr,
                  "flow/cos": c + .01 * r.standard_normal(n), "lr": const(n, 1e-4, 20)})


@log("weak_gradient_share", "grad/flow only 3 to 4.7 % of grad/total for the whole run, drowned by dino; cos creeps up.")
def share_flow(r):
    n = 900
    di = pl(n, 9, 5.5, 60, .6)
    sh = np.clip(.039 + ar(r, n, .004, .98), .031, .045)
    gr = shares(r, n, sh * di, di, .13 * di, .02)
    c = .02 + .55 * (1 - np.exp(-np.arange(n) / 420)) + .012 * r.standard_normal(n)
    lf = 1.6 * (1 - (c * .97) ** 2) * ln(r, n, .04)
    return tocsv({"step": (np.arange(n) + 1) * 20, "loss/flow": lf, "loss/dino": pl(n, 8.2, 3.1, 70, .7) * ln(r, n, .02),
                  "loss/kl": pl(n, .5, .12, 60, .8) * ln(r, n, .04), **gr, "flow/cos": c, "lr": warmcos(n, 2e-4, 40, 2e-5)})


@log("head_not_updated", "step/z_head_update_ratio about 3e-6 from beginning to end, flow head at 6e-4, LR ordinary.")
def head(r):
    n = 450
    zr = 3.1e-6 * np.exp(ar(r, n, .3, .8)) * pl(n, 1.4, .9, 60)
    lr = const(n, 1e-4, 20)
    w = lr / 1e-4
    return lines({"step": (np.arange(n) + 1) * 40, "loss/flow": pl(n, 1.7, .74, 30, .7) * ln(r, n, .06), "loss/kl": .42 * ln(r, n, .03),
                  "grad/total": pl(n, 1.5, .5, 40) * ln(r, n, .2), "step/z_head_update_ratio": zr * w,
                  "step/flow_head_update_ratio": 6.1e-4 * w * ln(r, n, .15), "lr": lr},
                 specs={"step/z_head_update_ratio": ".3e", "step/flow_head_update_ratio": ".3e", "lr": ".1e"})


@log("teacher_collapsed", "ent/teacher starts near log 4096, sinks from a third on to 0.15 and stays; the student follows, dino gradient dies.")
def teach_peak(r):
    n = 700
    drop = sig(n, 270, 28)
    te = (8.2 - 2.1 * (1 - np.exp(-np.arange(n) / 60))) * (1 - drop) + .15 * drop * ln(r, n, .15)
    stu = 8.31 - 1.9 * (1 - np.exp(-np.arange(n) / 90))
    ds = sig(n, 320, 35)
    stu = stu * (1 - ds) + .32 * ds * ln(r, n, .1)
    fl = pl(n, 1.5, .6, 40)
    gd = .35 * fl * (1 - .97 * sig(n, 330, 30))
    gr = shares(r, n, fl, gd, .2 * fl)
    dl = te + .25 + .5 * np.exp(-np.arange(n) / 150)
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss/flow": pl(n, 1.5, .55, 40) * ln(r, n, .07), "loss/dino": dl * ln(r, n, .01),
                  "ent/teacher": te, "ent/student": stu, **gr, "lr": const(n, 1e-4, 20)},
                 head=[{"config": {"dino_out_dim": 4096, "teacher_temp": 0.01, "student_temp": 0.1, "w_dino": 0.5}}])


@log("teacher_uniform", "ent/teacher equals log 65536 from the first fifth on, loss/dino sits at 11.09; the student becomes uniform too.")
def teach_flat(r):
    n = 550
    te = 11.0903 - .35 * np.exp(-np.arange(n) / 25) - np.abs(1e-4 * r.standard_normal(n))
    stu = 11.0902 - .9 * np.exp(-np.arange(n) / 40) - np.abs(4e-4 * r.standard_normal(n))
    return lines({"step": np.arange(n) * 20, "loss/dino": 11.0905 + .4 * np.exp(-np.arange(n) / 15) + np.abs(3e-4 * r.standard_normal(n)),
                  "ent/teacher": te, "ent/student": stu, "lr": warmcos(n, 5e-4, 50, 1e-6), "grad_norm": (.02 + .8 * np.exp(-np.arange(n) / 20)) * ln(r, n, .25)},
                 "iter", total=11000, specs={"lr": ".2e"}, head=["DINO head: out_dim=65536 teacher_temp=0.07 student_temp=0.1 center_momentum=0.9"])


@log("student_saturated", "ent/student sinks below 5 % of log 8192 with a vanishing dino gradient, the teacher keeps an entropy of 3.", ["weak_gradient_share"])
def student(r):
    n = 800
    te = 3.05 + .9 * np.exp(-np.arange(n) / 80) + ar(r, n, .06, .9)
    stu = .19 + 8.6 * np.exp(-np.arange(n) / 55)
    fl = pl(n, 1.3, .55, 40)
    gr = shares(r, n, fl, fl * (.018 + .3 * np.exp(-np.arange(n) / 70)), .18 * fl)
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss/flow": pl(n, 1.2, .5, 40) * ln(r, n, .08), "loss/dino": (6.6 + 2.3 * np.exp(-np.arange(n) / 60)) * ln(r, n, .015),
                  "ent/teacher": te, "ent/student": np.minimum(stu * ln(r, n, .06), 8.99), **gr, "lr": const(n, 1e-4, 20)},
                 head=[{"config": {"dino_out_dim": 8192, "T_t": 0.06, "T_s": 0.02, "w_dino": 0.2}}])


def post(r, n, mu, std, s=.01):
    """posterior statistics that fit each other"""
    mu, std = mu * ln(r, n, s), std * ln(r, n, s * .6)
    sp = .12
    lv = 2 * np.log(std) - sp ** 2
    return {"mu/abs_mean": mu * .8, "mu/rms": mu, "logvar/mean": lv, "std/mean": std, "std/min": std * .62, "std/max": std * 1.5,
            "z_init/mean": .004 * r.standard_normal(n), "z_init/var": mu ** 2 + std ** 2 * (1 + sp ** 2),
            "loss/kl": .5 * (mu ** 2 + std ** 2 * (1 + sp ** 2) - 1 - lv)}


@log("kl_not_acting", "w/kl 1e-6: mu/abs_mean grows eightfold, z_init/var leaves 1 for 7, KL rises all the time; flow falls.")
def kl_big(r):
    n = 600
    x = np.arange(n) / n
    p = post(r, n, .3 + 1.95 * x ** .6, .99 + .42 * x ** .7)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": pl(n, 1.9, .6, 40, .7) * ln(r, n, .07), **p, "w/kl": 1e-6 * np.minimum(1, x * 10),
                  "lr": const(n, 1e-4, 20)})


@log("kl_not_acting", "Subtle: long after the KL warm-up mu/rms keeps growing from 0.35 to 1.25, std goes from 0.95 to 0.6, KL rises steadily.")
def kl_subtle(r):
    n = 1000
    x = np.arange(n) / n
    p = post(r, n, .35 + .9 * x ** .8, .95 - .34 * x, .015)
    c = rise(n, .02, .66, 90)
    return tocsv({"step": (np.arange(n) + 1) * 30, "loss/flow": 1.7 * (1 - c ** 2) * ln(r, n, .06), **p, "w/kl": 2e-5 * np.minimum(1, x * 10),
                  "flow/cos": c + .01 * r.standard_normal(n), "lr": warmcos(n, 2e-4, 50, 2e-5)})


@log("posterior_collapse", "KL to 2e-4, mu to 0.01, std to 1.000 soon after the KL warm-up; flow loss stalls.")
def collapse(r):
    n = 500
    d = sig(n, 90, 18)
    p = post(r, n, .75 * (1 - d) + .011 * d, .86 * (1 - d) + .9995 * d, .003)
    # spread of sigma vanishes with it
    m, s = p["mu/rms"], p["std/mean"]
    p["logvar/mean"] = 2 * np.log(s)
    p["std/min"], p["std/max"] = s * (.7 * (1 - d) + .992 * d), s * (1.3 * (1 - d) + 1.008 * d)
    p["z_init/var"] = (m ** 2 + s ** 2) * ln(r, n, .002)
    p["loss/kl"] = .5 * (m ** 2 + s ** 2 - 1 - 2 * np.log(s)) + 1e-5
    fl = pl(n, 1.9, 1.38, 20, .9) + .1 * d
    return jsonl({"step": (np.arange(n) + 1) * 40, "loss/flow": fl * ln(r, n, .03), **p, "w/kl": .5 * np.minimum(1, np.arange(n) / 50), "lr": const(n, 1e-4, 20)})


@log("sigma_collapse", "std/mean sinks slowly from 0.85 to 0.05, logvar/mean ends on its clamp at -6 and stays there; mu is steady.")
def sigma(r):
    n = 750
    lv = np.maximum(-.35 - 6.4 * ramp(n, 40, .8), -6) + np.where(np.arange(n) < 600, .01 * r.standard_normal(n), 0)
    lv = np.maximum(lv, -6)
    std = np.exp(lv / 2)
    mu = .52 * ln(r, n, .015)
    mn = np.maximum(lv - .9, -6)
    return lines({"step": (np.arange(n) + 1) * 40, "loss/flow": pl(n, 1.6, .7, 40, .7) * ln(r, n, .06), "loss/kl": .5 * (mu ** 2 + std ** 2 - 1 - lv),
                  "mu/rms": mu, "logvar/mean": lv, "std/mean": std, "std/min": np.exp(mn / 2), "std/max": np.exp(np.maximum(lv + .6, -6) / 2), "lr": const(n, 1e-4, 20)},
                 specs={"lr": ".1e"}, head=["logvar_clamp=(-6, 6) w_kl=1e-4"])


@log("z0_leak", "One-step cos 0.95 and nmse 0.07, but std/mean sinks to 0.17 and the relative shooting error grows to 1.4; FID gets worse.")
def leak(r):
    n = 400
    x = np.arange(n) / n
    c = rise(n, .05, .965, 20) + .003 * r.standard_normal(n)
    q = c * .995
    std = .9 * (1 - sig(n, 110, 35)) + .17 * sig(n, 110, 35)
    ev = lambda y: every(y, 20)
    sh = .75 + .68 * x ** .7
    d = {"step": (np.arange(n) + 1) * 100, "loss/flow": nmse(c, q) * 1.8 * ln(r, n, .04), "flow/cos": c, "flow/nmse": nmse(c, q), "flow/speed_ratio": q,
         "std/mean": std * ln(r, n, .01), "mu/rms": .8 * ln(r, n, .01), "lr": const(n, 1e-4, 20)}
    for j, k in enumerate((8, 16, 32, 64)):
        d[f"flow/endpt_rmse@{k}"] = ev(np.sqrt(sh * 1.8) * (1 - .004 * j) * ln(r, n, .01))
    d["shoot/rel_mse"] = ev(sh * ln(r, n, .02))
    d["val/fid"] = ev((150 + 60 * x) * ln(r, n, .02))
    return jsonl(d)


@log("scale_mismatch", "z0_norm about 64 against z1_norm 240 to 290 in every batch; the flow loss hardly falls after the start.")
def scale(r):
    n = 320
    z0 = 64 * ln(r, n, .008)
    z1 = r.uniform(240, 290, n)
    t = .5
    xt = np.sqrt((1 - t) ** 2 * z0 ** 2 + t ** 2 * z1 ** 2) * ln(r, n, .05)
    v = np.sqrt(z0 ** 2 + z1 ** 2)
    lf = pl(n, 17.2, 11.0, 12, .9) * (v / 270) ** 2 * ln(r, n, .04)
    return lines({"step": (np.arange(n) + 1) * 50, "loss_flow": lf, "z0_norm": z0, "z1_norm": z1, "xt_norm": xt, "v_norm": v, "lr": const(n, 1e-4, 10)},
                 "iter", total=16000, specs={"lr": ".1e", "z0_norm": ".1f", "z1_norm": ".1f", "xt_norm": ".1f", "v_norm": ".1f"})


@log("weak_field", "After 26000 steps flow/cos is 0.06 and the speed ratio 0.29, both hardly moving; endpoint errors large at every K.")
def weak(r):
    n = 520
    x = np.arange(n) / n
    c = .008 + .055 * x ** .5 + .006 * r.standard_normal(n)
    q = .29 + .04 * np.exp(-np.arange(n) / 40) + .006 * r.standard_normal(n)
    d = {"step": (np.arange(n) + 1) * 50, "loss_flow": 2.25 * nmse(c, q) * ln(r, n, .04), "flow/cos": c, "flow/speed_ratio": q, "flow/nmse": nmse(c, q),
         "grad_norm": .35 * ln(r, n, .25), "lr": const(n, 1e-4, 20)}
    for j, k in enumerate((8, 16, 32, 64)):
        d[f"flow/endpt_rmse@{k}"] = every(2.13 * (1 - .002 * j) * ln(r, n, .006), 26)
    return jsonl(d)


@log("wrong_target", "flow/cos goes down from 0 to -0.8 as the loss falls: the prediction points the other way.")
def wrong(r):
    n = 380
    c = -.81 * (1 - np.exp(-np.arange(n) / 60)) + .012 * r.standard_normal(n)
    q = .1 + .74 * (1 - np.exp(-np.arange(n) / 50)) + .01 * r.standard_normal(n)
    own = 1.9 * (1 - .64 * (1 - np.exp(-np.arange(n) / 60)))
    return tocsv({"step": (np.arange(n) + 1) * 50, "loss": own * ln(r, n, .06), "flow/cos": c, "flow/speed_ratio": q, "flow/nmse": nmse(c, q),
                  "grad_norm": grads(r, own, .8), "lr": const(n, 2e-4, 10)})


@log("moving_target", "loss_flow falls to 0.002 because the target's norm shrinks from 88 to 3 (z0 runs onto z1); nmse stays near 0.4, FID flat.")
def moving(r):
    n = 600
    vt = 3.1 + 85 * np.exp(-np.arange(n) / 110)
    nm = .41 + .5 * np.exp(-np.arange(n) / 25) + .02 * r.standard_normal(n)
    d = vt ** 2 / 4096
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss_flow": d * nm * ln(r, n, .05), "v_tgt_norm": vt * ln(r, n, .01), "v_pred_norm": vt * .75 * ln(r, n, .02),
                  "flow/nmse": nm, "z0_norm": 62 + 1.5 * (1 - np.exp(-np.arange(n) / 110)) + .3 * r.standard_normal(n), "z1_norm": 63.4 + .4 * r.standard_normal(n),
                  "val/fid": every(288 * ln(r, n, .015), 50), "lr": const(n, 1e-4, 20)})


def slices(r, n, mid, shape, tau=40, start=1.0, s=.04):
    d = {}
    for b in range(10):
        y = pl(n, start, mid * shape[b], tau, 1.0) * ln(r, n, s)
        d[f"flow/nmse_t{b}"] = y
    for b in range(10):
        d[f"flow/cos_t{b}"] = np.sqrt(np.clip(1 - d[f"flow/nmse_t{b}"], .0004, 1)) + .004 * r.standard_normal(n)
    return d


@log("t_edges", "nmse of the outer t-slices 3.5 to 5 times the middle in the second half of the run, cos accordingly.")
def edges_a(r):
    n = 400
    sl = slices(r, n, .14, [5.0, 2.2, 1.2, 1, .95, .95, 1, 1.15, 2.0, 4.4], 9)
    al = np.mean([sl[f"flow/nmse_t{b}"] for b in range(10)], axis=0)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": al * 1.8 * ln(r, n, .03), "flow/nmse": al, "flow/cos": np.sqrt(np.clip(1 - al, 0, 1)), **sl,
                  "lr": const(n, 1e-4, 20)})


@log("t_edges", "Only the last slice: nmse_t9 stays at 0.95 while the middle reaches 0.045 (20 times).")
def edges_b(r):
    n = 250
    sl = slices(r, n, .042, [1.5, 1.2, 1, 1, 1, 1, 1.05, 1.2, 2.0, 22.0], 1.6)
    al = np.mean([sl[f"flow/nmse_t{b}"] for b in range(10)], axis=0)
    return wbhist((np.arange(n) + 1) * 100, {"loss/flow": lst(al * 1.8), "flow/nmse": lst(al), **{k: lst(v) for k, v in sl.items()}, "lr": lst(warmcos(n, 1e-4, 10, 1e-6))})


def stats(r, n, B, tmax, x0=(0, 1, -5.6, 4.4), tlo=0):
    t = r.integers(tlo, tmax, (n, B))
    return {"stat/t/min": t.min(1), "stat/t/max": t.max(1), "stat/t/mean": t.mean(1), "stat/t/std": t.std(1),
            "stat/x_0/min": x0[2] + .15 * abs(x0[2]) * r.random(n), "stat/x_0/max": x0[3] - .15 * abs(x0[3]) * r.random(n),
            "stat/x_0/mean": x0[0] + 6e-4 * r.standard_normal(n), "stat/x_0/std": x0[1] * (1 + .0015 * r.standard_normal(n)),
            "stat/noise/mean": 7e-4 * r.standard_normal(n), "stat/noise/std": 1 + 5e-4 * r.standard_normal(n),
            "stat/x_t/mean": 8e-4 * r.standard_normal(n)}


@log("time_sampling", "T = 1000, but t lies between 0 and 499 in every batch (mean 250, std 144); the loss is low and falls.")
def tsamp(r):
    n = 600
    base = pl(n, 1.3, .04, 15, 1.0)
    return jsonl({"step": np.arange(n) * 20, "loss/total": base * ln(r, n, .12), **stats(r, n, 64, 500), "lr": const(n, 1e-4, 20)},
                 head=[{"config": {"T": 1000, "t_sampling": "uniform", "beta_start": 1e-4, "beta_end": 0.02, "pred": "x0"}}])


@log("input_range", "x_0 lies in 0…1 (mean 0.47, std 0.27) in every batch where normalised images are configured.")
def inrange(r):
    n = 300
    s = stats(r, n, 32, 1000)
    s["stat/x_0/min"], s["stat/x_0/max"] = np.zeros(n), np.ones(n)
    s["stat/x_0/mean"], s["stat/x_0/std"] = .47 + .012 * r.standard_normal(n), .268 + .006 * r.standard_normal(n)
    s["stat/x_t/mean"] = .2 + .03 * r.standard_normal(n)
    base = pl(n, .41, .021, 12, .9)
    return jsonl({"step": np.arange(n) * 50, "loss/total": base * ln(r, n, .1), **s, "lr": const(n, 1e-4, 20)},
                 head=[{"config": {"T": 1000, "t_sampling": "uniform", "pred": "x0", "normalize": "[-1,1]", "resolution": 64}}])


@log("condition_unused", "flow/cos rises to 0.68 but cond_gain_cos stays at 0.000 +- 0.002 for the whole run.")
def cond(r):
    n = 450
    c = rise(n, .01, .685, 45) + .008 * r.standard_normal(n)
    q = c * .98
    return lines({"step": (np.arange(n) + 1) * 50, "loss/flow": nmse(c, q) * 1.9 * ln(r, n, .04), "flow/cos": c, "flow/nmse": nmse(c, q), "flow/speed_ratio": q,
                  "flow/cond_gain_cos": -.0002 + .0018 * r.standard_normal(n), "grad_norm": .6 * ln(r, n, .2), "lr": const(n, 1e-4, 20)}, specs={"lr": ".1e"})


@log("train_infer_mismatch", "cos climbs to 0.86 with std/mean 0.95, yet the endpoint error is higher for more steps and does not fall over the run.")
def mismatch(r):
    n = 420
    c = rise(n, .015, .865, 40) + .005 * r.standard_normal(n)
    q = c * .99
    d = {"step": (np.arange(n) + 1) * 50, "loss/flow": nmse(c, q) * 1.9 * ln(r, n, .04), "flow/cos": c, "flow/nmse": nmse(c, q), "flow/speed_ratio": q,
         "std/mean": .95 + .004 * r.standard_normal(n), "lr": const(n, 1e-4, 20)}
    for k, b in zip((8, 16, 32, 64), (1.31, 1.42, 1.50, 1.55)):
        d[f"flow/endpt_rmse@{k}"] = every(b * ln(r, n, .008), 21)
    return jsonl(d)


# =================================================================== HEALTHY
@log("none", "One sample per step, noise of 70 to 80 % of the level, 4000 values, slow fall to a third.")
def h_noise(r):
    n = 4000
    base = pl(n, .38, .1, 250, .9)
    loss = base * r.gamma(1.7, 1 / 1.7, n)
    st = np.arange(n) + 1
    return tqdm(st, n, {"step_loss": loss, "lr": np.full(n, 1e-5)}, .83)


@log("none", "Long plateau at constant LR whose last third wanders up by 2 %, within the slow noise; held out flat.")
def h_wander(r):
    n = 1600
    base = pl(n, 2.9, 1.5, 20, 1.0)
    sl = 1 + ar(r, n, .012, .99) * .8 + .02 * ramp(n, 1000)
    return lines({"step": (np.arange(n) + 1) * 25, "loss": base * sl * ln(r, n, .02), "val_loss": every(base * (1 + .004 * ramp(n, 1000)) * 1.01 * ln(r, n, .005), 80),
                  "grad_norm": grads(r, base, 1.3), "lr": const(n, 2e-4, 30)}, specs={"lr": ".1e"})


@log("none", "Negative log-likelihood, converges from +800 to -1400, noisy.")
def h_nll(r):
    n = 450
    base = ex(n, 800, -1390, 60) - 40 * ramp(n, 0)
    return tocsv({"step": np.arange(n) * 100, "loss": base + 55 * r.standard_normal(n), "val_loss": every(base + 25 + 9 * r.standard_normal(n), 30),
                  "grad_norm": 140 * ln(r, n, .3), "lr": warmcos(n, 5e-4, 10, 1e-6)})


@log("none", "Sum-reduced loss of order 1e4, fast fall then a flat end; 120 values averaged over 100 steps.")
def h_sum(r):
    n = 120
    base = ex(n, 21500, 8350, 5) - 150 * ramp(n, 20)
    return tocsv({"epoch": np.arange(n) + 1, "train_loss": base * ln(r, n, .006), "val_loss": base * 1.035 * ln(r, n, .004), "lr": const(n, 1e-3)}, "log.csv")


@log("none", "One spike of 40 times the level in mid-run, gone after 30 logs; the end is the best of the run.")
def h_spike(r):
    n = 1000
    base = pl(n, 3.4, .7, 25, .75)
    i = np.arange(n)
    k = 1 + np.where(i >= 520, 39 * np.exp(-np.maximum(i - 520, 0) / 5.5), 0)
    return jsonl({"step": (i + 1) * 20, "loss": base * k * ln(r, n, .04), "grad_norm": grads(r, base, 1.1) * k ** .8, "lr": warmcos(n, 3e-4, 20, 1e-5),
                  "val_loss": every(base * 1.02 * ln(r, n, .006), 100)})


@log("none", "Three spikes of 2 to 2.5 times in 3000 values, each recovers in some rows.")
def h_spikes3(r):
    n = 3000
    base = pl(n, 10.8, 2.3, 8, .7)
    i = np.arange(n)
    k = np.ones(n)
    for a, h, w in ((640, 1.1, 9), (1490, 1.5, 14), (2210, 1.0, 6)):
        k += np.where(i >= a, h * np.exp(-np.maximum(i - a, 0) / w), 0)
    return lines({"step": (i + 1) * 10, "loss": base * k * ln(r, n, .02), "gnorm": grads(r, base, 1.8, .6, .2, 0) * k ** 2, "lr": warmcos(n, 3e-4, 60, 3e-5)},
                 "iter", total=30000, specs={"lr": ".3e", "gnorm": ".3f"})


@log("none", "Resolution goes from 256 to 512 at half time (logged): the loss is 17 % higher from there and falls again.")
def h_res(r):
    n = 1200
    at = 600
    i = np.arange(n)
    base = pl(n, .98, .3, 40, .8)
    b = np.where(i < at, base, base[at] * (1.04 + .14 * np.exp(-np.maximum(i - at, 0) / 150)) * (1 - .1 * ramp(n, at)))
    return lines({"step": (i + 1) * 100, "res": np.where(i < at, 256, 512), "loss": b * ln(r, n, .05), "val_loss": every(b * 1.02 * ln(r, n, .008), 60),
                  "grad_norm": grads(r, b, .7), "lr": const(n, 1e-4, 10)}, specs={"lr": ".1e"}, prefix=stamp("2025-02-01", 0, 30),
                 inject={at: ["2025-02-01 05:00:00 INFO trainer: switching to stage 2: resolution 512, batch size 64"]})


@log("none", "Batch size 64 to 512 in mid-run (logged): much less noise, slightly lower level.")
def h_batch(r):
    n = 1400
    at = 700
    i = np.arange(n)
    base = pl(n, 1.0, .2, 60, .6) * np.where(i < at, 1, .965)
    s = np.where(i < at, .22, .08)
    return jsonl({"step": (i + 1) * 20, "batch_size": np.where(i < at, 64, 512), "loss": base * np.exp(s * r.standard_normal(n) - s * s / 2),
                  "grad_norm": .9 * (base) ** .5 * np.exp(s * 1.3 * r.standard_normal(n)) * np.where(i < at, 1, .55), "lr": const(n, 1e-4, 30)})


@log("none", "Two phases: at 40 % the dino term is switched on (w/dino 0 to 0.2), so loss/total steps up and falls again; all components improve.")
def h_phase(r):
    n = 800
    at = 320
    i = np.arange(n)
    fl = pl(n, 1.6, .48, 35, .75)
    kl = pl(n, .6, .14, 60, .8)
    di = 4.2 + 4.0 * np.exp(-np.maximum(i - at, 0) / 140)
    w = np.where(i < at, 0., .2)
    cols = {"step": (i + 1) * 50, "loss/flow": fl * ln(r, n, .06), "loss/kl": kl * ln(r, n, .03), "loss/dino": di * ln(r, n, .006)}
    cols["loss/total"] = cols["loss/flow"] + .1 * cols["loss/kl"] + w * cols["loss/dino"]
    return jsonl({**cols, "w/dino": w, "w/kl": np.full(n, .1), "lr": const(n, 1e-4, 20)})


@log("none", "Late generalisation: training loss near 0 early, held-out loss on a high plateau (a little up first), then falls to 0.02.")
def h_grok(r):
    n = 2000
    tr = .002 + 4.7 * np.exp(-np.arange(n) / 45)
    d = sig(n, 1150, 75)
    v = (4.7 + .45 * (1 - np.exp(-np.arange(n) / 120))) * (1 - d) + .02 * d
    return tocsv({"step": np.arange(n) * 10, "train_loss": tr * ln(r, n, .08), "val_loss": every(v * ln(r, n, .02), 50),
                  "val_acc": every(np.clip(.01 + .985 * sig(n, 1120, 70) + .003 * r.standard_normal(n), 0, 1), 50), "lr": const(n, 1e-3)})


@log("none", "Plateau for 45 % of the run (symmetry), then a quick fall to a new, lower level; nothing else changes.")
def h_plateau(r):
    n = 700
    d = sig(n, 330, 16)
    base = 2.305 * (1 - d) + (.62 + .25 * np.exp(-np.maximum(np.arange(n) - 330, 0) / 120)) * d
    gn = (.25 + .9 * np.exp(-((np.arange(n) - 330) / 45) ** 2) + .25 * d) * ln(r, n, .25)
    return lines({"step": (np.arange(n) + 1) * 50, "loss": base * ln(r, n, .025), "val_loss": every(base * 1.02 * ln(r, n, .006), 35), "grad_norm": gn,
                  "lr": const(n, 3e-4, 20)}, eq=": ", sep=" ", specs={"lr": ".1e"})


@log("none", "Fine-tuning with a warm-up bump: up 30 % during the warm-up, then well below the start.")
def h_bump(r):
    n = 500
    i = np.arange(n)
    base = (.62 + .42 * np.exp(-i / 110)) * (1 + .36 * np.exp(-((i - 28) / 16) ** 2))
    return hf({"step": (i + 1) * 10, "loss": base * ln(r, n, .04), "grad_norm": (1 + 2 * np.exp(-((i - 28) / 14) ** 2)) * ln(r, n, .25),
               "learning_rate": warmcos(n, 5e-5, 40), "epoch": (i + 1) / 250, "eval_loss": every(base * 1.02 * ln(r, n, .004), 50)})


@log("none", "Cosine with warm restarts: the loss bumps at each of the three restarts and is lower at the end of each cycle.")
def h_sgdr(r):
    n = 1400
    i = np.arange(n)
    b = [0, 200, 600, 1400]
    lr = np.zeros(n)
    base = pl(n, 1.1, .2, 30, .6)
    for a, e in zip(b, b[1:]):
        x = (i[a:e] - a) / (e - a)
        lr[a:e] = 1e-6 + .5 * (3e-4 - 1e-6) * (1 + np.cos(np.pi * x))
    loss = base * (1 + .3 * lr / 3e-4)
    return wbhist(i * 25, {"train/loss": lst(loss * ln(r, n, .05)), "train/learning_rate": lst(lr), "val/loss": every(loss * 1.02 * ln(r, n, .006), 40)})


@log("none", "Cosine schedule to exactly 0 at the last step; loss flat at its best at the end.")
def h_lr0(r):
    n = 400
    lr = warmcos(n, 2e-4, 20, 0, n - 1)
    base = pl(n, 2.2, .95, 30, .8)
    i = np.arange(n)
    return hfstate({"step": (i + 1) * 25, "epoch": (i + 1) / 133, "loss": base * ln(r, n, .03), "grad_norm": grads(r, base, 1.5), "learning_rate": lr,
                    "eval_loss": every(base * 1.02 * ln(r, n, .004), 20)}, max_steps=10000)


@log("none", "Warm-up over 35 % of the run from 1e-8: little happens at first, then an ordinary fall.")
def h_longwarm(r):
    n = 600
    lr = 1e-4 * np.minimum(1, (np.arange(n) + .06) / 210)
    c = np.cumsum(lr) / 1e-4
    base = .35 + .68 * (1 + c / 25) ** -.8
    return lines({"step": (np.arange(n) + 1) * 50, "loss": base * ln(r, n, .07), "lr": lr, "grad_norm": grads(r, base, .9)}, "iter", total=30000,
                 specs={"lr": ".2e"})


@log("none", "SGD with momentum at 0.05: noise of 15 %, restless gradients, but a steady fall and good accuracy.")
def h_sgd(r):
    n = 900
    base = pl(n, 2.35, .12, 40, .7)
    lr = np.where(np.arange(n) < 450, .05, np.where(np.arange(n) < 700, .005, .0005))
    base = base * np.where(np.arange(n) < 450, 1, np.where(np.arange(n) < 700, .72, .62))
    return tocsv({"step": np.arange(n) * 50, "loss": base * ln(r, n, .15), "grad_norm": grads(r, base, 2.0, .2, .4, .03), "lr": lr,
                  "val_acc": every(.94 - .84 * (base / 2.35) ** .7 + .004 * r.standard_normal(n), 30)})


@log("none", "Held-out loss flat after its minimum, up 1.3 % with noise 1 %; training loss falls a little further.")
def h_flatval(r):
    n = 700
    tr = pl(n, 1.2, .32, 30, .7)
    v = (.4 + .8 * np.exp(-np.arange(n) / 70)) * (1 + .015 * ramp(n, 420))
    return lightning((np.arange(n) + 1) * 50, {"train_loss": lst(tr * ln(r, n, .06)), "lr-AdamW": lst(warmcos(n, 2e-4, 20, 1e-6))},
                     {"val_loss": every(v * ln(r, n, .008), 35)}, np.arange(n) // 35)


@log("none", "Large gap between training and held-out loss, but the held-out one still improves at each of its six evaluations.")
def h_gap(r):
    n = 300
    tr = pl(n, 2.0, .22, 30, .9)
    v = pl(n, 2.1, .78, 25, .8)
    return jsonl({"step": (np.arange(n) + 1) * 100, "loss": tr * ln(r, n, .08), "val_loss": every(v * ln(r, n, .003), 50), "lr": const(n, 1e-4, 5)})


@log("none", "25 epochs with a ripple of 1.5 % in each, far below the noise of 6 %.")
def h_ripple(r):
    n = 1500
    i = np.arange(n)
    base = pl(n, .9, .21, 50, .7)
    loss = base * (1 + .015 * np.sin(2 * np.pi * i / 60)) * ln(r, n, .06)
    return jsonl({"step": (i + 1) * 20, "epoch": i // 60, "loss": loss, "lr": const(n, 1e-4, 30), "val_loss": every(base * 1.03 * ln(r, n, .008), 60)})


@log("none", "Short HF run, 40 values, three epochs, smooth fall, three evaluations.")
def h_short(r):
    n = 40
    i = np.arange(n)
    base = pl(n, 1.83, 1.02, 5, .9)
    return hf({"step": (i + 1) * 25, "loss": base * ln(r, n, .02), "grad_norm": .9 * ln(r, n, .2), "learning_rate": warmcos(n, 2e-4, 2),
               "epoch": (i + 1) * 3 / 40, "eval_loss": [float(base[k] * 1.015) if k in (12, 25, 39) else None for k in range(n)]},
              tail=["{'train_runtime': 2211.9, 'train_samples_per_second': 7.2, 'train_loss': 1.1873, 'epoch': 3.0}"])


@log("none", "Gradient norm creeps from 0.4 to 1.1 over a long run as the loss falls; usual.")
def h_gradgrow(r):
    n = 1500
    base = pl(n, 9.8, 2.2, 10, .7)
    gn = .4 * (1 + 1.75 * np.linspace(0, 1, n)) * ln(r, n, .15) + 4 * np.exp(-np.arange(n) / 6)
    return lines({"step": (np.arange(n) + 1) * 50, "loss": base * ln(r, n, .015), "grad_norm": gn, "lr": warmcos(n, 4e-4, 40, 4e-5)}, "iter", total=75000,
                 specs={"lr": ".3e", "grad_norm": ".3f"})


@log("none", "One gradient of 300 times the usual norm (clipped), the loss does not notice.")
def h_gradspike(r):
    n = 600
    base = pl(n, 1.0, .25, 40, .8)
    gn = grads(r, base, .6, .4, .25, 0)
    gn[377] *= 300
    gn[378] *= 9
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss": base * ln(r, n, .09), "grad_norm": gn, "lr": const(n, 1e-4, 20), "clip": np.full(n, 1.0)})


@log("none", "Regression that converges to a loss of 1e-3 with noise of 0.5 %; the gradient norm sinks to 2e-3 with it.")
def h_tiny(r):
    n = 350
    base = ex(n, .31, .00105, 22) + .0004 * (1 - ramp(n, 0))
    gn = .9 * (base / .31) ** 1.05 * ln(r, n, .1)
    return tbcsv(np.arange(n) * 100, {"train/loss": lst(base * ln(r, n, .005)), "val/loss": every(base * 1.03 * ln(r, n, .004), 25), "grad_norm": lst(gn),
                                      "lr": lst(warmcos(n, 1e-3, 5, 1e-5))})


@log("none", "AMP: three skipped steps at the start (grad inf), then the scale is doubled and halved now and then around 65536.")
def h_amp(r):
    n = 800
    base = pl(n, 1.0, .2, 35, .8)
    sc = np.full(n, 65536.0)
    sc[0], sc[1], sc[2] = 524288., 262144., 131072.
    for a, m in ((200, 2), (243, 1), (443, 2), (470, 1), (670, 2)):
        sc[a:] = 65536. * m
    gn = grads(r, base, .9)
    gl = lst(gn)
    for a in (0, 1, 2, 243, 470):
        gl[a] = math.inf
    sk = np.array([3 if a < 243 else 4 if a < 470 else 5 for a in range(n)])
    sk[:3] = [1, 2, 3]
    return jsonl({"step": (np.arange(n) + 1) * 10, "loss": base * ln(r, n, .1), "scaler/scale": sc, "skipped_steps": sk, "grad_norm": gl, "lr": const(n, 1e-4, 30)}, d=8)


@log("none", "Two resumes, the second with the step counter back at 0 after loading; the loss goes on from its level each time.")
def h_resume(r):
    n = 900
    base = pl(n, 1.05, .22, 30, .75)
    st = np.concatenate([np.arange(1, 301) * 50, np.arange(281, 541) * 50, np.arange(1, 341) * 50])
    base = np.concatenate([base[:300], base[280:540], base[540:880]])
    return lines({"step": st, "loss": base * ln(r, n, .08), "lr": const(n, 1e-4), "grad_norm": grads(r, base, .8)}, specs={"lr": ".1e"},
                 inject={300: ["resuming from ckpt/14000.pt"], 560: ["loaded weights from ckpt/27000.pt, starting new schedule at step 0"]})


@log("none", "Resume with fresh optimiser state: the loss is 8 % higher for 20 rows, then goes on falling.")
def h_resbump(r):
    n = 700
    i = np.arange(n)
    base = pl(n, 2.6, .9, 25, .8)
    k = 1 + np.where(i >= 410, .12 * np.exp(-np.maximum(i - 410, 0) / 12), 0)
    return lines({"step": (i + 1) * 40, "loss": base * k * ln(r, n, .02), "val_loss": every(base * 1.02 * ln(r, n, .005), 50), "lr": const(n, 2e-4, 20)},
                 prefix=stamp("2025-07-09", 13, 25), specs={"lr": ".1e"}, inject={410: ["2025-07-09 15:50:44 WARNING trainer: optimizer state not found, initialising"]})


@log("none", "Sparse validation: val columns are null except at every 60th row; the last row is not an evaluation.")
def h_sparse(r):
    n = 860
    base = pl(n, 1.0, .24, 40, .8)
    sp = lambda y: [NULL if v is None else v for v in every(y, 60)]
    return jsonl({"step": (np.arange(n) + 1) * 10, "train/loss": base * ln(r, n, .1), "val/loss": sp(base * 1.03 * ln(r, n, .006)), "val/fid": sp(pl(n, 250, 9, 40, .9) * ln(r, n, .02)),
                  "lr": const(n, 1e-4, 20)})


@log("none", "EMA with decay 0.9999 lags at first, catches up and is better than the raw weights at the end.")
def h_ema(r):
    n = 800
    st = (np.arange(n) + 1) * 100
    raw = pl(n, 1.01, .26, 25, .8)
    fr = .9999 ** st
    em = raw * .975 + fr * (1.01 - raw * .975)
    return jsonl({"step": st, "train/loss": raw * ln(r, n, .09), "val/loss": every(raw * 1.02 * ln(r, n, .01), 40), "val/loss_ema": every(em * 1.02 * ln(r, n, .004), 40),
                  "ema_decay": [.9999] * n, "lr": const(n, 1e-4, 10)})


@log("none", "LR of 2e-5 printed with four decimals as 0.0000; the loss falls steadily.")
def h_lrprint(r):
    n = 550
    base = pl(n, 3.1, .75, 40, .8)
    return lines({"step": (np.arange(n) + 1) * 20, "loss": base * ln(r, n, .06), "lr": const(n, 2e-5, 20), "grad_norm": grads(r, base, 2.4)}, "bracket", total=11000)


@log("none", "Gradient shares in the recommended band; kl starts near 0 during its warm-up (first 10 %).")
def h_share(r):
    n = 500
    fl = pl(n, 1.6, .6, 30, .6)
    w = np.minimum(1, (np.arange(n) + 1) / 50)
    gr = shares(r, n, fl, .3 * fl, .2 * fl * w)
    p = post(r, n, .5 + .35 * np.exp(-np.arange(n) / 120), .93 - .15 * np.exp(-np.arange(n) / 100))
    c = rise(n, .02, .72, 50)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": 1.8 * (1 - c ** 2) * ln(r, n, .06), "loss/dino": pl(n, 8.2, 3.6, 60, .7) * ln(r, n, .01), **p, **gr,
                  "flow/cos": c + .008 * r.standard_normal(n), "w/kl": .01 * w, "lr": const(n, 1e-4, 20)})


@log("none", "grad/kl at 6 to 9 % of the total for the whole run: low, not negligible; mu shrinks, std goes to 1.")
def h_share7(r):
    n = 650
    fl = pl(n, 1.4, .55, 30, .6)
    gr = shares(r, n, fl, .27 * fl, .08 * fl, .05)
    p = post(r, n, .32 + .5 * np.exp(-np.arange(n) / 160), .96 - .25 * np.exp(-np.arange(n) / 130))
    return tocsv({"step": (np.arange(n) + 1) * 25, "loss/flow": pl(n, 1.7, .62, 40, .7) * ln(r, n, .07), "loss/dino": pl(n, 7.9, 3.3, 70, .7) * ln(r, n, .01), **p, **gr,
                  "lr": const(n, 1e-4, 20)})


@log("none", "Update ratios of 2e-5 to 8e-5; below 1e-5 only in the last seventh, where the cosine LR nears its end of 1e-5.")
def h_update(r):
    n = 480
    lr = warmcos(n, 1e-4, 20, 1e-5)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": pl(n, 1.6, .6, 40, .8) * ln(r, n, .06), "step/z_head_update_ratio": 7e-5 * lr / 1e-4 * ln(r, n, .15),
                  "step/flow_head_update_ratio": 2.4e-4 * lr / 1e-4 * ln(r, n, .12), "grad_norm": .7 * ln(r, n, .2), "lr": lr})


@log("none", "DINO entropies: teacher 3.6 to 2.3 and student a little above, K = 65536.")
def h_ent(r):
    n = 600
    te = 2.3 + 1.4 * np.exp(-np.arange(n) / 150) + ar(r, n, .08, .9)
    stu = te + .5 + 6.6 * np.exp(-np.arange(n) / 30) + .04 * r.standard_normal(n)
    return lines({"step": (np.arange(n) + 1) * 50, "loss/dino": te + 1.0 + 6.6 * np.exp(-np.arange(n) / 30) + .05 * r.standard_normal(n), "ent/teacher": te, "ent/student": stu,
                  "grad_norm": 1.1 * ln(r, n, .2), "lr": warmcos(n, 5e-4, 40, 1e-6)}, "iter", total=30000, specs={"lr": ".2e"},
                 head=["DINO head: out_dim=65536 teacher_temp=0.04->0.07 student_temp=0.1"])


@log("none", "The teacher is almost uniform (8.3 of 8.318) in the first 12 %, sharpens then to 4.8; the student follows.")
def h_entstart(r):
    n = 700
    d = sig(n, 85, 14)
    te = 8.305 * (1 - d) + (4.7 + .7 * np.exp(-np.maximum(np.arange(n) - 85, 0) / 150)) * d + .02 * r.standard_normal(n) * d
    d2 = sig(n, 100, 16)
    stu = 8.312 * (1 - d2) + (5.1 + .6 * np.exp(-np.maximum(np.arange(n) - 100, 0) / 150)) * d2 + .02 * r.standard_normal(n) * d2
    fl = pl(n, 1.4, .6, 40)
    gr = shares(r, n, fl, .28 * fl * (.35 + .65 * d), .18 * fl)
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss/flow": pl(n, 1.6, .6, 40, .7) * ln(r, n, .07), "loss/dino": (te + .45) * ln(r, n, .005), "ent/teacher": te, "ent/student": stu,
                  **gr, "lr": const(n, 1e-4, 40)}, head=[{"config": {"dino_out_dim": 4096, "T_t": 0.05, "T_s": 0.1}}])


@log("none", "KL acts: mu/abs_mean shrinks by half, std/mean goes to 0.97, z_init/var to 1, KL falls and levels off.")
def h_kl(r):
    n = 600
    p = post(r, n, .3 + .55 * np.exp(-np.arange(n) / 130), .96 - .4 * np.exp(-np.arange(n) / 110))
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": pl(n, 1.9, .7, 40, .7) * ln(r, n, .07), **p, "w/kl": .01 * np.minimum(1, (np.arange(n) + 1) / 60), "lr": const(n, 1e-4, 20)})


@log("none", "mu and KL rise a little during the KL warm-up, then both are steady (mu/rms 0.55, z_init/var 1.05) for 85 % of the run.")
def h_klsteady(r):
    n = 900
    i = np.arange(n)
    mu = .55 + .1 * np.exp(-((i - 60) / 35) ** 2) - .25 * np.exp(-i / 18) + ar(r, n, .012, .98)
    p = post(r, n, mu, .86 + .05 * np.exp(-i / 60), .01)
    return tocsv({"step": (i + 1) * 30, "loss/flow": pl(n, 1.7, .66, 40, .7) * ln(r, n, .08), **p, "w/kl": .005 * np.minimum(1, (i + 1) / 90), "lr": warmcos(n, 2e-4, 40, 2e-5)})


@log("none", "Low but living KL (0.04 per dimension): mu/rms 0.25, std/mean 0.93 and text still separates.")
def h_lowkl(r):
    n = 450
    p = post(r, n, .25 + .3 * np.exp(-np.arange(n) / 80), .935 - .1 * np.exp(-np.arange(n) / 80))
    c = rise(n, .02, .68, 50)
    return jsonl({"step": (np.arange(n) + 1) * 40, "loss/flow": 1.8 * (1 - c ** 2) * ln(r, n, .06), **p, "flow/cos": c + .01 * r.standard_normal(n),
                  "flow/cond_gain_cos": every(.02 + .09 * (1 - np.exp(-np.arange(n) / 90)) + .004 * r.standard_normal(n), 15), "w/kl": .05 * np.minimum(1, (np.arange(n) + 1) / 45), "lr": const(n, 1e-4, 20)})


@log("none", "Head with std_range 0.5 to 1.0 (in the config): std comes to rest at 0.55, logvar far from its clamp, cos 0.72.")
def h_stdrange(r):
    n = 500
    i = np.arange(n)
    p = post(r, n, .62 + .05 * np.exp(-i / 50), .55 + .42 * np.exp(-i / 70))
    p["std/min"], p["std/max"] = np.maximum(p["std/mean"] * .92, .5), np.minimum(p["std/mean"] * 1.4, 1.0)
    c = rise(n, .02, .72, 45)
    d = {"step": (i + 1) * 40, "loss/flow": 1.7 * (1 - c ** 2) * ln(r, n, .06), **p, "flow/cos": c + .008 * r.standard_normal(n), "lr": const(n, 1e-4, 20)}
    for j, (k, q) in enumerate(zip((8, 16, 32, 64), (1.0, .93, .9, .895))):
        d[f"flow/endpt_rmse@{k}"] = every((.55 + .7 * np.exp(-i / 90)) * q * ln(r, n, .01), 25)
    return jsonl(d, head=[{"config": {"std_range": [0.5, 1.0], "w_kl": 0.0001, "logvar_clamp": [-6, 6]}}])


@log("none", "128 images to overfit on purpose: cos 0.94, nmse 0.1, std/mean 0.95, relative shooting error down to 0.05.")
def h_overfit128(r):
    n = 600
    c = rise(n, .015, .945, 60) + .003 * r.standard_normal(n)
    q = c * .995
    i = np.arange(n)
    sh = .05 + .95 * np.exp(-i / 110)
    d = {"step": (i + 1) * 20, "loss/flow": 1.9 * nmse(c, q) * ln(r, n, .03), "flow/cos": c, "flow/nmse": nmse(c, q), "flow/speed_ratio": q, "std/mean": .95 + .004 * r.standard_normal(n),
         "loss/kl": .12 * ln(r, n, .02), "shoot/rel_mse": every(sh * ln(r, n, .03), 30), "lr": const(n, 2e-4, 20)}
    for k, m in zip((8, 16, 32, 64), (1.18, 1.05, 1.01, 1.0)):
        d[f"flow/endpt_rmse@{k}"] = every(np.sqrt(1.9 * sh) * m * ln(r, n, .01), 30)
    return jsonl(d)


@log("none", "t-slices: the ends 1.4 to 1.8 times the middle, all falling.")
def h_slices(r):
    n = 450
    sl = slices(r, n, .3, [1.8, 1.3, 1.1, 1, .97, .97, 1, 1.05, 1.15, 1.45], 15)
    al = np.mean([sl[f"flow/nmse_t{b}"] for b in range(10)], axis=0)
    return jsonl({"step": (np.arange(n) + 1) * 50, "loss/flow": al * 1.8 * ln(r, n, .03), "flow/nmse": al, "flow/cos": np.sqrt(np.clip(1 - al, 0, 1)), **sl, "lr": const(n, 1e-4, 20)})


@log("none", "Slow start of the field: cos 0.02 and ratio 0.1 for the first tenth, 0.66 and 0.65 at the end.")
def h_slowfield(r):
    n = 800
    d = sig(n, 190, 45)
    c = .02 + .64 * d * (1 - .25 * np.exp(-np.maximum(np.arange(n) - 190, 0) / 200)) + .008 * r.standard_normal(n)
    q = .1 + .9 * (c - .02) * .96 + .005 * r.standard_normal(n)
    return lines({"step": (np.arange(n) + 1) * 25, "loss_flow": 1.9 * nmse(c, q) * ln(r, n, .05), "flow/cos": c, "flow/speed_ratio": q, "flow/nmse": nmse(c, q), "grad_norm": .5 * ln(r, n, .25),
                  "lr": const(n, 1e-4, 40)}, specs={"lr": ".1e"})


@log("none", "Endpoint errors fall over the run and level off with K (64 hardly better than 32).")
def h_endpt(r):
    n = 500
    i = np.arange(n)
    c = rise(n, .02, .77, 50)
    d = {"step": (i + 1) * 50, "loss/flow": 1.8 * (1 - c ** 2) * ln(r, n, .05), "flow/cos": c + .006 * r.standard_normal(n), "flow/speed_ratio": c * .98 + .004 * r.standard_normal(n), "lr": const(n, 1e-4, 20)}
    for k, m in zip((8, 16, 32, 64), (1.16, 1.04, 1.005, 1.0)):
        d[f"flow/endpt_rmse@{k}"] = every((.45 + .85 * np.exp(-i / 120)) * m * ln(r, n, .006), 20)
    return jsonl(d)


@log("none", "Statistics per batch of 16: mean of t between 320 and 680, x_0 and noise normal, loss falls to 0.05.")
def h_stats(r):
    n = 900
    base = pl(n, 1.34, .045, 14, 1.0)
    return jsonl({"step": np.arange(n) * 10, "loss/total": base * ln(r, n, .25), **stats(r, n, 16, 1000), "stat/predicted_x0/std": .98 - .41 * np.exp(-np.arange(n) / 150) + .008 * r.standard_normal(n),
                  "lr": const(n, 1e-4, 20)}, head=[{"config": {"T": 1000, "t_sampling": "uniform", "pred": "x0", "batch_size": 16}}])


@log("none", "Logit-normal t as configured: mean 0.5, std 0.21.")
def h_logit(r):
    n = 500
    t = 1 / (1 + np.exp(-r.standard_normal((n, 64))))
    base = pl(n, 1.9, .62, 35, .8)
    return jsonl({"step": (np.arange(n) + 1) * 25, "loss/flow": base * ln(r, n, .07), "stat/t/min": t.min(1), "stat/t/max": t.max(1), "stat/t/mean": t.mean(1), "stat/t/std": t.std(1),
                  "stat/x_0/mean": 7e-4 * r.standard_normal(n), "stat/x_0/std": 1 + .0015 * r.standard_normal(n), "grad_norm": grads(r, base, .8), "lr": const(n, 1e-4, 20)},
                 head=[{"config": {"t_sampling": "logit_normal", "logit_mean": 0.0, "logit_std": 1.0}}])


@log("none", "cond_gain_cos small but positive and growing, 0.01 to 0.06, noise 0.004; cos 0.7.")
def h_cond(r):
    n = 520
    c = rise(n, .01, .7, 50) + .007 * r.standard_normal(n)
    q = c * .98
    return wbhist((np.arange(n) + 1) * 50, {"loss/flow": lst(1.9 * nmse(c, q) * ln(r, n, .04)), "flow/cos": lst(c), "flow/nmse": lst(nmse(c, q)), "flow/speed_ratio": lst(q),
                                            "flow/cond_gain_cos": lst(.01 + .052 * (1 - np.exp(-np.arange(n) / 170)) + .004 * r.standard_normal(n)), "lr": lst(const(n, 1e-4, 20))})


# ------------------------------------------------------------------ main
def main(out):
    root = os.path.join(out, "a")
    if os.path.isdir(root):
        shutil.rmtree(root)
    os.makedirs(root)
    order = np.random.default_rng(20251).permutation(len(LOGS))
    man = []
    for j, k in enumerate(order):
        fn, expected, acceptable, story = LOGS[k]
        r = np.random.default_rng(zlib.crc32(fn.__name__.encode()))
        files, fmt = fn(r)
        ident = f"f{j + 1:03d}"
        os.makedirs(os.path.join(root, ident))
        for name, text in files.items():
            with open(os.path.join(root, ident, name), "w", encoding="utf-8") as h:
                h.write(text)
        path = f"{ident}/{next(iter(files))}" if len(files) == 1 else ident
        man.append({"id": ident, "path": path, "format": fmt, "expected": expected, "acceptable": acceptable,
                    "healthy": expected == "none", "story": story})
    with open(os.path.join(root, "manifest.json"), "w", encoding="utf-8") as h:
        json.dump(man, h, indent=1, ensure_ascii=False)
    nh = sum(m["healthy"] for m in man)
    print(len(man), "logs", nh, "healthy", len(man) - nh, "faulty")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "out"))
