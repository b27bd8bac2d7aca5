//! Setting up: what the two start frames agree on (RFC 5044, section 7.1; RFC 6581).
//!
//! ```text
//! connecting                                    accepting
//!     │ request: depths, CRC, peer to peer, ──────► │
//!     │          ready by write or read             │
//!     │ ◄── reply: depths, CRC, one of the two ──── │   may not speak yet
//!     │ empty write or read: ready to receive ────► │   may speak
//! ```
//!
//! Peers that speak revision 1, or no peer-to-peer, are taken as they are: then the connecting side's first message opens the
//! accepting side's mouth.

use super::IwarpOptions;
use super::connection::Agreed;
use super::mpa::{Enhanced, MpaError, Role, Start};

/// How the connecting side says that it is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    Write,
    Read,
    Send,
}

/// Why a start frame does not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unfit {
    Mpa(MpaError),
    Rejected,
    /// The peer wants so many reads at a time.
    Depth(u16),
}

/// Returns the first frame of the connecting side.
pub(super) fn request(options: &IwarpOptions) -> Vec<u8> {
    let enhanced = Enhanced {
        peer_to_peer: options.ready_to_receive,
        inbound: options.inbound,
        outbound: options.outbound,
        ready_by_write: options.ready_to_receive,
        ready_by_read: options.ready_to_receive,
        ready_by_send: false,
    };
    let start = Start {
        role: Role::Request,
        checksums: options.checksums,
        rejected: false,
        revision: 2,
        enhanced: Some(enhanced),
        private: &[],
    };
    let mut bytes = Vec::new();
    start.encode(&mut bytes);
    bytes
}

/// Returns the reply to a request and the agreement; `None` where there is none, and the reply says so.
pub(super) fn reply(options: &IwarpOptions, request: &Start<'_>) -> Result<(Vec<u8>, Option<Agreed>), MpaError> {
    if request.role != Role::Request {
        return Err(MpaError::WrongSide);
    }
    let checksums = options.checksums || request.checksums;
    let mut agreed = Agreed {
        checksums,
        may_speak: false,
        ready_by_send: false,
        inbound: options.inbound,
        outbound: options.outbound,
    };
    let mut rejected = false;
    let enhanced = request.enhanced.map(|theirs| {
        let mut ours = Enhanced {
            inbound: options.inbound.min(theirs.outbound),
            outbound: options.outbound.min(theirs.inbound),
            peer_to_peer: theirs.peer_to_peer,
            ..Enhanced::default()
        };
        if theirs.peer_to_peer {
            ours.ready_by_write = theirs.ready_by_write;
            ours.ready_by_read = theirs.ready_by_read && !ours.ready_by_write;
            ours.ready_by_send = theirs.ready_by_send && !ours.ready_by_write && !ours.ready_by_read;
            rejected = !(ours.ready_by_write || ours.ready_by_read || ours.ready_by_send);
        }
        // An empty read needs a place too.
        agreed.inbound = ours.inbound.max(u16::from(ours.ready_by_read));
        agreed.outbound = ours.outbound;
        agreed.ready_by_send = ours.ready_by_send;
        ours
    });
    let revision = request.revision;
    let start = Start { role: Role::Reply, checksums, rejected, revision, enhanced, private: &[] };
    let mut bytes = Vec::new();
    start.encode(&mut bytes);
    Ok((bytes, (!rejected).then_some(agreed)))
}

/// Returns the agreement after a reply, and the way in which this side announces that it is ready.
pub(super) fn agree(options: &IwarpOptions, reply: &Start<'_>) -> Result<(Agreed, Option<Ready>), Unfit> {
    if reply.role != Role::Reply {
        return Err(Unfit::Mpa(MpaError::WrongSide));
    }
    if reply.rejected {
        return Err(Unfit::Rejected);
    }
    let mut agreed = Agreed {
        checksums: options.checksums || reply.checksums,
        may_speak: true,
        ready_by_send: false,
        inbound: options.inbound,
        outbound: options.outbound,
    };
    let mut ready = None;
    if let Some(theirs) = reply.enhanced {
        if theirs.outbound > options.inbound {
            return Err(Unfit::Depth(theirs.outbound));
        }
        agreed.outbound = options.outbound.min(theirs.inbound);
        if theirs.peer_to_peer {
            ready = match theirs {
                Enhanced { ready_by_write: true, .. } => Some(Ready::Write),
                Enhanced { ready_by_read: true, .. } => Some(Ready::Read),
                Enhanced { ready_by_send: true, .. } => Some(Ready::Send),
                _ => None,
            };
        }
    }
    Ok((agreed, ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(bytes: &[u8]) -> Start<'_> {
        Start::decode(bytes).unwrap().unwrap().0
    }

    #[test]
    fn own_peers_agree_on_smaller_depths() {
        let one = IwarpOptions { inbound: 4, outbound: 8, checksums: false, ..IwarpOptions::default() };
        let other = IwarpOptions { inbound: 16, outbound: 2, ..IwarpOptions::default() };
        let asked = request(&one);
        let (answer, theirs) = reply(&other, &start(&asked)).unwrap();
        let (ours, ready) = agree(&one, &start(&answer)).unwrap();
        let theirs = theirs.unwrap();
        assert_eq!(ready, Some(Ready::Write));
        assert_eq!((ours.outbound, theirs.inbound), (8, 8));
        assert_eq!((theirs.outbound, ours.inbound), (2, 4));
        assert!(ours.checksums && theirs.checksums && ours.may_speak && !theirs.may_speak);
    }

    #[test]
    fn no_ready_to_receive_is_agreed_on() {
        let one = IwarpOptions { ready_to_receive: false, ..IwarpOptions::default() };
        let (answer, theirs) = reply(&IwarpOptions::default(), &start(&request(&one))).unwrap();
        let (ours, ready) = agree(&one, &start(&answer)).unwrap();
        assert_eq!(ready, None);
        assert!(ours.may_speak && !theirs.unwrap().may_speak);
    }

    #[test]
    fn peer_to_peer_request_needs_a_ready_method() {
        let enhanced = Enhanced { peer_to_peer: true, inbound: 1, outbound: 1, ..Enhanced::default() };
        let asked = Start {
            role: Role::Request,
            checksums: false,
            rejected: false,
            revision: 2,
            enhanced: Some(enhanced),
            private: &[],
        };
        let (answer, agreed) = reply(&IwarpOptions::default(), &asked).unwrap();
        assert!(agreed.is_none());
        assert!(matches!(agree(&IwarpOptions::default(), &start(&answer)), Err(Unfit::Rejected)));
    }

    #[test]
    fn the_first_revision_is_answered_in_kind() {
        let asked = Start {
            role: Role::Request,
            checksums: true,
            rejected: false,
            revision: 1,
            enhanced: None,
            private: b"hello",
        };
        let options = IwarpOptions { checksums: false, ..IwarpOptions::default() };
        let (answer, agreed) = reply(&options, &asked).unwrap();
        let answer = start(&answer);
        assert_eq!((answer.revision, answer.enhanced, answer.checksums), (1, None, true));
        assert!(agreed.unwrap().checksums);
    }
}
