"""libCacheSim as a peer: replays one trace through its caches, a line of JSON in, a line of JSON out.

    python libcachesim.py TRACE [--cpu N]

TRACE is a file of the format oracleGeneral; sizes are in whatever unit the capacities are. A line such as

    {"policy": "lru", "capacity": 1000, "requests": 5000}

is answered with requests, misses and the user CPU in seconds that they took; requests can be left out for all
of them, and {"requests": 0} measures nothing but what there is besides. The end of the input is the end of the run.
"""

import json
import os
import resource
import sys

import libcachesim as lcs

# The names of this project, and theirs.
POLICIES = {
    "pindown": lcs.LRU,
    "fifo": lcs.FIFO,
    "sieve": lcs.Sieve,
    "s3fifo": lcs.S3FIFO,
    "gdsf": lcs.GDSF,
    "lru-k": lcs.LRUK,
    "2q": lcs.TwoQ,
    "arc": lcs.ARC,
    "lirs": lcs.LIRS,
    "w-tinylfu": lcs.WTinyLFU,
}


def user():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


class Trace:
    def __init__(self, path):
        self.path = path
        self.requests = self.open().get_num_of_req()

    def open(self):
        return lcs.TraceReader(self.path, lcs.TraceType.ORACLE_GENERAL_TRACE)

    def replay(self, policy, capacity, requests=None, hashpower=24):
        """Misses, and seconds of user CPU, of the replay alone: the cache is built before."""
        requests = self.requests if requests is None else min(requests, self.requests)
        if requests == 0:
            return {"requests": 0, "misses": 0, "user_s": 0.0}
        reader, cache = self.open(), POLICIES[policy](capacity, hashpower=hashpower)
        begin = user()
        ratio, _ = cache.process_trace(reader, max_req=-1 if requests == self.requests else requests)
        took = user() - begin
        return {"requests": requests, "misses": round(ratio * requests), "user_s": took}


def main():
    path, *rest = sys.argv[1:]
    if rest:
        os.sched_setaffinity(0, {int(rest[1])})
    trace = Trace(path)
    for line in sys.stdin:
        print(json.dumps(trace.replay(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
