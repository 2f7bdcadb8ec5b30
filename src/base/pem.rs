//! What files of TLS contain beside good PEM.

/// Returns the text without the mark that some editors write before it.
pub(crate) fn without_mark(mut pem: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if pem.starts_with(MARK) {
        pem.drain(..MARK.len());
    }
    pem
}

/// Returns why a file has no key that can be used.
pub(crate) fn without_key(pem: &[u8]) -> &'static str {
    let has = |text: &[u8]| pem.windows(text.len()).any(|part| part == text);
    match has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        true => {
            "the key is encrypted, and no passphrase is asked for: write it without one \
             (`openssl pkey -in KEY -out NEW`)"
        }
        false => "no private key in PEM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_removed_and_an_encrypted_key_is_named() {
        assert_eq!(without_mark(b"\xef\xbb\xbf-----".to_vec()), b"-----");
        assert_eq!(without_mark(b"-----".to_vec()), b"-----");
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
        ] {
            assert!(without_key(text.as_bytes()).contains("encrypted"), "{text}");
        }
        assert_eq!(without_key(b"-----BEGIN"), "no private key in PEM");
    }
}
