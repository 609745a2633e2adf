"""Makes formats/: WebP, GIF, BMP and TIFF, and what Pillow makes of them. Needs numpy and pillow (made with 13.0.0), and
for files of other writers cwebp and webpmux 1.2.4, tiffcp 4.5.0, gifsicle 1.93 and ImageMagick 6.9.11.

`formats/expected.txt` says which picture each file should give.
"""
import io
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent / "formats"
TMP = Path(tempfile.mkdtemp())
expected = {}  # of pixels, the name of a picture
lines = []


def picture(w, h):
    """Gradients with a hard edge and a disk; no symmetry."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float64)
    out = np.stack([40 + 180 * x / w, 30 + 170 * y / h, 200 - 90 * (x + y) / (w + h)], -1)
    out[(x - 0.3 * w) ** 2 + (y - 0.35 * h) ** 2 < (0.2 * h) ** 2] = (220, 60, 40)
    out[(x > 0.75 * w) & (y > 0.5 * h)] = (25, 90, 160)
    return out.round().astype(np.uint8)


def grain(w, h):
    """The same with noise, as a photo has it."""
    noise = np.random.RandomState(7).randint(-25, 26, (h, w, 3))
    return np.clip(picture(w, h).astype(int) + noise, 0, 255).astype(np.uint8)


def expect(name, pixels=None):
    """Writes down what `name` should give: `pixels`, or what Pillow gives."""
    if pixels is None:
        image = Image.open(HERE / name)
        image.load()
        image = ImageOps.exif_transpose(image) if "exif" in name else image
        pixels = np.asarray(image.convert("RGB"))
    key = (pixels.shape, pixels.tobytes())
    if key not in expected:
        expected[key] = f"expected{len(expected):02}.png"
        Image.fromarray(pixels).save(HERE / expected[key], optimize=True)
    lines.append(f"{name} {expected[key]}")


def save(name, image, pixels=None, **options):
    image.save(HERE / name, **options)
    expect(name, pixels)


def write(name, data, pixels=None):
    (HERE / name).write_bytes(data)
    expect(name, pixels)


def run(*command):
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def webp(rgb, rgba, small):
    save("lossy.webp", Image.fromarray(grain(75, 50)), quality=80)
    save("lossy_poor.webp", Image.fromarray(grain(33, 41)), quality=5)
    save("lossy_alpha.webp", rgba, quality=90)
    save("lossless.webp", rgb, lossless=True)
    save("lossless_grain.webp", Image.fromarray(grain(40, 30)), lossless=True)
    save("lossless_alpha.webp", rgba, lossless=True, exact=True)
    save("lossless_dot.webp", Image.new("RGB", (1, 1), (1, 2, 3)), lossless=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("exif6.webp", rgb, lossless=True, exif=exif)
    source = TMP / "rgb.png"
    Image.fromarray(grain(64, 48)).save(source)
    run("cwebp", "-q", 60, "-m", 6, "-segments", 4, "-f", 80, "-sharpness", 5, source, "-o", HERE / "cwebp.webp")
    expect("cwebp.webp")
    run("cwebp", "-q", 40, "-f", 50, "-nostrong", "-segments", 1, source, "-o", HERE / "cwebp_simple.webp")
    expect("cwebp_simple.webp")
    Image.fromarray(picture(40, 30) // 100 * 100).save(source)  # few colours: a palette
    run("cwebp", "-lossless", "-z", 9, source, "-o", HERE / "cwebp_palette.webp")
    expect("cwebp_palette.webp")
    save("animated.webp", rgb, save_all=True, append_images=[small], lossless=True)
    first, second = TMP / "first.webp", TMP / "second.webp"
    Image.fromarray(picture(10, 8)).convert("RGBA").save(first, lossless=True)
    rgba.save(second, quality=50)
    for name, frames in (("animated_part.webp", (first, second)), ("animated_lossy.webp", (second, first))):
        where = ("+100+4+6+0+b", "+100+0+0+0+b")
        parts = [part for frame, at in zip(frames, where) for part in ("-frame", frame, at)]
        run("webpmux", *parts, "-bgcolor", "255,9,99,200", "-o", HERE / name)
        expect(name)


def gif(rgb, small):
    few = rgb.quantize(32, dither=Image.Dither.NONE)
    save("plain.gif", few, interlace=0)
    save("interlaced.gif", few, interlace=1)
    save("transparent.gif", few, transparency=3, interlace=0)
    save("animated.gif", few, save_all=True, append_images=[small.quantize(16)], optimize=False)
    save("bits.gif", rgb.convert("1"))
    run("gifsicle", "-i", "-l", "--careful", HERE / "plain.gif", "-o", HERE / "gifsicle.gif")
    expect("gifsicle.gif")
    plain = (HERE / "plain.gif").read_bytes()
    assert plain[10] & 0x87 == 0x84 and plain[13 + 96] == 0x2C
    palette, frame = plain[13 : 13 + 96], plain[13 + 96 :]
    screen = lambda w, h, flags: b"GIF89a" + struct.pack("<HHBBB", w, h, flags, 5, 0)
    at = lambda x, y, flags: b"," + struct.pack("<HH", x, y) + frame[5:9] + bytes([flags]) + frame[10:]
    write("screen_larger.gif", screen(40, 30, 0x84) + palette + at(7, 5, 0))
    clear = b"!\xf9\4\1\0\0\x0b\0"
    write("screen_larger_transparent.gif", screen(40, 30, 0x84) + palette + clear + at(7, 5, 0))
    write("screen_smaller.gif", screen(10, 12, 0x84) + palette + at(3, 2, 0))
    write("local.gif", screen(*rgb.size, 0x84) + palette[::-1] + at(0, 0, 0x84)[:10] + palette + frame[10:])
    write("local_only.gif", screen(*rgb.size, 0) + at(0, 0, 0x84)[:10] + palette + frame[10:])
    write("no_palette.gif", screen(*rgb.size, 0) + at(0, 0, 0))
    write("gif87.gif", b"GIF87a" + screen(*rgb.size, 0x84)[6:] + palette + at(0, 0, 0))
    comments = b"!\xfe" + b"\x04some" * 3 + b"\0" + b"!\xff\x0bXMP DataXMP\x02ab\0" + b"!\x01\x02xy\0"
    write("extensions.gif", screen(*rgb.size, 0x84) + palette + comments + at(0, 0, 0))
    # The palette ends before the transparent colour.
    beyond = b"!\xf9\4\1\0\0\xc8\0"
    write("transparent_beyond.gif", screen(40, 30, 0x84) + palette + beyond + at(7, 5, 0))


def bmp_file(bits, rows, w, h, compression=0, palette=b"", masks=b"", size=40, colors=0):
    head = struct.pack("<IiiHHIIiiII", size, w, h, 1, bits, compression, len(rows), 2835, 2835, colors, 0)
    if size == 12:
        head = struct.pack("<IHHHH", 12, w, h, 1, bits)
    head += masks + bytes(max(0, size - len(head) - len(masks)))
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(rows), 0, 0, offset) + head + palette + rows


def packed(index, bits):
    """Rows of indexes from below, each filled up to 4 bytes."""
    out = b""
    for row in index[::-1]:
        text = "".join(f"{value:0{bits}b}" for value in row)
        text += "0" * (-len(text) % 32)
        out += bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    return out


def bmp(rgb, rgba):
    w, h = rgb.size
    save("rgb24.bmp", rgb)
    save("rgba32.bmp", rgba)
    save("gray8.bmp", rgb.convert("L"))
    save("palette8.bmp", rgb.quantize(200, dither=Image.Dither.NONE))
    save("bits1.bmp", rgb.convert("1"))
    pixels = np.asarray(rgb)[::-1]
    rows = lambda values, kind: b"".join(r.tobytes() + bytes(-len(r.tobytes()) % 4) for r in values.astype(kind))
    few = rgb.quantize(16, dither=Image.Dither.NONE)
    index = np.asarray(few)
    colors = np.asarray(few.getpalette()[:48], np.uint8).reshape(16, 3)
    quads = np.concatenate([colors[:, ::-1], np.zeros((16, 1), np.uint8)], -1).tobytes()
    write("palette4.bmp", bmp_file(4, packed(index, 4), w, h, palette=quads))
    write("core4.bmp", bmp_file(4, packed(index, 4), w, h, palette=colors[:, ::-1].tobytes(), size=12))
    write("core24.bmp", bmp_file(24, rows(pixels[..., ::-1].reshape(h, -1), "u1"), w, h, size=12))
    top = rows(pixels[::-1, :, ::-1].reshape(h, -1), "u1")
    write("top_down24.bmp", bmp_file(24, top, w, -h))
    write("palette2.bmp", bmp_file(2, packed(index % 4, 2), w, h, palette=quads[:16]), colors[index % 4])
    wide = pixels.astype(int)
    r, g, b = wide[..., 0], wide[..., 1], wide[..., 2]
    write("rgb555.bmp", bmp_file(16, rows(r >> 3 << 10 | g >> 3 << 5 | b >> 3, "<u2"), w, h))
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    rgb565 = rows(r >> 3 << 11 | g >> 2 << 5 | b >> 3, "<u2")
    write("rgb565.bmp", bmp_file(16, rgb565, w, h, 3, masks=masks, size=40))
    masks = struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000)
    write("masks32.bmp", bmp_file(32, rows(r | g << 8 | b << 16 | 77 << 24, "<u4"), w, h, 3, masks=masks, size=124))
    run4, run8 = b"", b""
    for row in index[::-1]:
        half = len(row) // 2 | 1
        run8 += bytes([0, half]) + bytes(row[:half].tolist()) + b"\0" * (half & 1)
        run8 += b"".join(bytes([1, value]) for value in row[half:]) + b"\0\0"
        nibbles = row[:half].tolist() + [0] * (-half % 4)
        run4 += bytes([0, half]) + bytes(a << 4 | b for a, b in zip(nibbles[::2], nibbles[1::2]))
        rest = row[half:].tolist()
        run4 += b"".join(bytes([2, a << 4 | b]) for a, b in zip(rest[: len(rest) & ~1 : 2], rest[1::2]))
        run4 += bytes([1, rest[-1] << 4]) * (len(rest) & 1) + b"\0\0"
    palette = quads + bytes(960)
    write("rle8.bmp", bmp_file(8, run8 + b"\0\1", w, h, 1, palette=palette), colors[index])
    write("rle4.bmp", bmp_file(4, run4[:-2] + b"\0\1", w, h, 2, palette=quads), colors[index])
    few.save(TMP / "few.png")
    run("/usr/bin/convert", TMP / "few.png", "-compress", "RLE", f"BMP3:{HERE / 'magick_rle8.bmp'}")
    expect("magick_rle8.bmp")
    rgb.save(TMP / "rgb.png")
    run("/usr/bin/convert", TMP / "rgb.png", f"BMP:{HERE / 'magick_v5.bmp'}")
    expect("magick_v5.bmp")


def tiff(rgb, rgba):
    gray = rgb.convert("L")
    for name, compression in (("none", None), ("lzw", "tiff_lzw"), ("deflate", "tiff_adobe_deflate"), ("packbits", "packbits")):
        save(f"rgb_{name}.tif", rgb, compression=compression)
    save("gray.tif", gray)
    save("bits.tif", rgb.convert("1"))
    save("bits_packbits.tif", rgb.convert("1"), compression="packbits")
    save("palette.tif", rgb.quantize(200, dither=Image.Dither.NONE), compression="tiff_lzw")
    save("rgba.tif", rgba, compression="tiff_lzw")
    save("cmyk.tif", rgb.convert("CMYK"), compression="tiff_lzw")
    pages = io.BytesIO()
    rgb.save(pages, "TIFF", save_all=True, append_images=[gray])
    write("pages.tif", pages.getvalue().rstrip(b"\0"))  # without the padding of the last page
    exif = Image.Exif()
    exif[0x0112] = 6
    save("exif6.tif", rgb, exif=exif, compression="tiff_lzw")
    plain = HERE / "rgb_none.tif"
    for name, options in {
        "big_endian": ("-B", "-c", "none"),
        "tiles": ("-t", "-w", 16, "-l", 16, "-c", "none"),
        "tiles_lzw": ("-t", "-w", 16, "-l", 16, "-c", "lzw:2"),
        "planes": ("-p", "separate", "-c", "lzw:2", "-r", 5),
        "big_tiff": ("-8", "-c", "zip"),
        "strips": ("-r", 3, "-c", "zip:2"),
        "strips_packbits": ("-r", 2, "-c", "packbits"),
    }.items():
        run("tiffcp", *options, plain, HERE / f"{name}.tif")
        expect(f"{name}.tif")
    run("tiffcp", "-c", "lzw:2", "-r", 4, HERE / "rgba.tif", HERE / "rgba_predictor.tif")
    expect("rgba_predictor.tif")
    run("tiffcp", "-B", "-t", "-w", 16, "-l", 16, "-c", "lzw:2", HERE / "palette.tif", HERE / "palette_tiles.tif")
    expect("palette_tiles.tif")
    # The fourth sample is alpha by itself; of no meaning; and alpha that colours were multiplied by.
    data = (HERE / "rgba_predictor.tif").read_bytes()
    entry = data.index(struct.pack("<HHI", 338, 3, 1)) + 8
    for name, kind in (("rgbx_predictor", 0), ("rgba_multiplied", 1)):
        write(f"{name}.tif", data[:entry] + struct.pack("<H", kind) + data[entry + 2 :])
    white = (HERE / "gray.tif").read_bytes()
    for name in ("gray", "bits"):
        data = (HERE / f"{name}.tif").read_bytes()
        entry = data.index(struct.pack("<HHI", 262, 3, 1)) + 8
        assert data[entry : entry + 2] == b"\1\0"
        write(f"{name}_white_is_zero.tif", data[:entry] + b"\0\0" + data[entry + 2 :])
    # 16 bits: the nearest of 8, which Pillow does not say.
    wide = np.asarray(gray).astype(int) * 256 + np.arange(gray.width) * 11
    nearest = np.repeat(((wide + 128) // 257).astype(np.uint8)[..., None], 3, -1)
    save("gray16.tif", Image.fromarray(wide.astype(np.uint16)), nearest)
    rgb.save(TMP / "rgb.png")
    run("/usr/bin/convert", TMP / "rgb.png", "-depth", 16, "-define", "png:color-type=2", "-compress", "LZW", HERE / "rgb16.tif")
    expect("rgb16.tif", np.asarray(rgb))
    run("tiffcp", "-B", "-c", "zip:2", HERE / "rgb16.tif", HERE / "rgb16_big_endian.tif")
    expect("rgb16_big_endian.tif", np.asarray(rgb))
    # Not read.
    run("tiffcp", "-p", "separate", "-t", "-w", 16, "-l", 16, plain, HERE / "planes_of_tiles.unread.tif")
    rgba.convert("LA").save(HERE / "gray_alpha.unread.tif")
    gray.convert("F").save(HERE / "float.unread.tif")
    rgb.convert("YCbCr").save(HERE / "ycbcr.unread.tif")
    rgb.save(HERE / "jpeg.unread.tif", compression="jpeg")
    rgb.convert("1").save(HERE / "fax.unread.tif", compression="group4")
    gray.convert("I").save(HERE / "signed.unread.tif")


def main():
    HERE.mkdir(exist_ok=True)
    for path in HERE.iterdir():
        path.unlink()
    rgb = Image.fromarray(picture(23, 17))
    alpha = (np.arange(23 * 17).reshape(17, 23, 1) * 5 % 256).astype(np.uint8)
    rgba = Image.fromarray(np.concatenate([picture(23, 17), alpha], -1))
    small = Image.fromarray(picture(23, 17)[::-1].copy())
    webp(rgb, rgba, small)
    gif(rgb, small)
    bmp(rgb, rgba)
    tiff(rgb, rgba)
    (HERE / "expected.txt").write_text("\n".join(lines) + "\n")
    print(sum(path.stat().st_size for path in HERE.iterdir()), "bytes")


main()
