"""W2 with the settings that a peer finds by itself or has by default: JPEGs of a folder of folders, decoded,
RandomResizedCrop to 224, flip, float32, batches of 32, for 8 s after 12 s.

tuning_w2.py tfdata|torch|torch_workers FOLDER: prints the batches per second. `tfdata` has AUTOTUNE for calls and prefetch,
`torch` the defaults of DataLoader (no workers), `torch_workers` as many workers as cores.
"""
import glob
import os
import sys
import time

peer, folder = sys.argv[1:3]
paths = sorted(glob.glob(folder + "/*/*.jpg"))
SETTLE, COUNT, BATCH = 12, 8, 32


def tfdata():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def one(path):
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data), tf.zeros([0, 0, 4]), area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True)
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.resize(tf.image.decode_and_crop_jpeg(data, window, channels=3), [224, 224])
        return tf.image.random_flip_left_right(image) / 255

    data = tf.data.Dataset.from_tensor_slices(paths).repeat().map(one, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(BATCH).prefetch(tf.data.AUTOTUNE))


class Pictures:
    def __init__(self):
        import torch
        from torchvision.transforms import v2

        self.transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                                     v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return len(paths) * 1000

    def __getitem__(self, index):
        from torchvision.io import decode_jpeg, read_file

        return self.transform(decode_jpeg(read_file(paths[index % len(paths)])))


def torch(workers=0):
    from torch.utils.data import DataLoader

    return iter(DataLoader(Pictures(), batch_size=BATCH, num_workers=workers))


batches = {"tfdata": tfdata, "torch": torch, "torch_workers": lambda: torch(os.cpu_count())}[peer]()
next(batches)
begun = time.perf_counter()
while time.perf_counter() - begun < SETTLE:
    next(batches)
since, count = time.perf_counter(), 0
while time.perf_counter() - since < COUNT:
    next(batches)
    count += 1
print(count / (time.perf_counter() - since))
