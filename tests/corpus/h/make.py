#!/usr/bin/env python3
"""Simulated training logs (author H). usage: python3 make.py OUT"""
import sys, os, json, math, csv, io, zlib
from datetime import datetime, timedelta
import numpy as np

OUT = None
MAN = []


def R(name):
    return np.random.default_rng(zlib.crc32(('authorH-' + name).encode()))


def ar(r, n, rho=0.6, s=1.0):
    e = r.normal(0, 1, n) * s * math.sqrt(1 - rho * rho)
    out = np.empty(n)
    a = r.normal(0, s)
    for i in range(n):
        a = rho * a + e[i]
        out[i] = a
    return out


def pl(steps, a, b, tau, p=0.7):
    """power-law decay from a (step 0) towards b"""
    steps = np.asarray(steps, float)
    return b + (a - b) * (1 + steps / tau) ** (-p)


def cosine(steps, total, warm, peak, floor=0.0):
    steps = np.asarray(steps, float)
    w = np.clip(steps / max(warm, 1), 0, 1)
    q = np.clip((steps - warm) / max(total - warm, 1), 0, 1)
    return np.where(steps < warm, peak * w, floor + (peak - floor) * 0.5 * (1 + np.cos(np.pi * q)))


def ln(r, n, s):
    return np.exp(r.normal(0, s, n))


def put(rel, text):
    p = os.path.join(OUT, rel)
    os.makedirs(os.path.dirname(p) or '.', exist_ok=True)
    with open(p, 'w', encoding='utf-8', newline='') as f:
        f.write(text)


def case(id, path, fmt, expected, story, acceptable=()):
    MAN.append(dict(id=id, path=path, format=fmt, expected=expected, acceptable=list(acceptable),
                    healthy=(expected == 'none'), story=story))


def hms(s):
    s = int(s)
    return f"{s//3600}:{s%3600//60:02d}:{s%60:02d}" if s >= 3600 else f"{s//60:02d}:{s%60:02d}"


def bar(frac, w=10):
    full = frac * w
    k = int(full)
    b = '█' * k
    if k < w:
        f = int((full - k) * 8)
        b += ' ▏▎▍▌▋▊▉'[f]
        b = b.ljust(w)
    return b


def g(x, k=4):
    return float(f"{x:.{k}g}")


def bf16(x):
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    u = ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return u.view(np.float32)


# ---------------------------------------------------------------- broken: numbers and optimisation
def b01():
    r = R('b01')
    L = []
    t0 = datetime(2025, 3, 14, 9, 12, 40)
    def info(m, dt=0): L.append(f"{(t0+timedelta(seconds=dt)).strftime('%m/%d/%Y %H:%M:%S')} - INFO - __main__ - {m}\n")
    info("Distributed environment: NO\nNum processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: cuda\n\nMixed precision type: bf16\n")
    L.append("{'timestep_spacing', 'clip_sample_range', 'rescale_betas_zero_snr', 'thresholding'} was not found in config. Values will be initialized to default values.\n")
    for m in ["***** Running training *****", "  Num examples = 7240", "  Num Epochs = 34", "  Instantaneous batch size per device = 8",
              "  Total train batch size (w. parallel, distributed & accumulation) = 16", "  Gradient Accumulation steps = 2", "  Total optimization steps = 15000"]:
        info(m, 21)
    N, S = 15000, 2900
    nan_at = 2267
    L.append(f"\rSteps:   0%|          | 0/{N} [00:00<?, ?it/s]")
    el = 0
    for s in range(1, S + 1):
        dt = 1.18 + abs(r.normal(0, .05))
        el += dt
        t = r.uniform(0, 1, 2)
        base = float(np.mean(0.33 * (1 - t) ** 3 + .012))
        l = base * float(ln(r, 1, .33)[0]) * (1 + .25 * math.exp(-s / 150))
        if nan_at - 9 <= s < nan_at: l *= [1.6, 2.2, 2.0, 3.1, 4.4, 6.0, 9.1, 15, 31][s - nan_at + 9]
        ls = 'nan' if s >= nan_at else f"{g(l,3)}"
        rem = (N - s) * 1.2
        L.append(f"\rSteps: {100*s//N:3d}%|{bar(s/N)}| {s}/{N} [{hms(el)}<{hms(rem)},  {dt:.2f}s/it, lr=1e-5, step_loss={ls}]")
        if s % 500 == 0:
            L.append("\n")
            info(f"Saved state to sd15-finetune/checkpoint-{s}", el)
        if s % 1000 == 0:
            info("Running validation...", el + 2)
            L.append("\rLoading pipeline components...: 100%|██████████| 7/7 [00:00<00:00, 11.32it/s]\n")
        if s == 2500:
            info("Running validation...", el + 2)
            L.append("image_processor.py:147: RuntimeWarning: invalid value encountered in cast\n  images = (images * 255).round().astype(\"uint8\")\n")
    L.append("\n^C")
    put('sd15_finetune.stdout', ''.join(L))
    case('h-b01', 'sd15_finetune.stdout', 'diffusers train_text_to_image tqdm stdout (carriage returns)', 'nan_loss',
         'bf16 full fine-tune of SD1.5; per-step loss ordinary (noisy) until step 2258, grows for nine steps, is nan from 2267 to the end; the image cast of the validation warns about invalid values.')


def b02():
    r = R('b02')
    st = np.arange(50, 24001, 50)
    n = len(st)
    k = 377
    base = pl(st, 1.62, .705, 900, .8)
    loss = base * (1 + ar(r, n, .2, .018))
    gn = (0.28 + 1.1 * np.exp(-st / 700)) * ln(r, n, .18)
    gn[k-3:k] *= [2.3, 6.8, 41.0]
    loss[k-2:k] *= [1.05, 1.31]
    o = ['"Step","xl2-512-lr2e4 - train/loss","xl2-512-lr2e4 - train/loss__MIN","xl2-512-lr2e4 - train/loss__MAX","xl2-512-lr2e4 - train/grad_norm","xl2-512-lr2e4 - train/grad_norm__MIN","xl2-512-lr2e4 - train/grad_norm__MAX"']
    for i in range(n):
        a, b = (loss[i], gn[i]) if i < k else ('NaN', 'NaN')
        o.append(f'"{st[i]}",' + ','.join(f'"{v}"' for v in (a, a, a, b, b, b)))
    put('wandb_export_2025-06-03T11_20_44.csv', '\n'.join(o) + '\n')
    case('h-b02', 'wandb_export_2025-06-03T11_20_44.csv', 'W&B chart CSV export', 'nan_loss',
         'Loss falls 1.6 -> 0.72, gradient norm jumps 0.3 -> 12 within three logs at step ~18.8k, then loss and norm are NaN for the last 5k steps.')


def b03():
    r = R('b03')
    t = datetime(2025, 1, 21, 18, 3, 11)
    P = lambda m: f"[\x1b[34m{t.strftime('%Y-%m-%d %H:%M:%S')}\x1b[0m] {m}"
    o = [P("Experiment directory created at results/003-SiT-L-2-Linear-velocity-None"), P("SiT Parameters: 458,104,864"),
         P("Dataset contains 1,281,167 images (imagenet256/train)"), P("Training for 80 epochs..."), P("Beginning epoch 0...")]
    st = np.arange(100, 64001, 100)
    n = len(st)
    base = pl(st, 1.05, .775, 1500, .9)
    rise = np.where(st > 21000, .43 * ((np.clip(st - 21000, 0, None)) / 43000) ** 1.35, 0)
    loss = base + rise + ar(r, n, .3, .006) * (1 + 2.2 * rise)
    ep = 0
    for i in range(n):
        sps = 4.31 + r.normal(0, .05)
        t += timedelta(seconds=100 / sps)
        if st[i] // 5004 != ep:
            ep = int(st[i] // 5004)
            o.append(P(f"Beginning epoch {ep}..."))
        o.append(P(f"(step={st[i]:07d}) Train Loss: {loss[i]:.4f}, Train Steps/Sec: {sps:.2f}"))
        if st[i] % 10000 == 0:
            o.append(P(f"Saved checkpoint to results/003-SiT-L-2-Linear-velocity-None/checkpoints/{st[i]:07d}.pt"))
            o.append(P("Generating EMA samples..."))
            o.append(P("Generating EMA samples done."))
    put('003-SiT-L-2/log.txt', '\n'.join(o) + '\n')
    case('h-b03', '003-SiT-L-2/log.txt', 'SiT log.txt (ANSI time stamps)', 'divergence',
         'SiT-L/2 from scratch: loss falls to 0.79 around step 21k and then climbs steadily, without a jump, to about 1.2 at 64k. LR is constant in this code base.')


def b04():
    r = R('b04')
    st = np.arange(20, 9001, 20)
    n = len(st)
    base = pl(st, .84, .468, 260, .9)
    rise = np.where(st > 3300, .33 * ((np.clip(st - 3300, 0, None)) / 5700) ** 1.2, 0)
    loss = base + rise + ar(r, n, .2, .016)
    gn = (.36 + .9 * np.exp(-st / 300) + 1.1 * rise) * ln(r, n, .15)
    o = ["[INFO|trainer.py:2414] ***** Running training *****", "[INFO|trainer.py:2415]   Num examples = 118,287", "[INFO|trainer.py:2416]   Num Epochs = 10",
         "[INFO|trainer.py:2417]   Instantaneous batch size per device = 32", "[INFO|trainer.py:2423]   Total optimization steps = 9,240"]
    for i in range(n):
        lr = 3e-4 * min(1, st[i] / 400)
        o.append(str({'loss': round(float(loss[i]), 4), 'grad_norm': float(np.float32(gn[i])), 'learning_rate': g(lr, 6), 'epoch': round(float(st[i]) / 924, 2)}))
        if st[i] % 500 == 0:
            ev = base[i] + rise[i] * 1.04 + .013 + r.normal(0, .003)
            o.append(str({'eval_loss': float(ev), 'eval_runtime': round(41.2 + r.normal(0, .4), 4), 'eval_samples_per_second': round(121.3 + r.normal(0, 1), 3), 'eval_steps_per_second': round(3.79 + r.normal(0, .03), 3), 'epoch': round(float(st[i]) / 924, 2)}))
    put('slurm-448120.out', '\n'.join(o) + '\n')
    case('h-b04', 'slurm-448120.out', 'HF Trainer dict lines with eval_loss', 'divergence',
         'Flow-matching model with HF Trainer, constant-with-warmup LR: train and eval loss reach 0.50 near step 3300, afterwards both rise together to 0.83; no jump, LR constant, gradient norm only mildly higher.')


def b05():
    r = R('b05')
    t = datetime(2025, 8, 2, 4, 40, 2)
    o = []
    st = np.arange(10, 20001, 10)
    n = len(st)
    total = 40000
    base = pl(st, 1.9, .62, 500, .75)
    loss = base * (1 + ar(r, n, .2, .02))
    gn = (.31 + 1.5 * np.exp(-st / 400)) * ln(r, n, .15)
    k = 40
    while k < n - 12:
        h = r.uniform(3.0, 8.0)
        w = int(r.integers(2, 6))
        for j in range(w):
            f = 1 + (h - 1) * (.45 ** j)
            loss[k + j] *= f
            gn[k + j] *= f ** 1.8
        k += int(r.integers(22, 60))
    pre = lambda m: f"[rank0]:[titan] {t.strftime('%Y-%m-%d %H:%M:%S')},{int(r.integers(0,999)):03d} - root - INFO - {m}"
    o += [pre("Starting job: flux-t2i 64 GPU, cc12m"), pre("Building 1-D device mesh with ['dp_shard'], [64]"), pre("Model flux flux-dev size: 11,901,408,320 total parameters"),
          pre("CUDA memory usage for model: 2.83GiB(3.57%)"), pre(f"Training starts at step 1, with local batch size 4, global batch size 256, sequence length 4096, total steps {total} (warmup 2000)")]
    for i in range(n):
        t += timedelta(seconds=8.1 + abs(r.normal(0, .1)))
        tps = 5200 + r.normal(0, 40)
        o.append(pre(f"step: {st[i]:5d}  loss: {loss[i]:7.4f}  grad_norm: {gn[i]:7.4f}  memory: 61.24GiB(77.31%)  tps: {tps:,.0f}  tflops: {tps*.0731:.2f}  mfu: {tps*.0731/9.89:.2f}%"))
        if st[i] % 1000 == 0:
            o.append(pre(f"Saving the checkpoint (or staging if async is enabled)."))
            o.append(pre(f"[GC] GC collection invoked by checkpointing {r.uniform(.01,.06):.2f} seconds"))
    put('titan_flux_rank0.log', '\n'.join(o) + '\n')
    case('h-b05', 'titan_flux_rank0.log', 'torchtitan stdout', 'loss_spikes',
         'Loss baseline falls 1.9 -> 0.67 but every 200-600 steps the loss jumps to 3-8 times its level (gradient norm up to 40 times) all through 20k steps.')


def b06():
    r = R('b06')
    st = np.arange(49, 30000, 50)
    n = len(st)
    base = pl(st, 1.1, .428, 800, .85)
    k = int(n * .56)
    lv = base.copy()
    lv[k:] = base[k:] * 1.62 + .55 * np.exp(-(np.arange(n - k)) / 9.)
    loss = lv * (1 + ar(r, n, .15, .03))
    lr = np.where(st < 1000, 2e-4 * st / 1000, 2e-4)
    rows = [['epoch', 'lr-AdamW', 'step', 'train/loss_epoch', 'train/loss_step', 'val/loss', 'val/psnr_x0']]
    spe = 1500
    for i in range(n):
        rows.append(['', lr[i], st[i], '', '', '', ''])
        rows.append([st[i] // spe, '', st[i], '', float(np.float32(loss[i])), '', ''])
        if (st[i] + 1) % spe == 0:
            j0 = i - 29
            v = lv[i] * 1.02 * (1 + r.normal(0, .006))
            rows.append([st[i] // spe, '', st[i], '', '', float(np.float32(v)), float(np.float32(10 - 10 * math.log10(v) + 8))])
            rows.append([st[i] // spe, '', st[i], float(np.float32(loss[j0:i + 1].mean())), '', '', ''])
    s = io.StringIO()
    csv.writer(s).writerows(rows)
    put('lightning_logs/version_12/metrics.csv', s.getvalue())
    case('h-b06', 'lightning_logs/version_12/metrics.csv', 'Lightning CSVLogger metrics.csv', 'loss_spikes',
         'Loss 1.1 -> 0.47, at step ~16.8k it jumps to 1.3 within one log and settles at 0.75 (1.6 times the level before) until the end; validation loss makes the same step; LR is constant.')


def b07():
    r = R('b07')
    o = ["**Describe the issue**", "", "Training a small DiT (130M) with rectified flow on my own 400k image/caption pairs, 256px, SD-VAE latents (scaled, std 0.98). I let it run over night and the samples are just noise. Log (every 250 it):", "", "```"]
    st = np.arange(0, 30001, 250)
    t = 0
    for s in st:
        l = 1.962 + r.normal(0, .021)
        gn = .214 * float(ln(r, 1, .12)[0])
        lr = 1e-4 * min(1, (s + 1) / 1000)
        o.append(f"it {s:>6d} | fm_loss {l:.4f} | gnorm {gn:.3f} | lr {lr:.2e} | {r.normal(3.9,.05):.2f} it/s")
        if s % 5000 == 0 and s:
            o.append(f"   >> holdout fm_loss {1.961 + r.normal(0,.006):.4f} | clip {0.1385 + r.normal(0,.0012):.4f}")
    o += ["```", "", "Batch 256, AdamW(0.9, 0.95), wd 0.01, bf16 autocast, grad clip 1.0. zero-init of the last layer like in DiT. With the class-conditional DiT from the original repo the same data loader works.", "", "**Versions** torch 2.5.1, CUDA 12.4"]
    put('issue_draft.md', '\n'.join(o) + '\n')
    case('h-b07', 'issue_draft.md', 'GitHub issue with pasted log', 'no_learning',
         'Rectified-flow loss 1.96 (= 1 + var of the latents, the value of a zero output) from it 0 to it 30000, hold-out loss and CLIP score equally flat; LR 1e-4 and gradient norm 0.2 ordinary.')


def b08():
    r = R('b08')
    root = 'mlruns/418820391/6f0c2b7de1a94c0f'
    st = np.arange(0, 6001, 10)
    n = len(st)
    t0 = 1741254002113
    ts = t0 + (st * 812.5).astype(int)
    loss = 1.931 + ar(r, n, .1, .024)
    lr = 1e-4 * (st + 1) / 1e8
    gn = 1.42 * ln(r, n, .07)
    def m(name, v, steps=st, tss=ts): put(f'{root}/metrics/{name}', ''.join(f"{a} {float(b)!r} {c}\n" for a, b, c in zip(tss, v, steps)))
    m('train_loss', loss); m('lr', lr); m('grad_norm_preclip', gn)
    es = np.arange(500, 6001, 500)
    m('val_loss', 1.933 + r.normal(0, .004, len(es)), es, t0 + (es * 812.5).astype(int) + 9000)
    m('samples_per_sec', 315 + r.normal(0, 4, n))
    for k, v in dict(model='MMDiT-S', base_lr='0.0001', warmup='100000000', scheduler='linear_warmup_constant', batch_size='256', optimizer='adamw', betas='(0.9, 0.99)', weight_decay='0.0', precision='bf16-mixed', dataset='cc3m-recap', max_steps='200000', p_uncond='0.1').items():
        put(f'{root}/params/{k}', v)
    put(f'{root}/meta.yaml', f"artifact_uri: mlflow-artifacts:/418820391/6f0c2b7de1a94c0f/artifacts\nend_time: {ts[-1]+20000}\nentry_point_name: ''\nexperiment_id: '418820391'\nlifecycle_stage: active\nrun_id: 6f0c2b7de1a94c0f\nrun_name: skittish-owl-220\nsource_type: 4\nstart_time: {t0-31000}\nstatus: 4\n")
    put(f'{root}/tags/mlflow.runName', 'skittish-owl-220')
    case('h-b08', 'mlruns', 'MLflow file store folder', 'lr_too_small',
         'The warm-up length is given in samples (1e8) but counted in steps: the logged lr goes 1e-12 -> 6e-9 in 6000 steps, train and val loss stay at 1.93, gradient norm is ordinary.')


def b09():
    r = R('b09')
    o = ["cfg: {'arch': 'unet_fm_s', 'img': 64, 'bs': 128, 'opt': 'adam', 'lr': 0.03, 'milestones': [6000], 'gamma': 0.01, 'steps': 9000}"]
    st = np.arange(25, 9001, 25)
    n = len(st)
    A = ar(r, n, .35, .75)
    for i, s in enumerate(st):
        if s < 6000:
            l = 0.62 * math.exp(A[i]) + .15
            gn = 9.5 * math.exp(1.1 * A[i] + r.normal(0, .5))
            lr = .03
        else:
            l = pl([s - 6000], .58, .214, 120, 1.0)[0] * (1 + r.normal(0, .025))
            gn = .41 * float(ln(r, 1, .15)[0]) + .6 * math.exp(-(s - 6000) / 120)
            lr = .0003
        o.append(f"[{s:05d}/9000] mse={l:.4f}  |g|={gn:.2f}  lr={lr:g}  t/it={r.normal(.142,.004):.3f}s")
    put('nohup_unet64.out', '\n'.join(o) + '\n')
    case('h-b09', 'nohup_unet64.out', 'own loop, nohup output', 'lr_too_high',
         'Adam with lr 0.03: loss swings between 0.25 and 3 without a trend for 6000 steps with restless gradient norms; when the milestone lowers the LR to 3e-4 it calms at once and falls to 0.23.')


def b10():
    r = R('b10')
    st = np.arange(200, 80001, 200)
    n = len(st)
    k = 52000
    w0 = 1753164000.0
    lr1 = cosine(st, 60000, 1000, 4e-4, 4e-6)
    lr2 = cosine(st - k, 60000, 1000, 4e-4, 4e-6)
    lr = np.where(st <= k, lr1, lr2)
    base1 = pl(st, 1.28, .60, 1200, .8) - .05 * np.clip((st - 25000) / 27000, 0, 1)
    q = np.clip(st - k, 0, None)
    base2 = base1[st == k][0] + .115 * (1 - np.exp(-q / 900.)) + .10 * np.exp(-((q - 1600) / 1400.) ** 2)
    loss = np.where(st <= k, base1, base2) + ar(r, n, .3, .007)
    gn = np.where(st <= k, .21, .37) * ln(r, n, .14) + .8 * np.exp(-st / 900)
    wall = w0 + st * 1.31 + np.where(st > k, 31244, 0)
    d = 'tb_csv'
    for nm, v in [('run-sit_b_cc12m-tag-loss_train.csv', loss), ('run-sit_b_cc12m-tag-optim_lr.csv', lr), ('run-sit_b_cc12m-tag-optim_grad_norm.csv', gn)]:
        put(f'{d}/{nm}', 'Wall time,Step,Value\n' + ''.join(f"{a:.6f},{b},{float(np.float32(c))!r}\n" for a, b, c in zip(wall, st, v)))
    es = np.arange(4000, 80001, 4000)
    ev = np.array([(base1 if s <= k else base2)[st == s][0] for s in es]) + .011 + r.normal(0, .002, len(es))
    put(f'{d}/run-sit_b_cc12m-tag-loss_val.csv', 'Wall time,Step,Value\n' + ''.join(f"{wall[st==s][0]+55:.6f},{s},{float(np.float32(c))!r}\n" for s, c in zip(es, ev)))
    case('h-b10', 'tb_csv', 'TensorBoard CSV downloads, one file per tag (folder)', 'lr_restart',
         'Cosine LR has fallen to ~2e-5 at 52k; after a resume (8 h hole in the wall time) it starts a new warm-up to 4e-4; train and val loss go from 0.58 to about 0.70 and stay there until 80k.')


def b11():
    r = R('b11')
    st = np.arange(10, 6001, 10)
    n = len(st)
    base = pl(st, .93, .05, 420, .42)
    val = pl(st, .95, .52, 300, .9) + np.where(st > 1600, .34 * ((np.clip(st - 1600, 0, None)) / 4400) ** 1.1, 0)
    lh = []
    lr = cosine(st, 6000, 300, 1e-4)
    for i, s in enumerate(st):
        s = int(s)
        lh.append({"epoch": round(s / 75, 4), "grad_norm": float(np.float32(.7 * ln(r, 1, .2)[0])), "learning_rate": float(lr[i]), "loss": round(float(base[i] * (1 + r.normal(0, .045))), 4), "step": s})
        if s % 150 == 0:
            lh.append({"epoch": round(s / 75, 4), "eval_clip_score": round(.262 - .035 * math.exp(-s / 500) - .02 * max(0, s - 2000) / 4000 + r.normal(0, .0015), 5), "eval_loss": float(val[i] * (1 + r.normal(0, .008))), "eval_runtime": round(18 + r.random(), 4), "eval_samples_per_second": round(27.3 + r.random(), 3), "eval_steps_per_second": 3.42, "step": s})
    put('checkpoint-6000/trainer_state.json', json.dumps({"best_global_step": None, "best_metric": None, "best_model_checkpoint": None, "epoch": 80.0, "eval_steps": 150, "global_step": 6000, "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True, "log_history": lh, "logging_steps": 10, "max_steps": 6000, "num_train_epochs": 80, "save_steps": 1500, "stateful_callbacks": {"TrainerControl": {"args": {"should_epoch_stop": False, "should_training_stop": True}, "attributes": {}}}, "total_flos": 0.0, "train_batch_size": 16}, indent=2))
    case('h-b11', 'checkpoint-6000/trainer_state.json', 'HF trainer_state.json', 'overfitting',
         '80 epochs on 1200 pairs: train loss 0.9 -> 0.32, eval loss has its minimum (~0.61) near step 1600 and rises to 0.88, CLIP score falls again.')


def b12():
    r = R('b12')
    ks = [10, 20, 30, 40, 60, 80, 100, 120, 150, 180, 210, 240]
    tr = [.7712, .7388, .7190, .7031, .6774, .6521, .6283, .6044, .5702, .5371, .5066, .4790]
    va = [.7790, .7481, .7322, .7231, .7188, .7204, .7267, .7361, .7544, .7765, .8022, .8301]
    fid = [61.3, 44.8, 36.9, 33.0, 30.1, 30.4, 32.2, 34.6, 38.9, 43.7, 48.1, 53.6]
    fidt = [60.2, 43.1, 34.8, 30.4, 26.0, 22.7, 19.9, 17.4, 14.2, 11.6, 9.7, 8.2]
    cs = [.241, .256, .263, .267, .270, .269, .268, .266, .262, .257, .253, .249]
    o = ["Evaluation of all checkpoints, JDB-art subset (6.1k train / 1k held out), DiT-B/2, flow matching, EMA 0.9999, Heun 30 steps, cfg 2.5", "",
         "| ckpt (k it) | train mse | held-out mse | FID-5k vs train | FID-1k vs held-out | CLIP-S | nearest-train LPIPS |", "|---:|---:|---:|---:|---:|---:|---:|"]
    lp = np.linspace(.61, .19, 12)
    for i, k in enumerate(ks):
        o.append(f"| {k} | {tr[i]:.4f} | {va[i]:.4f} | {fidt[i]:.1f} | {fid[i]:.1f} | {cs[i]:.3f} | {lp[i]+r.normal(0,.008):.3f} |")
    o += ["", "lr 1e-4 constant, bs 128 (≈48 it per epoch), no augmentation except horizontal flip.", "Loss on held-out is averaged over 8 fixed t per image, fixed noise.", "",
          "last lines of the training log for reference:", ""]
    for s in range(239000, 240001, 50):
        o.append(f"    it={s} mse={.479+r.normal(0,.012):.4f} gnorm={.52+r.normal(0,.04):.3f} lr=1.0e-04")
    put('eval_ckpts.md', '\n'.join(o) + '\n')
    case('h-b12', 'eval_ckpts.md', 'evaluation table over checkpoints (markdown)', 'overfitting',
         'Train mse falls to 0.479, held-out mse has its minimum 0.719 at 60k and rises to 0.830; held-out FID 30 -> 54, nearest-train LPIPS falls (copies).')


def b13():
    r = R('b13')
    E, n_ep = 120, 14
    pat = ar(r, E, .5, .03)
    lev = .115 + .36 * np.exp(-np.arange(n_ep) / 4.2)
    o = []
    t0 = 1755773210.2
    for s in range(0, E * n_ep, 2):
        e, k = divmod(s, E)
        l = lev[e] * (1 + pat[k] + r.normal(0, .012)) * (1 - .015 * k / E)
        if e == 0: l += .35 * math.exp(-k / 20)
        o.append(json.dumps({"train/loss": float(l), "train/grad_norm": float((.33 + .2 * math.exp(-s / 150)) * ln(r, 1, .12)[0]), "train/lr": 5e-05 if s > 50 else 1e-6 * s, "epoch": s / E, "_timestamp": t0 + s * .93, "_runtime": 41.3 + s * .93, "_step": s}))
    put('wandb-history.jsonl', '\n'.join(o) + '\n')
    case('h-b13', 'wandb-history.jsonl', 'W&B history as JSON lines', 'periodic_memorisation',
         'Within an epoch (120 steps) the loss is level, at each epoch boundary it drops by a stair of ~20 %, and the same saw-tooth pattern comes back in every epoch at the same position (fixed order, samples memorised): 0.47 -> 0.13.')


def b14():
    r = R('b14')
    t = datetime(2025, 5, 12, 2, 10, 0)
    o = ["using world size: 128, data-parallel size: 32, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 1", "setting random seeds to 1234 ...", "> building train, validation, and test datasets ...", "done with setup ...", "training ..."]
    st = np.arange(100, 52001, 100)
    n = len(st)
    gn = .32 * 10 ** (4.3 * (st / 52000) ** 1.1) * ln(r, n, .22)
    loss = pl(st, 1.44, .612, 1300, .8) + np.where(st > 47000, .05 * (np.clip(st - 47000, 0, None)) / 5000, 0) + ar(r, n, .2, .007)
    lr = np.where(st < 2000, 1.2e-4 * st / 2000, 1.2e-4)
    for i in range(n):
        t += timedelta(seconds=81.2 + r.normal(0, .5))
        o.append(f" [{t.strftime('%Y-%m-%d %H:%M:%S')}] iteration {st[i]:8d}/  200000 | consumed samples: {st[i]*1024:12d} | elapsed time per iteration (ms): {812+r.normal(0,5):.1f} | learning rate: {lr[i]:.6E} | global batch size:  1024 | flow matching loss: {loss[i]:.6E} | loss scale: 1.0 | grad norm: {gn[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")
        if st[i] % 5000 == 0:
            o.append(f"saving checkpoint at iteration {st[i]:7d} to ckpts/mmdit_2b in torch_dist format")
            o.append(f"  successfully saved checkpoint from iteration {st[i]:7d} to ckpts/mmdit_2b [ t 1/4, p 1/1 ]")
            o.append('-' * 92)
            o.append(f" validation loss at iteration {st[i]} | flow matching loss value: {loss[i]+.006+r.normal(0,.002):.6E} |")
            o.append('-' * 92)
    put('mmdit2b_node0.txt', '\n'.join(o) + '\n')
    case('h-b14', 'mmdit2b_node0.txt', 'Megatron-LM stdout', 'grad_explosion',
         'Gradient norm grows steadily from 0.3 to several thousands over 52k iterations while the loss still falls to 0.66 and only begins to bend at the very end; LR constant, no nan iterations.')


def b15():
    r = R('b15')
    st = np.arange(0, 15001, 50)
    n = len(st)
    loss = np.where(st < 900, 1.88 - .62 * (1 - np.exp(-st / 260.)), 1.275) + ar(r, n, .1, .018)
    gl = np.log10(.55) - 7.2 * (1 - np.exp(-np.clip(st - 500, 0, None) / 1700.))
    gn = 10 ** (gl + r.normal(0, .09, n))
    o = []
    for i in range(n):
        lr = 2e-4 * min(1, (st[i] + 1) / 500)
        o.append(f"step={st[i]} loss={loss[i]:.5f} gradnorm={gn[i]:.3e} lr={lr:.1e} out_abs={(.02+.28*(1-math.exp(-st[i]/260)))*(1+r.normal(0,.01)):.4f} ep={st[i]//1840}")
        if st[i] % 3000 == 0 and st[i]:
            o.append(f"val step={st[i]} loss={1.279+r.normal(0,.004):.5f}")
    put('train_v7.txt', '\n'.join(o) + '\n')
    case('h-b15', 'train_v7.txt', 'own loop, key=value lines', 'grad_vanishing',
         'Loss falls from 1.88 to 1.27 in the first 900 steps, then stands; the gradient norm falls from 0.5 to about 3e-8 and stays there; LR 2e-4 is ordinary.')


def b16():
    r = R('b16')
    t = datetime(2025, 2, 9, 11, 31, 7)
    def T(lv='INFO'): return f"[{t.strftime('%Y-%m-%d %H:%M:%S')},{int(r.integers(0,999)):03d}] [{lv}]"
    o = [f"{T()} [config.py:1001:print]   fp16_enabled ................. auto", f"{T()} [config.py:1001:print]   initial_dynamic_scale ........ 65536",
         f"{T()} [config.py:1001:print]   dynamic_loss_scale_args ...... {{'init_scale': 65536, 'scale_window': 1000, 'delayed_shift': 2, 'consecutive_hysteresis': False, 'min_scale': 1}}",
         f"{T()} [config.py:1001:print]   zero_optimization_stage ...... 2", f"{T()} [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.999)]"]
    scale = 65536.0
    step = skipped = 0
    hyst = 2
    loss = 1.87
    while step < 620:
        step += 1
        t += timedelta(seconds=1.9 + abs(r.normal(0, .1)))
        ov = step > 34 and r.random() < (.93 if scale > 1 else .985)
        if ov:
            skipped += 1
            if scale <= 1:
                o.append(f"{T()} [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1")
            elif hyst > 1:
                hyst -= 1
                o.append(f"{T()} [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(scale)}, but hysteresis is {hyst+1}. Reducing hysteresis to {hyst}")
            else:
                o.append(f"{T()} [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(scale)}, reducing to {int(scale/2)}")
                scale = max(1, scale / 2)
        else:
            loss = max(1.79, loss - .002)
        if step % 10 == 0:
            lr = 1e-4 * (step - skipped) / 500
            o.append(f"{T()} [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[{lr:.6g}], mom=[(0.9, 0.999)]")
            o.append(f"{T()} [timer.py:260:stop] epoch=0/micro_step={step*2}/global_step={step}, RunningAvgSamplesPerSec={67.1+r.normal(0,.4):.4f}, CurrSamplesPerSec={67.2+r.normal(0,1.2):.4f}, MemAllocated=9.71GB, MaxMemAllocated=31.02GB")
            o.append(f"iter {step} | diff_loss {loss+r.normal(0,.02):.4f} | elapsed {step*1.95:.0f}s")
    put('ds_stage2_fp16.log', '\n'.join(o) + '\n')
    case('h-b16', 'ds_stage2_fp16.log', 'DeepSpeed stdout', 'amp_overflow',
         'From step 35 nearly every step overflows, the loss scale is halved from 65536 down to 1, skipped counts 580 of 620 steps, LR does not advance, loss stays at 1.8.')


def b17():
    r = R('b17')
    t = datetime(2025, 4, 3, 7, 0, 10)
    def P(rank, m): return f"{t.strftime('%Y-%m-%d %H:%M:%S')} | rank {rank} | {m}"
    o = ["#### job 771203  nodes=2  ntasks=16", P(0, "lumina-mini  params 1.02B  bs 16x16  AdamW lr 2e-4 constant")]
    f = lambda s: float(pl([s], 1.71, .575, 1100, .78)[0])
    gf = lambda s: .27 + 2.1 * math.exp(-s / 600)
    for s in range(100, 46101, 100):
        t += timedelta(seconds=33)
        if s % 500 == 0:
            for k in (0, 8):
                o.append(P(k, f"upd {s:6d}  rf_loss {f(s)+r.normal(0,.012):.4f}  gn {gf(s)*float(ln(r,1,.13)[0]):.3f}  lr 2.00e-04  seen {s*256/1e6:.2f}M"))
        if s % 10000 == 0: o.append(P(0, f"VAL upd {s} rf_loss {f(s)+.009:.4f} clipT 0.{2710-int(9000*(s+2000)**-.32)} "))
        if s % 5000 == 0: o.append(P(0, f"checkpoint written: upd_{s}"))
    o += ["slurmstepd: error: *** JOB 771203 ON node-a CANCELLED AT 2025-04-03T11:14:02 DUE TO TIME LIMIT ***", "#### job 771498  nodes=2  ntasks=16"]
    t = datetime(2025, 4, 3, 15, 20, 41)
    o += [P(0, "lumina-mini  params 1.02B  bs 16x16  AdamW lr 2e-4 constant"), P(0, "resume: found upd_45000, continuing at update 45000")]
    for s in range(45100, 70001, 100):
        t += timedelta(seconds=33)
        q = s - 45000
        if s % 500 == 0 or q <= 1500:
            for k in (0, 8):
                o.append(P(k, f"upd {s:6d}  rf_loss {f(q)+r.normal(0,.012):.4f}  gn {gf(q)*float(ln(r,1,.13)[0]):.3f}  lr 2.00e-04  seen {s*256/1e6:.2f}M"))
        if s % 10000 == 0: o.append(P(0, f"VAL upd {s} rf_loss {f(q)+.009:.4f} clipT 0.{2710-int(9000*(q+2000)**-.32)} "))
        if s % 5000 == 0: o.append(P(0, f"checkpoint written: upd_{s}"))
    put('lumina_mini_2jobs.out', '\n'.join(o) + '\n')
    case('h-b17', 'lumina_mini_2jobs.out', 'slurm output, two jobs, two ranks', 'resume_from_scratch',
         'First job ends at update 46k with loss ~0.63. The second says it continues at 45000, but loss starts at ~1.65 with gradient norm above 2 and repeats the curve of a fresh run (CLIP score too).')


def b18():
    r = R('b18')
    t = datetime(2025, 9, 1, 13, 2, 5)
    o = []
    def P(lv, m): return f"{t.strftime('%m-%d %H:%M:%S')} {lv:<7} trainer: {m}"
    o.append(P('INFO', "plan: 120000 steps, eval every 4000, guard(loss_ratio=3.0, patience=40 logs, window=200)"))
    st = np.arange(25, 31626, 25)
    n = len(st)
    k = int(np.searchsorted(st, 30600))
    loss = pl(st, 1.3, .51, 700, .85) * (1 + ar(r, n, .2, .025))
    gn = (.35 + np.exp(-st / 500)) * ln(r, n, .15)
    loss[k:] = .535 * (3.9 + .5 * np.exp(-np.arange(n - k) / 3.) + r.normal(0, .12, n - k))
    gn[k:] = 4.2 * ln(r, n - k, .3)
    c = 0
    for i in range(n):
        t += timedelta(seconds=11)
        o.append(P('INFO', f"step {st[i]} loss {loss[i]:.4f} grad {gn[i]:.3f} lr {1.5e-4*min(1,st[i]/1500):.2e} mem 38.1G"))
        if st[i] % 4000 == 0: o.append(P('INFO', f"eval step {st[i]} mse {loss[max(0,i-20):i].mean()+.01:.4f} fid2k {19+90*(1+st[i]/2500)**-1.1+r.normal(0,.3):.2f}"))
        if i >= k:
            c += 1
            if c in (10, 20, 30): o.append(P('WARNING', f"guard: loss {loss[i]:.3f} > 3.0 x median(0.536) for {c} logs"))
            if c >= 40: break
    o.append(P('ERROR', f"guard: loss {loss[i]:.3f} > 3.0 x median(0.536) for 40 logs - stopping at step {st[i]} of 120000"))
    o += ["Traceback (most recent call last):", '  File "train_fm.py", line 412, in <module>', "    main(cfg)", '  File "train_fm.py", line 377, in main', "    guard.update(step, loss)",
          '  File "guards.py", line 61, in update', '    raise TrainingGuardError(self.reason)', "guards.TrainingGuardError: loss ratio above limit for 40 consecutive logs"]
    put('run_0901.log', '\n'.join(o) + '\n')
    case('h-b18', 'run_0901.log', 'own trainer with logging module', 'self_stopped',
         "At step 30.6k of a 120k plan the loss jumps to ~4 times its level and stays; the trainer's guard warns three times and then stops the run at 31.6k with its reason.", ['loss_spikes', 'divergence'])


def b19():
    r = R('b19')
    o = []
    st = np.arange(250, 90001, 250)
    base = pl(st, 1.2, .68, 1500, .8)
    for i, s in enumerate(st):
        d = {"global_step": int(s), "loss/diffusion": round(float(base[i] * (1 + r.normal(0, .012))), 5), "optim/lr": 1e-4, "optim/gnorm": round(float(.24 * ln(r, 1, .12)[0]), 4), "perf/imgs_s": round(float(1410 + r.normal(0, 15)), 1)}
        o.append(json.dumps(d))
        if s % 2500 == 0:
            ok = s < 42500
            d = {"global_step": int(s), "eval/fid10k": round(float(11.8 + 80 * (1 + s / 3000) ** -1.1 + r.normal(0, .25)), 3) if ok else None,
                 "eval/clip_l14": round(float(.262 - .06 * (1 + s / 4000) ** -.9 + r.normal(0, .0006)), 4) if ok else None,
                 "eval/val_mse": round(float(base[i] + .007 + r.normal(0, .001)), 5) if ok else None, "eval/seconds": round(float(311 + r.normal(0, 3) if ok else 2.1 + r.random() * .2), 1)}
            o.append(json.dumps(d))
    put('metrics_exp31.jsonl', '\n'.join(o) + '\n')
    case('h-b19', 'metrics_exp31.jsonl', 'JSON lines of an own metric writer', 'metrics_lost',
         'FID, CLIP and validation MSE are logged until 40k and are null at every evaluation from 42.5k to 90k (the evaluation takes 2 s instead of 311 s), while the training loss goes on falling.')


def b20():
    r = R('b20')
    t = datetime(2025, 6, 18, 22, 0, 0)
    o = []
    def P(m): return f"[{t.strftime('%Y-%m-%d %H:%M:%S')}] {m}"
    o.append(P("SiT-B/2 + repa(dinov2-vit-b, layer 4, coeff 0.5), ema_decay=0.9999, bs 256"))
    st = np.arange(500, 100001, 500)
    for s in st:
        t += timedelta(seconds=152)
        l = pl([s], 1.0, .79, 2500, .8)[0]
        p = -.62 + .55 * (1 + s / 2600) ** -.7
        o.append(P(f"Steps {s}: denoise {l+r.normal(0,.006):.4f} | proj {p+r.normal(0,.004):.4f} | gnorm {.19*float(ln(r,1,.12)[0]):.3f} | lr 1.0e-04"))
        if s % 10000 == 0:
            fr = 31.5 + 190 * (1 + s / 9000) ** -1.15 + r.normal(0, .3)
            mr = l + .012
            o.append(P(f"eval@{s} [online] fid10k={fr:.2f} sfid={7.1+40*(1+s/9000)**-1.1:.2f} is={8+44*s/(s+40000):.2f} valmse={mr:.4f}"))
            o.append(P(f"eval@{s} [ema]    fid10k={338.6+r.normal(0,.25):.2f} sfid={251.3+r.normal(0,.4):.2f} is={1.27+r.normal(0,.005):.2f} valmse={1.9312+r.normal(0,.0006):.4f}"))
    put('repa_b2.txt', '\n'.join(o) + '\n')
    case('h-b20', 'repa_b2.txt', 'REPA style log with online/EMA evaluation', 'ema_broken',
         'Online weights improve (FID 112 -> 42, valmse 0.86 -> 0.81) while the EMA weights stay at FID 338 and valmse 1.931 (untrained) at all ten evaluations over 100k steps with decay 0.9999.')


def b21():
    r = R('b21')
    o = ["step,loss,L_flow,L_dino,L_kl,w_flow,w_dino,w_kl,g_flow,g_dino,g_kl,g_total,lr"]
    for s in range(0, 40001, 100):
        lf = pl([s], 1.93, .79, 1400, .8)[0] * (1 + r.normal(0, .012))
        ld = pl([s], 8.9, 5.6, 2500, .6)[0] * (1 + r.normal(0, .006))
        lk = pl([s], .9, .36, 3000, .6)[0] * (1 + r.normal(0, .02))
        gf = (.62 + 1.5 * math.exp(-s / 600)) * float(ln(r, 1, .13)[0])
        gd = gf * .009 * float(ln(r, 1, .2)[0])
        gk = gf * .19 * float(ln(r, 1, .15)[0])
        gt = math.sqrt(gf ** 2 + gd ** 2 + gk ** 2 + .2 * gf * gk)
        o.append(f"{s},{lf+.001*ld+.1*lk:.5f},{lf:.5f},{ld:.4f},{lk:.4f},1.0,0.001,0.1,{gf:.5f},{gd:.6f},{gk:.5f},{gt:.5f},{1e-4*min(1,(s+1)/1000):.2e}")
    put('losses_and_grads.csv', '\n'.join(o) + '\n')
    case('h-b21', 'losses_and_grads.csv', 'own CSV with per-loss gradient norms', 'weak_gradient_share',
         'Weighted gradient of the DINO term is 0.9 % of the total for all 40k steps (w_dino 0.001), the flow term has 97 %, KL 19 %; L_dino still 6.2.')


def b22():
    r = R('b22')
    o = []
    for s in range(50, 12001, 50):
        lf = pl([s], 2.2, .98, 700, .7)[0]
        d = {'flow/loss': lf * (1 + r.normal(0, .015)), 'kl/loss': .021 * (1 + r.normal(0, .02)), 'opt/lr_backbone': 1e-4, 'opt/lr_heads': 2e-4, 'grad/total': .6 * float(ln(r, 1, .15)[0]),
             'step/z_head_update_ratio': 3.1e-7 * float(ln(r, 1, .25)[0]), 'step/flow_head_update_ratio': 4.2e-4 * float(ln(r, 1, .12)[0]), 'step/llm_adapter_update_ratio': 2.3e-4 * float(ln(r, 1, .12)[0]),
             'flow/cos': math.sqrt(max(0, 1 - lf / 2.25)) + r.normal(0, .004)}
        o.append(f"[step {s}] " + ", ".join(f"{k}: {v:.4g}" for k, v in d.items()))
    put('openuni_probe.log', '\n'.join(o) + '\n')
    case('h-b22', 'openuni_probe.log', 'OpenUni-like probe lines', 'head_not_updated',
         'z_head update ratio is 3e-7 in all 240 lines although its LR is 2e-4, flow head and adapter have 4e-4 and 2e-4; the flow loss falls.')


def b23():
    r = R('b23')
    o = ["dino head out_dim: 8192  teacher_temp: 0.04  student_temp: 0.1  warmup_teacher_temp: 0.01"]
    ep, spe = 12, 1250
    for e in range(ep):
        for k in range(0, spe, 50):
            s = e * spe + k
            et = .035 + 2.2 * math.exp(-s / 500) + abs(r.normal(0, .004))
            es = .06 + 5.2 * math.exp(-s / 900) + abs(r.normal(0, .006))
            ld = et + .012 + 4.3 * math.exp(-s / 850) + abs(r.normal(0, .008))
            lf = pl([s], 1.7, .83, 700, .7)[0] + r.normal(0, .014)
            rem = (spe - k) * .61
            o.append(f"Epoch: [{e}/{ep}]  [{k:>4}/{spe}]  eta: {hms(rem)}  loss: {lf+.5*ld:.4f}  fm: {lf:.4f}  dino: {ld:.4f}  t_entropy: {et:.4f}  s_entropy: {es:.4f}  lr: {2e-4:.6f}  wd: 0.0400  time: {.61+abs(r.normal(0,.01)):.6f}  data: 0.00{int(r.integers(10,99))}  max mem: 30112")
        o.append(f"Epoch: [{e}/{ep}] Total time: 0:12:{int(r.integers(38,50))} (0.61 s / it)")
        o.append(f"  * linear-probe acc@1 {min(9.4, 6+e)*.55+r.normal(0,.2):.2f}   holdout fm {pl([(e+1)*spe],1.7,.835,700,.7)[0]:.4f}")
    put('fm_dino_aux.log', '\n'.join(o) + '\n')
    case('h-b23', 'fm_dino_aux.log', 'DINO MetricLogger style lines', 'teacher_collapsed',
         'K = 8192 (log K = 9.01): the teacher entropy falls to 0.035 within two epochs and stays; student follows, DINO loss is near 0.04 and the linear probe stays at 5 %. Teacher temperature warm-up 0.01.')


def b24():
    r = R('b24')
    o = []
    K = 16384
    lk = math.log(K)
    for e in range(60):
        o.append(json.dumps({"train_lr": g(2e-4 * .5 * (1 + math.cos(math.pi * e / 100)), 5), "train_flow_mse": round(float(pl([e], 1.22, .71, 2, .8)[0] + r.normal(0, .002)), 5),
                             "train_ibot_dino_ce": round(lk + abs(r.normal(0, 2e-4)) + .02 * math.exp(-e * 2), 5), "train_ent_teacher": round(lk - abs(r.normal(0, 1.5e-4)), 5),
                             "train_ent_student": round(lk - .0006 - abs(r.normal(0, 3e-4)) - .03 * math.exp(-e * 1.5), 5), "train_grad_dino": g(2.1e-3 * float(ln(r, 1, .1)[0]), 4), "train_grad_flow": g(.21 * float(ln(r, 1, .08)[0]), 4),
                             "val_flow_mse": round(float(pl([e], 1.23, .716, 2, .8)[0] + r.normal(0, .003)), 5), "knn_top1": round(1.1 + r.normal(0, .12), 2), "epoch": e, "n_prototypes": K}))
    put('log_epochs.txt', '\n'.join(o) + '\n')
    case('h-b24', 'log_epochs.txt', 'one JSON object per epoch (DINO/MAE log.txt)', 'teacher_uniform',
         'K = 16384, log K = 9.7041: teacher entropy is 9.704 in all 60 epochs, the DINO cross entropy sits at log K, its gradient is 1 % and k-NN accuracy at chance level of 1 %.', ['weak_gradient_share'])


def b25():
    r = R('b25')
    o = ["iter\tflow\tdino\tH_teacher\tH_student\tgrad_flow\tgrad_dino\tgrad_total\tcos_v\tlr"]
    for s in range(0, 25001, 125):
        lf = pl([s], 1.95, .86, 900, .75)[0] + r.normal(0, .012)
        hs = .13 + 7.9 * math.exp(-s / 420) + abs(r.normal(0, .012))
        ht = 3.35 + .6 * math.exp(-s / 2000) + r.normal(0, .04)
        ld = 6.9 + 1.3 * math.exp(-s / 500) + r.normal(0, .09)
        gf = (.5 + 1.2 * math.exp(-s / 500)) * float(ln(r, 1, .12)[0])
        gd = gf * (.021 + .4 * math.exp(-s / 420)) * float(ln(r, 1, .2)[0])
        o.append(f"{s}\t{lf:.4f}\t{ld:.3f}\t{ht:.3f}\t{hs:.3f}\t{gf:.4f}\t{gd:.5f}\t{math.hypot(gf,gd):.4f}\t{math.sqrt(max(1e-4,1-lf/1.97)):.3f}\t1.0e-04")
    o.append("# K=4096 T_t=0.07 T_s=0.01 w_dino=0.5")
    put('tri_loss.tsv', '\n'.join(o) + '\n')
    case('h-b25', 'tri_loss.tsv', 'tab-separated metrics of an own loop', 'student_saturated',
         'log K = 8.32: the teacher has an ordinary entropy (3.4) while the student entropy falls to 0.14 (1.7 % of log K) within 2k steps, DINO loss stays high at 6.9, DINO gradient 2 % of the total; T_s = 0.01.', ['weak_gradient_share'])


def b26():
    r = R('b26')
    t = datetime(2025, 7, 7, 3, 4, 5)
    o = [f"{t.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Config: model = dict(type='OpenUniFM', text_ve=dict(latent_dim=4096, logvar_clamp=(-20, 20)), loss_kl_weight=1e-09, vae_scale=0.18215)"]
    tot = 50000
    for s in range(50, tot + 1, 50):
        t += timedelta(seconds=47)
        x = s / tot
        mu = .31 + 7.4 * x ** .8
        sd = 1.02 - .56 * x ** .7
        mu_j = mu * (1 + r.normal(0, .01)); sd_j = sd * (1 + r.normal(0, .006))
        rms = 1.25 * mu_j
        kl = .5 * (rms ** 2 + sd_j ** 2 - 1 - 2 * math.log(sd_j))
        lf = .84 + 1.25 * (1 + s / 2000) ** -.7 + r.normal(0, .015)
        o.append(f"{t.strftime('%m/%d %H:%M:%S')} - mmengine - INFO - Iter(train) [{s:6d}/{tot}]  base_lr: 1.0000e-04 lr: 1.0000e-04  eta: {hms((tot-s)*.94)}  time: {.94+r.normal(0,.01):.4f}  data_time: {.012+abs(r.normal(0,.002)):.4f}  memory: 52311  grad_norm: {.7*float(ln(r,1,.12)[0]):.4f}  loss: {lf+1e-9*kl:.4f}  loss_flow: {lf:.4f}  kl_per_dim: {kl:.4f}  mu_absmean: {mu_j:.4f}  post_std: {sd_j:.4f}  z_init_var: {rms**2+sd_j**2:.4f}")
    put('20250707_030405.log', '\n'.join(o) + '\n')
    case('h-b26', '20250707_030405.log', 'mmengine training log', 'kl_not_acting',
         'KL weight 1e-9: |mu| grows 0.3 -> 7.7, posterior std 1.0 -> 0.46, KL per dim 0.1 -> 46, var(z_init) 1.2 -> 93 over 50k iterations while the flow loss falls.')


def b27():
    r = R('b27')
    o = ["args: kl_w=1.0 kl_warmup=0 latent=4x32x32 text=llm-hidden(64q) sampler=heun25"]
    for s in range(100, 20001, 100):
        mu = .0031 + .35 * math.exp(-s / 260)
        sd = 1 - .0006 - .12 * math.exp(-s / 200)
        m = mu * (1 + r.normal(0, .03)); d = sd + r.normal(0, .0002)
        kl = .5 * ((1.25 * m) ** 2 + d * d - 1 - 2 * math.log(d))
        lf = 1.11 + .85 * (1 + s / 500) ** -.8 + r.normal(0, .012)
        o.append(f"{s:>6} flow {lf:.4f} kl {kl:.2e} |mu| {m:.4f} sigma {d:.4f} gn {.5*float(ln(r,1,.12)[0]):.3f} lr 1e-4")
        if s % 5000 == 0:
            o.append(f"--- prompts @ {s}")
            for p in ["a red bicycle", "two dogs on a beach", "portrait, oil", "city at night", "a bowl of ramen", "snowy mountain"]:
                o.append(f"    {p:<22s} mu_rms {.0041+r.normal(0,.0003):.4f}  sigma_mean {.9994+r.normal(0,.0002):.4f}  kl/dim {9.0e-6*float(ln(r,1,.1)[0]):.1e}")
            o.append(f"    clip-score {.148+r.normal(0,.001):.3f} (random pairing: {.148+r.normal(0,.001):.3f})")
    put('crossflow_small.out', '\n'.join(o) + '\n')
    case('h-b27', 'crossflow_small.out', 'own loop with per-prompt table', 'posterior_collapse',
         'With KL weight 1.0 from step 0 the KL falls to 1e-5 per dim, |mu| to 0.003, sigma to 0.9994 - for each of six prompts; CLIP score equals the random pairing.')


def b28():
    r = R('b28')
    o = ["Step,train/flow_loss,train/kl_nats_per_dim,vh/logvar_mean,vh/logvar_min,vh/std_mean,vh/std_max,vh/mu_rms,train/lr"]
    for s in range(0, 30001, 60):
        lv = -10 + 9.8 * math.exp(-s / 2600)
        lv_ = max(-10, lv + r.normal(0, .02)) if lv > -9.95 else -10 + abs(r.normal(0, .006))
        sd = math.exp(.5 * lv_)
        mu = .95 + .15 * (1 - math.exp(-s / 3000)) + r.normal(0, .006)
        kl = .5 * (mu ** 2 + sd ** 2 - 1 - lv_)
        lf = .33 + 1.6 * (1 + s / 900) ** -.9
        o.append(f"{s},{lf*(1+r.normal(0,.015)):.5f},{kl:.4f},{lv_:.4f},{max(-10, lv_-1.1):.4f},{sd:.5f},{sd*(1.02+.6*(10+lv_)/9.8):.5f},{mu:.4f},1e-04")
    put('wandb_table_zr5k.csv', '\n'.join(o) + '\n')
    case('h-b28', 'wandb_table_zr5k.csv', 'CSV with one row per step (W&B run table)', 'sigma_collapse',
         'logvar goes from -0.2 to its clamp at -10 and sits there from ~15k on, std/mean 0.9 -> 0.0067; mu is ordinary (1.1), flow loss falls.', ['z0_leak'])


def b29():
    r = R('b29')
    o = ["== run ve-head-v3, w_kl: 0.0 (off), 256px, 40k steps, bs 512 ==", ""]
    for s in range(1000, 40001, 1000):
        x = 1 - math.exp(-s / 5000)
        sd = 1 - .86 * x
        cos = .62 + .355 * x + r.normal(0, .002)
        o.append(f"step {s:>6d}  cos(v,v*) {cos:.3f}  nmse {1-cos**2+abs(r.normal(0,.001)):.4f}  speed {cos+r.normal(0,.003):.3f}  std/mean {sd+r.normal(0,.003):.3f}  mu/rms {.81+.12*x+r.normal(0,.004):.3f}")
        if s % 10000 == 0:
            o.append(f"   eval {s}: shoot rmse K=8 {.93+r.normal(0,.01):.3f}  K=16 {.92+r.normal(0,.01):.3f}  K=32 {.92+r.normal(0,.01):.3f} | FID-10k {171+r.normal(0,4):.1f} | CLIP {.171+r.normal(0,.002):.3f}")
    o += ["", "fixed batch, 40k ckpt (z1 std 0.96, vae psnr 30.8 dB):"]
    for t in (.05, .1, .2, .4, .6, .8, .95):
        c = .935 + .04 * math.sqrt(t) + r.normal(0, .001)
        o.append(f"  t={t:.2f}  cos={c:.3f}  nmse={1-c*c:.4f}  |v|/|v*|={c+r.normal(0,.002):.3f}")
    o += ["", "samples: all brownish blobs, same for every cfg. One-step numbers look great??"]
    put('ve_head_v3.txt', '\n'.join(o) + '\n')
    case('h-b29', 've_head_v3.txt', 'training prints and evaluation in a notes file', 'z0_leak',
         'One-step cos 0.975 and nmse 0.05 but shooting rmse stays at 0.92 (the size of z1), FID 171; std/mean of z0 fell to 0.14, KL switched off: x_t gives z1 away.')


def b30():
    r = R('b30')
    o = ["[cfg] text head: T5-XL pooled -> MLP(3) -> 4x32x32, no norm on output; vae: sd-vae-ft-ema (latents scaled)"]
    for s in range(0, 6001, 50):
        z0 = 595 + r.normal(0, 4) - 18 * (1 - math.exp(-s / 1500)); z1 = 59.4 + r.normal(0, .7)
        v = math.hypot(z0, z1)
        lf = v * v / 4096 * (.985 * math.exp(-s / 900) + .62 * (1 - math.exp(-s / 900))) * (1 + r.normal(0, .01))
        o.append(f"dbg {s:5d} ||z0||={z0:.1f} ||z1||={z1:.2f} ||v*||={v:.1f} std(z0)={z0/64:.3f} std(z1)={z1/64:.3f} flow={lf:.3f} gn={31*float(ln(r,1,.2)[0]):.1f} lr={1e-4*min(1,(s+1)/500):.1e}")
    put('dbg_norms.txt', '\n'.join(o) + '\n')
    case('h-b30', 'dbg_norms.txt', 'debug prints of norms', 'scale_mismatch',
         '||z0|| = 580-595 against ||z1|| = 59 (std 9.2 against 0.93, ten times apart) in every print; v* is entirely z0, flow loss of 50-85.')


def b31():
    r = R('b31')
    t = datetime(2025, 10, 2, 20, 11, 0)
    def P(m): return f"{t.strftime('%H:%M:%S')} [INFO] {m}"
    o = [P("using cached latents: latents_cache/*.npy (written by cache_latents.py, encode().sample * 0.18215)"), P("vae.config.scaling_factor = 0.18215"), P("model DiT-B/2, 131.2M, flow matching (v = x - eps)")]
    for s in range(100, 30001, 100):
        t += timedelta(seconds=21)
        l = .155 + .875 * (1 + s / 350) ** -.95
        sd = .1702 + r.normal(0, .0011)
        o.append(P(f"it {s:6d}  loss={l+r.normal(0,.006):.4f}  gn={.11*float(ln(r,1,.15)[0]):.3f}  x1: mean={-.002+r.normal(0,.0008):+.4f} std={sd:.4f} min={-.83+r.normal(0,.03):.2f} max={.95+r.normal(0,.04):.2f}  eps: std={1+r.normal(0,.0006):.4f}  lr=1.0e-04"))
        if s % 5000 == 0: o.append(P(f"   sample grid {s}: decoded mean={.46+r.normal(0,.004):.3f} std={.061+r.normal(0,.002):.3f} sharpness(lap)={.0021+r.normal(0,.0001):.4f}  (real batch decoded: mean=0.458 std=0.064 lap=0.0022; real pixels: mean=0.455 std=0.271 lap=0.0412)"))
    put('dit_cached_latents.log', '\n'.join(o) + '\n')
    case('h-b31', 'dit_cached_latents.log', 'own loop with latent statistics', 'latent_scale_factor',
         'Cached latents were already multiplied by 0.18215; std of x1 in training is 0.170 (= 0.93 x 0.18215), decoded images are flat and blurred also for real latents (std 0.06 instead of 0.27).', ['scale_mismatch'])


def b32():
    r = R('b32')
    o = ["In [14]: batch = next(iter(dl)); x = batch['pixel_values'].cuda(); print(x.min().item(), x.max().item(), x.mean().item())", "-1.0 1.0 -0.0731", "",
         "In [15]: z = vae.encode(x).latent_dist.sample(); print('z', tuple(z.shape), 'mean %.3f std %.3f' % (z.mean(), z.std()))", "z (16, 4, 64, 64) mean 0.214 std 5.368", "",
         "In [16]: print(vae.config.scaling_factor, trainer.cfg.latent_scale)", "0.18215 1.0", "",
         "In [17]: for i in range(4): print(i, 'z1 std per channel', z[i].std((1,2)).tolist())"]
    for i in range(4): o.append(f"{i} z1 std per channel " + str([round(float(v), 3) for v in np.array([4.9, 5.6, 5.1, 4.4]) * ln(r, 4, .06)]))
    o += ["", "In [18]: hist = pd.read_csv('flow_s2.csv'); print(hist.iloc[::8].to_string(index=False))", "   step  flow_loss  grad_norm      lr  z0_std  z1_std"]
    for s in range(0, 8001, 200):
        o.append(f"{s:7d} {5.1+24.7*(1+s/300)**-.9+r.normal(0,.25):10.4f} {6.1*float(ln(r,1,.2)[0]):10.4f} {1e-4:7.4f} {1+r.normal(0,.001):7.4f} {5.36+r.normal(0,.05):7.4f}")
    o += ["", "In [19]: img = pipe.decode(sample_heun(model, steps=40)); print('decoded: clipped pixels %.1f %%, mean %.3f' % (100*(img.abs()>=1).float().mean(), img.mean()))", "decoded: clipped pixels 71.6 %, mean 0.118", "",
          "In [20]: rec = vae.decode(z).sample; print('psnr vae.decode(z)  %.2f' % psnr(rec, x)); rec2 = pipe.decode(z); print('psnr pipe.decode(z) %.2f' % psnr(rec2, x))", "psnr vae.decode(z)  30.92", "psnr pipe.decode(z) 7.41"]
    put('notebook_cells.txt', '\n'.join(o) + '\n')
    case('h-b32', 'notebook_cells.txt', 'notebook cells copied as text', 'latent_scale_factor',
         'z1 has std 5.37 = 0.98/0.18215 because latent_scale is 1.0 in training, whereas pipe.decode divides by 0.18215: 72 % of pixels are clipped, PSNR 7.4 through the pipeline but 30.9 without the division.', ['scale_mismatch'])


def b33():
    r = R('b33')
    o = ["$ python tools/vae_smoke.py --n 40 --size 256", "vae: kl-f8 (4ch)  dtype fp32  scaling 0.18215", "idx   z.mean   z.std   z.min   z.max   psnr(dB)  ssim   lpips"]
    P = []
    for i in range(40):
        p = 12.4 + r.normal(0, .9); P.append(p)
        o.append(f"{i:3d}  {r.normal(.01,.03):+.3f}   {.97+r.normal(0,.05):.3f}  {-4.1+r.normal(0,.3):.2f}   {4.3+r.normal(0,.4):.2f}    {p:5.2f}    {.31+r.normal(0,.03):.3f}  {.64+r.normal(0,.03):.3f}")
    o += [f"mean psnr {np.mean(P):.2f}  min {min(P):.2f}  max {max(P):.2f}", "pixel in:  range [-1.000, 1.000] mean -0.061", "pixel out: range [-1.000, 1.000] mean -0.114", "", "$ python tools/fm_probe.py --ckpt last",]
    for t in (.1, .3, .5, .7, .9):
        c = .80 - .5 * (t - .5) ** 2 + r.normal(0, .004)
        o.append(f"t={t} cos={c:.3f} nmse={1-c*c:.3f} ratio={c+r.normal(0,.005):.3f}")
    o += ["endpoint rmse  K=8 0.412  K=16 0.371  K=32 0.358  K=64 0.354", "text cos (mean of 15 pairs) 0.214"]
    put('smoke_tests.txt', '\n'.join(o) + '\n')
    case('h-b33', 'smoke_tests.txt', 'terminal output of smoke tests', 'vae_roundtrip',
         'decode(encode(x)) gives 12.4 dB / SSIM 0.31 for all 40 images with latents of ordinary scale (std 0.97) and correct pixel range; velocity probe, endpoint error and text cosines are fine.')


PR = ["a cat", "a car", "a red apple", "an astronaut riding a horse", "a wooden house in the snow", "stock chart, infographic"]


def b34():
    r = R('b34')
    o = ["loading ckpt step_58000 (ema)", "[vae ] psnr=31.4 dB  z std=0.951", ""]
    for i in range(6):
        for j in range(i + 1, 6):
            o.append(f"[text] cos(mu({PR[i]!r}), mu({PR[j]!r})) = {.9972+r.normal(0,.0009):.4f}")
    o += ["", "[text] same for llm hidden (mean pooled): min 0.31 max 0.68", "[text] mu rms 0.902 +- 0.004, std 0.412", ""]
    for t in (.1, .37, .63, .9):
        c = .69 + .1 * t - .06 * t * t + r.normal(0, .004)
        o.append(f"[fm  ] t={t:.2f} cos(v_pred, v_tgt)={c:.3f} ratio={c+r.normal(0,.01):.3f}")
    o += ["", "train tail:"]
    for s in range(57000, 58001, 20):
        o.append(f"  {s} flow={.882+r.normal(0,.017):.4f} kl={.879+r.normal(0,.008):.4f} gn={.44*float(ln(r,1,.15)[0]):.3f} lr=8.1e-05")
    put('probe_58k.txt', '\n'.join(o) + '\n')
    case('h-b34', 'probe_58k.txt', 'debug probe of a checkpoint', 'text_ignored',
         'The means of six different prompts have pairwise cosines of 0.995-0.999 although the LLM states differ (0.31-0.68); VAE and one-step alignment are fine.')


def b35():
    r = R('b35')
    o = []
    for s in range(5000, 100001, 5000):
        l = pl([s], 1.1, .725, 6000, .9)[0]
        base = l + r.normal(0, .001)
        o.append(json.dumps({"ckpt": s, "split": "coco-val-2k", "mse_caption": round(float(base), 5), "mse_shuffled_caption": round(float(base + r.normal(0, .0003)), 5), "mse_empty_caption": round(float(base + r.normal(0, .0003)), 5),
                             "fid": round(float(24 + 120 * (1 + s / 8000) ** -1.1 + r.normal(0, .4)), 2), "clip_score": round(float(.1432 + r.normal(0, .0007)), 4), "clip_score_real": 0.3021, "text_emb_pairwise_cos": round(float(.412 + r.normal(0, .002)), 4), "cfg": 4.0}))
    put('eval_all.jsonl', '\n'.join(o) + '\n')
    case('h-b35', 'eval_all.jsonl', 'evaluation JSONL over checkpoints', 'condition_unused',
         'MSE with true, shuffled and empty captions agree within 0.0006 at all 20 checkpoints while MSE and FID improve; CLIP score stays at chance (0.143) with cfg 4; text embeddings differ (cos 0.41).')


def b36():
    r = R('b36')
    o = ["### sanity, iter 18000, val batch 32", "vae  : z range [-4.31, 4.88] mean 0.006 var 0.93, recon PSNR 30.27 dB", "text : pairwise cos 0.121 / 0.093 / 0.140 / 0.118 / 0.101 / 0.127", "sched: teacher Euler N=10 2.1e-13, N=50 8.8e-13, N=100 1.4e-12 (fp32)", ""]
    for t in np.linspace(.05, .95, 10):
        c = .062 + .02 * math.sin(3 * t) + r.normal(0, .006); q = .288 + r.normal(0, .006)
        o.append(f"align t={t:.2f}: cos={c:.3f} |v_pred|/|v_tgt|={q:.3f} nmse={1+q*q-2*q*c:.3f}")
    o += ["", "shoot (Euler from z0 to z1): " + "  ".join(f"N={n}: {m:.3f}" for n, m in [(10, 2.041), (25, 2.036), (50, 2.034), (100, 2.034)]) + "   (mse; |z1|^2 mean 0.93)", "",
          "last train lines"]
    for s in range(17000, 18001, 25):
        o.append(f"{s} L_fm {2.024+r.normal(0,.02):.4f} L_kl {.0121+r.normal(0,.0004):.4f} lr 1.00e-04 gn {.183*float(ln(r,1,.14)[0]):.3f}")
    put('sanity_18k.log', '\n'.join(o) + '\n')
    case('h-b36', 'sanity_18k.log', 'sanity script output', 'weak_field',
         'cos(v_pred, v_tgt) = 0.05-0.09 and |v_pred|/|v_tgt| = 0.29 at every t, nmse ~1.05, shooting error twice |z1|^2 for every N, while VAE, text and schedule pass.')


def b37():
    r = R('b37')
    o = ["(train.py) path: x_t = t*x1 + (1-t)*x0, x0 ~ N(0,1); sampler integrates dx/dt = v from t=0 to t=1"]
    for s in range(200, 24001, 200):
        l = pl([s], 1.96, .71, 1100, .8)[0] * (1 + r.normal(0, .011))
        o.append(f"step {s:6d}: loss {l:.4f}, grad {.3*float(ln(r,1,.13)[0]):.3f}, lr 1e-04")
        if s % 2000 == 0:
            c = math.sqrt(1 - l / 1.97) + r.normal(0, .003); q = c + r.normal(0, .004)
            o.append(f"  diag {s}: cos(v_pred, x1-x0) = {-c:.4f}   |v_pred|/|x1-x0| = {q:.3f}   nmse = {1+q*q+2*q*c:.3f}   sample |x| end = {2.4+.35*math.log10(s)+r.normal(0,.03):.3f} (data 0.74)")
    put('stdout_rf_base.txt', '\n'.join(o) + '\n')
    case('h-b37', 'stdout_rf_base.txt', 'own loop with periodic diagnostics', 'wrong_target',
         'Training loss falls normally (1.96 -> 0.8) but the prediction has cos -0.77 with x1 - x0, nmse ~2.8 with speed ratio 0.77: trained on the flipped sign; samples run away from the data.')


def b38():
    r = R('b38')
    o = ["step,flow_mse,v_tgt_rms,z0_z1_l2,z0_rms,z1_rms,flow_nmse,flow_cos,grad_norm,fid2k"]
    for s in range(0, 20001, 50):
        v = 1.30 * math.exp(-s / 3100) + .055
        nm = .47 + .5 * math.exp(-s / 300) + r.normal(0, .012)
        vv = v * (1 + r.normal(0, .008))
        fid = f"{291+r.normal(0,5):.1f}" if s % 2500 == 0 and s else ""
        z1 = .962 + r.normal(0, .004)
        z0 = math.sqrt(max(.1, .92 - .02 * v)) + r.normal(0, .004)
        o.append(f"{s},{nm*vv*vv:.6f},{vv:.5f},{vv*64:.4f},{z0:.4f},{z1:.4f},{nm:.4f},{math.sqrt(max(0,1-nm)):.4f},{.9*vv*float(ln(r,1,.15)[0]):.5f},{fid}")
    put('flow_diag_run4.csv', '\n'.join(o) + '\n')
    case('h-b38', 'flow_diag_run4.csv', 'own CSV', 'moving_target',
         'Flow MSE falls from 1.9 to 0.0015 only because v_tgt_rms falls from 1.4 to 0.057 (||z0-z1|| 92 -> 3.7); nmse stands at 0.47 and cos at 0.73; FID stays at ~290.')


def b39():
    r = R('b39')
    edges = np.linspace(0, 1, 11)
    o = ["val/per-t evaluation, 4096 images, ckpt 120k, EMA", "", "  t-bin        n     nmse     cos   ratio", "-" * 44]
    nm = [1.62, .58, .343, .322, .311, .308, .315, .338, .64, 1.91]
    cs = [.21, .66, .811, .824, .83, .832, .828, .814, .62, .13]
    for i in range(10):
        n = int(409 + r.integers(-25, 25))
        c = cs[i]
        q = c if 2 <= i <= 7 else (c + math.sqrt(max(0, c * c - 1 + nm[i])))
        o.append(f"  {edges[i]:.1f}-{edges[i+1]:.1f}   {n:5d}   {nm[i]+r.normal(0,.004):6.3f}   {c+r.normal(0,.003):5.3f}   {q:5.3f}")
    o += ["-" * 44, "", "same for older checkpoints (nmse):", "ckpt     " + "  ".join(f"t{i}" .rjust(5) for i in range(10))]
    for k in (20, 40, 60, 80, 100):
        f = 1 + .8 * math.exp(-k / 30)
        o.append(f"{k:>4}k    " + "  ".join(f"{(v*(1+.1*(f-1)) if v>1 else min(v*f,.99)):5.3f}" for v in nm))
    o += ["", "mean train loss 1.31, stable. FID 38.2 (Euler 50), colours off and fine detail noisy."]
    put('per_t_eval.txt', '\n'.join(o) + '\n')
    case('h-b39', 'per_t_eval.txt', 'per-t evaluation table', 't_edges',
         'nmse 0.31-0.34 and cos 0.83 for t in 0.2-0.8 but 1.6 / 1.9 and cos 0.21 / 0.13 in the first and last bin, at all checkpoints.')


def b40():
    r = R('b40')
    o = ["DDPM num_train_timesteps=1000, t ~ uniform{0..999}, eps-prediction, cosine schedule", ]
    for s in range(0, 12001, 100):
        tt = r.integers(0, 250, 64)
        l = pl([s], 1.0, .27, 400, .8)[0] + r.normal(0, .012)
        o.append(f"{s:05d} | eps_mse {l:.4f} | t: min {tt.min()} max {tt.max()} mean {tt.mean():.1f} std {tt.std():.1f} | x_t std {1+r.normal(0,.004):.3f} | gn {.3*float(ln(r,1,.15)[0]):.3f} | lr 1.0e-04")
    o.append("sample 12000: 250 DDIM steps from pure noise -> grey noise, fid1k 402.6")
    put('ddpm_coco64.log', '\n'.join(o) + '\n')
    case('h-b40', 'ddpm_coco64.log', 'own DDPM loop with t statistics', 'time_sampling',
         't should be uniform on 0..999 (mean 500, std 289) but each batch shows max below 250, mean ~125, std ~72.')


def b41():
    r = R('b41')
    t = datetime(2025, 11, 8, 16, 0, 1)
    o = ["{'image_size': 256, 'vae': 'kl-f8', 'vae_input_range': [-1.0, 1.0], 'center_crop': True, 'random_flip': True, 'max_train_steps': 20000}"]
    for s in range(50, 6001, 50):
        t += timedelta(seconds=27)
        o.append(f"{t.strftime('%Y-%m-%d %H:%M:%S')} step {s}/20000 loss {.74+.9*(1+s/300)**-.9+r.normal(0,.015):.4f} pixel_values[min {0:.3f} max {1:.3f} mean {.462+r.normal(0,.012):.3f} std {.274+r.normal(0,.006):.3f}] latents[mean {.31+r.normal(0,.02):.3f} std {.79+r.normal(0,.01):.3f}] grad {.29*float(ln(r,1,.14)[0]):.3f} lr {1e-4:.1e}")
        if s % 2000 == 0: o.append(f"{t.strftime('%Y-%m-%d %H:%M:%S')} validation: decoded samples mean 0.73 std 0.13 (after (x+1)/2); real images mean 0.46 std 0.27")
    put('train_recap256.log', '\n'.join(o) + '\n')
    case('h-b41', 'train_recap256.log', 'own accelerate loop with batch statistics', 'input_range',
         'pixel_values are in [0, 1] (mean 0.46, std 0.27) in every line although the VAE is configured for [-1, 1]; latents are shifted (mean 0.31, std 0.79) and decoded samples are washed out.')


def b42():
    r = R('b42')
    be = np.linspace(1e-4, .002, 1000)
    ac = np.cumprod(1 - be)
    f = lambda a: '[' + ', '.join(f'{v:.5f}' for v in a) + ']'
    o = ["config: diffusion: {steps: 1000, noise_schedule: linear, beta_start: 0.0001, beta_end: 0.02, predict: eps}", f"betas[:4]  = {f(be[:4])}", f"betas[-4:] = {f(be[-4:])}", f"alphas_cumprod[:5]  = {f(ac[:5])}", f"alphas_cumprod[-5:] = {f(ac[-5:])}",
         f"sqrt_alphas_cumprod[-1] = {math.sqrt(ac[-1]):.5f}   sqrt_one_minus_alphas_cumprod[-1] = {math.sqrt(1-ac[-1]):.5f}", "start training"]
    for s in range(0, 20001, 100):
        o.append(f"[{s:6d}] eps_loss={.118+.88*(1+s/250)**-.95+r.normal(0,.007):.4f} gnorm={.2*float(ln(r,1,.15)[0]):.3f} lr=1.0e-04 x_T(t=999) corr with x_0={math.sqrt(ac[-1])+r.normal(0,.004):.3f}")
        if s and s % 5000 == 0: o.append(f"[{s:6d}] ddim50 from N(0,1): fid5k={118+r.normal(0,3):.1f}  (from q(x_999|x_0) of real images: fid5k={21+r.normal(0,.6):.1f})")
    put('guided_like_log.txt', '\n'.join(o) + '\n')
    case('h-b42', 'guided_like_log.txt', 'guided-diffusion like stdout', 'schedule_constants',
         'Configured beta_end 0.02, but the printed betas end at 0.002 and alphas_cumprod ends at 0.35 instead of ~4e-5; x_999 still has correlation 0.59 with x_0; sampling from pure noise fails.')


def b43():
    r = R('b43')
    d = 200000
    x0 = r.normal(0, 1, d).astype(np.float32)
    v = (r.normal(0, .58, d)).astype(np.float32)
    sig = lambda N: np.diff((lambda u: (u - u[0]) / (u[-1] - u[0]))(1 / (1 + np.exp(-np.linspace(-3, 3, N + 1)))))
    def dts(N):
        e = np.linspace(.002, .998, N + 1); u = np.log(e / (1 - e)); u = (u - u[0]) / (u[-1] - u[0]); return np.diff(u)
    o = ["# generate(): sampler=euler steps=400, dtype=torch.bfloat16, seed 3"]
    N = 400
    dt = dts(N)
    x = bf16(x0 * 1.0)
    def run(x, cast, tag):
        for k in range(N):
            vv = v * (1 - .04 * k / N)
            if k % 8 == 0 or k == N - 1: o.append(f"{tag} k={k:03d} |x|={np.abs(x).mean():.4f} |v|={np.abs(vv).mean():.4f} dt={dt[k]:.5f} max|x-x_prev|={run.dx:.5f}")
            xn = cast(x + cast(vv * np.float32(dt[k])))
            run.dx = float(np.abs(xn - x).max()); x = xn
        return x
    run.dx = 0.
    xb = run(x, bf16, "bf16")
    o.append("# same weights, same seed, x kept in torch.float32 (model still autocast bf16)")
    run.dx = 0.
    xf = run(x.copy(), lambda a: a.astype(np.float32), "fp32")
    o += [f"# |x_end(bf16) - x_end(fp32)| mean = {np.abs(xb-xf).mean():.4f}", "", "# teacher field v* = x1 - x0, x in bf16, mse(x_end, x1)"]
    x1 = r.normal(0, 1, d).astype(np.float32)
    vs = x1 - x0
    for n in (5, 10, 20, 50, 100, 200, 400):
        z = bf16(x0)
        for k in range(n): z = bf16(z + bf16(bf16(vs) * np.float32(1 / n)))
        o.append(f"N={n:<4d} {float(((z-x1)**2).mean()):.3e}")
    put('sampler_trace_400.txt', '\n'.join(o) + '\n')
    case('h-b43', 'sampler_trace_400.txt', 'sampler trace, two precisions', 'bf16_rounding',
         'With x in bf16 the 400-step state stands nearly still over the middle 250 steps (|x| 0.809 -> 0.811) although |v|*dt is not 0; in fp32 with the same weights it moves on (0.818 -> 0.838); the teacher Euler error in bf16 grows with N from 3e-5 (5 steps) to 0.36 (400 steps).')


def b44():
    r = R('b44')
    o = ["sampler: rectified-flow euler, steps=28, t from 0 (noise) to 1 (data), spacing=uniform-symmetric, guidance=3.5"]
    ts = np.linspace(0, 1, 29) ** 2.2 * .58
    ts[12] = ts[11]; ts[20] = ts[19] - .008
    dt = np.diff(ts)
    x = .7979
    for k in range(28):
        vv = .93 - .12 * k / 28 + r.normal(0, .003)
        o.append(f"i={k:02d} t={ts[k]:.4f} dt={dt[k]:+.4f} |x|={x:.4f} |v|={vv:.4f}")
        x = .7979 * math.sqrt((.93 * ts[k + 1]) ** 2 + (1 - ts[k + 1]) ** 2) + r.normal(0, .0004)
    o += [f"done: t_end={ts[-1]:.4f} sum(dt)={dt.sum():.4f} |x_end|={x:.4f}  (latents of real images: |x|=0.742)", "decoded: residual noise visible, psnr to 200-step reference 14.8 dB"]
    put('rf_sampler_print.txt', '\n'.join(o) + '\n')
    case('h-b44', 'rf_sampler_print.txt', 'sampler print', 'step_schedule',
         'The grid should be uniform-symmetric on 0..1, but dt starts at 0.0004 and grows to 0.04, one dt is 0, one is negative, and sum(dt) is 0.58; the sampler stops at t = 0.58 with noise left.')


def b45():
    r = R('b45')
    o = []
    for s in range(5000, 60001, 5000):
        c = .885 - .16 * math.exp(-s / 9000) + r.normal(0, .002)
        gap = [.71, .83, .94, 1.01, 1.05]
        e = [(v + .05 * (1 - math.exp(-s / 20000))) * (1 + r.normal(0, .006)) for v in gap]
        o.append(f"[eval {s:>6}] flow/cos={c:.4f} flow/nmse={1-c*c:.4f} flow/speed_ratio={c+r.normal(0,.003):.3f} std/mean={.981+r.normal(0,.003):.3f} mu/rms={.42+r.normal(0,.004):.3f} " + " ".join(f"endpt_rmse@{K}={v:.3f}" for K, v in zip((4, 8, 16, 32, 64), e)) + f" loss/val={(1-c*c)*2.33:.4f}")
    o += ["", "path: alpha(t)=sin(pi t/2), beta(t)=cos(pi t/2), target alpha' z1 + beta' z0", "generate(): z += v * dt * (pi/2) ; t_i = (i+0.5)/K"]
    o = o[:-2] + ["path: alpha(t)=sin(pi t/2), beta(t)=cos(pi t/2)", "vae psnr 30.1 dB, z1 std 0.94, text cos 0.19"]
    put('eval_endpoints.log', '\n'.join(o) + '\n')
    case('h-b45', 'eval_endpoints.log', 'evaluation lines with endpoint errors', 'train_infer_mismatch',
         'One-step cos 0.88 and nmse 0.22 keep improving, z0 is not narrow (std 0.98), but the endpoint error rises with K (0.75 at K=4 to 1.09 at K=64) at each checkpoint.')


# ---------------------------------------------------------------- healthy
def h01():
    r = R('h01')
    N = 1500
    L = ["07/12/2025 10:02:11 - INFO - __main__ - ***** Running training *****\n", "07/12/2025 10:02:11 - INFO - __main__ -   Num examples = 28\n", "07/12/2025 10:02:11 - INFO - __main__ -   Num Epochs = 54\n", f"07/12/2025 10:02:11 - INFO - __main__ -   Total optimization steps = {N}\n", f"\rSteps:   0%|          | 0/{N} [00:00<?, ?it/s]"]
    el = 0
    for s in range(1, N + 1):
        dt = 2.31 + abs(r.normal(0, .05)); el += dt
        t = 1 / (1 + math.exp(-r.normal()))
        l = (.28 + .42 * (t - .45) ** 2 * 4) * float(ln(r, 1, .22)[0]) * (1 - .10 * (1 - math.exp(-s / 400)))
        lr = 1e-4 * (.5 * (1 + math.cos(math.pi * max(0, s - 50) / (N - 50))) if s > 50 else s / 50)
        L.append(f"\rSteps: {100*s//N:3d}%|{bar(s/N)}| {s}/{N} [{hms(el)}<{hms((N-s)*2.33)},  {dt:.2f}s/it, loss={g(l,3)}, lr={g(lr,3)}]")
        if s % 250 == 0:
            L.append(f"\n07/12/2025 {(datetime(2025,7,12,10,2,20)+timedelta(seconds=el)).strftime('%H:%M:%S')} - INFO - __main__ - Running validation... \n Generating 4 images with prompt: a photo of sks backpack on a beach.\n")
            L.append(f"val DINO-I {[.512,.604,.651,.672,.679,.681][s//250-1]:.3f} CLIP-I {[.731,.782,.803,.811,.812,.814][s//250-1]:.3f} CLIP-T {[.318,.316,.315,.313,.314,.313][s//250-1]:.3f}\n")
    L.append("\n07/12/2025 11:01:31 - INFO - __main__ - Saving LoRA weights to flux-sks-lora\n")
    put('flux_dreambooth_lora.stdout', ''.join(L))
    case('h-h01', 'flux_dreambooth_lora.stdout', 'diffusers DreamBooth LoRA (Flux) tqdm stdout', 'none',
         'Loss per step is very noisy and nearly flat (normal for a LoRA with random t), LR cosine goes to 0 at the end, subject fidelity rises and levels out.')


def h02():
    r = R('h02')
    N = 400000
    L = []
    el = 0
    for s in range(100, 120001, 100):
        l = pl([s], 1.03, .765, 3500, .8)[0] + r.normal(0, .011)
        p = -.61 + .58 * (1 + s / 4000) ** -.7 + r.normal(0, .004)
        gn = .11 * float(ln(r, 1, .16)[0]) + .5 * math.exp(-s / 600)
        el = s * .31
        L.append(f"Steps: {100*s//N:3d}%|{bar(s/N)}| {s}/{N} [{hms(el)}<{hms((N-s)*.31)},  3.2{int(r.integers(0,9))}it/s, grad_norm={gn:.4f}, loss={l:.4f}, proj_loss={p:.4f}]")
        if s % 10000 == 0: L.append(f"INFO:__main__:Generating EMA samples done.\nINFO:__main__:FID-10k {9.4+150*(1+s/8000)**-1.25+r.normal(0,.15):.2f}")
    put('repa_xl2_console.txt', '\n'.join(L) + '\nSteps:  30%|███       | 120')
    case('h-h02', 'repa_xl2_console.txt', 'REPA train.py progress lines', 'none',
         'Healthy SiT-XL/2 + REPA; proj_loss is negative by construction (-0.05 -> -0.55), the run is still going (30 %), last line cut off.')


def h03():
    r = R('h03')
    o = ["global_step,epoch,train/total_loss,train/rec_loss,train/nll_loss,train/kl_loss,train/g_loss,train/d_weight,train/disc_loss,train/logits_real,train/logits_fake,train/logvar,val/rec_loss,val/psnr"]
    for s in range(0, 80001, 100):
        on = s > 30000
        rec = pl([s], .62, .112, 900, .75)[0] + (.012 * math.exp(-(s - 30000) / 4000) + .004 if on else 0) + r.normal(0, .004)
        kl = 15800 + 14500 * (1 - math.exp(-s / 6000)) + r.normal(0, 240)
        gl = -.25 + r.normal(0, .28) + .55 * math.exp(-((s - 31000) / 1500.) ** 2) if on else 0.0
        dw = abs(420 + r.normal(0, 130)) if on else 0.0
        dl = max(.3, .93 + r.normal(0, .07) - .1 * math.exp(-(s - 30000) / 3000)) if on else 0.0
        lr_, lf_ = (.31 + r.normal(0, .2), -.27 + r.normal(0, .2)) if on else (0, 0)
        n = rec * 3 * 256 * 256
        tot = n + 1e-6 * kl + dw * gl * .5
        v = f"{rec+.003:.5f},{20.2+10*math.log10(.62/rec)*.95:.3f}" if s % 4000 == 0 and s else ","
        o.append(f"{s},{s//5005},{tot:.2f},{rec:.5f},{n:.2f},{kl:.1f},{gl:.4f},{dw:.2f},{dl:.4f},{lr_:.4f},{lf_:.4f},0.0,{v}")
    put('kl_f8_gan.csv', '\n'.join(o) + '\n')
    case('h-h03', 'kl_f8_gan.csv', 'LDM autoencoder metrics CSV', 'none',
         'KL-f8 VAE: the discriminator starts at 30k (disc terms are 0 before by design), g_loss changes sign, total_loss becomes noisier; the KL sum (not per dim) rises to its usual 30k and levels; PSNR rises to 26 dB.')


def h04():
    r = R('h04')
    rows = [['step', 'epoch', 'lr', 'fm/train', 'fm/val', 'fm/val_ema', 'time_s']]
    base = lambda s: float(pl([s], 1.5, .66, 600, .85)[0])
    for s in range(20, 20001, 20):
        rows.append([s, s // 800, '', f"{base(s)*(1+r.normal(0,.03)):.6f}", '', '', f"{s*.41:.1f}"])
        if s % 100 == 0: rows.append([s, s // 800, f"{float(cosine([s],20000,500,3e-4)[0]):.4e}", '', '', '', ''])
        if s % 800 == 0:
            e = base(s) + .012
            lag = .9 * math.exp(-s / 1800)
            rows.append([s, s // 800, '', '', f"{e+r.normal(0,.006):.6f}", f"{e-.006+lag+r.normal(0,.002):.6f}", ''])
    s = io.StringIO(); csv.writer(s).writerows(rows)
    put('csv_logs/metrics.csv', s.getvalue())
    case('h-h04', 'csv_logs/metrics.csv', 'CSV logger with sparse cells', 'none',
         'Each row fills only some of the columns (sparse logging, not lost metrics). EMA validation lags at first (1.3 at step 800) and overtakes the raw weights after ~11k steps. Validation plateaus with noise.')


def h05():
    r = R('h05')
    st = np.arange(0, 50001, 25)
    n = len(st)
    loss = pl(st, 1.98, .58, 900, .8) * (1 + ar(r, n, .25, .02))
    k = 1310
    loss[k:k + 9] *= [1.4, 3.9, 2.7, 1.9, 1.5, 1.3, 1.15, 1.08, 1.03]
    o = ['"Step","mmdit-s/cc12m - fm_loss","mmdit-s/cc12m - fm_loss__MIN","mmdit-s/cc12m - fm_loss__MAX"'] + [f'"{a}","{b}","{b}","{b}"' for a, b in zip(st, loss)]
    put('wandb_export_fmloss.csv', '\n'.join(o) + '\n')
    case('h-h05', 'wandb_export_fmloss.csv', 'W&B chart CSV export (one metric)', 'none',
         'Falling flow loss with one spike to 4 times the level at step 32.8k that recovers within 200 steps.')


def h06():
    r = R('h06')
    T = 30000
    o = ["[NeMo I 2025-03-02 08:11:42 nemo_logging:393] Loading DiT-L text-to-image config", "[NeMo W 2025-03-02 08:11:44 nemo_logging:405] `precision` bf16-mixed requested, grad scaler disabled", "[NeMo I 2025-03-02 08:12:01 megatron_base:821] scheduler: WSD (warmup 1000, stable 23000, decay 6000)"]
    for s in range(0, T, 20):
        lr = 2e-4 * (s / 1000 if s < 1000 else 1 if s < 24000 else max(0., (T - s) / 6000))
        l = float(pl([s], 1.74, .66, 900, .75)[0]) - (.045 * min(1, (s - 24000) / 6000) ** .7 if s > 24000 else 0) + r.normal(0, .012)
        o.append(f"Training epoch {s//7500}, iteration {s}/{T-1} | lr: {lr:.4g} | global_batch_size: 512 | global_step: {s} | reduced_train_loss: {l:.4f} | grad_norm: {.22*float(ln(r,1,.14)[0])+1.1*math.exp(-s/500):.3f} | train_step_timing in s: {1.284+r.normal(0,.01):.3f} | consumed_samples: {(s+1)*512}")
        if (s + 20) % 2000 == 0: o.append(f"Validation: iteration 64/64 | val_loss: {float(pl([s],1.74,.666,900,.75)[0])-(.045*min(1,(s-24000)/6000)**.7 if s>24000 else 0)+r.normal(0,.003):.4f}")
    o.append("`Trainer.fit` stopped: `max_steps=30000` reached.")
    put('nemo_dit_l.log', '\n'.join(o) + '\n')
    case('h-h06', 'nemo_dit_l.log', 'NeMo/Megatron-Lightning stdout', 'none',
         'WSD schedule: LR starts at 0, is constant, goes to nearly 0 in the decay phase (loss drops a little more); run ends at its planned max_steps.')


def h07():
    r = R('h07')
    t = datetime(2025, 6, 6, 6, 6, 6)
    def T(): return f"[{t.strftime('%Y-%m-%d %H:%M:%S')},{int(r.integers(0,999)):03d}] [INFO]"
    o = []
    scale, sk, good = 65536, 0, 0
    for s in range(1, 9001):
        t += timedelta(seconds=1.1)
        ov = (s <= 5) or (good > 1000 and scale >= 32768 and r.random() < .02)
        if ov:
            o.append(f"{T()} [fused_optimizer.py:362:_update_scale] Grad overflow on iteration {s}: Reducing dynamic loss scale from {scale} to {scale//2}")
            scale //= 2; sk += 1; good = 0
        else:
            good += 1
            if good % 2000 == 0:
                scale *= 2
        if s % 20 == 0:
            l = float(pl([s], 1.05, .148, 160, .95)[0]) * (1 + r.normal(0, .035))
            o.append(f"{T()} [logging.py:128:log_dist] [Rank 0] step={s}, skipped={sk}, lr=[{1e-4*min(1,s/300):.6g}], mom=[(0.9, 0.95)]")
            o.append(f"{{'step': {s}, 'eps_mse': {l:.5f}, 'scale': {scale}, 'gn': {.4*float(ln(r,1,.15)[0]):.4f}}}")
    put('ds_zero1.out', '\n'.join(o) + '\n')
    case('h-h07', 'ds_zero1.out', 'DeepSpeed ZeRO-1 fp16 stdout', 'none',
         'Five overflows at the very beginning and one much later after the scale had grown again (normal dynamic loss scaling); 0.1 % of steps skipped; eps loss 1.05 -> 0.17.')


def h08():
    r = R('h08')
    o = []
    f = lambda s: .139 + .012 * math.exp(-s / 900)
    def seg(a, b):
        for s in range(a, b + 1, 10):
            o.append(str({'loss': round(f(s) * float(ln(r, 1, .16)[0]), 4), 'grad_norm': round(.081 * float(ln(r, 1, .3)[0]), 5), 'learning_rate': g(float(cosine([s], 8000, 200, 1e-4)[0]), 8), 'epoch': round(s / 640, 3)}))
            if s % 400 == 0: o.append(str({'eval_loss': round(f(s) + .004 + r.normal(0, .0009), 5), 'eval_clip_t': round(.2871 + .016 * (1 - math.exp(-s / 1500)) + r.normal(0, .0008), 4), 'eval_runtime': round(61 + r.random(), 2), 'epoch': round(s / 640, 3)}))
    seg(10, 2930); o.append("slurmstepd: error: *** JOB 90211 CANCELLED DUE TO PREEMPTION ***\nResuming from checkpoint-2800"); seg(2810, 5120)
    o.append("slurmstepd: error: *** JOB 90244 CANCELLED DUE TO PREEMPTION ***\nResuming from checkpoint-5000"); seg(5010, 8000)
    o.append(str({'train_runtime': 20412.7711, 'train_samples_per_second': 12.54, 'train_steps_per_second': 0.392, 'train_loss': 0.1407, 'epoch': 12.5}))
    put('sdxl_lora_preempted.txt', '\n'.join(o) + '\n')
    case('h-h08', 'sdxl_lora_preempted.txt', 'HF Trainer dict lines, preempted twice', 'none',
         'SDXL LoRA: loss starts at its pretrained level and falls only slightly, steps overlap after two clean resumes (LR and loss continue), LR ends at 0 by cosine, CLIP-T improves, planned end.')


def h09():
    r = R('h09')
    N = 60
    e = np.linspace(.01, .99, N + 1); u = np.log(e / (1 - e)); u = (u - u[0]) / (u[-1] - u[0]); dt = np.diff(u)
    o = ["[sample] 2 prompts, logit-spaced grid (dense in the middle), fp32, cfg 1.0"]
    t = 0
    for k in range(N):
        ax = .7979 * math.sqrt((1 - t) ** 2 + (.94 * t) ** 2 + 2 * .12 * t * (1 - t))
        av = .7979 * 1.3 * (.84 - .1 * (t - .5) ** 2)
        o.append(f"[sample] {k:>2}/{N} t={t:.4f} dt={dt[k]:.4f} mean|x|={ax+r.normal(0,.0003):.4f} mean|v|={av+r.normal(0,.0008):.4f}")
        t += dt[k]
    o.append(f"[sample] end t={t:.4f} mean|x|={.7979*.94:.4f} (train latents mean|x|={.7979*.94+.003:.4f}) clip 0.301 / 0.287")
    put('sample_dbg.log', '\n'.join(o) + '\n')
    case('h-h09', 'sample_dbg.log', 'sampler print', 'none',
         'Non-uniform but symmetric dt that sums to 1; |x| dips in the middle of the path as it must for a straight path and ends at the size of the data latents.')


def h10():
    r = R('h10')
    n = 18
    sg = np.array([(80 ** (1 / 7) + i / (n - 1) * (.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(n)] + [0.])
    o = ["edm heun sampler, rho=7, sigma_max=80, sigma_min=0.002, S_churn=0, 35 NFE"]
    for b in range(6):
        o.append(f"batch {b} (seeds {b*64}-{b*64+63})")
        for i in range(n):
            xs = math.sqrt(sg[i] ** 2 + .25) + r.normal(0, .0005)
            o.append(f"  i={i:2d} sigma={sg[i]:9.4f} -> {sg[i+1]:9.4f}  x.std={xs:8.4f}  D.std={.5*math.sqrt(.25/(.25+sg[i]**2*.02))*.98+r.normal(0,.002):.4f}  d.std={1-.35/(1+sg[i])+r.normal(0,.002):.4f}")
        o.append(f"  final x.std={.5+r.normal(0,.004):.4f} min={-1.03+r.normal(0,.01):.3f} max={1.04+r.normal(0,.01):.3f}  nan=0")
    o.append("fid50k_full 2.07")
    put('edm_sample_trace.txt', '\n'.join(o) + '\n')
    case('h-h10', 'edm_sample_trace.txt', 'EDM sampler trace', 'none',
         'x starts with std 80 because sigma_max is 80 (EDM), step sizes are strongly asymmetric by the rho = 7 schedule as configured, ends at data std 0.5 with FID 2.07.')


def h11():
    r = R('h11')
    o = ["2025-09-24  checks before the long run (ckpt 90k, EMA)", "", "1. VAE: z range [-4.62, 5.11] mean -0.011 var 0.97 | PSNR 31.62 dB | decode(z) sharp, decode(z*sf) blurred (as expected)", "2. pixels in: min -1.000 max 1.000 mean -0.084", "3. text:"]
    for a, b, c in [("a cat", "a car", .231), ("a cat", "a red apple", .187), ("a car", "a red apple", .204), ("a cat", "a kitten", .742)]: o.append(f"   cos({a}, {b}) = {c}")
    o.append("4. one-step:")
    for t in (.05, .2, .35, .5, .65, .8, .95):
        c = .83 - .35 * (t - .5) ** 2 + r.normal(0, .003)
        o.append(f"   t={t:.2f} cos={c:.3f} ratio={c+r.normal(0,.004):.3f} nmse={1-c*c:.3f}   shuffled caption: cos={c-.061+r.normal(0,.004):.3f}")
    o += ["5. shooting mse  N=5 0.342  N=10 0.291  N=25 0.268  N=50 0.262  N=100 0.261", "6. teacher Euler, fp32: N=5 3.1e-14  N=10 6.6e-14  N=20 1.2e-13  N=50 2.9e-13  N=100 5.8e-13", "7. norms: |z0| 63.8  |z1| 62.9  |x_t| 47.1 (t~U)  |v*| 87.2", "8. posterior: mu rms 0.61, std mean 0.79 (min 0.58 max 0.97), kl/dim 0.233", "9. ema vs raw val mse: 0.6021 / 0.6134", "", "t hist (20k draws): mean 0.4997 std 0.2889", "dt: 50 x 0.02, sum 1.0000"]
    put('checks_0924.md', '\n'.join(o) + '\n')
    case('h-h11', 'checks_0924.md', 'notes with the results of checks', 'none',
         'All checks pass: PSNR 31.6, text cosines moderate (0.74 only for cat/kitten), cos 0.8, shooting error falls with N, fp32 teacher error at 1e-13 (its growth with N is float32 round-off), norms agree.')


def h12():
    r = R('h12')
    o = []
    for s in range(0, 50001, 100):
        lf = pl([s], 1.95, .72, 1500, .8)[0] * (1 + r.normal(0, .012))
        c = math.sqrt(max(.0004, 1 - lf / 1.96))
        ht = 4.1 + 2.3 * math.exp(-s / 4000) + r.normal(0, .05); hs = 4.5 + 3.7 * math.exp(-s / 3000) + r.normal(0, .05)
        ld = ht + .62 + 1.9 * math.exp(-s / 3000) + abs(r.normal(0, .03))
        mu = .58 + .2 * math.exp(-s / 2500) + r.normal(0, .006); sd = .88 + .1 * math.exp(-s / 3000) + r.normal(0, .003)
        kw = 1e-2 * min(1, s / 5000)
        kl = .5 * (mu ** 2 * 1.56 + sd ** 2 - 1 - 2 * math.log(sd))
        gf = (.48 + 1.1 * math.exp(-s / 700)) * float(ln(r, 1, .12)[0]); gd = gf * .31 * float(ln(r, 1, .15)[0]); gk = gf * (.13 * kw / 1e-2) * float(ln(r, 1, .15)[0])
        d = {"iter": s, "L/flow": lf, "L/dino": ld, "L/kl": kl, "w/kl": kw, "H/teacher": ht, "H/student": hs, "mu_abs": mu, "std_mean": sd, "flow_cos": c, "flow_nmse": 1 - c * c, "G/flow": gf, "G/dino": gd, "G/kl": gk, "G/all": math.sqrt(gf * gf + gd * gd + gk * gk), "upd/z_head": 3.1e-4 * float(ln(r, 1, .15)[0]), "upd/flow_head": 2.2e-4 * float(ln(r, 1, .15)[0]), "lr": g(float(cosine([s], 60000, 1000, 1e-4, 1e-6)[0]), 4)}
        if s % 5000 == 0 and s: d.update({"cond_gain": round(.055 * (1 - math.exp(-s / 9000)) + r.normal(0, .002), 4), "rmse@8": round(.52 + .3 * math.exp(-s / 8000), 3), "rmse@32": round(.46 + .3 * math.exp(-s / 8000), 3)})
        o.append(json.dumps({k: (g(v, 5) if isinstance(v, float) else v) for k, v in d.items()}))
    put('ret_dump.jsonl', '\n'.join(o) + '\n')
    case('h-h12', 'ret_dump.jsonl', 'JSONL of a ret dictionary', 'none',
         'Three-loss run (K = 8192) in order: KL weight warms up over 5k steps so that its gradient share is small only at the beginning, entropies ordinary, update ratios 2-3e-4, rmse falls with K, condition gain positive.')


def h13():
    r = R('h13')
    st = np.arange(100, 60001, 100)
    n = len(st)
    w = 1748772000 + st * .77 + np.where(st > 27000, 5400, 0)
    loss = pl(st, .98, .158, 300, .9) * (1 + ar(r, n, .1, .05))
    d = 'tensorboard_download'
    for nm, v in [('Loss_train', loss), ('GradNorm', .17 * ln(r, n, .2) + .6 * np.exp(-st / 400)), ('LR', 1e-4 * np.minimum(1, st / 2000))]:
        put(f'{d}/{nm}.csv', 'Wall time,Step,Value\n' + ''.join(f"{a:.3f},{b},{float(np.float32(c))!r}\n" for a, b, c in zip(w, st, v)))
    es = np.arange(5000, 60001, 5000)
    put(f'{d}/FID_5k.csv', 'Wall time,Step,Value\n' + ''.join(f"{w[st==s][0]+200:.3f},{s},{float(np.float32(17.8+95*(1+s/6000)**-1.3+r.normal(0,.7)))!r}\n" for s in es))
    case('h-h13', 'tensorboard_download', 'TensorBoard CSV downloads (folder)', 'none',
         'Healthy eps-prediction DiT; LR constant after warm-up; a 1.5 h pause in the wall time (restart) has no effect on the values; FID falls with noise and one or two small up-ticks at the end.')


def h14():
    r = R('h14')
    o = ["run_id,key,value,step,timestamp"]
    rid = 'c41de0aa71'
    for s in range(0, 4001, 5):
        ts = 1758009600000 + s * 2400
        o.append(f"{rid},train.loss,{float(pl([s],.61,.405,200,.8)[0])*(1+r.normal(0,.09)):.6f},{s},{ts}")
        if s % 20 == 0: o.append(f"{rid},train.lr,{float(cosine([s],4000,100,5e-5,5e-7)[0]):.4e},{s},{ts}")
        if s % 200 == 0: o.append(f"{rid},valid.loss,{float(pl([s],.60,.412,200,.8)[0])+r.normal(0,.006):.6f},{s},{ts+900}")
        if s % 1000 == 0: o.append(f"{rid},valid.hps_v2,{.2712+.011*(1-math.exp(-s/900)):.5f},{s},{ts+30000}")
    put('mlflow_metrics.csv', '\n'.join(o) + '\n')
    case('h-h14', 'mlflow_metrics.csv', 'MLflow metrics as long CSV', 'none',
         'SD3 fine-tune in long format: noisy train loss falls 0.61 -> 0.43, validation follows and plateaus, LR decays by cosine to 5e-7 at the planned end.')


def h15():
    r = R('h15')
    o = ["srun: job 55120 queued and waiting for resources", "srun: job 55120 has been allocated resources", "[W socket.cpp:464] [c10d] The client socket cannot be initialized to connect to [node-1]:29500 (errno: 97 - Address family not supported by protocol)."]
    off = r.normal(0, .02, 8)
    for s in range(0, 12001, 50):
        b = float(pl([s], 1.92, .70, 450, .75)[0])
        for k in r.permutation(8):
            o.append(f"{k}: [gpu{k}] s={s} l={b+r.normal(0,.035)+off[k]*.2:.4f} gn={.31*float(ln(r,1,.1)[0])+math.exp(-s/300):.3f}")
        if s == 5300: o.append("3: [rank3]:[W830 ProcessGroupNCCL.cpp:1168] Warning: watchdog heartbeat delayed 31 s (checkpoint in progress)")
        if s % 2000 == 0: o.append(f"0: [gpu0] saved s={s} (allreduced l={b:.4f})")
    o.append("0: [gpu0] s=12050 l=0.8")
    put('srun_55120.txt', '\n'.join(o))
    case('h-h15', 'srun_55120.txt', 'srun output with labels of 8 ranks', 'none',
         'Interleaved lines of eight ranks in random order with per-rank noise; harmless socket and watchdog warnings; loss falls 1.92 -> 0.78; log copied while running.')


def h16():
    r = R('h16')
    o = ["CosineAnnealingWarmRestarts(T_0=5000, T_mult=2, eta_min=1e-6), base 2e-4"]
    for s in range(0, 35001, 50):
        if s < 5000: a, T = 0, 5000
        elif s < 15000: a, T = 5000, 10000
        else: a, T = 15000, 20000
        q = (s - a) / T
        lr = 1e-6 + (2e-4 - 1e-6) * .5 * (1 + math.cos(math.pi * min(1, q)))
        l = float(pl([s], 1.6, .60, 800, .8)[0]) + .045 * (lr / 2e-4 - .5) + r.normal(0, .011)
        o.append(f"ep {s//1100:02d} it {s:05d} | L {l:.4f} | lr {lr:.3e} | ‖g‖ {.26*float(ln(r,1,.13)[0])+.9*math.exp(-s/400):.3f}" + (f" | val {l-.045*0+.01:.4f}" if s % 2500 == 0 and s else ""))
    put('sgdr_run.txt', '\n'.join(o) + '\n')
    case('h-h16', 'sgdr_run.txt', 'own loop with cosine warm restarts', 'none',
         'Two configured warm restarts at 5k and 15k: loss goes up by ~0.04 each time and falls below its earlier minimum within the cycle (0.77 -> 0.67 -> 0.63).')


def h17():
    r = R('h17')
    o = ["epoch,train_mse,val_mse,val_fid2k,lr,sec"]
    best = 9
    for e in range(1, 121):
        tr = float(pl([e], 1.02, .42, 5, .8)[0]) + r.normal(0, .006)
        va = float(pl([e], 1.03, .455, 5, .85)[0]) + r.normal(0, .011)
        o.append(f"{e},{tr:.5f},{va:.5f},{(29+110*(1+e/6)**-1.2+r.normal(0,1.1)) if e%5==0 else float('nan'):.2f},{float(cosine([e],120,5,2e-4,2e-6)[0]):.3e},{71+r.normal(0,.6):.1f}".replace(',nan,', ',,'))
    put('flowers_small.csv', '\n'.join(o) + '\n')
    case('h-h17', 'flowers_small.csv', 'per-epoch CSV', 'none',
         'Small data set (Flowers-102): train falls slowly, validation plateaus with noise of 0.011 around its lowest level and does not turn up; FID cells are only filled every five epochs; LR decays to 2e-6.')


def h18():
    r = R('h18')
    o = []
    for e in range(80):
        tl = float(pl([e], .94, .655, 3, .9)[0])
        o.append(json.dumps({"train_loss": tl + r.normal(0, .002), "train_lr": 1.5e-4 * min(1, (e + .5) / 5) * (1 if e < 5 else .5 * (1 + math.cos(math.pi * (e - 5) / 75))), "test_loss_raw": tl + .012 + r.normal(0, .004), "test_loss_ema": tl + .006 + .98 * math.exp(-e / 2.2) + r.normal(0, .0015), "fid_ema": (14 + 320 * math.exp(-e / 5.) + 28 * (1 + e / 10) ** -1) if e % 10 == 9 else None, "epoch": e, "n_parameters": 675129632}))
    put('mar_style_log.txt', '\n'.join(o) + '\n')
    case('h-h18', 'mar_style_log.txt', 'MAE/MAR style log.txt (JSON per epoch)', 'none',
         'EMA loss is far behind in the first epochs (decay 0.9999) and better than raw later; fid_ema is filled only each tenth epoch and null between; LR by cosine to ~0.')


def h19():
    r = R('h19')
    o = []
    for s in range(50, 40001, 50):
        o.append(json.dumps({"lr": g(float(cosine([s], 40000, 1000, 1e-4, 1e-6)[0]), 6), "data_time": g(.011 + abs(r.normal(0, .003)) + (2.4 if s % 4000 == 50 else 0), 4), "loss": g(float(pl([s], 1.08, .50, 900, .8)[0]) * (1 + r.normal(0, .02)), 6), "grad_norm": g(.4 * float(ln(r, 1, .15)[0]) * (9 if s == 17350 else 1), 5), "time": g(.83 + r.normal(0, .01), 4), "iter": s, "memory": 48211, "step": s}))
        if s % 4000 == 0: o.append(json.dumps({"val/clip_t": g(.258 + .03 * (1 - math.exp(-s / 9000)) + r.normal(0, .0009), 5), "val/fm_mse": g(float(pl([s], 1.08, .507, 900, .8)[0]) + r.normal(0, .003), 5), "step": s}))
    put('vis_data/scalars.json', '\n'.join(o) + '\n')
    case('h-h19', 'vis_data/scalars.json', 'mmengine vis_data scalars', 'none',
         'Falling loss, one gradient-norm outlier (9 times) without effect on the loss, slow data loading at the epoch starts, validation improves until the end.')


def h20():
    r = R('h20')
    o = ["Training for 200000 kimg...", ""]
    for k in range(0, 701):
        kimg = k * 50.0
        o.append(f"tick {k:<5d} kimg {kimg:<9.1f} loss {float(pl([kimg],.61,.1395,250,1.0)[0])+r.normal(0,.0011):<8.4f} time {k*4//60:d}h {k*4%60:02d}m {int(r.integers(0,60)):02d}s      sec/tick {241.3+r.normal(0,1):<7.1f} sec/kimg {4.82+r.normal(0,.02):<7.2f} maintenance {r.uniform(.1,.4) if k%50 else r.uniform(8,12):<6.1f} cpumem {6.1+k*.0004:<6.2f} gpumem {38.12:<6.2f} reserved 41.03")
        if k % 100 == 0 and k: o.append(f"  metric fid50k_full {1.95+60*(1+k/30)**-1.9+r.normal(0,.03):.4f}")
    put('edm_log.txt', '\n'.join(o) + '\n')
    case('h-h20', 'edm_log.txt', 'EDM tick log', 'none',
         'EDM loss falls to 0.14 in the first 5 Mimg and then hardly changes (typical plateau) while FID goes on improving; maintenance time is higher at snapshot ticks.')


def h21():
    o = ["CFG / steps sweep, ckpt 400k EMA, COCO-30k, 256px", "", "| sampler | NFE | cfg | FID ↓ | CLIP ↑ | IR ↑ |", "|---|---:|---:|---:|---:|---:|"]
    r = R('h21')
    for sm, fac in (("euler", 1.), ("heun", .93)):
        for n in (10, 20, 50, 100):
            for c in (1., 1.5, 2., 3., 5., 7.5):
                f = (9.1 + 7 * (10 / n) ** 1.3 * (fac if sm == 'euler' else .6)) + 11 * max(0, 1.6 - c) ** 1.2 + 1.15 * max(0, c - 2) ** 1.25
                o.append(f"| {sm} | {n} | {c} | {f+r.normal(0,.08):.2f} | {.318-.085*math.exp(-c/1.6)-.006*(10/n)+r.normal(0,.0006):.3f} | {.62-2.1*math.exp(-c/1.5)+r.normal(0,.01):+.2f} |")
    o += ["", "| ckpt | FID (euler50, cfg 2) | CLIP | val mse |", "|---:|---:|---:|---:|"]
    for k, f, c, v in [(50, 31.22, .268, .6911), (100, 19.84, .281, .6702), (150, 15.31, .287, .6601), (200, 12.9, .290, .6541), (250, 11.47, .292, .6504), (300, 10.71, .2935, .6480), (350, 10.78, .294, .6463), (400, 10.25, .2942, .6452)]: o.append(f"| {k}k | {f:.2f} | {c} | {v:.4f} |")
    put('sweep_400k.md', '\n'.join(o) + '\n')
    case('h-h21', 'sweep_400k.md', 'evaluation tables (markdown)', 'none',
         'Usual trade-off: FID is best near cfg 2 and worse at cfg 7.5 while CLIP rises; FID falls with NFE; over checkpoints FID, CLIP and val mse improve (one noise-sized up-tick at 350k).')


def h22():
    r = R('h22')
    o = ["bucket evaluation (val 8192, ema), columns: t_lo t_hi mse mse_norm cosine"]
    for ck in (50, 150, 250):
        o.append(f"# ckpt {ck}k")
        f = {50: 1.22, 150: 1.06, 250: 1.}[ck]
        for i in range(10):
            t = (i + .5) / 10
            nm = (.315 + .42 * (t - .52) ** 2 * 1.4) * f + r.normal(0, .003)
            o.append(f"{i/10:.1f} {(i+1)/10:.1f} {nm*1.94:.4f} {nm:.4f} {math.sqrt(1-nm):.4f}")
        o.append(f"# fid10k {dict([(50,24.1),(150,14.0),(250,11.6)])[ck]}")
    o.append("# train tail")
    for s in range(248000, 250001, 50): o.append(f"{s} train_mse {.682+r.normal(0,.011):.4f} lr 1e-04 gn {.14*float(ln(r,1,.13)[0]):.3f}")
    put('buckets.txt', '\n'.join(o) + '\n')
    case('h-h22', 'buckets.txt', 'per-t bucket evaluation', 'none',
         'Mild U-shape over t (nmse 0.31 in the middle, 0.45 at the ends, cos 0.83 -> 0.74), natural for flow matching; all buckets improve over checkpoints.')


def h23():
    r = R('h23')
    o = ["cfg: t_dist=logit_normal(mean=0.0, std=1.0) path=linear img_range=[-1,1] vae_scale=0.3611 vae_shift=0.1159 clip=1.0"]
    for s in range(0, 16001, 40):
        t = 1 / (1 + np.exp(-r.normal(0, 1, 256)))
        l = float(pl([s], 1.87, .62, 700, .8)[0]) + r.normal(0, .012)
        gp = (.45 + 2.6 * math.exp(-s / 350)) * float(ln(r, 1, .2)[0])
        o.append(f"{s:>6} L={l:.4f} t[{t.min():.3f},{t.max():.3f}] mu_t={t.mean():.3f} sd_t={t.std():.3f} px[{-1:.2f},{1:.2f}] zstd={.991+r.normal(0,.006):.3f} g_pre={gp:.2f} g_post={min(1.,gp):.2f} lr={1e-4*min(1,(s+1)/1000):.1e}")
    put('own_loop_logitnormal.txt', '\n'.join(o) + '\n')
    case('h-h23', 'own_loop_logitnormal.txt', 'own loop with batch statistics', 'none',
         't statistics (0.5, 0.21) belong to the configured logit-normal distribution; gradient norm is clipped to 1 at the beginning only; latents have std 0.99.')


def h24():
    r = R('h24')
    o = []
    scale, good = 65536.0, 0
    for s in range(12000):
        ov = (s < 4) or (scale >= 32768 and s > 100 and r.random() < .003)
        if ov: scale /= 2; good = 0
        else:
            good += 1
            if good == 2000: scale *= 2; good = 0
        t = r.uniform()
        l = (float(pl([s], .9, .128, 140, .95)[0]) + .10 * ((1 - t) ** 4 - .2)) * float(ln(r, 1, .15)[0])
        gn = 'inf' if ov else f"{.35*float(ln(r,1,.25)[0]):.3f}"
        o.append(f"{s} {l:.4f} {gn} {int(scale)}" + (" skip" if ov else ""))
    put('steps_loss_gnorm_scale.txt', "step loss gnorm scale\n" + '\n'.join(o) + '\n')
    case('h-h24', 'steps_loss_gnorm_scale.txt', 'plain columns, one line per step (fp16 GradScaler)', 'none',
         'Four skipped steps at the start and a few later when the scale has grown to 32768 or more (gradient norm inf in just those steps); loss falls 0.9 -> 0.15.')


def h25():
    r = R('h25')
    N = 2400
    L = ["prepare optimizer, data loader etc.\n", "use AdamW8bit optimizer | {}\n", "running training / 学習開始\n", "  num train images * repeats / 学習画像の数×繰り返し回数: 600\n", "  num epochs / epoch数: 8\n", "  batch size per device / バッチサイズ: 2\n", f"  total optimization steps / 学習ステップ数: {N}\n"]
    el = 0; avg = []
    for s in range(1, N + 1):
        if (s - 1) % 300 == 0: L.append(f"\nepoch {(s-1)//300+1}/8\n")
        el += .93
        avg.append((.104 + .012 * math.exp(-s / 500)) * float(ln(r, 1, .55)[0]))
        a = float(np.mean(avg[-300:]))
        L.append(f"\rsteps: {100*s//N:3d}%|{bar(s/N)}| {s}/{N} [{hms(el)}<{hms((N-s)*.93)},  1.07it/s, avr_loss={a:.4f}]")
    L.append("\nsaving checkpoint: style_lora_v2.safetensors\nmodel saved.\n")
    put('kohya_style_lora.txt', ''.join(L))
    case('h-h25', 'kohya_style_lora.txt', 'kohya sd-scripts progress bar', 'none',
         'Style LoRA: running average loss wanders between 0.12 and 0.13 (normal for SD LoRA), eight short epochs, planned end, model saved.')


def main():
    global OUT
    OUT = sys.argv[1]
    os.makedirs(OUT, exist_ok=True)
    for i in range(1, 46): globals()[f'b{i:02d}']()
    for i in range(1, 26): globals()[f'h{i:02d}']()
    ids = [m['path'] for m in MAN]
    assert len(set(ids)) == 70
    with open(os.path.join(OUT, 'manifest.json'), 'w', encoding='utf-8') as f:
        json.dump(MAN, f, indent=1, ensure_ascii=False)


if __name__ == '__main__':
    main()
