from lib import *


@case("b", "SimpleTuner console with tqdm", "none",
      "Flux LoRA at batch 1 in SimpleTuner: step_loss scatters between 0.1 and 1.2, grad_absmax 0.01-0.3, constant lr after warm-up; typical of batch 1, healthy.")
def bh_st_flux(d, rng):
    c = Clock("2025-09-12 21:00:32", rng)
    out = f"{c.f('%Y-%m-%d %H:%M:%S')},104 [INFO] Loading base model: black-forest-labs/FLUX.1-dev\n{c.f('%Y-%m-%d %H:%M:%S')},998 [INFO] ***** Running training *****\n"
    for s in range(1, 1201):
        t = 1 / (1 + math.exp(-rng.normal(0, 1)))
        x = (.34 + .42 * (t - .45) ** 2 * 3) * math.exp(rng.normal(0, .28))
        out += "\r" + tq(f"Epoch {1 + (s - 1) // 60}/20, Steps", s, 1200, s * 3.1, f"grad_absmax={.05 * math.exp(rng.normal(0, .7)):.3g}, lr={1e-4 * min(1, s / 100):.3g}, step_loss={x:.3g}")
        if s % 400 == 0:
            c.tick(1240)
            out += f"\n{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} [INFO] Running validations for step {s}\n"
    return put(d, "train.log", out + "\n")


@case("b", "OneTrainer TensorBoard events", "none",
      "OneTrainer tags: loss/train_step very noisy, smooth_loss/train_step slightly falling, ema_decay rising to 0.999 as designed. Healthy.")
def bh_onetrainer(d, rng):
    sc = []
    sm = None
    for s in range(1, 3001):
        x = pw(s, .115, .088, 900, .8) * math.exp(rng.normal(-.2, .65))
        sm = x if sm is None else .99 * sm + .01 * x
        sc += [("loss/train_step", s, x, s * .8), ("smooth_loss/train_step", s, sm, s * .8)]
        if s % 10 == 0:
            sc += [("lr/transformer", s, 3e-4 * min(1, s / 200), s * .8), ("ema_decay", s, min(.999, (1 + s) / (10 + s)), s * .8)]
    tb_write(d, "tensorboard/2025-06-11_20-14-03/events.out.tfevents.1749672843.DESKTOP-9.1204.0", sc, wall0=1749672843.0)
    return "tensorboard"


@case("b", "REPA console with tqdm", "none",
      "REPA: denoising loss falls 0.99 -> 0.87, proj_loss is negative (-0.05 -> -0.55) as it is a negative cosine; grad_norm falls. Healthy.")
def bh_repa(d, rng):
    out = "[\x1b[34m2025-01-30 08:10:22\x1b[0m] Experiment directory created at exps/sit-b-dinov2-b-enc8\n[\x1b[34m2025-01-30 08:10:31\x1b[0m] SiT Parameters: 136,810,528\n"
    for s in range(20, 12001, 20):
        x = pw(s, 1.03, .845, 700, .7) * math.exp(rng.normal(0, .011))
        p = -.58 + .55 * math.exp(-s / 2600) + rng.normal(0, .006)
        g = pw(s, 1.9, .24, 300, .9) * math.exp(rng.normal(0, .12))
        out += "\r" + tq("Steps", s, 400000, s * .29, f"grad_norm={g:.3g}, loss={x:.4g}, proj_loss={p:.4g}")
    out += "\n[\x1b[34m2025-01-30 09:09:12\x1b[0m] Saved checkpoint to exps/sit-b-dinov2-b-enc8/checkpoints/0012000.pt\n"
    return put(d, "stdout.log", out)


@case("b", "LightningDiT logger", "none",
      "LightningDiT: one line at step 17600 is 2.8 times the level, the next line is back; the rest is a smooth decay with falling validation loss. Healthy.")
def bh_ldit(d, rng):
    c = Clock("2025-04-06 12:30:00", rng)
    A = lambda t: f"[\x1b[34m{c.f('%Y-%m-%d %H:%M:%S')}\x1b[0m] {t}"
    L = [A("LightningDiT Parameters: 130.57M"), A("Use lognorm sampling: True")]
    for s in range(100, 50001, 100):
        c.tick(14)
        b = pw(s, .71, .402, 2200, .75)
        x = b * math.exp(rng.normal(0, .009)) * (2.8 if s == 17600 else 1)
        L.append(A(f"(step={s:07d}) Train Loss: {x:.4f}, Train Steps/Sec: {7.1 + rng.normal(0, .06):.2f}"))
        if s % 5000 == 0:
            L.append(A(f"Validation Loss: {b * 1.004 + rng.normal(0, .001):.4f}"))
    return put(d, "log.txt", L)


@case("b", "HF Trainer printed dicts (Axolotl-like)", "none",
      "LoRA fine-tune: warm-up, cosine to 0, grad_norm rises from 0.08 to 0.3 (LoRA B starts at zero) and stays there, loss and eval_loss fall. Healthy.")
def bh_hf_lora(d, rng):
    L = ["[2025-08-18 09:03:44,120] [INFO] [axolotl.train.train:141] [PID:2204] [RANK:0] Starting trainer..."]
    N = 2400
    for s in range(10, N + 1, 10):
        x = pw(s, .69, .41, 300, .8) * math.exp(rng.normal(0, .04))
        g = (.3 - .22 * math.exp(-s / 250)) * math.exp(rng.normal(0, .14))
        L.append("{'loss': %s, 'grad_norm': %r, 'learning_rate': %r, 'epoch': %.2f}" % (f"{x:.4f}", g_(g, 14), g_(float(cosine(s, N, 1e-4, 120)), 12), s / 800))
        if s % 200 == 0:
            L.append("{'eval_loss': %.6f, 'eval_runtime': 22.1, 'eval_samples_per_second': 45.2, 'epoch': %.2f}" % (pw(s, .69, .41, 300, .8) * 1.03 + rng.normal(0, .002), s / 800))
    L.append("{'train_runtime': 5711.2, 'train_samples_per_second': 13.4, 'train_steps_per_second': 0.42, 'train_loss': 0.4611, 'epoch': 3.0}")
    return put(d, "run.out", L)


@case("b", "fairseq JSON log", "none",
      "fairseq fp16: four overflow notes in the first updates until the scale is 8, growing to 32 later; loss falls, valid loss follows. Healthy.")
def bh_fairseq(d, rng):
    c = Clock("2025-02-19 14:00:00", rng)
    T = lambda: c.f("%Y-%m-%d %H:%M:%S")
    L = [f"{T()} | INFO | fairseq_cli.train | training on 8 devices (GPUs/TPUs)", f"{T()} | INFO | fairseq.trainer | begin training epoch 1"]
    sc = 128.0
    for _ in range(4):
        sc /= 2
        c.tick(2)
        L.append(f"{T()} | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {sc}")
    nu = 0
    for e in range(1, 11):
        for u in range(50, 1001, 50):
            nu += 50
            c.tick(25)
            if nu in (4000, 8000):
                sc *= 2
            b = pw(nu, 6.1, 2.35, 300, .7)
            L.append(f"{T()} | INFO | train_inner | " + json.dumps({"epoch": e, "update": round(e - 1 + u / 1000, 3), "loss": f"{b * math.exp(rng.normal(0, .012)):.3f}", "ppl": f"{2 ** b:.2f}", "num_updates": str(nu), "lr": f"{5e-4 * min(nu / 1000, (1000 / nu) ** .5):.6g}", "gnorm": f"{pw(nu, 3, .55, 300, .9) * math.exp(rng.normal(0, .1)):.3f}", "clip": "0", "loss_scale": f"{sc:g}", "wall": str(int(c.el))}))
        L.append(f"{T()} | INFO | valid | " + json.dumps({"epoch": e, "valid_loss": f"{b * 1.02:.3f}", "valid_ppl": f"{2 ** (b * 1.02):.2f}", "valid_num_updates": str(nu)}))
    return put(d, "fairseq.log", L)


@case("b", "torchtitan console, four ranks interleaved", "none",
      "bf16 pre-training, four ranks print the same line; grad_norm above the clip value at the start, then 0.4; loss falls. Duplicated steps are the ranks. Healthy.")
def bh_titan(d, rng):
    c = Clock("2025-10-10 10:10:10", rng)
    L = []
    for s in [1] + list(range(10, 6001, 10)):
        c.tick(9)
        x = pw(s, 2.05, .61, 200, .8) * math.exp(rng.normal(0, .015))
        g = (.4 + 6 * math.exp(-s / 120)) * math.exp(rng.normal(0, .14))
        for r in rng.permutation(4):
            L.append(f"[rank{r}]:[titan] {c.f('%Y-%m-%d %H:%M:%S')},{c.ms} - root - INFO - \x1b[31mstep: {s:>2}  \x1b[32mloss: {x:>8.5f}  \x1b[38;2;180;60;0mgrad_norm: {g:>7.4f}  \x1b[33mmemory: {58.2 + .1 * r:.2f}GiB(73.4%)  \x1b[34mtps: {8011 + rng.integers(-50, 50):,}  \x1b[36mtflops: 190.{rng.integers(10, 99)}  \x1b[35mmfu: 19.{rng.integers(10, 99)}%\x1b[39m")
    return put(d, "stdout_all.log", L)


@case("b", "NeMo / Lightning progress bar", "none",
      "NeMo progress bar with carriage returns: reduced_train_loss falls 1.3 -> 0.56, val_loss with it. Healthy.")
def bh_nemo(d, rng):
    out = "[NeMo I 2025-03-14 07:00:01 exp_manager:396] Experiments will be logged at /results/t2i\n"
    v = None
    for s in range(10, 8001, 10):
        b = pw(s, 1.36, .51, 300, .85)
        if s % 1000 == 0:
            v = b * 1.01 + rng.normal(0, .003)
            out += f"\nEpoch 0, global step {s}: 'val_loss' reached {v:.5f} (best {v:.5f}), saving model to '/results/t2i/checkpoints/t2i--val_loss={v:.2f}-step={s}.ckpt' as top 3\n"
        vl = f", val_loss={v:.3f}" if v else ""
        out += f"\rEpoch 0: :{100 * s // 8000:>4}%|{bar(s, 8000)}| {s}/8000 [{hms(s * .62)}<{hms((8000 - s) * .62)}, v_num=1, reduced_train_loss={b * math.exp(rng.normal(0, .03)):.3f}, global_step={s - 1:.1f}, consumed_samples={s * 256:.1f}, train_step_timing in s=0.62{rng.integers(0, 9)}{vl}]"
    return put(d, "nemo.txt", out + "\n`Trainer.fit` stopped: `max_steps=8000` reached.\n")


@case("b", "W&B chart CSV export with two runs", "none",
      "Chart export with two runs (one shorter, its cells are empty at the end) and __MIN/__MAX columns; both losses fall. The empty cells only mean that run ended earlier. Healthy.")
def bh_chart2(d, rng):
    H = ["Step"]
    for r in ("sit-l-lr1e-4", "sit-l-lr2e-4"):
        H += [f"{r} - train/loss", f"{r} - train/loss__MIN", f"{r} - train/loss__MAX"]
    rows = []
    for s in range(0, 30001, 50):
        a = pw(s, .97, .792, 1600, .8) * math.exp(rng.normal(0, .006))
        b = pw(s, .97, .785, 1300, .8) * math.exp(rng.normal(0, .006))
        A = [f"{a:.7f}", f"{a * .993:.7f}", f"{a * 1.008:.7f}"] if s <= 22000 else ["", "", ""]
        rows.append([s] + A + [f"{b:.7f}", f"{b * .993:.7f}", f"{b * 1.008:.7f}"])
    return put_csv(d, "wandb_export_2025-04-30T11_20_14.311+02_00.csv", H, rows, quote=True)


@case("b", "Composer console log", "none",
      "Warm restarts of the LR every 4000 batches (scheduler named in the config): the loss rises by a few per cent for a short time and falls below the earlier level each time. Healthy.")
def bh_composer(d, rng):
    L = ["******************************", "Config:", "scheduler: CosineAnnealingWarmRestartsScheduler(t_0=4000ba)", "******************************"]
    for s in range(20, 16001, 20):
        ph = (s - 1) % 4000
        b = pw(s, 1.1, .38, 800, .7)
        x = b * (1 + (.06 * math.exp(-ph / 300) if s > 4000 else 0)) * math.exp(rng.normal(0, .015))
        L += [f"[batch={s}/16000]:", f"\t Train time/batch: {s - 1}", f"\t Train loss/train/total: {x:.4f}", f"\t Train lr-DecoupledAdamW/group0: {2e-4 * .5 * (1 + math.cos(math.pi * ph / 4000)):.4e}", f"\t Train l2_norm/grad/global: {.42 * math.exp(rng.normal(0, .13)):.4f}"]
        if s % 2000 == 0:
            L += ["[Eval batch=10/10] Eval on eval data:", f"\t Eval metrics/eval/MeanSquaredError: {b * 1.015 + rng.normal(0, .002):.4f}"]
    return put(d, "rank0.txt", L)


@case("b", "timm summary.csv", "none",
      "timm summary of an aesthetic/CLIP adapter: train_loss and eval_loss fall, eval_clip_score rises (larger is better) over 60 epochs. Healthy.")
def bh_timm(d, rng):
    rows = []
    for e in range(60):
        rows.append([e, f"{pw(e, .83, .36, 6, .9) * math.exp(rng.normal(0, .008)):.6f}", f"{pw(e, .8, .385, 6, .9) + rng.normal(0, .004):.6f}", f"{21.4 + 8.3 * (1 - math.exp(-e / 14)) + rng.normal(0, .09):.4f}", f"{float(cosine(e, 60, 5e-4, 5, 1e-6)):.8f}"])
    return put_csv(d, "summary.csv", ["epoch", "train_loss", "eval_loss", "eval_clip_score", "lr"], rows)


@case("b", "Comet metrics JSON export", "none",
      "Comet export (one record per metric and step) of a VAE with discriminator: rec and lpips fall, psnr rises, disc_loss hovers near 0.9, kl settles after rising from its start. Healthy.")
def bh_comet(d, rng):
    A = []
    t0 = 1746000000000
    for s in range(0, 12001, 60):
        on = s > 3000
        for k, v in (("train_rec_loss", pw(s, .29, .055, 500, .75) * math.exp(rng.normal(0, .05))), ("train_kl", pw(s, .5, 1.9, 700, 1.2) * math.exp(rng.normal(0, .015))), ("train_lpips", pw(s, .6, .13, 700, .7) * math.exp(rng.normal(0, .04))), ("train_disc_loss", .9 + rng.normal(0, .06) if on else 1.0), ("train_gen_loss", rng.normal(.05, .2) if on else 0.0)):
            A.append({"metricName": k, "metricValue": f"{v:.6g}", "timestamp": t0 + s * 700, "runContext": "train", "step": s, "epoch": s // 1500})
        if s % 1200 == 0:
            A.append({"metricName": "val_psnr", "metricValue": f"{pw(s, 17, 28.9, 1500, 1.1) + rng.normal(0, .08):.5g}", "timestamp": t0 + s * 700, "runContext": "validate", "step": s, "epoch": s // 1500})
    return put(d, "comet_metrics.json", json.dumps({"metrics": A}))


@case("b", "CompVis latent-diffusion testtube metrics.csv", "none",
      "LDM: single-step losses scatter by a factor of 4, val/loss_simple falls and val/loss_simple_ema starts behind and falls below it after a few epochs. Healthy EMA.")
def bh_ldm(d, rng):
    H = ["train/loss_simple_step", "train/loss_vlb_step", "train/loss_step", "global_step", "train/loss_simple_epoch", "val/loss_simple", "val/loss_vlb", "val/loss_simple_ema", "val/loss_vlb_ema", "epoch", "created_at"]
    rows = []
    t0 = datetime(2025, 11, 7, 6, 2, 10)
    per = 800
    for e in range(24):
        for k in range(49, per, 50):
            s = e * per + k
            x = pw(s, .6, .112, 700, .9) * math.exp(rng.normal(-.06, .36))
            rows.append([x, x * .0047, x, float(s), "", "", "", "", "", e, str(t0 + timedelta(seconds=s * .8))])
        b = pw((e + 1) * per, .6, .112, 700, .9)
        m = b * .965 + .25 * math.exp(-(e + 1) / 2.2)
        rows.append(["", "", "", float((e + 1) * per - 1), b * 1.005, b + rng.normal(0, .0015), b * .0048, m + rng.normal(0, .0008), m * .0048, e, str(t0 + timedelta(seconds=(e + 1) * per * .8))])
    return put_csv(d, "metrics.csv", H, rows)


@case("b", "diffusion-pipe console with eval lines", "none",
      "Short LoRA of a video model: 600 steps, eval loss a constant 0.02 above the training loss, both falling slowly. Healthy.")
def bh_dpipe(d, rng):
    L = ["[2025-08-25 17:40:02,114] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed Final Optimizer = AdamW8bitKahan"]
    for s in range(1, 601):
        b = pw(s, .142, .108, 150, .8)
        L.append(f"steps: {s} loss: {b * math.exp(rng.normal(0, .07)):.4f} iter time (s): {4.31 + rng.normal(0, .03):.3f} samples/sec: {.93 + rng.normal(0, .01):.3f}")
        if s % 100 == 0:
            L.append(f"Running eval\neval/loss: {b + .02 + rng.normal(0, .0006):.4f} step={s}\nSaving model to directory step{s}")
    return put(d, "terminal.txt", L)


@case("b", "LLaMA-Factory trainer_log.jsonl", "none",
      "Fine-tune from a good checkpoint, loss flat near 0.318; eval_loss is null in training records by design of this trainer and the closing 100 % record has loss null. Healthy.")
def bh_lf_flat(d, rng):
    rows = []
    N = 4000
    for s in range(10, N + 1, 10):
        t = {"epoch": r_(s / 1600, 2), "percentage": r_(100 * s / N, 2), "elapsed_time": hms(s * .9), "remaining_time": hms((N - s) * .9)}
        rows.append({"current_steps": s, "total_steps": N, "loss": r_(.321 * math.exp(rng.normal(0, .035)) - .006 * s / N), "eval_loss": None, "predict_loss": None, "reward": None, "learning_rate": g_(float(cosine(s, N, 1e-5, 100)), 8), **t})
        if s % 500 == 0:
            rows.append({"current_steps": s, "total_steps": N, "loss": None, "eval_loss": r_(.3242 - .007 * (1 - math.exp(-s / 1500)) + rng.normal(0, .0006), 5), "predict_loss": None, "reward": None, "learning_rate": None, **t})
    rows.append({"current_steps": N, "total_steps": N, "loss": None, "eval_loss": None, "predict_loss": None, "reward": None, "learning_rate": None, "epoch": 2.5, "percentage": 100.0, "elapsed_time": hms(N * .9), "remaining_time": "0:00:00"})
    return jl(d, "trainer_log.jsonl", rows)


@case("b", "logfmt lines", "none",
      "Recipe with a bounded head (std_range=0.30:0.55, anchor on, target detached, w_kl 1e-4 in the config line): KL share 2 %, std constant at 0.41 as configured; flow loss, cos and endpoint error improve. Healthy.")
def bh_logfmt(d, rng):
    L = ['ts=2025-11-03T09:00:00Z level=info msg=config head.std_range=0.30:0.55 head.anchor=true detach=target w_flow=1.0 w_kl=0.0001 lr=0.0002']
    t = datetime(2025, 11, 3, 9, 0, 30)
    for s in range(100, 20001, 100):
        t += timedelta(seconds=44)
        cos = .76 - .5 * math.exp(-s / 3000) + rng.normal(0, .004)
        r = .81 - .4 * math.exp(-s / 3000) + rng.normal(0, .005)
        gf = .47 * math.exp(rng.normal(0, .1))
        gk = .0094 * math.exp(rng.normal(0, .1))
        x = f"ts={t.strftime('%Y-%m-%dT%H:%M:%SZ')} level=info msg=step step={s} loss_flow={1.8 * nmse(r, cos):.5f} loss_kl={.512 + rng.normal(0, .003):.4f} grad_flow={gf:.5f} grad_kl={gk:.6f} grad_total={math.hypot(gf, gk):.5f} std_mean={.411 + rng.normal(0, .002):.4f} mu_abs={.66 + rng.normal(0, .003):.4f} cos={cos:.4f} nmse={nmse(r, cos):.4f} speed_ratio={r:.4f} lr=0.0002"
        if s % 2000 == 0:
            q = pw(s, 1.05, .41, 2500, 1.0)
            x += "".join(f" endpt_rmse_{K}={q * f + rng.normal(0, .002):.4f}" for K, f in ((8, 1.1), (16, 1.04), (32, 1.01), (64, 1.0))) + f" cond_gain_cos={.09 + rng.normal(0, .003):.4f}"
        L.append(x)
    return put(d, "trainer.logfmt", L)


@case("b", "BasicSR logger", "none",
      "Decoder fine-tune in BasicSR format with thousands separators: l_pix and l_percep fall, l_g_gan hovers, psnr rises 26.9 -> 30.4. Healthy.")
def bh_basicsr(d, rng):
    c = Clock("2025-06-28 23:10:00", rng)
    L = []
    for s in range(200, 60001, 200):
        c.tick(96)
        x = pw(s, .055, .0191, 3000, .75) * math.exp(rng.normal(0, .06))
        L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} INFO: [VaeDe..][epoch:{s // 2300:>3}, iter:{s:>8,}, lr:(1.000e-04,)] [eta: {hms((60000 - s) * .48)}, time (data): 0.480 (0.003)] l_g_pix: {x:.4e} l_g_percep: {x * 19:.4e} l_g_gan: {.081 + rng.normal(0, .008):.4e} l_d_real: {.62 + rng.normal(0, .05):.4e} out_d_real: {rng.normal(.2, .3):.4e} ")
        if s % 5000 == 0:
            L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} INFO: Validation div2k\n\t # psnr: {pw(s, 25.6, 31, 9000, 1.0) + rng.normal(0, .04):.4f}\tBest: {pw(s, 25.6, 31, 9000, 1.0):.4f} @ {s} iter\n")
    return put(d, "train_VaeDec.log", L)


@case("b", "debug note, all checks pass", "none",
      "A debugging session in which every check passes: VAE 29.9 dB, scales equal, prompt means 0.31-0.45 with control, one-step cos 0.7-0.8, shooting 0.19, endpoint error falls with K. Healthy.")
def bh_note(d, rng):
    al = "\n".join(f"t={t:.2f}: cos(v_pred, v_tgt) = {c + rng.normal(0, .005):.3f}, ||pred||/||tgt|| = {r + rng.normal(0, .006):.3f}" for t, c, r in ((.1, .70, .81), (.37, .78, .85), (.63, .80, .87), (.9, .72, .83)))
    txt = f"""Check list before the long run, 11 Oct, ckpt 18k

1. autoencoder
   z range [-4.31, 4.77], mean -0.008, std 1.01, PSNR = 29.9 dB
   decode(z) sharp, decode(z * sf) blurred, so the wrapper already scales

2. scales, one batch of 32
   ||z0|| = 63.8   ||z1|| = 65.1   ||x_t|| = 52.9   ||v*|| = 91.0

3. text, cosine of the means
   cat / car   0.34
   cat / apple 0.45
   car / apple 0.31
   cat / cat   1.00 (control)
   samples of one prompt against each other: 0.30, so do not look at samples

4. one step
{al}

5. shooting x0 -> x1, 50 Euler steps, fp32
   MSE(z_end, x1) = 0.381, MSE(x0, x1) = 2.03, relative 0.19

6. endpoint RMSE
   K=8 0.668, K=16 0.641, K=32 0.622, K=64 0.617

7. exact field: N=5 1.1e-13, N=20 1.0e-13, N=100 1.3e-13 (fp32 state)

8. captions shuffled: cos drops by 0.10

Loss so far: 2.02 (step 0), 0.96 (5k), 0.83 (10k), 0.77 (18k). lr 1e-4, grad norm 0.4.
Going on with the long run.
"""
    return put(d, "checklist.txt", txt)


@case("b", "PaddlePaddle / ppdiffusers console", "none",
      "Pre-empted twice and resumed from the last checkpoint, so some hundred steps appear twice; the loss continues at its level each time. Healthy.")
def bh_paddle(d, rng):
    c = Clock("2025-07-15 05:00:00", rng)
    P = lambda: f"[{c.f('%Y-%m-%d %H:%M:%S')},{c.ms}] [    INFO] - "
    L = [P() + "***** Running training *****", P() + "  Total optimization steps = 20,000"]

    def leg(a, b):
        for s in range(a, b + 1, 25):
            c.tick(16)
            L.append(P() + f"loss: {pw(s, .93, .171, 600, .95) * math.exp(rng.normal(0, .035)):.6f}, learning_rate: 0.0001, global_step: {s}, interval_runtime: {16 + rng.normal(0, .2):.4f}, interval_samples_per_second: {100 + rng.normal(0, .8):.4f}")
    leg(25, 7350)
    L.extend([P() + "Loading model from output/checkpoint-7000.", P() + "  Continuing training from global step 7000"])
    leg(7025, 14625)
    L.extend([P() + "Loading model from output/checkpoint-14000.", P() + "  Continuing training from global step 14000"])
    leg(14025, 20000)
    return put(d, "workerlog.0", L)


@case("b", "lucidrains-style tqdm description", "none",
      "Smoke test of the toy trainer: 300 steps, 'loss: x:' in front of the bar, 0.9 -> 0.09. Few metrics, healthy.")
def bh_lucid(d, rng):
    out = ""
    for s in range(1, 301):
        x = pw(s, 1.02, .055, 25, 1.1) * math.exp(rng.normal(0, .1))
        out += "\r" + tq(f"loss: {x:.4f}", s, 300, s * .17)
    return put(d, "toy.log", out + "\ntraining complete\n")
