from lib import *


@case("a", "Sana / PixArt console log", "nan_loss",
      "Flow-matching DiT (Sana console). Loss 0.93 -> 0.67 in an ordinary way, from global step 3480 on loss and grad_norm are nan to the end; lr constant, nothing rises before.")
def af_sana_nan(d, rng):
    n = 5200 // 20
    s = np.arange(1, n + 1) * 20
    loss = pw(s, 0.95, 0.62, 350, 0.7) * ln(rng, n, 0.012)
    gn = pw(s, 0.9, 0.13, 200, 0.8) * ln(rng, n, 0.09)
    c = Clock("2025-03-11 21:04:12", rng)
    L = [f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Distributed environment: MULTI_GPU  Backend: nccl",
         f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Number of trainable parameters: 592,378,912",
         f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Config: mixed_precision=bf16, optimizer=CAMEWrapper, lr=1e-4, scheduler=constant, num_warmup_steps=200, flow_shift=3.0, weighting_scheme=logit_normal",
         f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Dataset SanaWebDatasetMS constructed. time: 4.81 s, length (use/ori): 240128/240128"]
    shapes = ["(32, 32)", "(26, 36)", "(28, 34)", "(20, 50)", "(40, 26)"]
    for i in range(n):
        c.tick(28)
        ep = 1 + (s[i] - 1) // 1877
        loc = (s[i] - 1) % 1877 + 1
        bad = s[i] >= 3480
        lr = 1e-4 * min(1, s[i] / 200)
        L.append(f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Epoch: {ep} | Global Step: {s[i]} | Local Step: {loc} // 1877, "
                 f"total_eta: {hms((18770 - s[i]) * 1.4)}, epoch_eta:{hms((1877 - loc) * 1.4)}, time: all:{1.39 + rng.normal(0, .01):.3f}, "
                 f"model:0.851, data:0.003, lm:0.077, vae:0.45{rng.integers(0, 9)}, lr:{lr:.3e}, Cap: prompt, s:{shapes[rng.integers(0, 5)]}, "
                 f"loss:{'nan' if bad else f'{loss[i]:.4f}'}, grad_norm:{'nan' if bad else f'{gn[i]:.4f}'}")
        if s[i] % 1000 == 0:
            L.append(f"{c.f('%Y-%m-%d %H:%M:%S')} - [Sana] - INFO - Saved checkpoint of epoch {ep} to output/run0311/checkpoints/epoch_{ep}_step_{s[i]}.pth.")
    return put(d, "train_log.log", L)


@case("a", "nanoGPT-like stdout", "divergence",
      "LM with meta-queries + flow head. Train and val loss fall to 0.52 / 0.545 around iter 8500 and then climb steadily to 0.78 / 0.80 at 20000; no jump, lr constant after warm-up.")
def af_nanogpt_div(d, rng):
    L = ["number of parameters: 412.66M", "num decayed parameter tensors: 170, with 412,481,536 parameters",
         "num non-decayed parameter tensors: 343, with 181,248 parameters", "using fused AdamW: True",
         "learning_rate = 0.0003, decay_lr = False, warmup_iters = 500, batch_size = 24, grad_clip = 1.0"]
    it = np.arange(0, 20001, 20)
    n = len(it)
    base = pw(it, 1.06, 0.47, 700, 0.9) + 0.27 * np.clip((it - 8000) / 12000, 0, 1) ** 1.35
    tr = base * ln(rng, n, 0.022)
    for i in range(n):
        if it[i] % 500 == 0:
            e = base[i] * (1 + rng.normal(0, 0.004))
            L.append(f"step {it[i]}: train loss {e:.4f}, val loss {e * 1.028 + rng.normal(0, .003):.4f}")
            if it[i] and it[i] <= 8500:
                L.append("saving checkpoint to out-metaq")
        L.append(f"iter {it[i]}: loss {tr[i]:.4f}, time {412 + rng.normal(0, 5):.2f}ms, mfu {33.1 + rng.normal(0, .2):.2f}%")
    return put(d, "out.txt", L)


@case("a", "DiT/SiT logger with ANSI colours", "loss_spikes",
      "SiT-XL log (mean over 100 steps). Level falls slowly 0.172 -> 0.150 but about 5 % of the lines are spikes of 2.5-7 times the level, all through the run.")
def af_sit_spikes(d, rng):
    s = np.arange(100, 42001, 100)
    n = len(s)
    l = pw(s, 0.185, 0.147, 3000, 0.8) * ln(rng, n, 0.006)
    m = np.ones(n)
    idx = np.sort(rng.choice(np.arange(12, n - 3), 23, replace=False))
    for k in idx:
        f = rng.uniform(2.5, 7)
        m[k] = max(m[k], f)
        m[k + 1] = max(m[k + 1], 1 + (f - 1) * rng.uniform(.05, .3))
    l = l * m
    c = Clock("2024-11-02 03:12:44", rng)
    A = lambda t: f"[\x1b[34m{c.f('%Y-%m-%d %H:%M:%S')}\x1b[0m] {t}"
    L = [A("Experiment directory created at results/014-SiT-XL-2-Linear-velocity-None"), A("SiT Parameters: 675,129,632"),
         A("Dataset contains 1,281,167 images (/data/imagenet/train)"), A("Training for 80 epochs..."), A("Beginning epoch 0...")]
    ep = 0
    for i in range(n):
        c.tick(31)
        if s[i] // 5004 != ep:
            ep = s[i] // 5004
            L.append(A(f"Beginning epoch {ep}..."))
        L.append(A(f"(step={s[i]:07d}) Train Loss: {l[i]:.4f}, Train Steps/Sec: {3.22 + rng.normal(0, .02):.2f}"))
        if s[i] % 10000 == 0:
            L.append(A(f"Saved checkpoint to results/014-SiT-XL-2-Linear-velocity-None/checkpoints/{s[i]:07d}.pt"))
    return put(d, "log.txt", L)


@case("a", "MMEngine runner log", "no_learning",
      "Text-to-image FM from random init (load_from=None). loss_flow stays at 2.00 (the variance of the target), val loss, FID and CLIP score stay where they started; lr and grad_norm are ordinary.")
def af_mmengine_flat(d, rng):
    c = Clock("2025-05-20 14:00:03", rng)
    P = lambda: c.f("%Y/%m/%d %H:%M:%S") + " - mmengine - INFO - "
    L = [P() + "\n------------------------------------------------------------\nSystem environment:\n    sys.platform: linux\n    Python: 3.10.14\n    CUDA available: True\n    GPU 0,1,2,3: NVIDIA A100-SXM4-80GB\n    seed: 3407\n------------------------------------------------------------",
         P() + "Config:\nload_from = None\nresume = False\nmodel = dict(type='T2IFlowDiT', depth=24, hidden_size=1024, pred='velocity')\noptim_wrapper = dict(clip_grad=dict(max_norm=1.0), optimizer=dict(lr=0.0001, type='AdamW', weight_decay=0.01))\ntrain_cfg = dict(by_epoch=False, max_iters=40000, val_interval=2000)\n",
         P() + "Checkpoints will be saved to /nfs/work_dirs/t2i_flow."]
    s = np.arange(50, 24001, 50)
    n = len(s)
    loss = 2.0 * np.exp(ar(rng, n, 0.011, 0.1))
    gn = 0.86 * ln(rng, n, 0.08, 0.2)
    for i in range(n):
        c.tick(37)
        lr = 1e-4 * min(1, s[i] / 1000)
        L.append(P() + f"Iter(train) [{s[i]:>5}/40000]  lr: {lr:.4e}  eta: {hms((40000 - s[i]) * .74)}  time: {.742 + rng.normal(0, .004):.4f}  data_time: 0.0{rng.integers(100, 180)}  memory: 41872  grad_norm: {gn[i]:.4f}  loss: {loss[i]:.4f}  loss_flow: {loss[i]:.4f}")
        if s[i] % 2000 == 0:
            L.append(P() + f"Saving checkpoint at {s[i]} iterations")
            L.append(P() + f"Iter(val) [40/40]    val/loss_flow: {2.001 + rng.normal(0, .004):.4f}  val/fid: {338 + rng.normal(0, 3):.2f}  val/clip_score: {.171 + rng.normal(0, .0012):.4f}  data_time: 0.0121  time: 0.6031")
    return put(d, "20250520_140001.log", L)


@case("a", "Keras fit() output", "lr_too_small",
      "KerasCV diffusion training; printed learning rate is 1e-09 in every epoch, loss and val_loss flat at 0.93.")
def af_keras_lr(d, rng):
    L = ["Found 48211 files.", "Using mixed precision policy: mixed_bfloat16"]
    for e in range(1, 46):
        L.append(f"Epoch {e}/60")
        x, v = .9312 + rng.normal(0, .0018), .9327 + rng.normal(0, .0025)
        L.append(f"753/753 - {rng.integers(316, 325)}s - {rng.integers(419, 431)}ms/step - image_loss: {.4417 + rng.normal(0, .0009):.4f} - learning_rate: 1.0000e-09 - loss: {x:.4f} - noise_loss: {x:.4f} - val_image_loss: {.4421 + rng.normal(0, .0012):.4f} - val_loss: {v:.4f} - val_noise_loss: {v:.4f}")
    return put(d, "fit_output.txt", L)


@case("a", "HF trainer_state.json", "lr_restart",
      "MetaQuery connector training. First leg follows a cosine down to 3.8e-6 at step 7000 (loss 0.36). After the resume the LR is at 3e-4 again; loss and eval_loss jump to 0.6 and are still 0.49 at 12000.")
def af_ts_restart(d, rng):
    s = np.arange(25, 12001, 25)
    n = len(s)
    lr = np.where(s <= 7000, cosine(s, 8000, 1e-4, 400), cosine(s - 7000, 40000, 3e-4))
    base = np.where(s <= 7000, pw(s, 0.88, 0.29, 900, 0.95), pw(s - 7000, 0.63, 0.45, 900, 0.6))
    loss = base * ln(rng, n, 0.025)
    gn = np.where(s <= 7000, 0.42, 1.1) * ln(rng, n, 0.15)
    H = []
    for i in range(n):
        H.append({"epoch": r_(s[i] / 1563, 4), "grad_norm": g_(gn[i], 8), "learning_rate": g_(lr[i], 8), "loss": r_(loss[i]), "step": int(s[i])})
        if s[i] % 500 == 0:
            H.append({"epoch": r_(s[i] / 1563, 4), "eval_loss": r_(base[i] * 1.03 + rng.normal(0, .004), 6), "eval_runtime": r_(61 + rng.normal(0, .5)), "eval_samples_per_second": 33.1, "eval_steps_per_second": 1.04, "step": int(s[i])})
    st = {"best_metric": None, "best_model_checkpoint": None, "epoch": 7.6775, "eval_steps": 500, "global_step": 12000, "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True, "log_history": H,
          "logging_steps": 25, "max_steps": 47000, "num_input_tokens_seen": 0, "num_train_epochs": 31, "save_steps": 1000, "total_flos": 0.0, "train_batch_size": 16, "trial_name": None, "trial_params": None}
    put(d, "checkpoint-12000/trainer_state.json", json.dumps(st, indent=2))
    return "checkpoint-12000/trainer_state.json"


@case("a", "Lightning CSVLogger metrics.csv", "overfitting",
      "DreamBooth-like fine-tune, 40 epochs. train loss 0.34 -> 0.07, val/loss has its minimum 0.262 near epoch 11 and rises to 0.41; val/clip_score falls from its best as well.")
def af_pl_overfit(d, rng):
    rows = []
    per = 60
    for e in range(40):
        acc = []
        for k in range(per):
            st = e * per + k
            x = pw(st, 0.345, 0.045, 500, 1.0) * math.exp(rng.normal(0, .16))
            acc.append(x)
            if st % 10 == 9:
                rows.append([e, st, "", f"{x:.6f}", "", "", "", ""])
        ve = 0.262 + 0.075 * math.exp(-e / 3.5) + 0.15 * max(0, (e - 10) / 29) ** 1.15 + rng.normal(0, .0035)
        cs = 0.318 - 0.02 * math.exp(-e / 3) - 0.018 * max(0, (e - 12) / 27) + rng.normal(0, .0007)
        rows.append([e, e * per + per - 1, "", "", "", f"{cs:.6f}", f"{ve:.6f}", ""])
        rows.append([e, e * per + per - 1, "", "", f"{np.mean(acc):.6f}", "", "", ""])
        rows.append(["", e * per + per - 1, "5e-06", "", "", "", "", ""])
    return put_csv(d, "metrics.csv", ["epoch", "step", "lr-AdamW", "train/loss_step", "train/loss_epoch", "val/clip_score", "val/loss", "hp_metric"], rows)


@case("a", "W&B run history CSV", "periodic_memorisation",
      "Small data set, no held-out set. Training loss is a staircase: flat within each epoch, falls by about 14 % at every epoch boundary (14 epochs).")
def af_wandb_stairs(d, rng):
    per, E = 150, 14
    rows = []
    t0 = 1742000000.0
    lvl = [0.45]
    for _ in range(E - 1):
        lvl.append(lvl[-1] * (0.86 + rng.normal(0, .008)))
    for e in range(E):
        for k in range(per):
            st = (e * per + k) * 5
            first = ex(st, 0.5, 0, 180) if e == 0 else 0
            x = (lvl[e] + first) * math.exp(rng.normal(0, .045))
            g = 0.55 * math.exp(rng.normal(0, .15))
            rows.append([st, f"{t0 + st * 1.31:.3f}", f"{st * 1.31 + 12:.2f}", f"{e + k / per:.4f}", f"{x:.6f}", f"{g:.5f}", "0.0001"])
    return put_csv(d, "history.csv", ["_step", "_timestamp", "_runtime", "train/epoch", "train/loss", "train/grad_norm", "train/lr"], rows)


@case("a", "Megatron-LM console", "grad_explosion",
      "Unified LM + image tokens in bf16. Loss falls in an ordinary way 0.98 -> 0.50, but grad norm rises exponentially over the whole run, 0.35 -> about 3000.")
def af_megatron_grad(d, rng):
    it = np.arange(10, 6001, 10)
    n = len(it)
    loss = pw(it, 1.0, 0.42, 500, 0.75) * ln(rng, n, 0.012)
    gn = 0.35 * np.exp(it / 6000 * math.log(9000)) * ln(rng, n, 0.16, 0.5)
    c = Clock("2025-02-08 10:11:30", rng)
    L = ["using world size: 64, data-parallel size: 16, tensor-model-parallel size: 4, pipeline-model-parallel size: 1 ", "using torch.bfloat16 for parameters ...",
         " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 871346176", "training ..."]
    for i in range(n):
        c.tick(58)
        L.append(f" [{c.f('%Y-%m-%d %H:%M:%S')}] iteration {it[i]:>8}/   40000 | consumed samples: {it[i] * 512:>12} | elapsed time per iteration (ms): {5790 + rng.normal(0, 30):.1f} | learning rate: {2e-4 * min(1, it[i] / 1000):.6E} | global batch size:   512 | lm loss: {loss[i]:.6E} | loss scale: 1.0 | grad norm: {gn[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |")
    return put(d, "slurm-884213.out", L)


@case("a", "DeepSpeed engine log", "amp_overflow",
      "fp16 training under DeepSpeed: OVERFLOW in every step, the loss scale falls from 2^32 to 1 and stays there, skipped equals step; the loss stays at its initial 1.01.")
def af_ds_overflow(d, rng):
    c = Clock("2025-01-17 08:40:02", rng)
    L = []
    P = lambda f: f"[{c.f('%Y-%m-%d %H:%M:%S')},{c.ms}] [INFO] [{f}] "
    L.append(P("config.py:998:print") + "  fp16_enabled ................. auto")
    L.append(P("config.py:998:print") + "  initial_dynamic_scale ........ 4294967296")
    L.append(P("engine.py:1313:_configure_distributed_model") + "********** distributed groups summary **********")
    sc = 2 ** 32
    for k in range(1, 421):
        c.tick(1.9)
        new = max(sc // 2, 1)
        L.append(P("loss_scaler.py:183:update_scale") + f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {new}")
        sc = new
        if k % 5 == 0:
            L.append(f"epoch 0 | step {k} | loss {1.012 * math.exp(rng.normal(0, .03)):.4f}")
        if k % 10 == 0:
            L.append(P("logging.py:96:log_dist") + f"[Rank 0] step={k}, skipped={k}, lr=[0.0001], mom=[[0.9, 0.999]]")
            L.append(P("timer.py:258:stop") + f"epoch=0/micro_step={k}/global_step={k}, RunningAvgSamplesPerSec={33.5 + rng.normal(0, .2):.4f}, CurrSamplesPerSec={33.5 + rng.normal(0, .6):.4f}, MemAllocated=18.32GB, MaxMemAllocated=31.77GB")
    return put(d, "ds_train.log", L)


@case("a", "MAE/MAR MetricLogger console", "resume_from_scratch",
      "MAR training resumed at epoch 52: the epoch counter and the LR schedule go on, but the loss starts again at 0.98 (its value in epoch 0) and falls as in a fresh run; grad_norm too.")
def af_mar_scratch(d, rng):
    L = ["Not using distributed mode", "base lr: 1.00e-04", "actual lr: 1.00e-04", "effective batch size: 256", "Start training for 400 epochs"]
    c = Clock("2025-04-01 17:22:10", rng)

    def epoch(e, age):
        avg = 0
        for k in range(0, 400, 40):
            s = age * 400 + k
            x = pw(s, 0.985, 0.318, 900, 0.85) * math.exp(rng.normal(0, .012))
            g = pw(s, 1.6, 0.21, 500, 0.8) * math.exp(rng.normal(0, .1))
            avg = x if k == 0 else avg + (x - avg) / (k / 40 + 1)
            c.tick(9)
            L.append(f"[{c.f('%H:%M:%S')}.{c.t.microsecond:06d}] Epoch: [{e}]  [{k:>3}/400]  eta: {hms((400 - k) * .22)}  lr: {1e-4 * min(1, (e + k / 400) / 10):.6f}  loss: {x:.4f} ({avg:.4f})  grad_norm: {g:.4f}  time: {.224 + rng.normal(0, .003):.4f}  data: 0.0003  max mem: 22817")
        L.append(f"[{c.f('%H:%M:%S')}.{c.t.microsecond:06d}] Epoch: [{e}] Total time: 0:01:29 (0.2241 s / it)")
        L.append(f"Averaged stats: lr: {1e-4 * min(1, (e + 1) / 10):.6f}  loss: {x:.4f} ({avg:.4f})")
    for e in range(52):
        epoch(e, e)
    L.extend(["slurmstepd: error: *** JOB 51877 ON node14 CANCELLED AT 2025-04-01T18:41:09 DUE TO TIME LIMIT ***",
              "| distributed init (rank 0): env://, gpu 0", "base lr: 1.00e-04", "actual lr: 1.00e-04", "effective batch size: 256", "Resume checkpoint output_dir/checkpoint-last.pth", "With optim & sched!", "Start training for 400 epochs"])
    c.tick(5400)
    for e in range(52, 86):
        epoch(e, e - 52)
    return put(d, "output.log", L)


@case("a", "absl / clu logging_writer (JAX)", "self_stopped",
      "JAX flow-matching run planned for 200000 steps. Loss rises from its minimum 0.44 (step 33200) to 0.9; the trainer's own watchdog ends it at 48600 with that reason.", ["divergence"])
def af_jax_watchdog(d, rng):
    s = np.arange(200, 48601, 200)
    n = len(s)
    base = pw(s, 1.3, 0.40, 900, 0.85) + 0.47 * np.clip((s - 33000) / 15600, 0, 1) ** 1.4
    loss = base * ln(rng, n, 0.014)
    gn = (0.45 + 0.5 * np.clip((s - 33000) / 15600, 0, 1)) * ln(rng, n, 0.12)
    c = Clock("2025-02-14 09:12:33", rng)
    P = lambda lv, f: f"{lv}{c.f('%m%d %H:%M:%S')}.{c.t.microsecond:06d} 139872301 {f}] "
    L = [P("I", "main.py:61") + "JAX process: 0 / 4", P("I", "train.py:140") + "total_steps=200000 ema=0.9999 watchdog: ratio=2.0 patience=25", P("I", "train.py:171") + "Starting training loop at step 1."]
    for i in range(n):
        c.tick(64)
        L.append(P("I", "logging_writer.py:48") + f"[{s[i]}] grad_norm={gn[i]:.5f}, learning_rate={1e-4 * min(1, s[i] / 5000):.6f}, loss={loss[i]:.6f}, steps_per_sec={3.11 + rng.normal(0, .02):.3f}")
        if s[i] % 5000 == 0:
            L.append(P("I", "logging_writer.py:48") + f"[{s[i]}] eval_loss={base[i] * 1.02 + rng.normal(0, .004):.6f}")
    L.append(P("E", "train.py:287") + "watchdog: smoothed train loss 0.8913 above 2.0 x best 0.4402 (best at step 33200) on 25 checks in a row")
    L.append(P("E", "train.py:291") + "stopping training at step 48600 of 200000. last good checkpoint: 45000")
    return put(d, "train.INFO", L)


@case("a", "nested JSON lines", "metrics_lost",
      "Training loss goes on normally to 12000, but eval.loss, eval.fid and eval.clip_score are null in every evaluation from step 6500 on.")
def af_nested_lost(d, rng):
    rows = []
    for s in range(50, 12001, 50):
        x = pw(s, 0.92, 0.40, 800, 0.8)
        r = {"step": s, "wall": r_(s * .83, 1), "train": {"loss": r_(x * math.exp(rng.normal(0, .03)), 5), "grad_norm": r_(.38 * math.exp(rng.normal(0, .15)), 4)}, "opt": {"lr": g_(1e-4, 4)}}
        if s % 500 == 0:
            if s < 6500:
                r["eval"] = {"loss": r_(x * 1.02 + rng.normal(0, .004), 5), "fid": r_(pw(s, 210, 19, 500, .95) * math.exp(rng.normal(0, .02)), 2), "clip_score": r_(.315 - .09 * math.exp(-s / 1800) + rng.normal(0, .001), 4)}
            else:
                r["eval"] = {"loss": None, "fid": None, "clip_score": None}
        rows.append(r)
    return jl(d, "metrics.jsonl", rows)


@case("a", "EDM stats.jsonl", "ema_broken",
      "EDM-like stats.jsonl. FID of the raw network falls 290 -> 21, FID of the EMA network stays at its initial 371 for the whole run.")
def af_edm_ema(d, rng):
    rows = []
    for k in range(0, 201):
        kimg = k * 50
        m = pw(kimg, 0.62, 0.198, 250, .8)
        r = {"Progress/tick": {"num": 1, "mean": float(k), "std": 0.0}, "Progress/kimg": {"num": 1, "mean": float(kimg), "std": 0.0},
             "Loss/loss": {"num": 25088, "mean": r_(m * math.exp(rng.normal(0, .004)), 6), "std": r_(m * .41 * math.exp(rng.normal(0, .02)), 6)},
             "Timing/sec_per_kimg": {"num": 1, "mean": r_(4.4 + rng.normal(0, .05), 3), "std": 0.0}, "Resources/peak_gpu_mem_gb": {"num": 1, "mean": 21.4, "std": 0.0}}
        if k % 5 == 0:
            r["Metrics/fid5k_net"] = {"num": 1, "mean": r_(pw(kimg, 372, 14, 300, 1.1) * math.exp(rng.normal(0, .02)), 3), "std": 0.0}
            r["Metrics/fid5k_ema"] = {"num": 1, "mean": r_(371.6 + rng.normal(0, .9), 3), "std": 0.0}
        r["timestamp"] = r_(1738000000 + kimg * 4.4, 2)
        rows.append(r)
    return jl(d, "stats.jsonl", rows)


@case("a", "detectron2 metrics.json", "weak_gradient_share",
      "Flow + KL + DINO supervision. grad_norm/dino is about 1 % of grad_norm/total for the whole run; loss_dino hardly moves (8.31 -> 8.27) and the student stays near uniform while loss_flow falls.")
def af_d2_dino(d, rng):
    s = np.arange(19, 24000, 40)
    n = len(s)
    lf = pw(s, 1.9, 0.62, 900, .8) * ln(rng, n, .02)
    ld = (8.312 - .045 * (1 - np.exp(-s / 9000))) + rng.normal(0, .006, n)
    lk = pw(s, .9, .21, 1500, .9) * ln(rng, n, .02)
    gf = pw(s, 1.4, .55, 900, .6) * ln(rng, n, .12)
    gk = gf * .17 * ln(rng, n, .12)
    gd = gf * .011 * ln(rng, n, .15)
    gt = np.sqrt(gf ** 2 + gk ** 2 + gd ** 2 + .1 * gf * gk)
    rows = []
    for i in range(n):
        rows.append({"data_time": r_(.0021 + abs(rng.normal(0, .0003)), 5), "ent/student": r_(8.26 - .05 * (1 - math.exp(-s[i] / 9000)) + rng.normal(0, .004), 4), "ent/teacher": r_(4.9 + rng.normal(0, .05), 4), "eta_seconds": r_((40000 - s[i]) * .41, 1),
                     "grad_norm/dino": g_(gd[i], 5), "grad_norm/flow": g_(gf[i], 5), "grad_norm/kl": g_(gk[i], 5), "grad_norm/total": g_(gt[i], 5), "iteration": int(s[i]),
                     "loss_dino": r_(ld[i], 4), "loss_flow": r_(lf[i], 4), "loss_kl": r_(lk[i], 4), "lr": 1e-4, "num_prototypes": 4096, "time": r_(.41 + rng.normal(0, .01), 4), "total_loss": r_(lf[i] + .1 * lk[i] + .01 * ld[i], 4), "w_dino": .01, "w_kl": .1})
    return jl(d, "metrics.json", rows)


@case("a", "printed 'iter a/b | key: value' lines", "head_not_updated",
      "z_head update ratio is 2e-7 for 26000 iterations while flow_head's is 9e-4 at lr 1e-4; mu, std and kl stand still, the flow loss falls.")
def af_iter_zhead(d, rng):
    L = ["optimizer groups: backbone lr=2e-5, z_head lr=1e-4, flow_head lr=1e-4", "start"]
    for s in range(50, 26001, 50):
        lf = pw(s, 2.6, .93, 1500, .8) * math.exp(rng.normal(0, .025))
        L.append(f"iter {s}/26000 | loss_flow: {lf:.4f} | loss_kl: {.2141 + rng.normal(0, .0012):.4f} | mu_abs: {.4633 + rng.normal(0, .0011):.4f} | std: {.8712 + rng.normal(0, .0008):.4f} | "
                 f"upd_ratio/z_head: {2.1e-7 * math.exp(rng.normal(0, .2)):.2e} | upd_ratio/flow_head: {9.2e-4 * math.exp(rng.normal(0, .12)):.2e} | gnorm: {.71 * math.exp(rng.normal(0, .12)):.3f} | lr: 1.0e-04")
    return put(d, "nohup.out", L)


@case("a", "python logging key=value lines", "teacher_collapsed",
      "DINO alignment head, K=8192 (log K = 9.01), T_t=0.01 without centring. Teacher entropy falls to 0.05 (0.6 % of log K) and stays; the student follows to about 1.0 and loss_dino no longer moves.")
def af_log_teacher(d, rng):
    c = Clock("2025-06-09 08:14:22", rng)
    L = [f"{c.f('%Y-%m-%d %H:%M:%S')},118 INFO align.main: num_prototypes=8192 teacher_temp=0.01 student_temp=0.1 center_momentum=0.0 world_size=8"]
    for s in range(100, 30001, 100):
        c.tick(47)
        ht = .05 + 3.9 * math.exp(-s / 700) + abs(rng.normal(0, .006))
        hs = 1.02 + 7.8 * math.exp(-s / 1500) + rng.normal(0, .03)
        ldino = .62 + 8 * math.exp(-s / 1200) + rng.normal(0, .02)
        lf = pw(s, 1.7, .66, 1500, .8) * math.exp(rng.normal(0, .02))
        L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} INFO align.train: it={s} loss={lf + .2 * ldino:.4f} loss_fm={lf:.4f} loss_dino={ldino:.4f} teacher_entropy={ht:.4f} student_entropy={hs:.4f} grad_norm={.6 * math.exp(rng.normal(0, .12)):.3f} lr={1e-4 * min(1, s / 1000):.2e}")
    return put(d, "align.log", L)


@case("a", "MLflow file store (mlruns)", "kl_not_acting",
      "Text head with kl_weight 1e-8. kl rises 1.5 -> 19, mu_abs_mean 0.5 -> 5, z0_var 1.2 -> 38 without levelling off, std_mean drifts to 0.6; flow_loss falls.")
def af_mlflow_kl(d, rng):
    run = "mlruns/412207719300127/8f0d3c61b2a94f5f9f3be1f7f6b0ad11"
    put(d, run + "/meta.yaml", "artifact_uri: file:///mlruns/412207719300127/8f0d3c61b2a94f5f9f3be1f7f6b0ad11/artifacts\nend_time: null\nexperiment_id: '412207719300127'\nlifecycle_stage: active\nrun_name: bright-hare-88\nstatus: 1\nuser_id: lw\n")
    for k, v in dict(kl_weight="1e-08", batch_size="64", learning_rate="0.0001", latent_dim="4096", max_steps="20000").items():
        put(d, f"{run}/params/{k}", v)
    s = np.arange(0, 20001, 50)
    n = len(s)
    mu = .5 + 4.6 * (s / 20000) ** .8
    mu = mu * ln(rng, n, .012)
    sd = 1 - .4 * (1 - np.exp(-s / 9000)) + rng.normal(0, .004, n)
    rms = mu * 1.2533
    var = rms ** 2 + sd ** 2
    kl = .5 * (rms ** 2 + sd ** 2 - 1 - 2 * np.log(sd))
    fl = pw(s, 2.2, .42, 1200, .8) * ln(rng, n, .02)
    M = {"flow_loss": fl, "kl": kl, "mu_abs_mean": mu, "std_mean": sd, "z0_var": var, "train_loss": fl + 1e-8 * kl, "lr": np.full(n, 1e-4)}
    for k, v in M.items():
        put(d, f"{run}/metrics/{k}", [f"{1741000000000 + int(s[i]) * 410} {float(v[i])!r} {s[i]}" for i in range(n)])
    return "mlruns"


@case("a", "TensorBoard event file", "posterior_collapse",
      "beta=1 from step 0. loss_kl falls to 1e-4, |mu| to 0.004, std to 0.9998 within 4000 steps and stays: z0 holds nothing of the text. Flow loss stays at a high plateau.")
def af_tb_posterior(d, rng):
    sc = []
    for s in range(0, 16001, 40):
        t = s * .37
        mu = .004 + .6 * math.exp(-s / 650) * math.exp(rng.normal(0, .03)) + abs(rng.normal(0, .0002))
        sd = .9998 - .3 * math.exp(-s / 500) + rng.normal(0, .0001)
        rms = 1.25 * mu
        kl = .5 * (rms ** 2 + sd ** 2 - 1 - 2 * math.log(sd)) + 1e-4
        fl = pw(s, 2.1, 1.31, 500, 1.1) * math.exp(rng.normal(0, .015))
        for tag, v in [("train/loss_flow", fl), ("train/loss_kl", kl), ("train/loss", fl + kl), ("posterior/mu_abs_mean", mu), ("posterior/std_mean", sd), ("posterior/std_min", sd - .0008), ("posterior/logvar_mean", 2 * math.log(sd)),
                       ("opt/lr", 1e-4 * min(1, (s + 1) / 500)), ("opt/grad_norm", .44 * math.exp(rng.normal(0, .13))), ("weights/beta_kl", 1.0)]:
            sc.append((tag, s, v, t))
    tb_write(d, "runs/Jun03_10-22-41_gpu07/events.out.tfevents.1740000000.gpu07.41123.0", sc)
    return "runs"


@case("a", "Markdown debugging note (prose + table)", "scale_mismatch",
      "A practitioner's note: norms of text latents ~63 against image latents ~655 (10x), target velocity norm equals the image latents'; VAE round trip and text path are fine.")
def af_md_scale(d, rng):
    z0 = 63.4 + rng.normal(0, .5, 6)
    z1 = 655 + rng.normal(0, 45, 6)
    T = "\n".join(f"| {i} | {z0[i]:.1f} | {z1[i]:.0f} | {math.hypot(z0[i] * .5, z1[i] * .5):.0f} | {math.hypot(z0[i], z1[i]):.0f} |" for i in range(6))
    txt = f"""# 3 June, why does the text head not train

Model: query tokens -> 3-layer MLP -> (mu, logvar) -> z0, then linear path to the image latent z1, 256 px, latents 4x32x32 = 4096 numbers.

## What I see
After 12k steps `loss_flow` went from {(z1.mean() ** 2 + z0.mean() ** 2) / 4096:.1f} to {(z1.mean() ** 2) / 4096 * .69:.1f}, the pictures are brown mush. grad norm of the flow transformer is ordinary (0.6 ... 0.9 after clipping), learning rate 1e-4.

## Checked so far
1. Round trip of the autoencoder over 16 photos: PSNR 30.6 dB (29.1 ... 32.4). Looks right.
2. Text path: cosine between the *means* of "a cat" and "a red bus" 0.41, "a cat" and "a bowl of soup" 0.37, same prompt twice 1.000. So the prompt arrives.
3. Path and target: x_t = (1-t) z0 + t z1, v* = z1 - z0, both detached. OK.
4. Sampler: uniform dt, 50 steps, sum dt = 1.0.

## Norms in one batch (L2 per sample)

| sample | z0 norm | z1 norm | x_t norm (t=0.5) | v* norm |
|---|---|---|---|---|
{T}

mean: ‖z0‖ = {z0.mean():.1f}, ‖z1‖ = {z1.mean():.1f}.
For comparison, 4096 standard normal numbers have a norm of 64.

std per element: z0 0.99, z1 {z1.mean() / 64:.2f}.

## Next
Look at what `encode()` hands over (moments or a sample?), print std again, then restart.
"""
    return put(d, "2025-06-03.md", txt)


@case("a", "wrapped Python dicts in a log", "z0_leak",
      "flow/cos climbs to 0.97 and nmse to 0.06 while std/mean shrinks to 0.15; relative shooting error stays at 0.8+, FID stays above 200: excellent one-step metrics, unusable samples.")
def af_dict_leak(d, rng):
    L = []
    c = Clock("2025-07-02 11:03:10", rng)
    for s in range(250, 25001, 250):
        c.tick(133)
        cos = .972 - .55 * math.exp(-s / 4200) + rng.normal(0, .004)
        rr = .985 - .25 * math.exp(-s / 4000) + rng.normal(0, .006)
        sd = .15 + .78 * math.exp(-s / 3300) + rng.normal(0, .004)
        sh = .83 + .06 * s / 25000 + rng.normal(0, .012)
        mu = .62 + .35 * (1 - math.exp(-s / 5000)) + rng.normal(0, .006)
        L.append(f"[{c.f('%Y-%m-%d %H:%M:%S')}] step {s}")
        L.append("{'flow/cos': %.4f, 'flow/nmse': %.4f, 'flow/speed_ratio': %.4f,\n 'kl': %.4f, 'lr': 0.0001, 'loss/flow': %.5f,\n 'mu/abs_mean': %.4f, 'std/mean': %.4f, 'std/min': %.4f, 'std/max': %.4f,\n 'grad_norm': %.4f}" %
                 (cos, nmse(rr, cos), rr, .5 * (1.57 * mu ** 2 + sd ** 2 - 1 - 2 * math.log(sd)), 1.9 * nmse(rr, cos), mu, sd, sd * .81, sd * 1.27, .5 * math.exp(rng.normal(0, .12))))
        if s % 2500 == 0:
            L.append("eval {'shoot/mse_rel': %.4f, 'sample/fid': %.1f,\n      'sample/clip_score': %.4f}" % (sh, 231 + rng.normal(0, 7), .182 + rng.normal(0, .002)))
    return put(d, "run17.log", L)


@case("a", "Markdown sanity-check report", "vae_roundtrip",
      "Check of the autoencoder before training: PSNR of decode(encode(x)) 12-15 dB on every image although the latents have mean 0 and std 1; decoding with or without the scale factor changes nothing for the better.")
def af_md_vae(d, rng):
    rows = []
    for i in range(10):
        p = 13.6 + rng.normal(0, .8)
        rows.append(f"| {['cat','bus','street','soup','lamp','beach','dog','tower','text','face'][i]}.jpg | {rng.normal(0.01, .03):+.3f} | {1.0 + rng.normal(0, .05):.3f} | {-4.1 + rng.normal(0, .3):.2f} | {4.2 + rng.normal(0, .3):.2f} | {p:.2f} |")
    T = "\n".join(rows)
    txt = f"""# Pre-flight check, autoencoder stage

Script: `tools/preflight.py --stage vae --n 10 --res 256`  
Checkpoint: `vae_ft_e12.safetensors`, fp32, CUDA 12.1

Input images are in [-1, 1] (min -1.000, max 1.000, mean -0.06).
`z = vae.encode(x).latent_dist.sample() * 0.18215`

| image | z mean | z std | z min | z max | PSNR decode(z) [dB] |
|---|---|---|---|---|---|
{T}

Average PSNR = 13.6 dB, average LPIPS = 0.61.

Second pass, to rule out the factor:

- decode(z / 0.18215): PSNR = 13.6 dB (this is the documented call)
- decode(z): PSNR = 10.9 dB
- decode(z * 0.18215): PSNR = 9.7 dB

Reconstructions are recognisable in colour only. Latent statistics are as in the released model (std 0.98 there).
Text encoder and transformer were not looked at today.
"""
    return put(d, "preflight_vae.md", txt)


@case("a", "diffusers/accelerate console with tqdm", "condition_unused",
      "Field is trained (loss 0.73 -> 0.40, cos 0.74), but validation loss with shuffled captions and with empty captions equals the true one to the fourth digit at every evaluation.")
def af_diffusers_cond(d, rng):
    out = []
    c = Clock("2025-08-14 12:02:11", rng)
    P = lambda: c.f("%m/%d/%Y %H:%M:%S") + " - INFO - __main__ - "
    out.append(P() + "***** Running training *****\n" + P() + "  Num examples = 118287\n" + P() + "  Num Epochs = 3\n" + P() + "  Instantaneous batch size per device = 16\n" + P() + "  Total optimization steps = 8000\n")
    line = ""
    for s in range(10, 8001, 10):
        c.tick(6.1)
        base = pw(s, .75, .33, 900, .8)
        line += "\r" + tq("Steps", s, 8000, s * .61, f"lr=1e-5, step_loss={base * math.exp(rng.normal(0, .11)):.3g}")
        if s % 500 == 0:
            e = base * 1.01 + rng.normal(0, .002)
            cos = .79 - .42 * math.exp(-s / 1700) + rng.normal(0, .003)
            out.append(line + "\n")
            line = ""
            out.append(P() + f"validation step={s} val_loss={e:.4f} val_loss_shuffled_captions={e + rng.normal(0, .00012):.4f} val_loss_empty_caption={e + rng.normal(0, .00012):.4f} val_cos={cos:.4f} cond_gain_cos={rng.normal(0, .00015):+.5f}\n")
    return put(d, "train_console.log", "".join(out) + line + "\n")


@case("a", "debug print-out", "weak_field",
      "Single-step alignment: cosine 0.03-0.07 with |u|/|u*| about 0.27 at six t; shooting error 0.96 of MSE(x0,x1), halves little with a gain of 3.7; VAE PSNR 30 dB, means of prompts 0.4 (control 1.0), schedule sum 1.0: the field is what is weak.")
def af_dbg_field(d, rng):
    L = ["$ python tools/dbg_align.py --ckpt out/e3_i31000 --n 32", "loaded 31000 iters, ema off, fp32", "",
         "[dbg/vae] 32 imgs  z mean -0.011 std 1.02  psnr 30.14 dB", "[dbg/text] mean-vs-mean cos: cat|car 0.412  cat|apple 0.377  car|apple 0.395  (control cat|cat 1.000)",
         "[dbg/sched] N=50 uniform, sum dt 1.0000, min 0.0200 max 0.0200", ""]
    for t in (.05, .2, .4, .6, .8, .95):
        L.append(f"[dbg/align] t={t:.2f}  cos(u,u*)={.052 - .03 * t + rng.normal(0, .004):.3f}  |u|/|u*|={.272 + rng.normal(0, .006):.3f}  |u|={.272 * 1.41:.3f}  |u*|={1.41 + rng.normal(0, .01):.3f}")
    L += ["", f"[dbg/shoot] N=50  gain=1.0  mse(x_end,x1)=1.934  mse(x0,x1)=2.011  rel=0.962", f"[dbg/shoot] N=100 gain=1.0  mse(x_end,x1)=1.931  mse(x0,x1)=2.011  rel=0.960", f"[dbg/shoot] N=200 gain=1.0  mse(x_end,x1)=1.930  mse(x0,x1)=2.011  rel=0.960",
          f"[dbg/shoot] N=100 gain=3.7  mse(x_end,x1)=1.803  mse(x0,x1)=2.011  rel=0.897",
          "[dbg/teacher] euler with the exact field: N=10 2.1e-13  N=50 2.3e-13  N=100 2.2e-13", "", "saved grids to dbg/align_31000/"]
    return put(d, "dbg_align.txt", L)


@case("a", "German console log", "wrong_target",
      "Eval cosine of the prediction against x1-x0 goes to -0.93 and nmse to 3.6 while the training loss falls: the learned quantity has the opposite sign.")
def af_german_sign(d, rng):
    L = ["Konfiguration: Fluss-Transformer 310M, Stapelgröße 64, Lernrate 1e-4, Genauigkeit bf16", "Beginne Training ..."]
    for s in range(100, 20001, 100):
        c = -.93 + .93 * math.exp(-s / 2300) + rng.normal(0, .006)
        r = .94 - .6 * math.exp(-s / 2500) + rng.normal(0, .006)
        L.append(f"Schritt {s}/20000 | Verlust {1.95 * nmse(r, -c) * math.exp(rng.normal(0, .02)):.4f} | cos(v, x1-x0) {c:.4f} | nmse {nmse(r, c):.4f} | |v|/|v*| {r:.3f} | Gradientennorm {.55 * math.exp(rng.normal(0, .12)):.3f} | Lernrate {1e-4:.1e}")
        if s % 5000 == 0:
            L.append(f"Prüfpunkt gespeichert: ausgabe/modell_{s}.pt")
    return put(d, "training.log", L)


@case("a", "ClearML scalars JSON export", "moving_target",
      "loss/flow falls from 1.6 to 0.0006, but the target norm falls with it (58 -> 1.2) and |z0-z1| too; nmse stays at 0.55, FID stays at 300: z0 is pulled onto z1 through the target.")
def af_clearml_moving(d, rng):
    x = list(range(0, 15001, 50))
    s = np.array(x)
    n = len(x)
    vn = 1.1 + 57 * np.exp(-s / 2100) * ln(rng, n, .02)
    nm = .55 + .4 * np.exp(-s / 600) + rng.normal(0, .012, n)
    fl = nm * vn ** 2 / 2048
    z1 = 45.1 + rng.normal(0, .3, n)
    z0 = 45.0 + rng.normal(0, .3, n)
    xe = list(range(0, 15001, 1000))
    fid = [r_(302 + rng.normal(0, 6), 2) for _ in xe]
    S = lambda nme, xs, ys: {nme: {"name": nme, "x": xs, "y": ys}}
    J = {"loss": S("flow", x, [g_(v, 6) for v in fl]), "norm": {**S("v_target", x, [r_(v, 3) for v in vn]), **S("z0", x, [r_(v, 3) for v in z0]), **S("z1", x, [r_(v, 3) for v in z1])},
         "flow": S("nmse", x, [r_(v) for v in nm]), "lr": S("lr", x, [1e-4] * n), "eval": {**S("fid", xe, fid), **S("clip_score", xe, [r_(.17 + rng.normal(0, .002)) for _ in xe])}}
    return put(d, "scalars.json", json.dumps(J))


@case("a", "debug prints in the training loop", "time_sampling",
      "Config says uniform timesteps over 1000, the printed batches have t in 0..249 with mean 125 and std 72.")
def af_dbg_t(d, rng):
    L = ["noise scheduler: DDPM linear, num_train_timesteps=1000, timestep_sampling=uniform", "train: 40 images / batch 64 / T=1000"]
    for s in range(0, 6000, 20):
        t = rng.integers(0, 250, 64)
        ls = pw(s, .9, .28, 300, .8) * math.exp(rng.normal(0, .06))
        L.append(f"[dbg] it {s:5d} t: min={t.min()} max={t.max()} mean={t.mean():.1f} std={t.std():.1f} | noise mean={rng.normal(0, .002):+.4f} std={1 + rng.normal(0, .001):.4f} | loss {ls:.4f}")
    L[1] = "train: 41230 images / batch 64"
    return put(d, "stdout.txt", L)


@case("a", "guided-diffusion logger tables", "input_range",
      "x_start statistics in the logger: min 0, max 255, mean 117, std 70: pixels are not scaled to -1..1.")
def af_gd_range(d, rng):
    L = ["Logging to /tmp/openai-2025-03-30-21-14-07-118273", "creating model and diffusion...", "creating data loader...", "training..."]
    for k in range(0, 130):
        s = k * 100
        ls = pw(s, 1.02, .71, 2500, .8)
        q = [ls * f * math.exp(rng.normal(0, .03)) for f in (1.25, 1.04, .92, .8)]
        row = {"grad_norm": .9 * math.exp(rng.normal(0, .15)), "loss": np.mean(q), "loss_q0": q[0], "loss_q1": q[1], "loss_q2": q[2], "loss_q3": q[3], "lr": 1e-4, "mse": np.mean(q), "param_norm": 312 + s * .002, "samples": (s + 1) * 128, "step": s,
               "x_start_max": 255, "x_start_mean": 117 + rng.normal(0, 2.4), "x_start_min": 0, "x_start_std": 69.8 + rng.normal(0, 1.1)}
        L.append("-" * 28)
        for a, v in row.items():
            L.append(f"| {a:<12} | {f'{v:.3g}':<9} |")
        L.append("-" * 28)
    return put(d, "log.txt", L)


@case("a", "W&B history JSON lines", "train_infer_mismatch",
      "One-step cos 0.87 and nmse 0.25, std 0.98, but the endpoint error does not fall with K: 0.72 @8, 0.76 @16, 0.81 @32, 0.86 @64, over the whole run.")
def af_wb_mismatch(d, rng):
    rows = []
    for s in range(0, 18001, 60):
        cos = .875 - .62 * math.exp(-s / 2100) + rng.normal(0, .004)
        r = .9 - .5 * math.exp(-s / 2000) + rng.normal(0, .006)
        o = {"_step": s, "_timestamp": 1743000000 + s * .6, "train/loss": r_(1.9 * nmse(r, cos), 5), "train/flow_cos": r_(cos), "train/flow_nmse": r_(nmse(r, cos)), "train/speed_ratio": r_(r), "train/std_mean": r_(.98 + rng.normal(0, .004)), "train/mu_abs_mean": r_(.52 + rng.normal(0, .005)), "train/lr": 1e-4, "train/grad_norm": r_(.41 * math.exp(rng.normal(0, .13)))}
        if s and s % 1500 == 0:
            b = [.722, .763, .811, .858]
            for K, v in zip((8, 16, 32, 64), b):
                o[f"eval/endpt_rmse@{K}"] = r_(v + rng.normal(0, .006))
            o["eval/fid"] = r_(118 + rng.normal(0, 4), 2)
        rows.append(o)
    return jl(d, "wandb-history.jsonl", rows)


@case("a", "sampler trace (debug prints)", "bf16_rounding",
      "In bfloat16 |x|=0.7891 is frozen for 100 steps although |v|*dt is 0.0047 per step; the same trace in float32 moves from 0.789 to 0.93.")
def af_trace_bf16(d, rng):
    L = ["== sample(prompt='a lighthouse at dusk', steps=100, dtype=torch.bfloat16) =="]
    for k in range(100):
        x = .7891 if k < 71 else .7930
        L.append(f"k={k:02d} t={k / 100:.2f} |x|={x:.4f} |v|={.4668 if k % 7 else .4688:.4f} dt={.01:.4f}")
    L.append("== sample(prompt='a lighthouse at dusk', steps=100, dtype=torch.float32) ==")
    x = .7889
    for k in range(100):
        v = .4671 - .00021 * k
        L.append(f"k={k:02d} t={k / 100:.2f} |x|={x:.4f} |v|={v:.4f} dt={.01:.4f}")
        x += .0009 + .00001 * k
    return put(d, "trace.txt", L)
