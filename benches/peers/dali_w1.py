"""W1 by DALI's reader of WebDataset shards, on the CPU, 2 threads: prints the seconds to take every sample once."""
import subprocess
import sys
import tempfile
import time

from nvidia.dali import fn, pipeline_def

paths, total = sys.argv[2:], int(sys.argv[1])


@pipeline_def(batch_size=256, num_threads=2, device_id=None, prefetch_queue_depth=2)
def pipe():
    a, b = fn.readers.webdataset(paths=paths, ext=["jpg", "cls"], missing_component_behavior="error")
    return a, b


t = time.perf_counter()
p = pipe()
p.build()
n = 0
while n < total:
    a, _ = p.run()
    n += sum(s[0] > 0 for s in a.shape())
print(time.perf_counter() - t)
