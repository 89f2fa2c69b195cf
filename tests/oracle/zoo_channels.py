"""Subjects of the zoo: Parakeet CTC 110M as Argmax converts encoders for the Neural Engine.

Its names (`MelSpectrogram`, `AudioEncoder`, `input_1`) and shapes (features [1, 1, frames, bins],
logits [1, vocabulary, 1, steps]) are those of Argmax's packages, which hold activations as
(B, C, 1, S): 1x1 convolutions, norms over channels, and attention with one product per head. The
source runs all of its ops on the engine, so none is on integers: no mask is computed. How the
package shifts scores of relative positions is not published.
"""

from zoo_case import Subject
from zoo_layers import *
from zoo_conformer import strided


class ScaledNorm(nn.Module):
    """Layer norm over channels; weight and bias come after it, as argmaxtools spells it."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, n, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, n, 1, 1))

    def forward(self, x):
        x = x - x.mean(dim=1, keepdim=True)
        x = x * ((x * x).mean(dim=1, keepdim=True) + 1e-5).rsqrt()
        return x * self.weight + self.bias


class FeedForward(nn.Module):
    """Half of its result is added; the converter folds that factor into the convolution."""

    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = ScaledNorm(n), conv(n, 4 * n), conv(4 * n, n)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x)))) * 0.5


class Attention(nn.Module):
    """Relative positions: a term of content per head, and one of distance for all heads at once."""

    def __init__(self, n, n_heads, length):
        super().__init__()
        self.n_heads, self.size, self.length = n_heads, n // n_heads, length
        self.q, self.k, self.v, self.out = (conv(n, n) for _ in range(4))
        self.bias_u, self.bias_v = (nn.Parameter(torch.zeros(1, n, 1, 1)) for _ in range(2))
        # The projected table of distances is a constant.
        self.table = nn.Parameter(torch.zeros(1, n_heads, self.size, 2 * length - 1))

    def by_distance(self, q):
        """Scores of distances, shifted into place // [1, heads, length of queries, of keys]"""
        n_heads, length = self.n_heads, self.length
        x = q.view(1, n_heads, self.size, length).transpose(2, 3) @ self.table
        x = F.pad(x, (1, 0)).view(1, n_heads, 2 * length, length)
        return x[:, :, 1:].view(1, n_heads, length, 2 * length - 1)[:, :, :, :length]

    def forward(self, x):
        q, k, v = self.q(x) * self.size**-0.5, self.k(x), self.v(x)
        distances = self.by_distance(q + self.bias_v).permute(0, 3, 1, 2).split(1, dim=2)
        queries, values = (t.split(self.size, dim=1) for t in (q + self.bias_u, v))
        keys = k.transpose(1, 3).split(self.size, dim=3)
        heads = []
        for query, key, value, distance in zip(queries, keys, values, distances):
            scores = torch.einsum("bchq,bkhc->bkhq", query, key) + distance
            heads.append(torch.einsum("bkhq,bchk->bchq", scores.softmax(dim=1), value))
        return self.out(torch.cat(heads, dim=1))


class Convolution(nn.Module):
    def __init__(self, n, kernel=9):
        super().__init__()
        self.norm, self.expand, self.project = ScaledNorm(n), conv(n, 2 * n), conv(n, n)
        # The batch norm after it is folded in.
        self.depthwise = nn.Conv2d(n, n, (1, kernel), padding=(0, kernel // 2), groups=n)

    def forward(self, x):
        x = F.glu(self.expand(self.norm(x)), dim=1)
        return self.project(F.silu(self.depthwise(x)))


class Block(nn.Module):
    def __init__(self, n, n_heads, length):
        super().__init__()
        self.first, self.second = FeedForward(n), FeedForward(n)
        self.norm_attention, self.attention = ScaledNorm(n), Attention(n, n_heads, length)
        self.convolution, self.norm_out = Convolution(n), ScaledNorm(n)

    def forward(self, x):
        x = self.first(x)
        x = x + self.attention(self.norm_attention(x))
        x = x + self.convolution(x)
        return self.norm_out(self.second(x))


class ChannelConformer(nn.Module):
    """FastConformer with a CTC head: striding to an eighth, layers, logits and probabilities."""

    def __init__(self, n=512, n_layers=17, n_heads=8, n_frames=1501, n_mels=80, vocab=1025):
        super().__init__()
        self.stem = nn.Conv2d(1, 256, 3, 2, 1)
        self.depthwise = nn.ModuleList(nn.Conv2d(256, 256, 3, 2, 1, groups=256) for _ in range(2))
        self.pointwise = nn.ModuleList(conv(256, 256) for _ in range(2))
        self.project, self.head = conv(256 * strided(n_mels), n), conv(n, vocab)
        length = strided(n_frames)
        self.layers = nn.ModuleList(Block(n, n_heads, length) for _ in range(n_layers))

    def forward(self, features):
        x = F.relu(self.stem(features))
        for depthwise, pointwise in zip(self.depthwise, self.pointwise):
            x = F.relu(pointwise(depthwise(x)))
        x = self.project(x.permute(0, 1, 3, 2).flatten(1, 2).unsqueeze(2))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        return logits, logits.softmax(dim=1)


def ctc_encoder():
    return hollow(ChannelConformer), [halves("features", 1, 1, 1501, 80)]


SUBJECTS = {
    "parakeet_110m_1501_int8": Subject(
        ctc_encoder,
        compress="int8",
        n_ops=1315,
        outputs=[ct.TensorType(name=name, dtype=np.float16) for name in ("logits", "shares")],
    )
}
