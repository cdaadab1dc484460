"""Cases for the recorder of `foreshard-oracle meshes` that nobody wrote down, drawn at random: other models and meshes of its range.

    meshes.py CASES.jsonl SEED [wide]
    shared/oracle/practice/recorder.py --grid CASES.jsonl --out ROWS.jsonl        (needs PyTorch 2.11 and transformers 5.23)

Tensor parallelism (also beside replicas and under FSDP1), sequences that ranks share, experts. Some mixtures are refused by PyTorch: that is their truth. `wide` replaces
half of the optimizers by other forms, FSDP1's original parameters by flat ones, sequences by uneven ones and data degrees of 2 by 3; without it a seed draws what it always drew.
"""
import json
import random
import sys

import drawn_models

rng = random.Random(int(sys.argv[2]))
choose = rng.choice


MPS = [{'param_dtype': 'bfloat16', 'reduce_dtype': 'float32'}] * 4 + [{'param_dtype': 'bfloat16', 'reduce_dtype': 'bfloat16'},
        {'param_dtype': 'bfloat16'}, None, {'param_dtype': 'float16', 'reduce_dtype': 'float32'}]


def heads(m):
    c = m['config']
    return (c.get('n_heads') or c['num_attention_heads'], c.get('n_kv_heads') or c['num_key_value_heads'])


def f2(wrap, dims):
    f = {'wrap': [wrap], 'version': 2, 'mesh_dims': dims}
    mp = choose(MPS)
    if mp:
        f['mixed_precision'] = mp
    r = rng.random()
    if r < 0.12:
        f['reshard_after_forward'] = False
    elif r < 0.17:
        f['reshard_after_forward'] = 2
    if rng.random() < 0.15:
        f['cpu_offload'] = True
    if rng.random() < 0.12:
        f['forward_prefetch_depth'] = choose([1, 2])
    if rng.random() < 0.12:
        f['backward_prefetch_depth'] = choose([1, 2])
    if rng.random() < 0.15:
        f['last_block_reshard'] = False
    if rng.random() < 0.15:
        f['root_reshard_after_forward'] = choose([True, False])
    return f


def f1(wrap, dims):
    f = {'wrap': [wrap], 'version': 1, 'strategy': choose(['FULL_SHARD'] * 3 + ['SHARD_GRAD_OP']), 'backward_prefetch': choose(['BACKWARD_PRE',
            'BACKWARD_PRE', 'BACKWARD_POST', None]), 'forward_prefetch': rng.random() < 0.2, 'limit_all_gathers': rng.random() < 0.8,
                    'use_orig_params': True, 'mesh_dims': dims}
    mp = choose(MPS[:6])
    if mp:
        f['mixed_precision'] = dict(mp)
    if rng.random() < 0.1:
        f['cpu_offload'] = True
    return f


def ac(cls):
    r = rng.random()
    if r < 0.4:
        return None
    if r < 0.6:
        return {'classes': [cls], 'mode': 'full'}
    if r < 0.7:
        return {'classes': [cls], 'mode': 'layer', 'every': 2}
    return {'classes': [cls], 'mode': 'op', 'save': 'titan', 'mm_every': choose([0, 2, 2, 3])}


def opt():
    r = rng.random()
    if r < 0.35:
        return {'name': 'AdamW', 'foreach': True, 'lr': 0.0001}
    if r < 0.55:
        return {'name': 'AdamW', 'fused': True, 'lr': 0.0001}
    if r < 0.65:
        return {'name': 'AdamW', 'foreach': False, 'lr': 0.0001}
    if r < 0.8:
        return {'name': 'SGD', 'lr': 0.001, **choose([{}, {'momentum': 0.9}])}
    if r < 0.95:
        return {'name': 'Muon', 'lr': 0.001}
    return {'name': 'Adafactor', 'lr': 0.001, 'foreach': False}


def train(c):
    c['clip'] = choose([None, 1.0])
    c['optimizer'] = opt()
    if rng.random() < 0.3:
        c['grad_accum'], c['no_sync'] = choose([(2, True), (2, False), (3, True)])
    if c['fsdp']['version'] == 1:
        c['no_sync'] = False
    c['batch'] = choose([1, 2, 3])
    c['clock'] = {'FAKEGPU_TIME': choose(['model', 'lazy'])}
    if rng.random() < 0.15:
        c['labels_masked'] = True
    if c['clip'] and c['fsdp'].get('cpu_offload'):
        c['clip'] = None


def tp(c, m, cls):
    c['seq'] = choose([256, 384, 512, 1024])
    h, kv = heads(m)
    degree = choose([x for x in (2, 4, 8) if kv % x == 0 and h % x == 0] or [2])
    c['tp'] = {'plan': 'titan' if cls == 'TransformerBlock' else 'hf', 'sequence_parallel': rng.random() < 0.65, 'loss_parallel': rng.random() < 0.5}
    if cls == 'TransformerBlock' and rng.random() < 0.15 and c['tp']['sequence_parallel']:
        c['tp']['input_style'] = 'per_linear'
    c['loss'] = choose(['ce_flat', 'ce_flat', 'ce_fp32', 'ce'] + (['hf'] if cls != 'TransformerBlock' else []))
    return degree
rows = []


def add(id, c):
    rows.append({'id': id, **c})


def tensor_rows():
    for k in range(16):
        m, cls = drawn_models.titan(rng) if rng.random() < 0.5 else drawn_models.decoder(rng)
        c = {'kind': 'tp', 'model': m}
        d = tp(c, m, cls)
        rep = choose([1, 1, 1, 2, 2])
        dp = choose([1, 2, 3, 4, 8])
        if rep > 1:
            c.update(kind='hsdp_tp', mesh=[['dp_replicate', rep], ['dp_shard', dp], ['tp', d]])
        else:
            c['mesh'] = [['dp', dp], ['tp', d]]
        c['world_size'] = rep * dp * d
        c['rank'] = rng.randrange(c['world_size'])
        c['fsdp'] = f2(cls, ['dp_replicate', 'dp_shard'] if rep > 1 else ['dp'])
        if cls == 'TransformerBlock' and rng.random() < 0.3:
            c['fsdp']['units'] = [{'modules': ['tok_embeddings'], 'before': True}, {'modules': ['norm', 'output'], 'reshard_after_forward': False}]
        if rep == 1 and rng.random() < 0.2:
            c['fsdp']['flatten'] = {'dp_tp': ['dp', 'tp']}
        c['activation_checkpointing'] = ac(cls)
        train(c)
        if not c['tp']['sequence_parallel'] and c['clip'] and (rng.random() < 0.7):
            c['fsdp']['clip_by_mesh'] = True
        add(f't{k:02}', c)


def fsdp1_rows():
    for k in range(7):
        m, cls = drawn_models.titan(rng) if rng.random() < 0.6 else drawn_models.decoder(rng)
        c = {'kind': 'fsdp1_tp', 'model': m}
        d = tp(c, m, cls)
        dp = choose([2, 3, 4])
        c['mesh'] = [['dp', dp], ['tp', d]]
        c['world_size'] = dp * d
        c['rank'] = rng.randrange(c['world_size'])
        c['fsdp'] = f1(cls, ['dp'])
        c['activation_checkpointing'] = ac(cls)
        train(c)
        if c['optimizer']['name'] == 'Muon':
            c['optimizer'] = {'name': 'AdamW', 'foreach': True, 'lr': 0.0001}
        add(f'f{k:02}', c)


def context_rows():
    for k in range(4):
        m, cls = drawn_models.titan(rng)
        c = {'kind': 'cp', 'model': m}
        s = choose([512, 1024, 2048])
        m['config']['max_seq'] = s
        cp = choose([2, 2, 4])
        dp = choose([1, 2, 4])
        t = choose([1, 1, 2])
        h, kv = heads(m)
        if kv % t:
            t = 1
        c['mesh'] = [['dp_shard', dp], ['cp', cp]] + ([['tp', t]] if t > 1 else [])
        c['world_size'] = dp * cp * t
        c['rank'] = rng.randrange(c['world_size'])
        c['seq'] = s
        c['tp'] = {'plan': 'titan', 'sequence_parallel': rng.random() < 0.6, 'loss_parallel': rng.random() < 0.5} if t > 1 else None
        c['cp'] = {'rotate': choose(['allgather', 'alltoall'])}
        c['loss'] = choose(['ce_flat', 'ce_fp32'])
        c['fsdp'] = f2(cls, ['dp'])
        c['fsdp']['flatten'] = {'dp': ['dp_shard', 'cp']}
        c['fsdp'].pop('cpu_offload', 0)
        if not c['fsdp'].get('mixed_precision'):
            c['fsdp']['mixed_precision'] = MPS[0]
        c['activation_checkpointing'] = ac(cls)
        train(c)
        add(f'c{k:02}', c)


def expert_rows():
    for k in range(4):
        e = choose([4, 8, 16])
        top = choose([1, 2, 4])
        m, cls = drawn_models.titan(rng, {'experts': e, 'top_k': top, 'ffn': choose([352, 704, 1000]), 'capacity': choose([1.0, 1.25]),
                **({'every': 2} if rng.random() < 0.3 else {})})
        m['config']['vocab_size'] = choose([8192, 10000])
        c = {'kind': 'ep', 'model': m}
        d = choose([x for x in (2, 4, 8) if e % x == 0])
        mod = choose([1, 2, 4])
        c['mesh'] = [['dp_mod_ep', mod], ['ep', d]]
        c['world_size'] = mod * d
        c['rank'] = rng.randrange(c['world_size'])
        c['seq'] = choose([256, 512, 1024])
        c['tp'] = None
        c['ep'] = {'mesh': 'ep'}
        c['loss'] = choose(['ce_flat', 'ce_fp32', 'ce'])
        f = f2(cls, ['dp'])
        f.update(flatten={'dp': ['dp_mod_ep', 'ep']}, experts='dp_mod_ep')
        if rng.random() < 0.6:
            f['expert_divide_factor'] = mod * d
        if rng.random() < 0.5:
            f['expert_shard_dim'] = 1
        c['fsdp'] = f
        c['activation_checkpointing'] = ac(cls)
        train(c)
        if c['clip'] and rng.random() < 0.7:
            f['clip_by_mesh'] = True
        add(f'e{k:02}', c)


def widen(c):
    if wide.random() < 0.5:
        c['optimizer'] = wide.choice([{'name': 'Adam', 'foreach': True, 'lr': 0.0001}, {'name': 'NAdam', 'foreach': True, 'lr': 0.0001},
            {'name': 'RMSprop', 'foreach': False, 'lr': 0.0001}, {'name': 'Adafactor', 'lr': 0.001, 'foreach': False},
            {'name': 'SGD', 'lr': 0.001, 'momentum': 0.9, 'foreach': False}, {'name': 'AdamW', 'fused': True, 'lr': 0.0001}])
    if c['fsdp']['version'] == 1 and wide.random() < 0.5:
        c['fsdp']['use_orig_params'] = False
    if c['kind'] == 'tp' and c['mesh'][0][1] == 2:
        c['mesh'][0][1] = 3
        c['world_size'] = c['world_size'] // 2 * 3
    if c['kind'] in ('tp', 'hsdp_tp', 'fsdp1_tp') and wide.random() < 0.3:
        c['seq'] = wide.choice([96, 344, 776])


tensor_rows()
fsdp1_rows()
context_rows()
expert_rows()
if sys.argv[3:] == ['wide']:
    wide = random.Random(sys.argv[2] + 'wide')
    for r in rows:
        widen(r)
with open(sys.argv[1], 'w') as out:
    for r in rows:
        out.write(json.dumps(r) + '\n')
