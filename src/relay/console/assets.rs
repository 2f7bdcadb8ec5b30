//! The files of the page. They are part of the binary.

use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::Page;

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        /// Name and content of each file; a test compares the names with the folder.
        const FILES: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("web/", $name)))),+];
    };
}
files!(
    "api.js",
    "app.js",
    "dom.js",
    "flags.js",
    "format.js",
    "help.js",
    "icon.svg",
    "index.html",
    "listeners.js",
    "login.js",
    "overview.js",
    "parts.js",
    "plots.js",
    "queue.js",
    "queues.js",
    "relays.js",
    "stats.js",
    "style.css",
    "vendor/LICENSE-htm",
    "vendor/LICENSE-preact",
    "vendor/LICENSE-uplot",
    "vendor/hooks.js",
    "vendor/htm.js",
    "vendor/preact.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
);

pub(super) fn routes() -> Router<Page> {
    Router::new()
        .route("/", get(async || file("index.html")))
        .route(
            "/assets/{*name}",
            get(async |Path(name): Path<String>| file(&name)),
        )
}

fn file(name: &str) -> Response {
    let Some((_, content)) = FILES.iter().find(|(known, _)| *known == name) else {
        return (StatusCode::NOT_FOUND, "no such file\n").into_response();
    };
    let headers = [
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_TYPE, kind(name)),
    ];
    (headers, *content).into_response()
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use ring::digest::{SHA256, digest};

    use super::*;

    const WEB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/relay/console/web");
    const LIST: &str = "vendor/VENDORED.md";

    fn names(directory: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = format!("{prefix}{}", entry.file_name().display());
            match entry.file_type().expect("a type").is_dir() {
                true => names(&entry.path(), &format!("{name}/"), found),
                false => _ = found.insert(name),
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let mut found = BTreeSet::new();
        names(Path::new(WEB), "", &mut found);
        found.remove(LIST);
        let served: BTreeSet<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(served, found);
    }

    #[test]
    fn files_of_others_are_those_of_the_list_and_small() {
        let list = std::fs::read_to_string(format!("{WEB}/{LIST}")).expect("a list");
        let mut size = 0;
        for (name, content) in FILES {
            let Some(file) = name.strip_prefix("vendor/") else {
                continue;
            };
            let digest = digest(&SHA256, content);
            let bytes = digest.as_ref().iter();
            let digest: String = bytes.map(|byte| format!("{byte:02x}")).collect();
            assert!(list.contains(file), "{file} is not listed");
            if !file.starts_with("LICENSE") {
                assert!(list.contains(&digest), "{file} has {digest}");
                size += content.len();
            }
        }
        assert!(size < 80_000, "{size} bytes");
    }
}
