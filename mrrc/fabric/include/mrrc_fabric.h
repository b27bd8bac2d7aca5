/* libmrrc_fabric: mrrc's memory monitor for libfabric's registration cache. */
#ifndef MRRC_FABRIC_H
#define MRRC_FABRIC_H

#ifdef __cplusplus
extern "C" {
#endif

/* Imports the monitor into the libfabric of this process, as its default. The library does so itself when it is loaded after
 * libfabric, or under LD_PRELOAD by a program that is linked with libfabric. Call this if the program opens libfabric later, before
 * it opens the first domain. Returns 0, or the negative number of an error, and nothing has changed then:
 *
 *   -ENOENT  libfabric.so.1 is not in the process
 *   -ENOSYS  this libfabric imports no monitors (older than 1.13)
 *   -EBUSY   a monitor has been imported already, this one too, or a cache uses another */
int mrrc_fabric_import(void);

#ifdef __cplusplus
}
#endif

#endif
