//! What clap refuses, in one line.

use clap::error::ErrorKind;

use super::{exit::Exit, output};

/// Prints the help that was asked for, or one line that says what is wrong.
pub(super) fn refuse(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has gone needs no help.
            let _ = error.print();
            Exit::OK
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::USAGE
        }
        _ => {
            output::note(condense(&error.render().to_string()));
            Exit::USAGE
        }
    }
}

/// Keeps what is wrong and the tips, on one line; drops the usage.
fn condense(text: &str) -> String {
    let squeeze = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split("\n\n")
        .map(squeeze)
        .enumerate()
        .filter(|(at, paragraph)| *at == 0 || paragraph.starts_with("tip:"))
        .map(|(_, paragraph)| paragraph)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_with_its_tip() {
        let text = "error: unexpected argument '--rely' found\n\n  tip: a similar argument exists: \
                    '--relay'\n\nUsage: reveille\n\nFor more information, try '--help'.\n";
        assert_eq!(
            condense(text),
            "error: unexpected argument '--rely' found; tip: a similar argument exists: '--relay'"
        );
    }
}
