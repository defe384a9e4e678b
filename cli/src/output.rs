//! What the program prints: the results of its commands, and errors.

use std::fmt::Display;
use std::io::{Write, stdout};
use std::process::ExitCode;

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

/// Prints an error, and gives the exit code of a failure.
pub fn fail(error: impl Display) -> ExitCode {
    let style = STYLES.get_error();
    anstream::eprintln!("{style}error:{style:#} {error}");
    ExitCode::FAILURE
}

/// Prints a command's result, and gives the exit code. If the reader has closed the output, as
/// `head` does, SIGPIPE ends the program.
pub fn print(result: impl AsRef<[u8]>) -> ExitCode {
    match stdout().write_all(result.as_ref()).and_then(|()| stdout().flush()) {
        Err(error) => fail(format!("the output cannot be written: {error}")),
        Ok(()) => ExitCode::SUCCESS,
    }
}
