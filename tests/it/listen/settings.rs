//! Settings of `listen`: a policy file that changes, credentials that are refused.

use super::*;
use crate::support::azurite::{ACCOUNT, azurite};

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
