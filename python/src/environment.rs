//! The distributed environment of this process.

use std::sync::{Mutex, PoisonError};

use distcollective::comm::{BackendKind, DEFAULT_TIMEOUT, timeout_or};
use distcollective::environment::Launcher;
use distcollective::{Error, ErrorKind};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::communicator::Communicator;
use super::errors::{call, raise_after_call};
use super::interrupt;
use super::timeout::Timeout;

/// The distributed environment.
#[pyclass(frozen, module = "distcollective._core")]
pub(super) struct Environment {
    /// `None` after its end.
    environment: Mutex<Option<distcollective::Environment>>,
}

impl Environment {
    fn with<R>(&self, act: impl FnOnce(&distcollective::Environment) -> R) -> PyResult<R> {
        let environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner);
        environment.as_ref().map(act).ok_or_else(|| PyRuntimeError::new_err("the environment has ended"))
    }
}

/// What the caller gives. The rest comes from the launcher's variables.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Options {
    /// The source line that initializes the environment.
    called_at: String,
    /// "gloo", "host" or "nccl".
    #[pyo3(default)]
    backend: Option<String>,
    /// Whose variables count alone: "torch", "openmpi" or "slurm".
    #[pyo3(default)]
    launcher: Option<String>,
    #[pyo3(default)]
    rank: Option<u32>,
    #[pyo3(default)]
    world_size: Option<u32>,
    #[pyo3(default)]
    host: Option<String>,
    #[pyo3(default)]
    port: Option<u16>,
    /// The name of the job, by which ranks of one machine meet.
    #[pyo3(default)]
    job: Option<String>,
    /// The number of this rank's GPU.
    #[pyo3(default)]
    device: Option<u32>,
    #[pyo3(default)]
    seed: Option<u64>,
    #[pyo3(default)]
    timeout: Option<Py<PyAny>>,
    #[pyo3(default)]
    verbose: bool,
}

/// Finds the other ranks.
#[pyfunction]
pub(super) fn initialize(py: Python<'_>, options: Options) -> PyResult<Environment> {
    let Options { called_at, backend, launcher, rank, world_size, host, port, job, device, seed, timeout, verbose } =
        options;
    let backend = backend_kind(backend.as_deref().unwrap_or("gloo"))?;
    let builder = distcollective::Environment::builder().backend(backend);
    let mut builder = builder.called_at(called_at).verbose(verbose);
    if let Some(launcher) = launcher {
        let known = [("torch", Launcher::Torch), ("openmpi", Launcher::OpenMpi), ("slurm", Launcher::Slurm)];
        let found = known.into_iter().find(|(name, _)| *name == launcher);
        let unknown = || PyValueError::new_err(format!("there is no launcher {launcher:?}"));
        builder = builder.launcher(found.ok_or_else(unknown)?.1);
    }
    if let Some(rank) = rank {
        builder = builder.rank(rank);
    }
    if let Some(world_size) = world_size {
        builder = builder.world_size(world_size);
    }
    if let Some(host) = host {
        builder = builder.host(host);
    }
    if let Some(port) = port {
        builder = builder.port(port);
    }
    if let Some(job) = job {
        builder = builder.job(job);
    }
    if let Some(device) = device {
        builder = builder.device(device);
    }
    if let Some(seed) = seed {
        builder = builder.seed(seed);
    }
    if let Some(timeout) = timeout {
        builder = builder.timeout(timeout.extract::<Timeout>(py)?.0);
    }
    interrupt::install(py)?;
    let environment = call(py, || builder.initialize())?;
    Ok(Environment { environment: Mutex::new(Some(environment)) })
}

fn backend_kind(name: &str) -> PyResult<BackendKind> {
    match name {
        "gloo" | "host" => Ok(BackendKind::Host),
        "nccl" => Ok(BackendKind::Nccl),
        "ucx" => Ok(BackendKind::Ucx),
        "mpi" => Ok(BackendKind::Mpi),
        _ => Err(PyValueError::new_err(format!("there is no backend {name:?}"))),
    }
}

/// The communicators of ranks that are threads of this process.
#[pyfunction]
#[pyo3(signature = (world_size, backend, timeout = None))]
pub(super) fn in_process(
    py: Python<'_>,
    world_size: u32,
    backend: &str,
    timeout: Option<Timeout>,
) -> PyResult<Vec<Communicator>> {
    let backend = backend_kind(backend)?;
    interrupt::install(py)?;
    let communicators = call(py, || {
        let timeout = timeout.map_or_else(|| timeout_or(DEFAULT_TIMEOUT), |timeout| Ok(timeout.0))?;
        distcollective::Communicator::builder().backend(backend).timeout(timeout).in_process(world_size)
    })?;
    Ok(communicators.into_iter().map(Communicator::new).collect())
}

/// What the library's error says if a function of Python's has raised another.
const NOT_EXCHANGED: &str = "the ranks could not exchange bytes";

/// The communicator of processes that exchange bytes by a function of Python's. With the number of
/// a GPU it is one of the backend NCCL.
#[pyfunction]
#[pyo3(signature = (exchange, rank, world_size, timeout, gpu = None))]
pub(super) fn connect(
    py: Python<'_>,
    exchange: Py<PyAny>,
    rank: u32,
    world_size: u32,
    timeout: Timeout,
    gpu: Option<u32>,
) -> PyResult<Communicator> {
    interrupt::install(py)?;
    let raised = Mutex::new(None);
    let exchange = |bytes: &[u8]| {
        let exchanged = Python::attach(|py| exchange.call1(py, (PyBytes::new(py, bytes),))?.extract(py));
        exchanged.map_err(|error| {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Error::new(ErrorKind::System, NOT_EXCHANGED)
        })
    };
    let mut builder = distcollective::Communicator::builder().rank(rank).world_size(world_size);
    if let Some(gpu) = gpu {
        builder = builder.backend(BackendKind::Nccl).device(gpu);
    }
    call(py, || {
        // SAFETY: torch's store is trusted, as SECURITY.md says.
        let connected = unsafe { builder.timeout(timeout.0).connect_by(exchange) };
        // This rank's own error is a better one than that of the exchange after it.
        connected.inspect_err(|error| {
            let raised = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(raised) = raised.filter(|_| error.to_string().ends_with(NOT_EXCHANGED)) {
                raise_after_call(raised);
            }
        })
    })
    .map(Communicator::new)
}

/// The communicator of the ranks of an `MPI_Comm`, which is given as a number.
#[pyfunction]
#[pyo3(signature = (comm, timeout = None))]
pub(super) fn from_mpi(py: Python<'_>, comm: usize, timeout: Option<Timeout>) -> PyResult<Communicator> {
    interrupt::install(py)?;
    call(py, || {
        let timeout = timeout.map_or_else(|| timeout_or(DEFAULT_TIMEOUT), |timeout| Ok(timeout.0))?;
        // SAFETY: the caller promises that it is one of this process's MPI.
        unsafe { distcollective::Communicator::from_raw_mpi(comm, timeout) }
    })
    .map(Communicator::new)
}

#[pymethods]
impl Environment {
    #[getter]
    fn communicator(&self) -> PyResult<Communicator> {
        self.with(|environment| Communicator::new(environment.communicator().clone()))
    }

    #[getter]
    fn local_rank(&self) -> PyResult<u32> {
        self.with(distcollective::Environment::local_rank)
    }

    #[getter]
    fn seed(&self) -> PyResult<u64> {
        self.with(distcollective::Environment::seed)
    }

    /// Drops this rank's handles.
    fn destroy(&self, py: Python<'_>) {
        let environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(environment));
    }
}
