from lib import *


@case("b", "HF Trainer printed dicts (Axolotl-like)", "nan_loss",
      "HF Trainer with the NaN filter on: from step 1830 on grad_norm is nan and loss is printed as 0.0, eval_loss is nan. Before that an ordinary decay 1.0 -> 0.52.")
def bf_hf_nan(d, rng):
    L = ["[2025-05-09 10:22:31,883] [INFO] [axolotl.train.train:141] [PID:8812] [RANK:0] Starting trainer..."]
    for s in range(10, 3001, 10):
        ep = s / 1250
        bad = s >= 1830
        lr = float(cosine(s, 5000, 2e-4, 100))
        x = pw(s, 1.05, .44, 200, .8) * math.exp(rng.normal(0, .03))
        g = repr(g_(.61 * math.exp(rng.normal(0, .15)), 12)) if not bad else "nan"
        L.append("{'loss': %s, 'grad_norm': %s, 'learning_rate': %s, 'epoch': %s}" % ("0.0" if bad else f"{x:.4f}".rstrip("0"), g, repr(g_(lr, 12)), f"{ep:.2f}"))
        if s % 500 == 0:
            L.append("{'eval_loss': %s, 'eval_runtime': 38.1142, 'eval_samples_per_second': 26.2, 'eval_steps_per_second': 3.28, 'epoch': %s}" % ("nan" if bad else f"{pw(s, 1.05, .44, 200, .8) * 1.02:.6f}", f"{ep:.2f}"))
        if s % 50 == 0:
            L.append("\r" + tq("", s, 5000, s * 1.9))
    return put(d, "axolotl.log", L)


@case("b", "torchtitan console", "divergence",
      "FLUX-like FM pre-training in torchtitan. Loss falls 1.5 -> 0.58 (step 5200) and then climbs over thousands of steps to 0.95; grad_norm only rises from 0.5 to 1.3, no jump.")
def bf_titan_div(d, rng):
    c = Clock("2025-09-30 01:14:55", rng)
    L = [f"[rank0]:[titan] {c.f('%Y-%m-%d %H:%M:%S')},201 - root - INFO - Starting job: flux_schnell_256 from scratch", f"[rank0]:[titan] {c.f('%Y-%m-%d %H:%M:%S')},644 - root - INFO - Training starts at step 1, with local batch size 32, global batch size 256, total steps 30000 (warmup 1000)."]
    for s in [1] + list(range(20, 14001, 20)):
        c.tick(22)
        r = max(0, (s - 5200) / 8800)
        x = (pw(s, 1.52, .52, 350, .9) + .39 * r ** 1.2) * math.exp(rng.normal(0, .016))
        g = (.5 + .8 * r + 2.5 * math.exp(-s / 150)) * math.exp(rng.normal(0, .12))
        L.append(f"[rank0]:[titan] {c.f('%Y-%m-%d %H:%M:%S')},{c.ms} - root - INFO - step: {s:>2}  loss: {x:>8.5f}  grad_norm: {g:>7.4f}  memory: 61.32GiB(77.39%)  tps: {9811 + rng.integers(-60, 60):,}  tflops: 214.{rng.integers(10, 99)}  mfu: 21.{rng.integers(10, 99)}%")
        if s % 2000 == 0:
            v = pw(s, 1.52, .52, 350, .9) + .39 * r ** 1.2
            L.append(f"[rank0]:[titan] {c.f('%Y-%m-%d %H:%M:%S')},{c.ms} - root - INFO - validate step: {s}  loss: {v * 1.01 + rng.normal(0, .003):>8.5f}  memory: 63.10GiB(79.64%)  tps: 12,411")
    return put(d, "rank0_stdout.log", L)


@case("b", "LightningDiT logger", "loss_spikes",
      "LightningDiT: at step 31400 the loss jumps from 0.305 to 0.56 within one line and stays at about 0.50 to the end (60000); LR unchanged, no resume.")
def bf_ldit_jump(d, rng):
    c = Clock("2025-03-19 16:00:01", rng)
    A = lambda t: f"[\x1b[34m{c.f('%Y-%m-%d %H:%M:%S')}\x1b[0m] {t}"
    L = [A("LightningDiT Parameters: 675.32M"), A("Optimizer: AdamW, lr=0.0002, beta2=0.95"), A("Use lognorm sampling: True"), A("Use cosine loss: True")]
    for s in range(100, 60001, 100):
        c.tick(36)
        x = pw(s, .62, .285, 2500, .8)
        if s >= 31400:
            x = .497 + .065 * math.exp(-(s - 31400) / 900) - .006 * (s - 31400) / 28600
        L.append(A(f"(step={s:07d}) Train Loss: {x * math.exp(rng.normal(0, .008)):.4f}, Train Steps/Sec: {2.8 + rng.normal(0, .02):.2f}, LR: 0.000200"))
        if s % 20000 == 0:
            L.append(A(f"Saved checkpoint to output/lightningdit_xl_vavae_f16d32/checkpoints/{s:07d}.pt"))
    return put(d, "log.txt", L)


@case("b", "SimpleTuner console with tqdm", "lr_too_high",
      "lr 0.02 for AdamW: step_loss oscillates between 0.3 and 20 without a trend, grad_absmax restless up to hundreds; after the step decay to 2e-4 at step 3500 the oscillation ends at once and the loss falls.")
def bf_st_lr(d, rng):
    c = Clock("2025-02-26 20:10:09", rng)
    out = f"{c.f('%Y-%m-%d %H:%M:%S')},511 [INFO] Moving the transformer to GPU in bfloat16 precision.\n{c.f('%Y-%m-%d %H:%M:%S')},730 [INFO] Learning rate: 0.02, scheduler: multistep(3500, gamma 0.01), optimizer: adamw_bf16\n"
    z = 0.
    for s in range(5, 5001, 5):
        if s < 3500:
            z = .55 * z + rng.normal(0, .85)
            x = 2.1 * math.exp(z * .95)
            x = min(max(x, .28), 26)
            g = min(9 * math.exp(.8 * z + rng.normal(0, .9)), 700)
            lr = .02
        else:
            x = pw(s - 3500, 1.15, .46, 90, .9) * math.exp(rng.normal(0, .1))
            g = .12 * math.exp(rng.normal(0, .3))
            lr = .0002
        out += "\r" + tq(f"Epoch {1 + (s - 1) // 250}/20, Steps", s, 5000, s * 2.31, f"grad_absmax={g:.3g}, lr={lr:g}, step_loss={x:.3g}")
        if s % 500 == 0:
            c.tick(1150)
            out += f"\n{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} [INFO] Checkpoint output/models/checkpoint-{s} saved.\n"
    return put(d, "simpletuner.log", out + "\n")


@case("b", "BasicSR logger", "lr_restart",
      "VAE decoder fine-tune. At iter 120,000 the LR goes from 1e-7 back to 4e-4; l_pix jumps 0.0215 -> 0.041, levels off at 0.031 and val psnr stays 2 dB below its best.")
def bf_basicsr_restart(d, rng):
    c = Clock("2025-08-02 04:00:13", rng)
    L = [f"{c.f('%Y-%m-%d %H:%M:%S')},014 INFO: Start training from epoch: 0, iter: 0"]
    for s in range(500, 200001, 500):
        c.tick(240)
        a = s < 120000
        k = s if a else s - 120000
        x = (pw(k, .062, .0185, 6000, .75) if a else pw(k, .0415, .0285, 5000, .6)) * math.exp(rng.normal(0, .045))
        lr = float(cosine(k, 120000, 2e-4, 0, 1e-7)) if a else float(cosine(k, 400000, 4e-4, 0, 1e-7))
        L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} INFO: [DecFT..][epoch:{s // 4100:>3}, iter:{s:>8,}, lr:({lr:.3e},)] [eta: {hms((200000 - s) * .48)}, time (data): 0.481 (0.004)] l_pix: {x:.4e} l_percep: {x * 21 * math.exp(rng.normal(0, .03)):.4e} ")
        if s % 10000 == 0:
            p = 29.9 - 3.2 * math.exp(-s / 30000) if a else 27.6 - .9 * math.exp(-k / 20000)
            L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} INFO: Validation coco5k\n\t # psnr: {p + rng.normal(0, .05):.4f}\tBest: {29.8 if s >= 120000 else p:.4f} @ {min(s, 120000)} iter\n")
    return put(d, "train_DecFT_20250802_040013.log", L)


@case("b", "HF model card with results table", "overfitting",
      "Results table of a model card: training loss 0.61 -> 0.11, validation loss has its minimum 0.437 at step 2000 and ends at 0.63.")
def bf_card(d, rng):
    L = ["---", "library_name: diffusers", "base_model: black-forest-labs/FLUX.1-dev", "tags:", "- text-to-image", "- lora", "- generated_from_trainer", "model-index:", "- name: flux-herbarium-lora", "  results: []", "---", "", "# flux-herbarium-lora", "",
         "This model is a fine-tuned version of FLUX.1-dev on a private data set of 640 scans.", "", "### Training hyperparameters", "", "- learning_rate: 0.0004", "- train_batch_size: 4", "- lr_scheduler_type: constant", "- num_epochs: 50", "- mixed_precision_training: bf16", "", "### Training results", "", "| Training Loss | Epoch   | Step | Validation Loss |", "|:-------------:|:-------:|:----:|:---------------:|"]
    for k in range(1, 33):
        s = k * 250
        tr = pw(s, .66, .07, 1500, 1.0) * math.exp(rng.normal(0, .03))
        va = .437 + .16 * math.exp(-s / 600) + .2 * max(0, (s - 2000) / 6000) ** 1.05 + rng.normal(0, .004)
        L.append(f"| {tr:<13.4f} | {s / 160:<7.4f} | {s:<4} | {va:<15.4f} |")
    L += ["", "### Framework versions", "", "- Transformers 4.46.3", "- Pytorch 2.5.1+cu121"]
    return put(d, "README.md", L)


@case("b", "fairseq JSON log", "periodic_memorisation",
      "The loss runs through the same saw-tooth in each of 16 epochs (rises from 0.33 to 0.62 within the epoch, falls back at the boundary): the shards come in a fixed, sorted order.")
def bf_fairseq_saw(d, rng):
    c = Clock("2025-01-21 11:44:01", rng)
    L = [f"{c.f('%Y-%m-%d %H:%M:%S')} | INFO | fairseq_cli.train | task: t2i_tokens (T2ITask)", f"{c.f('%Y-%m-%d %H:%M:%S')} | INFO | fairseq_cli.train | num. shared model params: 355,412,992", f"{c.f('%Y-%m-%d %H:%M:%S')} | INFO | fairseq.trainer | begin training epoch 1"]
    per = 1200
    for e in range(1, 17):
        for u in range(25, per + 1, 25):
            c.tick(14)
            f = u / per
            x = (.33 + .29 * f ** 1.4 + .02 * math.sin(9 * f)) * (1 - .008 * (e - 1)) + (.35 * math.exp(-u / 150) if e == 1 else 0)
            x *= math.exp(rng.normal(0, .022))
            nu = (e - 1) * per + u
            L.append(f"{c.f('%Y-%m-%d %H:%M:%S')} | INFO | train_inner | " + json.dumps({"epoch": e, "update": round(e - 1 + f, 3), "loss": f"{x:.3f}", "wps": f"{51230 + rng.normal(0, 300):.1f}", "ups": "1.78", "wpb": "28790", "bsz": "112", "num_updates": str(nu), "lr": f"{1e-4 * min(1, nu / 1000):.6g}", "gnorm": f"{.62 * math.exp(rng.normal(0, .12)):.3f}", "clip": "0", "loss_scale": "16", "train_wall": "14", "wall": str(int(c.el))}))
        L.append(f"{c.f('%Y-%m-%d %H:%M:%S')} | INFO | fairseq.checkpoint_utils | Preparing to save checkpoint for epoch {e} @ {e * per} updates")
    return put(d, "train.log", L)


@case("b", "W&B chart CSV exports (folder)", "grad_explosion",
      "Two chart exports of one run: train/loss falls and flattens, train/grad_norm rises exponentially for the whole run from 0.3 to about 900.")
def bf_chart_grad(d, rng):
    run = "dulcet-vortex-41"
    for name, f in (("train/loss", lambda s: pw(s, .98, .46, 900, .8) * math.exp(rng.normal(0, .025))), ("train/grad_norm", lambda s: .3 * math.exp(s / 18000 * math.log(3000)) * math.exp(rng.normal(0, .18)))):
        rows = []
        for s in range(0, 18001, 30):
            v = float(f(s))
            rows.append([s, f"{v:.8g}", f"{v:.8g}", f"{v:.8g}"])
        put_csv(d, f"export/wandb_export_{name.split('/')[1]}.csv", ["Step", f"{run} - {name}", f"{run} - {name}__MIN", f"{run} - {name}__MAX"], rows, quote=True)
    return "export"


@case("b", "Composer console log", "grad_vanishing",
      "Global gradient norm decays from 0.4 to 2e-7 within 3000 batches and stays there; the loss is stuck at 0.94 (start 1.01) and the LR is an ordinary 1e-4.")
def bf_composer_vanish(d, rng):
    L = ["******************************", "Config:", "composer_version: 0.22.0", "num_gpus_per_node: 8", "rank_zero_seed: 17", "******************************"]
    for s in range(25, 12001, 25):
        x = .941 + .07 * math.exp(-s / 350) + rng.normal(0, .006)
        g = 2e-7 * math.exp(rng.normal(0, .25)) + .4 * math.exp(-s / 190)
        L += [f"[batch={s}/40000]:", f"\t Train time/batch: {s - 1}", f"\t Train time/sample: {(s - 1) * 512}", f"\t Train loss/train/total: {x:.4f}", f"\t Train l2_norm/grad/global: {g:.4e}" if g < 1e-3 else f"\t Train l2_norm/grad/global: {g:.4f}", f"\t Train lr-DecoupledAdamW/group0: {1e-4 * min(1, s / 500):.4e}", f"\t Train throughput/batches_per_sec: {1.9 + rng.normal(0, .01):.4f}"]
        if s % 2000 == 0:
            L += [f"[Eval batch=20/20] Eval on eval data:", f"\t Eval metrics/eval/MeanSquaredError: {.944 + rng.normal(0, .0015):.4f}"]
    return put(d, "composer_rank0.log", L)


@case("b", "TensorBoard CSV downloads (folder)", "amp_overflow",
      "GradScaler scale is halved in every step from 65536 down to 0, skipped_steps counts up with every step, the loss stays at its initial 1.0.")
def bf_tbcsv_scale(d, rng):
    t0 = 1745000000.0
    S = {"Loss_train": [], "amp_grad_scale": [], "amp_skipped_steps": [], "lr_unet": []}
    sc = np.float32(65536.0)
    for s in range(0, 420):
        if s:
            sc = np.float32(sc * np.float32(.5))
        S["Loss_train"].append((s, 1.003 * math.exp(rng.normal(0, .035))))
        S["amp_grad_scale"].append((s, float(sc)))
        S["amp_skipped_steps"].append((s, s))
        S["lr_unet"].append((s, 1e-4))
    for k, v in S.items():
        put_csv(d, f"tb_download/run-{k}.csv", ["Wall time", "Step", "Value"], [[f"{t0 + s * .62:.6f}", s, repr(float(np.float32(x)))] for s, x in v])
    return "tb_download"


@case("b", "PaddlePaddle / ppdiffusers console", "resume_from_scratch",
      "Resumed at global_step 18000: the step counter continues, loss (0.17 -> 0.93) and clip_score (0.29 -> 0.16) are back at their values of step 0 and improve as in a new run; LR unchanged.")
def bf_paddle_scratch(d, rng):
    c = Clock("2025-05-02 06:31:11", rng)
    P = lambda: f"[{c.f('%Y-%m-%d %H:%M:%S')},{c.ms}] [    INFO] - "
    L = [P() + "***** Running training *****", P() + "  Num examples = 400,000,000", P() + "  Total optimization steps = 60,000"]

    def leg(a, b, off):
        for s in range(a, b + 1, 50):
            c.tick(33)
            k = s - off
            x = pw(k, .99, .155, 600, 1.0) * math.exp(rng.normal(0, .03))
            L.append(P() + f"loss: {x:.6f}, learning_rate: 5e-05, global_step: {s}, current_step: {k}, interval_runtime: {33 + rng.normal(0, .3):.4f}, interval_samples_per_second: {96.9 + rng.normal(0, .8):.4f}, interval_steps_per_second: 1.5, progress_or_epoch: {s / 50000:.4f}")
            if s % 2000 == 0:
                L.append(P() + f"eval_clip_score: {.302 - .145 * math.exp(-k / 4500) + rng.normal(0, .001):.4f}, global_step: {s}")
    leg(50, 18000, 0)
    L += ["LAUNCH INFO 2025-05-02 09:51:04,112 Pod failed", "LAUNCH INFO 2025-05-02 10:02:44,870 ------------------------- Run successfully -------------------------", P() + "Loading model from output/checkpoint-18000.", P() + "  Continuing training from checkpoint, will skip to saved global_step", P() + "  Continuing training from global step 18000"]
    leg(18050, 34000, 18000)
    return put(d, "workerlog.0", L)


@case("b", "NeMo / Lightning progress bar", "self_stopped",
      "NeMo run planned for 40000 steps; ordinary loss, then three NaN steps and the trainer's own guard ends the run at 11312 with that reason.", ["nan_loss"])
def bf_nemo_guard(d, rng):
    out = "[NeMo I 2025-06-24 13:05:51 nemo_logging:381] Setting up trainer: max_steps=40000, precision=bf16-mixed, callbacks=[LossGuard(max_bad_steps=3), ModelCheckpoint]\n"
    for s in range(16, 11313, 16):
        x = pw(s, 1.4, .49, 400, .85) * math.exp(rng.normal(0, .03))
        lv = f"{x:.3f}"
        out += "\r" + f"Epoch 0: :{100 * s // 40000:>4}%|{bar(s, 40000)}| {s}/40000 [{hms(s * .71)}<{hms((40000 - s) * .71)}, v_num=3-17, reduced_train_loss={lv}, global_step={s - 1:.1f}, consumed_samples={s * 128:.1f}, train_step_timing in s={.71 + rng.normal(0, .005):.3f}]"
    for s in (11310, 11311, 11312):
        out += "\r" + f"Epoch 0: :  28%|{bar(s, 40000)}| {s}/40000 [{hms(s * .71)}<{hms((40000 - s) * .71)}, v_num=3-17, reduced_train_loss=nan.0, global_step={s - 1:.1f}, consumed_samples={s * 128:.1f}, train_step_timing in s=0.711]"
    out += "\n[NeMo E 2025-06-24 15:21:03 loss_guard:74] LossGuard: reduced_train_loss is not finite for 3 consecutive steps (last finite value 0.533 at step 11309). Aborting.\n"
    out += "Traceback (most recent call last):\n  File \"/opt/NeMo/examples/t2i/train.py\", line 88, in <module>\n    main()\n  File \"/opt/NeMo/nemo_ext/loss_guard.py\", line 76, in on_train_batch_end\n    raise TrainingAborted(msg)\nnemo_ext.loss_guard.TrainingAborted: stopped at step 11312 of 40000\n"
    return put(d, "nemo_log_globalrank-0.txt", out)


@case("b", "Neptune CSV export", "metrics_lost",
      "train/loss goes on normally to step 30000, val/fid, val/is and val/loss are filled until step 13000 and 'nan' or empty in every later evaluation.")
def bf_neptune_lost(d, rng):
    rows = []
    t0 = datetime(2025, 4, 11, 9, 0)
    for s in range(0, 30001, 100):
        b = pw(s, .88, .41, 1800, .8)
        r = [s, (t0 + timedelta(seconds=s * .8)).strftime("%Y-%m-%d %H:%M:%S.%f+00:00"), f"{b * math.exp(rng.normal(0, .02)):.6f}", f"{float(cosine(s, 50000, 1e-4, 1000)):.6g}", "", "", ""]
        if s % 1000 == 0 and s:
            if s <= 13000:
                r[4:] = [f"{b * 1.03 + rng.normal(0, .003):.6f}", f"{pw(s, 190, 16, 1500, 1.0) + rng.normal(0, .6):.4f}", f"{pw(s, 8, 96, 6000, 1.0) + rng.normal(0, 1):.3f}"]
            else:
                r[4:] = ["nan", "nan", "nan"]
        rows.append(r)
    return put_csv(d, "neptune_export_T2I-318.csv", ["step", "timestamp", "train/loss", "train/lr", "val/loss", "val/fid", "val/is"], rows)


@case("b", "CompVis latent-diffusion testtube metrics.csv", "ema_broken",
      "val/loss_simple falls 0.41 -> 0.155, val/loss_simple_ema stays at 0.998 (untrained) in all epochs.")
def bf_ldm_ema(d, rng):
    H = ["train/loss_simple_step", "train/loss_vlb_step", "train/loss_step", "global_step", "lr_abs", "train/loss_simple_epoch", "val/loss_simple", "val/loss_vlb", "val/loss", "val/loss_simple_ema", "val/loss_vlb_ema", "val/loss_ema", "epoch", "created_at"]
    rows = []
    t0 = datetime(2025, 2, 3, 6, 2, 10)
    per = 1000
    for e in range(32):
        for k in range(49, per, 50):
            s = e * per + k
            x = pw(s, .95, .148, 600, .9) * math.exp(rng.normal(0, .22))
            r = [""] * 14
            r[0], r[1], r[2], r[3], r[4], r[12], r[13] = x, x * .0052, x, float(s), 1e-4, e, str(t0 + timedelta(seconds=s * .93))
            rows.append(r)
        v = pw((e + 1) * per, .95, .148, 600, .9) + rng.normal(0, .002)
        m = .9978 + rng.normal(0, .0008)
        r = [""] * 14
        r[3], r[5:12], r[12], r[13] = float((e + 1) * per - 1), [v * 1.01, v, v * .0053, v, m, m * .0061, m], e, str(t0 + timedelta(seconds=(e + 1) * per * .93))
        rows.append(r)
    return put_csv(d, "testtube/version_0/metrics.csv", H, rows)


@case("b", "logfmt lines", "weak_gradient_share",
      "Weighted KL gradient is 0.4 % of the total for the whole run (w_kl=1e-5, no constraint configured); mu and std of the text head stand still at 0.83 and 0.62.", ["kl_not_acting"])
def bf_logfmt_share(d, rng):
    L = ['ts=2025-10-01T07:00:00Z level=info msg="weights" w_flow=1.0 w_kl=1e-05 w_contrastive=0.1']
    t = datetime(2025, 10, 1, 7, 0, 30)
    for s in range(100, 30001, 100):
        t += timedelta(seconds=55)
        lf = pw(s, 1.8, .71, 1800, .8) * math.exp(rng.normal(0, .02))
        gf = .58 * math.exp(rng.normal(0, .1))
        gc = gf * .24 * math.exp(rng.normal(0, .1))
        gk = gf * .004 * math.exp(rng.normal(0, .12))
        lc = pw(s, 4.1, 1.6, 2500, .8) * math.exp(rng.normal(0, .02))
        L.append(f"ts={t.strftime('%Y-%m-%dT%H:%M:%SZ')} level=info msg=step step={s} loss={lf + 1e-5 * .63 + .1 * lc:.5f} loss_flow={lf:.5f} loss_kl={.6312 + rng.normal(0, .003):.5f} loss_contrastive={lc:.5f} grad_flow={gf:.5f} grad_kl={gk:.6f} grad_contrastive={gc:.5f} grad_total={math.sqrt(gf ** 2 + gk ** 2 + gc ** 2):.5f} mu_abs={.831 + rng.normal(0, .003):.4f} std_mean={.622 + rng.normal(0, .002):.4f} lr=0.0001")
    return put(d, "trainer.logfmt", L)


@case("b", "DINOv2 training_metrics.json", "teacher_uniform",
      "dino_loss and teacher entropy are both 9.0109 = log 8192 from iteration 2000 on: the teacher's targets are uniform, nothing can be learned from them.")
def bf_dino_uniform(d, rng):
    rows = []
    for s in range(0, 40001, 100):
        q = math.exp(-s / 450)
        te = 9.01091 - .9 * q - abs(rng.normal(0, 2e-5))
        rows.append({"iteration": s, "iter_time": r_(.61 + rng.normal(0, .005), 5), "data_time": r_(.011, 5), "lr": g_(min(s / 4000, 1) * 4e-4, 7), "wd": g_(.04 + .36 * s / 125000, 7), "mom": .994, "last_layer_lr": 0.0 if s < 1250 else g_(min(s / 4000, 1) * 4e-4, 7), "current_batch_size": 64.0, "head_n_prototypes": 8192, "teacher_temp": .07,
                     "total_loss": r_(9.0109 + .31 * q + .6 + rng.normal(0, .003), 5), "dino_loss": r_(9.01092 + .3 * q + rng.normal(0, 3e-5), 6), "koleo_loss": r_(.6 + rng.normal(0, .003), 5), "teacher_entropy": r_(te, 6), "student_entropy": r_(9.0108 - .2 * q, 6)})
    return jl(d, "training_metrics.json", rows)


@case("b", "W&B export as one JSON array", "student_saturated",
      "K=4096 (log K 8.32): teacher entropy an ordinary 4.2, student entropy collapses to 0.12 and grad/dino to 0.4 % of the total while the DINO loss stays high.", ["weak_gradient_share"])
def bf_wbjson_student(d, rng):
    A = []
    for s in range(0, 20001, 50):
        hs = .12 + 7.9 * math.exp(-s / 900) + abs(rng.normal(0, .006))
        gf = .5 * math.exp(rng.normal(0, .1))
        gd = gf * (.004 + .35 * math.exp(-s / 800)) * math.exp(rng.normal(0, .12))
        gk = gf * .15 * math.exp(rng.normal(0, .1))
        A.append({"_step": s, "_runtime": r_(s * .52, 1), "loss": {"flow": r_(pw(s, 1.8, .69, 1500, .8) * math.exp(rng.normal(0, .02)), 5), "dino": r_(6.9 + 1.4 * math.exp(-s / 600) + rng.normal(0, .04)), "kl": r_(pw(s, .8, .22, 1500, .9), 5)}, "ent": {"teacher": r_(4.2 + rng.normal(0, .05)), "student": r_(hs)}, "grad": {"flow": r_(gf, 5), "dino": r_(gd, 6), "kl": r_(gk, 5), "total": r_(math.sqrt(gf ** 2 + gd ** 2 + gk ** 2), 5)}, "temp": {"student": .02, "teacher": .06}, "n_prototypes": 4096, "lr": 1e-4})
    return put(d, "run-2k1x9q-history.json", json.dumps(A))


@case("b", "ms-swift logging.jsonl", "kl_not_acting",
      "kl_weight 1e-7 is set, but kl climbs 3 -> 30 nearly linearly, mu_rms 2 -> 7.3, z_init_var to 54, logvar falls to -1.4: the posterior walks away from the prior.")
def bf_swift_kl(d, rng):
    rows = []
    N = 8000
    for s in range(20, N + 1, 20):
        rms = 1.9 + 5.4 * (s / N) ** .85 + rng.normal(0, .03)
        lv = -.15 - 1.3 * (s / N) + rng.normal(0, .012)
        sd = math.exp(.5 * lv)
        kl = .5 * (rms ** 2 + sd ** 2 - 1 - lv)
        rows.append({"loss": r_(pw(s, 1.9, .5, 600, .8) * math.exp(rng.normal(0, .025)), 8), "kl": r_(kl, 5), "kl_weight": 1e-07, "mu_rms": r_(rms), "logvar_mean": r_(lv), "std_mean": r_(sd), "z_init_var": r_(rms ** 2 + sd ** 2, 3), "grad_norm": g_(.48 * math.exp(rng.normal(0, .15)), 8), "learning_rate": g_(float(cosine(s, N, 1e-4, 200)), 7), "epoch": r_(s / 3120, 5), "global_step/max_steps": f"{s}/{N}", "percentage": f"{100 * s / N:.2f}%", "elapsed_time": f"{int(s * 1.7) // 60}m {int(s * 1.7) % 60}s", "remaining_time": f"{int((N - s) * 1.7) // 60}m {int((N - s) * 1.7) % 60}s", "memory(GiB)": 44.8, "train_speed(iter/s)": .59})
    return jl(d, "logging.jsonl", rows)


@case("b", "progress.csv (baselines logger)", "sigma_collapse",
      "logvar_mean runs to -11.99, the lower clamp given in the columns (-12), std_mean 0.0025; mu keeps its size.")
def bf_progress_sigma(d, rng):
    rows = []
    for s in range(0, 24001, 80):
        lv = -11.985 + 11.4 * math.exp(-s / 2600) + abs(rng.normal(0, .003))
        lv = max(lv, -12.0)
        sd = math.exp(.5 * lv)
        mu = .71 + rng.normal(0, .004)
        rows.append([s, f"{s * .44:.1f}", f"{pw(s, 1.9, .7, 1500, .8) * math.exp(rng.normal(0, .02)):.5f}", f"{.5 * (1.57 * mu * mu + sd * sd - 1 - lv):.5f}", f"{mu:.5f}", f"{lv:.5f}", f"{sd:.6f}", f"{sd * (.99 if lv > -11.9 else .993):.6f}", "-12", "12", "0.0001"])
    return put_csv(d, "progress.csv", ["step", "time_elapsed", "flow_loss", "kl_loss", "mu_abs_mean", "logvar_mean", "std_mean", "std_min", "logvar_clamp_min", "logvar_clamp_max", "lr"], rows)


@case("b", "INFO:train: lines", "scale_mismatch",
      "Per-batch norms in the log: text latents 64, image latents about 730 (11x), x_t and v* follow the image latents; the flow loss starts near 131 and is dominated by them.")
def bf_info_scale(d, rng):
    L = ["INFO:train:resolution 256, latent 4x32x32, path linear, text head 4096 -> z0"]
    for s in range(0, 5001, 20):
        z0 = 64.1 + rng.normal(0, .3)
        z1 = 731 + rng.normal(0, 22)
        x = pw(s, 131, 82, 900, .8) * math.exp(rng.normal(0, .05))
        L.append(f"INFO:train:step {s:05d} loss_flow {x:.3f} kl {.021 + rng.normal(0, .001):.4f} |z0| {z0:.1f} |z1| {z1:.1f} |x_t| {z1 * .577 * (1 + rng.normal(0, .03)):.1f} |v*| {math.hypot(z0, z1):.1f} lr 1.00e-04 gnorm {11.6 * math.exp(rng.normal(0, .15)):.2f} clip 10.0")
    return put(d, "train.txt", L)


@case("b", "debug print-out", "latent_scale_factor",
      "scaling_factor 0.18215, latents used in training have std 0.182 (= sf, not 1); decode(z/sf) is blurred at 15 dB, decode(z/sf/sf) sharp at 31 dB: the factor is applied twice.", ["scale_mismatch"])
def bf_dbg_sf(d, rng):
    L = [">>> vae.config.scaling_factor", "0.18215", ">>> inspect_latents(loader, n=6)"]
    for i in range(6):
        L.append(f"batch {i}: raw encode() mean={.31 + rng.normal(0, .05):+.3f} std={5.48 + rng.normal(0, .06):.3f} | z1 (fed to the model) mean={.0103 + rng.normal(0, .002):+.4f} std={.1818 + rng.normal(0, .0015):.4f} | z0 std={1.0 + rng.normal(0, .004):.4f}")
    L += [">>> roundtrip(z1, n=6)", f"decode(z1 / sf)        PSNR {15.1 + rng.normal(0, .2):.2f} dB   (blurred, grey)", f"decode(z1 / sf / sf)   PSNR {30.8 + rng.normal(0, .2):.2f} dB   (sharp)", f"decode(z1)             PSNR {11.0 + rng.normal(0, .2):.2f} dB", ">>> from the last training run:"]
    for s in range(0, 4001, 250):
        L.append(f"step {s:5d}  loss {pw(s, 1.034, .9, 500, .8) + rng.normal(0, .006):.4f}  grad_norm {.31 * math.exp(rng.normal(0, .15)):.3f}")
    return put(d, "session.txt", L)


@case("b", "Chinese debugging note with print-outs", "text_ignored",
      "Means of different prompts have pairwise cosine 0.997-0.999 (control 1.000) although single samples look apart (0.09); VAE, schedule and one-step alignment are fine.")
def bf_zh_text(d, rng):
    P = ["a cat", "a red car", "an apple", "a castle at night"]
    mm, ss = [], []
    for i in range(4):
        for j in range(i + 1, 4):
            mm.append(f"[txt] mean cos({P[i]} , {P[j]}) = {.9982 + rng.normal(0, .0006):.4f}")
            ss.append(f"[txt] sample cos({P[i]} , {P[j]}) = {.092 + rng.normal(0, .008):.3f}")
    ctl = [f"[txt] mean cos({p} , {p}) = 1.0000" for p in P]
    al = [f"[align] t={t:.2f} cos={c + rng.normal(0, .006):.3f} ratio={r + rng.normal(0, .008):.3f}" for t, c, r in ((.1, .63, .82), (.35, .71, .88), (.6, .72, .9), (.9, .66, .85))]
    txt = f"""# 0918 调试记录

**现象**：40k 步之后，换 prompt 出来的图几乎一样，只是纹理不同。

## 1. VAE
16 张图，PSNR=29.7 dB，z std=0.99。没问题。

## 2. 文本头（采样 z 与均值 mu 都看）
```
{chr(10).join(ss)}

{chr(10).join(mm)}
{chr(10).join(ctl)}
```
补充：mu/abs_mean = 0.58，std/mean = 0.81，KL = 0.33。

## 3. 单步对齐（用训练图）
```
{chr(10).join(al)}
```

## 4. 采样网格
num_steps=50，均匀 dt，Σdt=1.000，fp32。

## 5. 训练曲线摘要
| step | loss_flow | lr |
|---|---|---|
| 1000 | 1.412 | 1e-4 |
| 10000 | 0.903 | 1e-4 |
| 20000 | 0.861 | 1e-4 |
| 40000 | 0.842 | 1e-4 |

明天先查 meta query 的拼接顺序和 attention mask。
"""
    return put(d, "0918.md", txt)


@case("b", "LLaMA-Factory trainer_log.jsonl", "condition_unused",
      "eval_cos rises to 0.69 but eval_cos_shuffled (captions permuted) is the same to +-0.0003 in all 20 evaluations; eval_loss equals eval_loss_shuffled.")
def bf_lf_cond(d, rng):
    rows = []
    N = 20000
    for s in range(50, N + 1, 50):
        b = pw(s, 1.8, .92, 1200, .9)
        rows.append({"current_steps": s, "total_steps": N, "loss": r_(b * math.exp(rng.normal(0, .02))), "lr": g_(float(cosine(s, N, 1e-4, 600)), 8), "epoch": r_(s / 6250, 4), "percentage": r_(100 * s / N, 2), "elapsed_time": hms(s * 1.1), "remaining_time": hms((N - s) * 1.1)})
        if s % 1000 == 0:
            c = .7 - .45 * math.exp(-s / 3500) + rng.normal(0, .002)
            e = b * 1.01 + rng.normal(0, .003)
            rows.append({"current_steps": s, "total_steps": N, "eval_loss": r_(e, 5), "eval_loss_shuffled": r_(e + rng.normal(0, .0003), 5), "eval_cos": r_(c, 5), "eval_cos_shuffled": r_(c + rng.normal(0, .0002), 5), "epoch": r_(s / 6250, 4), "percentage": r_(100 * s / N, 2), "elapsed_time": hms(s * 1.1), "remaining_time": hms((N - s) * 1.1)})
    return jl(d, "trainer_log.jsonl", rows)


@case("b", "diffusion-pipe console with eval lines", "weak_field",
      "After 20000 steps v_cos is 0.07 and v_ratio 0.29, relative shooting error 0.95; loss sits at 1.05 of the target's variance; latents std 1.0, prompt means 0.42, PSNR 30 are fine.", ["no_learning"])
def bf_dpipe_field(d, rng):
    L = ["[2025-07-07 08:00:01,220] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: version=0.17.0, git-hash=unknown, git-branch=unknown", "checks: vae_psnr=30.2 latent_std=1.003 text_mean_cos=0.42 (control 1.00) sampler_sum_dt=1.0000"]
    for s in range(10, 20001, 20):
        c = .07 * (1 - math.exp(-s / 2500))
        r = .29 + .9 * math.exp(-s / 500)
        x = nmse(r, c) * math.exp(rng.normal(0, .02))
        L.append(f"steps: {s} loss: {x:.4f} iter time (s): {2.04 + rng.normal(0, .02):.3f} samples/sec: {7.84 + rng.normal(0, .08):.3f}")
        if s % 1000 == 990:
            L.append(f"eval: step={s + 10} v_cos={c + rng.normal(0, .004):.4f} v_ratio={r + rng.normal(0, .005):.4f} nmse={nmse(r, c) + rng.normal(0, .004):.4f} shoot_rel_mse={.95 + .02 * math.exp(-s / 2000) + rng.normal(0, .004):.4f} lr=1.00e-04 grad_norm={.22 * math.exp(rng.normal(0, .1)):.3f}")
    return put(d, "dpipe.log", L)


@case("b", "prose e-mail style report", "wrong_target",
      "Correlation of the prediction with candidate targets: cos with the noise 0.96, cos with x1-x0 -0.68, cos with the data 0.02: the network is trained on the noise.")
def bf_mail_target(d, rng):
    txt = f"""Subject: flow model, samples are pure noise

Hi,

short summary of what I measured on checkpoint 60k (EMA, fp32, 256 validation pairs). x0 is noise, x1 the latent, x_t = (1 - t) x0 + t x1.

The training loss is fine at first sight: 1.02 at the start, 0.21 after 10k, 0.094 now. Learning rate 1e-4, gradient norm 0.3.

But the samples after 50 Euler steps are noise, |x| grows from 0.80 to 1.9.

I then compared the output with everything it could be:

  t=0.1   cos(pred, x1 - x0) = -0.612   cos(pred, noise) = 0.887   cos(pred, x1) = 0.031
  t=0.3   cos(pred, x1 - x0) = -0.664   cos(pred, noise) = 0.951   cos(pred, x1) = 0.022
  t=0.5   cos(pred, x1 - x0) = -0.683   cos(pred, noise) = 0.968   cos(pred, x1) = 0.018
  t=0.7   cos(pred, x1 - x0) = -0.690   cos(pred, noise) = 0.975   cos(pred, x1) = 0.011
  t=0.9   cos(pred, x1 - x0) = -0.694   cos(pred, noise) = 0.981   cos(pred, x1) = 0.009

The ratio |pred| / |x1 - x0| is 0.70 throughout.

What I could rule out: VAE round trip 31.2 dB, latents mean 0.00 std 1.01, captions differ (cos of prompt means 0.35, same prompt 1.00), t uniform with mean 0.499 and std 0.288, sum of dt 1.000.

Any idea?
M.
"""
    return put(d, "mail.txt", txt)


@case("b", "JSON lines with t-slices as nested dict", "t_edges",
      "nmse by t slice: 0.24-0.30 in the middle, 0.97 and 0.72 in the first two and 0.83 in the last slice after 30000 steps, and the ends do not improve with training; overall loss falls.")
def bf_slices(d, rng):
    rows = []
    fin = [.97, .72, .33, .27, .25, .24, .25, .28, .36, .83]
    tau = [60000, 30000, 3000, 2500, 2300, 2300, 2400, 2600, 3200, 50000]
    for s in range(0, 30001, 500):
        sl = {}
        for k in range(10):
            v = fin[k] + (1.02 - fin[k]) * math.exp(-s / min(tau[k], 4000))
            sl[f"{k / 10:.1f}-{(k + 1) / 10:.1f}"] = r_(v * math.exp(rng.normal(0, .015)))
        m = np.mean(list(sl.values()))
        rows.append({"step": s, "train_loss": r_(1.95 * m * math.exp(rng.normal(0, .015)), 5), "val_nmse": r_(m), "val_nmse_by_t": sl, "lr": 1e-4, "grad_norm": r_(.4 * math.exp(rng.normal(0, .12)))})
    return jl(d, "val_slices.jsonl", rows)


@case("b", "debug prints before a SimpleTuner-like run", "input_range",
      "Pixel statistics of the batches: min 0.000, max 1.000, mean 0.47, although the VAE expects -1..1 (stated in the log).")
def bf_dbg_01(d, rng):
    c = Clock("2025-03-28 18:02:00", rng)
    P = lambda: f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} [DEBUG] (dataloader) "
    L = [f"{c.f('%Y-%m-%d %H:%M:%S')},003 [INFO] AutoencoderKL loaded, expects pixel_values in [-1, 1]"]
    for s in range(0, 160):
        c.tick(3)
        L.append(P() + f"batch {s}: pixel_values shape=(8, 3, 512, 512) dtype=float32 min={0.0:.3f} max={1.0:.3f} mean={.472 + rng.normal(0, .02):.3f} std={.276 + rng.normal(0, .01):.3f}")
        if s % 4 == 3:
            L.append(f"{c.f('%Y-%m-%d %H:%M:%S')},{c.ms} [INFO] step={s + 1} loss={pw(s, .61, .38, 40, .8) * math.exp(rng.normal(0, .09)):.4f} lr=1.00e-05")
    return put(d, "debug.log", L)


@case("b", "Markdown report on a diffusion run", "schedule_constants",
      "Configured linear betas 1e-4..0.02, T=1000, but the dumped betas end at 0.002 and alphas_cumprod ends at 0.349 instead of 4e-5; input, t and noise are fine.")
def bf_md_const(d, rng):
    txt = """# Diffusion run 2025-W21, notes from the dump

Config: `schedule: linear, beta_start: 1e-4, beta_end: 0.02, T: 1000, pred: x0`

## Tensors
| tensor | min | max | mean | std |
|---|---|---|---|---|
| x_0 | -6.02 | 5.33 | 0.0003 | 1.001 |
| noise | -5.98 | 6.07 | -0.0001 | 1.000 |
| x_t | -6.31 | 5.80 | 0.0002 | 1.000 |
| predicted_x0 | -5.77 | 5.01 | 0.0011 | 0.971 |

t: min 0, max 999, mean 499.1, std 288.4 (uniform)

## Constants (first / last)
- betas: 0.0001 / 0.0020
- alphas_cumprod: 0.9999 / 0.3492
- sqrt_alphas_cumprod: 0.99995 / 0.5909
- sqrt_one_minus_alphas_cumprod: 0.0100 / 0.8067

## Loss
First ten: 0.412. Last ten: 0.031. Range [0.027, 0.43]. No NaN or Inf. lr 1e-4.
The loss is much lower than in last month's run (0.071), the samples that start from N(0, 1) are washed out.
"""
    return put(d, "w21.md", txt)


@case("b", "sampler trace (debug prints)", "step_schedule",
      "20-step trace of a sigmoid grid: dt is asymmetric (0.110 at the start, 0.021 at the end), the sum is 0.57 and t ends at 0.57 instead of 1; |x|, |v| ordinary.")
def bf_trace_dt(d, rng):
    # only the first part of a longer symmetric grid is used
    N = 20
    full = np.array([.1100, .0420, .0330, .0288, .0262, .0245, .0234, .0226, .0221, .0218, .0216, .0215, .0214, .0214, .0213, .0213, .0213, .0213, .0213, .0213])
    L = ["[sampler] grid=sigmoid steps=20 (symmetric) t_start=0.0 t_end=1.0 dtype=float32"]
    for p in ("a wooden bridge", "two parrots"):
        x, t = .801 + rng.normal(0, .001), 0.
        L.append(f"[sampler] prompt={p!r}")
        for k in range(N):
            v = .912 + rng.normal(0, .003)
            L.append(f"[sampler] i={k:02d}/20 t={t:.4f} dt={full[k]:.4f} |x|={x:.4f} |v|={v:.4f}")
            t += full[k]
            x += full[k] * .11
        L.append(f"[sampler] done, t={t:.4f}, sum(dt)={t:.4f}")
    return put(d, "sampler.txt", L)


@case("b", "Markdown table of a rollout study", "train_infer_mismatch",
      "One-step cos 0.84-0.88 and ratio 0.9, std 0.97 (not narrow), but the endpoint RMSE rises with the number of steps for Euler and Heun alike; the exact field integrates to 1e-6.")
def bf_md_rollout(d, rng):
    rows = []
    for K, e, h in ((4, .741, .739), (8, .752, .751), (16, .783, .782), (32, .809, .811), (64, .836, .835), (128, .851, .852)):
        rows.append(f"| {K} | {e + rng.normal(0, .002):.3f} | {h + rng.normal(0, .002):.3f} |")
    T = "\n".join(rows)
    one = "\n".join(f"| {t:.2f} | {c + rng.normal(0, .004):.3f} | {r + rng.normal(0, .005):.3f} | {nmse(r, c):.3f} |" for t, c, r in ((.1, .84, .88), (.37, .87, .9), (.63, .88, .91), (.9, .85, .89)))
    txt = f"""# Rollout study, checkpoint 52000

Path with alpha(t) = sin(pi t / 2), beta(t) = cos(pi t / 2). 64 validation pairs, fp32, text head: mu/abs_mean 0.61, std/mean 0.97.

## One step (teacher-forced)
| t | cos(v_pred, v_tgt) | |v_pred|/|v_tgt| | nmse |
|---|---|---|---|
{one}

## Free rollout z0 -> z1, RMSE at the endpoint (RMSE(z0, z1) = 1.402)
| K | Euler | Heun |
|---|---|---|
{T}

## Controls
- Teacher field, Euler, fp32: 2.4e-6 (K=8), 1.1e-6 (K=64)
- sum(dt) = 1.0000 for every K
- VAE round trip PSNR 30.4 dB
- captions shuffled: cos falls by 0.12
- training loss 0.47 at 52000, lr 1e-4, no NaN
"""
    return put(d, "rollout_52000.md", txt)
