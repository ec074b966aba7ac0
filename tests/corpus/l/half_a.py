import json
from core import *
np.seterr(all='ignore')

# =====================================================================  healthy
@log('a', 'sd3m-lora-r32.out', 'HF Trainer dict prints', 'none', [], 'LoRA fine-tune of a rectified-flow model: the loss falls only ~15 % under 8 % batch noise, eval loss and CLIP score improve; grad_norm has heavy tails.')
def _(r, p):
    s = np.arange(25, 3001, 25); n = len(s)
    L = noisy(r, fall(s, .612, .497, 260, .7), .045); g = gn(r, .31 + .2*np.exp(-s/200)); lr = wlin(s, 1e-4, 150, 3000)
    o = ['The following values were not passed to `accelerate launch` and had defaults used instead:', '\t`--dynamo_backend` was set to a value of `\'no\'`',
         'trainable params: 18,743,296 || all params: 2,102,961,216 || trainable%: 0.8913', '{\'max_steps\': 3000, \'per_device_train_batch_size\': 8, \'rank\': 32}']
    ev = noisy(r, fall(np.arange(500, 3001, 500), .60, .503, 280, .7), .006)
    for i in range(n):
        o.append(str({'loss': round(float(L[i]), 4), 'grad_norm': float(sg(g[i], 9)), 'learning_rate': float(sg(lr[i], 7)), 'epoch': round(float(s[i])/412, 2)}))
        if s[i] % 500 == 0:
            k = s[i]//500-1
            o.append(str({'eval_loss': round(float(ev[k]), 6), 'eval_clip_score': round(float(.281+.021*(1-np.exp(-(k+1)/2.))+r.normal(0, .0012)), 4), 'eval_runtime': round(r.normal(61, 1), 4), 'eval_samples_per_second': round(r.normal(8.2, .1), 3), 'epoch': round(float(s[i])/412, 2)}))
        if i == 40: o.append('/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:295: FutureWarning: `torch.cpu.amp.autocast(args...)` is deprecated.')
    o.append(str({'train_runtime': 5218.4413, 'train_samples_per_second': 4.599, 'train_steps_per_second': 0.575, 'train_loss': round(float(L.mean()), 6), 'epoch': 7.28}))
    w(p, o)

@log('a', 'train_text_to_image_stdout.txt', 'diffusers tqdm with carriage returns', 'none', [], 'Full fine-tune, per-step loss very noisy (timestep variance), slow descent, constant LR after warm-up, no trouble.')
def _(r, p):
    s = np.arange(20, 6001, 20); L = fall(s, .171, .096, 700, .6)*np.exp(.22*r.standard_normal(len(s))-.04); lr = wconst(s, 1e-5, 500)
    o = ['11/03/2025 08:12:44 - INFO - __main__ - ***** Running training *****', '11/03/2025 08:12:44 - INFO - __main__ -   Num examples = 48213', '11/03/2025 08:12:44 - INFO - __main__ -   Instantaneous batch size per device = 4', '11/03/2025 08:12:44 - INFO - __main__ -   Total optimization steps = 6000']
    t = ''
    for i, k in enumerate(s):
        e = k*.94
        t += f'\rSteps: {k*100//6000:3d}%|{bar(k,6000)}| {k}/6000 [{hms(e)}<{hms((6000-k)*.94)}, {1/.94+r.normal(0,.02):5.2f}it/s, lr={lr[i]:.3g}, step_loss={L[i]:.3g}]'
        if k % 2000 == 0:
            t += f'\n11/03/2025 {8+int((760+e)//3600):02d}:{int((760+e)%3600//60):02d}:11 - INFO - accelerate.accelerator - Saving current state to out/checkpoint-{k}\n11/03/2025 09:{k//200:02d}:31 - INFO - __main__ - validation: val_loss={.1098-.0012*(k//2000):.5f} clip_i={.712+.008*(k//2000):.4f}\n'
    w(p, '\n'.join(o)+'\n'+t+'\n')

@log('a', 'results/007-SiT-L-2/log.txt', 'DiT/SiT logger', 'none', [], 'SiT-L/2 from scratch, killed by the queue at 150k and resumed properly (loss continues, FID continues to fall).')
def _(r, p):
    s = np.arange(2000, 300001, 2000); L = noisy(r, fall(s, 1.05, .742, 9000, .55), .004); t = T(2025, 4, 11, 21, 3, 8); o = []
    o += [f'[{t:%Y-%m-%d %H:%M:%S}] Experiment directory created at results/007-SiT-L-2', f'[{t+sec(9):%Y-%m-%d %H:%M:%S}] SiT Parameters: 458,106,912', f'[{t+sec(31):%Y-%m-%d %H:%M:%S}] Dataset contains 1,281,167 images (/data/in1k_latents)', f'[{t+sec(31):%Y-%m-%d %H:%M:%S}] Training for 80 epochs...']
    for i, k in enumerate(s):
        sp = r.normal(5.61, .04); t += sec(2000/sp)
        o.append(f'[{t:%Y-%m-%d %H:%M:%S}] (step={k:07d}) Train Loss: {L[i]:.4f}, Train Steps/Sec: {sp:.2f}')
        if k % 10000 == 0 and k % 50000 == 0: o.append(f'[{t+sec(300):%Y-%m-%d %H:%M:%S}] (step={k:07d}) FID-10k (ema, ode-50): {14.2+105*(k/50000)**-1.35+r.normal(0,.25):.2f}'); o.append(f'[{t+sec(310):%Y-%m-%d %H:%M:%S}] Saved checkpoint to results/007-SiT-L-2/checkpoints/{k:07d}.pt')
        if k == 150000:
            t += sec(9.3*3600); o += ['slurmstepd: error: *** JOB 5580123 ON gpu-a-14 CANCELLED AT 2025-04-12T05:02:11 DUE TO TIME LIMIT ***', f'[{t:%Y-%m-%d %H:%M:%S}] Resuming from results/007-SiT-L-2/checkpoints/0150000.pt (model, ema, opt; step=150000)']
    w(p, o)

@log('a', 'aekl/version_2/metrics.csv', 'Lightning CSVLogger, VQGAN-like autoencoder', 'none', [], 'KL-VAE with a patch discriminator switched on at step 15000: g_loss and disc_loss oscillate around the hinge equilibrium, the total loss steps up when the GAN term starts, rec loss and PSNR keep improving.')
def _(r, p):
    s = np.arange(200, 40001, 200); n = len(s); on = s > 15000
    rec = noisy(r, fall(s, .61, .118, 2600, .6), .035); kl = noisy(r, 21+9*(1-np.exp(-s/6000)), .03); d = np.clip(.93+ar1(r, n, .75, .07)+.04*r.standard_normal(n), .6, 1.25); g = .18+ar1(r, n, .85, .22)
    dw = np.clip(np.exp(ar1(r, n, .9, .25))*.52, .1, 2)
    o = ['aeloss_lr,epoch,step,train/d_weight,train/disc_loss,train/g_loss,train/kl_loss,train/rec_loss,train/total_loss,val/psnr,val/rec_loss']
    for i, k in enumerate(s):
        tot = rec[i]+1e-6*kl[i]*1000*.1+(dw[i]*g[i]*.2+.05 if on[i] else 0)
        o.append(f'4.5e-06,{k//2002},{k-1},{dw[i] if on[i] else 0:.5f},{d[i] if on[i] else 0:.5f},{g[i] if on[i] else 0:.5f},{kl[i]:.4f},{rec[i]:.5f},{tot:.5f},,')
        if k % 2000 == 0: v = fall(k, .61, .124, 2600, .6); o.append(f',{k//2002},{k-1},,,,,,,{-20*np.log10(v*.62)+6.9+r.normal(0,.08):.4f},{v*np.exp(.01*r.standard_normal()):.5f}')
    w(p, o)

@log('a', 'wandb-export_lucent-dune-41.jsonl', 'W&B history JSONL', 'none', [], 'Text-to-image flow model from scratch, cosine decay, one spike (x3, with a gradient spike) that recovers in ~200 steps.')
def _(r, p):
    s = np.arange(100, 24001, 100); L = noisy(r, fall(s, 1.71, .533, 1300, .6), .03, tail=.2); g = gn(r, .38+1.4*np.exp(-s/900))
    j = 96; L[j] *= 2.9; L[j+1] *= 1.35; g[j] = 17.4; g[j+1] = 2.6; lr = wcos(s, 2e-4, 1000, 24000, 2e-6); o = []
    for i, k in enumerate(s):
        d = {'_step': int(k), '_runtime': sg(k*.713+r.normal(0, 2), 8), 'optim/lr': sg(lr[i]), 'optim/gnorm': sg(g[i]), 'train/fm_mse': sg(L[i], 6), 'throughput/img_s': sg(r.normal(718, 9))}
        if k % 3000 == 0: d.update({'val/fm_mse': sg(fall(k, 1.71, .541, 1300, .6)*(1+r.normal(0, .004)), 6), 'val/cos_v': sg(.84-.55*np.exp(-k/4200)+r.normal(0, .004), 4), 'val/clip_t': sg(.305-.1*np.exp(-k/6000)+r.normal(0, .001), 4)})
        o.append(json.dumps(d))
    w(p, o)

@log('a', 'mlruns/0/3b9c5e0f41', 'MLflow run folder', 'none', [], 'Class-conditional flow model on 60k images: train loss falls on, val loss levels off at 0.194 (train 0.189), FID at 12.6: a mild generalisation gap, nothing turns upwards.')
def _(r, p):
    t0 = 1741600000000; e = np.arange(1, 121); tr = noisy(r, fall(e, .39, .1655, 7, .7), .006); va = noisy(r, fall(e, .392, .1835, 6, 1.1)+.0008*sig_up(e, 85, 9), .004); fid = noisy(r, fall(e, 140, 7.4, 8, 1.3), .02); lr = wcos(e, 3e-4, 4, 120, 1e-6)
    ms = lambda v: [(t0+int(k)*212000+int(r.integers(900)), float(sg(x, 7)), int(k)) for k, x in zip(e, v)]
    mlflow(p, '3b9c5e0f41', 'cfm-unet-cifar-like', {'lr': 3e-4, 'epochs': 120, 'batch_size': 256, 'sigma_min': 0.0, 'ema': 0.9999, 'dropout': .1},
           {'train_loss': ms(tr), 'val_loss': ms(va), 'fid_2k': [q for q in ms(fid) if q[2] % 5 == 0], 'lr': ms(lr), 'epoch_time_s': ms(r.normal(211, 1.5, 120))}, t0)

@log('a', 'tb_unimodel_0912', 'TensorBoard events', 'none', [], 'Text-to-image model with KL, DINO and flow loss, all diagnostics of the debugging notes in the healthy range (shares, entropies, update ratios, cos up, nmse down, endpoint error falls with K, mild edge effect).')
def _(r, p):
    s = np.arange(200, 30001, 200); n = len(s); f = lambda a, b, t, sg_: noisy(r, fall(s, a, b, t, .6), sg_)
    fl, di, kl = f(1.3, .41, 2500, .03), f(8.9, 5.1, 4000, .01), f(.95, .062, 3000, .03); gt = gn(r, .6+1.2*np.exp(-s/2500)); rows = []
    kw = np.minimum(1, s/3000)
    for i, k in enumerate(s):
        d = {'loss/flow': fl[i], 'loss/dino': di[i], 'loss/kl': kl[i], 'grad/total': gt[i], 'grad/flow': gt[i]*np.clip(r.normal(.82, .03), 0, 1), 'grad/dino': gt[i]*r.normal(.37, .03), 'grad/kl': gt[i]*abs(r.normal(.17, .015)), 'lr': wcos(k, 1.2e-4, 1500, 30000, 1e-6),
             'ent/teacher': 3.1+1.2*np.exp(-k/3000)+r.normal(0, .03), 'ent/student': 3.6+4.3*np.exp(-k/4000)+r.normal(0, .04), 'step/z_head_update_ratio': 8e-4*np.exp(r.normal(0, .1))*(.15+wcos(k, 1, 1500, 30000)), 'step/flow_head_update_ratio': 6e-4*np.exp(r.normal(0, .1))*(.15+wcos(k, 1, 1500, 30000))}
        if k % 1000 == 0:
            c = .87-.75*np.exp(-k/5000); d.update({'flow/cos': c+r.normal(0, .005), 'flow/nmse': 1-c*c+r.normal(0, .01), 'flow/speed_ratio': .93-.6*np.exp(-k/4000)+r.normal(0, .008), 'flow/cond_gain_cos': .14*(1-np.exp(-k/7000))+r.normal(0, .004), 'mu/abs_mean': .21+.5*np.exp(-k/4000), 'std/mean': .955-.3*np.exp(-k/4000)+r.normal(0, .003), 'logvar/mean': -.095-.7*np.exp(-k/4000), 'z_init/var': 1.01+.2*np.exp(-k/5000)+r.normal(0, .01)})
            for K, a in ((8, .62), (16, .55), (32, .52), (64, .51)): d[f'flow/endpt_rmse@{K}'] = a+.7*np.exp(-k/6000)+r.normal(0, .006)
            for b in range(10): d[f'flow/nmse_t{b}'] = (1-c*c)*(1+.22*abs(b-4.5)/4.5)*np.exp(r.normal(0, .03))
        rows.append((k*1.31, k, d))
    tb(p, 1757660000.25, rows)

@log('a', 'ar_vq_gpt/out.log', 'nanoGPT prints', 'none', [], 'Autoregressive image-token model (VQ codebook 16384): loss from ln(16384)=9.70 to ~7.2, val follows with a small constant gap.')
def _(r, p):
    o = ['tokens per iteration will be: 491,520', 'Initializing a new model from scratch', 'number of parameters: 343.17M', 'num decayed parameter tensors: 98, with 343,932,928 parameters', 'using fused AdamW: True', 'compiling the model... (takes a ~minute)']
    for k in range(0, 20001, 50):
        L = fall(k, 9.74, 6.86, 420, .45)
        if k % 1000 == 0: o.append(f'step {k}: train loss {L+r.normal(0,.004):.4f}, val loss {L+.011+.03*k/20000+r.normal(0,.004):.4f}'); o += ['saving checkpoint to out-vq'] if k else []
        o.append(f'iter {k}: loss {L+r.normal(0,.022):.4f}, time {r.normal(512,4)+(9000 if k%1000==0 else 0):.2f}ms, mfu {41.3+r.normal(0,.12) if k>200 else -100:.2f}%')
    w(p, o)

@log('a', 'ds_zero2_rank0.log', 'DeepSpeed log', 'none', [], 'fp16 ZeRO-2: loss scale found by five overflows at the start, later one overflow every ~1000 steps (normal), loss falls.')
def _(r, p):
    t = T(2025, 6, 2, 13, 40, 2); o = []; sk = 0; sc = 2**24
    for k in range(1, 6):
        t += sec(3); o.append(f'[{t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, reducing to {sc//2}'); sc //= 2; sk += 1
    sc = 2**19; s = np.arange(20, 6001, 20); L = noisy(r, fall(s, 1.18, .402, 500, .6), .035)
    for i, k in enumerate(s):
        t += sec(20*2.2); ts = f'[{t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d}]'
        if k in (1260, 2380, 3720, 5100): o.append(f'{ts} [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc*2}, reducing to {sc}'); sk += 1
        o.append(f'{ts} [INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={sk}, lr=[{wcos(k,8e-5,300,6000):.6g}], mom=[[0.9, 0.95]]')
        o.append(f'{ts} [INFO] [timer.py:260:stop] epoch=0/micro_step={k*2}/global_step={k}, RunningAvgSamplesPerSec={r.normal(116.2,.3):.4f}, CurrSamplesPerSec={r.normal(116,2):.4f}, MemAllocated=17.21GB, MaxMemAllocated=31.08GB')
        o.append(f'iteration {k} fm_loss {L[i]:.5f} loss_scale {sc}')
    w(p, o)

@log('a', 'nemo_dit2b_slurm-88120.out', 'Megatron iteration lines', 'none', [], 'DiT-2B with a warmup-stable-decay schedule: the loss falls faster again when the LR decays in the last 20 %.')
def _(r, p):
    s = np.arange(100, 50001, 100); y = fall(s, 1.32, .63, 1800, .4)-.035*np.clip((s-40000)/10000, 0, 1)**.8; L = noisy(r, y, .008); g = gn(r, .11+.5*np.exp(-s/1500)+0*s, .18); o = [' > setting tensorboard ...', 'training ...', '[before the start of training step] datetime: 2025-01-19 02:11:40 ']
    t = T(2025, 1, 19, 2, 11, 40)
    for i, k in enumerate(s):
        if k % 200: continue
        t += sec(200*.86); o.append(f' [{t:%Y-%m-%d %H:%M:%S}] iteration {k:8d}/   50000 | consumed samples: {k*1024:12d} | elapsed time per iteration (ms): {r.normal(861,5):.1f} | throughput per GPU (TFLOP/s/GPU): {r.normal(388,2):.1f} | learning rate: {wsd(k,1e-4,2000,40000,50000):.6E} | global batch size:  1024 | rf loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |')
        if k % 10000 == 0: o += ['-'*96, f' validation loss at iteration {k} | rf loss value: {y[i]*1.006:.6E} | ', '-'*96]
    w(p, o)

@log('a', 'probe_fp32_heun60.txt', 'sampler trace (debug prints)', 'none', [], 'fp32 sampler trace with a symmetric sigmoid grid (sum dt = 1), |x| starting at the expected 0.80 and moving, plus VAE round trip, text cosines, one-step alignment and teacher-Euler checks, all fine.')
def _(r, p):
    o = ['# probe run on ckpt-118000, dtype=torch.float32, grid=sigmoid(60), t: 0 -> 1', '[vae] z range [-4.31, 4.87] mean 0.004 std 0.973 | recon PSNR = 30.41 dB', '[text] cos("a red bicycle","a bowl of soup") = 0.121', '[text] cos("a red bicycle","two dogs on a beach") = 0.087', '[text] cos("a bowl of soup","two dogs on a beach") = 0.143']
    for t_, c in ((.1, .761), (.3, .842), (.5, .866), (.7, .851), (.9, .793)): o.append(f'[fm] t={t_:.2f}  cos(v_pred, v_tgt)={c:.3f}  ||pred||/||tgt||={c+.06+r.normal(0,.006):.3f}')
    o.append('[shoot] MSE(z_end, x1) = 0.071204')
    for n, e in ((5, 4.1e-3), (10, 1.02e-3), (20, 2.6e-4), (50, 4.3e-5), (100, 1.1e-5)): o.append(f'[teacher-euler] N={n:<3d} mse={e:.2e}')
    u = np.linspace(0, 1, 61); g = np.log((.02+.96*u)/(1-(.02+.96*u))); g = (g-g[0])/(g[-1]-g[0]); dt = np.diff(g)
    for rep in range(3):
        x = .7971+r.normal(0, .0012); v = .93+r.normal(0, .01); tt = 0
        for k in range(60):
            o.append(f'step{k}: |x|={x:.4f}, |v|={v:.4f}, dt={dt[k]:.4f}'); tt += dt[k]; x = .797*np.sqrt((1-tt)**2+(tt*.98)**2+.55*tt*(1-tt))+r.normal(0, .0003); v = .93-.06*tt+r.normal(0, .0008)
        o.append(f'sample {rep}: sum(dt)={dt.sum():.4f}  decode range [0.003, 0.991]  clip={.302+r.normal(0,.01):.3f}')
    w(p, o)

@log('a', 'history_keras_flow.csv', 'Keras CSVLogger', 'none', [], 'Keras U-Net flow model with ReduceLROnPlateau: two LR drops, each lowers the loss a little; val loss flat at the end with a small gap.')
def _(r, p):
    e = np.arange(90); lr = np.where(e < 48, 1e-3, np.where(e < 71, 5e-4, 2.5e-4)); y = fall(e, .81, .312, 4, .7)-.012*(e >= 48)-.005*(e >= 71); sgm = np.where(e < 48, .012, .006)
    tr = y*np.exp(sgm*r.standard_normal(90)); va = np.maximum(y*1.02+.006*e/90, 0)*np.exp(.8*sgm*r.standard_normal(90))
    w(p, ['epoch,cos_similarity,learning_rate,loss,val_cos_similarity,val_loss']+[f'{k},{np.sqrt(1-tr[k]/1.03):.6f},{lr[k]:.7g},{tr[k]:.8f},{np.sqrt(1-va[k]/1.03):.6f},{va[k]:.8f}' for k in e])

@log('a', 'gd_lsun256/log.txt', 'guided-diffusion tables', 'none', [], 'eps-prediction DDPM: quartile losses loss_q0..q3 differ by a factor of 40, which is normal for eps-MSE; everything falls slowly.')
def _(r, p):
    o = ['Logging to /exp/gd_lsun256', 'creating model and diffusion...', 'creating data loader...', 'training...']
    for k in range(0, 150001, 1000):
        m = fall(k, 1, .031, 900, .5, .9); q = [m*a*np.exp(.03*r.standard_normal()) for a in (2.85, .72, .28, .072)]
        d = dict(grad_norm=gn(r, [.045+.8*np.exp(-k/800)], .15)[0], loss=np.mean(q), loss_q0=q[0], loss_q1=q[1], loss_q2=q[2], loss_q3=q[3], mse=np.mean(q), mse_q0=q[0], mse_q1=q[1], mse_q2=q[2], mse_q3=q[3], param_norm=412+.00041*k+r.normal(0, .02), samples=(k+1)*256, step=k)
        o.append('-'*28); o += [f'| {a:<12} | {b:<9.3g} |' for a, b in d.items()]; o.append('-'*28)
        if k % 50000 == 0 and k: o += ['saving model 0...', 'saving model 0.9999...']
    w(p, o)

@log('a', 'slurm-2210984.out', 'srun with labelled ranks', 'none', [], 'Four ranks, per-rank losses noisy around the same falling mean, library warnings and NCCL chatter, one slow phase of the file system; nothing wrong.')
def _(r, p):
    o = ['0: W0814 07:01:12.881000 1 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default', '2: /opt/venv/lib/python3.12/site-packages/timm/models/layers/__init__.py:48: FutureWarning: Importing from timm.models.layers is deprecated', '0: NCCL version 2.21.5+cuda12.4', '0: [cfg] model=MMDiT-S/2 params=151.3M global_bs=512 lr=2.0e-4 warmup=800 max_steps=12000 pred=velocity']
    for k in range(40, 12001, 40):
        y = fall(k, 1.44, .571, 700, .55); sl = 5200 <= k <= 5700
        for q in r.permutation(4):
            o.append(f'{q}: step={k:>6d}  rank_loss={y*np.exp(.055*r.standard_normal()):.4f}'+(f'  mean_loss={y*np.exp(.02*r.standard_normal()):.4f}  |g|={gn(r,[.42+.9*np.exp(-k/600)])[0]:.3f}  lr={wcos(k,2e-4,800,12000,1e-6):.3e}  {r.normal(6.1,.1) if not sl else r.normal(2.2,.3):.2f} it/s' if q == 0 else ''))
        if k == 5200: o.append('1: [dataloader] warning: shard-00412.tar read took 14.2 s')
    w(p, o)

@log('a', 'dino_align_vitb16/log.txt', 'DINO log.txt (JSON per epoch)', 'none', [], 'DINO student/teacher with K=65536: teacher entropy around 3.5 of ln K=11.09, student above it, loss falls, kNN rises; the temperature warm-up makes the loss rise slightly in epochs 5-30 (normal).')
def _(r, p):
    o = []
    for e in range(100):
        tT = min(.04+.03*e/30, .07); L = fall(e, 10.9, 2.65, 6, .8)+1.1*(tT-.04)/.03*.35
        o.append(json.dumps({'train_loss': sg(L*np.exp(.004*r.standard_normal()), 7), 'train_lr': sg(wcos(e+.5, 7.5e-4, 10, 100, 1e-6), 6), 'train_wd': sg(.4-.36*.5*(1+np.cos(np.pi*e/100)), 5), 'train_ent_teacher': sg(3.1+.5*(tT-.04)/.03+5*np.exp(-e/4)+r.normal(0, .03), 5), 'train_ent_student': sg(4.0+.3*(tT-.04)/.03+6*np.exp(-e/5)+r.normal(0, .03), 5), 'train_grad_norm': sg(gn(r, [.9+1.5*np.exp(-e/5)], .1)[0], 4), 'knn_top1': sg(68.2-60*np.exp(-e/13)+r.normal(0, .25), 4), 'epoch': e}))
    w(p, o)

@log('a', '扩散调试打印_0921.md', 'Chinese debugging notes', 'none', [], 'Notes with printed statistics of a diffusion run: x_0, t (mean ~500, std ~289), noise, x_t, betas and alphas_cumprod, predicted_x0 std growing from 0.55 to 0.97, loss falling: all in the expected ranges.')
def _(r, p):
    o = ['# 扩散训练数值打印（2025-09-21）', '', '配置：`num_timesteps=1000, schedule=linear, beta=[1e-4, 0.02], pred=x0, amp=bf16`', '', '```', 'betas[:3]=[0.0001, 0.00011992, 0.00013984]  betas[-1]=0.02', 'alphas_cumprod[0]=0.9999  alphas_cumprod[-1]=4.036e-05', '```', '', '## 训练过程（每 250 步打印一次）', '', '```']
    for k in range(0, 20001, 250):
        L = fall(k, 1.33, .058, 900, .7)*np.exp(.09*r.standard_normal()); n = 64
        o.append(f'[it {k:05d}] loss={L:.4f} | x_0: mean={r.normal(0,.0005):+.4f} std={r.normal(1.0,.0012):.4f} | t: mean={r.normal(499.5,289/8):.1f} std={r.normal(287,14):.1f} min={int(r.exponential(14))} max={999-int(r.exponential(14))} | noise std={r.normal(1,.0006):.4f} | x_t std={r.normal(1,.001):.4f} | pred_x0 std={.97-.42*np.exp(-k/3500)+r.normal(0,.006):.3f} | nan/inf=0')
    o += ['```', '', '每 5000 步验证：', '', '| step | val_loss | PSNR(recon) |', '|---|---|---|']+[f'| {k} | {fall(k,1.33,.062,900,.7):.4f} | {r.normal(29.6,.02):.2f} |' for k in range(5000, 20001, 5000)]
    w(p, o)

@log('a', 'kohya_sdxl_style.log', 'kohya sd-scripts progress', 'none', [], 'SDXL LoRA: avr_loss (moving mean of noisy per-step losses) falls from 0.145 to 0.117, with the usual wobble at epoch starts.')
def _(r, p):
    N = 3200; x = fall(np.arange(N), .146, .113, 350, .5)*np.exp(.35*r.standard_normal(N)-.06); o = ['running training / 学習開始', '  num train images * repeats / 学習画像の数×繰り返し回数: 1280', '  num batches per epoch / 1epochのバッチ数: 320', '  num epochs / epoch数: 10', '  total optimization steps / 学習ステップ数: 3200']
    for k in range(8, N+1, 8):
        if (k-1)//320 != (k-9)//320: o += ['', f'epoch {(k-1)//320+1}/10']
        o.append(f'steps: {k*100//N:3d}%|{bar(k,N)}| {k}/{N} [{hms(k*1.62)}<{hms((N-k)*1.62)},  {1.62+r.normal(0,.01):.2f}s/it, avr_loss={x[max(0,k-320):k].mean():.3g}]')
    o.append('model saved.'); w(p, o)

# =====================================================================  broken
@log('a', 'titan_flux_mini_r0.log', 'torchtitan with ANSI colours', 'nan_loss', [], 'bf16 pre-training: at step 3270 the gradient norm is inf, from the next print loss and grad norm are nan to the end; two harmless spikes before.')
def _(r, p):
    t = T(2025, 3, 4, 10, 22, 31); o = [f'[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},011 - root - INFO - Starting job: flux-mini 512px pretrain', f'[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},498 - root - INFO - Training starts at step 1, with local batch size 16, global batch size 512, total steps 10000 (warmup 500)']
    for k in range(10, 4611, 10):
        t += sec(21.3); L = fall(k, 1.92, .66, 350, .5)*np.exp(.02*r.standard_normal()); g = gn(r, [.55+1.8*np.exp(-k/300)])[0]
        if k in (1180, 2440): L *= 1.4; g = 6.1
        l, gg = (f'{L:7.4f}', f'{g:7.4f}') if k < 3270 else ((f'{L*1.2:7.4f}', '    inf') if k == 3270 else ('    nan', '    nan'))
        o.append(f'[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d} - root - INFO - \x1b[31mstep: {k:5d}  \x1b[32mloss: {l}  \x1b[38;2;180;60;0mgrad_norm: {gg}  \x1b[38;2;54;234;195mmemory: 61.30GiB(77.45%)  \x1b[34mtps: {r.normal(7690,40):,.0f}  \x1b[36mtflops: {r.normal(301,2):.2f}  \x1b[35mmfu: {r.normal(30.4,.2):.2f}%\x1b[39m')
    w(p, o)

@log('a', 'wandb_export_2025-05-02T11_40_17.csv', 'W&B chart CSV with MIN/MAX columns', 'divergence', [], 'Training loss falls 1.38 -> 0.58 until step ~15k, then climbs smoothly to ~1.07 at 40k; the held-out loss climbs along; LR constant, no jump, gradient norm only doubles.')
def _(r, p):
    s = np.arange(200, 40001, 200); y = fall(s, 1.38, .392, 1500, .65)+.62*sig_up(s, 27000, 4200); L = noisy(r, y, .022); g = gn(r, .33+.5*np.exp(-s/1500)+.3*sig_up(s, 27000, 4200), .2); R = 'rf-b4-lion-r2'
    o = ['"Step",'+','.join(f'"{R} - {m}{x}"' for m in ('loss/train', 'loss/heldout', 'opt/grad_norm', 'opt/lr') for x in ('', '__MIN', '__MAX'))]
    for i, k in enumerate(s):
        lr = wconst(k, 3e-5, 1000); h = f'{fall(k,1.38,.402,1500,.65)+.66*sig_up(k,27000,4200)+r.normal(0,.004):.6f}' if k % 2000 == 0 else ''
        o.append(f'"{k}",'+','.join(f'"{c}"' if c else '""' for c in sum([[v]*3 for v in (f'{L[i]:.6f}', h, f'{g[i]:.5f}', f'{lr:.6g}')], [])))
    w(p, o)

@log('a', 'mcore_rf_pod3.log', 'Megatron iteration lines', 'loss_spikes', [], 'Large spikes (3-9x the running level, with gradient spikes) every 22-60 prints for the whole run, each decaying over a few prints; base loss ordinary, LR cosine, no nan, no skipped iterations.')
def _(r, p):
    s = np.arange(20, 16001, 20); n = len(s); y = fall(s, 1.29, .47, 900, .5); L = noisy(r, y, .015); g = gn(r, .4+.9*np.exp(-s/700), .15); i = 60
    while i < n-8:
        a = r.uniform(2.2, 8.5)
        for d in range(7): L[i+d] += y[i+d]*a*np.exp(-d/1.5); g[i+d] *= 1+a*5*np.exp(-d/1.)
        i += int(r.integers(22, 60))
    o = [f' iteration {k:8d}/   16000 | consumed samples: {k*768:10d} | elapsed time per iteration (ms): {r.normal(1312,9):.1f} | learning rate: {wcos(k,1.5e-4,500,16000,1.5e-5):.3E} | global batch size:   768 | v loss: {L[i]:.6E} | loss scale: 1.0 | grad norm: {g[i]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |' for i, k in enumerate(s)]
    w(p, o)

@log('a', 'fairseq_t2i/train.log', 'fairseq', 'no_learning', [], 'Flow loss stays at its initial 1.99 for 8 epochs (noise only), validation loss too; LR warm-up to 1e-4 and gnorm ~0.4 are ordinary, no further hint.')
def _(r, p):
    t = T(2024, 11, 20, 16, 2, 44); o = [f'{t:%Y-%m-%d %H:%M:%S} | INFO | fairseq_cli.train | task: FlowMatchingTask', f'{t:%Y-%m-%d %H:%M:%S} | INFO | fairseq_cli.train | num. shared model params: 221,440,004 (num. trained: 221,440,004)', f'{t:%Y-%m-%d %H:%M:%S} | INFO | fairseq.trainer | max tokens per device = None and max sentences per device = 32']
    k = 0
    for ep in range(1, 9):
        o.append(f'{t:%Y-%m-%d %H:%M:%S} | INFO | fairseq.trainer | begin training epoch {ep}')
        for j in range(100, 1001, 100):
            k += 100; t += sec(52); o.append(f'{t:%Y-%m-%d %H:%M:%S} | INFO | train_inner | epoch {ep:03d}: {j:6d} / 1000 loss={1.991+r.normal(0,.009):.4f}, wps=0, ups={r.normal(1.93,.02):.2f}, wpb=256, bsz=256, num_updates={k}, lr={wconst(k,1e-4,1000):.6g}, gnorm={gn(r,[.41],.12)[0]:.3f}, clip=0, train_wall=52, gb_free=21.4, wall={int(k*.53)}')
        o.append(f'{t:%Y-%m-%d %H:%M:%S} | INFO | valid | epoch {ep:03d} | valid on \'valid\' subset | loss {1.9926+r.normal(0,.0011):.4f} | cos {r.normal(0,.0012):.4f} | wps 0 | wpb 256 | bsz 256 | num_updates {k} | best_loss 1.9909')
    w(p, o)

@log('a', 'trainer_state.json', 'HF trainer_state.json', 'lr_too_high', [], 'AdamW LR peaks at 3e-2 (1e-4 would be customary): loss jumps between 1 and 100 without a trend, grad norms 2-870; as the linear decay brings the LR below ~1e-3 the oscillation calms.')
def _(r, p):
    s = np.arange(10, 4001, 10); lr = wlin(s, 3e-2, 100, 4000); a = np.clip(np.log10(lr/4e-4)/1.9, 0, 1); z = ar1(r, len(s), .55, 1.); L = 1.02*np.exp(.03*r.standard_normal(len(s)))+a*np.exp(1.25*z+1.3*a); g = (.7+a*25*np.exp(1.2*r.standard_normal(len(s))+.5*z))
    h = [{'epoch': round(k/520, 4), 'grad_norm': sg(g[i], 7), 'learning_rate': sg(lr[i], 6), 'loss': round(float(L[i]), 4), 'step': int(k)} for i, k in enumerate(s)]
    w(p, json.dumps({'best_metric': None, 'best_model_checkpoint': None, 'epoch': 7.69, 'eval_steps': 500, 'global_step': 4000, 'is_hyper_param_search': False, 'is_local_process_zero': True, 'log_history': h, 'logging_steps': 10, 'max_steps': 4000, 'num_train_epochs': 8, 'save_steps': 1000, 'total_flos': 0.0, 'train_batch_size': 32}, indent=2)+'\n')

@log('a', 'lightning_logs/version_14/metrics.csv', 'Lightning CSVLogger', 'lr_restart', [], 'Cosine from 2e-4 to 2e-6 over 20k steps, then the scheduler starts again at 2e-4: the loss jumps 0.32 -> 0.62 and is still at 0.42 at the end; val loss likewise.')
def _(r, p):
    s = np.arange(50, 30001, 50); c = s > 20000; lr = np.where(~c, wcos(s, 2e-4, 600, 20000, 2e-6), 2e-6+198e-6*.5*(1+np.cos(np.pi*np.clip((s-20000)/20000, 0, 1))))
    y = np.where(~c, fall(s, 1.12, .221, 1100, .55)-.03*s/20000, fall(s-20000, .64, .385, 900, .8)); L = noisy(r, y, .045); o = ['epoch,lr-AdamW,step,train/loss_epoch,train/loss_step,val/loss']
    for i, k in enumerate(s):
        if i % 2 == 0: o.append(f',{lr[i]:.9g},{k-1},,,')
        o.append(f'{(k-1)//1250},,{k-1},,{L[i]:.6f},')
        if k % 1250 == 0: o += [f'{(k-1)//1250},,{k-1},,,{y[i]*1.04+r.normal(0,.0025):.6f}', f'{(k-1)//1250},,{k-1},{L[i-24:i+1].mean():.6f},,']
    w(p, o)

@log('a', 'keras_fit_stdout.txt', 'Keras fit prints', 'overfitting', [], 'Training loss 0.9 -> 0.26 over 110 epochs; val_loss optimum 0.517 at epoch ~28, then up to ~0.715; val_cos turns down too.')
def _(r, p):
    o = ['Found 8421 image/caption pairs (train), 936 (val).', '2025-02-11 18:20:31.412212: I tensorflow/compiler/xla/service/service.cc:170] XLA service 0x5581 initialized for platform CUDA']
    for e in range(1, 111):
        tr = fall(e, .92, .12, 16, .7, .6)*np.exp(.008*r.standard_normal()); va = fall(e, .93, .40, 8, .9)+.0034*max(0, e-24)**1.02*(1-.15*e/110)+r.normal(0, .006)
        o += [f'Epoch {e}/110', f'264/264 - {r.normal(58,1):.0f}s - {r.normal(220,3):.0f}ms/step - loss: {tr:.4f} - v_cos: {np.sqrt(max(0,1-tr/1.02)):.4f} - val_loss: {va:.4f} - val_v_cos: {np.sqrt(max(0,1-va/1.02)):.4f} - learning_rate: {1e-3*.5*(1+np.cos(np.pi*e/140)):.4e}']
    w(p, o)

@log('a', 'finetune_pets_3k.log', 'own per-step log', 'periodic_memorisation', [], 'Staircase: within each epoch (376 steps) the loss is flat, at every epoch boundary it drops by 10-15 % at once, twelve times: the samples are memorised. No validation is logged.')
def _(r, p):
    o = ['[cfg] data=pets_3k (3008 images), bs=8, steps_per_epoch=376, epochs=12, lr=5e-5 const, shuffle=True', '[cfg] resume=None  base=rf-sd35m']
    y = .62
    for e in range(12):
        for j in range(8, 377, 16):
            k = e*376+j; o.append(f'[epoch {e+1:02d} | step {k:05d}] loss {y*(1-.008*j/376)*np.exp(.022*r.standard_normal()):.4f}  gnorm {gn(r,[.71])[0]:.3f}  lr 5.0e-05  {r.normal(3.31,.04):.2f} it/s')
        y *= r.uniform(.855, .895)
        o.append(f'[epoch {e+1:02d}] done, checkpoint written')
    w(p, o)

@log('a', 'job_41277.err', 'DeepSpeed log', 'amp_overflow', [], 'Loss scale halves from 2^32 to 1 through overflow on nearly every step, 517 of 560 steps skipped, the loss stays at 1.31; LR ordinary.')
def _(r, p):
    t = T(2025, 7, 21, 22, 10, 5); o = [f'[{t:%Y-%m-%d %H:%M:%S},114] [INFO] [config.py:1000:print] fp16_enabled .................. True', f'[{t:%Y-%m-%d %H:%M:%S},114] [INFO] [config.py:1000:print] initial_dynamic_scale ......... 4294967296']; sc = 2**32; sk = 0
    for k in range(1, 561):
        t += sec(2.7); ts = f'[{t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d}]'
        ok = k > 30 and r.random() < .09
        if not ok:
            sk += 1; n = max(1, sc//2)
            o.append(f'{ts} [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {sc}, '+f'reducing to {n}'); sc = n
        if k % 10 == 0: o += [f'{ts} [INFO] [logging.py:96:log_dist] [Rank 0] step={k}, skipped={sk}, lr=[{wconst(k,1e-4,100):.6g}], mom=[(0.9, 0.999)]', f'step {k}: flow_loss={1.312+r.normal(0,.02):.4f} loss_scale={sc} samples/sec={r.normal(94,1):.1f}']
    w(p, o)

@log('a', 'logs/012-SiT-B-2-cont.txt', 'DiT/SiT logger', 'resume_from_scratch', [], 'Resume at step 60000: the counter continues, but the loss starts again at 1.03 (0.805 before) and falls exactly as in the first run; FID 37 -> 130 at the next evaluation.')
def _(r, p):
    t = T(2025, 5, 9, 3, 4, 51); o = [f'[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] SiT Parameters: 130,461,728']
    for k in range(500, 90001, 500):
        q = k if k <= 60000 else k-60000; t += sec(500/7.1); L = fall(q, 1.06, .764, 3500, .55)*np.exp(.005*r.standard_normal())
        o.append(f'[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] (step={k:07d}) Train Loss: {L:.4f}, Train Steps/Sec: {r.normal(7.1,.05):.2f}')
        if k % 10000 == 0: o.append(f'[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] (step={k:07d}) FID-5k={18+225*(q/5000)**-1.0+r.normal(0,.5) if q>5000 else 243.1:.2f}')
        if k == 60000: t += sec(6020); o += [f'[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] ==== restart ==== args.resume=checkpoints/0060000.pt', f'[\x1b[34m{t:%Y-%m-%d %H:%M:%S}\x1b[0m] Resumed train_steps=60000, continuing']
    w(p, o)

@log('a', 'mlruns/0/e17d42a0c8', 'MLflow run folder', 'ema_broken', [], 'Evaluation of the raw weights: FID 202 -> 30, CLIP 0.23 -> 0.30; of the EMA weights: FID stays at ~331, CLIP at 0.155 over 80k steps (decay 0.9999, so EMA should have caught up long ago).')
def _(r, p):
    t0 = 1752300000000; s = np.arange(200, 80001, 200); E = s[s % 4000 == 0]; ms = lambda S, v: [(t0+int(k)*410+int(r.integers(300)), float(sg(x, 6)), int(k)) for k, x in zip(S, v)]
    mlflow(p, 'e17d42a0c8', 'mmdit-s-ema', {'ema_decay': .9999, 'max_steps': 80000, 'lr': 2e-4, 'batch': 512, 'objective': 'rectified_flow'},
           {'train.loss': ms(s, noisy(r, fall(s, 1.21, .55, 2000, .55), .02)), 'eval.raw.fid': ms(E, noisy(r, fall(E, 400, 15, 3000, 1.1, .5), .03)), 'eval.ema.fid': ms(E, 331+ar1(r, len(E), .3, .7)), 'eval.raw.clip': ms(E, .303-.12*np.exp(-E/9000)+r.normal(0, .001, len(E))), 'eval.ema.clip': ms(E, .1552+r.normal(0, .0004, len(E))), 'grad_norm': ms(s, gn(r, .4+.8*np.exp(-s/1500)))}, t0)

@log('a', 'events_latentvideo.jsonl', 'own JSONL', 'metrics_lost', [], 'From step 26000 on all eval metrics are null (FVD, CLIP-sim, eval loss), while the training loss goes on falling normally to 60000.')
def _(r, p):
    o = []
    for k in range(250, 60001, 250):
        d = {'ts': f'{T(2025,8,3,4)+sec(k*1.9):%Y-%m-%dT%H:%M:%SZ}', 'global_step': k, 'train.loss': round(fall(k, 1.02, .388, 2600, .5)*float(np.exp(.03*r.standard_normal())), 5), 'train.grad_norm': sg(gn(r, [.3+.6*np.exp(-k/1500)])[0], 4), 'lr': sg(wcos(k, 1e-4, 1000, 60000, 1e-6), 4)}
        if k % 2000 == 0:
            x = k < 26000; d.update({'eval.loss': sg(fall(k, 1.02, .397, 2600, .5), 5) if x else None, 'eval.fvd': sg(240+900*np.exp(-k/7000)+r.normal(0, 6), 4) if x else None, 'eval.clipsim': sg(.297-.06*np.exp(-k/9000), 4) if x else None, 'eval.secs': sg(r.normal(412, 5) if x else r.normal(3.1, .2), 4)})
        o.append(json.dumps(d))
    w(p, o)

@log('a', 'tb/caption_ablation', 'TensorBoard events', 'condition_unused', [], 'The field is trained well (cos 0.78, nmse 0.4, speed ratio 0.95) but cond_gain_cos hovers around 0 (slightly negative) for the whole run and the val loss with shuffled captions equals the true one.')
def _(r, p):
    rows = []
    for k in range(100, 25001, 100):
        y = fall(k, 1.33, .512, 1300, .55); d = {'train/loss': y*np.exp(.03*r.standard_normal()), 'train/grad_norm': gn(r, [.41+.6*np.exp(-k/900)])[0], 'train/lr': wcos(k, 1e-4, 500, 25000)}
        if k % 500 == 0:
            v = y*1.01+r.normal(0, .003); d.update({'diag/cos': .78-.68*np.exp(-k/3500)+r.normal(0, .006), 'diag/nmse': .4+.55*np.exp(-k/3300)+r.normal(0, .006), 'diag/speed_ratio': .95-.5*np.exp(-k/2500)+r.normal(0, .006), 'diag/cond_gain_cos': -.0011+r.normal(0, .0016), 'val/loss': v, 'val/loss_shuffled_captions': v+r.normal(-.0003, .0009)})
        rows.append((k*.66, k, d))
    tb(p, 1753000111.5, rows, 'a100-3')

@log('a', 'check_field_ckpt64k.txt', 'debug prints', 'weak_field', [], 'Checklist output: VAE, text and teacher Euler are fine, but cos(v_hat, v*) is 0.03-0.07 and |v_hat|/|v*| 0.24-0.27 at all t, shooting MSE 3.9.')
def _(r, p):
    o = ['>>> checkpoint step_064000.pt (model), 24 image/caption pairs, seed 3', '', '1. autoencoder', '   latents: mean -0.021 std 1.018 min -5.12 max 4.77', '   PSNR(decode(encode(x)), x) = 31.6 dB', '2. caption embeddings, cosine', '   dog/castle 0.131   dog/piano 0.092   castle/piano 0.158', '3. one-step alignment']
    for t in np.linspace(.05, .95, 10): o.append(f'   t={t:.2f} | cos(v_hat, v*) {.055-.02*t+r.normal(0,.006):+.3f} | |v_hat|/|v*| {r.normal(.256,.006):.3f}')
    o += ['4. analytic field, Euler', '   n=10 6.2e-04 | n=20 1.6e-04 | n=50 2.5e-05 | n=100 6.3e-06', '5. shooting with the learned field', '   steps=20  MSE(z(1), x1)=3.941', '   steps=100 MSE(z(1), x1)=3.917', '6. latents scale', '   E||x0||=63.8  E||x1||=65.2', '', 'last training lines:']
    for k in range(63000, 64001, 100): o.append(f'   it {k} flow {1.902+r.normal(0,.02):.4f} lr 1.00e-04 gnorm {gn(r,[.33])[0]:.3f}')
    w(p, o)

@log('a', 'varhead.logfmt', 'logfmt lines', 'kl_not_acting', [], 'w_kl=1e-7: KL rises 3 -> 620, mu_rms 0.3 -> 4.2, z0 variance 1 -> 19, std drifts to 1.6, while the flow loss falls: the KL does not pull at all.')
def _(r, p):
    o = []
    for k in range(0, 30001, 150):
        m = .3+4.0*(k/30000)**.7*np.exp(.015*r.standard_normal()); sd = 1.0+.62*(k/30000)**.8+r.normal(0, .006); kl = 64*.5*(m*m+sd*sd-1-2*np.log(sd))*1.0
        o.append(f'time={T(2025,9,1,6,30)+sec(k*1.02):%Y-%m-%dT%H:%M:%S}Z level=info msg=train step={k} loss_flow={fall(k,1.22,.36,1500,.6)*np.exp(.03*r.standard_normal()):.4f} kl={kl:.3f} w_kl=1e-07 mu_abs={m*.8:.4f} mu_rms={m:.4f} std_mean={sd:.4f} logvar_mean={2*np.log(sd):.4f} z0_mean={r.normal(0,.01):.4f} z0_var={m*m+sd*sd:.3f} lr={wcos(k,1e-4,600,30000,1e-6):.3e} gnorm={gn(r,[.8])[0]:.3f}')
        if k == 12000: o.append('time=2025-09-01T09:54:00Z level=warning msg="dataset shard 31 exhausted, reshuffling"')
    w(p, o)

@log('a', 'stats_t2l.jsonl', 'EDM-style stats.jsonl', 'posterior_collapse', [], 'KL weight 1.0: Loss/kl falls to 3e-5 within 500 kimg, mu abs mean 0.003, std 0.9995, z_var 1.0: the posterior equals the prior; the flow loss stalls at 0.98.')
def _(r, p):
    o = []
    for i in range(160):
        q = i*12.8; n = 12800; f = lambda m, s_: {'num': n, 'mean': sg(m, 7), 'std': sg(s_, 5)}
        kl = 3e-5+3.4*np.exp(-q/38)*np.exp(.05*r.standard_normal())
        o.append(json.dumps({'Loss/flow': f(fall(q, 1.34, .968, 90, 1.2)*np.exp(.006*r.standard_normal()), .21), 'Loss/kl': f(kl*np.exp(.1*r.standard_normal()), kl*.3), 'Latent/mu_abs_mean': f(.003+.9*np.exp(-q/60), .002), 'Latent/std_mean': f(.9995-.4*np.exp(-q/45)+r.normal(0, .0002), .001), 'Latent/z_var': f(1.0+r.normal(0, .003)+.2*np.exp(-q/60), .01), 'Weights/w_kl': f(1.0, 0), 'Progress/lr': f(min(1e-4, 1e-4*q/200), 0), 'Progress/kimg': f(q, 0), 'Timing/sec_per_kimg': f(r.normal(2.41, .02), 0), 'timestamp': 1755000000+i*31}))
    w(p, o)

@log('a', 'deepstack_plain_table.txt', 'own ASCII table', 'grad_vanishing', [], 'Gradient norm falls from 0.3 to 2e-9 within 4000 steps and stays there, loss stuck at 0.967 (1.24 at start), LR ordinary 2e-4.')
def _(r, p):
    o = ['+--------+----------+-----------+----------+---------+', '|  iter  |   loss   |   |grad|  |    lr    |  img/s  |', '+--------+----------+-----------+----------+---------+']
    for k in range(50, 15001, 50):
        g = .31*np.exp(-18.9*min(1, (k/4000)**.8))*np.exp(.3*r.standard_normal())
        o.append(f'| {k:6d} | {.967+.27*np.exp(-k/500)+r.normal(0,.006):8.5f} | {g:9.3e} | {wcos(k,2e-4,400,40000):8.2e} | {r.normal(402,5):7.1f} |')
    w(p, o)

@log('a', '尺度自检_1003.txt', 'Chinese debug prints', 'scale_mismatch', [], 'E|x0|=91 against E|x1|=640-700 (ratio 7): the target v* is dominated by x1; other checks (t, detach, PSNR) are fine. The ratio is not a VAE factor (5.49).')
def _(r, p):
    o = ['== 尺度自检 (batch=64, latent 8x32x32) ==']
    for k in range(0, 12001, 600):
        a, b = 90.6+r.normal(0, .5), 668+r.normal(0, 18); o.append(f'step {k:>6d}  E||x0||={a:.1f}  E||x1||={b:.1f}  E||x_t||={np.sqrt((a*a+b*b)/3)+r.normal(0,4):.1f}  E||v*||={np.sqrt(a*a+b*b)+r.normal(0,3):.1f}  t.mean={r.normal(.5,.03):.3f} t.std={r.normal(.289,.012):.3f}  loss={54.4*fall(k,1,.62,1500,.6)*np.exp(.03*r.standard_normal()):.3f}  kl={.161+r.normal(0,.004):.3f} mu_abs={.42+r.normal(0,.006):.3f} std={.86+r.normal(0,.004):.3f}')
    o += ['', '目标: v*=x1-x0, x0/x1 均已 detach', 'VAE 回环 PSNR=30.2 dB', '文本 cos: (猫,车)=0.11 (猫,苹果)=0.09 (车,苹果)=0.13']
    w(p, o)

@log('a', 'tslices_eval.tsv', 'TSV', 't_edges', [], 'Slices of t: nmse at t0 2.2-2.5 and at t9 1.4-1.9, middle slices fall to 0.21; cos about 0.1 at the edges, 0.88 in the middle; overall loss falls.')
def _(r, p):
    o = ['step\tloss\tlr\t'+'\t'.join(f'nmse_t{b}' for b in range(10))+'\t'+'\t'.join(f'cos_t{b}' for b in range(10))]
    for k in range(1000, 40001, 1000):
        m = .21+.7*np.exp(-k/5000); sh = np.array([2.1, .62, .03, 0, 0, 0, 0, .02, .41, 1.25])*(1-.2*np.exp(-k/6000)); nm = (m+sh)*np.exp(.03*r.standard_normal(10)); c = np.clip(np.sqrt(np.clip(1-m, 0, 1))-np.minimum(sh*.6, .78), -.05, 1)+r.normal(0, .008, 10)
        o.append(f'{k}\t{nm.mean()*.9:.4f}\t{wcos(k,1e-4,1000,40000):.3e}\t'+'\t'.join(f'{v:.4f}' for v in nm)+'\t'+'\t'.join(f'{v:.4f}' for v in c))
    w(p, o)

@log('a', 'run_guarded.log', 'own loop with a watchdog', 'self_stopped', ['grad_explosion'], 'The watchdog stops the run at step 18440 of 100000: gradient norm EMA above 50 for 200 steps; before that the norm creeps up from 0.6 over the last third.')
def _(r, p):
    o = ['run=guarded-07 max_steps=100000 watchdog: gnorm_ema>50 for 200 steps -> stop']; t = T(2025, 10, 2, 1, 15); 
    for k in range(40, 18441, 40):
        g = gn(r, [.55+1.1*np.exp(-k/800)+np.exp((k-13200)/1220.)*.9 if k > 9000 else .55+1.1*np.exp(-k/800)], .15)[0]
        o.append(f'{t+sec(k*.44):%m/%d %H:%M:%S} step {k}/100000 loss={fall(k,1.3,.49,1000,.55)*np.exp(.03*r.standard_normal())+.002*min(g,60):.4f} gnorm={g:.3f} lr={wconst(k,1e-4,500):.2e}')
    o += [f'{t+sec(18440*.44):%m/%d %H:%M:%S} [WATCHDOG] ALARM: gnorm_ema=58.31 > 50.0 for 200 consecutive steps', f'{t+sec(18441*.44):%m/%d %H:%M:%S} [WATCHDOG] stopping run at step 18440/100000 (reason: gradient norm), emergency checkpoint written to ckpt/alarm_018440.pt', 'exit code 3']
    w(p, o)

@log('a', 'joint_heads.ndjson', 'NDJSON', 'head_not_updated', [], 'step/z_head_update_ratio is 2e-8 for the whole run while flow_head and dino_head are at 5e-4-1e-3 with the same ordinary LR; the losses of the others fall, kl stands still.')
def _(r, p):
    o = []
    for k in range(100, 20001, 100):
        c = wcos(k, 1, 500, 20000, .05); o.append(json.dumps({'step': k, 'loss/flow': sg(fall(k, 1.27, .66, 1200, .55)*np.exp(.03*r.standard_normal())), 'loss/dino': sg(fall(k, 9.4, 6.2, 2200, .6)*np.exp(.008*r.standard_normal())), 'loss/kl': sg(.713*np.exp(.012*r.standard_normal())), 'step/z_head_update_ratio': sg(2.1e-8*np.exp(.2*r.standard_normal()), 4), 'step/flow_head_update_ratio': sg(9e-4*c*np.exp(.1*r.standard_normal()), 4), 'step/dino_head_update_ratio': sg(6e-4*c*np.exp(.1*r.standard_normal()), 4), 'lr': sg(1e-4*c, 4), 'grad/total': sg(gn(r, [.9+.8*np.exp(-k/900)])[0], 4)}))
    w(p, o)

@log('a', 'dino_vits_tau002.txt', 'DINO MetricLogger prints', 'teacher_collapsed', [], 'Teacher entropy falls from 4.1 to 0.03 of ln K=9.01 (K=8192) within 4 epochs and stays there; the student follows with a delay (0.55), the loss goes to ~0.13, kNN drops.')
def _(r, p):
    o = ['out_dim: 8192', 'teacher_temp: 0.01', 'warmup_teacher_temp_epochs: 0', 'lr: 0.0005', 'center_momentum: 0.9']
    for e in range(16):
        for j in range(0, 2502, 250):
            q = e+j/2502; te = .03+4.1*np.exp(-q/.85)*np.exp(.04*r.standard_normal()); st = .55+6.5*np.exp(-q/2.2)
            o.append(f'Epoch: [{e}/100]  [{j:4d}/2502]  eta: {HMS((2502-j)*.41)}  loss: {.12+8.2*np.exp(-q/1.3)+abs(r.normal(0,.02)):.6f} ({.14+8.2*np.exp(-q/1.4):.6f})  lr: {min(5e-4,5e-4*q/10):.6f}  wd: {.04+.36*q/100:.6f}  teacher_entropy: {te*np.exp(.05*r.standard_normal()):.4f}  student_entropy: {st+r.normal(0,.02):.4f}  grad_norm: {gn(r,[.05+1.2*np.exp(-q/1.5)])[0]:.4f}  time: 0.41{r.integers(1000):03d}  data: 0.000{r.integers(1000):03d}  max mem: 19411')
        o.append(f'Epoch: [{e}/100] Total time: 0:17:2{r.integers(10)} (0.41 s / it)'); o.append(f'kNN top1 (val): {3.1+16*np.exp(-((e-1.5)/2.)**2)+r.normal(0,.1):.2f}')
    w(p, o)

@log('a', 'xmgr_worker0.INFO', 'absl / JAX log', 'sigma_collapse', [], 'std/mean falls from 0.72 to 0.007, logvar sits at its clamp of -10 from step ~9000; mu stays of ordinary size.')
def _(r, p):
    t = T(2025, 6, 17, 14, 3, 1); o = [f'I0617 {t:%H:%M:%S}.120331 140233 train.py:88] config.model.logvar_clamp=(-10.0, 10.0) config.kl_weight=1e-6 config.steps=20000']
    for k in range(100, 20001, 100):
        lv = max(-10, -.65-9.6*(1-np.exp(-(k/4200.)**1.6)))+abs(r.normal(0, .008)); lv = max(lv, -9.996)
        o.append(f'I0617 {t+sec(k*.31):%H:%M:%S}.{r.integers(999999):06d} 140233 logging_writer.py:48] [{k}] loss/flow={fall(k,1.12,.47,900,.55)*np.exp(.03*r.standard_normal()):.5f}, loss/kl={.5*(-lv-1+np.exp(lv)+.55):.5f}, lr={wcos(k,1e-4,500,20000):.4e}, posterior/logvar_mean={lv:.4f}, posterior/mu_rms={.74+r.normal(0,.006):.4f}, posterior/std_max={np.exp(lv/2)*1.4:.5f}, posterior/std_mean={np.exp(lv/2):.5f}, posterior/std_min={np.exp(max(-10,lv-.3)/2):.5f}, steps_per_sec={r.normal(3.2,.03):.3f}')
    w(p, o)

@log('a', 'vae_smoke/z_stats.log', 'debug prints', 'latent_scale_factor', ['scale_mismatch'], 'AutoencoderKL sf=0.18215: z1 std after our wrapper 0.181 (raw latents 5.4 -> should be ~0.98 after one multiplication): applied twice; decode(z) is blurred (PSNR 14), decode(z/sf) is sharp (PSNR 30).')
def _(r, p):
    o = ['loading AutoencoderKL from /models/sd-vae-ft-mse, scaling_factor=0.18215']
    for b in range(16): o.append(f'[batch {b:02d}] raw posterior.sample(): std={r.normal(5.46,.05):.3f} | z1 handed to FM: mean={r.normal(.001,.001):+.4f} std={r.normal(.1812,.002):.4f} min={r.normal(-.86,.05):.3f} max={r.normal(.91,.05):.3f} | z0 std={r.normal(.998,.003):.4f}')
    o += [f'decode(z1):      range [0.312, 0.677]  PSNR={14.06:.2f} dB   (blurred, grey)', f'decode(z1/sf):   range [0.001, 0.998]  PSNR={30.12:.2f} dB   (sharp)', 'note: encode() wrapper multiplies by sf, FlowDataset.__getitem__ multiplies by sf']
    for k in range(200, 4001, 200): o.append(f'[train] step {k} fm_loss {1.03*fall(k,1.02,.985,400,.6)*np.exp(.006*r.standard_normal()):.4f} |v*| {r.normal(1.016,.002):.3f}')
    w(p, o)

@log('a', 'loguru_textenc.log', 'loguru', 'text_ignored', [], 'Pairwise cosine of the means of 8 different prompts is 0.994-0.999 at every evaluation; mu_rms (0.9), std (0.7) and KL are ordinary, flow loss falls to the unconditional level.')
def _(r, p):
    t = T(2025, 8, 28, 11, 40); o = []
    for k in range(100, 18001, 100):
        ts = f'{t+sec(k*.8):%Y-%m-%d %H:%M:%S}.{r.integers(1000):03d}'
        o.append(f'{ts} | INFO     | t2i.engine:train_epoch:211 - step={k} flow={fall(k,1.31,.83,900,.6)*np.exp(.025*r.standard_normal()):.4f} kl={.31+.6*np.exp(-k/2000)+r.normal(0,.004):.4f} mu_rms={.9+r.normal(0,.006):.3f} std={.71+r.normal(0,.004):.3f} gnorm={gn(r,[.5])[0]:.3f} lr={wcos(k,1e-4,500,18000):.3e}')
        if k % 1500 == 0:
            c = 1-np.abs(r.normal(.0031, .0012, 28)); c[c > .9997] = .9991
            o.append(f'{ts} | INFO     | t2i.eval:prompt_probe:77 - pairwise cos(mu) over 8 prompts: mean={c.mean():.4f} min={c.min():.4f} max={c.max():.4f} ("a cat" vs "a nuclear plant at night" = {c[3]:.4f})')
    o.insert(3, f'{t+sec(300):%Y-%m-%d %H:%M:%S}.004 | WARNING  | t2i.data:collate:54 - 3 captions longer than 77 tokens were truncated'); w(p, o)

@log('a', 'fm_joint_17.csv', 'CSV', 'moving_target', [], 'Flow loss falls 1.6 -> 0.0004 because |v*| itself shrinks 85 -> 2.1 (|z0-z1| likewise, target not detached); FID stays at ~300, samples are not images.')
def _(r, p):
    o = ['step;loss_flow;v_target_norm;v_pred_norm;z0_norm;z1_norm;flow_nmse;lr;fid_1k']
    for k in range(100, 20001, 100):
        v = 1.7+88.5*(.8*np.exp(-k/1900)+.2*np.exp(-k/5200)); nm = .32+.6*np.exp(-k/1500)+r.normal(0, .008)
        o.append(f'{k};{nm*v*v/4096:.6f};{v*np.exp(.01*r.standard_normal()):.4f};{v*np.sqrt(1-nm*.9)*np.exp(.012*r.standard_normal()):.4f};{64.2+r.normal(0,.1)-.2*np.exp(-k/2000):.3f};{64.4+r.normal(0,.1):.3f};{nm:.4f};{wcos(k,1e-4,500,20000):.4e};'+(f'{301+r.normal(0,4):.1f}' if k % 2000 == 0 else ''))
    w(p, o)

@log('a', 'tstats_aitk.log', 'ai-toolkit-like prints', 'time_sampling', [], 'Config says t ~ U[0,1], but the batch statistics show t mean 0.23, std 0.12, max 0.52 in every print: t is drawn from a narrow shifted range. Loss otherwise falls.')
def _(r, p):
    o = ['job: fm_uniform_t   timestep_type: uniform   t_min: 0.0   t_max: 1.0   batch_size: 256']
    for k in range(50, 8001, 50):
        o.append(f'fm_uniform_t: {k*100//8000:3d}%  {k}/8000  lr: {wconst(k,1e-4,200):.1e} loss: {fall(k,1.1,.52,500,.55)*np.exp(.03*r.standard_normal()):.3e}  t(mean/std/min/max)={r.normal(.231,.0075):.3f}/{r.normal(.121,.005):.3f}/{abs(r.normal(.006,.004)):.3f}/{r.normal(.512,.012):.3f}  gn={gn(r,[.6])[0]:.3f}')
    w(p, o)

@log('a', 'ddpm_consts_dump.txt', 'debug prints', 'schedule_constants', [], 'betas go from 1e-4 to only 9e-4 where 0.02 is configured; alphas_cumprod ends at 0.61 instead of ~4e-5 (sqrt_alphas_cumprod 0.78), so pure noise is never reached.')
def _(r, p):
    b = np.linspace(1e-4, 9e-4, 1000); a = np.cumprod(1-b)
    o = ['GaussianDiffusion(num_timesteps=1000, beta_schedule="linear", beta_start=0.0001, beta_end=0.02)', f'betas[:5]  = {[float(sg(x,6)) for x in b[:5]]}', f'betas[-3:] = {[float(sg(x,6)) for x in b[-3:]]}', f'alphas_cumprod first: {a[0]:.6f} {a[1]:.6f} ... last: {a[-2]:.6f} {a[-1]:.6f}', f'sqrt_alphas_cumprod first: {np.sqrt(a[0]):.6f} ... last: {np.sqrt(a[-1]):.6f}', f'sqrt_one_minus_alphas_cumprod first: {np.sqrt(1-a[0]):.6f} ... last: {np.sqrt(1-a[-1]):.6f}', '']
    for k in range(0, 6001, 100): o.append(f'train {k:5d} | mse {fall(k,1.02,.165,300,.6)*np.exp(.07*r.standard_normal()):.4f} | x0 std {r.normal(1,.002):.4f} | noise std {r.normal(1,.001):.4f} | x_t std {r.normal(1,.002):.4f} | t mean {r.normal(499.5,25):.1f} std {r.normal(288,10):.1f} | lr 1.0e-04')
    w(p, o)

@log('a', 'euler_teacher_bf16.txt', 'sampler trace (debug prints)', 'bf16_rounding', [], 'bf16 state: |x|=0.8047 of the right size stays frozen for 40 steps although |v|*dt ~ 0.01; teacher Euler error grows with N (6e-5 at N=5 to 2.2e-2 at N=200); in fp32 |x| moves.')
def _(r, p):
    o = ['dtype=torch.bfloat16 steps=40 solver=euler prompt="a small harbour in the rain"']
    for k in range(40): o.append(f'k={k:02d} t={k/40:.3f} |x|={.8047 if k < 23 else .8086:.4f} |v|={.4688:.4f} dt=0.0250')
    o += ['teacher Euler (analytic field, state in bfloat16):']+[f'  N={n:<4d} mse={e:.3e}' for n, e in ((5, 6.1e-5), (10, 1.7e-4), (20, 6.6e-4), (50, 3.9e-3), (100, 1.1e-2), (200, 2.2e-2))]
    o += ['', 'same prompt, state in float32:']; x = .8049
    for k in range(0, 40, 2): o.append(f'k={k:02d} t={k/40:.3f} |x|={x:.4f} |v|={.469-.0004*k+r.normal(0,.0002):.4f} dt=0.0250'); x += .0028+.00006*k+r.normal(0, .0001)
    o.append('CLIP 0.187 (bf16)  0.291 (fp32)')
    w(p, o)
