"""Subjects of the zoo: detection, depth and super resolution."""

import torch
import torchvision
import transformers
from torch import nn

from zoo_case import Subject, empty, tensor


class CenterNet(nn.Module):
    """https://arxiv.org/abs/1904.07850 with ResNet-34, three deconvolutions and 80 classes."""

    def __init__(self):
        super().__init__()
        net = torchvision.models.resnet34(weights=None)
        self.features = nn.Sequential(*list(net.children())[:-2])
        up = []
        for n_in in (512, 256, 256):
            up += [nn.ConvTranspose2d(n_in, 256, 4, 2, 1, bias=False)]
            up += [nn.BatchNorm2d(256), nn.ReLU()]
        self.up = nn.Sequential(*up)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(256, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, n_out, 1))
            for n_out in (80, 2, 2)
        )

    def forward(self, x):
        x = self.up(self.features(x))
        heat, size, offset = (head(x) for head in self.heads)
        return heat.sigmoid(), size, offset


class PiperSr(nn.Module):
    """Twice the resolution: six residual blocks of 64 channels, then a pixel shuffle."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(64, 64, 3, padding=1),
                nn.BatchNorm2d(64),
                nn.SiLU(),
                nn.Conv2d(64, 64, 3, padding=1),
                nn.BatchNorm2d(64),
            )
            for _ in range(6)
        )
        self.last = nn.Sequential(nn.Conv2d(64, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def piper(height, width):
    return lambda: (empty(PiperSr), [tensor(1, 3, height, width)])


class DepthAnything(nn.Module):
    """DINOv2 ViT-S/14 and a DPT head; positions stand in the size of the image."""

    def __init__(self, height, width):
        super().__init__()
        backbone = transformers.Dinov2Config(
            hidden_size=384,
            num_attention_heads=6,
            image_size=518,
            patch_size=14,
            out_indices=[9, 10, 11, 12],
            apply_layernorm=True,
            reshape_hidden_states=False,
        )
        backbone._attn_implementation = "eager"
        config = transformers.DepthAnythingConfig(backbone_config=backbone)
        self.model = transformers.DepthAnythingForDepthEstimation(config)
        embeddings = self.model.backbone.embeddings
        n_positions = (height // 14) * (width // 14) + 1
        embeddings.position_embeddings = nn.Parameter(torch.zeros(1, n_positions, 384))
        embeddings.interpolate_pos_encoding = lambda *_: embeddings.position_embeddings

    def forward(self, pixels):
        return self.model(pixel_values=pixels).predicted_depth


SUBJECTS = {
    # The page does not state the size of the input: 512 x 512 is CenterNet's own.
    **{
        f"centernet_r34_b1_{kind or 'fp16'}": Subject(
            lambda: (empty(CenterNet), [tensor(1, 3, 512, 512)]), compress=kind
        )
        for kind in (None, "lut2", "lut4", "lut6", "lut8")
    },
    "pipersr_640x360_b1_fp16": Subject(piper(360, 640)),
    "pipersr_1280x720_b1_fp16": Subject(piper(720, 1280)),
    "pipersr_128x128_b1_fp16": Subject(piper(128, 128)),
    "depth_anything_s_b1_fp16": Subject(
        lambda: (empty(lambda: DepthAnything(392, 518)), [tensor(1, 3, 392, 518)]),
        n_params=24_800_000,
    ),
}
