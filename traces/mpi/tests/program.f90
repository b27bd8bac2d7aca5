! Sends and receives a thousand integers, and sums a thousand doubles, with two ranks.
program recorded
   implicit none
   include 'mpif.h'
   integer :: rank, peer, failed, requests(2), sent(1000), received(1000)
   double precision :: parts(1000), sums(1000)
   call MPI_INIT(failed)
   call MPI_COMM_RANK(MPI_COMM_WORLD, rank, failed)
   peer = 1 - rank
   sent = rank
   parts = 1
   call MPI_IRECV(received, 1000, MPI_INTEGER, peer, 1, MPI_COMM_WORLD, requests(1), failed)
   call MPI_ISEND(sent, 1000, MPI_INTEGER, peer, 1, MPI_COMM_WORLD, requests(2), failed)
   call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, failed)
   call MPI_ALLREDUCE(parts, sums, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, failed)
   if (received(1) /= peer .or. sums(1000) /= 2) stop 1
   call MPI_FINALIZE(failed)
end program
