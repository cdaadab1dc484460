"""Models of a few million parameters, drawn at random: titan_llama and decoders of transformers."""


def titan(rng, moe=None):
    """(the model of a case, the class of its blocks)"""
    choose = rng.choice
    h = choose([4, 6, 8, 12, 16])
    hd = choose([32, 48, 64, 96, 128])
    kv = choose([x for x in (2, 4, 6, 8, 12, 16) if h % x == 0])
    c = {'model_type': 'titan_llama', 'dim': h * hd, 'n_layers': choose([2, 3, 5, 7]), 'n_heads': h, 'n_kv_heads': kv,
         'ffn': choose([768, 1000, 1536, 2200, 2816]), 'vocab_size': choose([5003, 8192, 10000, 32000, 50257]), 'max_seq': 4096}
    if moe:
        c['moe'] = moe
    return {'class': 'TitanLlama', 'config': c}, 'TransformerBlock'


def gpt2(rng):
    choose = rng.choice
    h = choose([4, 6, 8, 12, 16])
    c = {'model_type': 'gpt2', 'n_layer': choose([2, 3, 5]), 'n_embd': h * choose([32, 64, 80, 128]), 'n_head': h, 'vocab_size': choose([5003, 32000, 50257]),
         'n_positions': 4096, 'attn_pdrop': 0.0, 'embd_pdrop': 0.0, 'resid_pdrop': 0.0, 'tie_word_embeddings': rng.random() < 0.7}
    return {'class': 'GPT2LMHeadModel', 'config': c}, 'GPT2Block'


def decoder(rng, kinds=('llama', 'llama', 'qwen2', 'mistral', 'qwen3', 'gemma')):
    choose = rng.choice
    kind = choose(kinds)
    h = choose([4, 8, 12, 16])
    hd = choose([32, 64, 80, 128])
    kv = choose([x for x in (2, 4, 8, 12, 16) if h % x == 0])
    c = {'model_type': kind, 'hidden_size': h * hd, 'intermediate_size': choose([768, 1000, 1536, 2816]), 'num_hidden_layers': choose([2, 3, 5]),
         'num_attention_heads': h, 'num_key_value_heads': kv, 'vocab_size': choose([5003, 8192, 32000, 49152]), 'rms_norm_eps': 1e-05,
         'tie_word_embeddings': rng.random() < 0.3, 'max_position_embeddings': 4096, 'attention_dropout': 0.0}
    if kind == 'llama':
        c.update(hidden_act='silu', attention_bias=rng.random() < 0.4, mlp_bias=rng.random() < 0.4)
        if rng.random() < 0.3:
            c['head_dim'] = choose([64, 96])
    if kind == 'qwen2':
        c.update(hidden_act='silu', use_sliding_window=False)
    if kind == 'qwen3':
        c.update(hidden_act='silu', head_dim=choose([64, 128]), attention_bias=False, use_sliding_window=False)
    if kind == 'mistral':
        c.update(hidden_act='silu', sliding_window=None)
    if kind == 'gemma':
        c.update(hidden_activation='gelu_pytorch_tanh', head_dim=choose([64, 128]), hidden_act='gelu_pytorch_tanh')
    cls = {'llama': 'Llama', 'qwen2': 'Qwen2', 'mistral': 'Mistral', 'qwen3': 'Qwen3', 'gemma': 'Gemma'}[kind]
    return {'class': cls + 'ForCausalLM', 'config': c}, cls + 'DecoderLayer'
