"""Subjects of the zoo: YOLO26 and YOLO11, exported as ultralytics does it.

The images are inputs of 0..255 that the program divides by 255; the deployment target is the
oldest one, with inputs and outputs of float32, and weights are palettized to 8 bits.
"""

import types

import coremltools as ct
from torch import nn
from ultralytics.nn import tasks
from ultralytics.nn.modules import Attention, C2f, Classify, Depth, Detect, SemanticSegment
from ultralytics.utils import LOGGER
from ultralytics.utils.export.coreml import IOSDetectModel, _coreml_gather

from zoo_case import Subject, stretch

LOGGER.setLevel("ERROR")
MODELS = {
    "": tasks.DetectionModel,
    "-seg": tasks.SegmentationModel,
    "-sem": tasks.SemanticSegmentationModel,
    "-depth": tasks.DepthModel,
    "-cls": tasks.ClassificationModel,
    "-pose": tasks.PoseModel,
    "-obb": tasks.OBBModel,
}


class First(nn.Module):
    """Some heads return what only training needs as well."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y[0] if isinstance(y, list | tuple) and len(y) == 1 else y


def yolo(scale, task="", size=640, end2end=True, nms=False, family="26"):
    def build():
        model = MODELS[task](f"yolo{family}{scale}{task}.yaml", verbose=False).eval()
        if hasattr(model, "end2end"):
            model.end2end = end2end
        model = model.fuse(verbose=False)
        for part in model.modules():
            if isinstance(part, Detect | Classify | SemanticSegment | Depth):
                part.export, part.format = True, "coreml"
            if isinstance(part, Detect):
                part.dynamic, part.max_det, part.shape = False, 300, None
                part._gather = types.MethodType(_coreml_gather, part)
            if isinstance(part, C2f):
                part.forward = part.forward_split
        image = ct.ImageType(name="image", shape=(1, 3, size, size), scale=1 / 255)
        if nms:
            model = IOSDetectModel(model, _Shape((1, 3, size, size)))
        return stretch(First(model)), [image]

    return build


class _Shape:
    def __init__(self, shape):
        self.shape = shape


def subject(build, n_ops=None):
    return Subject(build, target="iOS15", compress="lut8", n_ops=n_ops)


# The program has 296 ops with ultralytics 8.4.190; the assets that were measured are older.
SUBJECTS = {
    "yolo26n_b1_lut8": subject(yolo("n"), 297),
    "yolo26n_raw_b1_lut8": subject(yolo("n", end2end=False)),
    "yolo26n_nms_b1_lut8": subject(yolo("n", end2end=False, nms=True), 284),
    "yolo11n_raw_b1_lut8": subject(yolo("n", end2end=False, family="11")),
    "yolo26n_cls_b1_lut8": subject(yolo("n", "-cls", 224)),
    **{
        f"yolo26n_{task}_b1_lut8": subject(yolo("n", f"-{task}"))
        for task in ("seg", "sem", "pose", "obb")
    },
    **{f"yolo26{scale}_depth_b1_lut8": subject(yolo(scale, "-depth")) for scale in "nsmlx"},
}
