"""Subjects of the zoo: decoding with Gemma 4 E2B in chunks, its image tower, Gemma 3 270M.

The tower is spelled as transformers spells it, with a mask by sums, as CoreML-LLM converts it.
"""

from zoo_case import Subject
from zoo_layers import *

WIDTH, WINDOW, CONTEXT, N_LAYERS, PER_LAYER = 1536, 512, 2048, 35, 256
LAST_SLIDING, LAST_FULL = 13, 14  # the layers whose keys and values later ones share


def is_full(index):
    return index % 5 == 4


class MirrorNorm(nn.Module):
    """RMS norm as the layer norm of x and -x; as many numbers again are thrown away."""

    def __init__(self, n):
        super().__init__()
        self.n, self.weight = n, nn.Parameter(torch.ones(n))

    def forward(self, x):
        y = F.layer_norm(torch.cat([x, -x], dim=-1), (2 * self.n,), eps=1e-6)
        return y.chunk(2, dim=-1)[0] * self.weight


def columns(x):
    """[1, 1, C] -> [1, C, 1, 1]"""
    return x.permute(0, 2, 1).unsqueeze(2)


def rows(x):
    """[1, C, 1, 1] -> [1, 1, C]"""
    return x.squeeze(2).permute(0, 2, 1)


class GemmaLayer(nn.Module):
    """A layer of Gemma 4 for one token: one head of keys for eight of queries, four norms, a gated
    FFN, and the input that each layer has for itself."""

    def __init__(self, index, n_heads=8):
        super().__init__()
        self.index, self.n_heads, self.size = index, n_heads, 512 if is_full(index) else 256
        self.shares = index > LAST_FULL
        n, n_ffn = WIDTH, 12288 if self.shares else 6144
        self.norms = nn.ModuleList(MirrorNorm(n) for _ in range(5))
        self.q, self.out = conv(n, n_heads * self.size, False), conv(n_heads * self.size, n, False)
        self.q_norm = MirrorNorm(self.size)
        if not self.shares:
            self.k, self.v = conv(n, self.size, False), conv(n, self.size, False)
            self.k_norm = MirrorNorm(self.size)
        self.gate, self.up, self.down = (
            conv(n, n_ffn, False),
            conv(n, n_ffn, False),
            conv(n_ffn, n, False),
        )
        self.own_gate, self.own_out = conv(n, PER_LAYER, False), conv(PER_LAYER, n, False)
        self.scale = nn.Parameter(torch.ones(1))

    def keys_values(self, x, cos, sin):
        """The new key and value, padded to the width of the full layers."""
        k = self.k_norm(self.k(x).view(1, 1, self.size)).view(1, 1, 1, self.size)
        v = self.v(x).view(1, 1, self.size, 1).permute(0, 1, 3, 2)
        k = k * cos + rotate_half(k) * sin
        v = v * ((v * v).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return tuple(each if is_full(self.index) else F.pad(each, (0, 256)) for each in (k, v))

    def attend(self, x, cos, sin, mask, keys, values):
        q = self.q(x).view(1, self.n_heads, self.size, 1).permute(0, 1, 3, 2)
        q = self.q_norm(q.reshape(1, self.n_heads, self.size)).view(1, self.n_heads, 1, self.size)
        q = q * cos + rotate_half(q) * sin
        keys, values = (each.repeat_interleave(self.n_heads, dim=1) for each in (keys, values))
        scores = q @ keys.transpose(-1, -2) + mask
        shifted = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        y = (shifted / shifted.sum(dim=-1, keepdim=True)) @ values
        return rows(
            self.out(columns(y.permute(0, 2, 1, 3).reshape(1, 1, self.n_heads * self.size)))
        )

    def rest(self, x, mixed, inputs):
        x = x + self.norms[1](mixed)
        y = columns(self.norms[2](x))
        y = self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))
        x = x + self.norms[3](rows(y))
        y = F.gelu(self.own_gate(columns(x)), approximate="tanh")
        y = self.own_out(
            y * columns(inputs[:, :, PER_LAYER * self.index : PER_LAYER * (self.index + 1)])
        )
        return (x + self.norms[4](rows(y))) * self.scale


class Chunk(nn.Module):
    """Layers of Gemma 4 in a row. The first chunk makes the inputs of the layers, those up to the
    shared layers update their caches, and the last has the head and its argmax."""

    def __init__(self, first, last, head=False):
        super().__init__()
        self.indices = range(first, last)
        self.layers = nn.ModuleList(GemmaLayer(i) for i in self.indices)
        self.first, self.head = first == 0, None
        if self.first:
            self.project = conv(WIDTH, N_LAYERS * PER_LAYER, False)
            self.project_norm = MirrorNorm(PER_LAYER)
        if head:
            self.norm, self.head = MirrorNorm(WIDTH), conv(WIDTH, 262144, False)

    def own_inputs(self, x, raw):
        y = rows(self.project(columns(x)) * WIDTH**-0.5).view(1, N_LAYERS, PER_LAYER)
        return (self.project_norm(y).view(1, 1, N_LAYERS * PER_LAYER) + raw) * 2**-0.5

    def updated(self, layer, new, old, update):
        """The cache with the new entry: at its place in full layers, at the end of a window."""
        if is_full(layer.index):
            return old * (1 - update) + new.expand_as(old) * update
        return torch.cat([old[:, :, 1:], new], dim=2)

    def logits(self, x):
        x = self.norm(x)
        logits = torch.tanh(rows(self.head(columns(x))) / 30) * 30
        token = logits.squeeze(0).argmax(dim=-1)
        return token, logits.squeeze(0).gather(-1, token.unsqueeze(-1)).squeeze(-1), x


class OwnChunk(Chunk):
    """A chunk whose layers have caches of their own."""

    def forward(self, x, full, sliding, update, own, cos_s, sin_s, cos_f, sin_f, ks, vs, kf, vf):
        extra = self.own_inputs(x, own) if self.first else own
        caches, shared, seen = {True: [], False: []}, {}, {True: 0, False: 0}
        for layer in self.layers:
            kind = is_full(layer.index)
            cos, sin, mask = (cos_f, sin_f, full) if kind else (cos_s, sin_s, sliding)
            old, slot = (kf, vf) if kind else (ks, vs), seen[kind]
            seen[kind] += 1
            y = columns(layer.norms[0](x))
            new = layer.keys_values(y, cos, sin)
            pair = [self.updated(layer, n, o[slot].unsqueeze(0), update) for n, o in zip(new, old)]
            caches[kind].append([each.squeeze(0) for each in pair])
            used = [each[..., : layer.size] for each in pair]
            if layer.index in (LAST_SLIDING, LAST_FULL):
                shared[layer.index] = used
            x = layer.rest(x, layer.attend(y, cos, sin, mask, *used), extra)
        stacked = [torch.stack(each) for kind in (False, True) for each in zip(*caches[kind])]
        handed = [extra] if self.first else [*shared[LAST_SLIDING], *shared[LAST_FULL]]
        return (x, *stacked, *handed)


class SharingChunk(Chunk):
    """A chunk whose layers read the caches of the layers 13 and 14."""

    def forward(self, x, full, sliding, own, cos_s, sin_s, cos_f, sin_f, k13, v13, k14, v14):
        for layer in self.layers:
            y = columns(layer.norms[0](x))
            if is_full(layer.index):
                mixed = layer.attend(y, cos_f, sin_f, full, k14, v14)
            else:
                mixed = layer.attend(y, cos_s, sin_s, sliding, k13, v13)
            x = layer.rest(x, mixed, own)
        return self.logits(x) if self.head is not None else x


def rotations():
    sizes_of = {"cos_s": 256, "sin_s": 256, "cos_f": 512, "sin_f": 512}
    return [halves(name, 1, 1, 1, size) for name, size in sizes_of.items()]


def masks():
    return [halves("full", 1, 1, 1, CONTEXT), halves("sliding", 1, 1, 1, WINDOW)]


def own_chunk(first, last):
    n_full = sum(is_full(i) for i in range(first, last))
    n_sliding = last - first - n_full
    inputs = [halves("x", 1, 1, WIDTH), *masks(), halves("update", 1, 1, CONTEXT, 1)]
    inputs += [halves("own", 1, 1, N_LAYERS * PER_LAYER), *rotations()]
    inputs += [halves(name, n_sliding, 1, WINDOW, 512) for name in ("ks", "vs")]
    inputs += [halves(name, n_full, 1, CONTEXT, 512) for name in ("kf", "vf")]
    return hollow(OwnChunk, first, last), inputs


def sharing_chunk(first, last, head=False):
    inputs = [halves("x", 1, 1, WIDTH), *masks(), halves("own", 1, 1, N_LAYERS * PER_LAYER)]
    inputs += [*rotations(), halves("k13", 1, 1, WINDOW, 256), halves("v13", 1, 1, WINDOW, 256)]
    inputs += [halves("k14", 1, 1, CONTEXT, 512), halves("v14", 1, 1, CONTEXT, 512)]
    return hollow(SharingChunk, first, last, head), inputs


class PowerNorm(nn.Module):
    """RMS norm by a power, as transformers spells the ones of Gemma 4."""

    def __init__(self, n, scaled=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n)) if scaled else None

    def forward(self, x):
        x = x * torch.pow(x.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)
        return x if self.weight is None else x * self.weight


class ClippedLinear(nn.Module):
    """A linear layer whose input and output are kept in ranges, which differ from layer to layer.

    Equal ranges would let the converter merge the clips of the inputs of queries, keys and values.
    """

    def __init__(self, n_in, n_out, most):
        super().__init__()
        self.linear, self.most = nn.Linear(n_in, n_out, bias=False), torch.tensor(float(most))

    def forward(self, x):
        x = self.linear(torch.clamp(x, -self.most, self.most))
        return torch.clamp(x, -2 * self.most, 2 * self.most)


class TowerLayer(nn.Module):
    """A layer of the image tower: norms around both sublayers, rotation by row and column."""

    def __init__(self, n, n_ffn, n_heads):
        super().__init__()
        self.shape = (n_heads, n // n_heads)
        self.norms = nn.ModuleList(PowerNorm(n) for _ in range(4))
        self.q_norm, self.k_norm = (PowerNorm(n // n_heads) for _ in range(2))
        self.v_norm = PowerNorm(n // n_heads, False)
        self.q, self.k, self.v, self.out = (ClippedLinear(n, n, most) for most in (8, 9, 10, 11))
        self.gate, self.up = ClippedLinear(n, n_ffn, 12), ClippedLinear(n, n_ffn, 13)
        self.down = ClippedLinear(n_ffn, n, 14)

    def rotate(self, x, cos, sin):
        parts = zip(*(torch.split(each, [32, 32], dim=-1) for each in (x, cos, sin)))
        turned = [p * c.unsqueeze(2) + rotate_half(p) * s.unsqueeze(2) for p, c, s in parts]
        return torch.cat(turned, dim=-1)

    def attend(self, x, cos, sin, mask):
        q, k, v = (f(x).view(1, -1, *self.shape) for f in (self.q, self.k, self.v))
        q, k = self.rotate(self.q_norm(q), cos, sin), self.rotate(self.k_norm(k), cos, sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, self.v_norm(v)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return self.out(y.transpose(1, 2).reshape(1, sizes(x)[1], -1))

    def forward(self, x, cos, sin, mask):
        x = x + self.norms[1](self.attend(self.norms[0](x), cos, sin, mask))
        y = self.norms[2](x)
        y = self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))
        return x + self.norms[3](y)


class Tower(nn.Module):
    """The image tower of Gemma 4 E2B: 48 x 48 patches, means of 3 x 3 of them, 256 tokens."""

    def __init__(self, n=768, n_layers=16, n_heads=12, n_places=10240):
        super().__init__()
        self.stem = nn.Linear(768, n, bias=False)
        self.places = nn.Parameter(torch.ones(2, n_places, n))
        self.layers = nn.ModuleList(TowerLayer(n, 3072, n_heads) for _ in range(n_layers))
        self.project = nn.Linear(n, WIDTH, bias=False)
        self.frequencies = constant(100 ** (-np.arange(0, 32, 2) / 32)[None, :, None])

    def embedded(self, pixels, positions, padded):
        known = positions.clamp(min=0)
        x, y = (F.embedding(known[..., axis], self.places[axis]) for axis in range(2))
        places = torch.where(padded.unsqueeze(-1), 0.0, x + y)
        return self.stem(2 * (pixels - 0.5)) + places

    def angles(self, positions):
        by_axis = []
        for axis in range(2):
            angles = (self.frequencies @ positions[:, :, axis].unsqueeze(1).float()).transpose(1, 2)
            doubled = torch.cat([angles, angles], dim=-1)
            by_axis.append((doubled.cos(), doubled.sin()))
        return (torch.cat(each, dim=-1) for each in zip(*by_axis))

    def pooled(self, x, positions, padded, k=3):
        x = x.masked_fill(padded.unsqueeze(-1), 0.0)
        n = sizes(x)[1] // k**2
        known = positions.clamp(min=0)
        width = known[..., 0].max(dim=-1, keepdim=True)[0] + 1
        cell = torch.div(known, k, rounding_mode="floor")
        cell = cell[..., 0] + torch.div(width, k, rounding_mode="floor") * cell[..., 1]
        weights = F.one_hot(cell.long(), n).float() / k**2
        return weights.transpose(1, 2) @ x * 768**0.5

    def forward(self, pixels, positions):
        padded = (positions == -1).all(dim=-1)
        x, kept = self.embedded(pixels, positions, padded), (~padded).to(pixels.dtype)
        mask = (1.0 - kept.unsqueeze(1).unsqueeze(2) * kept.unsqueeze(1).unsqueeze(3)) * -65504.0
        cos, sin = self.angles(positions)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        x = self.pooled(x, positions, padded)
        x = F.layer_norm(torch.cat([x, -x], dim=-1), (2 * 768,), eps=1e-5).chunk(2, dim=-1)[0]
        return self.project(x)


def tower():
    """The build for the engine, whose ops the source counts: a square of 768 x 768 pixels."""
    return hollow(Tower), [halves("pixel_values", 1, 2304, 768), ints("positions", 1, 2304, 2)]


class SmallLayer(nn.Module):
    """A layer of Gemma 3 270M for one token, with caches as inputs."""

    def __init__(self, n=640, n_ffn=2048, n_heads=4, size=256):
        super().__init__()
        self.n_heads, self.size = n_heads, size
        self.norms = nn.ModuleList(MirrorNorm(n) for _ in range(4))
        self.q_norm, self.k_norm = MirrorNorm(size), MirrorNorm(size)
        self.q, self.out = conv(n, n_heads * size, False), conv(n_heads * size, n, False)
        self.k, self.v = conv(n, size, False), conv(n, size, False)
        self.gate, self.up, self.down = (
            conv(n, n_ffn, False),
            conv(n, n_ffn, False),
            conv(n_ffn, n, False),
        )

    def forward(self, x, cos, sin, mask, update, keys, values):
        y = columns(self.norms[0](x))
        q = self.q_norm(self.q(y).view(1, self.n_heads, 1, self.size))
        k = self.k_norm(self.k(y).view(1, 1, 1, self.size))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        keys = keys * (1 - update) + k * update
        values = values * (1 - update) + self.v(y).view(1, 1, 1, self.size) * update
        mixed = (q @ keys.transpose(-1, -2) * self.size**-0.5 + mask).softmax(dim=-1) @ values
        mixed = rows(self.out(mixed.reshape(1, self.n_heads * self.size, 1, 1)))
        x = x + self.norms[1](mixed)
        y = columns(self.norms[2](x))
        y = self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))
        return x + self.norms[3](rows(y)), keys, values


class Small(nn.Module):
    """Gemma 3 270M; embedding and head share a matrix in the checkpoint and not in the package."""

    def __init__(self, n=640, n_layers=18, vocab=262144):
        super().__init__()
        self.words, self.head = nn.Embedding(vocab, n), conv(n, vocab, False)
        self.layers = nn.ModuleList(SmallLayer() for _ in range(n_layers))
        self.norm = MirrorNorm(n)

    def forward(self, token, cos_s, sin_s, cos_f, sin_f, mask, update, keys, values):
        x, new = self.words(token) * 640**0.5, []
        for i, layer in enumerate(self.layers):
            cos, sin = (cos_f, sin_f) if i % 6 == 5 else (cos_s, sin_s)
            x, k, v = layer(x, cos, sin, mask, update, keys[i : i + 1], values[i : i + 1])
            new.append((k, v))
        logits = rows(self.head(columns(self.norm(x))))
        return logits.argmax(dim=-1), *(torch.cat(each) for each in zip(*new))


def function_gemma(n_cached=1024):
    """The source keeps the caches as states and does not say how long they are."""
    names = ("cos_s", "sin_s", "cos_f", "sin_f")
    inputs = [ints("token", 1, 1), *(halves(name, 1, 1, 1, 256) for name in names)]
    inputs += [halves("mask", 1, 1, 1, n_cached), halves("update", 1, 1, n_cached, 1)]
    inputs += [halves(name, 18, 1, n_cached, 256) for name in ("keys", "values")]
    return hollow(Small), inputs


SUBJECTS = {
    "gemma4_e2b_chunk1": Subject(lambda: own_chunk(0, 8), "float16", "iOS18", "lut4_g32", 1058),
    "gemma4_e2b_chunk2": Subject(lambda: own_chunk(8, 15), "float16", "iOS18", "lut4_g32", 914),
    "gemma4_e2b_chunk3": Subject(
        lambda: sharing_chunk(15, 25), "float16", "iOS18", "lut4_g32", 825
    ),
    "gemma4_e2b_chunk4": Subject(
        lambda: sharing_chunk(25, 35, True), "float16", "iOS18", "lut4_g32", 841
    ),
    "gemma4_e2b_vision": Subject(tower, target="iOS18", n_ops=1970),
    "function_gemma_decode_lut8": Subject(function_gemma, target="iOS18", compress="lut8"),
}
