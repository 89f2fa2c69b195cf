"""Subjects of the zoo: video trackers of the SAM 2 family; one frame with a full memory."""

import torch
import transformers
from timm.utils import reparameterize_model
from torch import nn
from torch.nn import functional as F

from zoo_case import Subject, stretch, tensor

N_FRAMES = 7  # in memory
N_POINTERS = 64  # tokens of 16 object pointers


class Frame(nn.Module):
    """Image encoder, attention to the memory, mask decoder and memory encoder."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.grid = nn.Parameter(torch.zeros(1, 256, 64, 64))
        self.prompt = nn.Parameter(torch.zeros(1, 1, 2, 256))

    def forward(self, pixels, memory, positions):
        model = self.model
        vision = model.vision_encoder(pixels)
        fine, middle, features = vision.fpn_hidden_states
        fine, middle = model.mask_decoder.conv_s0(fine), model.mask_decoder.conv_s1(middle)
        conditioned = self.attend(features, vision.fpn_position_encoding[-1], memory, positions)
        masks, scores = model.mask_decoder(
            image_embeddings=conditioned,
            image_positional_embeddings=self.grid,
            sparse_prompt_embeddings=self.prompt,
            dense_prompt_embeddings=model.prompt_encoder.no_mask_embed.weight.reshape(1, -1, 1, 1),
            multimask_output=True,
            high_resolution_features=[fine, middle],
        )[:2]
        best = torch.argmax(scores[:, 0], dim=1)
        mask = torch.index_select(masks[0, 0], 0, best).unsqueeze(1)
        large = F.interpolate(mask, size=(1024, 1024), mode="bilinear", align_corners=False)
        new, new_positions = model.memory_encoder(features, large.sigmoid() * 20 - 10)
        if hasattr(model, "spatial_perceiver"):
            new, new_positions = model.spatial_perceiver(new, new_positions)
        return mask, new, new_positions

    def attend(self, features, position, memory, positions):
        options = {"num_object_pointer_tokens": N_POINTERS}
        if hasattr(self.model, "spatial_perceiver"):
            options["num_spatial_memory_tokens"] = N_FRAMES
        out = self.model.memory_attention(
            current_vision_features=features.flatten(2).permute(2, 0, 1),
            current_vision_position_embeddings=position.flatten(2).permute(2, 0, 1),
            memory=memory,
            memory_posision_embeddings=positions,
            **options,
        )
        return out.squeeze(1).transpose(1, 2).reshape(1, 256, 64, 64)


def frame(make, n_per_frame):
    """A module whose memory has so many tokens per frame."""

    def build():
        n_tokens = N_FRAMES * n_per_frame + N_POINTERS
        inputs = [tensor(1, 3, 1024, 1024), tensor(n_tokens, 1, 64), tensor(n_tokens, 1, 64)]
        return stretch(Frame(make().eval())), inputs

    return build


def edgetam():
    backbone = transformers.TimmWrapperConfig(
        architecture="repvit_m1",
        model_args={"features_only": True, "out_indices": [0, 1, 2, 3]},
    )
    vision = transformers.EdgeTamVisionConfig(backbone_config=backbone)
    config = transformers.EdgeTamVideoConfig(vision_config=vision)
    config._attn_implementation = "eager"
    return reparameterize_model(transformers.EdgeTamVideoModel(config).eval())


def sam2_base_plus():
    backbone = transformers.Sam2HieraDetConfig(
        hidden_size=112,
        num_attention_heads=2,
        blocks_per_stage=[2, 3, 16, 3],
        embed_dim_per_stage=[112, 224, 448, 896],
        num_attention_heads_per_stage=[2, 4, 8, 16],
        window_size_per_stage=[8, 4, 14, 7],
        global_attention_blocks=[12, 16, 20],
        window_positional_embedding_background_size=[14, 14],
    )
    vision = transformers.Sam2VisionConfig(
        backbone_config=backbone, backbone_channel_list=[896, 448, 224, 112]
    )
    config = transformers.Sam2VideoConfig(vision_config=vision)
    config._attn_implementation = "eager"
    model = transformers.Sam2VideoModel(config)
    # The positions in the size of the image, which the converter cannot interpolate.
    hiera = model.vision_encoder.backbone
    hiera.positions = nn.Parameter(torch.zeros(1, 256, 256, 112))
    hiera._get_pos_embed = lambda _: hiera.positions
    return model


# 13.9 M and 80.8 M parameters; the programs hold tables of positions as well.
SUBJECTS = {
    "edgetam_frame": Subject(frame(edgetam, 512)),
    "sam2_base_plus_frame": Subject(frame(sam2_base_plus, 4096)),
}
