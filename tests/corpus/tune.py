"""The 'tune' half."""

import functools
import json
import math

import numpy as np

from lib import *

T = functools.partial(case, "tune")


# =====================================================================================  healthy
@T(
    "t-h01",
    "SiT/DiT log with ANSI colours",
    "none",
    story="""SiT-B/2 from scratch, 40k steps, mean loss over 100 steps.
Falls 1.42 -> 0.85 and flattens late, as flow-matching losses on SD latents do.""",
)
def _(c):
    s = np.arange(100, 40001, 100)
    L = c.loss(s, 1.42, 0.80, 900, 0.7, sd=0.009)
    w = c.wall("2024-02-11T09:14:02", len(s), 38)
    p = lambda t, m: f"[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] {m}"
    out = [
        p(w[0], "Experiment directory created at results/014-SiT-B-2-Linear-velocity-None"),
        p(w[0], "SiT Parameters: 130,591,776"),
        p(w[0], "Dataset contains 1,281,167 images (/data/imagenet/train)"),
        p(w[0], "Training for 1400 epochs..."),
        p(w[0], "Beginning epoch 0..."),
    ]
    for i, k in enumerate(s):
        if k % 5000 == 100 and k > 100:
            out.append(p(w[i], f"Beginning epoch {k // 5000}..."))
        out.append(p(w[i], f"(step={k:07d}) Train Loss: {L[i]:.4f}, Train Steps/Sec: {2.62 + 0.03 * c.n():.2f}"))
        if k % 10000 == 0:
            out.append(p(w[i], f"Saved checkpoint to results/014-SiT-B-2/checkpoints/{k:07d}.pt"))
    return c.write("log.txt", out)


@T(
    "t-h02",
    "nanoGPT style lines",
    "none",
    story="Short smoke run of 60 iterations x 20; noisy, falls clearly, val follows train.",
)
def _(c):
    s = np.arange(0, 1200, 20)
    L = c.loss(s, 2.02, 1.05, 90, 0.8, sd=0.035)
    out = [
        "number of parameters: 33.42M",
        "num decayed parameter tensors: 50, with 33,301,504 parameters",
        "using fused AdamW: True",
    ]
    for i, k in enumerate(s):
        if k % 200 == 0:
            v = decay(k, 2.02, 1.07, 90, 0.8)
            out.append(f"step {k}: train loss {v * (1 + 0.01 * c.n()):.4f}, val loss {v * (1.01 + 0.01 * c.n()):.4f}")
        out.append(f"iter {k}: loss {L[i]:.4f}, time {212 + 9 * c.n():.2f}ms, mfu {31.2 + 0.4 * c.n():.2f}%")
    return c.write("train.out", out)


@T(
    "t-h03",
    "JSON lines",
    "none",
    story="One spike x6 at step 7,400 (a bad batch, gradient clipped), recovered within 60 steps; the loss goes on falling.",
)
def _(c):
    s = np.arange(0, 20000, 20)
    L = c.loss(s, 1.9, 0.72, 600, 0.55, sd=0.03)
    g = c.gnorm(s, 2.5, 0.4, 500)
    m = (s >= 7400) & (s < 7460)
    L[m] *= np.array([6.1, 3.0, 1.5])
    g[m] *= np.array([22, 6, 2])
    ev = [
        {"step": int(k), "val/loss": decay(k, 1.9, 0.73, 600, 0.55) * (1 + 0.006 * c.n())}
        for k in range(1000, 20001, 1000)
    ]
    r = rows(
        {
            "step": s,
            "train/loss": L,
            "train/grad_norm": g,
            "train/lr": warmconst(s, 2e-4, 1000),
            "perf/img_per_s": 812 + 12 * c.n(len(s)),
            "mem_gb": 38.61,
        }
    )
    r = [x for x in r if not 9000 < x["step"] < 9300]  # a lost flush
    r = sorted(r + ev, key=lambda x: x["step"])
    return c.jsonl("metrics.jsonl", r, 5)


@T(
    "t-h04",
    "JSON lines, ret dictionary with config line",
    "none",
    story="""The KL is weak by design: std_range [0.9, 1.1] constrains
the head and the config says so (anchor). The KL share is 2 %, mu and std stay where the recipe puts them; flow is fine.""",
)
def _(c):
    s = np.arange(0, 12000, 100)
    d = c.ret(s, dino=False, mu=(0.55, 0.5), std=(1.0, 1.0), tau=500, wkl=1e-4)
    n = len(s)
    d["std/mean"] = 1 + 0.004 * c.n(n)
    d["std/min"], d["std/max"] = np.full(n, 0.9), np.full(n, 1.1)
    d["logvar/mean"] = 2 * np.log(d["std/mean"]) - 0.004
    d["grad/kl"] = d["grad/flow"] * c.jit(np.full(n, 0.021), 0.1)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2)
    return c.jsonl(
        "log.jsonl",
        rows(d),
        6,
        head=[
            {
                "event": "config",
                "head": "transformer",
                "std_range": [0.9, 1.1],
                "anchor": 1.0,
                "w_flow": 1.0,
                "w_kl": 1e-4,
                "lr": 1e-4,
                "batch": 256,
                "precision": "bf16",
            }
        ],
    )


@T(
    "t-h05",
    "HF Trainer printed dicts",
    "none",
    story="""Fine-tuning from a good checkpoint: the loss is flat at 0.41 from the start,
because it is already good; eval_fm_cos 0.84 -> 0.86, eval_fid 19 -> 14 and eval_loss falling slightly show that it learns.""",
)
def _(c):
    s = np.arange(10, 3001, 10)
    L = c.jit(np.full(len(s), 0.415) - 0.012 * s / 3000, 0.04, 0.1)
    g = c.jit(np.full(len(s), 0.31), 0.12)
    lr = warmcos(s, 2e-5, 100, 3000)
    out = [
        "Loading checkpoint shards: 100%|██████████| 3/3 [00:04<00:00,  1.42s/it]",
        "[INFO|trainer.py:2414] 2025-06-03 21:10:44,118 >> ***** Running training *****",
        "[INFO|trainer.py:2415] 2025-06-03 21:10:44,118 >>   Num examples = 96,000",
        "Initialized flow transformer from ckpt/stage1_final (0 missing keys, 0 unexpected keys)",
    ]
    for i, k in enumerate(s):
        out.append(
            plain(
                {
                    "loss": round(L[i], 4),
                    "grad_norm": sig(g[i], 16),
                    "learning_rate": sig(lr[i], 16),
                    "epoch": round(k / 1000, 2),
                }
            )
        )
        if k % 300 == 0:
            f = k / 3000
            out.append(
                plain(
                    {
                        "eval_loss": round(0.423 - 0.014 * f + 0.0008 * c.n(), 6),
                        "eval_fm_cos": round(0.842 + 0.018 * f + 0.001 * c.n(), 4),
                        "eval_speed_ratio": round(0.87 + 0.01 * f, 4),
                        "eval_fid": round(19.1 - 5 * f + 0.2 * c.n(), 2),
                        "eval_runtime": round(61 + c.n(), 4),
                        "eval_samples_per_second": round(32.7 + 0.3 * c.n(), 3),
                        "epoch": round(k / 1000, 2),
                    }
                )
            )
    out.append(
        plain(
            {"train_runtime": 5213.1, "train_samples_per_second": 18.4, "train_loss": round(L.mean(), 6), "epoch": 3.0}
        )
    )
    return c.write("train.log", out)


@T(
    "t-h06",
    "W&B history CSV",
    "none",
    story="Long warm-up (5k of 50k) and cosine to exactly 0 at the end; the LR of 0 in the last row is the schedule, the loss fell 1.7 -> 0.6.",
)
def _(c):
    s = np.arange(0, 50001, 50)
    L = c.loss(np.maximum(0, s - 1500), 1.71, 0.58, 1500, 0.6, sd=0.025)
    w = 1712000000 + s * 0.62
    v = [
        decay(max(0, k - 1500), 1.71, 0.6, 1500, 0.6) * (1 + 0.004 * c.n()) if k % 2500 == 0 and k else None for k in s
    ]
    return c.csv(
        "wandb_history.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.62 + 4.1,
                "_timestamp": w,
                "train/fm_loss": L,
                "train/learning_rate": warmcos(s, 3e-4, 5000, 50000),
                "train/grad_norm": c.gnorm(s, 1.1, 0.23, 2000),
                "val/fm_loss": v,
                "system/gpu.0.memory": 71.2 + 0.05 * c.n(len(s)),
            }
        ),
        digits=7,
    )


@T(
    "t-h07",
    "Lightning metrics.csv",
    "none",
    story="VAE-only training (KL-f8 with discriminator from 20k on): KL is a sum in the ten thousands and rises slowly, rec_loss falls; that is how these runs look.",
)
def _(c):
    s = np.arange(49, 30000, 50)
    rec = c.loss(s, 0.62, 0.115, 700, 0.7, sd=0.05)
    kl = c.jit(9000 + 21000 * (1 - np.exp(-s / 4000)), 0.02)
    on = s >= 20000
    R = rows(
        {
            "epoch": s // 3000,
            "step": s,
            "train/rec_loss": rec,
            "train/kl_loss": kl,
            "train/total_loss": rec * 1.02 + 1e-6 * kl + on * 0.05 * c.n(len(s)),
            "train/logvar": np.zeros(len(s)),
            "aeloss_step": rec * 1.02 + 1e-6 * kl,
            "train/disc_loss": np.where(on, c.jit(np.full(len(s), 0.98), 0.01), 0.0),
            "lr-Adam": np.full(len(s), 4.5e-6),
        }
    )
    for e in range(10):
        k = e * 3000 + 2999
        R.append(
            {
                "epoch": e,
                "step": k,
                "val/rec_loss": decay(k, 0.62, 0.118, 700, 0.7) * (1 + 0.01 * c.n()),
                "val/psnr": 20.5 + 6.5 * (1 - math.exp(-k / 5000)) + 0.05 * c.n(),
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.csv("lightning_logs/version_3/metrics.csv", R, digits=8)


@T(
    "t-h08",
    "MMEngine lines",
    "none",
    story="""OpenUni style run, preempted at iter 11,800 and resumed from iter_10000: steps 10,050 to 11,800
appear twice, the loss continues where the checkpoint was.""",
)
def _(c):
    def run(a, b, t0):
        s = np.arange(a, b, 50)
        L = c.loss(s, 1.61, 0.71, 800, 0.6, sd=0.02)
        w = c.wall(t0, len(s), 28)
        o = []
        for i, k in enumerate(s):
            lr = float(warmcos(k, 1e-4, 1000, 26000, 1e-6))
            o.append(
                f"{w[i]:%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{k:5d}/26000]  lr: {lr:.4e}  eta: {hms((26000 - k) * 0.56)}  time: {0.56 + 0.01 * c.n():.4f}  "
                f"data_time: {abs(0.011 + 0.002 * c.n()):.4f}  memory: 41233  loss: {L[i] + 0.0021:.4f}  loss_flow: {L[i]:.4f}  loss_kl: {0.0021 + 0.00005 * c.n():.4f}"
            )
            if k % 2000 == 0:
                o.append(f"{w[i]:%m/%d %H:%M:%S} - mmengine - INFO - Saving checkpoint at {k} iterations")
        return o

    out = ["07/02 10:00:11 - mmengine - INFO - Load checkpoint from pretrained/InternVL3-1B"] + run(
        50, 11801, "2025-07-02T10:01:00"
    )
    out += [
        "slurmstepd: error: *** JOB 88121 ON gpu-07 CANCELLED DUE TO PREEMPTION ***",
        "07/02 19:40:02 - mmengine - INFO - Load checkpoint from work_dirs/openuni/iter_10000.pth",
        "07/02 19:40:09 - mmengine - INFO - resumed epoch: 0, iter: 10000",
    ] + run(10050, 26001, "2025-07-02T19:41:00")
    return c.write("20250702_100011.log", out)


@T(
    "t-h09",
    "diffusers tqdm bars",
    "none",
    story="""LoRA fine-tuning of SD3 with batch 1: step_loss between 0.02 and 0.9 without a visible trend, which is normal
because it depends on t; the averaged validation loss on fixed noise falls at every check.""",
)
def _(c):
    N = 1500
    s = np.arange(1, N + 1)
    L = np.clip(0.28 * np.exp(0.65 * c.n(N)) * (1 - 0.12 * s / N), 0.015, 1.1)
    out = [
        "03/18/2025 14:02:51 - INFO - __main__ - ***** Running training *****",
        "03/18/2025 14:02:51 - INFO - __main__ -   Num examples = 27",
        "03/18/2025 14:02:51 - INFO - __main__ -   Instantaneous batch size per device = 1",
        f"03/18/2025 14:02:51 - INFO - __main__ -   Total optimization steps = {N}",
    ]
    for k in range(1, N + 1):
        out.append("Steps: " + bar(k, N, k * 1.37, post=f"loss={L[k - 1]:.4g}, lr={1e-4 if k > 20 else k * 5e-6:.3g}"))
        if k % 150 == 0:
            out.append(
                f"03/18/2025 14:{2 + k // 50:02d}:10 - INFO - __main__ - step {k}: val_loss={0.3212 - 0.05 * (1 - math.exp(-k / 600)) + 0.0008 * c.n():.5f} (fixed noise, 128 images)"
            )
    return c.write("slurm-41223.out", out)


@T(
    "t-h10",
    "key=value lines",
    "none",
    story="Only step and mse are logged. The curve falls steadily and evenly; nothing else can be said.",
)
def _(c):
    s = np.arange(0, 4000, 25)
    L = c.loss(s, 1.31, 0.44, 300, 0.7, sd=0.03)
    return c.write("run.txt", [f"step={k} mse={L[i]:.5f}" for i, k in enumerate(s)])


@T(
    "t-h11",
    "TensorBoard event file",
    "none",
    story="Ordinary flow run: train loss, lr with warm-up, grad_norm, val loss every 1,000 steps.",
)
def _(c):
    s = np.arange(0, 30000, 50)
    e = np.arange(1000, 30001, 1000)
    return c.tb(
        "tb",
        {
            "train/loss": (s, c.loss(s, 1.55, 0.66, 900, 0.6, 0.02)),
            "train/grad_norm": (s, c.gnorm(s, 1.8, 0.35, 600)),
            "train/lr": (s, warmcos(s, 1e-4, 2000, 60000)),
            "val/loss": (e, c.jit(decay(e, 1.55, 0.67, 900), 0.005)),
            "val/cos_sim": (e, c.add(0.82 - 0.6 * (1 + e / 900) ** -0.6, 0.003)),
            "time/data": (s, 0.01 + 0.001 * np.abs(c.n(len(s)))),
        },
        "2025-01-04T03:00:00",
    )


@T(
    "t-h12",
    "MLflow metric files",
    "none",
    story="Healthy run tracked with MLflow; train every 20 steps, validation every 500.",
)
def _(c):
    s = np.arange(0, 12000, 20)
    e = np.arange(500, 12001, 500)
    return c.mlflow(
        "3",
        "9c41f0aa7d1e4b0f8a2d6c5571e0b3d4",
        {
            "train_loss": (s, c.loss(s, 1.2, 0.5, 500, 0.6, 0.03)),
            "learning_rate": (s, warmcos(s, 5e-5, 300, 12000, 5e-7)),
            "grad_norm": (s, c.gnorm(s, 0.9, 0.25, 500)),
            "val_loss": (e, c.jit(decay(e, 1.2, 0.515, 500), 0.006)),
            "gpu_mem_mb": (s, 30211 + 3 * c.n(len(s))),
        },
        "2025-04-20T08:00:00",
    )


@T(
    "t-h13",
    "Chinese Markdown report as in note 002",
    "none",
    story="Report of a DDPM run: every range, t statistic and constant is as expected, loss falls 95 %.",
)
def _(c):
    return c.write(
        "report.md",
        """# Diffusion 训练检查（2025-08-30）

## 输入
- `x_0` 范围: [-5.91, 4.77]
- `x_0` 均值: [-0.0011, 0.0009]
- `x_0` 标准差: [0.995, 1.004]
- NaN/Inf: 0 次

## 时间步
- `t` 范围: [0, 999]
- `t` 均值: [402.2, 588.0]（期望值约500）
- `t` 标准差: [252.4, 331.9]（期望约289）

## 前向过程
- `noise` 均值: [-0.0021, 0.0018]
- `noise` 标准差: [0.998, 1.002]
- `x_t` 标准差: [0.997, 1.003]
- NaN/Inf: 0 次

## 模型输出
- `predicted_x0` 标准差: 从 0.49 增加到 0.97
- `predicted_x0` 范围: 早期 [-2.2, 2.4]，后期 [-5.8, 4.6]
- NaN/Inf: 0 次

## 损失
- 损失范围: [0.048, 1.29]
- 初始损失（前10个）: 1.21
- 最终损失（后10个）: 0.061
- 损失下降: 94.96%
- 异常高损失（>1.0）: 41次，全部出现在训练初期

## 常数
- `betas` 范围: [0.0001, 0.02]
- `alphas_cumprod` 前10个: [0.9999, 0.9981]
- `alphas_cumprod` 后10个: [4.84e-5, 4.04e-5]

总日志行数: 88,410；损失样本数 10,012。
""",
    )


@T(
    "t-h14",
    "step trace as in note 000",
    "none",
    story="Two fp32 sampling traces with the logit-normal grid, N=50: |x| starts at 0.79, moves at every step, |v| steady, dt symmetric.",
)
def _(c):
    dt = logit_normal_dt(50)
    cum = np.concatenate([[0], np.cumsum(dt)[:-1]])
    out = ["Using fp32 for the state, num_steps=50, cfg off"]
    for j in range(2):
        x = 0.7886 + 0.0004 * c.n() + 0.075 * cum + 0.028 * cum**3
        v = 0.468 - 0.02 * cum + 0.0002 * c.n(50)
        out += c.trace(x, v, dt) + [f"{j + 1}it [00:{21 + 18 * j}, 19.8{j}s/it]"]
    return c.write("sample.log", out)


@T(
    "t-h15",
    "several interleaved ranks",
    "none",
    story="Four ranks print their own (unreduced) loss; ranks scatter around each other, all fall together.",
)
def _(c):
    s = np.arange(0, 6000, 25)
    base = decay(s, 1.8, 0.69, 400)
    per = [c.jit(base, 0.05, 0.1) for _ in range(4)]
    out = [f"[rank{r}]: NCCL version 2.21.5+cuda12.4" for r in range(4)]
    for i, k in enumerate(s):
        for r in c.rng.permutation(4):
            out.append(
                f"[rank{r}]: step {k:>6d} | loss_flow {per[r][i]:.4f} | lr {float(warmconst(k, 1e-4, 500)):.2e} | {1.9 + 0.05 * c.n():.2f} s/it"
            )
    return c.write("torchrun.log", out)


@T(
    "t-h16",
    "HF trainer_state.json",
    "none",
    story="Healthy: loss and eval_loss fall together, linear LR to 0 at the end.",
)
def _(c):
    s = np.arange(25, 9001, 25)
    L = c.loss(s, 1.48, 0.62, 500, 0.55, 0.03)
    g = c.gnorm(s, 1.4, 0.5, 400)
    h = []
    for i, k in enumerate(s):
        k = int(k)
        h.append(
            {
                "epoch": k / 3000,
                "grad_norm": g[i],
                "learning_rate": 1e-4 * (1 - k / 9000),
                "loss": round(L[i], 4),
                "step": k,
            }
        )
        if k % 500 == 0:
            h.append(
                {
                    "epoch": k / 3000,
                    "eval_loss": decay(k, 1.48, 0.64, 500, 0.55) * (1 + 0.004 * c.n()),
                    "eval_runtime": 20.1,
                    "eval_samples_per_second": 50.9,
                    "step": k,
                }
            )
    return c.trainer_state("checkpoint-9000/trainer_state.json", h)


@T("t-h17", "W&B chart CSV", "none", story="Chart export of loss_flow and its validation for one run, healthy.")
def _(c):
    s = np.arange(0, 15000, 100)
    L = c.loss(s, 1.74, 0.61, 700, 0.6, 0.02)
    V = c.jit(decay(s, 1.74, 0.625, 700), 0.006)
    return c.chart(
        "wandb_export_2025-05-11T10_22_01.csv",
        s,
        {"crossflow-b256 - train/loss_flow": L, "crossflow-b256 - val/loss_flow": V},
    )


@T(
    "t-h18",
    "debug probes as in note 004",
    "none",
    story="""VAE 30.4 dB, means of different prompts 0.2-0.4 with the same prompt at 1.000, one-step cos 0.6-0.8 with ratio 0.7-0.85,
shooting 0.31 of the initial distance and falling with steps, teacher Euler flat in fp32.""",
)
def _(c):
    o = [
        "# 2025-10-02 iter 92000",
        "[vae] z range [-4.312, 5.120], mean -0.010, var 1.021",
        "[vae] recon PSNR=30.41 dB",
        "[text] cos(mu): (a cat, a cat) = 1.000",
    ]
    o += [
        f"[text] cos(mu): ({a}, {b}) = {v:.3f}"
        for a, b, v in (
            ("a cat", "a car", 0.31),
            ("a cat", "a red apple", 0.262),
            ("a car", "a red apple", 0.218),
            ("a dog", "a cat", 0.402),
        )
    ]
    o += [
        f"[fm] t={t:.2f}  cos(v_pred, v_tgt)={x:.3f}  ||pred||/||tgt||={r:.3f}"
        for t, x, r in ((0.1, 0.642, 0.701), (0.37, 0.744, 0.78), (0.63, 0.781, 0.822), (0.9, 0.728, 0.79))
    ]
    o += ["[scale] E|z0|=64.3 E|z1|=65.1 E|x_t|=53.0 E|v*|=91.2", "[shoot] MSE(x0, x1) = 2.031442"]
    o += [
        f"[shoot] steps={n} MSE(z_end, x1) = {v:.6f}" for n, v in ((10, 0.702), (25, 0.655), (50, 0.638), (100, 0.631))
    ]
    o += [
        f"[teacher] N={n} MSE={v:.2e} (fp32 state)"
        for n, v in ((5, 1.1e-10), (10, 1.0e-10), (20, 1.2e-10), (50, 1.1e-10), (100, 1.3e-10))
    ]
    o += [
        "[A] decode(z_init) range [0.021, 0.968]",
        "[B] first |dz|_rms = 1.41e-02",
        "[C] decode(z_end) range [0.000, 1.000]",
        "clip_score: 0.291",
    ]
    return c.write("probe.txt", o)


@T(
    "t-h19",
    "accelerate log lines with GradScaler",
    "none",
    story="""fp16 run: grad_norm is inf at the first two steps and the loss scale falls 65536 -> 16384, then grows again:
that is the scaler finding its value. The loss falls normally.""",
)
def _(c):
    s = np.arange(0, 8000, 10)
    L = c.loss(s, 1.6, 0.63, 400, 0.6, 0.03)
    g = c.gnorm(s, 1.5, 0.4, 300)
    sc = np.full(len(s), 16384.0)
    sc[0], sc[1] = 65536, 32768
    for b in (2000, 4000, 6000):
        sc[s >= b] *= 2
    w = c.wall("2024-11-21T18:00:00", len(s), 4.1)
    out = []
    for i, k in enumerate(s):
        gn = "inf" if i < 2 else f"{g[i]:.4f}"
        out.append(
            f"{w[i]:%m/%d/%Y %H:%M:%S} - INFO - accelerate.tracking - step: {k}, train_loss: {L[i]:.5f}, grad_norm: {gn}, loss_scale: {sc[i]:.1f}, lr: {float(warmconst(k, 1e-4, 500)):.3e}"
        )
    return c.write("train.log", out)


@T(
    "t-h20",
    "REPA accelerate tqdm",
    "none",
    story="REPA: proj_loss is minus a cosine, so it is negative and falls to -0.6; the denoising loss falls as usual.",
)
def _(c):
    N = 24000
    out = []
    s = np.arange(40, N + 1, 40)
    L = c.loss(s, 1.5, 0.79, 500, 0.7, 0.012)
    P = c.add(-0.62 + 0.62 * (1 + s / 900) ** -0.8, 0.004)
    g = c.gnorm(s, 0.9, 0.17, 500)
    for i, k in enumerate(s):
        out.append(
            "Steps: " + bar(int(k), N, k * 0.31, post=f"grad_norm={g[i]:.4f}, loss={L[i]:.4f}, proj_loss={P[i]:.4f}")
        )
    return c.write("nohup.out", out)


@T(
    "t-h21",
    "tab-separated table",
    "none",
    story="""SGDR: the LR restarts three times by design (T_mult 2); the loss rises slightly after each restart and then falls below its former
minimum each time. Healthy.""",
)
def _(c):
    T0, cyc, lr, L = 2000, [], [], []
    s = np.arange(0, 14000, 20)
    edges = [0, 2000, 6000, 14000]
    lv = [1.6, 0.82, 0.68, 0.58]
    for k in s:
        j = max(i for i in range(3) if k >= edges[i])
        f = (k - edges[j]) / (edges[j + 1] - edges[j])
        lr.append(1e-4 * 0.5 * (1 + math.cos(math.pi * f)) + 1e-6)
        bump = 0.05 * lv[j] * math.exp(-f * 12) if j else 0
        top = lv[0] if j == 0 else lv[j]
        L.append(lv[j + 1] + (top - lv[j + 1]) * (1 - f) ** (3 if j == 0 else 1.2) + bump)
    return c.csv(
        "metrics.tsv",
        rows(
            {
                "iter": s,
                "lr": np.array(lr),
                "loss": c.jit(np.array(L), 0.012),
                "gnorm": c.jit(np.full(len(s), 0.6), 0.15),
            }
        ),
        sep="\t",
        digits=5,
    )


@T(
    "t-h22",
    "key: value lines with stage switch",
    "none",
    story="""Progressive resolution: at step 20,000 the run goes from 256 to 512 px (announced in the log). The loss jumps 0.63 -> 0.74
because the task changed, then falls below the former value.""",
)
def _(c):
    s = np.arange(0, 40000, 100)
    a = decay(s, 1.5, 0.47, 900)
    b = 0.44 + 0.30 * np.exp(-(s - 20000) / 4500)
    L = c.jit(np.where(s < 20000, a, b), 0.013)
    g = c.gnorm(s, 1.2, 0.3, 900)
    out = ["stage 1: resolution 256, batch 1024, dataset laion-pop-256"]
    for i, k in enumerate(s):
        if k == 20000:
            out += [
                "saving checkpoint step_20000",
                "stage 2: switching to resolution 512, batch 512, dataset laion-pop-512 (lr unchanged)",
            ]
        out.append(
            f"step: {k}  loss: {L[i]:.4f}  grad_norm: {g[i]:.3f}  lr: {float(warmconst(k, 1e-4, 1000)):.2e}  res: {256 if k < 20000 else 512}  imgs/s: {(2210 if k < 20000 else 641) + 9 * c.n():.0f}"
        )
    return c.write("train.log", out)


# =====================================================================================  faults
@T(
    "t-f01",
    "SiT/DiT log",
    "nan_loss",
    (),
    "Loss turns nan at step 23,100 and stays nan; nothing but the loss is logged, no warning before.",
)
def _(c):
    s = np.arange(100, 30001, 100)
    L = c.loss(s, 1.3, 0.84, 900, 0.7, 0.01)
    out = ["[2024-06-01 00:10:31] SiT Parameters: 675,129,632"]
    w = c.wall("2024-06-01T00:10:40", len(s), 52)
    for i, k in enumerate(s):
        x = "nan" if k >= 23100 else f"{L[i]:.4f}"
        out.append(
            f"[{w[i]:%Y-%m-%d %H:%M:%S}] (step={k:07d}) Train Loss: {x}, Train Steps/Sec: {1.91 + 0.02 * c.n():.2f}"
        )
    return c.write("log.txt", out)


@T(
    "t-f02",
    "JSON lines with null",
    "nan_loss",
    ("divergence", "grad_explosion"),
    """v_pred_absmax grows, grad_norm explodes over 60 steps, then loss and grad_norm are null to the end
(the logger writes NaN as null); lr and throughput continue.""",
)
def _(c):
    s = np.arange(0, 9000, 15)
    L = c.loss(s, 1.7, 0.8, 400, 0.6, 0.03)
    g = c.gnorm(s, 1.5, 0.5, 300)
    k0 = 6120
    m = (s >= k0 - 60) & (s < k0)
    L[m] *= np.array([1.3, 2.2, 7.5, 88])
    g[m] *= np.array([3, 14, 160, 5e4])
    va = c.jit(np.full(len(s), 4.2), 0.05)
    va[m] *= np.array([2, 5, 30, 900])
    for a in (L, g, va):
        a[s >= k0] = np.nan
    return c.jsonl(
        "train_metrics.jsonl",
        rows(
            {
                "global_step": s,
                "loss": L,
                "grad_norm": g,
                "v_pred_absmax": va,
                "lr": warmconst(s, 1e-4, 500),
                "samples_per_sec": 402 + 5 * c.n(len(s)),
            }
        ),
        6,
        nan="null",
    )


@T(
    "t-f03",
    "W&B history CSV",
    "nan_loss",
    ("metrics_lost",),
    "train/loss cells hold values to step 14,300, then NaN to the end, while lr and system columns go on.",
)
def _(c):
    s = np.arange(0, 22000, 50)
    L = c.loss(s, 1.1, 0.52, 700, 0.6, 0.03)
    L[s > 14300] = np.nan
    g = c.gnorm(s, 1.0, 0.3, 500)
    g[s > 14300] = np.nan
    return c.csv(
        "history.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.8,
                "_timestamp": 1733000000 + s * 0.8,
                "train/loss": L,
                "train/grad_norm": g,
                "train/lr": warmcos(s, 2e-4, 1000, 40000),
                "gpu_mem": 61.1,
            }
        ),
        digits=6,
    )


@T(
    "t-f04",
    "MMEngine lines",
    "divergence",
    ("lr_too_high",),
    "loss_flow reaches 0.81 at iter 8,000, then climbs to about 4 over the next 9,000 iterations at constant LR; no single jump.",
)
def _(c):
    s = np.arange(50, 17001, 50)
    b = np.where(s < 8000, decay(s, 1.6, 0.58, 700), decay(8000, 1.6, 0.58, 700) * np.exp((s - 8000) / 9000 * 1.65))
    L = c.jit(b, 0.025 + 0.05 * (s > 8000))
    w = c.wall("2025-07-20T02:10:00", len(s), 22)
    return c.write(
        "work.log",
        [
            f"{w[i]:%Y/%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{k:>5d}/40000]  lr: 2.0000e-04  eta: 5:10:11  time: 0.4411  data_time: 0.0092  memory: 30122  loss: {L[i]:.4f}  loss_flow: {L[i]:.4f}"
            for i, k in enumerate(s)
        ],
    )


@T(
    "t-f05",
    "HF trainer_state.json",
    "divergence",
    (),
    "loss and eval_loss both reach 0.83 at step 3,000 and then rise together, slowly, to 1.3: not overfitting, the training loss rises too.",
)
def _(c):
    s = np.arange(20, 8001, 20)
    base = np.where(s < 3000, decay(s, 1.6, 0.62, 250), 0)
    m = decay(3000, 1.6, 0.62, 250)
    base = np.where(s < 3000, base, m + (1.32 - m) * (np.maximum(0, s - 3000) / 5000) ** 1.3)
    L = c.jit(base, 0.025)
    h = []
    for i, k in enumerate(s):
        k = int(k)
        h.append(
            {
                "epoch": k / 2000,
                "grad_norm": c.rng.lognormal(0, 0.2) * (0.6 + 0.5 * (k > 3000) * (k - 3000) / 5000),
                "learning_rate": 3e-4,
                "loss": round(L[i], 4),
                "step": k,
            }
        )
        if k % 400 == 0:
            h.append(
                {"epoch": k / 2000, "eval_loss": base[i] * (1.01 + 0.005 * c.n()), "eval_runtime": 15.2, "step": k}
            )
    return c.trainer_state("trainer_state.json", h)


@T(
    "t-f06",
    "key: value lines",
    "loss_spikes",
    ("divergence",),
    "At step 12,340 the loss jumps from 0.69 to 1.9 within one interval and stays at 1.05 (cos 0.45 instead of 0.71) to the end: the spike is not recovered.",
)
def _(c):
    s = np.arange(0, 20000, 20)
    L = c.loss(s, 1.6, 0.54, 500, 0.6, 0.02)
    cs = c.add(0.82 - 0.7 * (1 + s / 500) ** -0.6, 0.006)
    g = c.gnorm(s, 1.2, 0.4, 400)
    a = s >= 12340
    L[a] = c.jit(1.04 + 0.9 * np.exp(-(s[a] - 12340) / 150), 0.03)
    cs[a] = c.add(np.full(a.sum(), 0.45), 0.01)
    g[np.argmax(a)] = 61.2
    o = [f"step: {k} loss: {L[i]:.4f} v_cos: {cs[i]:.3f} grad_norm: {g[i]:.3f} lr: 1.0e-04" for i, k in enumerate(s)]
    return c.write(
        "train.txt",
        o
        + [
            "wandb: ",
            "wandb: Run history:",
            "wandb:  loss ▇▅▄▃▃▂▂▂▂▂▂▂▁▁▁▁▁▁█▅▄▄▄▄▄▄",
            "wandb: Run summary:",
            f"wandb:  loss {L[-1]:.5f}",
            "wandb: Synced 5 W&B file(s), 0 media file(s)",
        ],
    )


@T(
    "t-f07",
    "TensorBoard event file",
    "loss_spikes",
    ("divergence",),
    "loss/flow jumps x3 at step 41,000 together with the gradient norm and stays on a plateau above its level for the remaining third.",
)
def _(c):
    s = np.arange(0, 60000, 100)
    L = c.loss(s, 1.2, 0.45, 1200, 0.6, 0.02)
    a = s >= 41000
    L[a] = c.jit(0.93 + 0.6 * np.exp(-(s[a] - 41000) / 700), 0.025)
    g = c.gnorm(s, 1.0, 0.25, 1000)
    g[np.argmax(a) : np.argmax(a) + 3] = [35, 18, 6]
    return c.tb(
        "runs/exp12",
        {"loss/flow": (s, L), "optim/grad_norm": (s, g), "optim/lr": (s, np.full(len(s), 2e-4))},
        "2025-02-01T00:00:00",
    )


@T(
    "t-f08",
    "CSV",
    "loss_spikes",
    ("lr_too_high", "grad_explosion"),
    "From step 6,000 on, spikes of 5-20x every few hundred steps (23 of them, gnorm with them), each recovering: instability (beta2, bad shards), not one accident.",
)
def _(c):
    s = np.arange(0, 20000, 10)
    L = c.loss(s, 1.4, 0.6, 500, 0.6, 0.025)
    g = c.gnorm(s, 1.0, 0.35, 400)
    for k in 6000 + np.sort(c.rng.choice(13900, 23, replace=False)):
        i = int(k // 10)
        f = c.rng.uniform(5, 20)
        for j, q in enumerate((1, 0.4, 0.12)):
            if i + j < len(s):
                L[i + j] *= 1 + f * q
                g[i + j] *= 1 + 8 * f * q
    return c.csv(
        "log.csv", rows({"step": s, "loss": L, "gnorm": g, "lr": np.full(len(s), 1e-4), "sec": s * 0.31}), digits=5
    )


@T(
    "t-f09",
    "nanoGPT style lines",
    "no_learning",
    ("grad_vanishing",),
    "Train and val loss stay at 2.00 (= E|v*|^2) for 18,000 iterations with an ordinary LR and gradient norm: nothing is learned.",
)
def _(c):
    s = np.arange(0, 18000, 50)
    L = c.jit(np.full(len(s), 2.003), 0.012, 0.1)
    g = c.jit(np.full(len(s), 0.52), 0.12)
    o = []
    for i, k in enumerate(s):
        if k % 1000 == 0:
            o.append(f"step {k}: train loss {2.002 + 0.004 * c.n():.4f}, val loss {2.004 + 0.004 * c.n():.4f}")
        o.append(
            f"iter {k}: loss {L[i]:.4f}, gnorm {g[i]:.3f}, lr {float(warmconst(k, 1e-4, 500)):.1e}, time {412 + 6 * c.n():.2f}ms"
        )
    return c.write("out.log", o)


@T(
    "t-f10",
    "W&B chart CSV",
    "no_learning",
    (),
    "The exported loss is 0.9995 +- 0.004 for 25k steps from the first point on (target variance 1: the model predicts 0).",
)
def _(c):
    s = np.arange(0, 25000, 100)
    return c.chart("wandb_export.csv", s, {"dit-l-try3 - loss": c.jit(np.full(len(s), 0.9995), 0.004, 0.1)})


@T(
    "t-f11",
    "HF Trainer printed dicts",
    "lr_too_small",
    ("no_learning",),
    "learning_rate is 0.0 in every line (warm-up ratio made the schedule 0), loss and eval_loss flat.",
)
def _(c):
    s = np.arange(10, 2501, 10)
    L = c.jit(np.full(len(s), 1.684), 0.03, 0.1)
    o = []
    for i, k in enumerate(s):
        o.append(
            plain(
                {
                    "loss": round(L[i], 4),
                    "grad_norm": sig(float(c.rng.lognormal(0.2, 0.15)), 16),
                    "learning_rate": 0.0,
                    "epoch": round(k / 1250, 3),
                }
            )
        )
        if k % 500 == 0:
            o.append(
                plain(
                    {"eval_loss": round(1.681 + 0.0004 * c.n(), 6), "eval_runtime": 33.1, "epoch": round(k / 1250, 3)}
                )
            )
    return c.write("stdout.log", o)


@T(
    "t-f12",
    "diffusers tqdm bars",
    "lr_too_small",
    ("no_learning",),
    "lr=1e-10 in the bar (unit slip: 1e-4 wanted), loss flat, validation loss identical to 4 digits at every check.",
)
def _(c):
    N = 2000
    o = []
    for k in range(4, N + 1, 4):
        o.append("Steps: " + bar(k, N, k * 0.92, post=f"lr=1e-10, step_loss={1.21 * math.exp(0.12 * c.n()):.3g}"))
        if k % 200 == 0:
            o.append(f"INFO:__main__:validation step={k} val_loss={1.2093 + 0.00004 * c.n():.5f}")
    return c.write("log.out", o)


@T(
    "t-f13",
    "Lightning metrics.csv",
    "lr_too_high",
    ("divergence", "loss_spikes"),
    "lr-AdamW 1e-2: the loss swings between 0.9 and 4 with gradient norms of 5-80 for 12k steps; after the drop to 1e-4 at 12k it settles at 0.8 at once.",
)
def _(c):
    s = np.arange(49, 16000, 50)
    hi = s < 12000
    L = np.where(
        hi,
        np.clip(1.7 * np.exp(0.45 * c.ar(len(s), 0.6)), 0.85, 4.6),
        c.jit(decay(np.maximum(0, s - 12000), 1.2, 0.72, 200), 0.02),
    )
    g = np.where(hi, 15 * np.exp(0.9 * c.ar(len(s), 0.5)), 0.6 * np.exp(0.2 * c.n(len(s))))
    R = rows(
        {
            "epoch": s // 2000,
            "step": s,
            "train_loss_step": L,
            "grad_2.0_norm_total": g,
            "lr-AdamW": np.where(hi, 1e-2, 1e-4),
        }
    )
    for e in range(8):
        k = e * 2000 + 1999
        R.append(
            {
                "epoch": e,
                "step": k,
                "val_loss": 1.8 * math.exp(0.3 * c.n()) if k < 12000 else 0.77 + 0.01 * c.n(),
                "train_loss_epoch": float(L[(s // 2000) == e].mean()),
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.csv("metrics.csv", R)


@T(
    "t-f14",
    "key=value lines",
    "lr_restart",
    ("divergence", "loss_spikes"),
    "Cosine reaches 1e-6 at 60k (loss 0.48); then the scheduler restarts at 5e-4, the loss jumps to 0.95 and is still 0.63 at 80k: the restart undid the run.",
)
def _(c):
    s = np.arange(0, 80000, 100)
    lr = np.where(s < 60000, warmcos(s, 1e-4, 1000, 60000, 1e-6), warmcos(s - 60000, 5e-4, 0, 60000, 1e-6))
    L = np.where(s < 60000, decay(s, 1.5, 0.33, 2000), 0.62 + 0.35 * np.exp(-(s - 60000) / 4000))
    L = c.jit(L, 0.015)
    return c.write(
        "out.txt",
        [
            f"[{k:06d}] loss={L[i]:.4f} lr={lr[i]:.3e} gnorm={0.4 * math.exp(0.15 * c.n()):.3f} ema=0.9999"
            for i, k in enumerate(s)
        ],
    )


@T(
    "t-f15",
    "HF trainer_state.json",
    "overfitting",
    (),
    "eval_loss is lowest (0.64) at step 3,000 and rises to 1.07 while the training loss falls to 0.27: 2,000 images, 40 epochs.",
)
def _(c):
    s = np.arange(10, 10001, 10)
    base = decay(s, 1.5, 0.72, 300) * np.exp(-s / 9000)
    L = c.jit(base, 0.04)
    h = []
    for i, k in enumerate(s):
        k = int(k)
        h.append(
            {
                "epoch": k / 250,
                "grad_norm": 0.7 * math.exp(0.2 * c.n()),
                "learning_rate": 1e-4,
                "loss": round(L[i], 4),
                "step": k,
            }
        )
        if k % 250 == 0:
            e = decay(k, 1.52, 0.70, 300) * math.exp(-min(k, 3000) / 9000) + 0.5 * max(0, (k - 3000) / 7000) ** 1.1
            h.append({"epoch": k / 250, "eval_loss": e * (1 + 0.008 * c.n()), "eval_runtime": 11.0, "step": k})
    return c.trainer_state("output/trainer_state.json", h)


@T(
    "t-f16",
    "Lightning metrics.csv",
    "overfitting",
    (),
    "val/fm_mse has its minimum in epoch 11 and rises about 60 % by epoch 39, val/cos falls with it, train loss keeps falling.",
)
def _(c):
    R = []
    for e in range(40):
        for j in range(10):
            k = e * 500 + j * 50 + 49
            R.append(
                {
                    "epoch": e,
                    "step": k,
                    "train/fm_mse": decay(k, 1.3, 0.55, 300) * math.exp(-k / 22000) * (1 + 0.03 * c.n()),
                }
            )
        v = decay(e * 500, 1.3, 0.56, 300) * math.exp(-min(e, 11) * 500 / 22000) + (
            0.012 * max(0, e - 11) + 0.00005 * max(0, e - 11) ** 2
        )
        R.append(
            {
                "epoch": e,
                "step": e * 500 + 499,
                "val/fm_mse": v * (1 + 0.006 * c.n()),
                "val/cos": math.sqrt(max(0, 1 - v / 1.9)) + 0.002 * c.n(),
                "lr-AdamW": 1e-4,
            }
        )
    return c.csv("metrics.csv", R)


@T(
    "t-f17",
    "MLflow metric files",
    "periodic_memorisation",
    ("overfitting",),
    """5,120 images, 160 steps per epoch: the loss steps down at every epoch boundary and rises slightly inside the epoch
(same saw-tooth 50 times); the epoch metric shows the period.""",
)
def _(c):
    s = np.arange(0, 8000, 4)
    e = s // 160
    ph = (s % 160) / 160
    L = (0.95 * np.exp(-e * 0.035) + 0.02) * (1 - 0.11 + 0.22 * ph)
    return c.mlflow(
        "0",
        "0f2e77aa11",
        {
            "loss": (s, c.jit(L, 0.02, 0.1)),
            "epoch": (s, e.astype(float)),
            "lr": (s, np.full(len(s), 1e-4)),
            "grad_norm": (s, c.jit(np.full(len(s), 0.5), 0.15)),
        },
        "2025-03-03T12:00:00",
    )


@T(
    "t-f18",
    "accelerate log lines",
    "grad_explosion",
    ("divergence",),
    "grad_norm rises exponentially for the whole run, 0.4 -> 3,800, no clipping; the loss is still 0.7 and only begins to rise at the end.",
)
def _(c):
    s = np.arange(0, 10000, 20)
    g = c.jit(0.4 * np.exp(s / 10000 * 9.15), 0.2)
    L = c.jit(decay(s, 1.5, 0.62, 400) + 0.25 * np.clip((s - 9000) / 1000, 0, 1) ** 2, 0.02)
    w = c.wall("2025-05-01T10:00:00", len(s), 8)
    return c.write(
        "log",
        [
            f"{w[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(0, 999)):03d} INFO [train.py:211] step {k} | loss {L[i]:.4f} | grad_norm {g[i]:.3f} | lr 1.00e-04 | mem 38.2GB"
            for i, k in enumerate(s)
        ],
    )


@T(
    "t-f19",
    "JSON lines",
    "grad_vanishing",
    ("no_learning",),
    "grad_norm falls from 0.09 to 3e-9 within 4,000 steps while the loss is stuck at 0.98; lr is 1e-4.",
)
def _(c):
    s = np.arange(0, 12000, 20)
    g = c.jit(np.maximum(3e-9, 0.09 * np.exp(-s / 230)), 0.25)
    return c.jsonl(
        "log.jsonl",
        rows(
            {
                "it": s,
                "loss": c.jit(decay(s, 1.0, 0.98, 300), 0.006, 0.1),
                "grad_norm": g,
                "lr": warmconst(s, 1e-4, 200),
                "eta_h": sig(11.2, 3),
            }
        ),
        5,
        tail='{"it": 12000, "loss": 0.97',
    )


@T(
    "t-f20",
    "JSON lines, ret dictionary",
    "weak_gradient_share",
    ("kl_not_acting",),
    "grad/kl is 0.4 % of grad/total for the whole run; mu/abs_mean does not fall and std/mean does not go to 1: the KL does not act. Flow is fine.",
    phrase="the KL term has under 1 % of the gradient",
)
def _(c):
    s = np.arange(0, 10000, 50)
    d = c.ret(s, mu=(0.9, 1.3), std=(0.62, 0.52), dino=False, endpt=False)
    d["grad/kl"] = d["grad/flow"] * c.jit(np.full(len(s), 0.004), 0.15)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2)
    return c.jsonl("ret.jsonl", rows(d))


@T(
    "t-f21",
    "TensorBoard event file",
    "weak_gradient_share",
    (),
    "grad/dino is 1.2 % of grad/total throughout, loss/dino hardly falls; teacher entropy ordinary, z_head update ratio ordinary.",
    phrase="the DINO term has about 1 % of the gradient",
)
def _(c):
    s = np.arange(0, 15000, 100)
    d = c.ret(s, slices=False, endpt=False)
    d["grad/dino"] = d["grad/flow"] * c.jit(np.full(len(s), 0.012), 0.12)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2 + d["grad/dino"] ** 2)
    d["loss/dino"] = c.jit(decay(s, 7.1, 6.85, 2000), 0.005)
    d["ent/student"] = c.jit(np.full(len(s), 7.9), 0.01)
    d["loss/total"] = d["loss/flow"] + 0.01 * d["loss/kl"] + 0.02 * d["loss/dino"]
    st = d.pop("step")
    return c.tb("events", {k: (st, v) for k, v in d.items()}, "2025-09-15T00:00:00")


@T(
    "t-f22",
    "JSON lines, ret dictionary",
    "posterior_collapse",
    ("condition_unused", "text_ignored"),
    "KL falls to 2e-5, mu/abs_mean to 0.004 and std/mean is 1.000: z0 is the prior for every prompt; cond_gain_cos is 0.",
)
def _(c):
    s = np.arange(0, 10000, 50)
    d = c.ret(s, mu=(0.8, 0.005), std=(0.7, 1.0), tau=120, dino=False, c1=0.55, slices=False, endpt=False)
    d["flow/cond_gain_cos"] = 0.001 * c.n(len(s))
    d["loss/kl"] = 1e-6 + 0.5 * (d["mu/rms"] ** 2 + (d["std/mean"] - 1) ** 2)
    d["std/min"], d["std/max"] = d["std/mean"] * 0.995, d["std/mean"] * 1.005
    d["logvar/mean"] = 2 * np.log(d["std/mean"])
    d["w/kl"] = np.full(len(s), 10.0)
    total(d, 1, 10)
    return c.jsonl("log.jsonl", rows(d))


@T(
    "t-f23",
    "MMEngine lines",
    "posterior_collapse",
    ("text_ignored", "condition_unused"),
    "loss_kl 3e-5, mu_abs 0.003, sigma_mean 1.000 from iter 2,000 on while loss_flow stops at 1.2: head collapsed onto the prior under w_kl=1.",
)
def _(c):
    s = np.arange(50, 12001, 50)
    k = c.jit(3e-5 + 0.4 * np.exp(-s / 180), 0.2)
    f = c.jit(decay(s, 1.9, 1.2, 300), 0.015)
    mu = c.jit(0.003 + 0.7 * np.exp(-s / 250), 0.05)
    sg = 1 - 0.35 * np.exp(-s / 250) + 0.0004 * c.n(len(s))
    return c.write(
        "run.log",
        [
            f"2025/08/01 1{i // 60 % 10}:{i % 60:02d}:00 - mmengine - INFO - Iter(train) [{x:>6d}/30000]  lr: 1.0000e-04  time: 0.61  memory: 35110  loss: {f[i] + k[i]:.4f}  loss_flow: {f[i]:.4f}  loss_kl: {k[i]:.3e}  mu_abs: {mu[i]:.4f}  sigma_mean: {sg[i]:.4f}  mu_pair_std: {mu[i] * 0.1:.5f}"
            for i, x in enumerate(s)
        ],
    )


@T(
    "t-f24",
    "key=value lines",
    "sigma_collapse",
    ("z0_leak",),
    "logvar_mean runs to -6.0 (its clamp) and stays, std_mean 0.0498, KL large and constant.",
)
def _(c):
    s = np.arange(0, 9000, 30)
    lv = np.maximum(-6, -0.4 - 5.8 * (1 - np.exp(-s / 900))) + 0
    lv = np.where(lv < -5.97, -6.0, lv)
    sd = np.exp(lv / 2)
    mu = 0.8
    kl = 0.5 * (mu**2 + sd**2 - 1 - lv)
    L = c.jit(decay(s, 1.6, 0.6, 500), 0.02)
    return c.write(
        "train.log",
        [
            f"iter={k} loss_flow={L[i]:.4f} kl={kl[i] * (1 + 0.003 * c.n()):.4f} logvar_mean={lv[i]:.4f} std_mean={sd[i]:.4f} mu_abs={0.64 + 0.01 * c.n():.3f} lr=1e-04"
            for i, k in enumerate(s)
        ],
    )


@T(
    "t-f25",
    "W&B history CSV",
    "sigma_collapse",
    ("z0_leak", "kl_not_acting"),
    "kl_weight is 0: head/std_mean falls from 0.6 to 0.011 in 6k steps, head/logvar_mean -9; the sampling head has become deterministic.",
)
def _(c):
    s = np.arange(0, 12000, 40)
    sd = c.jit(0.011 + 0.59 * np.exp(-s / 900), 0.03)
    return c.csv(
        "wandb_hist.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 1.1,
                "_timestamp": 1740000000 + s * 1.1,
                "train/loss_flow": c.loss(s, 1.7, 0.58, 500, 0.6, 0.02),
                "head/std_mean": sd,
                "head/logvar_mean": 2 * np.log(sd) - 0.05,
                "head/mu_rms": c.jit(np.full(len(s), 1.1), 0.02),
                "train/kl_weight": np.zeros(len(s)),
                "lr": np.full(len(s), 1e-4),
            }
        ),
    )


@T(
    "t-f26",
    "JSON lines, ret dictionary",
    "z0_leak",
    ("sigma_collapse",),
    "flow/cos 0.96 and nmse 0.07 look excellent, but std/mean is 0.12, the relative shooting error 0.93 at all K and val/fid 231: x_t reveals z1.",
)
def _(c):
    s = np.arange(0, 16000, 100)
    d = c.ret(s, c1=0.985, tau=150, std=(0.6, 0.12), mu=(0.9, 0.8), dino=False, slices=False)
    n = len(s)
    cs = c.add(0.962 - 0.92 * np.exp(-s / 900), 0.003)
    d["flow/cos"], d["flow/speed_ratio"] = cs, c.jit(np.abs(cs) * 1.005, 0.004)
    d["flow/nmse"] = 1 + d["flow/speed_ratio"] ** 2 - 2 * d["flow/speed_ratio"] * cs
    d["loss/flow"] = 1.4 * d["flow/nmse"] * np.exp(0.02 * c.n(n))
    total(d, 1, 0.01)
    for k in (8, 16, 32, 64):
        d[f"flow/endpt_rmse@{k}"] = c.jit(np.full(len(s), 1.31), 0.012)
    d["shoot/rel_mse"] = c.jit(np.full(len(s), 0.93), 0.01)
    d["val/fid"] = [231 + 4 * c.n() if k % 2000 == 0 else None for k in s]
    return c.jsonl("metrics.json", rows(d), 5)


@T(
    "t-f27",
    "key: value lines",
    "scale_mismatch",
    ("latent_scale_factor",),
    "Note 001's own case: z0_norm 151-155 against z1_norm 896-1224 in every batch; v_norm equals z1_norm, kl does not move.",
)
def _(c):
    s = np.arange(0, 5000, 20)
    L = c.jit(decay(s, 281, 236, 900), 0.05)
    o = ["batch stats every 20 iters; latent 4x32x32"]
    for i, k in enumerate(s):
        z1 = c.rng.uniform(896, 1224)
        z0 = c.rng.uniform(151, 155)
        o.append(
            f"iter {k} | loss_flow: {L[i]:.2f} | kl: {0.3121 + 0.0008 * c.n():.4f} | z0_norm: {z0:.1f} | z1_norm: {z1:.1f} | xt_norm: {0.5 * math.hypot(z0, z1):.1f} | v_norm: {math.hypot(z0, z1):.1f} | lr: 1e-4"
        )
    return c.write("scale_debug.log", o)


@T(
    "t-f28",
    "CSV",
    "scale_mismatch",
    ("latent_scale_factor",),
    "||x0|| is 12.8, ||x1|| 64: 5x apart for the whole run, speed is the data's; the flow cos stalls at 0.4.",
)
def _(c):
    s = np.arange(0, 20000, 100)
    n = len(s)
    return c.csv(
        "norms.csv",
        rows(
            {
                "iter": s,
                "L_flow": c.loss(s, 1.04, 0.86, 900, 0.6, 0.015),
                "E_z0": c.jit(np.full(n, 12.8), 0.01),
                "E_z1": c.jit(np.full(n, 64.2), 0.02),
                "E_xt": c.jit(np.full(n, 37.1), 0.02),
                "E_v": c.jit(np.full(n, 65.4), 0.02),
                "v_cos": c.add(0.41 - 0.38 * (1 + s / 900) ** -0.6, 0.01),
                "lr": np.full(n, 1e-4),
            }
        ),
        digits=4,
    )


@T(
    "t-f29",
    "python logging lines",
    "latent_scale_factor",
    ("scale_mismatch",),
    "z1_std is 0.182 = 0.18215 x 1.0: the VAE wrapper already multiplies by 0.18215 and the trainer does it again (the line prints it); VAE psnr with decode(z) is 13.9 dB, z0_std 1.0.",
)
def _(c):
    s = np.arange(0, 4000, 20)
    L = c.jit(decay(s, 1.06, 1.004, 300), 0.008)
    o = [
        "2025-01-12 08:00:02,118 | INFO | vae: AutoencoderKL sd-vae-ft-mse, scaling_factor=0.18215 (applied in sample())",
        "2025-01-12 08:00:02,940 | INFO | trainer: latents = vae.sample(x) * 0.18215",
        "2025-01-12 08:00:09,311 | INFO | vae smoke test: psnr=13.92 dB (decode), z range [-0.82, 1.01]",
    ]
    for i, k in enumerate(s):
        o.append(
            f"2025-01-12 08:{1 + i // 30:02d}:{2 * (i % 30):02d},000 | INFO | step={k} loss={L[i]:.4f} z0_std={1 + 0.004 * c.n():.4f} z1_std={0.1822 + 0.0015 * c.n():.4f} z1_absmax={1.1 + 0.1 * c.n():.3f} lr=1.00e-04"
        )
    return c.write("run.log", o)


@T(
    "t-f30",
    "JSON lines",
    "latent_scale_factor",
    ("scale_mismatch", "input_range"),
    "latent_std is 5.46 = 1/0.183 and latent_absmax 31: the VAE latents are not scaled; the loss starts at 31, z0 has std 1.",
)
def _(c):
    s = np.arange(0, 6000, 20)
    n = len(s)
    return c.jsonl(
        "train.jsonl",
        rows(
            {
                "step": s,
                "loss": c.loss(s, 31, 14.1, 700, 0.6, 0.03),
                "latent_mean": 0.3 * c.n(n) * 0.1,
                "latent_std": c.jit(np.full(n, 5.46), 0.01),
                "latent_absmax": c.jit(np.full(n, 31.0), 0.06),
                "z0_std": c.jit(np.full(n, 1.0), 0.003),
                "vae_scaling_factor": np.full(n, 1.0),
                "lr": np.full(n, 1e-4),
            }
        ),
        5,
        head=[{"vae": "stabilityai/sd-vae-ft-ema", "config_scaling_factor": 0.18215}],
    )


@T(
    "t-f31",
    "debug probes as in note 004",
    "text_ignored",
    ("posterior_collapse",),
    "Cosines of mu between different prompts 0.997-0.999, like the same prompt twice: the text does not reach z0. Field and VAE are fine.",
)
def _(c):
    pr = ["a cat", "a car", "a red apple", "two dogs on a beach", "an old map"]
    o = ["[vae] PSNR=29.7 dB", "[text] means, same prompt control: cos(mu(a cat), mu(a cat)) = 1.000"]
    for i in range(5):
        for j in range(i + 1, 5):
            o.append(f"[text] cos(mu({pr[i]}), mu({pr[j]})) = {0.998 + 0.0006 * c.n():.4f}")
    o += [
        f"[fm] t={t:.2f}  cos(v_pred, v_tgt)={x:.3f}  ||pred||/||tgt||={r:.3f}"
        for t, x, r in ((0.1, 0.61, 0.66), (0.37, 0.67, 0.7), (0.63, 0.7, 0.73), (0.9, 0.66, 0.71))
    ]
    o += [f"[scale] E||z0||=63.{i} E||z1||=64.{9 - i}" for i in range(8)]
    return c.write("probe.log", o)


@T(
    "t-f32",
    "Chinese debug notes as in note 004",
    "weak_field",
    (),
    "cos 0.01-0.06 and ratio 0.30-0.33, shooting 4.2, while VAE, text means, teacher Euler in fp32 are fine: the field is weak, gain about 3.2.",
)
def _(c):
    return c.write(
        "debug.md",
        """# 排查记录 2025-09-26（iter 31k）

现象：出图只有纹理，没有语义。

## VAE 回环
- z 统计：range [-4.41, 5.33], mean -0.011, var 1.18
- 重建 PSNR=28.90 dB，正常

## 文本通路（均值）
- 同一 prompt 两次：cos(mu_cat, mu_cat)=1.000
- cos(mu_cat, mu_car)=0.412
- cos(mu_cat, mu_apple)=0.367
- cos(mu_car, mu_apple)=0.390

## 单步对齐
[fm] t=0.10  cos(v_pred, v_tgt)=0.061  ||pred||/||tgt||=0.327
[fm] t=0.37  cos(v_pred, v_tgt)=0.048  ||pred||/||tgt||=0.318
[fm] t=0.63  cos(v_pred, v_tgt)=0.031  ||pred||/||tgt||=0.309
[fm] t=0.90  cos(v_pred, v_tgt)=0.012  ||pred||/||tgt||=0.301

## 射击
[shoot] MSE(z_end, x1) = 4.207713
（MSE(x0, x1) = 4.118）

## 教师场（fp32 状态）
- N=100 → 1.2e-10
- N=20 → 1.1e-10
- N=5 → 1.0e-10

尺度：∥z0∥≈63.9，∥z1∥≈66.2，同量级。
""",
    )


@T(
    "t-f33",
    "debug probes",
    "wrong_target",
    (),
    "One-step cos with x1-x0 is -0.74..-0.81 at every t with ratio 0.8; corr with x0-x1 is positive: the sign of the target is flipped.",
    phrase="the velocity target has the wrong sign",
)
def _(c):
    o = ["== alignment, 64 images, checkpoint step 40000 =="]
    for t in np.linspace(0.05, 0.95, 10):
        x = -0.78 + 0.03 * c.n() * 0.5
        o.append(
            f"[fm] t={t:.2f}  cos(v_pred, v_tgt)={x:.3f}  ||pred||/||tgt||={0.8 + 0.01 * c.n():.3f}  cos(v_pred, x0-x1)={-x:.3f}"
        )
    o += [
        "train loss at step 40000: 0.742 (initial 1.98)",
        "[scale] E||z0||=64.1 E||z1||=62.7 E||v*||=89.8",
        "[shoot] MSE(x0, x1)=1.98",
        "[shoot] steps=50 MSE(z_end, x1)=6.912",
        "[shoot] steps=100 MSE(z_end, x1)=6.955",
        "[vae] PSNR=30.2 dB",
        "[text] cos(mu): same prompt 1.000, different prompts 0.31 0.28 0.35",
    ]
    return c.write("align.txt", o)


@T(
    "t-f34",
    "JSON lines",
    "wrong_target",
    (),
    "Probe logged every 500 steps: the prediction correlates 0.95 with the noise and -0.68 with the velocity x1-x0: the network was trained on epsilon.",
    phrase="the network predicts the noise, not the velocity",
)
def _(c):
    s = np.arange(0, 20000, 100)
    n = len(s)
    f = 1 - (1 + s / 400) ** -0.9
    d = {
        "step": s,
        "loss": c.loss(s, 1.0, 0.08, 300, 0.9, 0.04),
        "corr/noise": c.add(0.965 * f, 0.004),
        "corr/velocity": c.add(-0.69 * f, 0.006),
        "corr/score": c.add(-0.66 * f, 0.01),
        "flow/cos": c.add(-0.69 * f, 0.006),
        "flow/speed_ratio": c.jit(np.full(n, 0.71), 0.01),
        "lr": np.full(n, 1e-4),
    }
    return c.jsonl("target_check.jsonl", rows(d), 4)


@T(
    "t-f35",
    "Markdown table",
    "bf16_rounding",
    (),
    "Teacher Euler with the exact field: the MSE grows 2.9e-5 -> 2.1e-2 from N=4 to N=128 in bf16 and is 1e-10 in fp32: rounding of the state.",
)
def _(c):
    o = [
        "# Teacher-field integration",
        "",
        "Exact field Dt_psi, 32 images, uniform grid.",
        "",
        "| N | MSE, state bf16 | MSE, state fp32 |",
        "|---:|---:|---:|",
    ]
    for n, a in (
        (4, 2.9e-5),
        (5, 5.1e-5),
        (10, 1.6e-4),
        (20, 6.0e-4),
        (25, 9.1e-4),
        (50, 3.3e-3),
        (64, 5.2e-3),
        (100, 1.4e-2),
        (128, 2.1e-2),
    ):
        o.append(f"| {n} | {a:.2e} | {1.1e-10 * math.exp(0.1 * c.n()):.2e} |")
    o += [
        "",
        "One-step alignment of the learned field: cos 0.71, ratio 0.76.",
        "VAE PSNR 29.4 dB.",
        "Norms: z0 64.0, z1 65.8.",
        "",
        "| t | cos | ratio |",
        "|---|---|---|",
        "| 0.1 | 0.66 | 0.70 |",
        "| 0.5 | 0.73 | 0.77 |",
        "| 0.9 | 0.70 | 0.75 |",
    ]
    return c.write("teacher.md", o)


@T(
    "t-f36",
    "step trace as in note 000",
    "bf16_rounding",
    (),
    "|x| starts at the right 0.789; in bf16 it stays at 0.7891 for 99 steps although |v|=0.46, the same sampling in fp32 moves 0.789 -> 0.884.",
)
def _(c):
    dt = logit_normal_dt(100)
    cum = np.concatenate([[0], np.cumsum(dt)[:-1]])
    v = 0.467 - 0.02 * cum
    o = ["dtype=torch.bfloat16 num_steps=100"]
    for _ in range(2):
        x = np.full(100, 0.7891)
        x[97:] = 0.793
        o += c.trace(x, np.full(100, 0.4648), dt, low=True)
        o.append("1it [00:41, 41.2s/it]")
    o += ["dtype=torch.float32 num_steps=100"] + c.trace(
        0.7889 + 0.06 * cum + 0.035 * cum**3, v + 0.0001 * c.n(100), dt
    )
    return c.write("trace.log", o)


@T(
    "t-f37",
    "step trace as in note 000",
    "scale_mismatch",
    ("latent_scale_factor",),
    "|x| at step 0 is 6.19 in the first two (fp32) traces against the expected 0.79 of the last one; it moves at every step, so it is not rounding: z0 enters the sampler 8x too large.",
    phrase="the sampler starts from a z0 of the wrong scale",
)
def _(c):
    dt = logit_normal_dt(20)
    cum = np.concatenate([[0], np.cumsum(dt)[:-1]])
    o = []
    for x0 in (6.1921, 6.2043):
        o += ["state dtype float32, num_steps 20"] + c.trace(x0 + 0.006 * cum + 0.002 * cum**2, 0.453 - 0.004 * cum, dt)
    o += ["after restandardising z0 (std=1):"] + c.trace(0.7893 + 0.06 * cum + 0.03 * cum**3, 0.466 - 0.02 * cum, dt)
    return c.write("sampler.log", o)


@T(
    "t-f38",
    "JSON lines, ret dictionary",
    "t_edges",
    ("time_sampling",),
    "Middle slices reach nmse 0.25, slice 0 stays at 0.95 and slice 9 at 1.1: the ends are not learned (t sampled by a narrow logit-normal).",
)
def _(c):
    s = np.arange(0, 20000, 200)
    d = c.ret(s, dino=False, kl=False, c1=0.86, endpt=False)
    lo = decay(s, 1.0, 0.2, 800)
    for b in range(10):
        e = {0: 0.95, 1: 0.55, 8: 0.6, 9: 1.1}.get(b)
        nb = c.jit(lo if e is None else decay(s, 1.02, e, 800), 0.03)
        d[f"flow/nmse_t{b}"] = nb
        d[f"flow/cos_t{b}"] = np.sqrt(np.clip(1 - nb, 0.0025, 1))
    return c.jsonl("slices.jsonl", rows(d), 4)


@T(
    "t-f39",
    "key=value lines",
    "time_sampling",
    (),
    "t should be uniform over 0..999, but t_mean is 62 and t_std 36 (max 124): only the first eighth is ever sampled.",
)
def _(c):
    s = np.arange(0, 6000, 20)
    L = c.loss(s, 0.9, 0.31, 300, 0.6, 0.04)
    o = ["num_train_timesteps=1000 time_sampling=uniform batch_size=64"]
    o += [
        f"step={k} loss={L[i]:.4f} t_min={int(abs(c.n()) * 1.5)} t_max={124 - int(abs(c.n()) * 1.5)} t_mean={62 + 4.5 * c.n():.1f} t_std={36 + 1.6 * c.n():.1f} lr=1e-4"
        for i, k in enumerate(s)
    ]
    return c.write("stats.log", o)


@T(
    "t-f40",
    "Chinese Markdown report as in note 002",
    "input_range",
    (),
    "x_0 range [0, 255], mean 117, std 64: pixels were never normalised; x_t and the loss (thousands) follow from it.",
)
def _(c):
    return c.write(
        "report.md",
        """# 训练调试报告

## 输入
- `x_0` 范围: [0.0, 255.0]
- `x_0` 均值: [109.4, 124.8]
- `x_0` 标准差: [61.2, 67.9]
- NaN/Inf: 0 次

## 时间步
- `t` 范围: [0, 999]
- `t` 均值: [441.0, 560.3]
- `t` 标准差: [270.1, 309.8]

## 前向过程
- `noise` 均值: [-0.002, 0.002]
- `noise` 标准差: [0.998, 1.003]
- `x_t` 标准差: [3.1, 66.0]

## 模型输出
- `predicted_x0` 标准差: 从 0.6 增加到 38.1

## 损失
- 损失范围: [1490.2, 17903.5]
- 初始损失（前10个）: 17841.2
- 最终损失（后10个）: 1712.6
- NaN/Inf: 0 次

## 常数
- `betas` 范围: [0.0001, 0.02]
- `alphas_cumprod` 后10个: [4.84e-5, 4.04e-5]
""",
    )


@T(
    "t-f41",
    "JSON lines",
    "input_range",
    (),
    "stat/pixels min 0, max 1, mean 0.47, std 0.27 while the VAE expects -1..1; psnr of the round trip 17.6 dB follows from it.",
    phrase="images are in [0,1] instead of [-1,1]",
)
def _(c):
    s = np.arange(0, 8000, 50)
    n = len(s)
    return c.jsonl(
        "log.jsonl",
        rows(
            {
                "step": s,
                "loss/flow": c.loss(s, 1.3, 0.81, 500, 0.6, 0.02),
                "stat/pixels/min": np.zeros(n),
                "stat/pixels/max": np.ones(n),
                "stat/pixels/mean": c.jit(np.full(n, 0.468), 0.03),
                "stat/pixels/std": c.jit(np.full(n, 0.272), 0.03),
                "vae/psnr": [17.6 + 0.1 * c.n() if k % 500 == 0 else None for k in s],
                "lr": np.full(n, 1e-4),
            }
        ),
        4,
        head=[{"event": "config", "vae_input_range": [-1, 1], "transform": "ToTensor()"}],
    )


@T(
    "t-f42",
    "key: value lines",
    "schedule_constants",
    (),
    "Linear betas should run to 0.02 with T=1000; betas max is 0.002 and alphas_cumprod ends at 0.350 instead of 4e-5: x_T is not noise.",
)
def _(c):
    b = np.linspace(1e-4, 0.002, 1000)
    a = np.cumprod(1 - b)
    s = np.arange(0, 5000, 25)
    L = c.loss(s, 0.98, 0.05, 300, 0.8, 0.05)
    o = [
        "config: beta_schedule: linear, beta_start: 0.0001, beta_end: 0.02, T: 1000",
        f"betas: min: {b[0]:.6f} max: {b[-1]:.6f}",
        f"alphas_cumprod: first: {a[0]:.6f} last: {a[-1]:.6f}",
        f"sqrt_alphas_cumprod: first: {a[0] ** 0.5:.6f} last: {a[-1] ** 0.5:.6f}",
        f"sqrt_one_minus_alphas_cumprod: first: {(1 - a[0]) ** 0.5:.6f} last: {(1 - a[-1]) ** 0.5:.6f}",
    ]
    o += [
        f"step: {k}, loss: {L[i]:.4f}, t_mean: {500 + 30 * c.n():.1f}, t_std: {289 + 9 * c.n():.1f}, x0_mean: {0.001 * c.n():.4f}, x0_std: {1 + 0.002 * c.n():.4f}"
        for i, k in enumerate(s)
    ]
    return c.write("ddpm.log", o)


@T(
    "t-f43",
    "JSON lines, ret dictionary",
    "teacher_collapsed",
    ("student_saturated", "weak_gradient_share"),
    "ent/teacher is 0.03 of log 8192 = 9.01 from the beginning (T_t 0.01): targets one-hot; the student follows and grad/dino dies.",
)
def _(c):
    s = np.arange(0, 9000, 60)
    d = c.ret(s, slices=False, endpt=False)
    d["ent/teacher"] = c.jit(np.full(len(s), 0.03), 0.1)
    d["ent/student"] = c.jit(0.05 + 4 * np.exp(-s / 500), 0.05)
    d["loss/dino"] = c.jit(0.04 + 3 * np.exp(-s / 400), 0.05)
    d["grad/dino"] = d["grad/flow"] * c.jit(0.01 + 0.4 * np.exp(-s / 600), 0.1)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2 + d["grad/dino"] ** 2)
    total(d, 1, 0.01, 0.5)
    d["dino/K"] = np.full(len(s), 8192)
    d["dino/T_t"] = np.full(len(s), 0.01)
    return c.jsonl("ret.jsonl", rows(d), 5)


@T(
    "t-f44",
    "W&B history CSV",
    "teacher_uniform",
    (),
    "ent/teacher is 8.3177 = log 4096 to four digits all the time (student 8.31): uniform targets carry nothing.",
)
def _(c):
    s = np.arange(0, 10000, 50)
    n = len(s)
    return c.csv(
        "hist.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.9,
                "_timestamp": 1750000000 + s * 0.9,
                "loss/dino": 8.3177 + 0.0004 * np.abs(c.n(n)),
                "loss/flow": c.loss(s, 1.7, 0.66, 500, 0.6, 0.02),
                "ent/teacher": 8.3177 - 0.0001 * np.abs(c.n(n)),
                "ent/student": 8.3172 - 0.0004 * np.abs(c.n(n)),
                "dino/num_prototypes": np.full(n, 4096),
                "lr": np.full(n, 1e-4),
            }
        ),
        digits=6,
    )


@T(
    "t-f45",
    "key=value lines",
    "student_saturated",
    ("weak_gradient_share",),
    "student_entropy 0.04 (log K 9.70) with grad_dino under 2 % of the total, the teacher at 4.4 is ordinary: student temperature too low.",
)
def _(c):
    s = np.arange(0, 8000, 40)
    o = ["dino head K=16384 T_s=0.02 T_t=0.07 center=0.9"]
    for k in s:
        f = math.exp(-k / 500)
        g = 0.45 * math.exp(0.12 * c.n())
        o.append(
            f"step={k} loss_flow={decay(k, 1.6, 0.68, 500) * (1 + 0.02 * c.n()):.4f} loss_dino={7.9 + 0.3 * f + 0.08 * c.n():.3f} teacher_entropy={4.4 + 0.06 * c.n():.3f} student_entropy={(0.04 + 5 * f) * math.exp(0.05 * c.n()):.4f} grad_dino={g * (0.015 + 0.3 * f):.4f} grad_flow={g:.4f} grad_total={g * (1.02 + 0.1 * f):.4f}"
        )
    return c.write("dino.log", o)


@T(
    "t-f46",
    "JSON lines, ret dictionary",
    "head_not_updated",
    ("lr_too_small",),
    "step/z_head_update_ratio is 3e-7 for the whole run, flow_head 6e-4: the z head's parameter group is (practically) not updated.",
)
def _(c):
    s = np.arange(0, 10000, 100)
    d = c.ret(s, dino=False, slices=False, mu=(0.9, 0.9), std=(0.62, 0.62))
    d["step/z_head_update_ratio"] = c.jit(np.full(len(s), 3e-7), 0.2)
    return c.jsonl("ret.jsonl", rows(d), 4)


@T(
    "t-f47",
    "MMEngine lines",
    "resume_from_scratch",
    (),
    "Resume at iter 20,000 ('Load checkpoint ... strict=False, 412 missing keys'): the loss goes from 0.74 back to 1.62, the value of iter 0, and falls as a fresh run.",
)
def _(c):
    def line(k, L):
        return f"09/01 {k // 3000 % 24:02d}:{k // 50 % 60:02d}:12 - mmengine - INFO - Iter(train) [{k:>5d}/60000]  lr: 1.0000e-04  eta: 8:00:00  time: 0.52  data_time: 0.01  memory: 40210  loss: {L:.4f}"

    s = np.arange(50, 20001, 50)
    L = c.loss(s, 1.63, 0.6, 700, 0.6, 0.02)
    o = [line(k, L[i]) for i, k in enumerate(s)]
    o += [
        "09/01 07:10:03 - mmengine - INFO - Auto resumed from the latest checkpoint work_dirs/a/iter_20000.pth.",
        "09/01 07:10:21 - mmengine - WARNING - The model and loaded state dict do not match exactly: missing keys in source state_dict: 412",
        "09/01 07:10:21 - mmengine - INFO - resumed epoch: 0, iter: 20000",
    ]
    s2 = np.arange(20050, 32001, 50)
    L2 = c.loss(s2 - 20000, 1.63, 0.6, 700, 0.6, 0.02)
    return c.write("resume.log", o + [line(k, L2[i]) for i, k in enumerate(s2)])


@T(
    "t-f48",
    "JSON lines with events",
    "self_stopped",
    ("weak_field", "no_learning"),
    "The trainer's watchdog stopped the run at step 4,000 of 100,000 with its reason (flow/cos below 0.05 for 2,000 steps).",
)
def _(c):
    s = np.arange(0, 4001, 20)
    R = rows(
        {
            "step": s,
            "loss/flow": c.jit(np.full(len(s), 1.93), 0.012),
            "flow/cos": c.add(np.full(len(s), 0.021), 0.006),
            "lr": warmconst(s, 1e-4, 500),
        }
    )
    R.append(
        {
            "step": 4000,
            "event": "alarm",
            "reason": "flow/cos below 0.05 for 2000 steps",
            "action": "stop",
            "max_steps": 100000,
        }
    )
    return c.jsonl("log.jsonl", R, 5, head=[{"event": "start", "max_steps": 100000, "alarms": True}])


@T(
    "t-f49",
    "JSON lines",
    "metrics_lost",
    (),
    "val/cos, val/nmse and val/fid are null from step 6,000 to the end (before that they were improving), the training loss goes on: evaluation broke, the state of the model is unknown.",
)
def _(c):
    s = np.arange(0, 16000, 40)
    R = rows(
        {
            "step": s,
            "train/loss": c.loss(s, 1.4, 0.62, 500, 0.6, 0.02),
            "train/lr": warmconst(s, 1e-4, 500),
            "train/grad_norm": c.gnorm(s, 1.0, 0.3, 400),
        }
    )
    for k in range(500, 16001, 500):
        ok = k < 6000
        R.append(
            {
                "step": k,
                "val/cos": 0.8 - 0.6 * (1 + k / 500) ** -0.6 if ok else float("nan"),
                "val/nmse": 0.37 + 0.6 * (1 + k / 500) ** -0.6 if ok else float("nan"),
                "val/fid": 120 - k / 100 if ok else float("nan"),
            }
        )
    R.sort(key=lambda r: r["step"])
    return c.jsonl("log.jsonl", R, 5, nan="null")


@T(
    "t-f50",
    "DeepSpeed lines",
    "amp_overflow",
    ("no_learning", "nan_loss"),
    "OVERFLOW at nearly every step: the loss scale is halved from 65536 down to below 1e-3, 96 % of the steps are skipped, the loss does not move.",
)
def _(c):
    sc, o, skipped = (
        65536.0,
        [
            "[2025-02-02 10:00:00,001] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed Flops Profiler Enabled: False, fp16 enabled: True"
        ],
        0,
    )
    for k in range(1, 401):
        ov = c.rng.random() < 0.96
        if ov:
            skipped += 1
            if sc > 2e-4 and skipped % 9 == 0:
                o.append(
                    f"[2025-02-02 10:{k // 60:02d}:{k % 60:02d},311] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc:g}, reducing to {sc / 2:g}"
                )
                sc /= 2
        o.append(
            f"[2025-02-02 10:{k // 60:02d}:{k % 60:02d},420] [INFO] step: {k} loss: {1.71 + 0.02 * c.n():.4f} loss_scale: {sc:g} skipped: {skipped} lr: 1e-4 grad_norm: {'inf' if ov else '2.113'}"
        )
    return c.write("ds.log", o)


@T(
    "t-f51",
    "JSON lines, ret dictionary",
    "condition_unused",
    ("text_ignored",),
    "flow/cond_gain_cos is -0.002 +- 0.003 for the whole run while cos is 0.7: the field is the unconditional mean field, shuffling the condition changes nothing.",
)
def _(c):
    s = np.arange(0, 18000, 100)
    d = c.ret(s, dino=False, kl=False, endpt=False, c1=0.86)
    d["flow/cond_gain_cos"] = -0.002 + 0.003 * c.n(len(s))
    return c.jsonl("m.jsonl", rows(d), 5)


@T(
    "t-f52",
    "CSV",
    "train_infer_mismatch",
    ("step_schedule",),
    "cos 0.85 and speed ratio 0.88 at the end, std of z0 1.0, but endpt_rmse grows from K=8 (1.29) to K=64 (1.62): the sampler integrates something else than what was trained.",
)
def _(c):
    s = np.arange(1000, 30001, 250)
    n = len(s)
    cs, r, nm = c.field(s, 0.04, 0.97, 500)
    return c.csv(
        "eval.csv",
        rows(
            {
                "step": s,
                "flow/cos": cs,
                "flow/nmse": nm,
                "flow/speed_ratio": r,
                "flow/endpt_rmse@8": c.jit(np.full(n, 1.29), 0.01),
                "flow/endpt_rmse@16": c.jit(np.full(n, 1.42), 0.01),
                "flow/endpt_rmse@32": c.jit(np.full(n, 1.55), 0.01),
                "flow/endpt_rmse@64": c.jit(np.full(n, 1.62), 0.01),
                "std/mean": c.jit(np.full(n, 0.98), 0.004),
                "flow/cond_gain_cos": c.add(np.full(n, 0.12), 0.004),
            }
        ),
        digits=4,
    )


@T(
    "t-f53",
    "key: value lines",
    "moving_target",
    ("z0_leak", "sigma_collapse"),
    "loss_flow falls to 0.0004 because v_tgt_norm falls from 91 to 1.6: z0_norm moves onto z1_norm (gap 0.1) - the target was not detached; CLIP score stays at chance.",
)
def _(c):
    s = np.arange(0, 9000, 25)
    f = np.exp(-s / 1100)
    o = []
    for i, k in enumerate(s):
        v = (1.6 + 89.4 * f[i]) * math.exp(0.02 * c.n())
        o.append(
            f"step: {k}  loss_flow: {max(0.0004, (v / 64) ** 2 * 0.9 * math.exp(0.05 * c.n()) * (0.45 + 0.5 * f[i])):.5f}  v_tgt_norm: {v:.2f}  z0_norm: {64.5 - 0.3 * f[i] + 0.1 * c.n():.2f}  z1_norm: 64.60  cos_z0_z1: {1 - f[i] + 0.0005 * c.n():.3f}  clip: {0.18 + 0.002 * c.n():.3f}"
        )
    return c.write("log.txt", o)


@T(
    "t-f54",
    "W&B history CSV",
    "kl_not_acting",
    ("weak_gradient_share", "scale_mismatch"),
    "With w_kl 1e-8, mu/abs_mean rises from 0.7 to 6.1, z_init/var from 1.2 to 58, kl from 0.5 to 29: the posterior drifts away from the prior, KL does not act.",
)
def _(c):
    s = np.arange(0, 15000, 50)
    mu = c.jit(0.9 + 6.8 * (1 - np.exp(-s / 5000)) ** 1.1 * 1.08, 0.01)
    sd = c.jit(np.full(len(s), 0.8), 0.01)
    return c.csv(
        "h.csv",
        rows(
            {
                "_step": s,
                "_runtime": s * 0.5,
                "_timestamp": 1745000000 + s * 0.5,
                "loss/flow": c.loss(s, 1.9, 0.9, 500, 0.6, 0.03),
                "loss/kl": 0.5 * (mu**2 + sd**2 - 1 - 2 * np.log(sd)),
                "w/kl": np.full(len(s), 1e-8),
                "mu/abs_mean": 0.79 * mu,
                "std/mean": sd,
                "z_init/mean": 0.02 * c.n(len(s)),
                "z_init/var": mu**2 + sd**2,
                "lr": np.full(len(s), 1e-4),
            }
        ),
    )


@T(
    "t-f55",
    "step trace as in note 000",
    "step_schedule",
    ("train_infer_mismatch",),
    "dt should be the symmetric logit-normal grid; here it decreases monotonically and sums to 0.49: the second half of the path is never integrated.",
)
def _(c):
    dt = logit_normal_dt(40)[:20]
    cum = np.concatenate([[0], np.cumsum(dt)[:-1]])
    o = ["schedule=logit_normal num_steps=40 state=float32"]
    for _ in range(3):
        o += c.trace(0.789 + 0.0003 * c.n() + 0.07 * cum, 0.466 - 0.02 * cum, dt)
    return c.write("steps.log", o)


@T(
    "t-f56",
    "python logging lines",
    "vae_roundtrip",
    ("latent_scale_factor",),
    "Round-trip PSNR is 11-12 dB in every batch (29+ expected) though latents have mean 0 and std 1: VAE in train mode / wrong weights. The flow itself trains.",
)
def _(c):
    s = np.arange(0, 3000, 20)
    L = c.loss(s, 1.5, 0.8, 300, 0.6, 0.03)
    o = ["INFO:vae:loaded vae.pt: 38 missing keys, 38 unexpected keys (strict=False)"]
    for i, k in enumerate(s):
        o.append(f"INFO:train:step {k} loss {L[i]:.4f} lr 1e-4")
        if k % 100 == 0:
            o.append(
                f"INFO:vae:roundtrip psnr {11.6 + 0.2 * c.n():.2f} dB latent_mean {0.004 * c.n():.4f} latent_std {1.01 + 0.01 * c.n():.4f} recon range [0.31, 0.68]"
            )
    return c.write("train.log", o)


@T(
    "t-f57",
    "JSON lines, ret dictionary",
    "weak_gradient_share",
    ("kl_not_acting",),
    "grad/kl is 40x grad/flow, so the flow has 2.5 % of the total gradient: it is drowned by a KL weight of 10; cos stays at 0.15.",
    phrase="the flow term is drowned by the KL term",
)
def _(c):
    s = np.arange(0, 8000, 50)
    d = c.ret(s, dino=False, c1=0.16, slices=False, endpt=False, mu=(0.9, 0.3))
    d["grad/kl"] = d["grad/flow"] * c.jit(np.full(len(s), 40.0), 0.1)
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2)
    total(d, 1, 10)
    d["w/kl"], d["w/flow"] = np.full(len(s), 10.0), np.full(len(s), 1.0)
    d["flow/cond_gain_cos"] = c.add(np.full(len(s), 0.03), 0.004)
    return c.jsonl("r.jsonl", rows(d), 5)


@T(
    "t-f58",
    "tqdm bars with postfix",
    "weak_field",
    ("no_learning",),
    "After 30k steps cos_sim is still 0.04 and norm_ratio 0.28 (both logged in the bar); the loss is slightly above E|v*|^2; endpoint error equals the start distance.",
)
def _(c):
    N = 30000
    o = []
    for k in range(60, N + 1, 60):
        cs, r = 0.045 * (1 - math.exp(-k / 3000)) + 0.004 * c.n(), 0.283 + 0.006 * c.n()
        o.append(
            "train: "
            + bar(
                k,
                N,
                k * 0.42,
                post=f"fm_loss={1.9 * (1 + r * r - 2 * r * cs):.3f}, cos_sim={cs:.3f}, norm_ratio={r:.3f}, lr=1.0e-4",
            )
        )
    return c.write("err.log", o)


@T(
    "t-f59",
    "JSON lines",
    "text_ignored",
    ("posterior_collapse", "condition_unused"),
    "mu_pair_cos (different prompts) rises from 0.6 to 0.9996 and stays, mu_same_cos is 1: all prompts get one mean, which is not 0 (mu_abs 0.7).",
)
def _(c):
    s = np.arange(0, 12000, 60)
    n = len(s)
    return c.jsonl(
        "head.jsonl",
        rows(
            {
                "step": s,
                "loss_flow": c.loss(s, 1.7, 0.95, 500, 0.6, 0.02),
                "mu_pair_cos": np.minimum(0.9998, 1 - 0.4 * np.exp(-s / 500) - 0.0004 + 0.0001 * c.n(n)),
                "mu_same_cos": np.ones(n),
                "mu_abs": c.jit(np.full(n, 0.71), 0.01),
                "std_mean": c.jit(np.full(n, 0.86), 0.01),
                "kl": c.jit(np.full(n, 0.42), 0.01),
                "lr": np.full(n, 1e-4),
            }
        ),
        5,
    )
