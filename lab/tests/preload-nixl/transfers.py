"""Writes buffers into another process's memory by NIXL, with a registration for each transfer.

usage: transfers.py target | source TRANSFERS

The target's memory is a file that the source maps, too, and in which it looks at what arrived.
"""

import ctypes
import mmap
import os
import sys
import time

from nixl_cu12 import _bindings as nixl

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


def check(what, status):
    if status != nixl.NIXL_SUCCESS:
        sys.exit(f"{what} returned {status}")


def described(kind, *entry):
    descriptors = kind(nixl.DRAM_SEG)
    descriptors.addDesc(entry)
    return descriptors


config = nixl.nixlAgentConfig()
config.useProgThread = True
agent = nixl.nixlAgent(sys.argv[1], config)
options, _ = agent.getPluginParams("UCX")
backend = agent.createBackend("UCX", options)
with open(FILE, "a+b") as file:
    file.truncate(LENGTH)
    memory = mmap.mmap(file.fileno(), LENGTH)
if sys.argv[1] == "target":
    target = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    registered = described(nixl.nixlRegDList, target, LENGTH, 0, "")
    check("registerMem", agent.registerMem(registered, [backend]))
    with open("target.new", "wb") as file:
        file.write(target.to_bytes(8, "little") + agent.getLocalMD())
    os.rename("target.new", "target.told")
    while not os.path.exists("done.told"):
        time.sleep(0.1)
    check("deregisterMem", agent.deregisterMem(registered, [backend]))
else:
    with open("target.told", "rb") as file:
        target = int.from_bytes(file.read(8), "little")
        peer = agent.loadRemoteMD(file.read()).decode()
    remote = described(nixl.nixlXferDList, target, LENGTH, 0)
    transfers = int(sys.argv[2])
    buffers = [anonymous() for _ in range(BUFFERS)]
    wrong = 0
    for transfer in range(transfers):
        if transfer == transfers // 2:
            buffers = [anonymous(buffer) for buffer in buffers]
        buffer = buffers[transfer % BUFFERS]
        value = transfer % 251 + 1
        ctypes.memset(buffer, value, LENGTH)
        registered = described(nixl.nixlRegDList, buffer, LENGTH, 0, "")
        check("registerMem", agent.registerMem(registered, [backend]))
        local = described(nixl.nixlXferDList, buffer, LENGTH, 0)
        request = agent.createXferReq(nixl.NIXL_WRITE, local, remote, peer, "", [backend])
        status = agent.postXferReq(request)
        while status == nixl.NIXL_IN_PROG:
            status = agent.getXferStatus(request)
        check("getXferStatus", status)
        check("releaseXferReq", agent.releaseXferReq(request))
        check("deregisterMem", agent.deregisterMem(registered, [backend]))
        wrong += memory[:] != bytes([value]) * LENGTH
    print(f"{transfers} transfers, {wrong} wrong", flush=True)
# Two copies of libnl, the wheel's and the system's, are in the process then, and their ends take the same entries out of a list:
# with the system's libibverbs preloaded it crashes there, with or without the shim.
sys.stdout.flush()
os._exit(0)
