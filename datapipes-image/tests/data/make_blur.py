"""Makes blur.*.png of resize.source.png, by torchvision 0.29.2 (torch 2.15.0). Needs make.py to have run."""

from pathlib import Path

from PIL import Image
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).parent

source = Image.open(HERE / "resize.source.png").convert("RGB")
for image, name in ((source, "rgb"), (source.getchannel(1), "gray")):
    for kernel, sigma in (((3, 3), (0.5, 0.5)), ((9, 5), (1.7, 0.9)), ((23, 39), (4.0, 7.0))):
        blurred = F.gaussian_blur(image, list(kernel), list(sigma))
        blurred.save(HERE / f"blur.{name}.{kernel[0]}x{kernel[1]}.png", optimize=True)
