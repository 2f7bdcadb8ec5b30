//! The `reveille` command: see `reveille_cli`.

fn main() -> std::process::ExitCode {
    reveille_cli::main()
}
