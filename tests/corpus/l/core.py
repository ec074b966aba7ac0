"""Helpers: random curves with honest dynamics, schedules, writers."""
import json, os, struct, zlib, datetime
import numpy as np

LOGS = []

def log(half, name, fmt, expected, acc=(), story=''):
    def deco(f):
        LOGS.append(dict(half=half, name=name, fmt=fmt, expected=expected, acc=list(acc), story=story, f=f))
        return f
    return deco

def rng_of(key):
    return np.random.Generator(np.random.PCG64([zlib.crc32(key.encode()), 20251118]))

# ---------- dynamics
def ar1(r, n, rho=.8, sig=1.):
    e = r.standard_normal(n); x = np.empty(n); x[0] = e[0]
    k = np.sqrt(1 - rho * rho)
    for i in range(1, n): x[i] = rho * x[i-1] + k * e[i]
    return sig * x

def fall(s, l0, linf, tau, p=.6, w=.6, t2=3.):
    """exponential start and power-law tail"""
    s = np.asarray(s, float)
    return linf + (l0 - linf) * (w * np.exp(-s / tau) + (1 - w) * (1 + s / (t2 * tau)) ** -p)

def noisy(r, y, sig, rho=.6, mix=.35, tail=0.):
    n = len(y)
    z = (1 - mix) * r.standard_normal(n) + mix * ar1(r, n, rho)
    if tail: z = z + tail * np.where(r.random(n) < .03, r.exponential(1.5, n), 0)
    return y * np.exp(sig * z)

def ema(x, b):
    y = np.empty(len(x)); m = x[0]
    for i, v in enumerate(x): m = b * m + (1 - b) * v; y[i] = m
    return y

def gn(r, base, sig=.22, burst=.015, size=1.5):
    base = np.asarray(base, float); n = len(base)
    b = 1 + np.where(r.random(n) < burst, r.pareto(2.5, n) * size + .5, 0)
    return base * np.exp(sig * (.8 * r.standard_normal(n) + .6 * ar1(r, n, .9))) * b

def sig_up(s, mid, width):
    return 1 / (1 + np.exp(-np.clip((np.asarray(s, float) - mid) / width, -60, 60)))

# ---------- schedules
def wcos(s, peak, warm, total, floor=0.):
    s = np.asarray(s, float); c = np.clip((s - warm) / (total - warm), 0, 1)
    return np.where(s < warm, peak * s / max(warm, 1), floor + (peak - floor) * .5 * (1 + np.cos(np.pi * c)))
def wconst(s, peak, warm):
    s = np.asarray(s, float); return peak * np.minimum(1, s / max(warm, 1))
def wlin(s, peak, warm, total):
    s = np.asarray(s, float); return peak * np.minimum(s / max(warm, 1), np.clip((total - s) / (total - warm), 0, 1))
def wsd(s, peak, warm, d0, total, floor=.05):
    s = np.asarray(s, float)
    return peak * np.minimum(np.minimum(1, s / warm), np.clip(1 - (1 - floor) * (s - d0) / (total - d0), floor, 1))

# ---------- text
def T(y, mo, d, h=9, mi=0, s=0): return datetime.datetime(y, mo, d, h, mi, s)
def sec(x): return datetime.timedelta(seconds=float(x))
def hms(x):
    x = int(x); h, m, s = x // 3600, x % 3600 // 60, x % 60
    return f'{h}:{m:02d}:{s:02d}' if h else f'{m:02d}:{s:02d}'
def HMS(x):
    x = int(x); return f'{x//3600}:{x%3600//60:02d}:{x%60:02d}'
def bar(i, n, w=10):
    f = i / n * w; k = int(f); fr = ' ▏▎▍▌▋▊▉'[int((f - k) * 8)]
    return '█' * k + (fr if k < w else '') + ' ' * max(0, w - k - 1)
def w(p, lines):
    os.makedirs(os.path.dirname(p), exist_ok=True)
    with open(p, 'w', encoding='utf-8', newline='') as f:
        f.write(lines if isinstance(lines, str) else '\n'.join(lines) + '\n')
def sg(x, k=5): return float(f'{float(x):.{k}g}')

# ---------- TensorBoard event files by hand (wall times fixed)
_t = []
for _i in range(256):
    _c = _i
    for _ in range(8): _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    _t.append(_c)
def _crc(b):
    c = 0xFFFFFFFF
    for x in b: c = _t[(c ^ x) & 255] ^ (c >> 8)
    c ^= 0xFFFFFFFF
    return (((c >> 15) | (c << 17)) + 0xa282ead8) & 0xFFFFFFFF
def _vi(x):
    o = b''
    while True:
        if x < 128: return o + bytes([x])
        o += bytes([x & 127 | 128]); x >>= 7
def _ld(tag, b): return bytes([tag]) + _vi(len(b)) + b
def tb(path, t0, rows, host='node07'):
    """rows: (seconds, step, {tag: value})"""
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, f'events.out.tfevents.{int(t0)}.{host}.{1000 + int(t0) % 9000}.0'), 'wb') as f:
        def rec(b):
            h = struct.pack('<Q', len(b)); f.write(h + struct.pack('<I', _crc(h)) + b + struct.pack('<I', _crc(b)))
        rec(b'\x09' + struct.pack('<d', t0) + _ld(0x1a, b'brain.Event:2'))
        for dt, step, d in rows:
            for k, v in d.items():
                val = _ld(0x0a, k.encode()) + b'\x15' + struct.pack('<f', float(v))
                rec(b'\x09' + struct.pack('<d', t0 + float(dt)) + b'\x10' + _vi(int(step)) + _ld(0x2a, _ld(0x0a, val)))
def mlflow(p, run, name, params, metrics, t0):
    """metrics: {name: [(ms, value, step)]}"""
    os.makedirs(p, exist_ok=True)
    end = max(m[-1][0] for m in metrics.values())
    w(f'{p}/meta.yaml', f'artifact_uri: file:///home/ml/mlruns/0/{run}/artifacts\nend_time: {end}\nentry_point_name: \'\'\nexperiment_id: \'0\'\nlifecycle_stage: active\nrun_id: {run}\nrun_name: {name}\nsource_type: 4\nstart_time: {t0}\nstatus: 3\nuser_id: ml\n')
    for k, v in params.items(): w(f'{p}/params/{k}', str(v))
    w(f'{p}/tags/mlflow.runName', name); w(f'{p}/tags/mlflow.user', 'ml')
    for k, rows in metrics.items(): w(f'{p}/metrics/{k}', [f'{a} {b!r} {c}' for a, b, c in rows])
