"""W2 by a peer: JPEGs of a folder of folders, decoded, RandomResizedCrop to 224, flip, float32 CHW normalised, batches of 64.

images_w2.py dali|pillow|torchvision FOLDER THREADS: prints wall and CPU seconds for each picture once, imports and
building not counted.
"""
import glob
import random
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

peer, folder, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
paths = sorted(glob.glob(folder + "/*/*.jpg"))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cpu():
    return sum(getattr(resource.getrusage(who), field) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
               for field in ("ru_utime", "ru_stime"))


def dali():
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=64, num_threads=threads, device_id=None, seed=0)
    def pipe():
        files, _ = fn.readers.file(files=paths, random_shuffle=True)
        image = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0])
        image = fn.resize(image, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", mirror=fn.random.coin_flip(),
                                        mean=[255 * v for v in MEAN], std=[255 * v for v in STD])

    p = pipe()
    p.build()

    def run():
        for _ in range(-(-len(paths) // 64)):
            p.run()[0].as_array()
    return run


def pillow():
    import numpy
    from PIL import Image

    mean, std = (numpy.float32(v).reshape(3, 1, 1) for v in (MEAN, STD))

    def one(path):
        image = Image.open(path).convert("RGB")
        w, h = image.size
        for _ in range(10):
            area = w * h * random.uniform(0.08, 1)
            ratio = 2 ** random.uniform(-0.415, 0.415)
            cw, ch = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if cw <= w and ch <= h:
                x, y = random.randint(0, w - cw), random.randint(0, h - ch)
                break
        else:
            x, y, cw, ch = 0, 0, w, h
        image = image.crop((x, y, x + cw, y + ch)).resize((224, 224), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        return (numpy.asarray(image).transpose(2, 0, 1).astype(numpy.float32) / 255 - mean) / std

    def run():
        with ThreadPoolExecutor(threads) as pool:
            for at in range(0, len(paths), 64):
                numpy.stack(list(pool.map(one, paths[at:at + 64])))
    return run


def torchvision():
    import torch
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def one(path):
        return transform(decode_jpeg(read_file(path)))

    def run():
        with ThreadPoolExecutor(threads) as pool:
            for at in range(0, len(paths), 64):
                torch.stack(list(pool.map(one, paths[at:at + 64])))
    return run


run = {"dali": dali, "pillow": pillow, "torchvision": torchvision}[peer]()
begun, before = time.perf_counter(), cpu()
run()
print(time.perf_counter() - begun, cpu() - before)
