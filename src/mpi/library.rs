//! Which MPI the process uses, of those that are installed or loaded.

use std::mem::ManuallyDrop;
use std::sync::Mutex;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::abi::{Mpich, OpenMpi, Standard};
use super::api::{Api, bind};
use crate::error::{Result, error};
use crate::util::{lock, signal_handlers};

const OPEN_MPI: &[&str] = &["libmpi.so.40"];
/// Debian's name, and MPICH's own, which Intel MPI has too.
const MPICH: &[&str] = &["libmpich.so.12", "libmpi.so.12"];
/// The standard's, with the numbers that MPICH has given it.
const STANDARD: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0"];

/// The library, which stays loaded.
pub(super) struct MpiLibrary {
    pub(super) file: &'static str,
    pub(super) version: String,
    pub(super) api: Box<dyn Api>,
}

impl MpiLibrary {
    /// Whether the process has loaded an MPI.
    pub(super) fn is_loaded() -> bool {
        // SAFETY: nothing is loaded.
        let is_loaded = |file| unsafe { Library::open(Some(file), RTLD_NOW | libc::RTLD_NOLOAD) }.is_ok();
        [OPEN_MPI, MPICH, STANDARD].concat().into_iter().any(is_loaded)
    }

    /// The MPI that the process has loaded, or else that of the launcher, or else the first that
    /// is installed.
    pub(super) fn find() -> Result<&'static Self> {
        static FOUND: Mutex<Option<&'static MpiLibrary>> = Mutex::new(None);
        let mut found = lock(&FOUND);
        if let Some(library) = *found {
            return Ok(library);
        }
        let library = Box::leak(Box::new(signal_handlers::keep(open)?));
        *found = Some(library);
        Ok(library)
    }
}

/// The files to look for under a launcher that has set the variables for which `is_set` holds. A
/// launcher's variables tell ranks of its own MPI only who they are.
fn files(is_set: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let lists = match (is_set("OMPI_COMM_WORLD_SIZE"), is_set("PMI_SIZE"), is_set("SLURM_PROCID")) {
        (true, ..) => [OPEN_MPI, STANDARD, &[]],
        (_, true, false) => [MPICH, STANDARD, &[]],
        // srun sets the variables of PMI too, for any MPI.
        (_, true, true) => [MPICH, OPEN_MPI, STANDARD],
        _ => [OPEN_MPI, MPICH, STANDARD],
    };
    lists.concat()
}

fn open() -> Result<MpiLibrary> {
    let mut tried = Vec::new();
    let loaded = [OPEN_MPI, MPICH, STANDARD].concat().into_iter().map(|file| (file, libc::RTLD_NOLOAD));
    let others = files(|name| std::env::var_os(name).is_some()).into_iter().map(|file| (file, 0));
    for (file, mode) in loaded.chain(others) {
        // Open MPI's plugins look for its symbols among those of the whole process.
        // SAFETY: an MPI may be loaded at any time and from any thread.
        match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL | mode) } {
            Ok(library) => return bound(file, &ManuallyDrop::new(library)),
            Err(_) if mode != 0 => {}
            Err(e) => {
                let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
                tried.push(format!("{file} ({why})"));
            }
        }
    }
    Err(error!(
        Unsupported,
        "no MPI is to be found; tried {}. Open MPI is in Debian's package openmpi-bin, MPICH in mpich; elsewhere load the \
         MPI's module, or have its lib folder in LD_LIBRARY_PATH",
        tried.join(" and ")
    ))
}

fn bound(file: &'static str, library: &Library) -> Result<MpiLibrary> {
    // SAFETY: the address is not used.
    let is_open_mpi = unsafe { library.get::<*mut u8>("ompi_mpi_comm_world").is_ok() };
    // SAFETY: that is the library's interface, by its symbol or its name.
    let api = unsafe {
        match () {
            () if STANDARD.contains(&file) => bind::<Standard>(library, file)?,
            () if is_open_mpi => bind::<OpenMpi>(library, file)?,
            () => bind::<Mpich>(library, file)?,
        }
    };
    Ok(MpiLibrary { file, version: api.version(), api })
}

#[test]
fn the_launchers_mpi_is_looked_for() {
    let under = |variables: &'static [&str]| files(|name| variables.contains(&name));
    assert_eq!(under(&["OMPI_COMM_WORLD_SIZE"])[0], "libmpi.so.40");
    assert!(!under(&["OMPI_COMM_WORLD_SIZE"]).contains(&"libmpich.so.12"));
    assert_eq!(under(&["PMI_SIZE"])[..2], ["libmpich.so.12", "libmpi.so.12"]);
    assert_eq!(under(&["PMI_SIZE", "SLURM_PROCID"])[0], "libmpich.so.12");
    assert_eq!(under(&["SLURM_PROCID"])[0], "libmpi.so.40");
}
