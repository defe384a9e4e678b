//! Compiles programs in C and C++, links them with the shared library, and runs them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use test_support::{patience, product, root, skip, succeed};

use crate::exports::Linked;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    Cpp,
}

impl Language {
    pub fn extension(self) -> &'static str {
        match self {
            Language::C => "c",
            Language::Cpp => "cpp",
        }
    }
}

/// The tool that a program runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    Nothing,
    /// AddressSanitizer and UndefinedBehaviorSanitizer.
    Sanitizers,
    Valgrind,
}

/// A folder for a test's files.
pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_abi").join(test);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The shared library, built from the current sources.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| product("libdistcollective.so"))
}

/// A folder in which the linker and the program find the library.
fn linked() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = folder("library");
        for name in ["libdistcollective.so", &Linked::read().soname] {
            let _ = fs::remove_file(folder.join(name));
            symlink(library(), folder.join(name)).expect("a link");
        }
        folder
    })
}

/// The compiler, `CC` or `CXX` if they are set, with the warnings that every program must be free
/// of. `None` if there is no such compiler.
pub fn compiler(language: Language) -> Option<Command> {
    let (variable, usual) = if language == Language::C { ("CC", "cc") } else { ("CXX", "c++") };
    let name = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    if Command::new(&name).arg("--version").output().is_err() {
        skip(&format!("no compiler for {language:?}"));
        return None;
    }
    let mut command = Command::new(name);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.arg(if language == Language::C { "-std=c11" } else { "-std=c++17" });
    command.arg("-I").arg(root().join("include"));
    Some(command)
}

/// A program that this test has compiled, or is compiling.
type Compiled = Arc<OnceLock<Option<PathBuf>>>;

/// Compiles a program once; valgrind takes the one that runs plainly. `None` if there is no
/// compiler, or it lacks the sanitizers.
pub fn program(language: Language, source: &Path, under: Under, includes: &[&Path]) -> Option<PathBuf> {
    static PROGRAMS: Mutex<BTreeMap<(PathBuf, bool), Compiled>> = Mutex::new(BTreeMap::new());
    let under = if under == Under::Valgrind { Under::Nothing } else { under };
    let key = (source.to_owned(), under == Under::Sanitizers);
    let compiled = Arc::clone(PROGRAMS.lock().expect("no panic").entry(key).or_default());
    compiled.get_or_init(|| compile(language, source, under, includes)).clone()
}

fn compile(language: Language, source: &Path, under: Under, includes: &[&Path]) -> Option<PathBuf> {
    let mut command = compiler(language)?;
    let name = source.file_stem().expect("a name").to_str().expect("text");
    let output = folder(&format!("{under:?}-{language:?}")).join(name);
    if under == Under::Sanitizers {
        if !has_sanitizers(language) {
            skip(&format!("the compiler for {language:?} has no AddressSanitizer"));
            return None;
        }
        command.args(SANITIZERS);
    }
    for include in includes {
        command.arg("-I").arg(include);
    }
    // The programs themselves need POSIX threads.
    command.args(["-D_GNU_SOURCE", "-pthread"]).arg(source).arg("-o").arg(&output);
    command
        .arg("-L")
        .arg(linked())
        .args(["-ldistcollective", "-ldl"])
        .arg(format!("-Wl,-rpath,{}", linked().display()));
    succeed(&mut command);
    Some(output)
}

const SANITIZERS: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn has_sanitizers(language: Language) -> bool {
    static HAS: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
    *HAS[usize::from(language == Language::Cpp)].get_or_init(|| {
        let folder = folder("sanitizers");
        let source = folder.join(format!("nothing.{}", language.extension()));
        let output = folder.join(format!("nothing-{language:?}"));
        fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
        let Some(mut command) = compiler(language) else { return false };
        let compiled = command.args(SANITIZERS).arg(&source).arg("-o").arg(&output).output();
        let runs = compiled.is_ok_and(|output| output.status.success())
            && Command::new(&output).output().is_ok_and(|output| output.status.success());
        let _ = fs::remove_file(output);
        runs
    })
}

/// The command that starts a program. Its deadline is 10 s, multiplied by `DCL_TEST_PATIENCE` if
/// that is set.
pub fn started(program: &Path, under: Under) -> Option<Command> {
    started_for(10, program, under)
}

/// [`started`] with another deadline, in seconds: for a program that makes many calls on one rank.
pub fn started_for(seconds: u32, program: &Path, under: Under) -> Option<Command> {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", &(seconds * patience()).to_string()]);
    if under == Under::Valgrind {
        if Command::new("valgrind").arg("--version").output().is_err() {
            skip("valgrind is not installed");
            return None;
        }
        command.args([
            "valgrind",
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        command.args(["--show-leak-kinds=definite", "--fair-sched=yes"]);
    }
    command.arg(program);
    // The launcher's variables of this test must not reach the program. Without NCCL, calls end in
    // the same way on every machine.
    for name in ["LD_LIBRARY_PATH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    Some(command)
}

/// Three tests for each name: they call a function for no tool, the sanitizers and valgrind.
macro_rules! under_each_tool {
    ($($name:ident: $run:expr),* $(,)?) => { $(
        mod $name {
            use super::*;

            fn run_under(under: Under) {
                let run: fn(Under) = $run;
                run(under);
            }

            #[test]
            fn plainly() {
                run_under(Under::Nothing);
            }

            #[test]
            #[ignore = "compiles with sanitizers, which takes long; CI runs it"]
            fn under_sanitizers() {
                run_under(Under::Sanitizers);
            }

            #[test]
            #[ignore = "takes long under valgrind; CI runs it"]
            fn under_valgrind() {
                run_under(Under::Valgrind);
            }
        }
    )* };
}
pub(crate) use under_each_tool;
