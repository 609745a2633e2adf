"""Makes the files `colour.*` beside it: what torchvision makes of `uint8` tensors.

Needs torch and torchvision (made with 2.15.0 and 0.29.2, on an x86-64 with AVX-512). Results of one function with several
parameters are stacked in one picture, from the top; the parameters are those of the tests.
"""
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).parent
NEAREST, BILINEAR = v2.InterpolationMode.NEAREST, v2.InterpolationMode.BILINEAR


def source(w=28, h=22):
    """Gradients, a patch of all kinds of colours, the corners of the cube, grays."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    out = np.stack([40 + 180 * x / w, 30 + 170 * y / h, 200 - 90 * (x + y) / (w + h)], -1).round().astype(np.uint8)
    out[2:12, 3:17] = np.random.RandomState(7).randint(0, 256, (10, 14, 3))
    out[14, :8] = [[r, g, b] for r in (0, 255) for g in (0, 255) for b in (0, 255)]
    out[16:18, :] = (np.arange(2 * w) * 255 // (2 * w - 1)).reshape(2, w, 1)
    return torch.from_numpy(out).permute(2, 0, 1).contiguous()


def save(name, images):
    tall = torch.cat(images, dim=1)
    pixels = tall.permute(1, 2, 0).numpy() if tall.shape[0] == 3 else tall[0].numpy()
    Image.fromarray(pixels).save(HERE / f"colour.{name}.png", optimize=True)


def main():
    rgb = source()
    gray = rgb[:1].contiguous()
    dull = rgb // 3 + torch.tensor([20, 90, 160], dtype=torch.uint8).view(3, 1, 1)
    save("source", [rgb])
    save("dull", [dull])
    save("gray", [gray])
    save("grayscale", [F.rgb_to_grayscale(rgb, 1)])

    factors = [0.0, 0.37, 0.5, 1.0, 1.83]
    functions = {
        "brightness": (F.adjust_brightness, factors),
        "contrast": (F.adjust_contrast, factors),
        "saturation": (F.adjust_saturation, factors),
        "sharpness": (F.adjust_sharpness, factors),
        "hue": (F.adjust_hue, [-0.5, -0.13, 0.0, 0.02, 0.31, 0.5]),
        "posterize": (F.posterize, [1, 3, 7]),
        "solarize": (F.solarize, [0, 100, 255]),
    }
    for name, (function, values) in functions.items():
        save(name, [function(rgb, value) for value in values])
        if name not in ("saturation", "hue"):
            save(f"{name}_gray", [function(gray, value) for value in values])
        else:
            assert all(torch.equal(function(gray, value), gray) for value in values)
    for name, function in {"autocontrast": F.autocontrast, "equalize": F.equalize}.items():
        save(name, [function(rgb), function(dull)])
        save(f"{name}_gray", [function(gray)])

    policy = v2.RandAugment()
    moves = [("ShearX", 0.09), ("ShearX", -0.99), ("ShearY", 0.3), ("TranslateX", 7.9), ("TranslateY", -5.0)]
    moves += [("Rotate", 9.0), ("Rotate", -30.0), ("Rotate", 135.0), ("Rotate", 90.0), ("Rotate", 0.0)]
    for name, how, fill in (("nearest", NEAREST, [10.0, 200.0, 90.0]), ("bilinear", BILINEAR, None)):
        moved = lambda op, image: policy._apply_image_or_video_transform(image, *op, how, {torch.Tensor: fill})
        save(f"warp_{name}", [moved(op, rgb) for op in moves])

    lines = []
    for space in (v2.RandAugment, v2.TrivialAugmentWide):
        for kind, (function, _) in space._AUGMENTATION_SPACE.items():
            for bins in (31, 10):
                values = function(bins, 333, 500)
                if values is not None:
                    words = " ".join(str(float(value)) for value in values)
                    lines.append(f"{space.__name__} {kind} {words}")
    (HERE / "colour.magnitudes.txt").write_text("\n".join(lines) + "\n")

    rnd, lines = np.random.RandomState(3), []
    cutmix = v2.CutMix(num_classes=2)
    for _ in range(40):
        w, h = (int(v) for v in rnd.randint(1, 70, 2))
        lam, x, y = float(np.float32(rnd.rand())), int(rnd.randint(w)), int(rnd.randint(h))
        draws = iter([torch.tensor([x]), torch.tensor([y])])
        cutmix._dist = mock.Mock(sample=lambda _: torch.tensor(lam))
        with mock.patch("torch.randint", lambda *_, **__: next(draws)):
            params = cutmix.make_params([torch.zeros(2, 3, h, w)])
        lines.append(" ".join(str(v) for v in (w, h, lam, x, y, *params["box"], params["lam_adjusted"])))
    (HERE / "colour.cutmix.txt").write_text("\n".join(lines) + "\n")

    mixup, images = v2.MixUp(num_classes=3), torch.tensor(rnd.randn(4, 1, 2, 2), dtype=torch.float32)
    mixup._dist = mock.Mock(sample=lambda _: torch.tensor(0.7123))
    mixed, labels = mixup(images, torch.tensor([2, 0, 1, 1]))
    lines = [" ".join(str(float(v)) for v in t.flatten()) for t in (images, mixed, labels)]
    (HERE / "colour.mixup.txt").write_text("\n".join(lines) + "\n")
    print(sum(path.stat().st_size for path in HERE.glob("colour.*")), "bytes")


main()
