//! The counters of the store.

counters! {
    plain
    /// Of one size class.
    ClassCounters {
        /// GETs that found their item here.
        get_hits,
        /// Of these, in the small queue.
        hits_small,
        /// Items that went from the small queue to the main one.
        promoted,
        /// Items that began another round of the main queue.
        rotated,
        /// Items stored here.
        sets,
        /// Deletions.
        deletes,
        /// Increments.
        incrs,
        /// Decrements.
        decrs,
        /// Touches.
        touches,
        /// Compare-and-swaps that matched.
        cas_hits,
        /// Compare-and-swaps that did not.
        cas_badval,
        /// Items that left for memory.
        evicted,
        /// Of these, with an expiry.
        evicted_nonzero,
        /// Of these, never fetched.
        evicted_unfetched,
        /// How long before the last one that left had been asked for, in seconds.
        evicted_time,
        /// Refused for want of memory.
        outofmemory,
        /// Expired items whose memory was used again.
        reclaimed,
        /// Of these, never fetched.
        expired_unfetched,
        /// Expired items that the crawler found.
        crawler_reclaimed,
        /// Items that the crawler looked at.
        crawler_checked,
    }
}

counters! {
    plain
    /// Of the whole store.
    Counters {
        /// Items ever stored.
        total_items,
        /// GETs that came too late.
        get_expired,
        /// GETs for items from before a flush.
        get_flushed,
        /// Pages that changed their class.
        slabs_moved,
        /// Items that a page's move carried along.
        rescues,
        /// Items that a page's move drove out.
        move_evictions,
        /// Refused for being too large.
        too_large,
        /// Refused for want of memory.
        no_memory,
        /// Leases granted or made longer.
        leases,
        /// Leases refused, as their keys change too often.
        leases_refused,
        /// Items that had to die for memory though they were leased.
        leases_revoked,
        /// Reads of one-sided readers that were reported.
        one_sided,
    }
}
