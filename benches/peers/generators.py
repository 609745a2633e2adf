"""W5 as a chain of Python generators, the fastest of the Python peers: prints the seconds for N integers."""
import random
import sys
import time


def batches(it, n):
    b = []
    for x in it:
        b.append(x)
        if len(b) == n:
            yield b
            b = []
    if b:
        yield b


def shuffled(src, size=1000):
    rng, buf = random.Random(0), []
    for v in src:
        if len(buf) < size:
            buf.append(v)
            continue
        i = rng.randrange(size)
        buf[i], v = v, buf[i]
        yield v
    rng.shuffle(buf)
    yield from buf


n = int(sys.argv[1])
t = time.perf_counter()
k = s = 0
for b in batches(shuffled(filter(lambda v: v % 2 == 0, map(lambda v: v + 1, range(n)))), 100):
    k += len(b)
    s += sum(b)
t = time.perf_counter() - t
assert k == n // 2
print(t)
