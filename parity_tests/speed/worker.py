"""A contestant's process: it builds what it is told to, and runs it as often as it is told to.

Orders come as lines on stdin and each is answered by one line of JSON on what was stdout; whatever the contestant's
own libraries print goes to stderr. Between orders it blocks on the pipe, so that no thread of its spins while another
contestant is at work. It ends when stdin does.

    prepare FILE    build, compute the outputs for the first time (which compiles), save them to FILE (.npz), and run
                    once: {"build": s, "first": s}
    run N           N calls: {"seconds": [s, …]}
    memory          build and run, in a process that is told nothing else (see `parity_tests.speed.memory`):
                    {"peak_bytes": b, "process_bytes": b}
"""

import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from parity_tests.speed.memory import measure_peak
from parity_tests.speed.workload import Program
from parity_tests.speed.workloads import find_workload


def main() -> None:
    """Serve one contestant: `python -m parity_tests.speed.worker WORKLOAD CONTESTANT DEVICE`."""
    workload, contestant, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = Server(lambda: find_workload(workload).contestant(contestant).load(device), device)
    serve(server, sys.stdin, answers)


class Server:
    """What the orders do."""

    def __init__(self, build: Any, device: str) -> None:
        self._build, self._device = build, device
        self._program: Program | None = None

    def prepare(self, file: str) -> dict[str, float]:
        start = time.perf_counter()
        self._program = self._build()
        built = time.perf_counter()
        outputs = self._program.outputs()
        first = time.perf_counter()
        np.savez(file, **outputs)
        self._program.run()
        return {"build": built - start, "first": first - built}

    def run(self, times: str) -> dict[str, list[float]]:
        assert self._program is not None
        seconds = []
        for _ in range(int(times)):
            start = time.perf_counter()
            self._program.run()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    def memory(self) -> dict[str, int | None]:
        program = self._build()
        program.run()
        return measure_peak(program.run, self._device)


def serve(server: Server, orders: TextIO, answers: TextIO) -> None:
    """Answer one order after the other until there are no more."""
    for line in orders:
        name, *arguments = line.split(maxsplit=1)
        answer = getattr(server, name)(*(argument.strip() for argument in arguments))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
