"""A cache of memory registrations, for RDMA devices and io_uring: the library mrrc, by its C interface.

    import mrrc
    cache = mrrc.Cache.io_uring(ring_fd, capacity="64M")
    with cache.lease(array, write=True) as lease:
        for segment in lease.segments():
            ...  # post a transfer with segment.lkey, and wait for it

A hit registers nothing: the memory stays registered until the cache needs the room, or the memory changes. Settings are those of the
variables MRRC_*, by their names in lower case.
"""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

from cffi import FFI

__all__ = ["Cache", "Error", "Lease", "Segment", "version"]

_HERE = Path(__file__).parent


def _declarations(header):
    """Returns the declarations of the header, as cffi reads them: without what only the preprocessor takes."""
    header = re.sub(r"#ifdef __cplusplus.*?#endif[^\n]*", "", header, flags=re.DOTALL)
    header = re.sub(r"^#(include|ifndef|endif|define MRRC_H$).*$", "", header, flags=re.MULTILINE)
    return "struct iovec { void *iov_base; size_t iov_len; };\n" + header


_ffi = FFI()
_ffi.cdef(_declarations((_HERE / "mrrc.h").read_text()))
_lib = _ffi.dlopen(str(_HERE / "libmrrc.so"))


def version():
    """Returns the version of the library."""
    return _ffi.string(_lib.mrrc_version()).decode()


class Error(Exception):
    """A call that failed. The text has the operation, its object, the cause and the remedy."""

    def __init__(self, message, status, system):
        super().__init__(message)
        #: The name of the status, as in mrrc.h: ``MRRC_ERROR_TOO_LARGE``.
        self.status = status
        #: The errno of the system, where there was one; else 0.
        self.system = system


def _check(call, *arguments):
    """Calls a function whose last argument is the place of an error."""
    error = _ffi.new("mrrc_error_t *")
    if call(*arguments, error) != _lib.MRRC_OK:
        names = _ffi.typeof("mrrc_status_t").elements
        message = _ffi.string(error.message).decode(errors="replace")
        raise Error(message, names.get(int(error.status), str(error.status)), error.system)


class Segment(NamedTuple):
    """A part of a lease that one registration has. With io_uring, ``lkey`` is the index of the buffer."""

    address: int
    length: int
    lkey: int
    rkey: int


def _access(write, remote_read, remote_write):
    flags = [
        (True, _lib.MRRC_LOCAL_READ),
        (write, _lib.MRRC_LOCAL_WRITE),
        (remote_read, _lib.MRRC_REMOTE_READ),
        (remote_write, _lib.MRRC_REMOTE_WRITE),
    ]
    return sum(flag for is_set, flag in flags if is_set)


class Lease:
    """Memory that is registered until the lease is released: at the end of ``with``, or by :meth:`release`.

    It holds the buffer: a bytearray cannot be resized meanwhile.
    """

    def __init__(self, cache, place, view):
        self._cache = cache
        self._place = place
        self._view = view

    def segments(self):
        """Returns the parts of the memory, each with its keys."""
        self._expect_held()
        count = _lib.mrrc_segments(self._place, _ffi.NULL, 0)
        found = _ffi.new("mrrc_segment_t[]", count)
        _lib.mrrc_segments(self._place, found, count)
        return [Segment(int(_ffi.cast("uintptr_t", part.address)), part.length, part.lkey, part.rkey) for part in found]

    def __len__(self):
        self._expect_held()
        return _lib.mrrc_lease_length(self._place)

    @property
    def address(self):
        """The address of the first byte."""
        self._expect_held()
        return int(_ffi.cast("uintptr_t", _lib.mrrc_lease_address(self._place)))

    def release(self):
        """Ends the lease. Transfers that use it are over by then. A second call does nothing."""
        place, view = self._place, self._view
        self._place = self._view = None
        if place is not None:
            _lib.mrrc_release(place)
        if view is not None:
            _ffi.release(view)

    def _expect_held(self):
        if self._place is None:
            raise ValueError("use of a lease: it was released: acquire another")

    def __enter__(self):
        self._expect_held()
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        # An exception in the initialiser leaves no attribute.
        if getattr(self, "_place", None) is not None:
            warnings.warn(f"{len(self)} bytes were leased and not released", ResourceWarning, source=self, stacklevel=2)
            self.release()


class Cache:
    """A cache of registrations. Make one by :meth:`io_uring` or :meth:`verbs`. Any number of threads may use it."""

    def __init__(self, handle):
        self._handle = handle

    @classmethod
    def io_uring(cls, ring_fd, slots=1024, **settings):
        """Makes a cache over the fixed buffers of a ring, which has no table of buffers yet. The descriptor may be closed later."""
        return cls._made(_lib.mrrc_cache_new_io_uring, settings, ring_fd, slots)

    @classmethod
    def verbs(cls, pd, **settings):
        """Makes a cache over a protection domain, by the address of its ``struct ibv_pd``. It stays open longer than the cache."""
        return cls._made(_lib.mrrc_cache_new_verbs, settings, _ffi.cast("struct ibv_pd *", pd))

    @classmethod
    def _made(cls, make, settings, *registrar):
        options = _ffi.gc(_lib.mrrc_options_new(), _lib.mrrc_options_free)
        for name, value in settings.items():
            text = ("off", "on")[value] if isinstance(value, bool) else str(value)
            _check(_lib.mrrc_options_set, options, name.encode(), text.encode())
        place = _ffi.new("mrrc_cache_t **")
        _check(make, options, *registrar, place)
        return cls(_ffi.gc(place[0], _lib.mrrc_cache_free))

    def lease(self, buffer, write=False, remote_read=False, remote_write=False):
        """Registers the bytes of a contiguous buffer (bytearray, numpy array, mmap) and returns a :class:`Lease`.

        ``write``: transfers write the buffer. The others give a peer that is told a key the right to do so, until the region leaves the cache,
        which may be after the lease ended.
        """
        view = self._view(buffer, write or remote_write)
        try:
            place = self._acquired(view, len(view), _access(write, remote_read, remote_write))
        except BaseException:
            _ffi.release(view)
            raise
        return Lease(self, place, view)

    def lease_address(self, address, length, write=False, remote_read=False, remote_write=False):
        """As :meth:`lease`, by address, for memory that is no buffer: ``tensor.data_ptr()``.

        Unsafe: nothing keeps the memory. It stays allocated, by you, until the lease is released and all transfers are over.
        """
        place = self._acquired(_ffi.cast("void *", address), length, _access(write, remote_read, remote_write))
        return Lease(self, place, None)

    def acquire_list(self, buffers, write=False, remote_read=False, remote_write=False):
        """As :meth:`lease` for several buffers: a list of leases, or none at all. Neighbours may share a registration."""
        views, count = [], 0
        try:
            views = [self._view(buffer, write or remote_write) for buffer in buffers]
            count = len(views)
            spans = _ffi.new("struct iovec[]", [(view, len(view)) for view in views])
            # A place for each: a lease stays where it was made.
            places = _ffi.new("mrrc_lease_t[]", count)
            access = _access(write, remote_read, remote_write)
            _check(_lib.mrrc_acquire_list, self._open(), spans, count, access, places)
        except BaseException:
            for view in views:
                _ffi.release(view)
            raise
        return [Lease(self, _moved(places, nth), view) for nth, view in enumerate(views)]

    def invalidate(self, buffer):
        """Has no registration of the buffer's memory found any more: before its pages change in a way that the monitor does not hear of."""
        view = self._view(buffer, False)
        try:
            _check(_lib.mrrc_invalidate, self._open(), view, len(view))
        finally:
            _ffi.release(view)

    def vouch(self, fd):
        """Reads the seals of a memfd, so that its shared mappings are cached after the descriptor is closed."""
        _check(_lib.mrrc_vouch, self._open(), fd)

    def flush(self):
        """Deregisters all that no lease has. Returns the number of regions."""
        return self._count(_lib.mrrc_flush)

    def reap(self):
        """Deregisters what left the cache. Returns the number of regions."""
        return self._count(_lib.mrrc_reap)

    def stats(self):
        """Returns the counters and what is registered now, by the names in mrrc.h."""
        found = {}
        for read, kind in [(_lib.mrrc_counters, "mrrc_counters_t"), (_lib.mrrc_usage, "mrrc_usage_t")]:
            place = _ffi.new(f"{kind} *")
            read(self._open(), place, _ffi.sizeof(kind))
            prefix = "" if kind == "mrrc_counters_t" else "now_"
            found.update({prefix + name: getattr(place, name) for name, _ in _ffi.typeof(kind).fields})
        return found

    def explain(self, buffer, write=False):
        """Returns why a lease of the buffer would hit or miss right now."""
        view = self._view(buffer, write)
        try:
            asked = (self._open(), view, len(view), _access(write, False, False))
            room = _lib.mrrc_explain(*asked, _ffi.NULL, 0) + 1
            text = _ffi.new("char[]", room)
            _lib.mrrc_explain(*asked, text, room)
            return _ffi.string(text).decode()
        finally:
            _ffi.release(view)

    def close(self):
        """Ends the cache. Memory that is leased stays registered until its lease is released. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _ffi.release(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        if self._handle is None:
            raise ValueError("use of a cache: it was closed: make another")
        return self._handle

    def _acquired(self, address, length, access):
        place = _ffi.new("mrrc_lease_t *")
        _check(_lib.mrrc_acquire, self._open(), address, length, access, place)
        return place

    def _count(self, call):
        regions = _ffi.new("uint64_t *")
        _check(call, self._open(), regions)
        return regions[0]

    @staticmethod
    def _view(buffer, write):
        return _ffi.from_buffer(buffer, require_writable=write)


def _moved(places, nth):
    """Moves a lease out of an array, so that it has memory of its own."""
    place = _ffi.new("mrrc_lease_t *")
    _lib.mrrc_lease_move(places + nth, place)
    return place
