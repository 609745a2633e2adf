"""A load of `cargo bench --bench tuning`, endless, with the settings that a peer finds by itself or has by default: prints
the batches per second of 8 s after 12 s.

tuning.py shards|pictures|objects tfdata|torch|torch_workers PLACE none|computes|waits [MS]

`tfdata` has AUTOTUNE for calls and prefetch, `torch` the defaults of DataLoader (no workers), `torch_workers` as many workers
as cores. The loads: members of the tar shards of a folder, in batches of 256; JPEGs of a folder of folders, decoded,
RandomResizedCrop to 224, flip, float32, in batches of 32; 2,000 objects of a URL in batches of 64. The consumer computes
for MS after each batch, or waits, but that only in the first 6 s.
"""
import glob
import os
import sys
import tarfile
import time

load, peer, place, consumer = sys.argv[1:5]
STEP = float(sys.argv[5]) / 1e3 if len(sys.argv) > 5 else 0
SETTLE, COUNT = 12, 8
BATCH = {"shards": 256, "pictures": 32, "objects": 64}[load]
if load == "objects":
    names = [f"{place}{n:06}.jpg" for n in range(2000)]
else:
    names = sorted(glob.glob(place + {"shards": "/*.tar", "pictures": "/*/*.jpg"}[load]))
pool = None


def members(shard):
    with tarfile.open(shard) as tar:
        for member in tar:
            yield tar.extractfile(member).read()


def get(url):
    global pool
    if pool is None:
        import urllib3

        pool = urllib3.PoolManager(maxsize=64)
    return pool.request("GET", url).data


def tfdata():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    auto = tf.data.AUTOTUNE

    def of_shard(name):
        read = lambda shard: members(shard.decode())
        return tf.data.Dataset.from_generator(read, args=(name,), output_signature=tf.TensorSpec((), tf.string))

    def picture(path):
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data), tf.zeros([0, 0, 4]), area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True)
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.resize(tf.image.decode_and_crop_jpeg(data, window, channels=3), [224, 224])
        return tf.image.random_flip_left_right(image) / 255

    def item(url):
        return tf.numpy_function(lambda url: get(url.decode()), [url], tf.string)

    data = tf.data.Dataset.from_tensor_slices(names).repeat()
    if load == "shards":
        data = data.interleave(of_shard, num_parallel_calls=auto)
    else:
        data = data.map({"pictures": picture, "objects": item}[load], num_parallel_calls=auto)
    return iter(data.batch(BATCH).prefetch(auto))


class Shards:
    """All shards again and again; a worker reads its part of them."""

    def __iter__(self):
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        own = names[info.id::info.num_workers] if info else names
        while own:
            for shard in own:
                yield from members(shard)


class Files:
    def __init__(self):
        if load == "pictures":
            import torch
            from torchvision.transforms import v2

            self.transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                                         v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return len(names) * 1000

    def __getitem__(self, index):
        name = names[index % len(names)]
        if load == "objects":
            return get(name)
        from torchvision.io import decode_jpeg, read_file

        return self.transform(decode_jpeg(read_file(name)))


def torch(workers=0):
    from torch.utils.data import DataLoader, IterableDataset

    data = type("Stream", (Shards, IterableDataset), {})() if load == "shards" else Files()
    collate = {} if load == "pictures" else {"collate_fn": list}
    return iter(DataLoader(data, batch_size=BATCH, num_workers=workers, **collate))


def step(since_begin):
    end = time.perf_counter() + STEP
    if consumer == "computes":
        while time.perf_counter() < end:
            pass
    elif consumer == "waits" and since_begin < SETTLE / 2:
        time.sleep(STEP)


batches = {"tfdata": tfdata, "torch": torch, "torch_workers": lambda: torch(os.cpu_count())}[peer]()
next(batches)
begun = time.perf_counter()
since, count = None, 0
while True:
    next(batches)
    now = time.perf_counter() - begun
    step(now)
    if since is None:
        since = now if now >= SETTLE else None
        continue
    count += 1
    if now >= SETTLE + COUNT:
        print(count / (now - since), flush=True)
        break
if peer == "tfdata":
    os._exit(0)  # its threads, which wait for Python, would hold up the end
