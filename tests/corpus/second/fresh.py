import json
import math
import numpy as np
from lib import case as _case, sig, py, rows, bf16, logit_normal_dt, decay, warmcos, warmconst, ramp, bar, plain, hms  # noqa


def case(id, fmt, expected, acceptable=(), story="", phrase=None):
    return _case("fresh", id, fmt, expected, acceptable, story, phrase)


def A(a, b, st=1):
    return np.arange(a, b, st)


# =====================================================================================  HEALTHY
@case("wandb_hist_a", "W&B history CSV", "none", story="Noisy batch-1 fine-tune with system columns; the mean falls slowly.")
def _(c):
    s = A(0, 24000, 20)
    n = len(s)
    t = c.wall("2025-03-02T09:00:00", n, 14.2)
    d = {"_step": s, "_runtime": [14.2 * i + 3 for i in range(n)], "_timestamp": [x.timestamp() for x in t],
         "epoch": [int(x) // 3000 for x in s],
         "train/loss": c.jit(decay(s, 0.62, 0.34, 3000), 0.22, 0.05), "train/learning_rate": warmconst(s, 5e-5, 500),
         "train/grad_norm": c.jit(decay(s, 1.1, 0.55, 3000), 0.3, 0.1), "perf/imgs_per_sec": c.jit(np.full(n, 41.0), 0.04),
         "system/gpu.0.memory": c.jit(np.full(n, 71.2), 0.002)}
    return c.csv("wandb_history.csv", rows(d), digits=8)


@case("megatron_a", "Megatron-LM lines", "none", story="Cosine LR down to ~0 at the end, bf16, no skipped iterations; loss keeps falling gently.")
def _(c):
    s = A(50, 40001, 50)
    L = c.loss(s, 1.35, 0.58, 900, sd=0.015)
    lr = warmcos(s, 2e-4, 2000, 40000, 0)
    g = c.gnorm(s, 2.4, 0.31, 900)
    ms = c.jit(np.full(len(s), 812.0), 0.01)
    t = c.wall("2025-06-01T00:01:00", len(s), 41)
    out = ["using world size: 64, data-parallel size: 64, context-parallel size: 1, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
           "------------------------ arguments ------------------------", "  clip_grad ....................................... 1.0",
           "  lr .............................................. 0.0002", "  lr_decay_style .................................. cosine",
           "  train_iters ..................................... 40000", "-------------------- end of arguments ---------------------",
           "training ..."]
    for i, k in enumerate(s):
        out.append(f" [{t[i]:%Y-%m-%d %H:%M:%S}] iteration {k:8d}/   40000 | consumed samples: {k*512:12d} | elapsed time per iteration (ms): {ms[i]:.1f} | "
                   f"learning rate: {lr[i]:.6E} | global batch size:   512 | fm loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | "
                   f"number of skipped iterations:   0 | number of nan iterations:   0 |")
    return c.write("train.out", out)


@case("keras_a", "Keras progress lines", "none", story="40 epochs, val_loss follows loss with a constant gap and flattens.")
def _(c):
    e = A(0, 40)
    L = c.loss(e, 0.93, 0.41, 3, sd=0.008)
    v = c.jit(decay(e, 0.92, 0.435, 3), 0.008)
    lr = warmcos(e, 3e-4, 2, 40, 1e-6)
    out = []
    for i in e:
        out += [f"Epoch {i+1}/40", f"1563/1563 [==============================] - {int(412+3*c.n())}s {int(263+2*c.n())}ms/step - loss: {L[i]:.4f} - velocity_mse: {L[i]*.98:.4f} - val_loss: {v[i]:.4f} - val_velocity_mse: {v[i]*.98:.4f} - lr: {lr[i]:.4e}"]
    return c.write("fit.log", out)


@case("lightning_a", "Lightning metrics.csv", "none", story="Lightning CSV with separate rows for train, validation and lr monitor; all fine.")
def _(c):
    s = A(49, 15000, 50)
    L = c.loss(s, 1.02, 0.47, 500, sd=0.03)
    lr = warmcos(s, 1e-4, 500, 15000, 1e-5)
    g = c.gnorm(s, 1.8, 0.4, 500)
    rw = []
    for i, k in enumerate(s):
        rw.append({"epoch": int(k) // 1500, "step": int(k), "lr-AdamW": lr[i]})
        rw.append({"epoch": int(k) // 1500, "step": int(k), "train_loss_step": L[i], "grad_2.0_norm_total": g[i]})
        if (k + 1) % 1500 == 0:
            b = decay(k, 1.01, 0.485, 500) * (1 + 0.006 * c.n())
            rw.append({"epoch": int(k) // 1500, "step": int(k), "val_loss": b, "val_cos": 1 - b / 1.9, "val_fid": 14 + 60 * math.exp(-k / 4000)})
            rw.append({"epoch": int(k) // 1500, "step": int(k), "train_loss_epoch": float(np.mean(L[max(0, i - 29):i + 1]))})
    cols = ["epoch", "step", "lr-AdamW", "train_loss_step", "grad_2.0_norm_total", "train_loss_epoch", "val_loss", "val_cos", "val_fid"]
    return c.csv("metrics.csv", rw, cols=cols, digits=8)


@case("absl_a", "absl (clu) log lines", "none", story="JAX run, eval every 2500 steps, ordinary.")
def _(c):
    s = A(100, 50001, 100)
    L = c.loss(s, 1.12, 0.39, 1500, sd=0.012)
    g = c.gnorm(s, 1.5, 0.22, 1500)
    t = c.wall("2025-01-14T07:10:00", len(s), 22)
    out = [f"I0114 07:09:41.{118+i}204 139872 train.py:{61+i}] {m}" for i, m in enumerate(
        ["JAX process: 0 / 4", "JAX local devices: [TpuDevice(id=0), TpuDevice(id=1), TpuDevice(id=2), TpuDevice(id=3)]", "Number of parameters: 675,129,632"])]
    for i, k in enumerate(s):
        p = f"I{t[i]:%m%d %H:%M:%S}.{int(c.rng.integers(0,999999)):06d} 139872 "
        out.append(p + f"logging_writer.py:48] [{k}] grad_norm={g[i]:.6f}, learning_rate={min(1e-4, 1e-4*k/5000):.6g}, loss={L[i]:.6f}, steps_per_sec={4.53+0.03*c.n():.4f}")
        if k % 2500 == 0:
            out.append(p + f"logging_writer.py:48] [{k}] eval_loss={decay(k,1.12,.4,1500)*(1+.004*c.n()):.6f}, fid={9.4+80*math.exp(-k/8000)+.2*c.n():.4f}")
    return c.write("train.INFO", out)


@case("torchtune_a", "torchtune log", "none", story="Short fine-tune from a good checkpoint: loss is already low and hardly moves; cos good throughout.")
def _(c):
    s = A(1, 181)
    L = c.jit(decay(s, 0.372, 0.351, 40), 0.05, 0.1)
    out = []
    for i, k in enumerate(s):
        out.append(f"Step {k} | loss:{L[i]:.6f} v_cos:{0.803+0.008*(1-math.exp(-k/60))+0.006*c.n():.5f} lr:{float(warmcos([k],2e-5,10,180)[0]):.6g} grad_norm:{0.31*math.exp(.12*c.n()):.5f} tokens_per_second_per_gpu:{5120+40*c.n():.2f} peak_memory_active:{38.2:.4f} peak_memory_reserved:{44.8:.4f}")
    head = ["# init from checkpoints/flow-xl-ema-1.2M.safetensors, full finetune on 18k licensed pictures"]
    return c.write("log_1747129904.txt", head + out)


@case("tqdm_a", "tqdm bar with postfix (CR)", "none", story="One long carriage-return tqdm bar, smoothed loss falling.")
def _(c):
    s = A(1, 1501)
    L = c.loss(s, 1.0, 0.52, 120, sd=0.04)
    g = c.gnorm(s, 1.2, 0.45, 120)
    return c.write("nohup.out", "Loading pipeline components...: 100%|██████████| 5/5 [00:01<00:00,  3.11it/s]\n" + "\r".join(
        "Training: " + bar(int(k), 1500, 0.62 * k, post=f"loss={L[i]:.4f}, gnorm={g[i]:.3f}, lr={float(warmconst([k],1e-4,100)[0]):.2e}") for i, k in enumerate(s)) + "\n")


@case("loguru_scaler_a", "loguru lines", "none", story="GradScaler: first steps inf at scale 65536, three halvings, then stable and growing again.")
def _(c):
    s = A(0, 6000, 10)
    L = c.loss(s, 1.05, 0.5, 300, sd=0.025)
    g = c.gnorm(s, 3, 0.7, 300)
    t = c.wall("2025-02-11T18:20:00", len(s), 5)
    sc = 65536.0
    out = []
    for i, k in enumerate(s):
        gn = f"{g[i]:.4f}"
        if i < 3:
            sc /= 2
            gn = "inf"
            out.append(f"{t[i]:%Y-%m-%d %H:%M:%S}.{int(c.rng.integers(100,999))} | WARNING  | engine.amp:step:57 - found inf in gradients, skipping optimizer step, scale -> {sc:.0f}")
        elif k % 2000 == 0:
            sc *= 2
        out.append(f"{t[i]:%Y-%m-%d %H:%M:%S}.{int(c.rng.integers(100,999))} | INFO     | engine.loop:train:142 - step={k} loss={L[i]:.5f} grad_norm={gn} lr={float(warmconst([k],2e-4,200)[0]):.3e} amp_scale={sc:.0f} img/s={212+3*c.n():.1f}")
    return c.write("train.log", out)


@case("hf_state_a", "HF trainer_state.json", "none", story="Linear decay to 0, eval_loss every 500 falls, LoRA fine-tune.")
def _(c):
    h = []
    for k in range(10, 6001, 10):
        h.append({"epoch": k / 2000, "grad_norm": 0.42 * math.exp(.2 * c.n()) * (1 + math.exp(-k / 300)), "learning_rate": 1e-4 * min(k / 300, (6000 - k) / 5700), "loss": float(decay(k, .71, .49, 400)) * math.exp(.05 * c.n()), "step": k})
        if k % 500 == 0:
            h.append({"epoch": k / 2000, "eval_loss": float(decay(k, .7, .495, 400)) * (1 + .003 * c.n()), "eval_runtime": 61.2, "eval_samples_per_second": 16.3, "eval_steps_per_second": 2.04, "step": k})
    return c.trainer_state("trainer_state.json", h)


@case("ret_recipe_a", "JSON lines with config line", "none", story="KL weight is tiny, sigma is constrained by std_range and anchor as the config line says; everything else good.")
def _(c):
    s = A(0, 20000, 50)
    d = c.ret(s, wkl=1e-4, std=(0.62, 0.78), mu=(0.9, 0.55))
    d["grad/kl"] = d["grad/kl"] * 0.03
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/dino"] ** 2 + d["grad/kl"] ** 2)
    n = len(s)
    d["std/min"], d["std/max"] = c.jit(np.full(n, .52), .01), c.jit(np.full(n, 1.08), .01)
    head = [{"config": {"w_kl": 1e-4, "w_dino": 0.5, "std_range": [0.5, 1.1], "anchor": "text_mean", "detach": ["z1"], "dino_out_dim": 8192, "lr": 1e-4}}]
    return c.jsonl("ret.jsonl", rows(d), head=head)


@case("deepspeed_a", "DeepSpeed log", "none", story="fp16 DeepSpeed, two overflows in the warm-up, loss scale fine later.")
def _(c):
    s = A(10, 5001, 10)
    L = c.loss(s, 1.1, 0.55, 250, sd=0.02)
    t = c.wall("2024-11-20T03:00:00", len(s), 12)
    out = []
    for i, k in enumerate(s):
        ts = f"[{t[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(0,999)):03d}] "
        if k in (10, 20):
            a = 65536 if k == 10 else 32768
            out.append(f"{ts}[INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {a}, reducing to {a//2}")
        out.append(f"{ts}[INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={1 if k==10 else 2}, lr=[{float(warmcos([k],1e-4,200,5000,1e-5)[0])!r}], mom=[(0.9, 0.95)]")
        out.append(f"steps: {k} loss: {L[i]:.4f} iter time (s): {1.21+.01*c.n():.3f} samples/sec: {211+2*c.n():.3f}")
    return c.write("ds.log", out)


@case("tsv_sgdr_a", "TSV", "none", story="Cosine warm restarts at every 5000 steps: the loss bumps a little, then goes below its earlier level each time.")
def _(c):
    s = A(0, 20000, 40)
    ph = (s % 5000) / 5000
    lr = 1e-6 + (2e-4 - 1e-6) * .5 * (1 + np.cos(np.pi * ph))
    L = c.jit(decay(s, 1.05, 0.44, 800) * (1 + 0.035 * np.where(s >= 5000, np.exp(-ph * 8), 0) - 0.02 * ph), 0.012)
    v = [float(decay(k, 1.05, .45, 800) * (1 - .02 * ((k % 5000) / 5000)) * (1 + .003 * c.n())) if k % 1000 == 960 else None for k in s]
    return c.csv("log.tsv", rows({"iter": s, "lr": lr, "flow_loss": L, "gnorm": c.gnorm(s, 1.4, .35, 800), "val_flow_loss": v}), sep="\t")


@case("tb_a", "TensorBoard", "none", story="One spike to 4x at 31 % that recovers within 60 steps.")
def _(c):
    s = A(0, 12000, 10)
    L = c.loss(s, .98, .42, 600, sd=.02)
    g = c.gnorm(s, 1.5, .4, 600)
    sp = np.where(s >= 3720, np.exp(-(s - 3720) / 18.0), 0)
    return c.tb("runs/Mar03_11-02-10_a100", {"Loss/train": (s, L * (1 + 3 * sp)), "Grad/norm": (s, g * (1 + 9 * sp)), "LR": (s, warmconst(s, 1e-4, 300)),
                                             "Loss/val": (s[::50], c.jit(decay(s[::50], .98, .43, 600), .004)), "Time/data": (s, c.jit(np.full(len(s), .02), .3))}, "2025-03-03T11:02:10")


@case("mlflow_vae_a", "MLflow", "none", story="VAE training: recon falls, KL rises a little then settles at its small weight, PSNR to 31 dB.")
def _(c):
    s = A(0, 30000, 50)
    v = s[::20]
    rec = c.loss(s, .31, .035, 700, p=.9, sd=.03)
    kl = c.jit(14 + 22 * (1 - np.exp(-s / 900)) - 6 * (1 - np.exp(-s / 9000)), .02)
    return c.mlflow("4", "5f0c1a2b3d4e4f6a8b7c9d0e1f2a3b4c", {
        "train_rec_loss": (s, rec), "train_kl_loss": (s, kl), "train_total_loss": (s, rec + 1e-6 * kl), "lr": (s, np.full(len(s), 4.5e-6 * 16)),
        "val_rec_loss": (v, c.jit(decay(v, .30, .037, 700, .9), .01)), "val_psnr": (v, c.add(31.2 - 14 * (1 + v / 900) ** -.9, .12)), "val_lpips": (v, c.jit(decay(v, .5, .09, 900, .8), .01))}, "2025-04-04T08:00:00")


@case("neptune_a", "Neptune CSV export", "none", story="EMA lags slightly in the first part, then is better than the raw weights.")
def _(c):
    s = A(0, 100000, 250)
    raw = c.jit(decay(s, 1.0, .40, 4000), .008)
    ema = c.jit(decay(np.maximum(0, s - 1800), 1.0, .392, 4000), .004)
    return c.csv("neptune_export.csv", rows({"step": s, "timestamp": [1.74e9 + 1.1 * float(x) for x in s], "metrics/train/fm_loss": c.jit(decay(s, 1.0, .40, 4000), .03), "metrics/eval/loss_raw": raw, "metrics/eval/loss_ema": ema,
                                              "metrics/optim/lr": warmconst(s, 1e-4, 5000), "monitoring/cpu": c.jit(np.full(len(s), 33.), .2)}), digits=7)


@case("opensora_a", "ColossalAI/Open-Sora tqdm", "none", story="Several epochs of bars; the loss is noisy per micro-batch.")
def _(c):
    out = ["[2025-05-05 10:00:01] Experiment directory created at outputs/012-STDiT3-XL-2", "[2025-05-05 10:00:33] Beginning epoch 0..."]
    gs = 0
    for ep in range(4):
        if ep:
            out.append(f"[2025-05-05 {10+2*ep}:00:33] Beginning epoch {ep}...")
        for k in range(10, 1201, 10):
            gs = ep * 1200 + k
            out.append(f"Epoch {ep}: " + bar(k, 1200, 5.8 * k, post=f"loss={float(decay(gs,.85,.43,400))*math.exp(.13*c.n()):.4f}, step={k-1}, global_step={gs-1}, lr={min(1e-4,1e-4*gs/1000):.2e}"))
        out.append(f"[2025-05-05 {12+2*ep}:00:01] Saved checkpoint at epoch {ep}, step 1199, global_step {gs} to outputs/012-STDiT3-XL-2/epoch{ep}-global_step{gs}")
    return c.write("log.txt", out)


@case("md_probe_a", "Markdown report with tables", "none", story="Probe tables of a good run: cos ~0.8, ratio ~0.8, endpoint error falls with K, means of prompts distinct, VAE fine.")
def _(c):
    out = ["# Probe of checkpoint 180k (EMA), 256 held-out pairs", "", "Nothing alarming; kept for reference.", "", "## Training", "",
           "| step | loss/flow | val/flow | flow/cos | flow/speed_ratio | flow/nmse | lr |", "|---:|---:|---:|---:|---:|---:|---:|"]
    for k in range(0, 180001, 7500):
        cs = .805 - .76 * (1 + k / 2500) ** -.6 + .004 * c.n()
        r = cs * 1.01 + .01
        nm = 1 + r * r - 2 * r * cs
        out.append(f"| {k} | {1.9*nm*(1+.01*c.n()):.4f} | {1.9*nm*1.015:.4f} | {cs:.4f} | {r:.4f} | {nm:.4f} | {min(1e-4,1e-4*(k+1)/5000):.2e} |")
    out += ["", "## Shooting", "", "| K | endpt_rmse |", "|---|---|", "| 8 | 0.641 |", "| 16 | 0.588 |", "| 32 | 0.571 |", "| 64 | 0.566 |", "",
            "## Text", "", "| pair | cos of means |", "|---|---|", "| same prompt twice | 1.0000 |", "| cat / bridge | 0.312 |", "| cat / dog | 0.574 |", "| bridge / soup | 0.268 |", "",
            "## VAE", "", "PSNR of decode(encode(x)) = 30.8 dB, z1 std = 0.97, z0 std = 0.94."]
    return c.write("probe.md", out)


@case("zh_notes_a", "Chinese prose with printed lines", "none", story="Chinese working notes of a healthy run.")
def _(c):
    out = ["## 训练记录(第3次实验)", "", "配置:lr=1e-4,warmup 1000 步,batch 256,bf16,w_kl=0.01。", ""]
    for k in range(0, 30001, 1000):
        cs = .77 - .72 * (1 + k / 1500) ** -.6 + .004 * c.n()
        r = cs * 1.02 + .01
        nm = 1 + r * r - 2 * r * cs
        out.append(f"第 {k} 步: loss_flow={1.9*nm:.4f}, val_flow={1.92*nm:.4f}, cos={cs:.4f}, 速度比={r:.3f}, grad_norm={.4+.9*math.exp(-k/3000):.3f}, lr={1e-4*min(1,(k+1)/1000):.2e}")
    out += ["", "验证集与训练集损失基本一致,没有过拟合。", "VAE 重建 PSNR=29.7 dB;z1 的标准差为 1.02,z0 的标准差为 0.93。", "采样 32 步的端点误差 0.58,64 步 0.57,图像清晰。"]
    return c.write("notes_zh.md", out)


def _walk(c, dt, x0=.79, x1=.86, v=.47):
    n = len(dt)
    cum = np.concatenate([[0], np.cumsum(dt)[:-1]])
    x = x0 - .14 * np.sin(np.pi * cum) + (x1 - x0) * cum
    return x * np.exp(.001 * c.n(n)), v * (1 + .25 * (cum - .5) ** 2 * 4) * np.exp(.01 * c.n(n))


@case("trace_a", "sampling trace lines", "none", story="64-step sampling trace with a symmetric logit-normal grid, |x| starts at 0.79, ends at the data's norm.")
def _(c):
    dt = logit_normal_dt(64)
    x, v = _walk(c, dt)
    return c.write("sample_trace.txt", ["sampler=euler steps=64 grid=logit_normal (symmetric) dtype=float32", "prompt='a lighthouse at dusk' seed=11"] + c.trace(x, v, dt) + [f"done: |x|=0.8604, sum(dt)={dt.sum():.4f}"])


@case("ranks_a", "python logging, 4 interleaved ranks", "none", story="Four ranks log the same step with their own micro-batch loss, slightly out of order.")
def _(c):
    out = []
    t = c.wall("2025-07-07T20:00:00", 400, 9)
    for i in range(400):
        k = i * 25
        b = float(decay(k, 1.06, .48, 700))
        for r in c.rng.permutation(4):
            b = float(decay(k, 1.06, .48, 700)) * math.exp(.06 * c.n())
            out.append(f"{t[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(0,999)):03d} [rank{r}] INFO trainer: step {k} loss {b:.4f} flow_loss {b*.93:.4f} grad_norm {(.35+1.1*math.exp(-k/900))*math.exp(.1*c.n()):.3f} lr {1e-4*min(1,(k+1)/500):.3e}")
    return c.write("slurm-88123.out", out)


@case("clearml_a", "ClearML scalars JSON", "none", story="get_reported_scalars() dump: title -> series -> x, y.")
def _(c):
    s = A(0, 40000, 100)
    v = A(0, 40000, 2000)

    def ser(n, x, y):
        return {"name": n, "x": [int(a) for a in x], "y": [sig(b, 7) for b in y]}
    d = {"loss": {"train": ser("train", s, c.loss(s, 1.1, .46, 1200)), "val": ser("val", v, c.jit(decay(v, 1.1, .47, 1200), .004))},
         "lr": {"group0": ser("group0", s, warmcos(s, 2e-4, 1000, 40000, 2e-6))},
         "grad_norm": {"total": ser("total", s, c.gnorm(s, 1.6, .3, 1200))},
         ":monitor:gpu": {"gpu_0_utilization": ser("gpu_0_utilization", s, c.jit(np.full(len(s), 97.), .01))}}
    return c.write("scalars.json", json.dumps(d) + "\n")


@case("short_a", "printed Python dicts", "none", story="Very short smoke run: 30 lines, falling.")
def _(c):
    out = []
    for k in range(30):
        out.append(plain({"step": k * 10, "loss": round(float(decay(k * 10, 1.02, .55, 60)) * (1 + .02 * c.n()), 4), "grad_norm": round(.6 + 1.2 * math.exp(-k / 5) + .05 * c.n(), 4), "lr": round(1e-4 * min(1, (k + 1) / 5), 7)}))
    return c.write("smoke.log", out)


@case("nemo_a", "NeMo progress lines", "none", story="NeMo bar, long, LR cosine, val_loss in the same bar.")
def _(c):
    out = []
    val = None
    for k in range(20, 12001, 20):
        if k % 1000 == 0:
            val = float(decay(k, .99, .47, 500)) * (1 + .004 * c.n())
        out.append(f"Epoch {k//4000}: : " + bar(k, 12000, 1.9 * k, post=f"v_num=3, reduced_train_loss={float(decay(k,.99,.46,500))*math.exp(.025*c.n()):.4f}, global_step={k-1}.0, consumed_samples={k*256}.0, train_step_timing in s={1.9+.02*c.n():.2f}" + (f", val_loss={val:.4f}" if val else "")))
    return c.write("nemo_log_globalrank-0_localrank-0.txt", out)


@case("table_a", "space-aligned table", "none", story="Space-aligned table with unrelated columns, gradient norm falling smoothly to 0.12, long plateau at the end.")
def _(c):
    out = ["    iter     time   data_t     loss    gnorm        lr   mem(G)  temp(C)"]
    for k in range(0, 30000, 50):
        if k and k % 5000 == 0:
            out.append(out[0])
        out.append(f"{k:8d} {k*.71:8.0f} {abs(.011+.002*c.n()):8.4f} {float(decay(k,1.0,.42,700,.9))*math.exp(.02*c.n()):8.4f} {(.12+1.4*(1+k/600)**-.9)*math.exp(.08*c.n()):8.4f} {1e-4*min(1,(k+1)/1000):9.2e} {61.3:8.1f} {64+int(2*c.n()):8d}")
    return c.write("out.txt", out)


@case("dino_ret_b", "nested JSON lines", "none", story="Full ret dictionary nested by group, moderate shares, ordinary entropies.")
def _(c):
    s = A(0, 30000, 100)
    out = []
    for r in rows(c.ret(s)):
        d = {"global_step": int(r.pop("step")), "lr": sig(r.pop("lr"))}
        for k, v in r.items():
            a, b = k.split("/", 1)
            d.setdefault(a, {})[b] = sig(v)
        out.append(json.dumps(d))
    return c.write("metrics.jsonl", [json.dumps({"config": {"dino_prototypes": 8192, "w_kl": .01, "w_dino": .5}})] + out)


@case("restart_counter_a", "python print lines, two jobs appended", "none", story="Second job resumes from the checkpoint and its own counter restarts at 0; the loss continues at its level and falls on.")
def _(c):
    out = []
    for job, n in ((0, 9000), (1, 7000)):
        out.append(f"=== job {4410+job} on gpu-node-{3+job} {'(fresh)' if not job else '(weights + optimizer loaded from ckpt/last.pt, counter reset)'} ===")
        for k in range(0, n, 20):
            e = k + 9000 * job
            out.append(f"step: {k:5d}  loss: {float(decay(e,1.04,.43,600))*math.exp(.025*c.n()):.4f}  grad_norm: {(.35+1.2*math.exp(-e/900))*math.exp(.12*c.n()):.4f}  lr: {1e-4*min(1,(e+1)/500):.2e}")
    return c.write("both_jobs.log", out)


# =====================================================================================  FAULTS: optimisation
@case("accelerate_b", "diffusers accelerate bar", "nan_loss", [], "step_loss turns into nan at 38 % and stays.")
def _(c):
    out = ["03/14/2025 12:00:01 - INFO - __main__ - ***** Running training *****", "03/14/2025 12:00:01 - INFO - __main__ -   Num examples = 41822",
           "03/14/2025 12:00:01 - INFO - __main__ -   Total optimization steps = 2000", "03/14/2025 12:00:01 - INFO - __main__ -   Mixed precision = bf16"]
    for k in range(1, 1401):
        L = float(decay(k, .7, .45, 120)) * math.exp(.18 * c.n())
        out.append("Steps: " + bar(k, 2000, 1.3 * k, post=f"lr=1e-5, step_loss={'nan' if k > 760 else format(L, '.3g')}"))
    return c.write("train.log", out)


@case("megatron_b", "Megatron-LM lines", "nan_loss", [], "Loss NAN from iteration 5200 on, grad norm nan, nan iterations counted.")
def _(c):
    out = []
    for k in range(20, 7001, 20):
        nan = k >= 5200
        L = "NAN" if nan else f"{float(decay(k,1.3,.6,500))*math.exp(.015*c.n()):.6E}"
        g = "nan" if nan else f"{(.4+1.5*math.exp(-k/800))*math.exp(.1*c.n()):.3f}"
        out.append(f" iteration {k:8d}/   50000 | consumed samples: {k*1024:12d} | elapsed time per iteration (ms): {640+5*c.n():.1f} | learning rate: {3e-4*min(1,k/1000):.3E} | global batch size:  1024 | flow loss: {L} | loss scale: 1.0 | grad norm: {g} | number of skipped iterations:   0 | number of nan iterations: {20 if nan else 0:3d} |")
    return c.write("rank63.log", out)


@case("absl_b", "JAX/Flax printed steps", "divergence", [], "Falls to 0.55 at 15k, then climbs steadily to 0.95 at 40k; eval with it; LR constant.")
def _(c):
    out = []
    for k in range(100, 40001, 100):
        m = float(decay(k, 1.1, .43, 900)) + .45 * max(0, (k - 15000) / 25000) ** 1.3
        out.append(f"step {k}, loss={m*math.exp(.02*c.n()):.5f}, grad_norm={(.4+.9*math.exp(-k/2000)+.5*max(0,(k-15000)/25000))*math.exp(.1*c.n()):.4f}, lr={min(1e-4,1e-4*k/2000):.2e}, steps/s={5.1+.05*c.n():.2f}")
        if k % 2000 == 0:
            out.append(f"step {k}, eval_loss={m*1.01*math.exp(.005*c.n()):.5f}")
    return c.write("stdout.txt", out)


@case("wandb_chart_b", "W&B chart CSV", "loss_spikes", [], "Sudden jump from 0.55 to 0.83 at step 9,020; it never comes back.")
def _(c):
    s = A(0, 20000, 20)
    L = c.loss(s, 1.0, .44, 700, sd=.02)
    L = np.where(s >= 9020, c.jit(.83 + 1.0 * np.exp(-(s - 9020) / 60.), .02), L)
    return c.chart("wandb_export_2025-06-12T10_11_22.csv", s, {"dit-b-256 - train/loss": L})


@case("lightning_b", "Lightning metrics.csv", "loss_spikes", [], "Huge spikes (5-15x) keep recurring every few hundred steps throughout, with gradient norm.")
def _(c):
    s = A(9, 15000, 10)
    L = c.loss(s, 1.0, .46, 500, sd=.02)
    g = c.gnorm(s, 1.3, .4, 500)
    m = c.rng.random(len(s)) < .028
    amp = 4 + 8 * c.rng.random(len(s))
    L = np.where(m, L * amp, L)
    g = np.where(m, g * amp * 6, g)
    return c.csv("metrics.csv", rows({"epoch": [int(x) // 2500 for x in s], "step": s, "train/loss_step": L, "train/grad_norm": g, "lr-AdamW/pg1": warmconst(s, 1e-4, 500)}), digits=8)


@case("keras_b", "Keras progress lines", "no_learning", [], "Loss and val_loss stay at 1.00 for 60 epochs.")
def _(c):
    out = []
    for e in range(60):
        L = 1.003 + .004 * c.n()
        out += [f"Epoch {e+1}/60", f"782/782 ━━━━━━━━━━━━━━━━━━━━ {int(201+c.n())}s 257ms/step - flow_loss: {L:.4f} - grad_norm: {.41*math.exp(.08*c.n()):.4f} - loss: {L:.4f} - val_loss: {1.002+.003*c.n():.4f} - learning_rate: 1.0000e-04"]
    return c.write("keras_fit.txt", out)


@case("hf_print_b", "HF trainer printed dicts", "lr_too_small", ["no_learning"], "learning_rate 0.0 printed at every step, loss flat.")
def _(c):
    out = ["***** Running training *****", "  Num examples = 118,287", "  Num Epochs = 2", "  Instantaneous batch size per device = 16"]
    for k in range(10, 4001, 10):
        out.append(str({"loss": round(1.0114 * math.exp(.02 * c.n()), 4), "grad_norm": round(1.92 * math.exp(.1 * c.n()), 6), "learning_rate": 0.0, "epoch": round(k / 3697, 2)}))
    return c.write("trainer.log", out)


@case("yaml_b", "YAML stream", "lr_too_small", ['no_learning'], "base LR divided by 1e5 by mistake: 1e-9 with warm-up; loss flat.")
def _(c):
    out = ["# run: dit_s2_debug"]
    for k in range(0, 10000, 50):
        out += [f"- step: {k}", f"  loss_fm: {1.187*math.exp(.02*c.n()):.5f}", f"  grad_norm: {2.7*math.exp(.12*c.n()):.4f}", f"  learning_rate: {1e-9*min(1,(k+1)/500):.3e}", f"  samples_per_sec: {322+4*c.n():.1f}"]
    return c.write("history.yaml", out)


@case("loguru_b", "loguru lines", "lr_too_high", ['loss_spikes'], "LR 2e-2 (AdamW): loss swings between 0.9 and 6 without a trend; after a manual drop to 1e-4 at 6000 it calms and falls.")
def _(c):
    out = []
    t = c.wall("2025-08-01T13:00:00", 450, 8)
    x = c.ar(450, .55)
    for i in range(450):
        k = i * 20
        hi = k < 6000
        L = 2.1 * math.exp(.62 * x[i]) if hi else float(decay(k - 6000, 1.4, .72, 250)) * math.exp(.025 * c.n())
        g = 26 * math.exp(.9 * x[i] + .3 * c.n()) if hi else (1.1 + 3 * math.exp(-(k - 6000) / 300)) * math.exp(.15 * c.n())
        if k == 6000:
            out.append(f"{t[i]:%Y-%m-%d %H:%M:%S.%f} | INFO     | __main__:override:33 - lr override: 0.02 -> 0.0001")
        out.append(f"{t[i]:%Y-%m-%d %H:%M:%S.%f} | INFO     | __main__:train:210 - iter={k} | loss={L:.4f} | gnorm={g:.3f} | lr={2e-2 if hi else 1e-4:.1e}")
    return c.write("run.log", out)


@case("comet_b", "Comet CSV export", "lr_restart", [], "LR cosine to 2e-6 at 30k, then jumps to 3e-4 after the resume; loss jumps from 0.50 to 0.88 and stays above 0.65.")
def _(c):
    s = A(0, 45000, 50)
    lr = np.where(s < 30000, warmcos(s, 1.5e-4, 1000, 30500, 0), 3e-4)
    L = np.where(s < 30000, c.loss(s, 1.05, .42, 1000), c.jit(.68 + .2 * np.exp(-(s - 30000) / 3000.), .02))
    g = np.where(s < 30000, c.gnorm(s, 1.5, .35, 1000), c.jit(np.full(len(s), 1.1), .15))
    rw = []
    for m, v in (("train_loss", L), ("lr", lr), ("grad_norm", g)):
        for k, a in zip(s, v):
            rw.append({"metricName": m, "metricValue": float(a), "step": int(k), "timestamp": 1741000000000 + int(k) * 800, "epoch": int(k) // 5000, "runContext": "train"})
    return c.csv("comet_metrics.csv", rw, digits=7)


@case("lightning_c", "Lightning metrics.csv (epoch rows)", "overfitting", [], "Val loss has its minimum in epoch 22 of 120 and rises by 60 % while train loss falls.")
def _(c):
    rw = []
    for e in range(120):
        tr = float(decay(e, .95, .12, 25, 1.0)) * math.exp(.01 * c.n())
        va = (float(decay(e, .95, .40, 5, 1.0)) + .36 * max(0, (e - 20) / 100)) * math.exp(.008 * c.n())
        rw.append({"epoch": e, "step": (e + 1) * 212 - 1, "train_flow_loss_epoch": tr})
        rw.append({"epoch": e, "step": (e + 1) * 212 - 1, "val_flow_loss": va})
    return c.csv("metrics.csv", rw, digits=8)


@case("mlflow_b", "MLflow", "overfitting", [], "FID and val cos have their optimum at 25 %, worsen clearly after it; train loss keeps falling.")
def _(c):
    s = A(0, 60000, 100)
    v = A(0, 60000, 2000)
    return c.mlflow("11", "aa01bb02cc03dd04ee05ff0611223344", {
        "train.loss": (s, c.jit(decay(s, 1.0, .10, 9000, .9), .02)), "optim.lr": (s, warmconst(s, 1e-4, 1000)),
        "eval.loss": (v, c.jit(decay(v, 1.0, .44, 2000, .9) + .3 * np.maximum(0, (v - 15000) / 45000), .006)),
        "eval.cos": (v, c.add(.72 * (1 - np.exp(-v / 4000.)) - .2 * np.maximum(0, (v - 15000) / 45000), .004)),
        "eval.fid": (v, c.add(18 + 90 * np.exp(-v / 4000.) + 26 * np.maximum(0, (v - 15000) / 45000), .4))}, "2025-05-05T05:00:00")


@case("tsv_b", "TSV", "periodic_memorisation", ["overfitting"], "Staircase: the loss drops by a step at each epoch boundary and is flat or rising within the epoch.")
def _(c):
    s = A(0, 12000, 10)
    ep = s // 1000
    L = c.jit(1.0 * .84 ** ep * (1 + .05 * ((s % 1000) / 1000)), .012, .1)
    return c.csv("train_log.tsv", rows({"epoch": ep, "global_step": s, "loss": L, "lr": np.full(len(s), 1e-4), "grad_norm": c.jit(np.full(len(s), .6), .1)}), sep="\t")


@case("rich_b", "rich console lines", "periodic_memorisation", [], "The same saw-tooth in every epoch of 400 steps: data is not shuffled (sorted by resolution).")
def _(c):
    out = []
    for k in range(0, 6000, 5):
        ph = (k % 400) / 400
        L = float(decay(k, .75, .55, 600)) * (0.72 + .56 * ph) * math.exp(.018 * c.n())
        out.append(f"[{9+k//1800:02d}:{k//30%60:02d}:{k*2%60:02d}] INFO     epoch {k//400:>3} step {k:>6}  loss {L:.4f}  lr 1.00e-04  {'train.py:97':>12}")
    return c.write("console.log", out)


@case("tb_b", "TensorBoard", "grad_explosion", [], "Gradient norm grows from 0.5 to 600 over the whole run, loss still falling.")
def _(c):
    s = A(0, 20000, 20)
    return c.tb("logs/version_3", {"train/loss": (s, c.loss(s, 1.0, .47, 600)), "train/grad_norm": (s, c.jit(.5 * np.exp(7.1 * s / 20000), .2)), "train/lr": (s, warmconst(s, 1e-4, 500))}, "2025-02-02T02:02:02")


@case("table_b", "space-aligned table", "grad_vanishing", ['no_learning'], "Gradient norm decays to 1e-8 within 2,000 iterations, loss stuck at 0.98, LR ordinary.")
def _(c):
    out = [f"{'it':>7}{'loss':>10}{'grad_norm':>13}{'lr':>11}{'s/it':>8}"]
    for k in range(0, 12000, 20):
        out.append(f"{k:>7}{(.98+.06*math.exp(-k/150))*math.exp(.006*c.n()):>10.4f}{(.9*math.exp(-k/110)+2.1e-8)*math.exp(.2*c.n()):>13.3e}{1e-4*min(1,(k+1)/400):>11.2e}{.74+.01*c.n():>8.2f}")
    return c.write("log.txt", out)


@case("deepspeed_b", "DeepSpeed log", "amp_overflow", ['no_learning'], "OVERFLOW at every step, loss scale falls to 1; skipped equals the step; loss does not move.")
def _(c):
    out = []
    sc = 65536.0
    t = c.wall("2025-01-20T03:00:00", 300, 6)
    for i in range(300):
        k = i + 1
        ts = f"[{t[i]:%Y-%m-%d %H:%M:%S},{int(c.rng.integers(0,999)):03d}] "
        new = max(1.0, sc / 2)
        out.append(f"{ts}[INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc:.0f}, reducing to {new:.0f}")
        sc = new
        if k % 5 == 0:
            out.append(f"{ts}[INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={k}, lr=[{min(1e-4,1e-4*k/100)!r}], mom=[(0.9, 0.95)]")
            out.append(f"steps: {k} loss: {1.083+.02*c.n():.4f} iter time (s): {1.31+.01*c.n():.3f} samples/sec: {196+2*c.n():.3f}")
    return c.write("ds_train.log", out)


@case("pylog_amp_b", "python logging", "amp_overflow", ['nan_loss'], "GradScaler scale goes from 65536 to 1e-7 in the middle of the run, grads inf all the time, steps skipped, loss frozen.")
def _(c):
    out = []
    sc, skip = 65536.0, 0
    for k in range(0, 8000, 20):
        bad = k >= 3000
        if bad:
            sc = max(sc / 2, 5.96e-8)
            skip += 20
        L = float(decay(min(k, 3000), 1.0, .5, 400)) * math.exp(.02 * c.n())
        out.append(f"2025-04-09 1{k//2000}:{k//40%60:02d}:{k%60:02d},{int(c.rng.integers(999)):03d} INFO fm.train step={k} loss={L:.4f} grad_norm={'inf' if bad else format((.5+math.exp(-k/500))*math.exp(.1*c.n()),'.4f')} grad_scale={sc:g} skipped_steps={skip} lr=1.0e-04")
    return c.write("train.log", out)


@case("pylog_resume_b", "python logging", "resume_from_scratch", [], "Resumed at step 20000: the loss starts at 1.03 as at step 0 and falls as in a fresh run.")
def _(c):
    out = []
    for k in range(0, 28000, 50):
        if k == 20000:
            out += ["2025-05-01 09:14:02,118 - INFO - train - Resuming from checkpoint runs/a7/ckpt_20000.pt", "2025-05-01 09:14:09,530 - WARNING - train - 412 missing keys, 412 unexpected keys (strict=False)",
                    "2025-05-01 09:14:09,533 - INFO - train - resumed at step 20000"]
        e = k if k < 20000 else k - 20000
        cs = .74 - .70 * (1 + e / 800) ** -.6
        out.append(f"2025-0{4 if k<20000 else 5}-{'29' if k<20000 else '01'} {10+k//6000:02d}:{k//100%60:02d}:{k%60:02d},{int(c.rng.integers(999)):03d} - INFO - train - step {k} | loss: {float(decay(e,1.03,.45,700))*math.exp(.02*c.n()):.4f} | cos: {cs+.008*c.n():.4f} | grad_norm: {(.4+1.2*math.exp(-e/900))*math.exp(.1*c.n()):.3f} | lr: {1e-4*min(1,(k+1)/1000):.2e}")
    return c.write("train.log", out)


@case("jsonarr_b", "JSON array", "resume_from_scratch", [], "Trainer history saved as a JSON array, second job continues the counter but begins at the initial loss and cos.")
def _(c):
    a = []
    for k in range(0, 16000, 40):
        e = k if k < 9600 else k - 9600
        a.append({"global_step": k, "job": 1 if k < 9600 else 2, "train_loss": sig(float(decay(e, .98, .41, 500)) * math.exp(.02 * c.n())), "val_loss": sig(float(decay(e, .98, .42, 500))) if k % 800 == 0 else None, "lr": 1e-4})
    return c.write("history.json", json.dumps(a, indent=1) + "\n")


@case("absl_stop_b", "absl log lines with traceback", "self_stopped", ["grad_explosion", "divergence", "loss_spikes"], "Watchdog aborts at step 7,340 of 100,000: grad_norm above 1000 for 5 consecutive steps.")
def _(c):
    out = ["I0303 10:00:00.000001 77 train.py:40] config: total_steps=100000 watchdog.max_grad_norm=1000 watchdog.patience=5"]
    for k in range(20, 7341, 20):
        g = (.4 + 1.1 * math.exp(-k / 900)) * math.exp(.1 * c.n()) if k < 7260 else 1100 * 1.3 ** ((k - 7260) / 20) * math.exp(.05 * c.n())
        L = float(decay(k, 1.0, .5, 500)) * math.exp(.02 * c.n()) * (1 if k < 7260 else 1 + .3 * (k - 7240) / 20)
        out.append(f"I0303 {10+k//3600:02d}:{k//60%60:02d}:{k%60:02d}.{int(c.rng.integers(999999)):06d} 77 train.py:131] step: {k}  loss: {L:.4f}  grad_norm: {g:.3f}  lr: {min(1e-4,1e-4*k/1000):.2e}")
    out += ["E0303 12:02:21.400213 77 watchdog.py:58] watchdog tripped: grad_norm > 1000 for 5 consecutive logs at step 7340, stopping training", "Traceback (most recent call last):",
            '  File "train.py", line 201, in <module>', "    app.run(main)", '  File "watchdog.py", line 61, in check', "    raise TrainingAborted(reason)", "watchdog.TrainingAborted: grad_norm > 1000 for 5 consecutive logs"]
    return c.write("train.ERROR", out)


@case("jsonl_stop_b", "JSON lines with event records", "self_stopped", ["nan_loss"], "Trainer's own alarm: non-finite loss at step 3,112 of 50,000, stopped.")
def _(c):
    rw = [{"event": "start", "max_steps": 50000, "precision": "bf16"}]
    for k in range(0, 3112, 8):
        rw.append({"step": k, "loss": float(decay(k, 1.05, .52, 300)) * math.exp(.02 * c.n()), "grad_norm": (.5 + math.exp(-k / 300)) * math.exp(.1 * c.n()), "lr": 1e-4 * min(1, (k + 1) / 500)})
    rw += [{"step": 3112, "loss": float("nan"), "grad_norm": float("nan"), "lr": 1e-4}, {"event": "alarm", "step": 3112, "reason": "non-finite loss", "action": "stop"}, {"event": "end", "step": 3112, "status": "aborted"}]
    return c.jsonl("events.jsonl", rw)


@case("wandb_hist_b", "W&B history CSV", "metrics_lost", [], "eval columns and cos become NaN from step 14,000 on while the loss goes on normally.")
def _(c):
    s = A(0, 30000, 100)
    cs, r, nm = c.field(s, .04, .76, 900)
    off = s >= 14000
    nan = float("nan")
    d = {"_step": s, "_runtime": [float(x) * .9 for x in s], "train/loss": c.loss(s, 1.1, .47, 900), "train/lr": warmconst(s, 1e-4, 1000),
         "eval/cos": np.where(off, nan, cs), "eval/speed_ratio": np.where(off, nan, r), "eval/nmse": np.where(off, nan, nm), "eval/fid": np.where(off, nan, 12 + 70 * np.exp(-s / 5000.))}
    return c.csv("history.csv", rows(d), digits=7)


@case("neptune_b", "Neptune CSV export", "ema_broken", [], "eval of the raw weights falls to 0.42, eval of the EMA weights stays at 1.0.")
def _(c):
    s = A(0, 80000, 400)
    return c.csv("export.csv", rows({"step": s, "train/loss": c.loss(s, 1.0, .41, 3000), "eval/loss": c.jit(decay(s, 1.0, .415, 3000), .005), "eval/ema_loss": c.jit(np.full(len(s), 1.001), .003),
                                     "eval/cos": c.add(.76 * (1 - (1 + s / 3000) ** -.6), .004), "eval/ema_cos": c.add(np.full(len(s), .021), .004), "optim/lr": warmconst(s, 1e-4, 2000)}), digits=6)


# =====================================================================================  FAULTS: losses against each other
@case("aim_share_b", "Aim CSV export", "weak_gradient_share", [], "grad norm of the DINO part is 1 % of the total for the whole run; KL ordinary.")
def _(c):
    s = A(0, 24000, 60)
    d = c.ret(s, endpt=False, slices=False)
    d["grad/dino"] = d["grad/dino"] * .025
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/kl"] ** 2 + d["grad/dino"] ** 2)
    m = {"step": "step", "loss/total": "loss", "loss/flow": "loss_flow", "loss/kl": "loss_kl", "loss/dino": "loss_dino", "grad/flow": "grad_norm_flow", "grad/kl": "grad_norm_kl", "grad/dino": "grad_norm_dino", "grad/total": "grad_norm_total",
         "lr": "lr", "flow/cos": "cos_sim", "flow/speed_ratio": "speed_ratio", "flow/nmse": "nmse"}
    return c.csv("aim_metrics.csv", rows({b: d[a] for a, b in m.items()}))


@case("kv_head_b", "key=value lines", "head_not_updated", [], "z_head's update ratio 2e-8 (missing from the optimiser) while the flow head has 6e-4.")
def _(c):
    s = A(0, 16000, 40)
    d = c.ret(s, endpt=False, slices=False, dino=False)
    u = c.jit(np.full(len(s), 2e-8), .15)
    return c.write("run.log", [f"it={r['step']} loss={r['loss/total']:.4f} flow_loss={r['loss/flow']:.4f} kl_loss={r['loss/kl']:.4f} lr={r['lr']:.2e} grad_norm={r['grad/total']:.3f} z_head_update_ratio={u[i]:.2e} flow_head_update_ratio={r['step/flow_head_update_ratio']:.2e} cos={r['flow/cos']:.3f}"
                               for i, r in enumerate(rows(d))])


def _dino_lines(c, et, es, gd_scale=1.0, ld=None, K=65536, steps=None):
    s = A(0, 20000, 50) if steps is None else steps
    d = c.ret(s, logk=math.log(K), endpt=False, slices=False, kl=False)
    n = len(s)
    d["ent/teacher"], d["ent/student"] = et(s, n), es(s, n)
    if ld is not None:
        d["loss/dino"] = ld(s, n)
    d["loss/total"] = d["loss/flow"] + .5 * d["loss/dino"]
    d["grad/dino"] = d["grad/dino"] * gd_scale
    d["grad/total"] = np.sqrt(d["grad/flow"] ** 2 + d["grad/dino"] ** 2)
    return s, d


@case("dino_peaked_b", "DINO log.txt JSON lines", "teacher_collapsed", [], "teacher entropy falls to 0.02 of log 65536 = 11.09.")
def _(c):
    lk = math.log(65536)
    s, d = _dino_lines(c, lambda s, n: c.jit(.02 * lk + .5 * lk * np.exp(-s / 600.), .03), lambda s, n: c.jit(.12 * lk + .7 * lk * np.exp(-s / 1500.), .03), ld=lambda s, n: c.jit(1.1 + 7 * np.exp(-s / 900.), .03))
    m = {"step": "iteration", "loss/total": "train_loss", "loss/flow": "train_flow_loss", "loss/dino": "train_dino_loss", "ent/teacher": "teacher_entropy", "ent/student": "student_entropy", "grad/total": "grad_norm", "lr": "train_lr"}
    return c.jsonl("log.txt", rows({b: d[a] for a, b in m.items()}), head=[{"args": {"out_dim": 65536, "teacher_temp": 0.005, "student_temp": 0.1, "center_momentum": 0.9}}])


@case("dino_uniform_b", "pipe-separated lines", "teacher_uniform", [], "teacher entropy equals log K = 8.3178 (K = 4096) throughout, DINO loss stuck at log K.")
def _(c):
    lk = math.log(4096)
    s, d = _dino_lines(c, lambda s, n: lk - np.abs(c.n(n)) * 2e-4 - .05 * np.exp(-s / 200.), lambda s, n: lk - np.abs(c.n(n)) * 1e-3 - .1 * np.exp(-s / 300.), ld=lambda s, n: lk + np.abs(c.n(n)) * 1e-3, K=4096)
    return c.write("train.log", ["config | dino.K=4096 (log K = 8.3178) | T_t=1.0 | T_s=0.1 | center=on"] + [f"iter {r['step']}/100000 | loss: {r['loss/total']:.4f} | flow: {r['loss/flow']:.4f} | dino: {r['loss/dino']:.4f} | H_teacher: {r['ent/teacher']:.4f} | H_student: {r['ent/student']:.4f} | lr: {r['lr']:.2e} | gnorm: {r['grad/total']:.3f}" for r in rows(d)])


@case("dino_student_b", "JSON lines", "student_saturated", ["weak_gradient_share"], "student entropy at 1 % of log K, DINO gradient small, teacher ordinary.")
def _(c):
    lk = math.log(8192)
    s, d = _dino_lines(c, lambda s, n: c.jit(np.full(n, .4 * lk), .02), lambda s, n: c.jit(.01 * lk + .7 * lk * np.exp(-s / 250.), .04), gd_scale=.18, K=8192)
    d.pop("step/z_head_update_ratio", None)
    return c.jsonl("ret.jsonl", rows(d), head=[{"config": {"dino_out_dim": 8192, "log_K": 9.0109, "T_s": 0.02, "T_t": 0.05, "w_dino": 0.5}}])


# =====================================================================================  FAULTS: autoencoder, variational head
@case("clearml_kl_b", "ClearML scalars JSON", "kl_not_acting", [], "mu rms grows from 0.9 to 14, z_init var to 200, KL rises from 0.4 to ~100 though w_kl is set.")
def _(c):
    s = A(0, 30000, 100)
    mu = c.jit(.9 + 13 * (s / 30000) ** .8, .01)
    st = c.jit(.7 + .9 * s / 30000, .01)
    lv = 2 * np.log(st)
    kl = .5 * (mu ** 2 + st ** 2 - 1 - lv)

    def ser(n, y):
        return {"name": n, "x": [int(a) for a in s], "y": [sig(b, 6) for b in y]}
    lf = c.loss(s, 1.6, .8, 900)
    return c.write("scalars.json", json.dumps({"loss": {"flow": ser("flow", lf), "kl": ser("kl", kl), "total": ser("total", lf + 1e-6 * kl)}, "mu": {"rms": ser("rms", mu), "abs_mean": ser("abs_mean", mu * .8)}, "std": {"mean": ser("mean", st)},
                                               "z_init": {"var": ser("var", mu ** 2 + st ** 2)}, "w": {"kl": ser("kl", np.full(len(s), 1e-6))}, "lr": {"lr": ser("lr", warmconst(s, 1e-4, 500))}}) + "\n")


@case("tb_collapse_b", "TensorBoard", "posterior_collapse", ['text_ignored'], "KL 1e-5, mu rms 0.003, std 1.000 after 2k steps with w_kl = 10.")
def _(c):
    s = A(0, 20000, 50)
    f = np.exp(-s / 350.)
    mu = c.jit(.003 + .8 * f, .03)
    st = 1 - .3 * f + .0004 * c.n(len(s))
    lv = 2 * np.log(st)
    kl = .5 * (mu ** 2 + st ** 2 - 1 - lv)
    return c.tb("tb", {"loss/flow": (s, c.loss(s, 1.9, 1.15, 700)), "loss/kl": (s, np.abs(kl)), "mu/rms": (s, mu), "mu/abs_mean": (s, mu * .8), "std/mean": (s, st), "std/min": (s, st - .004), "std/max": (s, st + .004), "logvar/mean": (s, lv),
                       "z_init/var": (s, mu ** 2 + st ** 2), "w/kl": (s, np.full(len(s), 10.)), "lr": (s, warmconst(s, 1e-4, 500))}, "2025-01-05T02:00:00")


@case("sigma_b", "loss-line with posterior stats", "sigma_collapse", ["z0_leak"], "logvar sits at its clamp -10, std 0.0067.")
def _(c):
    out = ["Namespace(logvar_min=-10.0, logvar_max=4.0, w_kl=0.0001, lr=0.0001)"]
    for k in range(0, 15000, 25):
        f = math.exp(-k / 900)
        lv = max(-10, -10.3 + 9.8 * f) + (0 if k > 3300 else .02 * c.n())
        out.append(f"[{k:06d}] L_flow {float(decay(k,1.7,.74,700))*math.exp(.02*c.n()):.4f}  L_kl {.5*(.3+math.exp(lv)-1-lv):.4f}  mu_rms {.55+.005*c.n():.4f}  logvar_mean {lv:.4f}  std_mean {math.exp(lv/2):.5f}  lr {1e-4*min(1,(k+1)/500):.1e}")
    return c.write("vlog.txt", out)


@case("ret_leak_b", "JSON lines", "z0_leak", ['sigma_collapse', 'kl_not_acting'], "cos 0.97 and nmse 0.05, but endpoint error 0.9 and std/mean 0.11: z0 is narrow.")
def _(c):
    s = A(0, 20000, 50)
    d = c.ret(s, dino=False, slices=False, c1=.98, std=(.6, .13))
    n = len(s)
    f = np.exp(-s / 2000.)
    d["std/mean"] = c.jit(.13 + .5 * f, .01)
    d["std/min"], d["std/max"] = d["std/mean"] * .8, d["std/mean"] * 1.3
    d["logvar/mean"] = 2 * np.log(d["std/mean"])
    d["flow/cos"] = np.clip(c.add(.972 - .9 * (1 + s / 300) ** -1.2, .003), -1, .99)
    d["flow/speed_ratio"] = d["flow/cos"] * 1.0
    d["flow/nmse"] = 1 - d["flow/cos"] ** 2
    d["loss/flow"] = 1.9 * d["flow/nmse"]
    d["loss/total"] = d["loss/flow"] + .01 * d["loss/kl"]
    for k in (8, 16, 32, 64):
        d[f"flow/endpt_rmse@{k}"] = c.jit(np.full(n, .94 + .002 * math.log2(k)), .01)
    return c.jsonl("metrics.jsonl", rows(d))


@case("probe_norm_b", "printed probe lines", "scale_mismatch", ["latent_scale_factor"], "z0 norm 151 against z1 norm 896-1224.")
def _(c):
    out = ["loading ckpt step=62000 ... ok"]
    for i in range(24):
        z1 = 1060 + 95 * c.n()
        z1 = min(1224, max(896, z1))
        z0 = 151 + 1.5 * c.n()
        out.append(f"[probe] sample {i:02d}: |z0|={z0:.2f} |z1|={z1:.2f} ratio={z1/z0:.2f} z0.std={z0/181:.4f} z1.std={z1/181:.4f}")
    out.append("[probe] mean: |z0|=151.0 |z1|=1059.7")
    return c.write("probe.txt", out)


@case("trace_b", "sampling trace lines", "scale_mismatch", [], "|x| at step 0 is 6.19 in the sampler while z0 of training has 0.79.")
def _(c):
    dt = logit_normal_dt(50)
    x, v = _walk(c, dt)
    y = 6.19 - .25 * np.cumsum(dt) + .003 * c.n(50)
    return c.write("traces.log", ["== training z0 (reference) ==", "expected |x| at step 0: 0.79"] + c.trace(x, v, dt) + ["", "== sampler, run_demo.py =="] + c.trace(y, v * .9, dt))


@case("pixel_sf_b", "python logging (latent stats)", "latent_scale_factor", ["scale_mismatch"], "VAE scaling_factor 0.18215 applied twice: z1 std 0.18 at every check.")
def _(c):
    out = ["2025-03-09 10:00:00 INFO vae: AutoencoderKL loaded, scaling_factor=0.18215, latent_channels=4"]
    for k in range(0, 10000, 100):
        out.append(f"2025-03-09 10:{k//200:02d}:{k%60:02d} INFO train: step {k} loss {float(decay(k,1.03,.82,400))*math.exp(.01*c.n()):.4f} | z1 mean {.001*c.n():.4f} std {.1822*math.exp(.012*c.n()):.4f} | z0 std {1.0+.004*c.n():.4f} | lr 1.0e-04")
    out.append("2025-03-09 10:59:59 INFO eval: decode(z1) looks grey and blurred; raw encoder std 5.49, after scaling 1.00, after second scaling 0.18")
    return c.write("train.log", out)


@case("csv_sf_b", "CSV", "latent_scale_factor", ["scale_mismatch"], "SD scaling factor 0.18215 is configured but not applied: z1 std 5.5 = 1/sf.")
def _(c):
    s = A(0, 8000, 40)
    n = len(s)
    return c.csv("latents.csv", rows({"step": s, "vae_scaling_factor": np.full(n, .18215), "z1_mean": c.add(np.full(n, .21), .02), "z1_std": c.jit(np.full(n, 5.47), .01), "z0_std": c.jit(np.full(n, 1.0), .004), "flow_loss": c.jit(decay(s, 31.4, 19.6, 500), .02), "lr": np.full(n, 1e-4)}))


@case("vae_rt_b", "Markdown and printed lines", "vae_roundtrip", [], "decode(encode(x)) has 11-14 dB while latents have std 1.0.")
def _(c):
    out = ["# VAE round trip, 20 validation images", "", "| image | psnr_db | z_std | x_min | x_max |", "|---|---|---|---|---|"]
    p = []
    for i in range(20):
        q = 12.6 + .8 * c.n()
        p.append(q)
        out.append(f"| val_{i:04d}.jpg | {q:.2f} | {1.0+.05*c.n():.3f} | -1.000 | 1.000 |")
    out += ["", f"mean PSNR of decode(encode(x)): {np.mean(p):.2f} dB", "(vae.training = True when this was measured)"]
    return c.write("vae_check.md", out)


# =====================================================================================  FAULTS: text, target, field
@case("text_b", "printed [text] probe", "text_ignored", [], "Cosine of the means of different prompts 0.998+ for every pair; same prompt 1.0.")
def _(c):
    ps = ["a red fox in snow", "the Golden Gate Bridge", "a bowl of ramen", "an astronaut riding a horse", "a watercolor of Venice", "a black cat", "city at night"]
    out = ["[text] cosine of z0 means (mu), 7 prompts, step 48000"]
    for i in range(len(ps)):
        for j in range(i, len(ps)):
            out.append(f"[text] mean_cos({ps[i]!r}, {ps[j]!r}) = {1.0 if i == j else .9985 + .0004 * c.n():.4f}")
    out.append("[text] mean pairwise cos of means (different prompts) = 0.9985, same prompt = 1.0000")
    return c.write("text_probe.txt", out)


@case("cond_b", "W&B history CSV", "condition_unused", [], "val loss with true, shuffled and dropped captions identical; cond_gain_cos about -0.001; cos otherwise 0.7.")
def _(c):
    s = A(0, 40000, 200)
    n = len(s)
    cs, r, nm = c.field(s, .04, .74, 1200)
    b = 1.9 * nm
    return c.csv("wandb_history.csv", rows({"_step": s, "train/flow_loss": c.jit(b, .02), "train/lr": warmconst(s, 1e-4, 1000), "val/loss_true_caption": b, "val/loss_shuffled_caption": b * (1 + .0006 * c.n(n)), "val/loss_null_caption": b * (1 + .0006 * c.n(n)),
                                            "flow/cos": cs, "flow/speed_ratio": r, "flow/nmse": nm, "flow/cond_gain_cos": c.add(np.full(n, -.001), .0006)}), digits=7)


@case("weak_b", "printed [fm]/[shoot] probe", "weak_field", [], "cos 0.06, ratio 0.29; VAE and text fine; shooting error large.")
def _(c):
    out = ["[vae] psnr=31.2dB z_std=0.98", "[text] mean_cos different=0.41 same=1.00"]
    for i in range(20):
        t = (i + .5) / 20
        out.append(f"[fm] t={t:.3f} cos(v_pred,v_tgt)={.06+.012*c.n():.4f} |v_pred|={.372+.006*c.n():.4f} |v_tgt|={1.283+.01*c.n():.4f} ratio={.29+.004*c.n():.4f}")
    out += [f"[shoot] K={k} rmse={1.21+.004*c.n():.4f} baseline(z0)={1.24:.4f}" for k in (8, 16, 32, 64)]
    return c.write("debug.txt", out)


@case("weak_zh_b", "Chinese prose with table", "weak_field", [], "Chinese note: cos about 0.05, ratio 0.29, VAE, text and schedule are normal.")
def _(c):
    out = ["# 调试记录:图像全是灰的", "", "1. VAE 重建 PSNR = 30.5 dB,正常。", "2. 文本:不同提示词均值的余弦 0.37,同一提示词 1.00,正常。", "3. 时间步:均值 0.50,标准差 0.289,正常。", "4. 速度场:", "", "| t | cos | 速度比 ‖v_pred‖/‖v_tgt‖ | nmse |", "|---|---|---|---|"]
    for i in range(10):
        cs, r = .05 + .008 * c.n(), .29 + .005 * c.n()
        out.append(f"| {i/10+.05:.2f} | {cs:.4f} | {r:.4f} | {1+r*r-2*r*cs:.4f} |")
    out += ["", "5. 端点误差(打靶):", "", "K=8: 1.31", "K=16: 1.30", "K=32: 1.30", "", "结论待定:余弦接近 0,预测速度的范数只有目标的 0.29 倍。"]
    return c.write("note_zh.md", out)


@case("wrong_b", "tqdm bar with postfix", "wrong_target", [], "cos with x1-x0 is -0.7 and becomes more negative as the loss falls: sign flipped.")
def _(c):
    out = []
    for k in range(5, 4001, 5):
        cs = -.74 * (1 - (1 + k / 300) ** -.6) + .01 * c.n()
        out.append(bar(k, 4000, .8 * k, post=f"loss={float(decay(k,1.9,.86,300))*math.exp(.02*c.n()):.3f}, cos_v={cs:.3f}, v_ratio={abs(cs)*1.02+.02:.3f}, lr={1e-4*min(1,k/200):.1e}"))
    return c.write("train.out", out)


@case("moving_b", "CSV", "moving_target", [], "v_target norm shrinks from 1.38 to 0.01 and the flow loss with it to 1e-4.")
def _(c):
    s = A(0, 15000, 30)
    vn = c.jit(1.38 * (1 + s / 250.) ** -1.25 + .004, .03)
    return c.csv("log.csv", rows({"step": s, "flow_loss": c.jit(.55 * vn ** 2, .03), "v_target_norm": vn, "v_pred_norm": vn * .8, "z0_z1_dist": vn * 1.001, "lr": warmconst(s, 1e-4, 300), "grad_norm": c.jit(.9 * vn + .01, .1)}))


@case("edges_b", "JSON lines (flat, t bins)", "t_edges", [], "nmse in bins t0 and t9 about 1.1 and 0.97, middle below 0.45.")
def _(c):
    s = A(0, 25000, 100)
    d = c.ret(s, dino=False, kl=False, endpt=False, c1=.88)
    for b, m in ((0, 1.12), (9, .97)):
        d[f"flow/nmse_t{b}"] = c.jit(np.full(len(s), m), .01)
        d[f"flow/cos_t{b}"] = c.add(np.full(len(s), .06), .01)
    d["flow/nmse"] = np.mean([d[f"flow/nmse_t{b}"] for b in range(10)], 0)
    d["flow/cos"] = np.mean([d[f"flow/cos_t{b}"] for b in range(10)], 0)
    d["loss/flow"] = d["loss/total"] = 1.9 * d["flow/nmse"]
    return c.jsonl("log.jsonl", rows(d))


@case("tsamp_b", "python logging", "time_sampling", [], "Config says uniform t in 0..999 but the batches have mean 62, std 36, max 124.")
def _(c):
    out = ["INFO:root:time sampling: uniform integers 0..999"]
    for k in range(0, 9000, 30):
        out.append(f"INFO:root:step {k} loss {float(decay(k,.9,.61,300))*math.exp(.02*c.n()):.4f} t_mean {62+1.5*c.n():.2f} t_std {36+.5*c.n():.2f} t_min {max(0,int(abs(2*c.n())))} t_max {124-int(abs(1.2*c.n()))} lr 1e-4")
    return c.write("run.log", out)


@case("stat_range_b", "stat lines (note 002 style)", "input_range", [], "x_0 goes from 0 to 255 with mean 118: images not normalised.")
def _(c):
    out = []
    for k in range(0, 6000, 50):
        out.append(f"step {k} loss={float(decay(k,14800,12100,300))*math.exp(.02*c.n()):.1f} x_0/min=0.0 x_0/max=255.0 x_0/mean={118+2.2*c.n():.2f} x_0/std={71+1.2*c.n():.2f} noise/mean={.001*c.n():.4f} noise/std={1+.001*c.n():.4f} t/mean={.5+.006*c.n():.3f} t/std={.289+.003*c.n():.3f} lr=1e-04")
    return c.write("stats.log", out)


@case("const_b", "Python-repr dump", "schedule_constants", [], "alphas_cumprod ends at 0.60 because beta_end is 1e-3 instead of 0.02.")
def _(c):
    be = np.linspace(1e-4, 1e-3, 1000)
    ac = np.cumprod(1 - be)
    ix = list(range(0, 1000, 50)) + [999]
    out = ["schedule: linear, num_train_timesteps=1000, configured beta_start=0.0001 beta_end=0.02"]
    out += [f"betas[{i}]={be[i]:.6f} alphas_cumprod[{i}]={ac[i]:.6f} sqrt_alphas_cumprod[{i}]={math.sqrt(ac[i]):.6f} sqrt_one_minus_alphas_cumprod[{i}]={math.sqrt(1-ac[i]):.6f}" for i in ix]
    out += [f"{{'const/betas': {{'first': {be[0]:.6f}, 'last': {be[-1]:.6f}}}, 'const/alphas_cumprod': {{'first': {ac[0]:.6f}, 'last': {ac[-1]:.6f}}}}}"]
    return c.write("schedule_dump.txt", out)


# =====================================================================================  FAULTS: sampling
@case("bf16_b", "sampling traces in two precisions", "bf16_rounding", [], "In bf16 |x| stays frozen for many steps although |v|dt is not 0; in fp32 it moves.")
def _(c):
    dt = np.full(256, 1 / 256)
    x, v = _walk(c, dt, .79, 1.18)
    x = .79 + .39 * np.cumsum(np.concatenate([[0], dt[:-1]]))
    lo = np.full(256, bf16(.79))
    return c.write("sampling.log", ["sampler: euler, 256 uniform steps", "--- state dtype: torch.bfloat16 ---"] + c.trace(lo, v, dt, low=True) + ["--- state dtype: torch.float32, same seed ---"] + c.trace(x, v, dt))


@case("bf16_teacher_b", "TSV table", "bf16_rounding", [], "Teacher (exact velocity) Euler error grows with the number of steps in bf16, not in fp32.")
def _(c):
    rw = []
    for sd in range(6):
        for k in (4, 8, 16, 32, 64, 128, 256, 512):
            rw.append({"seed": sd, "K": k, "teacher_euler_err_bf16": .0021 * math.sqrt(k) * math.exp(.05 * c.n()), "teacher_euler_err_fp32": 2.4e-7 * math.exp(.1 * c.n())})
    return c.csv("teacher_euler.tsv", rw, sep="\t", digits=4)


@case("dt_b", "sampling trace lines", "step_schedule", [], "dt of a symmetric logit-normal grid is asymmetric and sums to 1.6; the last steps repeat.")
def _(c):
    dt = logit_normal_dt(40)
    dt = np.concatenate([dt[:30], np.full(10, dt[20] * 1.7)])
    dt = dt * 1.62 / dt.sum()
    x, v = _walk(c, dt / dt.sum(), .79, 1.31)
    return c.write("trace.txt", ["grid: logit_normal(0,1), 40 steps, symmetric"] + c.trace(x, v, dt) + [f"sum(dt)={dt.sum():.4f}"])


@case("mismatch_b", "prose and table", "train_infer_mismatch", [], "One-step cos 0.86 with z0 std 0.95, but endpoint error rises with K: 1.02, 1.15, 1.24, 1.31.")
def _(c):
    out = ["Evaluation of flow-L/2 at 120k steps", "", "step     cos      ratio    nmse     std_z0   endpt@8  endpt@16 endpt@32 endpt@64"]
    for k in range(5000, 120001, 5000):
        cs = .86 - .5 * (1 + k / 4000) ** -.9 + .003 * c.n()
        r = cs
        e = [a * math.exp(.008 * c.n()) for a in (1.02, 1.15, 1.24, 1.31)]
        out.append(f"{k:<8d} {cs:<8.4f} {r:<8.4f} {1-cs*cs:<8.4f} {.95+.004*c.n():<8.4f} " + " ".join(f"{a:<8.4f}" for a in e))
    out += ["", "More Euler steps make it worse although the one-step prediction is good. The sampler integrates from t=1 to 0 with v = eps - x, training used x1 - x0."]
    return c.write("eval.txt", out)


