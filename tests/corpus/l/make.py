"""python make.py [OUT]: writes OUT/a and OUT/b with logs and a manifest.json each (numpy only, deterministic)."""
import json, os, shutil, sys
import core, half_a, half_b

def main(out):
    for half in 'ab':
        root = os.path.join(out, half)
        shutil.rmtree(root, ignore_errors=True); os.makedirs(root)
        man = []
        for L in core.LOGS:
            if L['half'] != half: continue
            L['f'](core.rng_of(f'corpus_l/{half}/{L["name"]}'), os.path.join(root, L['name']))
            man.append(dict(id=f'l{half}_{len(man)+1:02d}', path=L['name'], format=L['fmt'], expected=L['expected'],
                            acceptable=L['acc'], healthy=L['expected'] == 'none', story=L['story']))
        with open(os.path.join(root, 'manifest.json'), 'w', encoding='utf-8') as f:
            json.dump(man, f, indent=1, ensure_ascii=False); f.write('\n')
        h = sum(m['healthy'] for m in man)
        print(f'{half}: {len(man)} logs, {h} healthy, {len(man)-h} broken')

if __name__ == '__main__':
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
