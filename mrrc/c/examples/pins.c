/*
 * A cache over real pins: memory is sent through an io_uring by the index of a fixed buffer, unmapped, mapped anew at the same
 * address, and sent again. The kernel tells the cache of the change, and it registers the new pages. No network card is needed.
 *
 *     cc pins.c $(pkg-config --cflags --libs mrrc) && ./a.out
 *     ./a.out explicit     # the cache is not told: the bytes are stale
 *
 * With liburing, ring.ring_fd is the file that the cache is given, and io_uring_prep_write_fixed takes the index.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <mrrc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 4 * 4096 };

/* As much of a ring as one transfer at a time takes. */
static struct {
    int fd;
    char *rings;
    struct io_uring_sqe *entries;
    struct io_uring_params params;
} ring;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static int set_up_ring(void)
{
    ring.fd = (int)syscall(__NR_io_uring_setup, 4, &ring.params);
    if (ring.fd < 0)
        return -1;
    size_t bytes = ring.params.cq_off.cqes + ring.params.cq_entries * sizeof(struct io_uring_cqe);
    if (bytes < ring.params.sq_off.array + ring.params.sq_entries * sizeof(unsigned))
        bytes = ring.params.sq_off.array + ring.params.sq_entries * sizeof(unsigned);
    ring.rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    ring.entries = mmap(NULL, ring.params.sq_entries * sizeof *ring.entries, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
    return ring.rings == MAP_FAILED || (void *)ring.entries == MAP_FAILED ? -1 : 0;
}

/* Writes a fixed buffer to a file, and waits until that is done. */
static int write_fixed(int fd, const void *address, unsigned length, unsigned index)
{
    _Atomic unsigned *tail = (void *)(ring.rings + ring.params.sq_off.tail);
    unsigned *array = (void *)(ring.rings + ring.params.sq_off.array);
    unsigned slot = *tail & (ring.params.sq_entries - 1);
    memset(&ring.entries[slot], 0, sizeof ring.entries[slot]);
    ring.entries[slot].opcode = IORING_OP_WRITE_FIXED;
    ring.entries[slot].fd = fd;
    ring.entries[slot].addr = (unsigned long)address;
    ring.entries[slot].len = length;
    ring.entries[slot].buf_index = (unsigned short)index;
    array[slot] = slot;
    atomic_store_explicit(tail, *tail + 1, memory_order_release);
    if (syscall(__NR_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    _Atomic unsigned *head = (void *)(ring.rings + ring.params.cq_off.head);
    struct io_uring_cqe *done = (void *)(ring.rings + ring.params.cq_off.cqes);
    int result = done[*head & (ring.params.cq_entries - 1)].res;
    atomic_store_explicit(head, *head + 1, memory_order_release);
    return result;
}

/* What the kernel counts. */
static long pinned_pages(void)
{
    char line[200];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        sscanf(line, "VmPin: %ld", &kilobytes);
    if (status != NULL)
        fclose(status);
    return kilobytes / 4;
}

static void send_memory(mrrc_cache_t *cache, char *memory, const char *what, char expected)
{
    mrrc_error_t error;
    mrrc_counters_t before, after;
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    int ends[2];
    char out[BYTES];
    mrrc_counters(cache, &before, sizeof before);
    if (mrrc_acquire(cache, memory, BYTES, MRRC_LOCAL_READ, &lease, &error) != MRRC_OK)
        fail("acquire", error.message);
    mrrc_counters(cache, &after, sizeof after);
    mrrc_segments(&lease, &part, 1); /* max_segments is 1 */
    if (pipe(ends) != 0)
        fail("pipe", strerror(errno));
    int sent = write_fixed(ends[1], part.address, (unsigned)part.length, (unsigned)part.lkey);
    /* The transfer is complete; the memory stays registered. */
    mrrc_release(&lease);
    if (sent != BYTES || read(ends[0], out, sizeof out) != BYTES)
        fail("transfer", sent < 0 ? strerror(-sent) : "it was short");
    close(ends[0]);
    close(ends[1]);
    /* What was unmapped is unpinned now, and not a moment later by a thread of the cache's. */
    mrrc_reap(cache, NULL, NULL);
    printf("%-9s memory holds %c, %s, %c came out; %ld pages are pinned\n", what, expected,
           after.attempts > before.attempts ? "registered now" : "was registered", out[0], pinned_pages());
}

static char *map(char holds)
{
    void *place = (void *)0x200000000000, *memory;
    memory = mmap(place, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != place)
        fail("mmap", strerror(errno));
    return memset(memory, holds, BYTES);
}

int main(int argc, char **argv)
{
    mrrc_error_t error;
    if (set_up_ring() != 0) {
        fprintf(stderr, "not run: this system has no io_uring for this process: %s\n", strerror(errno));
        return 77;
    }
    mrrc_options_t *options = mrrc_options_new();
    if (mrrc_options_set(options, "max_segments", "1", &error) != MRRC_OK ||
        (argc > 1 && mrrc_options_set(options, "monitor", argv[1], &error) != MRRC_OK))
        fail("options", error.message);
    mrrc_cache_t *cache;
    mrrc_status_t status = mrrc_cache_new_io_uring(options, ring.fd, 64, &cache, &error);
    if (status == MRRC_ERROR_DEVICE || status == MRRC_ERROR_SYSTEM) {
        fprintf(stderr, "not run: %s\n", error.message);
        return 77;
    }
    if (status != MRRC_OK)
        fail("cache", error.message);
    mrrc_options_free(options);

    char *memory = map('A');
    send_memory(cache, memory, "first:", 'A');
    send_memory(cache, memory, "again:", 'A');
    munmap(memory, BYTES);
    memory = map('B');
    send_memory(cache, memory, "remapped:", 'B');

    mrrc_cache_free(cache);
    printf("freed:    %ld pages are pinned\n", pinned_pages());
    close(ring.fd);
    return 0;
}
