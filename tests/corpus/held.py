"""The 'held' half."""

import functools
import json
import math

import numpy as np

from lib import *

H = functools.partial(case, "held")


def aligned(rws, spec):
    """A right-aligned text table, as pandas' to_string prints it."""
    cols = list(spec)
    cells = [cols] + [[format(r[k], spec[k]) if r.get(k) is not None else "NaN" for k in cols] for r in rws]
    w = [max(len(x[i]) for x in cells) for i in range(len(cols))]
    return ["  ".join(x[i].rjust(w[i]) for i in range(len(cols))) for x in cells]


def dct2str(d):
    return str({k: f"{v:.6g}" for k, v in d.items()})


def gd_table(d):
    """The table of OpenAI's guided-diffusion logger."""
    kv = {k: f"{v:<8.3g}" if isinstance(v, float) else str(v) for k, v in sorted(d.items())}
    a, b = max(map(len, kv)), max(map(len, kv.values()))
    line = "-" * (a + b + 7)
    return [line] + [f"| {k.ljust(a)} | {v.ljust(b)} |" for k, v in kv.items()] + [line]


# =====================================================================================  healthy
@H(
    "h-h01",
    "EDM stats.jsonl (nested)",
    "none",
    story="EDM2-style run: Loss/loss as nested num/mean/std, fid falls 92 -> 6 with ticks; healthy.",
)
def _(c):
    o = []
    for i in range(240):
        k = i * 1024
        m = float(decay(i, 0.62, 0.305, 9, 0.8) * (1 + 0.006 * c.n()))
        d = {
            "Loss/loss": {"num": 16384, "mean": sig(m, 6), "std": sig(m * 0.42 * (1 + 0.02 * c.n()), 6)},
            "Progress/tick": {"num": 1, "mean": float(i), "std": 0.0},
            "Progress/kimg": {"num": 1, "mean": float(k), "std": 0.0},
            "Timing/sec_per_kimg": {"num": 1, "mean": sig(3.31 + 0.02 * c.n(), 5), "std": 0.0},
            "Resources/peak_gpu_mem_gb": {"num": 1, "mean": 22.7, "std": 0.0},
            "timestamp": 1700000000.1 + i * 3400,
        }
        if i % 20 == 0:
            d["Metrics/fid"] = {"num": 1, "mean": sig(6 + 86 * math.exp(-i / 30) + 0.1 * c.n(), 5), "std": 0.0}
        o.append(json.dumps(d))
    return c.write("stats.jsonl", o)


@H(
    "h-h02",
    "torchtitan lines",
    "none",
    story="FLUX-like training with torchtitan: ordinary fall, warm-up, memory columns.",
)
def _(c):
    s = np.concatenate([[1], np.arange(10, 5001, 10)])
    L = c.loss(s, 1.97, 0.58, 350, 0.75, 0.02)
    g = c.gnorm(s, 4.1, 0.33, 120)
    w = c.wall("2025-06-09T22:01:13", len(s), 9.1)
    o = [
        f"[rank0]:[titan] {w[0]:%Y-%m-%d %H:%M:%S},113 - root - INFO - Starting job: Train FLUX model",
        f"[rank0]:[titan] {w[0]:%Y-%m-%d %H:%M:%S},240 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
    ]
    o += [
        f"[rank0]:[titan] {w[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(999)):03d} - root - INFO - step: {k:5d}  loss: {L[i]:7.4f}  grad_norm: {g[i]:7.4f}  memory: 61.12GiB(77.27%)  tps: {3120 + 25 * c.n():,.0f}  tflops: {311 + 3 * c.n():.2f}  mfu: {31.4 + 0.3 * c.n():.2f}%"
        for i, k in enumerate(s)
    ]
    return c.write("titan.log", o)


@H(
    "h-h03",
    "Megatron lines",
    "none",
    story="One spike x4 at iteration 3,150, back to trend within 5 lines (50 iterations). Number of skipped and nan iterations is 0 throughout.",
)
def _(c):
    s = np.arange(10, 8001, 10)
    L = c.loss(s, 1.35, 0.49, 300, 0.65, 0.018)
    g = c.gnorm(s, 2.2, 0.41, 200)
    i0 = int(np.argmax(s == 3150))
    L[i0 : i0 + 5] *= [4.2, 2.6, 1.7, 1.25, 1.08]
    g[i0 : i0 + 3] *= [31, 9, 3]
    return c.write(
        "pretrain.out",
        [
            f" iteration {k:8d}/   20000 | consumed samples: {k * 512:12d} | elapsed time per iteration (ms): {901 + 14 * c.n():.1f} | learning rate: {float(warmcos(k, 1.5e-4, 500, 20000, 1.5e-5)):.6E} | global batch size:   512 | flow loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-h04",
    "CrossFlow/U-ViT quoted dict lines",
    "none",
    story="""CrossFlow recipe: the KL weight is 1e-2 and the std of the text head is detached (config line); the KL stays at a small constant, contrastive and flow losses fall.""",
)
def _(c):
    s = np.arange(50, 30001, 50)
    f = c.loss(s, 1.88, 0.74, 700, 0.6, 0.02)
    cl = c.jit(decay(s, 5.1, 0.42, 500, 0.8), 0.04)
    kl = c.jit(decay(s, 0.31, 0.192, 1500), 0.01)
    o = [
        "2025-04-02 09:00:51,113 - train_t2i.py - config: {'kl_weight': 0.01, 'detach': True, 'std_range': (0.5, 1.2), 'clip_loss_weight': 1.0, 'lr': 1e-05, 'batch_size': 1024}"
    ]
    w = c.wall("2025-04-02T09:01:00", len(s), 41)
    for i, k in enumerate(s):
        o.append(
            f"{w[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(999)):03d} - train_t2i.py - "
            + dct2str(
                {
                    "step": int(k),
                    "lr": float(warmconst(k, 1e-5, 5000)),
                    "loss": f[i] + 0.01 * kl[i] + cl[i],
                    "diff_loss": f[i],
                    "kl_loss": kl[i],
                    "clip_loss": cl[i],
                }
            )
        )
        if k % 5000 == 0:
            o.append(f"{w[i]:%Y-%m-%d %H:%M:%S},002 - train_t2i.py - save model checkpoint {k}...")
    return c.write("output.log", o)


@H(
    "h-h05",
    "Lightning metrics.csv",
    "none",
    story="Fine-tuning of a converged model on a style set: loss flat at 0.33 from step 0; val cos 0.88 throughout, val/clip rises 0.27 -> 0.31 and val/loss falls 3 %: it does what it should.",
)
def _(c):
    s = np.arange(24, 5000, 25)
    R = rows(
        {
            "epoch": s // 500,
            "step": s,
            "train/mse_step": c.jit(np.full(len(s), 0.334) - 0.008 * s / 5000, 0.055, 0.05),
            "lr-AdamW/pg1": np.full(len(s), 1e-5),
        }
    )
    for e in range(10):
        k = 500 * e + 499
        R.append(
            {
                "epoch": e,
                "step": k,
                "val/loss": 0.3402 - 0.01 * (1 - math.exp(-e / 4)) + 0.0004 * c.n(),
                "val/v_cos": 0.878 + 0.006 * (1 - math.exp(-e / 4)),
                "val/clip": 0.271 + 0.04 * (1 - math.exp(-e / 3)) + 0.001 * c.n(),
                "val/fid": 21.4 - 0.4 * e + 0.1 * c.n(),
                "train/mse_epoch": 0.332,
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.csv("csv_logs/version_0/metrics.csv", R, digits=7)


@H(
    "h-h06",
    "logfmt lines",
    "none",
    story="Warm-up, stable phase, linear decay to zero in the last 20 % (WSD): the loss plateaus in the stable phase and drops in the decay phase, as it should.",
)
def _(c):
    s = np.arange(0, 25000, 50)
    lr = 3e-4 * np.minimum(1, (s + 1) / 1000) * np.clip((25000 - s) / 5000, 0, 1)
    b = decay(s, 1.62, 0.71, 500, 0.75) - 0.09 * np.clip((s - 20000) / 5000, 0, 1)
    L = c.jit(b, 0.014)
    w = c.wall("2025-08-08T01:00:00", len(s), 30)
    return c.write(
        "app.log",
        [
            f'ts={w[i]:%Y-%m-%dT%H:%M:%SZ} level=info msg="train" update={k} objective={L[i]:.4f} lr={lr[i]:.3e} gnorm={0.33 * math.exp(0.14 * c.n()):.3f} tokens={k * 262144} '
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-h07",
    "W&B history CSV",
    "none",
    story="VAE-only: recon_loss falls, kld (sum over latents) settles at 310, psnr 31 dB at the end; posterior std 0.36 is normal for an image VAE.",
)
def _(c):
    s = np.arange(0, 40000, 80)
    return c.csv(
        "vae_history.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.21,
                "_timestamp": 1726000000 + s * 0.21,
                "recon_loss": c.loss(s, 0.41, 0.031, 800, 0.9, 0.05),
                "kld": c.jit(80 + 230 * (1 - np.exp(-s / 3000)), 0.025),
                "kl_weight": np.full(len(s), 1e-6),
                "lpips": c.loss(s, 0.72, 0.09, 1000, 0.8, 0.04),
                "posterior_std": c.jit(0.36 + 0.55 * np.exp(-s / 900), 0.02),
                "eval/psnr": [
                    18 + 13.2 * (1 - math.exp(-k / 7000)) + 0.05 * c.n() if k % 2000 == 0 else None for k in s
                ],
                "lr": np.full(len(s), 1e-4),
            }
        ),
    )


@H(
    "h-h08",
    "key: value lines",
    "none",
    story="The counter restarts at 0 after each of two resumes (local step), as announced; the loss continues at the level where it stopped.",
)
def _(c):
    o = []
    off = 0
    for seg, n in enumerate((6000, 4000, 7000)):
        if seg:
            o.append(f"Resuming from checkpoints/last.pt (total_steps={off}); local step counter restarts at 0")
        for k in range(0, n, 25):
            o.append(
                f"local_step: {k:5d}, train_loss: {decay(off + k, 1.44, 0.55, 500) * math.exp(0.022 * c.n()):.4f}, lr: 1.00e-04, grad_norm: {0.45 * math.exp(0.15 * c.n()):.3f}, it/s: {3.1 + 0.05 * c.n():.2f}"
            )
        off += n
    return c.write("resume_train.log", o)


@H(
    "h-h09",
    "guided-diffusion logger tables",
    "none",
    story="Plain DDPM (learned sigma): mse 0.99 -> 0.04 and vb small; loss_q0 is the largest quartile, as always in eps-prediction. Healthy.",
)
def _(c):
    o = ["Logging to /tmp/openai-2024-07-01-10-00-00-000000", "creating model and diffusion...", "training..."]
    for i in range(220):
        k = i * 500
        m = float(decay(i, 0.99, 0.038, 1.2, 1.1) * math.exp(0.04 * c.n()))
        d = {
            "grad_norm": float(0.06 + 1.2 * math.exp(-i / 6)) * math.exp(0.15 * c.n()),
            "loss": m * 1.02,
            "loss_q0": m * 2.6,
            "loss_q1": m * 0.75,
            "loss_q2": m * 0.42,
            "loss_q3": m * 0.25 + 0.001,
            "mse": m,
            "param_norm": 221 + 0.05 * i,
            "samples": float((k + 1) * 128),
            "step": float(k),
            "vb": m * 0.02,
        }
        o += gd_table(d)
    return c.write("log.txt", o)


@H(
    "h-h10",
    "CSV, two columns",
    "none",
    story="Only iteration and loss, 90 rows; falls cleanly. Little can be said, nothing is wrong.",
)
def _(c):
    s = np.arange(100, 9001, 100)
    return c.csv(
        "loss.csv", rows({"iteration": s, "loss": c.loss(s, 0.98, 0.41, 400, 0.7, 0.02)}), digits=5, sep=";", bom=True
    )


@H(
    "h-h11",
    "TensorBoard, train and val folders",
    "none",
    story="Two event files (train, val) with the same tag; both fall together.",
)
def _(c):
    s, e = np.arange(0, 18000, 30), np.arange(600, 18001, 600)
    c.tb(
        "logs/val",
        {
            "epoch_fm_mse": (e, c.jit(decay(e, 1.38, 0.605, 450), 0.007)),
            "epoch_velocity_cosine": (e, c.add(0.8 - 0.7 * (1 + e / 450) ** -0.6, 0.003)),
        },
        "2025-03-21T07:00:00",
        host="a100-3",
    )
    return c.tb(
        "logs/train",
        {
            "fm_mse": (s, c.loss(s, 1.38, 0.6, 450, 0.6, 0.025)),
            "global_norm": (s, c.gnorm(s, 1.1, 0.3, 400)),
            "learning_rate": (s, warmcos(s, 2e-4, 900, 18000, 2e-6)),
        },
        "2025-03-21T07:00:00",
        host="a100-3",
    )


@H(
    "h-h12",
    "MLflow metric files, nested names",
    "none",
    story="Metrics in folders train/ and validation/; healthy noisy small-batch run.",
)
def _(c):
    s, e = np.arange(1, 7001, 10), np.arange(350, 7001, 350)
    return c.mlflow(
        "482019",
        "b7cc0e2f5a",
        {
            "train/flow_loss": (s, c.loss(s, 1.65, 0.78, 300, 0.6, 0.09)),
            "train/lr": (s, warmcos(s, 1e-4, 200, 7000)),
            "train/gnorm": (s, c.gnorm(s, 2.1, 0.8, 300, 0.3)),
            "validation/fm_mse": (e, c.jit(decay(e, 1.65, 0.79, 300), 0.008)),
            "system/gpu_utilization_percentage": (s, 97 + c.n(len(s))),
        },
        "2025-06-30T20:00:00",
        1.3,
    )


@H(
    "h-h13",
    "Chinese training log",
    "none",
    story="Chinese printed lines: 总损失, 流损失, KL and gradient norms all in order, shares 1 : 0.2, validation falls.",
)
def _(c):
    o = ["开始训练：CrossUni，冻结 LLM，训练 meta-queries 与连接层"]
    for k in range(0, 15000, 60):
        f = decay(k, 1.78, 0.7, 500) * math.exp(0.02 * c.n())
        g = (0.36 + 0.7 * math.exp(-k / 900)) * math.exp(0.12 * c.n())
        kl = 0.11 + 0.35 * math.exp(-k / 2500) + 0.002 * c.n()
        o.append(
            f"第 {k} 步：总损失={f + 0.01 * kl:.4f}，loss_flow={f:.4f}，loss_kl={kl:.4f}，grad_norm={g:.3f}，lr={float(warmconst(k, 1e-4, 600)):.2e}，std_mean={0.93 - 0.3 * math.exp(-k / 2500):.3f}"
        )
        if k % 1500 == 0 and k:
            o.append(
                f"验证：step={k} val_loss={decay(k, 1.78, 0.71, 500) * (1 + 0.004 * c.n()):.4f} v_cos={0.79 - 0.7 * (1 + k / 500) ** -0.6:.3f}"
            )
    return c.write("训练日志.txt", o)


@H(
    "h-h14",
    "sampling trace, key=value dialect",
    "none",
    story="Uniform grid N=25 in fp32, cfg 4: |x| moves at each step from 0.80, dt constant, sum 1.",
)
def _(c):
    o = ["sampler=euler schedule=uniform N=25 cfg=4.0 state=float32 v_dtype=bfloat16"]
    for j in range(3):
        for i in range(25):
            f = i / 25
            o.append(
                f"sample {j} i={i:02d} t={f:.4f} x_abs={0.7972 + 0.0006 * c.n() * 0.2 + 0.11 * f * f + 0.01 * f:.5f} v_abs={0.98 - 0.1 * f + 0.001 * c.n():.5f} dt=0.04000"
            )
    return c.write("sampling.log", o)


@H(
    "h-h15",
    "srun -l labelled ranks",
    "none",
    story="Eight ranks (srun -l labels '3: ...'); only the prefix differs, losses scatter and fall together.",
)
def _(c):
    o = []
    for k in range(0, 4000, 40):
        for r in c.rng.permutation(8):
            o.append(
                f"{r}: INFO:root:epoch=0 it={k} fm={decay(k, 1.55, 0.62, 250) * math.exp(0.07 * c.n()):.4f} lr={float(warmconst(k, 2e-4, 200)):.2e} gnorm={0.5 * math.exp(0.2 * c.n()):.2f}"
            )
    return c.write("slurm-771.out", o)


@H(
    "h-h16",
    "HF Trainer printed dicts between tqdm bars (CR)",
    "none",
    story="HF output with carriage-return bars around the dicts; healthy LoRA run, eval follows.",
)
def _(c):
    N, t = 1600, "\r  0%|          | 0/1600 [00:00<?, ?it/s]"
    for k in range(8, N + 1, 8):
        t += "\r" + bar(k, N, k * 2.1)
        t += (
            "\r"
            + " " * 60
            + "\r"
            + str(
                {
                    "loss": f"{decay(k, 1.12, 0.47, 90) * math.exp(0.04 * c.n()):.4f}",
                    "grad_norm": f"{0.8 * math.exp(0.2 * c.n()):.4f}",
                    "learning_rate": f"{2e-4 * (1 - k / N):.3e}",
                    "epoch": f"{k / 400:.2f}",
                }
            ).replace("'0.", "'0.")
            + "\n"
        )
        if k % 200 == 0:
            t += (
                str(
                    {
                        "eval_loss": f"{decay(k, 1.12, 0.48, 90) * (1 + 0.005 * c.n()):.4f}",
                        "eval_runtime": "41.2",
                        "eval_steps_per_second": "2.91",
                        "epoch": f"{k / 400:.2f}",
                    }
                )
                + "\n"
            )
    return c.write("hf.log", t)


@H(
    "h-h17",
    "W&B chart CSV, three runs",
    "none",
    story="Three seeds of one configuration in one chart; all fall to 0.6 and agree within noise.",
)
def _(c):
    s = np.arange(0, 20000, 125)
    return c.chart(
        "wandb_export_3seeds.csv",
        s,
        {
            f"seed{j}-dimr-256 - loss_flow": c.loss(s, 1.5 + 0.02 * j, 0.57 + 0.004 * j, 800, 0.6, 0.02)
            for j in range(3)
        },
        stepname="trainer/global_step",
    )


@H("h-h18", "English prose report", "none", story="Written check-up with numbers: all in the normal range.")
def _(c):
    return c.write(
        "checkup.md",
        """# Check-up of run 'xflow-m' at step 61,500

The VAE round trip gives a PSNR of 31.2 dB, latents have mean 0.01 and std 0.98.
Norms in one batch: z0_norm 63.4, z1_norm 62.9, xt_norm 51.2, v_norm 88.7.

Pairwise cosine of the means: cat/car 0.22, cat/apple 0.31, car/apple 0.19; the same prompt twice gives 1.00.

One-step alignment on held-out images:

| t | cos | ratio |
|---|---|---|
| 0.10 | 0.59 | 0.66 |
| 0.37 | 0.71 | 0.75 |
| 0.63 | 0.77 | 0.80 |
| 0.90 | 0.72 | 0.78 |

Shooting from z0: MSE(z_end, x1) = 0.71 against MSE(x0, x1) = 1.94 (relative 0.37), 0.69 with twice the steps.
Endpoint RMSE: K=8 0.97, K=16 0.88, K=32 0.85, K=64 0.84.

The teacher field integrated in fp32: N=5 1.0e-10, N=20 1.1e-10, N=100 1.2e-10.

Training loss went from 1.94 at step 0 to 0.79; validation loss 0.80.
The learning rate is 1e-4 (warm-up over 1,000 steps), the gradient norm is 0.34.
cond_gain_cos is 0.14. FID is 17.8 (was 24.9 at step 40,000).
""",
    )


@H(
    "h-h19",
    "JSON lines, ret dictionary with other prefixes",
    "none",
    story="Complete set of diagnostics under train/diag/..., all in the healthy range: shares 1:0.36:0.21, entropies 40-50 % of log K, slices nearly even.",
)
def _(c):
    s = np.arange(0, 24000, 160)
    d = c.ret(s, logk=8.32, c1=0.8, tau=900, lr=2e-4, warm=1000, upd=3e-4, mu=(1.1, 0.42), std=(0.5, 0.9))
    return c.jsonl(
        "diag.jsonl", [{("step" if k == "step" else "train/diag/" + k): v for k, v in r.items()} for r in rows(d)], 5
    )


@H(
    "h-h20",
    "detectron2 lines",
    "none",
    story="Flow + DINO + KL in detectron2's writer; all three fall or settle, total_loss falls, entropies ordinary.",
)
def _(c):
    o = []
    for k in range(19, 12000, 40):
        e = math.exp(-k / 1200)
        f, d, q = decay(k, 1.7, 0.69, 400) * (1 + 0.02 * c.n()), 4.1 + 2.1 * e + 0.04 * c.n(), 0.2 + 0.3 * e
        o.append(
            f"[03/11 0{k // 3600 % 10}:{k // 60 % 60:02d}:{k % 60:02d} d2.utils.events]:  eta: {hms((12000 - k) * 0.7)}  iter: {k}  total_loss: {f + 0.5 * d + 0.01 * q:.3f}  loss_flow: {f:.4f}  loss_dino: {d:.3f}  loss_kl: {q:.4f}  teacher_entropy: {3.9 + 0.05 * c.n():.3f}  student_entropy: {4.3 + 2.6 * e + 0.05 * c.n():.3f}  time: 0.6981  last_time: {0.7 + 0.01 * c.n():.4f}  data_time: 0.0081  lr: {float(warmconst(k, 1e-4, 1000)):.3g}  max_mem: 33120M"
        )
    return c.write("d2.log", o)


@H(
    "h-h21",
    "CompVis Lightning progress bar",
    "none",
    story="Latent diffusion, loss_simple noisy and falling, loss_vlb tiny, global_step in the bar; ordinary.",
)
def _(c):
    o = []
    for k in range(5, 6000, 10):
        L = decay(k, 0.98, 0.13, 120, 0.9) * math.exp(0.18 * c.n())
        o.append(
            f"Epoch {k // 1000}: "
            + bar(
                k % 1000 or 1,
                1000,
                (k % 1000 or 1) * 0.55,
                post=f"loss={decay(k, 0.98, 0.13, 120, 0.9) * math.exp(0.03 * c.n()):.3f}, v_num=0, train/loss_simple_step={L:.4f}, train/loss_vlb_step={L * 0.006:.5f}, train/loss_step={L:.4f}, global_step={float(k)}, lr_abs=1e-4",
            )
        )
    return c.write("ldm.log", o)


@H(
    "h-h22",
    "ImageNet-style epoch lines",
    "none",
    story="Short pixel-space toy run, 8 epochs, very noisy batches; epoch averages and validation fall every epoch.",
)
def _(c):
    o = []
    for e in range(8):
        avg = []
        for i in range(0, 400, 20):
            k = e * 400 + i
            L = decay(k, 1.1, 0.38, 220, 0.8) * math.exp(0.15 * c.n())
            avg.append(L)
            o.append(
                f"Epoch: [{e}][{i:3d}/400]\tTime {0.21 + 0.01 * c.n():6.3f} ( 0.214)\tData {0.003:6.3f} ( 0.004)\tLoss {L:.4e} ({np.mean(avg):.4e})\tLR 3.0e-04"
            )
        o.append(
            f" * Epoch {e} Train {np.mean(avg):.4f} Val {decay(e * 400 + 400, 1.1, 0.39, 220, 0.8) * (1 + 0.01 * c.n()):.4f}"
        )
    return c.write("train_log.txt", o)


# =====================================================================================  faults
@H(
    "h-f01",
    "torchtitan lines",
    "nan_loss",
    ("grad_explosion",),
    "grad_norm inf at step 2,310, loss nan from 2,320 to the end of the log (step 3,600); ordinary before.",
)
def _(c):
    s = np.arange(10, 3601, 10)
    L, g = c.loss(s, 2.0, 0.7, 250, 0.7, 0.02), c.gnorm(s, 3, 0.4, 150)
    w = c.wall("2025-02-14T13:00:00", len(s), 11)

    def v(k, x):
        return "    nan" if k >= 2320 else f"{x:7.4f}"

    return c.write(
        "t.log",
        [
            f"[titan] {w[i]:%Y-%m-%d %H:%M:%S},101 - root - INFO - step: {k:5d}  loss: {v(k, L[i])}  grad_norm: {'    inf' if k == 2310 else v(k, g[i])}  memory: 70.01GiB(88.51%)  tps: {2811 + 20 * c.n():,.0f}"
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-f02",
    "Lightning metrics.csv",
    "nan_loss",
    ("metrics_lost",),
    "train/fm_step is inf at step 7,249 and the cell stays empty (not finite values are dropped) for the remaining 4,000 steps, val/fm is nan; lr column continues.",
)
def _(c):
    s = np.arange(49, 11500, 50)
    L = [float(x) for x in c.loss(s, 1.3, 0.6, 400, 0.6, 0.03)]
    L = [x if k < 7249 else (float("inf") if k == 7249 else None) for x, k in zip(L, s)]
    R = rows({"epoch": s // 1000, "step": s, "train/fm_step": L, "lr-Adam": np.full(len(s), 2e-4)})
    for e in range(11):
        k = e * 1000 + 999
        R.append({"epoch": e, "step": k, "val/fm": decay(k, 1.3, 0.61, 400) if k < 7249 else float("nan")})
    R.sort(key=lambda r: r["step"])
    return c.csv("metrics.csv", R, ["epoch", "lr-Adam", "step", "train/fm_step", "val/fm"])


@H(
    "h-f03",
    "HF trainer_state.json",
    "nan_loss",
    (),
    "The well-known picture: loss 0.0 with grad_norm NaN from step 1,450 on and eval_loss NaN: the weights are NaN.",
)
def _(c):
    h = []
    for k in range(10, 2501, 10):
        bad = k >= 1450
        h.append(
            {
                "epoch": k / 500,
                "grad_norm": float("nan") if bad else 0.6 * math.exp(0.2 * c.n()),
                "learning_rate": 5e-5 * (1 - k / 5000),
                "loss": 0.0 if bad else round(decay(k, 1.2, 0.5, 150) * math.exp(0.03 * c.n()), 4),
                "step": k,
            }
        )
        if k % 500 == 0:
            h.append(
                {
                    "epoch": k / 500,
                    "eval_loss": float("nan") if bad else decay(k, 1.2, 0.51, 150),
                    "eval_runtime": 9.2,
                    "step": k,
                }
            )
    return c.trainer_state("ckpt/trainer_state.json", h)


@H(
    "h-f04",
    "CrossFlow/U-ViT quoted dict lines",
    "divergence",
    ("lr_too_high", "grad_explosion"),
    "diff_loss falls to 1.0 by step 6,000 and then climbs steadily to 2.8 at step 14,000 at constant lr, grad_norm with it.",
)
def _(c):
    s = np.arange(50, 14001, 50)
    b = np.where(
        s < 6000, decay(s, 1.9, 0.72, 600), decay(6000, 1.9, 0.72, 600) + 1.8 * (np.maximum(0, s - 6000) / 8000) ** 1.2
    )
    L = c.jit(b, 0.025)
    g = c.jit(0.5 + 2.5 * np.clip((s - 6000) / 8000, 0, 1), 0.2)
    return c.write(
        "output.log",
        [
            f"2025-05-0{1 + i // 150} {i // 6 % 24:02d}:{i % 6}0:00,417 - train.py - "
            + dct2str({"step": int(k), "lr": 2e-4, "diff_loss": L[i], "grad_norm": g[i]})
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-f05",
    "MLflow metric files",
    "divergence",
    (),
    "train/fm_mse and validation/fm_mse reach 0.66 around step 9k and drift up together to 1.1 at 24k. LR constant, gradient norm unremarkable.",
)
def _(c):
    s, e = np.arange(0, 24000, 40), np.arange(800, 24001, 800)
    f = lambda k: np.where(
        k < 9000, decay(k, 1.4, 0.47, 700), decay(9000, 1.4, 0.47, 700) + 0.44 * np.maximum(0, k - 9000) / 15000
    )
    return c.mlflow(
        "7",
        "fe11c2",
        {
            "train/fm_mse": (s, c.jit(f(s), 0.03)),
            "validation/fm_mse": (e, c.jit(f(e), 0.01)),
            "train/lr": (s, np.full(len(s), 3e-4)),
            "train/grad_norm": (s, c.jit(np.full(len(s), 0.4), 0.2)),
        },
        "2025-01-30T00:00:00",
    )


@H(
    "h-f06",
    "guided-diffusion logger tables",
    "loss_spikes",
    ("divergence",),
    "loss jumps from 0.045 to 0.9 at step 42,000 (grad_norm 18) and stays around 0.2 for the remaining tables: not recovered.",
)
def _(c):
    o = []
    for i in range(180):
        k = i * 500
        m = float(decay(i, 0.97, 0.036, 1.5, 1.0)) if i < 84 else 0.2 + 0.7 * math.exp(-(i - 84) / 3)
        m *= math.exp(0.04 * c.n())
        o += gd_table(
            {
                "grad_norm": 18.2 if i == 84 else 0.08 * math.exp(0.2 * c.n()),
                "loss": m,
                "loss_q0": m * 2.2,
                "loss_q1": m * 0.8,
                "loss_q2": m * 0.5,
                "loss_q3": m * 0.4,
                "param_norm": 180.0 + 0.02 * i,
                "samples": float(k * 256),
                "step": float(k),
            }
        )
    return c.write("progress.txt", o)


@H(
    "h-f07",
    "W&B chart CSV",
    "loss_spikes",
    ("divergence",),
    "At step 26,250 the loss jumps from 0.69 to 2.3 and settles at 1.15, 65 % above its former level, for the last third.",
)
def _(c):
    s = np.arange(0, 40000, 250)
    L = c.loss(s, 1.6, 0.56, 900, 0.6, 0.02)
    a = s >= 26250
    L[a] = c.jit(1.13 + 1.2 * np.exp(-(s[a] - 26250) / 600), 0.03)
    return c.chart("wandb_export_2025-08-19T09_00.csv", s, {"sit-xl-run7 - train_loss": L})


@H(
    "h-f08",
    "Megatron lines",
    "loss_spikes",
    ("lr_too_high", "grad_explosion"),
    "Thirty spikes of 4-15x spread over the whole run, more and more frequent, grad norm up to 300 each time; each recovers but they do not stop.",
)
def _(c):
    s = np.arange(10, 12001, 10)
    L, g = c.loss(s, 1.3, 0.6, 300, 0.6, 0.02), c.gnorm(s, 1.6, 0.45, 300)
    for q in np.sort(c.rng.random(30)) ** 0.6:
        i = min(len(s) - 3, int(q * len(s)))
        a = c.rng.uniform(4, 15)
        L[i] *= a
        L[i + 1] *= 1 + 0.3 * a
        g[i] *= 30 * a
    return c.write(
        "m.out",
        [
            f" iteration {k:8d}/   50000 | consumed samples: {k * 256:10d} | learning rate: 3.000E-04 | flow loss: {L[i]:.4E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | number of skipped iterations:   0 |"
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-f09",
    "EDM stats.jsonl (nested)",
    "no_learning",
    (),
    "Loss/loss mean stays at 1.02 over 150 ticks, fid stays at 380: nothing learned although the LR column is ordinary.",
)
def _(c):
    o = []
    for i in range(150):
        d = {
            "Loss/loss": {"num": 8192, "mean": sig(1.021 + 0.004 * c.n(), 6), "std": sig(0.41 + 0.01 * c.n(), 5)},
            "Loss/learning_rate": {"num": 1, "mean": 0.0001 if i > 3 else 0.00002 * (i + 1), "std": 0.0},
            "Progress/kimg": {"num": 1, "mean": i * 200.0, "std": 0.0},
            "timestamp": 1.71e9 + 1900 * i,
        }
        if i % 15 == 0:
            d["Metrics/fid"] = {"num": 1, "mean": sig(381 + 2 * c.n(), 5), "std": 0.0}
        o.append(json.dumps(d))
    return c.write("stats.jsonl", o)


@H(
    "h-f10",
    "TensorBoard event file",
    "no_learning",
    ("weak_field",),
    "L_flow flat at 1.94 from the first step over 20k steps, val too; lr 2e-4 and global_norm 0.8 ordinary; v_cos 0.00.",
)
def _(c):
    s, e = np.arange(0, 20000, 50), np.arange(500, 20001, 500)
    return c.tb(
        "tensorboard",
        {
            "L_flow": (s, c.jit(np.full(len(s), 1.94), 0.015, 0.1)),
            "lr": (s, warmconst(s, 2e-4, 500)),
            "global_norm": (s, c.jit(np.full(len(s), 0.8), 0.12)),
            "val/L_flow": (e, c.jit(np.full(len(e), 1.942), 0.003)),
            "val/v_cos": (e, 0.002 * c.n(len(e))),
        },
        "2025-09-01T00:00:00",
    )


@H(
    "h-f11",
    "loguru lines",
    "lr_too_small",
    ("no_learning",),
    "The scheduler thinks the run has 600 steps: lr falls to 0 at step 600 of 30,000 and stays 0; the loss stops at 1.24, where it was, for the remaining 98 %.",
    phrase="the learning rate is 0 after 2 % of the run",
)
def _(c):
    s = np.arange(0, 12000, 30)
    lr = warmcos(s, 1e-4, 60, 600)
    L = c.jit(np.where(s < 600, decay(s, 1.8, 0.9, 300, 0.9), decay(600, 1.8, 0.9, 300, 0.9)), 0.015, 0.1)
    w = c.wall("2025-11-01T17:00:00", len(s), 20)
    return c.write(
        "loguru.log",
        [
            f"{w[i]:%Y-%m-%d %H:%M:%S.%f}"[:-3]
            + f" | INFO     | trainer:fit:214 - step {k}/30000: loss_total={L[i]:.4f} lr={lr[i]:.2e} g_norm={0.9 * math.exp(0.1 * c.n()):.3f}"
            for i, k in enumerate(s)
        ],
    )


@H(
    "h-f12",
    "fairseq JSON lines",
    "lr_too_small",
    ("no_learning",),
    "lr is 3e-12 in every record (strings, fairseq style); loss 1.702 from first to last, valid loss too.",
)
def _(c):
    o = []
    for k in range(100, 20001, 100):
        o.append(
            f"2024-12-0{1 + k // 9000} {k // 400 % 24:02d}:10:11 | INFO | train_inner | "
            + json.dumps(
                {
                    "epoch": 1 + k // 5000,
                    "update": round(k / 5000, 3),
                    "loss": f"{1.702 + 0.012 * c.n():.3f}",
                    "ppl": "3.25",
                    "wps": "0",
                    "ups": f"{3.1 + 0.02 * c.n():.2f}",
                    "wpb": "256",
                    "bsz": "256",
                    "num_updates": str(k),
                    "lr": "3e-12",
                    "gnorm": f"{0.71 + 0.05 * c.n():.3f}",
                    "clip": "0",
                    "train_wall": "31",
                    "gb_free": "12.1",
                    "wall": str(k // 3),
                }
            )
        )
        if k % 5000 == 0:
            o.append(
                f"2024-12-0{1 + k // 9000} 23:59:01 | INFO | valid | "
                + json.dumps(
                    {"epoch": k // 5000, "valid_loss": f"{1.7021 + 0.0003 * c.n():.4f}", "valid_num_updates": str(k)}
                )
            )
    return c.write("fairseq.log", o)


@H(
    "h-f13",
    "ImageNet-style epoch lines",
    "lr_too_high",
    ("divergence", "loss_spikes"),
    "LR 5.0e-02 with Adam: batch losses jump between 0.8 and 30 without a trend, epoch means 3-6, Val the same; nothing converges.",
)
def _(c):
    o = []
    x = c.ar(600, 0.5)
    j = 0
    for e in range(20):
        avg = []
        for i in range(0, 300, 10):
            L = 2.6 * math.exp(0.75 * x[j])
            j += 1
            avg.append(L)
            o.append(
                f"Epoch: [{e}][{i:3d}/300]\tTime 0.312\tLoss {L:.4f} ({np.mean(avg):.4f})\tGradNorm {40 * math.exp(1.1 * c.n()):.2f}\tLR 5.0e-02"
            )
        o.append(f" * Epoch {e} Val {3 * math.exp(0.4 * c.n()):.4f}")
    return c.write("console.txt", o)


@H(
    "h-f14",
    "W&B history CSV",
    "lr_restart",
    ("loss_spikes", "divergence"),
    "At step 30k the run was resumed without scheduler state: lr goes from 4e-6 back to 1e-3; train/loss jumps from 0.55 to 1.1 and ends at 0.73, val too.",
)
def _(c):
    s = np.arange(0, 45000, 100)
    a = s >= 30000
    lr = np.where(a, 1e-3, warmcos(s, 2e-4, 500, 31000, 2e-6))
    L = np.where(a, 0.73 + 0.4 * np.exp(-np.maximum(0, s - 30000) / 2500), decay(s, 1.6, 0.38, 1200))
    return c.csv(
        "export.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.7,
                "_timestamp": 1.755e9 + s * 0.7,
                "train/loss": c.jit(L, 0.02),
                "lr": lr,
                "val/loss": [
                    float(L[i]) * (1.01 + 0.005 * c.n()) if k % 1500 == 0 and k else None for i, k in enumerate(s)
                ],
                "epoch": s / 5000,
            }
        ),
    )


@H(
    "h-f15",
    "kohya tqdm bars (CR)",
    "overfitting",
    ("periodic_memorisation",),
    "avr_loss falls from 0.14 to 0.03 over 100 epochs of 24 images; val_loss (printed per 10 epochs) falls to 0.121 by epoch 20, then rises to 0.21.",
)
def _(c):
    N, t = 2400, "running training / 学習開始\n  num train images * repeats / 学習画像の数×繰り返し回数: 24\n"
    for k in range(6, N + 1, 6):
        t += "\rsteps: " + bar(
            k, N, k * 1.8, post=f"avr_loss={(0.03 + 0.112 * math.exp(-k / 900)) * math.exp(0.04 * c.n()):.4f}"
        )
        if k % 240 == 0:
            e = k // 24
            v = 0.121 + 0.02 * math.exp(-e / 6) + 0.09 * max(0, (e - 20) / 80)
            t += f"\nepoch {e}/100 val_loss: {v * (1 + 0.01 * c.n()):.4f}\n"
    return c.write("kohya.log", t)


@H(
    "h-f16",
    "TensorBoard, train and val folders",
    "overfitting",
    (),
    "val/flow_nmse has its minimum at 9k and rises by 60 % to the end, val/flow_cos falls from 0.77 to 0.61; train nmse keeps falling.",
)
def _(c):
    s, e = np.arange(0, 30000, 60), np.arange(1000, 30001, 1000)
    tr = decay(s, 1.0, 0.35, 500) * np.exp(-s / 30000)
    v = decay(e, 1.0, 0.4, 500) * np.exp(-np.minimum(e, 9000) / 40000) + 0.27 * np.maximum(0, e - 9000) / 21000
    c.tb(
        "run/val",
        {"flow_nmse": (e, c.jit(v, 0.01)), "flow_cos": (e, np.sqrt(np.clip(1 - v, 0.05, 1)))},
        "2025-07-01T00:00:00",
    )
    c.tb("run/train", {"flow_nmse": (s, c.jit(tr, 0.03)), "lr": (s, np.full(len(s), 1e-4))}, "2025-07-01T00:00:00")
    return "run"


@H(
    "h-f17",
    "CSV",
    "periodic_memorisation",
    ("overfitting",),
    "Unshuffled data, 250 steps per epoch: the loss repeats the same pattern (easy and hard shards, amplitude 25 %) every epoch, visible against the epoch column, and drops at each boundary.",
)
def _(c):
    s = np.arange(0, 10000, 5)
    e, ph = s // 250, (s % 250) / 250
    pat = 1 + 0.25 * np.sin(2 * np.pi * ph) + 0.1 * np.sin(4 * np.pi * ph)
    L = (0.25 + 0.8 * np.exp(-e / 12)) * pat
    return c.csv(
        "history.csv",
        rows(
            {
                "epoch": e,
                "batch": s % 250,
                "global_step": s,
                "fm_loss": c.jit(L, 0.03, 0.1),
                "lr": np.full(len(s), 2e-4),
                "sec": 0.4 * s,
            }
        ),
        digits=5,
    )


@H(
    "h-f18",
    "detectron2 lines",
    "grad_explosion",
    ("divergence",),
    "grad_norm grows from 0.8 to 5e5 over the run without a break (100x per 5,000 iterations); total_loss is nearly unaffected because of Adam, last lines begin to rise.",
)
def _(c):
    o = []
    for k in range(19, 14000, 40):
        g = 0.8 * math.exp(k / 14000 * 13.3) * math.exp(0.25 * c.n())
        L = (decay(k, 1.6, 0.64, 500) + 0.2 * max(0, (k - 13000) / 1000) ** 2) * math.exp(0.02 * c.n())
        o.append(
            f"[05/0{1 + k // 9000} {k // 500 % 24:02d}:{k // 10 % 60:02d}:07 d2.utils.events]:  eta: 3:01:00  iter: {k}  total_loss: {L:.4f}  grad_norm: {g:.4g}  time: 0.51  data_time: 0.01  lr: 0.0002  max_mem: 21872M"
        )
    return c.write("log.txt", o)


@H(
    "h-f19",
    "srun -l labelled ranks",
    "grad_vanishing",
    ("no_learning",),
    "gnorm falls to 1e-8 on both ranks within 1,500 iterations while the loss stays at 1.88; lr is 1e-4.",
)
def _(c):
    o = []
    for k in range(0, 6000, 20):
        for r in (0, 1):
            o.append(
                f"{r}: it={k} fm={1.88 * math.exp(0.012 * c.n()):.4f} gnorm={max(1.1e-8, 0.4 * math.exp(-k / 90)) * math.exp(0.2 * c.n()):.3e} lr=1.00e-04 sps={91 + c.n():.1f}"
            )
    return c.write("slurm.out", o)


@H(
    "h-f20",
    "logfmt lines",
    "weak_gradient_share",
    ("kl_not_acting",),
    "gnorm_kl / gnorm_total is 0.8 % throughout; sigma and mu do not move towards the prior.",
    phrase="the KL term has under 1 % of the gradient",
)
def _(c):
    o = []
    for k in range(0, 14000, 70):
        g = (0.4 + 0.8 * math.exp(-k / 800)) * math.exp(0.12 * c.n())
        o.append(
            f"level=info step={k} flow_loss={decay(k, 1.7, 0.7, 600) * (1 + 0.02 * c.n()):.4f} kl_loss={0.46 + 0.12 * k / 14000 + 0.004 * c.n():.4f} gnorm_flow={g:.4f} gnorm_kl={g * 0.008 * math.exp(0.1 * c.n()):.6f} gnorm_total={g * 1.0001:.4f} mu_abs_mean={0.72 + 0.2 * k / 14000:.4f} std_mean={0.55 - 0.02 * k / 14000:.4f} w_kl=1e-05 lr=1e-04"
        )
    return c.write("grads.log", o)


@H(
    "h-f21",
    "Markdown table",
    "weak_gradient_share",
    (),
    "Each loss backpropagated alone: dino 2-3 % of the total at every checkpoint (flow 98 %, kl 17 %); entropies are ordinary.",
    phrase="the DINO term has 2-3 % of the gradient",
)
def _(c):
    o = [
        "# Gradient analysis per loss (weighted, all trainable parameters)",
        "",
        "| step | grad/flow | grad/kl | grad/dino | grad/total | ent/teacher | ent/student |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for k in range(0, 30001, 1000):
        g = (0.5 + 0.7 * math.exp(-k / 3000)) * math.exp(0.08 * c.n())
        kl, d = 0.17 * g * math.exp(0.05 * c.n()), 0.024 * g * math.exp(0.1 * c.n())
        o.append(
            f"| {k} | {g:.4f} | {kl:.4f} | {d:.5f} | {math.sqrt(g * g + kl * kl + d * d):.4f} | {4.01 + 0.05 * c.n():.2f} | {5.2 + 0.05 * c.n():.2f} |"
        )
    o += ["", "log K = 9.70 (K = 16384), T_t = 0.07, T_s = 0.1, w_dino = 0.05."]
    return c.write("grads.md", o)


@H(
    "h-f22",
    "CrossFlow/U-ViT quoted dict lines",
    "posterior_collapse",
    ("text_ignored", "condition_unused"),
    "kl_loss 1e-6, mu_rms 0.001, std 1.0000 after 3,000 steps and clip_loss back at ln(1024) = 6.93: z0 is pure prior.",
)
def _(c):
    o = []
    for k in range(50, 16001, 50):
        e = math.exp(-k / 260)
        o.append(
            f"2025-06-1{1 + k // 8000} {k // 700 % 24:02d}:{k // 12 % 60:02d}:00,100 - train.py - "
            + dct2str(
                {
                    "step": k,
                    "lr": 1e-4,
                    "diff_loss": decay(k, 1.9, 1.05, 500) * (1 + 0.015 * c.n()),
                    "kl_loss": 1e-6 * math.exp(0.1 * c.n()) + 0.3 * e,
                    "clip_loss": 6.931 - 0.6 * e + 0.004 * c.n(),
                    "mu_rms": 0.0011 * math.exp(0.05 * c.n()) + 0.7 * e,
                    "std_mean": 1 - 0.3 * e + 0.00005 * c.n(),
                }
            )
        )
    return c.write("output.log", o)


@H(
    "h-f23",
    "key: value lines",
    "posterior_collapse",
    (),
    "VAE training with beta 4: KLD falls to 0.0003 nats within 2 epochs, recon stays at the level of the mean image (0.197, psnr 12.1): the decoder ignores z.",
)
def _(c):
    o = ["beta-VAE, beta: 4.0, latent: 4x32x32"]
    for k in range(0, 9000, 30):
        e = math.exp(-k / 250)
        o.append(
            f"step: {k} recon: {(0.197 + 0.1 * e) * math.exp(0.02 * c.n()):.4f} KLD: {(0.0003 + 2.1 * e) * math.exp(0.08 * c.n()):.5f} mu_abs: {0.002 + 0.6 * e:.4f} std: {1 - 0.4 * e + 0.0003 * c.n():.4f} psnr: {12.1 - 1.5 * e + 0.05 * c.n():.2f} lr: 1e-4"
        )
    return c.write("vae.log", o)


@H(
    "h-f24",
    "HF Trainer printed dicts",
    "sigma_collapse",
    ("z0_leak",),
    "logvar_mean = logvar_min = -6.0 (the clamp) from step 1,500 on, std_mean 0.0498; the loss itself looks good.",
)
def _(c):
    o = []
    for k in range(20, 6001, 20):
        lv = max(-6.0, -1 - 5.2 * (1 - math.exp(-k / 480)))
        lv = -6.0 if lv < -5.9 else lv
        o.append(
            str(
                {
                    "loss": round(float(decay(k, 1.6, 0.5, 300)) * math.exp(0.02 * c.n()), 4),
                    "loss_kl": round(0.5 * (0.5 + math.exp(lv) - 1 - lv), 4),
                    "logvar_mean": round(lv, 4),
                    "logvar_min": -6.0 if lv < -4 else round(lv - 1.5, 3),
                    "std_mean": round(math.exp(lv / 2), 4),
                    "grad_norm": round(0.5 * math.exp(0.2 * c.n()), 4),
                    "learning_rate": 1e-4,
                    "epoch": round(k / 2000, 2),
                }
            )
        )
    return c.write("train.log", o)


@H(
    "h-f25",
    "Lightning metrics.csv",
    "sigma_collapse",
    ("z0_leak", "kl_not_acting"),
    "posterior/std falls to 0.02, posterior/std_min 0.004, KL rises to 3.5: sigma goes to 0; no clamp, w_kl 1e-7.",
)
def _(c):
    s = np.arange(19, 8000, 40)
    sd = c.jit(0.02 + 0.75 * np.exp(-s / 700), 0.03)
    return c.csv(
        "metrics.csv",
        rows(
            {
                "epoch": s // 800,
                "step": s,
                "train/fm": c.loss(s, 1.5, 0.52, 400, 0.6, 0.02),
                "posterior/std": sd,
                "posterior/std_min": sd * 0.2,
                "posterior/mu_abs": c.jit(np.full(len(s), 0.6), 0.01),
                "train/kl": 0.5 * (0.57 + sd**2 - 1 - 2 * np.log(sd)),
                "w_kl": np.full(len(s), 1e-7),
                "lr-AdamW": np.full(len(s), 1e-4),
            }
        ),
    )


@H(
    "h-f26",
    "English prose report",
    "z0_leak",
    ("sigma_collapse",),
    "cos 0.95 and nmse 0.09 at every t, yet std/mean 0.08, relative shooting error 0.88 and FID 190: the narrow z0 lets x_t reveal z1.",
)
def _(c):
    return c.write(
        "review.md",
        """# Review of run tight-z0, step 48,000

Training looks excellent. The flow loss is 0.11 (it was 1.21 at step 0), flow/cos is 0.95, flow/nmse is 0.09 and flow/speed_ratio is 0.96.

One-step alignment:
[fm] t=0.10  cos(v_pred, v_tgt)=0.941  ||pred||/||tgt||=0.955
[fm] t=0.37  cos(v_pred, v_tgt)=0.957  ||pred||/||tgt||=0.961
[fm] t=0.63  cos(v_pred, v_tgt)=0.960  ||pred||/||tgt||=0.962
[fm] t=0.90  cos(v_pred, v_tgt)=0.952  ||pred||/||tgt||=0.958

The samples, however, are blurred colour patches, FID 190.4.
Shooting: MSE(x0, x1) = 1.21, MSE(z_end, x1) = 1.065 (relative 0.88), the same with 200 steps.
endpt_rmse@8 1.05, endpt_rmse@16 1.04, endpt_rmse@32 1.03, endpt_rmse@64 1.03.

The head: std/mean is 0.08 (std/min 0.05, std/max 0.13), logvar/mean is -5.1, mu/abs_mean is 0.52.
Norms: z0_norm 42, z1_norm 64.
The VAE gives PSNR 30.1 dB. The learning rate is 1e-4.

| step | flow/cos | flow/nmse | std/mean | fid |
|---:|---:|---:|---:|---:|
| 8000 | 0.81 | 0.34 | 0.41 | 171 |
| 16000 | 0.90 | 0.19 | 0.22 | 182 |
| 32000 | 0.94 | 0.12 | 0.11 | 188 |
| 48000 | 0.95 | 0.09 | 0.08 | 190 |
""",
    )


@H(
    "h-f27",
    "Chinese training log",
    "scale_mismatch",
    ("latent_scale_factor",),
    "Every line prints ||x0|| about 40 and ||x1|| about 310 (8x): the velocity is all x1, the KL is stuck.",
)
def _(c):
    o = ["检查尺度：每 25 步打印一次批均值"]
    for k in range(0, 5000, 25):
        a, b = c.rng.uniform(39, 42), c.rng.uniform(280, 340)
        o.append(
            f"第{k}步  loss_flow={decay(k, 25.9, 20.2, 700) * math.exp(0.05 * c.n()):.3f}  ∥x0∥={a:.1f}  ∥x1∥={b:.1f}  ∥v∥={math.hypot(a, b):.1f}  kl={0.2144 + 0.0004 * c.n():.4f}  lr=1e-4"
        )
    return c.write("尺度.log", o)


@H(
    "h-f28",
    "several interleaved ranks",
    "scale_mismatch",
    ("latent_scale_factor",),
    "z0_std 0.11 against z1_std 0.97 on both ranks from start to end (9x): head output far too small.",
)
def _(c):
    o = []
    for k in range(0, 8000, 40):
        for r in c.rng.permutation(2):
            o.append(
                f"[rank{r}]:{k:>7d} loss {decay(k, 1.02, 0.9, 600) * math.exp(0.012 * c.n()):.4f} z0_std {0.11 + 0.001 * c.n():.4f} z1_std {0.97 + 0.006 * c.n():.4f} v_cos {0.33 - 0.3 * (1 + k / 600) ** -0.6 + 0.01 * c.n():.3f} lr 1e-4"
            )
    return c.write("ranks.log", o)


@H(
    "h-f29",
    "aligned text table",
    "latent_scale_factor",
    ("scale_mismatch",),
    "z1_std is 0.2301 = the scale factor 0.23010 itself: applied once in sample() and once more outside. decode_psnr 15.2.",
)
def _(c):
    r = [
        dict(
            step=k,
            loss=decay(k, 1.09, 1.02, 400) * (1 + 0.006 * c.n()),
            z0_std=1 + 0.003 * c.n(),
            z1_std=0.2301 + 0.001 * c.n(),
            decode_psnr=15.2 + 0.1 * c.n(),
            lr=1e-4,
        )
        for k in range(0, 6000, 60)
    ]
    return c.write(
        "table.txt",
        ["# autoencoder scale_factor = 0.23010; z1 = scale_factor * autoencoder.sample(x)"]
        + aligned(r, {"step": "d", "loss": ".4f", "z0_std": ".4f", "z1_std": ".4f", "decode_psnr": ".2f", "lr": ".1e"}),
    )


@H(
    "h-f30",
    "MLflow metric files",
    "latent_scale_factor",
    ("scale_mismatch", "input_range"),
    "latents/std 4.35 = 1/0.23 and z0/std 1.0; the loss starts at 20: the latents are never multiplied by the scale factor (metric vae/scale_factor 0.2301, vae/applied 0).",
)
def _(c):
    s = np.arange(0, 5000, 25)
    n = len(s)
    return c.mlflow(
        "12",
        "77aa01",
        {
            "loss/flow": (s, c.loss(s, 19.9, 9.2, 500, 0.6, 0.03)),
            "latents/std": (s, c.jit(np.full(n, 4.35), 0.01)),
            "latents/absmax": (s, c.jit(np.full(n, 24.0), 0.05)),
            "z0/std": (s, c.jit(np.full(n, 1.0), 0.003)),
            "vae/scale_factor": (s, np.full(n, 0.2301)),
            "vae/applied": (s, np.zeros(n)),
            "lr": (s, np.full(n, 1e-4)),
        },
        "2025-10-10T10:00:00",
    )


@H(
    "h-f31",
    "Chinese debug notes",
    "text_ignored",
    ("posterior_collapse",),
    "Means of all prompt pairs have cosine 0.993-0.999, the same prompt 1.000; one-step cos 0.6 and VAE fine: text does not enter.",
)
def _(c):
    return c.write(
        "文本排查.md",
        """# 文本通路排查（iter 54k）

所有 prompt 生成的图几乎一样。

均值 mu 的两两余弦：
[text] cos(mu: a dog, a dog) = 1.000
[text] cos(mu: a dog, a bicycle) = 0.997
[text] cos(mu: a dog, a bowl of soup) = 0.996
[text] cos(mu: a dog, a night sky) = 0.993
[text] cos(mu: a bicycle, a bowl of soup) = 0.999
[text] cos(mu: a bicycle, a night sky) = 0.995
[text] cos(mu: a bowl of soup, a night sky) = 0.994

单步对齐：
[fm] t=0.10  cos(v_pred, v_tgt)=0.571  ||pred||/||tgt||=0.612
[fm] t=0.37  cos(v_pred, v_tgt)=0.633  ||pred||/||tgt||=0.668
[fm] t=0.63  cos(v_pred, v_tgt)=0.652  ||pred||/||tgt||=0.690
[fm] t=0.90  cos(v_pred, v_tgt)=0.604  ||pred||/||tgt||=0.641

VAE：PSNR=29.90 dB，z mean 0.003，var 1.02
尺度：∥z0∥≈64.2，∥z1∥≈63.5
""",
    )


@H(
    "h-f32",
    "CSV",
    "weak_field",
    (),
    "Table per t: cos 0.02-0.07, ratio 0.2-0.25 at every checkpoint up to 40k; shoot_mse equals the start distance; z0 and z1 norms equal.",
)
def _(c):
    R = []
    for k in range(2000, 40001, 2000):
        for t in (0.1, 0.3, 0.5, 0.7, 0.9):
            R.append(
                {
                    "ckpt": k,
                    "t": t,
                    "cos_v": 0.045 + 0.01 * c.n(),
                    "norm_ratio": 0.225 + 0.012 * c.n(),
                    "z0_norm": 64 + 0.3 * c.n(),
                    "z1_norm": 65 + 0.3 * c.n(),
                    "shoot_mse": 2.06 + 0.02 * c.n(),
                    "start_mse": 2.03,
                }
            )
    return c.csv("onestep.csv", R, digits=4)


@H(
    "h-f33",
    "JSON lines",
    "wrong_target",
    (),
    "The training loss falls to 0.7, but val/v_cos (against x1-x0) goes from 0 to -0.77 with ratio 0.79 and val/shoot_rel to 3.4: the model learned x0-x1.",
    phrase="the velocity target has the wrong sign",
)
def _(c):
    s = np.arange(0, 25000, 100)
    R = rows(
        {"iteration": s, "train/loss_flow": c.loss(s, 1.95, 0.7, 600, 0.7, 0.02), "train/lr": warmconst(s, 1e-4, 500)}
    )
    for k in range(500, 25001, 500):
        f = 1 - (1 + k / 600) ** -0.8
        R.append(
            {
                "iteration": k,
                "val/v_cos": -0.8 * f + 0.004 * c.n(),
                "val/speed_ratio": 0.8 * f + 0.02,
                "val/shoot_rel": 1 + 2.5 * f,
            }
        )
    R.sort(key=lambda r: r["iteration"])
    return c.jsonl("events.jsonl", R, 4, tail='{"iteration": 25100, "train/lo')


@H(
    "h-f34",
    "debug probes",
    "wrong_target",
    (),
    "Target probe: correlation of the output with eps 0.97, with x1-x0 -0.70 for all t; the checkpoint was trained with the epsilon loss.",
    phrase="the network predicts the noise, not the velocity",
)
def _(c):
    o = ["target probe, 256 pairs, ckpt 30000, parameterisation expected: velocity (x1 - x0), x0 = eps"]
    for t in np.arange(0.05, 1, 0.05):
        o.append(
            f"t={t:.2f} corr(v_pred, velocity)={-0.70 + 0.008 * c.n():.3f} corr(v_pred, noise)={0.97 + 0.003 * c.n():.3f} corr(v_pred, score)={-0.96 + 0.004 * c.n():.3f} corr(v_pred, x1)={0.02 * c.n():.3f} ratio={0.70 + 0.006 * c.n():.3f}"
        )
    o += ["cos(v_pred, v_tgt): -0.70", "loss (against velocity): 2.91", "loss (against noise): 0.058"]
    return c.write("target_probe.txt", o)


@H(
    "h-f35",
    "key: value lines",
    "bf16_rounding",
    (),
    "teacher_mse in bf16 rises from 4e-5 (N=5) to 1.9e-2 (N=120) for 6 batches; in fp32 1e-10: the state is rounded.",
)
def _(c):
    o = ["integrating the exact velocity x1 - x0 (no network)"]
    for b in range(6):
        for n, m in ((5, 4.4e-5), (10, 1.5e-4), (20, 5.7e-4), (40, 2.2e-3), (60, 4.8e-3), (80, 8.6e-3), (120, 1.9e-2)):
            o.append(f"batch: {b} dtype: bf16 N: {n} teacher_mse: {m * math.exp(0.05 * c.n()):.3e}")
        for n in (5, 120):
            o.append(f"batch: {b} dtype: fp32 N: {n} teacher_mse: {1.1e-10 * math.exp(0.05 * c.n()):.3e}")
    return c.write("teacher_euler.log", o)


@H(
    "h-f36",
    "step trace as in note 000",
    "bf16_rounding",
    (),
    "With num_steps=200 in bf16 |x| keeps exactly 0.8008 for nearly all steps although |v| = 0.98; with fp32 it goes to 0.91. The start value is right.",
)
def _(c):
    N = 200
    dt = np.full(N, 1 / N)
    cum = np.arange(N) / N
    x = np.full(N, 0.8008)
    x[150:] = 0.8047
    return c.write(
        "trace.txt",
        ["[bf16] sampling, 200 steps, uniform"]
        + c.trace(x, np.full(N, 0.9766), dt, low=True)
        + ["[fp32] sampling, 200 steps, uniform"]
        + c.trace(0.7994 + 0.02 * cum + 0.09 * cum**2, 0.98 - 0.05 * cum + 0.0002 * c.n(N), dt),
    )


@H(
    "h-f37",
    "sampling trace, key=value dialect",
    "scale_mismatch",
    ("latent_scale_factor",),
    "x_abs at step 0 is 4.38 (expected about 0.80 for a unit normal z0), 5.5x too large, moving smoothly in fp32: the starting point was divided by 0.18215.",
    phrase="the sampler starts from a z0 of the wrong scale",
)
def _(c):
    o = ["state=float32 N=30 schedule=uniform z0~N(mu,sigma) expected mean|z0|=0.798"]
    for j in range(2):
        for i in range(30):
            f = i / 30
            o.append(
                f"step{i}: |x|={4.381 + 0.01 * j + 0.05 * f + 0.0005 * c.n():.4f}, |v|={0.47 - 0.01 * f + 0.0005 * c.n():.4f}, dt=0.0333"
            )
    return c.write("sample_trace.log", o)


@H(
    "h-f38",
    "aligned text table",
    "t_edges",
    ("time_sampling",),
    "Loss per t-bin at the end: 0.3 in the middle but 0.95 and 1.2 in the first and last bins; cos likewise 0.2 and 0.1 at the ends.",
    phrase="the ends of t are not learned",
)
def _(c):
    o = ["nmse and cos per t-slice, (a,b], every 2000 steps"]
    for k in range(2000, 24001, 2000):
        f = (1 + k / 1500) ** -0.7
        for b in range(10):
            e = {0: 0.93, 1: 0.5, 8: 0.62, 9: 1.15}.get(b, 0.28)
            nm = (e + (1 - e) * f) * math.exp(0.02 * c.n())
            o.append(f"step {k:6d}  flow/nmse_t{b} {nm:.4f}  flow/cos_t{b} {math.sqrt(max(0.003, 1 - nm)):.4f}")
    return c.write("tslices.txt", o)


@H(
    "h-f39",
    "JSON lines",
    "time_sampling",
    ("t_edges",),
    "time.mean 0.81 and time.std 0.07 (min 0.62) where the config says uniform on [0,1] (0.5 and 0.289): early times are never seen.",
)
def _(c):
    s = np.arange(0, 9000, 45)
    n = len(s)
    return c.jsonl(
        "log.jsonl",
        rows(
            {
                "step": s,
                "fm_loss": c.loss(s, 1.2, 0.6, 400, 0.6, 0.03),
                "t/mean": c.add(np.full(n, 0.81), 0.006),
                "t/std": c.add(np.full(n, 0.071), 0.003),
                "t/min": c.add(np.full(n, 0.62), 0.01),
                "t/max": c.add(np.full(n, 0.985), 0.005),
                "lr": np.full(n, 1e-4),
            }
        ),
        4,
        head=[{"config": {"time_dist": "uniform", "t_range": [0.0, 1.0], "batch": 128}}],
    )


@H(
    "h-f40",
    "HF Trainer printed dicts",
    "input_range",
    (),
    "x_0/min 0, x_0/max 255, x_0/mean 121, x_0/std 66; loss starts at 19,000: images enter unnormalised.",
)
def _(c):
    o = []
    for k in range(10, 2001, 10):
        o.append(
            str(
                {
                    "loss": round(float(decay(k, 19100, 2600, 200)) * math.exp(0.05 * c.n()), 1),
                    "x_0/min": 0.0,
                    "x_0/max": 255.0,
                    "x_0/mean": round(121 + 3 * c.n(), 2),
                    "x_0/std": round(66 + 1.2 * c.n(), 2),
                    "noise/std": round(1 + 0.001 * c.n(), 4),
                    "learning_rate": 1e-4,
                    "epoch": round(k / 1000, 2),
                }
            )
        )
    return c.write("hf_stdout.txt", o)


@H(
    "h-f41",
    "key: value lines",
    "input_range",
    (),
    "img_min 0.000 img_max 1.000 img_mean 0.51 img_std 0.25 in every line; config says expected range [-1, 1]: Normalize missing; reconstructions washed out (psnr 16).",
    phrase="images are in [0,1] instead of [-1,1]",
)
def _(c):
    o = ["expected image range: [-1, 1]"]
    for k in range(0, 4000, 25):
        o.append(
            f"iter: {k} loss_flow: {decay(k, 1.2, 0.84, 300) * (1 + 0.02 * c.n()):.4f} img_min: 0.000 img_max: 1.000 img_mean: {0.51 + 0.01 * c.n():.3f} img_std: {0.25 + 0.005 * c.n():.3f} psnr: {16.1 + 0.1 * c.n():.2f}"
        )
    return c.write("data_check.log", o)


@H(
    "h-f42",
    "JSON lines",
    "schedule_constants",
    (),
    "const/alphas_cumprod ends at 0.36 (T=100 with the betas of T=1000): at the last step 60 % of the signal is left; expected 4e-5.",
)
def _(c):
    b = np.linspace(1e-4, 0.02, 100)
    a = np.cumprod(1 - b)
    s = np.arange(0, 6000, 40)
    return c.jsonl(
        "run.jsonl",
        rows(
            {
                "step": s,
                "loss": c.loss(s, 1.0, 0.06, 300, 0.9, 0.05),
                "stat/t/mean": c.add(np.full(len(s), 49.5), 2),
                "stat/x_0/std": c.jit(np.full(len(s), 1.0), 0.002),
            }
        ),
        5,
        head=[
            {
                "step": 0,
                "const/betas": [sig(x, 5) for x in b],
                "const/alphas_cumprod": [sig(x, 6) for x in a],
                "const/sqrt_alphas_cumprod": [sig(x**0.5, 6) for x in a],
            },
            {"const/alphas_cumprod_first": sig(a[0], 6), "const/alphas_cumprod_last": sig(a[-1], 6), "T": 100},
        ],
    )


@H(
    "h-f43",
    "detectron2 lines",
    "teacher_collapsed",
    ("student_saturated", "weak_gradient_share"),
    "teacher_entropy 0.002 out of log 65536 = 11.09 all the time: one-hot teacher; the student collapses after it.",
)
def _(c):
    o = ["[08/01 10:00:00 dino]: prototypes 65536, teacher_temp 0.005, student_temp 0.1"]
    for k in range(19, 10000, 40):
        e = math.exp(-k / 600)
        o.append(
            f"[08/01 1{k // 2000}:{k // 40 % 60:02d}:00 d2.utils.events]:  iter: {k}  total_loss: {decay(k, 1.7, 0.7, 500) + 0.1 + 4 * e:.4f}  loss_flow: {decay(k, 1.7, 0.7, 500) * (1 + 0.02 * c.n()):.4f}  loss_dino: {0.03 + 7 * e + 0.005 * abs(c.n()):.4f}  teacher_entropy: {0.002 * math.exp(0.2 * c.n()):.5f}  student_entropy: {0.02 + 9 * e:.4f}  lr: 0.0001  max_mem: 30011M"
        )
    return c.write("dino.log", o)


@H(
    "h-f44",
    "JSON lines",
    "teacher_uniform",
    (),
    "teacher_entropy 9.7041 = log 16384 in every record and dino_loss the same number: the teacher is uniform.",
)
def _(c):
    s = np.arange(0, 7000, 35)
    n = len(s)
    return c.jsonl(
        "dino.jsonl",
        rows(
            {
                "iter": s,
                "dino_loss": 9.7041 + 0.0003 * np.abs(c.n(n)),
                "flow_loss": c.loss(s, 1.6, 0.7, 400, 0.6, 0.02),
                "teacher_entropy": 9.7041 - 0.00005 * np.abs(c.n(n)),
                "student_entropy": 9.7035 - 0.0005 * np.abs(c.n(n)),
                "log_K": np.full(n, 9.7041),
                "lr": np.full(n, 1e-4),
            }
        ),
        6,
    )


@H(
    "h-f45",
    "TensorBoard event file",
    "student_saturated",
    ("weak_gradient_share",),
    "ent/student 0.1 of log K 9.01 with grad/dino at 2 % of grad/total; ent/teacher 3.8: the student is saturated.",
)
def _(c):
    s = np.arange(0, 12000, 80)
    d = c.ret(s, slices=False, endpt=False, tau=500)
    f = np.exp(-s / 700)
    d["ent/student"] = c.jit(0.1 + 5 * f, 0.05)
    d["grad/dino"] = d["grad/flow"] * c.jit(0.02 + 0.3 * f, 0.1)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2 + d["grad/dino"] ** 2)
    d["loss/dino"] = c.jit(7.2 + 0.4 * f, 0.01)
    total(d, 1, 0.01, 0.5)
    st = d.pop("step")
    return c.tb("tb_logs/v4", {k: (st, v) for k, v in d.items()}, "2025-10-01T00:00:00")


@H(
    "h-f46",
    "W&B history CSV",
    "head_not_updated",
    ("lr_too_small",),
    "step/flow_head_update_ratio 2e-8 for the whole run against 5e-4 of the z head: the flow head is frozen (not in the optimizer); loss/flow stops at the level the rest can reach.",
)
def _(c):
    s = np.arange(0, 9000, 60)
    n = len(s)
    return c.csv(
        "wandb.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.6,
                "_timestamp": 1.76e9 + s * 0.6,
                "loss/flow": c.loss(s, 1.8, 1.35, 500, 0.6, 0.015),
                "step/z_head_update_ratio": c.jit(np.full(n, 5e-4), 0.15),
                "step/flow_head_update_ratio": c.jit(np.full(n, 2e-8), 0.2),
                "lr": np.full(n, 1e-4),
                "grad_norm": c.jit(np.full(n, 0.5), 0.15),
            }
        ),
    )


@H(
    "h-f47",
    "torchtitan lines",
    "resume_from_scratch",
    (),
    "After 'Loading the checkpoint at step 6000' the loss is 1.98 again (0.80 before) and falls like a new run; the step counter continues.",
)
def _(c):
    def seg(a, b, off):
        s = np.arange(a, b, 10)
        L, g = c.loss(s - off, 1.98, 0.62, 350, 0.7, 0.02), c.gnorm(s - off, 3.8, 0.35, 120)
        return [
            f"[titan] 2025-04-11 {k // 400 % 24:02d}:{k // 7 % 60:02d}:31,005 - root - INFO - step: {k:5d}  loss: {L[i]:7.4f}  grad_norm: {g[i]:7.4f}  memory: 58.10GiB(73.4%)  tps: {3011 + 20 * c.n():,.0f}"
            for i, k in enumerate(s)
        ]

    return c.write(
        "titan.log",
        seg(10, 6001, 0)
        + [
            "[titan] 2025-04-12 09:00:01,311 - root - INFO - Loading the checkpoint at step 6000.",
            "[titan] 2025-04-12 09:00:09,870 - root - INFO - Finished loading the checkpoint in 8.56 seconds. (optimizer: yes, dataloader: yes, model: 0 tensors)",
        ]
        + seg(6010, 10001, 6000),
    )


@H(
    "h-f48",
    "key=value lines",
    "self_stopped",
    ("grad_explosion", "divergence"),
    "The trainer raised its own alarm ('grad_norm above 1000 for 50 consecutive steps, stopping') at step 3,870 of 50,000.",
)
def _(c):
    o = ["max_steps=50000 watchdog=on grad_norm_limit=1000 patience=50"]
    for k in range(0, 3871, 10):
        g = 0.6 if k < 3700 else min(4000, 0.6 * math.exp((k - 3700) / 14))
        o.append(
            f"step={k} loss={decay(k, 1.5, 0.7, 300) * math.exp(0.02 * c.n()) * (1 if k < 3750 else 1.5):.4f} grad_norm={g * math.exp(0.15 * c.n()):.3f} lr=1.0e-04"
        )
    o += [
        "WATCHDOG ALARM at step 3870: grad_norm above 1000 for 50 consecutive steps, stopping",
        "training stopped by watchdog (exit code 3)",
    ]
    return c.write("run.out", o)


@H(
    "h-f49",
    "W&B history CSV",
    "metrics_lost",
    (),
    "eval/fid, eval/clip_score and eval/v_cos hold values up to 8k, then NaN in every evaluation row to 24k; train/loss continues.",
)
def _(c):
    s = np.arange(0, 24000, 60)
    R = rows(
        {
            "_step": s,
            "_runtime": s * 0.4,
            "_timestamp": 1.748e9 + s * 0.4,
            "train/loss": c.loss(s, 1.5, 0.64, 600, 0.6, 0.02),
            "lr": warmconst(s, 1e-4, 600),
        }
    )
    for k in range(600, 24000, 600):
        q = R[k // 60]
        ok = k < 8000
        q["eval/fid"] = 160 - k / 100 if ok else float("nan")
        q["eval/clip_score"] = 0.2 + k / 2e5 if ok else float("nan")
        q["eval/v_cos"] = 0.75 - 0.6 * (1 + k / 600) ** -0.6 if ok else float("nan")
    return c.csv("hist.csv", R)


@H(
    "h-f50",
    "CSV",
    "amp_overflow",
    ("no_learning", "nan_loss"),
    "amp/scale falls from 65536 to 7e-10 in steps of 1/2 and amp/skipped grows to 97 % of the steps, grad_norm inf; loss flat: fp16 overflow at every step.",
)
def _(c):
    R, sc, sk = [], 65536.0, 0
    for k in range(0, 600):
        ov = c.rng.random() < 0.97
        sk += ov
        if ov and k % 13 == 0 and sc > 1e-9:
            sc /= 2
        R.append(
            {
                "step": k,
                "loss": 1.83 + 0.02 * c.n(),
                "amp/scale": sc,
                "amp/skipped_steps": int(sk),
                "grad_norm": float("inf") if ov else 3.1,
                "lr": 1e-4,
            }
        )
    return c.csv("amp.csv", R, digits=6)


@H(
    "h-f51",
    "Lightning metrics.csv",
    "condition_unused",
    ("text_ignored",),
    "val/loss_true_caption and val/loss_shuffled_caption agree to 0.1 % in every epoch, val/cond_gain_cos is 0.000: the captions are not used, though the loss is good.",
)
def _(c):
    s = np.arange(24, 12000, 50)
    R = rows({"epoch": s // 600, "step": s, "train/loss": c.loss(s, 1.5, 0.66, 500, 0.6, 0.02)})
    for e in range(20):
        v = decay(e * 600 + 600, 1.5, 0.67, 500)
        R.append(
            {
                "epoch": e,
                "step": e * 600 + 599,
                "val/loss_true_caption": v * (1 + 0.0004 * c.n()),
                "val/loss_shuffled_caption": v * (1 + 0.0004 * c.n()),
                "val/cond_gain_cos": -0.0004 + 0.0006 * c.n(),
                "val/v_cos": 0.77 - 0.6 * (1 + e) ** -0.8,
                "lr-AdamW": 1e-4,
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.csv("metrics.csv", R)


@H(
    "h-f52",
    "Markdown table",
    "train_infer_mismatch",
    ("step_schedule",),
    "One-step cos 0.83, speed ratio 0.85, but the endpoint RMSE rises with the number of steps (Euler and Heun alike): trained and integrated field differ.",
)
def _(c):
    o = [
        "# Rollout",
        "",
        "flow/cos 0.83, flow/speed_ratio 0.85, flow/nmse 0.31, std/mean 0.97, z0_norm 63.8, z1_norm 64.4.",
        "",
        "| step | endpt_rmse@8 | endpt_rmse@16 | endpt_rmse@32 | endpt_rmse@64 |",
        "|---:|---:|---:|---:|---:|",
    ]
    o += [
        f"| {k} | {1.18 + 0.01 * c.n():.3f} | {1.34 + 0.01 * c.n():.3f} | {1.47 + 0.01 * c.n():.3f} | {1.58 + 0.01 * c.n():.3f} |"
        for k in range(5000, 60001, 3000)
    ]
    o += ["", "Heun gives 1.21 / 1.36 / 1.49 / 1.59. The teacher field in fp32 ends at 1e-10 for all K."]
    return c.write("rollout.md", o)


@H(
    "h-f53",
    "JSON lines",
    "ema_broken",
    (),
    "val/loss of the raw weights falls to 0.63, val/ema_loss stays at 1.897 (initial value) for all 30k steps and ema/fid at 370 while fid falls to 30: the EMA copy is never updated.",
)
def _(c):
    s = np.arange(0, 30000, 100)
    R = rows({"step": s, "loss": c.loss(s, 1.9, 0.62, 700, 0.6, 0.02), "lr": warmconst(s, 1e-4, 1000)})
    for k in range(1000, 30001, 1000):
        R.append(
            {
                "step": k,
                "val/loss": decay(k, 1.9, 0.63, 700),
                "val/ema_loss": 1.897 + 0.0006 * c.n(),
                "val/fid": 30 + 300 * math.exp(-k / 4000),
                "val/ema_fid": 370 + 1.1 * c.n(),
                "ema/decay": 1.0,
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.jsonl("metrics.jsonl", R, 5)


@H(
    "h-f54",
    "HF Trainer printed dicts",
    "kl_not_acting",
    ("weak_gradient_share", "scale_mismatch"),
    "kl rises from 0.6 to 40, mu_abs from 0.8 to 7.1 and z_init_var from 1.3 to 80, although kl_weight 1e-9 is set: nothing holds the posterior at the prior.",
)
def _(c):
    o = []
    for k in range(25, 10001, 25):
        mu = 1.0 + 8 * (k / 10000) ** 0.8
        o.append(
            str(
                {
                    "loss": round(float(decay(k, 1.9, 0.8, 400)) * math.exp(0.025 * c.n()), 4),
                    "kl": round(0.5 * (mu * mu + 0.6 - 1 + 0.5) * (1 + 0.01 * c.n()), 3),
                    "kl_weight": 1e-09,
                    "mu_abs": round(0.79 * mu, 3),
                    "std_mean": round(0.78 + 0.005 * c.n(), 3),
                    "z_init_var": round(mu * mu + 0.6, 2),
                    "learning_rate": 1e-4,
                    "epoch": round(k / 2500, 2),
                }
            )
        )
    return c.write("out.log", o)


@H(
    "h-f55",
    "step trace as in note 000",
    "step_schedule",
    ("train_infer_mismatch",),
    "Uniform grid with num_steps=20 but dt=0.1000 in every step: the sum is 2.0, the path is overshot (|x| runs away to 1.9 in the second half).",
)
def _(c):
    o = ["num_steps=20 schedule=uniform t in [0,1] state=float32"]
    for j in range(3):
        cum = np.arange(20) * 0.1
        o += c.trace(0.798 + 0.001 * c.n() + 0.08 * cum + 0.24 * cum**2, 0.97 + 0.05 * cum, np.full(20, 0.1))
    return c.write("euler.log", o)


@H(
    "h-f56",
    "Chinese Markdown report",
    "vae_roundtrip",
    ("latent_scale_factor",),
    "PSNR 9.8 dB on eight batches with latents of mean 0, std 1 and pixels in [-1, 1]: the VAE itself does not reconstruct.",
)
def _(c):
    o = [
        "# VAE 冒烟测试",
        "",
        "输入像素：范围 [-1.000, 1.000]，mean -0.03，std 0.52。",
        "",
        "| batch | latent mean | latent std | PSNR (dB) |",
        "|---|---|---|---|",
    ]
    o += [f"| {i} | {0.004 * c.n():.3f} | {1.0 + 0.01 * c.n():.3f} | {9.8 + 0.2 * c.n():.2f} |" for i in range(20)]
    o += [
        "",
        "- 重建像素：range [-0.21, 0.33]，PSNR=9.81 dB",
        "- decode(z) 与 decode(z * sf) 都是灰色块",
        "- 权重加载：missing keys 52",
    ]
    return c.write("vae.md", o)


@H(
    "h-f57",
    "fairseq JSON lines",
    "weak_gradient_share",
    (),
    "gnorm_flow is 3 % of gnorm_total, dino 99 %: w_dino 20 drowns the flow loss, flow_cos stays at 0.2.",
    phrase="the flow term is drowned by the DINO term",
)
def _(c):
    o = []
    for k in range(100, 15001, 100):
        g = 0.3 * math.exp(0.1 * c.n())
        o.append(
            "2025-01-20 10:00:00 | INFO | train_inner | "
            + json.dumps(
                {
                    "num_updates": str(k),
                    "loss_flow": f"{decay(k, 1.9, 1.79, 700) * (1 + 0.01 * c.n()):.4f}",
                    "loss_dino": f"{4 + 3 * math.exp(-k / 900) + 0.03 * c.n():.3f}",
                    "gnorm_flow": f"{g:.4f}",
                    "gnorm_dino": f"{g * 33:.3f}",
                    "gnorm_total": f"{g * 33.02:.3f}",
                    "flow_cos": f"{0.22 - 0.2 * (1 + k / 700) ** -0.6:.3f}",
                    "w_dino": "20.0",
                    "w_flow": "1.0",
                    "lr": "0.0001",
                }
            )
        )
    return c.write("f.log", o)


@H(
    "h-f58",
    "W&B chart CSV",
    "text_ignored",
    ("posterior_collapse", "condition_unused"),
    "head/mu_pairwise_cos rises to 0.9993 while head/mu_same_prompt_cos is 1: the means of all prompts coincide.",
)
def _(c):
    s = np.arange(0, 16000, 100)
    n = len(s)
    return c.chart(
        "mu_cos.csv",
        s,
        {
            "xuni-7 - head/mu_pairwise_cos": np.minimum(0.9996, 1 - 0.7 * np.exp(-s / 900) - 0.0007 + 0.0001 * c.n(n)),
            "xuni-7 - head/mu_same_prompt_cos": np.ones(n),
            "xuni-7 - head/mu_abs_mean": c.jit(np.full(n, 0.66), 0.01),
            "xuni-7 - train/loss_flow": c.loss(s, 1.6, 0.93, 600, 0.6, 0.02),
        },
    )


@H(
    "h-f59",
    "MMEngine lines",
    "weak_field",
    ("no_learning",),
    "v_cos 0.03 and v_ratio 0.31 after 26k iterations, the loss slightly above its start: field without direction and 3x too small.",
)
def _(c):
    o = []
    for k in range(50, 26001, 50):
        cs, r = 0.032 * (1 - math.exp(-k / 4000)) + 0.004 * c.n(), 0.31 + 0.006 * c.n()
        o.append(
            f"10/0{1 + k // 9000} {k // 400 % 24:02d}:{k // 7 % 60:02d}:30 - mmengine - INFO - Iter(train) [{k:>5d}/26000]  lr: {float(warmcos(k, 1e-4, 500, 26000, 1e-6)):.4e}  eta: 2:11:00  time: 0.5012  data_time: 0.0101  memory: 37772  loss: {2.05 * (1 + r * r - 2 * r * cs):.4f}  v_cos: {cs:.4f}  v_ratio: {r:.4f}"
        )
    return c.write("openuni.log", o)
