//! `libtraces_mpi.so`: records which buffers an MPI program uses, and for how long, without a change to the program.
//!
//! ```text
//! LD_PRELOAD=…/libtraces_mpi.so MRRC_RECORD=trace.reg mpirun -n 4 program        or: tracesim record -- mpirun -n 4 program
//! ```
//!
//! The library has functions of the names that MPI's have, which note the buffers and call the functions behind them, found by
//! `dlsym(RTLD_NEXT, "PMPI_…")`. A message that blocks is a `request` of the recording, one that does not is acquired when it is
//! started and released when its request is completed, a window is acquired for as long as it lives. The events are those
//! that an MPI library over RDMA would have its registration cache asked for, were every message sent from where it lies.
//!
//! **One library for every MPI.** No `mpi.h` is needed to build it: every argument is a word, handed on as it came. Handles are
//! pointers in Open MPI and integers in MPICH (and in what has its ABI: Intel MPI, MVAPICH, Cray MPI); which of the two is known by a
//! symbol that only Open MPI has. Sizes are asked of MPI itself.
//!
//! **What is recorded:** sends and receives (blocking, immediate, persistent, matched, combined); collectives (blocking, immediate,
//! persistent), by the part that this rank has in them; windows, and what is put, got and accumulated; all that MPI 4 has with
//! large counts (`_c`). A buffer with gaps (derived types, the blocks of `v` and `w` collectives) is one range from its first byte
//! to its last. Fortran programs are recorded as well, whether the wrappers of their MPI call `MPI_` (MPICH) or `PMPI_` (Open MPI).
//!
//! **What is not:** neighbourhood collectives, partitioned messages, files (`MPI_File_…`), and programs that are linked with
//! MPI statically. Memory that is freed while nothing uses it is not noticed: the trace has no invalidations. A buffer of `MPI_Put`,
//! `MPI_Get` and their like counts as released at once, not at the end of the epoch. Beyond 65,536 requests under way, the rest
//! counts as released at once, too.
//!
//! The cost: some hundred instructions for an event, and no system call but three for each 8,192 events. It allocates
//! nothing, but for lists of more than 64 requests. Where `MRRC_RECORD` is not set it only passes calls on.
//!
//! # Beside this crate
//!
//! The recorder is [`traces-record`]; `tracesim record` of [`tracesim`] runs programs under this library, and [`traces`]
//! reads what it wrote. [`mrrc-preload`] records verbs programs.
//!
//! [`traces-record`]: ../traces_record/index.html
//! [`tracesim`]: ../tracesim/index.html
//! [`traces`]: ../traces/index.html
//! [`mrrc-preload`]: ../mrrc_preload/index.html
#![cfg(target_os = "linux")]

mod abi;
mod buffers;
mod calls;
mod list;
mod queries;
mod real;
mod recording;
mod requests;
mod windows;
