/* The server that libmemcached sends each key to: ring weighted|plain|md5 HOST PORT WEIGHT... < KEYS. A port of 0 makes the host a
   socket's path. */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    memcached_st *client = memcached_create(NULL);
    int weighted = strcmp(argv[1], "weighted") == 0;
    if (memcached_behavior_set(client, weighted ? MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED : MEMCACHED_BEHAVIOR_KETAMA, 1)) {
        return 2;
    }
    if (strcmp(argv[1], "md5") == 0 && memcached_behavior_set(client, MEMCACHED_BEHAVIOR_HASH, MEMCACHED_HASH_MD5)) {
        return 2;
    }
    for (int at = 2; at + 2 < argc; at += 3) {
        int port = atoi(argv[at + 1]), weight = atoi(argv[at + 2]);
        memcached_return_t added = port == 0 ? memcached_server_add_unix_socket_with_weight(client, argv[at], weight)
                                             : memcached_server_add_with_weight(client, argv[at], port, weight);
        if (added) {
            return 3;
        }
    }
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        printf("%u\n", memcached_generate_hash(client, line, strcspn(line, "\n")));
    }
    memcached_free(client);
    return 0;
}
