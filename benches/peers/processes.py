"""Items through Python's processes: 600 kB or 100 bytes each, filled and no more.

processes.py torch|pool large|small COUNT: prints the seconds of an epoch, processes started and warm.
"""
import sys
import time

peer, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
BYTES = 3 * 224 * 224 * 4 if size == "large" else 100
# What each does best: large items alone, small ones many at a time.
AT_ONCE = 1 if size == "large" else 512


def make(n):
    import numpy
    return numpy.full(BYTES, n & 255, numpy.uint8)


if peer == "torch":
    import torch

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, n):
            return torch.full((BYTES,), n & 255, dtype=torch.uint8)

    loader = torch.utils.data.DataLoader(Items(), batch_size=None if AT_ONCE == 1 else AT_ONCE, num_workers=2,
                                         persistent_workers=True, prefetch_factor=8)

    def run():
        return sum(1 if AT_ONCE == 1 else len(item) for item in loader)
else:
    import multiprocessing

    pool = multiprocessing.Pool(2)

    def run():
        return sum(1 for _ in pool.imap(make, range(count), chunksize=AT_ONCE))

assert run() == count
begun = time.perf_counter()
assert run() == count
print(time.perf_counter() - begun)
