"""Subjects of the zoo: Segment Anything and its small variants, for images of 1024 x 1024."""

import timm
import torch
import transformers
from timm.utils import reparameterize_model
from torch import nn
from torch.nn import functional as F
from transformers.models.sam import modeling_sam

from zoo_case import Subject, empty, stretch, tensor

SIDE = 1024


def image(model):
    return model, [tensor(1, 3, SIDE, SIDE)]


class MapNorm(nn.Module):
    """Layer norm over the channels of a map, in elementary ops as SAM has it."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def neck(n_in):
    return nn.Sequential(
        nn.Conv2d(n_in, 256, 1, bias=False),
        MapNorm(256),
        nn.Conv2d(256, 256, 3, padding=1, bias=False),
        MapNorm(256),
    )


class SamEncoder(nn.Module):
    """ViT-B with windows of 14 and four global layers."""

    def __init__(self):
        super().__init__()
        config = transformers.SamVisionConfig()
        config._attn_implementation = "eager"
        self.model = modeling_sam.SamVisionEncoder(config)

    def forward(self, pixels):
        return self.model(pixels).last_hidden_state


class MobileSamEncoder(nn.Module):
    """TinyViT-5M whose last stage keeps the resolution, with windows of 7, 7, 14 and 7."""

    def __init__(self):
        super().__init__()
        net = timm.create_model("tiny_vit_5m_224", window_sizes=(7, 7, 14, 7))
        net.stages[3].downsample.conv2.conv.stride = (1, 1)
        self.features = nn.Sequential(net.patch_embed, net.stages)
        self.neck = neck(320)

    def forward(self, pixels):
        return self.neck(self.features(pixels))


class EdgeSamEncoder(nn.Module):
    """RepViT-M1 whose last two stages are added; bicubic upsampling is bilinear for Core ML."""

    def __init__(self):
        super().__init__()
        net = timm.create_model("repvit_m1")
        self.stem, self.stages = net.stem, net.stages
        self.lateral3 = nn.Conv2d(192, 256, 1, bias=False)
        self.lateral4 = nn.Conv2d(384, 256, 1, bias=False)
        self.neck = neck(256)

    def forward(self, pixels):
        x = self.stages[2](self.stages[1](self.stages[0](self.stem(pixels))))
        coarse = self.lateral4(self.stages[3](x))
        up = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        return self.neck(self.lateral3(x) + up)


class SamDecoder(nn.Module):
    """Prompt encoder and mask decoder for points; `full` takes a mask too and scales masks up."""

    def __init__(self, full):
        super().__init__()
        self.full = full
        config = transformers.SamConfig()
        config.mask_decoder_config._attn_implementation = "eager"
        shared = modeling_sam.SamPositionalEmbedding(config.vision_config)
        self.prompts = modeling_sam.SamPromptEncoder(config)
        self.decoder = modeling_sam.SamMaskDecoder(config.mask_decoder_config)
        self.frequencies = nn.Parameter(shared.positional_embedding)
        self.grid = nn.Parameter(torch.zeros(1, 256, 64, 64))

    def embed(self, coords, labels):
        angles = 2 * torch.pi * ((2 * (coords + 0.5) / SIDE - 1) @ self.frequencies)
        points = torch.cat((angles.sin(), angles.cos()), dim=-1)
        labels = labels.unsqueeze(-1).expand_as(points)
        points = points * (labels != -1) + self.prompts.not_a_point_embed.weight * (labels == -1)
        for idx, embedding in enumerate(self.prompts.point_embed):
            points = points + embedding.weight * (labels == idx)
        return points

    def forward(self, features, coords, labels, mask=None, has_mask=None):
        dense = self.prompts.no_mask_embed.weight.reshape(1, -1, 1, 1)
        if self.full:
            dense = has_mask * self.prompts.mask_embed(mask) + (1 - has_mask) * dense
        masks, scores = self.decoder(
            image_embeddings=features,
            image_positional_embeddings=self.grid,
            sparse_prompt_embeddings=self.embed(coords, labels).unsqueeze(1),
            dense_prompt_embeddings=dense,
            multimask_output=True,
        )[:2]
        if not self.full:
            return masks, scores
        best = torch.argmax(scores[:, 0], dim=1)
        mask = torch.index_select(masks[0, 0], 0, best).unsqueeze(1)
        large = F.interpolate(mask, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        return large, scores, mask


def decoder(full):
    def build():
        inputs = [tensor(1, 256, 64, 64), tensor(1, 1, 2), tensor(1, 1)]
        inputs += [tensor(1, 1, 256, 256), tensor(1)] if full else []
        return empty(lambda: SamDecoder(full)), inputs

    return build


SUBJECTS = {
    "sam_b_image_b1_fp16": Subject(lambda: image(empty(SamEncoder)), n_params=89_670_912),
    # 6.1 M parameters; tables of attention bias grow to one number per pair of positions.
    "mobilesam_image_b1_fp16": Subject(
        lambda: image(stretch(reparameterize_model(empty(MobileSamEncoder))))
    ),
    "edgesam_image_b1_fp16": Subject(
        lambda: image(stretch(reparameterize_model(empty(EdgeSamEncoder)))), n_params=5_500_000
    ),
    # 4.06 M parameters and the 1.05 M numbers of the grid of positions.
    "sam_decoder_full_b1_fp16": Subject(decoder(full=True), n_params=5_110_000),
    "sam_decoder_b1_fp16": Subject(decoder(full=False), n_params=5_110_000),
}
