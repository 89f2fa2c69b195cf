"""Subjects of the zoo: small backbones measured on iPhones, from timm."""

import timm
from timm.models.repvit import RepVit
from timm.utils import reparameterize_model

from zoo_case import Subject, empty, stretch, tensor


def backbone(make, size=224):
    """A model in its inference form: parallel branches merged, batch norms of branches folded."""

    def build():
        model = reparameterize_model(empty(make).eval())
        return stretch(model), [tensor(1, 3, size, size)]

    return build


def timm_model(name, size=224, **options):
    return backbone(lambda: timm.create_model(name, **options), size)


def repvit_m0_6():
    """RepViT-M0.6, which timm lacks."""
    return RepVit(embed_dim=(40, 80, 160, 320), depth=(1, 1, 8, 1), distillation=True)


def stages(name, size):
    """Feature maps of all four stages, as detection and segmentation take them."""
    return timm_model(name, size, features_only=True, out_indices=(0, 1, 2, 3))


def mobileclip_b():
    """timm computes with the parameters of this tower when it makes them, so they are real."""
    model = stretch(timm.create_model("vit_base_mci_224", num_classes=512).eval())
    return stretch(reparameterize_model(model)), [tensor(1, 3, 224, 224)]


def subject(build, n_params, compress=None):
    return Subject(build, n_params=n_params, compress=compress)


SUBJECTS = {
    # apple/ml-fastvit, 256 x 256; its README counts 0.4 M to 1 M parameters less than timm does.
    **{
        f"fastvit_{name}_b1_fp16": subject(timm_model(f"fastvit_{name}", 256), size)
        for name, size in (
            ("t8", 4_030_000),
            ("t12", 7_550_000),
            ("s12", 9_470_000),
            ("sa12", 11_580_000),
            ("sa36", 31_530_000),
        )
    },
    # apple/ml-mobileone.
    **{
        f"mobileone_{name}_b1_fp16": subject(timm_model(f"mobileone_{name}"), size)
        for name, size in (
            ("s0", 2_100_000),
            ("s1", 4_800_000),
            ("s2", 7_800_000),
            ("s4", 14_800_000),
        )
    },
    # apple/ml-mobileclip: image towers that end in the shared space of 512 or 768 numbers.
    **{
        f"mobileclip_{name}_image_b1_fp16": subject(
            timm_model(tower, size, num_classes=n_out), n_params
        )
        for name, tower, size, n_out, n_params in (
            ("s0", "fastvit_mci0", 256, 512, 11_400_000),
            ("s1", "fastvit_mci1", 256, 512, 21_500_000),
            ("s3", "fastvit_mci3", 256, 768, 125_100_000),
            ("s4", "fastvit_mci4", 256, 768, 321_600_000),
        )
    },
    "mobileclip_b_image_b1_fp16": subject(mobileclip_b, 86_300_000),
    # snap-research/EfficientFormer.
    **{
        f"efficientformer{name}_b1_fp16": subject(timm_model(f"efficientformer{name}"), size)
        for name, size in (
            ("v2_s0", 3_500_000),
            ("v2_s1", 6_100_000),
            ("v2_s2", 12_600_000),
            ("_l1", 12_300_000),
            ("_l7", 82_100_000),
        )
    },
    # Amshaker/SwiftFormer.
    **{
        f"swiftformer_{name}_b1_fp16": subject(timm_model(f"swiftformer_{name}"), size)
        for name, size in (("xs", 3_500_000), ("s", 6_100_000), ("l1", 12_100_000))
    },
    # THU-MIG/RepViT.
    "repvit_m0_6_b1_fp16": subject(backbone(repvit_m0_6), 2_500_000),
    **{
        f"repvit_{name}_b1_fp16": subject(timm_model(f"repvit_{name}"), size)
        for name, size in (
            ("m0_9", 5_100_000),
            ("m1_0", 6_800_000),
            ("m1_1", 8_200_000),
            ("m2_3", 22_900_000),
        )
    },
    "repvit_m1_1_stages_512_b1_fp16": Subject(stages("repvit_m1_1", 512)),
    "repvit_m1_5_stages_512_b1_fp16": Subject(stages("repvit_m1_5", 512)),
    # apple/coremltools pages; cvnets is not on an index, timm has its layers.
    **{
        f"mobilevitv2_100_b1_{kind or 'fp16'}": subject(
            timm_model("mobilevitv2_100", 256), 4_900_000, kind
        )
        for kind in (None, "int8", "w8a8")
    },
}
