"""Makes geometry.*: small pictures and targets, and what torchvision's transforms make of them.

Needs numpy, pillow, torch and torchvision (made with 2.4.6, 13.0.0, 2.15.0 and 0.29.2, on a CPU).
All is the tensor path of `torchvision.transforms.v2.functional`. The names of the pictures say what was done; the test
in `tests/it/geometry.rs` has the same names and numbers. Targets are in geometry.txt: a line of name, kind, the size of the
picture afterwards, and numbers.
"""
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).parent
W, H = 29, 20
NEAREST, BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR


def picture(w, h):
    """Gradients with a disk; no symmetry."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    out = np.stack([40 + 180 * x / w, 30 + 170 * y / h, 200 - 90 * (x + y) / (w + h)], -1)
    out[(x - 0.3 * w) ** 2 + (y - 0.35 * h) ** 2 < (0.25 * h) ** 2] = (220, 60, 40)
    return torch.from_numpy(out.round().astype(np.uint8)).permute(2, 0, 1).contiguous()


SOURCE = picture(W, H)
# A class for each block of 4x3 pixels, so that a shift by a pixel shows.
MASK = torch.tensor([[1 + (x // 4 + 3 * (y // 3)) % 9 for x in range(W)] for y in range(H)], dtype=torch.uint8)
BOXES = [[0, 0, W, H], [2, 3, 11.5, 9.25], [20, 1, 28, 4], [14, 18, 14.5, 20], [6, 6, 6, 6]]
POINTS = [[0, 0], [28, 19], [14.5, 10], [3.25, 17.5], [27, 0.5]]
OUT = []


def save(name, image):
    array = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    Image.fromarray(array).save(HERE / f"geometry.{name}.png", optimize=True)


def numbers(name, kind, value):
    h, w = value.canvas_size
    flat = [f"{number:.5f}".rstrip("0").rstrip(".") for number in value.flatten().tolist()]
    OUT.append(" ".join([name, kind, str(w), str(h), *flat]).replace("-0 ", "0 "))


def targets(name, call, mask=True, fill=255):
    """Mask, boxes and points through one function; `fill` is the mask's."""
    boxes = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(H, W), dtype=torch.float32)
    points = tv_tensors.KeyPoints(POINTS, canvas_size=(H, W), dtype=torch.float32)
    numbers(name, "boxes", call(boxes, None))
    numbers(name, "points", call(points, None))
    if mask:
        save(f"{name}.mask", call(tv_tensors.Mask(MASK), fill).as_subclass(torch.Tensor))


def main():
    save("source", SOURCE)
    save("source.mask", MASK)

    pad = [3, 1, 2, 4]
    save("pad_constant", F.pad(SOURCE, pad, fill=[10, 20, 30]))
    for mode in ["edge", "reflect", "symmetric"]:
        save(f"pad_{mode}", F.pad(SOURCE, pad, padding_mode=mode))
    save("pad_reflect.mask", F.pad(tv_tensors.Mask(MASK), pad, padding_mode="reflect").as_subclass(torch.Tensor))
    targets("pad", lambda part, fill: F.pad(part, pad, fill=fill))
    targets("crop", lambda part, _: F.crop(part, 2, 5, 15, 20))
    targets("center_crop", lambda part, _: F.center_crop(part, [15, 20]))
    # The middle of the new pixel, as for the picture; plain NEAREST is shifted by up to half a pixel.
    exact = InterpolationMode.NEAREST_EXACT
    targets("resize", lambda part, _: F.resize(part, [9, 41], interpolation=exact))
    # Its own `resized_crop` of a mask knows plain NEAREST only.
    targets("resized_crop", lambda part, _: F.resize(F.crop(part, 2, 5, 15, 20), [8, 13], interpolation=exact))
    targets("hflip", lambda part, _: F.horizontal_flip(part))
    targets("vflip", lambda part, _: F.vertical_flip(part))

    # Bilinear values with a colour: torchvision weighs the pixels along the border twice where `fill` is given, so the
    # colour is taken off before and added after.
    colour = torch.tensor([90.0, 5.0, 200.0]).reshape(3, 1, 1)

    def filled(call):
        return (call(SOURCE.float() - colour) + colour).round().clamp(0, 255).to(torch.uint8)

    for name, angle, expand in [("rotate_31", 31, False), ("rotate_-123.4", -123.4, False), ("rotate_31_expand", 31, True)]:
        save(f"{name}.nearest", F.rotate(SOURCE, angle, interpolation=NEAREST, expand=expand, fill=[90, 5, 200]))
        save(f"{name}.bilinear", F.rotate(SOURCE, angle, interpolation=BILINEAR, expand=expand))
        save(f"{name}.filled", filled(lambda part: F.rotate(part, angle, interpolation=BILINEAR, expand=expand)))
        targets(name, lambda part, fill: F.rotate(part, angle, expand=expand, fill=fill))
    for angle in [90, 180, 270]:
        save(f"rotate_{angle}_expand.nearest", F.rotate(SOURCE, angle, expand=True))
        targets(f"rotate_{angle}_expand", lambda part, fill: F.rotate(part, angle, expand=True, fill=fill))
    for name, arguments in [
        ("affine_all", dict(angle=17.3, translate=[3, -2], scale=1.27, shear=[11.9, -7.3])),
        ("affine_shear", dict(angle=0, translate=[0, 0], scale=1.0, shear=[23.1, 0.0])),
        ("affine_small", dict(angle=-71.7, translate=[0, 1], scale=0.53, shear=[0.0, 19.7])),
    ]:
        save(f"{name}.nearest", F.affine(SOURCE, **arguments, interpolation=NEAREST, fill=[90, 5, 200]))
        save(f"{name}.bilinear", F.affine(SOURCE, **arguments, interpolation=BILINEAR))
        save(f"{name}.filled", filled(lambda part: F.affine(part, **arguments, interpolation=BILINEAR)))
        targets(name, lambda part, fill: F.affine(part, **arguments, fill=fill))

    boxes = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(H, W), dtype=torch.float32)
    for size, area in [(1, 1), (0, 0.5), (3, 30)]:
        kept, valid = F.sanitize_bounding_boxes(F.crop(boxes, 2, 5, 15, 20), min_size=size, min_area=area)
        numbers(f"sanitize_{size}_{area}", "boxes", kept)
        OUT.append(f"sanitize_{size}_{area} kept 20 15 " + " ".join(str(i) for i in valid.nonzero().flatten().tolist()))
    (HERE / "geometry.txt").write_text("\n".join(line.strip() for line in OUT) + "\n")


main()
