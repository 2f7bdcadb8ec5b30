//! The set-ups of docs/security.md run as they are written, but for addresses, ports and host names.

use std::path::Path;

use tokio::process::{Child, Command};

use crate::{
    binary::{free_address, reveille, stderr, stdout},
    readme::blocks,
    support::{until, within},
    tls::Authority,
};

/// The machine of a set-up: a directory with its files, and the variables of its commands.
struct Machine {
    home: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
    served: Vec<Child>,
}

impl Machine {
    fn new() -> Self {
        let variables = [
            ("REVEILLE_ADMIN_LISTEN", free_address()),
            ("REVEILLE_QUEUES_LISTEN", free_address()),
        ];
        Self {
            home: tempfile::tempdir().expect("a directory"),
            variables: variables.into(),
            served: Vec::new(),
        }
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).expect("written");
    }

    /// Issues a certificate for the host names and URIs under a name.
    fn certify(&self, authority: &Authority, name: &str, names: &[&str]) {
        authority.write(self.path(), name, authority.issue(names));
    }

    fn command(&self, line: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_reveille"));
        let own = binary.parent().expect("a directory").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(own).chain(std::env::split_paths(&path));
        // Without the caller's settings.
        let mut command = reveille(&self.home, &[]);
        let environment: Vec<_> = command
            .as_std()
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        command = Command::new("bash");
        command
            .args(["-c", line])
            .env_clear()
            .envs(environment)
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .env("PATH", std::env::join_paths(path).expect("plain paths"))
            .current_dir(self.path())
            .kill_on_drop(true);
        command
    }

    /// Runs the lines of a block, of which those that serve go on; `address` is theirs.
    async fn run(&mut self, block: &str, replace: &[(&str, &str)], address: &str) {
        let replaced = replace.iter().fold(block.to_owned(), |block, (from, to)| {
            block.replace(from, to)
        });
        for line in replaced.replace("\\\n", " ").lines() {
            let line = line.trim().trim_end_matches('&');
            if line.contains("reveille serve") || line.contains("courier serve") {
                let log = std::fs::File::create(self.path().join("serve.log")).expect("a log");
                let mut command = self.command(&format!("exec {line}"));
                self.served
                    .push(command.stderr(log).spawn().expect("it starts"));
                until(line, async || {
                    tokio::net::TcpStream::connect(address).await.is_ok()
                })
                .await;
                continue;
            }
            let output = within(line, self.command(line).output()).await;
            let output = output.expect("it starts");
            let shown = stdout(&output) + &stderr(&output);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{line}: {shown}{}",
                self.log()
            );
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("serve.log")).unwrap_or_default()
    }

    fn variable(&mut self, name: &'static str, value: &str) {
        self.variables.push((name, value.to_owned()));
    }
}

#[tokio::test]
async fn the_set_ups_of_the_security_page_run_as_written() {
    let blocks = blocks("docs/security.md", &["sh", "text", "toml"]);
    let texts: Vec<_> = blocks.iter().map(|(_, text)| text.as_str()).collect();
    let [
        local,
        token_rules,
        tokens,
        rules,
        berlin_runs,
        rome_runs,
        ..,
    ] = texts[..]
    else {
        panic!("{} blocks", texts.len());
    };
    // On one machine.
    let mut machine = Machine::new();
    let address = free_address();
    machine.variable("REVEILLE_LISTEN", &address);
    machine.variable("REVEILLE_RELAY", &address);
    machine.run(local, &[], &address).await;
    machine
        .run("reveille notify acct/orders", &[], &address)
        .await;

    // With tokens.
    let mut machine = Machine::new();
    let address = free_address();
    let (_, port) = address.rsplit_once(':').expect("a port");
    let authority = Authority::new("relays");
    machine.certify(&authority, "relay", &["localhost", "127.0.0.1"]);
    machine.write("auth.toml", token_rules);
    // An authority of one's own, as the page says.
    machine.variable("REVEILLE_CA", "relay-ca.pem");
    let named = format!("localhost:{port}");
    let replace = [
        ("10.0.0.5:7600", address.as_str()),
        ("relay.example.com:7600", &named),
    ];
    machine.run(tokens, &replace, &address).await;
    let denied = format!(
        "REVEILLE_TOKEN_FILE=billing.token reveille notify acct/others --relay https://{named}"
    );
    let output = within("a denial", machine.command(&denied).output()).await;
    assert_eq!(output.expect("it starts").status.code(), Some(4));
    until("the denial is recorded", async || {
        let audit = std::fs::read_to_string(machine.path().join("audit.jsonl"));
        audit.expect("a log").contains("acct/others")
    })
    .await;

    // Between machines.
    let authority = Authority::new("machines");
    let (mut berlin, mut rome) = (Machine::new(), Machine::new());
    let address = free_address();
    let (_, port) = address.rsplit_once(':').expect("a port");
    let named = format!("localhost:{port}");
    berlin.certify(&authority, "berlin", &["localhost", "berlin.example.com"]);
    berlin.certify(&authority, "billing", &["spiffe://example.com/billing"]);
    rome.certify(&authority, "rome", &["rome.example.com"]);
    berlin.write("auth.toml", rules);
    for (machine, name) in [(&berlin, "berlin"), (&rome, "rome")] {
        let ca =
            std::fs::read(machine.path().join(format!("{name}-ca.pem"))).expect("an authority");
        std::fs::write(machine.path().join("machines.pem"), ca).expect("written");
        std::fs::create_dir(machine.path().join("queues")).expect("a directory");
    }
    let replace = [
        ("10.0.0.5:7600", address.as_str()),
        ("berlin.example.com:7600", &named),
        ("/var/lib/queues", "queues"),
    ];
    berlin.run(berlin_runs, &replace, &address).await;
    let host = rome.variables[1].1.clone();
    rome.run(rome_runs, &replace, &host).await;
    let get = "reveille queue get 'sqlite:queues/queues.db?queue=orders' --delete --raw";
    until("the letter has arrived", async || {
        let output = within("an answer", berlin.command(get).output()).await;
        stdout(&output.expect("it starts")).contains("first letter")
    })
    .await;
    assert!(!rome.log().contains("ERROR"), "{}", rome.log());
}
