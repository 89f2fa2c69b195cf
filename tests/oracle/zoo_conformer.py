"""Subjects of the zoo: FastConformer encoders, whole and streaming, and the parts of transducers.

FluidInference traces the modules of NeMo in thin wrappers and asks for outputs of float32 (its
conversion scripts are public). So masks stand where NeMo computes them: below each convolution of
the downsampling, in the scores, and in the convolution of each layer. A stream takes its caches
with the batch first.
"""

from zoo_case import Subject
from zoo_layers import *

# What coremltools 8.3 lacked, with which the multilingual packages were converted.
BEFORE_9 = ("common::guard_negative_gather_indices",)


class FeedForward(nn.Module):
    def __init__(self, n, bias=False):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.up, self.down = nn.Linear(n, 4 * n, bias), nn.Linear(4 * n, n, bias)

    def forward(self, x):
        return self.down(F.silu(self.up(self.norm(x))))


class RelativeAttention(nn.Module):
    """Attention with relative positions: a term of content and one of distance, shifted into place.

    `cached` positions of earlier chunks come before the ones of `x` in keys and values.
    """

    def __init__(self, n, n_heads, length, cached=0, bias=False):
        super().__init__()
        self.n_heads, self.size, self.length, self.whole = (
            n_heads,
            n // n_heads,
            length,
            length + cached,
        )
        self.q, self.k, self.v, self.out = (nn.Linear(n, n, bias) for _ in range(4))
        self.position = nn.Linear(n, n, bias=False)
        self.bias_u = nn.Parameter(torch.zeros(n_heads, self.size))
        self.bias_v = nn.Parameter(torch.zeros(n_heads, self.size))

    def shifted(self, x):
        """[1, heads, length, n] of distances -> [1, heads, length, whole] of positions"""
        n = sizes(x)[3]
        x = F.pad(x, (1, 0)).view(1, self.n_heads, n + 1, self.length)
        return x[:, :, 1:].view(1, self.n_heads, self.length, n)[:, :, :, : self.whole]

    def forward(self, x, seen, hidden, table):
        q = self.q(x).view(1, self.length, self.n_heads, self.size)
        k, v = heads_of(self.k(seen), self.n_heads), heads_of(self.v(seen), self.n_heads)
        p = heads_of(self.position(table), self.n_heads)
        by_distance = (q + self.bias_v).transpose(1, 2) @ p.transpose(2, 3)
        by_content = (q + self.bias_u).transpose(1, 2) @ k.transpose(2, 3)
        scores = (by_content + self.shifted(by_distance)) / math.sqrt(self.size)
        scores = scores.masked_fill(hidden, -1e4).softmax(dim=-1).masked_fill(hidden, 0.0)
        return self.out(joined(scores @ v))


class Convolution(nn.Module):
    """The convolution of a layer. A stream prepends 8 cached frames and normalizes by layer."""

    def __init__(self, n, stream, kernel=9, bias=False):
        super().__init__()
        self.kernel, self.stream = kernel, stream
        self.norm = nn.LayerNorm(n)
        self.expand, self.project = nn.Conv1d(n, 2 * n, 1, bias=bias), nn.Conv1d(n, n, 1, bias=bias)
        # Of the whole encoders the batch norm after it is folded in.
        self.depthwise = nn.Conv1d(n, n, kernel, groups=n)
        self.inner = nn.LayerNorm(n) if stream else None

    def forward(self, x, padded, cache=None):
        x = F.glu(self.expand(self.norm(x).transpose(1, 2)), dim=1).masked_fill(padded, 0.0)
        if self.stream:
            x = torch.cat([cache, x], dim=2)
            cache = x[:, :, 1 - self.kernel :]
            x = self.inner(self.depthwise(x).transpose(1, 2)).transpose(1, 2)
        else:
            x = self.depthwise(F.pad(x, (self.kernel // 2, self.kernel // 2)))
        return self.project(F.silu(x)).transpose(1, 2), cache


class ConformerBlock(nn.Module):
    """A layer of FastConformer. In a stream it takes and gives its two caches."""

    def __init__(self, n, n_heads, length, cached=0, bias=False):
        super().__init__()
        self.ffn_1, self.ffn_2 = FeedForward(n, bias), FeedForward(n, bias)
        self.norm_attention, self.norm_out = nn.LayerNorm(n), nn.LayerNorm(n)
        self.attention = RelativeAttention(n, n_heads, length, cached, bias)
        self.convolution = Convolution(n, cached > 0, bias=bias)
        self.length = length

    def forward(self, x, hidden, padded, table, channels=None, times=None):
        x = x + self.ffn_1(x) * 0.5
        y = self.norm_attention(x)
        seen = y
        if channels is not None:
            seen = torch.cat([channels, y], dim=1)
            channels = torch.cat([channels[:, self.length :], y], dim=1)
        x = x + self.attention(y, seen, hidden, table)
        y, times = self.convolution(x, padded, times)
        x = x + y
        x = self.norm_out(x + self.ffn_2(x) * 0.5)
        return x if channels is None else (x, channels, times)


class Downsampling(nn.Module):
    """Three strided convolutions to an eighth. A causal one pads two rows before and one after.

    Since its release 2.5 NeMo has each layer see its input under a mask of lengths; before, the
    lengths alone were computed.
    """

    def __init__(self, n, n_mels, causal, masked):
        super().__init__()
        self.pads, self.masked = (2, 1, 2, 1) if causal else None, masked
        edge = 0 if causal else 1
        layers = [nn.Conv2d(1, 256, 3, 2, edge), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Conv2d(256, 256, 3, 2, edge, groups=256), nn.Conv2d(256, 256, 1)]
            layers.append(nn.ReLU())
        self.layers = nn.ModuleList(layers)
        self.project = nn.Linear(256 * strided(n_mels, causal), n)

    def mask(self, x, length):
        """1 for frames of the audio, 0 for padding // [1, frames, bins]"""
        _, _, n_frames, n_bins = sizes(x)
        steps = torch.arange(n_frames).expand(1, n_frames)
        kept = steps < length.long().unsqueeze(1)
        return kept.unsqueeze(-1).expand(1, n_frames, n_bins).to(x.dtype)

    def hide(self, x, length):
        return x * self.mask(x, length).unsqueeze(1).expand(*sizes(x)) if self.masked else x

    def forward(self, x, length):
        x, length = x.unsqueeze(1), length.float()
        for layer in self.layers:
            x = self.hide(x, length)
            is_strided = getattr(layer, "stride", (1, 1)) != (1, 1)
            if self.pads and is_strided:
                x = F.pad(x, self.pads)
            x = layer(x)
            if is_strided:
                length = self.halved(length)
        x = self.hide(x, length)
        _, n_channels, n_steps, n_bins = sizes(x)
        x = self.project(x.transpose(1, 2).reshape(1, n_steps, n_channels * n_bins))
        return x, length.long()

    def halved(self, length):
        before, after = self.pads[:2] if self.pads else (1, 1)
        if self.masked:
            return (length + before + after - 3) // 2 + 1
        return torch.floor((length + (before + after - 3)) / 2 + 1.0)


def strided(n, causal=False):
    """What three convolutions of stride 2 leave of `n` frames or bins."""
    for _ in range(3):
        n = n // 2 + 1 if causal else (n - 1) // 2 + 1
    return n


class Conformer(nn.Module):
    """FastConformer: striding to an eighth, layers.

    With `cached` it is a stream of chunks of `chunk` steps: the caches of attention and convolution
    come in and go out, the first two steps repeat the chunk before and go, and a step sees the
    cached ones and those of its chunk.
    """

    def __init__(
        self,
        n,
        n_layers,
        n_frames,
        n_mels,
        cached=0,
        chunk=14,
        scaled=False,
        bias=False,
        masked=True,
    ):
        super().__init__()
        self.drop = 2 if cached else 0
        self.length, self.cached, self.chunk = strided(n_frames, cached) - self.drop, cached, chunk
        self.whole, self.scale = self.length + cached, math.sqrt(n) if scaled else None
        self.downsampling = Downsampling(n, n_mels, cached > 0, masked)
        blocks = (ConformerBlock(n, 8, self.length, cached, bias=bias) for _ in range(n_layers))
        self.layers = nn.ModuleList(blocks)
        distances = np.arange(self.whole - 1, -self.whole, -1)[:, None]
        angles = distances * 1e4 ** (-np.arange(0, n, 2) / n)
        self.table = constant(np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(1, -1, n))

    def encode(self, features, length):
        x, length = self.downsampling(features.transpose(1, 2), length)
        if self.drop:
            x, length = x[:, self.drop :], (length - self.drop).clamp(min=0)
        return (x if self.scale is None else x * self.scale), length

    def visible(self):
        """What the context leaves visible // [1, whole, whole]"""
        visible = torch.ones(1, self.whole, self.whole, dtype=torch.bool)
        if not self.cached:
            return visible
        chunks = torch.arange(self.whole) // self.chunk
        behind = chunks.unsqueeze(1) - chunks.unsqueeze(0)
        in_reach = (behind <= self.cached // self.chunk).logical_and(behind >= 0)
        return visible.logical_and(in_reach.unsqueeze(0))

    def masks(self, length, n_cached):
        """Positions that scores leave out, and padding."""
        steps = torch.arange(self.whole).expand(1, self.whole)
        valid = steps < (length + self.cached).unsqueeze(-1)
        if n_cached is not None:
            valid = (steps >= (torch.neg(n_cached) + self.cached).unsqueeze(-1)).logical_and(valid)
        pairs = valid.unsqueeze(1).repeat([1, self.whole, 1])
        pairs = pairs.logical_and(pairs.transpose(1, 2))
        hidden, padded = ~pairs.logical_and(self.visible()), ~valid
        if n_cached is not None:
            hidden, padded = hidden[:, self.cached :], padded[:, self.cached :]
        return hidden.unsqueeze(1), padded.unsqueeze(1)

    def run(self, features, length, channels=None, times=None, n_cached=None):
        x, length = self.encode(features, length)
        hidden, padded = self.masks(length, n_cached)
        if channels is None:
            for layer in self.layers:
                x = layer(x, hidden, padded, self.table)
            return x.transpose(1, 2), length
        kept = []
        for i, layer in enumerate(self.layers):
            x, *pair = layer(x, hidden, padded, self.table, channels[i], times[i])
            kept.append(pair)
        channels, times = (torch.stack(each, dim=0) for each in zip(*kept))
        n_cached = torch.clamp(n_cached + self.length, max=self.cached)
        return x.transpose(1, 2), length, channels, times, n_cached

    def forward(self, features, length, *caches):
        if not caches:
            return self.run(features, length)
        channels, times, n_cached = caches
        caches = (channels.transpose(0, 1), times.transpose(0, 1), n_cached)
        x, length, channels, times, n_cached = self.run(features, length, *caches)
        return x, length, channels.transpose(0, 1), times.transpose(0, 1), n_cached


class PromptedConformer(Conformer):
    """A stream whose output an MLP turns to one of 128 languages."""

    def __init__(self, n, *arguments, **options):
        super().__init__(n, *arguments, **options)
        self.prompt = nn.Sequential(nn.Linear(n + 128, 2 * n), nn.ReLU(), nn.Linear(2 * n, n))

    def forward(self, features, length, channels, times, n_cached, prompt):
        caches = (channels, times, n_cached)
        x, length, channels, times, n_cached = super().forward(features, length, *caches)
        language = F.one_hot(prompt.long(), 128).float().unsqueeze(1).expand(1, self.length, 128)
        x = self.prompt(torch.cat([x.transpose(1, 2), language], dim=-1)).transpose(1, 2)
        return x, length, channels, times, n_cached


def conformer(n, n_layers, n_frames, n_mels=128, bias=False):
    model = hollow(Conformer, n, n_layers, n_frames, n_mels, bias=bias, masked=False)
    return model, [floats("mel", 1, n_mels, n_frames), ints("mel_length", 1)]


def stream(n, n_layers, n_frames, n_mels=128, n_cached=70, kind=Conformer, **options):
    """A chunk of a stream, with 9 frames of the one before, whose 2 encoded steps go."""
    model = hollow(kind, n, n_layers, n_frames + 9, n_mels, n_cached, **options)
    inputs = [floats("mel", 1, n_mels, n_frames + 9), ints("mel_length", 1)]
    inputs += [floats("channels", 1, n_layers, n_cached, n), floats("times", 1, n_layers, n, 8)]
    inputs.append(ints("n_cached", 1))
    return model, inputs if kind is Conformer else [*inputs, ints("prompt", 1)]


class Predictor(nn.Module):
    """The prediction network of a transducer: an embedding and two LSTM layers."""

    def __init__(self, vocab, n=640):
        super().__init__()
        self.words, self.lstm = nn.Embedding(vocab, n), nn.LSTM(n, n, 2)

    def forward(self, targets, h, c):
        y, (h, c) = self.lstm(self.words(targets).transpose(0, 1), (h, c))
        return y.permute(1, 2, 0), h, c


class Joint(nn.Module):
    """The joint network on one frame: logits; with durations the best token, duration and 64."""

    def __init__(self, n_encoder, vocab, n_durations=5, n=640):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(n_encoder, n), nn.Linear(n, n)
        self.out, self.n_durations = nn.Linear(n, vocab + n_durations), n_durations

    def forward(self, encoder_step, decoder_step):
        x = self.encoder(encoder_step.transpose(1, 2)).unsqueeze(2)
        y = self.decoder(decoder_step.transpose(1, 2)).unsqueeze(1)
        logits = self.out(F.relu(x + y))
        if not self.n_durations:
            return logits
        tokens, durations = logits[..., : -self.n_durations], logits[..., -self.n_durations :]
        token = tokens.argmax(dim=-1).to(torch.int32)
        probability = tokens.softmax(dim=-1).gather(-1, token.long().unsqueeze(-1)).squeeze(-1)
        best, ids = tokens.topk(64, dim=-1)
        duration = durations.argmax(dim=-1).to(torch.int32)
        return token, probability, duration, ids.to(torch.int32), best


class PredictorJoint(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.predictor, self.joint = Predictor(vocab), Joint(1024, vocab, 0)

    def forward(self, encoder_step, targets, h, c):
        y, h, c = self.predictor(targets, h, c)
        return self.joint(encoder_step, y), h, c


def state(name):
    return floats(name, 2, 1, 640)


def predictor(vocab=8193):
    return hollow(Predictor, vocab), [ints("targets", 1, 1), state("h_in"), state("c_in")]


def joint(vocab=8193):
    return hollow(Joint, 1024, vocab), [
        floats("encoder_step", 1, 1024, 1),
        floats("decoder_step", 1, 640, 1),
    ]


def predictor_joint(vocab=13088):
    inputs = [
        floats("encoder_step", 1, 1024, 1),
        ints("targets", 1, 1),
        state("h_in"),
        state("c_in"),
    ]
    return hollow(PredictorJoint, vocab), inputs


class Spectrogram(nn.Module):
    """Log mel features of 16 kHz audio: windows of 25 ms every 10 ms, normalized per bin.

    As NeMo 2.3 spells them: frames past the length count for nothing and become 0.
    """

    def __init__(self, n_mels=128):
        super().__init__()
        self.window = constant(np.hanning(400))
        self.mels = constant(np.random.RandomState(0).rand(1, n_mels, 257))

    def normalized(self, x, n_valid):
        steps = torch.arange(x.shape[2]).unsqueeze(0).expand(x.shape[0], x.shape[2])
        valid = steps < n_valid.unsqueeze(1)
        n = valid.sum(dim=1)
        mean = torch.where(valid.unsqueeze(1), x, 0.0).sum(dim=2) / n.unsqueeze(1)
        offset = torch.where(valid.unsqueeze(1), x - mean.unsqueeze(2), 0.0)
        deviation = torch.sqrt((offset**2).sum(dim=2) / (n.unsqueeze(1) - 1.0))
        return (x - mean.unsqueeze(2)) / (deviation + 1e-5).unsqueeze(2)

    def forward(self, x, length):
        n_valid = (torch.floor_divide(length.long() + 512 - 512, 160) + 1).long()
        x = torch.cat([x[:, 0].unsqueeze(1), x[:, 1:] - 0.97 * x[:, :-1]], dim=1)
        spectrum = torch.stft(x, 512, 160, 400, self.window, return_complex=True)
        x = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 0).pow(2.0)
        x = self.normalized(torch.log(self.mels @ x + 2**-24), n_valid)
        steps = torch.arange(x.shape[2]).repeat(x.shape[0], 1)
        return x.masked_fill((steps >= n_valid.unsqueeze(1)).unsqueeze(1), 0.0), n_valid


def spectrogram():
    """One window of 15 s. For a range of lengths the converter makes 73 ops, not the 51 counted."""
    return hollow(Spectrogram), [floats("audio_signal", 1, 240000), ints("audio_length", 1)]


def floats_out(*names):
    return [ct.TensorType(name=name, dtype=np.float32) for name in names]


def ints_out(*names):
    return [ct.TensorType(name=name, dtype=np.int32) for name in names]


ENCODED = [*floats_out("encoder"), *ints_out("encoder_length")]
STREAMED = [*floats_out("encoded"), *ints_out("encoded_length")]
STREAMED += [*floats_out("channels_out", "times_out"), *ints_out("n_cached_out")]

SUBJECTS = {
    "parakeet_v3_1501_lut6": Subject(
        lambda: conformer(1024, 24, 1501), compress="lut6", n_ops=1385, outputs=ENCODED
    ),
    "parakeet_v3_3000_lut8": Subject(lambda: conformer(1024, 24, 3000), compress="lut8"),
    "parakeet_v3_500_lut8": Subject(lambda: conformer(1024, 24, 500), compress="lut8"),
    "parakeet_ja_1501_int8": Subject(
        lambda: conformer(1024, 24, 1501, 80), compress="int8", n_ops=1386, outputs=ENCODED
    ),
    "parakeet_zh_1501": Subject(
        lambda: conformer(1024, 24, 1501, 80, bias=True), n_ops=1385, outputs=ENCODED
    ),
    "parakeet_zh_1501_int8": Subject(
        lambda: conformer(1024, 24, 1501, 80, bias=True),
        compress="int8",
        n_ops=1385,
        outputs=ENCODED,
    ),
    "parakeet_eou_1280": Subject(
        lambda: stream(512, 17, 128, chunk=2, scaled=True, masked=False),
        n_ops=1174,
        outputs=STREAMED,
    ),
    "nemotron_1120_int8": Subject(
        lambda: stream(1024, 24, 112), compress="int8", n_ops=1672, outputs=STREAMED
    ),
    "nemotron_multi_2240_int8": Subject(
        lambda: stream(1024, 24, 224, n_cached=56, kind=PromptedConformer),
        compress="int8",
        n_ops=1680,
        outputs=STREAMED,
        without=BEFORE_9,
    ),
    "nemotron_multi_decoder_joint": Subject(
        predictor_joint,
        n_ops=28,
        outputs=floats_out("logits", "h_out", "c_out"),
        without=BEFORE_9,
    ),
    "parakeet_decoder": Subject(
        predictor, n_ops=24, outputs=floats_out("decoder", "h_out", "c_out")
    ),
    "parakeet_joint": Subject(
        joint,
        n_ops=24,
        outputs=[
            *ints_out("token_id"),
            *floats_out("token_prob"),
            *ints_out("duration", "top_k_ids"),
            *floats_out("top_k_logits"),
        ],
    ),
    "parakeet_preprocessor": Subject(
        spectrogram, n_ops=51, outputs=[*floats_out("mel"), *ints_out("mel_length")]
    ),
}
