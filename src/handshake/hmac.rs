//! HMAC with SHA-256 (RFC 2104).

use std::hint::black_box;

use sha2::{Digest, Sha256};

/// The bytes that SHA-256 takes at once.
const BLOCK_BYTES: usize = 64;

/// The tag of a message under a key.
#[derive(Clone)]
pub(super) struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    pub(super) fn new(key: &[u8]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        match block.get_mut(..key.len()) {
            Some(start) => start.copy_from_slice(key),
            None => block[..32].copy_from_slice(&Sha256::digest(key)),
        }
        let keyed = |pad: u8| Sha256::new().chain_update(block.map(|byte| byte ^ pad));
        Hmac { inner: keyed(0x36), outer: keyed(0x5c) }
    }

    /// Adds bytes to the message.
    pub(super) fn chain_update(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.inner.update(bytes);
        self
    }

    pub(super) fn finalize(self) -> [u8; 32] {
        self.outer.chain_update(self.inner.finalize()).finalize().into()
    }

    /// Whether a tag is the message's. It takes equally long for every wrong one of its length.
    pub(super) fn accepts(self, tag: &[u8]) -> bool {
        let expected = self.finalize();
        // The compiler sees no value that it could leave the loop for.
        let differs = expected.iter().zip(tag).fold(0, |differs, (a, b)| black_box(differs | (a ^ b)));
        tag.len() == expected.len() && differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: [u8; 32]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn tags_are_those_of_the_standard() {
        let cases: [(&[u8], &[u8], &str); 3] = [
            (&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, message, tag) in cases {
            let (first, second) = message.split_at(4);
            assert_eq!(hex(Hmac::new(key).chain_update(first).chain_update(second).finalize()), tag);
        }
    }

    #[test]
    fn one_wrong_bit_or_another_length_is_refused() {
        let hmac = Hmac::new(b"key").chain_update(b"message");
        let tag = hmac.clone().finalize();
        assert!(hmac.clone().accepts(&tag));
        assert!(!hmac.clone().accepts(&tag[..31]) && !hmac.clone().accepts(&[]));
        assert!(!hmac.clone().accepts(&[&tag[..], &[0]].concat()));
        for bit in 0..256 {
            let mut wrong = tag;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!hmac.clone().accepts(&wrong));
        }
    }
}
