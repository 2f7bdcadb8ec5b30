//! The `reveille` command: see `cli`.

mod cli;

/// Gives freed memory back to the system within milliseconds. glibc's allocator keeps tens of megabytes
/// after a burst, and the limit of memory would count them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
