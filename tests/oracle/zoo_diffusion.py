"""Subjects of the zoo: Stable Diffusion, with attention split by head as Apple converts it."""

from zoo_case import Subject
from zoo_layers import *
from zoo_text import PlainBlock


class ResidualBlock(nn.Module):
    """Two convolutions with group norms; the embedding of the time is added between them."""

    def __init__(self, n_in, n_out, n_time=1280):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, n_in), nn.GroupNorm(32, n_out)
        self.conv_1, self.conv_2 = nn.Conv2d(n_in, n_out, 3, 1, 1), nn.Conv2d(n_out, n_out, 3, 1, 1)
        self.time = conv(n_time, n_out) if n_time else None
        self.skip = conv(n_in, n_out) if n_in != n_out else nn.Identity()

    def forward(self, x, time=None):
        y = self.conv_1(F.silu(self.norm_1(x)))
        if self.time is not None:
            y = y + self.time(F.silu(time))
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class SplitAttention(nn.Module):
    def __init__(self, n, n_context, n_heads, chunk):
        super().__init__()
        self.n_heads, self.chunk = n_heads, chunk
        self.q, self.out = conv(n, n, False), conv(n, n)
        self.k, self.v = conv(n_context, n, False), conv(n_context, n, False)

    def forward(self, x, context):
        mixed = split_attention(
            self.q(x), self.k(context), self.v(context), self.n_heads, chunk=self.chunk
        )
        return self.out(mixed)


class TransformerBlock(nn.Module):
    """Attention to itself, to the text, and a gated FFN, in the (B, C, 1, S) layout."""

    def __init__(self, n, n_context, n_heads, chunk):
        super().__init__()
        self.norms = nn.ModuleList(ChannelNorm(n) for _ in range(3))
        self.own = SplitAttention(n, n, n_heads, chunk)
        self.text = SplitAttention(n, n_context, n_heads, chunk)
        self.up, self.down = conv(n, 8 * n), conv(4 * n, n)

    def forward(self, x, context):
        y = self.norms[0](x)
        x = x + self.own(y, y)
        x = x + self.text(self.norms[1](x), context)
        y, gate = self.up(self.norms[2](x)).chunk(2, dim=1)
        return x + self.down(y * F.gelu(gate))


class Transformer(nn.Module):
    """Transformer blocks over the pixels."""

    def __init__(self, n, n_context, n_heads, n_blocks, chunk):
        super().__init__()
        self.norm = nn.GroupNorm(32, n, 1e-6)
        self.first, self.last = conv(n, n), conv(n, n)
        blocks = (TransformerBlock(n, n_context, n_heads, chunk) for _ in range(n_blocks))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x, context):
        batch, n, height, width = sizes(x)
        y = self.first(self.norm(x)).view(batch, n, 1, height * width)
        for block in self.blocks:
            y = block(y, context)
        return x + self.last(y.view(batch, n, height, width))


class Unet(nn.Module):
    """The U-Net of Stable Diffusion.

    `depths` are the transformer blocks after each residual block of a level, `n_heads` its heads,
    `n_extra` the width of the pooled text and sizes of SDXL.
    """

    def __init__(self, widths, depths, n_heads, n_context, middle=None, n_extra=0, chunk=None):
        super().__init__()
        self.n_levels = len(widths)

        def pair(level, n_in, n_out):
            depth = depths[level]
            mixer = Transformer(n_out, n_context, n_heads[level], depth, chunk) if depth else None
            return nn.ModuleList([ResidualBlock(n_in, n_out), *([mixer] if mixer else [])])

        n = widths[0]
        self.times = nn.Sequential(nn.Linear(n, 1280), nn.SiLU(), nn.Linear(1280, 1280))
        self.extra = None
        if n_extra:
            self.extra = nn.Sequential(nn.Linear(n_extra, 1280), nn.SiLU(), nn.Linear(1280, 1280))
        self.frequencies = constant(np.exp(-math.log(1e4) * np.arange(n // 2) / (n // 2))[None])
        self.size_frequencies = constant(np.exp(-math.log(1e4) * np.arange(128) / 128)[None])
        self.stem = nn.Conv2d(4, n, 3, 1, 1)
        skips, down, shrink = [n], [], []
        for level, width in enumerate(widths):
            for _ in range(2):
                down.append(pair(level, n, width))
                n = width
                skips.append(n)
            if level + 1 < len(widths):
                shrink.append(nn.Conv2d(n, n, 3, 2, 1))
                skips.append(n)
        self.down, self.shrink = nn.ModuleList(down), nn.ModuleList(shrink)
        middle = middle or max(depths)
        self.middle = nn.ModuleList(
            [
                ResidualBlock(n, n),
                Transformer(n, n_context, n_heads[-1], middle, chunk),
                ResidualBlock(n, n),
            ]
        )
        up, grow = [], []
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                up.append(pair(level, n + skips.pop(), width))
                n = width
            if level:
                grow.append(nn.Conv2d(n, n, 3, 1, 1))
        self.up, self.grow = nn.ModuleList(up), nn.ModuleList(grow)
        self.norm, self.out = nn.GroupNorm(32, n), nn.Conv2d(n, 4, 3, 1, 1)

    def waves(self, x, frequencies):
        angles = x.unsqueeze(-1) * frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def embed(self, timestep, time_ids, text_embeds):
        time = self.times(self.waves(timestep, self.frequencies))
        if self.extra is not None:
            waves = self.waves(time_ids, self.size_frequencies).flatten(1)
            time = time + self.extra(torch.cat([text_embeds, waves], dim=-1))
        return time.unsqueeze(-1).unsqueeze(-1)

    def forward(self, sample, timestep, context, time_ids=None, text_embeds=None):
        time = self.embed(timestep, time_ids, text_embeds)

        def run(pair, x):
            x = pair[0](x, time)
            return pair[1](x, context) if len(pair) > 1 else x

        x = self.stem(sample)
        skips = [x]
        for i, pair in enumerate(self.down):
            x = run(pair, x)
            skips.append(x)
            if i % 2 and i // 2 < len(self.shrink):
                x = self.shrink[i // 2](x)
                skips.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time), context), time)
        for i, pair in enumerate(self.up):
            x = run(pair, torch.cat([x, skips.pop()], dim=1))
            if i % 3 == 2 and i // 3 < len(self.grow):
                x = self.grow[i // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def unet(size, n_context, **options):
    inputs = [halves("sample", 2, 4, size, size), halves("timestep", 2)]
    inputs.append(halves("encoder_hidden_states", 2, n_context, 1, 77))
    if "n_extra" in options:
        inputs += [halves("time_ids", 2, 6), halves("text_embeds", 2, 1280)]
    return hollow(Unet, n_context=n_context, **options), inputs


def sd14_unet():
    return unet(64, 768, widths=[320, 640, 1280, 1280], depths=[1, 1, 1, 0], n_heads=[8, 8, 8, 8])


def sd21_unet():
    levels = {"widths": [320, 640, 1280, 1280], "depths": [1, 1, 1, 0], "n_heads": [5, 10, 20, 20]}
    return unet(64, 1024, chunk=512, **levels)


def sdxl_unet():
    """The source mixes 1 to 8 bits, 4.04 on average; all weights have 4 bits here."""
    return unet(
        96, 2048, widths=[320, 640, 1280], depths=[0, 2, 10], n_heads=[5, 10, 20], n_extra=2816
    )


class QuickBlock(PlainBlock):
    def __init__(self, n, n_heads):
        super().__init__(n, 4 * n, n_heads, True, 1e-5, lambda x: x * (1.702 * x).sigmoid())


class TextTower(nn.Module):
    """The text encoder of CLIP ViT-L/14: all states, and the last one for the pooled output."""

    def __init__(self, n=768, n_layers=12, n_heads=12, length=77, vocab=49408):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, n), nn.Parameter(torch.zeros(1, length, n))
        self.layers = nn.ModuleList(QuickBlock(n, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(n)
        self.mask = constant(np.triu(np.full((length, length), -1e4), 1))

    def forward(self, input_ids):
        ids = input_ids.to(torch.int32)
        x = self.words(ids) + self.positions
        for layer in self.layers:
            x = layer(x, self.mask)
        x = self.norm(x)
        return x, x.squeeze(0).index_select(0, ids.argmax(dim=-1))


def sd14_text():
    return hollow(TextTower), [floats("input_ids", 1, 77)]


class PixelAttention(nn.Module):
    """One head over all pixels of the decoder."""

    def __init__(self, n):
        super().__init__()
        self.norm = nn.GroupNorm(32, n, 1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))

    def forward(self, x):
        batch, n, height, width = sizes(x)
        y = self.norm(x).view(batch, n, height * width).transpose(1, 2)
        scores = self.q(y) @ self.k(y).transpose(1, 2) * n**-0.5
        y = self.out(scores.softmax(dim=-1) @ self.v(y)).transpose(1, 2)
        return x + y.view(batch, n, height, width)


class ImageDecoder(nn.Module):
    """The decoder of the variational autoencoder: latents to pixels, eight times as wide."""

    def __init__(self):
        super().__init__()
        self.scale, self.stem = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 512, 3, 1, 1)
        self.middle = nn.ModuleList(
            [ResidualBlock(512, 512, 0), PixelAttention(512), ResidualBlock(512, 512, 0)]
        )
        blocks, grow, n = [], [], 512
        for level, width in enumerate([512, 512, 256, 128]):
            for _ in range(3):
                blocks.append(ResidualBlock(n, width, 0))
                n = width
            if level < 3:
                grow.append(nn.Conv2d(n, n, 3, 1, 1))
        self.blocks, self.grow = nn.ModuleList(blocks), nn.ModuleList(grow)
        self.norm, self.out = nn.GroupNorm(32, n, 1e-6), nn.Conv2d(n, 3, 3, 1, 1)

    def forward(self, z):
        x = self.stem(self.scale(z))
        for block in self.middle:
            x = block(x)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i % 3 == 2 and i // 3 < len(self.grow):
                x = self.grow[i // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def sd14_vae():
    return hollow(ImageDecoder), [halves("z", 1, 4, 64, 64)]


SUBJECTS = {
    "sd14_text": Subject(sd14_text, target="iOS16", n_params=123_060_480),
    "sd14_unet": Subject(sd14_unet, target="iOS16", n_params=859_520_964),
    "sd14_vae": Subject(sd14_vae, target="iOS16", n_params=49_490_199),
    "sd21_unet_lut6": Subject(sd21_unet, target="iOS17", compress="lut6", n_params=865_910_724),
    "sdxl_unet_lut4": Subject(sdxl_unet, target="iOS17", compress="lut4", n_params=2_567_463_684),
}
