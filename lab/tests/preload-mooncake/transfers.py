"""Writes buffers into another process's memory by Mooncake, with a registration for each transfer.

usage: transfers.py target ADDRESS | source ADDRESS TRANSFERS

The target's memory is a file that the source maps, too, and in which it looks at what arrived.
"""

import ctypes
import mmap
import os
import sys
import time

from mooncake.engine import TransferEngine

LENGTH = 1 << 20
BUFFERS = 8
FILE = "/dev/shm/target"

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def anonymous(at=None):
    """Maps a buffer, at an address in the place of what is there if one is given."""
    fixed = 0x10 if at else 0  # MAP_FIXED
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    address = libc.mmap(at, LENGTH, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        sys.exit(f"mmap: {os.strerror(ctypes.get_errno())}")
    return address


def check(what, result):
    if result != 0:
        sys.exit(f"{what} returned {result}")


engine = TransferEngine()
check("initialize", engine.initialize(sys.argv[2], "P2PHANDSHAKE", "rdma", "rxe"))
with open(FILE, "a+b") as file:
    file.truncate(LENGTH)
    memory = mmap.mmap(file.fileno(), LENGTH)
if sys.argv[1] == "target":
    target = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    check("register_memory", engine.register_memory(target, LENGTH))
    with open("target.new", "w") as file:
        file.write(f"{engine.get_rpc_port()} {target}")
    os.rename("target.new", "target.told")
    while not os.path.exists("done.told"):
        time.sleep(0.1)
    check("unregister_memory", engine.unregister_memory(target))
else:
    with open("target.told") as file:
        port, target = file.read().split()
    transfers = int(sys.argv[3])
    buffers = [anonymous() for _ in range(BUFFERS)]
    wrong = 0
    registering = 0.0
    for transfer in range(transfers):
        if transfer == transfers // 2:
            buffers = [anonymous(buffer) for buffer in buffers]
        buffer = buffers[transfer % BUFFERS]
        value = transfer % 251 + 1
        ctypes.memset(buffer, value, LENGTH)
        begun = time.monotonic()
        check("register_memory", engine.register_memory(buffer, LENGTH))
        registering += time.monotonic() - begun
        check("transfer_sync_write", engine.transfer_sync_write(f"{sys.argv[2]}:{port}", buffer, int(target), LENGTH))
        begun = time.monotonic()
        check("unregister_memory", engine.unregister_memory(buffer))
        registering += time.monotonic() - begun
        wrong += memory[:] != bytes([value]) * LENGTH
    print(f"registering took {registering * 1e3:.0f} ms")
    print(f"{transfers} transfers, {wrong} wrong", flush=True)
