"""A Llama-style model in plain PyTorch, with a static cache so that a decoding step can be a CUDA graph.

Its state dict has the names of Hugging Face's LlamaForCausalLM, whose weights it takes as they are.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Config:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


SIZES = {
    "tiny": Config(128, 256, 2, 4, 2, 512),
    "1b": Config(2048, 8192, 16, 32, 8, 128256),
    "3b": Config(3072, 8192, 28, 24, 8, 128256),
    "8b": Config(4096, 14336, 32, 32, 8, 128256),
}


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    """Rotary embedding of [B, heads, T, head_dim] by [T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, head = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, head
        self.q_proj = nn.Linear(hidden, self.heads * head, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(self.heads * head, hidden, bias=False)

    def forward(self, x, *rest):
        return self.o_proj(self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), *rest))

    def attend(self, q, k, v, cos, sin, positions, keys, values, mask):
        """[B, T, heads * head_dim] from the three products; keys and values take the new rows."""
        batch, rows, _ = q.shape
        q = rotate(q.view(batch, rows, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(k.view(batch, rows, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = v.view(batch, rows, self.kv_heads, -1).transpose(1, 2)
        if keys is not None:
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
        if mask is None:  # the whole sequence is here
            group = self.heads // self.kv_heads
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).reshape(batch, rows, -1)
        # One new row per sequence: the heads that share keys are rows of one product.
        q = q.reshape(batch, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        y = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return y.reshape(batch, 1, -1)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x, *rest):
        x = x + self.self_attn(self.input_layernorm(x), *rest)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def new_cache(self, batch, length):
        """[2, layers, batch, kv heads, length, head_dim] of zeros: keys and values."""
        c, weight = self.config, self.model.norm.weight
        shape = (2, c.num_hidden_layers, batch, c.num_key_value_heads, length, c.head_dim)
        return torch.zeros(shape, dtype=weight.dtype, device=weight.device)

    def _rotations(self, positions, dtype):
        head = self.config.head_dim
        powers = torch.arange(0, head, 2, dtype=torch.float32, device=positions.device) / head
        angles = positions.float()[:, None] * self.config.rope_theta**-powers
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _run(self, tokens, positions, cache, mask, last):
        x = self.model.embed_tokens(tokens)
        cos, sin = self._rotations(positions, x.dtype)
        for index, layer in enumerate(self.model.layers):
            keys, values = (None, None) if cache is None else (cache[0, index], cache[1, index])
            x = layer(x, cos, sin, positions, keys, values, mask)
        return self.lm_head(self.model.norm(x[:, -last:] if last else x))

    def forward(self, tokens, cache=None, last=1):
        """Logits of the last `last` rows (0: of all) of whole sequences [B, T]; fills the cache where there is one."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self._run(tokens, positions, cache, None, last)

    def step(self, tokens, position, cache):
        """Logits [B, 1, vocabulary] of one more row per sequence: tokens [B, 1] at `position` [1], the same for all."""
        mask = (torch.arange(cache.shape[4], device=tokens.device) <= position).view(1, 1, 1, -1)
        return self._run(tokens, position, cache, mask, 1)


def random_llama(config, device, dtype, seed=0):
    """With the initialisation that Hugging Face's models have: normal numbers of deviation 0.02."""
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.device("meta"):
        model = Llama(config)
    model = model.to_empty(device=device).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            else:
                parameter.normal_(0, 0.02, generator=generator)
    return model.eval()
