"""Batches over Arrow Flight on loopback: python flight.py COUNT BYTES

Prints the seconds for COUNT record batches of BYTES bytes each, from a server in a process of its own, without start-up.
"""
import multiprocessing
import sys
import time

import pyarrow
import pyarrow.flight as flight

count, size = int(sys.argv[1]), int(sys.argv[2])
SCHEMA = pyarrow.schema([("values", pyarrow.uint8())])


class Server(flight.FlightServerBase):
    def __init__(self, location):
        super().__init__(location)
        # The same memory each time: making it is not timed.
        self.batch = pyarrow.record_batch([pyarrow.array(bytearray(size), pyarrow.uint8())], schema=SCHEMA)

    def do_get(self, context, ticket):
        return flight.GeneratorStream(SCHEMA, (self.batch for _ in range(count)))


def serve(ports):
    server = Server("grpc://127.0.0.1:0")
    ports.put(server.port)
    server.serve()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    client = flight.connect(f"grpc://127.0.0.1:{ports.get(timeout=60)}")
    begun = time.perf_counter()
    batches = sum(1 for _ in client.do_get(flight.Ticket(b"")))
    seconds = time.perf_counter() - begun
    assert batches == count, f"{batches} of {count} batches"
    server.terminate()
    print(seconds)
