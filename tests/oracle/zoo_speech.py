"""Subjects of the zoo: speech recognition and speakers."""

from zoo_case import Subject
from zoo_layers import *
from zoo_text import PlainBlock


class WhisperBlock(nn.Module):
    """A layer of Whisper's encoder in the (B, C, 1, S) layout with one einsum per head."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = ChannelNorm(n), ChannelNorm(n)
        self.q, self.k, self.v, self.out = conv(n, n), conv(n, n, False), conv(n, n), conv(n, n)
        self.up, self.down = conv(n, 4 * n), conv(4 * n, n)

    def forward(self, x):
        y = self.norm_1(x)
        mixed = split_attention(self.q(y), self.k(y), self.v(y), self.n_heads, scale_first=True)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class WhisperEncoder(nn.Module):
    """The encoder of Whisper, with the layers that whisper.cpp converts for the Neural Engine."""

    def __init__(self, n, n_layers, n_heads, n_mels=80, n_positions=1500):
        super().__init__()
        self.conv_1 = nn.Conv1d(n_mels, n, 3, padding=1)
        self.conv_2 = nn.Conv1d(n, n, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.zeros(n, n_positions))
        self.layers = nn.ModuleList(WhisperBlock(n, n_heads) for _ in range(n_layers))
        self.norm = ChannelNorm(n)

    def forward(self, x):
        x = F.gelu(self.conv_2(F.gelu(self.conv_1(x))))
        x = (x + self.positions).unsqueeze(2)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).squeeze(2).transpose(1, 2)


def whisper(n, n_layers, n_heads, n_mels=80):
    return hollow(WhisperEncoder, n, n_layers, n_heads, n_mels), [floats("logmel", 1, n_mels, 3000)]


class PlainWhisper(nn.Module):
    """The encoder of Whisper on [B, S, C]; `pool` takes the mean over the positions."""

    def __init__(self, n=384, n_layers=4, n_heads=6, pool=False, n_positions=1500):
        super().__init__()
        self.conv_1 = nn.Conv1d(80, n, 3, padding=1)
        self.conv_2 = nn.Conv1d(n, n, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.zeros(n_positions, n))
        self.layers = nn.ModuleList(
            WhisperPlainBlock(n, 4 * n, n_heads, True, 1e-5) for _ in range(n_layers)
        )
        self.norm, self.pool = nn.LayerNorm(n), pool

    def forward(self, x):
        x = F.gelu(self.conv_2(F.gelu(self.conv_1(x)))).permute(0, 2, 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x.mean(dim=1) if self.pool else x


class WhisperPlainBlock(PlainBlock):
    """Scales the queries rather than the scores, and has no bias in the keys."""

    def __init__(self, n, n_ffn, n_heads, pre, eps):
        super().__init__(n, n_ffn, n_heads, pre, eps)
        self.k = nn.Linear(n, n, bias=False)

    def attend(self, x, mask):
        q = self.q(x) * (sizes(x)[2] // self.n_heads) ** -0.5
        q, k, v = (heads_of(each, self.n_heads) for each in (q, self.k(x), self.v(x)))
        return self.out(joined((q @ k.transpose(2, 3)).softmax(dim=-1) @ v))


def whisper_plain(batch, pool):
    return hollow(PlainWhisper, pool=pool), [floats("input_features", batch, 80, 3000)]


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


class ConformerBlock(nn.Module):
    """A layer of FastConformer. In a stream the convolution sees the last 8 frames of the cache."""

    def __init__(self, n, n_heads, length, cached=0, kernel=9, bias=False):
        super().__init__()
        self.ffn_1, self.ffn_2 = FeedForward(n, bias), FeedForward(n, bias)
        self.norm_attention, self.norm_conv, self.norm_out = (nn.LayerNorm(n) for _ in range(3))
        self.attention = RelativeAttention(n, n_heads, length, cached, bias)
        self.cached, self.kernel = cached, kernel
        self.pointwise_1, self.pointwise_2 = (
            nn.Conv1d(n, 2 * n, 1, bias=bias),
            nn.Conv1d(n, n, 1, bias=bias),
        )
        # The batch norm after it is folded into the depthwise convolution.
        self.depthwise = nn.Conv1d(n, n, kernel, groups=n, padding=0 if cached else kernel // 2)

    def convolve(self, x, padded, cache):
        x = F.glu(self.pointwise_1(x.transpose(1, 2)), dim=1)
        x = x.masked_fill(padded, 0.0)
        if cache is not None:
            x = torch.cat([cache, x], dim=2)
        kept = x[:, :, 1 - self.kernel :]
        return self.pointwise_2(F.silu(self.depthwise(x))).transpose(1, 2), kept

    def forward(self, x, hidden, padded, table, channels=None, times=None):
        x = x + 0.5 * self.ffn_1(x)
        y = self.norm_attention(x)
        seen = y if channels is None else torch.cat([channels, y], dim=1)
        x = x + self.attention(y, seen, hidden, table)
        y, kept = self.convolve(self.norm_conv(x), padded, times)
        x = x + y
        x = self.norm_out(x + 0.5 * self.ffn_2(x))
        return (x, seen[:, -self.cached :], kept) if self.cached else x


def halved(n, times=3):
    for _ in range(times):
        n = (n - 1) // 2 + 1
    return n


class Conformer(nn.Module):
    """FastConformer: striding to an eighth, layers.

    With `cached` it is a stream: the caches of attention and convolution come in and go out.
    """

    def __init__(self, n, n_layers, n_heads, n_frames, n_mels, cached=0, drop=0, bias=False):
        super().__init__()
        self.length, self.cached, self.drop = halved(n_frames) - drop, cached, drop
        self.stem = nn.Conv2d(1, 256, 3, 2, 1)
        self.depthwise = nn.ModuleList(nn.Conv2d(256, 256, 3, 2, 1, groups=256) for _ in range(2))
        self.pointwise = nn.ModuleList(nn.Conv2d(256, 256, 1) for _ in range(2))
        self.project = nn.Linear(256 * halved(n_mels), n)
        blocks = (
            ConformerBlock(n, n_heads, self.length, cached, bias=bias) for _ in range(n_layers)
        )
        self.layers = nn.ModuleList(blocks)
        whole = self.length + cached
        distances = np.arange(whole - 1, -self.length, -1)[:, None]
        angles = distances * 1e4 ** (-np.arange(0, n, 2) / n)
        self.table = constant(np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(1, -1, n))
        self.steps = torch.from_numpy(np.arange(whole, dtype=np.int32))[None]

    def encode(self, x, length):
        x = F.relu(self.stem(x.transpose(1, 2).unsqueeze(1)))
        for depthwise, pointwise in zip(self.depthwise, self.pointwise):
            x = F.relu(pointwise(depthwise(x)))
        _, n_channels, n_steps, n_bins = sizes(x)
        x = self.project(x.transpose(1, 2).reshape(1, n_steps, n_channels * n_bins))
        return x[:, self.drop :] if self.drop else x

    def masks(self, length):
        """Positions that scores leave out, and padding."""
        n_valid = (length.float() / 8).ceil().to(torch.int32) + self.cached
        valid = self.steps < n_valid.unsqueeze(1)
        rows = valid[:, self.cached :]
        return ~(rows.unsqueeze(2) & valid.unsqueeze(1)).unsqueeze(1), ~rows.unsqueeze(1), n_valid

    def forward(self, features, length, *caches):
        x = self.encode(features, length)
        hidden, padded, n_valid = self.masks(length)
        if not self.cached:
            for layer in self.layers:
                x = layer(x, hidden, padded, self.table)
            return x.transpose(1, 2), n_valid
        channels, times = [], []
        for layer, channel, time in zip(self.layers, caches[0].unbind(0), caches[1].unbind(0)):
            x, channel, time = layer(x, hidden, padded, self.table, channel, time)
            channels.append(channel)
            times.append(time)
        return x.transpose(1, 2), n_valid, torch.stack(channels), torch.stack(times)


def conformer(n, n_layers, n_frames, n_mels=128, bias=False):
    model = hollow(Conformer, n, n_layers, 8, n_frames, n_mels, bias=bias)
    return model, [floats("mel", 1, n_mels, n_frames), ints("mel_length", 1)]


def stream(n, n_layers, n_frames, n_cached=70, n_mels=128):
    """A chunk of a stream, with 9 frames of the one before, whose 2 encoded steps go."""
    model = hollow(Conformer, n, n_layers, 8, n_frames + 9, n_mels, cached=n_cached, drop=2)
    caches = [floats("channels", n_layers, 1, n_cached, n), floats("times", n_layers, 1, n, 8)]
    return model, [floats("mel", 1, n_mels, n_frames + 9), ints("mel_length", 1), *caches]


class Predictor(nn.Module):
    """The prediction network of a transducer: an embedding and two LSTM layers."""

    def __init__(self, vocab, n=640):
        super().__init__()
        self.words, self.lstm = nn.Embedding(vocab, n), nn.LSTM(n, n, 2)

    def forward(self, targets, h, c):
        y, (h, c) = self.lstm(self.words(targets).transpose(0, 1), (h, c))
        return y.permute(1, 2, 0), h, c


class Joint(nn.Module):
    """The joint network on one frame: the best token; where stated a duration and the best 64."""

    def __init__(self, n_encoder, vocab, n_durations=5, n=640):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(n_encoder, n), nn.Linear(n, n)
        self.out, self.n_durations = nn.Linear(n, vocab + n_durations), n_durations

    def forward(self, encoder_step, decoder_step):
        x = self.encoder(encoder_step.transpose(1, 2)).unsqueeze(2)
        y = self.decoder(decoder_step.transpose(1, 2)).unsqueeze(1)
        logits = self.out(F.relu(x + y))
        if not self.n_durations:
            return logits.argmax(dim=-1).to(torch.int32)
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
    """Log mel features of 16 kHz audio: windows of 25 ms every 10 ms, normalized per bin."""

    def __init__(self, n_samples=240000, n_mels=128):
        super().__init__()
        self.n_frames = n_samples // 160 + 1
        frequencies = np.arange(257)[:, None] * np.arange(512)[None] * 2 * np.pi / 512
        window = np.pad(np.hanning(400), 56)
        waves = np.concatenate([np.cos(frequencies), np.sin(frequencies)]) * window
        self.waves = constant(waves[:, None])
        self.mels = constant(np.random.RandomState(0).rand(n_mels, 257))
        self.steps = torch.from_numpy(np.arange(self.n_frames, dtype=np.int32))

    def forward(self, audio_signal, length):
        x = torch.cat(
            [audio_signal[:, :1], audio_signal[:, 1:] - 0.97 * audio_signal[:, :-1]], dim=1
        )
        x = F.pad(x.unsqueeze(1), (256, 256), mode="reflect")
        real, imaginary = F.conv1d(x, self.waves, stride=160).split(257, dim=1)
        x = (self.mels @ (real * real + imaginary * imaginary) + 2**-24).log()
        n_valid = length // 160 + 1
        kept = (self.steps < n_valid.unsqueeze(1)).float().unsqueeze(1)
        n = kept.sum(dim=2, keepdim=True)
        centered = x - (x * kept).sum(dim=2, keepdim=True) / n
        variance = (centered * centered * kept).sum(dim=2, keepdim=True) / (n - 1)
        return centered / (variance.sqrt() + 1e-5) * kept, n_valid


def spectrogram():
    return hollow(Spectrogram), [floats("audio_signal", 1, 240000), ints("audio_length", 1)]


class Silero(nn.Module):
    """Silero VAD 6: eight chunks of 512 samples, each with the last 64 before it, and an LSTM."""

    def __init__(self):
        super().__init__()
        self.waves = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        shapes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        self.encoder = nn.ModuleList(nn.Conv1d(i, o, 3, s, 1) for i, o, s in shapes)
        self.lstm, self.out = nn.LSTM(128, 128, batch_first=True), nn.Conv1d(128, 1, 1)

    def chunk(self, x, h, c):
        x = self.waves(F.pad(x, (0, 64)).unsqueeze(1))
        x = torch.sqrt(x[:, :129] ** 2 + x[:, 129:] ** 2 + 1e-12)
        for layer in self.encoder:
            x = F.relu(layer(x)).clamp(max=6e4)
        x, (h, c) = self.lstm(x.transpose(1, 2), (h, c))
        return self.out(F.relu(x.transpose(1, 2))).sigmoid(), h, c

    def forward(self, audio, h, c):
        before, audio = audio[:, :64], audio[:, 64:]
        h, c, found = h.unsqueeze(0), c.unsqueeze(0), []
        for i in range(8):
            x = audio[:, 512 * i : 512 * (i + 1)]
            p, h, c = self.chunk(torch.cat([before, x], dim=1), h, c)
            before = x[:, -64:]
            found.append(p)
        misses = 1 - found[0]
        for p in found[1:]:
            misses = misses * (1 - p)
        return 1 - misses, h.squeeze(0), c.squeeze(0)


def silero():
    return hollow(Silero), [
        floats("audio", 1, 4160),
        floats("hidden", 1, 128),
        floats("cell", 1, 128),
    ]


class SincNet(nn.Module):
    """Pyannote's segmentation 3.0: three convolutions with pools, four LSTM layers both ways."""

    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, affine=True)
        self.convs = nn.ModuleList(
            [nn.Conv1d(1, 80, 251, 10, bias=False), nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)]
        )
        self.norms = nn.ModuleList(nn.InstanceNorm1d(n, affine=True) for n in (80, 60, 60))
        self.lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
        self.linear = nn.ModuleList([nn.Linear(256, 128), nn.Linear(128, 128), nn.Linear(128, 7)])

    def forward(self, audio):
        x = self.norm(audio)
        for i, (layer, norm) in enumerate(zip(self.convs, self.norms)):
            x = layer(x).abs() if i == 0 else layer(x)
            x = F.leaky_relu(norm(F.max_pool1d(x, 3)))
        x, _ = self.lstm(x.transpose(1, 2))
        for layer in self.linear[:2]:
            x = F.leaky_relu(layer(x))
        return self.linear[2](x).log_softmax(dim=-1)


def segmentation():
    """The package takes 1 to 32 windows; one has the time of the source."""
    return hollow(SincNet), [floats("audio", ct.RangeDim(1, 32, default=1), 1, 160000)]


class SpeakerNet(nn.Module):
    """WeSpeaker's ResNet-34 of 32 channels on 80 mel bins; mean and deviation under a mask."""

    def __init__(self, n=32, n_embedding=256, n_steps=125):
        super().__init__()
        self.stem, blocks, n_in = nn.Conv2d(1, n, 3, 1, 1), [], n
        for i, n_blocks in enumerate((3, 4, 6, 3)):
            for j in range(n_blocks):
                n_out, stride = n << i, 2 if i and not j else 1
                skip = nn.Conv2d(n_in, n_out, 1, stride) if stride > 1 else nn.Identity()
                blocks.append(
                    nn.ModuleList(
                        [
                            nn.Conv2d(n_in, n_out, 3, stride, 1),
                            nn.Conv2d(n_out, n_out, 3, 1, 1),
                            skip,
                        ]
                    )
                )
                n_in = n_out
        # A convolution interpolates the mask of 589 frames.
        self.resample = nn.Conv1d(1, n_steps, 589, bias=False)
        self.blocks, self.out = nn.ModuleList(blocks), nn.Conv2d(n_in * 10 * 2, n_embedding, 1)

    def pool(self, x, weights):
        """Mean and unbiased deviation // [1, channels, steps] -> [1, 2 * channels]"""
        x, weights = x.unsqueeze(1), weights.unsqueeze(1).unsqueeze(2)
        total = weights.sum(dim=-1) + 1e-4
        mean = (x * weights).sum(dim=-1) / total
        offset = x - mean.unsqueeze(-1)
        lost = (weights * weights).sum(dim=-1) / total
        variance = (offset * offset * weights).sum(dim=-1) / (total - lost + 1e-4)
        return torch.cat([mean, variance.clamp(min=1e-6).sqrt()], dim=-1).squeeze(1)

    def forward(self, fbank, weights):
        weights = self.resample(weights.unsqueeze(1)).squeeze(-1)
        x = F.relu(self.stem(fbank))
        for first, second, skip in self.blocks:
            x = F.relu(second(F.relu(first(x))) + skip(x))
        x = self.out(self.pool(x.flatten(1, 2), weights).unsqueeze(-1).unsqueeze(-1)).flatten(1)
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-4)


def speaker():
    """The source computes the mel bins in a package of their own."""
    return hollow(SpeakerNet), [floats("fbank", 1, 1, 80, 998), floats("weights", 1, 589)]


SUBJECTS = {
    "whisper_tiny_b16_pooled": Subject(lambda: whisper_plain(16, True), target="iOS18", n_ops=101),
    "whisper_tiny_plain": Subject(lambda: whisper_plain(1, False)),
    "whisper_tiny": Subject(lambda: whisper(384, 4, 6)),
    "whisper_base": Subject(lambda: whisper(512, 6, 8)),
    "whisper_medium": Subject(lambda: whisper(1024, 24, 16)),
    "whisper_large_v3_turbo": Subject(lambda: whisper(1280, 32, 20, 128)),
    "parakeet_v3_1501_lut6": Subject(
        lambda: conformer(1024, 24, 1501), compress="lut6", n_ops=1385
    ),
    "parakeet_v3_3000_lut8": Subject(lambda: conformer(1024, 24, 3000), compress="lut8"),
    "parakeet_v3_500_lut8": Subject(lambda: conformer(1024, 24, 500), compress="lut8"),
    "parakeet_ja_1501_int8": Subject(
        lambda: conformer(1024, 24, 1501, 80), compress="int8", n_ops=1386
    ),
    "parakeet_zh_1501": Subject(lambda: conformer(1024, 24, 1501, 80, bias=True), n_ops=1385),
    "parakeet_zh_1501_int8": Subject(
        lambda: conformer(1024, 24, 1501, 80, bias=True), compress="int8", n_ops=1385
    ),
    "parakeet_eou_1280": Subject(lambda: stream(512, 17, 128), n_ops=1174),
    "nemotron_1120_int8": Subject(lambda: stream(1024, 24, 112), compress="int8", n_ops=1672),
    "nemotron_multi_2240_int8": Subject(lambda: stream(1024, 24, 224), compress="int8", n_ops=1680),
    "nemotron_multi_decoder_joint": Subject(predictor_joint, n_ops=28),
    "parakeet_decoder": Subject(predictor, n_ops=24),
    "parakeet_joint": Subject(joint, n_ops=24),
    "parakeet_preprocessor": Subject(spectrogram, precision="float32", n_ops=51),
    "silero_vad_256ms": Subject(silero, target="iOS16", n_ops=357),
    "pyannote_segmentation": Subject(segmentation, precision="float32", n_ops=58),
    "wespeaker_resnet34": Subject(speaker, n_ops=124),
}
