//! Reads paged lists of a relay.

use std::{collections::BTreeSet, ops::Deref, time::Duration};

use crate::error::Result;

/// A list is tried again this often where the relay states a time for it, at most this one.
const MAX_REFUSALS: u32 = 5;
const LONGEST_WAIT: Duration = Duration::from_secs(5);

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
    let mut refusals = 0;
    loop {
        let page = match fetch(token.clone()).await {
            Ok(page) => page,
            Err(error) => match error.retry_after() {
                Some(after) if refusals < MAX_REFUSALS && after <= LONGEST_WAIT => {
                    refusals += 1;
                    tokio::time::sleep(after).await;
                    continue;
                }
                _ => return Err(error),
            },
        };
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

    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_refused_with_a_time_is_fetched_again_then() {
        let after = Duration::from_secs(1);
        let full = || Error::new(ErrorKind::Exhausted, "lists").with_retry_after(after);
        let fetched = std::cell::Cell::new(0);
        let busy = async |_| {
            fetched.set(fetched.get() + 1);
            match fetched.get() {
                1 | 2 => Err(full()),
                _ => page(vec![7], "", &[]),
            }
        };
        let began = tokio::time::Instant::now();
        assert_eq!(all_pages(busy).await.expect("all").entries, [7]);
        assert_eq!(began.elapsed(), 2 * after);
        let never = async |_| Err::<ListPage<u8>, _>(full());
        assert!(all_pages(never).await.is_err());
    }
}
