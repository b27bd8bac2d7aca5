/* A program over the fake libfabric that uses buffers again and again, and changes memory between.
 *
 *   remaps ROUNDS BUFFERS EVERY THREADS HOW
 *
 * Each EVERYth round changes the buffer first: HOW is `remap` (mapped anew), `move` (moved away and mapped anew) or `discard`.
 * THREADS threads map and unmap memory meanwhile. Without threads a change is followed by as many transfers as it takes until one
 * registers nothing. Prints how many registrations the other transfers made, and how many hits were stale. */
#define _GNU_SOURCE
#include "fabric.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* With a sleep between two, a minute and more. */
enum { LENGTH = 16384, MOST = 64, MOST_TRIES = 600000 };

static char *buffers[MOST];
/* How often each buffer was changed: a registration means the pages of one such time. */
static uint64_t changes[MOST];
static atomic_int over;

static uint64_t times(void *address) {
    for (int at = 0; at < MOST; at++)
        if (buffers[at] == address) return changes[at];
    abort();
}

static void *map(void *at) {
    int fixed = at ? MAP_FIXED : 0;
    void *memory = mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(memory, 1, LENGTH);
    return memory;
}

static uint64_t nothing_of(void *address) { return (uint64_t)address; }

static void *bystander(void *nothing) {
    while (!over) {
        char *memory = map(NULL);
        fake_search(memory, LENGTH, nothing_of);
        munmap(memory, LENGTH);
        free(malloc(1 << 20));
    }
    return nothing;
}

static void change(int at, const char *how) {
    if (!strcmp(how, "discard")) {
        madvise(buffers[at], LENGTH, MADV_DONTNEED);
    } else if (!strcmp(how, "move")) {
        void *elsewhere = mremap(buffers[at], LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, map(NULL));
        if (elsewhere == MAP_FAILED) exit(1);
        munmap(elsewhere, LENGTH);
        map(buffers[at]);
    } else {
        map(buffers[at]);
    }
    changes[at]++;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int rounds = atoi(argv[1]), count = atoi(argv[2]), every = atoi(argv[3]), threads = atoi(argv[4]);
    int begun = fake_begin();
    if (begun) {
        fprintf(stderr, "fake_begin: %s\n", strerror(-begun));
        return 1;
    }
    for (int at = 0; at < count; at++) buffers[at] = map(NULL);
    pthread_t running[16];
    for (int at = 0; at < threads; at++) pthread_create(&running[at], NULL, bystander, NULL);
    int stale = 0;
    uint64_t settling = 0;
    for (int round = 0; round < rounds; round++) {
        int at = round % count;
        if (every && round % every == every - 1) {
            change(at, argv[5]);
            uint64_t first = fake_registered(), before;
            int tries = 0;
            do {
                if (tries++ == MOST_TRIES) {
                    fprintf(stderr, "a changed buffer is registered for each transfer\n");
                    return 1;
                }
                before = fake_registered();
                stale += fake_search(buffers[at], LENGTH, times) != changes[at];
            } while (!threads && fake_registered() != before && !usleep(100));
            if (!threads) settling += fake_registered() - first;
        }
        stale += fake_search(buffers[at], LENGTH, times) != changes[at];
    }
    over = 1;
    for (int at = 0; at < threads; at++) pthread_join(running[at], NULL);
    printf("registered %ld, stale %d\n", (long)(fake_registered() - settling), stale);
    fake_end();
    return 0;
}
