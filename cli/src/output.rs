//! What a program prints: results, help, errors.
//!
//! A program that cannot print ends. If the reader has closed the output, as `head` does, the
//! program ends silently, with the exit code that a shell shows for SIGPIPE. After any other error,
//! such as a full disk, it prints the error, and the exit code is 1.

use std::fmt::Display;
use std::io::{ErrorKind, Result, Write, stdout};
use std::process::{ExitCode, exit};

use clap::Parser;
use clap::builder::Styles;
use clap::builder::styling::AnsiColor;

/// The colours of help and errors. They are shown on a terminal, unless `NO_COLOR` is set.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default())
    .error(AnsiColor::Red.on_default().bold())
    .valid(AnsiColor::Cyan.on_default())
    .invalid(AnsiColor::Yellow.on_default());

/// The exit code of a program whose reader has closed the output: 128 and the number of SIGPIPE.
pub const CLOSED: u8 = 128 + 13;

/// Reads the command line. Ends the program after `--help`, `--version` and mistakes.
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
pub fn print(text: impl AsRef<[u8]>) {
    let mut stdout = stdout().lock();
    end_unless_printed(stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()));
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

/// Prints a line on standard error. If that is closed or full, the line has no reader.
pub fn tell(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Prints an error.
pub fn tell_error(error: impl Display) {
    let style = STYLES.get_error();
    tell(format_args!("{style}error:{style:#} {error}"));
}

/// Prints an error, and gives the exit code of a failure.
pub fn fail(error: impl Display) -> ExitCode {
    tell_error(error);
    ExitCode::FAILURE
}
