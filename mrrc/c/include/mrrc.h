/*
 * mrrc: a cache of memory registrations for RDMA.
 *
 * Generated from the sources of mrrc-c (cbindgen); changes made here are lost.
 *
 * Memory must be registered before a network card can reach it, and that can take longer than a transfer. The cache keeps
 * memory registered and finds it again: mrrc_acquire gives a lease of registered memory, mrrc_segments the keys by which
 * transfers name it, and mrrc_release ends the lease when the transfers are complete. What is registered stays so, until
 * something else needs the room.
 *
 *     mrrc_cache_t *cache;
 *     mrrc_error_t error;
 *     if (mrrc_cache_new_verbs(NULL, pd, &cache, &error) != MRRC_OK)
 *         errx(1, "%s", error.message);
 *
 *     mrrc_lease_t lease = { { 0 } };
 *     if (mrrc_acquire(cache, buffer, length, MRRC_LOCAL, &lease, &error) != MRRC_OK)
 *         errx(1, "%s", error.message);
 *     mrrc_segment_t parts[8];
 *     size_t count = mrrc_segments(&lease, parts, 8);   // address, length, lkey, rkey; the setting max_segments bounds count
 *     ... post the work request, wait for its completion ...
 *     mrrc_release(&lease);
 *
 * ERRORS. Functions that can fail return an mrrc_status_t, MRRC_OK or what went wrong, and take an mrrc_error_t as their last
 * argument: memory of the caller's, or NULL. It is written when the call fails, and only then: the status, errno where the
 * system said one, and a message in one line that names what it is about and what to do. A handle that a function gives through
 * a pointer is NULL after a failure, and a lease empty. A NULL where something is needed, a right that there is not, a lease
 * that is none: all that is MRRC_ERROR_ARGUMENT or MRRC_ERROR_LEASE, and never a crash. What cannot be checked: pointers that
 * lead nowhere, and what was freed. Running out of memory for the library's own tables ends the process.
 *
 * OWNERSHIP. The caller that makes a thing frees it: mrrc_options_free, mrrc_cache_free, mrrc_arena_free, mrrc_pending_free,
 * mrrc_change_end; all take NULL. Strings that are passed in are copied. A lease is in memory of the caller's and is ended
 * by mrrc_release, before or after its cache is freed. The library keeps no pointer to anything that a call was given, but for
 * the memory to be registered and the `user` of an mrrc_registrar_t.
 *
 * THREADS. A cache, and an arena, is used by any number of threads at once; hits take no lock. Everything else, options, a
 * lease, what was begun, is used by one thread at a time, and may go from thread to thread: a lease is released by any. No
 * function may be called by a signal handler.
 *
 * FORK. A child has no use of its parent's caches: what it asks of them fails with MRRC_ERROR_FORKED, what it releases or frees
 * is forgotten there and stays as it is in the parent, and no callback is called. It makes a cache of its own. Pinned pages
 * survive in the parent as the registrar says (verbs: Linux 5.12, or ibv_fork_init before).
 *
 * THE MEMORY. The contract is that of ibv_reg_mr: memory stays allocated, and is used as the transfers allow, for as long as a
 * transfer that uses its keys can be under way. A peer that was given an rkey can use it until the region is *deregistered*,
 * which is later than the end of the lease. To take that right back: end the leases, mrrc_invalidate, mrrc_reap.
 *
 * CHANGES. A registration means pages, a program means addresses: once memory is unmapped, remapped or discarded, the keys
 * mean pages without an owner. By default the kernel (userfaultfd) tells the cache of that, for a price at each unmapping, and
 * memory of which it cannot tell (mappings of files, shared memory with a name) is registered for each lease anew. With the
 * setting monitor=explicit the program tells: mrrc_invalidate before each unmapping, or mrrc_change_begin and _end around it.
 * With widen=on besides, it is _begin and _end, around each change of any memory in the mappings of its buffers.
 *
 * PINNING. What a lease has is never evicted: to keep memory registered, keep a lease of it. There is no other pin.
 *
 * SETTINGS come from the first of these that has one: the environment (MRRC_CAPACITY=1G and others), the options, the default.
 *
 * Link with `pkg-config --libs mrrc`. Callbacks must return: no longjmp and no C++ exception through the library.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef MRRC_H
#define MRRC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* From <infiniband/verbs.h>, which is needed only to use it. */
struct ibv_pd;

/** The version of this header. */
#define MRRC_VERSION_MAJOR 0

/** The version of this header. */
#define MRRC_VERSION_MINOR 1

/** The version of this header. */
#define MRRC_VERSION_PATCH 0

/** The card reads the memory for this process: what a send needs. */
#define MRRC_LOCAL_READ 1

/** The card writes the memory for this process: what a receive needs. */
#define MRRC_LOCAL_WRITE 2

/** Both local rights. */
#define MRRC_LOCAL 3

/** A peer reads the memory. */
#define MRRC_REMOTE_READ 4

/** A peer writes the memory. Verbs ask for MRRC_LOCAL_WRITE besides. */
#define MRRC_REMOTE_WRITE 8

/** A peer runs atomic operations on the memory. Verbs ask for MRRC_LOCAL_WRITE besides. */
#define MRRC_REMOTE_ATOMIC 16

/** For mrrc_latency: acquires, hits included. */
#define MRRC_LATENCY_ACQUIRE 0

/** For mrrc_latency: registrations that were tried. */
#define MRRC_LATENCY_REGISTER 1

/** For mrrc_latency: batches that were deregistered. */
#define MRRC_LATENCY_DEREGISTER 2

/** The outcome of a call. Others may be added. */
typedef enum {
    /** Done. */
    MRRC_OK = 0,
    /** An argument makes no sense: NULL where something is needed, no bytes, a right that there is not. */
    MRRC_ERROR_ARGUMENT = 1,
    /** A setting, of the options or of the environment, makes no sense. */
    MRRC_ERROR_SETTING = 2,
    /** The lease is none: it was released, or never acquired, or it is a copy of one. */
    MRRC_ERROR_LEASE = 3,
    /** The registrar does not grant such rights. */
    MRRC_ERROR_RIGHTS = 4,
    /** The request alone is more than the cache may ever register. Acquire it in pieces, or raise the capacity. */
    MRRC_ERROR_TOO_LARGE = 5,
    /** All that could make room is in use by leases: release some, or set capacity_timeout. */
    MRRC_ERROR_ALL_IN_USE = 6,
    /** The registrar refused to register the memory: `system` has its error, EFAULT for memory that is not there. */
    MRRC_ERROR_REGISTER = 7,
    /** Evicted regions that could not be deregistered take the room. */
    MRRC_ERROR_DEREGISTRATION_FAILED = 8,
    /**
     * Another thread took too long to register a part of this request, or retired regions take the room and were not
     * deregistered in time. The message has the reason. Try again, or set wait_timeout.
     */
    MRRC_ERROR_TIMED_OUT = 9,
    /** The range is not inside of the arena. */
    MRRC_ERROR_OUTSIDE = 10,
    /** This process was forked from the one that made the cache: make one here. */
    MRRC_ERROR_FORKED = 11,
    /** The cache was freed, and what is left of it is an arena. */
    MRRC_ERROR_CLOSED = 12,
    /** A monitor does not come to an end with a change of memory: try again. */
    MRRC_ERROR_DRAINING = 13,
    /** The cache is in doubt after a panic: make a new one. */
    MRRC_ERROR_BROKEN = 14,
    /** The ring or the device cannot be registered with. */
    MRRC_ERROR_DEVICE = 15,
    /** The system refused something else: `system` has its error. */
    MRRC_ERROR_SYSTEM = 16,
    /** This library was built without that, or the cache made without it. */
    MRRC_ERROR_UNSUPPORTED = 17,
    /** A fault of the library, which went no further than this call. Please report it, with what was printed to stderr. */
    MRRC_ERROR_PANIC = 18,
    /** The place for the new lease has one that is held, and keeps it: release that first, or give another place. */
    MRRC_ERROR_HELD = 19,
    /** Several registrations have these bytes of a lease together: the segment that was written is the part that the first has. */
    MRRC_ERROR_STRADDLES = 20,
} mrrc_status_t;

/**
 * Memory that the cache owns: for buffers of transfers that no allocator gives back behind the cache's back. Used by any number of
 * threads at once.
 */
typedef struct mrrc_arena_t mrrc_arena_t;

/** A cache of memory registrations. Used by any number of threads at once. */
typedef struct mrrc_cache_t mrrc_cache_t;

/** A change of memory that the program announced. Used by one thread at a time. */
typedef struct mrrc_change_t mrrc_change_t;

/** Settings of a cache that is to be made. Used by one thread at a time; for any number of caches. */
typedef struct mrrc_options_t mrrc_options_t;

/** Memory that is being acquired. Used by one thread at a time. */
typedef struct mrrc_pending_t mrrc_pending_t;

/**
 * Why a call failed: memory of the caller's, written when a call fails, and only then. It needs no initialisation and is
 * not to be freed.
 */
typedef struct {
    /** The result of the call. */
    mrrc_status_t status;
    /** The errno of the system or of a callback, where there was one; else 0. */
    int32_t system;
    /** The operation, its object, the cause and the remedy: UTF-8, one line that ends with 0. A longer text is cut. */
    char message[1016];
} mrrc_error_t;

/**
 * A set of rights: a sum of MRRC_LOCAL_READ and its like.
 *
 * Every registration can be read by the card on behalf of this process, so MRRC_LOCAL_READ is in every set, asked for or not.
 * Memory with rights for peers and memory without are kept apart: nothing is opened to peers because its neighbour was.
 */
typedef uint32_t mrrc_access_t;

/**
 * The result of a registration: the keys by which transfers name the memory. A registrar of one's own fills in what it
 * has, and finds it again in each mrrc_segment_t, and when the memory is to be deregistered. The cache itself looks at
 * none of it.
 */
typedef struct {
    /** The network library's object: struct ibv_mr *, struct fid_mr *, ... */
    void *handle;
    /** The key for transfers of this side (verbs: lkey; libfabric: the descriptor; io_uring: the index of the buffer). */
    uint64_t lkey;
    /** The key for peers. Unique among the valid ones. */
    uint64_t rkey;
} mrrc_registration_t;

/** A registration that is to be deregistered. */
typedef struct {
    /** The registered range. */
    void *address;
    /** Its bytes. */
    size_t length;
    /** With these rights. */
    mrrc_access_t access;
    /** For the callback to set: 0, as it comes, if it is deregistered; else an errno, and it is tried again later. */
    int32_t error;
    /** The result of the registration. */
    mrrc_registration_t registration;
} mrrc_registered_t;

/**
 * A registrar of the program's own, for any network library: two functions and what they are told.
 *
 * Set all to zero, then `size` to sizeof(mrrc_registrar_t), then the rest. The table is copied. Callbacks are called
 * from any thread that uses the cache, from a thread of the cache's own, and from several at once. No lock of the
 * cache is held. They call no function of the same cache. Other threads' transfers and keys rest on these promises.
 * A registration means the pages that lay in the range when it was made, until it is deregistered, whatever is
 * mapped there meanwhile. Its keys are of no other valid one. Once it is deregistered the device does not touch its
 * pages. No right is granted that was not asked for.
 */
typedef struct {
    /** sizeof(mrrc_registrar_t) of the header that the program was compiled with. */
    size_t size;
    /** Its name in messages; NULL is "callbacks". */
    const char *name;
    /** The first argument of the callbacks. */
    void *user;
    /**
     * Registers memory: whole pages of 4096 bytes or of page_size. Returns 0, having filled in the registration, or an errno.
     * ENOMEM, EAGAIN and ENOSPC say that something is full: the cache makes room and calls again, some times. All others
     * are final, and the request's error.
     */
    int (*register_range)(void *user,
                          void *address,
                          size_t length,
                          mrrc_access_t access,
                          mrrc_registration_t *registration);
    /** Deregisters a batch. A failed one is marked with its `error`. */
    void (*deregister_batch)(void *user, mrrc_registered_t *batch, size_t count);
    /**
     * Whether a range could be registered, as far as that is cheap to tell: 0, or the errno that it would end with. Asked before
     * others are evicted for it. NULL: not asked. For memory of this process: mrrc_probe_mapped.
     */
    int (*probe_range)(void *user, const void *address, size_t length, mrrc_access_t access);
    /**
     * The registrar is needed no more: all was deregistered, and no callback is called after this. Called once, from any thread,
     * by mrrc_cache_free or later: when the last lease ended, or when what deregister_batch had refused was taken. That is tried
     * again for about two seconds; what is refused to the last stays registered, and `done` is never called. Not called if
     * no cache was made. May be NULL.
     */
    void (*done)(void *user);
    /** The most bytes that may be registered at once; 0 is no limit, and the capacity is then 1 GiB unless it is set. */
    uint64_t max_bytes;
    /** The most registrations at once; 0 is no limit. */
    uint64_t max_regions;
    /** The most bytes of one registration; 0 is no limit. */
    uint64_t max_region_bytes;
    /** Bytes in a page of the device, a power of two, 4096 or more: ranges are rounded out to it. 0 is 4096. */
    uint64_t page_size;
    /** The rights that it can grant; 0 is all. */
    mrrc_access_t rights;
} mrrc_registrar_t;

/**
 * Memory that stays registered until it is released. Its content is the library's.
 *
 * It is valid in the place where it was acquired: a copy of it is refused like a lease that was released
 * (MRRC_ERROR_LEASE). Move it by mrrc_lease_move. Begin it as `{ { 0 } }`. Other bytes work too, because a seal
 * marks a lease that is held. But checkers of memory report that they were looked at. An acquire that fails leaves
 * it empty, so releasing it then is harmless. Only one that is held already is refused (MRRC_ERROR_HELD) and stays
 * as it is.
 */
typedef struct {
    /** Not for you. */
    size_t opaque[6];
} mrrc_lease_t;

/** A part of a lease: memory that one registration covers. */
typedef struct {
    /** The address. */
    void *address;
    /** Its bytes, at least one. */
    size_t length;
    /** The registration's handle: verbs: the struct ibv_mr *; io_uring: NULL. */
    void *handle;
    /** The key for transfers of this side. Verbs: lkey; io_uring: the index of the fixed buffer. */
    uint64_t lkey;
    /** The key for peers. Verbs: rkey; io_uring: 0. */
    uint64_t rkey;
} mrrc_segment_t;

/** How mrrc_warm_with registers a large range. Set all to zero, then `size` to sizeof(mrrc_warm_t), then the rest. */
typedef struct {
    /** sizeof(mrrc_warm_t) of the header that the program was compiled with. */
    size_t size;
    /** Threads, 64 at most; 0: the CPUs of the process, at most 4. */
    size_t threads;
    /** Bytes that are registered by one call; 0: 1 GiB. More where a lease has fewer segments. */
    uint64_t chunk;
    /** 1: pages are not made present first. */
    int32_t no_prefault;
    /** 1: the system is given the hint to use huge pages there. The hint stays with the memory. */
    int32_t huge;
    /**
     * Called by the calling thread after each step, with the bytes done and their sum. Anything but 0 stops the work. NULL: not called.
     * Memory that is made present first is counted twice: then, and when it is registered.
     */
    int (*progress)(void *user, uint64_t done, uint64_t total);
    /** The first argument of `progress`. */
    void *user;
} mrrc_warm_t;

/** Everything counted since a cache was made; exact when no thread is inside a call. Fields may be added at the end. */
typedef struct {
    /** Requests: hits and misses. */
    uint64_t requests;
    /** Requests that needed no registration. */
    uint64_t hits;
    /** Requests that did, for all of their memory or a part. */
    uint64_t misses;
    /** Requests refused because everything was in use; counted as misses too. */
    uint64_t all_in_use;
    /** Pages (of 4096 bytes) asked for. */
    uint64_t pages;
    /** Pages asked for that were registered already. */
    uint64_t hit_pages;
    /** Calls of the registrar to register, those that failed included. */
    uint64_t attempts;
    /** Registrations decided on: those that came about and `failed`. */
    uint64_t registrations;
    /** Registrations that did not come about. */
    uint64_t failed;
    /** Registrations tried again because the system was out of something. */
    uint64_t retries;
    /** Pages registered. */
    uint64_t registered_pages;
    /** Regions deregistered. */
    uint64_t deregistered;
    /** Batches in which they were. */
    uint64_t deregister_batches;
    /** Deregistrations that failed; they are tried again. */
    uint64_t failed_deregistrations;
    /** Regions registered for one lease only, because changes there would not be reported. */
    uint64_t unwatched;
    /** Regions registered for one lease only: pages were just discarded there, or a change was announced. */
    uint64_t discarded;
    /** Regions registered for one lease only: the memory changed meanwhile. */
    uint64_t changed_in_flight;
    /** Changes of memory that the monitor reported. */
    uint64_t changes;
    /** Regions that changes and invalidations touched. */
    uint64_t invalidated;
    /** Requests that waited for what another thread was registering, or for leases to end; each counts once. */
    uint64_t waits;
    /** The most pages ever registered at once. */
    uint64_t peak_pages;
    /** The most regions ever registered at once. */
    uint64_t peak_regions;
    /** Requests that registered more pages than they asked for (setting widen). */
    uint64_t widened;
    /** Pages that these registered beyond what they asked for. */
    uint64_t widened_pages;
    /** Requests whose widened registration failed: they were registered as they are. */
    uint64_t widened_failed;
    /** Regions that ended by max_unheld. They count as invalidated, too. */
    uint64_t expired;
    /** The most dead pins (see mrrc_usage_t) ever at once, in pages. */
    uint64_t peak_dead_pages;
    /** The longest time for which pins were dead, in nanoseconds, those that are dead now included. */
    uint64_t longest_dead_nanoseconds;
} mrrc_counters_t;

/** The current registrations. Fields may be added at the end. */
typedef struct {
    /** Pages (of 4096 bytes) registered, being registered, being deregistered, or refused by the registrar. Never above the capacity. */
    uint64_t pages;
    /** Regions, counted likewise. */
    uint64_t regions;
    /** Regions that left and wait to be deregistered. */
    uint64_t leaving;
    /** Regions that the registrar refused to deregister. They are tried again. */
    uint64_t refused;
    /** Regions that leave when their leases end. */
    uint64_t retired;
    /** The capacity in pages. */
    uint64_t capacity_pages;
    /** The capacity in regions. */
    uint64_t capacity_regions;
    /**
     * Dead pins, in pages: still registered although the memory was unmapped, moved or discarded, and in no lease. The background
     * deregisters them.
     */
    uint64_t dead_pages;
} mrrc_usage_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/** Returns a status in a few words. Never NULL, never freed; for any number. */
const char *mrrc_status_text(int32_t status);

/** The version of the library, as "0.1.0". Never freed. */
const char *mrrc_version(void);

/** Options in which nothing is set yet. Freed by mrrc_options_free; never NULL. */
mrrc_options_t *mrrc_options_new(void);

/**
 * Sets what the environment variable of that name, after MRRC_, would set. Where both do, the environment wins. It
 * never weakens monitor and discard_grace, which correctness rests on; a line on standard error reports that it
 * tried. Of two limits max_unheld the stricter one holds.
 *
 * | name                    | value                                                                                 |
 * | ----------------------- | ------------------------------------------------------------------------------------- |
 * | capacity                | the most that may be registered at once: 1GiB, 64M, 4096; else what may be pinned     |
 * | max_regions             | the most registrations at once: a number; else what the registrar takes, or 2^20      |
 * | slice                   | no registration crosses a multiple of so many bytes: 1G; else what the device takes   |
 * | policy                  | the eviction policy: probation (default), mrrc, gdsf, ...; an error names all of them |
 * | resort                  | the share of the capacity in the resorting section of policy mrrc: 0.5 (default)      |
 * | evict                   | the share of the capacity that policy mrrc evicts in one batch: 0.1 (default)         |
 * | widen                   | on, off: whether misses register neighbours too, where that has paid; else off        |
 * | cost                    | the cost model: paper (default), fmr, io-uring, or four numbers of microseconds       |
 * | monitor                 | reports changes of memory: userfaultfd (default); or explicit: the program does       |
 * | shared                  | shared memory that is cached besides anonymous: sealed (default) memfds; trusted; off |
 * | discard_grace           | longer than any discard of memory by the program takes: 100ms (default)               |
 * | capacity_timeout        | how long a request waits for leases to end when all is in use: 0 (default), 20ms      |
 * | wait_timeout            | how long a request waits for other threads: 10s (default)                             |
 * | retries                 | how often a registration is tried again after room was made: 4 (default)              |
 * | max_segments            | the most segments of a lease, 1 where a transfer takes one key; else no limit         |
 * | headroom                | the share of the capacity that the background keeps free: 0 (default)                 |
 * | max_unheld              | after this time regions without a lease end: 60s, or with a size 1G,60s; else never   |
 * | pressure                | on, off (default): whether the cache keeps less while memory is short                 |
 * | background              | on, off: whether a thread of the cache deregisters; else on if the monitor reports    |
 * | histograms              | on, off (default): whether latencies are recorded; 50 ns an acquire                   |
 * | fence                   | on, off (default): whether hits use a fence although there is membarrier              |
 * | cpus                    | all, or 0-3,8: where own threads of all caches run; else as the process was at load   |
 * | environment             | on (default), off: whether MRRC_ variables are read at all                            |
 *
 * Case does not matter. A name or a value that makes no sense is MRRC_ERROR_SETTING, with what would, and changes nothing.
 */
mrrc_status_t mrrc_options_set(mrrc_options_t *options,
                               const char *name,
                               const char *value,
                               mrrc_error_t *error);

/** Frees options. Caches that were made with them stay as they are. */
void mrrc_options_free(mrrc_options_t *options);

/**
 * For mrrc_registrar_t.probe_range: whether all of the memory is mapped in this process, 0 or EFAULT. One system call, for
 * ranges up to 16 MiB.
 */
int mrrc_probe_mapped(void *_user,
                      const void *address,
                      size_t length,
                      mrrc_access_t _access);

/**
 * Makes a cache over a registrar of the program's own. `options` may be NULL. Freed by mrrc_cache_free.
 *
 * The table is copied. `user` is needed until the table's `done` was called.
 */
mrrc_status_t mrrc_cache_new(const mrrc_options_t *options,
                             const mrrc_registrar_t *registrar,
                             mrrc_cache_t **cache,
                             mrrc_error_t *error);

/**
 * Makes a cache over the fixed buffers of an io_uring (Linux 5.19): real pins without an RDMA device. Transfers (READ_FIXED,
 * WRITE_FIXED, zero-copy sends) name memory by the index that a segment has as its lkey. `options` may be NULL.
 *
 * `ring_fd` is the file of the ring (liburing: ring.ring_fd). It is opened once more, so the ring may be closed first. `slots` is
 * how many buffers it can have, 1 to 16384; 1024 is a good number. The ring must have no fixed buffers so far, must not be set up
 * with IORING_SETUP_SINGLE_ISSUER, and gives only local rights. The cache's own memory is pinned, and counts against
 * RLIMIT_MEMLOCK.
 */
mrrc_status_t mrrc_cache_new_io_uring(const mrrc_options_t *options,
                                      int32_t ring_fd,
                                      uint32_t slots,
                                      mrrc_cache_t **cache,
                                      mrrc_error_t *error);

/**
 * Makes a cache over a protection domain of verbs: memory is registered there with ibv_reg_mr. `options` may be NULL.
 *
 * The domain stays the caller's. It must stay open until the cache was freed and its last lease released; then ibv_dealloc_pd.
 * MRRC_ERROR_UNSUPPORTED if the library was built without verbs.
 */
mrrc_status_t mrrc_cache_new_verbs(const mrrc_options_t *options,
                                   struct ibv_pd *pd,
                                   mrrc_cache_t **cache,
                                   mrrc_error_t *error);

/**
 * Frees a cache: deregisters all that no lease has. Leased memory stays registered until it is released, and a thread of the
 * library's waits for that. NULL is none.
 */
void mrrc_cache_free(mrrc_cache_t *cache);

/**
 * Registers memory, with these rights at least, until the lease is released.
 *
 * On a hit this takes no lock and makes no system call. On a miss it registers what no region covers, after others were evicted
 * where there is no room; other threads go on meanwhile. It waits for what another thread is registering, and for leases to end
 * only if capacity_timeout is set: else MRRC_ERROR_ALL_IN_USE is said at once. After a failure nothing is leased and *lease is empty. If a
 * lease is held in *lease, this is MRRC_ERROR_HELD: nothing is acquired, and that lease stays.
 */
mrrc_status_t mrrc_acquire(const mrrc_cache_t *cache,
                           const void *address,
                           size_t length,
                           mrrc_access_t access,
                           mrrc_lease_t *lease,
                           mrrc_error_t *error);

/**
 * As mrrc_acquire, for a buffer of blocks of so many bytes, which follow each other from `address` on: no block has two keys. A buffer that
 * is longer than one registration may be (the setting slice) is cut between blocks. MRRC_ERROR_ARGUMENT where it cannot be: no end of a
 * block is one of a page there.
 */
mrrc_status_t mrrc_acquire_blocks(const mrrc_cache_t *cache,
                                  const void *address,
                                  size_t length,
                                  size_t block,
                                  mrrc_access_t access,
                                  mrrc_lease_t *lease,
                                  mrrc_error_t *error);

/**
 * As mrrc_acquire, for several buffers: a lease for each, in their order, or none at all; `leases` has room for `count`.
 *
 * Buffers that lie close together may be registered by one call, for local rights. No more than 2^20 buffers; none is done at once.
 * If a lease is held in any of the places, this is MRRC_ERROR_HELD and changes none of them.
 */
mrrc_status_t mrrc_acquire_list(const mrrc_cache_t *cache,
                                const struct iovec *buffers,
                                size_t count,
                                mrrc_access_t access,
                                mrrc_lease_t *leases,
                                mrrc_error_t *error);

/**
 * Ends a lease, when the transfers that use it are complete. One store, and no system call: the memory stays registered.
 *
 * MRRC_ERROR_LEASE, and nothing is done, if it is none: NULL, empty, released already, a copy.
 */
mrrc_status_t mrrc_release(mrrc_lease_t *lease);

/**
 * Moves a lease to another place. The old place is empty afterwards.
 *
 * MRRC_ERROR_HELD if another lease is held there, MRRC_ERROR_LEASE if there is none to be moved: nothing is changed then.
 */
mrrc_status_t mrrc_lease_move(mrrc_lease_t *from,
                              mrrc_lease_t *to);

/**
 * Writes the parts of a lease, in the order of their addresses, as many as there is room for. Returns how many there
 * are: one, unless several regions cover the memory together. With room 0, `segments` may be NULL.
 *
 * The keys are good until the lease is released. 0 if it is no lease, and in a child that was forked meanwhile.
 */
size_t mrrc_segments(const mrrc_lease_t *lease, mrrc_segment_t *segments, size_t room);

/**
 * Writes the segment of some bytes of a lease, for a transfer that takes one key. The offset counts from the lease's first byte.
 *
 * MRRC_ERROR_STRADDLES: several registrations have the bytes together. *segment is then the part from the offset on that the first has:
 * transfer that, and ask for the rest. MRRC_ERROR_OUTSIDE: no bytes, or not all of them are the lease's. MRRC_ERROR_LEASE: no lease.
 */
mrrc_status_t mrrc_key_for(const mrrc_lease_t *lease,
                           size_t offset,
                           size_t length,
                           mrrc_segment_t *segment,
                           mrrc_error_t *error);

/** Returns the start of the leased memory, as it was acquired; NULL if it is no lease. */
void *mrrc_lease_address(const mrrc_lease_t *lease);

/** How many bytes were acquired; 0 if it is no lease. */
size_t mrrc_lease_length(const mrrc_lease_t *lease);

/** Registers memory ahead of its use. It can be evicted again like any other; to keep it, keep a lease of it. */
mrrc_status_t mrrc_warm(const mrrc_cache_t *cache,
                        const void *address,
                        size_t length,
                        mrrc_access_t access,
                        mrrc_error_t *error);

/**
 * Registers a large range ahead of its use, by several threads of the library: pages are made present first, and then chunks are
 * registered. `how` may be NULL. The bytes that were registered are written to `registered`, which may be NULL: fewer than all where
 * progress stopped it, which is no error. What was registered before an error stays cached. MRRC_ERROR_SYSTEM: a page could not be made present.
 */
mrrc_status_t mrrc_warm_with(const mrrc_cache_t *cache,
                             const void *address,
                             size_t length,
                             mrrc_access_t access,
                             const mrrc_warm_t *how,
                             uint64_t *registered,
                             mrrc_error_t *error);

/**
 * Begins to acquire memory: what is registered already can be used before mrrc_finish registers the rest. Freed by
 * mrrc_pending_free, whether it was finished or not.
 *
 * Other threads that need what is begun wait for it, so finish soon. The content of *pending is not looked at: free it before.
 */
mrrc_status_t mrrc_begin(const mrrc_cache_t *cache,
                         const void *address,
                         size_t length,
                         mrrc_access_t access,
                         mrrc_pending_t **pending,
                         mrrc_error_t *error);

/**
 * Writes the segments that are registered already, as mrrc_segments does. Usable until the lease that mrrc_finish gives is released,
 * or, if it gives none, until mrrc_pending_free.
 */
size_t mrrc_ready(const mrrc_pending_t *pending,
                  mrrc_segment_t *segments,
                  size_t room);

/**
 * Registers what is missing. The lease has all of it, with what was ready. After a failure it can be tried again, also after
 * MRRC_ERROR_HELD, which is said if a lease is held in *lease. Once it gave a lease it is done (MRRC_ERROR_ARGUMENT).
 */
mrrc_status_t mrrc_finish(mrrc_pending_t *pending,
                          mrrc_lease_t *lease,
                          mrrc_error_t *error);

/** Frees what was begun, and gives up what of it was not finished. A lease of it stays. NULL is none. */
void mrrc_pending_free(mrrc_pending_t *pending);

/**
 * The memory is about to change or has changed: no request that begins after this returned finds a registration of what was
 * there. Leases keep what they have. Call it before memory is unmapped.
 *
 * It deregisters nothing. Pages stay pinned and keys that peers have go on to work until they are deregistered. The
 * background, a miss or mrrc_reap does that, after the last lease. An acquire of the range between this call and the
 * change registers the old pages again: where that can happen, use mrrc_change_begin.
 */
mrrc_status_t mrrc_invalidate(const mrrc_cache_t *cache,
                              const void *address,
                              size_t length,
                              mrrc_error_t *error);

/**
 * Reads the seals of a memfd, so that shared mappings of it are cached after the file is closed too. It has to be sealed with
 * F_SEAL_SHRINK, and with F_SEAL_FUTURE_WRITE or F_SEAL_WRITE: then no process can take pages of it. While the file is open
 * the call is not needed, unless the memory was acquired before it was sealed. For huge pages a file has to stay open.
 *
 * MRRC_ERROR_ARGUMENT if it is not sealed so; MRRC_ERROR_UNSUPPORTED if the cache's monitor reads no seals.
 */
mrrc_status_t mrrc_vouch(const mrrc_cache_t *cache,
                         int32_t fd,
                         mrrc_error_t *error);

/**
 * As mrrc_invalidate, exact also against threads that acquire the memory meanwhile. Nothing of it is cached until
 * mrrc_change_end, which is to be called when the change is done.
 */
mrrc_status_t mrrc_change_begin(const mrrc_cache_t *cache,
                                const void *address,
                                size_t length,
                                mrrc_change_t **change,
                                mrrc_error_t *error);

/** The change is done. Frees it. NULL is none. */
void mrrc_change_end(mrrc_change_t *change);

/**
 * Deregisters all that has left the cache and that no lease has, and nothing else. Waits for what others are deregistering. When it
 * has returned, and mrrc_usage_t.refused is 0, keys of what was invalidated before, and is in no lease, work no more. `regions`, how
 * many this call deregistered, may be NULL.
 */
mrrc_status_t mrrc_reap(const mrrc_cache_t *cache,
                        uint64_t *regions,
                        mrrc_error_t *error);

/** Deregisters everything that no lease has. As mrrc_reap. */
mrrc_status_t mrrc_flush(const mrrc_cache_t *cache, uint64_t *regions, mrrc_error_t *error);

/**
 * Maps so many bytes, rounded up to pages, zeroed. With `huge` not 0: in units of 2 MiB, with huge pages where the system has some;
 * they register faster. Freed by mrrc_arena_free; it may outlive the cache, but nothing more of it is acquired then.
 */
mrrc_status_t mrrc_arena_new(const mrrc_cache_t *cache,
                             size_t bytes,
                             int32_t huge,
                             mrrc_arena_t **arena,
                             mrrc_error_t *error);

/** Its first byte; NULL for NULL. */
void *mrrc_arena_address(const mrrc_arena_t *arena);

/** Its bytes, rounded up as they were; 0 for NULL. */
size_t mrrc_arena_length(const mrrc_arena_t *arena);

/** As mrrc_acquire, for so many bytes of the arena from that offset on. */
mrrc_status_t mrrc_arena_acquire(const mrrc_arena_t *arena,
                                 size_t offset,
                                 size_t length,
                                 mrrc_access_t access,
                                 mrrc_lease_t *lease,
                                 mrrc_error_t *error);

/**
 * Deregisters and unmaps it. Memory that leases still have is unmapped after the last of them was released. NULL is
 * none.
 */
void mrrc_arena_free(mrrc_arena_t *arena);

/**
 * Writes the counters. `size` is sizeof(mrrc_counters_t): a library that knows fewer counters makes the others 0. All are 0 in a
 * forked child.
 */
mrrc_status_t mrrc_counters(const mrrc_cache_t *cache,
                            mrrc_counters_t *counters,
                            size_t size);

/** Writes the current usage. `size` is sizeof(mrrc_usage_t). All is 0 in a forked child. */
mrrc_status_t mrrc_usage(const mrrc_cache_t *cache, mrrc_usage_t *usage, size_t size);

/**
 * A latency in nanoseconds, to three digits: that which this share of all stayed under, 0.5 for the median, 1 for the longest. Of
 * MRRC_LATENCY_ACQUIRE and its like. 0 if there was none yet.
 *
 * MRRC_ERROR_UNSUPPORTED unless the cache was made with the setting histograms, and in a forked child.
 */
mrrc_status_t mrrc_latency(const mrrc_cache_t *cache,
                           uint32_t what,
                           double share,
                           uint64_t *nanoseconds,
                           mrrc_error_t *error);

/**
 * Says why a request would hit or miss, a line for each reason, without deciding anything. Writes as much as there
 * is room for, with a 0 at the end. Returns the length of all of it, without the 0: if that is not less than `room`,
 * the text was cut.
 */
size_t mrrc_explain(const mrrc_cache_t *cache,
                    const void *address,
                    size_t length,
                    mrrc_access_t access,
                    char *text,
                    size_t room);

/** Says in some lines what the cache is, what it has counted and what it has, for people; it may change. As mrrc_explain writes. */
size_t mrrc_summary(const mrrc_cache_t *cache,
                    char *text,
                    size_t room);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MRRC_H */
