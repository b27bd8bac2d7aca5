//! Messages from peers, and addresses from users.

use ::frrwp::fabric::FabricAddress;
use ::frrwp::wire::{MESSAGE, Message, Start};

/// A message that is understood is understood again after it was encoded.
pub(crate) fn message(input: &[u8]) -> bool {
    let _ = Start::decode(input);
    let Ok(message) = Message::decode(input) else { return false };
    let mut again = [0; MESSAGE];
    let length = message.encode(&mut again);
    assert_eq!(Message::decode(&again[..length]), Ok(message));
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
