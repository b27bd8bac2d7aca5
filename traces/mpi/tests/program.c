/* Uses MPI in every way that is recorded, with two ranks, and writes what should be in the recording: a line for each event,
 * into a file named after the process in the directory of its first argument. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { R = 1, W = 2, ALL = 31, N = 1000 };

static FILE *expected;

static void expect(const char *operation, const void *buffer, size_t bytes, int access) {
    fprintf(expected, "%s %lx %zu %d\n", operation, (unsigned long)buffer, bytes, access);
}

static void asked(const void *buffer, size_t bytes, int access) { expect("request", buffer, bytes, access); }
static void begun(const void *buffer, size_t bytes, int access) { expect("acquire", buffer, bytes, access); }
static void ended(const void *buffer, size_t bytes, int access) { expect("release", buffer, bytes, access); }

static int rank, peer;
static int *a, *b, *c;

static void messages(void) {
    const size_t bytes = N * sizeof(int);
    if (rank == 0) {
        asked(a, bytes, R);
        MPI_Send(a, N, MPI_INT, peer, 1, MPI_COMM_WORLD);
        asked(a, 10 * sizeof(double), R);
        MPI_Ssend(a, 10, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD);
    } else {
        asked(b, bytes, W);
        MPI_Recv(b, N, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        asked(b + 1, 20 * sizeof(double), W);
        MPI_Recv(b + 1, 20, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    asked(a, bytes, R);
    asked(b, bytes, W);
    MPI_Sendrecv(a, N, MPI_INT, peer, 2, b, N, MPI_INT, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    asked(a, bytes, R | W);
    MPI_Sendrecv_replace(a, N, MPI_INT, peer, 2, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* Nothing is sent from nowhere. */
    MPI_Sendrecv(NULL, 0, MPI_INT, peer, 3, NULL, 0, MPI_INT, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

    /* Nor is anything with MPI_PROC_NULL. */
    MPI_Send(a, N, MPI_INT, MPI_PROC_NULL, 3, MPI_COMM_WORLD);
    MPI_Sendrecv_replace(a, N, MPI_INT, MPI_PROC_NULL, 3, MPI_PROC_NULL, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    asked(a, bytes, R | W);
    MPI_Sendrecv_replace(a, N, MPI_INT, rank ? peer : MPI_PROC_NULL, 3, rank ? MPI_PROC_NULL : peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

    MPI_Request requests[100];
    begun(b, bytes, W);
    MPI_Irecv(b, N, MPI_INT, peer, 4, MPI_COMM_WORLD, &requests[0]);
    begun(a, bytes, R);
    MPI_Isend(a, N, MPI_INT, peer, 4, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    ended(b, bytes, W);
    ended(a, bytes, R);
    /* They are null now. */
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);

    /* More than fit on the stack, and large enough that none is complete before the other side is there. */
    const int part = 100000;
    for (int i = 0; i < 100; i++) {
        begun(c + i, part * sizeof(int), W);
        MPI_Irecv(c + i, part, MPI_INT, peer, 5 + i, MPI_COMM_WORLD, &requests[i]);
    }
    int *large = calloc(part, sizeof(int));
    for (int i = 0; i < 100; i++) {
        /* Nothing is received from MPI_PROC_NULL. */
        asked(large, part * sizeof(int), R);
        MPI_Sendrecv(large, part, MPI_INT, peer, 5 + i, b, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    int done = 0, indices[100];
    while (done < 50) {
        int index;
        MPI_Waitany(100, requests, &index, MPI_STATUS_IGNORE);
        ended(c + index, part * sizeof(int), W);
        done++;
    }
    while (done < 100) {
        int some;
        MPI_Waitsome(100, requests, &some, indices, MPI_STATUSES_IGNORE);
        for (int i = 0; i < some; i++) ended(c + indices[i], part * sizeof(int), W);
        done += some;
    }

    MPI_Request one;
    int flag = 0;
    begun(b, bytes, W);
    MPI_Irecv(b, N, MPI_INT, peer, 200, MPI_COMM_WORLD, &one);
    MPI_Test(&one, &flag, MPI_STATUS_IGNORE);
    if (flag) abort(); /* It was not sent yet. */
    MPI_Barrier(MPI_COMM_WORLD);
    asked(a, bytes, R);
    MPI_Send(a, N, MPI_INT, peer, 200, MPI_COMM_WORLD);
    while (!flag) MPI_Test(&one, &flag, MPI_STATUS_IGNORE);
    ended(b, bytes, W);

    /* A message found by a probe. */
    asked(a, 8, R);
    MPI_Send(a, 2, MPI_INT, peer, 201, MPI_COMM_WORLD);
    MPI_Message found;
    MPI_Mprobe(peer, 201, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    asked(b, 8, W);
    MPI_Mrecv(b, 2, MPI_INT, &found, MPI_STATUS_IGNORE);

    MPI_Request kept[2];
    MPI_Send_init(a, N, MPI_INT, peer, 300, MPI_COMM_WORLD, &kept[0]);
    MPI_Recv_init(b, N, MPI_INT, peer, 300, MPI_COMM_WORLD, &kept[1]);
    for (int i = 0; i < 3; i++) {
        begun(a, bytes, R);
        begun(b, bytes, W);
        MPI_Startall(2, kept);
        MPI_Waitall(2, kept, MPI_STATUSES_IGNORE);
        ended(a, bytes, R);
        ended(b, bytes, W);
    }
    MPI_Request_free(&kept[0]);
    MPI_Request_free(&kept[1]);

    MPI_Datatype column;
    MPI_Type_vector(10, 1, 16, MPI_INT, &column);
    MPI_Type_commit(&column);
    asked(a, (9 * 16 + 1) * sizeof(int), R);
    asked(b, 10 * sizeof(int), W);
    MPI_Sendrecv(a, 1, column, peer, 6, b, 10, MPI_INT, peer, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&column);
    free(large);
}

static void collectives(void) {
    const size_t bytes = N * sizeof(int);
    asked(a, bytes, rank == 1 ? R : W);
    MPI_Bcast(a, N, MPI_INT, 1, MPI_COMM_WORLD);
    asked(a, bytes, R);
    if (rank == 0) asked(c, 2 * bytes, W);
    MPI_Gather(a, N, MPI_INT, rank == 0 ? c : NULL, N, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 1) asked(c, 2 * bytes, R);
    asked(a, bytes, W);
    MPI_Scatter(rank == 1 ? c : NULL, N, MPI_INT, a, N, MPI_INT, 1, MPI_COMM_WORLD);
    const int counts[] = {10, 20}, at[] = {100, 10};
    asked(a, counts[rank] * sizeof(int), R);
    asked(c + 10, 100 * sizeof(int), W);
    MPI_Allgatherv(a, counts[rank], MPI_INT, c, counts, at, MPI_INT, MPI_COMM_WORLD);
    asked(a, 2 * bytes, R);
    asked(c, 2 * bytes, W);
    MPI_Alltoall(a, N, MPI_INT, c, N, MPI_INT, MPI_COMM_WORLD);
    const int same[] = {10, 10}, first[] = {0, 50}, received[] = {200, 0};
    asked(a, 60 * sizeof(int), R);
    asked(c, 210 * sizeof(int), W);
    MPI_Alltoallv(a, same, first, MPI_INT, c, same, received, MPI_INT, MPI_COMM_WORLD);
    const int first_bytes[] = {0, 200}, received_bytes[] = {800, 0};
    const MPI_Datatype types[] = {MPI_INT, MPI_INT};
    asked(a, 240, R);
    asked(c, 840, W);
    MPI_Alltoallw(a, same, first_bytes, types, c, same, received_bytes, types, MPI_COMM_WORLD);
    asked(a, bytes, R);
    if (rank == 0) asked(b, bytes, W);
    MPI_Reduce(a, rank == 0 ? b : NULL, N, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    asked(b, bytes, W);
    MPI_Allreduce(MPI_IN_PLACE, b, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    /* Of what is sent in place, MPI is told no type. */
    asked(c, 2 * bytes, W);
    MPI_Allgather(MPI_IN_PLACE, 1, MPI_DATATYPE_NULL, c, N, MPI_INT, MPI_COMM_WORLD);
    asked(c, 210 * sizeof(int), W);
    MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, c, same, received, MPI_INT, MPI_COMM_WORLD);
    asked(a, bytes, R);
    asked(b, bytes, W);
    MPI_Scan(a, b, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    asked(a, 30 * sizeof(int), R);
    asked(b, counts[rank] * sizeof(int), W);
    MPI_Reduce_scatter(a, b, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    asked(a, bytes, R);
    asked(b, bytes / 2, W);
    MPI_Reduce_scatter_block(a, b, N / 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);

    MPI_Request request;
    begun(a, bytes, R);
    begun(b, bytes, W);
    MPI_Iallreduce(a, b, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    ended(a, bytes, R);
    ended(b, bytes, W);
    begun(a, bytes, rank == 0 ? R : W);
    MPI_Ibcast(a, N, MPI_INT, 0, MPI_COMM_WORLD, &request);
    int flag = 0;
    while (!flag) MPI_Testall(1, &request, &flag, MPI_STATUSES_IGNORE);
    ended(a, bytes, rank == 0 ? R : W);
}

static void windows(void) {
    const size_t bytes = N * sizeof(int);
    MPI_Win window;
    begun(c, 4 * bytes, ALL);
    MPI_Win_create(c, 4 * bytes, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_fence(0, window);
    asked(a, bytes, R);
    MPI_Put(a, N, MPI_INT, peer, 0, N, MPI_INT, window);
    MPI_Put(a, N, MPI_INT, MPI_PROC_NULL, 0, N, MPI_INT, window);
    MPI_Win_fence(0, window);
    asked(b, bytes, W);
    MPI_Get(b, N, MPI_INT, peer, N, N, MPI_INT, window);
    MPI_Win_fence(0, window);
    asked(a, bytes, R);
    MPI_Accumulate(a, N, MPI_INT, peer, 2 * N, N, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    MPI_Request request;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, peer, 0, window);
    begun(a, bytes, R);
    MPI_Rput(a, N, MPI_INT, peer, 0, N, MPI_INT, window, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    ended(a, bytes, R);
    asked(a, sizeof(int), R);
    asked(b, sizeof(int), W);
    MPI_Fetch_and_op(a, b, MPI_INT, peer, 0, MPI_SUM, window);
    MPI_Win_unlock(peer, window);
    MPI_Win_free(&window);
    ended(c, 4 * bytes, ALL);

    int *allocated;
    MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &allocated, &window);
    begun(allocated, bytes, ALL);
    MPI_Win_free(&window);
    ended(allocated, bytes, ALL);

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_attach(window, a, bytes);
    begun(a, bytes, ALL);
    MPI_Win_attach(window, b, bytes);
    begun(b, bytes, ALL);
    MPI_Win_detach(window, a);
    ended(a, bytes, ALL);
    MPI_Win_detach(window, b);
    ended(b, bytes, ALL);
    MPI_Win_free(&window);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2 || size != 2) return 2;
    char name[4096];
    snprintf(name, sizeof name, "%s/%d", argv[1], (int)getpid());
    expected = fopen(name, "w");
    if (!expected) return 3;
    peer = 1 - rank;
    a = calloc(4 * N, sizeof(int));
    b = calloc(4 * N, sizeof(int));
    c = calloc(200000, sizeof(int));
    messages();
    collectives();
    windows();
    fclose(expected);
    MPI_Finalize();
    return 0;
}
