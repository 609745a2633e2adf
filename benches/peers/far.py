"""Reads all objects of an index over HTTP, as people do by hand: python far.py aio|curl|threads URL IN_FLIGHT

Prints the seconds it took, and the CPU seconds, without start-up.
"""
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request

impl, url, in_flight = sys.argv[1], sys.argv[2], int(sys.argv[3])
index = urllib.request.urlopen(url + "index.txt").read().decode().splitlines()
urls = [url + line.split("\t")[0] for line in index]
want = sum(int(line.split("\t")[1]) for line in index)


def cpu():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def aio():
    import asyncio

    import aiohttp
    try:
        import uvloop
        uvloop.install()
    except ImportError:
        pass

    async def run():
        got = 0
        gate = asyncio.Semaphore(in_flight)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:

            async def one(u):
                async with gate, session.get(u) as answer:
                    return len(await answer.read())

            for size in asyncio.as_completed([one(u) for u in urls]):
                got += await size
        return got

    begun = time.perf_counter(), cpu()
    return asyncio.run(run()), begun


def threads():
    from concurrent.futures import ThreadPoolExecutor

    import urllib3
    pool = urllib3.PoolManager(maxsize=in_flight)
    begun = time.perf_counter(), cpu()
    with ThreadPoolExecutor(in_flight) as executor:
        return sum(executor.map(lambda u: len(pool.request("GET", u).data), urls)), begun


def curl():
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.writelines(f'url = "{u}"\noutput = "/dev/null"\n' for u in urls)
        config.flush()
        begun = time.perf_counter(), cpu()
        subprocess.run(
            ["curl", "-sS", "--parallel", "--parallel-max", str(in_flight), "--parallel-immediate", "-K", config.name],
            check=True,
        )
    return want, begun


got, begun = {"aio": aio, "threads": threads, "curl": curl}[impl]()
assert got == want, (got, want)
print(time.perf_counter() - begun[0], cpu() - begun[1])
