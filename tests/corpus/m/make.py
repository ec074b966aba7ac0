"""python make.py [OUT]: write OUT/a and OUT/b with a manifest.json each.

Healthy scenarios are split at random (both logs of one into the same half), the two logs of each fault go to different halves.
Each half draws its formats from a set of its own plus a common one.
"""
import json, os, shutil, sys
import broken, healthy, prints
from writers import ALL, rng_of

UNSAID = ('change', 'purpose', 'double', 'restart', 'curriculum', 'start', 'tune', 'resum', 'anneal', 'stage', 'deepspeed', 'score', 'two')  # a chart of one metric cannot explain these

def formats():
    names = list(rng_of('corpus_m/formats').permutation(list(ALL))); k = len(names) // 3
    return {'a': set(names[:2 * k]), 'b': set(names[k:])}

def main(out):
    own = formats(); r0 = rng_of('corpus_m/split'); jobs = []
    half = dict(zip(r0.permutation(len(healthy.S)), ['a', 'b'] * len(healthy.S)))
    for i, (f, story, only, not_) in enumerate(healthy.S):
        for v in (0, 1): jobs.append((half[i], half[i], f'h{i + 1:02d}{"xy"[v]}', f, v, 'none', story, [], only, not_))
    silent = [p for p in prints.P if p[1] == 'none']; half = dict(zip(r0.permutation(len(silent)), ['a', 'b'] * len(silent)))
    for i, (f, cause, story, acc) in enumerate(silent):
        for v in (0, 1): jobs.append((half[i], half[i], f'p{i + 1:02d}{"xy"[v]}', f, v, cause, story, acc, 'print', ()))
    for i, (f, cause, story, acc, only, not_) in enumerate(broken.B):
        flip = int(r0.integers(2))
        for v in (0, 1): jobs.append(('ab'[v ^ flip], 'ab'[v ^ flip], f'b{i + 1:02d}{"xy"[v]}', f, v, cause, story, acc, only, not_))
    for i, (f, cause, story, acc) in enumerate([p for p in prints.P if p[1] != 'none']):
        flip = int(r0.integers(2))
        for v in (0, 1): jobs.append(('ab'[v ^ flip], 'ab'[v ^ flip], f'q{i + 1:02d}{"xy"[v]}', f, v, cause, story, acc, 'print', ()))
    man = {}
    for folder, part, name, f, v, cause, story, acc, only, not_ in sorted(jobs, key=lambda j: (j[0], j[2])):
        root = os.path.join(out, folder)
        if folder not in man: man[folder] = []; shutil.rmtree(root, ignore_errors=True); os.makedirs(root)
        r = rng_of('corpus_m/' + name)
        if only == 'print':
            end, o = f(r, v); path = name + end; fmt = 'print'
            with open(os.path.join(root, path), 'w', encoding='utf-8') as g: g.write('\n'.join(o) + '\n')
        else:
            run = f(r, v); allowed = [n for n in ALL if n in (only or own[part]) and n not in not_ and n not in run.not_]
            if not only: allowed = [n for n in allowed if n not in ('wandb_chart', 'keras', 'sb3') or r.random() < .5]
            if run.spe > 1: allowed = [n for n in allowed if n != 'keras'] or allowed
            if cause == 'none' and any(x in story.lower() for x in UNSAID): allowed = [n for n in allowed if n != 'wandb_chart']
            if len([k for k in run.rows if k[0] != 'm']) > 700: allowed = [n for n in allowed if n not in ('sb3', 'markdown')]
            fmt = str(r.choice(allowed)); path = ALL[fmt](r, os.path.join(root, name), run)
        man[folder].append(dict(id='m' + name, path=path, format=fmt, expected=cause, acceptable=acc, healthy=cause == 'none', story=story))
    for folder, m in man.items():
        with open(os.path.join(out, folder, 'manifest.json'), 'w', encoding='utf-8') as g: json.dump(m, g, indent=1, ensure_ascii=False); g.write('\n')
        print(folder, len(m))

if __name__ == '__main__':
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
