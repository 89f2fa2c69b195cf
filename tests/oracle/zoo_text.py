"""Subjects of the zoo: text encoders."""

import transformers
from zoo_case import Subject
from zoo_layers import *


class Pooled(nn.Module):
    """The mean of a model's last hidden states, or the first of its outputs."""

    def __init__(self, model, argument, pool=True):
        super().__init__()
        self.model, self.argument, self.pool = model, argument, pool

    def forward(self, x):
        hidden = self.model(**{self.argument: x})[0]
        return hidden.mean(dim=1) if self.pool else hidden


def eager(config):
    config._attn_implementation = "eager"
    return config


def distilbert_pooled(batch=16, length=128):
    """`DistilBertModel`, eager attention, the mean over the tokens; no mask is given."""
    model = transformers.DistilBertModel(eager(transformers.DistilBertConfig()))
    return Pooled(model, "input_ids").eval(), [ints("input_ids", batch, length)]


class ConvBlock(nn.Module):
    """A post-norm transformer layer of 1x1 convolutions, split heads and elementary layer norms."""

    def __init__(self, n, n_ffn, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.out = (conv(n, n) for _ in range(4))
        self.norm_1, self.norm_2 = (ChannelNorm(n, 1e-12, fused=False) for _ in range(2))
        self.up, self.down = conv(n, n_ffn), conv(n_ffn, n)

    def forward(self, x, mask):
        mixed = split_attention(self.q(x), self.k(x), self.v(x), self.n_heads, mask=mask)
        x = self.norm_1(self.out(mixed) + x)
        return self.norm_2(self.down(F.gelu(self.up(x))) + x)


class ConvDistilBert(nn.Module):
    """DistilBERT for SST-2 in the (B, C, 1, S) layout."""

    def __init__(self, n=768, n_layers=6, n_heads=12, n_positions=512, length=128, vocab=30522):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, n), nn.Embedding(n_positions, n)
        self.ids = torch.from_numpy(np.arange(length)[None])
        self.norm = ChannelNorm(n, 1e-12, fused=False)
        self.layers = nn.ModuleList(ConvBlock(n, 4 * n, n_heads) for _ in range(n_layers))
        self.pre_classifier, self.classifier = conv(n, n), conv(n, 2)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.positions(self.ids)
        x = self.norm(x.transpose(1, 2).unsqueeze(2))
        mask = ((1 - attention_mask.float()) * -1e4)[:, :, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        x = self.classifier(F.relu(self.pre_classifier(x[:, :, :, 0:1])))
        return x.squeeze(-1).squeeze(-1)


def distilbert_ane():
    return hollow(ConvDistilBert), [ints("input_ids", 1, 128), ints("attention_mask", 1, 128)]


class PlainBlock(nn.Module):
    """A transformer layer on [B, S, C]; `pre` puts the norms before the sublayers."""

    def __init__(self, n, n_ffn, n_heads, pre=False, eps=1e-12, act=F.gelu):
        super().__init__()
        self.n_heads, self.pre, self.act = n_heads, pre, act
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(n, eps), nn.LayerNorm(n, eps)
        self.up, self.down = nn.Linear(n, n_ffn), nn.Linear(n_ffn, n)

    def attend(self, x, mask):
        q, k, v = (heads_of(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        return self.out(joined(attention(q, k, v, mask)))

    def forward(self, x, mask=None):
        if self.pre:
            x = x + self.attend(self.norm_1(x), mask)
            return x + self.down(self.act(self.up(self.norm_2(x))))
        x = self.norm_1(x + self.attend(x, mask))
        return self.norm_2(x + self.down(self.act(self.up(x))))


class Bert(nn.Module):
    """Embeddings and post-norm layers; the mean over the tokens, of length one where `unit`."""

    def __init__(self, n, n_layers, n_heads, length, vocab, n_positions=512, unit=False):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, n), nn.Embedding(n_positions, n)
        self.ids = torch.from_numpy(np.arange(length)[None])
        self.norm, self.unit = nn.LayerNorm(n, 1e-12), unit
        self.layers = nn.ModuleList(PlainBlock(n, 4 * n, n_heads) for _ in range(n_layers))

    def hidden(self, ids):
        x = self.norm(self.words(ids) + self.positions(self.ids))
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids):
        x = self.hidden(ids).mean(dim=1)
        return x * (x * x).sum(dim=1, keepdim=True).rsqrt() if self.unit else x


def minilm(length=16):
    """all-MiniLM-L6-v2 of one sentence. That of the source has 14 tokens; 16 is a round width."""
    model = hollow(Bert, 384, 6, 12, length, 30522, unit=True)
    return model, [ints("input_ids", 1, length)]


class UformText(nn.Module):
    """Text tower of UForm 3: a BERT with a mask, the first token's state, and a projection."""

    def __init__(self, n_layers, n_embedding, vocab, length, n=768, n_heads=12):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, n), nn.Embedding(length, n)
        self.ids = torch.from_numpy(np.arange(length)[None])
        self.norm = nn.LayerNorm(n, 1e-12)
        self.layers = nn.ModuleList(PlainBlock(n, 4 * n, n_heads) for _ in range(n_layers))
        self.projection = nn.Linear(n, n_embedding, bias=False)

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.words(input_ids) + self.positions(self.ids))
        mask = ((1 - attention_mask.float()) * -1e4)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x, self.projection(x[:, 0])


def uform(n_embedding=256, vocab=30522, length=77):
    """Half of the four layers serve the matching head alone, so two run; the sizes of the models
    say so. The source does not state the number of tokens; 77 is the default of its code."""
    model = hollow(UformText, 2, n_embedding, vocab, length)
    return model, [ints("input_ids", 1, length), ints("attention_mask", 1, length)]


class FilledBlock(PlainBlock):
    """A layer of DistilBERT in transformers of 2022, which compares the mask in each layer.

    What it fills in is beyond fp16, so the converter keeps `select` and its neighbors in fp32.
    """

    def attend(self, x, mask):
        q, k, v = (heads_of(f(x), self.n_heads) for f in (self.q, self.k, self.v))
        scores = q / math.sqrt(sizes(q)[-1]) @ k.transpose(2, 3)
        hidden = (mask == 0).view(1, 1, 1, -1).expand_as(scores)
        return self.out(joined(scores.masked_fill(hidden, -1e37).softmax(dim=-1) @ v))


class StockDistilBert(Bert):
    """DistilBERT for SST-2 with a mask."""

    def __init__(self):
        super().__init__(768, 6, 12, 128, 30522)
        self.layers = nn.ModuleList(FilledBlock(768, 3072, 12) for _ in range(6))
        self.pre_classifier, self.classifier = nn.Linear(768, 768), nn.Linear(768, 2)

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.words(input_ids) + self.positions(self.ids))
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.classifier(F.relu(self.pre_classifier(x[:, 0])))


def distilbert_stock():
    return hollow(StockDistilBert), [ints("input_ids", 1, 128), ints("attention_mask", 1, 128)]


class RepMixer(nn.Module):
    """A block of MobileCLIP-S0's text tower with merged branches: mixing, then a separable FFN."""

    def __init__(self, n, kernel=11):
        super().__init__()
        pad = (0, kernel // 2)
        self.mix = nn.Conv2d(n, n, (1, kernel), padding=pad, groups=n)
        self.depth = nn.Conv2d(n, n, (1, kernel), padding=pad, groups=n)
        self.up, self.down = conv(n, 4 * n), conv(4 * n, n)
        self.scale = nn.Parameter(torch.ones(n, 1, 1))

    def forward(self, x):
        x = x.permute(0, 2, 1).unsqueeze(2)
        x = self.mix(x)
        x = x + self.scale * self.down(F.gelu(self.up(self.depth(x))))
        return x.squeeze(2).permute(0, 2, 1)


class ClipText(nn.Module):
    """CLIP's text tower with 77 positions; `mixers` puts a RepMixer before and after the layers."""

    def __init__(
        self, n_layers, n=512, n_heads=8, mixers=False, causal=True, length=77, vocab=49408
    ):
        super().__init__()
        self.words = nn.Embedding(vocab, n)
        self.positions = nn.Parameter(torch.zeros(1, length, n))
        self.mixers = nn.ModuleList(RepMixer(n) for _ in range(2 if mixers else 0))
        self.layers = nn.ModuleList(
            PlainBlock(n, 4 * n, n_heads, True, 1e-5) for _ in range(n_layers)
        )
        self.norm, self.projection = nn.LayerNorm(n), nn.Linear(n, n, bias=False)
        self.mask = constant(np.triu(np.full((length, length), -1e4), 1)) if causal else None

    def forward(self, ids):
        x = self.words(ids) + self.positions
        if len(self.mixers):
            x = self.mixers[0](x)
        for layer in self.layers:
            x = layer(x, self.mask)
        if len(self.mixers):
            x = self.mixers[1](x)
        x = self.norm(x)
        end = torch.nn.functional.one_hot(ids.argmax(dim=-1), 77).to(x.dtype)
        x = (end.unsqueeze(1) @ x).squeeze(1)
        return self.projection(x)


def mobileclip(**options):
    return hollow(ClipText, **options), [ints("text", 1, 77)]


class QwenLayer(nn.Module):
    """A layer of Qwen3 without a causal mask, of 1x1 convolutions in the (B, C, 1, S) layout."""

    def __init__(self, n, n_ffn, n_heads, n_kv, size, twice):
        super().__init__()
        self.n_heads, self.n_kv, self.size = n_heads, n_kv, size
        norm = DoubledNorm if twice else ChannelRms
        self.norm_1, self.norm_2 = norm(n), norm(n)
        self.q_norm, self.k_norm = RmsNorm(size), RmsNorm(size)
        self.q, self.k = conv(n, n_heads * size, False), conv(n, n_kv * size, False)
        self.v, self.out = conv(n, n_kv * size, False), conv(n_heads * size, n, False)
        self.gate, self.up, self.down = (
            conv(n, n_ffn, False),
            conv(n, n_ffn, False),
            conv(n_ffn, n, False),
        )

    def heads(self, x, n_heads):
        return x.reshape(1, n_heads, self.size, sizes(x)[3]).transpose(2, 3)

    def forward(self, x, cos, sin, mask):
        y = self.norm_1(x)
        q, k = (
            self.q_norm(self.heads(self.q(y), self.n_heads)),
            self.k_norm(self.heads(self.k(y), self.n_kv)),
        )
        v = self.heads(self.v(y), self.n_kv)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (t.repeat_interleave(self.n_heads // self.n_kv, dim=1) for t in (k, v))
        y = attention(q, k, v, mask).transpose(2, 3)
        x = x + self.out(y.reshape(1, self.n_heads * self.size, 1, sizes(x)[3]))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ChannelRms(RmsNorm):
    def __init__(self, n):
        super().__init__(n, axis=1, rank=4)


class DoubledNorm(nn.Module):
    """RMS norm as the layer norm of x and -x, which the Neural Engine has as one op."""

    def __init__(self, n):
        super().__init__()
        self.n = n
        self.weight = nn.Parameter(torch.ones(1, n, 1, 1))

    def forward(self, x):
        y = torch.cat([x, -x], dim=1).transpose(1, 3)
        y = F.layer_norm(y, (2 * self.n,), eps=1e-6).transpose(1, 3)
        return y[:, : self.n] * self.weight


class QwenEncoder(nn.Module):
    """Qwen3-0.6B as an encoder without a causal mask; the mean over the tokens of the mask."""

    def __init__(self, length, twice, n=1024, n_layers=28, vocab=151936):
        super().__init__()
        self.words = nn.Embedding(vocab, n)
        self.layers = nn.ModuleList(QwenLayer(n, 3072, 16, 8, 128, twice) for _ in range(n_layers))
        self.norm = DoubledNorm(n) if twice else ChannelRms(n)
        angles = np.arange(length)[:, None] * 1e6 ** (-np.arange(0, 128, 2) / 128)
        angles = np.concatenate([angles, angles], axis=1)
        self.cos, self.sin = (
            constant(np.cos(angles)[None, None]),
            constant(np.sin(angles)[None, None]),
        )

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids).transpose(1, 2).unsqueeze(2)
        kept = attention_mask.float()
        mask = ((1 - kept) * -1e4)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, mask)
        x = self.norm(x) * kept[:, None, None, :]
        return x.sum(dim=3).squeeze(2) / kept.sum(dim=1, keepdim=True)


def pplx_embed(length, twice=False):
    model = hollow(QwenEncoder, length, twice)
    return model, [ints("input_ids", 1, length), ints("attention_mask", 1, length)]


SUBJECTS = {
    "distilbert_b16_s128": Subject(
        distilbert_pooled, target="iOS18", n_ops=148, n_params=66_362_880
    ),
    # As coremltools 5.0 converts it. Xcode of 2022 shows 266 ops, 38 of them on the CPU: here the
    # embedding, the last cast, and six ops a layer around the mask are 38. The other 228 are the
    # other 150 of this program with seven ops for each of 13 layer norms.
    "distilbert_b1_s128": Subject(
        distilbert_stock,
        target="iOS15",
        n_ops=266,
        without=(
            "common::fuse_transpose_matmul",
            "common::merge_consecutive_transposes",
            "common::remove_redundant_ops",
        ),
    ),
    "distilbert_ane_b1_s128": Subject(distilbert_ane, target="iOS16", n_ops=606),
    "minilm_b1_s16": Subject(minilm, n_params=22_713_216),
    "minilm_b1_s16_int8": Subject(minilm, compress="int8"),
    "minilm_b1_s16_lut4": Subject(minilm, compress="lut4"),
    "uform_small_text_f32": Subject(lambda: uform(), precision="float32"),
    "uform_base_text_f32": Subject(lambda: uform(), precision="float32"),
    "uform_large_text_f32": Subject(lambda: uform(768), precision="float32"),
    "uform_multilingual_text_f32": Subject(lambda: uform(256, 112000, 50), precision="float32"),
    "uform_small_text_int8": Subject(lambda: uform(), compress="int8"),
    "uform_large_text_int8": Subject(lambda: uform(768), compress="int8"),
    "uform_multilingual_text_int8": Subject(lambda: uform(256, 112000, 50), compress="int8"),
    "mobileclip_s0_text": Subject(
        lambda: mobileclip(n_layers=4, mixers=True, causal=False), n_params=42_400_000
    ),
    "mobileclip_b_text": Subject(lambda: mobileclip(n_layers=12), n_params=63_400_000),
    "pplx_embed_s256": Subject(lambda: pplx_embed(256), target="iOS18", n_params=596_049_920),
    "pplx_embed_s256_twice": Subject(lambda: pplx_embed(256, True), target="iOS18"),
    "pplx_embed_s128": Subject(lambda: pplx_embed(128), target="iOS18"),
}
