"""Makes what Pillow's draft mode, libjpeg-turbo's scaled decode, makes of the JPEGs beside it (made with 13.0.0)."""
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
NAMES = ("rgb444", "rgb422", "rgb420", "progressive", "gray", "cmyk", "adobe_rgb", "flat411", "flat_mixed")

for name in NAMES:
    for scale in (2, 4, 8):
        image = Image.open(HERE / f"{name}.jpg")
        width, height = image.size
        image.draft(None, (max(width // scale, 1), max(height // scale, 1)))
        assert image.size == (-(-width // scale), -(-height // scale)), (name, scale, image.size)
        pixels = Image.fromarray(np.asarray(image.convert("RGB")))
        pixels.save(HERE / f"turbo.{name}.{scale}.png", optimize=True)
print(sum(path.stat().st_size for path in HERE.glob("turbo.*")), "bytes")
