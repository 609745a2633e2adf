"""Makes masks/*.png and masks/expected.txt, by Pillow 13.0.0 and numpy 2.4.6.

Each line of expected.txt is a file's name, its width and the classes that were written, which are also those that Pillow
reads of palettes, of gray of 1, 8 and 16 bits. Gray of 2 and 4 bits, which Pillow does not write and reads scaled, is a
palette whose header says gray. Files named *.unread.png are none that a mask is read from.
"""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent / "masks"
HERE.mkdir(exist_ok=True)
WIDTH, HEIGHT = 19, 7
lines = []


def classes(count):
    place = np.arange(WIDTH * HEIGHT)
    return ((place * place // 3 + place // WIDTH) % count).reshape(HEIGHT, WIDTH)


def check(name, values, scale=1):
    read = np.array(Image.open(HERE / name)).astype(np.int64)
    assert (read == values * scale).all(), name
    lines.append(" ".join([name, str(WIDTH), *map(str, values.flatten())]))


def palette(name, values, colours, **options):
    image = Image.fromarray(values.astype(np.uint8), "P")
    image.putpalette([(place * 67 + 40) % 256 for place in range(3 * colours)])
    image.save(HERE / name, **options)
    check(name, values)


def to_gray(source, name, values, scale):
    """The same pixels without a palette."""
    data, at = (HERE / source).read_bytes(), 8
    out = data[:8]
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            body = body[:9] + b"\0" + body[10:]
        if kind != b"PLTE":
            out += struct.pack(">I", size) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        at += 12 + size
    (HERE / name).write_bytes(out)
    check(name, values, scale)


# As in Pascal VOC: 21 classes, and 255 for what is not to be learned.
voc = classes(22)
voc[voc == 21] = 255
palette("palette8.png", voc, 256)
palette("palette_short.png", voc, 21)
palette("palette_transparent.png", classes(5), 256, transparency=2)
for bits in (1, 2, 4):
    palette(f"palette{bits}.png", classes(1 << bits), 1 << bits, bits=bits)
for bits, scale in ((2, 85), (4, 17)):
    to_gray(f"palette{bits}.png", f"gray{bits}.png", classes(1 << bits), scale)

Image.fromarray(classes(2).astype(bool)).save(HERE / "gray1.png")
check("gray1.png", classes(2))
Image.fromarray(classes(250).astype(np.uint8)).save(HERE / "gray8.png")
check("gray8.png", classes(250))
Image.fromarray(classes(9).astype(np.uint8)).save(HERE / "gray_transparent.png", transparency=3)
check("gray_transparent.png", classes(9))
Image.fromarray((classes(1000) * 65).astype(np.uint16)).save(HERE / "gray16.png")
check("gray16.png", classes(1000) * 65)

# Interlaced, which Pillow reads and does not write.
values, bits = classes(16), 4
rows = b""
for x, y, step_x, step_y in (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
):  # fmt: skip
    for row in values[y::step_y, x::step_x]:
        text = "".join(f"{value:04b}" for value in row)
        rows += b"\0" + int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")
out = b"\x89PNG\r\n\x1a\n"
header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, 0, 0, 0, 1)
for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
    out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
(HERE / "interlaced4.png").write_bytes(out)
check("interlaced4.png", values, 17)

small = Image.new("RGB", (3, 2), (1, 1, 1))
for mode in ("RGB", "RGBA", "LA"):
    small.convert(mode).save(HERE / f"{mode.lower()}.unread.png")
small.save(HERE / "gray.unread.gif")
exif = Image.Exif()
exif[0x0112] = 6
small.convert("L").save(HERE / "turned.unread.png", exif=exif)
(HERE / "expected.txt").write_text("\n".join(lines) + "\n")
