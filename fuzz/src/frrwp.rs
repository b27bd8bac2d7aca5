//! Messages from peers, and addresses from users.

use ::frrwp::fabric::FabricAddress;
use ::frrwp::fabric::iwarp::ddp::{Header, Operation, ReadRequest};
use ::frrwp::fabric::iwarp::mpa::{Fpdu, Start, frame, framed};
use ::frrwp::fabric::iwarp::terminate::Terminate;
use ::frrwp::fabric::reliability::wire::Datagram;
use ::frrwp::wire::{self, MESSAGE, Message};

/// A message that is understood is understood again after it was encoded.
pub(crate) fn message(input: &[u8]) -> bool {
    let _ = wire::Start::decode(input);
    let Ok(message) = Message::decode(input) else { return false };
    let mut again = [0; MESSAGE];
    let length = message.encode(&mut again);
    assert_eq!(Message::decode(&again[..length]), Ok(message));
    true
}

/// Start frames, frames, headers and bodies are encoded as the same bytes, but for reserved bits. No frame is longer than it says.
pub(crate) fn iwarp(input: &[u8]) -> bool {
    let mut stream = input;
    if let Ok(Some((start, length))) = Start::decode(stream) {
        let mut again = Vec::new();
        start.encode(&mut again);
        assert_eq!(Start::decode(&again), Ok(Some((start, again.len()))));
        let mut came = stream[..length].to_vec();
        came[16] &= if start.revision == 2 { 0x70 } else { 0x60 };
        assert_eq!(again, came);
        assert!(!start.to_string().is_empty());
        stream = &stream[length..];
        if stream.is_empty() {
            return true;
        }
    }
    let mut understood = false;
    while let Some(fpdu) = Fpdu::split(stream) {
        let Fpdu { ulpdu, crc, length, .. } = fpdu;
        assert_eq!((length, stream.get(2..2 + ulpdu.len())), (framed(ulpdu.len()), Some(ulpdu)));
        let (start, (end, used)) = frame(&[ulpdu], true);
        let whole = [&start, ulpdu, &end[..used]].concat();
        let again = Fpdu::split(&whole).expect("a whole frame");
        assert_eq!((again.ulpdu, again.length, again.check()), (ulpdu, length, Ok(())));
        // Padding may be anything, and is covered.
        let same = whole[..length - 4] == stream[..length - 4];
        assert!(!same || fpdu.check().is_ok() == (crc == again.crc));
        stream = &stream[length..];
        let Ok((header, payload)) = Header::decode(ulpdu) else { return false };
        let (encoded, used) = header.encode();
        assert_eq!(used, header.length());
        let mut came = ulpdu[..used].to_vec();
        (came[0], came[1]) = (came[0] & 0xc3, came[1] & 0xcf);
        assert_eq!((&encoded[..used], &ulpdu[used..]), (&came[..], payload));
        match header.operation {
            Operation::ReadRequest => {
                if let Some(request) = ReadRequest::decode(payload) {
                    assert_eq!(request.encode(), payload);
                }
            }
            Operation::Terminate => {
                if let Some(terminate) = Terminate::decode(payload) {
                    assert_eq!(Terminate::decode(&terminate.encode(None)), Some(terminate));
                    assert!(!terminate.to_string().is_empty());
                }
            }
            _ => {}
        }
        understood = true;
    }
    understood && stream.is_empty()
}

/// A datagram that is understood is understood again after it was encoded, with its sum and without.
pub(crate) fn datagram(input: &[u8]) -> bool {
    let Some(datagram) = Datagram::decode(input, false) else {
        assert_eq!(Datagram::decode(input, true), None);
        return false;
    };
    for check in [false, true] {
        let mut again = Vec::new();
        datagram.encode(&[], check, &mut again);
        assert_eq!(Datagram::decode(&again, check), Some(datagram));
    }
    true
}

/// An address that is understood is written as one that is the same.
pub(crate) fn address(input: &[u8]) -> bool {
    crate::text(input, |text| match text.parse::<FabricAddress>() {
        Ok(address) => {
            assert_eq!(address.to_string().parse::<FabricAddress>().ok(), Some(address));
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    })
}
