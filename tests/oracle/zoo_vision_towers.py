"""Subjects of the zoo: image towers of embedding models."""

import torch
import transformers
from torch import nn
from uform.torch_encoders import ImageEncoder

from zoo_case import Subject, empty, tensor


class MeanPooled(nn.Module):
    """The stock SigLIP tower, whose own pooling head coremltools cannot convert."""

    def __init__(self):
        super().__init__()
        config = transformers.SiglipVisionConfig(vision_use_head=False)
        config._attn_implementation = "eager"
        self.model = transformers.SiglipVisionModel(config)

    def forward(self, pixels):
        return self.model(pixel_values=pixels).last_hidden_state.mean(dim=1)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [batch, channel, 1, position], in elementary ops."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        centered = x - x.mean(dim=1, keepdim=True)
        variance = (x - x.mean(dim=1, keepdim=True)).pow(2).mean(dim=1, keepdim=True)
        x = centered * torch.rsqrt(variance + 1e-6)
        return x * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class HeadwiseAttention(nn.Module):
    """Attention on [batch, channel, 1, position], one head after another."""

    def __init__(self, n, n_heads):
        super().__init__()
        self.head_dim = n // n_heads
        self.query, self.key, self.value, self.out = (nn.Conv2d(n, n, 1) for _ in range(4))

    def forward(self, x):
        queries = (self.query(x) * self.head_dim**-0.5).split(self.head_dim, dim=1)
        keys = self.key(x).split(self.head_dim, dim=1)
        values = self.value(x).split(self.head_dim, dim=1)
        heads = []
        for q, k, v in zip(queries, keys, values, strict=True):
            weights = torch.einsum("bchq,bchk->bkhq", q, k).softmax(dim=1)
            heads.append(torch.einsum("bchk,bkhq->bchq", v, weights))
        return self.out(torch.cat(heads, dim=1))


class HeadwiseLayer(nn.Module):
    def __init__(self, n, n_heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = ChannelNorm(n), ChannelNorm(n)
        self.attention = HeadwiseAttention(n, n_heads)
        self.up, self.down = nn.Conv2d(n, hidden, 1), nn.Conv2d(hidden, n, 1)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        hidden = nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(hidden)


class SiglipForAne(nn.Module):
    """SigLIP-base rewritten by the rules of apple/ml-ane-transformers."""

    def __init__(self, n=768, n_layers=12, n_heads=12, hidden=3072):
        super().__init__()
        self.patches = nn.Conv2d(3, n, 16, 16)
        self.position = nn.Parameter(torch.zeros(1, n, 1, 196))
        self.layers = nn.Sequential(*(HeadwiseLayer(n, n_heads, hidden) for _ in range(n_layers)))
        self.norm = ChannelNorm(n)

    def forward(self, pixels):
        x = self.patches(pixels).flatten(2).unsqueeze(2) + self.position
        return self.norm(self.layers(x)).mean(dim=3).squeeze(2)


def uform(width, n_layers, n_heads, patch, embedding):
    """Sizes of the vision towers by the cards of the models: ViT-S/16, ViT-B/16 and ViT-L/14."""

    def build():
        model = empty(
            lambda: ImageEncoder(
                dim=width,
                patch_size=patch,
                image_size=224,
                num_layers=n_layers,
                num_heads=n_heads,
                embedding_dim=embedding,
                pooling="cls",
            )
        )
        return model, [tensor(1, 3, 224, 224)]

    return build


UFORM = {
    "small": uform(384, 12, 6, 16, 256),
    "base": uform(768, 12, 12, 16, 256),
    "large": uform(1024, 24, 16, 14, 768),
}

SUBJECTS = {
    "siglip_b16": Subject(
        lambda: (empty(MeanPooled), [tensor(16, 3, 224, 224)]), target="macOS15", n_ops=282
    ),
    "siglip_ane_b16": Subject(
        lambda: (empty(SiglipForAne), [tensor(16, 3, 224, 224)]), target="macOS15", n_ops=1658
    ),
    # The packages for the engine mix int8, fp16 and fp32 in a way that is not published.
    **{
        f"uform_{name}_image_b1_int8": Subject(build, compress="int8")
        for name, build in UFORM.items()
    },
    **{
        f"uform_{name}_image_b1_fp32": Subject(build, precision="float32")
        for name, build in UFORM.items()
    },
}
