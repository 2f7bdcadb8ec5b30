//! Compiles `proto/` with protox: nothing but cargo is needed to build.

use std::{env, fs, path::PathBuf};

use prost::Message;

const PROTOS: [&str; 4] = [
    "reveille/v1/relay.proto",
    "reveille/v1/flags.proto",
    "reveille/v1/admin.proto",
    "reveille/v1/courier.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("reveille.fds.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .build_server(env::var_os("CARGO_FEATURE_RELAY").is_some())
        .codec_path("crate::wire::ServerCodec")
        // Few events have one, and answers wait for a confirmation by the thousand.
        .boxed(".reveille.v1.EventResult.error")
        // The hot path's request is read and written by hand: see `wire::notify`.
        .extern_path(".reveille.v1.NotifyRequest", "crate::wire::NotifyRequest")
        // A Wake's entries are encoded once for all subscribers: see `wire::relay`.
        .extern_path(
            ".reveille.v1.SubscribeResponse",
            "crate::wire::SubscribeResponse",
        )
        .compile_fds(descriptors.clone())?;
    // Apart, because a malformed answer is another error than a malformed request.
    let client_out = out.join("client");
    fs::create_dir_all(&client_out)?;
    tonic_prost_build::configure()
        .out_dir(client_out)
        .build_server(false)
        .codec_path("crate::wire::ClientCodec")
        .extern_path(".reveille.v1", "crate::wire::proto")
        .compile_fds(descriptors)?;
    if env::var_os("CARGO_FEATURE_KEDA").is_some() {
        let scaler = protox::compile(["externalscaler/externalscaler.proto"], ["proto"])?;
        fs::write(out.join("externalscaler.fds.bin"), scaler.encode_to_vec())?;
        tonic_prost_build::configure()
            .build_client(false)
            .codec_path("crate::wire::ServerCodec")
            .compile_fds(scaler)?;
    }
    if env::var_os("CARGO_FEATURE_RELAY").is_some() {
        // Apart from the other files: reflection shows the protocol of the clients only.
        let link = protox::compile(["reveille/link/v1/link.proto"], ["proto"])?;
        // Also apart on the disk: the clients' messages that it imports are those of above.
        let link_out = out.join("link");
        fs::create_dir_all(&link_out)?;
        tonic_prost_build::configure()
            .bytes(".")
            .out_dir(link_out)
            .build_client(false)
            .build_server(false)
            .extern_path(".reveille.v1", "crate::wire::proto")
            .compile_fds(link)?;
    }
    Ok(())
}
