"""Subjects of the zoo: text encoder and vocoder of Supertonic.

FluidInference ports their ONNX files before the conversion (its scripts are public).
"""

from zoo_case import Subject
from zoo_layers import *


class NextBlock(nn.Module):
    """ConvNeXt in one dimension: a depthwise convolution, a norm, and an FFN, scaled.

    The edges are repeated as padding, by a causal one on the left alone.
    """

    def __init__(self, n, n_ffn, kernel, dilation=1, causal=False):
        super().__init__()
        whole = (kernel - 1) * dilation
        self.pads = (whole, 0) if causal else (whole // 2, whole // 2)
        self.depthwise = nn.Conv1d(n, n, kernel, dilation=dilation, groups=n)
        self.norm = nn.LayerNorm(n)
        self.up, self.down = nn.Conv1d(n, n_ffn, 1), nn.Conv1d(n_ffn, n, 1)
        self.scale = nn.Parameter(torch.ones(1, n, 1))

    def forward(self, x, mask=None):
        y = self.depthwise(F.pad(x, self.pads, mode="replicate"))
        y = y if mask is None else y * mask
        y = x + self.scale * self.down(F.gelu(self.up(over_channels(self.norm, y))))
        return y if mask is None else y * mask


def over_channels(norm, x):
    return norm(x.transpose(1, 2)).transpose(1, 2)


class SuperVocoder(nn.Module):
    """Supertonic's vocoder: ten ConvNeXt blocks of 512 channels, 512 samples from each frame."""

    def __init__(self, n=512, n_latent=24):
        super().__init__()
        self.n_latent = n_latent
        self.scale = torch.tensor(0.25)
        self.mean, self.deviation = (nn.Parameter(torch.ones(1, n_latent, 1)) for _ in range(2))
        self.first = nn.Conv1d(n_latent, n, 7)
        dilations = (1, 2, 4, 1, 2, 4, 1, 1, 1, 1)
        self.blocks = nn.ModuleList(NextBlock(n, 2048, 7, d, causal=True) for d in dilations)
        self.norm, self.last = nn.BatchNorm1d(n), nn.Conv1d(n, 2048, 3)
        self.act, self.out = nn.PReLU(), nn.Conv1d(2048, 512, 1, bias=False)

    def forward(self, latent):
        x = (latent / self.scale).reshape(1, self.n_latent, 6, -1)
        x = x.transpose(2, 3).reshape(1, self.n_latent, -1) * self.deviation + self.mean
        x = self.first(F.pad(x, (6, 0), mode="replicate"))
        for block in self.blocks:
            x = block(x)
        x = self.last(F.pad(self.norm(x), (2, 0), mode="replicate"))
        return self.out(self.act(x)).transpose(1, 2).reshape(1, -1)


class CrossAttention(nn.Module):
    """Looks from a text at keys and values of two sources, with tanh of the keys.

    Scores are divided by 16 whatever the size of a head. What is padding sees nothing.
    """

    def __init__(self, n, n_inner, n_context, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.out = nn.Linear(n, n_inner), nn.Linear(n_inner, n)
        self.k, self.v = nn.Linear(n_context, n_inner), nn.Linear(n_context, n_inner)

    def forward(self, x, keys, values, mask):
        q, k, v = (
            heads_of(each, self.n_heads) for each in (self.q(x), self.k(keys), self.v(values))
        )
        shares = (q @ torch.tanh(k).transpose(-2, -1) / 16.0).softmax(dim=-1)
        rows = mask.transpose(1, 2)
        return self.out(joined((shares * rows.unsqueeze(1)) @ v)) * rows


class WindowAttention(nn.Module):
    """Self-attention with vectors for distances up to 4, in the scores and in the values."""

    def __init__(self, n, n_heads, window=4):
        super().__init__()
        self.n_heads, self.size, self.window = n_heads, n // n_heads, window
        self.q, self.k, self.v, self.out = (nn.Conv1d(n, n, 1) for _ in range(4))
        self.near_k, self.near_v = (
            nn.Parameter(torch.ones(1, 2 * window + 1, self.size)) for _ in range(2)
        )

    def far(self, near, length):
        """Vectors of all distances, 0 beyond the window // [1, 2 * length - 1, size]"""
        beyond = length - 1 - self.window
        return F.pad(near, (0, 0, beyond, beyond))[:, 0 : 2 * length - 1]

    def by_position(self, x):
        """[1, heads, length, distances] -> [1, heads, length, positions]"""
        _, n_heads, n, _ = sizes(x)
        x = F.pad(x, (0, 1)).reshape(1, n_heads, 2 * n * n)
        x = F.pad(x, (0, n - 1)).reshape(1, n_heads, n + 1, 2 * n - 1)
        return x[:, :, :n, n - 1 :]

    def by_distance(self, x):
        """[1, heads, length, positions] -> [1, heads, length, distances]"""
        _, n_heads, n, _ = sizes(x)
        x = F.pad(x, (0, n - 1)).reshape(1, n_heads, n * (2 * n - 1))
        return F.pad(x, (n, 0)).reshape(1, n_heads, n, 2 * n)[:, :, :, 1:]

    def forward(self, x, mask):
        _, n, length = sizes(x)
        shape = (1, self.n_heads, self.size, length)
        q, k, v = (f(x).reshape(shape).transpose(2, 3) for f in (self.q, self.k, self.v))
        q = q * (1.0 / math.sqrt(self.size))
        distances = q @ self.far(self.near_k, length).transpose(-2, -1).unsqueeze(0)
        scores = q @ k.transpose(-2, -1) + self.by_position(distances)
        shares = (scores - (1.0 - mask.unsqueeze(2)) * 1e4).softmax(dim=-1)
        y = shares @ v + self.by_distance(shares) @ self.far(self.near_v, length).unsqueeze(0)
        return self.out(y.transpose(2, 3).reshape(1, n, length))


class TextLayer(nn.Module):
    """A layer of the text encoder: norms after both sublayers, a mask before and in the FFN."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.attention = WindowAttention(n, n_heads)
        self.norm_1, self.norm_2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.up, self.down = nn.Conv1d(n, 4 * n, 1), nn.Conv1d(4 * n, n, 1)

    def forward(self, x, mask):
        x = x * mask
        x = over_channels(self.norm_1, x + self.attention(x, mask))
        y = self.down(F.relu(self.up(x * mask)) * mask) * mask
        return over_channels(self.norm_2, x + y)


class SuperText(nn.Module):
    """Supertonic's text encoder: six ConvNeXt blocks, four layers, two looks at the style.

    The keys of the looks are learned; the values are the style that is given.
    """

    def __init__(self, n=256, vocab=8322):
        super().__init__()
        self.words = nn.Embedding(vocab, n)
        self.blocks = nn.ModuleList(NextBlock(n, 4 * n, 5, d) for d in (1, 1, 2, 2, 4, 4))
        self.layers = nn.ModuleList(TextLayer(n, 4) for _ in range(4))
        self.looks = nn.ModuleList(CrossAttention(n, n, n, 2) for _ in range(2))
        self.keys, self.norm = nn.Parameter(torch.ones(1, 50, n)), nn.LayerNorm(n)

    def forward(self, text_ids, style, mask):
        x = self.words(text_ids.long()).transpose(1, 2) * mask
        for block in self.blocks:
            x = block(x * mask, mask)
        text = x
        for layer in self.layers:
            x = layer(x, mask)
        text = ((x * mask + text) * mask).transpose(1, 2)
        x = text
        for look in self.looks:
            x = text + look(x, self.keys, style, mask)
        return over_channels(self.norm, x.transpose(1, 2)) * mask


def super_text():
    inputs = [ints("text_ids", 1, 128), floats("style", 1, 50, 256), floats("mask", 1, 1, 128)]
    return hollow(SuperText), inputs


def super_vocoder():
    """The package takes 4 to 512 slots of a latent; 128 is what the estimator makes at once."""
    return hollow(SuperVocoder), [floats("latent", 1, 144, ct.RangeDim(4, 512, default=128))]


def floats_out(name):
    return [ct.TensorType(name=name, dtype=np.float32)]


SUBJECTS = {
    "supertonic_text": Subject(
        super_text, target="iOS18", n_ops=308, outputs=floats_out("text_emb")
    ),
    "supertonic_vocoder": Subject(
        super_vocoder, target="iOS18", n_ops=107, outputs=floats_out("wav")
    ),
}
