"""Subjects of the zoo: Whisper, voice activity and speakers."""

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
    "silero_vad_256ms": Subject(silero, target="iOS16", n_ops=357),
    "pyannote_segmentation": Subject(segmentation, precision="float32", n_ops=58),
    "wespeaker_resnet34": Subject(speaker, n_ops=124),
}
