"""Makes coco-rle.json: masks by a fixed generator, and the runs that pycocotools 2.0.x makes of them.

pip install pycocotools numpy
"""

import json
import random
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pycocotools import mask as rle

rng = random.Random(5)
cases = []
for height, width, kind in [
    (1, 1, "zeros"), (1, 1, "ones"), (4, 3, "ones"), (5, 7, "noise"), (33, 17, "noise"), (64, 80, "blob"), (300, 200, "blob"),
    (2000, 3, "zeros"), (2000, 30, "blob"), (1, 200, "noise"), (200, 1, "blob"), (64, 64, "first"),
]:
    mask = np.zeros((height, width), np.uint8)
    if kind == "ones":
        mask[:] = 1
    elif kind == "noise":
        mask[:] = [[rng.random() < 0.4 for _ in range(width)] for _ in range(height)]
    elif kind == "first":
        mask[0, 0] = 1
    elif kind == "blob":
        y, x = np.mgrid[:height, :width]
        mask[:] = ((y - height / 2.3) / (height / 3)) ** 2 + ((x - width / 1.9) / (width / 3.1)) ** 2 < 1
    packed = rle.encode(np.asfortranarray(mask))
    assert (rle.decode(packed) == mask).all()
    flat, runs, value = mask.flatten(order="F"), [], 0
    for pixel in flat:
        if not runs or pixel != value:
            runs += [0] if not runs and pixel == 1 else []
            runs.append(0)
            value = pixel
        runs[-1] += 1
    counts = packed["counts"].decode()
    cases.append({"size": [height, width], "counts": counts, "runs": runs, "area": int(rle.area(packed))})
out = {"pycocotools": version("pycocotools"), "cases": cases}
Path(__file__).with_name("coco-rle.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")
