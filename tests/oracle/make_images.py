"""Makes tests/images: packages with image inputs, image files, and what the packages compute of them.

    python3 tests/oracle/make_images.py

coremltools converts `2 * x` of torch with an ImageType for each case, and writes scale and bias into
the program. The expected tensors are computed by numpy from pixels that PIL decodes, in the channel
order of the case. Needs coremltools, torch, numpy and PIL; all seeds are literals.
"""

import coremltools as ct
import make_packages
import numpy as np
import torch
from PIL import Image

FOLDER = make_packages.FOLDER.parent / "images"
LAYOUTS = ct.colorlayout
# Case: layout, shape, scale, bias, files.
SIZES = [(1, 3, 16, 24), (1, 3, 20, 10)]
COLOR = ["rgb.png", "palette.png", "gray.png", "opaque.png", "plain.jpg", "subsampled.jpg", "gray.jpg"]
CASES = {
    "rgb": (LAYOUTS.RGB, SIZES[0], 1 / 127.5, [-1.0, -0.5, -1.25], COLOR),
    "bgr": (LAYOUTS.BGR, SIZES[0], 0.5, [1.0, 2.0, 3.0], ["rgb.png", "progressive.jpg"]),
    "gray": (LAYOUTS.GRAYSCALE, (1, 1, 16, 24), 1 / 255, 0.0, ["gray.png", "bits.png", "gray.jpg"]),
    "half": (LAYOUTS.GRAYSCALE_FLOAT16, (1, 1, 16, 24), 1.0, -3.0, ["gray.png"]),
    "enumerated": (
        LAYOUTS.RGB, ct.EnumeratedShapes(shapes=SIZES, default=SIZES[0]), 1.0, [0.0] * 3, ["rgb.png", "tall.png"],
    ),
    "ranges": (
        LAYOUTS.RGB, (1, 3, ct.RangeDim(4, 100_000, default=16), ct.RangeDim(4, 100_000, default=24)), 1.0, [0.0] * 3,
        ["rgb.png", "tall.png"],
    ),
}


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def convert(name):
    layout, shape, scale, bias, _ = CASES[name]
    half = layout == LAYOUTS.GRAYSCALE_FLOAT16
    channels = 3 if layout in (LAYOUTS.RGB, LAYOUTS.BGR) else 1
    traced = torch.jit.trace(Doubled(), torch.zeros(1, channels, 16, 24))
    return ct.convert(
        traced,
        inputs=[ct.ImageType(name="image", shape=shape, scale=scale, bias=bias, color_layout=layout)],
        outputs=[ct.TensorType(name="y", dtype=np.float16 if half else np.float32)],
        minimum_deployment_target=ct.target.iOS16,
        compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
    )


def smooth(seed, height, width, channels):
    """Waves, which JPEG keeps well."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0, 0.4, (channels, 3))]
    return np.round(127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)


def files():
    color, gray = smooth(1, 16, 24, 3), smooth(2, 16, 24, 1)[..., 0]
    rgb = Image.fromarray(color)
    rgb.save(FOLDER / "rgb.png")
    rgb.quantize(16).save(FOLDER / "palette.png")
    Image.fromarray(gray).save(FOLDER / "gray.png")
    Image.fromarray((gray > 127).astype(np.uint8) * 255).convert("1").save(FOLDER / "bits.png")
    Image.fromarray(np.dstack([color, np.full_like(gray, 255)])).save(FOLDER / "opaque.png")
    Image.fromarray(np.dstack([color, gray])).save(FOLDER / "transparent.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(FOLDER / "deep.png")
    rgb.save(FOLDER / "plain.jpg", quality=95, subsampling=0)
    rgb.save(FOLDER / "subsampled.jpg", quality=95, subsampling=2)
    rgb.save(FOLDER / "progressive.jpg", quality=95, subsampling=0, progressive=True)
    rgb.convert("CMYK").save(FOLDER / "cmyk.jpg")
    Image.fromarray(gray).save(FOLDER / "gray.jpg", quality=95)
    Image.fromarray(smooth(3, 20, 10, 3)).save(FOLDER / "tall.png")


def expected(name, file):
    layout, _, scale, bias, _ = CASES[name]
    image = Image.open(FOLDER / file)
    if layout in (LAYOUTS.RGB, LAYOUTS.BGR):
        pixels = np.asarray(image.convert("RGB"), np.float64).transpose(2, 0, 1)
        pixels = pixels[::-1] if layout == LAYOUTS.BGR else pixels
    else:
        pixels = np.asarray(image.convert("L"), np.float64)[None]
    kind = np.float16 if layout == LAYOUTS.GRAYSCALE_FLOAT16 else np.float32
    value = 2 * (pixels * scale + np.reshape(bias, (-1, 1, 1)))
    np.save(FOLDER / f"{name}-{file}.npy", value[None].astype(kind))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    make_packages.FOLDER = FOLDER
    files()
    for name, case in CASES.items():
        make_packages.save(name, convert(name))
        for file in case[-1]:
            expected(name, file)
