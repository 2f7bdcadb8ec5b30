//! The configuration file of the command, which is no part of the library.
#![no_main]

#[path = "../../../cli/src"]
#[allow(dead_code, reason = "the target only parses")]
mod cli {
    pub(crate) mod cluster;
    pub(crate) mod exit;
    pub(crate) mod queue_settings;
    pub(crate) mod settings;
    pub(crate) mod tls;
    pub(crate) mod values;

    pub(crate) mod output {
        /// As in the command.
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum Format {
            Table,
            Json,
            Jsonl,
        }
    }

    pub(crate) fn config(data: &[u8]) {
        settings::config(data);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| cli::config(data));
