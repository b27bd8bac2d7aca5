//! The counters and gauges of the second tier, by memcached's names for extstore where it has one.

counters! {
    named
    /// The counters of the tier.
    FlashCounts {
        /// Items that came back to memory.
        recalled = "get_extstore",
        /// Reads that were given up.
        silent = "get_aborted_extstore",
        /// Items that did not come back for lack of memory.
        no_memory = "get_oom_extstore",
        /// Items that came back and stay in memory.
        promoted = "recache_from_extstore",
        /// Items that could not be read.
        lost = "miss_from_extstore",
        /// Items whose bytes were not those that were written.
        wrong = "badcrc_from_extstore",
        /// Items that were written again to free a segment.
        rewritten = "extstore_compact_rescues",
        /// Items that did not reach another segment when theirs was freed.
        lost_moves = "extstore_compact_lost",
        /// Segments that were opened for items.
        opened = "extstore_page_allocs",
        /// Segments whose items had to go, or be written again, for others.
        reclaimed = "extstore_page_evictions",
        /// Segments that were freed.
        freed = "extstore_page_reclaims",
        /// Items that had to go for others.
        evicted = "extstore_objects_evicted",
        /// Bytes of these.
        evicted_bytes = "extstore_bytes_evicted",
        /// Reads of items.
        reads = "extstore_objects_read",
        /// Items that came from memory.
        admitted = "extstore_objects_written",
        /// Bytes that were written.
        written_bytes = "extstore_bytes_written",
        /// Bytes that were read for clients.
        read_bytes = "extstore_bytes_read",
        /// Bytes of items that came from memory.
        admitted_bytes = "flash_admitted_bytes",
        /// Bytes that were written again.
        rewritten_bytes = "flash_reinserted_bytes",
        /// Items that left memory again unchanged: nothing was written.
        left_clean = "flash_left_clean",
        /// Requests that waited for another's read.
        joined = "flash_reads_joined",
        /// Items found in a buffer that was not written yet.
        buffered = "flash_reads_buffered",
        /// Items too small or too large.
        dropped_size = "flash_dropped_size",
        /// Items that end soon.
        dropped_expiry = "flash_dropped_expiry",
        /// Items that were never read, while flash is full.
        dropped_unread = "flash_dropped_unread",
        /// Items that came faster than they could be written.
        dropped_busy = "flash_dropped_busy",
        /// Items without memory for their stub.
        dropped_stubs = "flash_dropped_stubs",
        /// Items of failed writes and of files that were given up, and those that came after the last file was.
        dropped_lost = "flash_dropped_lost",
        /// Reads that failed.
        read_errors = "flash_read_errors",
        /// Writes that failed.
        write_errors = "flash_write_errors",
    }
}

counters! {
    named
    /// The gauges of the tier.
    FlashGauges {
        /// Items on flash, those included that are in memory too.
        items = "extstore_objects_used",
        /// Of these, items that are not in memory.
        away = "flash_only_items",
        /// Bytes of their records.
        used_bytes = "extstore_bytes_used",
        /// Bytes of segments that are not free, and of no item.
        fragmented_bytes = "extstore_bytes_fragmented",
        /// Segments that take no items.
        free_segments = "extstore_pages_free",
        /// Segments that have items.
        used_segments = "extstore_pages_used",
        /// Bytes of all segments, without those of files that were given up.
        limit_bytes = "extstore_limit_maxbytes",
        /// Reads in progress.
        loads = "extstore_io_queue",
        /// Requests that wait until there is room for their reads.
        waiting = "flash_reads_waiting",
        /// Memory for stubs.
        stub_bytes = "flash_stub_bytes",
        /// Memory for the stubs' index.
        index_bytes = "flash_index_bytes",
        /// Memory for buffers.
        buffer_bytes = "flash_buffer_bytes",
        /// Files that were given up.
        lost_files = "flash_lost_files",
    }
}
