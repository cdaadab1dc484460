"""Cases for the recorder of `foreshard-oracle practice` that nobody wrote down, drawn at random: other models and mixtures of its range.

    practice.py CASES.jsonl SEED [ROWS] [--other-optimizers]
    shared/oracle/practice/recorder.py --grid CASES.jsonl --out ROWS.jsonl        (needs PyTorch 2.11, transformers 5.23 and peft 0.21)

Selective recomputation, adapters, losses, optimizers, masks, accumulation, prefetch, offload. Some mixtures are refused by PyTorch: that is their truth.
With --other-optimizers every optimizer that is drawn is one of torch.optim's other elementwise ones; without it old seeds draw what they drew.
"""
import argparse
import json
import random

import drawn_models

parser = argparse.ArgumentParser()
parser.add_argument('cases')
parser.add_argument('seed', type=int)
parser.add_argument('rows', type=int, nargs='?', default=60)
parser.add_argument('--other-optimizers', action='store_true')
options = parser.parse_args()

rng = random.Random(options.seed)
choose = rng.choice
BF16 = {'param_dtype': 'bfloat16', 'reduce_dtype': 'float32'}


def chance(share):
    return rng.random() < share


def fsdp2(wrap):
    f = {'wrap': [wrap], 'version': 2, 'mixed_precision': dict(BF16)}
    r = rng.random()
    if r < 0.1:
        f['mixed_precision'] = choose([{'param_dtype': 'bfloat16'}, {'param_dtype': 'bfloat16', 'reduce_dtype': 'bfloat16'}])
    elif r < 0.15:
        f.pop('mixed_precision')
    if chance(0.12):
        f['reshard_after_forward'] = choose([False, 2])
    if chance(0.1):
        f['forward_prefetch_depth'] = choose([1, 2, 3])
    if chance(0.1):
        f['backward_prefetch_depth'] = choose([1, 2, 3])
    return f


def fsdp1(wrap):
    mp = choose([{**BF16, 'buffer_dtype': 'bfloat16'}, {'param_dtype': 'bfloat16', 'reduce_dtype': 'bfloat16', 'buffer_dtype': 'bfloat16'}, dict(BF16), None])
    f = {'wrap': [wrap], 'version': 1, 'strategy': choose(['FULL_SHARD'] * 4 + ['SHARD_GRAD_OP', 'NO_SHARD']), 'backward_prefetch':
         choose(['BACKWARD_PRE', 'BACKWARD_PRE', 'BACKWARD_PRE', 'BACKWARD_POST', None]), 'forward_prefetch': chance(0.15),
         'limit_all_gathers': chance(0.85), 'use_orig_params': chance(0.7)}
    if mp:
        f['mixed_precision'] = mp
    return f


def recomputed(cls, version):
    r = rng.random()
    if r < 0.25:
        a = {'classes': [cls], 'mode': 'full'}
    elif r < 0.4:
        a = {'classes': [cls], 'mode': 'layer', 'every': choose([2, 3])}
    elif r < 0.5 and cls != 'TransformerBlock':
        return {'classes': [cls], 'mode': 'hf', 'impl': choose(['NO_REENTRANT', 'REENTRANT'])}
    else:
        save = choose(['titan', 'titan', ['aten._scaled_dot_product_flash_attention'], ['aten.addmm', 'aten._scaled_dot_product_flash_attention'],
                       ['aten.mm', 'aten.mul.Tensor'], ['aten.silu']])
        a = {'classes': [cls], 'mode': 'op', 'save': save, 'mm_every': choose([0, 2, 2, 3])}
    if chance(0.15) and a['mode'] != 'op':
        a['impl'] = 'REENTRANT'
    if chance(0.15) and version == 1 and a['mode'] in ('full', 'op'):
        a['placement'] = 'outside'
    return a


def elementwise():
    """torch.optim's: each has other states and temporaries over lists and by a loop."""
    o = choose([{'name': 'Adagrad'}, {'name': 'RMSprop'}, {'name': 'RMSprop', 'momentum': 0.9}, {'name': 'RMSprop', 'centered': True},
                {'name': 'RMSprop', 'momentum': 0.9, 'centered': True}, {'name': 'NAdam'}, {'name': 'RAdam'}, {'name': 'Adamax'}])
    o.update(lr=0.0001, foreach=chance(0.6), weight_decay=choose([0.0, 0.0, 0.01]))
    if o['weight_decay'] and o['name'] in ('NAdam', 'RAdam') and chance(0.5):
        o['decoupled_weight_decay'] = True
    return o


def optimizer(version):
    if options.other_optimizers:
        return elementwise()
    r = rng.random()
    if r < 0.25:
        return {'name': 'AdamW', 'foreach': True, 'lr': 0.0001}
    if r < 0.4:
        return {'name': 'AdamW', 'fused': True, 'lr': 0.0001}
    if r < 0.5:
        return {'name': 'AdamW', 'foreach': False, 'lr': 0.0001}
    if r < 0.62:
        return {'name': 'SGD', 'lr': 0.001, 'foreach': chance(0.5), **choose([{}, {'momentum': 0.9}])}
    if r < 0.75 and version == 2:
        return {'name': 'Muon', 'lr': 0.001, 'rest': {'foreach': chance(0.5), 'lr': 0.0001}}
    if r < 0.85:
        return {'name': choose(['AdamW', 'SGD', 'AdamW']), 'lr': 0.0001, 'foreach': chance(0.5), 'in_backward': True}
    if r < 0.92:
        return {'name': 'transformers.Adafactor', 'lr': 0.001, 'relative_step': False, 'scale_parameter': False, 'warmup_init': False}
    return {'name': choose(['Adam', 'RMSprop', 'Adagrad', 'NAdam']), 'lr': 0.0001, 'foreach': chance(0.6)}


def lora(c, cls):
    gpt2 = cls == 'GPT2Block'
    targets = choose([['c_attn'], ['c_attn', 'c_fc'], 'all-linear']) if gpt2 else choose([['q_proj', 'v_proj'], ['q_proj', 'k_proj', 'v_proj', 'o_proj'],
                     'all-linear', ['gate_proj', 'up_proj', 'down_proj']])
    c['lora'] = {'r': choose([4, 8, 16, 64]), 'alpha': 16, 'targets': targets, 'dropout': choose([0.0, 0.0, 0.05]),
                 'adapter_dtype': choose(['bfloat16', 'float32']), **({'fan_in_fan_out': True} if gpt2 else {})}
    c['param_dtype'] = choose(['bfloat16', 'bfloat16', 'float32'])
    if chance(0.5):
        c['fsdp']['peft_policy'] = True
    if c['fsdp']['version'] == 2:
        c['fsdp'].pop('peft_policy', None)
    else:
        c['fsdp']['use_orig_params'] = True


def case(kind):
    m, cls = drawn_models.titan(rng) if kind != 'lora' and chance(0.4) else drawn_models.gpt2(rng) if chance(0.2) else drawn_models.decoder(rng)
    version = 2 if chance(0.65) else 1
    c = {'kind': kind, 'model': m, 'world_size': choose([2, 4, 8, 16, 3]), 'batch': choose([1, 2, 3]), 'seq': choose([128, 256, 384, 512, 1024])}
    c['fsdp'] = (fsdp2 if version == 2 else fsdp1)(cls)
    titan_model = cls == 'TransformerBlock'
    c['loss'] = 'ce_flat' if titan_model else choose(['hf', 'hf', 'ce_flat', 'ce_fp32'])
    c['clip'] = choose([None, None, 1.0])
    if titan_model and version == 2 and chance(0.3):
        c['fsdp']['units'] = [{'modules': ['tok_embeddings'], 'before': True}, {'modules': ['norm', 'output'], 'reshard_after_forward': False}]
    if kind == 'sac' or chance(0.2):
        c['activation_checkpointing'] = recomputed(cls, version)
    if kind == 'lora':
        lora(c, cls)
    if kind == 'loss':
        c['loss'] = choose([{'kind': 'chunked_linear', 'chunks': choose([2, 4, 8])}, {'kind': 'chunked_logits', 'chunks': choose([2, 4, 8])}, 'ce_fp32', 'ce_flat']
                           + ([] if titan_model else ['hf']))
        c['fsdp'].pop('units', None)
        if isinstance(c['loss'], dict) and titan_model and version == 2 and chance(0.3):
            c['fsdp']['units'] = [{'modules': ['model.output'], 'reshard_after_forward': choose([True, False])}]
        c['labels_masked'] = chance(0.4)
        if c['loss'] == 'hf' and chance(0.5):
            c['num_items'] = True
    if kind == 'optimizer' or chance(0.1):
        c['optimizer'] = optimizer(version)
    if kind == 'other':
        what = choose(['mask', 'eager', 'accumulate', 'accumulate', 'offload', 'hybrid', 'autocast', 'expandable'])
        if what == 'mask' and not titan_model:
            c['attention_mask'] = choose(['padded', 'padded', 'ones'])
            if c['attention_mask'] == 'ones':
                c['clock'] = {'FAKEGPU_D2H_BYTE': 1}
        elif what == 'eager' and not titan_model:
            c['attn'] = 'eager'
        elif what == 'accumulate':
            c['grad_accum'], c['no_sync'] = choose([2, 3]), chance(0.6)
            if version == 2 and chance(0.3):
                c['fsdp']['keep_unsharded_between_micro_batches'] = True
        elif what == 'offload':
            c['fsdp']['cpu_offload'], c['clip'] = True, None
        elif what == 'hybrid' and version == 2:
            c['fsdp']['mesh'], c['world_size'] = [2, 4], 8
        elif what == 'autocast' and version == 1:
            c['fsdp'].pop('mixed_precision', None)
            c['autocast'] = 'bfloat16'
        elif what == 'expandable':
            c['alloc_conf'] = 'expandable_segments:True'
    c.setdefault('clock', {})['FAKEGPU_TIME'] = choose(['model', 'lazy'])
    return c


kinds = ['sac', 'lora', 'loss', 'optimizer', 'other']
with open(options.cases, 'w') as out:
    for number in range(options.rows):
        kind = kinds[number % len(kinds)]
        out.write(json.dumps({'id': f's{options.seed}-{kind}-{number:02}', **case(kind)}) + '\n')
