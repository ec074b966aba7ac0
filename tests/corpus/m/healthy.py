"""Healthy runs of all kinds: what a curve does here, it does by design. Each scenario gives two logs (v is 0 or 1)."""
from writers import *

S = []
def scen(story, only=None, not_=()):
    def deco(f): S.append((f, story, only, not_)); return f
    return deco
nan = np.nan
def st(n, k, s0=0): return s0 + k * np.arange(1, n + 1)
def L(r, s, l0, l1, tau, sig=.02, **k): return noisy(r, fall(s, l0, l1, tau, **k), sig)
def sparse(x, every): y = np.full(len(x), nan); y[every - 1::every] = np.asarray(x)[every - 1::every]; return y
def val(s, every, f): return [(k, f(k)) for k in s if k % every == 0]
def rw(r, n, sig): return np.cumsum(r.standard_normal(n)) * sig

# ------------------------------------------------------------------ diffusion and flow
@scen('Flow matching from scratch, warm-up and constant LR; MSE with a high noise floor; validation flat at the end.')
def _(r, v):
    s = st(400 - 180 * v, 100); y = fall(s, [1.98, 1.41][v], [.93, .77][v], 2500)
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': wconst(s, 1e-4, 2000), '$gn': gn(r, .3 + .9 * np.exp(-s / 2000))}, val(s, 2000, lambda k: {'$val': fall(k, [1.98, 1.41][v], [.94, .775][v], 2500) + r.normal(0, .003)})), total=40000 - 18000 * v)
@scen('Fine-tune from a converged checkpoint: the loss is almost flat and noisy from the beginning, FID and CLIP score improve.')
def _(r, v):
    s = st(300, 50); y = .512 + .006 * np.exp(-s / 3000) if v else .1402 + .0012 * np.exp(-s / 4000)
    return Run(mk(s, {'$loss': noisy(r, y, .035), '$lr': wcos(s, 2e-5, 500, 15000), '$gn': gn(r, np.full(300, .21))}, val(s, 2500, lambda k: {'val/fid': 14.1 - 3.2 * (1 - np.exp(-k / 5000)) + r.normal(0, .05), 'val/clip_score': 30.9 + .8 * (1 - np.exp(-k / 5000))})), head=['Loading pretrained weights from checkpoints/base_1.2M.safetensors (finetune)'])
@scen('LoRA with kohya scripts: average loss falls by a few percent in the first epoch and stays.', only=['tqdm', 'tensorboard', 'csv_wide'])
def _(r, v):
    s = st(1200, 1); x = .115 * np.exp(.5 * r.standard_normal(1200)); a = np.cumsum(x)[:] / np.arange(1, 1201) if v else ema(x, .98)
    return Run(mk(s, {'loss/average' if v else 'avr_loss': a, 'lr/unet': wcos(s, 1e-4, 60, 1200), 'lr/textencoder': wcos(s, 5e-5, 60, 1200)}), head=['import network module: networks.lora', 'create LoRA network. base dim (rank): 32, alpha: 16.0', 'enable LoRA for U-Net: 192 modules.'])
@scen('LoRA with batch size 1: the loss of a step varies from 0.002 to 0.8 with the sampled t, without a visible trend.', only=['tqdm', 'jsonl', 'hf_print', 'piped'])
def _(r, v):
    n = 800; s = st(n, 1 + v); t = r.random(n); x = (.005 + .5 * (1 - t) ** 3) * np.exp(.45 * r.standard_normal(n)) * (1 - .05 * s / s[-1])
    return Run(mk(s, {'step_loss' if v else '$loss': x, '$lr': np.full(n, 1e-4)}), head=['***** Running training *****', '  Num examples = 24', '  Instantaneous batch size per device = 1', '  LoRA rank = 16'])
@scen('DreamBooth with prior preservation, 600 noisy steps, gradient norm per step.')
def _(r, v):
    s = st(600, 1); a = .14 * np.exp(.55 * r.standard_normal(600)) * (1 - .25 * s / 600); b = .13 * np.exp(.5 * r.standard_normal(600))
    return Run(mk(s, {'$loss': a + b, 'loss_instance': a, 'loss_prior': b, '$gn': gn(r, np.full(600, .11), .5), '$lr': np.full(600, 2e-6)}), spe=100)
@scen('Textual inversion: only one embedding is learned, so the loss hardly moves; similarity of the samples rises.')
def _(r, v):
    s = st(300, 10); x = np.convolve(.13 * np.exp(.5 * r.standard_normal(309)), np.ones(10) / 10, 'valid') * (1 - .06 * s / 3000)
    return Run(mk(s, {'$loss': x, '$lr': np.full(300, 5e-4), 'embedding_norm': .41 + .3 * (1 - np.exp(-s / 900))}, val(s, 500, lambda k: {'image_similarity': .52 + .2 * (1 - np.exp(-k / 900)) + r.normal(0, .01)})))
@scen('ControlNet, pytorch lightning, loss_simple of every step with batch 2.', only=['lightning', 'csv_wide', 'tensorboard', 'wandb_history'])
def _(r, v):
    n = 500; s = st(n, 50); t = r.random(n); x = (.01 + .28 * (1 - t) ** 2) * np.exp(.3 * r.standard_normal(n)) * (1 + .6 * np.exp(-s / 3000))
    return Run(mk(s, {'train/loss_simple_step': x, 'train/loss_vlb_step': x * .004 * np.exp(.8 * r.standard_normal(n)), 'train/loss_step': x, 'global_step': s.astype(float), 'lr_abs': np.full(n, 1e-5)}))
@scen('Logit-normal timesteps as configured (SD3 recipe): mean of t 0.5, std 0.21; shifted for the second.')
def _(r, v):
    s = st(250, 40); m, d = [(.5, .208), (.685, .18)][v]
    return Run(mk(s, {'$loss': L(r, s, .81, .566, 900, .015), '$lr': wconst(s, 1e-4, 400), 't_mean': m + r.normal(0, .012, 250), 't_std': d + r.normal(0, .006, 250)}), head=['timestep sampling: logit_normal (mean=0.0, std=1.0)' + (', shift=3.0' if v else '')], not_=['aligned', 'csv_wide', 'wandb_chart', 'tensorboard', 'jsonl', 'tsv_long', 'hf_state', 'wandb_history', 'lightning', 'clearml', 'mlflow_run', 'yamldocs', 'jsonl_time'])
@scen('Resolution changes from 256 to 512 on purpose: the level of the loss and the step time change once; it falls before and after.')
def _(r, v):
    s = st(360, 100); c = 20000; y = np.where(s <= c, fall(s, 1.1, .61, 2000), fall(s - c, .79, .70, 2500) if v == 0 else fall(s - c, .50, .43, 2500))
    return Run(mk(s, {'$loss': noisy(r, y, .012), '$lr': wconst(s, 1e-4, 1000), 'resolution': np.where(s <= c, 256., 512.), 'sec_per_step': np.where(s <= c, .31, 1.12) + r.normal(0, .01, 360)}, msgs={c: 'stage 2: switching to resolution 512, new data loader'}))
@scen('Consistency training: the number of discretization steps doubles on schedule, and the loss jumps up each time and falls within each stage.')
def _(r, v):
    s = st(400, 100); n = 10 * 2 ** np.minimum(s // 8001, 5); k = s % 8000
    return Run(mk(s, {'$loss': noisy(r, (.035 + .03 * np.exp(-k / 1500)) * (n / 10.) ** (.35 - .1 * v), .05), 'num_scales': n.astype(float), '$lr': np.full(400, 1e-4), '$gn': gn(r, np.full(400, .12), .3)}, val(s, 8000, lambda k: {'fid': 4 + 80 * np.exp(-k / 9000)})))
@scen('EDM2 with a learned uncertainty: the loss is a negative log-likelihood and becomes negative.')
def _(r, v):
    s = st(300, 1000); y = fall(s, .9, -1.15 - .3 * v, 40000)
    return Run(mk(s, {'$loss': y + .02 * r.standard_normal(300), 'mse': noisy(r, fall(s, .9, .13, 40000), .02), '$lr': wconst(s, 1e-2, 10000) / np.maximum(1, s / 70000) ** .5}))
@scen('Rectified-flow reflow stage: starts from a trained model; loss low and slowly falling; straightness improves.')
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'$loss': noisy(r, .0312 + .011 * np.exp(-s / 1800), .04), '$lr': wlin(s, 5e-5, 300, 10000), 'straightness': noisy(r, .021 + .04 * np.exp(-s / 2000), .06), '$gn': gn(r, np.full(200, .06))}), head=['init from 1-rectified flow: ckpt/rf1_300k.pt'])
@scen('Min-SNR weighting, EMA and raw evaluation; EMA is worse at the beginning and better at the end.')
def _(r, v):
    s = st(240, 250); y = fall(s, .41, .118, 3000)
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': wcos(s, 3e-4, 2500, 60000), '$gn': gn(r, .11 + .3 * np.exp(-s / 2500))}, val(s, 5000, lambda k: {'val_loss': fall(k, .41, .121, 3000), 'val_loss_ema': fall(k, .41, .116, 3000) + .2 * np.exp(-k / 2500), 'fid': 17 + 120 * np.exp(-k / 9000) + r.normal(0, .3), 'fid_ema': 11.8 + 260 * np.exp(-k / 6000) + r.normal(0, .2)})))
@scen('FID on few samples wiggles by 3 %, its best value is not the last.')
def _(r, v):
    s = st(300, 500); return Run(mk(s, {'$loss': L(r, s, .33, .152, 9000, .012), '$lr': np.full(300, 1e-4)}, val(s, 5000, lambda k: {'fid5k': (12.3 + 70 * np.exp(-k / 16000)) * (1 + .03 * r.standard_normal()), 'is': 8.8 - 6 * np.exp(-k / 20000) + r.normal(0, .12)})))
@scen('Score distillation (text to 3D): the SDS loss is not an objective that falls; sparsity and orient losses vary.', only=['tensorboard', 'csv_wide', 'tqdm', 'lightning'])
def _(r, v):
    s = st(500, 20); return Run(mk(s, {'train/loss_sds': (940 - 120 * v) * np.exp(.3 * r.standard_normal(500)), 'train/grad_norm_sds': 31 * np.exp(.3 * r.standard_normal(500)), 'train/loss_sparsity': .21 + .11 * (1 - np.exp(-s / 2000)) + .01 * r.standard_normal(500), 'train/loss_opaque': .09 * np.exp(.2 * r.standard_normal(500))}))
@scen('DMD-like distillation: generator loss noisy around a level, the fake score network follows it; FID falls.')
def _(r, v):
    s = st(300, 20); return Run(mk(s, {'loss_dm': .31 + .1 * ar1(r, 300, .7) * .4 + .03 * r.standard_normal(300), 'loss_fake_mean': noisy(r, .12 + .05 * np.exp(-s / 500), .1), 'dmtrain_gradient_norm': gn(r, np.full(300, 1.4), .3), 'loss_gan_gen': .69 + .05 * ar1(r, 300, .9), 'loss_gan_dis': 1.33 + .03 * ar1(r, 300, .9)}, val(s, 1000, lambda k: {'fid': 9.2 + 21 * np.exp(-k / 1500) + r.normal(0, .1)})))
@scen('Progressive distillation in stages; in each, the steps restart and the LR follows its own cosine.', only=['keyvalue', 'piped', 'loguru', 'absl', 'chinese'])
def _(r, v):
    rows = []
    for g, n in enumerate([32, 16, 8, 4]):
        s = st(60, 50); rows += [('m', 0, f'=== stage {g + 1}/4: distilling {n} -> {n // 2} steps, optimizer reset')] + mk(s, {'$loss': noisy(r, .004 * 2 ** g + (.006 * 2 ** g) * np.exp(-s / 500), .05), '$lr': wcos(s, 1e-4, 100, 3000)})
    return Run(rows, total=3000)
@scen('Gaussian splatting: opacity is reset every 3000 iterations, so the loss jumps and recovers each time; PSNR rises.')
def _(r, v):
    s = st(300, 100); k = s % 3000; y = fall(s, .24, .031 + .01 * v, 2500) + np.where((s > 3000) & (s < 15000), .06 * np.exp(-k / 200), 0)
    return Run(mk(s, {'$loss': noisy(r, y, .06), 'num_points': 182000 + 9e5 * (1 - np.exp(-np.minimum(s, 15000) / 5000))}, [(7000, {'test_psnr': 25.1, 'test_l1': .034}), (15000, {'test_psnr': 26.9, 'test_l1': .028}), (30000, {'test_psnr': 27.6, 'test_l1': .0261})]))
@scen('Text-to-image with a latent encoder: flow, KL with a small weight, DINO loss; KL rises from 0 to its level as the code fills; all shares ordinary.')
def _(r, v):
    s = st(260, 100); q = lambda a, g=.12: gn(r, np.full(260, a), g, 0)
    return Run(mk(s, {'loss_flow': L(r, s, 1.9, .88, 2600, .015), 'loss_kl': noisy(r, .9 + 3 * np.exp(-s / 3000), .03), 'loss_dino': L(r, s, 6.2, 3.9, 4000, .01), 'grad/flow': q(1.), 'grad/kl': q(.2), 'grad/dino': q(.35), 'grad/total': q(1.15), 'mu/rms': .55 + .6 * np.exp(-s / 4000) + .004 * r.standard_normal(260), 'std/mean': .9 - .4 * np.exp(-s / 4000), 'logvar/mean': -.21 - 1.2 * np.exp(-s / 4000), '$lr': wconst(s, 1e-4, 1000)}))
@scen('KL annealed on purpose from weight 0 to its target: the total loss rises while the weight does, reconstruction falls throughout.')
def _(r, v):
    s = st(300, 100); b = np.minimum(1, s / 15000) * [1., .25][v]; rec = fall(s, 184, 92, 2500); kl = 38 / (1 + 3 * b) + 30 * np.exp(-s / 900)
    return Run(mk(s, {'recon_loss': noisy(r, rec, .01), 'kl': noisy(r, kl, .02), 'beta': b, '$loss': noisy(r, rec + b * kl, .01)}))
@scen('Cyclical annealing: beta goes from 0 to 1 four times, KL and total loss follow it.')
def _(r, v):
    s = st(400, 50); c = (s % 5000) / 5000; b = np.minimum(1, c * 2); kl = (9.5 + 14 * (1 - b)) * (1 - .1 * s / 20000); rec = fall(s, 131, 84, 1500) - 4 * (1 - b)
    return Run(mk(s, {'beta': b, '$loss': noisy(r, rec + b * kl, .012), 'recon': noisy(r, rec, .01), 'kl': noisy(r, kl, .03), '$lr': np.full(400, 5e-4)}))
# ------------------------------------------------------------------ autoencoders, GANs, likelihoods
@scen('KL autoencoder of a latent diffusion: kl in the ten thousands with weight 1e-6 rises by design, reconstruction falls; the discriminator starts at a step and adds a GAN term.')
def _(r, v):
    s = st(320, 100); d0 = 12000; on = s > d0; rec = fall(s, .42, .071, 2500)
    return Run(mk(s, {'train/rec_loss': noisy(r, rec, .03), 'train/kl_loss': noisy(r, 2.1e4 + 3.1e4 * (1 - np.exp(-s / 6000)), .02), 'train/nll_loss': noisy(r, rec * 9000 + 400, .03), 'train/total_loss': noisy(r, rec * 9000 + 400 + np.where(on, 310, 0), .03), 'train/disc_loss': np.where(on, .96 + .06 * ar1(r, 320, .8), 0), 'train/g_loss': np.where(on, .12 + .15 * ar1(r, 320, .8), -.02), 'train/d_weight': np.where(on, 900 + 2500 * sig_up(s, 20000, 4000), 0), 'train/logits_real': np.where(on, .3 + .2 * sig_up(s, 18000, 3000), 0), 'train/logits_fake': np.where(on, -.3 - .2 * sig_up(s, 18000, 3000), 0)}, val(s, 4000, lambda k: {'val/rec_loss': fall(k, .42, .073, 2500), 'val/rfid': 1.4 + 40 * np.exp(-k / 4000)})))
@scen('VQGAN: codebook perplexity rises, commitment loss rises first, discriminator after 10k.')
def _(r, v):
    s = st(250, 100); on = s > 10000
    return Run(mk(s, {'loss_recon': L(r, s, .31, .092, 2500, .02), 'loss_commit': noisy(r, .002 + .019 * (1 - np.exp(-s / 4000)), .05), 'perplexity': 40 + 5200 * (1 - np.exp(-s / 7000)), 'loss_perceptual': L(r, s, .71, .263, 3000, .02), 'loss_g': np.where(on, .55 + .35 * (1 - np.exp(-(s - 10000.) / 4000)) + .05 * r.standard_normal(250), nan), 'loss_d': np.where(on, .93 - .2 * (1 - np.exp(-(s - 10000.) / 4000)) + .04 * r.standard_normal(250), nan), '$lr': np.full(250, 4.5e-6 * (v + 1))}))
@scen('StyleGAN2 ticks: generator loss rises, discriminator loss falls as D gets stronger, r1 varies; FID falls.', only=['jsonl', 'tensorboard', 'csv_wide', 'keyvalue', 'piped'])
def _(r, v):
    s = st(200, 40); return Run(mk(s, {'Loss/G/loss': .72 + 1.1 * (1 - np.exp(-s / 2000)) + .06 * ar1(r, 200, .7), 'Loss/D/loss': 1.31 - .6 * (1 - np.exp(-s / 2000)) + .04 * ar1(r, 200, .7), 'Loss/r1_penalty': noisy(r, .02 + .06 * sig_up(s, 3000, 900), .15), 'Loss/scores/real': .1 + 1.2 * (1 - np.exp(-s / 2500)), 'Loss/scores/fake': -.1 - 1.4 * (1 - np.exp(-s / 2500)), 'Progress/augment': .5 * (1 - np.exp(-s / 3000))}, val(s, 400, lambda k: {'metrics/fid50k_full': 6.1 + 210 * np.exp(-k / 900) + r.normal(0, .1)})))
@scen('BasicSR ESRGAN: pixel and perceptual losses fall slowly, GAN losses drift apart, out_d_real rises.')
def _(r, v):
    s = st(250, 100); return Run(mk(s, {'l_g_pix': L(r, s, .021, .0152, 6000, .05), 'l_g_percep': L(r, s, 6.1, 4.3, 6000, .03), 'l_g_gan': noisy(r, .07 + .09 * (1 - np.exp(-s / 8000)), .1), 'l_d_real': noisy(r, .55 - .3 * (1 - np.exp(-s / 8000)), .1), 'l_d_fake': noisy(r, .55 - .3 * (1 - np.exp(-s / 8000)), .1), 'out_d_real': 2 * (1 - np.exp(-s / 8000)) + .2 * r.standard_normal(250), 'out_d_fake': -2.1 * (1 - np.exp(-s / 8000)) + .2 * r.standard_normal(250), '$lr': 1e-4 * .5 ** (s // 10001)}))
@scen('CycleGAN: D and G losses of both sides oscillate, cycle losses fall.', only=['piped', 'keyvalue', 'imagenet', 'blocks', 'ranks', 'loguru', 'jsonl'])
def _(r, v):
    s = st(200, 100); f = lambda a, b: a + b * ar1(r, 200, .6)
    return Run(mk(s, {'D_A': np.abs(f(.22, .07)), 'G_A': np.abs(f(.38, .1)), 'cycle_A': L(r, s, 2.4, .9, 3000, .12), 'idt_A': L(r, s, 1.1, .42, 3000, .1), 'D_B': np.abs(f(.19, .07)), 'G_B': np.abs(f(.41, .1)), 'cycle_B': L(r, s, 2.2, .95, 3000, .12), 'idt_B': L(r, s, 1.2, .45, 3000, .1)}))
@scen('GAN vocoder: the adversarial and feature-matching losses of the generator rise as the discriminator learns; so does the total; mel error falls.')
def _(r, v):
    s = st(220, 500); mel = fall(s, 1.1, .24, 5000); fm = 1.2 + 3.6 * (1 - np.exp(-s / 40000)) + .1 * ar1(r, 220, .7); adv = 1.9 + 1.2 * (1 - np.exp(-s / 50000)) + .12 * ar1(r, 220, .7)
    return Run(mk(s, {'gen_loss_total': 15 * noisy(r, mel, .03) + fm * 2 + adv + 4.5 * (1 - np.exp(-s / 90000)), 'mel_error': noisy(r, mel, .03), 'loss_fm': fm, 'loss_gen': adv, 'disc_loss': 2.9 - .8 * (1 - np.exp(-s / 40000)) + .1 * ar1(r, 220, .7), '$lr': 2e-4 * .999 ** (s / 3000)}))
@scen('VITS: losses of discriminator, generator, feature matching, mel, duration, KL; gen and fm rise slowly.')
def _(r, v):
    s = st(240, 200); g = lambda a, b, tau, q: noisy(r, a + (b - a) * (1 - np.exp(-s / tau)), q)
    return Run(mk(s, {'loss_disc': g(2.9, 2.4, 9000, .05), 'loss_gen': g(1.9, 2.6, 9000, .06), 'loss_fm': g(1.5, 5.2, 12000, .05), 'loss_mel': L(r, s, 58, 18.2, 4000, .03), 'loss_dur': L(r, s, 2.9, 1.31, 3000, .04), 'loss_kl': L(r, s, 6.8, 1.52, 2500, .04), '$lr': 2e-4 * .9998 ** (s / 300)}))
@scen('Neural audio codec: waveform, mel and adversarial losses; the weighted total rises when the adversarial loss starts at 20k, as configured.')
def _(r, v):
    s = st(300, 200); on = s > 20000
    return Run(mk(s, {'mel/loss': L(r, s, 3.8, 1.1, 4000, .02), 'adv/gen_loss': np.where(on, 3.6 + .5 * (1 - np.exp(-(s - 2e4) / 9000)) + .1 * r.standard_normal(300), 0), 'adv/feat_loss': np.where(on, 3.1 + 2.2 * (1 - np.exp(-(s - 2e4) / 9000)) + .1 * r.standard_normal(300), 0), 'vq/commitment_loss': noisy(r, .4 + .6 * (1 - np.exp(-s / 5000)), .04), 'vq/codebook_loss': noisy(r, .4 + .6 * (1 - np.exp(-s / 5000)), .04), 'waveform/loss': L(r, s, .06, .021, 5000, .04), 'other/learning_rate': 1e-4 * .999996 ** s}), head=['adversarial losses start at step 20000'])
@scen('Hierarchical VAE in bits per dimension with KL warm-up.')
def _(r, v):
    s = st(250, 200); return Run(mk(s, {'bpd': L(r, s, 7.6, 2.94, 1800, .006), 'kl_bpd': noisy(r, .4 + 1.9 * (1 - np.exp(-s / 9000)), .02), 'rec_bpd': L(r, s, 7.2, .61, 3500, .01), 'kl_coeff': np.minimum(1, s / 15000), '$lr': wcos(s, 1e-2, 1000, 50000, 1e-4)}, val(s, 5000, lambda k: {'val_bpd': fall(k, 7.6, 2.99, 1800)})))
@scen('Normalizing flow on continuous data: negative log-likelihood goes from positive to far below zero.')
def _(r, v):
    s = st(300, 100); y = fall(s, 5.6, -[3.2, 310.][v], 3000, .7)
    return Run(mk(s, {'nll' if v else '$loss': y + [.05, 6][v] * r.standard_normal(300), '$lr': wlin(s, 1e-3, 500, 31000), '$gn': gn(r, 2 + 11 * np.exp(-s / 1500), .4)}, val(s, 3000, lambda k: {'val_nll' if v else '$val': float(fall(k, 5.6, -[3.15, 305.][v], 3000, .7))})))
@scen('Variational diffusion: VLB in nats summed over dimensions (tens of thousands).')
def _(r, v):
    s = st(200, 500); return Run(mk(s, {'$loss': L(r, s, 48213., 19120., 6000, .015), '$lr': wconst(s, 2e-4, 5000), 'gamma_0': -13.3 + .2 * r.standard_normal(200), 'gamma_1': 5. + .01 * r.standard_normal(200)}))
@scen('Loss is a mean over latents of a weighted error around 0.0003.')
def _(r, v):
    s = st(300, 20); return Run(mk(s, {'$loss': L(r, s, .0031, .00026, 500, .05), '$lr': wcos(s, 1e-3, 100, 6000), '$gn': gn(r, .0004 + .003 * np.exp(-s / 800), .3)}))
# ------------------------------------------------------------------ language
@scen('Language-model pretraining; two spikes that recover; gradient clipping at 1.')
def _(r, v):
    s = st(500, 50); y = fall(s, 10.9, 2.71, 1100, .45); g = gn(r, .32 + 3 * np.exp(-s / 500))
    for k, h in [(210, 1.35), (371, 1.6)]: y[k:k + 6] *= 1 + (h - 1) * np.exp(-np.arange(6) / 1.5); g[k:k + 2] *= 9
    return Run(mk(s, {'$loss': noisy(r, y, .008), '$gn': g, '$lr': wcos(s, 3e-4, 1000, 25000, 3e-5)}, val(s, 5000, lambda k: {'$val': fall(k, 10.9, 2.73, 1100, .45)})))
@scen('Warmup-stable-decay: the loss falls quickly in the decay phase.')
def _(r, v):
    s = st(300, 100); y = fall(s, 10.6, 2.95, 1500, .5) - .22 * sig_up(s, 27500, 900)
    return Run(mk(s, {'$loss': noisy(r, y, .008), '$lr': wsd(s, 6e-4, 1000, 25000, 30000, .1), '$gn': gn(r, .25 + 2 * np.exp(-s / 600))}))
@scen('Still in warm-up: 40 logged steps of a run of 500,000, LR rising, the loss has only begun to fall.')
def _(r, v):
    s = st(40, 10); return Run(mk(s, {'$loss': noisy(r, [10.97, 1.99][v] * (1 - [.22, .03][v] * (s / 400) ** 1.5), .004), '$lr': 3e-4 * s / 10000, '$gn': gn(r, 4.5 - 3 * s / 400)}), total=500000)
@scen('Instruction tuning, one epoch, noisy batches, falls by 15 %.', only=['hf_print', 'hf_state', 'tqdm', 'jsonl', 'wandb_history', 'tensorboard'])
def _(r, v):
    s = st(180, 10); return Run(mk(s, {'$loss': L(r, s, 1.38, 1.07, 180, .045), '$gn': gn(r, np.full(180, .9), .2), '$lr': wcos(s, 2e-5, 54, 1800)}, val(s, 600, lambda k: {'$val': fall(k, 1.37, 1.085, 180)})), spe=1800)
@scen('DPO: loss starts at ln 2; rewards of both answers fall, their margin rises, gradient norm grows moderately.', only=['hf_print', 'hf_state', 'csv_wide', 'jsonl', 'wandb_history'])
def _(r, v):
    s = st(150, 10); m = 1.9 * (1 - np.exp(-s / 500))
    return Run(mk(s, {'$loss': noisy(r, .693 - .19 * (1 - np.exp(-s / 400)), .05), '$gn': gn(r, 11 + 14 * (1 - np.exp(-s / 500))), '$lr': wlin(s, 5e-7, 150, 1500), 'rewards/chosen': -.5 * m + .1 * r.standard_normal(150), 'rewards/rejected': -1.5 * m + .1 * r.standard_normal(150), 'rewards/accuracies': .5 + .24 * (1 - np.exp(-s / 300)) + .03 * r.standard_normal(150), 'rewards/margins': m, 'logps/chosen': -281 - 20 * m + 4 * r.standard_normal(150), 'logps/rejected': -262 - 60 * m / 2 + 4 * r.standard_normal(150)}))
@scen('GRPO: the policy loss begins at 0 and is tiny, KL to the reference grows to 0.04, reward rises.')
def _(r, v):
    s = st(160, 5); u = 1 - np.exp(-s / 300)
    return Run(mk(s, {'$loss': .0016 * u + .0009 * r.standard_normal(160), '$gn': gn(r, np.full(160, .32), .3), '$lr': wconst(s, 1e-6, 20), 'reward': .31 + .42 * u + .03 * r.standard_normal(160), 'reward_std': .4 - .1 * u + .02 * r.standard_normal(160), 'kl': noisy(r, .0004 + .04 * u, .2), 'completion_length': 310 + 190 * u + 9 * r.standard_normal(160), 'clip_ratio': np.abs(.002 + .001 * r.standard_normal(160))}))
@scen('PPO on a control task: return rises, value loss grows with the scale of the returns, entropy falls, approx_kl about 0.01.', only=['sb3', 'csv_wide', 'tensorboard', 'jsonl', 'wandb_history'])
def _(r, v):
    s = st(150, 2048); u = sig_up(s, 110000, 40000)
    return Run(mk(s, {'rollout/ep_rew_mean': 22 + 460 * u + 8 * r.standard_normal(150), 'train/approx_kl': noisy(r, np.full(150, .009), .2), 'train/clip_fraction': noisy(r, np.full(150, .09), .2), 'train/entropy_loss': -.69 + .25 * u, 'train/explained_variance': .1 + .8 * u + .03 * r.standard_normal(150), 'train/learning_rate': np.full(150, 3e-4), 'train/loss': 4 + 24 * u + 3 * r.standard_normal(150), 'train/value_loss': noisy(r, 9 + 60 * u, .15)}), not_=[])
@scen('Mixture of experts: the balancing loss stays at 1.0 and the z-loss is tiny by design, the LM loss falls.')
def _(r, v):
    s = st(260, 50); return Run(mk(s, {'$loss': L(r, s, 10.8, 2.9, 900, .01), 'aux_loss': 1.003 + .004 * np.abs(r.standard_normal(260)), 'z_loss': noisy(r, 1e-4 + 4e-4 * np.exp(-s / 1500), .05), 'dropped_tokens': np.abs(.01 + .004 * r.standard_normal(260)), '$lr': wcos(s, 4e-4, 800, 13000), '$gn': gn(r, .4 + 2 * np.exp(-s / 400))}))
@scen('Knowledge distillation: KL to the teacher falls to almost 0, which is the goal.')
def _(r, v):
    s = st(220, 50); return Run(mk(s, {'$loss': L(r, s, 2.1, .31, 700, .03), 'loss_ce': L(r, s, 2.9, 1.92, 700, .02), ['kd_kl', 'kl_loss'][v]: L(r, s, 1.2, .0061, 800, .06), '$lr': wcos(s, 5e-4, 300, 11000)}, val(s, 1000, lambda k: {'val_acc': .93 - .3 * np.exp(-k / 1500)})))
@scen('DeepSpeed fp16: the loss scale starts at 2^32 and halves until it fits, then doubles now and then; few skipped steps.')
def _(r, v):
    s = st(300, 10); sc = np.where(s < 170, 2.**32 / 2 ** (s / 10), 2.**16 * 2 ** (np.floor(s / 1000) % 2))
    return Run(mk(s, {'$loss': np.where(s < 170, 11.02 + .02 * r.standard_normal(300), L(r, np.maximum(s - 160, 0), 11.0, 3.6, 350, .012)), 'loss_scale': sc, '$lr': wconst(np.maximum(s - 170, 0), 2e-4, 500), '$gn': np.where(s < 170, np.nan, gn(r, .7 + 3 * np.exp(-s / 300)))}))
@scen('GradScaler: scale grows from 65536, single overflows halve it, the number of skipped steps stays small.')
def _(r, v):
    s = st(240, 50); sc = 65536. * 2 ** np.clip(np.floor(s / 2000), 0, 3); sc = np.where((s % 3100) < 900, sc / 2, sc)
    return Run(mk(s, {'$loss': L(r, s, .98, .41, 900, .02), 'amp/scale': sc, 'amp/skipped_steps': np.floor(s / 3100), '$lr': np.full(240, 1e-4), '$gn': gn(r, np.full(240, .8))}))
# ------------------------------------------------------------------ representations, speech, vision
@scen('CLIP training: contrastive loss falls, logit scale rises to its clamp of 100 by design.')
def _(r, v):
    s = st(250, 100); return Run(mk(s, {'$loss': L(r, s, 8.3, 1.1, 3500, .03), 'logit_scale': np.minimum(100, 14.3 * np.exp(s / 7000)), '$lr': wcos(s, 5e-4, 2000, 25000)}, val(s, 5000, lambda k: {'imagenet-zeroshot-top1': .41 * (1 - np.exp(-k / 9000))})))
@scen('DINO self-distillation: the loss rises while the teacher temperature warms up and then falls; weight decay grows on schedule; teacher entropy moderate.')
def _(r, v):
    s = st(300, 100); y = 10.1 + .7 * sig_up(s, 2500, 700) - 4.1 * sig_up(s, 12000, 5000)
    return Run(mk(s, {'$loss': noisy(r, y, .01), '$lr': wcos(s, 5e-4, 3000, 30000, 1e-6), 'wd': .04 + .36 * s / 30000, 'teacher_temp': np.minimum(.07, .04 + .03 * s / 9000), 'teacher_momentum': .996 + .004 * s / 30000, 'teacher_entropy': noisy(r, 5.2 - 1.2 * s / 30000, .01)}))
@scen('MoCo: the loss rises as the queue fills with harder negatives, then falls for the rest of the run.')
def _(r, v):
    s = st(300, 100); y = 6.4 + 1.9 * sig_up(s, 900, 250) - 1.75 * (1 - np.exp(-np.maximum(0, s - 1500) / 8000))
    return Run(mk(s, {'$loss': noisy(r, y, .008), 'acc1': 100 * (.02 + .7 * (1 - np.exp(-s / 9000))), '$lr': wcos(s, .03, 1, 30001)}))
@scen('SimSiam: negative cosine similarity falls from -0.1 to -0.93, the std of the outputs stays at 1/sqrt(d).')
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'$loss': -.93 + .83 * np.exp(-s / 1800) + .008 * r.standard_normal(200), 'output_std': .0221 - .006 * np.exp(-s / 500) + .0002 * r.standard_normal(200), '$lr': wcos(s, .05, 1, 10001)}))
@scen('CTC speech recognition: a long plateau at the blank solution, then a fast fall; WER follows.')
def _(r, v):
    s = st(300, 50); y = 2.9 + 18 * np.exp(-s / 150) - 2.55 * sig_up(s, 4200 + 800 * v, 700)
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': wlin(s, 1e-4, 1500, 15500), '$gn': gn(r, 2.1 + 20 * np.exp(-s / 200))}, val(s, 1500, lambda k: {'$val': 2.9 - 2.5 * float(sig_up(k, 4200 + 800 * v, 700)), 'eval_wer': 1 - .82 * float(sig_up(k, 5000, 900))})))
@scen('wav2vec pretraining: the total loss falls, code perplexity rises, diversity loss falls.')
def _(r, v):
    s = st(200, 200); return Run(mk(s, {'$loss': L(r, s, 6.7, 2.1, 5000, .015), 'contrastive_loss': L(r, s, 6.1, 1.9, 5000, .015), 'diversity_loss': L(r, s, .98, .12, 3000, .03), 'code_perplexity': 18 + 590 * (1 - np.exp(-s / 5000)), '$lr': wlin(s, 5e-4, 8000, 42000)}))
@scen('Text to speech with flow matching (Matcha-like): duration, prior and diffusion losses; prior is near its floor of 0.92.')
def _(r, v):
    s = st(240, 100); return Run(mk(s, {'sub_loss/train_dur_loss': L(r, s, .91, .31, 1500, .04), 'sub_loss/train_prior_loss': L(r, s, 1.35, .962, 1200, .006), 'sub_loss/train_diff_loss': L(r, s, .92, .661, 1400, .03), '$loss': L(r, s, 3.2, 1.93, 1300, .015), 'grad_norm/train': gn(r, np.full(240, 1.6), .3)}))
@scen('Video model on 4 nodes: throughput dips during checkpoints and a slow file system; loss ordinary.')
def _(r, v):
    s = st(220, 20); return Run(mk(s, {'$loss': L(r, s, .39, .221, 900, .05), '$lr': wconst(s, 5e-5, 500), 'samples_per_sec': np.where(s % 500 < 40, 2.1, 14.2) + .2 * r.standard_normal(220), 'data_time': np.where(s % 500 < 40, 3.1, .05) + .01 * np.abs(r.standard_normal(220)), '$gn': gn(r, np.full(220, .35))}))
@scen('Image classification with mixup: the training loss stays far above the validation loss; accuracy rises.')
def _(r, v):
    s = st(150, 1000); return Run(mk(s, {'$loss': L(r, s, 6.94, 2.71, 12000, .015), '$lr': wcos(s, 1e-3, 5000, 150000, 1e-6)}, val(s, 5000, lambda k: {'$val': fall(k, 6.2, .87, 11000), 'val_top1': 81.8 - 78 * np.exp(-k / 20000)})), spe=5000)
@scen('nnU-Net-like segmentation: Dice losses are negative; training -0.88, validation -0.83; poly LR.')
def _(r, v):
    s = st(200, 1); y = fall(s, -.05, -.885, 14); return Run(mk(s, {'train_loss': y + .007 * r.standard_normal(200), 'val_loss': fall(s, -.1, -.835, 13) + .01 * r.standard_normal(200), 'mean_dice': .9 - .8 * np.exp(-s / 12) + .01 * r.standard_normal(200), '$lr': .01 * (1 - s / 201.) ** .9}), spe=1)
@scen('Detector: mosaic augmentation is switched off for the last tenth, losses step down and mAP rises.')
def _(r, v):
    s = st(100, 1); off = s > 90; f = lambda a, b: noisy(r, fall(s, a, b, 8) * np.where(off, .88, 1), .008)
    return Run(mk(s, {'train/box_loss': f(1.9, 1.01), 'train/cls_loss': f(3.1, .72), 'train/dfl_loss': f(1.8, 1.1), 'metrics/mAP50-95': .49 * (1 - np.exp(-s / 18)) + np.where(off, .008, 0), 'val/box_loss': noisy(r, fall(s, 1.8, 1.09, 8), .01), 'val/cls_loss': noisy(r, fall(s, 2.7, .83, 8), .01), 'lr/pg0': wlin(s, .01, 3, 101)}), spe=1)
@scen('Keras with early stopping after 6 epochs without improvement, best weights restored; validation 1 % above its best.', only=['keras', 'csv_wide', 'piped', 'notebook'])
def _(r, v):
    s = st(38, 1); y = fall(s, .83, .291, 4); va = fall(s, .80, .331, 4) + np.maximum(0, s - 32) * .0005 + .0011 * np.abs(r.standard_normal(38)) * (s > 20)
    return Run(mk(s, {'$loss': noisy(r, y, .006), 'accuracy': .61 + .28 * (1 - np.exp(-s / 6)), '$val': va, 'val_accuracy': .62 + .24 * (1 - np.exp(-s / 6)) + .002 * r.standard_normal(38), '$lr': np.where(s > 34, 1e-4, 1e-3)}), spe=1, tail=['Epoch 38: early stopping', 'Restoring model weights from the end of the best epoch: 32.'])
@scen('Regression with gradient boosting: training error goes on falling, validation error flattens 15 % above it.', only=['piped', 'csv_wide', 'jsonl', 'aligned', 'tsv_long'])
def _(r, v):
    s = st(200, 10); return Run(mk(s, {'train-rmse': fall(s, 3.1, .82, 180), 'valid-rmse': fall(s, 3.15, .97, 170) + .0005 * r.standard_normal(200)}))
# ------------------------------------------------------------------ schedules, resumes, logs
@scen('Cosine with warm restarts: at each restart the loss rises a little and then falls below its former minimum.')
def _(r, v):
    s = st(360, 50); P = 6000; k = (s - 1) % P; lr = 1e-6 + 4e-4 * .5 * (1 + np.cos(np.pi * k / P)); y = fall(s, 2.3, .74, 1800) * (1 + .07 * lr / 4e-4)
    return Run(mk(s, {'$loss': noisy(r, y, .012), '$lr': lr, '$gn': gn(r, .5 + .4 * lr / 4e-4)}, val(s, 3000, lambda i: {'$val': fall(i, 2.3, .752, 1800) * (1 + .03 * (i % 6000 > 0))})))
@scen('Step decay: LR divided by 10 at two milestones, the loss steps down each time.')
def _(r, v):
    s = st(180, 500); y = fall(s, 2.31, .92, 6000) - .28 * sig_up(s, 45500, 700) - .08 * sig_up(s, 67500, 700)
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': .1 * .1 ** ((s > 45000) * 1. + (s > 67500))}), spe=1000)
@scen('LR raised on purpose by hand with the batch size after a checkpoint; the loss goes on falling.')
def _(r, v):
    s = st(260, 100); return Run(mk(s, {'$loss': noisy(r, fall(s, 1.21, .55, 2500) * np.where(s > 13000, .985, 1), .015), '$lr': np.where(s > 13000, 4e-4, 1e-4), 'batch_size': np.where(s > 13000, 1024., 256.)}, msgs={13000: 'batch size 256 -> 1024, learning rate 1e-4 -> 4e-4 (square of planned ramp)'}))
@scen('Resumed correctly: the last 400 steps before the interruption appear twice, with the same level of the loss.', only=['jsonl', 'keyvalue', 'piped', 'csv_wide', 'loguru', 'absl', 'titan'])
def _(r, v):
    a = st(150, 20); b = st(200, 20, 2600); f = lambda s: mk(s, {'$loss': L(r, s, 1.9, .83, 500, .02), '$lr': wcos(s, 2e-4, 300, 7000), '$gn': gn(r, .5 + 2 * np.exp(-s / 300))})
    return Run(f(a) + [('m', 2600, 'Resuming from checkpoint step_2600: model, optimizer, scheduler and rng states loaded')] + f(b), total=7000)
@scen('Preempted four times and resumed from the last checkpoint each time.', only=['jsonl', 'keyvalue', 'piped', 'syslog', 'loguru', 'titan', 'megatron', 'ranks'])
def _(r, v):
    rows = []; k0 = 0
    for n in (61, 48, 90, 33, 70): s = st(n, 25, k0); rows += mk(s, {'$loss': L(r, s, 9.1, 3.02, 900, .012), '$lr': wconst(s, 3e-4, 500), '$gn': gn(r, .4 + 2 * np.exp(-s / 400))}); k0 = (s[-1] // 500) * 500; rows += [('m', k0, f'preempted (SIGTERM); resuming from step {k0}')]
    return Run(rows[:-1], total=20000)
@scen('A resumed part only: the log begins at step 400,000 of a converged run; the loss is flat within its noise, evaluation improves slowly.')
def _(r, v):
    s = st(150, 100, 400000); return Run(mk(s, {'$loss': noisy(r, .5213 - 1.1e-7 * (s - 4e5), .012), '$lr': np.full(150, 1e-4), '$gn': gn(r, np.full(150, .17))}, val(s, 5000, lambda k: {'fid': 8.31 - .00002 * (k - 4e5) + r.normal(0, .02)})), head=['Resumed from checkpoints/0400000.pt'], total=800000)
@scen('Very long run: a million steps, logged every 2000.')
def _(r, v):
    s = st(500, 2000); return Run(mk(s, {'$loss': L(r, s, .52, .131, 20000, .012, p=.4), '$lr': np.full(500, 1e-4), '$gn': gn(r, .08 + .3 * np.exp(-s / 30000))}))
@scen('Smoke test of 24 steps that ends normally.')
def _(r, v):
    s = st(24, 1); return Run(mk(s, {'$loss': noisy(r, [2.02, .98][v] * np.exp(-s / 60), .02), '$lr': np.full(24, 1e-3), '$gn': gn(r, np.full(24, 1.9))}), tail=['max steps reached, done'])
@scen('The job ends at its time limit in the middle of an ordinary run.', only=['keyvalue', 'piped', 'hf_print', 'tqdm', 'loguru', 'nanogpt'])
def _(r, v):
    s = st(210, 50); return Run(mk(s, {'$loss': L(r, s, 1.6, .71, 1500, .02), '$lr': wcos(s, 1e-4, 500, 40000), '$gn': gn(r, .4 + np.exp(-s / 900))}), total=40000, tail=['slurmstepd: error: *** JOB 8812734 ON gpu-14 CANCELLED AT 2025-06-03T11:00:21 DUE TO TIME LIMIT ***'])
@scen('Early plateau: nothing happens for a fifth of the run, then it learns.')
def _(r, v):
    s = st(300, 20); return Run(mk(s, {'$loss': noisy(r, 1.004 - .52 * sig_up(s, 2300, 500 + 300 * v), .01), '$lr': np.full(300, 2e-4), 'acc': .1 + .8 * sig_up(s, 2300, 500)}))
@scen('Layers unfreeze at two steps; the gradient norm jumps as more parameters count, the loss falls faster.')
def _(r, v):
    s = st(240, 25); y = fall(s, 1.8, 1.21, 500) - .3 * (1 - np.exp(-np.maximum(0, s - 2000) / 900)) - .14 * (1 - np.exp(-np.maximum(0, s - 4000) / 900))
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$gn': gn(r, np.where(s > 4000, 3.1, np.where(s > 2000, 1.2, .3))), '$lr': np.full(240, 1e-4), 'trainable_params_M': np.where(s > 4000, 310., np.where(s > 2000, 96., 4.))}, msgs={2000: 'unfreezing blocks 12-23', 4000: 'unfreezing all blocks'}))
@scen('Curriculum: harder tasks are mixed in at stages, and the loss rises in steps of 10 to 25 % while accuracy per task rises.')
def _(r, v):
    s = st(300, 50); st_ = np.minimum(3, s // 4000); k = s - st_ * 4000; y = np.array([.9, 1.05, 1.2, 1.3])[st_] * .6 + .35 * np.exp(-k / 900)
    return Run(mk(s, {'$loss': noisy(r, y, .02), 'curriculum_stage': st_.astype(float), 'acc_easy': 1 - .6 * np.exp(-s / 2500), '$lr': wconst(s, 3e-4, 300)}, msgs={4000: 'curriculum: entering stage 1', 8000: 'curriculum: entering stage 2', 12000: 'curriculum: entering stage 3'}))
@scen('Validation on 64 samples: noise of 4 %, best value in the middle by chance.')
def _(r, v):
    s = st(300, 50); return Run(mk(s, {'$loss': L(r, s, .91, .512, 1500, .03), '$lr': np.full(300, 1e-4)}, val(s, 500, lambda k: {'$val': fall(k, .91, .52, 1500) * (1 + .04 * r.standard_normal())})))
@scen('Gradient norm grows by a factor of 3 over a long run while the loss falls (typical of AdamW with weight decay).')
def _(r, v):
    s = st(400, 250); return Run(mk(s, {'$loss': L(r, s, 6.9, 2.31, 6000, .01), '$gn': gn(r, .35 + 2.5 * np.exp(-s / 2000) + .75 * s / 1e5), '$lr': wcos(s, 1e-3, 4000, 100000, 1e-5)}))
@scen('Weight norms grow, gradients become small as the loss goes to its floor in an easy regression.')
def _(r, v):
    s = st(250, 20); return Run(mk(s, {'$loss': L(r, s, 1.01, 3.1e-4, 250, .08, w=.93), '$gn': gn(r, .004 + 1.2 * np.exp(-s / 300), .35), 'weight_norm': 31 + 5 * (1 - np.exp(-s / 2000)), '$lr': wcos(s, 1e-3, 50, 5000)}))
@scen('Loss with a regularizer that grows: weights are learned, the task loss falls, the penalty rises from 0.001 to 0.02.')
def _(r, v):
    s = st(250, 40); a = fall(s, 2.2, .38, 900); b = .001 + .02 * (1 - np.exp(-s / 3000)); return Run(mk(s, {'loss_task': noisy(r, a, .02), 'loss_reg': noisy(r, b, .02), '$loss': noisy(r, a + b, .02), '$lr': np.full(250, 3e-4)}))
@scen('Metrics that exist only sometimes: GPU temperature n/a, an evaluation that is computed only in the first part because it was switched off.')
def _(r, v):
    s = st(240, 50); return Run(mk(s, {'$loss': L(r, s, 1.4, .63, 1200, .02), '$lr': wconst(s, 1e-4, 500), 'gpu_util': 96 + r.standard_normal(240)}, [(int(k), {'$val': float(fall(k, 1.4, .64, 1200))}) for k in s if k % 500 == 0 and k <= 6000], msgs={6050: 'validation disabled from here on (--no_eval), data moved to training'}), not_=['wandb_history', 'csv_wide', 'lightning', 'markdown'])
@scen('Two parameter groups: the backbone has LR 0 for the first 1000 steps by design (frozen), the head learns.')
def _(r, v):
    s = st(200, 20); return Run(mk(s, {'$loss': L(r, s, 2.4, 1.02, 500, .03), 'lr/backbone': np.where(s < 1000, 0., 1e-5), 'lr/head': wconst(s, 1e-3, 100), '$gn': gn(r, np.full(200, 1.3))}), head=['backbone frozen for 1000 steps'])
@scen('Linear decay that ends at exactly 0.')
def _(r, v):
    s = st(200, 50); lr = wlin(s, 1e-4, 500, 10000); return Run(mk(s, {'$loss': L(r, s, 3.1, 1.74, 1200, .02), '$lr': np.maximum(lr, 0), '$gn': gn(r, np.full(200, .9))}))
@scen('Layer-wise tiny LR for fine-tuning a large model (5e-7), short; the loss falls by 4 %, accuracy rises.')
def _(r, v):
    s = st(120, 5); return Run(mk(s, {'$loss': noisy(r, 1.912 * (1 - .045 * (1 - np.exp(-s / 200))), .008), '$lr': wcos(s, 5e-7, 30, 600), '$gn': gn(r, np.full(120, 2.2)), 'acc': .58 + .02 * (1 - np.exp(-s / 200))}), head=['Loading pretrained model, full fine-tuning of 70B parameters'])
@scen('Large LR is right for this optimizer (Prodigy reports 1.0, SGD 0.5, LARS 4.8).')
def _(r, v):
    s = st(220, 20); return Run(mk(s, {'$loss': L(r, s, [.142, 6.9][v], [.118, 3.1][v], 900, [.1, .015][v]), '$lr': [np.full(220, 1.), wcos(s, 4.8, 300, 4400)][v]}), head=[['optimizer: Prodigy(d_coef=1.0, lr=1.0)', 'optimizer: LARS(lr=4.8, momentum=0.9)'][v]])
@scen('Two losses with a trade-off: alignment falls, uniformity becomes more negative.')
def _(r, v):
    s = st(200, 30); return Run(mk(s, {'loss_align': noisy(r, .3 + .6 * np.exp(-s / 1200), .02), 'loss_uniform': -3.6 * (1 - np.exp(-s / 900)) + .03 * r.standard_normal(200), '$loss': .9 - 3.9 * (1 - np.exp(-s / 900)) + .03 * r.standard_normal(200), '$lr': np.full(200, 1e-3)}))
@scen('Epochs of 80 steps, several epochs, loss smooth across epoch boundaries; throughput dips at each boundary.')
def _(r, v):
    s = st(480, 2); return Run(mk(s, {'$loss': L(r, s, .92, .431, 200, .03), '$lr': wcos(s, 2e-4, 40, 960), 'throughput': np.where(s % 80 < 4, 71., 418.) + 4 * r.standard_normal(480), 'epoch': np.floor(s / 80)}), spe=80)
