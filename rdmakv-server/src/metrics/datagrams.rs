//! The counters of clients over datagrams.

counters! {
    shared
    /// The datagrams of a server, and what became of those that brought no new request.
    DatagramCounts {
        /// Datagrams that came.
        received = "datagrams_received",
        /// Datagrams that were sent.
        sent = "datagrams_sent",
        /// Requests that were carried out.
        executed = "datagram_requests",
        /// Datagrams that make no sense, or whose sum is wrong.
        malformed = "datagrams_malformed",
        /// Parts of requests that came again.
        duplicate = "datagrams_duplicate",
        /// Datagrams of requests whose replies are not wanted any more.
        stale = "datagrams_stale",
        /// Answers that the sender is not known.
        reset = "datagrams_reset",
        /// Cookies that were sent to addresses that had not shown that they receive.
        retry = "datagrams_retry",
        /// Cookies that came and are not valid.
        bad_cookie = "datagrams_bad_cookie",
        /// Requests refused because there was no room; they are asked again.
        busy = "datagrams_busy",
        /// Mutations asked again after their replies were dropped.
        reply_gone = "datagrams_reply_gone",
        /// Clients refused because there were too many.
        full = "datagrams_full",
        /// Busy clients that a connection was offered to (--connections).
        offers = "datagram_offers",
        /// Offers that were not used in time.
        unused_offers = "datagram_offers_unused",
        /// Clients that were told to leave their connection.
        demoted = "datagram_demotions",
        /// Datagrams not sent because too many waited.
        unsent = "datagrams_unsent",
    }
}
