"""Formats: each writer takes (rng, path without ending, run) and returns the name of what it wrote."""
import csv, io, json, os, sys
import numpy as np
from core import HMS, T, ar1, ema, fall, gn, hms, mlflow, noisy, rng_of, sec, sg, sig_up, tb, w, wconst, wcos, wlin, wsd  # noqa: F401

NAMES = [  # $loss, $lr, $gn, $val
    ('loss', 'lr', 'grad_norm', 'val_loss'), ('train/loss', 'train/lr', 'train/grad_norm', 'val/loss'),
    ('train_loss', 'learning_rate', 'gnorm', 'valid_loss'), ('loss/train', 'opt/lr', 'opt/grad_norm', 'loss/val'),
    ('total_loss', 'lr', 'global_grad_norm', 'eval_loss'), ('training/loss', 'training/learning_rate', 'training/gradient_norm', 'validation/loss'),
]
HF = ('loss', 'learning_rate', 'grad_norm', 'eval_loss')


class Run:
    """rows: (kind, step, payload) in the order of printing; kind is t (training), e (evaluation) or m (a message)."""
    def __init__(self, rows, head=(), total=None, spe=None, tail=(), only=None, not_=()):
        self.rows, self.head, self.tail = rows, list(head), list(tail)
        self.total = total or max(x[1] for x in rows); self.spe = spe or max(1, self.total // 10); self.only, self.not_ = only, not_
    def named(self, r, names=None):
        t = dict(zip(('$loss', '$lr', '$gn', '$val'), names or NAMES[r.integers(len(NAMES))]))
        return [(k, s, p if k == 'm' else {t.get(a, a): v for a, v in p.items()}) for k, s, p in self.rows]


def mk(steps, cols, ev=(), msgs=None, keep=()):
    """Merge training rows, evaluations (a list of (step, dict)) and messages ({step: text}) by step."""
    rows = [('t', int(s), {k: float(v[i]) for k, v in cols.items() if not np.isnan(v[i]) or k in keep}) for i, s in enumerate(steps)]
    rows += [('e', int(s), {k: float(v) for k, v in d.items()}) for s, d in ev] + [('m', int(s), t) for s, t in (msgs or {}).items()]
    return sorted(rows, key=lambda x: (x[1], 'tem'.index(x[0])))


def num(k, v, d=4):
    if np.isnan(v): return 'nan'
    if np.isinf(v): return 'inf'
    if 'lr' in k.lower() or 'learning' in k: return f'{v:.{d-1}e}' if v else '0.0'
    if v == int(v) and abs(v) > 20: return str(int(v))
    return f'{v:.{d}f}' if abs(v) >= .01 or v == 0 else f'{v:.{d-1}e}'
def kv(d, eq=': ', sep=', ', n=4): return sep.join(f'{k}{eq}{num(k, v, n)}' for k, v in d.items())
def js(d): return {k: (None if np.isnan(v) else sg(v, 6)) if isinstance(v, float) else v for k, v in d.items()}
def ts(r): return T(2025, int(r.integers(1, 11)), int(r.integers(1, 28)), int(r.integers(0, 23)), int(r.integers(60)), int(r.integers(60)))

ALL = {}
def writer(f): ALL[f.__name__] = f; return f
def lines(r, p, o, end='.log'): w(p + end, o); return os.path.basename(p) + end

@writer
def jsonl(r, p, run):
    key = r.choice(['step', 'global_step', 'iter', 'iteration']); o = []
    for k, s, d in run.named(r):
        if k != 'm': o.append(json.dumps({key: s, **js(d)}))
    return lines(r, p, o, '.jsonl')
@writer
def jsonl_time(r, p, run):
    t = ts(r).timestamp(); o = []
    for i, (k, s, d) in enumerate(run.named(r)):
        o.append(json.dumps({'ts': round(t + i * 7.3, 2), 'level': 'info', 'event': d} if k == 'm' else {'ts': round(t + i * 7.3, 2), 'event': 'train' if k == 't' else 'eval', 'data': {'step': s, **js(d)}}))
    return lines(r, p, o, '.json')
def wide(r, rows, key, extra=None):
    names = list(dict.fromkeys(n for k, s, d in rows if k != 'm' for n in d)); f = io.StringIO(); c = csv.writer(f); c.writerow([key, *(extra or {}), *names])
    merge = {}
    for i, (k, s, d) in enumerate(rows):
        if k == 'm': continue
        if k == 'e' and merge and list(merge)[-1][1] == s: merge[list(merge)[-1]].update(d)
        else: merge[i, s] = dict(d)
    for i, ((_, s), d) in enumerate(merge.items()): c.writerow([s, *(g(i, s) for g in (extra or {}).values()), *(('' if n not in d else repr(sg(d[n], 7))) for n in names)])
    return f.getvalue()
@writer
def csv_wide(r, p, run): return lines(r, p, wide(r, run.named(r), r.choice(['step', 'iteration', 'global_step'])), '.csv')
@writer
def wandb_history(r, p, run):
    t = ts(r).timestamp(); return lines(r, p, wide(r, run.named(r), '_step', {'_runtime': lambda i, s: round(8.1 * i, 3), '_timestamp': lambda i, s: t + 8.1 * i}), '.csv')
@writer
def lightning(r, p, run):
    rows = [(k, s, d if k == 'm' else {(n + '_step' if k == 't' and 'loss' in n else n): v for n, v in d.items()}) for k, s, d in run.named(r, ('train_loss', 'lr-AdamW', 'grad_2.0_norm_total', 'val_loss'))]
    return lines(r, p, wide(r, rows, 'step', {'epoch': lambda i, s: s // run.spe}), '.csv')
@writer
def tsv_long(r, p, run):
    o = ['step\tmetric\tvalue']
    for k, s, d in run.named(r):
        if k != 'm': o += [f'{s}\t{n}\t{sg(v, 6)}' for n, v in d.items()]
    return lines(r, p, o, '.tsv')
@writer
def hf_state(r, p, run):
    h = [{'epoch': round(s / run.spe, 4), **js(d), 'step': s} for k, s, d in run.named(r, HF) if k != 'm']
    w(p + '/trainer_state.json', json.dumps({'best_metric': None, 'epoch': h[-1]['epoch'], 'global_step': h[-1]['step'], 'is_world_process_zero': True, 'log_history': h, 'logging_steps': 10, 'max_steps': run.total, 'num_train_epochs': -(-run.total // run.spe), 'save_steps': 500}, indent=2))
    return os.path.basename(p) + '/trainer_state.json'
@writer
def hf_print(r, p, run):
    o = list(run.head)
    for k, s, d in run.named(r, HF): o.append(d if k == 'm' else str({**{n: sg(v, 5) for n, v in d.items()}, 'epoch': round(s / run.spe, 2)}))
    n = sum(k == 't' for k, _, _ in run.rows)
    return lines(r, p, o + [f"{{'train_runtime': {n * 3.1:.4f}, 'train_samples_per_second': 12.91, 'train_steps_per_second': 1.61, 'epoch': {run.total / run.spe:.2f}}}"] + run.tail, '.out')
@writer
def tqdm(r, p, run):
    o = []
    for k, s, d in run.named(r):
        if k == 'm': o.append('\n' + d + '\n'); continue
        if k == 'e': o.append(f'\n[eval] step {s}: ' + kv(d, '=') + '\n'); continue
        f = s / run.total; o.append(f"\rSteps: {100 * f:3.0f}%|{'█' * int(10 * f)}{' ' * (10 - int(10 * f))}| {s}/{run.total} [{hms(s * .7)}<{hms((run.total - s) * .7)},  1.42it/s, {kv(d, '=')}]")
    return lines(r, p, '\n'.join(run.head) + '\n' + ''.join(o) + '\n' + '\n'.join(run.tail), '.err')
@writer
def tensorboard(r, p, run):
    tb(p, ts(r).timestamp(), [(8.3 * i, s, d) for i, (k, s, d) in enumerate(run.named(r)) if k != 'm']); return os.path.basename(p)
@writer
def mlflow_run(r, p, run):
    t0 = int(ts(r).timestamp() * 1e3); m = {}
    for i, (k, s, d) in enumerate(run.named(r)):
        if k != 'm':
            for n, v in d.items(): m.setdefault(n.replace('/', '.'), []).append((t0 + 8000 * i, sg(v, 7), s))
    mlflow(p, ''.join(r.choice(list('0123456789abcdef'), 32)), 'calm-' + r.choice(['fox', 'owl', 'elk']), {'batch_size': 64, 'optimizer': 'adamw'}, m, t0); return os.path.basename(p)
@writer
def mmengine(r, p, run):
    t = ts(r); o = []; nm = run.named(r, ('loss', 'lr', 'grad_norm', 'loss_val'))
    for i, (k, s, d) in enumerate(nm):
        t += sec(9); h = f'{t:%Y/%m/%d %H:%M:%S} - mmengine - INFO - '
        if k == 'm': o.append(h + d); continue
        o.append(h + (f'Iter(train) [{s:6d}/{run.total}]  ' if k == 't' else f'Iter(val) [50/50]  step: {s}  ') + kv(d, ': ', '  ') + (f'  eta: {HMS((run.total - s) * .3)}  time: 0.3012  data_time: 0.0061  memory: 18211' if k == 't' else ''))
    return lines(r, p, run.head + o)
@writer
def keyvalue(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r):
        t += sec(6); h = f'{t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d} [INFO] trainer: '
        o.append(h + (d if k == 'm' else ('' if k == 't' else 'eval ') + f'step={s} ' + kv(d, '=', ' ', 5)))
    return lines(r, p, run.head + o + run.tail)
@writer
def piped(r, p, run):
    o = [d if k == 'm' else (f'step {s:>6d}/{run.total} | ' if k == 't' else f'eval @ {s} | ') + kv(d, ' ', ' | ') for k, s, d in run.named(r)]
    return lines(r, p, run.head + o + run.tail, '.txt')
@writer
def detectron(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r, ('total_loss', 'lr', 'grad_norm', 'validation_loss')):
        t += sec(14); h = f'[{t:%m/%d %H:%M:%S} d2.utils.events]: '
        o.append(h + (d if k == 'm' else f'eta: {HMS((run.total - s) * .4)}  iter: {s}  ' + kv(d, ': ', '  ') + '  time: 0.4012  data_time: 0.0031  max_mem: 11212M'))
    return lines(r, p, run.head + o)
@writer
def markdown(r, p, run):
    rows = run.named(r); names = list(dict.fromkeys(n for k, s, d in rows if k != 'm' for n in d)); o = list(run.head) + ['', '| step | ' + ' | '.join(names) + ' |', '|' + '---|' * (len(names) + 1)]
    merge = {}
    for k, s, d in rows:
        if k != 'm': merge.setdefault(s, {}).update(d)
    idx = list(merge); idx = idx[::max(1, len(idx) // 60)]
    return lines(r, p, o + [f'| {s} | ' + ' | '.join(num(n, merge[s][n]) if n in merge[s] else '-' for n in names) + ' |' for s in idx], '.md')
@writer
def aligned(r, p, run):
    rows = [x for x in run.named(r) if x[0] == 't']; names = [n for n in rows[0][2]]; o = list(run.head) + [f"{'step':>8}" + ''.join(f'{n:>{max(14, len(n) + 2)}}' for n in names)]
    return lines(r, p, o + [f'{s:>8d}' + ''.join(f'{num(n, d.get(n, float("nan"))):>{max(14, len(n) + 2)}}' for n in names) for _, s, d in rows], '.txt')
@writer
def loguru(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r):
        t += sec(5); h = f'\x1b[32m{t:%Y-%m-%d %H:%M:%S}.{r.integers(1000):03d}\x1b[0m | \x1b[1mINFO    \x1b[0m | \x1b[36m__main__\x1b[0m:\x1b[36mtrain\x1b[0m:\x1b[36m{r.integers(80, 300)}\x1b[0m - '
        o.append(h + (d if k == 'm' else ('[train] ' if k == 't' else '[valid] ') + f'iter {s} ' + kv(d, ': ', ' ')))
    return lines(r, p, run.head + o)
@writer
def nanogpt(r, p, run):
    o = []
    for k, s, d in run.named(r, ('loss', 'lr', 'norm', 'val loss')):
        o.append(d if k == 'm' else f'iter {s}: ' + kv(d, ' ') + f', time {r.normal(210, 3):.2f}ms' if k == 't' else f'step {s}: ' + kv(d, ' '))
    return lines(r, p, run.head + o, '.out')
@writer
def titan(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r, ('loss', 'lr', 'grad_norm', 'validate_loss')):
        t += sec(11); h = f'[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},{r.integers(1000):03d} - root - INFO - '
        o.append(h + (d if k == 'm' else ('' if k == 't' else 'validate ') + f'step: {s:2d}  ' + kv(d, ': ', '  ') + (f'  memory: {r.normal(42.3, .01):.2f}GiB(53.1%)  tps: {int(r.normal(7100, 60)):,}  mfu: {r.normal(41, .4):.2f}%' if k == 't' else '')))
    return lines(r, p, run.head + o)
@writer
def megatron(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r, ('lm loss', 'learning rate', 'grad norm', 'validation loss')):
        t += sec(13)
        if k == 't': o.append(f' [{t:%Y-%m-%d %H:%M:%S}] iteration {s:8d}/{run.total:8d} | consumed samples: {s * 512:12d} | elapsed time per iteration (ms): {r.normal(1290, 9):.1f} | ' + ' | '.join(f'{n}: {v:.6E}' for n, v in d.items()) + ' | number of skipped iterations:   0 | number of nan iterations:   0 |')
        else: o.append(d if k == 'm' else f' validation loss at iteration {s} | ' + ' | '.join(f'{n} value: {v:.6E}' for n, v in d.items()) + ' |')
    return lines(r, p, run.head + o)
@writer
def ranks(r, p, run):
    n = int(r.choice([2, 4])); o = []
    for k, s, d in run.named(r):
        if k == 'm': o.append(f'[rank0]: {d}'); continue
        if k == 'e': o.append(f'[rank0]: eval step {s} ' + kv(d, '=', ' ')); continue
        for g in r.permutation(n): o.append(f'[rank{g}]: step {s} ' + kv({a: v * (np.exp(.02 * r.standard_normal()) if 'loss' in a else 1) for a, v in d.items()}, '=', ' '))
    return lines(r, p, run.head + o)
@writer
def yamldocs(r, p, run):
    o = []
    for k, s, d in run.named(r):
        if k != 'm': o += ['---', f'step: {s}', *(f'{n}: {sg(v, 5)}' for n, v in d.items())]
    return lines(r, p, o, '.yaml')
@writer
def sb3(r, p, run):
    o = list(run.head)
    for k, s, d in run.named(r):
        if k == 'm': o.append(d); continue
        o += ['-' * 43, f"| {'time/':<24} | {'':12} |", f"|    {'total_timesteps' if k == 't' else 'eval_timesteps':<21} | {s:<12} |", f"| {'train/':<24} | {'':12} |"] + [f"|    {n.split('/')[-1]:<21} | {sg(v, 3):<12} |" for n, v in d.items()] + ['-' * 43]
    return lines(r, p, o)
@writer
def clearml(r, p, run):
    m = {}
    for k, s, d in run.named(r):
        if k != 'm':
            for n, v in d.items():
                a, _, b = n.partition('/'); e = m.setdefault(a, {}).setdefault(b or a, {'name': b or a, 'x': [], 'y': []}); e['x'].append(s); e['y'].append(sg(v, 6))
    return lines(r, p, [json.dumps(m)], '.json')
@writer
def chinese(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r, ('损失', '学习率', '梯度范数', '验证损失')):
        t += sec(20); o.append(f'{t:%Y-%m-%d %H:%M:%S} ' + (d if k == 'm' else ('训练' if k == 't' else '验证') + f' 第{s}步 ' + kv(d, '：', '，')))
    return lines(r, p, run.head + o, '.txt')
@writer
def imagenet(r, p, run):
    o = []
    for k, s, d in run.named(r, ('Loss', 'LR', 'GradNorm', 'Val Loss')):
        e, i = divmod(s, run.spe)
        if k == 't': o.append(f'Epoch: [{e}][{i:5d}/{run.spe}]\tTime {r.normal(.31, .01):6.3f} ( 0.312)\tData {abs(r.normal(.01, .003)):6.3f} ( 0.011)\t' + '\t'.join(f'{n} {v:.4e}' for n, v in d.items()))
        else: o.append(d if k == 'm' else ' * ' + kv(d, ' ', '  '))
    return lines(r, p, run.head + o)
@writer
def blocks(r, p, run):
    o = list(run.head)
    for k, s, d in run.named(r): o += [d] if k == 'm' else [f"{'Step' if k == 't' else 'Evaluation at step'} {s}", *(f'    {n:<22}: {num(n, v)}' for n, v in d.items())]
    return lines(r, p, o, '.txt')
@writer
def syslog(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r):
        t += sec(5); o.append(f'{t:%b %d %H:%M:%S} gpu-{run.total % 40:02d} python[{20000 + run.total % 9000}]: ' + (d if k == 'm' else f"{'TRAIN' if k == 't' else 'EVAL'} it={s} " + kv(d, '=', ' ')))
    return lines(r, p, o, '')
@writer
def notebook(r, p, run):
    o = list(run.head) + [d if k == 'm' else (f'[{s}] ' if k == 't' else f'[{s}] valid ') + kv(d, ': ') for k, s, d in run.named(r)]
    w(p + '.ipynb', json.dumps({'cells': [{'cell_type': 'code', 'execution_count': 3, 'metadata': {}, 'source': ['train(model, loader)'], 'outputs': [{'name': 'stdout', 'output_type': 'stream', 'text': [x + '\n' for x in o]}]}], 'metadata': {}, 'nbformat': 4, 'nbformat_minor': 5})); return os.path.basename(p) + '.ipynb'
@writer
def keras(r, p, run):
    n = run.spe; o = list(run.head); e = -(-run.total // n)
    for k, s, d in run.named(r, ('loss', 'learning_rate', 'grad_norm', 'val_loss')):
        o += [d] if k == 'm' else [f'Epoch {max(1, s // n)}/{e}', f'{n}/{n} ━━━━━━━━━━━━━━━━━━━━ {r.integers(20, 24)}s {r.integers(30, 40)}ms/step - ' + kv(d, ': ', ' - ')]
    return lines(r, p, o, '.txt')
@writer
def wandb_chart(r, p, run):
    rows = [x for x in run.named(r) if x[0] == 't']; n = list(rows[0][2])[0]; name = r.choice(['dashing-sun-41', 'run_b2', 'exp-07-seed1'])
    o = [f'"Step","{name} - {n}","{name} - {n}__MIN","{name} - {n}__MAX"'] + [f'"{s}","{sg(d[n], 8)}","{sg(d[n], 8)}","{sg(d[n], 8)}"' for _, s, d in rows]
    return lines(r, p, o, '.csv')
@writer
def absl(r, p, run):
    t = ts(r); o = []
    for k, s, d in run.named(r):
        t += sec(7); o.append(f'I{t:%m%d %H:%M:%S}.{r.integers(999999):06d} {r.integers(1e5, 9e5)} train.py:{r.integers(80, 400)}] ' + (d if k == 'm' else f'[{s}] ' + kv(d, '=')))
    return lines(r, p, run.head + o, '.INFO')
