"""Makes the files beside it: pictures, and what Pillow makes of them. Needs numpy and pillow (made with 13.0.0)."""
import io
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
