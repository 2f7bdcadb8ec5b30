//! Reads paged lists of a relay.

use crate::error::Result;

/// Fetches all pages, each by the token of the previous page, until a page has no token.
pub(super) async fn all_pages<T, Page>(fetch: impl Fn(String) -> Page) -> Result<Vec<T>>
where
    Page: Future<Output = Result<(Vec<T>, String)>>,
{
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let (entries, next) = fetch(token).await?;
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
}
