"""Simulation primitives and writers. Only numpy is needed; everything is seeded by the case id."""

import csv as _csv
import datetime as _dt
import io
import json
import math
import os
import struct
import zlib
from statistics import NormalDist

import numpy as np

CASES = []


def case(half, id, fmt, expected, acceptable=(), story="", phrase=None):
    def deco(f):
        assert not any(c["id"] == id and c["half"] == half for c in CASES), id
        CASES.append(
            dict(
                half=half,
                id=id,
                format=fmt,
                expected=expected,
                acceptable=list(acceptable),
                story=" ".join(story.split()),
                phrase=phrase,
                func=f,
            )
        )
        return f

    return deco


# ---------------------------------------------------------------- numbers
def sig(v, n=5):
    """Round as a logger would: n significant digits."""
    if v is None or isinstance(v, (bool, str, int)):
        return v
    v = float(v)
    if 1e8 < abs(v) < 1e12:  # wall-clock seconds are not rounded
        return round(v, 3)
    return v if not math.isfinite(v) else float(f"{v:.{n}g}")


def py(v):
    return v.item() if isinstance(v, np.generic) else v


def rows(cols):
    """dict of columns -> list of dicts; None cells are left out."""
    n = max(len(v) for v in cols.values() if not isinstance(v, (int, float, str)))
    out = []
    for i in range(n):
        d = {}
        for k, v in cols.items():
            x = v if isinstance(v, (int, float, str)) else py(v[i])
            if x is not None:
                d[k] = x
        out.append(d)
    return out


def plain(d):
    """str(dict) as Python floats print (no np.float64)."""
    return str({k: py(v) for k, v in d.items()})


def total(d, wf=1.0, wkl=0.0, wd=0.0):
    d["loss/total"] = wf * d["loss/flow"] + wkl * d.get("loss/kl", 0) + wd * d.get("loss/dino", 0)


def bf16(v):
    u = struct.unpack("<I", struct.pack("<f", float(v)))[0]
    u = (u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", u))[0]


def logit_normal_dt(n):
    u = np.linspace(1e-6, 1 - 1e-6, n + 1, dtype=np.float32).astype(float)
    t = 1 / (1 + np.exp(-np.array([NormalDist().inv_cdf(x) for x in u])))
    return np.diff(t)


def decay(s, a, b, tau, p=0.6):
    return b + (a - b) * (1 + np.asarray(s, float) / tau) ** (-p)


def warmcos(s, peak, warm, total, floor=0.0):
    s = np.asarray(s, float)
    c = floor + (peak - floor) * 0.5 * (1 + np.cos(np.pi * np.clip((s - warm) / max(1, total - warm), 0, 1)))
    return np.where(s < warm, peak * (s + 1) / warm, c) if warm else c


def warmconst(s, peak, warm):
    return peak * np.minimum(1, (np.asarray(s, float) + 1) / warm)


def ramp(s, a, b, s0, s1, p=1.0):
    return a + (b - a) * np.clip((np.asarray(s, float) - s0) / (s1 - s0), 0, 1) ** p


class Ctx:
    def __init__(self, id, dir):
        self.id, self.dir = id, dir
        self.rng = np.random.default_rng(zlib.crc32(id.encode()) + 20250919)
        os.makedirs(dir, exist_ok=True)

    # ------------------------------------------------------------ noise and curves
    def n(self, size=None):
        return self.rng.standard_normal(size)

    def ar(self, n, rho=0.3):
        e = self.n(n)
        out = np.empty(n)
        x = e[0]
        for i in range(n):
            x = rho * x + math.sqrt(1 - rho * rho) * e[i]
            out[i] = x
        return out

    def jit(self, base, sd=0.03, rho=0.3, heavy=0.0, heavy_size=0.3):
        """Multiplicative, autocorrelated noise with a few heavier draws."""
        base = np.asarray(base, float)
        n = len(base)
        x = base * np.exp(np.asarray(sd) * self.ar(n, rho))
        if heavy:
            m = self.rng.random(n) < heavy
            x = np.where(m, x * (1 + heavy_size * self.rng.exponential(1, n)), x)
        return x

    def add(self, base, sd, rho=0.3):
        base = np.asarray(base, float)
        return base + sd * self.ar(len(base), rho)

    def loss(self, s, a, b, tau, p=0.6, sd=0.02, rho=0.2, early=1.5, heavy=0.004):
        """Loss curve: power-law decay; the noise is larger early on."""
        s = np.asarray(s, float)
        sdt = sd * (1 + early * np.exp(-s / (4 * tau)))
        return self.jit(decay(s, a, b, tau, p), sdt, rho, heavy, 4 * sd)

    def gnorm(self, s, a, b, tau, sd=0.15, heavy=0.01):
        return self.jit(decay(s, a, b, tau, 0.8), sd, 0.3, heavy, 0.6)

    def field(self, s, c0, c1, tau, p=0.5, sd=0.012, ratio=None):
        """cos, speed ratio, nmse with nmse = 1 + r^2 - 2 r cos (exact identity)."""
        s = np.asarray(s, float)
        c = np.clip(self.add(c1 - (c1 - c0) * (1 + s / tau) ** (-p), sd), -1, 1)
        r = self.jit(c * 1.02 + 0.01 if ratio is None else np.broadcast_to(ratio, c.shape), 0.012)
        return c, r, 1 + r * r - 2 * r * c

    def wall(self, start, n, per, jitter=0.05):
        t = _dt.datetime.fromisoformat(start)
        d = per * np.exp(jitter * self.n(n))
        out = []
        for x in d:
            t = t + _dt.timedelta(seconds=float(x))
            out.append(t)
        return out

    # ------------------------------------------------------------ the ret dictionary of note 003
    def ret(
        self,
        s,
        logk=9.01,
        c1=0.76,
        tau=600,
        vt2=1.9,
        wkl=1e-2,
        wd=0.5,
        dino=True,
        kl=True,
        flow=True,
        slices=True,
        endpt=True,
        lr=1e-4,
        warm=500,
        upd=5e-4,
        mu=(0.9, 0.35),
        std=(0.62, 0.93),
        seedscale=1.0,
    ):
        s = np.asarray(s, float)
        n = len(s)
        d = {"step": s.astype(int)}
        f = np.exp(-s / (6 * tau))
        cos, r, nm = self.field(s, 0.04, c1, tau)
        mur = self.jit(mu[1] + (mu[0] - mu[1]) * f, 0.01 * seedscale)
        st = self.jit(std[1] + (std[0] - std[1]) * f, 0.008 * seedscale)
        lv = 2 * np.log(st) - 0.02
        klv = 0.5 * (mur**2 + st**2 - 1 - lv)
        ent_t = self.jit(np.full(n, 0.42 * logk), 0.02)
        ent_s = self.jit(logk * (0.46 + 0.35 * f), 0.02)
        lf = nm * vt2 * np.exp(0.015 * self.ar(n, 0.1))
        ld = ent_t + 0.25 + 2.5 * f + 0.05 * self.ar(n)
        d["loss/total"] = lf + wkl * klv * (1 if kl else 0) + (wd * ld if dino else 0)
        d["loss/flow"] = lf
        if kl:
            d["loss/kl"] = klv
        if dino:
            d["loss/dino"] = ld
        gf = self.gnorm(s, 1.3, 0.38, tau)
        gk = gf * self.jit(np.full(n, 0.21), 0.1)
        gd = gf * self.jit(np.full(n, 0.36), 0.1)
        d["grad/flow"] = gf
        if kl:
            d["grad/kl"] = gk
        if dino:
            d["grad/dino"] = gd
        d["grad/total"] = np.sqrt(gf**2 + (gk**2 if kl else 0) + (gd**2 if dino else 0) + 0.1 * gf * gd)
        d["lr"] = warmconst(s, lr, warm)
        d["step/z_head_update_ratio"] = self.jit(upd * d["lr"] / lr, 0.12)
        d["step/flow_head_update_ratio"] = self.jit(1.3 * upd * d["lr"] / lr, 0.12)
        if dino:
            d["ent/teacher"], d["ent/student"] = ent_t, ent_s
        if kl:
            d["mu/abs_mean"] = 0.79 * mur
            d["mu/rms"] = mur
            d["logvar/mean"] = lv
            d["std/mean"] = st
            d["std/min"] = st * self.jit(np.full(n, 0.55), 0.05)
            d["std/max"] = st * self.jit(np.full(n, 1.5), 0.04)
            d["z_init/mean"] = 0.006 * self.n(n)
            d["z_init/var"] = mur**2 + st**2
            d["z_init/std_per_dim_mean"] = np.sqrt(mur**2 + st**2) * 0.985
        if flow:
            d["flow/cos"], d["flow/nmse"], d["flow/speed_ratio"] = cos, nm, r
            d["flow/cond_gain_cos"] = self.add(0.15 * (1 - (1 + s / tau) ** -0.6), 0.006)
            if endpt:
                e = np.sqrt(nm) * 0.95
                for k, m in ((8, 1.22), (16, 1.07), (32, 1.01), (64, 0.99)):
                    d[f"flow/endpt_rmse@{k}"] = self.jit(e * m, 0.01)
            if slices:
                for b in range(10):
                    x = (b - 4.5) / 4.5
                    nb = np.clip(nm * (0.93 + 0.18 * x * x) * np.exp(0.03 * self.n(n)), 0.01, 1.3)
                    d[f"flow/nmse_t{b}"] = nb
                    d[f"flow/cos_t{b}"] = np.sqrt(np.clip(1 - nb, 0.0004, 1))
        return d

    # ------------------------------------------------------------ writers
    def write(self, name, text):
        p = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(p), exist_ok=True)
        with open(p, "w", encoding="utf-8", newline="") as f:
            f.write(text if isinstance(text, str) else "\n".join(text) + "\n")
        return name

    def jsonl(self, name, rws, digits=6, nan="NaN", head=(), tail=None):
        """nan: 'NaN' (bare, as Python prints it), 'null' or 'str'."""
        out = [json.dumps(h, ensure_ascii=False) for h in head]
        for r in rws:
            d = {}
            for k, v in r.items():
                v = sig(v, digits)
                if isinstance(v, float) and not math.isfinite(v):
                    v = None if nan == "null" else (str(v) if nan == "str" else v)
                d[k] = v
            out.append(json.dumps(d, ensure_ascii=False))
        if tail:  # a line cut off when the process was killed
            return self.write(name, "\n".join(out) + "\n" + tail)
        return self.write(name, out)

    def csv(self, name, rws, cols=None, digits=6, sep=",", quote=False, bom=False):
        cols = cols or list(dict.fromkeys(k for r in rws for k in r))
        b = io.StringIO()
        w = _csv.writer(b, delimiter=sep, lineterminator="\n", quoting=_csv.QUOTE_ALL if quote else _csv.QUOTE_MINIMAL)
        w.writerow(cols)
        for r in rws:
            w.writerow(
                [
                    ""
                    if r.get(k) is None
                    else ("NaN" if isinstance(r[k], float) and math.isnan(r[k]) else sig(r[k], digits))
                    for k in cols
                ]
            )
        return self.write(name, ("\ufeff" if bom else "") + b.getvalue())

    def chart(self, name, step, series, digits=8, runs=None, stepname="Step"):
        """W&B chart export: every series with its __MIN and __MAX."""
        rws = []
        for i, s in enumerate(step):
            d = {stepname: int(s)}
            for k, v in series.items():
                x = py(v[i])
                for suf in ("", "__MIN", "__MAX"):
                    d[k + suf] = x
            rws.append(d)
        return self.csv(name, rws, digits=digits, quote=True)

    def mlflow(self, exp, run, series, start, per=0.7):
        """series: name -> (steps, values)."""
        base = f"mlruns/{exp}/{run}"
        t0 = int(_dt.datetime.fromisoformat(start).replace(tzinfo=_dt.timezone.utc).timestamp() * 1000)
        self.write(
            f"{base}/meta.yaml",
            [
                "artifact_uri: file:///data/exp/" + base + "/artifacts",
                "end_time: null",
                "entry_point_name: ''",
                f"experiment_id: '{exp}'",
                "lifecycle_stage: active",
                f"run_id: {run}",
                f"run_name: {self.id}",
                "source_name: ''",
                "source_type: 4",
                f"start_time: {t0}",
                "status: 1",
                "tags: []",
                "user_id: train",
            ],
        )
        for k, (st, v) in series.items():
            self.write(
                f"{base}/metrics/{k}",
                [
                    f"{t0 + int(1000 * per * s) + int(self.rng.integers(0, 90))} "
                    f"{'nan' if isinstance(py(x), float) and math.isnan(x) else repr(float(sig(float(x), 8)))} {int(s)}"
                    for s, x in zip(st, v)
                ],
            )
        self.write(f"{base}/params/model", "flow\n")
        return "mlruns"

    def tb(self, sub, series, start, per=0.5, host="node7"):
        t0 = _dt.datetime.fromisoformat(start).replace(tzinfo=_dt.timezone.utc).timestamp()
        ev = []
        for k, (st, v) in series.items():
            for s, x in zip(st, v):
                ev.append((int(s), k, float(x)))
        ev.sort(key=lambda e: e[0])
        b = bytearray()
        b += _record(b"\x09" + struct.pack("<d", t0) + b"\x1a" + _bytes(b"brain.Event:2"))
        for s, k, x in ev:
            val = b"\x0a" + _bytes(k.encode()) + b"\x15" + struct.pack("<f", x)
            b += _record(
                b"\x09"
                + struct.pack("<d", t0 + per * s)
                + b"\x10"
                + _varint(s)
                + b"\x2a"
                + _bytes(b"\x0a" + _bytes(val))
            )
        name = os.path.join(sub, f"events.out.tfevents.{int(t0)}.{host}.{1000 + zlib.crc32(sub.encode()) % 9000}.0")
        p = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(p), exist_ok=True)
        with open(p, "wb") as f:
            f.write(bytes(b))
        return sub.split("/")[0]

    def trainer_state(self, name, hist, **extra):
        d = {"best_global_step": None, "best_metric": None, "best_model_checkpoint": None}
        d.update(
            {
                "epoch": hist[-1].get("epoch"),
                "eval_steps": 500,
                "global_step": hist[-1]["step"],
                "is_hyper_param_search": False,
                "is_local_process_zero": True,
                "is_world_process_zero": True,
            }
        )
        d["log_history"] = [{k: sig(v, 8) for k, v in h.items()} for h in hist]
        d.update(
            {
                "logging_steps": 10,
                "max_steps": hist[-1]["step"],
                "num_train_epochs": 3,
                "save_steps": 500,
                "total_flos": 0.0,
                "train_batch_size": 16,
                "trial_name": None,
                "trial_params": None,
            }
        )
        d.update(extra)
        return self.write(name, json.dumps(d, indent=2) + "\n")

    # ------------------------------------------------------------ sampling trace of note 000
    def trace(self, x, v, dt, low=False, fmt="step{k}: |x|={x:.4f}, |v|={v:.4f}, dt={dt:.4f}"):
        q = bf16 if low else float
        return [fmt.format(k=k, x=q(a), v=q(b), dt=float(c)) for k, (a, b, c) in enumerate(zip(x, v, dt))]


def _varint(n):
    out = bytearray()
    while True:
        out.append((n & 0x7F) | (0x80 if n > 0x7F else 0))
        n >>= 7
        if not n:
            return bytes(out)


def _bytes(b):
    return _varint(len(b)) + b


_T = []
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    _T.append(_c)


def _crc(b):
    c = 0xFFFFFFFF
    for x in b:
        c = _T[(c ^ x) & 0xFF] ^ (c >> 8)
    c ^= 0xFFFFFFFF
    return (((c >> 15) | (c << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _record(d):
    h = struct.pack("<Q", len(d))
    return h + struct.pack("<I", _crc(h)) + d + struct.pack("<I", _crc(d))


def hms(x):
    x = int(x)
    h, m, s = x // 3600, x // 60 % 60, x % 60
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def bar(i, n, el, width=10, post="", unit="it"):
    """A tqdm bar as it ends up in a log file."""
    f = i / n
    full = int(f * width)
    b = "█" * full + (" " if full >= width else "▏▎▍▌▋▊▉█"[int((f * width - full) * 8)])
    b = b[:width].ljust(width)
    rate = i / el if el else 0
    rt = f"{rate:.2f}{unit}/s" if rate >= 1 else (f"{1 / rate:.2f}s/{unit}" if rate else f"?{unit}/s")
    left = (n - i) / rate if rate else 0
    return f"{100 * f:3.0f}%|{b}| {i}/{n} [{hms(el)}<{hms(left)}, {rt}{', ' + post if post else ''}]"
