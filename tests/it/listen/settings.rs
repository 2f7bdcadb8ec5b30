//! Settings of `listen`: a policy file that changes, credentials that are refused.

use super::*;
use crate::support::azurite::{ACCOUNT, KEY, azurite};

fn policy(most: usize) -> String {
    format!("policy = \"steps\"\nsteps = []\nmost = {most}")
}

#[tokio::test]
async fn a_policy_that_changes_is_followed_while_it_runs() {
    let place = Place::new().await;
    place.put(&[&b"x"[..]; 100]).await;
    let file = place.file("policy.toml");
    fs::write(&file, policy(1)).expect("written");
    let options = ["--no-relay", "--policy", file.to_str().expect("plain")];
    // A run that finds another one at the same time creates the file `beside`.
    let script = "mkdir alone 2>&- || { touch beside; exit; }; sleep 0.1; touch ran; rmdir alone";
    let listening = place.listen(&options, script);
    until("the first has run", async || place.file("ran").exists()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!place.file("beside").exists(), "one at a time");
    fs::write(&file, "policy = \"none\"").expect("written");
    until("the bad policy is logged", async || {
        has_logged(&listening, "policy is unchanged")
    })
    .await;
    fs::write(&file, policy(4)).expect("written");
    until("the new policy is in use", async || {
        place.file("beside").exists()
    })
    .await;
    assert!(has_logged(&listening, "the scale policy has changed"));
    listening.signal("TERM");
    assert_eq!(listening.ends().await.code, Some(0));
}

fn has_logged(listening: &Listening, words: &str) -> bool {
    let events = listening.events.lock().expect("no panic");
    events.iter().any(|event| event.to_string().contains(words))
}

#[tokio::test]
async fn a_queue_that_refuses_access_has_a_separate_exit_code() {
    let place = Place::new().await;
    let url = format!("azure://{ACCOUNT}/orders");
    let wrong = azurite().connection_string().replace("Eby8", "AAAA");
    let wrong = [("AZURE_STORAGE_CONNECTION_STRING", &*wrong)];
    for (variables, words) in [
        (&[][..], "AZURE_STORAGE_CONNECTION_STRING"),
        (&wrong, "orders"),
    ] {
        let arguments = ["listen", &url, "--no-relay", "--", "true"];
        let mut command = reveille(&place.home, &arguments);
        command.envs(variables.iter().copied());
        let output = within("the end", command.output()).await.expect("started");
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(4), "{complaint}");
        assert!(complaint.contains(words), "{complaint}");
        assert!(!complaint.contains("AAAA"), "no secret");
    }
}

/// Returns a shared access signature for one queue of the emulator, with all permissions.
fn signature_for(queue: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let (permissions, end, version) = ("raup", "2099-01-01T00:00:00Z", "2021-08-06");
    let resource = format!("/queue/{ACCOUNT}/{queue}");
    let text = [permissions, "", end, &resource, "", "", "", version].join("\n");
    let key = STANDARD.decode(KEY).expect("base64");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let digest = STANDARD.encode(ring::hmac::sign(&key, text.as_bytes()));
    let encoded = digest
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D");
    format!("sv={version}&se={end}&sp={permissions}&sig={encoded}").replace(':', "%3A")
}

#[tokio::test]
async fn a_signature_for_one_queue_is_told_of_the_poison_queue_at_the_start() {
    let place = Place::new().await;
    let name = "one-signature";
    let url = format!("azure://{ACCOUNT}/{name}");
    let connection = format!(
        "QueueEndpoint={};SharedAccessSignature={}",
        azurite().queue_endpoint(),
        signature_for(name)
    );
    let run = async |arguments: &[&str], connection: &str| {
        let mut command = reveille(&place.home, arguments);
        command.env("AZURE_STORAGE_CONNECTION_STRING", connection);
        within("the end", command.output()).await.expect("started")
    };
    let created = run(&["queue", "create", &url], &azurite().connection_string()).await;
    assert!(created.status.success(), "{}", stderr(&created));
    let listen = ["listen", &url, "--no-relay", "--until-empty"];
    let output = run(&[&listen[..], &["--", "true"]].concat(), &connection).await;
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    let poison = "poison queue `devstoreaccount1/one-signature-poison`";
    assert!(complaint.contains(poison), "{complaint}");
    assert!(complaint.contains("or pass --no-poison"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let without = [&listen[..], &["--no-poison", "--", "true"]].concat();
    let output = run(&without, &connection).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
