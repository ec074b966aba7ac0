"""Broken runs as curves. Each fault gives two logs (v is 0 or 1)."""
from writers import *
from healthy import L, st, val, sparse

B = []
def fault(cause, story, acc=(), not_=(), only=None):
    def deco(f): B.append((f, cause, story, list(acc), only, tuple(not_))); return f
    return deco
NOCURVE = ['wandb_chart']

@fault('nan_loss', 'Loss and gradient norm become nan / inf and stay.', ['self_stopped'], ['keras'])
def _(r, v):
    s = st(160, 50); y = L(r, s, 2.1, .8, 900); g = gn(r, np.full(160, .8)); y[117 - 30 * v:] = np.nan; g[116 - 30 * v:] = [np.nan, np.inf][v]
    return Run(mk(s, {'$loss': y, '$gn': g, '$lr': wcos(s, 2e-4, 400, 8000)}, keep=('$loss', '$gn')))
@fault('divergence', 'Falls, then climbs far above its minimum, held-out too.', ['grad_explosion'])
def _(r, v):
    s = st(240, 100); y = fall(s, [3.1, 1.2][v], [1.2, .5][v], 1800) + [1.9, .7][v] * sig_up(s, 17500, 2000)
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': wconst(s, 3e-4, 500)}, val(s, 2000, lambda k: {'$val': fall(k, [3.1, 1.2][v], [1.2, .5][v], 1800) + [1.9, .7][v] * float(sig_up(k, 17500, 2000))})))
@fault('loss_spikes', 'A jump to a higher level that does not recover / many large spikes.', ['divergence'])
def _(r, v):
    s = st(300, 40); y = L(r, s, 1.4, .55, 900, .02)
    if v == 0: y[190:] = noisy(r, np.full(110, .97), .02)
    else: y[np.sort(r.choice(np.arange(40, 300), 24, False))] *= 4 + 5 * r.random(24)
    return Run(mk(s, {'$loss': y, '$lr': wconst(s, 2e-4, 400), '$gn': gn(r, np.full(300, .6))}))
@fault('no_learning', 'Loss and held-out loss stay on the initial level of a run from scratch.', ['head_not_updated'])
def _(r, v):
    s = st(200, 50); l = [6.907, 1.003][v]
    return Run(mk(s, {'$loss': noisy(r, np.full(200, l), .004), '$lr': wcos(s, 3e-4, 300, 10000), '$gn': gn(r, np.full(200, .21))}, val(s, 1000, lambda k: {'$val': l + r.normal(0, .002)})), head=['initializing from scratch'])
@fault('lr_too_small', 'LR 0 for the whole run / 1e-10.', ['no_learning'], NOCURVE)
def _(r, v):
    s = st(150, 20); return Run(mk(s, {'$loss': noisy(r, np.full(150, [2.3, .99][v]), .006), '$lr': np.full(150, [0., 1e-10][v]), '$gn': gn(r, np.full(150, 1.1))}))
@fault('lr_too_high', 'Loss jumps between 1 and 20 without a trend at LR 0.5 / 0.03 of AdamW.', ['loss_spikes', 'divergence'], NOCURVE)
def _(r, v):
    s = st(200, 10); return Run(mk(s, {'$loss': np.exp(1.2 * ar1(r, 200, .5) + 1.1), '$lr': np.full(200, [.5, .03][v]), '$gn': np.exp(1.3 * ar1(r, 200, .5) + 3)}), head=['optimizer: AdamW'])
@fault('lr_restart', 'The scheduler restarts at its peak after 70 % and the loss stays above its former level.', ['loss_spikes', 'divergence'], NOCURVE)
def _(r, v):
    s = st(300, 50); c = 210; lr = np.concatenate([wcos(s[:c], 4e-4, 400, 11000, 1e-6), wcos(s[c:] - s[c - 1], 4e-3 if v else 4e-4, 1, 30000)]); y = fall(s, 2.1, .62, 1500); y[c:] = 1.25 - .12 * (1 - np.exp(-(s[c:] - s[c]) / 2000))
    return Run(mk(s, {'$loss': noisy(r, y, .02), '$lr': lr, '$gn': gn(r, np.full(300, .5))}))
@fault('overfitting', 'Held-out loss turns up by 30 % while the training loss falls.', [], ['aligned', *NOCURVE])
def _(r, v):
    s = st(240, 50); b = 3500
    return Run(mk(s, {'$loss': noisy(r, fall(s, 2.4, .21, 3500, w=.95), .03), '$lr': np.full(240, 1e-4)}, val(s, 500, lambda k: {'$val': 1.31 + 1.1 * np.exp(-k / 1000) + .00006 * max(0, k - b) + r.normal(0, .008)})))
@fault('periodic_memorisation', 'A staircase at each epoch / the same saw-tooth in each epoch.', [], ['keras', 'markdown'])
def _(r, v):
    s = st(480, 10); e = 800; k = s // e; ph = (s % e) / e
    y = 1.6 * .72 ** k if v == 0 else .9 * (1.25 - .35 * ph) * (1 - .04 * k)
    return Run(mk(s, {'$loss': noisy(r, y, .015), '$lr': np.full(480, 1e-4), 'epoch': s / e}), spe=e)
@fault('grad_explosion', 'The gradient norm rises by four orders over the run.', ['divergence'], NOCURVE)
def _(r, v):
    s = st(220, 50); return Run(mk(s, {'$loss': noisy(r, fall(s, 1.9, .9, 1500), .02), '$gn': gn(r, .4 * 10 ** ((3.2 + v) * s / s[-1]), .15), '$lr': np.full(220, 3e-4)}))
@fault('grad_vanishing', 'The gradient norm falls to 1e-8 with the loss still high.', ['no_learning'], NOCURVE)
def _(r, v):
    s = st(220, 50); return Run(mk(s, {'$loss': noisy(r, np.where(s < 1500, 2.31 - .05 * s / 1500, 2.26), .004), '$gn': gn(r, np.maximum(1.2 * 10. ** (-8 * s / 5000), [2e-8, 4e-9][v]), .2), '$lr': np.full(220, 3e-4)}))
@fault('amp_overflow', 'The loss scale is halved down to below 1, almost all steps are skipped.', ['no_learning'], NOCURVE)
def _(r, v):
    s = st(120, 10); sc = 65536. * .5 ** np.floor(s / [25, 40][v]); return Run(mk(s, {'$loss': noisy(r, np.full(120, 2.05), .01), ['loss_scale', 'scaler/scale'][v]: sc, 'skipped_steps': s * .9, '$lr': np.full(120, 1e-4)}))
@fault('resume_from_scratch', 'After the resume the counter goes on, the loss begins at its first value.', ['loss_spikes'], ['aligned'])
def _(r, v):
    s = st(300, 20); c = 180; y = L(r, s, 4.1, 1.02, 500, .015); y[c:] = L(r, s[c:] - s[c - 1], 4.1, 1.02, 500, .015)
    return Run(mk(s, {'$loss': y, '$lr': wcos(s, 2e-4, 200, 9000), '$gn': gn(r, .5 + 3 * np.exp(-np.where(s > s[c - 1], s - s[c - 1], s) / 300))}, msgs={int(s[c - 1]): 'resuming from checkpoint step_3600'}))
@fault('self_stopped', 'The run stops with its own alarm.', ['divergence', 'grad_explosion', 'loss_spikes', 'nan_loss'], only=['keyvalue', 'piped', 'loguru', 'hf_print', 'nanogpt', 'syslog', 'absl'])
def _(r, v):
    s = st(140, 20); y = L(r, s, 1.9, .8, 500); y[-3:] *= [2, 6, 19]
    return Run(mk(s, {'$loss': y, '$lr': np.full(140, 3e-4)}, msgs={int(s[-1]): ['WATCHDOG: loss 10x above its running mean, aborting training', 'RuntimeError: loss exceeded the threshold of 10.0 for this run, stopping'][v]}), total=20000)
@fault('metrics_lost', 'Evaluation metrics are null from the middle on; the loss is ordinary.', [], only=['jsonl', 'keyvalue', 'piped', 'hf_print', 'loguru', 'jsonl_time'])
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'$loss': L(r, s, 1.9, .7, 900), '$lr': np.full(200, 1e-4), 'fid': np.where(s < 5000, 60 - s / 120, np.nan), 'clip_score': np.where(s < 5000, .2 + s / 1e5, np.nan)}, keep=('fid', 'clip_score')))
@fault('ema_broken', 'EMA evaluation stays on its first value while the raw weights improve.', [], ['aligned', 'wandb_chart'])
def _(r, v):
    s = st(240, 100); return Run(mk(s, {'$loss': L(r, s, 1.2, .5, 1500), '$lr': np.full(240, 1e-4)}, val(s, 1500, lambda k: {'val_loss': fall(k, 1.2, .51, 1500), 'val_loss_ema': 1.205 + r.normal(0, .002)} if v == 0 else {'fid': 12 + 200 * np.exp(-k / 4000), 'fid_ema': 301 + r.normal(0, 1)})))
@fault('weak_gradient_share', 'One loss has less than 2 % of the gradient.', [], NOCURVE)
def _(r, v):
    s = st(150, 50); n = ['kl', 'dino'][v]; o = ['dino', 'kl'][v]; q = lambda a: gn(r, np.full(150, a), .1, 0)
    return Run(mk(s, {'loss_flow': L(r, s, 1.9, .8, 900), f'loss_{n}': noisy(r, np.full(150, 3.), .02), 'grad/flow': q(1.2), f'grad/{o}': q(.4), f'grad/{n}': q(.011), 'grad/total': q(1.28), '$lr': np.full(150, 1e-4)}))
@fault('head_not_updated', 'The update ratio of the z head is 1e-8.', [], NOCURVE)
def _(r, v):
    s = st(150, 50); return Run(mk(s, {'$loss': L(r, s, 1.9, .8, 900), 'step/z_head_update_ratio': gn(r, np.full(150, [2e-8, 7e-7][v])), 'step/flow_head_update_ratio': gn(r, np.full(150, 9e-4)), '$lr': np.full(150, 1e-4)}))
@fault('teacher_collapsed', 'Teacher entropy near 0.', ['student_saturated'], NOCURVE)
def _(r, v):
    s = st(150, 50); return Run(mk(s, {'loss_dino': L(r, s, 7, .3, 900), ['ent/teacher', 'teacher_entropy'][v]: .02 + 3 * np.exp(-s / 400), ['ent/student', 'student_entropy'][v]: .9 + 4 * np.exp(-s / 900), '$lr': np.full(150, 1e-4)}))
@fault('teacher_uniform', 'Teacher entropy is log K.', ['no_learning'], NOCURVE)
def _(r, v):
    s = st(150, 50); K = [1024, 65536][v]; return Run(mk(s, {'loss_dino': noisy(r, np.full(150, np.log(K)), .0005), ['ent/teacher', 'teacher_entropy'][v]: np.log(K) - 1e-4 * np.abs(r.standard_normal(150)), ['ent/student', 'student_entropy'][v]: np.log(K) - .01 * np.abs(r.standard_normal(150)), '$lr': np.full(150, 1e-4)}), head=[f'dino head: out_dim={K}'])
@fault('student_saturated', 'Student entropy near 0, small DINO gradient, teacher ordinary.', ['weak_gradient_share'], NOCURVE)
def _(r, v):
    s = st(150, 50); q = lambda a: gn(r, np.full(150, a), .1, 0); return Run(mk(s, {'loss_dino': noisy(r, np.full(150, 4.2), .01), 'ent/teacher': 3.9 + .02 * r.standard_normal(150), 'ent/student': .04 + 2 * np.exp(-s / 300), 'grad/dino': q(.012), 'grad/flow': q(.9), 'grad/total': q(.91)}))
@fault('kl_not_acting', 'mu grows, std leaves 1, KL rises although it has a weight.', ['scale_mismatch'], NOCURVE)
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'loss_flow': L(r, s, 1.9, .8, 900), 'loss_kl': noisy(r, .6 + 40 * s / s[-1], .03), 'w_kl': np.full(200, 1e-8), 'mu/abs_mean': .6 + 5 * s / s[-1], 'std/mean': 1.02 + 2.1 * s / s[-1], 'z_init/var': 1.4 + 39 * (s / s[-1]) ** 2, '$lr': np.full(200, 1e-4)}))
@fault('posterior_collapse', 'KL, mu near 0, std 1.', ['text_ignored', 'condition_unused'], NOCURVE)
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'loss_flow': L(r, s, 1.9, 1.2, 900), 'loss_kl': 1e-5 + 2 * np.exp(-s / 300), 'mu/abs_mean': .0006 + .7 * np.exp(-s / 300), 'std/mean': 1.0002 - .4 * np.exp(-s / 300), 'logvar/mean': .0003 - .8 * np.exp(-s / 300), '$lr': np.full(200, 1e-4)}))
@fault('sigma_collapse', 'std goes to 0.01 / logvar sits at -6.', ['z0_leak'], NOCURVE)
def _(r, v):
    s = st(200, 50); lv = -9.2 + 8.6 * np.exp(-s / 1500) if v == 0 else np.maximum(-6, -.4 - s / 600)
    return Run(mk(s, {'loss_flow': L(r, s, 1.9, .8, 900), 'loss_kl': noisy(r, .5 * (np.exp(lv) - 1 - lv) + .1, .01), 'std/mean': np.exp(lv / 2), 'logvar/mean': lv, '$lr': np.full(200, 1e-4)}))
@fault('z0_leak', 'cos 0.98, nmse 0.03, std of z0 0.15, FID bad.', ['sigma_collapse'], NOCURVE)
def _(r, v):
    s = st(200, 50); e = np.exp(-s / 1200); return Run(mk(s, {'flow/cos': .982 - .8 * e, 'flow/nmse': .035 + .9 * e, 'std/mean': .14 + .8 * e, 'loss_flow': .036 + e, '$lr': np.full(200, 1e-4)}, val(s, 1000, lambda k: {'fid': 291 + r.normal(0, 4)})))
@fault('moving_target', 'The norm of the target goes to 0 with the loss.', ['z0_leak', 'scale_mismatch'], NOCURVE)
def _(r, v):
    s = st(200, 50); e = np.exp(-s / 1500); return Run(mk(s, {'loss_flow': noisy(r, .0008 + 1.8 * e * e, .03), ['v_tgt_norm', 'target_norm'][v]: noisy(r, 1.2 + 88 * e, .02), 'flow/nmse': noisy(r, .62 + .3 * e, .02), '$lr': np.full(200, 1e-4)}))
@fault('wrong_target', 'flow/cos falls to -0.9 while the loss of the network falls.', ['weak_field'], NOCURVE)
def _(r, v):
    s = st(200, 50); return Run(mk(s, {'$loss': L(r, s, 1.9, .4, 900), ['flow/cos', 'cos(v_pred,v_tgt)'][v]: -.9 * (1 - np.exp(-s / 1200)) + .005 * r.standard_normal(200), '$lr': np.full(200, 1e-4)}))
@fault('t_edges', 'Slices of t logged as curves: the last two never get better.', [], NOCURVE)
def _(r, v):
    s = st(120, 100); return Run(mk(s, {'loss_flow': L(r, s, 1.9, .5, 900), **{f'flow/nmse_t{i}': noisy(r, (1.4 if i == [9, 0][v] else .9 if i == [8, 1][v] else .25) + .7 * np.exp(-s / 2000), .02) for i in range(10)}, '$lr': np.full(120, 1e-4)}))
@fault('time_sampling', 't comes from a quarter of its range.', [], NOCURVE)
def _(r, v):
    s = st(150, 50); return Run(mk(s, {'$loss': L(r, s, 1.2, .6, 900), 't_mean': [124., .25][v] * (1 + .01 * r.standard_normal(150)), 't_std': [71., .071][v] * (1 + .01 * r.standard_normal(150)), 't_min': [0., .125][v] + np.zeros(150), 't_max': [249., .375][v] + np.zeros(150), '$lr': np.full(150, 1e-4)}), head=[['t: uniform integers 0..999', 't ~ U[0, 1]'][v]])
