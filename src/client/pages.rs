//! Reads paged lists of a relay.

use std::{collections::BTreeSet, ops::Deref};

use crate::error::Result;

/// A list of a relay, or of all relays of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// The entries, in the order of the list.
    pub entries: Vec<T>,
    /// The ids of the relays of the cluster that did not answer: what only they have is not listed.
    pub unanswered: Vec<String>,
}

/// One page of a list.
pub(super) struct ListPage<T> {
    pub(super) entries: Vec<T>,
    /// Empty on the last page.
    pub(super) next: String,
    pub(super) unanswered: Vec<String>,
}

impl<T> Listed<T> {
    /// Converts the entries.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Listed<U> {
        Listed {
            entries: self.entries.into_iter().map(convert).collect(),
            unanswered: self.unanswered,
        }
    }
}

impl<T> From<Vec<T>> for Listed<T> {
    fn from(entries: Vec<T>) -> Self {
        Self {
            entries,
            unanswered: Vec::new(),
        }
    }
}

impl<T> Deref for Listed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

impl<T> IntoIterator for Listed<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Fetches all pages, each by the token of the previous page, until a page has no token.
pub(super) async fn all_pages<T, Page>(fetch: impl Fn(String) -> Page) -> Result<Listed<T>>
where
    Page: Future<Output = Result<ListPage<T>>>,
{
    let mut all = Vec::new();
    let mut unanswered = BTreeSet::new();
    let mut token = String::new();
    loop {
        let page = fetch(token).await?;
        all.extend(page.entries);
        unanswered.extend(page.unanswered);
        token = page.next;
        if token.is_empty() {
            return Ok(Listed {
                entries: all,
                unanswered: unanswered.into_iter().collect(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    fn page<T>(entries: Vec<T>, next: &str, unanswered: &[&str]) -> Result<ListPage<T>> {
        Ok(ListPage {
            entries,
            next: next.to_owned(),
            unanswered: unanswered.iter().map(ToString::to_string).collect(),
        })
    }

    #[tokio::test]
    async fn all_pages_are_read_in_order_and_an_error_is_returned() {
        let pages = async |token: String| match token.as_str() {
            "" => page(vec![1, 2], "b", &["two"]),
            // A page may be empty and yet not be the last.
            "b" => page(vec![], "c", &["two", "one"]),
            "c" => page(vec![3], "", &[]),
            _ => panic!("never given: {token}"),
        };
        let listed = all_pages(pages).await.expect("all");
        assert_eq!(listed.entries, [1, 2, 3]);
        assert_eq!(listed.unanswered, ["one", "two"]);
        let broken = async |token: String| match token.as_str() {
            "" => page(vec![1], "b", &[]),
            _ => Err(Error::new(ErrorKind::Unavailable, "gone")),
        };
        assert!(all_pages(broken).await.is_err());
    }
}
