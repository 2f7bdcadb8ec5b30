//! Lists that a relay answers page by page.

use crate::error::Result;

/// Asks for page after page, each by the token that the one before gave, until one gives none.
pub(super) async fn all_pages<T, Page>(ask: impl Fn(String) -> Page) -> Result<Vec<T>>
where
    Page: Future<Output = Result<(Vec<T>, String)>>,
{
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let (entries, next) = ask(token).await?;
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
    async fn all_pages_are_read_in_their_order_and_an_error_ends_it() {
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
