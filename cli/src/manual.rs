//! `distcollective completions` and `distcollective man`: what shells and `man` know of the
//! program.

use std::io::{Result, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use distcollective::system::NewFile;

use crate::output::{Ended, print};

/// Prints a script that completes the program's commands and options in a shell.
///
/// Example: distcollective completions zsh > ~/.zsh/completions/_distcollective
#[derive(clap::Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Prints the manual page, or writes it and the page of each command into a folder.
///
/// Example: distcollective man | man -l -
#[derive(clap::Args)]
pub struct Manual {
    /// The folder, which exists
    #[arg(long, value_hint = ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

pub fn complete(arguments: &Completions, mut program: Command) -> Ended {
    let (name, mut script) = (program.get_name().to_owned(), Vec::new());
    clap_complete::generate(arguments.shell, &mut program, name, &mut script);
    print(script);
    Ok(ExitCode::SUCCESS)
}

pub fn write_manual(arguments: &Manual, program: Command) -> Ended {
    // The command `help` has no page.
    let mut program = program.disable_help_subcommand(true);
    let Some(directory) = &arguments.directory else {
        print(page(&program).map_err(|error| format!("the manual cannot be made: {error}"))?);
        return Ok(ExitCode::SUCCESS);
    };
    program.build();
    for command in [&program].into_iter().chain(program.get_subcommands()) {
        let file = directory.join(Man::new(command.clone()).get_filename());
        let written = page(command).and_then(|page| NewFile::save(file, page));
        written.map_err(|error| format!("the manual cannot be written into {}: {error}", directory.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A manual page. What the help says at its end of the exit codes is a section.
fn page(command: &Command) -> Result<Vec<u8>> {
    let exit_codes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = exit_codes.lines().skip(1).collect();
    let mut page = Vec::new();
    Man::new(command.clone().after_long_help(Resettable::Reset)).render(&mut page)?;
    writeln!(page, ".SH \"EXIT STATUS\"\n.nf\n{}\n.fi", lines.join("\n"))?;
    Ok(page)
}
