//! Parses Azure's answer to a list of blobs, which is XML.

use std::{collections::BTreeMap, time::SystemTime};

use azure_core::time::parse_rfc7231;
use serde::Deserialize;

use super::super::ETag;

/// A page of a list.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) blobs: Vec<ListedBlob>,
    /// Number of blobs whose names XML cannot contain.
    pub(crate) unnameable: u64,
    pub(crate) next: Option<String>,
}

/// A blob in a list.
#[derive(Debug)]
pub(crate) struct ListedBlob {
    pub(crate) name: String,
    pub(crate) etag: ETag,
    pub(crate) last_modified: SystemTime,
    pub(crate) metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Results {
    #[serde(default)]
    blobs: Blobs,
    #[serde(default)]
    next_marker: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blobs {
    #[serde(default)]
    blob: Vec<Blob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: Name,
    properties: Properties,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Name {
    #[serde(rename = "$text", default)]
    text: String,
    /// The encoding of a name that XML cannot contain. Such a name is not valid here.
    #[serde(rename = "@Encoded", default)]
    encoded: Option<bool>,
}

#[derive(Deserialize)]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: String,
    #[serde(rename = "Etag")]
    etag: String,
}

/// Parses the answer; `None` for malformed XML.
pub(crate) fn parse(answer: &[u8]) -> Option<Listing> {
    let text = std::str::from_utf8(answer).ok()?;
    let results: Results = quick_xml::de::from_str(text.trim_start_matches('\u{feff}')).ok()?;
    let all = results.blobs.blob.into_iter();
    let (unnameable, named): (Vec<_>, Vec<_>) =
        all.partition(|blob| blob.name.encoded == Some(true));
    let blobs = named.into_iter().map(|blob| {
        let modified = parse_rfc7231(&blob.properties.last_modified).ok()?;
        let metadata = blob.metadata.unwrap_or_default().into_iter();
        Some(ListedBlob {
            name: blob.name.text,
            etag: ETag::new(&quoted(&blob.properties.etag)),
            last_modified: modified.into(),
            metadata: metadata
                // The parser also returns attributes, such as `Encrypted`, and text.
                .filter(|(name, _)| !name.starts_with(['@', '$']))
                .map(|(name, value)| (name.to_ascii_lowercase(), value))
                .collect(),
        })
    });
    Some(Listing {
        blobs: blobs.collect::<Option<_>>()?,
        unnameable: unnameable.len() as u64,
        next: results.next_marker.filter(|marker| !marker.is_empty()),
    })
}

/// A list has ETags without the quotes that headers have.
fn quoted(etag: &str) -> String {
    match etag.starts_with('"') {
        true => etag.to_owned(),
        false => format!("\"{etag}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the service's documentation.
    const ANSWER: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\
        <EnumerationResults ServiceEndpoint=\"http://a/\" ContainerName=\"c\"><MaxResults>2</MaxResults>\
        <Blobs><Blob><Name>a &amp; b/ä</Name><Properties>\
        <Last-Modified>Fri, 20 Nov 2026 12:00:00 GMT</Last-Modified><Etag>0x8D</Etag>\
        <Content-Length>3</Content-Length></Properties>\
        <Metadata><TimeToLive>2026-11-20T12:00:00Z</TimeToLive><other>x</other></Metadata></Blob>\
        <Blob><Name Encoded=\"true\">%01</Name><Properties>\
        <Last-Modified>Fri, 20 Nov 2026 12:00:00 GMT</Last-Modified><Etag>0x8E</Etag></Properties>\
        <Metadata /></Blob></Blobs><NextMarker>2!8!x</NextMarker></EnumerationResults>";

    #[test]
    fn an_answer_is_read_with_its_metadata() {
        let listing = parse(ANSWER.as_bytes()).expect("an answer");
        assert_eq!(listing.next.as_deref(), Some("2!8!x"));
        let [blob] = &listing.blobs[..] else {
            panic!("{listing:?}");
        };
        assert_eq!((&*blob.name, blob.etag.as_str()), ("a & b/ä", "\"0x8D\""));
        assert_eq!(blob.metadata["timetolive"], "2026-11-20T12:00:00Z");
        assert_eq!((blob.metadata.len(), listing.unnameable), (2, 1));
    }

    #[test]
    fn an_empty_list_and_malformed_answers() {
        let encrypted = ANSWER.replace("<Metadata><", "<Metadata Encrypted=\"true\"><");
        let listing = parse(encrypted.as_bytes()).expect("an answer");
        assert_eq!(
            listing.blobs[0].metadata.len(),
            2,
            "an attribute is no metadata"
        );
        let empty = "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>";
        let listing = parse(empty.as_bytes()).expect("an answer");
        assert!(listing.blobs.is_empty() && listing.next.is_none());
        for other in [
            "",
            "<html>",
            "{}",
            "<EnumerationResults><Blobs><Blob/></Blobs>",
        ] {
            assert!(parse(other.as_bytes()).is_none(), "{other}");
        }
    }
}
