//! One blob of a store: conditional writes, one request at a time.

use std::sync::Arc;

use bytes::Bytes;

use crate::coordination::lease::machine::{Answer, Content, Version};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    Read,
    /// On this version, or, for `None`, if there is no blob.
    Write(Bytes, Option<Version>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Found(Option<(Version, Bytes)>),
    Written(Version),
    Conflict,
}

#[derive(Debug)]
pub(super) struct Blob {
    content: Option<(Version, Bytes)>,
    writes: u64,
    /// Versions are hashes of the content, as S3 has them.
    hashes: bool,
    down: u64,
}

impl Blob {
    pub(super) fn new(hashes: bool) -> Self {
        Self {
            content: None,
            writes: 0,
            hashes,
            down: 0,
        }
    }

    /// Gives no answers until this time.
    pub(super) fn outage(&mut self, until: u64) {
        self.down = until;
    }

    pub(super) fn ask(&mut self, now: u64, ask: &Ask) -> Option<Said> {
        if now < self.down {
            return None;
        }
        let Ask::Write(bytes, condition) = ask else {
            return Some(Said::Found(self.content.clone()));
        };
        let present = self.content.as_ref().map(|(version, _)| version);
        if present != condition.as_ref() {
            return Some(Said::Conflict);
        }
        self.writes += 1;
        let version: Version = match self.hashes {
            // Equivalent to a hash here.
            true => String::from_utf8_lossy(bytes).into(),
            false => self.writes.to_string().into(),
        };
        self.content = Some((Arc::clone(&version), bytes.clone()));
        Some(Said::Written(version))
    }
}

impl Said {
    pub(super) fn answer(self) -> Answer {
        match self {
            Self::Found(found) => {
                Answer::Found(found.map(|(version, bytes)| Content { version, bytes }))
            }
            Self::Written(version) => Answer::Written(version),
            Self::Conflict => Answer::Conflict,
        }
    }
}
