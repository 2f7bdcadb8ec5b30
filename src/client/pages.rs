//! Reads paged lists of a relay.

use std::time::Duration;

use crate::error::Result;

/// A list is tried again this often where the relay states a time for it, at most this one.
const MAX_REFUSALS: u32 = 5;
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Fetches all pages, each by the token of the previous page, until a page has no token.
pub(super) async fn all_pages<T, Page>(fetch: impl Fn(String) -> Page) -> Result<Vec<T>>
where
    Page: Future<Output = Result<(Vec<T>, String)>>,
{
    let mut all = Vec::new();
    let mut token = String::new();
    let mut refusals = 0;
    loop {
        let (entries, next) = match fetch(token.clone()).await {
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
        all.extend(entries);
        token = next;
        if token.is_empty() {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    #[tokio::test]
    async fn all_pages_are_read_in_order_and_an_error_is_returned() {
        let pages = async |token: String| match token.as_str() {
            "" => Ok((vec![1, 2], "b".to_owned())),
            // A page may be empty and yet not be the last.
            "b" => Ok((vec![], "c".to_owned())),
            "c" => Ok((vec![3], String::new())),
            _ => panic!("never given: {token}"),
        };
        assert_eq!(all_pages(pages).await.expect("all"), [1, 2, 3]);
        let broken = async |token: String| match token.as_str() {
            "" => Ok((vec![1], "b".to_owned())),
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
                _ => Ok((vec![7], String::new())),
            }
        };
        let began = tokio::time::Instant::now();
        assert_eq!(all_pages(busy).await.expect("all"), [7]);
        assert_eq!(began.elapsed(), 2 * after);
        let never = async |_| Err::<(Vec<u8>, _), _>(full());
        assert!(all_pages(never).await.is_err());
    }
}
