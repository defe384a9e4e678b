//! What a program prints: results, help, errors; and its exit code.
//!
//! A program that cannot print ends. If the reader has closed the output, as `head` does, the
//! program ends silently, with the exit code that a shell shows for SIGPIPE. After any other error,
//! such as a full disk, it prints the error, and the exit code is 1.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};
use std::process::{ExitCode, exit};

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Command, FromArgMatches};
use serde_json::Value;

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

/// What the help says of the exit codes of all commands but `launch`.
pub const EXIT_STATUS: &str = "\
Exit status:
  0    success
  1    the command failed
  2    the command was called in a wrong way
  141  the reader of the output closed it";

/// Why a command does not succeed.
pub struct Failure {
    error: String,
    exit_code: u8,
}

/// What a command returns: its exit code, or its error.
pub type Ended = Result<ExitCode, Failure>;

/// What went wrong while the command ran.
impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(1, error)
    }
}

impl Failure {
    pub fn new(exit_code: u8, error: impl Display) -> Self {
        Failure { error: error.to_string(), exit_code }
    }

    /// A mistake in how the command was called, which clap cannot find. The exit code is clap's.
    pub fn usage(error: impl Display) -> Self {
        Failure::new(2, error)
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }

    /// Prints the error, and gives the exit code.
    pub fn tell(self) -> ExitCode {
        tell_error(&self.error);
        self.exit_code()
    }
}

/// Reads the command line. Ends the program after `--help`, `--version` and mistakes.
pub fn parse<Arguments: FromArgMatches>(program: Command) -> Arguments {
    let parsed = program.try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.unwrap_or_else(|message| {
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

/// Prints a line of JSON: the object, with a member that names its schema and the version. The line
/// is in ASCII: names in a plan may come from anyone, and characters can steer a terminal.
pub fn print_json(schema: &str, mut object: Value) {
    object["schema"] = schema.into();
    // All other characters are in texts, where they can be escaped.
    let escaped = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    let ascii = |c: char| if c.is_ascii() { c.to_string() } else { escaped(c) };
    print(object.to_string().chars().map(ascii).chain(["\n".to_owned()]).collect::<String>());
}

fn end_unless_printed(printed: std::io::Result<()>) {
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
