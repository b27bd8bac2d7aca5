"""Makes libcachesim.json: what libCacheSim counts on the traces beside this repository.

    pip install libcachesim==0.3.5
    cargo build --release -p tracesim
    python agreement.py ../../../target/release/tracesim ../../../../shared/traces > ../../tests/libcachesim/figures.json

A cached object is a range that was asked for, same start and same length, as with `--match exact`. Each trace is
replayed twice: with the sizes of its ranges in pages, and with one page for each of them. Capacities are shares of the
footprint: the sizes of all objects together.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
from importlib.metadata import version

from replay import POLICIES, Trace

TRACES = [
    "adaptsize_request.trace.xz",
    "arc_P3.lis.zst",
    "cloudPhysicsIO.oracleGeneral.bin.zst",
    "lirs_2_pools.trace.gz",
    "lirs_multi1.trace.gz",
    "lirs_sprite.trace.gz",
    "nasa_19950701_10k.tsv.zst",
]
SHARES = [0.02, 0.05, 0.1, 0.25]


def ranges(tracesim, trace):
    """As this project reads the trace: pairs of a start page and pages."""
    said = subprocess.run([tracesim, "convert", "--to", "pages", trace], check=True, capture_output=True, text=True)
    return [tuple(map(int, line.split(","))) for line in said.stdout.splitlines()[1:]]


def write(path, asked, numbers, unit):
    with open(path, "wb") as out:
        for time, range in enumerate(asked):
            out.write(struct.pack("<IQIq", time & 0xFFFFFFFF, numbers[range], 1 if unit else range[1], -1))


def main():
    tracesim, folder = sys.argv[1:]
    rows = []
    for name in TRACES:
        asked = ranges(tracesim, pathlib.Path(folder) / name)
        numbers = {}
        for range in asked:
            numbers.setdefault(range, len(numbers) + 1)
        largest = max(pages for _, pages in numbers)
        for sizes in ["one", "pages"] if largest > 1 else ["one"]:
            footprint = len(numbers) if sizes == "one" else sum(pages for _, pages in numbers)
            with tempfile.NamedTemporaryFile(suffix=".oracleGeneral.bin") as file:
                write(file.name, asked, numbers, sizes == "one")
                trace = Trace(file.name)
                for share in SHARES:
                    capacity = int(footprint * share)
                    misses = {policy: trace.replay(policy, capacity, hashpower=18)["misses"] for policy in POLICIES}
                    row = {"trace": name, "sizes": sizes, "requests": trace.requests}
                    rows.append(row | {"capacity": capacity, "misses": misses})
        print(name, file=sys.stderr)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    print(f'{{"libcachesim": "{version("libcachesim")}", "rows": [\n  {lines}\n]}}')


if __name__ == "__main__":
    main()
