"""Author K: writes 80 simulated logs and manifest.json.  usage: python3 make.py OUT"""
import csv, io, json, os, sys
from datetime import datetime, timedelta
import numpy as np

CASES = []


def add(cid, ext, fmt, expected, story, text, acceptable=()):
    CASES.append(dict(id=cid, path=f"{cid}.{ext}", format=fmt, expected=expected, acceptable=list(acceptable),
                      healthy=expected == "none", story=story, _text=text))


def R(seed):
    return np.random.default_rng(seed)


def ar(r, n, rho, s):
    e = r.normal(0, s, n) * np.sqrt(1 - rho * rho)
    x = np.zeros(n)
    v = r.normal(0, s)
    for i in range(n):
        v = rho * v + e[i]
        x[i] = v
    return x


def base(steps, hi, lo, tau, p=0.7):
    return lo + (hi - lo) * (1 + np.asarray(steps, float) / tau) ** (-p)


def fall(r, steps, hi, lo, tau, p=0.7, noise=0.05, rho=0.0):
    return base(steps, hi, lo, tau, p) * np.exp(ar(r, len(steps), rho, noise))


def cosine(step, total, peak, warm=0, end=0.0):
    s = np.asarray(step, float)
    w = np.minimum(1.0, (s + 1e-9) / warm) if warm else 1.0
    f = np.clip((s - warm) / max(1, total - warm), 0, 1)
    return np.where(s < warm, peak * w, end + (peak - end) * 0.5 * (1 + np.cos(np.pi * f)))


class Clock:
    def __init__(self, y=2025, mo=3, d=2, h=9, mi=12, s=5, ms=0):
        self.t = datetime(y, mo, d, h, mi, s, ms * 1000)

    def tick(self, sec):
        self.t += timedelta(seconds=float(sec))
        return self

    def f(self, fmt="%Y-%m-%d %H:%M:%S"):
        return self.t.strftime(fmt)

    def ms(self, sep=","):
        return self.t.strftime("%Y-%m-%d %H:%M:%S") + f"{sep}{self.t.microsecond // 1000:03d}"


def hms(sec):
    sec = int(sec)
    h, m, s = sec // 3600, sec // 60 % 60, sec % 60
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m:02d}:{s:02d}"


def bar(i, n, w=10):
    full = i * w * 8 // n
    s = "█" * (full // 8)
    if full % 8 and full // 8 < w:
        s += " ▏▎▍▌▋▊▉"[full % 8]
    return s.ljust(w)


def tq(desc, i, n, spi, post):
    return f"{desc}: {100 * i // n:3d}%|{bar(i, n)}| {i}/{n} [{hms(i * spi)}<{hms((n - i) * spi)}, {spi:5.2f}s/it, {post}]"


def g3(x):
    """three significant digits as diffusers/tqdm print them"""
    return f"{float(x):.3g}"


def tocsv(header, rows):
    b = io.StringIO()
    w = csv.writer(b, lineterminator="\n")
    w.writerow(header)
    w.writerows(rows)
    return b.getvalue()


def jl(rows):
    return "\n".join(json.dumps(x) for x in rows) + "\n"


def sig(x, n=6):
    return float(f"{float(x):.{n}g}")


def write(out):
    os.makedirs(out, exist_ok=True)
    man = []
    for c in CASES:
        t = c["_text"]
        if isinstance(t, list):
            t = "\n".join(t) + "\n"
        with open(os.path.join(out, c["path"]), "w", encoding="utf-8", newline="") as f:
            f.write(t)
        man.append({k: v for k, v in c.items() if k != "_text"})
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as f:
        json.dump(man, f, indent=1, ensure_ascii=False)


# Broken runs of trainers, k01..k11.
# k01 nan_loss: diffusers train_text_to_image under nohup, carriage returns
r = R(101)
n = 10000
hd = """03/02/2025 09:12:05 - INFO - __main__ - Distributed environment: MULTI_GPU  Backend: nccl
Num processes: 4
Process index: 0
Local process index: 0
Device: cuda:0

Mixed precision type: bf16

{'prediction_type', 'timestep_spacing', 'rescale_betas_zero_snr'} was not found in config. Values will be initialized to default values.
03/02/2025 09:13:41 - INFO - __main__ - ***** Running training *****
03/02/2025 09:13:41 - INFO - __main__ -   Num examples = 118287
03/02/2025 09:13:41 - INFO - __main__ -   Num Epochs = 6
03/02/2025 09:13:41 - INFO - __main__ -   Instantaneous batch size per device = 16
03/02/2025 09:13:41 - INFO - __main__ -   Total train batch size (w. parallel, distributed & accumulation) = 64
03/02/2025 09:13:41 - INFO - __main__ -   Gradient Accumulation steps = 1
03/02/2025 09:13:41 - INFO - __main__ -   Total optimization steps = 10000
"""
st = np.arange(0, 5200, 4)
lo = fall(r, st, 0.62, 0.105, 150, 0.9, 0.28)
post = []
for i, s in enumerate(st):
    lv = "nan" if s >= 3784 else g3(lo[i])
    post.append(tq("Steps", int(s), n, 1.21, f"lr=1e-5, step_loss={lv}"))
    if s in (2000, 4000):
        post.append(f"03/02/2025 {'10:02:11' if s == 2000 else '10:51:30'} - INFO - accelerate.accelerator - Saving current state to sd-ft/checkpoint-{s}\n"
                    f"Model weights saved in sd-ft/checkpoint-{s}/unet")
add("k01", "log", "tqdm/accelerate", "nan_loss", "diffusers fine-tuning; step_loss ordinary (about 0.11) until step 3780, nan from 3784 to the end of the log.",
    hd + "\r".join(post) + "\n")

# k02 nan_loss: Lightning CSVLogger
r = R(102)
st = np.arange(49, 22000, 50)
lo = fall(r, st, 1.9, 0.52, 400, 0.8, 0.05)
gn = fall(r, st, 2.4, 0.31, 500, 0.8, 0.2)
rows = []
for i, s in enumerate(st):
    ep = s // 2600
    bad = s > 17350
    rows.append([ep, "", f"{2e-4 * min(1, s / 1000):.6g}", s, "", "nan" if bad else f"{lo[i]:.8f}", "nan" if bad else f"{gn[i]:.7f}"])
    if (s + 1) % 2600 == 0:
        v = base(s, 1.85, 0.535, 400, 0.8) * np.exp(r.normal(0, .006))
        rows.append([ep, f"{v:.8f}" if not bad else "nan", "", s, "", "", ""])
add("k02", "csv", "lightning csv", "nan_loss", "Lightning metrics.csv of a DiT; loss and grad norm nan from step 17399 to the end, validation nan as well.",
    tocsv(["epoch", "val/fm_loss", "lr-AdamW", "step", "hp_metric", "train/fm_loss_step", "grad_2.0_norm_total"], rows))

# k03 divergence: fairseq lines
r = R(103)
c = Clock(2024, 11, 18, 20, 3, 44)
L = [f"{c.f()} | INFO | fairseq_cli.train | task: T2IFlowTask", f"{c.f()} | INFO | fairseq_cli.train | model: UViTFlow",
     f"{c.f()} | INFO | fairseq_cli.train | num. shared model params: 501,334,016 (num. trained: 501,334,016)",
     f"{c.f()} | INFO | fairseq.trainer | begin training epoch 1"]
st = np.arange(200, 60001, 200)
up = np.where(st > 31000, (np.maximum(st - 31000, 0) / 29000.0) ** 1.15 * 0.62, 0)
lo = (base(st, 1.95, 0.49, 700, 0.85) + up) * np.exp(r.normal(0, .018, len(st)))
gn = fall(r, st, 1.6, 0.33, 800, .8, .12) * (1 + 1.1 * up)
for i, s in enumerate(st):
    c.tick(131 + r.normal(0, 2))
    ep = 1 + s // 12000
    d = dict(epoch=int(ep), update=f"{s / 12000:.3f}", loss=f"{lo[i]:.4f}", wps="0", ups=f"{1.52 + r.normal(0, .01):.2f}", bsz="512",
             num_updates=str(int(s)), lr=f"{1e-4:.6g}", gnorm=f"{gn[i]:.3f}", clip="0", train_wall="129", gb_free="21.4", wall=str(int(s * .66)))
    L.append(f"{c.f()} | INFO | train_inner | " + json.dumps(d))
    if s % 6000 == 0:
        v = (base(s, 1.93, 0.50, 700, .85) + up[i]) * np.exp(r.normal(0, .006))
        L.append(f"{c.f()} | INFO | valid | " + json.dumps(dict(epoch=int(ep), valid_loss=f"{v:.4f}", valid_num_updates=str(int(s)))))
add("k03", "log", "fairseq", "divergence", "fairseq: loss falls to 0.54 by update 31k and then climbs steadily to above 1.1 by 60k, validation with it; LR constant, no jump.", L)

# k04 loss_spikes (no recovery): Megatron
r = R(104)
c = Clock(2025, 4, 7, 1, 30, 2)
st = np.arange(100, 52001, 100)
lo = fall(r, st, 1.97, 0.505, 900, .8, .014)
gn = fall(r, st, 1.3, 0.22, 900, .8, .13)
j = st >= 33700
k = np.maximum(0, (st - 33700)) / 100.0
lo = np.where(j, lo * (1.42 + 0.75 * np.exp(-k / 6)), lo)
gn = np.where(j, gn * (1.6 + 14 * np.exp(-k / 2)), gn)
L = ["using world size: 64, data-parallel size: 64, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
     "setting training iterations to 80000", "[before the start of training step] datetime: 2025-04-07 01:30:02"]
for i, s in enumerate(st):
    c.tick(61.2 + r.normal(0, .4))
    L.append(f" [{c.f()}] iteration {s:8d}/   80000 | consumed samples: {s * 1024:12d} | elapsed time per iteration (ms): {612 + r.normal(0, 4):.1f} | "
             f"learning rate: {1e-4:.6E} | global batch size:  1024 | fm loss: {lo[i]:.6E} | loss scale: 1.0 | grad norm: {gn[i]:.3f} | "
             f"number of skipped iterations:   0 | number of nan iterations:   0 |")
    if s % 10000 == 0:
        L.append(f"  successfully saved checkpoint at iteration {s:7d} to /ckpt/dit-xl-fm")
add("k04", "log", "megatron", "loss_spikes", "Megatron: sudden jump at iteration 33700 (0.55 to 1.2), the loss settles about 40 % above its former level and stays there to the end.", L, ["divergence"])

# k05 recurring spikes: TensorBoard scalar download
r = R(105)
st = np.arange(0, 40000, 50)
lo = fall(r, st, 1.02, 0.148, 600, .9, .05)
pos = np.sort(r.choice(np.arange(40, len(st) - 5), 27, replace=False))
for p in pos:
    a = r.uniform(4, 11)
    for q in range(4):
        if p + q < len(st):
            lo[p + q] *= 1 + a * np.exp(-q / .8)
rows = [[f"{1741000000.5 + s * .81:.6f}", s, f"{v:.9f}"] for s, v in zip(st, lo)]
add("k05", "csv", "tensorboard csv", "loss_spikes", "TensorBoard CSV of train_loss: 27 spikes of 5 to 12 times the running level all through the run.",
    tocsv(["Wall time", "Step", "Value"], rows), ["lr_too_high"])

# k06 no_learning: mmengine
r = R(106)
c = Clock(2024, 9, 3, 10, 2, 31)
L = [f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Checkpoints will be saved to /work_dirs/flow_sana_600m.",
     f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - WARNING - \"FileClient\" will be deprecated in future."]
for s in range(100, 30001, 100):
    c.tick(54)
    L.append(f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(train) [{s:6d}/100000]  base_lr: 1.0000e-04 lr: 1.0000e-04  eta: {hms((100000 - s) * .54)}  "
             f"time: {.54 + r.normal(0, .01):.4f}  data_time: {abs(.012 + r.normal(0, .003)):.4f}  memory: 31820  grad_norm: {.84 * np.exp(r.normal(0, .09)):.4f}  loss: {1.987 * np.exp(r.normal(0, .012)):.4f}")
    if s % 5000 == 0:
        L.append(f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(val) [64/64]    val/fm_mse: {1.988 + r.normal(0, .003):.4f}  val/cos: {.004 + r.normal(0, .002):.4f}  time: 0.2110")
add("k06", "log", "mmengine", "no_learning", "mmengine: loss stays at 1.987 for 30k iterations, validation MSE and cos too; LR 1e-4 and gradient norm 0.84 ordinary.", L, ["weak_field"])

# k07 lr_too_small: trainer_state.json
r = R(107)
H = []
for s in range(20, 4001, 20):
    lr = float(cosine(s, 20000, 2e-10, 500))
    H.append(dict(epoch=sig(s / 2310, 4), grad_norm=sig(1.91 * np.exp(r.normal(0, .12)), 8), learning_rate=lr, loss=sig(1.412 * np.exp(r.normal(0, .02)), 5), step=s))
    if s % 1000 == 0:
        H.append(dict(epoch=sig(s / 2310, 4), eval_loss=sig(1.409 + r.normal(0, .002), 7), eval_runtime=41.2, eval_samples_per_second=49.7, step=s))
add("k07", "json", "trainer_state.json", "lr_too_small", "HF Trainer: learning_rate peaks at 2e-10 (typed 2e-10 for 2e-4); loss and eval_loss flat, grad norm ordinary.",
    json.dumps(dict(best_metric=None, best_model_checkpoint=None, epoch=1.73, eval_steps=1000, global_step=4000, is_hyper_param_search=False,
                    is_local_process_zero=True, is_world_process_zero=True, log_history=H, logging_steps=20, max_steps=20000,
                    num_train_epochs=9, save_steps=1000, total_flos=0.0, train_batch_size=32), indent=2))

# k08 lr_too_high: loguru, lowered later
r = R(108)
c = Clock(2025, 1, 12, 9, 13, 22, 412)
L = []
lr = 6e-3
cur = .6
for s in range(50, 16001, 50):
    c.tick(37.3 + r.normal(0, .5))
    if s == 12050:
        L.append(f"{c.ms('.')} | WARNING  | control:poll:41 - control.json changed: lr 6.00e-03 -> 2.00e-04")
        lr = 2e-4
    if lr > 1e-3:
        v, gnm = 1.7 * np.exp(r.normal(0, .62)), 31 * np.exp(r.normal(0, .9))
    else:
        q = s - 12050
        v, gnm = (.74 + .5 * np.exp(-q / 400)) * np.exp(r.normal(0, .03)), (.6 + 3 * np.exp(-q / 300)) * np.exp(r.normal(0, .12))
    L.append(f"{c.ms('.')} | INFO     | trainer:train_loop:214 - step={s} loss={v:.4f} gnorm={gnm:.2f} lr={lr:.2e} img/s={812 + r.normal(0, 6):.0f}")
add("k08", "log", "loguru", "lr_too_high", "own loop: at lr 6e-3 the loss oscillates between 0.4 and 8 without trend with restless gradient norms; after lr was lowered to 2e-4 it is calm and falls.", L)

# k09 lr_restart: W&B history export
r = R(109)
rows = []
for s in range(0, 50000, 100):
    if s <= 30000:
        lr, v = float(cosine(s, 30000, 2e-4, 500, 2e-6)), base(s, 1.9, .36, 900, .75) * np.exp(r.normal(0, .02))
    else:
        lr, v = float(cosine(s - 30000, 60000, 2e-4, 0, 2e-6)), (.575 - .045 * (s - 30000) / 20000) * np.exp(r.normal(0, .025))
    row = [s, f"{s * .93 + 12:.2f}", f"{v:.6f}", f"{lr:.8g}", ""]
    if s % 2500 == 0:
        row[4] = f"{(v * 1.03):.6f}"
    rows.append(row)
add("k09", "csv", "wandb csv", "lr_restart", "W&B history: cosine LR ends at 2e-6 at step 30000 with loss 0.47; resumed with a new cosine at 2e-4, loss jumps to 0.58 and is still 0.53 at the end.",
    tocsv(["Step", "_runtime", "train/loss", "train/lr", "val/loss"], rows), ["loss_spikes"])

# k10 overfitting: epoch summary of a LoRA
r = R(110)
L = ["flux-lora-trainer 0.4.1   config=configs/ceramics.yaml", "dataset: 182 images (val: 24)   rank 64  lr 4e-04  bs 4", ""]
for e in range(1, 71):
    tr = .52 * np.exp(-e / 26) * np.exp(r.normal(0, .02)) + .03
    va = (.545 - .075 * (1 - np.exp(-e / 6)) + .0034 * max(0, e - 14)) * np.exp(r.normal(0, .008))
    L.append(f"Epoch {e:02d}/70 | train {tr:.4f} | val {va:.4f} | CLIP-T {.291 + .02 * (1 - np.exp(-e / 6)) - .0006 * max(0, e - 16) + r.normal(0, .001):.3f} | {73 + r.normal(0, 1):.0f}s")
add("k10", "txt", "own epoch lines", "overfitting", "LoRA on 182 images: val best about epoch 14 (0.48), rises to 0.66 while train falls to 0.06; CLIP-T falls too.", L)

# k11 overfitting: JSON lines with FID
r = R(111)
rows = []
for s in range(100, 60001, 100):
    rows.append(dict(step=s, train=dict(loss=sig(.62 * (1 + s / 800) ** -.55 * np.exp(r.normal(0, .04)) + .08), lr=1e-4, gn=sig(.5 * np.exp(r.normal(0, .15)), 4))))
    if s % 3000 == 0:
        x = s / 1000
        rows.append(dict(step=s, eval=dict(loss=sig(.318 + .25 * np.exp(-x / 4) + .0021 * max(0, x - 18) + r.normal(0, .002)),
                                           fid_10k=sig(14.2 + 60 * np.exp(-x / 5) + .42 * max(0, x - 18) + r.normal(0, .25), 4))))
add("k11", "jsonl", "json lines", "overfitting", "JSON lines: eval loss and FID best at 18k to 21k, then both worsen to the end (FID 16 to 32), train loss goes on falling.", jl(rows))


# Broken runs of trainers, k12..k21.
# k12 periodic_memorisation: logging module
r = R(112)
c = Clock(2025, 5, 20, 14, 0, 1, 31)
L = [f"{c.ms()} INFO    data         2048 pairs in 3 shards, 256 iterations per epoch (bs 8), workers 8",
     f"{c.ms()} INFO    model        MMDiT-S 86.2M parameters, flow matching (linear path)"]
it = 0
for e in range(20):
    lev = .21 + .64 * .83 ** e
    for k in range(16, 257, 16):
        it += 16
        c.tick(9.1)
        L.append(f"{c.ms()} INFO    train        ep {e:2d} [{k:3d}/256] it {it:5d}  fm_loss {lev * np.exp(r.normal(0, .012)):.4f}  lr 2.0e-04  gnorm {.42 * np.exp(r.normal(0, .1)):.3f}")
add("k12", "log", "python logging", "periodic_memorisation", "256 iterations per epoch: loss flat inside each epoch and a step down at every epoch boundary (staircase of 20 steps).", L)

# k13 grad_explosion: DeepSpeed
r = R(113)
c = Clock(2025, 2, 11, 10, 11, 12, 345)
L = [f"[{c.ms()}] [INFO] [config.py:997:print] DeepSpeedEngine configuration:", f"[{c.ms()}] [INFO] [config.py:1001:print]   bfloat16_enabled ............. True",
     f"[{c.ms()}] [INFO] [config.py:1001:print]   gradient_clipping ............ 0.0", f"[{c.ms()}] [INFO] [config.py:1001:print]   zero_optimization_stage ...... 2"]
for s in range(50, 18001, 50):
    c.tick(61 + r.normal(0, .5))
    x = s / 18000
    v = base(s, 1.9, .52, 700, .8) * np.exp(r.normal(0, .02)) * (1 + .10 * max(0, x - .85) / .15)
    gn = .28 * 10 ** (3.6 * x) * np.exp(r.normal(0, .22))
    L.append(f"[{c.ms()}] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]")
    L.append(f"step {s}/60000 | loss {v:.4f} | grad_norm {gn:.4g} | 1.22 s/step | 209.8 samples/s")
add("k13", "log", "deepspeed", "grad_explosion", "DeepSpeed without clipping: grad_norm rises steadily from 0.3 to above 1000 over 18k steps, loss only bends at the very end.", L)

# k14 grad_vanishing: rich handler
r = R(114)
c = Clock(2025, 6, 1, 22, 14, 7)
L = [f"[{c.f('%H:%M:%S')}] INFO     loaded gemma-2b text encoder (frozen)                                       build.py:77",
     "           INFO     flow net: 24 blocks, d=1152, post-norm                                     build.py:102"]
for s in range(100, 20001, 100):
    c.tick(48)
    gn = 10 ** (-.4 - 6.6 * min(1, s / 9000)) * np.exp(r.normal(0, .3))
    v = (1.02 + .9 * np.exp(-s / 500)) * np.exp(r.normal(0, .012))
    L.append(f"[{c.f('%H:%M:%S')}] INFO     step {s:>6,}  loss {v:.4f}  |g| {gn:.2e}  lr 1.0e-04  {2.09 + r.normal(0, .01):.2f} it/s".ljust(84) + "train.py:188")
add("k14", "log", "rich", "grad_vanishing", "rich lines: |g| falls from 0.3 to 1e-7 by step 9000 and stays there while the loss is stuck at 1.02; LR 1e-4 constant.", L)

# k15 amp_overflow: DeepSpeed messages
r = R(115)
c = Clock(2024, 12, 5, 3, 3, 3, 100)
L = [f"[{c.ms()}] [INFO] [config.py:1001:print]   fp16_enabled ................. True", f"[{c.ms()}] [INFO] [config.py:1001:print]   initial_dynamic_scale ........ 65536"]
sc, sk = 65536.0, 0
for s in range(1, 901):
    c.tick(1.4)
    ov = (s > 210) and r.random() < .9 or s in (2, 3)
    if ov:
        new = max(sc / 2, 2.0 ** -14)
        sk += 1
        L.append(f"[{c.ms()}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc:g}, reducing to {new:g}")
        sc = new
    if s % 10 == 0:
        v = base(min(s, 210), 1.96, .9, 120, .8) * np.exp(r.normal(0, .02))
        L.append(f"[{c.ms()}] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={sk}, lr=[0.0002], mom=[(0.9, 0.99)]")
        L.append(f"[{c.ms()}] [INFO] [timer.py:260:stop] epoch=0/micro_step={s}/global_step={s}, RunningAvgSamplesPerSec=182.4, MemAllocated=14.2GB")
        L.append(f"it {s}: fm={v:.4f} loss_scale={sc:g}")
add("k15", "log", "deepspeed", "amp_overflow", "DeepSpeed fp16: from step 210 about 90 % of the steps overflow, the loss scale falls to 6e-5 and the loss freezes at 1.37.", L)

# k16 amp_overflow: own CSV
r = R(116)
rows = []
sc = 65536.0
skip = 0
for s in range(0, 3000, 5):
    o = 0
    if s > 1200:
        o = int(r.random() < .9) * int(r.integers(1, 4))
        if o:
            sc = max(sc / 2 ** o, 1e-30)
            skip += o
    v = base(min(s, 1200), 1.0, .26, 200, .8) * np.exp(r.normal(0, .05))
    rows.append([s, f"{v:.5f}", "inf" if o else f"{.4 * np.exp(r.normal(0, .2)):.4f}", f"{sc:.6g}", skip, "1e-04"])
add("k16", "csv", "own csv", "amp_overflow", "GradScaler CSV: scale 65536 until iteration 1200, then halved over and over down to 1e-30, skipped steps grow all the time, loss stays put.",
    tocsv(["it", "eps_mse", "gnorm", "scaler_scale", "skipped_total", "lr"], rows))

# k17 resume_from_scratch: srun -l, 4 ranks, preemption
r = R(117)
c = Clock(2025, 7, 14, 2, 0, 9)
L = ["0: [rank 0] world_size=4 MASTER=gpu-a17", "2: [rank 2] joined", "1: [rank 1] joined", "3: [rank 3] joined",
     "1: NCCL INFO Bootstrap : Using ib0:10.11.2.17<0>", "0: [rank 0] no checkpoint in /scratch/t2i/run8, starting at 0"]


def seg17(a, b, off):
    for s in range(a, b, 50):
        c.tick(33)
        q = s - off
        v = base(q, 1.98, .55, 500, .85)
        for k in ((0, 1, 2, 3) if s % 500 == 0 else (0,)):
            L.append(f"{k}: {c.f('%m-%d %H:%M:%S')} it={s} loss={v * np.exp(r.normal(0, .02)):.4f} gn={.3 + 1.5 * np.exp(-q / 400) + abs(r.normal(0, .03)):.3f} lr=1.00e-04")


seg17(50, 16050, 0)
L += ["slurmstepd-gpu-a17: error: *** STEP 881231.0 ON gpu-a17 CANCELLED AT 2025-07-14T04:56:30 DUE TO PREEMPTION ***",
      "0: [rank 0] world_size=4 MASTER=gpu-b03", "0: [rank 0] found /scratch/t2i/run8/step_16000.pt", "0: [rank 0] resumed: it=16000, optimizer=yes",
      "0: missing keys: 412  unexpected keys: 412 (strict=False)"]
c.tick(900)
seg17(16050, 26050, 16050)
add("k17", "out", "slurm, several ranks", "resume_from_scratch", "srun output: after preemption the counter continues at 16050 but the loss begins at 1.98 again and falls as in a fresh run; 412 keys missing.", L)

# k18 resume_from_scratch: JSON lines
r = R(118)
rows = [dict(event="start", run="pixart-rf", git="a91c02e", total_steps=120000)]


def seg18(a, b, off):
    for s in range(a, b, 200):
        q = s - off
        rows.append(dict(global_step=s, loss=sig(base(q, 1.06, .142, 500, 1.0) * np.exp(r.normal(0, .07)), 5), lr=1e-4, grad_norm=sig(.2 + .9 * np.exp(-q / 900) + abs(r.normal(0, .02)), 4)))
        if s % 4000 == 0:
            rows.append(dict(global_step=s, eval_loss=sig(base(q, 1.04, .145, 500, 1.0), 5), eval_clip=sig(.315 - .12 * np.exp(-q / 9000) + r.normal(0, .001), 4)))


seg18(200, 44001, 0)
rows.append(dict(event="resume", checkpoint="ckpt/0044000", global_step=44000))
seg18(44200, 70001, 44200)
add("k18", "jsonl", "json lines", "resume_from_scratch", "after the resume event at 44000 loss (0.15 to 1.05), eval loss and CLIP start again at their step-0 values and fall again.", jl(rows))

# k19 self_stopped: own watchdog
r = R(119)
c = Clock(2025, 8, 2, 6, 40, 0)
L = [f"{c.f()} [cfg] max_steps=200000 bs=256 lr=1.5e-4 watchdog(gnorm>50 for 25 logs -> abort)"]
for s in range(100, 41101, 100):
    c.tick(60)
    q = max(0, s - 38600)
    L.append(f"{c.f()} [train] step {s:>6d}/200000  rf_loss={base(s, 1.9, .5, 900, .8) * np.exp(r.normal(0, .018)) * (1 + .5 * min(1, q / 2500)):.4f}  gnorm={(.35 if not q else 72 + q / 40) * np.exp(r.normal(0, .12)):.2f}")
    if q and q > 300 and q % 500 == 0:
        L.append(f"{c.f()} [watchdog] gnorm above 50 for {q // 100} logs")
L += [f"{c.f()} [watchdog] ABORT: grad norm above 50 for 25 consecutive logs, stopping at step 41100 of 200000",
      f"{c.f()} [train] emergency checkpoint written to out/emergency_41100.pt", "Traceback (most recent call last):",
      '  File "/home/lin/rf/train.py", line 402, in <module>', "    main(cfg)", '  File "/home/lin/rf/train.py", line 377, in main',
      "    raise WatchdogAbort(reason)", "watchdog.WatchdogAbort: gradient norm alarm"]
add("k19", "log", "own loop", "self_stopped", "own watchdog aborts at step 41100 of 200000: grad norm above 50 for 25 logs (jumped from 0.35 to 72+ at 38700).", L,
    ["grad_explosion", "divergence", "loss_spikes"])

# k20 metrics_lost: W&B history
r = R(120)
rows = []
for s in range(0, 36000, 100):
    row = [s, 1745000000 + int(s * .7), f"{base(s, 1.85, .5, 600, .8) * np.exp(r.normal(0, .02)):.5f}", "0.0001", f"{.3 * np.exp(r.normal(0, .1)):.4f}", "", "", ""]
    if s % 1000 == 0 and s:
        ok = s <= 21000
        row[5:] = ([f"{base(s, 1.86, .51, 600, .8) * np.exp(r.normal(0, .006)):.5f}", f"{.19 + .12 * (1 - np.exp(-s / 9000)):.4f}", f"{18 + 90 * np.exp(-s / 4000):.2f}"]
                   if ok else ["NaN", "NaN", "NaN"])
    rows.append(row)
add("k20", "csv", "wandb csv", "metrics_lost", "val loss, CLIP and FID logged every 1000 steps until 21000 and NaN at every evaluation afterwards; the training loss goes on normally to 36000.",
    tocsv(["_step", "_timestamp", "train/loss", "train/lr", "train/grad_norm", "val/loss", "val/clip_score", "val/fid_5k"], rows))

# k21 ema_broken: logging lines
r = R(121)
c = Clock(2025, 1, 30, 18, 0, 0)
L = [f"INFO:root:ema decay=0.9999 update_every=1 (foreach)", "INFO:root:optimizer AdamW lr=1e-4"]
for s in range(250, 50001, 250):
    L.append(f"INFO:root:[{s:06d}] loss={base(s, 1.95, .52, 700, .8) * np.exp(r.normal(0, .02)):.4f} gnorm={.3 * np.exp(r.normal(0, .12)):.3f} lr=1.0e-04")
    if s % 2500 == 0:
        L.append(f"INFO:root:[{s:06d}] eval raw: mse={base(s, 1.95, .53, 700, .8) * np.exp(r.normal(0, .005)):.4f} fid={22 + 240 * np.exp(-s / 6000) + r.normal(0, .4):.1f}")
        L.append(f"INFO:root:[{s:06d}] eval ema: mse={1.951 + r.normal(0, .0004):.4f} fid={341.5 + r.normal(0, .3):.1f}")
add("k21", "log", "python logging", "ema_broken", "eval of the raw weights improves (mse 1.0 to 0.58, FID to 22), eval of the EMA weights stays at 1.951 / FID 341 for 50k steps.", L)


# Broken runs of trainers, k22..k31: losses against each other, variational head, field.
# k22 weak_gradient_share: own text lines, project-like names
r = R(122)
L = ["# run vh-dino-3  w_flow=1 w_kl=1e-2 w_dino=0.02  lr 1e-4  (grad/* = norm of each loss' own gradient on the shared trunk)"]
for s in range(0, 15001, 100):
    gf = (.45 + .9 * np.exp(-s / 1500)) * np.exp(r.normal(0, .08))
    gk = gf * .17 * np.exp(r.normal(0, .1))
    gd = gf * .0085 * np.exp(r.normal(0, .15))
    L.append(f"{s:6d} loss/flow {base(s, 1.8, .55, 500, .8) * np.exp(r.normal(0, .02)):.4f} loss/kl {.06 + .02 * np.exp(-s / 2000) + abs(r.normal(0, .001)):.4f} "
             f"loss/dino {5.54 + r.normal(0, .01):.3f} grad/flow {gf:.4f} grad/kl {gk:.4f} grad/dino {gd:.5f} grad/total {np.sqrt(gf**2 + gk**2 + gd**2):.4f}")
add("k22", "txt", "own loop", "weak_gradient_share", "grad/dino is below 1 % of grad/total for the whole run (kl about 17 %), loss/dino does not move from 5.54.", L)

# k23 head_not_updated: JSON lines, other names
r = R(123)
rows = []
for s in range(0, 24001, 80):
    rows.append({"it": s, "fm_loss": sig(base(s, 1.9, .6, 600, .8) * np.exp(r.normal(0, .02)), 5), "lr": 2e-4,
                 "step/flow_head_update_ratio": sig(8.4e-4 * np.exp(r.normal(0, .1)), 4), "step/z_head_update_ratio": sig(3.1e-8 * np.exp(r.normal(0, .2)), 4),
                 "grad/total": sig(.4 * np.exp(r.normal(0, .1)), 4)})
add("k23", "jsonl", "json lines", "head_not_updated", "update ratio of the z head is 3e-8 during the whole run, that of the flow head 8e-4; LR 2e-4 ordinary.", jl(rows))

# k24 teacher_collapsed: logging, K=8192
r = R(124)
c = Clock(2025, 4, 19, 8, 30, 0)
L = [f"{c.f()} | dino head: K=8192 (log K = 9.011)  T_teacher=0.01  T_student=0.1  center_momentum=1.0"]
for s in range(50, 12001, 50):
    c.tick(41)
    te = .06 + 3.2 * np.exp(-s / 260)
    L.append(f"{c.f()} | step {s:5d} | flow {base(s, 1.9, .56, 400, .8) * np.exp(r.normal(0, .02)):.4f} | dino {1.1 + 5 * np.exp(-s / 900) + r.normal(0, .02):.3f} | "
             f"H(teacher) {te * np.exp(r.normal(0, .06)):.4f} | H(student) {1.9 + 5.4 * np.exp(-s / 900) + r.normal(0, .03):.3f} | gnorm {.5 * np.exp(r.normal(0, .1)):.3f}")
add("k24", "log", "python logging", "teacher_collapsed", "H(teacher) falls to 0.06 (log K 9.01, below 1 %) within 1500 steps and stays; T_teacher 0.01, centring momentum 1.0 (centre never moves).", L)

# k25 teacher_uniform: CSV
r = R(125)
rows = []
K = 4096
for s in range(0, 10000, 40):
    rows.append([s, f"{base(s, 1.85, .58, 400, .8) * np.exp(r.normal(0, .02)):.5f}", f"{np.log(K) + .002 * np.exp(-s / 900) + abs(r.normal(0, .0004)):.5f}", f"{np.log(K) - abs(r.normal(0, .0003)):.5f}",
                 f"{np.log(K) - .002 - .01 * np.exp(-s / 900) - abs(r.normal(0, .0004)):.5f}", K, "0.07", "0.1", "1e-4"])
add("k25", "csv", "own csv", "teacher_uniform", "teacher entropy equals log 4096 = 8.3178 from the first row to the last, the student follows and the DINO loss sits at log K.",
    tocsv(["step", "loss/flow", "loss/dino", "ent/teacher", "ent/student", "K", "T_t", "T_s", "lr"], rows))

# k26 student_saturated: JSON lines
r = R(126)
rows = [{"config": {"dino_K": 1024, "T_s": 0.02, "T_t": 0.06, "w_dino": 0.05, "lr": 1e-4}}]
for s in range(0, 14000, 50):
    gf = (.5 + .8 * np.exp(-s / 1200)) * np.exp(r.normal(0, .08))
    rows.append({"step": s, "loss/flow": sig(base(s, 1.88, .57, 500, .8) * np.exp(r.normal(0, .02)), 5), "loss/dino": sig(6.2 + 1.5 * np.exp(-s / 600) + r.normal(0, .06), 5),
                 "ent/teacher": sig(3.4 + r.normal(0, .05), 4), "ent/student": sig((.11 + 3 * np.exp(-s / 250)) * np.exp(r.normal(0, .07)), 4),
                 "grad/flow": sig(gf, 4), "grad/dino": sig(gf * .02 * np.exp(r.normal(0, .1)), 4), "grad/total": sig(gf * 1.001, 4)})
add("k26", "jsonl", "json lines", "student_saturated", "student entropy 0.11 of log 1024 = 6.93 (1.6 %), DINO gradient 2 % of the total, teacher entropy ordinary (3.4); T_s 0.02.", jl(rows), ["weak_gradient_share"])

# k27 kl_not_acting: W&B-like CSV
r = R(127)
rows = []
for s in range(0, 40000, 200):
    x = s / 40000
    mu = .35 + 5.6 * x ** .8 + abs(r.normal(0, .03))
    sd = 1.0 + 1.4 * x + r.normal(0, .01)
    kl = .5 * (mu ** 2 * 1.55 + sd ** 2 - 1 - 2 * np.log(sd))
    rows.append([s, f"{base(s, 1.0, .27, 700, .8) * np.exp(r.normal(0, .02)):.5f}", f"{kl:.4f}", "1e-08", f"{mu:.4f}", f"{sd:.4f}", f"{mu * mu * 1.55 + sd * sd:.3f}", "0.0001"])
add("k27", "csv", "wandb csv", "kl_not_acting", "beta 1e-8: KL rises from 0.1 to 28, mean |mu| from 0.35 to 6, std to 2.4, var(z0) to 60 during the run.",
    tocsv(["step", "train/flow_nmse", "train/kl", "train/beta", "train/mu_abs_mean", "train/std_mean", "train/z_init_var", "train/lr"], rows), ["scale_mismatch"])

# k28 posterior_collapse: own loop, Chinese comments
r = R(128)
L = ["配置: beta_kl=1.0  z 维度 4x32x32  文本编码器 Qwen2-1.5B(冻结)  lr=1e-4", "每 100 步打印一次"]
for s in range(100, 12001, 100):
    q = np.exp(-s / 350)
    fl, kl = 1.018 + .6 * np.exp(-s / 700) + r.normal(0, .012), .9 * q + abs(r.normal(0, 8e-6))
    L.append(f"第{s}步  总损失={fl + kl:.4f}  流损失={fl:.4f}  KL={kl:.6f}  "
             f"mu绝对均值={.4 * q + .0006 + abs(r.normal(0, 5e-5)):.5f}  std均值={1 - .35 * q + r.normal(0, 2e-4):.4f}  logvar均值={-.8 * q + r.normal(0, 4e-4):.4f}")
    if s % 2000 == 0:
        L.append(f"   [验证] 8 个提示词: mu范数 {', '.join(f'{.04 + abs(r.normal(0, .004)):.3f}' for _ in range(8))}  std 全部 1.000±0.001")
add("k28", "log", "own loop (Chinese)", "posterior_collapse", "beta_kl=1.0: KL 1e-5, mean |mu| 0.0006, std 1.000 for all prompts; the flow loss stays at 1.02.", L)

# k29 sigma_collapse: tqdm-less prints
r = R(129)
L = ["crossflow-ish run #14, logvar clamp (-10, 4), kl_w 1e-6"]
for s in range(0, 30001, 150):
    lv = max(-9.97, -.1 - 9.9 * (1 - np.exp(-s / 5000)) * 1.02)
    L.append(f"iter {s} | fm {base(s, 1.9, .42, 700, .9) * np.exp(r.normal(0, .02)):.4f} | kl {-.5 * (1 + lv - np.exp(lv)) + .3 + r.normal(0, .01):.3f} | mu.rms {.81 + r.normal(0, .01):.3f} | "
             f"logvar {lv + abs(r.normal(0, .01)):.3f} | sigma {np.exp(lv / 2) * np.exp(r.normal(0, .01)):.4f} | lr 1.0e-04")
add("k29", "txt", "own loop", "sigma_collapse", "logvar falls from -0.1 to its lower clamp at -10, sigma from 0.95 to 0.007 and stays there.", L, ["kl_not_acting"])

# k30 moving_target: loguru
r = R(130)
c = Clock(2025, 9, 9, 19, 2, 2, 17)
L = []
for s in range(100, 20001, 100):
    c.tick(58)
    vt = 61.0 * (.012 + .988 * np.exp(-s / 2600))
    v = (vt / 61.0) ** 2 * .9 * np.exp(r.normal(0, .05))
    L.append(f"{c.ms('.')} | INFO | flow.loop:step:90 - it {s} loss_fm={v:.6f} |v*|={vt * np.exp(r.normal(0, .01)):.3f} |v|={vt * .93 * np.exp(r.normal(0, .015)):.3f} |z0|={63.8 * np.exp(r.normal(0, .004)):.2f} |z1|={64.1 * np.exp(r.normal(0, .004)):.2f} |z0-z1|={vt * np.exp(r.normal(0, .01)):.3f} lr=1e-04")
    if s % 4000 == 0:
        L.append(f"{c.ms('.')} | INFO | flow.eval:sample:31 - FID-2k {312 + r.normal(0, 4):.1f}  CLIP {.171 + r.normal(0, .002):.3f}")
add("k30", "log", "loguru", "moving_target", "loss_fm falls to 1e-4 because |v*| itself shrinks from 59 to 0.8 (z0 pulled onto z1); FID stays at 312.", L)

# k31 t_edges: JSON lines with slices
r = R(131)
rows = []
prof = np.array([9.5, 2.1, 1.05, .95, .9, .9, .95, 1.1, 2.4, 11.0])
for s in range(0, 30001, 250):
    b = base(s, 1.41, .22, 900, .8)
    d = {"step": s, "lr": 1e-4}
    w = min(1, s / 4000)
    for k in range(10):
        d[f"flow/nmse_t{k}"] = sig(b * (1 + w * (prof[k] - 1)) * np.exp(r.normal(0, .03)) * .7, 4)
        d[f"flow/cos_t{k}"] = sig(np.sqrt(max(1e-4, 1 - d[f"flow/nmse_t{k}"])) + r.normal(0, .004), 4)
    d["flow/nmse"] = sig(np.mean([d[f"flow/nmse_t{k}"] for k in range(10)]), 4)
    d["flow/cos"] = sig(np.mean([d[f"flow/cos_t{k}"] for k in range(10)]), 4)
    d["loss/flow"] = sig(1.9 * d["flow/nmse"], 5)
    rows.append(d)
add("k31", "jsonl", "json lines", "t_edges", "nmse of the slices t0 and t9 about 10 times that of the middle (1.9 against 0.18) with low cos, middle slices good.", jl(rows))


# Prints of debugging sessions: d01..d14 broken.
def nums(r, mu, sd, n, f="{:.3f}"):
    return "  ".join(f.format(mu + r.normal(0, sd)) for _ in range(n))


# d01 vae_roundtrip
r = R(201)
L = [">>> python scratch/check_vae.py --n 32 --vae ./vae-16ch", "loading vae ... ok (83.8M)  dtype torch.float32  training=True", "x       (32, 3, 256, 256)  min -1.00 max 1.00 mean -0.041 std 0.512",
     "z       (32, 16, 32, 32)   mean 0.013 std 0.982   (after scaling)", "x_rec   (32, 3, 256, 256)  min -0.88 max 0.91 mean -0.09 std 0.301", ""]
P = 13.4 + r.normal(0, .7, 32)
L += [f"img {i:02d}  mse {4 * 10 ** (-p / 10):.4f}  psnr {p:5.2f} dB  lpips {.61 + r.normal(0, .02):.3f}" for i, p in enumerate(P)]
L += ["", f"mean psnr {P.mean():.2f} dB", "hm. the card says 31.", "latents look fine in scale, so not the factor", "TODO call .eval()?"]
add("d01", "txt", "debug print", "vae_roundtrip", "PSNR of decode(encode(x)) is 13.4 dB for all 32 images with latents of std 0.98 and images in [-1,1]; the VAE is in train mode.", L)

# d02 scale_mismatch (Chinese)
r = R(202)
L = ["=== 排查记录 0612 尺度 ===", "模型: Qwen 元查询 + 变分头 -> z0, z1 来自 VAE(已乘 scale)", "逐 batch 打印范数 (B=16, 16x32x32)"]
for i in range(28):
    a, b = 128.5 + r.normal(0, .9), 1013 + r.normal(0, 41)
    L.append(f"batch {i:02d}: ‖z0‖={a:.1f}  ‖z1‖={b:.1f}  ‖z1-z0‖={np.hypot(a, b):.1f}  比值={b / a:.2f}")
L += ["z0: mean=0.002 std=1.004", "z1: mean=0.31 std=7.91", "两边差了将近 8 倍, scale_factor 用的是 0.3611, 检查过只乘了一次", "怀疑: z1 取的是 moments 而不是采样"]
add("d02", "txt", "debug print (Chinese)", "scale_mismatch", "norm of z0 about 128, of z1 about 1013 in every batch (8 times), std 1.0 against 7.9.", L)

# d03 latent_scale_factor: applied twice
r = R(203)
L = ["[dbg] vae.config.scaling_factor = 0.18215", "[dbg] dataset: precomputed latents (*.npy)", ""]
for i in range(24):
    sd = .183 + r.normal(0, .004)
    L.append(f"[dbg] shard {i:03d} z1.mean={r.normal(0, .006):+.4f} z1.std={sd:.4f} z1.absmax={sd * 4.4 + abs(r.normal(0, .05)):.3f}")
L += ["", "[dbg] z1 as used in the loss: std 0.1831   expected ~1.0", "[dbg] z1 / 0.18215          : std 1.0052", "[dbg] decode(z1 / sf)       : grey fog, psnr 14.9",
      "[dbg] decode(z1 / sf / sf)  : sharp, psnr 29.6", "[dbg] grep scaling: dump_latents.py:61 and train.py:212"]
add("d03", "log", "debug print", "latent_scale_factor", "z1.std = 0.183 in all shards = the factor 0.18215; decode is sharp only after dividing twice: the factor is applied in the dump and in the trainer.", L, ["scale_mismatch"])

# d04 text_ignored
r = R(204)
pr = ["a red fox in snow", "two bottles of wine", "city at night, rain", "portrait of an old man", "a bowl of ramen", "blue sports car", "a cat on a piano", "mountain lake"]
L = ["prompts:"] + [f"  [{i}] {p}" for i, p in enumerate(pr)] + ["", "enc hidden states pairwise cos (offdiag) : mean 0.412  min 0.21  max 0.67   <- encoder is fine",
                                                                    "", "cos(mu_i, mu_j):"]
M = 1 - np.abs(r.normal(0.0012, .0003, (8, 8)))
for i in range(8):
    L.append("   " + " ".join(f"{1.0 if i == j else (M[i, j] + M[j, i]) / 2:.4f}" for j in range(8)))
L += ["offdiag mean 0.9988", "", "control, same prompt two samples: cos(z,z') = 0.33   different prompts: cos(z,z') = 0.33", "mu norm: " + nums(r, 37.2, .03, 8, "{:.2f}"),
      "std.mean: " + nums(r, .98, .002, 8), "", "after 20k steps. all eight pictures look the same (beige something)."]
L += [f"  step {k * 2000:6d}  offdiag cos(mu) {v:.4f}" for k, v in enumerate([.31, .88, .972, .991, .9958, .9974, .9981, .9985, .9986, .9988, .9988])]
add("d04", "txt", "debug print", "text_ignored", "pairwise cosine of the means of eight different prompts 0.9988, the encoder's states differ (0.41).", L)

# d05 weak_field (Chinese)
r = R(205)
L = ["# 单步对齐检查 ckpt-60000", "VAE 往返 PSNR 29.3 dB -> 正常", "mu 两两余弦 0.61 -> 正常", "尺度 z0 1.01 / z1 0.98 -> 正常", "sum(dt)=1.000 -> 正常", ""]
for t in (.05, .1, .2, .3, .37, .5, .63, .7, .8, .9, .95):
    L += [f"t={t:.2f}  cos(v_pred,v_tgt)={.048 + r.normal(0, .012):.4f}  |v_pred|={.397 + r.normal(0, .01):.4f}  |v_tgt|={1.408 + r.normal(0, .01):.4f}  比例={.282 + r.normal(0, .006):.3f}",
          f"        相对误差 nmse={1.051 + r.normal(0, .01):.4f}"]
L += ["", "打靶 x0->x1:"] + [f"  N={n:<4d} MSE={m:.3f}  (MSE(x0,x1)=1.98)" for n, m in ((5, 2.01), (10, 2.02), (20, 2.01), (50, 2.02), (100, 2.02))]
L += ["fm_gain 校准 = 3.55", "加 gain 后 MSE=4.61, 更差"]
add("d05", "txt", "debug print (Chinese)", "weak_field", "cos(v_pred, v_tgt) 0.05 and ratio 0.28 at every t, shooting error equals MSE(x0,x1); VAE, text, scale and schedule are fine.", L)

# d06 wrong_target: sign flipped
r = R(206)
L = ["ipdb> !run_probe(model, loader, n=24)", "probe: v_hat = model(x_t, t);  ref = x1 - x0"]
for i in range(24):
    L.append(f"   b{i:02d} t={r.uniform(.05, .95):.3f}  <v_hat,ref>/|.||.| = {-.83 + r.normal(0, .02):+.3f}   |v_hat|/|ref| = {.91 + r.normal(0, .02):.3f}")
L += ["ipdb> # train loss says 0.38 and sampling gives noise?", "ipdb> corr(v_hat, x1-x0), corr(v_hat, x0-x1), corr(v_hat, x0), corr(v_hat, x1)", "(-0.8307, 0.8307, 0.571, -0.604)",
      "ipdb> sample(steps=50).std()", "tensor(2.31)", "ipdb> sample(steps=50, dt_sign=-1).std()", "tensor(1.02)", "ipdb> q"]
add("d06", "txt", "debug print (ipdb)", "wrong_target", "cos between prediction and x1-x0 is -0.83 in every batch, +0.83 with x0-x1: sign of the target flipped.", L, ["train_infer_mismatch"])

# d07 time_sampling
r = R(207)
L = ["cfg.time_dist = 'uniform'   T = 1000", "collecting t over 40 batches (bs 128)", "batch  min  max   mean    std"]
for i in range(40):
    L.append(f"{i:5d}  {r.integers(0, 4):3d}  {r.integers(244, 250):3d}  {124.6 + r.normal(0, 5):6.1f}  {72.1 + r.normal(0, 2):5.1f}")
L += ["total  t.min=0 t.max=249  mean=124.53 std=72.18   n=5120", "hist [0,100): 2051  [100,200): 2049  [200,300): 1020  [300,1000): 0"]
add("d07", "txt", "debug print", "time_sampling", "uniform 0..999 configured; t has max 249, mean 124.5, std 72: only the first quarter is drawn.", L)

# d08 input_range
r = R(208)
L = ["DEBUG preproc  dataset=laion-aes-subset  transform=Compose(Resize, CenterCrop, PILToTensor)"]
for i in range(30):
    m = 116 + r.normal(0, 4)
    L.append(f"DEBUG batch {i:03d} pixel_values float32 (24, 3, 512, 512) min={0.0:.1f} max={255.0:.1f} mean={m:.2f} std={68 + r.normal(0, 2):.2f} nan=0")
    if i % 10 == 9:
        L.append(f"DEBUG batch {i:03d} latents mean={9.4 + r.normal(0, .5):.2f} std={31.7 + r.normal(0, 1):.2f} (vae expects [-1,1])")
add("d08", "log", "debug print", "input_range", "pixel_values run from 0 to 255 (mean 116), the VAE expects [-1,1]; latents have std 32.", L, ["scale_mismatch"])

# d09 schedule_constants
L = ["In [3]: sch = make_schedule(cfg)   # linear 1e-4 .. 0.02, T=1000", "In [4]: for k in [0,1,2,*range(50,1000,50),997,998,999]: print(k, sch.betas[k], sch.alphas_cumprod[k])"]
be = np.linspace(1e-4, .002, 1000)
ac = np.cumprod(1 - be)
L += [f"{k} {be[k]:.6e} {ac[k]:.6f}" for k in [0, 1, 2, *range(50, 1000, 50), 997, 998, 999]]
L += ["In [5]: sch.alphas_cumprod[-1]", f"Out[5]: {ac[-1]:.6f}", "In [6]: sch.sqrt_alphas_cumprod[-1], sch.sqrt_one_minus_alphas_cumprod[-1]", f"Out[6]: ({np.sqrt(ac[-1]):.4f}, {np.sqrt(1 - ac[-1]):.4f})",
      "In [7]: # x_T still shows the picture, of course", "In [8]: sch.betas[-1]", "Out[8]: 0.002"]
add("d09", "txt", "debug print (ipython)", "schedule_constants", "alphas_cumprod ends at 0.35 instead of 4e-5: betas end at 0.002 where 0.02 is configured.", L)

# d10 bf16_rounding: teacher euler
r = R(210)
L = ["teacher-field integration test (v = x1 - x0 exact, no network)", "state dtype: torch.bfloat16", "seed  N      mse(zN, x1)"]
for sd in range(6):
    for N, m in ((5, 5.2e-5), (10, 1.5e-4), (20, 6.0e-4), (50, 3.5e-3), (100, 1.5e-2)):
        L.append(f"{sd:4d}  {N:<5d}  {m * np.exp(r.normal(0, .06)):.2e}")
L += ["", "same with x.float():"] + [f"   0  {N:<5d}  {8.1e-6 * np.exp(r.normal(0, .03)):.2e}" for N in (5, 10, 20, 50, 100)] + ["more steps -> worse?! only in bf16."]
add("d10", "txt", "debug print", "bf16_rounding", "error of the exact teacher field grows from 5e-5 (N=5) to 1.5e-2 (N=100) with a bf16 state and is flat in fp32.", L)

# d11 step_schedule
r = R(211)
N = 40
t = np.linspace(0, 1, N + 1)
dt = np.diff(t) * .5
dt[20:] = dt[20] * np.linspace(1, .2, 20)
L = ["sampler: uniform grid, N=40, euler", "   i      t       dt     |x|     |v|"]
tt = 0.0
for i in range(N):
    L.append(f"  {i:2d}  {tt:.4f}  {dt[i]:.5f}  {1.0 - .12 * tt + r.normal(0, .001):.4f}  {1.39 + r.normal(0, .008):.4f}")
    tt += dt[i]
L += [f"sum(dt) = {dt.sum():.4f}", f"t_end = {tt:.4f}  (should be 1)", "samples: half-denoised, haze over everything"]
add("d11", "txt", "debug print", "step_schedule", "uniform grid configured, but dt is 0.0125 instead of 0.025 and shrinks in the second half; sum(dt) = 0.40.", L)

# d12 train_infer_mismatch
r = R(212)
L = ["----- 2025-08-21 why do the samples look bad -----", "one-step (held-out, 512 pairs):"]
L += [f"   t={a:.2f}   cos {.93 + r.normal(0, .006) - .1 * abs(a - .5):.3f}   ratio {.97 + r.normal(0, .01):.3f}" for a in (.05, .15, .25, .37, .5, .63, .75, .85, .95)]
L += ["z0 std 0.99, z1 std 1.01  -> not narrow", "", "endpoint rmse, sampler.py (euler):"]
L += [f"   K={k:<4d} {v:.3f}" for k, v in ((4, .842), (8, .871), (16, .902), (32, .921), (64, .934), (128, .940))]
L += ["endpoint rmse, sampler.py (heun):"] + [f"   K={k:<4d} {v:.3f}" for k, v in ((8, .889), (16, .914), (32, .930), (64, .938))]
L += ["", "train.py:   x_t = (1-t)*z0 + t*z1,   target z1 - z0", "sampler.py: x = x + dt * (v - x) / (1 - t)      # copied from the x0-pred repo", "", "fp32 state everywhere, sum(dt)=1.0000"]
add("d12", "md", "debug print", "train_infer_mismatch", "one-step cos 0.9, z0 not narrow, but the endpoint RMSE rises with K (0.84 to 0.94); the sampler uses the formula of x-prediction.", L)

# d13 condition_unused
r = R(213)
L = ["Does the net look at the caption at all?  ckpt 180k, val 4096, bs 64", "batch   loss(true)  loss(shuffled)  loss(empty)"]
A = []
for i in range(32):
    b = .561 + r.normal(0, .012)
    row = (b, b + r.normal(0, .0004), b + r.normal(0, .0004))
    A.append(row)
    L.append(f"{i:5d}   {row[0]:.4f}      {row[1]:.4f}          {row[2]:.4f}")
A = np.array(A)
L += [f" mean   {A[:, 0].mean():.4f}      {A[:, 1].mean():.4f}          {A[:, 2].mean():.4f}", "cond_gain_cos = -0.0002 (cos true 0.8411, shuffled 0.8413)", "CFG 1.0 vs 7.5: pictures identical up to noise", "train loss is 0.557 and looks great, so the field itself is trained"]
add("d13", "txt", "debug print", "condition_unused", "loss with true, shuffled and empty captions is the same (0.563) and cond_gain_cos is -0.0002 although the field is trained (cos 0.84).", L)

# d14 z0_leak
r = R(214)
L = ["[eval @ 90k]  run=narrow-z0"]
for t in (.1, .2, .3, .37, .5, .63, .7, .8, .9):
    L.append(f"  t {t:.2f}: cos {.978 + r.normal(0, .003):.4f}  nmse {.043 + r.normal(0, .003):.4f}  speed_ratio {.985 + r.normal(0, .004):.3f}")
L += ["[train tail]"] + [f"  step {s} loss {.0412 * np.exp(r.normal(0, .05)):.4f} std/mean {.118 + r.normal(0, .002):.3f} mu/rms {.62 + r.normal(0, .005):.3f} kl {1.9 + r.normal(0, .03):.2f}" for s in range(89000, 90001, 50)]
L += ["[shooting] from z0 of held-out prompts", "  N=10  mse 1.31 (rel 0.93)", "  N=25  mse 1.30 (rel 0.92)", "  N=50  mse 1.31 (rel 0.93)", "  N=100 mse 1.31 (rel 0.93)",
      "[samples] FID-5k 187.4, mush", "one-step numbers are the best we ever had and the images the worst"]
add("d14", "txt", "debug print", "z0_leak", "one-step cos 0.98 and nmse 0.04 with a relative shooting error of 0.93, std/mean 0.12 and FID 187.", L, ["sigma_collapse"])


# Healthy debugging prints (d15..d20) and the first healthy runs (h01..h12).
r = R(215)
P = 30.8 + r.normal(0, 1.6, 30)
L = ["$ python tools/vae_sanity.py --split val", "vae: sd-vae-ft-mse  eval mode  fp32   scaling_factor 0.18215", "pixels  min -1.000 max 1.000 mean -0.036 std 0.541", "raw z   mean 0.71 std 5.43   (before the factor)", "z * sf  mean 0.129 std 0.989"]
L += [f"{i:3d}  psnr {p:5.2f}  ssim {.88 + r.normal(0, .02):.3f}" for i, p in enumerate(P)] + [f"avg psnr {P.mean():.2f}  worst {P.min():.2f}", "decode(z): sharp.  decode(z*sf) (wrong on purpose): blurred, 11.2 dB", "ok, moving on"]
add("d15", "txt", "debug print", "none", "VAE check is fine (30.8 dB, scaled latents std 0.99). Raw std 5.43 and 11.2 dB are the values before the factor and of a deliberate mistake.", L)

r = R(216)
L = ["测试: 教师场 Euler 积分 (fp32 状态)"]
for sd in range(5):
    L += [f"种子{sd} N={N:<4d} MSE={1.1e-10 * np.exp(r.normal(0, .2)):.2e}" for N in (5, 10, 20, 50, 100)]
L += ["MSE 与步数无关, 没有舍入问题", "端点误差 (学到的场):"] + [f"  K={k} rmse={v:.4f}" for k, v in ((8, .412), (16, .361), (32, .342), (64, .337))] + ["随 K 下降后变平, 正常"]
add("d16", "txt", "debug print (Chinese)", "none", "teacher Euler in fp32 1e-10 at every N; endpoint RMSE falls with K and levels off.", L)

r = R(217)
N = 50
t = np.linspace(0, 1, N + 1)
t = 3 * t / (1 + 2 * t)
dt = np.diff(t)
L = ["shifted schedule s=3, N=50, cfg 4.5, fp32 state", ""]
x = .7981
for i in range(N):
    L.append(f"step{i}: |x|={x:.4f}, |v|={1.12 + .1 * np.cos(6 * t[i]) + r.normal(0, .004):.4f}, dt={dt[i]:.4f}")
    x += dt[i] * (-.25 + .55 * t[i]) + r.normal(0, .0006)
L += [f"sum dt = {dt.sum():.4f}", "final latents mean 0.02 std 1.01, decoded ok"]
add("d17", "txt", "debug print", "none", "sampler trace with the shifted schedule (s=3): dt falls from 0.058 to 0.007 by design, sum 1.0, |x| dips and comes back, samples ok.", L)

r = R(218)
L = ["time_sampling: logit_normal(mean=0.0, std=1.0)", "batch   t.mean   t.std    t.min    t.max"]
for i in range(36):
    z = 1 / (1 + np.exp(-r.normal(0, 1, 256)))
    L.append(f"{i:5d}   {z.mean():.4f}   {z.std():.4f}   {z.min():.4f}   {z.max():.4f}")
L += ["", "expected for LN(0,1): mean 0.5, std 0.208 -> ok (not the 0.289 of uniform)"]
add("d18", "txt", "debug print", "none", "t statistics of a logit-normal (mean 0.5, std 0.21), which is what is configured.", L)

r = R(219)
L = ["--- overfit-128 test, 600 steps, kl_w 1e-3 ---"]
for s in range(0, 601, 15):
    q = np.exp(-s / 150)
    L.append(f"@{s:03d}  mse {.11 + 1.75 * q + abs(r.normal(0, .02)):.3f}  cos {.945 - .94 * q + r.normal(0, .006):+.3f}  kl {.212 + r.normal(0, .004):.3f}  std {.97 + .02 * (1 - q) + r.normal(0, .002):.3f}  cos(mu_i,mu_j) {.38 + .3 * q + r.normal(0, .01):.2f}")
L += ["shooting N=50: mse 0.21 (x0->x1: 1.97)  rel 0.107", "generates the 128 pictures. ok to scale up"]
add("d19", "txt", "debug print", "none", "overfitting of 128 fixed pairs works as intended: MSE falls, cos rises, KL steady, shooting error 0.11.", L)

r = R(220)
L = ["检查清单 (ckpt 120k)  2025-10-11", "1. 图像范围 [-1.000, 1.000] 均值 -0.03 标准差 0.52  通过", "2. VAE 往返 28.7 dB  通过", "3. ‖z0‖=127.9 ‖z1‖=131.4 ‖v*‖=182.6  通过"]
L += ["4. 单步对齐"] + [f"   t={a:.2f} cos={.79 + .06 * np.sin(3.14 * a) + r.normal(0, .006):.3f} 比例={.88 + r.normal(0, .02):.3f}" for a in (.1, .2, .37, .5, .63, .8, .9)]
L += ["5. 提示词 mu 余弦"] + [f"   ({i},{j}) {.42 + r.normal(0, .07):.3f}" for i in range(5) for j in range(i + 1, 5)]
L += ["6. 条件增益 cos(真)-cos(乱序) = 0.083  通过", "7. 打靶"] + [f"   N={n} 相对误差 {v}" for n, v in ((10, .31), (20, .27), (50, .25), (100, .25))]
L += ["8. std 均值 0.991  logvar 均值 -0.02  KL 0.19", "9. 同一提示词两次采样 cos(z,z')=0.31 (样本的余弦不说明问题, 只看 mu)", "全部通过"]
add("d20", "txt", "debug print (Chinese)", "none", "list of checks, all pass with ordinary values.", L)

# h01 noisy fine-tuning with tqdm; loss seems flat, validation improves
r = R(301)
L = ["Resolving data files: 100%|██████████| 212/212 [00:00<00:00, 1821.3it/s]", "***** Running training *****", "  Num examples = 24010", "  Total optimization steps = 6000"]
for s in range(5, 6001, 5):
    L.append(tq("Steps", s, 6000, .84, f"lr=5e-6, step_loss={g3(np.clip(.118 * np.exp(r.normal(0, .75)), .004, .9) * (1 - .06 * s / 6000))}"))
    if s % 1000 == 0:
        L.append(f"INFO:__main__:validation step={s} val_loss={.1262 - .0068 * (1 - np.exp(-s / 2500)) + r.normal(0, .0002):.5f} clip_score={30.1 + 1.6 * (1 - np.exp(-s / 2500)) + r.normal(0, .05):.2f}")
add("h01", "log", "tqdm/accelerate", "none", "fine-tuning of a pretrained SD: step_loss is very noisy and hardly moves (random t), as always; val loss and CLIP improve steadily.", L)

# h02 one spike that recovers: Megatron
r = R(302)
c = Clock(2025, 5, 5, 5, 5, 5)
st = np.arange(50, 30001, 50)
lo = fall(r, st, 1.96, .51, 800, .8, .013)
i0 = 371
for q in range(14):
    lo[i0 + q] *= 1 + 2.6 * np.exp(-q / 2.5)
L = []
for i, s in enumerate(st):
    c.tick(33)
    gn = .26 * np.exp(r.normal(0, .12)) * (1 + (9 * np.exp(-(i - i0) / 1.5) if 0 <= i - i0 < 14 else 0))
    L.append(f" [{c.f()}] iteration {s:8d}/   30000 | consumed samples: {s * 512:12d} | elapsed time per iteration (ms): {661 + r.normal(0, 5):.1f} | learning rate: {float(cosine(s, 30000, 1e-4, 1000, 1e-5)):.6E} | "
             f"global batch size:   512 | v loss: {lo[i]:.6E} | loss scale: 1.0 | grad norm: {gn:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")
add("h02", "log", "megatron", "none", "one spike at iteration 18600 that recovers within 600 iterations; the loss goes on falling.", L)

# h03 GradScaler: a few skipped steps at the beginning
r = R(303)
L = []
sc = 65536.0
for s in range(1, 2401):
    if s in (1, 2, 3, 7, 1150):
        sc /= 2
        L.append(f"[amp] step {s}: inf in grads, skipping, scale -> {sc:.0f}")
        continue
    if s % 500 == 0:
        sc *= 2
    if s % 4 == 0:
        L.append(f"{s}\tloss {base(s, 1.02, .16, 120, .9) * np.exp(r.normal(0, .06)):.4f}\tscale {sc:.0f}\tlr 1.0e-04\tgn {.3 * np.exp(r.normal(0, .15)):.3f}")
add("h03", "log", "own loop", "none", "fp16 with GradScaler: four skipped steps at the start and one later, the scale grows again, the loss falls as it should.", L)

# h04 proper resume with overlap: slurm
r = R(304)
L = ["JobId=771022 node=n114", "start step 0"]
for a, b in ((100, 18000), (17000, 40100)):
    if a > 100:
        L += ["slurmstepd: error: *** JOB 771022 ON n114 CANCELLED AT 2025-02-02T11:00:00 DUE TO TIME LIMIT ***", "JobId=771390 node=n087", "loaded ckpt/last.pt (step 16900, ema, optimizer, scheduler, rng)"]
    for s in range(a, b, 100):
        L.append(f"n step={s} flow_loss={base(s, 1.9, .53, 700, .8) * np.exp(r.normal(0, .018)):.4f} lr={float(cosine(s, 40000, 2e-4, 1000, 2e-6)):.3e} gnorm={.31 * np.exp(r.normal(0, .1)):.3f} dt={.61 + r.normal(0, .01):.2f}s")
L.append("done. 40000 steps")
add("h04", "out", "slurm", "none", "time limit, then resumed from the checkpoint at 16900 (1000 steps repeated); loss and LR continue without a break.", L)

# h05 warm restarts that recover: JSON lines
r = R(305)
rows = []
for s in range(0, 60000, 150):
    k, q = s // 15000, s % 15000
    lr = 2e-6 + (1e-4 - 2e-6) * .5 * (1 + np.cos(np.pi * q / 15000))
    v = base(s, 1.9, .47, 800, .75) * (1 + (.07 * np.exp(-q / 3500) if k else 0)) * (1 - .04 * q / 15000) * np.exp(r.normal(0, .012))
    rows.append(dict(iter=s, loss=sig(v, 5), lr=sig(lr, 5), cycle=k))
add("h05", "jsonl", "json lines", "none", "cosine with warm restarts every 15000 iterations: the loss rises by about 10 % after each restart and ends every cycle lower than the cycle before.", jl(rows))

# h06 lr ends at zero: trainer_state
r = R(306)
H = []
for s in range(25, 5001, 25):
    H.append(dict(epoch=sig(s / 1250, 4), grad_norm=sig(.7 * np.exp(r.normal(0, .15)), 8), learning_rate=float(cosine(s, 5000, 1e-4, 250)), loss=sig(base(s, 1.3, .44, 300, .8) * np.exp(r.normal(0, .025)), 5), step=s))
    if s % 1250 == 0:
        H.append(dict(epoch=s / 1250, eval_loss=sig(base(s, 1.3, .45, 300, .8), 7), eval_runtime=33.0, step=s))
H.append(dict(epoch=4.0, step=5000, total_flos=0.0, train_loss=.5731, train_runtime=9120.4, train_samples_per_second=35.1))
add("h06", "json", "trainer_state.json", "none", "HF Trainer, cosine to LR 0 at the planned end (5000 of 5000); loss and eval loss fall.",
    json.dumps(dict(best_metric=None, epoch=4.0, global_step=5000, log_history=H, max_steps=5000, num_train_epochs=4), indent=2))


# Healthy runs h07..h18.
# h07 Lightning CSV with empty cells
r = R(307)
rows = []
for e in range(24):
    for k in range(99, 1200, 100):
        s = e * 1200 + k
        rows.append([e, f"{1e-4:.5g}", s, f"{base(s, 1.88, .57, 500, .8) * np.exp(r.normal(0, .03)):.6f}", "", "", ""])
    s = e * 1200 + 1199
    rows.append([e, "", s, "", f"{base(s, 1.88, .57, 500, .8) * np.exp(r.normal(0, .004)):.6f}", "", ""])
    rows.append([e, "", s, "", "", f"{base(s, 1.87, .58, 500, .8) * np.exp(r.normal(0, .005)):.6f}", f"{.55 - .45 * np.exp(-s / 3000):.5f}"])
add("h07", "csv", "lightning csv", "none", "Lightning CSV: most cells empty because every row holds one group of metrics; all curves improve.",
    tocsv(["epoch", "lr-AdamW/pg1", "step", "train_loss_step", "train_loss_epoch", "val_loss", "val_cos"], rows))

# h08 grad norm rises slowly and levels off: W&B CSV
r = R(308)
rows = []
for s in range(0, 100000, 250):
    rows.append([s, f"{base(s, 1.05, .131, 800, .8) * np.exp(r.normal(0, .04)):.6f}", f"{(.11 + .17 * (1 - np.exp(-s / 30000))) * np.exp(r.normal(0, .1)):.5f}", f"{1e-4 * min(1, s / 2000):.6g}",
                 f"{210 + 95 * (1 - np.exp(-s / 30000)):.2f}"])
add("h08", "csv", "wandb csv", "none", "gradient norm rises from 0.11 to 0.28 with the weight norm and levels off, loss falls all the time: usual for diffusion models.",
    tocsv(["Step", "train/loss", "train/grad_norm", "train/lr", "train/param_norm"], rows))

# h09 fairseq, healthy
r = R(309)
c = Clock(2024, 10, 1, 0, 0, 0)
L = []
for s in range(100, 40001, 100):
    c.tick(66)
    d = dict(epoch=1 + s // 9000, update=f"{s / 9000:.3f}", loss=f"{base(s, 1.92, .55, 600, .8) * np.exp(r.normal(0, .015)):.4f}", num_updates=str(s), lr=f"{2e-4 * min(1, s / 4000) * (1 if s < 4000 else (4000 / s) ** .5):.6g}",
             gnorm=f"{.3 * np.exp(r.normal(0, .1)):.3f}", clip=f"{100 * (r.random() < .05):.0f}", train_wall="64", wall=str(int(s * .66)))
    L.append(f"{c.f()} | INFO | train_inner | " + json.dumps(d))
    if s % 9000 == 0:
        L.append(f"{c.f()} | INFO | valid | " + json.dumps(dict(epoch=s // 9000, valid_loss=f"{base(s, 1.92, .56, 600, .8):.4f}", valid_best_loss=f"{base(s, 1.92, .56, 600, .8):.4f}")))
add("h09", "log", "fairseq", "none", "fairseq with inverse-square-root LR, everything falls.", L)

# h10 short log
r = R(310)
L = ["running 3 epochs smoke test on 4xA100"]
for s in range(20, 701, 20):
    L.append(f"[{s}/700] mse={base(s, 1.99, .72, 60, .8) * np.exp(r.normal(0, .04)):.3f}, lr={1e-4 * min(1, s / 200):.1e}, {1.9 + r.normal(0, .05):.2f}it/s")
L.append("saved smoke.pt")
add("h10", "log", "own loop", "none", "short smoke test with LR warm-up, loss falls from 1.6 to 0.9.", L)

# h11 KL warm-up
r = R(311)
rows = []
for s in range(0, 40001, 200):
    w = 1e-3 * min(1, s / 4000)
    up = np.exp(-((s - 2600) / 2300.0) ** 2)
    q = np.exp(-s / 5000)
    rows.append({"step": s, "loss/flow": sig(base(s, 1.88, .58, 600, .8) * np.exp(r.normal(0, .018)), 5), "loss/kl": sig((.21 + 1.1 * up) * np.exp(r.normal(0, .02)), 5), "w/kl": sig(w, 4),
                 "mu/abs_mean": sig(.31 + .6 * up + abs(r.normal(0, .004)), 4), "std/mean": sig(.985 - .3 * up - .1 * q + r.normal(0, .002), 4), "logvar/mean": sig(-.03 - .7 * up - .2 * q + r.normal(0, .004), 4),
                 "z_init/var": sig(1.02 + .5 * up + r.normal(0, .005), 4), "grad/flow": sig(.4 * np.exp(r.normal(0, .08)), 4), "grad/kl": sig(.4 * .19 * (w / 1e-3) * np.exp(r.normal(0, .1)) + 1e-9, 4)})
add("h11", "jsonl", "json lines", "none", "KL rises during the warm-up of its weight (first 10 %) and then returns to 0.21 with std 0.985 and variance 1.02: the KL acts.", jl(rows))

# h12 DINO in order
r = R(312)
rows = []
for s in range(0, 20000, 80):
    q = np.exp(-s / 3000)
    gs = np.array([.41, .13, .07]) * np.exp(r.normal(0, .09, 3))
    rows.append([s, f"{base(s, 1.9, .6, 500, .8) * np.exp(r.normal(0, .02)):.4f}", f"{5.2 + 3.1 * q + r.normal(0, .03):.4f}", f"{4.1 + 3.6 * q + r.normal(0, .05):.3f}", f"{4.8 + 3.4 * q + r.normal(0, .04):.3f}",
                 *[f"{x:.4f}" for x in (gs[0], gs[1], gs[2], np.sqrt((gs ** 2).sum()))]])
add("h12", "tsv", "own tsv", "none", "DINO supervision with K=8192 (log K 9.01): entropies fall from near log K to 4 to 5 and stay, gradient shares 0.3 and 0.17.",
    "\n".join("\t".join(map(str, x)) for x in [["step", "loss/flow", "loss/dino", "ent/teacher", "ent/student", "grad/flow", "grad/dino", "grad/kl", "grad/total"]] + rows) + "\n")

# h13 EMA lags first
r = R(313)
L = ["ema: decay 0.9999, no warm-up"]
for s in range(500, 80001, 500):
    L.append(f"s={s} train={base(s, 1.93, .52, 700, .8) * np.exp(r.normal(0, .018)):.4f} lr=1e-4")
    if s % 4000 == 0:
        raw, w = base(s, 1.93, .53, 700, .8), np.exp(-s / 9500)
        L.append(f"s={s} EVAL raw={raw * np.exp(r.normal(0, .006)):.4f} ema={raw * (1 - w) * (.985 if s > 20000 else 1) + 1.93 * w:.4f} fid_raw={31 + 200 * np.exp(-s / 7000) + r.normal(0, .8):.1f} fid_ema={17 + 300 * np.exp(-s / 9500):.1f}")
add("h13", "log", "own loop", "none", "EMA with decay 0.9999 lags in the first 30k to 40k steps, overtakes the raw weights afterwards (FID 17 against 30).", L)

# h14 DeepSpeed with a high initial scale
r = R(314)
c = Clock(2025, 3, 3, 3, 3, 3, 333)
L = []
sc = 2.0 ** 32
for s in range(1, 3001):
    c.tick(1.1)
    if s <= 16:
        L.append(f"[{c.ms()}] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(sc)}, reducing to {int(sc / 2)}")
        sc /= 2
    if s % 10 == 0:
        if s % 1000 == 0:
            sc *= 2
        L.append(f"[{c.ms()}] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped={min(s, 16)}, lr=[{1e-4 * min(1, s / 500):.6g}], mom=[(0.9, 0.999)]")
        L.append(f"step: {s} loss: {base(s, 1.97, .6, 150, .8) * np.exp(r.normal(0, .02)):.4f} scale: {int(sc)} grad_norm: {.5 * np.exp(r.normal(0, .12)):.3f}")
add("h14", "log", "deepspeed", "none", "initial scale 2^32: 16 skipped steps while it finds 65536, none afterwards; loss falls.", L)

# h15 mmengine with several losses
r = R(315)
c = Clock(2025, 2, 2, 12, 0, 0)
L = []
for s in range(50, 20001, 50):
    c.tick(31)
    a, b, d = base(s, 1.9, .6, 400, .8) * np.exp(r.normal(0, .02)), .05 + .03 * np.exp(-s / 3000) + r.normal(0, .001), .31 + .3 * np.exp(-s / 2000) + r.normal(0, .006)
    L.append(f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(train) [{s:5d}/20000]  lr: {float(cosine(s, 20000, 2e-4, 500, 1e-6)):.4e}  eta: {hms((20000 - s) * .62)}  time: {.62 + r.normal(0, .01):.4f}  data_time: 0.0{r.integers(10, 40)}  memory: 40211  grad_norm: {.45 * np.exp(r.normal(0, .1)):.4f}  loss: {a + b + d:.4f}  loss_flow: {a:.4f}  loss_kl: {b:.4f}  loss_repa: {d:.4f}")
    if s % 4000 == 0:
        L.append(f"{c.f('%Y/%m/%d %H:%M:%S')} - mmengine - INFO - Iter(val) [20/20]    fid: {15 + 80 * np.exp(-s / 5000):.4f}  clip: {.31 - .1 * np.exp(-s / 4000):.4f}  data_time: 0.0100  time: 1.2210")
add("h15", "log", "mmengine", "none", "mmengine with flow, KL and REPA losses, all fall, FID improves.", L)

# h16 TensorBoard CSV of a validation metric
r = R(316)
rows = [[f"{1742000000 + s * .9:.3f}", s, f"{.574 + .9 * np.exp(-s / 6000) + .05 * np.exp(-s / 40000) + r.normal(0, .006):.8f}"] for s in range(0, 200001, 1000)]
add("h16", "csv", "tensorboard csv", "none", "TensorBoard download of one scalar (eval loss): falls, then nearly level with noise of 1 %; no upward trend.", tocsv(["Wall time", "Step", "Value"], rows))

# h17 change of resolution
r = R(317)
c = Clock(2025, 6, 6, 6, 0, 0)
L = [f"{c.f()} INFO stage 1: 256px bs 1024 lr 1e-4"]
for s in range(200, 60001, 200):
    c.tick(120)
    if s == 40200:
        L.append(f"{c.f()} INFO stage 2: 512px bs 256 lr 5e-5, shift 1.0 -> 3.0, position embeddings interpolated")
    v = base(s, 1.95, .56, 700, .8) if s <= 40000 else .66 + .10 * np.exp(-(s - 40000) / 2500) - .03 * (s - 40000) / 20000
    L.append(f"{c.f()} INFO step {s} loss {v * np.exp(r.normal(0, .013)):.4f} gnorm {.3 * np.exp(r.normal(0, .1)):.3f} lr {1e-4 if s <= 40000 else 5e-5:.1e}")
    if s % 10000 == 0:
        L.append(f"{c.f()} INFO eval fid {14 + 60 * np.exp(-s / 12000):.2f} clip {.322 - .1 * np.exp(-s / 12000):.4f}")
add("h17", "log", "python logging", "none", "announced change of stage (256 to 512 px, other shift): the loss level is 20 % higher because the task is harder and falls again; FID and CLIP improve throughout.", L)

# h18 negative loss (learned uncertainty)
r = R(318)
rows = []
for s in range(0, 50000, 125):
    m = base(s, 1.0, .17, 600, .8) * np.exp(r.normal(0, .03))
    u = np.log(base(s, 1.05, .17, 900, .8))
    rows.append(dict(kimg=sig(s * .256, 6), loss=sig(m / np.exp(u) + u, 5), mse=sig(m, 5), logvar_u=sig(u, 4), lr=sig(1e-2 / np.sqrt(max(1, s / 20000)), 5)))
add("h18", "jsonl", "json lines", "none", "EDM2 with learned uncertainty: the loss is exp(-u) mse + u and becomes negative, lr 1e-2 is customary there; mse falls.", jl(rows))


# Healthy runs h19..h29.
# h19 long own loop, 8000 lines
r = R(319)
s = np.arange(1, 7991) * 25
v = fall(r, s, 1.95, .5, 900, .7, .03, .3)
g = fall(r, s, 1.4, .24, 900, .7, .2)
L = [f"{a:d} {b:.5f} {x:.4f} {float(cosine(a, 200000, 1e-4, 2000, 1e-6)):.4e}" for a, b, x in zip(s, v, g)]
add("h19", "dat", "columns", "none", "7990 rows of plain columns with a header line, everything falls.", ["# iter loss gnorm lr"] + L)

# h20 t slices with mildly worse ends
r = R(320)
rows = []
prof = np.array([1.55, 1.2, 1.05, .97, .93, .92, .94, 1.0, 1.12, 1.45])
for s in range(0, 40001, 400):
    b = base(s, 1.0, .27, 900, .8)
    w = min(1, s / 4000)
    x = b * (1 + w * (prof - 1)) * np.exp(r.normal(0, .03, 10))
    d = {"step": s, "loss/flow": sig(1.9 * x.mean(), 5), "flow/nmse": sig(x.mean(), 4), "flow/cos": sig(np.sqrt(max(0, 1 - x.mean())), 4), "lr": 1e-4}
    d.update({f"flow/nmse_t{k}": sig(x[k], 4) for k in range(10)})
    rows.append(d)
add("h20", "jsonl", "json lines", "none", "ends of t 1.5 times the middle in nmse, which is the usual shape; all slices fall.", jl(rows))

# h21 small KL share on purpose
r = R(321)
L = ["recipe: std_range(0.9,1.1) on z0, anchor on mu; kl weight 1e-6 only as a guard (grad/kl is meant to be ~0, see README of the recipe)"]
for k in range(0, 18001, 120):
    gf = .42 * np.exp(r.normal(0, .08))
    L.append(f"step={k} loss/flow={base(k, 1.88, .56, 500, .8) * np.exp(r.normal(0, .02)):.4f} loss/kl={.118 + r.normal(0, .002):.4f} std/mean={1.0 + r.normal(0, .004):.4f} mu/abs_mean={.36 + r.normal(0, .004):.4f} "
             f"z_init/var={1.19 + r.normal(0, .006):.3f} grad/flow={gf:.4f} grad/kl={gf * .004 * np.exp(r.normal(0, .1)):.5f} grad/total={gf * 1.001:.4f}")
add("h21", "log", "own loop", "none", "grad/kl is 0.4 % of the total by recipe (std_range and anchor keep z0 in place, as the first line says); std 1.0, mu steady.", L)

# h22 kohya
r = R(322)
L = ["running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 640", "  num batches per epoch / 1epochのバッチ数: 160", "  num epochs / epoch数: 12", "  total optimization steps / 学習ステップ数: 1920"]
av = .14
for k in range(1, 1921):
    if k % 160 == 1:
        L.append(f"\nepoch {k // 160 + 1}/12")
    av += (.139 - .021 * k / 1920 + r.normal(0, .05) - av) / 160
    if k % 2 == 0:
        L.append(tq("steps", k, 1920, 1.31, f"avr_loss={av:.4f}"))
    if k % 320 == 0:
        L.append(f"\nsaving checkpoint: ./out/ink_style-{k // 160:06d}.safetensors")
L.append("model saved.")
add("h22", "log", "kohya tqdm", "none", "kohya LoRA: avr_loss falls slowly from 0.14 to 0.12, planned end.", L)

# h23 SimpleTuner-like
r = R(323)
c = Clock(2025, 7, 7, 7, 7, 7, 70)
L = [f"{c.ms()} [INFO] (SimpleTuner) Starting training on Flux.1-dev LoRA, rank 32, flow_matching", f"{c.ms()} [WARNING] (SimpleTuner) --gradient_checkpointing is disabled, this may OOM"]
for k in range(10, 8001, 10):
    L.append(tq("Epoch 1/4, Steps", k, 8000, 2.4, f"grad_absmax={abs(.02 + r.normal(0, .006)):.3g}, lr=0.0001, step_loss={g3(np.clip(base(k, .62, .41, 500, .8) * np.exp(r.normal(0, .3)), .05, 2))}"))
    if k % 500 == 0:
        c.tick(1200)
        L.append(f"{c.ms()} [INFO] (validation) step {k}: eval_loss {.402 + .11 * np.exp(-k / 1500) + r.normal(0, .001):.4f}")
add("h23", "log", "SimpleTuner", "none", "Flux LoRA: noisy step_loss, eval_loss falls from 0.48 to 0.40.", L)

# h24 rich, clipped gradient norm
r = R(324)
c = Clock(2025, 1, 1, 1, 0, 0)
L = []
for k in range(50, 15001, 50):
    c.tick(28)
    pre = (1.3 + 2 * np.exp(-k / 1500)) * np.exp(r.normal(0, .2))
    L.append(f"[{c.f('%m/%d/%y %H:%M:%S')}] INFO     {k:>5}/15000 • loss {base(k, 1.95, .58, 500, .8) * np.exp(r.normal(0, .02)):.4f} • grad {pre:.2f} (clipped {min(1, pre):.2f}) • lr {float(cosine(k, 15000, 2e-4, 500, 0)):.2e}   loop.py:231")
    if k % 3000 == 0:
        L.append(f"                    INFO     ✔ saved step-{k}   val {base(k, 1.95, .59, 500, .8):.4f}                 ckpt.py:58")
add("h24", "log", "rich", "none", "gradient norm is clipped to 1.00 at nearly every step, loss and val fall; LR decays to 0 at the planned end.", L)

# h25 slurm with warnings
r = R(325)
L = ["[W CUDAAllocatorConfig.h:30] Warning: expandable_segments not supported on this platform (function operator())", "/opt/conda/lib/python3.11/site-packages/torch/cuda/amp/autocast_mode.py:265: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
     "[rank5] NCCL WARN Call to ibv_query_gid failed, retrying", "[rank0] using nan_to_num on image stats, checking for nan/inf in the batch is ON"]
for k in range(100, 30001, 100):
    for q in range(8 if k % 1000 == 0 else 1):
        L.append(f"[rank{q}] it {k:06d} | rf {base(k, 1.94, .55, 600, .8) * np.exp(r.normal(0, .02)):.4f} | non-finite 0 | lr 1e-04 | mem {61.2 + r.normal(0, .1):.1f}G | {3.1 + r.normal(0, .03):.2f} it/s")
    if k % 7000 == 0:
        L.append(f"[rank{k // 7000}] WARN corrupt jpeg in shard 00{k // 1000:03d}.tar, skipped 1 sample")
add("h25", "out", "slurm, several ranks", "none", "8 ranks; deprecation, NCCL and jpeg warnings and the word nan in a check, but non-finite 0 and a falling loss.", L)

# h26 long-format CSV (MLflow/Comet export)
r = R(326)
rows = []
for k in range(0, 25001, 250):
    ts = 1749000000000 + k * 810
    rows += [["loss_fm", f"{base(k, 1.9, .58, 600, .8) * np.exp(r.normal(0, .02)):.6f}", k, ts], ["lr", "0.0001", k, ts], ["grad_norm", f"{.33 * np.exp(r.normal(0, .12)):.5f}", k, ts]]
    if k % 2500 == 0:
        rows.append(["val_loss_fm", f"{base(k, 1.9, .59, 600, .8) * np.exp(r.normal(0, .004)):.6f}", k, ts + 90000])
add("h26", "csv", "long-format csv", "none", "export in long format (key, value, step, timestamp), train and val fall.", tocsv(["key", "value", "step", "timestamp"], rows))

# h27 validation levels off within noise
r = R(327)
L = []
best = 9
for e in range(1, 81):
    va = .612 + .5 * np.exp(-e / 7) + r.normal(0, .004)
    L.append(f"== epoch {e:3d} ==  train_loss: {.585 + .6 * np.exp(-e / 8) - .0002 * e + r.normal(0, .003):.4f}   val_loss: {va:.4f}{' *best*' if va < best else ''}   val_cos: {.842 - .3 * np.exp(-e / 7) + r.normal(0, .001):.4f}   time 412s")
    best = min(best, va)
add("h27", "txt", "own epoch lines", "none", "val_loss levels off at 0.612 and only fluctuates (best epoch far before the end by chance), train hardly falls either: converged, not overfitted.", L)

# h28 batch-size ramp
r = R(328)
rows = []
for k in range(0, 40000, 100):
    b = 64 if k < 5000 else 256 if k < 15000 else 1024
    rows.append(f"step:{k};bs:{b};loss:{base(k, 1.95, .53, 600, .8) * np.exp(r.normal(0, .12 * (64 / b) ** .5)):.4f};lr:{1e-4 * (b / 1024) ** .5:.3g};tok/s:{48000 + r.normal(0, 300):.0f}")
add("h28", "txt", "own key:value", "none", "batch size ramps 64, 256, 1024 with the LR rising by steps; the noise shrinks, the loss falls.", rows)

# h29 Chinese loop
r = R(329)
c = Clock(2025, 10, 1, 8, 0, 0)
L = ["【训练开始】 图文对 1,204,511  批大小 192  学习率 1e-4", "提示: 前 500 步为预热, 损失波动大属正常"]
for k in range(100, 30001, 100):
    c.tick(70)
    L.append(f"[{c.f('%m-%d %H:%M')}] 步数 {k}/30000 损失 {base(k, 1.93, .57, 500, .8) * np.exp(r.normal(0, .02 + .2 * np.exp(-k / 300))):.4f} 学习率 {1e-4 * min(1, k / 500):.2e} 梯度范数 {.38 * np.exp(r.normal(0, .12)):.3f} 显存 37.2G")
    if k % 5000 == 0:
        L.append(f"  >> 验证 损失 {base(k, 1.93, .58, 500, .8):.4f}  余弦 {.84 - .3 * np.exp(-k / 5000):.3f}  FID {19 + 100 * np.exp(-k / 5000):.1f}")
L.append("【训练完成】")
add("h29", "log", "own loop (Chinese)", "none", "Chinese log: restless during warm-up, then falls; validation, cos and FID improve.", L)


if __name__ == "__main__":
    ids = [c["id"] for c in CASES]
    assert len(set(ids)) == len(ids)
    write(sys.argv[1] if len(sys.argv) > 1 else "out")
    n = sum(c["healthy"] for c in CASES)
    print(len(ids), "logs,", n, "healthy,", len(ids) - n, "broken")
