import json
from core import *
np.seterr(all='ignore')

# =====================================================================  healthy
@log('b', 'saves/lumina_lora/trainer_log.jsonl', 'LLaMA-Factory trainer_log.jsonl', 'none', [], 'Style fine-tune: noisy loss 0.86 -> 0.71, eval loss falls and flattens, linear decay.')
def _(r, p):
    o = []; N = 4500
    for k in range(15, N+1, 15):
        d = {'current_steps': k, 'total_steps': N, 'loss': round(float(fall(k, .86, .672, 420, .6)*np.exp(.05*r.standard_normal())), 4), 'lr': sg(wlin(k, 5e-5, 135, N), 8), 'epoch': round(k/900, 4), 'percentage': round(100*k/N, 2), 'elapsed_time': HMS(k*2.33), 'remaining_time': HMS((N-k)*2.33)}
        o.append(json.dumps(d))
        if k % 900 == 0: o.append(json.dumps({'current_steps': k, 'total_steps': N, 'eval_loss': round(float(fall(k, .86, .684, 420, .6)+r.normal(0, .0015)), 6), 'epoch': k/900, 'percentage': round(100*k/N, 2), 'elapsed_time': HMS(k*2.33), 'remaining_time': HMS((N-k)*2.33)}))
    w(p, o)

@log('b', 'work_dirs/fm_unet/20250514_091202.log', 'mmengine', 'none', [], 'Epoch-based flow training, interrupted after epoch 9 and resumed properly with "resume=True" (loss and LR continue).')
def _(r, p):
    t = T(2025, 5, 14, 9, 12, 2); o = [f'{t:%m/%d %H:%M:%S} - mmengine - INFO - Hooks will be executed in the following order:', f'{t:%m/%d %H:%M:%S} - mmengine - WARNING - "FileClient" will be deprecated in future. Please use io functions instead']
    for e in range(1, 21):
        for j in range(100, 1401, 100):
            k = (e-1)*1400+j; t += sec(100*.287); y = fall(k, 1.22, .538, 1500, .55)
            o.append(f'{t:%m/%d %H:%M:%S} - mmengine - INFO - Epoch(train) [{e}][{j:4d}/1400]  lr: {wcos(k,2e-4,1000,28000,2e-6):.4e}  eta: {HMS((28000-k)*.29)}  time: {.287+r.normal(0,.002):.4f}  data_time: {abs(r.normal(.006,.001)):.4f}  memory: 22871  grad_norm: {gn(r,[.44+.8*np.exp(-k/900)])[0]:.4f}  loss: {y*np.exp(.018*r.standard_normal())+.021:.4f}  loss_fm: {y*np.exp(.018*r.standard_normal()):.4f}  loss_repa: {.021+.2*np.exp(-k/4000):.4f}')
        if e == 9: t += sec(7600); o += [f'{t:%m/%d %H:%M:%S} - mmengine - INFO - Auto resumed from the latest checkpoint work_dirs/fm_unet/epoch_9.pth.', f'{t:%m/%d %H:%M:%S} - mmengine - INFO - resumed epoch: 9, iter: 12600']
        if e % 4 == 0: o.append(f'{t:%m/%d %H:%M:%S} - mmengine - INFO - Epoch(val) [{e}][40/40]    fid: {9.1+60*np.exp(-e/4.)+r.normal(0,.2):.4f}  val_loss: {fall(e*1400,1.22,.545,1500,.55):.4f}  data_time: 0.0121  time: 0.5110')
    w(p, o)

@log('b', 'output/train/20250822-uvit/summary.csv', 'timm summary.csv', 'none', [], 'One row per epoch, train and EMA eval loss fall and flatten; learning rate cosine with 5 warm-up epochs.')
def _(r, p):
    o = ['epoch,train_loss,eval_loss,eval_psnr_x0,eval_loss_ema,lr']
    for e in range(150):
        y = fall(e+1, .98, .488, 7, .7); em = fall(max(0, e-2)+1, .99, .481, 7, .75)
        o.append(f'{e},{y*np.exp(.004*r.standard_normal())},{y*1.012*np.exp(.007*r.standard_normal())},{18.1-7*np.exp(-e/12)+r.normal(0,.06)},{em*1.006*np.exp(.002*r.standard_normal())},{wcos(e,4e-4,5,150,1e-6)}')
    w(p, o)

@log('b', 'composer_run.stdout', 'MosaicML Composer', 'none', [], 'Streaming text-to-image run, long horizon, slow power-law descent, warm-up, one shard-download stall; all fine.')
def _(r, p):
    o = ['INFO: composer.trainer.trainer: Run name: 1741002-rf-2b-256', 'INFO: composer.trainer.trainer: Stepping schedulers every batch.']
    for k in range(200, 60001, 200):
        o += [f'[batch={k}/60000]:', f'\t Train time/batch: {k-1}', f'\t Train time/sample: {(k-1)*2048}', f'\t Train loss/train/total: {fall(k,1.51,.58,1500,.38)*np.exp(.009*r.standard_normal()):.4f}', f'\t Train l2_norm/grad/global: {gn(r,[.21+.7*np.exp(-k/1200)])[0]:.4f}', f'\t Train lr-DecoupledAdamW/group0: {wconst(k,1e-4,4000):.4e}', f'\t Train throughput/samples_per_sec: {r.normal(2310,18) if k!=31200 else 402.1:.4f}', f'\t Train time/remaining_estimate: {(60000-k)*.00025:.4f}']
        if k % 10000 == 0: o += [f'[Eval batch=40/40] Eval on coco_val data:', f'\t Eval metrics/coco_val/MeanSquaredError: {fall(k,1.51,.586,1500,.38):.4f}', f'\t Eval metrics/coco_val/CLIPScore: {31.4-9*np.exp(-k/16000):.4f}']
    w(p, o)

@log('b', 'borg_task_00.INFO', 'absl + clu metric writer', 'none', [], 'JAX DiT: EMA eval worse than raw at the beginning (EMA lags), overtakes raw later; ordinary.')
def _(r, p):
    t = T(2025, 2, 26, 1, 12, 0); o = [f'I0226 {t:%H:%M:%S}.003311 1 xla_bridge.py:889] Unable to initialize backend \'cuda\': module \'jaxlib.xla_extension\' has no attribute \'GpuAllocatorConfig\'', f'I0226 {t:%H:%M:%S}.101441 1 main.py:61] JAX process: 0 / 8, ema_decay=0.9998']
    for k in range(250, 50001, 250):
        ts = f'I0226 {t+sec(k*.19):%H:%M:%S}.{r.integers(999999):06d} 1 logging_writer.py:64]'; y = fall(k, 1.03, .71, 2600, .5)
        o.append(f'{ts} [{k}] global_norm_grads={gn(r,[.18+.5*np.exp(-k/1500)])[0]:.5f}, learning_rate={wcos(k,3e-4,2500,50000):.6g}, train_mse={y*np.exp(.006*r.standard_normal()):.6f}, uptime={k*.19:.1f}')
        if k % 2500 == 0: o.append(f'{ts} [{k}] eval_mse={y*1.004+r.normal(0,.0007):.6f}, eval_mse_ema={fall(k-1900,1.03,.700,2600,.5)+.004*np.exp(-k/9000)+r.normal(0,.0004):.6f}')
    w(p, o)

@log('b', 'neptune_export_T2I-318.csv', 'long-format metric export', 'none', [], 'Long-format export (metric,step,value): loss, val loss, LR, gradient norm, GPU stats; healthy, val flat at the end.')
def _(r, p):
    o = ['run_id,series,step,timestamp_ms,value']; rows = []
    for k in range(0, 20001, 100):
        ms = 1750000000000+k*640; y = fall(k, 1.29, .604, 1000, .55)
        rows += [('training/batch/loss', k, ms, y*np.exp(.03*r.standard_normal())), ('training/batch/grad_norm', k, ms, gn(r, [.5+1.*np.exp(-k/700)])[0]), ('training/lr', k, ms, wcos(k, 1.5e-4, 800, 20000)), ('monitoring/gpu_util', k, ms, r.normal(97, 1.))]
        if k and k % 1000 == 0: rows += [('training/val/loss', k, ms+31000, y*1.01+r.normal(0, .002)), ('training/val/hps', k, ms+31000, .268-.05*np.exp(-k/6000)+r.normal(0, .0006))]
    rows.sort(key=lambda q: q[0]); w(p, o+[f'T2I-318,{a},{k},{ms},{float(v):.7g}' for a, k, ms, v in rows])

@log('b', '00031-edm2-img64-xs/log.txt', 'EDM tick status', 'none', [], 'EDM2-like ticks with loss and FID lines, power-law descent; EMA FID falls to 5.')
def _(r, p):
    o = ['Loading dataset...', 'Setting up training state...', 'Training for 268435 kimg...', '']
    for i in range(1, 161):
        q = i*1677.7; o.append(f'Status: {q/1e3:8.2f} Mimg  time {HMS(q*1.21)}  sec/tick {r.normal(2030,14):7.1f}  sec/kimg {r.normal(1.21,.008):5.3f}  maintenance {r.normal(6.1,.4):6.1f}  cpumem {4.61+.001*i:.2f}  gpumem 31.22  reserved 34.17  loss {fall(q,.41,.1312,4200,.5)*np.exp(.003*r.standard_normal()):.5f}  lr {1.2e-2/max(1,(q/35000))**.5*min(1,q/10000):.3e}')
        if i % 20 == 0: o.append(f'fid: {4.6+58*np.exp(-i/22):.4f}  (phema 0.10, 50k samples)')
    w(p, o)

@log('b', 'hifi_vocoder_train.log', 'GAN epoch log', 'none', [], 'GAN vocoder on top of a flow latent: gen/disc losses oscillate against each other without a trend (normal), mel loss and val mel fall, feature-matching loss grows slowly (normal: discriminator features get stronger).')
def _(r, p):
    o = []; n = 260; z = ar1(r, n, .8, 1.)
    for i in range(n):
        k = (i+1)*500; mel = fall(k, 1.21, .262, 4000, .55)*np.exp(.03*r.standard_normal())
        o.append(f'INFO:train:Epoch {1+k//3100} Steps : {k}, Gen Loss Total : {45*mel+2.3+.25*z[i]+.9+(k/130000):.3f}, Mel-Spec. Error : {mel:.3f}, g_adv : {2.31+.22*z[i]+.1*r.standard_normal():.3f}, d_total : {2.42-.17*z[i]+.08*r.standard_normal():.3f}, fm : {1.1+1.1*(1-np.exp(-k/60000))+.06*r.standard_normal():.3f}, lr : {2e-4*.999**(k/3100):.7f}, s/b : {r.normal(.311,.004):.3f}')
        if k % 10000 == 0: o.append(f'INFO:train:Validation @ {k}: mel {fall(k,1.21,.281,4000,.55)+r.normal(0,.003):.4f} pesq {3.42-1.7*np.exp(-k/28000)+r.normal(0,.02):.3f}')
    w(p, o)

@log('b', 'runs/tb_rfaudio', 'TensorBoard with train/ and val/ folders', 'none', [], 'Two event folders (train, val), warm-up then inverse-sqrt LR, both losses fall, the gap stays at 2 %.')
def _(r, p):
    tr, va = [], []
    for k in range(50, 16001, 50):
        y = fall(k, 1.61, .705, 700, .5); tr.append((k*.4, k, {'loss': y*np.exp(.025*r.standard_normal()), 'grad_norm': gn(r, [.6+1.3*np.exp(-k/600)])[0], 'lr': 3e-4*min(k/1000, (1000/k)**.5)}))
        if k % 1000 == 0: va.append((k*.4+20, k, {'loss': y*1.02+r.normal(0, .003), 'cos': np.sqrt(max(0, 1-y*1.02/1.7))}))
    tb(p+'/train', 1747000000.0, tr, 'v100-1'); tb(p+'/val', 1747000001.0, va, 'v100-1')

@log('b', 'paddle_workerlog.0', 'Paddle worker log', 'none', [], 'PaddleMIX-like DiT run with AMP O2 bf16; loss falls slowly, ips constant.')
def _(r, p):
    t = T(2025, 3, 30, 20, 0, 0); o = ['LAUNCH INFO 2025-03-30 19:59:41,202 -----------  Configuration  ----------------------', 'LAUNCH INFO 2025-03-30 19:59:41,202 devices: 0,1,2,3,4,5,6,7']
    for k in range(20, 5001, 20): o.append(f'[{t+sec(k*.62):%Y-%m-%d %H:%M:%S},{r.integers(1000):03d}] [    INFO] - loss: {fall(k,1.18,.601,380,.5)*np.exp(.025*r.standard_normal()):.6f}, learning_rate: {wconst(k,1e-4,400):.3e}, global_step: {k}, current_memory_allocated: 14.22, max_memory_reserved: 31.7, interval_runtime: {r.normal(12.4,.1):.4f}, interval_samples_per_second: {r.normal(412,3):.2f}, interval_steps_per_second: {r.normal(1.61,.01):.4f}, ppl: 0.0, progress_or_epoch: {k/2500:.4f}')
    w(p, o)

@log('b', 'accelerate_pixart_0718.log', 'accelerate log with averaged loss', 'none', [], 'PixArt-like training with one sharp spike at step 7340 (x4, gradient norm 22) recovered within 100 steps and another small one; end loss is the lowest.')
def _(r, p):
    t = T(2025, 7, 18, 6, 30, 4); o = []
    for k in range(20, 12001, 20):
        y = fall(k, .58, .129, 800, .5)*np.exp(.035*r.standard_normal()); g = gn(r, [.31+.4*np.exp(-k/600)])[0]
        if 7340 <= k < 7440: y *= 1+3.1*np.exp(-(k-7340)/22); g = g*(1+90*np.exp(-(k-7340)/9))
        if k == 9160: y *= 1.5
        o.append(f'{t+sec(k*1.4):%Y-%m-%d %H:%M:%S},{r.integers(1000):03d} - PixArt - INFO - Step/Epoch [{k}/{1+k//2500}][{k%2500}/2500]: total_eta: {HMS((12000-k)*1.4)}, time_all:{r.normal(1.4,.01):.3f}, time_data:0.00{r.integers(1,9)}, lr:{wconst(k,2e-5,1000):.3e}, s:(32, 32), loss:{y:.4f}, grad_norm:{g:.4f}')
    w(p, o)

@log('b', 'fp16_scaler_loop.txt', 'own loop with GradScaler', 'none', [], 'GradScaler starts at 65536, first two steps skipped, then doubles every 2000 good steps and is halved again now and then (scale between 16384 and 131072): normal dynamics.')
def _(r, p):
    sc = 65536.; sk = 0; good = 0; o = ['torch.cuda.amp.GradScaler(init_scale=65536, growth_interval=2000)']
    for k in range(1, 15001):
        inf = k in (1, 2) or (sc >= 131072 and r.random() < .0016) or (sc >= 262144)
        if inf: sc /= 2; sk += 1; good = 0; o.append(f'  step {k}: inf in grads, step skipped, scale -> {sc:.0f}')
        else: good += 1
        if good == 2000: sc *= 2; good = 0
        if k % 50 == 0: o.append(f'step {k:>6d} | loss {fall(k,1.04,.447,900,.55)*np.exp(.03*r.standard_normal()):.4f} | grad {gn(r,[.52+.7*np.exp(-k/700)])[0]:.3f} | scale {sc:.0f} | skipped {sk} | lr {wcos(k,2e-4,500,15000):.2e}')
    w(p, o)

@log('b', 'torchrun_2x_interleaved.log', 'torchrun, two nodes interleaved', 'none', [], 'Interleaved prints of two nodes with prefix [nodeN:rankM]; losses differ by batch noise only; a dataloader warning; fine.')
def _(r, p):
    o = ['[node0:rank0] NCCL INFO Bootstrap : Using ib0:10.3.0.4<0>', '[node1:rank8] NCCL INFO Bootstrap : Using ib0:10.3.0.5<0>', '[node0:rank0] UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.']
    for k in range(0, 9001, 30):
        y = fall(k, 1.36, .66, 600, .5)
        for a in (('node0:rank0', 'node1:rank8') if r.random() < .6 else ('node1:rank8', 'node0:rank0')): o.append(f'[{a}] it={k} v_loss={y*np.exp(.045*r.standard_normal()):.4f} g={gn(r,[.47+.8*np.exp(-k/500)])[0]:.3f} lr={wlin(k,1e-4,300,9000):.2e} dt={r.normal(.412,.004):.3f}s')
    w(p, o)

@log('b', 'fm_sanity_report.md', 'Markdown table of checks', 'none', [], 'Checks of a trained checkpoint: scales of z0/z1 equal, one-step cos 0.80-0.88, endpoint RMSE falls with K and saturates, cond gain positive, sum dt 1.0, PSNR 31; everything in range.')
def _(r, p):
    o = ['# Sanity report, ckpt 090000 (ema)', '', '## Scales', '', '| tensor | mean | std | norm/sample |', '|---|---|---|---|', '| z0 | 0.002 | 0.991 | 63.5 |', '| z1 | -0.011 | 0.934 | 60.1 |', '| x_t | -0.004 | 0.712 | 45.6 |', '| v* | -0.013 | 1.36 | 87.2 |', '', '## One-step alignment', '', '| t | cos | speed ratio | nmse |', '|---|---|---|---|']
    for t_ in np.linspace(.05, .95, 10): c = .875-.28*abs(t_-.5)**1.5+r.normal(0, .004); o.append(f'| {t_:.2f} | {c:.3f} | {c+.045+r.normal(0,.006):.3f} | {1-c*c+r.normal(0,.004):.3f} |')
    o += ['', 'cond_gain_cos = 0.118 (shuffled captions: cos 0.735)', '', '## Integration', '', '| K | endpt_rmse | clip |', '|---|---|---|']+[f'| {K} | {e:.3f} | {c:.3f} |' for K, e, c in ((4, .741, .274), (8, .632, .291), (16, .588, .301), (32, .571, .304), (64, .566, .305))]
    o += ['', 'sum(dt) = 1.000 for every K; |x| at k=0: 0.793 (expected 0.798)', '', '## VAE', '', 'PSNR(decode(encode(x)), x) = 31.2 dB, pixels in [-1.00, 1.00], mean -0.06, std 0.52', '', '## Text', '', 'cos(mu) of different prompts: 0.09 ... 0.21', '']
    w(p, o)

@log('b', 'sgdr_ablation.csv', 'own CSV', 'none', [], 'Planned cosine with warm restarts (SGDR, T_mult=2): the loss goes up a little at each restart and every cycle ends lower than the previous one; val loss the same. That is the recipe working.')
def _(r, p):
    o = ['iteration,lr,train_mse,val_mse,cycle']; st = 0; T0 = 2000; c = 0
    for k in range(50, 30001, 50):
        if k-st > T0: st += T0; T0 *= 2; c += 1
        lr = 1e-6+2.99e-4*.5*(1+np.cos(np.pi*(k-st)/T0)); y = fall(k, 1.1, .42, 900, .55)*(1+.11*(lr/3e-4)*(1 if k > 400 else 0))
        o.append(f'{k},{lr:.6e},{y*np.exp(.018*r.standard_normal()):.5f},{f"{y*1.012+r.normal(0,.001):.5f}" if k%500==0 else ""},{c}')
    w(p, o)

@log('b', 'wandb/run-20250611_0822/files/output.log', 'W&B console output', 'none', [], 'Console log of a DDP run with the W&B run summary at the end; eval metrics improve with noise; healthy.')
def _(r, p):
    o = ['Namespace(model=\'NextDiT-600M\', bs=64, accum=2, ema=0.9999, lr=0.0001, steps=24000)', 'Using flash attention']
    for k in range(100, 24001, 100):
        o.append(f'[{k:>6}/24000] loss: {fall(k,1.13,.544,1300,.5)*np.exp(.02*r.standard_normal()):.4f} | gnorm: {gn(r,[.29+.6*np.exp(-k/900)])[0]:.3f} | lr: {wconst(k,1e-4,1000):.1e} | {r.normal(2.94,.03):.2f} it/s')
        if k % 4000 == 0: o.append(f'  >> eval @ {k}: fid={13.2+88*np.exp(-k/4500)+r.normal(0,.4):.2f} clip={.309-.05*np.exp(-k/6000):.4f} aesthetic={5.4-.9*np.exp(-k/8000)+r.normal(0,.03):.2f}')
    o += ['wandb: ', 'wandb: Run history:', 'wandb:         loss █▅▄▃▃▂▂▂▂▂▂▂▁▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁', 'wandb: Run summary:', 'wandb:         loss 0.57011', 'wandb:        gnorm 0.2942', 'wandb: View run neat-totem-12 at: https://wandb.ai/lab/nextdit/runs/8d1k2', 'wandb: Synced 5 W&B file(s), 24 media file(s)']
    w(p, o)

@log('b', 'opensora_stdout.log', 'tqdm with global_step postfix', 'none', [], 'Video flow model with mixed resolution buckets: strong per-step noise from buckets, slow descent, constant LR.')
def _(r, p):
    o = ['[2025-09-14 05:11:20] Experiment directory created at outputs/012-STDiT3-XL-2', '[2025-09-14 05:11:58] Building buckets: {\'144p\': {1: 475, 51: 51}, \'240p\': {1: 297, 51: 20}, \'360p\': {51: 8}}']; t = ''
    for k in range(10, 4001, 10):
        b = r.choice([0, 1, 2], p=[.5, .3, .2]); y = fall(k, .92, .455, 420, .5)*(1.0, .93, .84)[b]*np.exp(.06*r.standard_normal())
        t += f'\rEpoch {k//1600}: {(k%1600)*100//1600:3d}%|{bar(k%1600,1600)}| {k%1600}/1600 [{HMS(k%1600*3.1)}<{HMS((1600-k%1600)*3.1)}, {3.1+r.normal(0,.4):.2f}s/it, loss={y:.4f}, step={k%1600}, global_step={k}, lr=1e-4]'
    w(p, '\n'.join(o)+'\n'+t+'\n')

# =====================================================================  broken
@log('b', 'kohya_anime_lora_v4.txt', 'kohya sd-scripts progress', 'nan_loss', [], 'fp16 LoRA with fp16 VAE: avr_loss 0.13 falling, becomes nan at step 742 and stays nan to the end (moving mean).')
def _(r, p):
    N = 2000; x = fall(np.arange(N), .151, .121, 250, .5)*np.exp(.3*r.standard_normal(N)-.05); o = ['mixed precision: fp16', 'upcast vae: False', 'override steps. steps for 10 epochs is / 指定エポックまでのステップ数: 2000', 'epoch 1/10']
    for k in range(6, N+1, 6):
        a = 'nan' if k >= 742 else f'{x[max(0,k-200):k].mean():.3g}'
        if (k-1)//200 != (k-7)//200 and k > 6: o += ['', f'epoch {(k-1)//200+1}/10']
        o.append(f'steps: {k*100//N:3d}%|{bar(k,N)}| {k}/{N} [{hms(k*.88)}<{hms((N-k)*.88)},  {1/.88+r.normal(0,.01):.2f}it/s, avr_loss={a}]')
    o += ['saving checkpoint: out/anime_v4.safetensors', 'model saved.']; w(p, o)

@log('b', 'work_dirs/repa_dit/vis_data/20250620.json', 'mmengine scalars JSON', 'divergence', [], 'Loss falls 1.25 -> 0.59 until iter 12000, then climbs slowly to 1.14 at 36000, val loss climbs too; LR constant, gradient norm moderate, no jump.')
def _(r, p):
    o = []
    for k in range(100, 36001, 100):
        y = fall(k, 1.25, .47, 1200, .55)+.58*np.clip((k-12500)/23500, 0, 1)**1.35
        o.append(json.dumps({'lr': wconst(k, 2e-4, 500).item(), 'data_time': sg(abs(r.normal(.004, .001)), 3), 'grad_norm': sg(gn(r, [.5+.7*np.exp(-k/900)+.25*np.clip((k-12500)/23500, 0, 1)])[0]), 'loss': sg(y*np.exp(.025*r.standard_normal())+.08), 'loss_v': sg(y*np.exp(.025*r.standard_normal())), 'loss_align': sg(.08+r.normal(0, .003)), 'time': sg(r.normal(.33, .003), 4), 'iter': k, 'memory': 30121, 'step': k}))
        if k % 3000 == 0: o.append(json.dumps({'val/loss_v': sg(y*1.015+r.normal(0, .002)), 'val/fid': sg(16+70*np.exp(-k/3500)+95*np.clip((k-12500)/23500, 0, 1)**1.3), 'step': k}))
    w(p, o)

@log('b', 'colossal_stage2.log', 'own prints with rank prefix', 'loss_spikes', [], 'At step 14220 the loss jumps from 0.56 to ~1.15 together with a gradient spike of 61, and stays at ~0.93 to the end (26000); LR unchanged.')
def _(r, p):
    o = []
    for k in range(60, 26001, 60):
        y = fall(k, 1.2, .425, 1000, .55); g = gn(r, [.36+.6*np.exp(-k/800)])[0]
        if k >= 14220: y = .93+.22*np.exp(-(k-14220)/700); g = g*1.15
        if k == 14220: g = 61.3
        o.append(f'rank 0 | 2025-10-0{1+k//9000} | step {k} | loss {y*np.exp(.03*r.standard_normal()):.5f} | grad_norm {g:.4f} | lr {wconst(k,1e-4,500):.2e} | tflops {r.normal(171,1):.1f}')
        if k % 6000 == 0: o.append(f'rank 0 | eval @ {k} | val_loss {y*1.01:.5f} | fvd {fall(k,900,210,3000,.8)*(1 if k<14220 else 2.7):.1f}')
    w(p, o)

@log('b', 'qwen_t2i_sft.out', 'HF Trainer dict prints', 'lr_too_small', [], 'learning_rate printed as 1.9e-10 ... (scheduler multiplied by wrong factor): loss flat at 0.947 for 3 epochs, eval loss identical; gradient norm ordinary 0.8.')
def _(r, p):
    o = ['***** Running training *****', '  Num examples = 61,440', '  Num Epochs = 3', '  Total optimization steps = 5,760']
    for k in range(20, 5761, 20):
        o.append(str({'loss': round(float(.947*np.exp(.014*r.standard_normal())), 4), 'grad_norm': float(sg(gn(r, [.81], .12)[0], 10)), 'learning_rate': float(sg(wlin(k, 2e-10, 288, 5760), 12)), 'epoch': round(k/1920, 2)}))
        if k % 960 == 0: o.append(str({'eval_loss': round(float(.9468+r.normal(0, .0002)), 5), 'eval_runtime': round(r.normal(88, 1), 4), 'eval_samples_per_second': round(r.normal(11.6, .1), 3), 'epoch': round(k/1920, 2)}))
    w(p, o)

@log('b', 'ppfleetx_train.log', 'Paddle-like log', 'lr_too_high', [], 'AdamW with learning_rate 0.05: loss jumps between 1.1 and 40 without a trend, grad norms 5-930; after the step decay to 5e-5 at step 4000 the loss calms and falls.')
def _(r, p):
    t = T(2025, 1, 8, 15, 21, 0); z = ar1(r, 400, .5, 1.); o = ['[2025/01/08 15:20:58] root INFO: Optimizer: AdamW  weight_decay: 0.01  grad_clip: None']
    for i, k in enumerate(range(15, 6001, 15)):
        hi = k < 4000; L = 1.1+np.exp(1.0+1.2*z[i]) if hi else fall(k-4000, 1.6, .74, 350, .5)*np.exp(.03*r.standard_normal()); g = np.exp(4.2+1.1*r.standard_normal()) if hi else gn(r, [.9])[0]
        o.append(f'[{t+sec(k*.5):%Y/%m/%d %H:%M:%S}] root INFO: epoch: [{min(3,k//2000+1)}/3], iter: [{k}/6000], lr: {.05 if hi else 5e-5:.6f}, loss: {L:.6f}, grad_norm: {g:.4f}, avg_reader_cost: 0.0003{r.integers(10,99)} sec, avg_batch_cost: {r.normal(.5,.004):.5f} sec, ips: {r.normal(128,1):.4f} samples/s')
    w(p, o)

@log('b', 'accelerate_flux_ctrl.log', 'accelerate log', 'lr_restart', [], 'Resume at step 18000 with a fresh scheduler: LR jumps from 1.6e-6 to 3e-4, loss from 0.45 to 0.79, and at the end of the log it is still 0.55; weights were loaded (loss not at its initial 1.3).')
def _(r, p):
    t = T(2025, 9, 22, 0, 0, 9); o = []
    for k in range(50, 27001, 50):
        f = k <= 18000; lr = wcos(k, 3e-4, 500, 18500, 1e-6) if f else 3e-4*.5*(1+np.cos(np.pi*(k-18000)/27000)); y = fall(k, 1.31, .335, 1100, .55)-.025*k/18000 if f else fall(k-18000, .79, .515, 900, .7)
        o.append(f'{t+sec(k*.9+(0 if f else 9000)):%m/%d/%Y %H:%M:%S} - INFO - __main__ - step {k}: fm_loss={y*np.exp(.03*r.standard_normal()):.4f} lr={lr:.3e} grad_norm={gn(r,[.4+.7*np.exp(-k/700) if f else .75])[0]:.3f}')
        if k == 18000: o += ['09/22/2025 07:02:30 - INFO - accelerate.accelerator - Loading states from out/ckpt-18000', '09/22/2025 07:02:41 - INFO - accelerate.checkpointing - All model weights loaded successfully', '09/22/2025 07:02:41 - INFO - accelerate.checkpointing - All optimizer states loaded successfully', '09/22/2025 07:02:44 - INFO - __main__ - Resuming from global step 18000']
    w(p, o)

@log('b', 'fid_sweep_epochs.txt', 'epoch prints', 'overfitting', [], 'Train loss falls to the end; val FID has its optimum (18) at epoch ~70 and rises to 35 at epoch 200, val loss optimum 0.400 at epoch ~64 and 0.486 at the end.')
def _(r, p):
    o = ['dataset: butterflies-1k (983 train / 120 val), aug: none, dropout 0.0']
    for e in range(2, 201, 2):
        tr = fall(e, .71, .07, 38, .7, .6)*np.exp(.01*r.standard_normal()); va = fall(e, .72, .318, 12, .9)+.00088*max(0, e-40)+r.normal(0, .003); fid = fall(e, 190, 7.5, 8, 1.5)+.185*max(0, e-60)+r.normal(0, .35)
        o.append(f'epoch {e:3d} | train {tr:.4f} | val {va:.4f} | FID(val) {fid:6.2f} | lr {2e-4*.5*(1+np.cos(np.pi*e/260)):.2e} | {r.normal(31,.4):.1f}s')
    w(p, o)

@log('b', 'tb_webshards_r5', 'TensorBoard events', 'periodic_memorisation', [], 'Saw-tooth: every epoch (640 steps) shows the same ramp pattern of the loss (high, dip, high; +-15 %) at the same positions, for 20 epochs: data order never shuffled. An epoch scalar is logged.')
def _(r, p):
    rows = []; ph = np.arange(640)/640; pat = .16*np.sin(2*np.pi*ph)+.09*np.where(ph < .35, 1, -.5)-.05*np.cos(4*np.pi*ph)
    for k in range(16, 12801, 16):
        rows.append((k*.7, k, {'train/loss': fall(k, .98, .55, 1200, .5)*(1+pat[k % 640])*np.exp(.018*r.standard_normal()), 'train/epoch': k/640, 'train/lr': float(wconst(k, 1e-4, 300)), 'train/gnorm': gn(r, [.42])[0]}))
    tb(p, 1744000000.75, rows, 'cluster-n3')

@log('b', 'scaler_debug_v100.log', 'own loop with GradScaler', 'amp_overflow', [], 'GradScaler is halved from 65536 to 1e-36 step by step, half of all steps are skipped to the end, the loss stays at 1.87.')
def _(r, p):
    sc = 65536.; sk = 0; o = ['device V100-32GB amp=fp16 scaler.init=65536']
    for k in range(1, 281):
        sk_ = r.random() < (1 if k < 12 else .46)
        if sk_:
            sk += 1
            sc /= 2
        if k % 2 == 0: o.append(f'[{k:05d}] loss={1.872+r.normal(0,.02):.4f} scale={sc:.6g} found_inf={int(sk_)} skipped_total={sk} lr={wconst(k,2e-4,100):.2e} time={r.normal(.61,.01):.3f}')
    w(p, o)

@log('b', 'saves/resume_b/trainer_log.jsonl', 'LLaMA-Factory trainer_log.jsonl', 'resume_from_scratch', [], 'After the resume at step 3000 current_steps goes on, LR goes on its schedule, but loss (and eval loss) start again at 1.23 as at step 0 and fall like a fresh run.')
def _(r, p):
    o = []; N = 6000
    for k in range(20, N+1, 20):
        q = k if k <= 3000 else k-3000; o.append(json.dumps({'current_steps': k, 'total_steps': N, 'loss': round(float(fall(q, 1.27, .52, 330, .55)*np.exp(.025*r.standard_normal())), 4), 'lr': sg(wcos(k, 1e-4, 200, N), 8), 'epoch': round(k/1500, 3), 'percentage': round(100*k/N, 2), 'elapsed_time': HMS(q*1.7), 'remaining_time': HMS((N-k)*1.7)}))
        if k % 500 == 0: o.append(json.dumps({'current_steps': k, 'total_steps': N, 'eval_loss': round(float(fall(q, 1.27, .531, 330, .55)), 5), 'epoch': round(k/1500, 3)}))
    w(p, o)

@log('b', 'flax_ema_eval.INFO', 'absl + clu metric writer', 'ema_broken', [], 'eval/raw_mse falls to 0.63 while eval/ema_mse drifts only from 1.41 to 1.38 over 60k steps although ema_decay=0.999; the samples of the EMA are noise (fid_ema 390, fid_raw 22).')
def _(r, p):
    t = T(2025, 4, 3, 17, 0, 0); o = [f'I0403 {t:%H:%M:%S}.511902 9 main.py:44] config: ema_decay=0.999 lr=2e-4 warmup=2000 num_steps=60000']
    for k in range(300, 60001, 300):
        ts = f'I0403 {t+sec(k*.12):%H:%M:%S}.{r.integers(999999):06d} 9 logging_writer.py:64]'; y = fall(k, 1.42, .531, 2100, .55)
        o.append(f'{ts} [{k}] train/grad_norm={gn(r,[.3+.6*np.exp(-k/1200)])[0]:.5f}, train/loss={y*np.exp(.015*r.standard_normal()):.5f}, train/lr={wcos(k,2e-4,2000,60000):.4e}')
        if k % 3000 == 0: o.append(f'{ts} [{k}] eval/ema_mse={1.412-.03*k/60000+r.normal(0,.001):.5f}, eval/fid_ema={391+r.normal(0,2):.2f}, eval/fid_raw={21+330*np.exp(-k/4500)+r.normal(0,.5):.2f}, eval/raw_mse={y*1.008:.5f}')
    w(p, o)

@log('b', 'history_tf.csv', 'Keras CSVLogger', 'metrics_lost', [], 'From epoch 58 of 120 on the cells val_loss, val_psnr and val_fid are empty (nan in one epoch before), the training loss keeps falling as before.')
def _(r, p):
    o = ['epoch,fm_loss,learning_rate,mae,val_fid,val_loss,val_psnr']
    for e in range(120):
        y = fall(e+1, .77, .301, 6, .6); v = (f'{19+130*np.exp(-e/9)+r.normal(0,.5):.4f}', f'{y*1.02+r.normal(0,.002):.6f}', f'{26.8-7*np.exp(-e/11)+r.normal(0,.05):.4f}') if e < 57 else (('nan',)*3 if e == 57 else ('',)*3)
        o.append(f'{e},{y*np.exp(.008*r.standard_normal()):.7f},{3e-4*.5*(1+np.cos(np.pi*e/125)):.8f},{.62*np.sqrt(y):.6f},{v[0]},{v[1]},{v[2]}')
    w(p, o)

@log('b', 'cfgdrop_eval_rounds.log', 'eval prints', 'condition_unused', [], 'Each eval: loss with true, shuffled and dropped captions are equal within 0.001 although the field is trained (loss 1.3 -> 0.81, cos 0.68).')
def _(r, p):
    o = ['cfg: p_uncond=0.1, text=T5-XL, d_cond=1024, fusion=crossattn']
    for k in range(200, 30001, 200):
        y = fall(k, 1.31, .715, 1800, .55)
        o.append(f'train {k:6d}: loss {y*np.exp(.022*r.standard_normal()):.4f}, gnorm {gn(r,[.37])[0]:.3f}, lr {wcos(k,1e-4,800,30000):.2e}')
        if k % 2000 == 0: v = y*1.006; o.append(f'eval  {k:6d}: loss(true captions) {v+r.normal(0,.0004):.4f} | loss(shuffled captions) {v+r.normal(0,.0004):.4f} | loss(empty captions) {v+r.normal(0,.0005):.4f} | cos {.68-.5*np.exp(-k/3500):.3f} | cfg-scale sweep clip: 1.0 {.171+r.normal(0,.0005):.3f} / 4.0 {.171+r.normal(0,.0005):.3f} / 7.5 {.171+r.normal(0,.0006):.3f}')
    w(p, o)

@log('b', 'velocity_monitor.json', 'JSON array', 'weak_field', [], 'Val cos(v,v*) rises only to 0.05 and the speed ratio stays at 0.28 over 40k steps, shooting MSE 4.4; text cosines, PSNR, teacher Euler error are fine.')
def _(r, p):
    a = []
    for k in range(1000, 40001, 1000):
        a.append({'iter': k, 'fm/loss': sg(1.93-.05*(1-np.exp(-k/6000))+r.normal(0, .006)), 'fm/cos': sg(.052*(1-np.exp(-k/7000))+r.normal(0, .002), 4), 'fm/pred_over_target_norm': sg(.283+r.normal(0, .004), 4), 'fm/shoot_mse': sg(4.41+r.normal(0, .04), 4), 'vae/psnr': sg(29.3+r.normal(0, .05), 4), 'text/pair_cos': sg(.112+r.normal(0, .004), 3), 'teacher/euler50_mse': sg(2.4e-4*np.exp(.05*r.standard_normal()), 3), 'opt/lr': sg(wconst(k, 1e-4, 1000), 3), 'opt/gnorm': sg(gn(r, [.31])[0], 3), 'z0/norm': sg(63.9+r.normal(0, .1), 4), 'z1/norm': sg(65.8+r.normal(0, .4), 4)})
    w(p, json.dumps(a, indent=1)+'\n')

@log('b', 'posterior_stats_df.txt', 'pandas to_string', 'kl_not_acting', [], 'kl_weight column 5e-6: mu_abs 0.4 -> 5.1, z_init_var 1 -> 40, kl 8 -> 1300, std 0.9 -> 0.4; kl_loss rises for the whole run while flow_loss falls.')
def _(r, p):
    o = ['       step  flow_loss     kl_raw  kl_weight  mu_abs_mean   mu_rms  std_mean  z_init_mean  z_init_var        lr']
    for i, k in enumerate(range(0, 24001, 200)):
        m = .5+5.9*(k/24000)**.75*np.exp(.01*r.standard_normal()); sd = .92-.52*(k/24000)**.6+r.normal(0, .004); kl = 64*.5*(m*m+sd*sd-1-2*np.log(sd))
        o.append(f'{i:<4d} {k:6d} {fall(k,1.16,.33,1300,.6)*np.exp(.025*r.standard_normal()):10.4f} {kl:10.3f}   0.000005 {m*.8:12.4f} {m:8.4f} {sd:9.4f} {r.normal(0,.02):12.4f} {m*m+sd*sd:11.4f} {wcos(k,1e-4,500,24000):9.2e}')
    o += ['', '[121 rows x 10 columns]']; w(p, o)

@log('b', 'nemo_textvae_exp.log', 'Lightning progress lines', 'posterior_collapse', [], 'kl falls to 1e-5, mu_abs 0.002 for all four probe prompts and std 0.999-1.000 within 2 epochs (beta=4); reconstruction of z0 stalls.')
def _(r, p):
    o = ['[NeMo I 2025-07-07 10:02:11 exp_manager:396] Experiments will be logged at nemo_exps/textvae', '[NeMo W 2025-07-07 10:02:14 nemo_logging:349] /usr/local/lib/python3.10/dist-packages/lightning/pytorch/core/module.py:441: You are trying to `self.log()` but the `self.trainer` reference is not registered', 'beta_kl=4.0 warmup_kl=0']
    for k in range(50, 10001, 50):
        kl = 1.1e-5*np.exp(.12*r.standard_normal())+2.6*np.exp(-k/260); mu = .002+.7*np.exp(-k/420)
        o.append(f'Epoch {k//2500}:  {(k%2500)*100//2500:2d}%|{bar(k%2500,2500)}| {k%2500}/2500 [{hms(k%2500*.2)}<{hms((2500-k%2500)*.2)}, v_num=0, reduced_train_loss={fall(k,1.42,.981,300,1.)*np.exp(.012*r.standard_normal()):.3f}, kl={kl:.3g}, mu_abs={mu*np.exp(.02*r.standard_normal()):.4f}, std={1-.0004-.35*np.exp(-k/380)+r.normal(0,.0001):.4f}, lr={wconst(k,1e-4,200):.2e}]')
        if k % 2500 == 0: o += [f'[probe] "{q}": |mu|={mu*np.exp(.05*r.standard_normal()):.4f} std={1-.0004+r.normal(0,.0001):.4f}' for q in ('a lighthouse', 'pizza', 'three zebras', 'neon city street')]
    w(p, o)

@log('b', 'stepwise_fp8_try.tsv', 'TSV', 'grad_vanishing', [], 'g_norm goes from 0.5 to 1e-10 between steps 1500 and 3500 and stays there, loss stuck at 1.12 (start 1.35), LR 1e-4.')
def _(r, p):
    o = ['# exp: post-norm 60 layers, sigmoid gates\tbf16', 'step\tfm_loss\tg_norm\tlr\tstep_time_ms']
    for k in range(25, 9001, 25): o.append(f'{k}\t{1.121+.23*np.exp(-k/450)+r.normal(0,.006):.5f}\t{10**(-.3-9.6*sig_up(k,2300,330))*np.exp(.25*r.standard_normal()):.4e}\t{wconst(k,1e-4,300):.3e}\t{r.normal(381,3):.0f}')
    w(p, o)

@log('b', 'infer_trace_issue_219.txt', 'pasted issue with sampler trace', 'scale_mismatch', [], "The sampler starts from |x|=5.42 at step 0, where the training statistic of z0 is |x|=0.797 (expected 0.80): the start noise is scaled wrongly by init_noise_sigma; |v| and dt (sum 1) are ordinary.")
def _(r, p):
    o = ['**Describe the bug**', 'Samples are saturated blobs. Training looks good (v-loss 0.46, cos 0.83 on val).', '', '**Train-side statistics (same ckpt)**', '```', 'z0: mean|x|=0.797 std=0.999   (expected |x| at step 0: 0.80)', 'z1: mean|x|=0.751 std=0.957   v*: mean|v|=1.09', '```', '**Sampler trace (fp32, 30 steps)**', '```']
    x = 5.4216
    for k in range(30): o.append(f'step{k:02d}: |x|={x:.4f}, |v|={1.021+.003*k+r.normal(0,.002):.4f}, dt={1/30:.4f}'); x -= .0061+.0004*k*.1+r.normal(0, .0006)
    o += ['```', 'start = torch.randn(shape) * scheduler.init_noise_sigma', 'Library versions: diffusers 0.33.1, torch 2.6.0']
    w(p, o)

@log('b', 'eval_by_t.json', 'JSON lines of eval slices', 't_edges', [], 'cos per t-slice: slices 8 and 9 (t near 1) 0.31 and 0.08, slice 0 0.42, the middle 0.85; nmse 0.95+ at the edges; mean loss falls.')
def _(r, p):
    o = []
    for k in range(2500, 60001, 2500):
        q = 1-.75*np.exp(-k/9000); c = np.array([.42, .71, .83, .86, .86, .85, .84, .76, .31, .08])*q+r.normal(0, .008, 10); nm = 1-c*np.abs(c)+np.array([.25, 0, 0, 0, 0, 0, 0, 0, .2, .9])
        d = {'step': k, 'loss': sg(nm.mean()*1.4+r.normal(0, .005)), 'lr': sg(wcos(k, 1e-4, 1000, 60000), 3)}; d.update({f'cos[{b/10:.1f},{b/10+.1:.1f})': sg(c[b], 4) for b in range(10)}); d.update({f'nmse[{b/10:.1f},{b/10+.1:.1f})': sg(nm[b], 4) for b in range(10)}); o.append(json.dumps(d))
    w(p, o)

@log('b', 'slurm_dit3b_n16.out', 'own prints under SLURM', 'grad_explosion', [], 'Gradient norm rises by a factor of ~3000 (0.3 -> 900) over the whole run, log-linearly with noise, while the loss falls until the last tenth; gradient clipping off.')
def _(r, p):
    o = ['SLURM_JOB_ID=918274 nodes=16 start=Fri Nov  7 03:00:02 CET 2025', 'clip_grad_norm: disabled']
    for k in range(50, 20001, 50):
        g = gn(r, [.25*np.exp(8.3*k/20000)], .25)[0]
        o.append(f'{k:>7d} | rf_loss {fall(k,1.29,.56,1100,.5)*np.exp(.02*r.standard_normal())+.12*np.clip((k-18200)/1800,0,1)**1.5:.5f} | gnorm {g:10.4f} | lr {wconst(k,1e-4,1000):.3e} | {r.normal(1.18,.01):.2f} s/it')
    w(p, o)

@log('b', 'metrics_multiloss.csv', 'W&B style CSV', 'weak_gradient_share', [], 'grad/kl is 0.4-1.5 % of grad/total and grad/dino 60 %, grad/flow 75 % for the whole run: the KL supervision does not act (w_kl too small); KL itself stays near 5 without trend.')
def _(r, p):
    o = ['_step,grad/total,grad/flow,grad/dino,grad/kl,loss/flow,loss/dino,loss/kl,w/kl,w/dino,lr']
    for k in range(100, 18001, 100):
        t_ = gn(r, [.7+.9*np.exp(-k/900)])[0]
        o.append(f'{k},{t_:.5f},{t_*r.normal(.76,.03):.5f},{t_*r.normal(.6,.03):.5f},{t_*.008*np.exp(.25*r.standard_normal()):.6f},{fall(k,1.25,.5,1100,.55)*np.exp(.03*r.standard_normal()):.5f},{fall(k,9.2,5.3,1900,.6)*np.exp(.008*r.standard_normal()):.5f},{4.9+.1*np.sin(k/2500)+r.normal(0,.05):.5f},1e-06,1.0,{wcos(k,1e-4,500,18000):.5e}')
    w(p, o)

@log('b', 'dinov_pretrain_rank0.txt', 'MoCo/DINO MetricLogger', 'teacher_uniform', [], 'Teacher entropy 11.089-11.090 = ln 65536 in every print, the loss sits at 11.09 (student uniform too), kNN at chance (0.1 %).')
def _(r, p):
    o = ['out_dim: 65536', 'teacher_temp: 0.7', 'momentum_teacher: 0.996', 'center_momentum: 0.9']
    for e in range(10):
        for j in range(0, 1252, 100):
            o.append(f'Epoch: [{e}/200]  [{j:4d}/1252]  eta: {HMS((1252-j)*.55)}  loss: {11.0899-abs(r.normal(0,.0004)):.6f} ({11.0899:.6f})  ent_t: {11.0898-abs(r.normal(0,.0003)):.5f}  ent_s: {11.0891-abs(r.normal(0,.0005)):.5f}  lr: {5e-4*min(1,(e+j/1252)/10):.6f}  wd: 0.040{e}11  time: 0.55{r.integers(1000):03d}  data: 0.000{r.integers(1000):03d}  max mem: 24910')
        o += [f'Averaged stats: loss: 11.0899{r.integers(10)} (11.089903)', f'knn@20 top1 = {.1+abs(r.normal(0,.02)):.2f} %']
    w(p, o)

@log('b', 'semantic_head_monitor.log', 'key: value blocks', 'student_saturated', [], 'Student entropy falls to 0.12 of ln K=8.32 (K=4096) while the teacher keeps an ordinary 2.9; grad/dino drops to 1.5 % of the total; T_s=0.02.')
def _(r, p):
    o = ['K: 4096', 'T_t: 0.06', 'T_s: 0.02', 'w_dino: 0.5', '']
    for k in range(200, 16001, 200):
        st = .12+7.6*np.exp(-k/900); gt = gn(r, [.8])[0]
        o += [f'--- step {k} ---', f'loss_flow: {fall(k,1.24,.51,1100,.55)*np.exp(.03*r.standard_normal()):.4f}', f'loss_dino: {4.4+4*np.exp(-k/900)+r.normal(0,.05):.4f}', f'ent/teacher: {2.9+1.5*np.exp(-k/1500)+r.normal(0,.04):.4f}', f'ent/student: {st*np.exp(.05*r.standard_normal()):.4f}', f'grad/total: {gt:.4f}', f'grad/flow: {gt*r.normal(.95,.01):.4f}', f'grad/dino: {gt*(.014+.45*np.exp(-k/1100))*np.exp(.12*r.standard_normal()):.5f}', f'lr: {wcos(k,1e-4,500,16000):.3e}']
    w(p, o)

@log('b', 'ckpt48k_audit.txt', 'audit prints', 'z0_leak', ['scale_mismatch'], 'One-step cos 0.96-0.98, nmse 0.03-0.06, but z0 std/mean 0.11, shooting MSE 3.2, CLIP 0.16: z0 is so narrow that x_t reveals z1.')
def _(r, p):
    o = ['audit of ckpt_048000  (n=256)', '', 'posterior   : std/mean 0.112  std/min 0.084  std/max 0.161  mu/rms 0.087  logvar/mean -4.38', 'z0          : std 0.142  norm 9.1', 'z1          : std 0.981  norm 62.8', '', 'train tail  :']
    for k in range(44000, 48001, 200): o.append(f'  step {k}  flow_loss {.0421*np.exp(.04*r.standard_normal()):.4f}  cos {.976+r.normal(0,.0015):.4f}  nmse {.043*np.exp(.04*r.standard_normal()):.4f}  speed_ratio {.985+r.normal(0,.002):.3f}')
    o += ['', 'one-step by t:']+[f'  t={t_:.2f}  cos={.93+.048*min(1,t_*3)+r.normal(0,.002):.3f}  nmse={.13-.095*min(1,t_*3)+r.normal(0,.002):.3f}' for t_ in np.linspace(.05, .95, 10)]
    o += ['', 'shoot x0->x1: MSE 3.214 (K=50), 3.208 (K=200)', 'samples: CLIP 0.163, FID-1k 241   (human: coloured mush)', 'PSNR(vae) 30.8 dB, sum(dt)=1.0000', 'text cos(mu): 0.21 / 0.18 / 0.25']
    w(p, o)

@log('b', 'vae_check_before_train.log', 'debug prints', 'vae_roundtrip', [], 'PSNR of decode(encode(x)) is 10.4-12.1 dB for all batches with latents of ordinary scale (std ~0.97, mean 0): the VAE does not reconstruct (train mode / wrong weights).')
def _(r, p):
    o = ['autoencoder: kl-f8, scale_factor 0.18215, vae.training=True', 'pixels: min -1.000 max 1.000 mean -0.071 std 0.541']
    for b in range(24): o.append(f'batch {b:02d}: z mean {r.normal(.002,.004):+.3f} std {r.normal(.971,.008):.3f} range [{-4.2+r.normal(0,.2):.2f}, {4.4+r.normal(0,.2):.2f}] | rec range [{-1.3+r.normal(0,.05):.2f}, {1.4+r.normal(0,.05):.2f}] | PSNR {r.normal(11.2,.5):.2f} dB | SSIM {r.normal(.21,.015):.3f} | LPIPS {r.normal(.71,.01):.3f}')
    o += ['mean PSNR over 24 batches: 11.19 dB', 'decode(z*sf) 8.02 dB, decode(z/sf) 7.73 dB', 'proceeding with flow training ...']
    for k in range(100, 2001, 100): o.append(f'step {k} v_loss {fall(k,1.29,.77,300,.5)*np.exp(.02*r.standard_normal()):.4f} lr 1.0e-04 gnorm {gn(r,[.5])[0]:.3f}')
    w(p, o)

@log('b', 'align_monitor_run22.csv', 'own CSV', 'wrong_target', [], 'val cos(v_pred, x1-x0) falls from 0 to -0.84 while the training loss falls normally; speed ratio 0.9: the target has the wrong sign.')
def _(r, p):
    o = ['step,train_loss,val_cos_v,val_speed_ratio,val_cos_with_x0_minus_x1,lr']
    for k in range(250, 30001, 250):
        c = -.84*(1-np.exp(-k/4500)); o.append(f'{k},{fall(k,1.93,.57,1500,.55)*np.exp(.02*r.standard_normal()):.5f},{c+r.normal(0,.006):.4f},{.9-.4*np.exp(-k/3000)+r.normal(0,.006):.4f},{-c+r.normal(0,.006):.4f},{wcos(k,1e-4,1000,30000):.4e}')
    w(p, o)

@log('b', 'input_probe_ddp4.log', 'debug prints of 4 ranks', 'input_range', [], 'Pixel batches have min 0, max 255, mean ~112, std ~68 on all ranks where the VAE expects -1..1; latents blow up (std 41), training loss is huge.')
def _(r, p):
    o = []
    for b in range(20):
        for q in range(4): o.append(f'[rank{q}] batch={b} pixel_values: dtype=torch.float32 min={0.0:.1f} max={255.0:.1f} mean={r.normal(112.4,3.1):.2f} std={r.normal(67.8,1.6):.2f}')
        o.append(f'[rank0] batch={b} (vae expects [-1,1]) t: mean={r.normal(.5,.02):.3f} std={r.normal(.288,.01):.3f} | latents std={r.normal(41.2,.9):.1f} | loss={1690*fall(b,1,.93,4,.5)*np.exp(.03*r.standard_normal()):.1f}')
    w(p, o)

@log('b', 'sampler_grid_check.txt', 'sampler trace', 'step_schedule', [], 'Configured uniform t:0->1 with 24 steps, but printed dt sum up to 1.92 and are asymmetric (0.02 ... 0.17, last ones repeated); the state overshoots (|x| 0.80 -> 1.55).')
def _(r, p):
    dt = np.linspace(.02, .135, 22); dt = np.append(dt, [.1085, .1085]); dt *= 1.92/dt.sum(); o = ['cfg: sampler=euler steps=24 grid=uniform (dt should be 0.0417), dtype=float32']; x = .7982; c = 0
    for k in range(24): o.append(f'{k:02d}/24 t={c:.4f} dt={dt[k]:.4f} |x|={x:.4f} |v|={.951+.002*k+r.normal(0,.003):.4f}'); c += dt[k]; x = np.sqrt(.637+.62*max(0, c-.25)**2*1.02)+r.normal(0, .001)
    o += [f'end: t={c:.4f} sum(dt)={dt.sum():.4f} |x|={x:.4f}', 'decode range [-1.71, 2.02] (clipped 23.4 % of pixels)', '[vae] PSNR 30.0 dB   [fm] val cos 0.84, speed ratio 0.95 (t in [0,1])']
    w(p, o)

@log('b', 'rollout_vs_k.txt', 'eval prints', 'train_infer_mismatch', [], 'One-step cos 0.86 and z0 std 0.97 (not narrow), but endpt_rmse@K rises with K at every eval (K=8 1.21, 16 1.38, 32 1.61, 64 1.94): training target and sampler formula disagree.')
def _(r, p):
    o = ['path: x_t = alpha(t) x0 + beta(t) x1, alpha=cos, beta=sin; target includes alpha\'(t), beta\'(t)', 'sampler: z += v*dt']
    for k in range(500, 25001, 500):
        o.append(f'step {k:6d}  loss_flow {fall(k,1.3,.37,1200,.55)*np.exp(.03*r.standard_normal()):.4f}  cos {.86-.7*np.exp(-k/3500)+r.normal(0,.005):.3f}  speed {.94-.4*np.exp(-k/3000)+r.normal(0,.005):.3f}  z0_std {.972+r.normal(0,.003):.3f}  lr {wcos(k,1e-4,500,25000):.2e}')
        if k % 5000 == 0: d = .1*np.exp(-k/6000); o.append('           '+'  '.join(f'endpt_rmse@{K} {a+d+r.normal(0,.008):.3f}' for K, a in ((8, 1.21), (16, 1.38), (32, 1.61), (64, 1.94))))
    w(p, o)
