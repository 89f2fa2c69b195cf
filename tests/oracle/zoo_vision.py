"""Subjects of the zoo: classifiers of images, from torchvision, timm and transformers."""

import torchvision

from zoo_case import Subject, empty, tensor


def torchvision_model(name, size=224, batch=1, **options):
    def build():
        model = empty(lambda: getattr(torchvision.models, name)(weights=None, **options))
        return model, [tensor(batch, 3, size, size)]

    return build


SUBJECTS = {
    f"mobilenetv3s_b1_{kind or 'fp16'}": Subject(torchvision_model("mobilenet_v3_small"), compress=kind)
    for kind in (None, "lut4", "sparse50", "int8", "w8a8")
}
