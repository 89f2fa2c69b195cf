"""Makes tests/model-packages/<name>.mlpackage: the kinds of models of scripts/peers/package_models.py, small.

    python3 tests/oracle/make_model_packages.py [name..]    # write all of them, or those that are named

Modules of torchvision, transformers and package_models.py, with the ops of the whole models and few, unequal sizes, as
coremltools converts them by default (fp16). Weights, norms and biases are random, from a literal seed. What torch makes of
inputs of random numbers travels in the metadata, as JSON, by the names of both. Needs what package_models.py needs.
"""

import json
import sys
from pathlib import Path

import coremltools as ct
import make_packages
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/peers"))
import package_models as whole

make_packages.FOLDER = Path(__file__).resolve().parents[1] / "model-packages"


def floats(*shape):
    """Numbers that are short as text."""
    return torch.round(whole.floats(*shape) * 8) / 8


def randomized(module):
    """With scales, offsets and statistics that are not ones and zeros."""
    for part in module.modules():
        for name in ("bias", "running_mean"):
            if isinstance(getattr(part, name, None), torch.Tensor):
                getattr(part, name).data.uniform_(-0.3, 0.3)
        if "Norm" in type(part).__name__ and getattr(part, "weight", None) is not None:
            part.weight.data.uniform_(0.5, 1.5)
        if isinstance(getattr(part, "running_var", None), torch.Tensor):
            part.running_var.uniform_(0.1, 0.4)
    return module.eval()


def mobilenet_v2():
    import torchvision

    blocks = [[1, 8, 1, 1], [6, 12, 2, 2], [6, 20, 1, 2]]
    model = torchvision.models.MobileNetV2(
        num_classes=5, width_mult=0.5, inverted_residual_setting=blocks, round_nearest=4)
    # Its last convolution has 1,280 channels whatever the width is.
    model.features[-1] = torchvision.ops.Conv2dNormActivation(12, 28, kernel_size=1, activation_layer=nn.ReLU6)
    model.classifier = nn.Linear(28, 5)
    return model, {"image": floats(1, 3, 30, 38)}


def resnet50():
    from torchvision.models.resnet import Bottleneck

    def block(n_in, n, stride):
        down = nn.Sequential(nn.Conv2d(n_in, 4 * n, 1, stride, bias=False), nn.BatchNorm2d(4 * n))
        return Bottleneck(n_in, n, stride, down)

    stem = [nn.Conv2d(3, 12, 7, 2, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers = [block(12, 6, 1), Bottleneck(24, 6), block(24, 9, 2), Bottleneck(36, 9)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 7)]
    return nn.Sequential(*stem, *layers, *head), {"image": floats(1, 3, 58, 46)}


def distilbert():
    import transformers

    config = transformers.DistilBertConfig(vocab_size=97, max_position_embeddings=40, dim=24, hidden_dim=52, n_layers=2, n_heads=3)
    ids = torch.randint(0, 97, (1, 37), dtype=torch.int32)
    return whole.Hidden(transformers.DistilBertModel(whole.eager(config))), {"input_ids": ids}


def siglip():
    import transformers

    config = transformers.SiglipVisionConfig(
        hidden_size=24, intermediate_size=52, num_hidden_layers=2, num_attention_heads=3, image_size=30, patch_size=6,
        vision_use_head=False)
    return whole.Hidden(transformers.SiglipVisionModel(whole.eager(config))), {"pixels": floats(1, 3, 30, 30)}


def whisper_encoder():
    import transformers

    config = transformers.WhisperConfig(
        num_mel_bins=10, d_model=28, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=60, max_source_positions=45)
    encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder(whole.eager(config))
    return whole.Hidden(encoder), {"mel": floats(1, 10, 90)}


def lstm():
    return whole.Recurrent(13, 20, 11), {"x": floats(1, 19, 13)}


def unet_block():
    return whole.UNet(n=6, n_heads=2, n_in=5, n_groups=2), {"x": floats(1, 5, 16, 22)}


def decoder():
    model = whole.Decoder(1, n=24, n_layers=2, n_heads=3, context=44, vocab=101)
    inputs = {
        "input_ids": torch.randint(0, 101, (1, 1), dtype=torch.int32),
        "position": torch.tensor([0], dtype=torch.int32),
        # Only the token itself is there.
        "mask": torch.where(torch.arange(44) > 0, -1e4, 0.0)[None, None, None],
    }
    return model, inputs


CASES = [mobilenet_v2, resnet50, distilbert, siglip, whisper_encoder, lstm, unet_block, decoder]


def package(case):
    torch.manual_seed(7)
    model, inputs = case()
    randomized(model)
    with torch.no_grad():
        traced = torch.jit.trace(model, tuple(inputs.values()), check_trace=False)
        # What tracing wrote into the caches is not there at first.
        caches = {name: buffer for name, buffer in model.named_buffers() if name.endswith("_cache")}
        for cache in caches.values():
            cache.zero_()
        result = model(*inputs.values())
    number = lambda t: np.int32 if t.dtype == torch.int32 else np.float32
    state = lambda t: ct.TensorType(shape=tuple(t.shape), dtype=np.float16)
    converted = ct.convert(
        traced, inputs=[ct.TensorType(name, shape=tuple(t.shape), dtype=number(t)) for name, t in inputs.items()],
        outputs=[ct.TensorType(name="output", dtype=np.float32)],
        states=[ct.StateType(wrapped_type=state(t), name=name) for name, t in caches.items()] or None,
        minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
    for name, tensor in [*inputs.items(), ("output", result)]:
        values = [round(v, 4) if isinstance(v, float) else v for v in tensor.flatten().tolist()]
        converted.user_defined_metadata[f"torch.{name}"] = json.dumps(values)
    return converted


if __name__ == "__main__":
    make_packages.FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        if not sys.argv[1:] or case.__name__ in sys.argv[1:]:
            make_packages.save(case.__name__, package(case))
            print(case.__name__, flush=True)
