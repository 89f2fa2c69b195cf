"""Subjects of the zoo: language models, one step of decoding or one prompt at a time.

Caches are inputs. Where a source keeps them as states, the program reads the inputs all the same
and hands the new keys and values out: the same bytes of cache are read for each token.
"""

from zoo_case import Subject
from zoo_layers import *


class LlamaBlock(nn.Module):
    """A layer of a Llama for one token per stream; the caches hold the keys transposed."""

    def __init__(self, n, n_ffn, n_heads, n_cached):
        super().__init__()
        self.n_heads, self.size = n_heads, n // n_heads
        self.norm_1, self.norm_2 = RmsNorm(n, eps=1e-5), RmsNorm(n, eps=1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(n, n, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(n, n_ffn, bias=False), nn.Linear(n, n_ffn, bias=False)
        self.down = nn.Linear(n_ffn, n, bias=False)

    def forward(self, x, keys, values):
        batch, n = sizes(x)
        scale = self.size**-0.5
        y = self.norm_1(x)
        q, k, v = (f(y).reshape(-1, 1, self.size) for f in (self.q, self.k, self.v))
        scores = torch.cat([(q @ keys) * scale, (q @ k.transpose(1, 2)) * scale], dim=2)
        y = scores.softmax(dim=-1) @ torch.cat([values, v], dim=1)
        x = x + self.out(y.reshape(batch, n))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Eight layers and a head on hidden states; the source builds it with random weights."""

    def __init__(self, n=2048, n_ffn=8192, n_heads=16, n_cached=256, n_layers=8, vocab=32000):
        super().__init__()
        self.layers = nn.ModuleList(
            LlamaBlock(n, n_ffn, n_heads, n_cached) for _ in range(n_layers)
        )
        self.norm, self.head = RmsNorm(n, eps=1e-5), nn.Linear(n, vocab, bias=False)

    def forward(self, x, *caches):
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[2 * i], caches[2 * i + 1])
        return self.head(self.norm(x))


def llama(batch):
    inputs = [halves("x", batch, 2048)]
    for i in range(8):
        inputs += [halves(f"k{i}", batch * 16, 128, 256), halves(f"v{i}", batch * 16, 256, 128)]
    return hollow(Llama), inputs


class GptBlock(nn.Module):
    """A layer of GPT-2 on [1, S, C] with a cache of [1, cached, 2 C]."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.n, self.n_heads = n, n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x, mask, cache):
        q, k, v = self.qkv(self.norm_1(x)).split(self.n, dim=2)
        old_k, old_v = cache.split(self.n, dim=2)
        k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
        new = torch.cat([k, v], dim=2)
        q, k, v = (heads_of(each, self.n_heads) for each in (q, k, v))
        x = x + self.out(joined(attention(q, k, v, mask)))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh")), new


class Gpt(nn.Module):
    """GPT-2 with a cache of 384 tokens for inputs of 128: 512 in all. The head has four parts."""

    def __init__(self, n, n_layers, n_heads, length=128, context=512, vocab=50257):
        super().__init__()
        self.length, self.context = length, context
        self.words, self.positions = nn.Embedding(vocab, n), nn.Embedding(1024, n)
        self.layers = nn.ModuleList(GptBlock(n, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(n)
        parts = [vocab // 4] * 4 + [vocab % 4]
        self.heads = nn.ModuleList(nn.Linear(n, part, bias=False) for part in parts if part)
        steps = np.arange(length)
        self.steps = torch.from_numpy(steps.astype(np.int32))
        seen = np.arange(context)[None] <= steps[:, None] + context - length
        self.mask = constant(np.where(seen, 0, -1e4)[None, None])

    def forward(self, input_ids, full_sequence_length, kv_cache):
        positions = (self.steps + full_sequence_length - self.length).clamp(min=0)
        x = self.words(input_ids) + self.positions(positions)
        caches = []
        for layer, cache in zip(self.layers, kv_cache.unbind(0)):
            x, cache = layer(x, self.mask, cache)
            caches.append(cache)
        x = self.norm(x[:, -1:, :])
        logits = torch.cat([head(x) for head in self.heads], dim=-1)
        whole = torch.stack(caches)
        return logits, whole[:, :, self.length :], whole[:, :, 1 : self.context - self.length + 1]


def gpt2(n, n_layers, n_heads):
    inputs = [ints("input_ids", 1, 128), ints("full_sequence_length", 1)]
    inputs.append(halves("kv_cache", n_layers, 1, 384, 2 * n))
    return hollow(Gpt, n, n_layers, n_heads), inputs


class NeoxBlock(nn.Module):
    """A layer of GPT-NeoX: attention and FFN side by side, a quarter of each head is rotated."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.n_heads, self.size = n_heads, n // n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def rotate(self, x, cos, sin):
        turned = self.size // 4
        first = x[..., :turned]
        return torch.cat([first * cos + rotate_half(first) * sin, x[..., turned:]], dim=-1)

    def attend(self, x, cos, sin, mask):
        batch, length, n = sizes(x)
        qkv = self.qkv(x).view(batch, length, self.n_heads, 3 * self.size)
        q, k, v = (each.permute(0, 2, 1, 3) for each in qkv.split(self.size, dim=3))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        return self.out(joined(attention(q, k, v, mask)))

    def forward(self, x, cos, sin, mask):
        mixed = self.attend(self.norm_1(x), cos, sin, mask)
        return self.down(F.gelu(self.up(self.norm_2(x)))) + mixed + x


class Pythia(nn.Module):
    """GPT-NeoX over 512 tokens; the head sees the one position that `output_mask` names."""

    def __init__(self, n, n_layers, n_heads, length=512, vocab=50304):
        super().__init__()
        self.words = nn.Embedding(vocab, n)
        self.layers = nn.ModuleList(NeoxBlock(n, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(n)
        self.heads = nn.ModuleList(nn.Linear(n, vocab // 4, bias=False) for _ in range(4))
        turned = n // n_heads // 4
        angles = np.arange(length)[:, None] * 1e4 ** (-np.arange(0, turned, 2) / turned)
        angles = np.concatenate([angles, angles], axis=1)[None, None]
        self.cos, self.sin = constant(np.cos(angles)), constant(np.sin(angles))
        self.mask = constant(np.triu(np.full((length, length), -1e4), 1))

    def forward(self, input_ids, output_mask):
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        x = self.norm(x.index_select(1, output_mask))
        return torch.cat([head(x) for head in self.heads], dim=-1)


def pythia(n, n_layers, n_heads):
    return hollow(Pythia, n, n_layers, n_heads), [ints("input_ids", 1, 512), ints("output_mask", 1)]


class OptBlock(nn.Module):
    """A layer of OPT on [1, S, C] with a cache of keys and values."""

    def __init__(self, n, n_ffn, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))
        self.up, self.down = nn.Linear(n, n_ffn), nn.Linear(n_ffn, n)

    def forward(self, x, mask):
        y = self.norm_1(x)
        q, k, v = (heads_of(f(y), self.n_heads) for f in (self.q, self.k, self.v))
        x = x + self.out(joined(attention(q, k, v, mask)))
        return x + self.down(F.relu(self.up(self.norm_2(x))))


class Opt(nn.Module):
    """OPT-1.3B over a prompt of 64 tokens, without a cache, as transformers traces without one."""

    def __init__(self, n=2048, n_ffn=8192, n_layers=24, n_heads=32, length=64, vocab=50272):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, n), nn.Embedding(2050, n)
        self.ids = torch.from_numpy(np.arange(2, length + 2)[None])
        self.layers = nn.ModuleList(OptBlock(n, n_ffn, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(n), nn.Linear(n, vocab, bias=False)
        self.head.weight = self.words.weight
        self.causal = constant(np.triu(np.full((length, length), -1e4), 1))

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.positions(self.ids)
        mask = self.causal + ((1 - attention_mask.float()) * -1e4)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def opt(length=64):
    return hollow(Opt, length=length), [
        ints("input_ids", 1, length),
        ints("attention_mask", 1, length),
    ]


class QwenStep(nn.Module):
    """A layer of Qwen3 for one token with caches of [kv heads, size, cached]."""

    def __init__(self, n, n_ffn, n_heads, n_kv, size):
        super().__init__()
        self.n_heads, self.n_kv, self.size = n_heads, n_kv, size
        self.norm_1, self.norm_2 = RmsNorm(n), RmsNorm(n)
        self.q_norm, self.k_norm = RmsNorm(size), RmsNorm(size)
        self.q, self.out = (
            nn.Linear(n, n_heads * size, bias=False),
            nn.Linear(n_heads * size, n, bias=False),
        )
        self.k, self.v = (nn.Linear(n, n_kv * size, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(n, n_ffn, bias=False), nn.Linear(n, n_ffn, bias=False)
        self.down = nn.Linear(n_ffn, n, bias=False)

    def forward(self, x, cos, sin, mask, keys, values):
        y = self.norm_1(x)
        q = self.q_norm(self.q(y).reshape(self.n_kv, -1, self.size))
        k = self.k_norm(self.k(y).reshape(self.n_kv, 1, self.size))
        v = self.v(y).reshape(self.n_kv, 1, self.size)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scale = self.size**-0.5
        scores = torch.cat([(q @ keys) * scale + mask, (q @ k.transpose(1, 2)) * scale], dim=2)
        y = scores.softmax(dim=-1) @ torch.cat([values, v], dim=1)
        x = x + self.out(y.reshape(1, self.n_heads * self.size))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


class Qwen(nn.Module):
    """Qwen3-0.6B without embedding and head, which the source runs on the host."""

    def __init__(self, n=1024, n_layers=28):
        super().__init__()
        self.layers = nn.ModuleList(QwenStep(n, 3072, 16, 8, 128) for _ in range(n_layers))
        self.norm = RmsNorm(n)

    def forward(self, x, cos, sin, mask, *caches):
        new = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, cos, sin, mask, caches[2 * i], caches[2 * i + 1])
            new += [k, v]
        return (self.norm(x), *new)


def qwen(n_cached=512):
    inputs = [
        halves("x", 1, 1024),
        halves("cos", 1, 128),
        halves("sin", 1, 128),
        halves("mask", 1, n_cached),
    ]
    for i in range(28):
        inputs += [halves(f"k{i}", 8, 128, n_cached), halves(f"v{i}", 8, n_cached, 128)]
    return hollow(Qwen), inputs


SUBJECTS = {
    **{
        f"llama_b{batch}": Subject(lambda batch=batch: llama(batch))
        for batch in (1, 2, 4, 8, 16, 32)
    },
    **{
        f"llama_b{batch}_int8": Subject(lambda batch=batch: llama(batch), compress="int8")
        for batch in (1, 2, 8, 32)
    },
    "gpt2_s128_kv384": Subject(lambda: gpt2(768, 12, 12), target="iOS16"),
    "gpt2_large_s128_kv384": Subject(lambda: gpt2(1280, 36, 20), target="iOS16"),
    "pythia_70m_s512": Subject(lambda: pythia(512, 6, 8), target="iOS16", n_params=70_426_624),
    "pythia_160m_s512": Subject(lambda: pythia(768, 12, 12), target="iOS16", n_params=162_322_944),
    "pythia_1b4_s512": Subject(
        lambda: pythia(2048, 24, 16), target="iOS16", n_params=1_414_647_808
    ),
    "pythia_2b8_s512": Subject(
        lambda: pythia(2560, 32, 32), target="iOS16", n_params=2_775_208_960
    ),
    "opt_1b3_s64": Subject(opt, target="iOS18", n_params=1_315_758_080),
    "opt_1b3_s64_lut4_g8": Subject(opt, target="iOS18", compress="lut4_g8"),
    "opt_1b3_s64_lut4_g2": Subject(opt, target="iOS18", compress="lut4_g2"),
    "opt_1b3_s64_lut4_g1": Subject(opt, target="iOS18", compress="lut4_g1"),
    "qwen3_0b6_decode": Subject(qwen, n_params=440_467_456),
    "qwen3_0b6_decode_int8": Subject(qwen, compress="int8"),
}
