"""Makes the files beside it: pictures, and what Pillow makes of them. Needs numpy and pillow (made with 13.0.0)."""
import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent


def picture(w, h):
    """Gradients with a hard edge and a disk; no symmetry."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    out = np.stack([40 + 180 * x / w, 30 + 170 * y / h, 200 - 90 * (x + y) / (w + h)], -1)
    out[(x - 0.3 * w) ** 2 + (y - 0.35 * h) ** 2 < (0.2 * h) ** 2] = (220, 60, 40)
    out[(x > 0.75 * w) & (y > 0.5 * h)] = (25, 90, 160)
    return out.round().astype(np.uint8)


def expect(name, image):
    """What the picture should decode to."""
    Image.fromarray(np.asarray(image.convert("RGB"))).save(HERE / f"{name}.expected.png", optimize=True)


def jpeg(name, image, **options):
    image.save(HERE / f"{name}.jpg", quality=90, optimize=True, **options)
    expect(name, Image.open(HERE / f"{name}.jpg"))


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(path, pixels, depth, color, passes=((0, 0, 1, 1),), extra=b""):
    """A PNG by hand, for what Pillow does not write. `pixels` has rows of whole bytes per pixel."""
    h, w = pixels.shape[:2]
    raw = b""
    for x, y, dx, dy in passes:
        for row in pixels[y::dy, x::dx]:
            if row.size:
                raw += b"\0" + row.astype(">u2" if depth == 16 else "u1").tobytes()
    head = struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, int(len(passes) > 1))
    data = png_chunk(b"IHDR", head) + extra + png_chunk(b"IDAT", zlib.compress(raw, 9)) + png_chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def flat_jpeg(name, w, h, sampling, restart=0):
    """A baseline JPEG of flat blocks, interleaved, with sampling factors that Pillow does not write."""
    rnd = random.Random(name)
    across, down = (-(-edge // (8 * max(f))) for edge, f in zip((w, h), zip(*sampling)))
    if len(sampling) == 1:  # its sampling says nothing
        across, down = -(-w // 8), -(-h // 8)
    out = b"\xff\xd8\xff\xdb\0\x43\0" + bytes([8] * 64)
    out += b"\xff\xc0" + struct.pack(">HBHHB", 8 + 3 * len(sampling), 8, h, w, len(sampling))
    out += b"".join(bytes([i + 1, a << 4 | b, 0]) for i, (a, b) in enumerate(sampling))
    out += b"\xff\xc4\0\x1f\0" + bytes([0, 0, 0, 12] + [0] * 12) + bytes(range(12))  # twelve codes of 4 bits
    out += b"\xff\xc4\0\x15\x10" + bytes([0, 2] + [0] * 14) + bytes([0, 1])  # 00 ends a block
    if restart:
        out += b"\xff\xdd\0\4" + struct.pack(">H", restart)
    out += b"\xff\xda" + struct.pack(">HB", 6 + 2 * len(sampling), len(sampling))
    out += b"".join(bytes([i + 1, 0]) for i in range(len(sampling))) + bytes([0, 63, 0])

    def stuffed(bits):
        bits += "1" * (-len(bits) % 8)
        data = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
        return data.replace(b"\xff", b"\xff\0")

    bits, last = "", [0] * len(sampling)
    for n in range(across * down):
        if restart and n and n % restart == 0:
            out += stuffed(bits) + bytes([0xFF, 0xD0 + (n // restart - 1) % 8])
            bits, last = "", [0] * len(sampling)
        for c, (a, b) in enumerate(sampling):
            for _ in range(a * b if len(sampling) > 1 else 1):
                value = rnd.randint(-100, 100) if c == 0 else rnd.randint(-60, 60)
                step, last[c] = value - last[c], value
                length = abs(step).bit_length()
                bits += f"{length:04b}"
                if length:
                    bits += f"{step if step > 0 else step + (1 << length) - 1:0{length}b}"
                bits += "00"
    (HERE / f"{name}.jpg").write_bytes(out + stuffed(bits) + b"\xff\xd9")
    expect(name, Image.open(HERE / f"{name}.jpg"))


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def main():
    small = Image.fromarray(picture(25, 18))
    jpeg("rgb444", small, subsampling=0)
    jpeg("rgb422", small, subsampling=1)
    jpeg("rgb420", Image.fromarray(picture(49, 35)), subsampling=2)
    jpeg("progressive", small, subsampling=2, progressive=True)
    jpeg("restarts", small, subsampling=2, restart_marker_blocks=1)
    jpeg("gray", small.convert("L"))
    jpeg("cmyk", small.convert("CMYK"))
    jpeg("adobe_rgb", small, keep_rgb=True)

    flat_jpeg("flat411", 41, 9, [(4, 1), (1, 1), (1, 1)], restart=1)
    flat_jpeg("flat_mixed", 23, 17, [(2, 2), (2, 1), (1, 2)])
    flat_jpeg("flat_gray", 23, 17, [(2, 2)], restart=2)

    upright = Image.fromarray(picture(11, 7))
    for n in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = n
        buf = io.BytesIO()
        upright.save(buf, "JPEG", quality=95, subsampling=0, optimize=True, exif=exif)
        (HERE / f"exif{n}.jpg").write_bytes(buf.getvalue())
        expect(f"exif{n}", ImageOps.exif_transpose(Image.open(buf)))

    pixels = picture(13, 11)
    expect("png", Image.fromarray(pixels))
    alpha = (np.arange(13 * 11).reshape(11, 13, 1) % 256).astype(np.uint8)
    wide = pixels.astype(np.uint16) * 257
    png(HERE / "png.rgba8.png", np.concatenate([pixels, alpha], -1), 8, 6)
    png(HERE / "png.rgb16.png", wide, 16, 2)
    png(HERE / "png.rgba16.png", np.concatenate([wide, alpha.astype(np.uint16) * 257], -1), 16, 6)
    png(HERE / "png.interlaced.png", pixels, 8, 2, ADAM7)
    colors, index = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    assert len(colors) <= 256
    palette = png_chunk(b"PLTE", colors.tobytes())
    png(HERE / "png.palette.png", index.reshape(11, 13), 8, 3, extra=palette)
    transparent = palette + png_chunk(b"tRNS", bytes([0, 128, 7]))
    png(HERE / "png.palette_trns.png", index.reshape(11, 13), 8, 3, extra=transparent)

    gray = pixels[..., 0]
    expect("gray_png", Image.fromarray(gray))
    png(HERE / "gray_png.8.png", gray, 8, 0)
    png(HERE / "gray_png.alpha.png", np.stack([gray, alpha[..., 0]], -1), 8, 4)
    png(HERE / "gray_png.16.png", gray.astype(np.uint16) * 257, 16, 0)
    bits = Image.fromarray(gray).convert("1")
    bits.save(HERE / "bits_png.1.png")
    expect("bits_png", bits)

    source = Image.fromarray(picture(24, 20))
    source.save(HERE / "resize.source.png", optimize=True)
    filters = {"bilinear": Image.BILINEAR, "catmull_rom": Image.BICUBIC, "lanczos3": Image.LANCZOS}
    for name, filter in filters.items():
        for w, h in ((11, 9), (31, 27)):
            source.resize((w, h), filter).save(HERE / f"resize.{name}.{w}x{h}.png", optimize=True)
    part = source.crop((3, 2, 20, 15))
    part.resize((9, 9), Image.BILINEAR).save(HERE / "resize.crop.png", optimize=True)
    print(sum(path.stat().st_size for path in HERE.iterdir()), "bytes")


main()
