/* Misuse is reported and does no harm: null pointers, leases that are none, settings, registrars, and errors of callbacks. */
#define _POSIX_C_SOURCE 200809L
#include "card.h"

static void nothing_is_null_without_being_said(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "");
    char *memory = pages(1);
    mrrc_lease_t lease = { { 0 } };
    mrrc_segment_t part;
    FAILS(mrrc_acquire(NULL, memory, 1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    FAILS(mrrc_acquire(cache, memory, 1, MRRC_LOCAL, NULL, &error), MRRC_ERROR_ARGUMENT, "lease is NULL");
    FAILS(mrrc_acquire(cache, NULL, 1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ARGUMENT, "null");
    FAILS(mrrc_acquire(cache, memory, 0, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ARGUMENT, "");
    FAILS(mrrc_acquire(cache, memory, (size_t)-1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ARGUMENT, "");
    FAILS(mrrc_acquire(cache, memory, 1, 96, &lease, &error), MRRC_ERROR_ARGUMENT, "0x60 of it is no right");
    CHECK(mrrc_acquire(NULL, NULL, 0, 0, NULL, NULL) == MRRC_ERROR_ARGUMENT); /* no place for a message */
    FAILS(mrrc_warm(NULL, memory, 1, MRRC_LOCAL, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    FAILS(mrrc_invalidate(NULL, memory, 1, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    FAILS(mrrc_invalidate(cache, memory, 0, &error), MRRC_ERROR_ARGUMENT, "");
    FAILS(mrrc_reap(NULL, NULL, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    FAILS(mrrc_flush(NULL, NULL, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    FAILS(mrrc_begin(cache, memory, 1, MRRC_LOCAL, NULL, &error), MRRC_ERROR_ARGUMENT, "pending is NULL");
    FAILS(mrrc_finish(NULL, &lease, &error), MRRC_ERROR_ARGUMENT, "pending is NULL");
    FAILS(mrrc_change_begin(cache, memory, 1, NULL, &error), MRRC_ERROR_ARGUMENT, "change is NULL");
    FAILS(mrrc_arena_new(cache, 1, 0, NULL, &error), MRRC_ERROR_ARGUMENT, "arena is NULL");
    FAILS(mrrc_arena_acquire(NULL, 0, 1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ARGUMENT, "arena is NULL");
    FAILS(mrrc_latency(cache, 0, 0.5, NULL, &error), MRRC_ERROR_ARGUMENT, "nanoseconds is NULL");
    CHECK(mrrc_counters(cache, NULL, 8) == MRRC_ERROR_ARGUMENT && mrrc_usage(NULL, NULL, 8) == MRRC_ERROR_ARGUMENT);
    mrrc_usage_t usage;
    CHECK(mrrc_usage(cache, &usage, 7) == MRRC_ERROR_ARGUMENT && mrrc_usage(cache, &usage, 0) == MRRC_ERROR_ARGUMENT);
    char text[50];
    CHECK(mrrc_explain(NULL, memory, 1, MRRC_LOCAL, text, sizeof text) > 0 && strcmp(text, "cache is NULL") == 0);
    CHECK(mrrc_summary(NULL, text, sizeof text) > 0 && mrrc_arena_address(NULL) == NULL && mrrc_arena_length(NULL) == 0);
    CHECK(mrrc_ready(NULL, &part, 1) == 0 && mrrc_segments(NULL, &part, 1) == 0);
    CHECK(mrrc_lease_address(NULL) == NULL && mrrc_lease_length(NULL) == 0);
    mrrc_cache_free(NULL);
    mrrc_options_free(NULL);
    mrrc_arena_free(NULL);
    mrrc_pending_free(NULL);
    mrrc_change_end(NULL);
    CHECK(card.calls == 0);
    mrrc_cache_free(cache);
    free(memory);
}

static void a_lease_is_released_once_and_where_it_lies(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "capacity=4K");
    char *memory = pages(2);
    mrrc_lease_t lease = { { 0 } }, copy, other = { { 0 } };
    CHECK(mrrc_release(NULL) == MRRC_ERROR_LEASE && mrrc_release(&other) == MRRC_ERROR_LEASE);
    memset(&copy, 0x11, sizeof copy);
    CHECK(mrrc_release(&copy) == MRRC_ERROR_LEASE);
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
    copy = lease;
    mrrc_segment_t part;
    CHECK(mrrc_release(&copy) == MRRC_ERROR_LEASE && mrrc_segments(&copy, &part, 1) == 0);
    CHECK(mrrc_lease_move(&copy, &other) == MRRC_ERROR_LEASE && mrrc_lease_move(&lease, NULL) == MRRC_ERROR_ARGUMENT);
    /* It is still held: there is no room for another. */
    FAILS(mrrc_acquire(cache, memory + PAGE, PAGE, MRRC_LOCAL, &other, &error), MRRC_ERROR_ALL_IN_USE, "in use");
    CHECK(mrrc_release(&other) == MRRC_ERROR_LEASE);
    CHECK(mrrc_release(&lease) == MRRC_OK && mrrc_release(&lease) == MRRC_ERROR_LEASE);
    CHECK(mrrc_segments(&lease, &part, 1) == 0 && mrrc_lease_length(&lease) == 0);
    DONE(mrrc_acquire(cache, memory + PAGE, PAGE, MRRC_LOCAL, &other, &error));
    /* And a second release is refused. */
    CHECK(mrrc_release(&lease) == MRRC_ERROR_LEASE && mrrc_release(&copy) == MRRC_ERROR_LEASE);
    FAILS(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_ALL_IN_USE, "in use");
    CHECK(mrrc_release(&other) == MRRC_OK);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0);
    free(memory);
}

/* What is held is not lost: nothing is acquired in its place, and one release ends it. */
static void a_lease_that_is_held_is_not_overwritten(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "capacity=8K");
    char *memory = pages(2), *other = pages(2);
    mrrc_lease_t lease = { { 0 } }, more[3] = { { { 0 } } };
    mrrc_pending_t *begun;
    mrrc_arena_t *arena;
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
    mrrc_counters_t before = counted(cache);
    FAILS(mrrc_acquire(cache, other, PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_HELD, "mrrc_release");
    FAILS(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_HELD, "lease");
    CHECK(counted(cache).requests == before.requests && card.calls == 1);
    CHECK(mrrc_lease_address(&lease) == memory && mrrc_lease_length(&lease) == PAGE);
    /* Begun: the request can be finished into another place. */
    DONE(mrrc_begin(cache, memory + PAGE, PAGE, MRRC_LOCAL, &begun, &error));
    FAILS(mrrc_finish(begun, &lease, &error), MRRC_ERROR_HELD, "lease");
    DONE(mrrc_finish(begun, &more[0], &error));
    FAILS(mrrc_finish(begun, &more[0], &error), MRRC_ERROR_HELD, "lease");
    FAILS(mrrc_finish(begun, &more[1], &error), MRRC_ERROR_ARGUMENT, "finished");
    mrrc_pending_free(begun);
    CHECK(mrrc_release(&more[0]) == MRRC_OK && mrrc_release(&more[1]) == MRRC_ERROR_LEASE);
    /* Of a list none is acquired, and those that are held stay. */
    struct iovec buffers[3] = { { memory, 1 }, { memory, 1 }, { memory, 1 } };
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &more[2], &error));
    FAILS(mrrc_acquire_list(cache, buffers, 3, MRRC_LOCAL, more, &error), MRRC_ERROR_HELD, "leases[2]");
    CHECK(mrrc_release(&more[0]) == MRRC_ERROR_LEASE && mrrc_lease_address(&more[2]) == memory);
    /* Nor is one moved over another; where it is it may stay. */
    CHECK(mrrc_lease_move(&lease, &more[2]) == MRRC_ERROR_HELD && mrrc_lease_address(&lease) == memory);
    CHECK(mrrc_lease_move(&lease, &lease) == MRRC_OK && mrrc_lease_address(&lease) == memory);
    CHECK(mrrc_release(&more[2]) == MRRC_OK && mrrc_lease_move(&lease, &more[2]) == MRRC_OK);
    CHECK(mrrc_release(&lease) == MRRC_ERROR_LEASE && mrrc_release(&more[2]) == MRRC_OK);
    /* Nothing is held: there is room for all that was asked for, and the card gives it back. */
    DONE(mrrc_acquire(cache, other, 2 * PAGE, MRRC_LOCAL, &lease, &error));
    CHECK(card.bytes == 2 * PAGE && mrrc_release(&lease) == MRRC_OK);
    DONE(mrrc_arena_new(cache, PAGE, 0, &arena, &error));
    DONE(mrrc_arena_acquire(arena, 0, PAGE, MRRC_LOCAL, &lease, &error));
    FAILS(mrrc_arena_acquire(arena, 0, PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_HELD, "lease");
    CHECK(mrrc_release(&lease) == MRRC_OK && mrrc_release(&lease) == MRRC_ERROR_LEASE);
    mrrc_arena_free(arena);
    DONE(mrrc_flush(cache, NULL, &error));
    CHECK(card.bytes == 0);
    /* What lies there otherwise is no lease, whatever it is. */
    for (int byte = 0; byte < 256; byte += 85) {
        memset(&lease, byte, sizeof lease);
        DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
        memcpy(&more[0], &lease, sizeof lease); /* a copy is none either */
        DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &more[0], &error));
        CHECK(mrrc_release(&lease) == MRRC_OK && mrrc_release(&more[0]) == MRRC_OK);
    }
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0 && card.done == 1);
    free(memory);
    free(other);
}

static void settings_that_make_no_sense_are_named(void)
{
    mrrc_options_t *options = mrrc_options_new();
    FAILS(mrrc_options_set(NULL, "capacity", "1G", &error), MRRC_ERROR_ARGUMENT, "options is NULL");
    FAILS(mrrc_options_set(options, NULL, "1G", &error), MRRC_ERROR_ARGUMENT, "name is NULL");
    FAILS(mrrc_options_set(options, "capacity", NULL, &error), MRRC_ERROR_ARGUMENT, "value is NULL");
    FAILS(mrrc_options_set(options, "capacity", "\xff", &error), MRRC_ERROR_ARGUMENT, "UTF-8");
    FAILS(mrrc_options_set(options, "capacity", "lots", &error), MRRC_ERROR_SETTING, "capacity=\"lots\": expected bytes");
    FAILS(mrrc_options_set(options, "capactiy", "1G", &error), MRRC_ERROR_SETTING, "did you mean capacity?");
    FAILS(mrrc_options_set(options, "colour", "red", &error), MRRC_ERROR_SETTING, "choose from capacity,");
    FAILS(mrrc_options_set(options, "policy", "best", &error), MRRC_ERROR_SETTING, "gdsf");
    FAILS(mrrc_options_set(options, "environment", "perhaps", &error), MRRC_ERROR_SETTING, "expected on");
    /* The last word counts, and what was wrong changed nothing. */
    DONE(mrrc_options_set(options, "capacity", "1GiB", &error));
    DONE(mrrc_options_set(options, "Capacity", "128 K", &error));
    CHECK(mrrc_options_set(options, "capacity", "", NULL) == MRRC_ERROR_SETTING);
    DONE(mrrc_options_set(options, "monitor", "explicit", &error));
    struct card card = { 0 };
    mrrc_registrar_t registrar = card_registrar(&card);
    mrrc_cache_t *cache;
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    CHECK(used(cache).capacity_pages == 32);
    mrrc_cache_free(cache);
    /* The environment has the last word, unless it is not read. */
    setenv("MRRC_CAPACITY", "64K", 1);
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    CHECK(used(cache).capacity_pages == 16);
    mrrc_cache_free(cache);
    setenv("MRRC_CAPACITY", "much", 1);
    FAILS(mrrc_cache_new(options, &registrar, &cache, &error), MRRC_ERROR_SETTING, "MRRC_CAPACITY=\"much\"");
    CHECK(cache == NULL);
    DONE(mrrc_options_set(options, "environment", "off", &error));
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    CHECK(used(cache).capacity_pages == 32);
    mrrc_cache_free(cache);
    unsetenv("MRRC_CAPACITY");
    CHECK(card.done == 3);
    mrrc_options_free(options);
}

static void a_registrar_is_looked_at_first(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = (mrrc_cache_t *)&card;
    mrrc_registrar_t right = card_registrar(&card), registrar = right;
    FAILS(mrrc_cache_new(NULL, NULL, &cache, &error), MRRC_ERROR_ARGUMENT, "registrar is NULL");
    CHECK(cache == NULL);
    FAILS(mrrc_cache_new(NULL, &registrar, NULL, &error), MRRC_ERROR_ARGUMENT, "cache is NULL");
    registrar.size = 0;
    FAILS(mrrc_cache_new(NULL, &registrar, &cache, &error), MRRC_ERROR_ARGUMENT, "sizeof(mrrc_registrar_t)");
    registrar = right, registrar.register_range = NULL;
    FAILS(mrrc_cache_new(NULL, &registrar, &cache, &error), MRRC_ERROR_ARGUMENT, "not NULL");
    registrar = right, registrar.page_size = 5000;
    FAILS(mrrc_cache_new(NULL, &registrar, &cache, &error), MRRC_ERROR_ARGUMENT, "test card");
    registrar = right, registrar.max_bytes = 100;
    FAILS(mrrc_cache_new(NULL, &registrar, &cache, &error), MRRC_ERROR_ARGUMENT, "max_bytes is 100");
    registrar = right, registrar.rights = 1 << 20;
    FAILS(mrrc_cache_new(NULL, &registrar, &cache, &error), MRRC_ERROR_ARGUMENT, "registrar.rights");
    FAILS(mrrc_cache_new_io_uring(NULL, -1, 8, &cache, &error), MRRC_ERROR_ARGUMENT, "ring_fd is -1");
    FAILS(mrrc_cache_new_io_uring(NULL, 0, 0, &cache, &error), MRRC_ERROR_ARGUMENT, "table of 0");
    FAILS(mrrc_cache_new_io_uring(NULL, 0, 8, &cache, &error), MRRC_ERROR_DEVICE, "io_uring");
    FAILS(mrrc_cache_new_io_uring(NULL, 9999, 8, &cache, &error), MRRC_ERROR_DEVICE, "pass the file descriptor of an open ring");
    mrrc_error_t error;
    mrrc_status_t status = mrrc_cache_new_verbs(NULL, NULL, &cache, &error);
    CHECK(status == MRRC_ERROR_UNSUPPORTED || status == MRRC_ERROR_ARGUMENT);
    /* None of them became a cache. */
    CHECK(card.done == 0);
    /* A program of an earlier header: what it does not have is not looked at. */
    struct {
        mrrc_registrar_t table;
    } old;
    memset(&old, 0x77, sizeof old);
    memcpy(&old, &right, offsetof(mrrc_registrar_t, probe_range));
    old.table.size = offsetof(mrrc_registrar_t, probe_range);
    mrrc_options_t *options = mrrc_options_new();
    DONE(mrrc_options_set(options, "monitor", "explicit", &error));
    DONE(mrrc_cache_new(options, &old.table, &cache, &error));
    char *memory = pages(1);
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    mrrc_cache_free(cache);
    mrrc_options_free(options);
    CHECK(card.bytes == 0 && card.calls == 1);
    free(memory);
}

static void errors_of_callbacks_are_the_callers(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "capacity=8K,retries=3,wait_timeout=50ms");
    char *memory = pages(8);
    mrrc_lease_t lease = { { 0 } };
    mrrc_error_t error;
    /* Final: one attempt. */
    fail(&card, 1000, EFAULT);
    CHECK(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error) == MRRC_ERROR_REGISTER);
    CHECK(error.system == EFAULT && strstr(error.message, "test card cannot register") != NULL && card.calls == 1);
    CHECK(mrrc_release(&lease) == MRRC_ERROR_LEASE);
    /* Something is full: tried again when another region has left for it. libfabric and the kernel say errors as negative numbers. */
    fail(&card, 0, 0);
    DONE(mrrc_warm(cache, memory + 4 * PAGE, PAGE, MRRC_LOCAL, &error));
    fail(&card, 1, -ENOMEM);
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
    CHECK(card.calls == 4 && card.regions == 1 && counted(cache).retries == 1 && mrrc_release(&lease) == MRRC_OK);
    fail(&card, 1000, ENOMEM);
    CHECK(mrrc_acquire(cache, memory + PAGE, PAGE, MRRC_LOCAL, &lease, &error) == MRRC_ERROR_REGISTER);
    CHECK(error.system == ENOMEM && card.calls == 6 && card.regions == 0);
    fail(&card, 0, 0);
    /* What is not taken back keeps its place, and is said to. */
    DONE(mrrc_flush(cache, NULL, &error));
    DONE(mrrc_warm(cache, memory, 2 * PAGE, MRRC_LOCAL, &error));
    card.keeping = EBUSY;
    DONE(mrrc_invalidate(cache, memory, 2 * PAGE, &error));
    DONE(mrrc_reap(cache, NULL, &error));
    CHECK(used(cache).refused == 1 && card.regions == 1 && counted(cache).failed_deregistrations > 0);
    FAILS(mrrc_acquire(cache, memory + 4 * PAGE, PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_DEREGISTRATION_FAILED, "test card");
    card.keeping = 0;
    DONE(mrrc_acquire(cache, memory + 4 * PAGE, PAGE, MRRC_LOCAL, &lease, &error));
    CHECK(mrrc_release(&lease) == MRRC_OK && used(cache).refused == 0);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0 && card.done == 1);
    free(memory);
}

static void rights_and_memory_that_are_not_granted(void)
{
    struct card card = { 0 };
    mrrc_registrar_t registrar = card_registrar(&card);
    registrar.rights = MRRC_LOCAL;
    registrar.probe_range = mrrc_probe_mapped;
    registrar.max_bytes = 8192;
    mrrc_options_t *options = mrrc_options_new();
    mrrc_cache_t *cache;
    mrrc_lease_t lease = { { 0 } };
    DONE(mrrc_options_set(options, "monitor", "explicit", &error));
    DONE(mrrc_cache_new(options, &registrar, &cache, &error));
    mrrc_options_free(options);
    char *memory = pages(4);
    FAILS(mrrc_acquire(cache, memory, 1, MRRC_REMOTE_READ, &lease, &error), MRRC_ERROR_RIGHTS, "remote-read");
    FAILS(mrrc_acquire(cache, memory, 3 * PAGE, MRRC_LOCAL, &lease, &error), MRRC_ERROR_TOO_LARGE, "2 is the limit");
    DONE(mrrc_warm(cache, memory, 2 * PAGE, MRRC_LOCAL, &error));
    /* Memory that is not there evicts no region. */
    FAILS(mrrc_acquire(cache, (void *)PAGE, 1, MRRC_LOCAL, &lease, &error), MRRC_ERROR_REGISTER, "is not mapped");
    CHECK(card.calls == 1 && card.regions == 1);
    CHECK(mrrc_probe_mapped(NULL, memory, PAGE, 0) == 0 && mrrc_probe_mapped(NULL, (void *)PAGE, 1, 0) == EFAULT);
    CHECK(mrrc_probe_mapped(NULL, NULL, 1, 0) == EINVAL);
    mrrc_cache_free(cache);
    free(memory);
}

static void every_status_has_words(void)
{
    const char *none = mrrc_status_text(-1);
    for (int status = MRRC_OK; status <= MRRC_ERROR_STRADDLES; status++)
        CHECK(strcmp(mrrc_status_text(status), none) != 0);
    CHECK(strcmp(mrrc_status_text(MRRC_ERROR_STRADDLES + 1), none) == 0);
    CHECK(strcmp(mrrc_status_text(MRRC_OK), "done") == 0);
}

int main(void)
{
    nothing_is_null_without_being_said();
    a_lease_is_released_once_and_where_it_lies();
    a_lease_that_is_held_is_not_overwritten();
    settings_that_make_no_sense_are_named();
    a_registrar_is_looked_at_first();
    errors_of_callbacks_are_the_callers();
    rights_and_memory_that_are_not_granted();
    every_status_has_words();
    puts("done");
    return 0;
}
