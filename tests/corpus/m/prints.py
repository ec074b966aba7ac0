"""Prints of debugging code: healthy (`none`) and broken. Each function returns (ending, lines); v is 0 or 1."""
from writers import *

P = []
def prints(cause, story, acc=()):
    def deco(f): P.append((f, cause, story, list(acc))); return f
    return deco
def tab(head, rows, md): return ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)] + ['| ' + ' | '.join(x) + ' |' for x in rows] if md else [''.join(f'{h:>{max(9, len(h) + 2)}}' for h in head)] + [''.join(f'{c:>{max(9, len(h) + 2)}}' for c, h in zip(x, head)) for x in rows]

# ------------------------------------------------------------------ healthy
@prints('none', 'Sampler with a shifted schedule: steps grow steadily, the sum is 1, |x| from 0.80 (noise).')
def _(r, v):
    n = [28, 20][v]; s = np.linspace(1, 0, n + 1); s = 3 * s / (1 + 2 * s); x = np.linspace(.798, .71, n) + .002 * r.standard_normal(n)
    return '.txt', [f'[sample] {i:02d} sigma={s[i]:.4f} |x|={x[i]:.4f} |v|={1.09 - .1 * i / n + r.normal(0, .003):.4f} dt={s[i + 1] - s[i]:.4f}' if v else f'step {i:2d}: |x|={x[i]:.4f}, |v|={1.09 - .1 * i / n + r.normal(0, .003):.4f}, dt={s[i] - s[i + 1]:.4f}' for i in range(n)]
@prints('none', 'EDM sampler: sigma from 80 (14.6) to 0.002, x starts at that scale by definition.')
def _(r, v):
    n = 18; a, b = [80, 14.6146][v] ** (1 / 7), .002 ** (1 / 7); s = (a + np.arange(n) / (n - 1) * (b - a)) ** 7
    return '.log', ['sampler: Heun (EDM), rho=7, num_steps=18'] + [f'i={i} sigma={q:.4f} x.std={np.sqrt(q * q + .25):.4f} denoised.std={.21 + .28 * i / n:.4f}' for i, q in enumerate(s)]
@prints('none', 'Euler with 50 uniform steps in fp32; |x| moves a little each step.')
def _(r, v):
    n = [50, 25][v]; return '.log', [f'step{i}: |x|={.8 - .11 * np.sin(np.pi * i / n / 1.3) + .04 * i / n:.4f}, |v|={.93 + .1 * i / n:.4f}, dt={1 / n:.4f}' for i in range(n)]
@prints('none', 'One-step alignment at five t: cos 0.7 to 0.9, ratio near 0.9.')
def _(r, v):
    ts_ = [.1, .3, .5, .7, .9]; c = [.71, .79, .84, .86, .80]; c = [x + r.normal(0, .01) for x in c]
    return ['.txt', '.md'][v], [f'[fm] t={t:.2f} cos(v_pred, v_tgt)={x:.3f} ||pred||/||tgt||={x * 1.06:.3f}' for t, x in zip(ts_, c)] if not v else ['### One-step check, ckpt 120k', ''] + tab(['t', 'cos', 'norm ratio', 'nmse'], [[f'{t}', f'{x:.3f}', f'{x * 1.05:.3f}', f'{1 - x * x:.3f}'] for t, x in zip(ts_, c)], 1)
@prints('none', 'Euler on the exact field: error falls as 1/N.')
def _(r, v):
    return ['.txt', '.md'][v], [f'[teacher] N={n:<4d} MSE={.8 / n ** 2 * (1 + r.normal(0, .01)):.3e}' for n in (5, 10, 20, 50, 100)] if not v else tab(['steps', 'mse to x1 (exact field)'], [[str(n), f'{.31 / n ** 2:.2e}'] for n in (4, 8, 16, 32, 64)], 1)
@prints('none', 'Endpoint RMSE falls with K and settles.')
def _(r, v):
    return '.txt', [f'rollout K={k:<3d} endpt_rmse={.412 + 1.1 / k + r.normal(0, .001):.4f}' for k in (4, 8, 16, 32, 64)] if not v else [f'step {s}: ' + '  '.join(f'flow/endpt_rmse@{k}={.4 + 1.4 / k + .5 * np.exp(-s / 4000):.4f}' for k in (8, 16, 32, 64)) for s in range(1000, 21000, 1000)]
@prints('none', 'Cosines of means of prompts 0.1 to 0.6, the same prompt twice 1.')
def _(r, v):
    q = [('a cat', 'a car'), ('a cat', 'a red apple'), ('a car', 'a red apple'), ('a cat', 'a kitten')]; c = [.21, .18, .25, .63]
    return '.log', [f'[text] cos(mu({a}), mu({b})) = {x + r.normal(0, .02):.3f}' for (a, b), x in zip(q, c)] + ['[text] cos(mu(a cat), mu(a cat)) = 1.000'] if not v else ['pairwise cosine of prompt embeddings (mu)'] + [f'  {a} / {b}: {x + r.normal(0, .02):.3f}' for (a, b), x in zip(q, c)]
@prints('none', 'Round trip of a VAE and statistics of latents near unit variance.')
def _(r, v):
    return '.txt', [f'[vae] pixels: min -1.000 max 1.000 mean -0.{r.integers(10, 90):03d}', f'[vae] z1: mean {r.normal(0, .02):.3f} std {[.93, 1.04][v]:.3f} min -4.81 max 5.02', f'[vae] roundtrip psnr {[31.42, 27.8][v]:.2f} dB', f'scaling_factor = {[.13025, .3611][v]}' + (', shift_factor = 0.1159' if v else '')]
@prints('none', 'Norms of z0, z1, x_t and the target are of one size.')
def _(r, v):
    z = [64.2, 128.4][v]; return '.txt', [f'batch {i}: E|z0|={z * (1 + r.normal(0, .01)):.2f} E|z1|={z * .94 * (1 + r.normal(0, .02)):.2f} E|x_t|={z * .79 * (1 + r.normal(0, .01)):.2f} E|v*|={z * 1.36 * (1 + r.normal(0, .01)):.2f}' for i in range(6)]
@prints('none', 'Constants of a schedule: Stable Diffusion, and DDPM.')
def _(r, v):
    b = np.linspace(.00085 ** .5, .012 ** .5, 1000) ** 2 if v == 0 else np.linspace(1e-4, .02, 1000); a = np.cumprod(1 - b); f = lambda x: f'first 3 {x[0]:.6f} {x[1]:.6f} {x[2]:.6f} ... last 3 {x[-3]:.6f} {x[-2]:.6f} {x[-1]:.6f}'
    return '.txt', [f'betas: {f(b)}', f'alphas_cumprod: {f(a)}', f'sqrt_alphas_cumprod: {f(a ** .5)}', f'sqrt_one_minus_alphas_cumprod: {f((1 - a) ** .5)}']
@prints('none', 't statistics of uniform sampling.')
def _(r, v):
    o = []
    for i in range(12):
        t = r.random(512) if v == 0 else r.integers(0, 1000, 512)
        o.append(f'it {i * 100} t: min {t.min():.4g} max {t.max():.4g} mean {t.mean():.4g} std {t.std():.4g}')
    return '.log', o
@prints('none', 'Slices of t: a mild U, the ends 1.3 times the middle.')
def _(r, v):
    u = .41 * (1 + .3 * (2 * np.arange(10) / 9 - 1) ** 2); return '.txt', [f't in [{i / 10:.1f}, {(i + 1) / 10:.1f}): mse={x * 1.9:.4f} nmse={x:.4f} cos={np.sqrt(1 - x):.4f} n={r.integers(190, 220)}' for i, x in enumerate(u)] if not v else ['per-bin validation loss (10 bins of t)', ' '.join(f'{x + r.normal(0, .004):.3f}' for x in u)]
@prints('none', 'Gradient norm of each loss alone, update ratios of the heads around 1e-3.')
def _(r, v):
    o = []
    for k in range(0, 3000, 100): o.append(f'{k:5d} | grad flow {gn(r, [1.1])[0]:.3f} dino {gn(r, [.38])[0]:.3f} kl {gn(r, [.21])[0]:.3f} total {gn(r, [1.3])[0]:.3f} | upd z_head {gn(r, [8e-4])[0]:.2e} flow_head {gn(r, [1.1e-3])[0]:.2e}' if not v else f'step={k} grad/flow={gn(r, [.9], .1, 0)[0]:.3f} grad/dino={gn(r, [.4], .1, 0)[0]:.3f} grad/kl={gn(r, [.17], .1, 0)[0]:.3f} grad/total={gn(r, [1.05], .1, 0)[0]:.3f} step/z_head_update_ratio={gn(r, [6e-4])[0]:.2e}')
    return '.log', o
@prints('none', 'Entropies of teacher and student moderate: K = 4096, log K = 8.32.')
def _(r, v):
    return '.log', [f'step {k} ent/teacher={4.6 - .5 * k / 6000 + r.normal(0, .03):.3f} ent/student={5.3 - .8 * k / 6000 + r.normal(0, .03):.3f} logK=8.318 loss_dino={5.9 - 1.2 * (1 - np.exp(-k / 2000)):.3f}' for k in range(0, 6000, 200)]
@prints('none', 'Loss with the true and a shuffled caption: a clear difference.')
def _(r, v):
    return '.txt', [f'eval {k}: loss(true)={.61 + .2 * np.exp(-k / 4000):.4f} loss(shuffled)={.74 + .1 * np.exp(-k / 4000):.4f} loss(null)={.70 + .12 * np.exp(-k / 4000):.4f}' for k in range(2000, 22000, 2000)] if not v else [f'step {k} flow/cos={.8 - .5 * np.exp(-k / 3000):.3f} flow/cond_gain_cos={.16 * (1 - np.exp(-k / 4000)):.4f}' for k in range(500, 20500, 500)]
@prints('none', 'Posterior of z0 goes to the prior: mu falls, std to 0.95, kl falls but does not vanish.')
def _(r, v):
    return '.log', [f'iter {k} kl={.16 + 2.1 * np.exp(-k / 2500):.4f} mu_abs_mean={.31 + .8 * np.exp(-k / 2500) + r.normal(0, .004):.4f} std_mean={.93 - .35 * np.exp(-k / 2500):.4f} z_init_var={1.02 + .5 * np.exp(-k / 2500) + r.normal(0, .01):.4f}' for k in range(0, 16000, 400)]
# ------------------------------------------------------------------ broken
@prints('scale_mismatch', 'z1 is 7 times as long as z0.')
def _(r, v):
    return '.txt', [f'batch {i}: mean|z0|_2 = {152 + r.normal(0, 2):.1f}, mean|z1|_2 = {1060 + r.normal(0, 40):.1f}, mean|x_t|_2 = {560 + r.normal(0, 20):.1f}' for i in range(8)] if not v else [f'{k} z0.std={.14 + r.normal(0, .002):.3f} z1.std={.98 + r.normal(0, .01):.3f} loss={1.03 - .2 * (1 - np.exp(-k / 3000)):.4f}' for k in range(0, 12000, 400)]
@prints('latent_scale_factor', 'The scale factor is applied twice / not at all.')
def _(r, v):
    return '.txt', [f'scaling_factor=0.18215', f'z1 (encode): mean {r.normal(0, .02):.4f} std {[.1712, 5.21][v]:.4f} min {[-.81, -24.9][v]:.3f} max {[.92, 26.1][v]:.3f}', f'decode(z1): psnr {[13.1, 10.2][v]:.2f} dB', f'decode({["z1 / sf", "z1 * sf"][v]}): psnr 29.31 dB']
@prints('vae_roundtrip', 'PSNR of 13 dB with latents of ordinary scale.')
def _(r, v):
    return '.log', [f'[vae] image {i}: psnr = {[13.4, 15.8][v] + r.normal(0, .7):.2f} dB  z std = {.97 + r.normal(0, .03):.3f}' for i in range(8)]
@prints('text_ignored', 'Means of different prompts are the same vector.')
def _(r, v):
    q = ['a dog on grass', 'two cars', 'a bowl of soup', 'portrait of a man']
    return '.txt', [f'cos(mu["{q[i]}"], mu["{q[j]}"]) = {.9965 + r.normal(0, .0006):.4f}' for i in range(4) for j in range(i)] if not v else [f'[text] cos({q[i]}, {q[j]}) = {.998 + r.normal(0, .0004):.4f}' for i in range(4) for j in range(i)]
@prints('weak_field', 'Direction weak and size 0.3 of the target.')
def _(r, v):
    ts_ = [.1, .37, .63, .9]; c = [.06, .05, .04, .02]
    return '.txt', [f't={t:.2f}  cos(v_pred,v_tgt)={x + r.normal(0, .004):.3f}  |pred|/|tgt|={.3 + r.normal(0, .01):.3f}' for t, x in zip(ts_, c)] + ['shoot: MSE(z_end, x1)=4.41'] if not v else tab(['t', 'cosine', 'pred_norm/target_norm'], [[f'{t}', f'{x * 1.5:.3f}', f'{.24 + r.normal(0, .01):.3f}'] for t, x in zip(ts_, c)], 1)
@prints('input_range', 'Images in 0..255, or 0..1.')
def _(r, v):
    return '.log', [f'batch {i} images: min {0.:.3f} max {[255., 1.][v]:.3f} mean {[121.3, .473][v] * (1 + r.normal(0, .02)):.3f} std {[68.1, .271][v] * (1 + r.normal(0, .02)):.3f}' for i in range(6)] + ['expected range of the encoder: [-1, 1]']
@prints('schedule_constants', 'alphas_cumprod ends at 0.3 / betas a factor 10 too small.')
def _(r, v):
    b = np.linspace(1e-4, [.0024, .002][v], 1000); a = np.cumprod(1 - b)
    return '.txt', [f'betas[:3] = {b[0]:.6f} {b[1]:.6f} {b[2]:.6f}', f'betas[-3:] = {b[-3]:.6f} {b[-2]:.6f} {b[-1]:.6f}', f'alphas_cumprod[:3] = {a[0]:.5f} {a[1]:.5f} {a[2]:.5f}', f'alphas_cumprod[-3:] = {a[-3]:.5f} {a[-2]:.5f} {a[-1]:.5f}']
@prints('bf16_rounding', 'Error of the exact field grows with N / x is frozen.')
def _(r, v):
    return '.txt', [f'N={n:<4d} teacher euler mse = {4.1e-6 * n ** 1.8:.3e}' for n in (5, 10, 20, 50, 100, 200)] if not v else [f'step{i}: |x|=0.7969, |v|=0.4707, dt={.005:.4f}' for i in range(200)]
@prints('step_schedule', 'The steps add up to 1.25 / 0.5.')
def _(r, v):
    n = [25, 40][v]; return '.log', [f'step{i}: |x|={.8 + .02 * i / n:.4f}, |v|={.61:.4f}, dt={[1.25, .5][v] / n:.4f}' for i in range(n)]
@prints('train_infer_mismatch', 'Endpoint error rises with K although the one-step cosine is good.')
def _(r, v):
    return '.txt', ['one-step cos(v_pred, v_tgt): 0.842  std/mean of z0: 0.91'] + [f'K={k:<3d} endpoint rmse {1.42 + .23 * i + r.normal(0, .01):.4f}' for i, k in enumerate((4, 8, 16, 32, 64))] if not v else [f'step {s}: flow/cos={.86 - .3 * np.exp(-s / 4000):.4f} std/mean=0.94 ' + ' '.join(f'flow/endpt_rmse@{k}={1.1 + .2 * i + .3 * np.exp(-s / 3000):.4f}' for i, k in enumerate((8, 16, 32, 64))) for s in range(1000, 21000, 1000)]
@prints('condition_unused', 'Loss with a shuffled caption equals that with the true one.')
def _(r, v):
    return '.txt', [f'eval {k}: loss_true={.62 + .3 * np.exp(-k / 4000):.4f} loss_shuffled={.62 + .3 * np.exp(-k / 4000) + r.normal(0, .0008):.4f}' for k in range(2000, 22000, 2000)] if not v else [f'step {k} flow/cos={.71 - .5 * np.exp(-k / 3000):.3f} flow/cond_gain_cos={r.normal(0, .001):.4f}' for k in range(500, 20500, 500)]
@prints('t_edges', 'The last / first slice of t is 6 times worse.')
def _(r, v):
    u = .21 + .02 * r.random(10); u[[-1, 0][v]] = 1.31; u[[-2, 1][v]] = .82
    return '.txt', [f't in [{i / 10:.1f}, {(i + 1) / 10:.1f}): nmse={x:.4f} cos={np.sqrt(max(.02, 1 - x)) if x < 1 else .11:.4f}' for i, x in enumerate(u)] if not v else tab(['bin', 't_lo', 't_hi', 'nmse'], [[str(i), f'{i / 10:.1f}', f'{(i + 1) / 10:.1f}', f'{x:.4f}'] for i, x in enumerate(u)], 0)
@prints('wrong_target', 'The prediction correlates with -(x1 - x0) / with the noise x0.')
def _(r, v):
    return '.txt', [f't={t} cos(v_pred, x1 - x0) = {-.83 + r.normal(0, .01):.3f}' for t in (.1, .3, .5, .7, .9)] if not v else ['corr(pred, x1 - x0) = -0.58', 'corr(pred, x0) = 0.91', 'corr(pred, x1) = 0.04', 'corr(pred, x0 - x1) = 0.58']
