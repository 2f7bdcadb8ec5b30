//! What differs between two token tables, for the audit log.

use super::token_table::{Entry, TokenTable};

/// A token or a secret that was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenChange {
    /// The id by which it is listed and revoked.
    pub(crate) id: String,
    /// The change, with the principal.
    pub(crate) what: String,
}

/// Changes beyond these are counted in one line.
const MOST: usize = 1000;

/// Returns the changes from the former table to the present one, by id.
pub(super) fn between(former: &TokenTable, present: &TokenTable) -> Vec<TokenChange> {
    let (old, new) = (former.by_id(), present.by_id());
    let added = new.iter().filter_map(|(id, entry)| match old.get(id) {
        None => Some(change(id, "added", entry)),
        Some(before) if !before.is_same(entry) => Some(change(id, "changed", entry)),
        Some(_) => None,
    });
    let removed = old.iter().filter(|(id, _)| !new.contains_key(*id));
    let removed = removed.map(|(id, entry)| change(id, "removed", entry));
    let mut all: Vec<_> = added.chain(removed).collect();
    all.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    if all.len() > MOST {
        let further = all.len() - MOST;
        all.truncate(MOST);
        all.push(TokenChange {
            id: "(others)".to_owned(),
            what: format!("{further} further changes"),
        });
    }
    all
}

fn change(id: &str, done: &str, entry: &Entry) -> TokenChange {
    let kind = match &entry.issuer {
        Some(issuer) => format!("a secret of issuer `{issuer}`"),
        None => "a token".to_owned(),
    };
    TokenChange {
        id: id.to_owned(),
        what: format!("{done}: {kind} of `{}`", entry.principal),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::relay::auth::{NewToken, Principal, token_file::TokenFile};

    #[test]
    fn each_token_that_was_added_or_removed_is_named_and_a_rotation_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = TokenFile::new(directory.path().join("tokens.toml"));
        let add = |principal| {
            let new = NewToken {
                principal: Principal::new(principal).expect("a name"),
                expires: None,
                note: String::new(),
            };
            let issued = file.add(&new, SystemTime::UNIX_EPOCH).expect("issued");
            issued.id().to_owned()
        };
        let table = || TokenTable::new(&file.load().expect("read")).expect("a table");
        let old = add("billing");
        let kept = add("orders");
        let before = table();
        assert_eq!(between(&before, &table()), []);
        file.revoke(&old).expect("revoked");
        let new = add("billing");
        let mut changes = between(&before, &table());
        changes.sort_by(|one, other| one.what.cmp(&other.what));
        let named = changes.iter().map(|change| (&*change.id, &*change.what));
        let expected = [
            (&*new, "added: a token of `billing`"),
            (&*old, "removed: a token of `billing`"),
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected);
        assert!(changes.iter().all(|change| change.id != kept));
    }
}
