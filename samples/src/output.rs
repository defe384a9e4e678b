//! What a sample prints: results, help, errors.
//!
//! A sample that cannot print ends. If the reader has closed the output, as `head` does, the sample
//! ends silently, with the exit code that a shell shows for SIGPIPE. After any other error, such as
//! a full disk, it prints the error, and the exit code is 1.

use std::fmt::Display;
use std::io::{ErrorKind, Result, Write, stdout};
use std::process::{ExitCode, exit};

use clap::Parser;
use clap::builder::Styles;

/// The exit code of a sample whose reader has closed the output: 128 and the number of SIGPIPE.
pub const CLOSED: u8 = 128 + 13;

/// Reads the command line. Ends the sample after `--help`, `--version` and mistakes.
pub fn parse<Arguments: Parser>() -> Arguments {
    Arguments::try_parse().unwrap_or_else(|message| {
        let printed = message.print();
        if !message.use_stderr() {
            end_unless_printed(printed);
        }
        exit(message.exit_code())
    })
}

/// Prints a part of the result.
pub fn print(text: String) {
    let mut stdout = stdout().lock();
    end_unless_printed(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

fn end_unless_printed(printed: Result<()>) {
    match printed {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => exit(CLOSED.into()),
        Err(error) => {
            tell_error(format!("the output cannot be written: {error}"));
            exit(1);
        }
    }
}

/// Prints an error. If standard error is closed or full, it has no reader.
pub fn tell_error(error: impl Display) {
    let styles = Styles::default();
    let style = styles.get_error();
    let _ = writeln!(anstream::stderr(), "{style}error:{style:#} {error}");
}

/// Prints an error, and gives the exit code of a failure.
pub fn fail(error: impl Display) -> ExitCode {
    tell_error(error);
    ExitCode::FAILURE
}
