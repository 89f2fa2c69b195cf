"""Subjects of the zoo: backbones that no library has, rebuilt from their papers and settings."""

import torch
from torch import nn

from zoo_case import Subject, empty, tensor


def conv(n_in, n_out, size=1, stride=1, groups=1, bias=True):
    return nn.Conv2d(n_in, n_out, size, stride, size // 2, groups=groups, bias=bias)


def depthwise(n, size, stride=1):
    return conv(n, n, size, stride, groups=n)


class Residual(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


def mlp(n, ratio):
    return nn.Sequential(conv(n, ratio * n), nn.GELU(), conv(ratio * n, n))


class ChunkMixer(nn.Module):
    """RepNeXt's mixer in its inference form: one quarter stays, three are filtered by 3, 7 and 11.

    The batch norm after the concatenation stays, as the published package has it.
    """

    def __init__(self, n):
        super().__init__()
        n //= 4
        self.small = depthwise(n, 3)
        self.medium = depthwise(n, 7)
        self.large = nn.Sequential(
            nn.Conv2d(n, n, (1, 11), padding=(0, 5), groups=n),
            nn.Conv2d(n, n, (11, 1), padding=(5, 0), groups=n),
        )

    def forward(self, x):
        same, small, medium, large = torch.chunk(x, 4, dim=1)
        return torch.cat((same, self.small(small), self.medium(medium), self.large(large)), dim=1)


class CopyMixer(nn.Module):
    """RepNeXt's downsampling: all channels are filtered by 3 and by 7."""

    def __init__(self, n):
        super().__init__()
        self.small = depthwise(n, 3, 2)
        self.medium = depthwise(n, 7, 2)

    def forward(self, x):
        return torch.cat((self.small(x), self.medium(x)), dim=1)


class RepNext(nn.Module):
    """https://arxiv.org/abs/2406.16004; `single` is the form with one branch per mixer."""

    def __init__(self, widths, depths, n_classes=1000, single=False):
        super().__init__()
        first = widths[0]
        half = first // 2
        self.stem = nn.Sequential(conv(3, half, 3, 2), nn.GELU(), conv(half, first, 3, 2))
        self.stages = nn.ModuleList()
        for idx, (n, depth) in enumerate(zip(widths, depths, strict=True)):
            down = [] if idx == 0 else [self.downsampling(n, single), Residual(mlp(n, 2))]
            blocks = [Residual(*self.mixer(n, single), mlp(n, 2)) for _ in range(depth)]
            self.stages.append(nn.Sequential(*down, *blocks))
        self.head = nn.Linear(widths[-1], n_classes) if n_classes else None

    @staticmethod
    def mixer(n, single):
        return (depthwise(n, 11),) if single else (ChunkMixer(n), nn.BatchNorm2d(n))

    @staticmethod
    def downsampling(n, single):
        if single:
            return conv(n // 2, n, 7, 2, groups=n // 2)
        return nn.Sequential(CopyMixer(n // 2), nn.BatchNorm2d(n))

    def forward(self, x):
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps if self.head is None else self.head(x.mean((2, 3)))


REPNEXT = {
    "m0": ((40, 80, 160, 320), (2, 2, 9, 1), 2_300_000),
    "m1": ((48, 96, 192, 384), (3, 3, 15, 2), 4_800_000),
    "m2": ((56, 112, 224, 448), (3, 3, 15, 2), 6_500_000),
    "m3": ((64, 128, 256, 512), (3, 3, 13, 2), 7_800_000),
    "m5": ((80, 160, 320, 640), (7, 7, 35, 2), 21_700_000),
}


def repnext(name, size=224, **options):
    widths, depths, _ = REPNEXT[name]
    return lambda: (
        empty(lambda: RepNext(widths, depths, **options)),
        [tensor(1, 3, size, size)],
    )


class Act(nn.Module):
    """A convolution, a batch norm if `norm`, and hard swish if `act`."""

    def __init__(self, n_in, n_out, size=1, stride=1, groups=1, norm=True, act=True):
        super().__init__()
        self.conv = conv(n_in, n_out, size, stride, groups, bias=not norm)
        self.norm = nn.BatchNorm2d(n_out) if norm else nn.Identity()
        self.act = nn.Hardswish() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


def fused_mbconv(n_in, n_out, ratio, stride=1):
    n = n_in * ratio
    return nn.Sequential(Act(n_in, n, 3, stride), Act(n, n_out, act=False))


def mbconv(n_in, n_out, ratio, stride=1):
    n = n_in * ratio
    return nn.Sequential(
        Act(n_in, n, norm=False), Act(n, n, 3, stride, n, norm=False), Act(n, n_out, act=False)
    )


class LowAttention(nn.Module):
    """LowFormer's attention at a lower resolution and half the channels."""

    def __init__(self, n, stride):
        super().__init__()
        self.n_heads = max(1, n // 2 // 30)
        self.head_dim = n // self.n_heads // 2
        inner = self.n_heads * self.head_dim
        self.down = nn.Sequential(
            conv(n, n, 5 if stride > 1 else 3, stride, n, bias=False),
            nn.BatchNorm2d(n),
            conv(n, 3 * inner, bias=False),
        )
        size, padding = (2 * stride, stride // 2) if stride > 1 else (3, 1)
        self.up = nn.ConvTranspose2d(inner, n, size, stride, padding)

    def forward(self, x):
        qkv = self.down(x)
        batch, _, height, width = qkv.shape
        qkv = qkv.reshape(batch, self.n_heads, 3 * self.head_dim, height * width)
        q, k, v = qkv.permute(0, 1, 3, 2).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1)) / self.head_dim**0.5
        mixed = (scores.softmax(-1) @ v).permute(0, 1, 3, 2)
        out = self.up(mixed.reshape(batch, -1, height, width))
        return out[:, :, : x.shape[2], : x.shape[3]]


class LowFormer(nn.Module):
    """https://arxiv.org/abs/2409.03460 with the settings E1 and E3 of altair199797/LowFormer.

    E1 has no attention; in E3 attention stands alone, without norm and perceptron.
    """

    def __init__(self, widths, depths, attention, huge, head):
        super().__init__()
        first = widths[0]
        parts = [Act(3, first, 3, 2)]
        parts += [Residual(fused_mbconv(first, first, 4 if huge else 2)) for _ in range(depths[0])]
        for n_in, n, depth in zip(widths, widths[1:3], depths[1:3]):
            for idx in range(depth):
                first = idx == 0
                block = fused_mbconv(n_in if first else n, n, 6 if first else 4, 2 if first else 1)
                parts.append(block if first else Residual(block))
        for idx, (n_in, n, depth) in enumerate(zip(widths[2:], widths[3:], depths[3:])):
            parts.append(fused_mbconv(n_in, n, 6, 2))
            for _ in range(depth):
                if attention:
                    parts.append(Residual(LowAttention(n, 2 if idx == 0 else 1)))
                parts.append(Residual(fused_mbconv(n, n, 4) if n < 256 else mbconv(n, n, 4)))
        self.features = nn.Sequential(*parts)
        self.head = nn.Sequential(
            Act(widths[-1], head[0]),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(head[0], head[1], bias=False),
            nn.LayerNorm(head[1]),
            nn.Hardswish(),
            nn.Linear(head[1], 1000),
        )

    def forward(self, x):
        return self.head(self.features(x))


def lowformer(*args):
    return lambda: (empty(lambda: LowFormer(*args)), [tensor(1, 3, 224, 224)])


class Mbconv(nn.Module):
    """The inverted residual of MOAT, with squeeze and excitation if `squeeze`."""

    def __init__(self, n_in, n, stride, squeeze):
        super().__init__()
        inner = 4 * n_in
        self.expand = nn.Sequential(
            nn.BatchNorm2d(n_in),
            conv(n_in, inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.GELU(),
            conv(inner, inner, 3, stride, inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.GELU(),
        )
        few = max(1, n_in // 4)
        self.squeeze = None
        if squeeze:
            self.squeeze = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), conv(inner, few), nn.GELU(), conv(few, inner), nn.Sigmoid()
            )
        self.project = nn.Sequential(conv(inner, n, bias=False), nn.BatchNorm2d(n))
        shortcut = [nn.AvgPool2d(2, 2)] if stride == 2 else []
        shortcut += [conv(n_in, n)] if n_in != n else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        y = self.expand(x)
        if self.squeeze is not None:
            y = self.squeeze(y) * y
        return self.project(y) + self.shortcut(x)


class MoatAttention(nn.Module):
    """Attention over the whole map, split by heads, with a local position term (LePE)."""

    def __init__(self, n, side):
        super().__init__()
        self.head_dim = 32
        self.norm = nn.LayerNorm(n)
        self.position = nn.Parameter(torch.zeros(1, side * side, n))
        self.query, self.key, self.value, self.out = (conv(n, n) for _ in range(4))
        self.local = depthwise(n, 3)

    def forward(self, image):
        batch, n, height, width = image.shape
        flat = (batch, n, 1, height * width)
        x = self.norm(image.permute(0, 2, 3, 1)).reshape(batch, height * width, n) + self.position
        line = x.permute(0, 2, 1).unsqueeze(2)  # [batch, channel, 1, position]
        value = self.value(x.permute(0, 2, 1).reshape(batch, n, height, width))
        queries = self.query(line).split(self.head_dim, dim=1)
        keys = self.key(line).permute(0, 3, 2, 1).split(self.head_dim, dim=3)
        locals_ = self.local(value).reshape(flat).split(self.head_dim, dim=1)
        values = value.reshape(flat).split(self.head_dim, dim=1)
        heads = []
        for q, k, v, local in zip(queries, keys, values, locals_, strict=True):
            scores = torch.einsum("bchq,bkhc->bkhq", q, k) * self.head_dim**-0.5
            heads.append(torch.einsum("bkhq,bchk->bchq", scores.softmax(1), v) + local)
        y = self.out(torch.cat(heads, dim=1)).squeeze(2).permute(0, 2, 1)
        return image + y.reshape(batch, height, width, n).permute(0, 3, 1, 2)


class TinyMoat(nn.Module):
    """https://arxiv.org/abs/2210.01820 as apple/ml-vision-transformers-ane lays it out."""

    def __init__(self, size=256, widths=(32, 64, 128, 256), depths=(2, 3, 7, 2)):
        super().__init__()
        first = widths[0]
        self.stem = nn.Sequential(
            conv(3, first, 3, 2), nn.GELU(), nn.BatchNorm2d(first), conv(first, first, 3)
        )
        self.stages = nn.ModuleList()
        n_in = first
        for idx, (n, depth) in enumerate(zip(widths, depths, strict=True)):
            parts = []
            for block_idx in range(depth):
                parts.append(Mbconv(n_in, n, 2 if block_idx == 0 else 1, squeeze=idx < 2))
                n_in = n
                if idx >= 2:
                    parts.append(MoatAttention(n, size >> (idx + 2)))
            self.stages.append(nn.Sequential(*parts))

    def forward(self, x):
        maps = [self.stem(x)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


SUBJECTS = {
    **{
        f"repnext_{name}_b1_fp16": Subject(repnext(name), n_params=REPNEXT[name][2])
        for name in ("m0", "m1", "m3", "m5")
    },
    **{
        f"repnext_{name}e_b1_fp16": Subject(repnext(name, single=True), n_params=n_params)
        for name, n_params in (("m0", 2_500_000), ("m1", 5_300_000), ("m2", 7_000_000))
    },
    **{
        f"repnext_{name}_stages_512_b1_fp16": Subject(repnext(name, 512, n_classes=0))
        for name in ("m3", "m5")
    },
    "lowformer_e1_b1_fp16": Subject(
        lowformer((20, 40, 80, 160, 320), (0, 1, 1, 4, 4), False, False, (2304, 2560))
    ),
    "lowformer_e3_b1_fp16": Subject(
        lowformer((32, 64, 128, 256, 512), (1, 2, 3, 6, 6), True, True, (1536, 1600))
    ),
    # Five ops less than the figure of the source shows; its release of coremltools is not known.
    "tiny_moat_0_b1_fp16": Subject(
        lambda: (empty(TinyMoat), [tensor(1, 3, 256, 256)]), target="iOS15", n_ops=594
    ),
}
