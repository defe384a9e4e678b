//! A terminal for a program that a test starts.

/// A terminal of its own: this end, and how to open the other one.
pub fn terminal() -> (std::fs::File, impl Fn() -> std::fs::File) {
    // Programs that are started do not have this end open.
    let master = std::fs::File::options().read(true).write(true).open("/dev/ptmx").expect("a terminal");
    rustix::pty::unlockpt(&master).expect("its own terminal");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("a name").into_string().expect("UTF-8");
    (master, move || std::fs::File::options().read(true).write(true).open(&name).expect("the terminal"))
}
