"""Makes `NAME.scaled.png` beside each NAME.jpg below: what Pillow (libjpeg-turbo) makes of it at 1/2, 1/4 and 1/8, one
below the other, to the right of each black. Needs numpy and pillow (made with 13.0.0, libjpeg-turbo 3.2.0)."""
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
NAMES = "rgb444 rgb422 rgb420 progressive restarts gray cmyk adobe_rgb flat411 flat_mixed flat_gray".split()

for name in NAMES:
    rows = []
    for scale in (2, 4, 8):
        image = Image.open(HERE / f"{name}.jpg")
        width, height = image.size
        image.draft(None, (max(width // scale, 1), max(height // scale, 1)))
        assert image.size == (-(-width // scale), -(-height // scale)), (name, scale, image.size)
        pixels = np.asarray(image.convert("RGB"))
        rows.append(np.pad(pixels, ((0, 0), (0, -(-width // 2) - pixels.shape[1]), (0, 0))))
    Image.fromarray(np.concatenate(rows)).save(HERE / f"{name}.scaled.png", optimize=True)
