"""The wheel, as installed: leases over numpy arrays and other buffers, with real pins of an io_uring. Run it in an environment of its own."""

import ctypes
import fcntl
import gc
import mmap
import os
import re
import subprocess
import sys
import unittest
import warnings

import mrrc
import numpy

IO_URING_SETUP = 425
# Python names it since 3.13.
F_SEAL_FUTURE_WRITE = 0x10
LEASES = 1_000_000


def ring():
    """Returns the descriptor of a new ring."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    if fd < 0:
        raise unittest.SkipTest(f"no io_uring here: {os.strerror(ctypes.get_errno())}")
    return fd


def pinned():
    """Returns the bytes that the kernel counts as pinned by this process."""
    with open("/proc/self/status") as status:
        return int(re.search(r"^VmPin:\s+(\d+) kB", status.read(), re.MULTILINE).group(1)) * 1024


class Leases(unittest.TestCase):
    def setUp(self):
        fd = ring()
        self.addCleanup(os.close, fd)
        self.cache = mrrc.Cache.io_uring(fd, slots=64, capacity="16M", max_segments=1)
        self.addCleanup(self.cache.close)

    def test_million_leases_register_each_array_once(self):
        before = pinned()
        arrays = [numpy.zeros(1 << 16, numpy.float64) for _ in range(8)]
        for turn in range(LEASES):
            with self.cache.lease(arrays[turn % 8], write=True):
                pass
        stats = self.cache.stats()
        # Arrays that share a page may be registered with each other.
        self.assertEqual((stats["requests"], stats["hits"] >= LEASES - 16), (LEASES, True))
        self.assertGreaterEqual(pinned() - before, 8 << 19)
        self.cache.flush()
        self.assertEqual(pinned(), before)

    def test_lease_has_address_and_key(self):
        array = numpy.arange(10_000, dtype=numpy.int32)
        with self.cache.lease(array[100:200]) as lease:
            (segment,) = lease.segments()
            self.assertEqual((lease.address, len(lease)), (array.ctypes.data + 400, 400))
            self.assertEqual((segment.address, segment.length), (array.ctypes.data + 400, 400))
            self.assertLess(segment.lkey, 64)
        with self.assertRaisesRegex(ValueError, "released"):
            lease.segments()

    def test_leased_bytearray_keeps_its_size(self):
        buffer = bytearray(8192)
        with self.cache.lease(buffer, write=True):
            with self.assertRaises(BufferError):
                buffer.append(1)
        buffer.append(1)

    def test_remapped_memory_is_registered_anew(self):
        registered = []
        for _ in range(2):
            memory = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for _ in range(3):
                self.cache.lease(memory, write=True).release()
            registered.append(self.cache.stats()["registrations"])
            memory.close()
        self.assertEqual(registered, [1, 2])

    def test_forgotten_lease_is_released_with_a_warning(self):
        buffer = bytearray(4096)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.cache.lease(buffer)
            gc.collect()
        self.assertEqual([warning.category for warning in caught], [ResourceWarning])
        buffer.append(1)

    def test_list_is_leased_whole_or_not_at_all(self):
        rows = list(numpy.zeros((4, 4096), numpy.uint8))
        leases = self.cache.acquire_list(rows)
        self.assertEqual([lease.address for lease in leases], [row.ctypes.data for row in rows])
        for lease in leases:
            lease.release()
        buffer = bytearray(4096)
        with self.assertRaises(mrrc.Error):
            self.cache.acquire_list([buffer, bytearray(64 << 20)])
        buffer.append(1)

    def test_errors_name_the_status_and_the_remedy(self):
        with self.assertRaises(mrrc.Error) as caught:
            self.cache.lease(bytearray(32 << 20))
        self.assertEqual(caught.exception.status, "MRRC_ERROR_TOO_LARGE")
        with self.assertRaisesRegex(mrrc.Error, "capacity"):
            mrrc.Cache.io_uring(ring(), capacity="much")
        with open(os.devnull) as no_ring, self.assertRaisesRegex(mrrc.Error, "pass the file descriptor of an open ring"):
            mrrc.Cache.io_uring(no_ring.fileno())
        with self.assertRaises((BufferError, TypeError, ValueError)):
            self.cache.lease(b"read only", write=True)
        self.cache.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.cache.lease(bytearray(1))

    def test_sealed_memfd_is_vouched_for(self):
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, 1 << 16)
        memory = mmap.mmap(fd, 1 << 16)
        with self.assertRaisesRegex(mrrc.Error, "F_SEAL_SHRINK"):
            self.cache.vouch(fd)
        self.assertIn("F_SEAL_SHRINK", self.cache.explain(memory))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)
        self.cache.vouch(fd)
        if "errno" in self.cache.explain(memory):
            self.skipTest("this kernel does not watch shared memory")
        for _ in range(3):
            self.cache.lease(memory, write=True).release()
        self.assertEqual(self.cache.stats()["registrations"], 1)
        memory.close()


class Run(unittest.TestCase):
    def run_it(self, *words):
        command = os.path.join(os.path.dirname(sys.executable), "mrrc-run")
        return subprocess.run([command, *words], capture_output=True, text=True)

    def test_program_runs_under_the_shim(self):
        program = "import os; print(os.environ.get('MRRC_PRELOAD'), 'libmrrc_preload' in open('/proc/self/maps').read())"
        for words, preset in [(["--trusted"], "trusted"), ([], "None")]:
            done = self.run_it(*words, "--", sys.executable, "-c", program)
            self.assertEqual((done.returncode, done.stdout), (0, f"{preset} True\n"), done.stderr)

    def test_status_is_that_of_the_program(self):
        self.assertEqual(self.run_it("--", "sh", "-c", "exit 7").returncode, 7)
        missing = self.run_it("--", "no-such-program")
        self.assertEqual(missing.returncode, 127)
        self.assertIn("give the path", missing.stderr)
        self.assertEqual(self.run_it("--unknown").returncode, 2)


if __name__ == "__main__":
    unittest.main()
