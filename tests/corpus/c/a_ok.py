from lib import *


@case("a", "diffusers/accelerate console with tqdm", "none",
      "SDXL LoRA at batch 1: step_loss jumps between 0.003 and 0.6 because t is random, no visible trend in 1500 steps; a fine-tune of a released model. Healthy.")
def ah_diffusers_b1(d, rng):
    c = Clock("2025-07-21 19:30:45", rng)
    P = lambda: c.f("%m/%d/%Y %H:%M:%S") + " - INFO - __main__ - "
    out = "{'variance_type', 'clip_sample_range', 'rescale_betas_zero_snr', 'thresholding'} was not found in config. Values will be initialized to default values.\n"
    out += "".join(P() + t + "\n" for t in ["***** Running training *****", "  Num examples = 83", "  Num Epochs = 19", "  Instantaneous batch size per device = 1", "  Total train batch size (w. parallel, distributed & accumulation) = 1", "  Gradient Accumulation steps = 1", "  Total optimization steps = 1500"])
    out += "\rSteps:   0%|          | 0/1500 [00:00<?, ?it/s]"
    for s in range(1, 1501):
        x = .06 * math.exp(rng.normal(0, .95)) + .003
        out += "\r" + tq("Steps", s, 1500, s * .74, f"lr=0.0001, step_loss={min(x, .75):.3g}")
        if s % 500 == 0:
            c.tick(370)
            out += "\n" + P() + f"Saved state to sdxl-lora-teapot/checkpoint-{s}\n"
    return put(d, "console.log", out + "\nModel weights saved in sdxl-lora-teapot/pytorch_lora_weights.safetensors\n")


@case("a", "kohya sd-scripts console", "none",
      "kohya LoRA, 12 epochs, avr_loss 0.121 -> 0.104 with no period at the epoch boundaries. Healthy.")
def ah_kohya(d, rng):
    L = ["INFO     Using DreamBooth method.                                                     train_network.py:318", "INFO     prepare dataset                                                                        config_util.py:487",
         "running training / 学習開始", "  num train images * repeats / 学習画像の数×繰り返し回数: 410", "  num reg images / 正則化画像の数: 0", "  num batches per epoch / 1epochのバッチ数: 205", "  num epochs / epoch数: 12", "  batch size per device / バッチサイズ: 2", "  total optimization steps / 学習ステップ数: 2460"]
    win = []
    total = 2460
    for e in range(12):
        L += ["", f"epoch {e + 1}/12", f"2025-09-0{1 + e // 6} 2{e % 4}:1{e % 6}:02 INFO     epoch is incremented. current_epoch: {e}, epoch: {e + 1}                          train_util.py:779"]
        line = ""
        for k in range(205):
            s = e * 205 + k + 1
            win.append(pw(s, .127, .096, 900, .7) * math.exp(rng.normal(-.1, .45)))
            if len(win) > 205:
                win.pop(0)
            if k % 4 == 0 or k == 204:
                line += "\r" + tq("steps", s, total, s * 1.22, f"avr_loss={np.mean(win):.3g}", w=10)
        L.append(line)
        L.append(f"saving checkpoint: /out/lora_ukiyo-{e + 1:06d}.safetensors")
    L.append("INFO     model saved.                                                                          train_network.py:1042")
    return put(d, "kohya.log", L)


@case("a", "DiT/SiT logger with ANSI colours", "none",
      "SiT-B from scratch, 0.83 -> 0.77 per-dim loss; one spike to 1.9 at step 21300 that is gone two lines later. Healthy.")
def ah_sit_spike(d, rng):
    s = np.arange(50, 40001, 50)
    n = len(s)
    l = pw(s, 1.02, .765, 1500, .9) * ln(rng, n, .0045)
    k = 21300 // 50 - 1
    l[k] *= 2.4
    l[k + 1] *= 1.2
    c = Clock("2025-01-05 22:41:00", rng)
    A = lambda t: f"[\x1b[34m{c.f('%Y-%m-%d %H:%M:%S')}\x1b[0m] {t}"
    L = [A("Experiment directory created at results/003-SiT-B-2-Linear-velocity-None"), A("SiT Parameters: 130,518,944"), A("Training for 160 epochs..."), A("Beginning epoch 0...")]
    for i in range(n):
        c.tick(9)
        L.append(A(f"(step={s[i]:07d}) Train Loss: {l[i]:.4f}, Train Steps/Sec: {5.6 + rng.normal(0, .05):.2f}, lr: 1.0000e-04"))
    return put(d, "log.txt", L)


@case("a", "HF trainer_state.json", "none",
      "Warm-up for 300 steps then cosine to 0 at the last step; loss 1.12 -> 0.44, eval_loss follows. LR 0 at the end is the schedule. Healthy.")
def ah_ts_cosine(d, rng):
    s = np.arange(10, 5001, 10)
    n = len(s)
    lr = cosine(s, 5000, 2e-4, 300)
    base = pw(s, 1.15, .38, 350, .9)
    loss = base * ln(rng, n, .035)
    gn = (.3 + 1.6 * np.exp(-s / 150)) * ln(rng, n, .18)
    H = []
    for i in range(n):
        H.append({"epoch": r_(s[i] / 625, 4), "grad_norm": g_(gn[i], 9), "learning_rate": g_(lr[i], 9), "loss": r_(loss[i]), "step": int(s[i])})
        if s[i] % 250 == 0:
            H.append({"epoch": r_(s[i] / 625, 4), "eval_loss": r_(base[i] * 1.015 + rng.normal(0, .003), 6), "eval_runtime": 41.2, "step": int(s[i])})
    H.append({"epoch": 8.0, "step": 5000, "total_flos": 0.0, "train_loss": r_(loss.mean(), 6), "train_runtime": 9121.4, "train_samples_per_second": 35.1, "train_steps_per_second": .548})
    put(d, "trainer_state.json", json.dumps({"best_metric": None, "epoch": 8.0, "global_step": 5000, "max_steps": 5000, "num_train_epochs": 8, "log_history": H}, indent=2))
    return "trainer_state.json"


@case("a", "Megatron-LM console", "none",
      "fp16 with dynamic loss scale: one skipped iteration each time the scale was doubled, grad norm 0.8 -> 0.25 with clipping, loss 2.9 -> 1.1. Healthy.")
def ah_megatron_fp16(d, rng):
    it = np.arange(5, 4001, 5)
    n = len(it)
    loss = pw(it, 6.8, .92, 60, .75) * ln(rng, n, .012)
    gn = pw(it, 3.5, .22, 100, .9) * ln(rng, n, .15)
    L = [" > learning rate decay style: cosine", "training ..."]
    sc = 65536.0
    for i in range(n):
        sk = 0
        if it[i] % 1000 == 0:
            sc = 131072.0
        elif it[i] % 1000 == 5 and it[i] > 10:
            sk = 1
            sc = 65536.0
        L.append(f" iteration {it[i]:>8}/    4000 | consumed samples: {it[i] * 256:>12} | elapsed time per iteration (ms): {1912 + rng.normal(0, 15):.1f} | learning rate: {float(cosine(it[i], 4000, 3e-4, 100, 3e-5)):.3E} | global batch size:   256 | lm loss: {loss[i]:.6E} | loss scale: {sc:.1f} | grad norm: {gn[i]:.3f} | number of skipped iterations: {sk:>3} | number of nan iterations:   0 |")
    return put(d, "pretrain.log", L)


@case("a", "DeepSpeed engine log", "none",
      "DeepSpeed fp16: 17 overflows at the start until the scale is 32768, then none; skipped stays 17, the loss falls. Healthy.")
def ah_ds_scale(d, rng):
    c = Clock("2025-04-22 15:00:40", rng)
    P = lambda f: f"[{c.f('%Y-%m-%d %H:%M:%S')},{c.ms}] [INFO] [{f}] "
    L = []
    sc = 2 ** 32
    for k in range(1, 2001):
        c.tick(1.4)
        if k <= 17:
            L.append(P("loss_scaler.py:183:update_scale") + f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {sc // 2}")
            sc //= 2
        if k % 5 == 0:
            x = pw(max(k - 17, 0), 1.01, .47, 150, .7) * math.exp(rng.normal(0, .03))
            L.append(f"step: {k} loss: {x:.4f}")
        if k % 50 == 0:
            L.append(P("logging.py:96:log_dist") + f"[Rank 0] step={k}, skipped=17, lr=[{1e-4 * min(1, (k - 17) / 200):.3e}], mom=[[0.9, 0.95]]")
    return put(d, "train.log", L)


@case("a", "Lightning CSVLogger metrics.csv", "none",
      "KL autoencoder with a discriminator from step 4000 on: rec_loss falls, disc_loss hovers near 1, g_loss wanders around 0.1 and is negative at times, val/psnr rises 22 -> 28.6. Ordinary GAN picture, healthy.")
def ah_pl_vaegan(d, rng):
    rows = []
    H = ["epoch", "step", "train/rec_loss", "train/kl_loss", "train/p_loss", "train/g_loss", "train/disc_loss", "train/logits_real", "train/logits_fake", "val/psnr", "val/rec_loss"]
    for s in range(49, 16000, 50):
        on = s >= 4000
        rec = pw(s, .31, .052, 500, .75) * math.exp(rng.normal(0, .06)) * (1.05 if on else 1)
        kl = pw(s, 800, 3900, 900, .9) * math.exp(rng.normal(0, .02))
        p = pw(s, .62, .14, 700, .7) * math.exp(rng.normal(0, .05))
        lr_, lf = (.17 + rng.normal(0, .25), -.12 + rng.normal(0, .25)) if on else (0, 0)
        g = -lf if on else 0
        rows.append([s // 800, s, f"{rec:.5f}", f"{kl:.2f}", f"{p:.5f}", f"{g:.5f}", f"{max(0, 1 - .5 * (lr_ - lf)) + (rng.normal(0, .04)) if on else 0:.5f}", f"{lr_:.5f}", f"{lf:.5f}", "", ""])
        if s % 800 == 799:
            rows.append([s // 800, s] + [""] * 7 + [f"{pw(s, 20.1, 29.4, 1800, 1.0) + rng.normal(0, .12):.4f}", f"{pw(s, .31, .052, 500, .75) * 1.04:.5f}"])
    return put_csv(d, "metrics.csv", H, rows)


@case("a", "MMEngine runner log", "none",
      "Cosine restarts every 6000 iterations as configured. The loss rises by 5 % for some hundred iterations after each restart and ends each cycle lower than the one before. Healthy.")
def ah_mm_restarts(d, rng):
    c = Clock("2025-06-15 07:30:00", rng)
    P = lambda: c.f("%Y/%m/%d %H:%M:%S") + " - mmengine - INFO - "
    L = [P() + "Config:\nparam_scheduler = [dict(type='CosineRestartLR', periods=[6000, 6000, 6000, 6000], restart_weights=[1, 1, 1, 1], eta_min=1e-06)]\nload_from = None"]
    for s in range(50, 24001, 50):
        c.tick(21)
        ph = (s - 1) % 6000
        cyc = (s - 1) // 6000
        base = pw(s, .95, .33, 1200, .75)
        bump = base * .055 * math.exp(-ph / 500) if cyc else 0
        x = (base + bump) * math.exp(rng.normal(0, .012))
        L.append(P() + f"Iter(train) [{s:>5}/24000]  lr: {1e-6 + 1.99e-4 * .5 * (1 + math.cos(math.pi * ph / 6000)):.4e}  eta: {hms((24000 - s) * .42)}  time: 0.4211  data_time: 0.0091  memory: 30122  grad_norm: {.5 * math.exp(rng.normal(0, .14)):.4f}  loss: {x:.4f}")
        if s % 3000 == 0:
            L.append(P() + f"Iter(val) [25/25]    val/loss: {base * 1.02 + bump + rng.normal(0, .002):.4f}  val/clip_score: {.31 - .08 * math.exp(-s / 5000) + rng.normal(0, .001):.4f}")
    return put(d, "20250615_073000.log", L)


@case("a", "HF trainer_state.json", "none",
      "Full fine-tune that starts from a good released checkpoint: the loss is flat at 0.243 within its noise, eval_clip_score and eval_fid still improve a little. Healthy.")
def ah_ts_flat(d, rng):
    H = []
    for s in range(50, 6001, 50):
        H.append({"epoch": r_(s / 2100, 4), "grad_norm": g_(.112 * math.exp(rng.normal(0, .2)), 8), "learning_rate": 1e-05, "loss": r_(.2431 * math.exp(rng.normal(0, .03)) - .003 * s / 6000), "step": s})
        if s % 1000 == 0:
            H.append({"epoch": r_(s / 2100, 4), "eval_clip_score": r_(.3121 + .0065 * (1 - math.exp(-s / 2500)) + rng.normal(0, .0004), 5), "eval_fid": r_(14.2 - 1.3 * (1 - math.exp(-s / 2500)) + rng.normal(0, .08), 3), "eval_loss": r_(.2404 - .002 * s / 6000 + rng.normal(0, .0006), 5), "step": s})
    st = {"_name_or_path": "stabilityai/stable-diffusion-3-medium-diffusers", "epoch": 2.857, "global_step": 6000, "max_steps": 6000, "log_history": H}
    return put(d, "trainer_state.json", json.dumps(st, indent=2))


@case("a", "nanoGPT-like stdout", "none",
      "Smoke test of 40 iterations on one batch size: 18 lines, loss 1.31 -> 0.93. Too short for more, nothing wrong.")
def ah_smoke(d, rng):
    L = ["tokens per iteration will be: 16,384", "number of parameters: 58.12M"]
    for it in range(0, 41, 3):
        L.append(f"iter {it}: loss {1.31 - .38 * (1 - math.exp(-it / 18)) + rng.normal(0, .012):.4f}, time {231 + rng.normal(0, 4):.2f}ms, mfu {-100.0 if it < 5 else 21.4:.2f}%")
    return put(d, "smoke.txt", L)


@case("a", "W&B run history CSV", "none",
      "Validation loss is 14 % above the training loss from the first evaluation to the last, both fall together: a constant gap (no dropout in one, other data), no overfitting. Healthy.")
def ah_wandb_gap(d, rng):
    rows = []
    for s in range(0, 20001, 25):
        b = pw(s, .81, .29, 1500, .8)
        v = f"{b * 1.14 * math.exp(rng.normal(0, .006)):.6f}" if s % 500 == 0 else ""
        cs = f"{.322 - .1 * math.exp(-s / 4000) + rng.normal(0, .0012):.5f}" if s % 2500 == 0 else ""
        rows.append([s, f"{1744000000 + s * .9:.2f}", f"{b * math.exp(rng.normal(0, .05)):.6f}", f"{.33 * math.exp(rng.normal(0, .2)):.5f}", f"{float(cosine(s, 20000, 1e-4, 500)):.8g}", v, cs])
    return put_csv(d, "run_history.csv", ["_step", "_timestamp", "loss/train", "optim/grad_norm", "optim/lr", "loss/validation", "clip_score/validation"], rows)


@case("a", "JSON lines with the ret names", "none",
      "Recipe with std_range [0.35, 0.6], anchor and detach stated in the first line: grad/kl is 1.5 % of the total and std stays at 0.44 on purpose; cos 0.78, endpoint error falls with K, FID falls. Healthy.")
def ah_recipe_kl(d, rng):
    rows = [{"config": {"z_head": {"std_range": [0.35, 0.6], "anchor": "text_mean", "detach": ["target", "anchor"]}, "w": {"flow": 1.0, "kl": 0.0001}, "lr": 1e-4, "batch": 64, "dtype": "bf16"}}]
    for s in range(50, 15001, 50):
        cos = .79 - .55 * math.exp(-s / 2300) + rng.normal(0, .004)
        r = .84 - .5 * math.exp(-s / 2200) + rng.normal(0, .006)
        gf = .62 * math.exp(rng.normal(0, .1))
        gk = .0093 * math.exp(rng.normal(0, .12))
        o = {"step": s, "loss/flow": r_(1.7 * nmse(r, cos), 5), "loss/kl": r_(.46 + rng.normal(0, .004)), "grad/flow": r_(gf, 5), "grad/kl": r_(gk, 6), "grad/total": r_(math.hypot(gf, gk), 5), "std/mean": r_(.44 + rng.normal(0, .003)), "std/min": r_(.352 + rng.normal(0, .001)), "std/max": r_(.594 + rng.normal(0, .001)), "mu/abs_mean": r_(.68 + rng.normal(0, .004)),
             "flow/cos": r_(cos), "flow/nmse": r_(nmse(r, cos)), "flow/speed_ratio": r_(r), "lr": 1e-4}
        if s % 1000 == 0:
            q = pw(s, 1.1, .36, 2000, 1.0)
            for K, f in zip((8, 16, 32, 64), (1.12, 1.05, 1.01, 1.0)):
                o[f"flow/endpt_rmse@{K}"] = r_(q * f + rng.normal(0, .003))
            o["flow/cond_gain_cos"] = r_(.11 - .08 * math.exp(-s / 4000) + rng.normal(0, .003))
            o["val/fid"] = r_(pw(s, 260, 21, 1500, 1.0) + rng.normal(0, .7), 2)
        rows.append(o)
    return jl(d, "metrics.jsonl", rows)


@case("a", "TensorBoard event file", "none",
      "Autoencoder training: PSNR and SSIM rise, LPIPS and rec loss fall, KL settles. Rising metrics are the good direction. Healthy.")
def ah_tb_psnr(d, rng):
    sc = []
    for s in range(0, 20001, 50):
        t = s * .21
        for tag, v in [("train/rec_loss", pw(s, .24, .038, 500, .8) * math.exp(rng.normal(0, .05))), ("train/kl_loss", pw(s, 3.1, 1.32, 600, 1.0) * math.exp(rng.normal(0, .02))), ("train/lr", 1e-4)]:
            sc.append((tag, s, v, t))
        if s % 1000 == 0:
            sc += [("val/psnr", s, pw(s, 14, 31.8, 1500, 1.0) + rng.normal(0, .1), t), ("val/ssim", s, pw(s, .4, .91, 1500, 1.0), t), ("val/lpips", s, pw(s, .6, .09, 1500, .9) + rng.normal(0, .002), t)]
    tb_write(d, "tb/version_0/events.out.tfevents.1741200000.node3.771.0", sc)
    return "tb"


@case("a", "guided-diffusion logger tables", "none",
      "improved-diffusion tables: loss_q0 is far above loss_q3, as always for eps-prediction; loss 0.11 -> 0.047. Healthy.")
def ah_gd_tables(d, rng):
    L = ["Logging to /logs/openai-2025-02-02-10-00-11-391827", "creating model and diffusion...", "training..."]
    for k in range(0, 160):
        s = k * 200
        b = pw(s, .35, .043, 250, .85)
        q = [b * f * math.exp(rng.normal(0, .03)) for f in (2.75, .78, .34, .1)]
        vb = [b * f for f in (.08, .002, .001, .0007)]
        row = {"grad_norm": pw(s, 1.2, .07, 300, .8) * math.exp(rng.normal(0, .15)), "loss": np.mean(q), "loss_q0": q[0], "loss_q1": q[1], "loss_q2": q[2], "loss_q3": q[3], "mse": np.mean(q) * .95, "mse_q0": q[0] * .93, "mse_q1": q[1] * .99, "mse_q2": q[2], "mse_q3": q[3], "samples": (s + 1) * 256, "step": s, "vb": np.mean(vb), "vb_q0": vb[0], "vb_q1": vb[1], "vb_q2": vb[2], "vb_q3": vb[3]}
        L.append("-" * 24)
        for a, v in row.items():
            L.append(f"| {a:<9} | {f'{v:.3g}':<8} |")
        L.append("-" * 24)
    return put(d, "log.txt", L)


@case("a", "MAE/MAR MetricLogger console", "none",
      "Crash in epoch 26, resumed from the checkpoint of epoch 24: epochs 24-26 appear twice, the loss goes on at its level. Healthy.")
def ah_mar_resume(d, rng):
    L = ["base lr: 1.00e-04", "Start training for 60 epochs"]

    def epoch(e, stop=10 ** 9):
        for k in range(0, 500, 50):
            if k >= stop:
                return
            s = e * 500 + k
            x = pw(s, .99, .305, 1200, .8) * math.exp(rng.normal(0, .014))
            L.append(f"Epoch: [{e}]  [{k:>3}/500]  eta: {hms((500 - k) * .31)}  lr: 0.000100  loss: {x:.4f} ({x * (1 + rng.normal(0, .003)):.4f})  time: 0.3102  data: 0.0002  max mem: 35102")
    for e in range(26):
        epoch(e)
    epoch(26, 250)
    L += ["Traceback (most recent call last):", '  File "main_mar.py", line 298, in <module>', "    main(args)", "RuntimeError: NCCL communicator was aborted on rank 3.", "", "Resume checkpoint output_dir/checkpoint-last.pth", "With optim & sched!", "Start training for 60 epochs"]
    for e in range(24, 48):
        epoch(e)
    return put(d, "mar.log", L)


@case("a", "absl / clu logging_writer (JAX)", "none",
      "VAE with learned Gaussian likelihood: the loss (negative ELBO per dim) is negative and goes on falling -0.2 -> -2.9, eval_loss the same. Negative is right here. Healthy.")
def ah_jax_neg(d, rng):
    c = Clock("2025-03-03 13:20:00", rng)
    P = lambda: f"I{c.f('%m%d %H:%M:%S')}.{c.t.microsecond:06d} 140211 logging_writer.py:48] "
    L = []
    for s in range(100, 30001, 100):
        c.tick(22)
        b = pw(s, .9, -3.1, 1500, .8)
        L.append(P() + f"[{s}] grad_norm={2.1 * math.exp(rng.normal(0, .2)):.4f}, kl={.43 + .1 * math.exp(-s / 3000) + rng.normal(0, .004):.4f}, learning_rate={float(cosine(s, 30000, 3e-4, 1000)):.3e}, loss={b + rng.normal(0, .05):.5f}")
        if s % 1500 == 0:
            L.append(P() + f"[{s}] eval_kl={.431 + rng.normal(0, .003):.4f}, eval_loss={b + .04 + rng.normal(0, .015):.5f}")
    return put(d, "worker0.log", L)


@case("a", "DDP prints of four ranks interleaved", "none",
      "Four ranks print their own losses, out of order. Early decay, then a noisy plateau whose minimum happens to lie in the middle. Healthy.")
def ah_ranks(d, rng):
    L = []
    for s in range(0, 9001, 25):
        b = pw(s, .9, .492, 250, 1.2)
        rk = rng.permutation(4)
        for r in rk:
            L.append(f"[rank{r}] step={s} loss={b * math.exp(rng.normal(0, .045)):.5f} lr=5.00e-05 mem={37.2 + .1 * r:.1f}G")
    return put(d, "ddp.log", L)


@case("a", "Markdown run report", "none",
      "Report in the manner of a hypothesis test on a diffusion run: input, t, noise, prediction, loss and constants are all in order. Healthy.")
def ah_md_report(d, rng):
    txt = """# Run review: dif-0412 (x0-prediction, linear betas, T = 1000)

Summary: I went through the debug dump of the night run. Nothing suspicious.

## A. Inputs
- x_0 min / max: -5.91 / 5.12
- x_0 mean: between -0.0009 and 0.0007
- x_0 std: between 0.997 and 1.004
- NaN or Inf: 0

## B. Time steps
- t min 0, t max 999
- t mean over batches: 452 ... 551 (batch 128)
- t std over batches: 271 ... 305

## C. Forward process
- noise mean 0.0002, noise std 1.0001
- x_t std: 0.998 ... 1.003

## D. Model output
- predicted_x0 std: 0.49 at the beginning, 0.96 at the end
- predicted_x0 range: [-2.2, 2.3] at the beginning, [-5.4, 4.9] at the end
- dtype bfloat16 against a float32 target, as expected with autocast

## E. Loss
| window | mean loss |
|---|---|
| first 10 | 1.21 |
| steps 1k-2k | 0.43 |
| steps 10k-11k | 0.118 |
| last 10 | 0.071 |

Loss range over the run: [0.058, 1.24]. 21 values above 1.0, all within the first 40 steps. NaN or Inf: 0.

## F. Constants
- betas: 0.0001 ... 0.02
- alphas_cumprod: first 0.9999, last 4.04e-05
- sqrt_one_minus_alphas_cumprod: first 0.0100, last 0.99998

## Verdict
Keep going to 40k and look at samples.
"""
    return put(d, "review_dif-0412.md", txt)


@case("a", "sampler trace (debug prints)", "none",
      "Three sampling traces in fp32 with a symmetric sigmoid grid, sum dt = 1, |x| starts at 0.80 and moves smoothly. Healthy.")
def ah_trace(d, rng):
    L = []
    N = 40
    # symmetric grid, fine in the middle and coarse at the ends
    inv = np.log((np.linspace(0, 1, N + 1) * .9 + .05) / (1 - (np.linspace(0, 1, N + 1) * .9 + .05)))
    t = (inv - inv[0]) / (inv[-1] - inv[0])
    dt = np.diff(t)
    for p in range(3):
        x = .797 + rng.normal(0, .0015)
        L.append(f"{p + 1}it [00:{11 * (p + 1):02d}, {10.8 + rng.normal(0, .2):.2f}s/it]prompt {p}: num_steps={N} dtype=float32")
        for k in range(N):
            v = .91 + .05 * math.sin(k / 9) + rng.normal(0, .002)
            L.append(f"step{k}: |x|={x:.4f}, |v|={v:.4f}, dt={dt[k]:.4f}")
            x += dt[k] * (.02 + .22 * t[k])
    return put(d, "sample_debug.txt", L)


@case("a", "loss-only text file", "none",
      "One line per epoch with the average loss and nothing else, 0.214 -> 0.121 over 34 epochs. Few metrics, nothing wrong in them.")
def ah_loss_only(d, rng):
    L = [f"Epoch {e:03d}  avg loss {pw(e, .235, .112, 3, .9) * math.exp(rng.normal(0, .008)):.5f}  ({411 + rng.normal(0, 2):.1f}s)" for e in range(1, 35)]
    return put(d, "train_loss.txt", L)
