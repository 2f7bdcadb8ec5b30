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

impl<T> Deref for Listed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.entries
    }
}

/// The entries of a page, the relays that did not answer, and the token of the next page.
type Page<T> = (Vec<T>, Vec<String>, String);

/// Fetches all pages, each with the token of the next one, until a page has no token.
pub(super) async fn all_pages<T, F>(fetch: impl Fn(String) -> F) -> Result<Listed<T>>
where
    F: Future<Output = Result<Page<T>>>,
{
    let mut all = Vec::new();
    let mut unanswered = BTreeSet::new();
    let mut token = String::new();
    loop {
        let (entries, of_page, next) = fetch(token).await?;
        all.extend(entries);
        unanswered.extend(of_page);
        token = next;
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

    fn page<T>(entries: Vec<T>, next: &str, unanswered: &[&str]) -> Result<Page<T>> {
        let unanswered = unanswered.iter().map(ToString::to_string).collect();
        Ok((entries, unanswered, next.to_owned()))
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
