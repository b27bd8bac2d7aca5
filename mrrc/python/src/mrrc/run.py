"""The command mrrc-run: runs an unmodified verbs program under the cache."""

import os
import sys
from pathlib import Path

USAGE = """\
usage: mrrc-run [--trusted] -- PROGRAM [ARGUMENT...]

Runs a program that uses verbs with a cache of its memory registrations.

  --trusted  caches registrations with rights for peers too (MRRC_PRELOAD=trusted): for jobs
             whose processes trust each other with all memory that they ever register
"""


def main():
    """Becomes the program."""
    words = sys.argv[1:]
    if words[:1] in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    environment = dict(os.environ)
    if words[:1] == ["--trusted"]:
        environment["MRRC_PRELOAD"] = "trusted"
        words = words[1:]
    if words[:1] == ["--"]:
        words = words[1:]
    elif not words or words[0].startswith("-"):
        print(USAGE, end="", file=sys.stderr)
        return 2
    if not words:
        print(USAGE, end="", file=sys.stderr)
        return 2
    library = str(Path(__file__).parent / "libmrrc_preload.so")
    others = environment.get("LD_PRELOAD")
    environment["LD_PRELOAD"] = f"{library}:{others}" if others else library
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        print(f"mrrc-run: run {words[0]}: {error.strerror}: give the path of a program", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
