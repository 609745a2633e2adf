"""Times how NumPy, and SPDL if it is there, read arrays from memory: one line each, with its name and seconds a file."""

import io
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy


def best(run, parts, threads, files):
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            begun = time.perf_counter()
            for _ in pool.map(run, parts):
                pass
            times.append(time.perf_counter() - begun)
    return min(times) / files


def numpy_npy(data):
    return numpy.load(io.BytesIO(data)).nbytes


def numpy_npz(data):
    with numpy.load(io.BytesIO(data)) as arrays:
        return sum(arrays[name].nbytes for name in arrays)


PEERS = {("numpy.load", "npy"): numpy_npy, ("numpy.load", "npz"): numpy_npz}
try:
    import spdl.io

    PEERS["spdl.io.load_npy", "npy"] = lambda data: spdl.io.load_npy(data, copy=False).nbytes
    PEERS["spdl.io.load_npz", "npz"] = lambda data: sum(array.nbytes for array in spdl.io.load_npz(data).values())
except ImportError:
    pass

kind, threads, count, path = sys.argv[1:]
data = Path(path).read_bytes()
# A file of its own each time, as they would be.
files = [bytes(bytearray(data)) for _ in range(int(count))]
for (name, of), run in PEERS.items():
    if of == kind:
        threads = int(threads)
        print(f"{name}\t{best(run, files, threads, len(files)):.9f}")
        # The call alone, without what a pool of threads takes for each.
        parts = [files[n::threads] for n in range(threads)]
        print(f"{name} alone\t{best(lambda part: [run(data) for data in part], parts, threads, len(files)):.9f}")
