//! Files that get their names when they are whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, fstat, linkat};

/// A file that takes the place of the one of its name when it is whole. Until then, and after an
/// error, the old one stays.
///
/// A symbolic link stays too, and the file that it names is replaced. What cannot be replaced as it
/// is, is written where it is: what is no regular file, such as a pipe; the program's own output; a
/// file of another owner, with several names, or in a place where the program may make no other.
/// On a file system without unnamed files (some network file systems), a program that a signal ends
/// leaves a part of the new file under a hidden name.
///
/// ```
/// use std::io::Write;
///
/// use distcollective::system::NewFile;
///
/// let path = std::env::temp_dir().join(format!("new-file-{}", std::process::id()));
/// let mut file = NewFile::create(&path)?;
/// file.write_all(b"all of it")?;
/// assert!(!path.exists());
/// file.finish()?;
/// assert_eq!(std::fs::read(&path)?, b"all of it");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewFile {
    file: File,
    destination: Destination,
}

/// Where the bytes are before [`NewFile::finish`].
#[derive(Debug)]
enum Destination {
    /// Where they stay. A regular file then ends where the bytes do.
    There { is_regular: bool },
    /// In a file without a name. `hidden` is its name between the two calls that replace a file.
    Unnamed { target: PathBuf, hidden: PathBuf },
    /// In a file that has another name.
    Named { target: PathBuf, hidden: PathBuf },
}

impl NewFile {
    /// Begins a file at this path.
    ///
    /// # Errors
    ///
    /// There can be no file at this path, or this program may not write it.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let target = match path.canonicalize() {
            Ok(target) => target,
            // A link to a file that is not there, or that has no name.
            Err(_) if path.symlink_metadata().is_ok() => return Self::in_place(path),
            Err(_) => path.to_owned(),
        };
        let old = match OpenOptions::new().write(true).open(&target) {
            Ok(old) => old.metadata()?,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Self::unnamed(&target, 0o666).or_else(|_| Self::named(&target, 0o666));
            }
            Err(e) => return Err(e),
        };
        match is_replaceable(&old) {
            true => Self::like(&target, &old).or_else(|_| Self::in_place(&target)),
            false => Self::in_place(&target),
        }
    }

    fn in_place(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let is_regular = file.metadata()?.is_file();
        Ok(NewFile { file, destination: Destination::There { is_regular } })
    }

    /// A file that other users may read as they may the old one.
    fn like(target: &Path, old: &Metadata) -> Result<Self> {
        let new = Self::unnamed(target, 0o600).or_else(|_| Self::named(target, 0o600))?;
        if new.file.metadata()?.gid() != old.gid() {
            fchown(&new.file, None, Some(old.gid()))?;
        }
        new.file.set_permissions(old.permissions())?;
        Ok(new)
    }

    /// Writes a file of these bytes, as [`std::fs::write`] does.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(bytes.as_ref())?;
        file.finish()
    }

    fn unnamed(target: &Path, mode: u32) -> Result<Self> {
        let hidden = hidden_name(target, "distcollective")?;
        let folder = hidden.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(mode).open(folder)?;
        // Without /proc it could get no name.
        path_of(&file).metadata()?;
        Ok(NewFile { file, destination: Destination::Unnamed { target: target.to_owned(), hidden } })
    }

    fn named(target: &Path, mode: u32) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let hidden = hidden_name(target, &format!("{}-{number}", std::process::id()))?;
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&hidden) {
                // Of a process with this number that has ended, or is in another container.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                opened => {
                    let destination = Destination::Named { target: target.to_owned(), hidden };
                    return opened.map(|file| NewFile { file, destination });
                }
            }
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or cannot have the name.
    pub fn finish(mut self) -> Result<()> {
        let (target, placed) = match &self.destination {
            Destination::There { is_regular: false } => return Ok(()),
            Destination::There { is_regular: true } => {
                let len = self.file.stream_position()?;
                return self.file.set_len(len);
            }
            Destination::Unnamed { target, hidden } => {
                // Some file systems tell only now that they are full.
                self.file.sync_all()?;
                (target, self.link(target, hidden))
            }
            Destination::Named { target, hidden } => {
                self.file.sync_all()?;
                (target, std::fs::rename(hidden, target))
            }
        };
        match placed {
            Ok(()) => self.destination = Destination::There { is_regular: false },
            // The old file may be a mount, or its folder may allow no other.
            Err(e) if !target.is_file() => return Err(e),
            Err(_) => drop(std::io::copy(&mut File::open(path_of(&self.file))?, &mut File::create(target)?)?),
        }
        Ok(())
    }

    /// A link replaces no file, so the file first gets a hidden name, which is always the same: one
    /// that a program left between the two calls is removed.
    fn link(&self, target: &Path, hidden: &Path) -> Result<()> {
        let own = path_of(&self.file);
        // Whether there was no file of that name.
        let link = |name: &Path| match linkat(CWD, &own, CWD, name, AtFlags::SYMLINK_FOLLOW) {
            Err(rustix::io::Errno::EXIST) => Ok(false),
            linked => linked.map(|()| true).map_err(Error::from),
        };
        if link(target)? {
            return Ok(());
        }
        loop {
            while !link(hidden)? {
                unless_absent(std::fs::remove_file(hidden))?;
            }
            match std::fs::rename(hidden, target) {
                // Another program writes the same file at the same time, and has removed the name.
                Err(e) if e.kind() == ErrorKind::NotFound && target.exists() => {}
                renamed => return renamed.inspect_err(|_| drop(std::fs::remove_file(hidden))),
            }
        }
    }
}

/// Whether another file can take the place of one: no other name and no other owner loses it, and
/// this program's own output does not go there.
fn is_replaceable(old: &Metadata) -> bool {
    let is_old = |other: rustix::fs::Stat| (other.st_dev, other.st_ino) == (old.dev(), old.ino());
    let outputs = [fstat(std::io::stdout()), fstat(std::io::stderr())];
    old.is_file()
        && old.nlink() == 1
        && old.uid() == rustix::process::geteuid().as_raw()
        && old.mode() & 0o7000 == 0
        && !outputs.into_iter().flatten().any(is_old)
}

/// The name `.name.suffix` beside a file.
fn hidden_name(target: &Path, suffix: &str) -> Result<PathBuf> {
    let Some(name) = target.file_name() else { return Err(ErrorKind::NotFound.into()) };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{suffix}"));
    Ok(target.with_file_name(hidden))
}

fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn unless_absent(done: Result<()>) -> Result<()> {
    match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Destination::Named { hidden, .. } = &self.destination {
            // If the file was renamed, this fails.
            let _ = std::fs::remove_file(hidden);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write(mut new: NewFile, text: &str) -> Result<()> {
        new.write_all(text.as_bytes())?;
        new.finish()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("a file").file_name().into_string()).collect();
        names.sort();
        names.into_iter().map(|name| name.expect("UTF-8")).collect()
    }

    /// Both ways, since a file system has one of them only.
    #[test]
    fn a_file_is_replaced_when_the_new_one_is_whole() {
        let folder = std::env::temp_dir().join(format!("dcl-new-file-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let (target, link) = (folder.join("a"), folder.join("link"));
        symlink("a", &link).expect("a link");
        let ways: [fn(&PathBuf) -> Result<NewFile>; 2] =
            [|path| NewFile::create(path), |path| NewFile::named(path, 0o640)];
        for begin in ways {
            write(begin(&target).expect("a file"), "one").expect("a file");
            fs::set_permissions(&target, Permissions::from_mode(0o640)).expect("an own file");
            drop(begin(&target).expect("a file").write_all(b"a part"));
            assert_eq!((fs::read_to_string(&target).expect("a file").as_str(), names(&folder).len()), ("one", 2));
            // As a program leaves it that ends between the two calls.
            fs::write(folder.join(".a.distcollective"), "left").expect("a file");
            write(NewFile::create(&link).expect("a file"), "two").expect("a file");
            assert_eq!(fs::read_to_string(&target).expect("a file"), "two");
            assert_eq!(names(&folder), ["a", "link"]);
            assert_eq!(target.metadata().expect("a file").permissions().mode() & 0o777, 0o640);
            write(begin(&target).expect("a file"), "three").expect("a file");
            assert_eq!((fs::read_to_string(&target).expect("a file").as_str(), names(&folder).len()), ("three", 2));
            fs::remove_file(&target).expect("a file");
        }
        for wrong in [folder.as_path(), &folder.join("no/a"), Path::new("/"), Path::new("")] {
            assert!(NewFile::create(wrong).is_err(), "{wrong:?}");
        }
        // A link to no file, and a file with two names.
        symlink("b", folder.join("dangling")).expect("a link");
        write(NewFile::create(folder.join("dangling")).expect("a file"), "through the link").expect("a file");
        fs::hard_link(folder.join("b"), folder.join("second")).expect("a name");
        write(NewFile::create(folder.join("second")).expect("a file"), "short").expect("a file");
        assert_eq!(fs::read_to_string(folder.join("b")).expect("a file"), "short");
        assert_eq!(names(&folder), ["b", "dangling", "link", "second"]);
        let full = write(NewFile::create("/dev/full").expect("a device"), "all");
        assert_eq!(full.expect_err("it is full").kind(), ErrorKind::StorageFull);
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
