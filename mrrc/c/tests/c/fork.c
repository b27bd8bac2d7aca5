/* A child has no use of its parent's cache, harms nothing by trying, and makes a cache of its own. */
#include "card.h"
#include <sys/wait.h>
#include <unistd.h>

static void child(struct card *card, mrrc_cache_t *cache, mrrc_lease_t *lease, char *memory)
{
    unsigned long calls = card->calls;
    mrrc_segment_t part;
    mrrc_lease_t other = { { 0 } };
    mrrc_arena_t *arena;
    FAILS(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &other, &error), MRRC_ERROR_FORKED, "make a cache of its own");
    FAILS(mrrc_invalidate(cache, memory, PAGE, &error), MRRC_ERROR_FORKED, "forked");
    FAILS(mrrc_reap(cache, NULL, &error), MRRC_ERROR_FORKED, "forked");
    FAILS(mrrc_arena_new(cache, PAGE, 0, &arena, &error), MRRC_ERROR_FORKED, "forked");
    CHECK(mrrc_segments(lease, &part, 1) == 0 && counted(cache).requests == 0);
    CHECK(mrrc_release(lease) == MRRC_OK && mrrc_release(lease) == MRRC_ERROR_LEASE);
    char text[300];
    CHECK(mrrc_explain(cache, memory, PAGE, MRRC_LOCAL, text, sizeof text) > 0 && strstr(text, "forked") != NULL);
    mrrc_cache_free(cache);
    CHECK(card->calls == calls && card->batches == 0 && card->done == 0);
    struct card own = { 0 };
    cache = card_cache(&own, "");
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, lease, &error));
    CHECK(mrrc_release(lease) == MRRC_OK);
    mrrc_cache_free(cache);
    CHECK(own.calls == 1 && own.bytes == 0 && own.done == 1);
    _exit(0);
}

int main(void)
{
    struct card card = { 0 };
    mrrc_cache_t *cache = card_cache(&card, "background=on");
    char *memory = pages(2);
    mrrc_lease_t lease = { { 0 } };
    DONE(mrrc_acquire(cache, memory, PAGE, MRRC_LOCAL, &lease, &error));
    pid_t process = fork();
    if (process == 0)
        child(&card, cache, &lease, memory);
    int status;
    CHECK(process > 0 && waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mrrc_segment_t part;
    CHECK(mrrc_segments(&lease, &part, 1) == 1 && mrrc_release(&lease) == MRRC_OK);
    DONE(mrrc_warm(cache, memory, PAGE, MRRC_LOCAL, &error));
    CHECK(card.calls == 1 && counted(cache).hits == 1);
    mrrc_cache_free(cache);
    CHECK(card.bytes == 0 && card.done == 1);
    free(memory);
    puts("done");
    return 0;
}
