"""Shared helpers: dynamics, clocks, progress bars, a TensorBoard event writer."""
import csv, io, json, math, struct, zlib
from datetime import datetime, timedelta
from pathlib import Path
import numpy as np

CASES = {"a": [], "b": []}


def case(half, fmt, expected, story, acceptable=()):
    def deco(fn):
        CASES[half].append(dict(fn=fn, name=fn.__name__, fmt=fmt, expected=expected,
                                acceptable=list(acceptable), healthy=expected == "none", story=story))
        return fn
    return deco


def rng_of(name, salt=0):
    return np.random.default_rng(zlib.crc32(name.encode()) + 7919 * salt + 13)


def ar(rng, n, sd, rho=0.0):
    """AR(1) noise with stationary standard deviation sd."""
    e = rng.normal(0, 1, n)
    x = np.empty(n)
    x[0] = e[0]
    k = math.sqrt(max(1 - rho * rho, 1e-9))
    for i in range(1, n):
        x[i] = rho * x[i - 1] + k * e[i]
    return sd * x


def pw(s, a, b, s0, p):
    """Power law from a (s=0) towards b."""
    return b + (a - b) * (1 + np.maximum(np.asarray(s, float), 0) / s0) ** (-p)


def ex(s, a, b, tau):
    return b + (a - b) * np.exp(-np.asarray(s, float) / tau)


def sig(s, mid, w):
    return 1 / (1 + np.exp(-(np.asarray(s, float) - mid) / w))


def ln(rng, n, sd, rho=0.0):
    """Multiplicative log-normal noise."""
    return np.exp(ar(rng, n, sd, rho))


def cosine(s, total, base, warm=0, end=0.0):
    s = np.asarray(s, float)
    out = end + (base - end) * 0.5 * (1 + np.cos(np.pi * np.clip((s - warm) / max(total - warm, 1), 0, 1)))
    if warm:
        out = np.where(s < warm, base * s / warm, out)
    return out


def hms(sec, short=False):
    sec = int(max(sec, 0))
    h, m, s = sec // 3600, sec % 3600 // 60, sec % 60
    if short and h == 0:
        return f"{m:02d}:{s:02d}"
    return f"{h}:{m:02d}:{s:02d}"


def bar(i, n, w=10):
    f = min(max(i / n, 0), 1) * w
    full = int(f)
    part = " ▏▎▍▌▋▊▉"[int((f - full) * 8)]
    return ("█" * full + (part if full < w else "")).ljust(w)[:w]


def tq(desc, i, n, t, post="", w=10, it=None):
    rate = i / t if t > 0 else 0
    r = it or (f"{rate:.2f}it/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.2f}s/it")
    rem = (n - i) / rate if rate else 0
    d = desc + ": " if desc else ""
    p = ", " + post if post else ""
    return f"{d}{int(100 * i / n):3d}%|{bar(i, n, w)}| {i}/{n} [{hms(t, True)}<{hms(rem, True)}, {r:>9}{p}]"


class Clock:
    def __init__(self, start, rng=None):
        self.t = datetime.fromisoformat(start)
        self.t0 = self.t
        self.rng = rng

    def tick(self, sec):
        j = 1 + (self.rng.normal(0, 0.04) if self.rng is not None else 0)
        self.t += timedelta(seconds=sec * j)
        return self.t

    def f(self, pat):
        return self.t.strftime(pat)

    @property
    def ms(self):
        return f"{self.t.microsecond // 1000:03d}"

    @property
    def el(self):
        return (self.t - self.t0).total_seconds()

    @property
    def unix(self):
        return (self.t - datetime(1970, 1, 1)).total_seconds()


def put(d, name, text):
    p = Path(d) / name
    p.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, (list, tuple)):
        text = "\n".join(text) + "\n"
    with open(p, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    return name


def put_csv(d, name, header, rows, quote=False):
    b = io.StringIO()
    w = csv.writer(b, quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL, lineterminator="\n")
    w.writerow(header)
    for r in rows:
        w.writerow(["" if v is None else v for v in r])
    return put(d, name, b.getvalue())


def jl(d, name, rows):
    return put(d, name, [json.dumps(r) for r in rows])


def r_(x, k=4):
    return round(float(x), k)


def g_(x, k=6):
    """Round to k significant digits as float."""
    return float(f"{float(x):.{k}g}")


def nmse(r, c):
    return 1 + r * r - 2 * r * c


# ---- TensorBoard event files --------------------------------------------------
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


def _vi(n):
    out = b""
    n &= (1 << 64) - 1
    while True:
        if n < 128:
            return out + bytes([n])
        out += bytes([n & 127 | 128])
        n >>= 7


def _ld(f, b):
    return _vi(f << 3 | 2) + _vi(len(b)) + b


def _rec(b):
    h = struct.pack("<Q", len(b))
    return h + struct.pack("<I", _crc(h)) + b + struct.pack("<I", _crc(b))


def tb_write(d, name, scalars, wall0=1.74e9):
    """scalars: list of (tag, step, value, seconds after start)."""
    p = Path(d) / name
    p.parent.mkdir(parents=True, exist_ok=True)
    with open(p, "wb") as f:
        f.write(_rec(_vi(1 << 3 | 1) + struct.pack("<d", wall0) + _ld(3, b"brain.Event:2")))
        for tag, step, val, sec in scalars:
            v = _ld(1, tag.encode()) + _vi(2 << 3 | 5) + struct.pack("<f", float(val))
            e = _vi(1 << 3 | 1) + struct.pack("<d", wall0 + sec) + _vi(2 << 3) + _vi(int(step)) + _ld(5, _ld(1, v))
            f.write(_rec(e))
    return name
