//! One run of the command: writes its input, waits for it, ends it if its message is lost.

use std::{ffi::OsString, io, pin::pin, process::Stdio};

use reveille::listener::Delivery;
use tokio::{io::AsyncWriteExt as _, process::ChildStdin};

use crate::{
    child::{Ended, KILL_AFTER, Process, ProcessGroups},
    message, output,
};

/// The command, and its running processes.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) command: Vec<OsString>,
    pub(super) running: ProcessGroups,
}

/// Environment and standard input of one run.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl Program {
    /// Runs the command to its end. Sends it SIGTERM when `lost` resolves.
    ///
    /// # Errors
    /// The command could not be started.
    pub(super) async fn run(
        &self,
        input: &Input,
        lost: impl Future<Output = ()>,
    ) -> io::Result<Ended> {
        let (environment, stdin) = (input.environment.clone(), Stdio::piped());
        let mut process = Process::start(&self.command, environment, stdin, &self.running)?;
        let stdin = process.stdin();
        let mut run = pin!(process.run_until(lost, KILL_AFTER));
        tokio::select! {
            biased;
            ended = &mut run => ended,
            () = feed(stdin, &input.body) => run.await,
        }
    }
}

impl Input {
    /// Returns the input of a run for one message: its unchanged body.
    pub(super) fn of_one(delivery: &Delivery) -> Self {
        let message = &delivery.message;
        let environment = vec![
            ("MESSAGE_ID", message.id.to_string()),
            ("MESSAGE_DEQUEUE_COUNT", message.dequeue_count.to_string()),
            ("MESSAGE_QUEUE", delivery.queue.to_string()),
            ("MESSAGE_INSERTED_AT", output::time(message.inserted_at)),
        ];
        Self {
            environment,
            body: message.body.to_vec(),
        }
    }

    /// Returns the input of a run for a batch: one JSON object a line.
    pub(super) fn of_batch(batch: &[Delivery]) -> serde_json::Result<Self> {
        let queue = batch.first().map(|first| first.queue.to_string());
        let environment = vec![
            ("MESSAGE_QUEUE", queue.unwrap_or_default()),
            ("MESSAGE_COUNT", batch.len().to_string()),
        ];
        let mut body = Vec::new();
        for delivery in batch {
            let of = &delivery.message;
            let row = message::row(&of.id, &of.body, of.dequeue_count, of.inserted_at);
            serde_json::to_writer(&mut body, &row)?;
            body.push(b'\n');
        }
        Ok(Self { environment, body })
    }
}

/// Writes the input, then closes it. A command need not read it.
async fn feed(stdin: Option<ChildStdin>, body: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(body).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, os::unix::process::ExitStatusExt as _, path::Path, time::Duration};

    use super::*;

    fn program(script: &str) -> Program {
        Program {
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            running: ProcessGroups::default(),
        }
    }

    fn input(body: &str) -> Input {
        Input {
            environment: vec![("MESSAGE_ID", "7".to_owned())],
            body: body.as_bytes().to_vec(),
        }
    }

    async fn exists(path: &Path) {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_run_has_its_message_and_its_environment() {
        let program = program("test \"$MESSAGE_ID $(cat)\" = '7 hello'");
        let ran = program.run(&input("hello"), pending()).await.expect("run");
        assert!(ran.status.success() && !ran.terminated);
        assert_eq!(program.running.count(), 0);
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_input_is_no_failure() {
        let body = "x".repeat(1 << 20);
        let ran = program("exit 3").run(&input(&body), pending()).await;
        assert_eq!(ran.expect("run").status.code(), Some(3));
    }

    #[tokio::test]
    async fn a_command_whose_message_is_lost_gets_sigterm_and_so_do_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = directory.path().join("child");
        let script = format!(
            "sh -c 'trap \"touch {0}; exit\" TERM; touch {0}.up; while :; do sleep 0.05; done' & wait; wait",
            mark.display()
        );
        let up = mark.with_extension("up");
        let ran = program(&script).run(&input(""), exists(&up)).await;
        let ran = ran.expect("run");
        assert!(ran.terminated);
        assert_eq!(ran.status.signal(), Some(15));
        exists(&mark).await;
    }

    #[tokio::test]
    async fn a_command_that_ignores_sigterm_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let up = directory.path().join("up");
        let script = format!(
            "trap '' TERM; touch {}; while :; do sleep 0.05; done",
            up.display()
        );
        let ran = program(&script).run(&input(""), exists(&up)).await;
        let ran = ran.expect("run");
        assert_eq!((ran.terminated, ran.status.signal()), (true, Some(9)));
    }

    #[tokio::test]
    async fn a_run_that_is_dropped_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (up, mark) = (directory.path().join("up"), directory.path().join("mark"));
        let script = format!(
            "touch {}; sleep 0.5; touch {}",
            up.display(),
            mark.display()
        );
        let program = program(&script);
        let input = input("");
        tokio::select! {
            _ = program.run(&input, pending()) => panic!("it sleeps"),
            () = exists(&up) => {}
        }
        assert_eq!(program.running.count(), 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!mark.exists());
    }
}
