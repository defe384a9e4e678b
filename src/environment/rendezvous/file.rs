//! The file by which ranks find rank 0: [`Announced`] as JSON. Its nonce is part of the key, so
//! only a process that can read the file is let in.
//!
//! A file has one rank 0. Rank 0 writes the file under another name and then links it to its name,
//! which fails if there is a file of that name. An empty file, and one whose process has ended
//! without removing it, are replaced under a lock on the old file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{AttemptError, tcp};
use crate::environment::process::{ProcessIdentity, ProcessState};
use crate::error::{Error, Result, bail, error};
use crate::handshake::{PROTOCOL, random, random_text};
use crate::util::log;

/// The longest file that is read.
const LONGEST_FILE: u64 = 4096;

/// Without O_NONBLOCK, opening a pipe would wait for its other end.
const OPEN_FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// What the file says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Announced {
    protocol: String,
    /// Rank 0's machine, by several names and addresses.
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    pub(super) nonce: [u8; 32],
    /// Rank 0's process, if `/proc` shows it.
    owner: Option<ProcessIdentity>,
}

/// Rank 0's file while it waits for the other ranks. Dropping this removes the file.
pub(super) struct Announcement {
    path: PathBuf,
    id: FileId,
    pub(super) nonce: [u8; 32],
}

/// Device and inode of a file. A file that another process has put in its place has others.
type FileId = (u64, u64);

fn id_of(found: &std::fs::Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// Writes the file for a rank 0 that listens on this port. Other processes see the whole file or
/// none.
pub(super) fn announce(path: &Path, port: u16) -> Result<Announcement> {
    let nonce = random()?;
    let Some(name) = path.file_name() else { bail!(InvalidArgument, "{path:?} does not name a file") };
    let mut aside = name.to_owned();
    aside.push(format!(".{}.{}", std::process::id(), random_text::<4>()?));
    let aside = path.with_file_name(aside);
    let owner = ProcessIdentity::own();
    let announced = Announced { protocol: PROTOCOL.to_owned(), hosts: tcp::own_hosts(), port, nonce, owner };
    let text = serde_json::to_vec(&announced).map_err(|e| cannot_write(path, e.into()))?;
    let failed = |e| cannot_write(path, e);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).map_err(failed)?;
    // On a network file system, other machines must not see the name before the content.
    let written = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| file.metadata());
    let announced = written.map_err(failed).and_then(|found| place(&file, &aside, path).map(|()| id_of(&found)));
    // If the file was renamed, this fails.
    let _ = std::fs::remove_file(&aside);
    Ok(Announcement { path: path.to_owned(), id: announced?, nonce })
}

fn cannot_write(path: &Path, e: std::io::Error) -> Error {
    error!(System, "file {path:?} cannot be written: {e}").with_source(e)
}

/// Gives the finished file its name, if no other rank 0 has it.
fn place(file: &File, aside: &Path, path: &Path) -> Result<()> {
    loop {
        let Err(e) = std::fs::hard_link(aside, path) else { return Ok(()) };
        // The server of a network file system may have made the link and its reply was lost.
        if file.metadata().is_ok_and(|found| found.nlink() > 1) {
            return Ok(());
        }
        let is_taken = match e.kind() {
            std::io::ErrorKind::AlreadyExists => true,
            std::io::ErrorKind::NotFound => return Err(cannot_write(path, e)),
            // The file system has no links. Every file system has one of the two operations.
            _ => match renameat_with(CWD, aside, CWD, path, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => true,
                Err(_) => false,
            },
        };
        if !is_taken {
            return Err(cannot_write(path, e));
        }
        if replace(aside, path)? {
            return Ok(());
        }
    }
}

/// Replaces an empty or abandoned file by the finished one. The lock on the old file keeps another
/// rank 0 from replacing it between check and rename. False if the old file is gone.
fn replace(aside: &Path, path: &Path) -> Result<bool> {
    let Some(old) = open(path, OpenOptions::new().read(true).write(true))? else { return Ok(false) };
    match flock(&old, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            bail!(InvalidArgument, "file {path:?} is locked: another rank 0 is about to meet there; name another file")
        }
        Err(e) => {
            let text = format!("file {path:?} is there already and cannot be locked: {e}; remove it");
            return Err(error!(System, "{text}").with_source(std::io::Error::from(e)));
        }
    }
    let failed = |e| cannot_write(path, e);
    let locked = id_of(&old.metadata().map_err(failed)?);
    if !std::fs::symlink_metadata(path).is_ok_and(|found| id_of(&found) == locked) {
        return Ok(false);
    }
    check_replaceable(path, &old)?;
    std::fs::rename(aside, path).map_err(failed)?;
    Ok(true)
}

/// Opens the file at the path, if there is one.
fn open(path: &Path, options: &mut OpenOptions) -> Result<Option<File>> {
    match options.custom_flags(OPEN_FLAGS).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ELOOP | libc::EISDIR)) => Err(not_regular(path)),
        Err(e) => Err(error!(System, "file {path:?} cannot be opened: {e}").with_source(e)),
    }
}

/// Checks that a file is empty, or that the rank 0 that wrote it has ended.
fn check_replaceable(path: &Path, old: &File) -> Result<()> {
    let failed = |e| error!(System, "file {path:?} cannot be read: {e}").with_source(e);
    let metadata = old.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(not_regular(path));
    }
    if metadata.len() == 0 {
        return Ok(());
    }
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    let announced = content(old).map_err(failed)?.filter(|_| is_own);
    let Announced { owner, .. } = announced.ok_or_else(|| foreign(path))?;
    match owner.as_ref().map(|owner| (owner.state(), owner.pid)) {
        Some((ProcessState::HasEnded, pid)) => {
            log::event!(INFO, "file {path:?} is left from process {pid}, which has ended; it is replaced");
            Ok(())
        }
        Some((ProcessState::Runs, pid)) => bail!(
            InvalidArgument,
            "file {path:?} has content: the rank 0 of another job, process {pid}, meets there; name another file"
        ),
        _ => bail!(
            InvalidArgument,
            "file {path:?} has content: a rank 0 of another machine or container wrote it; if its job has ended, remove the \
             file, else name another one"
        ),
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| id_of(&found) == self.id)
            && let Err(e) = std::fs::remove_file(&self.path)
        {
            log::event!(WARN, "file {:?} of the rendezvous cannot be removed: {e}", self.path);
        }
    }
}

/// Reads where rank 0 is. The file may be absent or empty until rank 0 has written it, and may be
/// one that a crashed job has left.
pub(super) fn read(path: &Path) -> Result<Announced, AttemptError> {
    let Some(file) = open(path, OpenOptions::new().read(true))? else {
        return Err(AttemptError::Passing("the file was not there".to_owned()));
    };
    // From here on, on a network file system, a failure may come from rank 0's replacing the file.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(not_regular(path).into());
    }
    if metadata.len() == 0 {
        return Err(AttemptError::Passing("the file was empty".to_owned()));
    }
    let own_user = rustix::process::geteuid().as_raw();
    if metadata.uid() != own_user || metadata.mode() & 0o077 != 0 {
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
        return Err(error!(
            InvalidArgument,
            "file {path:?} has to belong to user {own_user} and be closed to all others; it belongs to user {owner} and has \
             mode {mode:03o}"
        )
        .into());
    }
    content(&file)?.ok_or_else(|| foreign(path).into())
}

/// What a file says if a rank 0 of this version wrote it.
fn content(file: &File) -> std::io::Result<Option<Announced>> {
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    let announced = serde_json::from_slice(&bytes).ok();
    Ok(announced.filter(|found: &Announced| found.protocol == PROTOCOL && !found.hosts.is_empty()))
}

fn foreign(path: &Path) -> Error {
    error!(
        InvalidArgument,
        "file {path:?} has content that no rank 0 of this version wrote; remove it, or name another file"
    )
}

fn not_regular(path: &Path) -> Error {
    error!(InvalidArgument, "{path:?} has to be a regular file, or absent until rank 0 has come, and is something else")
}
