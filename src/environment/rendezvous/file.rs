//! The file by which ranks find rank 0: its addresses and a nonce, which is part of the key. So whoever can read the file gets
//! in, and nobody else can.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::guest::{Obstacle, Whereabouts};
use super::protocol::{PROTOCOL, random_text};
use super::tcp;
use crate::error::{Error, Result, bail, error};
use crate::rank::count_of;

/// How many random bytes the nonce is made of.
const NONCE_BYTES: usize = 32;

/// The longest file that is read.
const LONGEST_FILE: u64 = 4096;

/// The file of a meeting that waits for its ranks. It goes away with this.
pub(super) struct Announcement {
    path: PathBuf,
    /// Device and number of the file, which tell it from one that somebody else has put there.
    identity: (u64, u64),
    nonce: String,
}

/// Checks, on rank 0, that no other meeting waits at the path, nor anything else is there.
pub(super) fn check_unused(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => Ok(()),
        Ok(found) if found.is_file() => bail!(
            InvalidArgument,
            "file {path:?} has content, so another job may be meeting there, or one has crashed; remove it, or name another \
             file"
        ),
        Ok(_) => Err(not_regular(path)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(error!(System, "file {path:?} cannot be looked at: {e}").with_source(e)),
    }
}

/// Writes the file for a rank 0 that listens on this port: aside, and then all at once in its place.
pub(super) fn announce(path: &Path, port: u16) -> Result<Announcement> {
    let nonce = random_text::<NONCE_BYTES>()?;
    let Some(name) = path.file_name() else { bail!(InvalidArgument, "{path:?} does not name a file") };
    let mut aside = name.to_owned();
    aside.push(format!(".{}.{}", std::process::id(), &nonce[..8]));
    let aside = path.with_file_name(aside);
    let text = format!("{PROTOCOL}\n{}\n{nonce}\n", tcp::own_addresses(port).join(" "));
    let failed = |e: std::io::Error| error!(System, "file {path:?} cannot be written: {e}").with_source(e);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).map_err(failed)?;
    let announced = file.write_all(text.as_bytes()).and_then(|()| {
        // Other machines shall not see the name before the content.
        file.sync_all()?;
        let metadata = file.metadata()?;
        std::fs::rename(&aside, path)?;
        Ok((metadata.dev(), metadata.ino()))
    });
    match announced {
        Ok(identity) => Ok(Announcement { path: path.to_owned(), identity, nonce }),
        Err(e) => {
            // The first error tells more than one about what is left behind.
            let _ = std::fs::remove_file(&aside);
            Err(failed(e))
        }
    }
}

impl Announcement {
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
            && let Err(e) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("file {:?} of the meeting cannot be removed: {e}", self.path);
        }
    }
}

/// Reads where rank 0 is. The file may be absent or empty until rank 0 has come, and may be what a crashed job has left.
pub(super) fn read(path: &Path) -> Result<Whereabouts, Obstacle> {
    // Without NONBLOCK, opening a pipe would wait for a writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Obstacle::Passing("the file was not there".to_owned()));
        }
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(not_regular(path).into()),
        Err(e) => return Err(error!(System, "file {path:?} cannot be read: {e}").with_source(e).into()),
    };
    // From here on a failure may come of rank 0's changing the file, on a network file system.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(not_regular(path).into());
    }
    if metadata.len() == 0 {
        return Err(Obstacle::Passing("the file was empty".to_owned()));
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
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
    let whereabouts = std::str::from_utf8(&bytes).ok().and_then(parse);
    whereabouts.ok_or_else(|| {
        error!(
            InvalidArgument,
            "file {path:?} has {} that rank 0 of this version did not write; remove it, or name another file",
            count_of(bytes.len(), "byte")
        )
        .into()
    })
}

fn not_regular(path: &Path) -> Error {
    error!(InvalidArgument, "{path:?} has to be a regular file, or absent until rank 0 has come, and is something else")
}

/// Understands what [`announce`] writes, and nothing else.
fn parse(text: &str) -> Option<Whereabouts> {
    let lines: Vec<&str> = text.split('\n').collect();
    let [PROTOCOL, hosts, nonce, ""] = lines.as_slice() else { return None };
    let host = |text: &str| {
        let (host, port) = text.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    let hosts = hosts.split(' ').map(host).collect::<Option<_>>()?;
    let is_nonce = nonce.len() == 2 * NONCE_BYTES && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_nonce.then(|| Whereabouts { hosts, file_nonce: Some((*nonce).to_owned()) })
}
