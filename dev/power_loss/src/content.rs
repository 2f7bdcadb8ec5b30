//! The bytes of a file, in shared pages: a copy costs a pointer for each page.

use std::sync::Arc;

const PAGE: usize = 4096;

/// A file's content. A clone shares all pages until they are written.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pages: Vec<Arc<[u8; PAGE]>>,
    len: usize,
}

impl Content {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills the buffer from `offset` on, with zeros behind the end of the file. Returns the number
    /// of bytes that are in the file.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let found = self.len.saturating_sub(offset).min(buffer.len());
        buffer[found..].fill(0);
        let mut done = 0;
        while done < found {
            let (page, at) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let part = (PAGE - at).min(found - done);
            buffer[done..done + part].copy_from_slice(&self.pages[page][at..at + part]);
            done += part;
        }
        found
    }

    /// Returns a part of the file; bytes behind its end are zeros.
    pub fn part(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut part = vec![0; len];
        self.read(offset, &mut part);
        part
    }

    /// Writes the data at `offset`. A gap behind the old end has zeros.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        self.grow(offset + data.len());
        let mut done = 0;
        while done < data.len() {
            let (page, at) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let part = (PAGE - at).min(data.len() - done);
            let page = Arc::make_mut(&mut self.pages[page]);
            page[at..at + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
    }

    /// Sets the length; new bytes are zeros.
    pub fn truncate(&mut self, len: usize) {
        self.grow(len);
        self.pages.truncate(len.div_ceil(PAGE));
        self.len = len;
        if !len.is_multiple_of(PAGE)
            && let Some(last) = self.pages.last_mut()
        {
            Arc::make_mut(last)[len % PAGE..].fill(0);
        }
    }

    fn grow(&mut self, len: usize) {
        if len > self.len {
            let zeros = || Arc::new([0; PAGE]);
            self.pages.resize_with(len.div_ceil(PAGE), zeros);
            self.len = len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_behaves_like_a_vector_of_bytes() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut content, mut model) = (Content::default(), Vec::new());
        for _ in 0..2_000 {
            let offset = random.usize(..20_000);
            if random.u8(..8) == 0 {
                content.truncate(offset);
                model.resize(offset, 0);
            } else {
                let data: Vec<u8> = (0..random.usize(1..9_000)).map(|_| random.u8(..)).collect();
                let before = content.clone();
                content.write(offset, &data);
                assert_eq!(before.part(0, model.len()), model, "a copy does not change");
                model.resize(model.len().max(offset + data.len()), 0);
                model[offset..offset + data.len()].copy_from_slice(&data);
            }
            assert_eq!(content.len(), model.len());
            assert_eq!(content.part(0, model.len()), model);
        }
    }
}
