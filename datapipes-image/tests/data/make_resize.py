"""Makes resize.cases.txt: what Pillow 13.0.0 makes of parts of resize.source.png. Needs make.py to have run.

A line: filter, channels (1: the red ones), the box (left, top, right, bottom), the size, the bytes of the result.
"""

from pathlib import Path

import PIL
from PIL import Image

HERE = Path(__file__).parent
FILTERS = {
    "Nearest": Image.NEAREST,
    "Box": Image.BOX,
    "Bilinear": Image.BILINEAR,
    "Hamming": Image.HAMMING,
    "CatmullRom": Image.BICUBIC,
    "Lanczos3": Image.LANCZOS,
}
WHOLE = (0, 0, 24, 20)
CASES = [
    (WHOLE, (9, 7)),
    (WHOLE, (29, 6)),  # down first
    (WHOLE, (21, 4)),  # down first
    (WHOLE, (7, 20)),
    (WHOLE, (24, 5)),
    (WHOLE, (1, 1)),
    (WHOLE, (40, 3)),
    (WHOLE, (5, 31)),
    ((3, 2, 20, 15), (9, 9)),
    ((5, 0, 15, 20), (10, 9)),
    ((2.5, 3.25, 17.75, 16.5), (13, 11)),
    ((7.3, 4.1, 9.9, 5.2), (12, 5)),
    ((0.1, 19.7, 23.9, 20), (6, 3)),
    ((23, 0, 24, 20), (3, 2)),
]


def main():
    assert PIL.__version__ == "13.0.0", "older ones go across first, always"
    rgb = Image.open(HERE / "resize.source.png").convert("RGB")
    assert rgb.size == (24, 20)
    lines = []
    for f, (name, filter) in enumerate(FILTERS.items()):
        for n, (box, size) in enumerate(CASES):
            image = rgb if (f + n) % 2 else rgb.getchannel(0)
            result = image.resize(size, filter, box=box)
            channels = len(result.getbands())
            lines.append(" ".join(map(str, (name, channels, *box, *size, result.tobytes().hex()))))
    (HERE / "resize.cases.txt").write_text("\n".join(lines) + "\n")


main()
