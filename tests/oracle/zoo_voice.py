"""Subjects of the zoo: speech synthesis.

Kokoro's packages take any length; the sentence of its converter has 48 phonemes, which here become
120 frames of 25 ms. The published times are of "one short sentence". PocketTTS and
the estimator of Supertonic are rebuilt from their papers and the sizes of the packages.
"""

from zoo_case import Subject
from zoo_layers import *
from zoo_text import PlainBlock

N_PHONEMES, N_FRAMES, STYLE = 48, 120, 128


class Albert(nn.Module):
    """Twelve times the same layer, on embeddings of 128 numbers."""

    def __init__(self, n=768, n_small=128, vocab=178):
        super().__init__()
        self.words, self.kinds = nn.Embedding(vocab, n_small), nn.Embedding(2, n_small)
        self.positions = nn.Parameter(torch.zeros(1, N_PHONEMES, n_small))
        self.norm, self.project = nn.LayerNorm(n_small), nn.Linear(n_small, n)
        tanh = lambda x: F.gelu(x, approximate="tanh")
        self.layer = PlainBlock(n, 2048, 12, act=tanh)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.positions + self.kinds(torch.zeros_like(input_ids))
        x = self.project(self.norm(x))
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        for _ in range(12):
            x = self.layer(x, mask)
        return x


def both_ways(n_in):
    return nn.LSTM(n_in, 256, batch_first=True, bidirectional=True)


class Durations(nn.Module):
    """Kokoro's second stage: LSTMs in turn with norms scaled by the style, and the text encoder."""

    def __init__(self, n=512):
        super().__init__()
        self.project = nn.Linear(768, n)
        self.lstms = nn.ModuleList(both_ways(n + STYLE) for _ in range(4))
        self.styles = nn.ModuleList(nn.Linear(STYLE, 2 * n) for _ in range(3))
        self.out, self.words = nn.Linear(n, 50), nn.Embedding(178, n)
        self.convs = nn.ModuleList(nn.Conv1d(n, n, 5, padding=2) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(3))
        self.lstm = both_ways(n)

    def text(self, input_ids, padded):
        padded = padded.unsqueeze(1)
        x = self.words(input_ids).transpose(1, 2).masked_fill(padded, 0.0)
        for layer, norm in zip(self.convs, self.norms):
            x = F.leaky_relu(norm(layer(x).transpose(1, -1)).transpose(1, -1), 0.2)
            x = x.masked_fill(padded, 0.0)
        return self.lstm(x.transpose(1, 2))[0].transpose(1, 2).masked_fill(padded, 0.0)

    def styled(self, linear, x, style):
        """x // [1, phonemes, channels]"""
        both = linear(style)
        scale, shift = both.view(both.size(0), both.size(1), 1).chunk(2, dim=1)
        x = F.layer_norm(x, (512,))
        return (1 + scale.transpose(1, -1)) * x + shift.transpose(1, -1)

    def durations(self, x, style, padded):
        """x // [1, channels, phonemes]"""
        x = x.permute(2, 0, 1)
        styles = style.unsqueeze(0).expand(x.shape[0], -1, -1)
        x = torch.cat([x, styles], dim=-1).masked_fill(padded.unsqueeze(-1).transpose(0, 1), 0.0)
        x = x.transpose(0, 1)
        for lstm, linear in zip(self.lstms, self.styles):
            x = self.styled(linear, lstm(x)[0], style).transpose(-1, -2)
            x = torch.cat([x, styles.permute(1, 2, 0)], dim=1)
            x = x.masked_fill(padded.unsqueeze(-1).transpose(-1, -2), 0.0).transpose(-1, -2)
        return x

    def forward(self, bert, input_ids, style, speed, attention_mask):
        padded = attention_mask == 0
        x = self.durations(self.project(bert).transpose(-1, -2), style, padded)
        durations = self.out(self.lstms[3](x)[0]).sigmoid().sum(dim=-1) / speed
        return durations, x + 0, self.text(input_ids, padded) + 0


class StyleNorm(nn.Module):
    """Instance norm, scaled and shifted by the style."""

    def __init__(self, n):
        super().__init__()
        self.norm, self.style = nn.InstanceNorm1d(n, affine=True), nn.Linear(STYLE, 2 * n)

    def forward(self, x, style):
        scale, shift = self.style(style).unsqueeze(2).chunk(2, dim=1)
        return (1 + scale) * self.norm(x) + shift


class StyleBlock(nn.Module):
    """A residual block of Kokoro's decoder, which may double the number of frames."""

    def __init__(self, n_in, n_out, grow=False):
        super().__init__()
        self.norm_1, self.norm_2 = StyleNorm(n_in), StyleNorm(n_out)
        self.conv_1, self.conv_2 = nn.Conv1d(n_in, n_out, 3, 1, 1), nn.Conv1d(n_out, n_out, 3, 1, 1)
        self.skip = nn.Conv1d(n_in, n_out, 1, bias=False) if n_in != n_out else nn.Identity()
        self.grow = nn.ConvTranspose1d(n_in, n_in, 3, 2, 1, 1, groups=n_in) if grow else None

    def forward(self, x, style):
        y = F.leaky_relu(self.norm_1(x, style), 0.2)
        if self.grow is not None:
            y, x = self.grow(y), F.interpolate(x, scale_factor=2.0, mode="nearest")
        y = self.conv_2(F.leaky_relu(self.norm_2(self.conv_1(y), style), 0.2))
        return (y + self.skip(x)) * 0.5**0.5


class Prosody(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = both_ways(640)
        sizes_of = [(512, 512, False), (512, 256, True), (256, 256, False)]
        self.blocks = nn.ModuleList(StyleBlock(*size) for size in sizes_of * 2)
        self.outs = nn.ModuleList(nn.Conv1d(256, 1, 1) for _ in range(2))

    def forward(self, x, style):
        x, found = self.lstm(x.transpose(1, 2))[0].transpose(1, 2), []
        for i, out in enumerate(self.outs):
            y = x
            for block in self.blocks[3 * i : 3 * i + 3]:
                y = block(y, style)
            found.append(out(y).squeeze(1))
        return tuple(found)


class SnakeBlock(nn.Module):
    """Three dilated convolutions of the generator, each with a snake before and after."""

    def __init__(self, n, kernel):
        super().__init__()
        pads = [(kernel - 1) * d // 2 for d in (1, 3, 5)]
        first = (nn.Conv1d(n, n, kernel, padding=p, dilation=d) for p, d in zip(pads, (1, 3, 5)))
        self.first = nn.ModuleList(first)
        self.second = nn.ModuleList(nn.Conv1d(n, n, kernel, padding=kernel // 2) for _ in range(3))
        self.norms = nn.ModuleList(StyleNorm(n) for _ in range(6))
        self.alphas = nn.ParameterList(torch.ones(1, n, 1) for _ in range(6))

    def snake(self, x, i):
        return x + ((x * (self.alphas[i] * 2)).cos() * -0.5 + 0.5) * (1 / self.alphas[i])

    def forward(self, x, style):
        for i, (first, second) in enumerate(zip(self.first, self.second)):
            y = first(self.snake(self.norms[i](x, style), i))
            y = second(self.snake(self.norms[i + 3](y, style), i + 3))
            x = y + x
        return x


class Vocoder(nn.Module):
    """Kokoro's sixth stage, up to the layer before the inverse transform."""

    def __init__(self):
        super().__init__()
        self.pitch, self.noise = (nn.Conv1d(1, 1, 3, 2, 1) for _ in range(2))
        self.text, self.encode = nn.Conv1d(512, 64, 1), StyleBlock(514, 1024)
        self.decode = nn.ModuleList(StyleBlock(1090, 1024) for _ in range(3))
        self.decode.append(StyleBlock(1090, 512, True))
        self.ups = nn.ModuleList([nn.ConvTranspose1d(512, 256, 20, 10, 5)])
        self.ups.append(nn.ConvTranspose1d(256, 128, 12, 6, 3))
        self.blocks = nn.ModuleList(SnakeBlock(n, k) for n in (256, 128) for k in (3, 7, 11))

    def forward(self, text, pitch, noise, source_0, source_1, style):
        f, n = self.pitch(pitch.unsqueeze(1)), self.noise(noise.unsqueeze(1))
        x, text = self.encode(torch.cat([text, f, n], dim=1), style), self.text(text)
        for block in self.decode:
            x = block(torch.cat([x, text, f, n], dim=1), style)
        for i, (up, source) in enumerate(zip(self.ups, (source_0, source_1))):
            x = up(F.leaky_relu(x, 0.1))
            x = (torch.cat([x[:, :, 1:2], x], dim=2) if i else x) + source
            x = sum(block(x, style) for block in self.blocks[3 * i : 3 * i + 3]) / 3
        x = F.leaky_relu(x)
        return x.mean(dim=(1, 2)), x


class Noise(nn.Module):
    """Kokoro's fifth stage: harmonics of the pitch as audio, its spectrum, two residual blocks."""

    def __init__(self, scale=300, n_harmonics=9):
        super().__init__()
        self.scale, self.mix = scale, nn.Linear(n_harmonics, 1)
        self.harmonics = constant(np.arange(1, n_harmonics + 1)[None, None])
        self.real, self.imaginary = (nn.Conv1d(1, 11, 20, 5, bias=False) for _ in range(2))
        self.convs = nn.ModuleList([nn.Conv1d(22, 256, 12, 6, 3), nn.Conv1d(22, 128, 1)])
        self.blocks = nn.ModuleList([SnakeBlock(256, 7), SnakeBlock(128, 11)])

    def audio(self, pitch):
        f = F.interpolate(pitch.unsqueeze(1), scale_factor=float(self.scale)).transpose(1, 2)
        turns = F.avg_pool1d((f * self.harmonics / 24000).transpose(1, 2), self.scale, self.scale)
        phase = turns.cumsum(dim=2) * (2 * math.pi * self.scale)
        phase = F.interpolate(phase, scale_factor=float(self.scale), mode="linear").transpose(1, 2)
        voiced = (f > 10.0).float()
        waves = phase.sin() * 0.1 * voiced + (voiced * 0.003 + (1 - voiced) * 0.1 / 3) * 0.01
        return self.mix(waves).tanh().transpose(1, 2)

    def forward(self, pitch, style):
        x = F.pad(self.audio(pitch), (10, 10), mode="replicate")
        real, imaginary = self.real(x), self.imaginary(x)
        size = (real * real + imaginary * imaginary + 1e-14).sqrt()
        x = torch.cat([size, torch.atan2(imaginary, real)], dim=1)
        pairs = zip(self.convs, self.blocks)
        return tuple(block(layer(x), style) for layer, block in pairs)


def phonemes():
    return [ints("input_ids", 1, N_PHONEMES), ints("attention_mask", 1, N_PHONEMES)]


def durations():
    n = ct.RangeDim(2, 512, default=N_PHONEMES)
    inputs = [halves("bert", 1, n, 768), ints("input_ids", 1, n), halves("style", 1, STYLE)]
    return hollow(Durations), [*inputs, halves("speed", 1), ints("attention_mask", 1, n)]


def prosody():
    return hollow(Prosody), [halves("x", 1, 640, N_FRAMES), halves("style", 1, STYLE)]


def vocoder():
    inputs = [halves("text", 1, 512, N_FRAMES), halves("pitch", 1, 2 * N_FRAMES)]
    inputs += [halves("noise", 1, 2 * N_FRAMES), halves("source_0", 1, 256, 20 * N_FRAMES)]
    inputs += [halves("source_1", 1, 128, 120 * N_FRAMES + 1), halves("style", 1, STYLE)]
    return hollow(Vocoder), inputs


def noise():
    return hollow(Noise), [halves("pitch", 1, 2 * N_FRAMES), halves("style", 1, STYLE)]


class OpenNorm(nn.Module):
    """A layer norm by mean and variance, which the converter leaves in elementary ops."""

    def __init__(self, n, affine=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n)) if affine else None
        self.bias = nn.Parameter(torch.zeros(n)) if affine else None

    def forward(self, x):
        variance = x.var(dim=-1, unbiased=False, keepdim=True)
        x = (x - x.mean(dim=-1, keepdim=True)) / (variance + 1e-6).sqrt()
        return x if self.weight is None else x * self.weight + self.bias


class TimeEmbedding(nn.Module):
    """Waves of a time, an MLP, and a norm by the variance."""

    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(256, n), nn.Linear(n, n)
        self.weight = nn.Parameter(torch.ones(n))
        self.frequencies = constant(np.exp(-math.log(1e4) * np.arange(128) / 128)[None])

    def forward(self, x):
        angles = x * self.frequencies
        x = self.down(F.silu(self.up(torch.cat([angles.cos(), angles.sin()], dim=-1))))
        return x * (self.weight * (x.var(dim=-1, keepdim=True) + 1e-5).rsqrt())


class FlowBlock(nn.Module):
    """A residual MLP whose norm is scaled, shifted and gated by the condition."""

    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = OpenNorm(n), nn.Linear(n, n), nn.Linear(n, n)
        self.condition = nn.Linear(n, 3 * n)

    def forward(self, x, y):
        shift, scale, gate = self.condition(F.silu(y)).chunk(3, dim=-1)
        x = x + gate * self.down(F.silu(self.up(self.norm(x) * (1 + scale) + shift)))
        return x


class Flow(nn.Module):
    """PocketTTS' decoder of one latent: eight Euler steps of an MLP of six blocks."""

    def __init__(self, n=512, n_latent=32, n_condition=1024, n_blocks=6, n_steps=8):
        super().__init__()
        self.n_steps = n_steps
        self.first, self.condition = nn.Linear(n_latent, n), nn.Linear(n_condition, n)
        self.times = nn.ModuleList(TimeEmbedding(n) for _ in range(2))
        self.blocks = nn.ModuleList(FlowBlock(n) for _ in range(n_blocks))
        self.norm = OpenNorm(n, False)
        self.last_condition, self.last = nn.Linear(n, 2 * n), nn.Linear(n, n_latent)

    def velocity(self, x, condition, start, end):
        y = condition + (self.times[0](start) + self.times[1](end)) * 0.5
        x = self.first(x)
        for block in self.blocks:
            x = block(x, y)
        shift, scale = self.last_condition(F.silu(y)).chunk(2, dim=-1)
        return self.last(self.norm(x) * (1 + scale) + shift)

    def forward(self, x, condition, times):
        condition = self.condition(condition)
        for i in range(self.n_steps):
            start, end = times[:, i : i + 1], times[:, i + 1 : i + 2]
            x = x + self.velocity(x, condition, start, end) / self.n_steps
        return x


def flow():
    return hollow(Flow), [halves("x", 1, 32), halves("condition", 1, 1024), halves("times", 1, 9)]


class NextBlock(nn.Module):
    """ConvNeXt in one dimension: a depthwise convolution, a norm, and an FFN, scaled."""

    def __init__(self, n, n_ffn, kernel, dilation=1):
        super().__init__()
        pad = (kernel - 1) * dilation // 2
        self.depthwise = nn.Conv1d(n, n, kernel, padding=pad, dilation=dilation, groups=n)
        self.norm = nn.LayerNorm(n)
        self.up, self.down = nn.Conv1d(n, n_ffn, 1), nn.Conv1d(n_ffn, n, 1)
        self.scale = nn.Parameter(torch.ones(1, n, 1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).transpose(1, 2)).transpose(1, 2)
        return x + self.scale * self.down(F.gelu(self.up(y)))


class CrossAttention(nn.Module):
    def __init__(self, n, n_context, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.out = nn.Linear(n, n), nn.Linear(n, n)
        self.k, self.v = nn.Linear(n_context, n), nn.Linear(n_context, n)

    def forward(self, x, context):
        q, k, v = self.q(x), self.k(context), self.v(context)
        return self.out(joined(attention(*(heads_of(each, self.n_heads) for each in (q, k, v)))))


class SuperEstimator(nn.Module):
    """Supertonic's estimator of one step: four times dilated blocks, the time, text and style."""

    def __init__(self, n=512, n_latent=144):
        super().__init__()
        self.first, self.last = nn.Conv1d(n_latent, n, 1), nn.Conv1d(n, n_latent, 1)
        dilations = [1, 2, 4, 8, 1, 1] * 4 + [1] * 4
        self.blocks = nn.ModuleList(NextBlock(n, 4 * n, 5, d) for d in dilations)
        self.times = nn.ModuleList(nn.Linear(64, n) for _ in range(4))
        self.texts = nn.ModuleList(CrossAttention(n, 256, 8) for _ in range(4))
        self.styles = nn.ModuleList(CrossAttention(n, 256, 2) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(8))
        self.time = nn.Sequential(nn.Linear(64, 256), nn.Mish(), nn.Linear(256, 64))
        self.frequencies = constant(np.exp(-math.log(1e4) * np.arange(32) / 32)[None])

    def look(self, norm, module, x, context):
        y = x.transpose(1, 2)
        return norm(y + module(y, context)).transpose(1, 2)

    def forward(self, latent, text, style, mask, step):
        angles = step.unsqueeze(1) * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, text = self.first(latent) * mask, text.transpose(1, 2)
        for i in range(4):
            blocks = self.blocks[6 * i : 6 * i + 6]
            for block in blocks[:4]:
                x = block(x) * mask
            x = blocks[4](x + self.times[i](time).unsqueeze(2)) * mask
            x = self.look(self.norms[2 * i], self.texts[i], x, text)
            x = blocks[5](x) * mask
            x = self.look(self.norms[2 * i + 1], self.styles[i], x, style)
        for block in self.blocks[24:]:
            x = block(x) * mask
        return latent + self.last(x) * mask / 8


def super_estimator():
    inputs = [halves("latent", 1, 144, 128), halves("text", 1, 256, 128)]
    inputs += [halves("style", 1, 50, 256), halves("mask", 1, 1, 128), halves("step", 1)]
    return hollow(SuperEstimator), inputs


SUBJECTS = {
    "kokoro_albert": Subject(lambda: (hollow(Albert), phonemes()), compress="lut8", n_ops=310),
    "kokoro_post_albert": Subject(durations, compress="lut8", n_ops=98),
    "kokoro_prosody": Subject(prosody, compress="lut8", n_ops=138),
    "kokoro_noise": Subject(noise, precision="float32", compress="lut8", n_ops=239),
    "kokoro_vocoder": Subject(vocoder, compress="lut8", n_ops=655),
    "pocket_tts_flow": Subject(flow, n_ops=1252),
    "supertonic_estimator_lut4": Subject(super_estimator, compress="lut4", n_ops=679),
}
