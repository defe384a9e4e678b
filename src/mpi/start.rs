//! Initializing MPI, and its end.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::api::MpiPhase;
use super::engine::{end, enter};
use super::library::MpiLibrary;
use crate::error::{Result, bail, error};
use crate::util::fork::ProcessGuard;
use crate::util::log::event;
use crate::util::wait::Wait;
use crate::util::{lock, signal_handlers};

/// How long the end of the process waits for `MPI_Finalize`, which waits for all ranks.
const FINALIZE_TIME: Duration = Duration::from_secs(10);

/// The rank and number of ranks by the launcher, and its name.
#[derive(Clone, Debug)]
pub(crate) struct Launched<'a> {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) launcher: &'a str,
}

impl Launched<'static> {
    /// What the variables of mpirun or srun say, if one has started this process.
    pub(crate) fn by_variables() -> Option<Self> {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let by = |launcher, rank, size| Some(Launched { rank: number(rank)?, world_size: number(size)?, launcher });
        by("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
            .or_else(|| by("PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE"))
            .or_else(|| by("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    }
}

/// Finds MPI, and checks that it can be used, as far as one rank alone can tell.
///
/// # Errors
///
/// `Unsupported`: there is none; the program has initialized it for too few threads. `NotReady`: it
/// has been finalized.
pub(crate) fn check() -> Result<()> {
    find().map(|_| ())
}

/// The library, and whether it is initialized.
fn find() -> Result<(&'static MpiLibrary, bool)> {
    static PROCESS: OnceLock<ProcessGuard> = OnceLock::new();
    PROCESS.get_or_init(ProcessGuard::current).check("MPI")?;
    let library = MpiLibrary::find()?;
    let (file, version) = (library.file, &library.version);
    match library.api.phase() {
        MpiPhase::New => Ok((library, false)),
        MpiPhase::Initialized { allows_threads: true } => Ok((library, true)),
        MpiPhase::Initialized { allows_threads: false } => bail!(
            Unsupported,
            "{file} ({version}) has been initialized for calls of one thread at a time, and this library calls it from a \
             thread of its own: initialize it by MPI_Init_thread with MPI_THREAD_MULTIPLE, or leave that to this library"
        ),
        MpiPhase::Finalized => bail!(NotReady, "MPI has been finalized in this process, and cannot be used again"),
    }
}

/// The thread that initializes MPI, and finalizes it at the end of the process.
struct Starter {
    library: &'static MpiLibrary,
    stage: Mutex<StartStage>,
    changed: Condvar,
    process: ProcessGuard,
}

enum StartStage {
    Starting,
    Started(Result<()>),
    /// The process ends.
    Ending,
    Ended,
}

static STARTER: OnceLock<Starter> = OnceLock::new();

/// The library, when MPI is initialized in it. Collective over all ranks that the launcher has
/// started, unless the program has initialized MPI.
pub(super) fn initialized(deadline: Instant) -> Result<&'static MpiLibrary> {
    let library = match find()? {
        (library, true) => library,
        (library, false) => start(library, deadline)?,
    };
    prepare_end(library)?;
    Ok(library)
}

fn start(library: &'static MpiLibrary, deadline: Instant) -> Result<&'static MpiLibrary> {
    static STARTING: Mutex<()> = Mutex::new(());
    let starting = lock(&STARTING);
    if STARTER.get().is_none() {
        let starter = STARTER.get_or_init(|| Starter {
            library,
            stage: Mutex::new(StartStage::Starting),
            changed: Condvar::new(),
            process: ProcessGuard::current(),
        });
        let thread = std::thread::Builder::new().name("dcl-mpi".to_owned()).spawn(|| starter.run());
        thread.map_err(|e| error!(System, "no thread to initialize MPI").with_source(e))?;
    }
    drop(starting);
    let Some(starter) = STARTER.get() else { bail!(System, "MPI was not initialized") };
    starter.process.check("MPI")?;
    let warning = |seconds| format!("MPI_Init_thread has not returned after {seconds} s; it waits for every rank");
    let is_started = |stage: &mut StartStage| match stage {
        StartStage::Starting => None,
        StartStage::Started(result) => Some(result.clone()),
        StartStage::Ending | StartStage::Ended => Some(Err(error!(NotReady, "the process ends"))),
    };
    let started = Wait::until(deadline).warning(&warning).on(&starter.stage, &starter.changed, is_started);
    started.map_err(|stopped| {
        let late = format_args!(
            "MPI_Init_thread of {} ({}) did not return before the deadline; it waits for every rank that the launcher has \
             started, and perhaps one did not initialize MPI",
            library.file, library.version
        );
        stopped.error("while MPI_Init_thread waited for the other ranks", late)
    })??;
    if library.api.phase() == (MpiPhase::Initialized { allows_threads: false }) {
        bail!(Unsupported, "{} ({}) does not have MPI_THREAD_MULTIPLE", library.file, library.version);
    }
    Ok(library)
}

impl Starter {
    fn set(&self, stage: StartStage) {
        *lock(&self.stage) = stage;
        self.changed.notify_all();
    }

    fn run(&self) {
        // SAFETY: no other thread initializes MPI for this library.
        let result = signal_handlers::keep(|| unsafe {
            self.library.api.initialize()?;
            // MPICH gives the error of a request of a duplication to this one's handler.
            self.library.api.return_errors(self.library.api.world())
        });
        let is_initialized = result.is_ok();
        if is_initialized {
            // SAFETY: the function may be called at any time.
            if unsafe { libc::atexit(finalize_at_exit) } != 0 {
                event!(WARN, "no memory for an exit handler; the process will end without MPI_Finalize");
            }
        }
        self.set(StartStage::Started(result));
        let is_running = |stage: &mut StartStage| !matches!(stage, StartStage::Ending);
        drop(self.changed.wait_while(lock(&self.stage), is_running).unwrap_or_else(PoisonError::into_inner));
        if self.library.api.phase() != MpiPhase::Finalized {
            // SAFETY: this thread has initialized MPI, which calls `end` first.
            unsafe { self.library.api.finalize() };
        }
        self.set(StartStage::Ended);
    }
}

/// What ends communicators before MPI ends.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Has `call` called before MPI is finalized, by whomever.
pub(crate) fn before_finalize(call: fn()) {
    BEFORE.get_or_init(|| call);
}

extern "C" fn finalize_at_exit() {
    let Some(starter) = STARTER.get().filter(|starter| starter.process.is_current()) else { return };
    let mut stage = lock(&starter.stage);
    *stage = StartStage::Ending;
    starter.changed.notify_all();
    let is_ending = |stage: &mut StartStage| !matches!(stage, StartStage::Ended);
    drop(starter.changed.wait_timeout_while(stage, FINALIZE_TIME, is_ending).unwrap_or_else(PoisonError::into_inner));
}

/// MPI calls it at the beginning of `MPI_Finalize`.
fn on_finalize() {
    if let Some(before) = BEFORE.get() {
        before();
    }
    end();
}

/// Has [`on_finalize`] called when MPI is finalized, by whomever.
fn prepare_end(library: &'static MpiLibrary) -> Result<()> {
    static PREPARED: Mutex<bool> = Mutex::new(false);
    let mut is_prepared = lock(&PREPARED);
    if !*is_prepared {
        let _engine = enter()?;
        // SAFETY: MPI is initialized, and with the lock held it does not end.
        unsafe { library.api.before_finalize(on_finalize)? };
        *is_prepared = true;
    }
    Ok(())
}
