//! `distcollective completions` and `distcollective man`: what shells and `man` know of the
//! program.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use distcollective::system::NewFile;

use crate::output::{fail, print};

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

pub fn complete(arguments: &Completions, mut program: Command) -> ExitCode {
    let (name, mut script) = (program.get_name().to_owned(), Vec::new());
    clap_complete::generate(arguments.shell, &mut program, name, &mut script);
    print(script);
    ExitCode::SUCCESS
}

pub fn write_manual(arguments: &Manual, program: Command) -> ExitCode {
    // The command `help` has no page.
    let mut program = program.disable_help_subcommand(true);
    if let Some(directory) = &arguments.directory {
        program.build();
        let mut pages =
            [&program].into_iter().chain(program.get_subcommands()).map(|command| Man::new(command.clone()));
        let written = pages.try_for_each(|page| {
            let mut file = NewFile::create(directory.join(page.get_filename()))?;
            page.render(&mut file)?;
            file.finish()
        });
        return match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(format!("the manual cannot be written into {}: {error}", directory.display())),
        };
    }
    let mut page = Vec::new();
    match Man::new(program).render(&mut page) {
        Ok(()) => {
            print(page);
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("the manual cannot be made: {error}")),
    }
}
