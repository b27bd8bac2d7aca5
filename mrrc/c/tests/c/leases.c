/* What a program relies on: leases, their segments, hits, lists, pieces, changes, arenas, numbers and words. */
#include "card.h"
#include <threads.h>
#include <time.h>

static void a_lease_has_the_memory_by_its_keys(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    char *memory = pages(8);
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    DONE(mrrc_acquire(cache, memory + 100, 5000, MRRC_LOCAL | MRRC_REMOTE_READ, &lease, &error));
    CHECK(mrrc_segments(&lease, &part, 1) == 1);
    CHECK(part.address == memory + 100 && part.length == 5000 && part.lkey == 1 && part.rkey == 1UL << 32);
    CHECK(part.handle == memory && card.bytes == 2 * PAGE);
    CHECK(mrrc_lease_address(&lease) == memory + 100 && mrrc_lease_length(&lease) == 5000);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    CHECK(card.regions == 1);
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_REMOTE_READ, &lease, &error));
    CHECK(mrrc_release(&lease) == MRRC_OK);
    mrrc_counters_t counters = counted(cache);
    CHECK(counters.requests == 2 && counters.hits == 1 && counters.misses == 1 && counters.attempts == 1);
    CHECK(counters.registered_pages == 2 && counters.peak_pages == 2 && card.calls == 1);
    mrrc_cache_free(cache);
    CHECK(card.regions == 0 && card.bytes == 0 && card.done == 1);
    free(memory);
}

static void segments_are_written_as_far_as_there_is_room(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "policy=mrrc");
    char *memory = pages(9);
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    DONE(mrrc_warm(cache, memory + 3 * PAGE, PAGE, MRRC_LOCAL, &error));
    mrrc_lease_t lease = { { 0 } };
    DONE(mrrc_acquire(cache, memory + 10, 5 * PAGE, MRRC_LOCAL, &lease, &error));
    mrrc_segment_t parts[5];
    memset(parts, 0, sizeof parts);
    CHECK(mrrc_segments(&lease, NULL, 0) == 4 && mrrc_segments(&lease, NULL, 7) == 4);
    CHECK(mrrc_segments(&lease, parts, 2) == 4 && parts[1].length != 0 && parts[2].length == 0);
    CHECK(mrrc_segments(&lease, parts, 5) == 4);
    char *at = memory + 10;
    for (size_t i = 0; i < 4; i++) {
        CHECK(parts[i].address == at && parts[i].lkey != 0);
        at += parts[i].length;
    }
    CHECK(at == memory + 10 + 5 * PAGE);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0);
    free(memory);
}

static void each_block_has_one_key(void)
{
    enum { SLICE = 4 * PAGE, BLOCK = 6 << 10, LENGTH = 20 * PAGE };
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "slice=16K");
    char *memory = pages(20);
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    mrrc_error_t error;
    /* Slices divide some blocks: the part up to there is told. */
    DONE(mrrc_acquire(cache, memory, LENGTH, MRRC_LOCAL, &lease, &error));
    CHECK(mrrc_segments(&lease, NULL, 0) >= LENGTH / SLICE);
    size_t first = SLICE - (uintptr_t)memory % SLICE;
    CHECK(mrrc_key_for(&lease, 1, first, &part, &error) == MRRC_ERROR_STRADDLES && error.status == MRRC_ERROR_STRADDLES);
    CHECK(part.address == memory + 1 && part.length == first - 1 && part.lkey != 0);
    DONE(mrrc_key_for(&lease, first, 1, &part, &error));
    CHECK(part.address == memory + first && part.length == 1);
    CHECK(mrrc_key_for(&lease, 0, LENGTH + 1, &part, &error) == MRRC_ERROR_OUTSIDE);
    CHECK(mrrc_key_for(&lease, 0, 0, &part, &error) == MRRC_ERROR_OUTSIDE);
    CHECK(mrrc_key_for(&lease, 0, 1, NULL, &error) == MRRC_ERROR_ARGUMENT);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    CHECK(mrrc_key_for(&lease, 0, 1, &part, &error) == MRRC_ERROR_LEASE);
    /* In blocks there is one key for each. */
    DONE(mrrc_acquire_blocks(cache, memory, LENGTH, BLOCK, MRRC_LOCAL, &lease, &error));
    for (size_t at = 0; at < LENGTH; at += BLOCK) {
        size_t length = LENGTH - at < BLOCK ? LENGTH - at : BLOCK;
        DONE(mrrc_key_for(&lease, at, length, &part, &error));
        CHECK(part.address == memory + at && part.length == length && part.lkey != 0);
    }
    CHECK(mrrc_acquire_blocks(cache, memory, LENGTH, BLOCK, MRRC_LOCAL, &lease, &error) == MRRC_ERROR_HELD);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    CHECK(mrrc_acquire_blocks(cache, memory, LENGTH, 0, MRRC_LOCAL, &lease, &error) == MRRC_ERROR_ARGUMENT);
    CHECK(mrrc_acquire_blocks(cache, memory, LENGTH, 5 * PAGE, MRRC_LOCAL, &lease, &error) == MRRC_ERROR_ARGUMENT);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0);
    free(memory);
}

struct steps {
    uint64_t done, total;
    int calls, stop_at;
};

static int step(void *user, uint64_t done, uint64_t total)
{
    struct steps *steps = user;
    CHECK(done > steps->done && done <= total);
    steps->done = done;
    steps->total = total;
    return ++steps->calls == steps->stop_at;
}

static void large_ranges_are_warmed_in_chunks(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "policy=mrrc");
    char *memory = pages(16);
    struct steps steps = { 0 };
    mrrc_warm_t how = { .size = sizeof how, .threads = 2, .chunk = 4 * PAGE, .progress = step, .user = &steps };
    uint64_t registered = 0;
    DONE(mrrc_warm_with(cache, memory, 16 * PAGE, MRRC_LOCAL, &how, &registered, &error));
    CHECK(registered == 16 * PAGE && card.calls == 4 && steps.calls == 5 && steps.done == 32 * PAGE);
    /* The defaults, and no pages made present. */
    DONE(mrrc_warm_with(cache, memory, 16 * PAGE, MRRC_LOCAL, NULL, NULL, NULL));
    CHECK(card.calls == 4);
    mrrc_cache_free(cache);

    /* Stopped at the first step. */
    cache = card_cache(&card, "policy=mrrc");
    steps = (struct steps) { .stop_at = 1 };
    how.threads = 1;
    how.no_prefault = 1;
    DONE(mrrc_warm_with(cache, memory, 16 * PAGE, MRRC_LOCAL, &how, &registered, &error));
    CHECK(steps.calls == 1 && steps.total == 16 * PAGE && registered >= 4 * PAGE && registered <= 16 * PAGE);
    how.size = 8;
    FAILS(mrrc_warm_with(cache, memory, PAGE, MRRC_LOCAL, &how, NULL, &error), MRRC_ERROR_ARGUMENT, "sizeof(mrrc_warm_t)");
    mrrc_cache_free(cache);
    free(memory);
}

static void one_key_where_one_is_needed(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "max_segments=1");
    char *memory = pages(8);
    DONE(mrrc_warm(cache, memory + PAGE, PAGE, MRRC_LOCAL, &error));
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    DONE(mrrc_acquire(cache, memory, 8 * PAGE, MRRC_LOCAL, &lease, &error));
    CHECK(mrrc_segments(&lease, &part, 1) == 1 && part.length == 8 * PAGE);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    mrrc_cache_free(cache);
    free(memory);
}

static void a_card_with_larger_pages_registers_those(void)
{
    struct card card = { 0 };
    mrrc_registrar_t registrar = card_registrar(&card);
    registrar.page_size = 64 << 10;
    registrar.max_bytes = 256 << 10;
    registrar.max_region_bytes = 128 << 10;
    registrar.max_regions = 3;
    mrrc_options_t *options = mrrc_options_new();
    DONE(mrrc_options_set(options, "monitor", "explicit", &error));
    mrrc_cache_t *cache;
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    mrrc_options_free(options);
    char *memory = aligned_alloc(64 << 10, 512 << 10);
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t parts[3];
    CHECK(used(cache).capacity_pages == 64 && used(cache).capacity_regions == 3);
    DONE(mrrc_acquire(cache, memory + 70000, 100, MRRC_LOCAL, &lease, &error));
    CHECK(mrrc_segments(&lease, parts, 3) == 1 && parts[0].handle == memory + (64 << 10) && parts[0].length == 100);
    CHECK(card.bytes == 64 << 10 && mrrc_release(&lease) == MRRC_OK);
    /* No registration is longer than the card takes. */
    DONE(mrrc_acquire(cache, memory + (256 << 10), 256 << 10, MRRC_LOCAL, &lease, &error));
    CHECK(mrrc_segments(&lease, parts, 3) == 2 && parts[0].length == 128 << 10 && parts[1].length == 128 << 10);
    CHECK(card.regions == 2 && mrrc_release(&lease) == MRRC_OK);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0);
    free(memory);
}

static void a_list_is_had_whole_or_not_at_all(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "capacity=64K");
    char *memory = pages(64);
    struct iovec rows[4];
    mrrc_lease_t leases[4] = { { { 0 } } };
    for (size_t i = 0; i < 4; i++)
        rows[i] = (struct iovec){ memory + 4 * PAGE * i, 2 * PAGE + i };
    DONE(mrrc_acquire_list(cache, rows, 4, MRRC_LOCAL, leases, &error));
    for (size_t i = 0; i < 4; i++) {
        mrrc_segment_t part;
        CHECK(mrrc_segments(&leases[i], &part, 1) >= 1 && part.address == rows[i].iov_base);
        CHECK(mrrc_lease_length(&leases[i]) == rows[i].iov_len);
        CHECK(mrrc_release(&leases[i]) == MRRC_OK);
    }
    rows[3].iov_len = 61 * PAGE;
    FAILS(mrrc_acquire_list(cache, rows, 4, MRRC_LOCAL, leases, &error), MRRC_ERROR_TOO_LARGE, "acquire it in pieces");
    for (size_t i = 0; i < 4; i++)
        CHECK(mrrc_release(&leases[i]) == MRRC_ERROR_LEASE);
    memset(leases, 0x11, sizeof leases);
    FAILS(mrrc_acquire_list(cache, rows, 4, 1 << 9, leases, &error), MRRC_ERROR_ARGUMENT, "no right");
    CHECK(mrrc_release(&leases[3]) == MRRC_ERROR_LEASE);
    DONE(mrrc_acquire_list(cache, NULL, 0, MRRC_LOCAL, NULL, &error));
    FAILS(mrrc_acquire_list(cache, NULL, 1, MRRC_LOCAL, leases, &error), MRRC_ERROR_ARGUMENT, "buffers is NULL");
    FAILS(mrrc_acquire_list(cache, rows, 1, MRRC_LOCAL, NULL, &error), MRRC_ERROR_ARGUMENT, "leases is NULL");
    FAILS(mrrc_acquire_list(cache, rows, (size_t)-1, MRRC_LOCAL, leases, &error), MRRC_ERROR_ARGUMENT, "count is");
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0);
    free(memory);
}

static void what_is_registered_can_be_used_while_the_rest_is(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    char *memory = pages(8);
    DONE(mrrc_warm(cache, memory, 2 * PAGE, MRRC_LOCAL, &error));
    mrrc_pending_t *begun;
    DONE(mrrc_begin(cache, memory, 8 * PAGE, MRRC_LOCAL, &begun, &error));
    mrrc_segment_t part;
    CHECK(mrrc_ready(begun, &part, 1) == 1 && part.length == 2 * PAGE && card.calls == 1);
    mrrc_lease_t lease = { { 0 } };
    fail(&card, 1, EFAULT);
    FAILS(mrrc_finish(begun, &lease, &error), MRRC_ERROR_REGISTER, "test card");
    DONE(mrrc_finish(begun, &lease, &error));
    CHECK(mrrc_lease_length(&lease) == 8 * PAGE && card.calls == 3);
    mrrc_lease_t again = { { 0 } };
    FAILS(mrrc_finish(begun, &again, &error), MRRC_ERROR_ARGUMENT, "finished before");
    mrrc_pending_free(begun);
    CHECK(mrrc_release(&lease) == MRRC_OK);
    /* Given up, after its cache was freed. */
    DONE(mrrc_begin(cache, memory, 8 * PAGE, MRRC_REMOTE_READ, &begun, &error));
    mrrc_cache_free(cache);
    mrrc_pending_free(begun);
    CHECK(card.bytes == 0 && card.done == 1);
    free(memory);
}

static void what_changed_is_registered_anew(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    char *memory = pages(4);
    mrrc_lease_t lease = { { 0 } };
    uint64_t regions = 99;
    DONE(mrrc_acquire(cache, memory, 4 * PAGE, MRRC_LOCAL, &lease, &error));
    DONE(mrrc_invalidate(cache, memory + PAGE, 1, &error));
    DONE(mrrc_reap(cache, &regions, &error));
    CHECK(regions == 0 && card.regions == 1); /* the lease has it */
    CHECK(mrrc_release(&lease) == MRRC_OK);
    DONE(mrrc_reap(cache, &regions, &error));
    CHECK(regions == 1 && card.regions == 0 && used(cache).refused == 0);
    DONE(mrrc_acquire(cache, memory, 4 * PAGE, MRRC_LOCAL, &lease, &error));
    CHECK(card.calls == 2 && mrrc_release(&lease) == MRRC_OK);
    mrrc_change_t *change;
    DONE(mrrc_change_begin(cache, memory, PAGE, &change, &error));
    for (int i = 0; i < 2; i++) {
        DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
        CHECK(mrrc_release(&lease) == MRRC_OK);
    }
    mrrc_change_end(change);
    CHECK(card.calls == 4 && counted(cache).discarded == 2);
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    CHECK(card.calls == 5);
    DONE(mrrc_flush(cache, NULL, &error));
    CHECK(card.regions == 0 && card.bytes == 0);
    mrrc_cache_free(cache);
    free(memory);
}

static void an_arena_is_memory_of_the_caches(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    mrrc_arena_t *arena;
    DONE(mrrc_arena_new(cache, 10000, 0, &arena, &error));
    char *memory = mrrc_arena_address(arena);
    CHECK(mrrc_arena_length(arena) == 12288 && memory[0] == 0);
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    DONE(mrrc_arena_acquire(arena, 5000, 100, MRRC_LOCAL | MRRC_REMOTE_WRITE, &lease, &error));
    CHECK(mrrc_segments(&lease, &part, 1) == 1 && part.address == memory + 5000 && part.length == 100);
    mrrc_lease_t other = { { 0 } };
    FAILS(mrrc_arena_acquire(arena, 12288, 1, MRRC_LOCAL, &other, &error), MRRC_ERROR_OUTSIDE, "stay inside of it");
    FAILS(mrrc_arena_acquire(arena, 1, (size_t)-1, MRRC_LOCAL, &other, &error), MRRC_ERROR_OUTSIDE, "bytes 1..");
    FAILS(mrrc_arena_acquire(arena, 0, 0, MRRC_LOCAL, &other, &error), MRRC_ERROR_ARGUMENT, "");
    mrrc_arena_t *none;
    FAILS(mrrc_arena_new(cache, 0, 0, &none, &error), MRRC_ERROR_ARGUMENT, "arena of 0 bytes");
    CHECK(none == NULL);
    mrrc_arena_free(arena);
    memory[5000] = 7; /* the lease has it */
    CHECK(mrrc_release(&lease) == MRRC_OK);
    DONE(mrrc_arena_new(cache, 1, 1, &arena, &error));
    CHECK(mrrc_arena_length(arena) == 2 << 20 && (size_t)mrrc_arena_address(arena) % (2 << 20) == 0);
    mrrc_cache_free(cache);
    FAILS(mrrc_arena_acquire(arena, 0, 1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_CLOSED, "the cache was dropped");
    mrrc_arena_free(arena);
    CHECK(card.bytes == 0);
}

static void a_lease_may_outlive_its_cache(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    char *memory = pages(2);
    mrrc_lease_t lease = { { 0 } }, moved = { { 0 } };
    mrrc_segment_t part;
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
    DONE(mrrc_warm(cache, memory + PAGE, PAGE, MRRC_LOCAL, &error));
    mrrc_cache_free(cache);
    CHECK(card.regions == 1 && card.done == 0);
    CHECK(mrrc_lease_move(&lease, &moved) == MRRC_OK && mrrc_segments(&lease, &part, 1) == 0);
    CHECK(mrrc_segments(&moved, &part, 1) == 1 && part.lkey == 1);
    CHECK(mrrc_release(&lease) == MRRC_ERROR_LEASE && mrrc_release(&moved) == MRRC_OK);
    /* A thread of the library calls `done`. This one sleeps meanwhile: under valgrind one thread runs at a time. */
    const struct timespec millisecond = { .tv_nsec = 1000000 };
    for (time_t begun = time(NULL); atomic_load(&card.done) == 0; thrd_sleep(&millisecond, NULL))
        CHECK(time(NULL) < begun + 60);
    CHECK(card.bytes == 0);
    free(memory);
}

static void numbers_and_words(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "capacity=64K,histograms=on");
    char *memory = pages(20);
    char text[200], whole[2000];
    size_t length = mrrc_explain(cache, memory, PAGE, MRRC_LOCAL, whole, sizeof whole);
    CHECK(length == strlen(whole) && strstr(whole, "is not registered") != NULL);
    CHECK(mrrc_explain(cache, memory, PAGE, MRRC_LOCAL, text, 10) == length && strlen(text) == 9);
    CHECK(mrrc_explain(cache, memory, PAGE, MRRC_LOCAL, NULL, 0) == length && card.calls == 0);
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    mrrc_explain(cache, memory, PAGE, MRRC_LOCAL, whole, sizeof whole);
    CHECK(strstr(whole, "a hit") != NULL);
    mrrc_explain(cache, memory, 20 * PAGE, MRRC_LOCAL, whole, sizeof whole);
    CHECK(strstr(whole, "16 is the limit") != NULL);
    mrrc_explain(cache, memory, PAGE, 64, whole, sizeof whole);
    CHECK(strstr(whole, "no right") != NULL);
    CHECK(mrrc_summary(cache, whole, sizeof whole) == strlen(whole));
    CHECK(strstr(whole, "test card, told of changes by explicit") == whole && strstr(whole, "requests") != NULL);
    uint64_t nanoseconds = 0;
    DONE(mrrc_latency(cache, MRRC_LATENCY_REGISTER, 1, &nanoseconds, &error));
    CHECK(nanoseconds > 0);
    FAILS(mrrc_latency(cache, 3, 0.5, &nanoseconds, &error), MRRC_ERROR_ARGUMENT, "what is 3");
    FAILS(mrrc_latency(cache, 0, 1.5, &nanoseconds, &error), MRRC_ERROR_ARGUMENT, "share is 1.5");
    mrrc_usage_t usage = used(cache);
    CHECK(usage.pages == 1 && usage.regions == 1 && usage.capacity_pages == 16);
    /* A program that was compiled with another header. */
    uint64_t fewer[2] = { 7, 7 }, more[100];
    CHECK(mrrc_usage(cache, (void *)fewer, 8) == MRRC_OK && fewer[0] == 1 && fewer[1] == 7);
    memset(more, 7, sizeof more);
    CHECK(mrrc_counters(cache, (void *)more, sizeof more) == MRRC_OK && more[0] == 1 && more[99] == 0);
    mrrc_cache_free(cache);
    cache = card_cache(&card, "");
    FAILS(mrrc_latency(cache, 0, 0.5, &nanoseconds, &error), MRRC_ERROR_UNSUPPORTED, "histograms=on");
    mrrc_cache_free(cache);
    free(memory);
}

int main(void)
{
    a_lease_has_the_memory_by_its_keys();
    segments_are_written_as_far_as_there_is_room();
    each_block_has_one_key();
    large_ranges_are_warmed_in_chunks();
    one_key_where_one_is_needed();
    a_card_with_larger_pages_registers_those();
    a_list_is_had_whole_or_not_at_all();
    what_is_registered_can_be_used_while_the_rest_is();
    what_changed_is_registered_anew();
    an_arena_is_memory_of_the_caches();
    a_lease_may_outlive_its_cache();
    numbers_and_words();
    puts("done");
    return 0;
}
