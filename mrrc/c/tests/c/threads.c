/* Many threads, one cache that is too small for what they want: nothing is lost, no key is of memory that it does not mean, and a
 * lease is released by another thread than acquired it. */
#include "card.h"
#include <pthread.h>

enum { THREADS = 4, BUFFERS = 32, LONGEST = 4 };

static struct card card;
static mrrc_cache_t *cache;
static char *memory;
static int rounds = 2000;

/* A place where a lease waits for the thread that takes it. */
static struct {
    pthread_mutex_t lock;
    mrrc_lease_t lease;
} left = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *work(void *seed)
{
    unsigned long state = (unsigned long)seed;
    for (int i = 0; i < rounds; i++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        size_t page = (state >> 33) % (BUFFERS - LONGEST), count = 1 + (state >> 50) % LONGEST;
        char *at = memory + page * PAGE + (state >> 20) % 100;
        size_t length = (count - 1) * PAGE + 1000;
        mrrc_lease_t lease = { { 0 } };
        mrrc_error_t error;
        mrrc_status_t status = mrrc_acquire(cache, at, length, MRRC_LOCAL, &lease, &error);
        if (status == MRRC_ERROR_ALL_IN_USE || status == MRRC_ERROR_TIMED_OUT)
            continue;
        if (status != MRRC_OK) {
            fprintf(stderr, "%s\n", error.message);
            exit(1);
        }
        mrrc_segment_t parts[LONGEST + 1];
        size_t parts_count = mrrc_segments(&lease, parts, LONGEST + 1);
        CHECK(parts_count >= 1 && parts_count <= LONGEST + 1);
        char *next = at;
        for (size_t part = 0; part < parts_count; part++) {
            CHECK(parts[part].address == next && (char *)parts[part].handle <= next && parts[part].lkey != 0);
            next += parts[part].length;
        }
        CHECK(next == at + length);
        if (i % 7 == 0)
            DONE(mrrc_invalidate(cache, at, length, &error));
        if (i % 3 != 0) {
            CHECK(mrrc_release(&lease) == MRRC_OK);
            continue;
        }
        pthread_mutex_lock(&left.lock);
        mrrc_release(&left.lease);
        CHECK(mrrc_lease_move(&lease, &left.lease) == MRRC_OK);
        pthread_mutex_unlock(&left.lock);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    memory = pages(BUFFERS + 1);
    cache = card_cache(&card, "capacity=64K,capacity_timeout=20ms,background=on");
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    mrrc_release(&left.lease);
    mrrc_counters_t counters = counted(cache);
    CHECK(counters.requests == counters.hits + counters.misses && counters.hits > 0 && counters.misses > 0);
    CHECK(counters.peak_pages <= 16 && counters.attempts == card.calls);
    DONE(mrrc_flush(cache, NULL, &error));
    CHECK(card.regions == 0 && card.bytes == 0 && used(cache).pages == 0);
    mrrc_cache_free(cache);
    CHECK(card.done == 1);
    free(memory);
    puts("done");
    return 0;
}
