"""Subjects of the zoo: classic classifiers of images, from torchvision and transformers."""

import numpy as np
import torch
import torchvision
import transformers

from zoo_case import Subject, empty, tensor


def classifier(name, size=224, batch=1, **options):
    """A model of torchvision as it stands."""

    def build():
        model = empty(lambda: getattr(torchvision.models, name)(weights=None, **options))
        return model, [tensor(batch, 3, size, size)]

    return build


def keras(name, size=224, **options):
    """A model of keras.applications, by the model of torchvision that it equals but for details.

    Keras ends classifiers with a softmax, and strides its ResNets in the first convolution of a
    block. Its padding of "same" adds a row less on one side than torch, for the same output.
    """

    def build():
        model, inputs = classifier(name, size, **options)()
        for part in model.modules():
            if isinstance(part, torchvision.models.resnet.Bottleneck):
                part.conv1.stride, part.conv2.stride = part.conv2.stride, (1, 1)
        return torch.nn.Sequential(model, torch.nn.Softmax(-1)).eval(), inputs

    return build


class Pooled(torch.nn.Module):
    """Image features of transformers as erwinzhang7/coreml-compute-placement pools them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixel_values=pixels).pooler_output.flatten(1)


def pooled(model, config, batch):
    def build():
        module = empty(lambda: Pooled(model(config)))
        return module, [tensor(batch, 3, 224, 224, dtype=np.float32)]

    return build


# The fast path of torch is one op, which coremltools does not know.
torch.backends.mha.set_fastpath_enabled(False)
MOBILENET_HF = transformers.MobileNetV2Config(tf_padding=True)
COMPRESSED = ("lut2", "lut4", "lut6", "lut8", "sparse50", "sparse75")

SUBJECTS = {
    # Apple's pages on compression: torchvision, batch 1.
    **{
        f"{short}_b1_{kind or 'fp16'}": Subject(classifier(name), compress=kind, n_params=size)
        for short, name, size, more in (
            ("mobilenetv2", "mobilenet_v2", 3_504_872, ("int8", "w8a8")),
            ("mobilenetv3s", "mobilenet_v3_small", 2_542_856, ()),
            ("resnet50", "resnet50", 25_557_032, ("lut1", "sparse90", "int8", "w8a8")),
        )
        for kind in (None, *COMPRESSED, *more)
    },
    # ANEForge: batch norms folded, batch 1.
    "resnet18_b1_fp16": Subject(classifier("resnet18"), n_params=11_689_512),
    "resnet18_b1_lut4": Subject(classifier("resnet18"), compress="lut4", n_params=11_689_512),
    "vit_b16_b1_fp16": Subject(classifier("vit_b_16"), n_params=86_567_656),
    "vit_b16_b1_int8": Subject(classifier("vit_b_16"), compress="int8", n_params=86_567_656),
    "mlperf_resnet50_b1_fp16": Subject(keras("resnet50"), n_params=25_557_032),
    # react-native-executorch.
    "efficientnetv2s_b1_fp16": Subject(
        classifier("efficientnet_v2_s", 384), n_params=21_458_488
    ),
    "efficientnetv2s_b1_fp32": Subject(
        classifier("efficientnet_v2_s", 384), precision="float32", n_params=21_458_488
    ),
    # erwinzhang7/coreml-compute-placement.
    "hf_resnet50_b16": Subject(
        pooled(transformers.ResNetModel, transformers.ResNetConfig(), 16),
        target="macOS15",
        n_ops=122,
    ),
    "hf_mobilenetv2_b16": Subject(
        pooled(transformers.MobileNetV2Model, MOBILENET_HF, 16), target="macOS15", n_ops=118
    ),
    "hf_mobilenetv2_b1": Subject(
        pooled(transformers.MobileNetV2Model, MOBILENET_HF, 1), target="macOS15", n_ops=118
    ),
    # vladimir-chernykh/coreml-model-zoo: 2020 models of the NeuralNetwork format, as programs.
    **{
        f"{name}_b1_fp16": Subject(classifier(name), n_params=size)
        for name, size in (
            ("densenet121", 7_978_856),
            ("densenet169", 14_149_480),
            ("densenet201", 20_013_928),
            ("resnet34", 21_797_672),
            ("resnet101", 44_549_160),
            ("vgg11", 132_863_336),
            ("vgg11_bn", 132_868_840),
            ("vgg13", 133_047_848),
            ("vgg13_bn", 133_053_736),
            ("vgg16_bn", 138_365_992),
            ("vgg19", 143_667_240),
            ("vgg19_bn", 143_678_248),
        )
    },
    **{
        f"{name}_keras_b1_fp16": Subject(keras(name), n_params=size)
        for name, size in (
            ("densenet121", 7_978_856),
            ("densenet169", 14_149_480),
            ("densenet201", 20_013_928),
            ("resnet50", 25_557_032),
            ("resnet101", 44_549_160),
            ("resnet152", 60_192_808),
            ("vgg16", 138_357_544),
            ("vgg19", 143_667_240),
        )
    },
    **{
        f"mobilenetv2_keras_{width}_{size}_b1_fp16": Subject(
            keras("mobilenet_v2", size, width_mult=width / 100)
        )
        for width, sizes in (
            (130, (224,)),
            (100, (224, 192, 160, 128, 96)),
            (75, (224, 192, 160, 128, 96)),
            (50, (192, 160, 96)),
            (35, (224, 192, 160, 128, 96)),
        )
        for size in sizes
    },
}
