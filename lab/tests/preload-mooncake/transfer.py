import sys, ctypes, mmap, time, os
from mooncake.engine import TransferEngine
role, address, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
L = 1 << 20
e = TransferEngine()
print("init", e.initialize(address, "P2PHANDSHAKE", "rdma", "rxe"), flush=True)
print("port", e.get_rpc_port(), flush=True)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def map(at=None):
    return libc.mmap(at, L, 3, 0x22 | (0x10 if at else 0), -1, 0)
if role == "target":
    a = map()
    print("reg", e.register_memory(a, L), flush=True)
    open("target.txt", "w").write(f"{e.get_rpc_port()} {a}")
    os.rename("target.txt", "target.ready")
    wrong = 0
    while not os.path.exists("done.told"):
        time.sleep(0.2)
    print("end", bytes((ctypes.c_char * 16).from_address(a)), flush=True)
    e.unregister_memory(a)
else:
    while not os.path.exists("target.ready"):
        time.sleep(0.1)
    port, target = map_ = open("target.ready").read().split()
    target = int(target)
    bufs = [map() for _ in range(8)]
    bad = 0
    for i in range(count):
        if i == count // 2:
            bufs = [map(b) for b in bufs]
        b = bufs[i % 8]
        ctypes.memset(b, i % 251 + 1, L)
        if e.register_memory(b, L): print("reg failed", i, flush=True)
        r = e.transfer_sync_write(f"{address}:{port}", b, target, L)
        if r: print("write", i, r, flush=True); bad += 1
        if e.unregister_memory(b): print("unreg failed", flush=True)
        if bad > 3: break
    print("done", count, bad, flush=True)
    open("done.told", "w")
os._exit(0)
