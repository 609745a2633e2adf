"""W5 by WebDataset's own stages, without worker processes: prints the seconds for N integers."""
import sys
import time

import webdataset as wds

n = int(sys.argv[1])
pipe = wds.DataPipeline(lambda: iter(range(n)), wds.map(lambda v: v + 1), wds.select(lambda v: v % 2 == 0),
                        wds.shuffle(1000, initial=1000), wds.batched(100, collation_fn=list, partial=True))
t = time.perf_counter()
k = sum(len(b) for b in pipe)
t = time.perf_counter() - t
assert k == n // 2
print(t)
